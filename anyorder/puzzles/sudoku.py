"""The rules of Sudoku of n x n cells, n = 4 or 9. The solver's (B, n n, n) says which digits a cell can still be."""

import csv
import math

import numpy as np

from anyorder.machine.files import reading_text
from anyorder.machine.terminal import progress
from anyorder.puzzles.solver import blanks_right, count_solutions, propagate


class Sudoku:
    """Rules, generator and solver, for many puzzles at once. A grid is n n digits, row by row: 1 to n, 0 is blank."""

    def __init__(self, n):
        self.n = self.columns = n
        self.box, self.shape, cell = math.isqrt(n), [n, n], np.arange(n * n)
        row, column = cell // n, cell % n
        box = row // self.box * self.box + column // self.box
        units = np.concatenate([np.arange(n)[:, None] == part for part in (row, column, box)])
        self.units = units.astype(np.float32)  # (3 n, cells)

    def solve(self, grids):
        """(number of solutions of each of grids (B, cells), counted up to 2; one solution, 0 where there is none)."""
        can = (grids[:, :, None] == np.arange(1, self.n + 1)) | (grids[:, :, None] == 0)
        count, solution = count_solutions(can, self.units)
        return count, np.where(count[:, None] > 0, solution + 1, 0)

    def random_grids(self, n_grids, rng):
        """Random full grids (n_grids, cells). A cell with the fewest digits left takes one; a dead end starts anew."""
        grids, cells = [], self.n**2
        can = np.ones((n_grids, cells, self.n), bool)
        while len(can):
            can, sound = propagate(can, self.units)
            can[~sound] = True
            left = can.sum(2)
            done = sound & (left == 1).all(1)
            grids.append(can[done].argmax(2) + 1)
            can, left = can[~done], left[~done]
            if len(can):
                rows = np.arange(len(can))
                cell = (np.where(left > 1, left, self.n + 1) + rng.random(left.shape)).argmin(1)
                digit = (can[rows, cell] * rng.random((len(can), self.n))).argmax(1)
                can[rows, cell] = np.eye(self.n, dtype=bool)[digit]
        return np.concatenate(grids)

    def dig(self, solutions, n_clues, rng):
        """Puzzles of `solutions` with about n_clues (B,) digits left. Random ones go that let in no other solution."""
        puzzles, cells = solutions.copy(), self.n**2
        order = rng.random(puzzles.shape).argsort(1)
        n_first = (
            cells // 2 if cells > 16 else 0
        )  # half of them go at once, and come back where that is too many
        np.put_along_axis(puzzles, order[:, :n_first], 0, 1)
        bad = self.solve(puzzles)[0] != 1
        puzzles[bad] = solutions[bad]
        for k in range(cells):
            there = puzzles[np.arange(len(puzzles)), order[:, k]] > 0
            rows = np.flatnonzero(((puzzles > 0).sum(1) > n_clues) & there)
            trial = puzzles[rows]
            trial[np.arange(len(rows)), order[rows, k]] = 0
            keep = self.solve(trial)[0] == 1
            puzzles[rows[keep]] = trial[keep]
        return puzzles

    def symmetric(self, puzzles, solutions, rng):
        """(B, cells) pairs turned by random symmetries: digits, bands, rows in bands, columns alike, transposition."""
        (B, cells), b = puzzles.shape, self.box

        def random_lines():
            bands, inner = rng.random((B, b)).argsort(1), rng.random((B, b, b)).argsort(2)
            return (bands[:, :, None] * b + inner).reshape(B, self.n)

        rows, columns = random_lines(), random_lines()
        cell = (
            rows[:, :, None] * self.n + columns[:, None, :]
        )  # (B, n, n) where each cell comes from
        cell = np.where(rng.random((B, 1, 1)) < 0.5, cell, cell.transpose(0, 2, 1)).reshape(
            B, cells
        )
        digit = np.pad(
            rng.random((B, self.n)).argsort(1) + 1, ((0, 0), (1, 0))
        )  # 0, a blank, stays
        return [
            np.take_along_axis(digit, np.take_along_axis(grids, cell, 1), 1)
            for grids in (puzzles, solutions)
        ]

    def make(self, n_rows, rng, wanted, n_variants=1):
        """(tokens, given), each (n, cells): the puzzles, among n_rows with one solution, whose solutions `wanted`,
        (B, cells) -> (B,) bool, lets pass. About 24 to 36 cells are given, in 4 x 4 about 4 to 8."""
        low, high = (24, 37) if self.n == 9 else (4, 9)
        solutions = self.random_grids(-(-n_rows // n_variants), rng)
        solutions = solutions[wanted(solutions - 1)]
        puzzles = self.dig(solutions, rng.integers(low, high, len(solutions)), rng)
        if n_variants > 1:
            puzzles, solutions = self.symmetric(
                puzzles.repeat(n_variants, 0), solutions.repeat(n_variants, 0), rng
            )
        keep = wanted(solutions - 1)
        return solutions[keep] - 1, puzzles[keep] > 0

    def key(self, tokens):
        """What two splits may not share: the solution, its digits named in the order of the first row."""
        names = np.zeros((len(tokens), self.n), tokens.dtype)
        np.put_along_axis(names, tokens[:, : self.n], np.arange(1, self.n + 1)[None], 1)
        return np.take_along_axis(names, tokens, 1)

    check_answer = staticmethod(blanks_right)

    def read(self, path):
        """(tokens, given) of a CSV with the column puzzle and maybe the column solution. Raises ValueError for a puzzle
        that has no solution, several, or another one than the file says."""
        puzzles, solutions = [], []  # a solution that the file lacks is all 0
        with reading_text(path, '') as f:
            lines = list(csv.DictReader(f))
        for line in lines:
            if 'puzzle' not in line:
                raise ValueError(
                    f'{path} must have the column puzzle, it has {", ".join(map(str, line))[:80]}'
                )
            puzzle = (line['puzzle'] or '').replace('.', '0')
            for text in (puzzle, line.get('solution') or puzzle):
                if len(text) != self.n**2 or set(text) - set('0123456789'[: self.n + 1]):
                    raise ValueError(
                        f'{path}: puzzle {len(puzzles) + 1} must be {self.n**2} digits from 0 (blank) '
                        f'to {self.n}, got {text[:90]!r}'
                    )
            puzzles.append([int(c) for c in puzzle])
            solutions.append([int(c) for c in line.get('solution') or '0' * self.n**2])
        puzzles, solutions = (
            np.array(grids, int).reshape(-1, self.n**2) for grids in (puzzles, solutions)
        )
        if not len(puzzles):
            raise ValueError(f'{path} holds no puzzles')
        found, parts = [], np.array_split(np.arange(len(puzzles)), max(1, len(puzzles) // 1024))
        for part in progress(parts, desc='solving, 1024 at a time', leave=False):
            count, solution = self.solve(puzzles[part])
            other = (count != 1) | (solutions[part] > 0).any(1) & (solution != solutions[part]).any(
                1
            )
            full = (puzzles[part] > 0).all(1)
            if (other | full).any():
                k = int((other | full).argmax())
                why = {
                    0: 'has no solution',
                    1: 'has another solution than it says' if other[k] else 'has no blank',
                    2: 'has several solutions',
                    -1: 'has too few clues to be decided',
                }[count[k]]
                raise ValueError(
                    f'{path}: puzzle {part[k] + 1} {why}: {"".join(map(str, puzzles[part[k]]))}'
                )
            found.append(solution)
        return np.concatenate(found) - 1, puzzles > 0
