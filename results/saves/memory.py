"""How much memory does a process take until a run begins?

    torchrun --standalone --nproc_per_node=4 results/saves/memory.py \\
        --init_from=resume --out_dir=out/saves

is train.py with its options, and ends before its first update. It says the largest memory that each
process had at once, which includes what it mapped of files, and the memory of Python and torch
before that."""

import resource
import sys

sys.path.append('.')  # the project's folder, from which it is run

import torch.distributed.checkpoint  # noqa: F401  what a split run imports
import torch.distributed.fsdp  # noqa: F401

import train
from anyorder.machine.processes import end_processes, gather, processes
from anyorder.machine.terminal import one_line_errors, say
from configurator import configure


def mebibytes():
    """Return the peak of this process; Linux counts KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


BEFORE = mebibytes()


def say_peaks(*args):
    """End the program in place of the first update."""
    peaks = gather(mebibytes())
    rank, _ = processes()
    if rank == 0:
        say(f'MiB at most, of each process: {peaks}, of which {BEFORE} before the run')
    end_processes()
    sys.exit()


if __name__ == '__main__':
    with one_line_errors():
        train.train(configure(vars(train) | {'__doc__': __doc__}), say_peaks)
