"""Why does no text match? The line for whoever asked for it."""

import numpy as np


def raise_why(span, tokens, allowed):
    """Raise the ValueError of a Span of which no text matches.

    tokens   the tokens of the span and of what stands behind its canvas, -1 for blanks
    allowed  [(C,) bool] of each of these, the classes that a blank may have there"""
    table = span.table
    n = len(tokens)
    lengths = table.lengths(n + table.n_states, span.state)
    if not lengths[n]:
        raise ValueError(f'no text of {n_tokens(n)} matches {table.pattern}: {nearest(lengths, n)}')
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
            raise ValueError(
                f'the token {shown(token, table)} at position {span.start + place} of row '
                f'{span.row} contradicts {table.pattern}, of which {n_tokens(n)} are to match: '
                'choose another text, or another number of blanks'
            )
    raise AssertionError('a text matches')


def edges_of(table, classes):
    """Return (S, S) bool: which states lead to which by one of the classes (C,) bool."""
    to = table.next[:, classes]
    found = np.zeros((table.n_states, table.n_states), dtype=bool)
    state, column = np.nonzero(to >= 0)
    found[state, to[state, column]] = True
    return found


def nearest(lengths, n):
    """Say which of the lengths that match are the nearest to n, which does not."""
    matching = np.flatnonzero(lengths)
    shorter = matching[matching < n]
    longer = matching[matching > n]
    near = [*shorter[-1:], *longer[:1]]
    return f'the nearest lengths that do are {" and ".join(map(str, near))}'


def n_tokens(n):
    if n == 1:
        return '1 token'
    return f'{n} tokens'


def shown(token, table):
    """Return a token as its text, if the table has the tokenizer, and else as its number."""
    tokenizer = getattr(table, 'tokenizer', None)
    if tokenizer is None:
        return token
    return repr(tokenizer.decode([token]))
