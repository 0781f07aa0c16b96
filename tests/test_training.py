"""An update by hand, in float64: batch, loss, clipping, optimizers, average; and what is measured in between."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make_model
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from anyorder.batch import Batch
from anyorder.fast import lean
from anyorder.likelihood.nll import blank_nll, block_nll, draw_known
from anyorder.machine.processes import processes, start_processes, summed
from anyorder.orders import draw_orders, given_first, sample_order
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import random_blocks, uniform_below
from anyorder.tokens.sets import PADDING, Split
from anyorder.training.clock import Clock
from anyorder.training.muon import Muon
from anyorder.training.start import make_run_model
from anyorder.training.update import (
    TrainState,
    draw_batch,
    get_lr,
    lr_of,
    make_optimizers,
    update,
    validate,
)
from configurator import Config
from model import EMA

TOKENS = np.random.default_rng(0).integers(11, size=200).astype('<u2')
OPTIONS = Config(
    seed=5,
    batch_size=3,
    gradient_accumulation_steps=2,
    block_size=9,
    l2r_ratio=0.3,
    grad_clip=0.5,
    dtype='float32',
    order='random',
)


def start(model, optimizer='adamw', weight_decay=0.1):
    optimizers = make_optimizers(model, optimizer, 1e-2, 0.03, weight_decay, (0.9, 0.95))
    return TrainState(model, optimizers, EMA(model, 0.9))


def learner(**config):
    return make_model(**config).requires_grad_(True)


def test_schedule_by_hand():
    lrs = [get_lr(it, 1.0, 0.1, 4, 14) for it in range(20)]
    assert lrs[:4] == [0.2, 0.4, 0.6, 0.8] and lrs[4] == 1.0
    assert math.isclose(lrs[9], 0.55) and math.isclose(lrs[14], 0.1) and math.isclose(lrs[19], 0.1)
    assert lrs[4:] == sorted(lrs[4:], reverse=True)
    options = {
        'learning_rate': 1.0,
        'min_lr': 0.1,
        'warmup_iters': 4,
        'lr_decay_iters': 14,
        'max_iters': 99,
    }
    assert [lr_of(it, options) for it in range(20)] == lrs
    assert lr_of(9, options | {'lr_decay_iters': 0, 'max_iters': 14}) == lrs[9]


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
def test_every_weight_has_one_optimizer_and_only_matrices_decay(optimizer):
    """Without gradients a matrix shrinks by 1 - lr * decay, and nothing else moves."""
    state = start(learner(), optimizer)
    names = {p: n for n, p in state.model.named_parameters()}
    groups = [
        (type(o), g, names[p], p)
        for o in state.optimizers
        for g in o.param_groups
        for p in g['params']
    ]
    assert sorted(name for _, _, name, _ in groups) == sorted(names.values())
    before = {name: p.detach().clone() for _, _, name, p in groups}
    for p in names:
        p.grad = torch.zeros_like(p)
    for o in state.optimizers:
        o.step()
    for kind, group, name, p in groups:
        hidden = p.dim() == 2 and ('attn.c_' in name or 'mlp.c_' in name)
        assert (kind is Muon) == (hidden and optimizer == 'muon'), name
        assert group['lr_ratio'] == pytest.approx(3 if kind is Muon else 1)
        lr = 0.03 if kind is Muon else 1e-2
        expected = before[name] * (1 - lr * 0.1 if p.dim() == 2 else 1)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=0)


def test_updates_by_hand():
    """AdamW with the betas (0.9, 0.95), a gradient clipped to norm 0.5, two micro-batches, the average after each."""
    state = start(learner())
    weights = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    first, second = ({name: torch.zeros_like(p) for name, p in weights.items()} for _ in range(2))
    average, totals = (
        {name: p.clone() for name, p in weights.items()},
        torch.zeros(3, dtype=torch.float64),
    )
    for it, lr in enumerate((1e-2, 2e-3, 5e-3)):
        loss = 0.0
        leaves = {name: p.clone().requires_grad_() for name, p in weights.items()}
        for micro in range(2):
            torch.manual_seed(derive_seed(5, it, micro))
            starts = uniform_below(len(TOKENS) - 8, 3)
            idx = torch.from_numpy(TOKENS.astype(np.int64))[starts[:, None] + np.arange(9)]
            order = sample_order(3, 9, l2r_ratio=0.3)
            loss = loss + functional_call(state.model, leaves, (idx, order)).mean() / 2
        gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))
        assert norm > 0.5
        totals += torch.tensor([loss.item(), norm, 1.0])
        decay = min(0.9, (2 + it) / (11 + it))
        for name, p in weights.items():
            g = gradient[name] * 0.5 / (norm + 1e-6)
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.95 * second[name] + 0.05 * g.square()
            step = (
                first[name]
                / (1 - 0.9 ** (it + 1))
                / ((second[name] / (1 - 0.95 ** (it + 1))).sqrt() + 1e-8)
            )
            weights[name] = p * (1 - lr * 0.1 * (p.dim() == 2)) - lr * step
            average[name] = decay * average[name] + (1 - decay) * weights[name]
        update(state, Split(TOKENS), lr, OPTIONS)
    for model, expected in (state.model, weights), (state.ema.model, average):
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=1e-9, msg=name)
    torch.testing.assert_close(state.totals, totals, rtol=1e-6, atol=0)
    assert (state.iter_num, state.n_seen, state.logged) == (3, 3 * 2 * 3 * 9, 0)


def test_muon_takes_queries_keys_and_values_for_three_matrices():
    """The steps of PyTorch's own Muon, with a parameter for each matrix, bit for bit."""
    model = learner().float()
    weights = [
        p
        for name, p in model.named_parameters()
        if '.attn.' in name or '.mlp.' in name
        if p.dim() == 2
    ]
    alone = [torch.nn.Parameter(part.clone()) for p in weights for part in parts_of(p.detach())]
    options = {'lr': 0.03, 'weight_decay': 0.1}
    ours, theirs = Muon(weights, **options), torch.optim.Muon(alone, **options)
    g = torch.Generator().manual_seed(0)
    for _ in range(3):
        for p in weights:
            p.grad = torch.randn(p.shape, generator=g)
        grads = [part.clone() for p in weights for part in parts_of(p.grad)]
        for part, grad in zip(alone, grads, strict=True):
            part.grad = grad
        ours.step()
        theirs.step()
        assert all(
            map(torch.equal, [part for p in weights for part in parts_of(p.detach())], alone)
        )
    assert len(alone) == len(weights) + 2 * model.config.n_layer


def parts_of(x):
    """Q, K and V of what belongs to c_attn (48, 16), else x itself."""
    return x.split(16) if x.shape == (48, 16) else [x]


def test_updates_and_validation_are_in_the_dtype_of_the_run():
    losses, blocks = {}, torch.from_numpy(TOKENS[:180].astype(np.int64)).view(20, 9)
    for dtype in ('float32', 'bfloat16'):
        state, config = start(learner().float()), Config(OPTIONS | {'dtype': dtype})
        update(state, Split(TOKENS), 1e-9, config)
        val = validate(state.model, blocks, torch.zeros_like(blocks, dtype=torch.bool), config)
        losses[dtype] = torch.tensor([float(state.totals[0]), float(val['any'].mean()) / 9])
    assert (1e-5 < (losses['bfloat16'] - losses['float32']).abs()).all()
    torch.testing.assert_close(losses['bfloat16'], losses['float32'], rtol=0.05, atol=0)


def test_a_process_runs_its_own_micro_batches_and_blocks(monkeypatch):
    """The second of two processes runs the numbers 1 and 3 of four micro-batches: its loss is their mean."""
    config, alone = Config(OPTIONS | {'gradient_accumulation_steps': 4, 'grad_clip': 0.0}), []
    model = make_model()
    for micro in (1, 3):
        torch.manual_seed(derive_seed(5, 0, micro))
        batch = draw_batch(Split(TOKENS), config, model)
        alone.append(float(model(batch.idx, batch.order).mean()))
    blocks, state = torch.from_numpy(TOKENS[:45].astype(np.int64)).view(5, 9), start(learner())
    given = torch.zeros_like(blocks, dtype=torch.bool)
    whole = validate(state.model, blocks, given, config)
    monkeypatch.setattr('anyorder.training.update.summed', lambda x: 2 * x)  # both have the same
    monkeypatch.setattr('anyorder.training.update.processes', lambda: (1, 2))
    for name, nats in validate(state.model, blocks, given, config).items():
        torch.testing.assert_close(nats[1::2], 2 * whole[name][1::2], rtol=1e-12, atol=0)
        assert not nats[::2].any()
    update(state, Split(TOKENS), 1e-2, config)
    assert state.averages('stop', with_weights=False)[0] == pytest.approx(sum(alone) / 2)
    assert state.n_seen == 4 * 3 * 9


UNEQUAL = {
    'causal': {},
    'bidirectional': {'attention': 'bidirectional'},
    'mixed': {'attention': 'mixed'},
    'weighted': {},  # a causal network with a loss of its own
}
WEIGHTS = torch.arange(11.0)  # of tokens


def weighted_nll(model, batch):
    return blank_nll(model, batch) * WEIGHTS[batch.idx.gather(1, batch.order)]


def loss_of(kind):
    return weighted_nll if kind == 'weighted' else blank_nll


def recorded_rows(kind):
    """Return eight micro-batches of a row each, in which some tokens are given and some are padding."""
    g = torch.Generator().manual_seed(3)
    nothing = torch.zeros(1, 9, dtype=torch.bool)
    rows = []
    for r in range(8):
        idx = torch.randint(11, (1, 9), generator=g)
        order = torch.randperm(9, generator=g)[None]
        n_given = torch.tensor([r % 3])
        n_visits = torch.tensor([9 - r // 2])
        n_blanks = n_visits - n_given
        n_known = None
        order, *_ = given_first(order, nothing, n_visits)
        if kind in ('bidirectional', 'mixed'):
            n_known = n_given + (torch.rand(1, generator=g) * n_blanks).long()
        if kind == 'weighted':
            n_blanks = WEIGHTS[idx.gather(1, order)[:, n_given:n_visits]].sum(1)
        rows.append(Batch(idx, order, n_known, n_visits, n_given, n_blanks))
    return rows


def joined(rows):
    """Return micro-batches as one."""
    there = [name for name, part in vars(rows[0]).items() if part is not None]
    return Batch(**{name: torch.cat([getattr(row, name) for row in rows]) for name in there})


def after_updates(kind, n_micros, n_updates=3):
    """Return {'totals', name of a weight: its values} after updates of all recorded rows.

    They are divided into n_micros micro-batches, which the processes share."""
    rank, world_size = processes()
    rows = recorded_rows(kind)
    size = 8 // n_micros
    own = []
    for micro in range(rank, n_micros, world_size):
        own.append(joined(rows[size * micro : size * (micro + 1)]))
    drawn = iter(n_updates * own)
    state = start(learner(**UNEQUAL[kind]))
    state.run_model = make_run_model(state.model, False, torch.device('cpu'))
    config = Config(OPTIONS | {'gradient_accumulation_steps': n_micros, 'batch_size': size})
    for _ in range(n_updates):
        update(state, Split(TOKENS), 1e-2, config, lambda *args: next(drawn), loss_of(kind))
    mean = summed(state.totals) / world_size  # as `averages` reads them
    return {'totals': mean, **state.model.state_dict()}


@pytest.mark.parametrize('kind', UNEQUAL)
def test_an_update_is_the_mean_over_all_its_blanks_however_they_are_divided(kind, forked):
    batch = joined(recorded_rows(kind))
    model = make_model(**UNEQUAL[kind]).requires_grad_(True)
    assert len({*batch.n_blanks.tolist()}) > 1
    loss = loss_of(kind)(model, batch).sum() / batch.n_blanks.sum()
    loss.backward()
    norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
    found = after_updates(kind, 1, n_updates=1)['totals']
    by_hand = torch.stack([loss.detach(), norm, torch.ones(())])
    torch.testing.assert_close(found, by_hand, rtol=0, atol=1e-9)

    want = after_updates(kind, 1)
    for n_micros in (2, 8):
        torch.testing.assert_close(after_updates(kind, n_micros), want, rtol=0, atol=1e-9)

    def both():
        start_processes()
        torch.testing.assert_close(after_updates(kind, 4), want, rtol=0, atol=1e-9)

    for p in forked(both, both):
        assert p.code == 0, p.said


def test_a_gradient_is_not_clipped_when_that_is_off():
    norms = {}
    for clip in (0.0, 1e-4):
        state = start(learner())
        state.optimizers = [torch.optim.SGD(state.model.parameters(), lr=1.0)]
        state.optimizers[0].param_groups[0]['lr_ratio'] = 3.0
        before = torch.nn.utils.parameters_to_vector(state.model.parameters()).detach()
        update(state, Split(TOKENS), 1.0, Config(OPTIONS | {'grad_clip': clip}))
        after = torch.nn.utils.parameters_to_vector(state.model.parameters()).detach()
        norms[clip] = float((after - before).norm())
        assert state.totals[1] > 0.5
    assert norms[0.0] == pytest.approx(3 * float(state.totals[1])) and norms[1e-4] == pytest.approx(
        3e-4, rel=1e-2
    )


def test_what_is_not_finite_is_counted():
    state = start(learner())
    state.run_model = lambda idx, *args, **how: (
        state.model.lm_head.bias.sum() + torch.full(idx.shape, math.inf)
    )
    update(state, Split(TOKENS), 1e-2, OPTIONS)
    assert state.totals[1].isfinite() and state.totals[2] == 0
    state = start(learner())
    state.model.lm_head.bias.register_hook(lambda g: g * math.inf)  # the gradient alone
    update(state, Split(TOKENS), 1e-2, OPTIONS)
    loss, norm, n_finite = state.totals.tolist()
    assert math.isfinite(loss) and not math.isfinite(norm) and n_finite == 0


def test_averages_run_since_the_last_line():
    state = start(learner())
    state.iter_num, state.logged, state.totals[:] = 14, 10, torch.tensor([8.0, 2.0, 4.0])
    assert state.averages('stop', with_weights=True) == (2.0, 0.5)
    state.start_line()
    assert state.logged == 14 and not state.totals.any()
    state.iter_num, state.totals[:] = 17, torch.tensor([math.nan, 2.0, 1.0])
    with pytest.raises(
        ValueError,
        match='loss nan, gradient norm 0.6667: not finite since iteration 16, and not '
        'saved; lower the learning rate and stop',
    ):
        state.averages('stop', with_weights=False)
    state.totals[:] = torch.tensor(
        [3.0, 3.0, 3.0]
    )  # the losses were finite, the weights are not any more
    with torch.no_grad():
        state.model.lm_head.weight[0, 0] = math.inf
    assert state.averages('stop', with_weights=False) == (1.0, 1.0)
    with pytest.raises(ValueError, match='weight norm inf: not finite since iteration 17'):
        state.averages('stop', with_weights=True)


def documents():
    """Three documents of 3, 9 and 12 tokens, whose first tokens are given; a block has 9 at most."""
    tokens = TOKENS[:24].copy()
    tokens[[0, 3, 4, 12]] |= 1 << 15
    return Split(tokens, True, np.array([3, 12, 24]))


def seen_of_documents():
    """The tokens seen, all processes together, by three updates on `documents`."""
    state = start(learner())
    for _ in range(3):
        update(state, documents(), 1e-3, OPTIONS)
    return state.entries()['n_seen']


def tokens_of_documents():
    """These tokens, by drawing all micro-batches again. Prompts count, padding does not."""
    n = 0
    for it in range(3):
        for micro in range(2):
            torch.manual_seed(derive_seed(5, it, micro))
            n += int((random_blocks(documents(), 3, 9) != PADDING).sum())
    return n


def test_padding_is_no_token_that_was_seen():
    assert seen_of_documents() == tokens_of_documents() < 3 * 2 * 3 * 9


@pytest.mark.slow
def test_padding_is_no_token_that_processes_saw(forked):
    def counted():
        start_processes()
        assert seen_of_documents() == tokens_of_documents()

    for p in forked(counted, counted):
        assert p.code == 0, p.said


def test_the_clock_counts_tokens_and_flops(monkeypatch):
    now = [100.0]
    monkeypatch.setattr('time.perf_counter', lambda: now[0])
    clock = Clock(make_model(), Config(OPTIONS | {'max_iters': 30}), peak=1e6)
    clock.start(SimpleNamespace(iter_num=10, n_seen=1000))
    now[0] += 6.0
    said = clock.read(
        SimpleNamespace(iter_num=14, n_seen=1216)
    )  # 1.5 s an update of 6 blocks of 9 tokens
    assert said == {
        'tokens_per_sec': 36.0,
        'mfu': round(clock.flops_per_iter / 1.5 / 1e6, 4),
        'seconds_left': 24.0,
    }
    padded = clock.read(SimpleNamespace(iter_num=14, n_seen=1108))  # half of them are padding
    assert padded == {
        'tokens_per_sec': 18.0,
        'mfu': pytest.approx(said['mfu'] / 2, abs=1e-4),
        'seconds_left': 24.0,
    }
    alone = Clock(
        make_model(),
        Config(OPTIONS | {'max_iters': 30, 'gradient_accumulation_steps': 1}),
        peak=1e6,
    )
    assert clock.flops_per_iter == 2 * alone.flops_per_iter > 0


def test_micro_batches_are_functions_of_seed_iteration_and_number(monkeypatch):
    seen, state = [], start(learner())
    state.model.register_forward_pre_hook(
        lambda _, args: seen.append((args[0].tolist(), args[1].tolist()))
    )
    config = Config(OPTIONS | {'l2r_ratio': 0.0})
    for it in (0, 1, 1):
        state.iter_num = it
        torch.manual_seed(9)  # what was drawn before does not matter
        update(state, Split(TOKENS), 1e-9, config)
    update(state, Split(TOKENS), 1e-9, Config(config | {'seed': 6}))
    for part in (0, 1):
        drawn = [x[part] for x in seen]
        assert drawn[2:4] == drawn[4:6] and len({str(x) for x in drawn}) == 6


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_a_masked_loss_is_trained_and_validated_on_uniform_numbers_of_known_visits(attention):
    encoder, seen = learner(attention=attention), []
    encoder.register_forward_pre_hook(
        lambda _, args, how: seen.append((*args[2:], how.get('n_known'))[0].tolist()),
        with_kwargs=True,
    )
    config = Config(
        OPTIONS | {'l2r_ratio': 0.0, 'batch_size': 64, 'gradient_accumulation_steps': 1}
    )
    for it in (0, 1, 1):
        state = start(encoder)
        state.iter_num = it
        update(state, Split(TOKENS), 1e-9, config)
    assert seen[1] == seen[2] != seen[0] and {k for row in seen for k in row} == set(range(9))
    blocks = torch.from_numpy(TOKENS[:180].astype(np.int64)).view(20, 9)
    expected = block_nll(
        encoder, blocks, draw_orders(range(20), 9)[:, 0], 8, n_known=draw_known(range(20), 9)[:, 0]
    )
    val = validate(encoder, blocks, torch.zeros_like(blocks, dtype=torch.bool), config)
    assert (
        torch.equal(val['any'], expected)
        and len({k for row in seen[3:] for k in row}) > 5
        and list(val) == ['any']
    )


@pytest.mark.parametrize('order', ['random', 'l2r', 'block'])
def test_validation_has_fixed_orders(order):
    model = make_model()
    blocks = torch.from_numpy(TOKENS[:180].astype(np.int64)).view(20, 9)
    own = {
        'random': draw_orders(range(20), 9)[:, 0],
        'l2r': sample_order(20, 9, 'l2r'),
        'block': sample_order(20, 9, 'block', seed=3),
    }[order]
    config = Config(OPTIONS | {'order': order, 'order_seed': 3})
    val = validate(model, blocks, torch.zeros_like(blocks, dtype=torch.bool), config)
    expected = {
        {'random': 'any', 'l2r': 'l2r'}.get(order, 'own'): own,
        'l2r': sample_order(20, 9, 'l2r'),
    }
    assert list(val) == list(expected)
    for name, orders in expected.items():
        torch.testing.assert_close(val[name], model(blocks, orders).sum(1), rtol=1e-12, atol=0)


def test_an_update_never_waits_for_the_device(monkeypatch):
    """Nothing in it reads a number of a tensor: no item(), bool(), tolist() or cpu(), no shape that needs values."""

    def forbidden(self):
        raise AssertionError('the device is waited for')

    monkeypatch.setattr(torch.Tensor, 'tolist', forbidden)
    monkeypatch.setattr(torch.Tensor, 'cpu', forbidden)
    aten, seen = torch.ops.aten, set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            assert op.overloadpacket not in (aten._local_scalar_dense, aten.nonzero, aten.equal), op
            assert op.overloadpacket != aten.index or all(
                i is None or i.dtype != torch.bool for i in args[1]
            ), op
            seen.add(op.overloadpacket)
            return op(*args, **kwargs or {})

    state = start(lean(learner(dropout=0.1).float()), 'muon')
    with Watch():
        update(state, Split(TOKENS), 1e-2, Config(OPTIONS | {'dtype': 'bfloat16'}))
    assert aten.mm in seen and aten._fused_adamw_ in seen


def test_a_batch_is_in_the_order_of_the_run():
    config = Config(
        OPTIONS | {'order': 'block:3', 'order_seed': 7, 'batch_size': 60, 'l2r_ratio': 0.5}
    )
    model = make_model()
    torch.manual_seed(0)
    order = draw_batch(Split(TOKENS), config, model).order
    blocks, l2r = (
        (order == sample_order(1, 9, kind, seed=7, parameter=3)).all(1) for kind in ('block', 'l2r')
    )
    assert (blocks ^ l2r).all() and 15 < l2r.sum() < 45


def test_what_is_given_costs_nothing_in_an_update():
    """The loss of puzzles is their nats by their blanks. What is given is visited first, in the order drawn."""
    tokens, given = TOKENS[:180].reshape(20, 9), np.random.default_rng(1).random((20, 9)) < 0.4
    config, model = (
        Config(OPTIONS | {'gradient_accumulation_steps': 1, 'l2r_ratio': 0.0}),
        make_model(),
    )

    def nats(idx, order, given):
        """Of the blanks alone, (B,)."""
        order = torch.stack(
            [torch.cat([row[mask[row]], row[~mask[row]]]) for row, mask in zip(order, given)]
        )
        return (model(idx, order) * (torch.arange(9) >= given.sum(1, keepdim=True))).sum(1)

    torch.manual_seed(derive_seed(5, 0, 0))
    rows = uniform_below(20, 3)
    idx, mask = torch.from_numpy(tokens[rows].astype(np.int64)), torch.from_numpy(given[rows])
    loss = nats(idx, sample_order(3, 9), mask).sum() / (~mask).sum()
    state = start(learner())
    update(state, Split(tokens + 2**15 * given.astype('<u2'), True), 1e-2, config)
    assert float(state.totals[0]) == pytest.approx(float(loss))


def test_a_batch_of_puzzles_has_what_is_given_first():
    given, tokens = 2**15, np.arange(18, dtype='<u2').reshape(2, 9) % 4
    rows = Split(tokens + given * (np.arange(18).reshape(2, 9) % 3 == 0).astype('<u2'), True)
    config = Config(OPTIONS | {'batch_size': 6, 'l2r_ratio': 0.0})
    batch = draw_batch(rows, config, make_model())
    assert batch.n_known is batch.n_visits is None
    assert batch.n_given.tolist() == [3] * 6
    assert batch.n_blanks.tolist() == [6] * 6
    assert batch.idx.max() == 3
    assert all(set(row[:3]) == {0, 3, 6} for row in batch.order.tolist())
    masked = make_model(attention='mixed')
    n_known = torch.cat([draw_batch(rows, config, masked).n_known for _ in range(20)])
    assert set(n_known.tolist()) == set(range(3, 9))
