"""AO-GPT: a causal decoder that reads and predicts the tokens of a sequence in any order.

    "Any-Order GPT as Masked Diffusion Model: Decoupling Formulation and Architecture",
    Xue et al. 2025, arXiv 2506.19935, cited as AO

An order is a permutation of the positions; number its visits 0, 1, 2, ... A slot reads one visited
token and is told which position to predict next. With the first n_known visits known,

    the slot that predicts visit d reads visit min(d, n_known) - 1 (visit -1 is [None]);
    it sees the slots before it that are below n_known, and itself.

    order (3,0,2,1), teacher forcing, n_known = 3    same order, n_known = 1: three in parallel
    slot       0       1      2      3               slot       0       1      2      3
    reads    [None]   x3     x0     x2               reads    [None]   x3     x3     x3
    predicts   3       0      2      1               predicts   3       0      2      1
    sees       0      0-1    0-2    0-3              sees       0      0,1    0,2    0,3

Training knows all visits but the last, n_known = T - 1: plain causal attention. Parallel unmasking
knows fewer. With a cache a pass runs only the slots that the cache lacks. Outside this file tokens
stay in natural order.

A position is a place in the text, a visit one in the order: order[visit] = position. A slot has the
number of the visit that it predicts, a column is a place in the answer.

Shapes: B batch, N block_size, T visits in an order, S slots run, n targets, C n_embd, H heads,
D = C / H, V vocabulary, L layers.

The last section has other networks, which differ in their slots alone."""

import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

# How a slot is told its target (AO, ablation)
TARGET_POSITIONS = (
    'adaln',  # AdaLN in every layer
    'input',  # an embedding that is added to the input
    'layer_shared',  # the same embedding, added again in every layer
    'layer',  # another embedding in each layer
    'two_stream',  # a query beside the content, see TwoStreamSlots
)

SIZES = ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd', 'n_cond')


@dataclass
class AOGPTConfig:
    block_size: int = 1024  # N, positions
    vocab_size: int = 50304  # V, rows of embedding and head
    n_layer: int = 12  # L, blocks
    n_head: int = 12  # H, heads of attention
    n_embd: int = 768  # C, width
    n_cond: int = 128  # width of the target embedding that AdaLN reads
    dropout: float = 0.0  # on embeddings, attention and residual branches
    bias: bool = True  # in the linear layers of the blocks
    n_tokens: int = 0  # real tokens, 0: all; rows above them have probability zero
    gate_init: float = 0.0  # first bias of the AdaLN gates: 0 in AO; 1 learns faster at first
    target_position: str = 'adaln'
    rotary: bool = False  # queries are rotated by the target position, keys by their token's
    # LayerNorm, no norm of queries and keys, a tied head; sigma-GPT with target_position='input'
    gpt2_blocks: bool = False
    gelu_tanh: bool = False  # GPT-2's approximation of GELU
    attention: str = 'causal'  # which slots see which: a name of ATTENTION

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            is_kind = isinstance(value, field.type | int)  # an int serves as a float
            if not is_kind or (field.name in SIZES and value < 1):
                kind = field.type.__name__
                raise ValueError(f'{field.name} must be {kind}, a size at least 1, got {value!r}')
        target = self.target_position
        is_even = self.n_embd // self.n_head % 2 == 0
        rules = {
            'n_embd must be divisible by n_head': self.n_embd % self.n_head == 0,
            'dropout must be at least 0 and below 1': 0 <= self.dropout < 1,
            'n_tokens must be 0 (all) to vocab_size': 0 <= self.n_tokens <= self.vocab_size,
            f'target_position must be {", ".join(TARGET_POSITIONS)}': target in TARGET_POSITIONS,
            f'attention must be {", ".join(ATTENTION)}': self.attention in ATTENTION,
            'two_stream is attention=causal': self.attention == 'causal' or target != 'two_stream',
            'rotary wants an even width of heads, n_embd / n_head': is_even or not self.rotary,
        }
        for rule, holds in rules.items():
            if not holds:
                got = {name: value for name, value in vars(self).items() if name in rule}
                raise ValueError(f'{rule}, got {got}')

    @property
    def n_real(self):
        """The vocabulary without its padding."""
        return self.n_tokens or self.vocab_size

    @property
    def slots_class(self):
        """The subclass of Slots, an instance of which plans a pass."""
        if self.target_position == 'two_stream':
            return TwoStreamSlots
        return ATTENTION[self.attention]


# --------------------------------------------------------------------------------------------------
# the plan of one pass: at first skip to the network, and come back for `predict`

# in place of a visit in `reads`: no token, but
NONE = -1  # [None]
QUERY = -2  # the vector of the queries of two streams


class Slots:
    """The plan of a pass: what each of the S slots of a row reads, predicts and sees.

    number         (B, S) under which a cache keeps the slot's key; short rows repeat the last slot
    visit          (B, S) the visit that a slot predicts, its `number` but in two streams
    target         (B, S) the position of this visit; of content in two streams read_position
    reads          (B, S) the visit whose token a slot reads, or NONE or QUERY
    read_position  (B, S) where this token stands, -1 of [None]; of blanks and queries their target
    sees           (B, 1, S, keys) bool, the slots that a slot sees; None: those before it and
                   itself if `causal`, else all
    answering      (B, n) which of the S slots give logits, as others fill the cache; None: all

    A row may pack several texts, its parts, see Parts. Slot s of the part that begins at visit b is
    slot s - b of this part alone: it reads and sees nothing else, and counts positions from it.

    This is the decoder. Another network is a subclass, named in ATTENTION: `see` says which slots
    see which, `plan_reads` what they read, `span` which of them `predict` runs.

                     decoder  encoder  mixed  two streams  yes says that
    needs_mask       no       no       yes    no           every pass needs the mask of `see`
    masked_loss      no       yes      yes    no           a pass scores the unknown visits alone
    causal           yes      no       no     yes          what is seen without a mask
    cached           yes      no       yes    yes          keys of known slots are final
    targets_in_keys  yes      no       no     no           and they depend on targets"""

    needs_mask = False
    masked_loss = False
    causal = True
    cached = True
    targets_in_keys = True

    def __init__(self, order, known, parts, n_keys=None, asked=None, number=None):
        """Plan all visits of order (B, T), or the slots `number` (B, S).

        Visits before `known` (B, 1), or (B, T) of the part of each visit, are known; the caller
        wants the visits `asked` (B, n), None: all. With `n_keys` a mask covers as many keys."""
        T = order.size(1)
        if number is None:
            number = torch.arange(T, device=order.device).expand(order.shape)
        self.number = number
        self.visit, self.answering = self.lay_out(asked)
        self.packed = parts.begins is not None
        if self.packed:
            self.begin = parts.begin.gather(1, self.visit)  # (B, S)
            order = order - parts.begin
        self.target = order.gather(1, self.visit)
        self.reads, self.read_position = self.plan_reads(order, known)
        self.sees = None
        if n_keys is not None or self.needs_mask or self.packed:
            query = self.visit.unsqueeze(-1)  # (B, S, 1)
            key = torch.arange(n_keys or T, device=order.device)
            sees = self.see(query, key, known.unsqueeze(-1), parts.end.unsqueeze(-1))
            if self.packed:
                sees = sees & (key >= self.begin.unsqueeze(-1))
            self.sees = sees.unsqueeze(1)  # (B, 1, S, keys)

    @staticmethod
    def see(query, key, known, end):
        """Whether slot `query` (B, S, 1) sees slot `key` (keys,), whose part begins before it.

        known and end are (B, 1, 1) or (B, S, 1)."""
        return (key < query) & (key < known) | (key == query)

    def plan_reads(self, order, known):
        """Return (reads, read_position): the visit before, or the last known one, at its place."""
        reads = self.visit.clamp(max=known) - 1
        if self.packed:
            reads = reads.masked_fill(reads < self.begin, NONE)
        position = order.gather(1, reads.clamp(min=0))
        return reads, position.masked_fill(reads == NONE, -1)

    @classmethod
    def plan(cls, bounds, T, cache=None, reorders=False):
        """Plan passes that follow each other, over an order of T visits. Return

        numbers  (passes, 5, B): known, first, last, start, end. A pass answers the visits `first`
                 to `last`, and runs the slots from `start` to before `end`
        sizes    [(S, n, n_keys)] of the widest row of each pass; n_keys is None without a mask
        kept     (passes, B): slots that a cache keeps after each

        All are on the host, where nothing waits. `bounds` are (known, first, n_targets, n_visits)
        of (passes, B) each, see predict. With `reorders` the visits from `known` on get another
        order after each pass, so that no slot of theirs is kept."""
        known, first, n_targets, n_visits = bounds
        counts = n_targets.clamp(min=1)  # a row without targets runs one slot
        end, kept, wants_mask = cls.span(known, first, counts, T, n_visits)
        if reorders and cls.targets_in_keys:
            kept = known  # slot `known` ran for another target than the one that comes next
        length = torch.zeros_like(known)
        if cache is not None:
            length = torch.cat([cache.length.unsqueeze(0), kept[:-1]])

        # From the first slot that the cache lacks, or the first target
        start = torch.minimum(length, first).minimum(end - 1)
        last = (first + counts).clamp(max=T) - 1
        sizes = torch.stack([end - start, counts, end], -1).amax(1).tolist()
        if cache is None and not wants_mask:
            sizes = [(*size[:2], None) for size in sizes]
        return torch.stack([known, first, last, start, end], 1), sizes, kept

    @classmethod
    def span(cls, known, first, counts, T, n_visits):
        """Return (end, kept, wants_mask): slots up to end - 1 run, a cache keeps `kept`, and this
        pass wants a mask even without a cache.

        Say visits 0 to 4 are known, and 5, 6 and 7 asked for: slots 5, 6 and 7 read visit 4, and
        end is 8. Slot 5 would read it with one token a step, too: kept is 6, and 6 and 7 run
        again."""
        end = (first + counts).clamp(max=T)
        kept = torch.minimum(known + 1, end)  # slot `known`, too, saw all that it will ever see
        # Slots after `known` do not see each other
        reaches_blanks = bool((end > known + 1).any())
        return end, kept, cls.needs_mask or reaches_blanks

    def lay_out(self, asked):
        """Return (visit, answering)."""
        if asked is None:
            return self.number, None
        answering = asked - self.number[:, :1]  # the numbers of a row follow each other
        return self.number, answering.clamp(max=self.number.size(1) - 1)

    def mask_of(self, answering):
        """Return the rows of `sees`, (B, 1, n, keys), of the slots `answering` (B, n), or all."""
        if answering is None:
            return self.sees
        if self.sees is not None:
            return take(self.sees[:, 0], answering).unsqueeze(1)
        if not self.causal:
            return None
        # by index: a short row repeats its last number
        keys = torch.arange(self.number.size(1), device=answering.device)
        return (keys <= answering.unsqueeze(-1)).unsqueeze(1)


class Parts(NamedTuple):
    """The texts in rows: each has the visits from `begin` to before `end`.

    A row that packs P visits the positions of the first, then those of the second, ...; they begin
    at `begins` (B, P), or T where it packs fewer."""

    end: torch.Tensor  # (B, 1), or (B, T) of the text of each visit
    begin: torch.Tensor | int = 0
    begins: torch.Tensor | None = None
    number: torch.Tensor | None = None  # (B, T) which text of its row

    @classmethod
    def of(cls, order, n_visits, begins):
        """Return the texts of an order (B, T). Visits from n_visits (B,) on are padding."""
        T = order.size(1)
        if begins is not None:
            visits = torch.arange(T, device=order.device).repeat(len(order), 1)
            after = torch.searchsorted(begins, visits, right=True)
            end = F.pad(begins, (0, 1), value=T).gather(1, after)
            return cls(end, begins.gather(1, after - 1), begins, after - 1)
        if n_visits is None:
            return cls(torch.full((1, 1), T, device=order.device))
        return cls(n_visits.to(order.device).unsqueeze(1))

    def after(self, n):
        """Return the visit after the first n of a text; n is (B,), or (B, P) of each."""
        if self.begins is None:
            return n.unsqueeze(1)
        return self.begin + n.gather(1, self.number)


def counted(first, n, last):
    """Return first, first + 1, ... (B, n), none after `last`; both are (B, 1)."""
    return torch.minimum(first + torch.arange(n, device=first.device), last)


# --------------------------------------------------------------------------------------------------
# the network


class RMSNorm(nn.RMSNorm):
    def forward(self, x):  # casts the weight, as the fused kernel wants one dtype
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def float32_or_better(logits):
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def make_norm(config):
    if config.gpt2_blocks:
        return nn.LayerNorm(config.n_embd, eps=1e-5, bias=config.bias)
    return RMSNorm(config.n_embd, eps=1e-5)


def make_head_norm(config):
    """Return the norm of queries or keys."""
    if config.gpt2_blocks:
        return nn.Identity()
    return RMSNorm(config.n_embd // config.n_head, eps=1e-5)


def apply_rotary(x, cos_sin):
    """Turn each pair (i, i + D / 2) of x (B, S, H, D)."""
    cos, sin = [part.to(x.dtype) for part in cos_sin]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


def take(x, index):
    """Return x[b, index[b, j]] (B, n, ...) of x (B, S, ...); without index x."""
    if index is None:
        return x
    rows = torch.arange(len(x), device=x.device).unsqueeze(1)
    return x[rows, index]


class SelfAttention(nn.Module):
    """Multi-head attention with RMSNorm on queries and keys.

    `rotary` is (cos, sin) of queries and keys. `store` caches (k, v) and returns all."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.q_norm = make_head_norm(config)
        self.k_norm = make_head_norm(config)

    def forward(self, x, slots, answering, rotary, store):
        qkv = self.c_attn(x).view(*x.shape[:-1], 3, self.n_head, x.size(-1) // self.n_head)
        q, k, v = qkv.unbind(-3)  # (B, S, H, D)
        q = take(q, answering)
        q = self.q_norm(q).to(v.dtype)  # autocast may give float32
        k = self.k_norm(k).to(v.dtype)
        if rotary is not None:
            of_target, of_token = rotary
            q = apply_rotary(q, [take(part, answering) for part in of_target])
            k = apply_rotary(k, of_token)
        y = self.attend_slots(q, k, v, slots, answering, store).flatten(2)  # (B, n, C)
        return F.dropout(self.c_proj(y), self.dropout, self.training)

    def attend_slots(self, q, k, v, slots, answering, store):
        n_content = slots.number.size(1)  # queries of two streams come after it, without keys
        k = k[:, :n_content]
        v = v[:, :n_content]
        if store is not None:
            k, v = store(k, v)  # (B, keys, H, D)
        mask = slots.mask_of(answering)
        if mask is not None or q.size(1) <= k.size(1):
            return self.attend(q, k, v, mask, slots.causal)
        # two streams are then two causal calls over the same keys
        streams = q.split(k.size(1), 1)
        return torch.cat([self.attend(stream, k, v, None, slots.causal) for stream in streams], 1)

    def attend(self, q, k, v, mask, causal):
        """Return softmax(q k^T / sqrt(D)) v (B, n, H, D); a mask of None is causal, or full."""
        dtype = q.dtype  # that of a cache may be another
        dropout = self.dropout if self.training else 0.0
        q, k, v = [x.transpose(1, 2).to(dtype) for x in (q, k, v)]  # (B, H, ., D)
        if q.device.type == 'mps':  # PyTorch issue 181133, until torch 2.12
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

    def forward(self, target, wtpe):  # targets (B, S) and their nn.Embedding -> (B, S, n_parts C)
        return super().forward(wtpe(target))


class Block(nn.Module):
    """A GPT block. `wtpe`, an nn.Embedding, tells each slot the position that it predicts.

    AdaLN shifts, scales and gates by it, else it is added to the input. All slots have keys; only
    `answering` have queries."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = make_norm(config)
        self.attn = SelfAttention(config)
        self.ln_2 = make_norm(config)
        self.mlp = MLP(config)
        kind = config.target_position
        self.adaLN = AdaLN(config, 6) if kind == 'adaln' else None
        self.wtpe = nn.Embedding(config.block_size, config.n_embd) if kind == 'layer' else None

    def forward(self, x, wtpe, slots, answering, rotary, store):
        how = slots, answering, rotary, store
        if self.adaLN is None:
            wtpe = self.wtpe or wtpe
            if wtpe is not None:
                x = x + wtpe(slots.target)
            x = take(x, answering) + self.attn(self.ln_1(x), *how)
            return x + self.mlp(self.ln_2(x))
        modulation = self.adaLN(slots.target, wtpe)  # (B, S, 6 C)
        shift_a, scale_a = modulation.chunk(6, -1)[:2]
        y = self.attn(modulate(self.ln_1(x), shift_a, scale_a), *how)
        gate_a, shift_m, scale_m, gate_m = take(modulation, answering).chunk(6, -1)[2:]
        x = take(x, answering) + gate_a * y
        return x + gate_m * self.mlp(modulate(self.ln_2(x), shift_m, scale_m))


class FinalLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_f = make_norm(config)
        self.adaLN_final = AdaLN(config, 2)

    def forward(self, x, target, wtpe):
        shift, scale = self.adaLN_final(target, wtpe).chunk(2, -1)
        return modulate(self.ln_f(x), shift, scale)


class Head(nn.Linear):
    """Logits over the vocabulary; -inf for its padding, the rows from n_tokens on."""

    def __init__(self, config):
        super().__init__(config.n_embd, config.vocab_size, bias=not config.gpt2_blocks)
        self.n_real = config.n_real

    def forward(self, x):
        return F.linear(x, self.weight, self.real_bias())

    def real_bias(self):
        n_padding = self.out_features - self.n_real
        if n_padding == 0:
            return self.bias
        bias = self.weight.new_zeros(self.n_real)
        if self.bias is not None:
            bias = self.bias[: self.n_real]
        return F.pad(bias, (0, n_padding), value=-torch.inf)

    def nll(self, x, tokens):
        """Return -log p (R,) of tokens (R,) given x (R, C).

        For training anyorder/fast.py replaces it."""
        return F.cross_entropy(float32_or_better(self(x)), tokens, reduction='none')


class Network(nn.Module):
    """The interface of a model; a new body is a subclass, which has

    config   block_size, vocab_size, n_real, attention and slots_class, as AOGPTConfig
    trunk    (idx, order, slots, cache=None) -> (B, n, C): what the head reads, of slots that answer
    lm_head  x (R, C) -> logits (R, V), with `nll` and `weight`, as Head"""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.slots_class = config.slots_class

    @property
    def device(self):
        return self.lm_head.weight.device

    @property
    def dtype(self):
        return self.lm_head.weight.dtype

    def n_parameters(self):
        return sum(p.numel() for p in self.parameters())

    def forward(self, idx, order, n_known=None, n_visits=None, begins=None):
        """Return the negative log-likelihood (B, T) of each visit given those before it, in nats.

        nll[b, d] = -log p(x[order[b, d]] | x[order[b, :d]])                   (AO eq. of L_AO-AR)

        idx       (B, N') tokens in natural order, N' at most block_size
        order     (B, T) positions; of a decoder it may be a prefix of an order
        n_known   (B,), of a masked loss: known visits, which get 0; the others are weighted by
                  T / (T - n_known), so that with n_known uniform in 0 to T - 1 the expected sum of
                  a row is L_MDM of AO
        n_visits  (B,), by default T: visits from there on are padding, which nothing sees. They get
                  0, and n_visits stands for T in the weights
        begins    (B, P) of rows that pack texts, see Parts: n_known is then (B, P), and T the
                  length of each"""
        _, T = self._check(idx, order)
        self._check_scored(n_known, T)

        # What is a text, and what of it is known
        visits = torch.arange(T, device=idx.device)
        parts = Parts.of(order, n_visits, begins)
        known = order.new_full((len(order), 1), T - 1)
        if n_known is not None:
            known = parts.after(n_known.to(idx.device))

        # One pass; a decoder sees no later visit, so that padding needs no mask
        number = None
        n_keys = None
        if self.slots_class.masked_loss and n_visits is not None:
            number = torch.minimum(visits, parts.end - 1)  # padding runs the last visit again
            n_keys = T
        slots = self.slots_class(order, known, parts, n_keys, None, number)
        x = self.trunk(idx, order, slots)  # (B, T, C)

        # The nats of its tokens
        tokens = idx.gather(1, order)  # (B, T)
        nll = self.lm_head.nll(x.flatten(0, 1), tokens.flatten()).view(tokens.shape)
        if self.slots_class.masked_loss:
            size = parts.end - parts.begin
            n_blanks = (parts.end - known).clamp(min=1)
            nll = torch.where(visits < known, 0, nll * size / n_blanks)
        if n_visits is None:
            return nll
        return nll.masked_fill(visits >= parts.end, 0)

    def predict(
        self, idx, order, n_known, n_targets=None, cache=None, n_visits=None, first=None, head=None
    ):
        """Return logits (B, n, V) of n = max(n_targets) visits, in parallel.

        Visits of a row:  0 ... first ... n_known ... first + n_targets ... n_visits ... T
        Known are those below n_known, answered those from `first` on, padding those from n_visits
        on. Column j of row r is position order[r, first[r] + j].

        Targets of a decoder do not see each other. Who checks a draft, a guess of the next tokens,
        counts it as known, and lets `first` be its beginning.

        idx        (B, N') tokens in natural order; those at order[:, n_known:] are not read
        order      (B, T) positions
        n_known    int or (B,), which on the CPU waits for no device, as in the next ones
        n_targets  int or (B,), by default T - min(first); columns behind them are undefined. A row
                   may have none, which runs one slot, but not all rows
        cache      KVCache: runs only what is not in it, and leaves the known slots there
        n_visits   int or (B,), by default T
        first      int or (B,), by default n_known
        head       a function of the hidden states (B, n, C), in place of lm_head

        If targets_in_keys, the cache keeps slot n_known too, which ran for order[:, n_known]. A
        caller that then reorders the visits from there on sets cache.length back to n_known."""
        B, T = self._check(idx, order)

        # What is asked for, (1, B) each on the host: one pass
        known = on_host(n_known, B)
        first = on_host(n_known if first is None else first, B)
        counts = on_host(T - int(first.min()) if n_targets is None else n_targets, B)
        n_visits = on_host(T if n_visits is None else n_visits, B)
        least = known.clamp(min=0) if self.slots_class.masked_loss else 0
        bad = (first < least) | (first > known) | (known > n_visits) | (n_visits > T)
        if bad.any() or counts.max() < 1:
            raise ValueError(
                f'n_known must be 0 to n_visits, which must be 0 to {T} (the visits in order), '
                'with a target left, and first n_known, or of a decoder 0 to n_known; got '
                f'n_known={known.tolist()}, n_visits={n_visits.tolist()}, n_targets={n_targets} '
                f'and first={first.tolist()}'
            )
        if cache is not None and not self.slots_class.cached:
            raise ValueError(
                f'attention={self.config.attention} has no cache: '
                'every slot depends on which are known'
            )

        bounds = known, first, counts, n_visits
        (numbers,), (size,), (kept,) = self.slots_class.plan(bounds, T, cache)
        x = self.answer(idx, order, numbers.to(idx.device, non_blocking=True), size, cache)
        if cache is not None:
            cache.length = kept
        return (head or self.lm_head)(x)

    def answer(self, idx, order, numbers, size, cache=None):
        """Return the last hidden states (B, n, C) of a pass whose plan is on the device.

        No number comes from the host or goes there. `numbers` are five of (B,), see Slots.plan, and
        `size` (S, n, n_keys) is at least as wide."""
        S, n, n_keys = size
        known, first, last, start, end = [x.unsqueeze(1) for x in numbers]
        number = counted(start, S, end - 1)
        asked = counted(first, n, last)
        slots = self.slots_class(order, known, Parts(end), n_keys, asked, number)
        return self.trunk(idx, order, slots, cache)

    def _check(self, idx, order):
        """Return (B, T), if shapes fit."""
        B, N = idx.shape
        rows, T = order.shape
        is_part = self.slots_class.masked_loss and T < N
        if rows != B or is_part or not 1 <= T <= N <= self.config.block_size:
            raise ValueError(
                'idx, order must be (B, N), (B, T) with 1 <= T <= N <= '
                f'block_size={self.config.block_size}, and whole orders, T = N, for a masked loss; '
                f'got {(B, N)} and {(rows, T)}'
            )
        return B, T

    def _check_scored(self, n_known, T):
        """Check what `forward` is given, but not on a device."""
        if self.slots_class.masked_loss != (n_known is not None):
            raise ValueError(
                'a masked loss wants n_known (B,); a decoder gives the nll of all visits at once, '
                'without n_known'
            )
        if n_known is None or n_known.device.type != 'cpu' or torch.compiler.is_compiling():
            return
        if ((n_known < 0) | (n_known >= T)).any():
            raise ValueError(f'n_known must be from 0 to {T - 1}, got {n_known.tolist()[:8]}')


def on_host(x, B):
    """Return an int or (B,) as (1, B) on the host."""
    return torch.as_tensor(x).cpu().expand(1, B)


class AOGPT(Network):
    """The any-order network, with the parameter names of published checkpoints, in their order."""

    def __init__(self, config):
        super().__init__(config)
        N = config.block_size
        C = config.n_embd
        kind = config.target_position
        t = self.transformer = nn.ModuleDict()
        t['wte'] = nn.Embedding(config.vocab_size, C)
        t['wpe'] = nn.Embedding(N + 1, C)  # row 0 of [None], row p + 1 of position p
        widths = {'adaln': config.n_cond, 'input': C, 'layer_shared': C}
        if kind in widths:
            t['wtpe'] = nn.Embedding(N, widths[kind])
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
        """Draw weights of std 0.02 from a normal cut at 3 std, biases 0 (AO appendix)."""
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
                # shift, scale, gate of attention, then of the MLP
                parts = block.adaLN[1].bias.view(6, -1)
                parts[[2, 5]] = self.config.gate_init

    def trunk(self, idx, order, slots, cache=None):
        """Return the last hidden states (B, n, C) of the slots that answer."""
        t = self.transformer
        kind = self.config.target_position

        # What the slots read, and where; read_position counts from the part, `position` does not
        has_no_token = slots.reads < 0  # (B, S), NONE or QUERY
        position = order.gather(1, slots.reads.clamp(min=0))
        token = idx.gather(1, position).masked_fill(has_no_token, 0)  # a blank may hold any id
        x = torch.where(has_no_token.unsqueeze(-1), t.wnonee.weight, t.wte(token))  # (B, S, C)
        if kind == 'two_stream':
            is_query = slots.reads == QUERY
            x = torch.where(is_query.unsqueeze(-1), t.wquery.weight, x)
        x = x + t.wpe(slots.read_position + 1)
        x = F.dropout(x, self.config.dropout, self.training)

        # The blocks
        rotary = None
        if self.config.rotary:
            rotary = [self._cos_sin(slots.target), self._cos_sin(slots.read_position)]
        store = None
        wtpe = t.wtpe if 'wtpe' in t else None
        for layer, block in enumerate(t.h):
            answering = slots.answering if layer == len(t.h) - 1 else None
            if cache is not None:
                store = partial(cache.store, slots, layer)
            x = block(x, wtpe, slots, answering, rotary, store)
            if kind == 'input':
                wtpe = None

        # The last norm
        if kind != 'adaln':
            return t.ln_f(x)
        return t.final_layer(x, take(slots.target, slots.answering), t.wtpe)

    def _cos_sin(self, position):
        """Return (cos, sin), (B, S, 1, D / 2) each, of angles (p + 1) 10000^(-2 i / D)."""
        D = self.config.n_embd // self.config.n_head
        dtype = torch.promote_types(self.transformer.wte.weight.dtype, torch.float32)
        two_i = torch.arange(0, D, 2, device=position.device, dtype=dtype)
        frequency = 10000.0 ** (-two_i / D)
        angle = (position + 1)[..., None, None] * frequency
        return angle.cos(), angle.sin()


# --------------------------------------------------------------------------------------------------
# its memory and its average


class KVCache:
    """Keys and values of the kept slots, allocated once: 2 L B N C numbers.

    `length` (B,), on the host, counts the kept slots of each row. A slot lies at its number, so
    that a new run overwrites the old one. There is room for `n_slots`, by default N."""

    def __init__(self, config, batch_size, device='cpu', dtype=torch.float32, n_slots=None):
        head_size = config.n_embd // config.n_head
        n_slots = n_slots or config.block_size
        shape = (config.n_layer, batch_size, config.n_head, n_slots, head_size)
        # zeros, not empty: a masked NaN is still 0 * NaN
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.length = torch.zeros(batch_size, dtype=torch.long)

    def keep(self, rows):
        """Keep only these rows (ascending, on the host), in place."""
        self.k = kept_rows(self.k.transpose(0, 1), rows).transpose(0, 1)
        self.v = kept_rows(self.v.transpose(0, 1), rows).transpose(0, 1)
        self.length = self.length[rows]

    def store(self, slots, layer, k, v):
        """Store keys and values (B, S, H, D) of a layer. Return those of the first n_keys slots."""
        rows = torch.arange(len(slots.number), device=slots.number.device).unsqueeze(1)
        kept = [memory[layer].transpose(1, 2) for memory in (self.k, self.v)]  # (B, N, H, D)
        for memory, x in zip(kept, (k, v)):
            memory[rows, slots.number] = x.to(memory.dtype)
        return [memory[:, : slots.sees.size(-1)] for memory in kept]


def kept_rows(x, rows):
    """Move these rows of x (B, ...), ascending and on the host, to its front. Return them."""
    for new, old in enumerate(rows.tolist()):
        if new < old:
            x[new] = x[old]
    return x[: len(rows)]


class EMA:
    """Exponential moving average of the weights, a second model in `.model` (AO appendix).

    ema <- d ema + (1 - d) w,  d = min(decay, (1 + n) / (10 + n)) at update n = 1, 2, ..."""

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
# other networks


class BlankSlots(Slots):
    """A slot stands at the position that it predicts and reads its own token, a blank [None].

    A subclass brings `see`."""

    masked_loss = True
    causal = False
    targets_in_keys = False

    def plan_reads(self, order, known):
        return torch.where(self.visit < known, self.visit, NONE), self.target

    @classmethod
    def span(cls, known, first, counts, T, n_visits):
        end = n_visits.clamp(min=1)  # all slots run, and only the known ones are kept
        has_padding = bool((end < end.max()).any())
        return end, known, cls.needs_mask or has_padding


class EncoderSlots(BlankSlots):
    """The encoder-only masked diffusion model: a slot sees every slot.

    It depends on which visits are known, not on their order. Every new token changes all keys."""

    cached = False

    @staticmethod
    def see(query, key, known, end):
        return (key < end) & (query >= 0)  # always true: a row for each query


class MixedSlots(BlankSlots):
    """Blanks see every slot, known slots the known ones before them.

    The keys of known slots are final, and blanks know of each other. (The mask of Eso-LM's mixed
    mode, arXiv 2506.01928)"""

    needs_mask = True

    @staticmethod
    def see(query, key, known, end):
        return ((key <= query) | (query >= known)) & (key < end)


class TwoStreamSlots(Slots):
    """XLNet's two streams, on the same weights. (Yang et al. 2019, arXiv 1906.08237)

    Slot d of the content reads visit d - 1, sees the content before it and itself, and knows no
    target. A query predicts visit d: it stands at order[d], reads one learned vector, and sees the
    content slots 0 to min(d, n_known). Queries come last, without numbers and keys: a cache is
    final."""

    targets_in_keys = False

    def lay_out(self, asked):
        queries = self.number if asked is None else asked  # (B, n)
        S = self.number.size(1)
        answering = torch.arange(S, S + queries.size(1), device=queries.device)
        return torch.cat([self.number, queries], 1), answering.expand(queries.shape)

    @staticmethod
    def see(query, key, known, end):
        return key <= torch.minimum(query, known)

    def plan_reads(self, order, known):
        reads, position = super().plan_reads(order, known)
        n_content = self.number.size(1)
        reads[:, n_content:].fill_(QUERY)
        position[:, n_content:] = self.target[:, n_content:]
        self.target = position  # rotary turns content by where it reads
        return reads, position

    def mask_of(self, answering):
        # without a mask content and queries are two causal calls, see SelfAttention
        return None if self.sees is None else super().mask_of(answering)

    @classmethod
    def span(cls, known, first, counts, T, n_visits):
        end = (known + 1).clamp(max=T)
        return end, end, True  # the i-th query that is asked for sees other content than slot i


# config.attention
ATTENTION = {'causal': Slots, 'bidirectional': EncoderSlots, 'mixed': MixedSlots}
