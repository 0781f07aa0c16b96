"""What is a prepared set? A folder with meta.json, see meta.py, and a file <split>.bin a split.

A file holds tokens as little-endian uint16, or as uint32 where there are more than 2^16 of them, or
more than 2^15 that may be marked as given."""

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

GIVEN = 1 << 15  # in a token of 16 bits of a set with given positions
N_IDS = 1 << 24  # ids that tokens may have: more are a mistake, and no network has so many rows
PADDING = -1  # in a block, behind a document that is shorter
GROUP = 1 << 4  # documents whose lengths are added up to find where one begins
PART = 1 << 18  # tokens that are looked at together where all are: small beside a set
DOCUMENTS = 1 << 14  # whose prompts are looked at together
CHECKED = 1 << 25  # tokens of a split that are compared with n_tokens: all would take minutes
COUNTED = 1 << 26  # tokens of a split that are counted


def parts_of(tokens):
    """Yield (place of the first token, tokens) of pieces of a stream, PART tokens each."""
    for start in range(0, len(tokens), PART):
        yield start, tokens[start : start + PART]


def document_lengths(tokens, eos):
    """Return the tokens (rows,) of each document of a stream, each of which ends in `eos`.

    They take as few bytes as the longest one needs: to open a set takes little memory."""
    lengths = []
    last = 0  # end of the document before
    for start, part in parts_of(tokens):
        ends = np.flatnonzero(part == eos) + start + 1
        new = np.diff(ends, prepend=last)
        lengths.append(new.astype(np.min_scalar_type(new.max(initial=0))))
        if len(ends):
            last = ends[-1]
    return np.concatenate(lengths)


@dataclass
class Split:
    """The tokens of a split.

    packed   as on disk: a stream (n,), in which a block may start anywhere, or rows (rows, N)
    marked   whether the highest bit of a token says that it is given
    lengths  of a stream whose documents are rows: the tokens of each, (rows,)
    eos      the token that ends each document of a stream, or None"""

    packed: np.ndarray
    marked: bool = False
    lengths: np.ndarray | None = None
    eos: int | None = None

    @property
    def has_rows(self):
        """Whether a block is a text: a row or a document."""
        return self.packed.ndim == 2 or self.lengths is not None

    @property
    def mark(self):
        return 1 << 8 * self.packed.itemsize - 1

    @property
    def mask(self):
        """The bits of a token that say which one it is."""
        return self.mark - 1 if self.marked else 2 * self.mark - 1

    @cached_property
    def longest(self):
        """How many tokens the longest document has."""
        return int(self.lengths.max())

    @cached_property
    def begins(self):
        """Where every GROUP-th document begins."""
        firsts = np.arange(0, len(self.lengths), GROUP)
        sizes = np.add.reduceat(self.lengths, firsts, dtype=np.int64)
        return np.cumsum(sizes) - sizes

    def spans(self, numbers):
        """Return (starts, ends), (B,) each, of the documents of these numbers (B,)."""
        group = numbers // GROUP
        columns = group[:, None] * GROUP + np.arange(GROUP)  # (B, GROUP)
        lengths = self.lengths.take(columns, mode='clip')
        before = lengths.sum(1, dtype=np.int64, where=columns < numbers[:, None])
        starts = self.begins[group] + before
        return starts, starts + self.lengths[numbers]

    def width(self, block_size):
        """Return the tokens of a block, which is no longer than the longest document."""
        if self.lengths is None:
            return block_size
        return min(block_size, self.longest)

    def cut(self, block_size):
        """Say how many documents are longer than a block, behind the name of a set; '' is none."""
        if self.lengths is None:
            return ''
        n = (self.lengths > block_size).sum()
        return f', {n:,} of {len(self.lengths):,} documents cut at {block_size}' if n else ''

    def counts(self, n_tokens):
        """Return (n_tokens,) int64: how often each token stands here; of more than COUNTED tokens
        some are counted."""
        counts = np.zeros(n_tokens, np.int64)
        for part in parts_of_some(self.packed.reshape(-1), COUNTED):
            counts += np.bincount(part & self.mask, minlength=n_tokens)
        return counts

    def unpack(self, blocks):
        """Return (tokens, given), integers and bool, of blocks (B, N) as on disk.

        PADDING stays, and is no blank."""
        if not self.marked:
            return blocks, blocks < 0
        padding = blocks == PADDING
        tokens = blocks & (self.mark - 1)  # of padding, -1, all bits below the mark
        return tokens - padding * self.mark, (blocks >= self.mark) | padding


def dtype_of(meta):
    """Return the type of a token on disk."""
    return type_of(meta.n_tokens, 15 if meta.given else 16)


def type_of(n_tokens, n_bits):
    """Return the type of a token on disk, whose id has n_bits of 16 if that is enough."""
    return np.dtype('<u2' if n_tokens <= 2**n_bits else '<u4')


def bin_path(directory, split):
    return os.path.join(directory, f'{split}.bin')


def whole_splits(directory, meta):
    """Return {split: its SplitMeta} for the splits whose files have the size that it says.

    Of no Meta there are none."""
    if meta is None:
        return {}
    whole = {}
    for name, split in meta.splits.items():
        path = bin_path(directory, name)
        n_bytes = dtype_of(meta).itemsize * split.tokens
        if os.path.exists(path) and os.path.getsize(path) == n_bytes:
            whole[name] = split
    return whole


def read_split(directory, meta, split):
    """Return the Split of this name.

    Raises ValueError unless its file has the size and the ids that meta.json says."""
    path = bin_path(directory, split)
    dtype = dtype_of(meta)
    again = f'prepare {meta.name} again with --force'

    # The size
    n_bytes = dtype.itemsize * meta.splits[split].tokens
    if os.path.getsize(path) != n_bytes:
        raise ValueError(f'{path} has {os.path.getsize(path)} bytes, {n_bytes} expected: {again}')

    # The documents
    tokens = np.memmap(path, dtype=dtype, mode='r')
    found = Split(tokens, meta.given, eos=meta.eos)
    if meta.prompts:
        found.lengths = document_lengths(tokens, meta.eos)
        if tokens[-1] != meta.eos:
            raise ValueError(f'{path} does not end with the end of a document: {again}')

    # The ids
    largest = largest_id(tokens, found.mask)
    if largest >= meta.n_tokens:
        raise ValueError(
            f'{path} has the token {largest}, {meta.tokenizer} tokens are below '
            f'{meta.n_tokens}: {again}'
        )
    if meta.row_length:
        found.packed = tokens.reshape(-1, meta.row_length)
    return found


def largest_id(tokens, mask):
    """Return the largest id (tokens & mask) of (n,) tokens; of more than CHECKED, of some."""
    largest = 0
    for part in parts_of_some(tokens, CHECKED):
        largest = max(largest, int((part & mask).max()))
    return largest


def parts_of_some(tokens, most):
    """Yield pieces of (n,) tokens: of more than `most` so many, in 64 places spread evenly."""
    n_places = 64 if len(tokens) > most else 1
    size = min(len(tokens), most) // n_places
    step = len(tokens) - size  # of all places but the first together
    for i in range(n_places):
        start = i * step // max(1, n_places - 1)
        for _, part in parts_of(tokens[start : start + size]):
            yield part


def check_length(split, block_size, name):
    """Raise ValueError unless a Split has blocks of this size, each with a token that is not given.

    name  of the set, for errors"""
    if split.packed.ndim == 2:
        check_rows(split, block_size, name)
    elif split.lengths is not None:
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
    n = len(split.lengths)
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
