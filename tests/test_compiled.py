"""A compiled network answers as the eager one, and few graphs serve all blocks and sizes."""

import shutil
from functools import partial

import pytest
import torch
from conftest import make_model
from test_model import FINAL, TWO_STREAM, VARIANTS, name_of

from anyorder import fast
from anyorder.fast import compiled, freeze
from anyorder.generation import drawing, fill, generate, plan
from anyorder.generation.drawing import token_noise
from anyorder.generation.passes import compiled_noise
from anyorder.machine.devices import compiler_of
from anyorder.orders import sample_order
from anyorder.seeds import keys_of
from anyorder.writer import Writer
from model import KVCache


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are compiled, by a backend that needs no compiler."""
    found = []

    def keep(graph, inputs):
        found.append(graph)
        return torch._dynamo.lookup_backend('aot_eager')(graph, inputs)

    monkeypatch.setattr(torch, 'compile', partial(torch.compile, backend=keep))
    forget()
    yield found
    forget()


@pytest.fixture
def compiler():
    if shutil.which(compiler_of(torch.device('cpu'))) is None:
        pytest.skip('no compiler')
    forget()
    yield
    forget()


def forget():
    """Forget all that is compiled."""
    torch.compiler.reset()
    fast.compiled_form.cache_clear()


def difference(network, other, n_rows, n_tokens=11):
    """Return the largest difference of their logits, over passes of many sizes."""
    N = network.config.block_size
    g = torch.Generator().manual_seed(n_rows)
    idx = torch.randint(n_tokens, (n_rows, N), generator=g)
    order = sample_order(n_rows, N, generator=g)
    largest = 0.0
    caches = [None, None]
    if network.slots.cached:
        dtype = network.lm_head.dtype
        caches = [KVCache(network.config, n_rows, dtype=dtype) for _ in range(2)]
    for known, n in ((0, 1), (1, 1), (2, 3), (5, 7), (12, 2), (14, 8), (22, 1), (23, 1)):
        with torch.no_grad():
            a = network.predict(idx, order, known, n, caches[0])
            b = other.predict(idx, order, known, n, caches[1])
        largest = max(largest, float((a - b)[..., :n_tokens].abs().max()))
    return largest


SOME = [VARIANTS[0], VARIANTS[6], FINAL[0], TWO_STREAM[1], dict(attention='bidirectional')]
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize('variant', [*map(slow, SOME)], ids=name_of)
def test_compiled_answers_as_eager(graphs, variant):
    model = make_model(block_size=24, **variant)
    network = freeze(model)
    assert compiled(network) is network
    for n_rows in (3, 1):
        assert difference(network, freeze(model), n_rows) < 1e-10
    assert 0 < len(graphs) <= 4


def test_one_graph_of_each_half_serves_all_blocks_and_sizes(graphs):
    model = make_model(block_size=24, n_layer=5)
    network = compiled(freeze(model))
    for n_rows in (2, 16, 7):
        assert difference(network, freeze(model), n_rows) < 1e-10
    assert len(graphs) == 2

    # weights are no constants: another network of these sizes has no other graphs
    model = make_model(1, block_size=24, n_layer=2)
    assert difference(compiled(freeze(model)), freeze(model), 3) < 1e-10
    assert len(graphs) == 2

    # but one slot of one row has
    difference(network, network, 1)
    assert len(graphs) == 4


@pytest.mark.slow
def test_more_networks_than_a_compiler_keeps_by_itself_are_compiled(graphs):
    for n_embd in range(8, 88, 8):
        network = compiled(freeze(make_model(n_embd=n_embd, block_size=24, n_layer=1)))
        difference(network, network, 2)
    assert len(graphs) == 20


def lossless_text(network, B=5, N=24):
    order = sample_order(B, N, generator=torch.Generator().manual_seed(2))
    known = torch.tensor([0, 7, 3, 20, 11])
    return generate(
        network, order % 11, order, known, seeds=range(B), unmask='lossless', return_trace=True
    )


def test_compiled_noise_is_eager_noise(graphs):
    for m in (2, 77, 1):
        keys = keys_of(range(m))
        position = torch.arange(m)
        noise = token_noise(keys, position, 11, compiled_noise)
        torch.testing.assert_close(noise, token_noise(keys, position, 11))
    assert 0 < len(graphs) <= 2  # of many rows, and of one


@pytest.mark.slow
def test_a_text_by_compiled_noise_is_that_by_eager_noise(graphs):
    model = make_model(block_size=24)
    expected, trace = lossless_text(freeze(model))
    found, as_found = lossless_text(compiled(freeze(model)))
    assert torch.equal(found, expected)
    assert torch.equal(as_found['step'], trace['step'])
    assert len(graphs) <= 7  # two halves and the noise, of many rows, of one, and of none


@pytest.mark.slow
@pytest.mark.parametrize('variant', SOME, ids=name_of)
def test_padded_steps_of_every_kind_write_the_same_compiled(graphs, monkeypatch, variant):
    """As a device runs them: of few sizes."""
    for module in (plan, fill, drawing):
        monkeypatch.setattr(module, 'is_exact', lambda device: False)
    model = make_model(block_size=96, **variant)
    networks = [freeze(model), compiled(freeze(model))]
    ways = [
        dict(n_steps=8),
        dict(n_steps=96),
        dict(n_steps=9, unmask='binomial'),
        dict(n_steps=8, policy='margin'),
        dict(policy='top_prob', threshold=0.3),
        dict(n_steps=6, revise=1),
        dict(n_steps=8, policy='margin', cfg_scale=1.0),
    ]
    if variant.get('attention', 'causal') == 'causal':
        ways.append(dict(unmask='lossless', window=8))
    for how in ways:
        expected, found = [text_of(network, **how) for network in networks]
        assert torch.equal(found, expected)
    assert 0 < len(graphs) <= 7


def text_of(network, B=4, N=96, **how):
    order = sample_order(B, N, generator=torch.Generator().manual_seed(2))
    known = torch.tensor([0, 7, 50, 3])
    return generate(network, order % 11, order, known, seeds=range(B), **how)


@pytest.mark.slow
def test_the_compiler_of_a_cpu_draws_the_noise_of_eager(compiler):
    for m in (2, 77, 1, 500):
        keys = keys_of(range(m))
        position = torch.arange(m)
        noise = token_noise(keys, position, 1001, compiled_noise)
        torch.testing.assert_close(noise, token_noise(keys, position, 1001), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_the_compiler_of_a_cpu_answers_as_eager(compiler, dtype, tolerance):
    model = make_model(block_size=24, n_layer=3, n_embd=32, rotary=True).float()
    network = compiled(freeze(model, dtype))
    assert difference(network, freeze(model, dtype), 3) < tolerance


def test_a_writer_compiles_as_asked(graphs, ckpt):
    eager = Writer(ckpt, compile=False)
    assert eager.network.graphs is False
    texts = eager.infill('a[[5]]b', n=2, order='random')
    assert not graphs
    assert Writer(ckpt, compile=True).infill('a[[5]]b', n=2, order='random') == texts
    assert graphs

    without = Writer(ckpt, use_cache=False, compile=True)
    with pytest.raises(ValueError, match='compile=True'):
        without.infill('a')


@pytest.mark.parametrize(
    'how, planned',
    [
        (dict(n_steps=4, length=20), 3 * 4),
        (dict(n_steps=100, length=20), 3 * 19),  # one token a step
        (dict(n_steps=4, length=100, context=8), 3 * 4 * 4),  # of 99 blanks 32, 24, 24 and 19
        (dict(n_steps=4, length=20, order='margin', revise=2), 3 * 4),
        (dict(unmask='lossless', length=20), 3),
        (dict(schedule=[1, 3], length=4), 3 * 2),
        (dict(order='margin:0.9', length=20), 3),
    ],
)
def test_auto_compiles_by_the_passes_that_are_planned(ckpt, monkeypatch, how, planned):
    asked = []
    networks = []

    def resolve(compile, device, n_passes):
        asked.append((compile, n_passes))
        return n_passes > 0, 'because'

    monkeypatch.setattr('anyorder.writer.resolve_compile_to_write', resolve)
    monkeypatch.setattr('anyorder.writer.compiled', networks.append)
    writer = Writer(ckpt)
    writer.infill('a', n=5, batch_size=2, **how)
    assert asked == [('auto', 0), ('auto', planned)]
    assert networks == [writer.network]


def test_a_compiled_network_forgets_what_was_recorded_of_the_eager_one(graphs):
    network = freeze(make_model())
    network.workspace = 'graphs of the eager network'
    assert compiled(network).workspace is None
    network.workspace = 'graphs of the compiled network'
    assert compiled(network).workspace == 'graphs of the compiled network'
