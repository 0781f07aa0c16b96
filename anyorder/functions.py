"""Which function does a user bring? A user's order, or score, is the function FILE.py:NAME, which a
command runs where it is typed."""

import hashlib
import inspect
import os
import runpy
from functools import cache, wraps

import torch

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
