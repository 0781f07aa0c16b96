"""What is the network that MDLM's authors released? A transformer whose AdaLN reads the time.

The time is always 0 where the network was trained without it. Parameters have the names of the
release. (Sahoo et al., arXiv 2406.07524)"""

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
        self.norm1 = nn.LayerNorm(C, bias=False)
        self.norm2 = nn.LayerNorm(C, bias=False)
        self.attn_qkv = nn.Linear(C, 3 * C, bias=False)
        self.attn_out = nn.Linear(C, C, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(C, 4 * C), nn.GELU(approximate='tanh'), nn.Linear(4 * C, C)
        )
        self.adaLN_modulation = nn.Linear(n_cond, 6 * C)

    def forward(self, x, time, cos_sin):
        six = self.adaLN_modulation(time).chunk(6, -1)  # each (C,)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = six
        read = modulate(self.norm1(x), shift_a, scale_a)
        x = x + gate_a * self.attn_out(self.attend(read, cos_sin))
        return x + gate_m * self.mlp(modulate(self.norm2(x), shift_m, scale_m))

    def attend(self, x, cos_sin):
        """Return what each token (B, S, C) takes from all of its text, (B, S, C)."""
        qkv = self.attn_qkv(x).unflatten(-1, (3, self.n_head, -1))
        q, k, v = qkv.unbind(2)  # each (B, S, H, D)
        q = apply_rotary(q, cos_sin).transpose(1, 2)
        k = apply_rotary(k, cos_sin).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2))  # (B, H, S, D)
        return y.transpose(1, 2).flatten(2)


class MDLM(nn.Module):
    """Tokens (B, S) to logits (B, S, V)."""

    def __init__(self, vocab_size, hidden_dim, cond_dim, n_blocks, n_heads):
        super().__init__()
        C = hidden_dim
        self.head_size = C // n_heads
        b = self.backbone = nn.Module()
        b.vocab_embed = nn.Module()
        b.sigma_map = nn.Module()
        b.output_layer = nn.Module()
        b.vocab_embed.embedding = nn.Parameter(torch.empty(vocab_size, C))
        b.sigma_map.mlp = nn.Sequential(
            nn.Linear(2 * N_FREQUENCIES, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim)
        )
        b.blocks = nn.ModuleList([Block(C, cond_dim, n_heads) for _ in range(n_blocks)])
        b.output_layer.norm_final = nn.LayerNorm(C, bias=False)
        b.output_layer.linear = nn.Linear(C, vocab_size)
        b.output_layer.adaLN_modulation = nn.Linear(cond_dim, 2 * C)

    def forward(self, input_ids):
        b = self.backbone
        x = b.vocab_embed.embedding[input_ids]  # (B, S, C)
        time = self.embed_time_0(x)
        cos_sin = self.rotation(x)
        for block in b.blocks:
            x = block(x, time, cos_sin)
        shift, scale = b.output_layer.adaLN_modulation(time).chunk(2, -1)
        x = modulate(b.output_layer.norm_final(x), shift, scale)
        return SimpleNamespace(logits=b.output_layer.linear(x))

    def embed_time_0(self, x):
        """Return the embedding (n_cond,) of the time 0, in the dtype of x."""
        ones = x.new_ones(N_FREQUENCIES)
        cos_sin = torch.cat([ones, 0 * ones])
        return F.silu(self.backbone.sigma_map.mlp(cos_sin))

    def rotation(self, x):
        """Return cos and sin (S, 1, D / 2) of the angles of the positions of x (B, S, C)."""
        wide = {'device': x.device, 'dtype': torch.promote_types(x.dtype, torch.float32)}
        position = torch.arange(x.size(1), **wide)[:, None, None]
        exponent = torch.arange(0, self.head_size, 2, **wide) / self.head_size
        angle = position / 10000**exponent
        return angle.cos(), angle.sin()
