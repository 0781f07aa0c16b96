"""How fast is the context-order ensemble of one block?

    python -m anyorder.extras.speed ensemble --block_size=256
    python -m anyorder.extras.speed ensemble --n_positions=16

Slots, seconds and the share of what the device could do, and the plain way: a full-length pass
with the head everywhere for every position and member; some passes are timed and the rest
extrapolated."""

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
n_contexts = 16  # members
n_positions = 0  # visits that are evaluated, 0 is all
ensemble_block = 1  # visits that share a context
n_plain = 64  # passes of the plain way that are timed
repeats = 2  # runs of each; the fastest counts
# system
seed = 1337  # of weights, orders and draws
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import torch

from anyorder.extras.speed.models import about, random_model
from anyorder.extras.speed.plain import step_flops
from anyorder.fast import freeze
from anyorder.likelihood.ensemble import (
    Groups,
    check_ensemble,
    ensemble_block_nll,
    group_contexts,
    sample_groups,
)
from anyorder.machine.devices import autocast, matmul_flops, resolve_device, seconds
from anyorder.orders import sample_order


@torch.no_grad()
def main(config):
    N = config.block_size
    M = config.n_contexts
    width = config.ensemble_block
    at_least(config, 2, 'n_contexts', 'block_size')
    at_least(config, 1, 'n_plain', 'repeats')
    check_ensemble(config)
    if config.n_positions > N:
        raise ValueError(f'n_positions must be at most block_size={N}, got {config.n_positions}')
    device, dtype = resolve_device(config.device, config.dtype)
    model = random_model(config, device)
    idx = torch.randint(config.n_tokens, (N,))
    order = sample_order(1, N)[0]
    groups, _ = sample_groups(N, width, config.n_positions, config.seed)
    n_visits = sum(min(width, N - g * width) for g in groups)
    n_passes = n_visits * M  # of the plain way
    rows = whole_contexts(order, config).to(device)
    print(
        f'{about(model, config)}, {device}, {dtype}; {n_visits} visits in {M} contexts, '
        f'ensemble_block {width}'
    )

    # The plain way
    def plain():
        for part in rows.split(16):
            model(idx.to(device).expand(len(part), N), part)

    with autocast(device, dtype):
        plain()
        slow = seconds(plain, device, config.repeats) / len(rows) * n_passes

    # Ours, whose padding counts as what it costs
    frozen = freeze(model, getattr(torch, dtype))
    slots = []
    heads = []
    flops = []

    def count(_, args, options):  # args of forward(idx, order, columns=)
        order = args[1]
        wanted = options.get('columns', order)
        slots.append(order.numel())
        heads.append(wanted.numel())
        R, S = order.shape
        flops.append(R * step_flops(model.config, -1, S - wanted.size(1), S))  # at least

    def ensemble():
        ensemble_block_nll(frozen, idx, order, M, Groups(groups, width), config.seed, 16 * N)

    frozen.register_forward_pre_hook(count, with_kwargs=True)
    ours = seconds(ensemble, device, config.repeats)
    n_slots = sum(slots) // config.repeats
    n_heads = sum(heads) // config.repeats
    limit = sum(flops) / config.repeats / matmul_flops(device, getattr(torch, dtype))
    print(f'{"":<10}{"slots":>14}{"head rows":>14}{"seconds":>10}{"of limit":>10}')
    print(f'{"ours":<10}{n_slots:>14,}{n_heads:>14,}{ours:>10.2f}{limit / ours:>10.1%}')
    timed = f'({len(rows)} of {n_passes:,} passes timed)'
    print(f'{"plain":<10}{n_passes * N:>14,}{n_passes * N:>14,}{slow:>10.2f}   {timed}')
    print(f'ours is {slow / ours:.1f} times as fast')


def whole_contexts(order, config):
    """Return whole orders (n_plain, N): contexts of the last visits, and then what follows them."""
    N = len(order)
    rows = []
    for visit in range(N - 1, max(0, N - 1 - config.n_plain), -1):
        context = group_contexts(order, visit, 1, 1, config.seed)
        rows.append(torch.cat([context, order[None, visit + 1 :]], 1))
    return torch.cat(rows)


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
