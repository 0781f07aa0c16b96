"""What is an order? A permutation of the positions of a sequence: order[b, d] is the position of
visit d in row b.

A family of orders is one function and one entry of ORDERS, Family(f, drawn=True) if each sequence
has its own draw, else all rows share one. An Order is a family with all that it leaves open."""

import inspect
import json
import math
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch

from anyorder.functions import load, loaded, resolved
from anyorder.machine.devices import widest
from anyorder.machine.files import read_text, reading
from anyorder.names import is_own, parsed, printed, undigested
from anyorder.seeds import derive_seed, numbered_keys, random_bits, stream, uniform
from configurator import home, names_in, nearest

# Families: functions f(u, n, parameter) that make orders (B, n) of uniform numbers u (B, m) in
# [0, 1). One that calls its second argument `shape` is given the shape (H, W) of a grid.


def shuffled(u, n, _):
    """Every permutation is as likely (AO sec. 3)."""
    return u.argsort(-1)


def left_to_right(u, n, _):
    return torch.arange(n, device=u.device).expand(len(u), n)


def right_to_left(u, n, _):
    return left_to_right(u, n, None).flip(1)


def blocks_from_left(u, n, size):
    """Blocks of `size` positions from left to right, each in the same shuffled order."""
    position = torch.arange(n, device=u.device)
    inside = u[:, position % size]  # the same for every block
    return (position // size + inside).argsort(-1)


def listed(u, n, positions):
    return torch.tensor(positions, dtype=torch.long).expand(len(u), -1)


class Family(NamedTuple):
    """A law of orders.

    orders     f(u, n, parameter), or 'module:name' of one that is imported where it is used
    drawn      u is fresh in every row; else all rows share stream(seed, 'order')
    parameter  the default of what there is to choose; None: nothing
    n_numbers  f(n, parameter): how many numbers u has, m
    is_whole   whether f is given the Order in place of the parameter: its seed names shared ones"""

    orders: Callable | str
    drawn: bool = False
    parameter: int | tuple | None = None
    n_numbers: Callable = lambda n, parameter: n
    is_whole: bool = False

    @property
    def least(self):
        """The least of the whole numbers that the text of an order may name, {field: number}.

        A seed if another one makes another order, or a few others."""
        found = {}
        if self.parameter is not None:
            found['parameter'] = 1
        if self.is_whole or not self.drawn and self.n_numbers(2, self.parameter) > 0:
            found['seed'] = 0
        return found


def none(n, parameter):
    return 0


MORE = 'anyorder.extras.orders'  # orders that the paper does not have
ORDERS = {
    'random': Family(shuffled, drawn=True),
    'l2r': Family(left_to_right, n_numbers=none),
    'r2l': Family(right_to_left, n_numbers=none),
    'fixed': Family(shuffled),
    'block': Family(blocks_from_left, parameter=4),
    'swaps': Family(f'{MORE}:swapped', parameter=16, n_numbers=lambda n, n_swaps: 2 * n_swaps),
    'few': Family(
        f'{MORE}:few', drawn=True, parameter=2, n_numbers=lambda n, K: int(K > 1), is_whole=True
    ),
    'sorted_subset': Family(f'{MORE}:sorted_subset', drawn=True, n_numbers=lambda n, _: n + 1),
    'rows': Family(f'{MORE}:by_rows', drawn=True),
    'columns': Family(f'{MORE}:by_columns', drawn=True),
    'spiral': Family(f'{MORE}:spiral', n_numbers=none),
    'blocks2d': Family(f'{MORE}:by_squares', drawn=True, parameter=2, n_numbers=lambda n, _: 2 * n),
}
# and the positions of a JSON file
FAMILIES = ORDERS | {'listed': Family(listed, parameter=(), n_numbers=none)}
PARTS = {':': 'parameter', '@': 'seed'}  # of the text that names an order


@dataclass(frozen=True)
class Order:
    """The order of a run or of a text.

    kind       a name of ORDERS; 'listed', the positions of a JSON file; or FILE.py:NAME@DIGEST, a
               function of a user
    parameter  what the family lets one choose; None is its default
    seed       of a family that has one
    length     positions of the stored order, of which those below n stay; None: n
    shape      (H, W) if the positions are a grid

    Its texts, by example:
    kept       few:3@2   [0, 2, 1]     own.py:f@0123456789ab:4
    name       few:3@2   listed        own.py:f:4
    name_as    few:3@2   a.json        own.py:f:4"""

    kind: str = 'random'
    parameter: int | tuple | None = None
    seed: int = 0
    length: int | None = None
    shape: tuple | None = None

    def __post_init__(self):
        if self.is_function:
            return
        if self.kind not in FAMILIES:
            raise ValueError(f'order must be {", ".join(ORDERS)}, got {self.kind!r}')
        if self.parameter is None:
            object.__setattr__(self, 'parameter', self.family.parameter)

    @classmethod
    def of(cls, text, run):
        """Return the Order that a text names; what it leaves open is as in the options of a run.

        text  NAME[:PARAMETER][@SEED], positions, or 'own': the order in which the run trains"""
        own = run.get('order', 'random')
        own_kind, of_own = parts_of(own)
        kind, numbers = parts_of(own if text == 'own' else text)
        # the digest of a function may be another by now
        if undigested(kind) != undigested(own_kind):
            of_own.pop('parameter', None)
        shape = tuple(run.get('shape') or ()) or None
        return cls(kind, **of_own | numbers, length=run.get('block_size'), shape=shape)

    @property
    def is_function(self):
        return is_own(self.kind)

    @property
    def family(self):
        """The Family. Raises ValueError for a function whose file was not run."""
        if self.is_function:
            function = loaded(self.kind)
            return Family(function, True, n_numbers=lambda n, _: n + bool(function.sees))
        return FAMILIES[self.kind]

    @property
    def drawn(self):
        """Whether each row has a draw of its own."""
        return self.family.drawn

    @property
    def sees(self):
        """What its function asks for of the run, names of functions.SEEN: it orders training and
        measuring alone, where there are tokens."""
        return getattr(self.family.orders, 'sees', ())

    @property
    def law(self):
        """'random': uniform; 'several': another draw or seed gives others; 'one': none does."""
        if self.kind == 'random':
            return 'random'
        n_numbers = self.family.n_numbers(2, self.parameter)  # of any n above 1
        return 'several' if n_numbers > 0 else 'one'

    @property
    def known_l2r(self):
        """Whether a text is written in it with what is known read from left to right, not in it."""
        return self.kind in ('random', 'sorted_subset')

    @property
    def estimate(self):
        """The name of the likelihood in this order."""
        return {'random': 'any', 'l2r': 'l2r'}.get(self.kind, 'own')

    def text_of(self, kind):
        """Return the text of an order like this one, of a family of the name `kind`."""
        if self.kind == 'listed':
            return self.kind
        numbers = {'parameter': self.parameter}
        if self.seed and self.kind in ORDERS and 'seed' in self.family.least:
            numbers['seed'] = self.seed
        return printed(kind, PARTS, numbers)

    @property
    def kept(self):
        """What a checkpoint and a file of results keep, for Order.of."""
        return list(self.parameter) if self.kind == 'listed' else self.text_of(self.kind)

    @property
    def name(self):
        """What a table calls it: without digest and without positions."""
        return self.text_of(undigested(self.kind))

    def name_as(self, text):
        """What a table calls it where an option named it so."""
        if self.kind == 'listed':
            return os.path.basename(text)
        return self.name

    def check(self, n, block_size=None):
        """Raise ValueError unless n of the positions of a model have such an order."""
        most = block_size or n
        if self.kind == 'listed' and len(self.parameter) > most:
            raise ValueError(
                f'an order must hold at most the {most} positions of the model, got '
                f'{len(self.parameter)}'
            )
        check_orders(self.draw(1, n, stream()), n, self.name)  # of a function, or of a short file

    def draw(self, batch_size, n, generator=None, l2r_ratio=0.0, device=None, keys=None, **seen):
        """Return orders (batch_size, n); a row is left to right with probability l2r_ratio.

        A row is drawn by the generator, by default torch's own, or by its own key of `keys`. What a
        user's function returns may be no permutation, see check_orders.

        seen  of the run, for a function that asks for it:
              idx    (B, n) tokens, of which those below 0 are padding
              given  (B, n) bool: what is not learned
              step   updates done
              model  the average: in evaluation, without gradients, not compiled"""
        # The last number of a row decides whether it is left to right
        n_numbers = 1 + (self.family.n_numbers(n, self.parameter) if self.drawn else n)
        if keys is not None:
            columns = torch.arange(n_numbers, device=keys.device)
            u = uniform(keys.unsqueeze(1), 'order', columns)
        elif self.drawn or l2r_ratio:
            dtype = widest(torch.device(device or 'cpu'))  # float64: no ties; float32: few
            shape = batch_size, n_numbers
            u = torch.rand(shape, device=device, dtype=dtype, generator=generator)
        if self.drawn:
            order = self.of_uniforms(u[:, :-1], n, **seen)
        else:
            order = one_order(self, n, str(device or 'cpu')).repeat(batch_size, 1)
        if not l2r_ratio:
            return order
        is_l2r = u[:, -1:] < l2r_ratio
        return torch.where(is_l2r, torch.arange(n, device=device), order)

    @torch.no_grad()
    def of_uniforms(self, u, n, **seen):
        """Return the orders (B, n) that the family makes of uniform numbers u (B, m), of which the
        last is the coin of a function to which `seen` is shown."""
        family = self.family
        function = resolved(family.orders)
        size = n
        if [*inspect.signature(function).parameters][1] == 'shape':
            if not self.shape or math.prod(self.shape) != n:
                raise ValueError(
                    f'an order of a grid wants all of its HxW cells, got {n} positions and '
                    f'shape={self.shape}: prepare the set with --shape=HxW, or choose another '
                    'order or block_size'
                )
            size = self.shape
        if not self.sees:
            return function(u, size, self if family.is_whole else self.parameter)
        if not seen:
            raise ValueError(
                f'{self.name} is an order of training, which sees the run: nothing is written in '
                'it, choose another one'
            )
        shown = seen | {
            'coin': u[:, n],
            # copies, which the function may change
            'idx': seen['idx'].clamp(min=0).to(u.device),
            'given': seen['given'].to(u.device, copy=True),
        }
        asked = {name: shown[name] for name in self.sees}
        return function(u[:, :n], size, self.parameter, **asked)


def parts_of(text):
    """Return (kind, {'parameter': ..., 'seed': ...} as far as they are there) of a text, or of
    positions."""
    if not isinstance(text, str):
        return 'listed', {'parameter': tuple(text)}
    return parsed(text, PARTS)


# how an option names an order: by a name of ORDERS, FILE.py:NAME, or a JSON file


def read_order(text, *others):
    """Return what an option says of an order, for Order.of: a str, or a list of positions.

    It is `text` itself if it is NAME[:NUMBER][@SEED] or one of `others`; with a digest if it is
    FILE.py:NAME[:NUMBER], whose file is run; else the positions of the JSON file of this name.
    Raises ValueError for any other text, and for a file that holds no permutation of the positions
    from 0 on."""
    text = home(text)
    if text in others:
        return text
    kind, numbers = parsed(text, PARTS)
    if is_own(kind):
        kept = load(kind)
        if loaded(kept).is_score:
            raise ValueError(f'{kind} is a score, of logits alone, and no order')
        return printed(kept, PARTS, numbers)
    if kind in ORDERS:
        least = ORDERS[kind].least
        if all(type(n) is int and n >= least.get(field, n + 1) for field, n in numbers.items()):
            return text
    if os.path.isfile(text):
        return read_positions(text)
    names = [*others, *ORDERS]
    near = nearest(text, names) if text.isidentifier() else ''
    raise ValueError(
        f'{text!r} is no order{near}; an order must be {", ".join(names)}, where it has them with '
        ':NUMBER and @SEED behind it, a function FILE.py:NAME, or a JSON file with a list of '
        'positions'
    )


def read_positions(path):
    """Return the positions of a JSON file. Raises ValueError unless they are a permutation."""
    rule = 'it must hold every one from 0 on once; a function is FILE.py:NAME'
    with reading(path, 'a JSON list of positions', rule):
        positions = [*map(operator.index, json.loads(read_text(path)))]
        if sorted(positions) != [*range(len(positions))]:
            raise ValueError
    return positions


def order_options(options, saved):
    """Return what the Config `options` says of the orders of training and validation, the first as
    Order.kept, the others for Order.of.

    What a text leaves open is as in `saved`, the options of the run that is resumed. Raises
    ValueError where a config file names a function."""
    for name in ('order', 'val_orders'):
        if is_own(options[name]) and name not in options.typed:
            raise ValueError(
                f'a config file runs no code: leave out its {name}, and type '
                f'--{name}={options[name]}'
            )
    return {
        'order': Order.of(read_order(options.order), saved).kept,
        'val_orders': [read_order(text, 'own') for text in names_in(options.val_orders)],
    }


@cache
def one_order(order, n, device):
    """Return the order (n,) that all rows share: of 64 positions that are stored, as n is 13, those
    below 13.

    On the host a seed gives the same numbers for all devices."""
    length = order.length or n
    n_numbers = order.family.n_numbers(length, order.parameter)
    u = torch.rand(1, n_numbers, dtype=torch.float64, generator=stream(order.seed, 'order'))
    positions = order.of_uniforms(u, length)[0]
    below_n = positions[positions < n]
    check_orders(below_n, n, f'{order.name} of {len(positions)} positions')
    return below_n.to(device)


def check_orders(orders, n, name):
    """Raise ValueError unless each row of orders (..., n) is a permutation, in the order of this
    name. The host waits for the device."""
    if orders.size(-1) != n or not are_permutations(orders).all():
        raise ValueError(
            f'an order must hold every position from 0 to {n - 1} once, and {name} does not'
        )


def are_permutations(orders):
    """Return (...), whether each row of orders (..., n) is a permutation, without a wait."""
    positions = torch.arange(orders.size(-1), device=orders.device)
    return (orders.sort(-1).values == positions).all(-1)


def sample_order(
    batch_size, n, kind='random', l2r_ratio=0.0, device=None, generator=None, keys=None, **order
):
    """Return orders (batch_size, n) by one call; `order` are fields of an Order (AO sec. 3)."""
    if order.get('shape'):
        order['shape'] = tuple(order['shape'])
    return Order(kind, **order).draw(batch_size, n, generator, l2r_ratio, device, keys)


RANDOM = Order()


def draw_orders(numbers, n, n_orders=1, seed=0, order=RANDOM, **seen):
    """Return orders (len(numbers) n_orders, n) of the blocks of these numbers, n_orders of each.

    Those of a drawn family are a function of (seed, number), and of what is `seen` of as many rows,
    see Order.draw. Of another family all blocks have the same, of n_orders seeds."""
    if order.drawn:
        keys = random_bits(numbered_keys(seed, numbers).unsqueeze(1), torch.arange(n_orders))
        keys = keys.flatten()
        if order.sees:
            keys = keys.to(seen['model'].device)
        if order.is_function:  # it may draw more
            torch.manual_seed(derive_seed(seed, 'order', *numbers[:1]))
        orders = order.draw(len(keys), n, keys=keys, **seen).cpu()
        check_orders(orders, n, order.name)
        return orders
    shared = [replace(order, seed=order.seed + k).draw(1, n) for k in range(n_orders)]
    return torch.cat(shared).repeat(len(numbers), 1)


def given_first(order, given, n_visits=None, left_to_right=False):
    """Move what is given to the front of orders (B, N), and padding to their end.

    Each part keeps its order, but what is given may be left_to_right. `given` (B, N) is by
    position, and those from n_visits (B,) on are padding. Returns orders, n_given (B,) and n_blanks
    (B,)."""
    is_blank = ~given.gather(1, order)
    part = is_blank.int()  # (B, N) by visit: 0 given, 1 blank, 2 padding
    if n_visits is not None:
        is_padding = order >= n_visits.unsqueeze(1)
        part = part.masked_fill(is_padding, 2)
    rank = part
    if left_to_right:  # what is given ranks by position, below N; blanks N + 1, padding N + 2
        rank = order.where(part == 0, order.size(1) + part)
    new = order.gather(1, rank.argsort(stable=True))
    return new, (part == 0).sum(1), (part == 1).sum(1)
