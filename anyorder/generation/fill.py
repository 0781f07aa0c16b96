"""How is a text written? `steps` reveals blanks step by step, until none is left; `fill` takes them all."""

import itertools
from dataclasses import replace
from functools import partial

import torch

from anyorder.fast import freeze, product_dtype
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, TokenNoise, token_logprob
from anyorder.generation.revise import GROUPS, blank_again
from anyorder.generation.unmasking import Unmasking, check_keywords
from model import KVCache


def generate(
    model,
    idx,
    order,
    n_known,
    n_steps=None,
    policy='given',
    schedule='linear',
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    use_cache=True,
    generator=None,
    seeds=None,
    return_trace=False,
    allowed=None,
    **unmasking,
):
    """Fill the blanks of idx, in n_steps forward passes or as many as `unmasking` takes, see steps. For programs and
    tests: the commands go by Writer.write and Scroll.steps.

    idx       (B, N) tokens in natural order; those at order[:, n_known:] are blanks and their values are not read
    order     (B, N) a permutation of the positions a row; the first n_known (int or (B,)) are the prompt
    seeds     (B,) ints, else drawn by `generator`: a row's draws depend on its seed alone, not on batch or schedule. A
              uniform number for each (seed, position) draws the token there. Lossless unmasking draws by noise for each
              (seed, position, token): seed, order and prompt then fix the whole text, whatever the window. In float32
              a near tie may fall otherwise, in bfloat16 rounding changes long texts. The numbers are the same
              on every device
    n_steps, policy, schedule; as `unmasking` window, unmask, order_noise, threshold, block_length, revise: Unmasking
    temperature, top_k, top_p: see Drawing;   use_cache: see steps
    allowed   which tokens may stand where, see Constraint: `logprob` follows the law that is renormalised to these
    returns idx (B, N), and with return_trace a dict of (B, N) tensors: `order` as visited, `step` and `logprob` as in
            Canvas"""
    check_keywords(unmasking, generate)
    if seeds is None:
        device = generator.device if generator else 'cpu'
        seeds = torch.randint(2**62, (len(order),), generator=generator, device=device).tolist()
    canvas = Canvas(idx, order, n_known, seeds, allowed=allowed)
    n_steps = order.size(1) if n_steps is None else n_steps  # one token a step
    fill(
        model,
        canvas,
        Unmasking(n_steps, schedule, policy, **unmasking),
        Drawing(temperature, top_k, top_p),
        use_cache,
        return_trace,
    )
    trace = {'order': canvas.order, 'step': canvas.step, 'logprob': canvas.logprob}
    return (canvas.idx, trace) if return_trace else canvas.idx


def fill(model, canvas, unmasking, drawing, use_cache=True, with_logprob=True, bar=None):
    """Fill the blanks of the canvas, in place, see steps. A bar of `progress` counts them."""
    for _, n_new, _ in steps(model, canvas, unmasking, drawing, use_cache, with_logprob):
        if bar is not None:
            bar.update(int(n_new.sum()))


@torch.no_grad()  # not inference_mode, in which autocast casts all weights anew at every step
def steps(model, canvas, unmasking, drawing, use_cache=True, with_logprob=True):
    """Fill the blanks of the canvas step by step. Yields after each step (step, n_new, part): `part` is the canvas of
    the rows that ran, step (B,) which step of its own this was for each, n_new (B,) counts the tokens revealed in each.
    A caller ends rows early by part.end. A finished or ended row goes back to the canvas.

    The tokens of a step see the known ones and not each other: p(step | known) = prod_i p(x_i | known)    (AO Lemma 1)
    Lossless unmasking reveals only tokens that one token a step would draw, see Unmasking.accept. In a round of
    revision all rows run once more, with as many tokens a step as before, but those that the last round did not change.

    drawing       a Drawing; with `scores` the tokens that stand in the blanks are revealed
    use_cache     keep keys and values of past slots; False runs everything anew, up to rounding the same
    with_logprob  keep the log-probability of each token"""
    if model.training:
        raise ValueError(
            'writing needs a model in evaluation mode (model.eval()): dropout would fall on some steps'
        )
    unmasking.check_network(model.slots, model.config.block_size)
    network = freeze(model) if use_cache else model
    yield from write(network, canvas, unmasking, drawing, use_cache, with_logprob)
    again = replace(unmasking, n_steps=-(-unmasking.n_steps // GROUPS), block_length=None)
    changed = torch.ones(len(canvas), 1, dtype=torch.bool, device=canvas.idx.device)
    for n_round in range(unmasking.revise if canvas.n_steps.any() else 0):
        blank_again(network, canvas, n_round, changed)
        if not canvas.n_blanks.any():
            return
        before = canvas.idx.clone()
        yield from write(network, canvas, again, drawing, use_cache, with_logprob)
        changed = (canvas.idx != before).any(1, keepdim=True)  # (B, 1): other rows are finished


def write(network, canvas, unmasking, drawing, use_cache, with_logprob):
    """Fill the blanks of the canvas as `steps` does, once."""
    revealed = unmasking.ends(canvas.n_blanks.tolist(), canvas.seeds, *canvas.names)
    ends = canvas.known.unsqueeze(1) + revealed  # (B, steps): visits known then
    part = canvas.take(canvas.n_blanks > 0)  # the rows that run; others cost nothing
    cache = start_cache(network, part) if use_cache and network.slots.cached else None
    noise = TokenNoise(network.config.vocab_size, canvas.idx.device) if unmasking.lossless else None
    for column_of_ends in itertools.count():
        if not len(part):
            return
        n_new = (
            ends[part.rows, min(column_of_ends, ends.size(1) - 1)] - part.known
        )  # (B,) on the host
        if not n_new.any():
            part.n_steps = part.n_steps + 1  # a binomial step may reveal nothing
            continue
        if unmasking.lossless:
            n_new = n_new.clamp(max=unmasking.window)
        n_targets = unmasking.n_scored(part) if unmasking.adaptive else n_new
        row, column, visit = part.cells(n_targets)  # (m,) each
        logits = network.predict(
            part.idx,
            part.order,
            part.known + part.n_drafts,
            n_targets,
            cache,
            part.n_visits,
            (row, column),
            part.known,
        )  # (m, V)
        if part.allowed is not None:
            part.allowed.mask(logits, part, row, visit, network.config.n_real, drawing.scores)
        if unmasking.adaptive:
            n_new, logits = unmasking.choose(part, logits, n_new)
            row, column, visit = part.cells(n_new)
            if cache is not None and network.slots.targets_in_keys:
                cache.length = part.known  # slot n_known was run for another target
        position = part.order[row, visit]  # (m,)
        if drawing.scores:
            token = part.idx[row, position]
        elif unmasking.lossless:
            token = drawing.tokens_by_noise(logits, partial(noise, part, n_targets, row, position))
        else:
            token = drawing.tokens(logits, part.u[row, position])
        if unmasking.lossless:
            n_new, sure = unmasking.accept(part, row, column, position, token, n_targets)
            row, position, token = row[sure], position[sure], token[sure]
            if cache is not None:
                cache.length = part.known + n_new  # slots behind these read drafts
        part.idx[row, position] = token
        part.step[row, position] = part.n_steps.to(row.device, non_blocking=True)[row]
        if with_logprob:
            logits = logits[sure] if unmasking.lossless else logits
            logits = drawing.tempered(logits) if drawing.scores else logits
            part.logprob[row, position] = token_logprob(logits, token).to(part.logprob.dtype)
        part.known = part.known + n_new
        yield part.n_steps, n_new, part
        part.n_steps = part.n_steps + 1
        left = part.n_blanks > 0
        if not left.all():
            canvas.put(part.take(~left))
            part = part.take(left)
            if cache is not None:
                cache.keep(left.nonzero()[:, 0])


def start_cache(network, part):
    """A KVCache for the rows of `part`. Prompts of very different lengths are read here: each costs its own tokens."""
    device, dtype = part.idx.device, product_dtype(network)
    cache = KVCache(network.config, len(part), device, dtype)
    if len(part) and part.known.max() - part.known.min() >= 32:
        for length in (part.known // 32).unique():
            near = part.known // 32 == length
            rows, prompts = near.nonzero()[:, 0], part.take(near)
            n = min(int(prompts.known.max()) + 1, prompts.order.size(1))
            own = KVCache(network.config, len(rows), device, dtype, n)
            network.predict(
                prompts.idx, prompts.order, prompts.known, 1, own, prompts.known, slice(0)
            )  # no head
            cache.k[:, rows, :, :n], cache.v[:, rows, :, :n], cache.length[rows] = (
                own.k,
                own.v,
                own.length,
            )
    return cache
