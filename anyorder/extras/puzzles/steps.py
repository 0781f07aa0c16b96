"""A puzzle as the steps of its solution: what an autoregressive model is taught, who cannot choose.

A step names a cell and says its value, all in tokens: row, column, digit of a Sudoku, item and
house of a Zebra puzzle. A row is the clues, then what is given, then the blanks. Source: Shah et
al. 2024, "Causal language modeling can elicit search and reasoning capabilities on logic puzzles",
arXiv 2409.10502, whose solver knows more rules."""

import numpy as np

from anyorder.extras.puzzles.puzzle import Puzzle
from anyorder.extras.puzzles.solver import rounds
from configurator import check_choice

ORDERS = ('solver', 'reading', 'random')  # of the blanks
CELLS = 'cells'  # no steps: the same puzzles as cells, to compare with


def in_steps(puzzle, steps):
    """Return those of a kind of puzzles that the rounds of a solver solve, without a guess.

    puzzle  a Puzzle that also has `cells` and `state`, see Steps
    steps   how their blanks are written: a name of ORDERS, by the solver's rounds, in reading order
            or at random; or CELLS"""
    check_choice('steps', steps, *ORDERS, CELLS)
    return Solved(puzzle) if steps == CELLS else Steps(puzzle, steps)


class Solved(Puzzle):
    """The puzzles that rounds solve, others are left out."""

    def __init__(self, puzzle):
        self.puzzle = puzzle
        self.symbols = puzzle.symbols
        self.shape = puzzle.shape
        self.n_cells = len(puzzle.cells)

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, N)."""
        tokens, given = self.puzzle.make(n_rows, rng, wanted, n_variants)
        found = rounds(*self.puzzle.state(tokens, given))[:, -self.n_cells :]
        is_solved = (found >= 0).all(1)
        return self.rows(tokens[is_solved], given[is_solved], found[is_solved], rng)

    def rows(self, tokens, given, found, rng):
        """Return (tokens, given) of puzzles whose cells are found in these rounds (B, cells)."""
        return tokens, given

    def key(self, tokens):
        """Return what two splits may not share."""
        return self.puzzle.key(tokens)


class Steps(Solved):
    """The puzzles that rounds solve, a step for each of their cells.

    A row of the puzzle ends with the values of its cells; `puzzle.cells` has the texts that name
    them, a letter a token; `puzzle.state(tokens, given)` is what its solver is asked.

    address  (cells, a) the tokens that name each cell"""

    def __init__(self, puzzle, order):
        super().__init__(puzzle)
        self.order = order
        self.shape = None
        self.symbols = [*dict.fromkeys([*puzzle.symbols, *''.join(puzzle.cells)])]
        self.address = np.vectorize(self.symbols.index)([*map(list, puzzle.cells)])
        self.width = self.address.shape[1] + 1  # tokens of a step
        self.powers = (len(self.symbols) + 1) ** np.arange(self.width - 1)
        self.length = self.n_cells * self.width  # of all steps

    def rows(self, tokens, given, found, rng):
        """Return (tokens, given) in steps; what is given, found in round 0, comes first."""
        rank = {
            'solver': found,
            'reading': found > 0,
            'random': np.where(found > 0, 1 + rng.random(found.shape), 0),
        }[self.order]
        cell = rank.argsort(1, kind='stable')  # ties in reading order
        value = np.take_along_axis(tokens[:, -self.n_cells :], cell, 1)
        is_given = np.take_along_axis(given[:, -self.n_cells :], cell, 1)
        steps = np.concatenate([self.address[cell], value[:, :, None]], 2)
        return (
            np.hstack([tokens[:, : -self.n_cells], steps.reshape(-1, self.length)]),
            np.hstack([given[:, : -self.n_cells], is_given.repeat(self.width, 1)]),
        )

    def steps(self, tokens):
        """Return of each step of rows (which cell it names (B, steps, cells), its value)."""
        steps = tokens[:, -self.length :].reshape(len(tokens), -1, self.width)
        name = (steps[:, :, :-1] + 1) @ self.powers  # one number; a token of -1 is in no name
        return name[:, :, None] == (self.address + 1) @ self.powers, steps[:, :, -1]

    def in_cells(self, tokens):
        """Return rows of steps as rows of the puzzle, by the first step that names a cell."""
        is_named, value = self.steps(tokens)
        value = np.take_along_axis(value, is_named.argmax(1), 1)
        return np.hstack([tokens[:, : -self.length], value])

    def key(self, tokens):
        """Return what two splits may not share."""
        return super().key(self.in_cells(tokens))

    def check_answer(self, tokens, given, answer):
        """Return (which tokens of `answer` count, which are right), all (B, N).

        The tokens of a step are right together: if they name a cell that none before them does,
        and its value. In which order the steps come is free."""
        is_named, said = self.steps(answer)
        cell = is_named.argmax(2)  # of a step that names one
        first = np.take_along_axis(is_named.argmax(1), cell, 1)  # step that names the cell
        value = np.take_along_axis(self.in_cells(tokens)[:, -self.n_cells :], cell, 1)
        is_new = is_named.any(2) & (first == np.arange(self.n_cells))
        right = answer == tokens
        right[:, -self.length :] = (is_new & (said == value)).repeat(self.width, 1)
        return ~given, right
