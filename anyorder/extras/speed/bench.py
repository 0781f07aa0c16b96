"""How fast does a model write, and how fast is an update?

    python -m anyorder.extras.speed bench
    python -m anyorder.extras.speed bench --network=encoder --n_steps=64 --n_updates=0
    python -m anyorder.extras.speed bench --n_steps= --block_size=256 --batch_size=8
    python -m anyorder.extras.speed bench --network=gpt2 --n_updates=20

Texts at several numbers of steps, and updates: seconds of the first call in this process, which
compiles, and of a later one, tokens/s and peak memory of the later one. Of a decoder's text comes
the share of what the device could do (its measured matrix and memory rates), of updates the MFU.
The plain way has a cache that is concatenated, a sorted vocabulary, torch.multinomial. What
lossless unmasking costs says frontier, of a trained model. gpt2 is a GPT-2 in nanoGPT's way, of
which there are updates alone."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config, at_least, check_choice, numbers

# model (random weights)
block_size = 1024  # positions
vocab_size = 50304  # rows of embedding and head
n_tokens = 50257  # real vocabulary; the rest is padding
n_layer = 6  # blocks
n_head = 6  # heads of attention
n_embd = 384  # width
network = 'decoder'  # or another of anyorder/networks.py:NETWORKS, or gpt2, to train
# what is timed
batch_size = 4  # rows
n_steps = '16,64,256,1024'  # numbers of passes of a text; '' writes none
plain = '64,256'  # passes of the plain way; '' leaves it out
n_updates = 3  # updates of a call; 0 makes none
optimizer = 'adamw'  # or 'muon', as in train.py
compile = True  # torch.compile of updates, where there is a compiler
repeats = 2  # later calls of each; the fastest counts
out = ''  # a JSON file for the figures
# system
seed = 1337  # of weights, orders and draws
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from anyorder.extras.speed.gpt2 import GPT2, gpt2_step
from anyorder.extras.speed.plain import device_limits, generation_limit, plain_generate
from anyorder.extras.table import Table
from anyorder.fast import freeze, lean
from anyorder.flops import peak_flops, seconds, training_flops
from anyorder.generation import generate, unmask_schedule
from anyorder.machine.devices import autocast, resolve_device
from anyorder.machine.files import check_out
from anyorder.networks import named_network
from anyorder.orders import sample_order
from anyorder.tokens.blocks import Blocks
from anyorder.tokens.meta import Meta
from anyorder.tokens.sets import Split
from anyorder.training.start import LONG_RUN, make_graphs, resolve_compile
from anyorder.training.update import TrainState, make_optimizers, update
from model import AOGPT, EMA

SIZES = ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'n_tokens')

# {what a row says: (title, format)} of what is timed
TIMES = {
    'name': ('', ''),
    'steps': ('steps', ''),
    'first': ('first s', '.2f'),
    'later': ('later s', '.2f'),
    'ms_per_step': ('ms/step', ',.1f'),
    'tokens_per_sec': ('tokens/s', ',.0f'),
    'peak_mib': ('peak MiB', ',.0f'),
    'of_limit': ('of limit', '.1%'),
    'mfu': ('MFU', '.1%'),
}


def main(config):
    at_least(config, 1, 'n_tokens', 'batch_size', 'repeats')
    at_least(config, 0, 'n_updates')
    check_choice('optimizer', config.optimizer, 'adamw', 'muon')
    check_out('out', config.out, '.json')
    # '' is none
    passes = {name: numbers(config, name, 1) for name in ('n_steps', 'plain') if config[name]}
    if config.network != 'decoder':
        passes.pop('plain', None)  # which is a decoder with AdaLN
    device, dtype = resolve_device(config.device, config.dtype)
    torch.manual_seed(config.seed)
    sizes = {name: config[name] for name in SIZES}
    if config.network == 'gpt2':
        model = GPT2(sizes)
    else:
        model = AOGPT(replace(named_network(config.network), **sizes))
    model.to(device)
    title = (
        f'{model.n_parameters():,} parameters, batch {config.batch_size} x {config.block_size} '
        f'tokens, vocabulary {config.vocab_size}, {config.network}, {device}, {dtype}, '
        f'torch {torch.__version__}'
    )
    table = Table(title, TIMES, config)
    if 'n_steps' in passes and config.network != 'gpt2':
        time_texts(table, model, passes, config, device, dtype)
    if config.n_updates:
        time_updates(table, model, config, device, dtype)


def time_texts(table, model, passes, config, device, dtype):
    """Add a row of each number of passes, and of those of the plain way."""
    products = getattr(torch, dtype)
    network = freeze(model, products)
    order = sample_order(config.batch_size, config.block_size, device=device)
    blank = torch.zeros_like(order)
    seeds = range(config.batch_size)
    for option, counts in passes.items():
        name = 'plain' if option == 'plain' else config.network
        for n in counts:
            ends = unmask_schedule(config.block_size, n)
            write = partial(generate, network, blank, order, 0, n, seeds=seeds)
            if name == 'plain':
                write = partial(plain_generate, model, order, ends)
            with autocast(device, dtype):
                times = times_of(write, device, config.repeats, len(ends), order.numel())
            row = {'name': name, **times}
            if name == 'decoder':
                # only now: the first call in a process has all that a device prepares once
                limits = device_limits(device, products)
                limit = generation_limit(model, len(order), ends, *limits, products.itemsize)
                row['of_limit'] = limit / row['later']
            table.add(row)


def time_updates(table, model, config, device, dtype):
    """Add a row of config.n_updates updates: those of train.py, or of GPT-2."""
    run = Config(
        config,
        gradient_accumulation_steps=1,
        grad_clip=1.0,
        l2r_ratio=0.0 if model.slots_class.masked_loss else 0.1,
        dtype=dtype,
        learning_rate=1e-3,
        muon_learning_rate=0.02,
        weight_decay=0.05,
        dropout=0.0,
        save_memory='',
        beta1=0.9,
        beta2=0.95,
    )
    asked = 'auto' if config.compile else False
    compiled, _ = resolve_compile(asked, device, math.inf, LONG_RUN)
    run_model = torch.compile(model) if compiled else model
    flops = training_flops(model, config.batch_size, config.block_size)
    if config.network == 'gpt2':
        step = gpt2_step(model, run_model, run)
    else:
        step = training_step(model, run_model, flops, run)
    n = config.n_updates

    def updates():
        for _ in range(n):
            step()

    n_tokens = n * config.batch_size * config.block_size
    times = times_of(updates, device, config.repeats, n, n_tokens)
    mfu = n * flops / times['later'] / peak_flops(device, dtype)
    name = 'compiled updates' if compiled else 'updates'
    table.add({'name': f'{name}, {config.optimizer}', **times, 'mfu': mfu})


# --------------------------------------------------------------------------------------------------
# what is timed


def training_step(model, run_model, flops, run):
    """Return a function that makes an update as train.py does, which takes so many FLOPs."""
    state = TrainState(lean(model), make_optimizers(model, run), EMA(model, 0.9999))
    state.run_model = run_model
    state.graphs = make_graphs(model.device, run, flops)
    tokens = np.random.default_rng(0).integers(run.n_tokens, size=2**20)
    split = Split(tokens, Meta(n_tokens=run.n_tokens))
    sets = [Blocks(split, run.block_size)]
    return partial(update, state, sets, run.learning_rate, run)


# --------------------------------------------------------------------------------------------------
# how long it takes


def times_of(work, device, repeats, n_steps, n_tokens):
    """Return {what: number} of calls of `work`, which makes n_steps steps for n_tokens tokens.

    first  seconds of the first call, which compiles and warms up
    later  of the fastest of `repeats` later ones, of which tokens_per_sec and peak_mib are, too"""
    first = seconds(work, device, 1)
    peak_memory(device, reset=True)
    later = seconds(work, device, repeats)
    return {
        'steps': n_steps,
        'first': first,
        'later': later,
        'ms_per_step': 1000 * later / n_steps,
        'tokens_per_sec': n_tokens / later,
        'peak_mib': peak_memory(device) / 2**20,
    }


def peak_memory(device, reset=False):
    """Return the most bytes that the GPU's allocator gave, else that the process had.

    They are counted since the last reset; nan where there is no /proc. With `reset` begin to count
    anew."""
    if device.type == 'cuda':
        if reset:
            return torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    try:
        if reset:
            return Path('/proc/self/clear_refs').write_text('5')
        said = Path('/proc/self/status').read_text()
        return 1024 * int(said.partition('VmHWM:')[2].split()[0])
    except OSError:
        return math.nan


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
