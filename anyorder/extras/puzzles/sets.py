"""How is a set of puzzles prepared? Generated, checked, and written as token files."""

import contextlib
import functools
import hashlib
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from anyorder.extras.puzzles.rules import task_of
from anyorder.machine.terminal import progress
from anyorder.tokens.folder import folder_to_write, place_of
from anyorder.tokens.meta import Meta

MADE_BY = 'python -m anyorder.extras.puzzles make'
# shares of all solutions, by a hash
SHARES = {'test': (0, 1 / 6), 'val': (1 / 6, 1 / 3), 'train': (1 / 3, 1)}
N_ROWS = {'val': 1000, 'test': 1000}
PART = 1024  # puzzles that are made together
MANY = 20000  # rows; more are worth the start of other processes


def prepare_puzzles(task, data_dir, name='', split='', n_rows=(), force=False, seed=0, **options):
    """Write data_dir/name/<split>.bin and meta.json of a task's puzzles; return the Meta.

    split    '' is all of them
    n_rows   {split: number of puzzles} to generate, if not the default
    force    replace what is there
    options  of puzzles make that the Puzzle of the task names"""
    options['seed'] = seed
    kind = task_of(task)
    own = {name: options[name] for name in kind.options if options.get(name, '') != ''}
    made = {option: options[option] for option in kind.made if options.get(option)}
    puzzle = {'task': task} | own
    rules = task_of(**puzzle, **made)
    words = [f'--{option}={value}' for option, value in (own | made).items()]
    about_made = [kind.made[option].format(value) for option, value in made.items()]
    origin = ', '.join([task, f'seed {seed}', *about_made])

    wanted = [split] if split else list(SHARES)
    counts = {'train': kind.n_train, **N_ROWS, **dict(n_rows)}
    path = place_of(data_dir, name or task, split)
    with folder_to_write(path, wanted, origin, force) as folder:
        differs = ['puzzle'] if folder.meta and folder.meta.puzzle != puzzle else []
        same_rows = all(said['rows'] == counts[s] for s, said in folder.there.items())
        if folder.is_done(differs, same_rows):
            return folder.meta
        made_of = {s: make_puzzles(rules, s, counts[s], seed) for s in wanted}
        tokens, _ = made_of[wanted[0]]
        meta = Meta(
            '',
            task,
            len(rules.symbols),
            given=True,
            row_length=tokens.shape[1],
            shape=rules.shape,
            puzzle=puzzle,
            vocabulary=list(rules.symbols),
            made_by=' '.join([MADE_BY, task, *words]),
        )
        pieces = []
        for s, rows in made_of.items():
            packed = meta.pack(*rows)
            pieces.append((s, packed, packed.size, len(packed)))
        return folder.write(meta, pieces)


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
            if not n:
                raise ValueError(f'none of {PART:,} puzzles belongs to {split}: choose larger ones')
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

    def wanted(keys):
        u = fractions(keys)
        return (u >= low) & (u < high)

    rng = np.random.default_rng([seed, list(SHARES).index(split), part])
    n_variants = 10 if split == 'train' else 1
    tokens, given = task.make(PART, rng, wanted, n_variants)
    keep = wanted(task.key(tokens))
    return tokens[keep], given[keep]


def fractions(keys):
    """Return a number from 0 to 1 for each of keys (B, ...): a hash, the same in every process."""
    hashes = [hashlib.blake2b(key.tobytes(), digest_size=8).digest() for key in keys.astype('<i8')]
    return np.frombuffer(b''.join(hashes), '<u8') / 2**64
