"""How likely is what follows a text, and would greedy decoding write it? Of many texts at once, of
any lengths, from left to right or in several orders."""

from itertools import chain, product

import torch
import torch.nn.functional as F

from anyorder.generation.drawing import argmax
from anyorder.likelihood.nll import check_finite, is_drawn, measured_batch, read
from anyorder.orders import Order
from anyorder.seeds import derive_seed
from model import float32_or_better

LEFT_TO_RIGHT = Order('l2r')


def in_orders(model, context, tokens, order, n_orders, seed):
    """Yield a row of `read` for each of the orders: text, order and asked visits.

    The context is visited first, both in the sequence of the Order. Where the bound of a masked
    loss is drawn, a row asks for a part of the tokens."""
    text = torch.tensor([context + tokens])
    given = torch.arange(text.size(1)).unsqueeze(0) < len(context)
    rows = [derive_seed(context, tokens)], text, given
    batch = measured_batch(model, rows, order, n_orders, seed)
    firsts = batch.n_given if batch.n_known is None else batch.n_known
    for visits, first in zip(batch.order, firsts.tolist()):
        yield text[0], visits, range(first, len(visits))


def continuation_scores(
    model, rows, batch_size=16, length=None, order=LEFT_TO_RIGHT, n_orders=1, seed=1337
):
    """Yield (r, nats, greedy) of all rows, the longest first.

    Nats are -log p(continuation | context); greedy is whether greedy decoding writes it.

    rows      [(context tokens, continuation tokens)], lists; either may be empty
    length    a longer row is scored in `pieces`; by default the model's
    order     in which a continuation is read behind its context, an Order
    n_orders  more than one where the family has several; the nats are the mean of theirs, a bound
    seed      seed and tokens of a row fix its orders

    A decoder takes a pass for an order. A network with a masked loss takes a pass for each token,
    or one for each draw of the bound over random orders; whether it is greedy then speaks of the
    tokens that the first draw asks for. Of several orders greedy is the first."""
    length = length or model.config.block_size

    def score(x, tokens):
        logits = model.lm_head(x)
        nll = F.cross_entropy(float32_or_better(logits), tokens, reduction='none')
        return torch.stack([nll, (argmax(logits) == tokens).to(nll.dtype)], 1)

    longest_first = sorted(range(len(rows)), key=lambda r: -sum(map(len, rows[r])))
    texts = [[*pieces(*rows[r], length)] for r in longest_first]
    how = order, n_orders, seed
    asked = (row for piece in chain(*texts) for row in in_orders(model, *piece, *how))
    drawn = is_drawn(model.config, order)
    found = read(model, asked, batch_size * length, score, at_once=drawn)
    for r, text in zip(longest_first, texts):
        nats = 0.0
        greedy = True
        for (_, tokens), number in product(text, range(n_orders)):
            nll, right = check_finite(next(found).cpu().double()).T
            # what is asked for stands for all tokens, and orders are averaged
            nats += float(nll.sum()) * (len(tokens) / len(nll) / n_orders)
            greedy &= bool(right.all()) or number > 0
        yield r, nats, greedy


def pieces(context, continuation, block_size):
    """Yield (context, tokens): the continuation in consecutive pieces of block_size tokens.

    Each comes after all that is before it, cut from the left to what fits. A continuation that fits
    is one piece."""
    text = [*context, *continuation]
    for first in range(len(context), len(text), block_size):
        start = max(0, min(first, len(text) - block_size))
        yield text[start:first], text[first : first + block_size]
