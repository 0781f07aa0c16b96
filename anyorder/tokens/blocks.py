"""How do tokens become batches? Random blocks, and all blocks of a whole set."""

import re

import numpy as np
import torch

from anyorder.machine.devices import widest
from anyorder.tokens.sets import PADDING, parts_of

DOCUMENTS = 1 << 14  # that are looked at together


def check_length(split, block_size, name):
    tokens = split.packed
    if tokens.ndim == 2 and tokens.shape[1] != block_size:
        raise ValueError(
            f'the rows of {name} are {tokens.shape[1]} tokens: block_size must be {tokens.shape[1]}, '
            f'got {block_size}'
        )
    if split.ends is not None:
        full = first_full(split, block_size)
        if full is not None:
            raise ValueError(
                f'the prompt of document {full + 1} of {name} fills its block: leave it out, or '
                f'choose a model of more positions or a larger block_size, got {block_size}'
            )
    elif tokens.ndim == 1 and len(tokens) < block_size:
        raise ValueError(
            f'block_size={block_size} is beyond the data: {name} takes --block_size={tokens.size} or less'
        )
    elif tokens.ndim == 1 and split.marked:
        longest = longest_given(split)
        if longest >= block_size:
            raise ValueError(
                f'{name} has {longest} given tokens in a row: block_size must be larger, got {block_size}'
            )


def first_full(split, block_size):
    """The number of the first document whose block ends within its prompt, which stands before its text; or None."""
    n = len(split.ends)
    for first in range(0, n, DOCUMENTS):
        starts, ends = split.spans(np.arange(first, min(n, first + DOCUMENTS)))
        is_full = split.packed[np.minimum(starts + block_size, ends) - 1] >= split.mark
        if is_full.any():
            return first + int(is_full.argmax())
    return None


def longest_given(split):
    """How many given tokens of a stream stand in a row, at most."""
    longest, last = 0, -1  # where the last blank stood
    for start, part in parts_of(split.packed):
        blank = np.flatnonzero(part < split.mark) + start
        if len(blank):
            longest, last = max(longest, np.diff(blank, prepend=last).max() - 1), blank[-1]
    return max(longest, len(split.packed) - last - 1)


def random_blocks(split, batch_size, block_size):
    """(B, N) int64 blocks as on disk, at uniform offsets or whole rows, drawn from torch's default generator."""
    tokens = split.packed
    if split.ends is not None:
        return documents(split, uniform_below(len(split.ends), batch_size), block_size)
    if tokens.ndim == 2:
        return torch.from_numpy(tokens[uniform_below(len(tokens), batch_size)].astype(np.int64))
    starts = uniform_below(len(tokens) - block_size + 1, batch_size)
    return torch.from_numpy(tokens[starts[:, None] + np.arange(block_size)].astype(np.int64))


def uniform_below(n, size):
    """(size,) uniform numbers from 0 to n - 1, from torch's default generator: 63 bits modulo n, which makes a number
    likelier than another by n / 2^63 at most. By the 32 bits of torch.randint it is n / 2^32: 6 % of 250 million."""
    return torch.empty(size, dtype=torch.long).random_().remainder_(n).numpy()


def documents(split, numbers, block_size):
    """(B, N) int64, these documents as on disk, N = split.width(block_size): long ones are cut, short ones padded."""
    starts, ends = split.spans(numbers)
    columns = starts[:, None] + np.arange(split.width(block_size))
    inside = columns < ends[:, None]
    return torch.from_numpy(
        np.where(inside, split.packed[np.where(inside, columns, 0)].astype(np.int64), PADDING)
    )


N_MARKS = 3  # of fill-in-the-middle


def marked_middle(texts, cut, first):
    """(B, T + 3): texts (B, T) with the positions from cut[:, 0] to before cut[:, 1] moved to the end. Three marks, the
    ids from `first` on, stand before prefix, suffix and middle (Bavarian et al. 2022, arXiv 2207.14255); `cut` (B, 2).
    The first mark is the n_real of a model that was trained so."""
    (B, T), (start, end) = texts.shape, cut.unsqueeze(-1).unbind(1)  # (B, 1) each
    position, marks = (torch.arange(n, device=texts.device) for n in (T, N_MARKS))
    part = 2 * (position >= start) - (position >= end).long()  # 0 prefix, 1 suffix, 2 middle
    marks = marks.expand(B, -1)
    place = torch.cat([marks, part], 1).argsort(stable=True)  # (B, T + 3)
    return torch.cat([first + marks, texts], 1).gather(1, place)


def middle_last(blocks, fim_ratio, first):
    """Blocks (B, N), a share of them as marked_middle of their first N - 3 tokens, cut at two uniform places. A middle
    ends with its block: where its mark stands tells how long it is."""
    (B, N), device = blocks.shape, blocks.device
    u = torch.rand(B, 3, device=device, dtype=widest(device))
    cut = (u[:, :2] * (N - N_MARKS + 1)).long().sort(-1).values  # 0 to N - 3
    return torch.where(
        u[:, 2:] < fim_ratio, marked_middle(blocks[:, :-N_MARKS], cut, first), blocks
    )


def visits_of(blocks):
    """(B,) how many tokens of each block (B, N), on the host, stand before its padding; None: no block has padding."""
    n_visits = (blocks != PADDING).sum(1)
    return n_visits if (n_visits < blocks.size(1)).any() else None


def all_blocks(split, block_size, n_blocks=0):
    """(tokens, given), (n, N) int64 and bool: the set cut into blocks, its tail dropped, or the documents that are its
    rows; with n_blocks only so many, spread evenly."""
    tokens, n = (
        split.packed.reshape(-1),
        split.packed.size // block_size if split.ends is None else len(split.ends),
    )
    keep = np.arange(n) if not 0 < n_blocks < n else np.arange(n_blocks) * n // n_blocks
    if split.ends is not None:
        return split.unpack(documents(split, keep, block_size))
    return split.unpack(
        torch.from_numpy(tokens[: n * block_size].reshape(n, block_size)[keep].astype(np.int64))
    )


def only_blank(positions, tokens, given):
    """`given` (n, N) where the positions of `tokens` (n, N) that an option names, as '32:64,70', are blank and all the
    others given. '' changes nothing. Raises ValueError for positions that are none."""
    if not positions:
        return given
    if visits_of(tokens) is not None:
        raise ValueError(
            f'blanks are positions of blocks of one length, these are documents: leave out {positions}'
        )
    N, given = given.size(1), torch.ones_like(given)
    for part in positions.split(','):
        found = re.fullmatch(r'(\d+)(?::(\d+))?', part)
        first, end = (int(found[1]), int(found[2] or int(found[1]) + 1)) if found else (N, N)
        if not first < end <= N:
            raise ValueError(
                f'blanks must be positions from 0 to {N - 1}, as 8 or 0:{N} or 0:2,8, got {positions!r}'
            )
        given[:, first:end] = False
    return given
