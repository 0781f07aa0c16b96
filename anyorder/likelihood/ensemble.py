"""What is the context-order ensemble of a decoder? Visits before a target are shuffled, its
probabilities averaged."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from anyorder.seeds import derive_seed, drawn_seeds, keys_of, uniform


def ensemble_nll(logprobs):
    """Return -log 1/M sum_j exp(logprobs[..., j]), the nats of a mixture of M equal members."""
    return math.log(logprobs.size(-1)) - logprobs.logsumexp(-1)


@torch.no_grad()
def context_logprobs(model, idx, order, i, n_contexts, generator=None):
    """Return log p of one visit under several orders of the visits before it (AO eq. of p_ens).

        logprobs[b, j] = log p(x[order[b, i]] | x[shuffle_j(order[b, :i])])

    shuffle_0 is the order itself. Runs i + 1 slots and one row of the head a context.

    idx      (B, N') tokens in natural order
    order    (B, T) positions
    i        the visit, 0 to T - 1
    returns  (B, K) nats, K = n_contexts"""
    B, T = order.shape
    K = n_contexts
    if not 0 <= i < T or K < 1:
        raise ValueError(
            f'visit i must be 0 to {T - 1} and n_contexts at least 1, got i={i} and n_contexts={K}'
        )
    keys = keys_of(drawn_seeds(1, generator))
    u = uniform(keys, torch.arange(B * K * i)).view(B, K, i)
    shuffles = u.argsort(-1)
    shuffles[:, 0] = torch.arange(i)
    visits = F.pad(shuffles, (0, 1), value=i).to(order.device)  # (B, K, i + 1)
    orders = order.unsqueeze(1).expand(B, K, T).gather(2, visits)
    last = torch.full((B * K, 1), i)
    nll = model(idx.repeat_interleave(K, 0), orders.flatten(0, 1), columns=last)  # (B K, 1)
    return -nll.view(B, K)


def sample_groups(block_size, width, n_positions, seed):
    """Choose which groups of `width` visits of a block are evaluated.

    A stratified sample of as many groups as n_positions visits pay for, one of each of
    n_positions // width parts of the order; n_positions = 0 is all.

    returns  (an increasing list of groups, how many groups each stands for, float64)"""
    n_groups = -(-block_size // width)
    n_sampled = n_positions // width
    if n_sampled == 0 or n_positions >= block_size or n_sampled >= n_groups:
        return list(range(n_groups)), torch.ones(n_groups, dtype=torch.float64)
    edges = torch.linspace(0, n_groups, n_sampled + 1, dtype=torch.float64).round().long()
    sizes = edges.diff()
    u = uniform(keys_of([seed]), torch.arange(n_sampled))
    groups = edges[:-1] + (u * sizes).long()
    return groups.tolist(), sizes.double()


def group_contexts(order, group, width, n, seed, n_given=0):
    """Return n contexts (n, end of the group) of a group of order (N,), by seed and group.

    The visits before the group are shuffled. Groups begin behind the n_given first visits."""
    first = n_given + group * width
    return shuffled_contexts(order[: first + width], first, n, derive_seed(seed, group))


def shuffled_contexts(order, i, n, seed):
    """Return order (T,) n times, (n, T), with its first i visits shuffled."""
    u = uniform(keys_of([seed]), torch.arange(n * i)).view(n, i)
    context = order[:i][u.argsort(1)]
    rest = order[i:].expand(n, -1)
    return torch.cat([context, rest], 1)


@dataclass(frozen=True)
class Groups:
    """Groups of visits of a block; the visits of a group share their contexts.

    numbers  increasing list of the groups that are evaluated, as sample_groups gives
    width    visits of a group; 1 is the paper's ensemble
    n_given  visits before group 0, which are given and cost nothing; contexts shuffle them too"""

    numbers: list
    width: int = 1
    n_given: int = 0


@torch.no_grad()
def ensemble_block_nll(model, idx, order, n_contexts, groups, seed=0, n_tokens=2**14):
    """Return nats of the visits of one block in each of its contexts, see group_contexts.

        members[g, j, k] = -log p(x[order[d]] | x[context_j of group g], x[order[d - k : d]])

    where d = n_given + g width + k. One pass runs the slots up to the group's end, head and last
    layer for the group alone, in the model's precision.

    idx, order  (N,) tokens in natural order, and positions
    groups      the Groups that are evaluated
    n_tokens    slots of a pass, over all groups whose contexts it holds
    returns     (own (), the nats of the block in the order itself,
                members (len(groups), M, width), 0 behind the last visit; member 0 is the order
                itself), float64"""
    N = len(order)
    width = groups.width
    n_given = groups.n_given
    firsts = n_given + torch.tensor(groups.numbers) * width  # (groups,)
    visits = firsts.unsqueeze(1) + torch.arange(width)  # (groups, width)
    columns = visits.clamp(max=N - 1)  # the last group may reach beyond the block

    # One pass gives the first member of all groups
    nll = model(idx[None].to(model.device), order[None].to(model.device))  # (1, N)
    own = nll[0].cpu().double()
    members = own[columns].unsqueeze(1).repeat(1, n_contexts, 1)  # (groups, M, width)

    # The others differ from it where there is something to shuffle
    n_shuffled = n_contexts - 1
    fresh = [j for j, first in enumerate(firsts.tolist()) if first > 1]
    if n_shuffled and fresh:
        contexts = (
            group_contexts(order, groups.numbers[j], width, n_shuffled, seed, n_given)
            for j in fresh
        )
        wanted = columns[fresh].repeat_interleave(n_shuffled, 0)  # (contexts, width)
        nll = score_contexts(model, idx, contexts, wanted, n_tokens)
        members[fresh, 1:] = nll.view(len(fresh), n_shuffled, width)

    beyond = visits >= N
    return own[n_given:].sum(), members.masked_fill(beyond.unsqueeze(1), 0)


def score_contexts(model, idx, contexts, columns, n_tokens):
    """Return nats (n, width), float64 on the host, of visits `columns` (n, width) of n contexts.

    contexts  iterable of tensors (rows, length), n rows in all, which come by increasing length
    n_tokens  slots of a pass"""
    idx = idx.to(model.device)
    columns = columns.to(model.device)
    nll = []
    n_done = 0
    for parts in batches_of(contexts, n_tokens):
        length = parts[-1].size(1)
        padded = [F.pad(part, (0, length - part.size(1))) for part in parts]
        orders = torch.cat(padded).to(model.device)  # (rows, length)
        n_rows = len(orders)
        wanted = columns[n_done : n_done + n_rows]
        nll.append(model(idx.expand(n_rows, -1), orders, columns=wanted))
        n_done += n_rows
    return torch.cat(nll).cpu().double()  # the only wait for the device


def batches_of(pieces, n_tokens):
    """Yield what one pass runs: lists of parts of the tensors `pieces` (n, length).

    The pieces come by increasing length. A list holds parts of similar length, and about n_tokens
    once they are padded to its longest."""

    def fit(batch):
        shortest = batch[0].size(1)
        longest = batch[-1].size(1)
        n_rows = sum(map(len, batch))
        return n_rows * longest <= n_tokens and longest <= 1.25 * shortest + 8

    parts = (part for piece in pieces for part in piece.split(max(1, n_tokens // piece.size(1))))
    return batches(parts, fit)


def powers_of_two(n):
    """Return 1, 2, 4, ... up to n, and n: the sizes of a mixture that a table shows."""
    powers = (2**k for k in range(n.bit_length()))
    return [*(power for power in powers if power < n), n]


def ensemble_totals(own, members, weights):
    """Return (n,) nats of a block for M = 1, 2, 4, ... members.

        total(M) = own + sum_g weights[g] sum_k (mixed(M, g, k) - members[g, 0, k])
        mixed(M, g, k) = -log 1/M sum_{j < M} exp(-members[g, j, k])

    Only the change that M members make is sampled, not the total: unbiased, and exact when all
    groups are there. Own and members are ensemble_block_nll's, weights sample_groups'."""
    totals = []
    for m in powers_of_two(members.size(1)):
        mixed = ensemble_nll(-members[:, :m].transpose(1, 2))  # (groups, width)
        change = (mixed - members[:, 0]).sum(-1)
        totals.append(own + (change * weights).sum())
    return torch.stack(totals)


def batches(items, fit):
    """Yield lists of items that follow each other, as long as `fit(list)` lets them grow."""
    batch = []
    for item in items:
        if batch and not fit([*batch, item]):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch
