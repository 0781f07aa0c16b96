"""
What does the terminal show of a generation? The text, redrawn in place as it is written (sample.py --watch).
"""
import re
import shutil
import sys
import unicodedata

from anyorder.replay import token_texts


def visible(text):
    """text with escapes in place of what would control a terminal."""
    return re.sub(r'[\x00-\x08\x0b-\x1f\x7f-\x9f]', lambda found: f'\\x{ord(found[0]):02x}', text)


HIGHLIGHT = '\x1b[7m'


def columns_of(letter):
    """How many columns of a terminal a letter takes."""
    return 0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in 'WF' else 1


class Watch:
    """Redraws the text in place: blanks as dots, the tokens of the last step highlighted. Of a text that is higher than the terminal it
    shows the part in which these begin. Silent when `out` is no terminal."""

    def __init__(self, tokenizer, out=sys.stdout):
        self.tokenizer, self.out, self.drawn, self.top = tokenizer, out, 0, 0

    def __call__(self, tokens, steps, step):
        """tokens and steps (natural order; -1 known from the start) of one sequence after `step`; tokens without a step yet are blank."""
        if self.out.isatty():
            width, height = shutil.get_terminal_size((80, 24))
            lines, n_shown = self.lines(tokens, steps, step, max(2, width - 1)), max(1, height - 2)
            new = [i for i, line in enumerate(lines) if HIGHLIGHT in line] or [self.top]
            self.top = min(max(self.top, new[-1] - n_shown + 1), new[0])   # scrolled as little as will do
            self.top = max(0, min(self.top, len(lines) - n_shown))
            lines = lines[self.top:self.top + n_shown]
            self.out.write(f'\x1b[{self.drawn}F' * bool(self.drawn) + '\x1b[J' + '\n'.join(lines) + '\n')
            self.out.flush()
            self.drawn = len(lines)

    def lines(self, tokens, steps, step, width):
        lines, column = [''], 0
        for text, s in zip(token_texts(tokens, self.tokenizer, [s is not None for s in steps]), steps):
            for letter in '·' if s is None else text:
                if letter == '\n' or column + columns_of(letter) > width:
                    lines.append('')
                    column = 0
                letter = ' ' if letter.isspace() and letter != '\n' else letter
                if letter.isprintable():
                    lines[-1] += f'{HIGHLIGHT}{letter}\x1b[0m' if s == step else letter
                    column += columns_of(letter)
        return lines
