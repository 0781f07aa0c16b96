"""Lossless unmasking: the text of one token a pass, its law, what a pass accepts, and what it
costs."""

import itertools
import math

import pytest
import torch
from conftest import make_model
from oracle import TWO_STREAM, VARIANTS, chi2_of, limit
from test_generation import write

from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, gumbel, keep_largest, token_noise
from anyorder.generation.fill import fill, generate
from anyorder.generation.plan import Bounds, Cells, Plan
from anyorder.generation.unmasking import Lossless
from anyorder.orders import Order, sample_order
from anyorder.seeds import keys_of
from model import AOGPT, Slots

DRAWINGS = [
    dict(temperature=0),
    dict(temperature=0.7),
    {},
    dict(temperature=1.5, top_k=5),
    dict(top_p=0.9),
]
KNOWN = torch.tensor([0, 3, 11, 8, 5, 12])  # known tokens of six rows of 12 positions


def half_certain():
    """A model whose drafts are right about half of the time."""
    model = make_model(block_size=12)
    model.lm_head.weight.mul_(3)
    return model


def lossless(model, order, window, idx=None, n_known=KNOWN, **options):
    """What generate gives; row r has the seed r, and its known tokens are 1, unless it is said."""
    if idx is None:
        idx = torch.ones_like(order)
    options = dict(seeds=range(len(order))) | options
    return generate(model, idx, order, n_known, unmask=f'lossless:{window}', **options)


def traced(*args, **options):
    return lossless(*args, **options, return_trace=True)


def orders_of(kind, n_rows=6, n=12):
    """Orders (n_rows, n) of a family, the same ones each time."""
    return sample_order(n_rows, n, kind, generator=torch.Generator().manual_seed(3))


# ---- the text


def one_at_a_time(model, idx, order, n_known, seed, **drawing):
    """The tokens of one row (N,): each is drawn by its own noise, given all before it, in a pass of
    its own."""
    idx = idx.clone()
    for d in range(n_known, len(order)):
        logits = model.predict(idx[None], order[None], d, 1)[0]  # (1, V)
        if drawing.get('temperature') != 0:
            noise = token_noise(keys_of([seed]), order[d : d + 1], logits.size(1))
            logits = cut(logits, **drawing) + noise
        idx[order[d]] = logits.argmax()
    return idx


def cut(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Tempered logits (n, V), with -inf for what is cut."""
    logits = logits / temperature
    if top_k or top_p < 1:
        return keep_largest(logits, top_k, top_p)
    return logits


@pytest.mark.parametrize(
    'kind, drawing',
    [
        *itertools.product(['random'], DRAWINGS),
        ('l2r', {}),
        ('r2l', {}),
        ('block', DRAWINGS[1]),
        ('fixed', DRAWINGS[4]),
    ],
)
def test_lossless_text_equals_one_token_a_pass(kind, drawing):
    model = half_certain()
    order = orders_of(kind)
    idx = torch.full((6, 12), 4)
    texts = [one_at_a_time(model, idx[r], order[r], int(KNOWN[r]), r, **drawing) for r in range(6)]
    for window, use_cache in ((1, True), (2, True), (3, False), (5, True), (64, True), (64, False)):
        new, trace = traced(model, order, window, idx, use_cache=use_cache, **drawing)
        assert torch.equal(new, torch.stack(texts))
        passes = int(trace['step'].max()) + 1
        if window == 1:
            assert passes == 12
        else:
            assert 2 < passes < 12  # drafts are right and wrong
    for r in range(5):  # with the whole window, alone
        row = slice(r, r + 1)
        (alone,) = lossless(model, order[row], 64, idx[row], KNOWN[row], seeds=[r], **drawing)
        assert torch.equal(alone, texts[r])


@pytest.mark.parametrize('variant', VARIANTS + TWO_STREAM)
def test_every_decoder_writes_the_same_text(variant):
    model = make_model(block_size=12, **variant)
    order = orders_of('random')
    text, one_a_pass = traced(model, order, 1, use_cache=False)
    for use_cache in (True, False):
        new, trace = traced(model, order, 5, use_cache=use_cache)
        assert torch.equal(new, text)
        torch.testing.assert_close(trace['logprob'], one_a_pass['logprob'], rtol=0, atol=1e-10)


def filled(texts, order, window):
    """The canvas of texts that a half certain model writes, row r by seed 7 + r."""
    canvas = Canvas.of_texts(texts, order, 7)
    fill(half_certain(), canvas, Lossless(window), Drawing())
    return canvas


@pytest.mark.parametrize('order', ['random', 'l2r', 'r2l'])
def test_texts_of_unequal_length(order):
    texts = [
        ([1] * 4, [True, False, False, True]),
        ([2] * 9, [False] * 9),
        ([3] * 12, [False, True, False] * 4),
        ([5], [False]),
    ]
    one = filled(texts, Order(order), 1)
    many = filled(texts, Order(order), 6)
    assert torch.equal(one.idx, many.idx)
    assert torch.equal(many.known, many.n_visits)
    one_a_step = write(half_certain(), texts, order, 7, 12)
    assert torch.equal(one.step, one_a_step.step)


def test_an_order_of_positions():
    order = [3, 0, 2, 1]
    blank = [([1] * 4, [False] * 4)]
    one = filled(blank, Order.of(order, {}), 1)
    many = filled(blank, Order.of(order, {}), 4)
    assert torch.equal(one.idx, many.idx)
    assert many.order[0].tolist()[:4] == order


def test_prompts_that_are_read_in_groups_change_nothing():
    model = make_model(block_size=80)
    order = orders_of('random', 4, 80)
    known = torch.tensor([0, 35, 70, 79])
    one = lossless(model, order, 1, n_known=known)
    many = lossless(model, order, 16, n_known=known)
    assert torch.equal(one, many)


# ---- the law


@pytest.mark.parametrize(
    'N, n_known, drawing',
    [(3, 0, {}), (4, 0, {}), (4, 1, dict(top_k=2)), (4, 1, dict(top_p=0.8, temperature=0.7))],
)
def test_the_law_equals_one_token_a_pass(N, n_known, drawing):
    """Frequencies of all sequences against their probabilities by enumeration."""
    model = make_model(block_size=N, vocab_size=3)
    n = 5_000
    order = torch.tensor([2, 0, 1] if N == 3 else [2, 0, 3, 1])
    sequences = itertools.product(range(3), repeat=N)
    idx = torch.tensor([row for row in sequences if n_known == 0 or row[2] == 1])
    orders = order.expand(len(idx), N)

    # The law by enumeration
    logp = torch.zeros(len(idx), dtype=torch.float64)
    for d in range(n_known, N):
        logits = cut(model.predict(idx, orders, d, 1)[:, 0], **drawing)
        token = idx[:, order[d], None]
        logp += logits.log_softmax(-1).gather(1, token)[:, 0]
    law = logp.exp()
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=torch.float64))
    if not drawing and not n_known:
        nats = model(idx, orders).sum(1)
        torch.testing.assert_close(law, (-nats).exp())

    # What is drawn
    drawn = lossless(model, order.expand(n, N), N, n_known=n_known, **drawing)
    powers = 3 ** torch.arange(N)
    counts = torch.bincount(drawn @ powers, minlength=3**N)[idx @ powers]
    assert counts.sum() == n
    assert (counts[law == 0] == 0).all()
    possible = law[law > 0]
    assert chi2_of(counts[law > 0], possible) < limit(len(possible) - 1)


def test_texts_of_different_seeds_are_independent():
    model = make_model(block_size=3, vocab_size=3)
    order = torch.tensor([2, 0, 1]).expand(4001, 3)
    drawn = lossless(model, order, 3, n_known=0)
    number = drawn @ torch.tensor([9, 3, 1])
    pairs = torch.zeros(27, 27, dtype=torch.float64)
    for x, y in itertools.pairwise(number.tolist()):
        pairs[x, y] += 1
    expected = pairs.sum(1, keepdim=True) * pairs.sum(0) / 4000
    seen = expected > 0.5
    chi2 = ((pairs - expected) ** 2 / expected)[seen].sum()
    assert chi2 < limit(seen.sum())


# ---- the noise


def test_noise_is_standard_gumbel():
    noise = token_noise(keys_of([5]), torch.tensor([3]), 20_000)[0].double()
    smallest_first = noise.sort().values
    cdf = (-(-smallest_first).exp()).exp()  # uniform if it is
    uniform = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    assert (cdf - uniform).abs().max() < 1.95 / 20_000**0.5  # Kolmogorov, p = 0.001
    assert noise.isfinite().all()


def test_noise_reaches_what_a_uniform_float32_cannot_and_is_finite():
    """A token of probability 1e-8 wins with noise above 18.4: a float32 in [0, 1) ends at 16.6."""
    ends = gumbel(torch.tensor([0, 2**31 - 64, 2**31 - 1], dtype=torch.int32))
    assert ends[0] == pytest.approx(-math.log(2.0**-32), abs=1e-5)
    most = -math.log(24 * math.log(2))
    assert ends[1:].tolist() == pytest.approx([most, most], abs=1e-5)


def test_a_token_that_is_cut_is_never_drawn():
    """Though the noise of the only one that is left is the least of all."""
    bits = torch.full((1, 11), 2**30, dtype=torch.int32)
    bits[0, 7] = 2**31 - 1
    logits = torch.zeros(1, 11, dtype=torch.float64)
    logits[0, 7] = 10.0
    assert Drawing(top_k=1).tokens_by_noise(logits, lambda: gumbel(bits)) == 7


def test_noise_belongs_to_seed_position_and_token():
    """Whatever else is drawn beside it, and however many tokens there are."""
    seeds = [8, 8, 9, 8 + 2**70]
    position = torch.tensor([4, 2, 4, 4])
    noise = token_noise(keys_of(seeds), position, 7)
    assert len({*noise.flatten().tolist()}) == 28
    for r, seed in enumerate(seeds):
        alone = token_noise(keys_of([seed]), position[r : r + 1], 5)
        assert torch.equal(alone[0], noise[r, :5])


# ---- what a pass accepts


def bounds_of(canvas, n):
    """The Bounds of a pass over the next n (B,) visits of which some have drafts."""
    plan = Plan(Slots, Lossless(int(n)), canvas, canvas.n_visits.unsqueeze(1), None)
    return Bounds(*plan.table[0])


def accepted(order, known, n_drafts, drafts, tokens):
    """(n_new, tokens of the visits behind `known`, n_drafts) of one row after a pass over these
    cells."""
    order = torch.tensor([order])
    canvas = Canvas(torch.zeros_like(order), order, known, [0])
    canvas.n_drafts = torch.tensor([n_drafts])
    n = torch.tensor([len(tokens)])
    bounds = bounds_of(canvas, n)
    cells = Cells.of(bounds.first, n, len(tokens), 8, False)
    row = cells.row
    position = canvas.order[row, cells.visit]
    canvas.idx[0, position[:n_drafts]] = torch.tensor(drafts, dtype=torch.long)
    n_new = int(Lossless().accept(canvas, bounds, cells, position, torch.tensor(tokens)))
    return n_new, canvas.idx[row, position].tolist(), len(tokens) - n_new


FAR = [0, 2, 4, 6, 1, 3, 5, 7]  # no two of the first four visits stand side by side
LEFT = list(range(8))


def test_what_a_pass_accepts():
    # no drafts yet: one sure token, the others are drafts
    assert accepted(FAR, 0, 0, [], [5, 6, 7]) == (1, [5, 6, 7], 2)
    # all are right: one more is sure
    assert accepted(FAR, 0, 2, [5, 6], [5, 6, 7, 8]) == (3, [5, 6, 7, 8], 1)
    # the second is wrong: its token is sure, the third is drawn anew
    assert accepted(FAR, 0, 3, [5, 6, 7], [5, 1, 2, 3]) == (2, [5, 1, 2, 3], 2)
    # the first is wrong
    assert accepted(FAR, 0, 2, [5, 6], [1, 6]) == (1, [1, 6], 1)
    # to the end of the order: all are right, and nothing is left to reveal
    assert accepted(FAR, 6, 2, [5, 6], [5, 6]) == (2, [5, 6], 0)
    assert accepted(LEFT, 7, 0, [], [5]) == (1, [5], 0)


def test_a_draft_stays_if_its_token_read_a_wrong_draft_beside_it():
    # left to right, the first is wrong: the second read it, the third read the second, which is
    # right; the fourth read the third, which changes; the fifth is no draft yet
    assert accepted(LEFT, 0, 4, [5, 6, 7, 8], [1, 6, 3, 4, 9]) == (1, [1, 6, 3, 8, 9], 4)
    assert accepted(LEFT, 0, 4, [5, 6, 7, 8], [1, 2, 7, 4, 9]) == (1, [1, 6, 7, 4, 9], 4)
    # right to left the wrong one is to the right
    assert accepted(LEFT[::-1], 0, 3, [5, 6, 7], [1, 2, 7]) == (1, [1, 6, 7], 2)
    # a draft beside it that comes later was not read
    order = [1, 5, 0, 2, 3, 4, 6, 7]
    assert accepted(order, 0, 3, [5, 6, 7], [5, 1, 2]) == (2, [5, 1, 2], 1)
    assert accepted(order, 0, 4, [5, 6, 7, 8], [5, 6, 1, 2]) == (3, [5, 6, 1, 2], 1)
    # the ends of the text are beside nothing
    assert accepted([0, 7, 3, 1, 2, 4, 5, 6], 0, 2, [5, 6], [1, 2]) == (1, [1, 2], 1)


# ---- what it costs


def test_a_round_is_one_pass_over_the_window_and_passes_never_exceed_tokens(monkeypatch):
    model = half_certain()
    order = orders_of('random')
    ran = []
    trunk = AOGPT.trunk

    def counted_trunk(self, idx, order, slots, cache):
        ran.append((len(idx), slots.number.size(1), slots.answering.size(1)))
        return trunk(self, idx, order, slots, cache)

    monkeypatch.setattr(AOGPT, 'trunk', counted_trunk)
    for window in (1, 4, 12):
        ran.clear()
        _, trace = traced(model, order, window, n_known=0)
        passes = trace['step'].max(1).values + 1  # (B,)
        assert len(ran) == passes.max()
        assert (passes <= 12).all()
        assert sum(rows for rows, _, _ in ran) == passes.sum()  # rows leave when they are done
        for _, n_slots, n_targets in ran:  # nothing runs twice
            assert n_slots <= window
            assert n_targets <= window


def test_greedy_of_a_model_that_is_sure_takes_few_passes():
    """Whatever is known, the last layer says the same token: every draft is right."""
    model = make_model(block_size=64)
    model.lm_head.weight.zero_()
    order = orders_of('random', 2, 64)
    _, trace = traced(model, order, 16, n_known=0)
    # one token and 15 drafts, then these and one more: nothing is left of the window for drafts
    assert trace['step'][0].bincount().tolist() == [1, 16, 1, 16, 1, 16, 1, 12]


def test_an_encoder_is_refused():
    encoder = make_model(block_size=12, attention='bidirectional')
    with pytest.raises(ValueError, match='lossless unmasking wants a decoder'):
        lossless(encoder, orders_of('random'), 4)
