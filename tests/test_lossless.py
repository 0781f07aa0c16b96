"""Lossless unmasking: the text of one token a pass, its law by enumeration, what a pass accepts, and what it costs."""

import itertools
import math

import pytest
import torch
from conftest import make_model
from test_generation import write
from test_model import TWO_STREAM, VARIANTS

from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, gumbel, keep_largest, token_noise
from anyorder.generation.fill import fill, generate
from anyorder.generation.unmasking import Lossless
from anyorder.orders import Order, sample_order
from anyorder.seeds import keys_of
from model import AOGPT

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


def lossless(model, idx, order, window, **options):
    options = dict(seeds=range(len(order))) | options
    return generate(
        model,
        idx,
        order,
        options.pop('n_known', KNOWN),
        unmask='lossless',
        window=window,
        **options,
    )


def orders_of(kind, n_rows=6, n=12):
    return sample_order(n_rows, n, kind, generator=torch.Generator().manual_seed(3))


# ---- the text


def one_at_a_time(model, idx, order, n_known, seed, temperature=1.0, top_k=0, top_p=1.0):
    """The tokens of one row (N,): each is drawn by its own noise, given all before it, in a pass of its own."""
    idx = idx.clone()
    for d in range(n_known, len(order)):
        logits = model.predict(idx[None], order[None], d, 1)[0]  # (1, V)
        if temperature:
            logits = logits / temperature
            logits = keep_largest(logits, top_k, top_p) if top_k or top_p < 1 else logits
            logits = logits + token_noise(keys_of([seed]), order[d : d + 1], logits.size(1))
        idx[order[d]] = logits.argmax()
    return idx


@pytest.mark.parametrize(
    'kind, drawing',
    [
        *(('random', drawing) for drawing in DRAWINGS),
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
        new, trace = lossless(
            model, idx, order, window, use_cache=use_cache, return_trace=True, **drawing
        )
        assert torch.equal(new, torch.stack(texts))
        passes = int(trace['step'].max()) + 1
        most = 12
        assert passes == most if window == 1 else 2 < passes < most  # drafts are right and wrong
    for r in range(5):  # with the whole window, alone
        alone = lossless(
            model, idx[r : r + 1], order[r : r + 1], 64, n_known=int(KNOWN[r]), seeds=[r], **drawing
        )
        assert torch.equal(alone[0], texts[r])


@pytest.mark.parametrize('variant', VARIANTS + TWO_STREAM)
def test_every_decoder_writes_the_same_text(variant):
    model = make_model(block_size=12, **variant)
    order = orders_of('random')
    runs = [
        lossless(
            model, torch.ones_like(order), order, window, use_cache=use_cache, return_trace=True
        )
        for window, use_cache in ((1, False), (5, True), (5, False))
    ]
    for new, trace in runs[1:]:
        assert torch.equal(new, runs[0][0])
        torch.testing.assert_close(trace['logprob'], runs[0][1]['logprob'], rtol=0, atol=1e-10)


def test_texts_of_unequal_length_and_an_order_of_positions():
    model = half_certain()
    texts = [
        ([1] * 4, [True, False, False, True]),
        ([2] * 9, [False] * 9),
        ([3] * 12, [False, True, False] * 4),
        ([5], [False]),
    ]
    for order in ('random', 'l2r', 'r2l'):
        canvases = []
        for window in (1, 6):
            canvas = Canvas.of_texts(texts, Order(order), 7)
            fill(model, canvas, Lossless(window), Drawing())
            canvases.append(canvas)
        assert torch.equal(canvases[0].idx, canvases[1].idx)
        assert torch.equal(canvases[1].known, canvases[1].n_visits)
        assert (
            canvases[0].step == write(model, texts, order, 7, 12).step
        ).all()  # window 1: one token a step
    order = [3, 0, 2, 1]
    one, many = (
        Canvas.of_texts([([1] * 4, [False] * 4)], Order.of(order, {}), 7) for _ in range(2)
    )
    for canvas, window in ((one, 1), (many, 4)):
        fill(model, canvas, Lossless(window), Drawing())
    assert torch.equal(one.idx, many.idx)
    assert many.order[0].tolist()[:4] == order


def test_prompts_that_are_read_in_groups_change_nothing():
    model = make_model(block_size=80)
    order = orders_of('random', 4, 80)
    known = torch.tensor([0, 35, 70, 79])
    runs = [
        lossless(model, torch.ones_like(order), order, window, n_known=known) for window in (1, 16)
    ]
    assert torch.equal(*runs)


# ---- the law


@pytest.mark.parametrize(
    'N, n_known, drawing',
    [(3, 0, {}), (4, 0, {}), (4, 1, dict(top_k=2)), (4, 1, dict(top_p=0.8, temperature=0.7))],
)
def test_the_law_equals_one_token_a_pass(N, n_known, drawing):
    """Frequencies of all sequences against their probabilities by enumeration."""
    model = make_model(block_size=N, vocab_size=3)
    n = 5_000
    order = torch.tensor([[2, 0, 3, 1][:N] if N == 4 else [2, 0, 1]])
    idx = torch.tensor(
        [row for row in itertools.product(range(3), repeat=N) if n_known == 0 or row[2] == 1]
    )
    law = torch.zeros(len(idx), dtype=torch.float64)
    for d in range(n_known, N):
        logits = model.predict(idx, order.expand(len(idx), N), d, 1)[:, 0] / drawing.get(
            'temperature', 1.0
        )
        logits = keep_largest(logits, drawing.get('top_k', 0), drawing.get('top_p', 1.0))
        law += logits.log_softmax(-1).gather(1, idx[:, order[0, d], None])[:, 0]
    law = law.exp()
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=torch.float64))
    if not drawing and not n_known:
        torch.testing.assert_close(law, (-model(idx, order.expand(len(idx), N)).sum(1)).exp())
    drawn = lossless(
        model, torch.ones(n, N, dtype=torch.long), order.expand(n, N), N, n_known=n_known, **drawing
    )
    powers = 3 ** torch.arange(N)
    counts = torch.bincount(drawn @ powers, minlength=3**N)[idx @ powers]
    assert counts.sum() == n
    assert (counts[law == 0] == 0).all()
    counts = counts[law > 0]
    law = law[law > 0]
    chi2 = ((counts - n * law) ** 2 / (n * law)).sum()
    freedom = len(law) - 1
    assert chi2 < freedom + 5 * (2 * freedom) ** 0.5


def test_texts_of_different_seeds_are_independent():
    model = make_model(block_size=3, vocab_size=3)
    order = torch.tensor([[2, 0, 1]])
    a, b = (
        lossless(
            model,
            torch.zeros(4000, 3, dtype=torch.long),
            order.expand(4000, 3),
            3,
            n_known=0,
            seeds=range(first, first + 4000),
        )
        for first in (0, 1)
    )
    pairs = torch.zeros(27, 27, dtype=torch.float64)
    for x, y in zip(*(text @ torch.tensor([9, 3, 1]) for text in (a, b))):
        pairs[x, y] += 1
    expected = pairs.sum(1, keepdim=True) * pairs.sum(0) / 4000
    seen = expected > 0.5
    chi2 = ((pairs - expected) ** 2 / expected)[seen].sum()
    assert chi2 < seen.sum() + 5 * (2 * seen.sum()) ** 0.5


# ---- the noise


def test_noise_is_standard_gumbel():
    noise = token_noise(keys_of([5]), torch.tensor([3]), 20_000)[0].double()
    cdf = (-(-noise.sort().values).exp()).exp()  # uniform if it is
    uniform = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    assert (cdf - uniform).abs().max() < 1.95 / 20_000**0.5  # Kolmogorov, p = 0.001
    assert noise.isfinite().all()


def test_noise_reaches_what_a_uniform_float32_cannot_and_is_finite():
    """A token of probability 1e-8 wins with noise above 18.4: a float32 in [0, 1) ends at 16.6."""
    ends = gumbel(torch.tensor([0, 2**31 - 64, 2**31 - 1], dtype=torch.int32))
    assert ends[0] == pytest.approx(-math.log(2.0**-32), abs=1e-5)
    assert ends[1:].tolist() == pytest.approx([-math.log(24 * math.log(2))] * 2, abs=1e-5)
    # so that a token that is cut is never drawn: the noise of the only one that is left is the least of all
    bits = torch.full((1, 11), 2**30, dtype=torch.int32)
    bits[0, 7] = 2**31 - 1
    logits = 10.0 * (torch.arange(11) == 7)[None].double()
    assert Drawing(top_k=1).tokens_by_noise(logits, lambda: gumbel(bits)) == 7


def test_noise_belongs_to_seed_position_and_token():
    """Whatever else is drawn beside it, and however many tokens there are."""
    seeds = [8, 8, 9, 8 + 2**70]
    position = torch.tensor([4, 2, 4, 4])
    noise = token_noise(keys_of(seeds), position, 7)
    assert len({*noise.flatten().tolist()}) == 28
    for r, seed in enumerate(seeds):
        assert torch.equal(token_noise(keys_of([seed]), position[r : r + 1], 5)[0], noise[r, :5])


# ---- what a pass accepts


def accepted(order, known, n_drafts, drafts, tokens, N=8):
    """(n_new, tokens of the visits behind `known`, n_drafts) of one row after a pass over these cells."""
    canvas = Canvas(torch.zeros(1, N, dtype=torch.long), torch.tensor([order]), known, [0])
    canvas.n_drafts = torch.tensor([n_drafts])
    n = torch.tensor([len(tokens)])
    row, column, visit = canvas.cells(n)
    position = canvas.order[row, visit]
    canvas.idx[0, position[:n_drafts]] = torch.tensor(drafts, dtype=torch.long)
    n_new, sure = Lossless().accept(canvas, row, column, position, torch.tensor(tokens), n)
    assert sure.tolist() == list(range(int(n_new)))
    return int(n_new), canvas.idx[row, position].tolist(), int(canvas.n_drafts)


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
    # left to right, the first is wrong: the second read it, the third read the second, which is right; the fourth read
    # the third, which changes; the fifth is no draft yet
    assert accepted(LEFT, 0, 4, [5, 6, 7, 8], [1, 6, 3, 4, 9]) == (1, [1, 6, 3, 8, 9], 4)
    assert accepted(LEFT, 0, 4, [5, 6, 7, 8], [1, 2, 7, 4, 9]) == (1, [1, 6, 7, 4, 9], 4)
    # right to left the wrong one is to the right
    assert accepted(LEFT[::-1], 0, 3, [5, 6, 7], [1, 2, 7]) == (1, [1, 6, 7], 2)
    # a draft beside it that comes later was not read
    assert accepted([1, 5, 0, 2, 3, 4, 6, 7], 0, 3, [5, 6, 7], [5, 1, 2]) == (2, [5, 1, 2], 1)
    assert accepted([1, 5, 0, 2, 3, 4, 6, 7], 0, 4, [5, 6, 7, 8], [5, 6, 1, 2]) == (
        3,
        [5, 6, 1, 2],
        1,
    )
    # the ends of the text are beside nothing
    assert accepted([0, 7, 3, 1, 2, 4, 5, 6], 0, 2, [5, 6], [1, 2]) == (1, [1, 2], 1)


# ---- what it costs


def test_a_round_is_one_pass_over_the_window_and_passes_never_exceed_tokens(monkeypatch):
    model = half_certain()
    order = orders_of('random')
    ran = []
    trunk = AOGPT.trunk
    monkeypatch.setattr(
        AOGPT,
        'trunk',
        lambda self, idx, order, slots, cache: (
            ran.append((len(idx), slots.number.size(1), slots.columns.size(1)))
            or trunk(self, idx, order, slots, cache)
        ),
    )
    for window in (1, 4, 12):
        ran.clear()
        _, trace = lossless(
            model, torch.ones_like(order), order, window, n_known=0, return_trace=True
        )
        passes = trace['step'].max(1).values + 1  # (B,)
        assert len(ran) == passes.max()
        assert (passes <= 12).all()
        assert sum(rows for rows, _, _ in ran) == passes.sum()  # rows leave when they are done
        assert all(
            n_slots <= window and n_targets <= window for _, n_slots, n_targets in ran
        )  # nothing runs twice


def test_greedy_of_a_model_that_is_sure_takes_few_passes():
    """Whatever is known, the last layer says the same token: every draft is right."""
    model = make_model(block_size=64)
    model.lm_head.weight.zero_()
    order = orders_of('random', 2, 64)
    _, trace = lossless(model, torch.zeros_like(order), order, 16, n_known=0, return_trace=True)
    # one token and 15 drafts, then these and one more: nothing is left of the window for drafts
    assert trace['step'][0].bincount().tolist() == [1, 16, 1, 16, 1, 16, 1, 12]


def test_an_encoder_is_refused():
    order = orders_of('random')
    with pytest.raises(ValueError, match='lossless unmasking wants a decoder'):
        lossless(
            make_model(block_size=12, attention='bidirectional'), torch.zeros_like(order), order, 4
        )
