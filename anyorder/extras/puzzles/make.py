"""Puzzles to token files, generated from a seed, every one checked by an exact solver.

    python -m anyorder.extras.puzzles make sudoku4   # 4 x 4
    python -m anyorder.extras.puzzles make sudoku --n_train=200000   # 9 x 9
    python -m anyorder.extras.puzzles make zebra4   # 3 or 4 houses; zebra: 3 to 6
    python -m anyorder.extras.puzzles make zebra4 --largest=3 --steps=solver --name=zebra3_steps
    python -m anyorder.extras.puzzles make nae_sat --n_latents=25 --n_observations=275
    python -m anyorder.extras.puzzles make countdown3   # numbers, a target; countdown4: one more

A row is a puzzle with its solution: row_length tokens, little-endian uint16; bit 15 of a token says
that it is given. No two splits of a folder share a solution; two Sudokus share one if only the
names of digits differ, two Countdowns if they have the same numbers and target. Sudoku and Zebra
have up to 10 variants of a puzzle to train on, renamed and turned. A second run does nothing unless
--force.

With --steps a row of Sudoku or Zebra is a step for each cell: row, column and digit, or item and
house, each a token; the clues and what is given come first. Puzzles that take a guess are left out,
so that solver, reading, random and cells, which are rows as without --steps, have the same ones."""

import signal

from anyorder.extras.puzzles.rules import TASKS, task_of
from anyorder.extras.puzzles.sets import SHARES, prepare_puzzles
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.folder import print_meta
from configurator import at_least, check_choice, configure

WORDS = {name: task_of(name).about for name in TASKS}

OF_SOME = ('n_latents', 'n_observations', 'largest', 'steps')  # options of some tasks

# what is generated
n_train = 0  # puzzles to train on; 0 is 100,000, for sudoku4 20,000
n_val = 0  # puzzles to validate on; 0 is 1,000
n_test = 0  # puzzles to test on; 0 is 1,000
seed = 0  # draws the puzzles, and the triples of nae_sat
n_latents = 25  # nae_sat: coins
n_observations = 275  # nae_sat: observations of three coins each
largest = 0  # zebra: houses and attributes at most; countdown: the largest number; 0 is all
steps = ''  # sudoku, zebra: steps in the order of a solver, reading or random; or cells
# what is written
split = ''  # make only this one: train, val or test
name = ''  # folder to write under `data_dir`; '' is the name of the puzzle
data_dir = 'data'  # where prepared sets are
force = False  # replace what is there


def main(config):
    at_least(config, 0, 'n_train', 'n_val', 'n_test', 'seed')
    check_choice('split', config.split or 'train', *SHARES)
    (task,) = config.words
    kind = task_of(task)
    if idle := config.given & ({*OF_SOME} - {*kind.options, *kind.made}):
        raise ValueError(f'--{min(idle)} changes nothing of {task}: leave it out')
    n_rows = {s: config[f'n_{s}'] for s in SHARES if config[f'n_{s}']}
    options = {name: config[name] for name in ('seed', *OF_SOME)}
    meta = prepare_puzzles(
        task, config.data_dir, config.name, config.split, n_rows, config.force, **options
    )
    print_meta(config.data_dir, meta)


if __name__ == '__main__':
    with one_line_errors(signal.SIGTERM):
        main(configure(globals()))
