"""What is the context-order ensemble of a decoder? Visits before a target are shuffled, its
probabilities averaged."""

import math
from itertools import islice

import torch

from anyorder.likelihood.nll import padded, read
from anyorder.seeds import drawn_seeds, uniform_by


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
    if not 0 <= i < T or n_contexts < 1:
        raise ValueError(
            f'visit i must be 0 to {T - 1} and n_contexts at least 1, got i={i} and '
            f'n_contexts={n_contexts}'
        )
    rows = []
    for tokens, one, seed in zip(idx.cpu(), order.cpu(), drawn_seeds(B, generator)):
        shuffled = shuffled_contexts(one, i, 1, n_contexts - 1, seed)
        rows += [(tokens, context, [i]) for context in (one[: i + 1], *shuffled)]
    return -torch.cat([*read(model, rows)]).view(B, n_contexts)


def sample_groups(block_size, width, n_positions, seed):
    """Choose which groups of `width` visits of a block are evaluated.

    A stratified sample of as many groups as n_positions visits pay for, one of each of
    n_positions // width parts of the order; n_positions = 0 is all.

    returns  (an increasing list of groups, how many groups each stands for, float64)"""
    n_groups = -(-block_size // width)
    n_sampled = n_positions // width
    if n_sampled == 0 or n_positions >= block_size:
        n_sampled = n_groups  # each part is one group
    edges = torch.linspace(0, n_groups, n_sampled + 1, dtype=torch.float64).round().long()
    sizes = edges.diff()
    groups = edges[:-1] + (uniform_by(seed, n_sampled) * sizes).long()
    return groups.tolist(), sizes.double()


def shuffled_contexts(order, first, width, n, seed):
    """Return `width` visits of order (N,) from `first` on, each time behind another shuffle of the
    visits before them: n orders (n, first + width)."""
    context = order[:first][uniform_by(seed, n, first).argsort(1)]
    rest = order[first : first + width].expand(n, -1)
    return torch.cat([context, rest], 1)


@torch.no_grad()
def ensemble_block_nll(model, idx, order, groups, n_contexts, width, n_tokens=2**14):
    """Return the nats of a block in its order, and what mixtures of contexts gain of them.

        gains[g, m] = sum_k (members[g, 0, k] + log 1/M sum_{j < M} exp(-members[g, j, k]))
        members[g, j, k] = -log p(x[order[d]] | x[context_j of group g], x[order[d - k : d]])

    for M = powers_of_two(n_contexts)[m] members, of which the first is the order itself, and where
    d is the first visit of group g plus k, for k < width. One pass runs the slots up to the group's
    end, head and last layer for the group alone, in the model's precision.

    idx, order  (N,) tokens in natural order, and positions
    groups      [(first visit, seed of the shuffles of the visits before)], ascending
    n_tokens    slots of a pass, over all groups whose contexts it holds
    returns     (own (N,), gains (groups, n)), float64"""
    n_new = n_contexts - 1
    rows = (
        (idx, context, range(first, len(context)))
        for first, seed in groups
        for context in shuffled_contexts(order, first, width, n_new, seed)
    )
    found = read(model, rows, n_tokens)

    # One pass gives the first member of all groups
    own = model(idx[None].to(model.device), order[None].to(model.device))[0]  # (N,)
    members = []
    for first, _ in groups:
        members += [own[first : first + width], *islice(found, n_new)]
    members = padded(members).cpu().double()  # 0 behind the last; the only wait for the device
    members = members.view(len(groups), n_contexts, -1).mT  # (groups, width, n_contexts)
    mixed = torch.stack([*mixtures(members).values()], -1)
    gains = members[..., :1] - mixed  # (groups, width, n)
    return own.cpu().double(), gains.sum(1)


def mixtures(nats):
    """Return {M: nats (...) of the mixture of the first M members}, M in powers_of_two(n), of the
    nats (..., n) of each."""
    return {m: ensemble_nll(-nats[..., :m]) for m in powers_of_two(nats.size(-1))}


def powers_of_two(n):
    """Return 1, 2, 4, ... up to n, and n: the sizes of a mixture that a table shows."""
    powers = [2**k for k in range((n - 1).bit_length())]  # below n
    return [*powers, n]
