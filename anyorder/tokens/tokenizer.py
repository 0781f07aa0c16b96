"""What does every tokenizer answer?"""

import re
import sys

import numpy as np

END_OF_TEXT = '<|endoftext|>'  # how the token that ends a document is shown
PART = '\ufffd'  # what a decoder writes for a part of a letter


def one_of(texts):
    """Return a regular expression for any of the texts. Where several fit it takes the longest."""
    return '|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))


def parted(found, border):
    """Return the spans of a whole text that end within its first `border` letters, and the others.

    A token across the border is of what follows it."""
    ends = (n for n, (_, start, end) in enumerate(found) if start >= border or end > border)
    n = next(ends, len(found))
    return found[:n], found[n:]


class Spelling:
    """How a tokenizer spells the texts of a command: what is said once, in a line, if it is not as
    it seems."""

    def __init__(self):
        self.behind_space = []  # texts with a blank behind a space

    def add(self, text, found):
        """Take note of a text and its spans: tokenizers of others may lack a token for a part."""

    def say(self):
        """Print a line on a blank behind a space."""
        if self.behind_space:
            text = self.behind_space[0][-30:]
            better = text[:-1] + '[[2]]'
            print(
                f'a blank behind {text!r}: its last space is a token by itself, which texts hardly '
                f'have there; write {better!r}, and the first token of the blank begins with the '
                'space',
                file=sys.stderr,
            )


class Tokenizer:
    """What a tokenizer has beside its name and n_tokens.

    separator            what stands between the texts of two tokens
    eos                  the id that ends a document, or None
    n_bytes              (n_tokens,) bytes of text of each id; None where that cannot be said
    why_no_bytes         why it cannot, of a tokenizer of texts
    texts                the text of each id, or None
    special              {text that shows a special token: id} of those beside eos
    file                 all that makes the tokenizer, as text; None: its name does
    why_no_parts         why the text of a part may differ from what the whole text has there
    encode(text) -> ids  and encode_batch(texts), decode(ids) -> text"""

    separator = ''
    eos = None
    n_bytes = None
    why_no_bytes = ''
    texts = None
    special = {}
    file = None
    why_no_parts = ''

    @property
    def identity(self):
        """What tells a tokenizer from others, of which many have one name, or one many names."""
        if self.file is not None:
            return 'file', self.file
        return self.name, self.texts

    def about_bytes(self):
        """Say why bits a byte are not known, '' where they are."""
        if self.n_bytes is not None or not self.why_no_bytes:
            return ''
        return f'bits a byte are not known of {self.name}: {self.why_no_bytes}'

    def spans(self, text):
        """Return [(id, start, end)]: the letters of the text from which each token is made.

        Here tokens are pieces of the text's bytes, and two of them may share a letter."""
        ids = self.encode(text)
        sizes = [len(one.encode()) for one in text]
        letter = np.repeat(np.arange(len(text)), sizes)  # of each byte
        ends = np.cumsum(self.n_bytes[ids])
        starts = ends - self.n_bytes[ids]
        first = letter[starts]
        last = letter[ends - 1]
        return list(zip(ids, first.tolist(), (last + 1).tolist()))

    def pair_spans(self, prompt, text):
        """Return the spans of a prompt and those of the text right behind it.

        Here tokens are the same pieces wherever they stand, so that each is read by itself."""
        return self.spans(prompt), self.spans(text)

    def encode_pairs(self, pairs):
        """Return [(ids, ids)] of pairs (prompt, text), see pair_spans."""
        prompts, texts = map(list, zip(*pairs))
        return list(zip(self.encode_batch(prompts), self.encode_batch(texts)))

    def text_behind(self, before, ids):
        """Return the text of tokens right behind the tokens `before`, in which None is a blank; []
        is the beginning of the text.

        Here a token is the same piece of a text wherever it stands."""
        return self.decode(ids)

    def shown_spans(self, text):
        """Return the spans of a text in which special tokens stand as they are shown."""
        if self.eos is None:
            return self.spans(text)
        return self.between(self.special | {END_OF_TEXT: self.eos}, text, self.spans)

    def between(self, special, text, read):
        """Return the spans that `read` finds in the parts of a text between its special tokens.

        special  {text that shows one: id}"""
        found = []
        here = 0
        for part in re.split(f'({one_of(special)})', text):
            if part in special:
                found.append((special[part], here, here + len(part)))
            else:
                found += [(token, here + start, here + end) for token, start, end in read(part)]
            here += len(part)
        return found

    def spans_behind(self, before, text):
        """Return the shown spans of a text right behind the text `before`, or behind a blank, ''.

        Raises ValueError where no token ends at the border."""
        return self.shown_spans(text)

    def spelling(self):
        """Return a Spelling for the texts of a command."""
        return Spelling()

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
