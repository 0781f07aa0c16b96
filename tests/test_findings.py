"""results/run.py, whose commands are recorded: which it runs, and when it runs none."""

import importlib.util
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT

from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.prepared import prepare
from configurator import configure

spec = importlib.util.spec_from_file_location('findings', os.path.join(ROOT, 'results', 'run.py'))
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """findings(*arguments, more=()) returns the commands that it has run; those with --seed=13 fail."""
    commands, out = [], tmp_path / 'my out'

    def record(words, stdout=None, **_):
        assert words[0] == sys.executable
        commands.append(words[1:])
        if stdout:
            print('said', file=stdout)
        return SimpleNamespace(returncode=3 if '--seed=13' in words else 0)

    def run_finding(*arguments, more=(), data='nowhere'):
        commands.clear()
        run.main(
            configure(vars(run), [*arguments, f'--out={out}', f'--data_dir={tmp_path / data}']),
            more,
        )
        return list(commands)

    monkeypatch.setattr(subprocess, 'run', record)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')  # which jobs set
    monkeypatch.chdir(ROOT)
    return run_finding


def of(commands, script):
    return [c for c in commands if c[0] == script]


@pytest.mark.parametrize(
    'name, n_train, n_measure',
    [
        ('orders', 8, 0),
        ('l2r_data', 4, 0),
        ('positions', 20, 0),
        ('gates', 8, 0),
        ('ema', 6, 0),
        ('ensemble', 8, 8),
        ('networks', 10, 10),
        ('two_stream', 14, 0),
        ('adaptation', 10, 0),
        ('swaps', 10, 2),
        ('sudoku', 6, 6),
        ('plateau', 8, 8),
        ('zebra4', 6, 6),
        ('nae_sat', 6, 6),
        ('infilling', 8, 0),
        ('repeated', 16, 0),
        ('stars', 22, 0),
        ('facts', 10, 0),
    ],
)
def test_every_command_of_a_finding_is_understood_and_run_once(
    findings, script, tmp_path, name, n_train, n_measure
):
    commands = findings(name, '--jobs=2', more=['--dtype=float32'])
    trained = of(commands, 'train.py') + of(commands, run.FIM)
    drawn = of(commands, 'plot.py')
    measured = of(commands, 'eval_ppl.py') + of(commands, 'eval_puzzle.py')
    made = {
        word.partition('=')[2]
        for c in trained + measured
        for word in c
        if re.match('--out(_dir)?=', word)
    }
    assert (
        len(trained) == n_train and len(measured) == n_measure and len(made) == n_train + n_measure
    )
    paths = {word for c in drawn for word in c[3:] if not word.startswith('-')}
    assert drawn and paths <= made
    assert made - paths <= {
        c[1][len('--ckpt=') : -len('/ckpt.pt')] for c in measured
    }  # drawn, or measured
    assert findings(name, '--jobs=2', more=['--dtype=float32']) == commands[:1] + drawn
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    (tmp_path / 'stargraphs.py').write_text(
        'def question_first(u, n, n_path): return u.argsort(-1)'
    )  # of its page
    ones, twos = (
        [c for c in trained + measured if any(f'_seed{n}' in word for word in c)] for n in (1, 2)
    )
    as_ones = [
        [re.sub(r'(seed=?)2\b', r'\g<1>1', word) for word in c] for c in twos
    ]  # but for their number the same
    assert sorted(as_ones) == sorted(ones) and len(ones + twos) == len(trained + measured)
    for c in ones:  # what a command lacks stops it once its options are checked
        assert re.search(
            'nowhere|no checkpoint file', script(*c, '--device=nowhere', code=1).stderr
        )


def test_sets_that_are_there_are_not_made_and_seeds_have_their_own_orders(findings, tmp_path):
    (tmp_path / 'there' / 'pydocs').mkdir(parents=True)
    assert findings('orders', data='missing')[0] == [
        'data/prepare.py',
        'pydocs',
        f'--data_dir={tmp_path / "missing"}',
    ]
    commands = findings('orders', '--seeds=7', data='there')
    assert not of(commands, 'data/prepare.py')
    assert all(f'--data_dir={tmp_path / "there"}' in c for c in of(commands, 'train.py'))
    assert [
        [word for word in c if '_seed' in word and 'out' not in word]
        for c in of(commands, 'train.py')
    ] == [[], ['--order_seed=7'], ['--order_seed=7'], []]


def test_seeds_are_numbers_whatever_blanks_stand_between_them(findings):
    folders = {
        word
        for c in of(findings('l2r_data', '--seeds=1, 02'), 'train.py')
        for word in c
        if 'out_dir' in word
    }
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
    measured = [c[-2] for c in of(commands, 'eval_puzzle.py')]
    assert measured == ['--n_puzzles=500'] * 3 + ['--dataset=graded'] * 3
    assert [c[2].rpartition('/')[2] for c in of(commands, 'plot.py')] == [
        'sudoku.png',
        'sudoku_solved.png',
        'sudoku_graded.png',
    ]
    labels = ['--labels=decoder,encoder,mixed'] * 3
    assert [
        word for c in of(commands, 'plot.py') for word in c if word.startswith('--labels')
    ] == labels


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
        assert not commands and e.value.args[0].endswith('.part has what it said')
        assert 'failed, and ' in capsys.readouterr().out


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
    made, starts = (
        [
            next((word.partition('=')[2] for word in c if word.startswith(option)), '')
            for c in trained
        ]
        for option in ('--out_dir=', '--init_from=')
    )
    assert [start.endswith('before_seed7/ckpt.pt') for start in starts if start] == [True, True]
    assert all(os.path.dirname(start) in made[:n] for n, start in enumerate(starts) if start)


def test_evaluations_of_other_weights_are_made_anew_and_trainings_on_other_data_refused(
    findings, tmp_path
):
    def prepared(text):
        (tmp_path / 'a.txt').write_text(text * 40)
        prepare(
            'text',
            tmp_path / 'there',
            'pydocs',
            str(tmp_path / 'a.txt'),
            tokenizer='bytes',
            force=True,
        )

    def weights(content):
        for path in (tmp_path / 'my out').glob('*_seed1'):
            path.mkdir(exist_ok=True)
            (path / 'ckpt.pt').write_text(content)

    arguments = 'networks', '--seeds=1'
    prepared('some text ')
    first = findings(*arguments, data='there')
    measured, trained = of(first, 'eval_ppl.py'), of(first, 'train.py')
    assert measured and trained
    for c in trained:
        os.makedirs(next(word.partition('=')[2] for word in c if word.startswith('--out_dir=')))
    for content, again in (('one', measured), ('one', []), ('other', measured), ('other', [])):
        weights(content)
        assert of(findings(*arguments, data='there'), 'eval_ppl.py') == again
    prepared('other text ')
    with pytest.raises(ValueError, match='made of other data or weights'):
        findings(*arguments, data='there')
    prepared('some text ')
    for path in (tmp_path / 'my out').glob('*.txt'):  # as earlier programs left it
        path.write_text(re.sub('\nreads .*', '', path.read_text()))
    assert not of(findings(*arguments, data='there'), 'train.py')
