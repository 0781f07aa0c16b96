"""Sources to prepared sets, and what is read of them: formats, kinds, mixtures, blocks."""

import bz2
import glob
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import random
import re
import shutil
import subprocess
import tracemalloc
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

import datasets
import numpy as np
import pytest
import torch
from conftest import one_line
from oracle import chi2_of, limit
from toy_runs import log, run

from anyorder.checkpoint import load_checkpoint
from anyorder.datasets import names_of_run, only_set_of, open_split, open_splits
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.likelihood.measured import open_corpus
from anyorder.tokens import prepared as p
from anyorder.tokens import sets
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.benchmarks import WIKITEXT
from anyorder.tokens.blocks import (
    Batch,
    Blocks,
    all_blocks,
    random_blocks,
    uniform_below,
    visits_of,
)
from anyorder.tokens.documents import Begun
from anyorder.tokens.meta import Meta, kind_of, read_meta, write_meta
from anyorder.tokens.mixture import counts_of, mixed, set_shares, shares_of, weights_in
from anyorder.tokens.sets import PADDING, Split
from anyorder.tokens.sources import name_source, open_source, pydocs
from anyorder.tokens.tokenizer import Bytes

TEXTS = ['Grüße, Welt.\n', 'a second "document"', '', 'three\nlines\r\nhere']
TEXTS += [f'document {i}' for i in range(16)]
ROWS = [
    {'question': f'{i} + {i}', 'text': text, 'prompt': f'{i}, "\n?'}
    for i, text in enumerate(filter(None, TEXTS))
]
NAMES = (
    'a.jsonl a.JSONL.GZ a.jsonl.xz a.jsonl.bz2 a.csv.gz \udce9.CSV \udce9.Parquet saved'  # no UTF-8
)
PACKERS = {'gz': gzip.compress, 'xz': lzma.compress, 'bz2': bz2.compress}


def write(path, content):
    """Write a text, bytes, an array or {name: array} as it is; returns the path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'wb') as f:
        if isinstance(content, dict):
            np.savez(f, **content)
        elif isinstance(content, np.ndarray):
            np.save(f, content)
        else:
            f.write(content if isinstance(content, bytes) else content.encode())
    return path


def lines_of(*rows):
    return '\n\n'.join(map(json.dumps, rows))


def write_rows(name):
    """Write ROWS, with the mark of an end, as a source of this name and kind; returns the name."""
    table = datasets.Dataset.from_list(
        [row | {'text': row['text'] + '<|endoftext|>'} for row in ROWS]
    )
    if name == 'saved':
        table.save_to_disk(name, num_shards=2)
        return name
    _, kind, *packed = name.lower().split('.')
    content = io.BytesIO()
    getattr(table, f'to_{kind.removesuffix("l")}')(content)  # to_json of a .jsonl
    packer = PACKERS[packed[0]] if packed else bytes
    return write(name, packer(content.getvalue()))


def prepare(source, data_set='text', data_dir='.', tokenizer='bytes', **how):
    if '.np' in source:
        return prepare_tokens(data_dir, data_set, source, **how)
    return p.prepare(data_set, data_dir, source=source, tokenizer=tokenizer, **how)


def read(split, folder='text'):
    """The documents of a split in bytes."""
    tokens = np.fromfile(f'{folder}/{split}.bin', '<u2')
    return Bytes().decode(tokens.tolist()).split('<|endoftext|>')[:-1]


# ---- what a source may be


@pytest.mark.parametrize(
    'text, prompt', [('text', 'prompt'), ('question', 'prompt'), ('text', 'question'), ('text', '')]
)
def test_all_kinds_of_rows_are_the_same_documents(text, prompt):
    keys = {'text_key': text, 'prompt_key': 'auto' if prompt == 'prompt' else prompt}
    wanted = [(row[prompt], row[text]) if prompt else row[text] for row in ROWS]
    for name in NAMES.split():
        found = open_source(write_rows(name), '', **keys)
        other = open_source(name, '', text_key='prompt', prompt_key='text')
        assert found.origin != other.origin
        (found,) = found.parts.values()
        assert [*found] == [*found] == wanted  # read anew
        if not prompt:
            prepare(name, split='train', force=True, **keys).splits['train']['source'].encode()
            assert read('train') == wanted


# what is done in a folder of a.txt, d.txt and deep/c.txt, and changes nothing
FOLDERS = (
    'ln -s deep again',
    'ln -s .. deep/up',
    'mv d.txt ../elsewhere.txt; ln -s ../elsewhere.txt d.txt',
    ': > z.txt',
    'mv d.txt d.TXT',
    'mkdir notes.txt; mv d.txt notes.txt/d.Txt',
    'echo hidden > .hidden.txt; mkdir .git; echo no > .git/b.txt; echo other > notes.md',
    r'mv d.txt "$(printf "d\\351.txt")"',
    'ln -s a.txt b.txt; ln -s ../a.txt deep/a.txt',
)


@pytest.mark.parametrize('line', FOLDERS)
def test_each_text_of_a_folder_is_read_once(line):
    for name in ('a.txt', 'd.txt', 'deep/c.txt'):
        write(f'texts/{name}', f'text of {name}')
    before = name_source('texts')
    subprocess.run(['sh', '-c', line], cwd='texts', check=True)
    prepare('texts/', split='train')
    assert sorted(read('train')) == ['text of a.txt', 'text of d.txt', 'text of deep/c.txt']
    assert line != 'mv d.txt d.TXT' or name_source('texts') != before


LONG = 'The end \n\n  of it.\r\n' * 9


ENDED = {
    'a<|endoftext|>b': ['a', 'b'],
    '<|endoftext|>a<|endoftext|>\n': ['a'],
    'a\n<|endoftext|>\n b': ['a\n', '\n b'],
    f'{LONG}<|endoftext|>{LONG}<|endoftext|>': [LONG, LONG],
    '<|endoftext|><|endoftext|>a': ['a'],
    'a <|endoftext> b<|endoftext': ['a <|endoftext> b<|endoftext'],
    ' \n': [' \n'],
}


@pytest.mark.parametrize('text, documents', ENDED.items())
def test_an_end_of_text_ends_a_document(monkeypatch, text, documents):
    write('a.jsonl', lines_of({'text': text}))
    write('a.txt.xz', lzma.compress(text.encode()))
    write('a/a.txt', text)
    for piece in (1, 40):
        monkeypatch.setattr('anyorder.tokens.sources.PIECE', piece)
        for name in ('a.jsonl', 'a.txt.xz', 'a'):
            meta = prepare(name, split='test', force=True)
            assert meta.splits['test']['rows'] == len(documents)
            assert read('test') == documents


def test_a_lone_text_is_cut_and_read_in_pieces_as_the_whole(monkeypatch):
    text = LONG + 'Grüße, 中文。 ' * 7
    write('a.txt', text)
    cut = int(len(text) * 0.9)
    for piece in (1, 10, cut, 1 << 17):
        monkeypatch.setattr('anyorder.tokens.sources.PIECE', piece)
        prepare('a.txt', force=True)
        assert [*read('train'), *read('val')] == [text[:cut], text[cut:]]


LONG_TEXT = 'A docstring of more than forty letters, in English'
MODULES = {
    'b.py': f'"""{LONG_TEXT}, of b."""\ndef f():\n    """{LONG_TEXT}."""\n',
    'a.py': f'class A:\n    """{LONG_TEXT}."""\n',
    'a/z.py': '"""Too short."""\n',
    'a/broken.py': 'def f(:\n',
    'a/latin.py': '# \\xe4',
    'test/t.py': f'"""{LONG_TEXT}, of a test."""\n',
    'site-packages/x.py': f'"""{LONG_TEXT}, of others."""\n',
    'a/y.py': f'async def f():\n    """{LONG_TEXT}:\n\n        indented\n    """\n',
}


def test_pydocs_are_the_docstrings_of_a_library_once(monkeypatch):
    for path, text in MODULES.items():
        write(path, text)
    monkeypatch.setattr('sysconfig.get_path', lambda name: os.getcwd())
    monkeypatch.setattr('pydoc_data.topics.topics', {'z': '  last', 'b': 'first', 'c': 'first'})
    docstrings = [f'{LONG_TEXT}.', f'{LONG_TEXT}, of b.', f'{LONG_TEXT}:\n\nindented']
    assert pydocs() == ['first', 'last', *docstrings]


DETOKENIZED = {  # by the rules of the SEDD family, worked out by hand
    'wikitext2': {
        ' = = Cast = = \n': ' == Cast ==\n',
        ' \n': '',
        '\n': '',
        (
            ' The two @-@ time " best actor " ( 1 @,@ 000 @.@ 5 m ) '
            "'s film , it was ; so : good . \n"
        ): (' The two-time "best actor" (1,000.5 m)\'s film, it was; so: good.\n'),
    },
    'ptb': {
        " N N shares of <unk> 's stock do n't rise to $ N \n": (
            "N 1 shares of ?'s stock don't rise to $ N"
        ),
        ' a N N N b \n': 'a 1 1 1 b',
    },
    'lm1b': {
        '" We will , " he said . It \'s on http : / / x ? Yes ( sure ) !\n': (
            '"We will," he said. It\'s on http://x? Yes (sure)!'
        )
    },
    'lambada': {' “ Come , ” she said\n': '\n" Come , " she said'},
}


@pytest.mark.parametrize('end', ['\n', '\r\n'])
@pytest.mark.parametrize('name, rows', DETOKENIZED.items())
def test_zero_shot_rows_are_detokenized(name, rows, end):
    source = write('rows.txt', ''.join(rows).replace('\n', end))
    assert prepare(source, name).splits['test']['rows'] == len(rows)
    assert read('test', name) == [*rows.values()]


def test_a_rule_may_fit_across_two_pieces_of_a_row():
    rows = [Begun('a @-'), Begun('@ b '), ', c', ('prompt', 'd @,@ e')]
    assert [*p.detokenized(rows, WIKITEXT)] == ['a-b, c', 'd,e']


# ---- histories of a set

N_ROWS = {'train': 50, 'val': 5, 'test': 5}


def state():
    """The visible files of the working folder, and when each was written."""
    return [(path, path.stat().st_mtime_ns) for path in sorted(Path().rglob('[!.]*'))]


def refused(*calls):
    """Each call (source, what is said, options) is refused in one line, and changes nothing."""
    before = state()
    for source, said, how in calls:
        with one_line(said):
            prepare(source, **how)
    assert state() == before


@pytest.fixture
def sources():
    write('a.jsonl', lines_of(*({'text': text} for text in TEXTS)))
    write('other/a.jsonl', lines_of({'text': 'other'}, {'text': 'texts'}))
    write('bad.jsonl', '{"text": "fine"}\n' * 30 + '{"text": "\\ud800"}\n')


def test_documents_are_divided_once_and_a_second_run_does_nothing_unless_forced(home, sources):
    meta = prepare('a.jsonl')
    val = read('val')
    chosen = sorted(random.Random(2357).sample(range(20), 2))
    assert (val, sorted(read('train') + val)) == ([TEXTS[i] for i in chosen], sorted(TEXTS))
    raw = Path('text/val.bin').read_bytes()
    n = len(raw) // 2
    sha256 = hashlib.sha256(raw).hexdigest()
    said = {'rows': 2, 'tokens': n, 'text_bytes': n - 2, 'sha256': sha256}
    assert meta.splits['val'] == said | {'source': name_source('a.jsonl')}

    assert prepare('~/a.jsonl', data_dir='~/elsewhere') == meta
    before = state()
    assert prepare('a.jsonl', tokenizer='') == meta
    assert state() == before
    refused(
        ('a.jsonl', '--force', {'tokenizer': 'gpt2'}),
        ('other/a.jsonl', '--force', {}),
        ('other/a.jsonl', '--force', {'split': 'val'}),
        ('bad.jsonl', 'row 31 .* valid Unicode', {'force': True}),
    )
    write('text/val.bin', b'')  # which is damaged
    refused(
        ('a.jsonl', 'text holds train already', {}),
        ('a.jsonl', 'is the source of train already', {'split': 'val'}),
    )
    prepare('a.jsonl', tokenizer='', force=True)
    assert read('val') == val


def test_no_two_splits_are_of_one_data_set():
    datasets.Dataset.from_dict({'text': TEXTS}).save_to_disk('set')
    prepare('set', split='train')
    refused(('set', 'is the source of train already', {'split': 'test'}))


# what is typed of a source: a file, maybe the split that it is
READ = ['a.jsonl', 'a.jsonl train', 'other/a.txt', 'other/a.txt val', 'other test']
# a step of reading, and what it may read
STEPS = [
    *itertools.product(('prepared.have_prompts', 'prepared.encode_source'), READ),
    *itertools.product(['arrays.describe'], ('a.npy', 'a.npz')),
]


@pytest.mark.parametrize('n', [5, 25])
@pytest.mark.parametrize('step, typed', STEPS)
def test_a_source_that_changes_while_it_is_read_is_one_line(sources, monkeypatch, step, typed, n):
    write('other/a.txt', 'a lone text')
    write('a.npy', GRIDS)
    write('a.npz', {'train': GRIDS})
    source, *split = typed.split()
    step = f'anyorder.tokens.{step}'
    done = resolve_name(step)

    def do_and_change(*args, **how):
        found = done(*args, **how)
        for name in ('a.jsonl', 'other/a.txt'):
            write(name, n * '{"text": "another"}\n')
        for name in ('a.npy', 'a.npz'):
            write(name, np.tile(GRIDS, (n, 1)))
        return found

    monkeypatch.setattr(step, do_and_change)
    with one_line('has changed'):
        prepare(source, split=''.join(split))
    assert not os.path.exists('text')


# ---- data sets of the hub


def texts_of(name):
    return [f'{name} {i}' for i in range(9)]


SPLITS = {  # those of a data set, the one that is asked for, and ours
    'train test': {'': 'train'},
    'train validation test': {'train': 'train', 'val': 'validation'},
    'train val': {'train': 'train', 'val': 'val'},
    'train validation=val': {'val': 'validation'},
    'extra': {'': 'extra'},
    'train test=val': {},
    'test validation': {},
}


@pytest.mark.parametrize('names, wanted', SPLITS.items())
def test_splits_of_a_data_set_of_its_own(monkeypatch, names, wanted):
    """Saved to `set`, and to `owner/set`, which `datasets` takes for the repository of the hub."""
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', Path('cache').absolute())
    names, _, split = names.partition('=')
    saved = datasets.DatasetDict()
    os.makedirs('owner/set')
    for name in names.split():
        saved[name] = datasets.Dataset.from_dict({'text': texts_of(name)})
        saved[name].to_parquet(f'owner/set/{name}.parquet')
    saved.save_to_disk('set')
    for source in ('set', 'hf:owner/set'):
        if not wanted:
            with one_line(f'{source} has the splits .*: name one of them by --split'):
                open_source(source, split)
            continue
        found = open_source(source, split)
        assert found.origin.startswith(f'{source}, fingerprint ')
        texts = {part: [*documents] for part, documents in found.parts.items()}
        assert texts == {part: texts_of(name) for part, name in wanted.items()}


def test_named_sets_go_through_datasets(monkeypatch):
    asked = []

    def load_dataset(repository, name, split, num_proc, revision=None):
        """The hub, of which OpenWebText is still a script, and which is gone in the end."""
        if len(asked) == 4:
            raise ConnectionError('no\nroute')
        asked.append(f'{name} {split} {num_proc} {revision}')
        if name:
            return {'text': ['', f' = {split} = \n']}
        if revision is None:
            raise RuntimeError('Dataset scripts are no longer supported')
        return datasets.Dataset.from_dict({'text': TEXTS})

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    monkeypatch.setattr('os.cpu_count', lambda: 6)
    for name in ('wikitext2', 'wikitext2', 'openwebtext'):  # the second time all is there
        prepare('', name)
    of_wikitext = [f'wikitext-2-raw-v1 {split} None' for split in ('test None', 'train 3')]
    assert asked == [*of_wikitext, 'None train 3 None', 'None train 3 refs/convert/parquet']
    assert read('train', 'wikitext2') == ['', ' = train =\n']
    found = read('train', 'openwebtext'), read('val', 'openwebtext')
    assert (sorted(sum(found, [])), len(found[1])) == (sorted(TEXTS), 1)
    with one_line('Salesforce/wikitext cannot be read .*check name .*ConnectionError: no route'):
        prepare('', 'wikitext2', split='train', force=True)


# ---- arrays of integers

GRIDS = np.arange(24).reshape(4, 6) % 7
LETTERS = 'a\nb\nc\nd\ne\nf\ng'


@pytest.mark.parametrize('rows, end', [(GRIDS, None), (GRIDS[0], None), (GRIDS[0], 9)])
def test_an_array_is_divided_as_a_whole_into_rows_or_a_stream(rows, end):
    meta = prepare(write('a.npy', rows), end=end)
    assert (meta.eos, meta.n_tokens) == (end, 1 + (end or rows.max()))
    splits = open_splits('.', 'text', 'train', 'val')
    parts = [split.packed.reshape(-1, *rows.shape[1:]) for split in splits]
    assert sorted(np.concatenate(parts).tolist()) == sorted(rows.tolist())
    found = [(entry['rows'], entry['text_bytes']) for entry in meta.splits.values()]
    assert found == [(1 if rows.ndim == 1 else len(part), 0) for part in parts]


@pytest.mark.parametrize('most, dtype', [(2**15 - 1, '<u2'), (2**15, '<u4'), (2**24 - 1, '<u4')])
def test_ids_and_what_is_given_stand_in_as_many_bits_as_they_need(most, dtype):
    rows = np.array([[0, most, 3], [most, 1, 2]])
    where = np.array([[True, False, False], [False, True, True]])
    write('a.Npz', {'train': rows, 'val': rows, 'given': where[0], 'given_val': where})
    assert prepare_tokens('.', source='a.Npz').n_tokens == most + 1
    for split, of_rows in zip(open_splits('.', 'tokens', 'train', 'val'), (where[[0, 0]], where)):
        assert split.packed.dtype == dtype
        assert as_rows(all_blocks(Blocks(split, 3))) == as_rows([rows, of_rows])


def test_a_split_of_arrays_is_added_only_to_its_kind_which_need_not_be_said_anew():
    arrays = {'a': GRIDS, 'b': GRIDS[:1] % 3, 'large': GRIDS + 1, 'c': GRIDS[0], 'd': GRIDS[1]}
    for name, rows in arrays.items():
        write(f'{name}.npy', rows)
    form = {'shape': '2x3', 'vocabulary': write('names.txt', LETTERS)}
    kind = kind_of(prepare('a.npy', **form))
    assert kind_of(prepare('a.npy', **form)) == kind
    test = {'split': 'test', 'shape': '2x3'}
    refused(
        ('b.npy', '--force replaces it', form),
        ('b.npy', r'another kind \(shape\)', test | {'shape': '3x2'}),
        ('large.npy', 'token 7, and there are only 7 tokens', test),
        ('a.npy', 'is the source of train already', test),
        (write('a.txt', 'a b'), r'another kind \(tokenizer\)', {'split': 'test', 'tokenizer': ''}),
    )
    for how in ({}, form):
        added = prepare('b.npy', split='test', force=True, **how)
        assert kind_of(added) == kind
        assert [*added.splits] == ['train', 'val', 'test']
        assert added.splits['test']['text_bytes'] == 0
    prepare('c.npy', 'text', 'streams', end=9)
    added = prepare('d.npy', 'text', 'streams', split='test')
    assert (added.n_tokens, added.eos, added.splits['test']['rows']) == (10, 9, 1)


# ---- wrong input

EIGHT = 8 * '{"prompt": "a", "text": "b"}\n\n'  # so that the next one is row 17
NO_GIVEN = np.zeros((4, 6), bool)

# (name of a source and options, what is in it, what is said)
BAD = [
    ('a.jsonl', '{"text": "a"}\n{"txt": "b"}\n', 'row 2'),
    ('a.jsonl', '{"text": 5}', 'row 1'),
    ('a.jsonl', EIGHT + '{"text": "b"}', 'row 17 .* a prompt and a text'),
    ('a.jsonl', EIGHT + '{"prompt": "a", "text": ""}', 'row 17 of .* empty'),
    ('a.jsonl', '{"prompt": "a", "text": "b<|endoftext|>c"}', 'row 1 of'),
    ('a.csv', 'text\na\nb, c\n', 'row 2 of .* in quotes'),
    ('a.jsonl.xz', lzma.compress(bytes(30000))[:60], 'cannot be read'),
    ('a.parquet', 'PAR1 and no more', 'a.parquet cannot be read as a .parquet'),
    ('a.yaml', '', 'must end in .txt'),
    ('a.txt --source=hf:owner/none', '', 'owner/none cannot be read'),
    ('a.txt --source=hf:owner/none --name=x/y', '', 'plain name'),
    ('a.txt --source=hf:owner/none --split=../x', '', 'plain name'),
    ('a.txt --source=hf:owner/none --data_dir=', '', '--data_dir must name a folder'),
    ('a.txt --source=hf:owner/none --tokenizer=byte', '', 'tokenizer must be bytes, gpt2'),
    ('a.npz --source=none.npz --name=x/y', '', 'plain name'),
    ('a.txt text --source=', 'a', "no file '': name a file"),
    ('a.txt', '', 'train of .* would be empty'),
    ('a.jsonl --split= --tokenizer=bpe:300', '', 'would be empty'),
    ('a.txt pydocs --source= --split=test', 'a', 'leave out --split=test'),
    ('a.npy --source=', GRIDS, '--source=FILE, .npy'),
    ('a.npy --source=none.npy', GRIDS, "no file 'none.npy': name"),
    ('a.npy', GRIDS - 1, 'integers from 0 to 16,777,215'),
    ('a.npy', GRIDS + 2**24 - 6, 'integers from 0 to 16,777,215'),
    ('a.npy', GRIDS[None], r'a stream \(n,\), got .*\(1, 4, 6\)'),
    ('a.npy', GRIDS.astype('f'), 'hold integers .*, got .*4, 6'),
    ('a.npz', {'train': np.array([{}])}, 'a.npz cannot be read as integers: .*pickled'),
    ('a.npy --shape=2x4', GRIDS, 'as 8x8, .*: got shape=.2x4. .* for rows of 6'),
    ('a.npy --shape=2x3', GRIDS[0], 'as 8x8, .* for a stream'),
    ('a.npy --shape=2x3x', GRIDS, 'HxW, as 8x8'),
    ('a.npy --end=9', GRIDS, 'of a stream: got .* end=9 for rows of 6'),
    ('a.npy --end=-1', GRIDS[0], 'end=-1 for a stream'),
    ('a.npy', GRIDS[0, :1], 'train of a.npy, sha256 .* would be empty'),
    ('a.npy --vocabulary=few.txt', GRIDS, 'has the token 6, and there are only 3 tokens'),
    ('a.npy --vocabulary=twice.txt', GRIDS, 'each once and without blanks'),
    ('a.npz', {'train': GRIDS, 'val': GRIDS[:, :5]}, 'rows of one length'),
    ('a.npz --split=train', {'train': GRIDS}, 'names its splits itself'),
    ('a.npz', {'train': GRIDS, 'x': GRIDS}, 'a.npz has train, x'),
    ('a.npz', {'train': GRIDS, 'given_train': NO_GIVEN[:2]}, r'bools of shape \(4, 6\)'),
    ('a.npz', {'train': GRIDS, 'given': ~NO_GIVEN[0]}, 'leave something'),
]
NAMES_OF_TOKENS = {'few': 'a\nb\nc', 'twice': 'a\nb\na'}


@pytest.mark.parametrize('typed, content, said', BAD)
def test_a_wrong_source_is_one_line_and_leaves_nothing(script, typed, content, said):
    if 'bpe:300' in typed:
        pytest.importorskip('tokenizers')
    name, *words = typed.split()
    write(name, content)
    for file, names in NAMES_OF_TOKENS.items():
        write(f'{file}.txt', names)
    if not words or words[0].startswith('-'):  # else it names the data set
        words[:0] = ['tokens'] if '.np' in name else ['text', '--tokenizer=bytes', '--split=train']
    words[1:1] = [f'--source={name}', '--data_dir=out']
    found = script('data/prepare.py', *words, code=1).stderr
    assert re.search(said, found, re.MULTILINE)
    assert not glob.glob('out/*')


# ---- prepared sets: what is kept of them, and what is said of one that is damaged or missing


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """A folder with a set of each kind; to be copied."""
    folder = tmp_path_factory.mktemp('made')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        prepare(write('a.txt', 'some words of text, ' * 60))
        pairs = [{'prompt': f'{i}', 'text': 'a'} for i in range(20)]
        prepare(write('a.jsonl', lines_of(*pairs)), name='qa')
        names = write('names.txt', LETTERS)
        prepare_tokens('.', 'rows', write('a.npy', GRIDS), shape='2x3', vocabulary=names)
        prepare_puzzles('nae_sat', '.', n_rows=N_ROWS, n_latents=4, n_observations=4)
    return folder


@pytest.fixture
def four(made):
    shutil.copytree(made, '.', dirs_exist_ok=True)


TEXT = Meta('', 'bytes', 257, 256)
OWN = Meta('', 'own', 7)


def test_what_is_written_is_read_and_what_was_changed_is_refused(four):
    """One byte after the other is another one; spaces between fields say nothing."""
    meta = read_meta('rows')
    assert kind_of(meta) == replace(OWN, row_length=6, shape=[2, 3], vocabulary=[*'abcdefg'])
    path = Path('rows/meta.json')
    whole = path.read_bytes()
    write_meta('rows', meta)
    assert path.read_bytes() == whole
    for place in range(0, len(whole), 3):
        if not whole[place : place + 1].isspace():
            changed = bytearray(whole)
            changed[place] ^= 1
            path.write_bytes(changed)
            with one_line('damaged|cannot be read'):
                read_meta('rows')


# a line of a shell, the set and split that is opened behind it, and what is said
DAMAGED = [
    (':', 'books train', 'python data/prepare.py text --name=books --source=FILE'),
    (':', 'openwebtext train', 'python data/prepare.py openwebtext --data_dir=.$'),
    (':', 'ptb train', 'python data/prepare.py ptb --split=train --data_dir=.$'),
    (':', 'sudoku train', 'python -m anyorder.extras.puzzles make sudoku --data_dir=.$'),
    (':', 'pydocs test', 'prepare.py text --name=pydocs --source=FILE --split=test'),
    ('mv text pydocs; rm pydocs/val.bin', 'pydocs val', 'pydocs --force --data_dir=.$'),
    (':', '../x val', 'plain name'),
    ('mv text mine; rm mine/val.bin', 'mine val', 'val.bin; .* text --name=mine '),
    (
        'mv rows mine; rm mine/val.bin',
        'mine val',
        'tokens .--shape.*before. --name=mine .* --force ',
    ),
    ('rm nae_sat/val.bin', 'nae_sat val', 'nae_sat --seed=0 --n_latents=4 --n_observations=4 '),
    ('printf x >> text/val.bin', 'text val', 'no whole .*/val.bin; .* --force'),
    ('echo [] > text/meta.json', 'text val', 'cannot be read'),
]


def test_a_prompt_is_given_and_costs_nothing(four):
    """Its end of text is no byte."""
    text = open_corpus('qa', 99, Bytes(), '.', 'train')
    assert text.blocks[8:10].tolist() == [[*b'9a', 256, PADDING], [*b'11a', 256]]
    assert text.given[8:10].tolist() == [[True, False, False, True], [True, True, False, False]]
    assert text.n_bytes == len(text) == read_meta('qa').splits['train']['text_bytes'] == 18
    write('more.jsonl', '{"text": "no prompt"}')
    refused(('more.jsonl', 'or none', {'name': 'qa', 'split': 'test'}))


@pytest.mark.parametrize('line, opened, said', DAMAGED)
def test_a_set_that_is_damaged_or_missing_is_one_line(four, line, opened, said):
    subprocess.run(['sh', '-c', line], check=True)
    with one_line(said):
        open_split('.', *opened.split())
    if line.endswith('meta.json'):
        refused(('a.txt', 'text/meta.json', {'force': True}))
    if line.endswith('text/val.bin'):
        open_split('.', 'text', 'train')


def test_the_command_that_is_said_mends_a_set_of_ones_own(four, script):
    whole = Path('qa/train.bin').read_bytes()
    os.remove('qa/train.bin')
    with pytest.raises(ValueError) as e:
        open_split('.', 'qa', 'train')
    said = script(*str(e.value).replace('=FILE', '=a.jsonl').partition('python ')[2].split())
    assert f'sha256 {hashlib.sha256(whole).hexdigest()[:16]}..., from a.jsonl' in said.stdout
    assert Path('qa/train.bin').read_bytes() == whole


# ---- blocks


@pytest.mark.parametrize('n', [5, 3 * 2**30, 9_035_582_198])
def test_offsets_are_uniform_at_every_size(n):
    """By chi-square. 32 bits modulo 3 * 2^30 would fall twice as often into the first third."""
    torch.manual_seed(0)
    found = torch.from_numpy(uniform_below(n, 300_000))
    assert 0 <= found.min() <= found.max() < n
    n_cells = min(n, 60)
    counts = (found * n_cells // n).bincount(minlength=n_cells)
    assert chi2_of(counts, 1 / n_cells) < limit(n_cells - 1)


N = 9
END = 999
FORMS = {'stream': {}, 'given': {}, 'rows': {'row_length': N}, 'documents': {'prompts': True}}


def blocks_of(whole, size=N, form='stream'):
    """Return Blocks of tokens (id, whether it is given)."""
    tokens, given = map(np.array, zip(*whole))
    meta = Meta('mine', 'own', 2**15, END, given=bool(given.any()), **FORMS[form])
    return Blocks(Split(meta.pack(tokens, given), meta, 'val'), size)


def set_of(form, first=0):
    """Return Blocks of tokens from `first` on, these tokens, and the blocks by their definition. A
    token is (id, whether it is given)."""
    rng = np.random.default_rng(first)
    lengths = {'rows': [N] * 4, 'documents': rng.integers(2, 2 * N, 3 + first // 50)}
    rows = []
    for length in lengths.get(form, [40]):
        places = np.arange(length)
        given = places < 0
        if form == 'documents':
            given = places < rng.integers(min(length, N))
        elif form == 'given':
            given = places % 7 % 5 == 0
        rows.append([*zip((first + places).tolist(), given.tolist())])
        if form == 'documents':
            rows[-1][-1] = END, False
    whole = sum(rows, [])
    blocks = blocks_of(whole, N, form)
    if form in ('stream', 'given'):
        rows = [whole[m : m + N] for m in range(41 - N)]
    return blocks, whole, [padded(row[:N], blocks.width) for row in rows]


def padded(row, width):
    return tuple(row + [(PADDING, True)] * (width - len(row)))


def as_rows(found):
    """What set_of calls blocks, of (tokens, given)."""
    return [tuple(zip(*row)) for row in zip(*(x.tolist() for x in found))]


@pytest.mark.parametrize('piece', [1, 6, 7, 1000])
@pytest.mark.parametrize('form', FORMS)
def test_blocks_are_those_of_the_definition(monkeypatch, form, piece):
    """Also where a document, or a run of given tokens, goes on in the next chunk."""
    monkeypatch.setattr(sets, 'CHUNK', piece)
    torch.manual_seed(0)
    for first in range(0, 500, 100):
        blocks, whole, wanted = set_of(form, first)
        assert {*as_rows(random_blocks([blocks], 1000))} == {*wanted}
        if blocks.meta.is_stream:
            wanted = wanted[::N]
        assert as_rows(all_blocks(blocks)) == wanted
        assert as_rows(all_blocks(blocks, 2)) == [wanted[0], wanted[len(wanted) // 2]]
        longest = max(map(len, ''.join('01'[given] for _, given in whole).split('0')))
        if longest:
            with one_line(f'has {longest} given tokens in a row'):
                blocks_of(whole, longest, form)


@pytest.mark.parametrize('name', ['text', 'wikitext2'])
def test_to_prepare_a_set_takes_no_memory_of_its_size(name):
    write('a.txt', ('The quick brown fox jumps over the lazy dog again. ' * 200 + '\n') * 1000)
    tracemalloc.start()
    prepare('a.txt', name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * os.path.getsize('a.txt')


def test_rows_without_padding_need_no_mask():
    blocks = torch.tensor([[1, 2, 3], [5, 6, PADDING]])
    batch = Batch(blocks, blocks, n_visits=visits_of(blocks))
    assert batch.rows([0]).n_visits is None


def test_a_block_is_as_long_as_its_set_wants():
    whole = [(m, False) for m in range(18)]
    blocks_of(whole, 18)
    for size, form, said in ((19, 'stream', '=18 or less'), (8, 'rows', '=9'), (18, 'rows', '=9')):
        with one_line(f'block_size={size} does not fit: mine/val takes --block_size{said}$'):
            blocks_of(whole, size, form)


# ---- mixtures


@pytest.mark.parametrize('weights', [[7, 3], [5, 3, 2]])
@pytest.mark.parametrize('form', FORMS)
def test_rows_are_blocks_of_their_sets_by_their_shares_of_the_tokens(form, weights):
    """Without weights sets are read as if they were one."""
    found = [set_of(form, 100 * k) for k in range(len(weights))]
    mixed_sets = [blocks for blocks, *_ in found]
    set_shares(mixed_sets, weights)
    torch.manual_seed(0)
    tokens, given = random_blocks(mixed_sets, 20_000)
    n = (tokens != PADDING).sum(1)
    for k, (*_, rows) in enumerate(found):
        mine = tokens[:, 0] // 100 == k
        assert float(n[mine].sum() / n.sum()) == pytest.approx(weights[k] / 10, abs=0.01)
        wanted = {padded([*row], tokens.size(1)) for row in rows}
        assert {*as_rows([tokens[mine], given[mine]])} == wanted
    set_shares(mixed_sets, [None] * len(found))
    n_disjoint = np.array([blocks.n_disjoint for blocks in mixed_sets])
    assert [blocks.chance for blocks in mixed_sets] == pytest.approx(n_disjoint / n_disjoint.sum())


def test_tokens_are_counted_by_the_shares_and_of_many_some_of_all_parts(monkeypatch):
    both = [
        blocks_of([(0, False)] * 90 + [(1, False)] * 10),
        blocks_of([(2, False), (2, True)] * 49 + [(2, False), (3, True)]),
    ]
    assert counts_of(both[:1])[:5].tolist() == [90, 10, 0, 0, 0]
    set_shares(both, [0.9, 0.1])
    assert counts_of(both)[:5].tolist() == [162, 18, 20, 1, 0]
    monkeypatch.setattr(sets, 'COUNTED', 640)
    monkeypatch.setattr(sets, 'CHUNK', 10)
    parts = [(m // 1000, False) for m in range(64_000)]  # one tenth of the places in each
    assert (blocks_of(parts).count()[:64] == 10).all()


def prepare_digits(digits):
    prepare(write('digits.txt', digits * 600), data_dir='data', name='digits', force=True)


def test_a_run_of_two_sets_keeps_and_says_what_each_is(data, script, capsys):
    prepare_digits('3.1415926535 8979323846 ')
    run('--dataset=pydocs:7,digits:3', '--max_iters=1')
    last = log()[-1]
    mean = 0.7 * last['val_pydocs_any'] + 0.3 * last['val_digits_any']
    assert last['val_any'] == pytest.approx(mean, rel=1e-12)
    kept = load_checkpoint('out/ckpt.pt')
    metas = [read_meta(f'data/{name}') for name in ('pydocs', 'digits')]
    assert kept['sets'] == {meta.name: meta.splits for meta in metas}
    assert Meta(**kept['set']) == mixed(metas)

    # It goes on by names in another order, and says which set is another
    prepare_digits('2.7182818284 ')
    capsys.readouterr()
    run('--init_from=resume', '--dataset=digits:3,pydocs:7', '--max_iters=1')
    assert ', train and val of digits\n' in capsys.readouterr().out
    said = script('eval_ppl.py', '--n_blocks=2').stdout
    assert 0 < said.index('pydocs (val)') < said.index('digits (val)')
    assert 'train and val of digits;' in said
    assert 'of pydocs;' not in said


WEIGHTS = {  # that are none, and what is said
    'a:0.7,b': 'a weight above 0',
    'a:0,b:1': 'a weight above 0',
    'a:1,b:inf': 'a weight above 0',
    'a:1:2,b:1': 'a weight above 0',
    'a:1,b:1,a:2': 'each set once',
    '': 'plain name',
    'a:1,../b:1': 'plain name',
}


def test_weights_are_shares():
    assert weights_in('a:2, b :6') == {'a': 2, 'b': 6}
    assert shares_of([1e308, 1e308]).tolist() == [0.5, 0.5]
    assert names_of_run({'dataset': 'a:of old,,../b'}) == ['a', '../b']
    assert (only_set_of({'dataset': 'a'}), only_set_of({})) == ('a', '')
    with one_line('trained on a and b'):
        only_set_of({'dataset': 'a:2, b:6'})
    for text, said in WEIGHTS.items():
        with one_line(said):
            weights_in(text)


@pytest.mark.parametrize(
    'one, other, said',
    [
        (OWN, TEXT, 'a and b cannot be mixed, .* differ in .*tokenizer'),
        (OWN, replace(OWN, row_length=6), 'differ in row_length'),
        (TEXT, replace(TEXT, prompts=True), 'differ in prompts'),
        (OWN, replace(OWN, eos=1), 'differ in eos'),
        (replace(OWN, given=True, puzzle={'seed': 0}), replace(OWN, puzzle={'seed': 1}), ''),
    ],
)
def test_sets_are_mixed_only_with_their_like(one, other, said):
    metas = [replace(one, name='a'), replace(other, name='b')]
    if said:
        with one_line(said):
            mixed(metas)
    else:
        assert mixed(metas) == replace(one, puzzle=None)
