"""What is an order? A permutation of the positions of a sequence: order[b, d] is the position of visit d in row b.

A family of orders is one function here and one entry of ORDERS; every command then takes its name."""

import json
import os
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from anyorder.grids import by_columns, by_rows, by_squares, load_order, loaded, size_for, spiral
from anyorder.machine.devices import widest
from anyorder.machine.files import read_text, reading
from anyorder.seeds import derive_seed, seeds_of, stream, uniform  # noqa: F401  (the first two for other programs)
from configurator import home

# families: functions f(u, n, parameter) that make orders (B, n) of uniform numbers u (B, m) in [0, 1). A second
# argument named `shape` is the shape (H, W) of the grid of n positions instead


def shuffled(u, n, _):
    """A uniform permutation (AO sec. 3)."""
    return u.argsort(-1)


def left_to_right(u, n, _):
    return torch.arange(n, device=u.device).expand(len(u), n)


def blocks_from_left(u, n, size):
    """Blocks of `size` positions from left to right, each in the same inner order, a uniform one."""
    if size < 1:
        raise ValueError(f'the blocks of an order must have at least 1 position, got {size}')
    position = torch.arange(n, device=u.device)
    return (position // size + u[:, position % size]).argsort(-1)


def swapped(u, n, n_swaps):
    """Left to right, and then n_swaps transpositions of two visits, both uniform and maybe the same. With sqrt(n) swaps
    these are the "much closer" pi-learners of Kim et al. 2025, arXiv 2502.06768, sec. 3.2; with n / 10 "closer"."""
    order = torch.arange(n, device=u.device).repeat(len(u), 1)
    for pair in (u * n).long().view(len(u), n_swaps, 2).unbind(1):  # (B, 2)
        order.scatter_(1, pair, order.gather(1, pair.flip(1)))
    return order


def sorted_subset(u, n, _):
    """Known positions in reading order, and then the rest in reading order: all that infilling asks for. The number of
    known ones is uniform from 0 to n, their set uniform (Shih et al. 2022, arXiv 2205.13554; AC-GPT, arXiv 2606.14943).
    The set has given positions of a row, too: they come first, those of the set before the others.
    To fill blanks with such a model, take --order=l2r."""
    return (u[:, :n] >= u[:, n:]).int().argsort(stable=True)


def few(u, n, shared):
    """One of the orders `shared` (K, n), each as often, see few_orders."""
    return shared[(u.sum(-1) * len(shared)).long()]  # of one number; of none if K is 1


@cache
def few_orders(n, n_orders, seed, length, device):
    """(K, n): left to right, and then the orders that `fixed` has of the seeds seed + 1, seed + 2, ..."""
    if n_orders < 1:
        raise ValueError(f'few orders are at least 1, got few:{n_orders}')
    kinds = ['l2r', *['fixed'] * (n_orders - 1)]
    return torch.stack(
        [one_order(kind, n, None, seed + k, length, device, None) for k, kind in enumerate(kinds)]
    )


def listed(u, n, positions):
    """The positions of a JSON file, however many they are."""
    return torch.tensor(positions, dtype=torch.long).expand(len(u), -1)


class Family(NamedTuple):
    """A law of orders."""

    orders: Callable  # f(u, n, parameter), see above
    drawn: bool = False  # u is fresh in every row; else all rows share stream(seed, 'order')
    parameter: int | tuple | None = None  # what there is to choose, by default; None: nothing
    n_numbers: Callable = lambda n, parameter: n  # m
    shared: Callable | None = (
        None  # f(n, parameter, seed, length, device): what rows share, in its place
    )


# an option names a family as NAME, or with its parameter as NAME:NUMBER; --help reads the names in this source
ORDERS = {
    'random': Family(shuffled, drawn=True),
    'l2r': Family(left_to_right, n_numbers=lambda n, _: 0),
    'r2l': Family(lambda u, n, _: left_to_right(u, n, _).flip(1), n_numbers=lambda n, _: 0),
    'fixed': Family(shuffled),
    'block': Family(blocks_from_left, parameter=4),
    'swaps': Family(swapped, parameter=16, n_numbers=lambda n, n_swaps: 2 * n_swaps),
    'few': Family(
        few, drawn=True, parameter=2, n_numbers=lambda n, K: int(K > 1), shared=few_orders
    ),
    'sorted_subset': Family(sorted_subset, drawn=True, n_numbers=lambda n, _: n + 1),
    'rows': Family(by_rows, drawn=True),
    'columns': Family(by_columns, drawn=True),
    'spiral': Family(spiral, n_numbers=lambda n, _: 0),
    'blocks2d': Family(by_squares, drawn=True, parameter=2, n_numbers=lambda n, _: 2 * n),
}
LISTED = Family(listed, parameter=(), n_numbers=lambda n, _: 0)  # the positions of a JSON file
NUMBER = re.compile(r':(?=\d+$)')  # between a name, which may have a colon too, and its number


def family_of(kind):
    if kind == 'listed':
        return LISTED
    if '.py:' in kind:
        return Family(loaded(kind), drawn=True)
    if kind not in ORDERS:
        raise ValueError(f'order must be {", ".join(ORDERS)}, got {kind!r}')
    return ORDERS[kind]


def has_several(order):
    """Whether another draw or seed gives another order; `order` holds the arguments of sample_order."""
    return family_of(order['kind']).n_numbers(2, order.get('parameter')) > 0


def sample_order(
    batch_size,
    n,
    kind='random',
    l2r_ratio=0.0,
    device=None,
    generator=None,
    parameter=None,
    seed=0,
    length=None,
    shape=None,
    keys=None,
):
    """Orders (batch_size, n): a row is left to right with probability l2r_ratio, else of the family `kind` (AO sec. 3).

    generator   draws the numbers of each row; by default torch's own generator of the device
    keys        (batch_size,) of keys_of, in place of a generator: a row's order depends on its own key alone
    parameter   what the family lets one choose; None is the family's default
    seed, length   for a family that is one order, or few: which ones, and how many positions they have; the first n
                stay
    shape       (H, W) of the grid that the positions are, if they are one"""
    family = family_of(kind)
    parameter = family.parameter if parameter is None else parameter
    m = (
        family.n_numbers(n, parameter) if family.drawn else n
    )  # n: the number for l2r_ratio is the last of n + 1
    if family.drawn or l2r_ratio:  # float64: no ties; float32: few
        if keys is not None:
            u = uniform(keys.unsqueeze(1), 'order', torch.arange(m + 1, device=keys.device))
        else:
            dtype = widest(torch.device(device or 'cpu'))
            u = torch.rand(batch_size, m + 1, device=device, dtype=dtype, generator=generator)
    if family.drawn:
        if family.shared:
            parameter = family.shared(n, parameter, seed, length or n, str(device or 'cpu'))
        order = family.orders(u[:, :m], size_for(family.orders, n, shape), parameter)  # (B, n)
    else:
        order = one_order(
            kind, n, parameter, seed, length or n, str(device or 'cpu'), shape and tuple(shape)
        ).repeat(batch_size, 1)
    return (
        torch.where(u[:, m:] < l2r_ratio, torch.arange(n, device=device), order)
        if l2r_ratio
        else order
    )


@cache  # drawn on the host, where a seed gives the same numbers for all devices; copied once
def one_order(kind, n, parameter, seed, length, device, shape):
    family = family_of(kind)
    u = torch.rand(
        1, family.n_numbers(length, parameter), dtype=torch.float64, generator=stream(seed, 'order')
    )
    order = family.orders(u, size_for(family.orders, length, shape), parameter)[0]
    kept = order[order < n]
    if kept.sort().values.tolist() != list(range(n)):
        raise ValueError(
            f'an order must hold every position, from 0 to {n - 1}, once; got {len(order)} from '
            f'{min(order.tolist(), default=None)} to {max(order.tolist(), default=None)}'
        )
    return kept.to(device)


def check_order(order, n, block_size):
    """Raise ValueError unless these arguments of sample_order give orders of n positions, for a model of block_size
    positions. A file may hold more positions than n, but not more than the model has."""
    if order['kind'] == 'listed' and len(order['parameter']) > block_size:
        raise ValueError(
            f'an order must hold at most the {block_size} positions of the model, got '
            f'{len(order["parameter"])}'
        )
    sample_order(1, n, **order, generator=stream())


def name_of(order, path=''):
    """What a table calls these arguments of sample_order: as kept_order, without digest; or the name of a JSON file."""
    if order['kind'] == 'listed':
        return os.path.basename(path) or 'listed'
    return re.sub('@[0-9a-f]{12}', '', kept_order(order))


def draw_orders(numbers, n, n_orders=1, seed=0, order=None):
    """Orders (len(numbers), n_orders, n) of the blocks of these numbers. A drawn family gives orders that are a
    function of (seed, number) alone. Another family is one order a seed: all blocks have the same, of n_orders seeds
    from its own on. `order` holds the arguments of sample_order, as order_of gives them; by default it is random."""
    order = order or {'kind': 'random'}
    if family_of(order['kind']).drawn:
        return torch.stack(
            [sample_order(n_orders, n, **order, generator=stream(seed, int(b))) for b in numbers]
        )
    seeds = range(order.get('seed', 0), order.get('seed', 0) + n_orders)
    return torch.cat([sample_order(1, n, **order | {'seed': s}) for s in seeds]).repeat(
        len(numbers), 1, 1
    )


def given_first(order, given, n_visits=None, left_to_right=False):
    """(order, n_given (B,), n_blanks (B,)): in order (B, N) the positions of `given` (B, N) come first, blanks next and
    padding, from position n_visits (B,) on, last. Each part keeps its order, but what is given may be left_to_right."""
    part = (~given.gather(1, order)).int()  # (B, N) by visit
    if n_visits is not None:
        part = part.masked_fill(order >= n_visits.unsqueeze(1), 2)
    rank = order.where(part == 0, order.size(1) + part) if left_to_right else part
    return order.gather(1, rank.argsort(stable=True)), (part == 0).sum(1), (part == 1).sum(1)


def read_order(text, *others):
    """What an option says of an order, for order_of: `text` itself if it is NAME, NAME:NUMBER or one of `others`; with
    a digest if it is FILE.py:NAME[:NUMBER], whose file is run; else the positions of the JSON file of this name. Raises
    ValueError for any other text, and for a file that holds no permutation of the positions from 0 on."""
    text = home(text)
    kind, *number = NUMBER.split(text)
    if text in others or kind in ORDERS and (not number or ORDERS[kind].parameter is not None):
        return text
    if '.py:' in kind:
        return ':'.join([load_order(*kind.rsplit(':', 1)), *number])
    if not os.path.isfile(text):
        numbered = [f'{name}:NUMBER' for name in ORDERS if ORDERS[name].parameter is not None]
        raise ValueError(
            f'an order must be {", ".join([*others, *ORDERS, *numbered])}, a function FILE.py:NAME, or a '
            f'JSON file with a list of positions, got {text!r}'
        )
    with reading(
        text,
        'a JSON list of positions',
        'it must hold every one from 0 on once; a function is FILE.py:NAME',
    ):
        positions = json.loads(read_text(text))
        if (
            not positions
            or {*map(type, positions)} != {int}
            or sorted(positions) != list(range(len(positions)))
        ):
            raise ValueError('no permutation')
    return positions


def order_option(options, saved=None):
    """What the Config `options` says of an order, as a checkpoint keeps it: NAME, NAME:NUMBER or the positions of a
    file. What the Config does not say is as in `saved`, the options of the run that is resumed."""
    saved = saved or {}
    if 'order' in options.given - options.typed and '.py:' in options.order:
        raise ValueError(
            f'a config file runs no code: leave out its order, and type --order={options.order}'
        )
    order = (
        read_order(options.order) if 'order' in options.given else saved.get('order', options.order)
    )
    return kept_order(order_of(saved, order))


def kept_order(order):
    """These arguments of sample_order as a checkpoint keeps them, see order_option."""
    if order['kind'] == 'listed':
        return list(order['parameter'])
    return (
        order['kind']
        if type(order.get('parameter')) is not int
        else f'{order["kind"]}:{order["parameter"]}'
    )


def order_of(run, order=None):
    """The arguments of sample_order for a run with these options, as a checkpoint's `config` has them: for its own
    order, or for another one that read_order gave. What the other one leaves open is as in the run."""
    own = run.get('order', 'random')
    order = own if order is None else order
    if isinstance(order, str):
        kind, *number = NUMBER.split(order)
        of_run, *its_number = NUMBER.split(own) if isinstance(own, str) else ['']
        if kind.partition('@')[0] == of_run.partition('@')[0]:  # a file may have been edited since
            number = number or its_number
        older = run.get(f'order_{kind}')  # the option of older checkpoints
        number = number or ([] if older is None else [older])
        parameter = (
            int(number[0]) if number else None if '.py:' in kind else family_of(kind).parameter
        )
    else:
        kind, parameter = 'listed', tuple(order)
    order = {
        'kind': kind,
        'parameter': parameter,
        'seed': run.get('order_seed', 0),
        'length': run.get('block_size'),
    }
    return (
        order | {'shape': tuple(run['shape'])} if run.get('shape') else order
    )  # journals name an order by its items
