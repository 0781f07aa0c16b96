"""
The requeue drill: kill a run again and again, and start it each time by the same command.

    python tests/torture.py --kills=50
    python tests/torture.py --kills=10 --processes=2
    python tests/torture.py --kills=10 --processes=2 --split   # by --save_memory=shard

SIGKILL, SIGTERM and SIGUSR1 take turns. They come before the first save, while the run starts, and
while it saves, at every iteration. No start may fail. At the end a run that nobody disturbed must
have the same weights, EMA, optimizer, best checkpoint and log, bit for bit. It trains on two sets
whose documents are apart. Takes some ten seconds a kill; pytest collects a short one alone, as a
slow test.
"""

import argparse
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
from toy_runs import TOY, assert_same_runs

from anyorder.checkpoint import load_checkpoint
from anyorder.machine.terminal import progress

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
        launcher = [
            '-m',
            'torch.distributed.run',
            '--standalone',
            f'--nproc_per_node={n_processes}',
            '--signals_to_handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1',
        ]
    train = os.path.join(os.path.dirname(TOY[0]), '..', 'train.py')
    command = [sys.executable, *launcher, train, *options]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def prepare_readme():
    """Make a second set of the current folder, which is trained on beside pydocs."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    shutil.copy(os.path.join(root, 'README.md'), 'readme.txt')
    program = os.path.join(root, 'data', 'prepare.py')
    how = ['--source=readme.txt', '--tokenizer=bytes', '--name=readme', '--data_dir=data']
    subprocess.run([sys.executable, program, 'text', *how], check=True, capture_output=True)


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
        wait_until(lambda: os.path.exists('out/.lock'), p)
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
    n_early = 0  # and before the first one
    for n in progress(range(kills), desc='kills'):
        left = halves()
        p = start(options, n_processes)
        wait_for_moment(n, p, rng, seconds)
        n_early += inode() is None
        send(p, SIGNALS[n % len(SIGNALS)])
        said, _ = p.communicate()
        assert p.returncode != 0, said
        assert not re.search('^error', said, re.MULTILINE), said
        n_halves += not halves() <= left

    reached = load_checkpoint(CKPT)['iter_num']
    finish(options, n_processes)
    assert 'finished: the checkpoint is at iteration' in finish(options, n_processes)
    assert_same_runs('whole', 'out')
    return (
        f'{kills} kills until iteration {reached}, {n_early} of them before the first save, '
        f'{n_halves} in the midst of a save; the end is equal bit for bit'
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--kills', type=int, default=50)
    parser.add_argument('--processes', type=int, default=1)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--split', action='store_true', help='the processes split the state')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(drill(args.kills, args.processes, args.seed, args.split))


if __name__ == '__main__':
    main()
