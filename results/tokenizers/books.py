r"""Books in three tokenizers: the texts, and what each model says of them.

    python results/tokenizers/books.py texts --source=books_train.jsonl.xz --out=train.jsonl
    python results/tokenizers/books.py texts --source=books_val.jsonl.xz \
        --n_letters=200000 --out=val.jsonl
    python results/tokenizers/books.py table --runs='out/books_*' --data_dir=data

`texts` writes the beginning of each book. `table` prints a line for each run of train.py: its set
is data_dir/NAME of out/NAME, and eval_ppl.py has written out/NAME/eval.json. ± is the standard
error over blocks; "of tokens" are the parameters that are rows of the embedding and the head."""

import glob
import json
import os
import sys

sys.path.append('.')  # the project's folder, from which it is run

from anyorder.checkpoint import open_checkpoint
from anyorder.datasets import open_split
from anyorder.likelihood.tables import unigram_row
from anyorder.machine.files import reading_text, whole_files
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.meta import kind_of
from anyorder.tokens.tokenizers import tokenizer_of_set
from configurator import configure

WORDS = {'texts': 'the beginning of each book', 'table': 'bits a byte of each run'}
source = ''  # texts: books, a line of JSON each
n_letters = 100000  # texts: of each book
out = 'train.jsonl'  # texts: the file to write
runs = ''  # table: folders of runs, * allowed
data_dir = 'data'  # table: where their sets are

ESTIMATES = {'l2r': 'left to right', 'any': 'any order'}


def main(config):
    (word,) = config.words
    if word == 'texts':
        write_texts(config)
    else:
        show_table(config)


def write_texts(config):
    """Write a line of JSON for each book: its first letters."""
    with (
        reading_text(config.source, '\n') as books,
        whole_files(config.out) as (temporary,),
        open(temporary, 'w', encoding='utf-8') as f,
    ):
        for line in books:
            text = json.loads(line)['text'][: config.n_letters]
            f.write(json.dumps({'text': text}, ensure_ascii=False) + '\n')
    print(f'written: {config.out}')


def show_table(config):
    """Print a line for each run."""
    print(
        '| set | tokens | bytes counted | bytes a token | block | parameters | of tokens '
        f'| {" | ".join(ESTIMATES.values())} | unigrams |'
    )
    print('|---|---|---|---|---|---|---|---|---|---|')
    for pattern in config.runs.split(','):
        for run in sorted(glob.glob(pattern)):
            print(f'| {" | ".join(cells_of(run, config.data_dir))} |')


def cells_of(run, data_dir):
    """Return the cells of a run's line."""
    name = os.path.basename(os.path.normpath(run))
    n_tokens, n_bytes, bits = measure_text(data_dir, name)
    with open(os.path.join(run, 'eval.json'), encoding='utf-8') as f:
        rows = json.load(f)['results']
    cells = [name, f'{n_tokens:,}', f'{n_bytes:,}', f'{n_bytes / n_tokens:.2f}']
    model = open_checkpoint(os.path.join(run, 'ckpt.pt')).model()
    n = model.n_parameters()
    cells += [f'{rows[0]["block_size"]}', f'{n:,}', f'{n_of_tokens(model) / n:.0%}']
    for kind in ESTIMATES:
        (row,) = [row for row in rows if row['kind'] == kind]
        cells.append(bits_of(row))
    return [*cells, f'{bits:.3f}']


def measure_text(data_dir, name):
    """Return of the validation text its tokens, its bytes by the tokenizer's own count, and the
    bits a byte of the frequencies of its tokens."""
    split, meta = open_split(data_dir, name, 'val')
    tokenizer = tokenizer_of_set(kind_of(meta))
    row = unigram_row(split.packed, tokenizer, 1)
    return row['tokens'], row['bytes'], row['bits_per_byte']


def n_of_tokens(model):
    """Return how many parameters belong to single tokens: rows of the embedding and of the head."""
    matrices = model.transformer.wte.weight, model.lm_head.weight
    return sum({p: p.numel() for p in matrices}.values())  # a tied head is the embedding


def bits_of(row):
    """Return bits a byte of a row of eval_ppl.py, and their standard error over blocks."""
    bits = row['bits_per_byte']
    error = bits * row['stderr'] / row['nats_per_token']
    return f'{bits:.4f} ± {error:.4f}'


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
