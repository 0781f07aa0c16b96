"""How likely is what follows a text, and would greedy decoding write it? Of many texts at once, of any lengths."""

from dataclasses import dataclass
from itertools import pairwise

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
    """In which orders a continuation is read. Its context is visited first, both in the sequence of the order.

    order       an Order
    n_orders    K orders, where the family has several
    n_contexts  M > 1: left to right, each token under M orders of the context, the first its own, the others shuffles:
                sum_i -log 1/M sum_j p(x_i | perm_j(context), x_<i), the context-order ensemble
    estimate    for K orders: 'bound' is the mean of their nats, 'mixture' is -log 1/K sum_k p(x | sigma_k)
    seed        seed and tokens of a row fix its orders
    unmasking   an adaptive one: by its law the continuation is written, after the context from left to right"""

    order: Order
    n_orders: int = 1
    n_contexts: int = 1
    estimate: str = 'bound'
    seed: int = 1337
    unmasking: Unmasking | None = None

    def check(self, config):
        """Raises ValueError unless a network of this AOGPTConfig can be read so."""
        if self.n_orders < 1 or self.n_contexts < 1:
            raise ValueError(
                f'n_orders and n_contexts must be at least 1, got {self.n_orders} and {self.n_contexts}'
            )
        if self.estimate not in ('bound', 'mixture'):
            raise ValueError(f"estimate must be 'bound' or 'mixture', got {self.estimate!r}")
        if self.n_contexts > 1 and (self.order.kind != 'l2r' or config.slots.masked_loss):
            raise ValueError(
                'n_contexts above 1 wants a decoder (attention=causal) and order=l2r, left to right after '
                f'shuffled contexts, got attention={config.attention} and order={self.order.kind}'
            )
        if self.unmasking is not None and (self.n_orders, self.n_contexts, self.estimate) != (
            1,
            1,
            'bound',
        ):
            raise ValueError(
                f'order={self.unmasking.score} is one order, which the model chooses: n_orders, estimate '
                'and n_contexts are for orders that are given, as order=random'
            )
        if (self.n_orders, self.estimate) != (1, 'bound') and (
            self.n_contexts > 1 or self.order.law == 'one'
        ):
            raise ValueError(
                'n_orders and estimate are for orders that are drawn, as order=random, with n_contexts=1; '
                f'got order={self.order.kind}, n_contexts={self.n_contexts}'
            )
        self.order.check(config.block_size)

    @property
    def n_passes(self):
        """Orders that a row is read in."""
        return (
            self.n_contexts
            if self.n_contexts > 1
            else self.n_orders
            if self.order.law != 'one'
            else 1
        )

    def is_drawn(self, slots):
        """Whether a pass is one draw of the bound, in place of all tokens one by one."""
        return is_drawn(slots, self.order) and self.estimate == 'bound' and self.unmasking is None

    def orders(self, context, tokens):
        """(n_passes, T) orders of a row, its context first."""
        n, T = len(context), len(context) + len(tokens)
        if self.n_contexts > 1:
            own, rng = torch.arange(T), stream(self.seed, context, tokens)
            return torch.cat([own[None], shuffled_contexts(own, n, self.n_contexts - 1, rng)])
        orders = draw_orders(
            [derive_seed(context, tokens)], T, self.n_orders, self.seed, self.order
        )[0]
        return given_first(orders[: self.n_passes], (torch.arange(T) < n).expand(self.n_passes, T))[
            0
        ]

    def known(self, context, tokens):
        """(n_passes,) numbers of known visits of the draws of a masked loss, see is_drawn."""
        return draw_known(
            [derive_seed(context, tokens)], len(tokens), self.n_passes, self.seed, len(context)
        )[0]


LEFT_TO_RIGHT = Reading(Order('l2r'))


def pieces(context, continuation, block_size):
    """[(context, tokens)]: the continuation in consecutive pieces of block_size tokens. Each comes after all that is
    before it, cut from the left to what fits. A continuation that fits is one piece."""
    text, start = [*context, *continuation], len(context)
    cuts = [*range(start, len(text), block_size), len(text)]
    return [
        (text[max(0, end - block_size) : first], text[first:end]) for first, end in pairwise(cuts)
    ]


class Piece:
    """A piece of row `row` that is being scored: `tokens` after `context`, in the orders of a Reading."""

    def __init__(self, row, context, tokens, reading):
        self.row, self.context, self.tokens, self.reading = row, context, tokens, reading
        self.nll, self.greedy, self.mixture = [], None, None

    def passes(self, slots):
        """[(piece, order (T,), visit from which tokens are asked for, factor of their nats)] of all of its orders."""
        n, T = len(self.context), len(self.context) + len(self.tokens)
        orders, firsts = self.reading.orders(self.context, self.tokens), [n] * self.reading.n_passes
        if self.reading.is_drawn(slots):
            firsts = self.reading.known(self.context, self.tokens).tolist()
        return [(self, order, first, (T - n) / (T - first)) for order, first in zip(orders, firsts)]

    def add(self, nll, right, logits, tokens):
        """What a pass has found of `tokens` (n,): their nats, whether each is the likeliest, and the logits (n, V)."""
        self.nll.append(nll)
        if self.reading.n_contexts > 1:
            logp = float32_or_better(logits).log_softmax(-1)
            self.mixture = logp if self.mixture is None else self.mixture.logaddexp(logp)
            right = argmax(self.mixture) == tokens
        if self.reading.n_contexts > 1 or self.greedy is None:
            self.greedy = bool(right.all())

    def nats(self):
        if self.reading.n_contexts > 1:
            return float(ensemble_nll(-torch.stack(self.nll, 1)).sum())
        sums = torch.stack([nll.sum() for nll in self.nll])
        return float(ensemble_nll(-sums) if self.reading.estimate == 'mixture' else sums.mean())


@torch.no_grad()
def continuation_scores(model, rows, reading=LEFT_TO_RIGHT, batch_size=16, length=None):
    """Yields (r, nats, greedy) of all rows, the longest first: -log p(continuation | context), and whether greedy
    decoding writes it, in the first of the orders; of several contexts, whether their mixture does.

    A decoder takes a pass for an order. A network with a masked loss takes a pass for each token, or one for each draw
    of the bound over random orders; `greedy` then speaks of the tokens that the first draw asks for. With an Unmasking
    a row costs the passes by which it would be written, and `greedy` is what they write at temperature 0. A row that
    is longer than `length`, by default the model's, is scored in `pieces`.

    rows  [(context tokens, continuation tokens)], lists; either may be empty"""
    parts = [
        [Piece(r, *piece, reading) for piece in pieces(*row, length or model.config.block_size)]
        for r, row in enumerate(rows)
    ]
    yield from ((r, 0.0, True) for r, of_row in enumerate(parts) if not of_row)
    longest_first = sorted(
        (piece for of_row in parts for piece in of_row),
        key=lambda piece: -len(piece.context) - len(piece.tokens),
    )
    passes = (one for piece in longest_first for one in piece.passes(model.slots))

    def fit(batch):  # as do their logits
        n_asked = sum(len(order) - first for _, order, first, _ in batch)
        return len(batch) <= batch_size and n_asked * model.config.vocab_size <= 2**27

    for batch in batches(passes, fit):
        (read if reading.unmasking is None else read_as_written)(model, batch)
        for r in dict.fromkeys(piece.row for piece, *_ in batch):
            if all(len(piece.nll) == reading.n_passes for piece in parts[r]):
                yield (
                    r,
                    sum(piece.nats() for piece in parts[r]),
                    all(piece.greedy for piece in parts[r]),
                )
                parts[r] = []


def read(model, batch):
    """Run these passes, and add to each piece what its pass has found."""
    device = model.device
    parts, orders, firsts, factors = zip(*batch)
    lengths, first = torch.tensor([len(order) for order in orders]), torch.tensor(firsts)
    width, n = int(lengths.max()), lengths - first
    idx = pad_sequence(
        [torch.tensor(piece.context + piece.tokens) for piece in parts], batch_first=True
    ).to(device)
    order = torch.stack(
        [torch.cat([order, torch.arange(len(order), width)]) for order in orders]
    ).to(device)
    row, column = (torch.arange(int(n.max())) < n.unsqueeze(1)).nonzero().T.to(device)
    tokens = idx[row, order[row, column + first.to(device)[row]]]  # (m,)
    if not model.slots.masked_loss:  # all tokens known: plain causal attention
        logits = model.predict(
            idx, order, width - 1, int(n.max()), picked=(row, column), first=first
        )
    elif parts[0].reading.is_drawn(model.slots):
        logits = model.predict(
            idx, order, first, int(n.max()), n_visits=lengths, picked=(row, column)
        )
    else:
        steps = enumerate(logits_one_by_one(model, idx, order, first, lengths, lengths))
        logits = torch.cat(
            [x[(d < n).nonzero()[:, 0].to(device)] for d, x in steps]
        )  # (m, V), by column
        logits = logits[column.argsort(stable=True).argsort()]  # by row
    nll = check_finite(
        F.cross_entropy(float32_or_better(logits), tokens, reduction='none').cpu().double()
    )
    right, sizes = (argmax(logits) == tokens).cpu(), n.tolist()
    for piece, factor, *found in zip(
        parts, factors, *(x.split(sizes) for x in (nll, right, logits, tokens))
    ):
        piece.add(found[0] * factor, *found[1:])


def read_as_written(model, batch):
    """`read` for a Reading with an Unmasking. Writing at temperature 0 ends in a row with its first other token."""
    pieces, reading = [piece for piece, *_ in batch], batch[0][0].reading
    reading.unmasking.check_network(model.slots, model.config.block_size, scores=True)
    texts = [
        (piece.context + piece.tokens, [True] * len(piece.context) + [False] * len(piece.tokens))
        for piece in pieces
    ]
    seeds = [derive_seed(reading.seed, piece.context, piece.tokens) for piece in pieces]
    scored, greedy = (Canvas.of_texts(texts, reading.order, seeds, model.device) for _ in range(2))
    fill(model, scored, reading.unmasking, Drawing(scores=True))
    for _, _, part in steps(model, greedy, reading.unmasking, Drawing(temperature=0)):
        part.end((part.idx != scored.idx[part.rows]).any(1).cpu())
    right = (greedy.idx == scored.idx).all(1).cpu()
    for piece, nats, is_greedy in zip(
        pieces, check_finite(-scored.logprob.sum(1).cpu().double()), right
    ):
        piece.add(nats, is_greedy, None, None)


def last_words(tokens, tokenizer):
    """[(context tokens, last-word tokens)] of the documents of a stream, which end in end-of-text (LAMBADA's task). The
    blank before a word is part of the word. A document of one word is left out, and so is one whose tokens do not part
    before the last word."""
    rows = []
    for ids in split_documents(tokens, tokenizer.eos):
        context, blank, word = tokenizer.decode(ids).rpartition(' ')
        word_ids = tokenizer.encode(blank + word)
        n = len(word_ids)
        if context and word and ids[-n:] == word_ids:
            rows.append((ids[:-n], word_ids))
    return rows
