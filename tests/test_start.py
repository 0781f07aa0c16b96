"""How a run begins: which options win, what several processes share, and the weights it takes."""

import os
import shlex

import pytest
from conftest import ROOT, make_model

import train
from anyorder.checkpoint import save_checkpoint
from anyorder.machine.surroundings import NAMES
from anyorder.training.plan import lines_of
from anyorder.training.start import check_options, never_reached, start_checkpoint
from configurator import configure
from model import EMA


@pytest.fixture
def checkpoint(tmp_path):
    """The path of a checkpoint of one layer, of 257 bytes tokens."""
    path = tmp_path / 'ckpt.pt'
    save_checkpoint(path, make_model(n_layer=1, vocab_size=320, n_tokens=257), tokenizer='bytes')
    return path


def resumed(tmp_path, saved, *options):
    """(the options of a run that was saved with the options `saved` and is resumed, what that changes in words)."""
    model = make_model(n_layer=1, vocab_size=320, n_tokens=257)
    save_checkpoint(
        tmp_path / 'ckpt.pt',
        model,
        EMA(model, 0.9),
        config=saved,
        tokenizer='bytes',
        iter_num=7,
        optimizer=[],
        n_seen=0,
        logged=0,
        totals=None,
    )
    return start_checkpoint(
        configure(vars(train), ['--init_from=resume', f'--out_dir={tmp_path}', *options])
    )[1:]


def test_a_checkpoint_overrules_the_shape_of_a_config_file_but_not_what_is_typed(
    checkpoint, tmp_path, capsys
):
    (tmp_path / 'big.py').write_text(
        'n_layer = 12\nn_head = 2\nblock_size = 64\nlearning_rate = 1e-5\n'
    )

    def start(*typed):
        return start_checkpoint(
            configure(vars(train), [str(tmp_path / 'big.py'), f'--init_from={checkpoint}', *typed])
        )

    _, config, changed = start('--n_layer=1', '--batch_size=3')
    assert (config.n_layer, config.n_head, config.block_size, config.n_embd) == (1, 2, 9, 16)
    assert (config.learning_rate, config.batch_size, changed) == (1e-5, 3, [])
    assert (
        capsys.readouterr().out == 'the checkpoint overrules the config file: block_size 64 -> 9\n'
    )
    with pytest.raises(
        ValueError, match='n_layer=2 contradicts the checkpoint, which has 1: leave it out'
    ):
        start('--n_layer=2')
    with pytest.raises(ValueError, match='n_layer=12 contradicts'):
        start('--n_layer=12')  # as in the file
    start_checkpoint(configure(vars(train), [f'--init_from={checkpoint}']))
    assert capsys.readouterr().out == ''  # defaults are overruled in silence


def test_a_run_whose_options_are_no_options_any_more_is_resumed_without_them(tmp_path):
    config, changed = resumed(tmp_path, {'l2r_ratio': 0.25, 'order_noise_kind': 'gaussian'})
    assert (config.l2r_ratio, 'order_noise_kind' in config, changed) == (0.25, False, [])


def test_a_resumed_run_keeps_its_optimizer_over_a_config_file(tmp_path, capsys):
    (tmp_path / 'c.py').write_text("optimizer = 'adamw'\n")
    config, changed = resumed(tmp_path, {'optimizer': 'muon'}, str(tmp_path / 'c.py'))
    assert (config.optimizer, changed) == ('muon', [])
    assert 'overrules the config file: optimizer adamw -> muon' in capsys.readouterr().out


@pytest.mark.parametrize(
    'saved, typed, order, said',
    [
        ({'order': 'block:8'}, [], 'block:8', []),
        ({'order': 'block:8'}, ['--order=block'], 'block:8', []),
        ({'order': 'block:8'}, ['--order=l2r'], 'l2r', ['order block:8 -> l2r']),
        ({'order': 'block:8'}, ['--order=block:3'], 'block:3', ['order block:8 -> block:3']),
        ({'order': [1, 0]}, [], [1, 0], []),
        ({}, [], 'random', []),
    ],
)
def test_a_run_is_resumed_in_its_order_and_with_its_number(tmp_path, saved, typed, order, said):
    config, changed = resumed(tmp_path, saved, *typed)
    assert config.order == order and [line for line in changed if 'order ' in line] == said


@pytest.mark.parametrize(
    'typed, order',
    [
        ([], 'random'),
        (['--order=block'], 'block:4'),
        (['--order=block:8'], 'block:8'),
        (['--order=l2r'], 'l2r'),
    ],
)
def test_a_run_begins_in_an_order_with_its_number(typed, order):
    assert start_checkpoint(configure(vars(train), typed))[1].order == order


@pytest.mark.parametrize(
    'batch_size, steps, world_size, said',
    [
        (16, 1, 8, '.* --batch_size=2 --gradient_accumulation_steps=8 --eval_iters=256$'),
        (12, 3, 4, '.* --batch_size=9 --gradient_accumulation_steps=4 --eval_iters=43$'),
        (16, 12, 8, '.* --batch_size=12 --gradient_accumulation_steps=16 --eval_iters=43$'),
        (5, 6, 4, 'its 30 sequences of an update neither: make .* a multiple of 4'),
        (4, 1, 8, 'its 4 sequences of an update neither'),
    ],
)
def test_processes_that_cannot_share_an_update_are_told_what_to_type(
    batch_size, steps, world_size, said
):
    wrong = [f'--batch_size={batch_size}', f'--gradient_accumulation_steps={steps}']
    with pytest.raises(ValueError, match=f'cannot be shared by {world_size} processes; {said}'):
        check_options(configure(vars(train), wrong), world_size)
    if said.startswith('--'):
        check_options(configure(vars(train), said.split()), world_size)


SCHEDULES = [  # options, and the options that the line names
    ('--max_iters=4 --warmup_iters=100', 'warmup_iters=100 max_iters=4'),
    ('--max_iters=4 --warmup_iters=4', 'warmup_iters=4 max_iters=4'),
    ('--max_iters=4 --warmup_iters=100 --lr_decay_iters=2', 'warmup_iters=100 max_iters=4'),
    ('--max_iters=4 --warmup_iters=4 --min_lr=6e-4', 'warmup_iters=4 max_iters=4'),
    (
        '--max_iters=6 --warmup_iters=3 --lr_decay_iters=2',
        'warmup_iters=3 lr_decay_iters=2 min_lr=6e-05',
    ),
    (
        '--max_iters=6 --warmup_iters=3 --lr_decay_iters=3',
        'warmup_iters=3 lr_decay_iters=3 min_lr=6e-05',
    ),
    (
        '--max_iters=6 --warmup_iters=3 --lr_decay_iters=5',
        'lr_decay_iters=5 max_iters=6 min_lr=6e-05',
    ),
    (
        '--max_iters=6 --warmup_iters=3 --lr_decay_iters=7',
        'lr_decay_iters=7 max_iters=6 min_lr=6e-05',
    ),
    ('--max_iters=4 --warmup_iters=3', ''),
    ('--max_iters=4 --warmup_iters=3 --lr_decay_iters=4', ''),
    ('--max_iters=4 --warmup_iters=0', ''),
    ('--max_iters=0 --warmup_iters=3', ''),
    ('--max_iters=6 --warmup_iters=3 --lr_decay_iters=2 --min_lr=6e-4', ''),
    ('--max_iters=6 --warmup_iters=3 --lr_decay_iters=9 --min_lr=6e-4', ''),
]


@pytest.mark.parametrize('options, named', SCHEDULES)
def test_what_a_learning_rate_never_does_is_said(options, named):
    said = never_reached(configure(vars(train), options.split()))
    assert (
        bool(said) == bool(named)
        and all(name in said for name in named.split())
        and '\n' not in said
    )


def test_what_a_learning_rate_never_does_is_said_by_the_plan_and_of_a_resumed_run(tmp_path):
    saved = {'max_iters': 9, 'warmup_iters': 8, 'lr_decay_iters': 0}
    whole, _ = resumed(tmp_path, saved)
    assert not never_reached(whole)
    for typed, name in (
        ('--max_iters=8', 'warmup_iters=8'),
        ('--lr_decay_iters=20', 'lr_decay_iters=20'),
    ):
        config, _ = resumed(tmp_path, saved, typed)
        assert name in never_reached(config)
        planned = configure(
            vars(train), ['--init_from=resume', f'--out_dir={tmp_path}', typed, '--plan=H100']
        )
        assert never_reached(config) in [*lines_of(planned)]


@pytest.mark.parametrize(
    'there, start',
    [
        ({}, ['python']),
        (
            {'WORLD_SIZE': '8', 'LOCAL_WORLD_SIZE': '8'},
            ['torchrun', '--standalone', '--nproc_per_node=8'],
        ),
        ({'WORLD_SIZE': '8', 'LOCAL_WORLD_SIZE': '4'}, ['torchrun', '...']),
    ],
)
def test_the_way_on_of_processes_that_cannot_share_an_update_is_a_command(
    monkeypatch, there, start
):
    typed = [os.path.join(ROOT, 'config', 'quickstart.py'), '--out_dir=a b', '--batch_size=16']
    for name in there and NAMES:
        monkeypatch.setenv(name, '0')
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr('sys.argv', ['train.py', *typed])
    with pytest.raises(ValueError, match='cannot be shared by 8 processes') as e:
        check_options(configure(vars(train), typed), 8)
    words = shlex.split(str(e.value).partition('orders: ')[2])
    assert words[: len(start) + 1] == [*start, 'train.py']
    config = configure(vars(train), words[len(start) + 1 :])
    check_options(config, 8)
    assert config.out_dir == 'a b' and config.batch_size * config.gradient_accumulation_steps == 16
