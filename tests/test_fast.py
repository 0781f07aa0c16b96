"""Fast paths answer as the plain model does, with the same gradients, and know the same weights by the same names."""

import pytest
import torch
from conftest import make_model
from test_model import FINAL, TWO_STREAM, VARIANTS, close, name_of

from anyorder.fast import freeze, lean, pad_size, padded
from anyorder.orders import sample_order
from model import KVCache


@pytest.fixture(params=[VARIANTS[0], VARIANTS[2], VARIANTS[6], TWO_STREAM[1]], ids=name_of)
def pair(request):
    """(the plain model, the same one made lean), to train."""
    plain, model = (
        make_model(vocab_size=16, n_tokens=11, dropout=0.3, **request.param).train()
        for _ in range(2)
    )
    return plain.requires_grad_(True), lean(model.requires_grad_(True))


def gradients(model, nats):
    nats.backward()
    result = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return result


@pytest.mark.parametrize('rows_at_a_time', [1, 7, 100])
def test_lean_has_the_loss_and_the_gradients_of_the_plain_model(
    pair, batch, monkeypatch, rows_at_a_time
):
    (plain, model), (idx, order) = pair, batch
    weights = torch.rand(idx.shape, dtype=torch.float64)
    monkeypatch.setattr(
        'anyorder.fast.split_rows',
        lambda vocab_size, *tensors: [x.split(rows_at_a_time) for x in tensors],
    )
    assert list(model.state_dict()) == list(plain.state_dict())

    def scored(network, T):
        torch.manual_seed(0)  # for dropout
        return network(idx, order[:, :T])

    for T in (9, 4, 1):  # AdaLN is looked up by position where there are more slots
        nll, expected = scored(model, T), scored(plain, T)
        torch.testing.assert_close(nll, expected, **close)
        with torch.no_grad():
            torch.testing.assert_close(scored(model, T), expected, **close)
        expected = gradients(plain, (expected * weights[:, :T]).sum())
        for name, g in gradients(model, (nll * weights[:, :T]).sum()).items():
            torch.testing.assert_close(g, expected[name], **close, msg=name)


def test_gradients_in_bfloat16_are_near():
    config = dict(block_size=32, n_embd=64, n_layer=3)
    plain, model = (make_model(**config).float().requires_grad_(True) for _ in range(2))
    idx, order = torch.randint(11, (8, 32)), sample_order(8, 32)
    expected = gradients(plain, plain(idx, order).sum())
    with torch.autocast('cpu', torch.bfloat16):
        nll = lean(model)(idx, order)
    for name, g in gradients(model, nll.sum()).items():
        assert g.dtype == torch.float32
        assert torch.cosine_similarity(g.flatten(), expected[name].flatten(), 0) > 0.99, name


def test_losses_of_bfloat16_logits_are_taken_in_float32(batch):
    idx, order = batch
    for model, grad in (
        (lean(make_model().bfloat16()), False),
        (lean(make_model().bfloat16()), True),
        (freeze(make_model(), torch.bfloat16), False),
    ):
        with torch.set_grad_enabled(grad):
            nll, logits = model(idx, order), model.predict(idx, order, order.size(1) - 1, first=0)
        logp = logits.float().log_softmax(-1)
        want = -logp.gather(2, idx.gather(1, order).unsqueeze(-1))[..., 0]
        torch.testing.assert_close(nll, want, rtol=0, atol=1e-6)


def test_a_model_of_bfloat16_weights_trains():
    model = lean(make_model(block_size=32).bfloat16().requires_grad_(True))
    model(torch.randint(11, (2, 32)), sample_order(2, 32)).sum().backward()
    assert all(
        p.grad.isfinite().all() and p.grad.dtype == torch.bfloat16 for p in model.parameters()
    )


@pytest.mark.slow
def test_the_whole_model_is_one_graph(monkeypatch):
    """fullgraph: a break is an error; aot_eager traces the backward pass too and needs no compiler."""
    # in evaluation mode there is no dropout
    model = lean(make_model(vocab_size=16, n_tokens=11, dropout=0.1).float().requires_grad_(True))
    idx, order = torch.randint(11, (4, 9)), sample_order(4, 9)
    expected = gradients(model, model(idx, order).mean())
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    for name, g in gradients(model, compiled(idx, order).mean()).items():
        torch.testing.assert_close(g, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    with torch.autocast('cpu', torch.bfloat16):
        compiled.train()(idx, order).mean().backward()
        for attention in ('bidirectional', 'mixed'):
            network = make_model(attention=attention, rotary=True).float().requires_grad_(True)
            network = torch.compile(network, fullgraph=True, backend='aot_eager').train()
            network(idx, order, torch.tensor([0, 3, 8, 5])).mean().backward()
    torch.compiler.reset()


@pytest.mark.parametrize('variant', VARIANTS + FINAL)
def test_frozen_answers_as_the_model(variant):
    config = dict(block_size=9, vocab_size=32, n_tokens=27, n_embd=32, **variant)
    g = torch.Generator().manual_seed(0)
    idx, order = torch.randint(27, (3, 9), generator=g), sample_order(3, 9, generator=g)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.3)):
        model = make_model(**config).to(torch.float64 if dtype == torch.float64 else torch.float32)
        with torch.no_grad():
            want, got = model.predict(idx, order, 4), freeze(model, dtype).predict(idx, order, 4)
        frozen = freeze(model.train(), dtype)
        assert frozen.lm_head.packed == (dtype != torch.float64) and not frozen.training
        assert got.dtype == dtype and (got[..., 27:] == -torch.inf).all()
        assert (got[..., :27].double() - want[..., :27].double()).abs().max() < tolerance
        assert model.transformer.wte.weight.data_ptr() in {
            p.data_ptr() for p in frozen.parameters()
        }  # not copied


@pytest.mark.parametrize('variant', VARIANTS)
def test_one_row_takes_a_way_of_its_own_to_the_same_answer(variant):
    """In float32, one token a step of one row."""
    model, g = make_model(n_tokens=7, **variant).float(), torch.Generator().manual_seed(0)
    idx, order = torch.randint(7, (1, 9), generator=g), sample_order(1, 9, generator=g)
    fast, cache, rows = freeze(model, torch.float32), KVCache(model.config, 1), []
    fast.lm_head.register_forward_pre_hook(
        lambda _, args: rows.append(args[0].numel() // model.config.n_embd)
    )
    for known in range(8):
        got, want = fast.predict(idx, order, known, 1, cache), model.predict(idx, order, known, 1)
        assert (got[..., 7:] == -torch.inf).all() and (got - want)[..., :7].abs().max() < 1e-5
    assert rows == [1] * 8
    x = torch.randn(1, model.config.n_embd, generator=g)
    want = fast.lm_head(x)
    with torch.autocast('cpu', torch.bfloat16):  # frozen in float32, it stays as exact
        assert (fast.lm_head(x) - want)[:, :7].abs().max() < 1e-5


@pytest.mark.parametrize('n', [1, 2])
def test_frozen_steps_in_bfloat16_are_near(batch, n):
    """One target a step is one query a row, which takes a way of its own."""
    model, (idx, order) = make_model(), batch
    fast, cache = (
        freeze(model.float(), torch.bfloat16),
        KVCache(model.config, 5, dtype=torch.bfloat16),
    )
    for known in range(0, 9 - n, n):
        got, want = fast.predict(idx, order, known, n, cache), model.predict(idx, order, known, n)
        assert got.shape == want.shape and (got - want).abs().max() < 0.3


def test_padded_sizes_are_few():
    sizes = [pad_size(n) for n in range(1, 1025)]
    assert all(n <= size < n + max(n, 64) for n, size in enumerate(sizes, 1)) and sizes == sorted(
        sizes
    )
    assert sizes[:5] == [1, 2, 4, 4, 8] and len(set(sizes)) == 22


@pytest.mark.parametrize('variant', [{}, *FINAL])
@pytest.mark.parametrize('n', [1, 3])
def test_padded_steps_answer_as_the_others(batch, n, variant):
    """The sizes of CUDA graphs, which a CPU does not have: unequal rows, rows that end, reordered tails."""
    (idx, order), model, plain = batch, make_model(**variant), make_model(**variant)
    trunk, cache, g = (
        model.trunk,
        KVCache(model.config, 5, dtype=torch.float64),
        torch.Generator().manual_seed(3),
    )
    model.trunk = lambda idx, order, slots, cache: trunk(idx, order, padded(slots, cache), cache)[
        :, :n
    ]
    for known in ([0, 3, 7, 5, 1], [0, 4, 9, 5, 8], [2, 9, 9, 8, 8], [9, 9, 9, 8, 9]):
        now = torch.tensor(known)
        got, want = model.predict(idx, order, now, n, cache), plain.predict(idx, order, now, n)
        for r, k in enumerate(known):
            torch.testing.assert_close(got[r, : max(0, 9 - k)], want[r, : max(0, 9 - k)], **close)
            order[r, k:] = order[r, k:][torch.randperm(9 - k, generator=g)]
        cache.length = now


def test_a_frozen_model_has_one_dtype():
    frozen = freeze(make_model().float())
    assert freeze(frozen) is frozen and freeze(frozen, torch.float32) is frozen
    with pytest.raises(ValueError, match='frozen in torch.float32 already, got torch.bfloat16'):
        freeze(frozen, torch.bfloat16)


def test_a_network_of_others_keeps_its_buffers_as_exact_as_they_are():
    """In bfloat16 the frequencies of rotary positions would turn position 4095 of LLaDA by 7 radians too much."""
    network, frequencies = torch.nn.Linear(3, 2), 10000.0 ** -torch.linspace(0, 1, 8)
    network.tied, network.only_read = (
        network.weight,
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
    )
    network.register_buffer('inv_freq', frequencies.clone())
    assert freeze(network, torch.bfloat16) is network and torch.equal(network.inv_freq, frequencies)
    assert {p.dtype for p in network.parameters()} == {
        torch.bfloat16
    } and network.tied is network.weight
    assert {p.dtype for p in freeze(network).parameters()} == {torch.bfloat16}
