"""Measures of samples by hand, and judges that weight every token equally."""

import itertools
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from conftest import make_model

from anyorder.checkpoint import save_checkpoint
from anyorder.likelihood.judge import (
    Judge,
    generative_perplexity,
    measure,
    open_judge,
    text_metrics,
    translate,
)
from anyorder.orders import sample_order
from anyorder.tokens.tokenizers import Bytes, tokenizer_of_set


class Pairs(Bytes):  # two bytes a token, and the last alone
    name = 'pairs'
    eos = 2**17
    n_bytes = np.array([1] * 256 + [2] * (2**17 - 256))

    def encode(self, text):
        pairs = itertools.zip_longest(text.encode()[::2], text.encode()[1::2])
        return [a if b is None else 256 * a + 256 + b for a, b in pairs]


def all_of(samples):
    return [[True] * len(tokens) for tokens in samples]


def test_metrics_by_hand():
    samples = [[1, 2, 1, 2, 1, 2, 1, 2], [3, 3, 3, 3, 3, 3, 3, 3]]
    m = text_metrics(samples, all_of(samples))
    assert math.isclose(m['entropy'], math.log(2) / 2)
    assert [m[f'distinct_{n}'] for n in (1, 2, 3)] == [3 / 16, 3 / 14, 3 / 12]
    assert m['repetition'] == 1 - 3 / 10  # 4-grams: two different of five, one of five
    assert text_metrics([list(range(50))], [[True] * 50])['repetition'] == 0
    given = text_metrics([[1, 2, 3, 4, 1, 2, 3, 4, 9]], [[False] * 8 + [True]])
    assert given['repetition'] == 0
    assert given['distinct_2'] == 1
    alike = [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert text_metrics(alike, all_of(alike))['repetition'] == 0  # within a sample, not among them
    short = text_metrics([[1], [1]], [[True], [True]])
    distinct = {'distinct_1': 0.5, 'distinct_2': 1, 'distinct_3': 1}
    assert short == {'entropy': 0, **distinct, 'repetition': 0}


def test_what_is_given_is_no_merit_of_a_sample():
    samples = [[5, 6, 7, 8, 5, 6, 7, 8], [9, 9]]
    counted = [[False] * 4 + [True] * 4, [False] * 2]
    m = text_metrics(samples, counted)
    assert math.isclose(m['entropy'], math.log(4))
    assert m['distinct_1'] == 1
    assert m['distinct_2'] == 1
    assert m['repetition'] == 1 / 4  # 5 6 7 8 stood in the prompt
    judge = make_model()
    nll = judge(torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8]]), sample_order(1, 8, 'l2r'))[0]
    result = generative_perplexity(judge, samples, counted)
    assert math.isclose(result['perplexity'], math.exp(float(nll[4:].mean())), rel_tol=1e-12)


def test_a_judge_with_other_tokens_reads_the_end_of_a_text_as_one():
    tokens = [*b'abc', 256, 256, *b'd']
    assert translate(tokens, [False, False, True, False, True, True], Bytes(), Pairs()) == (
        (*Pairs().encode('abc'), Pairs.eos, Pairs.eos, *b'd'),
        (False, True, False, True, True),
    )


def test_a_word_that_was_written_in_part_is_read_whole():
    flags = [False, True, False, False, True, True, False, False]
    tokens, counted = translate(list('abcdefg\u00e9'.encode())[:8], flags, Bytes(), Pairs())
    assert tokens == tuple(Pairs().encode('abcdefg\ufffd'))
    assert counted == (True, False, True, False, False)


def counted_in_pairs(data, flags):
    """Which tokens of Pairs count where these bytes do."""
    _, counted = translate(list(data), flags, Bytes(), Pairs())
    return counted


def test_a_letter_that_was_written_in_part_is_read_whole():
    for flags in ([True, False, False], [False, True, False]):
        assert counted_in_pairs('\u00e9a'.encode(), flags) == (True, False)
    # of three bytes two are a token and one is one
    for flags in ([True, False, False], [False, True, False], [False, False, True]):
        assert any(counted_in_pairs('\u20ac'.encode(), flags))
    assert counted_in_pairs('\u20aca'.encode(), [False, False, False, True]) == (False, True)


def test_judge_weights_tokens_and_cuts_at_its_context():
    judge = make_model()  # reads 9 tokens
    samples = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1], [4, 4, 4], [7, 1, 9, 2, 2]]

    def nll(tokens):
        return float(judge(torch.tensor([tokens]), sample_order(1, len(tokens), 'l2r')).sum())

    nats = [nll(samples[0][:9]) + nll(samples[0][9:]), nll(samples[1]), nll(samples[2])]
    result = generative_perplexity(judge, samples, all_of(samples))
    mean = sum(nats) / 20
    assert math.isclose(result['perplexity'], math.exp(mean))
    rest = [x - mean * len(sample) for x, sample in zip(nats, samples)]
    error = math.sqrt(sum(x * x for x in rest) / 2 / 3) / (20 / 3)
    assert math.isclose(result['stderr'], error)
    assert math.isclose(result['perplexity_stderr'], math.exp(mean) * error)
    assert generative_perplexity(judge, samples[:1], all_of(samples[:1]))['stderr'] is None
    second = generative_perplexity(judge, samples[:1], [[False] * 10 + [True] * 2])
    want = judge(torch.tensor([samples[0][9:]]), sample_order(1, 3, 'l2r'))[0, 1:].mean()
    assert math.isclose(second['nats_per_token'], want)  # the second piece alone


def test_a_judge_reads_left_to_right(tmp_path):
    judge = make_model(block_size=4, vocab_size=320, n_tokens=257).float()
    for config, fits in (
        ({'order': 'fixed'}, False),
        ({'order': 'fixed', 'l2r_ratio': 0.1}, True),
        ({'order': 'l2r'}, True),
        ({}, True),
    ):
        save_checkpoint(tmp_path / 'judge.pt', judge, tokenizer='bytes', config=config)
        with nullcontext() if fits else pytest.raises(ValueError, match='trained in another order'):
            open_judge(str(tmp_path / 'judge.pt'), Bytes())
    samples = [{'tokens': [1, 2, 3, 4, 5], 'step': [0] * 5}]
    judge = Judge('judge.pt', judge, Bytes())
    _, lines = measure(samples, Bytes(), judge)
    assert 'left to right, in pieces of 4 tokens, under judge.pt' in lines['judge']
    _, lines = measure([{'tokens': [1, 2, 3, 4], 'step': [0] * 4}], Bytes(), judge)
    assert 'pieces' not in lines['judge']


def test_tokens_of_another_set_are_not_judged(tmp_path):
    path = str(tmp_path / 'judge.pt')
    kind = {'tokenizer': 'own', 'n_tokens': 3, 'vocabulary': ['a', 'b', 'c'], 'eos': None}
    model = make_model(block_size=4, vocab_size=12, n_tokens=3).float()
    save_checkpoint(path, model, set=kind)
    judge = open_judge(path, tokenizer_of_set(kind))
    assert judge.tokenizer.texts == ('a', 'b', 'c')
    said = 'reads other tokens than the samples have, and no text: choose another'
    for other in (tokenizer_of_set(kind | {'vocabulary': ['a', 'b', 'd']}), Bytes()):
        with pytest.raises(ValueError, match=said):
            open_judge(path, other)


def test_the_error_is_over_prompts():
    judge = make_model()
    samples = [[1, 2, 3], [1, 2, 3], [6, 7, 8], [6, 7, 8]]
    one = generative_perplexity(judge, samples[::2], all_of(samples[::2]))
    result = generative_perplexity(judge, samples, all_of(samples), n_each=2)
    assert result == pytest.approx(one | {'tokens': 12}, rel=1e-9)
    assert generative_perplexity(judge, samples, all_of(samples))['stderr'] < result['stderr']


def test_a_judge_that_overflowed_is_one_line():
    judge = make_model()
    judge.lm_head.weight.fill_(1e308)
    with pytest.raises(ValueError, match='not finite'):
        generative_perplexity(judge, [[1, 2]], [[True, True]])
