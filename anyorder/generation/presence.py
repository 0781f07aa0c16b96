"""Which tokens stand in a text already? A penalty makes them less likely, or more."""

import torch

from model import float32_or_better


def with_penalty(logits, penalty, network, part, cells, known):
    """Return the logits of Cells, by `penalize` if there is a penalty, but for tokens that the
    network calls exempt. `known` may be on the host."""
    if not penalty:
        return logits
    exempt = getattr(network, 'exempt', None)
    return penalize(logits, penalty, part, cells, known.to(logits.device), exempt)


def penalize(logits, penalty, part, cells, known, exempt):
    """Return the logits (m, V) of Cells with the penalty on tokens that are known, in place.

        p(v) exp(-penalty [v stands among the known tokens]) / Z

    A blank knows the visits before its own among the first `known` (B,) of its row: a prompt, what
    earlier steps wrote, and drafts. So all tokens of a step have the law of the step's beginning,
    and a draft that is checked has the law of one token a step.

    penalty  nats; below 0 known tokens become more likely
    exempt   (k,) tokens without a penalty, see checkpoint.set_exempt; None: there are none

    It is the presence_penalty of OpenAI's API and of vLLM, which do not count the prompt, and of
    llama.cpp, which does. In another order the prompt may as well stand behind a blank."""
    logits = float32_or_better(logits)
    since = first_visits(part, known, logits.size(1))
    if exempt is not None:
        since.index_fill_(1, exempt, part.order.size(1))
    n_known = torch.minimum(cells.visit, known[cells.row])  # (m,)
    is_known = since[cells.row] < n_known.unsqueeze(1)  # (m, V)
    return logits.add_(is_known, alpha=-penalty)


def first_visits(part, known, vocab_size):
    """Return the first of the `known` (B,) visits that has a token, (B, V) int32; T for none."""
    B, T = part.order.shape
    visit = torch.arange(T, dtype=torch.int32, device=part.order.device)
    visit = torch.where(visit < known.unsqueeze(1), visit, T)  # (B, T)
    token = part.idx.gather(1, part.order).clamp(0, vocab_size - 1)  # in a blank it may be anything
    since = torch.full((B, vocab_size), T, dtype=torch.int32, device=visit.device)
    return since.scatter_reduce_(1, token, visit, 'amin')
