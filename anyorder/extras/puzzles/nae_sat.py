"""The rules of NAE-SAT: latents, and observations that say which of them are not all equal."""

import math

import numpy as np

from anyorder.extras.puzzles.puzzle import Puzzle


class NaeSat(Puzzle):
    """n_latents uniform bits, then n_observations of them.

    An observation is whether the latents of a fixed random triple are not all equal. Nothing is
    given; an observation is easy after its latents and hard before them. Source: Kim et al. 2025,
    sec. 3."""

    about = 'latents and observations'
    symbols = '01'
    options = ('seed', 'n_latents', 'n_observations')

    def __init__(self, n_latents=25, n_observations=275, seed=0):
        if not 1 <= n_observations <= math.comb(max(n_latents, 0), 3):
            raise ValueError(
                'nae_sat wants 3 latents or more and as many observations as there are triples at '
                f'most, got {n_latents} and {n_observations}'
            )
        self.n_free = n_latents
        rng = np.random.default_rng(seed)
        triples = {}  # in the order in which they were drawn
        while len(triples) < n_observations:
            triple = rng.choice(n_latents, 3, replace=False)
            triples[tuple(sorted(triple.tolist()))] = True
        self.triples = np.array(list(triples))  # (P, 3)

    def observations(self, latents):
        """Return the observations (B, P) of latents (B, n_latents)."""
        bits = latents[:, self.triples]  # (B, P, 3)
        return (bits.min(2) != bits.max(2)).astype(latents.dtype)

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, N)."""
        latents = rng.integers(0, 2, (n_rows, self.n_free))
        tokens = np.concatenate([latents, self.observations(latents)], 1)
        return tokens, np.zeros(tokens.shape, bool)

    def key(self, tokens):
        """Return what two splits may not share: the latents."""
        return tokens[:, : self.n_free]

    def right(self, tokens, answer):
        """Return which tokens of `answer` are right, all (B, N): observations that agree with its
        own latents. A token below 0 is no bit, and agrees with nothing."""
        latents = answer[:, : self.n_free]
        are_bits = (latents[:, self.triples] >= 0).all(2)
        agree = answer[:, self.n_free :] == self.observations(latents)
        return np.pad(agree & are_bits, ((0, 0), (self.n_free, 0)))
