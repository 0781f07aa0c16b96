"""How fast are all networks, to write and to train?

    python -m anyorder.extras.speed grid --n_steps=16,64,256,1024 --out=grid.json

Seconds of generation by decoder, mixed network, two streams and encoder, and tokens/s of updates of
all networks."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least

# model (random weights)
block_size = 1024  # positions
vocab_size = 50304  # rows of embedding and head
n_tokens = 50257  # real vocabulary; the rest is padding
n_layer = 6  # blocks
n_head = 6  # heads of attention
n_embd = 384  # width
# what is timed
batch_size = 4  # rows
n_steps = ''  # numbers of passes, with commas; '' is 16,64,256,1024
n_updates = 3  # updates of a run
optimizer = 'adamw'  # or 'muon', as in train.py
compile = True  # torch.compile of updates, where there is a compiler
repeats = 2  # runs of each; the fastest counts
out = ''  # a JSON file for the figures, which pictures draws
# system
seed = 1337  # of weights, orders and draws
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

from functools import partial

import torch

from anyorder.extras.speed.models import (
    STEPS,
    about,
    numbers_or_none,
    random_model,
    times_of_update,
    training_step,
)
from anyorder.fast import freeze
from anyorder.generation import generate
from anyorder.machine.devices import autocast, resolve_device, seconds
from anyorder.machine.files import check_out, write_json
from anyorder.orders import sample_order

# {name in the table: name of the network}
NETWORKS = {
    'adaln': 'decoder',
    'input': 'input',
    'layer_shared': 'layer_shared',
    'layer': 'layer',
    'rotary': 'rotary',
    'sigma-GPT': 'sigma_gpt',
    'encoder': 'encoder',
    'mixed': 'mixed',
    'two streams': 'two_stream',
}
# the networks whose generation is timed
WRITERS = ('decoder', 'encoder', 'mixed', 'two streams')


def main(config):
    at_least(config, 1, 'batch_size', 'n_updates', 'repeats')
    check_out('out', config.out, '.json')
    device, dtype = resolve_device(config.device, config.dtype)
    result = {'config': config, 'device': str(device), 'dtype': dtype, 'torch': torch.__version__}
    for name, measure in (('generation', generation_times), ('training', training_rates)):
        result[name] = measure(config, device, dtype)
        if config.out:  # at once: the first takes minutes
            write_json(config.out, result)
            print(f'\nwritten: {config.out}')


def generation_times(config, device, dtype):
    """Print and return [{'steps', 'decoder', ...}]: seconds of `generate` by WRITERS and steps."""
    N = config.block_size
    models = {name: random_model(config, device, NETWORKS.get(name, name)) for name in WRITERS}
    order = sample_order(config.batch_size, N, device=device)
    print(f'{about(models["decoder"], config, config.batch_size)}, {device}, {dtype}')
    print("\ngeneration, seconds, and times the decoder's")
    print(f'{"steps":>6}' + ''.join(f'{name:>20}' for name in models))
    steps = numbers_or_none(config, 'n_steps') or STEPS
    times = []
    with autocast(device, dtype):
        models = {name: freeze(model) for name, model in models.items()}
        for n_steps in dict.fromkeys(min(n, N) for n in steps):
            two_steps = 2 * max(1, N // n_steps)
            row = {'steps': n_steps}
            line = f'{n_steps:>6}'
            for name, model in models.items():
                seeds = range(config.batch_size)
                run = partial(generate, model, torch.zeros_like(order), order, seeds=seeds)
                run(max(0, N - two_steps), 2)  # warm up: two steps as wide
                row[name] = seconds(partial(run, 0, n_steps), device, config.repeats)
                line += f'{row[name]:>12.2f}{row[name] / row["decoder"]:>8.1f}'
            print(line, flush=True)
            times.append(row)
    return times


def training_rates(config, device, dtype):
    """Print and return [{'network', 'parameters', 'compiled', 'tokens_per_sec'}] of updates."""
    n_tokens = config.batch_size * config.block_size
    print(f'\ntraining, {config.optimizer}')
    print(f'{"":<14}{"parameters":>12}{"ms/update":>11}{"tokens/s":>11}{"of adaln":>10}')
    rates = []
    for name, network in NETWORKS.items():
        torch.compiler.reset()  # else the ninth network would be one too many to compile
        model, compiled, step = training_step(config, device, dtype, network)
        time = times_of_update(step, config, device)['seconds']
        n = model.n_parameters()
        rate = n_tokens / time
        rates.append(
            {'network': name, 'parameters': n, 'compiled': compiled, 'tokens_per_sec': rate}
        )
        share = rate / rates[0]['tokens_per_sec']
        print(f'{name:<14}{n:>12,}{1000 * time:>11,.1f}{rate:>11,.0f}{share:>10.2f}', flush=True)
        del model, step  # before the next one is made
    return rates


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
