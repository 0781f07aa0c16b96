"""Which data sets of text are there, and how is one prepared? Documents become token files."""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from anyorder.tokens.benchmarks import BENCHMARKS
from anyorder.tokens.choices import Untrained, choose
from anyorder.tokens.folder import folder_to_write
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


@dataclass
class DataSet:
    """A data set of text that has a name.

    documents  () -> documents without a --source, or with `splits` (source, split) -> documents;
               None where a source is needed
    tokenizer  the default
    val_ratio  share of the documents for validation
    about      what it is, for --help
    offline    whether it can be made from nothing but this Python
    splits     the splits that the set comes with and published numbers want"""

    documents: Callable | None
    tokenizer: str
    val_ratio: float
    about: str
    offline: bool = False
    splits: tuple = ()

    def open(self, source, wanted):
        """Return {split: documents}; '' is still to be divided."""
        if not self.splits:
            return {'': self.documents()}
        return {split: self.documents(source, split) for split in wanted}


def benchmark(name, repository, config, field, rules, splits, about):
    """Return a set for zero-shot perplexity: rows of the hub, or of a local file in the original
    form, detokenized."""

    def documents(source, split):
        if source:
            rows = open_texts(source, by_line=True)
        else:
            rows = from_hub(repository, config, split, f'{name} --split={split}')[field]
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
            if isinstance(piece, Begun):
                continue  # a rule may fit across two pieces of a row
            yield detokenize(begun, self.rules)
            begun = ''

    def __len__(self):
        return len(self.rows)


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
    **{name: benchmark(name, **row) for name, row in BENCHMARKS.items()},
}


def prepare(data_set, data_dir, name='', source='', split='', tokenizer='', force=False, **keys):
    """Write data_dir/name/<split>.bin and meta.json of a row of DATA_SETS; return the Meta.

    source     a file, a folder, or hf:OWNER/NAME; '' is the data set's own
    split      '' is all of them
    tokenizer  '' is the one of the folder, or of the data set
    force      replace splits that are there
    keys       text_key and prompt_key of a source with fields"""
    row = DATA_SETS[data_set]
    source = home(source or '')
    with folder_to_write(data_dir, name or data_set, split) as folder:
        wanted = splits_to_make(data_set, source, split)
        origin, documents = open_or_name(data_set, source, split, **keys)
        choice = choose(tokenizer)
        others = [] if is_of_folder(choice, folder.meta) else ['tokenizer']
        if folder.is_done(wanted, origin, others, force):
            return folder.meta
        kept = folder.meta if folder.kept(wanted) else None
        if kept:
            choice = tokenizer_of_set(kept)
        choice = choice or choose(row.tokenizer)
        choice.about_bytes()  # which opens what is opened at first use, before what is a download

        # Open the documents, and write what they become
        documents = documents or row.open(source, wanted)
        if not all(map(any, documents.values())):
            raise ValueError(f'{origin} holds no text')
        given = have_prompts(documents, kept)
        return write_texts(folder, origin, divide(documents, row.val_ratio), choice, given)


def write_texts(folder, origin, divided, tok, given):
    """Write what `divide` gives in the tokens of a tokenizer, which may be Untrained; return the
    Meta of the set.

    given  whether the texts have prompts"""
    if isinstance(tok, Untrained):
        tok = tok.trained(divided)
    if tok.about_bytes():
        print(tok.about_bytes())
    kind = {'given': given, 'prompts': given, 'tokenizer_file': tok.file}
    meta = Meta('', tok.name, tok.n_tokens, tok.eos, **kind)
    splits = {s: (n, encode_documents(texts, tok, meta)) for s, (n, texts) in divided.items()}
    return folder.write(meta, origin, splits, 'text')


def have_prompts(documents, kept):
    """Return whether the documents of all splits have prompts, also those that stay, of the Meta
    `kept`. Raises ValueError where only some have."""
    have = {isinstance(next(iter(texts)), tuple) for texts in documents.values()}
    if kept:
        have.add(kept.prompts)
    if len(have) > 1:
        raise ValueError(
            "all splits of a set must have prompts, or none: --prompt_key='' leaves prompts out"
        )
    return have.pop()


def splits_to_make(data_set, source, split):
    """Return the names of the splits that a command makes.

    Raises ValueError where a row of DATA_SETS has no such split, or no source."""
    row = DATA_SETS[data_set]
    if split and not source and not row.splits:
        way_out = '' if row.offline else ', or name a --source'
        raise ValueError(f'{data_set} is whole: leave out --split={split}{way_out}')
    if source and row.offline:
        raise ValueError(
            f'{data_set} has no --source; of your own: python data/prepare.py text '
            f'--source={source}'
        )
    if row.splits and source:
        return [split or 'test']
    return [split] if split else sorted(row.splits or ('train', 'val'))


def open_or_name(data_set, source, split, **keys):
    """Return (what meta.json says of the documents, {split: documents}).

    A data set's own documents are left out: what may be a download waits until it is needed."""
    row = DATA_SETS[data_set]
    if row.splits:
        return name_source(source) if source else data_set, {}
    if source or not row.documents:
        return open_source(source, split, **keys)
    return data_set, {}


def is_of_folder(asked, meta):
    """Whether the set with this Meta has the tokenizer that is asked for; None asks for any."""
    if asked is None or not meta:
        return asked is None
    of_folder = tokenizer_of_set(meta)
    return asked.identity in (of_folder.identity, (of_folder.name, None))


def divide(splits, val_ratio):
    """Return {split: (number of documents, iterable)} of {split: documents}.

    The documents of '' become train and val, of which val has a share `val_ratio`. A lone one is
    cut."""
    if '' not in splits:
        return {split: (len(documents), documents) for split, documents in splits.items()}
    documents = splits['']
    n = len(documents)
    if n == 1:
        return cut_in_two(documents, val_ratio)
    n_val = max(1, round(n * val_ratio))
    is_val = bytearray(n)
    for number in random.Random(SPLIT_SEED).sample(range(n), n_val):
        is_val[number] = 1
    return {
        'train': (n - n_val, Documents(partial(chosen, documents, is_val, 0))),
        'val': (n_val, Documents(partial(chosen, documents, is_val, 1))),
    }


def cut_in_two(pieces, val_ratio):
    """Return train and val of one document, the end of which is val. See divide."""
    if isinstance(next(iter(pieces)), tuple):
        raise ValueError(
            'one document with a prompt cannot be divided into train and val: name its --split'
        )
    length = sum(map(len, pieces))
    cut = int(length * (1 - val_ratio))
    parts = {'train': (0, cut), 'val': (cut, length)}
    return {s: (1, Documents(partial(part_of, pieces, *places))) for s, places in parts.items()}


def part_of(pieces, start, end):
    """Yield the pieces of one document between two of its places."""
    n = 0
    for piece in pieces:
        first = max(0, start - n)
        last = max(0, end - n)
        kept = piece[first:last]
        n += len(piece)
        if n >= end:
            yield kept
            return
        yield Begun(kept)


def chosen(documents, marks, mark):
    """Yield the documents that have this mark, of a mark for each."""
    number = 0
    for document in documents:
        if marks[number] == mark:
            yield document
        if not isinstance(document, Begun):
            number += 1
