"""Which law has a blank? A chain of links, each of which changes what the one before it gives.

    guidance     of the network's hidden states, see guided
    penalty      of tokens that stand in the text already, see penalize
    allowed      -inf for all others, see limits.py
    pattern      of the texts that match, see Language in extras/patterns
    temperature  and then cuts, see Drawing

The law of a text, which weighs the tokens that are written and by which a score chooses, ends
before the temperature. The order of the links stands here and in Runner alone, which reads the
network, and asks the limits once more when they know the laws of all blanks of a step."""

import torch

from model import float32_or_better


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
    known, first, last, start, end = runner.numbers[:5]
    n_slots, n, n_keys = runner.size[:3]
    T = part.order.size(1)
    n_given = runner.numbers.n_given
    n_visits = T
    if network.slots_class.masked_loss:  # all visits run, none twice: without a mask all are seen
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


def penalize(logits, cells, runner):
    """Return the logits (m, V) of Cells with the penalty on tokens that are known, in place.

        p(v) exp(-penalty [v stands among the known tokens]) / Z

    A blank knows the visits before its own among the first `known` of its row: a prompt, what
    earlier steps wrote, and drafts. So all tokens of a step have the law of the step's beginning,
    and a draft that is checked has the law of one token a step. With a penalty below 0, in nats,
    known tokens become more likely. A network may exempt tokens, see checkpoint.set_exempt.

    It is the presence_penalty of OpenAI's API and of vLLM, which do not count the prompt, and of
    llama.cpp, which does. In another order the prompt may as well stand behind a blank."""
    part = runner.part
    known = runner.numbers.known
    logits = float32_or_better(logits)
    V = logits.size(1)
    B, T = part.order.shape

    # The first of the known visits that has a token, (B, V); T for none
    visit = torch.arange(T, dtype=torch.int32, device=logits.device)
    visit = torch.where(visit < known.unsqueeze(1), visit, T)  # (B, T)
    token = part.idx.gather(1, part.order).clamp(0, V - 1)  # in a blank it may be anything
    since = torch.full((B, V), T, dtype=torch.int32, device=logits.device)
    since.scatter_reduce_(1, token, visit, 'amin')
    exempt = getattr(runner.network, 'exempt', None)
    if exempt is not None:
        since.index_fill_(1, exempt, T)
    n_known = torch.minimum(cells.visit, known[cells.row])  # (m,)
    is_known = since[cells.row] < n_known.unsqueeze(1)  # (m, V)
    return logits.add_(is_known, alpha=-runner.drawing.presence_penalty)
