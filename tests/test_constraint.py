"""Constraints: the renormalised law, in every policy and network, over seams, and what is
refused."""

import itertools
import json
import math
from string import ascii_lowercase

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from oracle import chi2_of, counts_of, limit
from test_generation import ADAPTIVE, SlowAdaptive
from test_lossless import KNOWN, half_certain, one_at_a_time, orders_of, traced
from test_scroll import ascii_model, texts
from test_scroll import write as write_long

from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate
from anyorder.generation.schedules import unmask_schedule
from anyorder.generation.unmasking import Given
from anyorder.orders import Order
from anyorder.seeds import derive_seed
from anyorder.writer import Writer

NETWORKS = [
    {},
    {'attention': 'bidirectional'},
    {'attention': 'mixed'},
    {'target_position': 'two_stream'},
]
TABLE = torch.rand(12, 11, generator=torch.Generator().manual_seed(5)) < 0.4  # by position
TABLE[:, 3] |= ~TABLE.any(1)


def by_row(rows, positions):
    """Another table for each row."""
    return TABLE[(positions + 2 * rows) % len(TABLE)]


class Masked:
    """The model with the constraint of one row on its logits, written down once more."""

    def __init__(self, model, allowed, row=0):
        self.model = model
        self.allowed = allowed
        self.row = row
        self.config = model.config

    def predict(self, idx, order, n_known, n_targets=None):
        logits = self.model.predict(idx, order, n_known, n_targets).clone()
        for j in range(logits.size(1)):
            at = order[:, n_known + j]
            may = self.allowed(torch.full_like(at, self.row), at)
            logits[:, j, :11] += may.double().log()
        return logits


@pytest.mark.parametrize('how', [{}, {'unmask': 'lossless:2'}])
@pytest.mark.parametrize('network', NETWORKS)
def test_the_law_is_renormalised_over_what_is_allowed(network, how):
    """Frequencies of all 27 sequences against the product of renormalised conditionals."""
    model = make_model(block_size=3, vocab_size=3, **network)
    if how and model.slots.masked_loss:
        return  # lossless unmasking wants a decoder
    order = [2, 0, 1]
    allowed = torch.tensor([[True, True, False], [True, False, True], [True, True, True]])
    texts = torch.tensor([*itertools.product(range(3), repeat=3)])
    law = torch.tensor([probability(model, text, order, allowed) for text in texts])
    assert math.isclose(law.sum(), 1)
    assert (law > 0).sum() == 12

    n = 3_000
    orders = torch.tensor(order).expand(n, 3)
    blank = torch.zeros(n, 3, dtype=torch.long)
    drawn = generate(model, blank, orders, 0, 3, seeds=range(n), allowed=allowed, **how)
    counts = counts_of(drawn)
    assert (counts[law == 0] == 0).all()
    assert chi2_of(counts[law > 0], law[law > 0]) < limit(11)


def probability(model, text, order, allowed):
    """The product of the renormalised conditionals of a text (N,)."""
    p = 1.0
    for d, at in enumerate(order):
        logits = model.predict(text[None], torch.tensor([order]), d, 1)[0, 0]
        conditional = logits.softmax(-1) * allowed[at]
        p *= float(conditional[text[at]] / conditional.sum())
    return p


@pytest.mark.parametrize(
    'drawing', [{}, dict(temperature=0), dict(temperature=1.5, top_k=3), dict(top_p=0.8)]
)
def test_lossless_text_is_one_token_a_pass(drawing):
    model = half_certain()
    order = orders_of('random')
    idx = torch.full((6, 12), 4)
    rows = []
    for r in range(6):
        masked = Masked(model, by_row, r)
        rows.append(one_at_a_time(masked, idx[r], order[r], int(KNOWN[r]), r, **drawing))
    one = torch.stack(rows)
    for window, use_cache in ((1, True), (3, False), (5, True), (64, True)):
        how = dict(use_cache=use_cache, allowed=by_row, **drawing)
        new, trace = traced(model, order, window, idx, **how)
        assert torch.equal(new, one)
        assert (trace['step'].max() < 11) == (window > 1)


@pytest.mark.parametrize('how', ADAPTIVE)
def test_scores_and_thresholds_are_of_the_renormalised_law(batch, how):
    model = make_model()
    known = torch.tensor([0, 3, 8, 5, 1])
    asked = dict(seeds=range(5), return_trace=True, allowed=by_row)
    new, trace = generate(model, *batch, known, 3, **how, **asked)
    for r, k in enumerate(known.tolist()):
        ends = [0, *unmask_schedule(9 - k, 3)]
        n_reveal = [b - a for a, b in itertools.pairwise(ends)]
        row = [x[r] for x in batch]
        slow = SlowAdaptive(Masked(model, by_row, r), *row, k, seed=r)
        slow.write(n_reveal, **how)
        assert torch.equal(slow.tokens, new[r])
        assert trace['order'][r].tolist() == slow.visits
        assert trace['step'][r, slow.visits[k:]].tolist() == slow.steps


@pytest.mark.parametrize('network', NETWORKS)
@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_log_probabilities_are_of_the_renormalised_law(batch, network, policy):
    """Those of writing, of scoring what was written, and of the definition; rows end at different
    times."""
    model = make_model(vocab_size=16, n_tokens=11, **network)
    known = KNOWN[:5] // 2
    asked = dict(policy=policy, seeds=range(5), allowed=by_row, return_trace=True)
    new, trace = generate(model, *batch, known, **asked)
    scored = Canvas(new, trace['order'], known, range(5), allowed=by_row)
    fill(model, scored, Given(9), Drawing(scores=True))
    torch.testing.assert_close(scored.logprob, trace['logprob'], rtol=0, atol=1e-10)
    for r, k in enumerate(known.tolist()):
        masked = Masked(model, by_row, r)
        visits = trace['order'][r]
        for d in range(k, 9):
            at = visits[d]
            token = new[r, at]
            assert by_row(r, at)[token]
            logp = masked.predict(new[r, None], visits[None], d, 1)[0, 0].log_softmax(-1)
            assert math.isclose(logp[token], trace['logprob'][r, at], abs_tol=1e-10)


# --------------------------------------------------------------------------------------------------
# long texts, programs and the command


@pytest.mark.parametrize('order', ['l2r', 'random'])
def test_positions_of_a_long_text_are_counted_from_its_start(order):
    """It is the same as writing stretch by stretch by hand, each with its part of the table."""
    model = ascii_model()
    visits = Order.of(order, {})
    table = torch.rand(20, 128, generator=torch.Generator().manual_seed(2)) < 0.1
    (text,) = texts('ab[[7]]c[[..]]')
    (sample,) = write_long(model, [text], visits, allowed=table)
    tokens, known = text
    for start, end in sample['stretches']:
        part = slice(start, end)
        seed = derive_seed(5, 'stretch', start) if start else 5
        stretch = [(tokens[part], known[part])]
        canvas = Canvas.of_texts(stretch, visits, seed, allowed=table[part])
        fill(model, canvas, Given(99), Drawing())
        tokens[part] = canvas.idx[0].tolist()
        known[part] = [True] * (end - start)
    assert sample['tokens'] == tokens
    assert len(sample['stretches']) == 4
    written = [p for p, step in enumerate(sample['step']) if step >= 0]
    assert all(table[p, tokens[p]] for p in written)


def test_rows_of_a_function_are_the_texts_of_the_call(ckpt):
    writer = Writer(ckpt)
    asked = []

    def allowed(rows, positions):
        asked.append(positions)
        return torch.arange(257) == 97 + (10 * rows + positions).unsqueeze(1) % 26

    found = writer.infill('[[..]]', n=3, length=40, batch_size=2, allowed=allowed)
    letters = 5 * ascii_lowercase
    assert found == [letters[10 * r : 10 * r + 40] for r in range(3)]
    assert torch.cat(asked).unique().tolist() == list(range(40))
    assert [text.logprob for text in found] == [0] * 3


def test_the_command_keeps_to_a_file(ckpt, script, tmp_path):
    """At position p stands the letter p modulo 3 of abc, or a d."""
    positions = np.arange(32)
    table = np.zeros((32, 257), bool)
    table[positions, 97 + positions % 3] = True
    table[:, 100] = True
    np.save(tmp_path / 'a.npy', table)

    options = '--allowed=a.npy', '--out=o.json', '--prompt=xy[[..]]', '--n_samples=2'
    script('sample.py', f'--ckpt={ckpt}', '--weights=raw', *options)
    found = json.loads((tmp_path / 'o.json').read_text())['samples']
    texts = Writer(ckpt).infill('xy[[..]]', n=2, allowed=table)
    assert [sample['text'] for sample in found] == texts
    assert texts[0] != texts[1]
    for text in texts:
        assert text.startswith('xy')
        assert all(text[p] in ('abc'[p % 3], 'd') for p in range(2, 32))


# --------------------------------------------------------------------------------------------------
# what is refused

SHUT = TABLE[:9].clone()
SHUT[4] = False


@pytest.mark.parametrize(
    'allowed, said',
    [
        (SHUT, r'no token is allowed at position 4, a blank; allowed has 9 positions'),
        (
            lambda rows, positions: SHUT[positions],
            'no token is allowed at position 4 of row 1: its probability would be 0',
        ),
        (TABLE[:7], 'no token is allowed at position 7, a blank; allowed has 7 positions'),
        (
            TABLE.float(),
            r'allowed must be bool \(positions, tokens\), got torch.float32 \(12, 11\)',
        ),
        (TABLE[0], r'got torch.bool \(11,\)'),
        (TABLE[:, :8], r'allowed must be bool \(2, 11\), got torch.bool \(2, 8\)'),
        (lambda rows, positions: TABLE[0], r'got torch.bool \(11,\)'),
        (lambda rows, positions: TABLE[positions].int(), r'got torch.int32 \(2, 11\)'),
        (lambda rows, positions: TABLE.numpy()[positions.numpy(), :8], r'got torch.bool \(2, 8\)'),
    ],
)
def test_what_cannot_be_allowed_is_one_line(allowed, said):
    order = torch.tensor([[4, 0, 1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 3, 5, 6, 7, 8, 4]])
    with one_line(said):  # position 4 is known in the first row
        generate(make_model(vocab_size=16, n_tokens=11), order * 0, order, 1, 9, allowed=allowed)


def test_known_tokens_are_not_asked_about_and_scored_ones_are(batch):
    model = make_model()
    idx, order = batch
    nothing = torch.zeros(9, 11, dtype=torch.bool)
    assert torch.equal(generate(model, idx, order, 9, 9, allowed=nothing), idx)
    free = torch.ones(9, 11, dtype=torch.bool)
    free[4, idx[2, 4]] = False
    canvas = Canvas(idx[2:3], order[2:3], 0, [0], allowed=free)
    with one_line('the token that is scored is not allowed at position 4 of row 0'):
        fill(model, canvas, Given(9), Drawing(scores=True))


@pytest.mark.parametrize(
    'allowed, said',
    [
        (
            np.ones((32, 256), bool),
            r'allowed must be bool \(positions, 257\), got bool \(32, 256\)',
        ),
        (np.ones((32, 257)), r'got float64 \(32, 257\)'),
        (np.ones((9, 257), bool), 'no token is allowed at position 9, a blank'),
    ],
)
def test_an_array_that_does_not_fit_is_said_before_the_weights_are_read(ckpt, allowed, said):
    writer = Writer(ckpt)
    with one_line(said):
        writer.infill('abc', allowed=allowed)
    assert 'model' not in vars(writer)


def test_files_that_are_no_bool_array_are_one_line(ckpt, script, tmp_path):
    np.save(tmp_path / 'pickled.npy', np.array([print]), allow_pickle=True)
    np.savez(tmp_path / 'several.npy', np.ones((32, 257), bool))
    np.save(tmp_path / 'words.npy', np.array([['a']]))
    for name in ('pickled.npy', 'several.npy.npz', 'words.npy', 'none.npy'):
        said = script(
            'sample.py', f'--ckpt={ckpt}', '--weights=raw', f'--allowed={name}', code=1
        ).stderr
        assert said.count('\n') == 1
        assert name in said or 'got <U1 (1, 1)' in said
