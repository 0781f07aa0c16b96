"""
What would a run cost? Its parameters, FLOPs, hours and memory, and what it leaves on disk, before a GPU is rented.

Nothing is trained, read or written: the network is built on PyTorch's meta device, which keeps shapes and no numbers.
"""
import os
import re

import torch

from anyorder.checkpoint import Unset
from anyorder.devices import GPU, GPUS, resolve_device, training_flops, worth_compiling
from anyorder.orders import order_options
from anyorder.start import check_options, model_config
from anyorder.training import is_hidden
from configurator import Config
from data.prepare import DATA_SETS
from data.sets import read_meta
from data.tokenizers import TOKENIZERS

GIB = 2 ** 30
FLOAT = 4               # bytes of a number in float32: weights, gradients, moments, average, residual stream
MFUS = 0.3, 0.4, 0.5
SHOWN = 'A100', 'H100', 'H200'
RESERVE = 1, 0.05       # of a GPU's memory, not to be planned with: GiB of CUDA itself, share lost between tensors

# What a forward pass keeps for the backward pass, in multiples of the width C: (numbers in float32, numbers in the
# dtype of the products) of a slot in a block. tests/test_plan.py counts them
EAGER = {
    'block': (2, 15),      # residual stream 2; what c_attn 1, c_fc 1 and both c_proj 1 + 4 read, qkv 3, y 1, c_fc 4
    'norm of q, k': (2, 2),
    'AdaLN': (2, 10),      # norms 2; 1 + scale 2, what is gated 2, shifts, scales and gates 6
}
COMPILED = {'block': (2, 14), 'norm of q, k': (0, 1), 'AdaLN': (0, 10)}   # what is cheap is computed again
UNFUSED_NORMS = 4          # eager on a CPU: norms are several operations, numbers in float32


def memory(model, batch_size, *, dtype, optimizer, compiled, world_size=1, shard=False, recompute=False, cuda=True):
    """{part: bytes} of one of `world_size` devices at the peak of an update, which is where the backward pass begins.

    With P parameters, B N tokens of a micro-batch, S slots a token, L layers, width C, b bytes a number of a product:

        weights, gradients, EMA   4 P each: gradients of an earlier micro-batch, or the buckets of several processes
        optimizer     8 P of AdamW, 4 P of the matrices that have Muon
        copies        b P of the matrices, where they are not in float32
        activations   L B S N C (4 f + b p), f and p the sums of EAGER or COMPILED; in the last layer of two streams
                      S is 1; B N C (2 * 4 + 5 b) of the last norm and the head; b L B N^2 of the mixed network's mask
        loss          b B N V of the gradient of the logits, compiled also of the logits
        rest          the largest of what is there for a moment: the logits that LeanHead has in float32, gradients
                      inside the last block

    `shard` divides weights, gradients, EMA and optimizer by `world_size`; gathered for a moment are the weights outside
    of the blocks, and of two blocks. `recompute` keeps the input of a block, and all of one block at a time."""
    c, b = model.config, 2 if dtype == 'bfloat16' else FLOAT
    B, N, V, C, L = batch_size, c.block_size, c.vocab_size, c.n_embd, c.n_layer
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    P, share = sum(sizes.values()), world_size if shard else 1
    n_muon = sum(n for name, n in sizes.items() if optimizer == 'muon' and is_hidden(name, model.get_parameter(name)))
    n_matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    n_blocks = sum(n for name, n in sizes.items() if '.h.' in name)

    of_slot = slot_bytes(c, b, compiled, cuda)
    layers = L if model.slots.n_streams == 1 else (L - 1) * 2 + 1
    mask = b * B * N * N if c.attention == 'mixed' else 0
    masks = 1 if compiled else L
    kept = layers * B * N * of_slot + masks * mask
    of_block = model.slots.n_streams * B * N * of_slot + mask
    if recompute:
        kept = layers * B * N * FLOAT * C + of_block
    head = B * N * C * (2 * FLOAT + 5 * b)

    logits, part = B * N * V, 2 ** 26 if cuda else 2 ** 24   # part: see fast.split_rows
    lean = not compiled or shard   # of a split model the blocks alone are compiled
    widened = b < FLOAT and not cuda   # the log_softmax of a CPU copies its input
    in_parts = (b + FLOAT + FLOAT * widened) * min(logits, part) + FLOAT * min(max(logits - part, 0), part)
    gathered = FLOAT * (P - n_blocks + 3 * n_blocks // L) if shard else 0
    return {
        'weights': FLOAT * P // share,
        'gradients': FLOAT * P // share,
        'optimizer': (2 * FLOAT * P - FLOAT * n_muon) // share,
        'EMA': FLOAT * P // share,
        'bfloat16 copies of the weights': b * n_matrices if b < FLOAT else 0,
        'activations': kept + head,
        'loss': b * logits * (1 if lean else 2),
        'the rest, for a moment': max(in_parts if lean else 0, of_block // 4, FLOAT * V * C) + gathered}


def slot_bytes(config, b, compiled, cuda):
    """Bytes that a block keeps of a slot, see EAGER; b is the bytes of a number of a product."""
    table = COMPILED if compiled else EAGER
    names = {'block'} | ({'norm of q, k'} if not config.gpt2_blocks else set())
    if config.target_position == 'adaln':
        names.add('AdaLN')
    full, product = (sum(table[name][i] for name in names) for i in (0, 1))
    if b == FLOAT and not compiled and not config.gpt2_blocks:
        full -= 2   # q and k are normed as they are
    if not cuda and not compiled and not config.gpt2_blocks:
        full += UNFUSED_NORMS
    return (FLOAT * full + b * product) * config.n_embd + FLOAT * (2 + 3 * config.n_head)


# ---------------------------------------------------------------------------------------------------------------------
# the plan

def parse_machine(text):
    """(number of GPUs, name, GPU) of 'H100', '8xH100', or 'TFLOPS:GiB' of a machine that was measured."""
    count, name = re.fullmatch(r'(?:(\d+)x)?(.*)', text).groups()
    numbers = re.fullmatch(r'(\d*\.?\d+):(\d*\.?\d+)', name)
    n, known = int(count or 1), GPUS.get(name.upper())
    if numbers and min(map(float, numbers.groups())) > 0:
        known = GPU('', float(numbers[1]) * 1e12, float(numbers[2]))
    if n < 1 or known is None:
        raise ValueError(f"plan must be one of {', '.join(GPUS)}, or TFLOPS:GiB of another machine as in 165:24, with "
                         f"their number before it as in 8xH100, got {text!r}")
    return n, name, known


def vocabulary(config):
    """(number of tokens, meta.json or {}, where they are from, in words) of the data set of a run."""
    meta = read_meta(os.path.join(config.data_dir, config.dataset))
    if meta:
        return meta['n_tokens'], meta, f'{meta["tokenizer"]}, as {config.dataset} was prepared'
    row = DATA_SETS.get(config.dataset)
    name = row.tokenizer if row else config.dataset if config.dataset in TOKENIZERS else 'gpt2'
    return TOKENIZERS[name].n_tokens, {}, f'{name}; {config.dataset} is not prepared here'


def parameters_by_part(model):
    """{part: number of parameters}, a tied head counted once."""
    parts = dict.fromkeys(('embeddings', 'AdaLN', 'attention', 'MLP', 'norms', 'head'), 0)
    for name, p in model.named_parameters():
        parts['AdaLN' if 'adaLN' in name else 'attention' if '.attn.' in name else 'MLP' if '.mlp.' in name else
              'head' if 'lm_head' in name else 'norms' if 'ln_' in name else 'embeddings'] += p.numel()
    return parts


def largest_batch(bytes_at, limit):
    """The largest batch_size whose bytes_at(batch_size), which grows with it, is within the limit; 0 if none is."""
    low, high = 0, 1
    while bytes_at(high) <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_at(middle) <= limit else (low, middle)
    return low


def same_update(config, world_size, largest):
    """The options of the same update and validation in micro-batches of at most `largest`, '' if none has it."""
    total = config.batch_size * config.gradient_accumulation_steps
    each = total // world_size
    fitting = [n for n in range(1, min(largest, each) + 1) if each % n == 0]
    if not fitting:
        return ''
    B = fitting[-1]
    return (f'--batch_size={B} --gradient_accumulation_steps={total // B} '
            f'--eval_iters={-(-config.eval_iters * config.batch_size // B)}')


def lines_of(config):
    """Yield the lines of the plan of a run with these options, on the machine that config.plan names."""
    world_size, name, gpu = parse_machine(config.plan)
    config = Config(config | (order_options(config) if 'order' in config.given else {}))
    check_options(config, world_size)
    _, dtype = resolve_device('cpu', 'bfloat16' if config.dtype == 'auto' else config.dtype)
    n_tokens, meta, said = vocabulary(config)
    with torch.device('meta'):
        model = Unset(model_config(config, vocab_size=-(-n_tokens // 64) * 64, n_tokens=n_tokens))
    sequences = config.batch_size * config.gradient_accumulation_steps
    tokens, flops = sequences * config.block_size, training_flops(model, config.batch_size)
    of_token = flops / config.batch_size / config.block_size

    yield f"{'parameters':<34}{model.n_parameters():>18,}"
    for part, n in parameters_by_part(model).items():
        yield f'  {part:<32}{n:>18,}'
    yield f"{'vocabulary':<34}{n_tokens:>18,}  {said}"
    yield f"{'tokens an update':<34}{tokens:>18,}"
    yield f"{'tokens in all':<34}{tokens * config.max_iters:>18,}"
    yield f"{'GFLOP a token':<34}{of_token / 1e9:>18,.4g}"
    yield f"{'TFLOP an update':<34}{of_token * tokens / 1e12:>18,.4g}"
    yield f"{'TFLOP in all':<34}{of_token * tokens * config.max_iters / 1e12:>18,.4g}"

    yield ''
    yield f"{'hours of training':<20}{'TFLOP/s':>14}" + ''.join(f'{f"at {mfu:.0%} MFU":>14}' for mfu in MFUS)
    for shown, row in {**{shown: GPUS[shown] for shown in SHOWN}, name: gpu}.items():
        rate = world_size * row.flops
        hours = [of_token * tokens * config.max_iters / rate / mfu / 3600 for mfu in MFUS]
        yield f"{f'{world_size} x {shown}':<20}{rate / 1e12:>14,.4g}" + ''.join(f'{h:>14,.4g}' for h in hours)
    if dtype != 'bfloat16':
        yield f'TFLOP/s are those of bfloat16; {dtype} takes several times as long'

    compiled = worth_compiling(True, 0, config.max_iters) if config.compile == 'auto' else config.compile
    how = {'dtype': dtype, 'optimizer': config.optimizer, 'compiled': compiled, 'world_size': world_size,
           'shard': config.get('shard', False) and world_size > 1, 'recompute': config.get('recompute', False)}
    parts, limit = memory(model, config.batch_size, **how), gpu.memory * (1 - RESERVE[1]) - RESERVE[0]
    largest = largest_batch(lambda n: sum(memory(model, n, **how).values()), limit * GIB)
    yield ''
    yield (f"{f'memory of a {name}, batch_size={config.batch_size}':<34}{'GiB':>18}  compile={compiled}, {dtype}"
           f"{', shard' if how['shard'] else ''}{', recompute' if how['recompute'] else ''}")
    for part, n in parts.items():
        yield f'  {part:<32}{n / GIB:>18,.2f}'
    yield f"{'together':<34}{sum(parts.values()) / GIB:>18,.2f}"
    yield f"{'there is':<34}{limit:>18,.2f}  {gpu.memory:g} without CUDA's own and what is lost between tensors"
    yield f"{'the largest batch_size':<34}{largest:>18,}  {same_update(config, world_size, largest)}".rstrip()

    a_file = (parts['weights'] + parts['EMA'] + parts['optimizer']) * (world_size if how['shard'] else 1)
    files = 2 + config.keep_checkpoints   # the next one is whole before the oldest goes
    yield ''
    yield f"{'disk':<34}{'GiB':>18}"
    yield f"  {'a checkpoint':<32}{a_file / GIB:>18,.2f}"
    yield f"  {f'{files} of them, while one is written':<32}{files * a_file / GIB:>18,.2f}"
    if meta:
        n = sum(split['tokens'] for split in meta['splits'].values())
        yield f"  {config.dataset:<32}{2 * n / GIB:>18,.2f}  {n:,} tokens of 2 bytes"
