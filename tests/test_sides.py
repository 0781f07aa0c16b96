"""The likelihood of texts that a model wrote itself, from two sides: by enumeration, of every
sampler, and by the commands."""

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import make_model, one_line
from test_own_law import EVERY, choosy, scored

import eval_ppl
from anyorder.generation import Canvas, Drawing, Lossless
from anyorder.generation.fill import fill
from anyorder.generation.way import Way
from anyorder.likelihood.ensemble import ensemble_nll
from anyorder.likelihood.estimates import ESTIMATES
from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.likelihood.sampled import Sampled
from anyorder.likelihood.sides import both_sides, side_nats
from anyorder.seeds import derive_seed
from anyorder.tokens.tokenizers import Bytes

ORDERS = torch.tensor([*itertools.permutations(range(3))])


def toy():
    """A decoder of three tokens at three positions."""
    return make_model(1, block_size=3, vocab_size=3)


def nats_by_order():
    """(27, 6): -log p(x | sigma) of every text in every order."""
    model = toy()
    columns = [model(EVERY, order.expand(27, 3)).sum(1) for order in ORDERS]
    return torch.stack(columns, 1)


# ---- the two sides by enumeration


def test_the_sides_enclose_every_text():
    """E over all tuples of orders, the first by p(order | text): exact, and closer with more."""
    nats = nats_by_order()
    exact = ensemble_nll(-nats)
    wrote = (-nats).softmax(1)  # p(order | text)
    torch.testing.assert_close(exact.neg().exp().sum(), torch.tensor(1.0).double())
    last = None
    for k in (1, 2):
        least = most = torch.zeros(27).double()
        for orders in itertools.product(range(6), repeat=k + 1):
            low, high = both_sides(nats[:, list(orders)], k)
            weight = wrote[:, orders[0]] / 6**k
            least = least + weight * low
            most = most + weight * high
        assert (least < exact).all()
        assert (exact < most).all()
        if last is not None:
            assert (least > last[0]).all()
            assert (most < last[1]).all()
        last = least, most


def test_the_sides_meet_with_all_orders():
    nats = nats_by_order()
    exact = ensemble_nll(-nats)
    many = nats.repeat(1, 2_000)
    least, most = both_sides(torch.cat([nats[:, :1], many], 1), 12_000)
    torch.testing.assert_close(most, exact, rtol=0, atol=1e-10)
    torch.testing.assert_close(least, exact, rtol=0, atol=2e-3)


# ---- every sampler

ONE = dict(n_steps=3)
IN_TWO = dict(n_steps=2)
LOSSLESS = dict(n_steps=3, unmask='lossless', window=2)
BINOMIAL = dict(n_steps=2, unmask='binomial')
# [(weight, the ends of all steps)]: how many of three blanks a binomial step of two reveals
BINOMIAL_ENDS = [(2, [3]), (3, [1, 3]), (3, [2, 3])]


def way_of(options, temperature=1.0):
    return Way.of({}, 'random', temperature, score=True, **options)


def samples_of(canvas, first_seed=0):
    """What a file keeps of the rows of a canvas that is filled."""
    samples = []
    for r, (tokens, order, step, logprob) in enumerate(canvas.lists(), first_seed):
        n_blanks = sum(s >= 0 for s in step)
        lists = {'tokens': tokens, 'order': order, 'step': step, 'blanks': n_blanks}
        samples.append(lists | {'nats': -sum(logprob), 'seed': r})
    return samples


def sampled(model, options, n, known=0, temperature=1.0):
    """n texts as sample.py writes them, the token at position 2 known or not."""
    way = way_of(options)
    prompts = [([0, 0, r % 3], [False, False, bool(known)]) for r in range(n)]
    canvas = Canvas.of_texts(prompts, way.order, 0)
    fill(model, canvas, way.unmasking, Drawing(temperature))
    entries = {'config': {'ckpt': 'x.pt', 'weights': 'ema'}, 'dtype': 'float32'}
    return Sampled('x.json', '', entries, samples_of(canvas))


def exact_nats(model, options, known=0, temperature=1.0):
    """-log p(x) of EVERY text: the mean over all orders, and over the numbers a step reveals."""
    laws = [(1, ONE if options is LOSSLESS else options)]
    if options is BINOMIAL:
        laws = [(weight, dict(schedule=ends)) for weight, ends in BINOMIAL_ENDS]
    orders = [order for order in ORDERS if not known or order[0] == 2]
    p = total = 0
    for (weight, how), order in itertools.product(laws, orders):
        every_order = order.expand(27, 3)
        canvas = scored(model, EVERY, every_order, known, range(27), how, temperature=temperature)
        p = p + weight * canvas.logprob.sum(1).exp()
        total += weight
    return -(p / total).log()


def ratios(model, options, known=0, drawn_at=1.0, temperature=1.0):
    """p(x) / mean_k p(x | r_k) by the draw that wrote x and a fresh one, mean_k p(x | r_k) / p(x)
    by two fresh ones, and the first by a fresh one alone; (n,) each, of n texts.

    The mean of the first two is 1 under the right law."""
    n = 500
    written = sampled(model, options, n, known, drawn_at)
    law = way_of(ONE if options is LOSSLESS else options, temperature)
    nats = side_nats(model, written, law, range(n), 2, 1337, n)
    least, most = both_sides(nats, 2)
    wrong, _ = both_sides(nats[:, 1:], 1)
    tokens = torch.tensor([sample['tokens'] for sample in written.samples])
    exact = exact_nats(model, options, known, temperature)[tokens @ torch.tensor([9, 3, 1])]
    return (least - exact).exp(), (exact - most).exp(), (wrong - exact).exp()


def errors_from_1(values):
    """How many standard errors their mean is away from 1."""
    return float((values.mean() - 1) / values.std() * len(values) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    'network, options, how',
    [
        ('decoder', ONE, {}),
        ('decoder', IN_TWO, {}),
        ('decoder', BINOMIAL, {}),
        ('decoder', LOSSLESS, {}),
        ('decoder', ONE, dict(known=1)),
        ('decoder', ONE, dict(drawn_at=0.5, temperature=0.5)),
        ('encoder', ONE, {}),
        ('encoder', BINOMIAL, {}),
    ],
)
def test_every_sampler_has_the_law_by_which_it_is_measured(network, options, how):
    least, most, _ = ratios(choosy(network), options, **how)
    assert abs(errors_from_1(least)) < 4
    assert abs(errors_from_1(most)) < 4


@pytest.mark.slow
def test_a_wrong_law_falls_outside():
    """Tokens drawn at temperature 0.5 and measured at 1; and orders that did not write the text."""
    model = choosy('decoder')
    cold, _, _ = ratios(model, ONE, drawn_at=0.5)
    assert abs(errors_from_1(cold)) > 6
    _, _, wrong_draws = ratios(model, ONE)
    assert errors_from_1(wrong_draws) > 6


# ---- the nats of draws


@pytest.mark.parametrize('known', [0, 1])
def test_one_pass_gives_what_the_steps_give(known):
    model = toy()
    written = sampled(model, ONE, 5, known)
    one_pass = side_nats(model, written, way_of(ONE), range(5), 3, 1337, 4)
    ends = [1, 2] if known else [1, 2, 3]
    steps = side_nats(model, written, way_of(dict(schedule=ends)), range(5), 3, 1337, 20)
    torch.testing.assert_close(one_pass, steps, rtol=0, atol=1e-10)
    own = torch.tensor([sample['nats'] for sample in written.samples], dtype=torch.float64)
    torch.testing.assert_close(one_pass[:, 0], own, rtol=0, atol=1e-10)
    part = side_nats(model, written, way_of(ONE), [3, 1], 2, 1337, 4)
    torch.testing.assert_close(part, one_pass[[3, 1], :3], rtol=0, atol=1e-10)
    assert len(one_pass.unique(dim=1).T) > 1


def test_texts_of_several_lengths_and_their_fresh_orders_by_hand():
    model = make_model()
    law = way_of(dict(n_steps=9))
    texts = [([1, 2, 3, 4, 5], [False, True, False, False, True]), ([6, 7, 8], 3 * [False])]
    canvas = Canvas.of_texts(texts, law.order, 3)
    fill(model, canvas, law.unmasking, law.drawing)
    written = Sampled('x.json', '', {'dtype': 'float32'}, samples_of(canvas, 3))
    nats = side_nats(model, written, law, [0, 1], 2, 5, 9)
    for b, (tokens, known) in enumerate(texts):
        for k in range(2):
            seed = derive_seed(5, 'sides', b, k)
            order = Canvas.of_texts([(tokens, known)], law.order, [seed]).order
            n_given = sum(known)
            assert order[0, :n_given].tolist() == [
                p for p, is_known in enumerate(known) if is_known
            ]
            nll = model(torch.tensor([tokens]), order)[0, n_given:]
            torch.testing.assert_close(nats[b, 1 + k], nll.sum(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    'name, value, said',
    [
        ('nats', 1.0, '--ckpt=x.pt --weights=ema'),
        ('order', [0, 2, 1], 'their seed draws'),
        ('order', [1, 0, 2], 'their seed draws'),
    ],
)
def test_a_file_of_other_weights_or_other_draws_is_refused(name, value, said):
    model = toy()
    written = sampled(model, ONE, 3)
    samples = [sample | {name: value} for sample in written.samples]
    with one_line(said):
        side_nats(model, replace(written, samples=samples), way_of(ONE), [0, 1, 2], 1, 5, 9)


# ---- the commands


@pytest.fixture
def written(script, ckpt, tmp_path):
    """written('--order=random', ...): the path of a file of samples, and what it holds."""

    def write(*args):
        script('sample.py', f'--ckpt={ckpt}', '--weights=raw', '--out=texts.json', *args)
        path = tmp_path / 'texts.json'
        return str(path), json.loads(path.read_text())

    return write


@pytest.fixture
def measured(script, ckpt, tmp_path):
    """measured(path, '--estimates=sides', ...): the rows that eval_ppl.py finds."""

    def measure(path, *args):
        args = (f'--ckpt={ckpt}', '--weights=raw', f'--datasets={path}', '--out=table.json', *args)
        script('eval_ppl.py', *args)
        return json.loads((tmp_path / 'table.json').read_text())['results']

    return measure


def test_the_table_has_a_row_a_side(tmp_path, written, measured):
    path, result = written('--prompt=ab[[3]]c[[2-3]] d', '--order=random', '--n_samples=3')
    how = '--estimates=sides,l2r', '--n_orders=3'
    rows = measured(path, *how)
    assert measured(path, *how) == rows  # from the journal
    sides = [row for row in rows if row['kind'] == 'sides']
    assert [row['n'] for row in sides] == [1, 1, 2, 2, 3, 3]
    assert len({row['estimate'] for row in sides}) == 6
    samples = result['samples']
    n_blanks = sum(sample['blanks'] for sample in samples)
    assert {row['tokens'] for row in rows} == {row['bytes'] for row in rows} == {n_blanks}
    nats = sum(sample['nats'] for sample in samples)
    assert math.isclose(sides[0]['nats_per_token'], nats / n_blanks, rel_tol=1e-4)
    for least, most in zip(sides[::2], sides[1::2]):
        gap = most['nats_per_token'] - least['nats_per_token']
        assert math.isclose(gap, least['gap'], abs_tol=1e-9)
        assert most['gap_stderr'] == least['gap_stderr'] > 0

    # The journal tells files of the same texts apart
    (tmp_path / 'others.json').write_text(json.dumps(result, indent=1))
    files = [open_corpus(name, Cut(32), Bytes(), '') for name in (path, 'others.json', path)]
    assert torch.equal(files[0].blocks, files[1].blocks)
    assert len({file.digest for file in files}) == 2


@pytest.mark.parametrize(
    'nats, n_lines', [([[1, 3, 5], [2, 2, 6]], 1), ([[9, 3, 1], [8, 2, 2]], 2)]
)
def test_rows_by_hand(nats, n_lines):
    """Two texts of four tokens: the gap is paired by text, and rows that change places are told."""
    sides = ESTIMATES['sides'](SimpleNamespace(n_orders=2), OPENED)
    text = SimpleNamespace(n_blanks=4, n_bytes=4, name='x.json', by_block=lambda x: x)
    rows = sides.rows(torch.tensor(nats, dtype=torch.float64), text)
    least, most = rows[:2]
    own, fresh, _ = zip(*nats)
    assert math.isclose(least['nats_per_token'], sum(own) / 8)
    assert math.isclose(most['nats_per_token'], sum(fresh) / 8)
    gaps = [after - before for before, after in zip(own, fresh)]
    assert math.isclose(least['gap'], sum(gaps) / 8)
    assert math.isclose(least['gap_stderr'], abs(gaps[0] - gaps[1]) / 2 / 4, abs_tol=1e-12)
    rows[-1]['gap_stderr'] = 1e-9
    assert len(sides.remarks(rows, text)) == n_lines


OPENED = SimpleNamespace(entries={'iter_num': 7}, run={})


def test_the_choice_of_the_model_is_exact(written, measured):
    """Of such texts the file gives the number that eval_ppl.py finds, and sides says how to."""
    path, result = written('--prompt=ab[[3]]c[[9]]', '--order=margin', '--n_steps=4')
    with one_line('--orders=margin --n_steps=4 '):
        Sampled.read(path).check(OPENED, 'raw')
    (row,) = measured(path, '--orders=margin', '--n_steps=4')
    nats = sum(sample['nats'] for sample in result['samples'])
    assert math.isclose(row['nats_per_token'] * row['tokens'], nats, rel_tol=1e-4)


@pytest.fixture
def edited(written, tmp_path):
    """edited(samples={...}, config={...}, ...): the path of a file of samples with other values in
    each sample, in its options, and beside them."""
    _, result = written('--length=6', '--n_samples=2', '--order=random')

    def edit(samples=(), config=(), **entries):
        found = [sample | dict(samples) for sample in result['samples']]
        options = result['config'] | dict(config)
        path = tmp_path / 'edited.json'
        path.write_text(json.dumps(result | {'samples': found, 'config': options} | entries))
        return str(path)

    return edit


def test_a_wrong_file_is_one_line(edited, tmp_path):
    Sampled.read(edited()).check(OPENED, 'raw')
    rule = 'cannot be read as texts with the orders that wrote them'
    for change in (
        dict(samples={'order': [0, 1, 2, 3, 4, 4]}),
        dict(samples={'order': None}),
        dict(samples={'step': 6 * [-1]}),
        dict(samples={'step': [0]}),
        dict(samples={'tokens': 6 * [-1]}),
        dict(samples={'tokens': 5 * [1]}),
        dict(samples={'blanks': 5}),
        dict(samples={'seed': '7'}),
        dict(samples={'nats': None}),
        dict(config={'order': 3}),
        dict(config={'n_steps': None}),
    ):
        with one_line(rule):
            Sampled.read(edited(**change))
    path = tmp_path / 'other.json'
    for text in ('', '[]', '{"samples": []}', '{"samples": [{"tokens": [1, 2]}], "config": {}}'):
        path.write_text(text)
        with one_line(rule):
            Sampled.read(str(path))


def test_texts_of_another_tokenizer_or_longer_than_the_model_are_refused(edited):
    for change in (dict(samples={'tokens': 6 * [257]}), dict(tokenizer='gpt2')):
        with one_line('the model has 257 bytes tokens'):
            Sampled.read(edited(**change)).check_tokens(Bytes(), 32)
    with one_line('a text of 6 tokens'):
        Sampled.read(edited()).check_tokens(Bytes(), 5)


def test_texts_without_such_a_law_are_refused(edited):
    for change, said in (
        (dict(iter_num=8), '--weights=raw'),
        (dict(config={'weights': 'ema'}), '--weights=ema'),
        (dict(config={'top_k': 3}), 'top_k=3'),
        (dict(config={'top_p': 0.5}), 'top_p=0.5'),
        (dict(config={'min_p': 0.5}), 'min_p=0.5'),
        (dict(config={'stop': 'a'}), "stop='a'"),
        (dict(config={'revise': 2}), 'revise=2'),
        (dict(config={'score': True}), 'score=True'),
        (dict(config={'allowed': 'x.npy'}), "allowed='x.npy'"),
        (dict(samples={'log_weight': 0.0}), 'match a pattern'),
        (dict(config={'temperature': 0}), 'temperature 0'),
        (dict(config={'order': 'l2r'}), '--orders=l2r --n_steps=1024'),
        (dict(config={'order': 'l2r', 'unmask': 'lossless'}), '--orders=l2r --n_steps=0'),
        (dict(config={'order': 'l2r', 'schedule': 'cosine'}), 'sample.py --score'),
        (dict(config={'order': 'margin/4'}), '--orders=margin/4'),
        (dict(config={'order': 'l2r', 'presence_penalty': 1}), 'sample.py --score'),
        (dict(config={'order': 'eb:0.1'}), '--orders=eb:0.1'),
        (dict(config={'order': 'drawn', 'unmask': 'binomial'}), 'measures a bound'),
        (dict(config={'order': 'x.py:f'}), 'runs no code'),
        (dict(config={'order': 'x.json'}, order=[1, 0]), 'one exact likelihood'),
    ):
        with one_line(said):
            Sampled.read(edited(**change)).check(OPENED, 'raw')


@pytest.mark.parametrize(
    'config',
    [
        {'order': 'margin+0.5'},
        {'order': 'l2r', 'unmask': 'binomial', 'n_steps': 3},
        {'order': 'few:2'},
        {'unmask': 'lossless:4'},
        {'temperature': 0.5},
    ],
)
def test_what_draws_more_than_tokens_has_two_sides(config):
    given = dict(order='random', temperature=1, n_steps=8, schedule='linear', unmask='fixed')
    given |= {'weights': 'raw'}
    written = Sampled('x.json', '', {'config': given | config, 'order': '', 'iter_num': 7}, [])
    written.check(OPENED, 'raw')
    law = written.law(OPENED)
    assert not isinstance(law.unmasking, Lossless)
    assert law.drawing == Drawing(config.get('temperature', 1), scores=True)


def test_sides_are_of_files_of_samples():
    slots = SimpleNamespace(masked_loss=False)
    with one_line('sides is measured on texts that the model wrote'):
        eval_ppl.check_estimate(ESTIMATES['sides'], ['pydocs'], slots)
    eval_ppl.check_estimate(ESTIMATES['sides'], ['pydocs', 'x.json'], slots)


def test_some_of_the_texts_are_spread_evenly():
    written = Sampled('x.json', '', {}, [*range(10)])
    assert written.spread(4).samples == [0, 2, 5, 7]
    assert written.spread(0).samples == written.spread(11).samples == [*range(10)]
