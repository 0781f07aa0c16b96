"""Orders: their laws, the streams that they are drawn from, how options name them, and what is
given comes first."""

import itertools
import json
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from anyorder.order_options import read_order
from anyorder.orders import (
    ORDERS,
    RANDOM,
    Family,
    Order,
    draw_orders,
    given_first,
    sample_order,
    stream,
)
from anyorder.seeds import keys_of, numbered_keys, random_bits

L2R = Order('l2r')


def tuples(orders):
    """The rows of orders (B, n), as a dict counts them."""
    return list(map(tuple, orders.tolist()))


# --------------------------------------------------------------------------------------------------
# families


def test_orders_are_uniform_permutations():
    order = sample_order(60000, 3, generator=torch.Generator().manual_seed(0))
    counts = Counter(tuples(order))
    assert len(counts) == 6
    assert all(abs(count - 10000) < 5 * 91 for count in counts.values())  # 5 standard deviations


def test_l2r_ratio_is_a_share_of_the_rows():
    generator = torch.Generator().manual_seed(0)
    order = sample_order(20000, 8, l2r_ratio=0.1, generator=generator)
    is_l2r = (order == torch.arange(8)).all(1)
    assert abs(is_l2r.sum() - 2000) < 5 * 43
    assert (sample_order(3, 8, l2r_ratio=1.0) == torch.arange(8)).all()
    assert (sample_order(3, 8, 'l2r') == torch.arange(8)).all()


def test_an_order_has_a_known_kind():
    for make in (Order, lambda kind: sample_order(1, 8, kind), lambda kind: Order.of(kind, {})):
        with pytest.raises(ValueError, match="^order must be random, l2r, .*, got 'rl'"):
            make('rl')
    assert Order('mine.py:f@0123456789ab').name == 'mine.py:f'  # whose file need not be there


def test_fixed_orders_are_one_permutation_of_a_seed():
    fixed = sample_order(3, 40, 'fixed', seed=1)
    assert (fixed == fixed[0]).all()
    assert (fixed[0].sort().values == torch.arange(40)).all()
    assert not torch.equal(fixed, sample_order(3, 40, 'fixed', seed=2))

    # uniform over seeds
    first = torch.tensor([sample_order(1, 5, 'fixed', seed=s)[0, 0] for s in range(2000)])
    assert (torch.bincount(first, minlength=5) - 400).abs().max() < 5 * 18

    # what lies behind is left out
    part = sample_order(1, 13, 'fixed', seed=1)
    assert torch.equal(part[0], fixed[0][fixed[0] < 13])

    generator = torch.Generator().manual_seed(0)
    mixed = sample_order(20000, 8, 'fixed', l2r_ratio=0.1, seed=1, generator=generator)
    is_l2r = (mixed == torch.arange(8)).all(1)
    assert abs(is_l2r.sum() - 2000) < 5 * 43
    assert len(mixed.unique(dim=0)) == 2


def test_block_orders_shuffle_every_block_alike():
    for size in (1, 4, 7):
        order = sample_order(2, 22, 'block', seed=5, parameter=size)[1]
        assert torch.equal(order // size, torch.arange(22) // size)  # block after block
        n_blocks = 22 // size
        whole, rest = (order % size).tensor_split([n_blocks * size])
        first = whole[:size]
        assert torch.equal(whole, first.repeat(n_blocks))
        assert torch.equal(rest, first[first < len(rest)])
    found = {tuples(sample_order(1, 8, 'block', seed=s))[0] for s in range(300)}
    assert len(found) == 24  # all of 4!
    with pytest.raises(ValueError, match='at least 1 position, got 0'):
        sample_order(1, 8, 'block', parameter=0)


def test_one_order_of_a_run_is_pinned():
    """Published runs and logs depend on it: the seed's stream of numbers, sorted; blocks take the
    first ones."""
    u = torch.rand(11, dtype=torch.float64, generator=stream(5, 'order'))
    assert torch.equal(sample_order(2, 11, 'fixed', seed=5)[1], u.argsort())
    position = torch.arange(11)
    order = (position // 3 + u[position % 3]).argsort()
    assert torch.equal(sample_order(2, 11, 'block', seed=5, parameter=3)[1], order)
    assert sample_order(1, 8, 'fixed')[0].tolist() == [7, 4, 2, 5, 1, 6, 0, 3]
    assert sample_order(1, 8, 'block')[0].tolist() == [2, 1, 0, 3, 6, 5, 4, 7]


def test_swaps_are_uniform_transpositions():
    orders = torch.cat([sample_order(1, 3, 'swaps', parameter=1, seed=s) for s in range(3000)])
    counts = Counter(tuples(orders))  # i = j in a third, else 1 of 3 pairs
    assert abs(counts.pop((0, 1, 2)) - 1000) < 5 * 26
    assert counts.keys() == {(1, 0, 2), (2, 1, 0), (0, 2, 1)}
    assert all(abs(count - 2000 / 3) < 5 * 23 for count in counts.values())

    by_hand = list(range(20))
    u = torch.rand(7, 2, dtype=torch.float64, generator=stream(4, 'order'))
    for i, j in (u * 20).long().tolist():
        by_hand[i], by_hand[j] = by_hand[j], by_hand[i]
    assert sample_order(2, 20, 'swaps', parameter=7, seed=4).tolist() == [by_hand] * 2

    assert torch.equal(sample_order(1, 9, 'swaps', parameter=0), sample_order(1, 9, 'l2r'))
    many = torch.cat([sample_order(1, 256, 'swaps', seed=s) for s in range(40)])
    n_moved = (many != torch.arange(256)).sum() / 40
    assert 26 < n_moved < 32  # 32 visits, a few of them twice


def test_few_orders_are_left_to_right_and_those_of_the_next_seeds():
    generator = stream('few')
    few = Order('few', 3, seed=4)
    wanted = [tuples(order.draw(1, 7))[0] for order in (L2R, *map(fixed_order, (5, 6)))]
    counts = Counter(tuples(few.draw(9000, 7, generator)))
    assert counts.keys() == {*wanted}
    assert all(abs(count - 3000) < 5 * 45 for count in counts.values())

    # fewer of them are some of more
    two, many = ({*tuples(replace(few, parameter=K).draw(400, 7, generator))} for K in (2, 16))
    assert two == {*wanted[:2]}
    assert two < many
    assert len(many) == 16
    assert torch.equal(replace(few, parameter=1).draw(5, 7), L2R.draw(5, 7))

    # a shorter sequence leaves out what lies behind
    part = Order('few', 2, seed=4, length=7).draw(400, 4, generator)
    assert {*tuples(part)} == {tuple(p for p in order if p < 4) for order in wanted[:2]}

    of_run = Order.of('own', {'order': 'few:3@4', 'block_size': 7})
    keys = random_bits(numbered_keys(2, [3]), 0)
    assert torch.equal(draw_orders([3], 7, 1, 2, of_run)[0], of_run.draw(1, 7, keys=keys))
    with pytest.raises(ValueError, match='at least 1, got few:0'):
        sample_order(1, 7, 'few', parameter=0)


def fixed_order(seed):
    return Order('fixed', seed=seed)


def test_a_sorted_subset_has_its_law():
    """By enumeration: 0, 1, 2 or all of 3 positions are known, each number as often, and each set
    of as many."""
    law = Counter()
    for k in range(4):
        sets = list(itertools.combinations(range(3), k))
        for known in sets:
            rest = tuple(p for p in range(3) if p not in known)
            law[known + rest] += 1 / 4 / len(sets)
    counts = Counter(tuples(sample_order(30000, 3, 'sorted_subset', generator=stream('subset'))))
    assert counts.keys() == law.keys()
    assert len(law) == 5
    for order, p in law.items():
        assert abs(counts[order] - 30000 * p) < 5 * (30000 * p * (1 - p)) ** 0.5

    orders = sample_order(50, 40, 'sorted_subset', generator=stream('long'))
    assert torch.equal(orders.sort(-1).values, sample_order(50, 40, 'l2r'))
    steps_back = (orders.diff(dim=-1) < 0).sum(1)
    assert steps_back.max() == 1  # to the first of the rest


def test_a_shorter_sequence_leaves_out_what_lies_behind():
    for kind, parameter in (('fixed', None), ('block', None), ('swaps', 9), ('r2l', None)):
        order = Order(kind, parameter, seed=1)
        whole = order.draw(1, 40)[0]
        part = replace(order, length=40).draw(1, 13)[0]
        assert torch.equal(part, whole[whole < 13])
    for positions in ([2, 0, 1], [3, 2, 0, 1, 4]):
        order = Order.of(positions, {'block_size': 9})
        assert order.draw(2, 3).tolist() == [[2, 0, 1]] * 2
    for wrong in ([0, 1], [0, 1, 1], [3, 1, 2], []):
        with pytest.raises(ValueError, match=f'from 0 to 2, once; got {len(wrong)} from'):
            Order.of(wrong, {}).draw(1, 3)


def test_a_file_holds_at_most_the_positions_of_the_model():
    order = Order('listed', (3, 2, 0, 1))
    order.check(4)
    order.check(3, 4)
    for n, block_size in ((3, None), (2, 3)):
        with pytest.raises(ValueError, match='at most the 3 positions of the model, got 4'):
            order.check(n, block_size)
    with pytest.raises(ValueError, match='every position, from 0 to 4, once'):
        order.check(5)


# --------------------------------------------------------------------------------------------------
# numbers


def test_a_random_order_sorts_uniform_float64_numbers():
    """The numbers of a run and of a sample are pinned: a generator gives N + 1 a row, the last for
    l2r_ratio."""
    u = torch.rand(3, 301, dtype=torch.float64, generator=stream('x'))
    assert torch.equal(sample_order(3, 300, generator=stream('x')), u[:, :300].argsort(-1))
    many = torch.rand(1, 30_001, dtype=torch.float64, generator=stream('y'))
    sorted_many = many[:, :-1].argsort(-1)  # float32 would have ties
    assert torch.equal(sample_order(1, 30_000, generator=stream('y')), sorted_many)

    mixed = torch.where(u[:, 300:] < 0.5, torch.arange(300), sample_order(1, 300, 'r2l'))
    drawn = sample_order(3, 300, 'r2l', l2r_ratio=0.5, generator=stream('x'))
    assert torch.equal(drawn, mixed)

    generator = stream('x')
    sample_order(3, 9, 'fixed', generator=generator)  # draws nothing for each row
    assert torch.equal(torch.rand(4, generator=generator), torch.rand(4, generator=stream('x')))


def test_the_order_of_a_row_depends_on_its_own_key_alone():
    keys = keys_of([4, 9, 2])
    for kind in ('random', 'few', 'r2l'):
        orders = Order(kind).draw(3, 20, l2r_ratio=0.3, keys=keys)
        alone = [Order(kind).draw(1, 20, l2r_ratio=0.3, keys=keys[r : r + 1]) for r in range(3)]
        assert torch.equal(orders, torch.cat(alone))
    assert len(RANDOM.draw(3, 20, keys=keys).unique(dim=0)) == 3


def rotation(u, n, _):
    """Left to right from a random position on, of one number."""
    return (torch.arange(n) + (u * n).long()) % n


@pytest.fixture
def rotated(monkeypatch):
    """An Order of a new family, which is drawn for each row."""
    family = Family(rotation, drawn=True, n_numbers=lambda n, _: 1)
    monkeypatch.setitem(ORDERS, 'rotated', family)
    return Order('rotated')


def test_another_family_is_one_function(rotated):
    order = rotated.draw(4000, 5, stream(0))
    assert (order.diff(dim=1) % 5 == 1).all()
    assert (torch.bincount(order[:, 0]) - 800).abs().max() < 5 * 26

    # its number, and one for l2r_ratio
    u = torch.rand(4000, 2, dtype=torch.float64, generator=stream(1))
    first = torch.where(u[:, 1] < 0.1, 0, (u[:, 0] * 50).long())
    mixed = rotated.draw(4000, 50, stream(1), l2r_ratio=0.1)
    assert torch.equal(mixed[:, 0], first)


def test_what_is_scored_is_drawn_from_named_streams_alone(rotated):
    """Torch's own generator is neither read nor moved."""
    before = torch.get_rng_state()
    for kind in ORDERS:
        order = Order(kind, shape=(5, 6))
        drawn, again = (draw_orders(range(5), 30, 3, 7, order) for _ in range(2))
        assert torch.equal(drawn, again)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize('kind', ['random', 'rotated', 'blocks2d'])
def test_drawn_orders_of_blocks_depend_on_seed_and_number_alone(rotated, kind):
    order = Order(kind, shape=(5, 8))
    orders = draw_orders(range(6), 40, 2, 7, order)
    assert order.drawn
    assert orders.shape == (6, 2, 40)
    assert torch.equal(draw_orders([4, 1], 40, 2, 7, order), orders[[4, 1]])
    assert not torch.equal(draw_orders(range(6), 40, 2, 8, order), orders)
    assert len(orders.flatten(0, 1).unique(dim=0)) > 9
    for b in range(6):
        keys = random_bits(numbered_keys(7, [b]), torch.arange(2))
        assert torch.equal(orders[b], order.draw(2, 40, keys=keys))


@pytest.mark.parametrize(
    'order',
    [L2R, Order('block', 5, seed=3), Order('listed', (*range(20, 40), *range(20)))],
    ids=lambda order: order.kind,
)
def test_other_orders_of_blocks_are_those_of_as_many_seeds(order):
    orders = draw_orders(range(6), 40, 2, 7, order)
    assert not order.drawn
    assert orders.shape == (6, 2, 40)
    for seed in (7, 8):
        assert torch.equal(draw_orders([4, 1], 40, 2, seed, order), orders[[4, 1]])
    for k in range(2):
        own = replace(order, seed=order.seed + k).draw(1, 40)
        assert torch.equal(orders[:, k], own.expand(6, 40))


# --------------------------------------------------------------------------------------------------
# names


def test_the_options_of_a_run_give_its_order():
    assert Order.of('own', {}) == Order.of('own', {'seed': 9}) == RANDOM == Order('random')
    run = {'seed': 9, 'order': 'block:2@3', 'l2r_ratio': 0.1, 'block_size': 8}
    block = Order('block', 2, seed=3, length=8)
    assert Order.of('own', run) == block
    assert Order.of('block:4', run) == replace(block, parameter=4)
    assert Order.of('own', run | {'order': 'block:4'}) == replace(block, parameter=4, seed=0)
    assert Order.of('own', run | {'order': [1, 0]}) == Order('listed', (1, 0), length=8)
    assert Order.of([1, 0], run) == Order('listed', (1, 0), seed=3, length=8)
    rows = Order.of('rows', run | {'shape': [2, 4]})
    assert rows == Order('rows', seed=3, length=8, shape=(2, 4))


def test_a_number_that_an_option_leaves_out_is_the_runs_or_the_familys():
    run = {'order': 'block:2'}
    assert Order.of('block', run) == Order('block', 2)
    assert Order.of('swaps', run) == Order('swaps', 16) == Order('swaps')
    assert Order.of('swaps', {'order': 'swaps:9'}) == Order('swaps', 9)
    assert Order.of('swaps', {'order': [1, 0]}) == Order('swaps', 16)


@pytest.mark.parametrize(
    'order, law, estimate, kept',
    [
        (RANDOM, 'random', 'any', 'random'),
        (L2R, 'one', 'l2r', 'l2r'),
        (Order('r2l'), 'one', 'own', 'r2l'),
        (Order('fixed'), 'several', 'own', 'fixed'),
        (Order('swaps', 0), 'one', 'own', 'swaps:0'),
        (Order('swaps', 1), 'several', 'own', 'swaps:1'),
        (Order('few', 1), 'one', 'own', 'few:1'),
        (Order('few'), 'several', 'own', 'few:2'),
        (Order('sorted_subset'), 'several', 'own', 'sorted_subset'),
        (Order('listed', (1, 0)), 'one', 'own', [1, 0]),
    ],
)
def test_an_order_knows_its_law_and_what_a_checkpoint_keeps(order, law, estimate, kept):
    assert (order.law, order.estimate, order.kept) == (law, estimate, kept)
    assert Order.of(kept, {}) == order
    called = ('listed', 'b.json') if order.kind == 'listed' else (kept, kept)
    assert (order.name, order.name_as('a/b.json')) == called


def test_a_file_of_results_says_a_shape_where_there_is_one():
    entries = {'kind': 'rows', 'parameter': None, 'seed': 0, 'length': 8}
    assert Order('rows', length=8).entries == entries
    assert Order('rows', length=8, shape=(2, 4)).entries == entries | {'shape': (2, 4)}


def test_an_option_names_an_order():
    for text in ('random', 'swaps:16', 'own'):
        assert read_order(text, 'own') == text


@pytest.mark.parametrize(
    'wrong', ['rl', 'own', 'swaps:', 'swaps:-1', 'swaps:x', 'l2r:3', 'listed', 'none.json', '', '.']
)
def test_another_text_is_no_order(wrong):
    got = re.escape(repr(wrong))
    rule = 'an order must be random, .*swaps:NUMBER, .* or a JSON file .*'
    said = f'^{got} is no order(; the nearest is [^;]*)?; {rule}$'
    with pytest.raises(ValueError, match=said) as e:
        read_order(wrong)
    assert '\n' not in str(e.value)


def test_an_option_names_a_file_of_positions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'order.json'
    path.write_text('[2, 0, 1]')
    assert read_order('order.json') == [2, 0, 1]
    no_lists = [{'order': [0]}, 3, None, []]
    no_integers = [[0.5, 1], [0.0, 1], [False, 1], [[0]], ['0']]
    no_permutations = [[0, 2], [1, 2], [0, 0]]
    for wrong in (*no_lists, *no_integers, *no_permutations):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match='^order.json cannot be .* of positions: it must hold'):
            read_order('order.json')
    for broken in (b'[2, 0', b'\xff\xfe\x00', b'[' * 100_000):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match='^order.json cannot be read as a JSON list'):
            read_order('order.json')


# --------------------------------------------------------------------------------------------------
# what is given


@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize('n', [9, 300])
def test_what_is_given_comes_first(n, padded):
    order = sample_order(50, n, l2r_ratio=0.3)
    given = torch.rand(50, n, generator=torch.Generator().manual_seed(0)) < 0.4
    given[0] = True
    given[1] = False
    ends = torch.arange(50) % n + 1 if padded else torch.full((50,), n)
    found = given_first(order, given, ends if padded else None)
    columns = [x.tolist() for x in (found[0], order, given, ends, *found[1:])]
    for row, was, mask, end, *counts in zip(*columns, strict=True):
        known = [p for p in was if p < end and mask[p]]
        blank = [p for p in was if p < end and not mask[p]]
        padding = [p for p in was if p >= end]
        assert row == known + blank + padding
        assert counts == [len(known), len(blank)]
