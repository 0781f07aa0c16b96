"""How many Countdown puzzles does a random derivation solve?

    python results/countdown/chance.py --dataset=countdown3_30

Each step takes two random numbers of those that are left, and a random sign that leads to a result
from 1 to 999, as the generator does."""

import os
import sys

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT
from anyorder.datasets import open_split
from anyorder.extras.puzzles.countdown import number_of
from anyorder.extras.puzzles.rules import make_task
from anyorder.machine.terminal import one_line_errors
from configurator import at_least, configure

dataset = 'countdown3_30'  # a set of puzzles make
split = 'test'  # 'test', 'val' or 'train'
data_dir = 'data'  # where prepared sets are
draws = 200  # random derivations of each puzzle
seed = 1  # draws the derivations


def main(config):
    at_least(config, 1, 'draws')
    rows, meta = open_split(config.data_dir, config.dataset, config.split)
    tokens, given = rows.unpack(rows.packed.astype(int))
    task = make_task(meta.puzzle)
    numbers = number_of(tokens[:, : task.n])
    rng = np.random.default_rng(config.seed)
    solved = []
    for _ in range(config.draws):
        answer = tokens.copy()
        answer[:, task.n_question :], _ = task.random_steps(numbers, rng)
        _, right = task.check_answer(tokens, given, answer)
        solved.append(right.all(1))
    share = np.mean(solved, 0)  # of each puzzle
    error = share.std(ddof=1) / len(share) ** 0.5
    print(f'{share.mean():.2%} ± {error:.2%} of the random derivations of {len(share):,} puzzles')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
