"""What the room anyorder/generation defines by itself, by hand or by enumeration.

What holds for every way of writing is in test_laws.py."""

import gc
import itertools
import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from conftest import make_model, numbers, one_line
from oracle import ENCODER, chi2_of, counts_of, cut, limit

from anyorder.checkpoint import set_exempt
from anyorder.fast import freeze, product_dtype
from anyorder.generation import (
    Adaptive,
    Canvas,
    Drawing,
    Given,
    Lossless,
    Revised,
    drawing,
    fill,
    generate,
    noise,
    sample_tokens,
    scores,
    unmask_schedule,
    unmasking,
    unmasking_of,
)
from anyorder.generation.canvas import sample_of
from anyorder.generation.options import check_keywords
from anyorder.generation.plan import Bounds, Cells, Plan
from anyorder.generation.presence import penalize
from anyorder.generation.scores import SCORES, confidence
from anyorder.generation.unmasking import gumbel_noise
from anyorder.generation.way import Page, Way, order_and_unmasking
from anyorder.orders import Order, given_first, sample_order
from anyorder.seeds import keys_of
from anyorder.tokens.prompts import parse_prompt
from anyorder.tokens.tokenizers import Bytes, Symbols
from model import AOGPT, KVCache, Slots


def close(one, other, atol=1e-10):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def write(model, texts, order='random', seed=0, **how):
    """The canvas of texts [(tokens, is_known)] that were written by options of sample.py."""
    way = Way.of({}, order, **how)
    canvas = Canvas.of_texts(texts, way.order, seed)
    for _ in way.steps(model, canvas):
        pass
    return canvas


def prompt_of(n, n_blanks):
    """(tokens, is_known) of n known tokens, and of n_blanks blanks behind them."""
    known = [i < n for i in range(n + n_blanks)]
    return [int(is_known) for is_known in known], known


# ---- how many blanks a step reveals


def exact_cosine(x):
    total = term = Decimal(1)
    for i in range(1, 30):
        term *= -x * x / ((2 * i - 1) * (2 * i))
        total += term
    return total


@pytest.mark.parametrize('kind', ['linear', 'cosine'])
@pytest.mark.parametrize('n', [1, 5, 8, 64, 250, 1024, 12288])
def test_a_schedule_is_the_floor_of_its_formula(kind, n):
    """In 50 digits, and each step reveals a blank at least.

    cos(pi / 3) is 1/2, of which a float has more, so that the floor would be one too low."""
    getcontext().prec = 50
    pi = Decimal('3.14159265358979323846264338327950288419716939937510582097494')
    for n_steps in (1, 2, 3, 6, 7, 12, 24, 48):
        most = min(n, n_steps)
        wanted = [0]
        for k in range(1, most):
            share = Decimal(k) / most if kind == 'linear' else 1 - exact_cosine(pi * k / (2 * most))
            exact = int(n * share + Decimal('1e-40'))
            wanted.append(max(exact, wanted[-1] + 1))
        assert unmask_schedule(n, n_steps, kind) == [*wanted[1:], n]
        assert wanted[-1] < n


# (an Unmasking, numbers of blanks, the ends of each row by hand)
ENDS = [
    (Given(4), [10], [[2, 5, 7, 10]]),
    (Given(4, 'cosine'), [10], [[1, 2, 6, 10]]),  # 0.76, 2.93, 6.17, 10
    (Given(99), [3], [[1, 2, 3]]),
    (Given(5), [0], [[]]),
    (Given(2), [4, 1, 0], [[2, 4], [1, 1], [0, 0]]),
    (Given(schedule=[1, 4]), [4, 1], [[1, 4], [1, 1]]),
    (Lossless(2), [4, 1], [[4], [1]]),
    (Adaptive('margin', threshold=0.5), [4, 1], [[4], [1]]),
    (Adaptive('margin', 4, block_length=2), [8], [[2, 4, 6, 8]]),
    (Adaptive('margin', 99, block_length=3), [8], [[1, 2, 3, 4, 5, 6, 7, 8]]),
    (Adaptive('margin', 1, block_length=2), [8], [[2, 4, 6, 8]]),
    (Adaptive('margin', 2, block_length=4), [8], [[4, 8]]),
    (Adaptive('margin', 3, block_length=4), [8], [[4, 6, 8]]),
    (Adaptive('margin', 6, block_length=4), [8], [[1, 2, 4, 5, 6, 8]]),
    (Adaptive('margin', 3, block_length=3), [7], [[3, 6, 7]]),
    (Adaptive('margin', 4, block_length=8), [5, 0], [[1, 2, 3, 5], [0, 0, 0, 0]]),
    (Adaptive('margin', 8, 'cosine', block_length=10), [20], [[1, 2, 6, 10, 11, 12, 16, 20]]),
]


@pytest.mark.parametrize('way, n_blanks, ends', ENDS, ids=str)
def test_the_ends_of_steps_by_hand(way, n_blanks, ends):
    assert way.ends(n_blanks, range(len(n_blanks))).tolist() == ends


def test_a_binomial_schedule_counts_the_numbers_that_the_mask_level_has_passed():
    """A number of the row's seed for each blank, and others in a round of revision."""
    for kind, shares in {'linear': [0.5, 0], 'cosine': [0.5**0.5, 0]}.items():
        two = Given(2, kind, binomial=True)
        for row, n, seed in zip(two.ends([9, 9, 5], [7, 3, 7]).tolist(), (9, 9, 5), (7, 3, 7)):
            u = numbers(seed, 'unmask', n=n)
            assert row == [int((u >= share).sum()) for share in shares]
        assert two.ends([99], [5], 'round', 0).tolist() != two.ends([99], [5]).tolist()
    u = numbers(3, 'unmask')
    ends = Adaptive('margin', 4, binomial=True, block_length=5).ends([9], [3])
    block = [int((u[:5] >= share).sum()) for share in (0.5, 0)]
    assert ends.tolist() == [[*block, 5 + int((u[5:] >= 0.5).sum()), 9]]


def sequence_law(model, order, ends):
    """Probability (27,) of every sequence under `order` revealed by `ends`, by enumeration."""
    idx = torch.tensor([*itertools.product(range(3), repeat=3)])
    order = order.expand(27, 3)
    logprob = torch.zeros(27, dtype=torch.float64)
    for start, end in itertools.pairwise([0, *ends]):
        logp = model.predict(idx, order, start, end - start).log_softmax(-1)
        tokens = idx.gather(1, order[:, start:end])
        logprob += logp.gather(2, tokens.unsqueeze(-1)).sum((1, 2))
    return logprob.exp()


def ancestral_law(model, levels):
    """Probability (27,) of every sequence by two steps of ancestral sampling, by enumeration.

    Of which blanks each step reveals, each by itself with probability 1 - s / t where the mask
    level falls from t to s, and of the order in which they are read afterwards."""
    law = torch.zeros(27, dtype=torch.float64)
    for step_of in itertools.product(range(2), repeat=3):
        p = math.prod(levels[1] if step else 1 - levels[1] for step in step_of)
        first = [i for i in range(3) if step_of[i] == 0]
        rest = [i for i in range(3) if step_of[i] == 1]
        p_order = 1 / math.factorial(len(first)) / math.factorial(len(rest))
        ends = sorted({len(first), 3} - {0})
        ways = itertools.product(itertools.permutations(first), itertools.permutations(rest))
        for way, later in ways:
            law += p * p_order * sequence_law(model, torch.tensor([[*way, *later]]), ends)
    return law


@pytest.mark.slow
@pytest.mark.parametrize('kind, half', [('linear', 0.5), ('cosine', 0.5**0.5)])
def test_binomial_unmasking_is_ancestral_sampling(kind, half):
    model = make_model(block_size=3, vocab_size=3)
    law = ancestral_law(model, [1.0, half])
    close(law.sum(), torch.ones_like(law.sum()))
    order = sample_order(6_000, 3, generator=torch.Generator().manual_seed(1))
    how = dict(schedule=kind, unmask='binomial', generator=torch.Generator().manual_seed(0))
    drawn = generate(model, order * 0, order, 0, 2, **how)
    assert chi2_of(counts_of(drawn), law) < limit(26)


@pytest.mark.slow
def test_samples_are_exact_over_orders_and_tokens():
    """The joint law of order and tokens, which are independent draws of seeds."""
    model = make_model(block_size=3, vocab_size=3)
    canvas = write(model, [prompt_of(0, 3)] * 8_000, seed=5, n_steps=3)
    counts = []
    law = []
    for order in torch.tensor([*itertools.permutations(range(3))]):
        counts.append(counts_of(canvas.idx[(canvas.order == order).all(1)]))
        law.append(sequence_law(model, order[None], [1, 2, 3]) / 6)
    assert chi2_of(torch.cat(counts), torch.cat(law)) < limit(161)


# ---- how a token is drawn

CUTS = [
    {},
    dict(top_k=3),
    dict(top_p=0.6),
    dict(top_p=0.6, top_k=4),
    dict(temperature=0.5),
    dict(top_k=1),
    dict(temperature=2.0, top_k=5, top_p=0.9),
    dict(top_p=1e-9),
    dict(min_p=0.3, temperature=3.0),
    dict(min_p=0.05, top_p=0.8, top_k=4, temperature=2.0),
    dict(min_p=1.0),
]


@pytest.mark.parametrize('how', CUTS, ids=str)
def test_drawn_frequencies_are_the_law(how):
    logits = torch.tensor([0.3, 2.0, -1.0, 1.2, 0.0, 1.9, -torch.inf], dtype=torch.float64)
    law = cut(logits, **how).softmax(-1)
    n = 6_000
    drawn = sample_tokens(logits.expand(n, 7), **how, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=7)
    deviation = (n * law * (1 - law)).sqrt()
    assert ((counts - n * law).abs() <= 5 * deviation + 1e-9).all()


@pytest.mark.parametrize('top_k, top_p', [(0, 0.9), (40, 0.9), (3000, 1.0), (3000, 0.99)])
def test_a_nucleus_is_cut_from_all_tokens_however_wide(top_k, top_p):
    spread = torch.tensor([[0.1], [1.0], [3.0], [9.0]])  # some reach beyond 1024
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 2000, dtype=torch.float64, generator=g) * spread
    wanted = torch.stack([cut(row, 1.0, top_k, top_p) for row in logits])
    assert torch.equal(drawing.keep_largest(logits, top_k, top_p), wanted)


def test_uniform_numbers_map_to_tokens_by_the_cumulative_sum():
    logits = torch.tensor([0.5, 0.0, 0.25, 0.25, 0.0]).log()
    u = torch.tensor([0.0, 0.499, 0.501, 0.749, 0.751, 1 - 2**-53], dtype=torch.float64)
    assert sample_tokens(logits.expand(6, 5), u=u).tolist() == [0, 0, 2, 2, 3, 3]
    assert sample_tokens(logits.expand(2, 3, 5), temperature=0).tolist() == [[0] * 3] * 2
    g = torch.Generator().manual_seed(3)
    by_generator = sample_tokens(logits.expand(3, 4, 5), generator=g)
    u = torch.rand(3, 4, dtype=torch.float64, generator=g.manual_seed(3))
    assert torch.equal(by_generator, sample_tokens(logits.expand(3, 4, 5), u=u))


@pytest.mark.parametrize('V', [1, 2, 255, 256, 257, 700, 1024])
def test_the_inverse_in_chunks_is_the_cumulative_sum(V):
    g = torch.Generator().manual_seed(0)
    p = torch.rand(300, V, dtype=torch.float64, generator=g)
    p *= torch.rand(300, V, generator=g) < 0.3
    p[:, V // 2] += 1e-3
    u = torch.rand(300, dtype=torch.float64, generator=g)
    u[:3] = torch.tensor([0.0, 0.5, 1 - 2**-53])
    j = drawing.invert_cdf(p, u).unsqueeze(1)
    own = p.gather(1, j)[:, 0]
    above = p.cumsum(1).gather(1, j)[:, 0]
    target = u * p.sum(1)
    assert (own > 0).all()
    assert (above - own - 1e-12 <= target).all()
    assert (target <= above + 1e-12).all()


@pytest.mark.parametrize('n_small, token', [(-1, 0), (0.5, 300), (1.5, 600), (2.5, 900)])
def test_cumulative_sums_hold_what_float32_cannot(n_small, token):
    """2^-25 more is lost to a float32 sum of 1."""
    small = 2.0**-25
    p = torch.zeros(1, 1024)
    p[0, 0] = 1.0
    p[0, [300, 600, 900]] = small
    share = (1 + n_small * small) / (1 + 3 * small)
    assert drawing.invert_cdf(p, torch.tensor([share], dtype=torch.float64)) == token


def test_the_last_uniform_number_never_draws_what_has_no_probability():
    logits = torch.randn(50, 50003)
    logits[:, 50000:] = -torch.inf
    u = torch.full((50,), 1 - 2**-53, dtype=torch.float64)
    assert (sample_tokens(logits, u=u) < 50000).all()


def test_nothing_is_drawn_or_scored_in_16_bits():
    low = torch.randn(400, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    u = torch.rand(400, dtype=torch.float64)
    for how in ({}, dict(temperature=0.7), dict(top_p=0.8)):
        drawn = sample_tokens(low, **how, u=u)
        assert torch.equal(drawn, sample_tokens(low.float(), **how, u=u))
    for policy in SCORES:
        assert torch.equal(confidence(low, policy), confidence(low.float(), policy))
    logprob = drawing.token_logprob(low, drawn)
    assert logprob.dtype == torch.float32
    close(logprob, low.float().log_softmax(-1)[torch.arange(400), drawn], atol=1e-5)


@pytest.mark.parametrize('temperature', [1e-320, 1e-50, 1e-3])
def test_temperature_near_zero_is_argmax(temperature):
    logits = torch.tensor([[1.0, -3.0, 9.0, 2.0], [40.0, 2.0, -torch.inf, 3.0]])
    assert sample_tokens(logits, temperature=temperature).tolist() == [2, 0]
    assert sample_tokens(logits[0], temperature=temperature) == 2
    hot = sample_tokens(logits[1].expand(99, 4), temperature=1e60)
    assert {*hot.tolist()} == {0, 1, 3}


def test_argmax_in_chunks_is_the_first_largest():
    for V in (7, 128, 640):
        x = torch.randint(9, (50, 2, V), generator=torch.Generator().manual_seed(0))
        assert torch.equal(drawing.argmax(x), (x == x.amax(-1, True)).int().argmax(-1))


# ---- noise


def test_noise_is_standard_gumbel():
    """That of tokens, and that of scores: the quantile of a uniform number, and finite."""
    of_tokens = drawing.token_noise(keys_of([5]), torch.tensor([3]), 20_000)[0].double()
    u = numbers(0, n=20_000)
    of_scores = gumbel_noise(torch.cat([torch.zeros(1), u]))
    close(of_scores[1:], -(-u.log()).log(), atol=1e-9)
    assert -torch.inf < of_scores[0] < of_scores[1:].min()
    for found in (of_tokens, of_scores[1:]):
        cdf = (-(-found.sort().values).exp()).exp()  # uniform if it is
        uniform = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
        assert (cdf - uniform).abs().max() < 1.95 / 20_000**0.5  # Kolmogorov, p = 0.001


def test_noise_reaches_what_a_uniform_float32_cannot_and_is_finite():
    """A token of probability 1e-8 wins with noise above 18.4: a float32 in [0, 1) ends at 16.6."""
    ends = drawing.gumbel(torch.tensor([0, 2**31 - 64, 2**31 - 1], dtype=torch.int32))
    most = -math.log(24 * math.log(2))
    assert ends.tolist() == pytest.approx([-math.log(2.0**-32), most, most], abs=1e-5)


def test_a_token_that_is_cut_is_never_drawn():
    """Though the noise of the only one that is left is the least of all."""
    bits = torch.full((1, 11), 2**30, dtype=torch.int32)
    bits[0, 7] = 2**31 - 1
    logits = torch.zeros(1, 11, dtype=torch.float64)
    logits[0, 7] = 10.0
    assert Drawing(top_k=1).tokens_by_noise(logits, lambda: drawing.gumbel(bits)) == 7


def test_noise_belongs_to_seed_position_and_token():
    """Whatever else is drawn beside it, and however many tokens there are."""
    seeds = [8, 8, 9, 8 + 2**70]
    position = torch.tensor([4, 2, 4, 4])
    found = drawing.token_noise(keys_of(seeds), position, 7)
    assert len({*found.flatten().tolist()}) == 28
    for r, seed in enumerate(seeds):
        alone = drawing.token_noise(keys_of([seed]), position[r : r + 1], 5)
        assert torch.equal(alone[0], found[r, :5])


def test_texts_of_different_seeds_are_independent():
    model = make_model(block_size=3, vocab_size=3)
    order = torch.tensor([2, 0, 1]).expand(4001, 3)
    drawn = generate(model, order, order, 0, unmask='lossless', seeds=range(4001))
    number = drawn @ torch.tensor([9, 3, 1])
    pairs = torch.zeros(27, 27, dtype=torch.float64)
    pairs.index_put_((number[:-1], number[1:]), torch.ones(1, dtype=pairs.dtype), accumulate=True)
    expected = pairs.sum(1, keepdim=True) * pairs.sum(0) / 4000
    seen = expected > 0.5
    assert ((pairs - expected) ** 2 / expected)[seen].sum() < limit(seen.sum())


# ---- scores


def test_scores_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], dtype=torch.float64)
    nats = sum(x * math.log(x) for x in (0.5, 0.3, 0.2))
    wanted = {'top_prob': [0.5, 1.0], 'margin': [0.2, 1.0], 'entropy': [nats, 0.0]}
    for policy, found in wanted.items():
        assert confidence(p.log(), policy).tolist() == pytest.approx(found)


@pytest.mark.parametrize('policy', SCORES)
def test_confidence_is_the_same_in_parts(monkeypatch, policy):
    logits = torch.randn(3, 5, 7, dtype=torch.float64)
    whole = confidence(logits, policy)
    monkeypatch.setattr(scores, 'split_rows', lambda vocab_size, x: [x.split(2)])
    assert torch.equal(confidence(logits, policy), whole)
    assert whole.shape == (3, 5)


def test_scores_that_differ_by_rounding_alone_are_equal():
    """In a row: they become the largest one, step by step; others stay as they are."""
    low = -torch.inf
    score = torch.tensor([0.5, 0.3, 0.5 + 1e-5, 0.5 - 1e-5, 0.3 + 1e-3, low, low, 0.5 - 2e-5, 0.5])
    row = torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1])
    best = 0.5 + 1e-5
    equal = torch.tensor([best, 0.3, best, best, 0.3 + 1e-3, low, low, 0.5 - 2e-5, best])
    assert torch.equal(scores.without_rounding(score, row), equal)
    score = torch.tensor([0.5, 0.5 + 1e-10, 0.5 + 1e-6], dtype=torch.float64)
    found = scores.without_rounding(score, torch.zeros(3, dtype=torch.long))
    assert torch.equal(found, score[[1, 1, 2]])


def test_of_equal_scores_the_first_in_the_order_is_taken_and_a_threshold_is_reached():
    """In any batch. All tokens are equal: a score of 1/8 each."""
    model = make_model(block_size=40, vocab_size=8)
    model.lm_head.weight.zero_()
    model.lm_head.bias.zero_()
    order = sample_order(3, 40)
    score = float(confidence(torch.zeros(1, 8, dtype=torch.float64), 'top_prob'))
    ways = {'margin': (3, 3), f'top_prob:{score}': (40, 1), f'top_prob:{score * 1.0001}': (40, 40)}
    for policy, (n_steps, n_passes) in ways.items():
        _, trace = generate(model, order % 8, order, 0, n_steps, policy, return_trace=True)
        assert torch.equal(trace['order'], order)
        assert (trace['step'].amax(1) == n_passes - 1).all()


def test_a_vocabulary_of_one_token():
    model = make_model(vocab_size=8, n_tokens=1)
    order = sample_order(2, 9)
    for policy in ('given', *SCORES):
        assert not generate(model, order, order, 0, 3, policy).any()


# ---- the canvas

TEXTS = [
    ([3, 0], [True, False]),
    ([1, 0, 0, 2, 0], [True, False, False, True, False]),
    ([0] * 4, [False] * 4),
]
TABLES = ('idx', 'order', 'step', 'logprob', 'u')


@pytest.mark.parametrize(
    'seed', [5, np.int64(5), torch.tensor(5), [np.int64(5), torch.tensor(6), 7]], ids=repr
)
def test_texts_of_unequal_length(seed):
    canvas = Canvas.of_texts(TEXTS, Order('random'), seed)
    assert canvas.idx.tolist() == [[3, 0, 0, 0, 0], [1, 0, 0, 2, 0], [0] * 5]
    assert canvas.n_visits.tolist() == [2, 5, 4]
    assert canvas.known.tolist() == [1, 2, 0]
    assert canvas.seeds == [5, 6, 7]
    assert canvas.n_blanks.tolist() == [1, 3, 4]
    assert (canvas.step == -1).all()
    assert (canvas.logprob == 0).all()
    for r, (tokens, known) in enumerate(TEXTS):
        n = len(tokens)
        drawn = sample_order(1, n, keys=keys_of([5 + r]))[0].tolist()
        given = [p for p in range(n) if known[p]]
        blanks = [p for p in drawn if not known[p]]
        assert canvas.order[r].tolist() == [*given, *blanks, *range(n, 5)]
        assert torch.equal(canvas.u[r], numbers(5 + r, 'tokens', n=5))


@pytest.mark.parametrize(
    'order, visits',
    [
        (Order('l2r'), [0, 3, 6, 1, 2, 4, 5]),
        (Order('r2l'), [6, 3, 0, 5, 4, 2, 1]),
        (Order('few', 3, seed=1, length=12), None),
        (Order.of([3, 5, 4, 0, 2, 1, 6, 7], {}), [3, 0, 6, 5, 4, 2, 1]),
    ],
)
def test_known_tokens_are_visited_before_the_blanks_as_in_training(order, visits):
    """Both in the given order; but from left to right if that is random."""
    tokens, known, *_ = parse_prompt('a[[2]]b[[=cd]]e', Bytes(), 12).lay_out()  # of 0, 3 and 6
    canvas = Canvas.of_texts([(tokens, known)] * 8, order, 0)
    drawn = order.draw(8, 7, keys=keys_of(range(8)))
    expected, *_ = given_first(drawn, torch.tensor(known).expand(8, -1))
    assert torch.equal(canvas.order, expected)
    assert (canvas.n_visits == 7).all()
    assert visits in (None, canvas.order[0].tolist())
    for kind in ('random', 'sorted_subset'):
        canvas = Canvas.of_texts([(tokens, known)], Order(kind), 0)
        assert canvas.order[0, :3].tolist() == [0, 3, 6]


def test_a_random_order_is_not_a_fixed_one_of_the_same_seed():
    order = Canvas.of_texts([prompt_of(0, 8)], Order('random'), 0).order
    assert not torch.equal(order, sample_order(1, 8, 'fixed', seed=0))


def test_cells_are_the_next_visits_row_by_row():
    canvas = Canvas.of_texts(TEXTS, Order('l2r'), 0)
    row, column, visit = canvas.cells(torch.tensor([1, 0, 3]))
    assert row.tolist() == [0, 2, 2, 2]
    assert column.tolist() == [0, 0, 1, 2]
    assert visit.tolist() == [1, 0, 1, 2]


def test_rows_leave_and_come_back(batch):
    """The canvas, and a part of it, are copies; a part may come back wider."""
    idx, order = batch
    before = idx.clone(), order.clone()
    canvas = Canvas(idx, order, torch.tensor([0, 3, 9, 8, 5]), [50, 51, 52, 53, 54])
    part = canvas.take(torch.tensor([True, True, False, False, True]))
    part = part.take(torch.tensor([False, True, True]))
    assert part.rows.tolist() == [1, 4]
    assert part.seeds == [51, 54]
    assert len(part) == 2
    assert part.n_blanks.tolist() == [6, 4]
    tables = {name: getattr(canvas, name).clone() for name in TABLES}
    for name, table in tables.items():
        assert torch.equal(getattr(part, name), table[[1, 4]])
        wider = torch.nn.functional.pad(getattr(part, name), (0, 3))
        setattr(part, name, wider + 1)
        assert torch.equal(getattr(canvas, name), table)
    part.known = part.known + 1
    part.n_steps = part.n_steps + 2

    canvas.put(part)
    assert canvas.known.tolist() == [0, 4, 9, 8, 6]
    assert canvas.n_steps.tolist() == [0, 2, 0, 0, 2]
    assert torch.equal(idx, before[0])
    assert torch.equal(order, before[1])
    for name, table in tables.items():
        table[[1, 4]] += 1
        assert torch.equal(getattr(canvas, name), table)


def test_a_sample_is_a_row_without_its_padding():
    canvas = Canvas.of_texts([([0, 98, 0], [False, True, False]), TEXTS[1]], Order('l2r'), 0)
    canvas.idx[0, [0, 2]] = torch.tensor([99, 101])
    canvas.step[0, [0, 2]] = torch.tensor([1, 0])
    canvas.logprob[0, [0, 2]] = torch.tensor([-0.5, -0.25], dtype=torch.float64)
    assert sample_of(*canvas.lists()[0], Bytes()) == {
        'text': 'cbe',
        'tokens': [99, 98, 101],
        'nats': 0.75,
        'blanks': 2,
        'passes': 2,
        'order': [1, 0, 2],
        'step': [1, -1, 0],
        'logprob': [-0.5, 0.0, -0.25],
    }
    assert str(sample_of([97], [0], [-1], [0.0], Bytes())['nats']) == '0.0'


# ---- steps


def test_generate_is_one_token_a_step_of_seeds_that_a_generator_draws(batch):
    """By default. It changes nothing of what it is given, nor what stands behind a row."""
    model = make_model()
    idx, order = batch
    before = idx.clone()
    g = torch.Generator().manual_seed(3)
    seeds = torch.randint(2**62, (5,), generator=g)
    text, trace = generate(model, idx, order, 2, generator=g.manual_seed(3), return_trace=True)
    assert torch.equal(text, generate(model, idx, order, 2, seeds=seeds))
    by_visit = trace['step'].gather(1, order)
    assert (by_visit == torch.arange(-2, 7).clamp(min=-1)).all()
    assert torch.equal(idx, before)
    assert not torch.equal(generate(model, idx, order, 2), generate(model, idx, order, 2))
    canvas = Canvas(idx, order, 2, seeds, 6)
    fill.fill(model, canvas, Given(3), Drawing())
    assert torch.equal(canvas.idx.gather(1, order)[:, 6:], idx.gather(1, order)[:, 6:])


def test_every_step_is_told_with_what_it_revealed(batch):
    canvas = Canvas(*batch, torch.tensor([0, 3, 9, 8, 5]), range(5))
    told = []
    for step, n_new, part in fill.steps(make_model(), canvas, Given(2), Drawing()):
        assert len({*step.tolist()}) == 1
        told.append((int(step[0]), part.rows.tolist(), n_new.tolist(), part.known.tolist()))
    assert told == [
        (0, [0, 1, 3, 4], [4, 3, 1, 2], [4, 6, 9, 7]),
        (1, [0, 1, 4], [5, 3, 2], [9, 9, 9]),
    ]


@pytest.mark.parametrize('how', [{}, dict(policy='margin'), dict(unmask='lossless:2')], ids=str)
def test_rows_that_are_told_to_end_keep_their_blanks_and_the_others_go_on(batch, how):
    model = make_model()
    way = unmasking_of(n_steps=9, **how)
    whole = Canvas(*batch, 2, range(5))
    fill.fill(model, whole, way, Drawing())
    part = Canvas(*batch, 2, range(5))
    for _, _, canvas in fill.steps(model, part, way, Drawing()):
        running = canvas.rows.tolist()
        canvas.stop_rows((canvas.rows % 2 == 0) & (canvas.known >= 4))
    assert {*running} <= {1, 3}
    assert (part.known[1::2] == 9).all()
    assert ((part.known[::2] >= 4) & (part.known[::2] < 9)).all()
    for r, known in enumerate(part.known.tolist()):
        written = part.order[r, 2:known]
        assert torch.equal(part.idx[r, written], whole.idx[r, written])
        assert (part.step[r] >= 0).sum() == known - 2


def test_a_bfloat16_cache_gives_the_same_within_its_precision(batch):
    model = make_model().float()
    how = dict(temperature=0, return_trace=True)
    exact = generate(model, *batch, 2, 4, **how)[1]
    first = exact['step'] == 0  # later steps may have drawn other tokens
    with torch.autocast('cpu', torch.bfloat16):
        assert product_dtype(model) == torch.bfloat16
        for use_cache in (True, False):
            run = generate(model, *batch, 2, 4, use_cache=use_cache, **how)[1]
            assert (run['logprob'] - exact['logprob'])[first].abs().max() < 0.1


# ---- the penalty


def test_what_a_cell_knows():
    """Prompt and drafts before its own visit; not what stands in blanks, nor exempt tokens."""
    idx = torch.tensor([[4, 2, 4, 1, 3], [3, 3, 3, 3, 99]])
    order = torch.tensor([[1, 0, 3, 2, 4], [4, 0, 1, 2, 3]])
    part = Canvas(idx, order, torch.tensor([2, 0]), [0, 1])
    row = torch.tensor([0, 0, 0, 1, 1])
    visit = torch.tensor([2, 3, 4, 0, 1])
    cells = Cells(row, visit, visit, None, None)
    drafts = torch.tensor([3, 0])  # of the first row one
    for exempt, free in ((None, set()), (torch.tensor([2]), {2})):
        found = penalize(torch.zeros(5, 6), 0.5, part, cells, drafts, exempt)
        for has, knows in zip(found, [{2, 4}, {2, 4, 1}, {2, 4, 1}, set(), set()]):
            assert {*has.nonzero()[:, 0].tolist()} == knows - free
        assert {*found.unique().tolist()} == {0.0, -0.5}


def test_the_end_of_a_document_and_special_tokens_have_no_penalty():
    model = make_model(block_size=3, vocab_size=3)
    ended = torch.tensor([[2, 2, 2], [0, 0, 0]])

    def nats(penalty):
        canvas = Canvas(ended, torch.tensor([[2, 0, 1]] * 2), 0, [0, 0])
        fill.fill(model, canvas, Given(3), Drawing(presence_penalty=penalty, scores=True))
        return canvas.logprob.sum(1)

    alone = nats(1.5)
    set_exempt(model, Symbols('own', 'abc', eos=2))
    close(nats(1.5), torch.stack([nats(0.0)[0], alone[1]]))
    assert (alone < nats(0.0)).all()
    tokenizer = Bytes()
    tokenizer.special = {'<a>': 7, '<b>': 3}
    for own, tokens in ((Bytes(), [256]), (Symbols('own', 'ab'), []), (tokenizer, [3, 7, 256])):
        set_exempt(model, own)
        assert model.exempt.tolist() == tokens
    assert 'exempt' not in model.state_dict()


# ---- revision


def test_a_row_is_finished_by_a_round_that_does_not_change_it():
    model = make_model(block_size=8, vocab_size=3)
    order = torch.arange(8).repeat(20, 1)
    how = dict(n_steps=2, seeds=range(20))
    rounds = [generate(model, order, order, 3, revise=k, **how) for k in range(7)]
    n_finished = 0
    for found in torch.stack(rounds, 1):  # (7, 8) of a row
        same = (found[1:] == found[:-1]).all(1).tolist()
        first = [*same, True].index(True)
        assert all(same[first:])
        n_finished += 0 < first < 5
    assert n_finished > 3


# ---- what a lossless pass accepts


def accepted(order, known, n_drafts, drafts, tokens):
    """(n_new, tokens of the visits behind `known`) of one row after a pass over these cells."""
    order = torch.tensor([order])
    canvas = Canvas(torch.zeros_like(order), order, known, [0])
    canvas.n_drafts = torch.tensor([n_drafts])
    n = len(tokens)
    plan = Plan(Slots, Lossless(n), canvas, canvas.n_visits.unsqueeze(1), None)
    bounds = Bounds(*plan.table[0])
    cells = Cells.of(bounds.first, torch.tensor([n]), n, 8, False)
    position = canvas.order[cells.row, cells.visit]
    canvas.idx[0, position[:n_drafts]] = torch.tensor(drafts, dtype=torch.long)
    n_new = int(Lossless().accept(canvas, bounds, cells, position, torch.tensor(tokens)))
    return n_new, canvas.idx[cells.row, position].tolist()


FAR = [0, 2, 4, 6, 1, 3, 5, 7]  # no two of the first four visits stand side by side
LEFT = [*range(8)]
# (order, known, drafts, tokens that the pass drew, n_new, what stands there afterwards)
ACCEPTED = [
    (FAR, 0, [], [5, 6, 7], 1, [5, 6, 7]),  # no drafts yet: one sure token
    (FAR, 0, [5, 6], [5, 6, 7, 8], 3, [5, 6, 7, 8]),  # all are right: one more is sure
    (FAR, 0, [5, 6, 7], [5, 1, 2, 3], 2, [5, 1, 2, 3]),  # the second is wrong
    (FAR, 0, [5, 6], [1, 6], 1, [1, 6]),  # the first is wrong
    (FAR, 6, [5, 6], [5, 6], 2, [5, 6]),  # all are right, to the end
    (LEFT, 7, [], [5], 1, [5]),
    # the first is wrong: the second read it and stays, the third read the second, which is right;
    # the fourth read the third, which changes, and stays; the fifth is no draft yet
    (LEFT, 0, [5, 6, 7, 8], [1, 6, 3, 4, 9], 1, [1, 6, 3, 8, 9]),
    (LEFT, 0, [5, 6, 7, 8], [1, 2, 7, 4, 9], 1, [1, 6, 7, 4, 9]),
    (LEFT[::-1], 0, [5, 6, 7], [1, 2, 7], 1, [1, 6, 7]),
    # a draft beside it that comes later was not read
    ([1, 5, 0, 2, 3, 4, 6, 7], 0, [5, 6, 7], [5, 1, 2], 2, [5, 1, 2]),
    ([1, 5, 0, 2, 3, 4, 6, 7], 0, [5, 6, 7, 8], [5, 6, 1, 2], 3, [5, 6, 1, 2]),
    ([0, 7, 3, 1, 2, 4, 5, 6], 0, [5, 6], [1, 2], 1, [1, 2]),  # the ends are beside nothing
]


@pytest.mark.parametrize('order, known, drafts, tokens, n_new, after', ACCEPTED)
def test_what_a_pass_accepts(order, known, drafts, tokens, n_new, after):
    assert accepted(order, known, len(drafts), drafts, tokens) == (n_new, after)


def test_a_text_that_is_scored_is_read_in_few_passes(monkeypatch):
    """The tokens that stand there are right drafts: lossless passes are of 1, 4, 1 and 3 tokens.
    One token a step is read in passes of as many as memory has room for, here 4."""
    model = make_model()
    monkeypatch.setattr(unmasking, 'SCORED', 4 * 5 * model.config.vocab_size)
    told = {Lossless(4): (4, [0, 1, 1, 1, 1, 2, 3, 3, 3]), Given(9): (3, [*range(9)])}
    for way, (n_passes, step) in told.items():
        canvas = Canvas(ROWS, ORDERS, 0, range(5))
        assert len([*fill.steps(model, canvas, way, Drawing(scores=True))]) == n_passes
        assert canvas.step[0].tolist() == step


def test_greedy_of_a_model_that_is_sure_takes_few_passes():
    """Whatever is known, the last layer says the same token: every draft is right."""
    model = make_model(block_size=64)
    model.lm_head.weight.zero_()
    order = sample_order(2, 64)
    _, trace = generate(model, order % 11, order, 0, unmask='lossless:16', return_trace=True)
    # one token and 15 drafts, then these and one more: nothing is left of the window for drafts
    assert trace['step'][0].bincount().tolist() == [1, 16, 1, 16, 1, 16, 1, 12]


# ---- what it costs


class Costs:
    """Of each pass the rows, their slots and those of them that answer; the rows of the head."""

    def __init__(self, model, monkeypatch):
        self.passes = []
        self.heads = []
        trunk = AOGPT.trunk

        def counted(network, idx, order, slots, cache=None):
            asked = 0 if slots.answering is None else slots.answering.size(1)
            self.passes.append((*slots.number.shape, asked))
            return trunk(network, idx, order, slots, cache)

        monkeypatch.setattr(AOGPT, 'trunk', counted)
        model.lm_head.register_forward_pre_hook(
            lambda _, args: self.heads.append(args[0].shape[:-1].numel())
        )

    def take(self):
        """(slots of each pass, rows of the head of each) since the last call."""
        slots = [rows * n for rows, n, _ in self.passes]
        heads = [*self.heads]
        self.passes.clear()
        self.heads.clear()
        return slots, heads


@pytest.mark.parametrize('order, most', [('random', 12), ('random', 4), ('margin', 6)])
def test_prompts_of_unequal_length_cost_their_own_tokens(monkeypatch, order, most):
    """Those of 32 to 63 tokens are read together, as 46 slots each; alone, the first step reads the
    prompt. An adaptive step runs all blanks, and from the second on the last known slot, too."""
    model = freeze(make_model(block_size=80, vocab_size=16, n_tokens=11).float())
    costs = Costs(model, monkeypatch)
    lengths = (65, 35, 45, 5)
    n_blanks = [most, 4, 4, most]
    rows = [prompt_of(n, blanks) for n, blanks in zip(lengths, n_blanks)]
    write(model, rows, order, n_steps=80)
    together, heads_together = costs.take()
    for row in rows:
        write(model, [row], order, n_steps=80)
    alone, heads_alone = costs.take()
    assert sum(heads_together) == sum(heads_alone)
    read = 66 + 2 * 46 + 6
    if order == 'random':
        assert sum(together) == read + sum(n_blanks)
        assert sum(alone) == sum(lengths) + sum(n_blanks)
    else:
        assert sum(together) == read + 4 * 6 + 4 * (6 + 5 + 4) + 2 * (3 + 2)
        assert sum(alone) == sum(lengths) + 2 * (6 + 6 + 5 + 4 + 3 + 2) + 2 * (4 + 4 + 3 + 2)


def test_the_head_of_an_encoder_is_run_for_what_is_drawn(monkeypatch):
    model = freeze(make_model(block_size=8, **ENCODER))
    costs = Costs(model, monkeypatch)
    write(model, [prompt_of(0, 8), prompt_of(0, 5)], n_steps=8)
    assert costs.heads == [2, 2, 2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize('variant', [{}, ENCODER], ids=str)
@pytest.mark.parametrize('known, length', [(20, 8), (0, 5)])
def test_a_step_runs_the_slots_of_the_block_and_not_all_blanks(monkeypatch, variant, known, length):
    """The first step of a decoder reads the prompt; each step after it reruns the last known slot,
    whose target was another, and the rest of the block. An encoder runs all slots."""
    model = freeze(make_model(block_size=32, **variant).float())
    costs = Costs(model, monkeypatch)
    order = sample_order(1, 32)
    generate(model, order % 11, order, known, 32, f'margin/{length}')
    blocks = [min(length, 32 - start) for start in range(known, 32, length)]
    scored = [left for n in blocks for left in range(n, 0, -1)]
    slots, heads = costs.take()
    assert heads == scored
    if variant:
        assert slots == [32 for _ in scored]
    else:
        assert slots == [known + scored[0], *(n + 1 for n in scored[1:])]


def test_a_lossless_round_is_one_pass_over_the_window_and_passes_never_exceed_tokens(monkeypatch):
    model = freeze(make_model(block_size=12))
    costs = Costs(model, monkeypatch)
    order = sample_order(6, 12, generator=torch.Generator().manual_seed(3))
    drawn = []

    def noise_counted(keys, position, vocab_size):
        drawn.append(len(position))
        return drawing.token_noise(keys, position, vocab_size)

    monkeypatch.setattr(noise, 'token_noise', noise_counted)
    for window in (1, 4, 12):
        costs.take()
        drawn.clear()
        how = dict(unmask=f'lossless:{window}', seeds=range(6), return_trace=True)
        _, trace = generate(model, order % 11, order, 0, **how)
        passes = trace['step'].amax(1) + 1  # (B,)
        assert (passes <= 12).all()
        assert len(costs.passes) == passes.max()
        assert sum(rows for rows, *_ in costs.passes) == passes.sum()  # rows leave when done
        assert all(n_slots <= window and n <= window for _, n_slots, n in costs.passes)
        assert sum(drawn) == order.numel()  # the noise of a blank once


def test_generation_runs_on_one_frozen_copy(monkeypatch):
    model = make_model(block_size=8).float()
    order = sample_order(2, 8)
    calls = []
    linear = torch.nn.Linear.forward

    def freeze_counted(*args):
        calls.append('frozen')
        return freeze(*args)

    def linear_counted(*args):
        calls.append('linear')
        return linear(*args)

    monkeypatch.setattr(fill, 'kept_frozen', freeze_counted)
    monkeypatch.setattr(torch.nn.Linear, 'forward', linear_counted)
    generate(model, order, order, 0, 4)
    # the tables of two blocks and the final layer
    assert calls == ['frozen', 'linear', 'linear', 'linear']


def n_live_bytes():
    """The bytes of all tensors that are alive."""
    gc.collect()
    sizes = {}
    for x in gc.get_objects():
        if type(x) is torch.Tensor and x.layout == torch.strided:
            storage = x.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


@pytest.mark.slow
def test_the_cache_is_as_large_as_it_says_and_nothing_else_stays():
    model = make_model(block_size=64, vocab_size=16, n_layer=3, n_embd=32).float()
    cache = KVCache(model.config, 5)
    assert 4 * (cache.k.numel() + cache.v.numel()) == 4 * 2 * 3 * 5 * 64 * 32
    order = sample_order(5, 64)
    canvas = Canvas(order % 16, order, 0, range(5))
    live = [n_live_bytes() for _ in fill.steps(model, canvas, Given(4), Drawing())]
    assert len(live) == 4
    assert max(live[1:]) == min(live[1:])


# ---- options

NAMED = [
    ({}, Given()),
    (dict(n_steps=4, schedule='cosine'), Given(4, 'cosine')),
    (dict(n_steps=4, unmask='binomial'), Given(4, binomial=True)),
    (dict(schedule=[2, 9]), Given(schedule=[2, 9])),
    (dict(schedule=[2, 9], unmask='binomial'), Given(schedule=[2, 9])),  # nothing is left to draw
    (dict(policy='margin+0.5', n_steps=4), Adaptive('margin', 4, noise=0.5)),
    (dict(policy='margin', unmask='binomial'), Adaptive('margin', binomial=True)),
    (dict(unmask='lossless:64'), Lossless(64)),
    (dict(unmask='lossless', n_steps=9, schedule='cosine'), Lossless(32)),
    (dict(revise=2), Revised(Given(), 2)),
    (dict(policy='margin', revise=1), Revised(Adaptive('margin'), 1)),
]


@pytest.mark.parametrize('options, noun', NAMED, ids=str)
def test_options_name_an_unmasking(options, noun):
    assert unmasking_of(**options) == noun


CHOICES = {
    'margin': Adaptive('margin'),
    'margin/32': Adaptive('margin', block_length=32),
    'top_prob:.9': Adaptive('top_prob', threshold=0.9),
    'entropy+0.5': Adaptive('entropy', noise=0.5),
    'margin/8:0.9+2': Adaptive('margin', block_length=8, threshold=0.9, noise=2.0),
    'own': Given(),
    'r2l': Given(),
}


@pytest.mark.parametrize('text', CHOICES)
def test_a_choice_of_the_model_is_one_text(text):
    order, found = order_and_unmasking(text)
    assert found == CHOICES[text]
    base = text if text in ('own', 'r2l') else 'random'
    assert order == ('l2r' if '/' in text else base)


def test_a_way_is_made_of_options_and_may_score():
    assert Way.of({}) == Way(Order('random'), Given(), Drawing())
    how = dict(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1)
    way = Way.of({'order': 'r2l'}, n_steps=4, **how)
    assert way == Way(Order('r2l'), Given(4), Drawing(**how))
    assert way.to_score == Way.of({'order': 'r2l'}, n_steps=4, score=True, **how)
    assert way.to_score.drawing == Drawing(**how, scores=True)
    assert (way.drawing.n_passes, Drawing(cfg_scale=0.5).n_passes) == (1, 2)


def test_a_keyword_that_nobody_has_is_named_with_the_nearest():
    def function(text):
        return text

    check_keywords({'text': 'a', 'n_steps': 4, 'min_p': 0.1}, function)
    for wrong in ('n_step', 'policy'):
        with pytest.raises(TypeError, match=wrong):
            check_keywords({wrong: 4}, function)


ROWS = torch.zeros(5, 9, dtype=torch.long)
ORDERS = torch.arange(9).expand(5, 9)


def write_by(variant=None, **how):
    generate(make_model(**variant or {}), ROWS, ORDERS, 2, **how)


def canvas_of(order=ORDERS, **how):
    Canvas(ROWS, order, **dict(n_known=0, seeds=range(5)) | how)


def ends_of(schedule):
    Given(schedule=schedule).ends([4, 1], [0, 1])


def score_by(way):
    way.check_network(Slots, 9, scores=True)


# (what is called, with which arguments, a word of the message)
BAD = [
    (unmasking_of, dict(policy='best'), 'policy'),
    (unmasking_of, dict(policy='given+1'), 'policy'),
    (unmasking_of, dict(policy='given/2'), 'policy'),
    (unmasking_of, dict(policy='margin:-0.1'), 'policy'),
    (unmasking_of, dict(policy='entropy:0.5'), 'threshold'),
    (unmasking_of, dict(policy='margin:1.5'), 'threshold'),
    (unmasking_of, dict(policy='margin:0.5', unmask='binomial'), 'threshold'),
    (unmasking_of, dict(policy='margin:0.5', unmask='lossless'), 'margin'),
    (unmasking_of, dict(policy='margin', unmask='lossless'), 'given'),
    (unmasking_of, dict(policy='factor:0'), 'factor'),
    (unmasking_of, dict(policy='factor:1', unmask='binomial'), 'binomial'),
    (unmasking_of, dict(policy='eb:0.5+1'), 'noise'),
    (unmasking_of, dict(unmask='all'), 'unmask'),
    (unmasking_of, dict(unmask='lossless:0'), 'window'),
    (unmasking_of, dict(unmask='lossless', revise=1), 'revise'),
    (unmasking_of, dict(schedule=[2, 4], revise=1), 'revise'),
    (unmasking_of, dict(revise=-1), '-1'),
    (unmasking_of, dict(revise=1.5), '1.5'),
    (Given, dict(n_steps=0), 'n_steps'),
    (Given, dict(n_steps=4, schedule='square'), 'schedule'),
    (Given, dict(schedule=[2, 9], binomial=True), 'ends'),
    (Adaptive, dict(score='best'), 'score'),
    (Adaptive, dict(score='margin', n_steps=0), 'n_steps'),
    (Adaptive, dict(score='margin', noise=-1), 'noise'),
    (Adaptive, dict(score='margin', noise=math.inf), 'noise'),
    (Adaptive, dict(score='margin', threshold=-0.1), 'threshold'),
    (Adaptive, dict(score='margin', threshold=True), 'threshold'),
    (Adaptive, dict(score='margin', binomial=True, threshold=0.5), 'binomial'),
    (Adaptive, dict(score='margin', schedule=[2], block_length=2), 'ends'),
    *[(Adaptive, dict(score='margin', block_length=n), repr(n)) for n in (0, 2.5, True, '2')],
    *[(Lossless, dict(window=n), repr(n)) for n in (0, 2**31, 2.0)],
    (Revised, dict(base=Lossless(), rounds=1), 'revise'),
    (Revised, dict(base=Given(schedule=[2, 4]), rounds=1), 'revise'),
    (Revised, dict(base=Revised(Given(), 1), rounds=1), 'revise'),
    (ends_of, dict(schedule=[1, 3]), 'increase'),
    (ends_of, dict(schedule=[2, 2, 4]), 'increase'),
    (ends_of, dict(schedule=[0, 4]), 'increase'),
    (ends_of, dict(schedule=[]), 'increase'),
    (score_by, dict(way=Revised(Given(), 1)), 'revise'),
    (score_by, dict(way=Adaptive('margin', noise=0.5)), 'noise'),
    (Drawing, dict(temperature=0, scores=True), 'temperature'),
    *[(Drawing, dict(temperature=x), 'temperature') for x in (-0.1, math.nan, math.inf)],
    *[(Drawing, dict(top_p=x), 'top_p') for x in (0.0, 1.1, math.nan)],
    (Drawing, dict(top_k=-1), 'top_k'),
    *[(Drawing, dict(min_p=x), 'min_p') for x in (-0.1, 1.1, math.nan)],
    *[(Drawing, dict(presence_penalty=x), 'penalty') for x in (math.nan, 101.0, -101.0)],
    *[(Drawing, dict(cfg_scale=x), 'cfg_scale') for x in (-0.5, 101.0, math.nan, math.inf)],
    (write_by, dict(policy='margin/10'), 'block_length'),
    (write_by, dict(revise=1, cfg_scale=1.5), 'cfg_scale'),
    (write_by, dict(variant=dict(attention='mixed'), unmask='lossless'), 'decoder'),
    (write_by, dict(variant=ENCODER, unmask='lossless'), 'decoder'),
    (canvas_of, dict(n_known=10), 'n_known'),
    (canvas_of, dict(n_known=-1), 'n_known'),
    (canvas_of, dict(n_known=5, n_visits=4), 'n_known'),
    (canvas_of, dict(n_visits=10), 'n_known'),
    (canvas_of, dict(seeds=[1]), 'seeds'),
    (canvas_of, dict(order=ORDERS.clamp(min=1)), 'permutation'),
    (canvas_of, dict(order=ORDERS[:, :8]), 'permutation'),
    (Canvas.of_texts, dict(texts=TEXTS, order=Order.of([0, 1, 2], {}), seed=0), 'from 0 to'),
    (order_and_unmasking, dict(order='margin/x'), 'margin/x'),
    (order_and_unmasking, dict(order='margin:1..2'), 'margin:1..2'),
    (order_and_unmasking, dict(order='l2r/8'), 'l2r/8'),
    (order_and_unmasking, dict(order='margin+x'), 'BLOCK_LENGTH'),
    *[(Page(length=n).check, dict(block_size=9, n_tokens=5), 'length') for n in (-1, 2**31)],
    (Page(top_logprobs=6).check, dict(block_size=9, n_tokens=5), 'top_logprobs'),
    *[(Page(context=n).check, dict(block_size=9, n_tokens=5), 'context') for n in (-1, 9)],
]


@pytest.mark.parametrize('call, how, word', BAD)
def test_what_is_out_of_range_is_one_line(call, how, word):
    with one_line(word):
        call(**how)


def test_a_model_in_training_mode_does_not_write():
    with one_line('evaluation'):
        generate(make_model().train(), ROWS, ORDERS, 2)
