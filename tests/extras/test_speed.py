"""What a run costs: its plan and memory by hand, the bench, and the frontier of fewer passes."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, make_model, one_line, options_in
from torch.utils.flop_counter import FlopCounterMode

import train
from anyorder import Writer
from anyorder.checkpoint import Unset, model_from_checkpoint, save_checkpoint
from anyorder.extras.judge import generative_perplexity
from anyorder.extras.speed.memory import memory, slot_bytes
from anyorder.extras.speed.plain import generation_limit, plain_generate
from anyorder.extras.speed.plan import lines_of, parse_machine, same_update
from anyorder.fast import lean
from anyorder.flops import GPUS, training_flops
from anyorder.generation import generate, unmask_schedule
from anyorder.machine.devices import autocast
from anyorder.machine.files import read_json
from anyorder.networks import named_network
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.prepared import prepare
from configurator import Config, configure
from model import AOGPT

RUN = options_in(
    'batch_size=3 length=256 dtype=bfloat16 optimizer=adamw compile=True save_memory= apart=False '
    'world_size=1'
)


def network(name, n_layer=2, block_size=256):
    sizes = dict(vocab_size=64, n_head=2, n_embd=64, n_cond=8)
    return replace(named_network(name), block_size=block_size, n_layer=n_layer, **sizes)


# ---- memory


def kept_bytes(config, batch_size, dtype, apart):
    """Bytes of all that a forward pass keeps for the backward pass, the weights left out."""
    model = lean(AOGPT(config).train())
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages = {}

    def pack(x):
        storage = x.untyped_storage()
        storages[storage.data_ptr()] = storage  # held, so that no address comes twice
        return x

    idx = torch.zeros(batch_size, 256, dtype=torch.long)
    begins = torch.tensor([0, 128]).repeat(batch_size, 1) if apart else None  # two texts
    known = None
    if config.slots_class.masked_loss:
        known = torch.zeros_like(begins if apart else idx[:, 0])
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    with hooks, autocast(torch.device('cpu'), dtype):
        model(idx, torch.arange(256).expand_as(idx), known, begins=begins).sum()
    return sum(storages[at].nbytes() for at in storages.keys() - weights)


# networks, numbers of their products, and whether two texts of a row are apart
CASES = [
    'adaln bfloat16',
    'input bfloat16',
    'sigma_gpt bfloat16',
    'encoder bfloat16',
    'mixed bfloat16',
    'two_stream bfloat16',
    'adaln float32',
    'sigma_gpt float32',
    'adaln float32 apart',
    'encoder float32 apart',
    'mixed float32 apart',
]


@pytest.mark.parametrize('case', CASES)
def test_a_block_keeps_what_the_plan_counts(case):
    """What a third layer adds to a third row: no weight, nothing that does not grow with both."""
    name, dtype, *apart = case.split()
    of_row = []
    for n_layer in (2, 3):
        config = network(name, n_layer)
        of_row.append(kept_bytes(config, 3, dtype, apart) - kept_bytes(config, 2, dtype, apart))
    b = 2 if dtype == 'bfloat16' else 4
    n_streams = 2 if name == 'two_stream' else 1
    of_slot = slot_bytes(config, b, compiled=False)
    if not config.gpt2_blocks:
        of_slot += 4 * 4 * 64  # on a CPU a norm is several operations
    expected = 256 * n_streams * of_slot
    if name == 'mixed' or apart:
        expected += b * 256**2
    assert of_row[1] - of_row[0] == pytest.approx(expected, rel=0.005)


# a network, what differs from RUN: bytes of weights, gradients, optimizer, average, ... of `memory`
MEMORY = """
adaln: 612864 612864 1225728 612864 219136 6635520 98304 718848
adaln optimizer=muon: 612864 612864 832512 612864 219136 6635520 98304 718848
adaln dtype=float32: 612864 612864 1225728 612864 0 12042240 196608 1333248
adaln save_memory=recompute: 612864 612864 1225728 612864 114688 4153344 98304 718848
adaln compile=False: 612864 612864 1225728 612864 219136 8404992 98304 940032
adaln save_memory=shard world_size=4: 153216 153216 306432 153216 219136 6635520 98304 1545216
adaln save_memory=hybrid world_size=16: 76608 76608 153216 76608 219136 6635520 98304 1545216
encoder apart=True: 612864 612864 1225728 612864 219136 7028736 98304 817152
mixed: 612864 612864 1225728 612864 219136 7028736 98304 817152
mixed compile=False: 612864 612864 1225728 612864 219136 9191424 98304 1038336
two_stream: 564480 564480 1128960 564480 204800 6561792 98304 946176
"""


@pytest.mark.parametrize('case', MEMORY.strip().splitlines())
def test_the_parts_of_memory_by_hand(case):
    """The first has P = 153216, C = 64, L = 2, H = 2, V = 64, n_cond = 8, S = 3 x 256 slots.

    Weights, gradients and average take 4 P, AdamW 8 P; the copies 2 bytes for each of 12 C^2 L +
    (6 L + 2) C n_cond + C V. A block keeps S (58 C + 32) bytes, of which a quarter is the rest; the
    last norm and the head S 18 C, the loss 2 S V. A mask takes 2 x 256 S, in each layer unless they
    are compiled together; parts gather what is outside of blocks, and a block thrice."""
    what, parts = case.split(': ')
    name, _, changes = what.partition(' ')
    with torch.device('meta'):
        model = Unset(network(name, block_size=512))  # which could read longer sequences
    found = memory(model, Config(RUN | options_in(changes)))
    assert [*found.values()] == [*map(int, parts.split())]


# ---- the plan


def test_machines_and_the_same_update():
    assert parse_machine('8xH100') == (8, 'H100', GPUS['H100'])
    assert parse_machine('h200') == (1, 'H200', GPUS['H200'])
    n, _, machine = parse_machine('2x0.2:24')
    assert (n, machine.flops, machine.memory) == (2, 0.2e12, 24)
    for text in ('H1000', '0xH100', '8x', '1:', '0:24', 'x', '3'):
        with one_line('as in 8xH100'):
            parse_machine(text)
    run = dict(batch_size=16, gradient_accumulation_steps=32, eval_iters=20)
    for n, largest, numbers in ((8, 100, '64 8 5'), (8, 63, '32 16 10'), (1, 7, '4 128 80')):
        options = same_update(Config(run, world_size=n), largest)
        assert re.findall(r'\d+', options) == numbers.split()
    assert not same_update(Config(run, world_size=8), 0)


def plan(*words):
    """{name: the words behind it} of the lines of the plan of train.py."""
    lines = lines_of(configure(vars(train), ['--data_dir=.', *words]))
    return {line[:34].strip(): line[34:].split() for line in lines}


def test_a_plan_is_made_of_numbers_alone(script):
    """It wants nothing and writes nothing: 8 x H100, in hours of FLOPs by the rate of the card."""
    os.symlink(os.path.join(ROOT, 'config'), 'config')
    words = ['config/ao_gpt_small.py', '--plan=8xH100', '--gradient_accumulation_steps=64']
    cells = plan(*words)
    assert cells['parameters'] == ['170,605,952']
    assert cells['tokens an update'] == ['1,048,576']
    assert plan(*words, '--save_memory=shard')['a checkpoint'] == cells['a checkpoint']
    tokens = 1024 * 16 * 64 * 250000 + 2 * 250 * 20 * 16 * 1024 / 3  # in two orders
    flops = 1e9 * float(*cells['GFLOP a token']) * tokens
    hours = float(cells['at 40% MFU'][0].replace(',', ''))
    assert hours == pytest.approx(flops / 8 / 989e12 / 0.4 / 3600, rel=1e-3)
    said = script('train.py', 'config/adapt_gpt2.py', words[1]).stdout
    assert 'by the options' in said
    failed = script('train.py', '--plan=3xH100', code=1)
    assert failed.stderr.startswith('error: gradient_accumulation_steps')
    assert os.listdir() == ['config']


def test_a_plan_has_the_shape_and_the_vocabulary_of_the_checkpoint():
    model = make_model(n_layer=1, vocab_size=320, n_tokens=257)
    save_checkpoint('a.pt', model, tokenizer='bytes')
    cells = plan('--dataset=mine', '--plan=H100', '--init_from=auto:a.pt')
    assert cells['parameters'] == [f'{model.n_parameters():,}']
    assert cells['vocabulary'][:2] == ['257', 'bytes,']


def test_rows_cost_as_with_a_block_of_their_length():
    """The longest of 150 documents with prompts has 12 tokens. Meta alone does not say it."""
    with open('rows.jsonl', 'w') as f:
        f.writelines(f'{{"prompt": "{i}+{i}=", "text": "{2 * i}"}}\n' for i in range(150))
    prepare('text', '.', name='rows', source='rows.jsonl', tokenizer='bytes')
    words = '--dataset=rows', '--plan=H100'
    wide, narrow = (plan(*words, f'--block_size={n}') for n in (512, 12))
    for name in ('tokens in all', 'GFLOP a token', 'activations', 'at 30% MFU'):
        assert wide[name] == narrow[name]
    assert wide['tokens an update'][0] == '192'
    os.remove('rows/train.bin')
    assert plan(*words, '--block_size=512')['tokens an update'] == ['8,192']


def test_a_set_that_a_run_refuses_has_no_plan():
    np.save('mine.npy', np.arange(80).reshape(20, 4))
    prepare_tokens('.', 'mine', 'mine.npy', shape='2x2')
    with one_line('takes --block_size=4'):
        plan('--dataset=mine', '--plan=H100', '--block_size=8')


# ---- the plain way, and the bench

PADDED = {'vocab_size': 16, 'n_tokens': 11}


@pytest.mark.parametrize('n_steps', [1, 3, 9])
def test_the_plain_way_writes_the_same(batch, n_steps):
    _, order = batch
    model = make_model(**PADDED)
    ends = unmask_schedule(9, n_steps)
    plain = plain_generate(model, order, ends, temperature=1e-9)
    ours = generate(model, torch.zeros_like(order), order, 0, n_steps, temperature=0)
    assert torch.equal(plain, ours)


def test_the_limit_counts_every_slot_and_weight():
    """Ends 2, 4, 9: the first step runs slots 0-1 and keeps slot 0, the second 1-3 and keeps 0-2.

    The third runs 3-8. Their keys: 1 1; 2 3 3; 4 5 5 5 5 5. Both layers run the 9 slots of what
    is drawn, with 33 keys; the last one makes only the keys of the 2 others. With C = 16 a slot
    takes 24 C^2, keys and values 4 C^2 and a key 4 C; a step reads 2 x 12 C^2 + 11 C weights."""
    model = make_model()
    flops = 20 * 6144 + 72 * 64 + 2 * 1024 + 9 * 352
    inf = float('inf')
    assert generation_limit(model, 5, [2, 4, 9], 1.0, inf, 4) == pytest.approx(5 * flops)
    n_bytes = 3 * 6320 * 4 + 5 * 6 * 64 * 4
    assert generation_limit(model, 5, [2, 4, 9], inf, 1.0, 4) == pytest.approx(n_bytes)


def test_training_flops_count_the_matrix_products(batch):
    """And attention, 6 N C a slot and layer, by how much of it a mask leaves."""
    model = lean(make_model(**PADDED))
    with FlopCounterMode(display=False) as counter:
        model.requires_grad_(True)(*batch).sum().backward()
    counts = counter.get_flop_counts()['Global']
    products = counts[torch.ops.aten.mm] + counts[torch.ops.aten.addmm]
    attention = 6 * 5 * 9 * 9 * 16 * 2
    for kind, share in (('causal', 1), ('bidirectional', 2), ('mixed', 4 / 3)):
        found = training_flops(make_model(**PADDED, attention=kind), 5, 9)
        assert found == pytest.approx(products + share * attention, rel=1e-12)


SIZES = '--block_size=64 --vocab_size=64 --n_tokens=50 --n_layer=1 --n_head=1 --n_embd=16'
TINY = (*SIZES.split(), '--batch_size=4', '--repeats=1', '--device=cpu', '--compile=False')


@pytest.fixture
def rows(script):
    """rows(command, option, ...): the rows of the file of a command of speed."""

    def run(command, *options):
        script('anyorder.extras.speed', command, *options, '--out=rows.json')
        return read_json('rows.json')['results']

    return run


def test_bench_times_texts_beside_the_plain_way_and_updates(rows):
    found = rows('bench', *TINY, '--n_steps=4,64', '--plain=4', '--n_updates=1')
    kinds = [(row['name'], row['steps'], 'of_limit' in row, 'mfu' in row) for row in found]
    assert kinds == [
        ('decoder', 4, True, False),
        ('decoder', 64, True, False),
        ('plain', 4, False, False),
        ('updates, adamw', 1, False, True),
    ]
    for row in found:
        assert row['tokens_per_sec'] == pytest.approx(4 * 64 / row['later'])
        assert row['ms_per_step'] == pytest.approx(1000 * row['later'] / row['steps'])
    for name in ('encoder', 'mixed', 'two_stream'):
        found = rows('bench', *TINY, '--n_steps=4', '--n_updates=1', f'--network={name}')
        assert ['mfu' in row for row in found] == [False, True]
    (row,) = rows('bench', *TINY, '--network=gpt2')
    assert row['name'] == 'updates, adamw'


# ---- the frontier

HOW = ('--ckpt=ckpt.pt', '--dtype=float32', '--device=cpu', '--n_blocks=6', '--batch_size=2')


@pytest.fixture
def ckpt():
    """ckpt.pt, and what is no judge and no decoder beside it."""
    Path('words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 3)
    for name, order, config in (
        ('ckpt', 'random', {}),
        ('r2l', 'r2l', {}),
        ('encoder', 'random', {'attention': 'bidirectional'}),
    ):
        model = make_model(block_size=8, vocab_size=320, n_tokens=257, n_layer=1, **config)
        run = {'order': order, 'dataset': 'words.txt'}
        save_checkpoint(f'{name}.pt', model.float(), tokenizer='bytes', config=run)
    return 'ckpt.pt'


WAYS = 'random,margin,margin/4,binomial,lossless,lossless:1,margin:.1,klass'


def test_every_way_has_a_row_for_each_number_of_steps_that_it_takes(ckpt, rows, script):
    """Drafts change no law; eval_ppl.py finds the same nats, a judge its perplexity."""
    how = ('--n_samples=3', f'--ways={WAYS}', '--n_steps=0,2', '--judge=ckpt.pt')
    found = rows('frontier', *HOW, *how)
    names = WAYS.split(',')
    ways = [(way, n) for way in names[:4] for n in (8, 2)] + [(way, None) for way in names[4:]]
    assert [(row['way'], row['n_steps']) for row in found] == ways
    passes = [row['passes'] for row in found]
    assert passes[:6] == [8, 2] * 3
    assert passes[9] == 8
    nats = [row['nats'] for row in found]
    assert nats[8] == nats[9] == nats[0]
    script('eval_ppl.py', *HOW[:4], '--orders=margin', '--weights=raw', '--out=ppl.json')
    (row,) = read_json('ppl.json')['results']
    both = row['nats_per_token'], row['stderr']
    assert both == pytest.approx((nats[2], found[2]['nats_error']), rel=1e-5)
    written = Writer(ckpt).infill([[-1] * 8] * 3, n_steps=2, seed=1337, batch_size=2).tolist()
    verdict = generative_perplexity(model_from_checkpoint(ckpt, 'raw'), written, [[True] * 8] * 3)
    assert found[1]['judge'] == pytest.approx(verdict['perplexity'])


BAD = {
    'bench --n_steps=0': 'n_steps',
    'bench --network=gpt3': 'gpt2',
    'bench --n_steps= --out=x.csv': '.json',
    'frontier --ways=lossless:0': 'window',
    'frontier --ways=margin+0.5': 'noise',
    'frontier --ways=best': 'best',
    'frontier --ways=,': 'at least one',
    'frontier --n_steps=4,x': '4,x',
    'frontier --dataset=none.txt': 'none.txt',
    'frontier --out=ckpt.pt': 'no file of this run',
    'frontier --ckpt=encoder.pt --ways=lossless': 'decoder',
    'frontier --judge=r2l.pt': 'left to right',
}


@pytest.mark.parametrize('words, said', BAD.items())
def test_wrong_input_is_one_line_before_the_work(ckpt, script, words, said):
    command, *options = words.split()
    how = TINY if command == 'bench' else HOW
    finished = script('anyorder.extras.speed', command, *how, *options, code=1)
    assert said in finished.stderr
    assert not finished.stdout
