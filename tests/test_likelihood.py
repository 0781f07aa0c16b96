"""Likelihood: totals, bounds, ensembles and conditionals, against slow versions and by hand."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import make_model

from anyorder.likelihood.conditional import conditional_logprob
from anyorder.likelihood.ensemble import (
    Groups,
    batches_of,
    context_logprobs,
    ensemble_block_nll,
    ensemble_nll,
    ensemble_totals,
    group_contexts,
    powers_of_two,
    sample_groups,
)
from anyorder.likelihood.nll import block_nll, check_finite, draw_known, one_by_one, score_visits
from anyorder.orders import draw_orders
from anyorder.seeds import numbered_keys, uniform
from model import Slots


class Network:
    """A decoder that gives nll(idx, order) and remembers what it was asked."""

    device = torch.device('cpu')
    config = SimpleNamespace(block_size=9)
    slots = Slots

    def __init__(self, nll):
        self.nll = nll
        self.asked = []

    def __call__(self, idx, order, n_known=None, columns=None, n_visits=None, begins=None):
        self.asked.append((idx, order, columns))
        nll = self.nll(idx, order)
        return nll if columns is None else nll.gather(1, columns.expand(len(idx), -1))


def large_and_small(idx, order):
    """Float32 nats whose sum float32 cannot hold: 2^24, then ones."""
    return torch.cat([torch.full((len(idx), 1), 2.0**24), torch.ones(order[:, 1:].shape)], 1)


# --------------------------------------------------------------------------------------------------
# nats of blocks


def test_totals_do_not_depend_on_the_batch(batch):
    model = make_model()
    (idx, order) = batch
    expected = model(idx, order).sum(1)
    for batch_size in (1, 2, 5, 9):
        torch.testing.assert_close(
            block_nll(model, idx, order, batch_size), expected, rtol=0, atol=1e-10
        )
    assert block_nll(model, idx[:0], order[:0], 2).shape == (0,)


def test_only_the_visits_behind_the_given_ones_are_summed(batch):
    model = make_model()
    (idx, order) = batch
    nll = model(idx, order)
    n_given = torch.tensor([0, 3, 9, 1, 8])
    after = torch.arange(9) >= n_given.unsqueeze(1)
    torch.testing.assert_close(
        block_nll(model, idx, order, 2, n_given=n_given), (nll * after).sum(1)
    )


def test_totals_are_summed_in_float64():
    idx = torch.zeros(2, 9, dtype=torch.long)
    order = torch.arange(9).expand(2, 9)
    network = Network(large_and_small)
    want = 2.0**24 + 8
    assert block_nll(network, idx, order, 1).tolist() == [want, want]
    assert ensemble_block_nll(network, idx[0], order[0], 1, Groups(list(range(9))))[0] == want
    assert conditional_logprob(network, idx, list(range(9)), []).tolist() == [-want, -want]


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_scored_padding_has_no_nats(attention, batch):
    idx, order = batch
    n_visits = torch.full((len(idx),), 9)
    n_visits[0] = 7
    nll = score_visits(make_model(attention=attention), idx, order, 4, 5, n_visits)
    assert (nll == 0).tolist() == [[False] * 3 + [True] * 2] + [[False] * 5] * (len(idx) - 1)


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_a_network_with_a_masked_loss_is_scored_by_a_pass_for_each_visit_or_by_a_draw(
    attention, batch
):
    """One by one gives what a decoder's forward gives. Draws agree with the mean of all orders."""
    idx, order = batch
    torch.testing.assert_close(
        one_by_one(make_model(), idx, order), make_model()(idx, order), rtol=0, atol=1e-10
    )
    encoder = make_model(attention=attention, block_size=4)
    idx = idx[:, :4]
    orders = torch.tensor(list(itertools.permutations(range(4))))
    exact = torch.stack([block_nll(encoder, row.expand(24, 4), orders, 7).mean() for row in idx])
    K = 400
    drawn = draw_orders(range(5), 4, K, 3).flatten(0, 1)
    known = draw_known(range(5), 4, K, 3)
    nats = block_nll(encoder, idx.repeat_interleave(K, 0), drawn, 64, n_known=known.flatten()).view(
        5, K
    )
    z = (nats.mean(1) - exact) / (nats.std(1) / K**0.5)
    assert z.abs().max() < 3.5
    assert nats.std(1).min() > 0.1


def test_numbers_of_known_visits_are_stratified_and_a_function_of_seed_and_block():
    known = draw_known(range(50), 8, 4, 3)
    assert torch.equal(known // 2, torch.arange(4).expand(50, 4))
    assert known.unique().tolist() == list(range(8))
    assert torch.equal(known[[7, 2]], draw_known([7, 2], 8, 4, 3))
    assert not torch.equal(known, draw_known(range(50), 8, 4, 4))
    assert len(known.unique(dim=0)) > 8
    n_given = torch.arange(50).unsqueeze(1) % 8
    after = draw_known(range(50), 8 - n_given, 1, 3, n_given)
    assert (after >= n_given).all()
    assert (after < 8).all()
    assert draw_known(range(50), 3, 1, 3, 5).unique().tolist() == [5, 6, 7]


ORDER = torch.arange(24)


@pytest.mark.parametrize(
    'draw',
    [
        lambda: draw_orders(range(300_000), 24)[:, 0],
        lambda: draw_known(range(300_000), 2**50),
        # of 200,000 groups these two share what a generator on the CPU reads of their seeds
        lambda: torch.cat([group_contexts(ORDER, g, 0, 1, 7, 24) for g in (63_629, 108_319)]),
        lambda: torch.tensor([sample_groups(1000, 1, 20, s)[0] for s in (5, 5 + 2**32)]),
    ],
)
def test_no_two_of_many_draws_are_alike(draw):
    drawn = draw()
    assert len({*map(str, drawn.tolist())}) == len(drawn) > 1


def test_numbers_of_known_visits_have_a_stream_of_their_own():
    (u,) = uniform(numbered_keys(7, [4]).unsqueeze(1), 'known', torch.arange(3))
    assert draw_known([4], 9, 3, 7)[0].tolist() == [
        int((k + x) / 3 * 9) for k, x in enumerate(u.tolist())
    ]


def test_blocks_are_scored_in_the_dtype_that_is_asked_for(batch):
    model = make_model().float()
    (idx, order) = batch
    single, half = (block_nll(model, idx, order, 2, dtype) for dtype in ('float32', 'bfloat16'))
    assert 1e-4 < (half - single).abs().max() < 1
    with torch.autocast('cpu', torch.bfloat16):
        want = model(idx, order).double().sum(1)
    torch.testing.assert_close(half, want, rtol=1e-2, atol=0)


@pytest.mark.parametrize('bad', [math.inf, -math.inf, math.nan])
def test_one_likelihood_that_is_not_finite_is_refused(bad):
    fine = torch.tensor([[1.0, 2.0]])
    assert check_finite(fine) is fine
    with pytest.raises(ValueError, match='not finite'):
        check_finite(torch.tensor([[1.0, bad]]))


# --------------------------------------------------------------------------------------------------
# mixtures


def test_a_mixture_averages_probabilities():
    logprobs = -1000 * torch.rand(4, 8, dtype=torch.float64)  # exp of most of them is 0
    for row, nll in zip(logprobs, ensemble_nll(logprobs)):
        top = float(row.max())
        assert math.isclose(nll, -top - math.log(sum(math.exp(x - top) for x in row.tolist()) / 8))
    p = torch.tensor([[0.2, 0.4]]).log()
    torch.testing.assert_close(ensemble_nll(p), -torch.tensor([0.3]).log())
    assert (ensemble_nll(logprobs) <= -logprobs.mean(-1)).all()  # Jensen
    assert [powers_of_two(n) for n in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]


def test_contexts_are_shuffles_of_the_prefix(batch):
    model = make_model()
    (idx, order) = batch
    i = 3
    logprobs = context_logprobs(model, idx, order, i, 200)
    for r in range(5):
        possible = []
        for prefix in itertools.permutations(order[r, :i].tolist()):
            o = torch.tensor([[*prefix, int(order[r, i])]])
            possible.append(-model(idx[r : r + 1], o)[0, i])
        torch.testing.assert_close(logprobs[r, 0], possible[0], rtol=0, atol=1e-10)
        distance = (logprobs[r, :, None] - torch.stack(possible)).abs()
        assert distance.min(1).values.max() < 1e-10
        assert len(distance.argmin(1).unique()) == 6
    for i, n_contexts in ((9, 2), (-1, 2), (3, 0)):
        with pytest.raises(ValueError, match='visit i'):
            context_logprobs(model, idx, order, i, n_contexts)


def test_a_generator_or_a_seed_gives_the_shuffles(batch):
    model = make_model()
    (idx, order) = batch
    seeded = torch.Generator().manual_seed
    parts = [3, 1, 6], [0, 8, 2]
    for estimate in (
        lambda seed: context_logprobs(model, idx, order, 5, 4, seeded(seed)),
        lambda seed: conditional_logprob(model, idx, *parts, 4, seeded(seed)),
        lambda seed: conditional_logprob(model, idx, *parts, 4, seed=seed),
    ):
        a, b, c = map(estimate, (0, 0, 1))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


# --------------------------------------------------------------------------------------------------
# the ensemble


@pytest.mark.parametrize('width', [1, 2, 4, 9])
@pytest.mark.parametrize('n_tokens', [1, 40, 10**6])
def test_ensemble_is_its_definition(width, n_tokens):
    model = make_model()
    g = torch.Generator().manual_seed(3)
    idx = torch.randint(11, (9,), generator=g)
    order = torch.randperm(9, generator=g)
    n_contexts = 5
    groups = list(range(-(-9 // width)))
    own, members = ensemble_block_nll(
        model, idx, order, n_contexts, Groups(groups, width), 7, n_tokens
    )
    plain = model(idx[None], order[None])[0]
    total = torch.zeros(len(powers_of_two(n_contexts)), dtype=torch.float64)
    for i in range(9):  # each visit by itself, with one whole pass for every member
        group = i // width
        start = group * width
        rows = [order, *group_contexts(order, group, width, n_contexts - 1, 7)]
        check_shuffles(rows, order, start, i)
        nll = torch.stack([model(idx[None], row[None, : i + 1])[0, i] for row in rows])
        torch.testing.assert_close(members[group, :, i - start], nll, rtol=0, atol=1e-10)
        total += torch.stack([-(-nll[:m]).exp().mean().log() for m in (1, 2, 4, 5)])
    assert not members[-1, :, 9 - groups[-1] * width :].any()  # behind the last visit
    got = ensemble_totals(own, members, torch.ones(len(groups)))
    torch.testing.assert_close(got, total, rtol=0, atol=1e-9)
    assert math.isclose(float(got[0]), float(plain.sum()), abs_tol=1e-10)
    if 4 < width:
        assert torch.allclose(got, plain.sum())  # nothing is before the only group


def check_shuffles(rows, order, start, i):
    """Visits before `start` are shuffled, those from there to visit i are not."""
    contexts = [row[:start].tolist() for row in rows]
    assert start < 5 or len(set(map(tuple, contexts))) > 2
    for row, context in zip(rows, contexts):
        assert sorted(context) == sorted(order[:start].tolist())
        assert torch.equal(row[start : i + 1], order[start : i + 1])


def test_some_groups_give_what_they_give_among_all():
    model = make_model()
    g = torch.Generator().manual_seed(5)
    idx = torch.randint(11, (9,), generator=g)
    order = torch.randperm(9, generator=g)
    own, every = ensemble_block_nll(model, idx, order, 3, Groups(list(range(5)), 2), 7)
    some, members = ensemble_block_nll(model, idx, order, 3, Groups([0, 2, 4], 2), 7)
    assert own == some
    torch.testing.assert_close(members, every[[0, 2, 4]], rtol=0, atol=1e-12)


def test_contexts_of_groups_are_drawn_apart():
    """Contexts of a group are a function of (seed, group), uniform, and tell nothing of the
    next."""
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    contexts = [group_contexts(order, g, 1, 6, 7) for g in (9, 10)]
    assert torch.equal(contexts[1], group_contexts(order, 10, 1, 6, 7))
    assert not torch.equal(contexts[1], group_contexts(order, 10, 1, 6, 8))
    for row, longer in zip(contexts[0].tolist(), contexts[1].tolist()):
        assert row[:9] != [position for position in longer[:10] if position != order[9]]
    assert len({tuple(row) for row in contexts[1].tolist()}) == 6
    firsts = group_contexts(order, 3, 1, 3000, 7)[:, :3]
    counts = torch.stack([(firsts == position).sum(0) for position in order[:3]])
    assert ((counts - 1000).abs() < 130).all()  # five standard deviations


def test_batches_hold_all_rows_in_order_and_few_slots():
    pieces = [torch.full((7, length), length) for length in (2, 3, 5, 11, 40, 41, 64)]
    batches = list(batches_of(pieces, 100))
    rows = [row.tolist() for batch in batches for part in batch for row in part]
    assert rows == [row.tolist() for piece in pieces for row in piece]
    for batch in batches:
        longest = max(part.size(1) for part in batch)
        assert longest * sum(map(len, batch)) <= 100
        assert longest <= 1.25 * batch[0].size(1) + 8
    one_by_one = [part for batch in batches_of(pieces[:1], 1) for part in batch]
    assert list(map(len, one_by_one)) == 7 * [1]  # a row at least


@pytest.mark.parametrize(
    'N, width, n_positions, n_groups',
    [
        (9, 1, 0, 9),
        (9, 1, 9, 9),
        (9, 1, 20, 9),
        (9, 1, 8, 8),
        (9, 1, 1, 1),
        (9, 2, 0, 5),
        (9, 2, 2, 1),
        (9, 2, 3, 1),
        (9, 2, 8, 4),
        (9, 2, 9, 5),
        (8, 2, 7, 3),
        (9, 9, 0, 1),
        (9, 4, 8, 2),
    ],
)
def test_as_many_groups_as_the_positions_pay_for(N, width, n_positions, n_groups):
    groups, weights = sample_groups(N, width, n_positions, 3)
    there = -(-N // width)
    assert len(groups) == len(set(groups)) == len(weights) == n_groups
    assert weights.sum() == there
    assert groups == sorted(groups)
    assert 0 <= groups[0] <= groups[-1] < there


def test_sampled_visits_are_unbiased_and_stratified():
    counts = torch.zeros(10)
    for seed in range(2000):
        groups, weights = sample_groups(10, 1, 4, seed)
        counts[groups] += weights
    assert (counts / 2000 - 1).abs().max() < 0.15
    edges = [0, 2, 5, 8, 10]  # 2.5 and 7.5 are rounded to the even
    assert all(start <= g < end for g, start, end in zip(groups, edges, edges[1:]))
    assert weights.tolist() == [2, 3, 3, 2]


def test_totals_of_sampled_groups_by_hand():
    p = torch.tensor([[[0.5], [0.25]], [[0.1], [0.3]]], dtype=torch.float64)  # (groups, M, width)
    change = [math.log(0.5) - math.log(0.375), math.log(0.1) - math.log(0.2)]  # with two members
    got = ensemble_totals(
        torch.tensor(30.0), -p.log(), torch.tensor([3.0, 2.0], dtype=torch.float64)
    )
    assert got[0] == 30
    assert math.isclose(got[1], 30 + 3 * change[0] + 2 * change[1], abs_tol=1e-12)


# --------------------------------------------------------------------------------------------------
# conditionals


def test_log_probability_of_a_set_given_another():
    model = make_model(block_size=4, vocab_size=3)
    every = torch.tensor(list(itertools.product(range(3), repeat=2)))
    idx = torch.stack([torch.full((9,), 2), every[:, 0], torch.full((9,), 1), every[:, 1]], 1)
    for n_orders in (0, 3):  # a law over what a may be
        logp = conditional_logprob(model, idx, [3, 1], [0], n_orders)
        assert math.isclose(float(logp.exp().sum()), 1, abs_tol=1e-10)
    idx = idx[:1]
    order = torch.tensor([[0, 2, 1, 3]])
    assert math.isclose(
        conditional_logprob(model, idx, [3, 1], [2, 0]),
        -model(idx, order)[0, 2:].sum(),
        abs_tol=1e-10,
    )
    assert math.isclose(
        conditional_logprob(model, idx, [2], []),
        -model(idx, torch.tensor([[2]]))[0, 0],
        abs_tol=1e-10,
    )
    for wrong in (([], [1]), ([1], [1]), ([4], []), ([-1], [])):
        with pytest.raises(ValueError, match='disjoint'):
            conditional_logprob(model, idx, *wrong)


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_a_masked_loss_knows_that_the_other_positions_are_blank(attention):
    model = make_model(block_size=5, vocab_size=3, attention=attention)
    order = torch.tensor([[0, 4, 1, 3, 2]] * 2)
    idx = torch.tensor([[2, 0, 1, 1, 0], [1, 2, 0, 1, 0]])
    want = 0
    for d in (2, 3):  # positions 1 and 3, given 0 and 4, and 2 is blank
        logp = model.predict(idx, order, d, 1)[:, 0].log_softmax(-1)
        want = want + logp.gather(1, idx[:, order[0, d : d + 1]])[:, 0]
    got = conditional_logprob(model, idx, [3, 1], [4, 0])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    assert torch.equal(
        got, conditional_logprob(model, idx.index_fill(1, torch.tensor([2]), 0), [3, 1], [4, 0])
    )


def test_orders_of_a_conditional_shuffle_both_sets_and_are_averaged():
    network = Network(lambda idx, order: order.double())  # the visits of a cost their positions
    idx = torch.zeros(1, 9, dtype=torch.long)
    conditional_logprob(network, idx, [3, 1, 2], [0, 8], 200)
    orders = [tuple(order[0].tolist()) for _, order, _ in network.asked]
    every = {
        b + a for b in itertools.permutations([0, 8]) for a in itertools.permutations([1, 2, 3])
    }
    assert set(orders) == every
    assert len(orders) == 200
    model = make_model()
    idx = torch.arange(9)[None]
    network = Network(model)
    got = conditional_logprob(network, idx, [3, 1], [0, 8], 3)
    p = [math.exp(-float(model(idx, order)[0, 2:].sum())) for _, order, _ in network.asked]
    assert len(p) == 3
    assert math.isclose(float(got.exp()), sum(p) / 3)
