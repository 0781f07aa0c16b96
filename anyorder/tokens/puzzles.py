"""How is a set of puzzles prepared? Generated or read, checked, and written as token files, see sets.py."""

import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from anyorder.machine.terminal import progress
from anyorder.puzzles.rules import SHARES, make_task, task_of
from anyorder.tokens.meta import Meta
from anyorder.tokens.sets import (
    GIVEN,
    is_there,
    read_split,
    set_to_write,
    whole_splits,
    write_splits,
)
from anyorder.tokens.sources import name_source
from configurator import home

N_ROWS = {'val': 1000, 'test': 1000}
PART = 1024  # puzzles that are made together
MANY = 20000  # rows; more are worth the start of other processes


def fractions(keys):
    """A number from 0 to 1 for each of keys (B, ...): a hash, the same in every process."""
    hashes = [hashlib.blake2b(key.tobytes(), digest_size=8).digest() for key in keys.astype('<i8')]
    return np.array([int.from_bytes(digest, 'little') for digest in hashes], dtype=float) / 2**64


def make_part(task, split, seed, part):
    """About PART (tokens, given) whose solutions belong to the split; a function of (seed, split, part)."""
    low, high = SHARES[split]

    def wanted(tokens):
        u = fractions(task.key(tokens))
        return (u >= low) & (u < high)

    rng = np.random.default_rng([seed, list(SHARES).index(split), part])
    return task.make(PART, rng, wanted, 10 if split == 'train' else 1)


def make_puzzles(task, split, n_rows, seed):
    """n_rows (tokens, given) of a split; a function of (seed, split). For many rows each core has a process."""
    parts, n, n_parts, make = [], 0, 1, functools.partial(make_part, task, split, seed)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else None
    pool = n_rows > MANY and ProcessPoolExecutor(
        cores, multiprocessing.get_context('spawn'), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )  # Ctrl-C is for the first alone
    with progress(total=n_rows, desc=split, unit='row') as bar, pool or contextlib.nullcontext():
        while n < n_rows:
            for part in (pool.map if pool else map)(make, range(len(parts), len(parts) + n_parts)):
                parts.append(part)
                bar.update(min(n_rows, n + len(part[0])) - min(n_rows, n))
                n += len(part[0])
            n_parts = -(-(n_rows - n) * len(parts) // n)  # what is missing, at the rate so far
    return [np.concatenate(column)[:n_rows] for column in zip(*parts)]


def prepare_puzzles(
    task, data_dir, name='', source='', split='', n_rows=None, force=False, seed=0, **options
):
    """Write data_dir/name/<split>.bin and meta.json; returns the meta. Without a source all splits are generated. The
    `options` are those of data/puzzles.py; a Task says which of them it has."""
    row, options, name = task_of(task), options | {'seed': seed}, name or task
    data_dir, source = home(data_dir), home(source)
    puzzle = {'task': task} | {option: options[option] for option in row.options}
    made = {option: options[option] for option, _ in row.made if options.get(option)}
    rules = make_task(puzzle | made)  # with the symbols of all puzzles that could be made
    if source and not (split and hasattr(rules, 'read')):
        raise ValueError('--source is a CSV of Sudokus, and wants --split=train, val or test')
    with set_to_write(data_dir, name, split) as (directory, meta):
        return prepare_into(
            directory, meta, task, rules, puzzle, made, name, source, split, n_rows, force, seed
        )


def prepare_into(
    directory, meta, task, rules, puzzle, made, name, source, split, n_rows, force, seed
):
    """As `prepare_puzzles`, by the `rules` of a task, into a folder that no other process writes meanwhile."""
    row = task_of(task)
    origin = name_source(source) if source else f'{task}, seed {seed}'
    origin += ''.join(
        f', {words.format(made[option])}' for option, words in row.made if option in made
    )
    n_rows = {'train': row.n_train} | N_ROWS | (n_rows or {})
    wanted, have, n_tokens = (
        [split] if split else list(SHARES),
        whole_splits(directory, meta),
        len(row.symbols),
    )
    same = (
        meta
        and meta.puzzle == puzzle
        and meta.n_tokens == n_tokens
        and all(source or have[s].rows == n_rows[s] for s in wanted if s in have)
    )
    if is_there(directory, meta, wanted, origin, same, force):
        return meta
    kept = {s: info for s, info in have.items() if s not in wanted}
    if kept and meta.puzzle != puzzle:
        raise ValueError(
            f'{directory} holds {", ".join(kept)} of other puzzles: use another --name'
        )
    rows = {
        s: rules.read(source) if source else make_puzzles(rules, s, n_rows[s], seed) for s in wanted
    }
    known = {s: tokens for s, (tokens, _) in rows.items()}
    before = {s: read_split(directory, meta, s) for s in kept}
    known |= {s: part.unpack(part.packed.astype(int))[0] for s, part in before.items()}
    keys = {s: {key.tobytes() for key in rules.key(tokens)} for s, tokens in known.items()}
    for s, t in itertools.combinations(keys, 2):
        if shared := len(keys[s] & keys[t]):
            raise ValueError(
                f'{shared} solutions of {s} are in {t}, no two splits may share one: use another --name'
            )
    meta = Meta(
        name,
        task,
        n_tokens,
        None,
        kept,
        given=True,
        row_length=known[wanted[0]].shape[1],
        shape=getattr(rules, 'shape', None),
        puzzle=puzzle,
    )
    splits = {
        s: (len(tokens), ((row, len(row)) for row in (tokens | GIVEN * given).astype('<u2')))
        for s, (tokens, given) in rows.items()
    }
    return write_splits(directory, meta, kept, origin, splits)
