"""
One process or those of torchrun: who is it, what do the others have, and when was it asked to stop?
"""
import contextlib
import os
import signal
import sys

import torch
import torch.distributed as dist

from anyorder.devices import resolve_device


def processes():
    """(rank, number of processes) of this process, alone or one of torchrun's."""
    return int(os.environ.get('RANK', '0')), int(os.environ.get('WORLD_SIZE', '1'))


def start_processes(device, dtype, patience=None):
    """(torch.device, dtype name) of this process, see resolve_device; one of torchrun's joins the others.

    Each of torchrun's has a GPU of its own. `patience`, a timedelta, is how long they wait for each other before they
    give up; None is PyTorch's default."""
    _, world_size = processes()
    if world_size > 1 and str(device).startswith('cuda:'):
        raise ValueError(f'each process of torchrun takes a GPU of its own: use --device=cuda, got {device}')
    own = world_size > 1 and device in ('auto', 'cuda') and torch.cuda.is_available()
    device, dtype = resolve_device(f'cuda:{os.environ["LOCAL_RANK"]}' if own else device, dtype)
    if own:
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group('nccl' if own else 'gloo', timeout=patience)
    return device, dtype


@contextlib.contextmanager
def first_process_first():
    """The body runs in the first process, then in the others, which find what it has made."""
    rank, world_size = processes()
    if world_size > 1 and rank > 0:
        dist.barrier()
    yield
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


@contextlib.contextmanager
def stop_requests():
    """A function to call once an iteration: was a process asked to end, by Ctrl-C, SIGTERM or the end of its terminal?

    All processes get the same answer; they wait for each other, but for no device. A lone process that is asked again
    ends at once, unless its terminal is what asks."""
    asked = []
    group = dist.new_group(backend='gloo') if processes()[1] > 1 else None

    def ask(number, frame):
        if asked and group is None and number != getattr(signal, 'SIGHUP', None):
            raise KeyboardInterrupt   # SIGHUP may come twice, from the shell and from the kernel
        asked.append(number)

    def stopping():
        flag = torch.tensor(len(asked))
        if group is not None:
            dist.all_reduce(flag, group=group)
        return bool(flag)
    numbers = [signal.SIGINT, signal.SIGTERM]
    # not under nohup, nor on Windows
    if hasattr(signal, 'SIGHUP') and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
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
