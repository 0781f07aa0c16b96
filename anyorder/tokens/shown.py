"""What does a token look like, and where does it stand among others?"""

import unicodedata
from itertools import groupby

from anyorder.tokens.tokenizer import PART

BLANK = '·'
NEAR = 8  # tokens before one that tell its text: those of a letter, and the one before it


def token_texts(tokens, tokenizer):
    """Return the text of each token, and a dot for None, a blank.

    It is what the text has there as a whole. A letter of several tokens stands at the last of them,
    if all of them are there. A tokenizer that falls back to bytes shows none of those that touch
    where one of them is no part of a letter, which is only known at the end."""
    texts = []
    is_part = []
    for i, token in enumerate(tokens):
        texts.append(BLANK if token is None else text_from(i, [token], tokens, tokenizer))
        is_part.append(token is not None and PART in tokenizer.decode([token]))
    for in_part, run in groupby(range(len(texts)), key=is_part.__getitem__):
        if in_part:
            put_letters(texts, list(run), tokens, tokenizer)
    return texts


def text_from(i, ids, tokens, tokenizer):
    """Return the text of these ids right behind the tokens before place i, None for a blank."""
    return tokenizer.text_behind(tokens[max(0, i - NEAR) : i], ids)


def written_text(tokens, is_written, tokenizer):
    """Return the text of the tokens that were written, as the whole text has them."""
    texts = []
    for now, run in groupby(range(len(tokens)), key=is_written.__getitem__):
        if now:
            first, *more = run
            ids = tokens[first : first + 1 + len(more)]
            texts.append(text_from(first, ids, tokens, tokenizer))
    return tokenizer.separator.join(texts)


def put_letters(texts, places, tokens, tokenizer):
    """Put the letters of the tokens at these places, all parts, into `texts`."""
    letter = []
    for i in places:
        letter.append(tokens[i])
        texts[i] = ''
        text = text_from(i + 1 - len(letter), letter, tokens, tokenizer)
        if i == places[-1] or not text.endswith(PART):
            texts[i] = text
            letter = []


def columns_of(text):
    """Return how many columns of equal width the letters of a text take."""
    return sum(map(letter_columns, text))


def letter_columns(letter):
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in 'WF' else 1


def to_the_right(text, width):
    """Return a text behind so many spaces that both take `width` columns."""
    n_spaces = width - columns_of(text)
    return text.rjust(len(text) + n_spaces)


def shown_text(tokens, tokenizer, columns):
    """Return the text of tokens, with dots for None.

    With `columns` the rows of a grid stand on a line each, in cells of equal width."""
    if not columns and None not in tokens:
        return tokenizer.decode(tokens)
    texts = token_texts(tokens, tokenizer)
    if not columns:
        return tokenizer.separator.join(texts)
    width = max(map(columns_of, texts))
    cells = [to_the_right(text, width) for text in texts]
    starts = range(0, len(cells), columns)
    return '\n'.join(' '.join(cells[start : start + columns]) for start in starts)


def lay_out(texts, width):
    """Return where texts that follow one another stand on lines of `width` columns.

    Of each text its runs (line, column, letters). A line end is shown as ↵ behind its line. Every
    kind of space is one space. What cannot be printed is left out."""
    line = 0
    column = 0
    places = []
    for text in texts:
        runs = []
        for letter in text:
            if letter == '\n':
                runs.append((line, column, '↵'))
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
            add_letter(runs, line, column, letter)
            column += columns_of(letter)
        places.append(runs)
    return places


def add_letter(runs, line, column, letter):
    """Add a letter to the last run, or begin a run with it on a new line."""
    if runs and runs[-1][0] == line:
        _, start, letters = runs[-1]
        runs[-1] = (line, start, letters + letter)
    else:
        runs.append((line, column, letter))
