"""results/run.py and the programs beside the pages: what they run, on toys."""

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, one_line, program_of

from configurator import configure
from results import run


@pytest.fixture
def made(tmp_path, monkeypatch):
    """made(*arguments) returns [(program, words)] that a finding has run.

    A command with --seed=13 fails."""
    commands = []

    def record(words, **_):
        commands.append(program_of(words[1:]))
        return SimpleNamespace(returncode=3 if '--seed=13' in words else 0)

    def run_finding(*arguments, more=()):
        commands.clear()
        where = [f'--out={tmp_path}/my out', f'--data_dir={tmp_path}']
        run.main(configure(vars(run), [*arguments, *where]), more)
        return list(commands)

    monkeypatch.setattr(subprocess, 'run', record)
    monkeypatch.setattr(run, 'ROOT', tmp_path)  # to which it changes
    monkeypatch.setenv('OMP_NUM_THREADS', '1')  # which jobs set
    for folder in ('config', 'results'):
        os.symlink(f'{ROOT}/{folder}', folder)
    return run_finding


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """The option of the sets of all findings, of which a training makes one."""
    return f'--data_dir={tmp_path_factory.mktemp("data")}'


def values(commands, *options):
    words = [word.partition('=') for _, words in commands for word in words]
    return [value for option, _, value in words if option in options]


@pytest.mark.parametrize('name', run.FINDINGS)
def test_every_command_of_a_finding_is_understood_and_run_once(made, script, data, name):
    asked = [name, '--jobs=2']
    for wanted in run.FINDINGS[name].sets:
        if wanted in run.MADE_BY:
            continue
        with one_line(f'set {wanted} '):  # and nothing is begun
            made(*asked)
        os.mkdir(wanted)
    of_set, *commands = made(*asked)
    drawn = [command for command in commands if 'pictures' in command[0]]
    worked = [command for command in commands if command not in drawn]
    places = values(worked, '--out', '--out_dir')
    shown = {word for _, words in drawn for word in words if word[0] != '-'}
    assert len({*places}) == len(worked)
    assert set() < shown <= {*places}
    assert made(*asked) == [of_set, *drawn]  # all else is finished
    with one_line('other options'):
        made(*asked, more=['--dtype=float32'])
    for program, words in worked:
        if '_seed1' in str(words):  # what it lacks stops it once its options are checked
            said = script(program, *words, data, '--device=nowhere', code=1).stderr
            assert re.search('nowhere|no checkpoint|no whole', said)


def test_seeds_have_their_own_orders(made):
    commands = made('orders', '--seeds=1, 07')
    assert values(commands, '--seed') == ['1', '7'] * 4
    assert values(commands, '--order') == ['l2r', 'l2r', 'block@1', 'block@7', 'fixed@1', 'fixed@7']
    assert run.split(['orders', '--jobs=2', '--', '--x=1']) == (['orders', '--jobs=2'], ['--x=1'])


def test_evaluations_follow_newer_weights(made):
    for wanted in ('graded', 'diabolical'):
        os.mkdir(wanted)
    commands = made('graded', '--seeds=1')
    assert {*values(commands, '--dataset')} == {'sudoku_60k', 'graded', 'diabolical'}
    ckpt = Path(values(commands, '--ckpt')[0])
    ckpt.parent.mkdir()
    ckpt.touch()
    os.utime(ckpt, (2e9, 2e9))
    assert {*values(made('graded', '--seeds=1'), '--ckpt')} == {str(ckpt)}


@pytest.mark.parametrize(
    'arguments, said',
    [(['oders'], 'orders'), ([], 'name one'), (['gates', '--seeds=13'], 'code 3')],
)
def test_wrong_questions_and_commands_that_fail_are_one_line(made, arguments, said, capsys):
    shown = []
    for _ in range(2):
        with one_line(said):
            made(*arguments)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]  # what failed is run again
    assert shown[0].count('until it ends') == arguments.count('--seeds=13')
