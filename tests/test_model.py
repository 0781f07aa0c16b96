"""The equalities that all else stands on, in float64 against a slow oracle that shares no code with the model."""

import itertools
import math

import pytest
import torch
from conftest import make_model

from anyorder.likelihood.nll import nll_of_blanks, one_by_one
from anyorder.orders import sample_order
from anyorder.seeds import stream
from model import AOGPT, ATTENTION, EMA, AOGPTConfig, KVCache, Slots

close = dict(rtol=0, atol=1e-10)


VARIANTS = [
    {},
    dict(target_position='input'),
    dict(target_position='layer_shared'),
    dict(target_position='layer'),
    dict(rotary=True),
    dict(target_position='input', gpt2_blocks=True, bias=False),
    dict(target_position='layer', gpt2_blocks=True, rotary=True),
]
TWO_STREAM = [
    dict(target_position='two_stream'),
    dict(target_position='two_stream', rotary=True),
    dict(target_position='two_stream', gpt2_blocks=True, rotary=True),
]
# networks whose cache knows nothing of targets
FINAL = [
    dict(attention='mixed'),
    dict(attention='mixed', target_position='layer', rotary=True),
    *TWO_STREAM,
]


def name_of(variant):
    return '-'.join(f'{k}={x}' for k, x in variant.items()) or 'paper'


@pytest.fixture(params=VARIANTS + TWO_STREAM, ids=name_of)
def model(request):
    return make_model(**request.param)


def oracle(model, tokens, order, n_known, d):
    """Logits (V,) for visit d of one row, written from the definition of the slot.

    A decoder runs the slots below min(d, n_known) with their true targets, then the slot of d, through plain causal
    attention. The others run every slot where it stands, the slot of d last; in the mixed network a known slot sees no
    slot behind it. Two streams run the content slots 0 to min(d, n_known), then the query, which no other slot sees."""
    w, c = model.state_dict(), model.config
    two_stream = c.target_position == 'two_stream'
    if two_stream:
        read = [None if s == 0 else order[s - 1] for s in range(min(d, n_known) + 1)] + ['query']
        stand = [0 if p is None else order[d] + 1 if p == 'query' else p + 1 for p in read]
        target = [p - 1 for p in stand]  # by which queries are turned
    elif c.attention == 'causal':
        read = [None if s == 0 else order[s - 1] for s in range(min(d, n_known) + 1)]
        target = [order[s] for s in range(min(d, n_known))] + [order[d]]
        stand = [0 if p is None else p + 1 for p in read]
    else:
        target = [p for p in order if p != order[d]] + [order[d]]
        read, stand = [p if p in order[:n_known] else None for p in target], [p + 1 for p in target]
    t = 'transformer.'
    vectors = {None: 'wnonee', 'query': 'wquery'}
    x = torch.stack(
        [
            w[f'{t}{vectors[p]}.weight'][0] if p in vectors else w[t + 'wte.weight'][tokens[p]]
            for p in read
        ]
    )
    x = x + w[t + 'wpe.weight'][stand]

    def norm(x, name):
        if f'{name}.weight' not in w:
            return x
        if c.gpt2_blocks:
            x = (x - x.mean(-1, keepdim=True)) / (
                x.var(-1, unbiased=False, keepdim=True) + 1e-5
            ).sqrt()
            return x * w[f'{name}.weight'] + w.get(f'{name}.bias', 0)
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w[f'{name}.weight']

    def linear(x, name):
        return x @ w[name + '.weight'].T + w.get(name + '.bias', 0)

    def turned(x, places):  # as complex numbers
        if not c.rotary:
            return x
        half = x.size(-1) // 2
        frequency = 10000 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.tensor(places, dtype=torch.float64)[:, None] * frequency
        z = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([z.real, z.imag], -1)

    zero, one = (
        torch.zeros(len(x), c.n_embd, dtype=x.dtype),
        torch.ones(len(x), c.n_embd, dtype=x.dtype),
    )
    if c.target_position == 'adaln':
        e = w[t + 'wtpe.weight'][target]
        cond = e * torch.sigmoid(e)
    elif c.target_position == 'input':
        x = x + w[t + 'wtpe.weight'][target]
    for i in range(c.n_layer):
        h = f'{t}h.{i}.'
        if c.target_position in ('layer', 'layer_shared'):
            x = x + w[(h if c.target_position == 'layer' else t) + 'wtpe.weight'][target]
        shift, scale, gate, shift2, scale2, gate2 = (
            linear(cond, h + 'adaLN.1').split(c.n_embd, -1)
            if c.target_position == 'adaln'
            else (zero, zero, one) * 2
        )
        q, k, v = linear(norm(x, h + 'ln_1') * (1 + scale) + shift, h + 'attn.c_attn').split(
            c.n_embd, -1
        )
        heads = []
        for a in range(c.n_head):
            D = c.n_embd // c.n_head
            s = slice(a * D, (a + 1) * D)
            q_a = turned(norm(q[:, s], h + 'attn.q_norm'), [p + 1 for p in target])
            k_a = turned(norm(k[:, s], h + 'attn.k_norm'), stand)
            score = q_a @ k_a.T / D**0.5
            n_causal = {'causal': len(x), 'bidirectional': 0, 'mixed': n_known}[c.attention]
            for query in range(n_causal):
                score[query, query + 1 :] = -math.inf
            if two_stream:
                score[:, -1] = -math.inf  # nothing sees a query, not even itself
            heads.append(score.softmax(-1) @ v[:, s])
        x = x + gate * linear(torch.cat(heads, -1), h + 'attn.c_proj')
        y = linear(norm(x, h + 'ln_2') * (1 + scale2) + shift2, h + 'mlp.c_fc')
        x = x + gate2 * linear(y * 0.5 * (1 + torch.erf(y / 2**0.5)), h + 'mlp.c_proj')
    if c.target_position == 'adaln':
        shift, scale = linear(cond, t + 'final_layer.adaLN_final.1').split(c.n_embd, -1)
        return linear(norm(x, t + 'final_layer.ln_f') * (1 + scale) + shift, 'lm_head')[-1]
    return linear(norm(x, t + 'ln_f'), 'lm_head')[-1]


# ---- the forward pass


def test_forward_is_the_definition(model, batch):
    idx, order = batch
    N = idx.size(1)
    nll = model(idx, order)
    for r in range(len(idx)):
        for d in range(N):
            p = order[r, d]
            expected = -oracle(model, idx[r].tolist(), order[r].tolist(), N - 1, d).log_softmax(-1)[
                idx[r, p]
            ]
            torch.testing.assert_close(nll[r, d], expected, **close)


def test_predict_is_the_definition_for_rows_of_unequal_n_known(model, batch):
    idx, order = batch
    known = torch.tensor([0, 3, 8, 5, 1])
    logits = model.predict(idx, order, known)
    assert logits.shape == (5, 9, 11)
    for r, k in enumerate(known.tolist()):
        for j in range(9 - k):
            expected = oracle(model, idx[r].tolist(), order[r].tolist(), k, k + j)
            torch.testing.assert_close(logits[r, j], expected, **close)


def test_short_sequences_score_as_the_same_positions_of_long_ones(model, batch):
    idx, _ = batch
    order = sample_order(5, 6, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(idx[:, :6], order), model(idx, order), **close)


@pytest.mark.parametrize('cached', [True, False])
def test_the_first_columns_may_score_known_visits(model, batch, cached):
    """Column j of a row is visit first + j: given those before it, or, from n_known on, the known ones."""
    idx, order = batch
    known, scored = torch.tensor([2, 3, 9, 5, 1]), torch.tensor([2, 0, 3, 4, 1])
    cache = KVCache(model.config, 5, dtype=torch.float64) if cached else None
    if cached:
        model.predict(idx, order, known - scored, 1, cache)
        cache.length = known - scored  # slot n_known reads the last token that is known now
    logits = model.predict(idx, order, known, 6, cache, first=known - scored)
    for r, (k, m) in enumerate(zip(known.tolist(), scored.tolist())):
        for d in range(k - m, min(k - m + 6, 9)):
            order_of_d = torch.cat([order[r, : min(d, k)], order[r, d : d + 1]])[None]
            alone = model.predict(idx[r : r + 1], order_of_d, min(d, k))[0, 0]
            torch.testing.assert_close(logits[r, d - k + m], alone, **close)
    if cached:
        assert cache.length.tolist() == [3, 4, 9, 6, 2]
        known = torch.tensor([3, 5, 9, 7, 3])  # the cache has kept the slots of these tokens
        torch.testing.assert_close(
            model.predict(idx, order, known, 1, cache)[[0, 1, 3, 4]],
            model.predict(idx, order, known, 1)[[0, 1, 3, 4]],
            **close,
        )


def test_columns_that_only_score_leave_the_cache_at_their_end(model, batch):
    idx, order = batch
    cache = KVCache(model.config, 5, dtype=torch.float64)
    logits = model.predict(idx, order, 6, 2, cache, first=2)
    torch.testing.assert_close(logits, model.predict(idx, order, 6, 6, first=2)[:, :2], **close)
    assert cache.length.tolist() == [4 if model.slots.targets_in_keys else 7] * 5
    torch.testing.assert_close(
        model.predict(idx, order, 7, 2, cache), model.predict(idx, order, 7, 2), **close
    )
    for first in (-1, 4, torch.tensor([3, -1, 3, 3, 3])):
        with pytest.raises(ValueError, match='first 0 to n_known'):
            model.predict(idx, order, 3, 1, first=first)


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_what_stands_in_a_blank_need_not_be_a_token(attention, batch):
    model, (idx, order) = make_model(attention=attention), batch
    for known in (0, 3):
        logits = model.predict(idx, order, known)
        for value in (-1, 99):
            blank = idx.scatter(1, order[:, known:], value)
            assert torch.equal(model.predict(blank, order, known), logits)


def test_losses_of_a_bfloat16_model_are_taken_in_float32(batch):
    model, (idx, order) = make_model().bfloat16(), batch
    nll, logits = model(idx, order), model.predict(idx, order, order.size(1) - 1, first=0)
    logp = logits.float().log_softmax(-1)
    assert nll.dtype == torch.float32 and make_model()(idx, order).dtype == torch.float64
    want = -logp.gather(2, idx.gather(1, order).unsqueeze(-1))[..., 0]
    torch.testing.assert_close(nll, want, rtol=0, atol=1e-6)


def test_a_bfloat16_model_turns_by_float32_angles():
    """From 256 on bfloat16 holds every other position alone."""
    model, g = make_model(block_size=400, rotary=True), torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        p.copy_(
            p.mul(4 if name.endswith('q_norm.weight') else 1).bfloat16()
        )  # larger scores: small angles matter
    idx, order = (
        torch.randint(11, (2, 400), generator=g),
        torch.stack([torch.arange(400), torch.arange(400).flip(0)]),
    )
    columns = torch.arange(300, 340).expand(2, 40)
    exact, rounded = (
        model(idx, order, columns=columns),
        model.bfloat16()(idx, order, columns=columns),
    )
    assert (exact - rounded).abs().mean() < 0.05  # 0.017; with angles in bfloat16 0.29


# ---- the encoder


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
@pytest.mark.parametrize('variant', VARIANTS, ids=name_of)
def test_a_network_with_a_masked_loss_is_the_definition(attention, variant, batch):
    model, (idx, order) = make_model(attention=attention, **variant), batch
    known = torch.tensor([0, 3, 8, 5, 1])
    nll, logits = model(idx, order, known), model.predict(idx, order, known)
    for r, k in enumerate(known.tolist()):
        assert (nll[r, :k] == 0).all()
        for d in range(k, 9):
            expected = oracle(model, idx[r].tolist(), order[r].tolist(), k, d)
            torch.testing.assert_close(logits[r, d - k], expected, **close)
            torch.testing.assert_close(
                nll[r, d], -expected.log_softmax(-1)[idx[r, order[r, d]]] * 9 / (9 - k), **close
            )


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_given_visits_cost_a_masked_loss_nothing_and_are_not_counted(attention, batch):
    encoder, (idx, order) = make_model(attention=attention), batch
    known, given = torch.tensor([0, 3, 8, 5, 2]), torch.tensor([0, 2, 8, 1, 2])
    want = torch.zeros(5, 9, dtype=torch.float64)
    for r, (k, n) in enumerate(zip(known.tolist(), given.tolist())):
        logp = encoder.predict(idx[r : r + 1], order[r : r + 1], k)[0].log_softmax(-1)
        want[r, k:] = -logp.gather(1, idx[r, order[r, k:]].unsqueeze(1))[:, 0] * (9 - n) / (9 - k)
    torch.testing.assert_close(
        nll_of_blanks(encoder(idx, order, known), given, True), want, **close
    )


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_the_masked_loss_is_the_any_order_bound(attention):
    """By enumeration: the mean over all orders and numbers of known tokens equals the mean over all orders of one token
    after the other, and a Monte Carlo of both agrees with it within its standard error."""
    encoder = make_model(attention=attention, block_size=3, vocab_size=3)
    idx, orders = torch.tensor([[2, 0, 1]]), torch.tensor(list(itertools.permutations(range(3))))
    exact = one_by_one(encoder, idx.expand(6, 3), orders).sum(1).mean()
    masked = torch.stack(
        [encoder(idx.expand(6, 3), orders, torch.full((6,), k)).sum(1) for k in range(3)]
    ).mean()
    torch.testing.assert_close(masked, exact, **close)
    order, known = (
        sample_order(4000, 3, generator=stream(0)),
        torch.randint(3, (4000,), generator=stream(1)),
    )
    draws = encoder(idx.expand(4000, 3), order, known).sum(1)
    assert abs(draws.mean() - exact) < 3 * draws.std() / 4000**0.5 < 0.2 * exact


def test_the_encoder_says_what_it_wants(batch):
    encoder, (idx, order) = make_model(attention='bidirectional'), batch
    for call, said in (
        (lambda: encoder(idx, order), 'wants n_known'),
        (lambda: encoder(idx, order, torch.full((5,), 9)), '0 to 8'),
        (lambda: encoder(idx, order[:, :4], torch.zeros(5)), 'whole orders'),
        (lambda: encoder(idx, order, torch.zeros(5), torch.zeros(5, 3).long()), 'by predict'),
        (lambda: encoder.predict(idx, order, 1, 1, KVCache(encoder.config, 5)), 'no cache'),
        (lambda: encoder.predict(idx, order, 3, 2, first=2), 'first is for a decoder'),
        (lambda: make_model()(idx, order, torch.zeros(5)), 'for a masked loss'),
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
    model, (idx, order) = cached, batch
    cache = KVCache(model.config, 5, dtype=torch.float64)
    for known in ([0, 3, 7, 5, 1], [0, 4, 9, 5, 8], [2, 9, 9, 8, 8], [9, 9, 9, 8, 9]):
        known = torch.tensor(known)
        logits, plain = (
            model.predict(idx, order, known, n, cache),
            model.predict(idx, order, known, n),
        )
        assert logits.isfinite().all() and logits.shape == plain.shape
        assert torch.equal(cache.length, kept(model, known).clamp(max=9))
        for r, k in enumerate(known.tolist()):
            torch.testing.assert_close(
                logits[r, : max(0, 9 - k)], plain[r, : max(0, 9 - k)], **close
            )


def test_cached_equals_uncached_when_the_tail_is_reordered(cached, batch):
    model, (idx, order) = cached, batch
    g, cache = torch.Generator().manual_seed(3), KVCache(model.config, 5, dtype=torch.float64)
    known = torch.tensor([0, 1, 2, 0, 4])
    while known.min() < 9:
        n = 9 - int(known.min())
        logits, plain = (
            model.predict(idx, order, known, n, cache),
            model.predict(idx, order, known, n),
        )
        for r, k in enumerate(known.tolist()):
            torch.testing.assert_close(logits[r, : 9 - k], plain[r, : 9 - k], **close)
        for r, k in enumerate(known.tolist()):  # an adaptive policy: the tail in a new order
            order[r, k:] = order[r, k:][torch.randperm(9 - k, generator=g)]
        if model.slots.targets_in_keys:
            cache.length = known  # slot n_known was run for another target
        known = (known + torch.randint(1, 4, (5,), generator=g)).clamp(max=9)


def test_rows_that_stay_in_the_cache_go_on(cached, batch):
    model, (idx, order) = cached, batch
    cache, known = KVCache(model.config, 5, dtype=torch.float64), torch.tensor([5, 0, 3, 7, 2])
    model.predict(idx, order, known, 2, cache)
    for rows in ([1, 3, 4], [1, 2], [1]):  # numbers among the rows that are left
        rows = torch.tensor(rows)
        cache.keep(rows)
        idx, order, known = idx[rows], order[rows], known[rows]
        assert torch.equal(cache.length, kept(model, known))
        known = known + 1
        logits, plain = (
            model.predict(idx, order, known, 1, cache),
            model.predict(idx, order, known, 1),
        )
        torch.testing.assert_close(logits, plain, **close)


def test_a_reordered_tail_costs_a_slot_where_keys_depend_on_targets(cached, batch):
    model, (idx, order) = cached, batch
    cache = KVCache(model.config, 5, dtype=torch.float64)
    model.predict(idx, order, 3, 1, cache)
    order[:, 3:] = order[:, 3:].flip(1)  # without setting cache.length back
    error = (model.predict(idx, order, 4, 1, cache) - model.predict(idx, order, 4, 1)).abs().max()
    assert error > 1e-3 if model.slots.targets_in_keys else error < 1e-10


# ---- the vocabulary's padding, sizes, initialisation


def test_padding_of_the_vocabulary_has_no_probability():
    model = make_model(vocab_size=16, n_tokens=11)
    order = sample_order(3, 9)
    assert (
        model.predict(torch.zeros(3, 9, dtype=torch.long), order, 2)[..., 11:] == -math.inf
    ).all()
    small = make_model(vocab_size=11)
    state = {
        k: v[:11] if 'wte' in k or 'lm_head' in k else v for k, v in model.state_dict().items()
    }
    small.load_state_dict(state)
    idx = torch.randint(11, (3, 9))
    torch.testing.assert_close(model(idx, order), small(idx, order), **close)


def test_the_head_of_sigma_gpt_is_its_embedding():
    model = AOGPT(AOGPTConfig(9, 16, 1, 2, 8, target_position='input', gpt2_blocks=True))
    assert model.lm_head.weight is model.transformer.wte.weight and model.lm_head.bias is None


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
    model, g = make_model(attention=attention), torch.Generator().manual_seed(3)
    n_visits, known = torch.tensor([9, 4, 6]), torch.tensor([2, 4, 0])
    idx = torch.randint(11, (3, 9), generator=g)
    order = torch.stack(
        [torch.cat([torch.randperm(n, generator=g), torch.arange(n, 9)]) for n in n_visits.tolist()]
    )
    cache = (
        KVCache(model.config, 3, dtype=torch.float64) if with_cache and model.slots.cached else None
    )
    logits = model.predict(idx, order, known, cache=cache, n_visits=n_visits)
    for r, (n, k) in enumerate(zip(n_visits.tolist(), known.tolist())):
        if k < n:
            alone = model.predict(idx[r : r + 1, :n], order[r : r + 1, :n], k)[0]
            torch.testing.assert_close(logits[r, : n - k], alone, rtol=0, atol=1e-12)
            equal = model.predict(idx[r : r + 1], order[r : r + 1], k, n_visits=n)[
                0
            ]  # all rows of one length
            torch.testing.assert_close(equal[: n - k], alone, rtol=0, atol=1e-12)
    for wrong in (3, 10, torch.tensor([9, 3, 6])):
        with pytest.raises(ValueError, match='n_visits'):
            model.predict(idx, order, known, n_visits=wrong)


# ---- the average and the file


def test_the_average_has_no_dropout_and_no_gradients(batch):
    model = make_model(dropout=0.5).requires_grad_(True).train()
    average = EMA(model, 0.9).model
    assert torch.equal(average(*batch), make_model()(*batch)) and model.training
    assert not any(p.requires_grad for p in average.parameters())


def test_dropout_at_each_place_keeps_half_and_doubles_it():
    """With one head and one visit attention has one weight, which is dropped, and the branch behind it once more."""
    model, ratios = make_model(dropout=0.5, n_layer=1, n_head=1, bias=False), {}
    plain, idx = make_model(n_layer=1, n_head=1, bias=False), torch.zeros(1000, 1, dtype=torch.long)
    block, plain_block = model.transformer.h[0], plain.transformer.h[0]
    embeddings = []
    for x in (block, plain_block):
        x.register_forward_pre_hook(lambda _, args: embeddings.append(args[0]))
    for part, same in (
        (block.attn, plain_block.attn),
        (block.mlp, plain_block.mlp),
    ):  # given the same input
        part.register_forward_hook(
            lambda part, args, y, same=same: ratios.update({part: y / same(*args)})
        )
    torch.manual_seed(0)
    assert torch.equal(model(idx, idx), plain(idx, idx))  # in evaluation mode there is none
    model.train()(idx, idx)
    for ratio, factor, share in (
        (embeddings[2] / embeddings[1], 2, 0.5),
        (ratios[block.attn], 4, 0.25),
        (ratios[block.mlp], 2, 0.5),
    ):
        kept = ratio != 0
        torch.testing.assert_close(
            ratio[kept], torch.full_like(ratio[kept], factor), rtol=1e-9, atol=0
        )
        assert abs(kept.double().mean() - share) < 0.05
    assert abs((ratios[block.attn] == 0).all(2).double().mean() - 0.5) < 0.08  # the whole head


def test_columns_ask_for_some_visits_alone(model, batch):
    idx, order = batch
    nll = model(idx, order)
    for wrong in (torch.full((5, 1), 9), torch.full((5, 1), -1)):
        with pytest.raises(ValueError, match='columns must be'):
            model(idx, order, columns=wrong)
    for columns in (torch.arange(9).expand(5, 9), torch.randint(9, (5, 3)), torch.full((5, 1), 8)):
        torch.testing.assert_close(
            model(idx, order, columns=columns), nll.gather(1, columns), rtol=0, atol=1e-12
        )


def test_a_decoder_of_another_mask_predicts_what_it_scores(monkeypatch, batch):
    class Window(Slots):
        masked = True

        @staticmethod
        def see(query, key, known, end):
            return Slots.see(query, key, known, end) & (key > query - 3)

    monkeypatch.setitem(ATTENTION, 'window', Window)
    (idx, order), model = batch, make_model(attention='window')
    for known, n in itertools.product(range(9), (1, None)):
        logp = model.predict(idx, order, known, n)[:, 0].log_softmax(-1)
        token = idx.gather(1, order[:, known : known + 1])
        torch.testing.assert_close(
            -logp.gather(1, token)[:, 0], model(idx, order)[:, known], **close
        )
