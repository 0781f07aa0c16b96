"""
The rules of the puzzles: generators, an exact solver, and what counts as right.

A task has make(n_rows, rng, wanted, n_variants) -> (tokens, given), both (n, N); key(tokens), what two splits may not share;
judge(tokens, given, answer) -> (which tokens count, which are right), both (n, N); columns, of the grid on a page. nae_sat also has
groups, {name: (first, end)} of the tokens whose losses are told apart, and Sudoku read(path), the puzzles of a CSV.
"""
import csv

import numpy as np

from anyorder.files import progress
from data.sources import UNREADABLE, open_text
from data.tokenizers import zebra_names, zebra_texts

MOST_BRANCHES = 10 ** 6   # of one puzzle and those solved with it, then they are left undecided


# ---------------------------------------------------------------------------------------------------------------------
# the exact solver

def count_solutions(can, propagate):
    """(number of solutions, counted up to 2, -1 if MOST_BRANCHES did not decide; one of them, the value of every variable) of puzzles can
    (B, variables, values) bool, what each variable can be. propagate(can, owner) -> (narrower can, which have no contradiction) for rows
    that descend from puzzles `owner`."""
    count, solution, n_branches = np.zeros(len(can), int), np.zeros(can.shape[:2], int), 0
    stack = [(np.arange(len(can)), can)]
    while stack and n_branches < MOST_BRANCHES:
        owner, can = stack.pop()
        n_branches += len(owner)
        still = count[owner] < 2
        owner = owner[still]
        can, sound = propagate(can[still], owner)
        owner, can = owner[sound], can[sound]
        left = can.sum(2)                                                                     # (B, variables)
        done = (left == 1).all(1)
        np.add.at(count, owner[done], 1)
        solution[owner[done]] = can[done].argmax(2)
        owner, can, left = owner[~done], can[~done], left[~done]
        if len(owner):                                                                        # branch where the fewest are left
            variable = np.where(left > 1, left, can.shape[2] + 1).argmin(1)
            which, value = can[np.arange(len(can)), variable].nonzero()
            branch = can[which]
            branch[np.arange(len(which)), variable[which]] = np.eye(can.shape[2], dtype=bool)[value]
            first = np.diff(which, prepend=-1) > 0            # one branch of each down to its end, before the others: two solutions
            stack += [(owner[which[part]], branch[part]) for part in (~first, first)]                      # are soon found
    count = count.clip(max=2)
    for owner, _ in stack:
        count[owner[count[owner] < 2]] = -1
    return count, solution


def blanks_right(tokens, given, answer):
    """(which tokens of `answer` count, which are right), all (B, N): every blank, for a puzzle has one solution."""
    return ~given, answer == tokens


# ---------------------------------------------------------------------------------------------------------------------
# Sudoku of n x n cells, n = 4 or 9. A batch of them is (B, n n, n) bool: which digits a cell can still be

class Sudoku:
    """Rules, generator and solver, for many puzzles at once. Digits are 1 to n, 0 is blank; a grid is n n digits, row by row."""

    def __init__(self, n):
        self.n, b = n, int(n ** 0.5)
        self.columns, cell = n, np.arange(n * n)
        row, column = cell // n, cell % n
        box = row // b * b + column // b
        self.units = np.concatenate([np.arange(n)[:, None] == part for part in (row, column, box)]).astype(np.float32)   # (3 n, cells)
        self.peers = (self.units.T @ self.units > 0).astype(np.float32) - np.eye(n * n, dtype=np.float32)               # (cells, cells)

    def candidates(self, grids):
        digits = np.arange(1, self.n + 1)
        return (grids[:, :, None] == digits) | (grids[:, :, None] == 0)

    def propagate(self, can, owner=None):
        """Narrow (B, cells, n) by naked and hidden singles until nothing changes; returns it and which rows have no contradiction."""
        active, can = np.arange(len(can)), can.copy()
        while len(active):
            now = can[active]
            single = (now & (now.sum(2, keepdims=True) == 1)).astype(np.float32)
            new = now & (np.matmul(self.peers, single) == 0)                                  # no peer of a cell that has one digit left
            only = new & (np.matmul(self.units.T, (np.matmul(self.units, new.astype(np.float32)) == 1).astype(np.float32)) > 0)
            new = np.where(only.any(2, keepdims=True), only, new)                             # the only cell of a unit for that digit
            can[active] = new
            active = active[(new != now).any((1, 2)) & new.any(2).all(1)]
        return can, can.any(2).all(1) & (np.matmul(self.units, can.astype(np.float32)) > 0).all((1, 2))   # the second saves branches

    def solve(self, grids):
        """(number of solutions of each of grids (B, cells), counted up to 2; one solution, 0 where there is none)."""
        count, solution = count_solutions(self.candidates(grids), self.propagate)
        return count, np.where(count[:, None] > 0, solution + 1, 0)

    def random_grids(self, n_grids, rng):
        """(n_grids, cells) full grids: a cell with the fewest digits left takes one of them, both at random; a dead end starts anew."""
        grids, cells = [], self.n ** 2
        can = np.ones((n_grids, cells, self.n), bool)
        while len(can):
            can, sound = self.propagate(can)
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
        """Puzzles of `solutions` with about n_clues (B,) digits left: in random order each goes, unless that lets in another solution."""
        puzzles, cells = solutions.copy(), self.n ** 2
        order = rng.random(puzzles.shape).argsort(1)
        n_first = cells // 2 if cells > 16 else 0                 # half are taken away at once, and put back where that is too many
        np.put_along_axis(puzzles, order[:, :n_first], 0, 1)
        bad = self.solve(puzzles)[0] != 1
        puzzles[bad] = solutions[bad]
        for k in range(cells):
            rows = np.flatnonzero(((puzzles > 0).sum(1) > n_clues) & (puzzles[np.arange(len(puzzles)), order[:, k]] > 0))
            trial = puzzles[rows]
            trial[np.arange(len(rows)), order[rows, k]] = 0
            keep = self.solve(trial)[0] == 1
            puzzles[rows[keep]] = trial[keep]
        return puzzles

    def canonical(self, grids):
        """Full grids (B, cells) with their digits named in the order of the first row: equal for relabelled ones."""
        names = np.zeros((len(grids), self.n + 1), grids.dtype)
        np.put_along_axis(names, grids[:, :self.n], np.arange(1, self.n + 1)[None], 1)
        return np.take_along_axis(names, grids, 1)

    def symmetric(self, puzzles, solutions, rng):
        """Each (B, cells) pair turned by a random symmetry of Sudoku: digits, bands, rows in a band, the same of columns, transposition."""
        (B, cells), b = puzzles.shape, int(self.n ** 0.5)
        lines = [(rng.random((B, b)).argsort(1)[:, :, None] * b + rng.random((B, b, b)).argsort(2)).reshape(B, self.n) for _ in range(2)]
        cell = lines[0][:, :, None] * self.n + lines[1][:, None, :]                              # (B, n, n) where each cell comes from
        cell = np.where(rng.random((B, 1, 1)) < 0.5, cell, cell.transpose(0, 2, 1)).reshape(B, cells)
        digit = np.pad(rng.random((B, self.n)).argsort(1) + 1, ((0, 0), (1, 0)))                 # 0, a blank, stays
        return [np.take_along_axis(digit, np.take_along_axis(grids, cell, 1), 1) for grids in (puzzles, solutions)]

    def make(self, n_rows, rng, wanted, n_variants=1):
        """(tokens, given), each (n, cells): of n_rows puzzles with one solution those whose solutions `wanted` (B, cells) -> (B,) bool lets
        pass. About 24 to 36 cells are given, of 4 x 4 about 4 to 8."""
        low, high = (24, 37) if self.n == 9 else (4, 9)
        solutions = self.random_grids(-(-n_rows // n_variants), rng)
        solutions = solutions[wanted(solutions - 1)]
        puzzles = self.dig(solutions, rng.integers(low, high, len(solutions)), rng)
        if n_variants > 1:
            puzzles, solutions = self.symmetric(puzzles.repeat(n_variants, 0), solutions.repeat(n_variants, 0), rng)
        keep = wanted(solutions - 1)
        return solutions[keep] - 1, puzzles[keep] > 0

    def key(self, tokens):
        """What two splits may not share: the solution up to relabelling."""
        return self.canonical(tokens + 1)

    judge = staticmethod(blanks_right)

    def read(self, path):
        """(tokens, given) of a CSV with the column puzzle and, if it likes, solution. Raises ValueError for the first puzzle that has not
        one solution, and that one."""
        puzzles, solutions = [], []
        try:
            with open_text(path, '') as f:
                lines = csv.DictReader(f)
                if 'puzzle' not in (lines.fieldnames or ()):
                    raise ValueError(f'{path} must have the column puzzle, it has {", ".join(lines.fieldnames or ["nothing"])[:80]}')
                for line in lines:
                    puzzle = (line.get('puzzle') or '').replace('.', '0')
                    for text in (puzzle, line.get('solution') or puzzle):
                        if len(text) != self.n ** 2 or set(text) - set('0123456789'[:self.n + 1]):
                            raise ValueError(f'{path}: puzzle {len(puzzles) + 1} must be {self.n ** 2} digits from 0 (blank) to {self.n}, '
                                             f'got {text[:90]!r}')
                    puzzles.append([int(c) for c in puzzle])
                    solutions.append([int(c) for c in line.get('solution') or '0' * self.n ** 2])
        except (OSError, *UNREADABLE, csv.Error) as e:
            raise ValueError(f'{path} cannot be read: {e}') from None
        puzzles, solutions, found = np.array(puzzles).reshape(-1, self.n ** 2), np.array(solutions).reshape(-1, self.n ** 2), []
        parts = np.array_split(np.arange(len(puzzles)), max(1, len(puzzles) // 1024))
        for part in progress(parts, desc='solving, 1024 at a time', leave=False):
            count, solution = self.solve(puzzles[part])
            other = (count != 1) | (solutions[part] > 0).any(1) & (solution != solutions[part]).any(1)
            full = (puzzles[part] > 0).all(1)
            if (other | full).any():
                k = int((other | full).argmax())
                why = {0: 'has no solution', 1: 'has another solution than it says' if other[k] else 'has no blank',
                       2: 'has several solutions', -1: 'has too few clues to be decided'}[count[k]]
                raise ValueError(f'{path}: puzzle {part[k] + 1} {why}: {"".join(map(str, puzzles[part[k]]))}')
            found.append(solution)
        if not len(puzzles):
            raise ValueError(f'{path} holds no puzzles')
        return np.concatenate(found) - 1, puzzles > 0


# ---------------------------------------------------------------------------------------------------------------------
# Zebra: n houses in a row and k attributes, of each n values, one in each house; n and k from 3 to most

class Zebra:
    """Clues `relation item item`, each one token, then the house of every item, attribute by attribute. An item is a value of an
    attribute; attribute 0 is the house's number, so that `= item house` says where something is. Relations: 1 in the same house, 2 right
    before, 3 next to, 4 somewhere before. Tokens: 0 is padding, which is given; 1 to `most` the houses; then all clues there are. Puzzles
    are made up to `largest` houses and attributes, by default `most`."""

    def __init__(self, most, largest=None):
        self.most, self.n_clues, self.columns = most, most * (most - 1), most                 # houses and attributes; clues of a row
        self.largest = most if largest is None else largest
        if not 3 <= self.largest <= most:
            raise ValueError(f'largest must be 3 to {most} houses, got {self.largest}')
        names, ids = zebra_names(most), {text: i for i, text in enumerate(zebra_texts(most))}
        self.clue = np.array([[[ids.get(a + sign + b, ids.get(b + sign + a, 0) if sign in '=~' else 0) for b in names] for a in names]
                              for sign in ' =<~-'])                                           # (5, names, names) token; 0 is none

    def holds(self, n):
        """(5, n, n) bool: relation r between houses i and j; 0 is none, which always holds."""
        i, j = np.arange(n)[:, None], np.arange(n)
        return np.stack([i < n + j, i == j, i + 1 == j, abs(i - j) == 1, i < j])

    def solve(self, clues, n, k):
        """(number of solutions, counted up to 2; (B, (k + 1) n) house of every item) of clues (B, M, 3), relation and two items
        a n + v of attribute a and value v; relation 0 is no clue."""
        can = np.ones((len(clues), (k + 1) * n, n), bool)
        can[:, :n] = np.eye(n, dtype=bool)
        holds = self.holds(n).astype(np.float32)[clues[:, :, 0]]                              # (B, M, n, n)
        at = np.arange(can.shape[1])[:, None]
        of_a, of_b = ((clues[:, None, :, i] == at).astype(np.float32) for i in (1, 2))        # (B, items, M)

        def propagate(can, owner):
            can, active = can.copy(), np.arange(len(can))
            while len(active):
                before, who = can[active], owner[active]
                here, there = (np.take_along_axis(before, clues[who, :, i, None], 1).astype(np.float32) for i in (1, 2))
                lone_a = (holds[who] @ there[..., None])[..., 0] == 0                         # houses of a that no house of b goes with
                lone_b = (here[:, :, None] @ holds[who])[:, :, 0] == 0
                now = before & (of_a[who] @ lone_a.astype(np.float32) + of_b[who] @ lone_b.astype(np.float32) == 0)
                by = now.reshape(-1, k + 1, n, n)                                             # attribute, value, house
                single = by & (by.sum(3, keepdims=True) == 1)
                by = by & (single | (single.sum(2, keepdims=True) == 0))                      # a house that is taken
                only = by & (by.sum(2, keepdims=True) == 1)
                by = np.where(only.any(3, keepdims=True), only, by)                           # a house that nothing else can take
                now = by.reshape(now.shape)
                can[active] = now
                active = active[(now != before).any((1, 2)) & now.any(2).all(1)]
            by = can.reshape(-1, k + 1, n, n)   # more than the first of these conditions saves branches
            return can, by.any(3).all((1, 2)) & by.any(2).all((1, 2)) & ((by & (by.sum(3, keepdims=True) == 1)).sum(2) < 2).all((1, 2))
        return count_solutions(can, propagate)

    def clues(self, house, n, k, n_clues, rng):
        """(B, n_clues, 3) clues that are true of house (B, (k + 1) n): random pairs of items of different attributes, relations at random
        among those that hold, the rarer ones first."""
        B, items = house.shape
        a, b = rng.integers(items, size=(2, B, 4 * n_clues))
        here, there = (np.take_along_axis(house, x, 1) for x in (a, b))
        a, b, here, there = (np.where(here <= there, x, y) for x, y in ((a, b), (b, a), (here, there), (there, here)))
        choice, step = rng.random(a.shape), there - here
        relation = np.where(step == 0, 1, np.where(step > 1, 4, np.where(choice < 0.4, 2, np.where(choice < 0.8, 3, 4))))
        turned = (relation == 3) & (rng.random(a.shape) < 0.5)                                # next to says nothing of the side
        a, b = np.where(turned, b, a), np.where(turned, a, b)
        good = (a // n != b // n) & ((step < 2) | (choice < 0.3)) & ((a >= n) | (b >= n))
        good &= ((a >= n) & (b >= n)) | (step == 0) & (choice < 0.3)                          # house numbers only in `=`
        first = (~good).argsort(1, kind='stable')[:, :n_clues]
        return np.stack([np.where(np.take_along_axis(good, first, 1), np.take_along_axis(relation, first, 1), 0),
                         *(np.take_along_axis(x, first, 1) for x in (a, b))], 2)

    def dig(self, clues, n, k):
        """(which puzzles have one solution, those of their clues (B, n_clues, 3) without which they have more) for clues (B, M, 3)."""
        good = self.solve(clues, n, k)[0] == 1
        clues = clues[good]
        low, high, m = np.zeros(len(clues), int), np.full(len(clues), clues.shape[1]), np.arange(clues.shape[1])
        while (high - low > 1).any():                                                         # the fewest first ones that are enough
            middle = (low + high) // 2
            enough = self.solve(np.where((m < middle[:, None])[:, :, None], clues, 0), n, k)[0] == 1
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        clues = np.where((m < high[:, None])[:, :, None], clues, 0)[:, :high.max()]
        for m in range(clues.shape[1]):                                                       # then one after the other
            rows = np.flatnonzero(clues[:, m, 0])
            trial = clues[rows]
            trial[:, m, 0] = 0
            fine = self.solve(trial, n, k)[0] == 1
            clues[rows[fine]] = trial[fine]
        last = np.argsort(clues[:, :, 0] == 0, axis=1, kind='stable')
        clues = np.take_along_axis(clues, last[:, :, None], 1)
        fits = (clues[:, :, 0] > 0).sum(1) <= self.n_clues
        good[good] = fits
        return good, np.pad(clues[fits], ((0, 0), (0, max(0, self.n_clues - clues.shape[1])), (0, 0)))[:, :self.n_clues]

    def make(self, n_rows, rng, wanted, n_variants=1):
        """(tokens, given), each (n, n_clues + most^2): of about n_rows, of all sizes from 3 to `largest` houses and attributes alike, those
        whose solutions `wanted` lets pass."""
        sizes = [(n, k) for n in range(3, self.largest + 1) for k in range(3, self.largest + 1)]
        tokens = np.concatenate([self.make_size(-(-n_rows // len(sizes)), n, k, rng, wanted, n_variants) for n, k in sizes])
        given = (np.arange(tokens.shape[1]) < self.n_clues) | (tokens == 0)
        shuffled = rng.permutation(len(tokens))
        return tokens[shuffled], given[shuffled]

    def make_size(self, n_rows, n, k, rng, wanted, n_variants=1):
        """(n, N) tokens of n houses and k attributes; of n_variants of each puzzle, attributes and values change names."""
        base = np.arange(-(-n_rows // n_variants)).repeat(n_variants)                         # (rows,) of which puzzle
        house = np.concatenate([np.broadcast_to(np.arange(n), (base[-1] + 1, 1, n)), rng.random((base[-1] + 1, k, n)).argsort(2)], 1)
        attribute = np.pad(rng.random((len(base), k)).argsort(1) + 1, ((0, 0), (1, 0)))       # 0, the houses, stays
        value = rng.random((len(base), k + 1, n)).argsort(2)
        value[:, 0] = np.arange(n)
        name = (self.most * attribute[:, :, None] + value).reshape(len(base), -1)             # (rows, (k + 1) n) of every item
        tokens = np.zeros((len(base), self.n_clues + self.most * (self.most + 1)), int)
        np.put_along_axis(tokens, self.n_clues + name, house[base].reshape(name.shape) + 1, 1)
        tokens = np.delete(tokens, np.arange(self.n_clues, self.n_clues + self.most), 1)      # houses are where they are
        keep = wanted(tokens)
        needed = np.unique(base[keep])
        good, clues = self.dig(self.clues(house[needed].reshape(len(needed), -1), n, k, 3 * n * k, rng), n, k)
        number = np.full(base[-1] + 1, -1)
        number[needed[good]] = np.arange(good.sum())
        keep &= number[base] >= 0
        tokens, name, clues = tokens[keep], name[keep], clues[number[base[keep]]]
        operands = np.take_along_axis(name, clues[:, :, 1:].reshape(len(name), -1), 1).reshape(len(name), -1, 2)
        tokens[:, :self.n_clues] = self.clue[clues[:, :, 0], operands[:, :, 0], operands[:, :, 1]]
        return tokens

    def key(self, tokens):
        """What two splits may not share: the houses of all items."""
        return tokens[:, self.n_clues:]

    judge = staticmethod(blanks_right)


# ---------------------------------------------------------------------------------------------------------------------
# latents and observations

class NaeSat:
    """n_latents bits, uniform, then n_observations: whether the three latents of a fixed random triple are Not All Equal. Nothing is given;
    an observation is easy after its latents and hard before them (Kim et al. 2025, sec. 3)."""

    def __init__(self, n_latents, n_observations, seed):
        if n_latents < 3 or not 1 <= n_observations <= n_latents * (n_latents - 1) * (n_latents - 2) // 6:
            raise ValueError(f'nae_sat wants 3 latents or more and as many observations as there are triples at most, got {n_latents} and '
                             f'{n_observations}')
        self.n_latents, rng, triples = n_latents, np.random.default_rng(seed), {}
        self.columns, self.groups = 25, {'latents': (0, n_latents), 'observations': (n_latents, n_latents + n_observations)}
        while len(triples) < n_observations:
            triples[tuple(sorted(rng.choice(n_latents, 3, replace=False).tolist()))] = True
        self.triples = np.array(list(triples))                                              # (P, 3)

    def observations(self, latents):
        bits = latents[:, self.triples]                                                     # (B, P, 3)
        return (bits.min(2) != bits.max(2)).astype(latents.dtype)

    def make(self, n_rows, rng, wanted, n_variants=1):
        """(tokens, given), each (n, n_latents + n_observations): of n_rows those that `wanted` lets pass; there are no variants."""
        latents = rng.integers(0, 2, (n_rows, self.n_latents))
        tokens = np.concatenate([latents, self.observations(latents)], 1)
        tokens = tokens[wanted(tokens)]
        return tokens, np.zeros(tokens.shape, bool)

    def key(self, tokens):
        return tokens[:, :self.n_latents]

    def judge(self, tokens, given, answer):
        """(which tokens of `answer` count, which are right), all (B, N): observations, which must agree with the answer's own latents."""
        agree = answer[:, self.n_latents:] == self.observations(answer[:, :self.n_latents])
        counts = np.arange(answer.shape[1]) >= self.n_latents
        return np.broadcast_to(counts, answer.shape), np.pad(agree, ((0, 0), (self.n_latents, 0)))


# ---------------------------------------------------------------------------------------------------------------------
# all of them

TASKS = {'sudoku4': 'quick, 4 x 4', 'sudoku': '9 x 9', 'zebra4': '3 or 4 houses and attributes', 'zebra': '3 to 6 houses and attributes',
         'nae_sat': 'latents and observations'}


SIZES = {'sudoku4': 4, 'sudoku': 9, 'zebra4': 4, 'zebra': 6}   # digits; houses and attributes


def make_task(puzzle):
    """The task that these options of meta.json describe: rules, generator and solver."""
    task = puzzle['task']
    if task == 'nae_sat':
        return NaeSat(puzzle['n_latents'], puzzle['n_observations'], puzzle['seed'])
    if 'zebra' in task:
        return Zebra(SIZES[task], puzzle.get('largest'))
    return Sudoku(SIZES[task])


def row_length(puzzle):
    """The tokens of a puzzle with these options of meta.json, None if they are not the options of any task."""
    if not isinstance(puzzle, dict):
        return None
    options = dict(puzzle)
    task = options.pop('task', None)
    if any(type(n) is not int or n < 0 for n in options.values()):
        return None
    if task == 'nae_sat' and options.keys() == {'n_latents', 'n_observations', 'seed'}:
        return options['n_latents'] + options['n_observations']
    if not isinstance(task, str) or task not in SIZES or options:
        return None
    n = SIZES[task]
    return n * n if 'sudoku' in task else n * (n - 1) + n * n
