"""Which documents stand in several splits of a set?

A document is known by a hash of 64 bits of its tokens."""

import itertools
from array import array
from hashlib import blake2b

import numpy as np

LEARNED = 'train'  # the split that others must not share


class Hashes:
    """The hashes of the documents in a split.

    Its bytes come in any pieces, as hashlib takes them. Each piece holds the end of at most one
    document, as its last token `eos`. A document without text does not count."""

    def __init__(self, eos, dtype):
        self.end = np.array(eos, dtype).tobytes()
        self.found = array('q')
        self.begun = blake2b(digest_size=8)
        self.empty = blake2b(self.end, digest_size=8).digest()

    def update(self, piece):
        self.begun.update(piece)
        if not piece.endswith(self.end):
            return
        digest = self.begun.digest()
        if digest != self.empty:
            self.found.frombytes(digest)
        self.begun = blake2b(digest_size=8)


def hashes_on_disk(path, eos, dtype):
    """Return the Hashes of a split that is written already."""
    hashes = Hashes(eos, dtype)
    with open(path, 'rb') as f:
        while len(tokens := np.fromfile(f, dtype, 1 << 22)):
            for part in np.split(tokens, np.flatnonzero(tokens == eos) + 1):
                if len(part):
                    hashes.update(part.tobytes())
    return hashes


def say_shared(hashes, kept):
    """Return '' or a sentence on the documents that two splits share, of {split: Hashes}.

    Nothing is said of two splits that were `kept`."""
    splits = sorted(hashes, key=lambda split: split != LEARNED)
    found = {split: np.asarray(hashes[split].found) for split in splits}  # the same memory

    shared = []
    for first, second in itertools.combinations(found, 2):
        n = np.isin(found[second], found[first]).sum()
        if n and not {first, second} <= kept.keys():
            n_all = len(found[second])
            shared.append(f'{n:,} of {n_all:,} documents of {second} stand in {first} too')
    if not shared:
        return ''
    return (
        f'{", ".join(shared)}: a model knows duplicates of what it learned, so leave them out of '
        'the source'
    )
