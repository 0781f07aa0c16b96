"""What does a token look like, and where does it stand among others?"""

import re
import unicodedata
from itertools import compress

from anyorder.tokens.tokenizer import PART

BLANK = '·'
NEAR = 8  # tokens before one that tell its text: those of a letter, and the one before it


def visible(text):
    """Return text with escapes in place of what would control a terminal."""
    return re.sub(r'[\x00-\x08\x0b-\x1f\x7f-\x9f]', lambda found: f'\\x{ord(found[0]):02x}', text)


def token_texts(tokens, tokenizer):
    """Return the text of each token, and a dot for -1, a blank.

    It is what the text has there as a whole. A letter of several tokens stands at the last of them,
    if all of them are there. A tokenizer that falls back to bytes shows none of those that touch
    where one of them is no part of a letter, which is only known at the end."""
    is_part = [token >= 0 and PART in tokenizer.decode([token]) for token in tokens]
    is_part.append(False)
    texts = []
    letter = []  # the tokens of one that is begun
    for i, token in enumerate(tokens):
        if token < 0:
            texts.append(BLANK)
            continue
        letter.append(token)
        text = text_from(i + 1 - len(letter), letter, tokens, tokenizer)
        if is_part[i] and is_part[i + 1] and text.endswith(PART):
            texts.append('')
            continue
        texts.append(text)
        letter = []
    return texts


def text_from(i, ids, tokens, tokenizer):
    """Return the text of these ids right behind the tokens before place i, -1 for a blank."""
    return tokenizer.text_behind(tokens[max(0, i - NEAR) : i], ids)


def written_text(tokens, is_written, tokenizer):
    """Return the text of the tokens that were written, as the whole text has them."""
    texts = compress(token_texts(tokens, tokenizer), is_written)
    return tokenizer.separator.join(texts)


def columns_of(text):
    """Return how many columns of equal width the letters of a text take."""
    letters = [one for one in text if not unicodedata.combining(one)]
    wide = [one for one in letters if unicodedata.east_asian_width(one) in 'WF']
    return len(letters) + len(wide)


def to_the_right(text, width):
    """Return a text behind so many spaces that both take `width` columns."""
    return ' ' * (width - columns_of(text)) + text


def shown_text(tokens, tokenizer, columns):
    """Return the text of tokens, with dots for -1.

    With `columns` the rows of a grid stand on a line each, in cells of equal width."""
    if not columns and -1 not in tokens:
        return tokenizer.decode(tokens)
    texts = token_texts(tokens, tokenizer)
    if not columns:
        return tokenizer.separator.join(texts)
    width = max(map(columns_of, texts))
    cells = [to_the_right(text, width) for text in texts]
    starts = range(0, len(cells), columns)
    return '\n'.join(' '.join(cells[start : start + columns]) for start in starts)
