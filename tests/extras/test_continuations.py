"""Continuations: nats and greedy decoding of rows of all lengths, against one token at a time."""

import math
from dataclasses import replace
from itertools import zip_longest
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make_model

from anyorder.extras.lm_eval import last_word
from anyorder.extras.lm_eval.continuations import pieces
from anyorder.extras.lm_eval.last_word import LastWord, last_words
from anyorder.extras.lm_eval.reading import LEFT_TO_RIGHT, Reading, continuation_scores
from anyorder.likelihood.nll import block_nll, is_drawn, nll_of_blanks, one_by_one
from anyorder.orders import Order
from anyorder.tokens.tokenizers import Bytes
from model import Slots

ROWS = [
    ([3, 1], [4, 1, 5]),
    ([], [9, 2, 6, 5, 3]),
    ([5, 8, 9, 7, 9, 3], [2]),
    ([2, 3, 8, 4, 6, 2, 6], [4, 3]),
    ([], [3]),
    ([8, 3, 2], [7, 9, 5, 0, 2, 8]),
]


class Network:
    """A decoder that always says `logits` (300,) and remembers the texts that it was asked of."""

    device = torch.device('cpu')
    slots = Slots
    config = SimpleNamespace(block_size=9, vocab_size=300)

    def __init__(self, logits):
        self.logits = logits
        self.asked = []

    def predict(self, idx, order, n_known, n_targets, picked, first):
        self.asked.append(idx.tolist())
        return self.logits.expand(len(picked[0]), 300)


def scores(model, rows, reading=LEFT_TO_RIGHT, batch_size=16, length=None):
    """[(nats, greedy)] of all rows."""
    found = sorted(continuation_scores(model, rows, reading, batch_size, length))
    assert [r for r, _, _ in found] == list(range(len(rows)))
    return [(nats, greedy) for _, nats, greedy in found]


def nats_of(*args, **how):
    return [nats for nats, _ in scores(*args, **how)]


def greedy_of(*args, **how):
    return [greedy for _, greedy in scores(*args, **how)]


def near(pairs):
    return [(pytest.approx(nats, abs=1e-9), greedy) for nats, greedy in pairs]


def logits_of(model, text, order, d):
    """Logits (V,) of visit d of the order, given those before it and nothing else."""
    if not model.slots.masked_loss:
        order = order[: d + 1]
    return model.predict(torch.tensor([text]), order[None], d, 1)[0, 0]


def slowly(model, context, tokens, order=None):
    """(nats, whether all are the likeliest) of a row, one token after the other."""
    text = [*context, *tokens]
    nats = 0.0
    greedy = True
    order = torch.arange(len(text)) if order is None else order
    for d in range(len(context), len(text)):
        logp = logits_of(model, text, order, d).log_softmax(-1)
        token = text[order[d]]
        nats = nats - float(logp[token])
        greedy = greedy and int(logp.argmax()) == token
    return nats, greedy


def greedily(model, context, n):
    text = list(context)
    for d in range(len(context), len(context) + n):
        logits = logits_of(model, [*text, 0], torch.arange(d + 1), d)
        text.append(int(logits.argmax()))
    return text[len(context) :]


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_rows_of_all_lengths_are_what_each_is_alone(attention):
    model = make_model(attention=attention)
    rows = list(ROWS)
    if attention == 'causal':  # rows that are greedy too
        rows += [(context, greedily(model, context, len(tokens))) for context, tokens in ROWS]
    want = near(slowly(model, *row) for row in rows)
    assert {greedy for _, greedy in want} == {False, attention == 'causal'}
    for batch_size in (1, 3, 20):
        assert scores(model, rows, batch_size=batch_size) == want


def test_nothing_has_no_nats():
    model = make_model()
    assert scores(model, [([], []), ([3, 1], []), *ROWS])[:2] == [(0.0, True), (0.0, True)]
    assert scores(model, []) == []


def test_a_continuation_is_cut_into_pieces_with_what_fits_before_them():
    assert pieces([1, 2, 3], [4, 5], 4) == [([2, 3], [4, 5])]
    assert pieces([1, 2, 3], [4, 5, 6, 7], 4) == [([], [4, 5, 6, 7])]
    assert pieces([1, 2], [3, 4, 5, 6, 7, 8], 4) == [([], [3, 4, 5, 6]), ([5, 6], [7, 8])]
    assert pieces([1], [], 4) == []


def test_contexts_are_cut_from_the_left_and_what_is_longer_than_the_model_is_scored_in_pieces():
    model = make_model()
    text = [int(t) for t in torch.randint(11, (24,))]
    blocks = torch.tensor(text[:18]).view(2, 9)
    want = float(block_nll(model, blocks, torch.arange(9).expand(2, 9), 2).sum())
    rows = [([], text[:18]), (text[:18], text[18:]), ([], text), (text[5:9], text[9:18])]
    two_blocks, cut, whole, part = nats_of(model, rows, batch_size=2)
    assert math.isclose(two_blocks, want)
    assert math.isclose(whole, want + cut)
    assert math.isclose(cut, slowly(model, text[15:18], text[18:])[0])
    assert math.isclose(part, slowly(model, [], text[9:18])[0])
    shorter = scores(model, [(text[:7], text[7:9])], length=4)
    assert shorter == scores(model, [(text[5:7], text[7:9])])


@pytest.mark.parametrize('order', ['random', 'block:2', 'r2l', 'fixed'])
@pytest.mark.parametrize('attention', ['causal', 'mixed'])
def test_orders_visit_the_context_first(order, attention):
    model = make_model(attention=attention)
    n = 1 if order == 'r2l' else 5
    mean = Reading(Order.of(order, {}), 5)
    means = []
    for context, tokens in ROWS:
        orders = mean.orders(context, tokens)
        assert orders.shape == (n, len(context) + len(tokens))
        assert (orders[:, : len(context)].sort(1).values == torch.arange(len(context))).all()
        nats, greedy = zip(*(slowly(model, context, tokens, order) for order in orders))
        means.append((sum(nats) / n, greedy[0]))
    if not is_drawn(model.slots, mean.order):
        assert scores(model, ROWS, mean, 4) == near(means)


def test_orders_are_a_function_of_the_seed_and_the_row():
    reading = Reading(Order('random'), 3)
    model = make_model()
    alone = [scores(make_model(), [row], reading)[0] for row in ROWS]
    assert scores(model, ROWS[::-1], reading)[::-1] == near(alone)
    other_seed = replace(reading, seed=1)
    assert not torch.equal(reading.orders(*ROWS[5]), other_seed.orders(*ROWS[5]))
    first, second, third = reading.orders(*ROWS[5]).tolist()
    assert first != second != third != first
    assert not torch.equal(reading.orders([5] * 6, [1]), reading.orders([5] * 6, [2]))


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_a_masked_loss_is_drawn_for_the_bound(attention):
    """Each draw is what forward gives for its number of known visits; many are near the bound."""
    model = make_model(attention=attention)
    reading = Reading(Order('random'), 3)
    want = []
    for context, tokens in ROWS:
        text = torch.tensor([context + tokens]).expand(3, -1)
        given = torch.full((3,), len(context))
        nll = model(text, reading.orders(context, tokens), reading.known(context, tokens))
        draws = nll_of_blanks(nll, given, True).sum(1)
        want.append(pytest.approx(float(draws.mean()), abs=1e-9))
    assert nats_of(model, ROWS, reading, 4) == want
    context, tokens = ROWS[5]
    many = Reading(Order('random'), 600)
    text = torch.tensor([context + tokens]).expand(600, -1)
    exact = one_by_one(model, text, many.orders(context, tokens), len(context)).sum(1).mean()
    (nats,) = nats_of(model, [(context, tokens)], many, 600)
    assert abs(nats - exact) < 0.05 * exact


def test_numbers_of_known_visits_are_stratified_and_a_rows_own():
    reading = Reading(Order('random'), 4)
    assert reading.known([0] * 5, [1] * 4).tolist() == [5, 6, 7, 8]  # one in each quarter
    rows = [reading.known([0], [token] * 90).tolist() for token in range(3)]
    assert len(set(map(tuple, rows))) == 3


@pytest.mark.parametrize(
    'wrong, attention, said',
    [
        (dict(n_orders=2), 'causal', 'orders that are drawn'),
        (dict(order=Order.of(list(range(10)), {})), 'causal', 'at most the 9 positions'),
    ],
)
def test_what_a_network_cannot_be_read_by_is_said(wrong, attention, said):
    config = make_model(attention=attention).config
    how = dict(order=Order('l2r')) | wrong
    with pytest.raises(ValueError, match=said):
        Reading(**how).check(config)


# --------------------------------------------------------------------------------------------------
# last words


def test_last_words_by_greedy_decoding():
    tok = Bytes()
    texts = ['a bc', 'bc a', 'abcabcab cc', 'x', 'aa b', ' y']
    tokens = np.array([t for text in texts for t in (*text.encode(), tok.eos)])
    rows = last_words(tokens, tok)
    found = [tok.decode(context) + '|' + tok.decode(word) for context, word in rows]
    assert found == ['a| bc', 'bc| a', 'abcabcab| cc', 'aa| b']

    model = make_model(block_size=9, vocab_size=257)
    every = []
    for context, word in rows:
        right = greedily(model, context[-9 + len(word) :], len(word))
        assert right != word
        wrong_last = [*right[:-1], (right[-1] + 1) % 257]
        wrong_first = [(right[0] + 1) % 257, *right[1:]]
        every += [(context, right), (context, wrong_last), (context, wrong_first)]
    for batch_size in (1, 3, 20):
        assert greedy_of(model, every, batch_size=batch_size) == 4 * [True, False, False]


class Pairs(Bytes):
    """Two letters are a token; letters alone are, at the end."""

    def encode(self, text):
        pairs = zip_longest(text[::2], text[1::2], fillvalue=chr(0))
        return [1000 * ord(a) + ord(b) for a, b in pairs]

    def spans(self, text):
        return [(token, 0, len(text)) for token in self.encode(text)]

    def decode(self, ids):
        return ''.join(chr(i // 1000) + chr(i % 1000) for i in ids).replace(chr(0), '')


def test_a_last_word_is_all_behind_the_last_blank_and_has_tokens_of_its_own():
    tok = Bytes()
    tokens = np.array([*b'one two three', tok.eos, *b'a  b', tok.eos])
    rows = [(tok.decode(a), tok.decode(b)) for a, b in last_words(tokens, tok)]
    assert rows == [('one two', ' three'), ('a ', ' b')]
    pairs = Pairs()
    texts = ['abcd efg', 'abc efg', 'ab c']  # 'c ' of 'abc efg' is one token
    tokens = np.array([t for text in texts for t in (*pairs.encode(text), pairs.eos)])
    rows = [(pairs.decode(a), pairs.decode(b)) for a, b in last_words(tokens, pairs)]
    assert rows == [('abcd', ' efg'), ('ab', ' c')]


def test_last_words_are_counted_over_all_processes(monkeypatch):
    tokens = np.array([t for word in 'abcdefg' for t in (*f'x {word}'.encode(), 256)])
    text = SimpleNamespace(tokens=tokens, blocks=torch.zeros(2, 9))
    it = LastWord(SimpleNamespace(batch_size=3), SimpleNamespace(tokenizer=Bytes()))
    seen = []

    def words(model, rows, batch_size, length):
        seen.append(rows)
        assert length == 9  # a word sees what fits into a block
        for r, (_, word) in enumerate(rows):
            yield r, float(word[1] - 96), word[1] < 100

    monkeypatch.setattr(last_word, 'continuation_scores', words)
    every = it.measure(None, text, None)
    assert every == [[n, n < 4] for n in range(1, 8)]  # a, b, c
    for rank in (0, 1):
        monkeypatch.setattr(last_word, 'processes', lambda rank=rank: (rank, 2))
        monkeypatch.setattr(last_word, 'gather', lambda scores: [scores, [(9.0, True)]])
        assert it.measure(None, text, None) == [*every[rank::2], (9.0, True)]
    assert sorted(seen[1] + seen[2]) == sorted(seen[0])
    (row,) = it.rows(every, text)
    assert row['accuracy'] == 3 / 7
    assert row['rows'] == 7
    assert 0.1 < row['stderr'] < 0.2
    assert math.isclose(row['word_perplexity'], math.exp(4))
    assert math.isclose(row['word_perplexity_stderr'], math.exp(4) * (28 / 6 / 7) ** 0.5)
    assert it.remarks([row], text) == [
        'last word, greedy: 42.86% ± 15.01% of 7 passages',
        'last word, perplexity: 54.60 ± 44.58',
    ]


def test_a_word_as_long_as_a_block_is_asked_for_without_context():
    network = Network(torch.eye(300)[1])
    rows = [([7, 7], [1] * 9), ([7, 7], [1] * 8 + [2]), (list(range(100, 112)), [5, 6])]
    assert greedy_of(network, rows, batch_size=1) == [True, False, False]
    assert network.asked == [[[1] * 9], [[1] * 8 + [2]], [[*range(105, 112), 5, 6]]]


def test_what_is_longer_than_the_model_is_greedy_if_each_of_its_pieces_is():
    rows = [([], [1] * 12), ([], [1] * 11 + [2]), ([], [2] + [1] * 11)]
    network = Network(torch.eye(300)[1])
    for batch_size in (1, 6):
        assert greedy_of(network, rows, batch_size=batch_size) == [True, False, False]


def test_a_model_that_overflowed_has_no_scores():
    with pytest.raises(ValueError, match='not finite'):
        scores(Network(torch.full((300,), torch.nan)), [([1, 2], [5, 6])])
