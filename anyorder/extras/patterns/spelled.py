"""Which bytes of a text does each token stand for?"""

import functools
import json
import re
from dataclasses import dataclass

import numpy as np

from anyorder.tokens.libraries import Tiktoken
from anyorder.tokens.tokenizers import Bytes, Symbols

SPELLED = {}  # by key_of their tokenizer


@dataclass(frozen=True)
class Spelled:
    """The bytes of the tokens of a tokenizer.

    tokens     for each token its bytes; None of a token that is no text, as the end of a text
    separator  b'', or what every token that begins a word has before it, the first of a text too"""

    tokens: list
    separator: bytes

    def flat(self):
        """Return all bytes (n,) one behind the other, and the start and the length of each token
        (n_tokens,)."""
        texts = [token or b'' for token in self.tokens]
        lengths = np.array([len(text) for text in texts])
        return np.frombuffer(b''.join(texts), np.uint8), np.cumsum(lengths) - lengths, lengths


def spelled(tokenizer):
    """Return the Spelled of a tokenizer.

    Where tokens are names with a separator between them, a pattern reads the names with the
    separator between. If all names are one character long, it reads them without."""
    key = key_of(tokenizer)
    if key not in SPELLED:
        SPELLED[key] = spell(tokenizer)
    return SPELLED[key]


@functools.lru_cache(8)  # the description of a tokenizer of others is long
def key_of(tokenizer):
    """Return what tells a tokenizer from those that spell otherwise."""
    return tokenizer.identity, tokenizer.separator, tokenizer.eos


def spell(tokenizer):
    if isinstance(tokenizer, Bytes):
        return Spelled([bytes([b]) for b in range(256)] + [None], b'')
    if isinstance(tokenizer, Tiktoken):
        read = tokenizer.bpe.decode_single_token_bytes
        is_text = tokenizer.n_bytes > 0
        return Spelled([read(i) if is_text[i] else None for i in range(tokenizer.n_tokens)], b'')
    if isinstance(tokenizer, Symbols):
        names = list(tokenizer.texts)
        if tokenizer.eos is not None:
            names[tokenizer.eos] = None
        return words(names, tokenizer.separator)
    return spell_vocabulary(tokenizer)


def words(names, separator, continuation=None):
    """Return the Spelled of names, None of those that are no text.

    A name that begins with the `continuation` goes on in the word before it."""
    if all(name is None or len(name) == 1 for name in names):
        separator = ''

    def read(name):
        if continuation and name.startswith(continuation):
            return name.removeprefix(continuation).encode()
        return f'{separator}{name}'.encode()

    return Spelled(each(read, names), separator.encode())


def each(read, names):
    """Return what `read` makes of each name, None of None."""
    return [None if name is None else read(name) for name in names]


def spell_vocabulary(tokenizer):
    """Return the Spelled of a tokenizer of the package `tokenizers`, by what it says of how tokens
    become a text."""
    decoder = json.loads(tokenizer.backend.to_str())['decoder'] or {'type': None}
    parts = {part['type']: part for part in decoder.get('decoders', [decoder])}
    names, added = names_of(tokenizer)
    for kind, spell_names in DECODERS.items():
        if kind in parts:
            spelling = spell_names(names, parts)
            for i, text in added.items():
                spelling.tokens[i] = text.encode()
            return spelling
    raise ValueError(
        f'the tokens of {tokenizer.name} become a text by {", ".join(parts)}, which says no text '
        'of a single token: a pattern needs another tokenizer'
    )


def names_of(tokenizer):
    """Return the names of the tokens (n_tokens,), None of special and unknown ones and of numbers
    without a token, and {token: text} of those that stand for a text as it is."""
    backend = tokenizer.backend
    tokens = backend.get_added_tokens_decoder()
    outside = {*tokens, tokenizer.unknown, tokenizer.eos}
    names = dict.fromkeys(range(tokenizer.n_tokens))
    for name, i in backend.get_vocab().items():
        if i not in outside:
            names[i] = name
    no_text = {tokenizer.unknown, tokenizer.eos}
    added = {
        i: token.content for i, token in tokens.items() if not token.special and i not in no_text
    }
    return list(names.values()), added


def byte_level(names, parts):
    """Return the Spelled of names in which each letter is a byte, as in GPT-2's vocabulary: the
    bytes that can be seen are themselves, and the others follow from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in seen]
    byte = {chr(b): b for b in seen}
    byte |= {chr(256 + n): b for n, b in enumerate(others)}

    def read(name):
        return bytes(byte[one] for one in name) if byte.keys() >= {*name} else None

    return Spelled(each(read, names), b'')


def word_pieces(names, parts):
    return words(names, ' ', parts['WordPiece']['prefix'])


def sentence_pieces(names, parts):
    """Return the Spelled of names in which \u2581 is a space, also the first of a text, and
    <0x41> a byte if there is a part for bytes."""
    has_bytes = 'ByteFallback' in parts

    def read(name):
        if has_bytes and re.fullmatch('<0x[0-9A-F]{2}>', name):
            return bytes.fromhex(name[3:5])
        return name.replace('\u2581', ' ').encode()

    return Spelled(each(read, names), b'')


def joined(names, parts):
    return words(names, '')


def with_blanks(names, parts):
    return words(names, ' ')


# what makes a text of tokens, by the name of its part, and how it spells them
DECODERS = {
    'ByteLevel': byte_level,
    'WordPiece': word_pieces,
    'Metaspace': sentence_pieces,
    'Replace': sentence_pieces,
    'Fuse': joined,
    None: with_blanks,
}
