"""
Puzzles to token files, generated from a seed or read from a file, every one checked by an exact solver.

    python data/puzzles.py sudoku4                                                   # 4 x 4
    python data/puzzles.py sudoku --n_train=200000                                   # 9 x 9
    python data/puzzles.py sudoku --source=puzzles.csv.xz --split=test --name=hard   # a `puzzle,solution` CSV
    python data/puzzles.py zebra4                                                    # 3 or 4 houses; zebra: 3 to 6
    python data/puzzles.py nae_sat --n_latents=25 --n_observations=275

A row is a puzzle with its solution: row_length tokens, little-endian uint16, of which bit 15 says that it is given. No two splits of a
folder share a solution, of Sudoku none up to relabelling the digits. Of a Sudoku or Zebra puzzle that is generated to train on there are
up to 10 variants, with other names, turned and mirrored; to validate and test there is one. A second run does nothing unless --force.
"""
import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
from anyorder.files import Parser, check_folder, check_names, progress
from data.prepare import run
from data.rules import TASKS, make_task
from data.sets import print_meta, read_meta, splits_there, write_splits
from data.sources import name_source
from data.tokenizers import get_tokenizer

GIVEN = 1 << 15   # in a token of a row
N_ROWS = {'train': 100000, 'val': 1000, 'test': 1000}   # of sudoku4 a fifth to train on
MANY = 20000   # rows; more are worth the start of other processes
SHARES = {'test': (0, 1 / 6), 'val': (1 / 6, 1 / 3), 'train': (1 / 3, 1)}   # of all solutions, by a hash of them


def fractions(keys):
    """A number from 0 to 1 for each of keys (B, ...): a hash, the same in every process."""
    hashes = [int.from_bytes(hashlib.blake2b(key.tobytes(), digest_size=8).digest(), 'little') for key in keys.astype('<i8')]
    return np.array(hashes, dtype=float) / 2 ** 64


def make_part(task, split, seed, part):
    """About 1024 (tokens, given) less those of other splits; a function of (seed, split, part)."""
    low, high = SHARES[split]

    def wanted(tokens):
        u = fractions(task.key(tokens))
        return (u >= low) & (u < high)
    return task.make(1024, np.random.default_rng([seed, list(SHARES).index(split), part]), wanted, 10 if split == 'train' else 1)


def generate(task, split, n_rows, seed):
    """n_rows (tokens, given) of a split; a function of (seed, split). Many are made by one process a core."""
    parts, n, n_parts, make = [], 0, 1, functools.partial(make_part, task, split, seed)
    with contextlib.ExitStack() as stack:
        bar, in_turn = stack.enter_context(progress(total=n_rows, desc=split, unit='row')), map
        if n_rows > MANY:   # Ctrl-C is for the first process alone
            cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else None
            in_turn = stack.enter_context(ProcessPoolExecutor(cores, multiprocessing.get_context('spawn'), signal.signal,
                                                              (signal.SIGINT, signal.SIG_IGN))).map
        while n < n_rows:
            for part in in_turn(make, range(len(parts), len(parts) + n_parts)):
                parts.append(part)
                bar.update(min(n_rows, n + len(part[0])) - min(n_rows, n))
                n += len(part[0])
            n_parts = -(-(n_rows - n) * len(parts) // n)                                       # what is missing, at the rate so far
    return [np.concatenate(column)[:n_rows] for column in zip(*parts)]


def unpack(rows):
    """(tokens, given) of rows of puzzles, (B, N) ints and bool."""
    return rows & (GIVEN - 1), rows >= GIVEN


def write_rows(tokens, given, path):
    """Write rows of puzzles to `path`; returns what meta.json says of them."""
    packed = (tokens | GIVEN * given).astype('<u2').tobytes()
    with open(path, 'wb') as f:
        f.write(packed)
    return {'rows': len(tokens), 'tokens': tokens.size, 'text_bytes': tokens.size, 'sha256': hashlib.sha256(packed).hexdigest()}


def prepare_puzzles(task, out, name=None, source=None, split=None, n_rows=None, force=False, seed=0, n_latents=25, n_observations=275,
                    largest=None):
    """Write out/name/<split>.bin and meta.json; returns the meta. Without a source train, val and test are generated."""
    if task not in TASKS:
        raise ValueError(f'a puzzle is one of {", ".join(TASKS)}, got {task!r}')
    if source and (split is None or 'sudoku' not in task):
        raise ValueError('--source is a CSV of Sudokus, and wants --split=train, val or test')
    options = {'task': task} | ({'seed': seed, 'n_latents': n_latents, 'n_observations': n_observations} if task == 'nae_sat' else {})
    check_names(name=name)
    directory, origin = os.path.join(out, name or task), name_source(source) if source else f'{task}, seed {seed}'
    origin += f', up to {largest} houses' * (largest is not None)
    check_folder('--out', directory)
    n_rows = N_ROWS | ({'train': N_ROWS['train'] // 5} if task == 'sudoku4' else {}) | (n_rows or {})
    meta, wanted = read_meta(directory), [split] if split else list(SHARES)
    have = splits_there(directory, meta)
    there, others = [s for s in wanted if s in have], {s: info for s, info in have.items() if s not in wanted}
    if there and not force:
        same = all(have[s]['source'] == origin and (source or have[s]['rows'] == n_rows[s]) for s in there)
        if same and there == wanted and meta.get('puzzle') == options and meta.get('n_tokens') == get_tokenizer(task).n_tokens:
            return meta
        raise ValueError(f'{directory} holds {", ".join(there)} already: --force replaces it, --name=OTHER writes elsewhere, '
                         '--split=NAME adds a split')
    if others and meta.get('puzzle') != options:
        raise ValueError(f'{directory} holds {", ".join(others)} of other puzzles: use another --name')
    rules, tokenizer = make_task(options | {'largest': largest}), get_tokenizer(task)   # the symbols are those of all sizes
    rows = {s: rules.read(source) if source else generate(rules, s, n_rows[s], seed) for s in wanted}
    known = {s: tokens for s, (tokens, _) in rows.items()}
    known |= {s: unpack(np.fromfile(os.path.join(directory, f'{s}.bin'), '<u2').astype(int).reshape(-1, meta['row_length']))[0]
              for s in others}
    keys = {s: {key.tobytes() for key in rules.key(tokens)} for s, tokens in known.items()}
    for s, t in itertools.combinations(keys, 2):
        if keys[s] & keys[t]:
            raise ValueError(f'{len(keys[s] & keys[t])} solutions of {s} are in {t}: no two splits of a folder may share one, so write to '
                             'another with --name=OTHER')
    meta = {'name': name or task, 'tokenizer': tokenizer.name, 'n_tokens': tokenizer.n_tokens, 'eos': None,
            'row_length': rows[wanted[0]][0].shape[1], 'puzzle': options}
    return write_splits(directory, meta, others, origin, {s: functools.partial(write_rows, *row) for s, row in rows.items()})


def main():
    tasks = '\n'.join(f'  {name:<12} {about}' for name, about in TASKS.items())
    parser = Parser(description=__doc__, epilog=f'puzzles:\n{tasks}')
    parser.add_argument('task', metavar='NAME', help='a puzzle of the table below')
    for split, n in N_ROWS.items():
        fifth = ', of sudoku4 a fifth' if split == 'train' else ''
        parser.add_argument(f'--n_{split}', type=int, help=f'rows to generate (default {n}{fifth})')
    parser.add_argument('--seed', type=int, help='of what is generated, and of the triples of nae_sat (default 0)')
    parser.add_argument('--n_latents', type=int, help='of nae_sat (default 25)')
    parser.add_argument('--n_observations', type=int, help='of nae_sat (default 275)')
    parser.add_argument('--largest', type=int, help='of zebra: houses and attributes at most, in the tokens of all; to begin with')
    parser.add_argument('--source', help='CSV of Sudokus with the columns puzzle and solution, also .gz and .xz')
    parser.add_argument('--split', choices=SHARES, help='make only this one')
    parser.add_argument('--name', help='folder to write under --out; default: NAME')
    parser.add_argument('--out', default=os.path.dirname(os.path.abspath(__file__)), help='default: the folder of this script')
    parser.add_argument('--force', action='store_true', help='replace what is there')
    args = parser.parse_args()
    n_rows = {s: n for s in SHARES if (n := getattr(args, f'n_{s}')) is not None}
    options = {name: n for name in ('seed', 'n_latents', 'n_observations', 'largest') if (n := getattr(args, name)) is not None}
    if min(n_rows.values(), default=1) < 1 or options.get('seed', 0) < 0:
        raise ValueError(f'n_train, n_val and n_test must be at least 1 and seed at least 0, got {n_rows} and {options.get("seed", 0)}')
    of = {'n_latents': 'nae_sat', 'n_observations': 'nae_sat', 'largest': 'zebra'}
    idle = [f'n_{s}' for s in n_rows if args.source or args.split not in (None, s)] + [
        name for name in options if args.source or of.get(name, '') not in args.task]
    if idle:
        raise ValueError(f'{", ".join(idle)} would change nothing here: leave it out')
    before = read_meta(os.path.join(args.out, args.name or args.task))
    meta = prepare_puzzles(args.task, args.out, args.name, args.source, args.split, n_rows, args.force, **options)
    print_meta(args.out, meta, before, args.force)


if __name__ == '__main__':
    run(main)
