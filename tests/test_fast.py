"""Fast paths answer as the plain model does, with its gradients and its names of weights."""

import pytest
import torch
import torch.nn.functional as F
from conftest import make_model
from oracle import FINAL, TWO_STREAM, VARIANTS, name_of
from test_model import close

from anyorder.fast import attention_kernels, bits_of, freeze, lean
from anyorder.orders import sample_order
from model import KVCache


@pytest.fixture(params=[VARIANTS[0], VARIANTS[2], VARIANTS[6], TWO_STREAM[1]], ids=name_of)
def pair(request):
    """(the plain model, the same one made lean), to train."""
    config = dict(vocab_size=16, n_tokens=11, dropout=0.3, **request.param)
    plain = make_model(**config).train().requires_grad_(True)
    model = make_model(**config).train().requires_grad_(True)
    return plain, lean(model)


def gradients(model, nats):
    nats.backward()
    result = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return result


@pytest.mark.parametrize('rows_at_a_time', [1, 7, 100])
def test_lean_has_the_loss_and_the_gradients_of_the_plain_model(
    pair, batch, monkeypatch, rows_at_a_time
):
    plain, model = pair
    idx, order = batch
    weights = torch.rand(idx.shape, dtype=torch.float64)

    def split_rows(vocab_size, *tensors):
        return [x.split(rows_at_a_time) for x in tensors]

    def scored(network, T):
        torch.manual_seed(0)  # for dropout
        return network(idx, order[:, :T])

    monkeypatch.setattr('anyorder.fast.split_rows', split_rows)
    assert list(model.state_dict()) == list(plain.state_dict())
    for T in (9, 4, 1):  # AdaLN is looked up by position where there are more slots
        nll = scored(model, T)
        expected = scored(plain, T)
        torch.testing.assert_close(nll, expected, **close)
        with torch.no_grad():
            torch.testing.assert_close(scored(model, T), expected, **close)
        expected = gradients(plain, (expected * weights[:, :T]).sum())
        for name, g in gradients(model, (nll * weights[:, :T]).sum()).items():
            torch.testing.assert_close(g, expected[name], **close, msg=name)


def test_gradients_in_bfloat16_are_near():
    config = dict(block_size=32, n_embd=64, n_layer=3)
    plain = make_model(**config).float().requires_grad_(True)
    model = lean(make_model(**config).float().requires_grad_(True))
    idx = torch.randint(11, (8, 32))
    order = sample_order(8, 32)
    expected = gradients(plain, plain(idx, order).sum())
    with torch.autocast('cpu', torch.bfloat16):
        nll = model(idx, order)
    for name, g in gradients(model, nll.sum()).items():
        assert g.dtype == torch.float32
        similarity = torch.cosine_similarity(g.flatten(), expected[name].flatten(), 0)
        assert similarity > 0.99, name


def test_losses_of_bfloat16_logits_are_taken_in_float32(batch):
    idx, order = batch
    tokens = idx.gather(1, order).unsqueeze(-1)
    for model, grad in (
        (lean(make_model().bfloat16()), False),
        (lean(make_model().bfloat16()), True),
        (freeze(make_model(), torch.bfloat16), False),
    ):
        with torch.set_grad_enabled(grad):
            nll = model(idx, order)
            logits = model.predict(idx, order, order.size(1) - 1, first=0)
        logp = logits.float().log_softmax(-1)
        torch.testing.assert_close(nll, -logp.gather(2, tokens)[..., 0], rtol=0, atol=1e-6)


def test_a_model_of_bfloat16_weights_trains():
    model = lean(make_model(block_size=32).bfloat16().requires_grad_(True))
    model(torch.randint(11, (2, 32)), sample_order(2, 32)).sum().backward()
    for p in model.parameters():
        assert p.grad.isfinite().all()
        assert p.grad.dtype == torch.bfloat16


def one_graph(model):
    """The model compiled; a break of the graph is an error.

    aot_eager traces the backward pass too and needs no compiler."""
    return torch.compile(model, fullgraph=True, backend='aot_eager')


@pytest.mark.slow
def test_the_whole_model_is_one_graph():
    # in evaluation mode there is no dropout
    model = lean(make_model(vocab_size=16, n_tokens=11, dropout=0.1).float().requires_grad_(True))
    idx = torch.randint(11, (4, 9))
    order = sample_order(4, 9)
    expected = gradients(model, model(idx, order).mean())
    compiled = one_graph(model)
    for name, g in gradients(model, compiled(idx, order).mean()).items():
        torch.testing.assert_close(g, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    with torch.autocast('cpu', torch.bfloat16):
        compiled.train()(idx, order).mean().backward()
        for attention in ('bidirectional', 'mixed'):
            network = make_model(attention=attention, rotary=True).float().requires_grad_(True)
            network = one_graph(network).train()
            network(idx, order, torch.tensor([0, 3, 8, 5])).mean().backward()
    torch.compiler.reset()


@pytest.mark.parametrize('variant', VARIANTS + FINAL)
@pytest.mark.parametrize(
    'own, dtype, tolerance',
    [
        (torch.float64, torch.float64, 1e-12),
        (torch.float32, torch.float32, 1e-4),
        (torch.float32, torch.bfloat16, 0.3),
    ],
)
def test_frozen_answers_as_the_model(variant, own, dtype, tolerance):
    model = make_model(vocab_size=32, n_tokens=27, n_embd=32, **variant).to(own)
    g = torch.Generator().manual_seed(0)
    idx = torch.randint(27, (3, 9), generator=g)
    order = sample_order(3, 9, generator=g)
    with torch.no_grad():
        expected = model.predict(idx, order, 4)
        logits = freeze(model, dtype).predict(idx, order, 4)
    assert logits.dtype == dtype
    assert (logits[..., 27:] == -torch.inf).all()
    difference = logits[..., :27].double() - expected[..., :27].double()
    assert difference.abs().max() < tolerance

    frozen = freeze(model.train(), dtype)
    assert not frozen.training
    assert frozen.lm_head.packed == (dtype != torch.float64)
    shared = {p.data_ptr() for p in frozen.parameters()}
    assert model.transformer.wte.weight.data_ptr() in shared


@pytest.mark.parametrize('variant', VARIANTS)
def test_one_row_takes_a_way_of_its_own_to_the_same_answer(variant):
    """In float32, one token a step of one row."""
    model = make_model(n_tokens=7, **variant).float()
    g = torch.Generator().manual_seed(0)
    idx = torch.randint(7, (1, 9), generator=g)
    order = sample_order(1, 9, generator=g)
    fast = freeze(model, torch.float32)
    cache = KVCache(model.config, 1)
    n_embd = model.config.n_embd
    rows = []
    fast.lm_head.register_forward_pre_hook(lambda _, args: rows.append(args[0].numel() // n_embd))
    for known in range(8):
        logits = fast.predict(idx, order, known, 1, cache)
        expected = model.predict(idx, order, known, 1)
        assert (logits[..., 7:] == -torch.inf).all()
        assert (logits - expected)[..., :7].abs().max() < 1e-5
    assert rows == [1, 1, 1, 1, 1, 1, 1, 1]

    x = torch.randn(1, n_embd, generator=g)
    expected = fast.lm_head(x)
    with torch.autocast('cpu', torch.bfloat16):  # frozen in float32, it stays as exact
        assert (fast.lm_head(x) - expected)[:, :7].abs().max() < 1e-5


@pytest.mark.parametrize('n', [1, 2])
def test_frozen_steps_in_bfloat16_are_near(batch, n):
    """One target a step is one query a row, which takes a way of its own."""
    idx, order = batch
    model = make_model().float()
    fast = freeze(model, torch.bfloat16)
    cache = KVCache(model.config, 5, dtype=torch.bfloat16)
    for known in range(0, 9 - n, n):
        logits = fast.predict(idx, order, known, n, cache)
        expected = model.predict(idx, order, known, n)
        assert logits.shape == expected.shape
        assert (logits - expected).abs().max() < 0.3


def test_a_frozen_model_has_one_dtype():
    frozen = freeze(make_model().float())
    assert freeze(frozen) is frozen
    assert freeze(frozen, torch.float32) is frozen
    with pytest.raises(ValueError, match='frozen in torch.float32 already, got torch.bfloat16'):
        freeze(frozen, torch.bfloat16)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_bits_of_weights_tell_every_change(dtype):
    """Also of places alone, which no sum would tell."""
    model = make_model().to(dtype)
    known = [bits_of(model)]
    for name in ('lm_head.weight', 'lm_head.bias', 'transformer.h.0.ln_1.weight'):
        x = model.get_parameter(name).data
        x[0] = 2 * x[0] + 1
        known.append(bits_of(model))
        x[[0, 1]] = x[[1, 0]]
        known.append(bits_of(model))
    x = model.lm_head.weight.data
    x[2] = x[2].flip(0)
    known.append(bits_of(model))
    assert len({*map(tuple, known)}) == len(known) == 8
    assert bits_of(model) == known[-1]


def test_a_network_of_others_keeps_its_buffers_as_exact_as_they_are():
    """Frequencies of rotary positions stay in float32.

    In bfloat16 they would turn position 4095 of LLaDA by 7 radians too much."""
    frequencies = 10000.0 ** -torch.linspace(0, 1, 8)
    network = torch.nn.Linear(3, 2)
    network.tied = network.weight
    network.only_read = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    network.register_buffer('inv_freq', frequencies.clone())
    assert freeze(network, torch.bfloat16) is network
    assert torch.equal(network.inv_freq, frequencies)
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}
    assert network.tied is network.weight
    assert {p.dtype for p in freeze(network).parameters()} == {torch.bfloat16}


@pytest.fixture
def kernels_at_attention(monkeypatch):
    """The flags (flash, efficient, math, cuDNN) that hold at each call of attention."""
    flags = []

    def attention(q, k, v, *rest, **options):
        names = ('flash', 'mem_efficient', 'math', 'cudnn')
        flags.append([getattr(torch.backends.cuda, f'{name}_sdp_enabled')() for name in names])
        return q

    monkeypatch.setattr(F, 'scaled_dot_product_attention', attention)
    return flags


class SaysCuda(torch.Tensor):
    """A tensor of the CPU that names another device."""

    device = torch.device('cuda')


def test_on_a_gpu_cudnn_attends_where_a_gradient_is_wanted_alone(kernels_at_attention):
    attention = lean(make_model()).transformer.h[0].attn
    q = torch.randn(2, 3, 4, 8)
    for x in (q, q.as_subclass(SaysCuda)):
        with torch.no_grad():
            attention.attend(x, x, x, None, True)
        attention.attend(x, x, x, None, True)
    every = [True, True, True, True]
    assert kernels_at_attention == [every, every, [True, True, True, False], every]
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_the_choice_of_kernels_is_a_part_of_a_compiled_graph():
    q = torch.randn(2, 4, 3, 8, dtype=torch.float64)

    def attend(q):
        with attention_kernels('cuda'):
            return F.scaled_dot_product_attention(q, q, q)

    with torch.no_grad():
        compiled = torch.compile(attend, fullgraph=True, backend='aot_eager')
        torch.testing.assert_close(compiled(q), attend(q), **close)
    torch.compiler.reset()
