"""wandb shows what a run did, in one chart, and ends no run that trains."""

import asyncio
import json
import os
import sys
from types import SimpleNamespace

import pytest
from conftest import one_line
from toy_runs import log, run

from anyorder.training.chart import start_chart
from anyorder.training.run_folder import RunFolder

RUN = ['--wandb_log=True', '--init_from=auto', '--dtype=float32']


class Wandb:
    """In place of the package: runs are files, and a step must be above the last one of its run."""

    def init(self, id, **how):
        self.path = f'{id}.chart'

    def Table(self, columns, texts):
        return [columns, texts]

    def log(self, entry, step):
        with open(self.path, 'a+') as f:
            f.seek(0)
            if step > max([json.loads(line)['iter'] for line in f], default=0):
                f.write(json.dumps(entry) + '\n')

    def finish(self):
        pass


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    return wandb


def charts():
    """Return the rows of all runs at wandb, by id."""
    found = {}
    for path in os.listdir():
        name, _, kind = path.partition('.')
        if kind == 'chart':
            with open(path) as f:
                found[name] = [json.loads(line) for line in f]
    return found


def test_a_chart_shows_the_log_and_a_resume_goes_on_in_it(data, wandb, monkeypatch):
    run(*RUN, '--max_iters=4')
    run(*RUN, '--max_iters=8')
    (rows,) = charts().values()
    for row, entry in zip(rows, log(), strict=True):
        assert ('samples' in row) == ('val_any' in row)
        row.pop('samples', None)
        entry.pop('environment', None)
        assert row == entry

    # another id, and a new run
    monkeypatch.setenv('WANDB_RUN_ID', 'b')
    run(*RUN, '--max_iters=9')
    monkeypatch.delenv('WANDB_RUN_ID')
    run(*RUN, '--max_iters=10')
    assert [row['iter'] for row in charts()['b']] == [9, 10]
    run(*RUN, '--max_iters=4', '--init_from=scratch')
    assert sorted(map(len, charts().values())) == [2, 4, 8]
    assert os.path.exists('out/wandb.txt.old-1')


OPTIONS = SimpleNamespace(
    wandb_log=True, wandb_project='', wandb_run_name='', out_dir='out', keys=lambda: ()
)


def failing(error):
    def fail(*args, **how):
        raise error

    return fail


def begun():
    os.makedirs('out', exist_ok=True)
    return start_chart(RunFolder('out'), OPTIONS)


ERRORS = (RuntimeError('no network\nat all'), KeyError(), SystemExit(1), asyncio.CancelledError())


@pytest.mark.parametrize('call', ['log', 'Table', 'finish'])
@pytest.mark.parametrize('error', ERRORS)
def test_a_wandb_that_fails_is_switched_off(wandb, monkeypatch, capsys, call, error):
    chart = begun()
    monkeypatch.setattr(wandb, call, failing(error))
    for it in (2, 4):
        chart.send({'iter': it}, [['left to right', 'a text']])
    chart.finish()
    said = capsys.readouterr().out
    assert 'switched off' in said
    assert said.count('\n') == 1


def test_ctrl_c_ends_a_run_in_the_midst_of_wandb(wandb, monkeypatch):
    chart = begun()
    monkeypatch.setattr(wandb, 'log', failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        chart.send({'iter': 2}, [])


@pytest.mark.parametrize('package', [None, SimpleNamespace(init=failing(OSError('no login\nx')))])
def test_a_wandb_that_does_not_begin_is_one_line(wandb, monkeypatch, package):
    monkeypatch.setitem(sys.modules, 'wandb', package)
    with one_line('^wandb: .*WANDB_MODE=offline needs no login'):
        begun()
