"""Which bytes of a text does each token stand for?"""

import functools
import re
from dataclasses import dataclass

from anyorder.tokens.tokenizer import PART


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


@functools.lru_cache(8)
def spelled(tokenizer):
    """Return the Spelled of a tokenizer. Tokens that all are letters stand side by side."""
    tokens = tokenizer.pieces
    if tokens is not None:
        return Spelled(tokens, tokens, tokens)
    if tokenizer.texts:
        first = [text.encode() for text in tokenizer.texts]
        if tokenizer.eos is not None:
            first[tokenizer.eos] = None
        separator = tokenizer.separator.encode()
        tokens = [None if text is None else separator + text for text in first]
        within = first
    else:
        tokens, first = vocabulary(tokenizer)
        within = [token and token.removeprefix(b' ') for token in tokens]
    if b' ' in tokens:
        return Spelled(tokens, first, tokens)
    if all(token is None or len(token.decode()) == 1 for token in within):
        return Spelled(within, within, within)
    return Spelled(tokens, first, within)


def vocabulary(tokenizer):
    """Return what a tokenizer of the package `tokenizers` shows of each token behind a word, and of
    each by itself."""
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
            tokens[i] = read(name, tokenizer.text_behind([-1], [i]))
    return tokens, first


def read(name, text):
    """Return the bytes of a token by its text, or by its name, if they are a part of a letter."""
    if PART in text and re.fullmatch('<0x[0-9A-F]{2}>', name):
        return bytes.fromhex(name[3:5])
    return text.encode()
