"""Disk and terminal: files that are whole or not there, bars, names that are checked before the work begins."""

import bz2
import contextlib
import gzip
import json
import lzma
import math
import os

import pytest
from conftest import one_line

from anyorder.likelihood.lengths import read_prior
from anyorder.machine.files import (
    check_checkpoint,
    check_folder,
    check_names,
    check_out,
    is_out_of_memory,
    read_text,
    reading,
    reading_text,
    replace_file,
    whole_files,
    whole_folder,
    write_json,
)
from anyorder.machine.terminal import progress
from anyorder.orders import read_order
from anyorder.others.weights import read_json
from anyorder.pictures.curves import read_run
from anyorder.tokens.arrays import read_arrays, read_names
from anyorder.tokens.meta import read_meta
from anyorder.tokens.prompts import read_prompts
from anyorder.tokens.sources import open_texts


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'f'
    replace_file(path, b'old')
    monkeypatch.setattr(os, 'fsync', lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b'new')
    assert path.read_bytes() == b'old' and os.listdir(tmp_path) == ['f']


def test_a_file_that_was_moved_aside_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match='no checkpoint file ckpt.pt; train one'):
        check_checkpoint('ckpt.pt')
    (tmp_path / 'run').mkdir()
    with pytest.raises(
        ValueError, match='run is a folder without .* name a checkpoint file, as run/ckpt.pt'
    ):
        check_checkpoint('run')
    for name in ('ckpt.pt.old-9', 'ckpt.pt.old-10', 'ckpt.pt.old-x', 'other.pt.old-11'):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match='an earlier run left ckpt.pt.old-10: .* take .old-10 off'):
        check_checkpoint('ckpt.pt')


def test_a_bar_is_one_of_the_terminal_and_outlives_it(monkeypatch):
    reading, writing = os.pipe()
    stream = open(writing, 'w', buffering=1)
    monkeypatch.setattr('sys.stderr', stream)
    bar = progress(total=3)
    assert bar.fp == stream  # as tqdm asks before it measures the terminal
    os.close(reading)
    bar.update(3)
    bar.close()
    with contextlib.suppress(OSError):
        stream.close()


@pytest.mark.parametrize(
    'error',
    [
        ValueError,
        RecursionError,
        KeyError('a'),
        OverflowError,
        EOFError,
        gzip.BadGzipFile('no gzip'),
        OSError(22, 'Invalid argument'),
    ],
)
def test_what_a_file_of_another_kind_raises_is_one_line(error):
    with (
        pytest.raises(ValueError, match='^a.json cannot be read as a log: name another$'),
        reading('a.json', 'a log', 'name another'),
    ):
        raise error


@pytest.mark.parametrize(
    'error',
    [
        MemoryError,
        RuntimeError('CUDA out of memory'),
        PermissionError(13, 'not yours'),
        FileNotFoundError(2, 'No such file'),
        KeyboardInterrupt,
    ],
)
def test_what_may_leave_a_file_fine_passes(error):
    with (
        pytest.raises(type(error) if isinstance(error, Exception) else error),
        reading('a.json', 'a log', ''),
    ):
        raise error


def test_files_that_belong_together_are_replaced_together(tmp_path):
    paths = [tmp_path / 'a', tmp_path / 'b']
    for path in paths:
        path.write_bytes(b'old')
    with pytest.raises(ZeroDivisionError), whole_files(*paths) as temporary:
        for name in temporary:
            with open(name, 'w') as f:
                f.write('new')
        raise ZeroDivisionError
    assert [path.read_bytes() for path in paths] == [b'old', b'old'] and sorted(
        os.listdir(tmp_path)
    ) == ['a', 'b']
    with pytest.raises(FileNotFoundError), whole_files(*paths) as (first, _), open(first, 'w') as f:
        f.write('new')  # the second was not written
    assert paths[0].read_bytes() == b'old' and sorted(os.listdir(tmp_path)) == ['a', 'b']
    write_json(paths[0], {'ü': [1, -math.inf, math.nan]})
    assert json.loads(paths[0].read_text(), parse_constant=pytest.fail) == {'ü': [1, None, None]}


def test_processes_that_write_the_same_files_do_not_meet(tmp_path):
    path = tmp_path / 'f'
    with whole_files(path) as (first,), open(first, 'w') as f:
        f.write('first')
        with whole_files(path) as (second,), open(second, 'w') as g:
            g.write('second')
        assert path.read_text() == 'second'
    assert path.read_text() == 'first' and os.listdir(tmp_path) == ['f']


MARK = '\ufeff'.encode()  # as editors of Windows write it
META = b'{"name": "x", "tokenizer": "bytes", "n_tokens": 257, "eos": 256, "splits": {}}'
ROW = b'{"text": "a"}\n'
READERS = [  # a name, parts of a file, what reads them, and what they hold
    ('a.txt', [b'one\n', b'two'], lambda path: list(open_texts(path)), ['one\ntwo']),
    ('a.raw', [b'one\n', b'two\n'], lambda path: list(open_texts(path)), ['one\n', 'two\n']),
    ('a.jsonl', [ROW, ROW + b'\n' + ROW], lambda path: list(open_texts(path)), ['a'] * 3),
    ('a.csv', [b'text,n\r\n', b'"a\r\nb",1\r\n'], lambda path: list(open_texts(path)), ['a\r\nb']),
    ('a.json', [b'[2, 0,', b' 1]'], read_order, [2, 0, 1]),
    ('a.json', [b'[2, 1]'], lambda path: read_prior(path, None), (2, 1)),
    ('a.json', [b'{"a": 1}'], read_json, {'a': 1}),
    (
        'a.jsonl',
        [b'{"prompt": "a"}\r\n', b'{"prompt": "b"}'],
        lambda path: read_prompts('', path),
        ['a', 'b'],
    ),
    (
        'a.jsonl',
        [b'[1, 2]\n', b'[3]'],
        lambda path: [row.tolist() for row in read_arrays(path)['']],
        [[1, 2], [3]],
    ),
    ('a.txt', [b'one\n', b'two\n'], read_names, ['one', 'two']),
    ('log.jsonl', [b'{"iter": 1}\n', b'{"iter": 2}\n'], read_run, [{'iter': 1}, {'iter': 2}]),
    ('meta.json', [META], lambda path: read_meta(os.path.dirname(path)).n_tokens, 257),
]


@pytest.mark.parametrize('name, parts, read, found', READERS)
def test_byte_order_marks_are_read_over_at_the_head_and_where_files_were_joined(
    tmp_path, name, parts, read, found
):
    for content in (
        b''.join(parts),
        MARK + b''.join(parts),
        b''.join(MARK + part for part in parts),
    ):
        (tmp_path / name).write_bytes(content)
        assert read(str(tmp_path / name)) == found


@pytest.mark.parametrize(
    'ending, opener', [('', open), ('.gz', gzip.open), ('.xz', lzma.open), ('.bz2', bz2.open)]
)
def test_a_mark_is_read_over_wherever_a_text_is_cut(tmp_path, ending, opener):
    path, text = tmp_path / f'a{ending}', 'ä€\n' * 5000
    for n in range(4):  # a letter and a mark lie across the ends of what is read at once
        with opener(path, 'wb') as f:
            f.write(b'.' * n + MARK + text.encode() + MARK + MARK + text.encode())
        assert read_text(path) == '.' * n + 2 * text
        with reading_text(path, '\n') as f:
            assert ''.join(iter(lambda: f.read(7), '')) == '.' * n + 2 * text


def test_a_result_is_written_through_a_link_and_all_else_in_its_place(tmp_path):
    (tmp_path / 'shared').mkdir()
    theirs = tmp_path / 'shared' / 'theirs.json'
    writers = {
        'a.json': lambda path: write_json(path, 1),
        'b.json': lambda path: replace_file(path, b'2'),
    }
    for link, write in writers.items():
        (tmp_path / link).symlink_to('shared/theirs.json')
        for before in ('old', None):  # None: the link leads to nothing yet
            theirs.write_text(before) if before else theirs.unlink()
            check_out('out', str(tmp_path / link), '.json')
            write(tmp_path / link)
            assert os.readlink(
                tmp_path / link
            ) == 'shared/theirs.json' and theirs.read_text().strip() in ('1', '2')
            assert os.listdir(tmp_path / 'shared') == ['theirs.json']
    theirs.write_text('theirs')
    with whole_files(tmp_path / 'a.json') as (name,), open(name, 'w') as f:
        f.write('ours')
    assert theirs.read_text() == 'theirs' and not (tmp_path / 'a.json').is_symlink()
    (tmp_path / 'gone.json').symlink_to('nowhere/x.json')
    (tmp_path / 'set.json').symlink_to('shared/meta.json')
    for link in ('gone', 'set'):
        with one_line('--out='):
            check_out('out', str(tmp_path / f'{link}.json'), '.json')


@pytest.mark.parametrize('cause', [OSError(28, 'No space left on device'), KeyboardInterrupt()])
def test_a_writer_that_fails_again_when_it_is_closed_says_what_it_began_with(tmp_path, cause):
    """As archives of torch and PDFs of matplotlib do."""
    with (
        pytest.raises(type(cause)) as e,
        whole_files(tmp_path / 'f') as (name,),
        open(name, 'wb') as f,
    ):
        f.write(b'half')
        try:
            raise cause
        finally:
            raise RuntimeError('enforce fail')
    assert os.listdir(tmp_path) == []
    assert e.value is cause and str(cause) in (
        '',
        f"[Errno 28] No space left on device: '{tmp_path}/f'",
    )


def test_a_folder_is_whole_or_not_there(tmp_path):
    """Nor is a file in its place ever lost."""
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / 'new') as folder:
        open(os.path.join(folder, 'a'), 'w').close()
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    (tmp_path / 'empty').mkdir()
    for name in ('new', 'empty'):
        with whole_folder(tmp_path / name) as folder:
            open(os.path.join(folder, name), 'w').close()
            assert not os.path.exists(tmp_path / name / name)
        assert os.listdir(tmp_path / name) == [name]
        with pytest.raises(OSError), whole_folder(tmp_path / name) as folder:
            pass
    assert sorted(os.listdir(tmp_path)) == ['empty', 'new']


def test_bytes_are_on_the_disk_before_the_name_is_theirs(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, 'fsync', lambda f: calls.append(os.fstat(f).st_size) or fsync(f))
    monkeypatch.setattr(
        os, 'replace', lambda a, b: calls.append(os.path.basename(b)) or replace(a, b)
    )
    replace_file(tmp_path / 'f', b'three')
    assert calls == [5, 'f']
    calls.clear()
    with whole_folder(tmp_path / 'd') as folder, open(os.path.join(folder, 'g'), 'wb') as f:
        f.write(b'four')
    assert calls == [4, 'd']


@pytest.mark.parametrize(
    'name, fine',
    [
        ('a-b.1', True),
        ('ä', True),
        ('../a', False),
        ('a/b', False),
        ('', False),
        ('-a', False),
        ('.a', False),
        ('a\n', False),
    ],
)
def test_names_are_plain(name, fine):
    with (
        contextlib.nullcontext()
        if fine
        else pytest.raises(ValueError, match='--name must be a plain name')
    ):
        check_names(name=name)


def test_a_folder_may_still_have_to_be_made(tmp_path):
    check_folder('--out', str(tmp_path / 'a' / 'b'))
    (tmp_path / 'file').write_text('')
    for path in ('', str(tmp_path / 'file'), str(tmp_path / 'file' / 'b')):
        with pytest.raises(ValueError, match='--out must name a folder'):
            check_folder('--out', path)


def test_out_of_memory_is_known_by_its_words():
    assert all(
        map(
            is_out_of_memory,
            (
                MemoryError(),
                RuntimeError('CUDA out of memory.'),
                RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            ),
        )
    )
    assert not is_out_of_memory(RuntimeError('shape mismatch'))


def test_a_result_overwrites_nothing_of_the_run(tmp_path):
    (tmp_path / 'c.pt').write_text('weights')
    (tmp_path / 'link.json').symlink_to(tmp_path / 'c.pt')
    check_out('out', str(tmp_path / 'new.json'), '.json', str(tmp_path / 'c.pt'))
    check_out('out', '', '.json', '')
    for path, others in (
        (tmp_path / 'c.pt', [tmp_path / 'c.pt']),
        (tmp_path / 'link.json', ['', tmp_path / 'c.pt']),
        (tmp_path / 'test.bin', []),
        (tmp_path, []),
        (tmp_path / 'meta.json', []),
        (tmp_path / 'none' / 'x.json', []),
        ('/dev/null', []),
    ):
        with pytest.raises(ValueError, match='--out='):
            check_out('out', str(path), '.json', *map(str, others))
