"""Rows for the tasks of this folder from the documents of a prepared set: lm-evaluation-harness without a network.

    python config/lm_eval/rows.py --dataset=pydocs
    python eval_lm.py --model_args ckpt=out/quickstart/ckpt.pt --include_path config/lm_eval \\
        --tasks text_choice,text_completion,text_rolling

    text.jsonl         {"text"}: the documents. text_rolling asks how likely they are, last_word for their last words
    choice.jsonl       {"context", "choices", "label"}: which of four texts follows? Three follow other contexts
    completion.jsonl   {"context", "target"}: which word ends the sentence?

The rows are a function of the documents and of the seed, not of the tokenizer."""
import json
import os
import random
import re
import sys

import numpy as np

if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from anyorder.datasets import open_split
from anyorder.machine.files import check_folder, replace_file
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.tokenizers import TEXT, get_tokenizer, split_documents
from configurator import at_least, configure

dataset = 'pydocs'         # a prepared set of text
split = 'val'              # its split; 'test' for lambada, wikitext2 and ptb
data_dir = 'data'          # where prepared sets are
out_dir = 'data/lm_eval'   # where the tasks of this folder look for their rows
n_rows = 200               # rows of choice.jsonl and completion.jsonl
n_context = 160            # letters of their contexts
n_choice = 48              # letters of a choice, at most
seed = 1337


def cuts(text, n_context, n_choice):
    """[(context, what follows it)] at all blanks of a text. What follows begins with the blank and ends with a word."""
    found = []
    for blank in re.finditer(r'(?<=\S) (?=\S)', text):
        here = blank.start()
        follows = text[here:here + n_choice].rpartition(' ')[0]
        if here >= n_context and len(follows) > n_choice // 2 and here + n_choice <= len(text):
            found.append((text[here - n_context:here], follows))
    return found


def choices(documents, rng, n_rows, n_context, n_choice):
    """Rows of choice.jsonl; the choices of a row come from four documents."""
    every = [found for found in (cuts(text, n_context, n_choice) for text in documents) if found]
    if len(every) < 4:
        raise ValueError(f'choices want 4 documents of more than {n_context + n_choice} letters, got '
                         f'{len(every)}: choose a smaller n_context')
    rows = []
    for _ in range(n_rows):
        (context, right), *others = (rng.choice(found) for found in rng.sample(every, 4))
        label = rng.randrange(4)
        rows.append({'context': context, 'choices': [text for _, text in others], 'label': label})
        rows[-1]['choices'].insert(label, right)
    return rows


def completions(documents, rng, n_rows, n_context):
    """Rows of completion.jsonl: sentences of five words or more, without their last word."""
    sentence = re.compile(r'[A-Z][^.\n]*(?: [^. \n]+){4}( [a-z]+)(?=\.\s)')
    found = [{'context': text[max(0, word.start(1) - n_context):word.start(1)], 'target': word[1]}
             for text in documents for word in sentence.finditer(text)]
    return rng.sample(found, min(n_rows, len(found)))


def main(config):
    at_least(config, 1, 'n_rows', 'n_context', 'n_choice')
    check_folder('--out_dir', config.out_dir)
    split, meta = open_split(config.data_dir, config.dataset, config.split)
    if meta['tokenizer'] not in TEXT:
        raise ValueError(f'{config.dataset} is no text: rows are made of text')
    tokenizer, rng = get_tokenizer(meta['tokenizer']), random.Random(config.seed)
    documents = [tokenizer.decode(ids) for ids in split_documents(np.asarray(split.packed), tokenizer.eos)]
    rows = {'text': [{'text': text} for text in documents],
            'choice': choices(documents, rng, config.n_rows, config.n_context, config.n_choice),
            'completion': completions(documents, rng, config.n_rows, config.n_context)}
    os.makedirs(config.out_dir, exist_ok=True)
    for name, lines in rows.items():
        path = os.path.join(config.out_dir, f'{name}.jsonl')
        replace_file(path, ''.join(json.dumps(row) + '\n' for row in lines).encode())
        print(f'{path:<40} {len(lines):>7,} rows')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
