"""How do tokens become batches? Random blocks, and all blocks of a whole set."""

import re
from typing import NamedTuple

import numpy as np
import torch

from anyorder.orders import given_first
from anyorder.tokens.sets import PADDING


def random_blocks(split, batch_size, block_size):
    """Return (B, N) int64 blocks as on disk, at uniform offsets, or whole rows or documents.

    They are drawn from torch's default generator."""
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
    n_given <= n_known <= n_visits."""

    idx: torch.Tensor  # (B, N) tokens in natural order
    order: torch.Tensor  # (B, N) positions
    n_known: torch.Tensor | None = None  # for a masked loss alone: visits that the network sees
    n_visits: torch.Tensor | None = None  # visits that are no padding; None: no block has padding
    n_given: torch.Tensor | None = None  # visits that cost nothing
    n_blanks: torch.Tensor | None = None  # visits that are learned or measured

    @classmethod
    def of(cls, blocks, order, given, left_to_right=False):
        """Make a batch of blocks (B, N), PADDING after them, in orders (B, N), see given_first."""
        n_visits = visits_of(blocks)
        order, n_given, n_blanks = given_first(order, given, n_visits, left_to_right)
        return cls(blocks, order, None, n_visits, n_given, n_blanks)

    def count_tokens(self):
        """Return how many tokens are no padding, an int or on the device of the counts."""
        if self.n_visits is None:
            return self.idx.numel()
        return self.n_visits.sum()

    def rows(self, at):
        """Return the rows of these numbers (n,) as a batch of their own, on the host."""
        parts = {name: part[at] for name, part in self._asdict().items() if part is not None}
        batch = Batch(**parts)
        if batch.n_visits is not None and (batch.n_visits == batch.idx.size(1)).all():
            return batch._replace(n_visits=None)  # no padding is left: a network needs no mask
        return batch

    def to(self, device):
        """Return the batch as a model on the device reads it; padding becomes token 0, unread.

        Counts stay where they are: on the host `predict` plans its passes without a wait, and
        draw_batch of training makes them on the device."""
        idx = self.idx.clamp(min=0).to(device)
        return self._replace(idx=idx, order=self.order.to(device))


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
