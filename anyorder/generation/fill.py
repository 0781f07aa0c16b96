"""How is a text written? `steps` reveals blanks step by step, until none is left.

generate            for programs
+- fill             all steps at once
   +- steps         yields after each step
      +- write            fills all blanks: one Unmasking.reveal a step, by Passes
"""

import itertools
from functools import partial

import torch

from anyorder.fast import freeze, product_dtype
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, TokenNoise, token_logprob
from anyorder.generation.options import check_keywords, unmasking_of
from model import KVCache

BUCKET = 32  # prompts of 0 to 31 tokens are read together, those of 32 to 63, and so on


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
    """Fill the blanks of idx, in n_steps forward passes or as many as are needed.

    A uniform number for each (seed, position) draws the token there, whatever batch, schedule and
    device. By lossless unmasking seed, order and prompt fix the whole text, but for near ties.

    idx        (B, N) tokens; those at order[:, n_known:] are blanks, and are not read
    order      (B, N) in each row a permutation of the positions
    n_known    int or (B,): the first n_known visits are the prompt
    seeds      (B,) ints, else drawn by `generator`
    allowed    which tokens may stand where, see Constraint
    unmasking  see Options, as n_steps, policy and schedule
    returns    idx (B, N), and with return_trace {order, step, logprob} of Canvas"""
    check_keywords(unmasking, generate)
    if seeds is None:
        device = generator.device if generator else 'cpu'
        seeds = torch.randint(2**62, (len(order),), generator=generator, device=device).tolist()
    canvas = Canvas(idx, order, n_known, seeds, allowed=allowed)
    if n_steps is None:
        n_steps = order.size(1)  # one token a step
    chosen = unmasking_of(n_steps=n_steps, schedule=schedule, policy=policy, **unmasking)
    fill(model, canvas, chosen, Drawing(temperature, top_k, top_p), use_cache, return_trace)
    if not return_trace:
        return canvas.idx
    return canvas.idx, {'order': canvas.order, 'step': canvas.step, 'logprob': canvas.logprob}


def fill(model, canvas, unmasking, drawing, use_cache=True, with_logprob=True, bar=None):
    """Fill the blanks of the canvas by all steps; a bar of `progress` counts tokens."""
    for _, n_new, _ in steps(model, canvas, unmasking, drawing, use_cache, with_logprob):
        if bar is not None:
            bar.update(int(n_new.sum()))


@torch.no_grad()  # in inference_mode autocast would cast all weights anew at every step
def steps(model, canvas, unmasking, drawing, use_cache=True, with_logprob=True):
    """Fill the blanks of the canvas step by step.

    The tokens of a step see the known ones and not each other:

        p(step | known) = prod_i p(x_i | known)

    use_cache     False runs every slot anew, up to rounding the same
    with_logprob  keep the log-probability of each token
    Yields (step, n_new, part) after each step: `part` is the canvas of the rows that ran, step (B,)
    the number of the step in each row, from 0, n_new (B,) how many tokens it revealed. A caller
    stops rows early by part.stop_rows."""
    if model.training:
        raise ValueError(
            'writing needs a model in evaluation mode (model.eval()): '
            'dropout would fall on some steps'
        )
    unmasking.check_network(model.slots, model.config.block_size)
    network = freeze(model) if use_cache else model  # a copy for inference
    for one in unmasking.rounds_of(network, canvas):
        yield from write(network, canvas, one, drawing, use_cache, with_logprob)


def write(network, canvas, unmasking, drawing, use_cache, with_logprob):
    """Fill the blanks of the canvas once."""
    ends = unmasking.ends(canvas.n_blanks.tolist(), canvas.seeds, *canvas.names)
    known_after = canvas.known.unsqueeze(1) + ends  # (B, n_steps), at most
    last = known_after.size(1) - 1
    part = canvas.take(canvas.n_blanks > 0)  # the rows that run
    passes = Passes(network, part, drawing, use_cache, with_logprob)
    for step in itertools.count():  # of this round
        if not len(part):
            return
        n_new = known_after[part.rows, min(step, last)] - part.known  # (B,) on the host
        if not n_new.any():  # a binomial step may reveal nothing
            part.n_steps = part.n_steps + 1
            continue

        # Reveal, and write down
        n_new, (row, position), token, logits = unmasking.reveal(passes, part, n_new)
        part.idx[row, position] = token
        part.step[row, position] = part.n_steps.to(row.device, non_blocking=True)[row]
        if with_logprob:
            logprob = passes.logprob(logits, token)
            part.logprob[row, position] = logprob.to(part.logprob.dtype)
        part.known = part.known + n_new
        yield part.n_steps, n_new, part

        # Go on with the rows that have blanks left
        part.n_steps = part.n_steps + 1  # not in place: a caller may keep what was yielded
        part = put_finished(part, canvas, passes)


class Passes:
    """Runs the passes of an Unmasking, and keeps the cache and the noise of drafts."""

    def __init__(self, network, part, drawing, use_cache, with_logprob):
        self.network = network
        self.drawing = drawing
        self.with_logprob = with_logprob
        self.cache = None
        if use_cache and network.slots.cached:
            self.cache = start_cache(network, part)
        self.noise = TokenNoise(network.config.vocab_size, part.idx.device)

    def run(self, part, n_targets):
        """Return Canvas.cells and logits (m, V) of the next n_targets (B,) visits.

        Drafts are read as if known."""
        cells = part.cells(n_targets)
        row, column, visit = cells
        logits = self.network.predict(
            part.idx,
            part.order,
            part.known + part.n_drafts,
            n_targets,
            cache=self.cache,
            n_visits=part.n_visits,
            picked=(row, column),
            first=part.known,  # drafts are predicted, too
        )
        if part.allowed is not None:
            n_real = self.network.config.n_real
            part.allowed.mask(logits, part, row, visit, n_real, self.drawing.scores)  # in place
        return cells, logits

    def draw(self, part, row, position, logits):
        """Draw tokens (m,) by the numbers of their cells. A scored text keeps its own."""
        if self.drawing.scores:
            return part.idx[row, position]
        return self.drawing.tokens(logits, part.u[row, position])

    def draw_by_noise(self, part, n_targets, row, position, logits):
        """Draw tokens (m,) by the noise of their cells, the next n_targets (B,) of each row."""
        if self.drawing.scores:
            return part.idx[row, position]
        noise = partial(self.noise, part, n_targets, row, position)
        return self.drawing.tokens_by_noise(logits, noise)

    def logprob(self, logits, token):
        """Return log p (m,) in nats by the law that scores, else by the untempered model."""
        if self.drawing.scores:
            logits = self.drawing.tempered(logits)
        return token_logprob(logits, token)

    def forget_target(self, part):
        """Rerun slot n_known in the next pass if keys depend on targets: it ran for another."""
        if self.network.slots.targets_in_keys:
            self.keep_slots(part.known)

    def keep_slots(self, n_slots):
        """Keep only the first n_slots (B,) of each row in the cache."""
        if self.cache is not None:
            self.cache.length = n_slots

    def keep_rows(self, left):
        """Keep only the rows where `left` (B,) is True in the cache."""
        if self.cache is not None:
            self.cache.keep(left.nonzero()[:, 0])


def put_finished(part, canvas, passes):
    """Put rows without blanks back into the whole canvas. Return the others."""
    left = part.n_blanks > 0
    if left.all():
        return part
    canvas.put(part.take(~left))
    passes.keep_rows(left)
    return part.take(left)


def start_cache(network, part):
    """Return a KVCache for the rows of `part`.

    Prompts whose lengths differ by BUCKET or more are read here, so that each costs its own
    tokens."""
    device = part.idx.device
    dtype = product_dtype(network)
    cache = KVCache(network.config, len(part), device, dtype)
    if not len(part) or part.known.max() - part.known.min() < BUCKET:
        return cache
    buckets = part.known // BUCKET  # (B,)
    for bucket in buckets.unique():
        near = buckets == bucket
        rows = near.nonzero()[:, 0]
        prompts = part.take(near)
        n = min(int(prompts.known.max()) + 1, prompts.order.size(1))
        own = KVCache(network.config, len(rows), device, dtype, n)
        no_head = slice(0)  # only fills the cache
        network.predict(
            prompts.idx,
            prompts.order,
            prompts.known,
            1,
            cache=own,
            n_visits=prompts.known,
            picked=no_head,
        )
        cache.k[:, rows, :, :n] = own.k
        cache.v[:, rows, :, :n] = own.v
        cache.length[rows] = own.length
    return cache
