"""How many solutions has a puzzle? An exact solver for many puzzles at once.

The one rule that it knows is the unit: variables that take every value once, as the cells of a row
do, or the colours of the houses."""

import numpy as np


def propagate(can, units, narrow=None, owner=None):
    """Return (what the variables can still be, which puzzles have no contradiction).

    Naked and hidden singles, until nothing changes.

    can      (B, variables, values) bool, what each variable of a puzzle can be
    units    (units, variables) float32, 1 where a variable belongs to a unit
    narrow   other rules: (can, owner) -> narrower can; row i descends from puzzle owner[i]"""
    can = can.copy()
    active = np.arange(len(can))
    while len(active):
        before = can[active]
        *_, now = stages(before, units, narrow, owner if narrow is None else owner[active])
        can[active] = now
        changed = (now != before).any((1, 2))
        possible = n_values(now).all(1)
        active = active[changed & possible]
    has_place = np.matmul(units, can.astype(np.float32)) > 0  # who draws grids turns back early
    return can, n_values(can).all(1) & has_place.all((1, 2))


def rounds(can, units, narrow=None):
    """Return in which round each variable is found (B, variables), of puzzles as in propagate.

    Rounds are numbered from 1 on; 0 is what is known before, -1 what takes a guess. Three take
    turns, see stages. Each looks at all variables at once, as the one before it left them."""
    found = np.where(n_values(can) == 1, 0, -1)
    last = 0
    before = None
    while not np.array_equal(can, before):
        before = can
        for can in stages(before, units, narrow):
            last += 1
            found[(n_values(can) == 1) & (found < 0)] = last
    return found


def stages(can, units, narrow, owner=slice(None)):
    """Yield what the variables can be once other rules have narrowed them, then without what a
    naked single of their units has, then as the hidden singles that they are."""
    if narrow is not None:
        can = narrow(can, owner)
    yield can
    single = can & (n_values(can)[:, :, None] == 1)
    n_single = np.matmul(units, single.astype(np.float32))  # (B, units, values)
    n_seen = np.matmul(units.T, n_single)  # a single sees itself once in each unit
    can = can & (n_seen == single * units.sum(0)[:, None])
    yield can
    n_places = np.matmul(units, can.astype(np.float32))
    is_only_place = (n_places == 1).astype(np.float32)
    only = can & (np.matmul(units.T, is_only_place) > 0)
    yield np.where(n_values(only)[:, :, None] > 0, only, can)


def n_values(can):
    """Return how many values each variable can have (B, variables), float32: can.sum(2), faster."""
    return can.astype(np.float32) @ np.ones(can.shape[2], np.float32)


def count_solutions(can, units, narrow=None):
    """Return the number of solutions of each puzzle (B,), counted up to 2.

    Arguments as in propagate."""
    count = np.zeros(len(can), int)
    stack = [(np.arange(len(can)), can)]  # (the puzzle of each branch, what its variables can be)
    while stack:
        owner, can = stack.pop()
        asked = count[owner] < 2
        owner = owner[asked]
        can, sound = propagate(can[asked], units, narrow, owner)
        owner = owner[sound]
        can = can[sound]
        done = (n_values(can) == 1).all(1)
        np.add.at(count, owner[done], 1)
        if not done.all():
            stack += branches(owner[~done], can[~done])
    return count.clip(max=2)


def branches(owner, can):
    """Return what to solve next: each puzzle with each value of the variable with the fewest left.

    The last of two parts is solved first. It holds one branch of each puzzle, which goes down to
    its end before the others: two solutions are soon found."""
    rows = np.arange(len(can))
    left = n_values(can)  # (B, variables)
    variable = np.where(left > 1, left, np.inf).argmin(1)
    which, value = can[rows, variable].nonzero()
    branch = can[which]
    branch[np.arange(len(which)), variable[which]] = np.eye(can.shape[2], dtype=bool)[value]
    is_first = np.diff(which, prepend=-1) > 0
    return [(owner[which[part]], branch[part]) for part in (~is_first, is_first)]


def dig(kept, order, is_enough, n_least=0):
    """Take away what a puzzle does not need, in place.

    kept       (B, M) bool, which parts of a puzzle are left; more than n_least, an int or (B,), are
               too many
    order      (B, M): which part may go first
    is_enough  (rows (m,), kept (m, M)) -> (m,) bool, whether these rows have one solution still"""
    every = np.arange(len(kept))
    for part in order.T:
        rows = np.flatnonzero(kept[every, part] & (kept.sum(1) > n_least))
        trial = kept[rows]
        trial[np.arange(len(rows)), part[rows]] = False
        fine = is_enough(rows, trial)
        kept[rows[fine]] = trial[fine]
