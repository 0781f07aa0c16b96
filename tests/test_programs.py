"""The programs beside the pages: what they write and measure, on toys."""

import json
import re
import subprocess

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from configurator import configure
from results.chorales import bach
from results.gpu import gpt2, machine


def run(program, *args):
    program.main(configure(vars(program), list(args)))


# --------------------------------------------------------------------------------------------------
# chorales and digits


def test_frames_of_chorales_are_drawn_whole():
    order = bach.random_frames(torch.rand(50, 128), (4, 32), None)
    frames = (order % 32).view(50, 32, 4)
    assert (frames == frames[..., :1]).all()
    assert len(frames[:, 0, 0].unique()) > 10


def test_a_quarter_of_mixed_chorales_are_chronological():
    order = bach.mixed(torch.rand(2000, 128), (4, 32), None)
    assert (order.sort(1).values == torch.arange(128)).all()
    is_chronological = ((order % 32).diff() >= 0).all(1)
    assert abs(is_chronological.sum() - 500) < 5 * 20


def test_digits_are_split_and_halved(script):
    pytest.importorskip('sklearn')
    script('results/digits/digits.py')
    rows = np.load('labelled.npz')
    shapes = [rows[split].shape for split in ('train', 'val', 'test')]
    assert shapes == [(1397, 65), (200, 65), (200, 65)]
    assert rows['train'].max() == 26
    half = np.load('half.npy')
    assert (half[:, :32] == rows['test'][:16, :32]).all()
    assert (half[:, 32:] == -1).all()


def test_sums_are_right_and_each_stands_once(script):
    script('results/answers/sums.py')
    with open('sums.jsonl') as f:
        rows = [json.loads(line) for line in f]
    asked = set()
    for row in rows:
        a, b = map(int, re.findall(r'\d+', row['prompt']))
        assert int(row['text']) == a + b
        asked.add(frozenset([a, b]))
    assert len(rows) == len(asked) == 5050


# --------------------------------------------------------------------------------------------------
# what stands beside ours on a GPU

TINY = ['--n_layer=2', '--n_head=2', '--n_embd=16', '--block_size=9', '--vocab_size=11']
TINY += ['--n_tokens=11']


def test_a_machine_says_what_it_is(script, monkeypatch):
    found = json.loads(script('results/gpu/machine.py', '--device=cpu').stdout)
    assert found['device type'] == 'cpu'
    assert found['torch'] == torch.__version__
    asked = subprocess.CompletedProcess([], 0, stdout='580.65.06\n')
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: asked)
    assert machine.driver(0) == '580.65.06'
    monkeypatch.undo()
    monkeypatch.setenv('PATH', '')
    assert machine.driver(0) == 'unknown'


def test_gpt2_is_that_of_transformers():
    """The same logits, hence loss, from the same weights."""
    transformers = pytest.importorskip('transformers')
    config = configure(vars(gpt2), TINY)
    ours = gpt2.GPT2(config).double()
    sizes = dict(vocab_size=11, n_positions=9, n_layer=2, n_head=2, n_embd=16)
    dropout = dict(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    network = transformers.GPT2Config(**sizes, **dropout, activation_function='gelu')
    theirs = transformers.GPT2LMHeadModel(network).double()
    with torch.no_grad():
        for name, p in ours.named_parameters():
            of_theirs = name.replace('.c_attn', '.attn.c_attn').replace('.c_proj', '.attn.c_proj')
            of_theirs = of_theirs.replace('mlp.0', 'mlp.c_fc').replace('mlp.2', 'mlp.c_proj')
            weight = theirs.transformer.get_parameter(of_theirs)
            p.copy_(weight.T if '.c_' in of_theirs else weight)
    idx = torch.randint(11, (3, 10), generator=torch.Generator().manual_seed(0))
    want = theirs(idx[:, :-1]).logits.log_softmax(-1).gather(2, idx[:, 1:, None])
    torch.testing.assert_close(ours(idx[:, :-1], idx[:, 1:]), -want.mean())


def test_flops_of_gpt2_count_the_matrix_products():
    config = configure(vars(gpt2), TINY)
    model = gpt2.GPT2(config)
    idx = torch.zeros(5, 9, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(idx, idx).backward()
    attention = 6 * 5 * 9 * 9 * 16 * 2  # 6 N C a token and layer
    counts = counter.get_flop_counts()['Global']
    assert model.flops(5, config) == counts[torch.ops.aten.mm] + attention


def test_an_update_of_gpt2_is_timed(script):
    how = ['--batch_size=2', '--n_updates=1', '--repeats=1', '--compile=False', '--device=cpu']
    assert '\nGPT-2 ' in script('results/gpu/gpt2.py', *TINY, *how).stdout
