"""Where does each slot look? The weights of attention of one pass over whole rows."""

from functools import partial

import torch

from model import Parts, float32_or_better


@torch.no_grad()
def attention(model, idx, order, n_known=None):
    """Return (weights, reads) of one pass of an AOGPT, in which n_known visits are known.

    weights  (L, B, H, T, T) = softmax(q k^T / sqrt(D)), float32 or better: row d is the slot that
             predicts visit d, column j the slot j that it looks at. Rows of two streams are the
             queries, columns the content
    reads    (B, T) the position whose token slot j reads: that of visit min(j, n_known) - 1, and
             -1 of [None]; in an encoder and in a mixed network its own position, known or blank

    idx      (B, N') tokens in natural order
    order    (B, T) positions
    n_known  int or (B,), by default T - 1, as in training; a masked loss needs it

    A row of float32 takes 4 L H T^2 bytes, 604 MB of 12 layers and 12 heads over 1,024 visits."""
    B, T = model._check(idx, order)
    if n_known is None:
        if model.slots_class.masked_loss:
            raise ValueError('n_known must be given, as the network has a masked loss')
        n_known = T - 1
    known = torch.as_tensor(n_known, device=order.device).expand(B)
    if known.min() < 0 or known.max() > T:
        raise ValueError(f'n_known must be 0 to {T}, the visits in order, got {n_known}')
    parts = Parts.of(order, None, None)
    slots = model.slots_class(order, known.unsqueeze(1), parts, T)  # with a mask
    sees = slots.sees[:, :, -T:]  # (B, 1, T, T); queries of two streams come last

    layers = [block.attn for block in model.transformer.h]
    shape = len(layers), B, layers[0].n_head, T, T
    dtype = torch.promote_types(model.dtype, torch.float32)
    weights = torch.empty(shape, dtype=dtype, device=order.device)
    for number, layer in enumerate(layers):
        layer.attend = partial(record, weights[number], sees, layer.attend)
    try:
        model.trunk(idx, order, slots)
    finally:
        for layer in layers:
            del layer.attend  # of this module alone; that of its class is there again
    return weights, slots.read_position[:, :T]


def record(weights, sees, attend, q, k, *others):
    """Write the weights (B, H, T, T) of one layer, and return what its `attend` does."""
    T = sees.size(-1)
    q_last = float32_or_better(q[:, -T:]).transpose(1, 2)  # (B, H, T, D)
    keys = float32_or_better(k).permute(0, 2, 3, 1)  # (B, H, D, T)
    torch.matmul(q_last / q.size(-1) ** 0.5, keys, out=weights)
    weights.masked_fill_(~sees, -torch.inf)
    torch.softmax(weights, -1, out=weights)
    return attend(q, k, *others)
