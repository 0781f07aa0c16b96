"""How does text become tokens? Those of others are in anyorder/extras/masked/tokenizer.py."""

import functools
import importlib
import itertools
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

END_OF_TEXT = '<|endoftext|>'  # how the token that ends a document is shown


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
    texts                the text of each id, or None
    encode(text) -> ids  and encode_batch(texts), decode(ids) -> text"""

    separator = ''
    eos = None
    n_bytes = None
    texts = None

    @property
    def identity(self):
        """What tells a tokenizer from others, of which many are called 'own'."""
        return self.name, self.texts

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

    def shown_spans(self, text):
        """Return the spans of a text in which special tokens stand as they are shown."""
        if self.eos is None:
            return self.spans(text)
        return self.between_ends(text, self.spans)

    def shown_ids(self, text):
        """Return the tokens of shown_spans."""
        return [token for token, _, _ in self.shown_spans(text)]

    def between_ends(self, text, read):
        """Return the spans that `read` finds in the parts of a text between its END_OF_TEXT."""
        found = []
        here = 0
        for n, part in enumerate(text.split(END_OF_TEXT)):
            if n > 0:
                found.append((self.eos, here, here + len(END_OF_TEXT)))
                here += len(END_OF_TEXT)
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


class Bytes(Tokenizer):
    """UTF-8 bytes, ids 0..255, and 256 for the end of a document."""

    name = 'bytes'
    n_tokens = 257
    eos = 256
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


class GPT2(Tokenizer):
    """GPT-2's byte-pair encoding by tiktoken, with 50256 for the end of a document."""

    name = 'gpt2'
    n_tokens = 50257
    eos = 50256

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
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # tiktoken lets others run meanwhile
            return list(pool.map(self.encode, texts))

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


def one_of(texts):
    """Return a regular expression for any of the texts. Where several fit it takes the longest."""
    return '|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))


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
        return Symbols(name, maker_of(name).about({'task': name})['vocabulary'])
    raise ValueError(f'tokenizer must be one of {", ".join([*TEXT, *MAKERS])}, got {name!r}')


def tokenizer_of_set(kind):
    """Return the tokenizer of a set, by what kind_of says of it.

    Tokens of one's own are named, or are their numbers."""
    name = kind['tokenizer']
    texts = kind.get('vocabulary')
    if name in MAKERS and texts:
        return Symbols(name, texts)
    if name != OWN:
        return get_tokenizer(name)
    if not texts:
        texts = [str(i) for i in range(kind['n_tokens'])]
    return Symbols(OWN, texts, ' ', kind['eos'])


class Begun(str):
    """A piece of a text that goes on in the next one."""


def encode_documents(documents, tokenizer):
    """Yield for each document its tokens (n,) as on disk, with an end of text, and its bytes.

    A text in pieces comes several times, the end with the last. Of a pair (prompt, text) the bytes
    are the text's, and the highest bit marks the prompt as given, see sets.py."""
    end = [] if tokenizer.eos is None else [tokenizer.eos]
    for batch in batches(cut_anew(documents, tokenizer)):
        texts = batch
        given = itertools.repeat([])
        dtype = type_of(tokenizer, 16)
        if isinstance(batch[0], tuple):
            prompts, texts = map(list, zip(*batch))
            given = tokenizer.encode_batch(prompts)
            dtype = type_of(tokenizer, 15)
        mark = 1 << 8 * dtype.itemsize - 1
        for before, ids, text in zip(given, tokenizer.encode_batch(texts), texts):
            tail = [] if isinstance(text, Begun) else end
            parts = [np.asarray(part, dtype) for part in (before, ids, tail)]
            parts[0] |= mark
            n_bytes = len(text) if text.isascii() else len(text.encode())
            yield np.concatenate(parts), n_bytes


def type_of(tokenizer, n_bits):
    """Return the type of a token on disk, whose id has n_bits of 16 if that is enough."""
    return np.dtype('<u2' if tokenizer.n_tokens <= 2**n_bits else '<u4')


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
