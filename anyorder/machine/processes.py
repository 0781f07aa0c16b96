"""Does this process run alone or with others, under torchrun?

What do they have, and when are they asked to stop?"""

import contextlib
import os
import shlex
import signal
import sys

import torch
import torch.distributed as dist

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def processes():
    """Return (rank of this process, number of processes) as torchrun says, which is (0, 1) alone.

    Other names, as SLURM and MPI set them, do not count: config/train.sbatch gives SLURM's numbers
    those of torchrun."""
    world_size = int(os.environ.get('WORLD_SIZE', 1))
    rank = int(os.environ.get('RANK', 0)) if world_size > 1 else 0
    return rank, world_size


def n_processes():
    _, world_size = processes()
    return world_size


def is_first():
    """Whether this is the first process, which alone writes and says."""
    rank, _ = processes()
    return rank == 0


def start_processes(patience=None):
    """Join the other processes, if any: by gloo on the CPU, by NCCL on a GPU.

    `patience`, a timedelta, is how long a process waits for others; None is PyTorch's choice."""
    if n_processes() > 1:
        backend = 'cpu:gloo,cuda:nccl' if torch.cuda.is_available() else 'gloo'
        dist.init_process_group(backend, timeout=patience)


@contextlib.contextmanager
def first_process_first():
    """Have the body run in the first process, then in the others, which find what it has made.

    The others begin after a failure of the first, too."""
    if not is_first():
        gather(None)  # which waits for all
    try:
        yield
    finally:
        if is_first():
            gather(None)


def sum_over_processes(x):
    """Sum the tensor x in place over all processes, and return it."""
    if n_processes() > 1:
        dist.all_reduce(x)
    return x


def gather(x):
    """Return [x of each process], the same list in all processes."""
    every = [x for _ in range(n_processes())]
    if n_processes() > 1:
        dist.all_gather_object(every, x)
    return every


def is_split(x):
    """Return whether a tensor is the part that this process has of a larger tensor."""
    return hasattr(x, 'full_tensor')


def whole(x):
    """Return a tensor, gathered by all processes if it is split."""
    return x.full_tensor() if is_split(x) else x


def own_part(x, like):
    """Return the part of a whole tensor x that belongs beside `like`, which is split by rows.

    It is x itself if `like` is whole or has another shape."""
    if not is_split(like) or not isinstance(x, torch.Tensor) or x.shape != like.shape:
        return x
    from torch.distributed.tensor import distribute_tensor

    # every process has all of x: none sends another its part
    where = (like.device_mesh, like.placements)
    return distribute_tensor(x.to(like.device), *where, src_data_rank=None)


# what asks a run to save and end, as far as the system has it
STOP_SIGNALS = ('SIGINT', 'SIGTERM', 'SIGUSR1', 'SIGHUP')


@contextlib.contextmanager
def stop_requests():
    """Yield a function to call once an iteration: was any process asked to end?

    Ctrl-C, SIGTERM, SIGUSR1 and a closed terminal ask. All processes get the same answer; they wait
    for each other, but for no device. A second Ctrl-C ends a lone process at once. Other signals
    may come twice: a scheduler and its launcher, or shell and kernel, send both."""
    asked = []

    def ask(number, frame):
        if asked and n_processes() == 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    numbers = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]
    if signal.getsignal(numbers[-1]) == signal.SIG_IGN:  # SIGHUP under nohup
        numbers.pop()
    old = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield lambda: bool(sum_over_processes(torch.tensor(len(asked))))
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def end_processes(code=0):
    """End a script that torchrun may have started, with this exit code; it stands in its last
    line."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        lost = getattr(sys.stdout, 'lost', None)  # see terminal.Surviving
        if lost:
            print(f'error: {lost}', file=sys.stderr, flush=True)
            code = 1
        # gloo's threads outlive the group and now and then abort an interpreter that shuts down
        os._exit(code)
    if code:
        sys.exit(code)


def command(name):
    """Return what to type here before the options of the program of this name, to run it by as many
    processes."""
    path = os.path.relpath(os.path.join(ROOT, name))
    return f'{launcher()} {shlex.quote(path)}'


def launcher():
    """Return what to type before the name of a script that as many processes run, as here."""
    n = n_processes()
    if n == 1:
        return 'python'
    if os.environ.get('LOCAL_WORLD_SIZE') == str(n):  # all are on this machine
        return f'torchrun --standalone --nproc_per_node={n}'
    return 'torchrun ...'
