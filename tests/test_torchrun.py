"""A run of several processes is the run of one; it stops and ends together."""

import glob
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from conftest import HANGS, ROOT, make_model, one_line
from toy_runs import TOY, TWO, assert_alike, interrupted, log, resume, run

import train
from anyorder.checkpoint import load_checkpoint
from anyorder.machine.processes import own_device
from anyorder.training import start
from configurator import configure


def torchrun(*options, agent=('--standalone', '--nproc_per_node=2'), **how):
    """Start `torchrun train.py` in the current folder; `how` as of Popen."""
    command = [sys.executable, '-m', 'torch.distributed.run', *agent, f'{ROOT}/train.py', *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe, **how)


def wait_for(condition, process):
    for _ in range(10 * HANGS):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError('waited in vain')


@pytest.mark.slow
def test_two_processes_stop_at_the_same_iteration_and_go_on(data, forked, monkeypatch):
    """One of them is asked; the average of a log line that was begun is resumed too."""
    options = [*TWO, '--max_iters=9', '--log_interval=3', '--eval_interval=100']

    def whole():
        run(*options, '--out_dir=whole')

    def ask_second():
        if os.environ['RANK'] == '1':
            os.kill(os.getpid(), signal.SIGTERM)

    def stopped():
        monkeypatch.setattr(train, 'update', interrupted(4, ask_second))
        run(*options)

    first, second = forked(whole, whole)
    assert (first.code, second.code) == (0, 0)
    assert '2 x cpu' in first.said
    assert 'python sample.py' in first.said
    assert 'validation' not in second.said

    first, second = forked(stopped, stopped)
    assert (first.code, second.code) == (1, 1)
    way_on = f'torchrun ... {ROOT}/train.py --init_from=resume --out_dir=out'
    assert f'stopped and saved; go on from iteration 5 with: {way_on}' in first.said
    assert 'stopped and saved' not in second.said
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 5
    assert log()[-1]['iter'] == 3

    assert [p.code for p in forked(resume, resume)] == [0, 0]
    assert_alike('whole', 'out')


@pytest.mark.slow
@pytest.mark.parametrize('draw', ['--order=few:3', '--order=sorted_subset'])
def test_two_processes_draw_what_one_draws(data, forked, draw):
    options = [*TWO, draw, '--max_iters=5']

    def one():
        run(*options, '--out_dir=one')

    def both():
        run(*options)

    assert [p.code for p in forked(one)] == [0]
    assert [p.code for p in forked(both, both)] == [0, 0]
    assert_alike('one', 'out')


@pytest.mark.slow
@pytest.mark.parametrize('n_machines', [1, 2])
def test_torchrun_sees_the_batch_of_one(data, n_machines):
    """By an agent for two processes; or by two, as on two machines, that find each other."""
    run(*TWO, '--max_iters=5', '--out_dir=one')
    agents = [('--standalone', '--nproc_per_node=2')]
    if n_machines == 2:
        with socket.create_server(('127.0.0.1', 0)) as s:
            place = ('--master_addr=127.0.0.1', f'--master_port={s.getsockname()[1]}')
        both = ('--nnodes=2', '--nproc_per_node=1', *place)
        agents = [(*both, f'--node_rank={n}') for n in (0, 1)]
    started = [torchrun(*TOY, *TWO, '--max_iters=5', agent=agent) for agent in agents]
    for p in started:
        _, err = p.communicate(timeout=HANGS)
        assert p.returncode == 0, err
    assert_alike('one', 'out')


def biased():
    model = make_model()
    model.lm_head.bias += 1
    return model


CONFIG = configure(vars(train), TOY)
HASHES = {'train': 'a', 'val': 'b'}


@pytest.mark.parametrize(
    'other, said',
    [
        ({'config': CONFIG | {'out_dir': 'a', 'data_dir': 'b'}}, ''),
        ({'config': CONFIG | {'seed': 7}}, 'seed'),
        ({'resumed': 5}, 'iteration to go on from'),
        ({'model': biased()}, 'the weights'),
        ({'data': SimpleNamespace(hashes=HASHES | {'val': 'x'})}, 'the data'),
    ],
)
def test_what_processes_must_agree_on(monkeypatch, other, said):
    """Both say what they have; then one hears it."""
    own = {
        'model': make_model(),
        'resumed': 3,
        'data': SimpleNamespace(hashes=HASHES),
        'config': CONFIG,
    }
    every = []

    def record(had):
        every.append(had)
        return [had]

    monkeypatch.setattr('anyorder.training.start.gather', record)
    start.check_start(**own)
    start.check_start(**own | other)
    monkeypatch.setattr('anyorder.training.start.gather', lambda had: every)
    with one_line(f'differ in .*{said}') if said else nullcontext():
        start.check_start(**own)


def test_processes_that_differ_do_not_start(data, forked):
    for p in forked(lambda: run(*TWO, '--seed=0'), lambda: run(*TWO, '--seed=1')):
        assert p.code == 1
        assert 'ValueError: the processes differ in seed, the weights (0, 1): ' in p.said
    assert not os.path.exists('out')


def test_each_process_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr('anyorder.machine.processes.processes', lambda: (0, 2))
    with pytest.raises(ValueError, match='--device=cuda, got cuda:0'):
        own_device('cuda:0', 'float32')


@pytest.mark.slow
def test_two_processes_that_are_asked_to_end_save_first(data):
    options = [*TWO, '--max_iters=100000', '--eval_interval=100000']
    offline = os.environ | {'WANDB_MODE': 'offline'}
    p = torchrun(*TOY, *options, '--wandb_log=True', env=offline)
    wait_for(lambda: os.path.exists('out/log.jsonl') and len(log()) > 2, p)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=HANGS)
    saved = load_checkpoint('out/ckpt.pt')['iter_num']
    assert p.returncode != 0
    assert saved == log()[-1]['iter']
    command = f'torchrun --standalone --nproc_per_node=2 {ROOT}/train.py --init_from=resume'
    assert f'go on from iteration {saved} with: {command}' in err
    (rows,) = glob.glob('wandb/offline-run-*/*.wandb')
    assert os.path.getsize(rows) > 1000


@pytest.mark.slow
def test_a_process_that_is_lost_ends_the_other(data):
    run(*TWO, '--max_iters=1')
    p = torchrun('--init_from=resume', '--max_iters=100000', '--eval_interval=100000')
    wait_for(lambda: log()[-1]['iter'] > 1, p)
    with open(f'/proc/{p.pid}/task/{p.pid}/children') as f:
        workers = f.read().split()
    os.kill(int(workers[1]), signal.SIGKILL)
    p.communicate(timeout=HANGS)
    assert p.returncode != 0
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 1
    for pid in workers:
        assert not os.path.exists(f'/proc/{pid}')
