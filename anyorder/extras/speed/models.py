"""What do the benchmarks time? Models with random weights, and updates of them."""

from functools import partial

import numpy as np
import torch

from anyorder.extras.speed.peak import peak_memory
from anyorder.fast import lean
from anyorder.machine.devices import resolve_compile, seconds
from anyorder.networks import network_fields
from anyorder.tokens.sets import Split
from anyorder.tokens.tokenizer import type_of
from anyorder.training.update import TrainState, make_optimizers, update
from configurator import Config, at_least, numbers
from model import AOGPT, EMA, AOGPTConfig

MIB = 2**20
SIZES = ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd')


def random_model(config, device, network='decoder'):
    """Return a model with random weights, of the sizes that are given."""
    at_least(config, 1, 'n_tokens', *SIZES)
    torch.manual_seed(config.seed)
    sizes = {name: config[name] for name in SIZES}
    kind = network_fields(network)
    model = AOGPT(AOGPTConfig(n_tokens=config.n_tokens, **sizes, **kind))
    return model.to(device).eval()


def about(model, config, batch_size=1):
    return (
        f'{model.n_parameters():,} parameters, batch {batch_size} x {config.block_size} '
        f'tokens, vocabulary {config.vocab_size}, torch {torch.__version__}'
    )


def numbers_or_none(config, name):
    """See numbers; '' is none."""
    return numbers(config, name, 1) if config[name] else []


def training_step(config, device, dtype, network='decoder'):
    """Return (model with random weights, whether it is compiled, a function that makes an update).

    The update is that of train.py."""
    state, split, run = start_training(config, device, dtype, network)
    compiled = wants_compile(config, device)
    if compiled:
        state.run_model = torch.compile(state.model)
    return state.model, compiled, partial(update, state, split, 1e-3, run)


def start_training(config, device, dtype, network='decoder'):
    """Return (the TrainState of a model with random weights, random tokens, options of update)."""
    model = lean(random_model(config, device, network).train())
    l2r_ratio = 0.0 if model.slots.masked_loss else 0.1
    run = Config(
        batch_size=config.batch_size,
        gradient_accumulation_steps=1,
        block_size=config.block_size,
        grad_clip=1.0,
        l2r_ratio=l2r_ratio,
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
    return state, [Split(random_tokens(config))], run


def wants_compile(config, device):
    asked = 'auto' if config.compile else False
    compiled, _ = resolve_compile(asked, device, float('inf'), 2000)
    return compiled


def random_tokens(config):
    dtype = type_of(config.n_tokens, 16).type
    return np.random.default_rng(0).integers(config.n_tokens, size=2**20, dtype=dtype)


def times_of(write, device, repeats):
    """Return {'first', 'later': seconds of calls, 'peak_bytes'}."""
    peak_memory(device, reset=True)
    first = seconds(write, device, 1)
    later = seconds(write, device, repeats)
    return {'first': first, 'later': later, 'peak_bytes': peak_memory(device)}


def times_of_update(step, config, device):
    """Return {'first', 'seconds', 'peak_bytes'} of a call of `step`.

    The first call compiles and warms up; the memory is that of the later ones."""
    first = seconds(step, device, 1)
    peak_memory(device, reset=True)

    def updates():
        for _ in range(config.n_updates):
            step()

    later = seconds(updates, device, config.repeats) / config.n_updates
    return {'first': first, 'seconds': later, 'peak_bytes': peak_memory(device)}


# of a table of updates
HEADING = (
    f'{"":<10}{"dtype":>10}{"compiled":>10}{"first s":>10}{"ms/update":>11}{"tokens/s":>11}'
    f'{"MFU":>8}{"peak MiB":>10}'
)


def format_row(row):
    """Return a line of the table under HEADING."""
    line = f'{row["name"]:<10}{row["dtype"]:>10}{row["compiled"]!s:>10}{row["first"]:>10.1f}'
    line += f'{1000 * row["seconds"]:>11,.1f}{row["tokens_per_sec"]:>11,.0f}'
    return line + f'{row["mfu"]:>8.1%}{row["peak_bytes"] / MIB:>10,.0f}'
