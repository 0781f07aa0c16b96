"""What is our speed compared with? The plain way, and the limits of a device.

The plain way has none of our shortcuts."""

from functools import cache

import torch
import torch.nn.functional as F

from anyorder.machine.devices import matmul_flops, seconds
from model import modulate


def plain_logits(model, x, cond, attend):
    """Return the logits of all slots x (B, S, C), by AdaLN for every slot.

    attend(layer, q, k, v), (B, H, S, D) each, is the attention."""
    B, S, C = x.shape
    for layer, block in enumerate(model.transformer.h):
        attn = block.attn
        shift, scale, gate, shift_m, scale_m, gate_m = block.adaLN[1](F.silu(cond)).chunk(6, -1)
        qkv = attn.c_attn(modulate(block.ln_1(x), shift, scale))
        q, k, v = qkv.view(B, S, 3, attn.n_head, -1).permute(2, 0, 3, 1, 4)
        y = attend(layer, attn.q_norm(q), attn.k_norm(k), v).transpose(1, 2).reshape(B, S, C)
        x = x + gate * attn.c_proj(y)
        x = x + gate_m * block.mlp(modulate(block.ln_2(x), shift_m, scale_m))
    final = model.transformer.final_layer
    shift, scale = final.adaLN_final[1](F.silu(cond)).chunk(2, -1)
    return model.lm_head(modulate(final.ln_f(x), shift, scale))


class GrowingCache:
    """Keys and values of every layer, which torch.cat grows, and softmax over an explicit mask.

    mask   (S, keys) which keys a slot sees
    n_kept   slots that stay"""

    def __init__(self, n_layer):
        self.layers = [None for _ in range(n_layer)]
        self.mask = None
        self.n_kept = 0

    def attend(self, layer, q, k, v):
        if self.layers[layer] is not None:
            old_k, old_v = self.layers[layer]
            k = torch.cat([old_k, k], 2)
            v = torch.cat([old_v, v], 2)
        self.layers[layer] = torch.stack([k, v])[:, :, :, : self.n_kept]
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        attention = scores.masked_fill(~self.mask, -torch.inf).softmax(-1)
        return attention.to(v.dtype) @ v


@torch.no_grad()
def plain_generate(model, order, ends, temperature=1.0):
    """Return tokens (B, N) drawn in `order` (B, N), known up to each of `ends` in turn.

    By AdaLN for every slot, a GrowingCache, a sort of the vocabulary, as for top-p, and
    torch.multinomial."""
    t = model.transformer
    idx = torch.zeros_like(order)
    cache = GrowingCache(model.config.n_layer)
    known = 0
    kept = 0
    for end in ends:
        slots = torch.arange(kept, end, device=order.device)
        reads = slots.clamp(max=known) - 1
        position = order[:, reads.clamp(min=0)]
        token = torch.where(reads[:, None] < 0, t.wnonee.weight, t.wte(idx.gather(1, position)))
        x = token + t.wpe(torch.where(reads < 0, 0, position + 1))
        cond = t.wtpe(order[:, slots])

        keys = torch.arange(end, device=order.device)
        is_known = (keys < slots[:, None]) & (keys < known)
        cache.mask = is_known | (keys == slots[:, None])
        cache.n_kept = known + 1
        logits = plain_logits(model, x, cond, cache.attend)[:, known - kept :].float()
        idx.scatter_(1, order[:, known:end], plain_draw(logits / temperature))
        kept = known + 1
        known = end
    return idx


def plain_draw(logits):
    """Return tokens (B, n) drawn from logits (B, n, V) behind a cut at a total probability of 1."""
    B, n, _ = logits.shape
    values, ranked = logits.sort(descending=True)
    p = values.softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p > 1.0, 0)
    rank = torch.multinomial(p.flatten(0, 1), 1).view(B, n, 1)
    return ranked.gather(-1, rank)[..., 0]


@cache  # it takes a second
def device_limits(device, dtype):
    """Return (FLOP/s of a large matrix product, bytes/s of a large copy, both ways), measured."""
    x = torch.randn(2**26, device=device)
    y = torch.empty_like(x)
    flop_rate = matmul_flops(device, dtype)
    n_bytes = 2 * 4 * len(x)
    return flop_rate, n_bytes / seconds(lambda: y.copy_(x), device, 6)


def generation_limit(model, batch_size, ends, flop_rate, byte_rate, weight_bytes):
    """Return a lower bound on the seconds in which a decoder generates with these `ends`.

    Every step reads all weights and the cache once. In a layer a slot costs 24 C^2 FLOPs, and 4 C
    for each key that it sees. In the last layer a slot that draws no token costs 4 C^2, for keys
    and values. A drawn token costs 2 C V."""
    c = model.config
    C = c.n_embd
    n_weights = 0
    for name, p in model.named_parameters():
        in_block = '.h.' in name and 'adaLN' not in name
        if in_block or 'lm_head' in name:
            n_weights += p.numel()
    total = 0.0
    known = 0
    first = 0  # the first slot that runs
    for end in ends:
        n_keys = (known * (known + 1) - first * (first + 1)) // 2  # of slots that draw none
        n_others = known - first
        flops = (c.n_layer - 1) * (24 * C**2 * n_others + 4 * C * n_keys) + 4 * C**2 * n_others
        of_drawn = c.n_layer * (24 * C**2 + 4 * C * (known + 1)) + 2 * C * c.vocab_size
        flops += (end - known) * of_drawn
        n_read = n_weights + batch_size * known * 2 * C * c.n_layer
        total += max(batch_size * flops / flop_rate, n_read * weight_bytes / byte_rate)
        first = min(known + 1, end)  # slot n_known of this step stays
        known = end
    return total
