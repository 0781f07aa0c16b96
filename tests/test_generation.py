"""Generation: the law of a sequence and of a step, adaptive orders, cached = uncached, costs."""

import gc
import itertools
import math
from decimal import Decimal, getcontext

import pytest
import torch
from conftest import make_model, numbers
from oracle import FINAL, VARIANTS, chi2_of, counts_of, limit

from anyorder.fast import freeze, product_dtype
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate, steps
from anyorder.generation.options import choice_in, unmasking_of
from anyorder.generation.schedules import binomial_schedule, unmask_schedule
from anyorder.generation.unmasking import SCORES, Given, confidence, gumbel_noise
from anyorder.orders import Order, sample_order
from anyorder.seeds import keys_of, uniform
from model import AOGPT, KVCache


def write(model, texts, order, seed, n_steps, use_cache=True):
    """The canvas of texts [(tokens, known)] that were written in an order.

    It is a family, positions, or a score."""
    policy = 'given'
    if order in tuple(SCORES):
        policy = order
        order = 'random'
    canvas = Canvas.of_texts(texts, Order.of(order, {}), seed)
    fill(model, canvas, unmasking_of(n_steps=n_steps, policy=policy), Drawing(), use_cache)
    return canvas


def prompt_of(n, n_blanks, token=1):
    """(tokens, known) of a text of n known tokens and of n_blanks blanks behind them."""
    known = [i < n for i in range(n + n_blanks)]
    return [token if is_known else 0 for is_known in known], known


def blanks(*shape):
    return torch.zeros(shape, dtype=torch.long)


def assert_close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


# ---- the schedule


@pytest.mark.parametrize('kind', ['linear', 'cosine'])
def test_schedule_increases_strictly_to_the_end(kind):
    for n, n_steps in itertools.product(range(1, 40), range(1, 45)):
        ends = unmask_schedule(n, n_steps, kind)
        assert len(ends) == min(n, n_steps)
        assert ends[-1] == n
        assert all(a < b for a, b in zip([0, *ends], ends))


def exact_cosine(x):
    total = term = Decimal(1)
    for i in range(1, 30):
        term *= -x * x / ((2 * i - 1) * (2 * i))
        total += term
    return total


@pytest.mark.parametrize('n', [8, 64, 250, 1024, 12288])
def test_a_cosine_schedule_is_the_floor_of_its_formula(n):
    """In 50 digits.

    cos(pi / 3) is 1/2, of which a float has more, so that the floor would be one too low."""
    getcontext().prec = 50
    pi = Decimal('3.14159265358979323846264338327950288419716939937510582097494')
    for n_steps in (1, 2, 3, 6, 7, 12, 24, 48):
        most = min(n, n_steps)
        wanted = [0]
        for k in range(1, most + 1):
            revealed = n * (1 - exact_cosine(pi * k / (2 * most)))
            exact = int(revealed + Decimal('1e-40'))
            wanted.append(max(exact, wanted[-1] + 1))
        assert unmask_schedule(n, n_steps, 'cosine')[:-1] == wanted[1:-1]
        assert wanted[-1] == n


def test_schedule_by_hand():
    assert unmask_schedule(10, 4) == [2, 5, 7, 10]
    ends = unmask_schedule(10, 4, 'cosine')
    assert ends == [1, 2, 6, 10]  # 10 (1 - cos(k pi / 8)) = 0.76, 2.93, 6.17, 10
    assert unmask_schedule(3, 99) == [1, 2, 3]
    assert unmask_schedule(0, 5) == []
    for wrong in (dict(n_steps=0), dict(n_steps=3, kind='square')):
        with pytest.raises(ValueError):
            unmask_schedule(4, **wrong)


def test_rows_of_unequal_blanks_have_their_own_schedule():
    assert Given(2).ends([4, 1, 0], range(3)).tolist() == [[2, 4], [1, 1], [0, 0]]
    assert Given(schedule=[1, 4]).ends([4, 1], range(2)).tolist() == [[1, 4], [1, 1]]
    for wrong in ([1, 3], [2, 2, 4], [0, 4], []):
        with pytest.raises(ValueError, match='increase strictly'):
            Given(schedule=wrong).ends([4, 1], range(2))


def test_a_schedule_is_the_one_that_is_named():
    assert Given(4, 'cosine').ends([10], [0]).tolist() == [[1, 2, 6, 10]]
    ends = Given(4, 'cosine', binomial=True).ends([200], [7])
    assert ends[0].tolist() == binomial_schedule(numbers(7, 'unmask', n=200), 4, 'cosine')


def test_the_seed_of_a_row_gives_its_binomial_numbers():
    ends = Given(4, binomial=True).ends([9, 9, 5], [7, 3, 7])
    for row, n, seed in zip(ends.tolist(), (9, 9, 5), (7, 3, 7)):
        assert row == binomial_schedule(numbers(seed, 'unmask', n=n), 4, 'linear')


@pytest.mark.parametrize(
    'wrong, said',
    [
        (dict(policy='best'), 'policy'),
        (dict(unmask='all'), 'unmask'),
        (dict(n_steps=0), 'n_steps'),
        (dict(schedule='square'), 'schedule'),
        (dict(policy='given+1'), 'policy'),
        (dict(policy='entropy:0.5'), 'threshold'),
        (dict(policy='margin:1.5'), 'threshold'),
        (dict(policy='margin:-0.1'), 'policy'),
        (dict(policy='margin:0.5', unmask='binomial'), 'threshold'),
        (dict(unmask='lossless:0'), 'window must be an integer'),
        (dict(unmask='lossless', policy='margin'), 'wants an order that is given'),
        (dict(unmask='lossless', policy='margin:0.5'), 'margin'),
    ],
)
def test_unmasking_out_of_range(wrong, said):
    with pytest.raises(ValueError, match=said):
        unmasking_of(**wrong)


# ---- one sequence


def sequence_law(model, order, ends):
    """Probability (27,) of every sequence under `order` revealed by `ends`, by enumeration."""
    idx = torch.tensor(list(itertools.product(range(3), repeat=3)))
    order = order.expand(27, 3)
    logprob = torch.zeros(27, dtype=torch.float64)
    for start, end in itertools.pairwise([0, *ends]):
        logp = model.predict(idx, order, start, end - start).log_softmax(-1)
        tokens = idx.gather(1, order[:, start:end])
        logprob += logp.gather(2, tokens.unsqueeze(-1)).sum((1, 2))
    return logprob.exp()


@pytest.mark.parametrize(
    'ends, attention',
    [([1, 3], 'causal'), ([3], 'causal'), ([1, 2, 3], 'mixed'), ([1, 3], 'bidirectional')],
)
def test_sampling_is_exact(ends, attention):
    model = make_model(block_size=3, vocab_size=3, attention=attention)
    order = torch.tensor([[2, 0, 1]])
    n = 5_000
    law = sequence_law(model, order, ends)
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=torch.float64))
    how = dict(schedule=ends, generator=torch.Generator().manual_seed(0))
    drawn = generate(model, blanks(n, 3), order.expand(n, 3), 0, 3, **how)
    assert chi2_of(counts_of(drawn), law) < limit(26)


@pytest.mark.slow
def test_samples_of_the_command_are_exact_over_orders_and_tokens():
    model = make_model(block_size=3, vocab_size=3)
    n = 8_000
    blank_text = ([0, 0, 0], [False, False, False])
    canvas = write(model, [blank_text for _ in range(n)], 'random', 5, 3)
    counts = []
    law = []
    for order in torch.tensor(list(itertools.permutations(range(3)))):
        took_it = (canvas.order == order).all(1)
        counts.append(counts_of(canvas.idx[took_it]))
        law.append(sequence_law(model, order[None], [1, 2, 3]) / 6)
    # the joint law of order and tokens, which are independent draws
    assert chi2_of(torch.cat(counts), torch.cat(law)) < limit(161)


def test_a_bfloat16_cache_gives_the_same_within_its_precision(batch):
    model = make_model().float()

    def trace(**how):
        return generate(model, *batch, 2, 4, temperature=0, return_trace=True, **how)[1]

    exact = trace()
    assert product_dtype(model) == torch.float32
    with torch.autocast('cpu', torch.bfloat16):
        assert product_dtype(model) == torch.bfloat16
        runs = [trace(use_cache=True), trace(use_cache=False)]
    for run in runs:  # the first step: later ones may have drawn other tokens
        first = run['step'] == 0
        assert (run['logprob'] - exact['logprob'])[first].abs().max() < 0.1


def first_above(p, u):
    """The token of a uniform number: how many cumulated probabilities p (V,) are at most u."""
    return int((p.cumsum(-1) <= u).sum())


def test_tokens_are_drawn_by_the_uniform_numbers_of_the_seed_by_position(batch):
    """Position p of a row takes the number of (seed, 'tokens', p), whatever order and step."""
    model = make_model()
    idx, order = batch
    seeds = [4, 10**30, 7, 4, 0]
    new = generate(model, idx, order, 3, 6, seeds=seeds)
    for r, seed in enumerate(seeds):
        u = numbers(seed, 'tokens')
        for d in range(3, 9):
            p = int(order[r, d])
            logits = model.predict(new[r : r + 1], order[r : r + 1], d, 1)[0, 0]
            assert new[r, p] == first_above(logits.softmax(-1), u[p])


def test_seeds_are_drawn_by_the_generator(batch):
    model = make_model()
    idx, order = batch
    seeds = torch.randint(2**62, (5,), generator=torch.Generator().manual_seed(3))
    drawn = generate(model, idx, order, 2, 4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(drawn, generate(model, idx, order, 2, 4, seeds=seeds))
    assert not torch.equal(generate(model, idx, order, 2, 4), generate(model, idx, order, 2, 4))


@pytest.mark.parametrize('policy', [*SCORES])
def test_scores_of_bfloat16_logits_are_taken_in_float32(policy):
    logits = torch.randn(30, 11, dtype=torch.bfloat16)
    assert torch.equal(confidence(logits, policy), confidence(logits.float(), policy))


def flat(model):
    """The model, whose logits are all equal."""
    model.lm_head.weight.zero_()
    model.lm_head.bias.zero_()
    return model


def test_a_score_that_is_the_threshold_is_revealed(batch):
    model = flat(make_model(vocab_size=8))
    idx, order = batch
    score = float(confidence(torch.zeros(1, 8, dtype=torch.float64), 'top_prob'))
    for threshold, n_steps in ((score, 1), (score * 1.0001, 9)):
        how = dict(policy=f'top_prob:{threshold}', return_trace=True)
        _, trace = generate(model, idx % 8, order, 0, 9, **how)
        assert trace['step'].max() == n_steps - 1


ADAPTIVE = [
    dict(policy='top_prob'),
    dict(policy='margin'),
    dict(policy='entropy'),
    dict(policy='margin+0.5'),
    dict(policy='entropy+2.0'),
    dict(policy='top_prob:0.4'),
    dict(policy='margin:0.2+0.1'),
]
EVERY = [
    *ADAPTIVE,
    dict(policy='given'),
    dict(unmask='binomial'),
    dict(unmask='lossless:4'),
    dict(unmask='binomial', schedule='cosine', policy='margin'),
]


def score_of(p, policy):
    """The score of a blank whose token has probabilities p (V,)."""
    best, second = p.topk(2).values
    scores = {'top_prob': best, 'margin': best - second, 'entropy': (p * p.log()).nansum()}
    return scores[policy]


class SlowAdaptive:
    """One row that chooses its order, by the definition: without cache or batch.

    `tokens`, the `visits` and the `steps` in which they were revealed are what it has written."""

    def __init__(self, model, idx, order, known, seed):
        self.model = model
        self.tokens = idx.clone()
        self.visits = order[:known].tolist()
        self.blanks = sorted(order[known:].tolist())
        self.steps = []
        self.seed = seed

    def write(self, n_reveal, policy):
        """Score all that remain, reveal the best n_reveal [step].

        With a threshold, those over it before noise, and at least one."""
        choice = {'noise': 0.0, 'threshold': None} | choice_in(policy)
        threshold = choice['threshold']
        for step in itertools.count():
            if not self.blanks:
                return
            u = numbers(self.seed, 'noise', step)
            gumbel = -(-u.log()).log()
            scores = {}
            sure = []
            for p in self.blanks:
                score = score_of(self.probabilities(p), choice['policy'])
                scores[p] = float(score + choice['noise'] * gumbel[p])
                if threshold is not None and score >= threshold:
                    sure.append(p)
            best = sorted(self.blanks, key=lambda p: (p in sure, scores[p]), reverse=True)
            if threshold is None:
                self.reveal(best[: n_reveal[step]], step)
            else:
                self.reveal(best[: max(1, len(sure))], step)

    def probabilities(self, p):
        """Of the tokens (V,) at a blank, given what is known."""
        order = torch.tensor([[*self.visits, p]])
        return self.model.predict(self.tokens[None], order, len(self.visits))[0, 0].softmax(-1)

    def reveal(self, positions, step):
        u = numbers(self.seed, 'tokens')
        drawn = [first_above(self.probabilities(p), u[p]) for p in positions]
        self.tokens[positions] = torch.tensor(drawn)
        self.visits += positions
        self.steps += [step for _ in positions]
        self.blanks = [p for p in self.blanks if p not in positions]


@pytest.mark.parametrize('how', ADAPTIVE)
def test_adaptive_orders_are_the_definition(batch, how):
    model = make_model()
    idx, order = batch
    known = torch.tensor([0, 3, 8, 5, 1])
    new, trace = generate(model, idx, order, known, 3, **how, seeds=range(5), return_trace=True)
    for r, k in enumerate(known.tolist()):
        ends = unmask_schedule(9 - k, 3)
        n_reveal = [b - a for a, b in itertools.pairwise([0, *ends])]
        slow = SlowAdaptive(model, idx[r], order[r], k, seed=r)
        slow.write(n_reveal, **how)
        assert torch.equal(slow.tokens, new[r])
        assert trace['order'][r].tolist() == slow.visits
        assert trace['step'][r, slow.visits[k:]].tolist() == slow.steps


def test_of_scores_that_tie_the_first_in_the_order_are_taken():
    model = make_model(block_size=40)
    model.lm_head.weight.zero_()
    order = sample_order(3, 40)
    how = dict(policy='margin', seeds=range(3), return_trace=True)
    _, trace = generate(model, blanks(3, 40), order, 0, 3, **how)
    assert torch.equal(trace['order'], order)


def test_scores_that_tie_do_not_depend_on_the_batch(batch):
    model = make_model()
    model.lm_head.weight.zero_()
    idx, order = batch
    how = dict(n_steps=6, policy='margin', unmask='binomial', return_trace=True)
    _, trace = generate(model, idx, order, 0, seeds=range(5), **how)
    for r in range(5):
        _, alone = generate(model, idx[r : r + 1], order[r : r + 1], 0, seeds=[r], **how)
        assert torch.equal(alone['order'][0], trace['order'][r])


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_rows_do_not_depend_on_the_width_of_the_batch(attention):
    model = make_model(vocab_size=16, n_tokens=11, attention=attention)
    rows = [
        ([3, 0], [True, False]),
        ([4, 4], [True, True]),
        ([1, 0, 0, 2, 0], [True, False, False, True, False]),
        prompt_of(0, 9),
    ]
    for order in ('random', 'r2l', 'margin'):
        together = write(model, rows, order, 7, 3)
        for r, row in enumerate(rows):
            n = len(row[0])
            alone = write(model, [row], order, 7 + r, 3)
            for name in ('idx', 'order', 'step'):
                assert torch.equal(getattr(alone, name)[0], getattr(together, name)[r, :n])
            assert_close(alone.logprob[0], together.logprob[r, :n])


def test_a_vocabulary_of_one_token():
    model = make_model(vocab_size=8, n_tokens=1)
    for policy in ('given', *SCORES):
        order = sample_order(2, 9)
        assert not generate(model, order * 0, order, 0, 3, policy).any()


def assert_same_canvas(canvas, whole, rows):
    """A canvas is what these rows of another are."""
    for name in ('idx', 'order', 'step', 'logprob'):
        assert_close(getattr(canvas, name), getattr(whole, name)[rows])


@pytest.mark.parametrize(
    'how, variant', [*((how, {}) for how in EVERY), *((EVERY[-1], variant) for variant in FINAL)]
)
def test_every_policy_cached_alone_and_in_a_batch_is_the_same(batch, how, variant):
    model = make_model(vocab_size=16, n_tokens=11, **variant)
    idx, order = batch
    known = torch.tensor([0, 3, 9, 5, 1])
    n_visits = torch.tensor([9, 8, 9, 6, 9])

    def run(rows, use_cache=True):
        seeds = list(range(5))[rows]
        canvas = Canvas(idx[rows], order[rows], known[rows], seeds, n_visits[rows])
        fill(model, canvas, unmasking_of(n_steps=4, **how), Drawing(), use_cache)
        return canvas

    every = slice(5)
    new = run(every)
    assert_same_canvas(run(every, use_cache=False), new, every)
    for r in range(5):
        row = slice(r, r + 1)
        assert_same_canvas(run(row), new, row)

    assert new.idx.max() < 11
    assert torch.equal(new.known, n_visits)
    for r in range(5):
        padding = order[r, n_visits[r] :]
        assert torch.equal(new.idx[r, padding], idx[r, padding])
        assert (new.step[r, padding] == -1).all()
        written = order[r, known[r] : n_visits[r]]
        assert (new.step[r, written] >= 0).all()
        assert sorted(new.order[r].tolist()) == list(range(9))


@pytest.mark.parametrize('how', EVERY)
def test_forced_tokens_are_scored_not_changed(batch, how):
    model = make_model()
    idx, order = batch
    canvas = Canvas(idx, order, 2, range(5))
    fill(model, canvas, unmasking_of(n_steps=9, **how), Drawing(scores=True))
    assert torch.equal(canvas.idx, idx)
    one_at_a_time = how.get('unmask') != 'binomial' and ':' not in how.get('policy', '')
    if one_at_a_time:  # then it is the nll of the order taken
        logprob = canvas.logprob.gather(1, canvas.order)
        scored = -model(idx, canvas.order)
        assert_close(logprob[:, 2:], scored[:, 2:], atol=1e-10)


def ancestral_law(model, levels):
    """Probability (27,) of every sequence by two steps of ancestral sampling, by enumeration.

    Of which blanks each step reveals, each by itself with probability 1 - s / t where the mask
    level falls from t to s, and of the order in which they are read afterwards."""
    law = torch.zeros(27, dtype=torch.float64)
    n_steps = len(levels) - 1
    for step_of in itertools.product(range(n_steps), repeat=3):
        p = 1.0
        for step in step_of:
            for k in range(step):
                p *= levels[k + 1] / levels[k]
            p *= 1 - levels[step + 1] / levels[step]
        first = [i for i in range(3) if step_of[i] == 0]
        rest = [i for i in range(3) if step_of[i] == 1]
        p_order = 1 / math.factorial(len(first)) / math.factorial(len(rest))
        ends = sorted({len(first), 3} - {0})
        ways = itertools.product(itertools.permutations(first), itertools.permutations(rest))
        for way, later in ways:
            order = torch.tensor([[*way, *later]])
            law += p * p_order * sequence_law(model, order, ends)
    return law


@pytest.mark.slow
@pytest.mark.parametrize('kind, half', [('linear', 0.5), ('cosine', 0.5**0.5)])
def test_binomial_unmasking_is_ancestral_sampling(kind, half):
    model = make_model(block_size=3, vocab_size=3)
    law = ancestral_law(model, [1.0, half, 0.0])
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=torch.float64))
    order = sample_order(6_000, 3, generator=torch.Generator().manual_seed(1))
    how = dict(schedule=kind, unmask='binomial', generator=torch.Generator().manual_seed(0))
    drawn = generate(model, order * 0, order, 0, 2, **how)
    assert chi2_of(counts_of(drawn), law) < limit(26)


def test_binomial_numbers():
    u = uniform(keys_of(range(4000)).unsqueeze(1), torch.arange(10))
    ends = [binomial_schedule(row, 4, 'linear') for row in u]
    counts = torch.tensor(ends).double()
    assert (counts[:, -1] == 10).all()
    assert (counts.diff(dim=1) >= 0).all()
    for k, share in enumerate((0.25, 0.5, 0.75)):
        variance = 10 * share * (1 - share)
        assert abs(counts[:, k].mean() - 10 * share) < 5 * (variance / 4000) ** 0.5
        assert abs(counts[:, k].var() - variance) < 0.25


@pytest.mark.parametrize('variant', VARIANTS + FINAL)
@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_every_network_writes_the_same_cached_and_uncached(variant, policy):
    model = make_model(**variant)
    order = sample_order(3, 9, generator=torch.Generator().manual_seed(0))
    known = torch.tensor([0, 3, 5])
    ones = torch.ones_like(order)
    how = dict(n_steps=4, policy=policy, seeds=range(3), return_trace=True)
    text, trace = generate(model, ones, order, known, use_cache=True, **how)
    plain, other = generate(model, ones, order, known, use_cache=False, **how)
    assert torch.equal(text, plain)
    assert torch.equal(trace['order'], other['order'])
    assert_close(trace['logprob'], other['logprob'], atol=1e-10)


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
@pytest.mark.parametrize(
    'policy, unmask', [('given', 'fixed'), ('given', 'binomial'), ('margin', 'fixed')]
)
def test_a_network_with_a_masked_loss_writes_what_it_scores(attention, policy, unmask):
    """It collects the log-probabilities of predict in the order and the steps that it took."""
    model = make_model(attention=attention)
    known = 2
    order = sample_order(4, 9, generator=torch.Generator().manual_seed(0))
    ones = torch.ones_like(order)
    how = dict(policy=policy, unmask=unmask, seeds=range(4), return_trace=True)
    idx, trace = generate(model, ones, order, known, 3, **how)
    assert (idx.gather(1, order[:, :known]) == 1).all()
    for r in range(4):
        visited = trace['order'][r]
        step = trace['step'][r, visited]  # by visit
        for d in range(known, 9):
            p = visited[d]
            n_before = int((step < step[d]).sum())
            logits = model.predict(idx[r : r + 1], visited[None], n_before)[0, d - n_before]
            logp = logits.log_softmax(-1)[idx[r, p]]
            assert_close(trace['logprob'][r, p], logp, atol=1e-10)


def test_every_step_is_told_with_what_it_revealed(batch):
    canvas = Canvas(*batch, torch.tensor([0, 3, 9, 8, 5]), range(5))
    told = []
    for step, n_new, part in steps(make_model(), canvas, Given(2), Drawing()):
        assert len({*step.tolist()}) == 1
        told.append((int(step[0]), part.rows.tolist(), n_new.tolist(), part.known.tolist()))
    assert told == [
        (0, [0, 1, 3, 4], [4, 3, 1, 2], [4, 6, 9, 7]),
        (1, [0, 1, 4], [5, 3, 2], [9, 9, 9]),
    ]


@pytest.mark.parametrize('how', [{}, {'policy': 'margin'}, {'unmask': 'lossless:2'}])
def test_rows_that_are_told_to_end_keep_their_blanks_and_the_others_go_on(batch, how):
    unmasking = unmasking_of(n_steps=9, **how)
    whole = Canvas(*batch, 2, range(5))
    fill(make_model(), whole, unmasking, Drawing())
    part = Canvas(*batch, 2, range(5))
    for _, _, canvas in steps(make_model(), part, unmasking, Drawing()):
        running = canvas.rows.tolist()
        canvas.stop_rows((canvas.rows % 2 == 0) & (canvas.known >= 4))
    assert {*running} <= {1, 3}
    assert torch.equal(part.idx[1::2], whole.idx[1::2])
    assert (part.known[1::2] == 9).all()
    assert (4 <= part.known[::2]).all()
    assert (part.known[::2] < 9).all()
    for r in (0, 2, 4):
        written = part.order[r, 2 : part.known[r]]
        assert torch.equal(part.idx[r, written], whole.idx[r, written])
        assert (part.step[r] >= 0).sum() == part.known[r] - 2


def test_noise_is_the_quantile_of_uniform_numbers():
    u = numbers(0, n=20_000)
    noise = gumbel_noise(torch.cat([torch.zeros(1), u]))
    assert_close(noise[1:], -(-u.log()).log(), atol=1e-9)
    assert noise[0].isfinite()
    assert noise[0] < noise[1:].min()
    # the standard Gumbel law
    assert abs(noise[1:].mean() - 0.5772) < 0.04
    assert abs(noise[1:].std() - 1.2825) < 0.04


# ---- what it costs

PROMPTS = (65, 35, 45, 5)  # lengths
# slots that read them: those of 32 to 63 tokens are read together, 46 slots each
READ = 66 + 2 * 46 + 6


def remaining(n_blanks, first):
    """The slots of each step of an adaptive row, which scores all blanks.

    From the second step on it also runs the last known slot, whose target was another."""
    return [first, *range(n_blanks, 1, -1)]


def adaptive_together(n_blanks):
    """The slots of rows of so many blanks: a step is as wide as the row that has most left."""
    total = 0
    for step in range(max(n_blanks)):
        widths = [remaining(n, n)[step] for n in n_blanks if step < n]
        total += len(widths) * max(widths)
    return total


class Costs:
    """The slots and the rows of the head that a model runs."""

    def __init__(self, model, monkeypatch):
        self.slots = 0
        self.heads = []
        trunk = AOGPT.trunk

        def counted(model, idx, order, slots, cache=None):
            self.slots += slots.number.numel()
            return trunk(model, idx, order, slots, cache)

        monkeypatch.setattr(AOGPT, 'trunk', counted)
        model.lm_head.register_forward_pre_hook(self.count_head)

    def count_head(self, head, args):
        self.heads.append(args[0].shape[:-1].numel())

    def take(self):
        """(slots, rows of the head) since the last call."""
        counts = self.slots, sum(self.heads)
        self.slots = 0
        self.heads = []
        return counts


@pytest.mark.parametrize(
    'order, n_blanks',
    [
        ('random', lambda n: 12),
        ('random', lambda n: 12 if n == 5 else 4),
        ('margin', lambda n: 80 - n),
    ],
)
def test_prompts_of_unequal_length_cost_their_own_tokens(monkeypatch, order, n_blanks):
    model = freeze(make_model(block_size=80, vocab_size=16, n_tokens=11).float())
    costs = Costs(model, monkeypatch)
    rows = [prompt_of(n, n_blanks(n)) for n in PROMPTS]
    write(model, rows, order, 0, 80)
    together, heads_together = costs.take()
    for row in rows:
        write(model, [row], order, 0, 80)
    alone, heads_alone = costs.take()
    assert heads_together == heads_alone
    numbers_of_blanks = [n_blanks(n) for n in PROMPTS]
    if order == 'random':  # then one slot a row and blank; alone, the first step reads the prompt
        assert together == READ + sum(numbers_of_blanks)
        assert alone == sum(PROMPTS) + sum(numbers_of_blanks)
    else:
        assert together == READ + adaptive_together(numbers_of_blanks)
        assert alone == sum(sum(remaining(n, 80)) for n in numbers_of_blanks)


def test_the_head_of_an_encoder_is_run_for_what_is_drawn(monkeypatch):
    model = freeze(make_model(block_size=8, attention='bidirectional'))
    costs = Costs(model, monkeypatch)
    write(model, [prompt_of(0, 8), prompt_of(0, 5)], 'random', 0, 8)
    assert costs.heads == [2, 2, 2, 2, 2, 1, 1, 1]


def test_generation_runs_on_one_frozen_copy(monkeypatch):
    model = make_model(block_size=8).float()
    text = blanks(2, 8)
    calls = []
    linear = torch.nn.Linear.forward

    def freeze_counted(*args):
        frozen = freeze(*args)
        calls.append('frozen')
        return frozen

    def linear_counted(*args):
        calls.append('linear')
        return linear(*args)

    monkeypatch.setattr('anyorder.generation.fill.kept_frozen', freeze_counted)
    monkeypatch.setattr(torch.nn.Linear, 'forward', linear_counted)
    generate(model, text, sample_order(2, 8), 0, 4)
    # the tables of two blocks and the final layer
    assert calls == ['linear', 'linear', 'linear', 'frozen']
    once = freeze(model, torch.float32)
    generate(once, text, sample_order(2, 8), 0, 4)
    with pytest.raises(ValueError, match='evaluation mode'):
        generate(model.train(), text, sample_order(2, 8), 0, 4)


@pytest.mark.parametrize('variant', [{}, *FINAL])
@pytest.mark.parametrize('order', ['random', 'margin'])
def test_prompts_that_are_read_in_groups_change_nothing(order, variant):
    model = make_model(block_size=80, **variant)
    rows = [prompt_of(n, 80 - n, token=r) for r, n in enumerate((40, 3, 75, 70, 0))]
    together = write(model, rows, order, 7, 6)
    for r, row in enumerate(rows):
        for use_cache in (True, False):
            alone = write(model, [row], order, 7 + r, 6, use_cache)
            assert torch.equal(alone.idx[0], together.idx[r])
            assert_close(alone.logprob[0], together.logprob[r])


def n_live_bytes():
    """The bytes of all tensors that are alive."""
    gc.collect()
    sizes = {}
    for x in gc.get_objects():
        if type(x) is torch.Tensor and x.layout == torch.strided:
            storage = x.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


@pytest.mark.slow
def test_the_cache_is_as_large_as_it_says_and_nothing_else_stays():
    config = dict(block_size=64, vocab_size=16, n_layer=3, n_head=2, n_embd=32)
    model = make_model(**config).float()
    cache = KVCache(model.config, 5)
    assert 4 * (cache.k.numel() + cache.v.numel()) == 4 * 2 * 3 * 5 * 64 * 32
    canvas = Canvas(blanks(5, 64), sample_order(5, 64), 0, range(5))
    live = [n_live_bytes() for _ in steps(model, canvas, Given(4), Drawing())]
    assert len(live) == 4
    assert max(live[1:]) == min(live[1:])


# ---- scores


def test_scores_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert confidence(p.log(), 'top_prob').tolist() == pytest.approx([0.5, 1.0])
    assert confidence(p.log(), 'margin').tolist() == pytest.approx([0.2, 1.0])
    nats = sum(x * math.log(x) for x in (0.5, 0.3, 0.2))
    assert confidence(p.log(), 'entropy').tolist() == pytest.approx([nats, 0.0])


def test_another_score_is_one_function(monkeypatch, batch):
    """The probability of token 0: a policy, with noise.

    It is without threshold until it is named in PROBABILITIES."""
    monkeypatch.setitem(SCORES, 'zero', lambda logits: logits.softmax(-1)[:, 0])
    model = make_model()
    idx, order = batch
    _, trace = generate(model, idx, order, 3, 1, policy='zero', seeds=range(5), return_trace=True)
    for r in range(5):
        logits = model.predict(idx[r : r + 1], order[r : r + 1], 3)[0]
        best = logits.softmax(-1)[:, 0].argsort(descending=True)
        assert trace['order'][r, 3:].tolist() == order[r, 3:][best].tolist()
    assert unmasking_of(policy='zero+1.0').adaptive
    with pytest.raises(ValueError, match='for top_prob and margin'):
        unmasking_of(policy='zero:0.5')


@pytest.mark.parametrize('policy', SCORES)
def test_confidence_is_the_same_in_parts(monkeypatch, policy):
    logits = torch.randn(3, 5, 7, dtype=torch.float64)
    whole = confidence(logits, policy)
    in_twos = lambda vocab_size, x: [x.split(2)]  # noqa: E731
    monkeypatch.setattr('anyorder.generation.scores.split_rows', in_twos)
    assert torch.equal(confidence(logits, policy), whole)
    assert whole.shape == (3, 5)
