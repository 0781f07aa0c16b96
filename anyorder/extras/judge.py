"""How good are samples? How varied they are, and their perplexity under a judge: a checkpoint, or
GPT-2.

A sample is a list of tokens, and for each whether it counts: what was given is context alone."""

import statistics
from collections import namedtuple
from itertools import groupby

import numpy as np
import torch

from anyorder.checkpoint import Checkpoint
from anyorder.likelihood.nll import check_finite, read
from anyorder.likelihood.tables import entropy, figure, summarize
from anyorder.machine.devices import widest
from anyorder.machine.terminal import progress
from anyorder.tokens.shown import token_texts


def measure(samples, tokenizer, judge=None, device='cpu', n_each=1):
    """Measure how varied the written part of samples is and, given a Judge, its perplexity.

    samples  dicts with 'tokens', and 'step' of each token, -1 for what was given
    n_each   samples of one prompt, which follow each other
    returns  ({metric: value}, {name: line of the table})"""
    tokens = [sample['tokens'] for sample in samples]
    counted = [(np.array(sample['step']) >= 0).tolist() for sample in samples]
    metrics = text_metrics(tokens, counted)
    values = ', '.join(f'{metric} {value:.3f}' for metric, value in metrics.items())
    lines = {'metrics': f'{values} (of {tokenizer.name} tokens, nats)'}
    if not judge:
        return metrics, lines

    if judge.tokenizer.identity != tokenizer.identity:
        pairs = zip(tokens, counted)
        tokens, counted = zip(*(translate(*pair, tokenizer, judge.tokenizer) for pair in pairs))
    verdict = generative_perplexity(judge.model.to(device), tokens, counted, n_each=n_each)
    metrics['judge'] = {'ckpt': judge.name, 'tokenizer': judge.tokenizer.name, **verdict}
    perplexity = figure(verdict['perplexity'], verdict['perplexity_stderr'], 2)
    N = judge.model.config.block_size
    pieces = ''
    if max(map(len, tokens)) > N:
        pieces = f', in pieces of {N} tokens'
    lines['judge'] = (
        f'perplexity {perplexity} a {judge.tokenizer.name} token, left to right{pieces}, '
        f'under {judge.name}'
    )
    return metrics, lines


def text_metrics(samples, counted):
    """Say how varied token lists are where they are `counted`, lists of bools of the same lengths.

    entropy     of the token frequencies of a sample, nats, mean over samples where a token counts
    distinct_n  distinct n-grams over all n-grams, of all samples together; 1 if there are none
    repetition  the share of 4-grams that stand earlier in the same sample

    An n-gram counts if its last token does."""
    entropies = []
    for tokens, counts in zip(samples, counted):
        _, frequencies = np.unique(np.array(tokens)[counts], return_counts=True)
        if len(frequencies):
            entropies.append(entropy(frequencies))
    metrics = {'entropy': statistics.fmean(entropies)}
    for n in (1, 2, 3, 4):
        grams = []  # that count
        n_old = 0
        for tokens, counts in zip(samples, counted):
            seen = set()
            of_one = zip(*(tokens[i:] for i in range(n)))
            for gram, does_count in zip(of_one, counts[n - 1 :]):
                if does_count:
                    grams.append(gram)
                    n_old += gram in seen
                seen.add(gram)
        if n < 4:
            metrics[f'distinct_{n}'] = len({*grams}) / len(grams) if grams else 1.0
    return metrics | {'repetition': n_old / max(1, len(grams))}


def generative_perplexity(network, samples, counted, n_each=1):
    """Return the perplexity of token lists under the network of a judge, left to right.

        exp(sum of nats / number of tokens), each token given all before it

    Sums are over what is `counted` (lists of bools), in float32. Samples longer than the judge's
    context are cut into pieces of its length. Standard errors are over prompts, each with `n_each`
    samples after each other.

    returns  {'nats_per_token', 'stderr', 'perplexity', 'perplexity_stderr', 'tokens'}"""
    N = network.config.block_size
    rows = []
    for r, (tokens, flags) in enumerate(zip(samples, counted)):
        for i in range(0, len(tokens), N):
            text = tokens[i : i + N]
            asked = np.flatnonzero(flags[i : i + N]).tolist()
            if asked:
                rows.append((r, (text, range(len(text)), asked)))
    rows.sort(key=lambda row: -len(row[1][0]))
    numbers, pieces = zip(*rows)
    nats = torch.zeros(len(samples), dtype=torch.float64)
    found = zip(numbers, read(network, pieces, 16 * N))  # texts of a pass, or more short ones
    with progress(found, total=len(rows), unit='text', desc='judge', leave=False) as bar:
        for r, nll in bar:
            nats[r] += check_finite(nll.sum(dtype=widest(network.device))).cpu()
    sizes = torch.tensor([*map(sum, counted)])
    by_prompt = [x.view(-1, n_each).sum(1) for x in (nats, sizes)]
    row = summarize('', *by_prompt, n_bytes=0)
    names = ('nats_per_token', 'stderr', 'perplexity', 'perplexity_stderr', 'tokens')
    return {name: row[name] for name in names}


def translate(tokens, counted, source, target):
    """Return (tokens, counted) of the tokenizer `source` in tokens of `target`.

    A token counts if any byte of it was in a token that counted. End-of-text stays one token, if
    `target` has one."""

    def is_end(pair):
        return pair[0] == source.eos is not None

    new = []
    for ends, part in groupby(zip(tokens, counted), key=is_end):
        ids, flags = zip(*part)
        if ends and target.eos is not None:
            new += [(target.eos, flag) for flag in flags]
            continue
        texts = token_texts(ids, source)
        letters = []  # whether each counts
        counts = False
        for text, flag in zip(texts, flags):
            counts |= flag
            letters += [counts for _ in text]
            counts &= not text  # which a letter of several tokens has at its last
        spans = target.spans(''.join(texts))
        new += [(token, any(letters[start:end])) for token, start, end in spans]
    return tuple(zip(*new))


# a network that reads left to right, and the tokenizer that it reads by
Judge = namedtuple('Judge', 'name model tokenizer')


def open_judge(name, tokenizer):
    """Return the Judge of this name of a checkpoint.

    gpt2, gpt2-medium, gpt2-large and gpt2-xl come from the hub. Raises ValueError for one that
    never read left to right, or has other tokens of its own than `tokenizer`."""
    checkpoint = Checkpoint(name)
    own = checkpoint.tokenizer
    if own.texts and own.identity != tokenizer.identity:
        raise ValueError(
            f'{name} reads other tokens than the samples have, and no text: choose another judge'
        )
    kind = checkpoint.order.kind
    if kind not in ('random', 'l2r') and not checkpoint.run.get('l2r_ratio'):
        raise ValueError(
            f'a judge reads left to right, {name} was trained in another order ({kind}) alone: '
            'choose another judge'
        )
    return Judge(name, checkpoint.model(), own)
