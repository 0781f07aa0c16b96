"""Patterns as users write them: in prompts and as an option. What is written matches, the numbers
are those of the law, weights, wrong input."""

import itertools
import json
import math
import re
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import make_model, one_line

from anyorder import Writer
from anyorder.checkpoint import save_checkpoint
from anyorder.likelihood.lengths import Lengths
from anyorder.tokens.prompts import parse_prompt
from anyorder.tokens.tokenizers import Bytes

pytest.importorskip('outlines_core')

slow = pytest.mark.slow
DATE = r'(19|20)[0-9][0-9]-(0[1-9]|1[0-2])'
WAYS = [
    {'order': 'l2r'},
    {'order': 'random', 'n_steps': 3},
    {'order': 'margin', 'n_steps': 4},
    {'order': 'margin/3:0.1'},
    {'order': 'random', 'unmask': 'binomial', 'n_steps': 3},
    {'order': 'random', 'revise': 2, 'n_steps': 4},
    {'order': 'random', 'temperature': 0},
    {'order': 'l2r', 'temperature': 0.7, 'top_k': 3, 'top_p': 0.9, 'n_steps': 3},
]


@pytest.fixture(scope='module')
def writer(tmp_path_factory):
    """A Writer of bytes with 32 positions."""
    path = tmp_path_factory.mktemp('run') / 'ckpt.pt'
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint(path, model, tokenizer='bytes', counts=torch.arange(257))
    return Writer(path, device='cpu')


@pytest.mark.parametrize('how', [WAYS[2], *(pytest.param(how, marks=slow) for how in WAYS)])
def test_what_is_written_in_a_blank_matches_its_pattern(writer, how):
    prompt = f'a [[/{DATE}/]], [[2]][[3-6/(bc)+|[x/]{{5}}/]].[[4/\\/[^]]{{2}}]/]]'
    for text in writer.infill(prompt, n=3, seed=2, **how):
        whole = rf'a {DATE}, (?s:.*)((bc)+|[x/]{{5}})\./[^]]{{2}}]'
        written = bytes(t for t in text.sample['tokens'] if t < 256).decode('latin-1')
        assert re.fullmatch(whole, written)
        (first, last, pattern), *_ = text.sample['patterns']
        assert re.fullmatch(DATE, written[first:last])
        assert pattern == DATE


@slow
@pytest.mark.parametrize('how', WAYS[:4])
def test_a_whole_text_matches_stretch_by_stretch(writer, how):
    """80 tokens for a model of 32: the state and what stands behind go from stretch to stretch."""
    pattern = r'(ab[cd]|e){3,20}x{30,60}(yz)*!'
    texts = writer.infill('abc[[..]]!', n=2, length=80, context=6, pattern=pattern, **how)
    for text in texts:
        assert re.fullmatch(pattern, text) and len(text) == 80
        assert len(text.sample['stretches']) > 2


def test_blanks_that_decide_each_other_come_in_the_order_that_is_given(writer):
    """(19|20) has equal scores at both of its digits: rounding, which is another one without a
    cache, does not choose."""
    slow_writer = Writer(writer.checkpoint.name, device='cpu', use_cache=False)
    how = {'n': 8, 'order': 'margin', 'pattern': DATE}
    pairs = zip(writer.infill('[[7]]', **how), slow_writer.infill('[[7]]', **how))
    for cached, plain in pairs:
        assert cached.sample['order'] == plain.sample['order']
        assert cached.sample['log_weight'] == pytest.approx(plain.sample['log_weight'], abs=1e-3)


def test_a_pattern_beside_a_blank_that_stops_moves_with_its_text(writer):
    prompt = f'[[/{DATE}/]][[..]]-[[/{DATE}/]][[..]]-[[/{DATE}/]]'
    texts = writer.infill(prompt, n=3, stop=list('0123456789abcdefghijkl'), length=50, seed=1)
    assert len({len(text.sample['tokens']) for text in texts}) > 1
    for text in texts:
        assert len(text.sample['patterns']) == 3
        for start, end, _ in text.sample['patterns']:
            assert re.fullmatch(DATE, bytes(text.sample['tokens'][start:end]).decode())


@pytest.mark.parametrize('order', ['l2r', 'margin', 'eb:1'])
def test_a_text_does_not_depend_on_its_batch(writer, order):
    """Though one of its patterns is finished before that of another text."""
    prompts = ['[[3/[a-z]+/]][[5/[0-9]+/]]', '[[18/[a-z]+/]]x[[4/[0-9]+/]]']
    alone = [writer.infill(prompt, order=order, seed=7 + r) for r, prompt in enumerate(prompts)]
    assert writer.infill(prompts, order=order, seed=7) == alone


@pytest.mark.parametrize('order', ['l2r', 'margin'])
def test_a_text_with_a_prompt_is_revised(writer, order):
    pattern = 'The [a-z ]+'
    texts = writer.infill('The [[4]] is returned', n=3, order=order, revise=1, pattern=pattern)
    assert all(re.fullmatch(pattern, text) for text in texts)


@slow
def test_the_probabilities_of_all_texts_that_match_are_one(writer):
    """Under several ways of writing, by the score of each text."""
    texts = [''.join(one) for one in itertools.product('ab', repeat=3)]
    texts = [text for text in texts if re.fullmatch('a*ba*|bb+', text)]
    prompts = [f'x[[={text}]]y' for text in texts]
    for how in WAYS[:4]:
        nats = writer.logprob(prompts, seed=[3 for _ in prompts], pattern='x(a*ba*|bb+)y', **how)
        assert sum(map(math.exp, nats)) == pytest.approx(1, abs=1e-5)


def test_a_text_that_is_written_has_the_probability_that_is_scored(writer):
    how = {'order': 'margin', 'n_steps': 4, 'pattern': DATE, 'seed': 5}
    text = writer.infill('1[[6]]', **how)
    assert writer.logprob(f'1[[={text[1:]}]]', **how) == pytest.approx(text.logprob, abs=1e-4)


@pytest.mark.parametrize('order', ['l2r', 'margin'])
def test_the_likeliest_tokens_are_those_that_the_pattern_leaves(writer, order):
    how = {'order': order, 'seed': 5, 'pattern': DATE, 'top_logprobs': 12}
    text = writer.infill('[[7]]', **how)
    places = text.top_logprobs
    assert sum(place['logprob'] for place in places) == pytest.approx(text.logprob, abs=1e-4)
    for place in places:
        assert sum(math.exp(one['logprob']) for one in place['top']) == pytest.approx(1, abs=1e-5)


@slow
def test_the_mean_weight_is_the_probability_that_a_text_of_the_model_matches(writer):
    """By 16 samples of one token a step, and by all 36 texts that match."""
    how = {'order': 'l2r', 'seed': 1}
    pattern = '[a-f]x|[a-e][fg][hij]'
    matching = [f'{a}{b}{c}' for a in 'abcde' for b in 'fg' for c in 'hij']
    want = sum(map(math.exp, writer.logprob([f'k[[={text}]]' for text in matching], **how)))
    texts = writer.infill('k[[3]]', n=400, batch_size=400, pattern=f'k({pattern})', **how)
    w = np.exp([text.sample['log_weight'] for text in texts])
    error = w.std() / math.sqrt(len(w))
    assert abs(w.mean() - want) < 4 * error < want
    for text in texts[:3]:
        p = writer.logprob(f'k[[={text[1:]}]]', **how)
        assert text.sample['log_weight'] == pytest.approx(p - text.logprob, abs=1e-3)


@slow
def test_the_length_of_a_blank_is_chosen_among_those_that_match(writer):
    prompt = 'ab[[2-9/(cd)+|e{5}/]]fgh'
    template = parse_prompt(prompt, Bytes(), 32)
    n, p = Lengths().probabilities(writer.network, template, ())
    assert n == [2, 4, 5, 6, 8]
    of_all = parse_prompt('ab[[2-9]]fgh', Bytes(), 32)
    every, q = Lengths().probabilities(writer.network, of_all, ())
    q = q[[every.index(one) for one in n]]
    assert torch.allclose(p, q / q.sum(), rtol=1e-4)
    drawn = writer.infill(prompt, n=20, blank_length='draw')
    found = Counter(text.sample['lengths'][0]['length'] for text in drawn)
    assert found.keys() <= {*n}


@slow
def test_rows_match_a_pattern_of_symbols(writer):
    rows = np.full((3, 6), -1)
    rows[:, 0] = 97
    found = writer.infill(rows, pattern='a[bc]{5}', order='random', n_steps=2)
    assert found.shape == (3, 6)
    assert {*found[:, 1:].ravel()} <= {98, 99}


def test_blanks_that_no_step_has_answered_have_the_law_of_the_training_set(writer):
    way, page = writer.asked(None, None, {})
    texts = writer.read('[[3]]', way, page, 1, 0)
    (scroll,) = writer.scrolls(texts, 0, 1, page)
    assert torch.equal(scroll.stand_in, torch.arange(257) + 1)


OF_PATTERNS = [
    ('[[4/a{3}|a{7}/]]', {}, 'no text of 4 tokens .*: 3 and 7'),
    ('[[4-6/a{3}/]]', {}, 'no text of 4 to 6 tokens .*: 3$'),
    ('[[/a{40}/]]', {}, 'no text of 1 to 32 tokens .*: 40'),
    ('[[/a+/]]', {}, 'no text follows'),
    ('[[3]]', {'pattern': 'a{4}'}, 'no text of 3 tokens .*: 4'),
    ('ab[[3]]', {'pattern': '[ac]+'}, 'row 0 contradicts'),
    ('ab[[2-3]]c', {'pattern': '[ac]+'}, 'row 0 contradicts'),
    ('[[3]]', {'pattern': r'[a&&b]'}, 'fits no text'),
    ('[[3]]', {'pattern': '('}, 'cannot be read'),
    ('a[[=b]]', {'pattern': 'aa', 'score': True}, 'row 0 contradicts'),
]
WRONG = [
    ('[[6]]', {'pattern': DATE}, 'no text of 6 tokens .*: 7'),
    ('18[[5]]', {'pattern': DATE}, 'row 0 contradicts'),
    ('[[3]]', {'pattern': r'(?=a)a+'}, 'look'),
    ('[[3]]', {'pattern': 3}, 'regular expression'),
    ('[[3]]', {'pattern': 'a+', 'unmask': 'lossless', 'order': 'l2r'}, 'lossless'),
    ('[[3/a+/]]', {'unmask': 'lossless', 'order': 'l2r'}, 'lossless'),
    ('[[..]]', {'pattern': 'a+', 'stop': 'b'}, 'leave out stop'),
    ('[[3/a+/]]', {'stop': 'b'}, 'leave out stop'),
    ('[[3/a+/]]', {'pattern': 'a+'}, 'leave out pattern'),
    (f'[[7/{DATE}/]]', {'score': True}, 'wants the text of every blank'),
    *(pytest.param(*wrong, marks=slow) for wrong in OF_PATTERNS),
]


@pytest.mark.parametrize('prompt, how, said', WRONG)
def test_wrong_input_is_one_line_before_the_first_pass(writer, monkeypatch, prompt, how, said):
    monkeypatch.setattr('anyorder.writer.Scroll', None)
    with one_line(said):
        writer.infill(prompt, **how)


def test_a_text_beside_a_pattern_is_scored_from_left_to_right_without_it(writer):
    with one_line('without a pattern'):
        writer.logprob(f'a[[=b]][[/{DATE}/]]')


def test_the_command_says_the_pattern_and_keeps_the_weights(writer, script, tmp_path):
    ckpt = writer.checkpoint.name
    options = ['--order=random', '--n_steps=3', '--out=o.json', '--weights=raw', f'--ckpt={ckpt}']
    how = [f'--pattern={DATE}', '--prompt=[[7]]', '--n_samples=4']
    said = script('sample.py', *options, *how).stdout
    result = json.loads((tmp_path / 'o.json').read_text())
    samples = result['samples']
    assert all(re.fullmatch(DATE, sample['text']) for sample in samples)
    assert all(sample['log_weight'] < 0 for sample in samples)
    assert f'pattern         {DATE}\n' in said


@pytest.mark.parametrize(
    'options, said',
    [
        (['--pattern=a+', '--order=l2r', '--unmask=lossless'], 'lossless'),
        (['--pattern=(?=a)a'], 'look'),
    ],
)
def test_wrong_options_are_one_line_before_the_checkpoint_is_opened(
    script, tmp_path, options, said
):
    (tmp_path / 'none.pt').write_text('no checkpoint')
    finished = script('sample.py', '--ckpt=none.pt', *options, code=1)
    assert re.search(said, finished.stderr) and finished.stderr.count('\n') == 1
