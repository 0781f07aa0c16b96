"""How does a prompt with blanks become tokens, and the positions that are to be written?"""

import itertools
import json
import os
import re
import sys
from functools import partial

import numpy as np

from anyorder.machine.files import read_text, reading
from anyorder.tokens.tokenizers import END_OF_TEXT, HuggingFace
from configurator import home


def prompts_path(prompt, path=''):
    """The file of prompts that `path`, or FILE:path in place of a prompt, names; None if there is none."""
    if prompt and path:
        raise ValueError('prompt and prompt_file are two ways to say what stands: leave one out')
    return path or (home(prompt.removeprefix('FILE:')) if prompt.startswith('FILE:') else None)


def typed(text):
    """The text that an option means: \\n is a line end, of which a shell makes none, and \\\\n are the letters \\n."""
    return re.sub(r'(\\?)\\n', lambda found: r'\n' if found[1] else '\n', text)


def read_prompts(prompt, path=''):
    """[prompt], see typed; of a file, see prompts_path: the "prompt" or row of each line of a .jsonl, or the rows of an
    .npy."""
    path, prompts = prompts_path(prompt, path), []
    if path is None:
        return [typed(prompt)]
    if not os.path.exists(path) or os.path.isdir(path):
        raise ValueError(f'FILE:{path} must name a .jsonl or .npy file of prompts')
    if path.endswith('.npy'):
        with reading(path, 'rows of integers', 'save an array (rows, N) by numpy, -1 for a blank'):
            prompts = np.atleast_2d(np.load(path, allow_pickle=False)).tolist()
    else:
        for n, line in enumerate(read_text(path).split('\n'), 1):
            if line.strip():
                with reading(f'line {n} of {path}', 'a prompt', 'write {"prompt": "..."} in UTF-8'):
                    value = json.loads(line)
                    prompts.append(value if isinstance(value, list) else value['prompt'] + '')
    if not prompts:
        raise ValueError(f'{path} holds no prompt: write {{"prompt": "..."}} on a line for each')
    return prompts


def encode(text, tokenizer):
    """Tokens of a text, where special tokens stand as they are shown: <|endoftext|>, and more of other tokenizers."""
    return [token for token, _, _ in spans(text, tokenizer)]


def spans(text, tokenizer):
    """`encode`, with the place of each token: [(token, start, end)], in letters of the text."""
    read = (
        partial(tokenizer.spans, shown=True)
        if isinstance(tokenizer, HuggingFace)
        else tokenizer.spans
    )
    if tokenizer.eos is None or getattr(tokenizer, 'special', {}).get(END_OF_TEXT) == tokenizer.eos:
        return read(text)
    found = []
    here = 0
    for n, part in enumerate(text.split(END_OF_TEXT)):
        if n > 0:
            found.append((tokenizer.eos, here, here + len(END_OF_TEXT)))
            here += len(END_OF_TEXT)
        found += [(token, here + start, here + end) for token, start, end in read(part)]
        here += len(part)
    return found


def behind_beginning(found, prefix):
    """The spans of a whole text without the tokens `prefix`, which its model puts before every text: a text that is
    written with its beginning, as chat templates are, has it once."""
    written = [token for token, _, _ in found[: len(prefix)]]
    return found[len(prefix) :] if prefix and written == [*prefix] else found


class Spelling:
    """How a tokenizer spells the texts of a command: what is said once, in a line, if it is not as it seems."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.n_tokens = 0
        self.unknown = []  # what no token spells
        self.first_text = ''  # where the first of it stands
        self.behind_space = []  # texts with a blank behind a space

    def add(self, text, found):
        """Count a text and its spans. A token that is unknown is no likelihood of what stands in the text. Where a
        vocabulary has none for what it lacks, each letter that is left out counts as one."""
        self.n_tokens += len(found)
        unknown = (
            self.tokenizer.unspelt(text, found) if isinstance(self.tokenizer, HuggingFace) else []
        )
        if unknown and self.tokenizer.unknown is None:
            self.n_tokens += len(unknown)
        if unknown and not self.unknown:
            place = text.index(unknown[0])
            self.first_text = text[max(0, place - 20) : place + 40]
        self.unknown += unknown

    def say(self):
        if self.unknown:
            print(
                f'{len(self.unknown):,} of {self.n_tokens:,} tokens are unknown to {self.tokenizer.name}, the first '
                f'is {self.unknown[0][:40]!r} in {self.first_text!r}: the model does not read what stands there, and '
                'its numbers are not of these texts',
                file=sys.stderr,
            )
        if self.behind_space:
            text = self.behind_space[0][-30:]
            print(
                f'a blank behind {text!r}: its last space is a token by itself, which texts hardly have there; write '
                f'{text[:-1] + "[[2]]"!r}, and the first token of the blank begins with the space',
                file=sys.stderr,
            )


def parse_prompts(prompts, tokenizer, length, prefix=()):
    """parse_prompt of each prompt. If there are several, an error says which prompt is wrong. One line each says that
    tokens are unknown, and that a blank stands behind a space."""
    rows = []
    spelling = Spelling(tokenizer)
    for n, prompt in enumerate(prompts, 1):
        try:
            rows.append(parse_prompt(prompt, tokenizer, length, prefix, spelling))
        except ValueError as e:
            raise ValueError(
                f'prompt {n} of {len(prompts)}: {e}' if len(prompts) > 1 else str(e)
            ) from None
    spelling.say()
    return rows


def parse_prompt(prompt, tokenizer, length, prefix=(), spelling=None):
    """The Template of a prompt, a text or a row. A text without a blank ends in [[..]]. Raises ValueError for another
    kind of blank and for a prompt that is too long.

    prefix    tokens that are left out at its beginning, see behind_beginning
    spelling  the Spelling that is told of it"""
    if not isinstance(prompt, str):
        return Template(row_pieces(np.asarray(prompt), tokenizer.n_tokens), length)
    pieces = spaces_into_blanks(split_blanks(prompt), tokenizer)
    return Template(
        encode_pieces(pieces, tokenizer, prefix, spelling or Spelling(tokenizer)), length
    )


def spaces_into_blanks(pieces, tokenizer):
    """The pieces with the space before an [[=answer]] in the answer, where the token of its word begins with it."""
    pieces = list(pieces)
    for i in range(1, len(pieces)):
        (text, _), (answer, kind) = pieces[i - 1 : i + 1]
        if kind == 'answer':
            border = len(text) - joined_spaces(text, answer, tokenizer)
            pieces[i - 1 : i + 1] = [(text[:border], 'known'), (text[border:] + answer, 'answer')]
    return pieces


def joined_spaces(text, follows, tokenizer):
    """How many spaces at the end of a text are in one token with the beginning of what follows."""
    n = len(text)
    n_spaces = n - len(text.rstrip())
    if not n_spaces:
        return 0
    across = [n - start for _, start, end in spans(text + follows, tokenizer) if start < n < end]
    return max((k for k in across if k <= n_spaces), default=0)


def encode_pieces(pieces, tokenizer, prefix, spelling):
    """The pieces with tokens in place of texts. They are tokenized one by one, and spell what is typed."""
    found = []
    before = None  # the text right before a piece; '' behind a blank, None at the start
    for i, (value, kind) in enumerate(pieces):
        if not isinstance(value, str):
            found.append((value, kind))
            before = ''
            continue
        if before is None:
            placed = behind_beginning(spans(value, tokenizer), prefix)
        else:
            placed = spans_behind(before, value, tokenizer)
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


def spans_behind(before, text, tokenizer):
    """Spans of a text that stands right behind the text `before`, or behind a blank, ''. Many tokenizers of others
    begin a word with each text that they read. So these read it with letters before it, whose tokens are left out.
    Raises ValueError where no token ends at the border, or what is read is another text."""
    alone = spans(text, tokenizer)
    if not isinstance(tokenizer, HuggingFace) or not text:
        return alone
    letter = (text.strip() or 'x')[0]
    context = before or letter
    ids = encode(context, tokenizer)
    right = shown(encode(context + text, tokenizer), tokenizer)
    ways = (behind(left, text, tokenizer) for left in (context[-16:], letter, 'x', 'e', '1', '.'))
    for found in itertools.chain([alone], ways):
        if found is not None and shown(ids + [token for token, _, _ in found], tokenizer) == right:
            return found
    raise ValueError(
        f'{tokenizer.name} has no tokens for {text[:20]!r} right behind {before[-20:] or "a blank"!r}, '
        'within a word: move the border of the blank to where a word begins'
    )


def shown(ids, tokenizer):
    """The text of tokens, in which unknown ones that touch are one, as many tokenizers read them."""
    runs = itertools.groupby(ids, lambda token: token == tokenizer.unknown)
    return tokenizer.decode(
        [token for is_unknown, run in runs for token in list(run)[: 1 if is_unknown else None]]
    )


def behind(left, text, tokenizer):
    """Spans of a text as they are behind the text `left`; None where a token has letters of both."""
    found = spans(left + text, tokenizer)
    n = len(left)
    if any(start < n < end for _, start, end in found):
        return None
    return [(token, start - n, end - n) for token, start, end in found if start >= n]


class Template:
    """A prompt of at most `length` tokens, blanks included.

    pieces   [(value, kind)]: tokens of kind 'known' or 'answer'; n 'blank' tokens; the (least, most) tokens of a blank
             of 'unknown' length, most None where it is not said; and 'rest', [[..]], blanks that share equally what is
             left of the length
    unknown  the numbers of the pieces whose length is unknown"""

    def __init__(self, pieces, length):
        self.pieces, self.length = pieces, length
        self.unknown = [i for i, (_, kind) in enumerate(pieces) if kind == 'unknown']
        n = sum(self.sizes())
        if n > length:
            raise ValueError(
                f'the prompt has {n} tokens, blanks included, and does not fit into length={length}: '
                'choose a larger length or a shorter prompt'
            )
        for i in self.unknown:
            least, most = pieces[i][0]
            if (most or 0) > least + length - n:
                raise ValueError(
                    f'a blank of {least} to {most} tokens has room for {least + length - n} at most in '
                    f'length={length}: choose a larger length or fewer tokens'
                )
            before = [
                kind
                for value, kind in pieces[:i]
                if kind in ('unknown', 'rest') or kind == 'known' and value
            ]
            if before[-1:] == ['rest'] or not any(
                v for v, kind in pieces[i : self.end_of(i)] if kind == 'known'
            ):
                raise ValueError(
                    'nothing tells the length of a [[?]] that no text follows, or right behind a [[..]]: '
                    'write text there, or [[n]], or [[..]] with a stop'
                )

    def end_of(self, i):
        """The number of the piece before which ends what follows the blank of piece i: the next [[?]] or [[..]]."""
        kinds = [kind for _, kind in self.pieces]
        return next(
            (k for k in range(i + 1, len(kinds)) if kinds[k] in ('unknown', 'rest')), len(kinds)
        )

    def sizes(self, lengths=()):
        """Tokens of each piece, see lay_out; 0 for [[..]]."""
        lengths = dict(zip(self.unknown, lengths))
        return [
            len(value)
            if isinstance(value, list)
            else lengths.get(i, value[0])
            if kind == 'unknown'
            else value
            for i, (value, kind) in enumerate(self.pieces)
        ]

    def lay_out(self, lengths=()):
        """The text with these `lengths` of the first blanks of unknown length; the others have their least one. As
        lists: tokens (N,), 0 in the blanks; known (N,), whether the text stands; answer (N,), whether it is the text in
        [[=text]]; starts, where each piece begins, and N; and the [start, end] of each [[..]]."""
        sizes, kinds = self.sizes(lengths), [kind for _, kind in self.pieces]
        rest, left = [i for i, kind in enumerate(kinds) if kind == 'rest'], self.length - sum(sizes)
        for n, i in enumerate(rest):
            sizes[i] = left // len(rest) + (n < left % len(rest))
        tokens, starts = [], [0, *itertools.accumulate(sizes)]
        for n, (value, _) in zip(sizes, self.pieces):
            tokens += value if isinstance(value, list) else [0] * n
        kinds = np.repeat(kinds, sizes)
        known, answer = ((kinds == kind).tolist() for kind in ('known', 'answer'))
        return tokens, known, answer, starts, [starts[i : i + 2] for i in rest]


def row_pieces(row, n_tokens):
    """The pieces of a row (N,) of tokens, in which -1 is a blank."""
    flat = row.dtype.kind in 'iuf' and row.ndim == 1
    wrong = [
        token for token in row.tolist() if not (flat and -1 <= token < n_tokens and token % 1 == 0)
    ]
    if wrong or not row.size:
        raise ValueError(
            f'a row must hold integers from 0 to {n_tokens - 1}, and -1 for a blank, got '
            f'{wrong[0] if wrong else "nothing"!s:.60}'
        )
    return [(1, 'blank') if token < 0 else ([int(token)], 'known') for token in row.tolist()]


def split_blanks(prompt):
    """The pieces of a prompt, as in a Template, but with texts. A blank ends at the first ]]; \\[[ is a plain [[."""
    try:
        prompt.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, or a byte that is no UTF-8
        raise ValueError(f'a prompt must be text in UTF-8, got {ascii(prompt)[:60]}') from None
    pieces = [('', 'known')]
    for part in re.split(r'(\\\[\[|\[\[(?!\[).*?\]\])', prompt, flags=re.DOTALL):
        blank = re.fullmatch(
            r'\[\[(\.\.|\?|=.+|[1-9]\d{0,17}(-\d{1,18})?)\]\]', part, flags=re.DOTALL
        )
        if blank and blank[1] == '..':
            pieces += [(0, 'rest'), ('', 'known')]
        elif blank and blank[1] == '?':
            pieces += [((1, None), 'unknown'), ('', 'known')]
        elif blank and blank[1][0] == '=':
            pieces += [(blank[1][1:].replace(r'\[[', '[['), 'answer'), ('', 'known')]
        elif blank and blank[2]:
            least, most = map(int, blank[1].split('-'))
            if least > most:
                raise ValueError(
                    f'a blank has from its least to its most tokens, as [[2-12]], got {part}'
                )
            pieces += [((least, most), 'unknown'), ('', 'known')]
        elif blank:
            pieces += [(int(blank[1]), 'blank'), ('', 'known')]
        elif '[[' in part and part != r'\[[':
            raise ValueError(
                'a blank is [[n]], [[..]], [[=text]], or of unknown length [[?]] or [[2-12]] '
                f'(\\[[ is a plain [[), got {part[:40]!r}'
            )
        else:
            pieces[-1] = (pieces[-1][0] + part.replace(r'\[[', '[['), 'known')
    if len(pieces) == 1:
        pieces.append((0, 'rest'))
    return pieces
