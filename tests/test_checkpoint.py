"""Checkpoint files, ours and published: whole or one line, the same weights and numbers back."""

import argparse
import collections
import datetime
import os
import pathlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT, make_model, one_line

from anyorder.checkpoint import (
    Checkpoint,
    config_from_checkpoint,
    digest,
    entries_of,
    load_checkpoint,
    model_from_checkpoint,
    open_checkpoint,
    save_checkpoint,
)
from anyorder.orders import Order
from anyorder.writer import Writer
from model import AOGPT, EMA, AOGPTConfig

NETWORKS = [
    dict(gate_init=1.0, n_cond=24, n_tokens=7),
    dict(target_position='input'),
    dict(target_position='layer', rotary=True),
    dict(target_position='input', gpt2_blocks=True, bias=False),
    dict(attention='bidirectional'),
    dict(attention='mixed'),
    dict(target_position='two_stream', rotary=True),
]


@pytest.fixture(params=NETWORKS)
def trained(request):
    """(model, its average), with other weights."""
    model = make_model(**request.param).float()
    ema = EMA(model, 0.9)
    for p in model.parameters():
        p.mul_(1.1)
    return model, ema


@pytest.mark.parametrize('weights', ['raw', 'ema'])
def test_our_file_gives_the_model_back(tmp_path, trained, weights):
    model, ema = trained
    save_checkpoint(tmp_path / 'ckpt.pt', model, ema)
    loaded = model_from_checkpoint(tmp_path / 'ckpt.pt', weights)
    origin = {'raw': model, 'ema': ema.model}[weights]
    assert not loaded.training
    assert loaded.config == origin.config
    assert digest(loaded) == digest(origin)
    want = dict(origin.named_parameters())
    for name, p in loaded.named_parameters():
        assert torch.equal(p, want.pop(name)), name
    assert not want


def test_names_may_have_the_prefix_of_a_compiled_model(tmp_path, trained):
    model, ema = trained
    save_checkpoint(tmp_path / 'ckpt.pt', model, ema, iter_num=3)
    assert os.listdir(tmp_path) == ['ckpt.pt']
    checkpoint = load_checkpoint(tmp_path / 'ckpt.pt')
    assert checkpoint['iter_num'] == 3
    weights = checkpoint['model']
    checkpoint['model'] = {f'_orig_mod.{name}': p for name, p in weights.items()}
    assert digest(model_from_checkpoint(checkpoint, 'raw')) == digest(model)


def test_a_checkpoint_counts_the_updates_of_its_average(tmp_path, model):
    ema = EMA(model, 0.9)
    ema.update(model)
    ema.update(model)
    save_checkpoint(tmp_path / 'ckpt.pt', model, ema)
    average = load_checkpoint(tmp_path / 'ckpt.pt')['ema_model']
    assert (average['num_updates'], average['decay']) == (2, 0.9)


def test_what_published_sizes_leave_out_is_inferred():
    """GPT-2's vocabulary has 50257 tokens, padded to 50304; the weights have the width of the
    condition."""
    args = {'block_size': 4, 'vocab_size': 50304, 'n_layer': 1, 'n_head': 1, 'n_embd': 8}

    def config_of(args, **weights):
        named = {f'transformer.{name}.weight': p for name, p in weights.items()}
        return config_from_checkpoint({'model_args': args, 'model': named})

    adaln = config_of(args, wtpe=torch.zeros(4, 6))
    assert (adaln.n_real, adaln.n_cond) == (50257, 6)
    assert (adaln.target_position, adaln.gpt2_blocks) == ('adaln', False)
    sigma = config_of(args, ln_f=torch.zeros(8))
    assert sigma.n_real == 50257
    assert (sigma.target_position, sigma.gpt2_blocks) == ('input', True)
    assert config_of(args | {'n_tokens': 9}).n_real == 9


def test_a_digest_tells_all_weights_and_sizes(model):
    other = AOGPT(replace(model.config, attention='bidirectional')).double()
    other.load_state_dict(model.state_dict())  # the same weights
    digests = {digest(model), digest(other)}
    for p in model.parameters():
        p.view(-1)[-1] += 1e-9
        digests.add(digest(model))
    assert len(digests) == 2 + len(list(model.parameters()))


@pytest.fixture
def of_bytes():
    """A model with the vocabulary of bytes."""
    return make_model(vocab_size=320, n_tokens=257)


def test_a_checkpoint_is_opened_with_all_that_it_says(tmp_path, of_bytes):
    path = str(tmp_path / 'c.pt')
    run = {'order': 'block:2@3', 'l2r_ratio': 0.5}
    average = EMA(of_bytes, 0.9)
    save_checkpoint(path, of_bytes, average, iter_num=7, tokenizer='bytes', config=run)
    opened = Checkpoint(path)
    assert opened.config == of_bytes.config
    assert opened.tokenizer.name == 'bytes'
    assert opened.run == run
    assert opened.order == Order.of('own', run)
    assert opened.order.parameter == 2
    assert opened.iter_num == 7
    assert opened.about('ema') == f'{path}: ema weights, iteration 7'
    assert digest(opened.model('raw')) == digest(model_from_checkpoint(path, 'raw'))


def test_a_checkpoint_may_not_say_how_long_it_was_trained(tmp_path, of_bytes):
    path = str(tmp_path / 'c.pt')
    save_checkpoint(path, of_bytes, tokenizer='bytes')
    assert Checkpoint(path).about('raw') == f'{path}: raw weights, iteration ?'


@pytest.mark.parametrize(
    'entries, said',
    [
        # as published: GPT-2's tokens
        ({}, 'a vocabulary of 257 tokens, gpt2 has 50257'),
        ({'tokenizer': 'other'}, "the tokenizer 'other', known are"),
    ],
)
def test_a_checkpoint_of_another_tokenizer_is_refused(tmp_path, of_bytes, entries, said):
    path = str(tmp_path / 'c.pt')
    save_checkpoint(path, of_bytes, **entries)
    with pytest.raises(ValueError, match=said):
        Checkpoint(path)


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path, model):
    path = tmp_path / 'ckpt.pt'
    save_checkpoint(path, model, iter_num=1)
    with pytest.raises(Exception, match='pickle'):
        save_checkpoint(path, model, iter_num=2, unwritable=lambda: 0)
    assert load_checkpoint(path)['iter_num'] == 1
    assert os.listdir(tmp_path) == ['ckpt.pt']


class Bomb:
    def __reduce__(self):
        return os.mkdir, ('exploded',)


@pytest.mark.parametrize(
    'name, said, write',
    [
        ('missing', 'no checkpoint file', lambda path, whole: None),
        ('empty', r'\(0 bytes\) cannot be read', lambda path, whole: path.write_bytes(b'')),
        (
            'truncated',
            'cannot be read',
            lambda path, whole: path.write_bytes(whole[: len(whole) // 2]),
        ),
        ('text', 'cannot be read', lambda path, whole: path.write_bytes(b'hello, world\n')),
        ('noise', 'cannot be read', lambda path, whole: path.write_bytes(bytes(range(7, 200)))),
        ('code', 'cannot be read', lambda path, whole: torch.save(Bomb(), path)),
        ('list', 'is not a checkpoint', lambda path, whole: torch.save([], path)),
        ('half', 'is not a checkpoint', lambda path, whole: torch.save({'model': {}}, path)),
        (
            'number',
            'is not a checkpoint',
            lambda path, whole: torch.save({'model': {'a': 3}, 'model_args': {}}, path),
        ),
    ],
)
def test_files_that_are_no_checkpoint(tmp_path, model, monkeypatch, name, said, write):
    monkeypatch.chdir(tmp_path)
    save_checkpoint('whole.pt', model)
    write(tmp_path / name, (tmp_path / 'whole.pt').read_bytes())
    with pytest.raises(ValueError, match=f'{said}.*{name}|{name}.*{said}') as e:
        load_checkpoint(name)
    assert '\n' not in str(e.value) and not os.path.exists('exploded')


PLAIN = [  # (what a training loop keeps, what is read)
    (np.float64(3.2), 3.2),
    (np.float32(0.5), 0.5),
    (np.int64(-3), -3),
    (np.uint8(7), 7),
    (np.bool_(True), True),
    (np.str_('best'), 'best'),
    (np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
    (np.array(0.5), [0.5]),
    (np.asfortranarray(np.arange(6.0).reshape(2, 3)), [[0, 1, 2], [3, 4, 5]]),
    (np.zeros((0, 2), '>i2'), []),
    (np.str_(''), ''),
    (np.bytes_(b''), b''),
    (collections.OrderedDict(a=1), {'a': 1}),
    ({3}, {3}),
    (torch.Size([2]), (2,)),
    ((1, b'x', None, 2**70), (1, b'x', None, 2**70)),
]


@pytest.mark.parametrize('is_zip', [True, False])
def test_plain_values_and_numbers_of_numpy_are_read(tmp_path, model, is_zip):
    """Arrays are read as lists, for a state of random numbers is often beside the weights."""
    kept, right = map(list, zip(*PLAIN))
    torch.save(
        entries_of(model.float()) | {'kept': kept},
        tmp_path / 'c.pt',
        _use_new_zipfile_serialization=is_zip,
    )
    checkpoint = load_checkpoint(tmp_path / 'c.pt')
    assert checkpoint['kept'] == right and digest(
        model_from_checkpoint(checkpoint, 'raw')
    ) == digest(model)
    assert not any(isinstance(value, np.generic | np.ndarray) for value in checkpoint['kept'])
    if not is_zip:  # as numpy 1 names its functions
        older = (
            (tmp_path / 'c.pt')
            .read_bytes()
            .replace(b'numpy._core.multiarray', b'numpy.core.multiarray')
        )
        (tmp_path / 'c.pt').write_bytes(older)
        assert load_checkpoint(tmp_path / 'c.pt')['kept'] == right


@pytest.mark.parametrize(
    'value, name',
    [
        (np.datetime64('2020-01-01'), 'numpy'),
        (np.array([None]), 'numpy'),
        (np.zeros(2, 'i4,O'), 'numpy'),
        (np.float32, 'numpy.float32'),
        (np.random.default_rng(0), 'numpy.random'),
        (argparse.Namespace(lr=1), 'argparse.Namespace'),
        (collections.defaultdict(int), 'collections.defaultdict'),
        (pathlib.Path('x'), 'pathlib'),
        (datetime.date(2020, 1, 1), 'datetime.date'),
        (Bomb(), 'mkdir'),
        (print, 'print'),
    ],
)
def test_what_is_not_plain_is_refused_by_its_name(tmp_path, monkeypatch, value, name):
    monkeypatch.chdir(tmp_path)
    for is_zip in (True, False):
        torch.save(
            {'model': {}, 'model_args': {}, 'more': [value]},
            'c.pt',
            _use_new_zipfile_serialization=is_zip,
        )
        with one_line(f'c.pt .* cannot be read as a checkpoint: it holds .*{name}'):
            load_checkpoint('c.pt')
    assert os.listdir() == ['c.pt']


@pytest.mark.parametrize('prefix', ['module.', 'module._orig_mod.'])
def test_names_in_the_wrapping_of_others(tmp_path, prefix):
    model, other = (
        make_model(seed, target_position='input', gpt2_blocks=True).float() for seed in (0, 1)
    )
    ema = EMA(other, 0.9)
    entries = entries_of(model, ema)
    entries['model'] = {prefix + name: p for name, p in entries['model'].items()}
    average = entries['ema_model']['shadow_params']
    entries['ema_model']['shadow_params'] = {prefix + name: p for name, p in average.items()}
    torch.save(entries, tmp_path / 'c.pt')
    assert digest(model_from_checkpoint(tmp_path / 'c.pt', 'raw')) == digest(model)
    assert digest(model_from_checkpoint(tmp_path / 'c.pt', 'ema')) == digest(ema.model)


HEAD, EMBEDDING = 'lm_head.weight', 'transformer.wte.weight'


@pytest.mark.parametrize(
    'store, average',
    [
        ('both', 'names'),
        (HEAD, 'names'),
        (EMBEDDING, 'names'),
        (HEAD, 'list'),
        ('both', 'list of all'),
    ],
)
def test_a_tied_head_in_a_file_under_either_name(tmp_path, store, average):
    model, ema = (
        make_model(seed, target_position='input', gpt2_blocks=True).float() for seed in (0, 1)
    )
    entries = entries_of(model, EMA(ema, 0.9))
    raw = entries['model']
    shadow = {name: ema.state_dict()[name] for name in raw}
    if average == 'names' and store != 'both':
        shadow[store] = shadow.pop(EMBEDDING)
    if average == 'list':
        shadow = list(entries['ema_model']['shadow_params'].values())
    if average == 'list of all':
        shadow = list(shadow.values())
    entries['ema_model']['shadow_params'] = shadow
    if store != 'both':
        raw[store] = raw.pop(EMBEDDING)
        raw.pop(HEAD if store == EMBEDDING else EMBEDDING, None)
    torch.save(entries, tmp_path / 'c.pt')
    assert digest(model_from_checkpoint(tmp_path / 'c.pt', 'raw')) == digest(model)
    assert digest(model_from_checkpoint(tmp_path / 'c.pt', 'ema')) == digest(ema)


@pytest.mark.parametrize('which', ['raw', 'ema'])
def test_a_head_that_was_trained_apart_is_refused(which):
    model = make_model(target_position='input', gpt2_blocks=True)
    entries = entries_of(model, EMA(model, 0.9))
    weights = {'raw': entries['model'], 'ema': entries['ema_model']['shadow_params']}
    weights[which][HEAD] = weights[which][EMBEDDING] + 1e-9
    with one_line('a head of its own'):
        model_from_checkpoint(entries, which)
    model_from_checkpoint(entries, 'raw' if which == 'ema' else 'ema')


@pytest.mark.parametrize(
    'weights, change, said',
    [
        ('ema', {}, 'no EMA'),
        ('ema', {'ema_model': None}, 'no EMA'),
        ('ema', {'ema_model': {'shadow_params': [1, 2]}}, r'no EMA of its \d\d weights'),
        ('ema', {'ema_model': {'shadow_params': {'aa': 1}}}, 'aa .*int'),
        (
            'ema',
            {'ema_model': {'shadow_params': {'zz': torch.ones(1)}}},
            'differ in name or shape, the first is zz',
        ),
        ('raw', {'model_args': {'n_embd': 32}}, 'differ'),
        ('raw', {'model_args': {'n_layer': 1}}, 'differ'),
        ('raw', {'model_args': {'n_layer': 'a'}}, 'n_layer'),
        ('raw', {'model_args': {'dropout': '0'}}, 'dropout'),
        ('raw', {'model_args': {'attention': 'no'}}, 'attention'),
        ('raw', {'model_args': {'gate_init': None}}, 'gate_init'),
        ('both', {}, "weights must be 'ema' or 'raw'"),
    ],
)
def test_checkpoints_with_a_part_that_is_wrong(model, tmp_path, weights, change, said):
    save_checkpoint(tmp_path / 'c.pt', model)
    checkpoint = load_checkpoint(tmp_path / 'c.pt')
    if 'model_args' in change:
        change = {'model_args': checkpoint['model_args'] | change['model_args']}
    with pytest.raises(ValueError, match=said):
        model_from_checkpoint(checkpoint | change, weights)


@pytest.mark.parametrize('number', [float('nan'), float('inf'), 3e38])
def test_weights_of_a_run_that_diverged(model, tmp_path, number):
    """3e38 is finite and makes logits that are not."""
    save_checkpoint(tmp_path / 'c.pt', model.float())
    checkpoint = load_checkpoint(tmp_path / 'c.pt')
    checkpoint['model']['transformer.wnonee.weight'][0, 3] = number
    with pytest.raises(ValueError, match='diverged: 1 weights .*wnonee'):
        model_from_checkpoint(checkpoint, 'raw')


def test_the_digest_of_a_model_stays_as_journals_have_it():
    model = AOGPT(AOGPTConfig(block_size=2, vocab_size=3, n_layer=1, n_head=1, n_embd=2, n_cond=2))
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    assert digest(model) == '6e04265715923cced633f3b7aa1d970c'


@pytest.mark.slow
def test_reading_a_checkpoint_does_not_import_the_compiler():
    """Which takes longer than all else that one token needs."""
    code = (
        'import sys; from anyorder.checkpoint import model_from_checkpoint; '
        f'model_from_checkpoint({os.path.join(ROOT, "tests/reference/adaln_small.ckpt.pt")!r}); '
        'print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])'
    )
    p = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert p.stdout == '[]\n'


def test_a_checkpoint_in_the_home_folder(ckpt, tmp_path, monkeypatch):
    (tmp_path / 'here').mkdir()
    (tmp_path / 'order.json').write_text('[2, 0, 1]')
    monkeypatch.chdir(tmp_path / 'here')
    monkeypatch.setenv('HOME', str(tmp_path))
    model = model_from_checkpoint('~/ckpt.pt', 'raw')
    for opened in (
        load_checkpoint(pathlib.Path('~/ckpt.pt')),
        open_checkpoint('~/ckpt.pt').entries,
        Checkpoint('~/ckpt.pt').entries,
        Writer(pathlib.Path('~/ckpt.pt')).checkpoint.entries,
    ):
        assert opened['iter_num'] == 7
    given = {'order': '~/order.json', 'length': 3}
    assert len(Writer('~/ckpt.pt').infill('a[[1-1]]b', **given)) == 3
    with one_line('masked:.*/here must name a folder'):
        open_checkpoint('masked:~/here')
    save_checkpoint('~/new.pt', model)
    assert os.listdir() == [] and (tmp_path / 'new.pt').is_file()


def test_a_checkpoint_replaces_a_link_and_leaves_what_it_leads_to(ckpt, tmp_path):
    before = pathlib.Path(ckpt).read_bytes()
    (tmp_path / 'link.pt').symlink_to('ckpt.pt')
    save_checkpoint(tmp_path / 'link.pt', make_model())
    assert pathlib.Path(ckpt).read_bytes() == before and not (tmp_path / 'link.pt').is_symlink()
