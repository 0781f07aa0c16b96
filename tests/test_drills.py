"""Drills: runs that are killed, lost, requeued, split, and spread over processes and programs."""

import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from conftest import HANGS, ROOT
from test_training import FIVE, SETS, learner, options, start
from torch.utils._pytree import tree_leaves
from toy_runs import TOY, TWO, assert_close, assert_same_runs, interrupted, log, resume, run

import train
from anyorder.checkpoint import entries_of, load_checkpoint
from anyorder.machine.processes import start_processes
from anyorder.tokens.prepared import prepare
from anyorder.training.update import update
from anyorder.training.validation import nats_in_orders

pytestmark = pytest.mark.slow
LONG = ['--max_iters=100000', '--eval_interval=100000', '--lr_decay_iters=100000']
SHARED = [
    *TWO,
    '--optimizer=adamw',
    '--dropout=0.1',
    '--max_iters=9',
    '--log_interval=3',
    '--eval_interval=100',
]


def n_updates():
    """Return how many updates the log says, which may be a file without a line yet."""
    entries = log() if os.path.exists('out/log.jsonl') else []
    return max((entry['iter'] for entry in entries), default=0)


# ---- several processes


def test_processes_stop_together_and_go_on_whole_or_split(data, forked, monkeypatch):
    """One of two is asked to end amid a line of the log, and again when they go on and split the
    state. Then a lone one goes on. The checkpoint reads as any other."""
    run(*SHARED, '--out_dir=whole')

    def ask_second():
        if os.environ['RANK'] == '1':
            os.kill(os.getpid(), signal.SIGTERM)

    def stopped_at(iteration, go):
        monkeypatch.setattr(train, 'update', interrupted(iteration - 1, ask_second))
        go()

    split = partial(resume, '--save_memory=shard,recompute')
    for n, n_logged, go in ((4, 3, partial(run, *SHARED)), (8, 6, split)):
        first, _ = forked(*2 * [partial(stopped_at, n, go)], code=1)
        assert f'go on from iteration {n} with: torchrun ... ' in first.said
        assert (load_checkpoint('out/ckpt.pt')['iter_num'], n_updates()) == (n, n_logged)
    resume()  # a lone process has nobody to share with
    assert_same_runs('whole', 'out', tolerance=1e-5)


# ---- a state that is split


NETWORKS = [
    {},
    {'gpt2_blocks': True, 'target_position': 'input'},
    {'target_position': 'layer', 'rotary': True},
    {'target_position': 'layer_shared', 'bias': False},
    {'target_position': 'two_stream'},
    {'attention': 'bidirectional'},
    {'attention': 'mixed', 'rotary': True},
]
RUNS = [*zip(NETWORKS, itertools.cycle(('muon', 'adamw')))]


def after_updates(network, optimizer, way='', n=2, **more):
    """Return the state after some updates in float64, and its checkpoint, but for the losses, of
    which each process has its own; beside it validation block by block."""
    model = learner(**network, dropout=0.1)
    state = start(model, optimizer=optimizer, save_memory=way)
    for _ in range(n):
        update(state, SETS, 1e-2, options(l2r_ratio=0.0, **more))
    val = nats_in_orders(state.ema.model, FIVE, {'any': state.order}, options(batch_size=1))
    entries = state.entries() | {'totals': 0, 'val': val}
    return state, entries_of(state.model, state.ema, **entries)


def assert_split(wanted, *asked, **more):
    """A split run has the checkpoint of the whole one, and holds half of it."""
    state, entries = after_updates(*asked, **more)
    if dist.get_rank() == 0:
        assert_close(entries, wanted, 1e-9)
    moments = tree_leaves([[*o.state.values()] for o in state.optimizers])
    for tensors in (state.model.parameters(), state.ema.model.parameters(), moments):
        split_ones = [x for x in tensors if x.dim()]
        n = sum(x.numel() for x in split_ones)
        n_own = sum(x.to_local().numel() for x in split_ones)
        assert 0.4 < n_own / n < 0.6


def test_a_split_run_is_the_whole_run(forked):
    """AdamW, and Muon, which multiplies the whole matrices in bfloat16."""
    wanted = [after_updates(*asked)[1] for asked in RUNS]

    def both():
        start_processes()
        for asked, of_one in zip(RUNS, wanted):
            assert_split(of_one, *asked, 'shard,recompute')

    forked(both, both)


def test_nodes_that_each_split_a_copy_are_one_process(forked):
    """Ten updates of eight micro-batches: a process of four has two."""
    asked = {'n': 10, 'gradient_accumulation_steps': 8}
    _, wanted = after_updates({}, 'muon', **asked)

    def body(local_rank):
        os.environ |= {'LOCAL_RANK': str(local_rank), 'LOCAL_WORLD_SIZE': '2'}
        start_processes()
        assert_split(wanted, {}, 'muon', 'hybrid,recompute', **asked)

    forked(*(partial(body, n % 2) for n in range(4)))


# ---- kills, and a scheduler


def wait_until(condition, p):
    while not condition():
        assert p.poll() is None, p.communicate()
        time.sleep(0.001)


KILLS = int(os.environ.get('KILLS', 4))  # how often a run is killed; each takes some ten seconds
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1)
CKPT = 'out/ckpt.pt'
TORTURED = (
    '--init_from=auto --optimizer=muon --dropout=0.1 --eval_interval=1 --keep_best=val_any '
    '--patience=1000 --seed=3 --gradient_accumulation_steps=2 --documents=apart '
    f'--dataset=pydocs:0.7,readme:0.3 --max_iters={50 + 20 * KILLS}'
)


HEARD = dict(text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def begun(n_processes, *args):
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
    words = [*launcher, f'{ROOT}/train.py', *TOY, *TORTURED.split(), *args]
    return subprocess.Popen([sys.executable, *words], **HEARD)


def finished(*run):
    """Return what a run says that is left alone."""
    p = begun(*run)
    said, _ = p.communicate()
    assert p.returncode == 0, said
    return said


def send(p, number):
    """Send a signal to a run; SIGKILL also to its processes, as a scheduler does."""
    children = []
    if number == signal.SIGKILL:
        children = Path(f'/proc/{p.pid}/task/{p.pid}/children').read_text().split()
    for pid in (p.pid, *children):
        os.kill(int(pid), number)


def inode():
    """Return which file the checkpoint is; None: there is none."""
    return os.stat(CKPT).st_ino if os.path.exists(CKPT) else None


@pytest.mark.parametrize('n_processes', [1, 2])
def test_a_run_that_is_killed_and_started_again_is_the_uninterrupted_one(data, n_processes):
    """Bit for bit, by the same command each time, on two sets whose documents are apart. Kills come
    before the first save, at any moment of a start, and behind a save or amid one: the run saves at
    every iteration."""
    shutil.copy(f'{ROOT}/README.md', 'readme.txt')
    prepare('text', 'data', 'readme', 'readme.txt', '', 'bytes')
    finished(n_processes, '--out_dir=whole')
    before = time.monotonic()
    finished(n_processes, '--out_dir=whole')
    seconds = time.monotonic() - before  # of a start, with data that are there

    rng = random.Random(0)
    for n in range(KILLS):
        file = inode()
        p = begun(n_processes)
        if n == 0:
            wait_until(lambda: os.path.exists('out/.run.lock'), p)
        elif rng.random() < 0.4:
            time.sleep(rng.random() * seconds)
        else:
            wait_until(lambda file=file: inode() != file, p)
            time.sleep(rng.random() * 0.3)
        send(p, SIGNALS[n % len(SIGNALS)])
        said, _ = p.communicate()
        assert p.returncode != 0, said
        assert not re.search('^error', said, re.MULTILINE), said

    finished(n_processes)
    assert 'finished: the checkpoint is at iteration' in finished(n_processes)
    assert_same_runs('whole', 'out')


SRUN = '''#!{python}
"""In place of SLURM's: two tasks here, to which signals are passed on; the largest exit code."""
import os, signal, subprocess, sys
command = sys.argv[next(n for n, word in enumerate(sys.argv[1:], 1) if not word.startswith('--')):]
own = [{{'SLURM_PROCID': n, 'SLURM_LOCALID': n}} for n in '01']
tasks = [subprocess.Popen(command, env=os.environ | names) for names in own]
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: [task.send_signal(number) for task in tasks])
sys.exit(max(abs(task.wait()) for task in tasks))
'''
SCONTROL = """#!/bin/sh
case $1 in show) echo 127.0.0.1;; *) echo "$@" >> requests;; esac
"""


def write_program(name, text):
    Path(name).write_text(text)
    Path(name).chmod(0o755)


@pytest.fixture
def slurm(data):
    """The environment that finds stand-ins for SLURM's commands in the folder bin."""
    os.mkdir('bin')
    write_program('bin/srun', SRUN.format(python=sys.executable))
    write_program('bin/scontrol', SCONTROL)
    os.symlink(f'{ROOT}/train.py', 'train.py')
    os.symlink(f'{ROOT}/config', 'config')
    with socket.create_server(('127.0.0.1', 0)) as s:
        job = str(s.getsockname()[1])
    path = f'{os.getcwd()}/bin:{os.path.dirname(sys.executable)}:{os.environ["PATH"]}'
    names = {'PATH': path, 'SLURM_JOB_ID': job, 'SLURM_JOB_NODELIST': 'here'}
    return os.environ | names | {'SLURM_NTASKS': '2', 'SLURM_CPUS_PER_TASK': '1'}


def job(slurm, *typed, **how):
    """Start the batch script."""
    command = ['bash', 'config/train.sbatch', *typed]
    return subprocess.Popen(command, env=slurm, **HEARD, **how)


def test_the_batch_script_saves_at_its_limit_and_is_requeued(slurm):
    """The limit, SIGUSR1 to the shell, asks to be requeued.

    SIGTERM to all, of preemption or scancel, and the end do not."""
    requests = Path('requests')
    saved = [0]
    for end, number in ((os.kill, signal.SIGUSR1), (os.killpg, signal.SIGTERM), (None, 0)):
        typed = [*TOY, *TWO, *LONG]
        if end is None:
            typed.append(f'--max_iters={saved[-1] + 2}')
        p = job(slurm, *typed, start_new_session=True)
        if end:
            wait_until(lambda: n_updates() > saved[-1], p)
            end(p.pid, number)
        said, _ = p.communicate(timeout=HANGS)
        assert p.returncode == bool(end), said
        saved.append(load_checkpoint('out/ckpt.pt')['iter_num'])
        assert requests.read_text() == f'requeue {slurm["SLURM_JOB_ID"]}\n'
    assert saved[1] < saved[2] == saved[3] - 2


@pytest.mark.parametrize(
    'words, given',
    [
        (['config/adapt_gpt2.py'], []),
        (['--max_iters=9', 'config/finetune.py'], []),
        (['--max_iters=9'], ['--init_from=auto']),
        (['c.py'], None),
    ],
)
def test_the_batch_script_leaves_a_config_its_weights(slurm, words, given):
    """It refuses one that would begin anew each time."""
    Path('c.py').write_text("init_from = 'gpt2'\n")
    write_program('bin/srun', '#!/bin/sh\nfor word; do echo "$word"; done\n')
    p = job(slurm, *words)
    said, _ = p.communicate()
    if given is None:
        assert 'write auto:WEIGHTS' in said
        assert (p.returncode, said.count('\n')) == (1, 1)
    else:
        assert said.splitlines()[-len(given + words) - 1 :] == ['-', *given, *words]
