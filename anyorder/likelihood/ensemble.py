"""What is the context-order ensemble of a decoder? Visits before a target are shuffled, its probabilities averaged."""

import torch
import torch.nn.functional as F

from anyorder.likelihood.nll import batches, ensemble_nll
from anyorder.seeds import stream
from configurator import at_least


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
        raise ValueError(
            f'visit i must be 0 to {T - 1} and n_contexts at least 1, got i={i} and n_contexts={K}'
        )
    device = generator.device if generator else 'cpu'
    shuffles = torch.rand(B, K, i, generator=generator, dtype=torch.float64, device=device).argsort(
        -1
    )
    shuffles[:, 0] = torch.arange(i)
    visits = F.pad(shuffles, (0, 1), value=i).to(order.device)  # (B, K, i + 1)
    orders = order.unsqueeze(1).expand(B, K, T).gather(2, visits).flatten(0, 1)  # (B K, i + 1)
    return -model(idx.repeat_interleave(K, 0), orders, columns=torch.full((B * K, 1), i)).view(B, K)


def check_ensemble(c):
    """Raises ValueError for options of the ensemble that are too small or contradict each other."""
    at_least(c, 1, 'n_contexts', 'ensemble_block')
    at_least(c, 0, 'n_positions')
    if 0 < c.n_positions < c.ensemble_block:
        raise ValueError(
            f'n_positions must be 0 (all) or at least ensemble_block={c.ensemble_block}, got '
            f'{c.n_positions}'
        )


def sample_groups(block_size, width, n_positions, seed):
    """(groups, weights): which groups of `width` visits of a block are evaluated, an increasing list, and how many
    groups each stands for, float64. As many are as n_positions visits pay for, 0 is all: a stratified sample, one of
    each of n_positions // width parts of the order."""
    n_groups, n_sampled = -(-block_size // width), n_positions // width
    if n_sampled == 0 or n_positions >= block_size or n_sampled >= n_groups:
        return list(range(n_groups)), torch.ones(n_groups, dtype=torch.float64)
    edges = torch.linspace(0, n_groups, n_sampled + 1, dtype=torch.float64).round().long()
    sizes = edges.diff()
    u = torch.rand(n_sampled, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (edges[:-1] + (u * sizes).long()).tolist(), sizes.double()


def group_contexts(order, group, width, n, seed, n_given=0):
    """n contexts (n, end of the group) of a group of order (N,): the visits before it shuffled, by seed and group. The
    groups begin behind the n_given first visits."""
    first = n_given + group * width
    return shuffled_contexts(order[: first + width], first, n, stream(seed, group))


def shuffled_contexts(order, i, n, generator):
    """order (T,) n times, (n, T), with its first i visits shuffled."""
    keys = torch.rand(n, i, dtype=torch.float64, generator=generator)
    return torch.cat([order[:i][keys.argsort(1)], order[i:].expand(n, -1)], 1)


def batches_of(pieces, n_tokens):
    """Lists of parts of the tensors `pieces` (n, length), which come by increasing length: what one pass runs. A list
    holds parts of similar length, and about n_tokens once they are padded to its longest."""

    def fit(batch):
        shortest, longest = batch[0].size(1), batch[-1].size(1)
        return sum(map(len, batch)) * longest <= n_tokens and longest <= 1.25 * shortest + 8

    return batches(
        (part for piece in pieces for part in piece.split(max(1, n_tokens // piece.size(1)))), fit
    )


@torch.no_grad()
def ensemble_block_nll(
    model, idx, order, n_contexts, groups, width=1, seed=0, n_tokens=2**14, n_given=0
):
    """Nats of the visits of one block in each of its contexts, see group_contexts; width 1 is the paper's ensemble.

        members[g, j, k] = -log p(x[order[d]] | x[context_j of group g], x[order[d - k : d]]), d = n_given + g width + k

    One pass runs the slots up to the group's end, head and last layer for the group alone, in the model's precision.

    idx, order  (N,) tokens in natural order, and positions
    groups      increasing list of groups, as sample_groups gives
    n_tokens    slots of a pass, over all groups whose contexts it holds
    n_given     visits that are given and cost nothing; contexts shuffle them too
    returns     (own (), the nats of the block in the order itself,
                members (len(groups), M, width), 0 behind the last visit; member 0 is the order itself), float64"""
    device, N = model.device, len(order)
    own = model(idx[None].to(device), order[None].to(device))[0].cpu().double()  # (N,)
    visits = (
        n_given + torch.tensor(groups).unsqueeze(1) * width + torch.arange(width)
    )  # (groups, width)
    columns = visits.clamp(max=N - 1)
    members = own[columns].unsqueeze(1).repeat(1, n_contexts, 1)
    fresh = [j for j, g in enumerate(groups) if n_given + g * width > 1]  # else nothing to shuffle
    if n_contexts > 1 and fresh:
        contexts = (
            group_contexts(order, groups[j], width, n_contexts - 1, seed, n_given) for j in fresh
        )
        wanted = columns[fresh].repeat_interleave(n_contexts - 1, 0).to(device)  # (contexts, width)
        nll = []
        for batch in batches_of(contexts, n_tokens):
            length = batch[-1].size(1)
            orders = torch.cat([F.pad(part, (0, length - part.size(1))) for part in batch]).to(
                device
            )
            rows, wanted = wanted.tensor_split([len(orders)])
            nll.append(model(idx.to(device).expand(len(orders), N), orders, columns=rows))
        nll = torch.cat(nll).cpu().double()  # waits for the device
        members[fresh, 1:] = nll.view(len(fresh), n_contexts - 1, width)
    return own[n_given:].sum(), members.masked_fill((visits >= N).unsqueeze(1), 0)


def powers_of_two(n):
    """1, 2, 4, ... up to n, and n: the sizes of a mixture that a table shows."""
    return [2**k for k in range(n.bit_length()) if 2**k < n] + [n]


def ensemble_totals(own, members, weights):
    """(n,) nats of a block for M = 1, 2, 4, ... members, from what ensemble_block_nll and sample_groups give.

        total(M) = own + sum_g weights[g] sum_k (-log 1/M sum_{j < M} exp(-members[g, j, k]) - members[g, 0, k])

    Only the change that M members make is sampled, not the total: unbiased, and exact when all groups are there."""
    changes = [
        ensemble_nll(-members[:, :m].transpose(1, 2)) - members[:, 0]  # (groups, width)
        for m in powers_of_two(members.size(1))
    ]
    return torch.stack([own + (change.sum(-1) * weights).sum() for change in changes])
