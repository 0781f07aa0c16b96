"""How many FLOPs does an update take, and how many a second could its device do?"""

import time
from functools import cache
from typing import NamedTuple

import torch

# the part of all pairs of slots that training needs; other networks need all
PAIRS = {'causal': 1 / 2, 'mixed': 2 / 3}


def training_flops(model, batch_size, N):
    """Return the model's FLOPs of a training step on batch_size sequences, forward and backward.

    A sequence has N tokens. Every weight of a matrix product takes 6 a slot (AdaLN: 6 a position;
    embeddings: none). Attention takes 12 N C a slot and layer, times the share of the pairs that
    see each other. The content of two streams has no last layer but its keys."""
    c = model.config
    tokens = batch_size * N
    n_layers = c.n_layer
    is_double = c.target_position == 'two_stream'
    if is_double:
        n_layers = 2 * c.n_layer - 1
    products = 0
    for name, n in weights_of_products(model).items():
        n_slots = N if 'adaLN' in name else tokens
        if is_double and serves_content(name, c.n_layer):
            n_slots = 2 * tokens
        products += n_slots * n
    pairs = n_layers * N * c.n_embd * PAIRS.get(c.attention, 1)
    return 6 * (products + 2 * tokens * pairs)


def weights_of_products(model):
    """Return {name of a matrix that is multiplied by: how many weights it has}."""
    linear = torch.nn.Linear
    return {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, linear)}


def serves_content(name, n_layer):
    """Whether the stream of content runs this matrix: in the last layer it gives keys alone."""
    is_last = f'.h.{n_layer - 1}.' in name
    return '.h.' in name and (not is_last or 'c_attn' in name)


class GPU(NamedTuple):
    reported: str  # part of the name that its driver reports
    flops: float  # dense bfloat16 FLOP/s of the data sheet
    memory: float  # GiB that PyTorch finds; the data sheets say 80, 80, 141 and 141 GB


GPUS = {
    'A100': GPU('A100', 312e12, 79),
    'H100': GPU('H100 80GB HBM3', 989e12, 79),
    'H200 NVL': GPU('H200 NVL', 836e12, 139),
    'H200': GPU('H200', 989e12, 139),
}


def peak_flops(device, dtype):
    """Return the FLOP/s that the device could do in `dtype`: from its data sheet where known, else
    from a large product."""
    if device.type == 'cuda' and dtype == 'bfloat16':
        gpu = torch.cuda.get_device_name(device)
        known = [row.flops for row in GPUS.values() if row.reported in gpu]
        if known and 'MIG' not in gpu:  # a slice of a GPU is measured
            return known[0]
    return matmul_flops(device, getattr(torch, dtype))


@cache  # it takes a second, and a process may start several runs
def matmul_flops(device, dtype):
    """Return the FLOP/s of a large matrix product, the best of six."""
    n = 8192 if device.type == 'cuda' else 2048
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / seconds(lambda: a @ b, device, 6)


def seconds(function, device, repeats):
    """Return the wall-clock seconds of the fastest of `repeats` calls, with the device's work."""

    def now():
        if device.type != 'cpu':
            torch.accelerator.synchronize(device)
        return time.perf_counter()

    found = []
    for _ in range(repeats):
        start = now()
        function()
        found.append(now() - start)
    return min(found)
