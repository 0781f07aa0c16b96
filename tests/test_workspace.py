"""What writing keeps on a GPU: one workspace for each network, for the next text, given back when
the network goes, or memory is short. On the simulated GPU."""

import gc
import itertools
import weakref
from functools import partial

import pytest
import simulated_gpu
import torch
from conftest import make_model
from test_simulated_gpu import small, texts

from anyorder import fast
from anyorder.fast import freeze
from anyorder.generation import Canvas, Drawing, Given, fill, generate, unmasking_of, workspace
from anyorder.machine.graphs import Graphs, has_graphs
from model import KVCache

FIXED = dict(n_steps=5)
WAYS = [FIXED, dict(policy='margin:0.4'), dict(unmask='lossless:3')]
slow = partial(pytest.param, marks=pytest.mark.slow)
way = partial(pytest.mark.parametrize, 'how', ids=str)


def text(network, device, n=2, **how):
    """The tokens of n rows."""
    idx, order = texts(device, n)
    return generate(network, idx, order, 3, seeds=range(n), **(how or FIXED)).tolist()


def begun(network, device, n_done, n=2, **how):
    """A text of n rows of which so many steps have run: (its canvas, its generator)."""
    canvas = Canvas(*texts(device, n), 3, range(n))
    how = dict(schedule='linear', policy='given') | (how or FIXED)
    several = fill.steps(network, canvas, unmasking_of(**how), Drawing())
    for _ in range(n_done):
        next(several)
    return canvas, several


def left_to_right(network, device, n, length):
    """Write n rows of so many positions."""
    order = torch.arange(length, device=device).repeat(n, 1)
    return generate(network, torch.zeros_like(order), order, 0, length, seeds=range(n))


# ---- what is kept


@pytest.mark.parametrize('frozen', [False, True])
def test_it_goes_with_its_network(simulated, frozen):
    """Nothing of cache and graphs is left."""

    def body(device):
        gc.collect()
        before = len(simulated_gpu.memories)
        model = small(device)
        weights = len(simulated_gpu.memories)
        network = freeze(model) if frozen else model
        for how in WAYS:
            for _ in range(2):
                text(network, device, **how)
        assert simulated_gpu.Graph.n_replays
        gc.collect()
        assert len(simulated_gpu.memories) > weights
        if frozen:
            kept = weakref.ref(network.workspace)
            pool = network.workspace.graphs.pool
            assert pool.graphs
            del network
            gc.collect()
            assert kept() is None
            assert not pool.graphs
            assert len(simulated_gpu.memories) == weights
        network = None
        del model
        gc.collect()
        assert len(simulated_gpu.memories) == before

    simulated(body)


def test_a_larger_text_replaces_it_and_a_smaller_one_uses_it(simulated):
    def body(device):
        network = freeze(small(device))
        want = {n: text(freeze(small(device)), device, n) for n in (1, 2, 3)}
        for _ in range(2):
            assert text(network, device, 2) == want[2]
        kept = weakref.ref(network.workspace)
        assert (kept().n_rows, kept().n_positions) == (2, 12)
        assert text(network, device, 1) == want[1]
        assert network.workspace is kept()
        left_to_right(network, device, 2, 8)
        assert network.workspace is kept()
        for _ in range(2):
            assert text(network, device, 3) == want[3]
        assert kept() is None
        assert (network.workspace.n_rows, network.workspace.n_positions) == (3, 12)

    simulated(body)


def test_rows_and_positions_are_the_most_of_all_texts(simulated):
    def body(device):
        network = freeze(small(device))
        for n, length in ((4, 6), (2, 12)):
            left_to_right(network, device, n, length)
        assert (network.workspace.n_rows, network.workspace.n_positions) == (4, 12)

    simulated(body)


def test_of_two_texts_by_turns_the_larger_workspace_is_kept(simulated):
    def body(device):
        for last in (2, 3):
            network = freeze(small(device))
            want = {n: text(network, device, n) for n in (2, 3)}
            network.workspace = None
            running = {n: begun(network, device, 2, n) for n in (2, 3)}
            assert network.workspace is None
            for n in (5 - last, last):
                canvas, several = running[n]
                assert len(list(several)) == 3
                assert canvas.idx.tolist() == want[n]
            assert network.workspace.n_rows == 3

    simulated(body)


@way([WAYS[0], *map(slow, WAYS[1:])])
def test_texts_by_turns_are_those_that_are_written_alone(simulated, how):
    """Whichever has the kept workspace, and its graphs."""

    def body(device):
        network = freeze(small(device))
        want = {n: text(network, device, n, **how) for n in (2, 3)}
        for _ in range(2):
            several = {n: begun(network, device, 0, n, **how) for n in (2, 3)}
            for _ in itertools.zip_longest(several[2][1], several[3][1]):
                pass
            assert {n: canvas.idx.tolist() for n, (canvas, _) in several.items()} == want

    simulated(body)


class OwnError(Exception):
    pass


def closed(several):
    several.close()


def forgotten(several):
    pass


def failed(several):
    with pytest.raises(OwnError):
        for _ in several:
            raise OwnError


@pytest.mark.parametrize('end', [closed, forgotten, failed])
@way([WAYS[0], slow(WAYS[1])])
def test_a_text_that_ends_early_gives_it_back(simulated, how, end):
    def body(device):
        network = freeze(small(device))
        want = text(network, device, **how)
        for n_done in (1, 2):
            kept = network.workspace
            _, several = begun(network, device, n_done, **how)
            assert network.workspace is None
            end(several)
            del several
            assert network.workspace is kept
            assert text(network, device, **how) == want

    simulated(body)


def raising(error, network, n_calls):
    """Have the head of a network raise an error in its call of this number, from 0. A list gets how
    many pieces of memory there are then."""
    seen = []

    def look(*_):
        nonlocal n_calls
        n_calls -= 1
        if n_calls < 0:
            handle.remove()
            seen.append(len(simulated_gpu.memories))
            raise error

    handle = network.lm_head.register_forward_pre_hook(look)
    return seen


def test_texts_of_near_lengths_and_rows_that_are_left_share_graphs(simulated):
    """20 positions are as 17 in a model of 64; of 6 rows 3 are left, which a fourth makes 4."""

    def body(device):
        network = freeze(make_model(block_size=64, n_layer=1).float().to(device))
        for length in (20, 20, 17):
            left_to_right(network, device, 2, length)
        n_graphs = len(network.workspace.graphs.recorded)
        left_to_right(network, device, 2, 19)
        assert len(network.workspace.graphs.recorded) == n_graphs

        order = torch.arange(20, device=device).repeat(6, 1)
        known = torch.tensor([15, 15, 15, 3, 3, 3])
        canvas = Canvas(torch.zeros_like(order), order, known, range(6))
        sizes = []
        for _, _, part in fill.steps(network, canvas, Given(20), Drawing()):
            sizes.append(len(part))
        assert {*sizes} == {6, 4}
        assert (canvas.known == 20).all()
        assert canvas.n_steps.tolist() == [5, 5, 5, 17, 17, 17]

    simulated(body)


@way([WAYS[0], slow(WAYS[1])])
def test_an_interrupted_step_leaves_it_usable(simulated, how):
    """Where a step runs, and where it is recorded: first of all, and when others are."""

    def body(device):
        want = text(freeze(small(device)), device, **how)
        for n_texts in (0, 1):  # that were written before
            for n_calls in (0, 1):
                network = freeze(small(device))
                for _ in range(n_texts):
                    text(network, device, **how)
                raising(KeyboardInterrupt, network, n_calls)
                with pytest.raises(KeyboardInterrupt):
                    text(network, device, **how)
                assert network.workspace is not None
                for _ in range(2):
                    assert text(network, device, **how) == want

    simulated(body)


def test_it_is_of_one_dtype_and_of_one_cache(simulated):
    def body(device):
        network = freeze(small(device))
        kinds = []
        for use_cache in (True, True, False, True):
            idx, order = texts(device, 2)
            generate(network, idx, order, 3, 5, use_cache=use_cache, seeds=range(2))
            kept = network.workspace
            kinds.append(kept.cache and kept.cache.k.dtype)
        assert kinds == 4 * [torch.float32]  # a decoder without its cache has no graphs
        with torch.autocast(device.type, torch.bfloat16):
            text(network, device)
        assert network.workspace.cache.k.dtype == torch.bfloat16

    simulated(body)


def test_texts_with_guidance_have_another_cache(simulated):
    def body(device):
        model = small(device)
        network = freeze(model)
        for scale in (0.0, 1.5, 1.5, 0.0):
            how = dict(FIXED, cfg_scale=scale)
            free = freeze(model)
            free.graphs = False
            assert text(network, device, **how) == text(free, device, **how)
            n_caches = len(network.workspace.cache.k) / network.config.n_layer
            assert n_caches == (2 if scale else 1)

    simulated(body)


def test_inference_mode_makes_nothing_that_another_text_may_not_write(monkeypatch):
    """On the CPU, as no simulated tensor is of inference mode; and its graphs are others."""
    keys = []

    class Eager:
        def __init__(self, device):
            pass

        def run(self, key, function):
            keys.append(key)
            return function()

    monkeypatch.setattr(fast, 'has_graphs', lambda device: True)
    monkeypatch.setattr(workspace, 'Graphs', Eager)
    device = torch.device('cpu')
    network = freeze(small(device))
    with torch.inference_mode():
        want = text(network, device)
    inside = {*keys}
    keys.clear()
    assert text(network, device) == want
    assert len({*keys}) == len(inside)
    assert inside.isdisjoint(keys)
    with torch.inference_mode():
        assert text(network, device) == want


def test_a_model_that_was_moved_is_frozen_anew(simulated):
    """Its graphs would read where its weights were."""

    def body(device):
        model = small(device)
        want = [text(model, device) for _ in range(2)]
        numbers = [p.clone() for p in model.parameters()]
        for p, there in zip(model.parameters(), numbers):
            p.data = there
        assert [text(model, device) for _ in range(2)] == want

    simulated(body)


# ---- graphs


def test_graphs_are_of_one_maker(monkeypatch):
    monkeypatch.setattr(torch.version, 'hip', None)
    assert has_graphs(torch.device('cuda', 1))
    with monkeypatch.context() as m:
        m.setenv('ANYORDER_GRAPHS', '0')
        assert not has_graphs(torch.device('cuda', 1))
    assert not has_graphs(torch.device('cpu'))
    monkeypatch.setattr(torch.version, 'hip', '7.0')
    assert not has_graphs(torch.device('cuda'))


def test_a_recording_that_fails_does_not_end_all_recordings(simulated):
    def body(device):
        x = torch.zeros(3, device=device)
        graphs = Graphs(device)

        def fails():
            x.add_(1)
            raise OwnError

        def adds():
            return x.add_(1).sum()

        graphs.recorded['wrong'] = None
        with pytest.raises(OwnError):
            graphs.run('wrong', fails)
        assert x.tolist() == [0] * 3
        assert [graphs.run('right', adds).item() for _ in range(4)] == [3, 6, 9, 12]
        with pytest.raises(OwnError):
            graphs.recorded['wrong'] = None
            graphs.run('wrong', fails)
        assert [graphs.run('right', adds).item() for _ in range(3)] == [15, 18, 21]

    simulated(body)


def test_the_graph_used_least_lately_goes(simulated):
    def body(device):
        x = torch.zeros(3, device=device)
        graphs = Graphs(device, most=2)

        def run(n):
            return graphs.run(n, lambda: (x + n).sum()).item()

        for n in (1, 1, 2, 2, 1, 3, 3):
            assert run(n) == 3 * n
        assert [*graphs.recorded] == [1, 3]
        for n in range(10):
            run(n)
        assert len(graphs.recorded) == 2

    simulated(body)


def test_a_stream_has_another_owner_when_its_owner_goes(simulated):
    """cuBLAS keeps memory for each stream in which it ever ran."""

    def body(device):
        streams = {id(Graphs(device).stream) for _ in range(5)}
        one, other = Graphs(device), Graphs(device)
        assert len(streams) == 1
        assert one.stream is not other.stream

    simulated(body)


# ---- too little memory


def test_what_a_rule_keeps_has_its_place(simulated):
    """The laws of klass, in blocks of two lengths by turns, as on the CPU."""
    hows = [dict(policy=f'klass/{n}:0.1') for n in (4, 8)]

    def of_stable_laws(device):
        model = small(device)
        model.lm_head.weight.mul_(0.1)
        return freeze(model)

    here = of_stable_laws(torch.device('cpu'))
    want = [text(here, torch.device('cpu'), 3, **how) for how in hows]

    def body(device):
        network = of_stable_laws(device)
        for _ in range(3):
            assert [text(network, device, 3, **how) for how in hows] == want

    simulated(body)


def test_what_pytorch_cannot_allocate_leaves_nothing(simulated, monkeypatch):
    """In the first call of a step and while it is recorded; then a smaller text is written, even
    before the traceback is gone, and the memory of what failed is not there any more."""
    caches = []

    class Noted(KVCache):
        def __init__(self, *args):
            super().__init__(*args)
            caches.append(weakref.ref(self.k.memory))

    monkeypatch.setattr(workspace, 'KVCache', Noted)

    def body(device):
        for n_texts in (0, 1):
            network = freeze(small(device))
            want = text(freeze(small(device)), device, 2)
            for _ in range(n_texts):
                text(network, device, 3)
            gc.collect()
            error = torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')
            caches.clear()
            seen = raising(error, network, 1 - n_texts)
            try:
                text(network, device, 3)
            except torch.OutOfMemoryError:
                assert network.workspace is None
                assert len(simulated_gpu.memories) < seen[0]
                assert not any(one() for one in caches)
                assert text(network, device, 2) == want
            else:
                raise AssertionError
            for _ in range(2):
                assert text(network, device, 2) == want

    simulated(body)


def test_on_a_cpu_too(monkeypatch):
    def none(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1")

    model = make_model(block_size=12)
    order = torch.arange(12).repeat(2, 1)
    want = generate(model, order, order, 3, 5, seeds=range(2)).tolist()
    monkeypatch.setattr(workspace, 'KVCache', none)
    with pytest.raises(RuntimeError, match='allocate memory'):
        generate(model, order, order, 3, 5, seeds=range(2))
    monkeypatch.undo()
    assert generate(model, order, order, 3, 5, seeds=range(2)).tolist() == want
