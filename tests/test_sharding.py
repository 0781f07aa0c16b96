"""A run that computes blocks twice, or splits its state over processes, is the run that does not, and holds less."""

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
from anyorder.training.sharding import recompute, shard
from anyorder.training.start import make_run_model
from anyorder.training.update import TrainState, make_optimizers, update, validate
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


def learner(name, dropout=0.0):
    return lean(make_model(dropout=dropout, **NETWORKS[name]).requires_grad_(True).train())


def state_of(model, optimizer='adamw', split=False):
    average = EMA(model, 0.9)
    if split:
        shard(model, torch.device('cpu'))
        shard(average.model, torch.device('cpu'))
    state = TrainState(
        model, make_optimizers(model, optimizer, 1e-2, 0.03, 0.1, (0.9, 0.95)), average
    )
    state.run_model = make_run_model(model, False, torch.device('cpu'))
    return state


def entries_after(state, n_updates=2):
    """The checkpoint of a run after some updates, and what validation says of it."""
    for _ in range(n_updates):
        update(state, Split(TOKENS), 1e-2, OPTIONS)
    val = validate(state.ema.model, BLOCKS, torch.zeros_like(BLOCKS, dtype=torch.bool), OPTIONS)
    return entries_of(state.model, state.ema, **state.entries()), val


def assert_close(got, want, **tolerance):
    """Of two trees of tensors the same are close."""
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
    """(losses, gradients) of one forward and backward pass."""
    g = torch.Generator().manual_seed(0)
    idx, order = torch.randint(11, (5, 9), generator=g), sample_order(5, 9, generator=g)
    torch.manual_seed(1)  # for dropout
    nll = model(idx, order, *([torch.tensor([0, 3, 8, 5, 1])] if model.slots.masked_loss else []))
    nll.mean().backward()
    return {'nll': nll.detach(), **{name: p.grad for name, p in model.named_parameters()}}


@pytest.mark.parametrize('dropout', [0.0, 0.3])
@pytest.mark.parametrize('name', NETWORKS)
def test_recomputed_blocks_give_the_same_losses_and_gradients_bit_for_bit(name, dropout):
    plain, model = (learner(name, dropout) for _ in range(2))
    want, got = step(plain), step(recompute(model))
    assert [name for name in want if not torch.equal(got[name], want[name])] == []
    assert list(model.state_dict()) == list(plain.state_dict())
    if dropout:
        assert not torch.equal(step(learner(name))['nll'], want['nll'])


@pytest.mark.parametrize('name', ['decoder', 'layer'])
def test_of_a_recomputed_block_its_input_alone_is_kept(name):
    def kept(model):
        """Bytes that wait for the backward pass."""
        storages = {}

        def pack(x):
            storages[x.untyped_storage().data_ptr()] = x, x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            model(torch.zeros(4, 9, dtype=torch.long), torch.arange(9).expand(4, 9))
        return sum(n for _, n in storages.values())

    shallow, deep = ({'n_layer': n, **NETWORKS[name]} for n in (2, 5))

    def of_three_blocks(change):
        return kept(change(learner_of(deep))) - kept(change(learner_of(shallow)))

    def learner_of(config):
        return lean(make_model(**config).requires_grad_(True).train())

    assert (
        of_three_blocks(recompute) == 3 * 4 * 9 * 16 * 8 < of_three_blocks(lambda model: model) / 10
    )  # (B, S, C)


@pytest.mark.parametrize(
    'names',
    [
        ['decoder', 'two-stream'],
        pytest.param(
            [name for name in NETWORKS if name not in ('decoder', 'two-stream')],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_split_run_is_the_whole_run(forked, names):
    """In float64: AdamW, and Muon, which multiplies the whole matrices in bfloat16."""
    runs = [(name, ('muon', 'adamw')[i % 2]) for i, name in enumerate(names)]
    want = [entries_after(state_of(learner(name, 0.1), optimizer)) for name, optimizer in runs]

    def both():
        start_processes()
        for (name, optimizer), (of_one, val) in zip(runs, want):
            state = state_of(recompute(learner(name, 0.1)), optimizer, split=True)
            assert is_split(state.model.lm_head.weight) and is_split(state.ema.model.lm_head.weight)
            entries, of_two = entries_after(state)
            assert_close(of_two, val, rtol=0, atol=1e-9)
            if dist.get_rank() == 0:
                of_one['totals'] = entries['totals'] = torch.zeros(3)  # each has its own losses
                assert_close(entries, of_one, rtol=0, atol=1e-9)
            held = [
                x
                for o in state.optimizers
                for of_one in o.state.values()
                for x in of_one.values()
                if x.dim()
            ]
            for split in (list(state.model.parameters()), list(state.ema.model.parameters()), held):
                assert sum(x.to_local().numel() for x in split) < 0.6 * sum(
                    x.numel() for x in split
                )

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
        assert counter.get_total_counts() == len(state.optimizers[1].param_groups[0]['params']) == 8

    assert [p.code for p in forked(both, both)] == [0, 0]


def test_processes_that_share_blocks_unevenly_validate_together(forked):
    """Three blocks and two, in batches of two: passes of a split model are the same number in all processes."""
    options, given = Config(OPTIONS | {'batch_size': 2}), torch.zeros_like(BLOCKS, dtype=torch.bool)
    want = validate(learner('encoder').eval(), BLOCKS, given, options)

    def both():
        start_processes(timedelta(seconds=20))
        got = validate(state_of(learner('encoder'), split=True).ema.model, BLOCKS, given, options)
        assert_close(got, want, rtol=0, atol=1e-9)

    for p in forked(both, both):
        assert p.code == 0, p.said


@pytest.mark.slow
def test_a_resumed_run_may_be_split_or_whole(data, forked):
    """One process, two that split the state, and one again; the last checkpoint reads as any other."""
    options = [*TWO, '--optimizer=adamw', '--dropout=0.1', '--lr_decay_iters=9']
    run('--max_iters=9', *options, '--out_dir=one')
    run('--max_iters=3', *options)
    for p in forked(*2 * [lambda: resume('--max_iters=6', '--shard=True', '--recompute=True')]):
        assert p.code == 0, p.said
    assert load_checkpoint('out/ckpt.pt')['config']['shard'] is True
    resume('--max_iters=9')  # a lone process has nobody to share with
    assert_alike('one', 'out', but=(3, 6))
    one, out = (load_checkpoint(f'{name}/ckpt.pt') for name in ('one', 'out'))
    for name in ('model', 'optimizer', 'ema_model', 'n_seen', 'logged'):
        assert_close(out[name], one[name], rtol=0, atol=1e-5)


def test_an_update_keeps_no_rounded_weights_for_a_second_use():
    """With recomputed blocks the copies of all matrices would wait for the end of the forward pass."""
    state, seen = state_of(recompute(learner('decoder').float())), []
    state.model.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_cache_enabled()))
    update(state, Split(TOKENS), 1e-2, Config(OPTIONS | {'dtype': 'bfloat16'}))
    assert seen == [False, False]
