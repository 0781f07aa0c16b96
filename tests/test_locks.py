"""Commands that write one file at once: they take turns, lose nothing and leave nothing.

Nor do they when one is killed."""

import hashlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from conftest import ROOT, one_line

from anyorder import datasets
from anyorder.datasets import open_split
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.likelihood.journal import Journal
from anyorder.machine import locks
from anyorder.machine.files import write_json
from anyorder.machine.locks import locked
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


def test_one_folder_has_one_lock_by_every_name(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, 'PATIENCE', 0.1)
    (tmp_path / 'data' / 'set').mkdir(parents=True)
    (tmp_path / 'link').symlink_to(tmp_path / 'data')
    (tmp_path / 'other').symlink_to('data/set')
    monkeypatch.chdir(tmp_path)
    for name in 'link/set', 'data/set/', 'data/../data/set', 'other':
        with locked(tmp_path / 'data' / 'set'), one_line('in use'), locked(name):
            pass
        with locked(name):  # and it is free
            pass


def prepare_text(folder):
    """A set x of a little text."""
    (folder / 'a.txt').write_text(' '.join('some text' for _ in range(20)))
    prepare('text', folder, 'x', f'{folder}/a.txt', tokenizer='bytes')


def test_what_killed_processes_have_left_goes(tmp_path):
    """As another process takes the set in turn, and not before."""
    (tmp_path / 'x').mkdir()
    left = tmp_path / 'x' / 'val.bin.12.tmp'
    left.touch()
    with locked(tmp_path / 'x'):
        assert left.exists()
    prepare_text(tmp_path)
    assert sorted(os.listdir(tmp_path / 'x')) == ['meta.json', 'train.bin', 'val.bin']


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


FILES = ('journal', 'result', 'samples')  # no turn is taken, or nobody tidies up behind it


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
    """The temporary files in a folder and those below."""
    return [*folder.rglob('*.tmp')]


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
        if not killed or name not in FILES:
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
