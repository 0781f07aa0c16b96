"""Runs of the trainer that take a second, in the folder of the fixture `data`, and how two
compare."""

import json
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
    """Two trees have the same names and values, and close tensors and floats."""
    leaves, names = tree_flatten(want)
    found, found_names = tree_flatten(got)
    assert found_names == names
    for a, b in zip(found, leaves, strict=True):
        if isinstance(b, torch.Tensor | float):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        else:
            assert a == b


def left_by(out_dir, entries_of_one):
    """Return what a run has left, its log and its checkpoints, but for options, environment, time,
    and what one run alone logs at these iterations."""
    found = [entry for entry in log(out_dir) if entry['iter'] not in entries_of_one]
    assert len(found) > 1
    for name in ('ckpt.pt', 'ckpt_best.pt'):
        if os.path.exists(f'{out_dir}/{name}'):
            found.append(load_checkpoint(f'{out_dir}/{name}'))
    for entry in found:
        for name in ('config', *CLOCK):
            entry.pop(name, None)
    return found


def assert_same_runs(a, b, entries_of_one=(), tolerance=0):
    """Two runs have left the same, bit for bit or up to a tolerance."""
    assert_close(left_by(a, entries_of_one), left_by(b, entries_of_one), tolerance)
