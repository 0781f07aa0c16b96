"""The rules of the literature: dilated by hand, drawn by all draws; what a rule is called, and what
is refused. test_laws.py has the laws of all ways of writing, and what klass and pc_sampler
reveal."""

import itertools

import pytest
import torch
from conftest import close, make_model, one_line
from oracle import EVERY, NETWORKS, chi2_of, counts_of, limit

from anyorder.extras.rules.dilated import Dilated
from anyorder.extras.rules.drawn import Drawn
from anyorder.extras.rules.klass import Klass
from anyorder.extras.rules.pc_sampler import PcSampler
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.options import unmasking_of
from anyorder.generation.rules import RULES
from anyorder.generation.way import Way
from anyorder.orders import Order

SOME = ['decoder']
SOME += [pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS if name not in SOME]


def test_dilated_blocks_by_hand():
    """Luxembourg et al. 2025, arXiv 2506.19037: every third of seven blanks, then the others."""
    order = torch.arange(15, -1, -1)[None]
    canvas = Canvas(0 * order, order, 2, [0])
    fill(make_model(block_size=16), canvas, Way(Dilated(threshold=7)))
    step = [0, 1, 1, 0, 1, 1, 0, 2, 3, 3, 2, 3, 3, 2]
    assert canvas.step[0].flip(0).tolist() == [-1, -1, *step]


# ---- drawn, on three positions

ORDER = torch.tensor([2, 0, 1])


def small(network):
    """In `equal` all tokens are: the first blanks win."""
    model = make_model(3, block_size=3, vocab_size=3, **NETWORKS.get(network, {}))
    for p in model.lm_head.parameters():
        p.mul_(0.3 if network != 'equal' else 0)
    return model


def price(model, text, visits, k, temperature):
    """The probability that a step reveals k blanks with their true tokens, by all draws."""
    left = [i for i in ORDER.tolist() if i not in visits]
    now = torch.tensor([[*visits, *left]])
    logits = model.predict(torch.tensor([text]), now, len(visits), len(left))[0]
    sure = logits.softmax(-1)
    law = (logits / temperature).softmax(-1)
    p = 0
    for tokens in itertools.product(range(3), repeat=len(left)):
        surest = sorted(range(len(left)), key=lambda j: -sure[j, tokens[j]])[:k]
        if all(tokens[j] == text[left[j]] for j in surest):
            p += law[range(len(left)), tokens].prod()
    return p


def by_drawn(model, texts, sizes, **drawing):
    """The canvas of texts (n, 3), written or scored in steps of these sizes."""
    canvas = Canvas(texts, ORDER.expand(texts.shape), 0, range(len(texts)))
    drawn = Drawn(schedule=[*itertools.accumulate(sizes)])
    fill(model, canvas, Way(drawn, Drawing(**drawing)))
    return canvas


@pytest.mark.parametrize('network', [*SOME, 'equal'])
@pytest.mark.parametrize('sizes', [[1, 1, 1], [2, 1], [3]])
def test_a_step_of_drawn_is_priced_by_all_draws_that_reveal_true_tokens(network, sizes):
    """Along the sets that the score has drawn."""
    model = small(network)
    canvas = by_drawn(model, EVERY, sizes, temperature=0.7, forced=True)
    for text, order, logprob in zip(EVERY.tolist(), canvas.order.tolist(), canvas.logprob.sum(1)):
        p = 1
        n = 0
        for size in sizes:
            p *= price(model, text, order[:n], size, 0.7)
            n += size
        close(logprob.exp(), p, 1e-12)


@pytest.mark.parametrize('network', ['encoder', 'equal'])
@pytest.mark.parametrize('sizes', [[1, 2], [2, 1]])
def test_drawn_writes_as_often_as_it_scores(network, sizes):
    """A blank that stays is drawn anew at the next step. The score of a way that is drawn has the
    probability of the text as its mean: hence the mean of the logarithms is a bound."""
    model = small(network)
    counts = counts_of(by_drawn(model, torch.zeros(2000, 3).long(), sizes).idx)
    p = by_drawn(model, EVERY.repeat(100, 1), sizes, forced=True).logprob.sum(1).exp()
    law = p.view(100, 27).mean(0)
    assert chi2_of(counts, law / law.sum()) < limit(26)


# ---- options

NAMED = [
    ('klass', 'random', Klass(threshold=0.9, kl_limit=0.01)),
    ('klass/16:0.7', 'l2r', Klass(threshold=0.7, block_length=16)),
    ('pc_sampler', 'random', PcSampler(decay=0.25, most=10.0)),
    ('dilated', 'l2r', Dilated()),
]


@pytest.mark.parametrize('text, order, noun', NAMED)
def test_a_rule_is_one_text(text, order, noun):
    assert Way.of({}, text) == Way(noun, order=Order(order))


BAD = {
    'factor:-1 factor/x eb:x eb:-0.1 dilated/x': 'is no order',
    'factor/0 dilated:0 dilated:8.5': 'block_length',
    'klass:1.5 klass/4:90': 'a probability',
    'klass+1': 'of the form klass/BLOCK_LENGTH:CONFIDENCE',
    'pc_sampler:3': 'of the form pc_sampler/BLOCK_LENGTH',
    'dilated/8': 'of the form dilated:BLOCK_LENGTH',
}


@pytest.mark.parametrize('texts', BAD)
def test_what_is_no_rule_is_one_line(texts):
    for text in texts.split():
        with one_line(BAD[texts]):
            Way.of({}, text)


@pytest.mark.parametrize('rule', RULES)
def test_rules_do_not_go_with_what_says_how_many(rule):
    with one_line(rule):
        unmasking_of(policy=rule, unmask='lossless')
    if rule not in ('pc_sampler', 'drawn'):  # they have a schedule
        with one_line(rule):
            unmasking_of(policy=rule, unmask='binomial', n_steps=3)


def test_what_no_network_can_is_one_line(batch):
    with one_line('pc_sampler wants to know'):
        fill(make_model(), Canvas(*batch, 0, range(5)), Way(PcSampler(n_steps=4)))
