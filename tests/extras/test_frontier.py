"""The frontier of ways of unmasking: which ways a checkpoint has, and what a point counts."""

import json
import math
import statistics

import pytest
import torch
from conftest import make_model

from anyorder.checkpoint import model_from_checkpoint, save_checkpoint
from anyorder.extras.speed.frontier import REFERENCE, WAYS, Frontier, settings
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.rules import RULES, Dilated, Factor
from anyorder.generation.unmasking import PROBABILITIES, SCORES, Adaptive, Given, Lossless
from anyorder.likelihood.judge import generative_perplexity, text_metrics
from anyorder.likelihood.nll import block_nll
from anyorder.likelihood.written import written_nats
from anyorder.orders import RANDOM, Order, draw_orders
from anyorder.tokens.blocks import Batch
from configurator import Config

VALUES = {'n_steps': [2, 4], 'window': [1, 8, 64], 'threshold': [0.05], 'blocks': [4, 8, 9]}
VALUES |= {'factor': [2.0], 'gamma': [3.0], 'dilation': [4, 8, 16]}
OPTIONS = {'n_samples': 5, 'batch_size': 2, 'seed': 3, 'temperature': 1.0, 'n_blocks': 5}
SIZES = {'block_size': 8, 'vocab_size': 320, 'n_tokens': 257, 'n_layer': 1}


def save(path, order='random', **network):
    words = path.parent / 'words.txt'
    words.write_text('The quick brown fox jumps over the lazy dog. ' * 3)
    model = make_model(**SIZES | network).float()
    run = {'order': order, 'dataset': str(words)}
    counts = torch.arange(257)
    save_checkpoint(path, model, tokenizer='bytes', config=run, counts=counts)
    return str(path)


@pytest.fixture
def frontier(tmp_path):
    def make(order='random', attention='causal', block_size=8, **options):
        ckpt = save(tmp_path / 'ckpt.pt', order, attention=attention, block_size=block_size)
        rest = {'ckpt': ckpt, 'judge': '', 'dataset': '', 'data_dir': '', 'n_orders': 1}
        c = Config(OPTIONS | options | rest)
        return Frontier(c, VALUES, torch.device('cpu'), 'float32')

    return make


# --------------------------------------------------------------------------------------------------
# the ways

IN_FOURS = 'margin blocks of 4'
IN_EIGHTS = 'margin blocks of 8'
TOO_WIDE = 'margin blocks of 9'


def ways_of(found):
    """The ways of a list of settings, each once."""
    return list(dict.fromkeys(way for way, _, _ in found))


def of_way(found, name):
    """(the settings, the unmaskings) of a way."""
    chosen = [(setting, unmasking) for way, setting, unmasking in found if way == name]
    return zip(*chosen)


def test_the_ways_of_a_decoder(frontier):
    decoder = frontier()
    assert ways_of(decoder.settings) == [*WAYS, IN_FOURS, IN_EIGHTS]
    ((why, ways),) = decoder.left_out.items()
    assert ways == [TOO_WIDE]
    assert 'at most the 8 positions' in why
    assert decoder.settings[:4] == [
        (REFERENCE, {'n_steps': 8}, Given(8)),
        ('lossless', {'window': 1}, Lossless(1)),
        ('lossless', {'window': 8}, Lossless(8)),
        ('fixed', {'n_steps': 2}, Given(2)),
    ]
    assert ('cosine', {'n_steps': 4}, Given(4, 'cosine')) in decoder.settings
    threshold = Adaptive('margin', threshold=0.05)
    assert ('margin threshold', {'threshold': 0.05}, threshold) in decoder.settings
    assert ('factor', {'factor': 2.0}, Factor(threshold=2.0)) in decoder.settings
    found, unmaskings = of_way(decoder.settings, 'dilated')
    assert found == ({'dilation': 4}, {'dilation': 8})
    assert unmaskings == (Dilated(4), Dilated(8))


def test_an_encoder_has_no_drafts(frontier):
    encoder = frontier(attention='bidirectional')
    has = [way for way in WAYS if way != 'lossless']
    assert ways_of(encoder.settings) == [*has, IN_FOURS, IN_EIGHTS]
    (why, ways), _ = encoder.left_out.items()
    assert ways == ['lossless']
    assert 'wants a decoder' in why


def test_a_model_of_one_order_chooses_nothing(frontier):
    ((why, ways),) = frontier('l2r').left_out.items()
    thresholds = [f'{score} threshold' for score in PROBABILITIES]
    assert ways == [*SCORES, *thresholds, *RULES, IN_FOURS, IN_EIGHTS, TOO_WIDE]
    assert 'trained in the order l2r' in why


@pytest.mark.parametrize(
    'way, n_steps',
    [('fixed', [2, 4]), ('entropy', [2, 4, 8]), (IN_FOURS, [2, 4, 8]), (IN_EIGHTS, [2, 4, 8])],
)
def test_a_curve_of_a_policy_begins_at_its_own_one_token_a_step(frontier, way, n_steps):
    found, _ = of_way(frontier().settings, way)
    assert [setting['n_steps'] for setting in found] == n_steps


def test_there_are_as_many_passes_as_blocks_and_no_setting_twice(frontier):
    values = VALUES | {'n_steps': [1, 2, 8], 'blocks': [4]}
    found, _ = settings(frontier().checkpoint, values)
    of_blocks, unmaskings = of_way(found, IN_FOURS)
    assert of_blocks == ({'n_steps': 2}, {'n_steps': 8})
    assert unmaskings == tuple(Adaptive('margin', n, block_length=4) for n in (2, 8))


# --------------------------------------------------------------------------------------------------
# the likelihood of held-out text


def written(it, unmasking, temperature=1.0, order=RANDOM):
    """Nats (5,) of the blocks of held-out text in this way, whose seeds decide nothing."""
    orders = draw_orders(range(5), 8, 1, 3, order)[:, 0]
    batch = Batch(it.text.blocks, orders, n_given=torch.zeros(5, dtype=torch.long))
    drawing = Drawing(temperature, scores=True)
    return written_nats(it.model, batch, range(5), unmasking, drawing, 5)[:, 0]


L2R = Order('l2r')
# (a way, the same in one token a step, its order)
LAWS = [
    (Given(2), Given(8), RANDOM),
    (Given(8), Given(8), RANDOM),
    (Adaptive('entropy', 2), Adaptive('entropy', 8), RANDOM),
    (Adaptive('margin', threshold=0.02), Adaptive('margin', 8), RANDOM),
    (Adaptive('margin', 4, block_length=4), Adaptive('margin', 8, block_length=4), L2R),
]


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_nats_and_what_passes_cost_block_by_block(frontier, attention):
    it = frontier(attention=attention)
    for unmasking, one, order in LAWS:
        found = it.likelihood(unmasking)
        nats = written(it, unmasking, order=order) / 8
        cost = nats - written(it, one, order=order) / 8
        for name, values in (('nats', nats), ('cost', cost)):
            assert math.isclose(found[name], values.mean(), abs_tol=1e-6)
            assert math.isclose(found[f'{name}_error'], values.std() / 5**0.5, abs_tol=1e-6)
    assert len(it.journal.done) == 8 * 5  # what the four are compared with was not run again


def test_one_token_a_step_is_one_pass_of_a_decoder(frontier):
    it = frontier()
    orders = draw_orders(range(5), 8, 1, 3)[:, 0]
    nats = block_nll(it.model, it.text.blocks, orders, 5)
    found = it.likelihood(Given(8))
    assert found['nats'] == pytest.approx(float(nats.mean()) / 8, abs=1e-6)
    assert found['cost'] == found['cost_error'] == 0


@pytest.mark.parametrize('window', [1, 3, 8])
def test_lossless_lies_on_the_line_of_one_token_a_step(frontier, window):
    """Under its own law, which the point does not run anew."""
    it = frontier()
    assert it.likelihood(Lossless(window)) == it.likelihood(Given(8))
    found = written(it, Lossless(window))
    torch.testing.assert_close(found, written(it, Given(8)), rtol=0, atol=1e-5)


def test_temperature_is_part_of_the_law(frontier):
    it = frontier(temperature=0.5)
    tempered = float(written(it, Given(2), 0.5).mean()) / 8
    assert it.likelihood(Given(2))['nats'] == pytest.approx(tempered, abs=1e-6)
    assert frontier(temperature=0.0).text is None


# --------------------------------------------------------------------------------------------------
# the samples


def test_a_point_by_hand(frontier):
    """Of a binomial way, whose numbers of passes differ, in two batches and a rest.

    Errors are over the samples."""
    it = frontier()
    unmasking = Given(6, binomial=True)
    point = it.point('binomial', {'n_steps': 6}, unmasking)
    samples = []
    passes = []
    for r in range(5):
        canvas = Canvas.of_texts([([0] * 8, [False] * 8)], it.checkpoint.order, 3 + r)
        fill(it.network, canvas, unmasking, Drawing())
        samples.append(canvas.idx[0].tolist())
        passes.append(len(canvas.step.unique()))
    assert point['samples'] == 5
    assert point['passes'] == statistics.mean(passes)
    assert point['passes_error'] == pytest.approx(statistics.stdev(passes) / 5**0.5)
    assert point['passes_error'] > 0
    assert point['tokens_per_pass'] == pytest.approx(40 / sum(passes))
    assert point['tokens_per_sec'] * point['seconds'] == pytest.approx(40)

    counted = [[True] * 8] * 5
    verdict = generative_perplexity(it.judge.model, samples, counted)
    assert point['judge_nats'] == pytest.approx(verdict['nats_per_token'])
    assert point['judge_nats_error'] == pytest.approx(verdict['stderr'])
    metrics = text_metrics(samples, counted)
    assert point['entropy'] == metrics['entropy']
    assert point['distinct_2'] == metrics['distinct_2']


def test_generation_alone_is_timed(frontier, monkeypatch):
    """The warm-up and the judge stand outside; the last tokens of a batch warm up."""
    done = []
    times = iter([10.0, 12.5])

    def record(network, canvas, *_, **how):
        done.append(canvas.known.tolist())

    def clock():
        done.append('clock')
        return next(times)

    monkeypatch.setattr('anyorder.extras.speed.frontier.fill', record)
    monkeypatch.setattr('anyorder.machine.devices.time.perf_counter', clock)
    samples, time, _ = frontier(n_samples=3).write(Given(8), '')
    assert time == 2.5
    assert len(samples) == 3
    assert done == [[0, 0], 'clock', [0, 0], [0], 'clock']


def test_blocks_need_not_fit_into_the_text(frontier):
    """Of 9 tokens the last 8 warm up, in blocks that do not begin where the text begins."""
    unmasking = Adaptive('margin', 2, block_length=8)
    samples, _, _ = frontier(block_size=9).write(unmasking, '')
    assert [sample['passes'] for sample in samples] == [2] * 5


def test_every_way_starts_from_the_same_orders(frontier):
    it = frontier(n_samples=3)
    first = it.canvas(0, Given(8))
    second = it.canvas(0, Given(2))
    assert torch.equal(first.order, second.order)
    assert first.seeds == [3, 4]
    last = frontier().canvas(4, Adaptive('margin', block_length=4))
    assert last.seeds == [7]
    assert last.order.tolist() == [list(range(8))]  # blocks are from left to right


IN_BLOCKS = Adaptive('margin', 8, block_length=4)


@pytest.mark.parametrize(
    'attention, unmasking, n_slots',
    [
        ('causal', Given(8), 8),
        ('causal', Given(4), 2 + 3 * 3),
        ('causal', IN_BLOCKS, 4 + 4 + 3 + 2 + 5 + 4 + 3 + 2),
        ('bidirectional', Given(4), 4 * 8),
    ],
)
def test_slots(frontier, attention, unmasking, n_slots):
    """Of a text of 8. The warm-up does not count.

    A pass of a decoder runs its targets, or the blanks of its block, and what it has to read
    before them."""
    _, _, ran = frontier(attention=attention).write(unmasking, '')
    assert ran == 5 * n_slots


def test_rows_that_reveal_unequal_numbers_run_no_more_slots_in_a_batch(frontier):
    unmasking = Given(2, binomial=True)
    _, _, alone = frontier(batch_size=1).write(unmasking, '')
    _, _, together = frontier(batch_size=5).write(unmasking, '')
    assert alone == together > 5 * 8


# --------------------------------------------------------------------------------------------------
# the command

FLOAT32 = ('--dtype=float32', '--device=cpu')


@pytest.fixture
def command(script, tmp_path):
    """command(*options) runs speed frontier and returns (what it says, what its file says)."""
    ckpt = save(tmp_path / 'ckpt.pt')

    def run(*options):
        how = (f'--ckpt={ckpt}', *FLOAT32, '--out=frontier.json', *options)
        said = script('anyorder.extras.speed', 'frontier', *how).stdout
        return said, json.loads((tmp_path / 'frontier.json').read_text())

    return run


SAMPLES = ('--n_samples=3', '--batch_size=2', '--n_blocks=6')
FEW = (*SAMPLES, '--n_steps=2,4', '--windows=1,8', '--thresholds=.1', '--block_lengths=4')


@pytest.mark.slow
def test_the_file_has_a_point_of_each_setting(command, tmp_path):
    """Lossless unmasking writes one text with every window."""
    _, result = command(*FEW)
    points = result['results']
    assert (result['batch_size'], result['judge']) == (2, str(tmp_path / 'ckpt.pt'))
    n_points = {'n_steps': 2, 'window': 2, 'threshold': 1, 'factor': 3, 'gamma': 3, 'dilation': 1}
    ways = []
    for way, (option, others) in (WAYS | {IN_FOURS: WAYS['margin']}).items():
        n = 1 if way == REFERENCE else n_points[option]
        if option == 'n_steps' and 'policy' in others:
            n += 1
        ways += [way] * n
    assert [p['way'] for p in points] == ways
    reference, narrow, wide, *fixed = points[:5]
    assert reference['passes'] == 8
    assert {p['passes'] for p in fixed} == {2, 4}
    assert [p['slots'] for p in (reference, *fixed)] == [1, (4 + 7) / 8, (2 + 3 * 3) / 8]
    for p in points:
        assert p['samples'] == 3
        assert p['seconds'] > 0 and p['cost_error'] >= 0
    assert narrow['passes'] == 8 >= wide['passes']
    for name in ('judge_nats', 'entropy', 'distinct_2', 'judge_nats_error'):
        assert math.isclose(narrow[name], wide[name], rel_tol=1e-5)


@pytest.mark.slow
def test_the_table(command, tmp_path):
    said, _ = command(*FEW)
    above, table = said.split('\n\n')[:2]
    heading, *lines = table.splitlines()
    assert heading.split()[:2] == ['passes', 'slots']
    assert max(map(len, lines)) <= 120
    assert [line[:19].strip() for line in lines[:3]] == [REFERENCE, 'lossless', '']
    assert 'words.txt, 6 blocks' in above
    n_parameters = model_from_checkpoint(tmp_path / 'ckpt.pt', 'raw').n_parameters()
    assert f'{n_parameters:,} parameters' in above.splitlines()[0]  # not of a copy that is frozen


@pytest.mark.slow
def test_eval_ppl_finds_the_same_nats(command, script, tmp_path):
    _, result = command(*FEW)
    there = {(p['way'], p['setting'].get('n_steps')): p for p in result['results']}
    how = ('--orders=random,margin', '--n_steps=0,2', '--n_blocks=6', '--weights=raw')
    script('eval_ppl.py', f'--ckpt={tmp_path}/ckpt.pt', *how, *FLOAT32, '--out=ppl.json')
    rows = json.loads((tmp_path / 'ppl.json').read_text())['results']
    same = {
        'any order x 1': (REFERENCE, 8),
        'any order in 2 x 1': ('fixed', 2),
        'margin': ('margin', 8),
        'margin in 2': ('margin', 2),
    }
    assert same.keys() <= {row['estimate'] for row in rows}
    for row in rows:
        if row['estimate'] in same:
            point = there[same[row['estimate']]]
            assert math.isclose(row['nats_per_token'], point['nats'], rel_tol=1e-6)
            assert math.isclose(row['stderr'], point['nats_error'], rel_tol=1e-4)
            cost = row.get('cost', 0)
            assert math.isclose(cost, point['cost'], rel_tol=1e-4, abs_tol=1e-7)


def test_without_a_likelihood(command):
    """At temperature 0 no text is wanted, and the table has neither nats nor cost."""
    few = ('--n_samples=2', '--n_steps=4', '--windows=', '--thresholds=', '--block_lengths=')
    said, result = command('--temperature=0', *few, '--dataset=none.txt')
    assert said.count('neither nats nor cost: they want a temperature above 0') == 1
    for point in result['results']:
        assert 'nats' not in point and 'cost' not in point


@pytest.mark.parametrize(
    'args, said',
    [
        ([], 'name one by --ckpt='),
        (['--ckpt=none.pt'], 'no checkpoint file none.pt'),
        (['--windows=0'], "windows must be numbers from 1 with commas between, got '0'"),
        (['--n_steps=4,x'], "n_steps must be numbers from 1 with commas between, got '4,x'"),
        (['--thresholds=.5,1.5'], 'thresholds must be numbers from 0 to 1 with commas between'),
        (
            ['--block_lengths=0'],
            "block_lengths must be numbers from 1 with commas between, got '0'",
        ),
        (['--n_blocks=-1'], 'n_blocks must be at least 0'),
        (['--dataset=none.txt'], 'none.txt'),
        (['--n_samples=1'], 'n_samples must be at least 2, got 1'),
        (['--temperature=-1'], 'temperature must be at least 0'),
        (['--out=ckpt.pt'], 'would overwrite a file of this run'),
        (['--ckpt=r2l.pt'], 'a judge reads left to right, r2l.pt was trained in another order'),
        (['--judge=none.pt'], 'none.pt'),
    ],
)
def test_wrong_input_is_one_line_before_the_work(script, tmp_path, args, said):
    save(tmp_path / 'ckpt.pt')
    save(tmp_path / 'r2l.pt', order='r2l')
    names_one = not args or args[0].startswith('--ckpt=')
    ckpt = [] if names_one else ['--ckpt=ckpt.pt']
    finished = script('anyorder.extras.speed', 'frontier', *ckpt, *args, '--device=cpu', code=1)
    assert said in finished.stderr
    assert finished.stderr.count('\n') == 1
    assert not finished.stdout
