"""The replay of a generation: what it says of an order, the page, and the picture of a page."""

import html
import itertools
import json
import math
import re
from xml.etree import ElementTree

import pytest

import anyorder.extras.pictures.__main__ as plot
from anyorder.extras.pictures.replay import kendall_tau, write_replay, written_in_words
from anyorder.tokens.shown import lay_out, token_texts
from anyorder.tokens.tokenizers import Bytes, Symbols, get_tokenizer
from configurator import configure

# --------------------------------------------------------------------------------------------------
# texts and orders


def test_a_letter_of_several_tokens_stands_at_its_last():
    tokens = [*'a\u0439\u20ac'.encode(), 0x80, *b'b']
    texts = ['a', '', '\u0439', '', '', '\u20ac', '\ufffd', 'b']
    assert token_texts(tokens, Bytes()) == texts
    tokens[4] = None
    texts = ['a', '', '\u0439', '\ufffd', '·', '', '\ufffd\ufffd', 'b']
    assert token_texts(tokens, Bytes()) == texts


@pytest.mark.parametrize(
    'texts, width, places',
    [
        (['ab', ' c'], 4, [[(0, 0, 'ab')], [(0, 2, ' c')]]),
        (['d\ne', ''], 4, [[(0, 0, 'd'), (0, 1, '↵'), (1, 0, 'e')], []]),
        (['abc', 'fgh'], 4, [[(0, 0, 'abc')], [(0, 3, 'f'), (1, 0, 'gh')]]),
        # no empty line between
        (['abcd\n', 'e'], 4, [[(0, 0, 'abcd'), (0, 4, '↵')], [(1, 0, 'e')]]),
        (['漢字か'], 5, [[(0, 0, '漢字'), (1, 0, 'か')]]),  # two columns each
        (['a\n', '\n'], 4, [[(0, 0, 'a'), (0, 1, '↵')], [(1, 0, '↵')]]),
        # an accent has no column
        (['e\u0301' * 3, 'x'], 3, [[(0, 0, 'e\u0301' * 3)], [(1, 0, 'x')]]),
        (['a\tb\u3000c\xa0\x07d'], 9, [[(0, 0, 'a b c d')]]),
    ],
)
def test_texts_stand_on_lines_of_a_width(texts, width, places):
    assert lay_out(texts, width) == places


@pytest.mark.parametrize(
    'steps', [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [0, 0, 1, 2, 1], [5, 2, 2, 9, 0, 1]]
)
def test_kendall_tau_by_counting_pairs(steps):
    pairs = list(itertools.combinations(steps, 2))
    up = sum(a < b for a, b in pairs)
    down = sum(a > b for a, b in pairs)
    tau = (up - down) / ((up + down) * len(pairs)) ** 0.5  # no two positions tie
    assert kendall_tau(steps) == pytest.approx(tau)


def test_kendall_tau_of_a_direction_and_of_a_single_step():
    assert kendall_tau([0, 1, 2]) == 1
    assert kendall_tau([2, 1, 0]) == -1
    assert kendall_tau([0, 0]) is None
    assert kendall_tau([]) is None


def test_an_order_is_named_in_words():
    assert written_in_words('l2r') == 'Written from left to right'
    assert written_in_words('blocks') == 'Written in the order blocks'


# --------------------------------------------------------------------------------------------------
# the page

BYTES = Bytes()
DATA = '<script id="data" type="application/json">'


def sample_of(text, steps, **more):
    """Token i has probability 1 / (i + 1); steps of -1 are known."""
    logprob = []
    for i, step in enumerate(steps):
        logprob.append(0.0 if step < 0 else -math.log(i + 1))
    return {'tokens': [*text.encode()], 'step': steps, 'logprob': logprob} | more


@pytest.fixture
def page(tmp_path):
    """page(samples) writes a page and returns (its text, what it holds)."""

    def write(samples, tokenizer=BYTES, title='x', *grid):
        path = tmp_path / 'p.html'
        write_replay(path, samples, tokenizer, title, *grid)
        text = path.read_text(encoding='utf-8')
        return text, json.loads(re.search(f'{DATA}(.*)</script>', text)[1])

    return write


def test_the_page_is_whole_and_needs_no_network(page):
    sample = sample_of('a</script><b>"é', [-1, *range(15)])
    title = 'a </script> title\nin 15 steps\nof one'
    text, data = page([sample, sample], Bytes(), title)
    assert not re.search(r'(https?:)?//\w', text)
    assert 'src=' not in text
    assert text.count('</script>') == 2
    assert data['title'] == 'a </script> title'
    assert data['details'] == ['in 15 steps', 'of one']
    assert data['columns'] == 0
    first, _ = data['samples']
    assert ''.join(first['text']) == 'a</script><b>"é'
    assert first['rank'] == [*range(16)]
    assert first['p'][:4] == [1, 0.5, 0.333, 0.25]


def test_ranks_count_the_steps_in_which_something_was_written(page):
    _, data = page([sample_of('abcde', [7, -1, 3, 7, 9])])
    (row,) = data['samples']
    assert row['rank'] == [2, 0, 1, 2, 3]
    assert row['n_steps'] == 3
    nats = math.log(1 * 3 * 4 * 5) / 4  # over the four that were drawn
    tau = (4 - 1) / (5 * 6) ** 0.5  # four of six pairs rise, one ties
    said = ['4 tokens in 3 steps', f'{nats:.2f} nats a token', f"Kendall's tau {tau:.2f}"]
    assert row['facts'] == said


def test_beside_a_sample_is_the_next_with_the_same_known_tokens(page):
    samples = [
        sample_of('abc', [-1, 0, 1]),
        sample_of('xbc', [-1, 0, 1]),
        sample_of('ayz', [-1, 1, 0]),
        sample_of('abc', [0, -1, 1]),
        sample_of('aaa', [-1, 0, 0]),
    ]
    _, data = page(samples)
    assert [row['beside'] for row in data['samples']] == [2, None, 4, None, None]


PLAIN = sample_of('abcdef', [3, 0, -1, 1, 2, 0])


def test_a_step_that_wrote_only_what_a_stop_cut_does_not_count(page):
    _, whole = page([PLAIN])
    _, cut = page([PLAIN | {'step': [4, 0, -1, 2, 3, 0]}])  # step 1 wrote behind a stop
    assert cut == whole


# --------------------------------------------------------------------------------------------------
# the picture of a page

SVG = '{http://www.w3.org/2000/svg}'


@pytest.fixture
def picture(page, tmp_path):
    """picture(samples) draws a page and returns (root, style, {class: texts}).

    The texts are those of the groups of each step, and of what is given."""

    def draw(*what):
        page(*what)
        path = tmp_path / 'p.svg'
        plot.main(configure(vars(plot), [f'{tmp_path}/p.html', '-o', str(path)]))
        root = ElementTree.fromstring(path.read_bytes())
        texts = {}
        for group in root.iter(f'{SVG}g'):
            kind = group.get('class', '').split()
            if kind == ['prompt'] or kind[:1] == ['step']:
                found = [text.text for text in group.findall(f'{SVG}text')]
                texts.setdefault(kind[-1], []).extend(found)
        return root, root.find(f'{SVG}style').text, texts

    return draw


def marks_of(root, tag, *classes):
    return [mark for mark in root.iter(f'{SVG}{tag}') if mark.get('class') in classes]


def shown_from(style):
    """{step: percent of the loop from which it is shown}, by the keyframes."""
    rule = r'@keyframes s(\d+)\{0%,([\d.]+)%\{opacity:0[^}]*\}([\d.]+)%\{opacity:1'
    found = {}
    for step, hidden, shown in re.findall(rule, style):
        assert float(shown) - float(hidden) < 0.02  # at once
        found[int(step)] = float(shown)
    return found


def test_the_picture_shows_each_token_at_its_step(picture):
    sample = sample_of('a<&\x01d"é', [2, -1, 0, 2, 4, 0, 7, 7])
    _, style, texts = picture([sample])
    steps = {'s1': ['&', '"'], 's2': ['a'], 's3': ['d'], 's4': ['é']}  # \x01 is in no XML
    assert texts == {'prompt': ['<'], **steps}
    assert all(f'.s{k}{{animation-name:s{k}}}' in style for k in (1, 2, 3, 4))
    first, *later = shown_from(style).values()
    assert [shown / first for shown in later] == pytest.approx([2, 3, 4], rel=1e-3)
    assert later[-1] < 50  # then it holds for 5 seconds


def test_the_picture_has_its_words_and_needs_neither_script_nor_network(picture, tmp_path):
    sample = sample_of('abcd', [-1, 0, 1, 2])
    root, _, _ = picture([sample], Bytes(), 'a <title>\nsmall & \x02print')
    assert not list(root.iter(f'{SVG}script'))
    assert root.find(f'{SVG}title').text == 'a <title>'
    words = ''.join(root.itertext())
    assert 'step 2 of 3' in words
    assert 'small & \ufffdprint' in words
    text = html.unescape((tmp_path / 'p.svg').read_text()).replace(SVG[1:-1], '')
    assert not re.search(r'(https?:)?//\w', text)


def test_the_picture_shades_by_confidence(picture):
    logprob = [math.log(p) for p in (1.0, 0.49, 1e-9, 1.0)]
    root, style, _ = picture([sample_of('abcd', [0, 0, 0, -1]) | {'logprob': logprob}])
    (step,) = marks_of(root, 'g', 'step s1')
    assert [shape.get('class') for shape in step.findall(f'{SVG}rect')] == ['c7', 'c3', 'c0']
    assert all(f'.c{i}{{fill:' in style for i in range(8))
    assert style.count('.c0{fill:') == 2  # light and dark


DIGITS = get_tokenizer('sudoku4')
FILLED = {'tokens': DIGITS.encode('1234341221434321'), 'logprob': [-0.1] * 16}
BY_RANDOM = FILLED | {'name': 'random', 'step': [-1, *range(15)], 'wrong': [False] * 15 + [True]}
BY_MARGIN = FILLED | {'name': 'margin', 'step': [-1] + [3] * 15}


def test_pictures_of_two_policies_stand_side_by_side_and_mark_what_is_wrong(picture):
    root, _, texts = picture([BY_RANDOM, BY_MARGIN], DIGITS, 'x', 4)
    assert {'random', 'margin', 'step 15 of 15'} <= set(root.itertext())
    assert texts['prompt'] == ['1', '1']
    assert ''.join(texts['s1']) == '2' + '234341221434321'
    assert texts['s15'] == ['1']
    assert [mark.text for mark in marks_of(root, 'text', 'wrong')] == ['1']


def test_a_sample_of_other_known_tokens_does_not_stand_beside(picture):
    root, _, _ = picture([BY_RANDOM, BY_MARGIN | {'step': [0] * 16}], DIGITS, 'x', 4)
    assert 'margin' not in set(root.itertext())


@pytest.mark.parametrize(
    'name, n, columns, box, n_boxes',
    [
        ('sudoku', 81, 9, 3, 9),
        ('bert:mine', 16, 4, 2, 4),
        ('pixels', 81, 9, 0, 0),
        ('notes', 128, 32, 0, 0),
    ],
)
def test_only_a_sudoku_has_boxes(page, picture, name, n, columns, box, n_boxes):
    sample = {'tokens': [0] * n, 'step': [0] * n, 'logprob': [0.0] * n}
    what = [sample], Symbols(name, ['1'], ' '), 'x', columns, box
    _, data = page(*what)
    assert data['box'] == box
    root, _, _ = picture(*what)
    assert len(marks_of(root, 'rect', 'box')) == n_boxes


@pytest.mark.parametrize(
    'longest, width', [('1', 42), ('C#4', 42), ('hydrogen', 102), ('漢字', 54)]
)
def test_cells_of_a_picture_are_as_wide_as_the_longest_name(picture, longest, width):
    sample = {'tokens': [0, 1] * 4, 'step': [-1, *range(7)], 'logprob': [-0.1] * 8}
    root, _, texts = picture([sample], Symbols('names', ['a', longest], ' '), 'x', 4)
    places = marks_of(root, 'rect', 'given', 'blank')
    for i, place in enumerate(places):
        corner = [float(place.get(name)) for name in ('x', 'y', 'width', 'height')]
        assert corner == [width * (i % 4) + 0.5, 42 * (i // 4) + 0.5, width - 1, 41]
    assert len(places) == 8
    assert texts['s1'] == [longest]
    assert float(root.get('width')) >= 4 * width


@pytest.mark.parametrize('step, kind', [(-1, 'prompt'), (0, 's1')])
def test_nothing_known_and_nothing_drawn_are_pictures_too(picture, step, kind):
    _, _, texts = picture([sample_of('ab', [step, step])])
    assert texts == {kind: ['a', 'b']}


@pytest.mark.parametrize(
    'args, said',
    [
        (['p.html', '-o', 'p.svg'], 'p.html cannot be read as the page of a replay'),
        (['q.html', '-o', 'p.svg'], 'q.html cannot be'),
        (['p.html', 'q.html', '-o', 'p.svg'], 'name one page'),
        (['p.html', '-o', 'p.svg', '--x=time'], 'leave out x'),
        (['p.html', '-o', 'p.png'], 'must end in .svg'),
    ],
)
def test_what_is_no_page_of_a_replay_is_one_line(tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'p.html').write_text('<!doctype html>')
    (tmp_path / 'q.html').write_text(f'{DATA}{{"samples": []}}</script>')
    with pytest.raises(ValueError, match=said):
        plot.main(configure(vars(plot), args))
