"""How do tokens become batches? Random blocks, and all blocks of a whole set."""
import re

import numpy as np
import torch

from anyorder.tokens.sets import GIVEN


def check_length(split, block_size, name):
    tokens = split.packed
    if tokens.ndim == 2 and tokens.shape[1] != block_size:
        raise ValueError(f'the rows of {name} are {tokens.shape[1]} tokens: block_size must be {tokens.shape[1]}, '
                         f'got {block_size}')
    if tokens.ndim == 1 and len(tokens) < block_size:
        raise ValueError(f'block_size={block_size} is beyond the data: {name} has {len(tokens)} tokens')
    if tokens.ndim == 1 and split.marked:
        blank = np.flatnonzero(tokens < GIVEN)
        longest = np.diff(blank, prepend=-1, append=len(tokens)).max() - 1
        if longest >= block_size:
            raise ValueError(f'{name} has {longest} given tokens in a row: block_size must be larger, got {block_size}')


def random_blocks(split, batch_size, block_size):
    """(B, N) int64 blocks as on disk, at uniform offsets or whole rows, drawn from torch's default generator."""
    tokens = split.packed
    if tokens.ndim == 2:
        return torch.from_numpy(tokens[torch.randint(len(tokens), (batch_size,)).numpy()].astype(np.int64))
    starts = torch.randint(len(tokens) - block_size + 1, (batch_size, 1)).numpy()
    return torch.from_numpy(tokens[starts + np.arange(block_size)].astype(np.int64))


def all_blocks(split, block_size, n_blocks=0):
    """(tokens, given), (n, N) int64 and bool: the set cut into blocks, its tail dropped; with n_blocks only so many,
    spread evenly."""
    n, tokens = split.packed.size // block_size, split.packed.reshape(-1)
    keep = np.arange(n) if not 0 < n_blocks < n else np.arange(n_blocks) * n // n_blocks
    return split.unpack(torch.from_numpy(tokens[:n * block_size].reshape(n, block_size)[keep].astype(np.int64)))


def only_blank(positions, given):
    """`given` (n, N) where the positions that an option names, as '32:64,70', are blank and all others given. ''
    changes nothing. Raises ValueError for positions that are none."""
    if not positions:
        return given
    N, given = given.size(1), torch.ones_like(given)
    for part in positions.split(','):
        found = re.fullmatch(r'(\d+)(?::(\d+))?', part)
        first, end = (int(found[1]), int(found[2] or int(found[1]) + 1)) if found else (N, N)
        if not first < end <= N:
            raise ValueError(f'blanks must be positions from 0 to {N - 1}, as 8 or 0:{N} or 0:2,8, got {positions!r}')
        given[:, first:end] = False
    return given
