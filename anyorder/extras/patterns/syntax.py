"""What may an expression hold, and why is one refused?"""

import re
import warnings

from anyorder.tokens.tokenizer import check_text

FLAGS = re.compile(r'(?:\(\?[a-zA-Z-]+\))*')  # of the whole expression
COMMENT = re.compile(r'(\\.)|#[^\n]*', re.DOTALL)  # in a class, too; and what is none, an escape
STARTS = re.compile(r'\A(?:\^|\\A)+')
ENDS = re.compile(r'(?<!\\)((?:\\\\)*)(?:\$|\\[zZ])+\Z')
PIECE = re.compile(r'\\(?:[xuUpP]\{[^}]*\}|[pP].|.)|\[\^?\]?|.', re.DOTALL)

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
    check_text('a pattern', text)
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
    """Return an expression with an x for each piece of a class, and for each escape that means a
    sign or a letter."""
    found = []
    depth = 0  # of brackets, which Rust lets stand in brackets
    for piece in PIECE.findall(text):
        depth += piece[0] == '['
        is_sign = piece[0] == '\\' and not re.fullmatch(r'\\[\w<>]', piece)
        found.append('x' if depth or is_sign else piece)
        if depth and piece == ']':
            depth -= 1
    return ''.join(found)


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
