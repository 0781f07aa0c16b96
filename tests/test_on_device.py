"""The device of --device gives the numbers of the CPU, which other tests prove; and what CUDA has.

    python -m pytest -o addopts= tests/test_on_device.py --device=cuda

On a CPU this says that the file still runs, for which one network is enough: the others are slow
tests."""

import copy

import pytest
import torch
from conftest import make_model
from oracle import FINAL, TWO_STREAM, VARIANTS, name_of

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

ENCODER = dict(attention='bidirectional')
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


@EVERY
@pytest.mark.parametrize('made', [lambda model: model, lean], ids=['plain', 'lean'])
def test_loss_and_gradients(device, batch, variant, made):
    idx, order = batch
    found = []
    for model in pair(device, vocab_size=16, n_tokens=11, **variant):
        model = made(model.requires_grad_(True))
        where = model.lm_head.weight.device
        known = None
        if model.slots.masked_loss:
            known = torch.tensor([0, 3, 8, 5, 1]).to(where)
        nll = model(idx.to(where), order.to(where), known)
        nll.sum().backward()
        found.append([nll.detach(), *(p.grad for p in model.parameters())])
    for here, there in zip(*found, strict=True):
        close(here, there, device, 1e-9)


@EVERY
def test_documents_apart(device, batch, variant):
    """A row of three texts, one of one, one of many."""
    idx, order = batch
    T = order.size(1)
    begins = torch.full((len(order), T), T)
    begins[:, 0] = 0
    begins[0, 1:3] = torch.tensor([2, 5])
    begins[2, 1 : T - 1] = torch.arange(2, T)
    order = torch.arange(T).expand_as(order)
    found = []
    for model in pair(device, vocab_size=16, n_tokens=11, **variant):
        model = lean(model.requires_grad_(True))
        where = model.lm_head.weight.device
        known = None
        if model.slots.masked_loss:
            known = torch.zeros_like(begins).to(where)
        nll = model(idx.to(where), order.to(where), known, begins=begins.to(where))
        nll.sum().backward()
        found.append([nll.detach(), *(p.grad for p in model.parameters())])
    for here, there in zip(*found, strict=True):
        close(here, there, device, 1e-9)


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
    g = torch.Generator().manual_seed(3)
    for known in ([0, 3, 7, 5, 1], [0, 4, 8, 5, 8], [2, 8, 8, 8, 8]):
        known = torch.tensor(known)
        want = here.predict(idx, order, known, n)
        got = there.predict(idx.to(device), order.to(device), known, n, cache)
        for r, k in enumerate(known.tolist()):
            close(want[r, : 9 - k], got[r, : 9 - k], device)
            order[r, k:] = order[r, k:][torch.randperm(9 - k, generator=g)]
        if cache is not None and there.slots.targets_in_keys:
            cache.length = known


HOW = [
    dict(policy='given', schedule='cosine'),
    dict(policy='given', unmask='binomial'),
    dict(policy='entropy'),
    dict(policy='margin:0.4'),
    dict(policy='top_prob', top_k=5, temperature=0.7),
    dict(top_p=0.8),
    dict(policy='margin', presence_penalty=1.0, min_p=0.05),
    dict(policy='margin', cfg_scale=1.5),
    dict(policy='factor:1.0'),
    dict(policy='eb:0.1'),
    dict(policy='klass:0.3'),
    dict(policy='pc_sampler'),
    dict(policy='dilated'),
    dict(policy='drawn'),
]


@pytest.mark.parametrize('variant', [{}, *OTHERS[len(VARIANTS) - 1 :]], ids=name_of)
@pytest.mark.parametrize('how', HOW, ids=str)
def test_the_same_text(device, variant, how):
    idx, order = texts(3, 20, 11)
    known = torch.tensor([0, 7, 19])
    here, there = pair(device, block_size=20, **variant)
    how = dict(seeds=range(3), return_trace=True) | how
    for model in (here, there):
        model.register_buffer('counts', torch.arange(11).to(model.device), persistent=False)
    want, trace = generate(here, idx, order, known, 6, **how)
    got, other = generate(there, idx.to(device), order.to(device), known, 6, **how)
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
    here, there = pair(device)
    close(block_nll(here, blocks, orders, 4), block_nll(there, blocks, orders, 4), device)
    given = [1, 2], [5, 0]
    want = conditional_logprob(here, blocks, *given)
    close(want, conditional_logprob(there, blocks.to(device), *given), device)
    ensemble = (blocks[0], orders[0], 4, Groups([0, 1, 4], 2), 1, 64)
    want = ensemble_block_nll(here, *ensemble)
    got = ensemble_block_nll(there, *ensemble)
    for x, y in zip(want, got, strict=True):
        close(x, y, device)


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
    want = gradients(here.float().requires_grad_(True), torch.device('cpu'), 'float32')
    got = gradients(lean(there.float().requires_grad_(True)), device, 'bfloat16')
    for name, grad in want.items():
        assert torch.cosine_similarity(grad, got[name], 0) > 0.99, name


def gradients(model, device, dtype):
    """{name: gradient (n,) on the CPU} of a loss in this dtype."""
    idx, order = texts(8)
    known = None
    if model.slots.masked_loss:
        known = torch.arange(8).to(device)
    with autocast(device, dtype):
        nll = model(idx.to(device), order.to(device), known)
    nll.sum().backward()
    return {name: p.grad.float().cpu().flatten() for name, p in model.named_parameters()}


# ---- updates: the device draws the batch, so it computes both ways

OPTIONS = Config(
    batch_size=4,
    gradient_accumulation_steps=2,
    block_size=64,
    grad_clip=1.0,
    l2r_ratio=0.1,
    order='random',
    seed=1,
)


def split_of_texts():
    """A Split of 512 tokens, of which every fortieth ends a document."""
    idx, _ = texts(8)
    tokens = idx.flatten().numpy()
    tokens[39::40] = 256
    return Split(tokens, eos=256)


def weights_after(device, dtype, wrapped, optimizer='adamw', documents='together'):
    """(weights, loss and norm summed) of two updates of the model that `wrapped` makes."""
    model = lean(make_model(**REAL).float().to(device).requires_grad_(True).train())
    optimizers = make_optimizers(model, optimizer, 1e-3, 0.01, 0.1, (0.9, 0.95))
    state = TrainState(model, optimizers, EMA(model, 0.9))
    state.run_model = wrapped(model)
    split = split_of_texts()
    for _ in range(2):
        update(state, split, 1e-3, Config(OPTIONS | {'dtype': dtype, 'documents': documents}))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return weights, state.totals[:2]


def plainly(model):
    return model


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
def test_updates_are_a_function_of_the_seed(device, optimizer):
    _, one = weights_after(device, 'float32', plainly, optimizer)
    _, other = weights_after(device, 'float32', plainly, optimizer)
    assert other.tolist() == pytest.approx(one.tolist(), rel=1e-4)


@pytest.mark.parametrize('documents', ['together', 'apart'])
@pytest.mark.parametrize('dtype, tolerance', [('float32', 1e-3), ('bfloat16', 2e-2)])
def test_compiled_updates(cuda, dtype, tolerance, documents):
    _, plain = weights_after(cuda, dtype, plainly, documents=documents)
    _, compiled = weights_after(cuda, dtype, torch.compile, documents=documents)
    torch.compiler.reset()
    assert compiled.tolist() == pytest.approx(plain.tolist(), rel=tolerance)


def test_one_nccl_process(cuda, tmp_path, monkeypatch):
    def wrapped(model):
        return start.make_run_model(model, False, cuda)

    plain, totals = weights_after(cuda, 'float32', plainly)
    store = f'file://{tmp_path}/store'
    torch.distributed.init_process_group('nccl', init_method=store, rank=0, world_size=1)
    monkeypatch.setattr(start, 'processes', lambda: (0, 2))  # a lone process is not wrapped
    try:
        shared, others = weights_after(cuda, 'float32', wrapped)
    finally:
        torch.distributed.destroy_process_group()
    assert others.tolist() == pytest.approx(totals.tolist(), rel=1e-4)
    assert (shared - plain).abs().max() < 1e-3


@pytest.mark.parametrize('documents', ['together', 'apart'])
def test_batches_are_drawn_without_a_wait(cuda, documents):
    model = make_model(**REAL).to(cuda)
    torch.cuda.set_sync_debug_mode('error')
    try:
        draw_batch(split_of_texts(), Config(OPTIONS | {'documents': documents}), model)
    finally:
        torch.cuda.set_sync_debug_mode('default')


# ---- CUDA graphs


def network_of(model, dtype=None, graphs=True):
    network = freeze(model, dtype)
    network.graphs = graphs
    return network


def replayed(network):
    """How many steps of a network are graphs."""
    return sum(graph is not None for graph in network.workspace.graphs.recorded.values())


@pytest.mark.parametrize('variant', [{}, *FINAL, ENCODER], ids=name_of)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_graphs_replay_what_steps_are(cuda, variant, dtype):
    """The same forced text, scored with graphs and without: the steps of few and of many targets,
    and rows that end."""
    idx, order = (x.to(cuda) for x in texts(3))
    model = make_model(**REAL, **variant).to(cuda)
    if dtype != torch.float64:
        model = model.float()
    found = []
    for graphs in (False, True):
        network = network_of(model, dtype, graphs)
        for n_steps in (64, 9):
            canvas = Canvas(idx, order, torch.tensor([0, 20, 63]), range(3))
            fill(network, canvas, Given(n_steps), Drawing(scores=True))
            found.append(canvas.logprob)
    assert replayed(network)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 0.5}[dtype]
    for plain, other in zip(found[:2], found[2:]):
        assert (plain - other).abs().max() < tolerance


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


def test_graphs_of_two_models_and_of_another_batch(cuda):
    """By turns, and after a larger cache has taken the place of the first one."""
    idx, order = (x.to(cuda) for x in texts(6))
    models = [make_model(**REAL).to(cuda), make_model(**REAL, rotary=True).to(cuda)]
    networks = [network_of(model) for model in models]
    for rows in (3, 3, 3, 6, 6, 6, 2, 2, 3):
        for model, network in zip(models, networks):
            text = idx[:rows], order[:rows], 5, 16
            plain = generate(network_of(model, graphs=False), *text, seeds=range(rows))
            assert torch.equal(plain, generate(network, *text, seeds=range(rows)))


def swap_rows(x):
    x[[0, 1]] = x[[1, 0]]


def test_what_is_kept_is_for_these_weights(cuda):
    """The second text of a model is written by what the first one left, until its weights change,
    whoever changes them."""
    idx, order = (x.to(cuda) for x in texts(3))
    model = make_model(**REAL).to(cuda)
    weight = model.lm_head.weight
    for change in (lambda: None, lambda: weight.data.neg_(), lambda: swap_rows(weight.data)):
        change()
        plain = generate(network_of(model, graphs=False), idx, order, 5, 16, seeds=range(3))
        for _ in range(3):
            assert torch.equal(plain, generate(model, idx, order, 5, 16, seeds=range(3)))


@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_nothing_waits_for_a_step(cuda, policy):
    """Of a text whose steps are planned."""
    idx, order = (x.to(cuda) for x in texts(3))
    network = network_of(make_model(**REAL).to(cuda))
    canvas = Canvas(idx, order, 5, range(3))
    unmasking = unmasking_of(n_steps=16, policy=policy)
    for graphs in (False, True):
        network.graphs = graphs
        for _ in range(3):
            part = canvas.take(torch.arange(3))
            running = steps(network, part, unmasking, Drawing())
            next(running)
            torch.cuda.set_sync_debug_mode('error')
            try:
                for _ in range(13):
                    next(running)
            finally:
                torch.cuda.set_sync_debug_mode('default')
            running.close()
