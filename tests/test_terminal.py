"""A terminal that is not there, or is full, ends no command."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

TOY = (
    '--n_layer=1 --n_head=2 --n_embd=16 --block_size=4 --batch_size=2 --max_iters=1 '
    '--warmup_iters=0 --device=cpu --dtype=float32 --compile=False --eval_iters=1 --dataset=x '
    '--data_dir=.'
)


@pytest.mark.slow
@pytest.mark.parametrize('streams', ['>&- 2>&- <&-', '>/dev/full 2>/dev/full'])
def test_programs_do_their_work_without_a_terminal(tmp_path, streams):
    """Each leaves its file and ends with 0, but for a sample that a full disk has lost."""
    (tmp_path / 'x.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 3)
    program = f'PATH={os.path.dirname(sys.executable)}:$PATH; cd {tmp_path}; at={ROOT}\n'
    commands = {
        'x/meta.json': 'data/prepare.py text --source=x.txt --tokenizer=bytes --name=x '
        '--data_dir=.',
        'out/ckpt.pt': f'train.py {TOY}',
        's.json': 'sample.py --ckpt=out/ckpt.pt --device=cpu --prompt=a[[2]] --watch=True '
        '--out=s.json',
    }
    for made, command in commands.items():
        line = f'{program} python $at/{command} {streams}'
        finished = subprocess.run(['bash', '-c', line], check=False)
        lost = 'full' in streams and command.startswith('sample')
        assert finished.returncode == lost, command
        assert (tmp_path / made).exists(), command
