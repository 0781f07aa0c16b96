"""What is our speed compared with? The plain way, without any of our shortcuts, and the limits of a device."""

import numpy as np
import torch
import torch.nn.functional as F

from anyorder.machine.devices import matmul_flops, seconds
from model import modulate


def plain_logits(model, x, cond, attend):
    """Logits of all slots x (B, S, C), AdaLN for every slot; attend(layer, q, k, v), (B, H, S, D) each: attention."""
    for layer, block in enumerate(model.transformer.h):
        attn, (B, S, C) = block.attn, x.shape
        shift, scale, gate, shift_m, scale_m, gate_m = block.adaLN[1](F.silu(cond)).chunk(6, -1)
        qkv = attn.c_attn(modulate(block.ln_1(x), shift, scale))
        q, k, v = qkv.view(B, S, 3, attn.n_head, -1).permute(2, 0, 3, 1, 4)
        y = attend(layer, attn.q_norm(q), attn.k_norm(k), v).transpose(1, 2).reshape(B, S, C)
        x = x + gate * attn.c_proj(y)
        x = x + gate_m * block.mlp(modulate(block.ln_2(x), shift_m, scale_m))
    final = model.transformer.final_layer
    return model.lm_head(final(x, final.adaLN_final[1](F.silu(cond))))


@torch.no_grad()
def plain_generate(model, order, ends, temperature=1.0):
    """Tokens (B, N) drawn in `order` (B, N), known up to each of `ends` in turn, by AdaLN for every slot, a cache that
    torch.cat grows, softmax over an explicit mask, a sort of the vocabulary, as for top-p, and torch.multinomial."""
    B, c, t = len(order), model.config, model.transformer
    idx, cache, known, kept = torch.zeros_like(order), [None] * c.n_layer, 0, 0
    for end in ends:
        slots = torch.arange(kept, end, device=order.device)
        reads = slots.clamp(max=known) - 1
        position = order[:, reads.clamp(min=0)]
        token = torch.where(reads[:, None] < 0, t.wnonee.weight, t.wte(idx.gather(1, position)))
        x = token + t.wpe(torch.where(reads < 0, 0, position + 1))
        cond = t.wtpe(order[:, slots])
        keys = torch.arange(end, device=order.device)
        mask = (keys < slots[:, None]) & (keys < known) | (keys == slots[:, None])

        def attend(layer, q, k, v, known=known, mask=mask):
            if cache[layer] is not None:
                k, v = torch.cat([cache[layer][0], k], 2), torch.cat([cache[layer][1], v], 2)
            cache[layer] = torch.stack([k, v])[:, :, :, : known + 1]
            attention = (
                (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5)
                .masked_fill(~mask, -torch.inf)
                .softmax(-1)
            )
            return attention.to(v.dtype) @ v

        logits = plain_logits(model, x, cond, attend)[:, known - kept :].float()
        values, ranked = (logits / temperature).sort(descending=True)
        p = values.softmax(-1)
        p = p.masked_fill(p.cumsum(-1) - p > 1.0, 0)
        new = ranked.gather(-1, torch.multinomial(p.flatten(0, 1), 1).view(B, end - known, 1))[
            ..., 0
        ]
        idx.scatter_(1, order[:, known:end], new)
        kept, known = known + 1, end
    return idx


def plain_nll(model, idx, order):
    """The loss of training, nll (B, N): N + 1 slots, the last for nothing, AdaLN for every slot, all logits at once."""
    t, B, nowhere = model.transformer, len(order), torch.zeros_like(order[:, :1])
    token = torch.cat(
        [t.wnonee.weight.expand(B, 1, -1), t.wte(idx.gather(1, order))], 1
    )  # (B, N + 1, C)
    x = token + t.wpe(torch.cat([nowhere, order + 1], 1))
    cond = t.wtpe(torch.cat([order, nowhere], 1))
    logits = plain_logits(
        model, x, cond, lambda _, *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True)
    )[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), idx.gather(1, order), reduction='none')


def plain_update(model, optimizer, average, tokens, batch_size, device):
    """An update in float32: a permutation drawn for each row, the average of the weights tensor by tensor."""
    N = model.config.block_size
    starts = [int(i) for i in torch.randint(len(tokens) - N, (batch_size,))]
    idx = torch.stack([torch.from_numpy(tokens[i : i + N].astype(np.int64)) for i in starts]).to(
        device
    )
    order = torch.stack([torch.randperm(N) for _ in starts]).to(device)
    loss = plain_nll(model, idx, order).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for mean, p in zip(average.parameters(), model.parameters()):
            mean.mul_(0.999).add_(p, alpha=0.001)
    return loss.item()


def device_limits(device, dtype):
    """(FLOP/s of a large matrix product, bytes/s that a large copy reads and writes), measured."""
    x = torch.randn(2**26, device=device)
    y = torch.empty_like(x)
    return matmul_flops(device, dtype), 2 * 4 * len(x) / seconds(lambda: y.copy_(x), device, 6)


def generation_limit(model, batch_size, ends, flop_rate, byte_rate, weight_bytes):
    """A lower bound on the seconds of generation with these `ends`, whose steps read all weights and the cache once. In
    a layer a slot costs 24 C^2 FLOPs, and 4 C for each of its min(s, n_known) + 1 keys. In the last layer a slot that
    draws no token costs 4 C^2, for keys and values. A drawn token costs 2 C V."""
    c, total, last, known = model.config, 0.0, 0, 0
    C, L = c.n_embd, c.n_layer
    weights = sum(
        p.numel()
        for name, p in model.named_parameters()
        if '.h.' in name and 'adaLN' not in name or 'lm_head' in name
    )
    for end in ends:
        first, n_drawn = (
            min(last + 1, known),
            end - known,
        )  # in a row; slot n_known of the last step stays
        drawn_keys = n_drawn * (known + 1)
        keys = (known * (known + 1) - first * (first + 1)) // 2 + drawn_keys
        flops = 24 * C**2 * ((end - first) * (L - 1) + n_drawn) + 4 * C * (
            keys * (L - 1) + drawn_keys
        )
        flops += 4 * C**2 * (known - first) + 2 * C * c.vocab_size * n_drawn
        read = weights + batch_size * known * 2 * C * L
        total += max(batch_size * flops / flop_rate, read * weight_bytes / byte_rate)
        last, known = known, end
    return total
