"""What is a pattern? A regular expression that a whole text matches."""

from dataclasses import dataclass

import numpy as np

from anyorder.extras.patterns.automaton import table_of
from anyorder.extras.patterns.syntax import check, without_ends


@dataclass(frozen=True)
class Pattern:
    """A regular expression that a whole text matches.

    text    the expression, in the syntax of Rust's crate regex, without comments, and without ^ at
            its start and $ at its end, which it has in any case
    within  whether what matches is a part of a text that begins behind other tokens: many
            tokenizers show the space of a token there alone

    `\\d`, `\\w` and `\\s` are those of Unicode, `.` is all but a new line. A text holds no NUL.
    Raises ValueError for what no automaton knows: look-around, word boundaries, back-references,
    and ^ or $ within."""

    text: str
    within: bool = False

    def __post_init__(self):
        if not isinstance(self.text, str):
            raise ValueError(
                f'a pattern is a regular expression as a string, got {type(self.text).__name__}'
            )
        object.__setattr__(self, 'text', without_ends(self.text))
        check(self.text, self)

    def __str__(self):
        """Show the pattern in a message."""
        shown = self.text
        if len(shown) > 60:
            shown = shown[:57] + '...'
        return f'the pattern {shown!r}'

    def table(self, tokenizer):
        """Return the Table of the pattern over the tokens of a tokenizer. See automaton.table_of
        for the errors."""
        return table_of(self, tokenizer)

    def lengths_between(self, tokenizer, least, most):
        """Return [n, ...] of the numbers of tokens from `least` to `most` that can match.

        Raises ValueError if there is none, with the nearest."""
        table = self.table(tokenizer)
        blanks = np.full(most + len(table.next), -1)
        can_match = np.flatnonzero(table.ends(blanks))
        borders = can_match.searchsorted([least, most + 1])
        shorter, found, longer = np.split(can_match, borders)
        if not found.size:
            size = f'{least} to {most}' if least < most else least
            near = ' and '.join(map(str, [*shorter[-1:], *longer[:1]]))
            raise ValueError(
                f'no text of {size} tokens matches {self}: the nearest that can match: {near}'
            )
        return found.tolist()

    def check(self, tokens, tokenizer, row='row 0'):
        """Raise ValueError unless a text of these tokens, -1 in its blanks, can match.

        row  which text it is, for the message"""
        n = len(tokens)
        if self.table(tokenizer).ends(tokens)[n]:
            return
        self.lengths_between(tokenizer, n, n)
        raise ValueError(
            f'the text of {row} contradicts {self}: choose another text, or another number of '
            'blanks'
        )

    @staticmethod
    def language(*how):
        """Return the limits of a canvas, see language_of."""
        from anyorder.extras.patterns.language import language_of  # torch takes seconds

        return language_of(*how)
