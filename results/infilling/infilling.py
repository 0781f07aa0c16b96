"""How well do networks that learned other orders fill in a middle?

    python results/infilling/infilling.py --ckpts='out/findings/infilling_*/ckpt.pt' --out=nats.json

A checkpoint stands in a folder ARM_seedN. A text is the first N - 3 tokens of a block of N, so that
a model with marks, trained by fim.py, sees the text that the others see. Printed are nats a token,
the mean over seeds with its standard error, and their number."""

import glob
import os
import sys
from functools import partial

sys.path.append('.')  # the project's folder, from which it is run

import torch

from anyorder.checkpoint import open_checkpoint
from anyorder.datasets import open_split
from anyorder.extras.pictures.__main__ import format_mean
from anyorder.fast import freeze
from anyorder.likelihood.judge import counted_nats
from anyorder.likelihood.nll import block_nll
from anyorder.machine.files import check_out, write_json
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import given_first, sample_order
from anyorder.seeds import stream
from anyorder.tokens.blocks import all_blocks
from configurator import configure, numbers
from results.infilling.fim import N_MARKS, marked_middle

ckpts = ''  # checkpoints, with commas between; * is allowed
lengths = '4,8,16,32,64'  # of a middle
n_texts = 1000  # validation blocks, spread evenly
batch_size = 64
seed = 1  # of middles and halves
out = ''  # a JSON file


def main(config):
    check_out('out', config.out, '.json')
    paths = [path for pattern in config.ckpts.split(',') for path in glob.glob(pattern)]
    if not paths:
        raise ValueError(f'no checkpoint {config.ckpts}')
    found = {}  # {question: {arm: [nats a token, one a seed]}}
    for path in sorted(paths):
        arm, _, _ = os.path.basename(os.path.dirname(path)).rpartition('_seed')
        for question, nats in measure(open_checkpoint(path), config).items():
            found.setdefault(question, {}).setdefault(arm, []).append(nats)
            print(f'{path:<48}{question:<22}{nats:.4f}', flush=True)
    show(found)
    if config.out:
        write_json(config.out, found)


def measure(checkpoint, config):
    """Return {question: nats a token} of what this model can be asked."""
    model = freeze(checkpoint.model('ema'))
    texts = texts_of(checkpoint, config.n_texts)
    found = {}
    for question, (blank, way) in questions(texts, config).items():
        nats = nats_of(checkpoint, model, texts, blank, way, config)
        if nats is not None:
            found[question] = float(nats.sum() / blank.sum())
    return found


def texts_of(checkpoint, n):
    """Return (n, N - 3) tokens of the validation set of a checkpoint."""
    split, _ = open_split(checkpoint.run['data_dir'], checkpoint.run['dataset'], 'val')
    return all_blocks(split, checkpoint.config.block_size, n)[0][:, :-N_MARKS]


def questions(texts, config):
    """Return {name: (blank (n, T), way)}, see nats_of."""
    T = texts.size(1)
    found = {}
    for length in numbers(config, 'lengths', least=1, most=T):
        blank = middles(*texts.shape, length, config.seed)
        for way in ('sides', 'random', 'before'):
            found[f'{way} {length}'] = (blank, way)
    drawn = sample_order(*texts.shape, generator=stream(config.seed, 'half'))
    half = drawn.argsort(-1) < T // 2
    found['half'] = (half, 'sides')
    found['half, random order'] = (half, 'random')
    found['left to right'] = (torch.ones_like(half), 'before')
    return found


def middles(n, T, length, seed):
    """Return (n, T) bool: `length` tokens at a uniform place."""
    start = torch.randint(T - length + 1, (n, 1), generator=stream(seed, 'middle', length))
    position = torch.arange(T)
    return (position >= start) & (position < start + length)


def nats_of(checkpoint, model, texts, blank, way, config):
    """Return (n,) nats of the `blank` (n, T) positions, None where such a model has no such number.

    sides   given all others, which come first; both in reading order
    random  the same, both in a random order
    before  given what stands before the first of them"""
    size = min(config.batch_size, len(texts))
    if way == 'before':
        parts = zip(texts.split(size), blank.split(size))
        return torch.cat([counted_nats(model, *part) for part in parts])

    score = partial(block_nll, model, batch_size=size)
    is_one_gap = blank.diff(dim=1).sum(1).max() <= 2
    if way == 'sides' and is_one_gap and checkpoint.run.get('fim_ratio', 0) > 0:
        idx = marked_middle(texts, ends_of(blank), model.config.n_real)
        return score(idx, left_to_right(idx), n_given=idx.size(1) - blank.sum(1))
    if checkpoint.order.kind == 'l2r':
        return None
    base = left_to_right(texts)
    if way == 'random':
        base = sample_order(*texts.shape, generator=stream(config.seed, way))
    order, n_given, _ = given_first(base, ~blank)
    return score(texts, order, n_given=n_given)


def ends_of(blank):
    """Return (n, 2): where the one gap of `blank` (n, T) begins, and one past its end."""
    start = blank.int().argmax(1)
    return torch.stack([start, start + blank.sum(1)], 1)


def left_to_right(texts):
    return torch.arange(texts.size(1)).expand(len(texts), -1)


def show(found):
    """Print a table: a line for each question, a column for each arm."""
    arms = list(dict.fromkeys(arm for of_arms in found.values() for arm in of_arms))
    print(f'\n| | {" | ".join(arms)} |')
    print(f'|---|{"|".join("---" for _ in arms)}|')
    for question, of_arms in found.items():
        cells = [format_mean(of_arms.get(arm, []), {0}) for arm in arms]
        print(f'| {question} | {" | ".join(cells)} |')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
