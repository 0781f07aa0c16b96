"""The estimates of eval_ppl.py: their nats against slow versions, their rows by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import make_model

import eval_ppl
from anyorder.likelihood import estimates
from anyorder.likelihood.ensemble import Groups, ensemble_block_nll, ensemble_totals, sample_groups
from anyorder.likelihood.estimates import ESTIMATES, Along
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.measured import Corpus
from anyorder.likelihood.nll import block_nll, draw_known, one_by_one
from anyorder.orders import ORDERS, Order, draw_orders
from anyorder.seeds import derive_seed
from anyorder.tokens.tokenizers import Bytes
from configurator import Config, configure
from eval_ppl import read_estimates

SEED = 1337
from model import AOGPTConfig


def options(*args):
    """The options of the command line, with those of the ensemble."""
    c = configure(vars(eval_ppl), list(args))
    _, of_ensemble = read_estimates(c.estimates)
    return Config(c | of_ensemble)


def opened(order=None, **config):
    """What estimates ask of a Checkpoint."""
    config = AOGPTConfig(block_size=9, **config)
    order = order or Order('random')
    return SimpleNamespace(config=config, order=order, tokenizer=Bytes(), counts=None)


def estimate(name, *args, checkpoint=None, asked=()):
    return ESTIMATES[name](options(*args), checkpoint or opened(), asked or (name,))


def text_of(blocks, n_bytes=None, name='words'):
    return Corpus(
        name,
        f'{name} (val)',
        {'source': name, 'sha256': '0'},
        blocks.flatten().numpy(),
        blocks,
        blocks.numel() if n_bytes is None else n_bytes,
    )


@pytest.fixture
def blocks():
    """Blocks (4, 9). The last equals the first."""
    idx = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(1))
    idx[3] = idx[0]
    return idx


# --------------------------------------------------------------------------------------------------
# nats of each estimate


def test_one_order_for_all_blocks(blocks):
    model = make_model()
    own = Order('block', 4, seed=3)
    for name, order in (('l2r', Order('l2r')), ('own', own)):
        it = estimate(name, checkpoint=opened(own))
        want = model(blocks[[2, 0]], order.draw(2, 9)).sum(1, keepdim=True)
        torch.testing.assert_close(it.nats(model, blocks, [2, 0]), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
@pytest.mark.parametrize(
    'kind, n_numbers', [('swaps', 4), ('fixed', 9), ('r2l', 0), ('listed', 0), ('drawn', 9)]
)
def test_a_family_is_scored_along_its_orders_block_by_block(
    blocks, monkeypatch, kind, n_numbers, attention
):
    """Orders that all blocks share have successive seeds; a masked loss visits one by one."""
    monkeypatch.setitem(ORDERS, 'drawn', ORDERS['random'])
    model = make_model(attention=attention)
    order = Order.of(
        {'listed': [8, 7, 6, 5, 4, 0, 1, 2, 3]}.get(kind, kind), {'order': 'swaps:2@3'}
    )
    it = Along(
        options('--n_orders=3', '--batch_size=6'), opened(attention=attention), (), order, 'a label'
    )
    K = 3 if n_numbers else 1
    assert it.n_at_once() == 6 // K
    got = it.nats(model, blocks, [2, 0])
    for row, b in zip(got, (2, 0)):
        orders = torch.cat([replace(order, seed=3 + k).draw(1, 9) for k in range(K)])
        if kind == 'drawn':
            orders = draw_orders([b], 9, 3, SEED)[0]
        want = one_by_one(model, blocks[b].expand(K, 9), orders).sum(1)
        torch.testing.assert_close(row, want, rtol=0, atol=1e-10)
    (row,) = it.rows(got, text_of(blocks[[2, 0]]))
    assert row['estimate'] == ('a label x 3' if n_numbers else 'a label')
    assert row['n'] == K
    assert row['kind'] == 'order'
    assert math.isclose(row['nats_per_token'], got.mean() / 9)
    assert ('orders_stderr' in row, 'spread' in row) == (
        kind in ('swaps', 'fixed'),
        kind == 'drawn',
    )
    assert len(it.remarks([row], text_of(blocks))) == (K > 1)


def test_orders_that_all_blocks_share_have_an_error_of_their_own():
    it = Along(options('--n_orders=2'), opened(), (), Order.of('swaps:3', {}), 'swaps:3')
    text = text_of(torch.zeros(2, 9, dtype=torch.long))
    (row,) = it.rows(
        torch.tensor([[1, 3], [5, 11]]).double(), text
    )  # means 3 and 7: their error is 2
    assert math.isclose(row['orders_stderr'], 2 / 9)
    assert math.isclose(row['stderr'], 3 / 9)
    assert it.remarks([row], text) == [
        'swaps:3 x 2: ± 0.2222 nats/token between its orders, which ± above leaves out'
    ]


def test_a_journal_tells_families_apart():
    def work(order, label='x', **run):
        return Along(options(), opened(), (), Order.of(order, {'block_size': 9} | run), label).work

    words = [
        work('swaps:3'),
        work('swaps:4'),
        work('swaps:3@1'),
        work([*range(9)]),
        work([8, *range(8)]),
    ]
    assert len(set(words)) == 5
    assert words[0] == work('swaps:3')


def test_a_bound_averages_the_orders_of_its_block(blocks):
    model = make_model()
    got = estimate('any', '--n_orders=3', '--batch_size=2').nats(model, blocks, [3, 1])
    assert got.shape == (2, 3)
    for row, b in zip(got, (3, 1)):
        orders = draw_orders([b], 9, 3, SEED)[0]
        torch.testing.assert_close(
            row, model(blocks[b].expand(3, 9), orders).sum(1), rtol=0, atol=1e-10
        )


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_a_masked_loss_is_drawn_for_the_bound_and_goes_one_by_one_for_importance_weights(
    attention, blocks
):
    model = make_model(attention=attention)
    encoder = opened(attention=attention)
    orders = draw_orders([3, 1], 9, 2, SEED).flatten(0, 1)
    repeated = blocks[[3, 1]].repeat_interleave(2, 0)
    known = draw_known([3, 1], 9, 2, SEED).flatten()
    drawn = block_nll(model, repeated, orders, 9, n_known=known).view(2, 2)
    exact = one_by_one(model, repeated, orders).sum(1).view(2, 2)
    for name, asked, want in (
        ('any', ['any'], drawn),
        ('any', ['any', 'iw'], exact),
        ('iw', ['iw'], exact),
    ):
        got = estimate(name, '--n_orders=2', checkpoint=encoder, asked=asked).nats(
            model, blocks, [3, 1]
        )
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_the_ensemble_shuffles_the_first_order_of_a_block(blocks):
    model = make_model()
    args = ['--estimates=ensemble:5/2', '--n_positions=4']
    for b in (3, 1):
        (row,) = estimate('ensemble', *args).nats(model, blocks, [b])
        assert row.shape == (4,)
        order = draw_orders([b], 9, 1, SEED)[0, 0]
        groups, weights = sample_groups(9, 2, 4, derive_seed(SEED, 'positions', b))
        own, members = ensemble_block_nll(
            model, blocks[b], order, 5, Groups(groups, 2), derive_seed(SEED, 'contexts', b)
        )
        torch.testing.assert_close(row, ensemble_totals(own, members, weights), rtol=0, atol=1e-10)
        assert math.isclose(row[0], model(blocks[b : b + 1], order[None]).sum(), abs_tol=1e-9)


def test_contexts_and_sampled_visits_of_blocks_differ(blocks, monkeypatch):
    """Two blocks of equal tokens and, here, one order: only their contexts tell them apart."""
    it = estimate('ensemble', '--estimates=ensemble:3', '--n_positions=3')
    assert len({tuple(it.groups(b, 9)[0]) for b in range(20)}) > 5
    assert it.groups(2, 9)[0] == it.groups(2, 9)[0]
    monkeypatch.setattr(
        estimates, 'draw_orders', lambda numbers, *_: draw_orders([0] * len(numbers), 9, 1, SEED)
    )
    a, b = (
        estimate('ensemble', '--estimates=ensemble:3').nats(make_model(), blocks, [b])[0]
        for b in (0, 3)
    )
    assert a[0] == b[0]
    assert (a[1:] - b[1:]).abs().min() > 1e-6


def test_nats_that_are_not_finite_reach_neither_the_table_nor_the_journal(blocks):
    model = make_model()
    journal = Journal('', {})
    model.lm_head.bias[3] = math.nan
    for name in ('l2r', 'any', 'ensemble'):
        with pytest.raises(ValueError, match='not finite'):
            estimate(name).measure(model, text_of(blocks), journal)
    assert not journal.done


def test_another_seed_gives_other_orders_contexts_and_visits(blocks):
    model = make_model()
    for name, args in (('any', []), ('ensemble', ['--estimates=ensemble:3'])):
        a, b = (estimate(name, *args, f'--seed={seed}').nats(model, blocks, [0]) for seed in (1, 2))
        assert (a - b).abs().min() > 1e-6
    of_seeds = [estimate('ensemble', '--n_positions=3', f'--seed={seed}') for seed in range(20)]
    assert len({tuple(it.groups(0, 9)[0]) for it in of_seeds}) > 5


def test_a_pass_has_at_most_batch_size_blocks():
    sizes = [
        (name, estimate(name, '--batch_size=6', f'--n_orders={n}').n_at_once())
        for name, n in (('l2r', 1), ('any', 1), ('any', 4), ('iw', 3), ('any', 9), ('ensemble', 1))
    ]
    assert sizes == [('l2r', 6), ('any', 6), ('any', 1), ('iw', 2), ('any', 1), ('ensemble', 1)]


# --------------------------------------------------------------------------------------------------
# rows by hand: two blocks of nine tokens, twelve bytes


def rows_of(name, nats, *args, **how):
    text = text_of(torch.zeros(2, 9, dtype=torch.long), n_bytes=12)
    it = estimate(name, *args, **how)
    return it, it.rows(torch.tensor(nats, dtype=torch.float64), text), text


def test_the_bound_is_the_mean_of_all_orders():
    _, (row,), _ = rows_of('any', [[1, 3, 8], [5, 7, 6]], '--n_orders=3')
    assert math.isclose(row['nats_per_token'], (4 + 6) / 18)
    assert math.isclose(row['stderr'], 2**0.5 / 2**0.5 / 9)
    assert (row['kind'], row['n'], row['estimate']) == ('any', 3, 'any order x 3')


def test_bits_are_counted_by_bytes():
    for name, args in (('l2r', []), ('any', [])):
        _, (row,), _ = rows_of(name, [[3], [9]], *args)
        assert math.isclose(row['bits_per_byte'], 12 / math.log(2) / 12)
        assert row['bytes'] == 12
        assert row['tokens'] == 18


def test_importance_weights_average_probabilities_of_a_whole_block():
    p = [[0.5, 0.25, 0.125, 0.5], [0.1, 0.3, 0.2, 0.2]]
    _, rows, _ = rows_of('iw', [[-math.log(x) for x in row] for row in p], '--n_orders=4')
    assert [row['n'] for row in rows] == [1, 2, 4]
    assert [row['estimate'] for row in rows] == ['iw x 1', 'iw x 2', 'iw x 4']
    for row in rows:
        nats = [-math.log(sum(q[: row['n']]) / row['n']) for q in p]
        assert math.isclose(row['nats_per_token'], sum(nats) / 18)


def test_the_gain_has_an_error_of_its_own():
    it, rows, text = rows_of('ensemble', [[10, 9, 8], [50, 46, 44]], '--estimates=ensemble:4')
    assert [row['estimate'] for row in rows] == [f'ensemble x {m}' for m in (1, 2, 4)]
    assert [row['n'] for row in rows] == [1, 2, 4]
    gains = [(row['gain'], row['gain_stderr']) for row in rows]
    assert gains[0] == (0, 0)
    assert gains[1] == pytest.approx((5 / 18, 1.5 / 9))  # 1 and 4
    assert gains[2] == pytest.approx((8 / 18, 2 / 9))  # 2 and 6
    assert math.isclose(rows[1]['stderr'], 18.5 / 9)
    assert it.remarks(rows, text) == [
        'gain of ensemble x 2 over x 1, block by block: 0.2778 ± 0.1667 nats/token',
        'gain of ensemble x 4 over x 1, block by block: 0.4444 ± 0.2222 nats/token',
    ]
    options = '--estimates=ensemble:2/2', '--n_positions=6'
    it, rows, text = rows_of('ensemble', [[10, 9], [50, 46]], *options)
    assert it.remarks(rows, text)[0] == 'ensemble on 6 of 9 visits a block'


def test_own_is_the_order_of_the_training():
    for kind in ('r2l', 'fixed'):  # one of them, however many are asked for
        _, (row,), _ = rows_of('own', [[3], [9]], '--n_orders=3', checkpoint=opened(Order(kind)))
        assert (row['estimate'], row['kind'], row['n']) == (f'own order ({kind})', 'own', 1)
