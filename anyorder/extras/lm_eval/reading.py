"""In which orders is a continuation read? From left to right, or in several orders."""

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch

from anyorder.extras.lm_eval.continuations import have_room, pieces, read
from anyorder.likelihood.ensemble import batches
from anyorder.likelihood.nll import draw_known, is_drawn
from anyorder.orders import Order, draw_orders, given_first
from anyorder.seeds import derive_seed


@dataclass(frozen=True)
class Reading:
    """In which orders a continuation is read. Its context is visited first, both in the sequence of
    the order.

    order     an Order
    n_orders  K orders, where the family has several; the nats are the mean of theirs, a bound
    seed      seed and tokens of a row fix its orders

    A decoder takes a pass for an order. A network with a masked loss takes a pass for each token,
    or one for each draw of the bound over random orders; whether it is greedy then speaks of the
    tokens that the first draw asks for. Of several orders greedy is the first."""

    order: Order
    n_orders: int = 1
    seed: int = 1337

    def check(self, config):
        """Raise ValueError unless a network of this AOGPTConfig can be read so."""
        if self.n_orders > 1 and self.order.law == 'one':
            raise ValueError(
                'n_orders is for orders that are drawn, as order=random, got '
                f'order={self.order.kind}'
            )
        self.order.check(config.block_size)

    @property
    def n_passes(self):
        """Orders that a row is read in."""
        if self.order.law == 'one':
            return 1
        return self.n_orders

    def orders(self, context, tokens):
        """Return orders (n_passes, T) of a row, its context first."""
        n = len(context)
        T = n + len(tokens)
        row = derive_seed(context, tokens)
        orders = draw_orders([row], T, self.n_orders, self.seed, self.order)[0, : self.n_passes]
        is_context = (torch.arange(T) < n).expand(self.n_passes, T)
        orders, _, _ = given_first(orders, is_context)
        return orders

    def known(self, context, tokens):
        """Return (n_passes,) numbers of known visits of draws of a masked loss."""
        row = derive_seed(context, tokens)
        return draw_known([row], len(tokens), self.n_passes, self.seed, len(context))[0]


LEFT_TO_RIGHT = Reading(Order('l2r'))


@torch.no_grad()
def continuation_scores(model, rows, reading=LEFT_TO_RIGHT, batch_size=16, length=None):
    """Yield (r, nats, greedy) of all rows, the longest first.

    Nats are -log p(continuation | context); greedy is whether greedy decoding writes it.

    rows    [(context tokens, continuation tokens)], lists; either may be empty
    length  a longer row is scored in `pieces`; by default the model's"""
    length = length or model.config.block_size

    parts = []
    for r, row in enumerate(rows):
        parts.append([Piece(r, *piece, reading) for piece in pieces(*row, length)])
        if not parts[r]:  # a row without a continuation costs nothing
            yield r, 0.0, True

    def fit(batch):
        return have_room(batch, batch_size, model)

    # A row is done with the last pass of its pieces
    for batch in batches(longest_first(parts, model.slots), fit):
        read_given(model, batch)
        for r in dict.fromkeys(one.piece.row for one in batch):
            if all(piece.is_done for piece in parts[r]):
                nats = sum(piece.nats() for piece in parts[r])
                yield r, nats, all(piece.greedy for piece in parts[r])
                parts[r] = []


def longest_first(parts, slots):
    """Yield the passes of all pieces, [[Piece, ...] of each row]."""
    for piece in sorted(chain(*parts), key=lambda piece: -len(piece.text)):
        yield from piece.passes(slots)


class PieceInOrder(NamedTuple):
    """A Pass of a Piece, in one of its orders."""

    piece: 'Piece'
    text: list
    order: torch.Tensor
    first: int


class Piece:
    """A piece of a row that is being scored: tokens after a context, in the orders of a Reading."""

    def __init__(self, row, context, tokens, reading):
        self.row = row
        self.context = context
        self.tokens = tokens
        self.text = context + tokens
        self.reading = reading
        self.nll = []  # (n,) of each pass
        self.greedy = None

    def passes(self, slots):
        """Return a PieceInOrder of each of its orders."""
        orders = self.reading.orders(self.context, self.tokens)
        firsts = [len(self.context) for _ in orders]
        if is_drawn(slots, self.reading.order):
            firsts = self.reading.known(self.context, self.tokens).tolist()
        passes = []
        for order, first in zip(orders, firsts):
            passes.append(PieceInOrder(self, self.text, order, first))
        return passes

    def add(self, nll, right):
        """Add the nats (n,) of a pass, and whether each token is the likeliest."""
        self.nll.append(nll)
        if self.greedy is None:
            self.greedy = bool(right.all())

    @property
    def is_done(self):
        return len(self.nll) == self.reading.n_passes

    def nats(self):
        """Return the nats of its tokens, the mean of its passes."""
        return float(torch.stack([nll.sum() for nll in self.nll]).mean())


def read_given(model, batch):
    """Run PieceInOrders whose orders are given, and add to each Piece what was found."""
    reading = batch[0].piece.reading
    for one, found in zip(batch, read(model, batch, is_drawn(model.slots, reading.order))):
        piece = one.piece
        # a draw that asks for a part of the tokens stands for all of them
        T = len(piece.text)
        share = (T - len(piece.context)) / (T - one.first)
        piece.add(found.nll * share, found.right)
