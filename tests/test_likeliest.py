"""The likeliest tokens of each place: those of a naive softmax at every step, in all ways of
writing."""

import itertools
import math

import pytest
import torch
from conftest import make_model, one_line
from oracle import ENCODER, FINAL, TWO_STREAM
from simulated_gpu import Graph, counted

from anyorder import Writer
from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, keep_largest
from anyorder.generation.fill import fill, steps
from anyorder.generation.likeliest import ask_for
from anyorder.generation.options import choice_in, unmasking_of
from anyorder.generation.rules import RULES
from anyorder.generation.scores import SCORES

KNOWN = torch.tensor([0, 3, 9, 4, 1])  # the prompt of each of the five rows, in tokens
N_VISITS = torch.tensor([9, 8, 9, 6, 9])  # and where the row ends
K = 4
CUTS = [
    dict(temperature=0.6, top_k=3),
    dict(temperature=1.7, top_p=0.6),
    {},
    dict(temperature=0),
    dict(temperature=0, top_k=2),
]
LOSSLESS = dict(unmask='lossless:4')
WAYS = [
    dict(n_steps=9),
    dict(n_steps=3, schedule='cosine'),
    dict(schedule=[1, 4, 9]),
    dict(n_steps=3, unmask='binomial'),
    dict(n_steps=2, policy='margin'),
    dict(n_steps=4, policy='margin/3', unmask='binomial'),
    dict(n_steps=9, policy='entropy+0.5'),
    dict(policy='top_prob/4:0.3'),
    dict(policy='klass:0.2'),
    dict(policy='factor:2.0'),
    dict(policy='eb:2.0'),
    dict(policy='pc_sampler', n_steps=3),
    dict(policy='drawn', n_steps=3),
    dict(policy='dilated:4'),
    dict(n_steps=3, revise=2),
    dict(n_steps=4, policy='margin', revise=2),
    LOSSLESS,
]
NETWORKS = {'decoder': {}, 'mixed': FINAL[0], 'encoder': ENCODER, 'two streams': TWO_STREAM[0]}
ALLOWED = torch.arange(11) % 3 != torch.arange(9).unsqueeze(1) % 3  # (positions, V)
TRUE = {'scores': True}


def network(name):
    model = make_model(**NETWORKS[name])
    model.register_buffer('counts', torch.arange(11), persistent=False)
    return model


def asked(batch, k=K, allowed=None):
    """The canvas of five rows, of whose places the k likeliest tokens are kept."""
    canvas = Canvas(*batch, KNOWN, range(5), N_VISITS, allowed)
    if k:
        ask_for(canvas, k)
    return canvas


def answers(model, part, row, known, allowed):
    """{position: logits (V,)} of the visits of a row from `known` on, by a pass of its own."""
    n = int(part.n_visits[row])
    order = part.order[row : row + 1]
    logits = model.predict(part.idx[row : row + 1], order, known, n - known, n_visits=n)[0]
    positions = order[0, known:n].tolist()
    if allowed is not None:
        logits = logits.masked_fill(~allowed[positions], -torch.inf)
    return dict(zip(positions, logits))


def law_of(logits, temperature=1.0, top_k=0, top_p=1.0, scores=False):
    """log p (V,) of the law by which a token is drawn; at temperature 0 that of temperature 1."""
    logits = logits.unsqueeze(0) / (temperature or 1.0)
    if top_k or top_p < 1:
        logits = keep_largest(logits, top_k, top_p)
    return logits.log_softmax(-1)[0]


def check(found, law, token=None):
    """What is kept of a place (1 + 2k,) is what its law (V,) says."""
    own, *found = found.tolist()
    k = len(found) // 2
    nats = law.new_tensor(found[:k])
    ids = [int(i) for i in found[k:]]
    torch.testing.assert_close(nats, law.topk(k).values, rtol=0, atol=1e-10)
    torch.testing.assert_close(nats, law[ids], rtol=0, atol=1e-10)
    assert len({*ids}) == k
    if token is not None:
        torch.testing.assert_close(law.new_tensor(own), law[token], rtol=0, atol=1e-10)


def check_steps(model, batch, how, allowed=None, use_cache=True, **drawing):
    """Write, and compare after each step the places that it wrote with passes of their own.

    Return how many places were written."""
    canvas = asked(batch, allowed=allowed)
    is_lossless = how is LOSSLESS
    n_written = 0
    several = steps(model, canvas, unmasking_of(**how), Drawing(**drawing), use_cache)
    for _, n_new, part in several:
        for row, (known, n) in enumerate(zip(part.known.tolist(), n_new.tolist())):
            before = known - n  # when the step began
            for visit in range(before, known):
                position = int(part.order[row, visit])
                at = visit if is_lossless else before  # each given the ones before it
                law = law_of(answers(model, part, row, at, allowed)[position], **drawing)
                check(part.likeliest[row, position], law, part.idx[row, position])
                n_written += 1
    assert bool(n_written)
    return n_written


# ---- all ways


def test_every_choice_of_a_model_is_here():
    found = {choice_in(how['policy'])['policy'] for how in WAYS if 'policy' in how}
    assert found == {*SCORES, *RULES}


@pytest.mark.parametrize('how, drawing', [*zip(WAYS, itertools.cycle(CUTS))], ids=str)
def test_a_token_has_the_law_that_wrote_it(batch, how, drawing):
    n = check_steps(network('decoder'), batch, how, **drawing)
    n_blanks = int((N_VISITS - KNOWN).sum())
    assert n > n_blanks if 'revise' in how else n == n_blanks


@pytest.mark.slow
@pytest.mark.parametrize('name', NETWORKS)
@pytest.mark.parametrize('how', WAYS, ids=str)
def test_so_it_has_in_all_networks(batch, name, how):
    """With its cache and without, where all tokens are allowed and where some are."""
    if name in ('mixed', 'encoder') and how is LOSSLESS:
        return
    model = network(name)
    check_steps(model, batch, how, ALLOWED, **CUTS[0])
    check_steps(model, batch, how, use_cache=False, **CUTS[1])


@pytest.mark.parametrize('how', [WAYS[1], WAYS[4], WAYS[7]], ids=str)
def test_a_scored_text_has_the_law_by_which_it_is_scored(batch, how):
    model = network('decoder')
    check_steps(model, batch, how, **CUTS[0], **TRUE)
    canvas = asked(batch)
    fill(model, canvas, unmasking_of(**how), Drawing(**CUTS[0], **TRUE))
    written = canvas.step >= 0
    assert torch.equal(canvas.likeliest[..., 0][written], canvas.logprob[written])


def test_what_is_kept_changes_nothing(batch):
    model = network('decoder')
    for how in (WAYS[4], LOSSLESS):
        found = []
        for k in (0, 3, 11):
            canvas = asked(batch, k)
            fill(model, canvas, unmasking_of(**how), Drawing())
            found.append(canvas)
        plain, few, all_of_them = found
        for name in ('idx', 'order', 'step', 'logprob'):
            assert torch.equal(getattr(few, name), getattr(plain, name))
        own, nats, _, ids, _ = all_of_them.likeliest.split([1, 3, 8, 3, 8], 2)
        assert torch.equal(few.likeliest, torch.cat([own, nats, ids], 2))


# ---- on a device


ON_DEVICE = [WAYS[4], LOSSLESS]
ON_DEVICE += [pytest.param(how, marks=pytest.mark.slow) for how in WAYS[:14:3]]


@pytest.mark.parametrize('how', ON_DEVICE, ids=str)
def test_a_device_keeps_the_same_without_a_wait(simulated, batch, how):
    """Whichever numbers of tokens are asked for by turns, launched and recorded."""
    drawing = Drawing(**CUTS[0])
    model = network('decoder').float()
    wanted = {}
    for k in (2, 3):
        wanted[k] = asked(batch, k)
        fill(model, wanted[k], unmasking_of(**how), drawing)

    def body(device):
        frozen = freeze(network('decoder').float().to(device))
        n_waits = []
        for k in (2, 3, 2, 3, 2):
            canvas = asked([x.to(device) for x in batch], k)
            with counted() as counts:
                fill(frozen, canvas, unmasking_of(**how), drawing)
            n_waits.append(counts.waits.total())
            assert torch.equal(canvas.idx.cpu(), wanted[k].idx)
            found = canvas.likeliest.cpu()
            torch.testing.assert_close(found, wanted[k].likeliest, rtol=0, atol=1e-4)
        assert len({*n_waits}) == 1
        assert Graph.n_replays

    simulated(body)


# ---- samples


def law_at(writer, sample, position, known):
    """log p (V,) of a position of a sample, given the positions that are known, in their order."""
    idx = torch.tensor([sample['tokens']]).clamp(min=0)
    order = torch.tensor([[*known, position]])
    rest = [p for p in range(idx.size(1)) if p not in (*known, position)]
    order = torch.cat([order, torch.tensor([rest], dtype=torch.long)], 1)
    return writer.model.predict(idx, order, len(known), 1)[0, 0].detach().log_softmax(-1)


def said(place):
    """(ids, nats) of the likeliest tokens of a place."""
    return [one['token'] for one in place['top']], [one['logprob'] for one in place['top']]


def assert_said(place, law):
    ids, nats = said(place)
    best = law.topk(len(ids))
    assert ids == best.indices.tolist()
    assert nats == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_writer_says_the_likeliest_tokens(ckpt):
    writer = Writer(ckpt, 'raw')
    text = writer.infill('ab[[5]]c', order='margin', top_logprobs=3)
    sample = text.sample
    assert text.top_logprobs is sample['top_logprobs']
    visits = sample['order']
    assert [p for p, place in enumerate(text.top_logprobs) if place is None] == [0, 1, 7]
    for d in range(3, 8):
        place = text.top_logprobs[visits[d]]
        law = law_at(writer, sample, visits[d], visits[:d])
        assert_said(place, law)
        assert place['token'] == sample['tokens'][visits[d]]
        assert place['logprob'] == pytest.approx(float(law[place['token']]), abs=1e-4)
    assert writer.infill('ab[[5]]c', order='margin').top_logprobs is None
    cut = writer.infill('ab[[5]]c', top_logprobs=3, top_k=2, temperature=0)
    assert {len(place['top']) for place in cut.top_logprobs[2:7]} == {2}


def test_one_step_has_the_laws_of_all_blanks(ckpt):
    writer = Writer(ckpt, 'raw')
    text = writer.infill('ab[[3]]c', order='random', n_steps=1, top_logprobs=5)
    for position in (2, 3, 4):
        law = law_at(writer, text.sample, position, [0, 1, 5])
        assert_said(text.top_logprobs[position], law)


def test_long_texts_have_the_laws_of_their_stretches(ckpt):
    """In both stretches of 32 positions, of which the second begins 16 before its first blank."""
    writer = Writer(ckpt, 'raw')
    text = writer.infill('ab[[40]]', order='l2r', length=42, top_logprobs=2)
    assert len(text.top_logprobs) == 42
    assert None not in text.top_logprobs[2:]
    (_, first_end), (start, _) = text.sample['stretches']
    assert (first_end, start) == (32, 16)
    stretch = {'tokens': text.sample['tokens'][start:]}
    for p in (32, 35, 41):
        law = law_at(writer, stretch, p - start, [*range(p - start)])
        assert_said(text.top_logprobs[p], law)


def test_a_stop_cuts_what_is_kept(ckpt):
    writer = Writer(ckpt, 'raw')
    for seed in range(3):
        text = writer.infill(
            'ab[[..]]cd', order='l2r', stop=['e', '1', ' '], top_logprobs=1, seed=seed
        )
        places = text.top_logprobs
        assert len(places) == len(text.sample['tokens'])
        for step, token, place in zip(text.sample['step'], text.sample['tokens'], places):
            assert (place is None) == (step < 0)
            assert place is None or place['token'] == token


@pytest.mark.parametrize(
    'options, said',
    [
        (dict(top_logprobs=-1), 'top_logprobs'),
        (dict(top_logprobs=258), 'top_logprobs'),
        (dict(top_logprobs=True), 'top_logprobs'),
    ],
)
def test_what_is_refused(ckpt, options, said):
    with one_line(said):
        Writer(ckpt).infill('ab[[..]]', **options)


def test_a_penalty_and_min_p_are_in_the_law(ckpt):
    writer = Writer(ckpt, 'raw')
    how = dict(order='l2r', presence_penalty=1.5, min_p=0.2, temperature=0.7, top_logprobs=6)
    text = writer.infill('ab[[6]]', **how)
    for p in range(2, 8):
        logits = law_at(writer, text.sample, p, [*range(p)])
        logits[[*{*text.sample['tokens'][:p]}]] -= 1.5
        logits = logits / 0.7
        logits[logits < logits.max() + math.log(0.2)] = -torch.inf
        place = text.top_logprobs[p]
        assert_said(place, logits.log_softmax(-1))
        assert len(place['top']) == min(6, int(logits.isfinite().sum()))
