"""How much memory of a GPU does an update take? An estimate by part."""

import torch

from anyorder.flops import weights_of_products
from anyorder.training.sharding import saves_by

FLOAT = 4  # bytes of a number in float32: weights, gradients, moments, average, residual stream
PART = 2**26  # logits that the loss works out at a time, see fast.split_rows

NODE = 8  # GPUs of a node of the machines that are rented


def n_parts(run):
    """Return over how many GPUs a run splits what stays."""
    if saves_by('shard', run):
        return run.world_size
    if saves_by('hybrid', run):
        return min(NODE, run.world_size)
    return 1


def memory(model, run):
    """Return {part: bytes} on one device at the peak of an update, where the backward pass begins.

    With P parameters, B sequences of N tokens in a micro-batch, S slots a token, L layers, width C,
    b bytes a number of a product:

        weights, gradients, EMA   4 P each: gradients of an earlier micro-batch, or the buckets of
                      several processes
        optimizer     8 P for AdamW, 4 P for the matrices that have Muon
        copies        b a weight of the matrices, where they are not in float32: autograd keeps them
        activations   L B S N C (4 f + b p), f and p as slot_bytes counts them; in the last
                      layer of two streams S is 1; B N C (2 * 4 + 5 b) of the last norm and the
                      head; b L B S N^2 of the mask that the mixed network and documents
                      apart have
        loss          b B N V of the logits' gradient, which compiled takes the place of the logits
        the rest      the largest of three things that are there for a moment: the logits that
                      LeanHead has in float32, gradients inside the last block, the head's gradient
                      before it is added to the others

    Several parts divide weights, gradients, EMA and optimizer. For a moment a device gathers the
    weights outside the blocks, the weights of two blocks and the gradients of one. `recompute`
    keeps the input of a block, and what one block at a time computes. Not counted: dropout's masks.

    run  the options of train.py, `dtype` and `compile` as they are resolved, and beside them

    length      tokens of a sequence
    apart       whether the documents of a block do not see each other
    world_size  processes"""
    c = model.config
    b = getattr(torch, run.dtype).itemsize
    S = run.batch_size * run.length  # slots of a stream
    n_streams = 2 if c.target_position == 'two_stream' else 1
    n = n_parts(run)
    recomputes = saves_by('recompute', run)
    stays = FLOAT * model.n_parameters() // n

    # What a forward pass keeps; of a stream, of a mask, of a block
    stream = S * slot_bytes(c, b, run.compile)
    mask = 0
    if c.attention == 'mixed' or run.apart:
        mask = b * S * run.length
    block = n_streams * (stream + mask)
    n_layers = n_streams * (c.n_layer - 1) + 1  # the last layer has one stream
    n_masks = n_streams if run.compile else n_layers  # compiled, layers share it
    layers = n_layers * stream + n_masks * mask
    if recomputes:
        layers = n_layers * S * FLOAT * c.n_embd + block
    head = S * c.n_embd * (2 * FLOAT + 5 * b)

    # What is there for a moment
    largest = [block // 4, FLOAT * c.vocab_size * c.n_embd]
    if not run.compile or n > 1:  # a split model compiles its blocks alone
        largest.append((b + FLOAT) * min(S * c.vocab_size, PART))
    gathered = 0
    if n > 1:  # what is outside of the blocks, and a block thrice
        n_block = sum(p.numel() for p in model.transformer.h[0].parameters())
        gathered = FLOAT * (model.n_parameters() - (c.n_layer - 3) * n_block)
    return {
        'weights': stays,
        'gradients': stays,
        'optimizer': optimizer_bytes(model, run.optimizer) // n,
        'EMA': stays,
        'bfloat16 copies of the weights': copied_bytes(model, b, recomputes),
        'activations': layers + head,
        'loss': b * S * c.vocab_size,
        'the rest, for a moment': max(largest) + gathered,
    }


def optimizer_bytes(model, optimizer):
    """Return bytes of the moments: two a weight, of a matrix that has Muon one."""
    n_moments = 2 * model.n_parameters()
    if optimizer == 'muon':  # for those of attention and MLP
        blocks = weights_of_products(model.transformer.h)
        n_moments -= sum(n for name, n in blocks.items() if 'adaLN' not in name)
    return FLOAT * n_moments


def copied_bytes(model, b, recomputes):
    """Return bytes of the copies of the matrices, b a number, that autograd keeps."""
    if b == FLOAT:
        return 0
    n_copied = sum(weights_of_products(model).values())
    if recomputes:  # one block at a time has copies
        blocks = model.transformer.h
        n_copied -= (len(blocks) - 1) * sum(weights_of_products(blocks[0]).values())
    return b * n_copied


def slot_bytes(config, b, compiled):
    """Return bytes that a forward pass keeps of a slot in a block; a number of a product has b.

    Counted in multiples of the width C; tests/extras/test_speed.py counts what is kept eagerly.
    Compiled, what is cheap is computed again."""
    has_norms = not config.gpt2_blocks  # of queries and keys
    has_adaln = config.target_position == 'adaln'
    n_float32 = 2  # the residual stream
    n_product = 14  # what four products read 7, attention's result among them, qkv 3, c_fc 4
    if has_norms:
        n_product += 1
    if has_adaln:
        n_product += 10  # 1 + scale 2, what is gated 2, shifts, scales and gates 6
    if not compiled:
        if has_norms:
            n_product += 1
        if has_norms and b < FLOAT:
            n_float32 += 2  # copies of q and k
        if has_adaln:
            n_float32 += 2  # norms
        if config.target_position == 'two_stream':
            n_product += 1  # the results of both, and both as one
    statistics = FLOAT * (2 + 3 * config.n_head)
    return (FLOAT * n_float32 + b * n_product) * config.n_embd + statistics
