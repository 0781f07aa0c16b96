"""The replay of a generation: what it says of an order, the page, and the picture that plays without a script."""

import html
import itertools
import json
import math
import re
import shutil
import subprocess
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

import plot
from anyorder.pictures.replay import check_page, kendall_tau, write_replay, written_in_words
from anyorder.pictures.texts import lay_out, token_texts
from anyorder.tokens.tokenizers import Bytes, get_tokenizer
from configurator import configure


def test_kendall_tau_by_counting_pairs():
    for steps in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [0, 0, 1, 2, 1], [5, 2, 2, 9, 0, 1]):
        pairs = list(itertools.combinations(steps, 2))
        up, down = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        tau = (up - down) / ((up + down) * len(pairs)) ** 0.5  # no two positions tie
        assert kendall_tau(steps) == pytest.approx(tau)
    assert kendall_tau([0, 1, 2]) == 1 and kendall_tau([2, 1, 0]) == -1
    assert kendall_tau([0, 0]) is None and kendall_tau([]) is None


def test_a_letter_of_several_tokens_stands_at_its_last():
    tokens = list('a\u0439\u20ac'.encode()) + [0x80, *b'b']
    assert token_texts(tokens, Bytes()) == ['a', '', '\u0439', '', '', '\u20ac', '\ufffd', 'b']
    tokens[4] = None
    assert token_texts(tokens, Bytes()) == [
        'a',
        '',
        '\u0439',
        '\ufffd',
        '·',
        '',
        '\ufffd\ufffd',
        'b',
    ]


def test_texts_stand_on_lines_of_a_width():
    assert lay_out(['ab', ' c', 'd\ne', '', 'fgh'], 4) == [
        [(0, 0, 'ab')],
        [(0, 2, ' c')],
        [(1, 0, 'd'), (1, 1, '↵'), (2, 0, 'e')],
        [],
        [(2, 1, 'fgh')],
    ]
    assert lay_out(['abcd\n', 'e'], 4) == [
        [(0, 0, 'abcd'), (0, 4, '↵')],
        [(1, 0, 'e')],
    ]  # no empty line between
    assert lay_out(['漢字か'], 5) == [[(0, 0, '漢字'), (1, 0, 'か')]]  # two columns each
    assert lay_out(['a\nb\n', '\n'], 4) == [
        [(0, 0, 'a'), (0, 1, '↵'), (1, 0, 'b'), (1, 1, '↵')],
        [(2, 0, '↵')],
    ]
    assert lay_out(['e\u0301' * 3, 'x'], 3) == [
        [(0, 0, 'e\u0301' * 3)],
        [(1, 0, 'x')],
    ]  # an accent has no column
    assert lay_out(['a\tb\u3000c\xa0\x07d'], 9) == [[(0, 0, 'a b c d')]]


def sample_of(text, steps, **more):
    """Token i has probability 1 / (i + 1); steps of -1 are known."""
    logprob = [0.0 if step < 0 else -math.log(i + 1) for i, step in enumerate(steps)]
    return {'tokens': list(text.encode()), 'step': steps, 'logprob': logprob} | more


def page_of(path):
    page = path.read_text(encoding='utf-8')
    return page, json.loads(
        re.search(r'<script id="data" type="application/json">(.*)</script>', page)[1]
    )


def test_the_page_is_whole_and_needs_no_network(tmp_path):
    sample = sample_of('a</script><b>"é', [-1, *range(15)])
    write_replay(
        tmp_path / 'page.html', [sample, sample], Bytes(), 'a </script> title\nin 15 steps\nof one'
    )
    page, data = page_of(tmp_path / 'page.html')
    assert (
        not re.search(r'(https?:)?//\w', page)
        and 'src=' not in page
        and page.count('</script>') == 2
    )
    assert (data['title'], data['details'], data['columns']) == (
        'a </script> title',
        ['in 15 steps', 'of one'],
        0,
    )
    row = data['samples'][0]
    assert len(data['samples']) == 2 and ''.join(row['text']) == 'a</script><b>"é'
    assert row['rank'] == [*range(16)] and row['p'][:4] == [1, 0.5, 0.333, 0.25]


def test_ranks_count_the_steps_in_which_something_was_written(tmp_path):
    write_replay(tmp_path / 'p.html', [sample_of('abcde', [7, -1, 3, 7, 9])], Bytes(), 'x')
    row = page_of(tmp_path / 'p.html')[1]['samples'][0]
    assert row['rank'] == [2, 0, 1, 2, 3] and row['n_steps'] == 3
    nats = math.log(1 * 3 * 4 * 5) / 4  # over the four that were drawn
    tau = (4 - 1) / (5 * 6) ** 0.5  # four of six pairs rise, one ties
    assert row['facts'] == [
        '4 tokens in 3 steps',
        f'{nats:.2f} nats a token',
        f"Kendall's tau {tau:.2f}",
    ]


def test_beside_a_sample_is_the_next_with_the_same_known_tokens(tmp_path):
    samples = [
        sample_of('abc', [-1, 0, 1]),
        sample_of('xbc', [-1, 0, 1]),
        sample_of('ayz', [-1, 1, 0]),
        sample_of('abc', [0, -1, 1]),
        sample_of('aaa', [-1, 0, 0]),
    ]
    write_replay(tmp_path / 'p.html', samples, Bytes(), 'x')
    assert [row['beside'] for row in page_of(tmp_path / 'p.html')[1]['samples']] == [
        2,
        None,
        4,
        None,
        None,
    ]


def test_an_order_is_named_in_words():
    assert written_in_words('l2r') == 'Written from left to right'
    assert written_in_words('blocks') == 'Written in the order blocks'


LOSSLESS = sample_of('abcdef', [3, 0, -1, 1, 2, 0]) | {
    'drafts': [[[0, ord('x')], [1, ord('a')]], [], [], [[0, ord('\n')]], [[0, ord('z')]], []]
}
FRAMES = """
function shown(i, at) {
  const {draft, rejected} = draftOf(s, i, at)
  return draft ? [draft[1] ?? 'right', Boolean(rejected)] : null
}
function covered(n, draft) {
  const span = {children: Array.from({length: n}, () => ({dataset: {draft: 'old'}}))}
  cover(span, draft)
  return span.children.map(letter => letter.dataset.draft ?? null)
}
const covers = [covered(3, ' a'), covered(2, ' bcd'), covered(1, '\\n'), covered(1, ' '), covered(2, undefined)]
console.log(JSON.stringify([...[0, 3, 4].map(i => [0, 1, 2, 3, 4].map(at => shown(i, at))), covers]))
"""


def test_the_page_has_the_drafts_and_counts_the_passes(tmp_path):
    plain = {key: value for key, value in LOSSLESS.items() if key != 'drafts'}
    write_replay(tmp_path / 'p.html', [LOSSLESS, plain], Bytes(), 'x')
    lossless, plain = page_of(tmp_path / 'p.html')[1]['samples']
    assert lossless['drafts'] == [[[1, 'x'], [2]], [], [], [[1, '\n']], [[1, 'z']], []]
    assert lossless['rank'] == [4, 1, 0, 2, 3, 1]
    assert (
        lossless['facts'][0] == '5 tokens in 4 passes, 1.2 a pass'
        and plain['facts'][0] == '5 tokens in 4 steps'
    )
    assert 'drafts' not in plain and plain['facts'][1:] == lossless['facts'][1:]
    cut = LOSSLESS | {'step': [4, 0, -1, 2, 3, 0]}  # what pass 1 wrote stood behind a stop
    write_replay(tmp_path / 'p.html', [cut], Bytes(), 'x')
    assert page_of(tmp_path / 'p.html')[1]['samples'] == [lossless | {'beside': None}]
    draw_replay(tmp_path / 'p.svg', [LOSSLESS], Bytes(), 'x')
    texts = picture_of(tmp_path / 'p.svg')[2]
    assert texts == {'prompt': ['c'], 's1': ['b', 'f'], 's2': ['d'], 's3': ['e'], 's4': ['a']}


@pytest.mark.skipif(not shutil.which('node'), reason='runs functions of the page')
def test_the_page_strikes_a_draft_through_for_one_frame(tmp_path):
    write_replay(tmp_path / 'p.html', [LOSSLESS], Bytes(), 'x')
    page, data = page_of(tmp_path / 'p.html')
    functions = re.findall(r'^function (?:draftOf|cover)\(.*?^}', page, re.MULTILINE | re.DOTALL)

    def run(columns):
        sample = (
            f'const s = {json.dumps(data["samples"][0])}, nSteps = s.n_steps, columns = {columns}'
        )
        done = subprocess.run(
            ['node', '-e', '\n'.join([sample, *functions, FRAMES])], capture_output=True, check=True
        )
        return json.loads(done.stdout)

    changed, overruled, kept, covers = run(0)
    assert changed == [None, ['x', False], ['x', True], ['right', False], None]
    assert overruled == [None, ['\n', False], ['\n', True], None, None]  # another token was written
    assert kept == [None, ['z', False], ['z', False], ['z', True], None]
    assert covers == [['·', 'a', None], ['b', 'c'], ['↵'], ['·'], [None, None]]
    assert run(3)[3] == [
        ['·a', None, None],
        ['·bcd', None],
        ['↵'],
        ['·'],
        [None, None],
    ]  # a cell is one element


SVG = '{http://www.w3.org/2000/svg}'


def draw_replay(path, *what):
    """The picture of a page."""
    page = path.with_suffix('.html')
    write_replay(page, *what)
    plot.main(configure(vars(plot), [str(page), '-o', str(path)]))


def picture_of(path):
    """(root, style, {class: texts}) of a picture: the texts of the groups of each step, and of what is given."""
    root = ElementTree.fromstring(path.read_bytes())
    texts = {}
    for group in root.iter(f'{SVG}g'):
        kind = group.get('class', '').split()
        if kind in (['prompt'],) or kind[:1] == ['step']:
            texts.setdefault(kind[-1], []).extend(text.text for text in group.findall(f'{SVG}text'))
    return root, root.find(f'{SVG}style').text, texts


def shown_from(style):
    """{step: percent of the loop from which it is shown}, by the keyframes."""
    rules = re.findall(
        r'@keyframes s(\d+)\{0%,([\d.]+)%\{opacity:0[^}]*\}([\d.]+)%\{opacity:1', style
    )
    assert all(float(b) - float(a) < 0.02 for _, a, b in rules)  # at once
    return {int(k): float(b) for k, _, b in rules}


def test_the_picture_shows_each_token_at_its_step(tmp_path):
    sample = sample_of('a<&\x01d"é', [2, -1, 0, 2, 4, 0, 7, 7])
    draw_replay(tmp_path / 'p.svg', [sample], Bytes(), 'a <title>\nsmall & \x02print')
    root, style, texts = picture_of(tmp_path / 'p.svg')
    assert texts == {
        'prompt': ['<'],
        's1': ['&', '"'],
        's2': ['a'],
        's3': ['d'],
        's4': ['é'],
    }  # \x01 is in no XML
    assert all(f'.s{k}{{animation-name:s{k}}}' in style for k in (1, 2, 3, 4)) and not list(
        root.iter(f'{SVG}script')
    )
    from_ = shown_from(style)
    assert [from_[k] / from_[1] for k in (2, 3, 4)] == pytest.approx([2, 3, 4], rel=1e-3)
    assert from_[4] < 50  # then it holds for 5 seconds
    assert 'step 3 of 4' in ''.join(root.itertext()) and 'small & \ufffdprint' in ''.join(
        root.itertext()
    )
    assert root.find(f'{SVG}title').text == 'a <title>'
    assert not re.search(
        r'(https?:)?//\w', html.unescape((tmp_path / 'p.svg').read_text()).replace(SVG[1:-1], '')
    )


def test_the_picture_shades_by_confidence(tmp_path):
    sample = sample_of('abcd', [0, 0, 0, -1]) | {
        'logprob': [math.log(p) for p in (1.0, 0.49, 1e-9, 1.0)]
    }
    draw_replay(tmp_path / 'p.svg', [sample], Bytes(), 'x')
    root, style, _ = picture_of(tmp_path / 'p.svg')
    (step,) = (group for group in root.iter(f'{SVG}g') if group.get('class') == 'step s1')
    assert [shape.get('class') for shape in step.findall(f'{SVG}rect')] == ['c7', 'c3', 'c0']
    assert (
        all(f'.c{i}{{fill:' in style for i in range(8)) and style.count('.c0{fill:') == 2
    )  # light and dark


def test_pictures_of_two_policies_stand_side_by_side_and_mark_what_is_wrong(tmp_path):
    digits = get_tokenizer('sudoku4')
    sample = {
        'tokens': digits.encode('1234341221434321'),
        'step': [-1, *range(15)],
        'logprob': [-0.1] * 16,
    }
    samples = [
        sample | {'name': 'random', 'wrong': [False] * 15 + [True]},
        sample | {'name': 'margin', 'step': [-1] + [3] * 15},
    ]
    draw_replay(tmp_path / 'p.svg', samples, digits, 'x', 4)
    root, _, texts = picture_of(tmp_path / 'p.svg')
    assert {'random', 'margin'} <= set(root.itertext()) and 'step 15 of 15' in set(root.itertext())
    assert (
        texts['prompt'] == ['1', '1']
        and ''.join(texts['s1']) == '2' + '234341221434321'
        and texts['s15'] == ['1']
    )
    assert [text.text for text in root.iter(f'{SVG}text') if text.get('class') == 'wrong'] == ['1']
    other = samples[1] | {'step': [0] * 16}  # nothing is known of it
    draw_replay(tmp_path / 'p.svg', [samples[0], other], digits, 'x', 4)
    assert 'margin' not in set(picture_of(tmp_path / 'p.svg')[0].itertext())


class Names(SimpleNamespace):
    def decode(self, ids):
        return ' '.join(self.texts[i] for i in ids)


@pytest.mark.parametrize(
    'name, n, columns, box',
    [('sudoku', 81, 9, 3), ('bert:mine', 16, 4, 2), ('pixels', 81, 9, 0), ('notes', 128, 32, 0)],
)
def test_only_a_sudoku_has_boxes(tmp_path, name, n, columns, box):
    sample = {'tokens': [0] * n, 'step': [0] * n, 'logprob': [0.0] * n}
    draw_replay(tmp_path / 'p.svg', [sample], Names(name=name, texts=['1']), 'x', columns, box)
    boxes = [
        mark
        for mark in picture_of(tmp_path / 'p.svg')[0].iter(f'{SVG}rect')
        if mark.get('class') == 'box'
    ]
    assert page_of(tmp_path / 'p.html')[1]['box'] == box and len(boxes) == (
        n // box**2 if box else 0
    )


@pytest.mark.parametrize(
    'longest, width', [('1', 42), ('C#4', 42), ('hydrogen', 102), ('漢字', 54)]
)
def test_cells_of_a_picture_are_as_wide_as_the_longest_name(tmp_path, longest, width):
    sample = {'tokens': [0, 1] * 4, 'step': [-1, *range(7)], 'logprob': [-0.1] * 8}
    draw_replay(tmp_path / 'p.svg', [sample], Names(name='names', texts=['a', longest]), 'x', 4)
    root, _, texts = picture_of(tmp_path / 'p.svg')
    places = [mark for mark in root.iter(f'{SVG}rect') if mark.get('class') in ('given', 'blank')]
    corners = [
        tuple(float(mark.get(name)) for name in ('x', 'y', 'width', 'height')) for mark in places
    ]
    assert corners == [
        (width * (i % 4) + 0.5, 42 * (i // 4) + 0.5, width - 1, 41) for i in range(8)
    ]
    assert texts['s1'] == [longest] and float(root.get('width')) >= 4 * width


def test_nothing_known_and_nothing_drawn_are_pictures_too(tmp_path):
    for steps in ([-1, -1], [0, 0]):
        draw_replay(tmp_path / 'p.svg', [sample_of('ab', steps)], Bytes(), 'x')
        assert picture_of(tmp_path / 'p.svg')[2] == (
            {'prompt': ['a', 'b']} if steps[0] < 0 else {'s1': ['a', 'b']}
        )


def test_what_is_no_page_of_a_replay_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'p.html').write_text('<!doctype html>')
    (tmp_path / 'q.html').write_text(
        '<script id="data" type="application/json">{"samples": []}</script>'
    )
    for argv, said in (
        (['p.html'], 'p.html cannot be read as the page of a replay'),
        (['q.html'], 'q.html cannot be'),
        (['p.html', 'q.html'], 'name one page'),
        (['p.html', '--x=time'], 'leave out x'),
        (['p.html', '--out=p.png'], 'must end in .svg'),
    ):
        with pytest.raises(ValueError, match=said):
            plot.main(
                configure(vars(plot), [*argv] if '--out=p.png' in argv else [*argv, '-o', 'p.svg'])
            )
    with pytest.raises(ValueError, match='--html=a.html, then python plot.py a.html -o a.svg'):
        check_page('a.svg')
