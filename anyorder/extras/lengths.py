"""How long is a blank? The likelihood of the text behind it, for each length that it may have."""

from functools import cache

import numpy as np
import torch

from anyorder.generation.drawing import invert_cdf
from anyorder.likelihood.conditional import logprobs_of_parts
from anyorder.seeds import keys_of, uniform

LONGEST = 32  # tokens of a [[?]], where nothing says more
NEAR = 16  # tokens that are read behind the gap: more tell no more, and make small models too sure


def choose_lengths(network, templates, seeds, rule='likely'):
    """Yield each Template with the lengths that are found for its blanks, one after another from
    the left, of row r by seeds[r]. A sample says of each length its probability, and the runner-up.

    rule  'likely': the likeliest length; 'draw': by these probabilities"""

    @cache  # samples of a prompt share its template
    def probabilities(template, lengths):
        return length_probabilities(network, template, lengths)

    for template, seed in zip(templates, seeds, strict=True):
        lengths = ()
        said = []
        for k in range(len(template.unknown)):
            n, p = probabilities(template, lengths)
            chosen = int(p.argmax())
            if rule == 'draw':
                u = uniform(keys_of([seed]), 'length of a blank', k)
                chosen = int(invert_cdf(p[None], u))
            entry = {'length': n[chosen], 'p': float(p[chosen])}
            if len(n) > 1:
                other = int(p.index_fill(0, torch.tensor(chosen), -1).argmax())
                entry |= {'runner_up': n[other], 'p_runner_up': float(p[other])}
            said.append(entry)
            lengths += (n[chosen],)
        yield template.with_lengths(lengths, said)


def length_probabilities(network, template, lengths=()):
    """Return the lengths n that the next blank of unknown length may have, and p(n | L, R).

        p(n | L, R) = p(R | L, gap of n) / sum_m p(R | L, gap of m)

    L is the known text before the blank, R the known text behind it: NEAR tokens, or what is before
    the next [[?]] or [[..]]. R is read left to right behind L, at its places behind the gap, see
    conditional_logprob: what stands in the gap is summed over. A network with a masked loss takes a
    pass for each token of R.

    lengths  of the blanks before it
    returns  (n [K] increasing, (K,) float64)"""
    size = network.config.block_size
    text = template.with_lengths(lengths)
    i = text.unknown[0]
    piece = text.pieces[i]
    least = piece.least
    most = piece.most or min(least + LONGEST - 1, max(least, size // 2))
    most = min(most, least + text.length - text.n_least)
    n = [m for m in range(least, most + 1) if piece.may_have(m)]
    # R, counted from the end of the gap: behind the longest one there is room for so much
    room = max(0, size - n[-1])
    behind = np.flatnonzero(text.is_known[text.starts[i + 1] : text.end_of(i)][:room])[:NEAR]
    if not behind.size:
        raise ValueError(
            f'nothing tells the length of a [[?]]: there is no text on the {room} positions '
            f'that its {n[-1]} tokens leave of {size}: give it fewer, as [[2-12]], or write '
            '[[n]]'
        )
    texts = [text.with_lengths([m]) for m in n]
    cut = max(0, texts[-1].starts[i + 1] + behind[-1] + 1 - size)  # of long texts the end is read
    rows = []
    for found in texts:
        end = found.starts[i + 1] - cut  # of the gap
        before = np.flatnonzero(found.is_known[cut:][:end])
        tokens = found.tokens[cut:][: end + behind[-1] + 1]
        rows.append((tokens, before, end + behind, None))
    logp = torch.stack([*logprobs_of_parts(network, rows)])
    return n, logp.cpu().double().softmax(0)
