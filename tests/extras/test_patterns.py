"""anyorder/extras/patterns/: which tokens may follow which, so that a text matches a pattern."""

import re

import numpy as np
import pytest

import anyorder

pytest.importorskip('outlines_core')

from anyorder.tokens.tokenizers import get_tokenizer


@pytest.mark.parametrize('expression', ['a|ab', r'(|a)\d{1,2}?', '(?:b*?|[^b])a', '^a?$'])
def test_a_table_of_bytes_accepts_what_matches(expression):
    tokenizer = get_tokenizer('bytes')
    pattern = anyorder.Pattern(expression)
    for text in ('', 'a', 'b', 'ab', 'ba', '1', '12', 'a12', 'a1', 'bba', 'éa', '\na', '٣'):
        assert pattern.matches(text, tokenizer) == bool(re.fullmatch(expression, text)), text


def test_lengths_are_the_numbers_of_tokens_that_match():
    found = anyorder.Pattern('ab{2}|c{4,5}').lengths(get_tokenizer('bytes'), 6)
    assert np.flatnonzero(found).tolist() == [3, 4, 5]
