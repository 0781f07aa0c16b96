"""How does a prompt with blanks become tokens, and the positions that are to be written?"""
import itertools
import json
import os
import re

import numpy as np

from anyorder.machine.files import read_text, reading
from anyorder.tokens.tokenizers import END_OF_TEXT, one_of
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
    special = getattr(tokenizer, 'special', {}) | ({} if tokenizer.eos is None else {END_OF_TEXT: tokenizer.eos})
    found, here = [], 0
    for part in re.split(f'({one_of(special)})', text) if special else [text]:
        if part in special:
            found.append((special[part], here, here + len(part)))
        else:
            found += [(token, here + start, here + end) for token, start, end in tokenizer.spans(part)]
        here += len(part)
    return found


def behind_beginning(tokens, prefix):
    """The spans of a whole text without the tokens `prefix`, which its model puts before every text: a text that is
    written with its beginning, as chat templates are, has it once."""
    written = [token for token, _, _ in tokens[:len(prefix)]]
    return tokens[len(prefix):] if prefix and written == [*prefix] else tokens


def parse_prompts(prompts, tokenizer, length, prefix=()):
    """parse_prompt of each prompt. If there are several, an error says which prompt is wrong."""
    rows = []
    for n, prompt in enumerate(prompts, 1):
        try:
            rows.append(parse_prompt(prompt, tokenizer, length, prefix))
        except ValueError as e:
            raise ValueError(f'prompt {n} of {len(prompts)}: {e}' if len(prompts) > 1 else str(e)) from None
    return rows


def parse_prompt(prompt, tokenizer, length, prefix=()):
    """The Template of a prompt, a text or a row. A text without a blank ends in [[..]]. The pieces are tokenized one by
    one; of a text `prefix` is left out, see behind_beginning. Raises ValueError for another kind of blank and for a
    prompt that is too long."""
    if not isinstance(prompt, str):
        return Template(row_pieces(np.asarray(prompt), tokenizer.n_tokens), length)
    pieces = []
    for n, (value, kind) in enumerate(split_blanks(prompt)):
        if isinstance(value, str):
            found = spans(value, tokenizer)
            found = behind_beginning(found, prefix) if n == 0 else found
            value = [token for token, _, _ in found]
        pieces.append((value, kind))
    return Template(pieces, length)


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
            raise ValueError(f'the prompt has {n} tokens, blanks included, and does not fit into length={length}: '
                             'choose a larger length or a shorter prompt')
        for i in self.unknown:
            least, most = pieces[i][0]
            if (most or 0) > least + length - n:
                raise ValueError(f'a blank of {least} to {most} tokens has room for {least + length - n} at most in '
                                 f'length={length}: choose a larger length or fewer tokens')
            before = [kind for value, kind in pieces[:i] if kind in ('unknown', 'rest') or kind == 'known' and value]
            if before[-1:] == ['rest'] or not any(v for v, kind in pieces[i:self.end_of(i)] if kind == 'known'):
                raise ValueError('nothing tells the length of a [[?]] that no text follows, or right behind a [[..]]: '
                                 'write text there, or [[n]], or [[..]] with a stop')

    def end_of(self, i):
        """The number of the piece before which ends what follows the blank of piece i: the next [[?]] or [[..]]."""
        kinds = [kind for _, kind in self.pieces]
        return next((k for k in range(i + 1, len(kinds)) if kinds[k] in ('unknown', 'rest')), len(kinds))

    def sizes(self, lengths=()):
        """Tokens of each piece, see lay_out; 0 for [[..]]."""
        lengths = dict(zip(self.unknown, lengths))
        return [len(value) if isinstance(value, list) else lengths.get(i, value[0]) if kind == 'unknown' else value
                for i, (value, kind) in enumerate(self.pieces)]

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
        return tokens, known, answer, starts, [starts[i:i + 2] for i in rest]


def row_pieces(row, n_tokens):
    """The pieces of a row (N,) of tokens, in which -1 is a blank."""
    flat = row.dtype.kind in 'iuf' and row.ndim == 1
    wrong = [token for token in row.tolist() if not (flat and -1 <= token < n_tokens and token % 1 == 0)]
    if wrong or not row.size:
        raise ValueError(f'a row must hold integers from 0 to {n_tokens - 1}, and -1 for a blank, got '
                         f'{wrong[0] if wrong else "nothing"!s:.60}')
    return [(1, 'blank') if token < 0 else ([int(token)], 'known') for token in row.tolist()]


def split_blanks(prompt):
    """The pieces of a prompt, as in a Template, but with texts. A blank ends at the first ]]; \\[[ is a plain [[."""
    try:
        prompt.encode()
    except UnicodeEncodeError:   # half of a pair of surrogates, or a byte that is no UTF-8
        raise ValueError(f'a prompt must be text in UTF-8, got {ascii(prompt)[:60]}') from None
    pieces = [('', 'known')]
    for part in re.split(r'(\\\[\[|\[\[(?!\[).*?\]\])', prompt, flags=re.DOTALL):
        blank = re.fullmatch(r'\[\[(\.\.|\?|=.+|[1-9]\d{0,17}(-\d{1,18})?)\]\]', part, flags=re.DOTALL)
        if blank and blank[1] == '..':
            pieces += [(0, 'rest'), ('', 'known')]
        elif blank and blank[1] == '?':
            pieces += [((1, None), 'unknown'), ('', 'known')]
        elif blank and blank[1][0] == '=':
            pieces += [(blank[1][1:].replace(r'\[[', '[['), 'answer'), ('', 'known')]
        elif blank and blank[2]:
            least, most = map(int, blank[1].split('-'))
            if least > most:
                raise ValueError(f'a blank has from its least to its most tokens, as [[2-12]], got {part}')
            pieces += [((least, most), 'unknown'), ('', 'known')]
        elif blank:
            pieces += [(int(blank[1]), 'blank'), ('', 'known')]
        elif '[[' in part and part != r'\[[':
            raise ValueError('a blank is [[n]], [[..]], [[=text]], or of unknown length [[?]] or [[2-12]] '
                             f'(\\[[ is a plain [[), got {part[:40]!r}')
        else:
            pieces[-1] = (pieces[-1][0] + part.replace(r'\[[', '[['), 'known')
    if len(pieces) == 1:
        pieces.append((0, 'rest'))
    return pieces
