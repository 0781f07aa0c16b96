"""How does text become tokens? A tokenizer has

    name, n_tokens
    separator              what stands between the texts of two tokens
    eos                    the id that ends a document, or None
    n_bytes                (n_tokens,) bytes of text of each id; None where that cannot be said
    encode(text) -> ids    and encode_batch(texts), decode(ids) -> text
    spans(text)            [(id, start, end)]: the letters of the text from which each token is made
    cut(text)              the last place where the text can be cut and keeps its tokens, whatever
                           follows it, or 0

A tokenizer of others, HuggingFace, may also lack a token for what stands in a text, see its unspelt
and sizes."""

import functools
import importlib
import itertools
import json
import os
import re
import unicodedata

import numpy as np

END_OF_TEXT = '<|endoftext|>'  # how the token that ends a document is shown


class Bytes:
    """UTF-8 bytes, ids 0..255, and 256 for the end of a document."""

    name = 'bytes'
    n_tokens = 257
    eos = 256
    separator = ''
    n_bytes = np.append(np.ones(256, int), 0)

    def encode(self, text):
        return list(text.encode())

    def encode_batch(self, texts):
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def cut(self, text):
        return len(text)

    def decode(self, ids):
        found = bytearray()
        for i in ids:
            found += bytes([i]) if i < 256 else END_OF_TEXT.encode()
        return found.decode(errors='replace')

    def spans(self, text):
        return spans_of_bytes(self, text)


class GPT2:
    """GPT-2's byte-pair encoding by tiktoken, with 50256 for the end of a document."""

    name = 'gpt2'
    n_tokens = 50257
    eos = 50256
    separator = ''

    def __init__(self):
        import tiktoken

        try:
            bpe = tiktoken.get_encoding('gpt2')
        except Exception as e:  # requests' own errors, and a cached file of a wrong hash
            raise ValueError(
                'the GPT-2 vocabulary is neither cached nor downloadable: set TIKTOKEN_CACHE_DIR '
                f'to a folder that holds it, or use --tokenizer=bytes ({type(e).__name__})'
            ) from None
        self.bpe = bpe
        self.decode = bpe.decode
        sizes = [len(bpe.decode_single_token_bytes(i)) for i in range(self.eos)]
        self.n_bytes = np.array([*sizes, 0])

    def encode(self, text):
        return [i for part in without_long_runs(text) for i in self.bpe.encode_ordinary(part)]

    def encode_batch(self, texts):
        parts = [without_long_runs(text) for text in texts]
        together = [*itertools.chain(*parts)]
        found = self.bpe.encode_ordinary_batch(together, num_threads=os.cpu_count())
        found = iter(found)
        return [[*itertools.chain(*itertools.islice(found, len(part)))] for part in parts]

    def spans(self, text):
        return spans_of_bytes(self, text)

    def cut(self, text):
        found = LAST_CUT.match(text, max(0, len(text) - FAR))
        return found.end() if found else 0


# GPT-2's expression cuts between a blank and what stands before it, and between a letter or digit
# and a sign. The cuts below are those for which no two versions of Unicode differ.
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
    """Return the parts of a text, whose tokens by GPT-2 are those of the text.

    The text is cut before the last blank of a long run, where GPT-2 cuts too: tiktoken panics at a
    run of a million blanks unless it is the end of a text."""
    whole_blocks = range(0, len(text) - LONG_RUN + 1, LONG_RUN)
    # 100 times as fast as the expression
    if any(text[i : i + LONG_RUN].isspace() for i in whole_blocks):
        return BEFORE_LAST_BLANK.split(text)
    return [text]


def spans_of_bytes(tokenizer, text):
    """Return `spans` by a tokenizer whose tokens are pieces of the text's bytes.

    Two tokens may share a letter."""
    ids = tokenizer.encode(text)
    sizes = [len(one.encode()) for one in text]
    letter = np.repeat(np.arange(len(text)), sizes)  # of each byte
    ends = np.cumsum(tokenizer.n_bytes[ids])
    starts = ends - tokenizer.n_bytes[ids]
    first = letter[starts]
    last = letter[ends - 1]
    return list(zip(ids, first.tolist(), (last + 1).tolist()))


class HuggingFace:
    """A tokenizer of the package `tokenizers`.

    n_bytes       None where a text does not come back, as from WordPiece
    special       {text that shows a special token: id}, which encode never reads from a text; spans
                  does if `shown`
    unknown       the id that stands for what the vocabulary lacks, or None
    unknown_text  what shows it
    chat          (messages, add_generation_prompt=...) -> prompt, or None without a chat template
    """

    separator = ''
    n_bytes = None

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

    def unspelt(self, text, spans):
        """Return the parts of a text that its tokens do not spell: unknown ones, or letters that
        are left out."""
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

    def cut(self, text):
        return 0

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


def one_of(texts):
    """Return a regular expression for any of the texts. Where several fit it takes the longest."""
    return '|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))


class Symbols:
    """Tokens that are no text: `texts` one behind the other, the longest that fits, or with
    `separator` between."""

    eos = None
    n_bytes = None
    texts = ()
    separator = ''

    def __init__(self):
        self.ids = {text: i for i, text in enumerate(self.texts)}

    def encode(self, text):
        return [i for i, _, _ in self.spans(text)]

    def spans(self, text):
        symbol = r'\S+' if self.separator else one_of(self.texts)
        found = list(re.finditer(symbol, text))
        read = [one[0] for one in found]
        is_whole = bool(self.separator) or ''.join(read) == text
        if not is_whole or not self.ids.keys() >= {*read}:
            between = ', with blanks between them' if self.separator else ''
            raise ValueError(
                f'{self.name} has the tokens {" ".join(self.texts)[:100]}{between}, got '
                f'{text[:60]!r}'
            )
        return [(self.ids[one[0]], *one.span()) for one in found]

    def decode(self, ids):
        return self.separator.join(self.texts[i] for i in ids)


def symbols(name, texts, **fields):
    """Return a class of Symbols with these texts, and with `fields` that differ from theirs."""
    own = {'name': name, 'texts': tuple(texts), 'n_tokens': len(texts)}
    return type(name, (Symbols,), own | fields)


OWN = 'own'  # the tokenizer of a set whose meta.json names its tokens, or only counts them
TEXT = {'bytes': Bytes, 'gpt2': GPT2}
# tokens of sets that a room of extras makes, and its module, which is imported when one is made, or
# where an older set does not name its tokens
MAKERS = dict.fromkeys(
    ('sudoku4', 'sudoku', 'zebra4', 'zebra', 'nae_sat'), 'anyorder.extras.puzzles.sets'
)
KNOWN = (*TEXT, *MAKERS, OWN)


def maker_of(name):
    """Return the module that makes sets of these tokens, one of MAKERS. It has

    about(puzzle)        -> {'vocabulary': texts of the tokens, 'made_by': the command}
    is_quick(name)       -> whether a set of this name is made when it is asked for
    prepare_puzzles(name, data_dir) -> Meta"""
    return importlib.import_module(MAKERS[name])


@functools.cache
def get_tokenizer(name):
    if name in TEXT:
        return TEXT[name]()
    if name in MAKERS:
        return symbols(name, maker_of(name).about({'task': name})['vocabulary'])()
    raise ValueError(f'tokenizer must be one of {", ".join([*TEXT, *MAKERS])}, got {name!r}')


def tokenizer_of_set(kind):
    """Return the tokenizer of a set, by what kind_of says of it.

    Tokens of one's own are named, or are their numbers."""
    name = kind['tokenizer']
    texts = kind.get('vocabulary')
    if name in MAKERS and texts:
        return symbols(name, texts)()
    if name != OWN:
        return get_tokenizer(name)
    if not texts:
        texts = [str(i) for i in range(kind['n_tokens'])]
    return symbols(OWN, texts, separator=' ', eos=kind['eos'])()


class Begun(str):
    """A piece of a text that goes on in the next one."""


def encode_documents(documents, tokenizer):
    """Yield for each document its tokens (n,) as on disk, with an end of text, and its bytes.

    A text in pieces comes several times, the end with the last. Of a pair (prompt, text) the bytes
    are the text's, and the highest bit marks the prompt as given, see sets.py."""
    for batch in batches(cut_anew(documents, tokenizer)):
        if isinstance(batch[0], tuple):
            yield from encode_pairs(batch, tokenizer)
        else:
            yield from encode_texts(batch, tokenizer, type_of(tokenizer, 16))


def type_of(tokenizer, n_bits):
    """Return the type of a token on disk, whose id has n_bits of 16 if that is enough."""
    return np.dtype('<u2' if tokenizer.n_tokens <= 2**n_bits else '<u4')


def encode_pairs(pairs, tokenizer):
    """Yield tokens and bytes of pairs (prompt, text). See encode_documents."""
    prompts, texts = map(list, zip(*pairs))
    dtype = type_of(tokenizer, 15)
    mark = 1 << 8 * dtype.itemsize - 1
    given = tokenizer.encode_batch(prompts)
    for ids, (tokens, n_bytes) in zip(given, encode_texts(texts, tokenizer, dtype)):
        yield np.concatenate([np.asarray(ids, dtype) | mark, tokens]), n_bytes


def encode_texts(texts, tokenizer, dtype):
    """Yield tokens and bytes of texts, or pieces of texts. See encode_documents."""
    none = np.array([], dtype)
    end = none if tokenizer.eos is None else np.array([tokenizer.eos], dtype)
    for ids, text in zip(tokenizer.encode_batch(texts), texts):
        tail = none if isinstance(text, Begun) else end
        n_bytes = len(text) if text.isascii() else len(text.encode())
        yield np.concatenate([np.asarray(ids, dtype), tail]), n_bytes


def cut_anew(documents, tokenizer):
    """Yield documents whose pieces end where the tokens are those of the whole text."""
    rest = ''
    for document in documents:
        if not rest and not isinstance(document, Begun):
            yield document
            continue
        rest += document
        if not isinstance(document, Begun):
            yield rest
            rest = ''
            continue
        n = tokenizer.cut(rest)
        if n:
            yield Begun(rest[:n])
            rest = rest[n:]


def batches(documents, most=256, letters=1 << 20):
    """Yield lists of at most `most` documents, which end once they hold so many `letters`."""
    batch = []
    n = 0
    for document in documents:
        batch.append(document)
        n += len(document) if isinstance(document, str) else sum(map(len, document))
        if len(batch) == most or n >= letters:
            yield batch
            batch = []
            n = 0
    if batch:
        yield batch


def split_documents(tokens, eos):
    """Yield the ids of each document in a stream of tokens (n,), without the `eos` at its end."""
    for part in np.split(tokens, np.flatnonzero(tokens == eos) + 1):
        if len(part):
            yield part[part != eos].tolist()
