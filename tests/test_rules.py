"""The rules of the puzzles: the solver against plain backtracking, and what is generated."""

import itertools

import numpy as np
import pytest

from anyorder.puzzles.rules import NaeSat
from anyorder.puzzles.sudoku import Sudoku
from anyorder.puzzles.zebra import Zebra, zebra_names
from anyorder.tokens.tokenizers import get_tokenizer


def solutions_by_hand(grid, n):
    """All solutions of one grid, a list of n n digits, by plain backtracking."""
    b, blanks = int(n**0.5), [i for i, d in enumerate(grid) if d == 0]

    def seen(i):
        return {
            grid[j]
            for j in range(n * n)
            if j != i
            and (
                j // n == i // n
                or j % n == i % n
                or (j // n // b, j % n // b) == (i // n // b, i % n // b)
            )
        }

    if not blanks:
        return [] if any(d in seen(i) for i, d in enumerate(grid)) else [tuple(grid)]
    i = blanks[0]
    return [
        s
        for d in range(1, n + 1)
        if d not in seen(i)
        for s in solutions_by_hand([*grid[:i], d, *grid[i + 1 :]], n)
    ]


def test_the_solver_counts_what_backtracking_counts():
    rules, rng = Sudoku(4), np.random.default_rng(0)
    grids = rules.random_grids(60, rng)
    grids[rng.random(grids.shape) < rng.random((60, 1))] = 0
    grids[:10, :2] = 1  # contradictions
    counts, solutions = rules.solve(grids)
    truth = [solutions_by_hand(grid.tolist(), 4) for grid in grids]
    assert counts.tolist() == [min(2, len(t)) for t in truth] and {0, 1, 2} == set(counts.tolist())
    assert all(tuple(s) in t for s, t in zip(solutions.tolist(), truth) if t)
    hard, solution = (
        [int(d) for d in text]
        for text in (
            '083020090000800100029300008000098700070000060006740000300006980002005000010030540',
            '183524697547869123629317458235698714471253869896741235354176982962485371718932546',
        )
    )
    counts, found = Sudoku(9).solve(np.array([hard]))
    assert rules.n == 4 and counts == 1 and found[0].tolist() == solution
    most = [d if i < 40 else h for i, (d, h) in enumerate(zip(solution, hard))]
    assert solutions_by_hand(most, 9) == [tuple(solution)]


@pytest.mark.parametrize('n, low, high', [(4, 4, 8), (9, 24, 36)])
def test_generated_puzzles_have_one_solution(n, low, high):
    rules = Sudoku(n)
    tokens, given = rules.make(
        60, np.random.default_rng(1), lambda tokens: np.ones(len(tokens), bool)
    )
    counts, solutions = rules.solve(np.where(given, tokens + 1, 0))
    assert (counts == 1).all() and (solutions == tokens + 1).all() and len(tokens) >= 60
    clues = given.sum(1)
    assert clues.min() >= low and clues.max() < high + 12 and len(np.unique(clues)) > 2
    turned = rules.symmetric(np.where(given, tokens + 1, 0), tokens + 1, np.random.default_rng(2))
    assert (rules.solve(turned[0])[1] == turned[1]).all() and (turned[1] != tokens + 1).any(
        1
    ).mean() > 0.9


def houses_by_hand(clues, n, k):
    """All (k + 1) n houses of items that agree with clues, by trying every arrangement."""
    holds = {
        0: lambda i, j: True,
        1: lambda i, j: i == j,
        2: lambda i, j: i + 1 == j,
        3: lambda i, j: abs(i - j) == 1,
        4: lambda i, j: i < j,
    }
    found = []
    for rows in itertools.product(itertools.permutations(range(n)), repeat=k):
        house = [*range(n), *itertools.chain(*rows)]
        if all(holds[r](house[a], house[b]) for r, a, b in clues):
            found.append(house)
    return found


@pytest.mark.parametrize('n, k', [(3, 3), (4, 3)])
def test_the_zebra_solver_counts_what_every_arrangement_counts(n, k):
    task, rng = Zebra(6), np.random.default_rng(0)
    # mostly without a solution
    clues = np.stack([rng.integers(0, 5, (12, 14)), *rng.integers(0, (k + 1) * n, (2, 12, 14))], 2)
    house = np.concatenate(
        [np.tile(np.arange(n), (12, 1)), rng.random((12, k, n)).argsort(2).reshape(12, -1)], 1
    )
    few, many = task.clues(house, n, k, 4, rng), task.clues(house, n, k, 14, rng)
    clues = np.concatenate([clues, np.pad(few, ((0, 0), (0, 10), (0, 0))), many])
    counts, solutions = task.solve(clues, n, k)
    truth = [houses_by_hand(c, n, k) for c in clues.tolist()]
    assert counts.tolist() == [min(2, len(t)) for t in truth] and set(counts.tolist()) == {0, 1, 2}
    assert all(s in t for s, t in zip(solutions.tolist(), truth) if t)
    assert all(h in t for h, t in zip(house.tolist() * 2, truth[12:]))  # clues are true


def test_zebra_rows_say_one_grid_with_no_clue_too_many():
    names, task, texts = zebra_names(6), Zebra(6), get_tokenizer('zebra').texts
    for n, k in ((3, 4), (4, 3), (5, 3)):
        rows = task.make_size(
            30, n, k, np.random.default_rng(3), lambda tokens: np.ones(len(tokens), bool), 10
        )
        for row in rows[::10].tolist():
            clues, grid = [texts[i] for i in row[:30]], np.array(row[30:]).reshape(6, 6)
            assert (grid[:k, :n] > 0).all() and not grid[k:].any() and not grid[:, n:].any()
            plain = [
                [
                    ' =<~-'.index(r),
                    *(names.index(item) // 6 * n + names.index(item) % 6 for item in (a, b)),
                ]
                for a, r, b in (clue for clue in clues if clue != '.')
            ]
            assert clues[len(plain) :] == ['.'] * (30 - len(plain))
            (house,) = (
                houses_by_hand(plain, n, k)
                if n == 4
                else [task.solve(np.array([plain]), n, k)[1][0]]
            )
            assert task.solve(np.array([plain]), n, k)[0] == 1
            # as the row says
            assert [texts[grid[a, v]] for a in range(k) for v in range(n)] == [
                names[h] for h in house[n:]
            ]
            fewer = np.array([plain[:i] + plain[i + 1 :] for i in range(len(plain))])
            assert (task.solve(fewer, n, k)[0] == 2).all()
    large = task.make_size(
        3, 6, 6, np.random.default_rng(5), lambda tokens: np.ones(len(tokens), bool)
    )
    assert len(large) and (large[:, 30:] > 0).all() and (large[:, :20] > 6).all()  # 22 to 26 clues
    tokens, given = Zebra(4).make(
        64, np.random.default_rng(4), lambda tokens: np.ones(len(tokens), bool)
    )
    assert given[:, :12].all() and (tokens[:, 12:][given[:, 12:]] == 0).all()
    assert set((~given).sum(1).tolist()) == {9, 12, 16}


def test_next_to_says_nothing_of_the_side():
    task, n, k = Zebra(4), 4, 3
    house = np.concatenate(
        [
            np.tile(np.arange(n), (200, 1)),
            np.random.default_rng(0).random((200, k, n)).argsort(2).reshape(200, -1),
        ],
        1,
    )
    relation, a, b = task.clues(house, n, k, 12, np.random.default_rng(1)).transpose(2, 0, 1)
    step = np.take_along_axis(house, b, 1) - np.take_along_axis(house, a, 1)
    near = relation == 3
    assert near.sum() > 200 and set(step[near].tolist()) == {1, -1}
    assert abs((step[near] == 1).mean() - 0.5) < 5 * 0.5 / near.sum() ** 0.5
    assert (
        (step[relation == 1] == 0).all()
        and (step[relation == 2] == 1).all()
        and (step[relation == 4] > 0).all()
    )


def test_observations_are_not_all_equal():
    task = NaeSat(5, 7, 0)
    tokens, given = task.make(
        40, np.random.default_rng(0), lambda tokens: np.ones(len(tokens), bool)
    )
    assert (
        len({tuple(t) for t in task.triples.tolist()}) == 7
        and not given.any()
        and tokens.shape == (40, 12)
    )
    for row in tokens.tolist():
        assert row[5:] == [
            int(len({row[i] for i in triple}) > 1) for triple in task.triples.tolist()
        ]
    flipped = tokens.copy()
    flipped[:, 5] ^= 1  # one observation is wrong, in every row
    flipped[0, 0] ^= 1  # and one latent
    counts, right = task.check_answer(tokens, given, flipped)
    assert (
        not counts[:, :5].any()
        and counts[:, 5:].all()
        and not right[1:, 5].any()
        and right[1:, 6:].all()
    )
    assert (
        right[0, 5:].tolist() == (task.observations(flipped[:1, :5])[0] == flipped[0, 5:]).tolist()
    )
