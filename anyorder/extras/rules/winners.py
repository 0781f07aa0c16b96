"""Which blanks win with their true tokens, and how probable is that? For Drawn.

Every blank j draws a token. The k blanks whose draws rank first are revealed. They are a set S with
its true tokens a in one way: its last one, i, ranks after the others, which have their true tokens,
and all blanks outside lose against i:

    P(S, a) = q_i(a_i)  prod_{j in S, j != i} q_j(a_j) [a_j ranks before a_i]
                        prod_{j not in S} P(X_j loses against a_i)

Sums over all sets of k blanks go blank by blank (n^2 k numbers), in logarithms."""

import torch

from anyorder.generation.unmasking import gumbel_of


def likely_sets(law, score, losing, k, n_most, u):
    """Return (log sum_S P(S, a), a set of k (B,) blanks by P(S, a), as bool (B, n)).

    law, score  (B, n) log q and log p of the true token of each blank, -inf for padding; the score
                ranks, and of equals the first
    losing      (B, n, n): [b, j, i] is log P(X_j loses against a_i), 0 for padding j
    n_most      at least the largest k
    u           two tables (B, n) of uniform numbers"""
    B, n = law.shape
    column = torch.arange(n, device=law.device)
    own = score.unsqueeze(2)
    of_last = score.unsqueeze(1)
    ranks_before = (own > of_last) | (own == of_last) & (column.unsqueeze(1) < column)
    winning = torch.where(ranks_before, law.unsqueeze(2), -torch.inf)  # beside `losing`
    left = (k - 1).clamp(min=0).unsqueeze(1)  # (B, 1) others to choose
    for sums in sums_of_sets(winning, losing, column.expand(B, n), n_most):
        pass  # the sums over subsets of all blanks are the last ones, (B, n, n_most)
    of_others = sums.gather(2, left.unsqueeze(2).expand(B, n, 1))
    weight = law + of_others.squeeze(2)  # (B, n): of all sets whose last blank is this one

    # Draw the last blank, then the others from the end on
    last = (weight + gumbel_of(u[0])).argmax(1, keepdim=True)  # (B, 1)
    at = last.unsqueeze(1).expand(B, n, 1)
    losing = losing.gather(2, at)
    winning = winning.gather(2, at)
    sums = [*sums_of_sets(winning, losing, last, n_most)]
    is_chosen = column == last
    for j in reversed(range(n)):
        with_it = sums[j][:, 0].gather(1, (left - 1).clamp(min=0)) + winning[:, j]
        both = sums[j + 1][:, 0].gather(1, left)
        is_in = u[1][:, j : j + 1] < (with_it - both).exp()
        takes = is_in & (left > 0) & (last != j)
        is_chosen = is_chosen | takes & (column == j)
        left = left - takes.long()
    return weight.logsumexp(1), is_chosen


def sums_of_sets(winning, losing, last, n_most):
    """Yield (B, m, n_most) after none, one, ..., all n blanks: the logarithms of the sums over sets
    of 0, 1, ... of these blanks, beside the last ones (B, m), see above.

    winning, losing  (B, n, m) log P that a blank reveals its true token before the last one, -inf
                     if this ranks after it, and that it loses against it"""
    B, n, m = losing.shape
    none = losing.new_full((B, m, 1), -torch.inf)
    sums = losing.new_full((B, m, n_most), -torch.inf)
    sums[:, :, :1].zero_()
    yield sums
    for j in range(n):
        with_it = torch.cat([none, sums[:, :, :-1]], 2) + winning[:, j].unsqueeze(2)
        without = sums + losing[:, j].unsqueeze(2)
        after = torch.logaddexp(without, with_it)
        sums = torch.where((last == j).unsqueeze(2), sums, after)
        yield sums
