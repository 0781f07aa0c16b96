"""How is the name of an order, a choice of the model, an estimate or lossless:WINDOW read from a
text, and printed? As a KIND and numbers behind their marks, each of which may be left out:
margin/32:0.9+0.5, swaps:16@3, ensemble:64/4."""

import re

# a function of a file has a colon in its name, and maybe a digest
KIND = r'(?s:(.+\.py:\w+(?:@[0-9a-f]{12})?|.*?))'
NUMBER = r'\d{1,9}(?:\.\d*)?|\.\d+'
NUMBERS = {'/': r'\d{1,9}', ':': NUMBER, '+': NUMBER, '@': r'\d+'}  # by their marks


def parsed(text, parts):
    """Return (KIND, {field: number}) of a text.

    parts  {mark: field}, in the order in which they may stand there; of another part KIND is all"""
    numbers = [rf'(?:\{mark}({NUMBERS[mark]}))?' for mark in parts]
    kind, *found = re.fullmatch(KIND + ''.join(numbers), text).groups()
    named = zip(parts.values(), found)
    return kind, {field: float(n) if '.' in n else int(n) for field, n in named if n}


def printed(kind, parts, numbers):
    """Return the text that names a KIND with {field: number}, of which None is left out."""
    for mark, field in parts.items():
        if numbers.get(field) is not None:
            kind += f'{mark}{numbers[field]}'
    return kind


def is_own(kind):
    """Return whether it is the function of a user's file, FILE.py:NAME."""
    return '.py:' in kind


def undigested(kind):
    """Return a KIND as it is typed: FILE.py:NAME without a digest."""
    return kind.partition('@')[0]
