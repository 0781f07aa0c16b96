"""Which orders does a grid have, and which does a user bring? Functions as in orders.py. In a grid of the shape (H, W)
a position is W * row + column. A user's order is the function FILE.py:NAME, which a command runs where it is typed."""

import hashlib
import inspect
import math
import os
import runpy
from functools import cache, wraps

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
        left = left[1:].rot90()  # the next edge comes to the top
    return torch.cat(order).expand(len(u), -1)


def by_squares(u, shape, size):
    """Squares of size x size cells, which the edges may cut, and the cells of each, both in a random order."""
    if size < 1:
        raise ValueError(f'the blocks of a grid must be at least 1 cell wide, got {size}')
    (H, W), cell = shape, torch.arange(math.prod(shape), device=u.device)
    square = cell // W // size * -(-W // size) + cell % W // size  # (N,)
    rank = (
        u[:, H * W :].argsort(-1).argsort(-1)
    )  # by numbers of their own: small squares are not likelier last
    return (rank[:, square] + u[:, : H * W]).argsort(-1)


@cache
def wants_shape(function):
    return [*inspect.signature(function).parameters][1:2] == ['shape']


def size_for(function, n, shape):
    """The second argument of the function of a family: n, or the shape (H, W) if the argument is named so."""
    if not wants_shape(function):
        return n
    if not shape or math.prod(shape) != n:
        raise ValueError(
            f'an order of a grid wants all of its HxW cells, got {n} positions and shape={shape}: prepare '
            'the set with --shape=HxW, or choose another order or block_size'
        )
    return shape


LOADED = {}  # {FILE.py:NAME@DIGEST, as checkpoints keep it: function}, of the files that this process was told to run


def load_order(path, name):
    """Run a file. Returns FILE.py:NAME@DIGEST of its function, whose result is looked at in every call."""
    try:
        with open(path, 'rb') as f:
            kept = f'{os.path.basename(path)}:{name}@{hashlib.sha256(f.read()).hexdigest()[:12]}'
        function = runpy.run_path(path)[name]
        inspect.signature(function).bind('u', 'n', 'parameter')
    except (Exception, SystemExit) as e:
        raise ValueError(
            f'{path} has no order {name}, a function of u, n, parameter: {e!r}'
        ) from None

    @wraps(function)  # with its signature
    def checked(u, n, parameter):
        try:
            order = function(u, n, parameter)
        except (Exception, SystemExit) as e:
            raise ValueError(f'the order {path}:{name} raised {e!r}') from None
        fits = (
            isinstance(order, torch.Tensor) and order.dtype == torch.long and order.shape == u.shape
        )
        # here the host waits for the device
        if (
            not fits
            or (order.sort(-1).values != torch.arange(u.size(1), device=order.device)).any()
        ):
            raise ValueError(
                f'the order {path}:{name} must return int64 {tuple(u.shape)}, in each row every position '
                f'from 0 to {u.size(1) - 1} once, got {" ".join(repr(order).split()):.99}'
            )
        return order.to(u.device)

    LOADED[kept] = checked
    return kept


def loaded(kept):
    """The function of FILE.py:NAME@DIGEST. Raises ValueError unless this process was told to run the file."""
    if kept not in LOADED:
        raise ValueError(
            f'the checkpoint was trained in the order {kept}, which no checkpoint runs: add --order=PATH/'
            f'{kept.partition("@")[0]} (eval_ppl.py: --orders=, eval_puzzle.py: --policies=)'
        )
    return LOADED[kept]
