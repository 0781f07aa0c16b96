"""What the room anyorder/generation defines by itself, by hand or by enumeration.

What holds for every way of writing is in test_laws.py."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import close, make_model, one_line, options_in
from oracle import ENCODER, chi2_of, cut, limit

from anyorder.checkpoint import set_exempt
from anyorder.fast import freeze
from anyorder.generation import (
    Adaptive,
    Canvas,
    Drawing,
    Given,
    Lossless,
    binomial_schedule,
    drawing,
    fill,
    generate,
    sample_tokens,
    scores,
    unmask_schedule,
    unmasking,
    unmasking_of,
)
from anyorder.generation.plan import Cells
from anyorder.generation.way import Way
from anyorder.orders import Order, sample_order
from anyorder.seeds import keys_of
from anyorder.tokens.tokenizer import Symbols
from model import AOGPT


def random(*shape):
    """Uniform float64, the same ones each time."""
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def prompt_of(n, n_blanks):
    """(tokens, is_known) of n known tokens, and of n_blanks blanks behind them."""
    return [1] * n + [0] * n_blanks, [True] * n + [False] * n_blanks


# ---- how many blanks a step reveals


# (arguments of a schedule, its ends by hand)
ENDS = [
    ((10, 4, 'cosine'), [1, 2, 6, 10]),  # 0.76, 2.93, 6.17, 10
    # cos(pi / 3) is 1/2, of which a float has more, so that the floor would be one too low
    ((12288, 6, 'cosine'), [418, 1646, 3599, 6144, 9107, 12288]),
    ((90, 10, 'linear'), [*range(9, 91, 9)]),  # 90 (7 / 10) is below 63 in floats
    ((2, 3, 'linear'), [1, 2]),
]


@pytest.mark.parametrize('asked, ends', ENDS)
def test_the_ends_of_steps_by_hand(asked, ends):
    assert unmask_schedule(*asked) == ends


@pytest.mark.parametrize('kind, half', [('linear', 0.5), ('cosine', 0.5**0.5)])
def test_binomial_unmasking_is_ancestral_sampling(kind, half):
    """The first of two steps reveals each blank by itself, with probability 1 - s / t where the
    mask level falls from t to s: here from 1 to a half, or its cosine."""
    u = random(200)
    assert binomial_schedule(u, 2, kind) == [int((u >= half).sum()), 200]


# ---- how a token is drawn


def test_uniform_numbers_map_to_tokens_by_the_cumulative_sum():
    how = dict(min_p=0.05, top_p=0.8, top_k=4, temperature=2.0)
    logits = torch.tensor([0.3, 2.0, -1.0, 1.2, 0.0, 1.9, -torch.inf], dtype=torch.float64)
    cdf = cut(logits, **how).softmax(-1).cumsum(-1)
    u = random(20, 30)
    wanted = (cdf <= u.unsqueeze(-1)).sum(-1)
    assert torch.equal(sample_tokens(logits.expand(20, 30, 7), **how, u=u), wanted)
    g = torch.Generator().manual_seed(0)
    assert torch.equal(sample_tokens(logits.expand(20, 30, 7), **how, generator=g), wanted)


@pytest.mark.parametrize('top_k, top_p', [(0, 0.9), (40, 0.9), (3000, 0.99)])
def test_a_nucleus_is_cut_from_all_tokens_however_wide(top_k, top_p):
    spread = torch.tensor([[0.1], [1.0], [3.0], [9.0]])  # some reach beyond 1024
    logits = random(4, 2000).logit() * spread
    wanted = torch.stack([cut(row, 1.0, top_k, top_p) for row in logits])
    assert torch.equal(drawing.keep_largest(logits, top_k, top_p), wanted)


@pytest.mark.parametrize('V', [1, 2, 255, 256, 257, 700, 1024])
def test_the_inverse_in_chunks_is_the_cumulative_sum(V):
    p = random(300, V)
    p *= p < 0.3
    p[:, V // 2] += 1e-3
    u = random(300)
    u[0] = 0
    wanted = (p.cumsum(1) <= (u * p.sum(1)).unsqueeze(1)).sum(1)
    assert torch.equal(drawing.invert_cdf(p, u), wanted)


@pytest.mark.parametrize('n_small, token', [(-1, 0), (0.5, 300), (1.5, 600), (2.5, 900)])
def test_cumulative_sums_hold_what_float32_cannot(n_small, token):
    """2^-25 more is lost to a float32 sum of 1."""
    small = 2.0**-25
    p = torch.zeros(1, 1024)
    p[0, 0] = 1.0
    p[0, [300, 600, 900]] = small
    share = (1 + n_small * small) / (1 + 3 * small)
    assert drawing.invert_cdf(p, torch.tensor([share], dtype=torch.float64)) == token


def test_the_last_uniform_number_never_draws_what_has_no_probability():
    logits = torch.randn(50, 50003)
    logits[:, 50000:] = -torch.inf
    u = torch.full((50,), 1 - 2**-53, dtype=torch.float64)
    assert (sample_tokens(logits, u=u) < 50000).all()


def test_nothing_is_drawn_or_scored_in_16_bits():
    low = torch.randn(400, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    high = low.float()
    u = random(400)
    for top_p in (1, 0.8):
        drawn = sample_tokens(low, top_p=top_p, u=u)
        assert torch.equal(drawn, sample_tokens(high, top_p=top_p, u=u))
    wanted = high.log_softmax(-1)[torch.arange(400), drawn]
    close(drawing.token_logprob(low, drawn), wanted, atol=1e-5)


@pytest.mark.parametrize('temperature', [0, 1e-320, 1e-50, 1e-3])
def test_temperature_near_zero_is_argmax(temperature):
    logits = torch.tensor([[1.0, -3.0, 9.0, 2.0], [40.0, 2.0, -torch.inf, 3.0]])
    assert sample_tokens(logits, temperature=temperature).tolist() == [2, 0]
    hot = sample_tokens(logits[1].expand(99, 4), temperature=1e60)
    assert {*hot.tolist()} == {0, 1, 3}


def test_argmax_in_chunks_is_the_first_largest():
    for V in (7, 128, 640):
        x = torch.randint(9, (50, 2, V), generator=torch.Generator().manual_seed(0))
        assert torch.equal(drawing.argmax(x), (x == x.amax(-1, True)).int().argmax(-1))


# ---- noise


def test_noise_reaches_what_a_uniform_float32_cannot_and_is_finite():
    """A token of probability 1e-8 wins with noise above 18.4: a float32 in [0, 1) ends at 16.6."""
    found = drawing.gumbel_of_bits(
        torch.tensor([0, 2**29, 2**31 - 64, 2**31 - 1], dtype=torch.int32)
    )
    middle = -math.log(math.log(4 / 3))  # of u = 1 / 4
    most = -math.log(24 * math.log(2))
    assert found.tolist() == pytest.approx([32 * math.log(2), middle, most, most], abs=1e-5)


def test_noise_of_tokens_is_standard_gumbel():
    noise = drawing.token_noise(keys_of([5]), torch.tensor([3]), 20_000)[0]
    tenths = (10 * (-(-noise).exp()).exp()).long()  # of the distribution function
    assert chi2_of(tenths.bincount(), torch.full((10,), 0.1)) < limit(9)


def test_noise_belongs_to_seed_position_and_token():
    """Whatever else is drawn beside it, and however many tokens there are."""
    seeds = [8, 8, 9, 8 + 2**70]
    position = torch.tensor([4, 2, 4, 4])
    found = drawing.token_noise(keys_of(seeds), position, 7)
    assert len({*found.flatten().tolist()}) == 28 and found.isfinite().all()
    alone = drawing.token_noise(keys_of(seeds[2:3]), position[2:3], 5)
    assert torch.equal(alone[0], found[2, :5])


# ---- scores


def test_of_equal_scores_the_first_in_the_order_is_taken_and_a_threshold_is_reached():
    """In any batch. All tokens are equal: a score of 1/8 each."""
    model = make_model(block_size=40, vocab_size=8)
    model.lm_head.weight.zero_()
    model.lm_head.bias.zero_()
    order = sample_order(3, 40)
    score = float(scores.top_prob(torch.zeros(1, 8, dtype=torch.float64)))
    for policy, n_steps in {'margin': 3, f'top_prob:{score}': 1}.items():
        _, trace = generate(model, order % 8, order, 0, 3, policy, return_trace=True)
        assert torch.equal(trace['order'], order)
        assert (trace['step'].amax(1) == n_steps - 1).all()


# ---- the canvas

# of which 0 and 3 are known, and a longer one without a prompt
TEXTS = [([1, 0, 0, 2], [True, False, False, True]), prompt_of(0, 5)]


def test_texts_of_unequal_length():
    canvas = Canvas.of_texts(TEXTS, Order('random'), 5)
    assert canvas.idx.tolist() == [[1, 0, 0, 2, 0], [0] * 5]
    first, second = (sample_order(1, n, keys=keys_of([n + 1])) for n in (4, 5))
    blanks = first[(first == 1) | (first == 2)].tolist()
    assert canvas.order.tolist() == [[0, 3, *blanks, 4], second[0].tolist()]
    assert Canvas.of_texts(TEXTS[:1], Order('r2l'), 0).order.tolist() == [[3, 0, 2, 1]]


# ---- steps


def test_generate_is_one_token_a_step_of_seeds_that_a_generator_draws(batch):
    """By default; and its arguments have an order."""
    model = make_model()
    g = torch.Generator().manual_seed(3)
    seeds = torch.randint(2**62, (5,), generator=g)
    text, trace = generate(model, *batch, 2, generator=g.manual_seed(3), return_trace=True)
    by_visit = trace['step'].gather(1, batch[1])
    assert (by_visit == torch.arange(-2, 7).clamp(min=-1)).all()
    assert torch.equal(text, generate(model, *batch, 2, seeds=seeds))
    how = dict(n_steps=3, policy='margin', schedule='cosine', temperature=0.7, top_k=5, top_p=0.9)
    by_place = generate(model, *batch, 2, *how.values(), True, None, seeds)
    assert torch.equal(by_place, generate(model, *batch, 2, seeds=seeds, **how))


def test_the_end_of_a_document_and_special_tokens_have_no_penalty():
    model = make_model(block_size=3, vocab_size=3)

    def nats(penalty):
        canvas = Canvas(torch.tensor([[2, 2, 2], [0, 0, 0]]), ORDERS[:2, :3], 0, range(2))
        drawing = Drawing(presence_penalty=penalty, forced=True)
        fill.fill(model, canvas, Way(Given(3), drawing))
        return canvas.logprob.sum(1)

    alone = nats(1.5)
    set_exempt(model, Symbols('own', 'abc', eos=2))
    close(nats(1.5), torch.stack([nats(0.0)[0], alone[1]]))
    assert (alone < nats(0.0)).all()


# ---- what a lossless pass accepts

FAR = '02461357'  # no two of the first four visits stand side by side
# (order, known, drafts, tokens that the pass drew, n_new, what stands there afterwards)
ACCEPTED = [
    (FAR, 0, '', '567', 1, '567'),  # no drafts yet: one sure token
    (FAR, 0, '56', '5678', 3, '5678'),  # all are right: one more is sure
    (FAR, 0, '567', '5123', 2, '5123'),  # the second is wrong
    (FAR, 6, '56', '56', 2, '56'),  # all are right, to the end
    # the first is wrong: the second read it and stays, the third read the second, which is right;
    # the fourth read the third, which changes, and stays; the fifth is no draft yet
    ('01234567', 0, '5678', '16349', 1, '16389'),
    ('76543210', 0, '567', '127', 1, '167'),
    # a draft beside it that comes later was not read
    ('15023467', 0, '5678', '5612', 3, '5612'),
    ('07312456', 0, '56', '12', 1, '12'),  # the ends are beside nothing
]


def digits(text):
    return torch.tensor([*map(int, text)], dtype=torch.long)


@pytest.mark.parametrize('order, known, drafts, tokens, n_new, after', ACCEPTED)
def test_what_a_pass_accepts(order, known, drafts, tokens, n_new, after):
    n = len(tokens)
    visits = digits(order)[None]
    position = visits[0, known : known + n]
    canvas = Canvas(torch.zeros_like(visits), visits, known, [0])
    canvas.idx[0, position[: len(drafts)]] = digits(drafts)
    first = torch.tensor([known])
    count = torch.tensor([n])
    numbers = SimpleNamespace(known=first + len(drafts), first=first, n_targets=count)
    runner = SimpleNamespace(part=canvas, numbers=numbers)
    cells = Cells.of(canvas, first, count, n, True)
    assert Lossless().accept(runner, cells, digits(tokens)) == n_new
    assert torch.equal(canvas.idx[0, position], digits(after))


# ---- what it costs


@pytest.fixture
def passes(monkeypatch):
    """[(rows, slots of each, those that answer) of each pass]."""
    made = []
    trunk = AOGPT.trunk

    def counted(network, idx, order, slots, cache=None):
        asked = 0 if slots.answering is None else slots.answering.size(1)
        made.append((*slots.number.shape, asked))
        return trunk(network, idx, order, slots, cache)

    monkeypatch.setattr(AOGPT, 'trunk', counted)
    return made


@pytest.mark.parametrize('order', ['random', 'margin'])
def test_prompts_of_unequal_length_cost_their_own_tokens(passes, order):
    """Those of 32 to 63 tokens are read together, as 46 slots each. An adaptive step runs all
    blanks, and from the second on the last known slot, too."""
    model = freeze(make_model(block_size=80, vocab_size=16, n_tokens=11).float())
    rows = [prompt_of(65, 4), prompt_of(35, 4), prompt_of(45, 4), prompt_of(5, 2)]
    way = Way.of({}, order, n_steps=80)
    canvas = Canvas.of_texts(rows, way.order, 0)
    fill.fill(model, canvas, way)
    found = [(n_rows, n_slots) for n_rows, n_slots, _ in passes]
    assert found[:3] == [(1, 6), (2, 46), (1, 66)]
    n_slots = [1, 1, 1, 1] if order == 'random' else [4, 4, 3, 2]
    assert found[3:] == [*zip([4, 4, 3, 3], n_slots)]  # others go on with what their cache keeps


@pytest.mark.parametrize('variant, known, length', [({}, 20, 8), ({}, 0, 5), (ENCODER, 0, 5)])
def test_a_step_runs_the_slots_of_the_block_and_not_all_blanks(passes, variant, known, length):
    """The first step of a decoder reads the prompt; each step after it reruns the last known slot,
    whose target was another, and the rest of the block. An encoder runs all slots."""
    order = sample_order(1, 32)
    model = make_model(block_size=32, **variant)
    generate(model, order % 11, order, known, 32, f'margin/{length}')
    blocks = [min(length, 32 - start) for start in range(known, 32, length)]
    scored = [left for n in blocks for left in range(n, 0, -1)]
    slots = [known + scored[0], *(n + 1 for n in scored[1:])]
    if variant:
        slots = [32 for _ in scored]
    assert passes == [(1, *numbers) for numbers in zip(slots, scored)]


def test_a_text_that_is_scored_is_read_in_few_passes(passes, monkeypatch):
    """The tokens that stand there are right drafts: lossless passes are of 1, 4, 1 and 3 tokens.
    One token a step is read in passes of as many as memory has room for, here 4."""
    model = make_model()
    monkeypatch.setattr(unmasking, 'REREAD', 4 * 5 * model.config.vocab_size)
    told = {
        Lossless(4): ([0, 1, 1, 1, 1, 2, 3, 3, 3], [4, 4, 4, 3]),
        Given(9): (range(9), [4, 4, 1]),
    }
    for way, (step, n_targets) in told.items():
        passes.clear()
        canvas = Canvas(ROWS, ORDERS, 0, range(5))
        fill.fill(model, canvas, Way(way, Drawing(forced=True)))
        assert canvas.step[0].tolist() == [*step]
        assert [n for *_, n in passes] == n_targets


# ---- options

# (options, the kind of the order, the Unmasking)
NAMED = {
    '': ('own', Given()),
    'n_steps=4 schedule=cosine': ('own', Given(4, 'cosine')),
    'schedule=[2,9] unmask=binomial': ('own', Given(schedule=[2, 9])),  # none is drawn
    'unmask=lossless': ('own', Lossless(32)),
    'order=margin unmask=binomial n_steps=4': (
        'random',
        Adaptive(4, binomial=True, score='margin'),
    ),
    'order=[1,0]': ([1, 0], Given()),
    'order=top_prob:.9': ('random', Adaptive(score='top_prob', threshold=0.9)),
    'order=entropy/8+2': ('l2r', Adaptive(score='entropy', block_length=8, noise=2.0)),
}


@pytest.mark.parametrize('options', NAMED)
def test_options_name_a_way(options):
    order, noun = NAMED[options]
    assert Way.of({}, **options_in(options)) == Way(noun, order=Order.of(order, {}))
    Way(noun).check(make_model().config)  # which can write so


def test_a_way_draws_or_scores():
    how = dict(n_steps=4, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1)
    way = Way.of({'order': 'r2l'}, **how)
    assert way.order == Order('r2l')
    assert way.to_score == Way.of({'order': 'r2l'}, score=True, **how)


def test_a_keyword_that_nobody_has_is_a_type_error():
    for wrong in ('n_step', 'order_noise'):
        with pytest.raises(TypeError, match=wrong):
            write_by(**{wrong: 4})


ROWS = torch.zeros(5, 9, dtype=torch.long)
ORDERS = torch.arange(9).expand(5, 9)


def write_by(variant=None, **how):
    generate(make_model(**variant or {}), ROWS, ORDERS, 2, **how)


def canvas_of(order=ORDERS, n_known=0, seeds=range(5), **how):
    Canvas(ROWS, order, n_known, seeds, **how)


# (a call, a word of the message)
BAD = {
    "unmasking_of(policy='best')": 'policy',
    "unmasking_of(policy='margin:0.5', unmask='lossless')": 'margin',
    "unmasking_of(policy='entropy:0.5')": 'threshold',
    "unmasking_of(policy='margin:1.5')": 'threshold',
    "unmasking_of(policy='margin:0.5', unmask='binomial')": 'threshold',
    "unmasking_of(policy='margin/0')": 'block_length',
    "unmasking_of(policy='margin/2', schedule=[2])": 'ends',
    "unmasking_of(unmask='lossless:0')": 'window',
    "unmasking_of(unmask='lossless:2147483648')": 'unmask',
    "unmasking_of(unmask='fixed:4')": 'unmask',
    "unmasking_of(unmask='lossless', revise=1)": 'leave out revise=1',
    'unmasking_of(schedule=[2, 4], revise=1)': 'revise',
    'unmasking_of(revise=-1)': 'revise',
    'unmasking_of(revise=1.5)': 'revise',
    'unmasking_of(n_steps=0)': 'n_steps',
    "unmasking_of(schedule='square')": 'schedule',
    'Given(schedule=[2, 9], binomial=True)': 'ends',
    'Lossless(window=2.0)': 'window',
    "Adaptive(score='best')": 'score',
    'Drawing(temperature=0, forced=True)': 'temperature',
    'Drawing(temperature=math.inf)': 'temperature',
    'Drawing(top_p=0.0)': 'top_p',
    'Drawing(min_p=1.1)': 'min_p',
    'Drawing(min_p=math.nan)': 'min_p',
    'Drawing(presence_penalty=-101)': 'penalty',
    'Drawing(cfg_scale=101)': 'cfg_scale',
    'write_by(schedule=[1, 3])': 'increase',
    'write_by(allowed=torch.ones(8, 11, dtype=torch.bool))': '9 positions or more',
    'write_by(schedule=[2, 2, 7])': 'increase',
    'write_by(revise=1, cfg_scale=1.5)': 'cfg_scale',
    "write_by(variant=ENCODER, unmask='lossless')": 'decoder',
    'canvas_of(n_known=-1)': 'n_known',
    'canvas_of(n_known=5, n_visits=4)': 'n_known',
    'canvas_of(n_visits=10)': 'n_known',
    'canvas_of(seeds=[1])': 'seeds',
    'canvas_of(order=ORDERS.clamp(min=1))': 'permutation',
    'canvas_of(order=ORDERS[:, :8])': 'permutation',
    "Way.of({}, order='margin:1..2')": 'margin:1..2',
    "Way.of({}, order='l2r/8')": 'l2r/8',
    'Way.of({}, order=[0.5, 1])': 'whole numbers',
    "Drawing(temperature='1')": "'1'",
    'Way(Given(revise=1)).check(make_model().config, exact=True)': 'revise',
    "Way(unmasking_of('drawn')).check(make_model().config, exact=True)": 'but a bound',
    'generate(make_model().train(), ROWS, ORDERS, 2)': 'evaluation',
}


@pytest.mark.parametrize('call, word', BAD.items())
def test_what_is_out_of_range_is_one_line(call, word):
    with one_line(word):
        eval(call, {'unmasking_of': unmasking_of, **globals()})


def test_an_order_may_be_a_tensor_of_any_device():
    on_device = SimpleNamespace(tolist=lambda: [1, 0])  # a tensor of a GPU is no array
    assert Way.of({}, order=on_device) == Way.of({}, order=[1, 0])
