"""wandb shows what a run did, whatever kills the run, and whatever fails at wandb."""

import asyncio
import glob
import json
import os
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import ROOT, one_line
from toy_runs import TOY, interrupted, log, run

import train
from anyorder.training import run_folder
from anyorder.training.chart import Chart, start_chart

RUN = ['--wandb_log=True', '--init_from=auto', '--max_iters=10', '--dtype=float32']


class Wandb:
    """In place of the package: runs are files, and a step must be above the last one of its run."""

    class Error(Exception):
        pass

    class CommError(Error):
        pass

    def init(self, id, **how):
        self.path = f'{id}.jsonl'

    def Table(self, columns, texts):
        return [columns, texts]

    def log(self, entry, step):
        last = 0
        if os.path.exists(self.path):
            last = max(row['iter'] for row in rows_in(self.path))
        if step > last:
            with open(self.path, 'a') as f:
                f.write(json.dumps(entry) + '\n')

    def finish(self):
        pass


def rows_in(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


@pytest.fixture
def wandb(monkeypatch):
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    return wandb


def charts():
    """Return the rows of all runs at wandb, a list each."""
    return [rows_in(path) for path in glob.glob('*.jsonl')]


def assert_shows_the_log(rows):
    """Row by row what log.jsonl says, with samples where the run validates."""
    for row, entry in zip(rows, log(), strict=True):
        assert ('samples' in row) == ('val_any' in row)
        row.pop('samples', None)
        entry.pop('environment', None)
        assert row == entry


# runs that are killed


def dying(function, is_time):
    """Return the function, before whose call the process dies when it is time."""

    def call(*args):
        if is_time(*args):
            os._exit(9)
        return function(*args)

    return call


def kill_at(iteration, where, monkeypatch, wandb):
    """Kill this process at the iteration, or where it saves it or sends it."""
    if where == 'an update':
        monkeypatch.setattr(train, 'update', interrupted(iteration, lambda: os._exit(9)))
    elif where == 'its checkpoint is written':
        write = dying(run_folder.write_checkpoint, lambda _, c: c['iter_num'] == iteration)
        monkeypatch.setattr(run_folder, 'write_checkpoint', write)
    elif where == 'it is sent':
        send = dying(Chart.send, lambda self, iter_num: iter_num == iteration)
        monkeypatch.setattr(Chart, 'send', send)
    elif where == 'it is being sent':

        def log_and_die(entry, step):
            Wandb.log(wandb, entry, step)
            if step == iteration:
                os._exit(9)

        monkeypatch.setattr(wandb, 'log', log_and_die)


@pytest.mark.slow
@pytest.mark.parametrize(
    'iteration, where',
    [
        (6, 'an update'),
        (8, 'its checkpoint is written'),
        (8, 'it is sent'),
        (6, 'it is being sent'),
        (4, 'it is sent'),
        (10, 'it is sent'),
    ],
)
def test_what_a_kill_undoes_is_never_shown_and_all_else_is(
    data, forked, monkeypatch, wandb, iteration, where
):
    """The run goes on at another learning rate, which tells the rows of both apart."""

    def killed():
        kill_at(iteration, where, monkeypatch, wandb)
        run(*RUN)

    (finished,) = forked(killed)
    assert finished.code == 9, finished.said
    run(*RUN, '--learning_rate=3e-3', '--min_lr=1e-3')
    (rows,) = charts()
    assert len(rows) == 10
    assert_shows_the_log(rows)


@pytest.mark.slow
def test_a_run_whose_wandb_fails_goes_on(data, wandb, monkeypatch):
    """It is called no more, and a run that is given again sends what was lacking."""
    calls = []

    def fail_at_third(entry, step):
        calls.append(step)
        if step == 3:
            raise RuntimeError
        Wandb.log(wandb, entry, step)

    with monkeypatch.context() as patch:
        patch.setattr(wandb, 'log', fail_at_third)
        run(*RUN)
    assert calls == [1, 2, 3]
    assert len(log()) == 10
    assert os.path.exists('out/ckpt.pt')
    run(*RUN)
    (rows,) = charts()
    assert_shows_the_log(rows)


# what a chart sends


class Options(dict):
    wandb_project = ''
    wandb_run_name = ''
    wandb_run_id = 'a'
    wandb_log = True
    out_dir = 'out'
    max_iters = 8


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a run that goes on at iteration 8 and has rows until then."""
    monkeypatch.chdir(tmp_path)
    os.mkdir('out')
    with open('out/log.jsonl', 'w') as f:
        for it in (2, 4, 6, 8):
            f.write(json.dumps({'iter': it, 'environment': {}}) + '\n')
    return run_folder.RunFolder('out', resumed=8)


@pytest.fixture
def sent(folder, wandb):
    """sent(...) -> the iterations that a Chart sends up to `iter_num`, whose process is then lost.

    `begun` are the attributes of what wandb.init gives; `ends` ends the part of the run."""

    def send(run_id='a', iter_num=8, has=0, ends=False, **begun):
        steps = []
        wandb.init = lambda **how: SimpleNamespace(**begun)
        wandb.log = lambda entry, step: steps.append(step)
        chart = Chart(folder, run_id, True, has)
        chart.start(Options(), {})
        chart.send(iter_num)
        if ends:
            chart.finish()
        return steps

    return send


@pytest.mark.parametrize(
    'how, steps',
    [
        ({}, [2, 4, 6, 8]),  # was trained without wandb
        ({'iter_num': 6}, [2, 4, 6]),  # no checkpoint has more
        ({'has': 8}, []),  # an older run, which sent its rows as it logged them
        ({'disabled': True}, []),
        ({'offline': False, 'step': 6}, [6, 8]),  # the next one, as wandb itself says
        ({'offline': True, 'step': 6}, [2, 4, 6, 8]),
    ],
)
def test_a_resume_sends_what_wandb_lacks(sent, how, steps):
    assert sent(**how) == steps


def test_rows_of_a_process_that_was_lost_are_sent_again(sent):
    sent()
    assert sent() == [2, 4, 6, 8]


def test_rows_that_a_disabled_wandb_took_are_lacking(sent):
    sent(disabled=True, ends=True)
    assert sent() == [2, 4, 6, 8]


@pytest.mark.parametrize(
    'how, steps',
    [
        ({}, []),
        ({'offline': True, 'step': 0}, []),  # it does not see other parts of the run
        ({'offline': False, 'step': 0}, [2, 4, 6, 8]),  # another project
        ({'run_id': 'b'}, [2, 4, 6, 8]),
    ],
)
def test_rows_of_a_part_that_has_ended_are_safe(sent, how, steps):
    sent(ends=True)
    assert sent(**how) == steps


@pytest.mark.parametrize(
    'damaged',
    [
        '',
        '[]',
        '{"run": "a"}',
        '{"run": "a", "safe": "x", "samples": {}}',
        '{"run": "a", "safe": 1, "samples": {"x": []}}',
        '{"run": "a", "safe": 1, "samples": []}',
    ],
)
def test_a_record_that_is_damaged_says_nothing(sent, damaged):
    with open('out/wandb.json', 'w') as f:
        f.write(damaged)
    assert sent() == [2, 4, 6, 8]


def test_samples_wait_for_their_rows_on_the_disk(folder, wandb):
    """Those of rows that a kill has undone are dropped, as the rows are."""
    for iter_num in (8, 10):
        Chart(folder, 'a', True).keep(iter_num, [['left to right', f'{iter_num}']])
        chart = Chart(folder, 'a', True)
        chart.start(Options(), {})
        chart.send(8)
        table = [['order', 'text'], [['left to right', '8']]]
        last = {'iter': 8, 'samples': table}
        assert charts() == [[{'iter': 2}, {'iter': 4}, {'iter': 6}, last]]
        assert chart.samples.keys() == {'8'}


def test_an_earlier_runs_wandb_is_not_a_new_ones(folder, sent):
    sent(ends=True)
    new = run_folder.RunFolder('out')
    assert Chart(new, 'a', True).safe == 0
    new.log({'iter': 1})
    Chart(new, 'b', True).keep(1, [])
    assert os.path.exists('out/wandb.json.old-1')
    assert Chart(new, 'b', True).is_written


def test_a_run_that_goes_back_says_what_wandb_does_not_take(folder, sent, capsys):
    sent(ends=True)
    chart = start_chart(SimpleNamespace(iter_num=4), folder, 0, Options())
    assert 'WANDB_RUN_ID' in capsys.readouterr().out
    assert not chart.lacking(8)


# a wandb that fails


def failing(error):
    def fail(*args, **how):
        raise error

    return fail


ERRORS = (
    Wandb.CommError('no network\nat all'),
    RuntimeError(),
    KeyError('a'),
    OSError(5, 'x'),
    SystemExit(1),
    asyncio.CancelledError(),
)


@pytest.mark.parametrize('call', ['init', 'log', 'Table', 'finish'])
@pytest.mark.parametrize('error', ERRORS)
def test_a_wandb_that_fails_is_switched_off_and_a_resume_sends_all(
    folder, wandb, sent, capsys, monkeypatch, call, error
):
    chart = Chart(folder, 'a', True)
    chart.keep(8, [['left to right', 'a text']])
    with monkeypatch.context() as patch:
        patch.setattr(wandb, call, failing(error))
        chart.start(Options(), {})
        chart.send(8)
        chart.finish()
    said = capsys.readouterr().out
    assert 'switched off' in said
    assert said.count('\n') == 1
    assert sent() == [2, 4, 6, 8]


@pytest.mark.parametrize('error', [Wandb.Error('no such project\nat all'), ValueError('an option')])
def test_a_wrong_option_of_wandb_ends_a_run_before_it_trains(folder, wandb, monkeypatch, error):
    monkeypatch.setattr(wandb, 'init', failing(error))
    with one_line('^wandb: .*; WANDB_MODE=offline needs no login$'):
        Chart(folder, 'a', True).start(Options(), {})


def test_a_wandb_that_is_not_installed_is_one_line(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    with one_line('wandb_log needs the package wandb'):
        Chart(folder, 'a', True).start(Options(), {})


def test_a_wandb_that_is_broken_is_one_line(folder, monkeypatch):
    with open('wandb.py', 'w') as f:
        f.write('raise AttributeError("made for another numpy")')
    monkeypatch.delitem(sys.modules, 'wandb', raising=False)
    monkeypatch.syspath_prepend('.')
    with one_line('wandb_log needs the package wandb .made for another numpy.'):
        Chart(folder, 'a', True).start(Options(), {})


def test_errors_without_a_name_at_wandb_switch_it_off_too(folder, monkeypatch, capsys):
    module = SimpleNamespace(init=failing(RuntimeError('a change of the package')))
    monkeypatch.setitem(sys.modules, 'wandb', module)
    Chart(folder, 'a', True).start(Options(), {})
    assert 'switched off' in capsys.readouterr().out


@pytest.mark.parametrize('call', ['init', 'log'])
def test_ctrl_c_ends_a_run_in_the_midst_of_wandb(folder, wandb, monkeypatch, call):
    monkeypatch.setattr(wandb, call, failing(KeyboardInterrupt()))
    chart = Chart(folder, 'a', True)
    with pytest.raises(KeyboardInterrupt):
        chart.start(Options(), {})
        chart.send(8)


# the package itself


def rows_of(path):
    """Yield the history of an offline run: records in the format of LevelDB's log.

    They stand behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    with open(path, 'rb') as f:
        text = f.read()
    at = 7
    part = b''
    while at + 7 <= len(text):
        left = 2**15 - at % 2**15
        if left < 7:  # the end of a block
            at += left
            continue
        size, kind = struct.unpack('<HB', text[at + 4 : at + 7])
        part += text[at + 7 : at + 7 + size]
        at += 7 + size
        if kind not in (1, 4):  # neither whole, nor its last part
            continue
        record = Record.FromString(part)
        part = b''
        if record.HasField('history'):
            row = {}
            for item in record.history.item:
                row[item.key or '/'.join(item.nested_key)] = json.loads(item.value_json)
            yield row


@pytest.mark.slow
def test_the_real_wandb_offline_holds_every_row_of_a_run_that_was_killed(data):
    """Its files together show the log and nothing else; a row that occurs twice is the same row."""
    pytest.importorskip('wandb')
    command = [
        sys.executable,
        f'{ROOT}/train.py',
        *TOY,
        '--wandb_log=True',
        '--init_from=auto',
        '--eval_interval=25',
        '--lr_decay_iters=200',
    ]
    quiet = {
        'env': os.environ | {'WANDB_MODE': 'offline', 'WANDB_SILENT': 'true'},
        'stdout': subprocess.DEVNULL,
        'stderr': subprocess.DEVNULL,
    }
    p = subprocess.Popen([*command, '--max_iters=100000'], **quiet)
    while not (os.path.exists('out/log.jsonl') and log()[-1]['iter'] > 120):
        assert p.poll() is None
        time.sleep(0.1)
    p.kill()
    p.wait()
    subprocess.run([*command, '--max_iters=200', '--learning_rate=3e-3'], check=True, **quiet)

    paths = sorted(glob.glob('wandb/offline-run-*/*.wandb'))
    before, after = ([*rows_of(path)] for path in paths)
    assert before  # what was sent before the kill, without what wandb still held
    entries = {entry.pop('iter'): entry for entry in log()}
    assert len(entries) == 200
    assert {row['iter'] for row in before + after} == entries.keys()
    for row in before + after:
        entry = entries[row['iter']]
        entry.pop('environment', None)
        assert row['_step'] == row['iter']
        assert {name: row[name] for name in entry} == entry
        assert ('samples/path' in row) == ('val_any' in entry)
