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

from anyorder.generation.scroll import draft_at
from anyorder.machine.terminal import surviving
from anyorder.tokens.shown import columns_of, lay_out, to_the_right, token_texts

FRAME = 1 / 20  # seconds: steps that follow one another faster share a frame
TOKEN = 0.1  # seconds that an eye wants for a token
WHOLE = 4.0  # seconds that an eye wants for a whole text, at most
SHADES = (189, 153, 117, 75, 33)  # of 256 colours: the blue of the page, deeper the surer the model
NEW = 214  # its orange: written since the last frame
DRAFT = '2'  # faint: no colour, for all terminals
STRUCK = '9'  # struck through
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

    Blanks are dots, tokens are shaded by confidence, new ones are highlighted. Drafts are faint,
    and a wrong draft is struck through for one frame. A text that is higher than the terminal is
    shown from where new tokens begin. A model that is too fast for an eye is slowed down, to TOKEN
    seconds a token and at most WHOLE a text, in all `waited`. Silent if `out` is no terminal. With
    `columns` the text is a grid: a row is a line, or several of equal length."""

    def __init__(self, tokenizer, out=None, columns=0):
        self.tokenizer = tokenizer
        self.out = surviving(out or sys.stdout)
        self.columns = columns
        self.cell = cell_width(tokenizer) if columns else 0
        self.step = NOT_A_STEP  # of the last call
        self.shown = NOT_A_STEP  # of the last frame
        self.began = 0.0
        self.frame_at = 0.0
        self.waited = 0.0
        self.n_lines = 0  # of the last frame
        self.top = 0  # the line of the text on top of it

    def __call__(self, tokens, steps, step, logprob, drafts=None):
        """Show one sequence after `step`.

        tokens    in natural order, as all lists here
        steps     -1 for a token that is known from the start, None for a blank
        logprob   nats of each token
        drafts    the drafts of each token until now, see scroll.Row; None if there are none"""
        if not self.out.isatty():
            return
        if step <= self.step:  # another text
            self.began = time.perf_counter()
            self.shown = -1
        self.step = step
        n_blanks = sum(s != -1 for s in steps)
        n_written = sum(s is not None and s >= 0 for s in steps)
        self.wait_for_an_eye(n_blanks, n_written)
        if n_written < n_blanks and time.perf_counter() < self.frame_at + FRAME:
            return
        of_all = f'{n_written} of {n_blanks} tokens'
        count = f'step {step + 1} · {of_all}'
        if drafts is not None:
            count = f'pass {step + 1} · {of_all} · {n_written / (step + 1):.1f} a pass'
        self.draw(tokens, steps, logprob, drafts or [[] for _ in tokens], count)
        self.shown = step
        self.frame_at = time.perf_counter()

    def wait_for_an_eye(self, n_blanks, n_written):
        """Sleep until an eye has read what is written."""
        reading = min(WHOLE, TOKEN * n_blanks) * n_written / max(1, n_blanks)
        early = self.began + reading - time.perf_counter()
        if early > 0:
            time.sleep(early)
            self.waited += early

    def draw(self, tokens, steps, logprob, drafts, count):
        """Draw a frame in place of the last one."""
        width, height = shutil.get_terminal_size((80, 24))
        lines, new = self.lines(tokens, steps, logprob, drafts, max(2, width - 1))
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

    def lines(self, tokens, steps, logprob, drafts, width):
        """Return the lines of the text, painted, and the numbers of those that have new tokens."""
        seen = list(self.seen(tokens, steps, drafts))
        texts = self.texts([token for token, _ in seen], steps)
        if self.columns:
            width = self.row_width(width)
        marks = []  # (line, style, letters)
        new = set()
        for i, runs in enumerate(lay_out(texts, width)):
            style = self.style(*seen[i], steps[i], logprob[i])
            for line, _, letters in runs:
                marks.append((line, style, letters))
                if self.is_new(steps[i]):
                    new.add(line)
        return painted(marks), sorted(new)

    def seen(self, tokens, steps, drafts):
        """Yield the token that is shown or None, and whether it is a draft that was found wrong.

        Found wrong since the last frame; the last frame of all shows what is written."""
        is_last = None not in steps
        for token, step, history in zip(tokens, steps, drafts):
            now = draft_at(history, self.step) if step is None else token
            before = None
            if step is None or self.is_new(step):
                before = draft_at(history, self.shown)
            wrong = before not in (None, now) and not is_last
            shown = before if wrong else now
            yield shown, wrong

    def is_new(self, step):
        """Return whether the last frame has not shown what was written in this step."""
        return step is not None and step > self.shown

    def texts(self, tokens, steps):
        """Return the text of each token, in a grid as wide as a cell."""
        texts = token_texts(tokens, self.tokenizer)
        for i, step in enumerate(steps):
            if step is None:  # a line ends where a line end is written, not where it is a draft
                texts[i] = texts[i].replace('\n', '↵')
        if self.columns:
            return [to_the_right(text, self.cell) for text in texts]
        return [text + self.tokenizer.separator for text in texts]

    def row_width(self, width):
        """Return the columns of a line of a grid, at most `width`; a row is equal lines."""
        n_cells = max(1, width // self.cell)
        while self.columns % n_cells:
            n_cells -= 1
        return self.cell * n_cells

    def style(self, token, wrong, step, logprob):
        """Return the numbers of an escape sequence; '' is plain."""
        is_draft = step is None and token is not None
        style = DRAFT if is_draft else self.shade(step, logprob)
        return f'{style};{STRUCK}' if wrong else style

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


def cell_width(tokenizer):
    """Return the columns of a cell that holds every token, and of a space before it."""
    return 1 + max(columns_of(tokenizer.decode([i])) for i in range(tokenizer.n_tokens))


def painted(marks):
    """Return lines of marks (line, style, letters), which come by line."""
    n_lines = 1 + max((line for line, _, _ in marks), default=0)
    lines = ['' for _ in range(n_lines)]
    for (line, style), run in groupby(marks, itemgetter(0, 1)):
        text = ''.join(letters for _, _, letters in run)
        if style:
            text = f'\x1b[{style}m{text}\x1b[0m'
        lines[line] += text
    return lines
