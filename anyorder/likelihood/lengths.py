"""How long is a blank? The likelihood of the text behind it, for each length that it may have."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from anyorder.datasets import names_of_run, open_split
from anyorder.generation.drawing import invert_cdf
from anyorder.generation.unmasking import confidence
from anyorder.likelihood.nll import score_visits
from anyorder.machine.files import read_text, reading
from anyorder.orders import given_first
from anyorder.seeds import keys_of, uniform
from anyorder.tokens.tokenizers import split_documents
from configurator import check_choice, home

LONGEST = 32  # tokens of a [[?]], where nothing says more
NEAR = 16  # tokens that are read behind the gap: more tell no more, and make small models too sure
N_READ = 1 << 18  # tokens of the training set whose words are counted


@dataclass(frozen=True)
class Lengths:
    """How the lengths of blanks are chosen, one after another from the left.

        p(n | L, R) = prior(n) p(R | L, gap of n) / sum_m prior(m) p(R | L, gap of m)

    L is the known text before the blank, R the known text behind it: NEAR tokens, or what is before
    the next [[?]] or [[..]]. L is given in reading order and R is read behind it, left to right, at
    its places behind the gap: what stands in the gap is summed over. A network with a masked loss
    takes a pass for each token of R.

    rule   'likely': the likeliest length; 'draw': by these probabilities; 'confidence': in place of
           p(R | L, gap of n) stands the mean over the gap of max_v p(v | L, R), the first step
           (CAL, Liu et al. 2026, arXiv 2602.00476, who divide it by its mean at each length: a
           prior)
    prior  weights of the lengths 1, 2, ...; None: all alike"""

    rule: str = 'likely'
    prior: tuple | None = None

    def __post_init__(self):
        check_choice('blank_length', self.rule, 'likely', 'draw', 'confidence')
        if self.prior is not None and not are_weights(self.prior):
            raise ValueError(
                'length_prior must hold weights of the lengths 1, 2, ..., numbers from 0, not all '
                f'0, got {self.prior!r:.60}'
            )

    def choose(self, network, templates, seeds):
        """Yield (lengths, what a sample says of them) of each Template, of row r by seeds[r].

        A sample says of each of its blanks the length with its probability, and the runner-up."""

        @cache  # samples of a prompt share its template
        def probabilities(template, lengths):
            return self.probabilities(network, template, lengths)

        for template, seed in zip(templates, seeds, strict=True):
            lengths = ()
            said = []
            for k in range(len(template.unknown)):
                n, p = probabilities(template, lengths)
                best = p.argsort(descending=True, stable=True).tolist()
                if self.rule == 'draw':
                    u = uniform(keys_of([seed]), 'length of a blank', k)
                    drawn = int(invert_cdf(p[None], u))
                    best = [drawn, *(j for j in best if j != drawn)]
                said.append(entry_of(n, p, best))
                lengths += (n[best[0]],)
            yield lengths, said

    def probabilities(self, network, template, lengths):
        """Return the lengths n that the next blank of unknown length may have, and p(n | L, R).

        lengths  of the blanks before it
        returns  (n [K] increasing, (K,) float64)"""
        size = network.config.block_size
        least, most = self.bounds(template, lengths, size)
        i = template.unknown[len(lengths)]
        n = [m for m in range(least, most + 1) if template.may_have(i, m) and self.weight(m)]
        if not n:
            raise ValueError(
                f'length_prior gives no weight to a length of {least} to {most} tokens'
            )
        room = size - n[-1]
        rows = [row_of(template, (*lengths, m), room) for m in n]
        if None in rows:
            raise ValueError(
                f'nothing tells the length of a [[?]]: there is no text on the {room} positions '
                f'that its {n[-1]} tokens leave of {size}: give it fewer, as [[2-12]], or write '
                '[[n]]'
            )
        logp = gap_scores(network, rows, n, self.rule == 'confidence')
        if self.prior is not None:
            weights = torch.tensor([self.weight(m) for m in n], dtype=torch.float64)
            logp = logp + weights.log()
        return n, logp.softmax(0)

    def bounds(self, template, lengths, size):
        """Return the least and the most tokens of the next blank, for `size` positions."""
        i = template.unknown[len(lengths)]
        (least, most), _ = template.pieces[i]
        if (most or least) >= size:
            raise ValueError(
                f'a blank that finds its length has at most {size - 1} tokens, one less than the '
                f'model, got {most or least}: choose fewer'
            )
        if not most:
            longest = LONGEST if self.prior is None else len(self.prior)
            most = min(least + longest - 1, max(least, size // 2))
        left = template.length - sum(template.sizes(lengths))
        return least, min(most, least + left)

    def weight(self, n):
        """Return the weight of a length before anything is read."""
        if self.prior is None:
            return 1
        if n > len(self.prior):
            return 0
        return self.prior[n - 1]


def are_weights(prior):
    """Return whether a prior is a tuple of numbers from 0, below what a float holds, not all 0."""
    if not isinstance(prior, tuple):
        return False
    are_numbers = all(type(weight) in (int, float) and 0 <= weight < 1e300 for weight in prior)
    return are_numbers and any(prior)


def entry_of(n, p, best):
    """Return what a sample says of a length: n [K] with p (K,), `best` their places in order."""
    first, *others = best
    entry = {'length': n[first], 'p': float(p[first])}
    if others:
        second = others[0]
        entry |= {'runner_up': n[second], 'p_runner_up': float(p[second])}
    return entry


def row_of(template, lengths, room):
    """Return a row of gap_scores: the text up to the last token that tells the last of `lengths`.

    room     positions behind the gap that the model has
    returns  (tokens, known, start of the gap); None if no text stands there"""
    i = template.unknown[len(lengths) - 1]
    text = template.lay_out(lengths)
    first = text.starts[i + 1]  # of what follows the gap
    end = min(text.starts[template.end_of(i)], first + room)
    behind = [p for p in range(first, end) if text.known[p]][:NEAR]
    if not behind:
        return None
    n = behind[-1] + 1
    return text.tokens[:n], text.known[:n], text.starts[i]


@torch.no_grad()
def gap_scores(network, rows, n, by_confidence=False):
    """Return (K,) float64: log p(R | L, gap of n) of K rows, whose gaps have n [K] tokens.

    Of long rows the model reads the end.

    rows           [(tokens, known, start of the gap)]
    by_confidence  the log of the mean over the gap of max_v p(v | L, R) in place of it"""
    longest = max(len(tokens) for tokens, _, _ in rows)
    cut = max(0, longest - network.config.block_size)
    n_visits = torch.tensor([len(tokens) - cut for tokens, _, _ in rows])
    starts = torch.tensor([start - cut for _, _, start in rows])
    tokens = [torch.tensor(tokens[cut:]) for tokens, _, _ in rows]
    known = [torch.tensor(known[cut:]) for _, known, _ in rows]
    idx = pad_sequence(tokens, batch_first=True)  # (K, T)
    known = pad_sequence(known, batch_first=True)
    left_to_right = torch.arange(idx.size(1)).repeat(len(rows), 1)
    order, n_known, _ = given_first(left_to_right, known, n_visits)

    n_right = int(known[0, starts[0] :].sum())
    idx = idx.to(network.device)
    order = order.to(network.device)
    if not by_confidence:
        nll = score_visits(network, idx, order, n_known - n_right, n_right, n_visits)
        return -nll.cpu().double().sum(1)

    # The gap stands behind the blanks before it
    n = torch.tensor(n)
    is_gap = torch.arange(n.max()) < n.unsqueeze(1)
    row, column = is_gap.nonzero(as_tuple=True)  # (m,)
    column += (starts - n_known + n_right)[row]
    picked = row.to(network.device), column.to(network.device)
    n_targets = int(column.max()) + 1
    logits = network.predict(idx, order, n_known, n_targets, n_visits=n_visits, picked=picked)
    sure = confidence(logits, 'top_prob').cpu().double()
    sums = torch.zeros(len(rows)).double().index_add(0, row, sure)
    return (sums / n).log()


def said(length):
    """Return what a sample says of a length, in words."""
    other = ''
    if 'runner_up' in length:
        other = f', runner-up {length["runner_up"]}: {length["p_runner_up"]:.2f}'
    return f'blank of {length["length"]} tokens (p {length["p"]:.2f}{other})'


def read_prior(prior, checkpoint):
    """Return the prior of Lengths that an option names, or None for 'uniform'.

    prior  'words', the lengths of the words of the training set, each with the blank before it; a
           list, array or tensor of weights, or the JSON file of a list"""
    if hasattr(prior, 'tolist'):  # an array or a tensor
        prior = prior.tolist()
    if isinstance(prior, list):
        return tuple(prior)
    if not isinstance(prior, str):
        return prior
    if prior == 'uniform':
        return None
    if prior == 'words':
        return word_lengths(checkpoint)
    path = home(prior)
    if not os.path.isfile(path):
        raise ValueError(
            f"length_prior must be 'uniform', 'words', or a JSON file with weights, got {path!r}"
        )
    rule = 'it must be a JSON list of the weights of the lengths 1, 2, ...'
    with reading(path, 'weights of lengths', rule):
        return tuple(json.loads(read_text(path)))


def word_lengths(checkpoint):
    """Return how many words of the training set have 1, 2, ... tokens, with a blank before each; of
    several sets, in a token that is read."""
    names = names_of_run(checkpoint.run)
    if not names:
        raise ValueError(
            f'{checkpoint.name} does not say its training set, whose words are wanted: give a JSON '
            'file'
        )
    counts = Counter()
    for name in names:
        of_set, n_tokens = words_of_set(name, checkpoint)
        if len(names) > 1:
            share = checkpoint.entries['sets'][name]['share']
            of_set = {n: share * count / n_tokens for n, count in of_set.items()}
        counts.update(of_set)
    return tuple(counts[n] for n in range(1, max(counts) + 1))


def words_of_set(name, checkpoint):
    """Return ({number of tokens: how many words of a training set have it}, tokens that were
    read)."""
    split, _ = open_split(checkpoint.run.get('data_dir', 'data'), name, 'train')
    packed = np.array(split.packed.ravel()[:N_READ])
    tokens, _ = split.unpack(packed)
    tokenizer = checkpoint.tokenizer
    words = Counter()
    for ids in split_documents(tokens, tokenizer.eos):
        words.update(tokenizer.decode(ids).split())
    counts = Counter()
    for word, n in words.items():
        counts[len(tokenizer.shown_ids(' ' + word))] += n
    return counts, len(tokens)
