"""What is a tokenizer? It makes ids of a text, and the text of ids.

Bytes, GPT-2's pairs of bytes and symbols stand here. All others are a tokenizer.json, which
anyorder/extras/tokenizers reads, learns from a text, or makes of what others have."""

import functools
import itertools
import os
import pkgutil
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from configurator import home

END_OF_TEXT = '<|endoftext|>'  # how the token that ends a document is shown
N_IDS = 1 << 24  # ids that tokens may have: more are a mistake, and no network has so many rows
PART = '\ufffd'  # what a decoder writes for a part of a letter


def one_of(texts):
    """Return a regular expression for any of the texts. Where several fit it takes the longest."""
    return '|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))


def check_text(what, text):
    """Raise ValueError for half of a pair of surrogates, or a byte that is no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f'{what} must be text in UTF-8, got {ascii(text)[:60]}') from None


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
    is_bytes       whether the tokens of a text are pieces of its bytes; True without texts
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
        letters = np.cumsum([len(one.encode()) for one in text])  # their ends, in bytes
        ends = np.cumsum(self.n_bytes[ids])
        first = letters.searchsorted(ends - self.n_bytes[ids], 'right')
        last = letters.searchsorted(ends)
        return list(zip(ids, first.tolist(), (last + 1).tolist()))

    def shown_spans(self, text):
        """Return the spans of a text in which special tokens stand as they are shown, the end of a
        document as END_OF_TEXT."""
        if self.special.get(END_OF_TEXT) == self.eos:  # or there is neither
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


# --------------------------------------------------------------------------------------------------
# GPT-2's


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


def last_cut(text):
    """Return the last place where GPT-2's expression cuts a text, whatever follows it, or 0."""
    found = LAST_CUT.match(text, max(0, len(text) - FAR))
    return found.end() if found else 0


class GPT2(Tokenizer):
    """GPT-2's byte-pair encoding by tiktoken, with 50256 for the end of a document."""

    name = 'gpt2'
    n_tokens = 50257
    eos = 50256

    @functools.cached_property
    def bpe(self):
        return encoding('gpt2')

    @functools.cached_property
    def pieces(self):
        ranks = self.bpe._mergeable_ranks
        return [*sorted(ranks, key=ranks.get), None]

    def encode(self, text):
        return [i for part in without_long_runs(text) for i in self.bpe.encode_ordinary(part)]

    def encode_batch(self, texts):
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # tiktoken lets others run meanwhile
            return list(pool.map(self.encode, texts))

    def decode(self, ids):
        return self.bpe.decode(ids)

    def cut_place(self, text):
        return last_cut(text)


def encoding(name):
    """Return the Encoding of tiktoken that has this name."""
    import tiktoken

    try:
        return tiktoken.get_encoding(name)
    except Exception as e:  # no such name, requests' own errors, and a cached file of a wrong hash
        names = ', '.join(tiktoken.list_encoding_names())
        raise ValueError(
            f'the ranks of {name}, one of {names}, are neither cached nor downloadable: set '
            'TIKTOKEN_CACHE_DIR to a folder that holds them, or use --tokenizer=bytes '
            f'({type(e).__name__})'
        ) from None


# --------------------------------------------------------------------------------------------------
# symbols


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


# --------------------------------------------------------------------------------------------------
# which one has a name, and a set


OWN = 'own'  # the tokenizer of a set whose meta.json names its tokens, or only counts them
TEXT = {'bytes': Bytes, 'gpt2': GPT2}
# tokens of sets that a room of extras makes, and its module, which is imported when one is made
MAKERS = dict.fromkeys(
    ('sudoku4', 'sudoku', 'zebra4', 'zebra', 'nae_sat', 'countdown3', 'countdown4'),
    'anyorder.extras.puzzles.sets',
)
KNOWN = (*TEXT, *MAKERS, OWN)
LIBRARY = 'anyorder.extras.tokenizers.library:Library'  # what reads a tokenizer.json
OTHERS = {  # what opens a tokenizer of others, by the beginning of its name, or by its path
    'tiktoken:': 'anyorder.extras.tokenizers.choices:of_tiktoken',
    'hf:': 'anyorder.extras.tokenizers.choices:of_hub',
    'bpe:': 'anyorder.extras.tokenizers.choices:to_train',
    '.json': 'anyorder.extras.tokenizers.choices:of_file',
    'FOLDER': 'anyorder.extras.tokenizers.choices:of_folder',
}
WAYS = 'bytes, gpt2, tiktoken:NAME, FILE.json, FOLDER, hf:OWNER/NAME or bpe:4096'


def maker_of(name):
    """Return the module that makes sets of these tokens, one of MAKERS. It has

    task_of(name)  -> .symbols, the texts of the tokens, and .quick, whether a set of this name is
                      made when it is asked for
    MADE_BY        the command that makes the set of a name behind it
    prepare_puzzles(name, data_dir) -> Meta"""
    return pkgutil.resolve_name(MAKERS[name])


def tokenizer_of_set(meta):
    """Return the tokenizer of a set, by its Meta."""
    texts = tuple(meta.vocabulary or ())
    return get_tokenizer(meta.tokenizer, meta.tokenizer_file, meta.eos, texts, meta.n_tokens)


@functools.lru_cache(16)
def get_tokenizer(name, file=None, eos=None, texts=(), n_tokens=0):
    """Return the tokenizer of this name, and of what is said beside it.

    file      makes a tokenizer whose name is none of KNOWN
    texts     of the tokens of a puzzle or of one's own. Without them a puzzle has those of its
              module, and tokens of one's own are shown as their numbers
    eos, n_tokens  of tokens that are no text, and the end of the file's

    Blanks stand between tokens of one's own, and where one begins with another."""
    if name in TEXT:
        return TEXT[name]()
    if name not in KNOWN:
        return pkgutil.resolve_name(LIBRARY).of_file(name, file, eos)
    if name in MAKERS and not texts:
        texts = maker_of(name).task_of(name).symbols
    texts = texts or [*map(str, range(n_tokens))]
    begins = [later.startswith(text) for text, later in itertools.pairwise(sorted(texts))]
    separator = ' ' if name == OWN or any(begins) else ''
    return Symbols(name, texts, separator, eos)


def choose(name):
    """Return the tokenizer of this name, as --tokenizer of data/prepare.py has it; of bpe:N it is
    still to be trained. None: '' names none.

    Raises ValueError where there is no such tokenizer."""
    if not name:
        return None
    if name in TEXT:
        return get_tokenizer(name)
    beginning, colon, rest = name.partition(':')
    kind = beginning + colon
    if not colon or kind not in OTHERS:
        rest = home(name)
        kind = 'FOLDER' if os.path.isdir(rest) else os.path.splitext(rest)[1]
    if kind not in OTHERS:
        raise ValueError(f'tokenizer must be {WAYS}, got {name!r}')
    return pkgutil.resolve_name(OTHERS[kind])(rest)
