"""Rows for the tasks of lm-evaluation-harness, made of the documents of a prepared set.

    python docs/examples/rows.py --dataset=pydocs

    text.jsonl         {"text"}: the documents; text_rolling and last_word read them
    choice.jsonl       {"context", "choices", "label"}: which of four texts follows?
    completion.jsonl   {"context", "target", "right"}: which word ends the sentence?

The rows are a function of the documents and of the seed, not of the tokenizer."""

import json
import os
import random
import re
import sys

sys.path.append('.')  # the project's folder, from which it is run

import numpy as np

from anyorder.datasets import open_split
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.tokenizers import get_tokenizer, split_documents
from configurator import configure

dataset = 'pydocs'  # a prepared set of text
split = 'val'  # its split; 'test' for lambada, wikitext2 and ptb
out_dir = 'data/lm_eval'  # where the tasks look for their rows
n_rows = 200  # rows of choice.jsonl and completion.jsonl
n_context = 160  # letters of their contexts
n_choice = 48  # letters of a choice, at most
seed = 1337


def main(config):
    rng = random.Random(config.seed)
    documents = read_documents(config)
    rows = {
        'text': [{'text': text} for text in documents],
        'choice': choices(documents, rng, config.n_rows, config.n_context, config.n_choice),
        'completion': completions(documents, rng, config.n_rows, config.n_context),
    }
    os.makedirs(config.out_dir, exist_ok=True)
    for name, lines in rows.items():
        path = os.path.join(config.out_dir, f'{name}.jsonl')
        with open(path, 'w', encoding='utf-8') as f:
            f.writelines(json.dumps(row) + '\n' for row in lines)
        print(f'{path:<40} {len(lines):>7,} rows')


def read_documents(config):
    found, meta = open_split('data', config.dataset, config.split)
    tokenizer = get_tokenizer(meta.tokenizer)
    documents = split_documents(np.asarray(found.packed), tokenizer.eos)
    return [tokenizer.decode(ids) for ids in documents]


def choices(documents, rng, n_rows, n_context, n_choice):
    """Return rows of choice.jsonl. The choices of a row come from four documents."""
    every = [cuts(text, n_context, n_choice) for text in documents]
    every = [found for found in every if found]
    if len(every) < 4:
        raise ValueError(
            f'choices want 4 documents of more than {n_context + n_choice} letters, got '
            f'{len(every)}: choose a smaller n_context'
        )
    rows = []
    for _ in range(n_rows):
        drawn = [rng.choice(found) for found in rng.sample(every, 4)]
        context, right = drawn[0]
        texts = [text for _, text in drawn[1:]]
        label = rng.randrange(4)
        texts.insert(label, right)
        rows.append({'context': context, 'choices': texts, 'label': label})
    return rows


def cuts(text, n_context, n_choice):
    """Return [(context, what follows it)] at all spaces of a text.

    What follows begins with the space and ends with a word."""
    found = []
    for space in re.finditer(r'(?<=\S) (?=\S)', text):
        here = space.start()
        follows = text[here : here + n_choice].rpartition(' ')[0]
        fits = n_context <= here <= len(text) - n_choice
        if fits and len(follows) > n_choice // 2:
            found.append((text[here - n_context : here], follows))
    return found


def completions(documents, rng, n_rows, n_context):
    """Return rows of completion.jsonl: sentences of five words or more, without their last word."""
    sentence = re.compile(r'[A-Z][^.\n]*(?: [^. \n]+){4}( [a-z]+)(?=\.\s)')
    found = []
    for text in documents:
        for match in sentence.finditer(text):
            start, end = match.span(1)
            context = text[max(0, start - n_context) : start]
            right = text[end : end + n_context]
            found.append({'context': context, 'target': match[1], 'right': right})
    return rng.sample(found, min(n_rows, len(found)))


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
