"""How many solutions has a puzzle? An exact solver for many puzzles at once, which knows no rules."""
import numpy as np

MOST_BRANCHES = 10 ** 6   # of all puzzles that are solved together; then the rest is left undecided


def count_solutions(can, propagate):
    """(number of solutions of each puzzle, one solution as the value of every variable).

    can        (B, variables, values) bool, what each variable of a puzzle can be
    propagate  (can, owner) -> (narrower can, which rows have no contradiction); row i descends from puzzle owner[i]

    Solutions are counted up to 2; -1 is a puzzle that MOST_BRANCHES did not decide."""
    count, solution, n_branches = np.zeros(len(can), int), np.zeros(can.shape[:2], int), 0
    stack = [(np.arange(len(can)), can)]
    while stack and n_branches < MOST_BRANCHES:
        owner, can = stack.pop()
        n_branches += len(owner)
        still = count[owner] < 2
        owner = owner[still]
        can, sound = propagate(can[still], owner)
        owner, can = owner[sound], can[sound]
        left = can.sum(2)                                     # (B, variables)
        done = (left == 1).all(1)
        np.add.at(count, owner[done], 1)
        solution[owner[done]] = can[done].argmax(2)
        owner, can, left = owner[~done], can[~done], left[~done]
        if len(owner):                                        # branch where the fewest are left
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
