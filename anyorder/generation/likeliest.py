"""Which tokens were likeliest where one was written? The record of a step.

The law that wrote a token is the one by which it was drawn, or the true token of a scored text was
judged: after a pattern, what is allowed, temperature, top_k and top_p. At temperature 0, where one
token has all of the probability, it is the law of temperature 1 with the same cuts."""

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
