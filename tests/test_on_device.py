"""The device of --device gives the numbers of the CPU, which other tests prove; and what CUDA has.

    python -m pytest -o addopts= tests/test_on_device.py --device=cuda

On a CPU this says that the file still runs, for which one network is enough: the others are slow
tests."""

import copy

import pytest
import torch
from conftest import make_model, options_of_lines, rows_of
from oracle import ENCODER, FINAL, TWO_STREAM, VARIANTS
from test_training import options, start

from anyorder.fast import freeze, lean
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate
from anyorder.generation.unmasking import Given
from anyorder.generation.way import Way
from anyorder.machine.devices import autocast, widest
from anyorder.machine.graphs import Graphs
from anyorder.tokens.blocks import Blocks
from anyorder.tokens.meta import Meta
from anyorder.tokens.sets import Split
from anyorder.training import start as starts
from anyorder.training.update import update

OTHERS = [
    pytest.param(variant, marks=pytest.mark.slow) for variant in [*VARIANTS[1:], *FINAL, ENCODER]
]
EVERY = pytest.mark.parametrize('variant', [{}, *OTHERS])
KINDS = [{}, *OTHERS[len(VARIANTS) - 1 :]]
ONE_OF_A_KIND = pytest.mark.parametrize('variant', KINDS)
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


def close(here, there, device):
    """`there`, on the device, is `here`; a device without float64 is less exact."""
    tolerance = 1e-4 if widest(device) == torch.float32 else 1e-9
    torch.testing.assert_close(there.cpu().to(here.dtype), here, rtol=0, atol=tolerance)


def pair(device, **config):
    """(the model on the CPU, the same on the device), in the widest dtype that both have."""
    here = make_model(**config).to(widest(device))
    return here, copy.deepcopy(here).to(device)


# ---- float64, or the widest there is


def gradients(model, **asked):
    """The loss of each token and the gradients of a model on its device, as lists."""
    model.requires_grad_(True)
    nll = model(**{name: x.to(model.device) for name, x in asked.items()})
    nll.sum().backward()
    return [nll.detach(), *(p.grad for p in model.parameters())]


@EVERY
@pytest.mark.parametrize('begins', [[0], [0, 2, 5]])
def test_loss_and_gradients(device, idx, order, variant, begins):
    begins = torch.tensor([begins]).repeat(5, 1)
    asked = dict(idx=idx, order=order, begins=begins)
    if begins.size(1) > 1:
        asked['order'] = torch.arange(9).expand_as(order)
    here, there = pair(device, vocab_size=16, n_tokens=11, **variant)
    if here.slots_class.masked_loss:
        asked['n_known'] = 0 * begins + 1
    models = here, lean(copy.deepcopy(there)), there
    want, *found = [gradients(model, **asked) for model in models]
    for of_one in found:
        for one, other in zip(want, of_one, strict=True):
            close(one, other, device)


HOW = options_of_lines("""
unmask=binomial schedule=cosine
top_p=0.8 top_k=5 temperature=0.7
policy=margin presence_penalty=1.0 min_p=0.05
policy=margin cfg_scale=1.5
policy=factor:1.0
policy=eb:0.1
policy=klass:0.3
policy=pc_sampler
policy=dilated
policy=drawn
""")


@ONE_OF_A_KIND
@pytest.mark.parametrize('how', HOW)
def test_the_same_text(device, variant, how):
    idx, order = rows_of(3, 20)
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


# ---- what is not float64


@ONE_OF_A_KIND
@pytest.mark.parametrize(
    'dtype, tolerance', [(None, 1e-10), (torch.float32, 1e-3), (torch.bfloat16, 0.3)]
)
def test_frozen_steps_score_as_the_model(device, variant, dtype, tolerance):
    """Steps of few and of many targets, prompts that are read apart, and rows that end; on a GPU
    they are replayed."""
    here, there = pair(device, **REAL, **variant)
    network = freeze(there if dtype is None else there.float(), dtype)
    for n_steps in (24, 4):
        found = []
        for model in (here, network):
            idx, order = (x.to(model.device) for x in rows_of(3, 64, 257))
            canvas = Canvas(idx, order, torch.tensor([30, 50, 63]), range(3))
            fill(model, canvas, Way(Given(n_steps), Drawing(forced=True)))
            found.append(canvas.logprob.cpu().double())
        assert (found[0] - found[1]).abs().mean() < tolerance


@pytest.mark.parametrize('variant', [{}, TWO_STREAM[1]])
def test_gradients_in_bfloat16_are_near(device, variant):
    here, there = pair(device, **REAL, **variant)
    idx, order = rows_of(8, 64, 257)
    found = []
    for model, dtype in ((here, 'float32'), (lean(there), 'bfloat16')):
        with autocast(model.device, dtype):
            _, *grads = gradients(model.float(), idx=idx, order=order)
        found.append([grad.float().cpu().flatten() for grad in grads])
    for want, got in zip(*found):
        assert torch.cosine_similarity(want, got, 0) > 0.99


# ---- updates: the device draws the batch, so it computes both ways


def blocks_of_texts(documents):
    """Blocks of 512 tokens, of which every fortieth ends a document."""
    tokens = rows_of(8, 64, 257)[0].flatten().numpy()
    tokens[39::40] = 256
    return [Blocks(Split(tokens, Meta(eos=256, n_tokens=257)), 64, documents)]


def totals_after(device, documents='together', graphs=None, variant=(), **how):
    """(loss and norm summed) of four updates by these options."""
    model = make_model(**REAL, **dict(variant)).float().requires_grad_(True)
    state = start(model, device, **how)
    state.graphs = graphs
    for n in range(4):
        update(state, blocks_of_texts(documents), 1e-3 * (1 + n), options(**how))
    return state.totals[:2].tolist()


def test_updates_are_a_function_of_the_seed(device):
    one, other = (totals_after(device, optimizer='muon') for _ in range(2))
    assert other == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize(
    'dtype, documents, tolerance', [('float32', 'apart', 1e-3), ('bfloat16', 'together', 2e-2)]
)
def test_compiled_updates(cuda, dtype, documents, tolerance):
    how = dict(dtype=dtype, documents=documents)
    plain = totals_after(cuda, **how)
    compiled = totals_after(cuda, compile=True, **how)
    torch.compiler.reset()
    assert compiled == pytest.approx(plain, rel=tolerance)


def test_one_nccl_process(cuda, tmp_path, monkeypatch):
    plain = totals_after(cuda)
    store = f'file://{tmp_path}/store'
    torch.distributed.init_process_group('nccl', init_method=store, rank=0, world_size=1)
    monkeypatch.setattr(starts, 'n_processes', lambda: 2)  # a lone process is not wrapped
    try:
        shared = totals_after(cuda)
    finally:
        torch.distributed.destroy_process_group()
    assert shared == pytest.approx(plain, rel=1e-4)


# ---- CUDA graphs


def without_graphs(model):
    network = freeze(model)
    network.graphs = False
    return network


def replayed(network):
    """How many steps of a network are graphs."""
    return sum(graph is not None for graph in network.workspace.graphs.recorded.values())


WITH_GRAPHS = options_of_lines("""
n_steps=16
n_steps=16 policy=margin+0.1
policy=top_prob:0.01
policy=klass:0.01
unmask=lossless:8
n_steps=16 top_p=0.9 revise=1
""")


@pytest.mark.parametrize('how', WITH_GRAPHS)
def test_text_with_graphs_is_text_without(cuda, how):
    idx, order = (x.to(cuda) for x in rows_of(3, 64, 257))
    model = make_model(**REAL).to(cuda)
    plain = generate(without_graphs(model), idx, order, 5, seeds=range(3), **how)
    network = freeze(model)
    for _ in range(3):  # eagerly, recorded, replayed
        assert torch.equal(plain, generate(network, idx, order, 5, seeds=range(3), **how))
    assert replayed(network)


RECORDED = [
    dict(optimizer='muon'),
    dict(documents='apart', gradient_accumulation_steps=2),
    dict(variant=ENCODER, l2r_ratio=0.0),
]


@pytest.mark.parametrize('compiled', [False, True])
@pytest.mark.parametrize('how', RECORDED)
def test_updates_by_graphs_are_updates(cuda, compiled, how):
    """Of two shapes where documents are apart; the rate is another one each time."""
    plain = totals_after(cuda, **how)
    graphs = Graphs(cuda)
    found = totals_after(cuda, compile=compiled, graphs=graphs, **how)
    torch.compiler.reset()
    assert any(graphs.recorded.values())
    assert found == pytest.approx(plain, rel=1e-3)


def test_graphs_of_two_models_of_another_batch_and_of_other_weights(cuda):
    """By turns, and after a larger cache has taken the place of the first one. What the first text
    of a model left writes the second, until its weights change, whoever changes them."""
    idx, order = (x.to(cuda) for x in rows_of(6, 64, 257))
    models = [make_model(**REAL).to(cuda), make_model(**REAL, rotary=True).to(cuda)]
    for rows in (3, 3, 3, 6, 6, 6, 2, 2, 3, 3):
        for model in models:
            text = idx[:rows], order[:rows], 5, 16
            plain = generate(without_graphs(model), *text, seeds=range(rows))
            assert torch.equal(plain, generate(model, *text, seeds=range(rows)))
        if rows == 2:
            models[0].lm_head.weight.data.neg_()
