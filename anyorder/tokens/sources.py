"""Where do documents come from? A source is a file, the standard library, a download or the Hugging Face hub.

Documents are anything that has len() and can be iterated more than once. A document is a text, or a pair
(prompt, text)."""
import ast
import csv
import glob
import hashlib
import json
import os
import re
import socket
import sysconfig
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from inspect import cleandoc

from anyorder.machine.files import quiet_hub, reading, reading_text

KINDS = '.txt, .jsonl, .csv, each also with .gz, .xz or .bz2 behind it, or .parquet'
ENDING = re.compile(r'\.(?:(txt|raw|jsonl|csv)(?:\.(?:gz|xz|bz2))?|(parquet))$')
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SHAKESPEARE_URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'


def pydocs():
    """The language reference in pydoc_data and the docstrings of the standard library: a document a topic or module.
    Docstrings seen before are left out. Distributions of Python differ, since some leave modules out."""
    from pydoc_data.topics import topics
    seen, documents = set(), [cleandoc(text) for _, text in sorted(topics.items())]
    for folder, folders, files in os.walk(sysconfig.get_path('stdlib')):
        folders[:] = sorted(set(folders) - {'site-packages', 'dist-packages', 'test', 'tests', '__pycache__'})
        for file in sorted(f for f in files if f.endswith('.py')):
            try:
                with open(os.path.join(folder, file), 'rb') as f:
                    tree = ast.parse(f.read())
            except (SyntaxError, ValueError):   # templates and deliberately broken files are no English
                continue
            nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
            strings = dict.fromkeys(ast.get_docstring(node) or '' for node in nodes)
            new = [s for s in strings if len(s) >= 40 and s not in seen]   # shorter ones are hardly sentences
            seen.update(new)
            if new:
                documents.append('\n\n'.join(new))
    return [text for text in dict.fromkeys(documents) if text]


def check_source(path):
    if not os.path.exists(path):
        raise ValueError(f'no file {path}')


def is_saved(path):
    """Whether it is a folder in which the library `datasets` saved a Dataset."""
    return os.path.isfile(os.path.join(path, 'state.json'))


def files_of(path):
    """The files that a source is read from: the file itself, the data of a saved Dataset, or every .txt in a folder."""
    check_source(path)
    if not os.path.isdir(path):
        return [path]
    pattern = os.path.join(glob.escape(path), '*.arrow' if is_saved(path) else '**/*.txt')
    files = sorted(glob.glob(pattern, recursive=True))
    if not files:
        raise ValueError(f'{path} is a folder without a .txt, and `datasets` did not save it: name a file in it')
    return files


@dataclass
class TextFiles:
    """Files of text, a document each. With `by_line` a line is a document, its newline included, as in WikiText."""
    paths: list
    by_line: bool = False

    def __len__(self):
        return sum(1 for _ in self) if self.by_line else len(self.paths)

    def __iter__(self):
        for path in self.paths:
            with reading_text(path, '\n') as f:
                yield from f if self.by_line else [f.read()]


def json_lines(path):
    with reading_text(path, '\n') as f:
        yield from ((f'line {number} of {path}', line) for number, line in enumerate(f, 1) if line.strip())


def json_rows(path):
    for where, line in json_lines(path):
        with reading(where, 'JSON', 'write {"text": "..."} in valid Unicode'):
            row = {**json.loads(line)}
        yield where, row


def csv_rows(path):
    csv.field_size_limit(2 ** 31 - 1)
    with reading_text(path, '') as f:
        yield from ((f'row {number} of {path}', row) for number, row in enumerate(csv.DictReader(f, strict=True), 1))


def table_rows(name, batches):
    rows = (row for batch in batches for row in batch.to_pylist())
    return ((f'row {number} of {name}', row) for number, row in enumerate(rows, 1))


@dataclass
class Rows:
    """The documents of rows {field: value}: texts, or pairs (prompt, text) where the rows have prompts.

    read        keys -> an iterator of (where it is, row). A table reads the fields `keys` alone
    count       () -> the number of rows
    fields      of a table; [] where each row says its own
    text_key    the field that is the text
    prompt_key  the field that is the prompt; 'auto' is "prompt" where the rows have it, '' is none"""
    read: Callable
    count: Callable
    fields: list
    text_key: str = 'text'
    prompt_key: str = ''

    def __len__(self):
        return self.count()

    def __iter__(self):
        first = self.fields and self.keys(self.fields, 'the table')
        for where, row in self.read(first):
            keys = self.keys(row, where)
            first = first or keys
            if keys != first:
                raise ValueError(f'{where} has {"no" if len(first) > 1 else "a"} prompt, unlike the first row: write '
                                 'one in every row, or leave all out by --prompt_key=')
            for key in keys:
                with reading(f'{key} in {where}', 'text', 'write a string in valid Unicode, or leave the row out'):
                    row[key].encode()   # half a surrogate pair is no text
            *prompt, text = map(row.get, keys)
            if prompt and not text:
                raise ValueError(f'{where} has a prompt, but its {self.text_key} is empty: leave the row out')
            yield (*prompt, text) if prompt else text

    def keys(self, fields, where):
        """The keys of the prompt, if there is one, and of the text."""
        prompt = ('prompt' if 'prompt' in fields else '') if self.prompt_key == 'auto' else self.prompt_key
        for key, option in ((self.text_key, 'text_key'), (prompt or self.text_key, 'prompt_key')):
            if key not in fields:
                raise ValueError(f'{where} has no {key!r}, it has {", ".join(map(repr, fields))}: --{option}=OTHER '
                                 'names another field')
        if None in fields:
            raise ValueError(f'{where} has more fields than the first line has names: put texts with commas in quotes')
        return [prompt, self.text_key] if prompt else [self.text_key]


def parquet_rows(path, **keys):
    from pyarrow.parquet import ParquetFile
    with reading(path, 'a .parquet', 'fetch or write it again'):
        file = ParquetFile(path)
    return Rows(lambda keys: table_rows(path, file.iter_batches(1000, columns=keys)), lambda: file.metadata.num_rows,
                file.schema_arrow.names, **keys)


def dataset_rows(name, found, **keys):
    """The documents of a Dataset of the library `datasets`."""
    return Rows(lambda keys: table_rows(name, found.select_columns(keys).with_format('arrow').iter(1000)),
                lambda: len(found), found.column_names, **keys)


def open_texts(path, by_line=False, text_key='text', prompt_key=''):
    """The documents of a local source: TextFiles, or Rows with these keys."""
    keys = {'text_key': text_key, 'prompt_key': prompt_key}
    paths = files_of(path)
    if is_saved(path):
        from datasets import load_from_disk
        with reading(path, 'a data set', 'save it again by `datasets`'):
            return dataset_rows(path, load_from_disk(path), **keys)
    found = ENDING.search('.txt' if os.path.isdir(path) else path)
    kind = found and (found[1] or found[2])
    if kind in (None, 'raw') and not (kind and by_line):
        raise ValueError(f'{path} must end in {".raw, " * by_line}{KINDS}')
    if kind in ('txt', 'raw') and (text_key != 'text' or prompt_key not in ('', 'auto')):
        raise ValueError(f'{path} is text without fields: --text_key and --prompt_key are for rows, as of a .jsonl')
    if kind == 'parquet':
        return parquet_rows(path, **keys)
    if kind == 'csv':
        return Rows(lambda _: csv_rows(path), lambda: sum(1 for _ in csv_rows(path)), [], **keys)
    if kind == 'jsonl':
        return Rows(lambda _: json_rows(path), lambda: sum(1 for _ in json_lines(path)), [], **keys)
    return TextFiles(paths, by_line)


def own_splits(names, split, source):
    """{split: the name that it has in the data set `source`}; '' is still to be divided.

    Without `split` the train and the validation of the set, or its train or only split, which is then divided."""
    val = next((name for name in ('val', 'validation', 'valid', 'dev') if name in names), '')
    found = {split: val if split == 'val' else split}
    if not split:
        train = 'train' if 'train' in names else names[0] if len(names) == 1 else ''
        found = {'train': train, 'val': val} if val and train == 'train' else {'': train}
    if not {*found.values()} <= {*names}:
        raise ValueError(f'{source} has the splits {", ".join(names)}: name one of them by --split')
    return found


def open_source(source, split, text_key='text', prompt_key='auto'):
    """(what meta.json says of it, {split: documents}) of a source of one's own; '' is still to be divided. A data set
    on the hub, or a DatasetDict in a folder, has splits of its own."""
    if not source:
        raise ValueError('this data set is a source of yours: name it with --source=FILE, a folder, or hf:OWNER/NAME '
                         f'(FILE is {KINDS})')
    keys = {'text_key': text_key, 'prompt_key': prompt_key}
    if source.startswith('hf:'):
        repository = re.fullmatch(r'hf:([\w.-]+/[\w.-]+)(?:/([\w.-]+))?', source)
        if not repository:
            raise ValueError(f'a data set on the hub is hf:OWNER/NAME or hf:OWNER/NAME/CONFIG, got {source}')
        sets = from_hub(*repository.groups(), None, f'text --source={source}')
        names = own_splits([*sets], split, source)
        origin = f'{source}, fingerprint {"+".join(sets[name]._fingerprint for name in names.values())}'
        return origin, {s: dataset_rows(f'{source} {name}', sets[name], **keys) for s, name in names.items()}
    paths, index = {split: source}, os.path.join(source, 'dataset_dict.json')
    if os.path.isfile(index):
        with reading(index, 'the splits of a data set', 'save it again by `datasets`'), open(index) as f:
            names = json.load(f)['splits']
        paths = {s: os.path.join(source, name) for s, name in own_splits(names, split, source).items()}
    return name_source(source, *paths.values()), {s: open_texts(path, **keys) for s, path in paths.items()}


def shakespeare():
    """Karpathy's tiny Shakespeare, 1,115,394 characters."""
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=60) as response:
            return [response.read().decode()]
    except OSError as e:
        raise ValueError(f'cannot download {SHAKESPEARE_URL} ({e}); with a copy of it: '
                         'python data/prepare.py shakespeare --source=input.txt') from None


def from_hub(repository, name, split, command):
    """A data set on the Hugging Face hub: its `split`, or of None all of them. `name` is its configuration or None."""
    if not {'HF_HUB_OFFLINE', 'HF_ENDPOINT'} & os.environ.keys() and not urllib.request.getproxies():
        try:
            socket.create_connection(('huggingface.co', 443), 10).close()
        except OSError:   # what is cached loads at once, and all else fails at once, not after half a minute of retries
            os.environ['HF_HUB_OFFLINE'] = '1'
    from datasets import load_dataset
    quiet_hub()
    n_proc = max(1, (os.cpu_count() or 2) // 2) if split in ('train', None) else None
    try:
        try:
            return load_dataset(repository, name, split=split, num_proc=n_proc)
        except RuntimeError:   # a repository that is still a script: the hub's own conversion of it
            return load_dataset(repository, name, split=split, num_proc=n_proc, revision='refs/convert/parquet')
    except Exception as e:     # the hub's errors have many classes; most mean that it was not reached
        said = ' '.join(str(e).split())[:200]
        raise ValueError(f'cannot load {repository} from the Hugging Face hub ({type(e).__name__}: {said}); on a '
                         f'machine with a network: python data/prepare.py {command}, or --source=FILE') from None


def openwebtext():
    """OpenWebText, 8,013,769 documents. `datasets` downloads and caches about 25 GB."""
    return dataset_rows('openwebtext', from_hub('Skylion007/openwebtext', None, 'train', 'openwebtext'))


def name_source(path, *parts):
    """What meta.json says of a local source: its name and the beginning of its hash. `parts` are the files or folders
    of it that are read, if not all are."""
    sha = hashlib.sha256()
    for part in parts or [path]:
        for file in files_of(part):
            if os.path.isdir(part):
                sha.update(os.path.relpath(file, part).encode())
            with open(file, 'rb') as f:
                while chunk := f.read(2 ** 20):
                    sha.update(chunk)
    return f'{os.path.basename(os.path.abspath(path))}, sha256 {sha.hexdigest()[:12]}'
