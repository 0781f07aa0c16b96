"""Several processes, signals, and a scheduler that ends them: all fail, stop, go on together, and say what they are."""

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy
import pytest
import torch
import torture
from conftest import ROOT
from test_torchrun import wait_for
from toy_runs import TOY, TWO, log, run

from anyorder.checkpoint import load_checkpoint
from anyorder.machine.processes import commit, environment


@pytest.mark.parametrize(
    'missing, said',
    [('out', 'no checkpoint file out/ckpt.pt; train one'), ('data/mine', 'prepare.py')],
)
def test_what_one_process_misses_ends_all_at_once(data, forked, missing, said):
    """The second process has a disk of its own, as another machine without the shared folder."""
    options = [*TWO, '--init_from=auto', '--dataset=mine']
    os.rename('data/pydocs', 'data/mine')
    run(*options, '--max_iters=1')
    os.mkdir('elsewhere')
    for name in {'out', 'data/mine'} - {missing}:
        shutil.copytree(name, f'elsewhere/{name}')

    def of_other_machine():
        os.chdir('elsewhere')
        run(*options, '--max_iters=2')

    began = time.time()
    finished = forked(lambda: run(*options, '--max_iters=2'), of_other_machine)
    for p in finished:
        line = p.said.splitlines()[-1]
        assert (
            p.code == 1
            and f'ValueError: process 1 on {socket.gethostname()}: ' in line
            and said in line
        )
    assert time.time() - began < 60 and load_checkpoint('out/ckpt.pt')['iter_num'] == 1


@pytest.mark.slow
@pytest.mark.parametrize('n_processes', [1, 2])
def test_a_run_that_is_killed_and_started_again_is_the_uninterrupted_one(data, n_processes):
    assert 'equal bit for bit' in torture.drill(4, n_processes)


SRUN = '''#!{python}
"""In place of SLURM's: two tasks on this machine, to which signals are passed on; the largest exit code."""
import os, signal, subprocess, sys
command = sys.argv[next(n for n, word in enumerate(sys.argv[1:], 1) if not word.startswith('--')):]
tasks = [subprocess.Popen(command, env=os.environ | {{'SLURM_PROCID': n, 'SLURM_LOCALID': n}}) for n in '01']
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: [task.send_signal(number) for task in tasks])
sys.exit(max(abs(task.wait()) for task in tasks))
'''
SCONTROL = """#!/bin/sh
case $1 in show) echo 127.0.0.1;; *) echo "$@" >> requests;; esac
"""


@pytest.mark.slow
def test_the_batch_script_saves_at_its_limit_and_is_requeued(data):
    """With stand-ins for SLURM's commands. The limit, SIGUSR1 to the shell, asks to be requeued; SIGTERM to all, of
    preemption or scancel, and the end do not."""
    os.mkdir('bin')
    for name, text in (('srun', SRUN.format(python=sys.executable)), ('scontrol', SCONTROL)):
        with open(f'bin/{name}', 'w') as f:
            f.write(text)
        os.chmod(f'bin/{name}', 0o755)
    os.symlink(f'{ROOT}/train.py', 'train.py')
    path = f'{data}/bin:{os.path.dirname(sys.executable)}:{os.environ["PATH"]}'
    with socket.create_server(('127.0.0.1', 0)) as s:
        job = str(s.getsockname()[1])
    environment = os.environ | {
        'PATH': path,
        'SLURM_JOB_ID': job,
        'SLURM_JOB_NODELIST': 'here',
        'SLURM_NTASKS': '2',
        'SLURM_CPUS_PER_TASK': '1',
    }

    def job_of(end, ask=None):
        """(exit code, iteration of the checkpoint) of the script, which `ask` ends after some updates."""
        before = log()[-1]['iter'] if os.path.exists('out/log.jsonl') else 0
        p = subprocess.Popen(
            [
                'bash',
                f'{ROOT}/config/train.sbatch',
                *TOY,
                *TWO,
                '--save_interval=100000',
                '--eval_interval=100000',
                '--lr_decay_iters=100000',
                f'--max_iters={end}',
            ],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if ask:
            wait_for(lambda: os.path.exists('out/log.jsonl') and log()[-1]['iter'] > before, p)
            ask(p.pid)
        said = p.communicate(timeout=120)[0]
        assert ('stopped and saved' in said) == bool(ask), said
        return p.returncode, load_checkpoint('out/ckpt.pt')['iter_num']

    code, first = job_of(100000, lambda pid: os.kill(pid, signal.SIGUSR1))
    assert code == 1 and open('requests').read() == f'requeue {job}\n'
    code, second = job_of(100000, lambda pid: os.killpg(pid, signal.SIGTERM))
    assert code == 1 and second > first and [e['iter'] for e in log()] == [*range(1, second + 1)]
    assert job_of(second + 2) == (0, second + 2) and open('requests').read() == f'requeue {job}\n'


@pytest.mark.parametrize(
    'words, init',
    [
        (['config/adapt_gpt2.py'], False),
        (['--max_iters=9', 'config/finetune.py'], False),
        (['config/quickstart.py'], True),
        (['--max_iters=9'], True),
    ],
)
def test_the_batch_script_leaves_a_config_its_weights(tmp_path, words, init):
    (tmp_path / 'srun').write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (tmp_path / 'scontrol').write_text(SCONTROL)
    for name in 'srun', 'scontrol':
        os.chmod(tmp_path / name, 0o755)
    environment = os.environ | {
        'PATH': f'{tmp_path}:{os.environ["PATH"]}',
        'SLURM_JOB_ID': '7',
        'SLURM_CPUS_PER_TASK': '1',
    }
    said = subprocess.run(
        ['bash', 'config/train.sbatch', *words],
        cwd=ROOT,
        env=environment,
        text=True,
        check=True,
        capture_output=True,
    ).stdout.splitlines()
    assert said[said.index('-') + 1 :] == ['--init_from=auto'] * init + words
    (tmp_path / 'c.py').write_text("init_from = 'gpt2'\n")
    p = subprocess.run(
        ['bash', 'config/train.sbatch', f'{tmp_path}/c.py'],
        cwd=ROOT,
        env=environment,
        text=True,
        check=False,
        capture_output=True,
    )
    assert (
        p.returncode == 1 and 'write auto:WEIGHTS' in p.stderr and not p.stdout
    )  # it would begin anew each time


def test_the_environment_is_of_this_program():
    found = environment(torch.device('cpu'))
    assert found.keys() == {'commit', 'python', 'torch', 'numpy', 'device', 'processes'}
    assert (found['python'], found['torch'], found['numpy']) == (
        platform.python_version(),
        torch.__version__,
        numpy.__version__,
    )
    assert found['device'] and found['processes'] == 1
    assert all(
        type(value) in (str, int) for value in found.values()
    )  # a checkpoint holds nothing else


def test_the_commit_says_whether_files_were_changed(tmp_path):
    """Of this repository alone, not of one around it."""

    def git(*args):
        return subprocess.run(
            ['git', '-C', tmp_path, '-c', 'user.name=a', '-c', 'user.email=a@b', *args],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    try:
        git('init', '-q')
    except OSError:
        pytest.skip('there is no git')
    assert commit(tmp_path) == 'unknown'  # nothing is committed
    (tmp_path / 'model.py').write_text('x = 1')
    git('add', 'model.py')
    git('commit', '-q', '-m', 'Begin')
    git('tag', '-a', 'v1', '-m', 'one')
    (tmp_path / 'notes').write_text('not of the repository')
    clean = git('rev-parse', '--short=12', 'HEAD')
    assert commit(tmp_path) == clean
    (tmp_path / 'model.py').write_text('x = 2')
    assert commit(tmp_path) == f'{clean}-dirty'
    (tmp_path / 'inner').mkdir()
    assert commit(tmp_path / 'inner') == 'unknown'
