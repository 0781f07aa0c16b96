"""On which device and in which precision does a script run?"""

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

import torch

from anyorder.machine.processes import n_processes
from configurator import check_choice


def resolve_device(device, dtype):
    """Return (torch.device, dtype name) that two options mean.

    device 'auto' is a CUDA GPU when there is one, else a Mac's, else the CPU; each process of
    torchrun has a GPU of its own. dtype 'auto' is bfloat16 where the processor or CUDA GPU is fast
    with it. Raises ValueError for a device that is not there."""
    check_choice('device', str(device).partition(':')[0], 'auto', 'cpu', 'cuda', 'mps')
    check_choice('dtype', dtype, 'auto', 'float32', 'bfloat16')
    if device == 'auto':
        device = best_device()
    is_own = n_processes() > 1 and device.startswith('cuda')  # of this process
    if is_own and device != 'cuda':
        raise ValueError(
            f'each process of torchrun takes a GPU of its own: use --device=cuda, got {device}'
        )
    if is_own:
        device = f'cuda:{os.environ["LOCAL_RANK"]}'
    device = open_device(device)
    if is_own:
        torch.cuda.set_device(device)
    if dtype == 'auto':
        dtype = 'bfloat16' if has_fast_bfloat16(device) else 'float32'
    return device, dtype


def best_device():
    """Return the name of the fastest kind of device that is there."""
    if torch.cuda.is_available():
        return 'cuda'
    if torch.backends.mps.is_available():
        return 'mps'
    return 'cpu'


def open_device(name):
    """Return the torch.device of this name, once it has held a tensor."""
    try:
        torch.empty(1, device=name)
        return torch.device(name)
    except Exception as e:  # not compiled in, no driver, no such index: each has its own class
        why = str(e).splitlines()[0][:80]
        raise ValueError(
            f'device {name!r} is not there ({why}); use --device=cpu or --device=auto'
        ) from None


def has_fast_bfloat16(device):
    """Return whether the device multiplies bfloat16 faster than float32, as far as it is known.

    Of processors AMX, Arm's BF16 and AMD's AVX-512 BF16 do. Intel's AVX-512 BF16 without AMX takes
    longer than float32: 1.3 times in training, measured on Emerald Rapids."""
    if device.type == 'cuda':
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(False)
    if device.type == 'mps':  # which has it from macOS 14 on; nobody knows whether it is faster
        return False
    said = set(cpuinfo().split())
    has_units = not said.isdisjoint({'amx_bf16', 'bf16'})
    return has_units or said >= {'AuthenticAMD', 'avx512_bf16'}


def cpuinfo():
    """Return what Linux says of the processor, '' elsewhere."""
    path = Path('/proc/cpuinfo')
    return path.read_text() if path.exists() else ''


@cache
def keep_freed_memory():
    """Have this process keep what it frees, up to 1 GiB, on Linux.

    Else glibc gives the memory of a layer back to the system, and the next layer gets it anew, a
    page at a time, zeroed: a seventh of the time of small networks that write, and more of their
    updates."""
    if sys.platform == 'linux':
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest there is
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD


def widest(device):
    """Return the widest floating-point dtype that the device has."""
    return torch.float32 if device.type == 'mps' else torch.float64


def autocast(device, dtype, cache=True):
    """Have products of float32 weights in bfloat16 with dtype 'bfloat16'.

    `cache` keeps rounded weights to the end."""
    is_on = dtype == 'bfloat16'
    return torch.autocast(device.type, torch.bfloat16, enabled=is_on, cache_enabled=cache)
