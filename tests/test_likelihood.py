"""How likely is a text? Estimates against a pass for each visit, rows by hand, and the command."""

import itertools
import json
import math
import os
import unicodedata
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toy_runs
from conftest import close, make_model, one_line, options_in, tokenizer_like
from oracle import ENCODER, NETWORKS, ByDefinition

import eval_ppl
from anyorder.checkpoint import save_checkpoint
from anyorder.likelihood import nll, tables
from anyorder.likelihood.ensemble import sample_groups, shuffled_contexts
from anyorder.likelihood.estimates import in_orders
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.measured import Corpus, open_corpus
from anyorder.likelihood.nll import block_nll, known_shares, read
from anyorder.machine.files import read_json
from anyorder.orders import RANDOM, Order, draw_orders
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import PADDING
from anyorder.tokens.meta import Meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.sets import Split
from anyorder.tokens.tokenizer import Bytes
from configurator import configure
from model import EMA, AOGPTConfig

SEED = 1337
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
    c = configure(vars(eval_ppl), ['--block_size=9', *args])
    eval_ppl.check_options(c)
    run = run or {}
    checkpoint = SimpleNamespace(
        config=AOGPTConfig(block_size=9, **network),
        run=run,
        order=Order.of('own', run),
        counts=None,
        iter_num=0,
    )
    return eval_ppl.choose_estimates(c, ['words'], checkpoint)


def text_of(blocks, given=None):
    """A text of these blocks and of twelve bytes."""
    tokens = blocks[blocks != PADDING].numpy()
    if given is None:
        given = torch.zeros_like(blocks, dtype=torch.bool)
    split = Split(tokens, Meta(n_tokens=257, splits={'': {'source': 'w', 'sha256': '0'}}))
    return Corpus(split, blocks, given, 12, name='words', label='words (val)')


def measured(model, found):
    """{label: row} of estimates of BLOCKS."""
    rows = eval_ppl.evaluate(model, text_of(BLOCKS, GIVEN), found, Journal('', {}))
    return {row['estimate']: row for row in rows}


def visits(model, row, order, first=0, end=None):
    """-log p of the visits `first` to `end` of one row (N,), by a pass for each."""
    row = row[: order.max() + 1]  # without padding
    found = []
    for d in range(first, end or len(order)):
        logits = model.predict(row[None], order[None], d, 1)[0, 0]
        found.append(-logits.log_softmax(-1)[row[order[d]]])
    return torch.stack(found)


def laid_out(order, b):
    """The positions of block b in this order, the given ones first and padding last."""
    rank = 2 * (BLOCKS[b] == PADDING) + ~GIVEN[b]
    return order[rank[order].argsort(stable=True)]


# --------------------------------------------------------------------------------------------------
# nats of visits


@pytest.mark.parametrize('network', NETWORKS)
def test_nats_of_blocks_are_those_of_their_visits_by_any_batch(network):
    """Without what is given and without padding."""
    model = make_model(**NETWORKS[network])
    orders = torch.stack([laid_out(torch.randperm(9, generator=random), b) for b in range(4)])
    nats = [visits(model, BLOCKS[b], orders[b, :n]) for b, n in enumerate(N_VISITS)]
    want = torch.stack([own[n:].sum() for own, n in zip(nats, N_GIVEN)])
    for size in (1, 3, 9):
        close(block_nll(model, BLOCKS, orders, size, n_given=N_GIVEN), want)
    close(block_nll(model, BLOCKS[1:2], orders[1:2], 2)[0], nats[1].sum())
    close(block_nll(model, BLOCKS, orders, 2, n_given=N_VISITS), 0 * want)


def test_numbers_of_known_visits_are_stratified_and_a_function_of_seed_and_block():
    share = known_shares([4, 0, 9], 6, 3, 7)
    part = 3 * share - torch.arange(3).repeat(2)
    assert ((part >= 0) & (part < 1)).all() and len(part.unique()) == 18
    assert known_shares([0], 6, 3, 7).equal(share[1:2])


# --------------------------------------------------------------------------------------------------
# contexts


def which_of(found, possible):
    """Which of the possible numbers are found, all of them among these."""
    distance, which = (found.unsqueeze(-1) - torch.stack(possible)).abs().min(-1)
    assert distance.max() < 1e-10
    return {*which.tolist()}


def test_contexts_are_shuffles_of_the_prefix(batch):
    """The first is the order itself."""
    model = make_model()
    found = eval_ppl.context_logprobs(model, *batch, 3, 200, random.manual_seed(0))
    for row, order, logprobs in zip(*batch, found):
        prefixes = itertools.permutations(range(3))
        possible = [-visits(model, row, order[[*prefix, 3]], 3)[0] for prefix in prefixes]
        assert which_of(logprobs, possible) == {*range(6)}
        assert which_of(logprobs[:1], possible) == {0}
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
        p.append((-visits(model, idx[0], order, 2, 4).sum()).exp())
    of_two = [(one + other) / 2 for one in p for other in p]
    idx[:, [2, 4, 5]] = 10
    parts = [3, 1], [8, 0]
    close(eval_ppl.conditional_logprob(model, idx, *parts).exp()[0], p[0])
    draws = [eval_ppl.conditional_logprob(model, idx, *parts, 2, random) for _ in range(8)]
    assert len(which_of(torch.cat(draws).exp(), of_two)) > 1
    for wrong in (([], [1]), ([1], [1]), ([9], []), ([-1], []), ([1], [2], -1)):
        with one_line('disjoint'):
            eval_ppl.conditional_logprob(model, idx, *wrong)


def test_a_pass_holds_rows_of_like_lengths_and_few_slots(monkeypatch):
    found = []

    def answers(model, batch, head, at_once):
        found.append(len(batch))
        return torch.zeros(len(batch))

    monkeypatch.setattr(nll, 'answers', answers)
    rows = [([], range(length), [0]) for length in (2, 2, 2, 3, 11, 40, 40, 40, 41, 64, 101)]
    list(read(make_model(), rows, 100))
    assert found == [4, 1, 2, 2, 1, 1]


@pytest.mark.parametrize('network', NETWORKS)
def test_rows_of_any_lengths_are_read_as_each_alone(monkeypatch, network):
    """In the order in which they are asked for, two rows of logits at once."""
    model = make_model(**NETWORKS[network])
    rows = []
    for length, asked in ((9, [8]), (4, range(1, 4)), (6, [0, 2, 5]), (5, [2])):
        order = torch.randperm(length, generator=random)
        rows.append((IDX[2, :length], order, asked))
    monkeypatch.setattr(nll, 'N_LOGITS', 2)
    for found, (text, order, asked) in zip(read(model, rows), rows, strict=True):
        close(found, visits(model, text, order)[[*asked]])


@pytest.mark.parametrize(
    'sizes, edges',
    [
        ((9, 1, 8), [0, 1, 2, 3, 4, 6, 7, 8, 9]),
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
        assert weights.tolist() == np.diff(edges).tolist()
        assert np.searchsorted(edges, groups, 'right').tolist() == [*range(1, len(edges))]
        seen |= {*groups}
    assert seen == {*range(edges[-1])}


# --------------------------------------------------------------------------------------------------
# estimates


# what is asked for, the order, and how many of them a block has
ESTIMATES = [
    ('decoder', '--estimates=l2r', 'l2r', 1),
    ('decoder', '--estimates=own', 'block:4@3', 1),
    ('decoder', '--orders=swaps:2', 'swaps:2@3', 2),
    ('two streams', '--estimates=iw,any', 'random', 2),
    ('mixed', '--orders=r2l', 'r2l', 1),
    ('mixed', '--estimates=any', 'random', 2),
    ('encoder', '--estimates=own', 'block:4@3', 1),
    ('encoder', '--estimates=any', 'random', 2),
    ('encoder', '--estimates=iw,any', 'random', 2),
]


def in_order(b, order, K=1):
    """Block b in K orders of a family."""
    return torch.stack([laid_out(one, b) for one in draw_orders([b], 9, K, SEED, order)])


@pytest.mark.parametrize('network, asked, order, K', ESTIMATES)
def test_an_estimate_is_its_definition(network, asked, order, K):
    """The bound of a masked loss alone is drawn: importance weights want the nats of orders."""
    model = make_model(**NETWORKS[network])
    how = '--n_orders=2', '--batch_size=2'
    for it in made(asked, *how, run={'order': 'block:4@3'}, **NETWORKS[network]):
        journal = Journal('', {})
        it.measure(model, text_of(IDX), journal)  # another text of the same name
        found = it.measure(model, text_of(BLOCKS, GIVEN), journal)
        for b, nats in enumerate(found):
            known = None
            if asked == '--estimates=any':
                share = known_shares([b], K, K, SEED)[0]
                known = N_GIVEN[b] + (share * (N_VISITS[b] - N_GIVEN[b])).long()
            rows = BLOCKS[b].expand(K, -1), in_order(b, Order.of(order, {}), K)
            close(nats, block_nll(model, *rows, 9, n_known=known, n_given=N_GIVEN[b].expand(K)))


@pytest.mark.parametrize('network', ['decoder', 'two streams'])
def test_an_ensemble_is_its_definition(network):
    """By 1, 2, 4 and 5 contexts; pairs of visits share them, two pairs count."""
    model = make_model(**NETWORKS[network])
    (it,) = made('--estimates=ensemble:5/2', '--n_positions=4', **NETWORKS[network])
    for b, nats in enumerate(it.measure(model, text_of(BLOCKS, GIVEN), Journal('', {}))):
        order = in_order(b, RANDOM)[0, : N_VISITS[b]]
        first = int(N_GIVEN[b])
        want = visits(model, BLOCKS[b], order, first).sum().repeat(4)
        seeds = [derive_seed(SEED, name, b) for name in ('positions', 'contexts')]
        for group, weight in zip(*sample_groups(len(order) - first, 2, 4, seeds[0])):
            start = first + 2 * group
            contexts = shuffled_contexts(order, start, 2, 4, derive_seed(seeds[1], group))
            orders = order[: start + 2], *contexts
            members = torch.stack([visits(model, BLOCKS[b], one, start) for one in orders])
            for j, n in enumerate((1, 2, 4, 5)):
                mixed = -(-members[:n]).exp().mean(0).log()
                want[j] += weight * (mixed - members[0]).sum()
        close(nats, want)


# what is asked for, the order in which it is written, and options of the definition
WAYS = [
    ('--orders=margin/3 --n_steps=3', 'l2r', 'policy=margin/3 n_steps=3'),
    ('--orders=entropy --n_steps=3', 'random', 'policy=entropy n_steps=3'),
    ('--orders=top_prob:.3', 'random', 'policy=top_prob:.3 n_steps=9'),
    ('--orders=random --n_steps=3', 'random', 'policy=given n_steps=3'),
    ('--orders=l2r --temperature=.5', 'l2r', 'policy=given n_steps=9 temperature=0.5'),
]


@pytest.mark.parametrize('network', NETWORKS)
def test_the_law_of_writing_is_its_definition(network):
    """What is given is read from left to right where a policy or a random order writes."""
    model = make_model(**NETWORKS[network])
    for asked, order, how in WAYS:
        (it,) = made(*asked.split(), **NETWORKS[network])
        for b, found in zip([3, 1], it.nats(model, text_of(BLOCKS, GIVEN), [3, 1])):
            visited = in_order(b, Order(order))[0]
            first = int(N_GIVEN[b])
            visited[:first] = visited[:first].sort().values
            row = IDX[b], visited, first, int(N_VISITS[b])
            slow = ByDefinition(model, *row, seed=0, forced=True, **options_in(how))
            want = [-float(slow.drawn_logprob.sum()), 0, slow.n_steps]
            assert found.tolist() == pytest.approx(want, rel=1e-10)


PAIRS = {
    'margin in 3': 'margin',
    'drawn in 3 x 2': 'drawn x 2',
    'margin:.5': 'margin',
    'factor:2': 'top_prob',
    'eb/3:1.5': 'entropy/3',
    'dilated:4': 'left to right',
}


def test_what_passes_cost_is_paired_block_by_block():
    """Wherever the other row stands in the list. Nine passes are of a token each: they cost nothing
    more, behind the same prompt in the same order."""
    asked = 'random,margin:.5,factor:2,top_prob,eb/3:1.5,entropy/3,margin,drawn,eb,dilated:4,l2r'
    asked += ',sorted_subset,swaps:3'
    found = made(f'--orders={asked}', '--n_steps=3,0,9', '--n_orders=2')
    rows = measured(make_model(), found)
    for name, pair in PAIRS.items():
        cost = rows[name]['nats_per_token'] - rows[pair]['nats_per_token']
        assert rows[name]['cost'] == pytest.approx(cost, abs=1e-9)
        assert 1 < rows[name]['passes'] < 9
    alone = [row for name, row in rows.items() if ' in 9' in name]
    assert len(alone) == 8
    assert max(abs(row['cost']) + row['cost_stderr'] for row in alone) < 1e-9
    assert not {'cost', 'cost_stderr'} & {*rows['eb'], *rows['margin']}


def test_truths_that_are_cut_off_are_counted():
    model = make_model()
    model.lm_head.bias[10] = -math.inf
    rows = measured(model, made('--orders=margin', '--n_steps=3,0'))
    n_cut = int((BLOCKS[~GIVEN] == 10).sum())
    assert rows['margin']['cut'] == n_cut > 0 and 'cost' not in rows['margin in 3']


# what is asked for, of a run in an order, of a network; its rows, or a word of why there are none
ROWS = [
    ('', '', 'decoder', 'l2r left to right, any any order'),
    ('', 'r2l', 'mixed', 'own own order (r2l)'),
    ('', '', 'encoder', 'any any order'),
    ('--estimates=iw,l2r --n_positions=1', '', 'decoder', 'there is none'),
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
        'written any order, one token a pass, written any order in 3',
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
    ('--estimates=ensemble', '', 'mixed', "decoder's"),
    ('--orders=pc_sampler', '', 'decoder', 'written pc_sampler'),
    # a/ and c/ have the same positions, b/ others
    ('--orders=a/o.json,b/o.json,c/o.json', '', 'decoder', 'order a/o.json, order b/o.json'),
    ('--orders=a/o.json,l2r,c/o.json,a/o.json', '', 'decoder', 'order o.json, l2r left to right'),
    (
        '--orders=b/o.json,a/o.json --n_steps=3,0',
        '',
        'decoder',
        'order b/o.json, written b/o.json in 3, order a/o.json, written a/o.json in 3',
    ),
    ('--orders=a/f.py:mine,b/f.py:mine', '', 'decoder', 'order a/f.py:mine, order b/f.py:mine'),
    (
        '--estimates=ensemble:2,ensemble:2/3',
        '',
        'decoder',
        'ensemble ensemble:2, ensemble ensemble:2/3',
    ),
    ('--estimates=ensemble:2,ensemble:2/1', '', 'decoder', 'ensemble ensemble'),
]
MINE = 'def mine(u, n, parameter):\n    return u.argsort(-1, descending={})\n'


def test_every_row_that_is_asked_for_is_made_once():
    """Its nats have a name of their own in the journal."""
    for name in 'abc':
        Path(name).mkdir()
        positions = [*range(8, -1, -1)] if name == 'b' else [*range(1, 9), 0]
        Path(name, 'o.json').write_text(json.dumps(positions))
        Path(name, 'f.py').write_text(MINE.format(name == 'b'))
    for asked, order, network, want in ROWS:
        try:
            found = made(*asked.split(), run=order and {'order': order}, **NETWORKS[network])
        except ValueError as e:
            assert want in str(e)
        else:
            assert ', '.join(f'{it.kind} {it.label}' for it in found) == want
            assert len({it.work for it in found}) == len(found)


# of each row the work is another than that of any other row
WORKS = [
    ('--orders=swaps:3,swaps:3@1,margin --n_steps=0,3', 'decoder'),
    ('--orders=swaps:3,swaps:3@1,margin --temperature=.5', 'decoder'),
    ('--orders=margin --n_steps=3 --unmask=binomial', 'decoder'),
    ('--orders=random,swaps:3 --n_orders=2', 'decoder'),
    ('--estimates=any,ensemble,ensemble:8', 'decoder'),
    ('--estimates=ensemble/4', 'decoder'),
    ('--estimates=ensemble --n_positions=1', 'decoder'),
    ('--estimates=any', 'encoder'),  # is drawn
]


def test_a_journal_tells_ways_apart():
    works = []
    for asked, network in WORKS:
        works += [it.work for it in made(*asked.split(), **NETWORKS[network])]
    assert len({*works}) == len(works) == 18
    works = [it.work for it in made('--estimates=any,iw', **ENCODER)]
    assert works == [works[0]] * 2


def test_a_journal_tells_nats_of_a_users_own_from_others(monkeypatch):
    how = {'kind': 'ones', 'name': 'ones', 'nats_of': lambda *_: torch.ones(1, 1)}
    ones = partial(in_orders, order=RANDOM, n_orders=1, **how)
    monkeypatch.setitem(eval_ppl.ESTIMATES, 'ones', ones)
    rows = measured(make_model(), made('--estimates=any,ones', '--batch_size=1'))
    assert rows['ones x 1']['nats_per_block'] == 1 < rows['any order x 1']['nats_per_block']


LOG = math.log(2)
BY_HAND = [
    (
        '--estimates=l2r',
        [[3], [9]],
        'estimate kind n bound tokens bytes nats_per_token stderr bits_per_byte',
        [('left to right', 'l2r', 1, False, 18, 12, 12 / 18, 3 / 9, 1 / LOG)],
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
        [('ensemble x 2', 2, True, 5 / 18, 1.5 / 9), ('ensemble x 4', 4, True, 8 / 18, 2 / 9)],
    ),
    # nats, how many are cut off, passes; of one token a step
    (
        '--orders=margin --n_steps=0,3',
        [[3, 0, 3, 1, 0, 9], [9, 0, 2, 4, 0, 9]],
        'estimate bound cost cost_stderr passes',
        [('margin in 3', False, 7 / 18, 1.5 / 9, 2.5)],
    ),
    (
        '--orders=margin --n_steps=0,3',
        [[3, 0, 3, 1, 0, 9], [9, 1, 2, 4, 0, 9]],
        'perplexity stderr cut kept_nats',
        [(math.inf, None, 1, 12 / 17)],
    ),
    (
        '--orders=l2r --n_steps=0,3 --unmask=binomial --n_orders=2',
        [[3, 0, 3, 5, 0, 3, 1], [7, 0, 3, 9, 0, 3, 5]],
        'bound n cost passes',
        [(True, 2, 6 / 18, 3)],
    ),
]


def test_rows_by_hand():
    text = text_of(torch.zeros(2, 9, dtype=torch.long))
    for asked, nats, names, want in BY_HAND:
        it = made(*asked.split())[-1]
        nats = torch.tensor(nats, dtype=torch.float64)
        baseline = None
        if it.baseline:
            nats, baseline = nats.tensor_split([6 if 'n_orders' in asked else 3], 1)
        rows = it.rows(nats, text, baseline)
        for row, values in zip(rows[-len(want) :], want, strict=True):
            fields = dict(zip(names.split(), values, strict=True))
            assert {name: row[name] for name in fields} == pytest.approx(fields)


SHOWN = [
    'x 2.2500 ± 0.1952 9.49 ± 1.85 4.3281 3 8',
    'alone 0.5000 1.65 0.4809 1 4',
    'unigram, whole set 1.0397 2.83 2.0000 2 4',
    'diverged 1000.0000 inf - 1 2',
    'a puzzle 1.0000 2.72 - 1 1',
    'a puzzle 1.0000 2.72 1.00 1 1',
]


def test_tables_by_hand():
    """Tokens weigh the same in blocks of any length; a single block has no standard error."""
    nats = torch.tensor([2.0, 10.0, 6.0], dtype=torch.float64)
    text = text_of(torch.tensor([[97, 97], [98, 256]]))
    of_puzzles = tables.summarize('a puzzle', nats[:1] / 2, 1, None)
    rows = [
        tables.summarize('x', nats, torch.tensor([1, 4, 3]), 6),
        tables.summarize('alone', nats[:1], 4, 6),
        tables.unigram_row(text, Bytes()),
        tables.summarize('diverged', 1000 * nats[:1], 2, 0),
        of_puzzles,
    ]
    assert rows[0]['nats_per_block_stderr'] == pytest.approx(math.sqrt(32 / 6))
    assert rows[2]['nats_per_block'] == pytest.approx(3 * LOG)
    found = tables.format_table(rows) + tables.format_table([of_puzzles])
    for words in SHOWN:
        assert words in ' '.join(found.split())


# --------------------------------------------------------------------------------------------------
# texts and the command


OWN = torch.randperm(16, generator=random).tolist()
SIZES = dict(block_size=16, vocab_size=320, n_tokens=257)
# a data set, its source, its name, maybe its split
PREPARED = [
    'text words.txt words',
    'text words.txt broken',
    'text test.txt other',
    'text asked.jsonl asked',
    'lambada passages.txt lambada',
    'wikitext2 train.txt wikitext2 train',
    'wikitext2 words.txt wikitext2 val',
    'wikitext2 test.txt wikitext2 test',
]
NAMED = {'tokenizer': 'own', 'n_tokens': 257, 'vocabulary': [*map(str, range(257))], 'eos': None}
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
    for asked in PREPARED:
        data_set, source, name, *split = asked.split()
        prepare(data_set, folder, name, f'{folder}/{source}', *split, tokenizer='bytes')
    with open(folder / 'broken' / 'val.bin', 'r+b') as f:
        f.write(b'\x01\x01')  # the token 257
    run = {'dataset': 'words', 'data_dir': str(folder), 'order': OWN, 'documents': 'together'}
    how = dict(tokenizer='bytes', iter_num=7, config=run | {'block_size': 16})
    for name, sizes in CHECKPOINTS.items():
        model = make_model(**SIZES, **sizes).float()
        save_checkpoint(folder / f'{name}.pt', model, EMA(model, 0.9), **how)
    save_checkpoint(folder / 'named.pt', model, set=NAMED, config=run | {'l2r_ratio': 0.1})
    model.lm_head.weight.fill_(3e38)
    save_checkpoint(folder / 'large.pt', model, **how)
    return folder


@pytest.fixture
def evaluate(script, folder):
    """evaluate('--x=1 ...') runs the command on ckpt.pt; its rows, and what it said."""

    def run(args, out='x.json', code=0):
        args = f'--weights=raw --ckpt={folder}/ckpt.pt --out={out} {args}'.format(folder=folder)
        said = script('eval_ppl.py', *args.split(), code=code)
        if code:
            return said.stderr
        return read_json(out)['results'], said.stdout

    return run


HISTORY = (
    '--weights=raw --estimates=l2r,any,iw,ensemble:5/2 --orders=r2l,swaps:3,margin/8,margin/8:.02 '
    '--n_steps=0,4 --n_orders=2 --n_positions=6 --n_blocks=5'
)


def test_a_table_does_not_depend_on_processes_or_being_killed(evaluate, script, forked, folder):
    """Two processes, of which the second sees no file of the first, go on from half of the lines
    of one, the last cut off. A journal of another evaluation is an error in both."""
    rows, _ = evaluate(HISTORY)
    lines = Path('x.json.blocks.jsonl').read_text().splitlines(True)
    assert len(lines) == 1 + 10 * 5
    finished = Path('y.json.blocks.jsonl')
    finished.write_text(''.join(lines[:1] + lines[1::2]) + '["half')
    os.mkdir('far')
    command = 'eval_ppl.py', f'--ckpt={folder}/ckpt.pt', '--batch_size=3', *HISTORY.split()
    outs = '--out=y.json', '--out=far/y.json'
    forked(*[lambda out=out: script(*command, out) for out in outs])
    assert not os.listdir('far')
    # a line in each of them
    forked(*[lambda: script(*command, '--seed=1', '--out=y.json', code=1)] * 2)
    assert len(finished.read_text().splitlines()) == len(lines)  # none is measured again
    found = read_json('y.json')['results']
    for name in ('nats_per_token', 'stderr'):
        want = [row[name] for row in rows]
        assert [row[name] for row in found] == pytest.approx(want, rel=1e-5)


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
    (
        '--datasets=lambada,words --estimates=l2r,accuracy --n_blocks=2',
        'lambada (test) 2, lambada (test) accuracy, words (val) 2',
        'of 2 passages',
    ),
    ('--datasets=wikitext2', 'wikitext2 (train) 56', ''),
]


def test_which_text_is_measured(evaluate):
    for k, (args, sets, words) in enumerate(TEXTS):
        rows, said = evaluate(f'--estimates=l2r {args}', f'{k}.json')
        found = [f'{row["set"]} {row.get("blocks", row["kind"])}' for row in rows]
        assert ', '.join(found) == sets
        assert words in said


def test_the_command_measures_by_its_options(evaluate):
    how = '--n_blocks=3 --block_size=6 --estimates=l2r --orders=margin'
    (single, margin), _ = evaluate(how)
    fields = {'passes': 6, 'block_size': 6, 'tokens': 18, 'bytes': 18, 'set': 'words (val)'}
    assert fields.items() <= margin.items()
    assert '6 results are there' in evaluate(how)[1]
    (half, _), said = evaluate(f'{how} --dtype=bfloat16 --weights=ema', 'h.json')
    assert 1e-5 < abs(half['nats_per_token'] - single['nats_per_token']) < 0.2
    assert 'ema weights' in said


@pytest.mark.parametrize(
    'dataset, trained, wanted',
    [
        ('words:0.7,other:0.3', '--documents=apart', 'words_l2r other_l2r'),
        ('asked', '--order=r2l', 'l2r own'),
        ('wikitext2', '--order=swaps:3', 'l2r own'),
        ('other', '--l2r_ratio=0', 'l2r any'),
    ],
)
def test_a_run_is_measured_by_the_law_of_its_validation(folder, script, dataset, trained, wanted):
    """Also from its exported folder, which has no path of a machine. The seed of validations is
    0."""
    pytest.importorskip('safetensors')
    sets = f'--data_dir={folder}'
    script('train.py', *toy_runs.TOY, f'--dataset={dataset}', trained, sets, '--max_iters=1')
    script('anyorder.extras.hub', '--out=out/hf')
    last = toy_runs.log()[-1]
    kinds = ','.join(dict.fromkeys(name.split('_')[-1] for name in wanted.split()))
    for place in (['--ckpt=out/ckpt.pt'], ['--ckpt=out/hf', sets]):
        how = '--n_blocks=16', '--seed=0', f'--estimates={kinds}', '--out=o.json'
        script('eval_ppl.py', *place, *how)
        found = [row['nats_per_token'] for row in read_json('o.json')['results']]
        assert found == pytest.approx([last[f'val_{name}'] for name in wanted.split()], rel=1e-6)


BAD = {
    '--estimates=l2r,best': "'l2r,best'",
    '--estimates=any:4': "'any:4'",
    '--estimates=ensemble:0': 'ensemble:0/1',
    '--estimates=ensemble/0': 'ensemble:16/0',
    '--estimates=ensemble:2.5': 'ensemble:2.5/1',
    '--estimates=ensemble:2.0/2': 'whole numbers',
    '--estimates=ensemble:8/1.5': "'ensemble:8/1.5'",
    '--n_positions=-1': 'n_positions=-1',
    '--n_positions=-1 --estimates=l2r': 'there is none',
    '--estimates=any': 'there is none',
    '--n_positions=8 --estimates= --orders=margin': 'there is none',
    '--n_positions=1 --estimates=ensemble/2': 'n_positions=1',
    '--estimates=accuracy': 'lambada',
    '--orders=l2r,up': "'up' is no order",
    '--orders=margin --temperature=0': 'every other one 0',
    '--orders=l2r/4': "'l2r/4' is no order",
    '--orders=margin+.5': 'noise',
    '--datasets=no.txt --orders=drawn,l2r --pattern=.*': 'order=drawn',
    '--orders=margin --unmask=lossless': 'one token a step',
    '--orders=margin --unmask=binomial': 'n_steps from 1',
    '--orders=margin --n_steps=-1': 'n_steps',
    '--estimates=l2r --temperature=.5': '--orders=l2r',
    '--n_steps=8': '--orders=l2r',
    '--split=mine': 'mine',
    '--datasets=ptb': 'prepare.py ptb',
    '--datasets=nosuch': 'data/prepare.py',
    '--datasets=no.txt': "no file 'no.txt'",
    '--datasets=,': '--datasets=',
    '--datasets=broken': 'token 257',
    '--datasets={folder}/void.txt': 'no text',
    '--ckpt={folder}/named.pt': 'another vocabulary',
    '--ckpt={folder}/named.pt --datasets={folder}/words.txt': 'trained on own tokens',
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
    '--ckpt={folder}/large.pt --weights=ema': '--weights=raw',
    '--n_blocks=3 --ckpt={folder}/large.pt': 'not finite',
    '--n_positions=0 --ckpt={folder}/large.pt --datasets=lambada --estimates=accuracy': 'finite',
    # of another evaluation than the one that is there
    '--seed=1': '(seed differ)',
    '--dtype=bfloat16': '(dtype differ)',
    '--block_size=3': '(block_size differ)',
    '--ckpt={folder}/rotary.pt': '(model differ)',  # of equal weights
}


def test_wrong_input_is_one_line_and_changes_nothing(evaluate):
    base = '--estimates=ensemble:16/2 --n_positions=4 --n_blocks=1'
    evaluate(base)
    lines = Path('x.json.blocks.jsonl').read_text()
    files = {*Path().rglob('*')}
    for args, word in BAD.items():
        said = evaluate(f'{base} {args}', code=1)
        assert word in said
    assert Path('x.json.blocks.jsonl').read_text() == lines
    assert {*Path().rglob('*')} == files


# --------------------------------------------------------------------------------------------------
# journals


DAMAGED = [
    'hello\n',
    '[1, 2]\n',
    'no line end',
    '\n',
    '\xff\n',
    '{}\n3\n',
    '{}\n["a\n',
    '{}\n[]\n',
    '{}\n[[[1]], 2]\n',
]


def test_a_journal_that_is_damaged_is_one_line_and_stays():
    """An empty one is begun."""
    path = Path('j.jsonl')
    for damaged in DAMAGED:
        path.write_bytes(damaged.encode('latin-1'))
        with one_line('j.jsonl cannot be read'):
            Journal('j.jsonl', {})
        assert path.read_bytes() == damaged.encode('latin-1')
    path.write_text('')
    Journal('j.jsonl', {'seed': 1})
    assert path.read_text() == '{"seed": 1}\n'


# --------------------------------------------------------------------------------------------------
# bytes of a text


def test_blocks_and_bytes_of_a_file_by_hand():
    Path('my.csv').write_text('text\nhéllo\nabc\nde\n', encoding='utf-8')
    tokens = [*'héllo'.encode(), 256, *b'abc', 256, *b'de', 256]
    digests = set()
    # ends of documents are no bytes
    for size, n_blocks, firsts, n_bytes in ((4, 0, [0, 4, 8], 10), (2, 3, [0, 4, 8], 6)):
        text = open_corpus('my.csv', size, Bytes(), 'nowhere', n_blocks=n_blocks)
        assert text.blocks.tolist() == [tokens[i : i + size] for i in firsts]
        assert text.n_bytes == n_bytes
        digests.add(text.digest)
    assert len(digests) == 2


def test_a_zero_shot_set_is_read_in_the_tokens_of_the_model(folder):
    tokenizer = tokenizer_like('bytes')
    ours, theirs = (open_corpus('wikitext2', 4, t, folder) for t in (Bytes(), tokenizer))
    assert theirs.origin['source'] == f'{ours.origin["source"]}, in bytes tokens'
    assert tokenizer.decode(theirs.split.packed[:40]) == Bytes().decode(ours.split.packed[:40])


LETTERS = unicodedata.normalize('NFD', 'é ü ñ å')
DOCUMENTS = [
    [{'text': LETTERS}],
    [{'text': 'ﬁx ½ İ é'}, {'text': LETTERS[:2]}, {'text': 'a'}],
    [{'prompt': 'ab ', 'text': LETTERS[:2]}, {'prompt': '', 'text': 'Ünd'}],
    [{'text': ' a  b\n'}],
]


@pytest.mark.parametrize('kind', ['', ' NFC', ' NFKC', ' NFD', ' Lowercase', ' behind a space'])
def test_bytes_are_those_of_the_text_as_it_was_given(kind):
    """Of its answers where it has prompts."""
    tokenizer = tokenizer_like(f'bytes{kind}')
    for rows in DOCUMENTS:
        Path('my.jsonl').write_text('\n'.join(map(json.dumps, rows)))
        n_bytes = [len(row['text'].encode()) for row in rows]
        N = 64 if 'prompt' in rows[0] else 1
        found, some = (open_corpus('my.jsonl', N, tokenizer, '', '', n) for n in (0, 1))
        assert found.n_bytes == found.sizes.sum() == sum(n_bytes)
        assert some.n_bytes == (n_bytes[0] if N == 64 else found.sizes[0])
