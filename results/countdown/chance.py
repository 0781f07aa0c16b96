"""How many Countdown puzzles does a random derivation solve, and how many nats must a blank cost?

    python results/countdown/chance.py --dataset=countdown3_30
    python results/countdown/chance.py --dataset=countdown3_30 --split=val --n_puzzles=512
    python results/countdown/chance.py --dataset=countdown3_30 --split=train

Each step takes two random numbers of those that are left, and a random sign that leads to a result
from 1 to 999, as the generator does. All derivations of a puzzle are enumerated. With p(d) the
probability of derivation d, the share that solves the puzzle is S = sum of p(d) over those that end
in the target, and d, the row's own, costs a network that knows all of this

    log S - log p(d) nats,

whichever order its blanks are written in: no network has a lower loss in the mean."""

import math
import os
import statistics
import sys
from collections import Counter, defaultdict
from functools import cache
from itertools import combinations

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT
from anyorder.datasets import open_split
from anyorder.extras.puzzles.countdown import COLUMNS, MOST_RESULT, Countdown
from anyorder.extras.puzzles.rules import judge_of
from anyorder.likelihood.tables import standard_error
from anyorder.machine.terminal import one_line_errors, progress
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.meta import kind_of
from configurator import at_least, configure

dataset = 'countdown3_30'  # a set of puzzles make
split = 'test'  # 'test', 'val' or 'train'
data_dir = 'data'  # where prepared sets are
n_puzzles = 0  # how many, spread evenly over the set as a validation does; 0 is all


def main(config):
    at_least(config, 0, 'n_puzzles')
    rows, meta = open_split(config.data_dir, config.dataset, config.split)
    task = judge_of(kind_of(meta))
    if not isinstance(task, Countdown):
        raise ValueError(f'{config.dataset} holds no Countdown puzzles: choose another --dataset')
    tokens, given = all_blocks(rows, meta.row_length, config.n_puzzles)
    if len(tokens) < 2:
        raise ValueError(f'an error over puzzles wants 2 or more, got {len(tokens)}')
    n_different = len(np.unique(task.key(tokens.numpy()), axis=0))
    texts = meta.vocabulary
    found = []
    for row in progress(tokens.tolist(), desc='puzzles', leave=False):
        words = [texts[token] for token in row]
        found.append(answer_of(words, task))
    shares, nats, counts = zip(*found)
    n_blanks = int((~given[0]).sum())  # the same in every row
    print(f'{len(tokens):,} puzzles of {config.dataset} ({config.split}), ± over puzzles')
    print(f'different numbers, in any order, and targets: {n_different:,}')
    print(f'solved by a random derivation: {figure([100 * share for share in shares])} %')
    print(f'least nats a blank: {figure([x / n_blanks for x in nats], 4)}')
    print(f'derivations that are right: {figure(counts)}, median {statistics.median(counts):g}')


def figure(values, digits=2):
    mean = statistics.fmean(values)
    return f'{mean:.{digits}f} ± {standard_error(values):.{digits}f}'


def answer_of(words, task):
    """Return (share that solves it, nats of its own derivation, right derivations) of a row."""
    numbers = sorted(int(word) for word in words[: task.n])
    target = int(words[task.n_question - 1])
    own = steps_of(words[task.n_question :])
    right = derivations_by_result(tuple(numbers))[target]
    share = sum(right.values())
    return share, math.log(share) - math.log(right[own]), len(right)


def steps_of(words):
    """Return the steps (a, sign, b) of the words of a derivation."""
    steps = []
    for i in range(0, len(words), COLUMNS):
        a, sign, b, _, _ = words[i : i + COLUMNS]
        steps.append((int(a), sign, int(b)))
    return tuple(steps)


@cache
def derivations_by_result(numbers):
    """Return {last result: {steps: probability}} of the derivations of numbers."""
    found = defaultdict(Counter)
    for steps, result, p in derivations(numbers):
        found[result][steps] += p
    return found


def derivations(numbers, before=(), p=1.0):
    """Yield (steps, last result, probability) of every way to draw a derivation of the numbers."""
    if len(numbers) == 1:
        yield before, numbers[0], p
        return
    pairs = list(combinations(range(len(numbers)), 2))
    for pair in pairs:
        b, a = sorted(numbers[i] for i in pair)
        left = [x for i, x in enumerate(numbers) if i not in pair]
        results = results_of(a, b)
        for sign, result in results.items():
            step = (a, sign, b)
            share = p / len(pairs) / len(results)
            yield from derivations([*left, result], (*before, step), share)


def results_of(a, b):
    """Return {sign: result} of a step of a and b, where a is not below b."""
    results = {'+': a + b, '-': a - b, '*': a * b}
    if a % b == 0:
        results['/'] = a // b
    return {sign: x for sign, x in results.items() if 1 <= x <= MOST_RESULT}


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
