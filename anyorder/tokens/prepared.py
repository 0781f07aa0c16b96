"""Which data sets of text are there, and how is one prepared? Documents become token files."""

import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from anyorder.machine.terminal import progress
from anyorder.tokens.benchmarks import BENCHMARKS
from anyorder.tokens.choices import Untrained, choose
from anyorder.tokens.folder import folder_to_write, place_of
from anyorder.tokens.meta import Meta
from anyorder.tokens.sources import (
    Documents,
    from_hub,
    name_source,
    open_source,
    open_texts,
    openwebtext,
    pydocs,
)
from anyorder.tokens.tokenizers import Begun, encode_documents, tokenizer_of_set
from configurator import home

SPLIT_SEED = 2357
TRAIN_AND_VAL = ('train', 'val')
SPLITS = (*TRAIN_AND_VAL, 'test')


@dataclass
class DataSet:
    """A data set of text that has a name.

    documents  () -> documents without a --source, or with `splits` f(split); None where a source is
               needed
    tokenizer  the default
    val_ratio  share of the documents for validation
    about      what it is, for --help
    offline    whether it can be made from nothing but this Python
    splits     the splits that the set comes with and published numbers want
    rules      that make texts of its rows"""

    documents: Callable | None
    tokenizer: str
    val_ratio: float
    about: str
    offline: bool = False
    splits: tuple = ()
    rules: tuple = ()


def benchmark(name, repository, config, field, rules, splits, about):
    """Return a set for zero-shot perplexity: rows of the hub, or of a local file in the original
    form, detokenized."""

    def documents(split):
        return from_hub(repository, config, split, f'{name} --split={split}')[field]

    return DataSet(documents, 'gpt2', 0, about, splits=splits, rules=rules)


def detokenized(rows, rules):
    """Yield rows after these rules, one at a time: a training split of WikiText is half a
    gigabyte."""
    begun = ''
    for piece in rows:
        begun += piece
        if isinstance(piece, Begun):
            continue  # a rule may fit across two pieces of a row
        yield detokenize(begun, rules)
        begun = ''


def detokenize(text, rules):
    """Return the text after these rules, one after the other, which are for line ends of Unix."""
    text = text.replace('\r\n', '\n')
    for *kind, old, new in rules:
        text = re.sub(old, new, text) if kind else text.replace(old, new)
    return text


DATA_SETS = {
    'pydocs': DataSet(
        pydocs,
        'bytes',
        0.05,
        'English of the Python documentation, about 2 MB; no network',
        offline=True,
    ),
    'text': DataSet(
        None,
        'gpt2',
        0.1,
        'documents of your own: a file, a folder, a data set on the hub (--source)',
    ),
    'openwebtext': DataSet(
        openwebtext, 'gpt2', 0.0005, '9 billion tokens of web text, through the hub'
    ),
    **{name: benchmark(name, *row) for name, row in BENCHMARKS.items()},
}


def prepare(data_set, data_dir, name='', source='', split='', tokenizer='', force=False, **keys):
    """Write data_dir/name/<split>.bin and meta.json of a row of DATA_SETS; return the Meta.

    source     a file, a folder, or hf:OWNER/NAME; '' is the data set's own
    split      '' is all of them
    tokenizer  '' is the one of the folder, or of the data set
    force      replace splits that are there
    keys       text_key and prompt_key of a source with fields"""
    row = DATA_SETS[data_set]
    name = name or data_set
    place_of(data_dir, name, split)
    choice = choose(tokenizer)
    origin, documents = open_documents(data_set, home(source or ''), split, **keys)
    with folder_to_write(data_dir, name, splits_of(documents), origin, force) as folder:
        there = tokenizer_of_set(folder.meta) if folder.meta else None
        others = []
        if choice and there and choice.identity not in (there.identity, (there.name, None)):
            others.append('tokenizer')
        if folder.is_done(others):
            return folder.meta
        if folder.kept:
            choice = there
        choice = choice or choose(row.tokenizer)
        choice.about_bytes()  # what is opened at first use, before documents are

        # Look at the documents, and write what they become
        given = have_prompts(documents, folder)
        is_val = None
        if '' in documents:
            documents[''], is_val = divide(documents[''], row.val_ratio)
        if isinstance(choice, Untrained):
            train = of_train(documents[''], is_val) if '' in documents else documents.get('train')
            choice = choice.trained(train)
        if choice.about_bytes():
            print(choice.about_bytes())
        kind = {'given': given, 'prompts': given, 'tokenizer_file': choice.file}
        meta = Meta('', choice.name, choice.n_tokens, choice.eos, **kind)
        pieces = pieces_of_documents(documents, is_val, choice, meta)
        return folder.write(meta, progress(pieces, desc='texts', unit=' pieces'))


def open_documents(data_set, source, split, **keys):
    """Return (what meta.json says of the documents, {split: documents}) of a row of DATA_SETS; ''
    is still to be divided.

    Its own documents, which may be a download, are only read where they are iterated."""
    row = DATA_SETS[data_set]
    if row.splits and source:
        rows = {split or 'test': open_texts(source, by_line=True)}
        origin = name_source(source)
    elif row.splits:
        named = [split] if split else sorted(row.splits)
        rows = {s: Documents(functools.cache(partial(row.documents, s))) for s in named}
        origin = data_set
    elif source and row.offline:
        raise ValueError(
            f'{data_set} has no --source; of your own: python data/prepare.py text '
            f'--source={source}'
        )
    elif source or not row.documents:
        return open_source(source, split, **keys)
    elif split:
        way_out = '' if row.offline else ', or name a --source'
        raise ValueError(f'{data_set} is whole: leave out --split={split}{way_out}')
    else:
        return data_set, {'': Documents(functools.cache(row.documents))}
    return origin, {s: Documents(partial(detokenized, r, row.rules)) for s, r in rows.items()}


def splits_of(found):
    """Return the names of the splits that become of {split: ...}, of which '' is divided."""
    return [*TRAIN_AND_VAL] if '' in found else sorted(found)


def have_prompts(documents, folder):
    """Return whether the documents of all splits have prompts, also those that stay in the folder.
    Raises ValueError where only some have."""
    have = {isinstance(next(iter(texts), None), tuple) for texts in documents.values()}
    if folder.kept:
        have.add(folder.meta.prompts)
    if len(have) > 1:
        raise ValueError(
            "all splits of a set must have prompts, or none: --prompt_key='' leaves prompts out"
        )
    return have.pop()


def pieces_of_documents(splits, is_val, tokenizer, meta):
    """Yield the pieces of {split: documents} for Folder.write. Of '' each document is of train or
    of val, see divide."""
    for split, documents in splits.items():
        number = 0
        for tokens, n_bytes, n_ended in encode_documents(documents, tokenizer, meta):
            # a document that divide has not seen has no byte; `unchanged` refuses it at the end
            owner = split or TRAIN_AND_VAL[is_val[number : number + 1] == b'\1']
            yield owner, tokens, n_bytes, n_ended
            number += n_ended


# --------------------------------------------------------------------------------------------------
# Dividing


def divide(documents, val_ratio):
    """Return (documents, (n,) bytes, 0 for train and 1 for val), of which val has a share
    `val_ratio`.

    A lone text becomes two, the end of it is val."""
    n = 0
    length = 0
    for piece in documents:
        n += not isinstance(piece, Begun)
        length += len(piece)
    if n == 1 and isinstance(piece, str):
        cut = int(length * (1 - val_ratio))
        return Documents(partial(cut_in_two, documents, cut)), b'\0\1'
    return documents, draw_val(n, val_ratio)


def draw_val(n, val_ratio):
    """Return (n,) bytes, 1 for a share `val_ratio` of n documents, of which one at least, and 0 for
    the others."""
    is_val = bytearray(n)
    n_val = min(n, max(1, round(n * val_ratio)))
    for number in random.Random(SPLIT_SEED).sample(range(n), n_val):
        is_val[number] = 1
    return is_val


def cut_in_two(pieces, cut):
    """Yield the pieces of one document as those of two, the first of which has `cut` letters."""
    for piece in pieces:
        if 0 <= cut <= len(piece):
            yield piece[:cut]
            piece = type(piece)(piece[cut:])
            cut = -1
        yield piece
        cut -= len(piece)


def of_train(documents, is_val):
    """Yield the documents that are not for val."""
    number = 0
    for piece in documents:
        if is_val[number : number + 1] == b'\0':
            yield piece
        number += not isinstance(piece, Begun)
