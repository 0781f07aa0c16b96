"""How are several sets read as one? By shares of tokens: the set of a row is drawn, then its
block."""

from dataclasses import replace

import numpy as np

from anyorder.machine.files import check_names
from anyorder.tokens.meta import kind_of
from anyorder.tokens.tokenizer import tokenizer_of_set
from configurator import differing, names_in, number_in

STREAM = 'a stream of tokens'  # whose blocks hold parts of documents
# what sets of one tokenizer may differ in and still be mixed; it may have two names
MAY_DIFFER = ('given', 'puzzle', 'tokenizer', 'tokenizer_file')


def weights_in(text):
    """Return {name of a set: its weight} of the option dataset, as books:0.7,code:0.3.

    Without weights all are None. Raises ValueError for any other text."""
    found = sets_in(text) or [(text, '')]
    weights = {}
    for name, number in found:
        check_names(dataset=name)
        weights[name] = number_in(number)
    if ':' in text and not all(weight and weight > 0 for weight in weights.values()):
        raise ValueError(
            'dataset must give all sets a weight above 0, the share of the tokens, or none: '
            f'got {text!r}'
        )
    if len(weights) < len(found):
        raise ValueError(f'dataset must name each set once, got {text!r}')
    return weights


def sets_in(text):
    """Return [(name, weight or '')] of the sets in the option dataset, as they stand there."""
    found = [part.partition(':') for part in names_in(text)]
    return [(name.strip(), number) for name, _, number in found]


def shares_of(weights):
    """Return (K,) shares, which add up to 1, of K weights above 0."""
    shares = np.array(weights) / max(weights)  # so that no sum is infinite
    return shares / shares.sum()


# --------------------------------------------------------------------------------------------------
# which sets may be mixed


def mixed(metas):
    """Return what kind_of says of sets that are read as one.

    Raises ValueError unless they have one tokenizer and blocks of one form."""
    first, *others = metas
    for other in others:
        found = differing(vars(kind_of(first)), vars(kind_of(other)))
        found = [name for name in found if name not in MAY_DIFFER]
        if tokenizer_of_set(first).identity != tokenizer_of_set(other).identity:
            found.append('tokenizer')
        if found:
            raise ValueError(
                f'{first.name} and {other.name} cannot be mixed, as they differ in '
                f'{", ".join(found)}: mix streams with streams, rows with rows of the same length, '
                'and sets of one tokenizer, which --tokenizer=FOLDER of the other gives a set'
            )
    kind = replace(kind_of(first), given=any(meta.given for meta in metas))
    if any(meta.puzzle != first.puzzle for meta in metas):
        return replace(kind, puzzle=None)
    return kind


def form_of(meta):
    """Return in words what the blocks of a set are."""
    if meta.row_length:
        return f'rows of {meta.row_length} tokens'
    return 'documents with prompts, a row each' if meta.prompts else STREAM


# --------------------------------------------------------------------------------------------------
# how much of each is read


def set_shares(sets, weights):
    """Set the shares of Blocks: by their weights, or where these are None by their tokens, as if
    all were one set.

    A row is of set k with a probability that gives the set its share of the tokens:

        p(k) ~ share[k] / (tokens of a row of set k, in the mean)"""
    lengths = [blocks.mean_length for blocks in sets]
    own = [weight or one.n_disjoint * one.mean_length for one, weight in zip(sets, weights)]
    shares = shares_of(own)
    chances = shares_of(shares / lengths)
    for blocks, share, chance in zip(sets, shares, chances):
        blocks.share = float(share)
        blocks.chance = float(chance)


def counts_of(sets):
    """Return (n_tokens,) int64: how often each token would stand in as many tokens as there are,
    read by the shares of the Blocks; what stands in one of them counts once at least."""
    each = [blocks.count() for blocks in sets]
    n = sum(counts.sum() for counts in each)
    expected = sum(blocks.share * n * c / c.sum() for blocks, c in zip(sets, each))
    is_there = sum(each) > 0
    return np.maximum(expected.round().astype(np.int64), is_there)
