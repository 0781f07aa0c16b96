"""What does a token look like, and where does it stand among others?"""

import unicodedata
from itertools import groupby


def token_texts(tokens, tokenizer):
    """The text of each token, and a dot for None, a blank. A letter of several tokens stands at the last of them, if
    all of them are there."""
    texts = ['·' if token is None else tokenizer.decode([token]) for token in tokens]
    is_part = ['\ufffd' in text for text in texts]  # part of a letter
    for in_part, run in groupby(range(len(texts)), key=is_part.__getitem__):
        places, letters = list(run), []
        for i in places if in_part else ():
            letters.append(tokens[i])
            text = tokenizer.decode(letters)
            goes_on = text.endswith('\ufffd') and i != places[-1]
            texts[i], letters = ('', letters) if goes_on else (text, [])
    return texts


def columns_of(text):
    """How many columns of equal width the letters of a text take."""
    return sum(
        0
        if unicodedata.combining(letter)
        else 2
        if unicodedata.east_asian_width(letter) in 'WF'
        else 1
        for letter in text
    )


def shown_text(tokens, tokenizer, columns):
    """The text of tokens; with `columns` the rows of a grid on a line each, in cells of equal width."""
    if not columns:
        return tokenizer.decode(tokens)
    texts = token_texts(tokens, tokenizer)
    width = max(map(columns_of, texts))
    cells = [' ' * (width - columns_of(text)) + text for text in texts]
    return '\n'.join(' '.join(cells[i : i + columns]) for i in range(0, len(cells), columns))


def lay_out(texts, width):
    """Where texts that follow one another stand on lines of `width` columns: for each its runs (line, column, letters).
    A line end is shown as ↵ behind its line. Every kind of space is one space. What cannot be printed is left out."""
    line, column, places = 0, 0, []
    for text in texts:
        runs = []
        for letter in text:
            if letter == '\n':
                runs.append((line, column, '↵'))
                line, column = line + 1, 0
                continue
            letter = ' ' if letter.isspace() else letter
            if not letter.isprintable():
                continue
            if column + columns_of(letter) > width:
                line, column = line + 1, 0
            if runs and runs[-1][0] == line:
                runs[-1] = (line, runs[-1][1], runs[-1][2] + letter)
            else:
                runs.append((line, column, letter))
            column += columns_of(letter)
        places.append(runs)
    return places
