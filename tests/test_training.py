"""A run: its updates by hand in float64, its options, what it leaves, how it stops and goes on."""

import asyncio
import contextlib
import functools
import glob
import io
import itertools
import json
import math
import os
import resource
import shutil
import signal
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import REFERENCE, ROOT, make_model, one_line
from torch.utils._python_dispatch import TorchDispatchMode
from toy_runs import TOY, TWO, assert_same_runs, interrupted, log, resume, run

import train
from anyorder.checkpoint import (
    Checkpoint,
    digest,
    load_checkpoint,
    model_from_checkpoint,
    save_checkpoint,
)
from anyorder.datasets import open_split
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.fast import lean
from anyorder.likelihood.nll import blank_nll, block_nll, draw_known
from anyorder.machine.processes import is_split, processes, start_processes, sum_over_processes
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import ORDERS, Family, draw_orders, given_first, sample_order
from anyorder.seeds import derive_seed
from anyorder.tokens import prepared
from anyorder.tokens.blocks import Batch, random_blocks, uniform_below
from anyorder.tokens.meta import read_meta, write_meta
from anyorder.tokens.sets import PADDING, Split
from anyorder.training import run_folder, sharding
from anyorder.training import start as starts
from anyorder.training.best import Best
from anyorder.training.chart import start_chart
from anyorder.training.clock import Clock, training_flops
from anyorder.training.muon import Muon
from anyorder.training.report import about_warm_up
from anyorder.training.run_folder import RunFolder, open_newest
from anyorder.training.update import TrainState, draw_batch, get_lr, lr_of, make_optimizers, update
from anyorder.training.validation import validate
from configurator import Config, configure
from model import AOGPT, EMA, AOGPTConfig

TOKENS = np.random.default_rng(0).integers(11, size=200).astype('<u2')
BLOCKS = torch.from_numpy(TOKENS[:180].astype(np.int64)).view(20, 9)
NOTHING = torch.zeros(20, 9, dtype=torch.bool)  # is given
CPU = torch.device('cpu')
OPTIONS = Config(
    seed=5,
    batch_size=3,
    gradient_accumulation_steps=2,
    block_size=9,
    l2r_ratio=0.3,
    grad_clip=0.5,
    dtype='float32',
    order='random',
    max_iters=30,
)


def options(**more):
    return Config(OPTIONS | more)


def learner(**config):
    return make_model(**config).requires_grad_(True)


def start(model, optimizer='adamw', way=''):
    """Return the state of a new run, which its processes split by a `way`, if any."""
    average = EMA(model, 0.9)
    if way:
        mesh = sharding.mesh_of(Config(save_memory=way), CPU)
        for whole in (model, average.model):
            sharding.shard(whole, mesh)
    optimizers = make_optimizers(model, optimizer, 1e-2, 0.03, 0.1, (0.9, 0.95))
    state = TrainState(model, optimizers, average)
    state.run_model = starts.make_run_model(model, False, CPU)
    return state


flat = torch.nn.utils.parameters_to_vector


def close(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


# ---- learning rate and optimizers


def test_the_learning_rate_rises_linearly_and_falls_by_a_cosine():
    """To its end, or that of the run."""
    down = [0.55 + 0.45 * math.cos(math.pi * min(1, it / 10)) for it in range(16)]
    rate = {'learning_rate': 1.0, 'min_lr': 0.1, 'warmup_iters': 4}
    for end in ({'lr_decay_iters': 0, 'max_iters': 14}, {'lr_decay_iters': 14, 'max_iters': 99}):
        found = [lr_of(it, rate | end) for it in range(20)]
        assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, *down], rel=1e-12)
    assert [get_lr(it, 1.0, 0.1, 4, 4) for it in (4, 5)] == [1.0, 0.1]


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
def test_every_weight_has_one_optimizer_and_only_matrices_decay(optimizer):
    state = start(learner(), optimizer)
    names = {p: name for name, p in state.model.named_parameters()}
    for o in state.optimizers:
        for group in o.param_groups:
            for p in group['params']:
                name = names.pop(p)
                by_muon = optimizer == 'muon' and p.dim() == 2 and '.c_' in name
                assert isinstance(o, Muon) == by_muon, name
                assert group['lr_ratio'] == (3 if by_muon else 1)
                assert group['weight_decay'] == 0.1 * (p.dim() == 2)
    assert names == {}


def parts_of(weights):
    """The matrices that weights hold: c_attn (48, 16) has Q, K and V."""
    parts = [x.detach().split(16 if x.shape == (48, 16) else len(x)) for x in weights]
    return [*itertools.chain(*parts)]


def test_muon_takes_queries_keys_and_values_for_three_matrices():
    """The steps of PyTorch's own Muon, with a parameter for each matrix, bit for bit."""
    optimizer = start(learner().float(), 'muon').optimizers[1]
    weights = optimizer.param_groups[0]['params']
    alone = [torch.nn.Parameter(part.clone()) for part in parts_of(weights)]
    theirs = torch.optim.Muon(alone, lr=0.03, weight_decay=0.1)
    for _ in range(3):
        for p in weights:
            p.grad = torch.randn(p.shape)
        for part, grad in zip(alone, parts_of([p.grad for p in weights]), strict=True):
            part.grad = grad.clone()
        assert optimizer.step(lambda: 3) == 3
        theirs.step()
        assert all(map(torch.equal, parts_of(weights), alone))
    assert len(alone) == len(weights) + 2 * 2


# ---- an update


@pytest.mark.parametrize('clip', [0.5, 0.0])
def test_updates_by_hand(clip):
    """AdamW of betas (0.9, 0.95), gradients clipped to a norm, 0 clips none, two micro-batches, the
    average. Vectors have three times the learning rate."""
    state = start(learner())
    state.optimizers[0].param_groups[1]['lr_ratio'] = 3.0
    model = learner()
    weights = flat(model.parameters()).detach()
    is_matrix = flat(torch.full_like(p, p.dim() == 2) for p in model.parameters())
    average, first, second = weights, 0, 0
    totals = torch.zeros(3, dtype=torch.float64)
    for it, lr in enumerate((1e-2, 2e-3, 5e-3)):
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        loss = 0
        for micro in range(2):
            torch.manual_seed(derive_seed(5, it, micro))
            starts = uniform_below(len(TOKENS) - 8, 3)
            idx = torch.from_numpy(TOKENS.astype(np.int64))[starts[:, None] + np.arange(9)]
            loss += model(idx, sample_order(3, 9, l2r_ratio=0.3)).mean() / 2
        gradient = flat(torch.autograd.grad(loss, [*model.parameters()]))
        norm = gradient.norm()
        assert norm > 0.5
        totals += torch.stack([loss.detach(), norm, torch.ones(())])
        if clip:
            gradient *= clip / (norm + 1e-6)
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient.square()
        m = first / (1 - 0.9 ** (it + 1))
        v = second / (1 - 0.95 ** (it + 1))
        weights = weights * (1 - 0.1 * lr * is_matrix)
        weights -= lr * (3 - 2 * is_matrix) * m / (v.sqrt() + 1e-8)
        kept = min(0.9, (2 + it) / (11 + it))
        average = kept * average + (1 - kept) * weights
        update(state, Split(TOKENS), lr, options(grad_clip=clip))
    close(flat(state.model.parameters()), weights)
    close(flat(state.ema.model.parameters()), average)
    close(state.totals, totals)
    assert (state.iter_num, state.n_seen, state.logged) == (3, 3 * 2 * 3 * 9, 0)


UNEQUAL = {  # networks, and an own loss
    'causal': {},
    'bidirectional': {'attention': 'bidirectional'},
    'mixed': {'attention': 'mixed'},
    'weighted': {},
}
WEIGHTS = torch.arange(11.0)  # of tokens


def weighted_nll(model, batch):
    return blank_nll(model, batch) * WEIGHTS[batch.idx.gather(1, batch.order)]


LOSSES = {'weighted': weighted_nll}


@functools.cache
def batch_of(kind):
    """Return a batch of eight rows: some of their tokens are given, some padding."""
    g = torch.Generator().manual_seed(0)
    idx = torch.randint(11, (8, 9), generator=g)
    n_given = torch.arange(8) % 3
    n_visits = 9 - torch.arange(8) // 2
    n_blanks = n_visits - n_given
    order = torch.rand(8, 9, generator=g).argsort(-1)
    order, *_ = given_first(order, NOTHING[:8], n_visits)
    n_known = None
    if 'attention' in UNEQUAL[kind]:
        n_known = n_given + (torch.rand(8, generator=g) * n_blanks).long()
    if kind == 'weighted':
        visits = torch.arange(9)
        is_blank = (visits >= n_given[:, None]) & (visits < n_visits[:, None])
        n_blanks = (WEIGHTS[idx.gather(1, order)] * is_blank).sum(1)
    return Batch(idx, order, n_known, n_visits, n_given, n_blanks)


def after_updates(kind, n_micros, n_updates=3):
    """Return the totals and weights after updates of eight rows, in micro-batches that the
    processes share."""
    rank, world_size = processes()
    micros = range(rank, n_micros, world_size)
    own = [batch_of(kind).rows(torch.arange(n, 8, n_micros)) for n in micros]
    drawn = itertools.cycle(own)
    state = start(learner(**UNEQUAL[kind]))
    config = options(gradient_accumulation_steps=n_micros)
    for _ in range(n_updates):
        loss = LOSSES.get(kind, blank_nll)
        update(state, Split(TOKENS), 1e-2, config, lambda *_: next(drawn), loss)
    mean = sum_over_processes(state.totals) / world_size  # as `averages` reads them
    return {'totals': mean, **state.model.state_dict()}


@pytest.fixture(scope='module')
def whole():
    """What one process has after updates of each kind."""
    return {kind: after_updates(kind, 1) for kind in UNEQUAL}


@pytest.mark.parametrize('kind', UNEQUAL)
def test_an_update_is_the_mean_over_all_its_blanks_however_they_are_divided(kind, whole):
    batch = batch_of(kind)
    model = learner(**UNEQUAL[kind])
    loss = LOSSES.get(kind, blank_nll)(model, batch).sum() / batch.n_blanks.sum()
    loss.backward()
    norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
    found = after_updates(kind, 1, n_updates=1)['totals']
    close(found, torch.stack([loss.detach(), norm, torch.ones((), dtype=torch.float64)]))
    for n_micros in (2, 8):
        close(after_updates(kind, n_micros), whole[kind])


def documents():
    """Return documents of 3, 9 and 12 tokens, whose first ones are given; a block has 9 at most."""
    tokens = TOKENS[:24].copy()
    tokens[[0, 3, 4, 12]] |= 1 << 15
    return Split(tokens, True, np.array([3, 12, 24]))


def seen_of_documents():
    state = start(learner())
    for _ in range(3):
        update(state, documents(), 1e-3, OPTIONS)
    return starts.entries_to_resume(state)['n_seen']


def test_padding_is_no_token_that_was_seen():
    """Prompts count. All micro-batches are drawn again."""
    n = 0
    for it, micro in itertools.product(range(3), range(2)):
        torch.manual_seed(derive_seed(5, it, micro))
        n += int((random_blocks(documents(), 3, 9) != PADDING).sum())
    assert seen_of_documents() == n < 3 * 2 * 3 * 9


def test_two_processes_are_one(forked, whole):
    """Updates, tokens that were seen, and validations of five blocks: three and two of them, in
    batches of two. A split model has as many passes everywhere, and Muon gathers a matrix once."""
    seen = seen_of_documents()
    config = options(batch_size=2, l2r_ratio=0.0)
    encoder = make_model(attention='bidirectional')
    val = validate(encoder, BLOCKS[:5], NOTHING[:5], config)
    from torch.distributed.tensor.debug import CommDebugMode

    def both():
        start_processes()
        for kind in UNEQUAL:
            close(after_updates(kind, 4), whole[kind])
        assert seen_of_documents() == seen
        close(validate(encoder, BLOCKS[:5], NOTHING[:5], config), val)
        state = start(learner(attention='bidirectional'), 'muon', 'shard')
        assert is_split(state.model.lm_head.weight)
        close(validate(state.ema.model, BLOCKS[:5], NOTHING[:5], config), val)
        known = torch.full((20,), 4)
        state.model(BLOCKS, torch.arange(9).expand(20, 9), known).mean().backward()
        with CommDebugMode() as counter:
            state.optimizers[1].step()
        assert counter.get_total_counts() == 8

    for p in forked(both, both):
        assert p.code == 0, p.said


def test_updates_and_validation_are_in_the_dtype_of_the_run():
    """An update keeps no rounded weights for a second use: copies of all would wait."""
    losses = []
    cached = []
    for dtype in ('float32', 'bfloat16'):
        state = start(learner().float())
        state.model.register_forward_pre_hook(
            lambda *_: cached.append(torch.is_autocast_cache_enabled())
        )
        update(state, Split(TOKENS), 1e-9, options(dtype=dtype))
        assert not cached.pop()
        val = validate(state.model, BLOCKS, NOTHING, options(dtype=dtype))
        losses.append(torch.stack([state.totals[0], val['any'].mean() / 9]))
    assert ((losses[1] - losses[0]).abs() > 1e-5).all()
    torch.testing.assert_close(losses[1], losses[0], rtol=0.05, atol=0)


def test_an_update_never_waits_for_the_device(monkeypatch):
    """Nothing in it reads a number of a tensor, and no shape needs values."""
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

    for name in ('tolist', 'cpu'):
        monkeypatch.setattr(torch.Tensor, name, lambda self: pytest.fail('it waits'))
    state = start(lean(learner(dropout=0.1).float()), 'muon')
    with Watch():
        update(state, Split(TOKENS), 1e-2, options(dtype='bfloat16'))
    assert {aten.mm, aten._fused_adamw_} <= seen


# iterations, those of the last line, sums since then, a weight, and the averages or a word
AVERAGES = [
    (14, 10, [8.0, 2.0, 4.0], 0.0, (2.0, 0.5)),
    (17, 14, [math.nan, 2.0, 1.0], 0.0, 'loss nan, gradient norm 0.6667.* since iteration 16'),
    (17, 14, [3.0, math.inf, 0.0], 0.0, 'norm inf.* since iteration 15'),
    (17, 14, [3.0, 3.0, 3.0], math.inf, 'weight norm inf.* since iteration 17'),
]


@pytest.mark.parametrize('iter_num, logged, totals, weight, found', AVERAGES)
def test_averages_run_since_the_last_line_and_are_finite(iter_num, logged, totals, weight, found):
    state = start(make_model())
    state.iter_num = iter_num
    state.logged = logged
    state.totals[:] = torch.tensor(totals)
    state.model.lm_head.weight[0, 0] = weight
    is_said = isinstance(found, str)
    if weight:
        assert state.averages('stop', with_weights=False) == (1.0, 1.0)
    with one_line(f'{found}.* and stop') if is_said else nullcontext():
        assert state.averages('stop', with_weights=True) == found
    state.start_line()
    assert (state.logged, state.totals.any()) == (iter_num, False)


# ---- batches, and validation


def test_micro_batches_are_functions_of_seed_iteration_and_number():
    """What was drawn before does not matter; how many visits are known is drawn, too."""
    seen = []
    state = start(learner(attention='mixed'))
    state.model.register_forward_pre_hook(
        lambda *args: seen.append(str(args[1:])), with_kwargs=True
    )
    for it, seed in ((0, 5), (1, 5), (1, 5), (1, 6)):
        state.iter_num = it
        torch.manual_seed(9)
        update(state, Split(TOKENS), 1e-9, options(seed=seed, l2r_ratio=0.0))
    assert seen[2:4] == seen[4:6]
    assert len({*seen}) == 6


def test_a_batch_is_in_the_order_of_the_run():
    torch.manual_seed(0)
    config = options(order='block:3@7', batch_size=60, l2r_ratio=0.5)
    order = draw_batch(Split(TOKENS), config, make_model()).order
    is_block = (order == sample_order(1, 9, 'block', seed=7, parameter=3)).all(1)
    is_l2r = (order == torch.arange(9)).all(1)
    assert (is_block ^ is_l2r).all()
    assert 15 < is_l2r.sum() < 45


def test_what_is_given_comes_first_and_costs_nothing():
    """It is the positions 0, 3 and 6 of each row, in the order drawn."""
    rows = TOKENS[:180].reshape(20, 9).copy()
    rows[:, ::3] |= 1 << 15
    split = Split(rows, True)
    config = options(gradient_accumulation_steps=1, l2r_ratio=0.0)
    model = make_model()
    torch.manual_seed(derive_seed(5, 0, 0))
    idx = BLOCKS[uniform_below(20, 3)]
    drawn = sample_order(3, 9).tolist()
    order = torch.tensor([sorted(row, key=lambda p: p % 3 > 0) for row in drawn])
    torch.manual_seed(derive_seed(5, 0, 0))
    batch = draw_batch(split, config, model)
    counts = torch.full((3,), 3)
    assert (batch.n_known, batch.n_visits) == (None, None)
    close((batch.idx, batch.order), (idx, order))
    close((batch.n_given, batch.n_blanks), (counts, 2 * counts))
    state = start(learner())
    update(state, split, 1e-2, config)
    close(state.totals[0], model(idx, order)[:, 3:].mean())
    masked = make_model(attention='mixed')
    known = [draw_batch(split, config, masked).n_known for _ in range(40)]
    assert {*torch.cat(known).tolist()} == {*range(3, 9)}


@pytest.mark.parametrize(
    'order, names', [('random', ['any', 'l2r']), ('l2r', ['l2r']), ('block:4@3', ['own', 'l2r'])]
)
def test_validation_has_fixed_orders(order, names):
    """A masked loss has a fixed number of known visits for each block, and no left to right."""
    model = make_model()
    orders = {
        'any': draw_orders(range(20), 9)[:, 0],
        'l2r': sample_order(20, 9, 'l2r'),
        'own': sample_order(20, 9, 'block', seed=3),
    }
    wanted = {name: model(BLOCKS, orders[name]).sum(1) for name in names}
    close(validate(model, BLOCKS, NOTHING, options(order=order)), wanted)
    encoder = make_model(attention='bidirectional')
    known = draw_known(range(20), 9)[:, 0]
    wanted = {'any': block_nll(encoder, BLOCKS, orders['any'], 8, n_known=known)}
    close(validate(encoder, BLOCKS, NOTHING, options(batch_size=64)), wanted)


# ---- memory, and speed

NETWORKS = [
    {},
    {'gpt2_blocks': True, 'target_position': 'input'},
    {'target_position': 'layer', 'rotary': True},
    {'target_position': 'layer_shared', 'bias': False},
    {'target_position': 'two_stream'},
    {'attention': 'bidirectional'},
    {'attention': 'mixed', 'rotary': True},
]


@pytest.mark.parametrize('config', NETWORKS)
def test_recomputed_blocks_are_the_blocks_bit_for_bit_and_keep_little(config):
    found = []
    sizes = []
    for recompute in (lambda model: model, sharding.recompute):
        model = recompute(lean(learner(**config, dropout=0.3, n_layer=6).train()))
        n_known = None
        if model.slots.masked_loss:
            n_known = torch.tensor([0, 3, 8, 5, 1])
        kept = {}

        def keep(x, kept=kept):
            kept[x.untyped_storage().data_ptr()] = x
            return x

        torch.manual_seed(1)  # for dropout
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            nll = model(BLOCKS[:5], draw_orders(range(5), 9)[:, 0], n_known)
        sizes.append(sum(x.untyped_storage().nbytes() for x in kept.values()))
        nll.mean().backward()
        found.append([nll.detach(), *[p.grad for p in model.parameters()]])
    assert all(map(torch.equal, *found))
    assert sizes[1] < sizes[0] / 4


@pytest.mark.parametrize(
    'places, is_right',
    [
        ('02 12 02 12', True),
        ('04 14 24 34', True),
        ('03 13 23 01', False),
        ('02 02 12 12', False),  # numbered across the nodes
        ('00 00 00 00', False),
        ('0 1 2 3', False),
    ],
)
def test_nodes_must_be_of_one_size(monkeypatch, places, is_right):
    said = [(*map(int, place), None)[:2] for place in places.split()]
    monkeypatch.setattr(sharding, 'processes', lambda: (0, 4))
    monkeypatch.setattr(sharding, 'gather', lambda own: said)
    with nullcontext() if is_right else one_line('save_memory=hybrid'):
        sharding.check_nodes()


def test_two_streams_run_what_serves_the_content_twice():
    """Of the last of three layers the content has keys alone, which c_attn gives; half of all pairs
    of slots see each other."""
    model = make_model(target_position='two_stream', n_layer=3)
    square = 16 * 16
    matrices = 3 * 12 * square + 11 * 16 + (2 * 12 + 3) * square
    pairs = 5 * 9 * 16 / 2
    assert training_flops(model, 5) == 6 * 5 * 9 * (matrices + 2 * pairs)


def test_four_updates_take_six_seconds(monkeypatch):
    """Each of two times 3 blocks of 9 tokens, of which half are padding here, on a device of 1e6
    FLOP/s."""
    now = iter([100.0, 106.0])
    monkeypatch.setattr('time.perf_counter', lambda: next(now))
    model = make_model()
    clock = Clock(model, OPTIONS, 1e6)
    clock.start(SimpleNamespace(iter_num=10, n_seen=1000))
    mfu = 2 * training_flops(model, 3, 9) * 4 / 6 / 1e6 / 2
    wanted = {'tokens_per_sec': 18.0, 'mfu': mfu, 'seconds_left': 16 * 1.5}
    found = clock.read(SimpleNamespace(iter_num=14, n_seen=1108))
    assert found == pytest.approx(wanted, abs=1e-4)
    assert (mfu > 0.1, clock.tokens_per_iter) == (True, 54)


# ---- options


CONFIGS = {  # init_from, where it is not 'scratch'
    'adapt_gpt2': 'auto:gpt2',
    'answers': 'auto:out/quickstart/ckpt.pt',
    'finetune': 'auto:out/quickstart/ckpt.pt',
    'quickstart': 'auto',
    'ao_gpt_small': 'auto',
    'ao_gpt_medium': 'auto',
    'sigma_gpt_small': 'auto',
}
PAPERS = {  # millions of weights, the learning rate
    'ao_gpt_small': (170.6, 6e-4),
    'ao_gpt_medium': (425.8, 3e-4),
    'sigma_gpt_small': (125.26, 6e-4),  # GPT-2's are 124.44, and wtpe 0.79 more
}
DEFAULTS = {
    'min_lr': 6e-5,
    'warmup_iters': 2000,
    'weight_decay': 0.05,
    'beta2': 0.95,
    'block_size': 1024,
    'optimizer': 'adamw',
    'l2r_ratio': 0.1,
}


def typed(*words):
    return configure(vars(train), [*map(str, words)])


@pytest.mark.parametrize('path', sorted(glob.glob(f'{ROOT}/config/*.py')), ids=os.path.basename)
def test_every_config_is_a_run_and_those_of_the_papers_have_their_sizes(path):
    """What these do not say are the defaults of train.py."""
    name = os.path.basename(path)[:-3]
    config = typed(path)
    starts.check_options(config, 1)
    assert config.init_from == CONFIGS.get(name, 'scratch')
    if name not in PAPERS:
        return
    millions, rate = PAPERS[name]
    with torch.device('meta'):
        model = AOGPT(starts.model_config(config))
    assert model.n_parameters() / 1e6 == pytest.approx(millions, abs=0.15)
    assert config.batch_size * config.gradient_accumulation_steps * config.block_size == 524288
    assert {name: config[name] for name in DEFAULTS} == DEFAULTS
    assert config.learning_rate == rate


SAVED = {'optimizer': 'muon:0.04', 'order': 'few:8@3', 'documents': 'together'}
RESUMED = dict(optimizer=[], n_seen=0, logged=0, totals=None, tokenizer='bytes', config=SAVED)
MODEL = make_model(n_layer=1, vocab_size=320, n_tokens=257)
AVERAGE = EMA(MODEL, 0.9)


def write_run(path, **entries):
    """Write a checkpoint that a run may go on from, but for entries that are None."""
    kept = RESUMED | {'best': {}, 'iter_num': 7} | entries
    kept = {name: value for name, value in kept.items() if value is not None or name == 'totals'}
    save_checkpoint(path, MODEL, AVERAGE, **kept)


# what a checkpoint was saved with, what is typed now, and what the run has and says is changed
OVERRIDES = [
    ({}, '', {'order': 'random', 'optimizer': 'adamw', 'n_layer': 1, 'block_size': 9}, []),
    ({}, '--optimizer=muon --order=block', {'optimizer': 'muon:0.02', 'order': 'block:4'}, []),
    (SAVED, '', SAVED, []),
    (SAVED, '--optimizer=muon --order=few:8 --network=n_cond=8,adaln', {'network': 'n_cond=8'}, []),
    (SAVED, '--optimizer=muon', SAVED, []),
    (SAVED, '--order=few:8', SAVED, []),
    (SAVED, '--optimizer=muon:0.1', {'optimizer': 'muon:0.1'}, ['optimizer muon:0.04 -> muon:0.1']),
    (SAVED, '--order=few:8@0', {'order': 'few:8'}, ['order few:8@3 -> few:8']),
    (SAVED, '--order=l2r', {'order': 'l2r'}, ['order few:8@3 -> l2r']),
    (SAVED, '--documents=apart', {'documents': 'apart'}, ['documents together -> apart']),
    ({'keep_best': 'val_any'}, '--keep_best=', {}, ["keep_best val_any -> ''"]),
    ({'order': [1, 0]}, '', {'order': [1, 0]}, []),
    (SAVED, 'c.py --seed=3', SAVED | {'batch_size': 5, 'n_layer': 1, 'seed': 3}, []),
]


@pytest.mark.parametrize('saved, words, now, changed', OVERRIDES)
def test_a_resumed_run_has_the_options_of_its_checkpoint_and_those_given(
    tmp_path, monkeypatch, capsys, saved, words, now, changed
):
    """Of a config file a checkpoint overrules optimizer and shape, and says so; other weights
    overrule the shape alone."""
    monkeypatch.chdir(tmp_path)
    with open('c.py', 'w') as f:
        f.write("optimizer = 'adamw'\nn_layer = 12\nn_head = 2\nbatch_size = 5\n")
    write_run('ckpt.pt', config=saved)
    resumed = typed('--init_from=resume', '--out_dir=.', *words.split())
    _, config, found = starts.start_checkpoint(resumed)
    assert {name: config[name] for name in now} == now
    assert found == changed
    said = capsys.readouterr().out
    is_overruled = 'config file: n_layer 12 -> 1, optimizer adamw -> muon:0.04\n' in said
    assert (is_overruled, bool(said)) == ('c.py' in words, 'c.py' in words)

    _, config, found = starts.start_checkpoint(typed('--init_from=ckpt.pt', *words.split()))
    assert (config.n_layer, config.block_size, config.init_from, found) == (1, 9, 'ckpt.pt', [])
    for name in ('n_layer=2', 'n_layer=12', 'network=rotary'):
        with one_line(f'{name} contradicts'):
            starts.start_checkpoint(typed(*words.split(), '--init_from=ckpt.pt', f'--{name}'))


@pytest.mark.parametrize('width, said, n_threads', [(64, '', 1), (256, '', 2), (64, '2', 2)])
def test_a_narrow_network_has_one_thread_unless_somebody_says(monkeypatch, width, said, n_threads):
    monkeypatch.setattr(os, 'environ', {'OMP_NUM_THREADS': said} if said else {})
    called = [2]
    monkeypatch.setattr(torch, 'set_num_threads', called.append)
    starts.set_threads(Config(n_embd=width))
    assert called[-1] == n_threads


# options: a word of the message
BAD = {
    '--learning_rate=1e-6': 'min_lr',
    '--learning_rate=0': 'learning_rate',
    '--n_embd=15': 'n_head',
    '--block_size=100000': 'beyond the data',
    '--block_size=0': 'block_size',
    '--dataset=books': 'prepare.py',
    '--dataset=pydocs:0.7,digits:0.3': 'digits',
    '--dataset=a,a': 'twice',
    '--documents=alone': 'documents',
    '--batch_size=0': 'batch_size',
    '--out_dir=': 'out_dir',
    '--l2r_ratio=1.5': 'l2r_ratio',
    '--l2r_ratio=-0.1': 'l2r_ratio',
    '--order=l2': 'nearest',
    '--order=no.json': 'no.json',
    '--order=short.json': 'from 0 to 15',
    '--order=swaps:-1': 'swaps:-1',
    '--order=block:0': 'at least 1 position',
    '--order=few:0': 'few:0',
    '--order=rows': 'shape',
    '--beta1=1.5': 'beta1',
    '--beta2=1': 'beta2',
    '--ema_decay=1.0': 'ema_decay',
    '--network=encoder': 'l2r_ratio must be 0',
    '--network=encoder --l2r_ratio=0 --order=fixed': "'random'",
    '--network=full': 'decoder',
    '--device=cuda:99': 'device',
    '--dtype=int8': 'dtype',
    '--compile=maybe': 'compile',
    '--optimizer=sgd': 'optimizer',
    '--optimizer=muon:0': 'optimizer',
    '--optimizer=adamw:1': 'optimizer',
    '--gradient_accumulation_steps=0': 'gradient_accumulation_steps',
    '--init_from=resume': 'ckpt.pt',
    '--init_from=none.pt': 'none.pt',
    '--init_from=scratc': 'scratc',
    '--init_from=auto:none.pt': 'none.pt',
    '--init_from=hf:a/b/c.pt': 'hf:a/b/c.pt',
    f'--init_from={REFERENCE}/adaln_small.ckpt.pt': 'tokenizer',
    '--max_iter=3': 'max_iters',
    '--save_memory=shard,hybrid': 'two ways',
    '--save_memory=recompute,shrd': 'save_memory',
    '--keep_best=val_ani': 'val_any, val_l2r',
    '--keep_best=val_l2r --network=encoder --l2r_ratio=0': 'val_any',
    '--keep_best=val_any --order=r2l': 'val_l2r, val_own',
    '--keep_best=val_b_any --dataset=a,c': 'val_a_any, val_a_l2r, val_c_any',
    '--patience=-1': 'patience',
    '--wandb_log=True': 'wandb',
}


@pytest.mark.parametrize('args', BAD)
def test_wrong_input_is_one_line_and_writes_nothing(data, monkeypatch, args):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    with open('short.json', 'w') as f:
        f.write('[2, 0, 1]')
    with pytest.raises(SystemExit) as e, one_line_errors():
        run(*args.split())
    assert BAD[args] in e.value.code
    assert '\n' not in e.value.code
    assert os.path.exists('out') == ('wandb' in args)  # which begins behind the lock


def test_processes_differ_or_cannot_share_in_one_line(data, forked):
    """Folders may differ."""
    tiny('--max_iters=1', '--out_dir=b')
    os.rename('data', 'a')
    prepare('pydocs', 'other text')
    bodies = [lambda: tiny(*TWO, '--out_dir=a', '--data_dir=a')]
    bodies.append(lambda: tiny(*TWO, '--out_dir=b', '--init_from=resume', '--seed=1'))
    names = 'init_from, seed, the iteration to go on from, the data, the weights'
    for p in forked(*bodies):
        assert p.code == 1
        assert f'ValueError: the processes differ in {names} (resume, scratch): ' in p.said
    assert not os.path.exists('a/ckpt.pt')
    config = typed('--gradient_accumulation_steps=6')
    starts.check_options(config, 3)
    with one_line('gradient_accumulation_steps=6 .* 4 processes'):
        starts.check_options(config, 4)


# ---- what a run leaves and says


def tiny(*args):
    run('--n_layer=1', '--block_size=8', *args)


def saved(path='out/ckpt.pt'):
    return load_checkpoint(path)['iter_num']


def test_a_run_leaves_a_log_and_a_checkpoint_and_says_what_came_out(data, capsys):
    """A line of the log is the mean of the updates since the last. 4, 8 and 10 are validated."""
    tiny('--max_iters=10', '--out_dir=all')
    every = log('all')
    assert [entry['iter'] for entry in every] == [*range(1, 11)]
    assert [entry['iter'] for entry in every if 'val_any' in entry] == [4, 8, 10]
    assert [entry['lr'] for entry in every] == [get_lr(it, 1e-2, 1e-3, 2, 10) for it in range(10)]
    assert [entry['tokens'] for entry in every] == [*range(64, 641, 64)]
    assert min(entry['tokens_per_sec'] for entry in every) > 0
    assert {'loss', 'lr', 'grad_norm', 'mfu', 'seconds_left', 'val_l2r'} <= every[-1].keys()
    words = [
        'bound',
        'left to right',
        'unigram',
        'written in random order',
        'written left to right',
    ]
    commands = [f'python {name}.py --ckpt=all/ckpt.pt' for name in ('sample', 'eval_ppl')]
    said = capsys.readouterr().out
    assert [word for word in words + commands if word not in said] == []

    assert sorted(os.listdir('all')) == ['.lock', 'ckpt.pt', 'ckpt_old.pt', 'log.jsonl']
    checkpoint = load_checkpoint('all/ckpt.pt')
    assert (checkpoint['iter_num'], checkpoint['ema_model']['num_updates']) == (10, 10)
    assert (checkpoint['tokenizer'], saved('all/ckpt_old.pt')) == ('bytes', 8)
    config = checkpoint['config']
    assert (config['device'], config['compile'], config['source']) == ('cpu', False, 'pydocs')
    assert config['dtype'] in ('float32', 'bfloat16')
    wanted = AOGPTConfig(8, 320, 1, 2, 16, n_tokens=257, gate_init=1.0)
    assert model_from_checkpoint(checkpoint).config == wanted
    split, _ = open_split('data', 'pydocs', 'train')
    counts = Checkpoint('all/ckpt.pt').counts.tolist()
    assert counts == np.bincount(split.packed, minlength=257).tolist()

    tiny('--max_iters=10', '--log_interval=100', '--ema_decay=0.5')
    assert [entry['iter'] for entry in log()] == [4, 8, 10]
    for entry, first in zip(log(), (0, 4, 8)):
        since = every[first : entry['iter']]
        for name in ('loss', 'grad_norm'):
            mean = sum(other[name] for other in since) / len(since)
            assert entry[name] == pytest.approx(mean, rel=1e-12)
        assert (entry['lr'], entry['tokens']) == (since[-1]['lr'], since[-1]['tokens'])


def test_a_run_on_puzzles_says_how_each_set_is_solved(data, capsys):
    """A set without a split `test` by its validation. There is no sample, and no entropy."""
    rows = {'train': 20, 'val': 20, 'test': 5}
    for seed, name in enumerate(('easy', 'hard')):
        prepare_puzzles('sudoku4', 'data', name, n_rows=rows, seed=seed)
    meta = read_meta('data/easy')
    del meta.splits['test']
    write_meta('data/easy', meta)
    tiny('--block_size=16', '--dataset=easy:1,hard:3', '--max_iters=2', '--l2r_ratio=0')
    said = capsys.readouterr().out
    of_ckpt = '--ckpt=out/ckpt.pt'
    lines = [f'  python -m anyorder.extras.puzzles solve --dataset=easy {of_ckpt} --split=val']
    lines.append(f'  python -m anyorder.extras.puzzles solve --dataset=hard {of_ckpt}')
    lines.append(f'  python eval_ppl.py {of_ckpt} --split=val')
    assert said.splitlines()[-3:] == lines
    assert '75.0% of an update from hard: 320 tokens (sudoku4)' in said
    assert 'read 0.6 times' in said
    tables = said.split('validation of the EMA weights on ')[1:]
    assert [table.split()[0] for table in tables] == ['easy', 'hard']
    assert 'unigram' not in said
    assert 'written' not in said
    last = log()[-1]
    for kind in ('any', 'l2r'):
        parts = [last[f'val_{name}_{kind}'] for name in ('easy', 'hard')]
        assert last[f'val_{kind}'] == pytest.approx(parts[0] / 4 + 3 * parts[1] / 4, rel=1e-12)
        assert parts[0] != parts[1]


def test_a_warm_up_that_outlasts_the_rate_is_said():
    ends = {(9, 0): 0, (8, 0): 1, (9, 3): 1, (9, 20): 0, (0, 0): 0}  # of the run and of the rate
    for (until, rate), n_lines in ends.items():
        said = about_warm_up(Config(max_iters=until, warmup_iters=8, lr_decay_iters=rate))
        assert ''.join(said).count('warmup_iters') == n_lines


def killed():
    raise RuntimeError


def asked(*numbers):
    """Return what asks a run to end, by these signals."""

    def ask():
        for number in numbers:
            os.kill(os.getpid(), number)

    return ask


HUP = signal.SIGHUP
LAWS = [  # the options of a run, before which updates what happens to it
    ('--optimizer=adamw --network=layer,rotary --order=few:3', [(0, asked(signal.SIGINT))]),
    (
        '--optimizer=muon --network=sigma_gpt --order=even.json --l2r_ratio=0.5 --log_interval=3',
        [(1, asked(HUP, HUP))],
    ),
    (
        '--network=encoder,rotary --l2r_ratio=0 --dataset=pydocs:0.7,digits:0.3 --documents=apart',
        [(2, asked(signal.SIGTERM, signal.SIGUSR1))],
    ),
    (
        '--network=two_stream --order=sorted_subset --gradient_accumulation_steps=2 '
        '--keep_best=val_own --patience=9 --eval_interval=2',
        [(1, killed), (3, killed), (5, asked(signal.SIGUSR1)), (6, killed)],
    ),
    ('--network=mixed --l2r_ratio=0 --save_memory=recompute', [(4, asked(signal.SIGTERM))]),
]


@pytest.mark.parametrize('options, stops', LAWS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    data, monkeypatch, capsys, options, stops
):
    """The same command each time. The average loss of a log line too, amid which it stops."""
    prepare('digits', '3.1415926535 8979323846 ')
    with open('even.json', 'w') as f:
        json.dump([0, 2, 4, 6, 1, 3, 5, 7], f)
    command = ['--init_from=auto', '--max_iters=7', '--dropout=0.1', '--eval_interval=100']
    command += options.split()
    tiny(*command, '--out_dir=whole')
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    for iteration, act in stops:
        with monkeypatch.context() as patch, pytest.raises((SystemExit, RuntimeError)) as e:
            patch.setattr(train, 'update', interrupted(iteration, act))
            tiny(*command)
        if act is not killed:
            assert (e.value.code, saved()) == (1, iteration + 1)
    signal.signal(signal.SIGHUP, hangup)
    os.remove('even.json')  # the checkpoint knows
    capsys.readouterr()
    resume()
    assert 'changed since' not in capsys.readouterr().out
    assert_same_runs('whole', 'out')
    assert ('val_l2r' in log()[-1]) == ('--l2r_ratio=0 ' not in f'{options} ')


def prepare(name, text):
    """Prepare a set anew from a text."""
    prepared.DATA_SETS[name] = prepared.DataSet(lambda: [text * 30] * 20, 'bytes', 0.1, '')
    prepared.prepare(name, 'data', force=True)


def test_the_history_of_a_folder(data, monkeypatch, capsys):
    """A run is moved aside, resumed with other options and data, finished, refused, and kept from
    what fails."""

    def said(go, *args):
        capsys.readouterr()
        go(*args)
        return capsys.readouterr().out

    tiny('--max_iters=0', '--init_from=auto')
    assert 'finished' not in said(tiny, '--max_iters=0', '--init_from=auto')
    tiny('--max_iters=3')
    tiny('--max_iters=1')
    before = signal.getsignal(signal.SIGINT)
    assert saved('out/ckpt.pt.old-1') == 0
    assert saved('out/ckpt.pt.old-2') == 3

    # other options and data
    found = said(tiny, '--max_iters=2', '--init_from=resume', '--batch_size=16', '--dropout=0.2')
    change = 'changed since iteration 1: batch_size 8 -> 16, dropout 0.0 -> 0.2, max_iters 1 -> 2\n'
    assert change in found
    assert [entry['tokens'] for entry in log()] == [64, 192]
    prepare('pydocs', 'Other text, other text. ')
    betas = ('--beta1=0.5', '--weight_decay=0.3', '--learning_rate=1e-4', '--min_lr=1e-5')
    found = said(tiny, '--max_iters=3', '--init_from=resume', *betas)
    assert found.splitlines()[2].endswith('weight_decay 0.05 -> 0.3, train and val of pydocs')
    checkpoint = load_checkpoint('out/ckpt.pt')
    matrices, vectors = checkpoint['optimizer'][0]['param_groups']
    assert (matrices['betas'][0], log()[-1]['lr'] < 5e-3) == (0.5, True)
    assert (matrices['weight_decay'], vectors['weight_decay']) == (0.3, 0.0)
    assert checkpoint['model_args']['dropout'] == checkpoint['config']['dropout'] == 0.2

    # finished
    file = os.stat('out/ckpt.pt')
    found = said(tiny, '--max_iters=3', '--init_from=auto')
    assert 'finished: the checkpoint is at iteration 3 of 3' in found
    assert 'bound' in found
    assert 'changed' not in said(resume)

    # refused, and failures
    with pytest.raises(SystemExit), one_line_errors():
        tiny('--max_iters=9', '--init_from=resume', '--n_head=1')
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(train, 'update', interrupted(0, killed))
        tiny('--max_iters=4')
    for interval in (1, 4):
        options = ['--learning_rate=1e30', '--grad_clip=0.0', f'--eval_interval={interval}']
        with one_line('not finite since iteration [4-7].* from iteration 3'):
            tiny('--max_iters=9', '--init_from=resume', *options)
    assert os.stat('out/ckpt.pt').st_ino == file.st_ino
    assert os.stat('out/ckpt.pt').st_mtime_ns == file.st_mtime_ns
    assert signal.getsignal(signal.SIGINT) == before


def test_a_program_with_its_own_update_goes_on_with_itself(data, monkeypatch, capsys):
    """What is printed names it, and a resume by train.py says that this is another one, once."""
    own = SimpleNamespace(__file__=os.path.abspath('own.py'), __spec__=None)
    monkeypatch.setitem(sys.modules, '__main__', own)
    for iteration, words in ((1, ''), (3, '--init_from=resume'), (5, '--init_from=auto')):
        stop = interrupted(iteration, asked(signal.SIGINT))
        with pytest.raises(SystemExit):
            train.train(typed(*TOY, '--max_iters=9', *words.split()), stop)
        said = capsys.readouterr()
        assert 'with: python own.py --init_from=resume' in said.err
        found = [line for line in said.out.splitlines() if 'changed' in line]
        if iteration < 5:
            assert found == []
        else:
            assert found[0].endswith(f'the program train.py -> {os.getcwd()}/own.py')
        if iteration == 3:
            resume('--max_iters=5')
            assert f'the program {os.getcwd()}/own.py -> train.py\n' in capsys.readouterr().out
            resume('--max_iters=5')
            assert 'the program' not in capsys.readouterr().out


def test_the_average_of_another_run_starts_a_run_that_knows_it(data):
    """A run that is given again needs the file no more."""
    tiny('--max_iters=3', '--out_dir=first')
    average = digest(model_from_checkpoint('first/ckpt.pt', 'ema'))
    for init_from in ('first/ckpt.pt', 'auto:first/ckpt.pt'):
        tiny(f'--init_from={init_from}', '--max_iters=0', f'--out_dir={init_from[:4]}')
        assert digest(model_from_checkpoint(f'{init_from[:4]}/ckpt.pt', 'raw')) == average
    os.remove('first/ckpt.pt')
    tiny('--init_from=auto:first/ckpt.pt', '--max_iters=2', '--out_dir=auto')
    config = load_checkpoint('auto/ckpt.pt')['config']
    assert (config['started_from'], config['init_from']) == ([{'name': 'ckpt.pt'}], 'resume')
    assert log('auto')[0]['environment']['started_from'] == config['started_from']
    assert [entry['iter'] for entry in log('auto')] == [1, 2]


def test_a_run_keeps_the_number_of_its_order(data, monkeypatch, capsys):
    """A family of this test has no option order_NAME."""

    def stride(u, n, step):
        return torch.arange(n).view(-1, step).T.reshape(1, n)

    monkeypatch.setitem(ORDERS, 'stride', Family(stride, parameter=2, n_numbers=lambda n, _: 0))
    tiny('--order=stride:4', '--l2r_ratio=0', '--max_iters=2')
    resume('--max_iters=3')
    assert capsys.readouterr().out.count('own order (stride:4)') == 2
    assert load_checkpoint('out/ckpt.pt')['config']['order'] == 'stride:4'


# ---- the best of a run, and its end without a better one


BEST = ['--eval_interval=1', '--keep_best=val_any', '--lr_decay_iters=10']


@pytest.fixture
def scripted(data, monkeypatch):
    """scripted(3, 1, 2): validation n of a run, at iteration n, has this loss; of val_l2r its
    negative. Updates and samples take no time."""
    losses = []
    done = [0]

    def count(state, *_):
        state.count(torch.tensor(2.0), torch.tensor(1.0), [])
        done[0] = state.iter_num

    def validate(model, blocks, *_):
        nats = torch.full((len(blocks),), 8.0 * losses[max(0, done[0] - 1)], dtype=torch.float64)
        return {'any': nats, 'l2r': -nats}

    def script(*values):
        losses[:] = values

    monkeypatch.setattr(train, 'update', count)
    monkeypatch.setattr('anyorder.training.report.samples', lambda *_: [])
    monkeypatch.setattr('anyorder.training.data.validate', validate)
    return script


def best(out_dir='out'):
    return saved(f'{out_dir}/ckpt_best.pt')


def test_the_history_of_the_best(scripted, capsys):
    """The first of equals. A run ends without a better one, says so again, and goes on."""
    scripted(3, 2, 2, 2.5, 1, 2, 3, 0.5, 4, 5)
    tiny(*BEST, '--max_iters=5')
    assert [entry['val_any'] for entry in log()] == [3, 2, 2, 2.5, 1]
    assert [entry['best'] for entry in log()] == [3, 2, 2, 2, 1]
    assert [entry['best_iter'] for entry in log()] == [1, 2, 2, 2, 5]
    said = capsys.readouterr().out
    assert 'best so far: val_any 1.0000 at iteration 5, in out/ckpt_best.pt' in said
    assert 'eval_ppl.py --ckpt=out/ckpt_best.pt' in said
    assert best() == 5
    resume('--patience=2', '--max_iters=10')
    for _ in range(2):
        assert (saved(), best()) == (7, 5)
        said = capsys.readouterr().out
        assert 'finished: 2 validations in a row were not below val_any 1.0' in said
        before = os.stat('out/ckpt.pt')
        resume('--max_iters=20')
        assert os.stat('out/ckpt.pt') == before
    resume('--patience=4', '--max_iters=10')
    tiny(*BEST, '--patience=4', '--max_iters=10', '--out_dir=whole')
    assert_same_runs('whole', 'out')
    assert best() == 8

    # it starts a run, and is resumed, also where its folder has moved
    tiny('--init_from=out/ckpt_best.pt', '--max_iters=0', '--out_dir=next')
    weights = digest(model_from_checkpoint('out/ckpt_best.pt'))
    assert digest(model_from_checkpoint('next/ckpt.pt', 'raw')) == weights
    os.mkdir('moved')
    shutil.copy('out/ckpt_best.pt', 'moved/ckpt.pt')
    resume('--out_dir=moved')
    assert (saved('moved/ckpt.pt'), best('moved')) == (10, 8)


# the options of two updates, those of two more, and the best in the end
MEASURED = [
    ('', '', None),
    ('', '--keep_best=val_any --patience=9', 3),
    ('--keep_best=val_any', '', 1),
    ('--keep_best=val_any', '--keep_best=val_l2r', 4),
    ('--keep_best=val_any', '--eval_iters=1', 3),
    ('--keep_best=val_any', '--documents=apart', 3),
    ('--keep_best=val_any', '--dataset=other', 3),
    ('--patience=2', '', 1),
]


@pytest.mark.parametrize('first, then, found', MEASURED)
def test_the_best_begins_anew_where_a_resume_measures_another_thing(scripted, first, then, found):
    """Patience alone keeps no checkpoint; without the options there is no best."""
    prepare('other', 'some other text')
    scripted(1, 2, 3, 4)
    tiny('--eval_interval=1', '--max_iters=2', *first.split())
    resume('--max_iters=4', *then.split())
    entry = load_checkpoint('out/ckpt.pt')['best']
    assert entry['iter_num'] == log()[-1].get('best_iter') == found
    assert ('best' in log()[-1]) == (found is not None)
    is_over = first == '--patience=2'
    assert len(log()) == (3 if is_over else 4)
    assert (entry['loss'], entry['n_waited']) == ('val_any', 2) or not is_over
    is_kept = found is not None and not is_over
    assert os.path.exists('out/ckpt_best.pt') == is_kept
    if is_kept:
        assert best() == found


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_a_validation_that_is_not_finite_ends_the_run_before_it_saves(scripted, value):
    scripted(3, value)
    with one_line('val_any is (nan|inf) at iteration 2: not finite.*go on from iteration 1'):
        tiny(*BEST, '--max_iters=2', '--patience=1')
    assert (len(log()), saved()) == (1, 1)


# ---- the files of a run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """folder(2, 4) opens the folder `out` of a new run, which logs and saves at these iterations;
    folder(resumed=4) that of a resumed one."""
    monkeypatch.chdir(tmp_path)

    def opened(*iterations, **how):
        found = RunFolder('out', **how)
        found.open()
        for it in iterations:
            found.log({'iter': it})
            save(found, it)
        return found

    return opened


def save(folder, it):
    folder.save(MODEL, AVERAGE, iter_num=it, **RESUMED)


def files():
    return sorted(set(os.listdir('out')) - {'.lock'})


def test_what_is_no_run_is_not_gone_on_with(folder):
    folder(2, 4)
    assert open_newest('out').iter_num == 4
    for name in ('config', 'optimizer', 'best'):
        write_run('out/ckpt.pt', **{name: None})
        with one_line('no run .* --init_from=out/ckpt.pt'):
            open_newest('out')
    for act in (lambda: open('out/ckpt.pt', 'w').close(), lambda: os.remove('out/ckpt.pt')):
        act()
        with one_line('; cp out/ckpt_old.pt out/ckpt.pt, then'):
            open_newest('out')


def test_the_first_process_alone_writes_and_no_other_run_beside_it(folder, forked, monkeypatch):
    """A lock is a process's own. The way on is a command for a shell."""
    run = folder(2)
    (finished,) = forked(lambda: folder(resumed=2))
    assert 'another process trains in out' in finished.said
    assert (finished.code, run.saved) == (1, 2)
    shutil.rmtree('out')
    monkeypatch.setattr(run_folder, 'processes', lambda: (1, 2))
    other = RunFolder('out')
    other.open()
    other.log({'iter': 1})
    assert other.way_on() == 'start again, nothing was saved yet'
    save(other, 3)
    assert not os.path.exists('out')
    command = f'torchrun ... {ROOT}/train.py --init_from=resume --out_dir='
    assert other.way_on() == f'go on from iteration 3 with: {command}out'
    assert RunFolder('my runs', resumed=7).way_on().endswith(f"7 with: {command}'my runs'")


class Failing(io.BytesIO):
    """A file that takes nothing."""

    error = None

    def write(self, data):
        raise self.error


@pytest.mark.parametrize(
    'error, why',
    [(None, 'File too large'), (KeyboardInterrupt(), 'interrupted'), (RuntimeError('x'), 'x')],
)
def test_a_save_that_fails_says_so_and_leaves_both_checkpoints(
    folder, forked, monkeypatch, error, why
):
    """The kernel refuses what is longer, as it would on a full disk."""
    run = folder(2, 4)
    size = os.path.getsize('out/ckpt.pt') // 2
    write = torch.save
    Failing.error = error

    def fails():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        if error:
            monkeypatch.setattr(torch, 'save', lambda entries, _: write(entries, Failing()))
        save(run, 8)

    (finished,) = forked(fails)
    line = finished.said.strip().splitlines()[-1]
    assert finished.code == 1
    assert (
        f'ckpt.pt of iteration 8 could not be written ({why}): go on from iteration 4 with' in line
    )
    assert (saved(), saved('out/ckpt_old.pt')) == (4, 4)
    assert files() == ['ckpt.pt', 'ckpt_old.pt', 'log.jsonl']
    with one_line('/proc/none could not be written'):
        RunFolder('/proc/none').open()


class KilledError(BaseException):
    """No code but a test's catches it."""


def no_links(*_):
    raise OSError('not permitted')


@pytest.mark.parametrize('k', range(11))
@pytest.mark.parametrize('link', [os.link, no_links])
def test_a_kill_between_two_files_changes_neither(folder, monkeypatch, k, link):
    """Before call k of those that write. Who goes on tidies up, cuts the log, and leaves what an
    undisturbed run does: the newest, the one before and the best."""
    monkeypatch.setattr(os, 'link', link)
    calls = itertools.count()

    def dying(act):
        def call(*args):
            if next(calls) == k:
                raise KilledError
            act(*args)

        return call

    def go_on(resumed, best, commit):
        run = folder(resumed=resumed, best=best, environment={'commit': commit})
        for it in range((resumed or 0) + 1, 6):
            run.log({'iter': it} | run.compare(it, {'val_any': abs(it - 2)}))
            save(run, it)
        save(run, 5)  # the same iteration again, as after a stop

    with monkeypatch.context() as patch, contextlib.suppress(KilledError):
        for name in ('name_too', 'write_checkpoint'):
            patch.setattr(run_folder, name, dying(getattr(run_folder, name)))
        go_on(None, Best('val_any', keeps=True), 'a')
    if not os.path.exists('out/ckpt.pt'):
        return
    for name in ('ckpt.pt.12.tmp', 'other.json.12.tmp', 'notes.txt'):
        open(f'out/{name}', 'w').close()
    with open('out/log.jsonl', 'a') as f:
        f.write('3\n{"iter": 5, "lo')
    kept = load_checkpoint('out/ckpt.pt')
    go_on(kept['iter_num'], Best(**kept['best']), 'b')
    names = ['ckpt.pt', 'ckpt_best.pt', 'ckpt_old.pt']
    assert [saved(f'out/{name}') for name in names] == [5, 2, 4]
    assert files() == [*names, 'log.jsonl', 'notes.txt', 'other.json.12.tmp']
    assert [entry['iter'] for entry in log()] == [1, 2, 3, 4, 5]
    said = {entry['iter']: entry['environment'] for entry in log() if 'environment' in entry}
    assert said == {1: {'commit': 'a'}, kept['iter_num'] + 1: {'commit': 'b'}}


# ---- wandb


class Wandb:
    """In place of the package: the rows of each run. A step is above the last one of its run."""

    def __init__(self):
        self.rows = {}
        self.begun = []

    def init(self, id, **how):
        self.begun.append(how)
        self.shown = self.rows.setdefault(id, [])

    def Table(self, columns, texts):
        return [columns, texts]

    def log(self, entry, step):
        if not self.shown or step > self.shown[-1]['iter']:
            self.shown.append(entry)

    def finish(self):
        pass


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    return wandb


WRITTEN = ['in random order', 'left to right']


def test_a_chart_shows_the_log_and_a_resume_goes_on_in_it(data, wandb, monkeypatch):
    def charted(n, init_from='auto'):
        how = ['--wandb_log=True', '--wandb_project=p', '--eval_interval=2']
        tiny(*how, f'--max_iters={n}', f'--init_from={init_from}')

    for n in (2, 4):
        charted(n)
    (rows,) = wandb.rows.values()
    for row, entry in zip(rows, log(), strict=True):
        assert ('samples' in row) == ('val_any' in row)
        assert row.keys() - {'samples'} == entry.keys() - {'environment'}
        assert row['loss'] == entry['loss']
    columns, texts = rows[-1]['samples']
    assert [columns, *(order for order, _ in texts)] == [['order', 'text'], *WRITTEN]
    begun = wandb.begun[0]
    assert begun['config']['environment'] == log()[0]['environment']
    assert (begun['project'], begun['name']) == ('p', 'out')

    # another id, and a new run
    monkeypatch.setenv('WANDB_RUN_ID', 'b')
    charted(5)
    monkeypatch.delenv('WANDB_RUN_ID')
    charted(6)
    assert [row['iter'] for row in wandb.rows['b']] == [5, 6]
    charted(3, 'scratch')
    assert [*map(len, wandb.rows.values())] == [4, 2, 3]
    assert os.path.exists('out/wandb.txt.old-1')


ASKED = Config(wandb_log=True, wandb_project='', wandb_run_name='', out_dir='out')
ERRORS = [RuntimeError('no network\nat all'), KeyError(), SystemExit(1), asyncio.CancelledError()]


def failing(error):
    def fail(*args, **how):
        raise error

    return fail


@pytest.mark.parametrize('call', ['log', 'Table', 'finish'])
@pytest.mark.parametrize('error', [*ERRORS, KeyboardInterrupt()])
def test_a_wandb_that_fails_is_switched_off_and_ctrl_c_ends(
    folder, wandb, monkeypatch, capsys, call, error
):
    chart = start_chart(folder(), ASKED)
    monkeypatch.setattr(wandb, call, failing(error))
    with pytest.raises(KeyboardInterrupt) if error not in ERRORS else nullcontext():
        for it in (2, 4):
            chart.send({'iter': it}, [['left to right', 'a text']])
        chart.finish()
        said = capsys.readouterr().out
        assert (said.count('switched off'), said.count('\n')) == (1, 1)


@pytest.mark.parametrize('package', [None, SimpleNamespace(init=failing(OSError('no login\nx')))])
def test_a_wandb_that_does_not_begin_is_one_line(folder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, 'wandb', package)
    with one_line('^wandb: .*WANDB_MODE=offline'):
        start_chart(folder(), ASKED)
    monkeypatch.setattr('anyorder.training.chart.processes', lambda: (1, 2))
    assert not start_chart(folder(), ASKED).wanted
