"""What holds for every way of writing, whatever is added: features times laws, on tiny networks.

A feature is a row of FEATURES, and its slow definition, if it has one, stands in oracle.py: another
score, rule, cut or penalty is tested by one row, here, and by what it alone defines, elsewhere."""

import itertools
from functools import cache
from typing import NamedTuple

import oracle
import pytest
import torch
from conftest import close, make_model
from oracle import CUTS, FINAL, NETWORKS, VARIANTS, ByDefinition

from anyorder.fast import freeze
from anyorder.generation import canvas, drawing, fill, runner
from anyorder.generation.canvas import Canvas
from anyorder.generation.options import drawing_in, unmasking_of
from anyorder.generation.rules import RULES
from anyorder.generation.scores import SCORES
from anyorder.generation.way import Way


class Feature(NamedTuple):
    """A row: options of generate, the laws that do not hold and why, and for which networks.

    `allowed` among the options says that some tokens may not stand everywhere."""

    how: dict
    lacks: dict = {}
    networks: tuple = ('decoder',)


EVERYWHERE = tuple(NETWORKS)
DECODERS = ('decoder', 'two streams')
PLANNED = dict(resumed='a schedule plans anew what is left')
BLOCKS = dict(resumed='blocks begin behind the prompt')
BY_STEP = dict(resumed='a step draws numbers of its own')
ENDS = PLANNED | dict(batch='its ends lead to the longest text', sum='and are of nine blanks')
COMPARED = dict(resumed='it compares with steps before')
OUTSIDE = dict(definition='its rule is read in tests/extras')
BOUND = dict(scored='its texts have a bound alone', sum='its texts have a bound alone')
REVISED = dict(scored='a text that is scored stays', sum='a text that is scored stays')
GREEDY = dict(scored='one text has probability 1', sum='one text has probability 1')
GUIDED = dict(resumed='what was written is no prompt')

NAMED = [*SCORES]
WAYS = [
    Feature({}, {}, EVERYWHERE),
    Feature(dict(n_steps=4), PLANNED),
    Feature(dict(n_steps=5, schedule='cosine'), PLANNED),
    Feature(dict(schedule=[1, 4, 9]), ENDS),
    Feature(dict(n_steps=4, unmask='binomial'), PLANNED, ('decoder', 'mixed')),
    Feature(dict(n_steps=4, unmask='binomial', schedule='cosine', policy='margin'), PLANNED),
    Feature(dict(unmask='lossless:4'), {}, DECODERS),
    *[Feature(dict(policy=score)) for score in NAMED],
    Feature(dict(policy=f'{oracle.__file__}:zero', n_steps=4), PLANNED),
    Feature(dict(policy='margin', n_steps=4), PLANNED, EVERYWHERE),
    Feature(dict(policy='entropy+2.0', n_steps=5, schedule='cosine'), PLANNED),
    Feature(dict(policy='top_prob:0.4'), {}, ('decoder', 'mixed')),
    Feature(dict(policy='margin:0.2+0.1'), BY_STEP),
    Feature(dict(policy='entropy/3', n_steps=4), PLANNED),
    Feature(dict(policy='top_prob/3', n_steps=6, schedule='cosine'), PLANNED),
    Feature(dict(policy='margin/3:0.2'), BLOCKS),
    Feature(dict(policy='margin/3', n_steps=4, unmask='binomial', schedule='cosine'), PLANNED),
    Feature(dict(policy='factor/3:2.0'), BLOCKS),
    Feature(dict(policy='eb/3:2.0'), BLOCKS),
    Feature(dict(policy='often:0.2'), COMPARED, ('decoder', 'mixed')),
    Feature(dict(policy='often/5:0.2', allowed=True), COMPARED | dict(sum='of longer texts')),
    Feature(dict(policy='early', n_steps=4), PLANNED, ('decoder', 'encoder')),
    Feature(dict(policy='dilated:4'), OUTSIDE | PLANNED),
    Feature(dict(policy='drawn', n_steps=4), OUTSIDE | BOUND | PLANNED),
    Feature(dict(n_steps=4, revise=2), REVISED | PLANNED, ('decoder', 'encoder')),
    Feature(dict(policy='margin/3+1.0', n_steps=6, revise=2), REVISED | PLANNED),
    Feature(dict(n_steps=9, unmask='binomial', revise=2), REVISED | PLANNED),
]
CUT = dict(temperature=0.7, top_p=0.8, top_k=4)
ALL = dict(temperature=0.7, min_p=0.1, presence_penalty=0.5, cfg_scale=0.7)
DRAWINGS = [
    Feature(dict(temperature=0.0), GREEDY),
    Feature(dict(temperature=0.7)),
    Feature(dict(temperature=1.5, top_k=5)),
    Feature(dict(top_p=0.7)),
    Feature(CUT),
    Feature(dict(min_p=0.2)),
    Feature(dict(presence_penalty=1.5)),
    Feature(dict(presence_penalty=-0.5)),
    Feature(dict(cfg_scale=1.5), GUIDED),
    Feature(dict(allowed=True)),
    Feature(dict(allowed=True, top_k=2, presence_penalty=0.5)),
    Feature(ALL, GUIDED),
]
LOSSLESS = Feature(dict(unmask='lossless:4'))
BY_MARGIN = Feature(dict(policy='margin', n_steps=4), PLANNED)
COMBINED = [
    Feature(dict(policy='entropy/3', n_steps=4) | ALL, PLANNED, EVERYWHERE),
    Feature(CUT),
    Feature(dict(temperature=0.0, presence_penalty=1.5), GREEDY),
    Feature(dict(allowed=True), {}, ('decoder', 'encoder')),
    Feature(dict(presence_penalty=1.5)),
    Feature(dict(cfg_scale=1.5), GUIDED, ('decoder', 'mixed')),
    Feature(dict(policy='margin/3:0.2', allowed=True), BLOCKS),
    Feature(dict(policy='margin/3+1.0', cfg_scale=1.5), BY_STEP),
    Feature(dict(policy='eb/3:2.0', presence_penalty=1.5), BLOCKS),
    Feature(dict(policy='factor:2.5', cfg_scale=1.5), GUIDED),
    Feature(dict(n_steps=4, revise=2, presence_penalty=1.5), REVISED | PLANNED),
    Feature(dict(policy='margin', n_steps=4, revise=2, allowed=True), REVISED | PLANNED),
    Feature(dict(n_steps=3, revise=5, temperature=0.0), GREEDY | PLANNED),  # until all fit
]
PAIRS = zip(itertools.cycle([LOSSLESS, BY_MARGIN]), DRAWINGS)
MIXED = [Feature(way.how | drawn.how, way.lacks | drawn.lacks) for way, drawn in PAIRS]
FEATURES = {str(feature.how): feature for feature in WAYS + MIXED + COMBINED}

KNOWN = torch.tensor([0, 3, 9, 4])  # the prompt of each of four rows, in tokens
N_VISITS = torch.tensor([9, 8, 9, 6])  # and where the row ends
SEEDS = [4, 10**30, 7, 4]
EVERY = torch.tensor([*itertools.product(range(3), repeat=3)])


def holds(law):
    """Parametrize by (network, name of a feature) where a law holds."""
    pairs = []
    for name, feature in FEATURES.items():
        if law not in feature.lacks:
            pairs += [(network, name) for network in feature.networks]
    return pytest.mark.parametrize('network, name', pairs)


# ---- rows that are written


@pytest.fixture(autouse=True)
def rules(monkeypatch):
    monkeypatch.setitem(RULES, 'often', 'oracle:Often')
    monkeypatch.setitem(RULES, 'early', 'oracle:Early')


@cache
def model_of(network):
    model = make_model(vocab_size=16, n_tokens=11, **NETWORKS[network])
    model.register_buffer('counts', torch.arange(16) % 3, persistent=False)  # for early
    return model


def batch():
    """(idx, order) of four rows; what stands behind a row are its last positions."""
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(11, (4, 9), generator=g)
    rows = [[*torch.randperm(n, generator=g).tolist(), *range(n, 9)] for n in N_VISITS.tolist()]
    return idx, torch.tensor(rows)


def allowed_by(model):
    """Which tokens may stand where, (positions, tokens): about half of them."""
    shape = model.config.block_size, model.config.n_real
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.5
    allowed[:, 1] = True
    return allowed


frozen = cache(freeze)  # once: to copy a network costs as much as three steps


def run(model, how, idx, order, known, seeds, n_visits=None, use_cache=True, scores=False):
    """The canvas of rows that are written, or scored, by options of generate."""
    options = dict(n_steps=idx.size(1)) | how
    allowed = allowed_by(model) if options.pop('allowed', False) else None
    drawn = drawing_in(options, scores)
    canvas = Canvas(idx, order, known, seeds, n_visits, allowed)
    network = frozen(model) if use_cache else model
    fill.fill(network, canvas, Way(unmasking_of(**options), drawn), use_cache)
    return canvas


def write(network, name, rows=slice(4)):
    """The canvas of these rows."""
    tables = [x[rows] for x in (*batch(), KNOWN)]
    how = FEATURES[name].how
    return run(model_of(network), how, *tables, SEEDS[rows], N_VISITS[rows])


@cache
def written(network, name):
    return write(network, name)


@cache
def scored(network, name):
    """The canvas that scores what was written."""
    rows = written(network, name).idx, batch()[1], KNOWN, SEEDS, N_VISITS
    return run(model_of(network), FEATURES[name].how, *rows, scores=True)


def assert_same(one, other, rows=slice(None), names=('idx', 'order', 'step', 'logprob')):
    for name in names:
        close(getattr(one, name), getattr(other, name)[rows])


# ---- the laws


@holds('definition')
def test_it_is_the_definition_written_and_scored(network, name):
    """Which has no cache."""
    model = model_of(network)
    feature = FEATURES[name]
    canvas = written(network, name)
    how = dict(feature.how)
    allowed = allowed_by(model) if how.pop('allowed', False) else None
    idx, order = batch()
    is_scored = 'scored' not in feature.lacks
    again = scored(network, name) if is_scored else None
    for r, n in enumerate(N_VISITS.tolist()):
        row = idx[r], order[r], int(KNOWN[r]), n, SEEDS[r]
        slow = ByDefinition(model, *row, allowed=allowed, **how)
        assert canvas.order[r, :n].tolist() == slow.visits
        assert torch.equal(canvas.idx[r, :n], slow.text[:n])
        if not slow.is_lossless:
            assert torch.equal(canvas.step[r], slow.step)
        close(canvas.logprob[r], slow.logprob)
        if is_scored:
            close(again.logprob[r], slow.drawn_logprob)


@holds('batch')
def test_a_row_does_not_depend_on_its_batch(network, name):
    row = slice(1, 2)
    assert_same(write(network, name, row), written(network, name), row)


@holds('scored')
def test_a_score_is_what_was_written(network, name):
    """With noise, too: in the same order and steps."""
    canvas = written(network, name)
    how = FEATURES[name].how
    names = ['idx', 'order']
    if not {*how} & {*CUTS}:
        names.append('logprob')
    if 'lossless' not in how.get('unmask', ''):
        names.append('step')
    again = scored(network, name)
    assert_same(again, canvas, names=names)
    assert torch.equal(again.n_known, N_VISITS)


@cache
def choosy(network):
    """A network of three tokens at three positions. Which blank is surest depends on what is known:
    the first seed of which this is true, as versions of torch draw other weights."""
    for seed in itertools.count(20):
        model = make_model(seed, block_size=3, vocab_size=3, **NETWORKS[network])
        model.register_buffer('counts', torch.arange(3), persistent=False)
        model.lm_head.weight.mul_(0.5)
        model.lm_head.bias.zero_()
        found = [law_of(model, dict(policy='margin'), 0), law_of(model, dict(policy='margin/2'), 1)]
        if min(len(canvas.order.unique(dim=0)) for canvas in found) > 1:
            return model


def law_of(model, how, known, texts=EVERY):
    """The canvas that scores every text, given its token at position 2 if that is known."""
    order = torch.tensor([2, 0, 1]).expand(len(texts), 3)
    return run(model, how, texts, order, known, len(texts) * [0], scores=True)


@holds('sum')
def test_the_probabilities_of_all_texts_sum_to_1(network, name):
    """Without a prompt, and given each token that may stand at position 2."""
    model = choosy(network)
    how = dict(FEATURES[name].how)
    if 'n_steps' in how:
        how['n_steps'] = 2
    texts = EVERY
    if how.get('allowed'):
        texts = EVERY[allowed_by(model)[torch.arange(3), EVERY].all(1)]
    p = law_of(model, how, 0, texts).logprob.sum(1).exp()
    close(float(p.sum()), 1.0)
    p = law_of(model, how, 1, texts).logprob.sum(1).exp()
    total = torch.zeros(3, dtype=p.dtype).index_add(0, texts[:, 2], p)
    prompts = texts[:, 2].unique()
    close(total[prompts], torch.ones_like(p[prompts]))


@holds('device')
def test_padded_steps_of_rows_that_stay_write_the_same(monkeypatch, network, name):
    """As a device runs them, where a blank that repeats may be scored in another part."""
    exact = written(network, name)
    monkeypatch.setattr(runner, 'split_rows', lambda vocab_size, x: [x.split(3)])
    for module in (canvas, drawing):
        monkeypatch.setattr(module, 'is_exact', lambda device: False)
    assert_same(write(network, name), exact)


@holds('resumed')
def test_a_text_that_is_given_in_part_goes_on_as_it_would_have(network, name):
    """From the fourth step on, of each row."""
    whole = written(network, name)
    known = KNOWN + ((whole.step >= 0) & (whole.step < 3)).sum(1)
    rows = whole.idx, whole.order, known, SEEDS, N_VISITS
    rest = run(model_of(network), FEATURES[name].how, *rows)
    assert_same(rest, whole, names=('idx', 'order'))
    is_new = rest.step >= 0
    assert is_new.any()
    close(rest.logprob[is_new], whole.logprob[is_new])


# ---- all networks, and prompts that are read apart


@pytest.mark.parametrize('variant', VARIANTS + FINAL)
def test_every_network_writes_the_same_with_a_cache(variant):
    model = make_model(**variant)
    ways = [dict(policy='margin/3:0.2') | ALL, dict(n_steps=4, unmask='binomial')]
    if not model.slots.masked_loss:
        ways.append(dict(unmask='lossless:4'))
    for how in ways:
        rows = *batch(), KNOWN, SEEDS, N_VISITS
        assert_same(run(model, how, *rows), run(model, how, *rows, use_cache=False))


@pytest.mark.parametrize(
    'network, how',
    [
        ('decoder', dict(n_steps=6)),
        ('mixed', dict(n_steps=6, cfg_scale=1.5)),
        ('two streams', dict(policy='margin', n_steps=6, cfg_scale=1.5)),
        ('two streams', dict(unmask='lossless:16')),
    ],
)
def test_prompts_that_are_read_in_groups_change_nothing(network, how):
    """As those are whose lengths differ by a bucket, with a cache."""
    model = make_model(block_size=80, **NETWORKS[network])
    order = torch.rand(5, 80, generator=torch.Generator().manual_seed(1)).argsort(-1)
    rows = order % 11, order, torch.tensor([40, 3, 75, 70, 0]), range(5)
    assert_same(run(model, how, *rows), run(model, how, *rows, use_cache=False))
