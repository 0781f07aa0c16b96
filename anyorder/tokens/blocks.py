"""How do tokens become batches? Random blocks, and all blocks of a whole set.

The blocks of a stream begin at any token. Those of other sets are their rows, cut or padded."""

from typing import NamedTuple

import numpy as np
import torch

from anyorder.orders import given_first
from anyorder.tokens.apart import apart_first, are_apart, begins_of
from anyorder.tokens.sets import PADDING, Split
from model import Parts


class Blocks(Split):
    """A split cut into blocks, and the part that it has in a run.

    n            how many blocks there are, of a stream one from each token on
    step         from a block to the next one that it does not overlap
    n_disjoint   blocks that do not overlap, of a stream maybe no whole number
    width        tokens of a block: no more than the longest row has
    mean_length  tokens of a block that are no padding, in the mean
    about_cut    says how many rows are longer than a block, behind the name of a set
    share        of the tokens that a run reads
    chance       that a row of a batch is of this split"""

    def __init__(self, split, block_size, documents='together'):
        """documents  an option, see apart.py

        Raises ValueError for a split without such blocks."""
        super().__init__(split.packed, split.meta, split.name, split.find_starts())
        self.check_length(block_size)
        self.block_size = block_size
        self.are_apart = are_apart(self.meta, documents)
        if self.starts is None:
            lengths = np.array([block_size])
            self.step = block_size
            self.n = len(self.packed) - block_size + 1
        else:
            lengths = np.diff(self.starts)
            self.step = 1
            self.n = len(lengths)
        self.n_disjoint = (self.n + self.step - 1) / self.step
        self.width = min(block_size, int(lengths.max()))
        self.mean_length = lengths.clip(max=block_size).mean()
        n_cut = (lengths > block_size).sum()
        self.about_cut = ''
        if n_cut:
            self.about_cut = f', {n_cut:,} of {self.n:,} documents cut at {block_size}'
        self.share = 1.0
        self.chance = 1.0

    def numbers(self, n_blocks=0):
        """Return the numbers (n,) of all blocks that do not overlap; with n_blocks of so many,
        spread evenly."""
        n = int(self.n_disjoint)  # of a stream the tail is dropped
        n_blocks = min(n_blocks or n, n)
        return np.arange(n_blocks) * n // n_blocks * self.step

    def read(self, numbers):
        """Return (tokens, given), (n, width) each: the blocks of these numbers, cut, or PADDING
        behind them, which counts as given. Raises ValueError for a token that the set lacks."""
        packed, is_padding = self.take(self.packed, numbers)
        tokens, given = self.unpack(packed)
        tokens[is_padding] = PADDING
        return tokens, given | is_padding

    def take(self, values, numbers):
        """Return the values of the tokens of blocks (n, width), and which places are padding.

        values   (n_tokens,), one for each token of the split
        numbers  (n,) of the blocks"""
        firsts = numbers
        ends = numbers + self.block_size
        if self.starts is not None:
            firsts = self.starts[numbers]
            ends = self.starts[numbers + 1]
        places = firsts[:, None] + np.arange(self.width)
        return values.take(places, mode='clip'), places >= ends[:, None]

    def begins(self, tokens):
        """Return Batch.begins of blocks (B, N) whose documents are apart, None if they are not."""
        return begins_of(tokens, self.meta.eos) if self.are_apart else None


def random_blocks(sets, batch_size):
    """Return (tokens, given), (B, N) each: random Blocks of several sets, by torch's generator.

    Which of them a row is of, is drawn first."""
    owner = np.zeros(batch_size, int)
    if len(sets) > 1:
        ends = np.cumsum([blocks.chance for blocks in sets])[:-1]
        u = torch.rand(batch_size, dtype=torch.float64)
        owner = ends.searchsorted(u.numpy(), 'right')
    tokens = np.full((batch_size, width_of(sets)), PADDING)
    given = np.ones_like(tokens, bool)
    for number, blocks in enumerate(sets):
        rows = np.flatnonzero(owner == number)
        if len(rows):
            found = blocks.read(uniform_below(blocks.n, len(rows)))
            tokens[rows, : blocks.width], given[rows, : blocks.width] = found
    return torch.from_numpy(tokens), torch.from_numpy(given)


def width_of(sets):
    """Return the tokens of a block of any of several sets."""
    return max(blocks.width for blocks in sets)


def uniform_below(n, size):
    """Return (size,) uniform numbers from 0 to n - 1, of 63 bits.

    By the 32 bits of torch.randint some of 250 million are 6 % likelier than others."""
    return torch.empty(size, dtype=torch.long).random_().remainder_(n).numpy()


def all_blocks(blocks, n_blocks=0):
    """Return (tokens, given), (n, N) each, of Blocks.numbers."""
    tokens, given = blocks.read(blocks.numbers(n_blocks))
    return torch.from_numpy(tokens), torch.from_numpy(given)


def visits_of(tokens):
    """Return (B,), how many tokens of blocks (B, N) stand before padding; None: they have none."""
    n_visits = (tokens != PADDING).sum(1)
    return n_visits if (n_visits < tokens.size(1)).any() else None


class Batch(NamedTuple):
    """B blocks of N tokens, each visited in an order: what is given, then blanks, then padding.

    Counts are (B,), or None where there is nothing to count: n_given + n_blanks = n_visits, and
    n_given <= n_known <= n_visits. Of rows that pack texts, at `begins`, they are (B, P)."""

    idx: torch.Tensor  # (B, N) tokens in natural order
    order: torch.Tensor  # (B, N) positions
    n_known: torch.Tensor | None = None  # of a masked loss: visits that the network sees
    n_visits: torch.Tensor | None = None  # visits that are no padding; None: all
    n_given: torch.Tensor | None = None  # visits that cost nothing
    n_blanks: torch.Tensor | None = None  # visits that are learned or measured
    # (B, P) where packed texts begin, as places and as visits alike, see apart.py
    begins: torch.Tensor | None = None

    @classmethod
    def of(cls, idx, order, given, n_visits=None, begins=None, law='', **how):
        """Make a batch of tokens (B, N) in orders (B, N) of which in each text what is given comes
        first, see given_first, also for `how`; of documents that are apart, see apart_first."""
        if begins is None:
            order, n_given, n_blanks = given_first(order, given, n_visits, **how)
        else:
            order, n_given, n_blanks = apart_first(order, given, begins, law)
        return cls(idx, order, None, n_visits, n_given, n_blanks, begins)

    @property
    def texts(self):
        """What Parts.of wants to know."""
        return self.n_visits, self.begins

    @property
    def is_blank(self):
        """(B, N), whether a visit is learned or measured."""
        parts = Parts.of(self.order, *self.texts)
        visit = torch.arange(self.order.size(1), device=self.order.device)
        return (visit >= parts.after(self.n_given)) & (visit < parts.end)

    def count_tokens(self):
        """Return how many tokens are no padding."""
        if self.n_visits is None:
            return self.idx.numel()
        return self.n_visits.sum()

    def copy(self):
        """Return a batch that shares no memory with this one."""
        return Batch(*(None if x is None else x.clone() for x in self))

    def rows(self, at):
        """Return the rows of these numbers (n,) as a batch of their own."""
        parts = {name: part[at] for name, part in self._asdict().items() if part is not None}
        batch = Batch(**parts)
        if batch.n_visits is not None and (batch.n_visits == batch.idx.size(1)).all():
            return batch._replace(n_visits=None)  # no padding is left: a network needs no mask
        return batch

    def to(self, device):
        """Return the batch as a model on the device reads it; padding becomes token 0, unread.

        Counts stay where they are: on the host `predict` plans its passes without a wait."""
        idx = self.idx.clamp(min=0).to(device)
        batch = self._replace(idx=idx, order=self.order.to(device))
        if self.begins is None:
            return batch
        return batch._replace(begins=self.begins.to(device))
