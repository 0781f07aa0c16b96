"""What would a run cost? Its parameters, FLOPs, hours and memory, and what it leaves on disk, before a GPU is rented.

Nothing is trained or written: the network is built on PyTorch's meta device, which keeps shapes and no numbers."""

import itertools
import os
import re
from bisect import bisect_right
from functools import partial

import torch

from anyorder.checkpoint import Unset
from anyorder.datasets import open_split
from anyorder.machine.devices import GPU, GPUS, resolve_device, worth_compiling
from anyorder.machine.files import on_hub
from anyorder.orders import order_option
from anyorder.others.weights import WithoutDraws
from anyorder.tokens.meta import read_meta
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.sets import dtype_of, whole_splits
from anyorder.tokens.tokenizers import TOKENIZERS
from anyorder.training.memory import memory
from anyorder.training.start import (
    check_options,
    model_config,
    never_reached,
    resolve_start,
    same_update,
    start_checkpoint,
)
from anyorder.training.update import training_flops
from configurator import Config

GIB = 2**30
MFUS = 0.3, 0.4, 0.5
RESERVE = (
    1,
    0.05,
)  # a GPU's memory that no plan has: GiB for CUDA itself, share lost between tensors


def parse_machine(text):
    """(number of GPUs, name, GPU) for 'H100', '8xH100', or 'TFLOPS:GiB' of a machine that was measured."""
    count, name = re.fullmatch(r'(?:(\d+)x)?(.*)', text).groups()
    numbers = re.fullmatch(r'(\d*\.?\d+):(\d*\.?\d+)', name)
    n, name = int(count or 1), name.upper()
    known = GPUS.get(name)
    if numbers and min(map(float, numbers.groups())) > 0:
        known = GPU('', float(numbers[1]) * 1e12, float(numbers[2]))
    if n < 1 or known is None:
        raise ValueError(
            f'plan must be one of {", ".join(GPUS)}, or TFLOPS:GiB of another machine as in 165:24, with '
            f'their number before it as in 8xH100, got {text!r}'
        )
    return n, name, known


def vocabulary(config, checkpoint=None):
    """(number of tokens, Meta of the data set or None, where both come from) for a run, maybe from a checkpoint."""
    meta = read_meta(os.path.join(config.data_dir, config.dataset))
    if checkpoint:
        return (
            checkpoint.config.n_real,
            meta,
            f'{checkpoint.tokenizer.name}, as {checkpoint.name} was trained',
        )
    if meta:
        return meta.n_tokens, meta, f'{meta.tokenizer}, as {config.dataset} was prepared'
    row = DATA_SETS.get(config.dataset)
    name = row.tokenizer if row else config.dataset if config.dataset in TOKENIZERS else 'gpt2'
    return TOKENIZERS[name].n_tokens, None, f'{name}; {config.dataset} is not prepared here'


def width_of(config, meta):
    """Tokens of a sequence of the run: block_size, or those of the longest document if it is shorter and documents are
    the rows of a set that is prepared here."""
    directory = os.path.join(config.data_dir, config.dataset)
    if not meta or not meta.prompts or 'train' not in whole_splits(directory, meta):
        return config.block_size
    return open_split(config.data_dir, config.dataset, 'train')[0].width(config.block_size)


def parameters_by_part(model):
    """{part: number of parameters}, a tied head counted once."""
    parts = dict.fromkeys(('embeddings', 'AdaLN', 'attention', 'MLP', 'norms', 'head'), 0)
    for name, p in model.named_parameters():
        parts[
            'AdaLN'
            if 'adaLN' in name
            else 'attention'
            if '.attn.' in name
            else 'MLP'
            if '.mlp.' in name
            else 'head'
            if 'lm_head' in name
            else 'norms'
            if 'ln_' in name
            else 'embeddings'
        ] += p.numel()
    return parts


def lines_of(config):
    """Yield the lines of the plan of a run with these options, on the machine that config.plan names."""
    world_size, name, gpu = parse_machine(config.plan)
    start, checkpoint = resolve_start(config.init_from, config.out_dir), None
    if on_hub(start):
        config = Config(config | {'order': order_option(config)})
    else:  # the shape and the options of the run
        checkpoint, config, _ = start_checkpoint(config)
    check_options(config, world_size)
    _, dtype = resolve_device('cpu', 'bfloat16' if config.dtype == 'auto' else config.dtype)
    n_tokens, meta, said = vocabulary(config, checkpoint)
    with torch.device('meta'), WithoutDraws():
        model = Unset(model_config(config, n_tokens))
    sequences = config.batch_size * config.gradient_accumulation_steps
    N = width_of(config, meta)
    tokens, of_token = (
        sequences * N,
        training_flops(model, config.batch_size, N) / config.batch_size / N,
    )

    yield f'{"parameters":<34}{model.n_parameters():>18,}'
    for part, n in parameters_by_part(model).items():
        yield f'  {part:<32}{n:>18,}'
    yield f'{"vocabulary":<34}{n_tokens:>18,}  {said}'
    if on_hub(start):
        yield f'the shape comes from the options: the shape of {start} is not looked up on the hub'
    said = f'{N} a sequence, as the longest document has, padding included'
    yield f'{"tokens an update":<34}{tokens:>18,}  {said if N < config.block_size else ""}'.rstrip()
    yield f'{"tokens in all":<34}{tokens * config.max_iters:>18,}'
    yield f'{"GFLOP a token":<34}{of_token / 1e9:>18,.4g}'
    yield f'{"TFLOP an update":<34}{of_token * tokens / 1e12:>18,.4g}'
    yield f'{"TFLOP in all":<34}{of_token * tokens * config.max_iters / 1e12:>18,.4g}'

    if said := never_reached(config):
        yield said

    yield f'\n{"hours of training":<20}{"TFLOP/s":>14}' + ''.join(
        f'{f"at {mfu:.0%} MFU":>14}' for mfu in MFUS
    )
    for shown, row in {
        **{shown: GPUS[shown] for shown in ('A100', 'H100', 'H200')},
        name: gpu,
    }.items():
        rate = world_size * row.flops
        hours = [of_token * tokens * config.max_iters / rate / mfu / 3600 for mfu in MFUS]
        yield f'{f"{world_size} x {shown}":<20}{rate / 1e12:>14,.4g}' + ''.join(
            f'{h:>14,.4g}' for h in hours
        )
    if dtype != 'bfloat16':
        yield f'TFLOP/s hold for bfloat16; {dtype} takes several times as long'

    compiled = (
        worth_compiling(True, 0, config.max_iters) if config.compile == 'auto' else config.compile
    )
    how = {
        'N': N,
        'dtype': dtype,
        'optimizer': config.optimizer,
        'compiled': compiled,
        'world_size': world_size,
    }
    own = {
        option: config[option]
        for option in ('recompute', 'shard')
        if option != 'shard' or world_size > 1
    }

    def bytes_at(batch_size, **saving):
        return sum(memory(model, batch_size, **how, **saving).values())

    parts, limit = (
        memory(model, config.batch_size, **how, **own),
        gpu.memory * (1 - RESERVE[1]) - RESERVE[0],
    )
    yield (
        f'\n{f"memory of one {name}, batch_size={config.batch_size}":<34}{"GiB":>18}  '
        f'{", ".join([f"compile={compiled}", dtype, *(option for option in own if own[option])])}'
    )
    for part, n in parts.items():
        yield f'  {part:<32}{n / GIB:>18,.2f}'
    yield f'{"together":<34}{sum(parts.values()) / GIB:>18,.2f}'
    yield f"{'there is':<34}{limit:>18,.2f}  {gpu.memory:g} without CUDA's own and what is lost between tensors"

    yield f'\n{"the largest micro-batch":<34}{"batch_size":>18}  for as many sequences in an update'
    for values in itertools.product(*((False, True) for _ in own)):
        saving = dict(zip(own, values))
        largest = bisect_right(range(1, 2**40), limit * GIB, key=partial(bytes_at, **saving))
        said = ' '.join(f'--{option}=True' for option in own if saving[option]) or 'as it is'
        yield f'  {said:<32}{largest or "none":>18}  {same_update(config, world_size, largest)}'.rstrip()

    a_file = (parts['weights'] + parts['EMA'] + parts['optimizer']) * (
        world_size if own.get('shard') else 1
    )
    files = 2 + config.keep_checkpoints  # the next one is whole before the oldest goes
    yield f'\n{"disk":<34}{"GiB":>18}'
    yield f'  {"a checkpoint":<32}{a_file / GIB:>18,.2f}'
    yield f'  {f"{files} of them, while one is written":<32}{files * a_file / GIB:>18,.2f}'
    if meta:
        n, size = sum(split.tokens for split in meta.splits.values()), dtype_of(meta).itemsize
        yield f'  {config.dataset:<32}{size * n / GIB:>18,.2f}  {n:,} tokens of {size} bytes'
