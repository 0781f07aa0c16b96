"""
Token files to batches: open a prepared split, draw random blocks, list the blocks of a whole set, count its tokens.

Tokens of text are (n,), and a block may start anywhere. Those of puzzles are (rows, row_length), see puzzles.unpack.
"""
import os

import numpy as np
import torch

from anyorder.files import check_names
from data.prepare import DATA_SETS, prepare
from data.puzzles import SHARES, prepare_puzzles
from data.rules import TASKS
from data.sets import read_meta
from data.tokenizers import TOKENIZERS


def open_split(data_dir, name, split):
    """(tokens: uint16 memory map, meta: dict of meta.json) of a prepared split. Makes data sets that need no source and no time.

    Raises ValueError with the command to run when the split is missing, or when its file is not the one meta.json describes."""
    check_names(dataset=name)
    directory = os.path.join(data_dir, name)
    path, meta = os.path.join(directory, f'{split}.bin'), read_meta(directory)
    if split not in meta.get('splits', {}) or not os.path.isfile(path):
        row = DATA_SETS.get(name)
        if split in SHARES and (name in TASKS or 'puzzle' in meta):
            if name != 'sudoku4' or meta.get('splits'):
                task, more = meta.get('puzzle', {}).get('task', name), f' --name={name} --split={split}' * bool(meta)
                raise ValueError(f'no {path}; make it with: python data/puzzles.py {task}{more} --out={data_dir}')
            meta = prepare_puzzles(name, data_dir)
        elif row is not None and row.offline and split in ('train', 'val'):
            meta = prepare(name, data_dir)
        else:
            if row is not None and row.offline:
                raise ValueError(f'no {path}: {name} has the splits train and val')
            there, known = meta.get('splits', {}), name if row else f'text --name={name}'
            divided = {'train', 'val'} <= there.keys() and there['train']['source'] == there['val']['source']
            if row is not None and row.splits:
                known += f' [--source=FILE] --split={split}'
            elif divided and split in ('train', 'val'):                             # its file is lost
                known += f" --source=FILE --tokenizer={meta['tokenizer']} --force"
            elif there or split not in ('train', 'val'):
                known += f' --source=FILE --split={split}'
            elif name == 'text' or row is None:                                     # the others are downloaded
                known += ' --source=FILE'
            raise ValueError(f'no {path}; make it with: python data/prepare.py {known} --out={data_dir}')
    n = meta['splits'][split]['tokens']
    if os.path.getsize(path) != 2 * n:
        raise ValueError(f'{path} has {os.path.getsize(path)} bytes, {2 * n} expected: prepare {name} again with --force')
    tokenizer = TOKENIZERS.get(meta['tokenizer'])
    if tokenizer and tokenizer.n_tokens != meta.get('n_tokens'):
        raise ValueError(f"{directory} has {meta.get('n_tokens')} {meta['tokenizer']} tokens, there are {tokenizer.n_tokens} now: prepare "
                         f'{name} again with --force')
    length = meta.get('row_length')
    return np.memmap(path, dtype='<u2', mode='r', shape=(n // length, length) if length else (n,)), meta


def check_length(tokens, block_size, name):
    if tokens.ndim == 2 and tokens.shape[1] != block_size:
        raise ValueError(f'the puzzles of {name} are {tokens.shape[1]} tokens: block_size must be that, got {block_size}')
    if tokens.ndim == 1 and len(tokens) < block_size:
        raise ValueError(f'block_size={block_size} is beyond the data: {name} has {len(tokens)} tokens')


def random_blocks(tokens, batch_size, block_size):
    """(B, N) int64 blocks at uniform offsets, or rows of puzzles, drawn from torch's default generator."""
    if tokens.ndim == 2:
        return torch.from_numpy(tokens[torch.randint(len(tokens), (batch_size,)).numpy()].astype(np.int64))
    starts = torch.randint(len(tokens) - block_size + 1, (batch_size, 1)).numpy()
    return torch.from_numpy(tokens[starts + np.arange(block_size)].astype(np.int64))


def all_blocks(tokens, block_size, n_blocks=0):
    """(n, N) int64: the set cut once into blocks, its tail dropped; with n_blocks, that many spread evenly over them."""
    n = tokens.size // block_size
    keep = np.arange(n) if not 0 < n_blocks < n else np.arange(n_blocks) * n // n_blocks
    return torch.from_numpy(tokens.reshape(-1)[:n * block_size].reshape(n, block_size)[keep].astype(np.int64))


def token_counts(tokens, n_tokens):
    """How often each of n_tokens ids stands in a whole set."""
    chunks = (tokens[i:i + 2 ** 24] for i in range(0, len(tokens), 2 ** 24))   # bincount copies what it counts
    return sum(np.bincount(chunk, minlength=n_tokens) for chunk in chunks)
