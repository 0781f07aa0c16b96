"""results/gpu/attention.py: each way is the same attention."""

import os
import sys
from functools import partial

import pytest
import torch
from conftest import ROOT
from test_gpu_run import loaded

from configurator import configure

attention = loaded('attention')
sys.modules[attention.__name__] = attention  # FlexAttention looks for it
TINY = ['--n_layer=2', '--n_head=2', '--n_embd=16', '--block_size=24', '--batch_size=3']
slow = partial(pytest.param, marks=pytest.mark.slow)
ON_A_CPU = ['sdpa', 'sdpa of a mask of bools', 'flex by the mask', 'flex by slots', 'two products']


@pytest.mark.parametrize('name', ON_A_CPU)
@pytest.mark.parametrize('n, n_keys', [(1, 9), (5, 17), slow(1, 1), slow(2, 24)])
def test_each_way_is_the_attention_of_the_slots(name, n, n_keys):
    config = configure(vars(attention), TINY)
    for asked in attention.asked_layers(n, n_keys, config, torch.device('cpu'), torch.float32):
        y = attention.WAYS[name](asked)
        difference = y.double() - attention.exact(asked)
        assert difference.abs().max() < 1e-5


def test_it_says_what_a_device_has(script):
    program = os.path.join(ROOT, 'results', 'gpu', 'attention.py')
    sizes = ['--n_queries=1,2', '--n_keys=9', '--repeats=1', '--device=cpu', '--dtype=float32']
    lines = script(program, *TINY, *sizes).stdout.splitlines()
    rows = [line for line in lines if line.lstrip()[0].isdigit()]
    assert len(rows) == 2 * len(attention.WAYS)
    for name in ON_A_CPU:
        (row, _) = [line for line in rows if line.endswith(f'  {name}')]
        assert row.split()[3].endswith('%')
