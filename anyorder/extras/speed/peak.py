"""How much memory did something take, at most?"""

import math
import sys
from pathlib import Path

import torch


def peak_memory(device, reset=False):
    """Return the most bytes that the GPU's allocator gave, else that the process had.

    They are counted since the last reset, on a Mac since the start of the process. Windows says
    nothing: nan. With `reset` begin to count anew."""
    if device.type == 'cuda':
        if reset:
            return torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    try:
        if reset:
            return Path('/proc/self/clear_refs').write_text('5')
        said = Path('/proc/self/status').read_text()
        return 1024 * int(said.partition('VmHWM:')[2].split()[0])
    except OSError:
        return resident_peak()


def resident_peak():
    """Return the most bytes that the process had since its start, where there is no /proc."""
    if sys.platform == 'win32':
        return math.nan
    import resource

    unit = 1 if sys.platform == 'darwin' else 1024  # bytes, or KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
