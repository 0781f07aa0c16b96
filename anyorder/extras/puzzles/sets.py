"""How is a set of puzzles prepared? Generated or read, checked, and written as token files."""

import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from anyorder.extras.puzzles.rules import SHARES, make_task, task_of
from anyorder.machine.terminal import progress
from anyorder.tokens.folder import folder_to_write
from anyorder.tokens.meta import Meta
from anyorder.tokens.sets import GIVEN, read_split, whole_splits
from anyorder.tokens.sources import name_source
from configurator import home

N_ROWS = {'val': 1000, 'test': 1000}
PART = 1024  # puzzles that are made together
MANY = 20000  # rows; more are worth the start of other processes


def about(puzzle):
    """Return what a set says of itself in meta.json: its vocabulary, and made_by, its command.

    puzzle  {'task': name} and the options that say which puzzles there are"""
    task = puzzle['task']
    made_by = f'python -m anyorder.extras.puzzles make {task}'
    for option, value in puzzle.items():
        if option != 'task':
            made_by += f' --{option}={value}'
    return {'vocabulary': list(task_of(task).symbols), 'made_by': made_by}


def is_quick(name):
    """Return whether a set that is missing is made when it is asked for."""
    return task_of(name).quick


def prepare_puzzles(
    task, data_dir, name='', source='', split='', n_rows=None, force=False, **options
):
    """Write data_dir/name/<split>.bin and meta.json of a task's puzzles; return the Meta.

    source   path of a CSV of Sudokus; '' generates
    split    '' is all of them
    n_rows   {split: number of puzzles} to generate, if not the default
    force    replace what is there
    options  those of puzzles make; the Task says which it has, and needs. seed is 0 by default
    """
    recipe = recipe_of(task, {'seed': 0} | options)
    source = home(source)
    if source and not (split and hasattr(recipe.rules, 'read')):
        raise ValueError('--source is a CSV of Sudokus, and wants --split=train, val or test')
    n_rows = {'train': recipe.task.n_train} | N_ROWS | (n_rows or {})
    with folder_to_write(data_dir, name or task, split) as folder:
        return prepare_into(folder, recipe, source, split, n_rows, force)


@dataclass(frozen=True)
class Recipe:
    """Which puzzles are made.

    name    of the Task
    puzzle  {'task': name} and the options that say which puzzles there are, as meta.json keeps them
    made    {option: value} of those that only say which of the puzzles are made
    seed    draws them
    rules   generate, solve and read them"""

    name: str
    puzzle: dict
    made: dict
    seed: int
    rules: object

    @property
    def task(self):
        return task_of(self.name)

    def origin(self, source):
        """Return what meta.json says of puzzles, read from `source` or, if it is '', generated."""
        origin = name_source(source) if source else f'{self.name}, seed {self.seed}'
        for option, words in self.task.made:
            if option in self.made:
                origin += f', {words.format(self.made[option])}'
        return origin


def recipe_of(name, options):
    """Return the Recipe of a task with these options, of which it takes what it has."""
    task = task_of(name)
    puzzle = {'task': name} | {option: options[option] for option in task.options}
    made = {option: options[option] for option, _ in task.made if options.get(option)}
    rules = make_task(puzzle | made)  # with the symbols of all puzzles that could be made
    return Recipe(name, puzzle, made, options['seed'], rules)


def prepare_into(folder, recipe, source, split, n_rows, force):
    """Prepare the puzzles of a Recipe in a Folder; return the Meta. See prepare_puzzles."""
    rules = recipe.rules
    wanted = [split] if split else list(SHARES)

    # Compare with what is there
    origin = recipe.origin(source)
    same = are_made_so(folder, recipe, wanted, None if source else n_rows)
    if folder.is_done(wanted, origin, same, force):
        return folder.meta
    kept = folder.kept(wanted)
    if kept and folder.meta.puzzle != recipe.puzzle:
        raise ValueError(
            f'{folder.path} holds {", ".join(kept)} of other puzzles: use another --name'
        )

    # Read or generate
    rows = {}
    for s in wanted:
        rows[s] = rules.read(source) if source else make_puzzles(rules, s, n_rows[s], recipe.seed)
    known = {s: tokens for s, (tokens, _) in rows.items()}
    for s in kept:
        part = read_split(folder.path, folder.meta, s)
        known[s], _ = part.unpack(part.packed.astype(int))
    check_solutions(rules, known)

    # Write
    meta = Meta(
        folder.name,
        recipe.name,
        len(recipe.task.symbols),
        None,
        kept,
        given=True,
        row_length=known[wanted[0]].shape[1],
        shape=getattr(rules, 'shape', None),
        puzzle=recipe.puzzle,
        **about(recipe.puzzle),
    )
    splits = {s: packed_rows(tokens, given) for s, (tokens, given) in rows.items()}
    return folder.write(meta, origin, splits)


def are_made_so(folder, recipe, wanted, n_rows):
    """Return whether the puzzles in a Folder are of this Recipe, and the `wanted` splits have so
    many rows; n_rows None takes any number."""
    meta = folder.meta
    if not meta or meta.puzzle != recipe.puzzle or meta.n_tokens != len(recipe.task.symbols):
        return False
    if n_rows is None:
        return True
    whole = whole_splits(folder.path, meta)
    return all(whole[s].rows == n_rows[s] for s in wanted if s in whole)


def check_solutions(rules, known):
    """Raise ValueError if two splits of {split: tokens} share a solution."""
    keys = {}
    for s, tokens in known.items():
        keys[s] = {key.tobytes() for key in rules.key(tokens)}
    for s, other in itertools.combinations(keys, 2):
        n_shared = len(keys[s] & keys[other])
        if n_shared:
            raise ValueError(
                f'{n_shared} solutions of {s} are in {other}, no two splits may share one: '
                'use another --name'
            )


def packed_rows(tokens, given):
    """Return (number of rows, rows) for Folder.write, of tokens and given (n, N)."""
    packed = (tokens | GIVEN * given).astype('<u2')
    return len(packed), ((row, len(row)) for row in packed)


def make_puzzles(task, split, n_rows, seed):
    """Make n_rows (tokens, given) of a split; a function of (seed, split).

    For many rows each core has a process."""
    make = functools.partial(make_part, task, split, seed)
    pool = processes() if n_rows > MANY else None
    run = pool.map if pool else map
    parts = []
    n = 0
    n_parts = 1  # to be made next
    bar = progress(total=n_rows, desc=split, unit='row')
    with bar, pool or contextlib.nullcontext():
        while n < n_rows:
            for part in run(make, range(len(parts), len(parts) + n_parts)):
                parts.append(part)
                n_new = len(part[0])
                bar.update(min(n_rows, n + n_new) - min(n_rows, n))
                n += n_new
            missing = n_rows - n
            n_parts = -(-missing * len(parts) // n)  # at the rate so far
    return [np.concatenate(column)[:n_rows] for column in zip(*parts)]


def processes():
    """Return a pool of processes, one for each core. Ctrl-C is for the first process alone."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else None
    context = multiprocessing.get_context('spawn')
    return ProcessPoolExecutor(cores, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))


def make_part(task, split, seed, part):
    """Make about PART (tokens, given) whose solutions belong to the split; a function of (seed,
    split, part)."""
    low, high = SHARES[split]

    def wanted(tokens):
        u = fractions(task.key(tokens))
        return (u >= low) & (u < high)

    rng = np.random.default_rng([seed, list(SHARES).index(split), part])
    n_variants = 10 if split == 'train' else 1
    return task.make(PART, rng, wanted, n_variants)


def fractions(keys):
    """Return a number from 0 to 1 for each of keys (B, ...): a hash, the same in every process."""
    hashes = [hashlib.blake2b(key.tobytes(), digest_size=8).digest() for key in keys.astype('<i8')]
    numbers = [int.from_bytes(digest, 'little') for digest in hashes]
    return np.array(numbers, dtype=float) / 2**64
