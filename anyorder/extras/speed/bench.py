"""How fast does a model write, and how fast is an update?

    python -m anyorder.extras.speed bench
    python -m anyorder.extras.speed bench --network=encoder --n_steps=64 --n_updates=0
    python -m anyorder.extras.speed bench --n_steps= --block_size=256 --batch_size=8

Texts at several numbers of steps, and updates: seconds of the first call in this process, which
compiles, and of a later one, tokens/s and peak memory of the later one. Of a decoder's text comes
the share of what the device could do (its measured matrix and memory rates), of updates the MFU.
The plain way has a cache that is concatenated, a sorted vocabulary, torch.multinomial. What
lossless unmasking costs says frontier, of a trained model."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least, check_choice, numbers

# model (random weights)
block_size = 1024  # positions
vocab_size = 50304  # rows of embedding and head
n_tokens = 50257  # real vocabulary; the rest is padding
n_layer = 6  # blocks
n_head = 6  # heads of attention
n_embd = 384  # width
network = 'decoder'  # or another of anyorder/networks.py:NETWORKS
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

from functools import partial

import torch

from anyorder.extras.speed.models import (
    TIMES,
    random_model,
    times_of,
    times_of_updates,
    training_step,
)
from anyorder.extras.speed.plain import device_limits, generation_limit, plain_generate
from anyorder.extras.table import Table
from anyorder.fast import freeze
from anyorder.generation import generate, unmask_schedule
from anyorder.machine.devices import autocast, resolve_device
from anyorder.machine.files import check_out
from anyorder.orders import sample_order
from anyorder.training.clock import training_flops


def main(config):
    at_least(config, 1, 'batch_size', 'repeats')
    at_least(config, 0, 'n_updates')
    check_choice('optimizer', config.optimizer, 'adamw', 'muon')
    check_out('out', config.out, '.json')
    # '' is none
    passes = {name: numbers(config, name, 1) for name in ('n_steps', 'plain') if config[name]}
    if config.network != 'decoder':
        passes.pop('plain', None)  # which is a decoder with AdaLN
    device, dtype = resolve_device(config.device, config.dtype)
    model = random_model(config, device)
    title = (
        f'{model.n_parameters():,} parameters, batch {config.batch_size} x {config.block_size} '
        f'tokens, vocabulary {config.vocab_size}, {config.network}, {device}, {dtype}, '
        f'torch {torch.__version__}'
    )
    table = Table(title, TIMES, config)
    if 'n_steps' in passes:
        time_texts(table, model, passes, config, device, dtype)
    if config.n_updates:
        model, compiled, step = training_step(config, device, dtype)
        flops = training_flops(model, config.batch_size)
        name = 'compiled updates' if compiled else 'updates'
        times = times_of_updates(step, flops, config, device, dtype)
        table.add({'name': f'{name}, {config.optimizer}', **times})


def time_texts(table, model, passes, config, device, dtype):
    """Add a row of each number of passes, and of those of the plain way."""
    products = getattr(torch, dtype)
    network = freeze(model, products)
    order = sample_order(config.batch_size, config.block_size, device=device)
    blank = torch.zeros_like(order)
    seeds = range(config.batch_size)

    def timed(name, ends, write):
        with autocast(device, dtype):
            times = times_of(write, device, config.repeats, len(ends), order.numel())
        return {'name': name, **times}

    for n in passes['n_steps']:
        ends = unmask_schedule(config.block_size, n)
        write = partial(generate, network, blank, order, 0, n, seeds=seeds)
        row = timed(config.network, ends, write)
        if config.network == 'decoder':
            # only now: the first call in a process has all that a device prepares once
            limits = device_limits(device, products)
            how = config.batch_size, ends, *limits, products.itemsize
            row['of_limit'] = generation_limit(model, *how) / row['later']
        table.add(row)
    for n in passes.get('plain', ()):
        ends = unmask_schedule(config.block_size, n)
        table.add(timed('plain', ends, partial(plain_generate, model, order, ends)))


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
