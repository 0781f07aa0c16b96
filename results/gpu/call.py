"""What does a user's call of `generate` cost beside the steps, and what does the next one?

    python results/gpu/call.py
    python results/gpu/call.py --policy=margin --n_steps=64,256

On a GPU the first call of a model that is not frozen makes a copy for inference, which keeps cache
and graphs. Each later call looks at all weights, to see whether the copy still holds; `weights ms`
is that look alone. Beside it stands a model that was frozen once: its calls look at nothing. The
first and the second call of each number of steps are timed, the very first with all that a process
prepares once."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least, numbers

# model (random weights)
block_size = 1024  # positions
vocab_size = 50304  # rows of embedding and head
n_tokens = 50257  # real vocabulary; the rest is padding
n_layer = 12  # blocks
n_head = 12  # heads of attention
n_embd = 768  # width
# what is timed
batch_size = 32  # rows
n_steps = '64,1024'  # numbers of passes, with commas
policy = 'given'  # or 'top_prob', 'margin', 'entropy'
out = ''  # a JSON file for the figures
# system
seed = 1337  # of weights, orders and draws
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

from functools import partial

import torch

from anyorder.extras.speed.models import MIB, random_model
from anyorder.extras.speed.peak import peak_memory
from anyorder.fast import bits_of, freeze
from anyorder.generation import generate
from anyorder.machine.devices import autocast, resolve_device, seconds
from anyorder.machine.files import check_out, write_json
from anyorder.orders import sample_order


def main(config):
    at_least(config, 1, 'batch_size')
    check_out('out', config.out, '.json')
    steps = numbers(config, 'n_steps', int, 1, config.block_size)
    device, dtype = resolve_device(config.device, config.dtype)
    rows = []
    print(f'{"":<26}{"steps":>6}{"first s":>10}{"second s":>10}{"weights ms":>12}{"peak MiB":>10}')
    with autocast(device, dtype):
        for row in measured_rows(config, steps, device):
            print(format_row(row), flush=True)
            rows.append(row)
            if config.out:
                write_json(config.out, {'config': config, 'rows': rows})


def measured_rows(config, steps, device):
    """Yield {'network', 'name', 'passes', 'first', 'later': the second call, 'peak_bytes'}, and
    'weights', the seconds to look at them, where a call does."""
    model = random_model(config, device)
    order = sample_order(config.batch_size, config.block_size, device=device)
    for row in calls(model, order, steps, config):
        look = seconds(partial(bits_of, model), device, 3)
        yield {'name': f'generate(model), {config.policy}', 'weights': look} | row
    for row in calls(freeze(model), order, steps, config):
        yield {'name': f'generate(frozen), {config.policy}'} | row


def calls(model, order, steps, config):
    """Yield the times of a model's calls for each number of steps."""
    idx = torch.zeros_like(order)
    seeds = range(len(order))
    for n in steps:
        write = partial(generate, model, idx, order, 0, n, config.policy, seeds=seeds)
        peak_memory(order.device, reset=True)
        first = seconds(write, order.device, 1)
        second = seconds(write, order.device, 1)
        peak = peak_memory(order.device)
        row = {'network': 'decoder', 'passes': n, 'first': first}
        yield row | {'later': second, 'peak_bytes': peak}


def format_row(row):
    look = f'{1000 * row["weights"]:.2f}' if 'weights' in row else ''
    times = f'{row["first"]:>10.2f}{row["later"]:>10.3f}{look:>12}'
    return f'{row["name"]:<26}{row["passes"]:>6}{times}{row["peak_bytes"] / MIB:>10,.0f}'


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
