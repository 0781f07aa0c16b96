"""The frontier of ways of unmasking: which ways a checkpoint has, and what a point counts."""

import json
import math
import statistics

import pytest
import torch
from conftest import make_model

from anyorder.batch import Batch
from anyorder.checkpoint import model_from_checkpoint, save_checkpoint
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.unmasking import PROBABILITIES, SCORES, Adaptive, Given, Lossless
from anyorder.likelihood.judge import generative_perplexity, text_metrics
from anyorder.likelihood.nll import block_nll
from anyorder.likelihood.written import written_nats
from anyorder.orders import RANDOM, Order, draw_orders
from anyorder.speed.frontier import REFERENCE, WAYS, Frontier, settings
from configurator import Config

VALUES = {'n_steps': [2, 4], 'window': [1, 8, 64], 'threshold': [0.05], 'blocks': [4, 8, 9]}


def save(path, order='random', **config):
    (path.parent / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 3)
    model = make_model(
        **dict(block_size=8, vocab_size=320, n_tokens=257, n_layer=1) | config
    ).float()
    save_checkpoint(
        path,
        model,
        tokenizer='bytes',
        config={'order': order, 'dataset': f'{path.parent}/words.txt'},
    )
    return str(path)


@pytest.fixture
def frontier(tmp_path):
    def make(order='random', attention='causal', block_size=8, **how):
        name = save(tmp_path / 'ckpt.pt', order, attention=attention, block_size=block_size)
        options = {
            'n_samples': 5,
            'batch_size': 2,
            'seed': 3,
            'temperature': 1.0,
            'n_blocks': 5,
        } | how
        c = Config(options, ckpt=name, judge='', dataset='', data_dir='', n_orders=1)
        return Frontier(c, VALUES, torch.device('cpu'), 'float32')

    return make


BLOCKS = ['margin blocks of 4', 'margin blocks of 8']


def test_the_ways_of_a_checkpoint(frontier):
    decoder = frontier()
    assert list(dict.fromkeys(way for way, _, _ in decoder.settings)) == [*WAYS, *BLOCKS]
    ((why, ways),) = decoder.left_out.items()
    assert ways == ['margin blocks of 9'] and 'at most the 8 positions' in why
    assert decoder.settings[:4] == [
        (REFERENCE, {'n_steps': 8}, Given(8)),
        ('lossless', {'window': 1}, Lossless(1)),
        ('lossless', {'window': 8}, Lossless(8)),
        ('fixed', {'n_steps': 2}, Given(2)),
    ]
    assert ('cosine', {'n_steps': 4}, Given(4, 'cosine')) in decoder.settings
    assert (
        'margin threshold',
        {'threshold': 0.05},
        Adaptive('margin', threshold=0.05),
    ) in decoder.settings
    encoder = frontier(attention='bidirectional')
    assert [*dict.fromkeys(way for way, _, _ in encoder.settings)] == [
        *(w for w in WAYS if w != 'lossless'),
        *BLOCKS,
    ]
    (why, ways), _ = encoder.left_out.items()
    assert ways == ['lossless'] and 'wants a decoder' in why
    ((why, ways),) = frontier('l2r').left_out.items()
    assert ways == [
        *SCORES,
        *(f'{score} threshold' for score in PROBABILITIES),
        *BLOCKS,
        'margin blocks of 9',
    ]
    assert 'trained in the order l2r' in why


def test_a_curve_of_a_policy_begins_at_its_own_one_token_a_step(frontier):
    """In blocks there are at least as many passes as blocks, and no setting twice."""
    found, wide = frontier().settings, VALUES | {'n_steps': [1, 2, 8], 'blocks': [4]}
    steps = {
        way: [setting['n_steps'] for w, setting, _ in found if w == way]
        for way in ('fixed', 'entropy', *BLOCKS)
    }
    assert steps == {
        'fixed': [2, 4],
        'entropy': [2, 4, 8],
        BLOCKS[0]: [2, 4, 8],
        BLOCKS[1]: [2, 4, 8],
    }
    found, _ = settings(frontier().checkpoint, wide)
    assert [setting['n_steps'] for way, setting, _ in found if way == BLOCKS[0]] == [2, 8]
    assert [unmasking for way, _, unmasking in found if way == BLOCKS[0]] == [
        Adaptive('margin', n, block_length=4) for n in (2, 8)
    ]


# ---------------------------------------------------------------------------------------------------------------------
# the likelihood of held-out text


def written(it, unmasking, temperature=1.0, order=RANDOM):
    """Nats (5,) of the blocks of held-out text in this way, whose seeds decide nothing."""
    orders = draw_orders(range(5), 8, 1, 3, order)[:, 0]
    batch = Batch(it.text.blocks, orders, n_given=torch.zeros(5, dtype=torch.long))
    drawing = Drawing(temperature, scores=True)
    return written_nats(it.model, batch, range(5), unmasking, drawing, 5)[:, 0]


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_nats_and_what_passes_cost_block_by_block(frontier, attention):
    it, l2r = frontier(attention=attention), Order('l2r')
    for unmasking, one, order in (
        (Given(2), Given(8), RANDOM),
        (Given(8), Given(8), RANDOM),
        (Adaptive('entropy', 2), Adaptive('entropy', 8), RANDOM),
        (Adaptive('margin', threshold=0.02), Adaptive('margin', 8), RANDOM),
        (Adaptive('margin', 4, block_length=4), Adaptive('margin', 8, block_length=4), l2r),
    ):
        nats, found = written(it, unmasking, order=order) / 8, it.likelihood(unmasking)
        cost = nats - written(it, one, order=order) / 8
        for name, values in (('nats', nats), ('cost', cost)):
            assert math.isclose(found[name], values.mean(), abs_tol=1e-6)
            assert math.isclose(found[f'{name}_error'], values.std() / 5**0.5, abs_tol=1e-6)
    assert len(it.journal.done) == 8 * 5  # what the four are compared with was not run again


def test_lossless_lies_on_the_line_of_one_token_a_step(frontier):
    """Under its own law, which the point does not run anew; and one pass of a decoder says the same."""
    it = frontier()
    one = it.likelihood(Given(8))
    blocks, orders = it.text.blocks, draw_orders(range(5), 8, 1, 3)[:, 0]
    assert one['nats'] == pytest.approx(
        float(block_nll(it.model, blocks, orders, 5).mean()) / 8, abs=1e-6
    )
    for window in (1, 3, 8):
        lossless = Lossless(window)
        assert it.likelihood(lossless) == one
        torch.testing.assert_close(written(it, lossless), written(it, Given(8)), rtol=0, atol=1e-5)
    assert one['cost'] == one['cost_error'] == 0


def test_temperature_is_part_of_the_law(frontier):
    tempered = written(it := frontier(temperature=0.5), Given(2), 0.5) / 8
    assert it.likelihood(Given(2))['nats'] == pytest.approx(float(tempered.mean()), abs=1e-6)
    assert frontier(temperature=0.0).text is None


# ---------------------------------------------------------------------------------------------------------------------
# the samples


def test_a_point_by_hand(frontier):
    """Of a binomial way, whose numbers of passes differ, in two batches and a rest; errors are over the samples."""
    all_points, unmasking = frontier(), Given(6, binomial=True)
    point = all_points.point('binomial', {'n_steps': 6}, unmasking)
    samples, passes = [], []
    for r in range(5):
        canvas = Canvas.of_texts([([0] * 8, [False] * 8)], all_points.checkpoint.order, 3 + r)
        fill(all_points.network, canvas, unmasking, Drawing())
        samples.append(canvas.idx[0].tolist())
        passes.append(len(canvas.step.unique()))
    assert point['passes'] == statistics.mean(passes) and point['samples'] == 5
    assert (
        point['passes_error'] == pytest.approx(statistics.stdev(passes) / 5**0.5)
        and point['passes_error'] > 0
    )
    assert point['tokens_per_pass'] == pytest.approx(40 / sum(passes))
    assert point['tokens_per_sec'] * point['seconds'] == pytest.approx(40)
    counted = [[True] * 8] * 5
    verdict, metrics = (
        generative_perplexity(all_points.judge.model, samples, counted),
        text_metrics(samples, counted),
    )
    assert point['judge_nats'] == pytest.approx(verdict['nats_per_token'])
    assert point['judge_nats_error'] == pytest.approx(verdict['stderr'])
    assert (point['entropy'], point['distinct_2']) == (metrics['entropy'], metrics['distinct_2'])


def test_generation_alone_is_timed(frontier, monkeypatch):
    """The warm-up and the judge stand outside; the last tokens of a batch warm up."""
    done, times = [], iter([10.0, 12.5])
    monkeypatch.setattr(
        'anyorder.speed.frontier.fill',
        lambda network, canvas, *_, **how: done.append(canvas.known.tolist()),
    )
    monkeypatch.setattr(
        'anyorder.machine.devices.time.perf_counter', lambda: done.append('clock') or next(times)
    )
    samples, time, _ = frontier(n_samples=3).write(Given(8), '')
    assert time == 2.5 and len(samples) == 3
    assert done == [[0, 0], 'clock', [0, 0], [0], 'clock']


def test_blocks_need_not_fit_into_the_text(frontier):
    """Of 9 tokens the last 8 warm up, in blocks that do not begin where the text begins."""
    samples, _, _ = frontier(block_size=9).write(Adaptive('margin', 2, block_length=8), '')
    assert [sample['passes'] for sample in samples] == 5 * [2]


def test_every_way_starts_from_the_same_orders(frontier):
    first, second = (frontier(n_samples=3).canvas(0, Given(n)) for n in (8, 2))
    assert torch.equal(first.order, second.order) and first.seeds == [3, 4]
    last = frontier().canvas(4, Adaptive('margin', block_length=4))
    assert last.seeds == [7] and last.order.tolist() == [
        list(range(8))
    ]  # blocks are from left to right


@pytest.mark.parametrize(
    'attention, n_steps, block_length, slots',
    [
        ('causal', 8, None, 8),
        ('causal', 4, None, 2 + 3 * 3),
        ('causal', 8, 4, 4 + 4 + 3 + 2 + 5 + 4 + 3 + 2),
        ('bidirectional', 4, None, 4 * 8),
    ],
)
def test_slots(frontier, attention, n_steps, block_length, slots):
    """Of a text of 8. A pass of a decoder runs its targets, or the blanks of its block, and what it has to read before.
    The warm-up does not count."""
    unmasking = (
        Given(n_steps)
        if block_length is None
        else Adaptive('margin', n_steps, block_length=block_length)
    )
    _, _, ran = frontier(attention=attention).write(unmasking, '')
    assert ran == 5 * slots


def test_rows_that_reveal_unequal_numbers_run_no_more_slots_in_a_batch(frontier):
    ran = [frontier(batch_size=B).write(Given(2, binomial=True), '')[2] for B in (1, 5)]
    assert ran[0] == ran[1] > 5 * 8


def test_the_command(script, tmp_path):
    """The table and the file; lossless unmasking writes one text with every window."""
    ckpt = save(tmp_path / 'ckpt.pt')
    how = (
        '--n_samples=3',
        '--batch_size=2',
        '--steps=2,4',
        '--windows=1,8',
        '--thresholds=.1',
        '--device=cpu',
        '--dtype=float32',
        '--n_blocks=6',
        '--block_lengths=4',
    )
    said = script('bench.py', 'frontier', f'--ckpt={ckpt}', *how, '--out=frontier.json').stdout
    with open(tmp_path / 'frontier.json') as f:
        result = json.load(f)
    points = result['frontier']
    each = {'n_steps': 2, 'window': 2, 'threshold': 1}
    assert [p['way'] for p in points] == [
        way
        for way, (option, others) in (WAYS | {BLOCKS[0]: WAYS['margin']}).items()
        for _ in range(
            1 if way == REFERENCE else each[option] + (option == 'n_steps' and 'policy' in others)
        )
    ]
    assert points[0]['passes'] == 8
    assert [p['slots'] for p in points if p['way'] in (REFERENCE, 'fixed')] == [
        1,
        (4 + 7) / 8,
        (2 + 3 * 3) / 8,
    ]
    assert all(p['samples'] == 3 and p['seconds'] > 0 for p in points)
    assert {p['passes'] for p in points if p['way'] == 'fixed'} == {2, 4}
    narrow, wide = (p for p in points if p['way'] == 'lossless')
    assert narrow['passes'] == 8 >= wide['passes']
    names = 'judge_nats', 'entropy', 'distinct_2', 'judge_nats_error'
    assert all(math.isclose(narrow[name], wide[name], rel_tol=1e-5) for name in names)
    table = said.split('\n\n')[1].splitlines()
    assert table[0].split()[:2] == ['passes', 'slots'] and max(map(len, table)) <= 120
    assert [line[:19].strip() for line in table[1:4]] == [REFERENCE, 'lossless', '']
    assert 'words.txt, 6 blocks' in said and all(p['cost_error'] >= 0 for p in points)
    one = (
        '--orders=random,margin',
        '--n_steps=0,2',
        '--n_blocks=6',
        f'--out={tmp_path}/ppl.json',
        '--weights=raw',
    )
    script('eval_ppl.py', f'--ckpt={ckpt}', *one, '--dtype=float32', '--device=cpu')
    with open(tmp_path / 'ppl.json') as f:
        rows = {row['estimate']: row for row in json.load(f)['results']}
    there = {(p['way'], p['setting'].get('n_steps')): p for p in points}
    for label, key in (
        ('any order x 1', (REFERENCE, 8)),
        ('any order in 2 x 1', ('fixed', 2)),
        ('margin', ('margin', 8)),
        ('margin in 2', ('margin', 2)),
    ):
        row, point = rows[label], there[key]
        assert math.isclose(row['nats_per_token'], point['nats'], rel_tol=1e-6)
        assert math.isclose(row['stderr'], point['nats_error'], rel_tol=1e-4)
        assert math.isclose(row.get('cost', 0), point['cost'], rel_tol=1e-4, abs_tol=1e-7)
    n_parameters = model_from_checkpoint(ckpt, 'raw').n_parameters()
    assert f'{n_parameters:,} parameters' in said.splitlines()[0]  # not of a copy that is frozen
    assert result['batch_size'] == 2 and result['judge'] == ckpt


@pytest.mark.parametrize(
    'args, said',
    [
        ([], 'name one by --ckpt='),
        (['--ckpt=none.pt'], 'no checkpoint file none.pt'),
        (
            ['--ckpt=ckpt.pt', '--windows=0'],
            "windows must be numbers from 1 with commas between, got '0'",
        ),
        (
            ['--ckpt=ckpt.pt', '--steps=4,x'],
            "steps must be numbers from 1 with commas between, got '4,x'",
        ),
        (
            ['--ckpt=ckpt.pt', '--thresholds=.5,1.5'],
            'thresholds must be numbers from 0 to 1 with commas between',
        ),
        (
            ['--ckpt=ckpt.pt', '--block_lengths=0'],
            "block_lengths must be numbers from 1 with commas between, got '0'",
        ),
        (['--ckpt=ckpt.pt', '--n_blocks=-1'], 'n_blocks must be at least 0'),
        (['--ckpt=ckpt.pt', '--dataset=none.txt'], 'none.txt'),
        (['--ckpt=ckpt.pt', '--n_samples=1'], 'n_samples must be at least 2, got 1'),
        (['--ckpt=ckpt.pt', '--temperature=-1'], 'temperature must be at least 0'),
        (['--ckpt=ckpt.pt', '--out=ckpt.pt'], 'would overwrite a file of this run'),
        (['--ckpt=r2l.pt'], 'a judge reads left to right, r2l.pt was trained in another order'),
        (['--ckpt=ckpt.pt', '--judge=none.pt'], 'none.pt'),
    ],
)
def test_wrong_input_is_one_line_before_the_work(script, tmp_path, args, said):
    save(tmp_path / 'ckpt.pt')
    save(tmp_path / 'r2l.pt', order='r2l')
    finished = script('bench.py', 'frontier', *args, '--device=cpu', code=1)
    assert said in finished.stderr and finished.stderr.count('\n') == 1 and not finished.stdout


def test_without_a_likelihood(script, tmp_path):
    """At temperature 0 no text is wanted, and the table is drawn as it was before there were nats."""
    ckpt = save(tmp_path / 'ckpt.pt')
    how = (
        '--temperature=0',
        '--n_samples=2',
        '--steps=4',
        '--windows=',
        '--thresholds=',
        '--block_lengths=',
    )
    said = script(
        'bench.py', 'frontier', f'--ckpt={ckpt}', *how, '--dataset=none.txt', '--out=f.json'
    ).stdout
    assert said.count('neither nats nor cost: they want a temperature above 0') == 1
    with open(tmp_path / 'f.json') as f:
        assert not any('nats' in point or 'cost' in point for point in json.load(f)['frontier'])
