"""
How does a replay play without a script? One SVG whose style sheet shows every token at its step, for a README or a slide.
"""
import itertools
from html import escape

from anyorder.texts import columns_of, lay_out

WIDTH = 80                                     # columns of running text: few source files have longer lines
LETTER, LINE, CELL = 9.6, 26, 42               # pixels: width of a letter, height of a line, side of a cell of a grid
MARGIN, GAP = 24, 40                           # pixels: around all, and between two samples
STEP, LONGEST, HOLD = 0.3, 14.0, 5.0           # seconds: of a step, of all steps together at most, of the finished text
N_SHADES = 8
LIGHT, DARK = (90, 62), (20, 44)               # lightness in percent of probability 0 and 1, on light and on dark paper

STYLE = '''
  svg { --ink: #1c1c1e; --paper: #fbfaf7; --soft: #6b6b70; --line: #d8d6cf; --blank: #eeece6; --now: #e8710a; --bad: #a80f0f }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #ececea; --paper: #17181b; --soft: #9a9aa0; --line: #3b3c42; --blank: #232529; --now: #ff9d45; --bad: #ffa3a3 } }
  text { font: 16px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink);
         text-anchor: middle; stroke: none }
  .words { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; text-anchor: start; fill: var(--soft) }
  .heading { font-size: 19px; font-weight: 600; fill: var(--ink) }
  .name { font-weight: 600; fill: var(--ink) }
  .right { text-anchor: end }
  .paper { fill: var(--paper); stroke: var(--line) }
  .blank { fill: var(--blank) }
  .given { fill: none }
  .grid .given, .grid .blank { stroke: var(--line) }
  .grid text { font-size: 20px }
  .known { font-weight: 700 }
  .wrong { fill: var(--bad); font-weight: 700; text-decoration: line-through }
  .end { fill: var(--soft) }
  .box { fill: none; stroke: var(--soft); stroke-width: 2 }
  .track { fill: var(--line) }
  .bar { fill: var(--soft); transform-box: fill-box; transform-origin: left; animation-name: bar }
  .count { animation-name: count }
  .step { stroke-width: 1.5 }
  .step, .bar, .count { animation-duration: %gs; animation-timing-function: linear; animation-iteration-count: infinite }
  @media (prefers-reduced-motion: reduce) { .step, .bar, .count { animation-name: none !important } }
'''


def animated_svg(replay):
    """One SVG that writes the first sample, and the one beside it, token by token, holds the end for some seconds and begins again.

    The tokens of step k are in groups of the classes "step sk". The keyframes sk hide these until k / n_steps of the writing time."""
    first, columns = replay['samples'][0], replay['columns']
    rows = [first] if first['beside'] is None else [first, replay['samples'][first['beside']]]
    n_steps = max(1, *(row['n_steps'] for row in rows))
    writing = min(LONGEST, STEP * n_steps)
    share = 100 * writing / (writing + HOLD)                                     # percent of the loop
    top = 62 + 22 * len(replay['details'])
    panes, width, height = side_by_side(rows, replay) if columns else one_below_the_other(rows)
    said = signs(rows)
    width = max(width, 11 * len(replay['title']) + 120, 270 + 6.5 * len(said))    # about what the words take
    legend = top + 24 + height + 28
    w, h = width + 2 * MARGIN, legend + 30
    details = ''.join(words(MARGIN, 62 + 22 * i, line) for i, line in enumerate(replay['details']))
    bar = f'x="{MARGIN}" y="{top}" width="{width:g}" height="3" rx="1.5"'
    return f'''<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:g} {h:g}" width="{w:g}" height="{h:g}">
<title>{text_of(replay["title"])}</title>
<style>{STYLE % (writing + HOLD)}{shades()}{keyframes(n_steps, share)}</style>
<rect class="paper" x=".5" y=".5" width="{w - 1:g}" height="{h - 1:g}" rx="10"/>
{words(MARGIN, 40, replay["title"], "heading")}{details}{counter(n_steps, width + MARGIN)}
<rect class="track" {bar}/><rect class="bar" {bar}/>
<g transform="translate({MARGIN} {top + 24})">{panes}</g>
{key(legend, said)}
</svg>
'''


def side_by_side(rows, replay):
    """(panes, width, height) of puzzles: each a grid between its name and its facts."""
    panes, x, height = '', 0, 0
    for row in rows:
        marks, width, height = grid_marks(row, replay['columns'], replay['box'])
        said = ''.join(words(0, height + 52 + 20 * i, fact) for i, fact in enumerate(row['facts'][:2]))
        panes += f'<g transform="translate({x:g} 0)">{words(0, 12, row["name"], "name")}{moved(28, marks)}{said}</g>'
        x += max(width, 8 * len(row['name'])) + GAP
    return panes, x - GAP, height + 80


def one_below_the_other(rows):
    """(panes, width, height) of texts: each above its facts."""
    panes, y, width = '', 0, 0
    for row in rows:
        marks, width, height = text_marks(row)
        panes += moved(y, marks + words(0, height + 24, ' · '.join(row['facts'])))
        y += height + 24 + GAP
    return panes, width, y - GAP


def moved(y, marks):
    return f'<g transform="translate(0 {y:g})">{marks}</g>'


def keyframes(n_steps, share):
    """Of the bar, of the counter, and of every step: hidden, then there, outlined for a moment. `share` percent of the loop is writing."""
    bar = f'0%{{transform:scaleX(0)}}{share:.2f}%,100%{{transform:none}}'
    count = (f'0%{{transform:translateY({COUNT * n_steps}px);animation-timing-function:steps({n_steps})}}'
             f'{share:.2f}%,100%{{transform:none}}')
    rules = [f'@keyframes bar{{{bar}}}', f'@keyframes count{{{count}}}']
    for k in range(1, n_steps + 1):
        at = share * k / n_steps
        glow = min(at + max(1.2 * share / n_steps, 3), 99.9)
        rules.append(f'.s{k}{{animation-name:s{k}}}@keyframes s{k}{{0%,{at - 0.01:.2f}%{{opacity:0;stroke:var(--now)}}'
                     f'{at:.2f}%{{opacity:1;stroke:var(--now)}}{glow:.2f}%,100%{{opacity:1;stroke:transparent}}}}')
    return '\n'.join(rules)


COUNT = 40   # pixels between two numbers of the counter, of which the clip shows one


def counter(n_steps, right):
    """All numbers one below the other, behind a window that shows one: without a script a text cannot change. The last is at rest."""
    numbers = [words(right, 40 - COUNT * (n_steps - k), f'step {k} of {n_steps}', 'right') for k in range(n_steps + 1)]
    return (f'<clipPath id="window"><rect x="{right - 200:g}" y="20" width="200" height="30"/></clipPath>'
            f'<g clip-path="url(#window)"><g class="count">{"".join(numbers)}</g></g>')


def shades():
    """Colours of probability, c0 the least: one hue, which is deeper the surer the model was."""
    def rules(light, deep):
        return ''.join(f'.c{i}{{fill:hsl(212,70%,{light + (deep - light) * i / (N_SHADES - 1):.0f}%)}}' for i in range(N_SHADES))
    return f'\n{rules(*LIGHT)}\n@media (prefers-color-scheme: dark){{{rules(*DARK)}}}\n'


def shade_of(p):
    return f'c{min(N_SHADES - 1, int(p * N_SHADES))}'


def text_of(text):
    """text as XML may hold it."""
    return escape(''.join(letter if letter.isprintable() else '\ufffd' for letter in text), quote=False)


def words(x, y, text, kind=''):
    return f'<text class="{f"words {kind}".strip()}" x="{x:g}" y="{y:g}">{text_of(text)}</text>'


def text_marks(row):
    """(marks, width, height) of running text."""
    runs = [(i, run) for i, place in enumerate(lay_out(row['text'], WIDTH)) for run in place]
    marks = [text_mark(row, i, *run) for i, run in runs]
    n_lines = 1 + max((line for _, (line, _, _) in runs), default=0)
    return draw(marks, LINE - 3), (WIDTH + 1) * LETTER, n_lines * LINE


def text_mark(row, i, line, column, letters):
    x, y, ink = column * LETTER, line * LINE, letters.strip()
    start = x + LETTER * (len(letters) - len(letters.lstrip()))
    length = LETTER * sum(map(columns_of, ink))
    fixed = f' textLength="{length:.5g}"' if len(ink) > 1 else ''   # fonts of other widths stay on the grid
    text = text_element(row, i, start + length / 2, y + 17, ink, fixed)
    return row, i, x, y, LETTER * sum(map(columns_of, letters)), text


def grid_marks(row, columns, box):
    """(marks, width, height) of a puzzle, with the lines of its boxes."""
    marks = []
    for i, letters in enumerate(row['text']):
        x, y = i % columns * CELL, i // columns * CELL
        marks.append((row, i, x, y, CELL, text_element(row, i, x + CELL / 2, y + CELL / 2 + 7, letters)))
    boxes = ''
    for x, y in itertools.product(range(0, columns, box), repeat=2) if box else ():
        boxes += f'<rect class="box" x="{x * CELL}" y="{y * CELL}" width="{box * CELL}" height="{box * CELL}"/>'
    return f'<g class="grid">{draw(marks, CELL)}{boxes}</g>', columns * CELL, -(-len(marks) // columns) * CELL


def text_element(row, i, x, y, letters, attributes=''):
    kind = 'known' if row['rank'][i] == 0 else 'wrong' if any(row['wrong'][i:i + 1]) else 'end' if letters == '↵' else ''
    kind = f' class="{kind}"' if kind else ''
    return f'<text{kind} x="{x:.5g}" y="{y:.5g}"{attributes}>{text_of(letters)}</text>' if letters else ''


def draw(marks, height):
    """The places of all tokens, and above these one group a step. marks: (row, token, x, y, width, text)."""
    places, groups = '', {}
    for row, i, x, y, width, text in marks:
        rank = row['rank'][i]
        area = f'x="{x + 0.5:.5g}" y="{y + 0.5:.5g}" width="{width - 1:.5g}" height="{height - 1}" rx="3"'
        places += f'<rect class="{"blank" if rank else "given"}" {area}/>'
        colour = f'<rect class="{shade_of(row["p"][i])}" {area}/>' if rank else ''
        groups[rank] = groups.get(rank, '') + colour + text
    return places + ''.join(f'<g class="{f"step s{rank}" if rank else "prompt"}">{group}</g>' for rank, group in sorted(groups.items()))


def signs(rows):
    """What the marks mean that `rows` have."""
    said = ['outlined: just written']
    if any(0 in row['rank'] for row in rows):
        said.append('bold: given')
    if any(any(row['wrong']) for row in rows):
        said.append('struck through: wrong')
    return ' · '.join(said)


def key(y, said):
    """What the colours mean, and the marks."""
    swatches = ''.join(f'<rect class="c{i}" x="{MARGIN + 54 + 18 * i}" y="{y - 11}" width="18" height="12"/>' for i in range(N_SHADES))
    return words(MARGIN, y, 'unsure') + swatches + words(MARGIN + 62 + 18 * N_SHADES, y, f'sure · {said}')
