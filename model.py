"""AO-GPT: a causal decoder that reads and predicts the tokens of a sequence in any order.

    "Any-Order GPT as Masked Diffusion Model: Decoupling Formulation and Architecture",
    Xue et al. 2025, arXiv 2506.19935, here AO

The one idea is the slot. An order is a permutation of the positions; number its visits 0, 1, 2, ...
A slot reads one visited token and is told which position to predict next. With the first n_known
visits known,

    the slot that predicts visit d reads visit min(d, n_known) - 1 (visit -1 is [None]);
    it sees the slots before it that are below n_known, and itself.

    order (3,0,2,1), teacher forcing, n_known = 3    same order, n_known = 1: three in parallel
    slot       0       1      2      3               slot       0       1      2      3
    reads    [None]   x3     x0     x2               reads    [None]   x3     x3     x3
    predicts   3       0      2      1               predicts   3       0      2      1
    sees       0      0-1    0-2    0-3              sees       0      0,1    0,2    0,3

Training knows all visits but the last, n_known = T - 1: plain causal attention. Parallel unmasking
knows fewer. With a cache the call runs only the slots that the cache lacks. A draft is a guess of
the next tokens: to check it, the caller counts its tokens as known and asks for the visits from the
first of them on. Outside this file tokens stay in natural order, and nothing is known of [None] or
masks.

Four indices: a position is a place in the text. A visit is a place in the order, so that
order[visit] = position. A slot has the number of the visit that it predicts. A column is a place in
the answer: one for each visit asked for.

Shapes: B batch, N block_size, T visits in an order, S slots run, n targets, C n_embd, H heads,
D = C / H, V vocabulary, L layers. The decoder comes first, then its memory and its average. Other
networks differ in their slots alone: the encoder, the mixed network and two streams are the last
section. tests/test_equalities.py says what must hold."""

import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

# How a slot is told its target: AdaLN; an embedding that is added to the input, again in every
# layer (the same one, or another one in each layer); a query beside it, see TwoStreamSlots.
# (AO, ablation)
TARGET_POSITIONS = ('adaln', 'input', 'layer_shared', 'layer', 'two_stream')

SIZES = ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'n_cond')

# What must hold for a config: the fields, the rule, and whether their values keep it.
RULES = [(size, f'{size} must be at least 1', lambda n: n >= 1) for size in SIZES]
RULES += [
    ('n_embd n_head', 'n_embd must be divisible by n_head', lambda C, H: C % H == 0),
    ('dropout', 'dropout must be at least 0 and below 1', lambda p: 0 <= p < 1),
    ('n_tokens vocab_size', 'n_tokens must be 0 (all) to vocab_size', lambda n, V: 0 <= n <= V),
    (
        'target_position',
        f'target_position must be {", ".join(TARGET_POSITIONS)}',
        lambda kind: kind in TARGET_POSITIONS,
    ),
    ('attention', 'attention must be {ATTENTION}', lambda kind: kind in ATTENTION),
    (
        'target_position attention',
        'target_position=two_stream is a decoder: attention must be causal',
        lambda kind, attention: kind != 'two_stream' or attention == 'causal',
    ),
    (
        'rotary n_embd n_head',
        'rotary wants heads of even width',
        lambda rotary, C, H: not rotary or C // H % 2 == 0,
    ),
]


@dataclass
class AOGPTConfig:
    """Sizes and kind of the network."""

    block_size: int = 1024  # N, positions
    vocab_size: int = 50304  # V, rows of embedding and head
    n_layer: int = 12  # L, blocks
    n_head: int = 12  # H, heads of attention
    n_embd: int = 768  # C, width
    # width of the embedding of the target position, from which AdaLN makes its numbers
    n_cond: int = 128
    dropout: float = 0.0  # on embeddings, attention and residual branches
    bias: bool = True  # in the linear layers of the blocks
    # the real vocabulary, 0 is vocab_size; the rows above it have probability zero
    n_tokens: int = 0
    # where the biases of the AdaLN gates start: 0 in AO; 1 learns faster in short runs
    gate_init: float = 0.0
    target_position: str = 'adaln'  # how a slot is told its target
    # rotate queries by the target position and keys by the position of their token
    rotary: bool = False
    # LayerNorm, no norm of queries and keys, and a head tied to the embedding: with
    # target_position='input' the network is sigma-GPT
    gpt2_blocks: bool = False
    gelu_tanh: bool = False  # GELU by GPT-2's approximation, which uses tanh
    attention: str = 'causal'  # which slots see which: a name of ATTENTION

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            is_whole_float = field.type is float and type(value) is int
            if type(value) is not field.type and not is_whole_float:
                kind = field.type.__name__
                raise ValueError(f'{field.name} must be of type {kind}, got {value!r}')
        for names, rule, holds in RULES:
            values = {name: getattr(self, name) for name in names.split()}
            if not holds(*values.values()):
                rule = rule.format(ATTENTION=', '.join(ATTENTION))
                got = ', '.join(f'{name}={value!r}' for name, value in values.items())
                raise ValueError(f'{rule}, got {got}')

    @property
    def n_real(self):
        """Tokens that can be read and drawn: the vocabulary without its padding."""
        return self.n_tokens or self.vocab_size

    @property
    def slots(self):
        """The kind of the network: the class of Slots that plans its passes."""
        return TwoStreamSlots if self.target_position == 'two_stream' else ATTENTION[self.attention]


# --------------------------------------------------------------------------------------------------
# the plan of one pass

# what a slot without a visit reads
NONE = -1  # [None]
QUERY = -2  # the vector of the queries of two streams


class Slots:
    """The plan of one pass: what each of the S slots of a row reads, predicts and sees.

    number   (B, S) the slot's own number, under which a cache keeps its key; a row with fewer slots
             repeats its last
    visit    (B, S) the visit that a slot predicts, `target` (B, S) its position
    reads    (B, S) the visit whose token a slot reads, or NONE or QUERY
    stands   (B, S) the position at which a slot reads, -1 is the place of [None]
    sees     (B, 1, S, keys) bool, the slots that a slot sees; None: those before it and itself if
             `causal`, else all
    columns  (B, n) where the slots that the caller asks for stand among the S; None: all of them

    This is the plan of the decoder. Another network is a subclass, named in ATTENTION: `see` says
    which slots see which, `read` what they read, `span` which of them `predict` runs. Five flags
    say what is special about a network:

                     decoder  encoder  mixed  two streams
    masked           no       no       yes    if asked     every pass needs the mask of `see`; else
                                                           a whole pass is `causal`, or full
    masked_loss      no       yes      yes    no           one pass scores the unknown visits alone,
                                                           so that `forward` wants n_known
    causal           yes      no       no     yes          without a mask: see what comes before
    cached           yes      no       yes    yes          the keys of known slots stay as they are
    targets_in_keys  yes      no       no     no           these keys depend on targets

    A step of `predict` with a cache, k tokens known since the last and r blanks left, runs
    k + n - 1 slots for n targets, and k + r if the model chooses its order."""

    masked = False
    masked_loss = False
    causal = True
    cached = True
    targets_in_keys = True

    def __init__(self, order, known, asked=None, number=None, n_keys=None, end=None):
        """Plan all visits of order (B, T), or the slots `number` (B, S).

        The first `known` (B, 1) visits are known, the visits `asked` (B, n) wanted. A mask covers
        `n_keys` keys, if any; the visits from `end` (B, 1) on are padding."""
        T = order.size(1)
        if number is None:
            number = torch.arange(T, device=order.device).expand(order.shape)
        self.number = number
        self.visit, self.columns = self.lay_out(asked)
        self.target = order.gather(1, self.visit)
        self.reads, self.stands = self.read(order, known)
        self.sees = None
        if n_keys is not None or self.masked:
            query = self.visit.unsqueeze(-1)  # (B, S, 1)
            key = torch.arange(n_keys or T, device=order.device)
            end = T if end is None else end.unsqueeze(-1)
            sees = self.see(query, key, known.unsqueeze(-1), end)  # (B, S, keys)
            self.sees = sees.unsqueeze(1)

    @staticmethod
    def see(query, key, known, end):
        """Whether slot `query` (B, S, 1) sees slot `key` (keys,); known and end are (B, 1, 1)."""
        return (key < query) & (key < known) | (key == query)

    def read(self, order, known):
        """Return (reads, stands), (B, S) each.

        A slot reads the visit before its own, or the last known one, where that token is."""
        reads = self.visit.clamp(max=known) - 1
        stands = order.gather(1, reads.clamp(min=0))
        return reads, stands.masked_fill(reads == NONE, -1)

    @classmethod
    def span(cls, known, first, n, T, n_visits):
        """Return (end, kept, needs_mask) of a `predict` of n (B,) targets, on the host.

        It runs slots up to end - 1 and a cache keeps `kept` of them, (B,) each. `needs_mask` speaks
        of a pass without a cache."""
        end = (first + n).clamp(max=T)
        kept = torch.minimum(known + 1, end)
        reaches_blanks = bool((end > known + 1).any())  # else plainly causal
        return end, kept, cls.masked or reaches_blanks

    def lay_out(self, asked):
        """Return the visit of each slot, and where the asked visits stand among the slots."""
        if asked is None:
            return self.number, None
        columns = asked - self.number[:, :1]
        return self.number, columns.clamp(max=self.number.size(1) - 1)

    def mask(self, columns):
        """Return `sees` of the slots `columns` (B, n) alone, (B, 1, n, keys), or of all for None.

        None is as in `sees`."""
        if columns is None or self.sees is None and not self.causal:
            return self.sees
        if self.sees is None:  # by column, not by number: a short row repeats its last slot
            keys = torch.arange(self.number.size(1), device=columns.device)
            return (keys <= columns.unsqueeze(-1)).unsqueeze(1)
        return take(self.sees[:, 0], columns).unsqueeze(1)


class Bounds(NamedTuple):
    """Which slots of each row a `predict` runs, and which visits it answers.

    Made as (B,) on the host, where sizes are counted without a wait; (B, 1) on the device."""

    known: torch.Tensor  # known visits
    first: torch.Tensor  # the visit of column 0
    last: torch.Tensor  # the visit of the last column
    start: torch.Tensor  # the first slot that runs
    end: torch.Tensor  # the slot behind the last one that runs

    def to(self, device):
        """Return the same on the device, (B, 1) each, by one copy."""
        stacked = torch.stack(self).to(device, non_blocking=True)
        return Bounds(*stacked.unsqueeze(-1))

    def numbers(self, S):
        """Return the numbers (B, S) of the slots that run; a short row repeats its last."""
        number = self.start + torch.arange(S, device=self.start.device)
        return torch.minimum(number, self.end - 1)

    def visits(self, n):
        """Return the visits (B, n) of the columns; a short row repeats its last."""
        visit = self.first + torch.arange(n, device=self.first.device)
        return torch.minimum(visit, self.last)


# --------------------------------------------------------------------------------------------------
# the network


class RMSNorm(nn.RMSNorm):
    def forward(self, x):
        # one dtype, which the fused kernel needs
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def float32_or_better(logits):
    """Losses, scores and draws are never taken in 16 bits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def make_norm(config):
    if config.gpt2_blocks:
        return nn.LayerNorm(config.n_embd, eps=1e-5, bias=config.bias)
    return RMSNorm(config.n_embd, eps=1e-5)


def make_head_norm(config):
    """Return the norm of the queries, or of the keys, of a head."""
    if config.gpt2_blocks:
        return nn.Identity()
    return RMSNorm(config.n_embd // config.n_head, eps=1e-5)


def apply_rotary(x, cos_sin):
    """Turn each pair (i, i + D / 2) of x (B, S, H, D) by angles.

    `cos_sin` holds their cosine and sine, (B, S, 1, D / 2) each."""
    cos, sin = [part.to(x.dtype) for part in cos_sin]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


def take(x, columns):
    """Return the columns (B, n) of x (B, S, ...) as (B, n, ...); for None x itself."""
    if columns is None:
        return x
    rows = torch.arange(len(x), device=x.device).unsqueeze(1)
    return x[rows, columns]


class SelfAttention(nn.Module):
    """Multi-head attention with RMSNorm on the queries and keys of every head.

    `rotary` gives (cos, sin) for queries and for keys, which are then rotated. `slots` says what is
    seen; only the slots `columns` (B, n), by default all, have queries. `store` puts keys and
    values into a cache and returns all that are there."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.q_norm = make_head_norm(config)
        self.k_norm = make_head_norm(config)

    def forward(self, x, slots, columns=None, rotary=None, store=None):
        B, S, C = x.shape
        qkv = self.c_attn(x).view(B, S, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.unbind(2)  # each (B, S, H, D)
        q = take(q, columns)  # (B, n, H, D)
        q = self.q_norm(q).to(v.dtype)  # autocast may give float32
        k = self.k_norm(k).to(v.dtype)
        if rotary is not None:
            of_target, of_token = rotary
            q = apply_rotary(q, [take(part, columns) for part in of_target])
            k = apply_rotary(k, of_token)

        n_content = slots.number.size(1)  # queries of two streams stand behind, without keys
        k = k[:, :n_content]
        v = v[:, :n_content]
        if store is not None:
            k, v = store(k, v)  # (B, keys, H, D)

        mask = slots.mask(columns)
        streams = [q]
        if mask is None:  # a causal call for each stream
            streams = q.split(k.size(1), 1)
        y = torch.cat([self.attend(stream, k, v, mask, slots.causal) for stream in streams], 1)
        return F.dropout(self.c_proj(y.flatten(2)), self.dropout, self.training)  # (B, n, C)

    def attend(self, q, k, v, mask, causal):
        """Return softmax(q k^T / sqrt(D) + mask) v (B, n, H, D).

        Queries are (B, n, H, D), keys and values (B, keys, H, D). `mask` (B, 1, n, keys) is True
        where a query sees a key; None is causal, or full without `causal`."""
        dtype = q.dtype
        dropout = self.dropout if self.training else 0.0
        q, k, v = [x.transpose(1, 2).to(dtype) for x in (q, k, v)]  # (B, H, ., D)
        if q.device.type == 'mps':
            # before torch 2.12 its kernel is wrong for other tensors (PyTorch issue 181133)
            q, k, v = [x.contiguous() for x in (q, k, v)]
        is_causal = mask is None and causal
        with torch.autocast(q.device.type, enabled=False):
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=is_causal)
        return y.transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dropout = config.dropout
        self.approximate = 'tanh' if config.gelu_tanh else 'none'
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x):
        x = F.gelu(self.c_fc(x), approximate=self.approximate)
        return F.dropout(self.c_proj(x), self.dropout, self.training)


class AdaLN(nn.Sequential):
    """Linear(SiLU(embedding of the target position)): it shifts, scales and gates (AO sec. 3)."""

    def __init__(self, config, n_parts):
        super().__init__(nn.SiLU(), nn.Linear(config.n_cond, n_parts * config.n_embd))

    def forward(self, target, wtpe):
        """Return (B, S, n_parts C) for the targets (B, S), whose embeddings are `wtpe`."""
        return super().forward(wtpe(target))


class Block(nn.Module):
    """A GPT block that the embeddings `wtpe` tell the targets of its slots.

    AdaLN shifts, scales and gates its norms and residual branches; without AdaLN the embeddings are
    added to its input; with None it learns no target. Given `columns` (B, n), it runs for these
    alone, over the keys of all."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = make_norm(config)
        self.attn = SelfAttention(config)
        self.ln_2 = make_norm(config)
        self.mlp = MLP(config)
        kind = config.target_position
        self.adaLN = AdaLN(config, 6) if kind == 'adaln' else None
        self.wtpe = nn.Embedding(config.block_size, config.n_embd) if kind == 'layer' else None

    def forward(self, x, wtpe, slots, columns=None, rotary=None, store=None):
        if self.adaLN is None:
            if wtpe is not None:
                x = x + wtpe(slots.target)
            x = take(x, columns) + self.attn(self.ln_1(x), slots, columns, rotary, store)
            return x + self.mlp(self.ln_2(x))
        modulation = self.adaLN(slots.target, wtpe)  # (B, S, 6 C)
        shift, scale = modulation.chunk(6, dim=-1)[:2]  # each (B, S, C)
        y = self.attn(modulate(self.ln_1(x), shift, scale), slots, columns, rotary, store)
        modulation = take(modulation, columns)
        gate_a, shift_m, scale_m, gate_m = modulation.chunk(6, dim=-1)[2:]  # each (B, n, C)
        x = take(x, columns) + gate_a * y
        return x + gate_m * self.mlp(modulate(self.ln_2(x), shift_m, scale_m))


class FinalLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_f = make_norm(config)
        self.adaLN_final = AdaLN(config, 2)

    def forward(self, x, modulation):
        shift, scale = modulation.chunk(2, dim=-1)
        return modulate(self.ln_f(x), shift, scale)


class Head(nn.Linear):
    """Logits over the vocabulary; -inf for its padding, the rows from n_tokens on.

    Padding has no probability anywhere."""

    def __init__(self, config):
        super().__init__(config.n_embd, config.vocab_size, bias=not config.gpt2_blocks)
        self.n_real = config.n_real

    def forward(self, x):
        return F.linear(x, self.weight, self.real_bias())

    def real_bias(self):
        if self.n_real == self.out_features:
            return self.bias
        bias = self.bias
        if bias is None:
            bias = self.weight.new_zeros(self.out_features)
        is_padding = torch.arange(self.out_features, device=bias.device) >= self.n_real
        return bias.masked_fill(is_padding, -torch.inf)

    def nll(self, x, tokens):
        """Return -log p (R,) in nats of tokens (R,) given x (R, C), in float32 or better.

        Training runs LeanHead.nll of anyorder/fast.py: `lean` makes a model faster from outside and
        leaves its answers equal up to rounding."""
        return F.cross_entropy(float32_or_better(self(x)), tokens, reduction='none')


class Network(nn.Module):
    """The interface of a model.

    A new body is a subclass, a new attention pattern a subclass of Slots. A subclass has

    config    block_size, vocab_size, n_real, attention and slots, as AOGPTConfig has them
    trunk     (idx, order, slots, cache=None) -> (B, n, C): what the head reads of the columns of a
              plan
    lm_head   x (R, C) -> logits (R, V), with nll(x, tokens) -> (R,) nats and a weight, as Head has
              them"""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.slots = config.slots

    @property
    def device(self):
        return self.lm_head.weight.device

    @property
    def dtype(self):
        return self.lm_head.weight.dtype

    def n_parameters(self):
        return sum(p.numel() for p in self.parameters())

    def forward(self, idx, order, n_known=None, columns=None, n_visits=None):
        """Return the negative log-likelihood of each visit given the visits before it.

        nll[b, d] = -log p(x[order[b, d]] | x[order[b, :d]])                   (AO eq. of L_AO-AR)

        idx       (B, N') int64 tokens in natural order, N' at most block_size
        order     (B, T) int64 positions, T at most N'; for a prefix of an order a decoder gives the
                  prefix of its nll
        n_known   (B,), for a masked loss only, and required there: known visits, 0 to T - 1. Their
                  columns are 0 and the others T / (T - n_known) times their nll: for uniform
                  n_known the row's sum is L_MDM of AO in the mean
        columns   (B, n) visits, for a decoder only, by default all T: the head and most of the last
                  block run for these
        n_visits  (B,), by default T: the visits of a row from n_visits on are padding, which
                  nothing sees. Their nll is 0, and the weights of a masked loss are
                  n_visits / (n_visits - n_known)
        returns   nll (B, n) float32 (float64 in a float64 model) in nats, of the positions at
                  `columns` of order
        """
        T = self._check(idx, order)[1]
        self._check_scored(n_known, columns, T)

        # What is known, what is padding and what is asked for
        visits = torch.arange(T, device=idx.device)
        if n_known is None:
            known = order.new_full((len(order), 1), T - 1)
        else:
            known = n_known.to(idx.device).unsqueeze(1)
        end = T
        if n_visits is not None:
            end = n_visits.to(idx.device).unsqueeze(1)
        if columns is not None:
            columns = columns.to(idx.device)

        # One pass; a decoder sees no later visit, so that padding needs no mask
        if self.slots.masked_loss and n_visits is not None:
            number = torch.minimum(visits, end - 1)
            slots = self.slots(order, known, columns, number, T, end)
        else:
            slots = self.slots(order, known, columns)
        x = self.trunk(idx, order, slots)  # (B, n, C)

        # The nats of its tokens
        tokens = idx.gather(1, take(order, columns))  # (B, n)
        nll = self.lm_head.nll(x.flatten(0, 1), tokens.flatten()).view(tokens.shape)
        if self.slots.masked_loss:
            nll = torch.where(visits < known, 0, nll * end / (end - known))
        if n_visits is None:
            return nll
        scored = visits if columns is None else columns
        return nll.masked_fill(scored >= end, 0)

    def predict(
        self,
        idx,
        order,
        n_known,
        n_targets=None,
        cache=None,
        n_visits=None,
        picked=None,
        first=None,
        head=None,
    ):
        """Return logits of n = max(n_targets) visits, in parallel.

        Of the other targets a decoder's target sees nothing.

        idx        (B, N') tokens in natural order; those at order[:, n_known:] are not read
        order      (B, T) positions
        n_known    int or (B,) known visits of each row; an int or a CPU tensor waits for no device
        n_targets  int or (B,) columns of a row, at most n; by default T - min(first)
        cache      KVCache: runs only what is not in it, and leaves the known slots there. Where
                   keys depend on targets, slot n_known stays too, which was run for the target
                   order[:, n_known]: if the caller then reorders the visits from n_known on, it
                   must set cache.length back to n_known
        n_visits   int or (B,), by default T: the visits of a row from n_visits on are padding,
                   which nothing sees
        picked     index of (B, n), as (rows, columns), (m,) each: the head runs for these, (m, V);
                   slice(0): for none
        first      int or (B,), by default n_known: the visit of column 0. A decoder may begin with
                   known visits, each given those before it
        head       by default lm_head; another reader of (B, n, C), or of (m, C), gives what is
                   returned
        returns    logits (B, n, V); column j of row r is position order[r, first[r] + j]; columns
                   past n_targets or the end of a row are undefined"""
        B, T = self._check(idx, order)

        # What is asked for, (B,) each on the host, as is cache.length
        known = on_host(n_known, B)
        first = known if first is None else on_host(first, B)
        counts = on_host(T - int(first.min()) if n_targets is None else n_targets, B)
        n_visits = on_host(T if n_visits is None else n_visits, B)
        n = int(counts.max())
        bad = (first < 0) | (first > known) | (known > n_visits) | (n_visits > T)
        if bad.any() or n < 1:
            raise ValueError(
                f'n_known must be 0 to n_visits, which must be 0 to {T} (the visits in order), '
                f'with a target left, and first 0 to n_known; got n_known={known.tolist()}, '
                f'n_visits={n_visits.tolist()}, n_targets={n_targets} and first={first.tolist()}'
            )
        self._check_kind(known, first, cache)

        # Which slots run
        counts = counts.clamp(min=1)
        end, kept, needs_mask = self.slots.span(known, first, counts, T, n_visits)
        start = torch.zeros_like(known)
        if cache is not None:  # behind the cache, at the first target at most, inside the row
            start = torch.minimum(cache.length.cpu(), first).minimum(end - 1)
        n_slots = int((end - start).max())
        n_keys = None
        if needs_mask or cache is not None:
            n_keys = int(end.max())
        last = (first + counts).clamp(max=T) - 1
        bounds = Bounds(known, first, last, start, end).to(idx.device)

        # One pass
        asked = bounds.visits(n)
        number = bounds.numbers(n_slots)
        slots = self.slots(order, bounds.known, asked, number, n_keys, bounds.end)
        x = self.trunk(idx, order, slots, cache)
        if cache is not None:
            cache.length = kept
        if picked is not None:
            x = x[picked]
        return (head or self.lm_head)(x)

    def _check(self, idx, order):
        """Return (B, T), if tokens and order are of shapes that fit."""
        if idx.dim() != 2 or order.dim() != 2 or len(idx) != len(order):
            shapes = f'{tuple(idx.shape)} and {tuple(order.shape)}'
            raise ValueError(f'idx, order must be (B, N), (B, T), got {shapes}')
        B, T = order.shape
        N = idx.size(1)
        if not 1 <= T <= N <= self.config.block_size:
            raise ValueError(
                f'1 <= T <= N <= block_size={self.config.block_size} must hold, '
                f'got T={T} visits and N={N} tokens'
            )
        if self.slots.masked_loss and T < N:
            raise ValueError(f'a masked loss wants whole orders, got {T} visits of N={N} tokens')
        return B, T

    def _check_scored(self, n_known, columns, T):
        """Check the arguments of `forward`; what lies on a device is not looked at."""
        if not self.slots.masked_loss and n_known is not None:
            raise ValueError(
                'n_known is for a masked loss; a decoder gives the nll of all visits at once'
            )
        if self.slots.masked_loss and (n_known is None or columns is not None):
            raise ValueError(
                f'a masked loss wants n_known (B,) from 0 to {T - 1}, no columns: visits by predict'
            )
        if torch.compiler.is_compiling():
            return
        for name, x in (('n_known', n_known), ('columns', columns)):
            if x is None or x.device.type != 'cpu':
                continue
            if not 0 <= x.min() <= x.max() < T:
                raise ValueError(f'{name} must be visits from 0 to {T - 1}, got {x.tolist()[:8]}')

    def _check_kind(self, known, first, cache):
        """Check that this kind of network can answer."""
        if self.slots.masked_loss and (first < known).any():
            raise ValueError(
                'a masked loss says nothing of visits that are known: first is for a decoder'
            )
        if cache is not None and not self.slots.cached:
            raise ValueError(
                f'attention={self.config.attention} has no cache: '
                'every slot depends on which are known'
            )


def on_host(x, B):
    """Return an int or a tensor (B,) as (B,) on the host."""
    return torch.as_tensor(x).cpu().expand(B)


class AOGPT(Network):
    """The any-order network. The published checkpoints have the same parameter names and order."""

    def __init__(self, config):
        super().__init__(config)
        N = config.block_size
        C = config.n_embd
        kind = config.target_position
        t = self.transformer = nn.ModuleDict()
        t['wte'] = nn.Embedding(config.vocab_size, C)
        t['wpe'] = nn.Embedding(N + 1, C)  # row 0 for [None], row p + 1 for position p
        if kind == 'adaln':
            t['wtpe'] = nn.Embedding(N, config.n_cond)
        elif kind in ('input', 'layer_shared'):
            t['wtpe'] = nn.Embedding(N, C)
        t['wnonee'] = nn.Embedding(1, C)  # [None]
        if kind == 'two_stream':
            t['wquery'] = nn.Embedding(1, C)  # what all queries read
        t['h'] = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        if kind == 'adaln':
            t['final_layer'] = FinalLayer(config)
        else:
            t['ln_f'] = make_norm(config)
        self.lm_head = Head(config)
        if config.gpt2_blocks:
            self.lm_head.weight = self.transformer.wte.weight
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        """Draw weights of std 0.02 from a normal cut at 3 std, biases 0 (AO appendix).

        Projections into the residual stream are scaled by 1 / sqrt(2 L)."""
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02
                if name.endswith('c_proj.weight'):
                    std = 0.02 / (2 * self.config.n_layer) ** 0.5
                nn.init.trunc_normal_(p, std=std, a=-3 * std, b=3 * std)
            elif name.endswith('bias'):
                nn.init.zeros_(p)
        if self.config.target_position == 'adaln':
            for block in self.transformer.h:
                gates = block.adaLN[1].bias.view(6, -1)
                gates[2] = self.config.gate_init
                gates[5] = self.config.gate_init

    def trunk(self, idx, order, slots, cache=None):
        """Return the last hidden states (B, n, C) of the columns of `slots`.

        The last block runs queries and MLP for these alone."""
        t = self.transformer
        kind = self.config.target_position

        # What the slots read, and where
        is_none = slots.reads < 0  # (B, S)
        position = order.gather(1, slots.reads.clamp(min=0))
        read = idx.gather(1, position)
        token = t.wte(read.masked_fill(is_none, 0))  # a blank may hold any id
        x = torch.where(is_none.unsqueeze(-1), t.wnonee.weight, token)  # (B, S, C)
        if kind == 'two_stream':
            is_query = slots.reads == QUERY
            x = torch.where(is_query.unsqueeze(-1), t.wquery.weight, x)
        x = x + t.wpe(slots.stands + 1)
        x = F.dropout(x, self.config.dropout, self.training)

        # The blocks
        rotary = None
        if self.config.rotary:
            rotary = [self._cos_sin(slots.target), self._cos_sin(slots.stands)]
        store = None
        for layer, block in enumerate(t.h):
            columns = slots.columns if layer == len(t.h) - 1 else None
            if cache is not None:
                store = partial(cache.store, slots, layer)
            x = block(x, self._wtpe(layer), slots, columns, rotary, store)

        # The last norm
        if kind != 'adaln':
            return t.ln_f(x)
        target = take(slots.target, slots.columns)
        return t.final_layer(x, t.final_layer.adaLN_final(target, t.wtpe))

    def _wtpe(self, layer):
        """Return the embeddings that tell a layer the targets of its slots, or None."""
        kind = self.config.target_position
        if kind == 'two_stream' or kind == 'input' and layer > 0:
            return None
        if kind == 'layer':
            return self.transformer.h[layer].wtpe
        return self.transformer.wtpe

    def _cos_sin(self, position):
        """Return (cos, sin), (B, S, 1, D / 2) each, of the angles of positions p (B, S).

        They are (p + 1) 10000^(-2 i / D); -1 is the place of [None]."""
        D = self.config.n_embd // self.config.n_head
        dtype = torch.promote_types(self.transformer.wte.weight.dtype, torch.float32)
        i = torch.arange(0, D, 2, device=position.device, dtype=dtype)
        frequency = 10000.0 ** (-i / D)
        angle = (position + 1)[..., None, None] * frequency
        return angle.cos(), angle.sin()


# --------------------------------------------------------------------------------------------------
# its memory and its average


class KVCache:
    """Keys and values of the kept slots, allocated once: 2 L B N C numbers.

    `length` (B,), on the host, counts the kept slots of each row; later ones are overwritten by
    their number. There is room for `n_slots`, by default N."""

    def __init__(self, config, batch_size, device='cpu', dtype=torch.float32, n_slots=None):
        head_size = config.n_embd // config.n_head
        n_slots = n_slots or config.block_size
        shape = (config.n_layer, batch_size, config.n_head, n_slots, head_size)
        # zeros, not empty: a masked NaN is still 0 * NaN
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.length = torch.zeros(batch_size, dtype=torch.long)

    def keep(self, rows):
        """Forget all rows of the batch but these (ascending, on the host), which move up."""
        for memory in (self.k, self.v):
            for new, old in enumerate(rows.tolist()):
                if new < old:
                    memory[:, new] = memory[:, old]
        self.k = self.k[:, : len(rows)]
        self.v = self.v[:, : len(rows)]
        self.length = self.length[rows]

    def store(self, slots, layer, *new):
        """Store keys and values `new` (B, S, H, D) of a layer.

        Returns all that the mask covers, (B, keys, H, D) each."""
        rows = torch.arange(len(slots.number), device=slots.number.device).unsqueeze(1)
        kept = [memory[layer].transpose(1, 2) for memory in (self.k, self.v)]  # (B, N, H, D)
        for memory, x in zip(kept, new):
            memory[rows, slots.number] = x.to(memory.dtype)
        n_keys = slots.sees.size(-1)
        return [memory[:, :n_keys] for memory in kept]


class EMA:
    """Exponential moving average of the weights, kept as a second model in `.model`.

    ema <- d ema + (1 - d) w,  d = min(decay, (1 + n) / (10 + n)) at update n = 1, 2, ...
    (AO appendix)"""

    def __init__(self, model, decay):
        if not 0 <= decay < 1:
            raise ValueError(f'ema_decay must be at least 0 and below 1, got {decay}')
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.n_updates = 0

    @torch.no_grad()
    def update(self, model):
        self.n_updates += 1
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        average = list(self.model.parameters())
        torch._foreach_lerp_(average, list(model.parameters()), 1 - decay)


# --------------------------------------------------------------------------------------------------
# other networks, which differ in their slots


class BlankSlots(Slots):
    """A slot stands at the position that it predicts and reads its own token.

    If its visit is not known, a blank, it reads [None]. A pass predicts blanks alone. A subclass
    brings `see`. A step of `predict` with a cache, k tokens known since the last and r blanks left,
    runs k + r slots."""

    masked_loss = True
    causal = False
    targets_in_keys = False

    def read(self, order, known):
        return torch.where(self.visit < known, self.visit, NONE), self.target

    @classmethod
    def span(cls, known, first, n, T, n_visits):
        end = n_visits.clamp(min=1)
        has_padding = bool((end < end.max()).any())
        return end, known, cls.masked or has_padding


class EncoderSlots(BlankSlots):
    """The encoder-only masked diffusion model: a slot sees every slot.

    What it says depends on which visits are known, not on their order; a new token changes all
    keys, so that there is nothing to cache. A step runs all slots."""

    cached = False

    @staticmethod
    def see(query, key, known, end):
        return (key < end) & (query >= 0)  # the second is always true and gives a row to each query


class MixedSlots(BlankSlots):
    """Between decoder and encoder: blanks see every slot, known slots the known ones before them.

    The keys of known slots are final, whatever is visited next, and blanks know of each other. What
    the network says depends on the order of what is known. (The mask of Eso-LM's mixed mode, arXiv
    2506.01928)"""

    masked = True

    @staticmethod
    def see(query, key, known, end):
        return ((key <= query) | (query >= known)) & (key < end)


class TwoStreamSlots(Slots):
    """XLNet's two streams, on the same weights.

    Slot d of the content reads visit d - 1 where it stands, sees the content before it and itself,
    and knows no target. A query slot predicts visit d: it stands at order[d], reads one learned
    vector, and sees the content slots 0 to min(d, n_known). Queries come behind the content,
    without keys: a cache is final whatever is visited next, and serves many orders of a prompt.
    (Yang et al. 2019, arXiv 1906.08237)

    A step of `predict` with a cache, k tokens known since the last, runs k + n slots for n
    targets."""

    targets_in_keys = False

    def lay_out(self, asked):
        self.masked = asked is not None  # a whole pass needs no mask: each stream is causal
        queries = asked if self.masked else self.number  # (B, n)
        S = self.number.size(1)
        columns = torch.arange(S, S + queries.size(1), device=queries.device)
        return torch.cat([self.number, queries], 1), columns.expand(queries.shape)

    @staticmethod
    def see(query, key, known, end):
        return key <= torch.minimum(query, known)

    def read(self, order, known):
        reads, stands = super().read(order, known)
        slot = torch.arange(reads.size(1), device=order.device)
        asks = slot >= self.number.size(1)
        # content has no target: rotary turns it by where it stands
        self.target = torch.where(asks, self.target, stands)
        return reads.masked_fill(asks, QUERY), self.target

    def mask(self, columns):
        return None if self.sees is None else super().mask(columns)

    @staticmethod
    def span(known, first, n, T, n_visits):
        end = (known + 1).clamp(max=T)
        return end, end, True


# config.attention: another network is a subclass of Slots, named here
ATTENTION = {'causal': Slots, 'bidirectional': EncoderSlots, 'mixed': MixedSlots}
