"""How is likelihood measured? Nats of blocks in orders."""

import math

import torch
import torch.nn.functional as F

from anyorder.fast import product_dtype
from anyorder.machine.devices import autocast, widest
from anyorder.seeds import numbered_keys, uniform
from anyorder.tokens.blocks import Batch, visits_of
from model import KVCache, Parts, float32_or_better


@torch.no_grad()
def block_nll(model, blocks, orders, batch_size, dtype='float32', n_known=None, n_given=None):
    """Return nats (n,) float64 of every block under its own order.

        nats[b] = sum_d -log p(x[order[b, d]] | x[order[b, :d]])

    blocks   (n, N) tokens in natural order, maybe PADDING at the end, which costs nothing
    orders   (n, N) positions, the ones of padding last
    n_known  (n,) of a masked loss: if they are uniform, one pass is an unbiased draw; without them
             it takes a pass for each visit
    n_given  (n,) visits that are given and cost nothing"""
    n_visits = visits_of(blocks)
    if n_visits is not None:  # no pass is longer than the longest of these
        width = int(n_visits.max())
        blocks = blocks[:, :width]
        orders = orders[:, :width].clamp(max=width - 1)  # of padding, unread
    every = Batch(blocks, orders, n_known=n_known, n_visits=n_visits, n_given=n_given)
    return batch_nll(model, every, batch_size, dtype)


@torch.no_grad()
def batch_nll(model, every, batch_size, dtype='float32'):
    """Return nats (n,) float64 of the rows of a Batch, batch_size at a time, as block_nll."""
    sums = []
    for rows in torch.arange(len(every.idx)).split(batch_size):
        batch = every.rows(rows).to(model.device)
        nll = visit_nll(model, batch, dtype)
        if batch.n_given is not None:
            nll = nll_of_blanks(nll, batch.n_given, batch.n_known is not None, *batch.texts)
        sums.append(nll.sum(-1, dtype=widest(model.device)))
    if not sums:
        return torch.zeros(0, dtype=torch.float64)
    return torch.cat(sums).cpu().double()


def visit_nll(model, batch, dtype='float32'):
    """Return nats (B, N) of the visits of a Batch."""
    with autocast(model.device, dtype):
        if model.slots.masked_loss and batch.n_known is None:
            return one_by_one(model, batch.idx, batch.order, n_visits=batch.n_visits)
        return nll_of(model, batch)


def nll_of(model, batch):
    """Return nats (B, T) of Network.forward of a Batch."""
    n_visits, begins = batch.texts
    return model(batch.idx, batch.order, batch.n_known, n_visits=n_visits, begins=begins)


def blank_nll(model, batch):
    """Return nats (B, N) of the visits of a Batch, 0 for what is given and for padding."""
    nll = nll_of(model, batch)
    return nll_of_blanks(nll, batch.n_given, batch.n_known is not None, *batch.texts)


def nll_of_blanks(nll, n_given, masked_loss, n_visits=None, begins=None):
    """Return nll (B, T) of Network.forward, 0 for the n_given first visits of each text.

    A masked loss has 0 there already. Its bound is the sum over k = n_given to n - 1, n = n_visits,
    of the mean nats of the n - k blanks; one uniform k = n_known stands for n - n_given of them. So
    its weight n / (n - n_known) becomes (n - n_given) / (n - n_known)."""
    parts = Parts.of(nll, n_visits, begins)
    first = parts.after(n_given.to(nll.device))  # that is no longer given
    if not masked_loss:
        is_given = torch.arange(nll.size(1), device=nll.device) < first
        return nll.masked_fill(is_given, 0)
    return nll * ((parts.end - first).to(nll.dtype) / (parts.end - parts.begin))


def check_finite(nats):
    """Return the nats. Raises ValueError unless all are finite."""
    if not nats.isfinite().all():
        raise ValueError(
            'the model gives likelihoods that are not finite: a text has a token that it never '
            'writes, as one that begins texts, or its weights are too large, as of a run that '
            'diverged'
        )
    return nats


def score_visits(model, idx, order, first, n, n_visits=None):
    """Return nll (B, n) of the visits first to first + n - 1, given all before each.

    A decoder takes one pass, a masked loss n. `first`, or an int, and n_visits, from which on
    padding has 0, are (B,) on the host."""
    first = torch.as_tensor(first).expand(len(order))
    if model.slots.masked_loss:
        return one_by_one(model, idx, order, first, n, n_visits)
    columns = first.unsqueeze(1) + torch.arange(n)  # (B, n)
    end = int(first.max()) + n
    return model(idx, order[:, :end], columns=columns.to(order.device), n_visits=n_visits)


def one_by_one(model, idx, order, first=0, n=None, n_visits=None):
    """Return nll (B, n) of score_visits by a pass for each visit."""
    first = torch.as_tensor(first).expand(len(order))
    if n is None:
        n = order.size(1) - int(first.max())
    visits = first.unsqueeze(1) + torch.arange(n)  # (B, n)
    end = first + n  # (B,)
    if n_visits is not None:
        end = torch.minimum(end, n_visits)
    targets = idx.gather(1, order).gather(1, visits.to(order.device))  # (B, n)

    nll = []
    passes = logits_one_by_one(model, idx, order, first, end, n_visits)
    for logits, target in zip(passes, targets.T):
        nll.append(F.cross_entropy(float32_or_better(logits), target, reduction='none'))
    while len(nll) < n:  # visits at which all rows are padding
        nll.append(torch.zeros_like(nll[0]))

    is_padding = visits >= end.unsqueeze(1)
    return torch.stack(nll, 1).masked_fill(is_padding.to(order.device), 0)


def logits_one_by_one(model, idx, order, first, end, n_visits=None):
    """Yield logits (B, V) of the visits first + j of each row, j = 0, 1, ..., below end (B,)."""
    cache = None
    if model.slots.cached:
        cache = KVCache(model.config, len(idx), idx.device, product_dtype(model))
    for j in range(int((end - first).max())):
        n_known = torch.minimum(first + j, end - 1)
        logits = model.predict(idx, order, n_known, 1, cache, n_visits)  # (B, 1, V)
        yield logits[:, 0]


def is_drawn(slots, order):
    """Whether a pass at a random number of known visits draws the bound."""
    return slots.masked_loss and order.law == 'random'


def draw_known(block_numbers, n_blanks, n_orders=1, seed=0, n_given=0):
    """Return how many visits are known, (M, K), in each of the K = n_orders passes of M blocks.

    The K counts of a block, a function of seed and number, are a stratified sample: one is uniform
    in each of K equal parts of the n_blanks, (M, 1) or an int, counts from n_given on. Counts
    (M, P, 1) of P texts in a block give (M, P, K)."""
    n_blanks = torch.as_tensor(n_blanks)
    keys = numbered_keys(seed, block_numbers).unsqueeze(1)
    shape = (len(keys), *n_blanks.shape[1:-1], n_orders)
    u = uniform(keys, 'known', torch.arange(math.prod(shape[1:]))).view(shape)
    share = (torch.arange(n_orders) + u) / n_orders
    return n_given + (share * n_blanks).long()
