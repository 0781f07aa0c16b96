"""Orders: their laws, the streams that they are drawn from, and what is given comes first."""
import pytest
import torch

from anyorder.orders import DRAWN, ORDERS, draw_orders, given_first, order_of, order_of_row, sample_order, stream


def test_orders_are_uniform_permutations():
    order = sample_order(60000, 3, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(order @ torch.tensor([9, 3, 1]))
    counts = counts[counts > 0]
    assert len(counts) == 6 and (counts - 10000).abs().max() < 5 * 91   # 5 standard deviations


def test_l2r_ratio_is_a_share_of_the_rows():
    l2r = (sample_order(20000, 8, l2r_ratio=0.1, generator=torch.Generator().manual_seed(0)) == torch.arange(8)).all(1)
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
    assert (torch.bincount(first, minlength=5) - 400).abs().max() < 5 * 18     # uniform over seeds
    # what lies behind is left out
    assert torch.equal(sample_order(1, 13, 'fixed', seed=1), fixed[:1][fixed[:1] < 13].view(1, -1))
    mixed = sample_order(20000, 8, 'fixed', l2r_ratio=0.1, seed=1, generator=torch.Generator().manual_seed(0))
    assert abs((mixed == torch.arange(8)).all(1).sum() - 2000) < 5 * 43 and len(mixed.unique(dim=0)) == 2


def test_block_orders_shuffle_every_block_alike():
    for block in (1, 4, 7):
        order = sample_order(2, 22, 'block', seed=5, block=block)[1]
        assert torch.equal(order // block, torch.arange(22) // block)          # block after block
        inside = order % block
        assert torch.equal(inside[:22 // block * block].view(-1, block), inside[:block].repeat(22 // block, 1))
        assert torch.equal(inside[22 // block * block:], inside[:block][inside[:block] < 22 % block])
    assert len({tuple(sample_order(1, 8, 'block', seed=s)[0].tolist()) for s in range(300)}) == 24   # all of 4!


def test_a_random_order_is_that_of_uniform_float64_numbers():
    """The numbers of a run and of a sample are pinned: a generator gives N + 1 a row, the last for l2r_ratio."""
    u = torch.rand(3, 301, dtype=torch.float64, generator=stream('x'))
    assert torch.equal(sample_order(3, 300, generator=stream('x')), u[:, :300].argsort(-1))
    many = torch.rand(1, 30_001, dtype=torch.float64, generator=stream('y'))   # of which float32 would have ties
    assert torch.equal(sample_order(1, 30_000, generator=stream('y')), many[:, :-1].argsort(-1))
    mixed = torch.where(u[:, 300:] < 0.5, torch.arange(300), sample_order(1, 300, 'r2l'))
    assert torch.equal(sample_order(3, 300, 'r2l', l2r_ratio=0.5, generator=stream('x')), mixed)
    g = stream('x')
    sample_order(3, 9, 'fixed', generator=g)                                   # draws nothing for each row
    assert torch.equal(torch.rand(4, generator=g), torch.rand(4, generator=stream('x')))


@pytest.fixture
def rotated(monkeypatch):
    """A family that is drawn for each row: left to right from a random position on."""
    def family(u, seed, block):
        return (torch.arange(u.size(1)) + (u[:, :1] * u.size(1)).long()) % u.size(1)
    monkeypatch.setitem(DRAWN, 'rotated', family)
    monkeypatch.setitem(ORDERS, 'rotated', family)
    return {'kind': 'rotated'}


def test_another_family_is_one_function(rotated):
    order = sample_order(4000, 5, **rotated, generator=stream(0))
    assert (order.diff(dim=1) % 5 == 1).all() and (torch.bincount(order[:, 0]) - 800).abs().max() < 5 * 26
    assert 0.1 < (sample_order(4000, 50, **rotated, l2r_ratio=0.1) == torch.arange(50)).all(1).double().mean() < 0.14


@pytest.mark.parametrize('order', [
    None, {'kind': 'rotated'}, {'kind': 'l2r'}, {'kind': 'block', 'seed': 3, 'block': 5}])
def test_orders_of_blocks_depend_on_seed_and_number_alone(rotated, order):
    orders = draw_orders(range(6), 40, 2, 7, order)
    assert torch.equal(draw_orders([4, 1], 40, 2, 7, order), orders[[4, 1]]) and orders.shape == (6, 2, 40)
    drawn = (order or {'kind': 'random'})['kind'] in DRAWN
    assert (len(orders.flatten(0, 1).unique(dim=0)) > 9) == drawn
    assert torch.equal(draw_orders(range(6), 40, 2, 8, order), orders) != drawn
    for b in range(6):
        assert torch.equal(orders[b], sample_order(2, 40, **order or {}, generator=stream(7, b)))


def test_the_order_of_a_run_is_that_of_its_options():
    assert order_of({}) == order_of({'seed': 9}) == {'kind': 'random', 'seed': 0, 'block': 4}
    run = {'seed': 9, 'order': 'block', 'order_seed': 3, 'order_block': 2, 'l2r_ratio': 0.1}
    assert order_of(run) == {'kind': 'block', 'seed': 3, 'block': 2}


def test_an_order_of_a_row_is_drawn_or_as_listed():
    assert order_of_row([2, 0, 1], 3, None).tolist() == [2, 0, 1]
    assert torch.equal(order_of_row({'kind': 'random'}, 30, stream(5)), sample_order(1, 30, generator=stream(5))[0])
    for wrong in ([0, 1], [0, 1, 1], [1, 2, 3], []):
        with pytest.raises(ValueError, match=f'from 0 to 2, once; got {len(wrong)} from'):
            order_of_row(wrong, 3, None)


def test_what_is_given_comes_first():
    for n in (9, 300):
        order, g = sample_order(50, n, l2r_ratio=0.3), torch.Generator().manual_seed(0)
        given = torch.rand(50, n, generator=g) < 0.4
        given[0], given[1] = True, False
        new, n_given = given_first(order, given)
        for row, was, mask, k in zip(new.tolist(), order.tolist(), given.tolist(), n_given.tolist()):
            assert row == [p for p in was if mask[p]] + [p for p in was if not mask[p]] and k == sum(mask)
