"""How is likelihood measured? Nats of blocks in orders."""

import math

import torch
from torch.nn.utils.rnn import pad_sequence

from anyorder.fast import product_dtype
from anyorder.machine.devices import autocast, widest
from anyorder.seeds import numbered_keys, uniform
from anyorder.tokens.blocks import Batch, visits_of
from model import KVCache, Parts


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
    if n_given is None:
        n_given = torch.zeros(len(blocks), dtype=torch.long)
    every = Batch(blocks, orders, n_known=n_known, n_visits=n_visits, n_given=n_given)
    return batch_nll(model, every, batch_size, dtype)


@torch.no_grad()
def batch_nll(model, every, batch_size, dtype='float32'):
    """Return nats (n,) float64 of the rows of a Batch, batch_size at a time, as block_nll."""
    sums = []
    for rows in torch.arange(len(every.idx)).split(batch_size):
        part = every.rows(rows)
        batch = part.to(model.device)
        with autocast(model.device, dtype):
            if model.slots.masked_loss and part.n_known is None:
                nll = read(model, batch.idx, batch.order, part.is_blank, part.n_visits)
            else:
                nll = blank_nll(model, batch)
        sums.append(nll.sum(-1, dtype=widest(model.device)))
    return torch.cat(sums).cpu().double()


def blank_nll(model, batch):
    """Return nats (B, N) of the visits of a Batch, 0 for what is given and for padding: the loss.

    A masked loss has 0 for what is known already. Its bound is the sum over k = n_given to n - 1,
    n = n_visits, of the mean nats of the n - k blanks; one uniform k = n_known stands for
    n - n_given of them. So its weight n / (n - n_known) becomes (n - n_given) / (n - n_known)."""
    n_visits, begins = batch.texts
    nll = model(batch.idx, batch.order, batch.n_known, n_visits=n_visits, begins=begins)
    parts = Parts.of(nll, n_visits, begins)
    first = parts.after(batch.n_given.to(nll.device))  # that is no longer given
    if batch.n_known is None:
        is_given = torch.arange(nll.size(1), device=nll.device) < first
        return nll.masked_fill(is_given, 0)
    return nll * ((parts.end - first).to(nll.dtype) / (parts.end - parts.begin))


@torch.no_grad()
def read(model, idx, order, asked, n_visits=None):
    """Return nats (B, T) of the visits that are `asked`, each given all before it; 0 for others.

    A decoder takes one pass, a masked loss one for each visit of a row.

    idx       (B, N) tokens in natural order, on the model's device
    order     (B, T) positions, on the device
    asked     (B, T) bool, on the host
    n_visits  (B,), on the host: visits from there on are padding; None: there is none"""
    if asked.all() and not model.slots.masked_loss:
        return model(idx, order)
    nll = answers(model, idx, order, asked, model.lm_head.nll, n_visits)
    zeros = nll.new_zeros(order.shape)
    return zeros.masked_scatter(asked.to(nll.device), nll)


def read_ends(model, idx, orders, firsts, head, at_once=False):
    """Return `answers` of the last visits of rows of any lengths, from `firsts` [B] on.

    idx     (B, N) tokens, on the model's device
    orders  [B] of positions (T,)"""
    order = padded(orders).to(model.device)
    lengths = torch.tensor([*map(len, orders)])
    visits = torch.arange(order.size(1))
    asked = (visits >= torch.tensor(firsts).unsqueeze(1)) & (visits < lengths.unsqueeze(1))
    return answers(model, idx, order, asked, head, lengths, at_once)


@torch.no_grad()
def answers(model, idx, order, asked, head, n_visits=None, at_once=False):
    """Return head(hidden states, tokens), (m, ...), of the m visits that `read` is asked for.

    at_once  whether those of a row are read in one pass, each given what is before the first"""
    row, visit = asked.nonzero(as_tuple=True)  # (m,), on the host, row by row
    rows = row.to(idx.device)
    tokens = idx[rows, order[rows, visit.to(idx.device)]]

    def ask(n_known, first, n_targets, cells, cache=None):
        """Ask for some of the m visits, among the n_targets of each row from `first` on."""
        rows = row[cells]
        picked = rows.to(idx.device), (visit[cells] - first[rows]).to(idx.device)

        def of_tokens(x):
            return head(x[picked], tokens=tokens[cells])

        how = {'n_visits': n_visits, 'first': first, 'head': of_tokens}
        return model.predict(idx, order, n_known, n_targets, cache, **how)

    if at_once or not model.slots.masked_loss:
        first = asked.int().argmax(1)
        end = asked.size(1) - asked.flip(1).int().argmax(1)
        if at_once:
            return ask(first, first, end - first, slice(None))
        n_visits = None  # no visit sees a later one
        return ask(order.size(1) - 1, first, end - first, slice(None))

    cache = None
    if model.slots.cached:
        cache = KVCache(model.config, len(idx), idx.device, product_dtype(model))
    number = asked.cumsum(1)[asked] - 1  # (m,) of a visit among those of its row
    visits = asked.int().argsort(dim=1, descending=True, stable=True)
    found = []
    for j in range(max(1, int(asked.sum(1).max()))):
        # the j-th visit of each row; of a row that has fewer, its last
        at = visits.gather(1, (asked.sum(1, keepdim=True) - 1).clamp(0, j))[:, 0]
        found.append(ask(at, at, 1, number == j, cache))
    by_row = number.argsort(stable=True).argsort()
    return torch.cat(found)[by_row.to(idx.device)]


def check_finite(nats):
    """Return the nats. Raises ValueError unless all are finite."""
    if not nats.isfinite().all():
        raise ValueError(
            'the model gives likelihoods that are not finite: a text has a token that it never '
            'writes, as one that begins texts, or its weights are too large, as of a run that '
            'diverged'
        )
    return nats


def padded(rows):
    """Return lists of numbers, or tensors, as one tensor (n, T), with 0 behind the short ones."""
    return pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)


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
