"""Rows of tables by hand."""

import math

import numpy as np
import pytest
import torch

from anyorder.likelihood.tables import (
    format_table,
    perplexity,
    ratio_error,
    share_error,
    summarize,
    table_row,
    unigram_row,
)
from anyorder.tokens.tokenizers import Bytes


def test_summary_by_hand():
    row = summarize('x', torch.tensor([2.0, 4.0], dtype=torch.float64), 4, 6)
    want = {'estimate': 'x', 'nats_per_token': 6 / 8, 'blocks': 2, 'tokens': 8, 'bytes': 6}
    assert want.items() <= row.items()
    assert math.isclose(row['stderr'], math.sqrt(2) / math.sqrt(2) / 4)  # std of (2, 4) is sqrt 2
    assert math.isclose(row['bits_per_byte'], 6 / 6 / math.log(2))
    assert math.isclose(row['perplexity'], math.exp(0.75))
    assert math.isclose(row['perplexity_stderr'], math.exp(0.75) / 4)
    alone = summarize('x', torch.tensor([2.0]), 4, 6)
    assert alone['stderr'] is None
    assert alone['perplexity_stderr'] is None


def test_tokens_weigh_the_same_in_blocks_of_any_length():
    nats = torch.tensor([2.0, 10.0, 6.0], dtype=torch.float64)
    row = summarize('x', nats, torch.tensor([1, 4, 3]), 9)
    mean = 18 / 8
    assert row['nats_per_token'] == mean
    assert row['tokens'] == 8
    rest = [2 - mean, 10 - 4 * mean, 6 - 3 * mean]
    error = math.sqrt(sum(r * r for r in rest) / 2 / 3) / (8 / 3)
    assert math.isclose(row['stderr'], error)


def test_totals_are_summed_in_float64():
    nats = torch.tensor([2.0**53, 2.0**24 + 1, 1.0], dtype=torch.float64)
    assert summarize('x', nats[1:], 1, 1)['nats_per_token'] == (2**24 + 2) / 2
    large = torch.tensor([2.0**24 + 1, 2.0**24], dtype=torch.float64)
    assert ratio_error(large, torch.ones(2)) == 0.5


def test_perplexity_of_a_model_that_diverged():
    assert perplexity(1000.0) == math.inf
    assert perplexity(0.0) == 1
    assert table_row('no text', 1.0, None, 1, 5, 0)['bits_per_byte'] == math.inf


def test_unigram_entropy_by_hand():
    tokens = np.array([97] * 6 + [98] * 2 + [256] * 2, dtype=np.uint16)
    row = unigram_row(tokens, Bytes(), 4)
    nats = -(0.6 * math.log(0.6) + 2 * 0.2 * math.log(0.2))
    assert math.isclose(row['nats_per_token'], nats)
    assert {'blocks': 2, 'tokens': 10, 'bytes': 8}.items() <= row.items()
    assert math.isclose(row['bits_per_byte'], nats * 10 / 8 / math.log(2))


def test_the_table_is_narrow_and_shows_errors():
    rows = [
        table_row('left to right', 2.00557, 0.0603, 40, 2560, 1774),
        table_row('unigram', 12.5, 0.0, 40, 9, 7),
        table_row('a puzzle', 1.0, None, 1, 5, None),
    ]
    head, first, second, third = format_table(rows).splitlines()
    assert head.split() == ['nats/token', 'perplexity', 'bits/byte', 'blocks', 'tokens']
    figures = ' '.join(first.split()[3:])
    assert figures == '2.0056 ± 0.0603 7.43 ± 0.45 4.1754 40 2560'
    assert second.split()[1:3] == ['12.5000', '268337']
    assert third.split()[2:] == ['1.0000', '2.72', '-', '1', '5']
    assert max(map(len, (head, first, second, third))) <= 80


def test_the_error_of_a_share():
    for hits in (0, 10):
        assert share_error(hits, 10) == pytest.approx(math.sqrt(2 / 14 * 12 / 14 / 14))
    assert share_error(50, 100) == pytest.approx(math.sqrt(0.25 / 104))
