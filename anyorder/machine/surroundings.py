"""Did torchrun start this process, with others? What torchrun sets is read here alone, before slow imports."""

import os
import re

NUMBERS = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_PORT')
NAMES = (*NUMBERS, 'MASTER_ADDR')


def launcher(n_processes):
    """What to type before the name of a script that so many processes run, as this one was started."""
    if n_processes == 1:
        return 'python'
    if os.environ.get('LOCAL_WORLD_SIZE') == str(n_processes):  # all are on this machine
        return f'torchrun --standalone --nproc_per_node={n_processes}'
    return 'torchrun ...'


def surroundings():
    """{'RANK', 'LOCAL_RANK', 'WORLD_SIZE'} as torchrun has set them; {} where none of NAMES is set.

    Raises ValueError for a part of them and for values that torchrun never sets: such a process would do a part of the
    work, or wait for others that nobody starts. Other names, as SLURM and MPI set them, do not count:
    config/train.sbatch gives SLURM's numbers these names."""
    there = {name: os.environ[name] for name in NAMES if name in os.environ}
    if not there:
        return {}
    way = (
        f'start it by torchrun, or alone: env {" ".join(f"-u {name}" for name in there)} python ...'
    )
    if missing := [name for name in NAMES if name not in there]:
        raise ValueError(
            f'the environment has {", ".join(there)} of torchrun, without {", ".join(missing)}: {way}'
        )
    said = ', '.join(f'{name}={value!r}' for name, value in there.items())
    if not there['MASTER_ADDR'] or not all(re.fullmatch('[0-9]+', there[name]) for name in NUMBERS):
        raise ValueError(
            f'torchrun sets whole numbers and an address, the environment has {said}: {way}'
        )
    rank, local, n_processes = (int(there[name]) for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE'))
    if max(rank, local) >= n_processes:
        raise ValueError(
            f'RANK and LOCAL_RANK must be below WORLD_SIZE, the environment has {said}: {way}'
        )
    return {'RANK': rank, 'LOCAL_RANK': local, 'WORLD_SIZE': n_processes}
