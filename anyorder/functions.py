"""Which function does a user bring? An order or a score, FILE.py:NAME, whose file a command runs
where it is typed. And how is one opened that a table of ours names?"""

import hashlib
import inspect
import os
import pkgutil
import runpy
from functools import cache, wraps
from pathlib import Path

import torch

from anyorder.names import undigested
from configurator import home

# {FILE.py:NAME@DIGEST, as checkpoints keep it: function}, of files that this process has run
LOADED = {}

# what an order may ask for by these names, see Order.draw
SEEN = ('idx', 'given', 'coin', 'step', 'model')


def holds_scores(found, logits):
    """Return whether it is a score of each row of logits. The host waits for the device."""
    is_whole = found.is_floating_point() and found.shape == logits.shape[:1]
    return is_whole and not found.isnan().any()


def looks_like_orders(found, u):
    """Return whether it is numbers in the shape of u (B, n). The host waits for nothing."""
    return found.dtype == torch.long and found.shape == u.shape


# by whether it is a score: what holds of its results, and what to say if it does not
RESULTS = {
    True: (holds_scores, 'a float for each row of logits, none of them NaN'),
    False: (looks_like_orders, 'int64 in the shape of u'),
}


def load(text):
    """Run the file of FILE.py:NAME. Return FILE.py:NAME@DIGEST, for `loaded`.

    A function of u, n, parameter is an order, see orders.py, which may ask for more of a run by the
    names of SEEN; one of logits alone is a score, by which a model that writes may choose, see
    scores.py. Raises ValueError for any other."""
    if text in LOADED:
        return text
    path, name = home(text).rsplit(':', 1)
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
        function = names_of(os.path.abspath(path), digest)[name]
        signature = inspect.signature(function)
        sees = [name for name in SEEN if name in signature.parameters]
        is_score = len(signature.parameters) == 1
        n_places = 1 if is_score else 3  # logits; u, n and the parameter, whatever they are called
        signature.bind(*range(n_places), **dict.fromkeys(sees))
    except (Exception, SystemExit) as e:
        raise ValueError(
            f'{path} has no order {name}, a function of u, n, parameter and maybe '
            f'{", ".join(SEEN)}, and no score, a function of logits alone: {e!r}'
        ) from None
    holds, wanted = RESULTS[is_score]

    @wraps(function)  # with its signature
    def checked(x, *others, **seen):
        found = function(x, *others, **seen)
        if not isinstance(found, torch.Tensor) or not holds(found, x):
            got = ' '.join(repr(found).split())
            raise ValueError(f'{path}:{name} must return {wanted}, got {got:.99}')
        return found.to(x.device)

    checked.sees = sees
    checked.is_score = is_score
    kept = f'{os.path.basename(path)}:{name}@{digest}'
    LOADED[kept] = checked
    return kept


@cache
def names_of(path, digest):
    """Run a file that has this digest. Return {name: what it stands for}."""
    return runpy.run_path(path)


def loaded(kept):
    """Return the function of FILE.py:NAME@DIGEST.

    Raises ValueError unless this process was told to run the file."""
    if kept not in LOADED:
        raise ValueError(
            f'the checkpoint names the order {kept}, which no checkpoint runs: add '
            f'--order=PATH/{undigested(kept)} (--val_orders= if it is one of these; eval_ppl.py '
            'and puzzles solve: --orders=)'
        )
    return LOADED[kept]


def resolved(function):
    """Return a function of the project: the one that 'module:name' names, which is imported now, or
    the function itself."""
    return pkgutil.resolve_name(function) if isinstance(function, str) else function
