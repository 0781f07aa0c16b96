"""How does a prompt with blanks become tokens, and the positions that are to be written?"""

import itertools
import json
import os
import re
from functools import cached_property
from typing import NamedTuple

import numpy as np

import anyorder
from anyorder.machine.files import read_text, reading
from anyorder.tokens.sources import is_text
from anyorder.tokens.tokenizer import Spelling
from configurator import home


def read_prompts(prompt):
    """Return the prompts of an option, [prompt], or of the file that it names.

    A prompt is a text, see typed, or a row of tokens. A .jsonl has a "prompt" or a row on each
    line, an .npy has rows."""
    path = prompts_path(prompt)
    if path is None:
        return [typed(prompt)]
    if not os.path.exists(path) or os.path.isdir(path):
        raise ValueError(f'FILE:{path} must name a .jsonl or .npy file of prompts')
    prompts = read_array(path) if path.endswith('.npy') else read_lines(path)
    if not prompts:
        raise ValueError(f'{path} holds no prompt: write {{"prompt": "..."}} on a line for each')
    return prompts


def prompts_path(prompt):
    """Return the file of prompts that FILE:path names, or None."""
    if prompt.startswith('FILE:'):
        return home(prompt.removeprefix('FILE:'))
    return None


def typed(text):
    """Return the text that an option means.

    \\n is a line end, of which a shell makes none, and \\\\n are the letters \\n."""
    return re.sub(r'(\\?)\\n', lambda found: r'\n' if found[1] else '\n', text)


def read_array(path):
    """Return the rows of an .npy."""
    with reading(path, 'rows of integers', 'save an array (rows, N) by numpy, -1 for a blank'):
        return np.atleast_2d(np.load(path, allow_pickle=False)).tolist()


def read_lines(path):
    """Return the "prompt" or the row of each line of a .jsonl."""
    prompts = []
    for n, line in enumerate(read_text(path).split('\n'), 1):
        if not line.strip():
            continue
        with reading(f'line {n} of {path}', 'a prompt', 'write {"prompt": "..."} in UTF-8'):
            value = json.loads(line)
            if not isinstance(value, list):
                value = value['prompt'] + ''  # which must be a text
            prompts.append(value)
    return prompts


def read_pattern(pattern):
    """Return the Pattern of a regular expression, None for '' and None. A Pattern stays one."""
    if isinstance(pattern, str):
        return anyorder.Pattern(pattern) if pattern else None
    return pattern


def behind_beginning(found, prefix):
    """Return the spans of a whole text without the tokens `prefix`, which its model puts before
    every text: a text that is written with its beginning, as chat templates are, has it once."""
    n = len(prefix)
    written = [token for token, _, _ in found[:n]]
    if written == [*prefix]:
        return found[n:]
    return found


def parse_prompts(prompts, tokenizer, length, prefix=(), pattern=None):
    """Return the Template of each prompt, see parse_prompt, which is to match a pattern as a whole.

    If there are several, an error says which prompt is wrong. One line each says that tokens are
    unknown, and that a blank stands behind a space."""
    rows = []
    spelling = Spelling(tokenizer)
    for n, prompt in enumerate(prompts, 1):
        try:
            template = parse_prompt(prompt, tokenizer, length, prefix, spelling)
        except ValueError as e:
            said = f'prompt {n} of {len(prompts)}: {e}' if len(prompts) > 1 else str(e)
            raise ValueError(said) from None
        template.pattern = pattern
        rows.append(template)
    spelling.say()
    return rows


def parse_prompt(prompt, tokenizer, length, prefix=(), spelling=None):
    """Return the Template of a prompt, a text or a row. A text without a blank ends in [[..]].

    prefix    tokens that are left out at its beginning, see behind_beginning
    spelling  the Spelling that is told of it

    Raises ValueError for another kind of blank and for a prompt that is too long."""
    if not isinstance(prompt, str):
        return Template(row_pieces(np.asarray(prompt), tokenizer.n_tokens), length)
    pieces = spaces_into_blanks(split_blanks(prompt), tokenizer)
    pieces = encode_pieces(pieces, tokenizer, prefix, spelling or Spelling(tokenizer))
    for i, piece in enumerate(pieces):
        if piece.pattern:
            pattern = anyorder.Pattern(piece.pattern, within=any(one.text for one in pieces[:i]))
            pieces[i] = matching(pattern, piece, tokenizer, length)
    return Template(pieces, length)


class Piece(NamedTuple):
    """A piece of a prompt: a text or a blank.

    kind         a 'known' text; the 'answer' of an [[=text]]; a 'blank'; or 'rest', the blanks of
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
        return self.kind in ('known', 'answer')

    @property
    def finds_length(self):
        """Whether it is a blank of unknown length."""
        return self.least != self.most

    def may_have(self, n):
        """Whether it may have n tokens, as far as its pattern says."""
        return self.lengths is None or n in self.lengths


def row_pieces(row, n_tokens):
    """Return the pieces of a row (N,) of tokens, in which -1 is a blank."""
    is_row = row.dtype.kind in 'iuf' and row.ndim == 1 and row.size > 0
    if not is_row or not ((row >= -1) & (row < n_tokens) & (row % 1 == 0)).all():
        raise ValueError(
            f'a row must hold integers from 0 to {n_tokens - 1}, and -1 for a blank, got '
            f'{row.tolist()!s:.60}'
        )
    blank = Piece('blank', '', 1, 1)
    return [blank if t < 0 else Piece('known', [t], 1, 1) for t in row.astype(int).tolist()]


SIZE = r'[1-9]\d{0,17}(?:-\d{1,18})?'
PATTERN = r'(?:\\.|[^\\])+?'  # in which \/ is a slash
BLANK = re.compile(rf'\[\[(?:=(.+)|(\.\.|\?|{SIZE})|({SIZE})?/({PATTERN})/)\]\]', flags=re.DOTALL)
PART = re.compile(rf'(\\\[\[|\[\[(?:{SIZE})?/{PATTERN}/\]\]|\[\[(?!\[).*?\]\])', flags=re.DOTALL)


def split_blanks(prompt):
    """Return the pieces of a prompt, with texts.

    A blank ends at the first ]], with a pattern at the first /]]; \\[[ is a plain [[."""
    if not is_text(prompt):  # half of a pair of surrogates, or a byte that is no UTF-8
        raise ValueError(f'a prompt must be text in UTF-8, got {ascii(prompt)[:60]}')
    pieces = [Piece('known')]
    for part in PART.split(prompt):
        blank = BLANK.fullmatch(part)
        if blank:
            pieces += [read_blank(*blank.groups()), Piece('known')]
        elif '[[' in part and part != r'\[[':
            raise ValueError(
                'a blank is [[n]], [[..]], [[=text]], or of unknown length [[?]] or [[2-12]]; one '
                'that matches a pattern is [[/pattern/]], [[n/pattern/]] or [[2-12/pattern/]] '
                f'(\\[[ is a plain [[), got {part[:40]!r}'
            )
        else:
            pieces[-1] = Piece('known', pieces[-1].text + plain(part))
    if len(pieces) == 1:
        pieces.append(Piece('rest'))
    return pieces


def read_blank(answer, size, size_of_pattern, pattern):
    """Return the Piece of a blank with these groups of BLANK."""
    size = size or size_of_pattern or '?'
    if answer is not None:
        return Piece('answer', plain(answer))
    if size == '..':
        return Piece('rest')
    if pattern is not None:
        pattern = re.sub(r'\\(.)', unescaped_slash, pattern, flags=re.S)
    if size == '?':
        return Piece('blank', '', 1, None, pattern)
    least, _, most = size.partition('-')
    if most and int(least) > int(most):
        raise ValueError(
            f'a blank has from its least to its most tokens, as [[2-12]], got [[{size}]]'
        )
    return Piece('blank', '', int(least), int(most or least), pattern)


def unescaped_slash(found):
    r"""Return a slash for \/, and any other escape as it is."""
    return '/' if found[1] == '/' else found[0]


def plain(text):
    return text.replace(r'\[[', '[[')


def spaces_into_blanks(pieces, tokenizer):
    """Return the pieces with the space before an [[=answer]] in the answer, where the token of its
    word begins with it."""
    for i in range(1, len(pieces)):
        before, answer = pieces[i - 1 : i + 1]
        if answer.kind == 'answer':
            border = len(before.text) - joined_spaces(before.text, answer.text, tokenizer)
            pieces[i - 1] = Piece('known', before.text[:border])
            pieces[i] = Piece('answer', before.text[border:] + answer.text)
    return pieces


def joined_spaces(text, follows, tokenizer):
    """Return how many spaces at the end of a text are in one token with the beginning of what
    follows."""
    n = len(text)
    n_spaces = n - len(text.rstrip())
    if not n_spaces:
        return 0
    across = [
        n - start for _, start, end in tokenizer.shown_spans(text + follows) if start < n < end
    ]
    return max((k for k in across if k <= n_spaces), default=0)


def encode_pieces(pieces, tokenizer, prefix, spelling):
    """Return the pieces with tokens in place of texts.

    They are tokenized one by one, and spell what is typed."""
    found = []
    before = None  # the text right before a piece; '' behind a blank, None at the start
    for piece, follows in zip(pieces, [*pieces[1:], None]):
        if not piece.is_text:
            found.append(piece)
            before = ''
            continue
        text = piece.text
        if before is None:
            placed = behind_beginning(tokenizer.shown_spans(text), prefix)
        else:
            placed = tokenizer.spans_behind(before, text)
        if text:
            before = (before or '') + text
        spelling.add(text, placed)
        is_before_blank = follows is not None and not follows.is_text
        if is_before_blank and is_lone_space(text, placed, tokenizer):
            spelling.behind_space.append(text)
        tokens = [token for token, _, _ in placed]
        found.append(Piece(piece.kind, tokens, len(tokens), len(tokens)))
    return found


def is_lone_space(text, found, tokenizer):
    """Whether a text ends in a token of spaces, the last of which a letter behind it would join."""
    if not found or not text[found[-1][1] :].isspace():
        return False
    return any(joined_spaces(text, letter, tokenizer) for letter in 'aest')


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


class Layout(NamedTuple):
    """A text whose blanks have their lengths, as lists.

    tokens  (N,), 0 in the blanks
    known   (N,), whether the text stands
    answer  (N,), whether it is the text in [[=text]]
    starts  where each piece begins, and N
    open    the [start, end] of each [[..]]
    patterns  (start, end, Pattern) of each part that matches one
    lengths   what its sample says of the lengths that were chosen for its blanks"""

    tokens: list
    known: list
    answer: list = ()
    starts: list = ()
    open: list = ()
    patterns: list = ()
    lengths: list = ()


class Template:
    """A prompt of at most `length` tokens, blanks included.

    pieces   [Piece], with tokens
    pattern  the Pattern of the whole text, or None
    unknown  the numbers of the pieces whose length is unknown
    matching the numbers of those that match a pattern"""

    def __init__(self, pieces, length, pattern=None):
        self.pieces = pieces
        self.length = length
        self.pattern = pattern
        self.unknown = [i for i, piece in enumerate(pieces) if piece.finds_length]
        self.matching = [i for i, piece in enumerate(pieces) if piece.pattern is not None]
        n = sum(self.sizes())
        if n > length:
            raise ValueError(
                f'the prompt has {n} tokens, blanks included, and does not fit into '
                f'length={length}: choose a larger length or a shorter prompt'
            )
        for i in self.unknown:
            room = pieces[i].least + length - n
            if (pieces[i].most or 0) > room:
                raise ValueError(
                    f'a blank of {pieces[i].least} to {pieces[i].most} tokens has room for {room} '
                    f'at most in length={length}: choose a larger length or fewer tokens'
                )
        # what tells lengths: a text at the end of the blank, and nothing open before it
        kinds = [one.kind for one in pieces if one.finds_length or ends_blank(one)]
        for before, kind, behind in zip(['', *kinds], kinds, [*kinds[1:], '']):
            if kind == 'blank' and (before == 'rest' or behind != 'known'):
                raise ValueError(
                    'nothing tells the length of a [[?]] or [[/pattern/]] that no text follows, or '
                    'right behind a [[..]]: write text there, or how many tokens it has, as '
                    '[[8]] or [[8/pattern/]], or [[..]] with a stop'
                )

    @cached_property
    def shortest(self):
        """The Layout in which blanks of unknown length have their least one."""
        return self.lay_out()

    @property
    def longest(self):
        """The most tokens that its texts have."""
        return self.length if self.unknown else len(self.shortest.tokens)

    def end_of(self, i):
        """Return the number of the piece before which ends what follows the blank of piece i: the
        next [[?]] or [[..]]."""
        for k in range(i + 1, len(self.pieces)):
            if self.pieces[k].finds_length or self.pieces[k].kind == 'rest':
                return k
        return len(self.pieces)

    def sizes(self, lengths=()):
        """Return the tokens of each piece, see lay_out; 0 for [[..]]."""
        lengths = dict(zip(self.unknown, lengths))
        return [lengths.get(i, piece.least) for i, piece in enumerate(self.pieces)]

    def lay_out(self, lengths=(), said=()):
        """Return the Layout with these `lengths` of the first blanks of unknown length; the others
        have their least one. Its sample says `said` of them."""
        sizes = self.sizes(lengths)
        left = self.length - sum(sizes)
        rest = [i for i, piece in enumerate(self.pieces) if piece.kind == 'rest']
        for n, i in enumerate(reversed(rest)):
            sizes[i] = (left + n) // len(rest)
        starts = [0, *itertools.accumulate(sizes)]

        tokens = []
        open_blanks = []
        patterns = []
        for piece, start, end in zip(self.pieces, starts, starts[1:]):
            tokens += piece.text or itertools.repeat(0, end - start)
            if piece.kind == 'rest':
                open_blanks.append([start, end])
            if piece.pattern is not None:
                patterns.append((start, end, piece.pattern))
        if self.pattern is not None:
            patterns = [(0, len(tokens), self.pattern)]
        kinds = np.repeat([piece.kind for piece in self.pieces], sizes)  # of each token
        known = (kinds == 'known').tolist()
        answer = (kinds == 'answer').tolist()
        return Layout(tokens, known, answer, starts, open_blanks, patterns, said)


def ends_blank(piece):
    """Whether a blank of unknown length before this piece ends there: it is open, or a text."""
    return piece.kind == 'rest' or (piece.kind == 'known' and piece.least > 0)
