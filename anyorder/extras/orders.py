"""Orders that the paper does not have. They are functions as in anyorder/orders.py, whose ORDERS
names them.

In a grid of the shape (H, W) a position is W * row + column."""

import math
from dataclasses import replace
from functools import cache

import torch

from anyorder.orders import one_order


def swapped(u, n, n_swaps):
    """Swap two uniform visits, maybe the same, of left to right, n_swaps times.

    sqrt(n) swaps are the "much closer" pi-learners of Kim et al. 2025, arXiv 2502.06768, sec. 3.2;
    n / 10 "closer"."""
    order = torch.arange(n, device=u.device).repeat(len(u), 1)
    pairs = (u * n).long().view(len(u), n_swaps, 2)
    for pair in pairs.unbind(1):  # (B, 2)
        order.scatter_(1, pair, order.gather(1, pair.flip(1)))
    return order


def sorted_subset(u, n, _):
    """Visit a random set of positions in reading order, then the rest in reading order.

    Such a model fills blanks by --order=l2r. (Shih et al. 2022, arXiv 2205.13554; AC-GPT, arXiv
    2606.14943)"""
    level = u[:, n:]  # (B, 1), the expected share of the set
    is_rest = u[:, :n] >= level
    return is_rest.int().argsort(stable=True)


MOST = 10_000  # orders that a run keeps


def few(u, n, order):
    """Choose one of the few_orders of an Order, each as often."""
    shared = few_orders(order, n, str(u.device))  # (K, n)
    which = u.sum(-1) * len(shared)  # u is (B, 1); of (B, 0), if K is 1, the sum is 0
    return shared[which.long()]


@cache
def few_orders(order, n, device):
    """Return (K, n): left to right, then `fixed` of K - 1 seeds. Raises ValueError for more than
    MOST."""
    if order.parameter > MOST:
        raise ValueError(f'{order.name} is of too many orders: a run keeps all, at most {MOST:,}')
    rows = []
    for k in range(order.parameter):
        kind = 'fixed' if k else 'l2r'
        one = replace(order, kind=kind, parameter=None, seed=order.seed + k)
        rows.append(one_order(one, n, device))
    return torch.stack(rows)


def by_rows(u, shape, _):
    """Visit rows from the top, the cells of each in a random order."""
    row = torch.arange(u.size(1), device=u.device) // shape[1]
    return (row + u).argsort(-1)


def by_columns(u, shape, _):
    """Visit columns from the left, the cells of each in a random order."""
    column = torch.arange(u.size(1), device=u.device) % shape[1]
    return (column + u).argsort(-1)


def spiral(u, shape, _):
    """Visit cells clockwise along the edge from the upper left corner, and on inward."""
    left = torch.arange(math.prod(shape), device=u.device).view(shape)
    edges = []
    while left.numel():
        edges.append(left[0])
        left = left[1:].rot90()  # the next edge comes to the top
    return torch.cat(edges).expand(len(u), -1)


def by_squares(u, shape, size):
    """Visit squares of size x size cells in a random order, and so the cells of each.

    The edges of the grid may cut squares. u (B, 2 N) has a number for each cell, then numbers for
    the squares, more than there are: a square that took the numbers of its cells would come the
    later, the smaller it is."""
    H, W = shape
    of_cells, of_squares = u.tensor_split([H * W], 1)
    cell = torch.arange(H * W, device=u.device)
    row = cell // W // size  # of squares
    column = cell % W // size
    n_columns = -(-W // size)
    square = row * n_columns + column  # (N,)
    rank = of_squares.argsort(-1).argsort(-1)
    return (rank[:, square] + of_cells).argsort(-1)
