"""How much memory of a GPU does an update take? An estimate by part."""

import torch

from anyorder.training.update import is_hidden

FLOAT = 4  # bytes of a number in float32: weights, gradients, moments, average, residual stream

# What a forward pass keeps of a slot in a block, in multiples of the width C: (numbers in float32, numbers in the dtype
# of the products). tests/test_memory.py counts the numbers of EAGER
EAGER = {
    'block': (
        2,
        15,
    ),  # the residual stream 2; what four products read 7, qkv 3, attention 1, c_fc 4
    'norm of q, k': (0, 2),
    'AdaLN': (2, 10),  # norms 2; 1 + scale 2, what is gated 2, shifts, scales and gates 6
}
COMPILED = {
    'block': (2, 14),
    'norm of q, k': (0, 1),
    'AdaLN': (0, 10),
}  # what is cheap is computed again


def memory(
    model,
    batch_size,
    *,
    dtype,
    optimizer,
    compiled,
    N=None,
    world_size=1,
    shard=False,
    recompute=False,
):
    """{part: bytes} on one of `world_size` devices at the peak of an update, where the backward pass begins.

    With P parameters, B sequences of N tokens, by default block_size, in a micro-batch, S slots a token, L layers,
    width C, b bytes a number of a product:

        weights, gradients, EMA   4 P each: gradients of an earlier micro-batch, or the buckets of several processes
        optimizer     8 P for AdamW, 4 P for the matrices that have Muon
        copies        b a weight of the matrices, where they are not in float32: autograd keeps them
        activations   L B S N C (4 f + b p), f and p the sums of EAGER or COMPILED; in the last layer of two streams
                      S is 1; B N C (2 * 4 + 5 b) of the last norm and the head; b L B N^2 of the mixed network's mask
        loss          b B N V of the logits' gradient, which compiled takes the place of the logits
        the rest      the largest of three things that are there for a moment: the logits that LeanHead has in float32,
                      gradients inside the last block, the head's gradient before it is added to the others

    `shard` divides weights, gradients, EMA and optimizer by `world_size`. For a moment it gathers the weights outside
    the blocks, the weights of two blocks and the gradients of one. `recompute` keeps the input of a block, and what one
    block at a time computes. Not counted: dropout's masks."""
    c, b = model.config, 2 if dtype == 'bfloat16' else FLOAT
    B, N, V, C, L = batch_size, N or c.block_size, c.vocab_size, c.n_embd, c.n_layer
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    P, share = sum(sizes.values()), world_size if shard else 1
    n_muon = sum(
        n
        for name, n in sizes.items()
        if optimizer == 'muon' and is_hidden(name, model.get_parameter(name))
    )
    matrices = {
        name: m.weight.numel()
        for name, m in model.named_modules()
        if isinstance(m, torch.nn.Linear)
    }
    n_copied = sum(n // L if recompute and '.h.' in name else n for name, n in matrices.items())
    n_blocks = sum(n for name, n in sizes.items() if '.h.' in name)

    of_slot = B * N * slot_bytes(c, b, compiled)
    mask = b * B * N * N if c.attention == 'mixed' else 0
    n_streams = 2 if c.target_position == 'two_stream' else 1
    layers = n_streams * L - (n_streams - 1)
    of_block = n_streams * of_slot + mask
    kept = layers * of_slot + (mask if compiled else L * mask)  # compiled, all layers share it
    if recompute:
        kept = layers * B * N * FLOAT * C + of_block
    head = B * N * C * (2 * FLOAT + 5 * b)

    logits = B * N * V
    lean = not compiled or shard  # a split model compiles its blocks alone
    in_parts = (b + FLOAT) * min(logits, 2**26)  # see fast.split_rows
    gathered = FLOAT * (P - n_blocks + 3 * n_blocks // L) if shard else 0
    return {
        'weights': FLOAT * P // share,
        'gradients': FLOAT * P // share,
        'optimizer': (2 * FLOAT * P - FLOAT * n_muon) // share,
        'EMA': FLOAT * P // share,
        'bfloat16 copies of the weights': b * n_copied if b < FLOAT else 0,
        'activations': kept + head,
        'loss': b * logits,
        'the rest, for a moment': max(in_parts if lean else 0, of_block // 4, FLOAT * V * C)
        + gathered,
    }


def slot_bytes(config, b, compiled, cuda=True):
    """Bytes that a block keeps for a slot, see EAGER; a number of a product has b bytes."""
    normed, table = not config.gpt2_blocks, COMPILED if compiled else EAGER
    names = ['block'] + ['norm of q, k'] * normed + ['AdaLN'] * (config.target_position == 'adaln')
    full, product = (sum(numbers) for numbers in zip(*(table[name] for name in names)))
    if normed and not compiled:  # float32 copies of q and k; on a CPU a norm is several operations
        full += 2 * (b < FLOAT) + 4 * (not cuda)
    return (FLOAT * full + b * product) * config.n_embd + FLOAT * (
        2 + 3 * config.n_head
    )  # statistics
