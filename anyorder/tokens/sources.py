"""Where do documents come from? A source is a file, the standard library, a download or the Hugging Face hub.

Documents are anything that has len() and can be iterated more than once."""
import ast
import hashlib
import json
import os
import sysconfig
import urllib.request
from inspect import cleandoc

from anyorder.machine.files import quiet_hub, reading, reading_text

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SHAKESPEARE_URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'


def pydocs(source):
    """The language reference in pydoc_data and the docstrings of the standard library: a document a topic or module.
    Docstrings seen before are left out. Distributions of Python differ, since some leave modules out."""
    if source:
        raise ValueError('pydocs has no --source; for a file of your own: python data/prepare.py text --source=FILE')
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
    if os.path.isdir(path):
        raise ValueError(f'{path} is a folder: name a file in it')
    if not os.path.isfile(path):
        raise ValueError(f'no file {path}')


class TextFile:
    """The documents of a file, maybe .gz or .xz: a .txt is one, a .jsonl has one a line, as "text". With `by_line`
    a .txt, as WikiText's .raw, has one a line, its newline included."""

    def __init__(self, path, by_line=False):
        if not path:
            raise ValueError('this data set is a file of yours: name it with --source=FILE (.txt, .jsonl, .gz, .xz)')
        check_source(path)
        self.path, parts = path, path.split('.')
        self.kind = parts[-2] if parts[-1] in ('gz', 'xz') and len(parts) > 2 else parts[-1]
        kinds = ('txt', 'jsonl', 'raw') if by_line else ('txt', 'jsonl')
        if self.kind not in kinds:
            raise ValueError(f'{path} must end in .{", .".join(kinds)}, or in one of these and .gz or .xz')
        self.whole = self.kind == 'txt' and not by_line

    def _lines(self):
        with reading_text(self.path, '\n') as f:
            lines = [f.read()] if self.whole else f
            yield from (line for line in lines if self.kind != 'jsonl' or line.strip())

    def __len__(self):
        return sum(1 for _ in self._lines())

    def __iter__(self):
        for number, line in enumerate(self._lines(), 1):
            if self.kind == 'jsonl':
                with reading(f'document {number} of {self.path}', 'JSON', 'write {"text": "..."} in valid Unicode'):
                    line = json.loads(line)['text']
                    line.encode()   # half a surrogate pair is no text
            yield line


def shakespeare(source):
    """Karpathy's tiny Shakespeare, 1,115,394 characters."""
    if source:
        return TextFile(source)
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=60) as response:
            return [response.read().decode()]
    except OSError as e:
        raise ValueError(f'cannot download {SHAKESPEARE_URL} ({e}); with a copy of it: '
                         'python data/prepare.py shakespeare --source=input.txt') from None


def from_hub(repository, name, split, field, command):
    """The column `field` of a data set on the Hugging Face hub. `name` is its configuration or None."""
    from datasets import load_dataset
    quiet_hub()
    n_proc = max(1, (os.cpu_count() or 2) // 2) if split == 'train' else None
    try:
        try:
            return load_dataset(repository, name, split=split, num_proc=n_proc)[field]
        except RuntimeError:   # a repository that is still a script: the hub's own conversion of it
            return load_dataset(repository, name, split=split, num_proc=n_proc, revision='refs/convert/parquet')[field]
    except Exception as e:     # the hub's errors have many classes; all mean that it was not reached
        raise ValueError(f'cannot load {repository} from the Hugging Face hub ({type(e).__name__}); on a machine with '
                         f'a network: python data/prepare.py {command}, or --source=FILE') from None


def openwebtext(source):
    """OpenWebText, 8,013,769 documents, or a local file of it. `datasets` downloads and caches about 25 GB."""
    return TextFile(source) if source else from_hub('Skylion007/openwebtext', None, 'train', 'text', 'openwebtext')


def name_source(path):
    """What meta.json says of a local source: its name and the beginning of its hash."""
    check_source(path)
    sha = hashlib.sha256()
    with open(path, 'rb') as f:
        while chunk := f.read(2 ** 20):
            sha.update(chunk)
    return f'{os.path.basename(path)}, sha256 {sha.hexdigest()[:12]}'
