"""How likely is what follows a text, and would greedy decoding write it? Of many texts at once, of
any lengths, from left to right or in several orders."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F

from anyorder.generation.drawing import argmax
from anyorder.likelihood.nll import check_finite, draw_known, is_drawn, read
from anyorder.orders import Order, draw_orders, given_first
from anyorder.seeds import derive_seed
from model import float32_or_better


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

    def orders(self, context, tokens):
        """Return orders (K, T) of a row, its context first."""
        K = 1 if self.order.law == 'one' else self.n_orders
        T = len(context) + len(tokens)
        row = derive_seed(context, tokens)
        orders = draw_orders([row], T, K, self.seed, self.order)[0]
        is_context = (torch.arange(T) < len(context)).expand(K, T)
        orders, _, _ = given_first(orders, is_context)
        return orders

    def known(self, context, tokens):
        """Return (K,) numbers of known visits of draws of a masked loss."""
        row = derive_seed(context, tokens)
        return draw_known([row], len(tokens), self.n_orders, self.seed, len(context))[0]


LEFT_TO_RIGHT = Reading(Order('l2r'))


class Pass(NamedTuple):
    """A piece of a row, which is read in one order for the tokens of its last visits.

    row     its number
    text    T tokens, a list
    order   (T,) positions
    first   visit from which tokens are asked for
    weight  of their nats: a draw that asks for a part of the tokens stands for all of them, and
            several orders are averaged
    decides whether it says if greedy decoding writes them"""

    row: int
    text: list
    order: torch.Tensor
    first: int
    weight: float
    decides: bool


def continuation_scores(model, rows, reading=LEFT_TO_RIGHT, batch_size=16, length=None):
    """Yield (r, nats, greedy) of all rows, the longest first.

    Nats are -log p(continuation | context); greedy is whether greedy decoding writes it.

    rows    [(context tokens, continuation tokens)], lists; either may be empty
    length  a longer row is scored in `pieces`; by default the model's"""
    length = length or model.config.block_size
    drawn = is_drawn(model.slots, reading.order)
    passes = []
    for r, row in enumerate(rows):
        for piece in pieces(*row, length):
            passes += passes_of(r, *piece, reading, drawn)
    passes.sort(key=lambda one: -len(one.text))
    n_left = Counter(one.row for one in passes)
    nats = defaultdict(float)
    greedy = defaultdict(lambda: True)
    for r in range(len(rows)):
        if not n_left[r]:  # a row without a continuation costs nothing
            yield r, 0.0, True

    def score(x, tokens):
        logits = model.lm_head(x)
        nll = F.cross_entropy(float32_or_better(logits), tokens, reduction='none')
        return torch.stack([nll, (argmax(logits) == tokens).to(nll.dtype)], 1)

    # A row is done with its last pass
    asked = ((one.text, one.order, range(one.first, len(one.text))) for one in passes)
    found = read(model, asked, batch_size * length, score, at_once=drawn)
    for one, scores in zip(passes, found):
        nll, right = check_finite(scores.cpu().double()).T
        nats[one.row] += float(nll.sum()) * one.weight
        greedy[one.row] &= bool(right.all()) or not one.decides
        n_left[one.row] -= 1
        if not n_left[one.row]:
            yield one.row, nats[one.row], greedy[one.row]


def pieces(context, continuation, block_size):
    """Return [(context, tokens)]: the continuation in consecutive pieces of block_size tokens.

    Each comes after all that is before it, cut from the left to what fits. A continuation that fits
    is one piece."""
    text = [*context, *continuation]
    cuts = [*range(len(context), len(text), block_size), len(text)]
    found = []
    for first, end in pairwise(cuts):
        start = max(0, end - block_size)
        found.append((text[start:first], text[first:end]))
    return found


def passes_of(r, context, tokens, reading, drawn):
    """Return the Passes of a piece of row r.

    drawn  whether each draws the bound of a masked loss"""
    orders = reading.orders(context, tokens)
    n = len(context)
    firsts = reading.known(context, tokens).tolist() if drawn else [n for _ in orders]
    text = context + tokens
    passes = []
    for order, first in zip(orders, firsts):
        weight = len(tokens) / (len(text) - first) / len(orders)
        passes.append(Pass(r, text, order, first, weight, not passes))
    return passes
