"""Which spans of a canvas are to match? Parts of texts, of which a canvas may hold a stretch."""

from anyorder.extras.patterns.language import Language, Span


def language_of(parts, canvas, tokenizer, stand_in=None):
    """Return the Language of the canvas of texts, parts of which match patterns.

    parts     [(row, start, tokens, Pattern)]: the row of the canvas, where the part begins there,
              its tokens, -1 in blanks. A part may begin before the canvas, where all is known, and
              end behind it
    stand_in  as in Language"""
    spans = [span_of(*part, canvas, tokenizer) for part in parts]
    return Language(spans, canvas, stand_in, canvas.allowed)


def span_of(row, start, tokens, pattern, canvas, tokenizer):
    """Return the Span of a part on the canvas."""
    table = pattern.table(tokenizer)
    first = max(0, -start)
    last = min(len(tokens), int(canvas.n_visits[row]) - start)
    state = table.read(tokens[:first])
    return Span(row, start + first, start + last, table, state, tokens[last:])
