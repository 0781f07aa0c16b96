"""Make sets of puzzles, and count how many of them a model solves.

    python -m anyorder.extras.puzzles make sudoku4
    python -m anyorder.extras.puzzles solve --ckpt=out/sudoku4/ckpt.pt

make    Sudoku, Zebra puzzles, latents and observations: generated from a seed or read from a file,
        every one checked by an exact solver
solve   lets a model write the blanks of a set's rows, in any order or by its own choice, and counts
        the rows and the blanks that are right

`make --help` and `solve --help` list their options."""

import runpy
import sys

from anyorder.machine.terminal import one_line_errors

COMMANDS = ('make', 'solve')


def command(argv):
    """Return the module of the command that the words name, None where they ask for help."""
    if argv[:1] in (['--help'], ['-h']):
        return None
    if argv[:1] == [] or argv[0] not in COMMANDS:
        got = argv[0] if argv else 'none'
        raise ValueError(f'the first word must be {" or ".join(COMMANDS)}, got {got}')
    return f'anyorder.extras.puzzles.{argv[0]}'


if __name__ == '__main__':
    with one_line_errors():
        module = command(sys.argv[1:])
    if module is None:
        print(__doc__)
    else:
        del sys.argv[1]
        runpy.run_module(module, run_name='__main__', alter_sys=True)
