"""What is our speed compared with? The plain way, and the limits of a device."""

from functools import cache

import torch

from anyorder.flops import matmul_flops, seconds, weights_of_products


class GrowingCache:
    """A KVCache whose keys and values torch.cat copies at every step.

    layers  {layer: [keys, values (B, slots, H, D)]}"""

    def __init__(self, batch_size):
        self.layers = {}
        self.length = torch.zeros(batch_size, dtype=torch.long)

    def store(self, slots, layer, *new):
        """Return keys and values of the kept slots and of new ones, see KVCache.store."""
        n_kept = int(self.length[0])
        old = self.layers.get(layer, new)
        self.layers[layer] = [torch.cat([x[:, :n_kept], y], 1) for x, y in zip(old, new)]
        return self.layers[layer]


@torch.no_grad()
def plain_generate(model, order, ends, temperature=1.0):
    """Return tokens (B, N) drawn in `order` (B, N), known up to each of `ends` in turn.

    None of our shortcuts: the network of model.py, which has AdaLN for every slot, a GrowingCache,
    a sort of the vocabulary, as for top-p, and torch.multinomial."""
    idx = torch.zeros_like(order)
    cache = GrowingCache(len(order))
    known = 0
    for end in ends:
        logits = model.predict(idx, order, known, end - known, cache).float()
        idx.scatter_(1, order[:, known:end], plain_draw(logits / temperature))
        known = end
    return idx


def plain_draw(logits):
    """Return tokens (B, n) drawn from logits (B, n, V) behind a cut at a total probability of 1."""
    values, ranked = logits.sort(descending=True)
    p = values.softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p > 1.0, 0)
    rank = torch.multinomial(p.flatten(0, 1), 1).view(*logits.shape[:2], 1)
    return ranked.gather(-1, rank)[..., 0]


@cache  # it takes a second
def device_limits(device, dtype):
    """Return (FLOP/s of a large matrix product, bytes/s of a large copy, both ways), measured."""
    x = torch.randn(2**26, device=device)
    y = torch.empty_like(x)
    n_bytes = 2 * 4 * len(x)
    return matmul_flops(device, dtype), n_bytes / seconds(lambda: y.copy_(x), device, 6)


def generation_limit(model, batch_size, ends, flop_rate, byte_rate, weight_bytes):
    """Return a lower bound on the seconds in which a decoder generates with these `ends`.

    Every step reads all matrices and the cache once. In a layer a slot costs 24 C^2 FLOPs, and 4 C
    for each key that it sees. In the last layer a slot that draws no token costs 4 C^2, for keys
    and values. A drawn token costs 2 C V."""
    c = model.config
    C = c.n_embd
    n_weights = sum(n for name, n in weights_of_products(model).items() if 'adaLN' not in name)
    total = 0.0
    known = 0
    first = 0  # the first slot that runs
    for end in ends:
        slots = torch.arange(first, end)
        of_slot = 24 * C**2 + 4 * C * (slots.clamp(max=known) + 1)
        n_others = known - first
        flops = (c.n_layer - 1) * of_slot.sum() + of_slot[n_others:].sum()
        flops += 4 * C**2 * n_others + 2 * C * c.vocab_size * (end - known)
        n_read = n_weights + batch_size * known * 2 * C * c.n_layer
        total += max(batch_size * int(flops) / flop_rate, n_read * weight_bytes / byte_rate)
        first = min(known + 1, end)  # slot n_known of this step stays
        known = end
    return total
