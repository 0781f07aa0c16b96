"""Sources to prepared sets: formats, splits, and what is said of a source that is missing or broken."""

import bz2
import csv
import gzip
import hashlib
import json
import lzma
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, one_line

from anyorder.datasets import open_split
from anyorder.tokens import prepared as p
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.benchmarks import WIKITEXT
from anyorder.tokens.duplicates import Hashes
from anyorder.tokens.meta import SplitMeta, read_meta
from anyorder.tokens.puzzles import prepare_puzzles
from anyorder.tokens.sources import from_hub, name_source, open_source, pydocs
from anyorder.tokens.tokenizers import GPT2, Bytes, get_tokenizer

TEXTS = ['Grüße, Welt.\n', 'a second "document"', '', 'three\nlines\r\nhere'] + [
    f'document {i}' for i in range(16)
]


def need_gpt2():
    try:
        GPT2()
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / 'texts.jsonl'
    path.write_text(''.join(json.dumps({'title': 'x', 'text': t}) + '\n' for t in TEXTS))
    return path


def read_documents(directory, split):
    tokens = np.fromfile(os.path.join(directory, f'{split}.bin'), dtype='<u2')
    documents = np.split(tokens, np.flatnonzero(tokens == 256) + 1)[:-1]
    return [Bytes().decode(d.tolist()).removesuffix('<|endoftext|>') for d in documents]


def test_a_source_and_a_set_in_the_home_folder(jsonl, tmp_path, monkeypatch):
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    monkeypatch.setenv('HOME', str(tmp_path))
    np.save(tmp_path / 'rows.npy', np.arange(12).reshape(4, 3))
    (tmp_path / 'names.txt').write_text('\n'.join('abcdefghijkl'))
    p.prepare('text', '~/sets', name='mine', source='~/texts.jsonl', tokenizer='bytes')
    prepare_tokens('~/sets', 'rows', '~/rows.npy', vocabulary='~/names.txt')
    prepare_puzzles('sudoku4', '~/sets', n_rows={'train': 3, 'val': 2, 'test': 2})
    for name in ('mine', 'rows', 'sudoku4'):
        open_split('~/sets', name, 'train')
    there = [name for name in os.listdir(tmp_path / 'sets') if not name.endswith('.lock')]
    assert os.listdir() == [] and sorted(there) == ['mine', 'rows', 'sudoku4']


def test_a_set_replaces_links_and_leaves_what_they_lead_to(jsonl, tmp_path):
    p.prepare('text', tmp_path, name='theirs', source=str(jsonl), tokenizer='bytes')
    before = {
        name: (tmp_path / 'theirs' / name).read_bytes()
        for name in ('train.bin', 'val.bin', 'meta.json')
    }
    (tmp_path / 'mine').mkdir()
    for name in before:
        (tmp_path / 'mine' / name).symlink_to(f'../theirs/{name}')
    jsonl.write_text('{"text": "another"}\n' * 30)
    p.prepare('text', tmp_path, name='mine', source=str(jsonl), tokenizer='bytes', force=True)
    assert {name: (tmp_path / 'theirs' / name).read_bytes() for name in before} == before
    assert not any((tmp_path / 'mine' / name).is_symlink() for name in before)


def test_documents_are_divided_once_and_come_back(jsonl, tmp_path):
    meta = p.prepare('text', tmp_path, name='mine', source=str(jsonl), tokenizer='bytes')
    train, val = (read_documents(tmp_path / 'mine', s) for s in ('train', 'val'))
    assert sorted(train + val) == sorted(TEXTS) and len(val) == 2
    for split, texts in (('train', train), ('val', val)):
        s, raw = meta.splits[split], (tmp_path / 'mine' / f'{split}.bin').read_bytes()
        assert s == SplitMeta(
            len(texts),
            len(raw) // 2,
            len(raw) // 2 - len(texts),
            hashlib.sha256(raw).hexdigest(),
            name_source(jsonl),
        )
    assert read_meta(tmp_path / 'mine') == meta
    again = p.prepare(
        'text', tmp_path / 'elsewhere', name='mine', source=str(jsonl), tokenizer='bytes'
    )
    assert again == meta


@pytest.mark.parametrize(
    'opener, ending', [(gzip.open, 'gz'), (lzma.open, 'xz'), (bz2.open, 'bz2')]
)
def test_packed_files_and_given_splits(jsonl, tmp_path, opener, ending):
    with opener(f'{jsonl}.{ending}', 'wb') as f:
        f.write(jsonl.read_bytes())
    p.prepare('text', tmp_path, source=f'{jsonl}.{ending}', split='train', tokenizer='bytes')
    (tmp_path / 'v.txt').write_text('held out\n\nin one piece')
    meta = p.prepare(
        'text', tmp_path, source=str(tmp_path / 'v.txt'), split='val'
    )  # in the tokenizer of the folder
    assert read_documents(tmp_path / 'text', 'train') == TEXTS
    assert read_documents(tmp_path / 'text', 'val') == ['held out\n\nin one piece']
    assert meta.splits.keys() == {'train', 'val'} and meta.tokenizer == 'bytes'


def test_a_document_alone_is_cut(tmp_path):
    (tmp_path / 'one.txt').write_text('0123456789' * 10)
    p.prepare('text', tmp_path, source=str(tmp_path / 'one.txt'), tokenizer='bytes')
    assert [read_documents(tmp_path / 'text', s) for s in ('train', 'val')] == [
        ['0123456789' * 9],
        ['0123456789'],
    ]


def test_a_second_run_does_nothing_unless_forced(jsonl, tmp_path):
    def times():
        return {
            f: os.stat(tmp_path / 'text' / f).st_mtime_ns for f in os.listdir(tmp_path / 'text')
        }

    p.prepare('text', tmp_path, source=str(jsonl), tokenizer='bytes')
    before = times()
    p.prepare('text', tmp_path, source=str(jsonl), tokenizer='bytes')
    p.prepare('text', tmp_path, source=str(jsonl))
    assert before == times()
    (tmp_path / 'other').mkdir()
    other = tmp_path / 'other' / 'texts.jsonl'  # the same name, another file
    other.write_text('{"text": "other"}\n{"text": "texts"}\n')
    for different in (
        dict(source=str(jsonl), tokenizer='gpt2'),
        dict(source=str(other)),
        dict(source=str(other), split='val'),
    ):
        with pytest.raises(ValueError, match='--force'):
            p.prepare('text', tmp_path, **different)
    assert before == times()
    p.prepare('text', tmp_path, source=str(other), split='val', force=True)
    assert read_documents(tmp_path / 'text', 'val') == ['other', 'texts']
    assert len(read_documents(tmp_path / 'text', 'train')) == 18
    p.prepare('text', tmp_path, source=str(other), tokenizer='bytes', force=True)
    assert len(read_documents(tmp_path / 'text', 'train')) == 1


def test_a_second_split_is_added_not_written_over(jsonl, tmp_path):
    p.prepare('text', tmp_path, source=str(jsonl), split='train', tokenizer='bytes')
    with pytest.raises(ValueError, match='--split=val'):
        open_split(tmp_path, 'text', 'val')
    with pytest.raises(ValueError, match='holds train already'):
        p.prepare('text', tmp_path, source=str(jsonl))
    with pytest.raises(ValueError, match='is the source of train already'):
        p.prepare('text', tmp_path, source=str(jsonl), split='val')
    (tmp_path / 'more.jsonl').write_text('{"text": "other text"}')
    meta_path = tmp_path / 'text' / 'meta.json'
    meta = meta_path.read_text()
    meta_path.write_text(
        json.dumps(json.loads(meta) | {'tokenizer': 'gpt2', 'n_tokens': 50257, 'eos': 50256})
    )
    with pytest.raises(
        ValueError,
        match='holds train in the tokenizer gpt2, not bytes: one folder has one tokenizer',
    ):
        p.prepare(
            'text', tmp_path, source=str(tmp_path / 'more.jsonl'), split='val', tokenizer='bytes'
        )
    meta_path.write_text(meta)
    p.prepare('text', tmp_path, source=str(tmp_path / 'more.jsonl'), split='val')
    assert read_documents(tmp_path / 'text', 'train') == TEXTS
    assert read_documents(tmp_path / 'text', 'val') == ['other text']


@pytest.mark.parametrize(
    'content, said',
    [
        (b'{"text": "a"}\n{"txt": "b"}\n', 'row 2'),
        (b'not json\n', 'row 1'),
        (b'[' * 20000, 'row 1'),
        (b'{"text": 3}\n', 'row 1'),
        (b'{"text": ""}\n', 'no text'),
        (b'{"text": "a\\ud800"}\n', 'Unicode'),
        (b'\xff\xfe\n', 'cannot be read'),
        (b'', 'no text'),
    ],
)
def test_broken_sources_leave_nothing_behind(tmp_path, content, said):
    (tmp_path / 'bad.jsonl').write_bytes(content)
    for split in (None, 'train'):
        with pytest.raises(ValueError, match=said):
            p.prepare(
                'text',
                tmp_path / 'out',
                source=str(tmp_path / 'bad.jsonl'),
                split=split,
                tokenizer='bytes',
            )
    assert [f for _, _, files in os.walk(tmp_path / 'out') for f in files] == []


def test_a_failed_replacement_leaves_the_old_set(jsonl, tmp_path):
    def files():
        return {f: (tmp_path / 'text' / f).read_bytes() for f in os.listdir(tmp_path / 'text')}

    p.prepare('text', tmp_path, source=str(jsonl), tokenizer='bytes')
    before = files()
    (tmp_path / 'bad.jsonl').write_text('{"text": "fine"}\n' * 30 + '{"text": "\\ud800"}\n' * 30)
    with pytest.raises(ValueError, match='row 31 .* in valid Unicode'):
        p.prepare(
            'text', tmp_path, source=str(tmp_path / 'bad.jsonl'), tokenizer='bytes', force=True
        )
    assert files() == before
    with pytest.raises(ValueError, match='row 31'):
        p.prepare(
            'text', tmp_path, name='other', source=str(tmp_path / 'bad.jsonl'), tokenizer='bytes'
        )
    assert not (tmp_path / 'other').exists()
    (tmp_path / 'text' / 'val.bin').write_bytes(b'')  # a damaged file is made again
    with pytest.raises(ValueError, match='is the source of train already'):
        p.prepare('text', tmp_path, source=str(jsonl), split='val', tokenizer='bytes')
    with pytest.raises(ValueError, match='holds train already'):
        p.prepare('text', tmp_path, source=str(jsonl), tokenizer='bytes')
    p.prepare('text', tmp_path, source=str(jsonl), tokenizer='bytes', force=True)
    assert files() == before
    for wrong in (dict(split='../x'), dict(name='a/b')):
        with pytest.raises(ValueError, match='plain name'):
            p.prepare('text', tmp_path, source=str(jsonl), **wrong)
    with pytest.raises(ValueError, match='plain name'):
        open_split(tmp_path, '../x', 'train')
    with pytest.raises(ValueError, match='no --source'):
        p.prepare('pydocs', tmp_path, source=str(jsonl))


@pytest.mark.parametrize(
    'args, said',
    [
        ([], 'name one of pydocs, text'),
        (['pydos'], "'pydos' is none of pydocs, text"),
        (['pydos'], "the nearest is 'pydocs'"),
        (['text', 'pydocs'], 'got text pydocs'),
        (['text', '--sourc=x'], "nearest is 'source'"),
        (['text', '--tokenizer=char'], 'tokenizer must be bytes or gpt2'),
        (['text'], '--source=FILE'),
        (['text', '--source=.'], 'no file ., and no folder'),
        (['pydocs', '--data_dir='], "--data_dir must name a folder that can be written to, got ''"),
        (['text', '--source'], '--source needs a value'),
        (['text', '--source=none.txt', '--name=../x'], 'plain name'),
    ],
)
def test_command_line_errors_are_one_line(script, args, said):
    p = script('data/prepare.py', *args, code=1)
    assert said in p.stderr and p.stderr.count('\n') == 1


def test_truncated_archives_and_wrong_names(jsonl, tmp_path):
    with lzma.open(f'{jsonl}.xz', 'wb') as f:
        f.write(os.urandom(30000).hex().encode())
    with open(f'{jsonl}.xz', 'r+b') as f:
        f.truncate(9000)
    for source, said in (
        (f'{jsonl}.xz', 'cannot be read'),
        ('none.txt', 'no file'),
        (None, '--source'),
        (__file__, 'must end in'),
    ):
        with pytest.raises(ValueError, match=said):
            p.prepare('text', tmp_path, source=source, tokenizer='bytes')
    with pytest.raises(ValueError, match='data set must be one of pydocs'):
        p.prepare('pidocs', tmp_path)


def test_pydocs_are_the_docstrings_of_a_library_once(tmp_path, monkeypatch):
    long = 'A docstring of more than forty letters, in English'
    for path, text in (
        ('b.py', f'"""{long}, of b."""\ndef f():\n    """{long}."""\n'),
        ('a.py', f'class A:\n    """{long}."""\n'),
        ('a/z.py', '"""Too short."""\n'),
        ('a/broken.py', 'def f(:\n'),
        ('a/latin.py', '# \\xe4'),
        ('test/t.py', f'"""{long}, of a test."""\n'),
        ('site-packages/x.py', f'"""{long}, of others."""\n'),
        ('a/y.py', f'async def f():\n    """{long}:\n\n        indented\n    """\n'),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr('sysconfig.get_path', lambda name: str(tmp_path))
    monkeypatch.setattr('pydoc_data.topics.topics', {'z': '  last', 'b': 'first', 'c': 'first'})
    assert pydocs() == ['first', 'last', f'{long}.', f'{long}, of b.', f'{long}:\n\nindented']


@pytest.mark.slow
def test_pydocs_are_english_enough_and_reproducible():
    documents = pydocs()
    assert documents == pydocs() and len(documents) == len(set(documents))
    assert sum(len(d) for d in documents) > 1_000_000 and sum(' the ' in d for d in documents) > 200


DETOKENIZED = {  # by the rules of the SEDD family, worked out by hand
    'wikitext2': [
        (' = = Cast = = \n', ' == Cast ==\n'),
        (' \n', ''),
        ('\n', ''),
        (
            ' The two @-@ time " best actor " ( 1 @,@ 000 @.@ 5 m ) \'s film , it was ; so : good . \n',
            ' The two-time "best actor" (1,000.5 m)\'s film, it was; so: good.\n',
        ),
    ],
    'ptb': [
        (
            " N N shares of <unk> 's stock do n't rise to $ N \n",
            "N 1 shares of ?'s stock don't rise to $ N",
        ),
        (' a N N N b \n', 'a 1 1 1 b'),
    ],
    'lm1b': [
        (
            '" We will , " he said . It \'s on http : / / x ? Yes ( sure ) !\n',
            '"We will," he said. It\'s on http://x? Yes (sure)!',
        )
    ],
    'lambada': [(' “ Come , ” she said\n', '\n" Come , " she said')],
}


@pytest.mark.parametrize('end', ['\n', '\r\n'])
@pytest.mark.parametrize('name', DETOKENIZED)
def test_zero_shot_rows_are_detokenized(tmp_path, name, end):
    rows = DETOKENIZED[name]
    (tmp_path / 'rows.txt').write_text(
        ''.join(row for row, _ in rows).replace('\n', end), newline=''
    )
    meta = p.prepare(name, tmp_path, source=str(tmp_path / 'rows.txt'), tokenizer='bytes')
    assert meta.splits['test'].rows == len(rows)
    assert read_documents(tmp_path / name, 'test') == [clean for _, clean in rows]


ROWS = [
    {'question': f'{i} + {i}', 'text': t, 'prompt': f'{i}, "\n?'}
    for i, t in enumerate(TEXTS[:2] + TEXTS[3:])
]


def write_rows(kind, path, rows=ROWS):
    """The rows as a source of this kind; returns its path."""
    import datasets

    table = datasets.Dataset.from_list(rows)
    path = str(path / f'rows.{kind}')
    match kind.split('.')[0]:
        case 'parquet':
            with open(path, 'wb') as f:
                table.to_parquet(f, batch_size=5)
        case 'csv' | 'jsonl':
            with {'gz': gzip.open, 'xz': lzma.open}.get(kind[-2:], open)(
                path, 'wt', newline='', encoding='utf-8'
            ) as f:
                writer = csv.DictWriter(f, rows[0])
                writer.writeheader() if kind.startswith('csv') else None
                for row in rows:
                    writer.writerow(row) if kind.startswith('csv') else f.write(
                        json.dumps(row) + '\n\n'
                    )
        case 'saved':
            table.save_to_disk(path, num_shards=2)
    return path


@pytest.mark.parametrize('kind', ['jsonl', 'csv', 'csv.gz', 'parquet', 'saved'])
def test_all_kinds_of_rows_are_the_same_documents(tmp_path, kind):
    path = write_rows(kind, tmp_path)
    answers, questions = [row['text'] for row in ROWS], [row['question'] for row in ROWS]
    for keys, wanted in (
        ({'prompt_key': ''}, answers),
        ({'text_key': 'question', 'prompt_key': ''}, questions),
        ({'prompt_key': 'question'}, list(zip(questions, answers))),
        ({}, [(row['prompt'], row['text']) for row in ROWS]),
    ):
        origin, documents = open_source(path, '', **keys)
        assert list(documents) == [''] and list(documents['']) == list(documents['']) == wanted
        assert len(documents['']) == len(wanted) and origin.startswith(f'rows.{kind}')
    assert (
        len(
            {
                open_source(path, '', text_key='question', prompt_key=key)[0]
                for key in ('', 'auto', 'text')
            }
        )
        == 3
    )
    with one_line(
        "row 1 of .* has the fields ..question', 'text', 'prompt'., but a document is ..prompt', 'txt'. in"
    ):
        list(open_source(path, '', text_key='txt')[1][''])
    p.prepare(
        'text', tmp_path, name='rows', source=path, split='train', tokenizer='bytes', prompt_key=''
    )
    assert read_documents(tmp_path / 'rows', 'train') == answers


@pytest.mark.parametrize(
    'rows, keys, said',
    [
        (
            [{'prompt': 'a', 'text': 'b'}] * 8 + [{'text': 'b'}],
            {},
            "row 17 .* ..text'., .* is ..prompt', 'text'.",
        ),
        (
            [{'text': 'b'}] * 8 + [{'prompt': 'a', 'text': 'b'}],
            {},
            "row 17 .* ..prompt', 'text'., .* is ..text'.",
        ),
        (
            [{'q': 'a', 'text': 'b'}] * 8 + [{'text': 'b'}],
            {'prompt_key': 'q'},
            "row 17 .* ..text'., .* is ..q', 'text'.",
        ),
        (
            [{'prompt': 'a', 'text': 'b'}] * 8 + [{'prompt': 'a', 'text': ''}],
            {},
            'row 17 of .* its text is empty',
        ),
        (
            [{'prompt': 'a', 'text': 'b'}] * 8 + [{'prompt': 5, 'text': 'b'}],
            {},
            'prompt in row 17 of .* a string',
        ),
        ([{'text': 'b'}] * 8 + [{'text': None}], {}, 'text in row 17 of .* a string'),
        ([{'prompt': 'a', 'text': 'b'}], {'text_key': ''}, "row 1 .* is ..prompt', ''."),
        (
            [{'prompt': 'a', 'completion': 'b'}],
            {},
            "row 1 .* the fields ..prompt', 'completion'., but",
        ),
    ],
)
def test_rows_without_a_prompt_or_a_text_are_told_by_their_line(tmp_path, rows, keys, said):
    path = tmp_path / 'rows.jsonl'
    path.write_text(''.join(json.dumps(row) + '\n\n' for row in rows))
    with one_line(said):
        list(open_source(str(path), '', **keys)[1][''])


def test_a_csv_whose_commas_are_not_quoted_is_told(tmp_path):
    for content, said in (
        ('text\na\nb, c\n', 'row 2 of .* put texts with commas in quotes'),
        ('text,x\na,b\nc\n', 'x in row 2'),
        ('text\n"a\n', 'cannot be read as text'),
    ):
        (tmp_path / 'rows.csv').write_text(content)
        with one_line(said):
            list(
                open_source(
                    str(tmp_path / 'rows.csv'), '', text_key='x' if ',x' in content else 'text'
                )[1]['']
            )


def test_a_folder_of_texts_is_a_document_each(tmp_path):
    folder = tmp_path / 'texts'
    for name in ('b.txt', 'a/c.txt', 'a/z.md'):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(f'text of {name}\n')
    p.prepare('text', tmp_path, name='set', source=f'{folder}/', split='train', tokenizer='bytes')
    assert read_documents(tmp_path / 'set', 'train') == ['text of a/c.txt\n', 'text of b.txt\n']
    before = name_source(folder)
    (folder / 'b.txt').rename(folder / 'd.txt')
    assert before.startswith('texts, sha256 ') and name_source(folder) != before
    with one_line('no file'):
        name_source(tmp_path / 'none')
    with one_line('text without fields'):
        p.prepare('text', tmp_path, source=str(folder), prompt_key='prompt')


def link_to_a_file(folder):
    os.symlink('a.txt', folder / 'z.txt')


def second_name_of_a_file(folder):
    os.link(folder / 'a.txt', folder / 'z.txt')


def link_to_a_folder(folder):
    os.symlink('deep', folder / 'again')


def links_to_parents(folder):
    os.symlink('..', folder / 'deep' / 'up')
    os.symlink(folder.parent, folder / 'deep' / 'out')
    (folder.parent / 'beside.txt').write_text('a text beside the source')


def link_to_a_text_elsewhere(folder):
    (folder / 'd.txt').rename(folder.parent / 'elsewhere.txt')
    os.symlink(folder.parent / 'elsewhere.txt', folder / 'd.txt')


def link_to_nothing(folder):
    os.symlink('none.txt', folder / 'z.txt')


def link_to_itself(folder):
    os.symlink('z.txt', folder / 'z.txt')


def pipe(folder):
    os.mkfifo(folder / 'z.txt')


def listener(folder):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.relpath(folder / 'z.txt'))


def empty_file(folder):
    (folder / 'z.txt').touch()


def endings_in_capitals(folder):
    (folder / 'd.txt').rename(folder / 'd.TXT')


def folder_named_like_a_text(folder):
    (folder / 'notes.txt').mkdir()
    (folder / 'd.txt').rename(folder / 'notes.txt' / 'd.Txt')


def names_that_do_not_count(folder):
    (folder / '.hidden.txt').write_text('hidden')
    (folder / 'notes.md').write_text('of another kind')


def name_that_is_no_utf8(folder):
    os.rename(folder / 'd.txt', os.path.join(os.fsencode(folder), b'd\xe9.txt'))


@pytest.mark.parametrize(
    'change, named',
    [
        (link_to_a_file, ''),
        (second_name_of_a_file, ''),
        (link_to_a_folder, ''),
        (links_to_parents, ''),
        (link_to_a_text_elsewhere, ''),
        (link_to_nothing, 'nothing'),
        (link_to_itself, 'nothing'),
        (pipe, 'pipe'),
        (listener, 'socket'),
        (empty_file, 'empty'),
        (endings_in_capitals, ''),
        (folder_named_like_a_text, ''),
        (names_that_do_not_count, ''),
        (name_that_is_no_utf8, ''),
    ],
)
def test_each_file_of_a_folder_is_read_once_or_named(tmp_path, capsys, monkeypatch, change, named):
    folder = tmp_path / 'texts'
    for name in ('a.txt', 'd.txt', 'deep/c.txt'):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(f'text of {name}')
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    change(folder)
    p.prepare('text', tmp_path, source=str(folder), split='train', tokenizer='bytes')
    read = sorted(read_documents(tmp_path / 'text', 'train'))
    assert read == ['text of a.txt', 'text of d.txt', 'text of deep/c.txt']
    said = capsys.readouterr().out.splitlines()
    assert len(said) == bool(named) and all(named in line and "'z.txt'" in line for line in said)


def test_a_folder_that_holds_no_text_says_what_it_holds(tmp_path):
    empty_file(tmp_path)
    with one_line("'z.txt'"):
        p.prepare('text', tmp_path / 'out', source=str(tmp_path), tokenizer='bytes')


@pytest.mark.parametrize(
    'make, said', [(pipe, 'pipe'), (listener, 'socket'), (link_to_nothing, 'link to nothing')]
)
def test_a_source_that_is_no_file_is_named(tmp_path, monkeypatch, make, said):
    monkeypatch.chdir(tmp_path)
    make(tmp_path)
    with one_line(f'z.txt is a .*{said}'):
        p.prepare('text', tmp_path / 'out', source=str(tmp_path / 'z.txt'), tokenizer='bytes')


@pytest.mark.parametrize('kind', ['jsonl', 'JSONL.GZ', 'Jsonl.Xz', 'CSV', 'Parquet'])
@pytest.mark.parametrize('name', [b'rows', b'caf\xe9'])
def test_names_and_endings_of_files_are_free(tmp_path, kind, name):
    path = os.path.join(os.fsencode(tmp_path), name + b'.' + kind.encode())
    os.rename(write_rows(kind.lower(), tmp_path), path)
    meta = p.prepare(
        'text', tmp_path, source=os.fsdecode(path), split='test', tokenizer='bytes', prompt_key=''
    )
    assert read_documents(tmp_path / 'text', 'test') == [row['text'] for row in ROWS]
    meta.splits['test'].source.encode()


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
@pytest.mark.parametrize('kind', ['txt', 'txt.xz', 'folder', 'jsonl', 'csv', 'parquet'])
@pytest.mark.parametrize('piece', [1, 40])
def test_an_end_of_text_ends_a_document(tmp_path, monkeypatch, text, documents, kind, piece):
    monkeypatch.setattr('anyorder.tokens.sources.PIECE', piece)
    path = str(tmp_path / kind)
    if kind == 'folder':
        (tmp_path / 'folder').mkdir()
        (tmp_path / 'folder' / 'a.txt').write_text(text, newline='')
    elif kind.startswith('txt'):
        path = str(tmp_path / f'rows.{kind}')
        with {'xz': lzma.open}.get(kind[-2:], open)(path, 'wt', newline='') as f:
            f.write(text)
    else:
        path = write_rows(kind, tmp_path, [{'text': text}])
    found = open_source(path, '')[1]['']
    pieces = list(found)
    assert len(found) == len(documents) and ''.join(pieces) == ''.join(documents)
    p.prepare('text', tmp_path, source=path, split='test', tokenizer='bytes')
    assert read_documents(tmp_path / 'text', 'test') == documents
    assert json.loads((tmp_path / 'text' / 'meta.json').read_text())['splits']['test'][
        'rows'
    ] == len(documents)


@pytest.mark.parametrize(
    'row, said',
    [
        ({'prompt': 'a', 'text': 'b<|endoftext|>'}, ''),
        ({'prompt': 'a', 'text': 'b<|endoftext|>c'}, 'row 1 .*endoftext'),
        ({'prompt': 'a<|endoftext|>', 'text': 'b'}, 'row 1 .*endoftext'),
        ({'prompt': 'a', 'text': '<|endoftext|>'}, 'row 1'),
    ],
)
def test_a_row_with_a_prompt_is_one_document(tmp_path, row, said):
    (tmp_path / 'rows.jsonl').write_text(json.dumps(row))
    found = open_source(str(tmp_path / 'rows.jsonl'), '')[1]['']
    if said:
        with one_line(said):
            list(found)
    else:
        assert list(found) == [('a', 'b')]


@pytest.mark.parametrize('tokenizer', ['bytes', 'gpt2'])
def test_a_text_in_pieces_is_cut_and_read_as_the_whole(tmp_path, monkeypatch, tokenizer):
    if tokenizer == 'gpt2':
        need_gpt2()
    text = LONG + 'Grüße, 中文。 ' * 7
    (tmp_path / 'a.txt').write_text(text, newline='')
    cut, tok = int(len(text) * 0.9), get_tokenizer(tokenizer)
    for piece in (1, 10, len(text) // 3, cut, len(text), 1 << 17):
        monkeypatch.setattr('anyorder.tokens.sources.PIECE', piece)
        p.prepare('text', tmp_path, source=str(tmp_path / 'a.txt'), tokenizer=tokenizer, force=True)
        for split, part in (('train', text[:cut]), ('val', text[cut:])):
            tokens = np.fromfile(tmp_path / 'text' / f'{split}.bin', dtype='<u2').tolist()
            assert tokens == [*tok.encode(part), tok.eos]


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
with open('/proc/self/status') as f:   # getrusage would say at least what the process that started this one has
    print(re.search(r'VmHWM:\\s+(\\d+) kB', f.read())[1])
"""


def peaks(tmp_path, write, kind, *how):
    """Bytes of memory that it takes, at most, to prepare files of 2 and of 22 MB; `write` makes one of a size."""
    if not os.path.exists('/proc/self/status'):
        pytest.skip('peaks are read as Linux has them')
    for megabytes in (2, 22):
        path = tmp_path / f'{megabytes}.{kind}'
        write(path, megabytes * 10**6)
        command = [sys.executable, '-c', MEASURED, ROOT, path, *how]
        done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
        yield int(done.stdout.split()[-1]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind, tokenizer, data_set',
    [
        ('txt', 'bytes', 'text'),
        ('txt.gz', 'gpt2', 'text'),
        ('jsonl', 'gpt2', 'text'),
        ('raw', 'bytes', 'wikitext2'),
    ],
)
def test_memory_does_not_grow_with_a_text(tmp_path, kind, tokenizer, data_set):
    if tokenizer == 'gpt2':
        need_gpt2()
    line = 'The quick brown fox jumps over the lazy dog again\n'
    line = json.dumps({'text': line * 2000}) + '\n' if kind == 'jsonl' else line

    def write(path, n):
        with (gzip.open if kind.endswith('gz') else open)(path, 'wt') as f:
            for _ in range(n // len(line)):
                f.write(line)

    small, large = peaks(tmp_path, write, kind, tokenizer, data_set)
    assert large - small < 10**7


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['npy', 'rows.npy', 'npz', 'jsonl'])
def test_arrays_are_prepared_in_the_memory_of_their_file(tmp_path, kind):
    def write(path, n):
        rows = np.random.default_rng(0).integers(1000, size=(n // 128, 64)).astype('<u2')
        if kind == 'npz':
            np.savez(path, train=rows, val=rows[:9])
        elif kind == 'jsonl':
            path.write_text(''.join(f'{row.tolist()}\n' for row in rows[: len(rows) // 3]))
        else:
            np.save(path, rows if kind == 'rows.npy' else rows.reshape(-1))

    small, large = peaks(tmp_path, write, kind, 'bytes', 'tokens')
    assert large - small < 1.3 * 20 * 10**6


def test_a_row_in_pieces_is_detokenized_as_a_whole():
    rows = p.Detokenized([p.Begun('a @-'), p.Begun('@ b '), ', c', 'd @,@ e'], WIKITEXT)
    assert list(rows) == list(rows) == ['a-b, c', 'd,e']


DUPLICATES = [f'document {i % 20}' for i in range(40)]


@pytest.mark.parametrize(
    'texts, n',
    [
        (DUPLICATES, 4),
        (DUPLICATES[:20], 0),
        (['', 'a', 'b', 'c'] + [''] * 36, 0),
        ([LONG * 400] * 6 + ['a' + LONG * 400] * 4, 1),
        (['same'] * 30, 3),
    ],
)
@pytest.mark.parametrize('tokenizer', ['bytes', 'gpt2'])
@pytest.mark.parametrize('has_prompts', [False, True])
def test_documents_of_two_splits_are_told(
    tmp_path, monkeypatch, capsys, texts, n, tokenizer, has_prompts
):
    if tokenizer == 'gpt2':
        need_gpt2()
    monkeypatch.setattr('anyorder.tokens.sources.PIECE', 999)
    rows = [
        {'text': text} | ({'prompt': text[:5]} if has_prompts else {})
        for text in texts
        if text or not has_prompts
    ]
    path = tmp_path / 'rows.jsonl'
    path.write_text('\n'.join(map(json.dumps, rows)))
    p.prepare('text', tmp_path, source=str(path), tokenizer=tokenizer)
    said = capsys.readouterr().out
    assert ('duplicates' in said) == (n > 0) and said.startswith(f'{n} of ' if n else '')


def test_a_split_that_is_added_is_compared_with_those_that_are_there(tmp_path, capsys):
    for name, texts in (
        ('train', ['a', 'b', LONG * 4000]),
        ('val', ['b', LONG * 4000, 'c']),
        ('test', ['d']),
    ):
        (tmp_path / name).mkdir()
        for i, text in enumerate(texts):
            (tmp_path / name / f'{i}.txt').write_text(text, newline='')
        p.prepare(
            'text',
            tmp_path,
            name='mine',
            source=str(tmp_path / name),
            split=name,
            tokenizer='bytes',
        )
        said = capsys.readouterr().out
        assert said.startswith(
            '2 of 3 documents of val stand in train too' if name == 'val' else ''
        )
        assert name == 'val' or not said


def test_hashes_depend_on_documents_alone():
    rng, found = np.random.default_rng(0), []
    sizes = 1, 5, 32766, 32767, 32768, 70000
    documents = [np.append(rng.integers(0, 256, n), 256).astype('<u2') for n in sizes]
    for size in (1, 1000, 32768, 10**6):
        hashes = Hashes(256, np.dtype('<u2'))
        for tokens in documents:
            for start in range(0, len(tokens), size):
                hashes.update(tokens[start : start + size].tobytes())
        found.append(hashes.found.tolist())
    assert found.count(found[0]) == 4 and len({*found[0]}) == len(sizes)


@pytest.mark.parametrize(
    'names, split, wanted',
    [
        (['train', 'test'], '', {'': 'train'}),
        (['train', 'validation', 'test'], '', {'train': 'train', 'val': 'validation'}),
        (['train', 'validation'], 'val', {'val': 'validation'}),
        (['extra'], '', {'': 'extra'}),
        (['train', 'test'], 'test', {'test': 'test'}),
        (['train', 'test'], 'val', None),
        (['test', 'validation'], '', None),
    ],
)
@pytest.mark.parametrize('hub', [False, True])
def test_splits_of_a_data_set_of_its_own(tmp_path, monkeypatch, names, split, wanted, hub):
    import datasets

    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'cache')
    monkeypatch.chdir(tmp_path)
    texts = {s: {'text': [f'{s} {i}' for i in range(3)]} for s in names}
    sets = datasets.DatasetDict({s: datasets.Dataset.from_dict(texts[s]) for s in names})
    if hub:  # `datasets` takes a folder of this name for the repository
        (tmp_path / 'owner' / 'set').mkdir(parents=True)
        for s in names:
            sets[s].to_parquet(f'owner/set/{s}.parquet')
    else:
        sets.save_to_disk('set')
    source = 'hf:owner/set' if hub else 'set'
    if not wanted:
        with one_line(f'{source} has the splits .*: name one of them by --split'):
            open_source(source, split)
        return
    origin, documents = open_source(source, split)
    assert {s: list(texts) for s, texts in documents.items()} == {
        s: texts[theirs]['text'] for s, theirs in wanted.items()
    }
    assert origin.startswith('hf:owner/set, fingerprint ' if hub else 'set, fingerprint ')
    assert origin == open_source(source, split)[0]


def test_splits_of_one_data_set_stand_beside_each_other(tmp_path):
    import datasets

    texts = {
        s: datasets.Dataset.from_dict({'text': [f'{s} {i}' for i in range(9)]})
        for s in ('train', 'test')
    }
    datasets.DatasetDict(texts).save_to_disk(tmp_path / 'set')
    where = dict(data_dir=tmp_path, name='mine', source=str(tmp_path / 'set'), tokenizer='bytes')
    p.prepare('text', **where)
    p.prepare('text', **where, split='test')
    assert read_documents(tmp_path / 'mine', 'test') == texts['test']['text']
    with one_line('is the source of val already'):  # val is a part of the train that was divided
        p.prepare('text', **where, split='train', force=True)
    datasets.DatasetDict(texts | {'validation': texts['test']}).save_to_disk(tmp_path / 'three')
    where |= dict(source=str(tmp_path / 'three'), force=True)
    p.prepare('text', **where)
    p.prepare('text', **where, split='train')
    assert read_documents(tmp_path / 'mine', 'train') == texts['train']['text']


@pytest.mark.parametrize(
    'connect, offline', [(socket.socket, None), (lambda: open('/none/such'), '1')]
)
def test_a_hub_that_is_not_reached_is_not_tried_for_long(monkeypatch, connect, offline):
    import datasets

    monkeypatch.setattr(datasets, 'load_dataset', lambda *a, **k: os.environ.get('HF_HUB_OFFLINE'))
    monkeypatch.setattr('urllib.request.getproxies', dict)
    monkeypatch.setattr('socket.create_connection', lambda *_: connect())
    monkeypatch.delenv('HF_HUB_OFFLINE')
    assert from_hub('owner/name', None, None, '') == offline


BAD = [
    (
        'rows.parquet',
        ['--text_key=txt'],
        "row 1 of rows.parquet has the fields ['question', 'text', 'prompt']",
    ),
    (
        'rows.jsonl',
        ['--prompt_key=ask'],
        "row 1 of rows.jsonl has the fields ['question', 'text', 'prompt']",
    ),
    ('hf:owner/none', [], 'cannot load owner/none from the Hugging Face hub'),
    ('hf:none', [], 'cannot load none from the Hugging Face hub'),
    ('rows.yaml', [], 'must end in .txt'),
    ('broken.parquet', [], 'broken.parquet cannot be read as a .parquet'),
    ('empty.jsonl', [], 'row 1 of empty.jsonl has a prompt, but its text is empty'),
]


@pytest.mark.parametrize('source, options, said', BAD)
def test_bad_rows_are_one_line_and_leave_nothing(script, tmp_path, source, options, said):
    for kind in ('parquet', 'jsonl'):
        write_rows(kind, tmp_path)
    write_rows('jsonl', tmp_path, [ROWS[0] | {'text': ''}])
    (tmp_path / 'rows.jsonl').rename(tmp_path / 'empty.jsonl')
    write_rows('jsonl', tmp_path)
    (tmp_path / 'broken.parquet').write_bytes(b'PAR1 and no more')
    (tmp_path / 'rows.yaml').write_bytes(b'')
    said_now = script(
        'data/prepare.py', 'text', f'--source={source}', '--data_dir=out', *options, code=1
    ).stderr
    assert said in said_now and said_now.count('\n') == 1 and not (tmp_path / 'out').exists()
    script('data/prepare.py', 'pydocs', '--text_key=x', code=1)


def test_wikitext2_comes_with_both_splits_from_the_hub(tmp_path, monkeypatch):
    import datasets

    asked = []

    def load_dataset(repository, name, split, **options):
        asked.append((repository, name, split))
        return {'text': ['', f' = {split} = \n']}

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    p.prepare('wikitext2', tmp_path, tokenizer='bytes')
    assert asked == [
        ('Salesforce/wikitext', 'wikitext-2-raw-v1', split) for split in ('test', 'train')
    ]
    assert read_documents(tmp_path / 'wikitext2', 'train') == ['', ' = train =\n']
    assert (
        p.prepare('wikitext2', tmp_path, tokenizer='bytes').splits.keys() == {'train', 'test'}
        and len(asked) == 2
    )


def test_openwebtext_goes_through_datasets(tmp_path, monkeypatch, jsonl):
    import datasets

    asked = []

    def load_dataset(
        name, config=None, revision=None, **options
    ):  # the hub as it was when the set was still a script
        asked.append(revision)
        if revision is None:
            raise RuntimeError('Dataset scripts are no longer supported')
        return datasets.Dataset.from_dict({'text': TEXTS})

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    meta = p.prepare('openwebtext', tmp_path, tokenizer='bytes')
    assert asked == [None, 'refs/convert/parquet'] and meta.splits['val'].rows == 1
    train, val = (read_documents(tmp_path / 'openwebtext', split) for split in ('train', 'val'))
    assert sorted(train + val) == sorted(TEXTS)
    monkeypatch.setattr(
        datasets,
        'load_dataset',
        lambda *a, **k: (_ for _ in ()).throw(ConnectionError('no\nroute')),
    )
    with one_line('python data/prepare.py openwebtext'):
        p.prepare('openwebtext', tmp_path, tokenizer='bytes', force=True)
