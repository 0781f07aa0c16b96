"""
How is the gradient of AdaLN's table best summed? Timed: Rows, which sorts and sums, beside atomic additions.

    python results/gpu/rows.py

Every slot reads a row of the table (N, 6 C). Milliseconds forward and backward by fast.Rows, by F.embedding and by an
index.
"""
import os
import sys

if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import torch
import torch.nn.functional as F

from anyorder.fast import Rows
from anyorder.machine.devices import resolve_device, seconds
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import sample_order
from configurator import configure

batch_size = 16
block_size = 1024
n_embd = 768
repeats = 5
device = 'auto'   # 'cuda', 'cpu', ...
dtype = 'auto'    # 'float32', 'bfloat16' or 'auto'

WAYS = {'Rows': Rows.apply, 'F.embedding': lambda table, index: F.embedding(index, table),
        'an index': lambda table, index: table[index]}


def main(config):
    device, dtype = resolve_device(config.device, config.dtype)
    B, N, width = config.batch_size, config.block_size, 6 * config.n_embd
    table = torch.randn(N, width, device=device, dtype=getattr(torch, dtype), requires_grad=True)
    order = sample_order(B, N, device=device)
    grad = torch.randn(B, N, width, device=device, dtype=table.dtype)
    print(f'{B} x {N} slots of width {width}, {device}, {dtype}, torch {torch.__version__}\n'
          f"{'':<14}{'ms':>10}{'times the first':>18}")
    first = None
    for name, read in WAYS.items():
        def both(read=read):
            torch.autograd.grad(read(table, order), table, grad)
        both()
        time = seconds(both, device, config.repeats)
        first = first or time
        print(f'{name:<14}{1000 * time:>10.3f}{time / first:>18.2f}', flush=True)


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
