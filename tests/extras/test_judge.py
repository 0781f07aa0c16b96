"""How good samples are: what is counted of a text, by hand, and what a judge reads."""

import math

import numpy as np
import pytest
import torch
from conftest import make_model, one_line

from anyorder.checkpoint import save_checkpoint
from anyorder.extras import judge
from anyorder.likelihood import tables
from anyorder.tokens.tokenizer import Bytes, Symbols

LOG = math.log(2)


class Pairs(Bytes):  # two bytes a token, and the last alone
    eos = 2**17
    n_bytes = 1 + (np.arange(2**17) >= 256)

    def encode(self, text):
        data = text.encode()
        pairs = [256 * a + 256 + b for a, b in zip(data[::2], data[1::2])]
        return [*pairs, *data[len(pairs) * 2 :]]


METRICS = [
    ('12121212 33333333', '11111111 11111111', [LOG / 2, 3 / 16, 3 / 14, 3 / 12, 7 / 10]),
    ('1234 1234', '1111 1111', [2 * LOG, 4 / 8, 3 / 6, 2 / 4, 0]),  # within a sample alone
    ('56785678 99', '00001111 00', [2 * LOG, 1, 1, 1, 1 / 4]),  # as in the prompt
]


@pytest.mark.parametrize('samples, counted, want', METRICS)
def test_metrics_by_hand(samples, counted, want):
    """What is given is no merit of a sample."""
    flags = [[flag == '1' for flag in row] for row in counted.split()]
    found = judge.text_metrics([*map(list, samples.split())], flags)
    assert [*found.values()] == pytest.approx(want)


# texts, which of their bytes count, and which tokens of Pairs; `|` is an end, which stays one
TRANSLATED = [
    ('abc||d', '001011', '01011'),
    ('abcdefgh', '01001100', '1010'),
    ('éa', '100', '10'),
    ('éa', '010', '10'),
    ('€a', '0001', '01'),
    ('€', '001', '11'),
]


@pytest.mark.parametrize('text, flags, want', TRANSLATED)
def test_a_letter_that_was_written_in_part_counts_for_a_judge_with_other_tokens(text, flags, want):
    tokens = [256 if byte == ord('|') else byte for byte in text.encode()]
    found, counted = judge.translate(tokens, [flag == '1' for flag in flags], Bytes(), Pairs())
    assert found.count(Pairs.eos) == text.count('|')
    assert ''.join('01'[flag] for flag in counted) == want


def test_a_judge_weighs_tokens_alike_and_cuts_at_its_context():
    """What is given costs nothing, but where a piece begins with what was written."""
    model = make_model()  # reads 9 tokens
    samples = [[*range(11), 1], [4, 4, 4]]
    counted = [[False] + [True] * (len(row) - 1) for row in samples]
    nats = []
    for row, first in ((samples[0][:9], 1), (samples[0][9:], 0), (samples[1], 1)):
        nll = model(torch.tensor([row]), torch.arange(len(row))[None])
        nats.append(nll[0, first:].sum())
    found = judge.generative_perplexity(model, samples, counted)
    of_rows = torch.stack([nats[0] + nats[1], nats[2]])
    row = tables.summarize('', of_rows, torch.tensor([11, 2]), 0)
    assert found == pytest.approx({name: row[name] for name in found})


def test_a_judge_reads_left_to_right_and_text_or_the_same_tokens():
    own = Symbols('own', 'ab')
    model = make_model(vocab_size=2)
    named = {'tokenizer': 'own', 'vocabulary': [*'ab'], 'n_tokens': 2, 'eos': None}
    for path, l2r_ratio in (('r2l.pt', 0.0), ('both.pt', 0.1)):
        run = {'order': 'r2l', 'l2r_ratio': l2r_ratio}
        save_checkpoint(path, model, set=named, config=run)
    for path, tokenizer, word in (
        ('r2l.pt', own, 'another order'),
        ('both.pt', Symbols('own', 'ba'), 'other tokens'),
    ):
        with one_line(word):
            judge.open_judge(path, tokenizer)
    assert judge.open_judge('both.pt', own).tokenizer.texts[1] == 'b'
