"""The plain way that the speed is compared with must do the same work."""

import json

import pytest
import torch
from conftest import make_model
from torch.utils.flop_counter import FlopCounterMode

from anyorder.extras.speed import bench
from anyorder.extras.speed.plain import generation_limit, plain_generate
from anyorder.fast import lean
from anyorder.generation.fill import generate
from anyorder.generation.schedules import unmask_schedule
from anyorder.training.clock import training_flops
from configurator import configure

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
# the command

SIZES = '--block_size=64 --vocab_size=64 --n_tokens=50 --n_layer=1 --n_head=1 --n_embd=16'
TINY = (*SIZES.split(), '--batch_size=4', '--repeats=1', '--device=cpu', '--compile=False')


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_steps(process):
    """Of the MiB the cache is 8: a copy a step would be 2,048."""
    sizes = '--block_size=256 --vocab_size=64 --n_tokens=50 --n_layer=4 --n_head=2 --n_embd=128'
    how = '--batch_size=8 --device=cpu --dtype=float32 --n_steps=8,16,256 --plain='
    words = ('bench', *sizes.split(), *how.split(), '--n_updates=0')
    said = process('anyorder.extras.speed', *words).stdout
    few, many = (int(line.split()[6].replace(',', '')) for line in said.splitlines()[3:5])
    assert many < few + 32


def test_bench_times_texts_beside_the_plain_way_and_updates(script, tmp_path):
    how = ('--n_steps=4,64', '--plain=4', '--n_updates=1', '--out=bench.json')
    said = script('anyorder.extras.speed', 'bench', *TINY, *how).stdout
    rows = json.loads((tmp_path / 'bench.json').read_text())['results']
    names = ['decoder', 'decoder', 'plain', 'decoder']
    assert [row['name'] for row in rows] == names
    assert [line.split()[0] for line in said.splitlines()[2:5]] == names[:3]
    few, many, plain, update = rows
    assert [few['passes'], many['passes'], plain['passes']] == [4, 64, 4]
    assert few['of_limit'] > 0 and 'of_limit' not in plain
    assert all(row['later'] > 0 for row in rows[:3])
    assert update['tokens_per_sec'] == pytest.approx(4 * 64 / update['seconds'])


@pytest.mark.parametrize(
    'network, n_texts', [('encoder', 1), ('mixed', 1), ('two_stream', 1), ('decoder', 0)]
)
def test_bench_times_other_networks_by_themselves(script, tmp_path, network, n_texts):
    how = ('--n_steps=4' if n_texts else '--n_steps=', '--n_updates=1', '--out=bench.json')
    script('anyorder.extras.speed', 'bench', *TINY, *how, f'--network={network}', '--plain=')
    rows = json.loads((tmp_path / 'bench.json').read_text())['results']
    assert ['passes' in row for row in rows] == [True] * n_texts + [False]


@pytest.mark.parametrize(
    'typed, said',
    [
        ('--n_steps=0', 'n_steps must be numbers'),
        ('--steps=4', "the nearest is 'n_steps'"),
        ('--optimizer=foo', "optimizer must be adamw or muon, got 'foo'"),
        ('--network=foo', 'foo'),
        ('--out=x.csv', '.json'),
    ],
)
def test_wrong_options_are_one_line(typed, said):
    with pytest.raises(ValueError, match=said):
        bench.main(configure(vars(bench), [*TINY, '--n_steps=', typed]))
