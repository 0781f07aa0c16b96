"""With which code, libraries and machine does a program make its numbers?"""

import os
import platform
import subprocess
import sys

import numpy
import torch

from anyorder.machine.devices import cpuinfo
from anyorder.machine.processes import ROOT, n_processes


def program():
    """Return the name of the program that runs: the path of its file, in the project from there,
    '(no file)' of a notebook, of python -c, and of what is read from a pipe."""
    path = getattr(sys.modules['__main__'], '__file__', '<string>')
    if path.startswith('<'):
        return '(no file)'
    return os.path.realpath(path).removeprefix(os.path.realpath(ROOT) + os.sep)


def environment(device):
    """Return {'commit', 'python', 'torch', 'numpy', 'device', 'processes'} of this program, which
    computes on `device`."""
    name = processor()
    if device.type == 'cuda':
        name = torch.cuda.get_device_name(device)
    return {
        'commit': commit(),
        'python': platform.python_version(),
        'torch': str(torch.__version__),
        'numpy': numpy.__version__,
        'device': name,
        'processes': n_processes(),
    }


def processor():
    """Return the name of the CPU."""
    for line in cpuinfo().splitlines():
        if line.startswith('model name'):
            return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()


def commit(root=ROOT):
    """Return the git commit of the code, with -dirty behind it if files were changed since.

    It is 'unknown' without git."""
    # named, since a repository around the project is another's
    git = ['git', f'--git-dir={root}/.git', f'--work-tree={root}']
    describe = ['describe', '--always', '--dirty', '--abbrev=12', '--exclude=*']
    try:
        said = subprocess.run(git + describe, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ''
    return said.strip() or 'unknown'
