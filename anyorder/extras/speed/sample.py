"""How fast does a model write?

    python -m anyorder.extras.speed sample
    python -m anyorder.extras.speed sample --batch_size=1 --windows=8,32

Generation at several numbers of steps: seconds, tokens/s, the share of what the device could do
(its measured matrix and memory rates), peak memory, and the plain way: a cache that is
concatenated, a sorted vocabulary, torch.multinomial. Then lossless unmasking, whose drafts are
right with probability 0.93."""

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
windows = '32'  # of lossless unmasking; '' leaves it out
plain = '64,256'  # which of n_steps the plain way takes too
cuda_graphs = False  # on a GPU: launch a step as one
repeats = 2  # runs of each; the fastest counts
# system
seed = 1337  # of weights, orders and draws
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

from functools import partial

import torch

from anyorder.extras.speed.models import MIB, STEPS, about, numbers_or_none, random_model
from anyorder.extras.speed.peak import peak_memory
from anyorder.extras.speed.plain import device_limits, generation_limit, plain_generate
from anyorder.fast import freeze, graphed
from anyorder.generation import Canvas, Drawing, Lossless, generate, unmask_schedule
from anyorder.generation.fill import fill
from anyorder.machine.devices import autocast, resolve_device, seconds
from anyorder.orders import sample_order

# nearly the share of the drafts of trained models that are right, see results/lossless
ACCEPTANCE = 0.93


def main(config):
    at_least(config, 1, 'batch_size', 'repeats')
    steps = numbers_or_none(config, 'n_steps') or STEPS
    plain = numbers_or_none(config, 'plain')
    windows = numbers_or_none(config, 'windows')
    if 'plain' in config.given and not set(plain) <= set(steps):
        wanted = ','.join(map(str, steps))
        raise ValueError(f'plain must be among the n_steps {wanted}, got {config.plain}')
    device, dtype = resolve_device(config.device, config.dtype)

    model = random_model(config, device)
    order = sample_order(config.batch_size, config.block_size, device=device)
    limits = device_limits(device, getattr(torch, dtype))
    flop_rate, byte_rate = limits
    print(
        f'{about(model, config, config.batch_size)}, {device}, {dtype}; limits '
        f'{flop_rate / 1e9:,.0f} GFLOP/s, {byte_rate / 1e9:,.1f} GB/s'
    )
    print(
        f'{"steps":>6}{"seconds":>10}{"ms/step":>10}{"tokens/s":>11}{"of limit":>10}'
        f'{"peak MiB":>10}{"plain s":>10}{"plain / ours":>14}'
    )
    with autocast(device, dtype):
        network = freeze(model)
        if config.cuda_graphs:
            network = graphed(network)
        seeds = range(config.batch_size)
        ours = partial(generate, network, torch.zeros_like(order), order, seeds=seeds)
        ours(max(0, config.block_size - 8), 8)  # warm up
        for n_steps in steps:
            ends = unmask_schedule(config.block_size, n_steps)
            peak_memory(device, reset=True)
            time = seconds(partial(ours, 0, n_steps), device, config.repeats)
            n_bytes = 2 if dtype == 'bfloat16' else 4
            limit = generation_limit(model, config.batch_size, ends, *limits, n_bytes)
            peak = peak_memory(device) / MIB
            line = format_passes(len(ends), time, order) + f'{limit / time:>10.1%}{peak:>10,.0f}'
            if n_steps in plain:
                slow = seconds(partial(plain_generate, model, order, ends), device, config.repeats)
                line += f'{slow:>10.2f}{slow / time:>14.1f}'
            print(line, flush=True)
        for window in windows:
            write = partial(write_drafts, network, order, window, config.seed)
            peak_memory(device, reset=True)
            passes = write()
            time = seconds(write, device, config.repeats)
            peak = peak_memory(device) / MIB
            line = format_passes(passes, time, order)
            print(f'{line}{peak:>20,.0f}  lossless, window {window}', flush=True)


def format_passes(n, time, order):
    """Return the first cells of a line: passes, seconds, a pass, tokens a second."""
    return f'{n:>6}{time:>10.2f}{1000 * time / n:>10.1f}{order.numel() / time:>11,.0f}'


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
