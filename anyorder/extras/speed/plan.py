"""What would a run cost, before a GPU is rented?

    python train.py config/ao_gpt_small.py --plan=8xH100
    python train.py config/quickstart.py --plan=165:24

A machine that is not here is A100, H100, H200, or the TFLOP/s and GiB of another one, with their
number before it. It says parameters, FLOPs, hours, memory, and what a checkpoint takes. Nothing
is trained or written: the network is built on PyTorch's meta device, which keeps shapes and no
numbers."""

import os
import re
from bisect import bisect_right

import torch

from anyorder.checkpoint import Unset
from anyorder.datasets import open_split
from anyorder.extras.speed.memory import NODE, memory, n_parts
from anyorder.flops import GPU, GPUS
from anyorder.machine.devices import resolve_device
from anyorder.tokens.apart import keeps_apart
from anyorder.tokens.blocks import Blocks, width_of
from anyorder.tokens.meta import read_meta, whole_splits
from anyorder.tokens.mixture import mixed, weights_in
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.tokenizer import MAKERS, TEXT, get_tokenizer
from anyorder.training.clock import Clock
from anyorder.training.sharding import SAVINGS
from anyorder.training.start import (
    LONG_RUN,
    check_options,
    model_config,
    open_start,
    resolve_start,
    written_out,
)
from anyorder.training.validation import Validation
from anyorder.weights import WithoutDraws, on_hub
from configurator import Config

GIB = 2**30
MFUS = 0.3, 0.4, 0.5
# what no plan has of a GPU's memory
CUDA = 1  # GiB for CUDA itself
LOST = 0.05  # share that is lost between tensors


def lines_of(config):
    """Yield the lines of the plan of a run with these options, on the machine config.plan."""
    world_size, name, gpu = parse_machine(config.plan)

    # The shape: of a checkpoint that is here, else of the options
    start = resolve_start(config)
    checkpoint = None
    shape = ''
    if on_hub(start):
        config = Config(config | written_out(config, {}))
        shape = f'by the options, as the shape of {start} is not looked up on the hub'
    else:
        config, checkpoint = open_start(config)
    check_options(config, world_size)
    _, dtype = resolve_device('cpu', 'bfloat16' if config.dtype == 'auto' else config.dtype)
    sets = sets_here(config)
    n_tokens, where = vocabulary(config, sets, checkpoint)
    with torch.device('meta'), WithoutDraws():
        model = Unset(model_config(config, n_tokens))
    are_streams = all(blocks.meta.is_stream for blocks in sets.values())
    run = Config(
        config,
        dtype=dtype,
        length=config.block_size,
        apart=keeps_apart(config.documents) and are_streams,
        world_size=world_size,
    )
    if run.compile == 'auto':
        run['compile'] = run.max_iters >= LONG_RUN
    if sets.keys() == weights_in(run.dataset).keys():
        run['length'] = width_of(sets.values())  # less than block_size of short documents

    # What it costs
    yield row('parameters', model.n_parameters(), ',', shape)
    yield row('vocabulary', model.config.n_real, ',', where)
    yield from work_lines(run, model, world_size * gpu.flops)
    yield from memory_lines(run, model, name, gpu)


def parse_machine(text):
    """Return (number of GPUs, name, GPU) of 'H100', of '8xH100', or of 'TFLOPS:GiB' as measured."""
    count, name = re.fullmatch(r'(?:(\d+)x)?(.*)', text).groups()
    numbers = re.fullmatch(r'(\d*\.?\d+):(\d*\.?\d+)', name)
    n = int(count or 1)
    name = name.upper()
    known = GPUS.get(name)
    if numbers and min(map(float, numbers.groups())) > 0:
        known = GPU('', float(numbers[1]) * 1e12, float(numbers[2]))
    if n < 1 or known is None:
        raise ValueError(
            f'plan must be one of {", ".join(GPUS)}, or for another machine its bfloat16 TFLOP/s '
            f'and GiB as in 165:24, with their number before it as in 8xH100, got {text!r}'
        )
    return n, name, known


def sets_here(config):
    """Return {name: Blocks} of the sets of a run that are prepared here, which must fit."""
    found = {}
    for name in weights_in(config.dataset):
        directory = os.path.join(config.data_dir, name)
        if 'train' in whole_splits(directory, read_meta(directory)):
            split = open_split(config.data_dir, name, 'train')
            found[name] = Blocks(split, config.block_size, config.documents)
    if found:
        mixed([blocks.meta for blocks in found.values()])
    return found


def vocabulary(config, sets, checkpoint=None):
    """Return (number of tokens, where it comes from) of a run, see sets_here.

    A run that starts from a Checkpoint has its vocabulary."""
    if checkpoint:
        name = checkpoint.tokenizer.name
        return checkpoint.config.n_real, f'{name}, as {checkpoint.name} was trained'
    for dataset, blocks in sets.items():
        return blocks.meta.n_tokens, f'{blocks.meta.tokenizer}, as {dataset} was prepared'
    dataset = next(iter(weights_in(config.dataset)))
    name = dataset
    if name not in (*TEXT, *MAKERS):
        name = DATA_SETS.get(name, DATA_SETS['text']).tokenizer
    return get_tokenizer(name).n_tokens, f'{name}; {dataset} is not prepared here'


# --------------------------------------------------------------------------------------------------
# the lines


def row(name, value, form='', remark=''):
    """Return a line: a name, what is said of it in a format, and a remark."""
    return f'{name:<34}{format(value, form):>18}  {remark}'.rstrip()


def work_lines(run, model, rate):
    """Yield the tokens, FLOPs and hours of the run on GPUs of `rate` FLOP/s."""
    clock = Clock(model, run, rate, run.length)
    tokens = clock.tokens_per_iter
    of_token = clock.flops_per_iter / tokens
    validation = Validation(run)
    n_orders = len(validation.orders)
    n_validations = -(-run.max_iters // run.eval_interval)
    n_blocks = validation.n_blocks * len(weights_in(run.dataset))
    measured = n_blocks * run.length * n_orders * n_validations
    of_validations = of_token / 3 * measured  # without a backward pass
    in_all = clock.flops_per_iter * run.max_iters + of_validations
    padded = ''
    if run.length < run.block_size:
        padded = f'{run.length} a sequence, as the longest document has, padding included'
    yield row('tokens an update', tokens, ',', padded)
    yield row('tokens in all', tokens * run.max_iters, ',')
    yield row('GFLOP a token', of_token / 1e9, ',.4g')
    yield row('TFLOP an update', clock.flops_per_iter / 1e12, ',.4g')
    yield row('TFLOP of validations', of_validations / 1e12, ',.4g', f'{n_orders} orders')
    yield row('TFLOP in all', in_all / 1e12, ',.4g')

    yield '\n' + row('hours of training', 'hours', '', f'at {rate / 1e12:,.4g} TFLOP/s')
    for mfu in MFUS:
        yield row(f'  at {mfu:.0%} MFU', in_all / rate / mfu / 3600, ',.4g')
    if run.dtype != 'bfloat16':
        yield f'TFLOP/s hold for bfloat16; {run.dtype} takes several times as long'


def memory_lines(run, model, name, gpu):
    """Yield the memory of an update, the largest micro-batches, and what checkpoints take."""
    parts = memory(model, run)
    room = gpu.memory * (1 - LOST) - CUDA
    how = f'compile={run.compile}, {run.dtype}'
    if run.save_memory:
        how += f', {run.save_memory}'
    yield '\n' + row(f'memory of one {name}, batch_size={run.batch_size}', 'GiB', '', how)
    for part, n in parts.items():
        yield row(f'  {part}', n / GIB, ',.2f')
    yield row('together', sum(parts.values()) / GIB, ',.2f')
    yield row(
        'there is',
        room,
        ',.2f',
        f"{gpu.memory:g} without CUDA's own and what is lost between tensors",
    )

    # The largest batch_size with and without each way to save memory
    yield '\n' + row(
        'the largest micro-batch', 'batch_size', '', 'for as many sequences in an update'
    )
    for saved in ('', *SAVINGS):
        n_needed = 1
        if 'shard' in saved:
            n_needed = 2
        elif 'hybrid' in saved:
            n_needed = NODE + 1
        if run.world_size < n_needed:
            continue

        def bytes_at(batch_size, saved=saved):
            other = Config(run, batch_size=batch_size, save_memory=saved)
            return sum(memory(model, other).values())

        largest = bisect_right(range(1, 2**40), room * GIB, key=bytes_at)
        title = f'--save_memory={saved}' if saved else 'as it is'
        yield row(f'  {title}', largest or 'none', '', same_update(run, largest))

    n_bytes = n_parts(run) * (parts['weights'] + parts['EMA'] + parts['optimizer'])
    n_files = 3 + bool(run.keep_best)  # the newest, the one before it, and the next one
    yield '\n' + row('disk', 'GiB')
    yield row('  a checkpoint', n_bytes / GIB, ',.2f')
    yield row(f'  {n_files} of them, while one is written', n_files * n_bytes / GIB, ',.2f')


def same_update(run, largest):
    """Return the options by which its processes share an update of as many sequences.

    Micro-batches have at most `largest`, and validation no fewer blocks. '': none is small
    enough."""
    each = run.batch_size * run.gradient_accumulation_steps // run.world_size
    batch_size = max((n for n in range(1, min(largest, each) + 1) if each % n == 0), default=0)
    if not batch_size:
        return ''
    n_micro = each * run.world_size // batch_size
    eval_iters = -(-run.eval_iters * run.batch_size // batch_size)
    return (
        f'--batch_size={batch_size} --gradient_accumulation_steps={n_micro} '
        f'--eval_iters={eval_iters}'
    )
