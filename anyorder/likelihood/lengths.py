"""How long is a blank? The likelihood of the text behind it, for each length that it may have."""

from dataclasses import dataclass
from functools import cache

import torch

from anyorder.generation.drawing import invert_cdf
from anyorder.likelihood.nll import read
from anyorder.seeds import keys_of, uniform
from configurator import check_choice

LONGEST = 32  # tokens of a [[?]], where nothing says more
NEAR = 16  # tokens that are read behind the gap: more tell no more, and make small models too sure


@dataclass(frozen=True)
class Lengths:
    """How the lengths of blanks are chosen, one after another from the left.

        p(n | L, R) = p(R | L, gap of n) / sum_m p(R | L, gap of m)

    L is the known text before the blank, R the known text behind it: NEAR tokens, or what is before
    the next [[?]] or [[..]]. L is given in reading order and R is read behind it, left to right, at
    its places behind the gap: what stands in the gap is summed over. A network with a masked loss
    takes a pass for each token of R.

    rule  'likely': the likeliest length; 'draw': by these probabilities"""

    rule: str = 'likely'

    def __post_init__(self):
        check_choice('blank_length', self.rule, 'likely', 'draw')

    def choose(self, network, templates, seeds):
        """Yield each Template with the lengths that are found for its blanks, of row r by seeds[r].

        A sample says of each of its blanks the length with its probability, and the runner-up."""

        @cache  # samples of a prompt share its template
        def probabilities(template, lengths):
            return self.probabilities(network, template, lengths)

        for template, seed in zip(templates, seeds, strict=True):
            lengths = ()
            said = []
            for k in range(len(template.unknown)):
                n, p = probabilities(template, lengths)
                chosen = int(p.argmax())
                if self.rule == 'draw':
                    u = uniform(keys_of([seed]), 'length of a blank', k)
                    chosen = int(invert_cdf(p[None], u))
                entry = {'length': n[chosen], 'p': float(p[chosen])}
                if len(n) > 1:
                    other = int(p.index_fill(0, torch.tensor(chosen), -1).argmax())
                    entry |= {'runner_up': n[other], 'p_runner_up': float(p[other])}
                said.append(entry)
                lengths += (n[chosen],)
            yield template.with_lengths(lengths, said) if lengths else template

    def probabilities(self, network, template, lengths):
        """Return the lengths n that the next blank of unknown length may have, and p(n | L, R).

        lengths  of the blanks before it
        returns  (n [K] increasing, (K,) float64)"""
        size = network.config.block_size
        text = template.with_lengths(lengths)
        piece = text.pieces[text.unknown[0]]
        most = longest_of(piece, size)
        most = min(most, piece.least + text.length - text.n_least)
        n = [m for m in range(piece.least, most + 1) if piece.may_have(m)]
        room = size - n[-1]
        rows = [row_of(text, m, room) for m in n]
        if None in rows:
            raise ValueError(
                f'nothing tells the length of a [[?]]: there is no text on the {room} positions '
                f'that its {n[-1]} tokens leave of {size}: give it fewer, as [[2-12]], or write '
                '[[n]]'
            )
        return n, gap_scores(network, rows).softmax(0)


def longest_of(piece, size):
    """Return the most tokens of a blank that finds its length, for `size` positions."""
    least = piece.least
    most = piece.most
    if (most or least) >= size:
        raise ValueError(
            f'a blank that finds its length has at most {size - 1} tokens, one less than the '
            f'model, got {most or least}: choose fewer'
        )
    return most or min(least + LONGEST - 1, max(least, size // 2))


def row_of(text, n, room):
    """Return a row of gap_scores: the text up to the last token that tells whether the next blank
    of unknown length has n tokens.

    room     positions behind the gap that the model has
    returns  (tokens, known, start of the gap); None if no text stands there"""
    i = text.unknown[0]
    text = text.with_lengths([n])
    first = text.starts[i + 1]  # of what follows the gap
    end = min(text.end_of(i), first + room)
    behind = [p for p in range(first, end) if text.known[p]][:NEAR]
    if not behind:
        return None
    n = behind[-1] + 1
    return text.tokens[:n], text.known[:n], text.starts[i]


def gap_scores(network, rows):
    """Return (K,) float64: log p(R | L, gap) of K rows (tokens, known, start of the gap).

    Of long rows the model reads the end."""
    cut = max(0, max(len(tokens) for tokens, *_ in rows) - network.config.block_size)
    asked = []
    for tokens, known, start in rows:
        known = known[cut:]
        order = sorted(range(len(known)), key=lambda p: not known[p])  # known ones, then blanks
        behind = range(sum(known[: start - cut]), sum(known))
        asked.append((tokens[cut:], order, behind))
    return -torch.stack([*read(network, asked)]).cpu().double().sum(1)


def said(length):
    """Return what a sample says of a length, in words."""
    other = ''
    if 'runner_up' in length:
        other = f', runner-up {length["runner_up"]}: {length["p_runner_up"]:.2f}'
    return f'blank of {length["length"]} tokens (p {length["p"]:.2f}{other})'
