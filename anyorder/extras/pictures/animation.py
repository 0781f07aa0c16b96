"""How does a replay play without a script? As one SVG.

Its style sheet shows tokens at their steps. It plays as an image of a README, without network."""

import itertools
import json
import re
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

from anyorder.machine.files import read_text, reading
from anyorder.tokens.shown import columns_of, lay_out

TEMPLATE = Path(__file__).with_name('replay.svg')  # the look
PAGE = r'<script id="data" type="application/json">(.*)</script>'
WIDTH = 80  # columns of running text: few source files have longer lines
LETTER = 0.6  # width of a letter in a monospaced font, as a share of the font's size
N_SHADES = 8  # colours of probability in the template: c0 is the least

# pixels
TEXT_FONT = 16  # of running text
LINE = 26  # between its lines
GRID_FONT = 20  # of a grid
CELL = 42  # its cells; longer texts have wider cells
MARGIN = 24  # around all
GAP = 40  # between samples
COUNT = 40  # between numbers of the counter

# seconds
STEP = 0.3  # a step
LONGEST = 14.0  # all steps together, at most
HOLD = 5.0  # the finished text


# the marks of the picture; their look is in the template
AREA = 'x="{:.5g}" y="{:.5g}" width="{:.5g}" height="{}" rx="3"'
CELLS = '<rect class="{}" {}/>'
FRAME = '<rect class="box" x="{}" y="{}" width="{side}" height="{side}"/>'
WORDS = '<text class="{}" x="{:g}" y="{:g}">{}</text>'
LETTERS = '<text {}x="{:.5g}" y="{:.5g}"{}>{}</text>'
GROUP = '<g {}>{}</g>'
# what moves: the bar, the counter and each step, which is hidden, outlined, then there
RULES = (
    '@keyframes bar{{0%{{transform:scaleX(0)}}{rest}}}\n'
    '@keyframes count{{0%{{transform:translateY({down}px);'
    'animation-timing-function:steps({n_steps})}}{rest}}}'
)
STEP_RULE = (
    '.s{k}{{animation-name:s{k}}}@keyframes s{k}{{'
    '0%,{before:.2f}%{{opacity:0;stroke:var(--now)}}{at:.2f}%{{opacity:1;stroke:var(--now)}}'
    '{until:.2f}%,100%{{opacity:1;stroke:transparent}}}}'
)


class Mark(NamedTuple):
    """The letters of one token on one line, and their place in pixels."""

    token: int
    x: float
    y: float
    width: float
    letters: str


class Pane(NamedTuple):
    """A part of the picture, and its size in pixels."""

    marks: str
    width: float
    height: float


def picture_of_page(path):
    """Return the animated_svg of a page, see replay.write_replay."""
    wrote = 'name what sample.py or puzzles solve wrote by --html'
    with reading(path, 'the page of a replay', wrote):
        data = re.search(PAGE, read_text(path))[1]
        return animated_svg(json.loads(data))


def animated_svg(replay):
    """Return one SVG that writes a sample token by token, holds its end and begins again.

    `replay` is what the page of a replay knows. Shown are the first sample and the one beside it,
    without drafts: each change of a draft would be a picture of its own. The tokens of step k are
    in groups of the classes "step sk". The keyframes sk hide a group until k / n_steps of the
    writing time have passed. A reader who wants no motion sees the end."""
    rows = replay['samples'][:1]
    if rows[0]['beside'] is not None:
        rows = [rows[0], replay['samples'][rows[0]['beside']]]
    n_steps = max(1, *(row['n_steps'] for row in rows))
    writing = min(LONGEST, STEP * n_steps)
    signs = signs_of(rows)

    # Where everything stands
    if replay['columns']:
        pane = side_by_side(rows, replay['columns'], replay['box'])
    else:
        pane = one_below_the_other(rows)
    details = replay['details']
    top = 62 + 22 * len(details)
    bottom = top + 24 + pane.height + 28
    width = max(pane.width, words_width(replay, signs))
    numbers = {
        'w': width + 2 * MARGIN,
        'h': bottom + 30,
        'paper_width': width + 2 * MARGIN - 1,
        'paper_height': bottom + 29,
        'seconds': writing + HOLD,
        'window': width + MARGIN - 200,
        'y': bottom,
    }
    return Template(TEMPLATE.read_text(encoding='utf-8')).substitute(
        {name: f'{x:g}' for name, x in numbers.items()},
        bar=f'x="{MARGIN}" y="{top}" width="{width:g}" height="3" rx="1.5"',
        rules=keyframes(n_steps, 100 * writing / (writing + HOLD)),
        title=xml(replay['title']),
        numbers=counter(width + MARGIN, n_steps),
        above=bottom - 11,
        signs=signs,
        details=lines_of_words(details, 62, 22, MARGIN),
        samples=moved(MARGIN, top + 24, pane.marks),
    )


def signs_of(rows):
    """Return what the signs of these samples mean."""
    signs = ['outlined: just written']
    if any(0 in row['rank'] for row in rows):
        signs.append('bold: given')
    if any(any(row['wrong']) for row in rows):
        signs.append('struck through: wrong')
    return ' · '.join(signs)


def words_width(replay, signs):
    """Return about how many pixels the longest of the words takes, heading and counter included."""
    widths = [11 * len(replay['title']) + 120, 270 + 6.5 * len(signs)]
    widths += [6.8 * len(line) for line in replay['details']]
    return max(widths)


def counter(x, n_steps):
    """Return all numbers below one another, behind a window that shows one.

    Without a script no text changes."""
    texts = [f'step {k} of {n_steps}' for k in range(n_steps + 1)]
    return lines_of_words(texts, 40 - COUNT * n_steps, COUNT, x, 'right')


def keyframes(n_steps, share):
    """Return the rules of what moves. The writing takes `share` percent."""
    rest = f'{share:.2f}%,100%{{transform:none}}'
    rules = [RULES.format(rest=rest, down=COUNT * n_steps, n_steps=n_steps)]
    for k in range(1, n_steps + 1):
        at = share * k / n_steps
        until = min(at + max(1.2 * share / n_steps, 3), 99.9)
        rules.append(STEP_RULE.format(k=k, before=at - 0.01, at=at, until=until))
    return '\n'.join(rules)


# --------------------------------------------------------------------------------------------------
# the samples


def side_by_side(rows, columns, box):
    """Return a Pane of grids: each between its name and its facts."""
    panes = ''
    x = 0
    height = 0
    for row in rows:
        grid = grid_of(row, columns, box)
        height = grid.height
        name = words(0, 12, row['name'], 'name')
        facts = lines_of_words(row['facts'][:2], height + 52, 20)
        panes += moved(x, 0, name + moved(0, 28, grid.marks) + facts)
        x += max(grid.width, 8 * len(row['name'])) + GAP
    return Pane(panes, x - GAP, height + 80)


def one_below_the_other(rows):
    """Return a Pane of texts: each above its facts."""
    panes = ''
    y = 0
    for row in rows:
        text = text_of(row)
        facts = words(0, text.height + 24, ' · '.join(row['facts']))
        panes += moved(0, y, text.marks + facts)
        y += text.height + 24 + GAP
    return Pane(panes, text.width, y - GAP)


def text_of(row):
    """Return a Pane of running text."""
    letter = LETTER * TEXT_FONT
    n_lines = 1
    marks = []
    for i, runs in enumerate(lay_out(row['text'], WIDTH)):
        for line, column, letters in runs:
            width = letter * columns_of(letters)
            marks.append(Mark(i, letter * column, LINE * line, width, letters))
            n_lines = line + 1
    drawn = draw(row, marks, LINE - 3, TEXT_FONT)
    return Pane(drawn, letter * (WIDTH + 1), LINE * n_lines)  # and a line end


def grid_of(row, columns, box):
    """Return a Pane of a grid, with the lines of the boxes of a Sudoku of `box` x `box` cells."""
    width = max([CELL, *(LETTER * GRID_FONT * columns_of(text) + 6 for text in row['text'])])
    marks = []
    for i, text in enumerate(row['text']):
        line, column = divmod(i, columns)
        marks.append(Mark(i, width * column, CELL * line, width, text))
    grid = draw(row, marks, CELL, GRID_FONT)
    starts = range(0, columns * CELL, box * CELL) if box else ()
    for x, y in itertools.product(starts, starts):
        grid += FRAME.format(x, y, side=box * CELL)
    n_lines = -(-len(marks) // columns)
    return Pane(GROUP.format('class="grid"', grid), width * columns, CELL * n_lines)


def draw(row, marks, height, font):
    """Return the places of all marks, and above these one group a step."""
    places = ''
    groups = {}
    for mark in marks:
        rank = row['rank'][mark.token]
        area = AREA.format(mark.x + 0.5, mark.y + 0.5, mark.width - 1, height - 1)
        groups.setdefault(rank, '')
        if rank:
            places += CELLS.format('blank', area)
            shade = min(N_SHADES - 1, int(row['p'][mark.token] * N_SHADES))
            groups[rank] += CELLS.format(f'c{shade}', area)
        else:
            places += CELLS.format('given', area)
        # the baseline that puts letters in the middle
        middle = mark.x + mark.width / 2, mark.y + height / 2 + 0.35 * font
        groups[rank] += draw_letters(mark.letters, *middle, font, kind_of(row, mark))
    for rank, group in sorted(groups.items()):
        kind = f'step s{rank}' if rank else 'prompt'
        places += GROUP.format(f'class="{kind}"', group)
    return places


def kind_of(row, mark):
    """Return the class of letters."""
    if not row['rank'][mark.token]:
        return 'known'
    if any(row['wrong'][mark.token : mark.token + 1]):
        return 'wrong'
    return 'end' if mark.letters.strip() == '↵' else ''


def draw_letters(letters, x, y, font, kind):
    """Return the letters around x; they keep to columns, whatever font the reader has."""
    ink = letters.strip()
    if not ink:
        return ''
    n_before = len(letters) - len(letters.lstrip())
    n_after = len(letters) - len(letters.rstrip())
    x += (n_before - n_after) * LETTER * font / 2
    kind = f'class="{kind}" ' if kind else ''
    width = ''
    if len(ink) > 1:
        width = f' textLength="{LETTER * font * columns_of(ink):.5g}"'
    return LETTERS.format(kind, x, y, width, xml(ink))


def lines_of_words(texts, y, height, x=0, kind=''):
    """Return lines of words, the first at y, from x to the right unless `kind` says otherwise."""
    return ''.join(words(x, y + height * i, text, kind) for i, text in enumerate(texts))


def words(x, y, text, kind=''):
    return WORDS.format(f'words {kind}'.strip(), x, y, xml(text))


def moved(x, y, marks):
    return GROUP.format(f'transform="translate({x:g} {y:g})"', marks)


def xml(text):
    """Return the text as XML may hold it."""
    letters = (letter if letter.isprintable() else '\ufffd' for letter in text)
    return escape(''.join(letters), quote=False)
