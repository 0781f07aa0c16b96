"""Which law has a blank? A chain of links, each of which changes what the one before it gives.

    guidance     of the network's hidden states, see guidance.py
    penalty      of tokens that stand in the text already, below
    allowed      -inf for all others, see limits.py
    pattern      of the texts that match, see Language in extras/patterns
    temperature  and then cuts, see Drawing

The law of a text, which weighs the tokens that are written and by which a score chooses, ends
before the temperature. The order of the links stands here and in Runner alone, which reads the
network, and asks the limits once more when they know the laws of all blanks of a step."""

import torch

from model import float32_or_better


def penalize(logits, penalty, part, cells, n_read, exempt):
    """Return the logits (m, V) of Cells with the penalty on tokens that are known, in place.

        p(v) exp(-penalty [v stands among the known tokens]) / Z

    A blank knows the visits before its own among the first n_read (B,) of its row: a prompt, what
    earlier steps wrote, and drafts. So all tokens of a step have the law of the step's beginning,
    and a draft that is checked has the law of one token a step.

    penalty  nats; below 0 known tokens become more likely
    exempt   (k,) tokens without a penalty, see checkpoint.set_exempt; None: there are none

    It is the presence_penalty of OpenAI's API and of vLLM, which do not count the prompt, and of
    llama.cpp, which does. In another order the prompt may as well stand behind a blank."""
    logits = float32_or_better(logits)
    V = logits.size(1)
    B, T = part.order.shape

    # The first of the known visits that has a token, (B, V); T for none
    visit = torch.arange(T, dtype=torch.int32, device=logits.device)
    visit = torch.where(visit < n_read.unsqueeze(1), visit, T)  # (B, T)
    token = part.idx.gather(1, part.order).clamp(0, V - 1)  # in a blank it may be anything
    since = torch.full((B, V), T, dtype=torch.int32, device=logits.device)
    since.scatter_reduce_(1, token, visit, 'amin')
    if exempt is not None:
        since.index_fill_(1, exempt, T)
    n_known = torch.minimum(cells.visit, n_read[cells.row])  # (m,)
    is_known = since[cells.row] < n_known.unsqueeze(1)  # (m, V)
    return logits.add_(is_known, alpha=-penalty)
