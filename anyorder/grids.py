"""Which orders does a grid have, and which does a user bring? Functions as in orders.py.

In a grid of the shape (H, W) a position is W * row + column. A user's order, or score, is the
function FILE.py:NAME, which a command runs where it is typed."""

import hashlib
import inspect
import math
import os
import runpy
from functools import cache, wraps

import torch


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
    if size < 1:
        raise ValueError(f'the blocks of a grid must be at least 1 cell wide, got {size}')
    H, W = shape
    of_cells, of_squares = u.tensor_split([H * W], 1)
    cell = torch.arange(H * W, device=u.device)
    row = cell // W // size  # of squares
    column = cell % W // size
    n_columns = -(-W // size)
    square = row * n_columns + column  # (N,)
    rank = of_squares.argsort(-1).argsort(-1)
    return (rank[:, square] + of_cells).argsort(-1)


@cache
def wants_shape(function):
    """Return whether the function of a family takes the shape of a grid."""
    names = list(inspect.signature(function).parameters)
    return names[1:2] == ['shape']


def size_for(function, n, shape):
    """Return the second argument of the function of a family: n, or the shape (H, W) of a grid."""
    if not wants_shape(function):
        return n
    if not shape or math.prod(shape) != n:
        raise ValueError(
            f'an order of a grid wants all of its HxW cells, got {n} positions and shape={shape}: '
            'prepare the set with --shape=HxW, or choose another order or block_size'
        )
    return shape


# {FILE.py:NAME@DIGEST, as checkpoints keep it: function}, of files that this process has run
LOADED = {}


def load_order(path, name):
    """Run a file. Return FILE.py:NAME@DIGEST of its function, for `loaded`."""
    try:
        kept, function = function_of(path, name)
        inspect.signature(function).bind('u', 'n', 'parameter')
    except (Exception, SystemExit) as e:
        raise ValueError(
            f'{path} has no order {name}, a function of u, n, parameter (a score, by which a model '
            f'that writes may choose, is one of logits alone): {e!r}'
        ) from None
    LOADED[kept] = checked(function, f'{path}:{name}')
    return kept


def function_of(path, name):
    """Return FILE.py:NAME@DIGEST, and the function, of a file that is run once."""
    with open(path, 'rb') as f:
        digest = hashlib.sha256(f.read()).hexdigest()[:12]
    function = names_of(os.path.abspath(path), digest)[name]
    return f'{os.path.basename(path)}:{name}@{digest}', function


@cache
def names_of(path, digest):
    """Run a file that has this digest. Return {name: what it stands for}."""
    return runpy.run_path(path)


def checked(function, said):
    """Return the order of a user, what it returns looked at in every call; `said` names it."""

    @wraps(function)  # with its signature
    def orders(u, n, parameter):
        try:
            order = function(u, n, parameter)
        except (Exception, SystemExit) as e:
            raise ValueError(f'the order {said} raised {e!r}') from None
        if not holds_orders(order, u.shape):
            got = ' '.join(repr(order).split())
            raise ValueError(
                f'the order {said} must return int64 {tuple(u.shape)}, in each row every position '
                f'from 0 to {u.size(1) - 1} once, got {got:.99}'
            )
        return order.to(u.device)

    orders.path = said.rpartition(':')[0]  # of the file that was run
    return orders


def holds_orders(x, shape):
    """Return whether x holds orders of this shape (B, n). The host waits for the device."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.long or x.shape != shape:
        return False
    positions = torch.arange(shape[1], device=x.device)
    return not (x.sort(-1).values != positions).any()


def loaded(kept):
    """Return the function of FILE.py:NAME@DIGEST.

    Raises ValueError unless this process was told to run the file."""
    if kept not in LOADED:
        said, _, _ = kept.partition('@')
        raise ValueError(
            f'the checkpoint was trained in the order {kept}, which no checkpoint runs: add '
            f'--order=PATH/{said} (eval_ppl.py and puzzles solve: --orders=)'
        )
    return LOADED[kept]
