"""How does a replay play without a script? As one SVG whose style sheet shows every token at its step.

It plays as an image of a README, and needs no network."""

import itertools
import json
import re
from html import escape
from pathlib import Path
from string import Template

from anyorder.machine.files import read_text, reading
from anyorder.pictures.texts import columns_of, lay_out

TEMPLATE = Path(__file__).with_name('replay.svg')  # the look
WIDTH = 80  # columns of running text: few source files have longer lines
LETTER = 0.6  # width of a letter in a monospaced font, as a share of the font's size
TEXT_FONT, LINE = 16, 26  # pixels: font and distance of the lines of running text
GRID_FONT, CELL = 20, 42  # pixels: font and cells of a grid; longer texts have wider cells
MARGIN, GAP, COUNT = (
    24,
    40,
    40,
)  # pixels: around all, between samples, between numbers of the counter
STEP, LONGEST, HOLD = (
    0.3,
    14.0,
    5.0,
)  # seconds: a step, all steps together at most, the finished text
N_SHADES = 8  # colours of probability in the template: c0 is the least


def picture_of_page(path):
    """animated_svg of a page, see write_replay."""
    with reading(
        path, 'the page of a replay', 'name what sample.py or eval_puzzle.py wrote by --html'
    ):
        replay = re.search(
            r'<script id="data" type="application/json">(.*)</script>', read_text(path)
        )[1]
        return animated_svg(json.loads(replay))


def animated_svg(replay):
    """One SVG that writes a sample token by token, holds its end for some seconds and begins again. `replay` is what
    the page of a replay knows. Shown are the first sample and the one beside it, without drafts: each change of a draft
    would be a picture of its own. The tokens of step k are in groups of the classes "step sk". The keyframes sk hide a
    group until k / n_steps of the writing time have passed. A reader who wants no motion sees the end."""
    first = replay['samples'][0]
    rows = [first] if first['beside'] is None else [first, replay['samples'][first['beside']]]
    n_steps = max(1, *(row['n_steps'] for row in rows))
    writing = min(LONGEST, STEP * n_steps)

    top = 62 + 22 * len(replay['details'])
    panes, width, height = (
        side_by_side(rows, replay) if replay['columns'] else one_below_the_other(rows)
    )
    given, wrong = any(0 in row['rank'] for row in rows), any(any(row['wrong']) for row in rows)
    signs = 'outlined: just written' + ' · bold: given' * given + ' · struck through: wrong' * wrong
    width = max(
        width,
        11 * len(replay['title']) + 120,
        270 + 6.5 * len(signs),  # about what the words take
        *(6.8 * len(line) for line in replay['details']),
    )
    bottom = top + 24 + height + 28
    w, h = width + 2 * MARGIN, bottom + 30
    # all numbers below one another, behind a window that shows one: without a script no text changes
    numbers = (
        words(width + MARGIN, 40 - COUNT * (n_steps - k), f'step {k} of {n_steps}', 'right')
        for k in range(n_steps + 1)
    )
    return Template(TEMPLATE.read_text(encoding='utf-8')).substitute(
        w=f'{w:g}',
        h=f'{h:g}',
        paper_width=f'{w - 1:g}',
        paper_height=f'{h - 1:g}',
        seconds=f'{writing + HOLD:g}',
        bar=f'x="{MARGIN}" y="{top}" width="{width:g}" height="3" rx="1.5"',
        rules=keyframes(n_steps, 100 * writing / (writing + HOLD)),
        title=xml(replay['title']),
        window=f'{width + MARGIN - 200:g}',
        numbers=''.join(numbers),
        y=f'{bottom:g}',
        above=bottom - 11,
        signs=signs,
        details=''.join(
            words(MARGIN, 62 + 22 * i, line) for i, line in enumerate(replay['details'])
        ),
        samples=moved(MARGIN, top + 24, panes),
    )


def keyframes(n_steps, share):
    """What moves: bar, counter, and each step: hidden, outlined, then there. The writing takes `share` percent."""
    rest = f'{share:.2f}%,100%{{transform:none}}'
    first = f'0%{{transform:translateY({COUNT * n_steps}px);animation-timing-function:steps({n_steps})}}'
    rules = [
        f'@keyframes bar{{0%{{transform:scaleX(0)}}{rest}}}',
        f'@keyframes count{{{first}{rest}}}',
    ]
    for k in range(1, n_steps + 1):
        at = share * k / n_steps
        outlined = min(at + max(1.2 * share / n_steps, 3), 99.9)
        rules.append(
            f'.s{k}{{animation-name:s{k}}}@keyframes s{k}{{0%,{at - 0.01:.2f}%{{opacity:0;stroke:var(--now)}}'
            f'{at:.2f}%{{opacity:1;stroke:var(--now)}}{outlined:.2f}%,100%{{opacity:1;stroke:transparent}}}}'
        )
    return '\n'.join(rules)


def xml(text):
    """The text as XML may hold it."""
    return escape(
        ''.join(letter if letter.isprintable() else '\ufffd' for letter in text), quote=False
    )


def words(x, y, text, kind=''):
    return f'<text class="{f"words {kind}".strip()}" x="{x:g}" y="{y:g}">{xml(text)}</text>'


def moved(x, y, marks):
    return f'<g transform="translate({x:g} {y:g})">{marks}</g>'


def side_by_side(rows, replay):
    """(marks, width, height) of grids: each between its name and its facts."""
    panes, x, height = '', 0, 0
    for row in rows:
        grid, width, height = grid_of(row, replay['columns'], replay['box'])
        facts = ''.join(
            words(0, height + 52 + 20 * i, fact) for i, fact in enumerate(row['facts'][:2])
        )
        panes += moved(x, 0, words(0, 12, row['name'], 'name') + moved(0, 28, grid) + facts)
        x += max(width, 8 * len(row['name'])) + GAP
    return panes, x - GAP, height + 80


def one_below_the_other(rows):
    """(marks, width, height) of texts: each above its facts."""
    panes, y, width = '', 0, 0
    for row in rows:
        text, width, height = text_of(row)
        panes += moved(0, y, text + words(0, height + 24, ' · '.join(row['facts'])))
        y += height + 24 + GAP
    return panes, width, y - GAP


def text_of(row):
    """(marks, width, height) of running text."""
    letter, n_lines, marks = LETTER * TEXT_FONT, 1, []
    for i, runs in enumerate(lay_out(row['text'], WIDTH)):
        for line, column, letters in runs:
            marks.append((i, letter * column, LINE * line, letter * columns_of(letters), letters))
            n_lines = line + 1
    return (
        draw(row, marks, LINE - 3, TEXT_FONT),
        letter * (WIDTH + 1),
        LINE * n_lines,
    )  # and a line end


def grid_of(row, columns, box):
    """(marks, width, height) of a grid, with the lines of the boxes of a Sudoku."""
    width = max([CELL, *(LETTER * GRID_FONT * columns_of(text) + 6 for text in row['text'])])
    marks = [
        (i, width * (i % columns), CELL * (i // columns), width, text)
        for i, text in enumerate(row['text'])
    ]
    boxes = ''
    for x, y in itertools.product(range(0, columns, box), repeat=2) if box else ():
        boxes += f'<rect class="box" x="{x * CELL}" y="{y * CELL}" width="{box * CELL}" height="{box * CELL}"/>'
    n_lines = -(-len(marks) // columns)
    return (
        f'<g class="grid">{draw(row, marks, CELL, GRID_FONT)}{boxes}</g>',
        width * columns,
        CELL * n_lines,
    )


def draw(row, marks, height, font):
    """The places of all marks, and above these one group a step. A mark is (token, x, y, width, letters): the letters
    of one token on one line, and their place in pixels."""
    places, groups = '', {}
    for token, x, y, width, letters in marks:
        rank = row['rank'][token]
        area = f'x="{x + 0.5:.5g}" y="{y + 0.5:.5g}" width="{width - 1:.5g}" height="{height - 1}" rx="3"'
        places += f'<rect class="{"blank" if rank else "given"}" {area}/>'
        shade = min(N_SHADES - 1, int(row['p'][token] * N_SHADES))
        colour = f'<rect class="c{shade}" {area}/>' if rank else ''
        kind = (
            'wrong'
            if any(row['wrong'][token : token + 1])
            else 'end'
            if letters.strip() == '↵'
            else ''
        )
        kind = kind if rank else 'known'
        middle = (
            x + width / 2,
            y + height / 2 + 0.35 * font,
        )  # the baseline that puts letters in the middle
        groups[rank] = groups.get(rank, '') + colour + draw_letters(letters, *middle, font, kind)
    for rank, group in sorted(groups.items()):
        places += f'<g class="{f"step s{rank}" if rank else "prompt"}">{group}</g>'
    return places


def draw_letters(letters, x, y, font, kind):
    """The letters around x; they keep to columns, whatever font the reader has."""
    ink = letters.strip()
    if not ink:
        return ''
    shift = len(letters) - len(letters.lstrip()) - (len(letters) - len(letters.rstrip()))
    kind = f' class="{kind}"' if kind else ''
    length = f' textLength="{LETTER * font * columns_of(ink):.5g}"' if len(ink) > 1 else ''
    return (
        f'<text{kind} x="{x + shift * LETTER * font / 2:.5g}" y="{y:.5g}"{length}>{xml(ink)}</text>'
    )
