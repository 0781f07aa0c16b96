"""How likely is a text under the law by which a sampler writes? The blanks of a step are a function
of what is known.

With the tokens of a step independent given the known ones, A_k the blanks that step k chooses:

    q(x) = prod_k prod_{i in A_k} p(x_i | known_k)

A given text says what is known, hence which blanks each step chooses: one run of the sampler that
reveals the tokens of the text gives log q(x), exact for every policy, schedule and threshold.
Source: DUEL, arXiv 2603.01367."""

import math

import torch

from anyorder.checkpoint import stand_in_of
from anyorder.generation import Canvas
from anyorder.generation.fill import check_turns, fill
from anyorder.generation.prompts import read_pattern
from anyorder.generation.rules import check_counts
from anyorder.likelihood.estimates import Estimate
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import PADDING


class Written(Estimate):
    """-log q(x) in one way of writing.

    A bound, the mean over n_orders draws, if orders, tokens a step or sets of blanks are drawn."""

    def __init__(self, config, checkpoint, label, way):
        """Make the estimate of a Way."""
        unmasking = way.unmasking
        unmasking.check_network(checkpoint.config.slots, config.block_size)
        check_counts(unmasking, checkpoint.counts)
        drawn = unmasking.binomial or unmasking.has_bound
        has_orders = way.order.law != 'one' and not unmasking.adaptive
        super().__init__(
            config, checkpoint, way.order, label, 'written', several=drawn or has_orders
        )
        self.way = way
        self.is_drawn = False  # it is by passes of the way
        self.has_orders = has_orders
        self.pattern = read_pattern(config.get('pattern'))
        if self.pattern is not None:
            check_turns(unmasking)
        self.known_l2r = way.order.known_l2r
        self.bound = drawn or self.bound and not unmasking.adaptive
        # no journal of another reading
        names = [way.order, unmasking, way.drawing]
        if self.pattern is not None:
            names.append(self.pattern.text)
        self.work = f'{label} x {self.n_orders} {derive_seed(*names):x}'

    def nats(self, model, blocks, numbers, given):
        """Return three columns for each order: nats of the tokens whose probability is not 0, the
        number of the others, passes. What is given is not written."""
        K = self.n_orders
        batch = self.batch(blocks, numbers, given)
        seeds = [derive_seed(self.c.seed, 'written', b, k) for b in numbers for k in range(K)]
        if self.pattern is not None:
            for number in numbers:
                block = blocks[number]
                tokens = block[block != PADDING].tolist()
                self.pattern.check(tokens, self.checkpoint.tokenizer, number)
        found = []
        for rows in torch.arange(len(seeds)).split(self.c.batch_size):
            part = batch.rows(rows).to(model.device)
            own_seeds = [seeds[r] for r in rows.tolist()]
            canvas = Canvas(part.idx, part.order, part.n_given, own_seeds, part.n_visits)
            if self.pattern is not None:
                canvas.language = self.language(canvas)
            fill(model, canvas, self.way.unmasking, self.way.drawing)
            is_cut = canvas.logprob == -torch.inf
            nats = -canvas.logprob.masked_fill(is_cut, 0).sum(1)
            passes = [len({*steps} - {-1}) for steps in canvas.step.tolist()]
            columns = nats, is_cut.sum(1), torch.tensor(passes)
            found.append(torch.stack([column.cpu().double() for column in columns], 1))
        return torch.cat(found).view(-1, 3 * K)

    def language(self, canvas):
        """Return the Language of a canvas whose rows match the pattern."""
        parts = []
        for row, n in enumerate(canvas.n_visits.tolist()):
            blanks = [-1 for _ in range(n)]  # what is known is read from the canvas
            parts.append((row, 0, blanks, self.pattern))
        stand_in = stand_in_of(self.checkpoint)
        return self.pattern.language(parts, canvas, self.checkpoint.tokenizer, stand_in)

    def columns(self, nats):
        """Return nats (n, K), infinite where a token is cut off."""
        kept, cut, _ = nats.unflatten(1, (-1, 3)).unbind(2)
        return kept.masked_fill(cut > 0, math.inf)

    def between_orders(self, columns, text):
        # other draws than of orders are a block's own
        return super().between_orders(columns, text) if self.has_orders else {}

    def rows(self, nats, text, of_one=None):
        (row,) = super().rows(nats, text, of_one)
        kept, cut, passes = nats.unflatten(1, (-1, 3)).mean(1).T
        row['passes'] = float(passes.mean())
        if cut.any():
            n_kept = max(1, row['tokens'] - cut.sum())
            row |= {'cut': float(cut.sum()), 'kept_nats': float(kept.sum() / n_kept)}
        return [row]
