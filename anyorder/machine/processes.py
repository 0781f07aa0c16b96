"""
One process or those of torchrun: who is it, what do the others have, and when was it asked to stop?
"""
import contextlib
import os
import signal
import socket
import sys

import torch
import torch.distributed as dist

from anyorder.machine.devices import resolve_device


def processes():
    """(rank, number of processes) of this process, alone or one of torchrun's."""
    return int(os.environ.get('RANK', '0')), int(os.environ.get('WORLD_SIZE', '1'))


def start_processes(patience=None):
    """One process of several joins the others; what is on the CPU they exchange by gloo, what is on a GPU by NCCL.

    `patience`, a timedelta, is how long they wait for each other before they give up; None is PyTorch's default."""
    if processes()[1] > 1:
        dist.init_process_group('cpu:gloo,cuda:nccl' if torch.cuda.is_available() else 'gloo', timeout=patience)


def own_device(device, dtype):
    """(torch.device, dtype name) of this process, see resolve_device. Each of several has a GPU of its own."""
    _, world_size = processes()
    if world_size > 1 and str(device).startswith('cuda:'):
        raise ValueError(f'each process of torchrun takes a GPU of its own: use --device=cuda, got {device}')
    own = world_size > 1 and device in ('auto', 'cuda') and torch.cuda.is_available()
    device, dtype = resolve_device(f'cuda:{os.environ["LOCAL_RANK"]}' if own else device, dtype)
    if own:
        torch.cuda.set_device(device)
    return device, dtype


@contextlib.contextmanager
def failing_together():
    """The body runs in all processes. Where one of them lacks a file, or is given wrong input, all raise ValueError.

    Without it the others would wait for the one that ended, on another machine until they run out of patience. In the
    body nothing that can fail in one process alone may stand before what the processes exchange."""
    rank, world_size = processes()
    if world_size == 1:
        yield
        return
    said = None
    try:
        yield
    except (ValueError, OSError) as e:
        said = str(e)
    every = gather(said and f'process {rank} on {socket.gethostname()}: {said}')
    failed = [line for line in every if line]
    if failed:
        raise ValueError(failed[0] if len(failed) < world_size else said)


@contextlib.contextmanager
def first_process_first():
    """The body runs in the first process, then in the others, which find what it has made; also if it fails."""
    rank, world_size = processes()
    if world_size > 1 and rank > 0:
        dist.barrier()
    try:
        yield
    finally:
        if world_size > 1 and rank == 0:
            dist.barrier()


def gather(x):
    """[x of every process], in all of them."""
    _, world_size = processes()
    every = [x] * world_size
    if world_size > 1:
        dist.all_gather_object(every, x)
    return every


def check_same(values):
    """Raise ValueError unless the dict `values` is the same in all processes."""
    every = gather(values)
    differing = [name for name in values if any(other.get(name) != every[0].get(name) for other in every)]
    if differing:
        of_first = ', '.join(sorted({str(other.get(differing[0]))[:80] for other in every}))
        raise ValueError(f'the processes differ in {", ".join(differing)} ({of_first}): give them the same command, '
                         'checkpoint and data')


def is_split(x):
    """Whether a tensor is a part of one, and knows the whole."""
    return hasattr(x, 'full_tensor')


def whole(tree, keep=True):
    """The tensors of nested dicts and lists, each one whole; None in their place without `keep`.

    All processes call it together. A tensor that was split is gathered for itself and goes to the CPU."""
    gathered = {}   # a tied weight stays one

    def joined(x):
        if isinstance(x, dict):
            return {key: joined(value) for key, value in x.items()}
        if isinstance(x, list | tuple):
            return type(x)(joined(value) for value in x)
        if not isinstance(x, torch.Tensor):
            return x
        if is_split(x) and id(x) not in gathered:
            full = x.detach().full_tensor()
            gathered[id(x)] = full.cpu() if keep else None
        return gathered[id(x)] if is_split(x) else x.detach()
    return joined(tree)


def part_of(x, like):
    """The part of a whole tensor that this process has of `like`; x itself if `like` is whole, or of another shape."""
    if not is_split(like) or not isinstance(x, torch.Tensor) or x.shape != like.shape:
        return x
    from torch.distributed.tensor import distribute_tensor
    return distribute_tensor(x.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@contextlib.contextmanager
def stop_requests():
    """A function to call once an iteration: was a process asked to end, by Ctrl-C, SIGTERM, SIGUSR1 or the end of its
    terminal?

    All processes get the same answer; they wait for each other, but for no device. A second Ctrl-C ends a lone process
    at once. The other signals may come twice: from a scheduler and its launcher, from the shell and the kernel."""
    asked, (_, world_size) = [], processes()

    def ask(number, frame):
        if asked and world_size == 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    def stopping():
        flag = torch.tensor(len(asked))
        if world_size > 1:
            dist.all_reduce(flag)
        return bool(flag)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, 'SIGUSR1'):   # not on Windows
        numbers.append(signal.SIGUSR1)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:   # not under nohup
            numbers.append(signal.SIGHUP)
    old = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def end_processes(code=0):
    """The last line of a script that torchrun may have started."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        # gloo's threads outlive the group and now and then abort an interpreter that shuts down under them
        os._exit(code)
    if code:
        sys.exit(code)
