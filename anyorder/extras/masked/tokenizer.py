"""What is a tokenizer of somebody else's masked model? It may lack a token for what stands in a
text, and may begin a word with each text that it reads."""

import functools
import itertools
import json
import sys
import unicodedata

import numpy as np

from anyorder.machine.processes import processes
from anyorder.tokens.tokenizers import END_OF_TEXT, Spelling, Tokenizer, cut_anew


class SpellingOfOthers(Spelling):
    """What a tokenizer cannot spell is said, too."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer
        self.n_tokens = 0
        self.unknown = []  # what no token spells
        self.first_text = ''  # where the first of it stands

    def add(self, text, found):
        """Count a text and its spans.

        A token that is unknown is no likelihood of what stands in the text. Where a vocabulary has
        none for what it lacks, each letter that is left out counts as one."""
        self.n_tokens += len(found)
        unknown = self.tokenizer.unspelt(text, found)
        if not unknown:
            return
        if self.tokenizer.unknown is None:
            self.n_tokens += len(unknown)
        if not self.unknown:
            place = text.index(unknown[0])
            self.first_text = text[max(0, place - 20) : place + 40]
        self.unknown += unknown

    def say(self):
        if self.unknown:
            first = self.unknown[0][:40]
            print(
                f'{len(self.unknown):,} of {self.n_tokens:,} tokens are unknown to '
                f'{self.tokenizer.name}, the first is {first!r} in {self.first_text!r}: the model '
                'does not read what stands there, and its numbers are not of these texts',
                file=sys.stderr,
            )
        super().say()


class HuggingFace(Tokenizer):
    """A tokenizer of the package `tokenizers`.

    n_bytes       None where a text does not come back, as from WordPiece
    special       {text that shows a special token: id}, which encode never reads from a text; spans
                  does if `shown`
    unknown       the id that stands for what the vocabulary lacks, or None
    unknown_text  what shows it
    chat          (messages, add_generation_prompt=...) -> prompt, or None without a chat template
    """

    def __init__(self, name, backend, eos=None, chat=None):
        self.name = name
        self.backend = backend
        self.eos = eos
        self.chat = chat

        # The vocabulary
        ids = backend.get_vocab()
        self.n_tokens = 1 + max(ids.values())
        added = backend.get_added_tokens_decoder()
        self.special = {token.content: i for i, token in added.items() if token.special}
        backend.post_processor = None  # which leaves blanks out of where a token stands
        parts = json.loads(backend.to_str())
        if (parts['decoder'] or {}).get('type') == 'ByteLevel':
            self.n_bytes = bytes_of_letters(ids, added, self.n_tokens)

        # What it lacks
        text = parts['model'].get('unk_token')
        self.unknown_text = text
        self.unknown = ids.get(text, parts['model'].get('unk_id'))  # the second is Unigram's
        if self.unknown is not None:
            self.unknown_text = backend.id_to_token(self.unknown)
        self.is_left_out = functools.cache(self.is_left_out)

    def read(self, encode, texts, shown=False):
        """Return what a method of the backend makes of a text, or of several."""
        self.backend.encode_special_tokens = not shown  # else special tokens are text
        try:
            return encode(texts, add_special_tokens=False)
        except Exception as e:  # of a vocabulary that lacks what a text has, and a token for it too
            raise ValueError(
                f'{self.name} cannot spell all of {str(texts)[:60]!r} ({str(e)[:100]}): write it '
                'in the letters of its vocabulary'
            ) from None

    def encode(self, text):
        return self.read(self.backend.encode, text).ids

    def encode_batch(self, texts):
        return [found.ids for found in self.read(self.backend.encode_batch, texts)]

    def spans(self, text, shown=False):
        found = self.read(self.backend.encode, text, shown)
        return [(i, start, end) for i, (start, end) in zip(found.ids, found.offsets)]

    def shown_spans(self, text):
        read = functools.partial(self.spans, shown=True)
        if self.eos is None or self.special.get(END_OF_TEXT) == self.eos:
            return read(text)
        return self.between_ends(text, read)

    def spans_behind(self, before, text):
        """Return the shown spans of a text right behind the text `before`, or behind a blank, ''.

        Many tokenizers begin a word with each text that they read. So these read it with letters
        before it, whose tokens are left out. Raises ValueError where no token ends at the border,
        or what is read is another text."""
        alone = self.shown_spans(text)
        if not text:
            return alone
        letter = (text.strip() or 'x')[0]
        context = before or letter
        ids = self.shown_ids(context)
        right = self.decode_once(self.shown_ids(context + text))
        ways = (self.behind(left, text) for left in (context[-16:], letter, 'x', 'e', '1', '.'))
        for found in itertools.chain([alone], ways):
            if found is None:
                continue
            if self.decode_once(ids + [token for token, _, _ in found]) == right:
                return found
        place = repr(before[-20:] or 'a blank')
        raise ValueError(
            f'{self.name} has no tokens for {text[:20]!r} right behind {place}, within a word: '
            'move the border of the blank to where a word begins'
        )

    def decode_once(self, ids):
        """Return the text of tokens, in which unknown ones that touch are one, as many tokenizers
        read them."""
        kept = []
        for is_unknown, run in itertools.groupby(ids, lambda token: token == self.unknown):
            run = list(run)
            kept += run[:1] if is_unknown else run
        return self.decode(kept)

    def behind(self, left, text):
        """Return the spans of a text as they are behind the text `left`; None where a token has
        letters of both."""
        found = self.shown_spans(left + text)
        n = len(left)
        if any(start < n < end for _, start, end in found):
            return None
        return [(token, start - n, end - n) for token, start, end in found if start >= n]

    @property
    def identity(self):
        return self.name, self.backend.to_str()

    def spelling(self):
        return SpellingOfOthers(self)

    def unspelt(self, text, spans):
        # unknown tokens, or letters that are left out
        if self.unknown is None:
            return [letter for letter in text if self.is_left_out(letter)]
        found = (text[start:end] for i, start, end in spans if i == self.unknown)
        return [part for part in found if part != self.unknown_text]  # which may be written

    def is_left_out(self, letter):
        """Whether a letter, a digit or a sign makes no token, as where a vocabulary has none for
        what it lacks."""
        return unicodedata.category(letter)[0] in 'LNPS' and not self.encode(letter)

    def sizes(self, text, spans):
        """Return (n,) bytes of the text as it was given, from the end of the token before to the
        end of each token."""
        ids = [i for i, _, _ in spans]
        n_bytes = len(text.encode())
        if self.backend.normalizer is None and self.n_bytes[ids].sum() == n_bytes:
            return self.n_bytes[ids]
        before = np.cumsum([0, *(len(one.encode()) for one in text)])  # of each letter
        ends = before[[end for _, _, end in spans]]
        ends[-1:] = n_bytes
        return np.diff(np.maximum.accumulate(ends), prepend=0)

    def sizes_of(self, texts, documents):
        """Return (n,) bytes of the texts, as they were given, of each token of the `documents`.

        They may be written otherwise before they are read. None where texts do not come back.
        Unknown tokens are said."""
        spelling = self.spelling()
        sizes = []
        n_end = 0 if self.eos is None else 1
        for text, tokens in zip(cut_anew(texts, self), documents, strict=True):
            if isinstance(text, tuple):
                *prompts, text = text
                for prompt in prompts:
                    spelling.add(prompt, self.spans(prompt))
            found = self.spans(text)
            spelling.add(text, found)
            if self.n_bytes is not None:
                n_before = len(tokens) - len(found) - n_end
                sizes.append(np.pad(self.sizes(text, found), (n_before, n_end)))
        rank, _ = processes()
        if rank == 0:
            spelling.say()
        return np.concatenate(sizes) if sizes else None

    def decode(self, ids):
        text = ''
        for is_end, run in itertools.groupby(ids, key=lambda i: i == self.eos):
            run = list(run)
            if is_end:
                text += END_OF_TEXT * len(run)
            else:
                text += self.backend.decode(run, skip_special_tokens=False)
        return text


def bytes_of_letters(ids, added, n_tokens):
    """Return n_bytes (n_tokens,) of a vocabulary {token: id} in which a letter is a byte.

    added  {id: token} of the tokens that stand for text as it is, or are special"""
    n_bytes = np.zeros(n_tokens, int)
    n_bytes[list(ids.values())] = list(map(len, ids))
    for i, token in added.items():
        n_bytes[i] = 0 if token.special else len(token.content.encode())
    return n_bytes
