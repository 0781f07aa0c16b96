"""The plan: its numbers by hand, and that it wants nothing."""

import json
import os

import numpy as np
import pytest
from conftest import ROOT, make_model, one_line
from test_memory import meta_model

import train
from anyorder.checkpoint import save_checkpoint
from anyorder.datasets import open_split
from anyorder.extras.speed.plan import lines_of, parse_machine, same_update
from anyorder.machine.devices import GPUS
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.prepared import prepare
from anyorder.training.clock import Clock
from configurator import Config, configure

# --------------------------------------------------------------------------------------------------
# its parts


def test_machines():
    assert parse_machine('8xH100') == (8, 'H100', GPUS['H100'])
    assert parse_machine('h200') == (1, 'H200', GPUS['H200'])
    n, _, machine = parse_machine('2x0.2:24')
    assert (n, machine.flops, machine.memory) == (2, 0.2e12, 24)


@pytest.mark.parametrize('text', ['H1000', '0xH100', '8x', '1:', '0:24', 'x', '3'])
def test_what_is_no_machine_is_one_line(text):
    with pytest.raises(
        ValueError, match=r'plan must be one of A100, .* bfloat16 TFLOP/s and GiB .* as in 8xH100'
    ):
        parse_machine(text)


@pytest.mark.parametrize(
    'n_processes, largest, said',
    [
        (8, 100, '--batch_size=64 --gradient_accumulation_steps=8 --eval_iters=5'),
        (8, 63, '--batch_size=32 --gradient_accumulation_steps=16 --eval_iters=10'),
        (1, 7, '--batch_size=4 --gradient_accumulation_steps=128 --eval_iters=80'),
        (8, 0, ''),
    ],
)
def test_the_same_update(n_processes, largest, said):
    config = Config(batch_size=16, gradient_accumulation_steps=32, eval_iters=20)
    assert same_update(config, n_processes, largest) == said


# --------------------------------------------------------------------------------------------------
# the command


def cells_of(text):
    """{name: the words behind it} of the lines of a plan."""
    return {line[:34].strip(): line[34:].split() for line in text.splitlines()}


@pytest.fixture
def plan(script, tmp_path):
    """plan(*options) runs the command in a folder with the configs, and returns what it says."""
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')

    def run(*options):
        said = script('train.py', *options).stdout
        assert os.listdir(tmp_path) == ['config']  # it wants nothing and writes nothing
        return said

    return run


def test_a_plan_counts_tokens_and_parameters(plan):
    said = plan('config/ao_gpt_small.py', '--plan=8xH100', '--gradient_accumulation_steps=64')
    cells = cells_of(said)
    assert cells['parameters'] == ['170,605,952']
    assert cells['tokens an update'] == ['1,048,576']
    assert 'openwebtext is not prepared here' in said
    assert 'not looked up' not in said


def test_hours_are_flops_by_the_rate_of_the_machine(plan):
    said = plan('config/ao_gpt_small.py', '--plan=8xH100', '--gradient_accumulation_steps=64')
    (of_token,) = cells_of(said)['GFLOP a token']
    flops = 1e9 * float(of_token) * 1024 * 16 * 64 * 250000
    assert 'at 7,912 TFLOP/s' in said
    cells = cells_of(said)
    hours = [float(cells[f'at {mfu}% MFU'][0].replace(',', '')) for mfu in (30, 40, 50)]
    expected = [flops / 8 / 989e12 / mfu / 3600 for mfu in (0.3, 0.4, 0.5)]
    assert hours == pytest.approx(expected, rel=1e-3)


def test_the_shape_of_a_model_on_the_hub_is_not_looked_up(plan):
    assert 'the shape of gpt2 is not' in plan('config/adapt_gpt2.py', '--plan=H100')


def test_a_run_that_cannot_be_is_one_line(script):
    failed = script('train.py', '--plan=3xH100', code=1)
    assert failed.stderr.startswith('error: gradient_accumulation_steps')


def test_a_plan_has_the_shape_and_the_vocabulary_of_the_checkpoint(script, tmp_path):
    model = make_model(n_layer=1, vocab_size=320, n_tokens=257)
    save_checkpoint(tmp_path / 'a.pt', model, tokenizer='bytes')
    how = ('--dataset=mine', '--init_from=auto:a.pt', '--batch_size=3')
    cells = cells_of(script('train.py', *how, '--plan=A100').stdout)
    assert cells['parameters'] == [f'{model.n_parameters():,}']
    assert cells['vocabulary'] == ['257', 'bytes,', 'as', 'a.pt', 'was', 'trained']
    assert cells['tokens an update'] == [str(3 * model.config.block_size)]


# --------------------------------------------------------------------------------------------------
# documents that are rows

RUN = ('--n_layer=1', '--n_head=1', '--n_embd=16', '--batch_size=8')
OF_ROWS = (*RUN, '--data_dir=.', '--dataset=rows', '--gradient_accumulation_steps=2')
WIDTH = 12  # of the longest row


@pytest.fixture
def rows_plan(tmp_path, monkeypatch):
    """rows_plan(block_size): the lines of the plan of a run on short documents that are rows."""
    monkeypatch.chdir(tmp_path)
    rows = [{'prompt': f'{i}+{i}=', 'text': str(2 * i)} for i in range(150)]
    (tmp_path / 'rows.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    prepare('text', '.', name='rows', source='rows.jsonl', tokenizer='bytes')

    def run(block_size):
        options = [*OF_ROWS, '--plan=2xH100', f'--block_size={block_size}']
        return [*lines_of(configure(vars(train), options))]

    return run


@pytest.mark.parametrize(
    'name',
    ['tokens an update', 'tokens in all', 'GFLOP a token', 'TFLOP in all', '  at 30%', '  activa'],
)
def test_rows_cost_as_with_a_block_of_their_length(rows_plan, name):
    found = []
    for block_size in (512, WIDTH):
        (line,) = (line for line in rows_plan(block_size) if line.startswith(name))
        found.append(line.split())
    wide, narrow = found
    assert wide[: len(narrow)] == narrow


def test_a_plan_has_the_tokens_of_the_clock(rows_plan):
    lines = rows_plan(512)
    split, _ = open_split('.', 'rows', 'train')
    assert split.width(512) == WIDTH
    clock = Clock(meta_model(), configure(vars(train), OF_ROWS), 1.0, WIDTH)
    assert clock.tokens_per_iter == 8 * 2 * WIDTH
    (tokens,) = (line.split()[3] for line in lines if line.startswith('tokens an update'))
    assert int(tokens) == clock.tokens_per_iter


@pytest.mark.parametrize(
    'shape, option, said',
    [
        ('2x2', '--block_size=8', 'block_size must be 4'),
        ('', '--documents=apart', 'mine is a stream'),
    ],
)
def test_a_set_that_a_run_refuses_has_no_plan(tmp_path, monkeypatch, shape, option, said):
    monkeypatch.chdir(tmp_path)
    np.save('mine.npy', np.arange(80).reshape(20, 4) if shape else np.arange(3000) % 7)
    prepare_tokens('.', 'mine', 'mine.npy', shape=shape)
    options = [*RUN, '--data_dir=.', '--dataset=mine', '--plan=H100', option]
    with one_line(said):
        [*lines_of(configure(vars(train), options))]


def test_meta_alone_does_not_say_how_long_documents_are(rows_plan):
    os.remove('rows/train.bin')
    assert f'tokens an update{8 * 2 * 512:>36,}' in rows_plan(512)
