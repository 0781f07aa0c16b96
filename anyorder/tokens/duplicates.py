"""Which documents stand in several splits of a set? A document is known by a hash of 64 bits of its tokens."""

import itertools
from array import array

import numpy as np

BLOCK = 1 << 16  # bytes that are hashed at once
LEARNED = 'train'  # the split that others must not share


class Hashes:
    """The hashes of the documents in a split, whose bytes come in any pieces, as hashlib takes them. Each piece holds
    the end of at most one document, as its last token `eos`. A document without text does not count."""

    def __init__(self, eos, dtype):
        self.end, self.found = np.array(eos, dtype).tobytes(), array('q')
        self.state, self.rest = 0, b''

    def update(self, piece):
        data = self.rest + piece
        if len(data) > BLOCK:
            n_hashed = (len(data) - 1) // BLOCK * BLOCK  # the last block is hashed with the end
            for start in range(0, n_hashed, BLOCK):
                self.state = hash((self.state, data[start : start + BLOCK]))
            data = data[n_hashed:]
        if not data.endswith(self.end):
            self.rest = data
            return
        if self.state or data != self.end:
            self.found.append(hash((self.state, data)))
        self.state, self.rest = 0, b''


def hashes_on_disk(path, eos, dtype):
    """The hashes of a split that is written already."""
    hashes = Hashes(eos, dtype)
    with open(path, 'rb') as f:
        while len(tokens := np.fromfile(f, dtype, 1 << 22)):
            for part in np.split(tokens, np.flatnonzero(tokens == eos) + 1):
                if len(part):
                    hashes.update(part.tobytes())
    return hashes


def say_shared(hashes, kept):
    """'' or a sentence on the documents that two splits share, of {split: Hashes}; nothing of two that were `kept`."""
    shared, found = [], {}
    for split in sorted(hashes, key=lambda split: split != LEARNED):
        found[split] = np.asarray(hashes[split].found)  # the same memory
        found[split].sort()
    for first, second in itertools.combinations(found, 2):
        places = np.searchsorted(found[first], found[second])
        n = (
            int((found[first].take(places, mode='clip') == found[second]).sum())
            if len(found[first])
            else 0
        )
        if n and not {first, second} <= kept.keys():
            shared.append(
                f'{n:,} of {len(found[second]):,} documents of {second} stand in {first} too'
            )
    if not shared:
        return ''
    return f'{", ".join(shared)}: a model knows duplicates of what it learned, so leave them out of the source'
