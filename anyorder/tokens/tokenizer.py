"""What does every tokenizer answer?"""

import functools
import re
import sys

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


def parted(found, border):
    """Return the spans of a whole text that end within its first `border` letters, and the others.

    A token across the border is of what follows it."""
    ends = (n for n, (_, start, end) in enumerate(found) if max(start + 1, end) > border)
    n = next(ends, len(found))
    return found[:n], found[n:]


def shifted(spans, n):
    """Return spans in the letters of a text that has n more at its beginning, or fewer."""
    return [(token, max(0, start + n), end + n) for token, start, end in spans]


def around(text, part):
    """Return a little of a text around the first place of a part of it."""
    place = max(0, text.index(part) - 20)
    return text[place : place + 60]


class Spelling:
    """How a tokenizer spells the texts of a command: what is said once, if it is not as it
    seems."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.n_tokens = 0
        self.n_unknown = 0
        self.first = ''  # what no token spells, and where it stands
        self.behind_space = []  # texts with a blank behind a space

    def add(self, text, found):
        """Count a text and its spans, of which the tokenizer of others may lack a part.

        A token that is unknown is no likelihood of what stands in the text. Where a vocabulary has
        none for what it lacks, each letter that is left out counts as one."""
        unknown = self.tokenizer.unspelt(text, found)
        self.n_tokens += len(found)
        if self.tokenizer.unknown is None:
            self.n_tokens += len(unknown)
        if unknown and not self.n_unknown:
            self.first = f'{unknown[0][:40]!r} in {around(text, unknown[0])!r}'
        self.n_unknown += len(unknown)

    def say(self):
        """Print a line on what is unknown, and one on a blank behind a space."""
        if self.n_unknown:
            print(
                f'{self.n_unknown:,} of {self.n_tokens:,} tokens are unknown to '
                f'{self.tokenizer.name}, the first is {self.first}: the model does not read what '
                'stands there, and its numbers are not of these texts',
                file=sys.stderr,
            )
        if self.behind_space:
            text = self.behind_space[0][-30:]
            better = text[:-1] + '[[2]]'
            print(
                f'a blank behind {text!r}: its last space is a token by itself, which texts hardly '
                f'have there; write {better!r}, and the first token of the blank begins with the '
                'space',
                file=sys.stderr,
            )


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
    texts          the text of each id, or None
    special        {text that shows a special token: id} of those that are read where they are shown
    unknown        the id that stands for what the vocabulary lacks, or None
    file           all that makes the tokenizer, as text; None: its name does
    why_no_parts   why the text of a part may differ from what the whole text has there
    encode(text) -> ids  and encode_batch(texts), decode(ids) -> text"""

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

    def spans(self, text):
        """Return [(id, start, end)]: the letters of the text from which each token is made.

        Here tokens are pieces of the text's bytes, and two of them may share a letter."""
        ids = self.encode(text)
        letter = np.repeat(range(len(text)), [len(one.encode()) for one in text])  # of each byte
        ends = np.cumsum(self.n_bytes[ids])
        first = letter[ends - self.n_bytes[ids]]
        last = letter[ends - 1]
        return list(zip(ids, first.tolist(), (last + 1).tolist()))

    def encode_pairs(self, pairs):
        """Return [(ids, ids)] of pairs of a prompt and the text right behind it.

        Here tokens are the same pieces wherever they stand, so that each is read by itself."""
        prompts, texts = map(list, zip(*pairs))
        return list(zip(self.encode_batch(prompts), self.encode_batch(texts)))

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def text_behind(self, before, ids):
        """Return the text of tokens right behind the tokens `before`, in which None is a blank; []
        is the beginning of the text.

        Here a token is the same piece of a text wherever it stands."""
        return self.decode(ids)

    def shown_spans(self, text):
        """Return the spans of a text in which special tokens stand as they are shown."""
        return self.between_ends(text, self.spans)

    def between_ends(self, text, read):
        """Return the spans that `read` finds in the parts of a text between ends of documents, and
        these."""
        if self.eos is None:
            return read(text)
        found = []
        here = 0
        for part in text.split(END_OF_TEXT):
            if here:
                found.append((self.eos, here - len(END_OF_TEXT), here))
            found += shifted(read(part), here)
            here += len(part) + len(END_OF_TEXT)
        return found

    def spans_behind(self, before, text):
        """Return the shown spans of a text right behind the text `before`, or behind a blank, ''.

        Raises ValueError where no token ends at the border."""
        return self.shown_spans(text)

    def unspelt(self, text, spans):
        """Return the parts of a text that its tokens do not spell."""
        return []

    def cut(self, text):
        """Return the last place where a text can be cut and keeps its tokens, whatever follows it,
        or 0."""
        return 0

    def sizes_of(self, texts, documents):
        """Return (n,) bytes of the texts of each token of the `documents`; None: as n_bytes
        says."""
        return None
