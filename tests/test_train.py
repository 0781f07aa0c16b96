"""The trainer: what a run leaves and says, in which orders it learns, and wrong input."""

import glob
import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from toy_runs import TOY, assert_same_runs, equal, log, resume, run

import train
from anyorder.checkpoint import Checkpoint, load_checkpoint, model_from_checkpoint
from anyorder.datasets import open_split
from anyorder.likelihood.nll import block_nll
from anyorder.machine.devices import resolve_compile
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import ORDERS, Family, sample_order
from anyorder.tokens.blocks import all_blocks
from anyorder.training import start
from anyorder.training.data import Data
from anyorder.training.report import about_warm_up
from anyorder.training.update import get_lr
from configurator import Config, configure
from model import AOGPT, AOGPTConfig

CONFIGS = [os.path.basename(path) for path in sorted(glob.glob(f'{ROOT}/config/*.py'))]
STARTS = {  # init_from, where it is not 'scratch'
    'adapt_gpt2.py': 'auto:gpt2',
    'answers.py': 'auto:out/quickstart/ckpt.pt',
    'finetune.py': 'auto:out/quickstart/ckpt.pt',
    'quickstart.py': 'auto',
    'ao_gpt_small.py': 'auto',
    'ao_gpt_medium.py': 'auto',
    'sigma_gpt_small.py': 'auto',
}


@pytest.mark.parametrize('name', CONFIGS)
def test_every_config_is_a_run(name):
    config = configure(vars(train), [f'{ROOT}/config/{name}'])
    start.check_options(config, 1)
    assert config.init_from == STARTS.get(name, 'scratch')


@pytest.mark.parametrize(
    'name, millions, learning_rate',
    [
        ('ao_gpt_small', 170.6, 6e-4),
        ('ao_gpt_medium', 425.8, 3e-4),
        ('sigma_gpt_small', 125.26, 6e-4),  # GPT-2's are 124.44, and wtpe 0.79 more
    ],
)
def test_the_configs_of_the_papers_have_their_sizes(name, millions, learning_rate):
    """What these files do not say are the defaults of train.py."""
    config = configure(vars(train), [f'{ROOT}/config/{name}.py'])
    with torch.device('meta'):
        model = AOGPT(start.model_config(config))
    assert model.n_parameters() / 1e6 == pytest.approx(millions, abs=0.15)
    assert config.batch_size * config.gradient_accumulation_steps * config.block_size == 524288
    wanted = {
        'learning_rate': learning_rate,
        'min_lr': 6e-5,
        'warmup_iters': 2000,
        'weight_decay': 0.05,
        'beta2': 0.95,
        'block_size': 1024,
        'optimizer': 'adamw',
        'l2r_ratio': 0.1,
    }
    assert {name: config[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    'compile, device, n_flops, has_compiler, compiled',
    [
        (False, 'cpu', 1e20, True, False),
        ('auto', 'cpu', 1e10, True, False),
        ('auto', 'cpu', 1e20, True, True),
        ('auto', 'cuda', 1, True, True),
        ('auto', 'cpu', 1e20, False, False),
    ],
)
def test_compile_is_for_long_runs(monkeypatch, compile, device, n_flops, has_compiler, compiled):
    monkeypatch.setattr('shutil.which', lambda tool: tool if has_compiler else None)
    monkeypatch.setattr('anyorder.machine.devices.find_spec', lambda name: name)
    assert resolve_compile(compile, torch.device(device), n_flops, 10**5)[0] is compiled


# what a run leaves and says


def test_a_run_leaves_a_log(data):
    run('--max_iters=10')
    entries = log()
    assert [entry['iter'] for entry in entries] == [*range(1, 11)]
    assert [entry['iter'] for entry in entries if 'val_any' in entry] == [4, 8, 10]
    assert [entry['lr'] for entry in entries] == [get_lr(it, 1e-2, 1e-3, 2, 10) for it in range(10)]
    assert all(entry['tokens_per_sec'] > 0 for entry in entries)
    assert entries[-1]['val_l2r'] > 0


def test_a_run_leaves_a_whole_checkpoint(data):
    run('--max_iters=10')
    assert sorted(os.listdir('out')) == ['.lock', 'ckpt.pt', 'ckpt_old.pt', 'log.jsonl']
    checkpoint = load_checkpoint('out/ckpt.pt')
    assert checkpoint['iter_num'] == 10
    assert checkpoint['ema_model']['num_updates'] == 10
    assert checkpoint['tokenizer'] == 'bytes'
    assert checkpoint['config']['device'] == 'cpu'
    assert checkpoint['config']['compile'] is False
    assert checkpoint['config']['dtype'] in ('float32', 'bfloat16')
    wanted = AOGPTConfig(16, 320, 2, 2, 16, n_tokens=257, gate_init=1.0)
    assert model_from_checkpoint(checkpoint).config == wanted
    split, _ = open_split('data', 'pydocs', 'train')
    counts = Checkpoint('out/ckpt.pt').counts
    assert counts.tolist() == np.bincount(split.packed, minlength=257).tolist()


def test_a_run_says_what_came_out(data, capsys):
    run('--max_iters=2')
    out = capsys.readouterr().out
    for said in (
        'any order (bound)',
        'left to right',
        'unigram, whole set',
        'written in random order',
        'written left to right',
        'python sample.py --ckpt=out/ckpt.pt',
        'python eval_ppl.py --ckpt=out/ckpt.pt',
    ):
        assert said in out


def test_runs_before_are_set_aside(data):
    for n in (3, 1, 2):
        run(f'--max_iters={n}')
    saved = [load_checkpoint(f'out/ckpt.pt{old}')['iter_num'] for old in ('.old-1', '.old-2', '')]
    assert saved == [3, 1, 2]
    assert len(log()) == 2


def test_a_line_of_the_log_is_the_mean_of_the_updates_since_the_last(data):
    """Lines at 4 and 8, which validate and save, and at 10, the end."""
    run('--max_iters=10', '--out_dir=all')
    run('--max_iters=10', '--log_interval=100', '--ema_decay=0.5')
    every = log('all')
    few = log()
    assert [entry['iter'] for entry in every] == [*range(1, 11)]
    assert [entry['iter'] for entry in few] == [4, 8, 10]
    for entry, first in zip(few, (0, 4, 8)):
        since = every[first : entry['iter']]
        for name in ('loss', 'grad_norm'):
            mean = sum(other[name] for other in since) / len(since)
            assert entry[name] == pytest.approx(mean, rel=1e-12)
        assert entry['lr'] == since[-1]['lr']
        assert entry['tokens'] == since[-1]['tokens']


@pytest.mark.parametrize('max_iters', [0, 1])
def test_a_run_is_finished_when_it_has_its_updates(data, capsys, max_iters):
    for _ in range(2):
        run(f'--max_iters={max_iters}', '--init_from=auto')
    assert ('finished' in capsys.readouterr().out) == (max_iters > 0)


def test_a_run_whose_reader_is_gone_goes_on(data, forked):
    def without_a_reader():
        reading, writing = os.pipe()
        os.close(reading)
        sys.stderr = os.fdopen(writing, 'w', buffering=1)
        run('--max_iters=3')

    (finished,) = forked(without_a_reader)
    assert finished.code == 0
    assert 'go on with' in finished.said
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 3


def test_a_run_that_fails_at_once_leaves_the_earlier_one(data, monkeypatch):
    def fail(*args):
        raise RuntimeError('no compiler after all')

    run('--max_iters=2')
    monkeypatch.setattr(train, 'update', fail)
    with pytest.raises(RuntimeError):
        run('--max_iters=4')
    assert sorted(os.listdir('out')) == ['.lock', 'ckpt.pt', 'log.jsonl']
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 2


@pytest.mark.parametrize('eval_interval', [1, 4])
def test_what_is_not_finite_is_not_saved(data, eval_interval):
    run('--max_iters=4')
    with pytest.raises(ValueError, match='not finite since iteration [5-8].* from iteration 4'):
        run(
            '--max_iters=9',
            '--init_from=resume',
            '--learning_rate=1e30',
            '--grad_clip=0.0',
            f'--eval_interval={eval_interval}',
        )
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 4


# networks and orders


@pytest.mark.parametrize('network', ['--network=encoder', '--network=mixed'])
def test_a_network_with_a_masked_loss_is_trained_resumed_sampled_and_scored(network, data, script):
    toy = [*TOY, f'{network},rotary', '--l2r_ratio=0', '--lr_decay_iters=6']
    assert 'l2r_ratio must be 0' in script('train.py', *TOY, network, code=1).stderr
    said = script('train.py', *toy, '--max_iters=6', '--out_dir=whole').stdout
    table, _, _ = said.partition('written')
    assert 'left to right' not in table
    script('train.py', *toy, '--max_iters=4')
    script('train.py', '--init_from=resume', '--max_iters=6')
    assert_same_runs('whole', 'out')
    assert 'val_any' in log()[-1]
    assert 'val_l2r' not in log()[-1]

    ckpt = '--ckpt=out/ckpt.pt'
    for order in ('random', 'margin'):
        options = [f'--order={order}', '--n_steps=4', '--prompt=The [[3]] sat.']
        assert 'sample 1' in script('sample.py', ckpt, *options).stdout
    sizes = ['--n_blocks=4', '--n_orders=2']
    rows = script('eval_ppl.py', ckpt, *sizes, '--estimates=l2r,any,iw').stdout
    for row in ('left to right', 'any order x 2', 'iw x 2'):
        assert row in rows
    wrong = script('eval_ppl.py', ckpt, '--estimates=ensemble', code=1).stderr
    assert wrong.startswith("error: ensemble is a decoder's")


ODD = [*range(1, 16, 2), *range(0, 16, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    'option, name, own',
    [
        ('l2r', 'left to right', sample_order(16, 16, 'l2r')),
        ('block:5@3', 'own order (block:5@3)', sample_order(16, 16, 'block', seed=3, parameter=5)),
        ('swaps:5@3', 'own order (swaps:5@3)', sample_order(16, 16, 'swaps', seed=3, parameter=5)),
        ('odd.json', 'own order (listed)', torch.tensor(ODD).expand(16, 16)),
    ],
)
def test_a_run_in_one_order_is_validated_scored_and_sampled_in_it(data, script, option, name, own):
    with open('odd.json', 'w') as f:
        json.dump(ODD, f)
    options = ['--l2r_ratio=0', '--max_iters=8', '--dtype=float32']
    run(f'--order={option}', *options)
    os.remove('odd.json')  # the checkpoint knows
    model = model_from_checkpoint('out/ckpt.pt')
    blocks, _ = all_blocks(Data(configure(vars(train), TOY)).parts[0].val, 16, 16)
    orders = {'left to right': sample_order(16, 16, 'l2r'), name: own}
    nats = {row: float(block_nll(model, blocks, orders[row], 16).sum()) / 256 for row in orders}

    entry = log()[-1]
    kinds = {'left to right': 'val_l2r', name: 'val_l2r' if option == 'l2r' else 'val_own'}
    assert {key for key in entry if key.startswith('val_')} == {*kinds.values()}
    for row, kind in kinds.items():
        assert entry[kind] == pytest.approx(nats[row], abs=1e-6)

    score = ['--ckpt=out/ckpt.pt', '--n_blocks=16', '--out=ppl.json']
    said = script('eval_ppl.py', *score).stdout
    assert name in said
    with open('ppl.json') as f:
        rows = {row['estimate']: row['nats_per_token'] for row in json.load(f)['results']}
    assert rows == pytest.approx(nats, abs=1e-6)
    assert list(rows) == list(nats)
    script('eval_ppl.py', *score, '--estimates=any,l2r')  # adds to the journal

    script('sample.py', '--ckpt=out/ckpt.pt', '--out=s.json')
    script('sample.py', '--ckpt=out/ckpt.pt', '--out=short.json', '--length=9')
    first = own[0].tolist()
    with open('s.json') as f:
        assert [sample['order'] for sample in json.load(f)['samples']] == [first, first]
    with open('short.json') as f:
        assert json.load(f)['samples'][0]['order'] == [p for p in first if p < 9]


def test_left_to_right_is_no_order_of_its_own(data, script):
    run('--order=l2r', '--l2r_ratio=0', '--max_iters=2')
    wrong = script('eval_ppl.py', '--ckpt=out/ckpt.pt', '--estimates=own', code=1).stderr
    assert 'take l2r' in wrong


def test_a_run_keeps_the_number_of_its_order(data, monkeypatch, capsys):
    """A family of this test has no option order_NAME."""

    def stride(u, n, step):
        return torch.arange(n).view(-1, step).T.reshape(1, n)

    family = Family(stride, parameter=4, n_numbers=lambda n, _: 0)
    monkeypatch.setitem(ORDERS, 'stride', family)
    run('--order=stride:8', '--l2r_ratio=0', '--max_iters=2')
    assert 'own order (stride:8)' in capsys.readouterr().out
    seen = orders_of_training(monkeypatch)
    resume('--max_iters=3')
    assert load_checkpoint('out/ckpt.pt')['config']['order'] == 'stride:8'
    assert seen
    for rows in seen:
        assert (rows == torch.arange(16).view(2, 8).T.flatten()).all()


def orders_of_training(monkeypatch):
    """Return a list that fills with the orders of every micro-batch."""
    seen = []
    forward = AOGPT.forward

    def record(self, idx, order, *args, **how):
        if self.training:
            seen.append(order)
        return forward(self, idx, order, *args, **how)

    monkeypatch.setattr(AOGPT, 'forward', record)
    return seen


def test_few_orders_of_one_are_left_to_right(data):
    run('--order=few:1', '--max_iters=5', '--out_dir=one')
    run('--order=l2r', '--l2r_ratio=0', '--max_iters=5')
    weights = [model_from_checkpoint(f'{name}/ckpt.pt').state_dict() for name in ('one', 'out')]
    assert equal(*weights)
    assert log('one')[-1]['val_own'] == log()[-1]['val_l2r']


# wandb


@pytest.fixture
def wandb(monkeypatch):
    """A wandb whose lists `begun` and `sent` have the options of runs, and the rows."""
    begun = []
    sent = []
    module = SimpleNamespace(
        Error=OSError,
        init=lambda **how: begun.append(how),
        finish=lambda: None,
        Table=lambda columns, rows: (columns, rows),
        log=lambda entry, step: sent.append(entry),
        begun=begun,
        sent=sent,
    )
    monkeypatch.setitem(sys.modules, 'wandb', module)
    return module


CHARTED = ['--wandb_log=True', '--init_from=auto']


def test_wandb_gets_the_log_and_samples_where_it_validates(data, wandb):
    run(*CHARTED, '--max_iters=5')
    environment = load_checkpoint('out/ckpt.pt')['environment']
    assert wandb.begun[0]['config']['environment'] == environment
    assert log()[0]['environment'] == environment
    assert ['samples' in row for row in wandb.sent] == [False, False, False, True, True]
    columns, rows = wandb.sent[3]['samples']
    assert columns == ['order', 'text']
    assert [order for order, _ in rows] == ['in random order', 'left to right']
    for row, entry in zip(wandb.sent, log(), strict=True):
        assert row.keys() - {'samples'} == entry.keys() - {'environment'}


# wrong input


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
        (['--order=l2'], "'l2' is no order; the nearest is"),
        (['--order=no.json'], 'no.json'),
        (['--order=short.json'], 'from 0 to 15, once; got 3'),
        (['--order=swaps:-1'], 'swaps:-1'),
        (['--order=block:0'], 'at least 1 position'),
        (['--order=few:0'], 'at least 1, got few:0'),
        (['--beta1=1.5'], 'beta1 must'),
        (['--network=encoder', '--l2r_ratio=0', '--order=fixed'], "order must be 'random'"),
        (['--network=full'], 'network must be words of decoder, encoder, mixed'),
        (['--device=cuda:99'], 'device'),
        (['--dtype=int8'], 'dtype'),
        (['--compile=maybe'], 'compile'),
        (['--optimizer=sgd'], 'optimizer'),
        (['--gradient_accumulation_steps=0'], 'gradient_accumulation_steps'),
        (['--ema_decay=1.0'], 'ema_decay'),
        (['--init_from=resume'], 'ckpt.pt'),
        (['--init_from=none.pt'], 'none.pt'),
        (['--init_from=scratc'], 'no checkpoint file scratc;'),
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
    assert said in e.value.code
    assert '\n' not in e.value.code
    assert not os.path.exists('out')


@pytest.mark.parametrize(
    'max_iters, warmup_iters, lr_decay_iters, fits',
    [(9, 8, 0, True), (9, 9, 0, False), (9, 4, 3, False), (9, 4, 20, True), (0, 9, 0, True)],
)
def test_a_warm_up_that_outlasts_the_rate_is_said(max_iters, warmup_iters, lr_decay_iters, fits):
    rate = Config(max_iters=max_iters, warmup_iters=warmup_iters, lr_decay_iters=lr_decay_iters)
    said = ''.join(about_warm_up(rate))
    assert ('warmup_iters' in said) is not fits
