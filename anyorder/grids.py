"""
Which orders does a grid have? Functions as in orders.py. The position of a cell of a grid of the shape (H, W) is
W * row + column.
"""
import inspect
import math

import torch


def by_rows(u, shape, _):
    """Rows from the top, the cells of each in a random order."""
    return (torch.arange(u.size(1), device=u.device) // shape[1] + u).argsort(-1)


def by_columns(u, shape, _):
    """Columns from the left, the cells of each in a random order."""
    return (torch.arange(u.size(1), device=u.device) % shape[1] + u).argsort(-1)


def spiral(u, shape, _):
    """Clockwise along the edge from the upper left corner, and on inward."""
    left, order = torch.arange(math.prod(shape), device=u.device).view(shape), []
    while left.numel():
        order.append(left[0])
        left = left[1:].rot90()   # the next edge comes to the top
    return torch.cat(order).expand(len(u), -1)


def by_squares(u, shape, size):
    """Squares of size x size cells, which the edges may cut, and the cells of each, both in a random order."""
    if size < 1:
        raise ValueError(f'the blocks of a grid must be at least 1 cell wide, got {size}')
    (H, W), cell = shape, torch.arange(math.prod(shape), device=u.device)
    square = cell // W // size * -(-W // size) + cell % W // size                           # (N,)
    rank = u[:, H * W:].argsort(-1).argsort(-1)   # by numbers of their own: small squares are not likelier last
    return (rank[:, square] + u[:, :H * W]).argsort(-1)


def wants_shape(function):
    return [*inspect.signature(function).parameters][1:2] == ['shape']


def size_for(function, n, shape):
    """The second argument of the function of a family: n, or the shape (H, W) if the argument is named so."""
    if not wants_shape(function):
        return n
    if not shape or math.prod(shape) != n:
        raise ValueError(f'an order of a grid wants all of its HxW cells, got {n} positions and shape={shape}: prepare '
                         'the set with --shape=HxW, or choose another order')
    return shape
