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
