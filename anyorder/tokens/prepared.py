"""Which data sets of text are there, and how is one prepared? Documents become token files, see sets.py."""

import os
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from anyorder.tokens.benchmarks import BENCHMARKS
from anyorder.tokens.duplicates import Hashes, hashes_on_disk, say_shared
from anyorder.tokens.meta import Meta
from anyorder.tokens.sets import (
    bin_path,
    dtype_of,
    is_there,
    set_to_write,
    whole_splits,
    write_splits,
)
from anyorder.tokens.sources import (
    from_hub,
    name_source,
    open_source,
    open_texts,
    openwebtext,
    pydocs,
    say_left_out,
)
from anyorder.tokens.tokenizers import Begun, encode_documents, get_tokenizer
from configurator import home

SPLIT_SEED = 2357


@dataclass
class DataSet:
    documents: (
        Callable | None
    )  # () -> documents without a --source; (source, split) -> them if it has `splits`
    tokenizer: str  # default
    val_ratio: float  # share of the documents for validation
    about: str
    offline: bool = False  # can be made from nothing but this Python
    splits: tuple = ()  # the splits that the set comes with and a protocol wants


def benchmark(name, repository, config, field, rules, splits, about):
    """A set for zero-shot perplexity: rows of the hub, or of a local file in the original form, detokenized."""

    def documents(source, split):
        rows = (
            open_texts(source, by_line=True)
            if source
            else from_hub(repository, config, split, f'{name} --split={split}')[field]
        )
        return Detokenized(rows, rules)

    return DataSet(documents, 'gpt2', 0, about, splits=tuple(splits))


@dataclass
class Detokenized:
    """Rows after these rules, one at a time: a training split of WikiText is half a gigabyte."""

    rows: Iterable  # with a length
    rules: list

    def __iter__(self):
        begun = ''
        for piece in self.rows:
            begun += piece
            if not isinstance(piece, Begun):  # a rule may fit across two pieces of a row
                yield detokenize(begun, self.rules)
                begun = ''

    def __len__(self):
        return len(self.rows)


def detokenize(text, rules):
    """The text after these rules, one after the other, which are written for line ends of Unix."""
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
    **{name: benchmark(name, **row) for name, row in BENCHMARKS.items()},
}


def divide(splits, val_ratio):
    """{split: (number of documents, iterable)} of {split: documents}; '' becomes train and val, a lone one is cut."""
    if '' not in splits:
        return {split: (len(documents), documents) for split, documents in splits.items()}
    documents, n = splits[''], len(splits[''])
    if n == 1:
        if isinstance(next(iter(documents)), tuple):
            raise ValueError(
                'one document with a prompt cannot be divided into train and val: name its --split'
            )
        length = sum(map(len, documents))
        cut = int(length * (1 - val_ratio))
        return {
            'train': (1, part_of(documents, 0, cut)),
            'val': (1, part_of(documents, cut, length)),
        }
    is_val = bytearray(n)
    for number in random.Random(SPLIT_SEED).sample(range(n), max(1, round(n * val_ratio))):
        is_val[number] = 1
    n_val = sum(is_val)
    return {
        'train': (n - n_val, chosen(documents, is_val, 0)),
        'val': (n_val, chosen(documents, is_val, 1)),
    }


def part_of(pieces, start, end):
    """Yields the pieces of one document between two of its places."""
    n = 0
    for piece in pieces:
        kept = piece[max(0, start - n) : max(0, end - n)]
        n += len(piece)
        if n >= end:
            yield kept
            return
        yield Begun(kept)


def chosen(documents, marks, mark):
    """Yields the documents that have this mark, of a mark for each."""
    number = 0
    for document in documents:
        if marks[number] == mark:
            yield document
        number += not isinstance(document, Begun)


def check_source_is_new(origin, kept):
    """Raise ValueError if a split that is `kept` is from a source of the same content: no two splits may share text."""
    _, is_own, content = origin.rpartition(', ')  # its hash or fingerprint
    twice = [split for split, info in kept.items() if info.source.rpartition(', ')[2] == content]
    if is_own and twice:
        raise ValueError(
            f'{origin} is the source of {twice[0]} already, and no two splits may share text: name '
            'another file, or divide this one by --force without --split'
        )


def prepare(data_set, data_dir, name='', source='', split='', tokenizer='', force=False, **keys):
    """Prepare one row of DATA_SETS into data_dir/name; returns its meta. Splits that are there stay unless `force`.
    `keys` are the text_key and the prompt_key of a source with fields."""
    if data_set not in DATA_SETS:
        raise ValueError(f'data set must be one of {", ".join(DATA_SETS)}, got {data_set!r}')
    name, source = name or data_set, home(source or '')
    with set_to_write(home(data_dir), name, split) as (directory, meta):
        return prepare_into(
            directory, meta, data_set, name, source, split, tokenizer, force, **keys
        )


def prepare_into(directory, meta, data_set, name, source, split, tokenizer, force, **keys):
    """As `prepare`, into a folder with this Meta, which no other process writes meanwhile."""
    row = DATA_SETS[data_set]
    if split and not source and not row.splits:
        raise ValueError(
            f'{data_set} is whole: leave out --split={split}'
            + ', or name a --source' * (not row.offline)
        )
    if row.splits and source and not split:
        split = 'test'
    wanted = [split] if split else sorted(row.splits or ('train', 'val'))
    if source and row.offline:
        raise ValueError(
            f'{data_set} has no --source; of your own: python data/prepare.py text --source={source}'
        )
    origin, documents = name_source(source) if row.splits and source else data_set, {}
    if not row.splits and (source or not row.documents):
        origin, documents = open_source(source, split, **keys)
    if is_there(
        directory,
        meta,
        wanted,
        origin,
        not tokenizer or meta and meta.tokenizer == tokenizer,
        force,
    ):
        return meta
    if os.path.isdir(source or '') and (said := say_left_out(source)):
        print(said)
    kept = {s: info for s, info in whole_splits(directory, meta).items() if s not in wanted}
    check_source_is_new(origin, kept)
    # by split; '' is still to be divided
    documents = documents or (
        {s: row.documents(source, s) for s in wanted} if row.splits else {split: row.documents()}
    )
    if not all(map(any, documents.values())):
        raise ValueError(f'{origin} holds no text')
    tok = get_tokenizer(tokenizer or (meta.tokenizer if kept else row.tokenizer))
    if kept and tok.name != meta.tokenizer:
        raise ValueError(
            f'{directory} holds {", ".join(kept)} in the tokenizer {meta.tokenizer}, not {tok.name}: '
            'one folder has one tokenizer; use another --name'
        )
    have = {isinstance(next(iter(texts)), tuple) for texts in documents.values()}
    if len(have | ({meta.prompts} if kept else set())) > 1:
        raise ValueError(
            f"all splits of {name} must have prompts, or none: --prompt_key='' leaves prompts out"
        )
    (prompts,) = have
    meta = Meta(name, tok.name, tok.n_tokens, tok.eos, kept, given=prompts, prompts=prompts)
    splits = {
        s: (n, encode_documents(texts, tok))
        for s, (n, texts) in divide(documents, row.val_ratio).items()
    }
    if row.splits:  # whose protocol says what they share
        return write_splits(directory, meta, kept, origin, splits, 'text')
    form = tok.eos, dtype_of(meta)
    hashes = {s: Hashes(*form) for s in splits}
    meta = write_splits(directory, meta, kept, origin, splits, 'text', hashes)
    for s in kept:
        hashes[s] = hashes_on_disk(bin_path(directory, s), *form)
    if said := say_shared(hashes, kept):
        print(said)
    return meta
