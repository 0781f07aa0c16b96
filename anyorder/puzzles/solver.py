"""How many solutions has a puzzle? An exact solver for many puzzles at once. The one rule that it knows is the unit:
variables that take every value once, as the cells of a row do, or the colours of the houses."""

import numpy as np

MOST_BRANCHES = 10**6  # of all puzzles that are solved together; then the rest is left undecided


def propagate(can, units, narrow=None, owner=None):
    """(what the variables can still be, which puzzles have no contradiction): naked and hidden singles until nothing
    changes.

    can      (B, variables, values) bool, what each variable of a puzzle can be
    units    (units, variables) float32, 1 where a variable belongs to a unit
    narrow   other rules: (can, owner) -> narrower can; row i descends from puzzle owner[i]"""
    can, active = can.copy(), np.arange(len(can))
    peers = ((units.T @ units > 0) & ~np.eye(units.shape[1], dtype=bool)).astype(
        np.float32
    )  # (variables, variables)
    while len(active):
        before = can[active]
        now = before if narrow is None else narrow(before, owner[active])
        single = (now & (now.sum(2, keepdims=True) == 1)).astype(np.float32)
        now = now & (np.matmul(peers, single) == 0)  # what a peer has is taken
        alone = np.matmul(units, now.astype(np.float32)) == 1
        only = now & (np.matmul(units.T, alone.astype(np.float32)) > 0)
        now = np.where(
            only.any(2, keepdims=True), only, now
        )  # the only variable of a unit for that value
        can[active] = now
        active = active[(now != before).any((1, 2)) & now.any(2).all(1)]
    has_place = (np.matmul(units, can.astype(np.float32)) > 0).all((1, 2))  # saves branches
    return can, can.any(2).all(1) & has_place


def count_solutions(can, units, narrow=None):
    """(number of solutions of each puzzle, one solution as the value of every variable). Arguments as in propagate.
    Solutions are counted up to 2; -1 is a puzzle that MOST_BRANCHES did not decide."""
    count, solution, n_branches = np.zeros(len(can), int), np.zeros(can.shape[:2], int), 0
    stack = [(np.arange(len(can)), can)]
    while stack and n_branches < MOST_BRANCHES:
        owner, can = stack.pop()
        n_branches += len(owner)
        still = count[owner] < 2
        owner = owner[still]
        can, sound = propagate(can[still], units, narrow, owner)
        owner, can = owner[sound], can[sound]
        left = can.sum(2)  # (B, variables)
        done = (left == 1).all(1)
        np.add.at(count, owner[done], 1)
        solution[owner[done]] = can[done].argmax(2)
        owner, can, left = owner[~done], can[~done], left[~done]
        if len(owner):  # branch where the fewest are left
            variable = np.where(left > 1, left, can.shape[2] + 1).argmin(1)
            which, value = can[np.arange(len(can)), variable].nonzero()
            branch = can[which]
            branch[np.arange(len(which)), variable[which]] = np.eye(can.shape[2], dtype=bool)[value]
            # one branch of each puzzle goes down to its end before the others: two solutions are soon found
            first = np.diff(which, prepend=-1) > 0
            stack += [(owner[which[part]], branch[part]) for part in (~first, first)]
    count = count.clip(max=2)
    for owner, _ in stack:
        count[owner[count[owner] < 2]] = -1
    return count, solution


def blanks_right(tokens, given, answer):
    """(which tokens of `answer` count, which are right), all (B, N): every blank, for a puzzle has one solution."""
    return ~given, answer == tokens
