"""What is a set made of, and how do documents become splits? By their own, or drawn by a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from anyorder.tokens.tokenizers import Begun

SPLIT_SEED = 2357
VAL_RATIO = 0.1  # the share of val in a source of one's own
TRAIN_AND_VAL = ('train', 'val')
SPLITS = (*TRAIN_AND_VAL, 'test')


@dataclass
class Documents:
    """What a function returns, or a generator yields, which is called each time they are read."""

    read: Callable

    def __iter__(self):
        return iter(self.read())


@dataclass
class Source:
    """What a set is made of.

    origin  what meta.json says of it
    parts   {names of splits: Documents, or an array}; of ('train', 'val') each document is of one
            of the two
    in_val  {numbers of the documents of ('train', 'val') that are of val}"""

    origin: str
    parts: dict
    in_val: frozenset = frozenset()

    @property
    def splits(self):
        """The names of all splits."""
        return sorted(split for names in self.parts for split in names)

    def divide(self, val_ratio):
        """Draw the documents of val, of which it has a share `val_ratio`.

        A lone text becomes two, the end of it is val."""
        if TRAIN_AND_VAL not in self.parts:
            return
        documents = self.parts[TRAIN_AND_VAL]
        n = 0
        length = 0
        for piece in documents:
            n += not isinstance(piece, Begun)
            length += len(piece)
        self.in_val = draw_val(n, val_ratio)
        if n == 1 and isinstance(piece, str):
            cut = int(length * (1 - val_ratio))
            self.parts[TRAIN_AND_VAL] = Documents(partial(cut_in_two, documents, cut))
            self.in_val = {1}

    def split_of(self, names, number):
        """Return the split of a document of the part with these `names`."""
        return names[number in self.in_val]

    def of_train(self):
        """Yield the documents of the train split."""
        for names, documents in self.parts.items():
            number = 0
            for piece in documents:
                if self.split_of(names, number) == 'train':
                    yield piece
                number += not isinstance(piece, Begun)


def names_of(split):
    """Return the names of the splits that become of documents: one, or '' divides them."""
    return (split,) if split else TRAIN_AND_VAL


def draw_val(n, val_ratio):
    """Return {numbers of those that are of val} of n documents: a share `val_ratio`, of which one
    at least."""
    n_val = min(n, max(1, round(n * val_ratio)))
    return {*random.Random(SPLIT_SEED).sample(range(n), n_val)}


def cut_in_two(pieces, cut):
    """Yield the pieces of one document as those of two, the first of which has `cut` letters."""
    for piece in pieces:
        if 0 <= cut <= len(piece):
            yield piece[:cut]
            piece = type(piece)(piece[cut:])
            cut = -1
        yield piece
        cut -= len(piece)
