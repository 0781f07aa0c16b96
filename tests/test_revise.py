"""Revision: which tokens a round writes again, what stays, a round by hand, and what the trace of a text keeps."""

import pytest
import torch
from conftest import make_model, numbers, one_line
from test_scroll import texts, write

from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate
from anyorder.generation.options import unmasking_of
from anyorder.generation.revise import GROUPS, blank_again, misfit
from anyorder.generation.unmasking import Given, Revised
from anyorder.orders import sample_order

NETWORKS = [
    {},
    {'attention': 'mixed'},
    {'attention': 'bidirectional'},
    {'target_position': 'two_stream'},
]
KNOWN = torch.tensor([0, 3, 9, 5, 8])  # known tokens of the five rows of `batch`


def misfit_of(model, idx, order, known, written, row, seed):
    """misfit of the token at visit `row` of a text idx, order (N,), by a pass of its own."""
    number = numbers(seed, 'groups', n=len(idx))
    ranked = sorted(order[known:].tolist(), key=lambda p: float(number[p]))
    group = {p: rank * GROUPS // written for rank, p in enumerate(ranked)}
    position = int(order[row])
    others = [p for p in order.tolist() if p not in group or group[p] != group[position]]
    rest = [p for p in order.tolist() if p not in others]
    logits = model.predict(idx[None], torch.tensor([others + rest]), len(others))[
        0, rest.index(position)
    ]
    return float(logits.max() - logits[idx[position]])


@pytest.mark.parametrize('config', NETWORKS)
@pytest.mark.parametrize('size', [9, 20])  # the longer text has groups of several tokens
def test_a_round_by_hand_is_the_round_of_generate(config, size):
    model = make_model(block_size=size, **config)
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(11, (3, size), generator=g)
    order = torch.rand(3, size, generator=g).argsort(-1)
    known = torch.tensor([0, 2, size - 1])
    how = dict(n_steps=8, seeds=[5, 6, 7], return_trace=True)
    text, trace = generate(model, idx, order, known, **how)
    new, after = generate(model, idx, order, known, revise=1, **how)
    for r in range(3):
        n = size - int(known[r])
        seed = how['seeds'][r]
        nats = [
            misfit_of(model, text[r], order[r], int(known[r]), n, d, seed)
            for d in range(int(known[r]), size)
        ]
        worst = sorted(range(n), key=lambda i: -nats[i])[: -(-n // GROUPS)]
        again = [
            p for i, p in enumerate(order[r, known[r] :].tolist()) if i in worst and nats[i] > 0
        ]
        canvas = Canvas(
            text[r : r + 1],
            torch.tensor([[p for p in order[r].tolist() if p not in again] + again]),
            size - len(again),
            [seed],
        )
        canvas.draw_numbers('round', 0)
        fill(model, canvas, Given(1), Drawing())
        assert torch.equal(canvas.idx[0], new[r])
        assert torch.equal(canvas.order[0], after['order'][r])
        rewritten = torch.zeros(size, dtype=torch.bool).index_fill(
            0, torch.tensor(again, dtype=torch.long), True
        )
        assert (after['step'][r] > trace['step'][r]).equal(rewritten)
        torch.testing.assert_close(
            after['logprob'][r], torch.where(rewritten, canvas.logprob[0], trace['logprob'][r])
        )


@pytest.mark.parametrize('config', NETWORKS)
@pytest.mark.parametrize(
    'how', [{}, dict(policy='margin', block_length=2), dict(unmask='binomial', n_steps=3)]
)
def test_what_was_given_stays_and_a_row_is_as_alone(config, how, batch):
    model = make_model(**config)
    (idx, order) = batch
    how = dict(n_steps=4, revise=5, return_trace=True) | how
    new, trace = generate(model, idx, order, KNOWN, seeds=range(5), **how)
    slow, _ = generate(model, idx, order, KNOWN, seeds=range(5), use_cache=False, **how)
    assert torch.equal(new, slow)
    for r in range(5):
        given = order[r, : KNOWN[r]]
        assert torch.equal(new[r, given], idx[r, given])
        assert (trace['step'][r, given] == -1).all()
        alone = generate(model, idx[r : r + 1], order[r : r + 1], KNOWN[r], seeds=[r], **how)[0]
        assert torch.equal(new[r], alone[0])


@pytest.mark.parametrize(
    'how',
    [
        {},
        {'policy': 'margin', 'order_noise': 1.0},
        {'unmask': 'binomial', 'n_steps': 3},
        {'policy': 'entropy', 'order_noise': 0.5, 'n_steps': 4, 'block_length': 3},
    ],
)
def test_a_row_in_a_batch_is_the_row_alone(how):
    """Its text, and the trace of it, whatever the other rows have to write and however many rounds they take."""
    model = make_model(block_size=16, vocab_size=24)
    n = 20
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(24, (n, 16), generator=g)
    order = sample_order(n, 16, generator=g)
    known = torch.arange(n) % 17
    how = how | {'revise': 3, 'return_trace': True}
    found, trace = generate(model, idx, order, known, seeds=range(50, 50 + n), **how)
    for r in range(n):
        alone, own = generate(
            model, idx[r : r + 1], order[r : r + 1], known[r : r + 1], seeds=[50 + r], **how
        )
        assert torch.equal(alone[0], found[r])
        assert torch.equal(own['step'][0], trace['step'][r])
        assert torch.equal(own['order'][0], trace['order'][r])


@pytest.mark.parametrize('config', NETWORKS)
def test_a_text_of_likeliest_tokens_stays(config):
    """Whatever the temperature: revision ends in such a text, and then no token is written again."""
    model = make_model(block_size=8, **config)
    order = torch.arange(8).repeat(5, 1)
    known = torch.tensor([0, 3, 6, 5, 7])
    found, trace = generate(model, order, order, known, temperature=0, revise=40, return_trace=True)
    canvas = Canvas(found, trace['order'], known, range(5))
    canvas.step = trace['step']
    canvas.known = torch.full((5,), 8)
    last = [
        [[*row[row != p], torch.tensor(p)] for p in range(8)] for row in trace['order']
    ]  # each token in its turn
    likeliest = torch.tensor(
        [
            [
                model.predict(found[r : r + 1], torch.tensor([last[r][p]]), 7).argmax()
                == found[r, p]
                for p in range(8)
            ]
            for r in range(5)
        ]
    )
    ended = (likeliest | (canvas.step < 0)).all(1)
    assert ended.any()
    assert torch.equal(misfit(model, canvas) == 0, likeliest | (canvas.step < 0))
    blank_again(model, canvas, 0, torch.tensor([[True]] * 4 + [[False]]))
    ended[4] = True
    assert torch.equal(canvas.n_blanks == 0, ended)


def test_binomial_rounds_have_schedules_of_their_own():
    canvas = Canvas(torch.zeros(1, 99).long(), torch.arange(99)[None], 0, [5])
    unmasking = Given(9, binomial=True)
    seen = set()
    for names in ((), ('round', 0), ('round', 1)):
        canvas.draw_numbers(*names)
        seen.add(str(unmasking.ends([99], canvas.seeds, *canvas.names).tolist()))
    assert len(seen) == 3


def test_a_row_is_finished_by_a_round_that_does_not_change_it():
    model = make_model(block_size=8, vocab_size=3)
    order = torch.arange(8).repeat(20, 1)
    n_finished = 0
    rounds = torch.stack(
        [generate(model, order, order, 3, n_steps=2, revise=k, seeds=range(20)) for k in range(9)]
    )
    for found in rounds.unbind(1):  # (9, 8) of a row
        same = (found[1:] == found[:-1]).all(1).tolist()
        first = [*same, True].index(True)
        assert all(same[first:])
        n_finished += 0 < first < 6
    assert n_finished > 3


def test_the_trace_keeps_the_rounds():
    """The sample has every token that stood in the text, and the order visits each position once."""
    model = make_model(block_size=8, vocab_size=128)
    how = Revised(Given(4), 3)
    (once,) = write(model, texts('ab[[6]]', length=8), how=Given(4))
    (sample,) = write(model, texts('ab[[6]]', length=8), how=how, with_drafts=True)
    revised = [p for p in range(8) if sample['drafts'][p]]
    assert revised
    assert sorted(sample['order']) == [*range(8)]
    assert max(sample['step']) > max(once['step'])
    assert [sample['drafts'][p][0] for p in revised] == [
        [once['step'][p], once['tokens'][p]] for p in revised
    ]
    assert (
        write(model, texts('ab[[6]]', length=8), how=how)[0] | {'drafts': sample['drafts']}
        == sample
    )


@pytest.mark.parametrize(
    'make, said',
    [
        (
            lambda: unmasking_of(unmask='lossless', revise=1),
            'revise is how many rounds, 0 with unmask=lossless',
        ),
        (lambda: unmasking_of(schedule=[2, 4], revise=1), 'or listed ends, got 1'),
        (lambda: unmasking_of(revise=-1), 'got -1'),
        (lambda: unmasking_of(revise=1.5), 'got 1.5'),
        (
            lambda: unmasking_of(revise=1).check_network(make_model().slots, 9, scores=True),
            'score with revise=0',
        ),
    ],
)
def test_refused(make, said):
    with one_line(said):
        make()
