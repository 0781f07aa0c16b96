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
from anyorder.generation.fill import fill
from anyorder.generation.prompts import read_pattern
from anyorder.likelihood.estimates import Estimate, between_orders, mean
from anyorder.likelihood.nll import measured_batch
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import PADDING


def written(config, checkpoint, way, name, ending=''):
    """Return the Estimate -log q(x) in a Way of writing.

    A bound, the mean over n_orders draws, if orders, tokens a step or sets of blanks are drawn. Of
    each it has three columns: nats of the tokens whose probability is not 0, the number of the
    others, passes. What is given is not written.

    name, ending  of the Estimate"""
    unmasking = way.unmasking
    order = way.order
    pattern = read_pattern(config.pattern)
    way.check(checkpoint.config, pattern is not None, not unmasking.has_bound)
    order.check(config.block_size, checkpoint.config.block_size)
    if pattern:
        pattern.table(checkpoint.tokenizer)  # raises before a text is opened
        stand_in = stand_in_of(checkpoint)
    has_orders = order.law != 'one' and not unmasking.adaptive
    drawn = unmasking.binomial or unmasking.has_bound
    several = drawn or has_orders
    K = config.n_orders if several else 1

    def nats(model, corpus, numbers):
        rows = corpus.rows(numbers)
        batch = measured_batch(model, rows, order, K, config.seed, left_to_right=order.known_l2r)
        seeds = [derive_seed(config.seed, 'written', b, k) for b in numbers for k in range(K)]
        if pattern:
            for number, block in zip(numbers, batch.idx[::K]):
                pattern.check(
                    block[block != PADDING].tolist(), checkpoint.tokenizer, f'row {number}'
                )
        found = []
        for canvas in Canvas.of_batch(batch, seeds, config.batch_size, model.device):
            if pattern:
                n_visits = enumerate(canvas.n_visits.tolist())
                parts = [(row, 0, torch.full((n,), -1), pattern) for row, n in n_visits]
                canvas.limits = pattern.language(parts, canvas, checkpoint.tokenizer, stand_in)
            fill(model, canvas, way)
            is_cut = canvas.logprob == -torch.inf
            nats = -canvas.logprob.masked_fill(is_cut, 0).sum(1)
            columns = nats, is_cut.sum(1), canvas.n_passes
            found.append(torch.stack([column.cpu().double() for column in columns], 1))
        return torch.cat(found).view(-1, 3 * K)

    def about(nats, corpus, row):
        kept, cut, passes = nats.unflatten(1, (-1, 3)).mean(1).T
        found = {'passes': float(passes.mean())}
        if cut.any():
            n_kept = max(1, row['tokens'] - cut.sum())
            found |= {'cut': float(cut.sum()), 'kept_nats': float(kept.sum() / n_kept)}
        if has_orders:  # other draws are a block's own
            found |= between_orders(order, nats_by_order(nats), corpus)
        return found

    law = derive_seed(order, unmasking, way.drawing, config.pattern)
    return Estimate(
        kind='written',
        name=name,
        work=f'{name}{ending} x {K} {law:x}',  # no journal of another reading
        nats=nats,
        columns=lambda nats: mean(nats_by_order(nats)),
        about=about,
        bound=drawn or has_orders and (order.drawn or K > 1),
        several=several,
        ending=ending,
        n_at_once=max(1, config.batch_size // K),
    )


def nats_by_order(found):
    """Return nats (n, K) of what is found of blocks, infinite where a token is cut off."""
    kept, cut, _ = found.unflatten(1, (-1, 3)).unbind(2)
    return kept.masked_fill(cut > 0, math.inf)
