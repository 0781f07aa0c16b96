"""On a device that is not the CPU: nothing mixes the two, results are equal, no update and no step
waits for it."""

import importlib
import json
import re
import sys

import pytest
import simulated_gpu
from simulated_gpu import counted

from anyorder import Writer
from anyorder.tokens.prepared import prepare

SMALL = [
    '--n_layer=1',
    '--n_head=2',
    '--n_embd=16',
    '--block_size=16',
    '--batch_size=4',
    '--eval_iters=1',
    '--compile=False',
    '--eval_interval=100',
    '--log_interval=100',
    '--network=gate_init=1',
]


WITH_GRAPHS = """
import json
from anyorder import Writer

writer = Writer('cpu/ckpt.pt', cuda_graphs=True)
texts = writer.infill('a', n=2, order='random', top_k=50)
with open('gpu.json', 'w') as f:
    json.dump({'samples': [text.sample for text in texts]}, f)
"""


def waits(said):
    """{line that waits: how often, 'replayed': how many graphs}."""
    return {
        line: int(n)
        for line, n in re.findall(r'^(waited in .*|replayed): (\d+)$', said, re.MULTILINE)
    }


@pytest.fixture
def gpu(forked, tmp_path, monkeypatch):
    """Run a command on the simulated device, in a fork. Return its waits."""
    importlib.import_module('torch._dynamo')  # two seconds, here once and not in every fork
    monkeypatch.chdir(tmp_path)

    def run(*command):
        monkeypatch.setattr(sys, 'argv', ['simulated_gpu.py', *command])
        (finished,) = forked(simulated_gpu.main)
        assert finished.code == 0, finished.said
        return waits(finished.said)

    return run


def same(gpu_rows, cpu_rows, *keys):
    for there, here in zip(gpu_rows, cpu_rows, strict=True):
        for key in keys:
            assert there[key] == pytest.approx(here[key], rel=1e-4)


@pytest.mark.slow
def test_what_runs_on_a_gpu_runs_on_the_simulated_one(gpu, process, script, tmp_path):
    text = tmp_path / 'words.txt'
    text.write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    prepare('text', tmp_path / 'data', name='words', source=str(text), tokenizer='bytes')

    # Not in a fork: autograd does not know a device that comes after its first use
    train = ['train.py', '--dataset=words', '--data_dir=data', *SMALL, '--max_iters=9']
    waited = waits(process('tests/simulated_gpu.py', *train, '--out_dir=gpu').stdout)
    assert any('means.tolist()' in line for line in waited)
    often = [line for line, n in waited.items() if n >= 9 and line != 'replayed']
    assert all('.to(place)' in line for line in often)  # the weights: none in an update
    script(*train, '--out_dir=cpu', '--device=cpu', '--dtype=float32')
    logs = []
    for name in ('gpu', 'cpu'):
        lines = (tmp_path / name / 'log.jsonl').read_text().splitlines()
        logs.append([json.loads(lines[-1])])
    same(*logs, 'loss', 'grad_norm', 'val_any', 'val_l2r')

    def results(key):
        """What the file of each device has under this key."""
        files = (tmp_path / name for name in ('gpu.json', 'cpu.json'))
        return [json.loads(path.read_text())[key] for path in files]

    (tmp_path / 'graphs.py').write_text(WITH_GRAPHS)
    for order in ('margin', 'random'):
        sample = ['sample.py', '--ckpt=cpu/ckpt.pt', '--top_k=50', '--prompt=a', f'--order={order}']
        waited = gpu(*sample, '--out=gpu.json')
        assert 'replayed' not in waited
        waited = {line: n for line, n in waited.items() if 'load_state_dict' not in line}
        assert max(waited.values()) <= 2  # before the first step and at the end
        if order == 'random':
            assert gpu(str(tmp_path / 'graphs.py'))['replayed'] == 13
        script(*sample, '--out=cpu.json', '--device=cpu')
        there, here = results('samples')
        for key in ('tokens', 'order'):
            assert [s[key] for s in there] == [s[key] for s in here]
        same(there, here, 'nats')

    estimates = '--estimates=l2r,any,ensemble:3'
    estimate = ['eval_ppl.py', '--ckpt=cpu/ckpt.pt', estimates, '--n_blocks=3']
    gpu(*estimate, '--out=gpu.json')
    script(*estimate, '--out=cpu.json', '--device=cpu')
    same(*results('results'), 'nats_per_token')


def counts_of(running):
    """[Counts] of what each next(running) does, until it ends."""
    found = []
    while True:
        with counted() as counts:
            if next(running, None) is None:
                return found
        found.append(counts)


def test_a_stop_is_looked_for_with_one_read_a_step(simulated, ckpt):
    def body(device):
        writer = Writer(ckpt)
        way, page = writer.asked(None, None, dict(order='l2r', stop='never', length=12))
        (scroll,) = writer.scrolls(writer.read('a', way, page, 2, 1), 1, 2, page)
        first, *others = counts_of(writer.write(scroll, way))
        assert len(others) > 5
        for counts in others:
            assert counts.waits.total() <= 1, counts.waits

    simulated(body)
