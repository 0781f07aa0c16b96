"""Orders of a grid, and functions of a user: their laws by loops over cells, and what runs them.

All tests run in an empty folder of their own."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from oracle import chi2_of, limit
from toy_runs import assert_same_runs, resume, run

import train
from anyorder.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from anyorder.extras.puzzles import solve
from anyorder.functions import LOADED, names_of
from anyorder.generation.scores import SCORES, confidence
from anyorder.generation.unmasking import Adaptive, Given
from anyorder.generation.way import order_and_unmasking
from anyorder.order_options import read_order
from anyorder.orders import Order, sample_order
from anyorder.seeds import stream
from anyorder.tokens.meta import read_meta, write_meta
from anyorder.training.start import start_checkpoint
from anyorder.writer import Writer
from configurator import configure

SHAPES = [(1, 5), (5, 1), (3, 4), (4, 3), (5, 7), (1, 1)]


# --------------------------------------------------------------------------------------------------
# grids


def rows(u, H, W, _):
    return [r * W + c for r in range(H) for c in sorted(range(W), key=lambda c: u[r * W + c])]


def columns(u, H, W, _):
    return [r * W + c for c in range(W) for r in sorted(range(H), key=lambda r: u[r * W + c])]


def spiral(u, H, W, _):
    """The first row, and then the first one of the rest as it is once turned to the left."""
    left = np.arange(H * W).reshape(H, W)
    found = []
    while left.size:
        found += left[0].tolist()
        left = np.rot90(left[1:])
    return found


def blocks2d(u, H, W, K):
    blocks = [
        [r * W + c for r in range(top, min(top + K, H)) for c in range(left, min(left + K, W))]
        for top in range(0, H, K)
        for left in range(0, W, K)
    ]
    blocks = [block for _, block in sorted(zip(u[H * W :], blocks))]
    return [cell for block in blocks for cell in sorted(block, key=lambda cell: u[cell])]


@pytest.mark.parametrize('shape', SHAPES, ids=str)
@pytest.mark.parametrize(
    'oracle, number',
    [(rows, None), (columns, None), (spiral, None), *((blocks2d, K) for K in (None, 1, 2, 3, 9))],
)
def test_an_order_of_a_grid_visits_the_cells_that_a_loop_does(oracle, number, shape):
    n = math.prod(shape)
    n_numbers = (2 if oracle is blocks2d else 1) * n
    u = torch.rand(4, n_numbers + 1, dtype=torch.float64, generator=stream('x'))
    how = {'parameter': number, 'shape': shape}
    order = sample_order(4, n, oracle.__name__, generator=stream('x'), **how)
    assert order.tolist() == [oracle(row[:-1], *shape, number or 2) for row in u.tolist()]
    order = sample_order(4, n, oracle.__name__, generator=stream('x'), l2r_ratio=1.0, **how)
    assert (order == torch.arange(n)).all()


def test_every_block_of_a_grid_is_equally_likely_to_be_the_first():
    """Blocks of 4, 2, 2 and 1 cells; of one cell each the order is uniform, as `random` is."""
    order = sample_order(8000, 9, 'blocks2d', shape=(3, 3), generator=stream(0))
    block = order[:, 0] // 6 * 2 + order[:, 0] % 3 // 2
    assert chi2_of(torch.bincount(block), torch.full((4,), 1 / 4)) < limit(3)
    order = sample_order(6000, 3, 'blocks2d', parameter=1, shape=(1, 3), generator=stream(0))
    _, counts = order.unique(dim=0, return_counts=True)
    assert chi2_of(counts, torch.full((6,), 1 / 6)) < limit(5)


@pytest.mark.parametrize('kind', ['rows', 'columns', 'spiral', 'blocks2d'])
def test_an_order_of_a_grid_wants_all_cells_of_one(kind):
    for n, shape in ((12, None), (11, (3, 4)), (13, (3, 4))):
        with one_line('prepare the set with --shape=HxW, or choose another order'):
            Order(kind, shape=shape).check(n, 99)
    Order(kind, shape=(3, 4)).check(12, 99)
    if kind == 'blocks2d':
        with one_line('at least 1 cell wide, got 0'):
            Order(kind, 0, shape=(3, 4)).check(12, 99)


def test_a_shorter_row_has_a_part_of_the_one_order():
    order = Order('spiral', length=12, shape=(3, 4))
    assert order.draw(1, 5).tolist() == [[0, 1, 2, 3, 4]]


def test_a_run_has_the_shape_of_its_data_set(data):
    with one_line('16 positions and shape=None: prepare the set'):
        run('--order=rows', '--max_iters=2')
    assert not os.path.exists('out')
    meta = read_meta('data/pydocs')
    write_meta('data/pydocs', dataclasses.replace(meta, shape=[2, 8]))
    run('--order=rows', '--max_iters=1')
    assert Checkpoint('out/ckpt.pt').order == Order('rows', length=16, shape=(2, 8))
    resume('--max_iters=2')
    sample = Writer('out/ckpt.pt').infill('').sample
    assert [p // 8 for p in sample['order']] == [0] * 8 + [1] * 8


# --------------------------------------------------------------------------------------------------
# functions of a user

MINE = """
import torch
open('marker', 'a').write('x')
def shuffle(u, n, _):
    return u.argsort(-1)
def rows(u, shape, _):
    return (torch.arange(u.size(1)) // shape[1] + u).argsort(-1)
def shifted(u, n, by):
    return (torch.arange(n) + (by or 0)).expand(len(u), -1) % n
def gap(logits):
    top = logits.softmax(-1).topk(2).values
    return top[:, 0] - top[:, 1]
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A working folder with sub/mine.py; mine() is how often it was run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'sub').mkdir()
    (tmp_path / 'sub' / 'mine.py').write_text(MINE)
    marker = tmp_path / 'marker'
    built_in = {*SCORES}
    yield lambda: len(marker.read_text()) if marker.exists() else 0
    for name in SCORES.keys() - built_in:
        del SCORES[name]


@pytest.mark.parametrize('text, kind', [('shuffle', 'random'), ('rows', 'rows')])
def test_an_order_of_a_user_is_the_same_built_in_one(mine, text, kind):
    run = {'shape': [3, 4], 'block_size': 12}
    own = Order.of(read_order(f'sub/mine.py:{text}'), run)
    ours, theirs = (o.draw(5, 12, stream(1), l2r_ratio=0.4) for o in (own, Order.of(kind, run)))
    assert torch.equal(ours, theirs)
    assert own.kept == own.kind == read_order(f'sub/mine.py:{text}')
    assert own.kind.startswith(f'{own.name}@')
    assert own.name == f'mine.py:{text}'
    if kind == 'rows':
        with one_line('an order of a grid wants all'):
            Order.of(own.kept, {}).check(12)


def test_a_number_is_the_third_argument_of_a_function(mine):
    kept = read_order('sub/mine.py:shifted:3')
    run = {'order': kept}
    own = Order.of('own', run)
    assert own.draw(1, 5).tolist() == [[3, 4, 0, 1, 2]]
    assert (own.kept, own.name) == (kept, 'mine.py:shifted:3')
    plain = read_order('sub/mine.py:shifted')
    assert Order.of(plain, {}).parameter is None
    assert kept == f'{plain}:3'
    # another file of this name: the number is the run's still
    edited = plain.replace(plain[-12:], '0' * 12)
    assert Order.of(edited, run).parameter == 3
    assert Order.of(plain, run) == own  # what is left open is as in the run


# what mine.py holds, what is typed, and what is said
WRONG = [
    ('def f(u, n, by): return u', 'mine.py:f', r'must return int64 \(1, 4\), .*0 to 3 once, got t'),
    ('def f(u, n, by): return (u * 0).long()', 'mine.py:f', r'got tensor\(\[\[0, 0, 0, 0\]\]\)'),
    ('def f(u, n, by): return u.argsort(-1)[:, 1:]', 'mine.py:f', 'return int64'),
    ('def f(u, n, by): return u.argsort(-1) + 1', 'mine.py:f', 'must return int64'),
    ('def f(u, n, by): return u.argsort(-1).int()', 'mine.py:f', 'must return int64.*int32'),
    ('def f(u, n, by): return [3, 1, 2, 0]', 'mine.py:f', r'got \[3, 1, 2, 0\]'),
    ('def f(u, n, by): return None', 'mine.py:f', 'got None'),
    ('def f(u, n, by): raise KeyError("two\\nlines")', 'mine.py:f', r"^the order .*KeyError\('two"),
    ('def f(u, n, by): return 1 / 0', 'mine.py:f', r"ZeroDivisionError\('division by zero'\)"),
    ('def f(logits): return logits', 'mine.py:f', r'a float for each row of logits, \(3,\)'),
    ('def f(logits): return logits[:-1, 0]', 'mine.py:f', 'must return a float'),
    ('def f(logits): return logits.argmax(-1)', 'mine.py:f', 'must return a float'),
    ('def f(logits): return logits[:, 0].tolist()', 'mine.py:f', 'must return a float'),
    ('def f(logits): return logits[:, 0] * float("nan")', 'mine.py:f', 'none of them NaN, got t'),
    ('def f(logits, order): return logits[:, 0]', 'mine.py:f', 'mine.py has no order f.*a score'),
    ('def f(): return 1', 'mine.py:f', 'mine.py has no order f.*a score'),
    ('def f(u, n): pass', 'mine.py:f', 'TypeError.*too many positional'),
    ('x = 3', 'mine.py:g', "KeyError.*'g'"),
    ('x = 3', 'mine.py:x', 'TypeError'),
    ('x = 3', 'mine.py:', 'KeyError'),
    ('x = 3', 'mine.py', 'a function is FILE.py:NAME'),
    ('x = 3', '.:f', 'or a JSON file with a list'),
    ('x = 3', 'none.py:f', 'none.py has no order f, a function of u, n.*: FileNotFoundError'),
    ('def f(:', 'mine.py:f', 'SyntaxError'),
    ('1 / 0', 'mine.py:f', 'ZeroDivisionError'),
]


@pytest.mark.parametrize('content, typed, said', WRONG)
def test_a_function_that_is_none_is_one_line(mine, content, typed, said):
    with open('mine.py', 'w') as f:
        f.write(content)
    with one_line(said):
        order, unmasking = order_and_unmasking(typed)
        Order.of(order, {}).check(4)
        confidence(torch.zeros(3, 5), unmasking.score)


def save_small(order):
    """Save the checkpoint of a model of bytes that was trained in this order, and a text."""
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint('c.pt', model, tokenizer='bytes', config={'order': order, 'block_size': 32})
    with open('words.txt', 'w') as f:
        f.write('a few words of text ' * 9)


SAMPLE = ['sample.py', '--ckpt=c.pt', '--weights=raw']
EVALUATE = ['eval_ppl.py', *SAMPLE[1:], '--datasets=words.txt', '--n_blocks=2', '--out=o.json']


def test_a_checkpoint_runs_no_file(mine, script):
    """Only a command that is told to runs it; to open, read and write in other orders does not."""
    kept = read_order('sub/mine.py:shifted:3')
    LOADED.clear()
    names_of.cache_clear()
    save_small(kept)
    before = mine()
    assert Checkpoint('c.pt').order.name == 'mine.py:shifted:3'
    script(*SAMPLE, '--order=l2r', '--length=5')
    script(*EVALUATE, '--estimates=l2r')
    os.remove('o.json')
    for command, more in ((SAMPLE, '--order'), (EVALUATE, '--orders')):
        refused = script(*command, code=1).stderr
        assert f'in the order {kept[:-2]}, which no checkpoint runs: ' in refused
        assert ': add --order=PATH/mine.py:shifted (' in refused
        assert more in refused
        assert refused.count('\n') == 1
    assert mine() == before
    assert not os.path.exists('o.json')
    said = script(*SAMPLE, '--order=sub/mine.py:shifted').stdout
    assert f'\n{"order":<16}mine.py:shifted:3, ' in said
    assert 'mine.py:shifted:3' in script(*EVALUATE, '--orders=sub/mine.py:shifted').stdout
    assert mine() == before + 1  # once in a process


@pytest.mark.parametrize(
    'text, order, options',
    [
        ('gap', 'random', {}),
        ('gap/8', 'l2r', {'block_length': 8}),
        ('gap:0.9', 'random', {'threshold': 0.9}),
        ('gap+.5', 'random', {'noise': 0.5}),
        ('gap/8:0.9+2', 'l2r', {'block_length': 8, 'threshold': 0.9, 'noise': 2.0}),
        ('shifted:3', 'mine.py:shifted@DIGEST:3', None),
        ('shuffle', 'mine.py:shuffle@DIGEST', None),
    ],
)
def test_a_score_of_a_user_is_told_from_an_order_by_its_signature(mine, text, order, options):
    found, unmasking = order_and_unmasking(f'sub/mine.py:{text}')
    digest = read_order('sub/mine.py:shuffle').partition('@')[2]
    assert found == order.replace('DIGEST', digest)
    if options is None:
        assert unmasking == Given()
    else:
        assert unmasking == Adaptive(f'mine.py:gap@{digest}', **options)
    assert mine() == 1


@pytest.mark.parametrize('suffix', ['', '/4', ':0.02', '+0.5'])
def test_a_score_of_a_user_works_as_the_same_built_in_one(mine, script, suffix):
    save_small('random')
    orders = [f'{score}{suffix}' for score in ('margin', 'sub/mine.py:gap')]
    texts = []
    for order in orders:
        write = ['--prompt=a[[9]]b[[9]]', '--n_steps=5', f'--order={order}', '--out=o.json']
        assert f'\n{"order":<16}{order}, ' in script(*SAMPLE, *write).stdout
        with open('o.json') as f:
            result = json.load(f)
        assert result['order'] == order
        texts.append([sample['tokens'] for sample in result['samples']])
    assert texts[0] == texts[1]
    asked = f'--orders={",".join(orders)}'
    runs = solve.read_runs(configure(vars(solve), [asked, '--temperature=0']), {})
    assert [run.order for run in runs] == orders
    if '+' not in suffix:  # noise leaves no likelihood
        script(*EVALUATE, asked)
        with open('o.json') as f:
            found = json.load(f)['results']
        nats = [[], []]
        for row in found:
            nats['mine.py' in row['estimate']].append(row['nats_per_token'])
        assert nats[0][-len(nats[1]) :] == nats[1] != []


def test_a_run_in_an_order_of_a_user_goes_on_with_the_same_file(mine, data, capsys):
    typed = '--order=sub/mine.py:shuffle'
    run(typed, '--max_iters=4', '--out_dir=whole')
    run(typed, '--max_iters=2')
    LOADED.clear()
    with one_line('add --order=PATH/mine.py:shuffle '):
        resume('--max_iters=4')
    capsys.readouterr()
    resume('--max_iters=4', typed)
    said = capsys.readouterr().out
    assert 'changed since iteration 2: max_iters 2 -> 4' in said
    assert 'own order (mine.py:shuffle)' in said
    assert f'sample.py --ckpt=out/ckpt.pt {typed}\n' in said
    assert ' --orders=sub/mine.py:shuffle\n' in said
    assert ' order mine' not in said
    assert_same_runs('whole', 'out', entries_of_one=(2,))
    with open('sub/mine.py', 'a') as f:
        f.write('# another file')
    _, config, changed = start_checkpoint(configure(vars(train), ['--init_from=resume', typed]))
    before = load_checkpoint('out/ckpt.pt')['config']['order']
    assert changed == [f'order {before} -> {config.order}']


def test_only_what_is_typed_runs_code(mine):
    with open('c.py', 'w') as f:
        f.write("order = 'sub/mine.py:shuffle'")
    said = 'a config file runs no code: leave out its order, and type --order=sub/mine.py:shuffle'
    with one_line(said):
        start_checkpoint(configure(vars(train), ['c.py']))
    assert mine() == 0
    start_checkpoint(configure(vars(train), ['c.py', '--order=sub/mine.py:shuffle']))
    assert mine() == 1
