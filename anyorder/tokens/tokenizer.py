"""What is a tokenizer? It makes ids of a text, and the text of ids.

There are bytes and symbols, which stand here, and in libraries.py GPT-2's and all that the package
tokenizers reads: what is learned, and what tiktoken, the hub and models of others have, is made a
tokenizer.json."""

import functools
import re

import numpy as np

END_OF_TEXT = '<|endoftext|>'  # how the token that ends a document is shown
N_IDS = 1 << 24  # ids that tokens may have: more are a mistake, and no network has so many rows
PART = '\ufffd'  # what a decoder writes for a part of a letter


def type_of(n_tokens, n_bits):
    """Return the type of a token on disk, whose id has n_bits of 16 if that is enough."""
    return np.dtype('<u2' if n_tokens <= 2**n_bits else '<u4')


def one_of(texts):
    """Return a regular expression for any of the texts. Where several fit it takes the longest."""
    return '|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))


def tokens_of(spans):
    return [token for token, _, _ in spans]


def split_spans(found, border):
    """Return the spans of a whole text that end within its first `border` letters, and the others.

    A token across the border is of what follows it."""
    ends = (n for n, (_, start, end) in enumerate(found) if start >= border or end > border)
    n = next(ends, len(found))
    return found[:n], found[n:]


def shifted(spans, n):
    """Return spans in the letters of a text that has n more at its beginning, or fewer."""
    return [(token, max(0, start + n), end + n) for token, start, end in spans]


def around(text, part):
    """Return a little of a text around the first place of a part of it."""
    place = max(0, text.index(part) - 20)
    return text[place : place + 60]


def n_bytes_of(pieces):
    """Return how many bytes each of the pieces has, None for none."""
    if pieces is None:
        return None
    return np.array([len(piece or b'') for piece in pieces])


class Tokenizer:
    """What a tokenizer has beside its name and n_tokens.

    separator      what stands between the texts of two tokens
    eos            the id that ends a document, or None
    pieces         the bytes of text of each id, wherever it stands, None of one that is no text;
                   None where that cannot be said
    n_bytes        (n_tokens,) how many they are of the text that was read, or None
    is_bytes       whether the tokens of a text are pieces of its bytes, of a tokenizer of texts
    texts          the text of each id, of tokens that are symbols and no pieces of texts; else None
    special        {text that shows a special token: id} of those that are read where they are shown
    unknown        the id that stands for what the vocabulary lacks, or None
    file           all that makes the tokenizer, as text; None: its name does
    why_no_parts   why the text of a part may differ from what the whole text has there
    encode(text) -> ids  and encode_batch(texts), decode(ids) -> text
    spans(text) -> [(id, start, end)]: the letters of the text from which each token is made

    encode_batch refuses what its tokens do not spell. Who reads spans asks what is `unspelt`."""

    separator = ''
    eos = None
    pieces = None
    is_bytes = True
    texts = None
    special = {}
    unknown = None
    file = None
    why_no_parts = ''

    @functools.cached_property
    def n_bytes(self):
        return n_bytes_of(self.pieces) if self.is_bytes else None

    @property
    def identity(self):
        """What tells a tokenizer from others, of which many have one name, or one many names."""
        if self.file is not None:
            return 'file', self.file
        return self.name, self.texts

    def about_bytes(self):
        """Say why bits a byte are not known, '' where they are."""
        if self.n_bytes is not None or self.is_bytes:
            return ''
        return f'bits a byte are not known of {self.name}, whose tokens are no bytes of a text'

    def trained(self, source):
        """Return the tokenizer itself, or what bpe:N becomes by the train split of a Source."""
        return self

    def encode(self, text):
        """Return the ids of a text, of which a special token is no part."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts):
        return list(map(tokens_of, map(self.spans, texts)))

    def spans(self, text, shown=False):
        """Return the spans of a text, in which special tokens stand for themselves if `shown`.

        Here tokens are pieces of the text's bytes, and two of them may share a letter."""
        ids = self.encode(text)
        n_bytes = [len(one.encode()) for one in text]
        letter = np.repeat(np.arange(len(text)), n_bytes)  # of each byte
        ends = np.cumsum(self.n_bytes[ids])
        first = letter[ends - self.n_bytes[ids]]
        last = letter[ends - 1]
        return list(zip(ids, first.tolist(), (last + 1).tolist()))

    def shown_spans(self, text):
        """Return the spans of a text in which special tokens stand as they are shown, the end of a
        document as END_OF_TEXT."""
        if self.special.get(END_OF_TEXT) == self.eos:
            return self.spans(text, shown=True)
        found = []
        here = 0
        for part in text.split(END_OF_TEXT):
            if here:
                found.append((self.eos, here - len(END_OF_TEXT), here))
            found += shifted(self.spans(part, shown=True), here)
            here += len(part) + len(END_OF_TEXT)
        return found

    def encode_pairs(self, pairs):
        """Return [(ids, ids)] of pairs of a prompt and the text right behind it.

        Here tokens are the same pieces wherever they stand, so that each is read by itself."""
        prompts, texts = map(list, zip(*pairs))
        return list(zip(self.encode_batch(prompts), self.encode_batch(texts)))

    def text_behind(self, before, ids):
        """Return the text of tokens right behind the tokens `before`, in which -1 is a blank; []
        is the beginning of the text.

        Here a token is the same piece of a text wherever it stands."""
        return self.decode(ids)

    def spans_behind(self, before, text):
        """Return the shown spans of a text right behind the text `before`, or behind a blank, ''.

        Raises ValueError where no token ends at the border."""
        return self.shown_spans(text)

    def unspelt(self, text, spans):
        """Return the parts of a text that its tokens do not spell. Raises ValueError for such a
        text if texts are checked."""
        return []

    def cut_place(self, text):
        """Return the last place where a text can be cut and keeps its tokens, whatever follows it,
        or 0."""
        return 0

    def sizes_of(self, texts, documents):
        """Return (n,) bytes of the texts of each token of the `documents`; None: as n_bytes
        says."""
        return None


class Bytes(Tokenizer):
    """UTF-8 bytes, ids 0..255, and 256 for the end of a document."""

    name = 'bytes'
    n_tokens = 257
    eos = 256
    pieces = [bytes([b]) for b in range(256)] + [None]

    def encode(self, text):
        return list(text.encode())

    def encode_batch(self, texts):
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def cut_place(self, text):
        return len(text)

    def decode(self, ids):
        pieces = (self.pieces[i] or END_OF_TEXT.encode() for i in ids)
        return b''.join(pieces).decode(errors='replace')


class Symbols(Tokenizer):
    """Tokens that are no text: `texts` one behind the other, the longest that fits, or with
    `separator` between."""

    def __init__(self, name, texts, separator='', eos=None):
        self.name = name
        self.texts = tuple(texts)
        self.n_tokens = len(self.texts)
        self.separator = separator
        self.eos = eos
        self.ids = {text: i for i, text in enumerate(self.texts)}

    def spans(self, text, shown=False):
        symbol = r'\S+' if self.separator else rf'{one_of(self.texts)}|[\s\S]'
        found = list(re.finditer(symbol, text))
        if not self.ids.keys() >= {one[0] for one in found}:
            between = ', with blanks between them' if self.separator else ''
            raise ValueError(
                f'{self.name} has the tokens {" ".join(self.texts)[:100]}{between}, got '
                f'{text[:60]!r}'
            )
        return [(self.ids[one[0]], *one.span()) for one in found]

    def decode(self, ids):
        return self.separator.join(self.texts[i] for i in ids)
