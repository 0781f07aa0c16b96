"""Unmasking within blocks: the definition, equalities, the number of passes, costs, errors."""

import itertools
import re

import pytest
import torch
from conftest import make_model, one_line
from oracle import (
    ENCODER,
    FINAL,
    SLOW_SCORES,
    TWO_STREAM,
    VARIANTS,
    by_definition,
    name_of,
    nine_steps,
)

from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate, steps
from anyorder.generation.options import choice_in
from anyorder.generation.scores import without_rounding
from anyorder.generation.unmasking import SCORES, Adaptive
from anyorder.orders import sample_order
from model import AOGPT

KNOWN = torch.tensor([0, 3, 9, 4, 1])  # the prompt of each of the five rows, in tokens
N_VISITS = torch.tensor([9, 8, 9, 6, 9])  # and where the row ends
BLOCKS = [
    dict(policy='margin/2'),
    dict(policy='entropy/3', n_steps=4),
    dict(policy='top_prob/4', n_steps=5, schedule='cosine'),
    dict(policy='margin/1', n_steps=3),
    dict(policy='top_prob/3:0.4'),
    dict(policy='margin/5:0.2'),
]
CHANCE = [
    dict(policy='margin/3+1.0'),
    dict(policy='margin/4', n_steps=4, unmask='binomial', schedule='cosine'),
]


def test_each_score_has_a_slow_definition():
    """By which the tests check what it writes, here and in test_own_law.py."""
    missing = ({*SCORES} | {'given'}) ^ {*SLOW_SCORES}
    assert not missing, f'tests/test_unmasking.py: SLOW_SCORES and SCORES differ in {missing}'


def written(model, batch, how, rows=slice(5), use_cache=True):
    """The canvas of these rows of the batch, filled."""
    idx, order = batch
    seeds = [0, 1, 2, 3, 4][rows]
    canvas = Canvas(idx[rows], order[rows], KNOWN[rows], seeds, N_VISITS[rows])
    fill(model, canvas, nine_steps(how), Drawing(), use_cache)
    return canvas


def assert_same(one, other, rows=slice(None)):
    for name in ('idx', 'order', 'step', 'logprob'):
        expected = getattr(one, name)[rows]
        torch.testing.assert_close(getattr(other, name), expected, rtol=0, atol=1e-10)


# ---- the definition


@pytest.mark.parametrize(
    'how, variant',
    [
        *itertools.product(BLOCKS, [{}]),
        *itertools.product([BLOCKS[1], BLOCKS[5]], [ENCODER, FINAL[0], TWO_STREAM[0]]),
    ],
)
def test_blocks_are_the_definition(batch, how, variant):
    model = make_model(**variant)
    canvas = written(model, batch, how)
    for r, (k, n) in enumerate(zip(KNOWN.tolist(), N_VISITS.tolist())):
        row = [x[r] for x in batch]
        text, visits, step, nats = by_definition(model, *row, k, n, **how, seed=r)
        assert canvas.order[r, :n].tolist() == visits
        assert canvas.step[r].tolist() == step.tolist()
        assert torch.equal(canvas.idx[r, visits], text[visits])
        torch.testing.assert_close(canvas.logprob[r], nats, rtol=0, atol=1e-10)


@pytest.mark.parametrize('how', BLOCKS + CHANCE)
def test_a_block_is_complete_before_the_next_one_begins(batch, how):
    canvas = written(make_model(), batch, how)
    _, order = batch
    length = choice_in(how['policy'])['block_length']
    changed = False
    for r, (k, n) in enumerate(zip(KNOWN.tolist(), N_VISITS.tolist())):
        latest = -1
        for start in range(k, n, length):
            block = slice(start, min(start + length, n))
            given = order[r, block]
            assert {*canvas.order[r, block].tolist()} == {*given.tolist()}
            step = canvas.step[r, given]
            assert step.min() > latest
            latest = step.max()
        changed |= not torch.equal(canvas.order[r, k:n], order[r, k:n])
    assert changed or length == 1


@pytest.mark.parametrize('how', ['margin/1', 'margin/1+1', 'margin/1:0'])
def test_blocks_of_one_are_the_given_order_one_token_a_step(batch, how):
    model = make_model()
    given = written(model, batch, dict(policy='given'))
    chosen = written(model, batch, dict(policy=how, n_steps=2))
    assert_same(given, chosen)


@pytest.mark.parametrize(
    'how',
    [
        dict(policy='margin', n_steps=4),
        dict(policy='top_prob:0.4'),
        dict(policy='entropy+1.0', n_steps=5, schedule='cosine'),
        dict(policy='margin', n_steps=4, unmask='binomial'),
    ],
)
def test_a_block_as_long_as_the_text_is_no_block(batch, how):
    model = make_model()
    whole = written(model, batch, how)
    block = written(model, batch, how | dict(policy=re.sub(r'^(\w+)', r'\1/9', how['policy'])))
    assert_same(whole, block)


@pytest.mark.parametrize('how', BLOCKS)
def test_only_allowed_tokens_count_in_a_block(batch, how):
    """Policies see the law that is renormalised to what is allowed."""
    model = make_model()
    allowed = torch.rand(9, 11, generator=torch.Generator().manual_seed(2)) < 0.4
    asked = dict(n_steps=9, seeds=range(5), allowed=allowed, return_trace=True)
    new, trace = generate(model, *batch, KNOWN, **asked | how)
    for r, k in enumerate(KNOWN.tolist()):
        row = [x[r] for x in batch]
        text, visits, step, nats = by_definition(model, *row, k, **how, allowed=allowed, seed=r)
        assert torch.equal(new[r], text)
        assert trace['order'][r].tolist() == visits
        assert torch.equal(trace['step'][r], step)
        torch.testing.assert_close(trace['logprob'][r], nats, rtol=0, atol=1e-10)


# ---- equalities


@pytest.mark.parametrize('variant', [*VARIANTS, *FINAL, ENCODER], ids=name_of)
def test_every_network_writes_the_same_cached_and_uncached_in_blocks(batch, variant):
    model = make_model(**variant)
    for how in (BLOCKS[5], CHANCE[1]):
        cached = written(model, batch, how)
        assert_same(cached, written(model, batch, how, use_cache=False))


@pytest.mark.parametrize('how', BLOCKS + CHANCE)
def test_a_row_in_blocks_does_not_depend_on_the_batch(batch, how):
    model = make_model()
    together = written(model, batch, how)
    assert_same(together, written(model, batch, how, use_cache=False))
    for row in (slice(1, 2), slice(3, 4)):
        assert_same(together, written(model, batch, how, row), row)


# ---- the number of passes


@pytest.mark.parametrize(
    'n, n_steps, length, ends',
    [
        (8, 4, 2, [2, 4, 6, 8]),
        (8, 8, 2, [1, 2, 3, 4, 5, 6, 7, 8]),
        (8, 99, 3, [1, 2, 3, 4, 5, 6, 7, 8]),
        (8, 1, 2, [2, 4, 6, 8]),
        (8, 2, 4, [4, 8]),
        (8, 3, 4, [4, 6, 8]),
        (8, 4, 4, [2, 4, 6, 8]),
        (8, 6, 4, [1, 2, 4, 5, 6, 8]),
        (7, 3, 3, [3, 6, 7]),
        (5, 4, 8, [1, 2, 3, 5]),
        (0, 4, 2, []),
    ],
)
def test_each_block_has_its_share_of_the_steps_and_one_at_least(n, n_steps, length, ends):
    unmasking = Adaptive('margin', n_steps, block_length=length)
    assert unmasking.ends([n], [0]).tolist() == [ends]


def test_a_share_follows_the_schedule_within_the_block():
    ends = Adaptive('margin', 8, 'cosine', block_length=10).ends([20], [0])
    assert ends.tolist() == [[1, 2, 6, 10, 11, 12, 16, 20]]  # test_schedule_by_hand has the first


def test_a_binomial_schedule_completes_each_block():
    n_blanks = [10, 9, 3]
    ends = Adaptive('margin', 4, binomial=True, block_length=5).ends(n_blanks, [1, 2, 1])
    for row, n in zip(ends.tolist(), n_blanks):
        assert row[-1] == n
        assert row == sorted(row)
        assert min(n, 5) in row


def test_each_block_draws_numbers_of_its_own():
    unmasking = Adaptive('margin', 16, binomial=True, block_length=50)
    (ends,) = unmasking.ends([100], [3]).tolist()
    first = ends[:8]
    second = [end - 50 for end in ends[8:]]
    assert first != second


@pytest.mark.parametrize('n_steps, n_passes', [(1, 4), (4, 4), (8, 8)])
def test_passes_are_counted_from_step_to_step(batch, n_steps, n_passes):
    canvas = Canvas(*batch, 1, range(5))
    unmasking = Adaptive('margin', n_steps, block_length=2)
    told = [n_new for _, n_new, _ in steps(make_model(), canvas, unmasking, Drawing())]
    assert len(told) == n_passes
    for n_new in told:
        assert (n_new == 8 // n_passes).all()
    assert canvas.step.max() == n_passes - 1


# ---- costs


@pytest.mark.parametrize('variant', [{}, ENCODER], ids=name_of)
def test_a_step_runs_the_slots_of_the_block_and_not_all_blanks(monkeypatch, variant):
    """The first step of a decoder reads the prompt; each step after it reruns the last known slot,
    whose target was another, and the rest of the block. An encoder runs all slots."""
    model = freeze(make_model(block_size=32, **variant).float())
    trunk = AOGPT.trunk
    slots = []
    heads = []

    def counted_trunk(self, idx, order, plan, *cache):
        slots.append(plan.number.numel())
        return trunk(self, idx, order, plan, *cache)

    def count_heads(_, args):
        heads.append(args[0].shape[:-1].numel())

    monkeypatch.setattr(AOGPT, 'trunk', counted_trunk)
    model.lm_head.register_forward_pre_hook(count_heads)
    order = sample_order(1, 32, generator=torch.Generator().manual_seed(0))
    for known, length in ((20, 8), (0, 5)):
        slots.clear()
        heads.clear()
        generate(model, order * 0, order, known, 32, f'margin/{length}')
        blocks = [min(length, 32 - start) for start in range(known, 32, length)]
        scored = [left for n in blocks for left in range(n, 0, -1)]
        first, *others = scored
        assert heads == scored
        if variant:
            assert slots == [32 for _ in scored]
        else:
            assert slots == [known + first, *(n + 1 for n in others)]


# ---- errors


@pytest.mark.parametrize('length', [0, -3, 2.5, True, '2'])
def test_a_block_length_that_is_no_block_length(length):
    with one_line(f'block_length .*an integer from 1, got {length!r}'):
        Adaptive('margin', block_length=length)


def test_a_block_is_no_longer_than_the_model_reads(batch):
    with one_line('block_length must be at most the 9 positions of the text, got 10'):
        written(make_model(), batch, dict(policy='margin/10'))


def test_scores_that_differ_by_rounding_alone_are_equal():
    """In a row: they become the largest one, step by step; others stay as they are."""
    low = -torch.inf
    score = torch.tensor([0.5, 0.3, 0.5 + 1e-5, 0.5 - 1e-5, 0.3 + 1e-3, low, low, 0.5 - 2e-5, 0.5])
    row = torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1])
    equal = torch.tensor([0.5 + 1e-5, 0.3, 0.5 + 1e-5, 0.5 + 1e-5, 0.3 + 1e-3, low, low])
    equal = torch.cat([equal, torch.tensor([0.5 - 2e-5, 0.5 + 1e-5])])
    assert torch.equal(without_rounding(score, row), equal)
    score = torch.tensor([0.5, 0.5 + 1e-10, 0.5 + 1e-6], dtype=torch.float64)
    found = without_rounding(score, torch.zeros(3, dtype=torch.long))
    assert torch.equal(found, score[[1, 1, 2]])
