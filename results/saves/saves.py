"""What does a save take from a run that several processes split?

    torchrun --standalone --nproc_per_node=2 results/saves/saves.py config/quickstart.py \\
        --save_memory=shard --gradient_accumulation_steps=2 --out_dir=out/saves

is train.py with its options, and trains nothing: in turns some updates are made without a save,
with one in parts, as such a run saves, and with one in a single file, for which all processes
gather each tensor and wait until the first one has written them. A turn has each of the three once,
each turn in another order, and ends when updates and save are done. The table has the median of the
turns and their quartiles."""

import itertools
import os
import shutil
import statistics
import sys
import time

sys.path.append('.')  # the project's folder, from which it is run

import torch.distributed as dist

import train
from anyorder.checkpoint import entries_of, write_checkpoint
from anyorder.machine.processes import end_processes, is_split, map_tensors, processes, whole
from anyorder.machine.terminal import one_line_errors, say
from anyorder.training import start
from anyorder.training.run_folder import RunFolder
from anyorder.training.update import update
from configurator import configure

N_TURNS = 12
N_UPDATES = 6  # of each arm in a turn, which last longer than a save


class Arm:
    """Updates with a save before them, or without."""

    def __init__(self, state, split, lr, config):
        self.state = state
        self.make_update = lambda: update(state, split, lr, config)
        self.path = os.path.join(config.out_dir, 'saves')
        os.makedirs(self.path, exist_ok=True)

    def entries(self):
        state = self.state
        return {'model': state.model, 'ema': state.ema, **start.entries_to_resume(state)}

    def begin(self):
        """Save, until updates can go on."""

    def end(self):
        """Wait for the rest of the save."""


class InParts(Arm):
    def begin(self):
        self.folder = RunFolder(self.path, resumed=self.state.iter_num)
        self.folder.save(**self.entries())

    def end(self):
        self.folder.settle(wait=True)


class InOneFile(Arm):
    def begin(self):
        checkpoint = map_tensors(entries_of(**self.entries()), gathered)
        rank, _ = processes()
        if rank == 0:
            write_checkpoint(os.path.join(self.path, 'ckpt.pt'), checkpoint)
        dist.barrier()


def gathered(_, x):
    """Return a whole tensor on the CPU, which the first process alone keeps."""
    full = whole(x)
    rank, _ = processes()
    if rank == 0:
        return full.cpu()
    return None


ARMS = {'no save': Arm, 'in parts': InParts, 'in one file': InOneFile}


def measure(state, split, lr, config):
    """Take turns, and end the program."""
    if not is_split(state.model.lm_head.weight):
        raise ValueError('this wants several processes of torchrun, and --save_memory=shard')
    arms = {name: arm(state, split, lr, config) for name, arm in ARMS.items()}
    orders = itertools.cycle(itertools.permutations(arms))
    turns = [turn(arms, next(orders)) for _ in range(N_TURNS + 1)]
    rank, _ = processes()
    if rank == 0:
        shutil.rmtree(os.path.join(config.out_dir, 'saves'))
        say(table(turns[1:]))  # the first turn prepares
    end_processes()


def turn(arms, order):
    """Return {name: (seconds until updates go on, seconds of all)} of the arms in an order."""
    return {name: timed(arms[name]) for name in order}


def timed(arm):
    dist.barrier()
    began = time.monotonic()
    arm.begin()
    goes_on = time.monotonic()
    for _ in range(N_UPDATES):
        arm.make_update()
    arm.end()
    dist.barrier()
    return goes_on - began, time.monotonic() - began


def table(turns):
    """Return the table of all turns: what an arm takes more than the updates of its own turn."""
    titles = (f'{N_UPDATES} updates', 'taken by a save', 'until updates go on')
    lines = [f'{"seconds":<14}' + ''.join(f'{title:>24}' for title in titles)]
    for name in ARMS:
        both = [one[name][1] for one in turns]
        taken = [one[name][1] - one['no save'][1] for one in turns]
        at_once = [one[name][0] for one in turns]
        lines.append(f'{name:<14}{quartiles(both)}{quartiles(taken)}{quartiles(at_once)}')
    return '\n'.join(lines)


def quartiles(seconds):
    low, middle, high = statistics.quantiles(seconds, n=4)
    said = f'{middle:.2f} ({low:.2f}-{high:.2f})'
    return f'{said:>24}'


if __name__ == '__main__':
    with one_line_errors():
        train.train(configure(vars(train) | {'__doc__': __doc__}), measure)
