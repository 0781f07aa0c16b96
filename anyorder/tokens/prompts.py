"""How does a prompt with blanks become tokens, and the positions that are to be written?"""
import json
import os
import re

import numpy as np

from anyorder.machine.files import reading
from anyorder.tokens.tokenizers import END_OF_TEXT, one_of


def prompts_path(prompt, path=''):
    """The file of prompts that `path`, or FILE:path in place of a prompt, names; None if there is none."""
    if prompt and path:
        raise ValueError('prompt and prompt_file are two ways to say what stands: leave one out')
    return path or (prompt.removeprefix('FILE:') if prompt.startswith('FILE:') else None)


def read_prompts(prompt, path=''):
    """[prompt]; of a file, see prompts_path: the "prompt" or row of each line of a .jsonl, or the rows of an .npy."""
    path, prompts = prompts_path(prompt, path), []
    if path is None:
        return [prompt]
    if not os.path.exists(path) or os.path.isdir(path):
        raise ValueError(f'FILE:{path} must name a .jsonl or .npy file of prompts')
    if path.endswith('.npy'):
        with reading(path, 'rows of integers', 'save an array (rows, N) by numpy, -1 for a blank'):
            return np.atleast_2d(np.load(path, allow_pickle=False)).tolist()
    with open(path, 'rb') as f:
        for n, line in enumerate(f, 1):
            if line.strip():
                with reading(f'line {n} of {path}', 'a prompt', 'write {"prompt": "..."} in UTF-8'):
                    value = json.loads(line)
                    prompts.append(value if isinstance(value, list) else value['prompt'] + '')
    if not prompts:
        raise ValueError(f'{path} holds no prompt: write {{"prompt": "..."}} on a line for each')
    return prompts


def encode(text, tokenizer):
    """Tokens of a text, where special tokens stand as they are shown: <|endoftext|>, and more of other tokenizers."""
    special = getattr(tokenizer, 'special', {}) | ({} if tokenizer.eos is None else {END_OF_TEXT: tokenizer.eos})
    parts = re.split(f'({one_of(special)})', text) if special else [text]
    return [i for part in parts for i in ([special[part]] if part in special else tokenizer.encode(part))]


def parse_prompts(prompts, tokenizer, length):
    """parse_prompt of each prompt. If there are several, an error says which prompt is wrong."""
    rows = []
    for n, prompt in enumerate(prompts, 1):
        try:
            rows.append(parse_prompt(prompt, tokenizer, length))
        except ValueError as e:
            raise ValueError(f'prompt {n} of {len(prompts)}: {e}' if len(prompts) > 1 else str(e)) from None
    return rows


def parse_prompt(prompt, tokenizer, length):
    """(tokens, known, answer) lists for a prompt, a text or a row, of at most `length` tokens, blanks included.

    tokens   ids of the text, and 0 in the blanks: n for [[n]], what is left of the length for [[..]]
    known    marks the text that stands
    answer   marks the text in [[=text]]
    A text without a blank ends in [[..]]. The pieces are tokenized one by one. Raises ValueError for another kind of
    blank and for a prompt that is too long."""
    pieces = split_blanks(prompt) if isinstance(prompt, str) else row_pieces(np.asarray(prompt), tokenizer.n_tokens)
    pieces = [(encode(value, tokenizer) if isinstance(value, str) else value, kind) for value, kind in pieces]
    n = sum(len(value) if isinstance(value, list) else value for value, _ in pieces)
    if n > length:
        raise ValueError(f'the prompt has {n} tokens, blanks included, and does not fit into length={length}: '
                         'choose a larger length or a shorter prompt')
    tokens, kinds = [], []
    for value, kind in pieces:
        blanks = length - n if kind == 'rest' else value
        tokens += value if isinstance(value, list) else [0] * blanks
        kinds += [kind] * (len(tokens) - len(kinds))
    return [tokens, [kind == 'known' for kind in kinds], [kind == 'answer' for kind in kinds]]


def row_pieces(row, n_tokens):
    """The pieces of a row (N,) of tokens, in which -1 is a blank."""
    flat = row.dtype.kind in 'iuf' and row.ndim == 1
    wrong = [token for token in row.tolist() if not (flat and -1 <= token < n_tokens and token % 1 == 0)]
    if wrong or not row.size:
        raise ValueError(f'a row must hold integers from 0 to {n_tokens - 1}, and -1 for a blank, got '
                         f'{wrong[0] if wrong else "nothing"!s:.60}')
    return [(1, 'blank') if token < 0 else ([int(token)], 'known') for token in row.tolist()]


def split_blanks(prompt):
    """The pieces of a prompt: (text, 'known'), (text, 'answer'), (n, 'blank'), and (0, 'rest') for [[..]]. A plain [[
    is written \\[[. The text in a blank ends at the first ]]."""
    try:
        prompt.encode()
    except UnicodeEncodeError:   # half of a pair of surrogates, or a byte that is no UTF-8
        raise ValueError(f'a prompt must be text in UTF-8, got {ascii(prompt)[:60]}') from None
    pieces = [('', 'known')]
    for part in re.split(r'(\\\[\[|\[\[(?!\[).*?\]\])', prompt, flags=re.DOTALL):
        blank = re.fullmatch(r'\[\[(\.\.|=.+|[1-9]\d{0,17})\]\]', part, flags=re.DOTALL)
        if blank and blank[1] == '..':
            pieces += [(0, 'rest'), ('', 'known')]
        elif blank and blank[1][0] == '=':
            pieces += [(blank[1][1:].replace(r'\[[', '[['), 'answer'), ('', 'known')]
        elif blank:
            pieces += [(int(blank[1]), 'blank'), ('', 'known')]
        elif '[[' in part and part != r'\[[':
            raise ValueError(f'a blank is [[n]], [[..]] or [[=text]] (\\[[ is a plain [[), got {part[:40]!r}')
        else:
            pieces[-1] = (pieces[-1][0] + part.replace(r'\[[', '[['), 'known')
    if pieces.count((0, 'rest')) > 1:
        raise ValueError('a prompt has one [[..]] at most: it takes what is left of the length')
    if len(pieces) == 1:
        pieces.append((0, 'rest'))
    return pieces
