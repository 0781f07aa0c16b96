"""Where do documents come from? A source is a file, the standard library, a download or the Hugging Face hub.

Documents are anything that has len() and can be iterated more than once. A document is a text, or a pair
(prompt, text). A long text comes in pieces, all but the last of them Begun. <|endoftext|> ends a document."""

import ast
import csv
import hashlib
import json
import os
import re
import socket
import sysconfig
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import cleandoc

from anyorder.machine.files import quiet_hub, reading, reading_text
from anyorder.tokens.tokenizers import END_OF_TEXT, Begun

KINDS = '.txt, .raw, .jsonl, .csv, each also with .gz, .xz or .bz2 behind it, or .parquet'
ENDING = re.compile(r'\.(txt|raw|jsonl|csv|parquet)(\.(gz|xz|bz2))?$', re.IGNORECASE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def pydocs():
    """The language reference in pydoc_data and the docstrings of the standard library: a document a topic or module.
    Docstrings seen before are left out. Distributions of Python differ, since some leave modules out."""
    from pydoc_data.topics import topics

    seen, documents = set(), [cleandoc(text) for _, text in sorted(topics.items())]
    for folder, folders, files in os.walk(sysconfig.get_path('stdlib')):
        folders[:] = sorted(
            set(folders) - {'site-packages', 'dist-packages', 'test', 'tests', '__pycache__'}
        )
        for file in sorted(f for f in files if f.endswith('.py')):
            try:
                with open(os.path.join(folder, file), 'rb') as f:
                    tree = ast.parse(f.read())
            except (
                SyntaxError,
                ValueError,
            ):  # templates and deliberately broken files are no English
                continue
            nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
            strings = dict.fromkeys(ast.get_docstring(node) or '' for node in nodes)
            new = [
                s for s in strings if len(s) >= 40 and s not in seen
            ]  # shorter ones are hardly sentences
            seen.update(new)
            if new:
                documents.append('\n\n'.join(new))
    return [text for text in dict.fromkeys(documents) if text]


def texts_in(folder):
    """(files, left out): each .txt in a folder and in its folders, in the order of their names, and {path: why} of
    those that are not read. Links are followed, but not to a parent, and what has several names is read once. As for a
    shell's *.txt a name that begins with a dot does not count."""
    names, left_out, seen = [], {}, set()

    def is_new(path):
        info = os.stat(path)
        place = info.st_dev, info.st_ino
        known = place in seen
        seen.add(place)
        return not known

    def note(error):
        left_out[error.filename] = error.strerror

    root = os.path.realpath(folder)
    while is_new(root):
        root = os.path.dirname(root)
    for where, folders, found in os.walk(folder, onerror=note, followlinks=True):
        below = [os.path.join(where, name) for name in sorted(folders) if name[0] != '.']
        folders[:] = [os.path.basename(path) for path in below if is_new(path)]
        names += [
            os.path.join(where, name)
            for name in found
            if name[0] != '.' and name.lower().endswith('.txt')
        ]

    files = []
    for path in sorted(names):
        if why := why_unread(path):
            left_out[path] = why
        elif is_new(path):
            files.append(path)
    return files, left_out


def why_unread(path):
    """'' or what something of this name is, if it is no file with a text."""
    if not os.path.exists(path):
        return 'a link to nothing'
    if not os.path.isfile(path):
        return 'a pipe, a socket or a device'
    return '' if os.path.getsize(path) else 'empty'


def say_left_out(source):
    """'' or a sentence that names what a folder of texts holds and is not read."""
    if not os.path.isdir(source):
        return ''
    _, left_out = texts_in(source)
    if not left_out:
        return ''
    named = [f'{os.path.relpath(path, source)!r} ({why})' for path, why in left_out.items()]
    more = f' and {len(named) - 5} more' if len(named) > 5 else ''
    return f'{source!r} is read without {", ".join(named[:5])}{more}'


def files_of(path):
    """The files of a source: itself, or every .txt in a folder."""
    if os.path.isfile(path):
        return [path]
    if os.path.lexists(path) and not os.path.isdir(path):
        raise ValueError(f'{path} is {why_unread(path)}: name a file or a folder')
    files, left_out = texts_in(path) if os.path.isdir(path) else ([], {})
    if not files:
        why = f'; {say_left_out(path)}' if left_out else ''
        raise ValueError(
            f'no file {path}, and no folder in which there is a .txt or which `datasets` saved{why}'
        )
    return files


@dataclass
class Documents:
    """What a generator yields, read anew each time. The length is counted, which finds a wrong row before all else."""

    read: Callable  # () -> the generator

    def __iter__(self):
        return self.read()

    def __len__(self):
        return sum(not isinstance(document, Begun) for document in self)


PIECE = 1 << 17  # letters


def texts(paths):
    """Yields the texts of files."""
    for path in paths:
        with reading_text(path, '\n') as f:
            yield from parted(iter(partial(f.read, PIECE), ''))


def lines(path):
    """Yields the lines of a file, newlines included."""
    with reading_text(path, '\n') as f:
        yield from f


def texts_of_lines(paths):
    for path in paths:
        for line in lines(path):
            if is_one_piece(line):
                yield line
            else:
                yield from parted(slices(line))


def is_one_piece(text):
    return len(text) <= PIECE and END_OF_TEXT not in text


def slices(text):
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE))


def parted(chunks):
    """Yields the texts of a stream of letters, which END_OF_TEXT parts. A text longer than a piece comes in pieces.
    Blanks beside an END_OF_TEXT, and nothing else, are no text."""
    rest, is_begun, is_parted = '', False, False
    for chunk in chunks:
        *ended, rest = (rest + chunk).split(END_OF_TEXT)
        for text in ended:
            if is_begun or text.strip():
                yield text
            is_begun, is_parted = False, True
        while len(rest) >= PIECE + len(END_OF_TEXT):  # whose beginning may end the chunk
            yield Begun(rest[:PIECE])
            rest, is_begun = rest[PIECE:], True
    if is_begun or rest.strip() or not is_parted:
        yield rest


def csv_rows(path):
    csv.field_size_limit(2**31 - 1)
    with reading_text(path, '') as f:
        yield from csv.DictReader(f, strict=True)


def parquet_rows(path):
    from pyarrow.parquet import ParquetFile

    with reading(path, 'a .parquet', 'fetch or write it again'), open(path, 'rb') as f:
        yield from table_rows(ParquetFile(f).iter_batches(1000))


def table_rows(batches):
    return (row for batch in batches for row in batch.to_pylist())


# by the ending of a file; a row of a .jsonl is still a line
ROWS = {'jsonl': lines, 'csv': csv_rows, 'parquet': parquet_rows}


def documents_of(rows, source, text_key='text', prompt_key=''):
    """Yields the texts of rows under `text_key`, with a `prompt_key` (prompt, text); 'auto': "prompt" where it is."""
    first = None
    for number, row in enumerate(rows(), 1):
        where = f'row {number} of {source}'
        if isinstance(row, str):
            if row.isspace():
                continue
            with reading(where, 'JSON', 'write {"text": "..."} in valid Unicode'):
                row = {**json.loads(row)}
        if None in row:
            raise ValueError(
                f'{where} has more fields than the first line has names: put texts with commas in quotes'
            )
        prompt = ('prompt' if 'prompt' in row else '') if prompt_key == 'auto' else prompt_key
        keys = [prompt, text_key] if prompt else [text_key]
        first = first or keys
        if keys != first or not row.keys() >= {*keys}:
            raise ValueError(
                f'{where} has the fields {[*row]}, but a document is {first} in every row: name other '
                "fields by --text_key and --prompt_key of prepare.py, or no prompt by --prompt_key=''"
            )
        for key in keys:
            if not is_text(row[key]):
                raise ValueError(
                    f'{key} in {where} must be a string in valid Unicode: write one, or leave the row out'
                )
        if prompt:
            yield pair(row[prompt], row[text_key], where)
        elif is_one_piece(row[text_key]):
            yield row[text_key]
        else:
            yield from parted(slices(row[text_key]))


def is_text(value):
    """Whether it is a string in valid Unicode, which half a surrogate pair is not."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def pair(prompt, text, where):
    """(prompt, text) of a row, which is one document."""
    text = text.removesuffix(END_OF_TEXT)
    if not text:
        raise ValueError(f'{where} has a prompt, but its text is empty: leave the row out')
    if END_OF_TEXT in prompt + text:
        raise ValueError(
            f'{where} has {END_OF_TEXT} amid its prompt and text, which are one document: leave it out'
        )
    return prompt, text


def open_texts(path, by_line=False, **keys):
    """The Documents of a file or a folder of texts; `keys` are text_key and prompt_key of one with rows. A .raw, and
    with `by_line` a .txt, has a document a line."""
    paths, found = files_of(path), ENDING.search('.txt' if os.path.isdir(path) else path)
    if not found:
        raise ValueError(f'{path} must end in {KINDS}')
    kind = found[1].lower()
    if kind in ROWS:
        return Documents(partial(documents_of, partial(ROWS[kind], path), path, **keys))
    if not {*keys.values()} <= {'text', 'auto', ''}:
        raise ValueError(
            f'{path} is text without fields: --text_key and --prompt_key are for rows, as of a .jsonl'
        )
    if by_line or kind == 'raw':
        return Documents(partial(texts_of_lines, paths))
    return Documents(partial(texts, paths))


def dataset_documents(found, source, **keys):
    """The Documents of a Dataset of the library `datasets`."""
    return Documents(
        partial(
            documents_of, lambda: table_rows(found.with_format('arrow').iter(1000)), source, **keys
        )
    )


def own_splits(names, split, source):
    """{split: its name in the data set `source`}; '' is still to be divided. Without a `split` these are its train and
    its validation, or its train or only split alone."""
    val = 'val' if 'val' in names else 'validation'
    wanted = [split] if split else ['train', 'val'] if {'train', val} <= {*names} else ['']
    found = {
        s: {'val': val, '': names[0] if len(names) == 1 else 'train'}.get(s, s) for s in wanted
    }
    if not {*found.values()} <= {*names}:
        raise ValueError(f'{source} has the splits {", ".join(names)}: name one of them by --split')
    return found


def open_source(source, split, text_key='text', prompt_key='auto'):
    """(what meta.json says of it, {split: Documents}) of a source of one's own; '' is still to be divided. A data set
    on the hub, or a DatasetDict in a folder, has splits of its own."""
    if not source:
        raise ValueError(
            f'name the source of your own as --source=FILE ({KINDS}), =FOLDER or =hf:OWNER/NAME'
        )
    keys, name = {'text_key': text_key, 'prompt_key': prompt_key}, plain_name(source)
    said = ''.join(
        f', {key} {own!r}'
        for key, own in keys.items()
        if own != {'text_key': 'text'}.get(key, 'auto')
    )
    if source.startswith('hf:'):
        name, parts = source, source[3:].split('/')
        sets = from_hub(
            '/'.join(parts[:2]), '/'.join(parts[2:]) or None, None, f'text --source={source}'
        )
    elif any(
        os.path.isfile(os.path.join(source, file)) for file in ('state.json', 'dataset_dict.json')
    ):
        from datasets import load_from_disk

        with reading(source, 'a folder that `datasets` saved', 'fetch or save it again'):
            sets = load_from_disk(source)
    else:
        return name_source(source, said), {split: open_texts(source, **keys)}
    sets = sets if isinstance(sets, dict) else {split: sets}
    sets = {s: sets[theirs] for s, theirs in own_splits([*sets], split, source).items()}
    origin = f'{name}{said}, fingerprint {"+".join(found._fingerprint for found in sets.values())}'
    return origin, {s: dataset_documents(found, source, **keys) for s, found in sets.items()}


def from_hub(repository, name, split, command):
    """A data set on the Hugging Face hub: its `split`, or of None all of them. `name` is its configuration or None."""
    if (
        not {'HF_HUB_OFFLINE', 'HF_ENDPOINT'} & os.environ.keys()
        and not urllib.request.getproxies()
    ):
        try:
            socket.create_connection(('huggingface.co', 443), 10).close()
        except OSError:  # what is cached loads at once, and all else fails at once, not after half a minute of retries
            os.environ['HF_HUB_OFFLINE'] = '1'
    from datasets import load_dataset

    quiet_hub()
    n_proc = max(1, (os.cpu_count() or 2) // 2) if split == 'train' else None
    try:
        try:
            return load_dataset(repository, name, split=split, num_proc=n_proc)
        except RuntimeError:  # a repository that is still a script: the hub's own conversion of it
            return load_dataset(
                repository, name, split=split, num_proc=n_proc, revision='refs/convert/parquet'
            )
    except Exception as e:  # the hub's errors have many classes; most mean that it was not reached
        said = ' '.join(str(e).split())[:200]
        raise ValueError(
            f'cannot load {repository} from the Hugging Face hub ({type(e).__name__}: {said}); on a '
            f'machine with a network: python data/prepare.py {command}, or --source=FILE'
        ) from None


def openwebtext():
    """OpenWebText, 8,013,769 documents. `datasets` downloads and caches about 25 GB."""
    return dataset_documents(
        from_hub('Skylion007/openwebtext', None, 'train', 'openwebtext'), 'openwebtext'
    )


def plain_name(path):
    """The name of a file as text. A byte of it that is no UTF-8 is shown by a mark."""
    return os.fsencode(os.path.basename(os.path.abspath(path))).decode(errors='replace')


def name_source(path, said=''):
    """What meta.json says of a local source: its name, what is `said` of it and the beginning of its hash."""
    sha = hashlib.sha256()
    for file in files_of(path):
        if file != path:
            sha.update(os.fsencode(os.path.relpath(file, path)))
        with open(file, 'rb') as f:
            while chunk := f.read(2**20):
                sha.update(chunk)
    return f'{plain_name(path)}{said}, sha256 {sha.hexdigest()[:12]}'
