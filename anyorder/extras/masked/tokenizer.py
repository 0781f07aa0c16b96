"""What is a tokenizer of somebody else's masked model? It may lack a token for what stands in a
text, and may begin a word with each text that it reads."""

import numpy as np

from anyorder.extras.tokenizers.library import Library
from anyorder.machine.processes import is_first
from anyorder.tokens.documents import cut_anew
from anyorder.tokens.spelling import Spelling
from anyorder.tokens.tokenizer import n_bytes_of, shifted, split_spans, tokens_of


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
        self.n_bytes = n_bytes_of(self.pieces)  # also of texts that are rewritten, see sizes

    def pair_spans(self, prompt, text):
        """Return the spans of a prompt and those of the text right behind it, see encode_pairs."""
        if self.is_bytes:
            return self.spans(prompt), self.spans(text)
        border = len(prompt)
        given, found = split_spans(self.spans(prompt + text), border)
        return given, shifted(found, -border)

    def sizes(self, text, spans):
        """Return (n,) bytes of the text as it was given, from the end of the token before to the
        end of each token."""
        sizes = self.n_bytes[tokens_of(spans)]
        n_bytes = len(text.encode())
        if self.backend.normalizer is None and sizes.sum() == n_bytes:
            return sizes
        before = np.cumsum([0, *(len(one.encode()) for one in text)])  # of each letter
        ends = before[[end for _, _, end in spans]]
        ends[-1:] = n_bytes
        return np.diff(np.maximum.accumulate(ends), prepend=0)

    def sizes_of(self, texts, documents):
        """Return (n,) bytes of the texts, as they were given, of each token of the `documents`.

        They may be written otherwise before they are read. None where texts do not come back.
        Unknown tokens are said."""
        spelling = Spelling(self)
        sizes = []
        n_end = int(self.eos is not None)
        for text, tokens in zip(cut_anew(texts, self.cut_place), documents, strict=True):
            prompt, text = text if isinstance(text, tuple) else ('', text)
            given, found = self.pair_spans(prompt, text)
            spelling.add(prompt, given)
            spelling.add(text, found)
            if self.n_bytes is not None:
                n_before = len(tokens) - len(found) - n_end
                sizes.append(np.pad(self.sizes(text, found), (n_before, n_end)))
        if is_first():
            spelling.say()
        return np.concatenate(sizes) if sizes else None
