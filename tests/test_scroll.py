"""The scroll: seams of long texts are exact, what a stretch costs, where a text stops, what the watcher sees."""

import copy
import itertools
import math

import pytest
import torch
from conftest import make_model

from anyorder.generation.canvas import Canvas, sample_of
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.scroll import Scroll, end_of
from anyorder.generation.unmasking import Adaptive, Given, Lossless
from anyorder.generation.way import Page, Way
from anyorder.orders import Order
from anyorder.seeds import derive_seed
from anyorder.tokens.prompts import parse_prompt
from anyorder.tokens.tokenizers import Bytes

L2R = Order('l2r')


def ascii_model(**config):
    return make_model(**dict(block_size=8, vocab_size=128) | config)


def texts(*prompts, length=20):
    return [parse_prompt(prompt, Bytes(), length).lay_out()[:2] for prompt in prompts]


ONE_BY_ONE = Given(99)
PLAIN = Drawing()


def write(
    model,
    rows,
    order=L2R,
    how=None,
    seed=5,
    drawing=PLAIN,
    look=None,
    with_drafts=False,
    n_before=0,
    **page,
):
    """The samples of `rows` that are written in this way, on a page of these fields."""
    if isinstance(page.get('stop'), str):
        page['stop'] = [page['stop']] if page['stop'] else []
    scroll = Scroll(rows, seed, Bytes(), model.config.block_size, Page(**page), n_before)
    for _ in scroll.steps(model, Way(order, how or ONE_BY_ONE, drawing), with_drafts=with_drafts):
        if look:
            look(scroll.first())
    return scroll.samples()


def like(sample):
    """The sample with its nats up to rounding, which depends on the rows beside it."""
    return {
        key: pytest.approx(x, abs=1e-10) if key in ('nats', 'logprob') else x
        for key, x in sample.items()
    }


def counted(model):
    """A copy of the model, and for each of its passes the numbers of slots that the rows ran."""
    model = copy.deepcopy(model)
    slots = []
    trunk = model.trunk
    model.trunk = lambda idx, order, plan, cache=None: (
        slots.append([len(row.unique()) for row in plan.number]),
        trunk(idx, order, plan, cache),
    )[1]
    return model, slots


def test_a_text_that_fits_is_what_one_canvas_gives():
    model = ascii_model()
    rows = texts('ab[[4]]c', '[[3]]', 'abcdef[[..]]', length=8)
    for order in (L2R, Order('random'), Order('r2l'), Order('fixed', seed=3)):
        canvas = Canvas.of_texts(rows, order, 5)
        fill(model, canvas, Given(3), Drawing())
        assert write(model, rows, order, Given(3)) == [
            sample_of(*row, Bytes()) for row in canvas.lists()
        ]


def rescored(model, sample, reading=L2R):
    """The log-probability of each token, stretch by stretch: known text first, by the order `reading`, then what the
    stretch has written."""
    written = [p for p in sample['order'] if sample['step'][p] >= 0]
    logprob = [0.0 if p not in written else None for p in range(len(sample['tokens']))]
    for start, end in sample['stretches']:
        new = [p for p in written if start <= p < end and logprob[p] is None]
        read = (start + reading.draw(1, end - start)[0]).tolist()
        local = [p for p in read if p not in new] + new
        nll = model(torch.tensor([sample['tokens'][start:end]]), torch.tensor([local]) - start)[
            0
        ].tolist()
        for p, nats in zip(new, nll[len(local) - len(new) :], strict=True):
            logprob[p] = -nats
    return logprob


@pytest.mark.parametrize(
    'context, stretches',
    [
        (0, [[0, 8], [4, 12], [8, 16], [12, 20]]),
        (3, [[0, 8], [5, 13], [10, 18], [15, 20]]),
        (7, [[0, 8], *([n - 7, n + 1] for n in range(8, 20))]),
    ],
)
@pytest.mark.parametrize('order', ['l2r', 'random', 'block:2', 'margin'])
def test_every_stretch_is_drawn_from_the_model_given_its_context(order, context, stretches):
    """Re-scoring gives every token the same log-probability: its canvas alone, known text first."""
    model = ascii_model()
    given = [0, 1, 9, 10, 18]
    how = Adaptive('margin', 99) if order == 'margin' else Given(99)
    visits = Order.of('random' if order == 'margin' else order, {})
    ((sample, other),) = [
        write(model, texts('ab[[7]]cd[[7]]e[[..]]', '[[..]]'), visits, how, context=context)
    ]
    assert other['stretches'] == stretches
    assert sample['tokens'] != other['tokens'][:2]
    reading = (
        L2R if order in ('random', 'margin') else visits
    )  # known text of a random order is read left to right
    read = [p for p in reading.draw(1, 8)[0].tolist() if p in given[:2]] + given[2:]
    assert sorted(sample['order']) == list(range(20))
    assert sample['order'][:5] == read
    assert bytes(sample['tokens'][p] for p in given) == b'abcde'
    assert sample['passes'] == sample['blanks'] == 15
    assert sample['logprob'] == pytest.approx(rescored(model, sample, reading), abs=1e-10)
    assert math.isclose(sample['nats'], -sum(sample['logprob']))
    assert [sample['step'][p] for p in sample['order'][5:]] == list(
        range(15)
    )  # steps go on over the seams


def test_rows_slide_apart_and_a_row_is_a_function_of_its_seed():
    model = ascii_model()
    rows = texts('[[20]]', 'x' * 17 + '[[3]]', 'ab[[1]]')
    for order in (L2R, Order('random')):
        together = write(model, rows, order)
        assert [s.get('stretches') for s in together] == [
            [[0, 8], [4, 12], [8, 16], [12, 20]],
            [[13, 20]],
            None,
        ]
        assert together == [
            like(write(model, [row], order, seed=5 + r)[0]) for r, row in enumerate(rows)
        ]


def test_the_draws_of_a_stretch_are_its_own():
    greedy = write(ascii_model(), texts('[[..]]', length=30), drawing=Drawing(0))[0]
    model = ascii_model(target_position='input')
    for p in model.parameters():
        p.zero_()  # every token is as likely: a token is its random number
    tokens = write(model, texts('[[..]]', length=20))[0]['tokens']
    assert len({tuple(tokens[i : i + 4]) for i in (0, 4, 8, 12, 16)}) == 5
    assert greedy['blanks'] == 30


def test_a_long_text_costs_a_pass_a_token_and_reads_each_context_once():
    for context, slots in ((4, 4 * 8), (3, 3 * 8 + 5), (7, 13 * 8)):
        model, passes = counted(ascii_model())
        (sample,) = write(model, texts('[[..]]'), context=context)
        assert len(passes) == sample['passes'] == 20
        assert sum(n for (n,) in passes) == slots


@pytest.mark.parametrize('order', ['l2r', 'random'])
def test_a_long_lossless_text_equals_one_token_a_step(order):
    rows = texts('ab[[..]]', '[[..]]')
    one, many = (
        write(ascii_model(), rows, Order.of(order, {}), Lossless(window), with_drafts=True)
        for window in (1, 8)
    )
    assert [s['tokens'] for s in one] == [s['tokens'] for s in many]
    assert all(a['passes'] == a['blanks'] > b['passes'] for a, b in zip(one, many))
    for sample in many:
        for step, history in zip(sample['step'], sample['drafts'], strict=True):
            assert all(first < step for first, _ in history)
        later = sample['drafts'][8:]
        seam = max(sample['step'][:8])  # steps are counted on from stretch to stretch
        assert any(later)
        assert all(first > seam for history in later for first, _ in history)


# ---------------------------------------------------------------------------------------------------------------------
# the stop


@pytest.mark.parametrize('lossless', [False, True])
def test_left_to_right_ends_at_the_stop_and_saves_the_passes_behind_it(lossless):
    how = Lossless(4) if lossless else None
    model, passes = counted(ascii_model())
    rows = texts('ab[[..]]', '[[..]]', '[[9]]')
    whole = write(model, rows, how=how)
    n_whole = len(passes)
    stop = whole[1]['text'][9:11]
    assert all(stop not in s['text'] for s in (whole[0], whole[2]))
    assert whole[1]['text'].index(stop) == 9
    passes.clear()
    short = write(model, rows, how=how, stop=stop)
    assert [s.pop('stopped') for s in short] == [False, True, False]
    assert short[::2] == [like(s) for s in whole[::2]]
    assert short[1]['tokens'] == whole[1]['tokens'][:11]
    assert short[1]['text'].endswith(stop)
    assert short[1]['step'] == whole[1]['step'][:11]
    assert short[1]['logprob'] == pytest.approx(whole[1]['logprob'][:11])
    assert short[1]['order'] == list(range(11))
    assert short[1]['stretches'] == [[0, 8], [4, 11]]
    assert math.isclose(short[1]['nats'], -sum(whole[1]['logprob'][:11]))
    assert short[1]['blanks'] == 11
    alone = {}
    for name, until in (('whole', ''), ('short', stop)):
        passes.clear()
        write(model, rows[1:2], how=how, seed=6, stop=until)
        alone[name] = len(passes)
    assert alone['short'] < alone['whole']
    assert n_whole >= alone['whole']
    if not lossless:
        assert alone == {'whole': 20, 'short': 11}


@pytest.mark.parametrize('order', ['random', 'r2l', 'block:4'])
def test_other_orders_are_cut_at_the_first_stop(order):
    visits = Order.of(order, {})
    rows = texts('[[..]]')
    (whole,) = write(ascii_model(), rows, visits)
    stop = whole['text'][5:7]
    n = whole['text'].index(stop) + 2
    model, passes = counted(ascii_model())
    (short,) = write(model, rows, visits, stop=stop)
    assert short['tokens'] == whole['tokens'][:n]
    assert short['logprob'] == pytest.approx(whole['logprob'][:n])
    assert sorted(short['order']) == list(range(n))
    assert [p for p in whole['order'] if p < n] == short['order']
    assert len(passes) == 1 + max(
        whole['order'].index(p) for p in range(n)
    )  # until all before it is written


def test_a_stop_counts_from_the_first_blank_on_and_over_a_seam():
    model = ascii_model()
    (whole,) = write(model, texts('[[..]]'))
    over = whole['text'][7:9]  # the last token of the first stretch, and one of the second
    assert whole['text'].index(over) == 7
    assert len(write(model, texts('[[..]]'), stop=over)[0]['tokens']) == 9
    assert write(model, texts('[[..]]'), stop=whole['text'][2:4])[0]['stretches'] == [
        [0, 4]
    ]  # it has a place for 20
    first = write(model, texts('ab[[..]]'))[0]['text'][2]
    for stop in ('ab', 'b' + first):  # a part of the prompt
        (sample,) = write(model, texts('ab[[..]]'), stop=stop)
        assert not sample['stopped']
        assert len(sample['tokens']) == 20
    (sample,) = write(model, texts('ab' * 5 + '[[1]]ab[[..]]'), stop='ab')
    assert sample['text'][:10] == 'ab' * 5
    assert len(sample['text']) == 13
    assert sample['blanks'] == 1
    assert sample['order'] == [*range(10), 11, 12, 10]


def test_of_several_stops_the_first_ends_the_text_and_seeds_may_be_named():
    model = ascii_model()
    rows = texts('[[..]]', '[[..]]', length=8)
    whole = write(model, rows, seed=[7, 3])
    assert [s['tokens'] for s in whole] == [
        write(model, rows[:1], seed=seed)[0]['tokens'] for seed in (7, 3)
    ]
    stops = [whole[0]['text'][5:7], whole[0]['text'][2:4], whole[1]['text'][4]]
    short = write(model, rows, seed=[7, 3], stop=stops)
    for one, two in zip(short, whole):
        n = min(two['text'].index(stop) + len(stop) for stop in stops if stop in two['text'])
        assert one['stopped']
        assert one['tokens'] == two['tokens'][:n]
        assert n <= 5  # before the first of the stops


def test_the_stop_is_whole_before_it_is_found():
    bytes_ = Bytes()
    eos = Bytes.eos
    assert end_of([97, 195, 169, 98], ['é'], bytes_) == 3
    assert end_of([97, 195], ['é'], bytes_) is None
    assert end_of([97, eos, 98, eos], ['<|endoftext|>'], bytes_) == 2
    assert end_of([10, 97, 10, 10, 10], ['\n\n'], bytes_) == 4
    assert end_of([], ['a'], bytes_) is None
    assert end_of([97, 98, 99], ['c', 'ab', 'x'], bytes_) == 2
    assert end_of([97], [], bytes_) is None


# ---------------------------------------------------------------------------------------------------------------------
# open blanks


def template(*pieces):
    """(tokens, known, open) of texts, numbers of blanks, and [n], open blanks with their shares."""
    tokens = []
    known = []
    open_ = []
    for piece in pieces:
        value = (
            [*piece.encode()]
            if isinstance(piece, str)
            else [0] * (piece[0] if isinstance(piece, list) else piece)
        )
        open_ += [[len(tokens), len(tokens) + len(value)]] if isinstance(piece, list) else []
        tokens = tokens + value
        known = known + [isinstance(piece, str)] * len(value)
    return tokens, known, open_


def by_hand(model, pieces, stops, seed, **how):
    """What Scrolls write part by part: each of a text that has one blank, or is the last."""
    tokens, known, open_ = template(*pieces)
    whole = {'tokens': [], 'step': [], 'logprob': [], 'drafts': [], 'order': [], 'stretches': []}
    for k, (start, end) in enumerate(
        itertools.pairwise([0, *(end for _, end in open_), len(tokens)])
    ):
        n = len(whole['tokens'])
        n_steps = 1 + max(whole['step'], default=-1)
        row = whole['tokens'] + tokens[start:end], [True] * n + known[start:end]
        (part,) = write(model, [row], seed=[seed], stop=stops if k < len(open_) else '', **how)
        part['step'] = [step + n_steps if step >= 0 else -1 for step in part['step']]
        part['drafts'] = [
            [[step + n_steps, token] for step, token in history] for history in part['drafts']
        ]
        part['order'] = [p for p in part['order'] if part['step'][p] >= n_steps]
        part['stretches'] = part.get('stretches', [[0, len(part['tokens'])]])
        part |= {key: part[key][n:] for key in ('tokens', 'step', 'logprob', 'drafts')}
        whole = {key: old + part[key] for key, old in whole.items()}
        seed = derive_seed(seed, 'part')
    return whole


@pytest.mark.parametrize(
    'order, block_size', [('l2r', 25), ('random', 8), ('margin', 8), ('lossless', 8)]
)
def test_parts_are_what_one_writes_by_hand_one_after_the_other(order, block_size):
    """Each open blank ends at its stop or at its share; a row beside it that has fewer parts changes nothing."""
    model = ascii_model(block_size=block_size)
    rows = [template('x', [9]), template('ab', [9], 'cd', [7], 'fg', 1, 'h')]
    how = Adaptive('margin', 99) if order == 'margin' else Given(99)
    how = {
        'how': Lossless(4) if order == 'lossless' else how,
        'with_drafts': True,
        'order': L2R if order == 'l2r' else Order('random'),
    }
    stops = ['nowhere']
    for n, stopped, i in ((24, False, 5), (20, False, 12), (18, True, 0)):
        beside, sample = write(model, rows, seed=[4, 5], stop=stops, **how)
        assert (len(sample['tokens']), sample['stopped']) == (n, stopped)
        if i != 12:
            given = [p for p, step in enumerate(sample['step']) if step < 0]
            assert sample['order'][: len(given)] == given
            sample['order'] = sample['order'][len(given) :]
            assert sample | by_hand(
                model, ('ab', [9], 'cd', [7], 'fg', 1, 'h'), stops, 5, **how
            ) == like(sample)
        if i == 5 or order == 'l2r':  # nothing that was cut was read
            assert sample['logprob'] == pytest.approx(rescored(model, sample), abs=1e-10)
        stops.append(sample['text'][i : i + 2])
    assert beside == like(write(model, [rows[0][:2]], seed=[4], stop=stops[:-1], **how)[0])


def test_a_stop_is_looked_for_in_the_open_blank_alone():
    model = ascii_model(block_size=18)
    text = template(2, 'ab', [5], 'c', [3], 3, 'd')
    for p in model.parameters():
        p.zero_()  # every token is as likely: the first is taken
    seen = []
    (sample,) = write(model, [text], drawing=Drawing(0), stop='\0', look=seen.append)
    assert sample['text'] == '\0\0ab\0c\0\0\0\0d'
    assert sample['stopped']
    assert sample['passes'] == 7
    assert sample['step'] == [0, 1, -1, -1, 2, -1, 3, 4, 5, 6, -1]
    assert sample['order'] == [2, 3, 5, 10, 0, 1, 4, 6, 7, 8, 9]
    assert [len(tokens) for tokens, *_ in seen] == [17] * 3 + [13] + [
        11
    ] * 3  # the text as it is then
    assert [step for _, _, step, *_ in seen] == [*range(7)]
    assert seen[-1][0] == sample['tokens']
    for stops in ('ab', '\0ab', 'b\0', ''):
        (whole,) = write(model, [text], drawing=Drawing(0), stop=stops)
        assert not whole.pop('stopped', False)
        assert whole['text'] == '\0\0ab\0\0\0\0\0c\0\0\0\0\0\0d'
    assert whole == write(model, [text[:2]], drawing=Drawing(0))[0]  # without a stop it is one part
    (none,) = write(
        model, [template('ab', [0], 'c', [2])], drawing=Drawing(0), stop='\0'
    )  # no room for the first
    assert none['text'] == 'abc\0'
    assert not none['stopped']


def test_allowed_and_rows_count_in_the_text_as_it_is_then():
    """Each token is its position: behind a stop the text has another one."""
    asked = []

    def allowed(rows, positions):
        asked.extend(rows.tolist())
        return positions.unsqueeze(1) == torch.arange(128)

    rows = [template([20]), template('ab', [9], 'cd', [12])]
    one, two = write(
        ascii_model(), rows, seed=[1, 2], stop=['\x03', '\x0a'], allowed=allowed, n_before=6
    )
    assert one['text'] == '\0\1\2\3'
    assert two['text'] == 'ab\2\3cd\6\7\x08\x09\x0a'
    assert two['stopped']
    assert {*asked} == {6, 7}
    assert two['stretches'] == [[0, 4], [0, 8], [4, 11]]


# ---------------------------------------------------------------------------------------------------------------------
# what is watched


def test_the_watcher_sees_the_first_text_as_a_whole():
    shown = []
    samples = write(ascii_model(), texts('[[..]]', 'abc[[..]]'), Order('random'), look=shown.append)
    shown = [seen for seen in shown if seen]
    assert [step for _, _, step, *_ in shown] == list(range(20))
    assert [steps.count(None) for _, steps, *_ in shown] == list(range(19, -1, -1))
    tokens, steps, _, logprob, drafts = shown[-1]
    assert (tokens, steps, logprob, drafts) == (
        *(samples[0][name] for name in ('tokens', 'step', 'logprob')),
        None,
    )
    for tokens, steps, step, *_ in shown:
        assert all((s is not None) == (last <= step) for s, last in zip(steps, samples[0]['step']))
        assert all(
            t == last for t, last, s in zip(tokens, samples[0]['tokens'], steps) if s is not None
        )


def test_a_stop_over_a_seam_ends_its_row_at_once():
    """The second row alone has a second stretch, which knows one token of the stop; the watcher sees the first row."""
    model, passes = counted(ascii_model())
    for p in model.parameters():
        p.zero_()  # every token is as likely: the first is taken
    seen = []
    rows = texts('ab[[1]]', '[[1]]abcdefg[[1]]hij[[8]]')
    first, second = write(
        model, rows, drawing=Drawing(0), stop='fg\0h', context=1, look=seen.append
    )
    assert second['text'] == '\0abcdefg\0h'
    assert second['stopped']
    assert not first['stopped']
    assert len(passes) == 2
    assert seen[0]
    assert seen[1:] == [None]


def test_blocks_begin_anew_in_each_stretch():
    """Positions are visited block after block, and the steps count on from stretch to stretch."""
    (sample,) = write(ascii_model(), texts('ab'), how=Adaptive('margin', 99, block_length=4))
    assert sample['stretches'] == [[0, 8], [4, 12], [8, 16], [12, 20]]
    blocks = [range(2), range(2, 6), range(6, 8), range(8, 12), range(12, 16), range(16, 20)]
    visits = iter(sample['order'])
    assert [{next(visits) for _ in block} for block in blocks] == [{*block} for block in blocks]
    assert [sample['step'][p] for p in sample['order']] == [-1, -1, *range(18)]
    assert sample['order'] != [*range(20)]
