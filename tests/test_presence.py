"""The penalty on tokens that stand in the text already: its law, in every way of writing."""

import itertools

import pytest
import torch
from conftest import make_model
from oracle import (
    ENCODER,
    FINAL,
    TWO_STREAM,
    ascii_model,
    by_definition,
    chi2_of,
    counts_of,
    limit,
    texts,
    write,
)
from test_lossless import KNOWN as TWELVE
from test_lossless import half_certain, orders_of, traced
from test_own_law import EVERY, WAYS, choosy, law, scored, written
from test_revise import NETWORKS, misfits
from test_unmasking import BLOCKS, CHANCE, KNOWN

from anyorder.checkpoint import set_exempt
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate
from anyorder.generation.plan import Cells
from anyorder.generation.presence import penalize
from anyorder.generation.unmasking import Given
from anyorder.tokens.tokenizers import Bytes, Symbols

PENALTY = dict(presence_penalty=1.5)
WITH_MIN_P = PENALTY | dict(temperature=0.7, min_p=0.2)
RULES = [dict(policy='klass:0.3'), dict(policy='factor:3.0')]
RULES += [dict(policy='eb:2.0'), dict(policy='dilated:4')]
BY_CHANCE = [*CHANCE, dict(policy='margin+1.0'), dict(n_steps=4, unmask='binomial')]


def first_fast(*cases):
    """The cases, each a tuple, of which all but the first are slow."""
    first, *others = cases
    return [first, *(pytest.param(*case, marks=pytest.mark.slow) for case in others)]


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


# ---- the law


def test_what_a_cell_knows():
    """Prompt and drafts before its own visit; not what stands in blanks, nor exempt tokens."""
    idx = torch.tensor([[4, 2, 4, 1, 3], [3, 3, 3, 3, 99]])
    order = torch.tensor([[1, 0, 3, 2, 4], [4, 0, 1, 2, 3]])
    part = Canvas(idx, order, torch.tensor([2, 0]), [0, 1])
    row = torch.tensor([0, 0, 0, 1, 1])
    visit = torch.tensor([2, 3, 4, 0, 1])
    cells = Cells(row, visit, visit, None, None)
    drafts = torch.tensor([3, 0])  # of the first row one
    for exempt, free in ((None, set()), (torch.tensor([2]), {2})):
        found = penalize(torch.zeros(5, 6), 0.5, part, cells, drafts, exempt)
        for has, knows in zip(found, [{2, 4}, {2, 4, 1}, {2, 4, 1}, set(), set()]):
            assert {*has.nonzero()[:, 0].tolist()} == knows - free
        assert {*found.unique().tolist()} == {0.0, -0.5}


@pytest.mark.parametrize(
    'how, network',
    [
        *itertools.product([dict(policy='margin'), dict(n_steps=2)], ['decoder']),
        *first_fast(*itertools.product(WAYS, ['encoder', 'decoder', 'mixed', 'two streams'])),
    ],
)
def test_the_probabilities_of_all_texts_sum_to_1(network, how):
    model = choosy(network)
    for drawing, known in ((PENALTY, 0), (WITH_MIN_P, 1)):
        p = law(model, how, known, **drawing)
        total = p.view(9, 3).sum(0) if known else p.sum()
        close(total, torch.ones_like(total))
        assert not torch.allclose(p, law(model, how, known))


@pytest.mark.parametrize(
    'network, how, known',
    [
        ('decoder', dict(policy='margin'), 1),
        *first_fast(
            ('decoder', dict(unmask='lossless:2'), 0),
            ('encoder', dict(policy='entropy', n_steps=2), 1),
            ('two streams', dict(unmask='lossless:3'), 1),
            ('decoder', {}, 0),
        ),
    ],
)
def test_texts_are_written_as_often_as_they_score(network, how, known):
    model = choosy(network)
    n = 2_000
    p = law(model, how, known, **WITH_MIN_P) / 3**known
    prompts = torch.arange(n).unsqueeze(1) % 3
    batch = prompts.expand(n, 3), torch.tensor([2, 0, 1]).expand(n, 3)
    drawn, _ = written(model, batch, known, dict(n_steps=3) | how, range(n), **WITH_MIN_P)
    counts = counts_of(drawn)
    assert (counts[p == 0] == 0).all()
    assert chi2_of(counts[p > 0], p[p > 0]) < limit(int((p > 0).sum()) - 1)


def test_a_penalty_by_hand():
    """One token a step, given, and a text in one step, all of whose tokens know nothing."""
    model = choosy('decoder')
    order = torch.tensor([2, 0, 1])
    by_steps = law(model, {}, **PENALTY).log()
    at_once = law(model, dict(n_steps=1), **PENALTY).log()
    close(at_once, law(model, dict(n_steps=1)).log())
    for text, found in zip(EVERY, by_steps):
        nats = 0
        for d in range(3):
            logits = model.predict(text[None], order[None], d, 1)[0, 0]
            before = text[order[:d]].tolist()
            logits = logits - torch.tensor([1.5 * (v in before) for v in range(3)])
            nats += logits.log_softmax(-1)[text[order[d]]]
        close(found, nats)


# ---- every way of writing


@pytest.mark.parametrize(
    'how, variant',
    [
        *first_fast(*itertools.product([dict(policy='margin', n_steps=4), *BLOCKS], [{}])),
        *first_fast(*itertools.product([BLOCKS[1]], [ENCODER, FINAL[0], TWO_STREAM[0]])),
    ],
)
def test_it_is_the_definition_written_and_scored(batch, how, variant):
    """Scores choose by the law with the penalty; a seed draws from it."""
    model = make_model(**variant)
    idx, order = batch
    text, trace = written(model, batch, KNOWN, how, range(5), **PENALTY)
    for r in range(5):
        asked = dict(how, seed=r, penalty=1.5)
        slow, visits, step, nats = by_definition(model, idx[r], order[r], int(KNOWN[r]), **asked)
        assert torch.equal(text[r], slow)
        assert trace['order'][r].tolist() == visits
        assert torch.equal(trace['step'][r], step)
        close(trace['logprob'][r], nats)
    canvas = scored(model, text, order, KNOWN, range(5), how, **PENALTY)
    close(canvas.logprob, trace['logprob'])


@pytest.mark.parametrize(
    'how, use_cache',
    [
        (RULES[0], False),
        (BY_CHANCE[0], True),
        (BY_CHANCE[-1], True),
        *first_fast(*itertools.product([RULES[1], *RULES, *BY_CHANCE], [True, False])),
    ],
)
def test_scored_equals_written(batch, how, use_cache):
    check_score(batch, how, use_cache, PENALTY)


def check_score(batch, how, use_cache, drawing):
    """A score is what was written by this drawing, and without it another text is written."""
    model = make_model()
    text, trace = written(model, batch, KNOWN, dict(how, use_cache=use_cache), range(5), **drawing)
    canvas = scored(model, text, batch[1], KNOWN, range(5), how, use_cache, **drawing)
    assert torch.equal(canvas.order, trace['order'])
    close(canvas.logprob, trace['logprob'])
    other, _ = written(model, batch, KNOWN, how, range(5))
    assert not torch.equal(other, text)


@pytest.mark.parametrize('drawing', [WITH_MIN_P, PENALTY | dict(temperature=0)])
def test_lossless_text_is_the_one_of_one_token_a_step(drawing):
    check_lossless(drawing, presence_penalty=0.0)


def check_lossless(drawing, **without):
    """Lossless text is that of one token a step, in fewer steps, and `without` it is another."""
    model = half_certain()
    order = orders_of('random')
    text, trace = traced(model, order, 1, **drawing)
    for window, use_cache in ((3, True), (5, False), (64, True)):
        new, many = traced(model, order, window, use_cache=use_cache, **drawing)
        assert torch.equal(new, text)
        close(many['logprob'], trace['logprob'])
        assert 2 < int(many['step'].max()) + 1 < 12
    free, _ = traced(model, order, 1, **drawing | without)
    assert not torch.equal(free, text)


def test_a_lossless_score_is_one_token_a_step():
    model = half_certain()
    order = orders_of('random')
    text = torch.randint(11, (6, 12), generator=torch.Generator().manual_seed(5))
    one = scored(model, text, order, TWELVE, range(6), dict(n_steps=12), **WITH_MIN_P)
    for window in (1, 4, 64):
        how = dict(unmask=f'lossless:{window}')
        many = scored(model, text, order, TWELVE, range(6), how, **WITH_MIN_P)
        close(many.logprob, one.logprob)


def test_a_stretch_knows_the_tokens_of_its_canvas():
    """As if its context were a prompt, and nothing before it."""
    model = ascii_model()
    (row,) = texts('abcde', length=12)
    sample = write(model, [row], drawing=Drawing(**PENALTY), context=3)[0]
    assert sample['stretches'] == [[0, 8], [5, 12]]
    tokens = torch.tensor(sample['tokens'])
    found = torch.tensor(sample['logprob'], dtype=torch.float64)
    for start, known, end in ((0, 5, 8), (5, 3, 12)):
        part = tokens[None, start:end]
        order = torch.arange(end - start)[None]
        canvas = scored(model, part, order, known, [0], {}, **PENALTY)
        close(found[start + known : end], canvas.logprob[0, known:])


@pytest.mark.parametrize('config, size', first_fast(*itertools.product(NETWORKS, [9])))
def test_a_round_of_revision_is_by_the_law_with_the_penalty(config, size):
    """Which tokens fit least, and what is written in their place."""
    model = make_model(block_size=size, **config)
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(11, (3, 9), generator=g)
    order = torch.rand(3, 9, generator=g).argsort(-1)
    known = torch.tensor([1, 2, 4])  # of eight tokens at most one is written again
    how = dict(n_steps=9, seeds=[5, 6, 7], return_trace=True) | PENALTY
    text, _ = generate(model, idx, order, known, **how)
    new, after = generate(model, idx, order, known, revise=1, **how)
    assert not torch.equal(new, text)
    for r in range(3):
        nats = misfits(model, text[r], order[r], int(known[r]), 5 + r, penalty=1.5)
        worst = max(nats, key=nats.get)
        others = [p for p in order[r].tolist() if p != worst]
        canvas = Canvas(text[r, None], torch.tensor([[*others, worst]]), 8, [5 + r])
        canvas.draw_numbers('round', 0)
        fill(model, canvas, Given(1), Drawing(**PENALTY))
        assert torch.equal(canvas.idx[0], new[r])
        close(canvas.logprob[0, worst], after['logprob'][r, worst])


@pytest.mark.parametrize('penalty', [1.5, -1.5])
def test_the_end_of_a_document_has_no_penalty(penalty):
    """Nor has a special token; a negative penalty has tokens repeated."""
    tokenizer = Symbols('own', 'abc', eos=2)
    model = choosy('decoder')
    drawing = dict(presence_penalty=penalty)
    ended = torch.tensor([[2, 2, 2], [0, 0, 0]])
    order = torch.tensor([2, 0, 1]).expand(2, 3)
    free = scored(model, ended, order, 0, [0, 0], {}).logprob.sum(1)
    try:
        set_exempt(model, tokenizer)
        found = scored(model, ended, order, 0, [0, 0], {}, **drawing).logprob.sum(1)
        p = law(model, {}, **drawing).sum()
    finally:
        del model.exempt
    close(p, torch.ones_like(p))
    assert (found[1] < free[1]) == (penalty > 0)
    alone = scored(model, ended, order, 0, [0, 0], {}, **drawing).logprob.sum(1)
    assert not torch.allclose(alone[0], found[0])
    close(alone[1], found[1])
    close(found[0], free[0])


def test_exempt_tokens_are_those_of_the_tokenizer():
    model = make_model()
    for tokenizer, tokens in ((Bytes(), [256]), (Symbols('own', 'ab'), [])):
        set_exempt(model, tokenizer)
        assert model.exempt.tolist() == tokens
    tokenizer = Bytes()
    tokenizer.special = {'<a>': 7, '<b>': 3}
    set_exempt(model, tokenizer)
    assert model.exempt.tolist() == [3, 7, 256]
    assert 'exempt' not in model.state_dict()
