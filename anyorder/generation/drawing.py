"""How is a token drawn from its logits?"""

import math
from dataclasses import dataclass
from numbers import Real

import torch

from anyorder.generation.plan import is_host
from anyorder.machine.devices import widest
from anyorder.seeds import random_bits
from model import float32_or_better

RANGES = {  # of the numbers that name a Drawing
    'temperature': (0, 1e300),
    'top_k': (0, math.inf),
    'top_p': (1e-300, 1),
    'min_p': (0, 1),
    'presence_penalty': (-100, 100),
    'cfg_scale': (0, 100),
}


@dataclass(frozen=True)
class Drawing:
    """How a token is drawn: by p = softmax(logits / temperature), cut to the likeliest tokens.

    temperature  0 is argmax
    top_k        the k likeliest tokens stay; 0 keeps all
    top_p        then the fewest likeliest tokens that together reach top_p stay; 1 keeps all
    min_p        then those of at least min_p times the largest p stay (arXiv 2407.01082)
    forced       the tokens that stand in the blanks are taken in place of drawn ones, and scored by
                 this law: -inf for what is cut. Forced decoding, as translation calls it
    presence_penalty  in nats, on known tokens, before all that; see law.penalize
    cfg_scale  above 0 the prompt weighs more, before all that; see law.guided"""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    forced: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    cfg_scale: float = 0.0

    def __post_init__(self):
        for name, (least, most) in RANGES.items():
            number = getattr(self, name)
            if not isinstance(number, Real) or not least <= number <= most:
                raise ValueError(
                    f'{name} must be a number from {least:g} to {most:g}, got {number!r}'
                )
        if self.forced and self.temperature == 0:
            raise ValueError(
                'at temperature 0 one text has probability 1 and every other one 0: score at a '
                'temperature above 0, as 1'
            )

    @property
    def n_passes(self):
        """Of a step: with guidance a second one, without the prompt."""
        return 2 if self.cfg_scale else 1

    def tokens(self, logits, u):
        """Draw tokens (...) of logits (..., V) by u (...): the first j with p_0 + ... + p_j > u."""
        if self.temperature == 0:
            return argmax(logits)
        p = self.tempered(logits).softmax(-1)
        return invert_cdf(p, u.flatten()).view(u.shape)

    def tokens_by_noise(self, logits, noise):
        """Draw tokens (m,) of logits (m, V): argmax_v (logit_v / temperature + noise()_v).

        Gumbel noise (m, V) has the law of `tokens`. Close logits nearly always draw alike."""
        if self.temperature == 0:
            return argmax(logits)
        return argmax(self.tempered(logits) + noise())

    def likeliest(self, logits, n, token):
        """Return n = 1 + 2k numbers (m, n): log p of the token (m,), then log p and then ids of the
        k likeliest, by the law in which tokens are drawn from logits (m, V), or a text is scored.

        At temperature 0, where one token has all of the probability, it is the law of temperature 1
        with the same cuts. A token that the law has cut has -inf."""
        law = self.tempered(logits)
        best = law.topk(n // 2)
        nats = best.values - law.logsumexp(-1, keepdim=True)
        ids = best.indices.to(widest(law.device))  # exact below 2^24 at least
        return torch.cat([token_logprob(law, token).unsqueeze(1), nats, ids], 1)

    def tempered(self, logits):
        """Return logits (..., V) / temperature as (n, V), -inf for what is cut.

        At temperature 0, where one token has all of the probability, it is 1."""
        logits = float32_or_better(logits)
        if self.temperature not in (0, 1):  # the largest becomes 0: none becomes infinite
            factor = max(min(1 / self.temperature, 1e30), 1e-30)
            logits = (logits - logits.amax(-1, keepdim=True)) * factor
        logits = logits.reshape(-1, logits.size(-1))
        if self.top_k or self.top_p < 1:
            logits = keep_largest(logits, self.top_k, self.top_p)
        if self.min_p:
            least = logits.amax(-1, keepdim=True) + math.log(self.min_p)
            logits = logits.masked_fill(logits < least, -torch.inf)
        return logits


def token_noise(keys, position, vocab_size):
    """Return standard Gumbel noise (m, vocab_size) by the key of a row, a position and a token."""
    cell_keys = random_bits(keys, 'noise of tokens', position)  # (m,)
    n_pairs = -(-vocab_size // 2)  # 64 bits are the numbers of two tokens
    pairs = torch.arange(n_pairs, device=cell_keys.device)
    bits = random_bits(cell_keys.unsqueeze(1), pairs).view(torch.int32)
    return gumbel_of_bits(bits[:, :vocab_size] & (2**31 - 1))


class TokenNoise:
    """Gives the cells of each pass their noise. A CPU keeps it: it costs more than a copy.

    numbers  (m,) increasing: row and visit of each cell of the last pass, as one number. Who draws
             by noise never changes the order, so that a visit has one position
    noise    (m, V) their noise"""

    def __init__(self, vocab_size):
        self.numbers = torch.tensor([-1])  # no cell has this number
        self.noise = torch.empty(1, vocab_size)

    def __call__(self, part, cells):
        """Return the noise (m, V) of the Cells."""
        keys = part.keys[cells.row]
        vocab_size = self.noise.size(1)
        if not is_host(keys.device):
            return token_noise(keys, cells.position, vocab_size)

        # Copy the noise of known cells, draw that of others
        numbers = part.rows[cells.row] * part.order.size(1) + cells.visit
        place = torch.searchsorted(self.numbers, numbers).clamp(max=len(self.numbers) - 1)
        new = self.numbers[place] != numbers
        noise = self.noise[place]
        noise[new] = token_noise(keys[new], cells.position[new], vocab_size)
        self.numbers = numbers
        self.noise = noise
        return noise


def gumbel_of_bits(bits):
    """Return standard Gumbel noise -log(-log(1 - u)), float32, of u = (bits + 1/2) / 2^31 below 1.

    A uniform float32 has 24 bits, which would make rare tokens win too seldom."""
    minus_u = bits.float().add_(0.5).mul_(-(2.0**-31))  # in place: (m, V) is large
    minus_u.clamp_(min=-1 + 2.0**-24)
    return minus_u.log1p_().neg_().log_().neg_()


def sample_tokens(logits, temperature=1.0, top_k=0, top_p=1.0, generator=None, u=None, min_p=0.0):
    """Draw tokens (...) of logits (..., V), see Drawing, by u (...) or a generator."""
    if u is None:
        device = logits.device
        u = torch.rand(logits.shape[:-1], dtype=widest(device), device=device, generator=generator)
    return Drawing(temperature, top_k, top_p, min_p=min_p).tokens(logits, u)


def keep_largest(logits, top_k, top_p, width=1024):
    """Return logits (n, V), -inf for what top_k and top_p cut.

    Without top_k a CPU first sorts the `width` largest: a full sort costs more than the network."""
    V = logits.size(-1)
    if not is_host(logits.device):  # to ask whether they suffice is a wait
        width = V
    dtype = widest(logits.device)
    values, kept = logits.topk(min(top_k or width, V))  # (n, k), the largest first
    denominator = values if top_k else logits
    total = denominator.to(dtype).logsumexp(-1, keepdim=True)
    p = (values.to(dtype) - total).exp()
    if top_p < 1:
        is_reached = p.cumsum(-1) - p >= top_p  # by the larger ones, without the token
        values = values.masked_fill(is_reached, -torch.inf)
    left = torch.full_like(logits, -torch.inf).scatter(-1, kept, values)
    if top_k or width >= V:
        return left
    is_short = p.sum(-1) < top_p
    if is_short.any():
        left[is_short] = keep_largest(logits[is_short], 0, top_p, V)
    return left


def invert_cdf(p, u, width=256):
    """Return the first j (n,) with p_0 + ... + p_j > u sum(p), of rows p (n, V) >= 0.

    First comes the chunk of `width` columns, then the column in it."""
    V = p.size(1)
    dtype = widest(p.device)
    n_whole = V // width * width
    sums = p[:, :n_whole].unflatten(1, (-1, width)).sum(-1)  # (n, chunks)
    rest = p[:, n_whole:].sum(1, keepdim=True)
    sums = torch.cat([sums, rest], 1).to(dtype)
    chunk, left_of_u = first_above(sums.cumsum(1), u * sums.sum(1))

    column = chunk.unsqueeze(1) * width + torch.arange(width, device=p.device)  # (n, width)
    inside = p.gather(1, column.clamp(max=V - 1)).to(dtype)
    inside = inside.masked_fill(column >= V, 0)
    j, _ = first_above(inside.cumsum(1), left_of_u)
    return chunk * width + j


def first_above(cdf, x):
    """Return the first column (n,) of cdf (n, m) above x (n,), and x minus the cdf before it."""
    last = cdf[:, -1]
    # whatever the rounding, no column of probability zero is found
    below_last = torch.nextafter(last, torch.zeros_like(last))
    x = torch.minimum(x, below_last).unsqueeze(1)
    column = torch.searchsorted(cdf, x, right=True)
    before = cdf.gather(1, (column - 1).clamp(min=0))
    before = torch.where(column > 0, before, 0.0)
    return column[:, 0], (x - before)[:, 0]


def argmax(x):
    """Return x.argmax(-1), on a CPU 8 times as fast: the maximum of a chunk is vectorized."""
    width = math.gcd(x.size(-1), 128)  # divides V
    chunks = x.unflatten(-1, (-1, width))  # (..., chunks, width)
    best = chunks.amax(-1).argmax(-1, keepdim=True)  # (..., 1)
    chunk = chunks.take_along_dim(best.unsqueeze(-1), -2).squeeze(-2)  # (..., width)
    return best.squeeze(-1) * width + chunk.argmax(-1)


def token_logprob(logits, token):
    """Return log softmax(logits)[token] (m,) in nats, of logits (m, V), float32 or better."""
    logits = float32_or_better(logits)
    own = logits.gather(-1, token.unsqueeze(-1)).squeeze(-1)
    return own - logits.logsumexp(-1)
