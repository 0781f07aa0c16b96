"""Reveal what is sure and stable: KLASS."""

from dataclasses import dataclass

import torch

from anyorder.generation.rules import Rule
from model import float32_or_better, kept_rows

N_STABLE = 2  # comparisons with the step before, after which a law counts as stable


@dataclass(frozen=True)
class Klass(Rule):
    """Reveal all blanks that are sure and stable; where there is none, the surest.

        c_i > threshold   and   KL(p_i now || p_i a step before) < kl_limit,   twice in a row

    c_i is the largest probability. A blank is compared while its block is looked at, from its
    second step on. The tokens that were revealed fix all laws, so that a text has a probability.
    Source: Kim et al. 2025, KLASS, arXiv 2511.05664."""

    score: str = 'top_prob'
    threshold: float = 0.9
    kl_limit: float = 0.01
    form = 'klass/BLOCK_LENGTH:CONFIDENCE'

    @property
    def has_threshold(self):
        return self.threshold <= 1

    @property
    def graph_key(self):
        return f'{super().graph_key} {self.block_length}'  # by which the laws have their size

    def begin(self, runner):
        return Laws(runner, self.block_length)

    def score_blanks(self, runner, cells, logits):
        logp = float32_or_better(logits).log_softmax(-1)
        step = runner.numbers.step[cells.row]
        n_stable = runner.state.compare(cells.row, cells.position, step, logp, self.kl_limit)
        top_prob = logp.amax(-1).exp()
        is_ready = (top_prob > self.threshold) & (n_stable >= N_STABLE)
        return top_prob + is_ready  # above 1 what is ready, see `sure`

    def sure(self, ranked):
        return ranked > 1


class Laws:
    """What Klass keeps from step to step, on the device: the last law of each blank.

    logp      (B, L, V) its logarithm, float32 or better, at the blank's place in its block of L
    place     (B, N) that place, by position
    n_stable  (B, N) how many comparisons in a row were below the limit
    step      (B, N) the step that looked at the blank last, -1 before the first"""

    def __init__(self, runner, block_length):
        part = runner.part
        B, N = part.order.shape
        workspace = runner.workspace
        _, n_positions = workspace.shape
        dtype = torch.promote_types(workspace.dtype, torch.float32)
        shape = block_length or n_positions, runner.network.config.vocab_size
        self.logp = workspace.buffer('laws', shape, dtype)[:B]
        others = workspace.buffer('places and steps', (3, n_positions), torch.long)[:B, :, :N]
        self.place, self.n_stable, self.step = others.unbind(1)
        n_given = part.n_given.to(part.order.device, non_blocking=True).unsqueeze(1)
        place = (part.positions() - n_given) % self.logp.size(1)
        self.place.scatter_(1, part.order, place)
        self.step.fill_(-1)

    def compare(self, row, position, step, logp, limit):
        """Return how many comparisons (m,) in a row are below the limit by now, and keep the laws.

        row, position, step  (m,) of blanks; one that repeats is compared once
        logp                 (m, V)"""
        place = self.place[row, position]
        last = self.step[row, position]
        kept = self.n_stable[row, position]
        change = logp - self.logp[row, place]
        terms = torch.where(logp > -torch.inf, logp.exp() * change, 0.0)
        is_below = (terms.sum(-1) < limit) & (last >= 0)
        n_stable = torch.where(is_below, kept + 1, 0)
        n_stable = torch.where(last == step, kept, n_stable)
        self.logp[row, place] = logp.to(self.logp.dtype)
        self.n_stable[row, position] = n_stable
        self.step[row, position] = step
        return n_stable

    def keep(self, rows):
        """Keep only these rows (ascending, on the host), in place."""
        for name, x in vars(self).items():
            setattr(self, name, kept_rows(x, rows))
