"""The blocks of the README and of docs/extend.md run, as toys. .ci/links.py checks the rest."""

import os
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, gpt2, make_model, program_of

from anyorder.checkpoint import save_checkpoint
from model import EMA

README = Path(ROOT, 'README.md').read_text(encoding='utf-8')
EXTEND = Path(ROOT, 'docs/extend.md').read_text(encoding='utf-8')
# options with which commands take seconds
TOY = {
    '^sample|^train|eval_ppl|capitals|best.py': '--device=cpu',
    '^train|capitals': '--max_iters=2 --warmup_iters=0 --eval_iters=1 --compile=False',
    '(^train|capitals).*(quickstart|ao_gpt)': '--n_layer=1 --n_head=2 --n_embd=16',
    '^train.*(ao_gpt|adapt)': '--block_size=64 --batch_size=2',
    'eval_ppl|best.py|attention.py': '--n_blocks=1',
    'data/prepare|attention.py': '--data_dir=data',
}


@pytest.fixture
def run_parts(script):
    """run_parts(page, title, ...) runs the blocks of these parts of a page, one after the other.

    What fetches, installs or starts processes is left out, masked models of others, and lm-eval,
    which looks for its tasks for ten seconds."""

    def run(page, *titles):
        for title in titles:
            part = page.partition(f'\n## {title}\n')[2].partition('\n## ')[0]
            for language, block in re.findall(r'(?s)```(sh|python)\n(.*?)```', part):
                file = re.match(r'# (\w+\.py)\n', block)
                if language == 'sh':
                    run_lines(block.replace('\\\n', ''))
                elif file:
                    Path(file[1]).write_text(block)
                else:
                    exec(block, {})

    def run_lines(block):
        for name, value in reversed(re.findall('(?m)^([A-Z]+)=(.*)\n', block)):
            block = block.replace(f'${name}', value)
        for line in re.findall('(?m)^python (?!.*(?:lm_eval|masked:))(.*)', block):
            words, _, file = line.partition(' > ')
            for pattern, options in TOY.items():
                if re.search(pattern, words) and '--plan' not in words:
                    words += f' {options}'
            name, args = program_of(shlex.split(words))
            Path(file or 'said').write_text(script(name, *args).stdout)

    for folder in ('config', 'docs'):
        os.symlink(f'{ROOT}/{folder}', folder)
    return run


@pytest.mark.slow
def test_what_needs_no_download_runs(run_parts):
    Path('input.txt').write_text(README[:5000])
    install, quickstart = re.findall('(?m)^(?:pip|python) .*', README)[:2]
    assert install.startswith('pip')
    run_parts(f'\n## First\n```sh\n{quickstart}\n```', 'First')
    run_parts(README, 'Quick start', 'Play', 'Your own text', 'From Python')
    run_parts(EXTEND, *re.findall('(?m)^## (.*)', EXTEND))
    for made in ('out/shakespeare/ckpt.pt', 'out/ends/ckpt.pt', 'out/capitals/ckpt.pt'):
        assert os.path.getsize(made)


@pytest.mark.slow
def test_what_needs_a_download_runs_on_stand_ins(run_parts, monkeypatch):
    """Rows of data sets, published weights and a GPT-2."""
    gpt2()
    datasets = pytest.importorskip('datasets')
    hf = pytest.importorskip('transformers')
    rows = [README[start : start + 1000] for start in range(0, 20000, 1000)]
    found = datasets.Dataset.from_dict({'text': rows, 'sentence': rows})
    monkeypatch.setattr('datasets.load_dataset', lambda *_, **__: found)
    model = make_model(vocab_size=50304, n_tokens=50257, block_size=256).float()
    save_checkpoint('published.pt', model, EMA(model, 0.9))
    monkeypatch.setattr('huggingface_hub.hf_hub_download', lambda repo, file: 'published.pt')
    config = hf.GPT2Config(n_positions=64, n_embd=16, n_head=2, n_layer=1)
    hf.GPT2LMHeadModel(config).save_pretrained('gpt2')
    run_parts(README, 'Reproduce the paper', 'Weights of others')
