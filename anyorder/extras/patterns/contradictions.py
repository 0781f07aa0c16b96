"""Why does no text match? The line for whoever asked for it."""

from typing import Any, NamedTuple

import numpy as np


class Text(NamedTuple):
    """A whole text that is to match, in the form of a language.Span."""

    row: int
    start: int
    table: Any
    state: int


def check_text(table, tokens, row=0):
    """Raise ValueError unless tokens in the blanks, -1, make a text of these tokens that matches.

    row  of the text, for the message"""
    sources, ends = table.edges
    states = np.zeros(table.n_states, bool)
    states[table.start] = True
    for token in tokens:
        if token < 0:
            behind = ends[states[sources]]
        else:
            behind = table.next[states, table.classes[token]]
        states = np.zeros(table.n_states, bool)
        states[behind[behind >= 0]] = True
    if not (states & table.final).any():
        anything = np.ones(table.n_classes, bool)
        raise_why(Text(row, 0, table, table.start), tokens, [anything for _ in tokens])


def raise_why(span, tokens, allowed):
    """Raise the ValueError of a Span, if no text of it matches.

    tokens   the tokens of the span and of what stands behind its canvas, -1 for blanks
    allowed  [(C,) bool] of each of these, the classes that a blank may have there"""
    table = span.table
    n = len(tokens)
    lengths = table.lengths(n + table.n_states, span.state)
    if not lengths[n]:
        raise ValueError(no_length(table.pattern, lengths, n, n))
    may_follow = [table.final]  # from the last place to the first: states from which a text ends
    for classes in reversed(allowed):
        may_follow.append(edges_of(table, classes) @ may_follow[-1])
    may_follow.reverse()
    states = np.arange(table.n_states) == span.state
    if not (states & may_follow[0]).any():
        raise ValueError(
            f'none of the texts of {n_tokens(n)} that match {table.pattern} is allowed at the '
            f'positions from {span.start} of row {span.row}: choose another pattern, or allow more'
        )
    for place, token in enumerate(tokens):
        classes = allowed[place]
        if token >= 0:
            classes = np.arange(len(classes)) == table.classes[token]
        states = states @ edges_of(table, classes)
        if not (states & may_follow[place + 1]).any():
            where = f'at position {span.start + place} of row {span.row}'
            raise ValueError(
                f'the token {shown(token, table)} {where} contradicts {table.pattern}, of which '
                f'{n_tokens(n)} are to match: choose another text, or another number of blanks'
            )


def check_before(span):
    """Raise ValueError if the text of a Span that stands before its canvas leads nowhere."""
    if span.state < 0:
        raise ValueError(
            f'the text before position {span.start} of row {span.row} contradicts '
            f'{span.table.pattern}: choose another text'
        )


def edges_of(table, classes):
    """Return (S, S) bool: which states lead to which by one of the classes (C,) bool."""
    to = table.next[:, classes]
    found = np.zeros((table.n_states, table.n_states), dtype=bool)
    state, column = np.nonzero(to >= 0)
    found[state, to[state, column]] = True
    return found


def no_length(pattern, lengths, least, most):
    """Return the line that says that no text of `least` to `most` tokens matches; of the `lengths`
    (n,) bool that do it says the nearest."""
    matching = np.flatnonzero(lengths)
    shorter = matching[matching < least]
    longer = matching[matching > most]
    near = [*shorter[-1:], *longer[:1]]
    size = n_tokens(most)
    if least < most:
        size = f'{least} to {size}'
    return (
        f'no text of {size} matches {pattern}: the nearest that can match: '
        f'{" and ".join(map(str, near))}'
    )


def n_tokens(n):
    if n == 1:
        return '1 token'
    return f'{n} tokens'


def shown(token, table):
    """Return a token as its text."""
    return repr(table.tokenizer.decode([token]))
