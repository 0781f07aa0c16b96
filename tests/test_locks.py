"""Commands that write one file at once: they take turns, lose nothing and leave nothing, also when one is killed."""

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
from anyorder.likelihood.journal import Journal
from anyorder.machine import locks
from anyorder.machine.files import write_json
from anyorder.machine.locks import locked, temporary_name, tidy
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.meta import read_meta, write_meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.puzzles import prepare_puzzles
from sample import save

spec = importlib.util.spec_from_file_location('findings', os.path.join(ROOT, 'results', 'run.py'))
findings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(findings)
NAME = ('a set', '12ab', 'orders')
N_ROUNDS = 4  # 20 take minutes


# ---------------------------------------------------------------------------------------------------------------------
# a lock


def lock_files(folder):
    return {name: (folder / name).read_text() for name in os.listdir(folder)}


def test_a_lock_says_who_holds_it_and_is_empty_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, 'PATIENCE', 0.1)
    (tmp_path / 'set').mkdir()
    monkeypatch.setattr(sys, 'argv', ['data/prepare.py', 'text', '--name=my set'])
    with locked(tmp_path / 'set'):
        said = (
            f"process {os.getpid()} on {socket.gethostname()}: data/prepare.py text '--name=my set'"
        )
        with one_line(f'set is in use by {said}'), locked(tmp_path / 'set'):
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
    (tmp_path / 'a.txt').write_text('some text ' * 20)
    prepare('text', tmp_path, 'x', f'{tmp_path}/a.txt', tokenizer='bytes')
    assert sorted(os.listdir(tmp_path / 'x')) == ['meta.json', 'train.bin', 'val.bin']


def test_reading_makes_no_lock(tmp_path, monkeypatch):
    (tmp_path / 'a.txt').write_text('some text ' * 20)
    prepare('text', tmp_path, 'x', f'{tmp_path}/a.txt', tokenizer='bytes')
    monkeypatch.setattr(locks, 'take_lock', pytest.fail)
    open_split(tmp_path, 'x', 'val')


def test_a_lock_that_its_last_holder_removes_is_taken_anew(tmp_path):
    """The waiting process has opened the file that goes."""
    inside, seen = threading.Event(), []

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


# ---------------------------------------------------------------------------------------------------------------------
# temporary files


def test_temporary_files_go_if_their_maker_is_gone(tmp_path):
    path, host = tmp_path / 'x.bin', locks.host()
    gone = subprocess.Popen([sys.executable, '-c', ''])
    gone.wait()
    ended = subprocess.Popen([sys.executable, '-c', ''])  # nobody asks how
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with subprocess.Popen(['sleep', '60']) as alive:
        names = {
            f'x.bin.{host}.{gone.pid}.0.tmp': False,
            f'x.bin.{host}.{ended.pid}.0.tmp': False,
            f'x.bin.{host}.{os.getpid()}.99999.tmp': False,  # of an earlier process of this number
            f'x.bin.{host}.{alive.pid}.0.tmp': True,
            f'x.bin.elsewhere.{gone.pid}.0.tmp': True,
            f'x.bin.far-away.{gone.pid}.0.tmp': False,
            os.path.basename(temporary_name(path)): True,
            'x.bin.tmp': True,
            'x.bin.old.tmp': True,
            f'other.bin.{host}.{gone.pid}.0.tmp': True,
            'x.bin': True,
        }
        for name in names:
            (tmp_path / name).touch()
        os.utime(tmp_path / f'x.bin.far-away.{gone.pid}.0.tmp', (0, 0))
        tidy(path)
        alive.kill()
    ended.wait()
    assert sorted(os.listdir(tmp_path)) == sorted(name for name, stays in names.items() if stays)


def test_every_temporary_name_is_another(tmp_path):
    assert len({temporary_name(tmp_path / 'x') for _ in range(9)}) == 9


# ---------------------------------------------------------------------------------------------------------------------
# a set that is replaced


@pytest.fixture
def replaced(tmp_path):
    """replaced(text) prepares the set x anew, of this text."""

    def prepared(text):
        (tmp_path / 'a.txt').write_text(text * 30)
        return prepare(
            'text', tmp_path, 'x', str(tmp_path / 'a.txt'), tokenizer='bytes', force=True
        )

    return prepared


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
    assert hashlib.sha256(split.packed.tobytes()).hexdigest() == meta.splits['val'].sha256
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


# ---------------------------------------------------------------------------------------------------------------------
# writers at once: command k of four writes into a folder, and what it must find there afterwards

SPLITS = 's0', 's1', 's2', 's3'


def texts(folder, k, name='x', split=None, force=False):
    path = folder / f'{k}.txt'
    prepare('text', folder, name, str(path), SPLITS[k] if split is None else split, 'bytes', force)


def entry(folder, split):
    """The entry of a split in meta.json, whose file is as it says."""
    tokens, _ = open_split(folder, 'x', split)
    entries = json.loads((folder / 'x' / 'meta.json').read_text())['splits']
    assert hashlib.sha256(tokens.packed.tobytes()).hexdigest() == entries[split]['sha256']


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
    write_json(folder / 'r.json', [k] * 10000)


def a_result(folder, k):
    values = json.loads((folder / 'r.json').read_text())
    assert len(values) == 10000 and len({*values}) == 1


def samples(folder, k):
    class Config(dict):
        out = f'{folder}/s.json'

    save({'samples': [{'tokens': [k] * 1000}]}, Config())


def finding(folder, k):
    findings.make(
        str(folder / 'run'),
        ['-c', f'open({str(folder / "ran")!r}, "a").write("once")'],
        lambda words: '',
    )


def ran(folder, k):
    """It was finished once. What a killed program had begun may go on without it."""
    assert (folder / 'run.txt').exists() and (folder / 'ran').read_text() in ('once', 'once' * 2)


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
    """The life of command k, which begins when the pipe `start` is closed, and says in a file how it ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # bars
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.close(start[1])
    os.read(start[0], 1)
    said = ''
    try:
        write(folder, k)
    except BaseException as e:
        said = repr(e)
    (folder / f'{k}.said').write_text(said)


def run_at_once(write, folder, killed_after=None):
    """Four commands at the same time; the numbers of those that ended well. The first one is killed after a while."""
    for k in range(4):
        (folder / f'{k}.txt').write_text(f'text of {k}. ' * 50)
        np.save(folder / f'{k}.npy', np.roll(np.arange(100), k))  # the same tokens in another order
    start, ways = os.pipe(), multiprocessing.get_context('fork')
    processes = [ways.Process(target=command, args=(write, folder, k, start)) for k in range(4)]
    for process in processes:
        process.start()
    os.close(start[1])
    if killed_after is not None:
        time.sleep(killed_after)
        os.kill(processes[0].pid, signal.SIGKILL)
    for process in processes:
        process.join()
    os.close(start[0])
    ended = {
        k: (folder / f'{k}.said').read_text() for k in range(4) if (folder / f'{k}.said').exists()
    }
    assert not any(ended.values()) and len(ended) >= 4 - (killed_after is not None), ended
    return [*ended]


def left_over(folder):
    """What is no file of a set, no result and no empty lock."""
    found = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    return [
        name
        for name in found
        if name.endswith('.tmp') or name.endswith('.lock') and os.path.getsize(name)
    ]


@pytest.fixture
def quick(monkeypatch):
    """A set pydocs that is made in no time."""
    from anyorder.tokens import prepared as p

    monkeypatch.setattr(
        p,
        'DATA_SETS',
        p.DATA_SETS
        | {
            'pydocs': p.DataSet(
                lambda: [f'document {i}' for i in range(20)], 'bytes', 0.1, '', offline=True
            )
        },
    )
    monkeypatch.setattr('anyorder.datasets.DATA_SETS', p.DATA_SETS)


def check(name, tmp_path, n_rounds, killed):
    write, read = WRITERS[name]
    for round_ in range(n_rounds):
        folder = tmp_path / str(round_)
        folder.mkdir()
        for k in run_at_once(write, folder, 0.08 * round_ / n_rounds if killed else None):
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
