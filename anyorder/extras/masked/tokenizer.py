"""What is a tokenizer of somebody else's masked model? It may lack a token for what stands in a
text, and may begin a word with each text that it reads."""

import sys

import numpy as np

from anyorder.machine.processes import processes
from anyorder.tokens.libraries import Library
from anyorder.tokens.tokenizer import Spelling
from anyorder.tokens.tokenizers import cut_anew


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


class HuggingFace(Library):
    """The tokenizer of somebody else's model, which reads texts that its vocabulary cannot spell.

    n_bytes       None where a text does not come back, as from WordPiece
    special       {text that shows a special token: id}, which encode never reads from a text;
                  shown_spans does
    chat          (messages, add_generation_prompt=...) -> prompt, or None without a chat template
    """

    def __init__(self, name, backend, eos=None, chat=None):
        super().__init__(name, backend, eos)
        self.is_checked = False  # Spelling says what is unknown
        self.chat = chat

    def has_letters_of_bytes(self, parts):
        decoder = parts['decoder'] or {}
        return super().has_letters_of_bytes(parts) or decoder.get('type') == 'ByteLevel'

    @property
    def identity(self):
        return self.name, self.file

    def spans(self, text):
        return self.offsets(text)

    def spelling(self):
        return SpellingOfOthers(self)

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
        for text, tokens in zip(cut_anew(texts, self.cut), documents, strict=True):
            prompt = ''
            if isinstance(text, tuple):
                prompt, text = text
            given, found = self.pair_spans(prompt, text)
            spelling.add(prompt, given)
            spelling.add(text, found)
            if self.n_bytes is not None:
                n_before = len(tokens) - len(found) - n_end
                sizes.append(np.pad(self.sizes(text, found), (n_before, n_end)))
        rank, _ = processes()
        if rank == 0:
            spelling.say()
        return np.concatenate(sizes) if sizes else None
