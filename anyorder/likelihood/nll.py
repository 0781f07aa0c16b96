"""How is likelihood measured? Nats of blocks under their orders, bounds over orders, some positions given others."""

import math

import torch
import torch.nn.functional as F

from anyorder.batch import Batch
from anyorder.fast import product_dtype
from anyorder.machine.devices import autocast, widest
from anyorder.seeds import stream
from anyorder.tokens.blocks import visits_of
from model import KVCache, float32_or_better


def batches(items, fit):
    """Lists of items that follow each other. A list grows while `fit(list)` holds, and has one item at least."""
    batch = []
    for item in items:
        if batch and not fit([*batch, item]):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


@torch.no_grad()
def block_nll(
    model, blocks, orders, batch_size, dtype='float32', n_known=None, n_given=None, counted=None
):
    """Nats of every block under its own order.

        nats[b] = sum_d -log p(x[order[b, d]] | x[order[b, :d]])

    blocks   (n, N) tokens in natural order, maybe with PADDING behind, which costs nothing
    orders   (n, N) positions, the ones of padding last
    n_known  (n,) numbers of known visits, for a masked loss, see Network.forward: if they are uniform, one pass is an
             unbiased draw. Without them such a network takes N passes, one for each visit.
    n_given  (n,) visits that are given and cost nothing; a masked loss wants n_known with them
    counted  (n, N) bool, the visits d that the sum counts; all by default
    returns  (n,) float64"""
    device, sums = model.device, []
    every = Batch(blocks, orders, n_known, visits_of(blocks), n_given)
    for rows in torch.arange(len(blocks)).split(batch_size):
        batch = every.rows(rows).to(device)
        with autocast(device, dtype):
            if model.slots.masked_loss and n_known is None:
                nll = one_by_one(model, batch.idx, batch.order, n_visits=batch.n_visits)
            else:
                nll = model(
                    batch.idx, batch.order, batch.n_known, n_visits=batch.n_visits
                )  # (B, N)
        if n_given is not None:
            nll = nll_of_blanks(nll, batch.n_given.to(device), n_known is not None, batch.n_visits)
        if counted is not None:
            nll = nll.masked_fill(~counted[rows].to(device), 0)
        sums.append(nll.sum(-1, dtype=widest(device)))
    return torch.cat(sums).cpu().double() if sums else torch.zeros(0, dtype=torch.float64)


def blank_nll(model, batch):
    """Return nats (B, N) by visit of a Batch, in which what is given and padding cost nothing, see nll_of_blanks."""
    nll = model(batch.idx, batch.order, batch.n_known, n_visits=batch.n_visits)
    return nll_of_blanks(nll, batch.n_given, batch.n_known is not None, batch.n_visits)


def nll_of_blanks(nll, n_given, masked_loss, n_visits=None):
    """nll (B, T) of Network.forward without the first n_given (B,) visits, which are given and cost nothing. A masked
    loss comes weighted by n / (n - n_known), where n is n_visits (B,), by default T; with given visits the weight is
    (n - n_given) / (n - n_known)."""
    n_given, T = n_given.unsqueeze(1), nll.size(1)
    if masked_loss:
        n = T if n_visits is None else n_visits.to(nll.device).unsqueeze(1)
        return nll * ((n - n_given).to(nll.dtype) / n)
    return nll.masked_fill(torch.arange(T, device=nll.device) < n_given, 0)


def check_finite(nats):
    """The nats, or ValueError if there is one that is infinite or no number."""
    if not nats.isfinite().all():
        raise ValueError(
            'the model gives likelihoods that are not finite: a text has a token that it never writes, as '
            'one that begins texts, or its weights are too large, as of a run that diverged'
        )
    return nats


def score_visits(model, idx, order, first, n, n_visits=None):
    """nll (B, n) of the visits first to first + n - 1, given all before each; `first` is an int or (B,) on the host,
    n_visits as of predict.

    A decoder takes a pass of these visits and those before, a network with a masked loss takes n passes."""
    first = torch.as_tensor(first).expand(len(order))
    if model.slots.masked_loss:
        return one_by_one(model, idx, order, first, n, n_visits)
    columns = first.unsqueeze(1) + torch.arange(n)  # (B, n)
    return model(idx, order[:, : int(first.max()) + n], columns=columns.to(order.device))


def one_by_one(model, idx, order, first=0, n=None, n_visits=None):
    """score_visits by a pass for each; by default of all visits from `first` on. Padding, from n_visits on, has 0."""
    first = torch.as_tensor(first).expand(len(order))
    n = order.size(1) - int(first.max()) if n is None else n
    visits, end = first.unsqueeze(1) + torch.arange(n), first + n  # (B, n) and (B,)
    end = end if n_visits is None else torch.minimum(end, n_visits)
    targets, nll = idx.gather(1, order).gather(1, visits.to(order.device)).T, []  # (n, B)
    for logits, target in zip(logits_one_by_one(model, idx, order, first, end, n_visits), targets):
        nll.append(F.cross_entropy(float32_or_better(logits), target, reduction='none'))
    nll += [torch.zeros_like(nll[0])] * (n - len(nll))  # the visits at which all rows are padding
    return torch.stack(nll, 1).masked_fill((visits >= end.unsqueeze(1)).to(order.device), 0)


def logits_one_by_one(model, idx, order, first, end, n_visits=None):
    """Yields logits (B, V) of the visits first + j of each row, j = 0, 1, ..., given all before, by a pass for each.

    first, end  (B,) on the host; a row whose visits are at their end repeats its last one
    n_visits    as of predict"""
    cache = (
        KVCache(model.config, len(idx), idx.device, product_dtype(model))
        if model.slots.cached
        else None
    )
    for j in range(int((end - first).max())):
        yield model.predict(idx, order, torch.minimum(first + j, end - 1), 1, cache, n_visits)[:, 0]


def is_drawn(slots, order):
    """True for a masked loss over random orders: a pass draws the bound. In others such a network takes one a visit."""
    return slots.masked_loss and order.law == 'random'


def draw_known(numbers, n_blanks, n_orders=1, seed=0, n_given=0):
    """Numbers of known visits of the passes of a masked loss, a function of the seed and of the block's number.

    The K numbers of a block are a stratified sample: one is uniform in each of K equal parts of the n_blanks numbers
    from n_given on.

    numbers  of blocks
    n_blanks, n_given  visits of a block that are blank and that are given, a number or (len(numbers), 1)
    returns  (len(numbers), K) int64, K = n_orders"""
    u = [
        torch.rand(n_orders, dtype=torch.float64, generator=stream(seed, int(b), 'known'))
        for b in numbers
    ]
    return n_given + ((torch.arange(n_orders) + torch.stack(u)) / n_orders * n_blanks).long()


def ensemble_nll(logprobs):
    """Nats of a mixture of M equally weighted members, over the last dimension: -log 1/M sum_j exp(logprobs[j])."""
    return math.log(logprobs.size(-1)) - logprobs.logsumexp(-1)


@torch.no_grad()
def conditional_logprob(model, idx, a, b, n_orders=0, generator=None):
    """log p(x_a | x_b) of two disjoint sets of positions. What is in neither is not read.

    Every order of b and then a gives another value. Without n_orders both are read left to right. Else K = n_orders are
    averaged:

        log 1/K sum_k p(x_a | x_b, sigma_k), sigma_k a shuffle of b and then a shuffle of a

    A decoder takes a pass for an order. A network with a masked loss takes one for each position of a, and knows of the
    positions in neither that they are blank.

    idx      (B, N) tokens in natural order
    a, b     (n,) and (m,) positions, lists or tensors; b may be empty
    returns  (B,) log p in nats, at most 0"""
    a, b = (torch.as_tensor(positions, dtype=torch.long).flatten() for positions in (a, b))
    both = torch.cat([b, a])
    if (
        n_orders < 0
        or not len(a)
        or len(both.unique()) < len(both)
        or both.min() < 0
        or both.max() >= idx.size(1)
    ):
        raise ValueError(
            f'a and b must be disjoint sets of positions below {idx.size(1)}, a not empty; '
            f'got {a.tolist()} and {b.tolist()}, n_orders={n_orders}'
        )
    orders = [torch.cat([b.sort().values, a.sort().values])]
    if n_orders:
        orders = [
            torch.cat([part[torch.randperm(len(part), generator=generator)] for part in (b, a)])
            for _ in range(n_orders)
        ]
    if model.slots.masked_loss:
        neither = torch.tensor(sorted({*range(idx.size(1))} - {*both.tolist()}), dtype=torch.long)
        orders = [torch.cat([order, neither]) for order in orders]
    nats = []
    for order in orders:
        order = order.to(idx.device).expand(len(idx), -1)  # (B, m + n), or (B, N)
        nats.append(
            score_visits(model, idx, order, len(b), len(a)).sum(-1, dtype=widest(idx.device))
        )
    return -ensemble_nll(-torch.stack(nats, -1))
