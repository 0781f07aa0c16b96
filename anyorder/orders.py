"""
What is an order? A permutation of the positions of a sequence: order[b, d] is the position of visit d in row b.

A family of orders is one function here and one entry of DRAWN or FIXED; every command then takes its name.
"""
import hashlib
from functools import cache

import torch

# ---------------------------------------------------------------------------------------------------------------------
# named streams of random numbers

def derive_seed(*names):
    """A 63-bit seed, hashed from numbers and strings.

    Streams of different names are independent, up to chance: a generator on the host uses 32 of the bits."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=8).digest(), 'little') >> 1


def stream(*names):
    """A generator on the host, seeded by these names, see derive_seed."""
    return torch.Generator().manual_seed(derive_seed(*names))


# ---------------------------------------------------------------------------------------------------------------------
# families

def random(u, seed, block):
    """A uniform permutation for each row (AO sec. 3)."""
    return u.argsort(-1)


def left_to_right(n, seed, block):
    return torch.arange(n)


def right_to_left(n, seed, block):
    return torch.arange(n).flip(0)


def fixed(n, seed, block):
    """One uniform permutation, a function of the seed."""
    return torch.rand(n, dtype=torch.float64, generator=stream(seed, 'order')).argsort()


def blocks_from_left(n, seed, block):
    """Blocks of `block` positions from left to right, each in the same inner order, a function of the seed."""
    keys = torch.rand(n, dtype=torch.float64, generator=stream(seed, 'order'))
    position = torch.arange(n)
    return (position // block + keys[position % block]).argsort()


# f(u, seed, block): orders (B, n) of uniform numbers u (B, n), fresh in every row, on their device
DRAWN = {'random': random}
# f(n, seed, block): one order (n,) for all rows, on the host
FIXED = {'l2r': left_to_right, 'r2l': right_to_left, 'fixed': fixed, 'block': blocks_from_left}
ORDERS = DRAWN | FIXED


def sample_order(batch_size, n, kind='random', l2r_ratio=0.0, device=None, generator=None, seed=0, block=4):
    """Orders (batch_size, n): a row is left to right with probability l2r_ratio, else of the family `kind` (AO sec. 3).

    generator   of all that is drawn for each row; by default torch's own of the device
    seed, block   of the family: which order it is, and how many positions a block has"""
    if kind not in ORDERS:
        raise ValueError(f'order must be {", ".join(ORDERS)}, got {kind!r}')
    if block < 1:
        raise ValueError(f'order_block must be at least 1, got {block}')
    if kind in DRAWN or l2r_ratio:   # float64: no ties
        u = torch.rand(batch_size, n + 1, device=device, dtype=torch.float64, generator=generator)
    if kind in DRAWN:
        order = DRAWN[kind](u[:, :n], seed, block)                                          # (B, n)
    else:
        order = one_order(kind, n, seed, block, str(device or 'cpu')).repeat(batch_size, 1)
    return torch.where(u[:, n:] < l2r_ratio, torch.arange(n, device=device), order) if l2r_ratio else order


@cache   # drawn on the host, where a seed gives the same numbers for all devices; copied once
def one_order(kind, n, seed, block, device):
    return FIXED[kind](n, seed, block).to(device)


def order_of(run):
    """The arguments of sample_order that a run trains with, from its options (a checkpoint's `config`)."""
    return {'kind': run.get('order', 'random'), 'seed': run.get('order_seed', 0), 'block': run.get('order_block', 4)}


def draw_orders(numbers, n, n_orders=1, seed=0, order=None):
    """Orders (len(numbers), n_orders, n) of the blocks of these numbers: a function of (seed, number) alone.

    `order` holds the arguments of sample_order, as order_of gives them; by default the orders are uniform."""
    return torch.stack([sample_order(n_orders, n, **order or {}, generator=stream(seed, int(b))) for b in numbers])


def order_of_row(order, n, generator):
    """One order (n,): drawn with the arguments `order` of sample_order, or the positions that the list `order` holds.

    Raises ValueError if the list is no permutation of the n positions."""
    if isinstance(order, dict):
        return sample_order(1, n, **order, generator=generator)[0]
    if sorted(order) != list(range(n)):
        raise ValueError(f'an order must hold every position of the sample, from 0 to {n - 1}, once; got {len(order)} '
                         f'from {min(order, default=None)} to {max(order, default=None)}')
    return torch.tensor(order)


# ---------------------------------------------------------------------------------------------------------------------
# what is given

def given_first(order, given):
    """(order, n_given (B,)): the positions of `given` (B, N) come first in order (B, N); each part keeps its order."""
    first = given.gather(1, order)                                                          # (B, N) by visit
    n_given = first.sum(1)
    visit = torch.where(first, first.cumsum(1), n_given.unsqueeze(1) + (~first).cumsum(1)) - 1
    return torch.empty_like(order).scatter_(1, visit, order), n_given
