"""What a run leaves on disk: checkpoints, a log that a resume cuts, files of an earlier run."""

import io
import os
import resource
import signal

import pytest
import torch
from conftest import ROOT, make_model, one_line

from anyorder.checkpoint import load_checkpoint, save_checkpoint
from anyorder.training.best import Best
from anyorder.training.run_folder import RunFolder, open_newest, read_log
from model import EMA

MODEL = make_model(vocab_size=320, n_tokens=257, n_layer=1, n_embd=4, n_head=1, n_cond=2)
AVERAGE = EMA(MODEL, 0.9)
RUN = {  # what a resume wants, beside the best
    'config': {},
    'tokenizer': 'bytes',
    'optimizer': [],
    'n_seen': 0,
    'logged': 0,
    'totals': None,
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(folder, *iterations):
    for it in iterations:
        folder.save(MODEL, AVERAGE, iter_num=it, **RUN)


def saved(path='out/ckpt.pt'):
    return load_checkpoint(path)['iter_num']


def files():
    return sorted(os.listdir('out'))


def run_of(*iterations, best=None):
    """Return the folder out, in which a run saved at these iterations."""
    folder = RunFolder('out', best=best)
    folder.open()
    for it in iterations:
        folder.log({'iter': it})
    save(folder, *iterations)
    return folder


def no_links(*args):
    raise OSError('not permitted')


# checkpoints


@pytest.mark.parametrize('has_links', [True, False])
def test_the_newest_the_one_before_and_the_best_are_kept(monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr(os, 'link', no_links)
    folder = run_of(2, 4, best=Best('val_any', keeps=True))
    folder.compare(6, {'val_any': 1.0})
    save(folder, 6, 8, 10)
    save(folder, 10)  # the same iteration again, as after a stop
    names = ('ckpt', 'ckpt_best', 'ckpt_old')
    assert [saved(f'out/{name}.pt') for name in names] == [10, 6, 8]
    assert files() == ['.lock', *(f'{name}.pt' for name in names), 'log.jsonl']


def test_a_resume_names_the_best_that_a_kill_left_without_its_name():
    best = Best('val_any', keeps=True)
    best.compare(4, {'val_any': 1.0})
    run_of(2, 4)
    RunFolder('out', resumed=4, best=best).open()
    assert saved('out/ckpt_best.pt') == 4


@pytest.mark.parametrize('is_there', [True, False])
def test_the_checkpoint_before_is_offered(is_there):
    run_of(2, 4)
    os.remove('out/ckpt.pt')
    if is_there:
        open('out/ckpt.pt', 'w').close()
    with one_line('; cp out/ckpt_old.pt out/ckpt.pt, then resume again'):
        open_newest('out')
    os.replace('out/ckpt_old.pt', 'out/ckpt.pt')
    assert open_newest('out').iter_num == 2


@pytest.mark.parametrize('lacks', ['config', 'ema_model', 'optimizer', 'best'])
def test_weights_alone_are_no_run(lacks):
    os.mkdir('out')
    average = None if lacks == 'ema_model' else AVERAGE
    entries = {name: value for name, value in (RUN | {'best': {}}).items() if name != lacks}
    save_checkpoint('out/ckpt.pt', MODEL, average, iter_num=1, **entries)
    with one_line('no run that can be resumed: .* --init_from=out/ckpt.pt'):
        open_newest('out')


# an earlier run


def test_a_new_run_moves_the_files_of_an_earlier_one_aside_when_it_first_writes():
    run_of(6, 8)
    open('out/notes.txt', 'w').close()
    folder = RunFolder('out')
    folder.open()
    assert saved() == 8  # it may fail at once
    folder.log({'iter': 1})
    save(folder, 2, 4)
    aside = ['ckpt.pt.old-1', 'ckpt_old.pt.old-1', 'log.jsonl.old-1']
    assert [name for name in files() if '.old' in name] == aside
    assert saved('out/ckpt.pt.old-1') == 8
    assert read_log('out/log.jsonl') == [{'iter': 1}]
    run_of(1)
    assert saved('out/ckpt.pt.old-2') == 4
    assert 'notes.txt' in files()


# the log


def test_a_resume_cuts_the_log_back_to_its_checkpoint():
    folder = run_of(2, 4)
    folder.log({'iter': 6, 'loss': 1.5})
    with open('out/log.jsonl', 'a') as f:
        f.write('3\n{"iter": 8, "lo')
    assert read_log('out/log.jsonl')[-1] == {'iter': 6, 'loss': 1.5}
    RunFolder('out', resumed=4).open()
    with open('out/log.jsonl') as f:
        assert f.read() == '{"iter": 2}\n{"iter": 4}\n'


def test_the_first_line_of_every_start_says_what_computes_it():
    for start, commit in ((None, 'a'), (2, 'b')):
        folder = RunFolder('out', start, {'commit': commit})
        folder.open()
        folder.log({'iter': 3})
        folder.log({'iter': 4})
        said = read_log('out/log.jsonl')[-2:]
        assert said == [{'iter': 3, 'environment': {'commit': commit}}, {'iter': 4}]


# processes


def test_two_runs_do_not_write_to_one_folder(forked):
    """A lock is a process's own."""
    folder = run_of(2)
    (finished,) = forked(lambda: RunFolder('out', resumed=2).open())
    assert finished.code == 1
    assert 'another process trains in out' in finished.said
    assert folder.saved == 2


def test_the_first_process_alone_writes(monkeypatch):
    monkeypatch.setattr('anyorder.training.run_folder.processes', lambda: (1, 2))
    other = RunFolder('out')
    other.open()
    other.log({'iter': 1})
    assert other.way_on() == 'start again, nothing was saved yet'
    save(other, 3)
    assert not os.path.exists('out')
    command = f'torchrun ... {ROOT}/train.py --init_from=resume --out_dir=out'
    assert other.way_on() == f'go on from iteration 3 with: {command}'


def test_the_way_on_is_a_command_for_a_shell():
    folder = RunFolder('my runs', resumed=7)
    command = f"python {ROOT}/train.py --init_from=resume --out_dir='my runs'"
    assert folder.way_on() == f'go on from iteration 7 with: {command}'


# what cannot be written


def test_what_a_killed_save_has_left_goes():
    run_of(2)
    for name in ('ckpt.pt.12.tmp', 'other.json.12.tmp'):
        open(f'out/{name}', 'w').close()
    RunFolder('out', resumed=2).open()
    assert files() == ['.lock', 'ckpt.pt', 'log.jsonl', 'other.json.12.tmp']


def test_a_full_disk_is_one_line_and_both_checkpoints_intact(forked):
    """The kernel refuses what is longer, as it would on a full disk."""
    run_of(2, 4)
    size = os.path.getsize('out/ckpt.pt') // 2

    def save_on_a_full_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        save(RunFolder('out', resumed=4), 8)

    (finished,) = forked(save_on_a_full_disk)
    line = finished.said.strip().splitlines()[-1]
    assert finished.code == 1
    assert 'out/ckpt.pt of iteration 8 could not be written (File too large): go on' in line
    assert saved() == 4
    assert files() == ['.lock', 'ckpt.pt', 'ckpt_old.pt', 'log.jsonl']


def test_a_folder_that_cannot_be_made_is_one_line():
    with one_line('/proc/none could not be written'):
        RunFolder('/proc/none').open()


@pytest.mark.parametrize(
    'error, why', [(KeyboardInterrupt, 'interrupted'), (RuntimeError('x'), 'x')]
)
def test_a_save_that_fails_says_so_and_how_to_go_on(monkeypatch, error, why):
    folder = run_of(4)
    save_to = torch.save

    class Failing(io.BytesIO):
        def write(self, data):
            raise error

    monkeypatch.setattr(torch, 'save', lambda checkpoint, f: save_to(checkpoint, Failing()))
    with one_line(rf'iteration 8 could not be written \({why}\): go on from iteration 4 '):
        save(folder, 8)
    assert saved() == 4
    assert files() == ['.lock', 'ckpt.pt', 'ckpt_old.pt', 'log.jsonl']
