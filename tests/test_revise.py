"""Revision: what a round writes again, what stays, a round by hand, and what the trace keeps."""

import pytest
import torch
from conftest import make_model, numbers, one_line
from oracle import texts, write

from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate
from anyorder.generation.options import unmasking_of
from anyorder.generation.revise import GROUPS, Revised, blank_again, misfit
from anyorder.generation.unmasking import Given, Lossless
from anyorder.orders import sample_order

NETWORKS = [
    {},
    {'attention': 'mixed'},
    {'attention': 'bidirectional'},
    {'target_position': 'two_stream'},
]
KNOWN = torch.tensor([0, 3, 9, 5, 8])  # known tokens of the five rows of `batch`


def misfits(model, idx, order, known, seed, penalty=0.0):
    """{position: misfit} of what was written in a text idx, order (N,), each by a pass of its
    own."""
    number = numbers(seed, 'groups', n=len(idx))
    written = order[known:].tolist()
    ranked = sorted(written, key=lambda p: float(number[p]))
    group = {p: rank * GROUPS // len(written) for rank, p in enumerate(ranked)}
    nats = {}
    for position in written:
        same = [p for p in written if group[p] == group[position]]
        others = [p for p in order.tolist() if p not in same]
        now = torch.tensor([others + same])
        logits = model.predict(idx[None], now, len(others))[0, same.index(position)]
        logits[[*{*idx[others].tolist()}]] -= penalty
        nats[position] = float(logits.max() - logits[idx[position]])
    return nats


@pytest.mark.parametrize('config', NETWORKS)
@pytest.mark.parametrize('size', [9, 20])  # the longer text has groups of several tokens
def test_a_round_by_hand_is_the_round_of_generate(config, size):
    model = make_model(block_size=size, **config)
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(11, (3, size), generator=g)
    order = torch.rand(3, size, generator=g).argsort(-1)
    known = torch.tensor([0, 2, size - 1])
    seeds = [5, 6, 7]
    how = dict(n_steps=8, seeds=seeds, return_trace=True)
    text, trace = generate(model, idx, order, known, **how)
    new, after = generate(model, idx, order, known, revise=1, **how)
    for r in range(3):
        # Which tokens are written again
        nats = misfits(model, text[r], order[r], int(known[r]), seeds[r])
        n_worst = -(-len(nats) // GROUPS)  # rounded up
        worst = sorted(nats, key=lambda p: -nats[p])[:n_worst]
        again = [p for p in nats if p in worst and nats[p] > 0]

        # Write them
        others = [p for p in order[r].tolist() if p not in again]
        visits = torch.tensor([others + again])
        canvas = Canvas(text[r, None], visits, len(others), [seeds[r]])
        canvas.draw_numbers('round', 0)
        fill(model, canvas, Given(1), Drawing())
        assert torch.equal(canvas.idx[0], new[r])
        assert torch.equal(canvas.order[0], after['order'][r])
        rewritten = torch.zeros(size, dtype=torch.bool)
        rewritten[again] = True
        assert torch.equal(after['step'][r] > trace['step'][r], rewritten)
        logprob = torch.where(rewritten, canvas.logprob[0], trace['logprob'][r])
        torch.testing.assert_close(after['logprob'][r], logprob)


@pytest.mark.parametrize('config', NETWORKS)
@pytest.mark.parametrize('how', [{}, dict(policy='margin/2'), dict(unmask='binomial', n_steps=3)])
def test_what_was_given_stays_and_a_row_is_as_alone(config, how, batch):
    model = make_model(**config)
    idx, order = batch
    how = dict(n_steps=4, revise=5, return_trace=True) | how
    new, trace = generate(model, idx, order, KNOWN, seeds=range(5), **how)
    slow, _ = generate(model, idx, order, KNOWN, seeds=range(5), use_cache=False, **how)
    assert torch.equal(new, slow)
    for r in range(5):
        given = order[r, : KNOWN[r]]
        assert torch.equal(new[r, given], idx[r, given])
        assert (trace['step'][r, given] == -1).all()
        alone, _ = generate(model, idx[r, None], order[r, None], KNOWN[r], seeds=[r], **how)
        assert torch.equal(new[r], alone[0])


@pytest.mark.parametrize(
    'how',
    [
        {},
        {'policy': 'margin+1'},
        {'unmask': 'binomial', 'n_steps': 3},
        {'policy': 'entropy/3+0.5', 'n_steps': 4},
    ],
)
def test_a_row_in_a_batch_is_the_row_alone(how):
    """Its text and its trace, whatever the others have to write, and however many rounds they
    take."""
    model = make_model(block_size=16, vocab_size=24)
    n = 20
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(24, (n, 16), generator=g)
    order = sample_order(n, 16, generator=g)
    known = torch.arange(n) % 17
    how = how | {'revise': 3, 'return_trace': True}
    found, trace = generate(model, idx, order, known, seeds=range(50, 50 + n), **how)
    for r in range(n):
        row = idx[r, None], order[r, None], known[r, None]
        alone, own = generate(model, *row, seeds=[50 + r], **how)
        assert torch.equal(alone[0], found[r])
        assert torch.equal(own['step'][0], trace['step'][r])
        assert torch.equal(own['order'][0], trace['order'][r])


@pytest.mark.parametrize('config', NETWORKS)
def test_a_text_of_likeliest_tokens_stays(config):
    """Whatever the temperature: revision ends in such a text, and then no token is written
    again."""
    model = make_model(block_size=8, **config)
    order = torch.arange(8).repeat(5, 1)
    known = torch.tensor([0, 3, 6, 5, 7])
    found, trace = generate(model, order, order, known, temperature=0, revise=40, return_trace=True)
    canvas = Canvas(found, trace['order'], known, range(5))
    canvas.step = trace['step']
    canvas.known = torch.full((5,), 8)
    stays = trace['step'] < 0
    for r, row in enumerate(trace['order']):
        for p in range(8):
            others = row[row != p]
            last = torch.cat([others, torch.tensor([p])])
            logits = model.predict(found[r, None], last[None], 7)
            stays[r, p] |= logits.argmax() == found[r, p]
    ended = stays.all(1)
    assert ended.any()
    assert torch.equal(misfit(model, canvas) == 0, stays)
    rows = torch.tensor([True, True, True, True, False])
    blank_again(canvas, misfit(model, canvas), 0, rows.unsqueeze(1))
    assert torch.equal(canvas.n_blanks == 0, ended | ~rows)


def test_binomial_rounds_have_schedules_of_their_own():
    canvas = Canvas(torch.zeros(1, 99).long(), torch.arange(99)[None], 0, [5])
    unmasking = Given(9, binomial=True)
    seen = set()
    for names in ((), ('round', 0), ('round', 1)):
        canvas.draw_numbers(*names)
        (ends,) = unmasking.ends([99], canvas.seeds, *canvas.names).tolist()
        seen.add(tuple(ends))
    assert len(seen) == 3


def test_a_row_is_finished_by_a_round_that_does_not_change_it():
    model = make_model(block_size=8, vocab_size=3)
    order = torch.arange(8).repeat(20, 1)
    n_finished = 0
    how = dict(n_steps=2, seeds=range(20))
    rounds = [generate(model, order, order, 3, revise=k, **how) for k in range(9)]
    for found in torch.stack(rounds, 1):  # (9, 8) of a row
        same = (found[1:] == found[:-1]).all(1).tolist()
        first = [*same, True].index(True)
        assert all(same[first:])
        n_finished += 0 < first < 6
    assert n_finished > 3


def test_the_order_visits_each_position_once_in_all_rounds():
    model = make_model(block_size=8, vocab_size=128)
    text = texts('ab[[6]]', length=8)
    how = Revised(Given(4), 3)
    (once,) = write(model, text, how=Given(4))
    (sample,) = write(model, text, how=how)
    assert sorted(sample['order']) == [*range(8)]
    assert max(sample['step']) > max(once['step'])


@pytest.mark.parametrize(
    'options, said',
    [
        (dict(unmask='lossless', revise=1), 'revise is how many rounds, 0 with unmask=lossless'),
        (dict(schedule=[2, 4], revise=1), 'or listed ends, got 1'),
        (dict(revise=-1), 'got -1'),
        (dict(revise=1.5), 'got 1.5'),
    ],
)
def test_refused(options, said):
    with one_line(said):
        unmasking_of(**options)


@pytest.mark.parametrize('way', [Lossless(), Given(schedule=[2, 4]), Revised(Given(), 1)])
def test_what_cannot_be_revised(way):
    with one_line('revise is how many rounds'):
        Revised(way, 1)


def test_a_text_that_is_revised_is_not_scored():
    with one_line('score with revise=0'):
        Revised(Given(), 1).check_network(make_model().slots, 9, scores=True)
