"""What would a run cost, before a GPU is rented?

    python train.py config/ao_gpt_small.py --plan=8xH100
    python train.py config/quickstart.py --plan=165:24

A machine that is not here is A100, H100, H200, or the TFLOP/s and GiB of another one, with their
number before it. It says parameters, FLOPs, hours, memory, and what the run leaves on disk. Nothing
is trained or written: the network is built on PyTorch's meta device, which keeps shapes and no
numbers."""

import itertools
import os
import re
from bisect import bisect_right
from dataclasses import dataclass, replace

import torch

from anyorder.checkpoint import Unset
from anyorder.datasets import open_split
from anyorder.extras.speed.memory import Setup, memory
from anyorder.machine.devices import GPU, GPUS, resolve_device, worth_compiling
from anyorder.machine.files import on_hub
from anyorder.tokens.apart import check_documents, keeps_apart
from anyorder.tokens.meta import Meta, kind_of, read_meta
from anyorder.tokens.mixture import kind_of_all, weights_in
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.sets import check_length, dtype_of, whole_splits
from anyorder.tokens.tokenizers import MAKERS, TEXT, get_tokenizer
from anyorder.training.clock import training_flops
from anyorder.training.sharding import saves_by
from anyorder.training.start import (
    check_options,
    model_config,
    n_kept,
    never_reached,
    optimizer_in,
    resolve_start,
    same_update,
    start_checkpoint,
    written_out,
)
from anyorder.weights import WithoutDraws
from configurator import Config

GIB = 2**30
MFUS = 0.3, 0.4, 0.5
NODE = 8  # GPUs of a node of the machines that are rented
# what no plan has of a GPU's memory
CUDA = 1  # GiB for CUDA itself
LOST = 0.05  # share that is lost between tensors


@dataclass(frozen=True)
class Plan:
    """What is known of a run before it begins.

    config       its options
    model        on the meta device
    vocabulary   where the number of its tokens comes from, in words
    metas        {name: Meta} of its data sets that are prepared here
    length       tokens of a sequence
    dtype        of the matrix products
    gpu          the machine, `name` and how many of them"""

    config: Config
    model: torch.nn.Module
    vocabulary: str
    metas: dict[str, Meta]
    length: int
    dtype: str
    gpu: GPU
    name: str
    world_size: int


def lines_of(config):
    """Yield the lines of the plan of a run with these options, on the machine config.plan."""
    world_size, name, gpu = parse_machine(config.plan)

    # The shape: of a checkpoint that is here, else of the options
    start = resolve_start(config.init_from, config.out_dir)
    checkpoint = None
    if on_hub(start):
        config = Config(config | written_out(config, {}))
    else:
        checkpoint, config, _ = start_checkpoint(config)
    check_options(config, world_size)
    dtype = 'bfloat16' if config.dtype == 'auto' else config.dtype
    _, dtype = resolve_device('cpu', dtype)
    metas = prepared_sets(config)
    n_tokens, where = vocabulary(config, metas, checkpoint)
    with torch.device('meta'), WithoutDraws():
        model = Unset(model_config(config, n_tokens))
    length = width_of(config, metas)
    plan = Plan(config, model, where, metas, length, dtype, gpu, name, world_size)

    # What it costs
    yield from parameter_lines(plan)
    if on_hub(start):
        origin = f'the shape of {start} is not looked up on the hub'
        yield f'the shape comes from the options: {origin}'
    yield from work_lines(plan)
    setup = setup_of(plan)
    parts = memory(model, setup)
    yield from memory_lines(plan, setup, parts)
    yield from micro_batch_lines(plan, setup)
    yield from disk_lines(plan, setup, parts)


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


def prepared_sets(config):
    """Return {name: Meta} of the data sets of a run that are prepared here, which must fit."""
    metas = {}
    for name in weights_in(config.dataset):
        meta = read_meta(os.path.join(config.data_dir, name))
        if meta:
            metas[name] = meta
    if metas:
        kind_of_all({name: kind_of(meta) for name, meta in metas.items()})
    return metas


def vocabulary(config, metas, checkpoint=None):
    """Return (number of tokens, where it comes from) of a run, see prepared_sets.

    A run that starts from a Checkpoint has its vocabulary."""
    if checkpoint:
        name = checkpoint.tokenizer.name
        return checkpoint.config.n_real, f'{name}, as {checkpoint.name} was trained'
    for dataset, meta in metas.items():
        return meta.n_tokens, f'{meta.tokenizer}, as {dataset} was prepared'
    dataset = next(iter(weights_in(config.dataset)))
    name = 'gpt2'
    if dataset in DATA_SETS:
        name = DATA_SETS[dataset].tokenizer
    elif dataset in (*TEXT, *MAKERS):
        name = dataset
    tokenizer = TEXT.get(name) or get_tokenizer(name)
    return tokenizer.n_tokens, f'{name}; {dataset} is not prepared here'


def width_of(config, metas):
    """Return the tokens of a sequence of the run.

    They are block_size, or those of the longest document if it is shorter and documents are the
    rows of all sets, which are prepared here. Raises ValueError for a set that a run refuses."""
    widths = []
    for name in weights_in(config.dataset):
        directory = os.path.join(config.data_dir, name)
        meta = metas.get(name)
        if 'train' not in whole_splits(directory, meta):
            return config.block_size
        split, _ = open_split(config.data_dir, name, 'train')
        check_documents(split, config.documents, name)
        check_length(split, config.block_size, f'{name}/train')
        widths.append(split.width(config.block_size))
    return max(widths)


# --------------------------------------------------------------------------------------------------
# the lines


def row(name, value, remark=''):
    """Return a line: a name, what is said of it, and a remark."""
    return f'{name:<34}{value:>18}  {remark}'.rstrip()


def parameter_lines(plan):
    yield row('parameters', f'{plan.model.n_parameters():,}')
    for part, n in parameters_by_part(plan.model).items():
        yield row(f'  {part}', f'{n:,}')
    yield row('vocabulary', f'{plan.model.config.n_real:,}', plan.vocabulary)


def parameters_by_part(model):
    """Return {part: number of parameters}, a tied head counted once."""
    parts = dict.fromkeys(('embeddings', 'AdaLN', 'attention', 'MLP', 'norms', 'head'), 0)
    for name, p in model.named_parameters():
        parts[part_of(name)] += p.numel()
    return parts


# (what the name of a parameter has in it, its part); the first that fits
PARTS = (
    ('adaLN', 'AdaLN'),
    ('.attn.', 'attention'),
    ('.mlp.', 'MLP'),
    ('lm_head', 'head'),
    ('ln_', 'norms'),
)


def part_of(name):
    return next((part for word, part in PARTS if word in name), 'embeddings')


def work_lines(plan):
    """Yield the tokens, FLOPs and hours of the updates of the run."""
    config = plan.config
    length = plan.length
    tokens = config.batch_size * config.gradient_accumulation_steps * length
    flops = training_flops(plan.model, config.batch_size, length)
    of_token = flops / config.batch_size / length
    in_all = of_token * tokens * config.max_iters

    padded = ''
    if length < config.block_size:
        padded = f'{length} a sequence, as the longest document has, padding included'
    yield row('tokens an update', f'{tokens:,}', padded)
    yield row('tokens in all', f'{tokens * config.max_iters:,}')
    yield row('GFLOP a token', f'{of_token / 1e9:,.4g}')
    yield row('TFLOP an update', f'{of_token * tokens / 1e12:,.4g}')
    yield row('TFLOP in all', f'{in_all / 1e12:,.4g}')
    if remark := never_reached(config):
        yield remark

    heads = [f'at {mfu:.0%} MFU' for mfu in MFUS]
    yield f'\n{"hours of training":<20}{"TFLOP/s":>14}{in_columns(heads)}'
    shown = {name: GPUS[name] for name in ('A100', 'H100', 'H200')}
    for name, gpu in (shown | {plan.name: plan.gpu}).items():
        rate = plan.world_size * gpu.flops
        hours = [f'{in_all / rate / mfu / 3600:,.4g}' for mfu in MFUS]
        yield f'{f"{plan.world_size} x {name}":<20}{rate / 1e12:>14,.4g}{in_columns(hours)}'
    if plan.dtype != 'bfloat16':
        yield f'TFLOP/s hold for bfloat16; {plan.dtype} takes several times as long'


def in_columns(cells):
    return ''.join(f'{cell:>14}' for cell in cells)


def setup_of(plan):
    """Return the Setup of an update of the run."""
    config = plan.config
    optimizer, _ = optimizer_in(config)
    compiled = config.compile
    if compiled == 'auto':
        compiled = worth_compiling(True, 0, config.max_iters)
    return Setup(
        batch_size=config.batch_size,
        length=plan.length,
        dtype=plan.dtype,
        optimizer=optimizer,
        compiled=compiled,
        n_parts=n_parts(config, plan.world_size),
        recompute=saves_by('recompute', config),
        apart=keeps_apart(config.documents) and not any(map(has_rows, plan.metas.values())),
    )


def has_rows(meta):
    """Whether a block of a set is one text."""
    return meta.prompts or meta.row_length is not None


def n_parts(config, world_size):
    """Return over how many GPUs a run with these options splits what stays."""
    if saves_by('shard', config):
        return world_size
    if saves_by('hybrid', config):
        return min(NODE, world_size)
    return 1


def room_of(gpu):
    """Return the GiB of a GPU that a plan has."""
    return gpu.memory * (1 - LOST) - CUDA


def memory_lines(plan, setup, parts):
    """Yield the memory of an update of the run, {part: bytes}."""
    how = [f'compile={setup.compiled}', plan.dtype]
    if plan.config.save_memory:
        how.append(plan.config.save_memory)
    title = f'memory of one {plan.name}, batch_size={setup.batch_size}'
    yield '\n' + row(title, 'GiB', ', '.join(how))
    for part, n in parts.items():
        yield row(f'  {part}', f'{n / GIB:,.2f}')
    yield row('together', f'{sum(parts.values()) / GIB:,.2f}')
    reserved = "without CUDA's own and what is lost between tensors"
    yield row('there is', f'{room_of(plan.gpu):,.2f}', f'{plan.gpu.memory:g} {reserved}')


def micro_batch_lines(plan, setup):
    """Yield the largest batch_size with and without each way to save memory."""
    ways = ['']
    if plan.world_size > 1:
        ways.append('shard')
    if plan.world_size > NODE:
        ways.append('hybrid')
    yield '\n' + row('the largest micro-batch', 'batch_size', 'for as many sequences in an update')
    for words in itertools.product(('', 'recompute'), ways):
        saved = ','.join(filter(None, words))
        largest = largest_batch(plan, with_savings(setup, saved, plan))
        name = 'as it is'
        if saved:
            name = f'--save_memory={saved}'
        yield row(
            f'  {name}', largest or 'none', same_update(plan.config, plan.world_size, largest)
        )


def with_savings(setup, save_memory, plan):
    config = Config(save_memory=save_memory)
    parts = n_parts(config, plan.world_size)
    return replace(setup, recompute=saves_by('recompute', config), n_parts=parts)


def largest_batch(plan, setup):
    """Return the largest batch_size whose update has room, or 0."""

    def bytes_at(batch_size):
        return sum(memory(plan.model, replace(setup, batch_size=batch_size)).values())

    return bisect_right(range(1, 2**40), room_of(plan.gpu) * GIB, key=bytes_at)


def disk_lines(plan, setup, parts):
    """Yield what the run leaves on disk, and its data set if it is there."""
    n_bytes = parts['weights'] + parts['EMA'] + parts['optimizer']
    n_bytes *= setup.n_parts
    n_files = 2 + n_kept(plan.config)  # the next one is whole before the oldest goes
    if plan.config.keep_best:
        n_files += 1
    yield '\n' + row('disk', 'GiB')
    yield row('  a checkpoint', f'{n_bytes / GIB:,.2f}')
    yield row(f'  {n_files} of them, while one is written', f'{n_files * n_bytes / GIB:,.2f}')
    for name, meta in plan.metas.items():
        n_tokens = sum(split.tokens for split in meta.splits.values())
        size = dtype_of(meta).itemsize
        there = f'{n_tokens:,} tokens of {size} bytes'
        yield row(f'  {name}', f'{size * n_tokens / GIB:,.2f}', there)
