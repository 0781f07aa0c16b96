"""The rules of Sudoku of n x n cells, n = 4 or 9.

The solver's (B, n n, n) says which digits a cell can still be."""

import math

import numpy as np

from anyorder.extras.puzzles.solver import blanks_right, count_solutions, propagate


class Sudoku:
    """Rules, generator and solver, for many puzzles at once.

    A grid is n n digits, row by row: 1 to n, 0 is blank."""

    def __init__(self, n):
        self.n = n
        self.box = math.isqrt(n)
        self.shape = [n, n]
        cell = np.arange(n * n)
        row = cell // n
        column = cell % n
        box = row // self.box * self.box + column // self.box
        units = [np.arange(n)[:, None] == part for part in (row, column, box)]
        self.units = np.concatenate(units).astype(np.float32)  # (3 n, cells)

    check_answer = staticmethod(blanks_right)

    def key(self, tokens):
        """Return what two splits may not share: the solution.

        Its digits are named in the order of the first row."""
        names = np.zeros((len(tokens), self.n), tokens.dtype)
        np.put_along_axis(names, tokens[:, : self.n], np.arange(1, self.n + 1)[None], 1)
        return np.take_along_axis(names, tokens, 1)

    def solve(self, grids):
        """Return (number of solutions of each of grids (B, cells), one solution).

        Solutions are counted up to 2; 0 where there is none."""
        is_digit = grids[:, :, None] == np.arange(1, self.n + 1)
        is_blank = grids[:, :, None] == 0
        count, solution = count_solutions(is_digit | is_blank, self.units)
        return count, np.where(count[:, None] > 0, solution + 1, 0)

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, cells): the puzzles whose solutions `wanted` lets pass.

        Among n_rows with one solution; wanted is (B, cells) -> (B,) bool. About 24 to 36 cells are
        given, in 4 x 4 about 4 to 8."""
        solutions = self.random_grids(-(-n_rows // n_variants), rng)
        solutions = solutions[wanted(solutions - 1)]
        low, high = (24, 37) if self.n == 9 else (4, 9)
        puzzles = self.dig(solutions, rng.integers(low, high, len(solutions)), rng)
        if n_variants > 1:
            puzzles = puzzles.repeat(n_variants, 0)
            solutions = solutions.repeat(n_variants, 0)
            puzzles, solutions = self.symmetric(puzzles, solutions, rng)
        keep = wanted(solutions - 1)
        return solutions[keep] - 1, puzzles[keep] > 0

    def random_grids(self, n_grids, rng):
        """Return random full grids (n_grids, cells).

        A cell with the fewest digits left takes one; a dead end starts anew."""
        grids = []
        can = np.ones((n_grids, self.n**2, self.n), bool)
        while len(can):
            can, sound = propagate(can, self.units)
            can[~sound] = True
            left = can.sum(2)
            done = sound & (left == 1).all(1)
            grids.append(can[done].argmax(2) + 1)
            can = can[~done]
            left = left[~done]
            if len(can):
                rows = np.arange(len(can))
                n_left = np.where(left > 1, left, self.n + 1)
                cell = (n_left + rng.random(left.shape)).argmin(1)
                digit = (can[rows, cell] * rng.random((len(can), self.n))).argmax(1)
                can[rows, cell] = np.eye(self.n, dtype=bool)[digit]
        return np.concatenate(grids)

    def dig(self, solutions, n_clues, rng):
        """Return puzzles of `solutions` with about n_clues (B,) digits left.

        Random ones go that let in no other solution."""
        puzzles = solutions.copy()
        cells = self.n**2
        order = rng.random(puzzles.shape).argsort(1)
        # half of them go at once, and come back where that is too many
        n_first = cells // 2 if cells > 16 else 0
        np.put_along_axis(puzzles, order[:, :n_first], 0, 1)
        count, _ = self.solve(puzzles)
        bad = count != 1
        puzzles[bad] = solutions[bad]
        for cell in order.T:
            there = puzzles[np.arange(len(puzzles)), cell] > 0
            too_many = (puzzles > 0).sum(1) > n_clues
            rows = np.flatnonzero(too_many & there)
            trial = puzzles[rows]
            trial[np.arange(len(rows)), cell[rows]] = 0
            count, _ = self.solve(trial)
            fine = count == 1
            puzzles[rows[fine]] = trial[fine]
        return puzzles

    def symmetric(self, puzzles, solutions, rng):
        """Return pairs (B, cells) turned by random symmetries.

        Digits, bands, rows in bands, columns alike, transposition."""
        B, cells = puzzles.shape
        rows = self.random_lines(B, rng)
        columns = self.random_lines(B, rng)
        cell = rows[:, :, None] * self.n + columns[:, None, :]  # (B, n, n) where a cell comes from
        turned = rng.random((B, 1, 1)) >= 0.5
        cell = np.where(turned, cell.transpose(0, 2, 1), cell).reshape(B, cells)
        digit = rng.random((B, self.n)).argsort(1) + 1
        digit = np.pad(digit, ((0, 0), (1, 0)))  # 0, a blank, stays
        pair = []
        for grids in (puzzles, solutions):
            moved = np.take_along_axis(grids, cell, 1)
            pair.append(np.take_along_axis(digit, moved, 1))
        return pair

    def random_lines(self, n_grids, rng):
        """Return random orders (n_grids, n) of rows or of columns, which keep to their bands."""
        b = self.box
        bands = rng.random((n_grids, b)).argsort(1)
        inner = rng.random((n_grids, b, b)).argsort(2)
        return (bands[:, :, None] * b + inner).reshape(n_grids, self.n)
