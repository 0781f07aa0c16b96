"""How a run begins: which options win, what several processes share, and the weights it takes."""

import pytest
import torch
from conftest import make_model, one_line

import train
from anyorder.checkpoint import save_checkpoint
from anyorder.training.start import check_options, set_threads, start_checkpoint
from configurator import Config, configure
from model import EMA


@pytest.fixture
def checkpoint(tmp_path):
    """The path of a checkpoint of one layer, of 257 bytes tokens."""
    path = tmp_path / 'ckpt.pt'
    save_checkpoint(path, make_model(n_layer=1, vocab_size=320, n_tokens=257), tokenizer='bytes')
    return path


def options_of(*typed):
    return configure(vars(train), [*map(str, typed)])


def resumed(tmp_path, saved, *typed):
    """Return what start_checkpoint says of a run that is resumed, options and changes.

    The run was saved with the options `saved`, after 7 updates."""
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
        best={},
    )
    options = options_of('--init_from=resume', f'--out_dir={tmp_path}', *typed)
    _, config, changed = start_checkpoint(options)
    return config, changed


@pytest.fixture
def big(tmp_path, checkpoint):
    """The words of a config file of another shape than the checkpoint, from which it starts."""
    text = 'n_layer = 12\nn_head = 2\nblock_size = 64\nlearning_rate = 1e-5\n'
    (tmp_path / 'big.py').write_text(text)
    return [tmp_path / 'big.py', f'--init_from={checkpoint}']


def test_a_checkpoint_overrules_the_shape_of_a_config_file(big, capsys):
    _, config, changed = start_checkpoint(options_of(*big, '--n_layer=1', '--batch_size=3'))
    assert config.n_layer == 1
    assert config.n_head == 2
    assert config.block_size == 9
    assert config.n_embd == 16
    assert config.learning_rate == 1e-5
    assert config.batch_size == 3
    assert changed == []
    said = capsys.readouterr().out
    assert said == 'the checkpoint overrules the config file: block_size 64 -> 9\n'


@pytest.mark.parametrize('n_layer', [2, 12])  # 12 stands in the file
def test_a_checkpoint_does_not_overrule_what_is_typed(big, n_layer):
    with one_line(f'n_layer={n_layer} contradicts the checkpoint, which has 1: leave it out'):
        start_checkpoint(options_of(*big, f'--n_layer={n_layer}'))


def test_a_checkpoint_overrules_defaults_in_silence(checkpoint, capsys):
    start_checkpoint(options_of(f'--init_from={checkpoint}'))
    assert capsys.readouterr().out == ''


def test_a_resumed_run_keeps_its_optimizer_over_a_config_file(tmp_path, capsys):
    (tmp_path / 'c.py').write_text("optimizer = 'adamw'\n")
    config, changed = resumed(tmp_path, {'optimizer': 'muon:0.03'}, tmp_path / 'c.py')
    assert config.optimizer == 'muon:0.03'
    assert changed == []
    assert 'overrules the config file: optimizer adamw -> muon:0.03' in capsys.readouterr().out


@pytest.mark.parametrize(
    'typed, now, changed',
    [
        ('--optimizer=muon', {'optimizer': 'muon:0.04'}, []),
        ('--optimizer=muon:0.1', {'optimizer': 'muon:0.1'}, ['optimizer muon:0.04 -> muon:0.1']),
        ('--order=few:8', {'order': 'few:8@3'}, []),
        ('--order=few:8@0', {'order': 'few:8'}, ['order few:8@3 -> few:8']),
        ('--network=n_cond=8,adaln', {'network': 'n_cond=8'}, []),
        ('--documents=apart', {'documents': 'apart'}, ['documents together -> apart']),
    ],
)
def test_what_a_text_leaves_open_is_as_in_the_run_that_is_resumed(tmp_path, typed, now, changed):
    saved = {'optimizer': 'muon:0.04', 'order': 'few:8@3', 'documents': 'together'}
    config, said = resumed(tmp_path, saved, typed)
    assert {name: config[name] for name in now} == now
    assert said == changed


@pytest.mark.parametrize('width, said, n_threads', [(64, None, 1), (256, None, 2), (64, '2', 2)])
def test_a_narrow_network_has_one_thread_unless_somebody_says_how_many(
    monkeypatch, width, said, n_threads
):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    if said:
        monkeypatch.setenv('OMP_NUM_THREADS', said)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        set_threads(Config(n_embd=width))
        assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)


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
    assert config.order == order
    assert [line for line in changed if 'order ' in line] == said


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
    _, config, _ = start_checkpoint(options_of(*typed))
    assert config.order == order


def test_processes_share_an_update_evenly():
    options = options_of('--gradient_accumulation_steps=6')
    check_options(options, 3)
    with one_line('gradient_accumulation_steps=6 must be a multiple of the 4 processes'):
        check_options(options, 4)
