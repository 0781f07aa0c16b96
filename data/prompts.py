"""Prompts with blanks: text becomes tokens, and what is to be written between them."""
import json
import re

from data.tokenizers import END_OF_TEXT


def prompt_file(prompt):
    """The path of FILE:path, or None."""
    return prompt.removeprefix('FILE:') if prompt.startswith('FILE:') else None


def read_prompts(prompt):
    """[prompt], or with FILE:path.jsonl the "prompt" of every line."""
    path, n, prompts = prompt_file(prompt), 0, []
    if path is None:
        return [prompt]
    try:
        with open(path, encoding='utf-8-sig', errors='surrogateescape') as f:   # parse_prompt says which prompt is no UTF-8
            for n, line in enumerate(f, 1):
                if line.strip():
                    prompts.append(json.loads(line)['prompt'] + '')
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        where = f'line {n}: ' * (n > 0) + type(e).__name__
        raise ValueError(f'prompt=FILE:{path} must name a .jsonl file with a string under "prompt" on every line ({where})') from None
    if not prompts:
        raise ValueError(f'{path} holds no prompt: write {{"prompt": "..."}} on a line for each')
    return prompts


def encode(text, tokenizer):
    """Tokens of a text in which <|endoftext|> is the end of a document, as where tokens are shown."""
    first, *rest = text.split(END_OF_TEXT) if tokenizer.eos is not None else [text]
    return sum(([tokenizer.eos, *tokenizer.encode(part)] for part in rest), list(tokenizer.encode(first)))


def parse_prompts(prompts, tokenizer, length):
    """parse_prompt of each; of several, the error says which."""
    rows = []
    for n, prompt in enumerate(prompts, 1):
        try:
            rows.append(parse_prompt(prompt, tokenizer, length))
        except ValueError as e:
            raise ValueError(f'prompt {n} of {len(prompts)}: {e}' if len(prompts) > 1 else str(e)) from None
    return rows


def parse_prompt(prompt, tokenizer, length):
    """(tokens, known, answer) lists of a prompt with blanks; at most `length` long, exactly so with [[..]] or without a blank.

    tokens holds 0 in blanks and the tokens of the text in [[=text]]; known marks the text that stands, answer the [[=text]]. The pieces
    are tokenized one by one; \\[[ is a plain [[, and the text of a blank ends at the first ]]. Raises ValueError for a blank that is not
    [[n]], [[..]] or [[=text]], and for a prompt too long."""
    pieces, text = [], ''
    try:
        prompt.encode()
    except UnicodeEncodeError:   # half of a pair of surrogates, or a byte of a command line that is no UTF-8
        raise ValueError(f'a prompt must be text in UTF-8, got {ascii(prompt)[:60]}') from None
    for part in re.split(r'(\\\[\[|\[\[(?!\[).*?\]\])', prompt, flags=re.DOTALL):
        blank = re.fullmatch(r'\[\[(\.\.|=.+|[1-9]\d{0,17})\]\]', part, flags=re.DOTALL)
        if blank:
            pieces += [(text, 'known'), (blank[1].replace(r'\[[', '[['), 'blank')]
            text = ''
        elif part == r'\[[':
            text += '[['
        elif '[[' in part:
            raise ValueError(f'a blank is [[n]], [[..]] or [[=text]] (\\[[ is a plain [[), got {part[:40]!r}')
        else:
            text += part
    pieces.append((text, 'known'))
    if sum(piece == ('..', 'blank') for piece in pieces) > 1:
        raise ValueError('a prompt has one [[..]] at most: it takes what is left of the length')
    if len(pieces) == 1:
        pieces.append(('..', 'blank'))
    rows = []   # lists of (token, known, answer), ranges for [[n]], None for [[..]]
    for piece, kind in pieces:
        if kind == 'known' or piece[0] == '=':
            ids = encode(piece if kind == 'known' else piece[1:], tokenizer)
            rows.append([(i, kind == 'known', kind == 'blank') for i in ids])
        else:
            rows.append(None if piece == '..' else range(int(piece)))   # not yet a list: it may be far too long
    n = sum(len(row) for row in rows if row is not None)
    if n > length:
        raise ValueError(f'the prompt has {n} tokens, blanks included, and does not fit into length={length}')
    rows = [row if isinstance(row, list) else [(0, False, False)] * (length - n if row is None else len(row)) for row in rows]
    return [list(column) for column in zip(*(cell for row in rows for cell in row))] or [[], [], []]
