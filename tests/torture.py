"""
The requeue drill: kill a run again and again, and start it each time by the same command.

    python tests/torture.py --kills=50
    python tests/torture.py --kills=10 --processes=2
    python tests/torture.py --kills=10 --processes=2 --split=True   # by --save_memory=shard

SIGKILL, SIGTERM and SIGUSR1 take turns. They come before the first save, while the run starts, and
while it saves, at every iteration. No start may fail. At the end a run that nobody disturbed must
have the same weights, EMA, optimizer, best checkpoint and log, bit for bit. It trains on two sets
whose documents are apart. Takes some ten seconds a kill; pytest collects a short one alone, as a
slow test.
"""

import glob
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [
    os.path.dirname(os.path.abspath(__file__)),
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
]
from conftest import ROOT
from toy_runs import TOY, assert_same_runs

from anyorder.machine.terminal import progress
from anyorder.tokens.prepared import prepare
from configurator import configure

kills = 50  # how often
processes = 1  # of torchrun
seed = 0  # of the moments
split = False  # whether the processes split the state

OPTIONS = [
    *TOY,
    '--init_from=auto',
    '--optimizer=muon',
    '--dropout=0.1',
    '--eval_interval=1',
    '--keep_best=val_any',
    '--patience=1000',
    '--seed=3',
    '--gradient_accumulation_steps=2',
    '--dataset=pydocs:0.7,readme:0.3',
    '--documents=apart',
]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1)


def start(options, n_processes):
    """Start a run; several processes are those of torchrun."""
    launcher = []
    if n_processes > 1:
        launcher = ['-m', 'torch.distributed.run', '--standalone']
        launcher.append(f'--nproc_per_node={n_processes}')
        launcher.append('--signals_to_handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1')
    command = [sys.executable, *launcher, os.path.join(ROOT, 'train.py'), *options]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def prepare_readme():
    """Make a second set of the current folder, which is trained on beside pydocs."""
    shutil.copy(os.path.join(ROOT, 'README.md'), 'readme.txt')
    prepare('text', 'data', 'readme', 'readme.txt', '', 'bytes')


def finish(options, n_processes):
    """Return what a run says that is left alone."""
    p = start(options, n_processes)
    said, _ = p.communicate()
    assert p.returncode == 0, said
    return said


def wait_until(condition, p):
    while not condition():
        assert p.poll() is None, p.communicate()
        time.sleep(0.001)


def send(p, number):
    """Send a signal to a run; SIGKILL also to its processes, as a scheduler does."""
    children = []
    if number == signal.SIGKILL:
        with open(f'/proc/{p.pid}/task/{p.pid}/children') as f:
            children = [int(pid) for pid in f.read().split()]
    for pid in (p.pid, *children):
        os.kill(pid, number)


CKPT = 'out/ckpt.pt'


def halves():
    """Return the names of what killed processes have left of a save."""
    return {*glob.glob(f'{CKPT}.*.tmp')}


def inode():
    """Return which file the checkpoint is; None: there is none."""
    if not os.path.exists(CKPT):
        return None
    return os.stat(CKPT).st_ino


def wait_for_moment(n, p, rng, seconds):
    """Wait until the n-th kill: at any moment of a start, or behind a save of the run's own.

    The first kill comes before the run has saved. A start takes so many seconds."""
    before = inode()
    if n == 0:
        wait_until(lambda: os.path.exists('out/.ckpt.pt.lock'), p)
    elif rng.random() < 0.4:  # while it starts, reads, cuts the log
        time.sleep(rng.random() * seconds)
    else:
        wait_until(lambda: inode() != before, p)
        time.sleep(rng.random() * 0.3)


def drill(kills, n_processes=1, seed=0, split=False):
    """Make the run twice in the current folder, whole and by `kills`, and compare.

    Returns what happened, in words."""
    rng = random.Random(seed)
    options = [*OPTIONS, f'--max_iters={50 + 20 * kills}']
    if split:
        options.append('--save_memory=shard')
    prepare_readme()
    finish([*options, '--out_dir=whole'], n_processes)
    began = time.monotonic()
    finish([*options, '--out_dir=whole'], n_processes)
    seconds = time.monotonic() - began  # of a start, with data that are there

    n_halves = 0  # kills in the midst of a save
    for n in progress(range(kills), desc='kills'):
        left = halves()
        p = start(options, n_processes)
        wait_for_moment(n, p, rng, seconds)
        send(p, SIGNALS[n % len(SIGNALS)])
        said, _ = p.communicate()
        assert p.returncode != 0, said
        assert not re.search('^error', said, re.MULTILINE), said
        n_halves += not halves() <= left

    finish(options, n_processes)
    assert 'finished: the checkpoint is at iteration' in finish(options, n_processes)
    assert_same_runs('whole', 'out')
    return f'{kills} kills, {n_halves} of them in the midst of a save; the end is equal bit for bit'


def main():
    config = configure(globals())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(drill(config.kills, config.processes, config.seed, config.split))


if __name__ == '__main__':
    main()
