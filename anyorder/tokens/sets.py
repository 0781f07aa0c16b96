"""What is a prepared set? A folder with meta.json, see meta.py, and a file <split>.bin a split.

A file holds tokens as little-endian uint16, or as uint32 where there are more than 2^16 of them, or
more than 2^15 that may be marked as given."""

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anyorder.tokens.meta import Meta

GIVEN = 1 << 15  # in a token of 16 bits of a set with given positions
PADDING = -1  # in a block, behind a document that is shorter
PIECE = 1 << 18  # tokens that are looked at together where all are: small beside a set
COUNTED = 1 << 26  # tokens of a split that are counted


def pieces_of(tokens):
    """Yield (place of the first token, tokens) of pieces of a stream, PIECE tokens each."""
    for start in range(0, len(tokens), PIECE):
        yield start, tokens[start : start + PIECE]


@dataclass
class Split:
    """A split of a set: its tokens, and the part that it has in a run.

    packed  (n,) tokens as on disk
    meta    of its set
    name    which split of the set it is
    starts  (rows + 1,) where each row begins, and where the last one ends; None: the tokens are a
            stream, in which a block may start anywhere
    share   of the tokens that a run reads
    chance  that a row of a batch is of this split"""

    packed: np.ndarray
    meta: Meta = Meta()
    name: str = ''
    starts: np.ndarray | None = None
    share: float = 1.0
    chance: float = 1.0

    @property
    def said(self):
        """What meta.json says of this split."""
        return self.meta.splits[self.name]

    @property
    def called(self):
        """What errors call it; a text that is no set has one name."""
        return f'{self.meta.name}/{self.name}' if self.name else self.meta.name

    @property
    def mark(self):
        """The bit of a token that says that it is given."""
        return 1 << 8 * self.packed.itemsize - 1

    @cached_property
    def longest(self):
        """How many tokens the longest row has."""
        return int(np.diff(self.starts).max())

    def width(self, block_size):
        """Return the tokens of a block, which is no longer than the longest row."""
        if self.starts is None:
            return block_size
        return min(block_size, self.longest)

    def n_rows(self, block_size):
        """Return how many rows there are; of a stream how many blocks, which may be no whole
        number."""
        if self.starts is None:
            return len(self.packed) / block_size
        return len(self.starts) - 1

    def n_places(self, block_size):
        """Return how many rows there are, or tokens of a stream at which a block may begin."""
        if self.starts is None:
            return len(self.packed) - block_size + 1
        return len(self.starts) - 1

    def spans(self, places, block_size):
        """Return where blocks begin and end, (n,) each, that are named as n_places counts them."""
        if self.starts is None:
            return places, places + block_size
        return self.starts[places], self.starts[places + 1]

    def mean_length(self, block_size):
        """Return how many tokens a block has in the mean."""
        if self.starts is None:
            return block_size
        return np.diff(self.starts).clip(max=block_size).mean()

    def cut(self, block_size):
        """Say how many rows are longer than a block, behind the name of a set; '' is none."""
        if self.starts is None:
            return ''
        n = (np.diff(self.starts) > block_size).sum()
        return f', {n:,} of {len(self.starts) - 1:,} documents cut at {block_size}' if n else ''

    def counts(self, n_tokens):
        """Return (n_tokens,) int64: how often each token of checked_pieces stands here."""
        counts = np.zeros(n_tokens, np.int64)
        for tokens in self.checked_pieces():
            counts += np.bincount(tokens, minlength=n_tokens)
        return counts

    def checked_pieces(self):
        """Yield tokens in pieces without marks; of more than COUNTED some, in 64 places spread
        evenly. Raises ValueError for a token that the set lacks."""
        n = len(self.packed)
        n_places = 64 if n > COUNTED else 1
        size = min(n, COUNTED) // n_places
        for i in range(n_places):
            start = i * (n - size) // 63
            for _, tokens in pieces_of(self.packed[start : start + size]):
                if self.meta.given:
                    tokens = tokens & (self.mark - 1)
                self.check(tokens.max())
                yield tokens

    def unpack(self, blocks):
        """Return (tokens, given), integers and bool, of blocks (B, N) as on disk.

        PADDING stays, and counts as given. Raises ValueError for a token that the set lacks."""
        given = blocks == PADDING
        if self.meta.given:
            tokens = (blocks & (self.mark - 1)).where(~given, PADDING)
            given = given | (blocks >= self.mark)
            blocks = tokens
        self.check(blocks.max())
        return blocks, given

    def check(self, token):
        """Raise ValueError if the set lacks this token, the largest of some."""
        if 0 < self.meta.n_tokens <= token:
            raise ValueError(
                f'{self.called}.bin is damaged: it has the token {token}, '
                f'{self.meta.tokenizer} tokens are below {self.meta.n_tokens}: prepare it again '
                'with --force'
            )


def split_of(file, meta, name):
    """Return the Split of this name, of the bytes of its file.

    Raises ValueError unless there are as many as meta.json says."""
    n = meta.n_bytes(name)
    if len(file) != n:
        raise ValueError(
            f'{meta.name}/{name}.bin has {len(file)} bytes, {n} expected: prepare {meta.name} '
            'again with --force'
        )
    packed = file.view(meta.dtype)
    return Split(packed, meta, name, row_starts(packed, meta))


def row_starts(tokens, meta):
    """Return `starts` of a Split, of the tokens (n,) of a set."""
    if meta.row_length:
        return np.arange(0, len(tokens) + 1, meta.row_length)
    if not meta.prompts:
        return None
    ends = [np.flatnonzero(piece == meta.eos) + start + 1 for start, piece in pieces_of(tokens)]
    return np.concatenate([[0], *ends])


def bin_path(directory, split):
    return os.path.join(directory, f'{split}.bin')


def whole_splits(directory, meta):
    """Return {split: what is said of it} for the splits whose files have the size that it says.

    Of no Meta there are none."""
    if meta is None:
        return {}
    whole = {}
    for name, said in meta.splits.items():
        path = bin_path(directory, name)
        if os.path.exists(path) and os.path.getsize(path) == meta.n_bytes(name):
            whole[name] = said
    return whole


def check_length(split, block_size):
    """Raise ValueError unless a Split has blocks of this size, each with a token that is not
    given, of tokens that its set has."""
    called = split.called
    n_row = split.meta.row_length
    if n_row and n_row != block_size:
        raise ValueError(
            f'the rows of {called} are {n_row} tokens: block_size must be {n_row}, got {block_size}'
        )
    n = len(split.packed)
    if split.starts is None and n < block_size:
        raise ValueError(
            f'block_size={block_size} is beyond the data: {called} takes --block_size={n} or less'
        )
    for _ in split.checked_pieces():
        pass
    # a row of one length has such a token; a prompt stands before its text
    if split.meta.given and not n_row:
        longest = longest_given(split)
        if longest >= block_size:
            raise ValueError(
                f'{called} has {longest} given tokens in a row: leave this prompt out, or take a '
                f'larger block_size, got {block_size}'
            )


def longest_given(split):
    """Return how many given tokens of a Split stand in a row, at most."""
    longest = 0
    begin = None  # of given tokens that may go on in the next piece
    for start, piece in pieces_of(split.packed):
        is_given = piece >= split.mark
        # where given tokens begin, and behind them where they end, in turns
        edges = np.diff(is_given, prepend=begin is not None, append=False).nonzero()[0] + start
        if begin is not None:
            edges = np.append(begin, edges)
        longest = max(longest, (edges[1::2] - edges[::2]).max(initial=0))
        begin = edges[-2] if is_given[-1] else None
    return int(longest)
