"""Which tokens were likeliest where one was written? The record of a step.

The law that wrote a token is the one by which it was drawn, or the true token of a scored text was
judged: after a pattern, what is allowed, temperature, top_k and top_p. At temperature 0, where one
token has all of the probability, it is the law of temperature 1 with the same cuts."""

import math

import torch

from anyorder.generation.drawing import token_logprob
from anyorder.machine.devices import widest


def likeliest(drawing, logits, k, token):
    """Return log p of the token (m,), then log p and ids of the k likeliest: one table (m, 1 + 2k),
    by the law in which a Drawing draws from logits (m, V).

    A token that the law has cut has -inf."""
    law = drawing.tempered(logits)
    best = law.topk(k)
    own = token_logprob(law, token).unsqueeze(1)
    nats = best.values - law.logsumexp(-1, keepdim=True)
    ids = best.indices.to(widest(law.device))  # exact below 2^24 at least
    return torch.cat([own, nats, ids], 1)


def said_of(kept, token, names):
    """Return what a sample says of a place.

        {'token': id, 'text': ..., 'logprob': nats, 'top': [{'token': ...}, ...]}

    The likeliest token is the first of `top`, which has fewer than k where the law is cut to fewer.

    kept   (1 + 2k,) of a canvas
    token  the id of what was written
    names  gives the text of an id"""
    own, *found = kept
    k = len(found) // 2
    both = zip(map(int, found[k:]), found[:k])
    top = [entry(number, nats, names) for number, nats in both if nats > -math.inf]
    return entry(token, own, names) | {'top': top}


def entry(token, nats, names):
    return {'token': token, 'text': names(token), 'logprob': nats}
