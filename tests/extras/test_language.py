"""The law of blanks among the texts that match, against all 4,096 texts of six tokens."""

import copy
import itertools
import re

import pytest
import torch
from conftest import make_model, one_line
from oracle import ENCODER, TWO_STREAM

from anyorder import Pattern
from anyorder.extras.patterns.language import without_rounding
from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.options import unmasking_of
from anyorder.generation.plan import Cells
from anyorder.generation.way import Way
from anyorder.tokens.tokenizer import Symbols

pytest.importorskip('outlines_core')

N = 6
V = 4
TOKENS = Symbols('letters', ['a', 'b', 'ab', 'c', 'end'], '', eos=4)
PATTERN = Pattern('(ab|c)*(a|cb)(b|c)*c')
OTHER = Pattern('b*(ab|c)b*')
TEXTS = torch.tensor([*itertools.product(range(V), repeat=N)])
MATCHES = torch.tensor([bool(re.fullmatch(PATTERN.text, TOKENS.decode(t))) for t in TEXTS.tolist()])
ORDER = torch.tensor([3, 0, 5, 1, 4, 2])


def toy(**network):
    """A network of the five tokens and one of padding."""
    return make_model(block_size=N, vocab_size=V + 2, n_tokens=V + 1, n_layer=1, **network)


def canvas_of(idx, order=ORDER, known=0, parts=None, seeds=None, stand_in=None, allowed=None):
    """The canvas of texts (n, N), and its language: by default each matches PATTERN as a whole."""
    seeds = seeds or range(len(idx))
    canvas = Canvas(idx, order.expand(idx.shape), known, seeds, allowed=allowed)
    if parts is None:
        parts = [(r, 0, [-1] * N, PATTERN) for r in range(len(idx))]
    canvas.limits = Pattern.language(parts, canvas, TOKENS, stand_in)
    return canvas


def scored(model, idx, how, drawing=Way.drawing, **canvas):
    """The canvas of texts (n, N) that a run scores."""
    canvas = canvas_of(idx, **canvas)
    fill(model, canvas, Way(unmasking_of(**how), drawing).to_score)
    return canvas


def agree(text, places):
    """(4096,) which texts have these tokens (N,) at some places."""
    return (TEXTS[:, places] == text[places]).all(1)


def by_all_texts(model, whole, how, fits, start, order, stand_in, allowed):
    """(log q, log p) of a run that writes a part (n,) of the text (N,), by the laws at each step of
    all texts that fit (4096,).

    order  (n,) of the part, which begins at `start`"""
    n = len(order)
    text = whole[start : start + n]
    logq = logp = 0.0
    for known, end in itertools.pairwise([0, *how['schedule']]):
        n_answered = (end if how['policy'] == 'given' else n) - known
        answered = order[known : known + n_answered]
        logits = stand_in.double().log().repeat(N, 1)
        found = model.predict(text[None], order[None], known, n_answered)
        logits[answered + start] = found[0, :, : V + 1]
        logits[start : start + n][~allowed] = -torch.inf
        law = logits.log_softmax(-1)
        w = law[torch.arange(N), TEXTS].sum(1).exp() * (fits & agree(whole, order[:known] + start))
        if how['policy'] != 'given':
            found = [[w[TEXTS[:, i + start] == v].sum() for v in range(V)] for i in answered]
            top = (torch.tensor(found) / w.sum()).topk(2).values
            best = (top[:, 0] - top[:, 1]).argsort(descending=True, stable=True)
            order = torch.cat([order[:known], answered[best]])
        new = order[known:end] + start
        logq += (w[agree(whole, new)].sum() / w.sum()).log()
        logp += law[new, whole[new]].sum()
    return logq, logp


def close(x, y, atol=1e-12):
    torch.testing.assert_close(x, y, rtol=0, atol=atol, check_dtype=False)


STEPS = [[1, 2, 3, 4, 5, 6], [2, 3, 6], [3, 6], [6]]
HOWS = [dict(policy=p, schedule=ends) for p in ('given', 'margin') for ends in STEPS]
NETWORKS = [{}, dict(attention='mixed'), ENCODER, TWO_STREAM[0]]
FAST = [(0, 1), (0, 6), (1, 1), (2, 5), (3, 2)]  # numbers of a network and how it writes
RUNS = [
    pytest.param(network, how, [], [], marks=() if (n, i) in FAST else pytest.mark.slow)
    for n, network in enumerate(NETWORKS)
    for i, how in enumerate(HOWS)
]
BESIDE = [dict(policy=policy, schedule=[1, 3]) for policy in ('given', 'margin')]
for beside in (([2], [-1, 3]), ([], [3, -1, -1]), ([3, 3, 1], [])):
    RUNS += [({}, how, *beside) for how in BESIDE]


@pytest.mark.parametrize('network, how, before, after', RUNS)
def test_the_law_of_a_run(network, how, before, after):
    """Runs sum to 1 in the language, and a run's log-probability is the one that all texts say.

    The text goes on before and behind the canvas. Not all is allowed, and blanks that no step has
    answered have a law of their own."""
    model = toy(**network)
    start = len(before)
    n = N - start - len(after)
    asked = dict(stand_in=torch.arange(1.0, V + 2))
    asked['allowed'] = torch.ones(n, V + 1, dtype=torch.bool)
    asked['allowed'][1, [0, 3]] = False
    whole = torch.tensor([*before, *[-1] * n, *after])
    fits = MATCHES & agree(whole, whole >= 0) & asked['allowed'][1, TEXTS[:, start + 1]]
    texts = TEXTS[fits][:, start : start + n].unique(dim=0)
    asked['order'] = ORDER[ORDER < n]
    parts = [(r, -start, whole.tolist(), PATTERN) for r in range(len(texts))]
    canvas = scored(model, texts, how, parts=parts, **asked)
    logq = canvas.logprob.sum(1)
    close(logq.exp().sum(), torch.tensor(1.0))
    for r in (0, len(texts) // 2, -1):
        whole[start : start + n] = texts[r]
        q, p = by_all_texts(model, whole, how, fits, start, **asked)
        close(logq[r], q)
        close(canvas.limits.log_weight[r], p - q)


ROWS = TEXTS[MATCHES][[3, 60, 3, 90, 120]]
KNOWN = torch.tensor([0, 2, 0, 0, 3])
# in a batch of rows: one of two parts, and one of none
PARTS = [(0, 0, 6, PATTERN), (1, 0, 6, PATTERN), (2, 0, 6, OTHER), (3, 0, 3, PATTERN)]
PARTS += [(3, 3, 3, PATTERN)]


def written(model, how, rows, device='cpu'):
    """[tokens, order, log-probabilities, weights] of some of ROWS, written on a device."""
    parts = [(rows.index(r), i, [-1] * n, pattern) for r, i, n, pattern in PARTS if r in rows]
    tables = ROWS[rows].to(device), ORDER.to(device), KNOWN[rows]
    canvas = canvas_of(*tables, parts, rows)
    fill(model, canvas, Way(unmasking_of(**how), Drawing(0.7)))
    found = canvas.idx, canvas.order, canvas.logprob, canvas.limits.log_weight
    return [x.cpu() for x in found]


@pytest.mark.parametrize(
    'how, scale',
    [
        (dict(n_steps=3), 1),
        (dict(n_steps=6, policy='margin'), 1e-11),  # scores that are equal where a pattern is
        (dict(policy='eb:0.5'), 1),
    ],
)
def test_rows_of_a_batch_are_rows_alone_on_any_device(simulated, request, how, scale):
    model = toy(seed=3)
    model.lm_head.weight.mul_(scale)
    every = [0, 1, 2, 3, 4]
    batch = written(model, how, every)
    for row, start, n, pattern in PARTS:
        text = TOKENS.decode(batch[0][row, start : start + n].tolist())
        assert re.fullmatch(pattern.text, text)
    for r in every:
        for one, some in zip(written(model, how, [r]), batch):
            close(one[0], some[r])

    def compare(device):
        there = freeze(copy.deepcopy(model).to(device))
        for x, y in zip(batch, written(there, how, every, device)):
            close(x, y, 1e-9)

    simulated(compare)
    compare(torch.device(request.config.getoption('--device')))


def test_scores_that_differ_by_rounding_alone_are_equal():
    """In a row: they become the largest one, step by step; others stay as they are."""
    score = torch.tensor([0.5, 0.3, 0.5 + 1e-5, 0.5 - 1e-5, 0.301, -torch.inf, 0.5 - 2e-5])
    row = torch.tensor([0, 1, 0, 0, 1, 1, 1])
    equal = score[[2, 1, 2, 2, 4, 5, 6]]
    assert torch.equal(without_rounding(score, row), equal)


@pytest.mark.parametrize('how', [HOWS[1], HOWS[5]])
def test_a_text_is_scored_as_it_was_written(how):
    """Its log q and its weight add up to log p, whatever law has drawn it."""
    model = toy()
    canvas = canvas_of(torch.zeros(40, N, dtype=torch.long))
    drawings = [Drawing(temperature, presence_penalty=1.5) for temperature in (0.7, 1)]
    fill(model, canvas, Way(unmasking_of(**how), drawings[0]))
    again, plain = [scored(model, canvas.idx, how, drawing) for drawing in drawings]
    close(plain.logprob, canvas.logprob)
    logp = plain.logprob.sum(1) + plain.limits.log_weight
    for one in (canvas, again):
        close(one.limits.log_weight, logp - again.logprob.sum(1))


@pytest.mark.parametrize('how', [HOWS[0], HOWS[4]])
def test_tokens_that_are_blank_again_have_the_law_of_blanks(how):
    """As those of a round of revision: no step knows what stood there."""
    model = toy()
    canvas = scored(model, TEXTS[MATCHES][::9], how)
    again = torch.tensor([True, False, True, False, True, True])
    canvas.blank(again.expand(canvas.idx.shape))
    how = how | {'schedule': [1, 2, 3, 4]}
    blank = scored(model, canvas.idx, how, order=canvas.order, known=canvas.n_known)
    fill(model, canvas, Way(unmasking_of(**how), Drawing(forced=True)))
    close(canvas.logprob[:, again], blank.logprob[:, again])


def test_what_is_possible_stays_possible():
    """However unlikely it is: no share of a class is rounded to 0."""
    model = toy()
    model.lm_head.bias.sub_(2000 * torch.arange(V + 2))
    for how in (HOWS[3], HOWS[4]):
        logprob = scored(model, TEXTS[::7], how).logprob.sum(1)
        assert torch.equal(logprob > -torch.inf, MATCHES[::7])


def test_thousands_of_places_neither_overflow_nor_underflow():
    """A text of a thousandth at each of 2,000 places; its last letter says which one it is."""
    stand_in = torch.tensor([0.001, 0.001, 1, 0.003, 1])
    parts = [(0, 0, [-1] * 2000, Pattern('a*c|b*a'))]
    idx = torch.zeros(1, 2000, dtype=torch.long)
    canvas = canvas_of(idx, torch.arange(2000), parts=parts, stand_in=stand_in)
    place = torch.tensor([0, 1999])
    cells = Cells(torch.zeros_like(place), None, None, place)
    law = canvas.limits.law(cells, stand_in.log().repeat(2, 1)).softmax(1)
    close(law, torch.tensor([[0.75, 0.25, 0, 0, 0], [0.25, 0, 0, 0.75, 0]]), 1e-5)


def test_what_cannot_match_is_refused():
    """By its length, by what stands before it, and by what is allowed."""
    allowed = torch.ones(N, V + 1, dtype=torch.bool)
    allowed[5, 3] = False
    for start, tokens in ((2, [-1]), (-1, [1, -1, -1]), (0, [-1] * N)):
        with one_line(f'row 1 matches .* from position {start} '):
            canvas_of(TEXTS[:2], parts=[(1, start, tokens, PATTERN)], allowed=allowed)
