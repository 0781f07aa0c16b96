"""Orders of a grid: their laws by loops over cells."""
import json
import os
from collections import Counter

import pytest
import torch
from conftest import one_line
from toy_runs import resume, run

from anyorder.checkpoint import Checkpoint
from anyorder.orders import check_order, order_of, sample_order, stream
from anyorder.writer import Writer

SHAPES = [(1, 5), (5, 1), (3, 4), (4, 3), (5, 7), (1, 1)]


def rows(u, H, W, _):
    return [r * W + c for r in range(H) for c in sorted(range(W), key=lambda c: u[r * W + c])]


def columns(u, H, W, _):
    return [r * W + c for c in range(W) for r in sorted(range(H), key=lambda r: u[r * W + c])]


def spiral(u, H, W, _):
    seen, (r, c), (dr, dc) = [], (0, 0), (0, 1)
    for _ in range(H * W):
        seen.append((r, c))
        if not (0 <= r + dr < H and 0 <= c + dc < W) or (r + dr, c + dc) in seen:
            dr, dc = dc, -dr   # clockwise
        r, c = r + dr, c + dc
    return [r * W + c for r, c in seen]


def blocks2d(u, H, W, K):
    blocks = [[r * W + c for r in range(top, min(top + K, H)) for c in range(left, min(left + K, W))]
              for top in range(0, H, K) for left in range(0, W, K)]
    blocks = [block for _, block in sorted(zip(u[H * W:], blocks))]
    return [cell for block in blocks for cell in sorted(block, key=lambda cell: u[cell])]


@pytest.mark.parametrize('shape', SHAPES, ids=str)
@pytest.mark.parametrize('oracle, number', [(rows, None), (columns, None), (spiral, None), *(
    (blocks2d, K) for K in (None, 1, 2, 3, 9))])
def test_an_order_of_a_grid_visits_the_cells_that_a_loop_does(oracle, number, shape):
    kind, n = oracle.__name__, shape[0] * shape[1]
    u = torch.rand(4, (2 if oracle is blocks2d else 1) * n + 1, dtype=torch.float64, generator=stream('x'))
    order = sample_order(4, n, kind, parameter=number, shape=shape, generator=stream('x'))
    assert order.tolist() == [oracle(row[:-1], *shape, number or 2) for row in u.tolist()]
    assert (order.sort(-1).values == torch.arange(n)).all()
    mixed = sample_order(4, n, kind, parameter=number, shape=shape, generator=stream('x'), l2r_ratio=1.0)
    assert (mixed == torch.arange(n)).all()


def test_every_block_of_a_grid_is_equally_likely_to_be_the_first():
    order = sample_order(8000, 9, 'blocks2d', shape=(3, 3), generator=stream(0))        # of 4, 2, 2 and 1 cells
    block = order[:, 0] // 3 // 2 * 2 + order[:, 0] % 3 // 2
    assert (torch.bincount(block) - 2000).abs().max() < 5 * 39
    order = sample_order(6000, 3, 'blocks2d', parameter=1, shape=(1, 3), generator=stream(0))
    count = Counter(map(tuple, order.tolist()))
    assert len(count) == 6 and all(abs(k - 1000) < 5 * 29 for k in count.values())      # uniform, as `random` is


@pytest.mark.parametrize('kind', ['rows', 'columns', 'spiral', 'blocks2d'])
def test_an_order_of_a_grid_wants_all_cells_of_one(kind):
    for n, shape in ((12, None), (11, (3, 4)), (13, (3, 4))):
        with one_line('prepare the set with --shape=HxW, or choose another order'):
            check_order(order_of({'order': kind, 'shape': shape}), n, 99)
    check_order(order_of({'order': kind, 'shape': [3, 4]}), 12, 99)
    if kind == 'spiral':   # one order, of which a shorter row has a part
        assert sample_order(1, 5, **order_of({'order': kind, 'block_size': 12, 'shape': [3, 4]})).tolist() == [
            [0, 1, 2, 3, 4]]
    if kind == 'blocks2d':
        with one_line('at least 1 cell wide, got 0'):
            check_order(order_of({'order': 'blocks2d:0', 'shape': [3, 4]}), 12, 99)


def test_a_run_has_the_shape_of_its_data_set(data):
    with one_line('16 positions and shape=None: prepare the set'):
        run('--order=rows', '--max_iters=2')
    assert not os.path.exists('out')
    with open('data/pydocs/meta.json') as f:
        meta = json.load(f)
    with open('data/pydocs/meta.json', 'w') as f:
        json.dump(meta | {'shape': [2, 8]}, f)
    run('--order=rows', '--max_iters=2')
    checkpoint = Checkpoint('out/ckpt.pt')
    assert checkpoint.order == {'kind': 'rows', 'parameter': None, 'seed': 0, 'length': 16, 'shape': (2, 8)}
    resume('--max_iters=3')
    sample = Writer('out/ckpt.pt').infill('').sample
    assert [p // 8 for p in sample['order']] == [0] * 8 + [1] * 8
