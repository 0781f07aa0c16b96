"""Which tokenizer has a set, and how do documents become its tokens?"""

import functools
import itertools
import pkgutil

import numpy as np

from anyorder.tokens.libraries import GPT2, Library
from anyorder.tokens.tokenizer import Bytes, Symbols

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
        return Library.of_file(name, file, eos)
    if name in MAKERS and not texts:
        texts = maker_of(name).task_of(name).symbols
    texts = texts or [*map(str, range(n_tokens))]
    begins = [later.startswith(text) for text, later in itertools.pairwise(sorted(texts))]
    separator = ' ' if name == OWN or any(begins) else ''
    return Symbols(name, texts, separator, eos)


class Begun(str):
    """A piece of a text that goes on in the next one."""


def encode_documents(documents, tokenizer, meta):
    """Yield of each document its tokens (n,) as on disk, with an end of text, its bytes, and 1.

    A text in pieces comes several times, the end and the 1 with the last, before it 0. Of a pair
    (prompt, text) the bytes are the text's, and the prompt is given, see Meta.pack.

    meta  of the set that they are for"""
    dtype = meta.dtype
    end = [] if tokenizer.eos is None else [tokenizer.eos]
    for batch in batches(cut_anew(documents, tokenizer.cut_place)):
        texts = batch
        if meta.prompts:
            found = tokenizer.encode_pairs(batch)
            texts = [text for _, text in batch]
        else:
            found = [([], ids) for ids in tokenizer.encode_batch(batch)]
        for (prompt, ids), text in zip(found, texts):
            ends = not isinstance(text, Begun)
            tail = end if ends else []
            tokens = np.concatenate([np.asarray(part, dtype) for part in (prompt, ids, tail)])
            tokens[: len(prompt)] |= meta.mark
            yield tokens, len(text.encode()), int(ends)


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
