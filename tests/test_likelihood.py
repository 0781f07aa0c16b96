"""How likely is a text? Estimates against a pass for each visit, rows by hand, and the command."""

import hashlib
import itertools
import json
import math
import unicodedata
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toy_runs
from conftest import make_model, one_line, tokenizer_like
from oracle import ENCODER, FINAL, TWO_STREAM, ByDefinition, chi2_of, limit

import eval_ppl
from anyorder.checkpoint import save_checkpoint
from anyorder.fast import freeze
from anyorder.generation import Drawing
from anyorder.likelihood import estimates, judge, tables
from anyorder.likelihood.ensemble import batches_of, group_contexts, sample_groups
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.lengths import Lengths
from anyorder.likelihood.measured import Corpus, Cut, open_corpus
from anyorder.likelihood.nll import block_nll, draw_known, score_visits
from anyorder.orders import Order, draw_orders
from anyorder.seeds import derive_seed, numbered_keys, uniform
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.blocks import PADDING
from anyorder.tokens.meta import kind_of
from anyorder.tokens.prepared import prepare
from anyorder.tokens.prompts import Template
from anyorder.tokens.tokenizers import Bytes, get_tokenizer, tokenizer_of_set
from anyorder.writer import Writer
from configurator import configure
from model import EMA, AOGPTConfig

SEED = 1337
NETWORKS = {'decoder': {}, 'mixed': FINAL[0], 'encoder': ENCODER, 'two streams': TWO_STREAM[0]}
random = torch.Generator().manual_seed(1)
BLOCKS = torch.randint(11, (4, 9), generator=random)
BLOCKS[3] = BLOCKS[0]
BLOCKS[1, 7:] = PADDING
IDX = BLOCKS.clamp(min=0)
IS_GIVEN = (torch.rand(4, 9, generator=random) < 0.3) & (BLOCKS != PADDING)
GIVEN = IS_GIVEN | (BLOCKS == PADDING)
N_GIVEN = IS_GIVEN.sum(1)
N_VISITS = torch.tensor([9, 7, 9, 9])


def made(*args, run=None, **network):
    """The estimates that the command line asks for, of a model of nine positions."""
    names, ways, c = eval_ppl.check_options(configure(vars(eval_ppl), [*args]))
    run = run or {}
    checkpoint = SimpleNamespace(
        config=AOGPTConfig(block_size=9, **network),
        run=run,
        order=Order.of('own', run),
        counts=None,
    )
    return eval_ppl.choose_estimates(names, ways, ['words'], c, checkpoint)


def text_of(blocks, given=None):
    """A text of these blocks and of twelve bytes."""
    tokens = blocks.flatten().numpy()
    return Corpus('words', 'words (val)', {'source': 'w'}, tokens, blocks, 12, given)


def measured(model, found, journal):
    """{label: row} of estimates of IDX, and what the command says."""
    text = text_of(IDX)
    rows = eval_ppl.evaluate(model, text, found, journal)
    said = eval_ppl.report(text, rows, Bytes())
    return {row['estimate']: row for part in rows.values() for row in part}, said


def visits(model, row, order, first=0, end=None):
    """-log p of the visits `first` to `end` of one row (N,), by a pass for each."""
    row = row[: order.max() + 1]  # without padding
    found = []
    for d in range(first, end or len(order)):
        logp = model.predict(row[None], order[None], d, 1)[0, 0].log_softmax(-1)
        found.append(-logp[row[order[d]]])
    return torch.stack(found)


def laid_out(order, b):
    """The positions of block b in this order, the given ones first and padding last."""
    positions = order.tolist()
    positions.sort(key=lambda p: (bool(BLOCKS[b, p] == PADDING), not GIVEN[b, p]))
    return torch.tensor(positions)


def close(found, want, atol=1e-9):
    torch.testing.assert_close(found, want, rtol=0, atol=atol)


# --------------------------------------------------------------------------------------------------
# nats of visits


@pytest.mark.parametrize('network', NETWORKS)
def test_nats_of_blocks_are_those_of_their_visits_by_any_batch(network):
    """Without what is given and without padding, also of the last visits alone."""
    model = make_model(**NETWORKS[network])
    orders = torch.stack([laid_out(torch.randperm(9, generator=random), b) for b in range(4)])
    nll = [visits(model, row, order[:n]) for row, order, n in zip(BLOCKS, orders, N_VISITS)]
    want = torch.stack([row[first:].sum() for row, first in zip(nll, N_GIVEN)])
    for size in (1, 3, 9):
        close(block_nll(model, BLOCKS, orders, size, n_given=N_GIVEN), want)
    close(block_nll(model, BLOCKS, orders, 2), torch.stack([row.sum() for row in nll]))
    for first in (4, torch.tensor([4, 4, 3, 1])):
        some = score_visits(model, IDX, orders, first, 5, N_VISITS)
        for row, start, found in zip(nll, torch.as_tensor(first).expand(4), some):
            row = row[start : start + 5]
            close(found, torch.cat([row, row.new_zeros(5 - len(row))]))


@pytest.mark.parametrize('network', ['mixed', 'encoder'])
def test_the_bound_of_a_masked_loss_is_drawn_without_bias(network):
    """Over all orders and all numbers of known visits it is the mean of the exact nats."""
    model = make_model(block_size=3, vocab_size=3, **NETWORKS[network])
    row = torch.tensor([2, 0, 1])
    for first, orders in ((0, [*itertools.permutations(range(3))]), (1, [[0, 1, 2], [0, 2, 1]])):
        drawn, exact = [], []
        for order in torch.tensor(orders):
            exact.append(visits(model, row, order, first).sum())
            for known in range(first, 3):
                how = {'n_known': torch.tensor([known]), 'n_given': torch.tensor([first])}
                drawn.append(block_nll(model, row[None], order[None], 1, **how))
        close(torch.cat(drawn).mean(), torch.stack(exact).mean())


def test_numbers_of_known_visits_are_stratified_and_a_function_of_seed_and_block():
    numbers = [4, 0, 9]
    u = uniform(numbered_keys(7, numbers).unsqueeze(1), 'known', torch.arange(3))
    first = torch.tensor([[2], [0], [8]])
    want = first + ((torch.arange(3) + u) / 3 * (9 - first)).long()
    assert draw_known(numbers, 9 - first, 3, 7, first).equal(want)


def test_nats_are_summed_in_float64_by_the_precision_that_is_asked_for(batch):
    idx, order = batch
    model = make_model().float()
    single, half = (block_nll(model, idx, order, 2, dtype) for dtype in ('float32', 'bfloat16'))
    assert 1e-4 < (half - single).abs().max() < 1
    assert block_nll(model, idx[:0], order[:0], 2).shape == (0,)
    model.lm_head.bias[0] = -(2.0**24)  # a float32 of this size has no ones
    idx[:, 3:5] = torch.tensor([0, 1])
    nll = model(idx, order).double()
    assert not nll.sum(1).equal(nll.float().sum(1).double())
    close(block_nll(model, idx, order, 3), nll.sum(1), atol=0)
    nll = model(idx, torch.arange(9).expand(5, 9)).double().sum(1)
    close(-eval_ppl.conditional_logprob(model, idx, range(9), []), nll, atol=1e-5)


@pytest.mark.parametrize('bad', [math.inf, -math.inf, math.nan])
def test_nats_that_are_not_finite_reach_neither_the_table_nor_the_journal(bad):
    model = make_model()
    model.lm_head.bias[BLOCKS[2, 4]] = bad
    journal = Journal('', {})
    for it in made('--estimates=any,ensemble:2'):
        with one_line('not finite'):
            it.measure(model, text_of(BLOCKS[2:3]), journal)
    assert not journal.done


# --------------------------------------------------------------------------------------------------
# contexts


def test_contexts_are_shuffles_of_the_prefix(batch):
    """By a generator. The first is the order itself."""
    model = make_model()
    found, again, other = (
        eval_ppl.context_logprobs(model, *batch, 3, 200, random.manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert found.equal(again) and not found.equal(other)
    for row, order, logprobs in zip(*batch, found):
        possible = []
        for prefix in itertools.permutations(order[:3].tolist()):
            possible.append(-visits(model, row, torch.tensor([*prefix, order[3]]), 3))
        distance, which = (logprobs - torch.cat(possible).unsqueeze(1)).abs().min(0)
        assert distance.max() < 1e-10
        assert which[0] == 0 and len(which.unique()) == 6
    for i, n_contexts in ((9, 2), (-1, 2), (3, 0)):
        with one_line('visit i'):
            eval_ppl.context_logprobs(model, *batch, i, n_contexts)


@pytest.mark.parametrize('network', NETWORKS)
def test_a_conditional_averages_probabilities_over_orders_of_both_sets(network, batch):
    """By default it reads both from left to right; what is in neither is not read."""
    model = make_model(**NETWORKS[network])
    idx = batch[0][:1]
    p = []
    for b, a in itertools.product([[0, 8], [8, 0]], [[1, 3], [3, 1]]):
        order = torch.tensor([*b, *a, 2, 4, 5, 6, 7])
        p.append(float((-visits(model, idx[0], order, 2, 4).sum()).exp()))
    of_two = [sum(x) / 2 for x in itertools.combinations_with_replacement(p, 2)]
    idx[:, [2, 4, 5]] = 10
    for n_orders, possible in ((0, p[:1]), (1, p), (2, of_two)):
        seen = []
        for seed in (0, 0, 1, 2, 3, 4, 5, 6):
            how = {'seed': seed} if n_orders == 1 else {'generator': random.manual_seed(seed)}
            found = eval_ppl.conditional_logprob(model, idx, [3, 1], [8, 0], n_orders, **how)
            distance = [abs(float(found.exp()) - x) for x in possible]
            assert min(distance) < 1e-10
            seen.append(distance.index(min(distance)))
        assert seen[0] == seen[1]
        assert len({*seen}) >= min(n_orders + 1, 2)
    for wrong in (([], [1]), ([1], [1]), ([9], []), ([-1], []), ([1], [2], -1)):
        with one_line('disjoint'):
            eval_ppl.conditional_logprob(model, idx, *wrong)


def test_contexts_of_groups_are_uniform_and_drawn_apart():
    """They are a function of seed and group, and tell nothing of the next."""
    order = torch.randperm(12, generator=random)
    a, b = (group_contexts(order, g, 1, 6, 7) for g in (9, 10))
    assert b.equal(group_contexts(order, 10, 1, 6, 7))
    assert not b.equal(group_contexts(order, 10, 1, 6, 8))
    for row, longer in zip(a.tolist(), b.tolist()):
        assert row[:9] != [position for position in longer[:10] if position != order[9]]
    drawn = group_contexts(order, 1, 2, 3000, 7, n_given=1)  # a visit is given, and two are before
    assert drawn[:, 3:].equal(order[3:5].expand(3000, 2))
    counts = torch.stack([(drawn[:, :3] == position).sum(0) for position in order[:3]])
    assert ((counts - 1000).abs() < 130).all()  # five standard deviations


@pytest.mark.parametrize(
    'sizes, edges',
    [
        ((9, 1, 20), range(10)),
        ((9, 1, 8), [0, 1, 2, 3, 4, 6, 7, 8, 9]),
        ((10, 1, 4), [0, 2, 5, 8, 10]),
        ((9, 2, 3), [0, 5]),
        ((9, 2, 9), range(6)),
        ((9, 2, 0), range(6)),
    ],
)
def test_one_group_of_each_part_of_an_order_is_evaluated(sizes, edges):
    """As many as the positions pay for; any of its part, whose size is its weight."""
    seen = set()
    for seed in range(60):
        groups, weights = sample_groups(*sizes, seed)
        assert weights.tolist() == [end - start for start, end in itertools.pairwise(edges)]
        assert all(start <= group < end for group, start, end in zip(groups, edges, edges[1:]))
        seen |= {*groups}
    assert seen == {*range(edges[-1])}


def test_a_batch_holds_contexts_of_like_lengths_and_few_slots():
    pieces = [torch.zeros(3, length) for length in (2, 3, 11, 40, 41, 64)]
    for n_tokens, want in (
        (100, [[2, 3], [11], [40], [40], [41], [41], [64], [64], [64]]),
        (1, [[piece.size(1)] for piece in pieces for _ in range(3)]),
    ):
        found = []
        for batch in batches_of(pieces, n_tokens):
            found.append([part.size(1) for part in batch])
        assert found == want


# --------------------------------------------------------------------------------------------------
# estimates


@pytest.mark.parametrize(
    'network, names',
    [
        ('decoder', 'l2r,own,any,iw,ensemble:5/2'),
        ('two streams', 'l2r,any,ensemble:5/2'),
        ('mixed', 'own,any'),
        ('encoder', 'own,any'),
        ('encoder', 'any,iw'),
    ],
)
def test_an_estimate_is_its_definition(network, names):
    """The bound of a masked loss alone is drawn: importance weights want the nats of orders."""
    model = make_model(**NETWORKS[network])
    options = '--orders=r2l,swaps:2', '--n_orders=2', '--n_positions=4', '--batch_size=2'
    run = {'order': 'block:4@3'}
    for it in made(f'--estimates={names}', *options, run=run, **NETWORKS[network]):
        found = it.measure(model, text_of(BLOCKS, GIVEN), Journal('', {}))
        for b, nats in enumerate(found):
            first, n = N_GIVEN[b].view(1, 1), int(N_VISITS[b])
            drawn = draw_orders([b], 9, it.n_orders, SEED, it.order)[0]
            orders = torch.stack([laid_out(order, b)[:n] for order in drawn])
            if it.name == 'ensemble':
                close(nats, ensemble_of(model, BLOCKS[b], orders[0], int(first), b))
                continue
            known = None
            if it.name == 'any' and names == 'own,any':
                known = draw_known([b], n - first, it.n_orders, SEED, first)[0]
            rows = BLOCKS[b, :n].expand(len(orders), n)
            given = first.expand(1, len(orders))[0]
            close(nats, block_nll(model, rows, orders, 9, n_known=known, n_given=given))


def ensemble_of(model, row, order, first, b):
    """Nats of block b by 1, 2, 4 and 5 contexts; pairs of visits share them, two pairs count."""
    own = visits(model, row, order)
    totals = own[first:].sum().repeat(4)
    n_blanks = len(order) - first
    groups, weights = sample_groups(n_blanks, 2, 4, derive_seed(SEED, 'positions', b))
    for group, weight in zip(groups, weights, strict=True):
        contexts = group_contexts(order, group, 2, 4, derive_seed(SEED, 'contexts', b), first)
        start = first + 2 * group
        for d in range(start, min(start + 2, len(order))):
            nats = [own[d], *(visits(model, row, context, d, d + 1)[0] for context in contexts)]
            for j, n in enumerate((1, 2, 4, 5)):
                mixed = -(-torch.stack(nats[:n])).exp().mean().log()
                totals[j] += weight * (mixed - own[d])
    return totals


WAYS = [
    'margin',
    'margin/3 --n_steps=3',
    'entropy --n_steps=3',
    'top_prob:.3',
    'random --n_steps=3',
]


@pytest.mark.parametrize('network', NETWORKS)
def test_the_law_of_writing_is_its_definition(network):
    """What is given is read from left to right where a policy writes."""
    model = make_model(**NETWORKS[network])
    for text in WAYS:
        options = f'--orders={text}'.split()
        (it,) = made(*options, '--n_orders=2', '--batch_size=3', **NETWORKS[network])
        policy, *others = text.split(' --n_steps=')
        how = {'policy': policy, 'n_steps': 3 if others else 9}
        found = it.nats(model, BLOCKS, [3, 1], GIVEN).view(2, -1, 3)
        for b, columns in zip([3, 1], found):
            drawn = draw_orders([b], 9, it.n_orders, SEED, it.order)[0]
            for order, (nats, cut, passes) in zip(drawn, columns, strict=True):
                order = laid_out(order, b)
                if policy == 'random':
                    how['policy'] = 'given'
                else:
                    order[: N_GIVEN[b]] = order[: N_GIVEN[b]].sort().values
                sizes = int(N_GIVEN[b]), int(N_VISITS[b])
                slow = ByDefinition(model, IDX[b], order, *sizes, seed=0, scores=True, **how)
                close(nats, -slow.logprob.sum())
                assert (cut, passes) == (0, slow.n_steps)


def test_a_law_is_tempered_and_draws_of_numbers_are_a_bound():
    model = make_model()
    for order in ('l2r', 'margin', 'margin/8'):
        (it,) = made(f'--orders={order}', '--n_steps=4', '--unmask=binomial', '--n_orders=2')
        nats = it.nats(model, IDX, [0, 2])
        assert (nats[:, 0] != nats[:, 3]).all()
        (row,) = it.rows(nats, text_of(IDX[[0, 2]]))
        assert row['bound'] and not {'orders_stderr', 'spread'} & {*row}
    (it,) = made('--orders=l2r', '--temperature=.5')
    nats = it.nats(model, IDX, [2])[0, 0]
    for weight in model.lm_head.parameters():
        weight.mul_(2)
    close(nats, visits(model, IDX[2], torch.arange(9)).sum())


PAIRS = {
    'any order in 3 x 2': 'any order x 2',
    'margin in 3': 'margin',
    'drawn in 3 x 2': 'drawn x 2',
    'margin >= 0.5': 'margin',
    'factor:2': 'top_prob',
    'eb/3:1.5': 'entropy/3',
    'dilated:4': 'left to right',
}


def test_what_passes_cost_is_paired_block_by_block():
    model = make_model()
    journal = Journal('', {})
    some = made('--orders=random,margin,drawn,swaps', '--n_steps=3,0', '--n_orders=2')
    rows, said = measured(model, some, journal)
    assert len(journal.done) == 4 * 8  # what they are compared with is not run again
    assert rows['drawn in 3 x 2']['bound'] and not rows['margin in 3']['bound']
    assert 'spread' in rows['any order in 3 x 2'] and 'orders_stderr' in rows['swaps:16 in 3 x 2']
    one, three = (it.nats(model, IDX, range(4))[:, 0] for it in some[2:4])
    assert rows['margin in 3']['cost_stderr'] == pytest.approx(float((three - one).std() / 18))
    assert 'what is drawn: any order x 2, any order in 3 x 2, drawn x 2, drawn in 3 x 2, sw' in said
    assert said.count('than one token a step, paired by block, in 3.0 passes') == 4

    others = '--orders=margin,margin:.5,top_prob,factor:2,entropy/3,eb/3:1.5,eb,l2r,dilated:4'
    rows |= measured(model, made(others), journal)[0]
    for name, pair in PAIRS.items():
        cost = rows[name]['nats_per_token'] - rows[pair]['nats_per_token']
        assert rows[name]['cost'] == pytest.approx(cost, abs=1e-9)
        assert 1 < rows[name]['passes'] < 9
    assert not {'cost', 'cost_stderr'} & {*rows['eb:0.1'], *rows['margin']}


def test_truths_that_are_cut_off_are_counted():
    model = make_model()
    found = made('--orders=margin', '--n_steps=3,0')
    for it in found:
        it.drawing = Drawing(top_k=3, scores=True)
    rows, said = measured(model, found, Journal('', {}))
    nats, cut, _ = found[0].nats(model, IDX, range(4)).sum(0).tolist()
    want = {'nats_per_token': math.inf, 'stderr': None, 'perplexity': math.inf, 'cut': cut}
    want['kept_nats'] = nats / (36 - cut)
    assert {name: rows['margin'][name] for name in want} == pytest.approx(want)
    assert f'margin: {cut:.0f} of 36 true tokens are cut off' in said
    assert not {'cost'} & {*rows['margin'], *rows['margin in 3']}


# what is asked for, of a run in an order, of a network; its rows, or a word of why there are none
ROWS = [
    ('', '', 'decoder', 'l2r left to right, any any order'),
    ('', 'l2r', 'decoder', 'l2r left to right'),
    ('', 'r2l', 'mixed', 'own own order (r2l)'),
    ('', '', 'encoder', 'any any order'),
    ('--estimates=iw,l2r --n_positions=1', '', 'decoder', 'l2r left to right, iw any order'),
    (
        '--orders=l2r,swaps,random',
        'block:2@3',
        'decoder',
        'l2r left to right, order swaps:16@3, any any order',
    ),
    (
        '--estimates=any --orders=random,block',
        'block:2@3',
        'mixed',
        'any any order, order block:2@3',
    ),
    (
        '--orders=random --n_steps=0,3',
        '',
        'encoder',
        'written any order, exact, written any order in 3',
    ),
    ('--orders=l2r --n_steps=0,3', '', 'encoder', 'l2r left to right, written left to right in 3'),
    (
        '--orders=margin,l2r --temperature=.5',
        '',
        'decoder',
        'written margin, tempered, written left to right, tempered',
    ),
    ('--estimates=own', '', 'decoder', 'take any'),
    ('--estimates=own', 'l2r', 'decoder', 'take l2r'),
    ('--estimates=accuracy', '', 'decoder', 'measured on lambada'),
    ('--estimates=ensemble', '', 'mixed', "decoder's"),
    ('--orders=pc_sampler', '', 'decoder', 'how often'),
]


@pytest.mark.parametrize('asked, order, network, want', ROWS)
def test_every_row_that_is_asked_for_is_made_once(asked, order, network, want):
    try:
        found = made(*asked.split(), run=order and {'order': order}, **NETWORKS[network])
    except ValueError as e:
        assert want in str(e)
    else:
        assert ', '.join(f'{it.name} {it.label}' for it in found) == want


def test_a_journal_tells_ways_apart(tmp_path):
    for name in 'ab':
        (tmp_path / name).mkdir()
    (tmp_path / 'a' / 'x.json').write_text(json.dumps([*range(9)]))
    (tmp_path / 'b' / 'x.json').write_text(json.dumps([8, *range(8)]))
    orders = f'--orders=swaps:3,swaps:3@1,margin,margin/3,{tmp_path}/a/x.json,{tmp_path}/b/x.json'
    found = [*made(orders, '--n_steps=0,3'), *made(orders, '--temperature=.5')]
    found += made('--orders=margin', '--n_steps=3', '--unmask=binomial')
    assert len({it.work for it in found}) == len(found) == 19
    assert [it.label for it in found[8:10]] == ['x.json', 'x.json in 3']


LOG = math.log(2)
# an estimate, nats of two blocks of nine tokens and twelve bytes; fields of its last rows
BY_HAND = [
    (
        '--estimates=l2r',
        [[3], [9]],
        'estimate kind n bound tokens bytes nats_per_token stderr bits_per_byte',
        [('left to right', 'l2r', 1, False, 18, 12, 12 / 18, 3 / 9, 1 / LOG)],
    ),
    (
        '--estimates=own --n_orders=3',
        [[3], [9]],
        'estimate kind n bound',
        [('own order (fixed)', 'own', 1, False)],
    ),
    (
        '--estimates=any --n_orders=3',
        [[1, 3, 8], [5, 7, 6]],
        'estimate kind n bound nats_per_token stderr spread',
        [('any order x 3', 'any', 3, True, 10 / 18, 1 / 9, 7**0.5)],
    ),
    (
        '--orders=swaps:3 --n_orders=2',
        [[1, 3], [5, 11]],  # the orders have means of 3 and 7
        'estimate kind n bound stderr orders_stderr',
        [('swaps:3 x 2', 'order', 2, True, 3 / 9, 2 / 9)],
    ),
    (
        '--estimates=iw --n_orders=4',
        [[LOG, 2 * LOG, 3 * LOG, LOG]] * 2,
        'estimate n bound nats_per_token',
        [('iw x 2', 2, True, -math.log(3 / 8) / 9), ('iw x 4', 4, True, -math.log(11 / 32) / 9)],
    ),
    (
        '--estimates=ensemble:4/2 --n_positions=6',
        [[10, 9, 8], [50, 46, 44]],
        'estimate n bound gain gain_stderr',
        [
            ('ensemble x 1', 1, True, 0, 0),
            ('ensemble x 2', 2, True, 5 / 18, 1.5 / 9),
            ('ensemble x 4', 4, True, 8 / 18, 2 / 9),
        ],
    ),
]
REMARKS = [
    'standard deviation over the orders of a block 2.65',
    '± 0.2222 nats/token between its orders',
    'ensemble on 6 of 9 visits',
    'ensemble x 2 over x 1, block by block: 0.2778 ± 0.1667',
    'ensemble x 4 over x 1, block by block: 0.4444 ± 0.2222',
]


def test_rows_by_hand():
    remarks = []
    text = text_of(torch.zeros(2, 9, dtype=torch.long))
    for asked, nats, names, want in BY_HAND:
        (it,) = made(*asked.split(), run={'order': 'fixed'})
        rows = it.rows(torch.tensor(nats, dtype=torch.float64), text)
        for row, values in zip(rows[-len(want) :], want, strict=True):
            fields = dict(zip(names.split(), values, strict=True))
            assert {name: row[name] for name in fields} == pytest.approx(fields)
        remarks += it.remarks(rows, text)
    assert all(words in line for line, words in zip(remarks, REMARKS, strict=True))


def test_a_pass_has_at_most_batch_size_blocks():
    sizes = []
    for n in (1, 4, 9):
        found = made('--estimates=l2r,any,ensemble', '--batch_size=6', f'--n_orders={n}')
        sizes += [it.n_at_once() for it in found]
    assert sizes == [6, 6, 1, 6, 1, 1, 6, 1, 1]
    assert (found[-1].c.n_contexts, found[-1].c.ensemble_block) == (16, 1)


def test_tables_by_hand():
    """Tokens weigh the same in blocks of any length; sums are in float64."""
    nats = torch.tensor([2.0, 10.0, 6.0], dtype=torch.float64)
    row = tables.summarize('x', nats, torch.tensor([1, 4, 3]), 6)
    error = math.sqrt((0.25**2 + 1 + 0.75**2) / 2 / 3) / (8 / 3)
    want = [2.25, error, math.exp(2.25), math.exp(2.25) * error, 3 / LOG, 6, math.sqrt(32 / 6)]
    assert [*row.values()][1:8] == pytest.approx(want)
    assert (row['blocks'], row['tokens'], row['bytes']) == (3, 8, 6)
    alone = tables.summarize('x', nats[:1], 4, 6)
    assert alone['stderr'] is alone['perplexity_stderr'] is None
    large = torch.tensor([2.0**24 + 1, 2.0**24], dtype=torch.float64)
    assert tables.summarize('x', large, 1, 1)['stderr'] == 0.5

    tokens = np.array([97, 97, 98, 256], dtype=np.uint16)
    row = tables.unigram_row(tokens, Bytes(), 2)
    assert [row['nats_per_token'], row['nats_per_block']] == pytest.approx([1.5 * LOG, 3 * LOG])
    assert (row['blocks'], row['tokens'], row['bytes']) == (2, 4, 3)
    assert tables.unigram_row(tokens, Bytes(), 4, np.array([3, 4]))['bytes'] == 7
    for hits, error in ((0, 24 / 14**3), (10, 24 / 14**3), (5, 0.25 / 14)):
        assert tables.share_error(hits, 10) == pytest.approx(math.sqrt(error))


def test_a_table_is_narrow_and_shows_errors():
    rows = [
        tables.table_row('left to right', 2.00557, 0.0603, 40, 2560, 1774),
        tables.table_row('diverged', 1000.0, 0.0, 40, 9, 0),
        tables.table_row('a puzzle', 1.0, None, 1, 5, None),
    ]
    first = [
        'perplexity bits/byte',
        '± 0.0603 7.43 ± 0.45 4.1754 40 2560',
        '1000.0000 inf inf 40 9',
    ]
    for some, want in (
        (rows, [*first, '1.0000 2.72 - 1 5']),
        (rows[2:], ['nats/block perplexity', '1.0000 5.00 2.72 1 5']),
    ):
        lines = tables.format_table(some).splitlines()
        for line, words in zip(lines, want, strict=True):
            assert words in ' '.join(line.split())
            assert len(line) == len(lines[0]) <= 80


# --------------------------------------------------------------------------------------------------
# lengths of blanks


ONE = Template(
    [([0, 2], 'known'), ((1, 3), 'unknown'), ([1], 'known'), (1, 'blank'), ([2], 'known')], 9
)
TWO = Template(
    [
        ([2], 'known'),
        ((1, 2), 'unknown'),
        ([1, 0], 'known'),
        ((1, 3), 'unknown'),
        ([1], 'known'),
        (0, 'rest'),
        ([2], 'known'),
    ],
    11,
)


def around(least, most, left, right):
    """A Template of a blank between texts."""
    return Template([(left, 'known'), ((least, most), 'unknown'), (right, 'known')], 40)


RIGHT = [p * p % 3 for p in range(30)]
# of a model of so many positions: a text, lengths that are chosen, and for a length what it reads
GAPS = [
    (9, ONE, (), '02', '1.2', [1, 2, 3]),
    (9, TWO, (), '2', '10', [1, 2]),
    (9, TWO, (2,), '2..10', '1', [1, 2, 3]),
    # what is behind the longest gap, and as much before it as is left
    (7, around(1, 3, [0, 1, 2, 2, 1], [2, 0, 1, 1, 2]), (), '', '2011', [1, 2, 3]),
    (7, around(1, 3, [0, 1, 2, 2, 1], [2, 0]), (), '21', '20', [1, 2, 3]),
    (7, around(5, 6, [0, 1], [2, 0]), (), '', '2', [5, 6]),
    # the nearest tokens alone
    (40, around(1, 3, [0], RIGHT), (), '0', ''.join(map(str, RIGHT[:16])), [1, 2, 3]),
]


@pytest.mark.parametrize('network', NETWORKS)
@pytest.mark.parametrize('prepared', [lambda model: model, freeze])
def test_the_probability_of_a_length_is_that_of_the_text_behind_it(network, prepared):
    """Given the text before it, whatever stands in blanks."""
    for size, template, chosen, left, right, lengths in GAPS:
        model = make_model(5, block_size=size, vocab_size=3, **NETWORKS[network])
        want = []
        for n in lengths:
            row = left + n * '.' + right
            known = [p for p, token in enumerate(row) if token != '.']
            parts = [p for p in known if p >= len(left)], [p for p in known if p < len(left)]
            idx = torch.tensor([[int(token) for token in row.replace('.', '0')]])
            want.append(float(eval_ppl.conditional_logprob(model, idx, *parts).exp()))
        n, p = Lengths().probabilities(prepared(model), template, chosen)
        assert n == lengths
        assert p.tolist() == pytest.approx([x / sum(want) for x in want], rel=1e-8)


def test_a_length_is_the_likeliest_or_drawn_by_the_seed_of_the_row():
    """One blank after the other; a sample says its probability and the runner-up."""
    model = make_model(5, vocab_size=3)
    law = cache(lambda chosen: Lengths().probabilities(model, TWO, chosen)[1].tolist())
    found = [*Lengths('draw').choose(model, 400 * [TWO], range(400))]
    assert found[7:8] == [*Lengths('draw').choose(model, [TWO], [7])]
    firsts = torch.tensor([lengths[0] for lengths, _ in found])
    assert chi2_of(firsts.bincount()[1:], torch.tensor(law(()))) < limit(1)
    found += Lengths().choose(model, [TWO], [0])
    assert all(length['p'] > length['p_runner_up'] for length in found[-1][1])
    for chosen, said in found[-50:]:
        for k, length in enumerate(said):
            p = dict(enumerate(law(chosen[:k]), 1))
            want = {'length': chosen[k], 'p': p.pop(chosen[k])}
            want |= {'runner_up': max(p, key=p.get), 'p_runner_up': max(p.values())}
            assert length == pytest.approx(want)


def test_a_text_is_written_as_with_the_lengths_that_were_chosen(ckpt):
    prompt = 'a[[?]]bc[[2-5]] d[[3]]e[[..]]'
    how = {'seed': 4, 'length': 40, 'order': 'random', 'context': 8}
    writer = Writer(ckpt)
    text = writer.infill(prompt, blank_length='draw', **how)
    first, second = (said['length'] for said in text.sample['lengths'])
    known = prompt.replace('[[?]]', f'[[{first}]]').replace('[[2-5]]', f'[[{second}]]')
    assert writer.infill(known, **how) == text
    assert [*writer.stream(prompt, blank_length='draw', **how)][-1] == text


def test_the_command_says_lengths_and_runners_up(ckpt, script, tmp_path):
    how = f'--ckpt={ckpt}', '--weights=raw', '--n_samples=1', '--prompt=a[[2-3]]bc'
    shown = script('sample.py', *how, '--out=o.json', '--html=o.html').stdout
    (sample,) = json.loads((tmp_path / 'o.json').read_text())['samples']
    (said,) = sample['lengths']
    assert len(sample['tokens']) == 3 + said['length']
    words = f'blank of {said["length"]} tokens (p {said["p"]:.2f}, runner-up {said["runner_up"]}: '
    assert words in shown
    assert words in (tmp_path / 'o.html').read_text()


BAD_PROMPTS = [
    ('a[[3-2]]b', {}, r'\[\[3-2\]\]'),
    ('a[[0-2]]b', {}, 'a blank is'),
    ('a[[2-32]]b', {'length': 60}, 'at most 31 tokens'),
    ('a[[2-31]]b', {}, '30 at most'),
    ('a[[?]]', {}, 'nothing tells'),
    ('a[[?]][[2]][[..]]b', {}, 'nothing tells'),
    ('a[[?]][[1-2]]b', {}, 'nothing tells'),
    ('a[[..]][[2]][[?]]b', {}, r'right behind a \[\[\.\.'),
    ('a[[?]][[30]]b', {'length': 60}, 'the 16 positions'),
    ('a[[?]]b', {'blank_length': 'long'}, 'blank_length'),
    ('a[[?]]b', {'score': True}, 'text of every blank'),
    ('a[[?]]b[[=c]]', None, 'in place of'),
]


@pytest.mark.parametrize('prompt, options, word', BAD_PROMPTS)
def test_a_prompt_whose_lengths_are_wrong_is_one_line(ckpt, prompt, options, word):
    writer = Writer(ckpt)
    with one_line(word):
        writer.logprob(prompt) if options is None else writer.infill(prompt, **options)


# --------------------------------------------------------------------------------------------------
# judges


class Pairs(Bytes):  # two bytes a token, and the last alone
    eos = 2**17
    n_bytes = np.array([1] * 256 + [2] * (2**17 - 256))

    def encode(self, text):
        data = text.encode()
        pairs = [256 * a + 256 + b for a, b in zip(data[::2], data[1::2])]
        return [*pairs, *data[len(pairs) * 2 :]]


# samples, which of their tokens count; entropy, distinct_1 to 3, repetition
METRICS = [
    ('12121212 33333333', '11111111 11111111', [LOG / 2, 3 / 16, 3 / 14, 3 / 12, 7 / 10]),
    ('1234 1234', '1111 1111', [2 * LOG, 4 / 8, 3 / 6, 2 / 4, 0]),  # within a sample alone
    ('1 1', '1 1', [0, 0.5, 1, 1, 0]),
    ('56785678 99', '00001111 00', [2 * LOG, 1, 1, 1, 1 / 4]),  # as in the prompt
    ('123412349', '000000001', [0, 1, 1, 1, 0]),
]


@pytest.mark.parametrize('samples, counted, want', METRICS)
def test_metrics_by_hand(samples, counted, want):
    """What is given is no merit of a sample."""
    flags = [[flag == '1' for flag in row] for row in counted.split()]
    found = judge.text_metrics([*map(list, samples.split())], flags)
    assert [*found.values()] == pytest.approx(want)


# texts, which of their bytes count, and which tokens of Pairs; `|` is an end, which stays one
TRANSLATED = [
    ('abc||d', '001011', '01011'),
    ('abcdefgh', '01001100', '1010'),
    ('éa', '100', '10'),
    ('éa', '010', '10'),
    ('€a', '0001', '01'),
    ('€', '001', '11'),
]


@pytest.mark.parametrize('text, flags, want', TRANSLATED)
def test_a_letter_that_was_written_in_part_counts_for_a_judge_with_other_tokens(text, flags, want):
    tokens = [256 if byte == ord('|') else byte for byte in text.encode()]
    found, counted = judge.translate(tokens, [flag == '1' for flag in flags], Bytes(), Pairs())
    ends = [token for token in found if token == Pairs.eos]
    rest = [token for token in found if token != Pairs.eos]
    assert len(ends) == text.count('|')
    assert rest == [token for part in text.split('|') for token in Pairs().encode(part)]
    assert ''.join('01'[flag] for flag in counted) == want


def test_a_judge_weighs_tokens_alike_and_cuts_at_its_context():
    """Errors are over prompts, each with so many samples."""
    model = make_model()  # reads 9 tokens
    samples = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1], [4, 4, 4], [7, 1, 9, 2, 2], [4, 4, 4]]
    counted = [[False] + [True] * (len(row) - 1) for row in samples]
    nats = torch.zeros(2, dtype=torch.float64)
    for prompt, row, first in ((0, 0, 1), (0, 0, 0), (0, 1, 1), (1, 2, 1), (1, 3, 1)):
        part = torch.tensor(samples[row][:9] if first else samples[row][9:])
        nats[prompt] += visits(model, part, torch.arange(len(part)), first).sum()
    found = judge.generative_perplexity(model, samples, counted, n_each=2)
    row = tables.summarize('', nats, torch.tensor([13, 6]), 0)
    assert found == pytest.approx({name: row[name] for name in found})
    model.lm_head.weight.fill_(1e308)
    with one_line('not finite'):
        judge.generative_perplexity(model, samples, counted)


def test_a_judge_reads_left_to_right_and_text_or_the_same_tokens(tmp_path):
    path = str(tmp_path / 'judge.pt')
    model = make_model(block_size=4, vocab_size=320, n_tokens=257).float()
    for run, word in (
        ({'order': 'fixed'}, 'another order'),
        ({'order': 'fixed', 'l2r_ratio': 0.1}, ''),
        ({'order': 'l2r'}, ''),
        ({}, ''),
    ):
        save_checkpoint(path, model, tokenizer='bytes', config=run)
        with one_line(word) if word else nullcontext():
            opened = judge.open_judge(path, Bytes())
    for n in (4, 5):
        samples = [{'tokens': [*range(n)], 'step': [-1] + [0] * (n - 1)}]
        metrics, lines = judge.measure(samples, Bytes(), opened)
        assert ('in pieces of 4 tokens, under ' in lines['judge']) == (n > 4)
        assert metrics['judge']['tokens'] == n - 1

    kind = {'tokenizer': 'own', 'n_tokens': 3, 'vocabulary': ['a', 'b', 'c'], 'eos': None}
    save_checkpoint(path, make_model(block_size=4, vocab_size=12, n_tokens=3).float(), set=kind)
    assert judge.open_judge(path, tokenizer_of_set(kind)).tokenizer.texts == ('a', 'b', 'c')
    for other in (tokenizer_of_set(kind | {'vocabulary': ['a', 'b', 'd']}), Bytes()):
        with one_line('other tokens'):
            judge.open_judge(path, other)


# --------------------------------------------------------------------------------------------------
# texts and the command


OWN = torch.randperm(16, generator=random).tolist()
SIZES = dict(block_size=16, vocab_size=320, n_tokens=257)
CHECKPOINTS = {'rotary': {'rotary': True}, 'encoder': ENCODER, 'ckpt': {}}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Texts, prepared sets, and checkpoints of random weights, trained on `words` in the order OWN;
    large.pt diverged."""
    folder = tmp_path_factory.mktemp('likelihood')
    texts = {
        'words.txt': 'The quick brown fox jumps over the lazy dog. ' * 40,
        'passages.txt': 'one two three four five\nsix seven\n',
        'train.txt': 'of train, ' * 90,
        'test.txt': 'of test<|endoftext|>' * 90,
        'asked.jsonl': '\n'.join(f'{{"prompt": "{i}+", "text": "{i}={2 * i}"}}' for i in range(90)),
        'void.txt': '',
        'short.txt': 'short',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for data_set, source, name, split in (
        ('text', 'words.txt', 'words', ''),
        ('text', 'words.txt', 'broken', ''),
        ('text', 'test.txt', 'other', ''),
        ('text', 'asked.jsonl', 'asked', ''),
        ('lambada', 'passages.txt', 'lambada', ''),
        ('wikitext2', 'train.txt', 'wikitext2', 'train'),
        ('wikitext2', 'words.txt', 'wikitext2', 'val'),
        ('wikitext2', 'test.txt', 'wikitext2', 'test'),
    ):
        source = str(folder / source)
        prepare(data_set, folder, name, source=source, split=split, tokenizer='bytes')
    with open(folder / 'broken' / 'val.bin', 'r+b') as f:
        f.write(b'\x01\x01')  # the token 257
    run = {'dataset': 'words', 'data_dir': str(folder), 'order': OWN, 'documents': 'together'}
    how = dict(tokenizer='bytes', iter_num=7, config=run | {'block_size': 16})
    for name, sizes in CHECKPOINTS.items():
        model = make_model(**SIZES, **sizes).float()
        save_checkpoint(folder / f'{name}.pt', model, EMA(model, 0.9), **how)
    model.lm_head.weight.fill_(3e38)
    save_checkpoint(folder / 'large.pt', model, **how)
    return folder


@pytest.fixture
def evaluate(script, folder, tmp_path):
    """evaluate('--x=1 ...') runs the command on ckpt.pt; its rows, and what it said."""

    def run(args, code=0):
        args = ['--out=x.json', '--weights=raw', f'--ckpt={folder}/ckpt.pt', *args.split()]
        said = script('eval_ppl.py', *[arg.format(folder=folder) for arg in args], code=code)
        if code:
            return said.stderr
        path = [arg for arg in args if arg.startswith('--out=')][-1].removeprefix('--out=')
        return json.loads((tmp_path / path).read_text())['results'], said.stdout

    return run


@pytest.mark.parametrize(
    'network, N, kinds',
    [('rotary', 16, 'l2r,own,any'), ('rotary', 6, 'l2r,own,any'), ('encoder', 6, 'own,any')],
)
def test_the_command_measures_blocks_of_any_length(evaluate, folder, network, N, kinds):
    """In the model's own order of its first positions; a text is cut and spread over its blocks."""
    asked = f'--ckpt={{folder}}/{network}.pt --block_size={N} --n_blocks=5 --estimates={kinds}'
    rows, said = evaluate(f'{asked} --orders=margin --datasets={{folder}}/words.txt')
    *rows, written = rows
    assert [row['kind'] for row in rows] == kinds.split(',')
    model = make_model(**SIZES, **CHECKPOINTS[network]).float()
    tokens = torch.tensor([*(folder / 'words.txt').read_bytes()])
    starts = N * (torch.arange(5) * (len(tokens) // N) // 5)
    blocks = tokens[starts.unsqueeze(1) + torch.arange(N)]
    orders = {
        'l2r': torch.arange(N),
        'own': torch.tensor([p for p in OWN if p < N]),
        'any': draw_orders(range(5), N, 1, SEED)[:, 0],
    }
    for row in rows:
        known = None
        if (network, row['kind']) == ('encoder', 'any'):
            known = draw_known(range(5), N, 1, SEED)[:, 0]
        nats = block_nll(model, blocks, orders[row['kind']].expand(5, N), 5, n_known=known)
        assert row['nats_per_token'] == pytest.approx(float(nats.mean()) / N, rel=1e-5)
    want = {'passes': N, 'block_size': N, 'tokens': 5 * N, 'bytes': 5 * N, 'set': 'words.txt'}
    assert want.items() <= written.items()
    for words in (
        f'{network}.pt: raw weights, iteration 7, 1',
        ', 16 positions\n',
        f'blocks of {N} bytes tokens, cpu, float32',
        'unigram, whole set',
        '\nwritten: x.json\n',
    ):
        assert words in said


HISTORY = (
    '--weights=raw --estimates=l2r,any,iw,ensemble:5/2 --orders=r2l,swaps:3,margin/8,margin/8:.02 '
    '--n_steps=0,4 --n_orders=2 --n_positions=6 --n_blocks=5'
)


def test_a_table_does_not_depend_on_batch_processes_or_being_killed(
    evaluate, script, forked, folder, tmp_path
):
    """Two processes, of which the second sees no file of the first, go on from half of the lines
    of one, the last cut off."""
    a, _ = evaluate(f'{HISTORY} --out=a.json')
    b, _ = evaluate(f'{HISTORY} --out=b.json --batch_size=3')
    lines = (tmp_path / 'a.json.blocks.jsonl').read_text().splitlines(True)
    assert len(lines) == 1 + 10 * 5
    (tmp_path / 'c.json.blocks.jsonl').write_text(''.join(lines[:1] + lines[1::2]) + '["half')
    (tmp_path / 'far').mkdir()
    command = 'eval_ppl.py', f'--ckpt={folder}/ckpt.pt', *HISTORY.split()
    outs = '--out=c.json', '--out=far/c.json'
    finished = forked(*[lambda out=out: script(*command, out) for out in outs])
    assert [process.code for process in finished] == [0, 0], finished
    assert not [*(tmp_path / 'far').iterdir()]
    assert len((tmp_path / 'c.json.blocks.jsonl').read_text().splitlines()) == len(lines)
    c = json.loads((tmp_path / 'c.json').read_text())['results']
    for name in ('nats_per_token', 'stderr'):
        want = [row[name] for row in a]
        assert [row[name] for row in b] == pytest.approx(want, rel=1e-5)
        assert [row[name] for row in c] == pytest.approx(want, rel=1e-5)
    by_label = {row['estimate']: row['nats_per_token'] for row in a}
    assert len(by_label) == 15
    assert by_label['iw x 2'] < by_label['any order x 2']
    assert by_label['ensemble x 1'] == pytest.approx(by_label['iw x 1'], rel=1e-5)


# what is asked for, the sets with their numbers of blocks, and words of what is said
TEXTS = [
    ('--n_blocks=3', 'words (val) 3', 'as in the training'),
    ('--split=train --n_blocks=5', 'words (train) 5', 'documents of a block together'),
    (
        '--datasets=other --documents=apart',
        'other (val), documents apart 4',
        'apart; in the training',
    ),
    ('--datasets=asked', 'asked (val) 9', 'asked: '),
    (
        '--datasets=lambada,lambada,{folder}/short.txt --block_size=4',
        'lambada (test) 9, short.txt 1',
        'context of 1024',
    ),
    ('--datasets=wikitext2', 'wikitext2 (train) 56', ''),
    ('--datasets=wikitext2 --split=test', 'wikitext2 (test) 45', ''),
]


def test_which_text_is_measured(evaluate):
    for k, (args, sets, words) in enumerate(TEXTS):
        rows, said = evaluate(f'{args} --estimates=l2r --out={k}.json')
        assert ', '.join(f'{row["set"]} {row["blocks"]}' for row in rows) == sets
        assert all(row['sha256'] for row in rows)
        assert words in said


def test_precision_average_and_accuracy(evaluate, tmp_path):
    (single,), _ = evaluate('--n_blocks=3 --estimates=l2r')
    (half,), said = evaluate(
        '--n_blocks=3 --estimates=l2r --dtype=bfloat16 --out=h.json --weights=ema'
    )
    assert 1e-5 < abs(half['nats_per_token'] - single['nats_per_token']) < 0.2
    assert 'ema weights' in said
    result = json.loads((tmp_path / 'h.json').read_text())
    assert (result['dtype'], result['iter_num'], result['config']['n_blocks']) == ('bfloat16', 7, 3)
    rows, said = evaluate('--datasets=lambada,words --estimates=l2r,accuracy --out=l.json')
    kinds = [f'{row["dataset"]} {row["kind"]}' for row in rows]
    assert kinds == ['lambada l2r', 'lambada accuracy', 'words l2r']
    assert 'of 2 passages' in said


@pytest.mark.parametrize(
    'dataset, trained, kinds',
    [
        ('words:0.7,other:0.3', '--documents=apart', 'l2r'),
        ('asked', '--order=r2l', 'l2r,own'),
        ('wikitext2', '--order=swaps:3', 'l2r,own'),
        ('other', '--l2r_ratio=0', 'l2r,any'),
    ],
)
def test_a_run_is_measured_by_the_law_of_its_validation(
    folder, tmp_path, script, dataset, trained, kinds
):
    """Also from its exported folder, which has no path of a machine. The seed of validations is
    0."""
    pytest.importorskip('safetensors')
    sets = f'--data_dir={folder}'
    script('train.py', *toy_runs.TOY, f'--dataset={dataset}', trained, sets, '--max_iters=1')
    script('anyorder.extras.hub', '--out=out/hf')
    last = toy_runs.log()[-1]
    for k, place in enumerate((['--ckpt=out/ckpt.pt'], ['--ckpt=out/hf', sets])):
        how = '--n_blocks=16', '--seed=0', f'--estimates={kinds}', f'--out={k}.json'
        script('eval_ppl.py', *place, *how)
        rows = json.loads((tmp_path / f'{k}.json').read_text())['results']
        assert len(rows) == len(f'{dataset},{kinds}'.split(',')) - 1
        for row in rows:
            name = f'val_{row["dataset"]}_' if ',' in dataset else 'val_'
            want = last[name + row['kind'].replace('order', 'own')]
            assert row['nats_per_token'] == pytest.approx(want, rel=1e-6)


BAD = {
    '--estimates=l2r,best': "'l2r,best'",
    '--estimates=any:4': "'any:4'",
    '--estimates=ensemble:0': 'n_contexts must',
    '--estimates=ensemble/0': 'ensemble_block must',
    '--n_positions=-1': 'n_positions must',
    '--n_positions=1 --estimates=ensemble/2': 'n_positions must',
    '--estimates=accuracy': 'lambada',
    '--orders=l2r,up': "'up' is no order",
    '--orders=swaps:x': "'swaps:x' is no order",
    '--orders=block:0': 'at least 1 position',
    '--orders=no.json': "'no.json' is no order",
    '--orders=margin --temperature=0': 'every other one 0',
    '--orders=margin:2': 'threshold',
    '--orders=margin/0': 'got 0',
    '--orders=margin/17': 'at most the 16',
    '--orders=l2r/4': "'l2r/4' is no order",
    '--orders=margin+.5': 'noise',
    '--orders=eb+.5': 'noise',
    '--orders=entropy:.5': 'top_prob',
    '--orders=factor:0': 'above 0',
    '--orders=klass:2': 'from 0 to 1',
    '--orders=dilated/8': 'dilated:BLOCK_LENGTH',
    '--orders=drawn:.5': 'no number',
    '--orders=margin --unmask=lossless': 'one token a step',
    '--orders=margin --unmask=binomial': 'n_steps from 1',
    '--orders=margin --n_steps=-1': 'n_steps',
    '--estimates=l2r --temperature=.5': '--orders=l2r',
    '--n_steps=8': '--orders=l2r',
    '--split=mine': 'mine',
    '--datasets=ptb': 'prepare.py ptb',
    '--datasets=nosuch': 'data/prepare.py',
    '--datasets=no.txt': 'no file no.txt',
    '--datasets=,': '--datasets=',
    '--datasets=broken': 'token 257',
    '--datasets={folder}/void.txt': 'no text',
    '--datasets={folder}/short.txt': '--block_size=6',
    '--documents=near': 'documents must',
    '--n_blocks=-1': 'n_blocks',
    '--batch_size=0': 'batch_size',
    '--n_orders=0': 'n_orders must',
    '--block_size=17': '2 to 16',
    '--block_size=1': '2 to 16',
    '--datset=x': "'datasets'",
    '--ckpt=no.pt': 'no.pt',
    '--device=tpu': 'device',
    '--out=data': '--out=data',
    '--ckpt={folder}/large.pt --weights=ema': "weights='raw'",
    '--n_blocks=3 --ckpt={folder}/large.pt': 'not finite',
    '--ckpt={folder}/large.pt --datasets=lambada --estimates=accuracy': 'not finite',
    # of another evaluation than the one that is there
    '--seed=1': '(seed differ)',
    '--weights=ema': '(weights differ)',
    '--n_orders=2': '(n_orders differ)',
    '--estimates=ensemble:8/2': '(n_contexts differ)',
    '--estimates=ensemble/4': '(ensemble_block differ)',
    '--n_positions=6': '(n_positions differ)',
    '--dtype=bfloat16': '(dtype differ)',
    '--block_size=3': '(block_size differ)',
    '--ckpt={folder}/rotary.pt': '(model differ)',  # of equal weights
}


def test_wrong_input_is_one_line_and_changes_nothing(evaluate, tmp_path):
    base = '--estimates=ensemble:16/2 --n_positions=4 --n_blocks=1'
    evaluate(base)
    lines = (tmp_path / 'x.json.blocks.jsonl').read_text()
    files = {*tmp_path.rglob('*')}
    _, said = evaluate(f'{base} --batch_size=3 --n_blocks=2')  # goes on
    assert '1 results are there' in said
    (tmp_path / 'x.json.blocks.jsonl').write_text(lines)
    for args, word in BAD.items():
        said = evaluate(f'{base} {args}', code=1)
        assert word in said and said.count('\n') == 1, said
    assert (tmp_path / 'x.json.blocks.jsonl').read_text() == lines
    assert {*tmp_path.rglob('*')} == files
    masked = '--ckpt={folder}/encoder.pt --n_blocks=1 --out=y.json --estimates=any'
    evaluate(masked)
    assert 'one_by_one' in evaluate(f'{masked},iw', code=1)


# --------------------------------------------------------------------------------------------------
# journals


DAMAGED = [
    'hello\n',
    '3\n',
    '[1, 2]\n',
    'no line end',
    '{"half',
    '\n',
    '\xff\n',
    '{}\n3\n',
    '{}\n["a\n',
]
DAMAGED += ['{}\n[]\n', '{}\n[[[1]], 2]\n', '{}\nnull\n']


def test_a_journal_goes_on_where_it_was(tmp_path, monkeypatch):
    """Begun, cut off, gone on with by two at once, of another evaluation, damaged."""
    path = tmp_path / 'j.jsonl'
    counted = []

    def progress(total, disable, **_):
        counted.append((total, disable))
        return nullcontext(SimpleNamespace(update=counted.append))

    monkeypatch.setattr(estimates, 'progress', progress)
    model = make_model()
    (it,) = made('--estimates=any', '--batch_size=3')
    text = text_of(torch.arange(63).view(7, 9) % 11)
    want = it.measure(model, text, Journal('', {}))
    evaluation = {'seed': 1}
    lines = []
    for kept, again in ((0, [3, 3, 1]), (8, []), (4, [3, 1]), (1, [3, 3, 1])):
        path.write_text(''.join(lines[:kept]) + '["half' * (kept > 0))
        counted.clear()
        assert it.measure(model, text, Journal(str(path), evaluation)).equal(want)
        assert counted == [(sum(again), not again), *again]
        lines = path.read_text().splitlines(True)
        assert len(lines) == 8
    name = text.label, text.digest, 'orders'
    assert json.loads(lines[0]) == evaluation
    assert json.loads(lines[2]) == [*name, 1, want[1].tolist()]

    one, other = (Journal(str(path), evaluation) for _ in 'ab')
    for journal, block in ((one, 7), (other, 8), (one, 9)):
        journal.add({(*name, block): [1.0]})
    there = Journal(str(path), evaluation)
    assert there.missing(name, 11) == [10]
    for other in (('a', *name[1:]), (name[0], 'b', name[2]), (*name[:2], 'c')):
        assert there.missing(other, 2) == [0, 1]
    for found, word in (({'seed': 2}, 'seed'), ({'seed': 1, 'order': 3}, 'order'), ({}, 'seed')):
        with one_line(rf'another evaluation \({word} differ'):
            Journal(str(path), found)
    for damaged in DAMAGED:
        path.write_bytes(damaged.encode('latin-1'))
        with one_line('j.jsonl cannot be read'):
            Journal(str(path), {})
        assert path.read_bytes() == damaged.encode('latin-1')


# --------------------------------------------------------------------------------------------------
# bytes of a text


def test_blocks_and_bytes_of_a_file_by_hand(tmp_path):
    path = tmp_path / 'my.csv'
    path.write_text('text\nhéllo\nabc\nde\n', encoding='utf-8')
    tokens = [*'héllo'.encode(), 256, *b'abc', 256, *b'de', 256]
    digests = set()
    for cut, firsts, n_bytes in (
        (Cut(4), [0, 4, 8], 10),  # ends of documents are no bytes
        (Cut(4, 2), [0, 4], 7),
        (Cut(2, 3), [0, 4, 8], 6),
        (Cut(4, 3), [0, 4, 8], 10),
    ):
        text = open_corpus(str(path), cut, Bytes(), 'nowhere')
        assert text.blocks.tolist() == [tokens[i : i + cut.block_size] for i in firsts]
        assert (text.n_bytes, text.tokens.tolist()) == (n_bytes, tokens)
        digests.add(text.digest)
    assert len(digests) == 3
    assert (text.name, text.label) == (str(path), 'my.csv')
    digest = hashlib.sha256(text.tokens.tobytes()).hexdigest()
    assert text.origin == {'source': str(path), 'sha256': digest}


def test_a_text_of_another_tokenizer_is_one_line(folder, tmp_path):
    np.save(tmp_path / 'ids.npy', np.arange(60) % 3)
    (tmp_path / 'names.txt').write_text('a\nb\nc\n')
    how = {'source': f'{tmp_path}/ids.npy', 'vocabulary': f'{tmp_path}/names.txt'}
    meta = prepare_tokens(str(folder), 'named', **how)
    kind = kind_of(meta)
    assert open_corpus('named', Cut(2), tokenizer_of_set(kind), folder).n_bytes is None
    sudoku = get_tokenizer('sudoku4')
    for name, tokenizer, word in (
        ('words', sudoku, '--tokenizer=sudoku4'),
        (f'{folder}/words.txt', sudoku, 'sudoku4'),
        ('named', Bytes(), '--tokenizer=bytes'),
        ('named', tokenizer_of_set(kind | {'vocabulary': ['a', 'b', 'd']}), 'another vocabulary'),
    ):
        with one_line(word):
            open_corpus(name, Cut(2), tokenizer, folder)


def test_a_set_of_another_tokenizer_of_its_name_is_one_line(folder, tmp_path):
    pytest.importorskip('tokenizers')
    one, _ = (
        prepare('text', tmp_path, name, source=f'{folder}/{name}.txt', tokenizer='bpe:270')
        for name in ('words', 'test')
    )
    tokenizer = tokenizer_of_set(kind_of(one))
    assert open_corpus('words', Cut(2), tokenizer, tmp_path).blocks.size(1) == 2
    with one_line('another vocabulary'):
        open_corpus('test', Cut(2), tokenizer, tmp_path)


def test_a_zero_shot_set_is_read_in_the_tokens_of_the_model(folder):
    tokenizer = tokenizer_like('bytes')
    ours, theirs = (open_corpus('wikitext2', Cut(4), t, folder) for t in (Bytes(), tokenizer))
    assert theirs.origin['source'] == f'{ours.origin["source"]}, in bytes tokens'
    assert len(theirs.origin['sha256']) == 64
    text = Bytes().decode([token for token in ours.tokens.tolist() if token != 256])
    assert tokenizer.decode(theirs.tokens[: len(text)].tolist())[:50] == text[:50]


LETTERS = unicodedata.normalize('NFD', 'é ü ñ å')
DOCUMENTS = [
    [{'text': LETTERS}],
    [{'text': 'ﬁx ½ İ é'}, {'text': LETTERS[:2]}, {'text': 'a'}],
    [{'prompt': 'ab ', 'text': LETTERS[:2]}, {'prompt': '', 'text': 'Ünd'}],
    [{'text': ' a  b\n'}],
]


@pytest.mark.parametrize('kind', ['', ' NFC', ' NFKC', ' NFD', ' Lowercase', ' behind a space'])
def test_bytes_are_those_of_the_text_as_it_was_given(tmp_path, monkeypatch, kind):
    """Of its answers where it has prompts; of a large text those of its pieces together."""
    tokenizer = tokenizer_like(f'bytes{kind}')
    path = tmp_path / 'my.jsonl'
    for rows in DOCUMENTS:
        path.write_text('\n'.join(map(json.dumps, rows)))
        n_bytes = [len(row['text'].encode()) for row in rows]
        N = 64 if 'prompt' in rows[0] else 1
        found = open_corpus(str(path), Cut(N), tokenizer, '')
        some = open_corpus(str(path), Cut(N, 1), tokenizer, '')
        assert found.n_bytes == found.sizes.sum() == sum(n_bytes)
        assert some.n_bytes == (n_bytes[0] if N == 64 else found.sizes[0])
        if not kind:  # each token is its own bytes
            counted = found.sizes > 0
            own = tokenizer.n_bytes[found.tokens[counted]]
            assert found.sizes[counted].tolist() == own.tolist()
    monkeypatch.setattr('anyorder.tokens.sources.PIECE', 3)
    path = tmp_path / 'my.txt'
    path.write_text(f'{LETTERS}<|endoftext|>{LETTERS}' * 3)
    assert open_corpus(str(path), Cut(1), tokenizer, '').n_bytes == 6 * len(LETTERS.encode())


# --------------------------------------------------------------------------------------------------
# what sample.py says

SAID = {
    '--order=margin': '\norder           margin, 3 steps for 3 tokens, ',
    '--order=block:2': '\norder           block:2',
    '--presence_penalty=1': '(untempered model with the penalty)\n',
    '--presence_penalty=1 --prompt=a[[=bc]] --score=True': '(this drawing)\n',
    '--stop=e': '0 of 1 texts stopped at ',
}


@pytest.mark.parametrize('asked, words', SAID.items())
def test_a_sample_is_said_with_the_way_it_was_written(ckpt, script, asked, words):
    how = f'--ckpt={ckpt}', '--weights=raw', '--n_samples=1', '--prompt=a[[3]]b'
    said = script('sample.py', *how, *asked.split()).stdout
    assert words in said
