"""What does the terminal show of a generation? The text, redrawn in place as it is written.

sample.py --watch shows it."""

import math
import os
import shutil
import sys
import time
from collections import defaultdict
from itertools import groupby
from operator import itemgetter

from anyorder.tokens.shown import columns_of, to_the_right, token_texts

FRAME = 1 / 20  # seconds: steps that follow one another faster share a frame
BLACK_ON = '38;5;16;48;5;'  # of 256 colours
SHADES = (189, 153, 117, 75, 33)  # the blue of the page, deeper the surer the model
NEW = ('7', BLACK_ON + '214')  # written since the last frame: without colours, and its orange


def has_colours(environ=os.environ):
    """Return whether the terminal shows 256 colours, and the user wants any (no-color.org)."""
    if environ.get('NO_COLOR'):
        return False
    return '256color' in environ.get('TERM', '') or bool(environ.get('COLORTERM'))


class Watch:
    """Redraw the text in place, and count below it.

    Blanks are dots, tokens are shaded by confidence, new ones are highlighted. A text that is
    higher than the terminal is shown from where new tokens begin. Silent if there is no terminal.
    With `columns` the text is a grid: a row is a line, where the terminal is wide enough."""

    def __init__(self, tokenizer, columns=0):
        self.tokenizer = tokenizer
        self.out = sys.stdout
        self.columns = columns
        self.shown = -1  # the step of the last frame
        self.frame_at = 0.0
        self.n_lines = 0  # of the last frame
        self.top = 0  # the line of the text on top of it

    def __call__(self, tokens, steps, logprob):
        """Show a text after a step, lists as Text.seen gives them."""
        if not self.out.isatty():
            return
        step = int(max(steps))
        if step <= self.shown:  # another text
            self.shown = -1
        n_blanks = tokens.count(-1)
        if n_blanks and time.perf_counter() < self.frame_at + FRAME:
            return
        n_written = sum(own >= 0 for own in steps)
        count = f'step {step + 1} · {n_written} of {n_written + n_blanks} tokens'
        styles = [*map(self.style, steps, logprob)]
        self.draw(token_texts(tokens, self.tokenizer), styles, count)
        self.shown = step
        self.frame_at = time.perf_counter()

    def draw(self, texts, styles, count):
        """Draw a frame of the texts of tokens in place of the last one."""
        width, height = shutil.get_terminal_size((80, 24))
        lines, new = self.lines(texts, styles, max(2, width - 1))
        n_shown = max(1, height - 3)
        if new:  # scrolled as little as will do
            self.top = min(max(self.top, new[-1] - n_shown + 1), new[0])
        self.top = max(0, min(self.top, len(lines) - n_shown))
        frame = lines[self.top : self.top + n_shown]
        frame.append(count[: width - 1])  # a longer one would take two lines
        back = f'\x1b[{self.n_lines}F' if self.n_lines else ''
        self.out.write(back + '\x1b[J' + '\n'.join(frame) + '\n')
        self.out.flush()
        self.n_lines = len(frame)

    def lines(self, texts, styles, width):
        """Return the lines of the text, painted, and the numbers of those that have new tokens."""
        if self.columns:
            cell = 1 + max(map(columns_of, texts))
            texts = [to_the_right(text, cell) for text in texts]
            width = min(width, cell * self.columns)
        else:
            texts = [text + self.tokenizer.separator for text in texts]
        marks = [(line, styles[i], letter) for line, i, letter in lay_out(texts, width)]
        lines = defaultdict(str)
        for (line, style), run in groupby(marks, itemgetter(0, 1)):
            text = ''.join(letter for _, _, letter in run)
            lines[line] += f'\x1b[{style}m{text}\x1b[0m' if style else text
        return [*lines.values()], [line for line, style, _ in marks if style in NEW]

    def style(self, step, logprob):
        """Return the style of a token that was written in this step, below 0 for a known or a
        blank one."""
        plain, orange = NEW
        if step < 0:
            return ''
        if step > self.shown:
            return orange if has_colours() else plain
        if not has_colours():
            return ''
        shade = int(math.exp(logprob) * len(SHADES))
        return f'{BLACK_ON}{SHADES[min(shade, len(SHADES) - 1)]}'


def lay_out(texts, width):
    """Yield the letters of texts that follow one another on lines of `width` columns: (line, number
    of the text, letter).

    A line end is shown as ↵ behind its line. Every kind of space is one space. What cannot be
    printed is left out."""
    line = 0
    column = 0
    for number, text in enumerate(texts):
        for letter in text:
            if letter == '\n':
                yield line, number, '↵'
                line += 1
                column = 0
                continue
            if letter.isspace():
                letter = ' '
            if not letter.isprintable():
                continue
            if column + columns_of(letter) > width:
                line += 1
                column = 0
            yield line, number, letter
            column += columns_of(letter)
