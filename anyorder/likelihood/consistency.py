"""Have the conditionals of a network a joint law? Two blanks a and b, given c, in the one sequence and in the other."""
import torch

from anyorder.likelihood.ensemble import powers_of_two, shuffled_contexts
from anyorder.likelihood.nll import ensemble_nll, score_visits
from anyorder.orders import stream


@torch.no_grad()
def pair_gaps(model, idx, orders, n_known, n_contexts=1, seed=0, batch_size=16):
    """log p(a | c) p(b | a, c) - log p(b | c) p(a | b, c) of pairs of blanks of one block; 0 if there is a joint law.

    With M contexts each of the four is -log 1/M sum_j p(. | perm_j(what is known)), as in context_logprobs.

    idx        (N,) tokens in natural order
    orders     (P, N); pair p is the visits n_known[p] and n_known[p] + 1 of orders[p], a the left one, c all before
    n_contexts   above 1 for a decoder: others do not see the order of what is known
    returns    (P, n) float64, a column for M = 1, 2, 4, ... up to n_contexts. Source: arXiv 2605.09303"""
    rows, visits = [], []
    for order, k in zip(orders, n_known.tolist()):
        first, second = order[k:k + 2].sort().values
        for a, b in ((first, second), (second, first)):
            sequence = order.clone()
            sequence[k], sequence[k + 1] = a, b
            for visit in (k, k + 1):
                shuffles = shuffled_contexts(sequence, visit, n_contexts - 1, stream(seed, len(rows)))
                rows.append(torch.cat([sequence[None], shuffles]))
                visits += [visit] * n_contexts
    rows, visits, nll = torch.cat(rows), torch.tensor(visits), []
    for part, visit in zip(rows.split(batch_size), visits.split(batch_size)):
        part = part.to(model.device)
        nll.append(score_visits(model, idx.to(model.device).expand_as(part), part, visit, 1)[:, 0])
    logp = -torch.cat(nll).cpu().double().view(len(orders), 2, 2, n_contexts)
    mixed = torch.stack([-ensemble_nll(logp[..., :m]) for m in powers_of_two(n_contexts)], -1)
    one, other = mixed.sum(2).unbind(1)                                                     # (P, n) each
    return one - other
