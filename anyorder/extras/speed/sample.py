"""How fast does a model write?

    python -m anyorder.extras.speed sample
    python -m anyorder.extras.speed sample --batch_size=1 --windows=8,32
    python -m anyorder.extras.speed sample --network=encoder --n_steps=64

Generation at several numbers of steps: seconds of the first call in this process and of a later
one, tokens/s of the later one, the share of what the device could do (its measured matrix and
memory rates), and peak memory. Beside a decoder stands the plain way: a cache that is concatenated,
a sorted vocabulary, torch.multinomial. Then comes lossless unmasking, whose drafts are right with
probability 0.93."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least

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
n_steps = ''  # numbers of passes, with commas; '' is 16,64,256,1024
windows = '32'  # of lossless unmasking; '' leaves it out
plain = '64,256'  # which of n_steps the plain way takes too
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

from anyorder.extras.speed.models import MIB, STEPS, about, numbers_or_none, random_model, times_of
from anyorder.extras.speed.plain import device_limits, generation_limit, plain_generate
from anyorder.fast import freeze
from anyorder.generation import Canvas, Drawing, Lossless, generate, unmask_schedule
from anyorder.generation.fill import fill
from anyorder.machine.devices import autocast, resolve_device, seconds
from anyorder.machine.files import check_out, write_json
from anyorder.orders import sample_order

# nearly the share of the drafts of trained models that are right, see results/lossless
ACCEPTANCE = 0.93


def main(config):
    at_least(config, 1, 'batch_size', 'repeats')
    check_out('out', config.out, '.json')
    numbers = {name: numbers_or_none(config, name) for name in ('n_steps', 'plain', 'windows')}
    numbers['n_steps'] = numbers['n_steps'] or STEPS
    if 'plain' in config.given and not set(numbers['plain']) <= set(numbers['n_steps']):
        wanted = ','.join(map(str, numbers['n_steps']))
        raise ValueError(f'plain must be among the n_steps {wanted}, got {config.plain}')
    device, dtype = resolve_device(config.device, config.dtype)
    model = random_model(config, device, config.network)
    if model.config.target_position != 'adaln' or model.config.attention != 'causal':
        numbers['plain'] = []  # which is a decoder with AdaLN
    if model.config.attention != 'causal':
        numbers['windows'] = []

    title = f'{about(model, config, config.batch_size)}, {config.network}, {device}, {dtype}'
    print(title)
    print(HEADING)
    result = {'config': config, 'title': title, 'rows': []}
    n_tokens = config.batch_size * config.block_size
    with autocast(device, dtype):
        rows = measured_rows(model, numbers, config, device, getattr(torch, dtype))
        for row in rows:
            print(format_row(row, n_tokens), flush=True)
            result['rows'].append(row)
            if config.out:  # at once: the next one takes minutes
                write_json(config.out, result)
    flop_rate, byte_rate = device_limits(device, getattr(torch, dtype))
    print(f'limits {flop_rate / 1e9:,.0f} GFLOP/s, {byte_rate / 1e9:,.1f} GB/s')


def measured_rows(model, numbers, config, device, dtype):
    """Yield {'passes', 'first', 'later', 'peak_bytes', and more} of each number of steps, then of
    each window of lossless unmasking."""
    network = freeze(model)
    seeds = range(config.batch_size)
    order = sample_order(config.batch_size, config.block_size, device=device)
    ours = partial(generate, network, torch.zeros_like(order), order, seeds=seeds)
    for n_steps in numbers['n_steps']:
        ends = unmask_schedule(config.block_size, n_steps)
        row = {'passes': len(ends)} | times_of(partial(ours, 0, n_steps), device, config.repeats)
        # only now: the first call in a process has all that a device prepares once
        limits = device_limits(device, dtype)
        limit = generation_limit(model, config.batch_size, ends, *limits, dtype.itemsize)
        row['of_limit'] = limit / row['later']
        if n_steps in numbers['plain']:
            write = partial(plain_generate, model, order, ends)
            row['plain'] = seconds(write, device, config.repeats)
        yield row
    for window in numbers['windows']:
        write = partial(write_drafts, network, order, window, config.seed)
        row = times_of(write, device, config.repeats)
        yield {'passes': write(), 'window': window} | row


HEADING = (
    f'{"steps":>6}{"first s":>10}{"later s":>10}{"ms/step":>10}{"tokens/s":>11}{"peak MiB":>10}'
    f'{"of limit":>10}{"plain s":>10}{"plain / ours":>14}'
)


def format_row(row, n_tokens):
    """Return a line of the table under HEADING."""
    later = row['later']
    line = f'{row["passes"]:>6}{row["first"]:>10.2f}{later:>10.2f}'
    line += f'{1000 * later / row["passes"]:>10.1f}{n_tokens / later:>11,.0f}'
    line += f'{row["peak_bytes"] / MIB:>10,.0f}'
    if 'of_limit' in row:
        line += f'{row["of_limit"]:>10.1%}'
    if 'plain' in row:
        line += f'{row["plain"]:>10.2f}{row["plain"] / later:>14.1f}'
    if 'window' in row:
        line += f'  lossless, window {row["window"]}'
    return line


def write_drafts(network, order, window, seed):
    """Write texts (B, N) by lossless unmasking, and return the number of passes."""
    torch.manual_seed(seed)  # decides which drafts are right: every run takes the same passes
    canvas = Canvas(torch.zeros_like(order), order, 0, range(len(order)))
    fill(network, canvas, Lossless(window), FixedAcceptance(), with_logprob=False)
    return int(canvas.step.max()) + 1


class FixedAcceptance(Drawing):
    """Drawing whose lossless drafts are right with probability ACCEPTANCE, each by itself.

    The work is the same. A model with random weights says nearly the same whatever it reads, so
    nearly all of its own drafts are right."""

    def tokens_by_noise(self, logits, noise):
        token = super().tokens_by_noise(logits, noise)
        other = torch.randint_like(token, 1, logits.size(-1))
        both = ACCEPTANCE**0.5  # a draft and its check
        agrees = torch.rand(token.shape, device=token.device) < both
        return torch.where(agrees, 0, other)


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
