"""How sure is the model of a blank? The scores by which it chooses.

Each is a function of logits (n, V), float32 or better, with -inf for padding
(Kim et al. 2025, arXiv 2502.06768, sec. 4). The score of a row is of its own logits alone."""

import torch

from anyorder.functions import loaded
from anyorder.names import is_own
from configurator import check_choice


def top_prob(logits):
    """max_v p(v)"""
    return (logits.amax(-1) - logits.logsumexp(-1)).exp()


def margin(logits):
    """The largest p(v) less the second."""
    n = min(2, logits.size(-1))
    logp = logits.topk(n).values - logits.logsumexp(-1, keepdim=True)
    top = logp.exp()
    return top[:, 0] - top[:, 1:].sum(-1)


def negative_entropy(logits):
    """sum_v p(v) log p(v), in nats: minus the entropy"""
    logp = logits.log_softmax(-1)
    return torch.where(logp > -torch.inf, logp.exp() * logp, 0.0).sum(-1)


# another score is one function, named here, or in the file of a user, see functions.py
SCORES = {'top_prob': top_prob, 'margin': margin, 'entropy': negative_entropy}
# and here, if it is from 0 to 1, so that a threshold can be compared with it
PROBABILITIES = ('top_prob', 'margin')


def score_of(name):
    """Return the function that a name of SCORES, or FILE.py:NAME@DIGEST, stands for."""
    if is_own(name):
        return loaded(name)
    check_choice('score', name, *SCORES)
    return SCORES[name]


def without_rounding(score, row):
    """Return scores (m,) of which those of a row (m,) that differ by rounding alone are equal.

    Blanks that decide each other, as the digits of (19|20), have equal scores in exact numbers.
    In order of size, each score becomes the one before it, unless the step is larger than the tenth
    of a root of the precision: in float32 rounding made steps up to 1e-5."""
    best = score.argsort(descending=True, stable=True)
    best = best[row[best].argsort(stable=True)]
    ranked = score[best]
    is_lower = ranked.diff() < -0.1 * torch.finfo(score.dtype).eps ** 0.5
    is_lower |= row[best].diff() != 0
    first = torch.arange(len(score), device=score.device)  # of those that are equal
    first[1:] = torch.where(is_lower, first[1:], 0)
    equal = ranked[first.cummax(0).values]
    return torch.empty_like(score).index_copy(0, best, equal)
