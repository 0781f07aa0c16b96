"""Reveal as many of the surest blanks as a bound allows: a factor, or entropies."""

from dataclasses import dataclass

import torch

from anyorder.generation.rules import Rule


@dataclass(frozen=True)
class Factor(Rule):
    """Reveal the n surest blanks, n as large as their number allows.

        largest n with (n + 1) (1 - c_n) <= factor,   c_1 >= c_2 >= ... the largest probabilities

    and at least one: the more blanks are revealed together, the surer all of them must be. With
    factor 0 that is one blank, and all that have a token of probability 1.
    Source: Wu et al. 2025, Fast-dLLM, arXiv 2505.22618."""

    score: str = 'top_prob'
    threshold: float = 1.0
    form = 'factor/BLOCK_LENGTH:FACTOR'

    def sure(self, ranked):
        n = torch.arange(1, ranked.size(1) + 1, device=ranked.device)
        return (n + 1) * (1 - ranked) <= self.threshold


@dataclass(frozen=True)
class EntropyBounded(Rule):
    """Reveal the surest blanks whose joint law is near to the product of their laws.

        largest k with H_1 + ... + H_k - max_i H_i <= gamma,   H_1 <= H_2 <= ... the entropies

    in nats. The left side bounds their mutual information. With gamma 0 that is one blank, and all
    whose entropy is 0.
    Source: Ben-Hamu et al. 2025, arXiv 2505.24857."""

    score: str = 'entropy'
    threshold: float = 0.1
    form = 'eb/BLOCK_LENGTH:GAMMA'

    def sure(self, ranked):
        entropy = -ranked
        before = entropy.cumsum(1) - entropy  # of all but the last, which has the largest
        return before <= self.threshold
