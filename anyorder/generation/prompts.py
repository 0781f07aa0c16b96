"""How does a prompt with blanks become tokens, and the positions that are to be written?"""

import re
from itertools import repeat
from typing import NamedTuple

import numpy as np

import anyorder
from anyorder.tokens.spelling import Spelling
from anyorder.tokens.tokenizer import check_text, tokens_of


def read_pattern(pattern):
    """Return the Pattern of a regular expression, None for '' and None. A Pattern stays one."""
    if not pattern:
        return None
    return pattern if isinstance(pattern, anyorder.Pattern) else anyorder.Pattern(pattern)


def behind_beginning(found, prefix):
    """Return the spans of a whole text without the tokens `prefix`, which its model puts before
    every text: a text that is written with its beginning, as chat templates are, has it once."""
    written = tokens_of(found[: len(prefix)])
    return found[len(prefix) :] if written == [*prefix] else found


def each(function, prompts):
    """Return what a function makes of each prompt. If there are several, an error says of which."""
    found = []
    for n, prompt in enumerate(prompts, 1):
        try:
            found.append(function(prompt))
        except ValueError as e:
            said = f'prompt {n} of {len(prompts)}: {e}' if len(prompts) > 1 else str(e)
            raise ValueError(said) from None
    return found


def parse_prompts(prompts, tokenizer, length, prefix=(), pattern=None):
    """Return the Template of each prompt, a text or a row. A text without a blank ends in [[..]].

    prefix   tokens that are left out at its beginning, see behind_beginning
    pattern  of the whole text

    One line each says that tokens are unknown, and that a blank stands behind a space. Raises
    ValueError for another kind of blank and for a prompt that is too long."""
    spelling = Spelling(tokenizer)

    def parse(prompt):
        if isinstance(prompt, str):
            pieces = encode_pieces(split_blanks(prompt), tokenizer, prefix, spelling)
        else:
            pieces = row_pieces(np.asarray(prompt), tokenizer.n_tokens)
        for i, piece in enumerate(pieces):
            if piece.pattern:
                within = any(one.least for one in pieces[:i])
                matched = anyorder.Pattern(piece.pattern, within)
                pieces[i] = matching(matched, piece, tokenizer, length)
        return Template(pieces, length, pattern)

    templates = each(parse, prompts)
    spelling.say()
    return templates


class Piece(NamedTuple):
    """A piece of a prompt: a text or a blank.

    kind         a 'given' text; the 'answer' of an [[=text]]; a 'blank'; or 'rest', the blanks of
                 a [[..]], which share equally what is left of the length
    text         the text, or its tokens; of a blank nothing
    least, most  how many tokens it has; `most` is None where that is not said
    pattern      the Pattern that a blank matches, or its text; None: any text
    lengths      the numbers of tokens that texts of the pattern have, increasing"""

    kind: str
    text: str | list = ''
    least: int = 0
    most: int | None = 0
    pattern: object = None
    lengths: list | None = None

    @property
    def is_text(self):
        return self.kind in ('given', 'answer')

    @property
    def sign(self):
        """A letter: ? for a blank of unknown length; what it is to one beside it, t a text, . open,
        - nothing."""
        if self.least != self.most:
            return '?'
        if self.kind == 'given' and self.least:
            return 't'
        return '.' if self.kind == 'rest' else '-'

    def may_have(self, n):
        """Whether it may have n tokens, as far as its pattern says."""
        return self.lengths is None or n in self.lengths


def row_pieces(row, n_tokens):
    """Return the pieces of a row (N,) of tokens, in which -1 is a blank."""
    is_row = row.dtype.kind in 'iuf' and row.ndim == 1 and row.size > 0
    if not is_row or not np.isin(row, np.arange(-1, n_tokens)).all():
        raise ValueError(
            f'a row must hold integers from 0 to {n_tokens - 1}, and -1 for a blank, got '
            f'{row.tolist()!s:.60}'
        )
    blank = Piece('blank', '', 1, 1)
    return [blank if t < 0 else Piece('given', [t], 1, 1) for t in row.astype(int).tolist()]


SIZE = r'[1-9]\d{0,17}(?:-\d{1,18})?'
PATTERN = r'(?:\\.|[^\\])+?'  # in which \/ is a slash
PLAIN = r'\[['  # a plain [[
# that, a blank with a pattern, another one, or a [[ that is none; one more [ before it is text
BLANK = re.compile(
    rf'\\\[\[|\[\[({SIZE})?/({PATTERN})/\]\]|\[\[(?!\[)(.*?)\]\]|\[\[(?!\[(?!\[))', flags=re.DOTALL
)


def split_blanks(prompt):
    """Return the pieces of a prompt, with texts.

    A blank ends at the first ]], with a pattern at the first /]]; \\[[ is a plain [[."""
    check_text('a prompt', prompt)
    pieces = []
    text = ''  # since the last blank
    start = 0
    for found in BLANK.finditer(prompt):
        text += prompt[start : found.start()]
        start = found.end()
        if found[0] == PLAIN:
            text += '[['
            continue
        pieces += [Piece('given', text), read_blank(found)]
        text = ''
    pieces.append(Piece('given', text + prompt[start:]))
    if len(pieces) == 1:
        pieces.append(Piece('rest'))
    return pieces


def read_blank(found):
    """Return the Piece of a blank that BLANK has found."""
    size, pattern, inside = found.groups('')
    if inside == '..':
        return Piece('rest')
    if inside.startswith('=') and inside != '=':
        return Piece('answer', inside[1:].replace(PLAIN, '[['))
    if pattern:
        pattern = re.sub(r'(\\\\)|\\/', lambda found: found[1] or '/', pattern)  # of \/
        inside = size or '?'
    if inside == '?':
        return Piece('blank', '', 1, None, pattern or None)
    least, _, most = inside.partition('-')
    if not re.fullmatch(SIZE, inside) or int(least) > int(most or least):
        raise ValueError(
            'a blank is [[n]], [[..]], [[=text]], or of unknown length [[?]] or, from its least to '
            'its most tokens, [[2-12]]; one that matches a pattern is [[/pattern/]], '
            f'[[n/pattern/]] or [[2-12/pattern/]] (\\[[ is a plain [[), got {found[0][:40]!r}'
        )
    return Piece('blank', '', int(least), int(most or least), pattern or None)


def joined_spaces(text, follows, tokenizer):
    """Return how many spaces at the end of a text are in one token with the beginning of what
    follows."""
    n = len(text)
    border = len(text.rstrip())
    if border == n:
        return 0
    for _, start, end in tokenizer.shown_spans(text + follows):
        if border <= start < n < end:
            return n - start
    return 0


def encode_pieces(pieces, tokenizer, prefix, spelling):
    """Return the pieces with tokens in place of texts.

    They are tokenized one by one, and spell what is typed. The space before an [[=answer]] goes
    into it where the token of its word begins with it."""
    found = []
    before = None  # the text right before a piece; '' behind a blank, None at the start
    space = ''
    for piece, follows in zip(pieces, [*pieces[1:], Piece('given')]):
        if not piece.is_text:
            found.append(piece)
            before = ''
            continue
        text = space + piece.text
        border = len(text)
        if follows.kind == 'answer':
            border -= joined_spaces(text, follows.text, tokenizer)
        space = text[border:]
        text = text[:border]

        if before is None:
            placed = behind_beginning(tokenizer.shown_spans(text), prefix)
        else:
            placed = tokenizer.spans_behind(before, text)
        if text:
            before = (before or '') + text
        spelling.add(text, placed)
        last = text[placed[-1][1] :] if placed else ''  # the text of the last token
        # with the beginning of any word, here of four frequent letters
        joins = last.isspace() and any(joined_spaces(text, one, tokenizer) for one in 'aest')
        if joins and not follows.is_text:
            spelling.behind_space.append(text)
        tokens = tokens_of(placed)
        found.append(Piece(piece.kind, tokens, len(tokens), len(tokens)))
    return found


def matching(pattern, piece, tokenizer, length):
    """Return a blank of at most `length` tokens that matches a Pattern, with what may be its
    lengths.

    Raises ValueError where nothing of these lengths matches."""
    if piece.least > length:
        return piece  # which does not fit, as its Template says
    longest = min(piece.most or length, length)
    lengths = pattern.lengths_between(tokenizer, piece.least, longest)
    most = piece.most
    if most or len(lengths) == 1:
        most = lengths[-1]
    return Piece('blank', '', lengths[0], most, pattern, lengths)


class Template:
    """A text of at most `length` tokens with blanks, those of unknown length as short as may be.

    pieces   [Piece], with tokens
    pattern  the Pattern of the whole text, or None
    chosen   what a sample says of the lengths that were chosen for its blanks
    signs    the sign of each piece
    unknown  the numbers of the pieces whose length is unknown
    n_least  tokens without those of [[..]]
    tokens   (N,) of all places; 0 in blanks, but for the text of an [[=answer]]
    kinds    (N,) of the Piece of each
    starts   where each piece begins, and N
    open     [(start, end)] of each [[..]]
    patterns (start, end, Pattern) of what matches one"""

    def __init__(self, pieces, length, pattern=None, chosen=()):
        self.pieces = pieces
        self.length = length
        self.pattern = pattern
        self.chosen = chosen
        self.signs = ''.join(piece.sign for piece in pieces)
        self.unknown = [i for i, sign in enumerate(self.signs) if sign == '?']
        self.n_least = sum(piece.least for piece in pieces)
        if self.n_least > length:
            raise ValueError(
                f'the prompt has {self.n_least} tokens, blanks included, and does not fit into '
                f'length={length}: choose a larger length or a shorter prompt'
            )
        # What tells the length of a blank: a text at its end, and nothing open before it
        if re.search(r'\.-*\?|\?-*([?.]|$)', self.signs):
            raise ValueError(
                'nothing tells the length of a [[?]] or [[/pattern/]] that no text follows, or '
                'right behind a [[..]]: write text there, or how many tokens it has, as [[8]] or '
                '[[8/pattern/]], or [[..]] with a stop'
            )
        # For the [[..]] that are not laid out yet: tokens, and how many [[..]] share them
        n_left = length - self.n_least
        n_rest = self.signs.count('.')
        tokens = []
        kinds = []
        self.starts = []
        self.open = []
        self.patterns = []
        for piece in pieces:
            start = len(tokens)
            self.starts.append(start)
            n = piece.least
            if piece.kind == 'rest':
                n = -(-n_left // n_rest)  # rounded up
                n_left -= n
                n_rest -= 1
                self.open.append((start, start + n))
            if piece.pattern is not None:
                self.patterns.append((start, start + n, piece.pattern))
            tokens += piece.text or repeat(0, n)
            kinds += repeat(piece.kind, n)
        self.starts.append(len(tokens))
        if pattern is not None:
            self.patterns = [(0, len(tokens), pattern)]
        self.tokens = np.array(tokens, int)
        self.kinds = np.array(kinds, str)

    def __len__(self):
        return len(self.tokens)

    @property
    def longest(self):
        """The most tokens that it may have."""
        return self.length if self.unknown else len(self)

    @property
    def is_known(self):
        """(N,) which places are given; all others are to be written, or scored."""
        return self.kinds == 'given'

    def end_of(self, i):
        """Return where what follows the blank of piece i ends: before the next [[?]] or [[..]]."""
        found = re.search('[?.]', self.signs[i + 1 :])
        return self.starts[i + 1 + found.start()] if found else len(self)

    def sections(self, stop):
        """Return [[first, end], ...] of its sections: where a stop may begin and where it ends.

        With a stop each goes on to the end of its [[..]], in which the stop may begin, and what
        stands behind the last one is a section without. Otherwise it is one section, where a stop
        may begin at the first blank."""
        n = len(self)
        firsts = {n: n if self.open else int(np.append(self.is_known, False).argmin())}
        if stop:
            firsts |= {end: start for start, end in reversed(self.open) if end}
        return sorted([first, end] for end, first in firsts.items())

    def with_lengths(self, lengths, chosen=()):
        """Return the Template whose first blanks of unknown length have these lengths."""
        pieces = [*self.pieces]
        for i, n in zip(self.unknown, lengths):
            pieces[i] = pieces[i]._replace(least=n, most=n)
        return Template(pieces, self.length, self.pattern, chosen)
