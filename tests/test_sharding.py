"""A run that recomputes blocks, or splits its state, is the run that does not, and holds less."""

import itertools
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import make_model
from toy_runs import TWO, assert_alike, resume, run

from anyorder.checkpoint import entries_of, load_checkpoint
from anyorder.fast import lean
from anyorder.machine.processes import is_split, start_processes
from anyorder.orders import sample_order
from anyorder.tokens.sets import Split
from anyorder.training import start
from anyorder.training.sharding import recompute, shard
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


def state_of(model, optimizer='adamw', split=False):
    average = EMA(model, 0.9)
    if split:
        shard(model, CPU)
        shard(average.model, CPU)
    optimizers = make_optimizers(model, optimizer, 1e-2, 0.03, 0.1, (0.9, 0.95))
    state = TrainState(model, optimizers, average)
    state.run_model = make_run_model(model, False, CPU)
    return state


def entries_after(state, n_updates=2):
    """Return the checkpoint of a run after some updates, and what validation says of it."""
    for _ in range(n_updates):
        update(state, Split(TOKENS), 1e-2, OPTIONS)
    val = validate(state.ema.model, BLOCKS, NOTHING, OPTIONS)
    return entries_of(state.model, state.ema, **start.entries_to_resume(state)), val


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
            state = state_of(recompute(learner(name, dropout=0.1)), optimizer, split=True)
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


def test_muon_gathers_a_matrix_once(forked):
    def both():
        from torch.distributed.tensor.debug import CommDebugMode

        start_processes()
        state = state_of(learner('decoder'), 'muon', split=True)
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
        start_processes(timedelta(seconds=20))
        state = state_of(learner('encoder'), split=True)
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
