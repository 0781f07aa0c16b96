"""What does the terminal show of a generation? The text, redrawn in place as it is written.

sample.py --watch shows it."""

import math
import os
import re
import shutil
import sys
import time
from itertools import groupby
from operator import itemgetter

from anyorder.tokens.shown import columns_of, lay_out, to_the_right, token_texts

FRAME = 1 / 20  # seconds: steps that follow one another faster share a frame
SHADES = (189, 153, 117, 75, 33)  # of 256 colours: the blue of the page, deeper the surer the model
NEW = 214  # its orange: written since the last frame
NOT_A_STEP = math.inf


def visible(text):
    """Return text with escapes in place of what would control a terminal."""
    return re.sub(r'[\x00-\x08\x0b-\x1f\x7f-\x9f]', lambda found: f'\\x{ord(found[0]):02x}', text)


def has_colours(environ=os.environ):
    """Return whether the terminal shows 256 colours, and the user wants any (no-color.org)."""
    if environ.get('NO_COLOR'):
        return False
    return '256color' in environ.get('TERM', '') or bool(environ.get('COLORTERM'))


class Watch:
    """Redraw the text in place, and count below it.

    Blanks are dots, tokens are shaded by confidence, new ones are highlighted. A text that is
    higher than the terminal is shown from where new tokens begin. Silent if `out` is no terminal.
    With `columns` the text is a grid: a row is a line, where the terminal is wide enough."""

    def __init__(self, tokenizer, out=None, columns=0):
        self.tokenizer = tokenizer
        self.out = out or sys.stdout
        self.columns = columns
        self.step = NOT_A_STEP  # of the last call
        self.shown = NOT_A_STEP  # of the last frame
        self.frame_at = 0.0
        self.n_lines = 0  # of the last frame
        self.top = 0  # the line of the text on top of it

    def __call__(self, tokens, steps, step, logprob):
        """Show one sequence after `step`.

        tokens    in natural order, as all lists here
        steps     -1 for a token that is known from the start, None for a blank
        logprob   nats of each token"""
        if not self.out.isatty():
            return
        if step <= self.step:  # another text
            self.shown = -1
        self.step = step
        n_blanks = sum(s != -1 for s in steps)
        n_written = sum(s is not None and s >= 0 for s in steps)
        if n_written < n_blanks and time.perf_counter() < self.frame_at + FRAME:
            return
        count = f'step {step + 1} · {n_written} of {n_blanks} tokens'
        self.draw(tokens, steps, logprob, count)
        self.shown = step
        self.frame_at = time.perf_counter()

    def draw(self, tokens, steps, logprob, count):
        """Draw a frame in place of the last one."""
        width, height = shutil.get_terminal_size((80, 24))
        lines, new = self.lines(tokens, steps, logprob, max(2, width - 1))
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

    def lines(self, tokens, steps, logprob, width):
        """Return the lines of the text, painted, and the numbers of those that have new tokens."""
        seen = [None if step is None else token for token, step in zip(tokens, steps)]
        texts = token_texts(seen, self.tokenizer)
        if self.columns:
            cell = 1 + max(map(columns_of, texts))
            texts = [to_the_right(text, cell) for text in texts]
            width = min(width, cell * self.columns)
        else:
            texts = [text + self.tokenizer.separator for text in texts]
        marks = []  # (line, style, letter)
        new = set()
        for i, letters in enumerate(lay_out(texts, width)):
            style = self.shade(steps[i], logprob[i])
            for line, letter in letters:
                marks.append((line, style, letter))
                if self.is_new(steps[i]):
                    new.add(line)
        return painted(marks), sorted(new)

    def is_new(self, step):
        """Return whether the last frame has not shown what was written in this step."""
        return step is not None and step > self.shown

    def shade(self, step, logprob):
        """Return the style of a token that was written in this step; None is a blank."""
        if step is None or step < 0:
            return ''
        is_new = self.is_new(step)
        if not has_colours():
            return '7' if is_new else ''
        deepest = len(SHADES) - 1
        shade = SHADES[min(deepest, int(math.exp(logprob) * len(SHADES)))]
        if is_new:
            shade = NEW
        return f'38;5;16;48;5;{shade}'  # black on it


def painted(marks):
    """Return lines of marks (line, style, letter), which come by line."""
    n_lines = 1 + max((line for line, _, _ in marks), default=0)
    lines = ['' for _ in range(n_lines)]
    for (line, style), run in groupby(marks, itemgetter(0, 1)):
        text = ''.join(letter for _, _, letter in run)
        if style:
            text = f'\x1b[{style}m{text}\x1b[0m'
        lines[line] += text
    return lines
