"""What do the benchmarks time? Models with random weights, and updates of them. How is it said?"""

import math
from functools import partial
from pathlib import Path

import numpy as np
import torch

from anyorder.fast import lean
from anyorder.machine.devices import LONG_RUN, peak_flops, resolve_compile, seconds
from anyorder.networks import network_fields
from anyorder.tokens.blocks import Blocks
from anyorder.tokens.meta import Meta
from anyorder.tokens.sets import Split
from anyorder.tokens.tokenizer import type_of
from anyorder.training.update import TrainState, make_optimizers, update
from configurator import Config, at_least
from model import AOGPT, EMA, AOGPTConfig

SIZES = ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd')


def random_model(config, device):
    """Return a model with random weights, of the sizes and the network that are given."""
    at_least(config, 1, 'n_tokens', *SIZES)
    torch.manual_seed(config.seed)
    sizes = {name: config[name] for name in SIZES}
    model = AOGPT(AOGPTConfig(n_tokens=config.n_tokens, **sizes, **network_fields(config.network)))
    return model.to(device).eval()


def training_step(config, device, dtype):
    """Return (model with random weights, whether updates are compiled, a function that makes one).

    The update is that of train.py."""
    model = lean(random_model(config, device).train())
    run = Config(
        batch_size=config.batch_size,
        gradient_accumulation_steps=1,
        block_size=config.block_size,
        grad_clip=1.0,
        l2r_ratio=0.0 if model.slots.masked_loss else 0.1,
        dtype=dtype,
        seed=config.seed,
        optimizer=config.optimizer,
        learning_rate=1e-3,
        muon_learning_rate=0.02,
        weight_decay=0.05,
        beta1=0.9,
        beta2=0.95,
    )
    state = TrainState(model, make_optimizers(model, run), EMA(model, 0.9999))
    asked = 'auto' if config.compile else False
    compiled, _ = resolve_compile(asked, device, math.inf, LONG_RUN)
    if compiled:
        state.run_model = torch.compile(model)
    split = Split(random_tokens(config), Meta(n_tokens=config.n_tokens))
    sets = [Blocks(split, config.block_size)]
    return model, compiled, partial(update, state, sets, run.learning_rate, run)


def random_tokens(config):
    dtype = type_of(config.n_tokens, 16).type
    return np.random.default_rng(0).integers(config.n_tokens, size=2**20, dtype=dtype)


# --------------------------------------------------------------------------------------------------
# how long it takes


def times_of(work, device, repeats, n_steps, n_tokens):
    """Return {what: number} of calls of `work`, which makes n_steps steps for n_tokens tokens.

    first  seconds of the first call, which compiles and warms up
    later  of the fastest of `repeats` later ones, of which tokens_per_sec and peak_mib are, too"""
    first = seconds(work, device, 1)
    peak_memory(device, reset=True)
    later = seconds(work, device, repeats)
    return {
        'steps': n_steps,
        'first': first,
        'later': later,
        'ms_per_step': 1000 * later / n_steps,
        'tokens_per_sec': n_tokens / later,
        'peak_mib': peak_memory(device) / 2**20,
    }


def times_of_updates(step, flops, config, device, dtype):
    """Return the times of config.n_updates calls of `step`, and their MFU; one takes `flops`."""
    n = config.n_updates

    def updates():
        for _ in range(n):
            step()

    n_tokens = n * config.batch_size * config.block_size
    row = times_of(updates, device, config.repeats, n, n_tokens)
    return row | {'mfu': n * flops / row['later'] / peak_flops(device, dtype)}


def peak_memory(device, reset=False):
    """Return the most bytes that the GPU's allocator gave, else that the process had.

    They are counted since the last reset; nan where there is no /proc. With `reset` begin to count
    anew."""
    if device.type == 'cuda':
        if reset:
            return torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    try:
        if reset:
            return Path('/proc/self/clear_refs').write_text('5')
        said = Path('/proc/self/status').read_text()
        return 1024 * int(said.partition('VmHWM:')[2].split()[0])
    except OSError:
        return math.nan


# --------------------------------------------------------------------------------------------------
# the table

# {what a row says: (title, format)} of what is timed
TIMES = {
    'name': ('', ''),
    'steps': ('steps', ''),
    'first': ('first s', '.2f'),
    'later': ('later s', '.2f'),
    'ms_per_step': ('ms/step', ',.1f'),
    'tokens_per_sec': ('tokens/s', ',.0f'),
    'peak_mib': ('peak MiB', ',.0f'),
    'of_limit': ('of limit', '.1%'),
    'mfu': ('MFU', '.1%'),
}
