"""Where do documents come from? A file, a folder, the standard library or the Hugging Face hub.

<|endoftext|> in a text ends a document."""

import ast
import csv
import hashlib
import json
import os
import re
import sysconfig
from functools import partial
from inspect import cleandoc

from anyorder.machine.files import asking_hub, reading, reading_text
from anyorder.tokens.documents import Begun, Documents, Source
from anyorder.tokens.tokenizer import END_OF_TEXT

KINDS = '.txt, .raw, .jsonl, .csv, each also with .gz, .xz or .bz2 behind it, or .parquet'
ENDING = re.compile(r'\.(txt|raw|jsonl|csv|parquet)(\.(gz|xz|bz2))?$', re.IGNORECASE)
PIECE = 1 << 17  # letters


def open_source(source, split, by_line=False, text_key='text', prompt_key='auto'):
    """Return the Source of documents of one's own, see open_texts.

    split  of which all are; '' divides them. A data set on the hub, or a DatasetDict in a folder,
           has splits of its own"""
    keys = {'text_key': text_key, 'prompt_key': prompt_key}
    about_keys = '' if text_key == 'text' else f', text_key {text_key!r}'
    if prompt_key != 'auto':
        about_keys += f', prompt_key {prompt_key!r}'
    if not source.startswith('hf:') and not is_saved(source):
        parts = {split: open_texts(source, by_line, **keys)}  # else hashed in vain
        return Source(name_source(source, about_keys), parts)
    sets = own_splits(load(source), split, source)
    name = source if source.startswith('hf:') else plain_name(source)
    fingerprints = '+'.join(rows._fingerprint for rows in sets.values())
    parts = {part: dataset_documents(rows, source, **keys) for part, rows in sets.items()}
    return Source(f'{name}{about_keys}, fingerprint {fingerprints}', parts)


def own_splits(sets, split, source):
    """Return {split: Dataset} of a DatasetDict, or of a Dataset.

    Without a `split` these are its train and its validation, or its train or only split alone, as
    '', which is divided."""
    if not isinstance(sets, dict):
        sets = {split: sets}
    val = 'val' if 'val' in sets else 'validation'
    if split:
        found = {split: val if split == 'val' else split}
    elif {'train', val} <= sets.keys():
        found = {'train': 'train', 'val': val}
    else:
        found = {'': min(sets) if len(sets) == 1 else 'train'}
    if not {*found.values()} <= sets.keys():
        raise ValueError(f'{source} has the splits {", ".join(sets)}: name one of them by --split')
    return {s: sets[its] for s, its in found.items()}


def name_source(path, about=''):
    """Return what meta.json says of a local source: its name, what `about` says, and the
    beginning of its hash."""
    sha = hashlib.sha256()
    for file in files_of(path):
        if file != path:
            sha.update(os.fsencode(os.path.relpath(file, path)))
        with open(file, 'rb') as f:
            while chunk := f.read(2**20):
                sha.update(chunk)
    return f'{plain_name(path)}{about}, sha256 {sha.hexdigest()[:12]}'


def plain_name(path):
    """Return the name of a file as text. A byte of it that is no UTF-8 is shown by a mark."""
    name = os.path.basename(os.path.abspath(path))
    return os.fsencode(name).decode(errors='replace')


def open_texts(path, by_line=False, **keys):
    """Return the Documents of a file or a folder of texts.

    by_line  whether a .txt has a document a line, as a .raw has
    keys     text_key and prompt_key of a file with rows

    From now on the files stay as they are, or to read them raises ValueError."""
    state = state_of(path)
    found = ENDING.search('.txt' if os.path.isdir(path) else path)
    if not found:
        raise ValueError(f'{path} must end in {KINDS}')
    kind = found[1].lower()
    if kind not in ROWS and not {*keys.values()} <= {'text', 'auto', ''}:
        raise ValueError(
            f'{path} is text without fields: --text_key and --prompt_key are for rows, as of a '
            '.jsonl'
        )

    def read():
        if kind in ROWS:
            yield from documents_of(ROWS[kind](path), path, **keys)
        else:
            yield from texts(state, by_line or kind == 'raw')

    return Documents(partial(unchanged, path, state, read))


def unchanged(path, state, read):
    """Yield what read() yields of a source, whose state_of is this one still at the end."""
    yield from read()
    if state_of(path) != state:
        raise ValueError(f'{path} has changed while it was read: start again')


# --------------------------------------------------------------------------------------------------
# A folder of texts


def files_of(path):
    """Return the files of a source: itself, or every .txt in a folder."""
    if os.path.isfile(path):
        return [path]
    files = texts_in(path) if os.path.isdir(path) else []
    if not files:
        raise ValueError(
            f'no file {path!r}: name a file ({KINDS}), a folder in which there is a .txt or which '
            '`datasets` saved, or hf:OWNER/NAME'
        )
    return files


def state_of(path):
    """Return {file: what changes whenever it is written} of a source."""
    return {file: (os.path.getsize(file), os.path.getmtime(file)) for file in files_of(path)}


def texts_in(folder):
    """Return each .txt in a folder and in its folders that is not empty, in the order of their
    names.

    A file with links to it is read once, and a link to a folder is not followed. As for a shell's
    *.txt a name that begins with a dot does not count."""

    def refuse(error):  # a folder that cannot be read
        raise error

    files = []
    for where, folders, found in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if name[0] != '.']
        for name in found:
            if name[0] != '.' and name.lower().endswith('.txt'):
                files.append(os.path.join(where, name))
    by_place = {os.path.realpath(file): file for file in sorted(files, reverse=True)}
    return sorted(file for file in by_place.values() if os.path.getsize(file))


# --------------------------------------------------------------------------------------------------
# Texts


def texts(paths, by_line):
    """Yield the texts of files, of which each line may be one."""
    for path in paths:
        with reading_text(path, '\n') as f:
            if by_line:
                for line in f:
                    yield from parted_text(line)
            else:
                yield from parted(iter(partial(f.read, PIECE), ''))


def lines(path):
    """Yield the lines of a file, newlines included."""
    with reading_text(path, '\n') as f:
        yield from f


def parted_text(text):
    """Return the texts in a text, of which a long one comes in pieces."""
    if len(text) <= PIECE and END_OF_TEXT not in text:
        return (text,)
    return parted(text[i : i + PIECE] for i in range(0, len(text), PIECE))


def parted(chunks):
    """Yield the texts of a stream of letters, which END_OF_TEXT parts.

    A text longer than a piece comes in pieces. Blanks beside an END_OF_TEXT, and nothing else, are
    no text."""
    rest = ''
    is_begun = False
    is_parted = False
    for chunk in chunks:
        *ended, rest = (rest + chunk).split(END_OF_TEXT)
        for text in ended:
            if is_begun or text.strip():
                yield text
            is_begun = False
            is_parted = True
        while len(rest) >= PIECE + len(END_OF_TEXT):  # whose beginning may end the chunk
            yield Begun(rest[:PIECE])
            rest = rest[PIECE:]
            is_begun = True
    if is_begun or rest.strip() or not is_parted:
        yield rest


# --------------------------------------------------------------------------------------------------
# Rows


A_ROW = (
    'a text, or in all rows a prompt and a text that is not empty',
    "name its fields by --text_key and --prompt_key of prepare.py, no prompt by --prompt_key='', "
    'put texts with commas in quotes, write valid Unicode, or leave the row out',
)


def documents_of(rows, source, text_key='text', prompt_key='auto'):
    """Yield the texts of rows; with prompts, pairs (prompt, text).

    rows        {field: value} or a line of JSON each
    source      what they are from, for errors
    text_key    field of the texts
    prompt_key  field of the prompts; '' is none, 'auto' is "prompt" where a row has one"""
    kinds = set()
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) and row.isspace():
            continue
        with reading(f'row {number} of {source}', *A_ROW):
            document = document_of(row, text_key, prompt_key)
            kinds.add(type(document))
            if len(kinds) > 1:
                raise ValueError
        if isinstance(document, tuple):
            yield document
        else:
            yield from parted_text(document)


def document_of(row, text_key, prompt_key):
    """Return the text of a row, or (prompt, text), which is one document. See documents_of."""
    if isinstance(row, str):
        row = json.loads(row)
    if prompt_key == 'auto':
        prompt_key = 'prompt' if 'prompt' in row else ''
    texts = [row[key] for key in (prompt_key, text_key) if key]
    ''.join(texts).encode()  # raises for what is no text, or has half of a surrogate pair
    if None in row:  # which has fields beyond those of a .csv
        raise ValueError
    if not prompt_key:
        return texts[0]
    prompt, text = texts
    text = text.removesuffix(END_OF_TEXT)
    if not text or END_OF_TEXT in prompt + text:
        raise ValueError
    return prompt, text


def csv_rows(path):
    csv.field_size_limit(2**31 - 1)
    with reading_text(path, '') as f:
        yield from csv.DictReader(f, strict=True)


def parquet_rows(path):
    from pyarrow.parquet import ParquetFile

    with reading(path, 'a .parquet', 'fetch or write it again'), open(path, 'rb') as f:
        yield from table_rows(ParquetFile(f).iter_batches(1000))


def table_rows(batches):
    for batch in batches:
        yield from batch.to_pylist()


# by the ending of a file; a row of a .jsonl is still a line
ROWS = {'jsonl': lines, 'csv': csv_rows, 'parquet': parquet_rows}


# --------------------------------------------------------------------------------------------------
# Data sets of the library `datasets`


def dataset_documents(found, source, **keys):
    """Return the Documents of a Dataset."""

    def read():
        rows = table_rows(found.with_format('arrow').iter(1000))
        return documents_of(rows, source, **keys)

    return Documents(read)


def is_saved(folder):
    """Whether `datasets` saved a data set in a folder."""
    marks = ('state.json', 'dataset_dict.json')
    return any(os.path.isfile(os.path.join(folder, mark)) for mark in marks)


def load(source):
    """Return the Dataset or DatasetDict in a folder, or of hf:OWNER/NAME or
    hf:OWNER/NAME/CONFIG."""
    if source.startswith('hf:'):
        names = source.removeprefix('hf:').split('/', 2)
        return from_hub('/'.join(names[:2]), *names[2:])
    from datasets import load_from_disk

    with reading(source, 'a folder that `datasets` saved', 'fetch or save it again'):
        return load_from_disk(source)


def from_hub(repository, config=None, split=None):
    """Return a data set on the Hugging Face hub, as one of its configurations or None has it; by
    default all of its splits."""
    from datasets import load_dataset

    n_proc = max(1, (os.cpu_count() or 2) // 2) if split == 'train' else None
    load = partial(load_dataset, repository, config, split=split, num_proc=n_proc)
    with asking_hub(repository):
        try:
            return load()
        except RuntimeError:  # a repository that is still a script: the hub's own conversion of it
            return load(revision='refs/convert/parquet')


def openwebtext():
    """Return OpenWebText, 8,013,769 documents. `datasets` downloads and caches about 25 GB."""
    return dataset_documents(from_hub('Skylion007/openwebtext', None, 'train'), 'openwebtext')


# --------------------------------------------------------------------------------------------------
# The documentation of Python

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SHORT = 40  # letters; shorter docstrings are hardly sentences
NOT_READ = {'site-packages', 'dist-packages', 'test', 'tests', '__pycache__'}


def pydocs():
    """Return the language reference in pydoc_data and the docstrings of the standard library.

    A document is a topic or a module. Docstrings seen before are left out. Distributions of Python
    differ, since some leave modules out."""
    from pydoc_data.topics import topics

    documents = [cleandoc(text) for _, text in sorted(topics.items())]
    seen = set()
    for path in modules_of_python():
        new = [text for text in docstrings(path) if len(text) >= SHORT and text not in seen]
        seen.update(new)
        if new:
            documents.append('\n\n'.join(new))
    return [text for text in dict.fromkeys(documents) if text]


def modules_of_python():
    """Yield the paths of the modules of the standard library, in an order of their names."""
    for folder, folders, files in os.walk(sysconfig.get_path('stdlib')):
        folders[:] = sorted({*folders} - NOT_READ)
        for file in sorted(files):
            if file.endswith('.py'):
                yield os.path.join(folder, file)


def docstrings(path):
    """Return the docstrings of a module, each once."""
    try:
        with open(path, 'rb') as f:
            tree = ast.parse(f.read())
    except (SyntaxError, ValueError):  # templates and deliberately broken files are no English
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    return [*dict.fromkeys(ast.get_docstring(node) or '' for node in nodes)]
