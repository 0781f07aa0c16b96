"""The door of anyorder/: orders, also of grids and of a user, seeds, checkpoint files and weights.

All tests run in an empty folder of their own, which is the home folder, too."""

import collections
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT, make_model, one_line
from oracle import chi2_of, limit
from toy_runs import resume, run

import train
from anyorder.checkpoint import (
    Checkpoint,
    config_from_checkpoint,
    digest,
    entries_of,
    load_checkpoint,
    model_from_checkpoint,
    open_checkpoint,
    save_checkpoint,
)
from anyorder.extras import orders as orders_of_grids
from anyorder.extras.hub.exported import write_exported
from anyorder.extras.hub.folders import read_weights
from anyorder.functions import LOADED, names_of
from anyorder.generation.options import check_keywords, unmasking_of
from anyorder.generation.revise import Revised
from anyorder.generation.scores import SCORES, confidence
from anyorder.generation.unmasking import Adaptive, Given, Lossless
from anyorder.generation.way import order_and_unmasking
from anyorder.order_options import read_order
from anyorder.orders import ORDERS, Family, Order, draw_orders, given_first, sample_order
from anyorder.seeds import (
    derive_seed,
    hashed,
    keys_of,
    numbered_keys,
    random_bits,
    seeds_of,
    stream,
    uniform,
)
from anyorder.tokens.meta import read_meta, write_meta
from anyorder.training.start import start_checkpoint
from anyorder.weights import local_path, padded, tie, unwrapped
from anyorder.writer import Writer
from configurator import configure
from model import AOGPT, EMA, AOGPTConfig


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HOME', str(tmp_path))


# --------------------------------------------------------------------------------------------------
# orders


def tuples(orders):
    """The rows of orders (B, n), as a dict counts them."""
    return list(map(tuple, orders.tolist()))


def test_shared_orders_are_pinned():
    """Published runs and logs depend on them: the seed's stream of numbers, sorted; blocks take the
    first ones."""
    u = torch.rand(11, dtype=torch.float64, generator=stream(5, 'order'))
    assert torch.equal(sample_order(2, 11, 'fixed', seed=5)[1], u.argsort())
    position = torch.arange(11)
    order = (position // 3 + u[position % 3]).argsort()
    assert torch.equal(sample_order(2, 11, 'block', seed=5, parameter=3)[1], order)
    assert sample_order(1, 8, 'fixed')[0].tolist() == [7, 4, 2, 5, 1, 6, 0, 3]
    by_hand = list(range(20))
    u = torch.rand(7, 2, dtype=torch.float64, generator=stream(4, 'order'))
    for i, j in (u * 20).long().tolist():
        by_hand[i], by_hand[j] = by_hand[j], by_hand[i]
    assert sample_order(2, 20, 'swaps', parameter=7, seed=4).tolist() == [by_hand] * 2


def test_drawn_orders_are_pinned():
    """A generator gives N + 1 numbers a row, in float64, the last for l2r_ratio."""
    u = torch.rand(3, 301, dtype=torch.float64, generator=stream('x'))
    assert torch.equal(sample_order(3, 300, generator=stream('x')), u[:, :300].argsort(-1))
    many = torch.rand(1, 30_001, dtype=torch.float64, generator=stream('y'))
    sorted_many = many[:, :-1].argsort(-1)  # float32 would have ties
    assert torch.equal(sample_order(1, 30_000, generator=stream('y')), sorted_many)
    mixed = torch.where(u[:, 300:] < 0.5, torch.arange(300), torch.arange(300).flip(0))
    assert torch.equal(sample_order(3, 300, 'r2l', 0.5, generator=stream('x')), mixed)


def test_few_orders_and_sorted_subsets_have_their_laws():
    """Left to right and the orders of the next seeds; 0, 1, 2 or all of 3 positions are known, each
    number as often, and each set of as many."""
    few = Order('few', 3, seed=4)
    fixed = [tuples(Order('fixed', seed=seed).draw(1, 7))[0] for seed in (5, 6)]
    of_few = dict.fromkeys([tuple(range(7)), *fixed], 1 / 3)
    subset = Order('sorted_subset')
    of_subset = dict.fromkeys([(1, 0, 2), (2, 0, 1), (0, 2, 1), (1, 2, 0)], 1 / 12)
    of_subset[0, 1, 2] = 2 / 3
    for order, n, law in ((few, 7, of_few), (subset, 3, of_subset)):
        counts = Counter(tuples(order.draw(12_000, n, stream('law'))))
        assert counts.keys() == law.keys()
        n_each = torch.tensor([counts[row] for row in law])
        assert chi2_of(n_each, torch.tensor([*law.values()])) < limit(len(law) - 1)
    part = replace(few, parameter=2, length=7).draw(99, 4, stream('few'))
    assert {*tuples(part)} == {tuple(p for p in order if p < 4) for order in [*of_few][:2]}
    assert torch.equal(replace(few, parameter=1).draw(2, 4), torch.arange(4).expand(2, 4))
    orders = subset.draw(50, 40, stream('long'))
    assert (orders.diff(dim=-1) < 0).sum(1).max() == 1  # one step back, to the first of the rest


@pytest.mark.parametrize('order', [Order('fixed'), Order('block'), Order('swaps', 9), Order('r2l')])
def test_a_shorter_sequence_leaves_out_what_lies_behind(order):
    whole = replace(order, seed=1).draw(1, 40)[0]
    part = replace(order, seed=1, length=40).draw(2, 13)
    assert torch.equal(part[1], whole[whole < 13])
    assert not torch.equal(replace(order, seed=2).draw(1, 40)[0], whole) or order.kind == 'r2l'


def rotation(u, n, _):
    """Left to right from a random position on, of one number."""
    return (torch.arange(n) + (u * n).long()) % n


@pytest.fixture
def rotated(monkeypatch):
    """An Order of a new family, which is drawn for each row."""
    family = Family(rotation, drawn=True, n_numbers=lambda n, _: 1)
    monkeypatch.setitem(ORDERS, 'rotated', family)
    return Order('rotated')


def test_another_family_is_one_function(rotated):
    u = torch.rand(4000, 2, dtype=torch.float64, generator=stream(1))
    order = rotated.draw(4000, 50, stream(1), l2r_ratio=0.1)
    assert (order.diff(dim=1) % 50 == 1).all()
    assert torch.equal(order[:, 0], torch.where(u[:, 1] < 0.1, 0, (u[:, 0] * 50).long()))


@pytest.mark.parametrize('kind', [*ORDERS, 'rotated'])
def test_orders_of_blocks_depend_on_seed_and_number_alone(rotated, kind):
    """Torch's own generator is neither read nor moved."""
    before = torch.get_rng_state()
    order = Order(kind, shape=(5, 8), seed=3)
    orders = draw_orders(range(6), 40, 2, 7, order)
    assert orders.shape == (6, 2, 40)
    assert torch.equal(draw_orders([4, 1], 40, 2, 7, order), orders[[4, 1]])
    assert torch.equal(draw_orders(range(6), 40, 2, 8, order), orders) == (not order.drawn)
    keys = random_bits(numbered_keys(7, [5]), torch.arange(2))
    own = [replace(order, seed=3 + k).draw(1, 40, keys=keys[k : k + 1]) for k in range(2)]
    if not order.drawn or kind != 'few':  # whose seed is of the orders
        assert torch.equal(orders[5], torch.cat(own))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize('n', [9, 300])
def test_what_is_given_comes_first(n):
    order = sample_order(50, n, generator=stream(0))
    given = torch.rand(50, n, generator=stream(1)) < 0.4
    given[:2] = torch.tensor([[True], [False]])
    for ends in (None, torch.arange(50) % n + 1):
        new, n_given, n_blanks = given_first(order, given, ends)
        in_place = given_first(order, given, ends, left_to_right=True)[0]
        for r, was in enumerate(order.tolist()):
            end = n if ends is None else int(ends[r])
            known = [p for p in was if p < end and given[r, p]]
            rest = [p for p in was if p < end and p not in known] + [p for p in was if p >= end]
            assert new[r].tolist() == known + rest
            assert in_place[r].tolist() == sorted(known) + rest
            assert (n_given[r], n_blanks[r]) == (len(known), end - len(known))


# ---- names of orders

RUN = {'seed': 9, 'order': 'block:2@3', 'l2r_ratio': 0.1, 'block_size': 8}
BLOCK = Order('block', 2, seed=3, length=8)


@pytest.mark.parametrize(
    'text, run, order',
    [
        ('own', {}, Order('random')),
        ('own', RUN, BLOCK),
        ('block:4', RUN, replace(BLOCK, parameter=4)),
        ('own', RUN | {'order': 'block:4'}, replace(BLOCK, parameter=4, seed=0)),
        ([1, 0], RUN, Order('listed', (1, 0), seed=3, length=8)),
        ('rows', RUN | {'shape': [2, 4]}, Order('rows', seed=3, length=8, shape=(2, 4))),
        ('block', {'order': 'block:2'}, Order('block', 2)),
        ('swaps', {'order': 'block:2'}, Order('swaps', 16)),
        ('swaps', {'order': 'swaps:9'}, Order('swaps', 9)),
    ],
)
def test_a_text_and_the_options_of_a_run_give_an_order(text, run, order):
    assert Order.of(text, run) == order


@pytest.mark.parametrize(
    'order, law, estimate, kept',
    [
        (Order(), 'random', 'any', 'random'),
        (Order('l2r', seed=2), 'one', 'l2r', 'l2r'),
        (Order('fixed', seed=2), 'several', 'own', 'fixed@2'),
        (Order('swaps', 1), 'several', 'own', 'swaps:1'),
        (Order('few', 1, seed=5), 'one', 'own', 'few:1@5'),
        (Order('few'), 'several', 'own', 'few:2'),
        (Order('sorted_subset'), 'several', 'own', 'sorted_subset'),
        (Order('listed', (1, 0)), 'one', 'own', [1, 0]),
    ],
)
def test_an_order_knows_its_law_and_what_a_checkpoint_keeps(order, law, estimate, kept):
    assert (order.law, order.estimate, order.kept) == (law, estimate, kept)
    assert Order.of(kept, {}) == replace(order, seed=order.seed if '@' in kept else 0)
    called = ('listed', 'b.json') if order.kind == 'listed' else (kept, kept)
    assert (order.name, order.name_as('a/b.json')) == called


def test_what_tables_and_files_of_results_call_an_order():
    entries = {'kind': 'rows', 'parameter': None, 'seed': 0, 'length': 8}
    assert Order('rows', length=8).entries == entries
    assert Order('rows', length=8, shape=(2, 4)).entries == entries | {'shape': (2, 4)}
    assert Order('mine.py:f@0123456789ab').name == 'mine.py:f'  # whose file need not be there
    for text in ('random', 'swaps:16', 'few:3@4', 'own'):
        assert read_order(text, 'own') == text


def listed(text):
    pathlib.Path('order.json').write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_order('order.json')


def test_a_file_has_positions_of_the_model_or_fewer():
    assert listed('[2, 0, 1]') == [2, 0, 1] == read_order('~/order.json')
    for positions in ([2, 0, 1], [3, 2, 0, 1, 4]):
        assert Order.of(positions, {'block_size': 9}).draw(2, 3).tolist() == [[2, 0, 1]] * 2
    order = Order('listed', (3, 2, 0, 1))
    order.check(4)
    order.check(3, 4)
    for asked, said in (((3,), 'at most the 3'), ((2, 3), 'at most the 3'), ((5,), '0 to 4, once')):
        with one_line(said):
            order.check(*asked)


def test_a_text_that_is_no_order_is_one_line():
    """Also a file, and a number that a family refuses."""
    names = ['rl', 'own', 'swaps:', 'swaps:-1', 'swaps:x', 'l2r:3', 'l2r@1', 'none.json', '', '.']
    for wrong in names:
        with one_line(f'{wrong!r} is no order.*JSON file'):
            read_order(wrong)
    with one_line("nearest is 'random'"):
        read_order('randm')
    with one_line('below 2'):
        read_order(f'swaps:{2**31}')
    wrong = ['{"order": [0]}', '3', 'null', '[]', '[0.5, 1]', '[0.0, 1]', '[false, 1]', '[[0]]']
    for text in (
        *wrong,
        '["0"]',
        '[0, 2]',
        '[1, 2]',
        '[0, 0]',
        '[2, 0',
        b'\xff\xfe\0',
        '[' * 99999,
    ):
        with one_line('order.json cannot be read as a JSON list'):
            listed(text)
    for make in (Order, lambda kind: sample_order(1, 8, kind), lambda kind: Order.of(kind, {})):
        with one_line("order must be random, l2r, .*, got 'rl'"):
            make('rl')
    for kind in ('block', 'few'):
        with one_line('at least 1.*0'):
            sample_order(1, 8, kind, parameter=0)
    for positions in ([0, 1], [0, 1, 1], [3, 1, 2], []):
        with one_line(f'from 0 to 2, once; got {len(positions)}'):
            Order.of(positions, {}).draw(1, 3)


# ---- names of ways to write

NOUNS = [
    ({}, Given()),
    (dict(n_steps=4, unmask='binomial'), Given(4, binomial=True)),
    (dict(schedule=[2, 9], unmask='binomial'), Given(schedule=[2, 9])),
    (dict(policy='margin/8:0.9+2'), Adaptive('margin', block_length=8, threshold=0.9, noise=2.0)),
    (dict(policy='margin', unmask='binomial'), Adaptive('margin', binomial=True)),
    (dict(unmask='lossless:64', n_steps=9, schedule='cosine'), Lossless(64)),
    (dict(policy='margin', revise=1), Revised(Adaptive('margin'), 1)),
]


def test_options_name_an_unmasking():
    for options, noun in NOUNS:
        assert unmasking_of(**options) == noun
    for text, order in (('own', 'own'), ('entropy+0.5', 'random'), ('margin/32', 'l2r')):
        policy = 'given' if text == 'own' else text
        assert order_and_unmasking(text) == (order, unmasking_of(policy=policy))


def test_an_order_and_an_unmasking_that_do_not_go_together_are_one_line():
    for wrong, said in (('margin/x', 'margin/x'), ('margin:1..2', '1..2'), ('l2r/8', 'l2r/8')):
        with one_line(said):
            order_and_unmasking(wrong)
    with one_line('margin/32:0.9'):
        order_and_unmasking('margin+x')


def test_a_keyword_that_nobody_has_is_named_with_the_nearest():
    check_keywords({'kind': 'a', 'n_steps': 4}, sample_order)
    with pytest.raises(TypeError, match="'n_step'; the nearest is 'n_steps'"):
        check_keywords({'n_step': 4}, sample_order)


# --------------------------------------------------------------------------------------------------
# seeds


def check_alike(values, n):
    """Each of n values is about as often as the others, by chi-square."""
    chi2 = chi2_of(values.flatten().bincount(minlength=n), 1 / n)
    assert abs(chi2 - (n - 1)) < 5 * (2 * (n - 1)) ** 0.5


def test_seeds_are_a_function_of_their_names():
    assert derive_seed(1, 2) == hashed(1, 2) == 5142973159532490859
    assert derive_seed(1, 2, 3) == 2904650318594197935
    assert derive_seed('x', 2**32, 3) == hashed('x', 2**32, 3)
    seeds = {
        derive_seed(*names) for names in itertools.product(range(20), (0, 1, 'order'), range(9))
    }
    assert len(seeds) == 540
    one, same = (torch.rand(9, generator=stream(3, 'x')) for _ in range(2))
    assert torch.equal(one, same)
    assert seeds_of(5, 3) == [5, 6, 7]
    assert seeds_of([4, np.int64(4)], 2) == [4, 4]
    with one_line('each of 3 texts'):
        seeds_of([4, 4], 3)


def test_runs_of_other_seeds_take_their_states_in_other_orders():
    """As far as 32 bits reach: two runs of 5,000 updates have 0.006 states in common, at random."""
    names = itertools.product((1, 2, 'dropout'), range(5_000), range(2))
    states = [derive_seed(*of_one) % 2**32 for of_one in names]
    assert len({*states[:10_000]}) == 10_000
    assert len({*states}) > 30_000 - 4
    check_alike(torch.tensor(states[:10_000]) >> 24, 256)


def test_bits_are_those_of_splitmix64():
    """Its published numbers for the seed 1234567, together and one by one."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    known += [4593380528125082431, 16408922859458223821]
    seed = torch.tensor(1234567)
    together = random_bits(seed, torch.arange(1, 6))
    one_by_one = [random_bits(seed, n) for n in range(1, 6)]
    for bits in (together, one_by_one):
        assert [int(one) % 2**64 for one in bits] == known


def test_numbers_of_a_row_are_those_that_it_has_alone_and_every_bit_of_a_seed_counts():
    keys = keys_of([5, 6, 10**30])
    columns = torch.arange(7)
    together = uniform(keys.unsqueeze(1), 'tokens', 3, columns)
    for r in range(3):
        assert torch.equal(uniform(keys[r : r + 1], 'tokens', 3, columns[:4]), together[r, :4])
    assert len({*together.flatten().tolist()}) == 21
    seeds = [0, *(2**i for i in range(80))]
    assert len({*uniform(keys_of(seeds), 'tokens', 0).tolist()}) == 81


def test_a_device_without_float64_has_the_first_24_bits_of_a_number(monkeypatch):
    keys = keys_of(range(999))
    exact = uniform(keys, 'tokens')
    monkeypatch.setattr('anyorder.seeds.widest', lambda device: torch.float32)
    assert torch.equal(uniform(keys, 'tokens').double(), (exact * 2**24).floor() / 2**24)


def test_numbers_are_uniform_and_independent_of_their_neighbours():
    rows = keys_of(range(2000)).unsqueeze(1)
    columns = torch.arange(200)
    u = uniform(rows, 'tokens', columns)
    assert u.dtype == torch.float64
    assert 0 <= u.min() <= u.max() < 1
    cell = (16 * u).long()
    check_alike(cell[:, 1:] * 16 + cell[:, :-1], 256)
    check_alike(cell[1:] * 16 + cell[:-1], 256)
    check_alike(random_bits(rows, columns) & 1023, 1024)


# --------------------------------------------------------------------------------------------------
# checkpoints

SIGMA = dict(target_position='input', gpt2_blocks=True)
HEAD = 'lm_head.weight'
EMBEDDING = 'transformer.wte.weight'


def averaged(**config):
    """(model, its average), with other weights."""
    model = make_model(**config).float()
    ema = EMA(model, 0.9)
    for p in model.parameters():
        p.mul_(1.1)
    ema.update(model)
    ema.update(model)
    return model, ema


@pytest.mark.parametrize(
    'network',
    [
        dict(gate_init=1.0, n_cond=24, n_tokens=7),
        dict(target_position='layer', rotary=True),
        dict(SIGMA, bias=False),
        dict(attention='mixed'),
        dict(target_position='two_stream', rotary=True),
    ],
)
def test_our_file_gives_the_model_back(network):
    model, ema = averaged(**network)
    save_checkpoint('c.pt', model, ema, iter_num=3)
    assert os.listdir() == ['c.pt']
    for weights, origin in {'raw': model, 'ema': ema.model}.items():
        loaded = model_from_checkpoint('c.pt', weights)
        assert not loaded.training
        assert loaded.config == origin.config
        assert digest(loaded) == digest(origin)
        torch.testing.assert_close(loaded.state_dict(), origin.state_dict(), rtol=0, atol=0)
    checkpoint = load_checkpoint('c.pt')
    assert checkpoint['iter_num'] == 3
    average = checkpoint['ema_model']
    assert (average['num_updates'], average['decay']) == (2, 0.9)


def test_what_published_sizes_leave_out_is_inferred():
    """GPT-2's vocabulary has 50257 tokens, padded to 50304; the weights have the width of the
    condition."""
    args = {'block_size': 4, 'vocab_size': 50304, 'n_layer': 1, 'n_head': 1, 'n_embd': 8}

    def config_of(args, **weights):
        named = {f'transformer.{name}.weight': p for name, p in weights.items()}
        return config_from_checkpoint({'model_args': args | {'more': 1}, 'model': named})

    adaln = config_of(args, wtpe=torch.zeros(4, 6))
    assert (adaln.n_real, adaln.n_cond) == (50257, 6)
    assert (adaln.target_position, adaln.gpt2_blocks) == ('adaln', False)
    sigma = config_of(args, ln_f=torch.zeros(8))
    assert (sigma.n_real, sigma.target_position, sigma.gpt2_blocks) == (50257, 'input', True)
    assert config_of(args | {'n_tokens': 9}).n_real == 9
    assert [padded(n) for n in (1, 64, 65, 50257)] == [64, 64, 128, 50304]


def test_a_digest_tells_all_weights_and_sizes_and_stays_as_journals_have_it(model):
    other = AOGPT(replace(model.config, attention='bidirectional')).double()
    other.load_state_dict(model.state_dict())  # the same weights
    digests = {digest(model), digest(other)}
    for p in model.parameters():
        p.view(-1)[-1] += 1e-9
        digests.add(digest(model))
    assert len(digests) == 2 + len(list(model.parameters()))
    tiny = AOGPT(AOGPTConfig(block_size=2, vocab_size=3, n_layer=1, n_head=1, n_embd=2, n_cond=2))
    for p in tiny.parameters():
        torch.nn.init.zeros_(p)
    assert digest(tiny) == '6e04265715923cced633f3b7aa1d970c'


def test_a_checkpoint_is_opened_with_all_that_it_says():
    model, ema = averaged(vocab_size=320, n_tokens=257)
    run = {'order': 'block:2@3', 'l2r_ratio': 0.5}
    counts = torch.arange(257)
    more = dict(iter_num=7, tokenizer='bytes', config=run, counts=counts)
    save_checkpoint('c.pt', model, ema, **more)
    opened = Checkpoint('c.pt')
    assert opened.config == model.config
    assert (opened.tokenizer.name, opened.run, opened.iter_num) == ('bytes', run, 7)
    assert opened.order == Order('block', 2, seed=3)
    assert opened.weights == 'ema'
    assert opened.about('ema') == 'c.pt: ema weights, iteration 7'
    opened.tokenizer.special = {'<a>': 7, '<b>': 3}
    found = opened.model('raw')
    assert torch.equal(found.counts, counts)
    assert found.exempt.tolist() == [3, 7, 256]  # for which a penalty is not
    assert found.state_dict().keys() == model.state_dict().keys()
    assert digest(found) == digest(model)
    save_checkpoint('c.pt', model, tokenizer='bytes')
    opened = Checkpoint('c.pt')
    assert (opened.weights, opened.counts) == ('raw', None)
    assert opened.about('raw') == 'c.pt: raw weights, iteration ?'
    for entries, said in (({}, '257 tokens, gpt2 has 50257'), ({'tokenizer': 'other'}, 'other')):
        save_checkpoint('c.pt', model, **entries)  # as published: GPT-2's tokens
        with one_line(said):
            Checkpoint('c.pt')


def test_a_file_is_whole_or_the_old_one_and_replaces_a_link(model):
    save_checkpoint('c.pt', model, iter_num=1)
    with pytest.raises(Exception, match='pickle'):
        save_checkpoint('c.pt', model, iter_num=2, unwritable=lambda: 0)
    assert load_checkpoint('c.pt')['iter_num'] == 1
    os.symlink('c.pt', 'link.pt')
    save_checkpoint('~/link.pt', model, iter_num=3)
    assert load_checkpoint('c.pt')['iter_num'] == 1
    assert not os.path.islink('link.pt')
    assert sorted(os.listdir()) == ['c.pt', 'link.pt']


def test_a_checkpoint_in_the_home_folder(ckpt, tmp_path, monkeypatch):
    os.mkdir('here')
    pathlib.Path('order.json').write_text('[2, 0, 1]')
    monkeypatch.chdir('here')
    for opened in (
        load_checkpoint(pathlib.Path('~/ckpt.pt')),
        open_checkpoint('~/ckpt.pt').entries,
        Checkpoint('~/ckpt.pt').entries,
    ):
        assert opened['iter_num'] == 7
    writer = Writer(pathlib.Path('~/ckpt.pt'))
    assert len(writer.infill('a[[1-1]]b', order='~/order.json', length=3)) == 3
    with one_line('masked:.*/here must name a folder'):
        open_checkpoint('masked:~/here')


class Bomb:
    def __reduce__(self):
        return os.mkdir, ('exploded',)


HALF = object()
FILES = [  # (what a file holds, what is said)
    (None, 'no checkpoint file'),
    (b'', '.0 bytes. cannot be read'),
    (HALF, 'cannot be read'),
    (b'hello, world\n', 'cannot be read'),
    (bytes(range(7, 200)), 'cannot be read'),
    (Bomb(), 'cannot be read'),
    ([], 'is not a checkpoint'),
    ({'model': {}}, 'is not a checkpoint'),
    ({'model': {'a': 3}, 'model_args': {}}, 'is not a checkpoint'),
    ({'model': {}, 'model_args': {}, 'tokenizer': 3}, 'is not a checkpoint'),
]
for value, name in (
    (np.datetime64('2020-01-01'), 'numpy'),
    (np.array([None]), 'numpy'),
    (np.zeros(2, 'i4,O'), 'numpy'),
    (np.float32, 'numpy.float32'),
    (Bomb(), 'mkdir'),
):
    held = {'model': {}, 'model_args': {}, 'more': [value]}
    FILES.append((held, f'cannot be read as a checkpoint: it holds .*{name}'))


@pytest.mark.parametrize('held, said', FILES)
def test_files_that_are_no_checkpoint_are_one_line_and_run_no_code(model, held, said):
    for is_zip in (True, False):
        if held is HALF:
            save_checkpoint('c.pt', model)
            whole = pathlib.Path('c.pt').read_bytes()
            pathlib.Path('c.pt').write_bytes(whole[: len(whole) // 2])
        elif isinstance(held, bytes):
            pathlib.Path('c.pt').write_bytes(held)
        elif held is not None:
            torch.save(held, 'c.pt', _use_new_zipfile_serialization=is_zip)
        with one_line(f'{said}.*c.pt|c.pt.*{said}'):
            load_checkpoint('c.pt')
    assert not os.path.exists('exploded')


PLAIN = [  # (what a training loop keeps, what is read)
    (np.float64(3.2), 3.2),
    (np.int64(-3), -3),
    (np.bool_(True), True),
    (np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
    (np.asfortranarray(np.arange(6.0).reshape(2, 3)), [[0, 1, 2], [3, 4, 5]]),
    (np.arange(3, dtype='>i2'), [0, 1, 2]),
    (np.bytes_(b''), b''),
    (collections.OrderedDict(a=1), {'a': 1}),
    ((1, b'x', None, 2**70), (1, b'x', None, 2**70)),
]


@pytest.mark.parametrize('is_zip', [True, False])
def test_plain_values_and_numbers_of_numpy_are_read(model, is_zip):
    """Arrays are read as lists, for a state of random numbers is often beside the weights."""
    kept, right = map(list, zip(*PLAIN))
    entries = entries_of(model.float()) | {'kept': kept}
    torch.save(entries, 'c.pt', _use_new_zipfile_serialization=is_zip)
    checkpoint = load_checkpoint('c.pt')
    assert checkpoint['kept'] == right
    assert not any(isinstance(value, np.generic | np.ndarray) for value in checkpoint['kept'])
    assert digest(model_from_checkpoint(checkpoint, 'raw')) == digest(model)
    if not is_zip:  # as numpy 1 names its functions
        data = pathlib.Path('c.pt').read_bytes()
        older = data.replace(b'numpy._core.multiarray', b'numpy.core.multiarray')
        pathlib.Path('c.pt').write_bytes(older)
        assert load_checkpoint('c.pt')['kept'] == right


@pytest.mark.parametrize(
    'weights, change, said',
    [
        ('ema', {}, 'no EMA'),
        ('ema', {'ema_model': None}, 'no EMA'),
        ('ema', {'ema_model': {'shadow_params': [1, 2]}}, r'no EMA of its \d\d weights'),
        ('ema', {'ema_model': {'shadow_params': {'aa': 1}}}, 'aa .*int'),
        ('ema', {'ema_model': {'shadow_params': {'zz': torch.ones(1)}}}, 'first is zz'),
        ('raw', {'model_args': {'n_embd': 32}}, 'differ'),
        ('raw', {'model_args': {'n_layer': 1}}, 'differ .*h.1'),
        ('raw', {'model_args': {'n_layer': 'a'}}, 'n_layer'),
        ('raw', {'model_args': {'dropout': '0'}}, 'dropout'),
        ('raw', {'model_args': {'attention': 'no'}}, 'attention'),
        ('raw', {'model_args': {'gate_init': None}}, 'gate_init'),
        ('both', {}, "weights must be 'ema' or 'raw'"),
        ('raw', {'wnonee': float('nan')}, 'diverged: 1 weights .*wnonee'),
        ('raw', {'wnonee': float('inf')}, 'diverged: 1 weights .*wnonee'),
        ('raw', {'wnonee': 3e38}, 'diverged: 1 weights .*wnonee'),  # its logits are not finite
    ],
)
def test_checkpoints_with_a_part_that_is_wrong(model, weights, change, said):
    checkpoint = entries_of(model.float())
    if 'wnonee' in change:
        checkpoint['model']['transformer.wnonee.weight'][0, 3] = change['wnonee']
    args = checkpoint['model_args'] | change.get('model_args', {})
    with one_line(said):
        model_from_checkpoint(checkpoint | change | {'model_args': args}, weights)


# how names of the raw weights and of the average are stored
TIES = [
    ('both', 'names'),
    (HEAD, 'names'),
    (EMBEDDING, 'names'),
    (HEAD, 'list'),
    ('both', 'list of all'),
    ('module.', 'names'),
    ('module._orig_mod.', 'names'),
]


@pytest.mark.parametrize('store, average', TIES)
def test_weights_in_a_file_of_others(store, average):
    """A tied head under either name, the average by name or as a list, names with a prefix."""
    model, ema = averaged(**SIGMA)
    entries = entries_of(model, ema)
    raw = entries['model']
    shadow = {name: ema.model.state_dict()[name] for name in raw}
    if average == 'list':
        shadow = list(entries['ema_model']['shadow_params'].values())
    elif average == 'list of all':
        shadow = list(shadow.values())
    for weights in (raw, shadow):
        if store in (HEAD, EMBEDDING) and isinstance(weights, dict):
            del weights[HEAD if store == EMBEDDING else EMBEDDING]
    if store.startswith('module'):
        raw = {store + name: p for name, p in raw.items()}
        shadow = {store + name: p for name, p in shadow.items()}
    entries['ema_model']['shadow_params'] = shadow
    torch.save(entries | {'model': raw}, 'c.pt')
    assert digest(model_from_checkpoint('c.pt', 'raw')) == digest(model)
    assert digest(model_from_checkpoint('c.pt', 'ema')) == digest(ema.model)


def test_a_head_that_was_trained_apart_is_refused():
    for which, other in (('raw', 'ema'), ('ema', 'raw')):
        entries = entries_of(*averaged(**SIGMA))
        weights = {'raw': entries['model'], 'ema': entries['ema_model']['shadow_params']}[which]
        weights[HEAD] = weights[EMBEDDING] + 1e-3
        with one_line('a head of its own'):
            model_from_checkpoint(entries, which)
        model_from_checkpoint(entries, other)


@pytest.mark.slow
def test_reading_a_checkpoint_does_not_import_the_compiler():
    """Which takes longer than all else that one token needs."""
    code = (
        'import sys; from anyorder.checkpoint import model_from_checkpoint; '
        'model_from_checkpoint("tests/reference/adaln_small.ckpt.pt"); '
        'assert not {"torch._dynamo", "sympy"} & {*sys.modules}'
    )
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)


# --------------------------------------------------------------------------------------------------
# weights of others

TENSORS = {
    'a': torch.tensor([[1.5, -2.0, 3.0]]),
    'scale': torch.tensor(0.25, dtype=torch.bfloat16),
    'ids': torch.tensor([[3, -1], [2**40, 0]]),
    'mask': torch.tensor([True, False, True]),
    'empty': torch.zeros(0, 4),
}
INDEX = pathlib.Path('model.safetensors.index.json')


@pytest.fixture
def save_file():
    return pytest.importorskip('safetensors.torch').save_file


def check_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_folder_of_weights(save_file, monkeypatch):
    """Safetensors come before pickles, both give the tensors, and stay when a file is overwritten;
    parts are read from the folder alone."""
    assert read_weights('.') == {}
    torch.save({'a': torch.zeros(1), 'step': 3}, 'pytorch_model.bin')
    check_same(read_weights('.'), {'a': torch.zeros(1)})
    save_file(TENSORS, 'model.safetensors')
    weights = read_weights('.')
    check_same(weights, TENSORS)
    with open('model.safetensors', 'rb+') as f:
        f.write(b'\xff' * os.path.getsize('model.safetensors'))
    check_same(weights, TENSORS)
    os.remove('model.safetensors')
    parts = {name: f'model-{len(name) % 2}.safetensors' for name in TENSORS}
    INDEX.write_text(json.dumps({'weight_map': {n: f'../else/{x}' for n, x in parts.items()}}))
    for part in {*parts.values()}:
        save_file({name: p for name, p in TENSORS.items() if parts[name] == part}, part)
    check_same(read_weights('.'), TENSORS)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    for call in (read_weights, lambda path: write_exported(path, make_model(), {}, None, 'raw')):
        with one_line('needs safetensors: pip install'):
            call('.')


@pytest.mark.parametrize(
    'parts, said',
    [
        (['a'], 'weight_map'),
        (None, 'weight_map'),
        ({'a': 5}, 'weight_map'),
        ({'a': 'there', 'b': '/etc/passwd', 'c': '..'}, 'lacks 2 of its 3 .* first is [.][.]'),
        ({'a': 'there', 'b': 'model-2.safetensors'}, 'lacks 1 of its 2 .* model-2.safetensors'),
    ],
)
def test_parts_that_are_not_there_are_one_line(parts, said):
    pathlib.Path('there').touch()
    INDEX.write_text(json.dumps({'weight_map': parts}))
    with one_line(said):
        read_weights('.')


def header(*parts):
    """The JSON of tensors of bytes, each a name and where its numbers start and end."""
    entries = []
    for name, start, end in parts:
        entry = f'{{"dtype": "U8", "shape": [{end - start}], "data_offsets": [{start}, {end}]}}'
        entries.append(f'"{name}": {entry}')
    return f'{{{", ".join(entries)}}}'


WHOLE = header(('a', 0, 8))
BROKEN = [  # a header that does not give each number to one tensor
    header(('a', -8, -4)),
    header(('a', 0, 4), ('b', 2, 8)),
    header(('a', 0, 2), ('b', 4, 8)),
    header(('a', 0, 6)),
    '{}',
    header(('a', 0, 8), ('b', 8, 4)).replace('[-4]', '[0]'),
    header(('a', 0, 4), ('a', 4, 8)),
    WHOLE.replace('[8]', '[2, -1]'),
    WHOLE.replace('U8', 'U12'),
    WHOLE.replace('"a"', '"__metadata__": [], "a"'),
    '\ufeff' + WHOLE,
    '',
]


def test_a_broken_header_is_one_line(save_file):
    for text in (WHOLE, *BROKEN):
        head = text.encode()
        data = len(head).to_bytes(8, 'little') + head + bytes(range(8))
        pathlib.Path('model.safetensors').write_bytes(data)
        if text == WHOLE:
            assert read_weights('.')['a'].tolist() == [*range(8)]
            continue
        with one_line('cannot be read as weights'):
            read_weights('.')


@pytest.mark.parametrize(
    'wrapped',
    [
        'module.h.0.weight',
        '_orig_mod.module.h.0.weight',
        'module._orig_mod.h.0.weight',
        'h.0._orig_mod.weight',
        '_fsdp_wrapped_module.h.0._checkpoint_wrapped_module.weight',
    ],
)
def test_what_wrappers_put_into_names_is_left_out(wrapped):
    weights = {wrapped: torch.arange(3.0), 'modules.weight': torch.ones(1)}
    own = {'h.0.weight': torch.arange(3.0), 'modules.weight': torch.ones(1)}
    check_same(unwrapped(weights), own)
    unwrapped(weights | {'h.0.weight': torch.arange(3.0)})  # twice, and the same
    with one_line('two different weights h.0.weight'):
        unwrapped(weights | {'h.0.weight': torch.ones(3)})


def test_a_weight_is_a_tensor_of_real_numbers():
    ones = torch.ones(3)
    for value in (3, None, ones.to('meta'), ones.to_sparse(), ones.to(torch.complex64)):
        with one_line('module.head .*(int|NoneType|meta|sparse|complex64)'):
            unwrapped({'head': ones, 'module.head': value})


WTE = torch.tensor([1.5, float('nan')])  # of a run that diverged model_from_checkpoint says so
EIGHT = torch.tensor([0.5, 1.1]).to(torch.float8_e4m3fn)


def test_a_tied_matrix_has_one_name_or_two_and_one_value():
    """In any dtypes."""
    for weights in (
        {'wte': WTE},
        {'head': WTE},
        {'wte': WTE, 'head': WTE.double()},
        {'wte': EIGHT.float(), 'head': EIGHT},
    ):
        names = [*weights]
        found = tie(weights, 'head', 'wte', '/x')
        assert torch.equal(found['wte'].nan_to_num(), weights[names[0]].nan_to_num())
        assert [*weights] == names
    assert tie({}, 'head', 'wte', '/x') == {}
    for head in ([1.0, 2.5], [1.0, 2.0, 0.0], EIGHT):
        with one_line('/x has a head of its own'):
            tie(
                {'wte': torch.tensor([0.5, 1.1]), 'head': torch.as_tensor(head)},
                'head',
                'wte',
                '/x',
            )


def test_names_of_the_hub(tmp_path, monkeypatch):
    hub = pytest.importorskip('huggingface_hub')
    asked = []

    def snapshot(repo, allow_patterns):
        asked.append((repo, allow_patterns[-1]))
        assert {'config.json', 'tokenizer.json', 'merges.txt'} <= {*allow_patterns}
        os.makedirs(repo, exist_ok=True)
        if 'xl' in repo:
            (tmp_path / repo / 'model.safetensors').touch()
        return repo

    def fail(repo, file):
        raise OSError('a\nb')

    monkeypatch.setattr(hub, 'snapshot_download', snapshot)
    monkeypatch.setattr(hub, 'hf_hub_download', lambda repo, file: f'{repo}|{file}')
    assert local_path('a/b.pt') == 'a/b.pt'
    assert local_path('hf:me/it/124M/x.pt') == 'me/it|124M/x.pt'
    assert local_path('gpt2-xl') == 'openai-community/gpt2-xl'
    assert local_path('hf:me/mine') == 'me/mine'
    safe, pickled = ('model*.safetensors*', 'pytorch_model*.bin*')
    assert asked == [('openai-community/gpt2-xl', safe), ('me/mine', safe), ('me/mine', pickled)]
    os.makedirs('gpt2')  # what is here comes first
    assert local_path('gpt2') == 'gpt2'
    monkeypatch.setattr(hub, 'hf_hub_download', fail)
    for name in ('hf:me/it/x.pt', 'hf:x.pt'):
        with one_line(name):
            local_path(name)


# --------------------------------------------------------------------------------------------------
# orders of a grid

# a family, its number, and the cells of (3, 4) by 24 numbers, 0 7 14 21 4 11 ..: cells are sorted
# by the first 12, and behind them are those of blocks
GRIDS = [
    ('by_rows', None, '0 1 2 3 7 4 5 6 11 8 9 10'),
    ('by_columns', None, '0 4 8 1 5 9 2 6 10 7 11 3'),
    ('spiral', None, '0 1 2 3 7 11 10 9 8 4 5 6'),
    ('by_squares', 1, '2 9 6 3 10 0 7 4 11 1 8 5'),
    ('by_squares', 2, '8 9 11 10 0 4 1 5 7 2 6 3'),
    ('by_squares', 3, '0 4 1 8 5 2 9 6 10 7 11 3'),
    ('by_squares', 9, '0 7 4 11 1 8 5 2 9 6 3 10'),
]


def test_the_cells_of_a_grid_come_in_an_order_by_hand():
    u = torch.arange(24) * 7 % 24 / 24
    for family, number, cells in GRIDS:
        of_row = u[None] if number else u[None, :12]
        order = getattr(orders_of_grids, family)(of_row, (3, 4), number)
        assert order.tolist() == [[*map(int, cells.split())]]


@pytest.mark.parametrize('kind', ['rows', 'columns', 'spiral', 'blocks2d'])
def test_an_order_of_a_grid_wants_all_cells_of_one(kind):
    Order(kind, shape=(3, 4)).check(12, 99)
    for n, shape in ((12, None), (11, (3, 4))):
        with one_line('prepare the set with --shape=HxW'):
            Order(kind, shape=shape).check(n, 99)
    with one_line('at least 1 cell wide, got 0'):
        Order('blocks2d', 0, shape=(3, 4)).check(12)


# --------------------------------------------------------------------------------------------------
# functions of a user

MINE = """
import torch
open('marker', 'a').write('x')
def rows(u, shape, _):
    return (torch.arange(u.size(1)) // shape[1] + u).argsort(-1)
def shifted(u, n, by):
    return (torch.arange(n) + (by or 0)).expand(len(u), -1) % n
def gap(logits):
    top = logits.softmax(-1).topk(2).values
    return top[:, 0] - top[:, 1]
"""


@pytest.fixture
def marker(empty_folder):
    """The working folder has mine.py, which writes a letter into this file when it is run."""
    pathlib.Path('mine.py').write_text(MINE)
    with mock.patch.dict(SCORES):
        yield pathlib.Path('marker')


def test_a_function_of_a_user_is_an_order_or_a_score_by_its_signature(marker):
    own, built_in = [Order.of(read_order(t), {'shape': [3, 4]}) for t in ('mine.py:rows', 'rows')]
    assert torch.equal(*(order.draw(5, 12, stream(1)) for order in (own, built_in)))
    # a number is the third argument, and the one of the run if it is left out
    kept = read_order('mine.py:shifted:3')
    order = Order.of('own', {'order': kept})
    assert order.draw(1, 5).tolist() == [[3, 4, 0, 1, 2]]
    assert (order.kept, order.name) == (kept, 'mine.py:shifted:3')
    plain, digest = kept[:-2], kept[-14:-2]
    assert Order.of(plain, {'order': kept.replace(digest, '0' * 12)}) == order  # of an edited file
    assert order_and_unmasking('mine.py:shifted:3') == (kept, Given())
    asked, score = order_and_unmasking('mine.py:gap/8:0.9+2')
    how = dict(block_length=8, threshold=0.9, noise=2.0)
    assert (asked, score) == ('l2r', Adaptive(f'mine.py:gap@{digest}', **how))
    assert marker.read_text() == 'x'


WRONG_FUNCTIONS = [  # (what mine.py holds, what is said of mine.py:f)
    ('def f(u, n, by): return u', r'return int64 \(1, 4\), .*0 to 3 once, got t'),
    ('def f(u, n, by): return (u * 0).long()', r'got tensor\(\[\[0, 0, 0, 0\]\]\)'),
    ('def f(u, n, by): return u.argsort(-1)[:, 1:]', 'return int64'),
    ('def f(u, n, by): return None', 'got None'),
    ('def f(u, n, by): raise KeyError("two\\nlines")', r"^the order .*KeyError\('two"),
    ('def f(logits): return logits', r'a float for each row of logits, \(3,\)'),
    ('def f(logits): return logits.argmax(-1)', 'must return a float'),
    ('def f(logits): return logits[:, 0].tolist()', 'must return a float'),
    ('def f(logits): return logits[:, 0] * float("nan")', 'none of them NaN, got t'),
    ('def f(): return 1', 'mine.py has no order f.*a score'),
    ('x = 3', "KeyError.*'f'"),
    ('def f(:', 'SyntaxError'),
]


@pytest.mark.parametrize('content, said', WRONG_FUNCTIONS)
def test_a_function_that_is_none_is_one_line(marker, content, said):
    pathlib.Path('mine.py').write_text(content)
    with one_line(said):
        order, unmasking = order_and_unmasking('mine.py:f')
        Order.of(order, {}).check(4)
        confidence(torch.zeros(3, 5), unmasking.score)


def test_a_checkpoint_and_a_config_file_run_no_file(marker, script):
    """Only a command that is told to runs it; to open and write in other orders does not."""
    kept = read_order('mine.py:shifted:3')
    marker.unlink()
    LOADED.clear()
    names_of.cache_clear()
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint('c.pt', model, tokenizer='bytes', config={'order': kept, 'block_size': 32})
    sample = ['sample.py', '--ckpt=c.pt', '--weights=raw', '--length=9']
    evaluate = ['eval_ppl.py', *sample[1:3], '--datasets=a.txt', '--n_blocks=2']
    pathlib.Path('a.txt').write_text('a few words of text ' * 9)
    pathlib.Path('c.py').write_text("order = 'mine.py:shifted'")
    with one_line('a config file runs no code: .* type --order=mine.py:shifted'):
        start_checkpoint(configure(vars(train), ['c.py']))
    script(*sample, '--order=l2r')
    for command in (sample, evaluate):
        refused = script(*command, code=1).stderr
        assert f'in the order {kept[:-2]}, which no checkpoint runs: add --order=' in refused
        assert refused.count('\n') == 1
    assert not marker.exists()
    assert 'mine.py:shifted:3' in script(*evaluate, '--orders=mine.py:shifted').stdout
    assert '\norder           mine.py:gap, ' in script(*sample, '--order=mine.py:gap').stdout


def test_a_run_has_the_shape_of_its_set_and_goes_on_with_its_file(data, marker):
    typed = '--order=mine.py:rows'
    with one_line('16 positions and shape=None: prepare the set'):
        run(typed)
    write_meta('data/pydocs', replace(read_meta('data/pydocs'), shape=[2, 8]))
    run(typed, '--max_iters=1')
    LOADED.clear()
    with one_line('add --order=PATH/mine.py:rows '):
        resume('--max_iters=2')
    resume('--max_iters=2', typed)
    sample = Writer('out/ckpt.pt').infill('').sample
    assert [p // 8 for p in sample['order']] == [0] * 8 + [1] * 8
    pathlib.Path('mine.py').write_text(MINE + '# another file')
    _, config, changed = start_checkpoint(configure(vars(train), ['--init_from=resume', typed]))
    assert changed == [f'order {Checkpoint("out/ckpt.pt").run["order"]} -> {config.order}']
