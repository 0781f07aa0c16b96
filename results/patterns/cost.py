"""What does a pattern cost, beside the same text without one? Processor time in pairs.

    python results/patterns/cost.py
    python results/patterns/cost.py --order=margin --known=128 --n_steps=2 --n_pairs=5

A decoder of the size of config/ao_gpt_small.py, with random weights, writes one token a step. Each
pair times some steps with the pattern and without, one behind the other, and in turn the one or the
other first. Printed is the median of the ratios, with the quartiles."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import itertools
import statistics
import time

import torch

from anyorder import Pattern
from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.way import Way
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.tokenizers import get_tokenizer
from configurator import at_least, configure
from model import AOGPT, AOGPTConfig

TEXTS = ('pattern',)
pattern = '([A-Z][a-z ]{0,26}[.!?] )*'  # of each row
order = 'random'  # or a choice of the model, as margin
known = 0  # tokens at the start that are known, of 'The cat sat on the mat. ' again and again
length = 256  # tokens of a row
batch_size = 8  # rows
n_steps = 8  # timed steps of each text, behind the first
n_pairs = 12
seed = 1337


def main(config):
    at_least(config, 2, 'n_pairs')  # whose quartiles are printed
    tokenizer = get_tokenizer('gpt2')
    start = time.process_time()
    asked = Pattern(config.pattern)
    table = asked.table(tokenizer)
    seconds = time.process_time() - start
    print(f'{table.n_states} states, {table.n_classes} classes, made in {seconds:.2f} s')

    torch.manual_seed(config.seed)
    model = AOGPT(AOGPTConfig(n_tokens=tokenizer.n_tokens)).eval()
    network = freeze(model)
    way = Way.of({}, config.order, n_steps=config.length)
    beginning = ''.join('The cat sat on the mat. ' for _ in range(config.known))
    beginning = tokenizer.encode(beginning)[: config.known]
    blanks = [-1 for _ in range(config.length - config.known)]
    tokens = beginning + blanks

    def seconds_of(has_pattern):
        idx = [max(0, i) for i in tokens]
        is_known = [i >= 0 for i in tokens]
        rows = [(idx, is_known) for _ in range(config.batch_size)]
        canvas = Canvas.of_texts(rows, way.order, config.seed)
        if has_pattern:
            parts = [(r, 0, tokens, asked) for r in range(config.batch_size)]
            canvas.language = asked.language(parts, canvas, tokenizer)
        steps = way.steps(network, canvas)
        next(steps)  # which reads what is known
        start = time.process_time()
        for _ in itertools.islice(steps, config.n_steps):
            pass
        seconds = time.process_time() - start
        steps.close()
        return seconds / config.n_steps

    for has_pattern in (False, True):
        seconds_of(has_pattern)
    pairs = []
    for number in range(config.n_pairs):
        first = bool(number % 2)
        found = {has_pattern: seconds_of(has_pattern) for has_pattern in (first, not first)}
        pairs.append((found[False], found[True]))
    print(said(pairs))


def said(pairs):
    """Return a line on pairs of seconds a step, without a pattern and with it."""
    low, middle, high = statistics.quantiles([having / free for free, having in pairs], n=4)
    free, having = map(statistics.median, zip(*pairs))
    return (
        f'{1000 * free:.1f} ms a step, with the pattern {1000 * having:.1f} ms: '
        f'{middle:.2f} times ({low:.2f} to {high:.2f})'
    )


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
