"""The device of --device gives the numbers of the CPU, which other tests prove; and what CUDA has.

    python -m pytest -o addopts= tests/test_on_device.py --device=cuda

On a CPU this says that the file still runs, for which one network is enough: the others are slow
tests."""

import copy

import pytest
import torch
from conftest import make_model
from oracle import ENCODER, FINAL, TWO_STREAM, VARIANTS, name_of

from anyorder.fast import freeze, lean
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate, steps
from anyorder.generation.options import unmasking_of
from anyorder.generation.unmasking import Given
from anyorder.likelihood.conditional import conditional_logprob
from anyorder.likelihood.ensemble import Groups, ensemble_block_nll
from anyorder.likelihood.nll import block_nll
from anyorder.machine.devices import autocast, widest
from anyorder.orders import sample_order
from anyorder.tokens.sets import Split
from anyorder.training import start
from anyorder.training.update import TrainState, draw_batch, make_optimizers, update
from configurator import Config
from model import EMA, KVCache

OTHERS = [
    pytest.param(variant, marks=pytest.mark.slow) for variant in [*VARIANTS[1:], *FINAL, ENCODER]
]
EVERY = pytest.mark.parametrize('variant', [{}, *OTHERS], ids=name_of)
# heads of 64, as kernels want them
REAL = dict(block_size=64, vocab_size=320, n_tokens=257, n_embd=128, n_layer=3)


@pytest.fixture
def device(request):
    return torch.device(request.config.getoption('--device'))


@pytest.fixture
def cuda(device):
    if device.type != 'cuda':
        pytest.skip('wants --device=cuda')
    return device


def close(here, there, device, tolerance=1e-10):
    """`there`, on the device, is `here`; a device without float64 is less exact."""
    tolerance = max(tolerance, 1e-4 if widest(device) == torch.float32 else 0)
    torch.testing.assert_close(there.cpu().to(here.dtype), here, rtol=0, atol=tolerance)


def pair(device, **config):
    """(the model on the CPU, the same on the device), in the widest dtype that both have."""
    here = make_model(**config).to(widest(device))
    return here, copy.deepcopy(here).to(device)


def texts(n, block_size=64, vocab_size=257, seed=2):
    """(idx, order) of n rows."""
    g = torch.Generator().manual_seed(seed)
    idx = torch.randint(vocab_size, (n, block_size), generator=g)
    return idx, sample_order(n, block_size, generator=g)


# ---- float64, or the widest there is

T = 9
BEGINS = torch.full((5, T), T)  # rows of one text, of three, of many
BEGINS[:, 0] = 0
BEGINS[0, 1:3] = torch.tensor([2, 5])
BEGINS[2, 1 : T - 1] = torch.arange(2, T)


@EVERY
@pytest.mark.parametrize('begins', [None, BEGINS], ids=['one text', 'apart'])
def test_loss_and_gradients(device, batch, variant, begins):
    idx, order = batch
    if begins is not None:
        order = torch.arange(T).expand_as(order)
    found = []
    here, there = pair(device, vocab_size=16, n_tokens=11, **variant)
    for model in (here, there, lean(copy.deepcopy(there))):
        model.requires_grad_(True)
        asked = dict(idx=idx, order=order)
        if model.slots.masked_loss:
            asked['n_known'] = torch.tensor([0, 3, 8, 5, 1]) if begins is None else 0 * begins
        if begins is not None:
            asked['begins'] = begins
        nll = model(**{name: x.to(model.device) for name, x in asked.items()})
        nll.sum().backward()
        found.append([nll.detach(), *(p.grad for p in model.parameters())])
    for here, there, leaner in zip(*found, strict=True):
        close(here, there, device, 1e-9)
        close(here, leaner, device, 1e-9)


@EVERY
@pytest.mark.parametrize('n', [1, 3])
def test_cached_steps(device, batch, variant, n):
    """Unequal rows, rows that end, reordered tails: with a cache on the device as without one on
    the CPU."""
    idx, order = batch
    here, there = pair(device, **variant)
    cache = None
    if there.slots.cached:
        cache = KVCache(there.config, 5, device, widest(device))
    for known in ([0, 3, 7, 5, 1], [0, 4, 8, 5, 8], [2, 8, 8, 8, 8]):
        known = torch.tensor(known)
        want = here.predict(idx, order, known, n)
        got = there.predict(idx.to(device), order.to(device), known, n, cache)
        for r, k in enumerate(known.tolist()):
            close(want[r, : 9 - k], got[r, : 9 - k], device)
            order[r, k:] = order[r, k:].flip(0)
        if cache is not None and there.slots.targets_in_keys:
            cache.length = known


HOW = [
    dict(schedule='cosine'),
    dict(unmask='binomial'),
    dict(policy='margin:0.4'),
    dict(policy='top_prob', top_k=5, temperature=0.7),
    dict(top_p=0.8),
    dict(policy='margin', presence_penalty=1.0, min_p=0.05),
    dict(policy='margin', cfg_scale=1.5),
]
for rule in ('entropy', 'factor:1.0', 'eb:0.1', 'klass:0.3', 'pc_sampler', 'dilated', 'drawn'):
    HOW.append(dict(policy=rule))


@pytest.mark.parametrize('variant', [{}, *OTHERS[len(VARIANTS) - 1 :]], ids=name_of)
@pytest.mark.parametrize('how', HOW, ids=str)
def test_the_same_text(device, variant, how):
    idx, order = texts(3, 20, 11)
    known = torch.tensor([0, 7, 19])
    found = []
    for model in pair(device, block_size=20, **variant):
        model.register_buffer('counts', torch.arange(11).to(model.device), persistent=False)
        text = idx.to(model.device), order.to(model.device), known, 6
        found.append(generate(model, *text, seeds=range(3), return_trace=True, **how))
    (want, trace), (got, other) = found
    assert torch.equal(want, got.cpu())
    for name in ('order', 'step'):
        assert torch.equal(trace[name], other[name].cpu())
    close(trace['logprob'], other['logprob'], device)


def test_lossless_text_equals_one_token_a_step(device):
    """A device draws noise of its own, so the device writes both texts."""
    idx, order = texts(3, 20, 11)
    _, model = pair(device, block_size=20)
    text = (model, idx.to(device), order.to(device), 4)
    one, many = [generate(*text, seeds=range(3), unmask=f'lossless:{n}') for n in (1, 8)]
    assert torch.equal(one, many)


def test_likelihood(device):
    blocks, orders = texts(6, 9, 11)
    found = []
    for model in pair(device):
        ensemble = ensemble_block_nll(model, blocks[0], orders[0], 4, Groups([0, 1, 4], 2), 1, 64)
        of_one = conditional_logprob(model, blocks.to(model.device), [1, 2], [5, 0])
        found.append([block_nll(model, blocks, orders, 4), of_one, *ensemble])
    for here, there in zip(*found, strict=True):
        close(here, there, device)


# ---- what is not float64


@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, 1e-3), (torch.bfloat16, 0.3)])
@pytest.mark.parametrize('variant', [{}, TWO_STREAM[1]], ids=name_of)
def test_frozen_steps_are_near(device, variant, dtype, tolerance):
    idx, order = texts(4)
    here, there = pair(device, **REAL, **variant)
    fast = freeze(there.float(), dtype)
    cache = KVCache(there.config, 4, device, dtype)
    for known in (0, 5, 6, 40, 63):
        n = min(6, 64 - known)
        want = log_p(here.predict(idx, order, known, n))
        got = log_p(fast.predict(idx.to(device), order.to(device), known, n, cache))
        kl = (want.exp() * (want - got)).sum(-1)  # nats
        assert kl.abs().max() < tolerance


def log_p(logits):
    return logits[..., :257].double().cpu().log_softmax(-1)


@pytest.mark.parametrize('variant', [{}, TWO_STREAM[1], ENCODER], ids=name_of)
def test_gradients_in_bfloat16_are_near(device, variant):
    here, there = pair(device, **REAL, **variant)
    found = []
    for model, dtype in ((here, 'float32'), (lean(there), 'bfloat16')):
        model.float().requires_grad_(True)
        idx, order = (x.to(model.device) for x in texts(8))
        known = torch.arange(8).to(model.device) if model.slots.masked_loss else None
        with autocast(model.device, dtype):
            nll = model(idx, order, known)
        nll.sum().backward()
        found.append([p.grad.float().cpu().flatten() for p in model.parameters()])
    for want, got in zip(*found):
        assert torch.cosine_similarity(want, got, 0) > 0.99


# ---- updates: the device draws the batch, so it computes both ways

OPTIONS = dict(
    batch_size=4,
    gradient_accumulation_steps=2,
    block_size=64,
    grad_clip=1.0,
    l2r_ratio=0.1,
    order='random',
    seed=1,
    dtype='float32',
    documents='together',
)


def split_of_texts():
    """A Split of 512 tokens, of which every fortieth ends a document."""
    tokens = texts(8)[0].flatten().numpy()
    tokens[39::40] = 256
    return Split(tokens, eos=256)


def totals_after(device, wrapped=None, optimizer='adamw', **options):
    """(loss and norm summed) of two updates of the model that `wrapped` makes."""
    model = lean(make_model(**REAL).float().to(device).requires_grad_(True).train())
    optimizers = make_optimizers(model, optimizer, 1e-3, 0.01, 0.1, (0.9, 0.95))
    state = TrainState(model, optimizers, EMA(model, 0.9))
    state.run_model = wrapped(model) if wrapped else model
    for _ in range(2):
        update(state, split_of_texts(), 1e-3, Config(OPTIONS | options))
    return state.totals[:2].tolist()


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
def test_updates_are_a_function_of_the_seed(device, optimizer):
    one, other = (totals_after(device, optimizer=optimizer) for _ in range(2))
    assert other == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize('documents', ['together', 'apart'])
@pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-3), ('bfloat16', 2e-2)])
def test_compiled_updates(cuda, dtype, tolerance, documents):
    how = dict(dtype=dtype, documents=documents)
    plain = totals_after(cuda, **how)
    compiled = totals_after(cuda, torch.compile, **how)
    torch.compiler.reset()
    assert compiled == pytest.approx(plain, rel=tolerance)


def test_one_nccl_process(cuda, tmp_path, monkeypatch):
    plain = totals_after(cuda)
    store = f'file://{tmp_path}/store'
    torch.distributed.init_process_group('nccl', init_method=store, rank=0, world_size=1)
    monkeypatch.setattr(start, 'processes', lambda: (0, 2))  # a lone process is not wrapped
    try:
        shared = totals_after(cuda, lambda model: start.make_run_model(model, False, cuda))
    finally:
        torch.distributed.destroy_process_group()
    assert shared == pytest.approx(plain, rel=1e-4)


@pytest.fixture
def without_waits(cuda):
    """without_waits(call, n) calls n times; a wait for the device is an error."""

    def run(call, n=1):
        torch.cuda.set_sync_debug_mode('error')
        try:
            for _ in range(n):
                call()
        finally:
            torch.cuda.set_sync_debug_mode('default')

    return run


@pytest.mark.parametrize('documents', ['together', 'apart'])
def test_batches_are_drawn_without_a_wait(cuda, without_waits, documents):
    model = make_model(**REAL).to(cuda)
    split = split_of_texts()
    without_waits(lambda: draw_batch(split, Config(OPTIONS | {'documents': documents}), model))


# ---- CUDA graphs


def network_of(model, dtype=None, graphs=True):
    network = freeze(model, dtype)
    network.graphs = graphs
    return network


def replayed(network):
    """How many steps of a network are graphs."""
    return sum(graph is not None for graph in network.workspace.graphs.recorded.values())


@pytest.mark.parametrize('variant', [{}, *FINAL, ENCODER], ids=name_of)
@pytest.mark.parametrize(
    'dtype, tolerance', [(torch.float64, 1e-10), (torch.float32, 1e-3), (torch.bfloat16, 0.5)]
)
def test_graphs_replay_what_steps_are(cuda, variant, dtype, tolerance):
    """The same forced text, scored with graphs and without: the steps of few and of many targets,
    and rows that end."""
    idx, order = (x.to(cuda) for x in texts(3))
    model = make_model(**REAL, **variant).to(
        cuda, dtype if dtype == torch.float64 else torch.float32
    )
    networks = [network_of(model, dtype, graphs) for graphs in (False, True)]
    for n_steps in (64, 9):
        found = []
        for network in networks:
            canvas = Canvas(idx, order, torch.tensor([0, 20, 63]), range(3))
            fill(network, canvas, Given(n_steps), Drawing(scores=True))
            found.append(canvas.logprob)
        assert (found[0] - found[1]).abs().max() < tolerance
    assert replayed(networks[1])


WITH_GRAPHS = [
    dict(n_steps=16),
    dict(n_steps=16, policy='margin+0.1'),
    dict(policy='top_prob:0.01'),
    dict(policy='klass:0.01'),
    dict(policy='dilated'),
    dict(unmask='lossless:8'),
    dict(n_steps=16, top_p=0.9),
    dict(n_steps=16, revise=1),
]


@pytest.mark.parametrize('how', WITH_GRAPHS, ids=str)
def test_text_with_graphs_is_text_without(cuda, how):
    idx, order = (x.to(cuda) for x in texts(3))
    model = make_model(**REAL).to(cuda)
    plain = generate(network_of(model, graphs=False), idx, order, 5, seeds=range(3), **how)
    network = network_of(model)
    for _ in range(3):  # eagerly, recorded, replayed
        assert torch.equal(plain, generate(network, idx, order, 5, seeds=range(3), **how))
    assert replayed(network)


def test_graphs_of_two_models_of_another_batch_and_of_other_weights(cuda):
    """By turns, and after a larger cache has taken the place of the first one. What the first text
    of a model left writes the second, until its weights change, whoever changes them."""
    idx, order = (x.to(cuda) for x in texts(6))
    models = [make_model(**REAL).to(cuda), make_model(**REAL, rotary=True).to(cuda)]
    networks = [network_of(model) for model in models]
    weight = models[0].lm_head.weight.data
    changes = [weight.neg_, lambda: weight.copy_(weight[[1, 0, *range(2, 320)]])]
    for rows in (3, 3, 3, 6, 6, 6, 2, 2, 3):
        for model, network in zip(models, networks):
            text = idx[:rows], order[:rows], 5, 16
            plain = generate(network_of(model, graphs=False), *text, seeds=range(rows))
            assert torch.equal(plain, generate(network, *text, seeds=range(rows)))
            assert torch.equal(plain, generate(model, *text, seeds=range(rows)))
    for change in changes:
        change()
        plain = generate(network_of(models[0], graphs=False), *text, seeds=range(3))
        for _ in range(3):
            assert torch.equal(plain, generate(models[0], *text, seeds=range(3)))


@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_nothing_waits_for_a_step(cuda, without_waits, policy):
    """Of a text whose steps are planned."""
    idx, order = (x.to(cuda) for x in texts(3))
    network = network_of(make_model(**REAL).to(cuda))
    canvas = Canvas(idx, order, 5, range(3))
    for graphs in (False, True, True, True):
        network.graphs = graphs
        part = canvas.take(torch.arange(3))
        running = steps(network, part, unmasking_of(n_steps=16, policy=policy), Drawing())
        next(running)
        without_waits(running.__next__, 13)
        running.close()
