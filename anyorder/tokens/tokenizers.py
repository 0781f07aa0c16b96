"""How does text become tokens? A tokenizer has

    name, n_tokens
    separator              what stands between the texts of two tokens
    eos                    the id that ends a document, or None
    n_bytes                bytes of text of each id, (n_tokens,); None where that cannot be said
    encode(text) -> ids    and encode_batch(texts), decode(ids) -> text
    spans(text)            [(id, start, end)]: the letters of the text from which each token is made
    cut(text)              the last place where the text can be cut and keeps its tokens, whatever follows it, or 0

A tokenizer of others, HuggingFace, may also lack a token for what stands in a text, see its unspelt and sizes."""

import functools
import itertools
import json
import os
import re
import unicodedata

import numpy as np

from anyorder.puzzles.rules import TASKS

END_OF_TEXT = '<|endoftext|>'  # how the token that ends a document is shown


class Bytes:
    """UTF-8 bytes, ids 0..255, and 256 for the end of a document."""

    name, n_tokens, eos, separator = 'bytes', 257, 256, ''
    n_bytes = np.array([1] * 256 + [0])

    def encode(self, text):
        return list(text.encode())

    def encode_batch(self, texts):
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def cut(self, text):
        return len(text)

    def decode(self, ids):
        return b''.join(bytes([i]) if i < 256 else END_OF_TEXT.encode() for i in ids).decode(
            errors='replace'
        )

    def spans(self, text):
        return spans_of_bytes(self, text)


class GPT2:
    """GPT-2's byte-pair encoding by tiktoken, with 50256 for the end of a document."""

    name, n_tokens, eos, separator = 'gpt2', 50257, 50256, ''

    def __init__(self):
        import tiktoken

        try:
            bpe = tiktoken.get_encoding('gpt2')
        except Exception as e:  # requests' own errors, and a cached file of a wrong hash
            raise ValueError(
                'the GPT-2 vocabulary is neither cached nor downloadable: set TIKTOKEN_CACHE_DIR to a '
                f'folder that holds it, or use --tokenizer=bytes ({type(e).__name__})'
            ) from None
        self.n_bytes = np.array(
            [len(bpe.decode_single_token_bytes(i)) for i in range(self.eos)] + [0]
        )
        self.bpe, self.decode = bpe, bpe.decode

    def encode(self, text):
        return [i for part in without_long_runs(text) for i in self.bpe.encode_ordinary(part)]

    def encode_batch(self, texts):
        parts = [without_long_runs(text) for text in texts]
        found = iter(
            self.bpe.encode_ordinary_batch([*itertools.chain(*parts)], num_threads=os.cpu_count())
        )
        return [[*itertools.chain(*itertools.islice(found, len(part)))] for part in parts]

    def spans(self, text):
        return spans_of_bytes(self, text)

    def cut(self, text):
        found = LAST_CUT.match(text, max(0, len(text) - FAR))
        return found.end() if found else 0


# GPT-2's expression cuts between a blank and what stands before it, and between a letter or digit and a sign. The cuts
# below are those for which no two versions of Unicode differ.
BLANKS = r'\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000'  # what \s is in Rust
BEFORE_A_BLANK = r'\S(?=[ \t\n\r])'
BEFORE_A_SIGN = (
    r'[A-Za-z0-9\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5](?=[!-/:-@[-`{-~\u3001\u3002\uff0c])'
)
LAST_CUT = re.compile(f'.*(?:{BEFORE_A_BLANK}|{BEFORE_A_SIGN})', re.DOTALL)
FAR = 1 << 18  # letters from the end in which a cut is looked for
LONG_RUN = 1000  # blanks
BEFORE_LAST_BLANK = re.compile(f'(?=[{BLANKS}][^{BLANKS}])(?<=[{BLANKS}]{{{LONG_RUN}}})')


def without_long_runs(text):
    """The parts of a text, whose tokens by GPT-2 are those of the text. The text is cut before the last blank of a long
    run, where GPT-2 cuts too: tiktoken panics at a run of a million blanks unless it is the end of a text."""
    whole_blocks = range(0, len(text) - LONG_RUN + 1, LONG_RUN)
    if any(
        text[i : i + LONG_RUN].isspace() for i in whole_blocks
    ):  # 100 times as fast as the expression
        return BEFORE_LAST_BLANK.split(text)
    return [text]


def spans_of_bytes(tokenizer, text):
    """`spans` of a tokenizer whose tokens are pieces of the text's bytes. Two tokens may share a letter."""
    ids = tokenizer.encode(text)
    letter = np.repeat(np.arange(len(text)), [len(one.encode()) for one in text])  # of each byte
    ends = np.cumsum(tokenizer.n_bytes[ids])
    starts = ends - tokenizer.n_bytes[ids]
    return list(zip(ids, letter[starts].tolist(), (letter[ends - 1] + 1).tolist()))


class HuggingFace:
    """A tokenizer of the package `tokenizers`. n_bytes is None where a text does not come back, as from WordPiece.
    `special` is {text that shows a special token: id}, which encode never reads from a text; spans does if `shown`.
    `unknown` is the id that stands for what the vocabulary lacks, or None, and `unknown_text` shows it.
    `chat` is (messages, add_generation_prompt=...) -> prompt, or None where no chat template is known."""

    separator, n_bytes = '', None

    def __init__(self, name, backend, eos=None, chat=None):
        self.name, self.backend, self.eos, self.chat, vocabulary = (
            name,
            backend,
            eos,
            chat,
            backend.get_vocab(),
        )
        self.special = {
            token.content: i
            for i, token in backend.get_added_tokens_decoder().items()
            if token.special
        }
        self.n_tokens = 1 + max(vocabulary.values())
        backend.post_processor = None  # which leaves blanks out of where a token stands
        parts = json.loads(backend.to_str())
        if (parts['decoder'] or {}).get('type') == 'ByteLevel':  # a letter of a token is a byte
            self.n_bytes = np.zeros(self.n_tokens, int)
            self.n_bytes[list(vocabulary.values())] = list(map(len, vocabulary))
            for i, token in backend.get_added_tokens_decoder().items():
                self.n_bytes[i] = 0 if token.special else len(token.content.encode())
        self.unknown_text = parts['model'].get('unk_token')
        self.unknown = vocabulary.get(
            self.unknown_text, parts['model'].get('unk_id')
        )  # the second is Unigram's
        if self.unknown is not None:
            self.unknown_text = backend.id_to_token(self.unknown)
        self.is_left_out = functools.cache(self.is_left_out)

    def read(self, encode, texts, shown=False):
        self.backend.encode_special_tokens = not shown  # else special tokens are text
        try:
            return encode(texts, add_special_tokens=False)
        except Exception as e:  # of a vocabulary that lacks what a text has, and a token for it too
            raise ValueError(
                f'{self.name} cannot spell all of {str(texts)[:60]!r} ({str(e)[:100]}): write it in the '
                'letters of its vocabulary'
            ) from None

    def encode(self, text):
        return self.read(self.backend.encode, text).ids

    def encode_batch(self, texts):
        return [found.ids for found in self.read(self.backend.encode_batch, texts)]

    def spans(self, text, shown=False):
        found = self.read(self.backend.encode, text, shown)
        return [(i, start, end) for i, (start, end) in zip(found.ids, found.offsets)]

    def unspelt(self, text, spans):
        """[the parts of a text that its tokens do not spell]: unknown ones, or letters that are left out."""
        if self.unknown is not None:
            found = (text[start:end] for i, start, end in spans if i == self.unknown)
            return [
                part for part in found if part != self.unknown_text
            ]  # somebody may have written it
        return [letter for letter in text if self.is_left_out(letter)]

    def is_left_out(self, letter):
        """Whether a letter, a digit or a sign makes no token, as where a vocabulary has none for what it lacks."""
        return unicodedata.category(letter)[0] in 'LNPS' and not self.encode(letter)

    def sizes(self, text, spans):
        """(n,) bytes of the text as it was given that are behind the token before, up to the end of each token."""
        ids = [i for i, _, _ in spans]
        n_bytes = len(text.encode())
        if self.backend.normalizer is None and self.n_bytes[ids].sum() == n_bytes:
            return self.n_bytes[ids]
        before = np.cumsum([0, *(len(one.encode()) for one in text)])  # of each letter
        ends = before[[end for _, _, end in spans]]
        ends[-1:] = n_bytes
        return np.diff(np.maximum.accumulate(ends), prepend=0)

    def cut(self, text):
        return 0

    def decode(self, ids):
        runs = [
            (is_end, list(run))
            for is_end, run in itertools.groupby(ids, key=lambda i: i == self.eos)
        ]
        return ''.join(
            END_OF_TEXT * len(run)
            if is_end
            else self.backend.decode(run, skip_special_tokens=False)
            for is_end, run in runs
        )


def one_of(texts):
    """A regular expression for any of the texts. Where several fit it takes the longest."""
    return '|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))


class Symbols:
    """Tokens that are no text: `texts` one behind the other, the longest that fits, or with `separator` between."""

    eos, n_bytes, texts, separator = None, None, (), ''

    def __init__(self):
        self.ids = {text: i for i, text in enumerate(self.texts)}

    def encode(self, text):
        return [i for i, _, _ in self.spans(text)]

    def spans(self, text):
        found = list(re.finditer(r'\S+' if self.separator else one_of(self.texts), text))
        symbols = [symbol[0] for symbol in found]
        if not self.separator and ''.join(symbols) != text or not self.ids.keys() >= {*symbols}:
            between = ', with blanks between them' if self.separator else ''
            raise ValueError(
                f'{self.name} has the tokens {" ".join(self.texts)[:100]}{between}, got {text[:60]!r}'
            )
        return [(self.ids[symbol[0]], *symbol.span()) for symbol in found]

    def decode(self, ids):
        return self.separator.join(self.texts[i] for i in ids)


def symbols(name, texts, **fields):
    return type(
        name, (Symbols,), {'name': name, 'texts': tuple(texts), 'n_tokens': len(texts)} | fields
    )


OWN = 'own'  # the tokenizer of a set whose meta.json names its tokens, or only counts them
TEXT = {'bytes': Bytes, 'gpt2': GPT2}
TOKENIZERS = TEXT | {name: symbols(name, task.symbols) for name, task in TASKS.items()}


@functools.cache
def get_tokenizer(name):
    if name not in TOKENIZERS:
        raise ValueError(f'tokenizer must be one of {", ".join(TOKENIZERS)}, got {name!r}')
    return TOKENIZERS[name]()


def tokenizer_of_set(kind):
    """The tokenizer of a set, by what kind_of says of it. Tokens of one's own are named, or are their numbers."""
    if kind['tokenizer'] != OWN:
        return get_tokenizer(kind['tokenizer'])
    texts = kind.get('vocabulary') or [str(i) for i in range(kind['n_tokens'])]
    return symbols(OWN, texts, separator=' ', eos=kind['eos'])()


class Begun(str):
    """A piece of a text that goes on in the next one."""


def encode_documents(documents, tokenizer):
    """Yields for each document its tokens (n,), uint16 where ids fit, with an end of text, and its number of bytes; for
    a text in pieces several times, the end with the last. Of a pair (prompt, text) the bytes are the text's, and the
    highest bit marks the prompt as given, see sets.py."""
    for batch in batches(cut_anew(documents, tokenizer)):
        *prompts, texts = map(list, zip(*batch)) if isinstance(batch[0], tuple) else [batch]
        dtype = np.dtype('<u2' if tokenizer.n_tokens <= 2 ** (15 if prompts else 16) else '<u4')
        end = np.array([] if tokenizer.eos is None else [tokenizer.eos], dtype)
        marked = [
            np.asarray(ids, dtype) | 1 << 8 * dtype.itemsize - 1
            for part in prompts
            for ids in tokenizer.encode_batch(part)
        ] or [end[:0]] * len(texts)
        for prompt, ids, text in zip(marked, tokenizer.encode_batch(texts), texts):
            tail = end[:0] if isinstance(text, Begun) else end
            n_bytes = len(text) if text.isascii() else len(text.encode())
            yield np.concatenate([prompt, np.asarray(ids, dtype), tail]), n_bytes


def cut_anew(documents, tokenizer):
    """Yields documents whose pieces end where the tokens are those of the whole text."""
    rest = ''
    for document in documents:
        if not rest and not isinstance(document, Begun):
            yield document
            continue
        rest += document
        if not isinstance(document, Begun):
            yield rest
            rest = ''
        elif n := tokenizer.cut(rest):
            yield Begun(rest[:n])
            rest = rest[n:]


def batches(documents, most=256, letters=1 << 20):
    """Yields lists of at most `most` documents, which end once they hold so many `letters`."""
    batch, n = [], 0
    for document in documents:
        batch.append(document)
        n += len(document) if isinstance(document, str) else sum(map(len, document))
        if len(batch) == most or n >= letters:
            yield batch
            batch, n = [], 0
    if batch:
        yield batch


def split_documents(tokens, eos):
    """Yields the ids of each document in a stream of tokens (n,). A document ends in `eos`, which is left out."""
    for part in np.split(tokens, np.flatnonzero(tokens == eos) + 1):
        if len(part):
            yield part[part != eos].tolist()
