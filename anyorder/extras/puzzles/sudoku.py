"""The rules of Sudoku of n x n cells, n = 4 or 9.

The solver's (B, n n, n) says which digits a cell can still be."""

import math

import numpy as np

from anyorder.extras.puzzles.puzzle import Puzzle
from anyorder.extras.puzzles.solver import count_solutions, dig, propagate


class Sudoku(Puzzle):
    """Rules, generator and solver, for many puzzles at once.

    A grid is n n tokens, row by row: 0 is the digit 1."""

    options = ('steps',)

    def __init__(self, n):
        self.n = n
        self.about = f'{n} x {n}'
        self.symbols = '123456789'[:n]
        self.cells = [row + column for row in self.symbols for column in self.symbols]
        self.quick = n == 4
        if self.quick:
            self.n_train = 20000
        self.box = math.isqrt(n)
        self.shape = [n, n]
        row, column = np.indices((n, n)).reshape(2, -1)
        box = row // self.box * self.box + column // self.box
        units = [np.arange(n)[:, None] == part for part in (row, column, box)]
        self.units = np.concatenate(units).astype(np.float32)  # (3 n, cells)

    def key(self, tokens):
        """Return what two splits may not share: the solution.

        Its digits are named by their columns in the first row, from 1 on."""
        names = tokens[:, : self.n].argsort(1) + 1
        return np.take_along_axis(names, tokens, 1)

    def count(self, tokens, given):
        """Return the number of solutions, counted up to 2, of grids (B, cells)."""
        return count_solutions(*self.state(tokens, given))

    def state(self, tokens, given):
        """Return what each cell can be (B, cells, n), and the units, as the solver takes them."""
        can = tokens[:, :, None] == np.arange(self.n)
        return can | ~given[:, :, None], self.units

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, cells). About 24 to 36 random cells are given, in 4 x 4
        about 4 to 8; others go that let in no other solution."""
        tokens = self.random_grids(-(-n_rows // n_variants), rng)
        tokens = tokens[wanted(self.key(tokens))]

        def is_enough(rows, given):
            return self.count(tokens[rows], given) == 1

        low, high = (24, 37) if self.n == 9 else (4, 9)
        n_clues = rng.integers(low, high, len(tokens))
        given = np.ones(tokens.shape, bool)
        dig(given, rng.random(tokens.shape).argsort(1), is_enough, n_clues)
        if n_variants > 1:
            return self.symmetric(tokens.repeat(n_variants, 0), given.repeat(n_variants, 0), rng)
        return tokens, given

    def random_grids(self, n_grids, rng):
        """Return random full grids (n_grids, cells).

        A cell with the fewest digits left takes one; a dead end starts anew."""
        grids = []
        can = np.ones((n_grids, self.n**2, self.n), bool)
        while len(can):
            can, sound = propagate(can, self.units)
            can[~sound] = True
            left = can.sum(2)
            done = (left == 1).all(1)
            grids.append(can[done].argmax(2))
            can = can[~done]
            n_left = np.where(left > 1, left, np.inf)[~done]
            rows = np.arange(len(can))
            cell = (n_left + rng.random(n_left.shape)).argmin(1)
            digit = (can[rows, cell] * rng.random((len(can), self.n))).argmax(1)
            can[rows, cell] = np.eye(self.n, dtype=bool)[digit]
        return np.concatenate(grids)

    def symmetric(self, tokens, given, rng):
        """Return tokens and given (B, cells) turned by random symmetries.

        Digits, bands, rows in bands, columns alike, transposition."""
        B = len(tokens)
        rows = self.random_lines(B, rng)
        columns = self.random_lines(B, rng)
        cell = rows[:, :, None] * self.n + columns[:, None, :]  # (B, n, n) where a cell comes from
        turned = rng.random((B, 1, 1)) >= 0.5
        cell = np.where(turned, cell.transpose(0, 2, 1), cell).reshape(tokens.shape)
        digit = rng.random((B, self.n)).argsort(1)
        moved = np.take_along_axis(tokens, cell, 1)
        return np.take_along_axis(digit, moved, 1), np.take_along_axis(given, cell, 1)

    def random_lines(self, n_grids, rng):
        """Return random orders (n_grids, n) of rows or of columns, which keep to their bands."""
        b = self.box
        bands = rng.random((n_grids, b)).argsort(1)
        inner = rng.random((n_grids, b, b)).argsort(2)
        return (bands[:, :, None] * b + inner).reshape(n_grids, self.n)
