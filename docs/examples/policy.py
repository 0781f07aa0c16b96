"""Train along the order in which the model is surest of the true tokens.

    python train.py config/quickstart.py --order=docs/examples/policy.py:confident --l2r_ratio=0.1

Half of the sequences after a warm-up of 1,000 updates, the others in random order."""

import torch

WARM_UP = 1000  # updates
PARTS = 4  # passes of the model that find an order


@torch.no_grad()
def surest_first(model, idx, order, parts):
    """Return orders (B, n) in which the surest blanks come first, a part after the other: when one
    begins, the true tokens of those before it are known. Ties stay as in `order`."""
    n = order.size(1)
    for known in range(0, n, -(-n // parts)):
        logits = model.predict(idx, order, known)  # (B, n - known, V)
        sure = logits.float().softmax(-1).amax(-1)
        rank = sure.argsort(dim=1, descending=True, stable=True)
        order = torch.cat([order[:, :known], order[:, known:].gather(1, rank)], 1)
    return order


def confident(u, n, parameter, idx, coin, step, model):
    random = u.argsort(1)
    share = 0.5 * min(1, step / WARM_UP)
    rows = (coin < share).nonzero()[:, 0]  # these alone cost passes
    if len(rows):
        random[rows] = surest_first(model, idx[rows], random[rows], PARTS)
    return random


def surest(u, n, parameter, idx, model):
    """The order itself, to validate in."""
    return surest_first(model, idx, u.argsort(1), PARTS)
