"""
Kill a run at random moments while it saves at every iteration, and resume it each time.

    python tests/torture.py --kills=50

No resume may fail. At the end weights, EMA, optimizer and log must equal, bit for bit, those of a run that nobody
disturbed. Takes some minutes; pytest does not collect it.
"""
import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from test_train import TOY, assert_same_runs

from anyorder.checkpoint import load_checkpoint
from anyorder.files import progress


def start(options):
    train = os.path.join(os.path.dirname(TOY[0]), '..', 'train.py')
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    return subprocess.Popen([sys.executable, train, *options], text=True, **pipes)


def finish(options):
    p = start(options)
    _, err = p.communicate()
    assert p.returncode == 0, err


def inode(path):
    return os.stat(path).st_ino if os.path.exists(path) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--kills', type=int, default=50)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    options = [*TOY, '--save_interval=1', '--keep_checkpoints=2', '--optimizer=muon', '--dropout=0.1',
               '--eval_interval=50', '--seed=3', '--max_iters=100000', '--lr_decay_iters=1000', '--n_threads=1']
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        halves = 0   # kills in the midst of a save
        for _ in progress(range(args.kills), desc='kills'):
            before, half = inode('out/ckpt.pt'), inode('out/ckpt.pt.tmp')
            p = start(['--init_from=resume'] if before else options)
            if before and rng.random() < 0.3:   # at any moment: while it starts, reads, cuts the log
                time.sleep(rng.random() * 4)
            else:                               # after it has saved once itself
                while inode('out/ckpt.pt') == before:
                    assert p.poll() is None, p.communicate()[1]
                    time.sleep(0.001)
                time.sleep(rng.random() * 0.3)
            p.send_signal(signal.SIGKILL)
            p.communicate()
            halves += inode('out/ckpt.pt.tmp') not in (None, half)
        n = load_checkpoint('out/ckpt.pt')['iter_num'] + 20
        finish(['--init_from=resume', f'--max_iters={n}'])
        finish([*options, f'--max_iters={n}', '--out_dir=whole'])
        assert_same_runs('whole', 'out')
        print(f'{args.kills} kills, {halves} of them in the midst of a save; {n} iterations, '
              'the end is equal bit for bit')


if __name__ == '__main__':
    main()
