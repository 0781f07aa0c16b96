"""How does a prompt with blanks become tokens, and the positions that are to be written?"""

import itertools
import json
import os
import re
from typing import NamedTuple

import numpy as np

import anyorder
from anyorder.machine.files import read_text, reading
from anyorder.tokens.sources import is_text
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
    if pattern is None or pattern == '':
        return None
    if isinstance(pattern, anyorder.Pattern):
        return pattern
    return anyorder.Pattern(pattern)


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
    spelling = tokenizer.spelling()
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
    pieces, patterns = split_blanks(prompt)
    pieces = spaces_into_blanks(pieces, tokenizer)
    spelling = spelling or tokenizer.spelling()
    pieces = encode_pieces(pieces, tokenizer, prefix, spelling)
    matching = {}
    for i, text in patterns.items():
        pattern = anyorder.Pattern(text, within=any(value for value, _ in pieces[:i]))
        matching[i] = Matching.of(pattern, pieces[i], tokenizer, length)
        pieces[i] = matching[i].piece
    return Template(pieces, length, matching)


def row_pieces(row, n_tokens):
    """Return the pieces of a row (N,) of tokens, in which -1 is a blank."""
    values = row.tolist()
    is_row = row.dtype.kind in 'iuf' and row.ndim == 1
    wrong = [token for token in values if not (is_row and is_token_or_blank(token, n_tokens))]
    if wrong or not row.size:
        got = wrong[0] if wrong else 'nothing'
        raise ValueError(
            f'a row must hold integers from 0 to {n_tokens - 1}, and -1 for a blank, got '
            f'{got!s:.60}'
        )
    return [(1, 'blank') if token < 0 else ([int(token)], 'known') for token in values]


def is_token_or_blank(token, n_tokens):
    return -1 <= token < n_tokens and token % 1 == 0


SIZE = r'[1-9]\d{0,17}(?:-\d{1,18})?'
BLANK = re.compile(rf'\[\[(\.\.|\?|=.+|{SIZE})\]\]', flags=re.DOTALL)
PATTERN = r'/(?:\\.|[^\\])+?/'  # in which \/ is a slash
MATCHING_BLANK = re.compile(rf'\[\[({SIZE})?({PATTERN})\]\]', flags=re.DOTALL)
PART = re.compile(rf'(\\\[\[|\[\[(?:{SIZE})?{PATTERN}\]\]|\[\[(?!\[).*?\]\])', flags=re.DOTALL)


def split_blanks(prompt):
    """Return the pieces of a prompt, as in a Template, but with texts; and the pattern of each
    blank that has one, {number of the piece: text}.

    A blank ends at the first ]], with a pattern at the first /]]; \\[[ is a plain [[."""
    if not is_text(prompt):  # half of a pair of surrogates, or a byte that is no UTF-8
        raise ValueError(f'a prompt must be text in UTF-8, got {ascii(prompt)[:60]}')
    pieces = [('', 'known')]
    patterns = {}
    for part in PART.split(prompt):
        blank = MATCHING_BLANK.fullmatch(part)
        if blank:
            patterns[len(pieces)] = with_slashes(blank[2][1:-1])
        else:
            blank = BLANK.fullmatch(part)
        if blank:
            pieces += [read_blank(blank[1] or '?'), ('', 'known')]
            continue
        if '[[' in part and part != r'\[[':
            raise ValueError(
                'a blank is [[n]], [[..]], [[=text]], or of unknown length [[?]] or [[2-12]]; one '
                'that matches a pattern is [[/pattern/]], [[n/pattern/]] or [[2-12/pattern/]] '
                f'(\\[[ is a plain [[), got {part[:40]!r}'
            )
        before, _ = pieces[-1]
        pieces[-1] = (before + plain(part), 'known')
    if len(pieces) == 1:
        pieces.append((0, 'rest'))
    return pieces, patterns


def has_pattern(prompt):
    """Whether a prompt has a blank that matches a pattern."""
    return any(map(MATCHING_BLANK.fullmatch, typed_blanks(prompt)))


def has_rest(prompt):
    """Whether a prompt has a [[..]]."""
    return '[[..]]' in typed_blanks(prompt)


def typed_blanks(prompt):
    """Return the blanks of a prompt as they are typed, none of a row."""
    if not isinstance(prompt, str):
        return []
    return [part for part in PART.split(prompt) if part.startswith('[[')]


def with_slashes(pattern):
    r"""Return a pattern with a slash for each \/."""
    return re.sub(r'\\(.)', lambda found: found[1 if found[1] == '/' else 0], pattern, flags=re.S)


def read_blank(text):
    """Return the piece of what stands in a blank."""
    if text == '..':
        return 0, 'rest'
    if text == '?':
        return (1, None), 'unknown'
    if text[0] == '=':
        return plain(text[1:]), 'answer'
    least, dash, most = text.partition('-')
    if not dash:
        return int(text), 'blank'
    if int(least) > int(most):
        raise ValueError(
            f'a blank has from its least to its most tokens, as [[2-12]], got [[{text}]]'
        )
    return (int(least), int(most)), 'unknown'


def plain(text):
    return text.replace(r'\[[', '[[')


def spaces_into_blanks(pieces, tokenizer):
    """Return the pieces with the space before an [[=answer]] in the answer, where the token of its
    word begins with it."""
    pieces = list(pieces)
    for i in range(1, len(pieces)):
        (text, _), (answer, kind) = pieces[i - 1 : i + 1]
        if kind == 'answer':
            border = len(text) - joined_spaces(text, answer, tokenizer)
            known = text[:border]
            pieces[i - 1 : i + 1] = [(known, 'known'), (text[border:] + answer, 'answer')]
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
    for i, (value, kind) in enumerate(pieces):
        if not isinstance(value, str):
            found.append((value, kind))
            before = ''
            continue
        if before is None:
            placed = behind_beginning(tokenizer.shown_spans(value), prefix)
        else:
            placed = tokenizer.spans_behind(before, value)
        if value:
            before = (before or '') + value
        spelling.add(value, placed)
        is_before_blank = i + 1 < len(pieces) and not isinstance(pieces[i + 1][0], str)
        if is_before_blank and is_lone_space(value, placed, tokenizer):
            spelling.behind_space.append(value)
        found.append(([token for token, _, _ in placed], kind))
    return found


def is_lone_space(text, found, tokenizer):
    """Whether a text ends in a token of spaces, the last of which a letter behind it would join."""
    if not found or not text[found[-1][1] :].isspace():
        return False
    return any(joined_spaces(text, letter, tokenizer) for letter in 'aest')


class Matching(NamedTuple):
    """What is known of a blank that matches a pattern.

    pattern  the Pattern
    lengths  the numbers of tokens that it may have, increasing: texts of these can match
    piece    as in a Template. If one length alone can match, it is no blank of unknown length"""

    pattern: object
    lengths: list
    piece: tuple

    @classmethod
    def of(cls, pattern, piece, tokenizer, length):
        """Return what matches the Pattern on the blank `piece`, of at most `length` tokens.

        Raises ValueError where nothing of these lengths matches."""
        size, kind = piece
        least, most = size if kind == 'unknown' else (size, size)
        longest = min(most or length, length)
        if least > length:
            return cls(pattern, [], piece)  # which does not fit, as its Template says
        lengths = pattern.lengths_between(tokenizer, least, longest)
        if len(lengths) == 1:
            return cls(pattern, lengths, (lengths[0], 'blank'))
        if most:
            most = lengths[-1]
        return cls(pattern, lengths, ((lengths[0], most), 'unknown'))


class Layout(NamedTuple):
    """The text of a Template, as lists.

    tokens  (N,), 0 in the blanks
    known   (N,), whether the text stands
    answer  (N,), whether it is the text in [[=text]]
    starts  where each piece begins, and N
    rest    the [start, end] of each [[..]]
    patterns  (start, end, Pattern) of each part that matches one"""

    tokens: list
    known: list
    answer: list
    starts: list
    rest: list
    patterns: list


class Template:
    """A prompt of at most `length` tokens, blanks included.

    pieces   [(value, kind)]: tokens of kind 'known' or 'answer'; n 'blank' tokens; the (least,
             most) tokens of a blank of 'unknown' length, most None where it is not said; and
             'rest', [[..]], blanks that share equally what is left of the length
    unknown  the numbers of the pieces whose length is unknown
    matching {number of a piece: Matching} of the blanks that match a pattern
    pattern  the Pattern of the whole text, or None"""

    def __init__(self, pieces, length, matching=None):
        self.pieces = pieces
        self.length = length
        self.matching = matching or {}
        self.pattern = None
        self.unknown = [i for i, (_, kind) in enumerate(pieces) if kind == 'unknown']
        n = sum(self.sizes())
        if n > length:
            raise ValueError(
                f'the prompt has {n} tokens, blanks included, and does not fit into '
                f'length={length}: choose a larger length or a shorter prompt'
            )
        for i in self.unknown:
            least, most = pieces[i][0]
            room = least + length - n
            if (most or 0) > room:
                raise ValueError(
                    f'a blank of {least} to {most} tokens has room for {room} at most in '
                    f'length={length}: choose a larger length or fewer tokens'
                )
            if self.is_behind_rest(i) or not self.has_text_behind(i):
                raise ValueError(
                    'nothing tells the length of a [[?]] or [[/pattern/]] that no text follows, or '
                    'right behind a [[..]]: write text there, or how many tokens it has, as '
                    '[[8]] or [[8/pattern/]], or [[..]] with a stop'
                )

    def is_behind_rest(self, i):
        """Whether piece i stands right behind a [[..]]."""
        for value, kind in reversed(self.pieces[:i]):
            if kind in ('unknown', 'rest') or (kind == 'known' and value):
                return kind == 'rest'
        return False

    def has_text_behind(self, i):
        """Whether text tells where the blank of piece i ends."""
        follows = self.pieces[i : self.end_of(i)]
        return any(value for value, kind in follows if kind == 'known')

    def may_have(self, i, n):
        """Whether the blank of piece i may have n tokens, as far as its pattern says."""
        return i not in self.matching or n in self.matching[i].lengths

    def end_of(self, i):
        """Return the number of the piece before which ends what follows the blank of piece i: the
        next [[?]] or [[..]]."""
        for k in range(i + 1, len(self.pieces)):
            if self.pieces[k][1] in ('unknown', 'rest'):
                return k
        return len(self.pieces)

    def sizes(self, lengths=()):
        """Return the tokens of each piece, see lay_out; 0 for [[..]]."""
        lengths = dict(zip(self.unknown, lengths))
        sizes = []
        for i, (value, kind) in enumerate(self.pieces):
            if isinstance(value, list):
                sizes.append(len(value))
            elif kind == 'unknown':
                least, _ = value
                sizes.append(lengths.get(i, least))
            else:
                sizes.append(value)
        return sizes

    def lay_out(self, lengths=()):
        """Return the Layout with these `lengths` of the first blanks of unknown length; the others
        have their least one."""
        kinds = [kind for _, kind in self.pieces]
        rest = [i for i, kind in enumerate(kinds) if kind == 'rest']
        sizes = self.sizes(lengths)
        left = self.length - sum(sizes)
        for n, i in enumerate(rest):
            sizes[i] = left // len(rest)
            if n < left % len(rest):
                sizes[i] += 1
        starts = [0, *itertools.accumulate(sizes)]

        tokens = []
        for n, (value, _) in zip(sizes, self.pieces):
            tokens += value if isinstance(value, list) else itertools.repeat(0, n)
        kinds = np.repeat(kinds, sizes)  # of each token
        known = (kinds == 'known').tolist()
        answer = (kinds == 'answer').tolist()
        patterns = [(*starts[i : i + 2], one.pattern) for i, one in self.matching.items()]
        if self.pattern is not None:
            patterns = [(0, starts[-1], self.pattern)]
        rest = [starts[i : i + 2] for i in rest]
        return Layout(tokens, known, answer, starts, rest, patterns)
