"""wandb shows what a run did, whatever kills the run, and whatever fails at wandb."""

import asyncio
import glob
import itertools
import json
import os
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import ROOT, one_line
from toy_runs import TOY, log, run

import train
from anyorder.training import run_folder
from anyorder.training.chart import Chart
from anyorder.training.update import update

RUN = ['--wandb_log=True', '--init_from=auto', '--max_iters=10', '--dtype=float32']


class Wandb:
    """In place of the package: runs are files, and a step that is not above the last one of its run is dropped."""

    class Error(Exception):
        pass

    class CommError(Error):
        pass

    def init(self, id, **how):
        self.path = f'{id}.jsonl'

    def rows(self):
        return [json.loads(line) for line in open(self.path)] if os.path.exists(self.path) else []

    def Table(self, columns, texts):
        return [columns, texts]

    def log(self, entry, step):
        if step > max((row['iter'] for row in self.rows()), default=0):
            with open(self.path, 'a') as f:
                f.write(json.dumps(entry) + '\n')

    def finish(self):
        pass


@pytest.fixture
def wandb(monkeypatch):
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    return wandb


def charts():
    """{id: rows} of all runs at wandb."""
    return {
        name.removesuffix('.jsonl'): [json.loads(line) for line in open(name)]
        for name in glob.glob('*.jsonl')
    }


def assert_shows_the_log(rows):
    """Row by row what log.jsonl says, with samples where the run validates."""
    assert [{k: v for k, v in row.items() if k != 'samples'} for row in rows] == [
        {k: v for k, v in entry.items() if k != 'environment'} for entry in log()
    ]
    assert all(('samples' in row) == ('val_any' in row) for row in rows)


def kill_at(iteration, monkeypatch, where, wandb):
    """Kill this process at the iteration, or where it saves it or sends it."""

    def killing(function, is_time, before=True):
        def patched(*args, **how):
            if before and is_time(*args, **how):
                os._exit(9)
            function(*args, **how)
            if is_time(*args, **how):
                os._exit(9)

        return patched

    if where == 'an update':
        monkeypatch.setattr(
            train, 'update', killing(update, lambda state, *_: state.iter_num == iteration)
        )
    elif where == 'its checkpoint is written':
        monkeypatch.setattr(
            run_folder,
            'write_checkpoint',
            killing(
                run_folder.write_checkpoint,
                lambda path, checkpoint: checkpoint['iter_num'] == iteration,
            ),
        )
    elif where == 'it is sent':
        monkeypatch.setattr(
            Chart, 'send', killing(Chart.send, lambda self, iter_num: iter_num == iteration)
        )
    elif where == 'it is being sent':
        monkeypatch.setattr(
            wandb, 'log', killing(wandb.log, lambda entry, step: step == iteration, before=False)
        )


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
        kill_at(iteration, monkeypatch, where, wandb)
        run(*RUN)

    (finished,) = forked(killed)
    assert finished.code == 9, finished.said
    run(*RUN, '--learning_rate=3e-3', '--min_lr=1e-3')
    assert_shows_the_log(charts()[max(charts(), key=lambda id: os.path.getmtime(f'{id}.jsonl'))])
    assert len(log()) == 10 and len(charts()) == 1


@pytest.mark.slow
def test_a_run_whose_wandb_fails_goes_on(data, wandb, monkeypatch):
    def failing(entry, step):
        raise RuntimeError if step == 3 else AssertionError('it was called again')

    with monkeypatch.context() as m:
        m.setattr(
            wandb,
            'log',
            lambda entry, step: Wandb.log(wandb, entry, step) if step < 3 else failing(entry, step),
        )
        run(*RUN)
    assert (
        [len(rows) for rows in charts().values()] == [2]
        and len(log()) == 10
        and os.path.exists('out/ckpt.pt')
    )
    run(*RUN)  # is finished, but at wandb
    (rows,) = charts().values()
    assert_shows_the_log(rows)


class Options(dict):
    wandb_project, wandb_run_name, wandb_run_id, wandb_log, out_dir, max_iters = (
        '',
        '',
        'a',
        True,
        'out',
        8,
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a run that goes on at iteration 8 and has rows until then."""
    monkeypatch.chdir(tmp_path)
    os.mkdir('out')
    with open('out/log.jsonl', 'w') as f:
        f.writelines(json.dumps({'iter': it, 'environment': {}}) + '\n' for it in (2, 4, 6, 8))
    return run_folder.RunFolder('out', resumed=8)


def sent(folder, wandb, run_id='a', iter_num=8, has=0, **begun):
    """The iterations that a Chart sends up to `iter_num`, and the Chart."""
    chart, steps = Chart(folder, run_id, True, has), []
    wandb.init = lambda **how: SimpleNamespace(**begun)
    wandb.log = lambda entry, step: steps.append(step)
    chart.start(Options(), {})
    chart.send(iter_num)
    return steps, chart


def test_a_resume_sends_what_wandb_lacks(folder, wandb):
    assert sent(folder, wandb)[0] == [2, 4, 6, 8]  # was trained without wandb
    assert sent(folder, wandb, iter_num=6)[0] == [2, 4, 6]  # no checkpoint has more
    assert (
        sent(folder, wandb, has=8)[0] == []
    )  # an older run, which sent its rows as it logged them
    steps, chart = sent(folder, wandb, disabled=True)
    chart.finish()
    assert steps == [] and sent(folder, wandb)[0] == [2, 4, 6, 8]  # WANDB_MODE=disabled
    steps, chart = sent(folder, wandb, offline=False, step=6)  # the next one
    assert steps == [6, 8]  # wandb itself says what it has
    assert sent(folder, wandb)[0] == [2, 4, 6, 8]  # a process that was not ended may have lost them
    chart.finish()
    assert sent(folder, wandb)[0] == [] and sent(folder, wandb, run_id='b')[0] == [2, 4, 6, 8]
    assert (
        sent(folder, wandb, offline=True, step=0)[0] == []
    )  # it does not see what other parts of the run sent
    assert sent(folder, wandb, offline=False, step=0)[0] == [2, 4, 6, 8]  # another project
    for damaged in (
        '',
        '[]',
        '{"run": "a"}',
        '{"run": "a", "safe": "x", "samples": {}}',
        '{"run": "a", "safe": 1, "samples": {"x": []}}',
        '{"run": "a", "safe": 1, "samples": []}',
    ):
        with open('out/wandb.json', 'w') as f:
            f.write(damaged)
        assert sent(folder, wandb)[0] == [2, 4, 6, 8]


def test_samples_wait_for_their_rows_on_the_disk(folder, wandb):
    """Those of rows that a kill has undone are dropped, as the rows are."""
    for iter_num in (8, 10):
        Chart(folder, 'a', True).keep(iter_num, [['left to right', f'{iter_num}']])
        chart = Chart(folder, 'a', True)
        chart.start(Options(), {})
        chart.send(8)
        table = [['order', 'text'], [['left to right', '8']]]
        assert charts()['a'] == [
            {'iter': 2},
            {'iter': 4},
            {'iter': 6},
            {'iter': 8, 'samples': table},
        ]
        assert chart.samples.keys() == {'8'}


def test_an_earlier_runs_wandb_is_not_a_new_ones(folder, wandb):
    chart = sent(folder, wandb)[1]
    chart.finish()
    new = run_folder.RunFolder('out')
    assert Chart(new, 'a', True).safe == 0
    new.log({'iter': 1})
    Chart(new, 'b', True).keep(1, [])
    assert os.path.exists('out/wandb.json.old-1') and Chart(new, 'b', True).is_written


def test_a_run_that_goes_back_says_what_wandb_does_not_take(folder, wandb, capsys):
    sent(folder, wandb)[1].finish()
    chart = train.start_chart(SimpleNamespace(iter_num=4), folder, 0, Options())
    assert '--wandb_run_id' in capsys.readouterr().out and not chart.lacking(8)


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
    folder, wandb, capsys, monkeypatch, call, error
):
    def failing(*args, **how):
        raise error

    chart = Chart(folder, 'a', True)
    chart.keep(8, [['left to right', 'a text']])
    with monkeypatch.context() as m:
        m.setattr(wandb, call, failing)
        chart.start(Options(), {})
        chart.send(8)
        chart.finish()
    said = capsys.readouterr().out
    assert 'switched off' in said and said.count('\n') == 1
    assert sent(folder, wandb)[0] == [2, 4, 6, 8]


@pytest.mark.parametrize('error', [Wandb.Error('no such project\nat all'), ValueError('an option')])
def test_a_wrong_option_of_wandb_ends_a_run_before_it_trains(folder, wandb, monkeypatch, error):
    def init(**how):
        raise error

    monkeypatch.setattr(wandb, 'init', init)
    with one_line('^wandb: .*; WANDB_MODE=offline needs no login$'):
        Chart(folder, 'a', True).start(Options(), {})
    monkeypatch.setitem(sys.modules, 'wandb', None)  # is not installed
    with one_line('wandb_log needs the package wandb'):
        Chart(folder, 'a', True).start(Options(), {})
    with open('wandb.py', 'w') as f:
        f.write('raise AttributeError("made for another numpy")')
    monkeypatch.delitem(sys.modules, 'wandb')
    monkeypatch.syspath_prepend('.')
    with one_line('wandb_log needs the package wandb .made for another numpy.'):
        Chart(folder, 'a', True).start(Options(), {})


def test_errors_without_a_name_at_wandb_switch_it_off_too(folder, monkeypatch, capsys):
    def init(**how):
        raise RuntimeError('a change of the package')

    monkeypatch.setitem(sys.modules, 'wandb', SimpleNamespace(init=init))
    Chart(folder, 'a', True).start(Options(), {})
    assert 'switched off' in capsys.readouterr().out


def test_ctrl_c_ends_a_run_in_the_midst_of_wandb(folder, wandb, monkeypatch):
    def failing(*args, **how):
        raise KeyboardInterrupt

    for call in ('init', 'log'):
        with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
            m.setattr(wandb, call, failing)
            chart = Chart(folder, 'a', True)
            chart.start(Options(), {})
            chart.send(8)


def rows_of(path):
    """The history of an offline run: a file of records in the format of LevelDB's log behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    with open(path, 'rb') as f:
        text = f.read()
    at, part = 7, b''
    while at + 7 <= len(text):
        left = 2**15 - at % 2**15
        if left < 7:  # the end of a block
            at += left
            continue
        size, kind = struct.unpack('<HB', text[at + 4 : at + 7])
        part += text[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            record, part = Record.FromString(part), b''
            if record.HasField('history'):
                items = record.history.item
                yield {
                    item.key or '/'.join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }


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
        '--save_interval=50',
        '--eval_interval=25',
        '--lr_decay_iters=200',
    ]
    surroundings = os.environ | {'WANDB_MODE': 'offline', 'WANDB_SILENT': 'true'}
    p = subprocess.Popen(
        [*command, '--max_iters=100000'],
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (os.path.exists('out/log.jsonl') and log()[-1]['iter'] > 120):
        assert p.poll() is None
        time.sleep(0.1)
    p.kill()
    p.wait()
    subprocess.run(
        [*command, '--max_iters=200', '--learning_rate=3e-3'],
        env=surroundings,
        check=True,
        capture_output=True,
    )
    files = [[*rows_of(path)] for path in sorted(glob.glob('wandb/offline-run-*/*.wandb'))]
    assert (
        len(files) == 2 and len(files[0]) > 50
    )  # what was sent before the kill, without what wandb still held
    entries = {entry.pop('iter'): entry for entry in log()}
    for row in itertools.chain(*files):
        entry = entries[row['iter']]
        entry.pop('environment', None)
        assert row['_step'] == row['iter'] and {name: row[name] for name in entry} == entry
        assert ('samples/path' in row) == ('val_any' in entry)
    assert {row['iter'] for row in itertools.chain(*files)} == entries.keys() and len(
        entries
    ) == 200
