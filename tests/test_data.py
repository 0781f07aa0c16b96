"""Sources to prepared sets: formats, splits, and what is said of one that is missing or broken."""

import bz2
import csv
import dataclasses
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
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.tokens import prepared as p
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.benchmarks import WIKITEXT
from anyorder.tokens.meta import SplitMeta, read_meta, write_meta
from anyorder.tokens.sources import from_hub, name_source, open_source, pydocs
from anyorder.tokens.tokenizers import GPT2, Bytes, get_tokenizer

TEXTS = ['Grüße, Welt.\n', 'a second "document"', '', 'three\nlines\r\nhere']
TEXTS += [f'document {i}' for i in range(16)]


def need_gpt2():
    try:
        GPT2()
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / 'texts.jsonl'
    lines = [json.dumps({'title': 'x', 'text': text}) for text in TEXTS]
    path.write_text('\n'.join(lines))
    return path


@pytest.fixture
def prepare(tmp_path):
    """prepare(source) prepares a source in bytes, into the set `text` of tmp_path."""

    def prepare(source, data_dir=tmp_path, tokenizer='bytes', **how):
        return p.prepare('text', data_dir, source=str(source), tokenizer=tokenizer, **how)

    return prepare


def files_of(folder):
    """{name: bytes} of the files in a folder."""
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}


def write(path, text):
    """Write a text into a file, as it is; returns the path."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text, newline='')
    return path


def read_documents(directory, split):
    """The texts of a split in bytes."""
    tokens = np.fromfile(os.path.join(directory, f'{split}.bin'), dtype='<u2')
    documents = np.split(tokens, np.flatnonzero(tokens == 256) + 1)[:-1]
    return [Bytes().decode(d.tolist()).removesuffix('<|endoftext|>') for d in documents]


def test_a_source_and_a_set_in_the_home_folder(jsonl, tmp_path, monkeypatch):
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    monkeypatch.setenv('HOME', str(tmp_path))
    np.save(tmp_path / 'rows.npy', np.arange(12).reshape(4, 3))
    write(tmp_path / 'names.txt', '\n'.join('abcdefghijkl'))
    p.prepare('text', '~/sets', name='mine', source='~/texts.jsonl', tokenizer='bytes')
    prepare_tokens('~/sets', 'rows', '~/rows.npy', vocabulary='~/names.txt')
    prepare_puzzles('sudoku4', '~/sets', n_rows={'train': 3, 'val': 2, 'test': 2})
    for name in ('mine', 'rows', 'sudoku4'):
        open_split('~/sets', name, 'train')
    there = [name for name in os.listdir(tmp_path / 'sets') if not name.endswith('.lock')]
    assert sorted(there) == ['mine', 'rows', 'sudoku4']
    assert os.listdir() == []


def test_a_set_replaces_links_and_leaves_what_they_lead_to(jsonl, tmp_path, prepare):
    prepare(jsonl, name='theirs')
    before = files_of(tmp_path / 'theirs')
    (tmp_path / 'mine').mkdir()
    for name in before:
        (tmp_path / 'mine' / name).symlink_to(f'../theirs/{name}')
    jsonl.write_text('{"text": "another"}\n' * 30)
    prepare(jsonl, name='mine', force=True)
    assert files_of(tmp_path / 'theirs') == before
    assert not any((tmp_path / 'mine' / name).is_symlink() for name in before)


def test_documents_are_divided_once_and_come_back(jsonl, tmp_path, prepare):
    prepare(jsonl)
    train = read_documents(tmp_path / 'text', 'train')
    val = read_documents(tmp_path / 'text', 'val')
    assert sorted(train + val) == sorted(TEXTS)
    assert len(val) == 2


def test_what_is_said_of_a_split_is_so(jsonl, tmp_path, prepare):
    meta = prepare(jsonl)
    assert read_meta(tmp_path / 'text') == meta
    for split in ('train', 'val'):
        raw = (tmp_path / 'text' / f'{split}.bin').read_bytes()
        n_rows = len(read_documents(tmp_path / 'text', split))
        n_tokens = len(raw) // 2
        sha256 = hashlib.sha256(raw).hexdigest()
        wanted = SplitMeta(n_rows, n_tokens, n_tokens - n_rows, sha256, name_source(jsonl))
        assert meta.splits[split] == wanted
    assert prepare(jsonl, data_dir=tmp_path / 'elsewhere') == meta


@pytest.mark.parametrize(
    'opener, ending', [(gzip.open, 'gz'), (lzma.open, 'xz'), (bz2.open, 'bz2')]
)
def test_packed_files_and_given_splits(jsonl, tmp_path, prepare, opener, ending):
    with opener(f'{jsonl}.{ending}', 'wb') as file:
        file.write(jsonl.read_bytes())
    prepare(f'{jsonl}.{ending}', split='train')
    held_out = write(tmp_path / 'v.txt', 'held out\n\nin one piece')
    meta = prepare(held_out, split='val', tokenizer='')  # it is the folder's
    assert meta.splits.keys() == {'train', 'val'}
    assert meta.tokenizer == 'bytes'
    assert read_documents(tmp_path / 'text', 'train') == TEXTS
    assert read_documents(tmp_path / 'text', 'val') == ['held out\n\nin one piece']


def test_a_document_alone_is_cut(tmp_path, prepare):
    prepare(write(tmp_path / 'one.txt', '0123456789' * 10))
    assert read_documents(tmp_path / 'text', 'train') == ['0123456789' * 9]
    assert read_documents(tmp_path / 'text', 'val') == ['0123456789']


def times_of(folder):
    return {name: os.stat(folder / name).st_mtime_ns for name in os.listdir(folder)}


@pytest.fixture
def other(tmp_path):
    """Another file of the same name as `jsonl`."""
    lines = '{"text": "other"}\n{"text": "texts"}\n'
    return write(tmp_path / 'other' / 'texts.jsonl', lines)


def test_a_second_run_does_nothing(jsonl, other, tmp_path, prepare):
    prepare(jsonl)
    before = times_of(tmp_path / 'text')
    prepare(jsonl)
    prepare(jsonl, tokenizer='')
    different = [(jsonl, {'tokenizer': 'gpt2'}), (other, {}), (other, {'split': 'val'})]
    for source, how in different:
        with one_line('--force'):
            prepare(source, **how)
    assert times_of(tmp_path / 'text') == before


def test_a_second_run_replaces_what_it_is_forced_to(jsonl, other, tmp_path, prepare):
    prepare(jsonl)
    prepare(other, split='val', force=True)
    assert read_documents(tmp_path / 'text', 'val') == ['other', 'texts']
    assert len(read_documents(tmp_path / 'text', 'train')) == 18
    prepare(other, force=True)
    assert len(read_documents(tmp_path / 'text', 'train')) == 1


def test_a_second_split_is_added_not_written_over(jsonl, other, tmp_path, prepare):
    prepare(jsonl, split='train')
    with one_line('--split=val'):
        open_split(tmp_path, 'text', 'val')
    with one_line('holds train already'):
        prepare(jsonl)
    with one_line('is the source of train already'):
        prepare(jsonl, split='val')
    prepare(other, split='val', tokenizer='')
    assert read_documents(tmp_path / 'text', 'train') == TEXTS
    assert read_documents(tmp_path / 'text', 'val') == ['other', 'texts']


def test_one_folder_has_one_tokenizer(jsonl, other, tmp_path, prepare):
    prepare(jsonl, split='train')
    meta = read_meta(tmp_path / 'text')
    of_gpt2 = {'tokenizer': 'gpt2', 'n_tokens': 50257, 'eos': 50256}
    write_meta(tmp_path / 'text', dataclasses.replace(meta, **of_gpt2))
    with one_line('holds train in the tokenizer gpt2, not bytes: one folder has one tokenizer'):
        prepare(other, split='val')


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
def test_broken_sources_leave_nothing_behind(tmp_path, prepare, content, said):
    (tmp_path / 'bad.jsonl').write_bytes(content)
    for split in (None, 'train'):
        with one_line(said):
            prepare(tmp_path / 'bad.jsonl', data_dir=tmp_path / 'out', split=split)
    assert [name for _, _, names in os.walk(tmp_path / 'out') for name in names] == []


def test_a_failed_replacement_leaves_the_old_set(jsonl, tmp_path, prepare):
    prepare(jsonl)
    before = files_of(tmp_path / 'text')
    fine = '{"text": "fine"}\n' * 30
    bad = write(tmp_path / 'bad.jsonl', fine + '{"text": "\\ud800"}\n')
    with one_line('row 31 .* in valid Unicode'):
        prepare(bad, force=True)
    assert files_of(tmp_path / 'text') == before
    with one_line('row 31'):
        prepare(bad, name='other')
    assert not (tmp_path / 'other').exists()


def test_a_damaged_file_is_made_again(jsonl, tmp_path, prepare):
    prepare(jsonl)
    before = files_of(tmp_path / 'text')
    (tmp_path / 'text' / 'val.bin').write_bytes(b'')
    with one_line('is the source of train already'):
        prepare(jsonl, split='val')
    with one_line('holds train already'):
        prepare(jsonl)
    prepare(jsonl, force=True)
    assert files_of(tmp_path / 'text') == before


@pytest.mark.parametrize('wrong', [{'split': '../x'}, {'name': 'a/b'}])
def test_names_of_sets_and_splits_are_plain(jsonl, prepare, wrong):
    with one_line('plain name'):
        prepare(jsonl, **wrong)


def test_a_set_of_no_plain_name_is_not_opened(tmp_path):
    with one_line('plain name'):
        open_split(tmp_path, '../x', 'train')


def test_the_documentation_of_python_has_no_source(jsonl, tmp_path):
    with one_line('no --source'):
        p.prepare('pydocs', tmp_path, source=str(jsonl))


@pytest.mark.parametrize(
    'args, said',
    [
        ([], 'name one of pydocs, text'),
        (['pydos'], "'pydos' is none of pydocs, text"),
        (['pydos'], "the nearest is 'pydocs'"),
        (['text', 'pydocs'], 'got text pydocs'),
        (['text', '--sourc=x'], "nearest is 'source'"),
        (['text', '--tokenizer=char'], 'tokenizer must be bytes, gpt2, tiktoken:NAME'),
        (['text'], '--source=FILE'),
        (['text', '--source=.'], 'no file ., and no folder'),
        (['pydocs', '--data_dir='], "--data_dir must name a folder that can be written to, got ''"),
        (['text', '--source'], '--source needs a value'),
        (['text', '--source=none.txt', '--name=../x'], 'plain name'),
    ],
)
def test_command_line_errors_are_one_line(script, args, said):
    error = script('data/prepare.py', *args, code=1).stderr
    assert said in error
    assert error.count('\n') == 1


def test_a_truncated_archive_is_one_line(tmp_path, prepare):
    path = tmp_path / 'texts.jsonl.xz'
    with lzma.open(path, 'wb') as file:
        file.write(os.urandom(30000).hex().encode())
    os.truncate(path, 9000)
    with one_line('cannot be read'):
        prepare(path)


@pytest.mark.parametrize(
    'source, said', [('none.txt', 'no file'), (None, '--source'), (__file__, 'must end in')]
)
def test_names_that_are_no_source(tmp_path, source, said):
    with one_line(said):
        p.prepare('text', tmp_path, source=source, tokenizer='bytes')


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
        write(tmp_path / path, text)
    monkeypatch.setattr('sysconfig.get_path', lambda name: str(tmp_path))
    monkeypatch.setattr('pydoc_data.topics.topics', {'z': '  last', 'b': 'first', 'c': 'first'})
    of_modules = [f'{LONG_TEXT}.', f'{LONG_TEXT}, of b.', f'{LONG_TEXT}:\n\nindented']
    assert pydocs() == ['first', 'last', *of_modules]


@pytest.mark.slow
def test_pydocs_are_english_enough_and_reproducible():
    documents = pydocs()
    assert documents == pydocs()
    assert len(documents) == len(set(documents))
    assert sum(map(len, documents)) > 1_000_000
    assert sum(' the ' in document for document in documents) > 200


DETOKENIZED = {  # by the rules of the SEDD family, worked out by hand
    'wikitext2': [
        (' = = Cast = = \n', ' == Cast ==\n'),
        (' \n', ''),
        ('\n', ''),
        (
            ' The two @-@ time " best actor " ( 1 @,@ 000 @.@ 5 m ) '
            "'s film , it was ; so : good . \n",
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
    rows, wanted = zip(*DETOKENIZED[name])
    source = write(tmp_path / 'rows.txt', ''.join(rows).replace('\n', end))
    meta = p.prepare(name, tmp_path, source=str(source), tokenizer='bytes')
    assert meta.splits['test'].rows == len(rows)
    assert read_documents(tmp_path / name, 'test') == list(wanted)


ANSWERS = [text for text in TEXTS if text]
ROWS = [
    {'question': f'{i} + {i}', 'text': text, 'prompt': f'{i}, "\n?'}
    for i, text in enumerate(ANSWERS)
]
QUESTIONS = [row['question'] for row in ROWS]
PROMPTS = [row['prompt'] for row in ROWS]


def write_rows(kind, folder, rows=ROWS):
    """Write the rows as a source of this kind; returns its path."""
    import datasets

    path = str(folder / f'rows.{kind}')
    table = datasets.Dataset.from_list(rows)
    kind, *packed = kind.split('.')
    if kind == 'saved':
        table.save_to_disk(path, num_shards=2)
    elif kind == 'parquet':
        with open(path, 'wb') as file:
            table.to_parquet(file, batch_size=5)
    else:
        with opened(path, *packed) as file:
            if kind == 'csv':
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
            else:
                file.writelines(json.dumps(row) + '\n\n' for row in rows)
    return path


def opened(path, packed=''):
    """A file that text is written to, as it is, and packed: gz, xz or not."""
    opener = {'gz': gzip.open, 'xz': lzma.open, '': open}[packed]
    return opener(path, 'wt', newline='', encoding='utf-8')


KINDS_OF_ROWS = ['jsonl', 'csv', 'csv.gz', 'parquet', 'saved']


@pytest.mark.parametrize(
    'keys, wanted',
    [
        ({'prompt_key': ''}, ANSWERS),
        ({'text_key': 'question', 'prompt_key': ''}, QUESTIONS),
        ({'prompt_key': 'question'}, list(zip(QUESTIONS, ANSWERS))),
        ({}, list(zip(PROMPTS, ANSWERS))),
    ],
)
@pytest.mark.parametrize('kind', KINDS_OF_ROWS)
def test_all_kinds_of_rows_are_the_same_documents(tmp_path, kind, keys, wanted):
    path = write_rows(kind, tmp_path)
    origin, documents = open_source(path, '', **keys)
    assert origin.startswith(f'rows.{kind}')
    assert documents.keys() == {''}
    assert list(documents['']) == wanted
    assert list(documents['']) == wanted  # read anew
    assert len(documents['']) == len(wanted)


@pytest.mark.parametrize('kind', KINDS_OF_ROWS)
def test_all_kinds_of_rows_are_prepared(tmp_path, prepare, kind):
    prepare(write_rows(kind, tmp_path), split='train', prompt_key='')
    assert read_documents(tmp_path / 'text', 'train') == ANSWERS


@pytest.mark.parametrize('kind', KINDS_OF_ROWS)
def test_rows_without_a_field_say_which_fields_they_have(tmp_path, kind):
    _, documents = open_source(write_rows(kind, tmp_path), '', text_key='txt')
    found = "..question', 'text', 'prompt'."
    with one_line(f"row 1 of .* has the fields {found}, but a document is ..prompt', 'txt'. in"):
        list(documents[''])


def test_fields_are_part_of_what_is_said_of_a_source(tmp_path):
    path = write_rows('jsonl', tmp_path)
    origins = set()
    for key in ('', 'auto', 'text'):
        origin, _ = open_source(path, '', text_key='question', prompt_key=key)
        origins.add(origin)
    assert len(origins) == 3


PAIR = {'prompt': 'a', 'text': 'b'}
ASKED = {'q': 'a', 'text': 'b'}
TEXT = {'text': 'b'}


@pytest.mark.parametrize(
    'row, last, keys, said',
    [
        (PAIR, TEXT, {}, "row 17 .* ..text'., .* is ..prompt', 'text'."),
        (TEXT, PAIR, {}, "row 17 .* ..prompt', 'text'., .* is ..text'."),
        (ASKED, TEXT, {'prompt_key': 'q'}, "row 17 .* ..text'., .* is ..q', 'text'."),
        (PAIR, {'prompt': 'a', 'text': ''}, {}, 'row 17 of .* its text is empty'),
        (PAIR, {'prompt': 5, 'text': 'b'}, {}, 'prompt in row 17 of .* a string'),
        (TEXT, {'text': None}, {}, 'text in row 17 of .* a string'),
        (PAIR, PAIR, {'text_key': ''}, "row 1 .* is ..prompt', ''."),
        ({'prompt': 'a', 'answer': 'b'}, PAIR, {}, "row 1 .* ..prompt', 'answer'., but"),
    ],
)
def test_rows_without_a_prompt_or_a_text_are_told_by_their_line(tmp_path, row, last, keys, said):
    lines = [json.dumps(one) for one in (row, row, row, row, row, row, row, row, last)]
    path = write(tmp_path / 'rows.jsonl', '\n\n'.join(lines))
    with one_line(said):
        list(open_source(str(path), '', **keys)[1][''])


@pytest.mark.parametrize(
    'content, text_key, said',
    [
        ('text\na\nb, c\n', 'text', 'row 2 of .* put texts with commas in quotes'),
        ('text,x\na,b\nc\n', 'x', 'x in row 2'),
        ('text\n"a\n', 'text', 'cannot be read as text'),
    ],
)
def test_a_csv_whose_commas_are_not_quoted_is_told(tmp_path, content, text_key, said):
    path = write(tmp_path / 'rows.csv', content)
    _, documents = open_source(str(path), '', text_key=text_key)
    with one_line(said):
        list(documents[''])


@pytest.fixture
def folder(tmp_path):
    """A folder of two texts, b.txt and a/c.txt, and one that is none."""
    for name in ('b.txt', 'a/c.txt', 'a/z.md'):
        write(tmp_path / 'texts' / name, f'text of {name}\n')
    return tmp_path / 'texts'


def test_a_folder_of_texts_is_a_document_each(tmp_path, folder, prepare):
    prepare(f'{folder}/', split='train')
    assert read_documents(tmp_path / 'text', 'train') == ['text of a/c.txt\n', 'text of b.txt\n']


def test_names_in_a_folder_are_part_of_what_is_said_of_it(folder):
    before = name_source(folder)
    assert before.startswith('texts, sha256 ')
    (folder / 'b.txt').rename(folder / 'd.txt')
    assert name_source(folder) != before


def test_a_source_that_is_missing_has_no_name(tmp_path):
    with one_line('no file'):
        name_source(tmp_path / 'none')


def test_a_folder_of_texts_has_no_fields(folder, prepare):
    with one_line('text without fields'):
        prepare(folder, prompt_key='prompt')


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
def test_each_file_of_a_folder_is_read_once_or_named(
    tmp_path, capsys, monkeypatch, prepare, change, named
):
    folder = tmp_path / 'texts'
    for name in ('a.txt', 'd.txt', 'deep/c.txt'):
        write(folder / name, f'text of {name}')
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    change(folder)
    prepare(folder, split='train')
    read = sorted(read_documents(tmp_path / 'text', 'train'))
    assert read == ['text of a.txt', 'text of d.txt', 'text of deep/c.txt']
    said = capsys.readouterr().out.splitlines()
    assert len(said) == bool(named)
    for line in said:
        assert named in line
        assert "'z.txt'" in line


def test_a_folder_that_holds_no_text_says_what_it_holds(tmp_path, prepare):
    empty_file(tmp_path)
    with one_line("'z.txt'"):
        prepare(tmp_path, data_dir=tmp_path / 'out')


@pytest.mark.parametrize(
    'make, said', [(pipe, 'pipe'), (listener, 'socket'), (link_to_nothing, 'link to nothing')]
)
def test_a_source_that_is_no_file_is_named(tmp_path, monkeypatch, prepare, make, said):
    monkeypatch.chdir(tmp_path)
    make(tmp_path)
    with one_line(f'z.txt is a .*{said}'):
        prepare(tmp_path / 'z.txt', data_dir=tmp_path / 'out')


@pytest.mark.parametrize('kind', ['jsonl', 'JSONL.GZ', 'Jsonl.Xz', 'CSV', 'Parquet'])
@pytest.mark.parametrize('name', [b'rows', b'caf\xe9'])
def test_names_and_endings_of_files_are_free(tmp_path, prepare, kind, name):
    path = os.path.join(os.fsencode(tmp_path), name + b'.' + kind.encode())
    os.rename(write_rows(kind.lower(), tmp_path), path)
    meta = prepare(os.fsdecode(path), split='test', prompt_key='')
    assert read_documents(tmp_path / 'text', 'test') == ANSWERS
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
def test_an_end_of_text_ends_a_document(
    tmp_path, monkeypatch, prepare, text, documents, kind, piece
):
    monkeypatch.setattr('anyorder.tokens.sources.PIECE', piece)
    path = write_text(kind, tmp_path, text)
    found = open_source(path, '')[1]['']
    assert ''.join(found) == ''.join(documents)
    assert len(found) == len(documents)
    meta = prepare(path, split='test')
    assert read_documents(tmp_path / 'text', 'test') == documents
    assert meta.splits['test'].rows == len(documents)


def write_text(kind, folder, text):
    """Write a text as a source of this kind; returns its path."""
    if kind == 'folder':
        return str(write(folder / 'folder' / 'a.txt', text).parent)
    kind, *packed = kind.split('.')
    if kind != 'txt':
        return write_rows(kind, folder, [{'text': text}])
    path = '.'.join([str(folder / 'rows'), kind, *packed])
    with opened(path, *packed) as file:
        file.write(text)
    return path


@pytest.mark.parametrize(
    'row, said',
    [
        ({'prompt': 'a', 'text': 'b<|endoftext|>c'}, 'row 1 .*endoftext'),
        ({'prompt': 'a<|endoftext|>', 'text': 'b'}, 'row 1 .*endoftext'),
        ({'prompt': 'a', 'text': '<|endoftext|>'}, 'row 1'),
    ],
)
def test_a_row_with_a_prompt_is_one_document(tmp_path, row, said):
    path = write(tmp_path / 'rows.jsonl', json.dumps(row))
    with one_line(said):
        list(open_source(str(path), '')[1][''])


def test_a_row_with_a_prompt_may_end_as_documents_do(tmp_path):
    row = {'prompt': 'a', 'text': 'b<|endoftext|>'}
    path = write(tmp_path / 'rows.jsonl', json.dumps(row))
    assert list(open_source(str(path), '')[1]['']) == [('a', 'b')]


@pytest.mark.parametrize('tokenizer', ['bytes', 'gpt2'])
def test_a_text_in_pieces_is_cut_and_read_as_the_whole(tmp_path, monkeypatch, prepare, tokenizer):
    if tokenizer == 'gpt2':
        need_gpt2()
    tok = get_tokenizer(tokenizer)
    text = LONG + 'Grüße, 中文。 ' * 7
    source = write(tmp_path / 'a.txt', text)
    cut = int(len(text) * 0.9)
    parts = {'train': text[:cut], 'val': text[cut:]}
    for piece in (1, 10, len(text) // 3, cut, len(text), 1 << 17):
        monkeypatch.setattr('anyorder.tokens.sources.PIECE', piece)
        prepare(source, tokenizer=tokenizer, force=True)
        for split, part in parts.items():
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
# getrusage would say at least what the process that started this one has
with open('/proc/self/status') as f:
    print(re.search(r'VmHWM:\\s+(\\d+) kB', f.read())[1])
"""


def peaks(tmp_path, write, kind, *how):
    """Yield the bytes of memory that it takes, at most, to prepare files of 2 and of 22 MB.

    write  makes a file of so many bytes"""
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
    if kind == 'jsonl':
        line = json.dumps({'text': line * 2000}) + '\n'

    def write(path, n):
        with opened(path, *kind.split('.')[1:]) as file:
            for _ in range(n // len(line)):
                file.write(line)

    small, large = peaks(tmp_path, write, kind, tokenizer, data_set)
    assert large - small < 10**7


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['npy', 'rows.npy', 'npz'])
def test_arrays_are_prepared_in_the_memory_of_their_file(tmp_path, kind):
    def write(path, n):
        rows = np.random.default_rng(0).integers(1000, size=(n // 128, 64)).astype('<u2')
        if kind == 'npz':
            np.savez(path, train=rows, val=rows[:9])
        elif kind == 'rows.npy':
            np.save(path, rows)
        else:
            np.save(path, rows.reshape(-1))

    small, large = peaks(tmp_path, write, kind, 'bytes', 'tokens')
    assert large - small < 1.3 * 20 * 10**6


def test_a_row_in_pieces_is_detokenized_as_a_whole():
    rows = p.Detokenized([p.Begun('a @-'), p.Begun('@ b '), ', c', 'd @,@ e'], WIKITEXT)
    assert list(rows) == ['a-b, c', 'd,e']
    assert list(rows) == ['a-b, c', 'd,e']  # read anew


@pytest.fixture(params=['hub', 'saved'])
def own_source(request, tmp_path, monkeypatch):
    """own_source(names): the source of a data set that has these splits, on the hub or saved."""
    import datasets

    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'cache')
    monkeypatch.chdir(tmp_path)

    def made(names):
        sets = datasets.DatasetDict()
        for name in names:
            sets[name] = datasets.Dataset.from_dict({'text': texts_of_split(name)})
        if request.param == 'saved':
            sets.save_to_disk('set')
            return 'set'
        for name in names:  # `datasets` takes a folder of this name for the repository
            os.makedirs('owner/set', exist_ok=True)
            sets[name].to_parquet(f'owner/set/{name}.parquet')
        return 'hf:owner/set'

    return made


def texts_of_split(name, n=3):
    return [f'{name} {i}' for i in range(n)]


@pytest.mark.parametrize(
    'names, split, wanted',
    [
        (['train', 'test'], '', {'': 'train'}),
        (['train', 'validation', 'test'], '', {'train': 'train', 'val': 'validation'}),
        (['train', 'validation'], 'val', {'val': 'validation'}),
        (['extra'], '', {'': 'extra'}),
        (['train', 'test'], 'test', {'test': 'test'}),
    ],
)
def test_splits_of_a_data_set_of_its_own(own_source, names, split, wanted):
    source = own_source(names)
    origin, documents = open_source(source, split)
    assert origin.startswith(f'{source}, fingerprint ')
    assert origin == open_source(source, split)[0]
    assert documents.keys() == wanted.keys()
    for s, theirs in wanted.items():
        assert list(documents[s]) == texts_of_split(theirs)


@pytest.mark.parametrize('names, split', [(['train', 'test'], 'val'), (['test', 'validation'], '')])
def test_splits_that_a_data_set_lacks_are_one_line(own_source, names, split):
    source = own_source(names)
    with one_line(f'{source} has the splits .*: name one of them by --split'):
        open_source(source, split)


def test_splits_of_one_data_set_stand_beside_each_other(tmp_path, prepare):
    import datasets

    texts = {}
    for name in ('train', 'test'):
        texts[name] = datasets.Dataset.from_dict({'text': texts_of_split(name, 9)})
    two = tmp_path / 'two'
    datasets.DatasetDict(texts).save_to_disk(two)
    prepare(two)
    prepare(two, split='test')
    assert read_documents(tmp_path / 'text', 'test') == texts_of_split('test', 9)
    with one_line('is the source of val already'):  # val is a part of the train that was divided
        prepare(two, split='train', force=True)

    three = tmp_path / 'three'
    datasets.DatasetDict(texts | {'validation': texts['test']}).save_to_disk(three)
    prepare(three, force=True)
    prepare(three, split='train', force=True)
    assert read_documents(tmp_path / 'text', 'train') == texts_of_split('train', 9)


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


FOUND = "has the fields ['question', 'text', 'prompt']"


@pytest.fixture
def bad_sources(tmp_path):
    """Sources of which each has something wrong, if only for the options below."""
    write_rows('jsonl', tmp_path, [ROWS[0] | {'text': ''}])
    (tmp_path / 'rows.jsonl').rename(tmp_path / 'empty.jsonl')
    write_rows('jsonl', tmp_path)
    write_rows('parquet', tmp_path)
    (tmp_path / 'broken.parquet').write_bytes(b'PAR1 and no more')
    (tmp_path / 'rows.yaml').write_bytes(b'')


@pytest.mark.parametrize(
    'source, options, said',
    [
        ('rows.parquet', ['--text_key=txt'], f'row 1 of rows.parquet {FOUND}'),
        ('rows.jsonl', ['--prompt_key=ask'], f'row 1 of rows.jsonl {FOUND}'),
        ('hf:owner/none', [], 'cannot load owner/none from the Hugging Face hub'),
        ('hf:none', [], 'cannot load none from the Hugging Face hub'),
        ('rows.yaml', [], 'must end in .txt'),
        ('broken.parquet', [], 'broken.parquet cannot be read as a .parquet'),
        ('empty.jsonl', [], 'row 1 of empty.jsonl has a prompt, but its text is empty'),
    ],
)
def test_bad_rows_are_one_line_and_leave_nothing(
    script, tmp_path, bad_sources, source, options, said
):
    words = ['text', f'--source={source}', '--data_dir=out', *options]
    error = script('data/prepare.py', *words, code=1).stderr
    assert said in error
    assert error.count('\n') == 1
    assert not (tmp_path / 'out').exists()


def test_fields_are_for_texts_of_ones_own(script):
    script('data/prepare.py', 'pydocs', '--text_key=x', code=1)


def test_wikitext2_comes_with_both_splits_from_the_hub(tmp_path, monkeypatch):
    import datasets

    asked = []

    def load_dataset(repository, name, split, **options):
        asked.append((repository, name, split))
        return {'text': ['', f' = {split} = \n']}

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    p.prepare('wikitext2', tmp_path, tokenizer='bytes')
    wikitext = ('Salesforce/wikitext', 'wikitext-2-raw-v1')
    assert asked == [(*wikitext, 'test'), (*wikitext, 'train')]
    assert read_documents(tmp_path / 'wikitext2', 'train') == ['', ' = train =\n']
    again = p.prepare('wikitext2', tmp_path, tokenizer='bytes')
    assert again.splits.keys() == {'train', 'test'}
    assert len(asked) == 2


def test_openwebtext_goes_through_datasets(tmp_path, monkeypatch):
    import datasets

    asked = []

    def load_dataset(name, config=None, revision=None, **options):
        """The hub as it was when the set was still a script."""
        asked.append(revision)
        if revision is None:
            raise RuntimeError('Dataset scripts are no longer supported')
        return datasets.Dataset.from_dict({'text': TEXTS})

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    meta = p.prepare('openwebtext', tmp_path, tokenizer='bytes')
    assert asked == [None, 'refs/convert/parquet']
    assert meta.splits['val'].rows == 1
    train = read_documents(tmp_path / 'openwebtext', 'train')
    val = read_documents(tmp_path / 'openwebtext', 'val')
    assert sorted(train + val) == sorted(TEXTS)


def test_a_set_of_the_hub_without_a_network_names_its_command(tmp_path, monkeypatch):
    import datasets

    def load_dataset(*args, **options):
        raise ConnectionError('no\nroute')

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    for data_set, split, typed in (
        ('openwebtext', None, 'openwebtext'),
        ('wikitext2', None, 'wikitext2'),
        ('wikitext2', 'train', 'wikitext2 --split=train'),
    ):
        with one_line(f'python data/prepare.py {typed}, or'):
            p.prepare(data_set, tmp_path, tokenizer='bytes', split=split)
