"""Make sets of puzzles, and count how many of them a model solves.

    python -m anyorder.extras.puzzles make sudoku4
    python -m anyorder.extras.puzzles solve --ckpt=out/sudoku4/ckpt.pt

make    Sudoku, Zebra puzzles, Countdown, latents and observations, from a seed, each checked by an
        exact solver
solve   lets a model write the blanks of a set's rows, in any order or by its own choice, and counts
        the rows and the blanks that are right

`make --help` and `solve --help` list their options."""

from anyorder.extras.commands import run_one_of

COMMANDS = ('make', 'solve')

if __name__ == '__main__':
    run_one_of(COMMANDS, __package__, __doc__)
