"""Disk and terminal: files that are whole or not there, bars, names checked before the work."""

import bz2
import contextlib
import gzip
import json
import lzma
import math
import os

import pytest
from conftest import one_line

from anyorder.extras.hub.folders import whole_folder
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
    write_json,
)
from anyorder.machine.terminal import progress
from anyorder.order_options import read_order
from anyorder.tokens.arrays import read_names
from anyorder.tokens.prompts import read_prompts
from anyorder.tokens.sources import open_texts
from anyorder.weights import read_json


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'f'
    replace_file(path, b'old')

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, 'fsync', interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b'new')
    assert path.read_bytes() == b'old'
    assert os.listdir(tmp_path) == ['f']


def test_a_name_that_is_no_checkpoint_is_one_line(tmp_path):
    with one_line('no checkpoint file .*ckpt.pt; train one'):
        check_checkpoint(str(tmp_path / 'ckpt.pt'))
    with one_line('no checkpoint file'):
        check_checkpoint(str(tmp_path))


def test_a_bar_is_one_of_the_terminal_and_outlives_it(monkeypatch):
    reading, writing = os.pipe()
    stream = open(writing, 'w', buffering=1)
    monkeypatch.setattr('sys.stderr', stream)
    bar = progress(total=3)
    assert bar.fp == stream  # as tqdm asks before it writes a line above
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
    kind = type(error) if isinstance(error, Exception) else error
    with pytest.raises(kind), reading('a.json', 'a log', ''):
        raise error


@pytest.fixture
def two_old(tmp_path):
    """Two files, which are old."""
    paths = [tmp_path / 'a', tmp_path / 'b']
    for path in paths:
        path.write_bytes(b'old')
    return paths


def are_old(paths):
    """Whether the files are as `two_old` made them, and nothing lies beside them."""
    names = sorted(os.listdir(paths[0].parent))
    return names == ['a', 'b'] and all(path.read_bytes() == b'old' for path in paths)


def test_files_that_belong_together_stay_together_after_an_error(two_old):
    with pytest.raises(ZeroDivisionError), whole_files(*two_old) as temporary:
        for name in temporary:
            with open(name, 'w') as f:
                f.write('new')
        raise ZeroDivisionError
    assert are_old(two_old)


def test_files_that_belong_together_stay_together_if_one_is_not_written(two_old):
    with (
        pytest.raises(FileNotFoundError),
        whole_files(*two_old) as (first, _),
        open(first, 'w') as f,
    ):
        f.write('new')
    assert are_old(two_old)


def test_json_has_null_in_place_of_what_is_not_finite(tmp_path):
    path = tmp_path / 'a.json'
    write_json(path, {'ü': [1, -math.inf, math.nan]})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {'ü': [1, None, None]}


MARK = '\ufeff'.encode()  # as editors of Windows write it
ROW = b'{"text": "a"}\n'


def texts(path):
    return list(open_texts(path))


def prompts(path):
    return read_prompts(f'FILE:{path}')


TWO_PROMPTS = [b'{"prompt": "a"}\r\n', b'{"prompt": "b"}']
READERS = [  # a name, parts of a file, what reads them, and what they hold
    ('a.txt', [b'one\n', b'two'], texts, ['one\ntwo']),
    ('a.raw', [b'one\n', b'two\n'], texts, ['one\n', 'two\n']),
    ('a.jsonl', [ROW, ROW + b'\n' + ROW], texts, ['a', 'a', 'a']),
    ('a.csv', [b'text,n\r\n', b'"a\r\nb",1\r\n'], texts, ['a\r\nb']),
    ('a.json', [b'[2, 0,', b' 1]'], read_order, [2, 0, 1]),
    ('a.json', [b'{"a": 1}'], read_json, {'a': 1}),
    ('a.jsonl', TWO_PROMPTS, prompts, ['a', 'b']),
    ('a.txt', [b'one\n', b'two\n'], read_names, ['one', 'two']),
]


@pytest.mark.parametrize('name, parts, read, found', READERS)
def test_byte_order_marks_are_read_over_at_the_head_and_where_files_were_joined(
    tmp_path, name, parts, read, found
):
    path = tmp_path / name
    whole = b''.join(parts)
    joined = b''.join(MARK + part for part in parts)
    for content in (whole, MARK + whole, joined):
        path.write_bytes(content)
        assert read(str(path)) == found


@pytest.mark.parametrize(
    'ending, opener', [('', open), ('.gz', gzip.open), ('.xz', lzma.open), ('.bz2', bz2.open)]
)
def test_a_mark_is_read_over_wherever_a_text_is_cut(tmp_path, ending, opener):
    path = tmp_path / f'a{ending}'
    text = ''.join('ä€\n' for _ in range(5000))
    for dots in (
        '',
        '.',
        '..',
        '...',
    ):  # letter and mark lie across the ends of what is read at once
        with opener(path, 'wb') as f:
            f.write(dots.encode() + MARK + text.encode() + MARK + MARK + text.encode())
        assert read_text(path) == dots + text + text
        with reading_text(path, '\n') as f:
            pieces = iter(lambda: f.read(7), '')
            assert ''.join(pieces) == dots + text + text


@pytest.fixture
def link(tmp_path):
    """A link to shared/theirs.json, which is not there yet."""
    (tmp_path / 'shared').mkdir()
    link = tmp_path / 'link.json'
    link.symlink_to('shared/theirs.json')
    return link


@pytest.mark.parametrize('is_there', [True, False])
def test_a_result_is_written_through_a_link(tmp_path, link, is_there):
    theirs = tmp_path / 'shared' / 'theirs.json'
    if is_there:
        theirs.write_text('old')
    check_out('out', str(link), '.json')
    for write, value in ((write_json, 1), (replace_file, b'2')):
        write(link, value)
        assert os.readlink(link) == 'shared/theirs.json'
        assert int(theirs.read_text()) == int(value)
        assert os.listdir(tmp_path / 'shared') == ['theirs.json']


def test_what_is_no_result_takes_the_place_of_a_link(tmp_path, link):
    theirs = tmp_path / 'shared' / 'theirs.json'
    theirs.write_text('theirs')
    with whole_files(link) as (name,), open(name, 'w') as f:
        f.write('ours')
    assert theirs.read_text() == 'theirs'
    assert not link.is_symlink()


@pytest.mark.parametrize('target', ['nowhere/x.json', 'shared/meta.json'])
def test_a_link_leads_a_result_to_no_missing_folder_and_no_set(tmp_path, link, target):
    (tmp_path / 'x.json').symlink_to(target)
    with one_line('--out='):
        check_out('out', str(tmp_path / 'x.json'), '.json')


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
    assert e.value is cause
    if isinstance(cause, OSError):
        assert cause.filename == f'{tmp_path}/f'


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


@pytest.fixture
def disk_calls(monkeypatch):
    """What was done, in order: the size of a file that went to the disk, or the name it got."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(f):
        calls.append(os.fstat(f).st_size)
        fsync(f)

    def noted_replace(old, new):
        calls.append(os.path.basename(new))
        replace(old, new)

    monkeypatch.setattr(os, 'fsync', noted_fsync)
    monkeypatch.setattr(os, 'replace', noted_replace)
    return calls


def test_bytes_are_on_the_disk_before_the_name_is_theirs(tmp_path, disk_calls):
    replace_file(tmp_path / 'f', b'three')
    assert disk_calls == [5, 'f']
    disk_calls.clear()
    with whole_folder(tmp_path / 'd') as folder, open(os.path.join(folder, 'g'), 'wb') as f:
        f.write(b'four')
    assert disk_calls == [4, 'd']


@pytest.mark.parametrize('name', ['a-b.1', 'ä'])
def test_names_are_plain(name):
    check_names(name=name)


@pytest.mark.parametrize('name', ['../a', 'a/b', '', '-a', '.a', 'a\n'])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match='--name must be a plain name'):
        check_names(name=name)


def test_a_folder_may_still_have_to_be_made(tmp_path):
    check_folder('--out', str(tmp_path / 'a' / 'b'))
    (tmp_path / 'file').write_text('')
    for path in ('', str(tmp_path / 'file'), str(tmp_path / 'file' / 'b')):
        with pytest.raises(ValueError, match='--out must name a folder'):
            check_folder('--out', path)


@pytest.mark.parametrize(
    'error',
    [
        MemoryError(),
        RuntimeError('CUDA out of memory.'),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`'),
    ],
)
def test_out_of_memory_is_known_by_its_words(error):
    assert is_out_of_memory(error)


def test_another_error_is_no_lack_of_memory():
    assert not is_out_of_memory(RuntimeError('shape mismatch'))


@pytest.fixture
def weights(tmp_path):
    """A checkpoint of the run, and a link to it."""
    (tmp_path / 'c.pt').write_text('weights')
    (tmp_path / 'link.json').symlink_to(tmp_path / 'c.pt')
    return str(tmp_path / 'c.pt')


def test_a_result_has_a_name_of_its_own(tmp_path, weights):
    check_out('out', str(tmp_path / 'new.json'), '.json', weights)
    check_out('out', '', '.json', '')


@pytest.mark.parametrize(
    'name', ['c.pt', 'link.json', 'test.bin', '.', 'meta.json', 'none/x.json', '/dev/null']
)
def test_a_result_overwrites_nothing_of_the_run(tmp_path, weights, name):
    with pytest.raises(ValueError, match='--out='):
        check_out('out', str(tmp_path / name), '.json', '', weights)
