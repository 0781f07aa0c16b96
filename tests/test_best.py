"""The best checkpoint of a run, and a run that ends without a better one."""

import os
import shutil
from itertools import product

import pytest
import torch
from conftest import one_line
from toy_runs import assert_same_runs, equal, log, resume, run

import train
from anyorder.checkpoint import digest, load_checkpoint, model_from_checkpoint
from anyorder.training import run_folder
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
    assert load_checkpoint('out/ckpt.pt')['best']['iter_num'] is None
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
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(run_folder, name, dying(getattr(run_folder, name), iteration, behind))
        run(*options)
    run(*options)
    assert_same_runs('whole', 'out')
    assert best_of() == 4


# patience


def test_a_run_ends_without_a_better_validation(scripted, capsys):
    scripted(3, 2, 2.5, 1, 2, 3, 9)
    run(*RUN, '--max_iters=8', '--patience=2')
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 6
    assert best_of() == 4
    said = capsys.readouterr().out
    assert 'finished: 2 validations in a row were not below val_any 1.0' in said

    # which a resume says, too, and changes nothing
    before = os.stat('out/ckpt.pt')
    scripted(3)
    resume('--max_iters=20')
    said = capsys.readouterr().out
    assert 'finished: 2 validations in a row were not below' in said
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
    best = load_checkpoint('out/ckpt.pt')['best']
    assert [best[name] for name in ('loss', 'iter_num', 'n_waited')] == ['val_any', 2, 2]
    assert not os.path.exists('out/ckpt_best.pt')


def test_a_run_without_an_update_keeps_its_patience_for_the_one_that_goes_on(scripted):
    run('--patience=2', '--max_iters=0')
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


def test_a_run_may_keep_its_best_later(scripted):
    scripted(1, 3)
    run('--max_iters=2', '--eval_interval=1')
    scripted(4, 5)
    resume('--max_iters=4', '--keep_best=val_any', '--patience=9')
    assert best_of() == 3


@pytest.mark.parametrize(
    'change, best',
    [
        ('--max_iters=4', 1),
        ('--keep_best=val_l2r', 4),
        ('--eval_iters=1', 4),
        ('--documents=apart', 4),
    ],
)
def test_the_best_begins_anew_where_a_resume_measures_another_thing(scripted, change, best):
    scripted(1, 2, 3)
    run(*RUN, '--max_iters=3')
    scripted(4)
    resume('--max_iters=4', change)
    assert log()[-1]['best_iter'] == best_of() == best


def test_the_best_begins_anew_on_another_validation_set(scripted):
    scripted(1, 2)
    run(*RUN, '--max_iters=2')
    checkpoint = load_checkpoint('out/ckpt.pt')
    _, *rest = checkpoint['best']['measures']
    checkpoint['best']['measures'] = ('the hash of another set', *rest)
    torch.save(checkpoint, 'out/ckpt.pt')
    scripted(4)
    resume('--max_iters=3')
    assert best_of() == 3


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
        ('--keep_best=val_ani', 'val_any, val_l2r'),
        ('--keep_best=val_l2r --network=encoder --l2r_ratio=0', 'val_any'),
        ('--keep_best=val_any --order=r2l', 'val_l2r, val_own'),
        ('--keep_best=val_b_any --dataset=a,c', 'val_a_any, val_a_l2r, val_c_any'),
        ('--patience=-1', 'patience must be at least 0'),
    ],
)
def test_wrong_options_are_one_line(typed, said):
    with one_line(said):
        check_options(configure(vars(train), typed.split()), 1)
