"""What is an order? A permutation of the positions of a sequence: order[b, d] is the position of
visit d in row b.

A family of orders is one function here and one entry of ORDERS; every command then takes its name.
An Order is a family with all that the family leaves open."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import NamedTuple

import torch

from anyorder.grids import (
    by_columns,
    by_rows,
    by_squares,
    load_order,
    loaded,
    size_for,
    spiral,
    wants_shape,
)
from anyorder.machine.devices import widest
from anyorder.machine.files import read_text, reading
from anyorder.seeds import derive_seed, seeds_of, stream, uniform  # noqa: F401  (for other programs)
from configurator import home

# Families: functions f(u, n, parameter) that make orders (B, n) of uniform numbers u (B, m) in
# [0, 1); m is Family.n_numbers. The name of the second argument counts: a function that calls it
# `shape` is given the shape (H, W) of the grid of n positions in place of n.


def shuffled(u, n, _):
    """Shuffle the positions: every permutation is as likely (AO sec. 3)."""
    return u.argsort(-1)


def left_to_right(u, n, _):
    return torch.arange(n, device=u.device).expand(len(u), n)


def right_to_left(u, n, _):
    return left_to_right(u, n, None).flip(1)


def blocks_from_left(u, n, size):
    """Visit blocks of `size` positions from left to right, each in the same shuffled order."""
    if size < 1:
        raise ValueError(f'the blocks of an order must have at least 1 position, got {size}')
    position = torch.arange(n, device=u.device)
    inside = u[:, position % size]  # the first `size` numbers, for every block
    return (position // size + inside).argsort(-1)


def swapped(u, n, n_swaps):
    """Swap two visits of left to right, n_swaps times; both are uniform and maybe the same.

    With sqrt(n) swaps these are the "much closer" pi-learners of Kim et al. 2025, arXiv 2502.06768,
    sec. 3.2; with n / 10 "closer"."""
    order = torch.arange(n, device=u.device).repeat(len(u), 1)
    pairs = (u * n).long().view(len(u), n_swaps, 2)
    for pair in pairs.unbind(1):  # (B, 2)
        order.scatter_(1, pair, order.gather(1, pair.flip(1)))
    return order


def sorted_subset(u, n, _):
    """Visit a random set of positions in reading order, then the rest in reading order.

    Infilling asks a model for no other orders. The size of the set is uniform from 0 to n, and the
    set uniform (Shih et al. 2022, arXiv 2205.13554; AC-GPT, arXiv 2606.14943). What a row is given
    comes before both: in training the part in the set first (given_first), in writing from left to
    right. To fill blanks with such a model, take --order=l2r."""
    level = u[:, n:]  # (B, 1), the expected share of the set
    is_rest = u[:, :n] >= level
    return is_rest.int().argsort(stable=True)


def few(u, n, shared):
    """Choose one of the orders `shared` (K, n), each as often, see few_orders."""
    which = u.sum(-1) * len(shared)  # the one number of u (B, 1), or 0 of u (B, 0) if K is 1
    return shared[which.long()]


@cache
def few_orders(order, n, device):
    """Return (K, n): left to right, then the orders of `fixed` of the next K - 1 seeds."""
    n_orders = order.parameter
    if n_orders < 1:
        raise ValueError(f'few orders are at least 1, got few:{n_orders}')
    rows = [one_order(replace(order, kind='l2r', parameter=None), n, device)]
    for k in range(1, n_orders):
        fixed = replace(order, kind='fixed', parameter=None, seed=order.seed + k)
        rows.append(one_order(fixed, n, device))
    return torch.stack(rows)


def listed(u, n, positions):
    """Return the positions of a JSON file, however many they are."""
    return torch.tensor(positions, dtype=torch.long).expand(len(u), -1)


class Family(NamedTuple):
    """A law of orders.

    orders     f(u, n, parameter), see above
    drawn      u is fresh in every row; else all rows share stream(seed, 'order')
    parameter  what there is to choose, by default; None: nothing
    n_numbers  f(n, parameter): how many numbers u has, m
    shared     f(order, n, device): what the rows of an Order share, in place of the parameter"""

    orders: Callable
    drawn: bool = False
    parameter: int | tuple | None = None
    n_numbers: Callable = lambda n, parameter: n
    shared: Callable | None = None


# an option names a family as NAME, or with its parameter as NAME:NUMBER (--help lists these names,
# which it reads in this source without an import)
ORDERS = {
    'random': Family(shuffled, drawn=True),
    'l2r': Family(left_to_right, n_numbers=lambda n, _: 0),
    'r2l': Family(right_to_left, n_numbers=lambda n, _: 0),
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
# NUMBER.split(text) is [NAME] or [NAME, NUMBER]; a NAME may have a colon too
NUMBER = re.compile(r':(?=\d+$)')


@dataclass(frozen=True)
class Order:
    """The order of a run or of a text: a family, and all that the family leaves open.

    kind       a name of ORDERS; 'listed', the positions of a JSON file; or FILE.py:NAME@DIGEST, a
               function of a user, which an Order may name before its file is run
    parameter  what the family lets one choose; None is the family's default
    seed       of a family that is one order, or few: which ones
    length     positions of the stored order, of which those below n stay; None: as many as asked
    shape      (H, W) of the grid that the positions are, if they are one"""

    kind: str = 'random'
    parameter: int | tuple | None = None
    seed: int = 0
    length: int | None = None
    shape: tuple | None = None

    def __post_init__(self):
        if not self.is_function and self.kind != 'listed' and self.kind not in ORDERS:
            raise ValueError(f'order must be {", ".join(ORDERS)}, got {self.kind!r}')
        if self.parameter is None and not self.is_function:
            object.__setattr__(self, 'parameter', self.family.parameter)

    @classmethod
    def of(cls, text, run):
        """Return the Order that a text names in a run. What the text leaves open is as in the run.

        text  as read_order gives it, or 'own': the order in which the run trains
        run   the options of the run, as a checkpoint's `config` has them"""
        if text == 'own':
            text = run.get('order', 'random')
        seed = run.get('order_seed', 0)
        length = run.get('block_size')
        shape = tuple(run.get('shape') or ()) or None
        if not isinstance(text, str):
            return cls('listed', tuple(text), seed, length, shape)
        kind, *number = NUMBER.split(text)
        parameter = int(number[0]) if number else parameter_in(run, kind)
        return cls(kind, parameter, seed, length, shape)

    @property
    def is_function(self):
        return '.py:' in self.kind

    @property
    def family(self):
        """The Family. Raises ValueError for a function whose file was not run."""
        if self.is_function:
            return Family(loaded(self.kind), drawn=True)
        if self.kind == 'listed':
            return LISTED
        return ORDERS[self.kind]

    @property
    def drawn(self):
        """Whether each row has a draw of its own; else all rows share the order of the seed."""
        return self.family.drawn

    @property
    def wants_shape(self):
        return wants_shape(self.family.orders)

    @property
    def law(self):
        """'random': uniform; 'several': another draw or seed gives others; 'one': none does."""
        if self.kind == 'random':
            return 'random'
        n_numbers = self.family.n_numbers(2, self.parameter)  # of any n above 1
        return 'several' if n_numbers > 0 else 'one'

    @property
    def estimate(self):
        """The name of the likelihood in this order, for a network that was trained in it."""
        return {'random': 'any', 'l2r': 'l2r'}.get(self.kind, 'own')

    @property
    def kept(self):
        """What a checkpoint keeps, for Order.of: NAME, NAME:NUMBER or the list of positions."""
        if self.kind == 'listed':
            return list(self.parameter)
        if type(self.parameter) is not int:
            return self.kind
        return f'{self.kind}:{self.parameter}'

    @property
    def name(self):
        """What a table calls it: what a checkpoint keeps, without digest and without positions."""
        if self.kind == 'listed':
            return self.kind
        return re.sub('@[0-9a-f]{12}', '', self.kept)

    def name_as(self, text):
        """Return what a table calls it where an option named it so; positions have their file's."""
        if self.kind == 'listed':
            return os.path.basename(text)
        return self.name

    @property
    def entries(self):
        """What a file of results says, as a dict; shape only of a grid."""
        entries = asdict(self)
        if self.shape is None:
            del entries['shape']
        return entries

    def check(self, n, block_size=None):
        """Raise ValueError unless n positions have such an order.

        block_size  positions of the model, by default n; a file may hold more than n, not more"""
        most = block_size or n
        if self.kind == 'listed' and len(self.parameter) > most:
            raise ValueError(
                f'an order must hold at most the {most} positions of the model, got '
                f'{len(self.parameter)}'
            )
        self.draw(1, n, stream())  # raises where a file or a function is wrong

    def draw(self, batch_size, n, generator=None, l2r_ratio=0.0, device=None, keys=None):
        """Return orders (batch_size, n); a row is left to right with probability l2r_ratio.

        generator  draws the numbers of each row; by default torch's own generator of the device
        keys       (batch_size,) of keys_of, in place of a generator: a row's order depends on its
                   own key alone"""
        n_numbers = n
        if self.drawn:
            n_numbers = self.family.n_numbers(n, self.parameter)

        # The last number of a row decides whether the row is left to right. An order that is not
        # drawn takes as many numbers as a random one
        if self.drawn or l2r_ratio:
            u = uniforms_of_rows(batch_size, n_numbers + 1, generator, device, keys)
        if self.drawn:
            order = orders_of_uniforms(self, u[:, :-1], n, device)
        else:
            order = one_order(self, n, str(device or 'cpu')).repeat(batch_size, 1)
        if not l2r_ratio:
            return order
        is_l2r = u[:, -1:] < l2r_ratio
        return torch.where(is_l2r, torch.arange(n, device=device), order)


def parameter_in(run, kind):
    """Return the parameter that the options of a run give a family, or None."""
    own = run.get('order', 'random')
    if isinstance(own, str):
        own_kind, *number = NUMBER.split(own)
        # the file of a function may have been edited since
        if number and own_kind.partition('@')[0] == kind.partition('@')[0]:
            return int(number[0])
    older = run.get(f'order_{kind}')  # the option of older checkpoints
    return None if older is None else int(older)


def uniforms_of_rows(batch_size, n_numbers, generator, device, keys):
    """Return uniform numbers (batch_size, n_numbers), see Order.draw."""
    if keys is not None:
        return uniform(keys.unsqueeze(1), 'order', torch.arange(n_numbers, device=keys.device))
    dtype = widest(torch.device(device or 'cpu'))  # float64: no ties; float32: few
    return torch.rand(batch_size, n_numbers, device=device, dtype=dtype, generator=generator)


def orders_of_uniforms(order, u, n, device):
    """Return the orders (B, n) that a drawn family makes of numbers u (B, m)."""
    family = order.family
    parameter = order.parameter
    if family.shared:
        parameter = family.shared(order, n, str(device or 'cpu'))
    return family.orders(u, size_for(family.orders, n, order.shape), parameter)


@cache
def one_order(order, n, device):
    """Return the order (n,) that all rows share. A longer one leaves out positions from n on.

    Drawn on the host, where a seed gives the same numbers for all devices, and copied once."""
    family = order.family
    length = order.length or n
    n_numbers = family.n_numbers(length, order.parameter)
    u = torch.rand(1, n_numbers, dtype=torch.float64, generator=stream(order.seed, 'order'))
    size = size_for(family.orders, length, order.shape)
    positions = family.orders(u, size, order.parameter)[0]
    below_n = positions[positions < n]
    if below_n.sort().values.tolist() != list(range(n)):
        least = min(positions.tolist(), default=None)
        most = max(positions.tolist(), default=None)
        raise ValueError(
            f'an order must hold every position, from 0 to {n - 1}, once; got {len(positions)} '
            f'from {least} to {most}'
        )
    return below_n.to(device)


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
    """Return orders (batch_size, n) of the family `kind` (AO sec. 3), by one call for programs.

    l2r_ratio, device, generator, keys    as in Order.draw
    kind, parameter, seed, length, shape  as in Order"""
    if shape:
        shape = tuple(shape)
    order = Order(kind, parameter, seed, length, shape)
    return order.draw(batch_size, n, generator, l2r_ratio, device, keys)


RANDOM = Order()


def draw_orders(numbers, n, n_orders=1, seed=0, order=RANDOM):
    """Return orders (len(numbers), n_orders, n) of the blocks of these numbers.

    A drawn family gives orders that are a function of (seed, number) alone. Another family is one
    order a seed: all blocks have the same, of n_orders seeds from the Order's own on."""
    if order.drawn:
        blocks = [order.draw(n_orders, n, stream(seed, int(number))) for number in numbers]
        return torch.stack(blocks)
    shared = [replace(order, seed=order.seed + k).draw(1, n) for k in range(n_orders)]
    return torch.cat(shared).repeat(len(numbers), 1, 1)


def given_first(order, given, n_visits=None, left_to_right=False):
    """Move what is given to the front of orders (B, N), and padding to their end.

    Each of the three parts keeps its order, but what is given may be left_to_right.

    given     (B, N) by position
    n_visits  (B,) positions that are no padding, which begins there; None: there is no padding
    returns   the orders (B, N), n_given (B,), n_blanks (B,)"""
    is_blank = ~given.gather(1, order)
    part = is_blank.int()  # (B, N) by visit: 0 given, 1 blank, 2 padding
    if n_visits is not None:
        is_padding = order >= n_visits.unsqueeze(1)
        part = part.masked_fill(is_padding, 2)
    rank = part
    if left_to_right:  # what is given ranks by position, below N; blanks N + 1, padding N + 2
        rank = order.where(part == 0, order.size(1) + part)
    new = order.gather(1, rank.argsort(stable=True))
    n_given = (part == 0).sum(1)
    n_blanks = (part == 1).sum(1)
    return new, n_given, n_blanks


def read_order(text, *others):
    """Return what an option says of an order, for Order.of: a str, or a list of positions.

    It is `text` itself if it is NAME, NAME:NUMBER or one of `others`; with a digest if it is
    FILE.py:NAME[:NUMBER], whose file is run; else the positions of the JSON file of this name.
    Raises ValueError for any other text, and for a file that holds no permutation of the positions
    from 0 on."""
    text = home(text)
    kind, *number = NUMBER.split(text)
    if text in others:
        return text
    if kind in ORDERS and (not number or ORDERS[kind].parameter is not None):
        return text
    if '.py:' in kind:
        kept = load_order(*kind.rsplit(':', 1))
        return ':'.join([kept, *number])
    if not os.path.isfile(text):
        numbered = [f'{name}:NUMBER' for name in ORDERS if ORDERS[name].parameter is not None]
        names = ', '.join([*others, *ORDERS, *numbered])
        raise ValueError(
            f'an order must be {names}, a function FILE.py:NAME, or a '
            f'JSON file with a list of positions, got {text!r}'
        )
    return read_positions(text)


def read_positions(path):
    """Return the positions of a JSON file. Raises ValueError unless they are a permutation."""
    rule = 'it must hold every one from 0 on once; a function is FILE.py:NAME'
    with reading(path, 'a JSON list of positions', rule):
        positions = json.loads(read_text(path))
        if not positions or {*map(type, positions)} != {int}:
            raise ValueError('no list of integers')
        if sorted(positions) != list(range(len(positions))):
            raise ValueError('no permutation')
    return positions


def order_option(options, saved=None):
    """Return what the Config `options` says of an order, as Order.kept.

    What the Config does not say is as in `saved`, the options of the run that is resumed."""
    saved = saved or {}
    # given: by a config file or by the command line
    if 'order' in options.given - options.typed and '.py:' in options.order:
        raise ValueError(
            f'a config file runs no code: leave out its order, and type --order={options.order}'
        )
    if 'order' in options.given:
        text = read_order(options.order)
    else:
        text = saved.get('order', options.order)
    return Order.of(text, saved).kept
