"""How does an option name an order? By a name of ORDERS, FILE.py:NAME, or a JSON file."""

import json
import os

from anyorder.functions import load, loaded
from anyorder.machine.files import read_text, reading
from anyorder.names import is_own, parsed, printed
from anyorder.orders import ORDERS, PARTS, Order
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
    kind, numbers = parsed(text, PARTS)
    if is_own(kind):
        kept = load(kind)
        if loaded(kept).is_score:
            raise ValueError(f'{kind} is a score, of logits alone, and no order')
        return printed(kept, PARTS, numbers)
    if kind in ORDERS and fits(numbers, ORDERS[kind]):
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


def fits(numbers, family):
    """Return whether a Family has the numbers that the text of an order names, whole ones."""
    least = {}
    if family.parameter is not None:
        least['parameter'] = 1
    if family.has_seed:
        least['seed'] = 0
    for field, number in numbers.items():
        if field not in least or type(number) is not int or number < least[field]:
            return False
    return True


def read_positions(path):
    """Return the positions of a JSON file. Raises ValueError unless they are a permutation."""
    rule = 'it must hold every one from 0 on once; a function is FILE.py:NAME'
    with reading(path, 'a JSON list of positions', rule):
        positions = json.loads(read_text(path))
        # repr tells 0 from 0.0 and from false
        if not positions or repr(sorted(positions)) != repr([*range(len(positions))]):
            raise ValueError('no permutation')
    return positions


def order_option(options, saved=None):
    """Return what the Config `options` says of an order, as Order.kept.

    What the Config does not say is as in `saved`, the options of the run that is resumed."""
    saved = saved or {}
    if 'order' not in options.given:  # by a config file or by the command line
        return Order.of(saved.get('order', options.order), saved).kept
    if is_own(options.order) and 'order' not in options.typed:
        raise ValueError(
            f'a config file runs no code: leave out its order, and type --order={options.order}'
        )
    return Order.of(read_order(options.order), saved).kept
