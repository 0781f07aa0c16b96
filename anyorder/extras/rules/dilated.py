"""Reveal blanks from coarse to fine: dilated unmasking."""

from dataclasses import dataclass

import torch

from anyorder.generation.schedules import padded_ends
from anyorder.generation.unmasking import Given, check_block_length


@dataclass(frozen=True)
class Dilated(Given):
    """Reveal the blanks of a block from coarse to fine, whatever the model says.

    Step t reveals every floor(B / 2^t)-th blank of a block of B that is left, from the first on, so
    that those of a step are far from each other. Blocks come in the order that is given; a shorter
    text is one.
    Source: Luxembourg et al. 2025, arXiv 2506.19037."""

    threshold: int = 32  # the number of its name: here the length of a block
    form = 'dilated:BLOCK_LENGTH'
    adaptive = True
    score = 'l2r'  # the order that is left where a step reveals one blank

    def __post_init__(self):
        check_block_length(self.block_length)
        if self.binomial or self.revise:
            raise ValueError(
                f'{self.form} says itself how many blanks a step reveals: leave out '
                'unmask=binomial and revise'
            )

    @property
    def block_length(self):
        return self.threshold

    def first_round(self, network, canvas, drawing):
        B, N = canvas.order.shape
        visits = torch.arange(N).repeat(B, 1)
        for row, first, n in zip(visits, canvas.n_known.tolist(), canvas.n_blanks.tolist()):
            steps = dilated_steps(n, self.block_length)
            row[first : first + n] = first + steps.argsort(stable=True)
        canvas.order = canvas.order.gather(1, visits.to(canvas.order.device, non_blocking=True))
        return self

    def ends(self, n_blanks, seeds, *names):
        steps = [dilated_steps(n, self.block_length) for n in n_blanks.tolist()]
        return padded_ends([own.bincount().cumsum(0).tolist() for own in steps], n_blanks)


def dilated_steps(n, block_length):
    """Return the step (n,) that reveals each of n blanks in blocks."""
    steps = torch.full((n,), -1)
    n_steps = 0
    for block in steps.split(block_length):
        place = torch.arange(len(block))
        gap = len(block)
        while (block < 0).any():
            gap = max(1, gap // 2)
            block[(block < 0) & (place % gap == 0)] = n_steps
            n_steps += 1
    return steps
