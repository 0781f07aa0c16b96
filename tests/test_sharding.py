"""A run that recomputes blocks, or splits its state, is the run that does not, and holds less."""

import itertools
import os
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import HANGS, make_model, one_line
from toy_runs import TWO, assert_alike, resume, run

from anyorder.checkpoint import entries_of, load_checkpoint
from anyorder.fast import lean
from anyorder.machine.processes import is_split, place_in_node, start_processes
from anyorder.orders import sample_order
from anyorder.tokens.sets import Split
from anyorder.training import start
from anyorder.training.sharding import check_nodes, check_savings, mesh_of, recompute, shard
from anyorder.training.start import make_run_model
from anyorder.training.update import TrainState, make_optimizers, update
from anyorder.training.validation import validate
from configurator import Config
from model import EMA

NETWORKS = {
    'decoder': {},
    'sigma-gpt': {'gpt2_blocks': True, 'target_position': 'input'},
    'layer': {'target_position': 'layer', 'rotary': True},
    'shared': {'target_position': 'layer_shared', 'bias': False},
    'two-stream': {'target_position': 'two_stream'},
    'encoder': {'attention': 'bidirectional'},
    'mixed': {'attention': 'mixed', 'rotary': True},
}
TOKENS = np.random.default_rng(0).integers(11, size=200).astype('<u2')
BLOCKS = torch.from_numpy(TOKENS[:45].astype(np.int64)).view(5, 9)
NOTHING = torch.zeros(5, 9, dtype=torch.bool)  # is given
CPU = torch.device('cpu')
OPTIONS = Config(
    seed=5,
    batch_size=3,
    gradient_accumulation_steps=2,
    block_size=9,
    l2r_ratio=0.0,
    grad_clip=0.5,
    dtype='float32',
    order='random',
)


def learner(name, **more):
    model = make_model(**NETWORKS[name], **more)
    return lean(model.requires_grad_(True).train())


def state_of(model, optimizer='adamw', save_memory=''):
    average = EMA(model, 0.9)
    if save_memory:
        mesh = mesh_of(Config(save_memory=save_memory), CPU)
        shard(model, mesh)
        shard(average.model, mesh)
    optimizers = make_optimizers(model, optimizer, 1e-2, 0.03, 0.1, (0.9, 0.95))
    state = TrainState(model, optimizers, average)
    state.run_model = make_run_model(model, False, CPU)
    return state


def entries_after(state, n_updates=2, options=OPTIONS):
    """Return the checkpoint of a run after some updates, whole in the first process, and what
    validation says of it."""
    for _ in range(n_updates):
        update(state, Split(TOKENS), 1e-2, options)
    val = validate(state.ema.model, BLOCKS, NOTHING, options)
    entries = entries_of(state.model, state.ema, **start.entries_to_resume(state))
    return entries, val


def assert_close(got, want, **tolerance):
    """Two trees have the same names and values, and tensors that are close."""
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_close(got[key], want[key], **tolerance)
    elif isinstance(want, list | tuple):
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, **tolerance)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, **tolerance)
    else:
        assert got == want


def step(model):
    """Return the losses and gradients of one forward and backward pass, by name."""
    g = torch.Generator().manual_seed(0)
    idx = torch.randint(11, (5, 9), generator=g)
    order = sample_order(5, 9, generator=g)
    n_known = None
    if model.slots.masked_loss:
        n_known = torch.tensor([0, 3, 8, 5, 1])
    torch.manual_seed(1)  # for dropout
    nll = model(idx, order, n_known)
    nll.mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return grads | {'nll': nll.detach()}


@pytest.mark.parametrize('dropout', [0.0, 0.3])
@pytest.mark.parametrize('name', NETWORKS)
def test_recomputed_blocks_give_the_same_losses_and_gradients_bit_for_bit(name, dropout):
    plain = learner(name, dropout=dropout)
    model = recompute(learner(name, dropout=dropout))
    want = step(plain)
    got = step(model)
    for key in want:
        assert torch.equal(got[key], want[key]), key
    assert list(model.state_dict()) == list(plain.state_dict())
    if dropout:
        assert not torch.equal(step(learner(name))['nll'], want['nll'])


def kept(model):
    """Return the bytes that wait for the backward pass."""
    storages = {}

    def pack(x):
        storage = x.untyped_storage()
        storages[storage.data_ptr()] = (x, storage.nbytes())
        return x

    idx = torch.zeros(4, 9, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(idx, torch.arange(9).expand(4, 9))
    return sum(n for _, n in storages.values())


@pytest.mark.parametrize('name', ['decoder', 'layer'])
def test_of_a_recomputed_block_its_input_alone_is_kept(name):
    """It has B S C = 4 x 9 x 16 numbers of 8 bytes."""
    whole = kept(learner(name, n_layer=5)) - kept(learner(name, n_layer=2))
    twice = kept(recompute(learner(name, n_layer=5))) - kept(recompute(learner(name, n_layer=2)))
    assert twice == 3 * 4 * 9 * 16 * 8
    assert twice < whole / 10


def held(tensors):
    """Return the share of these split tensors that this process has."""
    whole = sum(x.numel() for x in tensors)
    return sum(x.to_local().numel() for x in tensors) / whole


def moments(optimizers):
    found = []
    for o in optimizers:
        for of_weight in o.state.values():
            found += [x for x in of_weight.values() if x.dim()]
    return found


FIRST = ['decoder', 'two-stream']
OTHERS = [name for name in NETWORKS if name not in FIRST]


@pytest.mark.slow
@pytest.mark.parametrize('names', [FIRST, pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_a_split_run_is_the_whole_run(forked, names):
    """In float64: AdamW, and Muon, which multiplies the whole matrices in bfloat16."""
    runs = list(zip(names, itertools.cycle(('muon', 'adamw'))))
    want = []
    for name, optimizer in runs:
        want.append(entries_after(state_of(learner(name, dropout=0.1), optimizer)))

    def both():
        start_processes()
        for (name, optimizer), (of_one, val) in zip(runs, want):
            state = state_of(recompute(learner(name, dropout=0.1)), optimizer, 'shard')
            assert is_split(state.model.lm_head.weight)
            assert is_split(state.ema.model.lm_head.weight)
            entries, of_two = entries_after(state)
            assert_close(of_two, val, rtol=0, atol=1e-9)
            if dist.get_rank() == 0:
                nothing = {'totals': torch.zeros(3)}  # each has its own losses
                assert_close(entries | nothing, of_one | nothing, rtol=0, atol=1e-9)
            assert held([*state.model.parameters()]) < 0.6
            assert held([*state.ema.model.parameters()]) < 0.6
            assert held(moments(state.optimizers)) < 0.6

    for p in forked(both, both):
        assert p.code == 0, p.said


@pytest.fixture
def of_nodes(forked):
    """of_nodes(body, 2, 2) calls the body in the processes of two nodes, each of two."""

    def run(body, *sizes):
        bodies = []
        for size in sizes:
            bodies += [partial(in_node, body, local, size) for local in range(size)]
        return forked(*bodies)

    return run


def in_node(body, local_rank, size):
    os.environ |= {'LOCAL_RANK': str(local_rank), 'LOCAL_WORLD_SIZE': str(size)}
    start_processes()
    body()


@pytest.mark.slow
def test_nodes_that_each_split_a_copy_are_one_process(of_nodes):
    """In float64, ten updates of eight micro-batches: a process of four has two."""
    options = Config(OPTIONS | {'gradient_accumulation_steps': 8})
    model = learner('decoder', dropout=0.1)
    of_one, want = entries_after(state_of(model, 'muon'), 10, options)

    def body():
        state = state_of(learner('decoder', dropout=0.1), 'muon', 'hybrid')
        entries, val = entries_after(state, 10, options)
        assert_close(val, want, rtol=0, atol=1e-9)
        if dist.get_rank() == 0:
            nothing = {'totals': torch.zeros(3)}
            assert_close(entries | nothing, of_one | nothing, rtol=0, atol=1e-9)
        assert 0.4 < held([*state.model.parameters()]) < 0.6
        assert 0.4 < held(moments(state.optimizers)) < 0.6

    for p in of_nodes(body, 2, 2):
        assert p.code == 0, p.said


@pytest.mark.slow
def test_nodes_exchange_gradients_once_an_update(of_nodes, monkeypatch):
    calls = []
    all_reduce = dist.all_reduce

    def counted(*args, **how):
        calls.append(args)
        return all_reduce(*args, **how)

    def body():
        state = state_of(learner('decoder'), save_memory='hybrid')
        monkeypatch.setattr(dist, 'all_reduce', counted)
        counts = []
        for n in (2, 6):  # micro-batches of an update, of each process one and three
            calls.clear()
            update(state, Split(TOKENS), 1e-2, Config(OPTIONS | {'gradient_accumulation_steps': n}))
            counts.append(len(calls))
        assert counts[0] == counts[1] >= 3  # of two blocks and what is outside

    for p in of_nodes(body, 1, 1):
        assert p.code == 0, p.said


@pytest.mark.parametrize(
    'places, is_right',
    [
        ([(0, 2), (1, 2), (0, 2), (1, 2)], True),
        ([(0, 4), (1, 4), (2, 4), (3, 4)], True),
        ([(0, 3), (1, 3), (2, 3), (0, 1)], False),
        ([(0, 2), (0, 2), (1, 2), (1, 2)], False),  # numbered across the nodes
        ([(0, None), (1, None), (2, None), (3, None)], False),
        ([(0, 0), (0, 0), (0, 0), (0, 0)], False),
    ],
)
def test_nodes_must_be_of_one_size(monkeypatch, places, is_right):
    monkeypatch.setattr('anyorder.training.sharding.processes', lambda: (0, 4))
    monkeypatch.setattr('anyorder.training.sharding.gather', lambda own: places)
    with nullcontext() if is_right else one_line('save_memory=hybrid '):
        check_nodes()


@pytest.mark.parametrize('words', ['shard,hybrid', 'hybrid:2', 'recompute,shrd'])
def test_a_run_splits_in_one_way(words):
    with one_line('save_memory'):
        check_savings(Config(save_memory=words))
    check_savings(Config(save_memory='hybrid,recompute'))


def test_a_process_knows_its_place_in_its_node(monkeypatch):
    monkeypatch.setenv('LOCAL_RANK', '1')
    monkeypatch.delenv('LOCAL_WORLD_SIZE', raising=False)
    assert place_in_node() == (1, None)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '8')
    assert place_in_node() == (1, 8)


def test_muon_gathers_a_matrix_once(forked):
    def both():
        from torch.distributed.tensor.debug import CommDebugMode

        start_processes()
        state = state_of(learner('decoder'), 'muon', 'shard')
        state.model(BLOCKS, torch.arange(9).expand(5, 9)).mean().backward()
        with CommDebugMode() as counter:
            state.optimizers[1].step()
        (group,) = state.optimizers[1].param_groups
        assert len(group['params']) == 8
        assert counter.get_total_counts() == 8

    for p in forked(both, both):
        assert p.code == 0, p.said


def test_processes_that_share_blocks_unevenly_validate_together(forked):
    """Three blocks and two, in batches of two: a split model has as many passes everywhere."""
    options = Config(OPTIONS | {'batch_size': 2})
    want = validate(learner('encoder').eval(), BLOCKS, NOTHING, options)

    def both():
        start_processes(timedelta(seconds=HANGS / 2))
        state = state_of(learner('encoder'), save_memory='shard')
        got = validate(state.ema.model, BLOCKS, NOTHING, options)
        assert_close(got, want, rtol=0, atol=1e-9)

    for p in forked(both, both):
        assert p.code == 0, p.said


@pytest.mark.slow
def test_a_resumed_run_may_be_split_or_whole(data, forked):
    """One process, two that split the state, and one again; its checkpoint reads as any other."""
    options = [*TWO, '--optimizer=adamw', '--dropout=0.1', '--lr_decay_iters=9']
    run('--max_iters=9', *options, '--out_dir=one')
    run('--max_iters=3', *options)

    def split():
        resume('--max_iters=6', '--save_memory=shard,recompute')

    for p in forked(split, split):
        assert p.code == 0, p.said
    assert load_checkpoint('out/ckpt.pt')['config']['save_memory'] == 'shard,recompute'
    resume('--max_iters=9')  # a lone process has nobody to share with
    assert_alike('one', 'out', but=(3, 6))
    one = load_checkpoint('one/ckpt.pt')
    out = load_checkpoint('out/ckpt.pt')
    for name in ('model', 'optimizer', 'ema_model', 'n_seen', 'logged'):
        assert_close(out[name], one[name], rtol=0, atol=1e-5)


def test_an_update_keeps_no_rounded_weights_for_a_second_use():
    """With recomputed blocks copies of all matrices would wait for the end of the forward pass."""
    state = state_of(recompute(learner('decoder').float()))
    seen = []
    state.model.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_cache_enabled()))
    update(state, Split(TOKENS), 1e-2, Config(OPTIONS | {'dtype': 'bfloat16'}))
    assert seen == [False, False]
