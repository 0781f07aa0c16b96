"""Orders of a grid, and functions of a user: their laws by loops over cells, and what runs them."""

import dataclasses
import json
import os
from collections import Counter

import pytest
import torch
from conftest import make_model, one_line
from test_training import OPTIONS, TOKENS, learner, start
from toy_runs import assert_same_runs, resume, run

import train
from anyorder.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from anyorder.extras.puzzles import solve
from anyorder.functions import LOADED, names_of
from anyorder.generation import Given
from anyorder.generation.scores import SCORES, confidence
from anyorder.generation.unmasking import Adaptive
from anyorder.generation.way import order_and_unmasking
from anyorder.order_options import read_order
from anyorder.orders import Order, sample_order
from anyorder.seeds import stream
from anyorder.tokens.meta import read_meta, write_meta
from anyorder.tokens.sets import Split
from anyorder.training.start import start_checkpoint
from anyorder.training.update import update
from anyorder.writer import Writer
from configurator import Config, configure

SHAPES = [(1, 5), (5, 1), (3, 4), (4, 3), (5, 7), (1, 1)]


# --------------------------------------------------------------------------------------------------
# grids


def rows(u, H, W, _):
    return [r * W + c for r in range(H) for c in sorted(range(W), key=lambda c: u[r * W + c])]


def columns(u, H, W, _):
    return [r * W + c for c in range(W) for r in sorted(range(H), key=lambda r: u[r * W + c])]


def spiral(u, H, W, _):
    seen = []
    r = 0
    c = 0
    dr = 0
    dc = 1
    for _ in range(H * W):
        seen.append((r, c))
        if not (0 <= r + dr < H and 0 <= c + dc < W) or (r + dr, c + dc) in seen:
            dr, dc = dc, -dr  # clockwise
        r = r + dr
        c = c + dc
    return [r * W + c for r, c in seen]


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
    kind = oracle.__name__
    n = shape[0] * shape[1]
    u = torch.rand(
        4, (2 if oracle is blocks2d else 1) * n + 1, dtype=torch.float64, generator=stream('x')
    )
    order = sample_order(4, n, kind, parameter=number, shape=shape, generator=stream('x'))
    assert order.tolist() == [oracle(row[:-1], *shape, number or 2) for row in u.tolist()]
    assert (order.sort(-1).values == torch.arange(n)).all()
    mixed = sample_order(
        4, n, kind, parameter=number, shape=shape, generator=stream('x'), l2r_ratio=1.0
    )
    assert (mixed == torch.arange(n)).all()


def test_every_block_of_a_grid_is_equally_likely_to_be_the_first():
    order = sample_order(
        8000, 9, 'blocks2d', shape=(3, 3), generator=stream(0)
    )  # of 4, 2, 2 and 1 cells
    block = order[:, 0] // 3 // 2 * 2 + order[:, 0] % 3 // 2
    assert (torch.bincount(block) - 2000).abs().max() < 5 * 39
    order = sample_order(6000, 3, 'blocks2d', parameter=1, shape=(1, 3), generator=stream(0))
    count = Counter(map(tuple, order.tolist()))
    assert len(count) == 6
    assert all(abs(k - 1000) < 5 * 29 for k in count.values())  # uniform, as `random` is


@pytest.mark.parametrize('kind', ['rows', 'columns', 'spiral', 'blocks2d'])
def test_an_order_of_a_grid_wants_all_cells_of_one(kind):
    for n, shape in ((12, None), (11, (3, 4)), (13, (3, 4))):
        with one_line('prepare the set with --shape=HxW, or choose another order'):
            Order(kind, shape=shape).check(n, 99)
    Order(kind, shape=(3, 4)).check(12, 99)
    if kind == 'spiral':  # one order; a shorter row has a part of it
        order = Order(kind, length=12, shape=(3, 4))
        assert order.draw(1, 5).tolist() == [[0, 1, 2, 3, 4]]
    if kind == 'blocks2d':
        with one_line('at least 1 cell wide, got 0'):
            Order(kind, 0, shape=(3, 4)).check(12, 99)


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
    built_in = {**SCORES}
    yield lambda: len(marker.read_text()) if marker.exists() else 0
    for name in SCORES.keys() - built_in:
        del SCORES[name]


def test_a_function_of_a_user_gives_the_orders_of_the_same_built_in_one(mine):
    for text, kind in (('sub/mine.py:shuffle', 'random'), ('sub/mine.py:rows', 'rows')):
        run = {'shape': [3, 4], 'block_size': 12}
        own = Order.of(read_order(text), run)
        built_in = Order.of(kind, run)
        ours, theirs = (o.draw(5, 12, stream(1), l2r_ratio=0.4) for o in (own, built_in))
        assert torch.equal(ours, theirs)
        assert own.kept == own.kind == read_order(text)
        assert own.name == text.removeprefix('sub/')
        assert own.kind.startswith(f'{own.name}@')
    states = []
    for order in ('random', read_order('sub/mine.py:shuffle')):
        state = start(learner())
        update(state, Split(TOKENS), 1e-2, Config(OPTIONS | {'order': order}))
        states.append(state.model.state_dict())
    assert all(torch.equal(p, states[1][name]) for name, p in states[0].items())
    with one_line('an order of a grid wants all'):
        Order.of(read_order('sub/mine.py:rows'), {}).check(12)


def test_a_number_is_the_third_argument_of_a_function(mine):
    kept = read_order('sub/mine.py:shifted:3')
    run = {'order': kept}
    own = Order.of('own', run)
    assert own.draw(1, 5).tolist() == [[3, 4, 0, 1, 2]]
    assert own.kept == kept
    assert own.name == 'mine.py:shifted:3'
    plain = read_order('sub/mine.py:shifted')
    assert Order.of(plain, {}).parameter is None
    assert kept == f'{plain}:3'
    # another file of this name: the number is the run's still
    edited = plain.replace(plain[-12:], '0' * 12)
    assert Order.of(edited, run).parameter == 3
    assert Order.of(plain, run) == own  # what is left open is as in the run


@pytest.mark.parametrize(
    'body, said',
    [
        (
            'return u',
            r'must return int64 \(1, 4\), in each row every position from 0 to 3 once, got t',
        ),
        ('return (u * 0).long()', r'got tensor\(\[\[0, 0, 0, 0\]\]\)'),
        ('return u.argsort(-1)[:, 1:]', 'return int64'),
        ('return u.argsort(-1) + 1', 'must return int64'),
        ('return u.argsort(-1).int()', 'must return int64.*int32'),
        ('return [3, 1, 2, 0]', r'got \[3, 1, 2, 0\]'),
        ('return None', 'got None'),
        ('raise KeyError("two\\nlines")', r"^the order .*mine.py:f raised KeyError\('two"),
        ('return 1 / 0', r"raised ZeroDivisionError\('division by zero'\)"),
    ],
)
def test_a_function_that_gives_no_orders_is_named(tmp_path, body, said):
    (tmp_path / 'mine.py').write_text(f'def f(u, n, parameter):\n    {body}\n')
    order = Order.of(read_order(f'{tmp_path}/mine.py:f'), {})
    with one_line(said):
        order.check(4)


@pytest.mark.parametrize(
    'text, said',
    [
        (
            'none.py:f',
            r'none.py has no order f, a function of u, n, parameter.*: FileNotFoundError',
        ),
        ('mine.py:g', "KeyError.*'g'"),
        ('mine.py:x', 'TypeError'),
        ('mine.py:two', 'TypeError.*too many positional'),
        ('broken.py:f', 'SyntaxError'),
        ('raises.py:f', 'ZeroDivisionError'),
        ('mine.py', 'a function is FILE.py:NAME'),
        ('mine.py:', 'KeyError'),
        ('.:f', 'or a JSON file with a list'),
    ],
)
def test_a_file_without_the_function_is_one_line(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.py').write_text('x = 3\ndef two(u, n):\n    pass\n')
    (tmp_path / 'broken.py').write_text('def f(:\n')
    (tmp_path / 'raises.py').write_text('1 / 0\n')
    with one_line(said):
        read_order(text)


def save_small(path, order):
    """Save the checkpoint of a model of bytes that was trained in this order."""
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint(path, model, tokenizer='bytes', config={'order': order, 'block_size': 32})


def test_a_checkpoint_runs_no_file(mine, script, tmp_path):
    """Only a command that is told to runs it; to open, read and write in other orders does not."""
    kept = read_order('sub/mine.py:shifted:3')
    LOADED.clear()
    names_of.cache_clear()
    save_small(tmp_path / 'c.pt', kept)
    (tmp_path / 'words.txt').write_text('a few words of text ' * 9)
    before = mine()
    options = ['--ckpt=c.pt', '--weights=raw']
    assert Checkpoint('c.pt').order.name == 'mine.py:shifted:3'
    script('sample.py', *options, '--order=l2r', '--length=5')
    evaluate = ['eval_ppl.py', *options, '--datasets=words.txt', '--n_blocks=2', '--out=o.json']
    script(*evaluate, '--estimates=l2r')
    (tmp_path / 'o.json').unlink()
    for command, more in ((['sample.py', *options], '--order'), (evaluate, '--orders')):
        refused = script(*command, code=1).stderr
        assert f'in the order {kept[:-2]}, which no checkpoint runs: ' in refused
        assert ': add --order=PATH/mine.py:shifted (' in refused
        assert more in refused
        assert refused.count('\n') == 1
    assert mine() == before
    assert not (tmp_path / 'o.json').exists()
    said = script('sample.py', *options, '--order=sub/mine.py:shifted').stdout
    assert f'\n{"order":<16}mine.py:shifted:3, ' in said
    assert 'mine.py:shifted:3' in script(*evaluate, '--orders=sub/mine.py:shifted').stdout
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
def test_a_score_of_a_user_works_as_the_same_built_in_one(mine, script, tmp_path, suffix):
    options = ['--ckpt=c.pt', '--weights=raw']
    save_small(tmp_path / 'c.pt', 'random')
    orders = [f'{score}{suffix}' for score in ('margin', 'sub/mine.py:gap')]
    texts = []
    for order in orders:
        write = ['--prompt=a[[9]]b[[9]]', '--n_steps=5', f'--order={order}', '--out=o.json']
        said = script('sample.py', *options, *write).stdout
        assert f'\n{"order":<16}{order}, ' in said
        result = json.loads((tmp_path / 'o.json').read_text())
        assert result['order'] == order
        texts.append([sample['tokens'] for sample in result['samples']])
    assert texts[0] == texts[1]
    writer = Writer('c.pt', 'raw')
    assert writer.infill('a[[9]]', order=orders[0]) == writer.infill('a[[9]]', order=orders[1])

    asked = f'--orders={",".join(orders)}'
    runs = solve.read_runs(configure(vars(solve), [asked, '--temperature=0']), {})
    assert [run.order for run in runs] == orders
    if not runs[1].way.unmasking.noise:  # which leaves no likelihood
        (tmp_path / 'words.txt').write_text('a few words of text ' * 9)
        asked = [asked, '--datasets=words.txt', '--n_blocks=2', '--out=e.json']
        script('eval_ppl.py', *options, *asked)
        rows = json.loads((tmp_path / 'e.json').read_text())['results']
        nats = [
            row['nats_per_token'] for row in rows if row['estimate'].startswith(('margin', 'sub'))
        ]
        assert nats[: len(nats) // 2] == nats[len(nats) // 2 :] != []


@pytest.mark.parametrize(
    'signature, body, said',
    [
        ('logits', 'return logits', r'must return a float for each row of logits, \(3,\)'),
        ('logits', 'return logits[:-1, 0]', 'must return a float'),
        ('logits', 'return logits.argmax(-1)', 'must return a float'),
        ('logits', 'return logits[:, 0].tolist()', 'must return a float'),
        ('logits', 'return logits[:, 0] * float("nan")', 'none of them NaN, got tensor'),
        ('logits, order', 'return logits[:, 0]', 'mine.py has no order f.*a score'),
        ('', 'return 1', 'mine.py has no order f.*a score'),
    ],
)
def test_a_function_that_gives_no_scores_is_named(mine, signature, body, said):
    with open('mine.py', 'w') as f:
        f.write(f'def f({signature}):\n    {body}\n')
    with one_line(said):
        _, unmasking = order_and_unmasking('mine.py:f')
        confidence(torch.zeros(3, 5), unmasking.score)


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
    assert changed == [
        f'order {load_checkpoint("out/ckpt.pt")["config"]["order"]} -> {config.order}'
    ]


def test_only_what_is_typed_runs_code(mine):
    with open('c.py', 'w') as f:
        f.write("order = 'sub/mine.py:shuffle'")
    with one_line(
        'a config file runs no code: leave out its order, and type --order=sub/mine.py:shuffle'
    ):
        start_checkpoint(configure(vars(train), ['c.py']))
    assert mine() == 0
    start_checkpoint(configure(vars(train), ['c.py', '--order=sub/mine.py:shuffle']))
    assert mine() == 1


def test_a_run_has_the_shape_of_its_data_set(data):
    with one_line('16 positions and shape=None: prepare the set'):
        run('--order=rows', '--max_iters=2')
    assert not os.path.exists('out')
    meta = read_meta('data/pydocs')
    write_meta('data/pydocs', dataclasses.replace(meta, shape=[2, 8]))
    run('--order=rows', '--max_iters=2')
    checkpoint = Checkpoint('out/ckpt.pt')
    assert checkpoint.order == Order('rows', length=16, shape=(2, 8))
    resume('--max_iters=3')
    sample = Writer('out/ckpt.pt').infill('').sample
    assert [p // 8 for p in sample['order']] == [0] * 8 + [1] * 8
