"""results/run.py, whose commands are recorded: which it runs, and when it runs none."""

import importlib.util
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT, program_of

from anyorder.machine.terminal import one_line_errors
from configurator import configure

spec = importlib.util.spec_from_file_location('findings', os.path.join(ROOT, 'results', 'run.py'))
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """findings(*arguments, more=()) returns the commands that it has run.

    A command with --seed=13 fails. Sets are in the folder `data` of tmp_path."""
    commands = []
    out = tmp_path / 'my out'

    def record(words, stdout=None, **_):
        assert words[0] == sys.executable
        commands.append(words[1:])
        if stdout:
            print('said', file=stdout)
        returncode = 3 if '--seed=13' in words else 0
        return SimpleNamespace(returncode=returncode)

    def run_finding(*arguments, more=(), data='nowhere'):
        commands.clear()
        where = [f'--out={out}', f'--data_dir={tmp_path / data}']
        run.main(configure(vars(run), [*arguments, *where]), more)
        return list(commands)

    monkeypatch.setattr(subprocess, 'run', record)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')  # which jobs set
    monkeypatch.chdir(ROOT)
    return run_finding


def of(commands, script):
    return [c for c in commands if program_of(c)[0] == script]


def values(commands, option):
    """The values of this option in the commands, '' where one has none."""
    found = []
    for c in commands:
        given = [word for word in c if word.startswith(f'--{option}=')]
        found.append(given[0].partition('=')[2] if given else '')
    return found


def made_by(commands):
    """The trainings and the evaluations."""
    trained = of(commands, 'train.py')
    return trained, of(commands, 'eval_ppl.py') + of(commands, 'anyorder.extras.puzzles solve')


def of_seed(commands, seed):
    return [c for c in commands if f'_seed{seed}' in ' '.join(c)]


# how many trainings and evaluations a finding has by two seeds
NUMBERS = {
    'orders': (8, 0),
    'l2r_data': (4, 0),
    'positions': (20, 0),
    'gates': (8, 0),
    'ema': (6, 0),
    'ensemble': (8, 8),
    'networks': (10, 10),
    'two_stream': (14, 0),
    'adaptation': (10, 0),
    'swaps': (10, 2),
    'sudoku': (6, 6),
    'plateau': (8, 8),
    'zebra4': (6, 6),
    'countdown': (14, 14),
    'nae_sat': (6, 6),
}


@pytest.mark.parametrize('name', NUMBERS)
def test_every_command_of_a_finding_is_run_once(findings, name):
    commands = findings(name, '--jobs=2', more=['--dtype=float32'])
    trained, measured = made_by(commands)
    assert (len(trained), len(measured)) == NUMBERS[name]

    # each has a place of its own, and is drawn or measured
    made = {*values(trained, 'out_dir'), *values(measured, 'out')}
    assert len(made) == len(trained + measured)
    drawn = of(commands, 'anyorder.extras.pictures')
    paths = {word for c in drawn for word in c[2:] if not word.startswith('-')}
    assert drawn
    assert paths <= made
    assert made - paths <= {os.path.dirname(ckpt) for ckpt in values(measured, 'ckpt')}

    # the set is not there; all else is finished
    assert findings(name, '--jobs=2', more=['--dtype=float32']) == commands[:1] + drawn


@pytest.mark.parametrize('name', NUMBERS)
def test_every_command_of_a_finding_is_understood(findings, script, tmp_path, name):
    trained, measured = made_by(findings(name))
    ones = of_seed(trained + measured, 1)
    twos = of_seed(trained + measured, 2)
    assert len(ones + twos) == len(trained + measured)

    # but for their number seeds have the same commands
    as_ones = [re.sub(r'(seed=?|@)2\b', r'\g<1>1', '\n'.join(c)) for c in twos]
    assert sorted(as_ones) == sorted('\n'.join(c) for c in ones)

    # what a command lacks stops it once its options are checked
    for folder in ('config', 'results'):
        os.symlink(os.path.join(ROOT, folder), tmp_path / folder)
    for c in ones:
        said = script(*c, '--device=nowhere', code=1).stderr
        assert re.search('nowhere|no checkpoint file', said)


def test_sets_that_are_there_are_not_made_and_seeds_have_their_own_orders(findings, tmp_path):
    (tmp_path / 'there' / 'pydocs').mkdir(parents=True)
    first = findings('orders', data='missing')[0]
    assert first == ['data/prepare.py', 'pydocs', f'--data_dir={tmp_path / "missing"}']
    commands = findings('orders', '--seeds=7', data='there')
    assert not of(commands, 'data/prepare.py')
    trained = of(commands, 'train.py')
    assert values(trained, 'data_dir') == [str(tmp_path / 'there')] * 4
    assert values(trained, 'order') == ['l2r', 'block@7', 'fixed@7', '']


def test_seeds_are_numbers_whatever_blanks_stand_between_them(findings):
    trained = of(findings('l2r_data', '--seeds=1, 02'), 'train.py')
    folders = values(trained, 'out_dir')
    assert {folder.rpartition('_')[2] for folder in folders} == {'seed1', 'seed2'}


def test_a_command_that_fails_is_one_line():
    with (
        pytest.raises(SystemExit, match='error: Command .* returned non-zero exit status 3'),
        one_line_errors(),
    ):
        subprocess.run([sys.executable, '-c', 'raise SystemExit(3)'], check=True)


def test_evaluations_want_sets_that_are_there(findings, tmp_path, capsys):
    (tmp_path / 'there' / 'graded').mkdir(parents=True)
    commands = findings('sudoku', '--seeds=1', data='there')
    assert 'left out: sudoku_diabolical, whose puzzles are not in' in capsys.readouterr().out
    assert (
        values(of(commands, 'anyorder.extras.puzzles solve'), 'dataset')
        == [''] * 3 + ['graded'] * 3
    )
    drawn = of(commands, 'anyorder.extras.pictures')
    pictures = [os.path.basename(path) for path in values(drawn, 'out')]
    assert pictures == ['sudoku.png', 'sudoku_solved.png', 'sudoku_graded.png']
    assert values(drawn, 'labels') == ['decoder,encoder,mixed'] * 3


def test_other_options_want_another_folder_and_a_failure_stops(findings, capsys):
    findings('l2r_data', '--seeds=1', more=['--wandb_run_name=it is "mine"'])
    with pytest.raises(ValueError, match='made by other options.*choose another --out'):
        findings('l2r_data')
    with pytest.raises(ValueError, match=r'base_seed1 was made by other options'):
        findings('ema', '--seeds=1')
    commands = []
    for _ in range(2):  # what failed is run again
        with pytest.raises(ValueError, match='ended with code 3') as e:
            commands = findings('gates', '--seeds=13')
        assert not commands
        assert e.value.args[0].endswith('.part has what it said')
        said = capsys.readouterr().out
        assert said.index('.part') < said.index('failed, and ')  # known while it runs


@pytest.mark.parametrize(
    'arguments, said',
    [
        (['oders'], "the nearest is 'orders'"),
        (['orders', '--seeds=1 2'], 'seeds must be numbers'),
        ([], 'name one of'),
        (['orders', '--jobs=0'], 'jobs must be at least 1'),
        (['orders', '--max_iters=2'], "no option 'max_iters'"),
    ],
)
def test_wrong_questions_are_one_line(findings, arguments, said):
    with pytest.raises(ValueError, match=said):
        findings(*arguments)


def test_a_run_that_starts_from_another_comes_after_it(findings):
    trained = of(findings('adaptation', '--seeds=7', '--jobs=2'), 'train.py')
    made = values(trained, 'out_dir')
    starts = values(trained, 'init_from')
    assert {start.partition(':')[0] for start in starts} == {'auto'}
    weights = [start.removeprefix('auto').removeprefix(':') for start in starts]
    assert len([path for path in weights if path]) == 2
    for n, path in enumerate(weights):
        if path:
            assert path.endswith('before_seed7/ckpt.pt')
            assert os.path.dirname(path) in made[:n]


def test_evaluations_of_newer_weights_are_made_again(findings, tmp_path):
    def measured():
        return of(findings('networks', '--seeds=1'), 'eval_ppl.py')

    every = measured()
    assert every
    assert measured() == []
    for ckpt in values(every, 'ckpt'):
        os.makedirs(os.path.dirname(ckpt))
        with open(ckpt, 'w') as f:
            f.write('weights')
        os.utime(ckpt, (2e9, 2e9))
    assert measured() == every


def test_findings_are_listed_without_a_name():
    assert run.split([]) == (['--help'], [])
    assert run.split(['ema', '--jobs=2', '--', '--a=1', '--']) == (
        ['ema', '--jobs=2'],
        ['--a=1', '--'],
    )


def test_what_was_stopped_goes_on_by_the_same_command_alone(findings):
    with pytest.raises(ValueError, match='ended with code 3'):
        findings('ema', '--seeds=13')
    with pytest.raises(ValueError, match='made by other options'):
        findings('ema', '--seeds=13', more=['--dtype=float32'])
