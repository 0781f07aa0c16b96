"""How likely is what follows a text, and would greedy decoding write it? Of many texts at once, of
any lengths."""

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from anyorder.generation import Canvas, Drawing, Unmasking
from anyorder.generation.drawing import argmax
from anyorder.generation.fill import fill, steps
from anyorder.likelihood.ensemble import shuffled_contexts
from anyorder.likelihood.nll import (
    batches,
    check_finite,
    draw_known,
    ensemble_nll,
    is_drawn,
    logits_one_by_one,
)
from anyorder.orders import Order, draw_orders, given_first
from anyorder.seeds import derive_seed, stream
from anyorder.tokens.tokenizers import split_documents
from model import float32_or_better


@dataclass(frozen=True)
class Reading:
    """In which orders a continuation is read. Its context is visited first, both in the sequence of
    the order.

    order       an Order
    n_orders    K orders, where the family has several
    n_contexts  M > 1: left to right, each token under M orders of the context, the first its own,
                the others shuffles: sum_i -log 1/M sum_j p(x_i | perm_j(context), x_<i), the
                context-order ensemble
    estimate    for K orders: 'bound' is the mean of their nats, 'mixture' is
                -log 1/K sum_k p(x | sigma_k)
    seed        seed and tokens of a row fix its orders
    unmasking   an adaptive one: by its law the continuation is written, after the context from left
                to right"""

    order: Order
    n_orders: int = 1
    n_contexts: int = 1
    estimate: str = 'bound'
    seed: int = 1337
    unmasking: Unmasking | None = None

    def __post_init__(self):
        if self.n_orders < 1 or self.n_contexts < 1:
            raise ValueError(
                f'n_orders and n_contexts must be at least 1, got {self.n_orders} and '
                f'{self.n_contexts}'
            )
        if self.estimate not in ('bound', 'mixture'):
            raise ValueError(f"estimate must be 'bound' or 'mixture', got {self.estimate!r}")

    @property
    def shuffles(self):
        """Whether contexts are shuffled."""
        return self.n_contexts > 1

    def check(self, config):
        """Raise ValueError unless a network of this AOGPTConfig can be read so."""
        kind = self.order.kind
        asks_for_orders = (self.n_orders, self.estimate) != (1, 'bound')
        if self.shuffles and (kind != 'l2r' or config.slots.masked_loss):
            raise ValueError(
                'n_contexts above 1 wants a decoder (attention=causal) and order=l2r, left to '
                f'right after shuffled contexts, got attention={config.attention} and order={kind}'
            )
        if self.unmasking is not None and (asks_for_orders or self.shuffles):
            raise ValueError(
                f'order={self.unmasking.score} is one order, which the model chooses: n_orders, '
                'estimate and n_contexts are for orders that are given, as order=random'
            )
        if asks_for_orders and (self.shuffles or self.order.law == 'one'):
            raise ValueError(
                'n_orders and estimate are for orders that are drawn, as order=random, with '
                f'n_contexts=1; got order={kind}, n_contexts={self.n_contexts}'
            )
        self.order.check(config.block_size)

    @property
    def n_passes(self):
        """Orders that a row is read in."""
        if self.shuffles:
            return self.n_contexts
        if self.order.law == 'one':
            return 1
        return self.n_orders

    def is_drawn(self, slots):
        """Return whether a pass is one draw of the bound, in place of all tokens one by one."""
        return is_drawn(slots, self.order) and self.estimate == 'bound' and self.unmasking is None

    def orders(self, context, tokens):
        """Return orders (n_passes, T) of a row, its context first."""
        n = len(context)
        T = n + len(tokens)
        if self.shuffles:
            own = torch.arange(T)
            generator = stream(self.seed, context, tokens)
            shuffled = shuffled_contexts(own, n, self.n_contexts - 1, generator)
            return torch.cat([own[None], shuffled])
        row = derive_seed(context, tokens)
        orders = draw_orders([row], T, self.n_orders, self.seed, self.order)[0, : self.n_passes]
        is_context = (torch.arange(T) < n).expand(self.n_passes, T)
        orders, _, _ = given_first(orders, is_context)
        return orders

    def known(self, context, tokens):
        """Return (n_passes,) numbers of known visits of draws of a masked loss, see is_drawn."""
        row = derive_seed(context, tokens)
        return draw_known([row], len(tokens), self.n_passes, self.seed, len(context))[0]


LEFT_TO_RIGHT = Reading(Order('l2r'))


@torch.no_grad()
def continuation_scores(model, rows, reading=LEFT_TO_RIGHT, batch_size=16, length=None):
    """Yield (r, nats, greedy) of all rows, the longest first.

    Nats are -log p(continuation | context); greedy is whether greedy decoding writes it, in the
    first of the orders; of several contexts, whether their mixture does.

    A decoder takes a pass for an order. A network with a masked loss takes a pass for each token,
    or one for each draw of the bound over random orders; `greedy` then speaks of the tokens that
    the first draw asks for. With an Unmasking a row costs the passes by which it would be written,
    and `greedy` is what they write at temperature 0.

    rows    [(context tokens, continuation tokens)], lists; either may be empty
    length  a longer row is scored in `pieces`; by default the model's"""
    length = length or model.config.block_size
    run = read if reading.unmasking is None else read_as_written

    # Rows without a continuation cost nothing
    parts = []
    for r, row in enumerate(rows):
        parts.append([Piece(r, *piece, reading) for piece in pieces(*row, length)])
    for r, of_row in enumerate(parts):
        if not of_row:
            yield r, 0.0, True

    def fit(batch):  # as do their logits
        n_asked = sum(one.n_asked for one in batch)
        return len(batch) <= batch_size and n_asked * model.config.vocab_size <= 2**27

    # A row is done with the last pass of its pieces
    for batch in batches(longest_first(parts, model.slots), fit):
        run(model, batch)
        for r in dict.fromkeys(one.piece.row for one in batch):
            if all(piece.is_done for piece in parts[r]):
                nats = sum(piece.nats() for piece in parts[r])
                yield r, nats, all(piece.greedy for piece in parts[r])
                parts[r] = []


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


def longest_first(parts, slots):
    """Yield the passes of all pieces, [[Piece, ...] of each row]."""
    for piece in sorted(chain(*parts), key=lambda piece: -len(piece.text)):
        yield from piece.passes(slots)


class Pass(NamedTuple):
    """One order of a Piece.

    order   (T,) positions
    first   visit from which tokens are asked for
    factor  of their nats"""

    piece: 'Piece'
    order: torch.Tensor
    first: int
    factor: float

    @property
    def n_asked(self):
        return len(self.order) - self.first


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
        self.mixture = None  # log-probabilities (n, V) of the contexts so far, not yet divided

    def passes(self, slots):
        """Return the Passes of all of its orders."""
        n = len(self.context)
        T = len(self.text)
        orders = self.reading.orders(self.context, self.tokens)
        firsts = [n for _ in orders]
        if self.reading.is_drawn(slots):
            firsts = self.reading.known(self.context, self.tokens).tolist()
        passes = []
        for order, first in zip(orders, firsts):
            passes.append(Pass(self, order, first, (T - n) / (T - first)))
        return passes

    def add(self, nll, right, logits, tokens):
        """Add what a pass has found of `tokens` (n,).

        nll     (n,) their nats
        right   (n,) whether each is the likeliest
        logits  (n, V), which contexts are mixed by"""
        self.nll.append(nll)
        if self.reading.shuffles:
            self.mix(logits)
            right = argmax(self.mixture) == tokens
        if self.reading.shuffles or self.greedy is None:
            self.greedy = bool(right.all())

    def mix(self, logits):
        """Add the probabilities of one more context."""
        logp = float32_or_better(logits).log_softmax(-1)
        if self.mixture is not None:
            logp = self.mixture.logaddexp(logp)
        self.mixture = logp

    @property
    def is_done(self):
        return len(self.nll) == self.reading.n_passes

    def nats(self):
        """Return the nats of its tokens by what its passes have found."""
        if self.reading.shuffles:
            return float(ensemble_nll(-torch.stack(self.nll, 1)).sum())
        sums = torch.stack([nll.sum() for nll in self.nll])
        if self.reading.estimate == 'mixture':
            return float(ensemble_nll(-sums))
        return float(sums.mean())


def read(model, batch):
    """Run Passes, and add to each Piece what its pass has found."""
    # Pad what is read
    lengths = torch.tensor([len(one.order) for one in batch])
    width = int(lengths.max())
    texts = [torch.tensor(one.piece.text) for one in batch]
    idx = pad_sequence(texts, batch_first=True).to(model.device)  # (B, T)
    orders = [torch.cat([one.order, torch.arange(len(one.order), width)]) for one in batch]
    order = torch.stack(orders).to(model.device)

    # Run it for the visits that are asked for
    first = torch.tensor([one.first for one in batch])
    n = lengths - first
    is_asked = torch.arange(int(n.max())) < n.unsqueeze(1)
    row, column = is_asked.nonzero().T.to(model.device)  # (m,)
    visit = column + first.to(model.device)[row]
    tokens = idx[row, order[row, visit]]
    drawn = batch[0].piece.reading.is_drawn(model.slots)
    logits = logits_of(model, idx, order, lengths, first, (row, column), drawn)  # (m, V)

    # Part it by pass
    nll = F.cross_entropy(float32_or_better(logits), tokens, reduction='none')
    nll = check_finite(nll.cpu().double())
    right = (argmax(logits) == tokens).cpu()
    found = [x.split(n.tolist()) for x in (nll, right, logits, tokens)]
    for one, nll, *others in zip(batch, *found):
        one.piece.add(nll * one.factor, *others)


def logits_of(model, idx, order, lengths, first, cells, drawn):
    """Return logits (m, V) of the visits first + column of the rows that `cells` name, by row.

    lengths, first  (B,) on the host: visits of a row, and the one from which tokens are asked for
    cells           row and column, (m,) each
    drawn           whether one pass draws the bound of a masked loss"""
    n = lengths - first
    most = int(n.max())
    if not model.slots.masked_loss:  # all tokens known: plain causal attention
        n_known = order.size(1) - 1
        return model.predict(idx, order, n_known, most, picked=cells, first=first)
    if drawn:
        return model.predict(idx, order, first, most, n_visits=lengths, picked=cells)
    by_column = []
    for column, logits in enumerate(logits_one_by_one(model, idx, order, first, lengths, lengths)):
        rows = (column < n).nonzero()[:, 0]
        by_column.append(logits[rows.to(model.device)])
    _, column = cells
    return torch.cat(by_column)[column.argsort(stable=True).argsort()]


def read_as_written(model, batch):
    """Run Passes of a Reading with an Unmasking, and add to each Piece what its pass has found."""
    pieces = [one.piece for one in batch]
    reading = pieces[0].reading
    unmasking = reading.unmasking
    unmasking.check_network(model.slots, model.config.block_size, scores=True)
    texts = []
    for piece in pieces:
        n = len(piece.context)
        known = [p < n for p in range(len(piece.text))]
        texts.append((piece.text, known))
    seeds = [derive_seed(reading.seed, piece.context, piece.tokens) for piece in pieces]

    scored = Canvas.of_texts(texts, reading.order, seeds, model.device)
    fill(model, scored, unmasking, Drawing(scores=True))
    nats = check_finite(-scored.logprob.sum(1).cpu().double())

    # Writing at temperature 0 ends in a row with its first other token
    greedy = Canvas.of_texts(texts, reading.order, seeds, model.device)
    for _, _, part in steps(model, greedy, unmasking, Drawing(temperature=0)):
        differs = (part.idx != scored.idx[part.rows]).any(1)
        part.stop_rows(differs.cpu())
    right = (greedy.idx == scored.idx).all(1).cpu()
    for piece, *found in zip(pieces, nats, right):
        piece.add(*found, None, None)


def last_words(tokens, tokenizer):
    """Return [(context tokens, last-word tokens)] of the documents of a stream (LAMBADA's task).

    Documents end in end-of-text. The blank before a word is part of the word. A document of one
    word is left out, and so is one whose tokens do not part before the last word."""
    rows = []
    for ids in split_documents(tokens, tokenizer.eos):
        context, blank, word = tokenizer.decode(ids).rpartition(' ')
        word_ids = tokenizer.encode(blank + word)
        n = len(word_ids)
        if context and word and ids[-n:] == word_ids:
            rows.append((ids[:-n], word_ids))
    return rows
