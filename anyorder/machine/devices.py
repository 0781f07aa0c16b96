"""On which device and in which precision does a script run? What could the device do?"""

import math
import os
import shutil
import sys
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch


def resolve_device(device, dtype):
    """(torch.device, dtype name) that two options mean. Raises ValueError for a device that is not there. 'auto' is a
    CUDA GPU when there is one, else a Mac's; and bfloat16 where the processor or CUDA GPU is fast with it."""
    if device == 'auto':
        device = (
            'cuda'
            if torch.cuda.is_available()
            else 'mps'
            if torch.backends.mps.is_available()
            else 'cpu'
        )
    if not isinstance(device, str) or device.partition(':')[0] not in ('cpu', 'cuda', 'mps'):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', got {device!r}")
    try:
        torch.empty(1, device=device)
        device = torch.device(device)
    except Exception as e:  # not compiled in, no driver, no such index: each has its own class
        why = str(e).splitlines()[0][:80]
        raise ValueError(
            f'device {device!r} is not there ({why}); use --device=cpu or --device=auto'
        ) from None
    if dtype == 'auto':
        # a Mac has bfloat16 from macOS 14 on; nobody knows whether it is faster there
        is_fast = {
            'cuda': lambda: torch.cuda.is_bf16_supported(False),
            'cpu': cpu_has_fast_bfloat16,
        }.get(device.type)
        dtype = 'bfloat16' if is_fast and is_fast() else 'float32'
    if dtype not in ('float32', 'bfloat16'):
        raise ValueError(f"dtype must be 'auto', 'float32' or 'bfloat16', got {dtype!r}")
    return device, dtype


def cpuinfo():
    """What Linux says of the processor, '' elsewhere."""
    path = Path('/proc/cpuinfo')
    return path.read_text() if path.exists() else ''


def cpu_has_fast_bfloat16():
    """Whether the processor, as Linux lists it, multiplies bfloat16 fast: by AMX, Arm's BF16, or AMD's AVX-512 BF16.
    Intel's AVX-512 BF16 without AMX takes longer than float32: 1.3 times in training, measured on Emerald Rapids."""
    said = set(cpuinfo().split())
    return not said.isdisjoint({'amx_bf16', 'bf16'}) or said >= {'AuthenticAMD', 'avx512_bf16'}


def widest(device):
    """The widest floating-point dtype that the device has."""
    return torch.float32 if device.type == 'mps' else torch.float64


def autocast(device, dtype, cache=True):
    """With dtype 'bfloat16' products of float32 weights are in bfloat16. `cache` keeps rounded weights to the end."""
    return torch.autocast(
        device.type, torch.bfloat16, enabled=dtype == 'bfloat16', cache_enabled=cache
    )


def resolve_compile(compile, device, flops, max_iters):
    """(whether to compile, why). 'auto' wants a compiler and a long run, since compiling takes a minute."""
    cuda = device.type == 'cuda'
    if compile == 'auto' and device.type == 'mps':
        return False, 'not tried on this device'
    variable, default = (
        ('CC', 'gcc') if cuda else ('CXX', 'clang++' if sys.platform == 'darwin' else 'g++')
    )
    name = os.environ.get(variable, default)
    compiler = shutil.which(name)
    if compile != 'auto' and compile and not compiler:
        raise ValueError(
            f'compile=True needs the compiler {name}, which is not there: install it, or --compile=False'
        )
    if compile != 'auto':
        return bool(compile), 'as asked, or as the run began'
    if not compiler:
        return False, f'no compiler {name}'
    long = worth_compiling(cuda, flops, max_iters)
    return long, 'a long run' if long else 'the run is too short to pay for it'


def worth_compiling(cuda, flops, max_iters):
    """Whether a run is long enough to pay for its compilation."""
    return max_iters >= 2000 if cuda else flops > 1e14


class GPU(NamedTuple):
    reported: str  # part of the name that its driver reports
    flops: float  # dense bfloat16 FLOP/s of the data sheet
    memory: float  # GiB that PyTorch finds; the data sheets say 80, 80, 141 and 141 GB


GPUS = {
    'A100': GPU('A100', 312e12, 79),
    'H100': GPU('H100 80GB HBM3', 989e12, 79),
    'H200 NVL': GPU('H200 NVL', 836e12, 139),
    'H200': GPU('H200', 989e12, 139),
}


def peak_flops(device, dtype):
    """FLOP/s that the device could do in `dtype`: from its data sheet where known, else from a large product."""
    if device.type == 'cuda' and dtype == 'bfloat16':
        gpu = torch.cuda.get_device_name(device)
        known = [row.flops for row in GPUS.values() if row.reported in gpu]
        if known and 'MIG' not in gpu:  # a slice of a GPU is measured
            return known[0]
    return matmul_flops(device, getattr(torch, dtype))


@cache  # it takes a second, and a process may start several runs
def matmul_flops(device, dtype):
    """FLOP/s of a large matrix product, the best of six."""
    n = 8192 if device.type == 'cuda' else 2048
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / seconds(lambda: a @ b, device, 6)


def seconds(function, device, repeats):
    """Wall-clock seconds of the fastest of `repeats` calls, the device's work included."""
    wait = torch.accelerator.synchronize if device.type != 'cpu' else lambda device: None

    def once():
        wait(device)
        start = time.perf_counter()
        function()
        wait(device)
        return time.perf_counter() - start

    return min(once() for _ in range(repeats))


def peak_memory(device, reset=False):
    """The most bytes that the GPU's allocator gave, else that the process had: since the last reset on Linux, since its
    start on a Mac. Windows says nothing: nan."""
    if device.type == 'cuda':
        return (torch.cuda.reset_peak_memory_stats if reset else torch.cuda.max_memory_allocated)(
            device
        )
    try:
        if reset:
            return Path('/proc/self/clear_refs').write_text('5')
        return 1024 * int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])
    except OSError:
        if sys.platform == 'win32':
            return math.nan
        import resource

        unit = 1 if sys.platform == 'darwin' else 1024  # bytes, or KiB
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
