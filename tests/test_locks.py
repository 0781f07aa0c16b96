"""Commands that write one file at once: they take turns, lose nothing and leave nothing.

Nor do they when one is killed."""

import hashlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import filelock
import numpy as np
import pytest
from conftest import ROOT, one_line

from anyorder import datasets
from anyorder.datasets import open_split
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.likelihood.journal import Journal
from anyorder.machine import locks
from anyorder.machine.files import write_json
from anyorder.machine.locks import locked, temporary_name, tidy
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.meta import read_meta, write_meta
from anyorder.tokens.prepared import prepare
from sample import save

spec = importlib.util.spec_from_file_location('findings', os.path.join(ROOT, 'results', 'run.py'))
findings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(findings)
NAME = ('a set', '12ab', 'orders')
N_ROUNDS = 4  # 20 take minutes


# --------------------------------------------------------------------------------------------------
# a lock


def test_a_lock_says_who_holds_it_and_is_empty_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, 'PATIENCE', 0.1)
    (tmp_path / 'set').mkdir()
    monkeypatch.setattr(sys, 'argv', ['data/prepare.py', 'text', '--name=my set'])
    computer = socket.gethostname()
    holder = f"process {os.getpid()} on {computer}: data/prepare.py text '--name=my set'"
    with locked(tmp_path / 'set'):
        with one_line(f'set is in use by {holder}'), locked(tmp_path / 'set'):
            pass
        with locked(tmp_path / 'other'):  # another one
            pass
    assert (tmp_path / '.set.lock').read_text() == ''
    with locked(tmp_path / 'set'):  # and it is free
        pass


def test_a_lock_of_what_is_not_there_goes(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / 'new' / 'data' / 'set'):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_one_folder_has_one_lock_by_every_name(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, 'PATIENCE', 0.1)
    (tmp_path / 'data' / 'set').mkdir(parents=True)
    (tmp_path / 'link').symlink_to(tmp_path / 'data')
    (tmp_path / 'other').symlink_to('data/set')
    monkeypatch.chdir(tmp_path)
    for name in 'link/set', 'data/set/', 'data/../data/set', 'other':
        with locked(tmp_path / 'data' / 'set'), one_line('in use'), locked(name):
            pass


def prepare_text(folder):
    """A set x of a little text."""
    (folder / 'a.txt').write_text(' '.join('some text' for _ in range(20)))
    prepare('text', folder, 'x', f'{folder}/a.txt', tokenizer='bytes')


@pytest.mark.parametrize(
    'error',
    [
        OSError(38, 'Function not implemented'),
        OSError(37, 'No locks available'),
        PermissionError(13, 'Permission denied'),
        NotImplementedError,
    ],
)
def test_without_locks_the_work_is_done_all_the_same(tmp_path, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(filelock.FileLock, 'acquire', fails)
    prepare_text(tmp_path)
    assert sorted(os.listdir(tmp_path / 'x')) == ['meta.json', 'train.bin', 'val.bin']


def test_reading_makes_no_lock(tmp_path, monkeypatch):
    prepare_text(tmp_path)
    monkeypatch.setattr(locks, 'take_lock', pytest.fail)
    open_split(tmp_path, 'x', 'val')


def test_a_lock_that_its_last_holder_removes_is_taken_anew(tmp_path):
    """The waiting process has opened the file that goes."""
    inside = threading.Event()
    seen = []

    def second():
        inside.wait()
        with locked(tmp_path / 'set'):
            seen.append(os.path.exists(tmp_path / '.set.lock'))

    thread = threading.Thread(target=second)
    thread.start()
    with locked(tmp_path / 'set'):
        inside.set()
        time.sleep(0.1)
    thread.join()
    assert seen == [True]


# --------------------------------------------------------------------------------------------------
# temporary files


@pytest.fixture
def makers(tmp_path):
    """Processes: one that is gone, and one that runs."""
    gone = subprocess.Popen([sys.executable, '-c', ''])
    gone.wait()
    alive = subprocess.Popen(['sleep', '60'])
    yield gone.pid, alive.pid
    alive.kill()
    alive.wait()


def test_temporary_files_go_if_their_maker_is_gone(tmp_path, makers):
    path = tmp_path / 'x.bin'
    gone, alive = makers
    host = locks.host()
    go = [
        f'x.bin.{host}.{gone}.0.tmp',
        f'x.bin.{host}.{os.getpid()}.99999.tmp',  # of an earlier process of this number
        f'x.bin.far-away.{gone}.0.tmp',
    ]
    stay = [
        f'x.bin.{host}.{alive}.0.tmp',
        f'x.bin.elsewhere.{gone}.0.tmp',
        os.path.basename(temporary_name(path)),
        'x.bin.tmp',
        'x.bin.old.tmp',
        f'other.bin.{host}.{gone}.0.tmp',
        'x.bin',
    ]
    for name in go + stay:
        (tmp_path / name).touch()
    os.utime(tmp_path / f'x.bin.far-away.{gone}.0.tmp', (0, 0))
    tidy(path)
    assert sorted(os.listdir(tmp_path)) == sorted(stay)


def test_every_temporary_name_is_another(tmp_path):
    assert len({temporary_name(tmp_path / 'x') for _ in range(9)}) == 9


# --------------------------------------------------------------------------------------------------
# a set that is replaced


@pytest.fixture
def replaced(tmp_path):
    """replaced(text) prepares the set x anew, of this text."""

    def prepared(text):
        source = tmp_path / 'a.txt'
        source.write_text(text * 30)
        return prepare('text', tmp_path, 'x', str(source), tokenizer='bytes', force=True)

    return prepared


def hash_of(split):
    return hashlib.sha256(split.packed.tobytes()).hexdigest()


@pytest.mark.parametrize('text', ['a longer text', 'other'])  # of another size, and of the same
def test_a_split_that_is_replaced_while_it_is_opened_is_opened_again(
    tmp_path, monkeypatch, replaced, text
):
    replaced('texts')
    read = datasets.read_split

    def read_late(*args):
        monkeypatch.setattr(datasets, 'read_split', read)
        replaced(text)
        return read(*args)

    monkeypatch.setattr(datasets, 'read_split', read_late)
    split, meta = open_split(tmp_path, 'x', 'val')
    assert hash_of(split) == meta.splits['val'].sha256
    assert meta == read_meta(tmp_path / 'x')


def test_a_replacement_that_is_killed_leaves_no_entry_of_another_file(
    tmp_path, monkeypatch, replaced
):
    replaced('texts')
    calls = []

    def killed(*args):
        calls.append(args)
        if len(calls) == 2:  # the files are the new ones
            raise KeyboardInterrupt
        write_meta(*args)

    monkeypatch.setattr('anyorder.tokens.folder.write_meta', killed)
    with pytest.raises(KeyboardInterrupt):
        replaced('other')
    assert read_meta(tmp_path / 'x').splits == {}
    monkeypatch.undo()
    assert replaced('other') == read_meta(tmp_path / 'x')


# --------------------------------------------------------------------------------------------------
# writers at once: command k of four writes into a folder, and what it must find there afterwards

SPLITS = 's0', 's1', 's2', 's3'


def texts(folder, k, name='x', split=None, force=False):
    if split is None:
        split = SPLITS[k]
    prepare('text', folder, name, str(folder / f'{k}.txt'), split, 'bytes', force)


def entry(folder, split):
    """The entry of a split in meta.json, whose file is as it says."""
    tokens, _ = open_split(folder, 'x', split)
    entries = json.loads((folder / 'x' / 'meta.json').read_text())['splits']
    assert hash_of(tokens) == entries[split]['sha256']


def same_text(folder, k, force=False):
    prepare('text', folder, 'x', str(folder / '0.txt'), '', 'bytes', force)


def arrays(folder, k):
    prepare_tokens(folder, 'x', str(folder / f'{k}.npy'), SPLITS[k])


def puzzles(folder, k):
    prepare_puzzles('sudoku4', folder, 'x', n_rows={'train': 20, 'val': 5, 'test': 5})


def journal(folder, k):
    found = Journal(f'{folder}/j.jsonl', {'model': 1})
    for block in range(10):
        found.add({(*NAME, 10 * k + block): [1.0 / 3, k]})


def blocks(folder, k):
    found = Journal(f'{folder}/j.jsonl', {'model': 1}).done
    assert all(found[(*NAME, 10 * k + block)] == [1.0 / 3, k] for block in range(10))


def result(folder, k):
    write_json(folder / 'r.json', [k for _ in range(10000)])


def a_result(folder, k):
    values = json.loads((folder / 'r.json').read_text())
    assert len(values) == 10000
    assert len({*values}) == 1


def samples(folder, k):
    save({'samples': [{'tokens': [k for _ in range(1000)]}]}, f'{folder}/s.json')


def finding(folder, k):
    program = f'open({str(folder / "ran")!r}, "a").write("once")'
    findings.make(str(folder / 'run'), ['-c', program])


def ran(folder, k):
    """It was finished once. What a killed program had begun may go on without it."""
    assert (folder / 'run.txt').exists()
    assert (folder / 'ran').read_text() in ('once', 'onceonce')


WRITERS = {
    'splits': (texts, lambda folder, k: entry(folder, SPLITS[k])),
    'one split': (same_text, lambda folder, k: entry(folder, 'val')),
    'one split by force': (
        lambda folder, k: same_text(folder, k, True),
        lambda folder, k: entry(folder, 'val'),
    ),
    'other texts by force': (
        lambda folder, k: texts(folder, k, split='', force=True),
        lambda folder, k: entry(folder, 'val'),
    ),
    'other sets': (
        lambda folder, k: texts(folder, k, f'set{k}', 'val'),
        lambda folder, k: open_split(folder, f'set{k}', 'val'),
    ),
    'arrays': (arrays, lambda folder, k: entry(folder, SPLITS[k])),
    'puzzles': (puzzles, lambda folder, k: entry(folder, 'test')),
    'a set that is made': (
        lambda folder, k: open_split(folder, 'pydocs', 'val'),
        lambda folder, k: open_split(folder, 'pydocs', 'train'),
    ),
    'journal': (journal, blocks),
    'result': (result, a_result),
    'samples': (samples, lambda folder, k: json.loads((folder / 's.json').read_text())),
    'finding': (finding, ran),
}


def command(write, folder, k, start):
    """The life of command k. It begins when the pipe `start` is closed, and says in a file how it
    ended."""
    for stream in (1, 2):  # bars
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    reading, writing = start
    os.close(writing)
    os.read(reading, 1)
    said = ''
    try:
        write(folder, k)
    except BaseException as e:
        said = repr(e)
    (folder / f'{k}.said').write_text(said)


def run_at_once(write, folder, killed_after=None):
    """Run four commands at the same time, of which the first is killed after a while, if at all.

    Returns the numbers of those that ended well."""
    for k in range(4):
        (folder / f'{k}.txt').write_text(f'text of {k}. ' * 50)
        np.save(folder / f'{k}.npy', np.roll(np.arange(100), k))  # the same tokens in another order
    start = reading, writing = os.pipe()
    ways = multiprocessing.get_context('fork')
    processes = [ways.Process(target=command, args=(write, folder, k, start)) for k in range(4)]
    for process in processes:
        process.start()
    os.close(writing)
    if killed_after is not None:
        time.sleep(killed_after)
        os.kill(processes[0].pid, signal.SIGKILL)
    for process in processes:
        process.join()
    os.close(reading)

    ended = {}
    for k in range(4):
        said = folder / f'{k}.said'
        if said.exists():
            ended[k] = said.read_text()
    least = 4 if killed_after is None else 3
    assert not any(ended.values()), ended
    assert len(ended) >= least
    return [*ended]


def left_over(folder):
    """What is no file of a set, no result and no empty lock."""
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            holds_words = name.endswith('.lock') and os.path.getsize(path)
            if name.endswith('.tmp') or holds_words:
                found.append(path)
    return found


@pytest.fixture
def quick(monkeypatch):
    """A set pydocs that is made in no time."""
    from anyorder.tokens import prepared

    def documents():
        return [f'document {i}' for i in range(20)]

    pydocs = prepared.DataSet(documents, 'bytes', 0.1, '', offline=True)
    sets = prepared.DATA_SETS | {'pydocs': pydocs}
    monkeypatch.setattr(prepared, 'DATA_SETS', sets)
    monkeypatch.setattr('anyorder.datasets.DATA_SETS', sets)


def check(name, tmp_path, n_rounds, killed):
    write, read = WRITERS[name]
    for round_ in range(n_rounds):
        folder = tmp_path / str(round_)
        folder.mkdir()
        killed_after = 0.08 * round_ / n_rounds if killed else None
        for k in run_at_once(write, folder, killed_after):
            read(folder, k)
        if killed:  # whoever comes next tidies up
            write(folder, 0)
            read(folder, 0)
        assert left_over(folder) == []


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='Windows has no fork')
@pytest.mark.parametrize('name', ['splits', 'journal'])
def test_commands_at_once_lose_nothing(tmp_path, quick, name):
    check(name, tmp_path, 2, False)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, 'fork'), reason='Windows has no fork')
@pytest.mark.parametrize('name, killed', [*itertools.product(WRITERS, (False, True))])
def test_many_rounds_of_four_commands(tmp_path, quick, name, killed):
    check(name, tmp_path, N_ROUNDS, killed)
