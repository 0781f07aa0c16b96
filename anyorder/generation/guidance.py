"""How does a text depend more on its prompt? By guidance, a second pass without the prompt."""

import torch


def guided(x, runner):
    """Return the last hidden states x (B, n, C) of a step, moved away from those without the
    prompt.

        x + scale (x - x'),    x' of the same step in which the prompt is blank

    A head is affine, so that its logits are (1 + scale) l - scale l' and a token has the law

        p(v | prompt, written)^(1 + scale)  p(v | written)^(-scale) / Z

    The prompt is the first n_given visits. Without it the other visits begin, and it stands behind
    them: a masked model sees it as blanks, and a decoder does not come to it. This is the cfg_scale
    of LLaDA (Nie et al. 2025, arXiv 2502.09992; Ho and Salimans 2022, arXiv 2207.12598).

    This second pass has a cache of its own, the last one of the Workspace."""
    network = runner.network
    part = runner.part
    known, first, last, start, end = runner.bounds[:5]
    n_slots, n, n_keys = runner.size[:3]
    T = part.order.size(1)
    n_given = runner.bounds.n_given
    n_visits = T
    if network.slots.masked_loss:  # all visits run, none twice: without a mask all are seen
        n_slots = n_keys or n_slots
        n_visits = end.unsqueeze(1)
    visit = torch.arange(T, device=x.device)
    order = part.order.gather(1, (visit + n_given.unsqueeze(1)) % n_visits)
    start = (start - n_given).clamp(min=0)
    numbers = known - n_given, first - n_given, last - n_given, start, end
    cache = runner.cache and runner.workspace.caches[-1]
    blank = network.answer(part.idx, order, numbers, (n_slots, n, n_keys), cache)
    mixed = blank.lerp(x, 1 + runner.drawing.cfg_scale)
    return torch.where(blank.isneginf(), x, mixed)  # a network of others may rule a token out
