"""How likely is what follows a text, and would greedy decoding write it? Of many texts at once, of
any lengths."""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from anyorder.generation.drawing import argmax
from anyorder.likelihood.nll import check_finite, logits_one_by_one
from model import float32_or_better


class Pass(NamedTuple):
    """A text that is read for the tokens of its last visits.

    text   T tokens, a list
    order  (T,) positions
    first  visit from which tokens are asked for"""

    text: list
    order: torch.Tensor
    first: int


class Found(NamedTuple):
    """What a pass finds of the n tokens that it is asked for.

    nll    (n,) their nats
    right  (n,) whether each is the likeliest"""

    nll: torch.Tensor
    right: torch.Tensor


def have_room(passes, batch_size, model):
    """Return whether so many Passes run at once, as do their logits."""
    n_asked = sum(len(one.order) - one.first for one in passes)
    return len(passes) <= batch_size and n_asked * model.config.vocab_size <= 2**27


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


@torch.no_grad()
def read(model, passes, drawn=False):
    """Run Passes, and return what each has Found.

    drawn  whether a pass draws the bound of a masked loss"""
    # Pad what is read
    lengths = torch.tensor([len(one.order) for one in passes])
    width = int(lengths.max())
    texts = [torch.tensor(one.text) for one in passes]
    idx = pad_sequence(texts, batch_first=True).to(model.device)  # (B, T)
    orders = [torch.cat([one.order, torch.arange(len(one.order), width)]) for one in passes]
    order = torch.stack(orders).to(model.device)

    # Run it for the visits that are asked for
    first = torch.tensor([one.first for one in passes])
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
    found = [x.split(n.tolist()) for x in (nll, right)]
    return list(map(Found, *found))


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
