"""Continuations: nats and greedy decoding of rows of all lengths against one token after the other."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make_model

from anyorder.generation.options import unmasking_of
from anyorder.generation.unmasking import SCORES, Adaptive
from anyorder.likelihood.continuations import (
    LEFT_TO_RIGHT,
    Reading,
    continuation_scores,
    last_words,
    pieces,
)
from anyorder.likelihood.nll import block_nll, ensemble_nll, nll_of_blanks, one_by_one
from anyorder.orders import Order
from anyorder.seeds import derive_seed
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
    """A decoder that always says `logits` (300,) and remembers the texts that it was asked about."""

    device, slots = torch.device('cpu'), Slots
    config = SimpleNamespace(block_size=9, vocab_size=300)

    def __init__(self, logits):
        self.logits, self.asked = logits, []

    def predict(self, idx, order, n_known, n_targets, picked, first):
        self.asked.append(idx.tolist())
        return self.logits.expand(len(picked[0]), 300)


def scores(model, rows, reading=LEFT_TO_RIGHT, batch_size=16, length=None):
    found = sorted(continuation_scores(model, rows, reading, batch_size, length))
    assert [r for r, *_ in found] == list(range(len(rows)))
    return [tuple(rest) for _, *rest in found]


def near(pairs):
    return [(pytest.approx(nats, abs=1e-9), greedy) for nats, greedy in pairs]


def logits_of(model, text, order, d):
    """Of visit d of the order, given those before it and nothing else."""
    if model.slots.masked_loss:
        return model.predict(torch.tensor([text]), order[None], d, 1)[0, 0]
    return model.predict(torch.tensor([text]), order[None, : d + 1], d, 1)[0, 0]


def slowly(model, context, tokens, order=None):
    """(nats, whether all are the likeliest) of a row, one token after the other."""
    text, nats, greedy = [*context, *tokens], 0.0, True
    order = torch.arange(len(text)) if order is None else order
    for d in range(len(context), len(text)):
        logp, token = logits_of(model, text, order, d).log_softmax(-1), text[order[d]]
        nats, greedy = nats - float(logp[token]), greedy and int(logp.argmax()) == token
    return nats, greedy


def greedily(model, context, n):
    text = list(context)
    for _ in range(n):
        text.append(
            int(logits_of(model, [*text, 0], torch.arange(len(text) + 1), len(text)).argmax())
        )
    return text[len(context) :]


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_rows_of_all_lengths_are_what_each_is_alone(attention):
    model = make_model(attention=attention)
    rows = (
        [*ROWS, *((context, greedily(model, context, len(tokens))) for context, tokens in ROWS)]
        if (attention == 'causal')
        else ROWS
    )
    want = near(slowly(model, *row) for row in rows)
    assert {greedy for _, greedy in want} == ({True, False} if attention == 'causal' else {False})
    for batch_size in (1, 3, 20):
        assert scores(model, rows, batch_size=batch_size) == want


def test_nothing_has_no_nats():
    model = make_model()
    assert scores(model, [([], []), ([3, 1], []), *ROWS])[:2] == [(0.0, True), (0.0, True)]
    assert scores(model, []) == []


def test_contexts_are_cut_from_the_left_and_what_is_longer_than_the_model_is_scored_in_pieces():
    assert pieces([1, 2, 3], [4, 5], 4) == [([2, 3], [4, 5])]
    assert pieces([1, 2, 3], [4, 5, 6, 7], 4) == [([], [4, 5, 6, 7])]
    assert pieces([1, 2], [3, 4, 5, 6, 7, 8], 4) == [([], [3, 4, 5, 6]), ([5, 6], [7, 8])]
    assert pieces([1], [], 4) == []
    model, text = make_model(), [int(t) for t in torch.randint(11, (24,))]
    blocks = torch.tensor(text[:18]).view(2, 9)
    want = float(block_nll(model, blocks, torch.arange(9).expand(2, 9), 2).sum())
    whole, cut, rest, part = (
        nats
        for nats, _ in scores(
            model,
            [([], text[:18]), (text[:18], text[18:]), ([], text), (text[5:9], text[9:18])],
            batch_size=2,
        )
    )
    assert math.isclose(whole, want) and math.isclose(rest, want + cut)
    assert math.isclose(cut, slowly(model, text[15:18], text[18:])[0])
    assert math.isclose(part, slowly(model, [], text[9:18])[0])
    assert scores(model, [(text[:7], text[7:9])], length=4) == scores(
        model, [(text[5:7], text[7:9])]
    )


@pytest.mark.parametrize('order', ['random', 'block:2', 'r2l', 'fixed'])
@pytest.mark.parametrize('attention', ['causal', 'mixed'])
def test_orders_visit_the_context_first(order, attention):
    model, n = make_model(attention=attention), 1 if order == 'r2l' else 5
    mean, mixture = (
        Reading(Order.of(order, {}), 5, estimate=estimate) for estimate in ('bound', 'mixture')
    )
    exact = mixture if mixture.is_drawn(model.slots) or mean.is_drawn(model.slots) else mean
    every = []
    for context, tokens in ROWS:
        orders = exact.orders(context, tokens)
        assert orders.shape == (n, len(context) + len(tokens))
        assert (orders[:, : len(context)].sort(1).values == torch.arange(len(context))).all()
        every.append([slowly(model, context, tokens, order) for order in orders])
    p = [sum(math.exp(-nats) for nats, _ in found) / n for found in every]
    assert scores(model, ROWS, mixture, 4) == near(
        (-math.log(p), found[0][1]) for p, found in zip(p, every)
    )
    if exact is mean:
        assert scores(model, ROWS, mean, 4) == near(
            (sum(nats for nats, _ in found) / n, found[0][1]) for found in every
        )


def test_orders_are_a_function_of_the_seed_and_the_row():
    reading = Reading(Order('random'), 3)
    model, alone = make_model(), [scores(make_model(), [row], reading)[0] for row in ROWS]
    assert scores(model, ROWS[::-1], reading)[::-1] == near(alone)
    assert not torch.equal(
        reading.orders(*ROWS[5]), Reading(reading.order, 3, seed=1).orders(*ROWS[5])
    )
    first, second, third = reading.orders(*ROWS[5]).tolist()
    assert first != second != third != first
    for other in (reading, Reading(Order('l2r'), n_contexts=9)):
        assert not torch.equal(other.orders([5] * 6, [1]), other.orders([5] * 6, [2]))


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_a_masked_loss_is_drawn_for_the_bound(attention):
    """Each draw is what forward gives for its number of known visits; together they are near the exact bound."""
    model, reading = make_model(attention=attention), Reading(Order('random'), 3)
    want = []
    for context, tokens in ROWS:
        text, given = torch.tensor([context + tokens]), torch.tensor([len(context)])
        draws = [
            float(nll_of_blanks(model(text, order[None], known[None]), given, True).sum())
            for order, known in zip(reading.orders(context, tokens), reading.known(context, tokens))
        ]
        want.append(pytest.approx(sum(draws) / 3, abs=1e-9))
    assert [nats for nats, _ in scores(model, ROWS, reading, 4)] == want
    assert Reading(reading.order, 4).known([0] * 5, [1] * 4).tolist() == [
        5,
        6,
        7,
        8,
    ]  # one in each quarter
    assert len({str(reading.known([0], [token] * 90).tolist()) for token in range(3)}) == 3
    row = ROWS[5]
    many = Reading(Order('random'), 600)
    orders = many.orders(*row)
    exact = (
        one_by_one(model, torch.tensor([row[0] + row[1]]).expand(600, -1), orders, len(row[0]))
        .sum(1)
        .mean()
    )
    assert abs(scores(model, [row], many, 600)[0][0] - exact) < 0.05 * exact


def test_contexts_are_mixed_token_by_token():
    model, reading = make_model(), Reading(Order('l2r'), n_contexts=4)
    for context, tokens in [([8, 3, 2, 6], [7, 9, 5]), ([1], [2, 3]), ([], [4])]:
        orders, text, want = reading.orders(context, tokens), context + tokens, 0.0
        n = len(context)
        assert (
            orders[0].tolist() == list(range(len(text))) and (orders[:, n:] == orders[0, n:]).all()
        )
        likeliest = []
        for d in range(n, len(text)):
            logp = torch.stack(
                [logits_of(model, text, order, d).log_softmax(-1) for order in orders]
            )  # (M, V)
            want += float(ensemble_nll(logp[:, text[d]]))
            likeliest.append(int(logp.exp().mean(0).argmax()))
        assert scores(model, [(context, tokens)], reading, 3) == near([(want, likeliest == tokens)])
    assert len({tuple(order.tolist()) for order in reading.orders([8, 3, 2, 6], [7])}) > 2


def test_greedy_follows_the_mixture_of_contexts():
    """The context as it is says 2, a shuffle of it says 3, and each says 4 a little less surely."""

    class Swayed(Network):
        def predict(self, idx, order, n_known, n_targets, picked, first):
            own = (order[:, :3] == torch.arange(3)).all(1, keepdim=True)
            p = torch.full((2, 300), 0.1 / 298)
            p[:, 4], p[0, 2], p[1, 3] = 0.4, 0.5, 0.5
            return torch.where(own, *p.log())[picked[0]]

    rows, reading = (
        [([7, 8, 9], [token]) for token in (2, 3, 4)],
        Reading(Order('l2r'), n_contexts=4),
    )
    assert [greedy for _, greedy in scores(Swayed(None), rows)] == [True, False, False]
    found = scores(Swayed(None), rows, reading)
    assert [greedy for _, greedy in found] == [False, False, True]
    own = [
        float((reading.orders(*row)[:, :3] == torch.arange(3)).all(1).double().mean())
        for row in rows
    ]
    rest = 0.1 / 298
    want = own[0] * 0.5 + (1 - own[0]) * rest, own[1] * rest + (1 - own[1]) * 0.5, 0.4
    assert [nats for nats, _ in found] == pytest.approx([-math.log(p) for p in want]) and max(
        own
    ) < 0.8


@pytest.mark.parametrize(
    'wrong, attention, said',
    [
        (dict(n_orders=0), 'causal', 'at least 1'),
        (dict(estimate='mean'), 'causal', "'bound' or 'mixture'"),
        (dict(n_contexts=2, order=Order('random')), 'causal', 'n_contexts above 1'),
        (dict(n_contexts=2), 'mixed', 'n_contexts above 1'),
        (dict(n_orders=2), 'causal', 'orders that are drawn'),
        (dict(estimate='mixture'), 'causal', 'orders that are drawn'),
        (
            dict(n_orders=2, n_contexts=2),
            'causal',
            'with n_contexts=1; got order=l2r, n_contexts=2',
        ),
        (dict(order=Order.of(list(range(10)), {})), 'causal', 'at most the 9 positions'),
        *(
            (dict(unmasking=Adaptive('margin')) | one, 'causal', 'order=margin is one order')
            for one in (dict(n_orders=2), dict(n_contexts=2), dict(estimate='mixture'))
        ),
    ],
)
def test_what_a_network_cannot_be_read_by_is_said(wrong, attention, said):
    with pytest.raises(ValueError, match=said):
        Reading(**dict(order=Order('l2r')) | wrong).check(make_model(attention=attention).config)


def as_written(model, context, tokens, unmasking):
    """(text, -log p, whether writing at temperature 0 writes it), slowly: in a step the network is asked for one blank
    after the other. A token that is None is written at temperature 0."""
    text, nats, greedy = [*context, *tokens], 0.0, True
    order, blanks, length = (
        [*range(len(context))],
        [*range(len(context), len(text))],
        unmasking.block_length,
    )
    for end in unmasking.ends([len(tokens)], [derive_seed(1337, context, tokens)])[0].tolist():
        n_done, now = len(tokens) - len(blanks), [token or 0 for token in text]
        block = blanks[: length and length - n_done % length]
        logp = {
            p: logits_of(
                model, now, torch.tensor([*order, p, *(q for q in blanks if q != p)]), len(order)
            ).log_softmax(-1)
            for p in block
        }
        score = {p: float(SCORES[unmasking.score](logp[p][None])) for p in block}
        for p in sorted(block, key=score.get, reverse=True)[: end - n_done]:
            likeliest = int(logp[p].argmax())
            text[p] = likeliest if text[p] is None else text[p]
            nats, greedy = nats - float(logp[p][text[p]]), greedy and text[p] == likeliest
            blanks.remove(p)
            order.append(p)
    return text, nats, greedy


@pytest.mark.parametrize(
    'attention, how',
    [
        ('causal', {'n_steps': 9}),
        ('causal', {'n_steps': 2}),
        ('causal', {'n_steps': 3, 'unmask': 'binomial'}),
        *(
            (attention, {'n_steps': 4, 'block_length': 2})
            for attention in ('causal', 'bidirectional', 'mixed')
        ),
    ],
)
def test_a_policy_reads_as_it_writes(attention, how):
    model, unmasking = make_model(attention=attention), unmasking_of(policy='margin', **how)
    greedy = [
        (context, as_written(model, context, [None] * len(tokens), unmasking)[0][len(context) :])
        for context, tokens in ROWS
    ]
    almost = [(context, [*tokens[:-1], (tokens[-1] + 1) % 11]) for context, tokens in greedy]
    rows = [*ROWS, *greedy, *almost]
    want = near(as_written(model, *row, unmasking)[1:] for row in rows)
    if (
        'unmask' not in how
    ):  # the numbers of tokens a step are drawn for a row, and a row is its tokens
        assert [is_greedy for _, is_greedy in want[len(ROWS) :]] == [True] * len(ROWS) + [
            False
        ] * len(ROWS)
    reading = Reading(
        Order.of('l2r' if 'block_length' in how else 'random', {}), unmasking=unmasking
    )
    for batch_size in (4, 20):
        assert scores(model, rows, reading, batch_size) == want


# ---------------------------------------------------------------------------------------------------------------------
# last words


def test_last_words_by_greedy_decoding():
    tok = Bytes()
    texts = ['a bc', 'bc a', 'abcabcab cc', 'x', 'aa b', ' y']
    tokens = np.array([t for text in texts for t in (*text.encode(), tok.eos)])
    rows = last_words(tokens, tok)
    assert [(tok.decode(context), tok.decode(word)) for context, word in rows] == [
        ('a', ' bc'),
        ('bc', ' a'),
        ('abcabcab', ' cc'),
        ('aa', ' b'),
    ]
    model = make_model(block_size=9, vocab_size=257)
    right = [
        (context, greedily(model, context[-9 + len(word) :], len(word))) for context, word in rows
    ]
    assert right != rows
    wrong = [(context, [*word[:-1], (word[-1] + 1) % 257]) for context, word in right]
    first = [(context, [(word[0] + 1) % 257, *word[1:]]) for context, word in right]
    every = [row for rows in zip(right, wrong, first) for row in rows]
    for batch_size in (1, 3, 20):
        assert [greedy for _, greedy in scores(model, every, batch_size=batch_size)] == [
            True,
            False,
            False,
        ] * 4


class Pairs(Bytes):
    """Two letters are a token; letters alone are, at the end."""

    def encode(self, text):
        return [
            ord(text[i]) * 1000 + ord(text[i + 1 : i + 2] or chr(0)) for i in range(0, len(text), 2)
        ]

    def decode(self, ids):
        return ''.join(chr(i // 1000) + chr(i % 1000) for i in ids).replace(chr(0), '')


def test_a_last_word_is_all_behind_the_last_blank_and_has_tokens_of_its_own():
    tok = Bytes()
    tokens = np.array([*b'one two three', tok.eos, *b'a  b', tok.eos])
    assert [(tok.decode(a), tok.decode(b)) for a, b in last_words(tokens, tok)] == [
        ('one two', ' three'),
        ('a ', ' b'),
    ]
    pairs, texts = Pairs(), ['abcd efg', 'abc efg', 'ab c']  # 'c ' of 'abc efg' is one token
    tokens = np.array([t for text in texts for t in (*pairs.encode(text), pairs.eos)])
    rows = [(pairs.decode(a), pairs.decode(b)) for a, b in last_words(tokens, pairs)]
    assert rows == [('abcd', ' efg'), ('ab', ' c')]


def test_a_word_as_long_as_a_block_is_asked_for_without_context():
    network = Network(torch.eye(300)[1])
    rows = [([7, 7], [1] * 9), ([7, 7], [1] * 8 + [2]), (list(range(100, 112)), [5, 6])]
    assert [greedy for _, greedy in scores(network, rows, batch_size=1)] == [True, False, False]
    assert network.asked == [
        [[1] * 9],
        [[1] * 8 + [2]],
        [[105, 106, 107, 108, 109, 110, 111, 5, 6]],
    ]


def test_what_is_longer_than_the_model_is_greedy_if_each_of_its_pieces_is():
    rows = [([], [1] * 12), ([], [1] * 11 + [2]), ([], [2] + [1] * 11)]
    for batch_size in (1, 6):
        assert [
            greedy for _, greedy in scores(Network(torch.eye(300)[1]), rows, batch_size=batch_size)
        ] == [True, False, False]


def test_a_model_that_overflowed_has_no_scores():
    with pytest.raises(ValueError, match='not finite'):
        scores(Network(torch.full((300,), torch.nan)), [([1, 2], [5, 6])])
