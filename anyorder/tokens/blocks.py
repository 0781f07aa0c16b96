"""How do tokens become batches? Random blocks, and all blocks of a whole set."""

import re

import numpy as np
import torch

from anyorder.tokens.sets import PADDING, parts_of

DOCUMENTS = 1 << 14  # that are looked at together


def check_length(split, block_size, name):
    """Raise ValueError unless a Split has blocks of this size, each with a token that is not given.

    name  of the set, for errors"""
    if split.packed.ndim == 2:
        check_rows(split, block_size, name)
    elif split.ends is not None:
        check_prompts(split, block_size, name)
    else:
        check_stream(split, block_size, name)


def check_rows(split, block_size, name):
    """Raise ValueError unless rows are blocks. See check_length."""
    n = split.packed.shape[1]
    if n != block_size:
        raise ValueError(
            f'the rows of {name} are {n} tokens: block_size must be {n}, got {block_size}'
        )


def check_prompts(split, block_size, name):
    """Raise ValueError where the prompt of a document fills its block. See check_length."""
    full = first_full(split, block_size)
    if full is not None:
        raise ValueError(
            f'the prompt of document {full + 1} of {name} fills its block: leave it out, or '
            f'choose a model of more positions or a larger block_size, got {block_size}'
        )


def check_stream(split, block_size, name):
    """Raise ValueError where a stream is short, or given for too long. See check_length."""
    n = len(split.packed)
    if n < block_size:
        raise ValueError(
            f'block_size={block_size} is beyond the data: {name} takes --block_size={n} or less'
        )
    if not split.marked:
        return
    longest = longest_given(split)
    if longest >= block_size:
        raise ValueError(
            f'{name} has {longest} given tokens in a row: block_size must be larger, got '
            f'{block_size}'
        )


def first_full(split, block_size):
    """Return the number of the first document whose block ends within its prompt, or None.

    A prompt stands before its text."""
    n = len(split.ends)
    for first in range(0, n, DOCUMENTS):
        numbers = np.arange(first, min(n, first + DOCUMENTS))
        starts, ends = split.spans(numbers)
        last = np.minimum(starts + block_size, ends) - 1
        is_full = split.packed[last] >= split.mark
        if is_full.any():
            return first + int(is_full.argmax())
    return None


def longest_given(split):
    """Return how many given tokens of a stream stand in a row, at most."""
    longest = 0
    last = -1  # where the last blank stood
    for start, part in parts_of(split.packed):
        blank = np.flatnonzero(part < split.mark) + start
        if len(blank):
            longest = max(longest, np.diff(blank, prepend=last).max() - 1)
            last = blank[-1]
    return max(longest, len(split.packed) - last - 1)


def random_blocks(split, batch_size, block_size):
    """Return (B, N) int64 blocks as on disk, at uniform offsets, or whole rows or documents.

    They are drawn from torch's default generator."""
    tokens = split.packed
    if split.ends is not None:
        numbers = uniform_below(len(split.ends), batch_size)
        return documents(split, numbers, block_size)
    if tokens.ndim == 2:
        numbers = uniform_below(len(tokens), batch_size)
        return torch.from_numpy(tokens[numbers].astype(np.int64))
    starts = uniform_below(len(tokens) - block_size + 1, batch_size)
    places = starts[:, None] + np.arange(block_size)
    return torch.from_numpy(tokens[places].astype(np.int64))


def uniform_below(n, size):
    """Return (size,) uniform numbers from 0 to n - 1, from torch's default generator.

    63 bits modulo n make a number likelier than another by n / 2^63 at most. By the 32 bits of
    torch.randint it is n / 2^32: 6 % of 250 million."""
    return torch.empty(size, dtype=torch.long).random_().remainder_(n).numpy()


def documents(split, numbers, block_size):
    """Return (B, N) int64, these documents as on disk, N = split.width(block_size).

    Long ones are cut, short ones padded."""
    starts, ends = split.spans(numbers)
    columns = starts[:, None] + np.arange(split.width(block_size))
    inside = columns < ends[:, None]
    tokens = split.packed[np.where(inside, columns, 0)].astype(np.int64)
    return torch.from_numpy(np.where(inside, tokens, PADDING))


def visits_of(blocks):
    """Return (B,), on the host, how many tokens of each block (B, N) stand before its padding.

    None says that no block has padding."""
    n_visits = (blocks != PADDING).sum(1)
    return n_visits if (n_visits < blocks.size(1)).any() else None


def all_blocks(split, block_size, n_blocks=0):
    """Return (tokens, given), (n, N) int64 and bool: a Split cut into blocks, or its documents.

    The tail of a stream is dropped. With n_blocks only so many are taken, spread evenly."""
    n = split.packed.size // block_size if split.ends is None else len(split.ends)
    keep = np.arange(n)
    if 0 < n_blocks < n:
        keep = np.arange(n_blocks) * n // n_blocks
    if split.ends is not None:
        return split.unpack(documents(split, keep, block_size))
    blocks = split.packed.reshape(-1)[: n * block_size].reshape(n, block_size)
    return split.unpack(torch.from_numpy(blocks[keep].astype(np.int64)))


def only_blank(positions, tokens, given):
    """Return `given` (n, N) of which these positions are blank and all the others given.

    positions  as an option names them, '32:64,70'; '' returns `given` as it is
    tokens     (n, N), none of which may be padding

    Raises ValueError for positions that are none."""
    if not positions:
        return given
    if visits_of(tokens) is not None:
        raise ValueError(
            'blanks are positions of blocks of one length, these are documents: leave out '
            f'{positions}'
        )
    N = given.size(1)
    given = torch.ones_like(given)
    for part in positions.split(','):
        first, end = span_of(part)
        if not first < end <= N:
            raise ValueError(
                f'blanks must be positions from 0 to {N - 1}, as 8 or 0:{N} or 0:2,8, got '
                f'{positions!r}'
            )
        given[:, first:end] = False
    return given


def span_of(text):
    """Return (first, end) of '8' or '0:8'; an empty span of any other text."""
    found = re.fullmatch(r'(\d+)(?::(\d+))?', text)
    if not found:
        return 0, 0
    first = int(found[1])
    return first, int(found[2] or first + 1)
