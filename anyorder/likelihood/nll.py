"""How is likelihood measured? Nats of blocks in orders, and of some positions given others."""

import math

import torch
import torch.nn.functional as F

from anyorder.fast import product_dtype
from anyorder.machine.devices import autocast, widest
from anyorder.seeds import stream
from anyorder.tokens.blocks import Batch, visits_of
from model import KVCache, float32_or_better


@torch.no_grad()
def block_nll(model, blocks, orders, batch_size, dtype='float32', n_known=None, n_given=None):
    """Return nats (n,) float64 of every block under its own order.

        nats[b] = sum_d -log p(x[order[b, d]] | x[order[b, :d]])

    blocks   (n, N) tokens in natural order, maybe PADDING at the end, which costs nothing
    orders   (n, N) positions, the ones of padding last
    n_known  (n,) of a masked loss: if they are uniform, one pass is an unbiased draw; without them
             it takes a pass for each visit
    n_given  (n,) visits that are given and cost nothing"""
    every = Batch(blocks, orders, n_known=n_known, n_visits=visits_of(blocks), n_given=n_given)
    sums = []
    for rows in torch.arange(len(blocks)).split(batch_size):
        batch = every.rows(rows).to(model.device)
        nll = visit_nll(model, batch, dtype)
        if n_given is not None:
            own_given = batch.n_given.to(model.device)
            nll = nll_of_blanks(nll, own_given, n_known is not None, batch.n_visits)
        sums.append(nll.sum(-1, dtype=widest(model.device)))
    if not sums:
        return torch.zeros(0, dtype=torch.float64)
    return torch.cat(sums).cpu().double()


def visit_nll(model, batch, dtype='float32'):
    """Return nats (B, N) of the visits of a Batch."""
    with autocast(model.device, dtype):
        if model.slots.masked_loss and batch.n_known is None:
            return one_by_one(model, batch.idx, batch.order, n_visits=batch.n_visits)
        return model(batch.idx, batch.order, batch.n_known, n_visits=batch.n_visits)


def blank_nll(model, batch):
    """Return nats (B, N) of the visits of a Batch, 0 for what is given and for padding."""
    nll = model(batch.idx, batch.order, batch.n_known, n_visits=batch.n_visits)
    return nll_of_blanks(nll, batch.n_given, batch.n_known is not None, batch.n_visits)


def nll_of_blanks(nll, n_given, masked_loss, n_visits=None):
    """Return nll (B, T) of Network.forward, 0 for its first n_given (B,) visits.

    A masked loss has 0 there already. Its bound is the sum over k = n_given to n - 1, n = n_visits,
    of the mean nats of the n - k blanks; one uniform k = n_known stands for n - n_given of them. So
    its weight n / (n - n_known) becomes (n - n_given) / (n - n_known)."""
    T = nll.size(1)
    n_given = n_given.unsqueeze(1)
    if not masked_loss:
        is_given = torch.arange(T, device=nll.device) < n_given
        return nll.masked_fill(is_given, 0)
    n = T
    if n_visits is not None:
        n = n_visits.to(nll.device).unsqueeze(1)
    return nll * ((n - n_given).to(nll.dtype) / n)


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
    in each of K equal parts of the n_blanks, (M, 1) or an int, counts from n_given on."""
    u = []
    for number in block_numbers:
        generator = stream(seed, int(number), 'known')
        u.append(torch.rand(n_orders, dtype=torch.float64, generator=generator))
    share = (torch.arange(n_orders) + torch.stack(u)) / n_orders
    return n_given + (share * n_blanks).long()


def ensemble_nll(logprobs):
    """Return -log 1/M sum_j exp(logprobs[..., j]), the nats of a mixture of M equal members."""
    return math.log(logprobs.size(-1)) - logprobs.logsumexp(-1)


@torch.no_grad()
def conditional_logprob(model, idx, a, b, n_orders=0, generator=None):
    """Return log p(x_a | x_b) (B,) of disjoint sets of positions. What is in neither is not read.

    Without n_orders b and then a are read left to right. Else K = n_orders are averaged:

        log 1/K sum_k p(x_a | x_b, sigma_k), sigma_k a shuffle of b and then a shuffle of a

    idx   (B, N) tokens in natural order
    a, b  (n,) and (m,) positions, lists or tensors; b may be empty"""
    B, N = idx.shape
    a = torch.as_tensor(a, dtype=torch.long).flatten()
    b = torch.as_tensor(b, dtype=torch.long).flatten()
    both = torch.cat([b, a])
    is_set = len(both.unique()) == len(both)
    if n_orders < 0 or not len(a) or not is_set or both.min() < 0 or both.max() >= N:
        raise ValueError(
            f'a and b must be disjoint sets of positions below {N}, a not empty; '
            f'got {a.tolist()} and {b.tolist()}, n_orders={n_orders}'
        )
    rest = []
    if model.slots.masked_loss:  # it has to know which positions are blank
        rest = sorted({*range(N)} - {*both.tolist()})
    rest = torch.tensor(rest, dtype=torch.long)

    logprobs = []
    for order in orders_of_parts(b, a, n_orders, generator):
        order = torch.cat([order, rest]).to(idx.device).expand(B, -1)  # (B, m + n), or (B, N)
        nll = score_visits(model, idx, order, len(b), len(a))
        logprobs.append(-nll.sum(-1, dtype=widest(idx.device)))
    return -ensemble_nll(torch.stack(logprobs, -1))


def orders_of_parts(b, a, n_orders, generator):
    """Return orders of b and then a, each shuffled n_orders times; 0: sorted once."""
    if not n_orders:
        return [torch.cat([b.sort().values, a.sort().values])]
    orders = []
    for _ in range(n_orders):
        shuffles = [part[torch.randperm(len(part), generator=generator)] for part in (b, a)]
        orders.append(torch.cat(shuffles))
    return orders
