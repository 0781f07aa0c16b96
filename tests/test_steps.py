"""A step is a function of tensors, of few sizes: as devices run it, here on the CPU."""

import copy
from functools import partial

import pytest
import torch
from conftest import make_model
from oracle import TWO_STREAM, name_of

from anyorder.extras.rules.drawn import Drawn
from anyorder.generation import Drawing, Given, Lossless, drawing, fill, passes, plan
from anyorder.generation.canvas import Canvas
from anyorder.generation.fill import generate
from anyorder.generation.passes import Passes
from anyorder.generation.plan import Bounds, Plan, pad_size
from anyorder.orders import sample_order
from model import ATTENTION, AOGPTConfig, KVCache

ENCODER = dict(attention='bidirectional')
MIXED = dict(attention='mixed')
NETWORKS = [{}, TWO_STREAM[1], ENCODER, MIXED, dict(target_position='input'), dict(rotary=True)]
OTHERS = [variant for variant in NETWORKS if variant not in ({}, MIXED)]
slow = partial(pytest.param, marks=pytest.mark.slow)
FIXED = [
    dict(n_steps=5),
    dict(n_steps=20),
    dict(n_steps=5, schedule='cosine'),
    dict(n_steps=6, unmask='binomial'),
    dict(n_steps=6, policy='margin'),
    dict(n_steps=20, policy='entropy+0.5'),
    dict(n_steps=10, policy='top_prob/4'),
    dict(n_steps=6, policy='margin', unmask='binomial'),
    dict(n_steps=5, top_k=3, temperature=0.7),
    dict(n_steps=5, top_p=0.7),
    dict(n_steps=4, temperature=0.0),
]
READ = [
    dict(policy='top_prob:0.2'),
    dict(policy='margin:0.1+0.3'),
    dict(unmask='lossless:4'),
    dict(unmask='lossless:32'),
    dict(n_steps=6, revise=2),
]
BY_RULES = [
    dict(policy='factor:1.5'),
    dict(policy='eb/4:1.0'),
    dict(policy='klass/5:0.1'),
    dict(policy='dilated:8'),
    dict(policy='drawn', n_steps=6),
]


@pytest.fixture
def as_on_devices(monkeypatch):
    """Have the CPU run padded steps, of rows that stay, as a device does."""

    def put():
        for module in (plan, fill, drawing):
            monkeypatch.setattr(module, 'is_exact', lambda device: False)

    return put


def text(model, how, B=5, N=20):
    """(idx, trace) of rows with prompts of unequal lengths, of which one is full."""
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(11, (B, N), generator=g)
    order = sample_order(B, N, generator=g)
    known = torch.tensor([0, 7, N - 1, N, 3])[:B]
    return generate(model, idx, order, known, seeds=range(B), return_trace=True, **how)


def assert_same(one, other):
    assert torch.equal(one[0], other[0])
    for name in ('order', 'step'):
        assert torch.equal(one[1][name], other[1][name])
    assert (one[1]['logprob'] - other[1]['logprob']).abs().max() < 1e-10


def is_lossless(how):
    return how.get('unmask', '').startswith('lossless')


@pytest.mark.parametrize('variant', [{}, MIXED, *map(slow, OTHERS)], ids=name_of)
def test_padded_steps_write_the_same_text(as_on_devices, variant):
    model = make_model(block_size=20, **variant)
    hows = [
        how for how in FIXED + READ + BY_RULES if not (model.slots.masked_loss and is_lossless(how))
    ]
    exact = [text(model, how) for how in hows]
    as_on_devices()
    for how, one in zip(hows, exact):
        assert_same(text(model, how), one)


def test_padded_steps_score_the_same_ways(as_on_devices):
    """Of drawn, in blocks, behind prompts of unequal lengths."""
    model = make_model(block_size=12)
    g = torch.Generator().manual_seed(1)
    idx, order = torch.randint(11, (3, 12), generator=g), sample_order(3, 12, generator=g)
    found = []
    for put in (lambda: None, as_on_devices):
        put()
        canvas = Canvas(idx, order, torch.tensor([0, 7, 2]), range(3))
        fill.fill(model, canvas, Drawn(n_steps=4, block_length=7), Drawing(scores=True))
        found.append(canvas)
    assert torch.equal(found[0].order, found[1].order)
    assert torch.equal(found[0].step, found[1].step)
    assert (found[0].logprob - found[1].logprob).abs().max() < 1e-10


def test_klass_compares_a_blank_once_where_scores_are_made_in_parts(as_on_devices, monkeypatch):
    """Blanks that repeat on a device may be in another part."""
    model = make_model(block_size=20)
    model.lm_head.weight.mul_(0.1)
    hows = [dict(policy='klass:0.1'), dict(policy='klass/7:0.1')]
    exact = [text(model, how) for how in hows]
    assert exact[0][1]['step'].max() < 19  # so that there are sets that depend on the comparisons
    as_on_devices()
    monkeypatch.setattr(passes, 'split_rows', lambda vocab_size, x: [x.split(3)])
    for how, one in zip(hows, exact):
        assert_same(text(model, how), one)


ONE_GRAPH = [dict(n_steps=1), READ[0]]
MORE_GRAPHS = [
    FIXED[0],
    FIXED[5],
    dict(n_steps=5, policy='margin', top_k=3),
    dict(n_steps=5, top_p=0.7),
    READ[2],
]
GRAPHS = [({}, how) for how in ONE_GRAPH]
GRAPHS += [slow({}, how) for how in MORE_GRAPHS + BY_RULES]
GRAPHS += [
    slow(variant, how)
    for variant in NETWORKS[1:]
    for how in ONE_GRAPH + MORE_GRAPHS
    if not ('attention' in variant and is_lossless(how))
]


@pytest.mark.parametrize('variant, how', GRAPHS, ids=str)
def test_a_step_is_one_graph(as_on_devices, monkeypatch, variant, how):
    """torch.compile finds no number that the host would have to know, in a step of any size."""
    model = make_model(block_size=8, n_layer=1, **variant)
    plain = text(model, how, 2, 8)
    as_on_devices()
    monkeypatch.setattr(Passes, 'launch', launch_compiled)
    assert_same(text(model, how, 2, 8), plain)


def launch_compiled(passes, function, part, numbers, size, *found):
    bounds = Bounds(*numbers)

    def step():
        return function(passes, part, bounds, size, *found)

    compiled = passes.__dict__.setdefault('compiled', set())
    if (function, size, len(part)) in compiled:
        return step()
    compiled.add((function, size, len(part)))
    torch.compiler.reset()
    return torch.compile(step, backend='aot_eager', fullgraph=True)()


@pytest.mark.parametrize('kind, most', [('linear', 9), ('cosine', 26)])
@pytest.mark.parametrize('n_steps', [64, 256, 1024])
def test_steps_have_few_sizes(as_on_devices, kind, most, n_steps):
    """Of 32 x 1024 tokens: so many graphs are recorded."""
    as_on_devices()
    assert 1 < len({*planned(Given(n_steps, kind)).sizes}) <= most


def planned(unmasking, B=32, N=1024, prompt=0):
    """The Plan of a text that a decoder of small width writes."""
    config = AOGPTConfig(block_size=N, vocab_size=8, n_layer=1, n_head=1, n_embd=2)
    order = sample_order(B, N, 'l2r')
    canvas = Canvas(torch.zeros_like(order), order, prompt, range(B))
    ends = canvas.known.unsqueeze(1) + unmasking.ends(canvas.n_blanks.tolist(), canvas.seeds)
    return Plan(ATTENTION['causal'], unmasking, canvas, ends, KVCache(config, B))


def test_a_plan_ends_where_rows_are_put_away(as_on_devices):
    prompts = torch.tensor([0, 10, 20, 30])
    assert len(planned(Given(64), 4, 64, prompts)) == 34  # the fourth row is finished
    as_on_devices()
    assert len(planned(Given(64), 4, 64, prompts)) == 44  # the third is, too


def test_padded_sizes_are_few():
    sizes = [pad_size(n) for n in range(1, 1025)]
    for n, size in enumerate(sizes, 1):
        assert n <= size < n + max(n, 64)
    assert sizes == sorted(sizes)
    assert sizes[:5] == [1, 2, 4, 4, 8]
    assert len(set(sizes)) == 22


def test_what_is_kept_of_a_cache_is_what_a_pass_keeps():
    """The plan of all steps at once says of each what `predict` says of it alone."""
    model = make_model(block_size=12)
    idx, order = torch.zeros(3, 12, dtype=torch.long), sample_order(3, 12)
    canvas = Canvas(idx, order, torch.tensor([0, 2, 5]), range(3))
    ends = canvas.known.unsqueeze(1) + Given(3).ends(canvas.n_blanks.tolist(), canvas.seeds)
    cache = KVCache(model.config, 3, dtype=torch.float64)
    whole = Plan(model.slots, Given(3), canvas, ends, copy.copy(cache))
    known = canvas.known
    for i in range(3):
        model.predict(idx, order, known, whole.n_new[i], cache)
        assert torch.equal(cache.length, whole.kept[i])
        known = ends[:, i]


def test_a_window_is_one_size(as_on_devices):
    as_on_devices()
    (size,) = planned(Lossless(24)).sizes
    assert size[:2] == (32, 32)


def test_finished_rows_ask_for_no_position_behind_their_text(as_on_devices):
    """A device keeps a row that is finished, and its constraint ends with its text."""
    model = make_model(block_size=20)
    order = torch.arange(20).repeat(3, 1)
    seen = []

    def allowed(rows, positions):
        seen.append(int(positions.max()))
        return torch.ones(len(rows), 11, dtype=torch.bool)

    short = torch.ones(5, 11, dtype=torch.bool)
    short[:, 4:] = False
    found = []
    for constraint in (short, allowed):
        for put in (lambda: None, as_on_devices):
            put()
            lengths = torch.tensor([3, 5, 5])
            canvas = Canvas(torch.zeros_like(order), order, 0, range(3), lengths, constraint)
            fill.fill(model, canvas, Given(5), Drawing())
            found.append(canvas.idx)
        found[-2:] = [torch.equal(*found[-2:])]
    assert found == [True, True]
    assert max(seen) == 4
    assert canvas.n_visits.tolist() == [3, 5, 5]


def test_what_is_left_is_planned_anew_only_where_a_row_stops(monkeypatch):
    plans = []

    def counted(*args):
        plans.append(args)
        return Plan(*args)

    monkeypatch.setattr('anyorder.generation.passes.Plan', counted)
    model = make_model(block_size=20)
    order = torch.arange(20).repeat(3, 1)
    canvas = Canvas(torch.zeros_like(order), order, 0, range(3))
    for step, _, part in fill.steps(model, canvas, Given(20), Drawing()):
        done = torch.zeros(len(part), dtype=torch.bool)
        done[0] = int(step[0]) == 7
        part.stop_rows(done)
    assert len(plans) == 2
