"""How likely are some positions of a text given others?"""

from itertools import islice

import numpy as np
import torch

from anyorder.likelihood.ensemble import ensemble_nll
from anyorder.likelihood.nll import read
from anyorder.machine.devices import widest
from anyorder.seeds import drawn_seeds, uniform_by


def conditional_logprob(model, idx, a, b, n_orders=0, generator=None, seed=None):
    """Return log p(x_a | x_b) (B,) of disjoint sets of positions. What is in neither is not read.

    Without n_orders b and then a are read left to right. Else K = n_orders are averaged:

        log 1/K sum_k p(x_a | x_b, sigma_k), sigma_k a shuffle of b and then a shuffle of a

    idx   (B, N) tokens in natural order
    a, b  (n,) and (m,) positions, lists or tensors; b may be empty
    seed  draws the shuffles, by default one that the generator draws"""
    N = idx.size(1)
    a, b = [torch.as_tensor(part, dtype=torch.long).flatten() for part in (a, b)]
    both = torch.cat([b, a])
    is_set = len(both.unique()) == len(both)
    if n_orders < 0 or not len(a) or not is_set or both.min() < 0 or both.max() >= N:
        raise ValueError(
            f'a and b must be disjoint sets of positions below {N}, a not empty; '
            f'got {a.tolist()} and {b.tolist()}, n_orders={n_orders}'
        )
    if n_orders and seed is None:
        (seed,) = drawn_seeds(1, generator)
    found = logprobs_of_parts(model, [(row, b, a, seed) for row in idx.cpu()], n_orders)
    return torch.stack([*found])


def logprobs_of_parts(model, texts, n_orders=0):
    """Yield log p(x_a | x_b) of each of the texts, (tokens (N,), b, a, seed of its shuffles), which
    are arrays or tensors, see conditional_logprob."""

    def rows():
        for tokens, b, a, seed in texts:
            both = torch.from_numpy(np.concatenate([b, a]))
            rest = both[:0]
            if model.slots_class.masked_loss:  # which has to know which positions are blank
                rest = torch.from_numpy(np.setdiff1d(range(len(tokens)), both))
            for order in orders_of_parts(both, len(b), n_orders, seed):
                yield tokens, torch.cat([order, rest]), range(len(b), len(both))

    found = read(model, rows())
    for _ in texts:
        nll = torch.stack([*islice(found, max(1, n_orders))])  # (K, n)
        yield -ensemble_nll(-nll.sum(1, dtype=widest(nll.device)))


def orders_of_parts(both, m, n_orders, seed):
    """Return orders (n_orders, m + n) of the first m of both parts, and then of the others, each
    shuffled; 0: (1, m + n), sorted."""
    rank = both.unsqueeze(0) / (1 + both.max())
    if n_orders:
        rank = uniform_by(seed, n_orders, len(both))
    is_second = torch.arange(len(both)) >= m
    return both[(is_second + rank).argsort(1)]
