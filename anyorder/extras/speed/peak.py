"""How much memory did something take, at most?"""

import math
from pathlib import Path

import torch


def peak_memory(device, reset=False):
    """Return the most bytes that the GPU's allocator gave, else that the process had.

    They are counted since the last reset; nan where there is no /proc. With `reset` begin to count
    anew."""
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
        return math.nan
