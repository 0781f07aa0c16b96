"""The law of a way of writing as an estimate: against a loop without a cache, block by block, cut
off, on disk."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import make_model
from test_estimates import SEED, opened, options, text_of

import eval_ppl
from anyorder.checkpoint import save_checkpoint
from anyorder.generation import Canvas, Drawing, Given, unmasking
from anyorder.generation.fill import fill, steps
from anyorder.generation.unmasking import SCORES, Lossless
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.written import written_nats
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import Order, draw_orders
from anyorder.tokens.blocks import Batch
from anyorder.tokens.prepared import prepare
from anyorder.tokens.tokenizers import Bytes
from eval_ppl import choose_estimates, evaluate, read_ways, report

BLOCKS = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(1))
NETWORKS = [
    {},
    {'attention': 'mixed'},
    {'attention': 'bidirectional'},
    {'target_position': 'two_stream'},
]


def made(*args, attention='causal', order=None, drawing=None):
    """The estimates of the orders that the command line asks for, of a model of 9 positions."""
    c = options(*args)
    checkpoint = SimpleNamespace(**vars(opened(order, attention=attention)), run={})
    ways = read_ways(c)
    if drawing:
        ways = [way._replace(drawing=drawing) for way in ways]
    return choose_estimates([], ways, ['words'], c, checkpoint)


def measured(model, found, journal=None):
    """{label: row} of these estimates."""
    rows = evaluate(model, text_of(BLOCKS), found, journal or Journal('', {}))
    return {row['estimate']: row for part in rows.values() for row in part}


def naive(model, idx, order, n_steps, score, temperature=1.0, top_p=1.0, block_length=9):
    """-log q of a row (N,), by one prediction from scratch a step.

    score  (logits, token): what comes first"""
    left = order.tolist()
    nats = 0.0
    known = []
    ends = [9 * k // n_steps for k in range(1, n_steps + 1)]
    for end in ends:
        logits = model.predict(idx[None], torch.tensor([known + left]), len(known))[0]
        among = left[: block_length - len(known) % block_length]
        scores = [float(score(logits[j : j + 1], idx[i : i + 1])) for j, i in enumerate(among)]
        best = sorted(range(len(among)), key=lambda j: -scores[j])[: end - len(known)]
        for j in best:
            p = (logits[j] / temperature).softmax(-1)
            nats -= cut_logprob(p, idx[among[j]], top_p)
        known += [among[j] for j in best]
        left = [i for i in left if i not in known]
    return nats


def cut_logprob(p, token, top_p):
    """log of the probability of a token where the most likely ones that reach top_p are kept."""
    likelier = p[p > p[token]].sum()
    if likelier >= top_p:
        return -math.inf
    kept = p.sort(descending=True).values
    kept = kept[kept.cumsum(0) - kept < top_p].sum()
    return float((p[token] / kept).log())


def score_of(policy):
    return lambda logits, _: SCORES[policy](logits)


@pytest.mark.parametrize('network', NETWORKS, ids=str)
@pytest.mark.parametrize(
    'how', [{}, dict(n_steps=3), dict(n_steps=3, block_length=3), dict(temperature=0.7)], ids=str
)
def test_a_row_is_the_loop_without_a_cache(network, how):
    model = make_model(**network)
    asked = [f'--{name}={value}' for name, value in how.items() if name != 'block_length']
    block = f'/{how["block_length"]}' if 'block_length' in how else ''
    for policy in SCORES:
        (it,) = made(
            f'--orders={policy}{block}', *asked, attention=network.get('attention', 'causal')
        )
        orders = torch.arange(9).expand(2, 9)
        if 'block_length' not in how:
            orders = draw_orders([2, 0], 9, 1, SEED)[:, 0]
        with_steps = {'n_steps': 9} | how
        want = []
        for b, order in zip((2, 0), orders):
            want.append(naive(model, BLOCKS[b], order, score=score_of(policy), **with_steps))
        nats, cut, passes = it.nats(model, BLOCKS, [2, 0]).T
        torch.testing.assert_close(nats, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-9)
        assert not cut.any()
        assert (passes == how.get('n_steps', 9)).all()


def test_one_token_a_step_in_a_given_order_is_the_plain_nll():
    """In as many passes as tokens, by lossless unmasking, and by one pass: the same."""
    model = make_model()
    plain, by_steps = made('--orders=random', '--n_orders=2', '--n_steps=0,9')
    want = plain.nats(model, BLOCKS, [3, 1])
    nats, cut, passes = by_steps.nats(model, BLOCKS, [3, 1]).view(2, 2, 3).unbind(2)
    torch.testing.assert_close(nats, want, rtol=0, atol=1e-10)
    orders = draw_orders([3, 1], 9, 2, SEED).flatten(0, 1)
    repeated = BLOCKS[[3, 1]].repeat_interleave(2, 0)
    for window in (1, 4):
        batch = Batch(repeated, orders, n_given=torch.zeros(4, dtype=torch.long))
        unmasking = Lossless(window)
        found = written_nats(model, batch, range(4), unmasking, Drawing(scores=True), 3)
        torch.testing.assert_close(found[:, 0].view(2, 2), want, rtol=0, atol=1e-10)
    assert not cut.any()
    assert (passes == 9).all()


SCORED = [
    Drawing(scores=True),
    Drawing(scores=True, temperature=0.7, top_k=5, presence_penalty=0.5),
    Drawing(scores=True, top_p=0.8, cfg_scale=0.8),
]


@pytest.mark.parametrize('window', [9, 2, 1])
@pytest.mark.parametrize('use_cache', [True, False])
@pytest.mark.parametrize('drawing', SCORED, ids=str)
@pytest.mark.parametrize('network', [NETWORKS[0], NETWORKS[3]], ids=str)
def test_a_text_is_scored_in_passes_of_many_tokens(
    network, drawing, use_cache, window, monkeypatch
):
    """By the law of one token a step, which listed ends run step by step."""
    model = make_model(**network)
    monkeypatch.setattr(unmasking, 'SCORED', window * len(BLOCKS) * model.config.vocab_size)
    orders = draw_orders(range(4), 9, 1, SEED)[:, 0]
    prompts = torch.tensor([0, 3, 7, 9])
    found = []
    for ways in (Given(schedule=list(range(1, 10))), Given(n_steps=9)):
        canvas = Canvas(BLOCKS, orders, prompts, range(4), torch.tensor([9, 8, 9, 9]))
        n_passes = sum(1 for _ in steps(model, canvas, ways, drawing, use_cache))
        found.append((canvas.logprob, canvas.step, canvas.idx, n_passes))
    stepwise, at_once = found
    torch.testing.assert_close(at_once[0], stepwise[0], rtol=0, atol=1e-12)
    assert at_once[1].equal(stepwise[1]) and at_once[2].equal(BLOCKS)
    assert (stepwise[3], at_once[3]) == (9, -(-9 // window))


def test_what_passes_cost_is_paired_block_by_block():
    model = make_model()
    found = made('--orders=random,margin,margin:.5', '--n_orders=2', '--n_steps=3,0')
    journal = Journal('', {})
    text = text_of(BLOCKS)
    rows = measured(model, found, journal)
    assert list(rows) == [
        'any order x 2',
        'any order in 3 x 2',
        'margin',
        'margin in 3',
        'margin >= 0.5',
    ]
    one, three = (it.nats(model, BLOCKS, range(4)) for it in found[2:4])
    cost = (three - one)[:, 0] / 9
    assert math.isclose(rows['margin in 3']['cost'], cost.mean(), rel_tol=1e-9)
    assert math.isclose(rows['margin in 3']['cost_stderr'], cost.std() / 2, rel_tol=1e-9)
    assert rows['margin in 3']['passes'] == 3
    assert 3 <= rows['margin >= 0.5']['passes'] <= 9
    assert len(journal.done) == 5 * 4  # what they are compared with was not run again
    said = report(text, {it: [row] for it, row in zip(found, rows.values(), strict=True)}, Bytes())
    assert 'bounds, by means over what is drawn: any order x 2, any order in 3 x 2\n' in said
    assert said.count('more than one token a step, paired by block, in ') == 3


def test_a_rule_is_compared_with_one_token_a_step_by_its_score():
    model = make_model()
    found = made('--orders=top_prob,factor:2,entropy/3,eb/3:1.5,eb,klass,l2r,dilated:4')
    rows = measured(model, found)
    pairs = {'factor:2': 'top_prob', 'eb/3:1.5': 'entropy/3', 'dilated:4': 'left to right'}
    assert {*rows} == {*pairs.keys(), *pairs.values(), 'eb:0.1', 'klass:0.9'}
    for name, one in pairs.items():
        cost = rows[name]['nats_per_token'] - rows[one]['nats_per_token']
        assert math.isclose(rows[name]['cost'], cost, abs_tol=1e-9)
        assert 1 < rows[name]['passes'] < 9
        assert not rows[name]['bound']
    assert 'cost' not in rows['eb:0.1']


def test_orders_that_all_blocks_share_have_an_error_of_their_own():
    *_, it = made('--orders=swaps:3', '--n_orders=2', '--n_steps=0,3')
    # means 3 and 7: their error is 2
    nats = torch.tensor([[1, 0, 3, 3, 0, 3, 9], [5, 0, 3, 11, 0, 3, 9]]).double()
    (row,) = it.rows(nats, text_of(BLOCKS[:2]))
    assert math.isclose(row['orders_stderr'], 2 / 9)
    said = it.remarks([row], text_of(BLOCKS))[0]
    assert '± 0.2222 nats/token between its orders, which ± above leaves out' in said


def test_draws_of_a_block_are_no_error_between_orders():
    for order in ('l2r', 'margin'):
        (it,) = made(f'--orders={order}', '--n_steps=3', '--unmask=binomial', '--n_orders=2')
        (row,) = it.rows(it.nats(make_model(), BLOCKS, [0, 1]), text_of(BLOCKS[:2]))
        assert not {'orders_stderr', 'spread'} & {*row}


def test_a_given_order_is_tempered_by_the_law_of_writing():
    model = make_model()
    (it,) = made('--orders=l2r', '--temperature=.5')
    assert (it.name, it.label) == ('written', 'left to right, tempered')
    want = naive(model, BLOCKS[2], torch.arange(9), 9, lambda logits, _: 0, temperature=0.5)
    nats = it.nats(model, BLOCKS, [2])[0, 0]
    assert math.isclose(nats, want, rel_tol=1e-9)


def test_an_encoder_is_compared_with_exact_nats():
    (alone,) = made('--orders=random', attention='bidirectional')
    one, three = made('--orders=random', '--n_steps=0,3', attention='bidirectional')
    assert alone.name == 'any'
    assert one.name == three.name == 'written'
    assert three.one is one
    assert (one.label, three.label) == ('any order, exact', 'any order in 3')
    plain, _ = made('--orders=l2r', '--n_steps=0,3', attention='bidirectional')
    assert plain.name == 'l2r'  # which is exact


def test_truths_that_are_cut_off_are_counted():
    model = make_model()
    cut_off = Drawing(top_k=3, scores=True)
    (it,) = made('--orders=margin', drawing=cut_off)
    nats, cut, _ = it.nats(model, BLOCKS, range(4)).T
    canvas = Canvas(BLOCKS, draw_orders(range(4), 9, 1, SEED)[:, 0], 0, range(4))
    fill(model, canvas, it.unmasking, it.drawing)
    kept = canvas.logprob.where(canvas.logprob.isfinite(), 0)
    torch.testing.assert_close(nats, -kept.sum(1), rtol=0, atol=1e-10)
    assert torch.equal(it.totals(model, text_of(BLOCKS), Journal('', {})).isinf(), cut > 0)
    row = measured(model, [it])['margin, tempered']
    assert row['nats_per_token'] == row['perplexity'] == math.inf
    assert row['stderr'] is None
    assert row['cut'] == cut.sum() > 0
    assert math.isclose(row['kept_nats'], nats.sum() / (36 - cut.sum()))
    text = report(text_of(BLOCKS), {it: [row]}, SimpleNamespace(n_tokens=11, n_bytes=None))
    assert f'margin, tempered: {int(cut.sum())} of 36 true tokens are cut off, ' in text
    assert ' inf ' in text
    beside = measured(model, made('--orders=margin', '--n_steps=0,3', drawing=cut_off))
    assert not any('cost' in row for row in beside.values())


def test_the_law_of_drawn_is_a_bound():
    model = make_model()
    rows = measured(model, made('--orders=drawn,drawn/3', '--n_steps=0,3', '--n_orders=2'))
    assert {*rows} == {f'{name} x 2' for name in ('drawn', 'drawn in 3', 'drawn/3', 'drawn/3 in 3')}
    assert all(row['bound'] for row in rows.values())
    assert rows['drawn in 3 x 2']['passes'] == 3


@pytest.mark.parametrize(
    'order, label', [('margin', 'margin'), ('l2r', 'left to right'), ('margin/8', 'margin/8')]
)
def test_numbers_of_tokens_that_are_drawn_are_a_bound(order, label):
    """In orders that are drawn and in orders that are not."""
    (it,) = made(f'--orders={order}', '--n_steps=4', '--unmask=binomial', '--n_orders=2')
    one, other = it.nats(make_model(), BLOCKS, [0]).view(2, 3)
    (row,) = it.rows(it.nats(make_model(), BLOCKS, [0, 1]), text_of(BLOCKS[:2]))
    assert one[0] != other[0]
    assert row['estimate'] == f'{label} in 4 x 2'
    assert row['bound']


def test_given_tokens_cost_nothing():
    model = make_model()
    (it,) = made('--orders=entropy')
    given = torch.zeros(4, 9, dtype=torch.bool)
    given[1, 1:] = True
    last = torch.tensor([[*range(1, 9), 0]])
    idx = BLOCKS[1:2]  # what is known is read from left to right
    want = -model.predict(idx, last, 8)[0, 0].log_softmax(-1)[idx[0, 0]]
    torch.testing.assert_close(it.nats(model, BLOCKS, [1], given)[0, 0], want, rtol=0, atol=1e-10)


@pytest.mark.parametrize('policy', SCORES)
def test_known_tokens_are_read_as_where_a_text_is_written(policy):
    model = make_model()
    (it,) = made(f'--orders={policy}')
    given = torch.rand(4, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    canvas = Canvas.of_texts([*zip(BLOCKS.tolist(), given.tolist())], Order('random'), 5)
    fill(model, canvas, it.unmasking, it.drawing)
    found = it.nats(model, BLOCKS, [*range(4)], given)[:, 0]
    torch.testing.assert_close(found, -canvas.logprob.sum(1), rtol=0, atol=1e-10)


# --------------------------------------------------------------------------------------------------
# the command


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('written')
    (folder / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    prepare(
        'text', folder / 'data', source=str(folder / 'words.txt'), tokenizer='bytes', name='words'
    )
    save_checkpoint(
        folder / 'ckpt.pt',
        make_model(block_size=16, vocab_size=320, n_tokens=257).float(),
        tokenizer='bytes',
        config={'dataset': 'words', 'data_dir': str(folder / 'data')},
    )
    return folder


EVERY = ['--weights=raw', '--n_blocks=5', '--orders=random,margin/8,margin/8:.02', '--n_steps=0,4']


@pytest.mark.slow
def test_rows_do_not_depend_on_batch_processes_or_being_killed(script, forked, folder, tmp_path):
    said = script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=a.json').stdout
    script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=b.json', '--batch_size=3')
    lines = (tmp_path / 'a.json.blocks.jsonl').read_text().splitlines(True)
    (tmp_path / 'c.json.blocks.jsonl').write_text(''.join(lines[:1] + lines[1::2]))
    command = options(f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=c.json')
    first, second = forked(*2 * [lambda: eval_ppl.main(command)])
    assert (first.code, second.code) == (0, 0), (first.said, second.said)
    a, b, c = (json.loads((tmp_path / f'{name}.json').read_text())['results'] for name in 'abc')
    names = ['any order x 1', 'any order in 4 x 1', 'margin/8', 'margin/8 in 4', 'margin/8 >= 0.02']
    assert [row['estimate'] for row in a] == names
    for rows in (b, c):
        for row, again in zip(a, rows, strict=True):
            assert math.isclose(row['nats_per_token'], again['nats_per_token'], rel_tol=1e-5)
    assert all(f'\n{name} ' in said for name in names)


@pytest.mark.parametrize(
    'args, said',
    [
        (['--orders=margin', '--temperature=0'], 'every other one 0'),
        (['--orders=margin:2'], 'threshold must be a probability'),
        (['--orders=margin/0'], 'got 0'),
        (['--orders=margin/17'], 'at most the 16'),
        (['--orders=l2r/4'], "'l2r/4' is no order"),
        (['--orders=margin+.5'], 'noise is drawn, so that orders=margin+.5 has no likelihood'),
        (['--orders=best'], "'best' is no order"),
        (['--orders=entropy:.5'], 'top_prob'),
        (['--orders=factor:0'], 'a factor above 0'),
        (['--orders=eb+.5'], 'noise is drawn'),
        (['--orders=klass:2'], 'a confidence from 0 to 1'),
        (['--orders=l2r,pc_sampler'], 'pc_sampler wants to know how often each token'),
        (['--orders=dilated/8'], 'dilated:BLOCK_LENGTH'),
        (['--orders=drawn:.5'], 'no number'),
        (['--orders=margin', '--unmask=lossless'], 'the law of one token a step, n_steps=0'),
        (['--orders=margin', '--unmask=binomial'], 'n_steps from 1'),
        (['--orders=margin', '--n_steps=-1'], 'n_steps must'),
        (['--estimates=l2r', '--temperature=.5'], 'name some, as --orders=l2r'),
        (['--n_steps=8'], 'name some, as'),
    ],
)
def test_wrong_input_is_one_line(folder, args, said):
    with pytest.raises(SystemExit) as e, one_line_errors():
        eval_ppl.main(options(f'--ckpt={folder}/ckpt.pt', '--weights=raw', *args))
    assert said in e.value.code
    assert '\n' not in e.value.code
