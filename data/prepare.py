"""
Text to token files: DIR/NAME/<split>.bin (little-endian uint16) and DIR/NAME/meta.json.

    python data/prepare.py pydocs                                        # what the quickstart reads; no network
    python data/prepare.py text --source=books.jsonl.xz --name=books     # any .txt or .jsonl, also .xz and .gz
    python data/prepare.py text --source=test.txt --name=books --split=test
    python data/prepare.py shakespeare [--source=input.txt]
    python data/prepare.py openwebtext                                   # 8 million documents through `datasets`
    python data/prepare.py wikitext2 [--source=wiki.test.raw]            # also wikitext103, ptb, lm1b, lambada

Every document is followed by the end-of-text token. Without --split the documents are divided into train and val by a fixed
seed; a text of one document is cut instead. The sets for zero-shot perplexity come with their own splits (a --source is their
test split unless --split says otherwise); their documents are rows, detokenized. A second run does nothing unless --force.
"""
import ast
import functools
import gzip
import hashlib
import itertools
import json
import lzma
import os
import random
import re
import signal
import sys
import sysconfig
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from inspect import cleandoc

import numpy as np

if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
from anyorder.files import Parser, check_folder, check_names, progress, quiet_hub, whole_files, write_json
from data.tokenizers import get_tokenizer

SPLIT_SEED = 2357
SHAKESPEARE_URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'


# ---------------------------------------------------------------------------------------------------------------------
# sources: source -> documents, anything with len() that can be iterated again

def pydocs(source):
    """The language reference in pydoc_data and the docstrings of the standard library, one document a topic or module.
    Docstrings seen before are left out. The same for the same installation of Python; distributions leave some modules out."""
    if source:
        raise ValueError('pydocs has no --source; for a file of your own: python data/prepare.py text --source=FILE')
    from pydoc_data.topics import topics
    root, seen, documents = sysconfig.get_path('stdlib'), set(), []
    for _, text in sorted(topics.items()):
        documents.append(cleandoc(text))
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in ('site-packages', 'dist-packages', 'test', 'tests', '__pycache__'))
        for file in sorted(f for f in files if f.endswith('.py')):
            try:
                with open(os.path.join(folder, file), 'rb') as f:
                    tree = ast.parse(f.read())
            except (SyntaxError, ValueError):   # templates and deliberately broken files are no English
                continue
            nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
            strings = dict.fromkeys(ast.get_docstring(n) or '' for n in nodes)
            new = [s for s in strings if len(s) >= 40 and s not in seen]   # shorter ones are hardly sentences
            seen.update(new)
            if new:
                documents.append('\n\n'.join(new))
    return [text for text in dict.fromkeys(documents) if text]


UNREADABLE = (EOFError, UnicodeDecodeError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)   # of a file that is cut, corrupt or not text


def open_text(path, newline):
    """A text file, also .gz and .xz, to read."""
    return {'gz': gzip.open, 'xz': lzma.open}.get(path.rsplit('.', 1)[-1], open)(path, 'rt', encoding='utf-8-sig', newline=newline)


class TextFile:
    """Documents of a local file: a .txt is one, a .jsonl has one a line under "text"; either may be .gz or .xz. With `by_line` a
    .txt, and the .raw of WikiText, has one a line, its newline included."""

    def __init__(self, path, by_line=False):
        if not path:
            raise ValueError('this data set is a file of yours: name it with --source=FILE (.txt or .jsonl, also .gz and .xz)')
        if not os.path.isfile(path):
            raise ValueError(f'no file {path}')
        self.path, parts = path, path.split('.')
        self.kind = parts[-2] if parts[-1] in ('gz', 'xz') and len(parts) > 2 else parts[-1]
        kinds = ('txt', 'jsonl', 'raw') if by_line else ('txt', 'jsonl')
        if self.kind not in kinds:
            raise ValueError(f'{path} must end in .{", .".join(kinds)}, or in one of these and .gz or .xz')
        self.whole = self.kind == 'txt' and not by_line

    def _lines(self):
        try:
            with open_text(self.path, '\n') as f:
                yield from [f.read()] if self.whole else (line for line in f if self.kind != 'jsonl' or line.strip())
        except UNREADABLE as e:
            raise ValueError(f'{self.path} cannot be read as {self.kind} text: {e}') from None

    def __len__(self):
        return sum(1 for _ in self._lines())

    def __iter__(self):
        for number, line in enumerate(self._lines(), 1):
            if self.kind == 'jsonl':
                try:
                    line = json.loads(line)['text']
                    line.encode()   # half a surrogate pair is no text
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    raise ValueError(f'{self.path}: document {number} must be a JSON object with a string under "text", in valid '
                                     'Unicode') from None
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
    """The column `field` of a data set on the Hugging Face hub, `name` its configuration or None."""
    from datasets import load_dataset
    quiet_hub()
    n_proc = max(1, (os.cpu_count() or 2) // 2) if split == 'train' else None
    try:
        try:
            return load_dataset(repository, name, split=split, num_proc=n_proc)[field]
        except RuntimeError:   # a repository that is still a script: the hub's own conversion of it
            return load_dataset(repository, name, split=split, num_proc=n_proc, revision='refs/convert/parquet')[field]
    except Exception as e:     # the hub's errors are of many classes; all mean that it was not reached
        raise ValueError(f'cannot load {repository} from the Hugging Face hub ({type(e).__name__}); on a machine with '
                         f'a network: python data/prepare.py {command}, or --source=FILE') from None


def openwebtext(source):
    """OpenWebText, 8,013,769 documents, through `datasets` (downloads and caches about 25 GB); or a local file of it."""
    return TextFile(source) if source else from_hub('Skylion007/openwebtext', None, 'train', 'text', 'openwebtext')


# ---------------------------------------------------------------------------------------------------------------------
# the sets of zero-shot perplexity: their rows, and the detokenizers of the SEDD family as ordered rules. Each rule is
# 'a -> b', of plain text, or of a regular expression if it is compiled

def replacing(*pairs):
    def detokenize(text):
        for old, new in pairs:
            text = text.replace(old, new) if isinstance(old, str) else old.sub(new, text)
        return text
    return detokenize


WIKITEXT = replacing(
    ("s '", "s'"), (re.compile(r"/' [0-9]/"), r"/'[0-9]/"), (' @-@ ', '-'), (' @,@ ', ','), (' @.@ ', '.'),
    (' : ', ': '), (' ; ', '; '), (' . ', '. '), (' ! ', '! '), (' ? ', '? '), (' , ', ', '),
    (re.compile(r'\(\s*([^\)]*?)\s*\)'), r'(\1)'),
    (re.compile(r'\[\s*([^\]]*?)\s*\]'), r'[\1]'), (re.compile(r'{\s*([^}]*?)\s*}'), r'{\1}'),
    (re.compile(r'\"\s*([^\"]*?)\s*\"'), r'"\1"'), (re.compile(r"'\s*([^']*?)\s*'"), r"'\1'"),
    ('= = = =', '===='), ('= = =', '==='), ('= =', '=='), (' ° ', '°'), (' \n', '\n'), ('\n ', '\n'), (' N ', ' 1 '), (" 's", "'s"))
PTB = replacing(
    (" 's", "'s"), ("s ' ", "s' "), (" n't", "n't"), (' \n ', '\n'), ('\\/', '/'), *[(' N ', ' 1 ')] * 10,
    ('$ 1', '$1'), ('# 1', '#1'), ('<unk>', '?'))
LM1B = replacing(
    ('http : / / ', 'http://'), ('https : / / ', 'https://'), (re.compile(r" \'(\w+)"), r"'\1"), (re.compile(r' (\w+) \. '), r' \1. '),
    (re.compile(r' (\w+) \.$'), r' \1.'), (' ? ', '? '), (re.compile(r' \?$'), '?'), (' ! ', '! '), (re.compile(r' \!$'), '!'),
    (' , ', ', '), (' : ', ': '), (' ; ', '; '), (' / ', '/'),
    (re.compile(r'\" ([^\"]+) \"'), r'"\1"'), (re.compile(r"\' ([^\']+) \'"), r"'\1'"),
    (re.compile(r'\( ([^\(\)]+) \)'), r'(\1)'), (re.compile(r'\[ ([^\[\]]+) \]'), r'[\1]'), ('$ ', '$'), ('£ ', '£'))
LAMBADA = replacing(('“', '"'), ('”', '"'))


def zero_shot(name, repository, config, field, clean):
    """(source, split) -> the rows of a local file in the original form, or of the hub, each through `clean`."""
    def documents(source, split):
        rows = TextFile(source, by_line=True) if source else from_hub(repository, config, split, field, f'{name} --split={split}')
        return list(map(clean, rows))
    return documents


def wikitext(name):   # the hub gives blank lines as empty strings
    config = f'wikitext-{name.removeprefix("wikitext")}-raw-v1'
    return zero_shot(name, 'Salesforce/wikitext', config, 'text', lambda line: WIKITEXT(line) if line.strip() else '')


@dataclass
class DataSet:
    documents: Callable   # source -> documents; with splits of its own (source, split) -> documents
    tokenizer: str        # default
    val_ratio: float      # share of the documents that are for validation
    about: str
    offline: bool = False        # can be made from nothing but this Python
    splits: tuple = ()           # those it comes with and that a protocol wants


DATA_SETS = {
    'pydocs':      DataSet(pydocs,      'bytes', 0.05,   'English of the Python documentation, about 2 MB; no network', offline=True),
    'text':        DataSet(TextFile,    'gpt2',  0.1,    'a .txt or .jsonl file of your own (--source)'),
    'shakespeare': DataSet(shakespeare, 'gpt2',  0.1,    '1.1 MB of plays, downloaded'),
    'openwebtext': DataSet(openwebtext, 'gpt2',  0.0005, '9 billion tokens of web text, through the hub'),
    'lambada':     DataSet(zero_shot('lambada', 'EleutherAI/lambada_openai', 'default', 'text', lambda row: '\n' + LAMBADA(row).strip()),
                           'gpt2', 0, 'LAMBADA in OpenAI\'s form, 5,153 passages', splits=('test',)),
    'wikitext2':   DataSet(wikitext('wikitext2'), 'gpt2', 0, 'WikiText-2 raw, one row a line', splits=('train', 'test')),
    'wikitext103': DataSet(wikitext('wikitext103'), 'gpt2', 0, 'WikiText-103 raw; its test split is that of WikiText-2', splits=('test',)),
    'ptb':         DataSet(zero_shot('ptb', 'ptb-text-only/ptb_text_only', None, 'sentence', lambda row: PTB(row.strip())),
                           'gpt2', 0, 'Penn Treebank in Mikolov\'s form', splits=('test',)),
    'lm1b':        DataSet(zero_shot('lm1b', 'dvruette/lm1b', None, 'text', lambda row: LM1B(row.strip())),
                           'gpt2', 0, 'One Billion Word', splits=('test',)),
}


# ---------------------------------------------------------------------------------------------------------------------
# documents -> files

def split_documents(documents, val_ratio):
    """{split: (number of documents, iterable)}: whole documents drawn by SPLIT_SEED; a document alone is cut at 1 - val_ratio."""
    n = len(documents)
    if n == 1:
        text, = documents
        cut = int(len(text) * (1 - val_ratio))
        return {'train': (1, [text[:cut]]), 'val': (1, [text[cut:]])}
    val = set(random.Random(SPLIT_SEED).sample(range(n), max(1, round(n * val_ratio))))
    return {'train': (n - len(val), (text for i, text in enumerate(documents) if i not in val)),
            'val': (len(val), (text for i, text in enumerate(documents) if i in val))}


def encode_documents(documents, tokenizer):
    """For every document its tokens and end-of-text (n,) uint16, and its bytes of text."""
    iterator = iter(documents)
    while batch := list(itertools.islice(iterator, 256)):
        for ids, text in zip(tokenizer.encode_batch(batch), batch):
            yield np.append(np.asarray(ids, dtype='<u2'), np.array(tokenizer.eos, '<u2')), len(text.encode())


def write_tokens(path, documents, tokenizer, n_documents):
    """Encode every document into `path`; returns what meta.json says of it."""
    info, sha = {'rows': 0, 'tokens': 0, 'text_bytes': 0}, hashlib.sha256()
    with open(path, 'wb') as f, progress(total=n_documents, desc=os.path.basename(path).removesuffix('.tmp'), unit='doc') as bar:
        for tokens, n_bytes in encode_documents(documents, tokenizer):
            written = tokens.tobytes()
            f.write(written)
            sha.update(written)
            for name, n in (('rows', 1), ('tokens', len(tokens)), ('text_bytes', n_bytes)):
                info[name] += n
            bar.update()
    return {**info, 'sha256': sha.hexdigest()}


def read_meta(directory):
    """meta.json of a prepared data set, or {} when there is none."""
    path = os.path.join(directory, 'meta.json')
    try:
        with open(path) as f:
            meta = json.load(f)
        if not {'tokenizer', 'splits'} <= meta.keys():
            raise ValueError
        return meta
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError):
        raise ValueError(f'{path} is not what data/prepare.py wrote: remove its folder and prepare the data set again') from None


def name_source(path):
    """What meta.json says of a local source: its name and the beginning of its hash."""
    if not os.path.isfile(path):
        raise ValueError(f'no file {path}')
    sha = hashlib.sha256()
    with open(path, 'rb') as f:
        while chunk := f.read(2 ** 20):
            sha.update(chunk)
    return f'{os.path.basename(path)}, sha256 {sha.hexdigest()[:12]}'


def splits_there(directory, meta):
    """{split: what meta.json says of it} of the splits whose files are whole."""
    files = {s: os.path.join(directory, f'{s}.bin') for s in meta.get('splits', {})}
    return {s: meta['splits'][s] for s, path in files.items()
            if os.path.exists(path) and os.path.getsize(path) == 2 * meta['splits'][s]['tokens']}


def write_splits(directory, meta, others, origin, writers):
    """Make the splits of {split: write(path) -> info} beside the `others` that stay, then meta.json; returns the meta."""
    os.makedirs(directory, exist_ok=True)
    try:
        with whole_files(*(os.path.join(directory, f'{s}.bin') for s in writers)) as paths:
            new = {s: {**write(path), 'source': origin} for (s, write), path in zip(writers.items(), paths)}
    finally:
        if not os.listdir(directory):
            os.rmdir(directory)
    meta = {**meta, 'splits': {**others, **new}}
    write_json(os.path.join(directory, 'meta.json'), meta)
    return meta


def prepare(data_set, out, name=None, source=None, split=None, tokenizer=None, force=False):
    """Prepare one row of DATA_SETS into out/name; returns its meta. Splits that are there stay unless `force`."""
    if data_set not in DATA_SETS:
        raise ValueError(f'data set must be one of {", ".join(DATA_SETS)}, got {data_set!r}')
    check_names(name=name, split=split)
    row, directory = DATA_SETS[data_set], os.path.join(out, name or data_set)
    check_folder('--out', directory)
    if split and not source and not row.splits:
        raise ValueError(f'{data_set} is divided into train and val: leave --split={split} out, or name the text of that split by --source')
    if row.splits and source and not split:
        split = 'test'
    meta, wanted = read_meta(directory), {split} if split else set(row.splits or ('train', 'val'))
    have = splits_there(directory, meta)
    origin = name_source(source) if source else data_set
    there, others = have.keys() & wanted, {s: info for s, info in have.items() if s not in wanted}
    if there and not force:
        if there == wanted and all(have[s]['source'] == origin for s in there) and tokenizer in (None, meta['tokenizer']):
            return meta
        raise ValueError(f"{directory} holds {', '.join(sorted(there))} already, from {have[min(there)]['source']} with the tokenizer "
                         f"{meta['tokenizer']}: --force replaces it, --name=OTHER writes elsewhere, --split=NAME adds a split")
    sha = origin.rpartition(', sha256 ')[2]
    twice = [s for s, info in others.items() if source and info['source'].rpartition(', sha256 ')[2] == sha]
    if twice:
        raise ValueError(f'{origin} is the source of {twice[0]} already, and no two splits may share text: name another file, or divide '
                         'this one by --force without --split')
    given = {s: row.documents(source, s) for s in sorted(wanted)} if row.splits else {split: row.documents(source)}   # None: to divide
    tok = get_tokenizer(tokenizer or (meta['tokenizer'] if others else row.tokenizer))
    if others and tok.name != meta['tokenizer']:
        raise ValueError(f"{directory} holds {', '.join(others)} in the tokenizer {meta['tokenizer']}, not {tok.name}: "
                         'one folder has one tokenizer; use another --name')
    if not all(map(any, given.values())):
        raise ValueError(f'{origin} holds no text')
    parts = split_documents(given[None], row.val_ratio) if None in given else {s: (len(texts), texts) for s, texts in given.items()}
    meta = {'name': name or data_set, 'tokenizer': tok.name, 'n_tokens': tok.n_tokens, 'eos': tok.eos}
    writers = {s: functools.partial(write_tokens, documents=texts, tokenizer=tok, n_documents=n) for s, (n, texts) in parts.items()}
    return write_splits(directory, meta, others, origin, writers)


def run(main):
    """Run a script: an error ends it with one line, and SIGTERM lets it clean up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('terminated'))
    try:
        main()
    except (ValueError, OSError) as e:
        sys.exit(f'error: {e}')
    except KeyboardInterrupt:
        sys.exit('interrupted')


def main():
    rows = '\n'.join(f'  {name:<12} {row.about}; {row.tokenizer} tokens' for name, row in DATA_SETS.items())
    parser = Parser(description=__doc__, epilog=f'data sets:\n{rows}')
    parser.add_argument('data_set', metavar='NAME', help='a data set of the table below')
    parser.add_argument('--source', help='local file to read: .txt (one document; of a zero-shot set, one row a line, as .raw) or .jsonl '
                        '(one a line, key "text"), also .gz and .xz')
    parser.add_argument('--split', help='the whole source is this split (train, val, test); default: divide it into train and val, '
                        'or test for a zero-shot set')
    parser.add_argument('--name', help='folder to write under --out; default: NAME')
    parser.add_argument('--tokenizer', choices=('bytes', 'gpt2'), help='default: that of the data set')
    parser.add_argument('--out', default=os.path.dirname(os.path.abspath(__file__)), help='default: the folder of this script')
    parser.add_argument('--force', action='store_true', help='replace what is there')
    args = parser.parse_args()
    before = read_meta(os.path.join(args.out, args.name or args.data_set))
    meta = prepare(args.data_set, args.out, args.name, args.source, args.split, args.tokenizer, args.force)
    print_meta(args.out, meta, before, args.force)


def print_meta(out, meta, before, force):
    """What is in the folder now, and whether it was there before."""
    done = 'there already (--force replaces it)' if meta == before and not force else 'written'
    print(f"{os.path.join(out, meta['name'])}: {done}, tokenizer {meta['tokenizer']}")
    width = max(len(s['source']) for s in meta['splits'].values()) + 2
    print(f"{'split':<8}{'rows':>10}{'tokens':>16}{'bytes of text':>16}  {'source':<{width}}sha256")
    for split, s in meta['splits'].items():
        print(f"{split:<8}{s['rows']:>10,}{s['tokens']:>16,}{s['text_bytes']:>16,}  {s['source']:<{width}}{s['sha256'][:16]}...")


if __name__ == '__main__':
    run(main)
