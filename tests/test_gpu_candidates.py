"""results/gpu/candidates.py: each change leaves what an update computes as it is, in float64."""

import json
import os
import shutil
from contextlib import nullcontext
from functools import partial
from unittest import mock

import pytest
import torch
from conftest import ROOT, make_model
from test_gpu_run import loaded

from anyorder import fast
from anyorder.extras.speed.models import start_training
from anyorder.fast import lean
from anyorder.likelihood.nll import blank_nll
from anyorder.machine.devices import compiler_of
from anyorder.orders import sample_order
from anyorder.tokens.blocks import Batch
from anyorder.training.update import update
from configurator import configure

candidates = loaded('candidates')
PROGRAM = os.path.join(ROOT, 'results', 'gpu', 'candidates.py')
CPU = torch.device('cpu')
TINY = ['--n_layer=2', '--n_head=2', '--n_embd=16', '--block_size=9', '--vocab_size=16']
TINY += ['--n_tokens=11', '--batch_size=4', '--n_updates=1', '--turns=2', '--compile=False']
OF_GRADIENTS = [name for name in candidates.CHANGES if name != 'graph']


def loss_and_gradients(model, batch):
    nll = blank_nll(model, batch)
    nll.sum().backward()
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return nll.detach().sum(), grads


@pytest.mark.parametrize('name', OF_GRADIENTS)
@pytest.mark.parametrize('T', [9, 6])
def test_a_change_leaves_loss_and_gradients(name, T):
    """Whole orders, and orders that are cut."""
    if name == 'linear_cross_entropy' and not hasattr(torch.nn.functional, name):
        pytest.skip('torch 2.13 has it')
    model = lean(make_model(vocab_size=16, n_tokens=11, gate_init=1.0).requires_grad_(True).train())
    generator = torch.Generator().manual_seed(0)
    idx = torch.randint(11, (5, 9), generator=generator)
    order = sample_order(5, 9, generator=generator)[:, :T]
    n_given = torch.zeros(5, dtype=torch.long)
    batch = Batch(idx, order, n_given=n_given, n_blanks=n_given + T)
    loss, grads = loss_and_gradients(model, batch)
    with candidates.CHANGES[name]():
        other, others = loss_and_gradients(model, batch)
    torch.testing.assert_close(other, loss, rtol=0, atol=1e-9)
    torch.testing.assert_close(others, grads, rtol=0, atol=1e-9)
    again, _ = loss_and_gradients(model, batch)
    assert torch.equal(again, loss)  # nothing of the change is left


@pytest.mark.parametrize('optimizer', ['adamw', 'muon:0.04'])
def test_the_whole_update_is_the_update(optimizer):
    config = configure(vars(candidates), ['graph', *TINY, f'--optimizer={optimizer}'])
    found = []
    for change in (False, True):
        state, split, run = in_float64(config)
        make_update = partial(update, state, split, candidates.LEARNING_RATE, run)
        context = nullcontext()
        if change:
            make_update = candidates.WholeUpdate(state, split, run)
            context = candidates.CHANGES['graph']()
        began = weights(state)
        with context:
            for _ in range(4):
                make_update()
        found.append((weights(state), state.totals, state.n_seen))
    (mine, totals, n_seen), (others, other_totals, other_seen) = found
    assert (mine - began).abs().max() > 1e-3
    torch.testing.assert_close(others, mine, rtol=0, atol=1e-7)  # the rate is float32
    torch.testing.assert_close(other_totals, totals, rtol=0, atol=1e-5)
    assert other_seen == n_seen


def in_float64(config):
    with mock.patch('anyorder.extras.speed.models.random_model', double_model):
        return start_training(config, CPU, 'float32')


def double_model(*args):
    return random_model(*args).double()


random_model = start_training.__globals__['random_model']


def weights(state):
    models = (state.model, state.ema.model)
    return torch.cat([p.detach().flatten() for model in models for p in model.parameters()])


@pytest.mark.parametrize('name', candidates.CHANGES)
def test_a_pair_is_timed(script, tmp_path, name):
    said = script(PROGRAM, name, *TINY, '--device=cpu', '--out=pair.json').stdout
    if 'left out' in said:
        return
    (row,) = json.loads((tmp_path / 'pair.json').read_text())['rows']
    assert row['name'] == name
    assert len(row['ratios']) == 2
    assert row['off_after'] < 0.05
    for arm in ('before', 'after'):
        assert row[arm]['tokens_per_sec'] == pytest.approx(4 * 9 / row[arm]['seconds'])


class NoRows(fast.Rows):
    @staticmethod
    def backward(ctx, grad):
        return grad.new_zeros(ctx.n_rows, grad.size(-1)), None


@pytest.mark.slow
def test_a_compiled_pair_shares_no_graph(monkeypatch):
    """A change that is wrong shows in the update with it, and there alone."""
    if not shutil.which(compiler_of(CPU)):
        pytest.skip('no compiler')
    change = partial(mock.patch.object, fast, 'Rows', NoRows)
    monkeypatch.setitem(candidates.CHANGES, 'wrong', change)
    config = configure(vars(candidates), ['residual', *TINY, '--compile=True'])
    before = candidates.Arm(config, CPU, 'float32')
    after = candidates.Arm(config, CPU, 'float32', 'wrong')
    for _ in range(2):
        assert before.off() < 1e-4
        assert after.off() > 1e-3


def test_a_device_that_is_not_there_is_one_line(script):
    said = script(PROGRAM, 'residual', '--device=nowhere', code=1).stderr
    assert 'nowhere' in said
