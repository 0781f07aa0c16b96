"""The scroll: seams of long texts are exact, what a stretch costs, where a text stops, what the
watcher sees."""

import copy
import itertools
import math

import pytest
import torch
from conftest import make_model, one_line

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
ONE_BY_ONE = Given(99)
PLAIN = Drawing()
GREEDY = Drawing(0)


def ascii_model(**config):
    """A model of eight characters."""
    return make_model(**dict(block_size=8, vocab_size=128) | config)


def sure_model(**config):
    """A model to which every token is as likely: at temperature 0 it writes the first."""
    model = ascii_model(**config)
    for p in model.parameters():
        p.zero_()
    return model


def texts(*prompts, length=20):
    """[(tokens, known)] of prompts."""
    return [parse_prompt(prompt, Bytes(), length).lay_out()[:2] for prompt in prompts]


def write(
    model, rows, order=L2R, how=ONE_BY_ONE, seed=5, drawing=PLAIN, look=None, n_before=0, **page
):
    """The samples of `rows` that are written in this way, on a page of these fields.

    look  is told after each step what a watcher sees"""
    stop = page.pop('stop', '')
    if isinstance(stop, str):
        stop = [stop] if stop else []
    scroll = Scroll(rows, seed, Bytes(), model.config.block_size, Page(stop=stop, **page), n_before)
    for _ in scroll.steps(model, Way(order, how, drawing)):
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

    def counted_trunk(idx, order, plan, cache=None):
        slots.append([len(row.unique()) for row in plan.number])
        return trunk(idx, order, plan, cache)

    model.trunk = counted_trunk
    return model, slots


def test_a_text_that_fits_is_what_one_canvas_gives():
    model = ascii_model()
    rows = texts('ab[[4]]c', '[[3]]', 'abcdef[[..]]', length=8)
    for order in (L2R, Order('random'), Order('r2l'), Order('fixed', seed=3)):
        canvas = Canvas.of_texts(rows, order, 5)
        fill(model, canvas, Given(3), Drawing())
        expected = [sample_of(*row, Bytes()) for row in canvas.lists()]
        assert write(model, rows, order, Given(3)) == expected


@pytest.mark.parametrize('length, stop', [(9, ''), (8, 'x')])
def test_guidance_wants_one_canvas(length, stop):
    rows = []
    for prompt in ('ab[[..]]', 'ab[[..]]c'):
        text = parse_prompt(prompt, Bytes(), length).lay_out()
        rows.append((text.tokens, text.known, text.rest))
    with one_line('cfg_scale'):
        write(ascii_model(), rows, drawing=Drawing(cfg_scale=1.0), stop=stop)


def rescored(model, sample, reading=L2R):
    """The log-probability of each token, stretch by stretch: known text first, by the order
    `reading`, then what the stretch has written."""
    left = [p for p in sample['order'] if sample['step'][p] >= 0]
    logprob = [0.0 for _ in sample['tokens']]
    for start, end in sample['stretches']:
        new = [p for p in left if start <= p < end]
        left = [p for p in left if p not in new]
        read = (start + reading.draw(1, end - start)[0]).tolist()
        visits = [p for p in read if p not in new] + new
        idx = torch.tensor([sample['tokens'][start:end]])
        nll = model(idx, torch.tensor([visits]) - start)[0]
        n_given = len(visits) - len(new)
        for p, nats in zip(new, nll[n_given:].tolist(), strict=True):
            logprob[p] = -nats
    return logprob


WAYS = {
    'l2r': (L2R, ONE_BY_ONE, L2R),
    'random': (Order('random'), ONE_BY_ONE, L2R),  # known text is read from left to right
    'block:2': (Order('block', 2), ONE_BY_ONE, Order('block', 2)),
    'margin': (Order('random'), Adaptive('margin', 99), L2R),
}


@pytest.mark.parametrize(
    'context, stretches',
    [
        (0, [[0, 8], [4, 12], [8, 16], [12, 20]]),
        (3, [[0, 8], [5, 13], [10, 18], [15, 20]]),
        (7, [[0, 8], *([n - 7, n + 1] for n in range(8, 20))]),
    ],
)
@pytest.mark.parametrize('way', WAYS)
def test_every_stretch_is_drawn_from_the_model_given_its_context(way, context, stretches):
    """Re-scoring gives every token the same log-probability: its canvas alone, known text first."""
    model = ascii_model()
    order, how, reading = WAYS[way]
    rows = texts('ab[[7]]cd[[7]]e[[..]]', '[[..]]')
    sample, other = write(model, rows, order, how, context=context)
    assert other['stretches'] == stretches
    assert sample['tokens'] != other['tokens'][:2]
    given = [0, 1, 9, 10, 18]
    first = [p for p in reading.draw(1, 8)[0].tolist() if p in (0, 1)]
    assert sorted(sample['order']) == [*range(20)]
    assert sample['order'][:5] == [*first, 9, 10, 18]
    assert bytes(sample['tokens'][p] for p in given) == b'abcde'
    assert sample['passes'] == sample['blanks'] == 15
    assert sample['logprob'] == pytest.approx(rescored(model, sample, reading), abs=1e-10)
    assert math.isclose(sample['nats'], -sum(sample['logprob']))
    steps = [sample['step'][p] for p in sample['order'][5:]]
    assert steps == [*range(15)]  # they go on over the seams


def test_rows_slide_apart_and_a_row_is_a_function_of_its_seed():
    model = ascii_model()
    rows = texts('[[20]]', 'x' * 17 + '[[3]]', 'ab[[1]]')
    for order in (L2R, Order('random')):
        together = write(model, rows, order)
        first, second, third = together
        assert first['stretches'] == [[0, 8], [4, 12], [8, 16], [12, 20]]
        assert second['stretches'] == [[13, 20]]
        assert 'stretches' not in third
        for r, row in enumerate(rows):
            (alone,) = write(model, [row], order, seed=5 + r)
            assert together[r] == like(alone)


def test_the_draws_of_a_stretch_are_its_own():
    """A token is its random number, where every one is as likely."""
    (sample,) = write(sure_model(target_position='input'), texts('[[..]]', length=20))
    fours = {sample['text'][i : i + 4] for i in (0, 4, 8, 12, 16)}
    assert len(fours) == 5


def test_a_long_greedy_text_has_all_its_blanks():
    (greedy,) = write(ascii_model(), texts('[[..]]', length=30), drawing=Drawing(0))
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
    one = write(ascii_model(), rows, Order(order), Lossless(1))
    many = write(ascii_model(), rows, Order(order), Lossless(8))
    for a, b in zip(one, many):
        assert a['tokens'] == b['tokens']
        assert a['passes'] == a['blanks'] > b['passes']


# --------------------------------------------------------------------------------------------------
# the stop


THREE_ROWS = texts('ab[[..]]', '[[..]]', '[[9]]')


def stop_of(sample):
    """The characters at 9 and 10 of a text."""
    stop = sample['text'][9:11]
    assert sample['text'].index(stop) == 9
    return stop


@pytest.mark.parametrize('how', [ONE_BY_ONE, Lossless(4)])
def test_a_text_from_left_to_right_ends_at_its_stop(how):
    """The rows beside it have no stop, and stay."""
    first, second, third = write(ascii_model(), THREE_ROWS, how=how)
    stop = stop_of(second)
    before, short, behind = write(ascii_model(), THREE_ROWS, how=how, stop=stop)
    assert before == like(first) | {'stopped': False}
    assert behind == like(third) | {'stopped': False}
    assert short['stopped']
    assert short['text'].endswith(stop)
    assert short['tokens'] == second['tokens'][:11]
    assert short['step'] == second['step'][:11]
    assert short['logprob'] == pytest.approx(second['logprob'][:11])
    assert math.isclose(short['nats'], -sum(second['logprob'][:11]))
    assert short['order'] == [*range(11)]
    assert short['stretches'] == [[0, 8], [4, 11]]
    assert short['blanks'] == 11


@pytest.mark.parametrize('how', [ONE_BY_ONE, Lossless(4)])
def test_a_stop_saves_the_passes_behind_it(how):
    model, passes = counted(ascii_model())
    _, row, _ = THREE_ROWS
    (whole,) = write(model, [row], how=how, seed=6)
    n_whole = len(passes)
    passes.clear()
    write(model, [row], how=how, seed=6, stop=stop_of(whole))
    assert len(passes) < n_whole
    if how == ONE_BY_ONE:
        assert n_whole == 20
        assert len(passes) == 11


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
    visits_before = [whole['order'].index(p) for p in range(n)]
    assert len(passes) == 1 + max(visits_before)  # until all before it is written


def test_a_stop_may_stand_over_a_seam():
    model = ascii_model()
    blank = texts('[[..]]')
    (whole,) = write(model, blank)
    over = whole['text'][7:9]  # the last token of the first stretch, and one of the second
    assert whole['text'].index(over) == 7
    (sample,) = write(model, blank, stop=over)
    assert len(sample['tokens']) == 9
    (sample,) = write(model, blank, stop=whole['text'][2:4])
    assert sample['stretches'] == [[0, 4]]  # though the text has a place for 20


def test_a_stop_counts_from_the_first_blank_on():
    model = ascii_model()
    prompt = texts('ab[[..]]')
    (whole,) = write(model, prompt)
    for stop in ('ab', 'b' + whole['text'][2]):  # a part of the prompt
        (sample,) = write(model, prompt, stop=stop)
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
    for sample, seed in zip(whole, (7, 3)):
        (alone,) = write(model, rows[:1], seed=seed)
        assert sample['tokens'] == alone['tokens']
    first, second = (sample['text'] for sample in whole)
    stops = [first[5:7], first[2:4], second[4]]
    short = write(model, rows, seed=[7, 3], stop=stops)
    for one, two in zip(short, whole):
        text = two['text']
        n = min(text.index(stop) + len(stop) for stop in stops if stop in text)
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


# --------------------------------------------------------------------------------------------------
# open blanks


def template(*pieces):
    """(tokens, known, open) of texts, numbers of blanks, and [n], open blanks with their shares."""
    tokens = []
    known = []
    open_blanks = []
    for piece in pieces:
        start = len(tokens)
        if isinstance(piece, str):
            tokens += piece.encode()
        elif isinstance(piece, list):
            tokens += [0] * piece[0]
            open_blanks.append([start, len(tokens)])
        else:
            tokens += [0] * piece
        known += [isinstance(piece, str)] * (len(tokens) - start)
    return tokens, known, open_blanks


def by_hand(model, pieces, stops, seed, **how):
    """What Scrolls write part by part: each of a text that has one blank, or is the last."""
    tokens, known, open_blanks = template(*pieces)
    whole = {'tokens': [], 'step': [], 'logprob': [], 'order': [], 'stretches': []}
    seams = [0, *(end for _, end in open_blanks), len(tokens)]
    for k, (start, end) in enumerate(itertools.pairwise(seams)):
        n = len(whole['tokens'])
        row = whole['tokens'] + tokens[start:end], [True] * n + known[start:end]
        until = stops if k < len(open_blanks) else ''
        (part,) = write(model, [row], seed=[seed], stop=until, **how)
        n_steps = 1 + max(whole['step'], default=-1)
        found = behind(part, n, n_steps)
        whole = {key: old + found[key] for key, old in whole.items()}
        seed = derive_seed(seed, 'part')
    return whole


def behind(sample, n, n_steps):
    """What a sample says of its positions from n on; its steps are counted from n_steps on."""
    return {
        'tokens': sample['tokens'][n:],
        'step': [step + n_steps if step >= 0 else -1 for step in sample['step'][n:]],
        'logprob': sample['logprob'][n:],
        'order': [p for p in sample['order'] if sample['step'][p] >= 0],
        'stretches': sample.get('stretches', [[0, len(sample['tokens'])]]),
    }


RANDOM = Order('random')
PARTS = {
    'l2r': (25, L2R, ONE_BY_ONE),
    'random': (8, RANDOM, ONE_BY_ONE),
    'margin': (8, RANDOM, Adaptive('margin', 99)),
    'lossless': (8, RANDOM, Lossless(4)),
}


@pytest.mark.parametrize('name', PARTS)
def test_parts_are_what_one_writes_by_hand_one_after_the_other(name):
    """Each open blank ends at its stop or at its share; a row beside it that has fewer parts
    changes nothing."""
    block_size, order, way = PARTS[name]
    model = ascii_model(block_size=block_size)
    how = dict(order=order, how=way)
    pieces = 'ab', [9], 'cd', [7], 'fg', 1, 'h'
    rows = [template('x', [9]), template(*pieces)]
    stops = ['nowhere']
    for n, stopped, i in ((24, False, 5), (20, False, 12), (18, True, 0)):
        beside, sample = write(model, rows, seed=[4, 5], stop=stops, **how)
        assert len(sample['tokens']) == n
        assert sample['stopped'] == stopped
        if i != 12:
            given = [p for p, step in enumerate(sample['step']) if step < 0]
            assert sample['order'][: len(given)] == given
            sample['order'] = sample['order'][len(given) :]
            expected = by_hand(model, pieces, stops, 5, **how)
            assert sample | expected == like(sample)
        if i == 5 or order == L2R:  # nothing that was cut was read
            assert sample['logprob'] == pytest.approx(rescored(model, sample), abs=1e-10)
        stops.append(sample['text'][i : i + 2])
    (alone,) = write(model, [rows[0][:2]], seed=[4], stop=stops[:-1], **how)
    assert beside == like(alone)


def test_a_stop_is_looked_for_in_the_open_blank_alone():
    text = template(2, 'ab', [5], 'c', [3], 3, 'd')
    model = sure_model(block_size=18)
    seen = []
    (sample,) = write(model, [text], drawing=GREEDY, stop='\0', look=seen.append)
    assert sample['text'] == '\0\0ab\0c\0\0\0\0d'
    assert sample['stopped']
    assert sample['passes'] == 7
    assert sample['step'] == [0, 1, -1, -1, 2, -1, 3, 4, 5, 6, -1]
    assert sample['order'] == [2, 3, 5, 10, 0, 1, 4, 6, 7, 8, 9]
    lengths = [len(tokens) for tokens, *_ in seen]
    assert lengths == [17, 17, 17, 13, 11, 11, 11]  # the text as it is then
    assert [step for _, _, step, *_ in seen] == [*range(7)]
    last, *_ = seen[-1]
    assert last == sample['tokens']


@pytest.mark.parametrize('stop', ['ab', '\0ab', 'b\0'])
def test_a_stop_is_not_found_beyond_the_open_blank(stop):
    text = template(2, 'ab', [5], 'c', [3], 3, 'd')
    (sample,) = write(sure_model(block_size=18), [text], drawing=GREEDY, stop=stop)
    assert not sample['stopped']
    assert sample['text'] == '\0\0ab\0\0\0\0\0c\0\0\0\0\0\0d'


def test_a_text_without_a_stop_is_one_part():
    text = template(2, 'ab', [5], 'c', [3], 3, 'd')
    model = sure_model(block_size=18)
    whole = write(model, [text], drawing=GREEDY)
    assert whole == write(model, [text[:2]], drawing=GREEDY)


def test_an_open_blank_may_have_no_room():
    text = template('ab', [0], 'c', [2])
    (sample,) = write(sure_model(block_size=18), [text], drawing=GREEDY, stop='\0')
    assert sample['text'] == 'abc\0'
    assert not sample['stopped']


def test_allowed_and_rows_count_in_the_text_as_it_is_then():
    """Each token is its position: behind a stop the text has another one."""
    asked = []

    def allowed(rows, positions):
        asked.extend(rows.tolist())
        return positions.unsqueeze(1) == torch.arange(128)

    rows = [template([20]), template('ab', [9], 'cd', [12])]
    page = dict(stop=['\x03', '\x0a'], allowed=allowed)
    one, two = write(ascii_model(), rows, seed=[1, 2], n_before=6, **page)
    assert one['text'] == '\0\1\2\3'
    assert two['text'] == 'ab\2\3cd\6\7\x08\x09\x0a'
    assert two['stopped']
    assert {*asked} == {6, 7}
    assert two['stretches'] == [[0, 4], [0, 8], [4, 11]]


# --------------------------------------------------------------------------------------------------
# what is watched


def test_the_watcher_sees_the_first_text_as_a_whole():
    told = []
    rows = texts('[[..]]', 'abc[[..]]')
    sample, _ = write(ascii_model(), rows, Order('random'), look=told.append)
    shown = [seen for seen in told if seen]
    assert [step for _, _, step, *_ in shown] == [*range(20)]
    assert [steps.count(None) for _, steps, *_ in shown] == [*reversed(range(20))]
    tokens, steps, _, logprob = shown[-1]
    assert tokens == sample['tokens']
    assert steps == sample['step']
    assert logprob == sample['logprob']
    for tokens, steps, step, *_ in shown:
        for p, last in enumerate(sample['step']):
            assert (steps[p] is not None) == (last <= step)
            assert last > step or tokens[p] == sample['tokens'][p]


def test_a_stop_over_a_seam_ends_its_row_at_once():
    """The second row alone has a second stretch, which knows one token of the stop; the watcher
    sees the first row."""
    model, passes = counted(sure_model())
    seen = []
    rows = texts('ab[[1]]', '[[1]]abcdefg[[1]]hij[[8]]')
    page = dict(stop='fg\0h', context=1)
    first, second = write(model, rows, drawing=GREEDY, look=seen.append, **page)
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
    for block in blocks:
        assert {next(visits) for _ in block} == {*block}
    assert [sample['step'][p] for p in sample['order']] == [-1, -1, *range(18)]
    assert sample['order'] != [*range(20)]
