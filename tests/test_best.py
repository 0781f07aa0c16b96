"""The best checkpoint of a run, and a run that ends without a better one."""

import os
import shutil
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from conftest import one_line
from toy_runs import assert_same_runs, equal, interrupted, log, resume, run

import train
from anyorder.checkpoint import digest, load_checkpoint, model_from_checkpoint
from anyorder.training import run_folder
from anyorder.training.best import Best, never_over, shares_in
from anyorder.training.chart import Chart
from anyorder.training.start import check_options
from anyorder.training.update import update
from configurator import configure

RUN = ['--max_iters=6', '--eval_interval=1', '--dtype=float32', '--keep_best=val_any']


LOSSES = [3, 2.5, 2.75, 1, 2, 1.5]  # by iteration


@pytest.fixture
def falling_and_rising(data, monkeypatch):
    """A run validates by LOSSES, whatever stops it; the other way round from left to right."""
    done = [0]

    def update_and_count(state, *args):
        update(state, *args)
        done[0] = state.iter_num

    def validate(model, blocks, *_):
        x = torch.full((len(blocks),), 16.0 * LOSSES[done[0] - 1], dtype=torch.float64)
        return {'any': x, 'l2r': 64 - x}

    monkeypatch.setattr(train, 'update', update_and_count)
    monkeypatch.setattr('anyorder.training.data.validate', validate)


@pytest.fixture
def scripted(data, monkeypatch):
    """scripted(3, 1, 2): the validations to come have these losses, of val_l2r the opposite."""

    def script(*values):
        rest = list(values)

        def validate(model, blocks, *_):
            x = torch.full((len(blocks),), 16.0 * rest.pop(0), dtype=torch.float64)
            return {'any': x, 'l2r': -x}

        monkeypatch.setattr('anyorder.training.data.validate', validate)

    return script


def best_of(out_dir='out'):
    return load_checkpoint(f'{out_dir}/ckpt_best.pt')['iter_num']


def asides():
    return sorted(name for name in os.listdir('out') if '.old' in name)


# which one it is


def test_the_checkpoint_of_the_lowest_validation_is_kept(falling_and_rising, capsys):
    run(*RUN)
    assert [entry['val_any'] for entry in log()] == LOSSES
    assert [entry['best'] for entry in log()] == [3, 2.5, 2.5, 1, 1, 1]
    assert [entry['best_iter'] for entry in log()] == [1, 2, 2, 4, 4, 4]
    assert best_of() == 4
    said = capsys.readouterr().out
    assert 'best so far: val_any 1.0000 at iteration 4, in out/ckpt_best.pt' in said
    assert 'eval_ppl.py --ckpt=out/ckpt_best.pt' in said


def test_any_validation_loss_may_be_the_one(falling_and_rising):
    run(*RUN, '--max_iters=2', '--keep_best=val_l2r')
    assert [entry['best'] for entry in log()] == [1, 1]
    assert best_of() == 1


def test_the_first_of_equal_validations_is_the_best(scripted):
    scripted(2, 1, 1, 1)
    run(*RUN, '--max_iters=4')
    assert best_of() == 2


@pytest.mark.slow
def test_the_best_of_a_run_in_its_own_order(data):
    options = ['--max_iters=2', '--eval_interval=1', '--patience=1', '--order=r2l']
    run(*options, '--keep_best=val_own')
    assert log()[-1]['best'] == min(entry['val_own'] for entry in log())


def test_without_the_options_nothing_is_kept(data):
    run('--max_iters=2', '--eval_interval=1')
    assert 'best' not in load_checkpoint('out/ckpt.pt')
    assert 'best' not in log()[-1]
    assert not os.path.exists('out/ckpt_best.pt')


def test_the_best_checkpoint_starts_a_run_and_is_resumed(falling_and_rising):
    run(*RUN)
    best = digest(model_from_checkpoint('out/ckpt_best.pt'))
    run('--init_from=out/ckpt_best.pt', '--max_iters=0', '--out_dir=next')
    assert digest(model_from_checkpoint('next/ckpt.pt', 'raw')) == best
    os.mkdir('again')
    shutil.copy('out/ckpt_best.pt', 'again/ckpt.pt')
    resume('--out_dir=again')
    assert equal(*(load_checkpoint(f'{name}/ckpt.pt')['model'] for name in ('out', 'again')))
    assert best_of('again') == best_of()


# kills


class KilledError(BaseException):
    """No code but a test's catches it."""


def dying(function, iteration, behind):
    """Return the function, before or behind whose call for this iteration the process dies."""

    def call(*args):
        saved = load_checkpoint('out/ckpt.pt')['iter_num'] if os.path.exists('out/ckpt.pt') else 0
        if saved == iteration and not behind:
            raise KilledError
        function(*args)
        if saved == iteration:
            raise KilledError

    return call


CASES = [
    case
    for case in product(range(1, 5), ('name_too', 'write_checkpoint'), (False, True))
    if case not in [(2, 'name_too', False), (4, 'write_checkpoint', True)]
]


@pytest.mark.parametrize(
    'iteration, name, behind',
    [
        (2, 'name_too', False),  # ckpt.pt is the best, and ckpt_best.pt is not yet
        *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES),
    ],
)
def test_a_kill_between_the_two_files_changes_neither(
    falling_and_rising, monkeypatch, iteration, name, behind
):
    options = [*RUN, '--max_iters=5', '--init_from=auto', '--patience=5']
    run(*options, '--out_dir=whole')
    home = {'name_too': run_folder.RunFolder, 'write_checkpoint': run_folder}[name]
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(home, name, dying(getattr(home, name), iteration, behind))
        run(*options)
    run(*options)
    assert_same_runs('whole', 'out')
    assert best_of() == 4
    assert not asides()


@pytest.mark.slow
def test_a_best_checkpoint_is_whole_where_there_are_no_links(falling_and_rising, monkeypatch):
    def no_links(*args):
        raise OSError('not permitted')

    run(*RUN, '--out_dir=whole')
    monkeypatch.setattr(os, 'link', no_links)
    run(*RUN)
    assert_same_runs('whole', 'out')
    assert not [name for name in os.listdir('out') if name.endswith('.tmp')]


# patience


def test_a_run_ends_without_a_better_validation(scripted, capsys):
    scripted(3, 2, 2.5, 1, 2, 3, 9)
    run(*RUN, '--max_iters=8', '--patience=2')
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 6
    assert best_of() == 4
    said = capsys.readouterr().out
    assert 'the run ends at iteration 6: 2 validations in a row were not below val_any 1.0' in said

    # which a resume says, too, and changes nothing
    before = os.stat('out/ckpt.pt')
    scripted(3)
    resume('--max_iters=20')
    said = capsys.readouterr().out
    assert 'finished: 2 validations in a row were not below' in said
    assert 'the run ends' not in said
    assert os.stat('out/ckpt.pt') == before

    # a larger one goes on
    scripted(4, 0.5)
    resume('--patience=4')
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 8
    assert best_of() == 8


@pytest.mark.parametrize(
    'more', ['--patience=9', pytest.param('--patience=0', marks=pytest.mark.slow)]
)
def test_a_run_that_goes_on_equals_one_that_never_ended(falling_and_rising, more):
    run(*RUN, '--out_dir=whole', more)
    run(*RUN, '--patience=1')
    assert len(log()) == 3
    resume(more)
    assert_same_runs('whole', 'out')


def test_patience_alone_keeps_no_checkpoint(scripted):
    scripted(3, 2, 2, 2)
    run(*RUN, '--keep_best=', '--patience=2')
    assert load_checkpoint('out/ckpt.pt')['best'] == {
        'loss': 'val_any',
        'iter_num': 2,
        'value': 2.0,
        'n_waited': 2,
    }
    assert not os.path.exists('out/ckpt_best.pt')


def test_a_patience_that_is_never_at_its_end_is_said():
    typed = ['--max_iters=100', '--eval_interval=30', '--warmup_iters=1', '--patience=4']
    assert 'validates 4 times' in never_over(configure(vars(train), typed))
    assert not never_over(configure(vars(train), [*typed[:-1], '--patience=3']))
    assert not never_over(configure(vars(train), typed[:-1]))


def test_a_run_without_an_update_keeps_its_patience_for_the_one_that_goes_on(scripted):
    run('--patience=2', '--max_iters=0')
    assert not never_over(configure(vars(train), ['--patience=2', '--max_iters=0']))
    scripted(1, 2, 3)
    resume('--max_iters=9', '--eval_interval=1')
    assert [entry['val_any'] for entry in log()] == [1, 2, 3]
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 3


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_a_validation_that_is_not_finite_ends_the_run_before_it_saves(scripted, value):
    scripted(3, value)
    with one_line('val_any is (nan|inf) at iteration 2: not finite.*go on from iteration 1'):
        run(*RUN, '--patience=1')
    assert len(log()) == 1
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 1


# options that change


def test_shares_and_not_weights_are_what_is_measured():
    assert shares_in('a:0.7,b:0.3') == shares_in('a:7, b:3') != shares_in('a:7,b:4')
    assert shares_in('a:2') == shares_in('b') == {}


def test_a_run_that_keeps_its_best_later_begins_with_its_checkpoint(scripted):
    scripted(1, 3)
    run('--max_iters=2', '--eval_interval=1')
    scripted(4, 5)
    resume('--max_iters=4', '--keep_best=val_any', '--patience=9')
    assert best_of() == 2
    assert load_checkpoint('out/ckpt.pt')['best']['n_waited'] == 2
    scripted(0.5)
    resume('--max_iters=5')
    assert best_of() == 5


def test_a_finished_run_keeps_its_best_later_again_and_again(data):
    run('--max_iters=2', '--eval_interval=1')
    for _ in range(2):
        resume('--keep_best=val_any')
        assert best_of() == 2
        assert not asides()


@pytest.mark.parametrize(
    'change, compares',
    [('--keep_best=val_l2r', True), ('--eval_iters=1', False), ('--documents=apart', False)],
)
def test_another_loss_or_other_blocks_begin_anew(scripted, capsys, change, compares):
    """Of another loss the checkpoint itself is known, of other blocks it is not."""
    scripted(1, 2, 3)
    run(*RUN, '--max_iters=3')
    scripted(4 if compares else 2)
    resume('--max_iters=4', change)
    said = capsys.readouterr().out
    assert 'out/ckpt_best.pt of iteration 1 is now *.old-1: ' in said
    assert asides() == ['ckpt_best.pt.old-1']
    assert best_of() == 4
    assert ('at iteration 3, in' in said) == compares


@pytest.mark.slow
def test_a_best_checkpoint_that_is_lost_is_said(scripted, capsys):
    scripted(1, 2, 3)
    run(*RUN, '--max_iters=3')
    os.remove('out/ckpt_best.pt')
    scripted(2.5)
    resume('--max_iters=4')
    assert 'out/ckpt_best.pt of iteration 1 is not there' in capsys.readouterr().out
    assert best_of() == 4


def test_a_best_checkpoint_that_is_removed_in_between_is_the_best_no_more(scripted, monkeypatch):
    scripted(1, 2, 3)
    gone = interrupted(2, lambda: os.remove('out/ckpt_best.pt'))
    monkeypatch.setattr(train, 'update', gone)
    run(*RUN, '--max_iters=3')
    assert best_of() == 3


def test_an_older_checkpoint_that_is_resumed_has_its_own_best(scripted, capsys):
    """The best of later iterations, which the resume undoes, gets another name."""
    scripted(2, 3, 4, 1)
    run(*RUN, '--max_iters=4')
    os.replace('out/ckpt_0000003.pt', 'out/ckpt.pt')
    scripted(5)
    resume('--max_iters=4')
    assert asides() == ['ckpt_best.pt.old-1']
    assert best_of() == 3


@pytest.mark.slow
def test_a_new_run_moves_the_best_of_an_earlier_one_aside(data):
    run(*RUN, '--max_iters=1')
    run('--max_iters=1')
    assert 'ckpt_best.pt.old-1' in asides()
    assert not os.path.exists('out/ckpt_best.pt')


@pytest.mark.slow
def test_a_run_whose_folder_moves_goes_on_with_its_best(falling_and_rising):
    run(*RUN, '--out_dir=whole')
    run(*RUN, '--max_iters=5', '--lr_decay_iters=6')
    os.rename('out', 'moved')
    resume('--max_iters=6', '--out_dir=moved')
    assert_same_runs('whole', 'moved')


# wrong options


@pytest.mark.parametrize(
    'typed, said',
    [
        ('--keep_best=val_ani', "keep_best .*val_any, val_l2r.*'val_ani'.* nearest is 'val_any'"),
        ('--keep_best=any', "nearest is 'val_any'"),
        ('--keep_best=val_l2r --network=encoder --l2r_ratio=0', 'masked loss .*val_any'),
        ('--keep_best=val_any --order=r2l', "val_own, val_l2r.*got 'val_any'"),
        ('--keep_best=val_any --order=l2r', r"\(val_l2r\), got 'val_any'"),
        ('--patience=-1', 'patience must be at least 0'),
        ('--patience=2 --eval_interval=500 --max_iters=500', 'patience=2 counts .*eval_interval'),
    ],
)
def test_wrong_options_are_one_line(typed, said):
    with one_line(said):
        check_options(configure(vars(train), typed.split()), 1)


# wandb


def test_the_summary_of_wandb_has_the_best(data, monkeypatch):
    begun = SimpleNamespace(summary={}, offline=True)
    rows = []
    wandb = SimpleNamespace(
        init=lambda **how: begun, log=lambda row, step: rows.append(row), Table=list
    )
    monkeypatch.setitem(__import__('sys').modules, 'wandb', wandb)
    best = Best('val_any', True)
    best.compare(4, {'val_any': 2.5})
    os.mkdir('out')
    folder = run_folder.RunFolder('out', resumed=4, best=best)
    folder.log({'iter': 4, **best.shown})
    chart = Chart(folder, 'a', True)
    options = configure(vars(train), [])
    chart.start(options, {})
    chart.send(4)
    assert begun.summary == {'best': 2.5, 'best_iter': 4}
    assert rows == [{'iter': 4, 'best': 2.5, 'best_iter': 4}]
