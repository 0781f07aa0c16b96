"""
AO-GPT: a causal decoder that reads and predicts the tokens of a sequence in any order.

    "Any-Order GPT as Masked Diffusion Model: Decoupling Formulation and Architecture", Xue et al. 2025, arXiv 2506.19935

The one idea of this file is the slot. An order is a permutation of the positions; number its visits 0, 1, 2, ... A slot
reads one visited token and is told which position to predict next. With the first n_known visits known,

    the slot that predicts visit d reads visit min(d, n_known) - 1 (visit -1 is [None]);
    it sees the slots before it that are below n_known, and itself.

    order (3,0,2,1), teacher forcing, n_known = 3        same order, n_known = 1: three targets in parallel
    slot       0       1      2      3                   slot       0       1      2      3
    reads    [None]   x3     x0     x2                   reads    [None]   x3     x3     x3
    predicts   3       0      2      1                   predicts   3       0      2      1
    sees       0      0-1    0-2    0-3                  sees       0      0,1    0,2    0,3

Training is n_known = T - 1, which is plain causal attention. Parallel unmasking is a smaller n_known. Decoding with a cache
is the same call that starts later. Tokens stay in natural order outside this file; nothing else knows of slots or [None].

Four indices: a position is a place in the text; a visit is a place in the order, so that order[visit] = position; a slot has the number
of the visit that it predicts; a column is a slot's place among those that a call runs, from which `columns` choose those that predict.

Shapes: B batch, N block_size, T visits in an order, S slots run, n targets, C n_embd, H heads, D = C / H, V vocabulary, L layers
"""
import copy
from dataclasses import dataclass, fields
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

GPT2_N_TOKENS, GPT2_PADDED = 50257, 50304   # the published weights pad GPT-2's vocabulary
TARGET_POSITIONS = ('adaln', 'input', 'layer_shared', 'layer')


# ---------------------------------------------------------------------------------------------------------------------
# the network

@dataclass
class AOGPTConfig:
    """Sizes of the network. `n_tokens` is the real vocabulary (0: all of vocab_size); the rows above it are padding, with probability
    zero everywhere. `gate_init` is the initial bias of the AdaLN gates (0 in the paper; 1 learns faster in runs of minutes).
    `target_position` is how a slot is told what to predict: 'adaln', or an embedding added to its 'input', the same one again in every
    layer ('layer_shared'), or another one in every layer ('layer') (AO, ablation). `rotary` rotates queries by the target position and
    keys by that of their token; then `learned_positions` can be left out. `gpt2_blocks` has LayerNorm, no norm of queries and keys, and a
    head tied to the embedding: with target_position='input' that is sigma-GPT. `causal=False` is the encoder-only masked diffusion model:
    every slot sees every slot, stands at the position that it predicts, and reads [None] if that is not known."""
    block_size: int = 1024
    vocab_size: int = GPT2_PADDED
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    n_cond: int = 128
    dropout: float = 0.0
    bias: bool = True
    n_tokens: int = 0
    gate_init: float = 0.0
    target_position: str = 'adaln'
    rotary: bool = False
    learned_positions: bool = True
    gpt2_blocks: bool = False
    causal: bool = True

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not field.type and not (field.type is float and type(value) is int):
                raise ValueError(f'{field.name} must be of type {field.type.__name__}, got {value!r}')
        for name in ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'n_cond'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} must be at least 1, got {getattr(self, name)}')
        if self.n_embd % self.n_head:
            raise ValueError(f'n_embd must be divisible by n_head, got n_embd={self.n_embd} and n_head={self.n_head}')
        if not 0 <= self.dropout < 1:
            raise ValueError(f'dropout must be at least 0 and below 1, got {self.dropout}')
        if not 0 <= self.n_tokens <= self.vocab_size:
            raise ValueError(f'n_tokens must be 0 (all) to vocab_size={self.vocab_size}, got {self.n_tokens}')
        if self.target_position not in TARGET_POSITIONS:
            raise ValueError(f'target_position must be {", ".join(TARGET_POSITIONS)}, got {self.target_position!r}')
        if self.rotary and self.n_embd // self.n_head % 2:
            raise ValueError(f'rotary wants heads of even width, got n_embd={self.n_embd} and n_head={self.n_head}')
        if not self.learned_positions and not self.rotary:
            raise ValueError('learned_positions=False wants rotary=True: a slot must know where its token stands')

    @property
    def n_real(self):
        """Tokens that can be read and drawn: the vocabulary without its padding."""
        return self.n_tokens or self.vocab_size


class RMSNorm(nn.RMSNorm):
    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)   # one dtype, which the fused kernel needs


def float32_or_better(logits):
    """Losses, scores and draws are never taken in 16 bits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def product_dtype(x):
    """The dtype of matrix products of x (an activation or a weight): autocast's where that is on, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def make_norm(config):
    return nn.LayerNorm(config.n_embd, eps=1e-5, bias=config.bias) if config.gpt2_blocks else RMSNorm(config.n_embd, eps=1e-5)


def apply_rotary(x, cos_sin):
    """x (B, S, H, D) with each pair of its numbers (i, i + D / 2) turned by an angle of which cos and sin are given, (B, S, 1, D / 2)."""
    cos, sin = (part.to(x.dtype) for part in cos_sin)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


def take(x, columns):
    """Columns (B, n) of x (B, S, ...): (B, n, ...); None: x itself."""
    return x if columns is None else x[torch.arange(len(x), device=x.device).unsqueeze(1), columns]


def attention(q, k, v, mask, causal, dropout):
    """softmax(q k^T / sqrt(D) + mask) v (B, n, H, D) of queries (B, n, H, D), keys and values (B, keys, H, D). `mask` (B, 1, n, keys) is
    True where a query sees a key; None is causal, or full without `causal`."""
    n, dtype = q.size(1), q.dtype
    if dtype == torch.bfloat16 and not q.is_cuda:   # detours round PyTorch's CPU kernels
        if n == 1:
            q = q.expand(-1, 2, -1, -1)             # one query takes twice as long as two
        if k.size(1) < 256 and torch.is_grad_enabled():
            q = q.float()                           # few slots and their gradients take four times as long in bfloat16
    with torch.autocast(q.device.type, enabled=False):
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2).to(q.dtype), v.transpose(1, 2).to(q.dtype),
                                           attn_mask=mask, is_causal=mask is None and causal, dropout_p=dropout)   # (B, H, n, D)
    return y[:, :, :n].transpose(1, 2).to(dtype)


class SelfAttention(nn.Module):
    """Multi-head attention with RMSNorm on every head's queries and keys, which are then rotated if `rotary` gives (cos, sin) for both.
    `mask` None is causal, in an encoder full; only the slots `columns` (B, n), by default all, have queries."""

    def __init__(self, config):
        super().__init__()
        self.n_head, self.dropout, self.causal = config.n_head, config.dropout, config.causal
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.q_norm = nn.Identity() if config.gpt2_blocks else RMSNorm(config.n_embd // config.n_head, eps=1e-5)
        self.k_norm = nn.Identity() if config.gpt2_blocks else RMSNorm(config.n_embd // config.n_head, eps=1e-5)

    def forward(self, x, mask=None, store=None, columns=None, rotary=None):
        B, S, C = x.shape
        q, k, v = self.c_attn(x).view(B, S, 3, self.n_head, C // self.n_head).unbind(2)    # each (B, S, H, D)
        q = take(q, columns)                                                              # (B, n, H, D)
        q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)                     # autocast may give norms in float32
        if rotary is not None:
            q, k = apply_rotary(q, [take(part, columns) for part in rotary[0]]), apply_rotary(k, rotary[1])
        if store is not None:
            k, v = store(k, v)                                                            # (B, keys, H, D)
        y = attention(q, k, v, mask, self.causal, self.dropout if self.training else 0.0)
        return F.dropout(self.c_proj(y.flatten(2)), self.dropout, self.training)          # (B, n, C)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dropout = config.dropout
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x):
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x))), self.dropout, self.training)


class Block(nn.Module):
    """A GPT block. With a `modulation` (B, S, 6 C), which AdaLN makes of the target positions, its norms and residual branches are shifted,
    scaled and gated."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = make_norm(config)
        self.attn = SelfAttention(config)
        self.ln_2 = make_norm(config)
        self.mlp = MLP(config)
        if config.target_position == 'adaln':
            self.adaLN = nn.Sequential(nn.SiLU(), nn.Linear(config.n_cond, 6 * config.n_embd))
        if config.target_position == 'layer':
            self.wtpe = nn.Embedding(config.block_size, config.n_embd)

    def forward(self, x, modulation=None, mask=None, store=None, columns=None, rotary=None):
        if modulation is None:
            x = take(x, columns) + self.attn(self.ln_1(x), mask, store, columns, rotary)
            return x + self.mlp(self.ln_2(x))
        shift, scale = modulation.chunk(6, dim=-1)[:2]                                      # each (B, S, C)
        y = self.attn(modulate(self.ln_1(x), shift, scale), mask, store, columns, rotary)
        gate_a, shift_m, scale_m, gate_m = take(modulation, columns).chunk(6, dim=-1)[2:]   # each (B, n, C)
        x = take(x, columns) + gate_a * y
        return x + gate_m * self.mlp(modulate(self.ln_2(x), shift_m, scale_m))


class FinalLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_f = make_norm(config)
        self.adaLN_final = nn.Sequential(nn.SiLU(), nn.Linear(config.n_cond, 2 * config.n_embd))

    def forward(self, x, modulation):
        shift, scale = modulation.chunk(2, dim=-1)
        return modulate(self.ln_f(x), shift, scale)


class Head(nn.Linear):
    """Logits over the vocabulary. Its padding, rows from n_tokens, gets -inf, so that it has no probability anywhere."""

    def __init__(self, config):
        super().__init__(config.n_embd, config.vocab_size, bias=not config.gpt2_blocks)
        self.n_real = config.n_real

    def forward(self, x):
        return F.linear(x, self.weight, self.real_bias())

    def real_bias(self):
        if self.n_real == self.out_features:
            return self.bias
        bias = self.weight.new_zeros(self.out_features) if self.bias is None else self.bias
        return bias.masked_fill(torch.arange(self.out_features, device=bias.device) >= self.n_real, -torch.inf)


class AOGPT(nn.Module):
    """The any-order decoder, or with causal=False its encoder twin. Parameter names and order are those of the published checkpoints."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        adaLN = config.target_position == 'adaln'
        parts = dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size + 1, config.n_embd) if config.learned_positions else None,   # row 0 for [None], p + 1 for p
            wtpe=nn.Embedding(config.block_size, config.n_cond if adaLN else config.n_embd) if config.target_position != 'layer' else None,
            wnonee=nn.Embedding(1, config.n_embd),                     # [None]
            h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]))
        final = {'final_layer': FinalLayer(config)} if adaLN else {'ln_f': make_norm(config)}
        self.transformer = nn.ModuleDict({name: part for name, part in (parts | final).items() if part is not None})
        self.lm_head = Head(config)
        self.tie()
        self.reset_parameters()

    def tie(self):
        if self.config.gpt2_blocks:
            self.lm_head.weight = self.transformer.wte.weight

    @torch.no_grad()
    def reset_parameters(self):
        """Normal of std 0.02 truncated at 3 std, residual projections scaled by 1 / sqrt(2 L), biases 0 (AO appendix)."""
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / (2 * self.config.n_layer) ** 0.5 if name.endswith('c_proj.weight') else 0.02
                nn.init.trunc_normal_(p, std=std, a=-3 * std, b=3 * std)
            elif name.endswith('bias'):
                nn.init.zeros_(p)
        if self.config.target_position == 'adaln':
            for block in self.transformer.h:
                gates = block.adaLN[1].bias.view(6, -1)
                gates[2], gates[5] = self.config.gate_init, self.config.gate_init

    def forward(self, idx, order, n_known=None, columns=None, n_given=None):
        """Negative log-likelihood of each visit given the visits before it.

        nll[b, d] = -log p(x[order[b, d]] | x[order[b, :d]])                                  (AO eq. of L_AO-AR)

        idx    (B, N') int64 tokens in natural order, N' at most block_size
        order  (B, T) int64 positions, T at most N'; a prefix of an order is allowed and gives the prefix of its nll
        n_known    (B,), for an encoder only, and required there: known visits, 0 to T - 1. Their columns are 0 and the others
                   T / (T - n_known) times their nll, so that for a uniform n_known the row's sum is an unbiased bound in nats (AO, L_MDM)
        n_given    (B,) visits that are given, as the clues of a puzzle are: their columns are 0, n_known must be at least n_given, and the
                   factor becomes (T - n_given) / (T - n_known)
        columns    (B, n) visits, for a decoder only, by default all T: head and last layer are not run for the others
        returns nll (B, n) float32 (float64 in a float64 model) in nats, of the positions at `columns` of order
        """
        T = self._check(idx, order)[1]
        if self.config.causal and n_known is not None:
            raise ValueError('n_known is for an encoder (causal=False); a decoder gives the nll of all visits at once')
        if not self.config.causal and (n_known is None or columns is not None):
            raise ValueError(f'an encoder wants n_known (B,), the number of known visits of each row, 0 to {T - 1}, and no columns: '
                             'it gives single visits by predict')
        for name, x in (('n_known', n_known), ('columns', columns)):
            if x is not None and x.device.type == 'cpu' and not torch.compiler.is_compiling() and not 0 <= x.min() <= x.max() < T:
                raise ValueError(f'{name} must be visits from 0 to {T - 1}, got {x.tolist()[:8]}')
        known = n_known if n_known is None else n_known.to(idx.device).unsqueeze(1)         # (B, 1)
        columns = columns if columns is None else columns.to(idx.device)
        visits = take(torch.arange(T, device=idx.device).expand(order.shape), columns)      # (B, n)
        x = self._full_pass(idx, order, columns, known)                                     # (B, n, C)
        tokens = idx.gather(1, take(order, columns))                                       # (B, n)
        nll = token_nll(self.lm_head, x.flatten(0, 1), tokens.flatten()).view(tokens.shape)
        given = 0 if n_given is None else n_given.unsqueeze(1)
        if known is not None:
            return torch.where(visits < known, 0, nll * (T - given) / (T - known))
        return nll if n_given is None else torch.where(visits < given, 0, nll)

    def logits(self, idx, order, columns=None):
        """Logits (B, n, V) of the visits `columns` (B, n; None: all T), each given the visits before it in `order` (B, T)."""
        if not self.config.causal:
            raise ValueError('an encoder needs a pass for every visit: use predict')
        return self.lm_head(self._full_pass(idx, order, columns))

    def predict(self, idx, order, n_known, n_targets=None, cache=None, n_visits=None, picked=None):
        """Logits of the next `n_targets` visits, all in parallel: each sees the known visits and nothing of the others.

        idx        (B, N') tokens in natural order; those at order[:, n_known:] are not read
        order      (B, T) positions
        n_known    int or (B,) number of known visits of each row (a CPU tensor or int needs no device synchronisation)
        n_targets  n, by default T - min(n_known)
        cache      KVCache: runs only what is not in it and leaves n_known + 1 slots there. Slot n_known was run for the target
                   order[:, n_known]: a caller that then reorders the tail must set cache.length back to n_known.
        n_visits   int or (B,), by default T: the visits of a row from n_visits on are padding, which an encoder masks and a decoder never
                   sees, since it comes later
        picked     index of (B, n), as (rows of idx, columns), (m,) each: the head is run for these alone, and gives (m, V)
        returns logits (B, n, V); column j of row r is position order[r, n_known[r] + j]; columns past a row's end are undefined
        """
        B, T = self._check(idx, order)
        known = torch.as_tensor(n_known).cpu().expand(B)                    # (B,) on the host, as is cache.length
        n = T - int(known.min()) if n_targets is None else n_targets
        visits = torch.as_tensor(T if n_visits is None else n_visits).cpu().expand(B)
        if int(known.min()) < 0 or (known > visits).any() or int(visits.max()) > T or n < 1:
            raise ValueError(f'n_known must be 0 to n_visits, that 0 to {T} (the visits in order), with a target left, '
                             f'got n_known={known.tolist()}, n_visits={visits.tolist()} and n_targets={n_targets}')
        if not self.config.causal:
            if cache is not None:
                raise ValueError('an encoder has no cache: every slot depends on which are known')
            known = known.to(idx.device).unsqueeze(1)                       # (B, 1)
            columns, mask = (known + torch.arange(n, device=idx.device)).clamp(max=T - 1), None         # (B, n)
            if int(visits.min()) < T:
                mask = (torch.arange(T) < visits.unsqueeze(1)).to(idx.device)[:, None, None].expand(B, 1, T, T)
            x = self._full_pass(idx, order, columns, known, mask)
            return self.lm_head(x if picked is None else x[picked])
        end = (known + n).clamp(max=T)                                      # one past the last slot of each row
        start = torch.zeros_like(known) if cache is None else torch.minimum(cache.length.cpu(), known).minimum(end - 1)
        S, n_keys, kept = int((end - start).max()), int(end.max()), (known + 1).clamp(max=T)
        bounds = torch.stack([known, start, end]).to(idx.device, non_blocking=True).unsqueeze(-1)   # (3, B, 1)
        if cache is None or cache.graphs is None:
            x = self._partial_pass(idx, order, bounds, S, n, n_keys, cache)
        else:   # few different sizes; what is behind a row's end repeats its last slot
            sizes = pad_size(S), pad_size(n), min(-(-n_keys // 128) * 128, cache.k.size(3))
            x = cache.graphs((idx.data_ptr(), order.data_ptr(), sizes),
                             lambda bounds: self._partial_pass(idx, order, bounds, *sizes, cache), bounds)[:, :n]
        if cache is not None:
            cache.length = kept
        return self.lm_head(x if picked is None else x[picked])

    def _check(self, idx, order):
        if idx.dim() != 2 or order.dim() != 2 or len(idx) != len(order):
            raise ValueError(f'idx and order must be (B, N) and (B, T), got {tuple(idx.shape)} and {tuple(order.shape)}')
        if not 1 <= order.size(1) <= idx.size(1) <= self.config.block_size:
            raise ValueError(f'1 <= T <= N <= block_size={self.config.block_size} must hold, '
                             f'got T={order.size(1)} visits and N={idx.size(1)} tokens')
        if not self.config.causal and order.size(1) < idx.size(1):
            raise ValueError(f'an encoder wants whole orders, got T={order.size(1)} visits of N={idx.size(1)} tokens')
        return order.shape

    def _full_pass(self, idx, order, columns=None, known=None, mask=None):
        """Last hidden states (B, n, C) when every visit has its slot; `known` (B, 1) is by default T - 1, which is teacher forcing."""
        T = order.size(1)
        slots = torch.arange(T, device=idx.device).expand(order.shape)
        return self._trunk(idx, order, slots, T - 1 if known is None else known, columns, mask)

    def _partial_pass(self, idx, order, bounds, S, n, n_keys, cache):
        """The part of predict that runs on the device: last hidden states (B, n, C), by S slots a row and n_keys keys. `bounds` (3, B, 1)
        are n_known, the first slot of each row and one past its last."""
        known, start, end = bounds                                                          # (B, 1)
        slots = torch.minimum(start + torch.arange(S, device=idx.device), end - 1)          # (B, S); short rows repeat their last
        mask = store = None
        if n > 1 or cache is not None:   # else the plain causal mask is the same
            keys, query = torch.arange(n_keys, device=idx.device), slots.unsqueeze(-1)
            mask = ((keys < query) & (keys < known.unsqueeze(-1)) | (keys == query)).unsqueeze(1)   # (B, 1, S, keys)
        if cache is not None:
            store = partial(cache.store, slots, n_keys)
        columns = torch.minimum(known - start + torch.arange(n, device=idx.device), end - 1 - start)   # (B, n)
        return self._trunk(idx, order, slots, known, columns, mask, store)

    def _trunk(self, idx, order, slots, known, columns=None, mask=None, store=None):
        """Last hidden states (B, n, C) of the `columns` (B, n; None: all) of `slots` (B, S) with the first `known` (int or (B, 1)) visits
        known. A decoder's slot reads as the top of this file says and stands where its token is; an encoder's reads its own visit, or
        [None] if that is not known, and stands at its target. It sees by `mask` (B, 1, S, keys; None: causally, in an encoder all).
        The last block has queries and MLP for `columns` alone."""
        t, target = self.transformer, order.gather(1, slots)                                # (B, S)
        reads = slots.clamp(max=known) - 1 if self.config.causal else torch.where(slots < known, slots, -1)   # -1: [None]
        none, position = reads < 0, order.gather(1, reads.clamp(min=0))
        token = t.wte(idx.gather(1, position).masked_fill(none, 0))                         # (B, S, C); a blank may hold anything
        x = torch.where(none.unsqueeze(-1), t.wnonee.weight, token)
        position = position.masked_fill(none, -1) if self.config.causal else target
        if self.config.learned_positions:
            x = x + t.wpe(position + 1)
        x = F.dropout(x, self.config.dropout, self.training)
        rotary = [self._cos_sin(p) for p in (target, position)] if self.config.rotary else None
        for layer, block in enumerate(t.h):
            last = columns if layer == len(t.h) - 1 else None
            if last is not None:
                if mask is None and self.config.causal:   # by column, not by slot: a short row repeats its last slot
                    mask = (torch.arange(slots.size(1), device=slots.device) <= last.unsqueeze(-1)).unsqueeze(1)   # (B, 1, n, keys)
                elif mask is not None:
                    mask = take(mask[:, 0], last).unsqueeze(1)
            x, modulation = self._inject(layer, block, x, target)
            x = block(x, modulation, mask, store and partial(store, layer), last, rotary)
        if self.config.target_position != 'adaln':
            return t.ln_f(x)
        return t.final_layer(x, self._modulation(t.final_layer.adaLN_final, take(target, columns)))

    def _inject(self, layer, block, x, target):
        """How a block is told the targets (B, S): what goes into it (B, S, C), and its modulation (B, S, 6 C) or None."""
        kind, t = self.config.target_position, self.transformer
        if kind == 'adaln':
            return x, self._modulation(block.adaLN, target)
        if kind == 'layer':
            return x + block.wtpe(target), None
        return x + t.wtpe(target) if kind == 'layer_shared' or layer == 0 else x, None

    def _cos_sin(self, position):
        """(cos, sin), each (B, S, 1, D / 2), of the angles (p + 1) 10000^(-2 i / D) of the positions p (B, S); -1 is [None]."""
        D, dtype = self.config.n_embd // self.config.n_head, torch.promote_types(self.transformer.wte.weight.dtype, torch.float32)
        frequency = 10000.0 ** (-torch.arange(0, D, 2, device=position.device, dtype=dtype) / D)
        angle = (position + 1)[..., None, None] * frequency
        return angle.cos(), angle.sin()

    def _modulation(self, adaLN, target):
        """Outputs (B, S, .) of an AdaLN for targets (B, S). In training it runs once per position, not per slot, if those are fewer."""
        if isinstance(adaLN, nn.Embedding):                                                # frozen
            return adaLN(target)
        positions = self.transformer.wtpe.weight                                           # (N, n_cond)
        if torch.is_grad_enabled() and target.numel() > len(positions):
            return Rows.apply(adaLN(positions), target)
        return adaLN(F.embedding(target, positions))

    def n_parameters(self):
        return sum(p.numel() for p in self.parameters())

    def training_flops(self, batch_size):
        """Model FLOPs of a training step on batch_size whole sequences, forward and backward: for every weight of a matrix product 6 a slot
        (AdaLN: 6 a position; embeddings: none), and for attention 6 N C a slot and layer if it is causal, 12 N C if it is full."""
        c, tokens = self.config, batch_size * self.config.block_size
        matrices = {name: m.weight.numel() for name, m in self.named_modules() if isinstance(m, nn.Linear)}
        adaLN = sum(n for name, n in matrices.items() if 'adaLN' in name)
        attention = tokens * c.n_layer * c.block_size * c.n_embd * (1 if c.causal else 2)
        return 6 * (tokens * (sum(matrices.values()) - adaLN) + c.block_size * adaLN + attention)

    def frozen(self, dtype):
        """A copy for inference, equal up to rounding: linear weights in `dtype` (see FrozenLinear), and in place of each AdaLN a table of
        its outputs, which depend only on which of the N positions is the target. It shares norms and embeddings with the model and is valid
        until the weights change; it is not to be trained, moved or saved."""
        if isinstance(self.lm_head, FrozenLinear):
            return self
        model = copy.deepcopy(self, {id(p): p for p in self.parameters()})                   # modules of its own, the same weights
        t = model.transformer
        if self.config.target_position == 'adaln':
            for module, name in [(block, 'adaLN') for block in t.h] + [(t.final_layer, 'adaLN_final')]:
                setattr(module, name, nn.Embedding.from_pretrained(getattr(module, name)(t.wtpe.weight).detach().to(dtype)))
            del t.wtpe
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, FrozenLinear(child, dtype))
        return model.eval()


# ---------------------------------------------------------------------------------------------------------------------
# its loss, AdaLN and inference made faster: equal up to rounding to what PyTorch would do

class TokenLoss(torch.autograd.Function):
    """-log softmax(x W^T + b)[tokens] (R,) for x (R, C), some rows at a time, so that the R V logits are never all in float32. Only
    d nll / d logits is kept for the backward pass, in the dtype of x, to which the backward products would round it anyway."""

    @staticmethod
    def forward(ctx, x, weight, bias, tokens):
        nll, dlogits = [], x.new_empty(len(x), len(weight))
        for x_part, tokens_part, dlogits_part in zip(*split_rows(len(weight), x, tokens, dlogits)):
            logits, column = F.linear(x_part, weight, bias), tokens_part.unsqueeze(1)
            logp = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))   # (rows, V)
            nll.append(-logp.gather(1, column).squeeze(1))
            dlogits_part.copy_(logp.exp_().scatter_add_(1, column, logp.new_full(column.shape, -1)))   # p - one_hot, in place
        ctx.save_for_backward(x, weight, dlogits)
        return torch.cat(nll)

    @staticmethod
    def backward(ctx, grad):
        x, weight, dlogits = ctx.saved_tensors
        column, largest = grad.unsqueeze(1), grad.abs().max().clamp(min=torch.finfo(grad.dtype).tiny)
        grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = (dlogits.T @ (grad / largest).to(x.dtype) * largest).to(x.dtype)   # exact weights where all are equal
        return ((dlogits @ weight) * column).to(x.dtype), dlogits.T @ (x * column).to(x.dtype), grad_bias, None


def split_rows(vocab_size, *tensors):
    """Split tensors (R, ...) by rows into parts whose logits are at most 2^24 numbers, on a GPU 2^26."""
    return [x.split(max(1, (2 ** 26 if x.is_cuda else 2 ** 24) // vocab_size)) for x in tensors]


def token_nll(head, x, tokens):
    """-log p (R,) of tokens (R,) under the logits that `head` gives for x (R, C), in float32 or better."""
    if torch.compiler.is_compiling():   # which fuses the cast: no float32 copy there either
        return F.cross_entropy(float32_or_better(head(x)), tokens, reduction='none')
    if torch.is_grad_enabled() and isinstance(head, Head):
        dtype, bias = product_dtype(x), head.real_bias()
        return TokenLoss.apply(x.to(dtype), head.weight.to(dtype), bias if bias is None else bias.to(dtype), tokens)
    return torch.cat([F.cross_entropy(float32_or_better(head(part)), token, reduction='none')
                      for part, token in zip(*split_rows(head.weight.size(0), x, tokens))])


class Rows(torch.autograd.Function):
    """table[index] (B, S, C) of table (N, C) and index (B, S). The gradient of a row of the table is the sum of those of its copies, in
    float32 and rounded once, without atomic additions."""

    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.n_rows = len(table)
        return F.embedding(index, table)

    @staticmethod
    def backward(ctx, grad):
        index, = ctx.saved_tensors
        ranked, copies = index.flatten().sort(stable=True)
        starts = torch.searchsorted(ranked, torch.arange(ctx.n_rows, device=index.device))
        return F.embedding_bag(copies, grad.flatten(0, 1), starts, mode='sum'), None


class FrozenLinear(nn.Module):
    """A linear layer for inference in `dtype`. On a CPU the weights are packed once into oneDNN's layout, which nn.Linear does
    at every call: for few rows that costs more than the product."""

    def __init__(self, linear, dtype):
        super().__init__()
        bias = linear.real_bias() if isinstance(linear, Head) else linear.bias
        self.weight, self.bias = linear.weight.detach().to(dtype), bias if bias is None else bias.detach().to(dtype)
        self.packed = self.weight.device.type == 'cpu' and torch.backends.mkldnn.is_available() and (
            dtype == torch.float32 or dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)

    def forward(self, x):
        x = x.to(self.weight.dtype)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, 'none', [], '')
        return F.linear(x, self.weight, self.bias)


# ---------------------------------------------------------------------------------------------------------------------
# its memory

class KVCache:
    """Keys and values of the slots that are kept, allocated once: 2 L B N C numbers. `length` (B,), on the host, is the number of slots
    kept in each row; those beyond are overwritten by index. A slot's key depends on its target, see AOGPT.predict. There is room for
    `n_slots`, by default N. With `graphs`, a devices.StepGraphs of one model, predict pads its steps to few sizes and runs them by it."""

    def __init__(self, config, batch_size, device='cpu', dtype=torch.float32, n_slots=None):
        shape = (config.n_layer, batch_size, config.n_head, n_slots or config.block_size, config.n_embd // config.n_head)
        self.k = torch.zeros(shape, device=device, dtype=dtype)     # zeros, not empty: a masked NaN is still 0 * NaN
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.length = torch.zeros(batch_size, dtype=torch.long)
        self.graphs = None

    def keep(self, rows):
        """Forget all rows of the batch but these (ascending, on the host), which move up in place."""
        for memory in (self.k, self.v):
            for new, old in enumerate(rows.tolist()):
                if new < old:
                    memory[:, new] = memory[:, old]
        self.k, self.v, self.length = self.k[:, :len(rows)], self.v[:, :len(rows)], self.length[rows]

    def store(self, slots, n_keys, layer, *new):
        """Put keys and values `new` (B, S, H, D) of a layer at `slots` (B, S); returns the first n_keys of every row, (B, n_keys, H, D)."""
        rows = torch.arange(len(slots), device=slots.device).unsqueeze(1)
        kept = [memory[layer].transpose(1, 2) for memory in (self.k, self.v)]                  # (B, N, H, D)
        for memory, x in zip(kept, new):
            memory[rows, slots] = x.to(memory.dtype)
        return [memory[:, :n_keys] for memory in kept]


def pad_size(n):
    """n rounded up to a power of two, above 64 to a multiple of 64."""
    return -(-n // 64) * 64 if n > 64 else 1 << (n - 1).bit_length()


# ---------------------------------------------------------------------------------------------------------------------
# its average

class EMA:
    """Exponential moving average of the weights, kept as a second model in `.model`.

    ema <- d ema + (1 - d) w  with  d = min(decay, (1 + n) / (10 + n)) at update n = 1, 2, ...          (AO appendix)
    """

    def __init__(self, model, decay):
        if not 0 <= decay < 1:
            raise ValueError(f'ema_decay must be at least 0 and below 1, got {decay}')
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.n_updates = decay, 0

    @torch.no_grad()
    def update(self, model):
        self.n_updates += 1
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - decay)
