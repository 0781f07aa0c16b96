"""A Sudoku as the steps of its solution: what an autoregressive model is taught, who cannot choose.

A row is n n triples (row, column, digit), all in the tokens of the digits; what is given comes
first. Source: Shah et al. 2024, "Causal language modeling can elicit search and reasoning
capabilities on logic puzzles", arXiv 2409.10502, whose solver knows more rules."""

import numpy as np

from anyorder.extras.puzzles.solver import hidden_singles
from anyorder.extras.puzzles.sudoku import Sudoku
from configurator import check_choice

ORDERS = ('solver', 'reading', 'random')  # of the blanks
CELLS = 'cells'  # no triples: the same puzzles as a grid, to compare with


class SudokuSteps(Sudoku):
    """Sudokus of n x n cells that naked and hidden singles solve, others are left out.

    steps  a name of ORDERS: by the solver's rounds, in reading order, at random; or CELLS"""

    def __init__(self, n, steps):
        check_choice('steps', steps, *ORDERS, CELLS)
        super().__init__(n)
        self.steps = steps
        if steps != CELLS:
            self.shape = None

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, N)."""
        tokens, given = super().make(n_rows, rng, wanted, n_variants)
        round_of = self.rounds(tokens, given)
        is_solved = (round_of >= 0).all(1)
        tokens = tokens[is_solved]
        given = given[is_solved]
        if self.steps == CELLS:
            return tokens, given
        rank = {
            'solver': round_of[is_solved],
            'reading': np.ones(tokens.shape),
            'random': 1 + rng.random(tokens.shape),
        }[self.steps]
        cell = np.where(given, 0, rank).argsort(1, kind='stable')  # ties in reading order
        digit = np.take_along_axis(tokens, cell, 1)
        triples = np.stack([cell // self.n, cell % self.n, digit], 2)
        is_given = np.take_along_axis(given, cell, 1)
        return triples.reshape(len(tokens), -1), is_given.repeat(3, 1)

    def rounds(self, tokens, given):
        """Return when singles find each cell of grids (B, cells): in which round, from 1 on, 0 if
        it is given, -1 if they do not.

        A round is the naked singles, then the hidden ones, of what was known before it: the even
        numbers are those of hidden singles."""
        share_a_unit = self.units.T @ self.units > 0  # (cells, cells), each with itself
        peers = share_a_unit.astype(np.float32)
        digit = np.eye(self.n, dtype=np.float32)[tokens]  # (B, cells, n)
        round_of = np.where(given, 0, -1)
        last = 0
        while True:
            known = round_of >= 0
            taken = np.matmul(peers, digit * known[:, :, None]) > 0
            can = ~taken & ~known[:, :, None]
            naked = can.sum(2) == 1
            hidden = hidden_singles(can, self.units).any(2) & ~naked
            if not (naked | hidden).any():
                return round_of
            round_of[naked] = last + 1
            round_of[hidden] = last + 2
            last += 2

    def grids(self, triples):
        """Return the grids (B, cells) of rows of triples."""
        row, column, digit = triples.reshape(len(triples), -1, 3).transpose(2, 0, 1)
        grids = np.zeros_like(digit)
        np.put_along_axis(grids, row * self.n + column, digit, 1)
        return grids

    def key(self, tokens):
        """Return what two splits may not share, of grids or of triples."""
        is_grid = tokens.shape[1] == self.n**2
        return super().key(tokens if is_grid else self.grids(tokens))

    def check_answer(self, tokens, given, answer):
        """Return (which tokens of `answer` count, which are right), all (B, N).

        The three of a step are right together: if they fill a cell that is free, with its digit. In
        which order they do is free."""
        if self.steps == CELLS:
            return super().check_answer(tokens, given, answer)
        grids = self.grids(tokens)
        is_free = np.ones(grids.shape, bool)
        rows = np.arange(len(grids))
        right = np.zeros(answer.shape, bool)
        for i in range(0, answer.shape[1], 3):
            row, column, digit = answer[:, i : i + 3].T
            cell = row * self.n + column
            is_cell = (row >= 0) & (column >= 0)
            fills = is_cell & is_free[rows, cell]
            right[:, i : i + 3] = (fills & (digit == grids[rows, cell]))[:, None]
            is_free[rows[fills], cell[fills]] = False
        return ~given, right
