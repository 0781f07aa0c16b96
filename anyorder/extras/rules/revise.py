"""Which tokens of a written text are to be written again? Those that fit the others least."""

from dataclasses import replace

import torch

from anyorder.generation.plan import planned
from anyorder.generation.runner import Runner
from anyorder.generation.unmasking import Unmasking
from anyorder.generation.way import Way
from anyorder.generation.workspace import Workspace
from anyorder.seeds import uniform

GROUPS = 8  # a round writes one token in so many again, rounded up


def rounds_of(network, canvas, way):
    """Make blanks of the worst eighth of a canvas that is filled, up to `revise` times, until a
    round changes nothing. Yield the Way of each round, in which the caller fills them."""
    unmasking = way.unmasking
    # as many tokens a step as before, in no blocks
    in_blocks = {'block_length': None} if unmasking.block_length else {}
    n_steps = -(-unmasking.n_steps // GROUPS)  # rounded up
    again = replace(unmasking, n_steps=n_steps, **in_blocks)
    changed = torch.ones(len(canvas), 1, dtype=torch.bool, device=canvas.idx.device)
    for n_round in range(unmasking.revise):
        if not changed.any():
            return
        canvas.n_passes = canvas.n_passes + changed[:, 0].cpu()  # of misfit
        unfit = misfit(network, canvas, way.drawing)
        blank_again(canvas, unfit, n_round, changed)  # the worst become the last visits
        if not canvas.n_blanks.any():
            return
        before = canvas.idx.clone()
        yield replace(way, unmasking=again)
        changed = (canvas.idx != before).any(1, keepdim=True)  # (B, 1): others are finished


def blank_again(canvas, unfit, n_round, rows):
    """Make blanks of the written tokens that fit worst, by misfit (B, N), in place, in the rows
    (B, 1) bool.

    They are one token in GROUPS, and none that is the likeliest token of its place. They become the
    last visits, in the order that they had, to be drawn anew."""
    rank = (-unfit).argsort(dim=1, stable=True).argsort(dim=1)  # the worst first
    n_written = (canvas.step >= 0).sum(1, keepdim=True)  # (B, 1)
    n = -(-n_written // GROUPS)  # rounded up
    blank = (rank < n) & (unfit > 0) & rows  # (B, N) by position
    canvas.blank(blank)
    canvas.draw_numbers('round', n_round)


class Misfit(Unmasking):
    """Write into part.logprob by how many nats the likeliest token of a blank beats what stands
    there."""

    def reveal(self, runner):
        x, cells = runner.read()
        nats, _ = runner.of_each(beaten_by, x, cells)
        cells.write(runner.part.logprob, cells.position, nats)


def beaten_by(runner, cells, logits):
    """Return by how many nats (m,) the likeliest token of Cells beats what stands there."""
    token = cells.read(runner.part.idx)
    return logits.amax(1) - logits.gather(1, token.unsqueeze(1))[:, 0]


def misfit(network, canvas, drawing):
    """Return by how many nats the likeliest token of a place beats the one that was written there.

        max_v log p(v | others) - log p(x | others)

    Others are the tokens outside of the group of x: up to GROUPS tokens are each given all others.
    What was given has 0. It takes one pass, GROUPS rows for a row.

    drawing  p is its law before the temperature
    returns  (B, N) in natural order"""
    number = torch.arange(GROUPS, device=canvas.idx.device).unsqueeze(1)
    blank = groups_of(canvas).unsqueeze(1) == number  # (B, GROUPS, N)
    part = canvas.take(torch.arange(len(canvas)).repeat_interleave(GROUPS))
    part.blank(blank.flatten(0, 1))
    part.logprob = torch.zeros_like(part.logprob)
    workspace = Workspace(network, torch.float32, 0, part.order.shape)
    runner = Runner(network, workspace, Way(Misfit(), drawing), part)
    for plan in planned(runner, part.n_visits.unsqueeze(1)):
        runner.run(plan)
    return part.logprob.view(len(canvas), GROUPS, -1).sum(1)


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
