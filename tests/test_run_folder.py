"""What a run leaves on disk: checkpoints, a log that a resume cuts, files of an earlier run."""

import io
import os
import resource
import shutil
import signal

import pytest
import torch
from conftest import ROOT, make_model, one_line

from anyorder.checkpoint import load_checkpoint, save_checkpoint
from anyorder.training.run_folder import RunFolder, numbered, open_newest, read_log
from model import EMA

MODEL = make_model(vocab_size=320, n_tokens=257, n_layer=1, n_embd=4, n_head=1, n_cond=2)
AVERAGE = EMA(MODEL, 0.9)
RUN = {  # what a resume wants
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


def kept():
    """Return the iterations of the numbered checkpoints of the folder out."""
    return [saved(path) for path in numbered('out')]


def files():
    return sorted(os.listdir('out'))


def run_of(*iterations, keep=0):
    """Return the folder out, in which a run saved at these iterations."""
    folder = RunFolder('out', keep)
    folder.open()
    for it in iterations:
        folder.log({'iter': it})
    save(folder, *iterations)
    return folder


# checkpoints


@pytest.mark.parametrize('keep', [0, 1, 2])
def test_older_checkpoints_are_kept(keep):
    run_of(2, 4, 6, 8, 10, keep=keep)
    older = [2, 4, 6, 8][4 - keep :]
    assert saved() == 10
    assert kept() == older
    assert numbered('out') == [f'out/ckpt_000000{n}.pt' for n in older]
    save(RunFolder('out', keep, resumed=10), 10)  # the same iteration again, as after a stop
    assert saved() == 10
    assert kept() == older


@pytest.mark.parametrize('first', [0, 9_999_997, 99_999_998])
def test_checkpoints_are_kept_and_offered_by_their_number(first):
    """From ten million updates on a name has more digits, and sorts before the older ones."""
    run_of(*range(first, first + 5), keep=1)
    assert kept() == [first + 3]
    run_of(*range(first, first + 5), keep=3)
    assert kept() == [first + 1, first + 2, first + 3]
    os.truncate('out/ckpt.pt', 1000)
    with one_line(f'ckpt_{first + 3:07d}.pt is whole'):
        open_newest('out')


def test_other_files_are_no_checkpoints():
    run_of(1, 2, keep=1)
    for name in ('ckpt_1.pt', 'ckpt_0000001x.pt', 'ckpt_0000001.pt.tmp'):
        open(f'out/{name}', 'w').close()
    assert numbered('out') == ['out/ckpt_0000001.pt']


def test_where_there_are_no_links_an_older_checkpoint_is_copied(monkeypatch):
    def no_links(*args):
        raise OSError('not permitted')

    monkeypatch.setattr(os, 'link', no_links)
    run_of(2, 4, 6, keep=1)
    assert saved() == 6
    assert kept() == [4]
    assert files() == ['.lock', 'ckpt.pt', 'ckpt_0000004.pt', 'log.jsonl']


def test_a_run_that_was_killed_while_it_saved_saves_again():
    """The checkpoint of iteration 4 had its second name, and there was none of iteration 6."""
    folder = run_of(2, 4, keep=1)
    shutil.copy('out/ckpt.pt', 'out/ckpt_0000004.pt')
    save(folder, 6)
    assert saved() == 6
    assert kept() == [4]


def test_a_resume_removes_nothing_of_another_run():
    """Checkpoints of larger numbers beside a copied one are not older than what is saved now."""
    run_of(2, 4, 6, 8, 10, keep=4)
    shutil.copy('out/ckpt_0000004.pt', 'out/ckpt.pt')
    save(RunFolder('out', 1, resumed=4), 5)
    assert kept() == [4, 6, 8]


def damage():
    """Damage the two newest of four checkpoints."""
    for path in ('out/ckpt.pt', 'out/ckpt_0000006.pt'):
        os.truncate(path, os.path.getsize(path) - 1000)


WHOLE = 'out/ckpt_0000004.pt is whole: cp out/ckpt_0000004.pt out/ckpt.pt, then resume again'


@pytest.mark.parametrize(
    'act, said',
    [
        (damage, f'cannot be read as a checkpoint: .*; {WHOLE}'),
        (lambda: (damage(), os.remove('out/ckpt.pt')), f'^no checkpoint file .*; {WHOLE}'),
        (lambda: shutil.rmtree('out'), '^no checkpoint file .*; train one .*; --init_from=auto'),
    ],
)
def test_the_newest_checkpoint_that_is_whole_is_offered(act, said):
    run_of(2, 4, 6, 8, keep=3)
    act()
    with one_line(said):
        open_newest('out')


def test_a_checkpoint_that_is_copied_is_resumed():
    run_of(2, 4, 6, 8, keep=3)
    damage()
    shutil.copy('out/ckpt_0000004.pt', 'out/ckpt.pt')
    assert open_newest('out').iter_num == 4


@pytest.mark.parametrize(
    'lacks', ['config', 'ema_model', 'n_seen', 'logged', 'totals', 'optimizer']
)
def test_weights_alone_are_no_run(lacks):
    os.mkdir('out')
    average = None if lacks == 'ema_model' else AVERAGE
    entries = {name: value for name, value in RUN.items() if name != lacks}
    save_checkpoint('out/ckpt.pt', MODEL, average, iter_num=1, **entries)
    with one_line('no run that can be resumed: .* --init_from=out/ckpt.pt'):
        open_newest('out')


# an earlier run


def test_a_new_run_moves_the_files_of_an_earlier_one_aside_when_it_first_writes():
    run_of(6, 8, keep=1)
    folder = RunFolder('out', 1)
    folder.open()
    assert files() == ['.lock', 'ckpt.pt', 'ckpt_0000006.pt', 'log.jsonl']  # it may fail at once
    folder.log({'iter': 1})
    save(folder, 2, 4)
    aside = ['ckpt.pt.old-1', 'ckpt_0000006.pt.old-1', 'log.jsonl.old-1']
    assert [name for name in files() if '.old' in name] == aside
    assert saved('out/ckpt.pt.old-1') == 8
    assert saved('out/ckpt_0000006.pt.old-1') == 6
    assert read_log('out/log.jsonl') == [{'iter': 1}]
    assert kept() == [2]


def test_runs_that_are_set_aside_have_numbers():
    for iteration in (8, 4, 1):
        run_of(iteration)
    assert saved('out/ckpt.pt.old-1') == 8
    assert saved('out/ckpt.pt.old-2') == 4
    assert saved() == 1


def test_the_way_back_to_a_run_that_was_set_aside_is_said():
    run_of(8)
    run_of(4)
    os.remove('out/ckpt.pt')
    with one_line('an earlier run left out/ckpt.pt.old-1: .* take .old-1 off'):
        open_newest('out')


# the log


def test_a_resume_cuts_the_log_back_to_its_checkpoint():
    folder = run_of(2, 4)
    folder.log({'iter': 6, 'loss': 1.5})
    with open('out/log.jsonl', 'a') as f:
        f.write('{"iter": 8, "lo')
    assert read_log('out/log.jsonl')[-1] == {'iter': 6, 'loss': 1.5}
    RunFolder('out', resumed=4).open()
    with open('out/log.jsonl') as f:
        assert f.read() == '{"iter": 2}\n{"iter": 4}\n'


def test_a_checkpoint_that_another_process_wrote_is_not_resumed():
    """It did between reading and locking."""
    run_of(2, 4)
    with one_line('written by another process since'):
        RunFolder('out', resumed=2).open()


def test_the_first_line_of_every_start_says_what_computes_it():
    here = {'commit': 'a'}
    there = {'commit': 'b'}
    folder = RunFolder('out', environment=here)
    folder.open()
    folder.log({'iter': 1})
    folder.log({'iter': 2})
    save(folder, 2)
    folder.log({'iter': 3})
    folder = RunFolder('out', resumed=2, environment=there)
    folder.open()
    folder.log({'iter': 3})
    folder.log({'iter': 4})
    assert read_log('out/log.jsonl') == [
        {'iter': 1, 'environment': here},
        {'iter': 2},
        {'iter': 3, 'environment': there},
        {'iter': 4},
    ]


@pytest.mark.parametrize(
    'line',
    [
        '{"loss": 1}',
        '{"iter": "a"}',
        '{"iter": 1, "loss": null}',
        '[1, 2]',
        '3',
        'x',
        '',
        '\xff',
        '[' * 100000,
        '{"iter": 1, "loss": 1%s}' % ('0' * 400),
    ],
)
def test_a_line_that_is_no_entry_stops_no_resume(line):
    run_of(2, 4)
    log = f'{{"iter": 2}}\n{line}\n{{"iter": 4}}\n'.encode('latin-1')
    with open('out/log.jsonl', 'wb') as f:
        f.write(log + b'{"iter": 6}\n{"it')
    assert read_log('out/log.jsonl') == [{'iter': 2}, {}, {'iter': 4}, {'iter': 6}]
    RunFolder('out', resumed=4).open()
    with open('out/log.jsonl', 'rb') as f:
        assert f.read() == log


# processes


def test_two_runs_do_not_write_to_one_folder(forked):
    """A lock is a process's own."""
    folder = run_of(2)
    (finished,) = forked(lambda: RunFolder('out', resumed=2).open())
    assert finished.code == 1
    assert 'another process trains in out: wait, or use another' in finished.said
    assert saved() == 2
    assert folder.saved == 2


def test_a_run_that_has_not_saved_yet_is_told_from_one_that_was_set_aside(forked):
    run_of(2)
    folder = RunFolder('out')
    folder.open()
    folder.log({'iter': 1})
    (finished,) = forked(lambda: open_newest('out'))
    assert 'a run is going on in out, which has not saved yet' in finished.said
    assert '.old-1' not in finished.said


def test_the_first_process_alone_writes(monkeypatch):
    monkeypatch.setattr('anyorder.training.run_folder.processes', lambda: (1, 2))
    other = RunFolder('out', keep_checkpoints=1)
    other.open()
    other.log({'iter': 1})
    assert other.way_on() == 'start again, nothing was saved yet'
    save(other, 3)
    assert not os.path.exists('out')
    assert other.saved == 3
    command = f'torchrun ... {ROOT}/train.py --init_from=resume --out_dir=out'
    assert other.way_on() == f'go on from iteration 3 with: {command}'


def test_the_way_on_is_a_command_for_a_shell():
    folder = RunFolder('my runs', resumed=7)
    command = f"python {ROOT}/train.py --init_from=resume --out_dir='my runs'"
    assert folder.way_on() == f'go on from iteration 7 with: {command}'


# what cannot be written


@pytest.mark.parametrize('error', [OSError, RuntimeError])  # torch.save raises both
def test_a_save_that_fails_removes_no_older_checkpoint(monkeypatch, error):
    folder = run_of(2, 4, keep=1)

    def full(*args, **kwargs):
        raise error('no space')

    monkeypatch.setattr('anyorder.training.run_folder.write_checkpoint', full)
    with one_line('iteration 6 could not be written .no space.: go on from .* 4'):
        save(folder, 6)
    assert folder.saved == 4
    os.truncate('out/ckpt.pt', 1000)  # and ckpt_0000004.pt, another name for it
    with one_line('out/ckpt_0000002.pt is whole'):
        open_newest('out')


def test_a_full_disk_is_one_line_and_the_old_checkpoint_intact(forked):
    """The kernel refuses what is longer, as it would on a full disk."""
    run_of(4)
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
    assert files() == ['.lock', 'ckpt.pt', 'log.jsonl']


def test_a_folder_that_cannot_be_made_is_one_line():
    with one_line('/proc/none could not be written'):
        RunFolder('/proc/none').open()


def test_a_save_that_is_interrupted_says_so_and_how_to_go_on(monkeypatch):
    folder = run_of(4)
    save_to = torch.save

    class Interrupted(io.BytesIO):
        def write(self, data):
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, 'save', lambda checkpoint, f: save_to(checkpoint, Interrupted()))
    with one_line(r'iteration 8 could not be written \(interrupted\): go on from iteration 4 '):
        save(folder, 8)
    assert saved() == 4
    assert files() == ['.lock', 'ckpt.pt', 'log.jsonl']


def test_a_folder_that_is_removed_is_made_anew(forked):
    folder = run_of(2, 4, keep=1)
    shutil.rmtree('out')
    folder.log({'iter': 6})
    assert folder.way_on() == 'start again, nothing was saved yet'
    save(folder, 6)
    assert saved() == 6
    assert files() == ['.lock', 'ckpt.pt', 'log.jsonl']
    (finished,) = forked(lambda: RunFolder('out', resumed=6).open())
    assert 'another process trains in out' in finished.said


def test_a_checkpoint_that_is_removed_is_not_kept():
    folder = run_of(2, 4, keep=1)
    os.remove('out/ckpt.pt')
    save(folder, 8)
    assert saved() == 8
    assert kept() == [2]
