"""
How is likelihood measured? Nats of blocks, bounds over orders, the context-order ensemble, conditionals.
"""
import math

import torch
import torch.nn.functional as F

from anyorder.devices import autocast, widest
from anyorder.fast import product_dtype
from anyorder.orders import stream
from model import KVCache, float32_or_better

# ---------------------------------------------------------------------------------------------------------------------
# nats of blocks, each under its own order

@torch.no_grad()
def block_nll(model, blocks, orders, batch_size, dtype='float32', bar=None, n_known=None, n_given=None, counted=None):
    """Nats of every block under its own order.

        nats[b] = sum_d -log p(x[order[b, d]] | x[order[b, :d]])

    blocks   (n, N) tokens in natural order
    orders   (n, N) positions
    n_known  (n,) numbers of known visits, for a masked loss, see Network.forward: if they are uniform, one pass is
             unbiased for the mean over orders. Without them such a network takes N passes, one for each visit.
    n_given  (n,) visits that are given and cost nothing; a masked loss wants n_known with them
    counted  (n, N) bool, the visits d of the sum; all by default
    returns  (n,) float64"""
    device, sums = model.device, []
    for rows in torch.arange(len(blocks)).split(batch_size):
        idx, order = blocks[rows].to(device), orders[rows].to(device)
        visits = {'n_known': n_known, 'n_given': n_given}
        visits = {name: x[rows].to(device) for name, x in visits.items() if x is not None}
        with autocast(device, dtype):
            if not model.slots.masked_loss or n_known is not None:
                nll = model(idx, order, **visits)                                           # (B, N)
            else:
                nll = one_by_one(model, idx, order)
        if counted is not None:
            nll = nll.masked_fill(~counted[rows].to(device), 0)
        sums.append(nll.sum(-1, dtype=widest(device)))
        if bar is not None:
            bar.update(idx.numel())
    return torch.cat(sums).cpu().double() if sums else torch.zeros(0, dtype=torch.float64)


def check_finite(nats):
    """The nats, or ValueError if there is one that is infinite or no number."""
    if not nats.isfinite().all():
        raise ValueError('the model gives likelihoods that are not finite: its weights are too large, its run diverged')
    return nats


def one_by_one(model, idx, order, first=0, end=None):
    """nll (B, n) of the visits first to end - 1, by default all, given those before each, by a pass for each; a
    decoder's forward gives the same."""
    B, T = order.shape
    first, end = torch.tensor([[first], [T if end is None else end]]).expand(2, B)
    targets, nll = idx.gather(1, order)[:, first[0]:].T, []                                 # (n, B)
    for logits, target in zip(logits_one_by_one(model, idx, order, first, end), targets):
        nll.append(F.cross_entropy(float32_or_better(logits), target, reduction='none'))
    return torch.stack(nll, 1)


def logits_one_by_one(model, idx, order, first, end, n_visits=None):
    """Yields logits (B, V) of the visits first + j of each row, j = 0, 1, ..., given all before, by a pass for each.

    first, end  (B,) on the host; a row whose visits are at their end repeats its last one
    n_visits    as of predict"""
    cache = KVCache(model.config, len(idx), idx.device, product_dtype(model)) if model.slots.cached else None
    for j in range(int((end - first).max())):
        yield model.predict(idx, order, torch.minimum(first + j, end - 1), 1, cache, n_visits)[:, 0]


# ---------------------------------------------------------------------------------------------------------------------
# several orders of a block: the bound is the mean of their nats, the importance-weighted bound that of their mixture

def estimate_of(order):
    """The name of the estimate in the order that a network was trained in, from the arguments of sample_order."""
    return {'random': 'any', 'l2r': 'l2r'}.get(order['kind'], 'own')


def draw_known(numbers, block_size, n_orders=1, seed=0, n_given=0):
    """Numbers of known visits of the passes of a masked loss, a function of the seed and of the block's number.

    The K numbers of a block are a stratified sample: one is uniform in each of K equal parts of n_given .. N - 1.

    numbers  of blocks
    n_given  visits that are given, 0 or (len(numbers), 1)
    returns  (len(numbers), K) int64, K = n_orders"""
    u = [torch.rand(n_orders, dtype=torch.float64, generator=stream(seed, int(b), 'known')) for b in numbers]
    return n_given + ((torch.arange(n_orders) + torch.stack(u)) / n_orders * (block_size - n_given)).long()


def ensemble_nll(logprobs):
    """Nats of a mixture of M equally weighted members, over the last dimension: -log 1/M sum_j exp(logprobs[j])."""
    return math.log(logprobs.size(-1)) - logprobs.logsumexp(-1)


def powers_of_two(n):
    """1, 2, 4, ... up to n, and n: the sizes of a mixture that a table shows."""
    return [2 ** k for k in range(n.bit_length()) if 2 ** k < n] + [n]


# ---------------------------------------------------------------------------------------------------------------------
# the context-order ensemble of a decoder: the visits before a target are shuffled, its probabilities are averaged

@torch.no_grad()
def context_logprobs(model, idx, order, i, n_contexts, generator=None):
    """log p of one visit under several orders of the visits before it (AO eq. of p_ens).

        logprobs[b, j] = log p(x[order[b, i]] | x[shuffle_j(order[b, :i])]), shuffle_0 being the order itself

    Runs i + 1 slots and one row of the head a context.

    idx      (B, N') tokens in natural order
    order    (B, T) positions
    i        the visit, 0 to T - 1
    returns  (B, K) nats, K = n_contexts"""
    (B, T), K = order.shape, n_contexts
    if not 0 <= i < T or K < 1:
        raise ValueError(f'visit i must be 0 to {T - 1} and n_contexts at least 1, got i={i} and n_contexts={K}')
    device = generator.device if generator else 'cpu'
    shuffles = torch.rand(B, K, i, generator=generator, dtype=torch.float64, device=device).argsort(-1)
    shuffles[:, 0] = torch.arange(i)
    prefix = order[:, None, :i].expand(B, K, i).gather(2, shuffles.to(order.device))        # (B, K, i)
    target = order[:, None, i:i + 1].expand(B, K, 1)
    orders = torch.cat([prefix, target], dim=2).flatten(0, 1)                               # (B K, i + 1)
    return -model(idx.repeat_interleave(K, 0), orders, columns=torch.full((B * K, 1), i)).view(B, K)


def check_ensemble(n_contexts, n_positions, ensemble_block):
    """Raises ValueError for options of the ensemble that are too small or contradict each other."""
    for name, value, bound in (('n_contexts', n_contexts, 1), ('ensemble_block', ensemble_block, 1),
                               ('n_positions', n_positions, 0)):
        if value < bound:
            raise ValueError(f'{name} must be at least {bound}, got {value}')
    if 0 < n_positions < ensemble_block:
        raise ValueError(f'n_positions must be 0 (all) or at least ensemble_block={ensemble_block}, got {n_positions}')


def sample_groups(block_size, width, n_positions, seed):
    """Which groups of `width` visits of a block are evaluated: as many as n_positions visits pay for, 0 is all.

    They are a stratified sample, one of each of n_positions // width parts of the order.

    returns  (groups, increasing list; weights float64, how many groups each stands for)"""
    n_groups, n_sampled = -(-block_size // width), n_positions // width
    if n_sampled == 0 or n_positions >= block_size or n_sampled >= n_groups:
        return list(range(n_groups)), torch.ones(n_groups, dtype=torch.float64)
    edges = torch.linspace(0, n_groups, n_sampled + 1, dtype=torch.float64).round().long()
    sizes = edges.diff()
    u = torch.rand(n_sampled, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (edges[:-1] + (u * sizes).long()).tolist(), sizes.double()


def group_contexts(order, group, width, n, seed):
    """n contexts (n, end of the group) of a group of visits of order (N,): a function of the seed and of the group.

    The visits before the group are shuffled, its own visits follow as in the order."""
    return shuffled_contexts(order[:(group + 1) * width], group * width, n, stream(seed, group))


def shuffled_contexts(order, i, n, generator):
    """order (T,) n times, (n, T), with its first i visits shuffled."""
    keys = torch.rand(n, i, dtype=torch.float64, generator=generator)
    return torch.cat([order[:i][keys.argsort(1)], order[i:].expand(n, -1)], 1)


def batches_of(pieces, n_tokens):
    """Lists of parts of the tensors `pieces` (n, length), which come by increasing length: what one pass runs.

    A list holds parts of similar length, and about n_tokens once they are padded to its longest."""
    batch, n_rows = [], 0
    for piece in pieces:
        length = piece.size(1)
        for part in piece.split(max(1, n_tokens // length)):
            full = (n_rows + len(part)) * length > n_tokens
            if batch and (full or length > 1.25 * batch[0].size(1) + 8):
                yield batch
                batch, n_rows = [], 0
            batch.append(part)
            n_rows += len(part)
    if batch:
        yield batch


@torch.no_grad()
def ensemble_block_nll(model, idx, order, n_contexts, groups, width=1, seed=0, n_tokens=2 ** 14, bar=None):
    """Nats of the visits of one block in each of its contexts, see group_contexts; width 1 is the paper's ensemble.

        members[g, j, k] = -log p(x[order[d]] | x[context_j of group g], x[order[g width : d]]), visit d = g width + k

    One pass runs the slots up to the group's end, and head and last layer for the group alone. The precision is that of
    the model.

    idx, order  (N,) tokens in natural order, and positions
    groups      increasing list of groups, as sample_groups gives
    n_tokens    slots of a pass, over all groups whose contexts it holds
    returns     (own (), the nats of the whole block in the order itself,
                members (len(groups), M, width), 0 behind the last visit; member 0 is the order itself), float64"""
    device, N = model.device, len(order)
    own = model(idx[None].to(device), order[None].to(device))[0].cpu().double()             # (N,)
    if bar is not None:
        bar.update(N)
    visits = torch.tensor(groups).unsqueeze(1) * width + torch.arange(width)                # (groups, width)
    columns = visits.clamp(max=N - 1)
    members = own[columns].unsqueeze(1).repeat(1, n_contexts, 1)
    fresh = [j for j, g in enumerate(groups) if g * width > 1]                              # else nothing to shuffle
    if n_contexts > 1 and fresh:
        contexts = (group_contexts(order, groups[j], width, n_contexts - 1, seed) for j in fresh)
        wanted = columns[fresh].repeat_interleave(n_contexts - 1, 0).to(device)             # (contexts, width)
        nll = []
        for batch in batches_of(contexts, n_tokens):
            length = batch[-1].size(1)
            orders = torch.cat([F.pad(part, (0, length - part.size(1))) for part in batch]).to(device)
            rows = wanted[:len(orders)]
            wanted = wanted[len(orders):]
            nll.append(model(idx.to(device).expand(len(orders), N), orders, columns=rows))
            if bar is not None:
                bar.update(sum(part.numel() for part in batch))
        nll = torch.cat(nll).cpu().double()                                                 # waits for the device
        members[fresh, 1:] = nll.view(len(fresh), n_contexts - 1, width)
    return own.sum(), members.masked_fill((visits >= N).unsqueeze(1), 0)


def ensemble_totals(own, members, weights):
    """(n,) nats of a block for M = 1, 2, 4, ... members, from what ensemble_block_nll and sample_groups give.

        total(M) = own + sum_g weights[g] sum_k (-log 1/M sum_{j < M} exp(-members[g, j, k]) - members[g, 0, k])

    Only the change that M members make is sampled, not the total: unbiased, and exact when all groups are there."""
    totals = []
    for m in powers_of_two(members.size(1)):
        change = ensemble_nll(-members[:, :m].transpose(1, 2)) - members[:, 0]              # (groups, width)
        totals.append(own + (change.sum(-1) * weights).sum())
    return torch.stack(totals)


# ---------------------------------------------------------------------------------------------------------------------
# one set of positions given another

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
    returns  (B,) nats"""
    a, b = (torch.as_tensor(positions, dtype=torch.long).flatten() for positions in (a, b))
    both = torch.cat([b, a])
    if n_orders < 0 or not len(a) or len(both.unique()) < len(both) or both.min() < 0 or both.max() >= idx.size(1):
        raise ValueError(f'a and b must be disjoint sets of positions below {idx.size(1)}, a not empty; '
                         f'got {a.tolist()} and {b.tolist()}, n_orders={n_orders}')
    orders = [torch.cat([b.sort().values, a.sort().values])]
    if n_orders:
        orders = [torch.cat([part[torch.randperm(len(part), generator=generator)] for part in (b, a)])
                  for _ in range(n_orders)]
    visits_of_a = torch.arange(len(b), len(both)).expand(len(idx), -1)
    if model.slots.masked_loss:
        neither = torch.tensor(sorted({*range(idx.size(1))} - {*both.tolist()}), dtype=torch.long)
        orders = [torch.cat([order, neither]) for order in orders]
    nats = []
    for order in orders:
        order = order.to(idx.device).expand(len(idx), -1)                                   # (B, m + n), or (B, N)
        if model.slots.masked_loss:
            nll = one_by_one(model, idx, order, len(b), len(both))                          # (B, n)
        else:
            nll = model(idx, order, columns=visits_of_a)
        nats.append(nll.sum(-1, dtype=widest(idx.device)))
    return -ensemble_nll(-torch.stack(nats, -1))
