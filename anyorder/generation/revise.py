"""Which tokens of a written text are to be written again? Those that fit the others least."""

import torch

from anyorder.orders import given_first
from anyorder.seeds import uniform

GROUPS = 8  # a round writes one token in so many again, rounded up


def blank_again(model, canvas, n_round, rows):
    """Make blanks of the written tokens that fit worst, in place: one in GROUPS, and none that is the likeliest token
    of its place, in the rows (B, 1) bool. They become the last visits, in the order that they had, to be drawn anew."""
    worst = (-misfit(model, canvas)).sort(dim=1, stable=True)
    n = ((canvas.step >= 0).sum(1, keepdim=True) + GROUPS - 1) // GROUPS
    chosen = (torch.arange(canvas.idx.size(1), device=n.device) < n) & (worst.values < 0) & rows
    blank = torch.zeros_like(chosen).scatter(1, worst.indices, chosen)  # (B, N) by position
    canvas.order, _, n_blanks = given_first(canvas.order, ~blank, canvas.n_visits.to(n.device))
    canvas.known = canvas.n_visits - n_blanks.cpu()
    canvas.draw_numbers('round', n_round)


def misfit(model, canvas):
    """(B, N) in natural order: by how many nats the likeliest token of a place beats the token that was written there.

        max_v log p(v | others) - log p(x | others)

    Others are the tokens outside of the group of x. The written tokens of a row fall into GROUPS groups by its seed: up
    to GROUPS tokens are each given all others. What was given has 0. It takes one pass, GROUPS rows for a row."""
    B, device, written = len(canvas), canvas.idx.device, canvas.step >= 0
    number = uniform(canvas.keys.unsqueeze(1), 'groups', canvas.positions())  # (B, N)
    among = number.masked_fill(~written, 2).argsort(1).argsort(1)
    group = among * GROUPS // written.sum(1, keepdim=True).clamp(min=1)  # GROUPS or more: given
    part = canvas.take(torch.arange(B).repeat_interleave(GROUPS))
    blank = (group.unsqueeze(1) == torch.arange(GROUPS, device=device).unsqueeze(1)).flatten(
        0, 1
    )  # (B GROUPS, N)
    part.order, _, n_blanks = given_first(part.order, ~blank, part.n_visits.to(device))
    part.known = part.n_visits - n_blanks.cpu()
    row, column, visit = part.cells(n := part.n_blanks)  # (m,) each
    logits = model.predict(part.idx, part.order, part.known, n, None, part.n_visits, (row, column))
    if part.allowed is not None:
        part.allowed.mask(logits, part, row, visit, model.config.n_real, False)
    position, nats = part.order[row, visit], torch.zeros_like(canvas.logprob)
    token = logits.gather(1, part.idx[row, position].unsqueeze(1))[:, 0]
    nats[part.rows.to(device)[row], position] = (logits.amax(1) - token).to(nats.dtype)
    return nats
