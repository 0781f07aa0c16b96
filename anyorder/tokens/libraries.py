"""What is a tokenizer of a library? GPT-2's of tiktoken, or any of the package tokenizers.

A library is imported when one of its tokenizers is opened, the ranks of GPT-2 when it is asked."""

import functools
import itertools
import json
import os
import re
import threading
import unicodedata
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from anyorder.machine.files import reading
from anyorder.tokens.sets import N_IDS
from anyorder.tokens.tokenizer import END_OF_TEXT, PART, Tokenizer, parted

# texts of special tokens with which vocabularies end a document, the first that is there counts
ENDS = (
    END_OF_TEXT,
    '<|end_of_text|>',
    '<｜end▁of▁sentence｜>',
    '</s>',
    '<eos>',
    '<|eos|>',
    '[EOS]',
    '[SEP]',
)
AGAIN = 'copy it again, or name another'


def encoding(name):
    """Return the Encoding of tiktoken that has this name."""
    import tiktoken

    names = tiktoken.list_encoding_names()
    if name not in names:
        raise ValueError(f'tiktoken has the encodings {", ".join(names)}, got {name!r}')
    try:
        return tiktoken.get_encoding(name)
    except Exception as e:  # requests' own errors, and a cached file of a wrong hash
        raise ValueError(
            f'the ranks of {name} are neither cached nor downloadable: set TIKTOKEN_CACHE_DIR to a '
            f'folder that holds them, or use --tokenizer=bytes ({type(e).__name__})'
        ) from None


def end_among(special):
    """Return the first of ENDS among special tokens, None without."""
    return next((text for text in ENDS if text in special), None)


class GPT2(Tokenizer):
    """GPT-2's byte-pair encoding by tiktoken, with 50256 for the end of a document."""

    name = 'gpt2'
    n_tokens = 50257
    eos = 50256

    @functools.cached_property
    def bpe(self):
        return encoding('gpt2')

    @functools.cached_property
    def n_bytes(self):
        ranks = self.bpe._mergeable_ranks
        return np.array([*map(len, sorted(ranks, key=ranks.get)), 0])

    def encode(self, text):
        return [i for part in without_long_runs(text) for i in self.bpe.encode_ordinary(part)]

    def encode_batch(self, texts):
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # tiktoken lets others run meanwhile
            return list(pool.map(self.encode, texts))

    def decode(self, ids):
        return self.bpe.decode(ids)

    def cut(self, text):
        return last_cut(text)


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


# GPT-2's expression, by which a word has at most so many letters. The time that learning takes, and
# the number of letters that are read at once, grow with the longest word: a genome would be one.
LONG_WORD = 64
UP_TO = f'{{1,{LONG_WORD}}}'
WORDS = (
    rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}{UP_TO}| ?\p{{N}}{UP_TO}| ?[^\s\p{{L}}\p{{N}}]{UP_TO}"
    rf'|\s{UP_TO}(?!\S)|\s{UP_TO}'
)
AHEAD = 4  # letters from the end of a word on that may change where it ends


def split_in_words():
    """Return what cuts a text by WORDS."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(WORDS), 'isolated')


def last_cut_of_words(text):
    """Return last_cut where WORDS cut a text, also within a run of letters of one kind."""
    n = last_cut(text)
    if n:
        return n
    ends = (end for _, (_, end) in split_in_words().pre_tokenize_str(text))
    return max((end for end in ends if end + AHEAD <= len(text)), default=0)


def no_cut(text):
    """Return the last cut of a text that is read as a whole."""
    return 0


# --------------------------------------------------------------------------------------------------
# The package tokenizers


class Library(Tokenizer):
    """A tokenizer of the package `tokenizers`.

    A text for which the vocabulary lacks tokens is refused.

    backend       the object of the package, which is changed: it neither cuts nor pads nor
                  frames a text, nor draws at random
    unknown       the id that stands for what the vocabulary lacks, or None
    unknown_text  what shows it
    is_checked    whether texts are: bytes spell them all"""

    def __init__(self, name, backend, eos):
        self.name = name
        self.backend = backend
        self.eos = eos
        backend.post_processor = None  # which leaves blanks out of where a token stands
        backend.no_truncation()
        backend.no_padding()

        # The vocabulary
        ids = backend.get_vocab()
        self.n_tokens = 1 + max(ids.values())
        self.special = special_of(backend)
        parts = json.loads(backend.to_str())
        self.why_no_bytes = why_no_bytes(parts)
        self.why_no_parts = why_no_parts(parts)
        if self.has_letters_of_bytes(parts):
            added = backend.get_added_tokens_decoder()
            self.n_bytes = sizes_of_letters(ids, added, self.n_tokens)

        # What it lacks
        text = parts['model'].get('unk_token')
        self.unknown_text = text
        self.unknown = ids.get(text, parts['model'].get('unk_id'))  # the second is Unigram's
        if self.unknown is not None:
            self.unknown_text = backend.id_to_token(self.unknown)
        self.is_checked = bool(self.why_no_bytes) or not ids.keys() >= BYTE_OF.keys()
        self.last_cut = no_cut if self.is_checked else last_cut_by(parts)
        self.is_left_out = functools.cache(self.is_left_out)

    def has_letters_of_bytes(self, parts):
        """Whether n_bytes is told by the letters of the tokens; `parts` are of tokenizer.json."""
        return not self.why_no_bytes

    @functools.cached_property
    def file(self):
        return self.backend.to_str()

    @classmethod
    def of_file(cls, name, text, eos=None, end=''):
        """Return the tokenizer that the text of a tokenizer.json makes; no code of it is run.

        eos  the token that ends a document; None: the special token of the text `end`, or one of
             ENDS, or a new one"""
        with reading(name, 'a tokenizer.json of the package tokenizers', AGAIN):
            parts = json.loads(text)
            largest = max(ids_of(parts).values(), default=0)
        if largest >= N_IDS:
            raise ValueError(
                f'{name} has the id {largest:,}, ids must be below {N_IDS:,}: number its tokens '
                'without gaps'
            )
        backend = backend_of(name, steady(text, parts))
        check_ids(name, backend.get_vocab())
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

    def encode(self, text):
        ids = self.read(self.backend.encode, text).ids
        self.check_spelt(text, ids)
        return ids

    def encode_batch(self, texts):
        found = [one.ids for one in self.read(self.backend.encode_batch_fast, texts)]
        for text, ids in zip(texts, found):
            self.check_spelt(text, ids)
        return found

    def check_spelt(self, text, ids):
        """Raise ValueError where a vocabulary that is checked lacks tokens for a text."""
        if self.is_checked and not self.is_spelt(text, ids):
            self.refuse(text, self.lacking(text, self.offsets(text)))

    def is_spelt(self, text, ids):
        """Whether the ids, which encode a text, spell all of it."""
        if self.unknown is not None and self.unknown in ids:
            return False
        if self.n_bytes is not None:
            return self.n_bytes[ids].sum() == len(text.encode())
        return not any(map(self.is_left_out, {*text}))

    def refuse(self, text, unspelt):
        """Raise ValueError if there are parts of a text that its tokens do not spell."""
        if unspelt:
            place = max(0, text.index(unspelt[0]) - 20)
            raise ValueError(
                f'{self.name} has no token for {unspelt[0][:40]!r}, as in '
                f'{text[place : place + 60]!r}: leave it out, or choose a tokenizer that spells '
                'every text, as bytes, gpt2 or bpe:4096'
            )

    def lacking(self, text, spans):
        """Return the parts of a text that are unknown; without one, the letters that are left out,
        as a normalizer may do."""
        return self.unspelt(text, spans) or self.left_out(text)

    def unspelt(self, text, spans):
        # unknown tokens, or letters that are left out
        if self.unknown is None:
            return self.left_out(text)
        found = (text[start:end] for i, start, end in spans if i == self.unknown)
        return [part for part in found if part != self.unknown_text]  # which may be written

    def left_out(self, text):
        return [letter for letter in text if self.is_left_out(letter)]

    def is_left_out(self, letter):
        """Whether a letter makes no token, as where a vocabulary has none for what it lacks.

        Where tokens are no bytes, blanks and what is not printed may be left out on purpose, before
        the vocabulary is asked."""
        ids = self.read(self.backend.encode, letter).ids
        if not self.why_no_bytes and self.n_bytes is not None:
            return self.n_bytes[ids].sum() != len(letter.encode())
        if ids:
            return False
        return unicodedata.category(letter)[0] in 'LNPS' or bool(self.words(letter))

    def words(self, text):
        """Return the words of which the vocabulary is asked for a text."""
        if self.backend.normalizer:
            text = self.backend.normalizer.normalize_str(text)
        if self.backend.pre_tokenizer:
            return [word for word, _ in self.backend.pre_tokenizer.pre_tokenize_str(text) if word]
        return [text] if text else []

    def spans(self, text):
        if self.why_no_bytes:
            found = self.offsets(text)
            self.check_spelt(text, [i for i, _, _ in found])
            return found
        return super().spans(text)

    def offsets(self, text, shown=False):
        """Return the spans of a text as the backend tells them, special tokens too if `shown`."""
        return spans_of(self.read(self.backend.encode, text, shown))

    def pair_spans(self, prompt, text):
        if not self.why_no_bytes:
            return super().pair_spans(prompt, text)
        return cut_in_two(self.spans(prompt + text), len(prompt))

    def encode_pairs(self, pairs):
        if not self.why_no_bytes:
            return super().encode_pairs(pairs)
        texts = [prompt + text for prompt, text in pairs]
        wholes = self.read(self.backend.encode_batch, texts)
        both = []
        for (prompt, _), text, whole in zip(pairs, texts, wholes):
            self.check_spelt(text, whole.ids)
            given, _ = parted(spans_of(whole), len(prompt))
            both.append((whole.ids[: len(given)], whole.ids[len(given) :]))
        return both

    def text_behind(self, before, ids):
        if not before or not self.why_no_bytes:
            return self.decode(ids)
        before = [self.stand_in if token is None else token for token in before]
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

    def shown_spans(self, text):
        found = self.shown_offsets(text)
        if self.is_checked:
            self.refuse(text, self.lacking(text, found))
        return found

    def shown_offsets(self, text):
        """Return shown_spans of a text of which parts may be unknown."""
        read = functools.partial(self.offsets, shown=True)
        if self.eos is None or self.special.get(END_OF_TEXT) == self.eos:
            return read(text)
        return self.between({END_OF_TEXT: self.eos}, text, read)

    def spans_behind(self, before, text):
        """Return the shown spans of a text right behind the text `before`, or behind a blank, ''.

        Many tokenizers begin a word with each text that they read. So these read it with letters
        before it, whose tokens are left out. Raises ValueError where no token ends at the border,
        or what is read is another text."""
        alone = self.shown_spans(text)
        if not text or not self.why_no_bytes:
            return alone
        letter = (text.strip() or 'x')[0]
        context = before or letter
        ids = self.ids_once(context)
        right = self.decode_once(self.ids_once(context + text))
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

    def ids_once(self, text):
        return [token for token, _, _ in self.shown_offsets(text)]

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
        found = self.shown_offsets(left + text)
        n = len(left)
        if any(start < n < end for _, start, end in found):
            return None
        return [(token, start - n, end - n) for token, start, end in found if start >= n]

    def cut(self, text):
        return self.last_cut(text)

    def decode(self, ids):
        text = ''
        for is_end, run in itertools.groupby(ids, key=lambda i: i == self.eos):
            run = list(run)
            if is_end:
                text += END_OF_TEXT * len(run)
            else:
                text += self.backend.decode(run, skip_special_tokens=False)
        return text


def spans_of(found):
    """Return the spans that an Encoding of the package has."""
    return [(i, start, end) for i, (start, end) in zip(found.ids, found.offsets)]


def cut_in_two(found, border):
    """Return the spans of a whole text before a border and behind it, see parted, each in the
    letters of its own part."""
    given, rest = parted(found, border)
    return given, [(i, max(0, start - border), end - border) for i, start, end in rest]


def ids_of(parts):
    """Return {token: id} by what a tokenizer.json says."""
    ids = parts['model']['vocab']
    if isinstance(ids, list):  # Unigram's tokens and their scores
        ids = {token: i for i, (token, _) in enumerate(ids)}
    added = {token['content']: token['id'] for token in parts.get('added_tokens', ())}
    return ids | added


def check_ids(name, ids):
    """Raise ValueError unless each token of {token: id} has an id of its own."""
    if len({*ids.values()}) == len(ids):
        return
    tokens = {}
    for token, i in sorted(ids.items()):
        other = tokens.setdefault(i, token)
        if other != token:
            raise ValueError(
                f'{name} has the id {i} for {other!r} and for {token!r}: give each token an id of '
                'its own'
            )


def backend_of(name, text):
    """Return the object of the package tokenizers that the text of a tokenizer.json makes."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as e:  # the package has no class of its own
        raise ValueError(
            f'tokenizers {tokenizers.__version__} cannot read {name} ({str(e)[:100]}): {AGAIN}, or '
            'pip install -U tokenizers where a newer version wrote it'
        ) from None


def steady(text, parts):
    """Return the text of a tokenizer.json by which a text has the same tokens each time.

    parts  what the text says"""
    if parts['model'].get('dropout'):
        parts['model']['dropout'] = None
        return json.dumps(parts)
    return text


def special_of(backend):
    """Return {text: id} of the special tokens of a backend."""
    added = backend.get_added_tokens_decoder()
    return {token.content: i for i, token in added.items() if token.special}


def end_of(backend, end=''):
    """Return the token of a backend that ends a document. If it has none, it is given one.

    end  the text of the special token that does so, where none of ENDS is better"""
    special = special_of(backend)
    if END_OF_TEXT not in special and end in special:
        return special[end]
    found = end_among(special)
    if found is None:
        found = END_OF_TEXT
        backend.add_special_tokens([END_OF_TEXT])
    return backend.token_to_id(found)


# --------------------------------------------------------------------------------------------------
# The bytes of a byte-level vocabulary, in which a letter is a byte as in GPT-2's: bytes that can be
# seen are themselves, and the others follow from 256 on

SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
UNSEEN = [b for b in range(256) if b not in SEEN]
BYTE_OF = {chr(b): b for b in SEEN} | {chr(256 + n): b for n, b in enumerate(UNSEEN)}
KEEPING = ('ByteLevel', 'Split', 'Digits', 'Punctuation', 'UnicodeScripts')  # letters, if asked to
JOINED = ('BPE', 'Unigram', 'WordLevel')  # models whose tokens are pieces of a word as they stand


def why_no_bytes(parts):
    """Return '' if the tokens of each text are pieces of its bytes, else why they are not.

    parts  what a tokenizer.json says"""
    normalizers = flat(parts['normalizer'], 'normalizers')
    if normalizers:
        return f'it rewrites texts before it reads them ({kinds(normalizers)})'
    if not are_bytes(parts):
        return 'its tokens are no bytes'
    for cut in flat(parts['pre_tokenizer'], 'pretokenizers'):
        if cut.get('add_prefix_space'):
            return 'it puts a space before a text'
        if cut['type'] not in KEEPING or cut.get('behavior') == 'Removed':
            return f'it may leave out a part of a text ({cut["type"]})'
    for token in parts['added_tokens']:
        if not token['special'] and (token['lstrip'] or token['rstrip']):
            return f'its token {token["content"]!r} takes blanks with it'
    return ''


def why_no_parts(parts):
    """Return '' if a token has the same text behind each token that does not begin the text, else
    why it has not.

    parts  what a tokenizer.json says"""
    decoders = flat(parts['decoder'], 'decoders')
    for n, part in enumerate(decoders):
        is_fused = 'Fuse' in [before['type'] for before in decoders[:n]]
        is_other = part['type'] in ('BPEDecoder', 'CTC') or part.get('stop')
        if is_other or (is_fused and part['type'] == 'Replace'):
            return f'it makes a text of its tokens by {kinds(decoders)}'
    return ''


def are_bytes(parts):
    """Whether a tokenizer.json reads bytes as letters, writes letters as bytes, and has tokens that
    are pieces of a word as they stand."""
    model = parts['model']
    affixes = ('continuing_subword_prefix', 'end_of_word_suffix', 'byte_fallback')
    is_joined = model['type'] in JOINED and not any(model.get(name) for name in affixes)
    reads = 'ByteLevel' in kinds(flat(parts['pre_tokenizer'], 'pretokenizers'))
    writes = kinds(flat(parts['decoder'], 'decoders')) == 'ByteLevel'
    return is_joined and reads and writes


def flat(part, name):
    """Return the parts of a part of a tokenizer.json, which may be a sequence of this name."""
    if part is None:
        return []
    if part['type'] != 'Sequence':
        return [part]
    found = []
    for inner in part[name]:
        found += flat(inner, name)
    return found


def kinds(parts):
    return ', '.join(part['type'] for part in parts)


def sizes_of_letters(ids, added, n_tokens):
    """Return n_bytes (n_tokens,) of a vocabulary {token: id} in which a letter is a byte.

    added  {id: token} of the tokens that stand for text as it is, or are special"""
    n_bytes = np.zeros(n_tokens, int)
    for token, i in ids.items():
        is_letters = BYTE_OF.keys() >= {*token}
        n_bytes[i] = len(token) if is_letters else len(token.encode())
    for i, token in added.items():
        n_bytes[i] = 0 if token.special else len(token.content.encode())
    return n_bytes


def last_cut_by(parts):
    """Return what tells the last cut of a text that a tokenizer.json cuts by GPT-2's expression or
    by WORDS, and by nothing else."""
    cuts = flat(parts['pre_tokenizer'], 'pretokenizers')
    if not all(token['special'] for token in parts['added_tokens']):
        return no_cut
    if len(cuts) == 1 and cuts[0]['use_regex']:
        return last_cut
    is_by_words = kinds(cuts) == 'Split, ByteLevel' and cuts[0]['pattern'] == {'Regex': WORDS}
    if is_by_words and not cuts[1]['use_regex']:
        return last_cut_of_words
    return no_cut


def heard(learn, texts):
    """Return learn(texts), run in a thread: the package itself hears no Ctrl-C while it learns.

    After a signal the thread ends with the next text; once all are read, with the process alone."""
    done = Future()
    given_up = threading.Event()

    def until_given_up():
        for text in texts:
            if given_up.is_set():
                raise InterruptedError
            yield text

    def run():
        try:
            done.set_result(learn(until_given_up()))
        except BaseException as e:
            done.set_exception(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return done.result()
    finally:
        given_up.set()
        thread.join(1)  # seconds


def train_bpe(name, n_tokens, texts):
    """Return a Library of byte pairs, of which there are n_tokens at most.

    The pairs are learned from the texts, as GPT-2's: words are cut by its expression, long ones
    anew after LONG_WORD letters, and the most frequent pair of tokens becomes a token, again and
    again (Sennrich et al. 2016). A pair that stands once becomes none. Texts are read once and not
    kept. The last token ends a document. The same texts make the same tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split_in_words(), letters])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens - 1,
        min_frequency=2,
        initial_alphabet=[*BYTE_OF],
        special_tokens=[],
        show_progress=False,
    )
    heard(functools.partial(backend.train_from_iterator, trainer=trainer), texts)
    return Library(name, backend, end_of(backend))
