"""The rules of the literature: what each reveals, read anew from its paper; its law by enumeration;
its extremes; and what is refused."""

import itertools
import math
import pkgutil
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from conftest import make_model, one_line
from oracle import FINAL, TWO_STREAM, chi2_of, counts_of, limit

from anyorder.checkpoint import Checkpoint, save_checkpoint
from anyorder.extras.rules.dilated import Dilated, dilated_groups
from anyorder.extras.rules.drawn import Drawn
from anyorder.extras.rules.klass import Klass
from anyorder.extras.rules.pc_sampler import PcSampler
from anyorder.extras.rules.winners import likely_sets
from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.options import unmasking_of
from anyorder.generation.rules import RULES, EntropyBounded, Factor
from anyorder.generation.way import order_and_unmasking

ENCODER = dict(attention='bidirectional')
NETWORKS = {'decoder': {}, 'mixed': FINAL[0], 'encoder': ENCODER, 'two streams': TWO_STREAM[0]}
N, V = 4, 3
EVERY = torch.tensor([*itertools.product(range(V), repeat=N)])
ORDER = torch.tensor([2, 0, 3, 1])


# ---- the papers: laws [{blank: its law}] of all steps so far -> the blanks of this step


def factor(laws, f):
    """Fast-dLLM, arXiv 2505.22618."""
    p = {i: float(law.max()) for i, law in laws[-1].items()}
    ranked = sorted(p, key=lambda i: -p[i])
    n = max((n for n, i in enumerate(ranked, 1) if p[i] >= 1 - f / (n + 1)), default=1)
    return ranked[:n]


def entropy_bounded(laws, gamma):
    """Arxiv 2505.24857."""
    entropy = {i: float(-(p * p.log()).nansum()) for i, p in laws[-1].items()}
    ranked = sorted(entropy, key=entropy.get)
    found = ranked[:1]
    for k in range(2, len(ranked) + 1):
        some = [entropy[i] for i in ranked[:k]]
        if sum(some) - max(some) <= gamma:
            found = ranked[:k]
    return found


def klass(laws, confidence, limit=0.01):
    """Arxiv 2511.05664, by two comparisons."""
    ready = []
    for i, now in laws[-1].items():
        kept = [some[i] for some in laws[-3:] if i in some]
        kl = [float((q * (q / p).log()).sum()) for p, q in itertools.pairwise(kept)]
        if now.max() > confidence and len(kl) == 2 and max(kl) < limit:
            ready.append(i)
    best = max(laws[-1], key=lambda i: laws[-1][i].max())
    return sorted(ready, key=lambda i: -laws[-1][i].max()) or [best]


COUNTS = torch.tensor([1, 50, 7])


def pc_sampler(laws, k):
    """Arxiv 2508.13021, with lambda 0.25 and alpha 10."""
    share = (COUNTS + 1) / (COUNTS + 1).sum()
    score = {}
    for i, p in laws[-1].items():
        nats = -float(p.max()) * math.log(share[p.argmax()])
        score[i] = math.exp(-0.25 * i) * min(10, nats)
    return sorted(score, key=lambda i: -score[i])[:k]


READINGS = {'factor': factor, 'eb': entropy_bounded}
PAPERS = {
    'factor:1': partial(factor, f=1),
    'factor:0.6': partial(factor, f=0.6),
    'eb:0.6': partial(entropy_bounded, gamma=0.6),
    'eb:0.9': partial(entropy_bounded, gamma=0.9),
    'klass:0.36': partial(klass, confidence=0.36),
    'pc_sampler': partial(pc_sampler, k=1),
}


slow = partial(pytest.param, marks=pytest.mark.slow)
# all rules for a decoder, and slow ones for other networks
EVERY_LAW = [('decoder', how) for how in PAPERS if how not in ('factor:1', 'eb:0.9')]
OTHER_LAWS = [pair for pair in itertools.product(NETWORKS, PAPERS) if pair not in EVERY_LAW]
EVERY_LAW += [slow(*pair) for pair in OTHER_LAWS]
SOME = ['decoder', *map(slow, ['mixed', 'encoder', 'two streams'])]


def by_paper(model, texts, order, known, rule, block_length=None):
    """[(visits, step of each position, log-probability)] of texts (n, N), one after the other,
    without a cache. Only a block of so many blanks is looked at."""
    found = []
    for text in texts:
        blanks = order.tolist()[known:]
        length = block_length or len(blanks)
        visits = order.tolist()[:known]
        step = [-1 for _ in text]
        nats = 0.0
        laws = []
        while len(visits) < len(text):
            start = (len(visits) - known) // length * length
            block = [i for i in blanks[start : start + length] if i not in visits]
            laws.append(laws_of(model, text, visits, block))
            chosen = rule(laws)
            nats += sum(float(laws[-1][i][text[i]].log()) for i in chosen)
            for i in chosen:
                step[i] = len(laws) - 1
            visits += chosen
        found.append((visits, step, nats))
    return found


contexts = {}


def laws_of(model, text, visits, block):
    """{blank: its law} of the blanks of a block, given the visits. Texts share contexts."""
    key = model, *((i, int(text[i])) for i in visits)
    if key not in contexts:
        rest = [i for i in range(len(text)) if i not in visits]
        now = torch.tensor([visits + rest])
        logits = model.predict(torch.as_tensor(text)[None], now, len(visits), len(rest))[0]
        contexts[key] = dict(zip(rest, logits.softmax(-1)))
    return {i: contexts[key][i] for i in block}


@cache
def toy(network, how=''):
    """A network of three tokens at four positions that is neither sure of all nor of nothing.

    For klass it is less sure, so that laws change little from step to step."""
    model = make_model(3, block_size=N, vocab_size=V, **NETWORKS[network])
    scale = 0.3 if 'klass' in how else 0.6
    model.lm_head.weight.mul_(scale)
    model.lm_head.bias.mul_(scale / 0.6)
    model.register_buffer('counts', COUNTS, persistent=False)
    return model


def unmasking(text):
    """The Unmasking of an order, as sample.py has it; one token a step if a schedule says it."""
    return order_and_unmasking(text, n_steps=N)[1]


def scored(model, texts, order, known, how, use_cache=True):
    """The canvas of texts (n, N), all in one order, scored by the law of a rule."""
    orders = order.expand(texts.shape)
    canvas = Canvas(texts, orders, known, range(len(texts)))
    fill(model, canvas, unmasking(how), Drawing(scores=True), use_cache)
    return canvas


@cache
def of_every_text(network, how):
    """The canvas of all 81 texts under a rule, without a prompt."""
    return scored(toy(network, how), EVERY, ORDER, 0, how)


# ---- the law


@pytest.mark.parametrize('network, how', EVERY_LAW)
def test_the_law_of_a_rule_is_that_of_its_paper(network, how):
    """Of all texts, of which the probabilities add up to 1."""
    canvas = of_every_text(network, how)
    papers = by_paper(toy(network, how), EVERY, ORDER, 0, PAPERS[how])
    assert canvas.step.tolist() == [step for _, step, _ in papers]
    assert canvas.order.tolist() == [visits for visits, _, _ in papers]
    logprob = canvas.logprob.sum(1)
    want = torch.tensor([nats for _, _, nats in papers], dtype=torch.float64)
    torch.testing.assert_close(logprob, want, rtol=0, atol=1e-12)
    assert abs(float(logprob.exp().sum()) - 1) < 1e-12


@pytest.mark.parametrize('how', ['factor:0.6', 'eb:0.6', 'klass:0.36', 'pc_sampler'])
def test_which_blanks_are_chosen_depends_on_the_text(how):
    """Else the laws above would be laws of one order."""
    sets = [len(of_every_text(network, how).step.unique(dim=0)) for network in NETWORKS]
    assert sum(sets) > len(sets)


@pytest.mark.parametrize('rule', ['factor', 'eb'])
def test_a_step_reveals_what_the_paper_says_of_random_laws(rule):
    """Twenty blanks, of which a row behind them has two less."""
    g = torch.Generator().manual_seed(5)
    sizes = set()
    for number in (0.05, 0.3, 1.0, 3.0):
        it = pkgutil.resolve_name(RULES[rule])(threshold=number)
        for scale in (1, 4, 8):
            logits = scale * torch.randn(20, 7, dtype=torch.float64, generator=g)
            score = it.score_blanks(None, None, None, None, logits)
            table = torch.stack([score, score])
            table[1, 18:] = -torch.inf
            for row, n in zip(it.sure(table), (20, 18)):
                laws = [dict(enumerate(logits[:n].softmax(-1)))]
                chosen = {*row.nonzero()[:, 0].tolist()} or {int(score[:n].argmax())}
                assert chosen == {*READINGS[rule](laws, number)}
                sizes.add(len(chosen))
    assert len(sizes) > 4


@pytest.mark.parametrize('network', SOME)
@pytest.mark.parametrize('how', PAPERS)
def test_a_text_is_scored_as_it_was_written(how, network):
    """Whether or not it is alone, with and without a cache, behind prompts of unequal lengths."""
    model = toy(network, how)
    known = torch.tensor([0, 2, 1, 4, 0])
    orders = torch.stack([ORDER, ORDER.flip(0), ORDER, ORDER, ORDER.flip(0)])
    idx = EVERY[[3, 50, 20, 70, 41]]
    canvas = Canvas(idx, orders, known, range(5))
    fill(model, canvas, unmasking(how), Drawing())
    for use_cache in (True, False):
        again = Canvas(canvas.idx, orders, known, range(5))
        fill(model, again, unmasking(how), Drawing(scores=True), use_cache)
        assert torch.equal(again.step, canvas.step)
        torch.testing.assert_close(again.logprob, canvas.logprob, rtol=0, atol=1e-12)
    for r in range(5):
        ((_, step, nats),) = by_paper(
            model, canvas.idx[r : r + 1], orders[r], int(known[r]), PAPERS[how]
        )
        assert canvas.step[r].tolist() == step
        assert abs(float(canvas.logprob[r].sum()) - nats) < 1e-12


@pytest.mark.parametrize('block_length', [None, 5])
@pytest.mark.parametrize('network', SOME)
def test_klass_remembers_the_laws_of_its_blanks(batch, network, block_length):
    """Of rows that end after each other, behind prompts; whole sets of blanks are revealed."""
    model = make_model(**NETWORKS[network])
    model.lm_head.weight.mul_(0.2)
    idx, order = batch
    known = torch.tensor([0, 6, 2, 4, 1])
    it = Klass(threshold=0.12, kl_limit=0.02, block_length=block_length)
    canvas = Canvas(idx, order, known, range(5))
    fill(model, canvas, it, Drawing(scores=True))
    rule = partial(klass, confidence=0.12, limit=0.02)
    sizes = set()
    for r in range(5):
        how = model, idx[r : r + 1], order[r], int(known[r]), rule, block_length
        ((_, step, nats),) = by_paper(*how)
        assert canvas.step[r].tolist() == step
        assert abs(float(canvas.logprob[r].sum()) - nats) < 1e-12
        sizes |= {step.count(i) for i in range(9)}
    assert len(sizes) > 2


@pytest.mark.parametrize('how', PAPERS)
def test_a_rule_looks_at_one_block_at_a_time(how):
    model = toy('decoder', how)
    rule, colon, number = how.partition(':')
    canvas = scored(model, EVERY[::5], ORDER, 1, f'{rule}/2{colon}{number}')
    papers = by_paper(model, EVERY[::5], ORDER, 1, PAPERS[how], block_length=2)
    assert canvas.step.tolist() == [step for _, step, _ in papers]


# ---- extremes

ONE = {'factor:0.001': 'top_prob', 'eb:0': 'entropy', 'klass:1': 'top_prob'}
ALL = ['factor:99', 'eb:99']


@pytest.mark.parametrize('how', ONE)
def test_at_one_end_a_rule_is_one_token_a_step(how):
    model = toy('encoder')
    canvas = scored(model, EVERY, ORDER, 0, how)
    one = scored(model, EVERY, ORDER, 0, ONE[how])
    assert torch.equal(canvas.order, one.order)
    assert torch.equal(canvas.step, one.step)
    assert torch.equal(canvas.logprob, one.logprob)


@pytest.mark.parametrize('how', ALL)
def test_at_the_other_end_a_rule_reveals_all_at_once(how):
    canvas = scored(toy('decoder'), EVERY, ORDER, 0, how)
    assert not canvas.step.any()


def test_klass_reveals_all_once_there_were_two_comparisons():
    canvas = Canvas(EVERY, ORDER.expand(81, 4), 0, range(81))
    fill(toy('mixed'), canvas, Klass(threshold=0, kl_limit=99), Drawing(scores=True))
    assert [*map(sorted, canvas.step.tolist())] == [[0, 1, 2, 2] for _ in EVERY]


def test_pc_sampler_has_the_schedule(network='encoder'):
    """Two blanks a step: with n_steps of half as many as blanks."""
    model = toy(network)
    canvas = Canvas(EVERY, ORDER.expand(81, 4), 0, range(81))
    fill(model, canvas, PcSampler(n_steps=2), Drawing(scores=True))
    papers = by_paper(model, EVERY, ORDER, 0, partial(pc_sampler, k=2))
    assert canvas.step.tolist() == [step for _, step, _ in papers]
    assert abs(float(canvas.logprob.sum(1).exp().sum()) - 1) < 1e-12


def test_pc_sampler_by_hand():
    """Of a rare token, a frequent one, and one that the training set does not have."""
    network = SimpleNamespace(counts=torch.tensor([0, 1, 8]))  # shares of 1, 2 and 9 in 12
    part = SimpleNamespace(order=torch.tensor([[2, 0, 3]]))
    cells = SimpleNamespace(row=torch.tensor([0, 0, 0]), visit=torch.tensor([0, 1, 2]))
    p = torch.tensor([[0.2, 0.7, 0.1], [0.3, 0.1, 0.6], [0.9, 0.05, 0.05]], dtype=torch.float64)
    it = PcSampler(decay=0.5, most=1.5)
    score = it.score_blanks(SimpleNamespace(network=network), part, None, cells, p.log()).exp()
    nats = [0.7 * math.log(12 / 2), 0.6 * math.log(12 / 9), 1.5]
    assert 0.9 * math.log(12) > 1.5
    want = [math.exp(-0.5 * i) * x for i, x in zip((2, 0, 3), nats)]
    assert score.tolist() == pytest.approx(want)


def test_klass_compares_laws_of_allowed_tokens(batch):
    """Others have probability 0, now and before."""
    model = make_model()
    model.lm_head.weight.mul_(0.1)
    allowed = torch.arange(11).expand(9, 11) < 6
    idx, order = batch
    canvas = Canvas(idx, order, 0, range(5), allowed=allowed)
    fill(model, canvas, Klass(threshold=0.12, kl_limit=0.1), Drawing())
    assert canvas.step.max() < 8


# ---- dilated


@pytest.mark.parametrize(
    'n, block, groups',
    [
        (8, 8, [[0, 4], [2, 6], [1, 3, 5, 7]]),
        (6, 8, [[0, 3], [1, 2, 4, 5]]),
        (6, 4, [[0, 2], [1, 3], [4, 5]]),
        (10, 5, [[0, 2, 4], [1, 3], [5, 7, 9], [6, 8]]),
        (3, 1, [[0], [1], [2]]),
        (9, 9, [[0, 4, 8], [2, 6], [1, 3, 5, 7]]),
        (0, 4, []),
    ],
)
def test_dilated_steps_by_hand(n, block, groups):
    assert dilated_groups(n, block) == groups
    if n and n & (n - 1) == 0 and n == block:
        assert len(groups) == math.log2(n)


@pytest.mark.parametrize('network', SOME)
def test_dilated_is_a_given_order(network):
    """Of the blanks in the order of their blocks; known tokens and rows differ."""
    model = toy(network)
    orders = torch.stack([ORDER, ORDER.flip(0)]).repeat(3, 1)
    known = torch.tensor([0, 1, 2, 0, 3, 4])
    idx = EVERY[::15]
    canvas = Canvas(idx, orders, known, range(6))
    fill(model, canvas, Dilated(4), Drawing(scores=True))
    for r in range(6):
        first = int(known[r])
        left = orders[r, first:].tolist()
        visits = orders[r, :first].tolist()
        nats = 0.0
        for t, group in enumerate(dilated_groups(len(left), 4)):
            blanks = [left[i] for i in group]
            laws = laws_of(model, idx[r], visits, blanks)
            nats += sum(float(laws[i][idx[r, i]].log()) for i in blanks)
            assert canvas.step[r, blanks].tolist() == [t for _ in blanks]
            visits += blanks
        assert canvas.order[r].tolist() == visits
        assert abs(float(canvas.logprob[r].sum()) - nats) < 1e-12


@pytest.mark.parametrize('block', [1, 2, 4])
def test_the_law_of_dilated_adds_up_to_1(block):
    model = toy('decoder')
    canvas = Canvas(EVERY, torch.arange(4).expand(81, 4), 0, range(81))
    fill(model, canvas, Dilated(block), Drawing(scores=True))
    assert abs(float(canvas.logprob.sum(1).exp().sum()) - 1) < 1e-12
    one = scored(model, EVERY, torch.arange(4), 0, 'l2r')
    is_same = torch.allclose(canvas.logprob, one.logprob, rtol=0, atol=1e-12)
    assert is_same == (block == 1)


# ---- drawn


def outcomes(model, text, visits, k, temperature=1.0):
    """{(blanks of a step, the surest first; their tokens): its probability}, by all draws."""
    left = [i for i in range(len(text)) if i not in visits]
    laws = laws_of(model, text, visits, left)
    found = {}
    for tokens in itertools.product(range(V), repeat=len(left)):
        draw = dict(zip(left, tokens))
        sure = {i: float(laws[i][v]) for i, v in draw.items()}
        law = {i: laws[i].log().div(temperature).softmax(-1) for i in left}
        chosen = tuple(sorted(left, key=lambda i: -sure[i])[:k])
        p = math.prod(float(law[i][v]) for i, v in draw.items())
        key = chosen, tuple(draw[i] for i in chosen)
        found[key] = found.get(key, 0) + p
    return found


def law_of_drawn(model, sizes):
    """{text of three tokens: its probability}, over all ways to write it in such steps."""
    found = {}

    def go_on(text, visits, p, sizes):
        if not sizes:
            found[tuple(text)] = found.get(tuple(text), 0) + p
            return
        for (chosen, tokens), share in outcomes(model, text, visits, sizes[0]).items():
            new = list(text)
            for i, v in zip(chosen, tokens):
                new[i] = v
            go_on(new, [*visits, *chosen], p * share, sizes[1:])

    go_on([0, 0, 0], [], 1.0, sizes)
    return found


THREE = torch.tensor([*itertools.product(range(V), repeat=3)])


@cache
def small(network):
    model = make_model(3, block_size=3, vocab_size=V, **NETWORKS[network])
    model.lm_head.weight.mul_(0.3)
    return model


def scored_by_drawn(model, texts, n_steps, **drawing):
    order = torch.tensor([2, 0, 1]).expand(len(texts), 3)
    canvas = Canvas(texts, order, 0, range(len(texts)))
    fill(model, canvas, Drawn(n_steps=n_steps), Drawing(**drawing, scores=True))
    return canvas


@pytest.mark.parametrize('network', SOME)
@pytest.mark.parametrize('n_steps, sizes', [(3, [1, 1, 1]), (2, [1, 2]), (1, [3])])
def test_a_step_of_drawn_is_priced_by_all_draws_that_reveal_true_tokens(network, n_steps, sizes):
    """Along the sets that the score has drawn."""
    model = small(network)
    canvas = scored_by_drawn(model, THREE, n_steps, temperature=0.7)
    for text, order, logprob in zip(THREE, canvas.order.tolist(), canvas.logprob):
        visits = []
        nats = 0.0
        for size in sizes:
            found = outcomes(model, text, visits, size, 0.7).items()
            true = [p for (some, tokens), p in found if tokens == tuple(text[list(some)].tolist())]
            nats += math.log(sum(true))
            visits = order[: len(visits) + size]
        assert abs(float(logprob.sum()) - nats) < 1e-10


@pytest.mark.parametrize('n_steps', [3, 2])
def test_the_probabilities_of_drawn_ways_have_the_law_as_their_mean(n_steps):
    """Of a text over all draws of its way: hence the mean of their logarithms is a bound."""
    model = small('encoder')
    few = scored_by_drawn(model, THREE.repeat(20, 1), n_steps).logprob.sum(1).view(20, 27)
    text = THREE[few.std(0).argmax()]  # which can be written in the most unlike ways
    n = 1_000
    p = scored_by_drawn(model, text.expand(n, 3), n_steps).logprob.sum(1).exp()
    law = law_of_drawn(model, [1, 2] if n_steps == 2 else [1, 1, 1])
    assert abs(sum(law.values()) - 1) < 1e-12
    true = law[tuple(text.tolist())]
    assert float(p.std()) > 0.01 * true
    assert abs(float(p.mean()) - true) < 5 * float(p.std()) / n**0.5


@pytest.mark.parametrize('are_equal', [False, True])
def test_sets_of_true_tokens_are_drawn_by_their_probability(are_equal):
    """Two of three blanks at once; of equals the first wins."""
    g = torch.Generator().manual_seed(2)
    n = 4_000
    law, score = torch.rand(2, 1, 3, dtype=torch.float64, generator=g).log()
    losing = torch.rand(1, 3, 3, dtype=torch.float64, generator=g).log()
    if are_equal:
        score = torch.full_like(score, -1)
    p = {}
    for chosen in itertools.combinations(range(3), 2):
        last = min(chosen, key=lambda i: (float(score[0, i]), -i))
        (other,) = {0, 1, 2} - {*chosen}
        p[chosen] = law[0, list(chosen)].sum() + losing[0, other, last]
    p = torch.stack([*p.values()]).exp()
    tables = [x.expand(n, *x.shape[1:]) for x in (law, score, losing)]
    u = torch.rand(2, n, 3, dtype=torch.float64, generator=g)
    total, chosen = likely_sets(*tables, torch.full((n,), 2), 2, u)
    assert (total.exp() - p.sum()).abs().max() < 1e-12
    assert (chosen.sum(1) == 2).all()
    number = (chosen.long() * torch.tensor([0, 1, 2])).sum(1) - 1  # 0 + 1, 0 + 2, 1 + 2
    assert chi2_of(number.bincount(minlength=3), p / p.sum()) < limit(2)


def test_drawn_writes_by_its_law():
    """A blank that stays is drawn anew at the next step."""
    model = small('decoder')
    n = 2_000
    order = torch.arange(3).expand(n, 3)
    canvas = Canvas(torch.zeros_like(order), order, 0, range(n))
    fill(model, canvas, Drawn(n_steps=3), Drawing())
    law = law_of_drawn(model, [1, 1, 1])
    p = torch.tensor([law[tuple(text)] for text in THREE.tolist()])
    counts = counts_of(canvas.idx)
    assert chi2_of(counts, p.double()) < limit(26)


# ---- options


@pytest.mark.parametrize(
    'text, order, noun',
    [
        ('factor', 'random', Factor()),
        ('factor:1.5', 'random', Factor(threshold=1.5)),
        ('factor/8:0.5', 'l2r', Factor(threshold=0.5, block_length=8)),
        ('eb', 'random', EntropyBounded()),
        ('eb/32:0.2', 'l2r', EntropyBounded(threshold=0.2, block_length=32)),
        ('klass', 'random', Klass()),
        ('klass/16:0.7', 'l2r', Klass(threshold=0.7, block_length=16)),
        ('pc_sampler', 'random', PcSampler()),
        ('pc_sampler/8', 'l2r', PcSampler(block_length=8)),
        ('dilated', 'l2r', Dilated(32)),
        ('dilated:8', 'l2r', Dilated(8)),
    ],
)
def test_a_rule_is_one_text(text, order, noun):
    assert order_and_unmasking(text) == (order, noun)


@pytest.mark.parametrize(
    'text, said',
    [
        ('factor:-1', 'factor/BLOCK_LENGTH'),
        ('factor:0', 'a factor above 0'),
        ('factor/x', 'factor/BLOCK_LENGTH'),
        ('factor/0', 'block_length'),
        ('factor+0.5', 'noise'),
        ('eb:x', 'eb/BLOCK_LENGTH'),
        ('eb:-0.1', 'eb/BLOCK_LENGTH'),
        ('klass:2', 'a confidence from 0 to 1'),
        ('klass+1', 'noise'),
        ('pc_sampler:3', 'no number'),
        ('dilated/8', 'dilated:BLOCK_LENGTH'),
        ('dilated:8.5', 'dilated:BLOCK_LENGTH'),
        ('dilated:0', 'block_length'),
        ('dilated+1', 'dilated:BLOCK_LENGTH'),
        ('drawn:3', 'no number'),
        ('facto', 'factor'),
    ],
)
def test_what_is_no_rule_is_one_line(text, said):
    with one_line(said):
        order_and_unmasking(text)


@pytest.mark.parametrize('rule', RULES)
def test_rules_do_not_go_with_what_says_how_many(rule):
    for options in (dict(unmask='lossless'), dict(unmask='binomial', n_steps=3)):
        if rule in ('pc_sampler', 'drawn') and options['unmask'] == 'binomial':
            continue  # they have a schedule
        with one_line(rule):
            unmasking_of(policy=rule, **options)


def test_a_rule_wants_what_a_checkpoint_says():
    model = make_model(block_size=N, vocab_size=V)
    canvas = Canvas(EVERY, ORDER.expand(81, 4), 0, range(81))
    with one_line('pc_sampler wants to know how often each token'):
        fill(model, canvas, PcSampler(), Drawing())


def test_the_model_of_a_checkpoint_has_its_counts(tmp_path):
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    for counts in ({}, {'counts': torch.arange(257)}):
        save_checkpoint(tmp_path / 'c.pt', model, tokenizer='bytes', **counts)
        opened = Checkpoint(tmp_path / 'c.pt').model('raw')
        assert hasattr(opened, 'counts') == bool(counts)
        assert opened.state_dict().keys() == model.state_dict().keys()
        if counts:
            it = order_and_unmasking('pc_sampler', n_steps=4)[1]
            order = torch.arange(32).repeat(2, 1)
            canvas = Canvas(order, order, 3, range(2))
            fill(freeze(opened), canvas, it, Drawing())
            assert not canvas.n_blanks.any()
