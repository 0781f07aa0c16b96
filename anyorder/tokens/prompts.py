"""
How does a prompt with blanks become tokens, and the positions that are to be written?
"""
import json
import os
import re

from anyorder.machine.files import reading
from anyorder.tokens.tokenizers import END_OF_TEXT, one_of


def prompt_file(prompt):
    """The path in FILE:path, None for another prompt."""
    return prompt.removeprefix('FILE:') if prompt.startswith('FILE:') else None


def read_prompts(prompt):
    """[prompt]; for FILE:path.jsonl the "prompt" of each line."""
    path, prompts = prompt_file(prompt), []
    if path is None:
        return [prompt]
    if not os.path.exists(path) or os.path.isdir(path):
        raise ValueError(f'prompt=FILE:{path} must name a .jsonl file')
    with open(path, 'rb') as f:
        for n, line in enumerate(f, 1):
            if line.strip():
                with reading(f'line {n} of {path}', 'a prompt', 'write {"prompt": "..."} in UTF-8'):
                    prompts.append(json.loads(line)['prompt'] + '')
    if not prompts:
        raise ValueError(f'{path} holds no prompt: write {{"prompt": "..."}} on a line for each')
    return prompts


def encode(text, tokenizer):
    """Tokens of a text. Special tokens stand in it as they are shown: <|endoftext|> ends a document, and a tokenizer of
    others has more."""
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
    """(tokens, known, answer) lists for a prompt of at most `length` tokens, its blanks included.

    tokens   ids of the text, and 0 in the blanks: n for [[n]], what is left of the length for [[..]]
    known    marks the text that stands
    answer   marks the text in [[=text]]
    A prompt without a blank ends in [[..]]. The pieces are tokenized one by one. Raises ValueError for another kind of
    blank and for a prompt that is too long."""
    pieces = split_blanks(prompt)
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


def split_blanks(prompt):
    """The pieces of a prompt: (text, 'known'), (text, 'answer'), (n, 'blank'), and (0, 'rest') for [[..]].

    A plain [[ is written \\[[. The text in a blank ends at the first ]]."""
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
