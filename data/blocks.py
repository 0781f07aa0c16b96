"""
Token files to batches: open a prepared split, draw random blocks, list the blocks of a whole set, count its tokens.

Tokens of text are (n,), and a block may start anywhere. Those of puzzles are (rows, row_length), see sets.unpack.
"""
import os
import shlex

import numpy as np
import torch

from anyorder.files import check_names
from data.prepare import DATA_SETS, prepare
from data.puzzles import prepare_puzzles
from data.rules import SHARES, TASKS
from data.sets import bin_path, read_meta, read_split


def open_split(data_dir, name, split):
    """(tokens: uint16 memory map, meta: dict of meta.json) of a prepared split. A set that needs no source and no time
    is made where it is missing.

    Raises ValueError with the command to run where another one is missing, or its file is not what meta.json says."""
    check_names(dataset=name)
    directory = os.path.join(data_dir, name)
    meta = read_meta(directory)
    if split not in meta.get('splits', {}) or not os.path.isfile(bin_path(directory, split)):
        meta = make_split(data_dir, name, split, meta)
    return read_split(directory, meta, split), meta


def make_split(data_dir, name, split, meta):
    """The meta of a set that is made now, if it is one of the two quick ones; else a ValueError with its command."""
    missing = f'no {bin_path(os.path.join(data_dir, name), split)}'
    if name == 'sudoku4' and split in SHARES and not meta:
        return prepare_puzzles(name, data_dir)
    if split in SHARES and (name in TASKS or 'puzzle' in meta):
        task = meta.get('puzzle', {}).get('task', name)
        command = f'data/puzzles.py {task} --name={name} --split={split}' if meta else f'data/puzzles.py {name}'
    else:
        row = DATA_SETS.get(name)
        if row is not None and row.offline:
            if split in ('train', 'val'):
                return prepare(name, data_dir)
            raise ValueError(f'{missing}: {name} has the splits train and val')
        command = f'data/prepare.py {words_for_text(name, row, split, meta)}'
    raise ValueError(f'{missing}; make it with: python {command} --data_dir={shlex.quote(str(data_dir))}')


def words_for_text(name, row, split, meta):
    """What follows data/prepare.py to make a split of the set `name`; `row` is its row of DATA_SETS or None."""
    there, words = meta.get('splits', {}), name if row else f'text --name={name}'
    if row is not None and row.splits:
        return f'{words} [--source=FILE] --split={split}'
    if split not in ('train', 'val'):
        return f'{words} --source=FILE --split={split}'
    if {'train', 'val'} <= there.keys() and there['train']['source'] == there['val']['source']:   # its file is lost
        return f"{words} --source=FILE --tokenizer={meta['tokenizer']} --force"
    if there:
        return f'{words} --source=FILE --split={split}'
    return f'{words} --source=FILE' if name == 'text' or row is None else words   # the others are downloaded


def check_length(tokens, block_size, name):
    if tokens.ndim == 2 and tokens.shape[1] != block_size:
        raise ValueError(f'the puzzles of {name} are {tokens.shape[1]} tokens: block_size must be {tokens.shape[1]}, '
                         f'got {block_size}')
    if tokens.ndim == 1 and len(tokens) < block_size:
        raise ValueError(f'block_size={block_size} is beyond the data: {name} has {len(tokens)} tokens')


def random_blocks(tokens, batch_size, block_size):
    """(B, N) int64 blocks at uniform offsets, or rows of puzzles, drawn from torch's default generator."""
    if tokens.ndim == 2:
        return torch.from_numpy(tokens[torch.randint(len(tokens), (batch_size,)).numpy()].astype(np.int64))
    starts = torch.randint(len(tokens) - block_size + 1, (batch_size, 1)).numpy()
    return torch.from_numpy(tokens[starts + np.arange(block_size)].astype(np.int64))


def all_blocks(tokens, block_size, n_blocks=0):
    """(n, N) int64: the set cut once into blocks, its tail dropped; with n_blocks, so many spread evenly over them."""
    n = tokens.size // block_size
    keep = np.arange(n) if not 0 < n_blocks < n else np.arange(n_blocks) * n // n_blocks
    return torch.from_numpy(tokens.reshape(-1)[:n * block_size].reshape(n, block_size)[keep].astype(np.int64))
