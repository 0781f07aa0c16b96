"""The plain way that the speed is compared with must do the same work."""

import json

import pytest
import torch
from conftest import make_model
from torch.utils.flop_counter import FlopCounterMode

from anyorder.extras.speed import ensemble, frontier, grid, sample
from anyorder.extras.speed import train as updates
from anyorder.extras.speed.plain import generation_limit, plain_generate, plain_nll, step_slots
from anyorder.fast import lean
from anyorder.generation.fill import generate
from anyorder.generation.schedules import unmask_schedule
from anyorder.training.clock import training_flops
from configurator import configure
from model import Parts

ENCODER = {'attention': 'bidirectional'}
MIXED = {'attention': 'mixed'}
TWO_STREAM = {'target_position': 'two_stream'}
PADDED = {'vocab_size': 16, 'n_tokens': 11}


# --------------------------------------------------------------------------------------------------
# the plain way


@pytest.mark.parametrize('n_steps', [1, 3, 9])
def test_the_plain_way_writes_the_same(batch, n_steps):
    _, order = batch
    model = make_model(**PADDED)
    ends = unmask_schedule(9, n_steps)
    plain = plain_generate(model, order, ends, temperature=1e-9)
    ours = generate(model, torch.zeros_like(order), order, 0, n_steps, temperature=0)
    assert torch.equal(plain, ours)
    assert plain_generate(model, order, ends).max() < 11


def test_the_limit_counts_every_slot_and_weight():
    """Ends 2, 4, 9: the first step runs slots 0-1 and keeps slot 0, the second 1-3 and keeps 0-2.

    The third runs 3-8. Their keys: 1 1; 2 3 3; 4 5 5 5 5 5."""
    model = make_model()
    C = 16
    L = 2
    V = 11
    B = 5
    steps = [(2, 2, 2, 2), (3, 8, 2, 6), (6, 29, 5, 25)]  # in all, then of what is drawn
    flops = 0
    for slots, keys, drawn, drawn_keys in steps:  # the last of two layers is for what is drawn
        flops += (slots + drawn) * 24 * C * C
        flops += 4 * C * (keys + drawn_keys)
        flops += (slots - drawn) * 4 * C * C
        flops += drawn * 2 * C * V
    inf = float('inf')
    assert generation_limit(model, B, [2, 4, 9], 1.0, inf, 4) == pytest.approx(B * flops)
    parts = ('attn', 'mlp', 'ln_1', 'ln_2', 'lm_head')
    n_weights = 0
    for name, p in model.named_parameters():
        if any(part in name for part in parts):
            n_weights += p.numel()
    n_bytes = 3 * n_weights * 4 + B * 6 * 2 * C * L * 4
    assert generation_limit(model, B, [2, 4, 9], inf, 1.0, 4) == pytest.approx(n_bytes)


@pytest.mark.parametrize(
    'variant', [{}, ENCODER, MIXED, TWO_STREAM], ids=['decoder', 'encoder', 'mixed', 'two_stream']
)
def test_the_limit_of_a_network_counts_what_its_slots_see(variant):
    """The slots of a step, and what they see, as its plan says; the cache keeps what it may."""
    model = make_model(**variant)
    order = torch.arange(9).unsqueeze(0)
    kept = 0
    last = 0
    for known, end in ((0, 2), (2, 4), (4, 9)):
        asked = torch.arange(known, end).unsqueeze(0)
        stop = {'causal': end, 'bidirectional': 9, 'mixed': 9}[model.config.attention]
        if variant == TWO_STREAM:
            stop = known + 1
        number = torch.arange(kept, stop).unsqueeze(0)
        parts = Parts(torch.tensor([[9]]))
        slots = model.slots(order, torch.tensor([[known]]), parts, asked, number, 9)
        n_keys = slots.sees[0, 0].sum(-1)
        of_drawn = n_keys[slots.answering[0]]
        n_others, other_keys, keys_of_drawn = step_slots(model.config, last, known, end)
        assert n_others == len(n_keys) - len(of_drawn)
        assert other_keys == n_keys.sum() - of_drawn.sum()
        assert of_drawn.tolist() == [keys_of_drawn] * (end - known)
        kept = {'causal': known + 1, 'bidirectional': 0, 'mixed': known}[model.config.attention]
        last = known


def test_the_plain_loss_is_the_loss(batch):
    model = make_model(**PADDED)
    torch.testing.assert_close(plain_nll(model, *batch), model(*batch), rtol=0, atol=1e-10)


def test_a_draft_is_right_with_the_probability_that_is_fixed():
    torch.manual_seed(0)
    drawing = sample.FixedAcceptance()
    zeros = torch.zeros(20_000, 11)
    draft = drawing.tokens_by_noise(zeros, lambda: zeros)
    check = drawing.tokens_by_noise(zeros, lambda: zeros)
    assert (draft == check).float().mean() == pytest.approx(0.93, abs=0.01)


# --------------------------------------------------------------------------------------------------
# FLOPs

ATTENTION = 6 * 5 * 9 * 9 * 16 * 2  # 6 N C a slot and layer


def products_of(model, batch):
    """FLOPs of the matrix products of an update, as PyTorch counts them."""
    with FlopCounterMode(display=False) as counter:
        model.requires_grad_(True)(*batch).sum().backward()
    counts = counter.get_flop_counts()['Global']
    return counts.get(torch.ops.aten.mm, 0) + counts.get(torch.ops.aten.addmm, 0)


def test_training_flops_count_the_matrix_products(batch):
    model = lean(make_model(**PADDED))
    assert training_flops(model, 5) == products_of(model, batch) + ATTENTION


def test_the_last_layer_of_two_streams_asks_for_one(batch):
    model = make_model(**PADDED, target_position='two_stream')
    assert training_flops(model, 5) == products_of(model, batch) + 1.5 * ATTENTION


@pytest.mark.parametrize('kind, share', [('bidirectional', 1), ('mixed', 2 / 3)])
def test_training_flops_of_other_masks(batch, kind, share):
    products = products_of(lean(make_model(**PADDED)), batch)
    other = make_model(**PADDED, attention=kind)
    expected = products + 2 * share * ATTENTION
    assert training_flops(other, 5) == pytest.approx(expected, rel=1e-12)


# --------------------------------------------------------------------------------------------------
# the commands

SIZES = '--block_size=64 --vocab_size=64 --n_tokens=50 --n_layer=1 --n_head=1 --n_embd=16'
TINY = (*SIZES.split(), '--repeats=1', '--device=cpu')


def count_of(cell):
    return int(cell.replace(',', ''))


def test_the_grid_times_all_networks_alike(monkeypatch):
    runs = []

    def record(model, idx, order, n_known, n_steps, **how):
        runs.append((model.config.attention, n_known, n_steps))

    monkeypatch.setattr(grid, 'generate', record)
    config = configure(vars(grid), [*TINY, '--n_steps=4,64,256', '--repeats=3'])
    rows = grid.generation_times(config, torch.device('cpu'), 'float32')
    assert [row['steps'] for row in rows] == [4, 64]
    wanted = []
    for warm_up, n_steps in ((32, 4), (62, 64)):  # the warm-up is two steps of the same width
        for network in ('causal', 'bidirectional', 'mixed', 'causal'):
            wanted.append((network, warm_up, 2))
            wanted += [(network, 0, n_steps) for _ in range(3)]
    assert runs == wanted


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_steps(process):
    """Of the MiB the cache is 8: a copy a step would be 2,048."""
    sizes = '--block_size=256 --vocab_size=64 --n_tokens=50 --n_layer=4 --n_head=2 --n_embd=128'
    how = '--batch_size=8 --device=cpu --dtype=float32 --n_steps=8,16,256 --plain= --windows='
    said = process('anyorder.extras.speed', 'sample', *sizes.split(), *how.split()).stdout
    few, many = (count_of(line.split()[5]) for line in said.splitlines()[3:5])
    assert many < few + 32


@pytest.mark.slow
def test_sample_counts_what_it_times(script, tmp_path):
    how = ('--n_steps=4,64', '--plain=4', '--windows=32', '--out=sample.json')
    said = script('anyorder.extras.speed', 'sample', *TINY, *how).stdout
    _, heading, few, many, lossless, _ = said.splitlines()
    assert heading.split()[0] == 'steps'
    assert (few.split()[0], len(few.split())) == ('4', 9)
    assert (many.split()[0], len(many.split())) == ('64', 7)
    passes, _, time, of_pass = map(float, lossless.split()[:4])
    assert 1 + 63 / 32 <= passes < 40
    assert of_pass == pytest.approx(1000 * time / passes, abs=10 / passes)
    assert lossless.endswith('lossless, window 32')
    rows = json.loads((tmp_path / 'sample.json').read_text())['rows']
    assert [row['passes'] for row in rows] == [4, 64, passes]
    assert [row['later'] > 0 for row in rows] == [True, True, True]
    assert ['plain' in row for row in rows] == [True, False, False]


@pytest.mark.parametrize('network', ['encoder', 'mixed', 'two_stream'])
def test_sample_times_other_networks_by_themselves(script, network):
    how = ('--n_steps=4', f'--network={network}')
    said = script('anyorder.extras.speed', 'sample', *TINY, *how).stdout
    n_rows = 2 if network == 'two_stream' else 1  # which can write lossless
    assert len(said.splitlines()) == n_rows + 3


def test_train_compares_two_updates(script, tmp_path):
    how = ('--n_updates=1', '--compile=False', '--out=train.json')
    said = script('anyorder.extras.speed', 'train', *TINY, *how).stdout
    rows = [line.split() for line in said.splitlines()[2:]]
    assert [row[0] for row in rows] == ['ours', 'plain', 'ours']
    assert len(rows[0]) == len(rows[1]) == 8
    kept = json.loads((tmp_path / 'train.json').read_text())['rows']
    assert [row['name'] for row in kept] == ['ours', 'plain']
    for row in kept:
        assert row['tokens_per_sec'] == pytest.approx(4 * 64 / row['seconds'])


def test_grid_times_every_network(script, tmp_path):
    how = ('--n_updates=1', '--compile=False', '--n_steps=4,64', '--out=grid.json')
    assert "times the decoder's" in script('anyorder.extras.speed', 'grid', *TINY, *how).stdout
    found = json.loads((tmp_path / 'grid.json').read_text())
    assert [row['steps'] for row in found['generation']] == [4, 64]
    for row in found['generation']:
        assert all(row[name] > 0 for name in grid.WRITERS)
    parameters = {row['network']: row['parameters'] for row in found['training']}
    assert set(parameters) == set(grid.NETWORKS)
    assert parameters['encoder'] == parameters['adaln'] == parameters['rotary']
    assert parameters['rotary'] > parameters['layer']


def test_ensemble_counts_slots_and_rows_of_the_head(script):
    out = script(
        'anyorder.extras.speed', 'ensemble', *TINY, '--n_contexts=16', '--n_plain=4'
    ).stdout
    _, _, ours, plain, _ = out.splitlines()
    _, n_slots, n_heads, _, share = ours.split()
    assert share.endswith('%')
    # 15 shuffles for each visit that has two or more before it
    needed = 64 + 15 * sum(range(3, 65))
    assert needed <= count_of(n_slots) <= 1.03 * needed
    assert count_of(n_heads) == 64 + 15 * 62
    _, n_slots, n_heads, *_ = plain.split()
    assert count_of(n_slots) == count_of(n_heads) == 64 * 16 * 64


@pytest.mark.parametrize(
    'command, typed, said',
    [
        (frontier, '--device=cpu', 'name one by --ckpt='),
        (sample, '--plain=8', 'plain must be among the n_steps'),
        (sample, '--n_steps=0', 'n_steps must be numbers'),
        (sample, '--steps=4', "the nearest is 'n_steps'"),
        (updates, '--optimizer=foo', "optimizer must be adamw or muon, got 'foo'"),
        (ensemble, '--n_positions=2000', 'n_positions must be at most block_size=1024'),
        (grid, '--out=x.csv', '.json'),
    ],
)
def test_wrong_options_are_one_line(command, typed, said):
    with pytest.raises(ValueError, match=said):
        command.main(configure(vars(command), [typed]))
