"""Which tokenizer has a set, and how do documents become its tokens?"""

import functools
import importlib
import itertools

import numpy as np

from anyorder.tokens.libraries import GPT2, Library
from anyorder.tokens.tokenizer import Bytes, Symbols, type_of

OWN = 'own'  # the tokenizer of a set whose meta.json names its tokens, or only counts them
TEXT = {'bytes': Bytes, 'gpt2': GPT2}
# tokens of sets that a room of extras makes, and its module, which is imported when one is made
MAKERS = dict.fromkeys(
    ('sudoku4', 'sudoku', 'zebra4', 'zebra', 'nae_sat', 'countdown3', 'countdown4'),
    'anyorder.extras.puzzles.sets',
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
    """Return the tokenizer that a name of TEXT or MAKERS makes."""
    if name in TEXT:
        return TEXT[name]()
    return symbols_of_puzzle(name, maker_of(name).about({'task': name})['vocabulary'])


def symbols_of_puzzle(name, texts):
    """Return the Symbols of a puzzle, with a blank between them if one begins with another."""
    begins = [later.startswith(text) for text, later in itertools.pairwise(sorted(texts))]
    separator = ' ' if any(begins) else ''
    return Symbols(name, texts, separator)


def is_of_text(name):
    """Whether the tokens of this tokenizer are pieces of a text."""
    return name not in (*MAKERS, OWN)


def tokenizer_of_set(meta):
    """Return the tokenizer of a set, by its Meta.

    Tokens of one's own are named, or are their numbers. A tokenizer whose name is none of KNOWN is
    in the field tokenizer_file."""
    name = meta.tokenizer
    if name not in KNOWN:
        return kept_tokenizer(name, meta.tokenizer_file, meta.eos)
    if name in MAKERS and meta.vocabulary:
        return symbols_of_puzzle(name, meta.vocabulary)
    if name != OWN:
        return get_tokenizer(name)
    texts = meta.vocabulary or [str(i) for i in range(meta.n_tokens)]
    return Symbols(OWN, texts, ' ', meta.eos)


kept_tokenizer = functools.lru_cache(8)(Library.of_file)  # of a set or a checkpoint


class Begun(str):
    """A piece of a text that goes on in the next one."""


def encode_documents(documents, tokenizer):
    """Yield for each document its tokens (n,) as on disk, with an end of text, and its bytes.

    A text in pieces comes several times, the end with the last. Of a pair (prompt, text) the bytes
    are the text's, and the highest bit marks the prompt as given, see sets.py."""
    end = [] if tokenizer.eos is None else [tokenizer.eos]
    for batch in batches(cut_anew(documents, tokenizer.cut)):
        texts = batch
        dtype = type_of(tokenizer.n_tokens, 16)
        if isinstance(batch[0], tuple):
            found = tokenizer.encode_pairs(batch)
            texts = [text for _, text in batch]
            dtype = type_of(tokenizer.n_tokens, 15)
        else:
            found = [([], ids) for ids in tokenizer.encode_batch(batch)]
        mark = 1 << 8 * dtype.itemsize - 1
        for (given, ids), text in zip(found, texts):
            tail = [] if isinstance(text, Begun) else end
            tokens = np.concatenate([np.asarray(part, dtype) for part in (given, ids, tail)])
            tokens[: len(given)] |= mark
            n_bytes = len(text) if text.isascii() else len(text.encode())
            yield tokens, n_bytes


def cut_anew(documents, cut):
    """Yield documents whose pieces end where cut(text) says that the tokens are those of the whole
    text."""
    rest = ''
    for document in documents:
        if not isinstance(document, Begun):
            yield rest + document if rest else document
            rest = ''
            continue
        rest += document
        n = cut(rest)
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
