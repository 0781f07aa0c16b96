"""How was this process started: by torchrun, with others? Which program is it, and how is it typed?

What torchrun sets is read here alone, before slow imports."""

import os
import re
import shlex
import sys
from pathlib import Path

NUMBERS = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_PORT')
NAMES = (*NUMBERS, 'MASTER_ADDR')


PROJECT = Path(__file__).resolve().parents[2]
NO_FILE = '(no file)'  # the name of a notebook, of python -c, and of what is read from a pipe


def program():
    """Return the name of the program that runs: the path of its file, in the project from there."""
    path = getattr(sys.modules['__main__'], '__file__', '<string>')
    if path.startswith('<'):
        return NO_FILE
    return path_from(PROJECT, Path(path).resolve())


def path_from(folder, path):
    """Return a path as text: from a folder on if it lies there, else whole."""
    if path.is_relative_to(folder):
        path = path.relative_to(folder)
    return path.as_posix()


def command(name, n_processes):
    """Return what to type before the options of the program of this name, to run it here by so many
    processes."""
    if name == NO_FILE:
        return 'the same program and'
    start = launcher(n_processes)
    spec = getattr(sys.modules['__main__'], '__spec__', None)
    # a folder that is run has a spec without a name of its own
    if name == program() and spec and spec.name != '__main__':
        return f'{start} -m {spec.name}'
    return f'{start} {shlex.quote(path_from(Path.cwd(), PROJECT / name))}'


def launcher(n_processes):
    """Return what to type before the name of a script that so many processes run, as here."""
    if n_processes == 1:
        return 'python'
    if os.environ.get('LOCAL_WORLD_SIZE') == str(n_processes):  # all are on this machine
        return f'torchrun --standalone --nproc_per_node={n_processes}'
    return 'torchrun ...'


def surroundings():
    """Return {'RANK', 'LOCAL_RANK', 'WORLD_SIZE'} as torchrun has set them; {} without NAMES.

    Raises ValueError for a part of them and for values that torchrun never sets: such a process
    would do a part of the work, or wait for others that nobody starts. Other names, as SLURM and
    MPI set them, do not count: config/train.sbatch gives SLURM's numbers these names."""
    there = {name: os.environ[name] for name in NAMES if name in os.environ}
    if not there:
        return {}
    found = {}
    for name in NUMBERS:
        if re.fullmatch('[0-9]+', there.get(name, '')):
            found[name] = int(there[name])
    is_whole = len(found) == len(NUMBERS) and there.get('MASTER_ADDR')
    if not is_whole or max(found['RANK'], found['LOCAL_RANK']) >= found['WORLD_SIZE']:
        said = ', '.join(f'{name}={value!r}' for name, value in there.items())
        without = ' '.join(f'-u {name}' for name in there)
        raise ValueError(
            f'torchrun sets {", ".join(NAMES)}, ranks below WORLD_SIZE, the environment has '
            f'{said}: start it by torchrun, or alone: env {without} python ...'
        )
    return {name: found[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')}


def place_in_node():
    """Return (number of this process in its node, number of the node's processes) by torchrun.

    None stands for what the environment does not say."""
    found = []
    for name in ('LOCAL_RANK', 'LOCAL_WORLD_SIZE'):
        said = os.environ.get(name, '')
        found.append(int(said) if re.fullmatch('[0-9]+', said) else None)
    return tuple(found)
