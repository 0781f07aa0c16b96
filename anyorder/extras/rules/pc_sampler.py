"""Reveal what is sure, stands early and is rare: PC-Sampler."""

from dataclasses import dataclass

from anyorder.generation.rules import Rule
from anyorder.machine.devices import widest
from model import float32_or_better


@dataclass(frozen=True)
class PcSampler(Rule):
    """Reveal first what is sure, stands early and is rare, as many blanks as the schedule says.

        score_i = exp(-decay i) min(most, -c_i log f(v_i))

    c_i is the largest probability, of token v_i; f(v) the share of v in the training set, in which
    each token counts once more than it stands there. i is the position: a block that begins
    elsewhere has all its scores times the same factor. The logarithm of the score is as good.
    Source: Huang et al. 2025, PC-Sampler, arXiv 2508.13021."""

    score: str = 'top_prob'
    decay: float = 0.25
    most: float = 10.0
    form = 'pc_sampler/BLOCK_LENGTH'

    def score_blanks(self, runner, cells, logits):
        counts = getattr(runner.network, 'counts', None)
        if counts is None:
            raise ValueError(
                'pc_sampler wants to know how often each token stands in the training set, '
                'which a checkpoint of train.py says: choose another order'
            )
        logits = float32_or_better(logits)
        likeliest = logits.max(-1)
        sure = (likeliest.values - logits.logsumexp(-1)).exp()
        weight = (counts + 1).to(widest(counts.device))
        rarity = weight.sum().log() - weight.log()  # -log f
        nats = (sure * rarity[likeliest.indices]).clamp(max=self.most)
        return nats.log() - self.decay * cells.position
