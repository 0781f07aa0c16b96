"""The plain way that the speed is compared with must do the same work."""

import json

import pytest
import torch
from conftest import make_model
from torch.utils.flop_counter import FlopCounterMode

import bench
from anyorder.fast import lean
from anyorder.generation.fill import generate
from anyorder.generation.schedules import unmask_schedule
from anyorder.speed.plain import generation_limit, plain_generate, plain_nll
from anyorder.training.clock import training_flops
from bench import NETWORKS
from configurator import configure


@pytest.mark.parametrize('n_steps', [1, 3, 9])
def test_the_plain_way_writes_the_same(batch, n_steps):
    model, (_, order) = make_model(vocab_size=16, n_tokens=11), batch
    plain = plain_generate(model, order, unmask_schedule(9, n_steps), temperature=1e-9)
    assert torch.equal(
        plain, generate(model, torch.zeros_like(order), order, 0, n_steps, temperature=0)
    )
    drawn = plain_generate(model, order, unmask_schedule(9, n_steps))
    assert drawn.max() < 11


def test_the_limit_counts_every_slot_and_weight():
    """Ends 2, 4, 9: the first step runs slots 0-1 and keeps slot 0, the second 1-3 and keeps 0-2, the third 3-8.
    Their keys: 1 1; 2 3 3; 4 5 5 5 5 5."""
    model, C, L, V, B, inf = make_model(), 16, 2, 11, 5, float('inf')
    flops = 0
    for slots, keys, drawn, drawn_keys in (
        (2, 2, 2, 2),
        (3, 8, 2, 6),
        (6, 29, 5, 25),
    ):  # L = 2: all, then the drawn
        flops += B * ((slots + drawn) * 24 * C * C + 4 * C * (keys + drawn_keys))
        flops += B * ((slots - drawn) * 4 * C * C + drawn * 2 * C * V)
    assert generation_limit(model, B, [2, 4, 9], 1.0, inf, 4) == pytest.approx(flops)
    parts = ('attn', 'mlp', 'ln_1', 'ln_2', 'lm_head')
    weights = sum(
        p.numel() for n, p in model.named_parameters() if any(part in n for part in parts)
    )
    assert generation_limit(model, B, [2, 4, 9], inf, 1.0, 4) == pytest.approx(
        3 * weights * 4 + B * 6 * 2 * C * L * 4
    )


def test_the_plain_loss_is_the_loss(batch):
    model = make_model(vocab_size=16, n_tokens=11)
    torch.testing.assert_close(plain_nll(model, *batch), model(*batch), rtol=0, atol=1e-10)


def test_a_draft_is_right_with_the_probability_that_is_fixed():
    torch.manual_seed(0)
    drawing, logits = bench.FixedAcceptance(), torch.zeros(20_000, 11)
    draft, check = (
        drawing.tokens_by_noise(logits, lambda: torch.zeros(20_000, 11)) for _ in range(2)
    )
    assert (draft == check).float().mean() == pytest.approx(0.93, abs=0.01)


def test_training_flops_count_the_matrix_products(batch):
    model = lean(make_model(vocab_size=16, n_tokens=11).requires_grad_(True))
    with FlopCounterMode(display=False) as counter:
        model(*batch).sum().backward()
    counts = counter.get_flop_counts()['Global']
    products = sum(counts.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    attention = 6 * 5 * 9 * 9 * 16 * 2  # 6 N C a slot and layer
    assert training_flops(model, 5) == products + attention
    with FlopCounterMode(display=False) as counter:
        two = make_model(vocab_size=16, n_tokens=11, target_position='two_stream').requires_grad_(
            True
        )
        two(*batch).sum().backward()
    counts = counter.get_flop_counts()['Global']
    run = sum(counts.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    assert (
        training_flops(two, 5) == run + 1.5 * attention
    )  # the last layer asks for one stream alone
    for kind, share in (('bidirectional', 1), ('mixed', 2 / 3)):
        other = make_model(vocab_size=16, n_tokens=11, attention=kind)
        assert training_flops(other, 5) == pytest.approx(
            products + 2 * share * attention, rel=1e-12
        )


def test_the_grid_times_all_networks_alike(monkeypatch):
    runs = []
    monkeypatch.setattr(
        bench,
        'generate',
        lambda model, idx, order, n_known, n_steps, **how: runs.append(
            (model.config.attention, n_known, n_steps)
        ),
    )
    sizes = [
        '--block_size=64',
        '--vocab_size=64',
        '--n_tokens=50',
        '--n_layer=1',
        '--n_head=1',
        '--n_embd=16',
    ]
    config = configure(vars(bench), ['grid', *sizes, '--steps=4,64,256', '--repeats=3'])
    rows = bench.generation_times(config, torch.device('cpu'), 'float32')
    one = (
        [(32, 2)] + [(0, 4)] * 3,
        [(62, 2)] + [(0, 64)] * 3,
    )  # the warm-up is two steps of the same width
    assert runs == [
        (network, *run)
        for part in one
        for network in ('causal', 'bidirectional', 'mixed', 'causal')
        for run in part
    ]
    assert [r['steps'] for r in rows] == [4, 64]


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_steps(process):
    """Of the MiB the cache is 8: a copy a step would be 2,048."""
    sizes = (
        '--block_size=256',
        '--vocab_size=64',
        '--n_tokens=50',
        '--n_layer=4',
        '--n_head=2',
        '--n_embd=128',
    )
    how = (
        '--batch_size=8',
        '--device=cpu',
        '--dtype=float32',
        '--steps=16,256',
        '--plain=',
        '--windows=',
    )
    rows = process('bench.py', 'sample', *sizes, *how).stdout.splitlines()
    peak = [float(line.split()[5].replace(',', '')) for line in rows[2:]]
    assert len(peak) == 2 and peak[1] < peak[0] + 32


def test_the_commands_count_what_they_time(script, tmp_path):
    tiny = (
        '--block_size=64',
        '--vocab_size=64',
        '--n_tokens=50',
        '--n_layer=1',
        '--n_head=1',
        '--n_embd=16',
        '--device=cpu',
    )
    rows = script(
        'bench.py', 'sample', *tiny, '--repeats=1', '--steps=4,64', '--plain=4', '--windows=32'
    )
    rows = rows.stdout.splitlines()
    assert [line.split()[0] for line in rows[1:4]] == ['steps', '4', '64']
    assert len(rows[2].split()) == 8 and len(rows[3].split()) == 6
    passes, time, of_pass = map(float, rows[4].split()[:3])
    assert 1 + 63 / 32 <= passes < 40 and of_pass == pytest.approx(
        1000 * time / passes, abs=10 / passes
    )
    assert rows[4].endswith('lossless, window 32') and len(rows) == 5
    rows = script(
        'bench.py', 'train', *tiny, '--repeats=1', '--n_updates=1', '--compile=False'
    ).stdout.splitlines()
    assert [line.split()[0] for line in rows[2:]] == ['ours', 'plain', 'ours']
    assert len(rows[2].split()) == len(rows[3].split()) == 7
    how = ('--repeats=1', '--n_updates=1', '--compile=False', '--steps=4,64', '--out=grid.json')
    out = script('bench.py', 'grid', *tiny, *how).stdout
    with open(tmp_path / 'grid.json') as f:
        grid = json.load(f)
    assert [row['steps'] for row in grid['generation']] == [4, 64]
    assert {row['network'] for row in grid['training']} == set(NETWORKS)
    assert all(row[name] > 0 for row in grid['generation'] for name in bench.WRITERS)
    assert "times the decoder's" in out
    parameters = {row['network']: row['parameters'] for row in grid['training']}
    assert parameters['encoder'] == parameters['adaln'] == parameters['rotary']
    assert parameters['rotary'] > parameters['layer']
    out = script(
        'bench.py', 'ensemble', *tiny, '--repeats=1', '--n_contexts=16', '--n_plain=4'
    ).stdout
    rows = {line.split()[0]: line.split() for line in out.splitlines()[:-1]}
    needed = 64 + 15 * sum(
        range(3, 65)
    )  # 15 shuffles for each visit that has two or more before it
    assert (
        needed <= int(rows['ours'][1].replace(',', '')) <= 1.03 * needed
        and rows['ours'][2] == f'{64 + 15 * 62:,}'
    )
    assert rows['plain'][1] == rows['plain'][2] == f'{64 * 16 * 64:,}'


@pytest.mark.parametrize(
    'argv, said',
    [
        (['sample', '--ckpt=ckpt.pt'], 'leave out --ckpt'),
        (['sample', '--out=x.json'], 'writes no file: leave out --out'),
        (['frontier'], 'name one by --ckpt='),
        (['sample', '--plain=8'], 'plain must be among the steps'),
        (['sample', '--steps=0'], 'steps must be numbers'),
        (['sample', '--optimizer=foo'], "optimizer must be adamw or muon, got 'foo'"),
    ],
)
def test_wrong_options_are_one_line(argv, said):
    with pytest.raises(ValueError, match=said):
        bench.main(configure(vars(bench), argv))
