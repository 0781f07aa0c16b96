"""Guidance: the law that depends more on the prompt, in every way of writing."""

import itertools

import pytest
import torch
from conftest import make_model, one_line
from oracle import ENCODER, FINAL, TWO_STREAM, by_definition, chi2_of, counts_of, limit
from test_lossless import orders_of
from test_own_law import WAYS, choosy, law, scored, written
from test_presence import BY_CHANCE, RULES, check_lossless, check_score, close, first_fast
from test_unmasking import BLOCKS, KNOWN

from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate
from anyorder.generation.unmasking import Given

GUIDED = dict(cfg_scale=1.5)
WITH_MORE = dict(cfg_scale=0.7, temperature=0.7, min_p=0.1, presence_penalty=0.5)


# ---- the law


@pytest.mark.parametrize(
    'how, network',
    [
        *itertools.product([dict(policy='margin'), dict(n_steps=2)], ['decoder']),
        *first_fast(*itertools.product(WAYS, ['encoder', 'decoder', 'mixed', 'two streams'])),
    ],
)
def test_the_probabilities_of_all_texts_sum_to_1(network, how):
    """Given each token of the prompt; without a prompt the law is the one without guidance."""
    model = choosy(network)
    for drawing in (GUIDED, WITH_MORE):
        p = law(model, how, 1, **drawing)
        total = p.view(9, 3).sum(0)
        close(total, torch.ones_like(total))
        plain = drawing | dict(cfg_scale=0.0)
        assert not torch.allclose(p, law(model, how, 1, **plain))
        close(law(model, how, 0, **drawing), law(model, how, 0, **plain))


@pytest.mark.parametrize('network', ['decoder', 'encoder', 'mixed', 'two streams'])
def test_a_token_has_the_law_of_the_quotient(network):
    """p(v | prompt, written)^(1 + w) p(v | written)^(-w) / Z, of a text in one order."""
    model = choosy(network)
    text = torch.tensor([[1, 2, 0]])
    order = torch.tensor([[2, 0, 1]])
    nats = scored(model, text, order, 1, [0], {}, **GUIDED).logprob[0]
    for visit in (1, 2):
        known = model.predict(text, order, visit, 1)[0, 0].log_softmax(-1)
        without = torch.tensor([[0, 1, 2]])  # the prompt is the last visit
        blank = model.predict(text, without, visit - 1, 1)[0, 0].log_softmax(-1)
        quotient = (2.5 * known - 1.5 * blank).log_softmax(-1)
        position = order[0, visit]
        close(nats[position], quotient[text[0, position]])


@pytest.mark.parametrize(
    'network, how', first_fast(('decoder', dict(policy='margin')), ('encoder', dict(n_steps=2)))
)
def test_texts_are_written_as_often_as_they_score(network, how):
    model = choosy(network)
    n = 2_000
    p = law(model, how, 1, **WITH_MORE) / 3
    prompts = torch.arange(n).unsqueeze(1) % 3
    batch = prompts.expand(n, 3), torch.tensor([2, 0, 1]).expand(n, 3)
    drawn, _ = written(model, batch, 1, dict(n_steps=3) | how, range(n), **WITH_MORE)
    counts = counts_of(drawn)
    assert (counts[p == 0] == 0).all()
    assert chi2_of(counts[p > 0], p[p > 0]) < limit(int((p > 0).sum()) - 1)


# ---- every way of writing


@pytest.mark.parametrize(
    'how, variant',
    [
        *itertools.product([dict(policy='margin', n_steps=4)], [{}, ENCODER, FINAL[0]]),
        *first_fast(*itertools.product(BLOCKS, [TWO_STREAM[0], {}, ENCODER, FINAL[0]])),
    ],
)
def test_it_is_the_definition_written_and_scored(batch, how, variant):
    """Rows have prompts of unequal lengths; scores choose by the law with guidance."""
    model = make_model(**variant)
    idx, order = batch
    drawing = GUIDED | dict(presence_penalty=0.5)
    text, trace = written(model, batch, KNOWN, how, range(5), **drawing)
    for r in range(5):
        asked = dict(how, seed=r, scale=1.5, penalty=0.5)
        slow, visits, step, nats = by_definition(model, idx[r], order[r], int(KNOWN[r]), **asked)
        assert torch.equal(text[r], slow)
        assert trace['order'][r].tolist() == visits
        assert torch.equal(trace['step'][r], step)
        close(trace['logprob'][r], nats)
    canvas = scored(model, text, order, KNOWN, range(5), how, **drawing)
    close(canvas.logprob, trace['logprob'])


@pytest.mark.parametrize('use_cache', [True, False])
@pytest.mark.parametrize('known', [[2, 3, 0, 4, 1], [8, 1, 7, 0, 2]])
@pytest.mark.parametrize('variant', [{}, ENCODER, FINAL[0], TWO_STREAM[0]])
def test_texts_of_unequal_lengths(batch, variant, known, use_cache):
    """What stands behind a text is no prompt. The longest ends last, or first."""
    model = make_model(**variant)
    idx, order = batch
    n_visits = torch.tensor([9, 7, 9, 5, 8])
    order = torch.arange(9).expand(5, 9).clone()
    known = torch.tensor(known)
    canvas = Canvas(idx, order, known, range(5), n_visits)
    fill(model, canvas, Given(9), Drawing(**GUIDED), use_cache)
    for r in range(5):
        n = int(n_visits[r])
        slow, *_, nats = by_definition(
            model, idx[r], order[r], int(known[r]), n_visits=n, seed=r, scale=1.5
        )
        assert torch.equal(canvas.idx[r, :n], slow[:n])
        close(canvas.logprob[r], nats)


@pytest.mark.parametrize(
    'how, use_cache',
    [
        (RULES[0], False),
        (BY_CHANCE[0], True),
        *first_fast(*itertools.product([RULES[1], *RULES, *BY_CHANCE], [True, False])),
    ],
)
def test_scored_equals_written(batch, how, use_cache):
    check_score(batch, how, use_cache, GUIDED)


@pytest.mark.parametrize('drawing', [GUIDED | dict(min_p=0.1), GUIDED | dict(temperature=0)])
def test_lossless_text_is_the_one_of_one_token_a_step(drawing):
    check_lossless(drawing, cfg_scale=0.0)


def test_prompts_that_are_read_by_themselves():
    """As those are whose lengths differ by a bucket; a row does not depend on the others."""
    model = make_model(block_size=80)
    order = orders_of('random', 2, 80)
    idx = torch.randint(11, (2, 80), generator=torch.Generator().manual_seed(2))
    known = torch.tensor([3, 70])
    how = dict(n_steps=80, return_trace=True) | GUIDED
    text, trace = generate(model, idx, order, known, seeds=[0, 1], **how)
    for r in range(2):
        row = slice(r, r + 1)
        alone, own = generate(model, idx[row], order[row], known[row], seeds=[r], **how)
        assert torch.equal(alone, text[row])
        close(own['logprob'], trace['logprob'][row])


# ---- bad input


@pytest.mark.parametrize('scale', [-0.5, 101.0, float('nan'), float('inf')])
def test_a_scale_is_from_0_to_100(scale):
    with one_line('cfg_scale must be'):
        Drawing(cfg_scale=scale)


def test_what_does_not_go_together(batch):
    with one_line('revise'):
        generate(make_model(), *batch, 2, n_steps=9, revise=1, **GUIDED)
