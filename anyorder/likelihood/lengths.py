"""How long is a blank? The likelihood of the text behind it, for each length that it may have."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from anyorder.datasets import open_split
from anyorder.generation.drawing import invert_cdf
from anyorder.generation.unmasking import confidence
from anyorder.likelihood.nll import score_visits
from anyorder.machine.files import read_text, reading
from anyorder.orders import given_first
from anyorder.seeds import keys_of, uniform
from anyorder.tokens.prompts import encode
from anyorder.tokens.tokenizers import split_documents
from configurator import check_choice, home

LONGEST = 32  # tokens of a [[?]], where nothing says more
NEAR = 16  # tokens that are read behind the gap: more tell no more, and make small models too sure
N_READ = 1 << 18  # tokens of the training set whose words are counted


@dataclass(frozen=True)
class Lengths:
    """How the lengths of blanks are chosen, one after another from the left.

        p(n | L, R) = prior(n) p(R | L, gap of n) / sum_m prior(m) p(R | L, gap of m)

    L is the known text before the blank, R the known text behind it: NEAR tokens, or what is before the next [[?]] or
    [[..]]. L is given in reading order and R is read behind it, left to right, at its places behind the gap: what
    stands in the gap is summed over. A network with a masked loss takes a pass for each token of R.

    rule   'likely': the likeliest length; 'draw': by these probabilities; 'confidence': in place of p(R | L, gap of n)
           stands the mean over the gap of max_v p(v | L, R), the first step (CAL, Liu et al. 2026, arXiv 2602.00476,
           who divide it by its mean at each length: a prior)
    prior  weights of the lengths 1, 2, ...; None: all alike"""

    rule: str = 'likely'
    prior: tuple | None = None

    def __post_init__(self):
        check_choice('blank_length', self.rule, 'likely', 'draw', 'confidence')
        weights = self.prior if isinstance(self.prior, tuple) else ()
        good = all(
            type(w) in (int, float) and 0 <= w < 1e300 for w in weights
        )  # below what a float holds
        if self.prior is not None and not (good and any(weights)):
            raise ValueError(
                'length_prior must hold weights of the lengths 1, 2, ..., numbers from 0, not all 0, got '
                f'{self.prior!r:.60}'
            )

    def choose(self, network, templates, seeds):
        """Yields (lengths, what a sample says of them) of each Template, of row r by seeds[r]. A sample says of each
        of its blanks the length with its probability, and the runner-up."""
        probabilities = cache(
            lambda *at: self.probabilities(network, *at)
        )  # samples of a prompt share its template
        for template, seed in zip(templates, seeds, strict=True):
            lengths, said = (), []
            for _ in template.unknown:
                n, p = probabilities(template, lengths)
                best = p.argsort(descending=True, stable=True).tolist()
                if self.rule == 'draw':
                    chosen = int(
                        invert_cdf(
                            p[None], uniform(keys_of([seed]), 'length of a blank', len(lengths))
                        )
                    )
                    best = [chosen, *(k for k in best if k != chosen)]
                said.append({'length': n[best[0]], 'p': float(p[best[0]])})
                if len(n) > 1:
                    said[-1] |= {'runner_up': n[best[1]], 'p_runner_up': float(p[best[1]])}
                lengths += (n[best[0]],)
            yield lengths, said

    def probabilities(self, network, template, lengths):
        """(the lengths n that the next blank of unknown length may have, p(n | L, R) float64 of each)."""
        i, size = template.unknown[len(lengths)], network.config.block_size
        (least, most), sizes = template.pieces[i][0], template.sizes(lengths)
        if (most or 0) >= size:
            raise ValueError(
                f'a blank that finds its length has at most {size - 1} tokens, one less than the model, '
                f'got {most}: choose fewer'
            )
        most = most or min(LONGEST if self.prior is None else len(self.prior), size // 2)
        most = min(most, least + template.length - sum(sizes))
        n = [
            m
            for m in range(least, most + 1)
            if self.prior is None or m <= len(self.prior) and self.prior[m - 1]
        ]
        if not n:
            raise ValueError(
                f'length_prior gives no weight to a length of {least} to {most} tokens'
            )
        rows, room = [], size - n[-1]
        for tokens, known, _, starts, _ in (template.lay_out((*lengths, m)) for m in n):
            start, first = starts[i : i + 2]  # of the gap and of what follows
            behind = [
                p for p in range(first, min(starts[template.end_of(i)], first + room)) if known[p]
            ][:NEAR]
            if not behind:
                raise ValueError(
                    f'nothing tells the length of a [[?]]: there is no text on the {room} positions that '
                    f'its {n[-1]} tokens leave of {size}: give it fewer, as [[2-12]], or write [[n]]'
                )
            rows.append((tokens[: behind[-1] + 1], known[: behind[-1] + 1], start))
        logp = gap_scores(network, rows, n, self.rule == 'confidence')
        if self.prior is not None:
            logp = logp + torch.tensor([self.prior[m - 1] for m in n], dtype=torch.float64).log()
        return n, logp.softmax(0)


@torch.no_grad()
def gap_scores(network, rows, n, by_confidence=False):
    """(K,) float64: log p(R | L, gap of n) of K rows (tokens, known, start of the gap), whose gaps have n [K] tokens;
    or the log of the mean over the gap of max_v p(v | L, R). Of long rows the model reads the end."""
    cut = max(0, max(len(tokens) for tokens, *_ in rows) - network.config.block_size)
    n_visits, n = torch.tensor([len(tokens) - cut for tokens, *_ in rows]), torch.tensor(n)
    idx, known = (
        pad_sequence([torch.tensor(x[cut:]) for x in lists], batch_first=True)
        for lists in [*zip(*rows)][:2]
    )
    starts = torch.tensor([start - cut for *_, start in rows])
    order, n_known, _ = given_first(torch.arange(idx.size(1)).repeat(len(rows), 1), known, n_visits)
    n_right, idx, order = (
        int(known[0, starts[0] :].sum()),
        idx.to(network.device),
        order.to(network.device),
    )
    if not by_confidence:
        return (
            -score_visits(network, idx, order, n_known - n_right, n_right, n_visits)
            .cpu()
            .double()
            .sum(1)
        )
    row, column = (torch.arange(n.max()) < n.unsqueeze(1)).nonzero(
        as_tuple=True
    )  # (m,) the cells of the gaps
    column += (starts - n_known + n_right)[row]  # behind the blanks before the gap
    picked = row.to(network.device), column.to(network.device)
    logits = network.predict(
        idx, order, n_known, int(column.max()) + 1, n_visits=n_visits, picked=picked
    )  # (m, V)
    return (
        torch.zeros(len(rows))
        .double()
        .index_add(0, row, confidence(logits, 'top_prob').cpu().double())
        / n
    ).log()


def said(length):
    """What a sample says of a length, in words."""
    other = (
        f', runner-up {length["runner_up"]}: {length["p_runner_up"]:.2f}'
        if 'runner_up' in length
        else ''
    )
    return f'blank of {length["length"]} tokens (p {length["p"]:.2f}{other})'


def read_prior(prior, checkpoint):
    """The prior of Lengths: None for 'uniform', the lengths of the words of the training set for 'words', each with the
    blank before it; else a list, array or tensor of weights, or the JSON file of a list."""
    if not isinstance(prior, str):
        prior = prior.tolist() if hasattr(prior, 'tolist') else prior  # an array or a tensor
        return tuple(prior) if isinstance(prior, list) else prior
    if prior == 'uniform':
        return None
    if prior != 'words':
        prior = home(prior)
        if not os.path.isfile(prior):
            raise ValueError(
                f"length_prior must be 'uniform', 'words', or a JSON file with weights, got {prior!r}"
            )
        with reading(
            prior,
            'weights of lengths',
            'it must be a JSON list of the weights of the lengths 1, 2, ...',
        ):
            return tuple(json.loads(read_text(prior)))
    if 'dataset' not in checkpoint.run:
        raise ValueError(
            f'{checkpoint.name} does not say its training set, whose words are wanted: give a JSON file'
        )
    split, _ = open_split(
        checkpoint.run.get('data_dir', 'data'), checkpoint.run['dataset'], 'train'
    )
    (tokens, _), tokenizer = (
        split.unpack(np.array(split.packed.ravel()[:N_READ])),
        checkpoint.tokenizer,
    )
    words = Counter(
        word
        for ids in split_documents(tokens, tokenizer.eos)
        for word in tokenizer.decode(ids).split()
    )
    lengths = Counter()
    for word, n in words.items():
        lengths[len(encode(' ' + word, tokenizer))] += n
    return tuple(lengths[n] for n in range(1, max(lengths) + 1))
