"""How do tokens become batches? Random blocks, and all blocks of a whole set."""

from typing import NamedTuple

import numpy as np
import torch

from anyorder.orders import given_first
from anyorder.tokens.mixture import width_of
from anyorder.tokens.sets import PADDING
from model import Parts


def random_blocks(splits, batch_size, block_size):
    """Return (tokens, given), (B, N) each: random blocks of Splits, or rows, by torch's generator.

    Which of several a row is of, is drawn first."""
    owner = np.zeros(batch_size, int)
    if len(splits) > 1:
        ends = np.cumsum([split.chance for split in splits])[:-1]
        u = torch.rand(batch_size, dtype=torch.float64)
        owner = ends.searchsorted(u.numpy(), 'right')
    tokens = torch.full((batch_size, width_of(splits, block_size)), PADDING)
    given = torch.ones_like(tokens, dtype=torch.bool)
    for number, split in enumerate(splits):
        rows = torch.from_numpy(np.flatnonzero(owner == number))
        if len(rows):
            places = uniform_below(split.n_places(block_size), len(rows))
            blocks = packed_blocks(split, places, block_size)
            n = blocks.size(1)
            tokens[rows, :n], given[rows, :n] = split.unpack(blocks)
    return tokens, given


def packed_blocks(split, places, block_size):
    """Return (n, N) blocks as on disk, cut or padded: the rows of these numbers (n,), or what
    begins at these tokens of a stream."""
    starts, ends = split.spans(places, block_size)
    columns = starts[:, None] + np.arange(split.width(block_size))
    is_padding = columns >= ends[:, None]
    columns[is_padding] = 0
    blocks = split.packed[columns].astype(np.int64)
    blocks[is_padding] = PADDING
    return torch.from_numpy(blocks)


def uniform_below(n, size):
    """Return (size,) uniform numbers from 0 to n - 1, of 63 bits.

    By the 32 bits of torch.randint some of 250 million are 6 % likelier than others."""
    return torch.empty(size, dtype=torch.long).random_().remainder_(n).numpy()


def visits_of(blocks):
    """Return (B,), how many tokens of each block stand before its padding; None: it has none."""
    n_visits = (blocks != PADDING).sum(1)
    return n_visits if (n_visits < blocks.size(1)).any() else None


def all_blocks(split, block_size, n_blocks=0):
    """Return (tokens, given), (n, N) each: a Split cut into blocks, or its rows.

    The tail of a stream is dropped. With n_blocks so many are taken, spread evenly."""
    return split.unpack(all_packed(split, block_size, n_blocks))


def all_packed(split, block_size, n_blocks=0):
    """Return all_blocks as on disk."""
    n = int(split.n_rows(block_size))  # of a stream the tail is dropped
    keep = np.arange(n)
    if 0 < n_blocks < n:
        keep = np.arange(n_blocks) * n // n_blocks
    if split.starts is None:
        keep = keep * block_size
    return packed_blocks(split, keep, block_size)


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
    begins: torch.Tensor | None = None  # (B, P) first visits of packed texts, see apart.py

    @classmethod
    def of(cls, blocks, order, given, left_to_right=False):
        """Make a batch of blocks (B, N), PADDING after them, in orders (B, N), see given_first."""
        n_visits = visits_of(blocks)
        order, n_given, n_blanks = given_first(order, given, n_visits, left_to_right)
        return cls(blocks, order, None, n_visits, n_given, n_blanks)

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
