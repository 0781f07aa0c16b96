"""Which tokens of a written text are to be written again? Those that fit the others least."""

from dataclasses import dataclass, replace

import torch

from anyorder.generation.plan import planned
from anyorder.generation.step import Step
from anyorder.generation.unmasking import Adaptive, Given, Unmasking
from anyorder.generation.workspace import Kind, Workspace
from anyorder.seeds import uniform

GROUPS = 8  # a round writes one token in so many again, rounded up


@dataclass(frozen=True)
class Revised(Unmasking):
    """Write a text by `base`, then rewrite its worst eighth, up to so many rounds.

    It reveals nothing itself. A round that changes nothing is the last one.

    base  Given or Adaptive, by a schedule that has a name"""

    base: Unmasking
    rounds: int

    def __post_init__(self):
        base = self.base
        is_possible = isinstance(base, Given | Adaptive) and isinstance(base.schedule, str)
        if type(self.rounds) is not int or self.rounds < 1 or not is_possible:
            raise ValueError(
                'revise is how many rounds, 0 with unmask=lossless, dilated or listed ends, got '
                f'{self.rounds!r}'
            )

        for name in ('adaptive', 'draws_in_turn', 'binomial', 'block_length'):
            object.__setattr__(self, name, getattr(base, name))

    def check_network(self, slots, n, scores=False):
        self.base.check_network(slots, n, scores)
        if scores:
            raise ValueError('a text that is scored stays as it is: score with revise=0')

    def check_drawing(self, drawing):
        """Raise ValueError where tokens are drawn by another law than misfit knows."""
        if drawing.cfg_scale:
            raise ValueError(
                'revise finds what fits least by the law without guidance: leave out one of revise '
                f'and cfg_scale, got {self.rounds} and {drawing.cfg_scale:g}'
            )

    def rounds_of(self, network, canvas, drawing):
        yield self.base
        again = self.again()
        changed = torch.ones(len(canvas), 1, dtype=torch.bool, device=canvas.idx.device)
        for n_round in range(self.rounds):
            unfit = misfit(network, canvas, drawing)
            blank_again(canvas, unfit, n_round, changed)  # the worst become the last visits
            if not canvas.n_blanks.any():
                return
            before = canvas.idx.clone()
            yield again
            changed = (canvas.idx != before).any(1, keepdim=True)  # (B, 1): others are finished

    def again(self):
        """Return the Unmasking of a round, with as many tokens a step as before, in no blocks."""
        n_steps = -(-self.base.n_steps // GROUPS)  # rounded up
        in_blocks = {'block_length': None} if self.base.block_length else {}
        return replace(self.base, n_steps=n_steps, **in_blocks)


def blank_again(canvas, unfit, n_round, rows):
    """Make blanks of the written tokens that fit worst, by misfit (B, N), in place, in the rows
    (B, 1) bool.

    They are one token in GROUPS, and none that is the likeliest token of its place. They become the
    last visits, in the order that they had, to be drawn anew."""
    rank = (-unfit).argsort(dim=1, stable=True).argsort(dim=1)  # the worst first
    n_written = (canvas.step >= 0).sum(1, keepdim=True)  # (B, 1)
    n = (n_written + GROUPS - 1) // GROUPS  # rounded up
    blank = (rank < n) & (unfit > 0) & rows  # (B, N) by position
    canvas.blank(blank)
    canvas.draw_numbers('round', n_round)


class Misfit(Unmasking):
    """Write into part.logprob by how many nats the likeliest token of a blank beats what stands
    there."""

    def reveal(self, step):
        x, cells = step.read()
        nats, _ = step.of_each(beaten_by, x, cells)
        cells.write(step.part.logprob, cells.position, nats)


def beaten_by(step, cells, logits):
    """Return by how many nats (m,) the likeliest token of Cells beats what stands there."""
    token = cells.read(step.part.idx)
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
    workspace = Workspace(network, Kind(torch.float32, False, 1), part.order.shape)
    step = Step(network, workspace, Misfit(), drawing, False, part)
    for _, size, numbers, *_, kept in planned(step, part.n_visits.unsqueeze(1)):
        step.run(size, numbers, kept)
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
