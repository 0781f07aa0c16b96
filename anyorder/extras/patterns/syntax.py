"""What may an expression hold, and why is one refused?"""

import re
import warnings

FLAGS = re.compile(r'(?:\(\?[a-zA-Z-]+\))*')  # of the whole expression
STARTS = re.compile(r'\A(?:\^|\\A)+')
ENDS = re.compile(r'(?<!\\)((?:\\\\)*)(?:\$|\\[zZ])+\Z')
PIECE = re.compile(r'\\.|\[\^?\]?|.', re.DOTALL)

# what an automaton cannot know, or would read otherwise than meant: where it is found outside a
# class, how it is called, and the way out
REFUSED = [
    (r'\(\?<?[=!]', 'look-around', 'say what the text is, not what is beside it'),
    (r'\\[bB<>]', 'a word boundary', 'write what may stand there'),
    (r'\\[1-9]|\(\?P=|\\k', 'a back-reference', 'write all cases, as (aa|bb)'),
    (r'\^|\$|\\[AzZ]', '^ or $ within', 'a pattern is the whole text in any case, leave them out'),
    (r'[*+?}]\+|\(\?>', 'a possessive repetition', 'leave the second + or the ?> out'),
    ('\0', 'a NUL', 'no text holds one'),
]


def without_ends(text):
    """Return an expression without ^ or \\A at its start and $, \\z or \\Z at its end."""
    flags = FLAGS.match(text).group()
    rest = STARTS.sub('', text.removeprefix(flags))
    return flags + ENDS.sub(r'\1', rest)


def check(text, shown):
    """Raise ValueError for an expression whose texts an automaton does not know.

    `shown` is how a message calls it."""
    if not text:
        raise ValueError('a pattern must not be empty: write what the text should be, as [a-z]+')
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f'{shown} must be text in UTF-8') from None
    outside = outside_classes(text)
    for rule, what, way_out in REFUSED:
        if re.search(rule, outside):
            raise ValueError(f'{shown} has {what}, which a pattern cannot have: {way_out}')
    depth = 0
    for letter in outside:
        depth += (letter == '(') - (letter == ')')
        if depth < 0:
            raise ValueError(f'{shown} has a ) without its (: add the (, or write \\)')


def outside_classes(text):
    """Return an expression in which an x stands for each class in brackets and each sign behind a
    backslash: what is left is no letter of a text but means something."""
    found = []
    depth = 0  # of brackets, which Rust lets stand in brackets
    for piece in PIECE.findall(text):
        if piece.startswith('['):
            depth += 1
        elif depth and piece == ']':
            depth -= 1
            if not depth:
                found.append('x')
        elif not depth:
            is_sign = piece[0] == '\\' and not (piece[1].isalnum() or piece[1] in '<>')
            found.append('x' if is_sign else piece)
    return ''.join(found)


def why(text, said):
    """Return in a line why the library refuses an expression.

    It says little of an expression that it cannot read, and Python's own reader says more."""
    if 'no transitions' in said:
        return 'a part of it fits no text'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            re.compile(text)
        except re.error as e:
            return ' '.join(str(e).split())
    return f"its syntax must be that of Rust's crate regex ({' '.join(said.split())[:120]})"
