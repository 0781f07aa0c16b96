"""What does the terminal show of a generation? The text, redrawn in place as it is written (sample.py --watch)."""

import math
import os
import re
import shutil
import sys
import time
from itertools import groupby
from operator import itemgetter

from anyorder.generation.canvas import draft_at
from anyorder.machine.terminal import surviving
from anyorder.pictures.texts import columns_of, lay_out, token_texts

FRAME = 1 / 20  # seconds: steps that follow one another faster share a frame
TOKEN, WHOLE = 0.1, 4.0  # seconds that an eye wants for a token and for a whole text, at most
SHADES = (
    189,
    153,
    117,
    75,
    33,
)  # among 256 colours: the blue of the page, deeper the surer the model was
NEW = 214  # its orange: written since the last frame
DRAFT, STRUCK = '2', '9'  # faint, and struck through: no colours, for all terminals
NOT_A_STEP = math.inf


def visible(text):
    """text with escapes in place of what would control a terminal."""
    return re.sub(r'[\x00-\x08\x0b-\x1f\x7f-\x9f]', lambda found: f'\\x{ord(found[0]):02x}', text)


def has_colours(environ=os.environ):
    """Whether the terminal shows 256 colours, and the user wants any (no-color.org)."""
    return not environ.get('NO_COLOR') and (
        '256color' in environ.get('TERM', '') or bool(environ.get('COLORTERM'))
    )


class Watch:
    """Redraws the text in place, and counts below it. Blanks are dots, tokens are shaded by confidence, new ones are
    highlighted. Drafts are faint, and a wrong draft is struck through for one frame. A text that is higher than the
    terminal is shown from where new tokens begin. A model that is too fast for an eye is slowed down, to TOKEN seconds
    a token and at most WHOLE a text, in all `waited`. Silent if `out` is no terminal. With `columns` the text is a
    grid: a row is a line, or several of equal length."""

    def __init__(self, tokenizer, out=None, columns=0):
        self.tokenizer, self.out, self.columns = tokenizer, surviving(out or sys.stdout), columns
        self.step = self.shown = NOT_A_STEP  # the steps of the last call and of the last frame
        self.began = self.frame_at = self.waited = 0.0
        self.n_lines = self.top = 0  # lines of the last frame, and the line of the text on its top
        self.cell = (
            1 + max(columns_of(tokenizer.decode([i])) for i in range(tokenizer.n_tokens))
            if columns
            else 0
        )

    def __call__(self, tokens, steps, step, logprob, drafts=None):
        """Show one sequence after `step`.

        tokens    in natural order, as all lists here
        steps     -1 for a token that is known from the start, None for a blank
        logprob   nats of each token
        drafts    the drafts of each token until now, see scroll.Row; None if there are none"""
        if not self.out.isatty():
            return
        if step <= self.step:  # another text
            self.began, self.shown = time.perf_counter(), -1
        self.step = step
        n_blanks, n_written = (
            sum(s != -1 for s in steps),
            sum(s is not None and s >= 0 for s in steps),
        )
        early = (
            self.began
            + min(WHOLE, TOKEN * n_blanks) * n_written / max(1, n_blanks)
            - time.perf_counter()
        )
        if early > 0:
            time.sleep(early)
            self.waited += early
        if n_written == n_blanks or time.perf_counter() >= self.frame_at + FRAME:
            name, rate = (
                ('step', '')
                if drafts is None
                else ('pass', f' · {n_written / (step + 1):.1f} a pass')
            )
            count = f'{name} {step + 1} · {n_written} of {n_blanks} tokens{rate}'
            self.draw(tokens, steps, logprob, drafts or [[]] * len(tokens), count)
            self.shown, self.frame_at = step, time.perf_counter()

    def draw(self, tokens, steps, logprob, drafts, count):
        width, height = shutil.get_terminal_size((80, 24))
        lines, new = self.lines(tokens, steps, logprob, drafts, max(2, width - 1))
        n_shown = max(1, height - 3)
        if new:  # scrolled as little as will do
            self.top = min(max(self.top, new[-1] - n_shown + 1), new[0])
        self.top = max(0, min(self.top, len(lines) - n_shown))
        lines = [
            *lines[self.top : self.top + n_shown],
            count[: width - 1],
        ]  # a longer one would take two lines
        back = f'\x1b[{self.n_lines}F' if self.n_lines else ''
        self.out.write(back + '\x1b[J' + '\n'.join(lines) + '\n')
        self.out.flush()
        self.n_lines = len(lines)

    def lines(self, tokens, steps, logprob, drafts, width):
        """The lines of the text, painted, and the numbers of the lines that have new tokens."""
        seen, wrong = zip(*self.seen(tokens, steps, drafts))
        texts = token_texts(seen, self.tokenizer)
        # a line ends where a line end is written, not where it is a draft
        texts = [text.replace('\n', '↵') if s is None else text for text, s in zip(texts, steps)]
        if self.columns:
            texts = [' ' * (self.cell - columns_of(text)) + text for text in texts]
            width = self.cell * next(
                n for n in range(max(1, width // self.cell), 0, -1) if self.columns % n == 0
            )
        else:
            texts = [text + self.tokenizer.separator for text in texts]
        marks, new = [], set()  # marks: (line, style, letters)
        for i, runs in enumerate(lay_out(texts, width)):
            is_new = steps[i] is not None and steps[i] > self.shown
            style = (
                DRAFT
                if steps[i] is None and seen[i] is not None
                else self.style(steps[i], logprob[i], is_new)
            )
            style = f'{style};{STRUCK}' if wrong[i] else style
            marks += [(line, style, letters) for line, _, letters in runs]
            new |= {line for line, _, _ in runs if is_new}
        lines = [''] * (1 + max((line for line, _, _ in marks), default=0))
        for (line, style), run in groupby(marks, itemgetter(0, 1)):
            text = ''.join(letters for _, _, letters in run)
            lines[line] += f'\x1b[{style}m{text}\x1b[0m' if style else text
        return lines, sorted(new)

    def seen(self, tokens, steps, drafts):
        """Pairs (token that is shown or None, whether it is a draft that was found wrong since the last frame)."""
        for token, step, history in zip(tokens, steps, drafts):
            now = draft_at(history, self.step) if step is None else token
            before = draft_at(history, self.shown) if step is None or step > self.shown else None
            wrong = (
                before not in (None, now) and None in steps
            )  # the last frame shows what is written
            yield (before if wrong else now), wrong

    def style(self, step, logprob, is_new):
        """The numbers of an escape sequence; '' is plain."""
        if step is None or step < 0:
            return ''
        if not has_colours():
            return '7' if is_new else ''
        shade = (
            NEW if is_new else SHADES[min(len(SHADES) - 1, int(math.exp(logprob) * len(SHADES)))]
        )
        return f'38;5;16;48;5;{shade}'  # black on it
