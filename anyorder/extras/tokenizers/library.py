"""What is a tokenizer of the package tokenizers?"""

import functools
import json
import re
import unicodedata

import tokenizers
from tokenizers import decoders, pre_tokenizers

from anyorder.extras.tokenizers.words import cut_of_words, is_cut_in_words
from anyorder.machine.files import reading
from anyorder.tokens.tokenizer import (
    END_OF_TEXT,
    N_IDS,
    PART,
    Tokenizer,
    around,
    shifted,
    split_spans,
    tokens_of,
)

# other texts of special tokens with which vocabularies end a document, the first one counts
ENDS = ('<|end_of_text|>', '<｜end▁of▁sentence｜>', '</s>', '<eos>', '<|eos|>', '[EOS]', '[SEP]')
AGAIN = 'copy it again, or name another, or pip install -U tokenizers where a newer one wrote it'


class Library(Tokenizer):
    """A tokenizer of the package `tokenizers`.

    A text for which the vocabulary lacks tokens is refused.

    backend     the object of the package, which is changed: it neither cuts nor pads nor frames a
                text, nor draws at random
    is_checked  whether texts are: bytes spell them all"""

    def __init__(self, name, backend, eos):
        self.name = name
        self.backend = backend
        self.eos = eos
        backend.post_processor = None  # which leaves blanks out of where a token stands
        backend.no_truncation()
        backend.no_padding()
        self.file = backend.to_str()

        # The vocabulary
        parts = json.loads(self.file)
        model = parts['model']
        ids = backend.get_vocab()
        self.n_tokens = 1 + max(ids.values())
        self.special = special_of(backend)
        self.unknown = ids.get(model.get('unk_token'), model.get('unk_id'))  # this is Unigram's

        # What its tokens are
        self.why_no_parts = why_no_parts(parts)
        self.is_bytes = are_bytes(backend, parts)
        if kinds(parts['decoder']) == ['ByteLevel']:
            self.pieces = bytes_of_tokens(backend, self.n_tokens, self.unknown)
        self.is_checked = not (self.is_bytes and ids.keys() >= BYTE_OF.keys())
        self.is_cut = not self.is_checked and is_cut_in_words(parts)
        self.is_left_out = functools.cache(self.is_left_out)

    @classmethod
    def of_file(cls, name, text, eos=None, end=''):
        """Return the tokenizer that the text of a tokenizer.json makes; no code of it is run.

        eos  the token that ends a document; None: see end_of"""
        with reading(name, 'a tokenizer.json of the package tokenizers', AGAIN):
            backend = tokenizers.Tokenizer.from_str(text)
        if getattr(backend.model, 'dropout', None):
            backend.model.dropout = None  # a text has the same tokens each time
        ids = [*backend.get_vocab().values()]
        if max(ids) >= N_IDS or len({*ids}) < len(ids):
            raise ValueError(
                f'{name} must have an id below {N_IDS:,} for each token, and none for two: number '
                'its tokens without gaps'
            )
        if eos is None:
            eos = end_of(backend, end)
        return cls(name, backend, eos)

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

    def spans(self, text, shown=False):
        return spans_of(self.read(self.backend.encode, text, shown))

    def encode_batch(self, texts):
        found = [one.ids for one in self.read(self.backend.encode_batch_fast, texts)]
        for text, ids in zip(texts, found if self.is_checked else []):
            self.unspelt(text, self.spans(text) if self.unknown in ids else [])
        return found

    def encode_pairs(self, pairs):
        if self.is_bytes:
            return super().encode_pairs(pairs)
        texts = list(map(''.join, pairs))
        wholes = map(spans_of, self.read(self.backend.encode_batch, texts))
        both = []
        for (prompt, _), text, whole in zip(pairs, texts, wholes):
            self.unspelt(text, whole)
            both.append(tuple(map(tokens_of, split_spans(whole, len(prompt)))))
        return both

    def cut_place(self, text):
        return cut_of_words(self.backend.pre_tokenizer, text) if self.is_cut else 0

    # which texts it spells

    def unspelt(self, text, spans):
        # unknown tokens, but for one that is written; or letters that are left out
        unknown = [text[start:end] for i, start, end in spans if i == self.unknown]
        written = self.backend.id_to_token(self.unknown or 0)
        found = [part for part in unknown if part != written]
        if not found and any(map(self.is_left_out, {*text})):
            found = list(filter(self.is_left_out, text))
        if found and self.is_checked:
            raise ValueError(
                f'{self.name} has no token for {found[0][:40]!r}, as in '
                f'{around(text, found[0])!r}: leave it out, or choose a tokenizer that spells '
                'every text, as bytes, gpt2 or bpe:4096'
            )
        return found

    def is_left_out(self, letter):
        """Whether a letter makes no token, or tokens of some of its bytes.

        Blanks and what is not printed may be left out on purpose, before the vocabulary is
        asked."""
        ids = self.read(self.backend.encode, letter).ids
        if ids and (letter == PART or PART not in self.decode(ids)):
            return False
        asked = letter
        if self.backend.normalizer:
            asked = self.backend.normalizer.normalize_str(asked)
        if self.backend.pre_tokenizer:
            words = self.backend.pre_tokenizer.pre_tokenize_str(asked)
            asked = ''.join(word for word, _ in words)
        return bool(asked) or unicodedata.category(letter)[0] in 'LNPS'

    # parts of a text

    def spans_behind(self, before, text):
        """Return the shown spans of a text right behind the text `before`, or behind a blank, ''.

        Many tokenizers begin a word with each text that they read. So these read it with letters
        before it, whose tokens are left out. Raises ValueError where no token ends at the border,
        or what is read is another text."""
        if not text or self.is_bytes:
            return self.shown_spans(text)
        letter = (text.strip() or 'x')[0]
        context = before or letter
        given = self.shown_spans(context)
        whole = self.known_text(self.shown_spans(context + text))
        for left in ('', context[-16:], letter, *'xe1.'):
            border = len(left)
            _, found = split_spans(self.shown_spans(left + text), border)
            is_across = bool(found) and found[0][1] < border
            found = shifted(found, -border)
            if not is_across and self.known_text(given + found) == whole:
                return found
        place = repr(before[-20:] or 'a blank')
        raise ValueError(
            f'{self.name} has no tokens for {text[:20]!r} right behind {place}, within a word: '
            'move the border of the blank to where a word begins'
        )

    def known_text(self, spans):
        """Return the text of tokens without unknown ones: of those that touch, many tokenizers make
        one."""
        return self.decode([i for i in tokens_of(spans) if i != self.unknown])

    def text_behind(self, before, ids):
        if self.is_bytes or not before:
            return self.decode(ids)
        before = [self.stand_in if token < 0 else token for token in before]
        whole_letters = (
            n for n in range(1, 1 + len(before)) if PART not in self.decode(before[-n:])
        )
        context = before[-next(whole_letters, 1) :]
        text = self.decode([*context, *ids])[len(self.decode(context)) :]
        return text or self.decode(ids)  # of a part of a letter

    @functools.cached_property
    def stand_in(self):
        """The token that stands in a blank where the text behind it is asked for: a word, if one
        token is."""
        words = (i for i in range(self.n_tokens) if ' ' in self.decode([i, i]).strip())
        return next(words, 0)

    def decode(self, ids):
        texts = [[]]
        for i in ids:
            if i == self.eos:
                texts.append([])
            else:
                texts[-1].append(i)
        read = functools.partial(self.backend.decode, skip_special_tokens=False)
        return END_OF_TEXT.join(map(read, texts))


def spans_of(found):
    """Return the spans that an Encoding of the package has."""
    return [(i, *place) for i, place in zip(found.ids, found.offsets)]


def special_of(backend):
    """Return {text: id} of the special tokens of a backend."""
    added = backend.get_added_tokens_decoder()
    return {token.content: i for i, token in added.items() if token.special}


def end_of(backend, end):
    """Return the token of a backend that ends a document. If it has none, it is given one.

    end  the text of the special token that does so, where there is no <|endoftext|>"""
    special = special_of(backend)
    found = next((text for text in (END_OF_TEXT, end, *ENDS) if text in special), END_OF_TEXT)
    backend.add_special_tokens([found])
    return backend.token_to_id(found)


# --------------------------------------------------------------------------------------------------
# The bytes of a byte-level vocabulary, in which a letter is a byte as in GPT-2's: bytes that can be
# seen are themselves, and the others follow from 256 on

SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
UNSEEN = [b for b in range(256) if b not in SEEN]
BYTE_OF = {chr(b): b for b in SEEN} | {chr(256 + n): b for n, b in enumerate(UNSEEN)}
# of models whose tokens are no pieces of a word as they stand
AFFIXES = ('continuing_subword_prefix', 'end_of_word_suffix', 'byte_fallback')
PROBE = 'a A  b12,3 ...é e\u0301 中 🙂\u00a0\u2028\t x\r\n\n \x00\x7f“_ß '  # what may be left out


def byte_level(model, *cuts):
    """Return a backend of this model, which reads each part of a text in letters that are bytes.

    cuts  pre-tokenizers that cut the text into parts"""
    backend = tokenizers.Tokenizer(model)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, letters])
    backend.decoder = decoders.ByteLevel()
    return backend


def are_bytes(backend, parts):
    """Whether the tokens of each text are pieces of its bytes.

    parts  what the tokenizer.json of the backend says"""
    model = parts['model']
    rewrites = kinds(parts['normalizer']) or 'Removed' in str(parts['pre_tokenizer'])
    if rewrites or kinds(parts['decoder']) != ['ByteLevel'] or not backend.pre_tokenizer:
        return False
    if any(map(model.get, AFFIXES)):
        return False
    plain = [token for token in parts['added_tokens'] if not token['special']]
    if any(token['lstrip'] or token['rstrip'] for token in plain):
        return False
    letters = ''.join(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(PROBE))
    return [*map(BYTE_OF.get, letters)] == [*PROBE.encode()]


def why_no_parts(parts):
    """Return '' if a token has the same text behind each token that does not begin the text, else
    why it has not.

    parts  what a tokenizer.json says"""
    found = ', '.join(kinds(parts['decoder']))
    is_other = re.search(r'BPEDecoder|CTC|Fuse.*Replace', found)
    if is_other or re.search(r'"stop": [1-9]', json.dumps(parts['decoder'])):
        return f'it makes a text of its tokens by {found}'
    return ''


def kinds(part):
    """Return the types of a part of a tokenizer.json, which may be a sequence of parts or None."""
    found = re.findall(r'"type": "(\w+)"', json.dumps(part))
    return [kind for kind in found if kind != 'Sequence']


def bytes_of_tokens(backend, n_tokens, unknown):
    """Return the bytes of each token of a backend in whose vocabulary a letter is a byte. Tokens
    that are added are text as they stand, or special."""
    pieces = [None for _ in range(n_tokens)]
    for token, i in backend.get_vocab().items():
        found = [*map(BYTE_OF.get, token)]
        if i != unknown:
            pieces[i] = token.encode() if None in found else bytes(found)
    for i, token in backend.get_added_tokens_decoder().items():
        pieces[i] = None if token.special else token.content.encode()
    return pieces
