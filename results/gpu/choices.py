"""
What the design chose without a GPU, timed: each choice beside the others.

    python results/gpu/choices.py rows
    python results/gpu/choices.py buckets

rows      how AdaLN's table (N, 6 C) is read by every slot: by Rows, whose gradient is sorted sums, by F.embedding and
          by an index, whose gradients are atomic additions; milliseconds forward and backward
buckets   to how many keys a step is padded, so that CUDA graphs are few: seconds of generation with the graphs that
          there are, of the first time, which records them, and their number. Off CUDA the padded steps run eagerly
"""
import os
import sys

if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import torch
import torch.nn.functional as F

from anyorder import fast
from anyorder.generation.fill import generate
from anyorder.machine.devices import autocast, resolve_device, seconds
from anyorder.orders import sample_order
from configurator import configure, one_line_errors
from model import AOGPT, AOGPTConfig

WORDS = {'rows': "the gradient of AdaLN's table", 'buckets': 'sizes of CUDA graphs'}
batch_size = 16
repeats = 5
device = 'auto'   # 'cuda', 'cpu', ...
dtype = 'auto'    # 'float32', 'bfloat16' or 'auto'
toy = False       # sizes for a CPU


def rows(config, device, dtype):
    B, N, width = (2, 64, 192) if config.toy else (config.batch_size, 1024, 6 * 768)
    table = torch.randn(N, width, device=device, dtype=getattr(torch, dtype), requires_grad=True)
    order = sample_order(B, N, device=device)
    grad = torch.randn(B, N, width, device=device, dtype=table.dtype)
    ways = {'Rows': fast.Rows.apply, 'F.embedding': lambda table, index: F.embedding(index, table),
            'an index': lambda table, index: table[index]}
    print(f'{B} x {N} slots of width {width}, {device}, {dtype}, torch {torch.__version__}\n'
          f"{'':<14}{'ms':>10}{'times the first':>18}")
    first = None
    for name, read in ways.items():
        def both(read=read):
            torch.autograd.grad(read(table, order), table, grad)
        both()
        time = seconds(both, device, config.repeats)
        first = first or time
        print(f'{name:<14}{1000 * time:>10.3f}{time / first:>18.2f}', flush=True)


def buckets(config, device, dtype):
    B, N, C, L = (2, 64, 32, 1) if config.toy else (config.batch_size, 1024, 768, 12)
    model = AOGPT(AOGPTConfig(N, 320, L, C // 16 if config.toy else C // 64, C)).to(device).eval()
    order, keys, padded = sample_order(B, N, device=device), fast.KEYS, fast.padded
    print(f'{B} x {N} tokens in {N} steps, {device}, {dtype}, torch {torch.__version__}\n'
          f"{'keys':<22}{'seconds':>10}{'first':>10}{'graphs':>8}")
    for step in (16, 64) if config.toy else (64, 128, 256, 1024):
        seen = set()

        def counted(slots, cache, seen=seen):
            plan = padded(slots, cache)
            seen.add((plan.sees.shape, plan.columns.shape))
            return plan
        fast.KEYS, fast.padded = step, counted
        with autocast(device, dtype):
            network = fast.freeze(model)
            if device.type == 'cuda':
                fast.graphed(network)
            else:
                trunk = network.trunk
                network.trunk = lambda idx, order, slots, cache, trunk=trunk: trunk(
                    idx, order, fast.padded(slots, cache), cache)[:, :slots.columns.size(1)]

            def write(network=network):
                generate(network, torch.zeros_like(order), order, 0, N, seeds=range(B))
            first = seconds(write, device, 1)
            time = seconds(write, device, 1 if config.toy else 2)
        print(f'{f"multiples of {step}":<22}{time:>10.2f}{first:>10.2f}{len(seen):>8}', flush=True)
    fast.KEYS, fast.padded = keys, padded


def main(config):
    {'rows': rows, 'buckets': buckets}[config.words[0]](config, *resolve_device(config.device, config.dtype))


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
