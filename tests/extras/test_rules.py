"""The rules of the puzzles: the solver against plain backtracking, and what is generated."""

import itertools

import numpy as np
import pytest

from anyorder.extras.puzzles.rules import NaeSat
from anyorder.extras.puzzles.sudoku import Sudoku
from anyorder.extras.puzzles.zebra import Zebra, true_clues, zebra_names
from anyorder.tokens.tokenizers import get_tokenizer

HARD = '083020090000800100029300008000098700070000060006740000300006980002005000010030540'
SOLVED = '183524697547869123629317458235698714471253869896741235354176982962485371718932546'


def every(tokens):
    """All solutions are wanted."""
    return np.ones(len(tokens), bool)


# --------------------------------------------------------------------------------------------------
# Sudoku


def peers(i, n):
    """The cells that share a row, a column or a box with cell i."""
    b = int(n**0.5)
    found = set()
    for j in range(n * n):
        same_row = j // n == i // n
        same_column = j % n == i % n
        same_box = (j // n // b, j % n // b) == (i // n // b, i % n // b)
        if same_row or same_column or same_box:
            found.add(j)
    return found - {i}


def solutions_by_hand(grid, n):
    """All solutions of one grid, a list of n n digits, by plain backtracking."""
    seen = [{grid[j] for j in peers(i, n)} for i in range(n * n)]
    if 0 not in grid:
        wrong = any(d in seen[i] for i, d in enumerate(grid))
        return [] if wrong else [tuple(grid)]
    i = grid.index(0)
    found = []
    for d in range(1, n + 1):
        if d not in seen[i]:
            found += solutions_by_hand([*grid[:i], d, *grid[i + 1 :]], n)
    return found


@pytest.mark.slow
def test_the_solver_counts_what_backtracking_counts():
    rules = Sudoku(4)
    rng = np.random.default_rng(0)
    grids = rules.random_grids(60, rng)
    grids[rng.random(grids.shape) < rng.random((60, 1))] = 0
    grids[:10, :2] = 1  # contradictions
    counts, solutions = rules.solve(grids)
    truth = [solutions_by_hand(grid.tolist(), 4) for grid in grids]
    assert counts.tolist() == [min(2, len(t)) for t in truth]
    assert set(counts.tolist()) == {0, 1, 2}
    assert all(tuple(s) in t for s, t in zip(solutions.tolist(), truth) if t)


def test_the_solver_finds_the_solution_of_a_hard_puzzle():
    hard = [int(d) for d in HARD]
    solved = [int(d) for d in SOLVED]
    counts, found = Sudoku(9).solve(np.array([hard]))
    assert counts == 1
    assert found[0].tolist() == solved
    assert solutions_by_hand(solved[:40] + hard[40:], 9) == [tuple(solved)]


@pytest.mark.parametrize('n, low, high', [(4, 4, 8), (9, 24, 36)])
def test_generated_puzzles_have_one_solution(n, low, high):
    rules = Sudoku(n)
    tokens, given = rules.make(60, np.random.default_rng(1), every)
    grids = tokens + 1
    puzzles = np.where(given, grids, 0)
    counts, solutions = rules.solve(puzzles)
    assert (counts == 1).all()
    assert (solutions == grids).all()
    assert len(tokens) >= 60
    n_clues = given.sum(1)
    assert low <= n_clues.min() and n_clues.max() < high + 12
    assert len(np.unique(n_clues)) > 2

    turned, answers = rules.symmetric(puzzles, grids, np.random.default_rng(2))
    _, solutions = rules.solve(turned)
    assert (solutions == answers).all()
    assert (answers != grids).any(1).mean() > 0.9


# --------------------------------------------------------------------------------------------------
# Zebra

HOLDS = {
    0: lambda i, j: True,
    1: lambda i, j: i == j,
    2: lambda i, j: i + 1 == j,
    3: lambda i, j: abs(i - j) == 1,
    4: lambda i, j: i < j,
}


def houses_by_hand(clues, n, k):
    """All (k + 1) n houses of items that agree with clues, by trying every arrangement."""
    found = []
    for rows in itertools.product(itertools.permutations(range(n)), repeat=k):
        house = [*range(n), *itertools.chain(*rows)]
        if all(HOLDS[r](house[a], house[b]) for r, a, b in clues):
            found.append(house)
    return found


def random_houses(n_puzzles, n, k, rng):
    """The houses of all items (n_puzzles, (k + 1) n), each attribute in a random order."""
    values = rng.random((n_puzzles, k, n)).argsort(2).reshape(n_puzzles, -1)
    numbers = np.tile(np.arange(n), (n_puzzles, 1))
    return np.concatenate([numbers, values], 1)


@pytest.mark.parametrize('n, k', [(3, 3), (4, 3)])
def test_the_zebra_solver_counts_what_every_arrangement_counts(n, k):
    task = Zebra(6)
    rng = np.random.default_rng(0)
    relation = rng.integers(0, 5, (12, 14))
    items = rng.integers(0, (k + 1) * n, (2, 12, 14))
    clues = np.stack([relation, *items], 2)  # mostly without a solution
    house = random_houses(12, n, k, rng)
    few = true_clues(house, n, 4, rng)
    many = true_clues(house, n, 14, rng)
    clues = np.concatenate([clues, np.pad(few, ((0, 0), (0, 10), (0, 0))), many])
    counts, solutions = task.solve(clues, n, k)
    truth = [houses_by_hand(c, n, k) for c in clues.tolist()]
    assert counts.tolist() == [min(2, len(t)) for t in truth]
    assert set(counts.tolist()) == {0, 1, 2}
    assert all(s in t for s, t in zip(solutions.tolist(), truth) if t)
    assert all(h in t for h, t in zip(house.tolist(), truth[12:24]))  # clues are true
    assert all(h in t for h, t in zip(house.tolist(), truth[24:]))


NAMES = zebra_names(6)
TEXTS = get_tokenizer('zebra').texts


def read_clue(text, n):
    """(relation, item, item) of the text of a clue."""
    a, sign, b = text
    relation = ' =<~-'.index(sign)
    items = [NAMES.index(name) // 6 * n + NAMES.index(name) % 6 for name in (a, b)]
    return relation, *items


@pytest.mark.parametrize('n, k', [(3, 4), (4, 3), (5, 3)])
def test_zebra_rows_say_one_grid_with_no_clue_too_many(n, k):
    task = Zebra(6)
    rows = task.make_size(30, n, k, np.random.default_rng(3), every, 10)
    for row in rows[::10].tolist():
        grid = np.array(row[30:]).reshape(6, 6)
        assert (grid[:k, :n] > 0).all()
        assert not grid[k:].any() and not grid[:, n:].any()
        texts = [TEXTS[i] for i in row[:30]]
        clues = [read_clue(text, n) for text in texts if text != '.']
        assert texts[len(clues) :] == ['.'] * (30 - len(clues))

        counts, (house,) = task.solve(np.array([clues]), n, k)
        assert counts == 1
        if n == 4:
            assert houses_by_hand(clues, n, k) == [house.tolist()]
        assert [TEXTS[token] for token in grid[:k, :n].flat] == [NAMES[h] for h in house[n:]]
        fewer = np.array([clues[:i] + clues[i + 1 :] for i in range(len(clues))])
        counts, _ = task.solve(fewer, n, k)
        assert (counts == 2).all()


def test_the_largest_puzzles_have_no_padding():
    rows = Zebra(6).make_size(3, 6, 6, np.random.default_rng(5), every)
    assert len(rows)
    assert (rows[:, 30:] > 0).all()
    assert (rows[:, :20] > 6).all()  # 22 to 26 clues


def test_sizes_are_mixed_and_padding_is_given():
    tokens, given = Zebra(4).make(64, np.random.default_rng(4), every)
    assert given[:, :12].all()
    assert (tokens[:, 12:][given[:, 12:]] == 0).all()
    assert set((~given).sum(1).tolist()) == {9, 12, 16}


def test_next_to_says_nothing_of_the_side():
    house = random_houses(200, 4, 3, np.random.default_rng(0))
    relation, a, b = true_clues(house, 4, 12, np.random.default_rng(1)).transpose(2, 0, 1)
    step = np.take_along_axis(house, b, 1) - np.take_along_axis(house, a, 1)
    near = step[relation == 3]
    assert len(near) > 200
    assert set(near.tolist()) == {1, -1}
    assert abs((near == 1).mean() - 0.5) < 5 * 0.5 / len(near) ** 0.5
    assert (step[relation == 1] == 0).all()
    assert (step[relation == 2] == 1).all()
    assert (step[relation == 4] > 0).all()


# --------------------------------------------------------------------------------------------------
# not all equal


def test_observations_are_not_all_equal():
    task = NaeSat(5, 7, 0)
    tokens, given = task.make(40, np.random.default_rng(0), every)
    triples = task.triples.tolist()
    assert len(set(map(tuple, triples))) == 7
    assert not given.any()
    assert tokens.shape == (40, 12)
    for row in tokens.tolist():
        for triple, observation in zip(triples, row[5:]):
            assert observation == (len({row[i] for i in triple}) > 1)


def test_observations_are_judged_by_the_latents_of_the_answer():
    task = NaeSat(5, 7, 0)
    tokens, given = task.make(40, np.random.default_rng(0), every)
    answer = tokens.copy()
    answer[:, 5] ^= 1  # one observation is wrong, in every row
    answer[0, 0] ^= 1  # and one latent
    counts, right = task.check_answer(tokens, given, answer)
    assert not counts[:, :5].any() and counts[:, 5:].all()
    assert not right[1:, 5].any() and right[1:, 6:].all()
    of_its_own = task.observations(answer[:1, :5])[0] == answer[0, 5:]
    assert right[0, 5:].tolist() == of_its_own.tolist()
