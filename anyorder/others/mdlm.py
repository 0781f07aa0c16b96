"""What is the network that MDLM's authors released? A transformer whose AdaLN reads the time. The time is always 0
where the network was trained without it. Parameters have the names of the release. (Sahoo et al., arXiv 2406.07524)"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from model import apply_rotary, modulate

N_FREQUENCIES = 128  # in the embedding of the time


class Block(nn.Module):
    def __init__(self, C, n_cond, n_head):
        super().__init__()
        self.n_head = n_head
        self.norm1, self.norm2 = nn.LayerNorm(C, bias=False), nn.LayerNorm(C, bias=False)
        self.attn_qkv, self.attn_out = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(C, 4 * C), nn.GELU(approximate='tanh'), nn.Linear(4 * C, C)
        )
        self.adaLN_modulation = nn.Linear(n_cond, 6 * C)

    def forward(self, x, time, cos_sin):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN_modulation(time).chunk(
            6, -1
        )  # each (C,)
        qkv = self.attn_qkv(modulate(self.norm1(x), shift_a, scale_a))
        q, k, v = qkv.unflatten(-1, (3, self.n_head, -1)).unbind(2)  # each (B, S, H, D)
        q, k, v = (
            part.transpose(1, 2) for part in (apply_rotary(q, cos_sin), apply_rotary(k, cos_sin), v)
        )
        x = x + gate_a * self.attn_out(
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )
        return x + gate_m * self.mlp(modulate(self.norm2(x), shift_m, scale_m))


class MDLM(nn.Module):
    """Tokens (B, S) to logits (B, S, V)."""

    def __init__(self, vocab_size, hidden_dim, cond_dim, n_blocks, n_heads):
        super().__init__()
        C, self.head_size = hidden_dim, hidden_dim // n_heads
        b = self.backbone = nn.Module()
        b.vocab_embed, b.sigma_map, b.output_layer = nn.Module(), nn.Module(), nn.Module()
        b.vocab_embed.embedding = nn.Parameter(torch.empty(vocab_size, C))
        b.sigma_map.mlp = nn.Sequential(
            nn.Linear(2 * N_FREQUENCIES, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim)
        )
        b.blocks = nn.ModuleList([Block(C, cond_dim, n_heads) for _ in range(n_blocks)])
        b.output_layer.norm_final, b.output_layer.linear = (
            nn.LayerNorm(C, bias=False),
            nn.Linear(C, vocab_size),
        )
        b.output_layer.adaLN_modulation = nn.Linear(cond_dim, 2 * C)

    def forward(self, input_ids):
        b, D = self.backbone, self.head_size
        x = b.vocab_embed.embedding[input_ids]  # (B, S, C)
        ones = x.new_ones(N_FREQUENCIES)
        time = F.silu(b.sigma_map.mlp(torch.cat([ones, 0 * ones])))  # cos and sin of 0
        wide = {'device': x.device, 'dtype': torch.promote_types(x.dtype, torch.float32)}
        angle = torch.arange(x.size(1), **wide)[:, None, None] / 10000 ** (
            torch.arange(0, D, 2, **wide) / D
        )
        for block in b.blocks:
            x = block(x, time, (angle.cos(), angle.sin()))
        shift, scale = b.output_layer.adaLN_modulation(time).chunk(2, -1)
        return SimpleNamespace(
            logits=b.output_layer.linear(modulate(b.output_layer.norm_final(x), shift, scale))
        )
