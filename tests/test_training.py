"""A run: its updates by hand in float64, its options, what it leaves, how it stops and goes on."""

import asyncio
import contextlib
import functools
import glob
import itertools
import math
import os
import re
import resource
import shlex
import signal
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import REFERENCE, ROOT, close, make_model, one_line
from torch.utils import serialization
from toy_runs import TOY, TWO, assert_same_runs, interrupted, log, resume, run

import train
from anyorder.checkpoint import digest, load_checkpoint, model_from_checkpoint, save_checkpoint
from anyorder.extras.puzzles import solve
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.flops import training_flops
from anyorder.likelihood.measured import Corpus
from anyorder.likelihood.nll import blank_nll
from anyorder.machine.files import read_json
from anyorder.machine.processes import is_split, processes, start_processes, sum_over_processes
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import RANDOM, Order, draw_orders, sample_order
from anyorder.seeds import derive_seed
from anyorder.tokens import prepared
from anyorder.tokens.blocks import Batch, Blocks, uniform_below
from anyorder.tokens.meta import Meta, read_meta, write_meta
from anyorder.tokens.sets import Split
from anyorder.tokens.tokenizer import Bytes
from anyorder.training import run_folder, sharding
from anyorder.training import start as starts
from anyorder.training.best import Best, best_of
from anyorder.training.chart import start_chart
from anyorder.training.clock import Clock
from anyorder.training.muon import Muon
from anyorder.training.run_folder import RunFolder
from anyorder.training.update import draw_batch, get_lr, lr_of, make_optimizers, update
from anyorder.training.validation import Validation, nats_in_orders
from configurator import Config, configure
from model import AOGPT, EMA, AOGPTConfig

TOKENS = np.random.default_rng(0).integers(11, size=200).astype('<u2')
SETS = [Blocks(Split(TOKENS, Meta(n_tokens=11)), 9)]
BLOCKS = torch.from_numpy(TOKENS[:180].astype(np.int64)).view(20, 9)
FIVE = Corpus.of(SETS[0], 5, Bytes())
CPU = torch.device('cpu')
OPTIONS = Config(
    seed=5,
    batch_size=3,
    gradient_accumulation_steps=2,
    block_size=9,
    l2r_ratio=0.3,
    grad_clip=0.5,
    dtype='float32',
    max_iters=30,
    learning_rate=1e-2,
    muon_learning_rate=0.03,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.95,
    order='random',
    save_memory='',
    optimizer='adamw',
    ema_decay=0.9,
    dropout=0.0,
    compile=False,
)


def options(**more):
    return Config(OPTIONS | more)


def learner(**config):
    return make_model(**config).requires_grad_(True)


def start(model, device=CPU, **how):
    """Return the state of a new run by these options."""
    return starts.make_state(options(**how), {}, model, device, math.inf)


flat = torch.nn.utils.parameters_to_vector


# ---- learning rate and optimizers


def test_the_learning_rate_rises_linearly_and_falls_by_a_cosine():
    """To its end, or that of the run."""
    down = [0.55 + 0.45 * math.cos(math.pi * n / 10) for n in range(11)]
    for decay, n in ((0, 14), (14, 99)):
        rate = Config(
            learning_rate=1.0, min_lr=0.1, warmup_iters=4, lr_decay_iters=decay, max_iters=n
        )
        found = [lr_of(it, rate) for it in range(16)]
        assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, *down, 0.1], rel=1e-12)
    assert lr_of(5, Config(rate | {'lr_decay_iters': 4})) == get_lr(5, 1.0, 0.1, 4, 4) == 0.1


@pytest.mark.parametrize('rate, ratio', [(1e-2, 3), (0.0, 0.03)])
def test_muon_has_the_matrices_of_blocks_alone(rate, ratio):
    """Four of each; AdamW has eight other matrices, and vectors, which do not decay."""
    adamw, muon = make_optimizers(learner(), options(optimizer='muon', learning_rate=rate))
    groups = adamw.param_groups + muon.param_groups
    found = [(len(of['params']), of['weight_decay'], of['lr_ratio']) for of in groups]
    assert found == [(8, 0.1, 1), (21, 0, 1), (8, 0.1, ratio)]


@pytest.mark.parametrize('rows, of_one', [(48, 16), (64, 64), (8, 8)])
def test_muon_takes_queries_keys_and_values_for_three_matrices(rows, of_one):
    """The steps of PyTorch's own Muon, with a parameter for each matrix, bit for bit."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(rows, 16))
    alone = [torch.nn.Parameter(x.detach().clone()) for x in weight.split(of_one)]
    ours = Muon([weight], lr=0.03, weight_decay=0.1)
    theirs = torch.optim.Muon(alone, lr=0.03, weight_decay=0.1)
    for _ in range(3):
        weight.grad = torch.randn(rows, 16)
        for x, grad in zip(alone, weight.grad.split(of_one)):
            x.grad = grad.clone()
        ours.step()
        theirs.step()
        assert torch.equal(weight, torch.cat(alone))


# ---- an update


@pytest.mark.parametrize('clip', [0.5, 0.0])
def test_updates_by_hand(clip):
    """Gradients are clipped to a norm, 0 clips none, of two micro-batches in the order of the run;
    then come AdamW and the average. Vectors have three times the learning rate."""
    state = start(learner(), order='block:3@7')
    state.optimizers[0].param_groups[1]['lr_ratio'] = 3.0
    model = learner()
    params = [*model.parameters()]
    (adamw,) = make_optimizers(model, OPTIONS)
    average = EMA(model, 0.9)
    total = 0
    for it, lr in enumerate((1e-2, 2e-3, 5e-3)):
        adamw.zero_grad()
        for micro in range(2):
            torch.manual_seed(derive_seed(5, it, micro))
            starts = uniform_below(len(TOKENS) - 8, 3)
            idx = torch.from_numpy(TOKENS.astype(np.int64))[starts[:, None] + np.arange(9)]
            order = sample_order(3, 9, 'block', l2r_ratio=0.3, seed=7, parameter=3)
            loss = model(idx, order).mean() / 2
            loss.backward()
            total += loss.detach()
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        for group, ratio in zip(adamw.param_groups, (1, 3)):
            group['lr'] = lr * ratio
        adamw.step()
        average.update(model)
        update(state, SETS, lr, options(grad_clip=clip))
    close(flat(state.model.parameters()), flat(params))
    close(flat(state.ema.model.parameters()), flat(average.model.parameters()))
    close(state.totals[0], total)
    state.sum_seen()
    assert (state.ema.n_updates, state.iter_num, state.logged) == (3, 3, 0)
    assert state.n_seen == 3 * 2 * 3 * 9


UNEQUAL = {  # networks
    'causal': {},
    'bidirectional': {'attention': 'bidirectional'},
    'mixed': {'attention': 'mixed'},
}


@functools.cache
def batch_of(kind):
    """Return a batch of eight rows: some of their tokens are given, some padding."""
    row = torch.arange(8)
    given = torch.arange(9) < (row % 3)[:, None]
    order = draw_orders(row, 9)
    batch = Batch.of(BLOCKS[:8], order, given, 9 - row // 2)
    if UNEQUAL[kind]:
        return batch._replace(n_known=batch.n_given + batch.n_blanks // 2)
    return batch


def after_updates(kind, n_micros, n_updates=3):
    """Return the totals, tokens seen and weights after updates of eight rows, in micro-batches that
    the processes share."""
    rank, world_size = processes()
    micros = range(rank, n_micros, world_size)
    own = [batch_of(kind).rows(torch.arange(n, 8, n_micros)) for n in micros]
    drawn = itertools.cycle(own)
    state = start(learner(**UNEQUAL[kind]))
    config = options(gradient_accumulation_steps=n_micros)
    for _ in range(n_updates):
        update(state, SETS, 1e-2, config, lambda *_: next(drawn))
    state.sum_seen()
    mean = sum_over_processes(state.totals) / world_size  # as `averages` reads them
    return {'totals': mean, 'seen': torch.tensor(state.n_seen), **state.model.state_dict()}


@pytest.fixture(scope='module')
def whole():
    """What one process has after updates of each kind."""
    return {kind: after_updates(kind, 1) for kind in UNEQUAL}


@pytest.mark.parametrize('most', [16, 1])
def test_an_update_in_one_launch_reads_copies_of_what_is_drawn(monkeypatch, most):
    """Of several shapes, of which some may be too many to be recorded."""
    monkeypatch.setattr('anyorder.training.update.MOST_SHAPES', most)
    batches = [batch_of('causal').rows(slice(*ends)) for ends in ((0, 8), (0, 4), (4, 8), (1, 8))]
    before = [batch.idx.clone() for batch in batches]
    how = options(gradient_accumulation_steps=1)
    found = []
    for graphs in (None, SimpleNamespace(run=lambda _, work: work())):
        state = start(learner())
        state.graphs = graphs
        for n, batch in enumerate(batches, 1):
            update(state, SETS, 1e-2 / n, how, lambda *_, batch=batch: batch)
        found.append(flat(state.model.parameters()))
    close(*found, 1e-6)
    assert len(state.places) == min(most, 3)
    close([batch.idx for batch in batches], before)


@pytest.mark.parametrize('kind', UNEQUAL)
def test_an_update_is_the_mean_over_all_its_blanks_however_they_are_divided(kind, whole):
    """Padding is no token that was seen."""
    batch = batch_of(kind)
    assert whole[kind]['seen'] == 3 * batch.n_visits.sum()
    mean = blank_nll(make_model(**UNEQUAL[kind]), batch).sum() / batch.n_blanks.sum()
    close(after_updates(kind, 1, 1)['totals'][0], mean)
    for n_micros in (2, 8):
        close(after_updates(kind, n_micros), whole[kind])


def test_two_processes_are_one(forked, whole):
    """Updates, and validations of five blocks, also of documents apart: three and two of them, in
    batches of two. A split model has as many passes everywhere."""
    config = options(batch_size=2, l2r_ratio=0.0)
    encoder = make_model(attention='bidirectional')
    apart = Blocks(Split(TOKENS, Meta(eos=10, n_tokens=11)), 9, 'apart')
    texts = FIVE, Corpus.of(apart, 5, Bytes())
    found = [nats_in_orders(encoder, text, {'any': RANDOM}, config) for text in texts]

    def both():
        start_processes()
        for kind in UNEQUAL:
            close(after_updates(kind, 4), whole[kind])
        state = start(learner(attention='bidirectional'), optimizer='muon', save_memory='shard')
        assert is_split(state.model.lm_head.weight)
        for model in (encoder, state.ema.model):
            for text, val in zip(texts, found):
                close(nats_in_orders(model, text, {'any': RANDOM}, config), val)

    forked(both, both)


def test_updates_and_validation_are_in_the_dtype_of_the_run():
    """Validation is of each block in its order."""
    found = []
    for dtype in ('float32', 'bfloat16'):
        state = start(learner().float())
        update(state, SETS, 1e-9, options(dtype=dtype))
        val = nats_in_orders(state.model, FIVE, {'own': Order('r2l')}, options(dtype=dtype))
        found.append(torch.stack([state.totals[0], val['own'].mean() / 9]))
    torch.testing.assert_close(*found, rtol=0.05, atol=0)
    assert (found[0] != found[1]).all()
    nll = state.model(FIVE.blocks, sample_order(5, 9, 'r2l'))
    assert found[0][1].item() == pytest.approx(nll.mean().item(), rel=1e-5)


def test_averages_run_since_the_last_line_and_are_finite():
    state = start(make_model())
    state.iter_num = 14
    state.logged = 10
    state.totals[:] = torch.tensor([8.0, 2.0, 4.0, 0.0])
    assert state.averages('stop') == (2.0, 0.5)
    with torch.no_grad():
        state.model.lm_head.weight[0, 0] = math.inf
    with one_line('weight norm inf.* since iteration 14.* and stop'):
        state.averages('stop')
    state.totals[::2] = torch.tensor([math.nan, 1.0])
    with one_line('loss nan, gradient norm 0.5.* since iteration 12'):
        state.averages('stop')
    state.begin_averages()
    assert (state.logged, state.totals.any()) == (14, False)


# ---- batches, and validation


def test_the_loss_may_be_another_and_numbers_of_known_visits_are_uniform():
    states = [start(learner()) for _ in range(2)]
    update(states[0], SETS, 1e-2, OPTIONS)
    update(states[1], SETS, 1e-2, OPTIONS, loss=lambda *batch: 2 * blank_nll(*batch))
    close(states[1].totals[0], 2 * states[0].totals[0])
    masked = start(make_model(attention='mixed'))
    known = [draw_batch(masked, SETS, OPTIONS).n_known for _ in range(40)]
    assert {*torch.cat(known).tolist()} == {*range(9)}


# ---- memory, and speed


def test_recomputed_blocks_keep_little():
    kept = []
    for change in (id, sharding.recompute):
        model = learner(n_layer=6).train()
        change(model)
        tensors = []
        with torch.autograd.graph.saved_tensors_hooks(tensors.append, lambda x: x):
            model(BLOCKS, draw_orders(range(20), 9))
        kept.append(sum(x.numel() for x in tensors))
    assert kept[1] < kept[0] / 4


@pytest.mark.parametrize('places', ['02 12 02 12', '02 02 12 12', '0 1 0 1'])
def test_nodes_must_be_of_one_size(monkeypatch, places):
    """Those of the second are numbered across the nodes; of the third nobody says how many."""
    said = [[place[:1], place[1:]] for place in places.split()]
    monkeypatch.setattr(sharding, 'n_processes', lambda: 4)
    monkeypatch.setattr(sharding, 'gather', lambda own: said)
    with nullcontext() if places == '02 12 02 12' else one_line('save_memory=hybrid'):
        assert sharding.node_size() == 2


def test_four_updates_take_six_seconds(monkeypatch):
    """Each of two times 3 blocks of 9 tokens, of which half are padding here, on a device of 1e6
    FLOP/s. Of the last of three layers of two streams the content has keys alone, which c_attn
    gives; half of all pairs of slots see each other."""
    now = iter([100.0, 106.0])
    monkeypatch.setattr('time.perf_counter', lambda: next(now))
    clock = Clock(make_model(target_position='two_stream', n_layer=3), OPTIONS, 1e6, 9)
    clock.start(SimpleNamespace(iter_num=10, n_seen=1000))
    square = 16 * 16
    matrices = 3 * 12 * square + 11 * 16 + (2 * 12 + 3) * square
    pairs = 5 * 9 * 16 / 2
    mfu = 6 * 3 * 9 * (matrices + 2 * pairs) * 4 / 6 / 1e6
    wanted = {'tokens_per_sec': 18.0, 'mfu': mfu, 'seconds_left': 16 * 1.5}
    found = clock.read(SimpleNamespace(iter_num=14, n_seen=1108))
    assert found == pytest.approx(wanted, abs=1e-4)


# ---- options


PAPERS = {  # millions of weights, the learning rate
    'ao_gpt_small': (170.6, 6e-4),
    'ao_gpt_medium': (425.8, 3e-4),
    'sigma_gpt_small': (125.26, 6e-4),  # GPT-2's are 124.44, and wtpe 0.79 more
}
DEFAULTS = {
    'min_lr': 6e-5,
    'warmup_iters': 2000,
    'weight_decay': 0.05,
    'beta2': 0.95,
    'block_size': 1024,
    'optimizer': 'adamw',
    'l2r_ratio': 0.1,
}


def typed(*words):
    return configure(vars(train), [*map(str, words)])


@pytest.mark.parametrize('path', sorted(glob.glob(f'{ROOT}/config/*.py')), ids=os.path.basename)
def test_every_config_is_a_run_and_those_of_the_papers_have_their_sizes(path):
    """What these do not say are the defaults of train.py."""
    name = os.path.basename(path)[:-3]
    config = typed(path)
    starts.check_options(config, 1)
    Validation(Config(config | {'shape': (2, 8)})).check(config)
    if name not in PAPERS:
        return
    millions, rate = PAPERS[name]
    with torch.device('meta'):
        model = AOGPT(starts.model_config(config))
    assert model.n_parameters() / 1e6 == pytest.approx(millions, abs=0.15)
    assert config.batch_size * config.gradient_accumulation_steps * config.block_size == 524288
    assert {name: config[name] for name in DEFAULTS} == DEFAULTS
    assert config.learning_rate == rate


SAVED = {
    'optimizer': 'muon',
    'muon_learning_rate': 0.04,
    'order': 'few:8@3',
    'documents': 'together',
}
MODEL = make_model(n_layer=1, vocab_size=320, n_tokens=257)
AVERAGE = EMA(MODEL, 0.9)
# a checkpoint that a run may go on from
RESUMED = dict(totals=0, tokenizer='bytes', config=SAVED, best={}, iter_num=7)

# what a checkpoint was saved with, what is typed now, and what the run has and says is changed
ADAMW = {'optimizer': 'adamw'}
OVERRIDES = [
    (ADAMW, '', {'order': 'random', 'optimizer': 'adamw', 'n_layer': 1, 'block_size': 9}, []),
    (ADAMW, '--order=block', {'muon_learning_rate': 0.02, 'order': 'block:4'}, []),
    (SAVED, '--optimizer=muon --order=few:8 --network=n_cond=8,adaln', SAVED, []),
    (SAVED, '--muon_learning_rate=1', {'optimizer': 'muon'}, ['muon_learning_rate 0.04 -> 1.0']),
    (SAVED, '--order=few:8@0', {'order': 'few:8'}, ['order few:8@3 -> few:8']),
    (SAVED | {'keep_best': 'val_any'}, '--keep_best=', {}, ["keep_best val_any -> ''"]),
    (SAVED, 'c.py --seed=3', SAVED | {'batch_size': 5, 'n_layer': 1, 'seed': 3}, []),
]


@pytest.mark.parametrize('saved, words, now, changed', OVERRIDES)
def test_a_resumed_run_has_the_options_of_its_checkpoint_and_those_given(
    capsys, saved, words, now, changed
):
    """Of a config file a checkpoint overrules optimizer and shape, and says so; other weights
    overrule the shape alone."""
    Path('c.py').write_text("optimizer = 'adamw'\nn_layer = 12\nn_head = 2\nbatch_size = 5\n")
    save_checkpoint('ckpt.pt', MODEL, AVERAGE, **RESUMED | {'config': saved})
    typed_here = words.split()
    resumed = typed('--init_from=resume', '--out_dir=.', *typed_here)
    config, checkpoint = starts.open_start(resumed)
    assert {name: config[name] for name in now} == now
    data = SimpleNamespace(kind=Meta(), train=[])
    assert starts.changes(checkpoint.entries, data, config) == changed
    is_overruled = 'n_layer 12 -> 1, optimizer adamw -> muon\n' in capsys.readouterr().out
    assert is_overruled == ('c.py' in words)
    config, _ = starts.open_start(typed('--init_from=ckpt.pt', *typed_here))
    assert (config.n_layer, config.block_size, config.init_from) == (1, 9, 'ckpt.pt')
    for name in ('n_layer=2', 'n_layer=12', 'network=rotary'):
        with one_line(f'fixes {name.replace("=", " ")} -> '):
            starts.open_start(typed(*typed_here, '--init_from=ckpt.pt', f'--{name}'))


# options: a word of the message
BAD = {
    '--learning_rate=1e-6': 'min_lr',
    '--learning_rate=0': 'give --min_lr, too',
    '--n_embd=15': 'n_head',
    '--block_size=100000': 'block_size=100000 does not fit',
    '--block_size=0': 'block_size',
    '--dataset=books': 'prepare.py',
    '--dataset=pydocs:0.7,digits:0.3': 'digits',
    '--dataset=a,a': 'a,a',
    '--documents=alone': 'documents',
    '--batch_size=0': 'batch_size',
    '--out_dir=': 'out_dir',
    '--l2r_ratio=1.5': 'l2r_ratio',
    '--l2r_ratio=-0.1': 'l2r_ratio',
    '--order=l2': 'nearest',
    '--order=short.json': 'from 0 to 15',
    '--order=rows': 'shape',
    '--order=few:99999': 'at most 10,000',
    '--beta1=1.5': 'beta1',
    '--beta2=1': 'beta2',
    '--ema_decay=1.0': 'ema_decay',
    '--network=encoder': 'l2r_ratio must be 0',
    '--network=encoder --l2r_ratio=0 --order=fixed': "'random'",
    '--network=full': 'decoder',
    '--device=cuda:99': 'device',
    '--dtype=int8': 'dtype',
    '--compile=maybe': 'compile',
    '--optimizer=sgd': 'optimizer',
    '--muon_learning_rate=-1': 'muon_learning_rate',
    '--gradient_accumulation_steps=0': 'gradient_accumulation_steps',
    '--init_from=resume': 'ckpt.pt',
    '--init_from=none.pt': 'none.pt',
    '--init_from=scratc': 'scratc',
    '--init_from=auto:none.pt': 'none.pt',
    '--init_from=hf:a/b/c.pt': 'hf:a/b/c.pt',
    '--init_from=masked:bert': 'of ours',
    f'--init_from={REFERENCE}/adaln_small.ckpt.pt': 'the checkpoint fixes',
    '--max_iter=3': 'max_iters',
    '--save_memory=shard,hybrid': 'save_memory',
    '--save_memory=recompute,shrd': 'save_memory',
    '--keep_best=val_ani': "val_any, val_l2r, '', got",
    '--keep_best=val_l2r --network=encoder --l2r_ratio=0': 'val_any',
    '--keep_best=val_any --order=r2l': 'val_own, val_l2r',
    '--patience=-1': 'patience',
    '--wandb_log=True': 'wandb',
}


@pytest.mark.parametrize('args', BAD)
def test_wrong_input_is_one_line_and_writes_nothing(data, monkeypatch, args):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    Path('short.json').write_text('[2, 0, 1]')
    with pytest.raises(SystemExit) as e, one_line_errors():
        run(*args.split())
    assert BAD[args] in e.value.code
    assert '\n' not in e.value.code
    assert not os.path.exists('out')


@pytest.mark.parametrize('split', ['train', 'val'])
def test_a_token_that_nobody_reads_is_told_before_a_run(data, split):
    tokens = np.fromfile(f'data/pydocs/{split}.bin', '<u2')
    tokens[-1] = 9999
    tokens.tofile(f'data/pydocs/{split}.bin')
    with one_line(f'pydocs/{split}.bin is damaged'):
        run('--max_iters=0', '--eval_iters=1')
    assert not os.path.exists('out')


def test_processes_differ_or_cannot_share_in_one_line(data, forked):
    """Folders may differ."""
    tiny('--max_iters=1', '--out_dir=b')
    os.rename('data', 'a')
    prepare('pydocs', 'other text')
    names = [r"the data {'pydocs': \('[0-9a-f]{64}',", 'the weights', 'init_from', 'seed']
    names = ' .* -> .*, '.join(names)
    for p in forked(
        lambda: tiny(*TWO, '--out_dir=a', '--data_dir=a'),
        lambda: tiny(*TWO, '--out_dir=b', '--init_from=resume', '--seed=1'),
        code=1,
    ):
        assert re.search(f'ValueError: the processes differ in {names}', p.said)
    config = typed('--gradient_accumulation_steps=6')
    starts.check_options(config, 3)
    with one_line('gradient_accumulation_steps=6 .* 4 processes'):
        starts.check_options(config, 4)


# ---- what a run leaves and says


def tiny(*args):
    run('--n_layer=1', '--block_size=8', *args)


def saved(path='out/ckpt.pt'):
    return load_checkpoint(path)['iter_num']


def test_a_run_leaves_a_log_and_a_checkpoint_and_says_what_came_out(data, capsys, monkeypatch):
    """Iterations 4, 8 and 10 are validated. A network so narrow has one thread, unless the
    environment says how many."""
    monkeypatch.setattr(torch, 'set_num_threads', Mock())
    starts.set_up_device(typed(*TOY))
    monkeypatch.delenv('OMP_NUM_THREADS')
    tiny('--max_iters=10', '--out_dir=all')
    torch.set_num_threads.assert_called_once_with(1)
    every = log('all')
    assert [entry['iter'] for entry in every if 'val_any' in entry] == [4, 8, 10]
    assert [entry['lr'] for entry in every] == [get_lr(it, 1e-2, 1e-3, 2, 10) for it in range(10)]
    assert [entry['tokens'] for entry in every] == [*range(64, 641, 64)]
    said = capsys.readouterr().out
    words = ['bound', 'unigram', 'written in random order', 'written left to right']
    words += ['python sample.py --ckpt=all/ckpt.pt', 'python eval_ppl.py --ckpt=all/ckpt.pt']
    assert [word for word in words if word not in said] == []
    assert sorted(os.listdir('all')) == ['.run.lock', 'ckpt.pt', 'ckpt_old.pt', 'log.jsonl']
    checkpoint = load_checkpoint('all/ckpt.pt')
    assert (checkpoint['iter_num'], saved('all/ckpt_old.pt')) == (10, 8)
    assert checkpoint['tokenizer'] == 'bytes'
    config = checkpoint['config']
    assert (config['device'], config['compile'], config['source']) == ('cpu', False, 'pydocs')
    wanted = AOGPTConfig(8, 320, 1, 2, 16, n_tokens=257, gate_init=1.0)
    assert model_from_checkpoint(checkpoint).config == wanted

    tiny('--max_iters=10', '--log_interval=100', '--ema_decay=0.5')
    mean = sum(entry['loss'] for entry in every[:4]) / 4
    assert log()[0]['loss'] == pytest.approx(mean, rel=1e-12)


def test_a_run_on_puzzles_says_how_each_set_is_solved(data, capsys):
    """A set without a split `test` by its validation. There is no sample."""
    for name in ('easy', 'hard'):
        prepare_puzzles('sudoku4', 'data', name, n_rows={'train': 20, 'val': 20, 'test': 5})
    meta = read_meta('data/easy')
    del meta.splits['test']
    write_meta('data/easy', meta)
    tiny('--block_size=16', '--dataset=easy:1,hard:3', '--max_iters=2', '--l2r_ratio=0')
    said = capsys.readouterr().out
    begin = '  python -m anyorder.extras.puzzles solve '
    words = ['--dataset=easy --ckpt=out/ckpt.pt --split=val', '--dataset=hard --ckpt=out/ckpt.pt']
    assert said.splitlines()[-3:-1] == [begin + word for word in words]
    assert 'written' not in said
    for word, n in zip(words, (20, 5)):
        solve.main(configure(vars(solve), [*word.split(), '--orders=l2r', '--out=o.json']))
        (row,) = read_json('o.json')['results']
        assert row['puzzles'] == n and row['right'] > 0.1


def test_what_is_said_of_documents_with_prompts_is_of_those_that_are_trained_on(data, capsys):
    """Of 13 1/3 tokens a row without what is cut and padding. Validation's are shorter."""
    for name, n_letters in (('train', (7, 15, 63)), ('val', (1, 2))):
        rows = ['{"prompt": "", "text": "%s"}' % ('x' * n) for n in n_letters]
        Path(f'{name}.jsonl').write_text('\n'.join(rows))
        for dataset in ('a', 'b'):
            prepared.prepare('text', 'data', dataset, f'{name}.jsonl', name, tokenizer='bytes')
    how = ['--gradient_accumulation_steps=2', '--max_iters=1']
    tiny('--dataset=a:1,b:3', '--block_size=16', *how)
    found = re.findall(r'(\d) of 3 .* cut at 16; .* ([\d.]+) times', capsys.readouterr().out)
    assert found == [('1', '0.606'), ('1', '1.82')]  # 16 rows, a quarter of them of a, of 88 tokens


def killed():
    raise RuntimeError


def asked(*numbers):
    """Return what asks a run to end, by these signals."""

    def ask():
        for number in numbers:
            os.kill(os.getpid(), number)

    return ask


LAWS = [  # the options of a run, before which updates what happens to it
    ('--optimizer=adamw --network=layer,rotary --order=few:3', [(0, asked(signal.SIGINT))]),
    (
        '--optimizer=muon --network=sigma_gpt --order=even.json --l2r_ratio=0.5 --log_interval=3',
        [(1, asked(signal.SIGUSR1, signal.SIGUSR1))],
    ),
    (
        '--network=encoder,rotary --l2r_ratio=0 --dataset=pydocs:0.7,digits:0.3 --documents=apart',
        [(2, asked(signal.SIGTERM, signal.SIGUSR1))],
    ),
    (
        '--network=two_stream --order=sorted_subset --gradient_accumulation_steps=2 '
        '--keep_best=val_own --patience=9 --eval_interval=2',
        [(1, killed), (3, killed), (5, asked(signal.SIGUSR1)), (6, killed)],
    ),
    ('--network=mixed --l2r_ratio=0 --save_memory=recompute', [(4, asked(signal.SIGTERM))]),
]


@pytest.mark.parametrize('options, stops', LAWS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    data, monkeypatch, capsys, options, stops
):
    """The same command each time. The average loss of a log line too, amid which it stops; and
    blocks that are recomputed."""
    prepare('digits', '3.1415926535 8979323846 ')
    Path('even.json').write_text('[0, 2, 4, 6, 1, 3, 5, 7]')
    command = ['--init_from=auto', '--max_iters=7', '--dropout=0.1', '--eval_interval=100']
    command += options.split()
    tiny(*command, '--out_dir=whole', '--save_memory=')
    for iteration, act in stops:
        with monkeypatch.context() as patch, pytest.raises((SystemExit, RuntimeError)) as e:
            patch.setattr(train, 'update', interrupted(iteration, act))
            tiny(*command)
        if act is not killed:
            assert (e.value.code, saved()) == (1, iteration + 1)
    os.remove('even.json')  # the checkpoint knows
    capsys.readouterr()
    resume()
    assert 'changed since' not in capsys.readouterr().out
    assert_same_runs('whole', 'out')


def test_a_run_in_an_order_of_the_users_goes_on_by_the_command_that_it_says(
    data, monkeypatch, capsys
):
    """As does what samples from it."""
    os.mkdir('my orders')
    Path('my orders/own.py').write_text('def up(u, n, _):\n    return u.argsort(-1)\n')
    own = 'my orders/own.py:up'
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(train, 'update', interrupted(1, asked(signal.SIGTERM)))
        tiny(f'--order={own}:2', f'--val_orders=l2r,{own}', '--max_iters=4')
    said = capsys.readouterr()
    *_, way_on = said.err.splitlines()
    _, program, *words = shlex.split(way_on.partition('with: ')[2])
    train.main(typed(*words))
    assert (os.path.basename(program), saved()) == ('train.py', 4)
    assert f"sample.py --ckpt=out/ckpt.pt --order='{own}:2'\n" in capsys.readouterr().out


def prepare(name, text):
    """Prepare a set anew from a text."""
    prepared.DATA_SETS[name] = prepared.DataSet(lambda: [text * 30] * 20, 'bytes', 0.1, '')
    prepared.prepare(name, 'data', force=True)


def test_the_history_of_a_folder(data, capsys):
    """A run is moved aside, resumed with other options and data, finished, and kept from what
    fails."""

    def said(*args):
        tiny(*args)
        return capsys.readouterr().out

    for n in (0, 3, 1):
        found = said(f'--max_iters={n}')
        assert ('finished' in found, 'warmup_iters=2 is not below' in found) == (False, n == 1)
    assert (saved('out/ckpt.pt.old-1'), saved('out/ckpt.pt.old-2')) == (0, 3)
    found = said('--max_iters=2', '--init_from=resume', '--batch_size=16', '--dropout=0.2')
    change = 'changed since iteration 1: dropout 0.0 -> 0.2, batch_size 8 -> 16, max_iters 1 -> 2\n'
    assert change in found
    prepare('pydocs', 'Other text, other text. ')
    found = said('--max_iters=3', '--init_from=resume', '--beta1=0.5', '--weight_decay=0.3')
    assert found.splitlines()[3].endswith('beta1 0.9 -> 0.5, train and val of pydocs')
    checkpoint = load_checkpoint('out/ckpt.pt')
    small, large = (training_flops(model_from_checkpoint(checkpoint), n, 8) for n in (8, 16))
    assert [entry['flops'] for entry in log()] == [small, small + large, 2 * small + large]
    matrices, _ = checkpoint['optimizer'][0]['param_groups']
    assert (matrices['betas'][0], matrices['weight_decay']) == (0.5, 0.3)
    assert checkpoint['model_args']['dropout'] == 0.2
    tokens = np.fromfile('data/pydocs/train.bin', np.uint16)
    assert checkpoint['counts'].tolist() == np.bincount(tokens, minlength=257).tolist()

    file = os.stat('out/ckpt.pt').st_mtime_ns
    found = said('--max_iters=3', '--init_from=auto')
    assert 'finished: the checkpoint is at iteration 3 of 3' in found
    for interval in (1, 4):
        options = ['--learning_rate=1e30', '--grad_clip=0.0', f'--eval_interval={interval}']
        with one_line('not finite since iteration [4-7].* from iteration 3'):
            tiny('--max_iters=9', '--init_from=resume', *options)
    assert os.stat('out/ckpt.pt').st_mtime_ns == file


def test_a_program_with_its_own_update_goes_on_with_itself(data, monkeypatch, capsys):
    """A resume by train.py says that this is another one."""
    own = SimpleNamespace(__file__='/own.py', __spec__=None)
    monkeypatch.setitem(sys.modules, '__main__', own)
    train.train(typed(*TOY, '--max_iters=1'), lambda *args: update(*args))
    assert load_checkpoint('out/ckpt.pt')['config']['program'] == own.__file__
    resume()
    said = capsys.readouterr().out
    assert f'changed since iteration 1: program {own.__file__} -> train.py\n' in said


def test_the_average_of_another_run_starts_a_run_that_knows_it(data):
    """A run that is given again needs the file no more."""
    tiny('--max_iters=3', '--out_dir=first')
    average = digest(model_from_checkpoint('first/ckpt.pt', 'ema'))
    tiny('--init_from=auto:first/ckpt.pt', '--max_iters=0')
    assert digest(model_from_checkpoint('out/ckpt.pt', 'raw')) == average
    os.remove('first/ckpt.pt')
    tiny('--init_from=auto:first/ckpt.pt', '--max_iters=2')
    config = load_checkpoint('out/ckpt.pt')['config']
    assert (config['started_from'], config['init_from']) == ([{'name': 'ckpt.pt'}], 'resume')
    assert log()[0]['environment']['started_from'] == config['started_from']


# ---- the best of a run, and its end without a better one


def test_the_history_of_the_best(data, monkeypatch, capsys):
    """The first of equals, as updates here change nothing. A run ends without a better one, says so
    again, and goes on."""
    one = torch.tensor(1.0)
    monkeypatch.setattr(train, 'update', lambda state, *_: state.count(one, one, []))
    how = ['--eval_interval=1', '--keep_best=val_any', '--max_iters=9']
    tiny(*how, '--patience=2')
    for entry in log():
        assert (entry['best'], entry['best_iter']) == (entry['val_any'], 1)
    said = capsys.readouterr().out
    assert 'at iteration 1, in out/ckpt_best.pt' in said
    before = os.stat('out/ckpt.pt').st_mtime_ns
    resume('--max_iters=20')
    assert os.stat('out/ckpt.pt').st_mtime_ns == before
    said += capsys.readouterr().out
    assert said.count('finished: 2 validations in a row were not below val_any') == 2
    resume('--patience=4', '--max_iters=9')
    tiny(*how, '--patience=4', '--out_dir=whole')
    assert (saved(), saved('out/ckpt_best.pt')) == (5, 1)
    for name in ('whole', 'out'):
        os.remove(f'{name}/ckpt_best.pt')
    assert_same_runs('whole', 'out')
    capsys.readouterr()
    resume()
    assert 'ckpt_best.pt' not in capsys.readouterr().out


MEASURED = {  # what a resume measures, and the iteration of the best that it knows
    '--patience=9': 1,
    '--val_orders=l2r,random,r2l --learning_rate=9': 1,
    '--keep_best=val_l2r --patience=9': None,
    '--keep_best= --patience=9': 1,
    '--eval_iters=1': None,
    '--documents=apart': None,
    '--dataset=pydocs:1,other:2': None,
    '--order=block --keep_best=val_own': None,
}


def best(config, before):
    splits = {'pydocs': {'val': {'sha256': 'a'}}}
    config = Config(config | starts.written_out(config, {}))
    return best_of(config, Validation(config), splits, before)


def test_the_best_begins_anew_where_a_resume_measures_another_thing():
    """Patience alone keeps no checkpoint."""
    kept = best(typed('--keep_best=val_any'), {})
    kept.compare(1, {'val_any': 2.0})
    before = {'best': asdict(kept)}
    for words, found in MEASURED.items():
        config = typed('--keep_best=val_any', *words.split())
        assert best(config, before).iter_num == found
    unkept = {'best': before['best'] | {'keeps': False}}
    assert best(typed('--keep_best=val_any'), unkept).iter_num is None
    alone = best(typed('--patience=2'), {})
    assert (alone.loss, alone.keeps) == ('val_any', False)
    with one_line('val_any, val_a_any, val_c_any, val_l2r'):
        config = typed('--keep_best=val_b_any', '--dataset=a,c')
        Validation(config).check(config)


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_a_validation_that_is_not_finite_is_neither_logged_nor_saved(value):
    run = folder(1)
    with one_line('val_any is (nan|inf) at iteration 2: not finite.*go on from iteration 1'):
        run.compare(2, {'val_any': value})


# ---- the files of a run


HERE = Config(out_dir='out', program='train.py')


def folder(*iterations, best=None, **how):
    """The folder `out` of a new run, which logs and saves at these iterations, or with `saved` of a
    resumed one."""
    found = RunFolder(HERE, {'environment': {}}, best or Best(), {}, **how)
    for it in iterations:
        found.log({'iter': it})
        save(found, it)
    return found


def save(folder, it):
    entries = RESUMED | {'iter_num': it}
    state = SimpleNamespace(model=MODEL, ema=AVERAGE, iter_num=it, entries=lambda: entries)
    folder.save(state)


def files():
    return sorted(set(os.listdir('out')) - {'.run.lock'})


@pytest.mark.parametrize('damage', ['cut', 'flip'])
def test_a_damaged_checkpoint_is_not_gone_on_with_and_the_one_before_it_is_named(damage):
    """Cut off, or with another bit amid a tensor."""
    folder(2, 4)
    whole = Path('out/ckpt.pt').read_bytes()
    at = whole.index(MODEL.lm_head.weight.numpy().tobytes()) + 99
    new = {'cut': whole[:at], 'flip': whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]}
    Path('out/ckpt.pt').write_bytes(new[damage])
    with one_line('out/ckpt_old.pt is the one before'):
        starts.open_start(typed('--init_from=resume'))
    os.rename('out/ckpt_old.pt', 'out/ckpt.pt')
    _, checkpoint = starts.open_start(typed('--init_from=resume'))
    assert checkpoint.iter_num == 2


def test_a_checkpoint_whose_sums_were_switched_off_is_read():
    with serialization.config.patch('save.compute_crc32', False):
        save_checkpoint('ckpt.pt', MODEL)
    assert torch.equal(load_checkpoint('ckpt.pt')['model']['lm_head.weight'], MODEL.lm_head.weight)


def test_what_is_no_run_is_not_gone_on_with():
    save_checkpoint('ckpt.pt', MODEL, AVERAGE, iter_num=7, tokenizer='bytes')
    with one_line('no run .* --init_from=./ckpt.pt'):
        starts.open_start(typed('--init_from=resume', '--out_dir=.'))


def test_a_folder_is_locked_before_it_is_read(forked, monkeypatch):
    """But by a plan, which writes nothing. Its first save replaces a link."""
    os.mkdir('out')
    os.symlink('../its.pt', 'out/ckpt.pt')
    run = folder(2)
    with monkeypatch.context() as patch:
        patch.setattr(starts, 'Checkpoint', None)
        (other,) = forked(resume, code=1)
    assert 'out/run is in use by another process' in other.said
    _, checkpoint = starts.open_start(typed('--init_from=auto', '--plan=H100'))
    assert checkpoint.iter_num == run.saved == 2


def test_the_first_process_alone_writes(monkeypatch):
    """The way on is a command for a shell."""
    monkeypatch.setenv('WORLD_SIZE', '2')
    monkeypatch.setenv('RANK', '1')
    config = Config(out_dir='my runs', program='own.py')
    other = RunFolder(config, {'environment': {}}, Best(), {})
    assert other.way_on() == 'start again, nothing was saved yet'
    save(other, 3)
    assert not os.path.exists('my runs')
    command = f'torchrun ... {os.path.relpath(ROOT)}/own.py --init_from=resume --out_dir='
    assert other.way_on() == f"go on from iteration 3 with: {command}'my runs'"


@pytest.mark.parametrize(
    'error, why', [(None, "OSError.*File too large'."), (KeyboardInterrupt, 'KeyboardInterrupt..')]
)
def test_a_save_that_fails_leaves_both_checkpoints(forked, monkeypatch, error, why):
    """The kernel refuses what is longer, as it would on a full disk."""
    run = folder(2, 4)
    size = os.path.getsize('out/ckpt.pt') // 2

    def fails():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        if error:
            monkeypatch.setattr(torch, 'save', Mock(side_effect=error))
        save(run, 8)

    (finished,) = forked(fails, code=1)
    line = rf'of iteration 8 could not be written \({why}\): go on from iteration 4 with'
    assert re.search(line, finished.said.splitlines()[-1])
    assert (saved(), saved('out/ckpt_old.pt')) == (4, 4)
    assert files() == ['ckpt.pt', 'ckpt_old.pt', 'log.jsonl']


class KilledError(BaseException):
    """No code but a test's catches it."""


def no_links(*_):
    raise OSError('not permitted')


@pytest.mark.parametrize('k', range(11))
@pytest.mark.parametrize('link', [os.link, no_links])
def test_a_kill_between_two_files_changes_neither(monkeypatch, k, link):
    """Before call k of those that write. Who goes on tidies up, cuts the log, and leaves what an
    undisturbed run does: the newest, the one before and the best."""
    monkeypatch.setattr(os, 'link', link)
    calls = itertools.count()

    def dying(act):
        def call(*args, **how):
            if next(calls) == k:
                raise KilledError
            act(*args, **how)

        return call

    def go_on(saved, best):
        run = folder(saved=saved, best=best)
        for it in range((saved or 0) + 1, 6):
            run.log({'iter': it} | run.compare(it, {'val_any': abs(it - 2)}))
            save(run, it)
        save(run, 5)  # the same iteration again, as after a stop

    with monkeypatch.context() as patch, contextlib.suppress(KilledError):
        for name in ('name_too', 'save_checkpoint'):
            patch.setattr(run_folder, name, dying(getattr(run_folder, name)))
        go_on(None, Best('val_any', keeps=True))
    if not os.path.exists('out/ckpt.pt'):
        return
    for name in ('ckpt.pt', 'log.jsonl'):
        Path(f'out/{name}.12.tmp').touch()
    with open('out/log.jsonl', 'a') as f:
        f.write('{"iter": 5}\n{"note": 1}\n{"iter": null}\n3\n{"iter": 3, "lo')
    kept = load_checkpoint('out/ckpt.pt')
    go_on(kept['iter_num'], Best(**kept['best']))
    names = ['ckpt.pt', 'ckpt_best.pt', 'ckpt_old.pt']
    assert [saved(f'out/{name}') for name in names] == [5, 2, 4]
    assert files() == [*names, 'log.jsonl']
    assert [entry['iter'] for entry in log()] == [1, 2, 3, 4, 5]


# ---- wandb


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', Mock())
    return sys.modules['wandb']


def test_a_chart_shows_the_log_and_a_resume_goes_on_in_it(data, wandb, monkeypatch):
    def charted(n, init_from='auto'):
        options = [f'--max_iters={n}', f'--init_from={init_from}']
        tiny('--wandb_log=True', '--eval_interval=2', *options)
        return wandb.init.call_args.kwargs

    own = charted(2)
    assert (own['project'], own['name'], 'environment' in own['config']) == ('ao-gpt', 'out', True)
    assert charted(4)['id'] == own['id']
    for call, entry in zip(wandb.log.call_args_list, log(), strict=True):
        entry.pop('environment', None)
        samples = {'samples': wandb.Table.return_value} if 'val_any' in entry else {}
        assert call.args == (entry | samples,)
    _, texts = wandb.Table.call_args.args
    assert [order for order, _ in texts] == ['in random order', 'left to right']
    for name in ('project', 'name', 'run_id'):
        monkeypatch.setenv(f'WANDB_{name.upper()}', name)
    again = charted(3, 'scratch')
    assert (again['project'], again['name'], again['id']) == ('project', 'name', 'run_id')


@pytest.mark.parametrize('call', ['log', 'Table', 'finish'])
def test_a_wandb_that_fails_is_switched_off_and_ctrl_c_ends(wandb, capsys, call):
    def charted(error):
        chart = start_chart({}, Config(wandb_log=True, out_dir='out', wandb_id='a'))
        setattr(wandb, call, Mock(side_effect=error))
        for it in (2, 4):
            chart.send({'iter': it, 'samples': [['left to right', 'a text']]})
        chart.attempt('finish')
        return capsys.readouterr().out

    for error in (KeyError(), asyncio.CancelledError()):
        said = charted(error)
        assert (said.count('switched off'), said.count('\n')) == (1, 1)
    with pytest.raises(KeyboardInterrupt):
        charted(KeyboardInterrupt())
