"""How fast does a model write, and how fast is an update?

    python -m anyorder.extras.speed bench
    python -m anyorder.extras.speed bench --network=encoder --n_steps=64 --n_updates=0
    python -m anyorder.extras.speed bench --n_steps= --block_size=256 --batch_size=8

Texts at several numbers of steps: seconds of the first call in this process and of a later one,
tokens/s of the later one, peak memory, and of a decoder the share of what the device could do (its
measured matrix and memory rates). The plain way has a cache that is concatenated, a sorted
vocabulary, torch.multinomial. What lossless unmasking costs says frontier, of a trained model.

Updates: the seconds of the first one, which compiles, tokens/s, MFU and peak memory of later ones.
"""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least, check_choice

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
n_updates = 3  # updates of a run; 0 makes none
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

import itertools
from functools import partial

import torch

from anyorder.extras.speed.models import (
    HEADING,
    MIB,
    about,
    format_row,
    numbers_or_none,
    random_model,
    times_of,
    times_of_update,
    training_step,
)
from anyorder.extras.speed.plain import device_limits, generation_limit, plain_generate
from anyorder.fast import freeze
from anyorder.generation import generate, unmask_schedule
from anyorder.machine.devices import autocast, peak_flops, resolve_device
from anyorder.machine.files import check_out, write_json
from anyorder.orders import sample_order
from anyorder.training.clock import training_flops


def main(config):
    at_least(config, 1, 'batch_size', 'repeats')
    at_least(config, 0, 'n_updates')
    check_choice('optimizer', config.optimizer, 'adamw', 'muon')
    check_out('out', config.out, '.json')
    passes = {name: numbers_or_none(config, name) for name in ('n_steps', 'plain')}
    device, dtype = resolve_device(config.device, config.dtype)
    model = random_model(config, device, config.network)
    if config.network != 'decoder':
        passes['plain'] = []  # which is a decoder with AdaLN

    title = f'{about(model, config, config.batch_size)}, {config.network}, {device}, {dtype}'
    print(title)
    result = {'config': config, 'title': title, 'results': []}
    texts = time_texts(model, passes, config, device, dtype)
    for row in itertools.chain(texts, time_updates(config, device, dtype)):
        result['results'].append(row)
        if config.out:  # at once: the next one takes minutes
            write_json(config.out, result)


# --------------------------------------------------------------------------------------------------
# texts


def time_texts(model, passes, config, device, dtype):
    """Print and yield {'name', 'passes', 'first', 'later', 'peak_bytes'} of each way to write."""
    network = freeze(model, getattr(torch, dtype))
    N = config.block_size
    order = sample_order(config.batch_size, N, device=device)
    seeds = range(config.batch_size)
    ways = []
    for n in passes['n_steps']:
        write = partial(generate, network, torch.zeros_like(order), order, 0, n, seeds=seeds)
        ways.append((config.network, unmask_schedule(N, n), write))
    for n in passes['plain'] if ways else ():
        ends = unmask_schedule(N, n)
        ways.append(('plain', ends, partial(plain_generate, model, order, ends)))

    columns = ('first s', 'later s', 'ms/step', 'tokens/s', 'peak MiB', 'of limit')
    if ways:
        print(f'{"texts":<14}{"steps":>6}' + ''.join(f'{name:>10}' for name in columns))
    with autocast(device, dtype):
        for name, ends, write in ways:
            row = {'name': name, 'passes': len(ends)} | times_of(write, device, config.repeats)
            if name == 'decoder':
                # only now: the first call in a process has all that a device prepares once
                limits = device_limits(device, getattr(torch, dtype))
                how = config.batch_size, ends, *limits, getattr(torch, dtype).itemsize
                row['of_limit'] = generation_limit(model, *how) / row['later']
            print(format_text(row, order.numel()), flush=True)
            yield row


def format_text(row, n_tokens):
    """Return a line of the table of texts."""
    later = row['later']
    line = f'{row["name"]:<14}{row["passes"]:>6}{row["first"]:>10.2f}{later:>10.2f}'
    line += f'{1000 * later / row["passes"]:>10.1f}{n_tokens / later:>10,.0f}'
    line += f'{row["peak_bytes"] / MIB:>10,.0f}'
    return line + (f'{row["of_limit"]:>10.1%}' if 'of_limit' in row else '')


# --------------------------------------------------------------------------------------------------
# updates


def time_updates(config, device, dtype):
    """Print and yield the times of updates."""
    if not config.n_updates:
        return
    print(f'updates, {config.optimizer}\n{HEADING}')
    model, compiled, step = training_step(config, device, dtype, config.network)
    row = {'name': config.network, 'dtype': dtype, 'compiled': compiled}
    row |= times_of_update(step, config, device)
    time = row['seconds']
    flops = training_flops(model, config.batch_size)
    row['tokens_per_sec'] = config.batch_size * config.block_size / time
    row['mfu'] = flops / time / peak_flops(device, dtype)
    print(format_row(row), flush=True)
    yield row


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
