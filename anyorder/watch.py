"""
What does the terminal show of a generation? The text, redrawn in place as it is written (sample.py --watch).
"""
import math
import os
import re
import shutil
import sys
import time
from itertools import groupby
from operator import itemgetter

from anyorder.texts import lay_out, token_texts

FRAME = 1 / 20                      # seconds: steps that follow one another faster share a frame
TOKEN, WHOLE = 0.1, 4.0             # seconds that an eye wants for a token and for a whole text, at most
SHADES = (189, 153, 117, 75, 33)    # of 256 colours: the blue of the page, deeper the surer the model was
NEW = 214                           # its orange: written since the last frame
NOT_A_STEP = math.inf


def visible(text):
    """text with escapes in place of what would control a terminal."""
    return re.sub(r'[\x00-\x08\x0b-\x1f\x7f-\x9f]', lambda found: f'\\x{ord(found[0]):02x}', text)


def has_colours(environ=os.environ):
    """Whether the terminal shows 256 colours, and the user wants any (no-color.org)."""
    return not environ.get('NO_COLOR') and ('256color' in environ.get('TERM', '') or bool(environ.get('COLORTERM')))


class Watch:
    """Redraws the text in place, and counts below it.

    Blanks are dots, tokens are shaded by confidence, new ones are highlighted. Of a text that is higher than the
    terminal the part is shown in which the new tokens begin. A model that is too fast for an eye is slowed down, to
    TOKEN seconds a token and WHOLE seconds a text; `waited` is the sum of what was added. Silent if `out` is no
    terminal."""

    def __init__(self, tokenizer, out=None):
        self.tokenizer, self.out = tokenizer, out or sys.stdout
        self.step = self.shown = NOT_A_STEP   # of the last call, of the last frame
        self.began = self.frame_at = self.waited = 0.0
        self.n_lines = self.top = 0           # of the last frame: its lines, and the line of the text on top

    def __call__(self, tokens, steps, step, logprob):
        """Show one sequence after `step`.

        tokens    in natural order, as all lists here
        steps     of each token: -1 if it is known from the start, None while it is blank
        logprob   of each token, in nats"""
        if not self.out.isatty():
            return
        if step <= self.step:                 # another text
            self.began, self.shown = time.perf_counter(), -1
        self.step = step
        n_blanks, n_written = sum(s != -1 for s in steps), sum(s is not None and s >= 0 for s in steps)
        self.wait_until(self.began + min(WHOLE, TOKEN * n_blanks) * n_written / max(1, n_blanks))
        if n_written == n_blanks or time.perf_counter() >= self.frame_at + FRAME:
            self.draw(tokens, steps, logprob, f'step {step + 1} · {n_written} of {n_blanks} tokens')
            self.shown, self.frame_at = step, time.perf_counter()

    def wait_until(self, moment):
        seconds = moment - time.perf_counter()
        if seconds > 0:
            time.sleep(seconds)
            self.waited += seconds

    def draw(self, tokens, steps, logprob, count):
        width, height = shutil.get_terminal_size((80, 24))
        lines, new = self.lines(tokens, steps, logprob, max(2, width - 1))
        n_shown = max(1, height - 3)
        if new:                               # scrolled as little as will do
            self.top = min(max(self.top, new[-1] - n_shown + 1), new[0])
        self.top = max(0, min(self.top, len(lines) - n_shown))
        lines = [*lines[self.top:self.top + n_shown], count]
        back = f'\x1b[{self.n_lines}F' if self.n_lines else ''
        self.out.write(back + '\x1b[J' + '\n'.join(lines) + '\n')
        self.out.flush()
        self.n_lines = len(lines)

    def lines(self, tokens, steps, logprob, width):
        """The lines of the text, painted, and the numbers of the lines that have new tokens."""
        there = [s is not None for s in steps]
        texts = [text if t else '·' for text, t in zip(token_texts(tokens, self.tokenizer, there), there)]
        marks, new = [], set()                # marks: (line, style, letters)
        for runs, s, x in zip(lay_out(texts, width), steps, logprob):
            is_new = s is not None and s > self.shown
            for line, _, letters in runs:
                marks.append((line, self.style(s, x, is_new), letters))
                if is_new:
                    new.add(line)
        lines = [''] * (1 + max((line for line, _, _ in marks), default=0))
        for (line, style), run in groupby(marks, itemgetter(0, 1)):
            lines[line] += paint(style, ''.join(letters for _, _, letters in run))
        return lines, sorted(new)

    def style(self, step, logprob, is_new):
        """The numbers of an escape sequence; '' is plain."""
        if step is None or step < 0:
            return ''
        if not has_colours():
            return '7' if is_new else ''
        shade = NEW if is_new else SHADES[min(len(SHADES) - 1, int(math.exp(logprob) * len(SHADES)))]
        return f'38;5;16;48;5;{shade}'        # black on it


def paint(style, letters):
    return f'\x1b[{style}m{letters}\x1b[0m' if style else letters
