"""How does an option name an order? By a name of ORDERS, FILE.py:NAME, or a JSON file."""

import json
import os

from anyorder.functions import load_order
from anyorder.machine.files import read_text, reading
from anyorder.orders import ORDERS, Order, parts_of
from configurator import home, nearest


def read_order(text, *others):
    """Return what an option says of an order, for Order.of: a str, or a list of positions.

    It is `text` itself if it is NAME[:NUMBER][@SEED] or one of `others`; with a digest if it is
    FILE.py:NAME[:NUMBER], whose file is run; else the positions of the JSON file of this name.
    Raises ValueError for any other text, and for a file that holds no permutation of the positions
    from 0 on."""
    text = home(text)
    if text in others:
        return text
    kind, number, seed = parts_of(text)
    if number is not None and number >= 2**31:
        raise ValueError(f'the NUMBER of an order must be below 2^31, got {text}')
    if kind in ORDERS:
        takes_number = number is None or ORDERS[kind].parameter is not None
        if takes_number and (seed is None or ORDERS[kind].has_seed):
            return text
    if '.py:' in kind:
        kept = load_order(*kind.rsplit(':', 1))
        return kept if number is None else f'{kept}:{number}'
    if not os.path.isfile(text):
        numbered = [f'{name}:NUMBER' for name in ORDERS if ORDERS[name].parameter is not None]
        seeded = [f'{name}@SEED' for name in ORDERS if ORDERS[name].has_seed]
        names = ', '.join([*others, *ORDERS, *numbered, *seeded])
        near = ''
        if text.isidentifier():  # no path, and no number behind a name
            near = nearest(text, [*others, *ORDERS])
        raise ValueError(
            f'{text!r} is no order{near}; an order must be {names}, a function FILE.py:NAME, or a '
            'JSON file with a list of positions'
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
