"""When does a model that chooses its own order write each token of a Countdown?

    python results/countdown/order.py --ckpt=out/countdown/ckpt.pt

It prints the mean step at which each blank of a row is written, and the share of puzzles in which
the last token, the target, is written first."""

import os
import sys

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT
from anyorder.checkpoint import open_checkpoint
from anyorder.extras.puzzles.countdown import Countdown
from anyorder.extras.puzzles.solve import open_puzzles, solve
from anyorder.fast import freeze
from anyorder.generation import Drawing
from anyorder.generation.way import Way, order_and_unmasking
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import Order
from configurator import at_least, configure

ckpt = 'out/countdown/ckpt.pt'
dataset = ''  # a set of puzzles; '' is what the checkpoint was trained on
split = 'test'  # 'test', 'val' or 'train'
data_dir = ''  # where prepared sets are; '' is where the checkpoint's are
blanks = ''  # as in puzzles solve
n_puzzles = 200  # how many, spread evenly over the set; 0 is all
order = 'margin'  # how the model chooses
seed = 1337  # as in puzzles solve


def main(config):
    at_least(config, 0, 'n_puzzles')
    checkpoint = open_checkpoint(config.ckpt)
    puzzles = open_puzzles(checkpoint, config)
    if not isinstance(puzzles.task, Countdown):
        raise ValueError(f'{puzzles.label} holds no Countdown puzzles: choose another --dataset')
    model = freeze(checkpoint.model('ema', 'cpu'), torch.float32)
    way_of, unmasking = order_and_unmasking(config.order, n_steps=2**31)
    way = Way(Order.of(way_of, checkpoint.run), unmasking, Drawing(0.0))
    _, step, _ = solve(model, puzzles.tokens, puzzles.given, way, config.seed)
    is_blank = ~puzzles.given[0]  # the same in every row
    means = 1 + step[:, is_blank].double().mean(0)
    print('mean step of each blank, from 1: ' + ' '.join(f'{mean:.1f}' for mean in means))
    print(f'the target is written first: {(step[:, -1] == 0).double().mean():.1%}')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
