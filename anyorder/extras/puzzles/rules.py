"""Which puzzles are there, and what does a task offer?

A task has a generator, a solver, and what counts as right:

    make(n_rows, rng, wanted, n_variants) -> (tokens, given), both (n, N)
    key(tokens)                           -> what two splits may not share
    check_answer(tokens, given, answer)   -> (which tokens count, which are right), both (n, N)

Sudoku also has the shape [H, W] of its grid."""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from anyorder.extras.puzzles.countdown import Countdown, countdown_texts
from anyorder.extras.puzzles.solver import blanks_right
from anyorder.extras.puzzles.sudoku import Sudoku
from anyorder.extras.puzzles.zebra import Zebra, zebra_texts


class NaeSat:
    """n_latents uniform bits, then n_observations of them.

    An observation is whether the latents of a fixed random triple are not all equal. Nothing is
    given; an observation is easy after its latents and hard before them. Source: Kim et al. 2025,
    sec. 3."""

    def __init__(self, n_latents, n_observations, seed):
        n_triples = n_latents * (n_latents - 1) * (n_latents - 2) // 6
        if n_latents < 3 or not 1 <= n_observations <= n_triples:
            raise ValueError(
                'nae_sat wants 3 latents or more and as many observations as there are triples at '
                f'most, got {n_latents} and {n_observations}'
            )
        self.n_latents = n_latents
        rng = np.random.default_rng(seed)
        triples = {}  # in the order in which they were drawn
        while len(triples) < n_observations:
            triple = rng.choice(n_latents, 3, replace=False)
            triples[tuple(sorted(triple.tolist()))] = True
        self.triples = np.array(list(triples))  # (P, 3)

    def observations(self, latents):
        """Return the observations (B, P) of latents (B, n_latents)."""
        bits = latents[:, self.triples]  # (B, P, 3)
        return (bits.min(2) != bits.max(2)).astype(latents.dtype)

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, N): the rows among n_rows that `wanted` lets pass."""
        latents = rng.integers(0, 2, (n_rows, self.n_latents))
        tokens = np.concatenate([latents, self.observations(latents)], 1)
        tokens = tokens[wanted(tokens)]
        return tokens, np.zeros(tokens.shape, bool)

    def key(self, tokens):
        """Return what two splits may not share: the latents."""
        return tokens[:, : self.n_latents]

    def check_answer(self, tokens, given, answer):
        """Return (which tokens of `answer` count, which are right), all (B, N).

        Observations count, which must agree with the latents of the answer itself. A token below 0
        is no bit, and agrees with nothing."""
        latents = answer[:, : self.n_latents]
        are_bits = (latents[:, self.triples] >= 0).all(2)
        agree = answer[:, self.n_latents :] == self.observations(latents)
        right = np.pad(agree & are_bits, ((0, 0), (self.n_latents, 0)))
        is_observation = np.arange(answer.shape[1]) >= self.n_latents
        return is_observation & ~given, right


class Task(NamedTuple):
    """A kind of puzzles."""

    about: str  # what it is, for --help
    rules: Callable  # its class, called with the options
    symbols: Sequence  # the texts of its tokens
    options: tuple = ()  # of puzzles make, say which puzzles these are; meta.json keeps them
    made: dict = {}  # {option: in words}: options that only say which of the puzzles are made
    n_train: int = 100000  # puzzles to train on
    quick: bool = False  # whether a set that is missing is made when it is asked for


def countdown(n):
    """Return the Task to make a target of n numbers."""
    return Task(
        f'{n} numbers and a target',
        partial(Countdown, n),
        countdown_texts(),
        made=NUMBERS,
        n_train=500000,
    )


# shares of all solutions, by a hash
SHARES = {'test': (0, 1 / 6), 'val': (1 / 6, 1 / 3), 'train': (1 / 3, 1)}
UP_TO = {'largest': 'up to {} houses'}
NUMBERS = {'largest': 'numbers up to {}'}
TASKS = {
    'sudoku4': Task('quick, 4 x 4', partial(Sudoku, 4), '1234', n_train=20000, quick=True),
    'sudoku': Task('9 x 9', partial(Sudoku, 9), '123456789'),
    'zebra4': Task('3 or 4 houses and attributes', partial(Zebra, 4), zebra_texts(4), made=UP_TO),
    'zebra': Task('3 to 6 houses and attributes', partial(Zebra, 6), zebra_texts(6), made=UP_TO),
    'countdown3': countdown(3),
    'countdown4': countdown(4),
    'nae_sat': Task(
        'latents and observations', NaeSat, '01', ('seed', 'n_latents', 'n_observations')
    ),
}


def task_of(name):
    if name not in TASKS:
        raise ValueError(f'a puzzle is one of {", ".join(TASKS)}, got {name!r}')
    return TASKS[name]


def judge_of(meta):
    """Return the task of a set, by its Meta.

    Without a task a blank is right if it is what the set says."""
    if meta.puzzle:
        return make_task(meta.puzzle)
    return SimpleNamespace(check_answer=blanks_right)


def make_task(puzzle):
    """Return the task of {'task': its name} and its options, as meta.json has them."""
    task = task_of(puzzle['task'])
    options = {name: value for name, value in puzzle.items() if name != 'task'}
    missing = {*task.options} - options.keys()
    if missing:
        raise ValueError(f'the puzzles of {puzzle["task"]} have no {min(missing)}: make them again')
    return task.rules(**options)
