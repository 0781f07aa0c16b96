"""A puzzle as the steps of its solution: what an autoregressive model is taught, who cannot choose.

A step names a cell and says its value, all in tokens: row, column, digit of a Sudoku, item and
house of a Zebra puzzle. A row is the clues, then what is given, then the blanks. Source: Shah et
al. 2024, "Causal language modeling can elicit search and reasoning capabilities on logic puzzles",
arXiv 2409.10502, whose solver knows more rules."""

import numpy as np

from anyorder.extras.puzzles.puzzle import Puzzle
from anyorder.extras.puzzles.solver import rounds

ORDERS = ('solver', 'reading', 'random')  # of the blanks
CELLS = 'cells'  # no steps: the same puzzles as cells, to compare with


class Solved(Puzzle):
    """Those of a kind of puzzles that the rounds of a solver solve, without a guess.

    puzzle  a Puzzle that also has `cells` and `state`, see Steps"""

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
    them, a letter a token; `puzzle.state(tokens, given)` is what its solver is asked. The blanks
    are written by the solver's rounds, in reading order or at random: `order` is one of ORDERS.

    address  (cells, a) the tokens that name each cell
    cell     the cell of a tokens that name it, -1 for none"""

    def __init__(self, puzzle, order):
        super().__init__(puzzle)
        self.order = order
        self.shape = None
        self.symbols = [*dict.fromkeys([*puzzle.symbols, *''.join(puzzle.cells)])]
        self.address = np.vectorize(self.symbols.index)([*map(list, puzzle.cells)])
        self.width = self.address.shape[1] + 1  # tokens of a step
        self.cell = np.full([len(self.symbols) + 1 for _ in self.address.T], -1)
        self.cell[tuple(self.address.T)] = np.arange(self.n_cells)
        self.length = self.n_cells * self.width  # of all steps

    def rows(self, tokens, given, found, rng):
        """Return (tokens, given) in steps; what is given, found in round 0, comes first."""
        by = {'solver': found, 'reading': 0, 'random': rng.random(found.shape)}[self.order]
        cell = np.where(found > 0, by, -1).argsort(1, kind='stable')  # ties in reading order
        value = np.take_along_axis(tokens[:, -self.n_cells :], cell, 1)
        is_given = np.take_along_axis(found == 0, cell, 1)
        steps = np.concatenate([self.address[cell], value[:, :, None]], 2)
        return (
            np.hstack([tokens[:, : -self.n_cells], steps.reshape(-1, self.length)]),
            np.hstack([given[:, : -self.n_cells], is_given.repeat(self.width, 1)]),
        )

    def steps(self, tokens):
        """Return of each step of rows (the cell that it names, -1 for none; its value), (B, cells).

        A token of -1 is in no name."""
        steps = tokens[:, -self.length :].reshape(-1, self.n_cells, self.width)
        *name, value = steps.transpose(2, 0, 1)
        return self.cell[tuple(name)], value

    def in_cells(self, tokens):
        """Return rows of steps, of which each cell has one, as rows of the puzzle."""
        cell, value = self.steps(tokens)
        value = np.take_along_axis(value, cell.argsort(1), 1)
        return np.hstack([tokens[:, : -self.length], value])

    def key(self, tokens):
        """Return what two splits may not share."""
        return super().key(self.in_cells(tokens))

    def right(self, tokens, answer):
        """Return which tokens of `answer` are right, all (B, N).

        The tokens of a step are right together: if they name a cell that none before them does,
        and its value. In which order the steps come is free."""
        cell, said = self.steps(answer)
        first = (cell[:, :, None] == cell[:, None]).argmax(2)  # step that names the same cell
        value = np.take_along_axis(self.in_cells(tokens)[:, -self.n_cells :], cell, 1)
        is_new = (cell >= 0) & (first == np.arange(self.n_cells))
        right = answer == tokens
        right[:, -self.length :] = (is_new & (said == value)).repeat(self.width, 1)
        return right
