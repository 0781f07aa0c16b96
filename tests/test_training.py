"""An update by hand, in float64: batch, loss, clipping, optimizers, average; and validation."""

import math

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from anyorder.fast import lean
from anyorder.likelihood.nll import blank_nll, block_nll, draw_known
from anyorder.machine.processes import processes, start_processes, sum_over_processes
from anyorder.orders import draw_orders, given_first, sample_order
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import Batch, random_blocks, uniform_below
from anyorder.tokens.sets import PADDING, Split
from anyorder.training.muon import Muon
from anyorder.training.start import entries_to_resume, make_run_model
from anyorder.training.update import TrainState, draw_batch, get_lr, lr_of, make_optimizers, update
from anyorder.training.validation import validate
from configurator import Config
from model import EMA

TOKENS = np.random.default_rng(0).integers(11, size=200).astype('<u2')
BLOCKS = torch.from_numpy(TOKENS[:180].astype(np.int64)).view(20, 9)
NOTHING = torch.zeros(20, 9, dtype=torch.bool)  # is given
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


def options(**more):
    return Config(OPTIONS | more)


def start(model, optimizer='adamw', weight_decay=0.1):
    optimizers = make_optimizers(model, optimizer, 1e-2, 0.03, weight_decay, (0.9, 0.95))
    return TrainState(model, optimizers, EMA(model, 0.9))


def learner(**config):
    return make_model(**config).requires_grad_(True)


# learning rate and optimizers


def test_the_learning_rate_rises_linearly_and_falls_by_a_cosine():
    lrs = [get_lr(it, 1.0, 0.1, 4, 14) for it in range(20)]
    assert lrs[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert lrs[9] == pytest.approx(0.55)
    assert lrs[14] == pytest.approx(0.1)
    assert lrs[19] == pytest.approx(0.1)
    assert lrs[4:] == sorted(lrs[4:], reverse=True)


def test_the_learning_rate_falls_to_the_end_of_the_run():
    run = {'learning_rate': 1.0, 'min_lr': 0.1, 'warmup_iters': 4, 'max_iters': 14}
    for it in range(20):
        lr = get_lr(it, 1.0, 0.1, 4, 14)
        assert lr_of(it, run | {'lr_decay_iters': 0}) == lr
        assert lr_of(it, run | {'lr_decay_iters': 14, 'max_iters': 99}) == lr


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
def test_every_weight_has_one_optimizer_and_only_matrices_decay(optimizer):
    """Without gradients a matrix shrinks by 1 - lr * decay, and nothing else moves."""
    state = start(learner(), optimizer)
    names = {p: name for name, p in state.model.named_parameters()}
    before = {}
    for p in names:
        before[p] = p.detach().clone()
        p.grad = torch.zeros_like(p)
    found = []
    for o in state.optimizers:
        o.step()
        for group in o.param_groups:
            found += [(o, group['lr_ratio'], p) for p in group['params']]

    assert sorted(names[p] for _, _, p in found) == sorted(names.values())
    for o, lr_ratio, p in found:
        name = names[p]
        is_hidden = p.dim() == 2 and ('attn.c_' in name or 'mlp.c_' in name)
        by_muon = is_hidden and optimizer == 'muon'
        lr = 0.03 if by_muon else 0.01
        kept = 1 - lr * 0.1 if p.dim() == 2 else 1
        assert isinstance(o, Muon) == by_muon, name
        assert lr_ratio == pytest.approx(lr / 0.01)
        torch.testing.assert_close(p.detach(), before[p] * kept, rtol=1e-12, atol=0)


def test_muon_takes_queries_keys_and_values_for_three_matrices():
    """The steps of PyTorch's own Muon, with a parameter for each matrix, bit for bit."""
    model = learner().float()
    hidden = {
        name: p for name, p in model.named_parameters() if '.attn.' in name or '.mlp.' in name
    }
    weights = [p for p in hidden.values() if p.dim() == 2]
    alone = [torch.nn.Parameter(part.clone()) for part in parts_of(weights)]
    assert len(alone) == len(weights) + 2 * model.config.n_layer
    ours = Muon(weights, lr=0.03, weight_decay=0.1)
    theirs = torch.optim.Muon(alone, lr=0.03, weight_decay=0.1)
    g = torch.Generator().manual_seed(0)
    for _ in range(3):
        for p in weights:
            p.grad = torch.randn(p.shape, generator=g)
        grads = parts_of([p.grad for p in weights])
        for part, grad in zip(alone, grads, strict=True):
            part.grad = grad.clone()
        ours.step()
        theirs.step()
        assert all(map(torch.equal, parts_of(weights), alone))


def parts_of(weights):
    """Return the matrices that the weights hold: c_attn (48, 16) has Q, K and V."""
    parts = []
    for x in weights:
        parts += x.detach().split(16) if x.shape == (48, 16) else [x.detach()]
    return parts


# an update


def test_updates_by_hand():
    """AdamW of betas (0.9, 0.95), gradients clipped to norm 0.5, two micro-batches, the average."""
    state = start(learner())
    weights = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    average = {name: p.clone() for name, p in weights.items()}
    first = {name: torch.zeros_like(p) for name, p in weights.items()}
    second = {name: torch.zeros_like(p) for name, p in weights.items()}
    totals = torch.zeros(3, dtype=torch.float64)
    for it, lr in enumerate((1e-2, 2e-3, 5e-3)):
        loss, gradient = loss_by_hand(state.model, weights, it)
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))
        assert norm > 0.5
        totals += torch.tensor([loss, norm, 1.0])
        kept = min(0.9, (2 + it) / (11 + it))
        for name, p in weights.items():
            g = gradient[name] * 0.5 / (norm + 1e-6)
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.95 * second[name] + 0.05 * g.square()
            m = first[name] / (1 - 0.9 ** (it + 1))
            v = second[name] / (1 - 0.95 ** (it + 1))
            decay = 0.1 if p.dim() == 2 else 0.0
            weights[name] = p * (1 - lr * decay) - lr * m / (v.sqrt() + 1e-8)
            average[name] = kept * average[name] + (1 - kept) * weights[name]
        update(state, Split(TOKENS), lr, OPTIONS)
    for model, expected in (state.model, weights), (state.ema.model, average):
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=1e-9, msg=name)
    torch.testing.assert_close(state.totals, totals, rtol=1e-6, atol=0)
    assert state.iter_num == 3
    assert state.n_seen == 3 * 2 * 3 * 9
    assert state.logged == 0


def loss_by_hand(model, weights, it):
    """Return the mean loss of the two micro-batches of update `it`, and its gradient {name: g}."""
    leaves = {name: p.clone().requires_grad_() for name, p in weights.items()}
    tokens = torch.from_numpy(TOKENS.astype(np.int64))
    loss = 0.0
    for micro in range(2):
        torch.manual_seed(derive_seed(5, it, micro))
        starts = uniform_below(len(TOKENS) - 8, 3)
        idx = tokens[starts[:, None] + np.arange(9)]
        order = sample_order(3, 9, l2r_ratio=0.3)
        loss = loss + functional_call(model, leaves, (idx, order)).mean() / 2
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return loss.item(), dict(zip(leaves, grads))


def test_updates_and_validation_are_in_the_dtype_of_the_run():
    losses = {}
    for dtype in ('float32', 'bfloat16'):
        state = start(learner().float())
        config = options(dtype=dtype)
        update(state, Split(TOKENS), 1e-9, config)
        val = validate(state.model, BLOCKS, NOTHING, config)
        losses[dtype] = torch.tensor([float(state.totals[0]), float(val['any'].mean()) / 9])
    assert ((losses['bfloat16'] - losses['float32']).abs() > 1e-5).all()
    torch.testing.assert_close(losses['bfloat16'], losses['float32'], rtol=0.05, atol=0)


@pytest.fixture
def second_of_two(monkeypatch):
    """This process is the second of two, which have the same sums."""
    for room in ('update', 'validation'):
        monkeypatch.setattr(f'anyorder.training.{room}.sum_over_processes', lambda x: 2 * x)
        monkeypatch.setattr(f'anyorder.training.{room}.processes', lambda: (1, 2))


def test_a_process_runs_its_own_micro_batches(second_of_two):
    """They are the numbers 1 and 3 of four micro-batches, whose mean is its loss."""
    config = options(gradient_accumulation_steps=4, grad_clip=0.0)
    model = make_model()
    losses = []
    for micro in (1, 3):
        torch.manual_seed(derive_seed(5, 0, micro))
        batch = draw_batch(Split(TOKENS), config, model)
        losses.append(float(model(batch.idx, batch.order).mean()))
    state = start(learner())
    update(state, Split(TOKENS), 1e-2, config)
    loss, _ = state.averages('stop', with_weights=False)
    assert loss == pytest.approx(sum(losses) / 2)
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
    """Return eight micro-batches of a row each, in which some tokens are given, some padding."""
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
    there = [name for name, part in rows[0]._asdict().items() if part is not None]
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
    config = options(gradient_accumulation_steps=n_micros, batch_size=size)
    for _ in range(n_updates):
        update(state, Split(TOKENS), 1e-2, config, lambda *args: next(drawn), loss_of(kind))
    mean = sum_over_processes(state.totals) / world_size  # as `averages` reads them
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


@pytest.mark.parametrize('clip', [0.0, 1e-4])
def test_a_gradient_is_clipped_to_its_norm(clip):
    """0 clips none. The step of SGD is lr_ratio times the gradient."""
    state = start(learner())
    state.optimizers = [torch.optim.SGD(state.model.parameters(), lr=1.0)]
    state.optimizers[0].param_groups[0]['lr_ratio'] = 3.0
    before = torch.nn.utils.parameters_to_vector(state.model.parameters()).detach()
    update(state, Split(TOKENS), 1.0, options(grad_clip=clip))
    after = torch.nn.utils.parameters_to_vector(state.model.parameters()).detach()
    norm = float(state.totals[1])
    assert norm > 0.5
    assert float((after - before).norm()) == pytest.approx(3 * (clip or norm), rel=1e-2)


def test_an_infinite_loss_is_counted():
    state = start(learner())
    bias = state.model.lm_head.bias
    state.run_model = lambda idx, *args, **how: bias.sum() + torch.full(idx.shape, math.inf)
    update(state, Split(TOKENS), 1e-2, OPTIONS)
    loss, norm, n_finite = state.totals.tolist()
    assert loss == math.inf
    assert math.isfinite(norm)
    assert n_finite == 0


def test_an_infinite_gradient_is_counted():
    state = start(learner())
    state.model.lm_head.bias.register_hook(lambda g: g * math.inf)
    update(state, Split(TOKENS), 1e-2, OPTIONS)
    loss, norm, n_finite = state.totals.tolist()
    assert math.isfinite(loss)
    assert not math.isfinite(norm)
    assert n_finite == 0


def test_an_update_never_waits_for_the_device(monkeypatch):
    """Nothing in it reads a number of a tensor, and no shape needs values."""

    def forbidden(self):
        raise AssertionError('the device is waited for')

    monkeypatch.setattr(torch.Tensor, 'tolist', forbidden)
    monkeypatch.setattr(torch.Tensor, 'cpu', forbidden)
    aten = torch.ops.aten
    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            kind = op.overloadpacket
            assert kind not in (aten._local_scalar_dense, aten.nonzero, aten.equal), op
            if kind == aten.index:
                assert all(i is None or i.dtype != torch.bool for i in args[1]), op
            seen.add(kind)
            return op(*args, **kwargs or {})

    state = start(lean(learner(dropout=0.1).float()), 'muon')
    with Watch():
        update(state, Split(TOKENS), 1e-2, options(dtype='bfloat16'))
    assert aten.mm in seen
    assert aten._fused_adamw_ in seen


# what a state counts


def counted(iter_num, logged, totals):
    state = start(learner())
    state.iter_num = iter_num
    state.logged = logged
    state.totals[:] = torch.tensor(totals)
    return state


def test_averages_run_since_the_last_line():
    state = counted(14, 10, [8.0, 2.0, 4.0])
    assert state.averages('stop', with_weights=True) == (2.0, 0.5)
    state.start_line()
    assert state.logged == 14
    assert not state.totals.any()


def test_averages_that_are_not_finite_are_one_line():
    state = counted(17, 14, [math.nan, 2.0, 1.0])
    with one_line('loss nan, gradient norm 0.6667: not finite since iteration 16, .* and stop'):
        state.averages('stop', with_weights=False)


def test_weights_that_are_not_finite_are_one_line():
    """The losses before were finite."""
    state = counted(17, 14, [3.0, 3.0, 3.0])
    with torch.no_grad():
        state.model.lm_head.weight[0, 0] = math.inf
    assert state.averages('stop', with_weights=False) == (1.0, 1.0)
    with one_line('weight norm inf: not finite since iteration 17'):
        state.averages('stop', with_weights=True)


def documents():
    """Return documents of 3, 9 and 12 tokens, whose first ones are given; a block has 9 at most."""
    tokens = TOKENS[:24].copy()
    tokens[[0, 3, 4, 12]] |= 1 << 15
    return Split(tokens, True, np.array([3, 12, 24]))


def seen_of_documents():
    """Return the tokens seen, all processes together, by three updates on `documents`."""
    state = start(learner())
    for _ in range(3):
        update(state, documents(), 1e-3, OPTIONS)
    return entries_to_resume(state)['n_seen']


def tokens_of_documents():
    """Return them by drawing all micro-batches again. Prompts count, padding does not."""
    n = 0
    for it in range(3):
        for micro in range(2):
            torch.manual_seed(derive_seed(5, it, micro))
            n += int((random_blocks(documents(), 3, 9) != PADDING).sum())
    return n


def test_padding_is_no_token_that_was_seen():
    n = tokens_of_documents()
    assert seen_of_documents() == n
    assert n < 3 * 2 * 3 * 9


@pytest.mark.slow
def test_padding_is_no_token_that_processes_saw(forked):
    def counted():
        start_processes()
        assert seen_of_documents() == tokens_of_documents()

    for p in forked(counted, counted):
        assert p.code == 0, p.said


# batches


def test_micro_batches_are_functions_of_seed_iteration_and_number():
    """What was drawn before does not matter."""
    seen = []
    state = start(learner())

    def record(_, args):
        idx, order, *_ = args
        seen.append((idx.tolist(), order.tolist()))

    state.model.register_forward_pre_hook(record)
    for it, seed in ((0, 5), (1, 5), (1, 5), (1, 6)):
        state.iter_num = it
        torch.manual_seed(9)
        update(state, Split(TOKENS), 1e-9, options(l2r_ratio=0.0, seed=seed))
    for drawn in zip(*seen):  # blocks, then orders
        assert drawn[2:4] == drawn[4:6]
        assert len({*map(str, drawn)}) == 6


def test_a_batch_is_in_the_order_of_the_run():
    config = options(order='block:3@7', batch_size=60, l2r_ratio=0.5)
    model = make_model()
    torch.manual_seed(0)
    order = draw_batch(Split(TOKENS), config, model).order
    is_block = (order == sample_order(1, 9, 'block', seed=7, parameter=3)).all(1)
    is_l2r = (order == torch.arange(9)).all(1)
    assert (is_block ^ is_l2r).all()
    assert 15 < is_l2r.sum() < 45


def test_a_batch_of_puzzles_has_what_is_given_first():
    """The positions 0, 3 and 6 of each row."""
    tokens = np.arange(18, dtype='<u2') % 4
    given = np.arange(18) % 3 == 0
    rows = Split(np.where(given, tokens + 2**15, tokens).astype('<u2').reshape(2, 9), True)
    config = options(batch_size=6, l2r_ratio=0.0)
    batch = draw_batch(rows, config, make_model())
    assert batch.n_known is None
    assert batch.n_visits is None
    assert batch.n_given.tolist() == [3] * 6
    assert batch.n_blanks.tolist() == [6] * 6
    assert batch.idx.max() == 3
    assert batch.order[:, :3].sort().values.tolist() == [[0, 3, 6]] * 6
    masked = make_model(attention='mixed')
    n_known = torch.cat([draw_batch(rows, config, masked).n_known for _ in range(20)])
    assert {*n_known.tolist()} == {*range(3, 9)}


def test_what_is_given_costs_nothing_in_an_update():
    """The loss of puzzles is the nats of their blanks. What is given comes first, as drawn."""
    tokens = TOKENS[:180].reshape(20, 9)
    given = np.random.default_rng(1).random((20, 9)) < 0.4
    model = make_model()
    torch.manual_seed(derive_seed(5, 0, 0))
    rows = uniform_below(20, 3)
    order = sample_order(3, 9)
    nats = []
    for row, drawn in zip(rows, order):
        is_given = torch.from_numpy(given[row])[drawn]
        own = torch.cat([drawn[is_given], drawn[~is_given]])
        nll = model(torch.from_numpy(tokens[row].astype(np.int64))[None], own[None])[0]
        nats += nll[int(is_given.sum()) :].tolist()
    state = start(learner())
    split = Split(np.where(given, tokens + 2**15, tokens).astype('<u2'), True)
    update(state, split, 1e-2, options(gradient_accumulation_steps=1, l2r_ratio=0.0))
    assert float(state.totals[0]) == pytest.approx(sum(nats) / len(nats))


# a masked loss, and validation


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_a_masked_loss_has_uniform_numbers_of_known_visits(attention):
    """In an update they are a function of the iteration, in validation of the block."""
    encoder = learner(attention=attention)
    seen = []
    encoder.register_forward_pre_hook(
        lambda _, args, how: seen.append((*args[2:], how.get('n_known'))[0].tolist()),
        with_kwargs=True,
    )
    config = options(l2r_ratio=0.0, batch_size=64, gradient_accumulation_steps=1)
    for it in (0, 1, 1):
        state = start(encoder)
        state.iter_num = it
        update(state, Split(TOKENS), 1e-9, config)
    assert seen[1] == seen[2] != seen[0]
    assert {*seen[0], *seen[1]} == {*range(9)}

    orders = draw_orders(range(20), 9)[:, 0]
    known = draw_known(range(20), 9)[:, 0]
    expected = block_nll(encoder, BLOCKS, orders, 8, n_known=known)
    val = validate(encoder, BLOCKS, NOTHING, config)
    assert list(val) == ['any']
    assert torch.equal(val['any'], expected)
    assert len({*known.tolist()}) > 5


@pytest.mark.parametrize(
    'order, names', [('random', ['any', 'l2r']), ('l2r', ['l2r']), ('block:4@3', ['own', 'l2r'])]
)
def test_validation_has_fixed_orders(order, names):
    model = make_model()
    orders = {
        'any': draw_orders(range(20), 9)[:, 0],
        'l2r': sample_order(20, 9, 'l2r'),
        'own': sample_order(20, 9, 'block', seed=3),
    }
    val = validate(model, BLOCKS, NOTHING, options(order=order))
    assert list(val) == names
    for name, nats in val.items():
        torch.testing.assert_close(nats, model(BLOCKS, orders[name]).sum(1), rtol=1e-12, atol=0)


def test_processes_share_the_blocks_of_a_validation(request):
    model = make_model()
    whole = validate(model, BLOCKS[:5], NOTHING[:5], OPTIONS)
    request.getfixturevalue('second_of_two')
    for name, nats in validate(model, BLOCKS[:5], NOTHING[:5], OPTIONS).items():
        torch.testing.assert_close(nats[1::2], 2 * whole[name][1::2], rtol=1e-12, atol=0)
        assert not nats[::2].any()
