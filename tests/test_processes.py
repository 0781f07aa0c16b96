"""Several processes, and a scheduler that ends them: they stop and go on together."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torture
from conftest import HANGS, ROOT
from test_torchrun import wait_for
from toy_runs import TOY, TWO, log

from anyorder.checkpoint import load_checkpoint


@pytest.mark.slow
@pytest.mark.parametrize('n_processes', [1, 2])
def test_a_run_that_is_killed_and_started_again_is_the_uninterrupted_one(data, n_processes):
    assert 'equal bit for bit' in torture.drill(4, n_processes)


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


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def slurm(tmp_path):
    """A folder of stand-ins for SLURM's commands; the environment that finds them."""
    folder = tmp_path / 'bin'
    folder.mkdir()
    write_program(folder / 'srun', SRUN.format(python=sys.executable))
    write_program(folder / 'scontrol', SCONTROL)
    path = f'{folder}:{os.path.dirname(sys.executable)}:{os.environ["PATH"]}'
    with socket.create_server(('127.0.0.1', 0)) as s:
        job = str(s.getsockname()[1])
    return os.environ | {
        'PATH': path,
        'SLURM_JOB_ID': job,
        'SLURM_JOB_NODELIST': 'here',
        'SLURM_NTASKS': '2',
        'SLURM_CPUS_PER_TASK': '1',
    }


def n_updates():
    """Return how many updates the log says."""
    if not os.path.exists('out/log.jsonl'):
        return 0
    return log()[-1]['iter']


def end_of_job(environment, max_iters, ask=None):
    """Return the exit code of the batch script, which `ask`(pid) ends after some updates."""
    before = n_updates()
    command = [
        'bash',
        f'{ROOT}/config/train.sbatch',
        *TOY,
        *TWO,
        '--eval_interval=100000',
        '--lr_decay_iters=100000',
        f'--max_iters={max_iters}',
    ]
    p = subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    if ask:
        wait_for(lambda: n_updates() > before, p)
        ask(p.pid)
    said, _ = p.communicate(timeout=HANGS)
    assert ('stopped and saved' in said) == bool(ask), said
    return p.returncode


@pytest.mark.slow
def test_the_batch_script_saves_at_its_limit_and_is_requeued(data, slurm):
    """The limit, SIGUSR1 to the shell, asks to be requeued.

    SIGTERM to all, of preemption or scancel, and the end do not."""
    os.symlink(f'{ROOT}/train.py', 'train.py')
    requests = Path('requests')
    requeued = f'requeue {slurm["SLURM_JOB_ID"]}\n'

    assert end_of_job(slurm, 100000, lambda pid: os.kill(pid, signal.SIGUSR1)) == 1
    first = load_checkpoint('out/ckpt.pt')['iter_num']
    assert requests.read_text() == requeued

    assert end_of_job(slurm, 100000, lambda pid: os.killpg(pid, signal.SIGTERM)) == 1
    second = load_checkpoint('out/ckpt.pt')['iter_num']
    assert second > first
    assert [entry['iter'] for entry in log()] == [*range(1, second + 1)]

    assert end_of_job(slurm, second + 2) == 0
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == second + 2
    assert requests.read_text() == requeued


@pytest.fixture
def batch_script(tmp_path, slurm):
    """batch_script(*words) -> the finished process of the script, whose srun prints its words."""
    write_program(tmp_path / 'bin' / 'srun', '#!/bin/sh\nfor word; do echo "$word"; done\n')

    def finished(*words):
        command = ['bash', 'config/train.sbatch', *words]
        how = {'cwd': ROOT, 'env': slurm, 'text': True, 'capture_output': True}
        return subprocess.run(command, check=False, **how)

    return finished


@pytest.mark.parametrize(
    'words, start',
    [
        (['config/adapt_gpt2.py'], []),
        (['--max_iters=9', 'config/finetune.py'], []),
        (['config/quickstart.py'], []),
        (['config/bytes256.py'], ['--init_from=auto']),
        (['--max_iters=9'], ['--init_from=auto']),
    ],
)
def test_the_batch_script_leaves_a_config_its_weights(batch_script, words, start):
    finished = batch_script(*words)
    assert finished.returncode == 0, finished.stderr
    said = finished.stdout.splitlines()
    assert said[said.index('-') + 1 :] == [*start, *words]


def test_the_batch_script_refuses_a_config_that_would_begin_anew_each_time(batch_script, tmp_path):
    (tmp_path / 'c.py').write_text("init_from = 'gpt2'\n")
    finished = batch_script(f'{tmp_path}/c.py')
    assert finished.returncode == 1
    assert 'write auto:WEIGHTS' in finished.stderr
    assert not finished.stdout
