"""Which data sets of text are there, and how is one prepared? Documents become token files."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from anyorder.machine.terminal import progress
from anyorder.tokens.benchmarks import BENCHMARKS
from anyorder.tokens.documents import VAL_RATIO, Documents, Source, cut_anew, encode_source
from anyorder.tokens.folder import folder_to_write, place_of
from anyorder.tokens.meta import Meta
from anyorder.tokens.sources import from_hub, open_source, openwebtext, pydocs
from anyorder.tokens.tokenizer import choose, tokenizer_of_set
from configurator import home


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


def benchmark(repository, config, field, rules, splits, about):
    """Return a set for zero-shot perplexity: rows of the hub, or of a local file in the original
    form, detokenized."""

    def documents(split):
        return from_hub(repository, config, split)[field]

    return DataSet(documents, 'gpt2', 0, about, splits=splits, rules=rules)


def detokenized(rows, rules):
    """Yield rows after these rules, one after the other, which are for line ends of Unix.

    A row at a time: a training split of WikiText is half a gigabyte. A prompt is no part of it."""
    for row in cut_anew(rows, lambda row: 0):  # whole, as a rule may fit across two pieces
        text = row[1] if isinstance(row, tuple) else row
        text = text.replace('\r\n', '\n')
        for *kind, old, new in rules:
            text = re.sub(old, new, text) if kind else text.replace(old, new)
        yield text


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
        VAL_RATIO,
        'documents of your own: a file, a folder, a data set on the hub (--source)',
    ),
    'openwebtext': DataSet(
        openwebtext, 'gpt2', 0.0005, '9 billion tokens of web text, through the hub'
    ),
    **{name: benchmark(*row) for name, row in BENCHMARKS.items()},
}


def prepare(data_set, data_dir, name='', source='', split='', tokenizer='', force=False, **keys):
    """Write data_dir/name/<split>.bin and meta.json of a row of DATA_SETS; return the Meta.

    source     a file, a folder, or hf:OWNER/NAME; '' is the data set's own
    split      '' is all of them
    tokenizer  '' is the one of the folder, or of the data set; splits that stay keep theirs
    force      replace splits that are there
    keys       text_key and prompt_key of a source with fields"""
    known = DATA_SETS[data_set]
    path = place_of(data_dir, name or data_set, split)
    choice = choose(tokenizer)
    made_of = open_documents(data_set, home(source or ''), split, **keys)
    with folder_to_write(path, made_of.splits, made_of.origin, force) as folder:
        of_set = tokenizer_of_set(folder.meta) if folder.meta else None
        differs = ['tokenizer'] if of_set and is_another(choice, of_set) else []
        if folder.is_done(differs):
            return folder.meta
        if differs:
            of_set = None  # all of it is replaced
        if folder.kept:
            choice = of_set  # splits that stay have it, too
        choice = choice or of_set or choose(known.tokenizer)
        about_bytes = choice.about_bytes()  # a vocabulary that cannot be read is told here
        if about_bytes:
            print(about_bytes)

        # Look at the documents, and write what they become
        given = have_prompts(made_of, folder)
        made_of.divide(known.val_ratio)
        choice = choice.trained(made_of)
        kind = {'given': given, 'prompts': given, 'tokenizer_file': choice.file}
        meta = Meta('', choice.name, choice.n_tokens, choice.eos, **kind)
        encoded = encode_source(made_of, choice, meta)
        return folder.write(meta, progress(encoded, desc='texts', unit=' pieces'))


def is_another(choice, of_set):
    """Whether texts want another tokenizer than that of a set, whose tokens may be no text. None is
    content with any; a bpe:N that is still to be trained has its name alone."""
    if of_set.texts:
        return True
    return choice is not None and choice.identity not in (of_set.identity, (of_set.name, None))


def open_documents(data_set, source, split, **keys):
    """Return the Source of a row of DATA_SETS.

    Its own documents, which may be a download, are only read where they are iterated."""
    known = DATA_SETS[data_set]
    if source or not known.documents:
        named = (split or 'test') if known.splits else split
        made_of = open_source(source, named, bool(known.splits), **keys)
    elif known.splits:
        named = [split] if split else known.splits
        own = {s: Documents(functools.cache(partial(known.documents, s))) for s in named}
        made_of = Source(data_set, own)
    elif split:
        raise ValueError(f'{data_set} is whole: name a --source, or leave out --split={split}')
    else:
        made_of = Source(data_set, {'': Documents(functools.cache(known.documents))})
    if known.splits:
        for part, rows in made_of.parts.items():
            made_of.parts[part] = Documents(partial(detokenized, rows, known.rules))
    return made_of


def have_prompts(source, folder):
    """Return whether the documents of all splits have prompts, also those that stay in the folder.
    Raises ValueError where only some have."""
    have = {isinstance(next(iter(texts), None), tuple) for texts in source.parts.values()}
    if folder.kept:
        have.add(folder.meta.prompts)
    if len(have) > 1:
        raise ValueError(
            "all splits of a set must have prompts, or none: --prompt_key='' leaves prompts out"
        )
    return have.pop()
