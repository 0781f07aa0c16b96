"""How is a set of puzzles prepared? Generated or read, checked, and written as token files."""

import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor

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


def prepare_puzzles(
    task, data_dir, name='', source='', split='', n_rows=(), force=False, **options
):
    """Write data_dir/name/<split>.bin and meta.json of a task's puzzles; return the Meta.

    source   path of a CSV of Sudokus; '' generates
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

    source = home(source)
    if source and not (split and hasattr(rules, 'read')):
        raise ValueError('--source is a CSV of Sudokus, and wants --split=train, val or test')
    origin = origin_of(source, task, seed, made)
    wanted = [split] if split else list(SHARES)
    counts = {} if source else {'train': kind.n_train} | N_ROWS | dict(n_rows)
    with folder_to_write(data_dir, name or task, split) as folder:
        same = is_made_so(folder, puzzle, wanted, counts)
        if folder.is_done(wanted, origin, same, force):
            return folder.meta
        kept = kept_beside(folder, wanted, puzzle)
        known = {}
        splits = {}
        for s in wanted:
            known[s], given = new_rows(rules, s, source, counts, seed)
            splits[s] = packed_rows(known[s], given)
        check_solutions(rules, known | kept)
        meta = Meta(
            folder.name,
            task,
            len(kind.symbols),
            None,
            folder.kept(wanted),
            given=True,
            row_length=known[wanted[0]].shape[1],
            shape=getattr(rules, 'shape', None),
            puzzle=puzzle,
            **about(puzzle | made),
        )
        return folder.write(meta, origin, splits)


def origin_of(source, task, seed, made):
    """Return what meta.json says of puzzles, read from `source` or made with the options `made`."""
    if source:
        return name_source(source)
    origin = f'{task}, seed {seed}'
    for option, value in made.items():
        origin += f', {task_of(task).made[option].format(value)}'
    return origin


def is_made_so(folder, puzzle, wanted, counts):
    """Return whether a Folder has these puzzles, in `wanted` splits as many as `counts` says."""
    meta = folder.meta
    if not meta or meta.puzzle != puzzle:
        return False
    whole = whole_splits(folder.path, meta)
    return all(whole[s].rows == counts.get(s, whole[s].rows) for s in wanted if s in whole)


def kept_beside(folder, wanted, puzzle):
    """Return {split: tokens} of the splits of a Folder that stay beside new ones."""
    known = {}
    for s in folder.kept(wanted):
        if folder.meta.puzzle != puzzle:
            raise ValueError(f'{folder.path} holds {s} of other puzzles: use another --name')
        part = read_split(folder.path, folder.meta, s)
        known[s], _ = part.unpack(part.packed.astype(int))
    return known


def new_rows(rules, split, source, counts, seed):
    """Return (tokens, given) of a split, read from `source` or made."""
    if source:
        return rules.read(source)
    return make_puzzles(rules, split, counts[split], seed)


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
