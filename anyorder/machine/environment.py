"""With which code, libraries and machine was a number made?"""
import os
import platform
import subprocess

import numpy
import torch

from anyorder.machine.devices import cpuinfo
from anyorder.machine.processes import processes

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def environment(device):
    """{'commit', 'python', 'torch', 'numpy', 'device', 'processes'} of this program, which computes on `device`."""
    names = (line.partition(':')[2].strip() for line in cpuinfo().splitlines() if line.startswith('model name'))
    cpu = next(names, platform.processor() or platform.machine())
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else cpu
    return {'commit': commit(), 'python': platform.python_version(), 'torch': str(torch.__version__),
            'numpy': numpy.__version__, 'device': name, 'processes': processes()[1]}


def commit(root=ROOT):
    """The git commit of the code, with -dirty behind it if files were changed since; 'unknown' without git."""
    git = ['git', f'--git-dir={root}/.git', f'--work-tree={root}']   # a repository around the project is another's
    try:
        said = subprocess.run([*git, 'describe', '--always', '--dirty', '--abbrev=12', '--exclude=*'], check=True,
                              capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return 'unknown'
    return said.stdout.strip()
