"""How likely is each class of tokens at a blank, and which class has each token?"""

import torch

from anyorder.generation.plan import is_exact
from model import float32_or_better

CHUNK = 32  # tokens of one class that are summed at a time
BLOCK = 2**19  # logits that a CPU works on at a time, so that its cache holds them


class Classes:
    """The classes of the tokens of a table.

    of_token  (n_tokens,) the class of each token
    tokens    (n CHUNK,) the tokens that some state reads, chunk by chunk: those of a chunk are of
              one class. The last chunk of a class repeats a token
    repeats   numbers of these that repeat
    sums      (n, C) with 1 for the class of each chunk"""

    def __init__(self, table, dtype, device):
        self.of_token = torch.tensor(table.classes)
        is_read = torch.tensor(table.next >= 0).any(0)  # (C,)
        n_classes = len(is_read)
        token = self.of_token.argsort(stable=True)
        n_tokens = torch.bincount(self.of_token, minlength=n_classes)  # (C,)
        n_chunks = (n_tokens + CHUNK - 1) // CHUNK * is_read
        own = torch.arange(n_classes).repeat_interleave(n_chunks)  # (n,) the class of each chunk
        first = n_chunks.cumsum(0) - n_chunks
        start = (torch.arange(len(own)) - first[own]) * CHUNK
        place = start.unsqueeze(1) + torch.arange(CHUNK)  # (n, CHUNK) in the class
        most = n_tokens[own].unsqueeze(1) - 1
        before = (n_tokens.cumsum(0) - n_tokens)[own].unsqueeze(1)
        self.tokens = token[before + place.minimum(most)].flatten()
        self.repeats = (place > most).flatten().nonzero()[:, 0]
        self.sums = torch.nn.functional.one_hot(own, n_classes).to(dtype)
        for name, x in vars(self).items():
            setattr(self, name, x.to(device, non_blocking=True))

    def masses(self, logits):
        """Return sum_{v in c} exp(logit_v) (m, C) of logits (m, V), up to a factor of each row, in
        the widest dtype.

        Each token is rounded in the dtype of the logits, as is the sum of a chunk. Only what has
        logit -inf has no mass."""
        if not is_exact(logits.device) or logits.numel() <= BLOCK:
            return self.masses_of_block(logits)
        blocks = logits.split(max(1, BLOCK // logits.size(1)))
        return torch.cat([self.masses_of_block(block.clone()) for block in blocks])  # in its cache

    def masses_of_block(self, logits):
        own = float32_or_better(logits.gather(1, self.tokens.expand(len(logits), -1)))
        best = own.unflatten(1, (-1, CHUNK)).amax(2)  # (m, n)
        shares = own.softmax(1).index_fill_(1, self.repeats, 0.0)
        sums = shares.unflatten(1, (-1, CHUNK)).sum(2)
        sums.clamp_(min=torch.finfo(sums.dtype).tiny)
        sums = torch.where(best > -torch.inf, sums, 0.0)
        return sums.to(self.sums.dtype) @ self.sums

    def added(self, logits, log_weights):
        """Return logits (m, V) + log_weights (m, C) of the class of each token, in float32 or
        better."""
        n_tokens = len(self.of_token)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_weights = log_weights.to(dtype)
        found = torch.empty_like(logits, dtype=dtype)
        found[:, n_tokens:] = logits[:, n_tokens:]  # padding
        size = len(logits)
        if is_exact(logits.device):
            size = max(1, BLOCK // n_tokens)
        parts = zip(*[x.split(size) for x in (logits, log_weights, found)])
        for old, weights, new in parts:
            own = weights.gather(1, self.of_token.expand(len(old), -1))
            torch.add(old[:, :n_tokens], own, out=new[:, :n_tokens])
        return found
