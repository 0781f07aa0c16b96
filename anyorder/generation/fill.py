"""How are the blanks of a canvas filled? `steps` reveals them step by step, until none is left.

generate            for programs
+- fill             all steps at once
   +- steps         yields after each step
      +- one_round        fills all blanks as planned: has a Runner make each step
"""

from dataclasses import replace
from pkgutil import resolve_name

import torch

from anyorder.fast import kept_frozen
from anyorder.generation.canvas import Canvas
from anyorder.generation.limits import check_allowed
from anyorder.generation.options import drawing_in, unmasking_of
from anyorder.generation.plan import filled_up, is_due, planned
from anyorder.generation.rules import REVISED
from anyorder.generation.runner import Runner
from anyorder.generation.way import Way
from anyorder.generation.workspace import workspace_of
from anyorder.seeds import drawn_seeds


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
    **options,
):
    """Fill the blanks of idx, in n_steps forward passes or as many as are needed.

    A uniform number for each (seed, position) draws the token there, whatever batch, schedule and
    device. By lossless unmasking seed, order and prompt fix the whole text, but for near ties.

    idx        (B, N) tokens; those at order[:, n_known:] are blanks, and are not read
    order      (B, N) in each row a permutation of the positions
    n_known    int or (B,): the first n_known visits are the prompt
    seeds      (B,) ints, else drawn by `generator`
    allowed    which tokens may stand where, see Limits
    n_steps, policy, schedule and other options as in unmasking_of; temperature, top_k, top_p and
               other options are fields of Drawing
    returns    idx (B, N), and with return_trace {order, step, logprob} of Canvas"""
    if seeds is None:
        seeds = drawn_seeds(len(order), generator)
    canvas = Canvas(idx, order, n_known, seeds, allowed=allowed)
    canvas.with_logprob = return_trace
    check_allowed(allowed, order.size(1), model.config.n_real)
    if n_steps is None:
        n_steps = order.size(1)  # one token a step
    options |= {'temperature': temperature, 'top_k': top_k, 'top_p': top_p}
    drawing = drawing_in(options)
    fill(model, canvas, Way(unmasking_of(policy, n_steps, schedule, **options), drawing), use_cache)
    if not return_trace:
        return canvas.idx
    return canvas.idx, {'order': canvas.order, 'step': canvas.step, 'logprob': canvas.logprob}


def fill(model, canvas, way, use_cache=True, bar=None):
    """Fill the blanks of the canvas by all steps; a bar of `progress` counts tokens."""
    for n_new, _ in steps(model, canvas, way, use_cache):
        if bar is not None:
            bar.update(int(n_new.sum()))


@torch.no_grad()  # in inference_mode autocast would cast all weights anew at every step
def steps(model, canvas, way, use_cache=True):
    """Fill the blanks of the canvas step by step, in the Way but for its order.

    The tokens of a step see the known ones and not each other:

        p(step | known) = prod_i p(x_i | known)

    use_cache  False runs every slot anew, up to rounding the same

    Yields (n_new, part) after each step: `part` is the canvas of the rows that run, n_new (B,) how
    many tokens it revealed in each. A device may keep finished rows there, which reveal 0. A caller
    stops rows early by part.stop_rows."""
    if model.training:
        raise ValueError(
            'writing needs a model in evaluation mode (model.eval()): '
            'dropout would fall on some steps'
        )
    way.check(model.config, canvas.limits.joint)
    network = kept_frozen(model) if use_cache else model  # a copy for inference
    first = way.unmasking.first_round(network, canvas, way.drawing)
    yield from one_round(network, canvas, replace(way, unmasking=first), use_cache)
    if way.unmasking.revise:
        for again in resolve_name(REVISED)(network, canvas, way):
            yield from one_round(network, canvas, again, use_cache)


def one_round(network, canvas, way, use_cache):
    """Fill the blanks of the canvas once."""
    if not canvas.n_blanks.any():
        return
    ends = way.unmasking.ends(canvas.n_blanks, canvas.seeds, *canvas.names)
    known_after = canvas.n_known.unsqueeze(1) + ends  # (B, n_steps), at most
    last = known_after.size(1) - 1
    part = canvas.take(canvas.n_blanks.nonzero()[:, 0])  # the rows that run
    with workspace_of(network, part, use_cache, way.drawing.n_passes) as workspace:
        runner = Runner(network, workspace, way, part)
        n_done = 0  # steps of this round
        while len(runner.part):
            part = runner.part
            n_before = n_done
            # steps may reveal less than `ends` says: behind the last one it says all
            rest = known_after[part.rows, min(n_done, last) :]
            n_visits = part.n_visits
            for plan in planned(runner, rest):
                n_done = n_before + plan.n_done
                n_new = runner.run(plan)
                yield n_new, part
                if not torch.equal(part.n_visits, n_visits):  # the caller has stopped rows
                    break
            left = part.n_blanks > 0
            if is_due(left.sum(), part):
                canvas.put(part)
                rows = left.nonzero()[:, 0] if part.is_exact else filled_up(left)
                runner.keep_rows(rows)
