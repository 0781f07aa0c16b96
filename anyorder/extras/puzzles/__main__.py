"""Make sets of puzzles, and count how many of them a model solves.

    python -m anyorder.extras.puzzles make sudoku4
    python -m anyorder.extras.puzzles solve --ckpt=out/sudoku4/ckpt.pt

`make --help` and `solve --help` list their options."""

from anyorder.extras.commands import run_one_of

WORDS = {
    'make': 'sets of Sudoku, Zebra, Countdown, latents and observations, checked by a solver',
    'solve': 'a model writes the blanks of rows in any order; how many rows and blanks are right',
}

if __name__ == '__main__':
    run_one_of(globals())
