"""The trainer: what a run leaves, resume, signals, several processes, and what it says of wrong input."""

import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import REFERENCE, ROOT, make_model
from toy_runs import TOY, TWO, assert_alike, assert_same_runs, equal, log, resume, run

import train
from anyorder.checkpoint import digest, load_checkpoint, model_from_checkpoint, save_checkpoint
from anyorder.likelihood.nll import block_nll
from anyorder.machine.devices import resolve_compile
from anyorder.machine.processes import own_device
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import ORDERS, Family, sample_order
from anyorder.tokens.blocks import all_blocks
from anyorder.training import start
from anyorder.training.update import get_lr, update
from configurator import configure
from model import AOGPT, AOGPTConfig
from train import Data


@pytest.mark.parametrize('path', sorted(glob.glob(f'{ROOT}/config/*.py')))
def test_every_config_is_a_run(path):
    config = configure(vars(train), [path])
    start.check_options(config, 1)
    assert not start.never_reached(config)
    with torch.device('meta'):
        model = AOGPT(
            AOGPTConfig(dropout=config.dropout, **{name: config[name] for name in start.SHAPE})
        )
    # millions; GPT-2's are 124.44, and wtpe 0.79 more
    known = {'ao_gpt_small': 170.6, 'ao_gpt_medium': 425.8, 'sigma_gpt_small': 125.26}
    name = os.path.basename(path).removesuffix('.py')
    millions = known.get(name)
    starts = {'adapt_gpt2': 'auto:gpt2'} | dict.fromkeys(
        ('answers', 'finetune'), 'auto:out/quickstart/ckpt.pt'
    )
    starts |= dict.fromkeys(known, 'auto')
    assert config.init_from == starts.get(name, 'scratch')
    assert millions is None or abs(model.n_parameters() / 1e6 - millions) < 0.15
    if name in known:  # what these files do not say are the defaults of train.py
        assert config.batch_size * config.gradient_accumulation_steps * config.block_size == 524288
        assert config.learning_rate == (3e-4 if name == 'ao_gpt_medium' else 6e-4)
        assert (config.min_lr, config.warmup_iters, config.weight_decay, config.beta2) == (
            6e-5,
            2000,
            0.05,
            0.95,
        )
        assert (config.block_size, config.optimizer, config.l2r_ratio) == (1024, 'adamw', 0.1)


def test_compile_is_for_long_runs(monkeypatch):
    cpu, cuda = torch.device('cpu'), torch.device('cuda')
    assert (
        resolve_compile(False, cpu, 1e20, 9)[0] is False
        and resolve_compile('auto', cpu, 1e10, 9)[0] is False
    )
    assert resolve_compile('auto', cuda, 1, 10**5)[0] is True
    monkeypatch.setattr('shutil.which', lambda tool: None)
    assert resolve_compile('auto', cpu, 1e20, 10**5)[0] is False
    with pytest.raises(ValueError, match='compiler'):
        resolve_compile(True, cpu, 1e20, 9)


def test_a_run_leaves_a_log_and_a_whole_checkpoint(data, capsys):
    run('--max_iters=10')
    entries = log()
    assert [e['iter'] for e in entries] == list(range(1, 11)) and all(
        e['tokens_per_sec'] > 0 for e in entries
    )
    assert [e['iter'] for e in entries if 'val_any' in e] == [4, 8, 10] and entries[-1][
        'val_l2r'
    ] > 0
    assert [e['lr'] for e in entries] == [get_lr(it, 1e-2, 1e-3, 2, 10) for it in range(10)]
    checkpoint = load_checkpoint('out/ckpt.pt')
    assert sorted(os.listdir('out')) == ['.lock', 'ckpt.pt', 'ckpt_0000008.pt', 'log.jsonl']
    assert (
        checkpoint['iter_num'] == checkpoint['ema_model']['num_updates'] == 10
        and checkpoint['tokenizer'] == 'bytes'
    )
    resolved = checkpoint['config']
    assert (
        resolved['device'] == 'cpu'
        and resolved['compile'] is False
        and resolved['dtype'] in ('float32', 'bfloat16')
    )
    assert model_from_checkpoint(checkpoint).config == AOGPTConfig(
        16, 320, 2, 2, 16, n_tokens=257, gate_init=1.0
    )
    said = capsys.readouterr().out
    assert all(
        s in said
        for s in (
            'little text: the loss stays on a plateau',
            'any order (bound)',
            'left to right',
            'unigram, whole set',
            'written in random order',
            'written left to right',
            'python sample.py --ckpt=out/ckpt.pt',
            'python eval_ppl.py --ckpt=out/ckpt.pt',
        )
    )
    run('--max_iters=2')
    run('--max_iters=3')
    assert [
        load_checkpoint(f'out/ckpt.pt{old}')['iter_num'] for old in ('.old-1', '.old-2', '')
    ] == [10, 2, 3]
    assert len(log()) == 3


def test_auto_starts_a_run_and_goes_on_with_it(data, monkeypatch, capsys):
    """The same command each time: it is stopped before and after its first save, ends, and is given once more."""
    options = ['--init_from=auto', '--max_iters=6', '--dropout=0.1', '--save_interval=100']
    run(*options, '--out_dir=whole')

    def stopped_at(iteration, error):
        def interrupted(state, *args):
            if state.iter_num == iteration:
                error()
            update(state, *args)

        with monkeypatch.context() as m, pytest.raises((SystemExit, RuntimeError)):
            m.setattr(train, 'update', interrupted)
            run(*options)

    def killed():
        raise RuntimeError

    stopped_at(2, killed)  # nothing is saved yet
    stopped_at(3, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    stopped_at(5, killed)  # after one more update, which is lost
    capsys.readouterr()
    run(*options)
    assert 'changed since' not in capsys.readouterr().out
    assert_same_runs('whole', 'out')
    before = os.stat('out/ckpt.pt')
    run(*options)
    said = capsys.readouterr().out
    assert 'finished: the checkpoint is at iteration 6 of 6' in said and 'any order (bound)' in said
    assert 'plateau' not in said  # which is behind it
    assert os.stat('out/ckpt.pt') == before


def test_resume_takes_the_options_given_now(data):
    run('--max_iters=4', '--optimizer=adamw')
    run(
        '--max_iters=5',
        '--optimizer=adamw',
        '--init_from=resume',
        '--beta1=0.5',
        '--weight_decay=0.3',
        '--learning_rate=1e-4',
        '--min_lr=1e-5',
        '--dropout=0.2',
    )
    checkpoint = load_checkpoint('out/ckpt.pt')
    assert checkpoint['model_args']['dropout'] == checkpoint['config']['dropout'] == 0.2
    matrices, vectors = checkpoint['optimizer'][0]['param_groups']
    assert (
        matrices['betas'][0] == 0.5
        and matrices['weight_decay'] == 0.3
        and vectors['weight_decay'] == 0.0
    )
    assert log()[-1]['lr'] < 5e-3 and checkpoint['config']['beta1'] == 0.5
    for wrong, said in (
        ('--optimizer=muon', 'optimizer=muon contradicts'),
        ('--n_layer=3', 'n_layer=3 contradicts'),
    ):
        with pytest.raises(ValueError, match=said):
            run('--init_from=resume', '--max_iters=6', '--optimizer=adamw', wrong)
    os.makedirs('published')
    save_checkpoint(
        'published/ckpt.pt', make_model(vocab_size=320, n_tokens=257), tokenizer='bytes'
    )
    with pytest.raises(ValueError, match='no run that can be resumed'):
        train.main(configure(vars(train), ['--init_from=resume', '--out_dir=published']))


def test_a_run_says_what_its_learning_rate_never_does(data, capsys):
    for options in (
        ['--max_iters=2', '--warmup_iters=2'],
        ['--max_iters=3', '--init_from=resume', '--warmup_iters=3'],
        ['--max_iters=4', '--init_from=resume', '--lr_decay_iters=9', '--warmup_iters=2'],
    ):
        run(*options)
        assert (
            start.never_reached(configure(vars(train), [*TOY, *options])) + '\n'
            in capsys.readouterr().out
        )


def test_a_resume_says_what_it_changes(data, capsys):
    from anyorder.tokens import prepared as p

    run('--max_iters=2')
    p.prepare('pydocs', 'data', force=True)
    run('--init_from=resume', '--max_iters=2')
    assert 'changed' not in capsys.readouterr().out  # the same options, the same data
    p.DATA_SETS['pydocs'] = p.DataSet(
        lambda: ['Other text, other text. ' * 30] * 20, 'bytes', 0.1, True, ''
    )
    p.prepare('pydocs', 'data', force=True)
    run('--init_from=resume', '--max_iters=3', '--batch_size=4')
    changed = 'changed since iteration 2: batch_size 8 -> 4, max_iters 2 -> 3, the training data, the validation data\n'
    assert changed in capsys.readouterr().out
    run('--init_from=resume', '--max_iters=4', '--learning_rate=0.5', '--min_lr=0.5')
    assert re.search(
        r'learning_rate .* -> 0.5, .*, learning rate at once 0.0\d+ -> 0.5\n',
        capsys.readouterr().out,
    )
    p.DATA_SETS['text'] = p.DataSet(None, 'bytes', 0.1, '')
    Path('third.txt').write_text('A third text. ' * 99)
    p.prepare('text', 'data', name='pydocs', split='val', source='third.txt', force=True)
    run(
        '--init_from=resume',
        '--max_iters=4',
        '--batch_size=8',
        '--learning_rate=0.5',
        '--min_lr=0.5',
    )
    assert 'changed since iteration 4: the validation data\n' in capsys.readouterr().out
    checkpoint = load_checkpoint('out/ckpt.pt')
    del checkpoint['draws']  # as of an earlier version
    torch.save(checkpoint, 'out/ckpt.pt')
    run(
        '--init_from=resume',
        '--max_iters=5',
        '--batch_size=8',
        '--learning_rate=0.5',
        '--min_lr=0.5',
    )
    assert re.search(r'changed since iteration 4: .*the random draws.*\n', capsys.readouterr().out)
    with pytest.raises(ValueError, match='no checkpoint file scratc;'):
        run('--init_from=scratc')


@pytest.mark.parametrize(
    'optimizer, iteration, signals',
    [
        ('adamw', 1, [signal.SIGINT]),
        ('muon', 2, 2 * [signal.SIGHUP]),
        ('adamw', 3, [signal.SIGTERM, signal.SIGUSR1]),
    ],
)
def test_a_run_that_is_stopped_is_saved_and_goes_on(
    data, monkeypatch, optimizer, iteration, signals
):
    """The average loss of a log line too, although the run stops in the midst of it."""
    options = [
        '--max_iters=7',
        f'--optimizer={optimizer}',
        '--dropout=0.1',
        '--log_interval=3',
        '--save_interval=100',
    ]

    def interrupted(state, *args):
        if state.iter_num == iteration - 1:
            for number in signals:
                os.kill(os.getpid(), number)
        update(state, *args)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run(*options, '--out_dir=whole')
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    with monkeypatch.context() as m, pytest.raises(SystemExit) as e:
        m.setattr(train, 'update', interrupted)
        run(*options)
    signal.signal(signal.SIGHUP, hangup)
    assert e.value.code == 1 and load_checkpoint('out/ckpt.pt')['iter_num'] == iteration
    resume()
    assert_same_runs('whole', 'out')


@pytest.mark.parametrize(
    'variant',
    [
        ['--target_position=layer', '--rotary=True'],
        ['--target_position=input', '--gpt2_blocks=True'],
        ['--target_position=two_stream'],
        ['--order=even.json', '--l2r_ratio=0.5'],
        ['--order=few:3', '--dropout=0.1'],
        ['--order=sorted_subset'],
    ],
)
def test_every_network_and_order_is_trained_saved_and_resumed(data, variant):
    with open('even.json', 'w') as f:
        json.dump([*range(0, 16, 2), *range(1, 16, 2)], f)
    run(*variant, '--max_iters=6', '--out_dir=whole')
    run(*variant, '--max_iters=4', '--lr_decay_iters=6')
    os.remove('even.json')  # the checkpoint knows
    resume('--max_iters=6')
    assert_same_runs('whole', 'out')
    with pytest.raises(ValueError, match='rotary=.* contradicts'):
        run('--init_from=resume', f'--rotary={"--rotary=True" not in variant}')


@pytest.mark.parametrize('attention', ['bidirectional', 'mixed'])
def test_a_network_with_a_masked_loss_is_trained_resumed_sampled_and_scored(
    attention, data, script
):
    toy = [*TOY, f'--attention={attention}', '--l2r_ratio=0', '--rotary=True', '--lr_decay_iters=6']
    assert (
        'l2r_ratio must be 0' in script('train.py', *TOY, f'--attention={attention}', code=1).stderr
    )
    said = script('train.py', *toy, '--max_iters=6', '--out_dir=whole').stdout
    assert 'left to right' not in said.split('written')[0]
    script('train.py', *toy, '--max_iters=4')
    script('train.py', '--init_from=resume', '--max_iters=6')
    assert_same_runs('whole', 'out')
    assert 'val_any' in log()[-1] and 'val_l2r' not in log()[-1]
    for order in ('random', 'margin'):
        options = [f'--order={order}', '--n_steps=4', '--prompt=The [[3]] sat.']
        assert 'sample 1' in script('sample.py', '--ckpt=out/ckpt.pt', *options).stdout
    rows = script(
        'eval_ppl.py',
        '--ckpt=out/ckpt.pt',
        '--n_blocks=4',
        '--n_orders=2',
        '--estimates=l2r,any,iw',
    ).stdout
    assert all(row in rows for row in ('left to right', 'any order x 2', 'iw x 2'))
    wrong = script('eval_ppl.py', '--ckpt=out/ckpt.pt', '--estimates=ensemble', code=1).stderr
    assert wrong.startswith("error: ensemble is a decoder's")


@pytest.mark.parametrize('order', ['l2r', 'block', 'swaps', 'listed'])
def test_a_run_in_one_order_is_validated_scored_and_sampled_in_it(data, script, order):
    positions = [*range(1, 16, 2), *range(0, 16, 2)]
    with open('odd.json', 'w') as f:
        json.dump(positions, f)
    named = [f'--order={ {"l2r": "l2r", "listed": "odd.json"}.get(order, f"{order}:5") }']
    run(*named, '--order_seed=3', '--l2r_ratio=0', '--max_iters=8', '--dtype=float32')
    os.remove('odd.json')
    model, entry = model_from_checkpoint('out/ckpt.pt'), log()[-1]
    blocks, _ = all_blocks(Data(configure(vars(train), TOY)).val, 16, 16)
    own = sample_order(
        16, 16, order, seed=3, parameter=tuple(positions) if order == 'listed' else 5
    )
    nats = {
        kind: block_nll(model, blocks, orders, 16).sum().item() / 256
        for kind, orders in {'l2r': sample_order(16, 16, 'l2r'), 'own': own}.items()
    }
    assert {k for k in entry if k.startswith('val_')} == {'val_l2r', 'val_own'} - {
        'val_own' if order == 'l2r' else ''
    }
    assert (
        abs(entry['val_l2r'] - nats['l2r']) < 1e-6
        and abs(entry.get('val_own', nats['own']) - nats['own']) < 1e-6
    )
    evaluated = script(
        'eval_ppl.py', '--ckpt=out/ckpt.pt', '--n_blocks=16', '--out=ppl.json'
    ).stdout
    rows = {r['estimate']: r['nats_per_token'] for r in json.load(open('ppl.json'))['results']}
    own_row = f'own order ({order}{":5" * (order in ("block", "swaps"))})'
    assert (
        list(rows) == ['left to right'] + [own_row] * (order != 'l2r')
        and list(rows)[-1] in evaluated
    )
    assert abs(rows.get(own_row, nats['own']) - nats['own']) < 1e-6
    # adds to the journal
    script(
        'eval_ppl.py',
        '--ckpt=out/ckpt.pt',
        '--n_blocks=16',
        '--out=ppl.json',
        '--estimates=any,l2r',
    )
    if order == 'l2r':
        assert (
            'take l2r'
            in script('eval_ppl.py', '--ckpt=out/ckpt.pt', '--estimates=own', code=1).stderr
        )
    script('sample.py', '--ckpt=out/ckpt.pt', '--out=s.json')
    script('sample.py', '--ckpt=out/ckpt.pt', '--out=short.json', '--length=9')
    assert [s['order'] for s in json.load(open('s.json'))['samples']] == own[:2].tolist()
    assert json.load(open('short.json'))['samples'][0]['order'] == [
        p for p in own[0].tolist() if p < 9
    ]


def test_a_run_keeps_the_number_of_its_order(data, monkeypatch, capsys):
    """A family of this test has no option order_NAME."""
    monkeypatch.setitem(
        ORDERS,
        'stride',
        Family(
            lambda u, n, step: torch.arange(n).view(-1, step).T.reshape(1, n),
            parameter=4,
            n_numbers=lambda n, _: 0,
        ),
    )
    run('--order=stride:8', '--l2r_ratio=0', '--max_iters=2')
    assert 'own order (stride:8)' in capsys.readouterr().out
    seen = orders_of_training(monkeypatch)
    resume('--max_iters=3')
    assert load_checkpoint('out/ckpt.pt')['config']['order'] == 'stride:8'
    assert seen and all((rows == torch.arange(16).view(2, 8).T.flatten()).all() for rows in seen)


def orders_of_training(monkeypatch):
    """A list that fills with the orders of every micro-batch."""
    seen = []
    monkeypatch.setattr(
        AOGPT,
        'forward',
        lambda self, idx, order, *a, forward=AOGPT.forward, **k: (
            self.training and seen.append(order),
            forward(self, idx, order, *a, **k),
        )[1],
    )
    return seen


def test_a_run_whose_reader_is_gone_goes_on(data, forked):
    def without_a_reader():
        reading, writing = os.pipe()
        os.close(reading)
        sys.stderr = os.fdopen(writing, 'w', buffering=1)
        run('--max_iters=3')

    (finished,) = forked(without_a_reader)
    assert (
        finished.code == 0
        and 'go on with' in finished.said
        and load_checkpoint('out/ckpt.pt')['iter_num'] == 3
    )


def test_a_line_of_the_log_is_the_mean_of_the_updates_since_the_last(data):
    """Lines at 4 and 8, which validate and save, and at 10, the end."""
    run('--max_iters=10', '--out_dir=all')
    run('--max_iters=10', '--log_interval=100', '--ema_decay=0.5')
    every, few = log('all'), log()
    assert [e['iter'] for e in every] == list(range(1, 11)) and [e['iter'] for e in few] == [
        4,
        8,
        10,
    ]
    for entry, first in zip(few, (0, 4, 8)):
        since = every[first : entry['iter']]
        for name in 'loss', 'grad_norm':
            assert entry[name] == pytest.approx(sum(e[name] for e in since) / len(since), rel=1e-12)
        assert entry['lr'] == since[-1]['lr'] and entry['tokens'] == since[-1]['tokens']


def test_tokens_are_counted_when_the_batch_changes(data):
    run('--max_iters=3', '--save_interval=1')
    run('--max_iters=5', '--init_from=resume', '--batch_size=16')
    assert [e['tokens'] for e in log()] == [128, 256, 384, 640, 896]


def test_a_run_that_fails_at_once_leaves_the_earlier_one(data, monkeypatch):
    run('--max_iters=2')
    monkeypatch.setattr(
        train, 'update', lambda *a: (_ for _ in ()).throw(RuntimeError('no compiler after all'))
    )
    with pytest.raises(RuntimeError):
        run('--max_iters=4')
    assert sorted(os.listdir('out')) == ['.lock', 'ckpt.pt', 'log.jsonl']
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 2


def torchrun(*options, agent=('--standalone', '--nproc_per_node=2'), **kwargs):
    """A started `torchrun train.py` in the current folder."""
    command = [sys.executable, '-m', 'torch.distributed.run', *agent, f'{ROOT}/train.py', *options]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs
    )


def wait_for(condition, process, seconds=120):
    for _ in range(10 * seconds):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError('waited in vain')


def test_two_processes_stop_at_the_same_iteration_and_go_on(data, forked, monkeypatch):
    """One of them is asked; the average of a log line that was begun is resumed too."""
    options = [
        *TWO,
        '--max_iters=9',
        '--log_interval=3',
        '--eval_interval=100',
        '--save_interval=100',
    ]

    def interrupted(state, *args):
        if state.iter_num == 4 and os.environ['RANK'] == '1':
            os.kill(os.getpid(), signal.SIGTERM)
        update(state, *args)

    def stopped():
        monkeypatch.setattr(train, 'update', interrupted)
        run(*options)

    first, second = forked(*2 * [lambda: run(*options, '--out_dir=whole')])
    assert (first.code, second.code) == (0, 0)
    assert (
        '2 x cpu' in first.said
        and 'python sample.py' in first.said
        and 'validation' not in second.said
    )
    first, second = forked(stopped, stopped)
    assert (first.code, second.code) == (1, 1) and 'stopped and saved' not in second.said
    assert (
        'stopped and saved; go on from iteration 5 with: torchrun ... train.py --init_from=resume --out_dir=out'
        in first.said
    )
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 5 and log()[-1]['iter'] == 3
    assert [p.code for p in forked(*2 * [resume])] == [0, 0]
    assert_alike('whole', 'out')


@pytest.mark.slow
@pytest.mark.parametrize('draw', ['--order=few:3', '--order=sorted_subset'])
def test_two_processes_draw_what_one_draws(data, forked, draw):
    options = [*TWO, *draw.split(), '--max_iters=5']
    assert [p.code for p in forked(lambda: run(*options, '--out_dir=one'))] == [0]
    assert [p.code for p in forked(*2 * [lambda: run(*options)])] == [0, 0]
    assert_alike('one', 'out')


def test_few_orders_of_one_are_left_to_right(data):
    run('--order=few:1', '--max_iters=5', '--out_dir=one')
    run('--order=l2r', '--l2r_ratio=0', '--max_iters=5')
    weights = [model_from_checkpoint(f'{name}/ckpt.pt').state_dict() for name in ('one', 'out')]
    assert equal(*weights) and log('one')[-1]['val_own'] == log()[-1]['val_l2r']


@pytest.mark.slow
@pytest.mark.parametrize('machines', [1, 2])
def test_torchrun_sees_the_batch_of_one(data, machines):
    """Two processes on one machine; or, as on two machines, two agents that find each other by an address."""
    run(*TWO, '--max_iters=5', '--out_dir=one')
    with socket.create_server(('127.0.0.1', 0)) as s:
        port = s.getsockname()[1]
    agents = [('--standalone', '--nproc_per_node=2')]
    if machines == 2:
        agents = [
            (
                '--nnodes=2',
                f'--node_rank={n}',
                '--nproc_per_node=1',
                '--master_addr=127.0.0.1',
                f'--master_port={port}',
            )
            for n in (0, 1)
        ]
    started = [torchrun(*TOY, *TWO, '--max_iters=5', agent=agent) for agent in agents]
    for p in started:
        _, err = p.communicate(timeout=170)
        assert p.returncode == 0, err
    assert_alike('one', 'out')


def test_what_processes_must_agree_on(monkeypatch):
    config, data = configure(vars(train), TOY), SimpleNamespace(hashes={'train': 'a', 'val': 'b'})
    model, other = make_model(), make_model()
    other.lm_head.bias += 1
    for said, args in (
        ('', (model, 3, data, config | {'out_dir': 'a', 'data_dir': 'b'})),
        ('seed', (model, 3, data, config | {'seed': 7})),
        ('iteration to go on from', (model, 5, data, config)),
        ('the weights', (other, 3, data, config)),
        ('the data', (model, 3, SimpleNamespace(hashes=data.hashes | {'val': 'x'}), config)),
    ):
        every = []
        monkeypatch.setattr(
            'anyorder.training.start.gather', lambda own, every=every: every.append(own) or [own]
        )
        start.check_start(model, 3, data, config)
        start.check_start(*args)
        monkeypatch.setattr('anyorder.training.start.gather', lambda own, every=every: every)
        with pytest.raises(ValueError, match=f'differ in .*{said}') if said else nullcontext():
            start.check_start(model, 3, data, config)


def test_processes_that_differ_do_not_start(data, forked, monkeypatch):
    for p in forked(lambda: run(*TWO, '--seed=0'), lambda: run(*TWO, '--seed=1')):
        assert (
            p.code == 1
            and 'ValueError: the processes differ in seed, the weights (0, 1): give all' in p.said
        )
    assert not os.path.exists('out')
    monkeypatch.setattr('anyorder.machine.processes.processes', lambda: (0, 2))
    with pytest.raises(ValueError, match='--device=cuda, got cuda:0'):
        own_device('cuda:0', 'float32')


@pytest.mark.slow
def test_two_processes_that_are_asked_to_end_save_first_and_a_lost_one_ends_the_other(data):
    options = [*TWO, '--max_iters=100000', '--save_interval=100000', '--eval_interval=100000']
    p = torchrun(*TOY, *options, '--wandb_log=True', env=os.environ | {'WANDB_MODE': 'offline'})
    wait_for(lambda: os.path.exists('out/log.jsonl') and len(log()) > 2, p)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=60)
    saved = load_checkpoint('out/ckpt.pt')['iter_num']
    assert p.returncode != 0 and saved == log()[-1]['iter']
    assert (
        f'go on from iteration {saved} with: torchrun --standalone --nproc_per_node=2 train.py --init_from=resume'
        in err
    )
    assert os.path.getsize(*glob.glob('wandb/offline-run-*/*.wandb')) > 1000

    p = torchrun('--init_from=resume', '--wandb_log=False')
    wait_for(lambda: log()[-1]['iter'] > saved, p)
    with open(f'/proc/{p.pid}/task/{p.pid}/children') as f:
        workers = f.read().split()
    os.kill(int(workers[1]), signal.SIGKILL)
    p.communicate(timeout=60)
    assert p.returncode != 0 and load_checkpoint('out/ckpt.pt')['iter_num'] == saved
    assert not any(os.path.exists(f'/proc/{pid}') for pid in workers)


def test_where_wandb_does_not_begin_all_processes_end_by_its_line(data, forked, monkeypatch):
    def init(**how):
        raise OSError('no login')

    monkeypatch.setitem(sys.modules, 'wandb', SimpleNamespace(Error=OSError, init=init))
    for p in forked(*2 * [lambda: run(*TWO, '--wandb_log=True')]):
        assert p.code == 1 and 'wandb: no login; WANDB_MODE=offline needs no login' in p.said, (
            p.said
        )


def test_wandb_gets_samples_and_a_resume_goes_on_with_its_run(data, monkeypatch):
    begun, sent = [], []
    wandb = SimpleNamespace(
        Error=OSError,
        init=lambda **how: begun.append(how),
        finish=lambda: None,
        Table=lambda columns, rows: (columns, rows),
        log=lambda entry, step: sent.append(entry),
    )
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    options = ['--wandb_log=True', '--init_from=auto']
    run(*options, '--max_iters=5')
    saved = load_checkpoint('out/ckpt.pt')
    assert begun[0]['config']['environment'] == saved['environment'] == log()[0]['environment']
    assert [entry.keys() - {'samples'} for entry in sent] == [
        entry.keys() - {'environment'} for entry in log()
    ]
    assert [list(entry)[-1] == 'samples' for entry in sent] == [
        False,
        False,
        False,
        True,
        True,
    ]  # where it validates
    columns, rows = sent[3]['samples']
    assert columns == ['order', 'text'] and [order for order, _ in rows] == [
        'in random order',
        'left to right',
    ]
    run(*options, '--max_iters=5')  # is finished
    run('--init_from=resume', '--max_iters=6', '--wandb_log=False')
    run(*options, '--max_iters=7')
    assert [entry['iter'] for entry in sent] == [
        *range(1, 8)
    ]  # what was trained without wandb, too
    os.remove('out/wandb.json')  # as an older run, which sent its rows when it logged them
    run(*options, '--max_iters=8')
    assert sent.pop()['iter'] == 8 and len(sent) == 7 and begun.pop()['id'] == begun[0]['id']
    run(*options, '--max_iters=1', '--out_dir=other')
    ids = [how['id'] for how in begun]
    assert (
        len(ids) == 3 and ids[0] == ids[1] == saved['config']['wandb_run_id'] != ids[2] and all(ids)
    )
    assert all(how['resume'] == 'allow' for how in begun)
    assert [e['iter'] for e in log() if 'environment' in e] == [1, 6, 7, 8]


def test_weights_of_another_checkpoint_start_a_run(data, capsys):
    with pytest.raises(ValueError, match='tokenizer'):
        options = [
            f'--init_from={REFERENCE}/adaln_small.ckpt.pt',
            '--device=cpu',
            '--dtype=float32',
        ]
        train.main(configure(vars(train), options))
    run('--max_iters=3', '--out_dir=first')
    assert 'little text: the loss stays on a plateau' in capsys.readouterr().out
    with pytest.raises(ValueError, match='n_layer=5 contradicts'):
        run('--init_from=first/ckpt.pt', '--n_layer=5')
    average = digest(model_from_checkpoint('first/ckpt.pt', 'ema'))
    for init_from in ('auto:first/ckpt.pt', 'first/ckpt.pt'):
        run(f'--init_from={init_from}', '--max_iters=0')
        assert 'plateau' not in capsys.readouterr().out
        assert digest(model_from_checkpoint('out/ckpt.pt', 'raw')) == average
    os.remove('first/ckpt.pt')  # a requeued run needs it no more
    run('--init_from=auto:first/ckpt.pt', '--max_iters=2')
    starts = [{'name': 'ckpt.pt', 'digest': average}]  # kept by a resume
    assert (
        load_checkpoint('out/ckpt.pt')['config']['started_from']
        == log()[0]['environment']['started_from']
        == starts
    )
    assert load_checkpoint('out/ckpt.pt')['config']['source'] == 'pydocs'
    assert [e['iter'] for e in log()] == [1, 2] and load_checkpoint('out/ckpt.pt')['config'][
        'init_from'
    ] == 'resume'
    with pytest.raises(ValueError, match='no checkpoint file first/ckpt.pt'):
        run('--init_from=auto:first/ckpt.pt', '--out_dir=other')


@pytest.mark.parametrize(
    'args, said',
    [
        (['--learning_rate=1e-6'], 'min_lr must be at most learning_rate=1e-06, got'),
        (['--n_embd=15'], 'n_embd must be divisible by n_head'),
        (['--block_size=100000'], 'beyond the data'),
        (['--dataset=books'], 'prepare.py'),
        (['--batch_size=0'], 'batch_size'),
        (['--block_size=0'], 'block_size'),
        (['--out_dir='], 'out_dir'),
        (['--l2r_ratio=1.5'], 'l2r_ratio'),
        (['--order=left'], "got 'left'"),
        (['--order=no.json'], 'no.json'),
        (['--order=short.json'], 'from 0 to 15, once; got 3'),
        (['--order=swaps:-1'], 'swaps:-1'),
        (['--order=block:0'], 'at least 1 position'),
        (['--order=few:0'], 'at least 1, got few:0'),
        (['--beta1=1.5'], 'beta1 must'),
        (['--attention=bidirectional', '--l2r_ratio=0', '--order=fixed'], "order must be 'random'"),
        (['--attention=full'], 'attention must be causal, bidirectional, mixed'),
        (['--device=cuda:99'], 'device'),
        (['--dtype=int8'], 'dtype'),
        (['--compile=maybe'], 'compile'),
        (['--optimizer=sgd'], 'optimizer'),
        (['--gradient_accumulation_steps=0'], 'gradient_accumulation_steps'),
        (['--ema_decay=1.0'], 'ema_decay'),
        (['--init_from=resume'], 'ckpt.pt'),
        (['--init_from=none.pt'], 'none.pt'),
        (['--init_from=hf:a/b/c.pt'], 'hf:a/b/c.pt'),
        (['--learning_rate=0'], 'learning_rate'),
        (['--max_iter=3'], "'max_iters'"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(data, args, said):
    with open('short.json', 'w') as f:
        f.write('[2, 0, 1]')
    with pytest.raises(SystemExit) as e, one_line_errors():
        run(*args)
    assert said in e.value.code and '\n' not in e.value.code and not os.path.exists('out')


@pytest.mark.parametrize('save_interval', [1, 4])
def test_what_is_not_finite_is_not_saved(data, save_interval):
    run('--max_iters=4')
    with pytest.raises(
        ValueError,
        match='not finite since iteration [5-8], and not saved; .* go on from iteration 4',
    ):
        run(
            '--max_iters=9',
            '--init_from=resume',
            '--learning_rate=1e30',
            '--grad_clip=0.0',
            f'--save_interval={save_interval}',
        )
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 4


def test_a_run_is_finished_when_it_has_its_updates(data, capsys):
    for max_iters in (0, 1):
        for _ in range(2):
            run(f'--max_iters={max_iters}', '--init_from=auto')
        assert ('finished' in capsys.readouterr().out) == (max_iters > 0)
