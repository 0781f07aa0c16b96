"""The plan: its numbers by hand, and that it wants nothing."""

import json
import os

import pytest
from conftest import ROOT, make_model
from test_memory import NETWORKS, meta_model

import train
from anyorder.checkpoint import save_checkpoint
from anyorder.datasets import open_split
from anyorder.machine.devices import GPUS
from anyorder.tokens.prepared import prepare
from anyorder.training.clock import Clock
from anyorder.training.plan import lines_of, parameters_by_part, parse_machine
from anyorder.training.start import same_update
from configurator import Config, configure


def test_every_parameter_has_one_part():
    for options in NETWORKS.values():
        model = meta_model(**options)
        parts = parameters_by_part(model)
        assert sum(parts.values()) == model.n_parameters()
    parts = parameters_by_part(meta_model())
    assert (
        parts['attention'] == 2 * (4 * 64 * 64 + 4 * 64 + 2 * 32) and parts['head'] == 64 * 64 + 64
    )
    assert parts['AdaLN'] == (2 * 6 + 2) * 64 * 9 and parts['norms'] == (2 * 2 + 1) * 64
    assert parts['embeddings'] == 64 * 64 + 257 * 64 + 256 * 8 + 64


def test_machines():
    assert parse_machine('8xH100') == (8, 'H100', GPUS['H100']) and parse_machine('h200') == (
        1,
        'H200',
        GPUS['H200'],
    )
    n, _, machine = parse_machine('2x0.2:24')
    assert n == 2 and machine.flops == 0.2e12 and machine.memory == 24
    for wrong in ('H1000', '0xH100', '8x', '1:', '0:24', 'x', '3'):
        with pytest.raises(ValueError, match=r'plan must be one of A100, .* as in 8xH100'):
            parse_machine(wrong)


def test_the_same_update():
    config = Config(batch_size=16, gradient_accumulation_steps=32, eval_iters=20)
    assert (
        same_update(config, 8, 100)
        == '--batch_size=64 --gradient_accumulation_steps=8 --eval_iters=5'
    )
    assert (
        same_update(config, 8, 63)
        == '--batch_size=32 --gradient_accumulation_steps=16 --eval_iters=10'
    )
    assert (
        same_update(config, 1, 7)
        == '--batch_size=4 --gradient_accumulation_steps=128 --eval_iters=80'
    )
    assert same_update(config, 8, 0) == ''


def test_a_plan_wants_nothing_and_writes_nothing(script, tmp_path):
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    said = script(
        'train.py', 'config/ao_gpt_small.py', '--plan=8xH100', '--gradient_accumulation_steps=64'
    ).stdout
    rows = {line[:34].strip(): line[34:].split() for line in said.splitlines()}
    assert rows['parameters'] == ['170,605,952'] and rows['tokens an update'] == ['1,048,576']
    assert (
        'openwebtext is not prepared here' in said
        and '\n8 x A100 ' in said
        and 'not looked up' not in said
    )
    assert (
        'the shape of gpt2 is not'
        in script('train.py', 'config/adapt_gpt2.py', '--plan=H100').stdout
    )
    flops = 1e9 * float(rows['GFLOP a token'][0]) * 1024 * 16 * 64 * 250000
    peak, *hours = (
        float(word.replace(',', '')) for word in said.split('\n8 x H100')[1].split()[:4]
    )
    expected = [flops / 8 / 989e12 / mfu / 3600 for mfu in (0.3, 0.4, 0.5)]
    assert peak == 8 * 989 and hours == pytest.approx(expected, rel=1e-3)
    assert os.listdir(tmp_path) == ['config']
    assert script('train.py', '--plan=3xH100', code=1).stderr.startswith(
        'error: gradient_accumulation_steps'
    )


def test_a_plan_has_the_shape_and_the_vocabulary_of_the_checkpoint(script, tmp_path):
    model = make_model(n_layer=1, vocab_size=320, n_tokens=257)
    save_checkpoint(tmp_path / 'a.pt', model, tokenizer='bytes')
    said = script(
        'train.py', '--dataset=mine', '--init_from=auto:a.pt', '--plan=A100', '--batch_size=3'
    ).stdout
    rows = {line[:34].strip(): line[34:].split() for line in said.splitlines()}
    assert rows['parameters'] == [f'{model.n_parameters():,}']
    assert rows['vocabulary'] == ['257', 'bytes,', 'as', 'a.pt', 'was', 'trained']
    assert rows['tokens an update'] == [str(3 * model.config.block_size)]


def test_a_plan_has_the_width_of_the_run(tmp_path, monkeypatch):
    """Documents that are rows are shorter than block_size: the run computes as with a block_size of their length."""
    monkeypatch.chdir(tmp_path)
    with open('rows.jsonl', 'w') as f:
        f.writelines(
            json.dumps({'prompt': f'{i}+{i}=', 'text': str(2 * i)}) + '\n' for i in range(150)
        )
    prepare('text', '.', name='rows', source='rows.jsonl', tokenizer='bytes')
    options = [
        '--data_dir=.',
        '--dataset=rows',
        '--n_layer=1',
        '--n_head=1',
        '--n_embd=16',
        '--batch_size=8',
        '--gradient_accumulation_steps=2',
        '--plan=2xH100',
    ]
    plans = [
        [*lines_of(configure(vars(train), [*options, f'--block_size={N}']))] for N in (512, 12)
    ]
    for name in (
        'tokens an update',
        'tokens in all',
        'GFLOP a token',
        'TFLOP in all',
        '2 x H100',
        '  activations',
    ):
        wide, narrow = (
            next(line for line in plan if line.startswith(name)).split() for plan in plans
        )
        assert wide[: len(narrow)] == narrow
    width = open_split('.', 'rows', 'train')[0].width(512)
    tokens = next(line for line in plans[0] if line.startswith('tokens an update')).split()[3]
    clock = Clock(meta_model(), configure(vars(train), options), 1.0, width)
    assert width == 12 and int(tokens) == clock.tokens_per_iter == 192
    os.remove('rows/train.bin')  # meta.json alone does not say how long its documents are
    assert f'tokens an update{8 * 2 * 512:>36,}' in [
        *lines_of(configure(vars(train), [*options, '--block_size=512']))
    ]
