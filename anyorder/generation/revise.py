"""Which tokens of a written text are to be written again? Those that fit the others least."""

import torch

from anyorder.orders import given_first
from anyorder.seeds import uniform

GROUPS = 8  # a round writes one token in so many again, rounded up


def blank_again(model, canvas, n_round, rows):
    """Make blanks of the written tokens that fit worst, in place, in the rows (B, 1) bool.

    They are one token in GROUPS, and none that is the likeliest token of its place. They become the
    last visits, in the order that they had, to be drawn anew."""
    fit = -misfit(model, canvas)
    worst = fit.sort(dim=1, stable=True)  # the worst first
    written = canvas.step >= 0
    n_written = written.sum(1, keepdim=True)  # (B, 1)
    n = (n_written + GROUPS - 1) // GROUPS  # rounded up
    is_worst = torch.arange(canvas.idx.size(1), device=n.device) < n
    chosen = is_worst & (worst.values < 0) & rows
    blank = torch.zeros_like(chosen).scatter(1, worst.indices, chosen)  # (B, N) by position
    n_visits = canvas.n_visits.to(n.device)
    canvas.order, _, n_blanks = given_first(canvas.order, ~blank, n_visits)
    canvas.known = canvas.n_visits - n_blanks.cpu()
    canvas.draw_numbers('round', n_round)


def misfit(model, canvas):
    """Return by how many nats the likeliest token of a place beats the one that was written there.

        max_v log p(v | others) - log p(x | others)

    Others are the tokens outside of the group of x: up to GROUPS tokens are each given all others.
    What was given has 0. It takes one pass, GROUPS rows for a row.

    returns  (B, N) in natural order"""
    device = canvas.idx.device
    number = torch.arange(GROUPS, device=device).unsqueeze(1)
    blank = groups_of(canvas).unsqueeze(1) == number  # (B, GROUPS, N)
    rows = torch.arange(len(canvas)).repeat_interleave(GROUPS)
    part = canvas.take(rows)
    n_visits = part.n_visits.to(device)
    part.order, _, n_blanks = given_first(part.order, ~blank.flatten(0, 1), n_visits)
    part.known = part.n_visits - n_blanks.cpu()

    row, column, visit = part.cells(part.n_blanks)  # (m,) each
    logits = model.predict(
        part.idx,
        part.order,
        part.known,
        part.n_blanks,
        n_visits=part.n_visits,
        picked=(row, column),
    )
    if part.allowed is not None:
        part.allowed.mask(logits, part, row, visit, model.config.n_real, False)

    position = part.order[row, visit]
    token = part.idx[row, position]
    written = logits.gather(1, token.unsqueeze(1))[:, 0]
    beaten = logits.amax(1) - written
    nats = torch.zeros_like(canvas.logprob)
    nats[part.rows.to(device)[row], position] = beaten.to(nats.dtype)
    return nats


def groups_of(canvas):
    """Return (B, N) by position: the group of a written token, by the row's seed.

    Groups are below GROUPS, and as large as each other, but for one token. What was given has
    more."""
    written = canvas.step >= 0
    n_written = written.sum(1, keepdim=True)
    number = uniform(canvas.keys.unsqueeze(1), 'groups', canvas.positions())  # (B, N)
    number = number.masked_fill(~written, 2)  # above all others
    rank = number.argsort(1).argsort(1)
    return rank * GROUPS // n_written.clamp(min=1)
