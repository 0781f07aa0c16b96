"""What is a split of a prepared set? Tokens, which are a stream, or rows: those of an array, or
documents with prompts."""

import math
from dataclasses import dataclass

import numpy as np

from anyorder.tokens.meta import Meta

PADDING = -1  # in a block, behind a document that is shorter
CHUNK = 1 << 18  # tokens that are looked at together where all are: small beside a set
COUNTED = 1 << 26  # tokens of a split that are counted


def chunks_of(tokens):
    """Yield (place of the first token, tokens) of chunks of a stream, CHUNK tokens each."""
    for start in range(0, len(tokens), CHUNK):
        yield start, tokens[start : start + CHUNK]


@dataclass
class Split:
    """A split of a set.

    packed  (n,) tokens as on disk
    meta    of its set
    name    which split of the set it is; '' of a text that is no set
    starts  (rows + 1,) where rows begin, and where the last one ends; None: as in find_starts"""

    packed: np.ndarray
    meta: Meta = Meta()
    name: str = ''
    starts: np.ndarray | None = None

    @property
    def entry(self):
        """What meta.json says of this split."""
        return self.meta.splits[self.name]

    @property
    def called(self):
        """What errors call it; a text that is no set has one name."""
        return f'{self.meta.name}/{self.name}' if self.name else self.meta.name

    def check_length(self, block_size):
        """Raise ValueError unless there is a block of this size, and each has a token that is not
        given."""
        n_row = self.meta.row_length
        n = n_row or len(self.packed)
        is_beyond = self.meta.is_stream and n < block_size
        if is_beyond or n_row not in (None, block_size):
            less = '' if n_row else ' or less'
            raise ValueError(
                f'block_size={block_size} does not fit: {self.called} takes --block_size={n}{less}'
            )
        longest = self.longest_given()
        if longest >= block_size:
            raise ValueError(
                f'{self.called} has {longest} given tokens in a row: leave this prompt out, or '
                f'take a larger block_size, got {block_size}'
            )

    def longest_given(self):
        """Return how many given tokens stand in a row, at most. Rows of one length have one that is
        not."""
        longest = 0
        if self.meta.row_length or not self.meta.given:
            return longest
        last = -1  # place of the last token that is not given
        for start, part in chunks_of(self.packed):
            _, given = self.meta.unpack(part)
            blanks = np.append(last, np.flatnonzero(~given) + start)
            longest = max(longest, np.diff(blanks).max(initial=1) - 1)
            last = blanks[-1]
        return int(max(longest, len(self.packed) - 1 - last))

    def find_starts(self):
        """Return `starts`, None of a stream. An end of text ends a document."""
        if self.meta.is_stream or self.starts is not None:
            return self.starts
        if self.meta.row_length:
            return np.arange(0, len(self.packed) + 1, self.meta.row_length)
        eos = self.meta.eos
        ends = [np.flatnonzero(part == eos) + n + 1 for n, part in chunks_of(self.packed)]
        return np.concatenate([[0], *ends])

    def count(self, most=None):
        """Return (n_tokens,) int64: how often each token stands here; of more tokens than `most`,
        by default COUNTED, some chunks are counted, spread evenly. Raises ValueError for a token
        that the set lacks."""
        counts = np.zeros(self.meta.n_tokens, np.int64)
        for n, (_, part) in enumerate(chunks_of(self.packed)):
            if n % math.ceil(len(self.packed) / (most or COUNTED)) == 0:
                tokens, _ = self.unpack(part)
                counts += np.bincount(tokens, minlength=len(counts))
        return counts

    def unpack(self, packed):
        """Return Meta.unpack of tokens of this split. Raises ValueError if the set lacks one."""
        tokens, given = self.meta.unpack(packed)
        n_tokens = self.meta.n_tokens
        if tokens.max() >= n_tokens:
            raise ValueError(
                f'{self.called}.bin is damaged: it has the token {tokens.max()}, '
                f'{self.meta.tokenizer} tokens are below {n_tokens}: prepare it again with --force'
            )
        return tokens, given
