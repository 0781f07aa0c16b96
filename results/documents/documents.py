"""Does it help to keep the documents of a block apart? The documents, and a table of runs.

    python results/documents/documents.py texts --source=books.jsonl --out=short.jsonl
    python results/documents/documents.py table --runs=out/together_1,out/apart_1

`texts` writes the short paragraphs of books, shuffled, a document each. `table` measures runs on
the validation set: each document alone, and blocks of documents that see each other or do not. ±
is the standard error over documents or blocks; `less` is the difference to the first run, by
pairs."""

import json
import math
import random
import re
import sys

sys.path.append('.')  # the project's folder, from which it is run

import torch

from anyorder.checkpoint import open_checkpoint
from anyorder.datasets import open_split
from anyorder.likelihood.nll import block_nll
from anyorder.likelihood.tables import ratio_error
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import Order, draw_orders
from anyorder.tokens.apart import begins_of
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.sets import PADDING, Split, document_lengths
from anyorder.training.validation import validate
from configurator import Config, configure, names_in

WORDS = {'texts': 'short paragraphs of books', 'table': 'bits a byte of runs'}
source = 'books.jsonl'  # texts: a line of JSON for each book, with its `text`
least = 20  # texts: bytes of a paragraph
most = 100
out = 'short.jsonl'  # texts: the file to write
runs = ''  # table: folders of train.py, with commas
n_orders = 4  # table: random orders of a document
n_blocks = 0  # table: blocks, 0 is all

HEADS = (
    'alone, left to right',
    'less',
    'alone, any order',
    'less',
    'blocks together, left to right',
    'any order',
    'blocks apart, left to right',
    'any order',
)


def main(config):
    (word,) = config.words
    if word == 'texts':
        write_texts(config)
    else:
        show_table(config)


def write_texts(config):
    found = []
    with open(config.source, encoding='utf-8') as f:
        books = [json.loads(line)['text'] for line in f]
    for book in books:
        for paragraph in re.split(r'\n\s*\n', book):
            paragraph = ' '.join(paragraph.split())
            if is_short(paragraph, config):
                found.append(paragraph)
    random.Random(1).shuffle(found)
    with open(config.out, 'w', encoding='utf-8') as f:
        for paragraph in found:
            f.write(json.dumps({'text': paragraph}) + '\n')
    print(f'{config.out}: {len(found):,} paragraphs')


def is_short(paragraph, config):
    """Whether it is a short paragraph of prose."""
    if not config.least <= len(paragraph.encode()) <= config.most:
        return False
    return paragraph[0] not in '#|*_' and paragraph[-1] in '.!?"”\''


def show_table(config):
    heads = ['run', *HEADS]
    print(f'| {" | ".join(heads)} |')
    print(f'|{"|".join("---" for _ in heads)}|')
    first = {}
    for folder in names_in(config.runs):
        checkpoint = open_checkpoint(f'{folder}/ckpt.pt')
        model = checkpoint.model('ema', 'cpu')
        split, meta = open_split(checkpoint.run['data_dir'], checkpoint.run['dataset'], 'val')
        cells = alone(model, split, config, first)
        cells += packed(model, split, checkpoint, config)
        print(f'| {folder} | {" | ".join(cells)} |', flush=True)


def alone(model, split, config, first):
    """Return the cells of documents alone; `first` keeps the nats of the first run."""
    N = model.config.block_size
    rows = Split(split.packed, lengths=document_lengths(split.packed, split.eos))
    blocks, _ = all_blocks(rows, N, 0)
    n_bytes = ((blocks != PADDING) & (blocks != split.eos)).sum(1)
    cells = []
    for order, n in ((Order('l2r'), 1), (Order('random'), config.n_orders)):
        orders = draw_orders(range(len(blocks)), blocks.size(1), n, order=order)
        nats = [nats_of(model, blocks, orders[:, k]) for k in range(n)]
        nats = torch.stack(nats).mean(0)
        less = first.setdefault(order.kind, nats) - nats
        cells += [bits(nats, n_bytes), bits(less, n_bytes)]
    return cells


def nats_of(model, blocks, order):
    """Return nats (n,) of documents, padding last in each order."""
    is_padding = blocks.gather(1, order) == PADDING
    order = order.gather(1, is_padding.int().argsort(stable=True))
    return block_nll(model, blocks, order, 64)


def packed(model, split, checkpoint, config):
    """Return the cells of blocks, whose documents see each other, or do not."""
    blocks, given = all_blocks(split, model.config.block_size, config.n_blocks)
    n_bytes = (blocks != split.eos).sum(1)
    run = Config(checkpoint.run | {'dtype': 'float32', 'batch_size': 64})
    cells = []
    for begins in (None, begins_of(blocks, split.eos)):
        nats = validate(model, blocks, given, run, begins)
        cells += [bits(nats['l2r'], n_bytes), bits(nats['any'], n_bytes)]
    return cells


def bits(nats, n_bytes):
    """Return bits a byte and their standard error, as a text."""
    value = float(nats.sum() / n_bytes.sum()) / math.log(2)
    error = ratio_error(nats, n_bytes) / math.log(2)
    return f'{value:.3f} ± {error:.3f}'


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
