"""Runs of the trainer that take a second, in the folder of the fixture `data`, and how two
compare."""

import json
import math
import os

import torch
from conftest import ROOT
from torch.utils._pytree import tree_flatten

import train
from anyorder.checkpoint import load_checkpoint
from anyorder.training.update import update
from configurator import configure

TOY = [
    os.path.join(ROOT, 'config', 'quickstart.py'),
    '--n_layer=2',
    '--n_head=2',
    '--n_embd=16',
    '--block_size=16',
    '--batch_size=8',
    '--warmup_iters=2',
    '--ema_decay=0.99',
    '--learning_rate=1e-2',
    '--min_lr=1e-3',
    '--out_dir=out',
    '--init_from=scratch',
    '--eval_interval=4',
    '--eval_iters=2',
    '--log_interval=1',
    '--device=cpu',
    '--compile=False',
]
TWO = ['--gradient_accumulation_steps=2', '--dtype=float32']  # what two processes can share
CLOCK = ('tokens_per_sec', 'mfu', 'seconds_left', 'environment')
EXACT = ('iter', 'tokens', 'flops', 'loss', 'lr', 'grad_norm', 'val_any', 'val_l2r', 'val_own')


def run(*args):
    train.main(configure(vars(train), [*TOY, *args]))


def resume(*args):
    """Go on by what the checkpoint knows alone."""
    train.main(configure(vars(train), ['--init_from=resume', *args]))


def interrupted(iteration, act):
    """Return an update that calls `act` before the update behind so many."""

    def call(state, *args):
        if state.iter_num == iteration:
            act()
        update(state, *args)

    return call


def log(out_dir='out'):
    with open(f'{out_dir}/log.jsonl') as f:
        return [json.loads(line) for line in f]


def assert_close(got, want, tolerance=0):
    """Two trees have the same names and values, and tensors that are close."""
    leaves, names = tree_flatten(want)
    found, found_names = tree_flatten(got)
    assert found_names == names
    for a, b in zip(found, leaves, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
        else:
            assert a == b


def assert_same_runs(a, b, entries_of_one=()):
    """The checkpoints are equal bit for bit but for options and environment, the logs but for
    time."""
    kept = os.path.exists(f'{a}/ckpt_best.pt')
    assert os.path.exists(f'{b}/ckpt_best.pt') == kept
    for name in ('ckpt.pt', 'ckpt_best.pt')[: 1 + kept]:
        assert_same_checkpoints(f'{a}/{name}', f'{b}/{name}')
    logs = []
    for out_dir in (a, b):
        entries = [entry for entry in log(out_dir) if entry['iter'] not in entries_of_one]
        for entry in entries:
            for name in CLOCK:
                entry.pop(name, None)
        logs.append(entries)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 1


def assert_same_checkpoints(a, b):
    x, y = (load_checkpoint(path) for path in (a, b))
    assert x.keys() == y.keys()
    for key in x.keys() - {'config', 'environment'}:
        assert_close(x[key], y[key])


def assert_alike(a, b):
    """The logs are equal up to the order of sums."""
    for here, there in zip(log(a), log(b), strict=True):
        for key in EXACT:
            assert (key in here) == (key in there), key
            assert math.isclose(here.get(key, 0), there.get(key, 0), rel_tol=1e-5), key
