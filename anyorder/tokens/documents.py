"""What are documents, and how do they become splits and tokens?

A document is a text, or a pair (prompt, text). A long text comes in pieces, all but the last of
them Begun. Documents are anything that can be iterated more than once."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

SPLIT_SEED = 2357
VAL_RATIO = 0.1  # the share of val in a source of one's own
TRAIN_AND_VAL = ('train', 'val')
SPLITS = (*TRAIN_AND_VAL, 'test')


class Begun(str):
    """A piece of a text that goes on in the next one."""


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
    parts   {split: Documents, or what read_arrays gives}; each document of '' is of train or of val
    in_val  numbers of the documents of '' that are of val"""

    origin: str
    parts: dict
    in_val: frozenset = frozenset()

    @property
    def splits(self):
        """The names of all splits."""
        return TRAIN_AND_VAL if '' in self.parts else sorted(self.parts)

    def divide(self, val_ratio):
        """Draw which documents of '' are of val, which has a share `val_ratio`.

        A lone text becomes two, the end of it is val."""
        if '' not in self.parts:
            return
        documents = self.parts['']
        n = 0
        length = 0
        for piece in documents:
            n += not isinstance(piece, Begun)
            length += len(piece)
        self.in_val = draw_val(n, val_ratio)
        if n == 1 and isinstance(piece, str):
            cut = int(length * (1 - val_ratio))
            self.parts[''] = Documents(partial(cut_in_two, documents, cut))
            self.in_val = {1}

    def split_of(self, part, number):
        """Return the split of a document, by its part and its number there."""
        return part or TRAIN_AND_VAL[number in self.in_val]

    def of_train(self):
        """Yield the documents of the train split."""
        for part, documents in self.parts.items():
            number = 0
            for piece in documents:
                if self.split_of(part, number) == 'train':
                    yield piece
                number += not isinstance(piece, Begun)


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


# --------------------------------------------------------------------------------------------------
# their tokens


def encode_source(source, tokenizer, meta):
    """Yield of each document of a Source its split, its tokens (n,) as on disk, with an end of
    text, its bytes, and 1: what Folder.write wants.

    A text in pieces comes several times, the end and the 1 with the last, before it 0. Of a pair
    (prompt, text) the bytes are the text's, and the prompt is given, see Meta.pack.

    meta  of the set that they are for"""
    dtype = meta.dtype
    end = [] if tokenizer.eos is None else [tokenizer.eos]
    for part, documents in source.parts.items():
        number = 0
        for batch in batches(cut_anew(documents, tokenizer.cut_place)):
            texts = batch
            if meta.prompts:
                found = tokenizer.encode_pairs(batch)
                texts = [text for _, text in batch]
            else:
                found = [([], ids) for ids in tokenizer.encode_batch(batch)]
            for (prompt, ids), text in zip(found, texts):
                ends = not isinstance(text, Begun)
                pieces = (prompt, ids, end if ends else [])
                tokens = np.concatenate([np.asarray(piece, dtype) for piece in pieces])
                tokens[: len(prompt)] |= meta.mark
                yield source.split_of(part, number), tokens, len(text.encode()), int(ends)
                number += ends


def cut_anew(documents, cut):
    """Yield documents whose pieces end where cut(text) says that the tokens are those of the whole
    text."""
    rest = ''
    for document in documents:
        if not isinstance(document, Begun):
            yield rest + document if rest else document
            rest = ''
            continue
        rest += document
        n = cut(rest)
        if n:
            yield Begun(rest[:n])
            rest = rest[n:]


def batches(documents, most=256, letters=1 << 20):
    """Yield lists of at most `most` documents, which end once they hold so many `letters`."""
    batch = []
    n = 0
    for document in documents:
        batch.append(document)
        n += len(document) if isinstance(document, str) else sum(map(len, document))
        if len(batch) == most or n >= letters:
            yield batch
            batch = []
            n = 0
    if batch:
        yield batch


def split_documents(tokens, eos):
    """Yield the ids of each document in a stream of tokens (n,), without the `eos` at its end."""
    for part in np.split(tokens, np.flatnonzero(tokens == eos) + 1):
        if len(part):
            yield part[part != eos].tolist()
