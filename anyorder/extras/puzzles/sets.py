"""How is a set of puzzles prepared? Generated, checked, and written as token files."""

import contextlib
import functools
import hashlib
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from anyorder.extras.puzzles.rules import SHARES, make_task, task_of
from anyorder.machine.terminal import progress
from anyorder.tokens.folder import folder_to_write
from anyorder.tokens.meta import Meta
from anyorder.tokens.sets import GIVEN, whole_splits

N_ROWS = {'val': 1000, 'test': 1000}
PART = 1024  # puzzles that are made together
MANY = 20000  # rows; more are worth the start of other processes


def about(puzzle):
    """Return what a set says of itself in meta.json: its vocabulary, and made_by, its command.

    puzzle  {'task': name} and the options that say which puzzles there are, or which of them"""
    task = puzzle['task']
    made_by = f'python -m anyorder.extras.puzzles make {task}'
    for option, value in puzzle.items():
        if option != 'task':
            made_by += f' --{option}={value}'
    return {'vocabulary': list(task_of(task).symbols), 'made_by': made_by}


def is_quick(name):
    """Return whether a set that is missing is made when it is asked for."""
    return task_of(name).quick


def prepare_puzzles(task, data_dir, name='', split='', n_rows=(), force=False, **options):
    """Write data_dir/name/<split>.bin and meta.json of a task's puzzles; return the Meta.

    split    '' is all of them
    n_rows   {split: number of puzzles} to generate, if not the default
    force    replace what is there
    options  those of puzzles make; the Task says which it has, and needs. seed is 0 by default
    """
    kind = task_of(task)
    seed = options.setdefault('seed', 0)
    puzzle = {'task': task} | {option: options[option] for option in kind.options}
    made = {option: options[option] for option in kind.made if options.get(option)}
    rules = make_task(puzzle | made)  # with the symbols of all puzzles that could be made

    origin = origin_of(task, seed, made)
    wanted = [split] if split else list(SHARES)
    counts = {'train': kind.n_train} | N_ROWS | dict(n_rows)
    with folder_to_write(data_dir, name or task, split) as folder:
        others = ['puzzle'] if folder.meta and folder.meta.puzzle != puzzle else []
        whole = whole_splits(folder.path, folder.meta)
        same = all(whole[s]['rows'] == counts[s] for s in wanted if s in whole)
        if folder.is_done(wanted, origin, others, force, same):
            return folder.meta
        splits = {}
        for s in wanted:
            tokens, given = make_puzzles(rules, s, counts[s], seed)
            splits[s] = packed_rows(tokens, given)
        meta = Meta(
            folder.name,
            task,
            len(kind.symbols),
            given=True,
            row_length=tokens.shape[1],
            shape=getattr(rules, 'shape', None),
            puzzle=puzzle,
            **about(puzzle | made),
        )
        return folder.write(meta, origin, splits)


def origin_of(task, seed, made):
    """Return what meta.json says of puzzles that were made with the options `made`."""
    origin = f'{task}, seed {seed}'
    for option, value in made.items():
        origin += f', {task_of(task).made[option].format(value)}'
    return origin


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
                n += len(part[0])
                bar.update(len(part[0]))
            missing = n_rows - n
            n_parts = -(-missing * len(parts) // n)  # at the rate so far
    return [np.concatenate(column)[:n_rows] for column in zip(*parts)]


def processes():
    """Return a pool of processes, one for each core. Ctrl-C is for the first process alone."""
    context = multiprocessing.get_context('spawn')
    return ProcessPoolExecutor(None, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))


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
