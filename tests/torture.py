"""
The requeue drill: kill a run again and again, and start it each time by the same command.

    python tests/torture.py --kills=50
    python tests/torture.py --kills=10 --processes=2

SIGKILL, SIGTERM and SIGUSR1 take turns. They come before the first save, while the run starts, and while it saves, at
every iteration. No start may fail. At the end a run that nobody disturbed must have the same weights, EMA, optimizer
and log, bit for bit. Takes some ten seconds a kill; pytest collects a short one alone, as a slow test.
"""

import argparse
import glob
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [
    os.path.dirname(os.path.abspath(__file__)),
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
]
from toy_runs import TOY, assert_same_runs

from anyorder.checkpoint import load_checkpoint
from anyorder.machine.terminal import progress

OPTIONS = [
    *TOY,
    '--init_from=auto',
    '--save_interval=1',
    '--keep_checkpoints=2',
    '--optimizer=muon',
    '--dropout=0.1',
    '--eval_interval=50',
    '--seed=3',
    '--gradient_accumulation_steps=2',
    '--n_threads=1',
]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1)


def start(options, n_processes):
    launcher = (
        [
            '-m',
            'torch.distributed.run',
            '--standalone',
            f'--nproc_per_node={n_processes}',
            '--signals_to_handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1',
        ]
        if n_processes > 1
        else []
    )
    train = os.path.join(os.path.dirname(TOY[0]), '..', 'train.py')
    return subprocess.Popen(
        [sys.executable, *launcher, train, *options],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(options, n_processes):
    """What a run says that is left alone."""
    p = start(options, n_processes)
    said, _ = p.communicate()
    assert p.returncode == 0, said
    return said


def send(p, number):
    """Send a signal to a run; SIGKILL also to the processes that it has started, as a scheduler does."""
    children = []
    if number == signal.SIGKILL:
        with open(f'/proc/{p.pid}/task/{p.pid}/children') as f:
            children = [int(pid) for pid in f.read().split()]
    for pid in (p.pid, *children):
        os.kill(pid, number)


def halves_of(path):
    """Names of what killed processes have left of a save."""
    return {*glob.glob(f'{path}.*.tmp')}


def inode(path):
    return os.stat(path).st_ino if os.path.exists(path) else None


def drill(kills, n_processes=1, seed=0):
    """Make the run twice in the current folder, whole and by `kills`, and compare; returns what happened, in words."""
    rng, options = random.Random(seed), [*OPTIONS, f'--max_iters={50 + 20 * kills}']
    finish([*options, '--out_dir=whole'], n_processes)
    began = time.monotonic()
    finish([*options, '--out_dir=whole'], n_processes)
    seconds = time.monotonic() - began  # how long a start takes, with data that are there
    halves = early = 0  # kills in the midst of a save, and before the first one
    for n in progress(range(kills), desc='kills'):
        before, half = inode('out/ckpt.pt'), halves_of('out/ckpt.pt')
        p = start(options, n_processes)
        if n and rng.random() < 0.4:  # at any moment: while it starts, reads, cuts the log
            time.sleep(rng.random() * seconds)
        else:  # the first before it has saved, the others after a save of their own
            while not os.path.exists('out/.lock') if n == 0 else inode('out/ckpt.pt') == before:
                assert p.poll() is None, p.communicate()[0]
                time.sleep(0.001)
            time.sleep(rng.random() * 0.3 if n else 0)
        early += inode('out/ckpt.pt') is None
        send(p, SIGNALS[n % len(SIGNALS)])
        said, _ = p.communicate()
        assert p.returncode != 0 and not re.search('^error', said, re.MULTILINE), said
        halves += not halves_of('out/ckpt.pt') <= half
    reached = load_checkpoint('out/ckpt.pt')['iter_num']
    finish(options, n_processes)
    assert 'finished: the checkpoint is at iteration' in finish(options, n_processes)
    assert_same_runs('whole', 'out')
    return (
        f'{kills} kills until iteration {reached}, {early} of them before the first save, {halves} in the midst of '
        'a save; the end is equal bit for bit'
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--kills', type=int, default=50)
    parser.add_argument('--processes', type=int, default=1)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(drill(args.kills, args.processes, args.seed))


if __name__ == '__main__':
    main()
