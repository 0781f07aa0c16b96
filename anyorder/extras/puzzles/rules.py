"""Which puzzles are there?"""

from functools import partial

from anyorder.extras.puzzles.countdown import Countdown
from anyorder.extras.puzzles.nae_sat import NaeSat
from anyorder.extras.puzzles.puzzle import Puzzle
from anyorder.extras.puzzles.steps import CELLS, ORDERS, Solved, Steps
from anyorder.extras.puzzles.sudoku import Sudoku
from anyorder.extras.puzzles.zebra import Zebra
from configurator import check_choice

# {name: what makes a Puzzle of its options}; another puzzle is one class, named here
TASKS = {
    'sudoku4': partial(Sudoku, 4),
    'sudoku': partial(Sudoku, 9),
    'zebra4': partial(Zebra, 4),
    'zebra': partial(Zebra, 6),
    'countdown3': partial(Countdown, 3),
    'countdown4': partial(Countdown, 4),
    'nae_sat': NaeSat,
}


def task_of(task, steps='', **options):
    """Return the Puzzle of a name and of its options."""
    check_choice('a puzzle', task, *TASKS)
    puzzle = TASKS[task](**options)
    if not steps:
        return puzzle
    check_choice('steps', steps, *ORDERS, CELLS)
    return Solved(puzzle) if steps == CELLS else Steps(puzzle, steps)


def judge_of(meta):
    """Return the Puzzle of a set, by its Meta. Without rules a blank is right if it is what the set
    says."""
    return task_of(**meta.puzzle) if meta.puzzle else Puzzle()
