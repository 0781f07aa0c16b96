"""The equalities that all else stands on, in float64 against a slow definition of every network.

It shares no code with the model. The decoder of the paper is also checked against
anyorder/extras/minimal.py, in test_minimal.py and test_equalities.py."""

import itertools
import math

import pytest
import torch
from conftest import make_model
from oracle import FINAL, TWO_STREAM, VARIANTS, defined, name_of

from anyorder.likelihood.nll import nll_of_blanks, one_by_one
from anyorder.orders import sample_order
from anyorder.seeds import stream
from model import AOGPT, ATTENTION, EMA, AOGPTConfig, KVCache, Slots

close = dict(rtol=0, atol=1e-10)


@pytest.fixture(params=VARIANTS + TWO_STREAM, ids=name_of)
def model(request):
    return make_model(**request.param)


# ---- the forward pass


def test_forward_is_the_definition(model, batch):
    idx, order = batch
    N = idx.size(1)
    nll = model(idx, order)
    for r in range(len(idx)):
        for d in range(N):
            logp = defined(model, idx[r], order[r], N - 1, d).log_softmax(-1)
            token = idx[r, order[r, d]]
            torch.testing.assert_close(nll[r, d], -logp[token], **close)


def test_predict_is_the_definition_for_rows_of_unequal_n_known(model, batch):
    idx, order = batch
    known = torch.tensor([0, 3, 8, 5, 1])
    logits = model.predict(idx, order, known)
    assert logits.shape == (5, 9, 11)
    for r, k in enumerate(known.tolist()):
        for j in range(9 - k):
            expected = defined(model, idx[r], order[r], k, k + j)
            torch.testing.assert_close(logits[r, j], expected, **close)


def test_short_sequences_score_as_the_same_positions_of_long_ones(model, batch):
    idx, _ = batch
    order = sample_order(5, 6, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(idx[:, :6], order), model(idx, order), **close)


def new_cache(model, n_rows=5):
    return KVCache(model.config, n_rows, dtype=torch.float64)


@pytest.mark.parametrize('cached', [True, False])
def test_the_first_columns_may_score_known_visits(model, batch, cached):
    """Column j of a row is visit first + j.

    It is given the visits before it, or, from n_known on, the known ones."""
    idx, order = batch
    known = torch.tensor([2, 3, 9, 5, 1])
    first = known - torch.tensor([2, 0, 3, 4, 1])
    cache = None
    if cached:
        cache = new_cache(model)
        model.predict(idx, order, first, 1, cache)
        cache.length = first  # slot n_known reads the last token that is known now
    logits = model.predict(idx, order, known, 6, cache, first=first)
    for r, (k, start) in enumerate(zip(known.tolist(), first.tolist())):
        for d in range(start, min(start + 6, 9)):
            n_given = min(d, k)
            order_of_d = torch.cat([order[r, :n_given], order[r, d : d + 1]])[None]
            alone = model.predict(idx[r : r + 1], order_of_d, n_given)[0, 0]
            torch.testing.assert_close(logits[r, d - start], alone, **close)
    if cached:
        assert cache.length.tolist() == [3, 4, 9, 6, 2]
        known = torch.tensor([3, 5, 9, 7, 3])  # the cache has kept the slots of these tokens
        rows = [0, 1, 3, 4]
        logits = model.predict(idx, order, known, 1, cache)
        plain = model.predict(idx, order, known, 1)
        torch.testing.assert_close(logits[rows], plain[rows], **close)


def test_columns_that_only_score_leave_the_cache_at_their_end(model, batch):
    idx, order = batch
    cache = new_cache(model)
    logits = model.predict(idx, order, 6, 2, cache, first=2)
    plain = model.predict(idx, order, 6, 6, first=2)
    torch.testing.assert_close(logits, plain[:, :2], **close)
    n_kept = 4 if model.slots.targets_in_keys else 7
    assert (cache.length == n_kept).all()
    logits = model.predict(idx, order, 7, 2, cache)
    torch.testing.assert_close(logits, model.predict(idx, order, 7, 2), **close)
    for first in (-1, 4, torch.tensor([3, -1, 3, 3, 3])):
        with pytest.raises(ValueError, match='first 0 to n_known'):
            model.predict(idx, order, 3, 1, first=first)


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_what_stands_in_a_blank_need_not_be_a_token(attention, batch):
    model = make_model(attention=attention)
    idx, order = batch
    for known in (0, 3):
        logits = model.predict(idx, order, known)
        for value in (-1, 99):
            blank = idx.scatter(1, order[:, known:], value)
            assert torch.equal(model.predict(blank, order, known), logits)


def test_losses_of_a_bfloat16_model_are_taken_in_float32(batch):
    model = make_model().bfloat16()
    idx, order = batch
    nll = model(idx, order)
    assert nll.dtype == torch.float32
    assert make_model()(idx, order).dtype == torch.float64
    logits = model.predict(idx, order, order.size(1) - 1, first=0)
    logp = logits.float().log_softmax(-1)
    tokens = idx.gather(1, order).unsqueeze(-1)
    torch.testing.assert_close(nll, -logp.gather(2, tokens)[..., 0], rtol=0, atol=1e-6)


def test_a_bfloat16_model_turns_by_float32_angles():
    """From 256 on bfloat16 holds every other position alone."""
    model = make_model(block_size=400, rotary=True)
    g = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        larger = 4 if name.endswith('q_norm.weight') else 1  # so that small angles matter
        p.copy_(p.mul(larger).bfloat16())
    idx = torch.randint(11, (2, 400), generator=g)
    order = torch.stack([torch.arange(400), torch.arange(400).flip(0)])
    columns = torch.arange(300, 340).expand(2, 40)
    exact = model(idx, order, columns=columns)
    rounded = model.bfloat16()(idx, order, columns=columns)
    assert (exact - rounded).abs().mean() < 0.05  # 0.017; with angles in bfloat16 0.29


# ---- the encoder


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
@pytest.mark.parametrize('variant', VARIANTS, ids=name_of)
def test_a_network_with_a_masked_loss_is_the_definition(attention, variant, batch):
    model = make_model(attention=attention, **variant)
    idx, order = batch
    known = torch.tensor([0, 3, 8, 5, 1])
    nll = model(idx, order, known)
    logits = model.predict(idx, order, known)
    for r, k in enumerate(known.tolist()):
        assert (nll[r, :k] == 0).all()
        for d in range(k, 9):
            expected = defined(model, idx[r], order[r], k, d)
            torch.testing.assert_close(logits[r, d - k], expected, **close)
            logp = expected.log_softmax(-1)[idx[r, order[r, d]]]
            torch.testing.assert_close(nll[r, d], -logp * 9 / (9 - k), **close)


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_given_visits_cost_a_masked_loss_nothing_and_are_not_counted(attention, batch):
    encoder = make_model(attention=attention)
    idx, order = batch
    known = torch.tensor([0, 3, 8, 5, 2])
    given = torch.tensor([0, 2, 8, 1, 2])
    expected = torch.zeros(5, 9, dtype=torch.float64)
    for r, (k, n) in enumerate(zip(known.tolist(), given.tolist())):
        logp = encoder.predict(idx[r : r + 1], order[r : r + 1], k)[0].log_softmax(-1)
        tokens = idx[r, order[r, k:]].unsqueeze(1)
        expected[r, k:] = -logp.gather(1, tokens)[:, 0] * (9 - n) / (9 - k)
    nll = nll_of_blanks(encoder(idx, order, known), given, True)
    torch.testing.assert_close(nll, expected, **close)


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_the_masked_loss_is_the_any_order_bound(attention):
    """The mean over all orders and numbers of known tokens is that of one token after the other.

    By enumeration; a Monte Carlo of both agrees with it within its standard error."""
    encoder = make_model(attention=attention, block_size=3, vocab_size=3)
    idx = torch.tensor([[2, 0, 1]])
    orders = torch.tensor(list(itertools.permutations(range(3))))
    every = idx.expand(6, 3)
    exact = one_by_one(encoder, every, orders).sum(1).mean()
    masked = [encoder(every, orders, torch.full((6,), k)).sum(1) for k in range(3)]
    torch.testing.assert_close(torch.stack(masked).mean(), exact, **close)

    n = 4000
    order = sample_order(n, 3, generator=stream(0))
    known = torch.randint(3, (n,), generator=stream(1))
    draws = encoder(idx.expand(n, 3), order, known).sum(1)
    assert abs(draws.mean() - exact) < 3 * draws.std() / n**0.5 < 0.2 * exact


def test_the_encoder_says_what_it_wants(batch):
    encoder = make_model(attention='bidirectional')
    idx, order = batch
    zeros = torch.zeros(5)
    for call, said in (
        (lambda: encoder(idx, order), 'wants n_known'),
        (lambda: encoder(idx, order, torch.full((5,), 9)), '0 to 8'),
        (lambda: encoder(idx, order[:, :4], zeros), 'whole orders'),
        (lambda: encoder(idx, order, zeros, torch.zeros(5, 3).long()), 'by predict'),
        (lambda: encoder.predict(idx, order, 1, 1, KVCache(encoder.config, 5)), 'no cache'),
        (lambda: encoder.predict(idx, order, 3, 2, first=2), 'first is for a decoder'),
        (lambda: make_model()(idx, order, zeros), 'for a masked loss'),
    ):
        with pytest.raises(ValueError, match=said):
            call()


# ---- the cache


@pytest.fixture(params=VARIANTS + FINAL, ids=name_of)
def cached(request):
    return make_model(**request.param)


def kept(model, known):
    return known + 1 if model.slots.causal else known


@pytest.mark.parametrize('n', [1, 3])
def test_cached_equals_uncached_with_unequal_rows_and_rows_that_end(cached, batch, n):
    model = cached
    idx, order = batch
    cache = new_cache(model)
    for known in ([0, 3, 7, 5, 1], [0, 4, 9, 5, 8], [2, 9, 9, 8, 8], [9, 9, 9, 8, 9]):
        known = torch.tensor(known)
        logits = model.predict(idx, order, known, n, cache)
        plain = model.predict(idx, order, known, n)
        assert logits.isfinite().all()
        assert logits.shape == plain.shape
        assert torch.equal(cache.length, kept(model, known).clamp(max=9))
        for r, k in enumerate(known.tolist()):
            n_left = 9 - k
            torch.testing.assert_close(logits[r, :n_left], plain[r, :n_left], **close)


def test_cached_equals_uncached_when_the_tail_is_reordered(cached, batch):
    model = cached
    idx, order = batch
    g = torch.Generator().manual_seed(3)
    cache = new_cache(model)
    known = torch.tensor([0, 1, 2, 0, 4])
    while known.min() < 9:
        n = 9 - int(known.min())
        logits = model.predict(idx, order, known, n, cache)
        plain = model.predict(idx, order, known, n)
        for r, k in enumerate(known.tolist()):
            torch.testing.assert_close(logits[r, : 9 - k], plain[r, : 9 - k], **close)
            # an adaptive policy: the tail in a new order
            order[r, k:] = order[r, k:][torch.randperm(9 - k, generator=g)]
        if model.slots.targets_in_keys:
            cache.length = known  # slot n_known was run for another target
        known = (known + torch.randint(1, 4, (5,), generator=g)).clamp(max=9)


def test_rows_that_stay_in_the_cache_go_on(cached, batch):
    model = cached
    idx, order = batch
    cache = new_cache(model)
    known = torch.tensor([5, 0, 3, 7, 2])
    model.predict(idx, order, known, 2, cache)
    for rows in ([1, 3, 4], [1, 2], [1]):  # numbers among the rows that are left
        rows = torch.tensor(rows)
        cache.keep(rows)
        idx = idx[rows]
        order = order[rows]
        known = known[rows]
        assert torch.equal(cache.length, kept(model, known))
        known = known + 1
        logits = model.predict(idx, order, known, 1, cache)
        torch.testing.assert_close(logits, model.predict(idx, order, known, 1), **close)


def test_a_reordered_tail_costs_a_slot_where_keys_depend_on_targets(cached, batch):
    model = cached
    idx, order = batch
    cache = new_cache(model)
    model.predict(idx, order, 3, 1, cache)
    order[:, 3:] = order[:, 3:].flip(1)  # without setting cache.length back
    logits = model.predict(idx, order, 4, 1, cache)
    error = (logits - model.predict(idx, order, 4, 1)).abs().max()
    if model.slots.targets_in_keys:
        assert error > 1e-3
    else:
        assert error < 1e-10


# ---- the vocabulary's padding, sizes, initialisation


def test_padding_of_the_vocabulary_has_no_probability():
    model = make_model(vocab_size=16, n_tokens=11)
    order = sample_order(3, 9)
    logits = model.predict(torch.zeros(3, 9, dtype=torch.long), order, 2)
    assert (logits[..., 11:] == -math.inf).all()
    small = make_model(vocab_size=11)
    state = model.state_dict()
    for name, weight in state.items():
        if 'wte' in name or 'lm_head' in name:
            state[name] = weight[:11]
    small.load_state_dict(state)
    idx = torch.randint(11, (3, 9))
    torch.testing.assert_close(model(idx, order), small(idx, order), **close)


def test_the_head_of_sigma_gpt_is_its_embedding():
    model = AOGPT(AOGPTConfig(9, 16, 1, 2, 8, target_position='input', gpt2_blocks=True))
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.bias is None


def test_initialisation():
    torch.manual_seed(0)
    config = AOGPTConfig(
        vocab_size=256, block_size=64, n_layer=8, n_head=2, n_embd=64, gate_init=0.5
    )
    w = dict(AOGPT(config).named_parameters())
    for name, std in (
        ('transformer.h.3.attn.c_attn.weight', 0.02),
        ('transformer.h.3.adaLN.1.weight', 0.02),
        ('lm_head.weight', 0.02),
        ('transformer.h.3.mlp.c_proj.weight', 0.02 / 4),
        ('transformer.h.3.attn.c_proj.weight', 0.02 / 4),
    ):
        assert w[name].abs().max() <= 3 * std
        assert abs(w[name].std().item() / std - 0.9866) < 0.03  # the std of a normal cut at 3
    gates = w['transformer.h.3.adaLN.1.bias'].view(6, -1)
    assert gates.mean(1).tolist() == [0, 0, 0.5, 0, 0, 0.5]


@pytest.mark.parametrize(
    'wrong, said',
    [
        (dict(n_embd=10, n_head=3), 'divisible'),
        (dict(block_size=0), 'block_size'),
        (dict(vocab_size=5, n_tokens=6), 'n_tokens'),
        (dict(n_tokens=-1), 'n_tokens'),
        (dict(dropout=1.0), 'dropout'),
        (dict(target_position='two_stream', attention='mixed'), 'is a decoder'),
    ],
)
def test_config_says_what_is_wrong(wrong, said):
    with pytest.raises(ValueError, match=said):
        AOGPTConfig(**wrong)


def test_shapes_are_checked(model):
    idx = torch.zeros(2, 9, dtype=torch.long)
    for shape in ((3, 9), (2, 10), (2, 0)):
        with pytest.raises(ValueError):
            model(idx, torch.zeros(shape, dtype=torch.long))
    for known in (-1, 9, 10, torch.tensor([10, 2])):
        with pytest.raises(ValueError, match='n_known'):
            model.predict(idx, sample_order(2, 9), known)


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
@pytest.mark.parametrize('with_cache', [False, True])
def test_what_lies_behind_n_visits_is_not_seen(attention, with_cache):
    model = make_model(attention=attention)
    g = torch.Generator().manual_seed(3)
    n_visits = torch.tensor([9, 4, 6])
    known = torch.tensor([2, 4, 0])
    idx = torch.randint(11, (3, 9), generator=g)
    order = torch.arange(9).repeat(3, 1)
    for row, n in zip(order, n_visits.tolist()):
        row[:n] = torch.randperm(n, generator=g)
    cache = new_cache(model, 3) if with_cache and model.slots.cached else None
    logits = model.predict(idx, order, known, cache=cache, n_visits=n_visits)
    for r, (n, k) in enumerate(zip(n_visits.tolist(), known.tolist())):
        if k == n:
            continue
        own_idx = idx[r : r + 1]
        own_order = order[r : r + 1]
        alone = model.predict(own_idx[:, :n], own_order[:, :n], k)[0]
        torch.testing.assert_close(logits[r, : n - k], alone, rtol=0, atol=1e-12)
        equal = model.predict(own_idx, own_order, k, n_visits=n)[0]  # all rows of one length
        torch.testing.assert_close(equal[: n - k], alone, rtol=0, atol=1e-12)
    for wrong in (3, 10, torch.tensor([9, 3, 6])):
        with pytest.raises(ValueError, match='n_visits'):
            model.predict(idx, order, known, n_visits=wrong)


# ---- the average and the file


def test_the_average_has_no_dropout_and_no_gradients(batch):
    model = make_model(dropout=0.5).requires_grad_(True).train()
    average = EMA(model, 0.9).model
    assert torch.equal(average(*batch), make_model()(*batch))
    assert model.training
    assert not any(p.requires_grad for p in average.parameters())


def test_dropout_at_each_place_keeps_half_and_doubles_it():
    """With one head and one visit attention has one weight.

    It is dropped, and the branch behind it once more."""
    model = make_model(dropout=0.5, n_layer=1, n_head=1, bias=False)
    plain = make_model(n_layer=1, n_head=1, bias=False)
    idx = torch.zeros(1000, 1, dtype=torch.long)
    block = model.transformer.h[0]
    plain_block = plain.transformer.h[0]

    # Keep the embeddings, and the ratio of each branch to the plain one's, given the same input
    embeddings = []
    ratios = {}
    for each in (block, plain_block):
        each.register_forward_pre_hook(lambda _, args: embeddings.append(args[0]))
    block.attn.register_forward_hook(
        lambda _, args, y: ratios.update(weights=y / plain_block.attn(*args))
    )
    project = block.attn.project

    def compared(y):
        projected = project(y)
        ratios['branch'] = projected / plain_block.attn.project(y)
        return projected

    block.attn.project = compared
    block.mlp.register_forward_hook(
        lambda _, args, y: ratios.update(mlp=y / plain_block.mlp(*args))
    )
    torch.manual_seed(0)
    assert torch.equal(model(idx, idx), plain(idx, idx))  # in evaluation mode there is none
    model.train()(idx, idx)
    for ratio, factor, share in (
        (embeddings[2] / embeddings[1], 2, 0.5),
        (ratios['weights'], 2, 0.5),
        (ratios['branch'], 2, 0.5),
        (ratios['mlp'], 2, 0.5),
    ):
        ratio = ratio[ratio.isfinite()]  # behind a dropped weight both are 0
        kept = ratio != 0
        wanted = torch.full_like(ratio[kept], factor)
        torch.testing.assert_close(ratio[kept], wanted, rtol=1e-9, atol=0)
        assert abs(kept.double().mean() - share) < 0.05
    whole_head = (ratios['weights'] == 0).all(2)
    assert abs(whole_head.double().mean() - 0.5) < 0.08


def test_columns_ask_for_some_visits_alone(model, batch):
    idx, order = batch
    nll = model(idx, order)
    for wrong in (torch.full((5, 1), 9), torch.full((5, 1), -1)):
        with pytest.raises(ValueError, match='columns must be'):
            model(idx, order, columns=wrong)
    for columns in (torch.arange(9).expand(5, 9), torch.randint(9, (5, 3)), torch.full((5, 1), 8)):
        asked = model(idx, order, columns=columns)
        torch.testing.assert_close(asked, nll.gather(1, columns), rtol=0, atol=1e-12)


def test_a_decoder_of_another_mask_predicts_what_it_scores(monkeypatch, batch):
    class Window(Slots):
        needs_mask = True

        @staticmethod
        def see(query, key, known, end):
            return Slots.see(query, key, known, end) & (key > query - 3)

    monkeypatch.setitem(ATTENTION, 'window', Window)
    idx, order = batch
    model = make_model(attention='window')
    nll = model(idx, order)
    for known, n in itertools.product(range(9), (1, None)):
        logp = model.predict(idx, order, known, n)[:, 0].log_softmax(-1)
        token = idx.gather(1, order[:, known : known + 1])
        torch.testing.assert_close(-logp.gather(1, token)[:, 0], nll[:, known], **close)
