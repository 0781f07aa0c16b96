"""Unmasking within blocks: the definition, cached = uncached, rows of a batch, the number of passes, costs, errors."""

import itertools

import pytest
import torch
from conftest import make_model, numbers, one_line
from test_model import FINAL, TWO_STREAM, VARIANTS, name_of

from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate, steps
from anyorder.generation.options import unmasking_of
from anyorder.generation.schedules import unmask_schedule
from anyorder.generation.unmasking import Adaptive
from anyorder.orders import sample_order
from model import AOGPT

ENCODER = dict(attention='bidirectional')
KNOWN = torch.tensor([0, 3, 9, 4, 1])  # the prompt of each of the five rows, in tokens
N_VISITS = torch.tensor([9, 8, 9, 6, 9])  # and where the row ends
BLOCKS = [
    dict(policy='margin', block_length=2),
    dict(policy='entropy', block_length=3, n_steps=4),
    dict(policy='top_prob', block_length=4, n_steps=5, schedule='cosine'),
    dict(policy='margin', block_length=1, n_steps=3),
    dict(policy='top_prob', block_length=3, threshold=0.4),
    dict(policy='margin', block_length=5, threshold=0.2),
]
CHANCE = [
    dict(policy='margin', block_length=3, order_noise=1.0),
    dict(policy='margin', block_length=4, n_steps=4, unmask='binomial', schedule='cosine'),
]


def nine_steps(how):
    return unmasking_of(**dict(n_steps=9) | how)


def by_definition(
    model,
    idx,
    order,
    known,
    n_visits=9,
    n_steps=9,
    policy='given',
    schedule='linear',
    threshold=None,
    block_length=None,
    allowed=None,
    seed=None,
):
    """One row (N,) from its known tokens alone, without a cache: (tokens, visits, step, nats), visits as they came and
    the others by position. A row with a seed is drawn, another one scored: the tokens of idx are revealed."""
    visits, blanks, padding, step = (
        *(x.tolist() for x in order.split([known, n_visits - known, 9 - n_visits])),
        0,
    )
    text, told, nats = (
        torch.zeros_like(idx),
        torch.full_like(idx, -1),
        torch.zeros(len(idx), dtype=torch.float64),
    )
    text[visits] = idx[visits]
    u = numbers(seed, 'tokens', n=len(idx))
    n, length = len(blanks), block_length or len(blanks)
    for start in range(0, n, length or 1):
        block = blanks[start : start + length]
        # k n / n_steps blanks after step k: the steps that end in this block
        n_here = sum(
            start * n_steps < k * n <= (start + len(block)) * n_steps for k in range(1, n_steps + 1)
        )
        ends = unmask_schedule(len(block), max(1, n_here), schedule)
        for n_new in (
            (b - a for a, b in itertools.pairwise([0, *ends]))
            if threshold is None
            else itertools.repeat(0)
        ):
            rest = [p for p in blanks if p not in visits]
            now = torch.tensor([[*visits, *rest, *padding]])
            logits = model.predict(text[None], now, len(visits), len(rest), n_visits=n_visits)[0]
            if allowed is not None:
                logits = logits.masked_fill(~allowed[rest], -torch.inf)
            prob, score = dict(zip(rest, logits.softmax(-1))), {}
            for p in set(block) & set(rest):
                top = prob[p].topk(2).values
                score[p] = {
                    'given': -block.index(p),
                    'top_prob': top[0],
                    'margin': top[0] - top[1],
                    'entropy': (prob[p] * prob[p].log()).nansum(),
                }[policy]
            if threshold is not None:
                n_new = max(1, sum(bool(s >= threshold) for s in score.values()))
            for p in sorted(score, key=score.get, reverse=True)[:n_new]:
                text[p] = idx[p] if seed is None else int((prob[p].cumsum(-1) <= u[p]).sum())
                told[p], nats[p] = step, prob[p][text[p]].log()
                visits.append(p)
            step += 1
            if {*block} <= {*visits}:
                break
    return text, visits, told, nats


def written(model, batch, how, rows=slice(5), use_cache=True):
    canvas = Canvas(*(x[rows] for x in batch), KNOWN[rows], list(range(5))[rows], N_VISITS[rows])
    fill(model, canvas, nine_steps(how), Drawing(), use_cache)
    return canvas


def assert_same(one, other, rows=slice(None)):
    for name in ('idx', 'order', 'step', 'logprob'):
        torch.testing.assert_close(
            getattr(other, name), getattr(one, name)[rows], rtol=0, atol=1e-10
        )


# ---- the definition


@pytest.mark.parametrize(
    'how, variant',
    [
        *((how, {}) for how in BLOCKS),
        *itertools.product(BLOCKS[1:6:4], [ENCODER, FINAL[0], TWO_STREAM[0]]),
    ],
)
def test_blocks_are_the_definition(batch, how, variant):
    model = make_model(**variant)
    canvas = written(model, batch, how)
    for r, (k, n) in enumerate(zip(KNOWN.tolist(), N_VISITS.tolist())):
        text, visits, step, nats = by_definition(
            model, batch[0][r], batch[1][r], k, n, **how, seed=r
        )
        assert canvas.order[r, :n].tolist() == visits and canvas.step[r].tolist() == step.tolist()
        assert torch.equal(canvas.idx[r, visits], text[visits])
        torch.testing.assert_close(canvas.logprob[r], nats, rtol=0, atol=1e-10)


@pytest.mark.parametrize('how', BLOCKS + CHANCE)
def test_a_block_is_complete_before_the_next_one_begins(batch, how):
    model, changed = make_model(), False
    canvas, order = written(model, batch, how), batch[1]
    for r, (k, n) in enumerate(zip(KNOWN.tolist(), N_VISITS.tolist())):
        latest = -1
        for start in range(k, n, how['block_length']):
            block = slice(start, min(start + how['block_length'], n))
            assert {*canvas.order[r, block].tolist()} == {*order[r, block].tolist()}
            step = canvas.step[r, order[r, block]]
            assert step.min() > latest
            latest = step.max()
        changed |= not torch.equal(canvas.order[r, k:n], order[r, k:n])
    assert changed or how['block_length'] == 1


@pytest.mark.parametrize('how', [{}, dict(order_noise=1.0), dict(n_steps=2), dict(threshold=0.0)])
def test_blocks_of_one_are_the_given_order_one_token_a_step(batch, how):
    model = make_model()
    assert_same(
        written(model, batch, dict(policy='given')),
        written(model, batch, dict(policy='margin', block_length=1, **how)),
    )


@pytest.mark.parametrize(
    'how',
    [
        dict(policy='margin', n_steps=4),
        dict(policy='top_prob', threshold=0.4),
        dict(policy='entropy', n_steps=5, order_noise=1.0, schedule='cosine'),
        dict(policy='margin', n_steps=4, unmask='binomial'),
    ],
)
def test_a_block_as_long_as_the_text_is_no_block(batch, how):
    model = make_model()
    assert_same(written(model, batch, how), written(model, batch, how | dict(block_length=9)))


@pytest.mark.parametrize('how', BLOCKS)
def test_only_allowed_tokens_count_in_a_block(batch, how):
    """Policies see the law that is renormalised to what is allowed."""
    model, (idx, order), known = make_model(), batch, KNOWN
    allowed = torch.rand(9, 11, generator=torch.Generator().manual_seed(2)) < 0.4
    new, trace = generate(
        model,
        idx,
        order,
        known,
        how.get('n_steps', 9),
        seeds=range(5),
        allowed=allowed,
        return_trace=True,
        **{k: x for k, x in how.items() if k != 'n_steps'},
    )
    for r, k in enumerate(known.tolist()):
        text, visits, step, nats = by_definition(
            model, idx[r], order[r], k, **how, allowed=allowed, seed=r
        )
        assert torch.equal(new[r], text) and trace['order'][r].tolist() == visits
        assert torch.equal(trace['step'][r], step)
        torch.testing.assert_close(trace['logprob'][r], nats, rtol=0, atol=1e-10)


# ---- equalities


@pytest.mark.parametrize('variant', [*VARIANTS, *FINAL, ENCODER], ids=name_of)
def test_every_network_writes_the_same_cached_and_uncached_in_blocks(batch, variant):
    model = make_model(**variant)
    for how in (BLOCKS[5], CHANCE[1]):
        assert_same(written(model, batch, how), written(model, batch, how, use_cache=False))


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
    assert Adaptive('margin', n_steps, block_length=length).ends([n], [0]).tolist() == [ends]


def test_a_share_follows_the_schedule_within_the_block():
    ends = Adaptive('margin', 8, 'cosine', block_length=10).ends([20], [0]).tolist()
    assert ends == [[1, 2, 6, 10, 11, 12, 16, 20]]  # test_generation.test_schedule_by_hand
    rows = Adaptive('margin', 4, binomial=True, block_length=5).ends([10, 9, 3], [1, 2, 1]).tolist()
    for row, n in zip(rows, (10, 9, 3)):
        assert row[-1] == n and row == sorted(row) and min(n, 5) in row


@pytest.mark.parametrize('n_steps, n_passes', [(1, 4), (4, 4), (8, 8)])
def test_passes_are_counted_from_step_to_step(batch, n_steps, n_passes):
    canvas = Canvas(*batch, 1, range(5))
    told = [
        n_new.tolist()
        for _, n_new, _ in steps(
            make_model(),
            canvas,
            nine_steps(dict(policy='margin', n_steps=n_steps, block_length=2)),
            Drawing(),
        )
    ]
    assert told == n_passes * [5 * [8 // n_passes]] and canvas.step.max() == n_passes - 1


# ---- costs


@pytest.mark.parametrize('variant', [{}, ENCODER], ids=name_of)
def test_a_step_runs_the_slots_of_the_block_and_not_all_blanks(monkeypatch, variant):
    """The first step of a decoder reads the prompt; each step after it reruns the last known slot, whose target was
    another, and the rest of the block."""
    model, slots, heads = freeze(make_model(block_size=32, **variant).float()), [], []
    trunk = AOGPT.trunk
    monkeypatch.setattr(AOGPT, 'trunk', lambda *a: slots.append(a[3].number.numel()) or trunk(*a))
    model.lm_head.register_forward_pre_hook(
        lambda _, args: heads.append(args[0].shape[:-1].numel())
    )
    order = sample_order(1, 32, generator=torch.Generator().manual_seed(0))
    for known, length in ((20, 8), (0, 5)):
        slots.clear(), heads.clear()
        generate(model, order * 0, order, known, 32, 'margin', block_length=length)
        blocks = [min(length, 32 - start) for start in range(known, 32, length)]
        scored = [left for n in blocks for left in range(n, 0, -1)]
        assert heads == scored
        assert slots == [
            32 if variant else known + scored[0],
            *(32 if variant else n + 1 for n in scored[1:]),
        ]


# ---- errors


@pytest.mark.parametrize(
    'wrong',
    [
        dict(block_length=0),
        dict(block_length=-3),
        dict(block_length=2.5),
        dict(block_length=True),
        dict(block_length='2'),
        dict(policy='given'),
        dict(policy='given', unmask='lossless'),
        dict(schedule=[2, 9]),
    ],
)
def test_a_block_length_that_is_no_block_length(wrong):
    said = (
        f'an integer from 1, got {wrong["block_length"]!r}'
        if 'block_length' in wrong
        else 'choose inside a block'
    )
    with one_line(f'block_length .*{said}'):
        unmasking_of(**dict(policy='margin', block_length=2) | wrong)


def test_a_block_is_no_longer_than_the_model_reads(batch):
    with one_line('block_length must be at most the 9 positions of the text, got 10'):
        written(make_model(), batch, dict(policy='margin', block_length=10))
