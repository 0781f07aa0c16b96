"""The canvas: rows of unequal length, indices of what comes next, rows that leave and come back,
samples."""

import numpy as np
import pytest
import torch
from conftest import numbers

from anyorder.generation.canvas import Canvas, sample_of
from anyorder.orders import Order, given_first, sample_order
from anyorder.seeds import keys_of
from anyorder.tokens.prompts import parse_prompt
from anyorder.tokens.tokenizers import Bytes

BY_POSITION = ('idx', 'order', 'step', 'logprob', 'u')
TEXTS = [
    ([3, 0], [True, False]),
    ([1, 0, 0, 2, 0], [True, False, False, True, False]),
    ([0] * 4, [False] * 4),
]


@pytest.mark.parametrize(
    'wrong',
    [
        dict(n_known=10),
        dict(n_known=-1),
        dict(n_known=5, n_visits=4),
        dict(n_known=0, seeds=[1]),
        dict(n_known=0, n_visits=10),
    ],
)
def test_arguments_that_do_not_fit(batch, wrong):
    with pytest.raises(ValueError, match='n_known'):
        Canvas(*batch, **{'seeds': range(5)} | wrong)


def test_an_order_must_be_a_permutation(batch):
    idx, order = batch
    for wrong in (order.clamp(min=1), order[:, :8]):
        with pytest.raises(ValueError, match='permutation'):
            Canvas(idx, wrong, 0, range(5))


def test_texts_of_unequal_length():
    canvas = Canvas.of_texts(TEXTS, Order('random'), 5)
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
        padding = [*range(n, 5)]
        assert canvas.order[r].tolist() == given + blanks + padding
        assert torch.equal(canvas.u[r], numbers(5 + r, 'tokens', n=5))


def template():
    """(tokens, known) of seven positions, of which 0, 3 and 6 are known."""
    tokens, known, *_ = parse_prompt('a[[2]]b[[=cd]]e', Bytes(), 12).lay_out()
    return tokens, known


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
    """Both are visited in the given order."""
    tokens, known = template()
    canvas = Canvas.of_texts([(tokens, known)] * 8, order, 0)
    drawn = order.draw(8, 7, keys=keys_of(range(8)))
    expected, *_ = given_first(drawn, torch.tensor(known).expand(8, -1))
    assert torch.equal(canvas.order, expected)
    assert (canvas.n_visits == 7).all()
    assert visits in (None, canvas.order[0].tolist())


@pytest.mark.parametrize('kind', ['random', 'sorted_subset'])
def test_known_tokens_of_a_random_order_are_visited_from_left_to_right(kind):
    canvas = Canvas.of_texts([template()], Order(kind), 0)
    assert canvas.order[0, :3].tolist() == [0, 3, 6]


def test_a_listed_order_has_all_positions():
    with pytest.raises(ValueError, match='from 0 to 6, once; got 3 from 0 to 2'):
        Canvas.of_texts([template()], Order.of([0, 1, 2], {}), 0)


@pytest.mark.parametrize(
    'seed', [np.int64(5), torch.tensor(5), [np.int64(5), torch.tensor(6), 7]], ids=repr
)
def test_a_seed_is_the_number_whatever_its_type(seed):
    canvas = Canvas.of_texts(TEXTS, Order('random'), seed)
    plain = Canvas.of_texts(TEXTS, Order('random'), 5)
    assert torch.equal(canvas.order, plain.order)
    assert torch.equal(canvas.u, plain.u)


def test_a_random_order_is_not_a_fixed_one_of_the_same_seed():
    order = Canvas.of_texts([([0] * 8, [False] * 8)], Order('random'), 0).order
    assert not torch.equal(order, sample_order(1, 8, 'fixed', seed=0))


def test_a_canvas_is_written_without_a_change_of_what_it_was_made_of(batch):
    idx, order = batch
    canvas = Canvas(idx, order, 0, range(5))
    assert torch.equal(canvas.idx, idx)
    assert torch.equal(canvas.order, order)
    assert canvas.idx.data_ptr() != idx.data_ptr()
    assert canvas.order.data_ptr() != order.data_ptr()


def test_cells_are_the_next_visits_row_by_row():
    canvas = Canvas.of_texts(TEXTS, Order('l2r'), 0)
    row, column, visit = canvas.cells(torch.tensor([1, 0, 3]))
    assert row.tolist() == [0, 2, 2, 2]
    assert column.tolist() == [0, 0, 1, 2]
    assert visit.tolist() == [1, 0, 1, 2]


def canvas_and_part(batch):
    """A canvas, and its rows 1 and 4, taken in two steps."""
    canvas = Canvas(*batch, torch.tensor([0, 3, 9, 8, 5]), [50, 51, 52, 53, 54])
    part = canvas.take(torch.tensor([True, True, False, False, True]))
    return canvas, part.take(torch.tensor([False, True, True]))


def test_a_part_has_the_rows_that_are_taken(batch):
    canvas, part = canvas_and_part(batch)
    assert part.rows.tolist() == [1, 4]
    assert part.seeds == [51, 54]
    assert len(part) == 2
    assert part.n_blanks.tolist() == [6, 4]
    for name in BY_POSITION:
        assert torch.equal(getattr(part, name), getattr(canvas, name)[[1, 4]])


def test_rows_leave_and_come_back(batch):
    idx, order = batch
    idx_before = idx.clone()
    order_before = order.clone()
    canvas, part = canvas_and_part(batch)
    before = {name: getattr(canvas, name).clone() for name in BY_POSITION}
    for name in BY_POSITION:
        getattr(part, name).add_(1)
    part.known = part.known + 1
    part.n_steps = part.n_steps + 2
    for name, value in before.items():  # the part is a copy
        assert torch.equal(getattr(canvas, name), value)

    canvas.put(part)
    assert canvas.known.tolist() == [0, 4, 9, 8, 6]
    assert canvas.n_steps.tolist() == [0, 2, 0, 0, 2]
    assert torch.equal(idx, idx_before)
    assert torch.equal(order, order_before)
    for name, value in before.items():
        value[[1, 4]] += 1
        assert torch.equal(getattr(canvas, name), value)


def test_samples_are_rows_without_their_padding():
    texts = [([97, 0], [True, False]), ([0, 98, 0], [False, True, False])]
    canvas = Canvas.of_texts(texts, Order('l2r'), 0)
    canvas.idx[0, 1] = 100
    canvas.step[0, 1] = 0
    canvas.logprob[0, 1] = -2.0
    canvas.idx[1, [0, 2]] = torch.tensor([99, 101])
    canvas.step[1, [0, 2]] = torch.tensor([1, 0])
    canvas.logprob[1, [0, 2]] = torch.tensor([-0.5, -0.25], dtype=torch.float64)
    first, second = [sample_of(*row, Bytes()) for row in canvas.lists()]
    assert first == {
        'text': 'ad',
        'tokens': [97, 100],
        'nats': 2.0,
        'blanks': 1,
        'passes': 1,
        'order': [0, 1],
        'step': [-1, 0],
        'logprob': [0.0, -2.0],
    }
    assert second == {
        'text': 'cbe',
        'tokens': [99, 98, 101],
        'nats': 0.75,
        'blanks': 2,
        'passes': 2,
        'order': [1, 0, 2],
        'step': [1, -1, 0],
        'logprob': [-0.5, 0.0, -0.25],
    }
