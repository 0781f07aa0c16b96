"""
How is likelihood measured? Blocks, bounds, importance weights, the context-order ensemble, conditionals, last words.
"""
import math

import numpy as np
import torch
import torch.nn.functional as F

from anyorder.devices import autocast
from anyorder.orders import stream
from configurator import at_least
from model import float32_or_better


@torch.no_grad()
def block_nll(model, blocks, orders, batch_size, dtype='float32', bar=None, n_known=None, n_given=None, counted=None):
    """Nats of every block under its own order, sum_d -log p(x_{order_d} | x_{order_<d}): (n,) float64 for blocks, orders (n, N), over those
    visits d that are `counted` (n, N) bool, by default all.

    An encoder needs N passes for that; with n_known (n,), uniform from 0 to N - 1, one pass estimates the mean over orders without bias,
    see AOGPT.forward, as for n_given (n,), which wants a single pass: a decoder, or n_known."""
    device, sums = model.lm_head.weight.device, []
    for rows in torch.arange(len(blocks)).split(batch_size):
        idx, order = blocks[rows].to(device), orders[rows].to(device)
        how = {name: x[rows].to(device) for name, x in (('n_known', n_known), ('n_given', n_given)) if x is not None}
        with autocast(device, dtype):
            one_pass = model.config.causal or n_known is not None
            nll = model(idx, order, **how) if one_pass else one_by_one(model, idx, order)
        nll = nll if counted is None else nll.masked_fill(~counted[rows].to(device), 0)
        sums.append(nll.double().sum(-1))
        if bar is not None:
            bar.update(idx.numel())
    return torch.cat(sums).cpu() if sums else torch.zeros(0, dtype=torch.float64)


def one_by_one(model, idx, order):
    """nll (B, N) of every visit given those before it, by a pass for each: what a decoder's forward gives at once."""
    tokens = idx.gather(1, order)
    return torch.stack([F.cross_entropy(float32_or_better(model.predict(idx, order, d, 1)[:, 0]), tokens[:, d], reduction='none')
                        for d in range(order.size(1))], 1)


def estimate_of(order):
    """The estimate that measures the order which order_of gave."""
    return {'random': 'any', 'l2r': 'l2r'}.get(order['kind'], 'own')


def draw_known(numbers, block_size, n_orders=1, seed=0, n_given=0):
    """(len(numbers), K) numbers of known visits, each uniform from n_given (0 or (len(numbers), 1)) to N - 1, the K of a block one from
    each of K equal parts of that range: a function of (seed, number)."""
    u = torch.stack([torch.rand(n_orders, dtype=torch.float64, generator=stream(seed, int(b), 'known')) for b in numbers])
    return n_given + ((torch.arange(n_orders) + u) / n_orders * (block_size - n_given)).long()


def ensemble_nll(logprobs):
    """Nats of the mixture of equally weighted members, -log 1/M sum_j exp(logprobs_j), over the last dimension."""
    return math.log(logprobs.size(-1)) - logprobs.logsumexp(-1)


def powers_of_two(n):
    """1, 2, 4, ... up to n, and n."""
    return [2 ** k for k in range(n.bit_length()) if 2 ** k < n] + [n]


@torch.no_grad()
def context_logprobs(model, idx, order, i, n_contexts, generator=None):
    """log p(x_{order_i} | prefix) under n_contexts orders of the prefix order[:, :i]                          (AO eq. of p_ens)

    idx (B, N'), order (B, T), visit 0 <= i < T; returns (B, K) nats: column 0 is the order itself, the others shuffle the
    prefix. Runs i + 1 slots and one row of the head a context."""
    (B, T), K = order.shape, n_contexts
    if not 0 <= i < T or K < 1:
        raise ValueError(f'visit i must be 0 to {T - 1} and n_contexts at least 1, got i={i} and n_contexts={K}')
    shuffles = torch.rand(B, K, i, generator=generator, dtype=torch.float64, device=generator.device if generator else 'cpu').argsort(-1)
    shuffles[:, 0] = torch.arange(i)
    prefix = order[:, None, :i].expand(B, K, i).gather(2, shuffles.to(order.device))        # (B, K, i)
    orders = torch.cat([prefix, order[:, None, i:i + 1].expand(B, K, 1)], dim=2).flatten(0, 1)
    return -model(idx.repeat_interleave(K, 0), orders, columns=torch.full((B * K, 1), i)).view(B, K)


def shuffled_contexts(order, groups, width, n_contexts, seed):
    """Yields for each group g of `width` visits the orders (n_contexts - 1, end of g): its own visits as in order (N,), after a
    shuffle of all before them. A function of (seed, g)."""
    for g in groups:
        start, end = g * width, min((g + 1) * width, len(order))
        keys = torch.rand(n_contexts - 1, start, dtype=torch.float64, generator=stream(seed, g))
        yield torch.cat([order[:start][keys.argsort(1)], order[start:end].expand(n_contexts - 1, -1)], 1)


def batches_of(pieces, n_tokens):
    """Batch tensors (n, length), by increasing length, into lists of similar length and of about n_tokens once padded to the longest."""
    batch, rows = [], 0
    for piece in pieces:
        for part in piece.split(max(1, n_tokens // piece.size(1))):
            if batch and ((rows + len(part)) * piece.size(1) > n_tokens or piece.size(1) > 1.25 * batch[0].size(1) + 8):
                yield batch
                batch, rows = [], 0
            batch.append(part)
            rows += len(part)
    if batch:
        yield batch


@torch.no_grad()
def ensemble_block_nll(model, idx, order, n_contexts, groups, width=1, seed=0, n_tokens=2 ** 14, bar=None):
    """Nats of the visits of one block in each of its contexts.

    The visits of group g, order[g width : (g + 1) width], are read in order after a shuffle of the visits before the group; width 1 is
    the paper's ensemble. One pass runs the slots up to the group's end, and head and last layer on the group alone; contexts of
    all groups go through in batches of n_tokens slots. The precision is that of the model, see AOGPT.frozen.
    idx, order (N,), groups increasing; returns (own, members) float64: own () of the whole block in the order itself, members
    (len(groups), M, width), of which member 0 is the order itself; 0 behind the last visit"""
    device, N = model.lm_head.weight.device, len(order)
    own = model(idx[None].to(device), order[None].to(device))[0].double().cpu()
    if bar is not None:
        bar.update(N)
    members = F.pad(own, (0, -N % width)).view(-1, width)[groups].unsqueeze(1).repeat(1, n_contexts, 1)
    fresh = [j for j, g in enumerate(groups) if g * width > 1]                               # a shuffle of 0 or 1 visits changes nothing
    if n_contexts == 1 or not fresh:
        return own.sum(), members
    visits = torch.tensor(groups)[fresh].unsqueeze(1) * width + torch.arange(width)          # (fresh, width)
    columns, nlls = visits.clamp(max=N - 1).repeat_interleave(n_contexts - 1, 0).to(device), []   # (rows, width), group by group
    for batch in batches_of(shuffled_contexts(order, [groups[j] for j in fresh], width, n_contexts, seed), n_tokens):
        orders = torch.cat([F.pad(part, (0, batch[-1].size(1) - part.size(1))) for part in batch]).to(device)         # (rows, T)
        nlls.append(model(idx.to(device).expand(len(orders), N), orders, columns=columns[:len(orders)]))
        columns = columns[len(orders):]
        if bar is not None:
            bar.update(sum(part.numel() for part in batch))
    nlls = torch.cat(nlls).double().cpu().view(len(fresh), n_contexts - 1, width)            # no batch has waited for the one before
    members[fresh, 1:] = nlls.masked_fill((visits >= N).unsqueeze(1), 0)
    return own.sum(), members


def sample_groups(n_groups, n_sampled, seed):
    """(groups, weights): one of each of n_sampled strata of 0 .. n_groups - 1, and how many it stands for; all when 0 is asked for."""
    if not 0 < n_sampled < n_groups:
        return list(range(n_groups)), torch.ones(n_groups, dtype=torch.float64)
    edges = torch.linspace(0, n_groups, n_sampled + 1, dtype=torch.float64).round().long()
    sizes = edges.diff()
    u = torch.rand(n_sampled, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (edges[:-1] + (u * sizes).long()).tolist(), sizes.double()


def choose_groups(block_size, c, seed):
    """sample_groups for a block whose visits go in groups of ensemble_block: as many as n_positions pays for, 0 is all."""
    n_sampled = 0 if c.n_positions >= block_size else c.n_positions // c.ensemble_block
    return sample_groups(-(-block_size // c.ensemble_block), n_sampled, seed)


def check_ensemble(c):
    at_least(c, 1, 'n_contexts', 'ensemble_block')
    at_least(c, 0, 'n_positions')
    if 0 < c.n_positions < c.ensemble_block:
        raise ValueError(f'n_positions must be 0 (all) or at least ensemble_block={c.ensemble_block}, got {c.n_positions}')


def ensemble_totals(own, members, weights):
    """(n,) nats of a block for M = 1, 2, 4, ...: the total of the order itself plus the weighted sum over the groups that were
    evaluated of what M members change. Unbiased, and exact when all groups are there: only the change is sampled, not the total."""
    change = torch.stack([ensemble_nll(-members[:, :m].transpose(1, 2)) - members[:, 0] for m in powers_of_two(members.size(1))])
    return own + (change.sum(-1) * weights).sum(-1)                                          # (n, groups) -> (n,)


@torch.no_grad()
def conditional_logprob(model, idx, a, b, n_orders=0, generator=None):
    """log p(x_a | x_b) of two disjoint sets of positions under a decoder, in nats, (B,) for idx (B, N).

    Every order of b and then a gives another value: n_orders = 0 reads each left to right; K averages over K random orders of both,
    log 1/K sum_k p(x_a | x_b, sigma_k), a mixture of K models. a (n,) and b (m,) are lists or tensors; b may be empty."""
    a, b = (torch.as_tensor(positions, dtype=torch.long).flatten() for positions in (a, b))
    both = torch.cat([b, a])
    if n_orders < 0 or not len(a) or len(both.unique()) < len(both) or both.min() < 0 or both.max() >= idx.size(1):
        raise ValueError(f'a and b must be disjoint sets of positions below {idx.size(1)}, a not empty; '
                         f'got {a.tolist()} and {b.tolist()}, n_orders={n_orders}')
    orders = [torch.cat([b.sort().values, a.sort().values])]
    if n_orders:
        orders = [torch.cat([p[torch.randperm(len(p), generator=generator)] for p in (b, a)]) for _ in range(n_orders)]
    last = torch.arange(len(b), len(both)).expand(len(idx), -1)                             # the visits of a
    nats = torch.stack([model(idx, order.to(idx.device).expand(len(idx), -1), columns=last).double().sum(-1) for order in orders], -1)
    return -ensemble_nll(-nats)


@torch.no_grad()
def last_word_hits(model, rows, batch_size, bar=None):
    """For rows of (context tokens, last-word tokens): whether greedy decoding, left to right, writes exactly the last word, which is
    whether each of its tokens is the most likely one after the true ones before it. Contexts are cut from the left to the model's
    block_size; a word that does not fit is missed. Returns a list of bools in the order of rows."""
    device, N, hits = model.lm_head.weight.device, model.config.block_size, [False] * len(rows)
    fit = sorted((r for r in range(len(rows)) if len(rows[r][1]) <= N), key=lambda r: len(rows[r][0]) + len(rows[r][1]))
    for chunk in (fit[i:i + batch_size] for i in range(0, len(fit), batch_size)):
        texts, sizes = [(rows[r][0] + rows[r][1])[-N:] for r in chunk], torch.tensor([len(rows[r][1]) for r in chunk])
        width, first = max(map(len, texts)), torch.tensor([len(t) for t in texts]) - sizes
        idx = torch.tensor([t + [0] * (width - len(t)) for t in texts], device=device)
        visits = torch.arange(width, device=device).expand(len(texts), -1)
        columns = (first.unsqueeze(1) + torch.arange(int(sizes.max()))).clamp(max=width - 1).to(device)   # (n, longest word)
        best = model.logits(idx, visits, columns).argmax(-1)
        right = (best == idx.gather(1, columns)).cpu() | (torch.arange(int(sizes.max())) >= sizes.unsqueeze(1))
        for r, hit in zip(chunk, right.all(1).tolist()):
            hits[r] = hit
        if bar is not None:
            bar.update(len(texts))
    return hits


def last_words(tokens, tokenizer):
    """Rows of a stream (documents that end in end-of-text) as (context tokens, last-word tokens), the word with the blank before it."""
    rows = []
    for row in np.split(tokens, np.flatnonzero(tokens == tokenizer.eos) + 1):
        ids = row[row != tokenizer.eos].tolist()
        context, blank, word = tokenizer.decode(ids).rpartition(' ')
        n = len(tokenizer.encode(blank + word))
        if context and word and ids[-n:] == tokenizer.encode(blank + word):
            rows.append((ids[:-n], ids[-n:]))
    return rows
