"""Reveal blanks from coarse to fine: dilated unmasking."""

import itertools
from dataclasses import dataclass

import torch

from anyorder.generation.schedules import padded_ends
from anyorder.generation.unmasking import Given, Unmasking, check_block_length


@dataclass(frozen=True)
class Dilated(Unmasking):
    """Reveal the blanks of a block from coarse to fine, whatever the model says.

    Step t reveals every floor(B / 2^t)-th blank of a block of B that is left, from the first on, so
    that those of a step are far from each other. Blocks come in the order that is given; a shorter
    text is one.
    Source: Luxembourg et al. 2025, arXiv 2506.19037."""

    block_length: int = 32
    adaptive = True
    score = 'dilated'

    def __post_init__(self):
        check_block_length(self.block_length)

    def first_round(self, network, canvas, drawing):
        B, N = canvas.order.shape
        visits = torch.arange(N).repeat(B, 1)
        for row, first, n in zip(visits, canvas.known.tolist(), canvas.n_blanks.tolist()):
            groups = dilated_groups(n, self.block_length)
            blank = torch.tensor([*itertools.chain(*groups)], dtype=torch.long)
            row[first : first + n] = first + blank
        canvas.order = canvas.order.gather(1, visits.to(canvas.order.device, non_blocking=True))
        return self

    def ends(self, n_blanks, seeds, *names):
        ends = []
        for n in n_blanks.tolist():
            groups = dilated_groups(n, self.block_length)
            ends.append([*itertools.accumulate(map(len, groups))])
        return padded_ends(ends, n_blanks)

    reveal = Given.reveal


def dilated(n_steps=1, schedule='linear', binomial=False, revise=0, threshold=32, **choice):
    """Return the Dilated that dilated:BLOCK_LENGTH names, where the number stands in the place of a
    threshold."""
    if binomial or revise or choice or threshold != int(threshold):
        raise ValueError(
            'dilated:BLOCK_LENGTH says itself how many blanks a step reveals, and needs no score: '
            'leave out unmask=binomial, revise, /BLOCK_LENGTH and +NOISE'
        )
    return Dilated(int(threshold))


def dilated_groups(n, block_length):
    """Return [[number of a blank, ...] of each step] of n blanks in blocks."""
    groups = []
    for start in range(0, n, block_length):
        left = range(start, min(start + block_length, n))
        gap = len(left)
        while left:
            gap = max(1, gap // 2)
            groups.append([i for i in left if (i - start) % gap == 0])
            left = [i for i in left if (i - start) % gap]
    return groups
