"""How are several sets read as one? By shares of tokens: the set of a row is drawn, then its
block."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from anyorder.machine.files import check_names
from anyorder.tokens.sets import PADDING, Split
from anyorder.tokens.tokenizers import tokenizer_of_set
from configurator import names_in, number_in

STREAM = 'a stream of tokens'  # whose blocks hold parts of documents
# what sets of one tokenizer may differ in and still be mixed; it may have two names
MAY_DIFFER = ('given', 'puzzle', 'tokenizer', 'tokenizer_file')


def weights_in(text):
    """Return {name of a set: its weight} of the option dataset, as books:0.7,code:0.3.

    Without weights all are None. Raises ValueError for any other text."""
    weights = {}
    for name, colon, number in sets_in(text) or [(text, '', '')]:
        check_names(dataset=name)
        if name in weights:
            raise ValueError(f'dataset must name each set once, got {name} twice in {text!r}')
        weights[name] = None
        if colon:
            weights[name] = weight_in(name, number)
    lacking = [name for name, weight in weights.items() if weight is None]
    if 0 < len(lacking) < len(weights):
        raise ValueError(
            f'dataset gives {lacking[0]} no weight, and others have one: weigh all sets or none, '
            f'got {text!r}'
        )
    return weights


def sets_in(text):
    """Return [(name, ':' or '', weight)] of the sets in the option dataset, as they stand there."""
    found = [part.partition(':') for part in names_in(text)]
    return [(name.strip(), colon, number) for name, colon, number in found]


def weight_in(name, text):
    weight = number_in(text)
    if weight is None or weight <= 0:
        raise ValueError(
            f'the weight of {name} in dataset must be a number above 0, its share of the tokens, '
            f'got {text!r}'
        )
    return weight


def shares_of(weights):
    """Return (K,) shares, which add up to 1, of K weights above 0."""
    shares = np.array(weights) / max(weights)  # so that no sum is infinite
    return shares / shares.sum()


# --------------------------------------------------------------------------------------------------
# which sets may be mixed


def kind_of_all(kinds):
    """Return what a checkpoint keeps of sets {name: kind_of} that are read as one.

    Raises ValueError unless they have one tokenizer and blocks of one form."""
    first, *others = kinds
    for other in others:
        check_alike(first, kinds[first], other, kinds[other])
    kind = dict(kinds[first])
    kind['given'] = any(one['given'] for one in kinds.values())
    if any(one.get('puzzle') != kind.get('puzzle') for one in kinds.values()):
        del kind['puzzle']
    return kind


def check_alike(name, kind, other_name, other):
    """Raise ValueError unless two sets may be mixed. See kind_of_all."""
    tokenizers = [tokenizer_of_set(kind), tokenizer_of_set(other)]
    both = f'{name} and {other_name} cannot be mixed'
    if tokenizers[0].identity != tokenizers[1].identity:
        called = ' and '.join(tokenizer.name for tokenizer in tokenizers)
        raise ValueError(
            f'{both}: their tokenizers differ, {called}; prepare one of the two again, with '
            '--tokenizer=FOLDER of the other'
        )
    if form_of(kind) != form_of(other):
        raise ValueError(
            f'{both}: {name} is {form_of(kind)}, {other_name} is {form_of(other)}; mix streams '
            'with streams, and rows with rows of the same length'
        )
    fields = [field for field in {**kind, **other} if kind.get(field) != other.get(field)]
    differing = [field for field in fields if field not in MAY_DIFFER]
    if differing:
        raise ValueError(f'{both}: their meta.json differ in {", ".join(differing)}')


def form_of(kind):
    """Return in words what the blocks of a set are."""
    if kind.get('row_length'):
        return f'rows of {kind["row_length"]} tokens'
    if kind.get('prompts'):
        return 'documents with prompts, a row each'
    return STREAM


# --------------------------------------------------------------------------------------------------
# the mixture


def n_read(split, block_size):
    """Return (rows, tokens of a row in the mean) of a Split; a stream has a row for each block."""
    if split.lengths is None:
        return split.packed.size / block_size, block_size
    longest = split.width(block_size)
    return len(split.lengths), split.lengths.clip(max=longest).mean()


@dataclass
class Mixture:
    """Splits that are read as one.

    A row is of part k with a probability that gives the part its share of the tokens:

        p(k) ~ share[k] / (tokens of a row of part k, in the mean)

    parts       Splits of one tokenizer and one form
    shares      (K,), which add up to 1
    block_size  after which documents are cut"""

    parts: list
    shares: np.ndarray
    block_size: int

    mark = 1 << 31  # says of a token of any part that it is given
    unpack = Split.unpack

    @property
    def marked(self):
        return any(part.marked for part in self.parts)

    @property
    def eos(self):
        return self.parts[0].eos

    @property
    def has_rows(self):
        return self.parts[0].has_rows

    @cached_property
    def lengths(self):
        """The tokens of all documents, if documents are the rows."""
        if self.parts[0].lengths is None:
            return None
        return np.concatenate([part.lengths for part in self.parts])

    def width(self, block_size):
        return max(part.width(block_size) for part in self.parts)

    @cached_property
    def ends(self):
        """(K - 1,), where in [0, 1) the numbers that choose a part end, but for the last."""
        of_row = [n_read(part, self.block_size)[1] for part in self.parts]
        chances = shares_of(self.shares / of_row)
        return chances.cumsum()[:-1]

    def draw(self, batch_size, read):
        """Return (B, N) blocks as `unpack` reads them, by torch's generator.

        read  (Split, n) -> (n, N) blocks of it as on disk"""
        u = torch.rand(batch_size, dtype=torch.float64)
        chosen = self.ends.searchsorted(u.numpy(), 'right')
        blocks = torch.full((batch_size, self.width(self.block_size)), PADDING)
        for number, part in enumerate(self.parts):
            rows = torch.from_numpy(np.flatnonzero(chosen == number))
            if len(rows):
                own = self.pack(part, read(part, len(rows)))
                blocks[rows, : own.size(1)] = own
        return blocks

    def pack(self, part, blocks):
        """Return blocks of a part, whose mark becomes that of the mixture."""
        tokens, given = part.unpack(blocks)
        return torch.where(given & (tokens != PADDING), tokens + self.mark, tokens)

    def counts(self, n_tokens):
        """Return (n_tokens,) int64: how often each token would stand in as many tokens as there
        are, read by the shares; what stands in a set counts once at least."""
        of_parts = [part.counts(n_tokens) for part in self.parts]
        n = sum(counts.sum() for counts in of_parts)
        expected = sum(share * n * c / c.sum() for share, c in zip(self.shares, of_parts))
        is_there = sum(of_parts) > 0
        return np.maximum(expected.round().astype(np.int64), is_there)
