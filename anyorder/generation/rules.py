"""By which other rules of the literature does a step choose its blanks? Each is an Adaptive.

A rule says which scores the blanks have, which of them a step reveals, or both. A text then has an
exact probability: what is known says which blanks each step chooses."""

from dataclasses import dataclass

import torch

from anyorder.generation.unmasking import Adaptive

# another rule is one class, named here, and imported where an order names it. It has the fields of
# Given, and those of block_length and threshold that its `form` has
RULES = {
    'factor': 'anyorder.generation.rules:Factor',
    'eb': 'anyorder.generation.rules:EntropyBounded',
    'klass': 'anyorder.extras.rules.klass:Klass',
    'pc_sampler': 'anyorder.extras.rules.pc_sampler:PcSampler',
    'dilated': 'anyorder.extras.rules.dilated:Dilated',
    'drawn': 'anyorder.extras.rules.drawn:Drawn',
}
# writes again what fits least, imported where a text is to be revised
REVISED = 'anyorder.extras.rules.revise:rounds_of'


class Rule(Adaptive):
    """An Adaptive that is named as a whole, by a text of its `form`.

    threshold  the number behind the colon of its name; without one n_steps says how many"""

    has_threshold = True


@dataclass(frozen=True)
class Factor(Rule):
    """Reveal the n surest blanks, n as large as their number allows.

        largest n with (n + 1) (1 - c_n) <= factor,   c_1 >= c_2 >= ... the largest probabilities

    and at least one: the more blanks are revealed together, the surer all of them must be.
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
