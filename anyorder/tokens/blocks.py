"""How do tokens become batches? Random blocks, and all blocks of a whole set."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from anyorder.orders import given_first
from anyorder.tokens.mixture import Mixture
from anyorder.tokens.sets import PADDING
from model import Parts


def random_blocks(split, batch_size, block_size):
    """Return (B, N) random blocks as on disk, or rows or documents, by torch's generator."""
    if isinstance(split, Mixture):
        return split.draw(batch_size, partial(random_blocks, block_size=block_size))
    tokens = split.packed
    if split.lengths is not None:
        numbers = uniform_below(len(split.lengths), batch_size)
        return documents(split, numbers, block_size)
    if tokens.ndim == 2:
        numbers = uniform_below(len(tokens), batch_size)
        return torch.from_numpy(tokens[numbers].astype(np.int64))
    starts = uniform_below(len(tokens) - block_size + 1, batch_size)
    places = starts[:, None] + np.arange(block_size)
    return torch.from_numpy(tokens[places].astype(np.int64))


def uniform_below(n, size):
    """Return (size,) uniform numbers from 0 to n - 1, of 63 bits.

    By the 32 bits of torch.randint some of 250 million are 6 % likelier than others."""
    return torch.empty(size, dtype=torch.long).random_().remainder_(n).numpy()


def documents(split, numbers, block_size):
    """Return (B, split.width(block_size)) documents as on disk, cut or padded."""
    starts, ends = split.spans(numbers)
    columns = starts[:, None] + np.arange(split.width(block_size))
    inside = columns < ends[:, None]
    tokens = split.packed[np.where(inside, columns, 0)].astype(np.int64)
    return torch.from_numpy(np.where(inside, tokens, PADDING))


def visits_of(blocks):
    """Return (B,), how many tokens of each block stand before its padding; None: it has none."""
    n_visits = (blocks != PADDING).sum(1)
    return n_visits if (n_visits < blocks.size(1)).any() else None


def all_blocks(split, block_size, n_blocks=0):
    """Return (tokens, given), (n, N) each: a Split cut into blocks, or its documents.

    The tail of a stream is dropped. With n_blocks so many are taken, spread evenly."""
    n = split.packed.size // block_size if split.lengths is None else len(split.lengths)
    keep = np.arange(n)
    if 0 < n_blocks < n:
        keep = np.arange(n_blocks) * n // n_blocks
    if split.lengths is not None:
        return split.unpack(documents(split, keep, block_size))
    blocks = split.packed.reshape(-1)[: n * block_size].reshape(n, block_size)
    return split.unpack(torch.from_numpy(blocks[keep].astype(np.int64)))


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
