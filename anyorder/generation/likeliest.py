"""Which tokens were likeliest where one was written? The record of a step, and Look, which asks
without writing.

The law that wrote a token is the one by which it was drawn, or the true token of a scored text was
judged: after a pattern, what is allowed, temperature, top_k and top_p. At temperature 0, where one
token has all of the probability, it is the law of temperature 1 with the same cuts."""

from dataclasses import dataclass, replace
from functools import partial

import torch

from anyorder.generation.drawing import token_logprob
from anyorder.generation.unmasking import Unmasking
from anyorder.machine.devices import widest

SHOWN = 5  # tokens of a blank, where nobody says how many


def ask_for(canvas, k):
    """Have a canvas keep the k likeliest tokens of each place that is written."""
    canvas.likeliest = canvas.u.new_zeros(*canvas.idx.shape, 1 + 2 * k)


def likeliest(drawing, logits, k, token=None):
    """Return log p of the token (m,), or of the likeliest, then log p and ids of the k likeliest:
    one table (m, 1 + 2k), by the law in which a Drawing draws from logits (m, V).

    A token that the law has cut has -inf."""
    law = lawful(drawing).tempered(logits)
    best = law.topk(k)
    if token is None:
        token = best.indices[:, 0]
    own = token_logprob(law, token).unsqueeze(1)
    nats = best.values - law.logsumexp(-1, keepdim=True)
    ids = best.indices.to(widest(law.device))  # exact below 2^24 at least
    return torch.cat([own, nats, ids], 1)


def lawful(drawing):
    """Return the Drawing whose law is meant: another one at temperature 0."""
    if drawing.temperature == 0:
        return replace(drawing, temperature=1.0)
    return drawing


@dataclass(frozen=True)
class Look(Unmasking):
    """Write nothing: find the likeliest tokens of all blanks, each given what is known, in one
    pass.

    The blanks count as revealed, by no step."""

    def begin(self, passes, part):
        if not part.likeliest.size(2):
            raise ValueError('show is of sample.py and Writer: nothing here asks for its tokens')

    def ends(self, n_blanks, seeds, *names):
        return torch.tensor(n_blanks).unsqueeze(1)

    def reveal(self, passes, part, bounds, size):
        x, cells = passes.read(part, bounds, size)
        found, _ = passes.each(partial(self.likeliest, passes, part), part, bounds, x, cells)
        position = part.order[cells.row, cells.visit]
        cells.write(part.likeliest, position, found.to(part.likeliest.dtype))

    def likeliest(self, passes, part, cells, logits):
        return likeliest(passes.drawing, logits, part.likeliest.size(2) // 2)
