"""Which bytes of a text does each token stand for?"""

import functools
import re

from anyorder.tokens.tokenizer import PART


@functools.lru_cache(8)
def spelled(tokenizer, within):
    """Return the bytes of each token of a tokenizer, None of one that is no text, as the end of
    one: behind another token, and at the beginning of a text.

    within  in place of a text of a part within it: where a space before a word is no token by
            itself, it is not the part's own

    Tokens that all are letters stand side by side."""
    tokens = tokenizer.pieces
    if tokens is not None:
        return tokens, tokens
    if tokenizer.texts:
        first = [text.encode() for text in tokenizer.texts]
        if tokenizer.eos is not None:
            first[tokenizer.eos] = None
        separator = tokenizer.separator.encode()
        tokens = [None if text is None else separator + text for text in first]
        of_part = first
    else:
        tokens, first = vocabulary(tokenizer)
        of_part = [token and token.removeprefix(b' ') for token in tokens]
    if b' ' in tokens:
        of_part = tokens
    elif all(token is None or len(token.decode()) == 1 for token in of_part):
        return of_part, of_part
    return tokens, of_part if within else first


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
