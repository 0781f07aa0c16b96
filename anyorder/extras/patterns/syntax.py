"""What may an expression hold, why is one refused, and how is it written for an automaton?"""

import re
import warnings

FLAGS = re.compile(r'(?:\(\?[a-zA-Z-]+\))*')  # of the whole expression
COMMENT = re.compile(r'(\\.)|#[^\n]*', re.DOTALL)  # in a class, too; and what is none, an escape
STARTS = re.compile(r'\A(?:\^|\\A)+')
ENDS = re.compile(r'(?<!\\)((?:\\\\)*)(?:\$|\\[zZ])+\Z')
PIECE = re.compile(r'\\(?:[xuUpP]\{[^}]*\}|[pP].|.)|\[\^?\]?|.', re.DOTALL)
BROAD = re.compile(r'\\[DWSpP]')  # escapes that a NUL may fit

# what an automaton cannot know, or would read otherwise than meant: where it is found outside a
# class, how it is called, and the way out
REFUSED = [
    (r'\(\?<?[=!]', 'look-around', 'say what the text is, not what is beside it'),
    (r'\\[bB<>]', 'a word boundary', 'write what may stand there'),
    (r'\\[1-9]|\(\?P=|\\k', 'a back-reference', 'write all cases, as (aa|bb)'),
    (r'\^|\$|\\[AzZ]', '^ or $ within', 'a pattern is the whole text in any case, leave them out'),
    (r'(?:[*+?]|\{\d+(?:,\d*)?\})\+|\(\?>', 'a possessive repetition', 'leave the + or ?> out'),
    (r'\{,\d+\}', 'a count without a least number', 'write {0,2} for {,2}'),
    (r'\(\?\w*a', 'the flag a', 'write [0-9] for \\d and [a-z] for \\w'),
    (r'(?s)\(\?\w*x.*\(\?\w*-\w*x', 'the flag x taken back', 'write \\# and "\\ " for the letters'),
    (r'\(\?\w*x[^#]*#', 'a comment within', 'begin it with (?x), or write \\# for the letter'),
    ('\0', 'a NUL', 'no text holds one'),
]


def without_ends(text):
    """Return an expression without ^ or \\A at its start and $, \\z or \\Z at its end, and without
    the comments that the flag x allows."""
    flags = FLAGS.match(text).group()
    rest = text.removeprefix(flags)
    if re.search(r'\(\?\w*x', flags):
        rest = COMMENT.sub(r'\1', rest)
    rest = STARTS.sub('', rest)
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


def pieces(text):
    """Yield the parts of an expression: a class in brackets as a whole, an escape, or a letter."""
    within = ''
    depth = 0  # of brackets, which Rust lets stand in brackets
    for piece in PIECE.findall(text):
        if piece.startswith('['):
            depth += 1
        elif depth and piece == ']':
            depth -= 1
        within += piece
        if not depth:
            yield within
            within = ''
    if within:
        yield within


def outside_classes(text):
    """Return an expression with an x for each class, and for each escape that means a sign or a
    letter."""
    found = []
    for piece in pieces(text):
        is_sign = piece[0] == '\\' and not re.fullmatch(r'\\[\w<>]', piece)
        if is_sign or piece[0] == '[':
            found.append('x')
        else:
            found.append(piece)
    return ''.join(found)


def between_nuls(text):
    """Return an expression of the same texts with a NUL before and behind each.

    No part of it fits a NUL: the automaton of outlines-core begins anew at every byte, besides, and
    with a first byte that no text holds it soon has nothing to begin anew."""
    any_letter = meaning_of_dot(text)
    found = []
    for piece in pieces(text):
        if piece == '.':
            found.append(any_letter)
        elif piece[0] == '[' or BROAD.match(piece):
            found.append(rf'[{piece}&&[^\x00]]')
        else:
            found.append(piece)
    return rf'\x00(?:{"".join(found)})\x00'


def meaning_of_dot(text):
    """Return the class that a dot means, without NUL; a dot if flags within change it."""
    flags = FLAGS.match(text).group()
    changes = r'\(\?[\w-]*[sR]'
    if re.search(changes, outside_classes(text.removeprefix(flags))):
        return '.'
    if re.search(changes, flags):
        return r'[^\x00]' if re.fullmatch(r'\(\?[a-z]*s[a-z]*\)', flags) else '.'
    return r'[^\n\x00]'


def why(text, said):
    """Return in a line why an expression is refused of which the library has `said` little.

    Python's own reader says more of what neither of them reads."""
    if 'no transitions' in said:
        return 'a part of it fits no text'
    reason = 'Python reads it'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as e:
            reason = f'Python says {e}'
    return (
        "its syntax must be that of Rust's crate regex, where the letters { and [ are \\{ and \\[ "
        f'({" ".join(said.split())[:120]}; {reason})'
    )
