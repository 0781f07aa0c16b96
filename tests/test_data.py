"""Sources to prepared sets: formats, splits, and what is said of one that is missing or broken.

All tests run in an empty folder of their own."""

import bz2
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from conftest import ROOT, one_line

from anyorder.datasets import open_split
from anyorder.tokens import prepared as p
from anyorder.tokens.benchmarks import WIKITEXT
from anyorder.tokens.meta import SplitMeta, read_meta
from anyorder.tokens.sources import name_source, open_source, pydocs
from anyorder.tokens.tokenizers import GPT2, Bytes

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


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HOME', str(tmp_path))


def write(path, content):
    """Write a text or bytes as it is; returns the path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
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
    return p.prepare(data_set, data_dir, source=source, tokenizer=tokenizer, **how)


def read(split, folder='text'):
    """The documents of a split in bytes."""
    tokens = np.fromfile(f'{folder}/{split}.bin', '<u2')
    return Bytes().decode(tokens.tolist()).split('<|endoftext|>')[:-1]


def gpt2():
    try:
        return GPT2()
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')


# ---- what a source may be


@pytest.mark.parametrize('prompt', ['prompt', 'question', ''])
@pytest.mark.parametrize('text', ['text', 'question'])
def test_all_kinds_of_rows_are_the_same_documents(text, prompt):
    keys = {'text_key': text, 'prompt_key': 'auto' if prompt == 'prompt' else prompt}
    wanted = [(row[prompt], row[text]) if prompt else row[text] for row in ROWS]
    for name in NAMES.split():
        origin, documents = open_source(write_rows(name), '', **keys)
        other = open_source(name, '', text, 'text')[0]
        assert origin != other != open_source(name, '', 'prompt', 'text')[0]
        found = documents['']
        assert [*found] == [*found] == wanted  # read anew
        assert len(found) == len(wanted)
        if not prompt:
            prepare(name, split='train', force=True, **keys).splits['train'].source.encode()
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


def test_a_link_in_a_folder_to_nothing_is_an_error():
    write('texts/a.txt', 'a text')
    os.symlink('none.txt', 'texts/z.txt')
    with pytest.raises(FileNotFoundError, match='z.txt'):
        prepare('texts')


LONG = 'The end \n\n  of it.\r\n' * 9


@pytest.mark.parametrize(
    'text, documents',
    [
        ('a<|endoftext|>b', ['a', 'b']),
        ('<|endoftext|>a<|endoftext|>\n', ['a']),
        ('a\n<|endoftext|>\n b', ['a\n', '\n b']),
        (f'{LONG}<|endoftext|>{LONG}<|endoftext|>', [LONG, LONG]),
        ('<|endoftext|>' * 3 + 'a', ['a']),
        ('a <|endoftext> b<|endoftext', ['a <|endoftext> b<|endoftext']),
        (' \n', [' \n']),
        (LONG, [LONG]),
    ],
)
def test_an_end_of_text_ends_a_document(monkeypatch, text, documents):
    write('a.jsonl', lines_of({'text': text}))
    write('a.txt.xz', lzma.compress(text.encode()))
    write('a/a.txt', text)
    for piece in (1, 40):
        monkeypatch.setattr('anyorder.tokens.sources.PIECE', piece)
        for name in ('a.jsonl', 'a.txt.xz', 'a'):
            found = open_source(name, '')[1]['']
            assert ''.join(found) == ''.join(documents)
            meta = prepare(name, split='test', force=True)
            assert meta.splits['test'].rows == len(found) == len(documents)
            assert read('test') == documents


def test_a_lone_text_is_cut_and_read_in_pieces_as_the_whole(monkeypatch):
    text = LONG + 'Grüße, 中文。 ' * 7
    write('a.txt', text)
    cut = int(len(text) * 0.9)
    for tok in (Bytes(), gpt2()):
        for piece in (1, 10, cut, 1 << 17):
            monkeypatch.setattr('anyorder.tokens.sources.PIECE', piece)
            prepare('a.txt', tokenizer=tok.name, force=True)
            for split, part in {'train': text[:cut], 'val': text[cut:]}.items():
                tokens = np.fromfile(f'text/{split}.bin', '<u2')
                assert [*tokens] == [*tok.encode(part), tok.eos]


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


def test_pydocs_are_the_docstrings_of_a_library_once(tmp_path, monkeypatch):
    for path, text in MODULES.items():
        write(path, text)
    monkeypatch.setattr('sysconfig.get_path', lambda name: str(tmp_path))
    monkeypatch.setattr('pydoc_data.topics.topics', {'z': '  last', 'b': 'first', 'c': 'first'})
    assert pydocs() == [
        'first',
        'last',
        f'{LONG_TEXT}.',
        f'{LONG_TEXT}, of b.',
        f'{LONG_TEXT}:\n\nindented',
    ]


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
    assert prepare(source, name).splits['test'].rows == len(rows)
    assert read('test', name) == [*rows.values()]


def test_a_rule_may_fit_across_two_pieces_of_a_row():
    pieces = p.Detokenized([p.Begun('a @-'), p.Begun('@ b '), ', c', 'd @,@ e'], WIKITEXT)
    assert [*pieces] == [*pieces] == ['a-b, c', 'd,e']  # read anew


# ---- what a set is


def state():
    """Bytes and times of the files of the set."""
    return [(path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(Path('text').iterdir())]


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


def test_documents_are_divided_once_and_what_is_said_of_them_is_so(sources):
    meta = prepare('a.jsonl')
    assert sorted(read('train') + read('val')) == sorted(TEXTS)
    assert len(read('val')) == 2
    assert read_meta('text') == meta == prepare('~/a.jsonl', data_dir='~/elsewhere')
    open_split('~/elsewhere', 'text', 'train')
    for split, info in meta.splits.items():
        raw = Path(f'text/{split}.bin').read_bytes()
        n = len(raw) // 2
        n_rows = len(read(split))
        sha256 = hashlib.sha256(raw).hexdigest()
        assert info == SplitMeta(n_rows, n, n - n_rows, sha256, name_source('a.jsonl'))


def test_a_second_run_does_nothing_unless_it_is_forced(sources):
    prepare('a.jsonl')
    first = read('val')
    before = state()
    prepare('a.jsonl', tokenizer='')
    assert state() == before
    refused(
        ('a.jsonl', '--force', {'tokenizer': 'gpt2'}),
        ('other/a.jsonl', '--force', {}),
        ('other/a.jsonl', '--force', {'split': 'val'}),
        ('bad.jsonl', 'row 31 .* in valid Unicode', {'force': True}),
    )
    write('text/val.bin', b'')
    refused(
        ('a.jsonl', 'is the source of train already', {'split': 'val'}),
        ('a.jsonl', 'holds train already', {}),
    )
    prepare('a.jsonl', force=True)
    assert read('val') == first


def test_force_replaces_what_is_named_and_a_link_and_not_what_it_leads_to(sources):
    prepare('a.jsonl')
    os.rename('text/val.bin', 'theirs')
    os.symlink('../theirs', 'text/val.bin')
    n = os.path.getsize('theirs')
    prepare('other/a.jsonl', split='val', force=True)
    assert os.path.getsize('theirs') == n
    assert read('val') == ['other', 'texts']
    assert len(read('train')) == 18
    prepare('other/a.jsonl', force=True)
    assert len(read('train')) == 1


def test_a_second_split_is_added_not_written_over(sources):
    prepare('a.jsonl', split='train')
    refused(
        ('a.jsonl', 'holds train already', {}),
        ('a.jsonl', 'is the source of train already', {'split': 'val'}),
        (
            'other/a.jsonl',
            'holds train in the tokenizer bytes',
            {'split': 'val', 'tokenizer': 'gpt2'},
        ),
    )
    missing = {'text': '--split=val', '../x': 'plain name'}
    for name, said in missing.items():
        with one_line(said):
            open_split('.', name, 'val')
    prepare('other/a.jsonl', split='val', tokenizer='')
    assert (read('train'), read('val')) == (TEXTS, ['other', 'texts'])


# ---- data sets of the hub


def texts_of(name):
    return [f'{name} {i}' for i in range(9)]


def save_sets(names):
    """Save a data set of these splits to `set`, and to `owner/set`, which `datasets` takes for the
    repository of the hub."""
    sets = datasets.DatasetDict()
    os.makedirs('owner/set')
    for name in names.split():
        sets[name] = datasets.Dataset.from_dict({'text': texts_of(name)})
        sets[name].to_parquet(f'owner/set/{name}.parquet')
    sets.save_to_disk('set')


@pytest.mark.parametrize(
    'names, split, wanted',
    [
        ('train test', '', {'': 'train'}),
        ('train validation test', '', {'train': 'train', 'val': 'validation'}),
        ('train validation', 'val', {'val': 'validation'}),
        ('extra', '', {'': 'extra'}),
        ('train test', 'test', {'test': 'test'}),
        ('train test', 'val', None),
        ('test validation', '', None),
    ],
)
def test_splits_of_a_data_set_of_its_own(tmp_path, monkeypatch, names, split, wanted):
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'cache')
    save_sets(names)
    for source in ('set', 'hf:owner/set'):
        if wanted is None:
            with one_line(f'{source} has the splits .*: name one of them by --split'):
                open_source(source, split)
            continue
        origin, documents = open_source(source, split)
        assert origin.startswith(f'{source}, fingerprint ')
        assert origin == open_source(source, split)[0]
        found = {s: [*texts] for s, texts in documents.items()}
        assert found == {s: texts_of(name) for s, name in wanted.items()}


def test_splits_of_one_data_set_stand_beside_each_other():
    save_sets('train test')
    prepare('set')
    prepare('set', split='test')
    assert read('test') == texts_of('test')
    refused(('set', 'is the source of val already', {'split': 'train', 'force': True}))


def test_named_sets_go_through_datasets(monkeypatch):
    asked = []

    def load_dataset(repository, name, split, revision=None, **options):
        """The hub, of which OpenWebText is still a script."""
        asked.append((name, split, revision))
        if name:
            return {'text': ['', f' = {split} = \n']}
        if revision is None:
            raise RuntimeError('Dataset scripts are no longer supported')
        return datasets.Dataset.from_dict({'text': TEXTS})

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    for name in ('wikitext2', 'wikitext2', 'openwebtext'):  # the second time all is there
        prepare('', name)
    wikitext = 'wikitext-2-raw-v1'
    script = [(None, 'train', None), (None, 'train', 'refs/convert/parquet')]
    assert asked == [(wikitext, 'test', None), (wikitext, 'train', None), *script]
    assert read('train', 'wikitext2') == ['', ' = train =\n']
    assert len(read('val', 'openwebtext')) == 1
    assert sorted(read('train', 'openwebtext') + read('val', 'openwebtext')) == sorted(TEXTS)


# ---- bad input

EIGHT = 8 * '{"prompt": "a", "text": "b"}\n\n'  # so that the next one is row 17

# (name of a source, what is in it, options, what is said)
BAD = [
    ('a.jsonl', '{"text": "a"}\n{"txt": "b"}\n', {}, 'row 2'),
    ('a.jsonl', 'not json\n', {}, 'row 1'),
    ('a.jsonl', '[' * 20000, {}, 'row 1'),
    ('a.jsonl', '{"text": ""}\n', {}, 'no text'),
    ('a.jsonl', '{"text": "a\\ud800"}\n', {}, 'Unicode'),
    ('a.jsonl', b'\xff\xfe\n', {}, 'cannot be read'),
    ('a.jsonl', '', {}, 'no text'),
    ('a.jsonl', EIGHT + '{"text": "b"}', {}, "row 17 .* ..text'., .* is ..prompt', 'text'."),
    ('a.jsonl', '{"text": "b"}\n' + EIGHT, {}, "row 2 .* ..prompt', 'text'., .* is ..text'."),
    ('a.jsonl', EIGHT + '{"prompt": "a", "text": ""}', {}, 'row 17 of .* its text is empty'),
    ('a.jsonl', EIGHT + '{"prompt": 5, "text": "b"}', {}, 'prompt in row 17 of .* a string'),
    ('a.jsonl', EIGHT + '{"prompt": "a", "text": null}', {}, 'text in row 17 of .* a string'),
    ('a.jsonl', EIGHT, {'text_key': ''}, "row 1 .* is ..prompt', ''."),
    ('a.jsonl', EIGHT, {'prompt_key': 'ask'}, 'row 1 of a.jsonl has the fields'),
    ('a.jsonl', '{"prompt": "a", "text": "b<|endoftext|>c"}', {}, 'row 1 .*endoftext'),
    ('a.jsonl', '{"prompt": "a<|endoftext|>", "text": "b"}', {}, 'row 1 .*endoftext'),
    ('a.csv', 'text\na\nb, c\n', {}, 'row 2 of .* put texts with commas in quotes'),
    ('a.csv', 'text,x\na,b\nc\n', {'text_key': 'x'}, 'x in row 2'),
    ('a.csv', 'text\n"a\n', {}, 'cannot be read as text'),
    ('a.jsonl.xz', lzma.compress(os.urandom(30000))[:9000], {}, 'cannot be read'),
    ('a.parquet', 'PAR1 and no more', {}, 'a.parquet cannot be read as a .parquet'),
    ('a.yaml', '', {}, 'must end in .txt'),
    ('a/b.txt', '', {'source': 'a'}, 'no file a'),
    ('a/b.txt', 'text', {'source': 'a', 'prompt_key': 'x'}, 'text without fields'),
    ('a.txt', '', {'source': 'none.txt'}, 'no file'),
    ('a.txt', '', {'source': '', 'split': ''}, '--source=FILE'),
    ('a.txt', '', {'source': 'hf:owner/none'}, 'cannot load owner/none from the Hugging Face hub'),
    ('a.txt', 'a', {'split': '../x'}, 'plain name'),
    ('a.txt', 'a', {'name': 'a/b'}, 'plain name'),
    ('a.txt', 'a', {'tokenizer': 'char'}, 'tokenizer must be bytes, gpt2, tiktoken:NAME'),
    ('a.txt', 'a', {'data_dir': ''}, '--data_dir must name a folder'),
    ('a.txt', 'a', {'data_set': 'pydocs'}, 'no --source'),
]


@pytest.mark.parametrize('name, content, how, said', BAD)
def test_bad_sources_are_one_line_and_leave_nothing(name, content, how, said):
    write(name, content)
    for split in ('', 'train'):
        with one_line(said):
            prepare(**{'source': name, 'data_dir': 'out', 'split': split} | how)
    assert not glob.glob('out/*')


@pytest.mark.parametrize('typed', ['openwebtext', 'wikitext2', 'wikitext2 --split=train'])
def test_a_set_of_the_hub_without_a_network_names_its_command(monkeypatch, typed):
    def load_dataset(*args, **options):
        raise ConnectionError('no\nroute')

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    data_set, _, split = typed.partition(' --split=')
    with one_line(f'python data/prepare.py {typed}, or'):
        prepare('', data_set, split=split)


# ---- memory

MEASURED = """
import re
import sys
root, path, tokenizer, data_set = sys.argv[1:]
sys.path.insert(0, root)
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.prepared import prepare
if data_set == 'tokens':
    prepare_tokens('.', source=path, force=True)
else:
    prepare(data_set, '.', source=path, tokenizer=tokenizer, force=True)
with open('/proc/self/status') as f:
    print(re.search(r'VmHWM:\\s+(\\d+) kB', f.read())[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind, tokenizer, data_set',
    [('txt', 'gpt2', 'text'), ('raw', 'bytes', 'wikitext2'), ('npy', 'bytes', 'tokens')],
)
def test_memory_grows_by_a_share_of_the_file(kind, tokenizer, data_set):
    gpt2()
    peaks = []
    for megabytes in (2, 22):
        path = f'{megabytes}.{kind}'
        if kind == 'npy':
            np.save(path, np.arange(megabytes * 500_000, dtype='<u2') % 1000)
        else:
            write(path, 'The quick brown fox jumps over the lazy dog again\n' * megabytes * 20_000)
        command = [sys.executable, '-c', MEASURED, ROOT, path, tokenizer, data_set]
        peaks.append(int(subprocess.check_output(command).split()[-1]) * 1024)
    assert peaks[1] - peaks[0] < {'npy': 26e6}.get(kind, 1e7)
