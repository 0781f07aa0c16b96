"""How is a token drawn from its logits?"""

import math
from dataclasses import dataclass

import torch

from anyorder.machine.devices import widest
from anyorder.seeds import random_bits
from model import float32_or_better


@dataclass(frozen=True)
class Drawing:
    """How a token is drawn from its logits: by p = softmax(logits / temperature), cut to the likeliest tokens.

    temperature   0 is argmax
    top_k         the k likeliest tokens stay; 0 keeps all
    top_p         then the fewest likeliest tokens that together reach top_p stay; 1 keeps all
    scores        nothing is drawn: the tokens that stand in the blanks are revealed, and their log-probabilities are
                  log p, -inf for what is cut. Without it they are the untempered model's"""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    scores: bool = False

    def __post_init__(self):
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f'temperature must be at least 0 and finite, got {self.temperature}')
        if self.top_k < 0:
            raise ValueError(f'top_k must be at least 0 (0 keeps all), got {self.top_k}')
        if not 0 < self.top_p <= 1:
            raise ValueError(f'top_p must be above 0 and at most 1 (1 keeps all), got {self.top_p}')
        if self.scores and self.temperature == 0:
            raise ValueError(
                'at temperature 0 one text has probability 1 and every other one 0: score at a '
                'temperature above 0, as 1'
            )

    def tokens(self, logits, u):
        """The first j (...) with p_0 + ... + p_j > u sum(p), of logits (..., V) and u (...) in [0, 1)."""
        if self.temperature == 0:
            return argmax(logits)
        return invert_cdf(self.tempered(logits).softmax(-1), u.flatten()).view(u.shape)

    def tokens_by_noise(self, logits, noise):
        """argmax_v (logit_v / temperature + g_v) (m,) of logits (m, V); noise() is standard Gumbel noise g (m, V). It
        draws with the probabilities that `tokens` has. Close logits under one noise draw nearly always alike."""
        if self.temperature == 0:
            return argmax(logits)
        logits = self.tempered(logits)
        return argmax(logits + noise())

    def tempered(self, logits):
        """logits (..., V) / temperature as (n, V), with -inf in place of what top_k and top_p cut."""
        logits = float32_or_better(logits)
        if self.temperature != 1:
            # at most 0, times what float32 can hold: any temperature is safe
            logits = (logits - logits.amax(-1, keepdim=True)) * max(
                min(1 / self.temperature, 1e30), 1e-30
            )
        logits = logits.reshape(-1, logits.size(-1))
        return (
            keep_largest(logits, self.top_k, self.top_p) if self.top_k or self.top_p < 1 else logits
        )


class TokenNoise:
    """The noise of the cells of each pass. Many cells were drafts in the pass before: their noise is kept, since it
    costs more than a copy."""

    def __init__(self, vocab_size, device):
        self.cells, self.noise = (
            torch.tensor([-1]),
            torch.empty(1, vocab_size, device=device),
        )  # of the last pass

    def __call__(self, part, n_targets, row, position):
        """token_noise (m, vocab_size) of the next n_targets (B,) visits of each row, see Canvas.cells."""
        visit = part.known.unsqueeze(1) + torch.arange(int(n_targets.max()))
        cells = part.rows.unsqueeze(1) * part.order.size(1) + visit
        cells = cells[visit < (part.known + n_targets).unsqueeze(1)]  # (m,) on the host, increasing
        place = torch.searchsorted(self.cells, cells).clamp(max=len(self.cells) - 1)
        new = (self.cells[place] != cells).nonzero()[:, 0]
        place, new = (i.to(row.device, non_blocking=True) for i in (place, new))
        noise = self.noise[place]
        noise[new] = token_noise(part.keys[row[new]], position[new], noise.size(1))
        self.cells, self.noise = cells, noise
        return noise


def token_noise(keys, position, vocab_size):
    """Standard Gumbel noise (m, vocab_size) float32 of the cells (key of a row, position), (m,) each: a function of
    (seed, position, token)."""
    cells = random_bits(keys, 'noise of tokens', position)  # (m,)
    pairs = torch.arange(
        -(-vocab_size // 2), device=cells.device
    )  # 64 bits are two tokens' numbers
    bits = random_bits(cells.unsqueeze(1), pairs).view(torch.int32)[:, :vocab_size]
    return gumbel(bits & 2**31 - 1)


def gumbel(bits):
    """Standard Gumbel noise -log(-log(1 - u)) of u = (bits + 1/2) / 2^31, float32, for random bits in 0 .. 2^31 - 1. By
    the 24 bits of a uniform float32 rare tokens would win too seldom. u stays below 1: all noise is finite."""
    return (
        bits.float()
        .add_(0.5)
        .mul_(-(2.0**-31))
        .clamp_(min=-1 + 2.0**-24)
        .log1p_()
        .neg_()
        .log_()
        .neg_()
    )


def sample_tokens(logits, temperature=1.0, top_k=0, top_p=1.0, generator=None, u=None):
    """A token (...) int64 for each row of logits (..., V), see Drawing, by a uniform number u (...), drawn or given."""
    if u is None:
        u = torch.rand(
            logits.shape[:-1],
            dtype=widest(logits.device),
            device=logits.device,
            generator=generator,
        )
    return Drawing(temperature, top_k, top_p).tokens(logits, u)


def keep_largest(logits, top_k, top_p, width=1024):
    """logits (n, V) with -inf in place of what top_k and top_p cut, see Drawing. Without top_k the `width` largest are
    sorted first, and all of V only in rows where these do not reach top_p: a full sort costs more than the network."""
    V = logits.size(-1)
    values, kept = logits.topk(min(top_k or width, V))  # (n, k), the largest first
    among, dtype = values if top_k else logits, widest(logits.device)
    p = (values.to(dtype) - among.to(dtype).logsumexp(-1, keepdim=True)).exp()
    if top_p < 1:
        values = values.masked_fill(p.cumsum(-1) - p >= top_p, -torch.inf)
    cut = torch.full_like(logits, -torch.inf).scatter(-1, kept, values)
    if not top_k and width < V and (short := p.sum(-1) < top_p).any():
        cut[short] = keep_largest(logits[short], 0, top_p, V)
    return cut


def invert_cdf(p, u, width=256):
    """The first j (n,) with p_0 + ... + p_j > u sum(p), for rows p (n, V) >= 0 and u (n,) in [0, 1). First comes the
    chunk of `width` columns, by the sums of chunks, then the column in it, for speed."""
    whole, dtype = p.size(1) // width * width, widest(p.device)
    sums = p[:, :whole].unflatten(1, (-1, width)).sum(-1)  # (n, chunks)
    sums = torch.cat([sums, p[:, whole:].sum(1, keepdim=True)], 1).to(dtype)
    chunk, rest = first_above(sums.cumsum(1), u * sums.sum(1))
    column = chunk.unsqueeze(1) * width + torch.arange(width, device=p.device)  # (n, width)
    inside = (
        p.gather(1, column.clamp(max=p.size(1) - 1)).to(dtype).masked_fill(column >= p.size(1), 0)
    )
    return chunk * width + first_above(inside.cumsum(1), rest)[0]


def first_above(cdf, x):
    """First column (n,) of cdf (n, m) above x (n,), and x less the column before it. x is kept below the last
    column whatever the rounding, so that a column of probability zero is never found."""
    last = cdf[:, -1]
    x = torch.minimum(x, torch.nextafter(last, torch.zeros_like(last))).unsqueeze(1)
    column = torch.searchsorted(cdf, x, right=True)
    return column[:, 0], (
        x - torch.where(column > 0, cdf.gather(1, (column - 1).clamp(min=0)), 0.0)
    )[:, 0]


def argmax(x):
    """x.argmax(-1), on a CPU 8 times as fast: first the best chunk of columns, whose maximum is vectorized."""
    chunks = x.unflatten(-1, (-1, math.gcd(x.size(-1), 128)))  # (..., chunks, width)
    best = chunks.amax(-1).argmax(-1, keepdim=True)  # (..., 1)
    chunk = chunks.take_along_dim(best.unsqueeze(-1), -2).squeeze(-2)  # (..., width)
    return best.squeeze(-1) * chunk.size(-1) + chunk.argmax(-1)


def token_logprob(logits, token):
    """log softmax(logits)[token] (m,) of logits (m, V) and tokens (m,), in nats, float32 or better."""
    logits = float32_or_better(logits)
    return logits.gather(-1, token.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
