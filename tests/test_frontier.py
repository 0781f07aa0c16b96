"""The frontier of ways of unmasking: which ways a checkpoint has, and what a point counts."""
import json
import math
import statistics

import pytest
import torch
from conftest import make_model

from anyorder.checkpoint import model_from_checkpoint, save_checkpoint
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.unmasking import PROBABILITIES, SCORES, Unmasking
from anyorder.likelihood.judge import generative_perplexity, text_metrics
from anyorder.speed.frontier import REFERENCE, WAYS, Frontier

VALUES = {'n_steps': [2, 4], 'window': [1, 8, 64], 'threshold': [0.05]}


def save(path, order='random', **config):
    model = make_model(block_size=8, vocab_size=320, n_tokens=257, n_layer=1, **config).float()
    save_checkpoint(path, model, tokenizer='bytes', config={'order': order})
    return str(path)


@pytest.fixture
def frontier(tmp_path):
    def make(values=VALUES, judge='', n_samples=5, batch_size=2, ckpt='', **config):
        name = ckpt or save(tmp_path / 'ckpt.pt', **config)
        return Frontier(name, judge, values, 1.0, n_samples, batch_size, 3, torch.device('cpu'), 'float32')
    return make


def test_the_ways_of_a_checkpoint(frontier):
    decoder = frontier()
    assert list(dict.fromkeys(way for way, _, _ in decoder.settings)) == list(WAYS) and not decoder.left_out
    assert decoder.settings[:4] == [(REFERENCE, {'n_steps': 8}, Unmasking(8)),
                                    ('lossless', {'window': 1}, Unmasking(unmask='lossless', window=1)),
                                    ('lossless', {'window': 8}, Unmasking(unmask='lossless', window=8)),
                                    ('fixed', {'n_steps': 2}, Unmasking(2))]
    assert ('cosine', {'n_steps': 4}, Unmasking(4, 'cosine')) in decoder.settings
    assert ('margin threshold', {'threshold': 0.05}, Unmasking(policy='margin', threshold=0.05)) in decoder.settings
    encoder = frontier(attention='bidirectional')
    assert [*dict.fromkeys(way for way, _, _ in encoder.settings)] == [way for way in WAYS if way != 'lossless']
    (why, ways), = encoder.left_out.items()
    assert ways == ['lossless'] and 'wants a decoder' in why
    (why, ways), = frontier(order='l2r').left_out.items()
    assert ways == [*SCORES, *(f'{score} threshold' for score in PROBABILITIES)]
    assert 'trained in the order l2r' in why


def test_a_point_by_hand(frontier):
    """Of a binomial way, whose numbers of passes differ, in two batches and a rest; errors are over the samples."""
    all_points, unmasking = frontier(), Unmasking(6, unmask='binomial')
    point = all_points.point('binomial', {'n_steps': 6}, unmasking)
    samples, passes = [], []
    for r in range(5):
        canvas = Canvas.of_texts([([0] * 8, [False] * 8)], all_points.checkpoint.order, 3 + r)
        fill(all_points.network, canvas, unmasking, Drawing())
        samples.append(canvas.idx[0].tolist())
        passes.append(len(canvas.step.unique()))
    assert point['passes'] == statistics.mean(passes) and point['samples'] == 5
    assert point['passes_error'] == pytest.approx(statistics.stdev(passes) / 5 ** 0.5) and point['passes_error'] > 0
    assert point['tokens_per_pass'] == pytest.approx(40 / sum(passes))
    assert point['tokens_per_sec'] * point['seconds'] == pytest.approx(40)
    counted = [[True] * 8] * 5
    verdict, metrics = generative_perplexity(all_points.judge.model, samples, counted), text_metrics(samples, counted)
    assert point['judge_nats'] == pytest.approx(verdict['nats_per_token'])
    assert point['judge_nats_error'] == pytest.approx(verdict['stderr'])
    assert (point['entropy'], point['distinct_2']) == (metrics['entropy'], metrics['distinct_2'])


def test_generation_alone_is_timed(frontier, monkeypatch):
    """The warm-up and the judge stand outside; the last tokens of a batch warm up."""
    done, times = [], iter([10.0, 12.5])
    for name in ('fill', 'steps'):
        monkeypatch.setattr(f'anyorder.speed.frontier.{name}',
                            lambda network, canvas, *_, **how: done.append(canvas.known.tolist()) or ())
    monkeypatch.setattr('anyorder.machine.devices.time.perf_counter', lambda: done.append('clock') or next(times))
    samples, time = frontier(n_samples=3).write(Unmasking(8), '')
    assert time == 2.5 and len(samples) == 3
    assert done == [[0, 0], 'clock', [0, 0], [0], 'clock']


def test_every_way_starts_from_the_same_orders(frontier):
    first, second = (frontier(n_samples=3).canvas(0) for _ in range(2))
    assert torch.equal(first.order, second.order) and first.seeds == [3, 4] and frontier().canvas(4).seeds == [7]


def test_the_command(script, tmp_path):
    """The table and the file; lossless unmasking writes one text with every window."""
    ckpt = save(tmp_path / 'ckpt.pt')
    how = ('--n_samples=3', '--batch_size=2', '--steps=2,4', '--windows=1,8', '--thresholds=.1', '--device=cpu',
           '--dtype=float32')
    said = script('bench.py', 'frontier', f'--ckpt={ckpt}', *how, '--out=frontier.json').stdout
    with open(tmp_path / 'frontier.json') as f:
        result = json.load(f)
    points = result['frontier']
    each = {'n_steps': 2, 'window': 2, 'threshold': 1}
    assert [p['way'] for p in points] == [way for way, (option, _) in WAYS.items()
                                          for _ in range(1 if way == REFERENCE else each[option])]
    assert points[0]['passes'] == 8 and all(p['samples'] == 3 and p['seconds'] > 0 for p in points)
    assert {p['passes'] for p in points if p['way'] == 'fixed'} == {2, 4}
    narrow, wide = (p for p in points if p['way'] == 'lossless')
    assert narrow['passes'] == 8 >= wide['passes']
    names = 'judge_nats', 'entropy', 'distinct_2', 'judge_nats_error'
    assert all(math.isclose(narrow[name], wide[name], rel_tol=1e-5) for name in names)
    table = said.split('\n\n')[1].splitlines()
    assert table[0].split()[:2] == ['passes', 'tokens/pass'] and max(map(len, table)) <= 120
    assert [line[:19].strip() for line in table[1:4]] == [REFERENCE, 'lossless', '']
    n_parameters = model_from_checkpoint(ckpt, 'raw').n_parameters()
    assert f'{n_parameters:,} parameters' in said.splitlines()[0]   # not of a copy that is frozen
    assert result['batch_size'] == 2 and result['judge'] == ckpt


@pytest.mark.parametrize('args, said', [
    ([], 'name one by --ckpt='), (['--ckpt=none.pt'], 'no checkpoint file none.pt'),
    (['--ckpt=ckpt.pt', '--windows=0'], "windows must be numbers from 1 with commas between, got '0'"),
    (['--ckpt=ckpt.pt', '--steps=4,x'], "steps must be numbers from 1 with commas between, got '4,x'"),
    (['--ckpt=ckpt.pt', '--thresholds=.5,1.5'], "thresholds must be numbers from 0 to 1 with commas between"),
    (['--ckpt=ckpt.pt', '--n_samples=1'], 'n_samples must be at least 2, got 1'),
    (['--ckpt=ckpt.pt', '--temperature=-1'], 'temperature must be at least 0'),
    (['--ckpt=ckpt.pt', '--out=ckpt.pt'], 'would overwrite a file of this run'),
    (['--ckpt=r2l.pt'], 'a judge reads left to right, r2l.pt was trained in another order'),
    (['--ckpt=ckpt.pt', '--judge=none.pt'], 'none.pt')])
def test_wrong_input_is_one_line_before_the_work(script, tmp_path, args, said):
    save(tmp_path / 'ckpt.pt')
    save(tmp_path / 'r2l.pt', order='r2l')
    finished = script('bench.py', 'frontier', *args, '--device=cpu', code=1)
    assert said in finished.stderr and finished.stderr.count('\n') == 1 and not finished.stdout
