"""What is a batch? Blocks of tokens, the orders that visit them, and counts of these visits."""

from dataclasses import dataclass, replace

import torch

from anyorder.orders import given_first
from anyorder.tokens.blocks import visits_of


@dataclass(frozen=True)
class Batch:
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
        """Make a batch of blocks (B, N), PADDING after them, in orders (B, N).

        given          (B, N) bool, tokens that are moved to the front of the order
        left_to_right  whether what is given is read from left to right, in place of its order"""
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
        parts = {name: part[at] for name, part in vars(self).items() if part is not None}
        batch = Batch(**parts)
        if batch.n_visits is not None and (batch.n_visits == batch.idx.size(1)).all():
            return replace(batch, n_visits=None)  # no padding is left: a network needs no mask
        return batch

    def to(self, device):
        """Return the batch as a model on the device reads it; padding becomes token 0, unread.

        Counts stay where they are. `of` makes them on the host, where `predict` plans its passes
        without a wait for the device; draw_batch of training makes them on the device."""
        idx = self.idx.clamp(min=0).to(device)
        return replace(self, idx=idx, order=self.order.to(device))
