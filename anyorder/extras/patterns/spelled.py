"""Which bytes of a text does each token stand for?"""

import functools
import re
from dataclasses import dataclass

import numpy as np

from anyorder.tokens.tokenizer import PART
from anyorder.tokens.tokenizers import Symbols

SPELLED = {}  # by key_of their tokenizer


@dataclass(frozen=True)
class Spelled:
    """The bytes of the tokens of a tokenizer; None of a token that is no text, as the end of one.

    tokens  behind another token
    first   at the beginning of a text
    within  at the beginning of a part within a text: where a space before a word is no token by
            itself, it is not the part's own"""

    tokens: list
    first: list
    within: list


def flat(texts):
    """Return all bytes (n,) of the texts one behind the other, and the start and the length of
    each; -1 is the length of None."""
    sizes = np.array([len(text or b'') for text in texts])
    lengths = np.where([text is None for text in texts], -1, sizes)
    every = b''.join(text or b'' for text in texts)
    return np.frombuffer(every, np.uint8), np.cumsum(sizes) - sizes, lengths


def spelled(tokenizer):
    """Return the Spelled of a tokenizer."""
    key = key_of(tokenizer)
    if key not in SPELLED:
        SPELLED[key] = spell(tokenizer)
    return SPELLED[key]


@functools.lru_cache(8)  # the description of a tokenizer of others is long
def key_of(tokenizer):
    """Return what tells a tokenizer from those that spell otherwise."""
    return tokenizer.identity, tokenizer.separator, tokenizer.eos


def spell(tokenizer):
    if tokenizer.pieces is not None:
        return everywhere(tokenizer.pieces)
    if isinstance(tokenizer, Symbols):
        return names(tokenizer)
    return vocabulary(tokenizer)


def everywhere(tokens):
    """Return the Spelled of tokens that have the same bytes wherever they stand."""
    return Spelled(tokens, tokens, tokens)


def names(tokenizer):
    """Return the Spelled of Symbols."""
    first = [text.encode() for text in tokenizer.texts]
    if tokenizer.eos is not None:
        first[tokenizer.eos] = None
    separator = tokenizer.separator.encode()
    tokens = [None if text is None else separator + text for text in first]
    return words(tokens, first, first)


def words(tokens, first, within):
    """Return the Spelled of tokens that have a separator between them, or none if all of them are
    letters."""
    if all(text is None or len(text.decode()) == 1 for text in within):
        return everywhere(within)
    return Spelled(tokens, first, within)


def vocabulary(tokenizer):
    """Return the Spelled of a tokenizer of the package `tokenizers`: what it shows of each token,
    and of each behind a word."""
    if tokenizer.why_no_parts:
        raise ValueError(
            f'of {tokenizer.name} no token has a text of its own ({tokenizer.why_no_parts}): a '
            'pattern needs another tokenizer'
        )
    tokens = [None for _ in range(tokenizer.n_tokens)]
    first = list(tokens)
    special = {*tokenizer.special.values(), tokenizer.unknown, tokenizer.eos}
    for name, i in tokenizer.backend.get_vocab().items():
        if i not in special:
            first[i] = read(name, tokenizer.decode([i]))
            tokens[i] = read(name, tokenizer.text_behind([None], [i]))
    if b' ' in tokens:
        return Spelled(tokens, first, tokens)
    return words(tokens, first, [token and token.removeprefix(b' ') for token in tokens])


def read(name, text):
    """Return the bytes of a token by its text, or by its name, if they are a part of a letter."""
    if PART in text and re.fullmatch('<0x[0-9A-F]{2}>', name):
        return bytes.fromhex(name[3:5])
    return text.encode()
