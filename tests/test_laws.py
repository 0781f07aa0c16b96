"""What holds for every way of writing, whatever is added: features times laws, on tiny networks.

A feature is a row of TABLE, and its slow definition, if it has one, stands in oracle.py: another
score, rule, cut or penalty is tested by one row, here, and by what it alone defines, elsewhere."""

import itertools
from functools import cache

import oracle
import pytest
import torch
from conftest import close, make_model, options_in, rows_of
from oracle import CUTS, EVERY, NETWORKS, ByDefinition

from anyorder.fast import freeze
from anyorder.generation import canvas, drawing, fill, runner
from anyorder.generation.canvas import Canvas
from anyorder.generation.options import drawing_in, unmasking_of
from anyorder.generation.rules import RULES
from anyorder.generation.scores import SCORES
from anyorder.generation.way import Way

# a word of a feature: the laws that do not hold for it, and why
LACKS = {
    'planned': 'resumed',  # a schedule plans anew what is left
    'blocks': 'resumed',  # blocks begin behind the prompt
    'by_step': 'resumed',  # a step draws numbers of its own
    'ends': 'resumed batch sum',  # its ends are of nine blanks, and lead to the longest text
    'compared': 'resumed',  # it compares with steps before
    'longer': 'sum',  # it is of longer texts
    'outside': 'definition',  # its rule is read in tests/extras
    'bound': 'scored sum',  # its texts have a bound alone
    'revised': 'scored sum',  # a text that is scored stays
    'greedy': 'scored sum',  # one text has probability 1
    'guided': 'resumed',  # what was written is no prompt
}

# Options of generate; words of LACKS, and which networks there are beside the decoder. `allowed`
# says that some tokens may not stand everywhere.
TABLE = """
    | everywhere
n_steps=4 | planned
n_steps=5 schedule=cosine | planned
schedule=[1,4,9] | ends
n_steps=4 unmask=binomial | planned mixed
n_steps=4 unmask=binomial schedule=cosine policy=margin | planned
unmask=lossless:4 | two streams
policy=margin n_steps=4 | planned everywhere
policy=entropy+2.0 n_steps=5 schedule=cosine | planned
policy=top_prob:0.4 | mixed
policy=margin:0.2+0.1 | by_step
policy=entropy/3 n_steps=4 | planned
policy=top_prob/3 n_steps=6 schedule=cosine | planned
policy=margin/3:0.2 | blocks
policy=margin/3 n_steps=4 unmask=binomial schedule=cosine | planned
policy=factor/3:2.0 | blocks
policy=eb/3:2.0 | blocks
policy=often:0.2 | compared mixed
policy=often/5:0.2 allowed=True | compared longer
policy=early n_steps=4 | planned encoder
policy=dilated:4 | outside planned
policy=drawn n_steps=4 | outside bound planned
n_steps=4 revise=2 | revised planned encoder
policy=margin/3+1.0 n_steps=6 revise=2 | revised planned
n_steps=9 unmask=binomial revise=2 | revised planned

unmask=lossless:4 temperature=0.0 | greedy
policy=margin n_steps=4 temperature=0.7 | planned
unmask=lossless:4 temperature=1.5 top_k=5 |
policy=margin n_steps=4 top_p=0.7 | planned
unmask=lossless:4 temperature=0.7 top_p=0.8 top_k=4 |
policy=margin n_steps=4 min_p=0.2 | planned
unmask=lossless:4 presence_penalty=1.5 |
policy=margin n_steps=4 presence_penalty=-0.5 | planned
unmask=lossless:4 cfg_scale=1.5 | guided
policy=margin n_steps=4 allowed=True | planned
unmask=lossless:4 allowed=True top_k=2 presence_penalty=0.5 |
policy=margin n_steps=4 temperature=0.7 min_p=0.1 presence_penalty=0.5 cfg_scale=0.7 | planned

policy=entropy/3 n_steps=4 temperature=0.7 min_p=0.1 presence_penalty=0.5 cfg_scale=0.7 | \
planned everywhere
temperature=0.7 top_p=0.8 top_k=4 |
temperature=0.0 presence_penalty=1.5 | greedy
allowed=True | encoder
presence_penalty=1.5 |
cfg_scale=1.5 | guided mixed
policy=margin/3:0.2 allowed=True | blocks
policy=margin/3+1.0 cfg_scale=1.5 | by_step
policy=eb/3:2.0 presence_penalty=1.5 | blocks
policy=factor:2.5 cfg_scale=1.5 | guided
policy=factor:0 |
n_steps=4 revise=2 presence_penalty=1.5 | revised planned
policy=margin n_steps=4 revise=2 allowed=True | revised planned
n_steps=3 revise=5 temperature=0.0 | greedy planned
"""
FEATURES = {f'policy={score}': '' for score in SCORES}
for row in filter(None, TABLE.splitlines()):
    options, _, words = row.partition('|')
    FEATURES[options.strip()] = words
ZERO = 'policy=zero n_steps=4'  # a score of one's own
FEATURES[ZERO] = 'planned'

KNOWN = torch.tensor([0, 3, 9, 4])  # the prompt of each of four rows, in tokens
N_VISITS = torch.tensor([9, 8, 9, 6])  # and where the row ends
SEEDS = [4, 10**30, 7, 4]


def holds(law):
    """Parametrize by (network, options of a feature) where a law holds."""
    pairs = []
    for name, words in FEATURES.items():
        lacked = ' '.join(LACKS.get(word, '') for word in words.split())
        if law not in lacked.split():
            where = f'decoder {words}'
            pairs += [(one, name) for one in NETWORKS if one in where or 'everywhere' in where]
    return pytest.mark.parametrize('network, name', pairs)


def how_of(name):
    """The options of a feature."""
    how = options_in(name)
    if name == ZERO:
        how['policy'] = f'{oracle.__file__}:zero'
    return how


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


def run(model, how, idx, order, known, seeds, n_visits=None, use_cache=True, forced=False):
    """The canvas of rows that are written, or scored, by options of generate."""
    options = dict(n_steps=idx.size(1)) | how
    allowed = allowed_by(model) if options.pop('allowed', False) else None
    drawn = drawing_in(options, forced)
    canvas = Canvas(idx, order, known, seeds, n_visits, allowed)
    network = frozen(model) if use_cache else model
    fill.fill(network, canvas, Way(unmasking_of(**options), drawn), use_cache)
    return canvas


def write(network, name, rows=slice(4)):
    """The canvas of these rows."""
    tables = [x[rows] for x in (*batch(), KNOWN)]
    return run(model_of(network), how_of(name), *tables, SEEDS[rows], N_VISITS[rows])


@cache
def written(network, name):
    return write(network, name)


@cache
def scored(network, name):
    """The canvas that scores what was written."""
    rows = written(network, name).idx, batch()[1], KNOWN, SEEDS, N_VISITS
    return run(model_of(network), how_of(name), *rows, forced=True)


def assert_same(one, other, rows=slice(None), names=('idx', 'order', 'step', 'logprob')):
    for name in names:
        close(getattr(one, name), getattr(other, name)[rows])


# ---- the laws


@holds('definition')
def test_it_is_the_definition_written_and_scored(network, name):
    """Which has no cache."""
    model = model_of(network)
    canvas = written(network, name)
    how = how_of(name)
    allowed = allowed_by(model) if how.pop('allowed', False) else None
    idx, order = batch()
    is_scored = not {'bound', 'revised', 'greedy'} & {*FEATURES[name].split()}
    again = scored(network, name) if is_scored else None
    for r, n in enumerate(N_VISITS.tolist()):
        row = idx[r], order[r], int(KNOWN[r]), n, SEEDS[r]
        slow = ByDefinition(model, *row, allowed=allowed, **how)
        assert canvas.order[r, :n].tolist() == slow.visits
        assert torch.equal(canvas.idx[r], slow.text)
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
    how = how_of(name)
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
    return run(model, how, texts, order, known, len(texts) * [0], forced=True)


@holds('sum')
def test_the_probabilities_of_all_texts_sum_to_1(network, name):
    """Without a prompt, and given each token that may stand at position 2."""
    model = choosy(network)
    how = how_of(name)
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
        monkeypatch.setattr(module, 'is_host', lambda device: False)
    assert_same(write(network, name), exact)


@holds('resumed')
def test_a_text_that_is_given_in_part_goes_on_as_it_would_have(network, name):
    """From the middle step on."""
    whole = written(network, name)
    known = KNOWN + ((whole.step >= 0) & (whole.step < whole.step.max() // 2)).sum(1)
    rows = whole.idx, whole.order, known, SEEDS, N_VISITS
    rest = run(model_of(network), how_of(name), *rows)
    assert_same(rest, whole, names=('idx', 'order'))
    is_new = rest.step >= 0
    assert is_new.any()
    close(rest.logprob[is_new], whole.logprob[is_new])


# ---- prompts that are read apart


@pytest.mark.parametrize(
    'network, how',
    [
        ('decoder', 'n_steps=6'),
        ('mixed', 'n_steps=6 cfg_scale=1.5'),
        ('two streams', 'policy=margin n_steps=6 cfg_scale=1.5'),
        ('two streams', 'unmask=lossless:16'),
    ],
)
def test_prompts_that_are_read_in_groups_change_nothing(network, how):
    """As those are whose lengths differ by a bucket, with a cache."""
    model = make_model(block_size=80, **NETWORKS[network])
    how = options_in(how)
    rows = *rows_of(5, 80), torch.tensor([40, 3, 75, 70, 0]), range(5)
    assert_same(run(model, how, *rows), run(model, how, *rows, use_cache=False))
