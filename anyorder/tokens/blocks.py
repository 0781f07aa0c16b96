"""
How do tokens become batches? Random blocks, and all blocks of a whole set.

Tokens of text are (n,), and a block may start anywhere. Tokens of puzzles are (rows, row_length), see sets.unpack.
"""
import numpy as np
import torch


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
    """(n, N) int64: the set cut into blocks, its tail dropped; with n_blocks only so many, spread evenly."""
    n = tokens.size // block_size
    keep = np.arange(n) if not 0 < n_blocks < n else np.arange(n_blocks) * n // n_blocks
    return torch.from_numpy(tokens.reshape(-1)[:n * block_size].reshape(n, block_size)[keep].astype(np.int64))
