"""How likely is what follows a text, left to right, and would greedy decoding write it? Of many
texts at once, of any lengths."""

from itertools import chain, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from anyorder.generation.drawing import argmax
from anyorder.likelihood.nll import batches, check_finite, logits_one_by_one
from anyorder.tokens.tokenizers import split_documents
from model import float32_or_better


class LeftToRight:
    """How a continuation is read: behind its context, both from left to right.

    Other ways are subclasses, as Reading in anyorder/extras/lm_eval/reading.py."""

    def piece(self, row, context, tokens):
        """Return the Piece of these tokens of a row."""
        return Piece(row, context, tokens)

    def run(self, model, batch):
        """Run Passes, and add to each Piece what its pass has found."""
        read(model, batch)


LEFT_TO_RIGHT = LeftToRight()


@torch.no_grad()
def continuation_scores(model, rows, reading=LEFT_TO_RIGHT, batch_size=16, length=None):
    """Yield (r, nats, greedy) of all rows, the longest first.

    Nats are -log p(continuation | context); greedy is whether greedy decoding writes it. A decoder
    takes a pass for a row, a network with a masked loss a pass for each token.

    rows    [(context tokens, continuation tokens)], lists; either may be empty
    length  a longer row is scored in `pieces`; by default the model's"""
    length = length or model.config.block_size

    parts = []
    for r, row in enumerate(rows):
        parts.append([reading.piece(r, *piece) for piece in pieces(*row, length)])
        if not parts[r]:  # a row without a continuation costs nothing
            yield r, 0.0, True

    def fit(batch):  # as do their logits
        n_asked = sum(one.n_asked for one in batch)
        return len(batch) <= batch_size and n_asked * model.config.vocab_size <= 2**27

    # A row is done with the last pass of its pieces
    for batch in batches(longest_first(parts, model.slots), fit):
        reading.run(model, batch)
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

    order  (T,) positions
    first  visit from which tokens are asked for"""

    piece: 'Piece'
    order: torch.Tensor
    first: int

    @property
    def n_asked(self):
        return len(self.order) - self.first


class Piece:
    """A piece of a row that is being scored: tokens after a context, in one order or several."""

    n_passes = 1  # orders that it is read in

    def __init__(self, row, context, tokens):
        self.row = row
        self.context = context
        self.tokens = tokens
        self.text = context + tokens
        self.nll = []  # (n,) of each pass
        self.greedy = None

    def passes(self, slots):
        """Return the Passes of all of its orders."""
        return [Pass(self, torch.arange(len(self.text)), len(self.context))]

    def add(self, one, nll, right, logits, tokens):
        """Add what the Pass `one` has found of `tokens` (n,).

        nll     (n,) their nats
        right   (n,) whether each is the likeliest
        logits  (n, V)"""
        self.nll.append(nll)
        if self.greedy is None:
            self.greedy = bool(right.all())

    @property
    def is_done(self):
        return len(self.nll) == self.n_passes

    def nats(self):
        """Return the nats of its tokens by what its passes have found."""
        (nll,) = self.nll
        return float(nll.sum())


def read(model, batch, drawn=False):
    """Run Passes, and add to each Piece what its pass has found.

    drawn  whether a pass draws the bound of a masked loss"""
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
    logits = logits_of(model, idx, order, lengths, first, (row, column), drawn)  # (m, V)

    # Part it by pass
    nll = F.cross_entropy(float32_or_better(logits), tokens, reduction='none')
    nll = check_finite(nll.cpu().double())
    right = (argmax(logits) == tokens).cpu()
    found = [x.split(n.tolist()) for x in (nll, right, logits, tokens)]
    for one, nll, *others in zip(batch, *found):
        one.piece.add(one, nll, *others)


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
