"""What would a run cost, before a GPU is rented?

    python train.py config/ao_gpt_small.py --plan=8xH100
    python train.py config/quickstart.py --plan=165:24

A machine that is not here is A100, H100, H200, or the TFLOP/s and GiB of another one, with their
number before it. It says parameters, FLOPs, hours, memory, and what a checkpoint takes. Nothing
is trained or written: the network is built on PyTorch's meta device, which keeps shapes and no
numbers."""

import itertools
import os
import re
from bisect import bisect_right
from dataclasses import replace

import torch

from anyorder.checkpoint import Unset
from anyorder.datasets import open_split
from anyorder.extras.speed.memory import Setup, memory
from anyorder.machine.devices import GPU, GPUS, LONG_RUN, resolve_device
from anyorder.tokens.apart import keeps_apart
from anyorder.tokens.blocks import Blocks
from anyorder.tokens.meta import read_meta
from anyorder.tokens.mixture import mixed, weights_in
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.sets import whole_splits
from anyorder.tokens.tokenizers import MAKERS, TEXT, get_tokenizer
from anyorder.training.clock import training_flops
from anyorder.training.sharding import saves_by
from anyorder.training.start import (
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
NODE = 8  # GPUs of a node of the machines that are rented
# what no plan has of a GPU's memory
CUDA = 1  # GiB for CUDA itself
LOST = 0.05  # share that is lost between tensors


def lines_of(config):
    """Yield the lines of the plan of a run with these options, on the machine config.plan."""
    world_size, name, gpu = parse_machine(config.plan)

    # The shape: of a checkpoint that is here, else of the options
    start = resolve_start(config)
    checkpoint = None
    if on_hub(start):
        config = Config(config | written_out(config, {}))
    else:
        config, checkpoint, *_ = open_start(config)
    check_options(config, world_size)
    _, dtype = resolve_device('cpu', 'bfloat16' if config.dtype == 'auto' else config.dtype)
    sets = sets_here(config)
    n_tokens, where = vocabulary(config, sets, checkpoint)
    with torch.device('meta'), WithoutDraws():
        model = Unset(model_config(config, n_tokens))
    compiled = config.compile
    if compiled == 'auto':
        compiled = config.max_iters >= LONG_RUN
    has_rows = not all(blocks.meta.is_stream for blocks in sets.values())
    length = config.block_size
    if sets.keys() == weights_in(config.dataset).keys():
        length = max(blocks.width for blocks in sets.values())  # less than that of short documents
    setup = Setup(
        batch_size=config.batch_size,
        length=length,
        dtype=dtype,
        optimizer=config.optimizer,
        compiled=compiled,
        n_parts=n_parts(config.save_memory, world_size),
        recompute=saves_by('recompute', config),
        apart=keeps_apart(config.documents) and not has_rows,
    )

    # What it costs
    yield row('parameters', f'{model.n_parameters():,}')
    yield row('vocabulary', f'{model.config.n_real:,}', where)
    if on_hub(start):
        origin = f'the shape of {start} is not looked up on the hub'
        yield f'the shape comes from the options: {origin}'
    yield from work_lines(config, model, setup, world_size * gpu.flops)
    yield from memory_lines(config, model, setup, world_size, name, gpu)


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
    name = 'gpt2'
    if dataset in DATA_SETS:
        name = DATA_SETS[dataset].tokenizer
    elif dataset in (*TEXT, *MAKERS):
        name = dataset
    return get_tokenizer(name).n_tokens, f'{name}; {dataset} is not prepared here'


# --------------------------------------------------------------------------------------------------
# the lines


def row(name, value, remark=''):
    """Return a line: a name, what is said of it, and a remark."""
    return f'{name:<34}{value:>18}  {remark}'.rstrip()


def work_lines(config, model, setup, rate):
    """Yield the tokens, FLOPs and hours of the run on GPUs of `rate` FLOP/s."""
    length = setup.length
    tokens = config.batch_size * config.gradient_accumulation_steps * length
    of_token = training_flops(model, config.batch_size, length) / config.batch_size / length
    validation = Validation(config)
    n_orders = len(validation.orders)
    n_validations = -(-config.max_iters // config.eval_interval)
    n_blocks = validation.n_blocks * len(weights_in(config.dataset))
    measured = n_blocks * length * n_orders * n_validations
    of_validations = of_token / 3 * measured  # without a backward pass
    in_all = of_token * tokens * config.max_iters + of_validations
    padded = ''
    if length < config.block_size:
        padded = f'{length} a sequence, as the longest document has, padding included'
    yield row('tokens an update', f'{tokens:,}', padded)
    yield row('tokens in all', f'{tokens * config.max_iters:,}')
    yield row('GFLOP a token', f'{of_token / 1e9:,.4g}')
    yield row('TFLOP an update', f'{of_token * tokens / 1e12:,.4g}')
    yield row('TFLOP of validations', f'{of_validations / 1e12:,.4g}', f'{n_orders} orders')
    yield row('TFLOP in all', f'{in_all / 1e12:,.4g}')

    yield '\n' + row('hours of training', 'hours', f'at {rate / 1e12:,.4g} TFLOP/s')
    for mfu in MFUS:
        yield row(f'  at {mfu:.0%} MFU', f'{in_all / rate / mfu / 3600:,.4g}')
    if setup.dtype != 'bfloat16':
        yield f'TFLOP/s hold for bfloat16; {setup.dtype} takes several times as long'


def n_parts(save_memory, world_size):
    """Return over how many GPUs a run that saves memory so splits what stays."""
    if saves_by('shard', Config(save_memory=save_memory)):
        return world_size
    if saves_by('hybrid', Config(save_memory=save_memory)):
        return min(NODE, world_size)
    return 1


def memory_lines(config, model, setup, world_size, name, gpu):
    """Yield the memory of an update, the largest micro-batches, and what checkpoints take."""
    parts = memory(model, setup)
    room = gpu.memory * (1 - LOST) - CUDA
    how = f'compile={setup.compiled}, {setup.dtype}'
    if config.save_memory:
        how += f', {config.save_memory}'
    yield '\n' + row(f'memory of one {name}, batch_size={setup.batch_size}', 'GiB', how)
    for part, n in parts.items():
        yield row(f'  {part}', f'{n / GIB:,.2f}')
    yield row('together', f'{sum(parts.values()) / GIB:,.2f}')
    reserved = "without CUDA's own and what is lost between tensors"
    yield row('there is', f'{room:,.2f}', f'{gpu.memory:g} {reserved}')

    # The largest batch_size with and without each way to save memory
    ways = ['']
    if world_size > 1:
        ways.append('shard')
    if world_size > NODE:
        ways.append('hybrid')
    yield '\n' + row('the largest micro-batch', 'batch_size', 'for as many sequences in an update')
    for words in itertools.product(('', 'recompute'), ways):
        saved = ','.join(filter(None, words))
        of_way = replace(setup, recompute=bool(words[0]), n_parts=n_parts(saved, world_size))

        def bytes_at(batch_size, of_way=of_way):
            return sum(memory(model, replace(of_way, batch_size=batch_size)).values())

        largest = bisect_right(range(1, 2**40), room * GIB, key=bytes_at)
        title = f'--save_memory={saved}' if saved else 'as it is'
        yield row(f'  {title}', largest or 'none', same_update(config, world_size, largest))

    n_bytes = setup.n_parts * (parts['weights'] + parts['EMA'] + parts['optimizer'])
    n_files = 3 + bool(config.keep_best)  # the newest, the one before it, and the next one
    yield '\n' + row('disk', 'GiB')
    yield row('  a checkpoint', f'{n_bytes / GIB:,.2f}')
    yield row(f'  {n_files} of them, while one is written', f'{n_files * n_bytes / GIB:,.2f}')


def same_update(c, world_size, largest):
    """Return the options by which `world_size` processes share an update of as many sequences.

    Micro-batches have at most `largest`, and validation no fewer blocks. '': nothing does it."""
    each, rest = divmod(c.batch_size * c.gradient_accumulation_steps, world_size)
    if rest:
        return ''
    most = min(largest, each)
    batch_size = max((n for n in range(1, most + 1) if each % n == 0), default=0)
    if not batch_size:
        return ''
    n_micro = each * world_size // batch_size
    eval_iters = -(-c.eval_iters * c.batch_size // batch_size)
    return (
        f'--batch_size={batch_size} --gradient_accumulation_steps={n_micro} '
        f'--eval_iters={eval_iters}'
    )
