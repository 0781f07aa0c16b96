"""Does this process run alone or with others, under torchrun? What do they have, when are they asked to stop, and with
which code, libraries and machine do they make their numbers?"""

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys

import numpy
import torch
import torch.distributed as dist

from anyorder.machine.devices import cpuinfo, resolve_device
from anyorder.machine.surroundings import surroundings
from anyorder.machine.terminal import Surviving

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def processes():
    """(rank of this process, number of processes). Alone it is (0, 1). Raises ValueError, see `surroundings`."""
    there = surroundings()
    return there.get('RANK', 0), there.get('WORLD_SIZE', 1)


def start_processes(patience=None):
    """Join the other processes, if any: by gloo on the CPU, by NCCL on a GPU. `patience`, a timedelta, is how long a
    process waits for the others; None is PyTorch's default."""
    if processes()[1] > 1:
        dist.init_process_group(
            'cpu:gloo,cuda:nccl' if torch.cuda.is_available() else 'gloo', timeout=patience
        )


def own_device(device, dtype):
    """(torch.device, dtype name) of this process, see resolve_device. Each of several processes has its own GPU."""
    _, world_size = processes()
    if world_size > 1 and str(device).startswith('cuda:'):
        raise ValueError(
            f'each process of torchrun takes a GPU of its own: use --device=cuda, got {device}'
        )
    own = world_size > 1 and device in ('auto', 'cuda') and torch.cuda.is_available()
    device, dtype = resolve_device(f'cuda:{surroundings()["LOCAL_RANK"]}' if own else device, dtype)
    if own:
        torch.cuda.set_device(device)
    return device, dtype


@contextlib.contextmanager
def failing_together():
    """The body runs in all processes. If one of them lacks a file or gets wrong input, all raise ValueError. Otherwise
    the others would wait for the process that ended, on another machine until they run out of patience. The trap: in
    the body, a step that can fail in a single process must come after all exchanges between processes."""
    (rank, world_size), said = processes(), None
    try:
        yield
    except (ValueError, OSError) as e:
        said = str(e)
    failed = [
        line
        for line in gather(said and f'process {rank} on {socket.gethostname()}: {said}')
        if line
    ]
    if failed:
        raise ValueError(failed[0] if len(failed) < world_size else said)


@contextlib.contextmanager
def first_process_first():
    """The body runs in the first process, then, also after a failure, in the others, which find what it has made."""
    rank, world_size = processes()
    if world_size > 1 and rank > 0:
        dist.barrier()
    try:
        yield
    finally:
        if world_size > 1 and rank == 0:
            dist.barrier()


def summed(x):
    """The tensor x, summed in place over all processes."""
    if processes()[1] > 1:
        dist.all_reduce(x)
    return x


def gather(x):
    """[x of each process], the same list in all processes."""
    _, world_size = processes()
    every = [x] * world_size
    if world_size > 1:
        dist.all_gather_object(every, x)
    return every


def is_split(x):
    """Whether a tensor is the part that this process has of a larger tensor."""
    return hasattr(x, 'full_tensor')


def whole(tree, keep=True):
    """Nested dicts and lists whose split tensors all processes gather together, on the CPU; None without `keep`."""
    gathered = {}  # a tied weight stays one

    def joined(x):
        if isinstance(x, dict):
            return {key: joined(value) for key, value in x.items()}
        if isinstance(x, list):
            return [joined(value) for value in x]
        if not is_split(x):
            return x.detach() if isinstance(x, torch.Tensor) else x
        if id(x) not in gathered:
            full = x.detach().full_tensor()
            gathered[id(x)] = full.cpu() if keep else None
        return gathered[id(x)]

    return joined(tree)


def part_of(x, like):
    """The part of a whole tensor x that belongs beside `like`; x itself if `like` is whole or has another shape."""
    if not is_split(like) or not isinstance(x, torch.Tensor) or x.shape != like.shape:
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        x.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


@contextlib.contextmanager
def stop_requests():
    """Yields a function to call once an iteration: was any process asked to end? Ctrl-C, SIGTERM, SIGUSR1 and a closed
    terminal ask. All processes get the same answer; they wait for each other, but for no device. A second Ctrl-C ends a
    lone process at once. Other signals may come twice: a scheduler and its launcher, or shell and kernel, send both."""
    asked = []

    def ask(number, frame):
        if asked and processes()[1] == 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, 'SIGUSR1'):  # not on Windows
        numbers.append(signal.SIGUSR1)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
            numbers.append(signal.SIGHUP)
    old = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield lambda: bool(summed(torch.tensor(len(asked))))
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def end_processes(code=0):
    """End a script that torchrun may have started; it stands in its last line."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        if isinstance(sys.stdout, Surviving):
            try:
                sys.stdout.check()
            except OSError as e:
                print(f'error: {e}', file=sys.stderr, flush=True)
                code = 1
        # gloo's threads outlive the group and now and then abort an interpreter that shuts down under them
        os._exit(code)
    if code:
        sys.exit(code)


def environment(device):
    """{'commit', 'python', 'torch', 'numpy', 'device', 'processes'} of this program, which computes on `device`."""
    names = (
        line.partition(':')[2].strip()
        for line in cpuinfo().splitlines()
        if line.startswith('model name')
    )
    cpu = next(names, platform.processor() or platform.machine())
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else cpu
    return {
        'commit': commit(),
        'python': platform.python_version(),
        'torch': str(torch.__version__),
        'numpy': numpy.__version__,
        'device': name,
        'processes': processes()[1],
    }


def commit(root=ROOT):
    """The git commit of the code, with -dirty behind it if files were changed since; 'unknown' without git."""
    git = [
        'git',
        f'--git-dir={root}/.git',
        f'--work-tree={root}',
    ]  # a repository around the project is another's
    try:
        return subprocess.run(
            [*git, 'describe', '--always', '--dirty', '--abbrev=12', '--exclude=*'],
            check=True,
            capture_output=True,
            text=True,
            timeout=20,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return 'unknown'
