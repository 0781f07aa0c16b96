"""Orders: their laws, the streams that they are drawn from, how options name them, and what is given comes first."""

import itertools
import json
from collections import Counter

import pytest
import torch

from anyorder.orders import (
    ORDERS,
    Family,
    draw_orders,
    family_of,
    given_first,
    order_of,
    read_order,
    sample_order,
    stream,
)


def test_orders_are_uniform_permutations():
    order = sample_order(60000, 3, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(order @ torch.tensor([9, 3, 1]))
    counts = counts[counts > 0]
    assert len(counts) == 6 and (counts - 10000).abs().max() < 5 * 91  # 5 standard deviations


def test_l2r_ratio_is_a_share_of_the_rows():
    l2r = (
        sample_order(20000, 8, l2r_ratio=0.1, generator=torch.Generator().manual_seed(0))
        == torch.arange(8)
    ).all(1)
    assert abs(l2r.sum() - 2000) < 5 * 43
    assert (sample_order(3, 8, l2r_ratio=1.0) == torch.arange(8)).all()
    assert (sample_order(3, 8, 'l2r') == torch.arange(8)).all()
    with pytest.raises(ValueError, match="got 'rl'"):
        sample_order(1, 8, 'rl')


def test_fixed_orders_are_one_permutation_of_a_seed():
    fixed, other = sample_order(3, 40, 'fixed', seed=1), sample_order(3, 40, 'fixed', seed=2)
    assert (fixed == fixed[0]).all() and not torch.equal(fixed, other)
    assert (fixed[0].sort().values == torch.arange(40)).all()
    first = torch.tensor([sample_order(1, 5, 'fixed', seed=s)[0, 0] for s in range(2000)])
    assert (torch.bincount(first, minlength=5) - 400).abs().max() < 5 * 18  # uniform over seeds
    # what lies behind is left out
    assert torch.equal(sample_order(1, 13, 'fixed', seed=1), fixed[:1][fixed[:1] < 13].view(1, -1))
    mixed = sample_order(
        20000, 8, 'fixed', l2r_ratio=0.1, seed=1, generator=torch.Generator().manual_seed(0)
    )
    assert (
        abs((mixed == torch.arange(8)).all(1).sum() - 2000) < 5 * 43
        and len(mixed.unique(dim=0)) == 2
    )


def test_block_orders_shuffle_every_block_alike():
    for block in (1, 4, 7):
        order = sample_order(2, 22, 'block', seed=5, parameter=block)[1]
        assert torch.equal(order // block, torch.arange(22) // block)  # block after block
        inside = order % block
        assert torch.equal(
            inside[: 22 // block * block].view(-1, block), inside[:block].repeat(22 // block, 1)
        )
        assert torch.equal(
            inside[22 // block * block :], inside[:block][inside[:block] < 22 % block]
        )
    assert (
        len({tuple(sample_order(1, 8, 'block', seed=s)[0].tolist()) for s in range(300)}) == 24
    )  # all of 4!
    with pytest.raises(ValueError, match='at least 1 position, got 0'):
        sample_order(1, 8, 'block', parameter=0)


def test_one_order_of_a_run_is_pinned():
    """Published runs and logs depend on it: the seed's stream of numbers, sorted; blocks take the first ones."""
    u = torch.rand(11, dtype=torch.float64, generator=stream(5, 'order'))
    assert torch.equal(sample_order(2, 11, 'fixed', seed=5)[1], u.argsort())
    position = torch.arange(11)
    order = (position // 3 + u[position % 3]).argsort()
    assert torch.equal(sample_order(2, 11, 'block', seed=5, parameter=3)[1], order)
    assert sample_order(1, 8, 'fixed')[0].tolist() == [7, 4, 2, 5, 1, 6, 0, 3]
    assert sample_order(1, 8, 'block')[0].tolist() == [2, 1, 0, 3, 6, 5, 4, 7]


def test_swaps_are_uniform_transpositions():
    orders = [sample_order(1, 3, 'swaps', parameter=1, seed=s)[0].tolist() for s in range(3000)]
    count = Counter(map(tuple, orders))  # i = j in a third, else 1 of 3 pairs
    assert abs(count[0, 1, 2] - 1000) < 5 * 26 and len(count) == 4
    assert all(abs(count[order] - 2000 / 3) < 5 * 23 for order in ((1, 0, 2), (2, 1, 0), (0, 2, 1)))
    by_hand, u = (
        list(range(20)),
        torch.rand(14, dtype=torch.float64, generator=stream(4, 'order')).tolist(),
    )
    for i, j in zip(u[::2], u[1::2]):
        i, j = int(i * 20), int(j * 20)
        by_hand[i], by_hand[j] = by_hand[j], by_hand[i]
    assert sample_order(2, 20, 'swaps', parameter=7, seed=4).tolist() == [by_hand] * 2
    assert torch.equal(sample_order(1, 9, 'swaps', parameter=0), sample_order(1, 9, 'l2r'))
    moved = [
        (sample_order(1, 256, 'swaps', parameter=16, seed=s) != torch.arange(256)).sum()
        for s in range(40)
    ]
    assert 26 < sum(moved) / 40 < 32  # 32 visits, a few of them twice


def test_few_orders_are_left_to_right_and_those_of_the_next_seeds():
    g = stream('few')
    orders = sample_order(9000, 7, 'few', parameter=3, seed=4, generator=g)
    wanted = [
        sample_order(1, 7, 'l2r')[0],
        *(sample_order(1, 7, 'fixed', seed=seed)[0] for seed in (5, 6)),
    ]
    counts = torch.stack([(orders == order).all(1).sum() for order in wanted])
    assert counts.sum() == 9000 and (counts - 3000).abs().max() < 5 * 45
    few, more = (
        {*map(tuple, sample_order(400, 7, 'few', parameter=K, seed=4, generator=g).tolist())}
        for K in (2, 16)
    )
    assert len(few) == 2 and few < more and len(more) == 16
    alone = sample_order(5, 7, 'few', parameter=1, seed=4)
    assert torch.equal(alone, sample_order(5, 7, 'l2r'))
    part = sample_order(400, 4, 'few', parameter=2, seed=4, length=7, generator=g)
    assert {*map(tuple, part.tolist())} == {
        tuple(p for p in order.tolist() if p < 4) for order in wanted[:2]
    }
    with pytest.raises(ValueError, match='at least 1, got few:0'):
        sample_order(1, 7, 'few', parameter=0)
    one = draw_orders([3], 7, 1, 2, order_of({'order': 'few:3', 'order_seed': 4, 'block_size': 7}))[
        0
    ]
    drawn = sample_order(1, 7, 'few', parameter=3, seed=4, length=7, generator=stream(2, 3))
    assert torch.equal(one, drawn)


def test_a_sorted_subset_has_its_law():
    """By enumeration: 0, 1, 2 or all of 3 positions are known, each number as often, and each set of as many."""
    law = Counter()
    for k in range(4):
        sets = list(itertools.combinations(range(3), k))
        for known in sets:
            law[known + tuple(p for p in range(3) if p not in known)] += 1 / 4 / len(sets)
    found = Counter(
        map(tuple, sample_order(30000, 3, 'sorted_subset', generator=stream('subset')).tolist())
    )
    assert found.keys() == law.keys() and len(law) == 5
    assert all(
        abs(found[order] - 30000 * p) < 5 * (30000 * p * (1 - p)) ** 0.5 for order, p in law.items()
    )
    orders = sample_order(50, 40, 'sorted_subset', generator=stream('long'))
    assert torch.equal(orders.sort(-1).values, sample_order(50, 40, 'l2r'))
    assert (orders.diff(dim=-1) < 0).sum(1).max() == 1  # one step back, to the first of the rest


def test_a_shorter_sequence_leaves_out_what_lies_behind():
    for which in (
        {'kind': 'fixed'},
        {'kind': 'block'},
        {'kind': 'swaps', 'parameter': 9},
        {'kind': 'r2l'},
    ):
        whole, part = (
            sample_order(1, 40, **which, seed=1),
            sample_order(1, 13, **which, seed=1, length=40),
        )
        assert torch.equal(part[0], whole[whole < 13])
    for positions, n in (([2, 0, 1], 3), ([3, 2, 0, 1, 4], 3)):
        order = order_of({'block_size': 9}, positions)
        assert sample_order(2, n, **order).tolist() == [[2, 0, 1]] * 2
    for wrong in ([0, 1], [0, 1, 1], [3, 1, 2], []):
        with pytest.raises(ValueError, match=f'from 0 to 2, once; got {len(wrong)} from'):
            sample_order(1, 3, **order_of({}, wrong))


def test_a_random_order_sorts_uniform_float64_numbers():
    """The numbers of a run and of a sample are pinned: a generator gives N + 1 a row, the last for l2r_ratio."""
    u = torch.rand(3, 301, dtype=torch.float64, generator=stream('x'))
    assert torch.equal(sample_order(3, 300, generator=stream('x')), u[:, :300].argsort(-1))
    many = torch.rand(
        1, 30_001, dtype=torch.float64, generator=stream('y')
    )  # float32 would have ties
    assert torch.equal(sample_order(1, 30_000, generator=stream('y')), many[:, :-1].argsort(-1))
    mixed = torch.where(u[:, 300:] < 0.5, torch.arange(300), sample_order(1, 300, 'r2l'))
    assert torch.equal(sample_order(3, 300, 'r2l', l2r_ratio=0.5, generator=stream('x')), mixed)
    g = stream('x')
    sample_order(3, 9, 'fixed', generator=g)  # draws nothing for each row
    assert torch.equal(torch.rand(4, generator=g), torch.rand(4, generator=stream('x')))


@pytest.fixture
def rotated(monkeypatch):
    """A family that is drawn for each row, by one number: left to right from a random position on."""
    monkeypatch.setitem(
        ORDERS,
        'rotated',
        Family(
            lambda u, n, _: (torch.arange(n) + (u * n).long()) % n,
            drawn=True,
            n_numbers=lambda n, _: 1,
        ),
    )
    return {'kind': 'rotated'}


def test_another_family_is_one_function(rotated):
    order = sample_order(4000, 5, **rotated, generator=stream(0))
    assert (order.diff(dim=1) % 5 == 1).all() and (
        torch.bincount(order[:, 0]) - 800
    ).abs().max() < 5 * 26
    u = torch.rand(
        4000, 2, dtype=torch.float64, generator=stream(1)
    )  # its number, and one for l2r_ratio
    first = torch.where(u[:, 1] < 0.1, 0, (u[:, 0] * 50).long())
    assert torch.equal(
        sample_order(4000, 50, **rotated, l2r_ratio=0.1, generator=stream(1))[:, 0], first
    )


def test_what_is_scored_is_drawn_from_named_streams_alone(rotated, monkeypatch):
    """Torch's own generator is neither read nor moved."""
    before = torch.get_rng_state()
    for kind in ORDERS:
        a, b = (draw_orders(range(5), 30, 3, 7, {'kind': kind, 'shape': (5, 6)}) for _ in range(2))
        assert torch.equal(a, b)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    'order',
    [
        None,
        {'kind': 'rotated'},
        {'kind': 'l2r'},
        {'kind': 'block', 'seed': 3, 'parameter': 5},
        {'kind': 'blocks2d', 'shape': (5, 8)},
        {'kind': 'listed', 'parameter': (*range(20, 40), *range(20))},
    ],
)
def test_orders_of_blocks_depend_on_seed_and_number_alone(rotated, order):
    orders = draw_orders(range(6), 40, 2, 7, order)
    assert torch.equal(draw_orders([4, 1], 40, 2, 7, order), orders[[4, 1]]) and orders.shape == (
        6,
        2,
        40,
    )
    drawn = family_of((order or {'kind': 'random'})['kind']).drawn
    assert (len(orders.flatten(0, 1).unique(dim=0)) > 9) == drawn
    assert torch.equal(draw_orders(range(6), 40, 2, 8, order), orders) != drawn
    for b, k in itertools.product(range(6), range(2)):
        if drawn:
            assert torch.equal(
                orders[b], sample_order(2, 40, **order or {}, generator=stream(7, b))
            )
        else:  # the orders of as many seeds
            own = order | {'seed': order.get('seed', 0) + k}
            assert torch.equal(orders[b, k], sample_order(1, 40, **own)[0])


def test_the_options_of_a_run_give_its_order():
    assert (
        order_of({})
        == order_of({'seed': 9})
        == {'kind': 'random', 'parameter': None, 'seed': 0, 'length': None}
    )
    run = {'seed': 9, 'order': 'block:2', 'order_seed': 3, 'l2r_ratio': 0.1, 'block_size': 8}
    own = {'seed': 3, 'length': 8}
    assert order_of(run) == {'kind': 'block', 'parameter': 2} | own
    assert (
        order_of(run, 'block:4')
        == order_of(run | {'order': 'block:4'})
        == {'kind': 'block', 'parameter': 4} | own
    )
    assert order_of(run | {'order': 'block', 'order_block': 2}) == order_of(
        run
    )  # as older checkpoints say it
    assert (
        order_of(run, 'swaps')['parameter'] == 16
        and order_of({'order': 'swaps:9'}, 'swaps')['parameter'] == 9
    )
    assert order_of(run | {'order': [1, 0]}) == {'kind': 'listed', 'parameter': (1, 0)} | own
    assert order_of(run, [1, 0]) == order_of(run | {'order': [1, 0]})
    assert (
        order_of(run | {'shape': [2, 4]}, 'rows')
        == {'kind': 'rows', 'parameter': None, 'shape': (2, 4)} | own
    )


def test_an_option_names_an_order_or_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [read_order(text, 'own') for text in ('random', 'swaps:16', 'own')] == [
        'random',
        'swaps:16',
        'own',
    ]
    path = tmp_path / 'order.json'
    path.write_text('[2, 0, 1]')
    assert read_order('order.json') == [2, 0, 1]
    for wrong in (
        'rl',
        'own',
        'swaps:',
        'swaps:-1',
        'swaps:x',
        'l2r:3',
        'listed',
        'none.json',
        '',
        '.',
    ):
        with pytest.raises(
            ValueError, match=r'order must be random, .*swaps:NUMBER, .* or a JSON file .*, got '
        ) as e:
            read_order(wrong)
        assert '\n' not in str(e.value) and repr(wrong) in str(e.value)
    for wrong in (
        {'order': [0]},
        [0, 2],
        [1, 2],
        [0, 0],
        [0.5, 1],
        [0.0, 1],
        [False, 1],
        3,
        None,
        [[0]],
        ['0'],
        [],
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(
            ValueError, match='^order.json cannot be read as a JSON list of positions: it must hold'
        ):
            read_order('order.json')
    for broken in (b'[2, 0', b'\xff\xfe\x00', b'[' * 100_000):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match='^order.json cannot be read as a JSON list'):
            read_order('order.json')


def test_what_is_given_comes_first():
    for n in (9, 300):
        order, g = sample_order(50, n, l2r_ratio=0.3), torch.Generator().manual_seed(0)
        given = torch.rand(50, n, generator=g) < 0.4
        given[0], given[1] = True, False
        for n_visits in (None, torch.arange(50) % n + 1):
            new, n_given, n_blanks = given_first(order, given, n_visits)
            ends = n_visits.tolist() if n_visits is not None else [n] * 50
            rows = zip(
                *(x.tolist() for x in (new, order, given, n_given, n_blanks)), ends, strict=True
            )
            for row, was, mask, *counts, end in rows:
                first, blank = (
                    [p for p in was if p < end and mask[p] == want] for want in (True, False)
                )
                assert row == first + blank + [p for p in was if p >= end] and counts == [
                    len(first),
                    len(blank),
                ]
