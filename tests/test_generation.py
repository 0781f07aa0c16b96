"""Generation: the law of a sequence and of a step, adaptive orders, cached = uncached, costs, published greedy runs."""

import gc
import itertools
import math
from decimal import Decimal, getcontext

import pytest
import torch
from conftest import make_model, numbers
from test_model import FINAL, VARIANTS

from anyorder.fast import freeze, product_dtype
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate, steps
from anyorder.generation.options import unmasking_of
from anyorder.generation.schedules import binomial_schedule, unmask_schedule
from anyorder.generation.unmasking import SCORES, Given, confidence, gumbel_noise
from anyorder.orders import Order, sample_order
from anyorder.seeds import keys_of, uniform
from model import AOGPT, KVCache


def write(model, texts, order, seed, n_steps, use_cache=True):
    """The canvas of texts [(tokens, known)] that were written in an order: a family, positions, or a score."""
    policy = order if order in tuple(SCORES) else 'given'
    canvas = Canvas.of_texts(texts, Order.of(order if policy == 'given' else 'random', {}), seed)
    fill(model, canvas, unmasking_of(n_steps=n_steps, policy=policy), Drawing(), use_cache)
    return canvas


# ---- the schedule


@pytest.mark.parametrize('kind', ['linear', 'cosine'])
def test_schedule_increases_strictly_to_the_end(kind):
    for n, n_steps in itertools.product(range(1, 40), range(1, 45)):
        ends = unmask_schedule(n, n_steps, kind)
        assert len(ends) == min(n, n_steps) and ends[-1] == n
        assert all(a < b for a, b in zip([0, *ends], ends))


@pytest.mark.parametrize('n', [8, 64, 250, 1024, 12288])
def test_a_cosine_schedule_is_the_floor_of_its_formula(n):
    """In 50 digits. cos(pi / 3) is 1/2, of which a float has more, so that the floor would be one too low."""
    getcontext().prec, pi = (
        50,
        Decimal('3.14159265358979323846264338327950288419716939937510582097494'),
    )

    def cosine(x):
        total = term = Decimal(1)
        for i in range(1, 30):
            term *= -x * x / ((2 * i - 1) * (2 * i))
            total += term
        return total

    for n_steps in (1, 2, 3, 6, 7, 12, 24, 48):
        wanted = []
        for k in range(1, min(n, n_steps) + 1):
            exact = int(n * (1 - cosine(pi * k / (2 * min(n, n_steps)))) + Decimal('1e-40'))
            wanted.append(max(exact, wanted[-1] + 1 if wanted else 1))
        assert unmask_schedule(n, n_steps, 'cosine')[:-1] == wanted[:-1] and wanted[-1] == n


def test_schedule_by_hand():
    assert unmask_schedule(10, 4) == [2, 5, 7, 10]
    assert unmask_schedule(10, 4, 'cosine') == [
        1,
        2,
        6,
        10,
    ]  # 10 (1 - cos(k pi / 8)) = 0.76, 2.93, 6.17, 10
    assert unmask_schedule(3, 99) == [1, 2, 3] and unmask_schedule(0, 5) == []
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
        (dict(order_noise=1.0), 'order_noise'),
        (dict(policy='margin', order_noise=-1), 'order_noise'),
        (dict(policy='margin', order_noise=math.inf), 'order_noise'),
        (dict(threshold=0.5), 'threshold'),
        (dict(policy='entropy', threshold=0.5), 'threshold'),
        (dict(policy='margin', threshold=1.5), 'threshold'),
        (dict(policy='margin', threshold=-0.1), 'threshold'),
        (dict(policy='margin', threshold='x'), 'threshold'),
        (dict(policy='margin', threshold=True), 'threshold'),
        (dict(policy='margin', threshold=0.5, unmask='binomial'), 'threshold'),
        (dict(unmask='lossless', window=0), 'window must be an integer from 1, got 0'),
        (dict(unmask='lossless', policy='margin'), 'wants an order that is given'),
        (dict(unmask='lossless', policy='margin', threshold=0.5), 'margin'),
        (dict(unmask='lossless', order_noise=0.5), 'order_noise'),
    ],
)
def test_unmasking_out_of_range(wrong, said):
    with pytest.raises(ValueError, match=said):
        unmasking_of(**wrong)


# ---- one sequence


def sequence_law(model, order, ends):
    """Probability of all 27 sequences under `order` revealed by `ends`, by enumeration."""
    idx = torch.tensor(list(itertools.product(range(3), repeat=3)))
    order, logprob, start = order.expand(27, 3), torch.zeros(27, dtype=torch.float64), 0
    for end in ends:
        logits = model.predict(idx, order, start, end - start)
        logprob += (
            logits.log_softmax(-1)
            .gather(2, idx.gather(1, order[:, start:end]).unsqueeze(-1))
            .sum((1, 2))
        )
        start = end
    return idx, logprob.exp()


@pytest.mark.parametrize(
    'ends, attention',
    [([1, 3], 'causal'), ([3], 'causal'), ([1, 2, 3], 'mixed'), ([1, 3], 'bidirectional')],
)
def test_sampling_is_exact(ends, attention):
    model, order, n = (
        make_model(block_size=3, vocab_size=3, attention=attention),
        torch.tensor([[2, 0, 1]]),
        5_000,
    )
    law = sequence_law(model, order, ends)[1]
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=torch.float64))
    drawn = generate(
        model,
        torch.zeros(n, 3, dtype=torch.long),
        order.expand(n, 3),
        0,
        3,
        schedule=ends,
        generator=torch.Generator().manual_seed(0),
    )
    counts = torch.bincount(drawn @ torch.tensor([9, 3, 1]), minlength=27)
    chi2 = ((counts - n * law) ** 2 / (n * law)).sum()
    assert chi2 < 26 + 5 * 52**0.5  # 26 degrees of freedom, 5 standard deviations


def test_samples_of_the_command_are_exact_over_orders_and_tokens():
    model, n = make_model(block_size=3, vocab_size=3), 8_000
    canvas = write(model, [([0] * 3, [False] * 3)] * n, 'random', 5, 3)
    orders = list(itertools.permutations(range(3)))
    counts, law = torch.zeros(6, 27), torch.zeros(6, 27, dtype=torch.float64)
    for i, order in enumerate(torch.tensor(orders)):
        mine = (canvas.order == order).all(1)
        counts[i] = torch.bincount(canvas.idx[mine] @ torch.tensor([9, 3, 1]), minlength=27)
        law[i] = sequence_law(model, order[None], [1, 2, 3])[1] / 6
    chi2 = ((counts - n * law) ** 2 / (n * law)).sum()
    assert chi2 < 161 + 5 * 322**0.5  # joint law of order and tokens: they are independent draws


def test_a_bfloat16_cache_gives_the_same_within_its_precision(batch):
    model, (idx, order) = make_model().float(), batch
    with torch.autocast('cpu', torch.bfloat16):
        runs = [
            generate(
                model, idx, order, 2, 4, temperature=0, use_cache=use_cache, return_trace=True
            )[1]
            for use_cache in (True, False)
        ]
    exact = generate(model, idx, order, 2, 4, temperature=0, return_trace=True)[1]
    with torch.autocast('cpu', torch.bfloat16):
        assert product_dtype(model) == torch.bfloat16
    assert product_dtype(model) == torch.float32
    for run in runs:  # the first step: later ones may have drawn other tokens
        first = run['step'] == 0
        assert (run['logprob'] - exact['logprob'])[first].abs().max() < 0.1


def test_tokens_are_drawn_by_the_uniform_numbers_of_the_seed_by_position(batch):
    """Position p of a row takes the number of (seed, 'tokens', p), whatever the order and the step."""
    model, (idx, order), seeds = make_model(), batch, [4, 10**30, 7, 4, 0]
    new = generate(model, idx, order, 3, 6, seeds=seeds)
    for r, seed in enumerate(seeds):
        u = numbers(seed, 'tokens')
        for d in range(3, 9):
            p = int(order[r, d])
            prob = model.predict(new[r : r + 1], order[r : r + 1], d, 1)[0, 0].softmax(-1)
            assert new[r, p] == int((prob.cumsum(-1) <= u[p]).sum())


def test_seeds_are_drawn_by_the_generator(batch):
    model, (idx, order) = make_model(), batch
    seeds = torch.randint(2**62, (5,), generator=torch.Generator().manual_seed(3))
    drawn = generate(model, idx, order, 2, 4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(drawn, generate(model, idx, order, 2, 4, seeds=seeds))
    assert not torch.equal(generate(model, idx, order, 2, 4), generate(model, idx, order, 2, 4))


@pytest.mark.parametrize('policy', [*SCORES])
def test_scores_of_bfloat16_logits_are_taken_in_float32(policy):
    logits = torch.randn(30, 11, dtype=torch.bfloat16)
    assert torch.equal(confidence(logits, policy), confidence(logits.float(), policy))


def test_a_score_that_is_the_threshold_is_revealed(batch):
    model, (idx, order) = make_model(vocab_size=8), (batch[0] % 8, batch[1])
    model.lm_head.weight.zero_()
    model.lm_head.bias.zero_()
    score = float(confidence(torch.zeros(1, 8, dtype=torch.float64), 'top_prob'))
    for threshold, n_steps in ((score, 1), (score * 1.0001, 9)):
        how = dict(policy='top_prob', threshold=threshold, return_trace=True)
        assert generate(model, idx, order, 0, 9, **how)[1]['step'].max() == n_steps - 1


ADAPTIVE = [dict(policy=p) for p in ('top_prob', 'margin', 'entropy')] + [
    dict(policy='margin', order_noise=0.5),
    dict(policy='entropy', order_noise=2.0),
    dict(policy='top_prob', threshold=0.4),
    dict(policy='margin', threshold=0.2, order_noise=0.1),
]
EVERY = [
    *ADAPTIVE,
    dict(policy='given'),
    dict(unmask='binomial'),
    dict(unmask='lossless', window=4),
    dict(unmask='binomial', schedule='cosine', policy='margin'),
]


def slow_adaptive(
    model, idx, order, known, n_reveal, seed, policy, order_noise=0.0, threshold=None
):
    """One row by the definition, without cache or batch. Score all that remain, reveal the best n_reveal, or those
    over a threshold before noise and at least one. Returns (tokens, visits, step of each visit)."""
    idx, visits, steps, step = idx.clone(), order[:known].tolist(), [], 0
    u = numbers(seed, 'tokens')
    while len(visits) < len(order):
        v = numbers(seed, 'noise', step)
        noise = -(-v.log()).log()
        scored = []
        for p in sorted(set(order.tolist()) - set(visits)):
            prob = model.predict(idx[None], torch.tensor([[*visits, p]]), len(visits))[
                0, 0
            ].softmax(-1)
            top = prob.topk(2).values
            score = {
                'top_prob': top[0],
                'margin': top[0] - top[1],
                'entropy': (prob * prob.log()).nansum(),
            }[policy]
            sure = threshold is not None and bool(score >= threshold)
            scored.append((sure, float(score + order_noise * noise[p]), p, prob))
        scored.sort(key=lambda s: s[:2], reverse=True)
        n = n_reveal[step] if threshold is None else max(1, sum(sure for sure, *_ in scored))
        for *_, p, prob in scored[:n]:
            idx[p] = int((prob.cumsum(-1) <= u[p]).sum())
            visits.append(p)
            steps.append(step)
        step += 1
    return idx, visits, steps


@pytest.mark.parametrize('how', ADAPTIVE)
def test_adaptive_orders_are_the_definition(batch, how):
    model, (idx, order), known = make_model(), batch, torch.tensor([0, 3, 8, 5, 1])
    new, trace = generate(model, idx, order, known, 3, **how, seeds=range(5), return_trace=True)
    for r, k in enumerate(known.tolist()):
        n_reveal = [b - a for a, b in itertools.pairwise([0, *unmask_schedule(9 - k, 3)])]
        tokens, visits, steps = slow_adaptive(model, idx[r], order[r], k, n_reveal, r, **how)
        assert torch.equal(tokens, new[r]) and trace['order'][r].tolist() == visits
        assert trace['step'][r, visits[k:]].tolist() == steps


def test_of_scores_that_tie_the_first_in_the_order_are_taken():
    model, order = make_model(block_size=40), sample_order(3, 40)
    model.lm_head.weight.zero_()
    _, trace = generate(
        model,
        torch.zeros_like(order),
        order,
        0,
        3,
        policy='margin',
        seeds=range(3),
        return_trace=True,
    )
    assert torch.equal(trace['order'], order)


def test_scores_that_tie_do_not_depend_on_the_batch(batch):
    model, (idx, order) = make_model(), batch
    model.lm_head.weight.zero_()
    how = dict(n_steps=6, policy='margin', unmask='binomial', return_trace=True)
    _, trace = generate(model, idx, order, 0, seeds=range(5), **how)
    for r in range(5):
        alone = generate(model, idx[r : r + 1], order[r : r + 1], 0, seeds=[r], **how)[1]
        assert torch.equal(alone['order'][0], trace['order'][r])


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_rows_do_not_depend_on_the_width_of_the_batch(attention):
    model = make_model(vocab_size=16, n_tokens=11, attention=attention)
    rows = [
        ([3, 0], [True, False]),
        ([4, 4], [True, True]),
        ([1, 0, 0, 2, 0], [True, False, False, True, False]),
        ([0] * 9, [False] * 9),
    ]
    for order in ('random', 'r2l', 'margin'):
        together = write(model, rows, order, 7, 3)
        for r, row in enumerate(rows):
            alone, n = write(model, [row], order, 7 + r, 3), len(row[0])
            for name in ('idx', 'order', 'step'):
                assert torch.equal(getattr(alone, name)[0], getattr(together, name)[r, :n])
            torch.testing.assert_close(
                alone.logprob[0], together.logprob[r, :n], rtol=0, atol=1e-12
            )


def test_a_vocabulary_of_one_token():
    model = make_model(vocab_size=8, n_tokens=1)
    for policy in ('given', *SCORES):
        order = sample_order(2, 9)
        assert not generate(model, order * 0, order, 0, 3, policy).any()


@pytest.mark.parametrize(
    'how, variant', [*((how, {}) for how in EVERY), *((EVERY[-1], variant) for variant in FINAL)]
)
def test_every_policy_cached_alone_and_in_a_batch_is_the_same(batch, how, variant):
    model, (idx, order) = make_model(vocab_size=16, n_tokens=11, **variant), batch
    known, n_visits = torch.tensor([0, 3, 9, 5, 1]), torch.tensor([9, 8, 9, 6, 9])

    def run(rows, use_cache=True):
        canvas = Canvas(idx[rows], order[rows], known[rows], list(range(5))[rows], n_visits[rows])
        fill(model, canvas, unmasking_of(n_steps=4, **how), Drawing(), use_cache)
        return canvas

    new = run(slice(5))
    assert new.idx.max() < 11 and torch.equal(new.known, n_visits)
    for rows, other in [(slice(5), run(slice(5), False))] + [
        (slice(r, r + 1), run(slice(r, r + 1))) for r in range(5)
    ]:
        for name in ('idx', 'order', 'step', 'logprob'):
            torch.testing.assert_close(
                getattr(other, name), getattr(new, name)[rows], rtol=0, atol=1e-12
            )
    for r in range(5):
        behind, now = order[r, n_visits[r] :], new.step[r, order[r, known[r] : n_visits[r]]]
        assert torch.equal(new.idx[r, behind], idx[r, behind]) and (new.step[r, behind] == -1).all()
        assert (now >= 0).all()
        assert sorted(new.order[r].tolist()) == list(range(9))


@pytest.mark.parametrize('how', EVERY)
def test_forced_tokens_are_scored_not_changed(batch, how):
    model, (idx, order) = make_model(), batch
    canvas = Canvas(idx, order, 2, range(5))
    fill(model, canvas, unmasking_of(n_steps=9, **how), Drawing(scores=True))
    assert torch.equal(canvas.idx, idx)
    if (
        how.get('unmask') != 'binomial' and 'threshold' not in how
    ):  # one at a time: the nll of the order taken
        scored = -model(idx, canvas.order)[:, 2:]
        torch.testing.assert_close(
            canvas.logprob.gather(1, canvas.order)[:, 2:], scored, rtol=0, atol=1e-10
        )


@pytest.mark.parametrize('kind', ['linear', 'cosine'])
def test_binomial_unmasking_is_ancestral_sampling(kind):
    """The law of all 27 sequences, by enumeration of which blanks each step reveals, each by itself with probability
    1 - s / t, and of the order in which they are read afterwards."""
    model, n, T = make_model(block_size=3, vocab_size=3), 6_000, 2
    law, levels = (
        torch.zeros(27, dtype=torch.float64),
        [1.0, 0.5 if kind == 'linear' else 0.5**0.5, 0.0],
    )
    for revealed in itertools.product(range(T), repeat=3):  # the step of every position
        p = 1.0
        for step in revealed:
            for k in range(step):
                p *= levels[k + 1] / levels[k]
            p *= 1 - levels[step + 1] / levels[step]
        first = [i for i in range(3) if revealed[i] == 0]
        for a in itertools.permutations(first):
            rest = [i for i in range(3) if revealed[i] == 1]
            for b in itertools.permutations(rest):
                weight = p / math.factorial(len(first)) / math.factorial(len(rest))
                law += (
                    weight
                    * sequence_law(model, torch.tensor([[*a, *b]]), sorted({len(a), 3} - {0}))[1]
                )
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=torch.float64))
    order = sample_order(n, 3, generator=torch.Generator().manual_seed(1))
    drawn = generate(
        model,
        order * 0,
        order,
        0,
        T,
        schedule=kind,
        unmask='binomial',
        generator=torch.Generator().manual_seed(0),
    )
    chi2 = (
        (torch.bincount(drawn @ torch.tensor([9, 3, 1]), minlength=27) - n * law) ** 2 / (n * law)
    ).sum()
    assert chi2 < 26 + 5 * 52**0.5


def test_binomial_numbers():
    u = uniform(keys_of(range(4000)).unsqueeze(1), torch.arange(10))
    counts = torch.tensor([binomial_schedule(row, 4, 'linear') for row in u]).double()
    assert (counts[:, -1] == 10).all() and (counts.diff(dim=1) >= 0).all()
    for k, share in enumerate((0.25, 0.5, 0.75)):
        assert abs(counts[:, k].mean() - 10 * share) < 5 * (10 * share * (1 - share) / 4000) ** 0.5
        assert abs(counts[:, k].var() - 10 * share * (1 - share)) < 0.25


@pytest.mark.parametrize('variant', VARIANTS + FINAL)
@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_every_network_writes_the_same_cached_and_uncached(variant, policy):
    model, order = (
        make_model(**variant),
        sample_order(3, 9, generator=torch.Generator().manual_seed(0)),
    )
    known = torch.tensor([0, 3, 5])
    a, b = (
        generate(
            model,
            torch.ones_like(order),
            order,
            known,
            4,
            policy=policy,
            use_cache=cached,
            seeds=range(3),
            return_trace=True,
        )
        for cached in (True, False)
    )
    assert torch.equal(a[0], b[0]) and torch.equal(a[1]['order'], b[1]['order'])
    torch.testing.assert_close(a[1]['logprob'], b[1]['logprob'], rtol=0, atol=1e-10)


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
@pytest.mark.parametrize(
    'policy, unmask', [('given', 'fixed'), ('given', 'binomial'), ('margin', 'fixed')]
)
def test_a_network_with_a_masked_loss_writes_what_it_scores(attention, policy, unmask):
    """It collects the log-probabilities that predict gives in the order and the steps that it took."""
    model, known = make_model(attention=attention), 2
    order = sample_order(4, 9, generator=torch.Generator().manual_seed(0))
    idx, trace = generate(
        model,
        torch.ones_like(order),
        order,
        known,
        3,
        policy=policy,
        unmask=unmask,
        seeds=range(4),
        return_trace=True,
    )
    assert (idx.gather(1, order[:, :known]) == 1).all()
    for r in range(4):
        visited = trace['order'][r]
        for d in range(known, 9):
            before = sum(
                int(trace['step'][r, p]) < int(trace['step'][r, visited[d]]) for p in visited
            )
            logits = model.predict(idx[r : r + 1], visited[None], before)[0, d - before]
            p = visited[d]
            torch.testing.assert_close(
                trace['logprob'][r, p], logits.log_softmax(-1)[idx[r, p]], rtol=0, atol=1e-10
            )


def test_every_step_is_told_with_what_it_revealed(batch):
    canvas, told = Canvas(*batch, torch.tensor([0, 3, 9, 8, 5]), range(5)), []
    for step, n_new, part in steps(make_model(), canvas, Given(2), Drawing()):
        assert len({*step.tolist()}) == 1
        told.append((int(step[0]), part.rows.tolist(), n_new.tolist(), part.known.tolist()))
    assert told == [
        (0, [0, 1, 3, 4], [4, 3, 1, 2], [4, 6, 9, 7]),
        (1, [0, 1, 4], [5, 3, 2], [9, 9, 9]),
    ]


@pytest.mark.parametrize('how', [{}, {'policy': 'margin'}, {'unmask': 'lossless', 'window': 2}])
def test_rows_that_are_told_to_end_keep_their_blanks_and_the_others_go_on(batch, how):
    whole, part, asked = Canvas(*batch, 2, range(5)), Canvas(*batch, 2, range(5)), []
    fill(make_model(), whole, unmasking_of(n_steps=9, **how), Drawing())
    for _, _, canvas in steps(make_model(), part, unmasking_of(n_steps=9, **how), Drawing()):
        asked.append(canvas.rows.tolist())
        canvas.end((canvas.rows % 2 == 0) & (canvas.known >= 4))
    assert torch.equal(part.idx[1::2], whole.idx[1::2]) and (part.known[1::2] == 9).all()
    assert (4 <= part.known[::2]).all() and (part.known[::2] < 9).all() and {*asked[-1]} <= {1, 3}
    for r in (0, 2, 4):
        written = part.order[r, 2 : part.known[r]]
        assert torch.equal(part.idx[r, written], whole.idx[r, written])
        assert (part.step[r] >= 0).sum() == part.known[r] - 2


def test_noise_is_the_quantile_of_uniform_numbers():
    u = numbers(0, n=20_000)
    noise = gumbel_noise(torch.cat([torch.zeros(1), u]))
    torch.testing.assert_close(noise[1:], -(-u.log()).log(), rtol=0, atol=1e-9)
    assert noise[0].isfinite() and noise[0] < noise[1:].min()
    assert (
        abs(noise[1:].mean() - 0.5772) < 0.04 and abs(noise[1:].std() - 1.2825) < 0.04
    )  # the standard Gumbel law


PROMPTS = (
    65,
    35,
    45,
    5,
)  # lengths; 32 to 63 tokens are read together, 46 slots each: 66 + 2 * 46 + 6


def remaining(blanks, first):
    """The slots of each step of an adaptive row, which scores all blanks. From the second step on it also runs the last
    known slot, whose target was another."""
    return [first, *range(blanks, 1, -1)]


@pytest.mark.parametrize(
    'order, n_blanks',
    [
        ('random', lambda n: 12),
        ('random', lambda n: 12 if n == 5 else 4),
        ('margin', lambda n: 80 - n),
    ],
)
def test_prompts_of_unequal_length_cost_their_own_tokens(monkeypatch, order, n_blanks):
    model, slots, heads = (
        freeze(make_model(block_size=80, vocab_size=16, n_tokens=11).float()),
        [],
        [],
    )
    trunk = AOGPT.trunk
    monkeypatch.setattr(AOGPT, 'trunk', lambda *a: slots.append(a[3].number.numel()) or trunk(*a))
    model.lm_head.register_forward_pre_hook(
        lambda _, args: heads.append(args[0].shape[:-1].numel())
    )
    rows = [([1] * n + [0] * n_blanks(n), [True] * n + [False] * n_blanks(n)) for n in PROMPTS]
    write(model, rows, order, 0, 80)
    together, slots[:] = sum(slots), []
    heads_together, heads[:] = sum(heads), []
    for row in rows:
        write(model, [row], order, 0, 80)
    blanks = [n_blanks(n) for n in PROMPTS]
    if order == 'random':  # then one slot a row and blank; alone, the first step reads the prompt
        assert together == 66 + 2 * 46 + 6 + sum(blanks) and sum(slots) == sum(PROMPTS) + sum(
            blanks
        )
    else:  # a step is as wide as the row that has most left
        assert sum(slots) == sum(sum(remaining(b, 80)) for b in blanks)
        steps = itertools.zip_longest(*(remaining(b, b) for b in blanks))
        widths = [[n for n in step if n is not None] for step in steps]
        assert together == 66 + 2 * 46 + 6 + sum(len(step) * max(step) for step in widths)
    assert heads_together == sum(heads)


def test_the_head_of_an_encoder_is_run_for_what_is_drawn():
    model, heads = freeze(make_model(block_size=8, attention='bidirectional')), []
    model.lm_head.register_forward_pre_hook(
        lambda _, args: heads.append(args[0].shape[:-1].numel())
    )
    write(model, [([0] * 8, [False] * 8), ([0] * 5, [False] * 5)], 'random', 0, 8)
    assert heads == [2] * 5 + [1] * 3


def test_generation_runs_on_one_frozen_copy(monkeypatch):
    model, calls = make_model(block_size=8).float(), []
    linear = torch.nn.Linear.forward
    monkeypatch.setattr(
        'anyorder.generation.fill.freeze', lambda *a: (freeze(*a), calls.append('frozen'))[0]
    )
    monkeypatch.setattr(
        torch.nn.Linear, 'forward', lambda *a: (linear(*a), calls.append('linear'))[0]
    )
    generate(model, torch.zeros(2, 8, dtype=torch.long), sample_order(2, 8), 0, 4)
    assert calls == ['linear'] * 3 + ['frozen']  # the tables of two blocks and the final layer
    once = freeze(model, torch.float32)
    generate(once, torch.zeros(2, 8, dtype=torch.long), sample_order(2, 8), 0, 4)
    with pytest.raises(ValueError, match='evaluation mode'):
        generate(model.train(), torch.zeros(2, 8, dtype=torch.long), sample_order(2, 8), 0, 4)


@pytest.mark.parametrize('variant', [{}, *FINAL])
@pytest.mark.parametrize('order', ['random', 'margin'])
def test_prompts_that_are_read_in_groups_change_nothing(order, variant):
    model = make_model(block_size=80, **variant)
    rows = [([r] * 80, [i < n for i in range(80)]) for r, n in enumerate((40, 3, 75, 70, 0))]
    together = write(model, rows, order, 7, 6)
    for r, row in enumerate(rows):
        for use_cache in (True, False):
            alone = write(model, [row], order, 7 + r, 6, use_cache)
            assert torch.equal(alone.idx[0], together.idx[r])
            assert (alone.logprob[0] - together.logprob[r]).abs().max() < 1e-12


def test_the_cache_is_as_large_as_it_says_and_nothing_else_stays():
    config = dict(block_size=64, vocab_size=16, n_layer=3, n_head=2, n_embd=32)
    model, live = make_model(**config).float(), []
    cache = KVCache(model.config, 5)
    assert 4 * (cache.k.numel() + cache.v.numel()) == 4 * 2 * 3 * 5 * 64 * 32
    canvas = Canvas(torch.zeros(5, 64, dtype=torch.long), sample_order(5, 64), 0, range(5))
    for _ in steps(model, canvas, Given(4), Drawing()):
        gc.collect()
        live.append(
            sum(
                {
                    t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                    for t in gc.get_objects()
                    if type(t) is torch.Tensor and t.layout == torch.strided
                }.values()
            )
        )
    assert len(live) == 4 and max(live[1:]) == min(live[1:])


def test_scores_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert confidence(p.log(), 'top_prob').tolist() == pytest.approx([0.5, 1.0])
    assert confidence(p.log(), 'margin').tolist() == pytest.approx([0.2, 1.0])
    nats = sum(x * math.log(x) for x in (0.5, 0.3, 0.2))
    assert confidence(p.log(), 'entropy').tolist() == pytest.approx([nats, 0.0])


def test_another_score_is_one_function(monkeypatch, batch):
    """The probability of token 0: a policy, with noise, without threshold until it is named in PROBABILITIES."""
    monkeypatch.setitem(SCORES, 'zero', lambda logits: logits.softmax(-1)[:, 0])
    model, (idx, order) = make_model(), batch
    _, trace = generate(model, idx, order, 3, 1, policy='zero', seeds=range(5), return_trace=True)
    for r in range(5):
        p = model.predict(idx[r : r + 1], order[r : r + 1], 3)[0].softmax(-1)[:, 0]
        assert trace['order'][r, 3:].tolist() == order[r, 3:][p.argsort(descending=True)].tolist()
    assert unmasking_of(policy='zero', order_noise=1.0).adaptive
    with pytest.raises(ValueError, match='for top_prob and margin'):
        unmasking_of(policy='zero', threshold=0.5)


@pytest.mark.parametrize('policy', SCORES)
def test_confidence_is_the_same_in_parts(monkeypatch, policy):
    logits = torch.randn(3, 5, 7, dtype=torch.float64)
    whole = confidence(logits, policy)
    monkeypatch.setattr(
        'anyorder.generation.unmasking.split_rows', lambda vocab_size, x: [x.split(2)]
    )
    assert torch.equal(confidence(logits, policy), whole) and whole.shape == (3, 5)
