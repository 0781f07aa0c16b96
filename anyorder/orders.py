"""
What is an order? Permutations of the positions of a sequence, (B, N) int64: order[b, d] is the position that visit d of row b goes to.
"""
import hashlib
from functools import cache

import torch

ORDERS = ('random', 'l2r', 'r2l', 'fixed', 'block')


def derive_seed(*names):
    """A 63-bit seed, hashed from numbers and strings: differently named streams of random numbers are independent (but for chance: a
    generator on the host uses 32 of the bits)."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=8).digest(), 'little') >> 1


def stream(*names):
    """A generator on the host, seeded by these names, see derive_seed."""
    return torch.Generator().manual_seed(derive_seed(*names))


def sample_order(batch_size, n, kind='random', l2r_ratio=0.0, device=None, generator=None, seed=0, block=4):
    """Orders (batch_size, n): each row left-to-right with probability l2r_ratio, else of `kind` (AO sec. 3).

    'random'      a uniform permutation, drawn for each row
    'l2r', 'r2l'  left to right, right to left
    'fixed'       one permutation for all rows, a function of (seed, n)
    'block'       blocks of `block` positions from left to right, each in the same inner order, a function of (seed, n)"""
    if kind not in ORDERS or block < 1:
        raise ValueError(f'order must be {", ".join(ORDERS)} with blocks of at least 1, got {kind!r} and {block}')
    positions = torch.arange(n, device=device)
    if kind == 'random' or l2r_ratio:
        draws = torch.rand(batch_size, n + 1, device=device, dtype=torch.float64, generator=generator)   # float64: no ties
    if kind == 'random':
        order = draws[:, :n].argsort(-1)
    elif kind in ('fixed', 'block'):
        order = one_permutation(n, kind, seed, block, str(device or 'cpu'))
    else:
        order = positions if kind == 'l2r' else positions.flip(0)
    return torch.where(draws[:, n:] < l2r_ratio, positions, order) if l2r_ratio else order.expand(batch_size, n).clone()


@cache   # drawn on the host, where a seed gives the same numbers for all devices; copied once
def one_permutation(n, kind, seed, block, device):
    """(n,) of 'fixed' and 'block', see sample_order."""
    positions = torch.arange(n)
    keys = torch.rand(n, dtype=torch.float64, generator=stream(seed, 'order'))
    return (keys if kind == 'fixed' else positions // block + keys[positions % block]).argsort().to(device)


def given_first(order, given):
    """(order (B, N) with the positions of `given` (B, N) bool moved to its front, n_given (B,)); in each part they follow as before."""
    rank = (~given.gather(1, order)).byte().argsort(dim=1, stable=True)
    return order.gather(1, rank), given.sum(1)


def order_of(run):
    """The arguments of sample_order that a run trains with, from its options (a checkpoint's `config`)."""
    return {'kind': run.get('order', 'random'), 'seed': run.get('order_seed', 0), 'block': run.get('order_block', 4)}


def draw_orders(numbers, block_size, n_orders=1, seed=0):
    """(len(numbers), K, N) uniform random orders of the blocks of these numbers: a function of (seed, number)."""
    return torch.stack([sample_order(n_orders, block_size, generator=stream(seed, int(b))) for b in numbers])
