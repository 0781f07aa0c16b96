"""How good are samples? How varied they are, and their perplexity under a judge: a checkpoint, or GPT-2.

A sample is a list of tokens, and for each whether it counts: what was given is context alone."""

import statistics
from collections import defaultdict, namedtuple
from itertools import groupby

import numpy as np
import torch

from anyorder.checkpoint import Checkpoint
from anyorder.likelihood.nll import block_nll, check_finite
from anyorder.likelihood.tables import entropy, figure, summarize
from anyorder.machine.terminal import progress
from anyorder.orders import sample_order


def measure(samples, tokenizer, judge=None, device='cpu', n_each=1):
    """How varied the written part of samples is and, given a Judge, its perplexity in float32.

    samples  dicts with 'tokens', and 'step' of each token, -1 for what was given
    n_each   samples of one prompt, which follow each other
    returns  ({metric: value}, {name: line of the table})"""
    tokens, counted = (
        [s['tokens'] for s in samples],
        [[step >= 0 for step in s['step']] for s in samples],
    )
    metrics = text_metrics(tokens, counted)
    values = ', '.join(f'{metric} {value:.3f}' for metric, value in metrics.items())
    lines = {'metrics': f'{values} (of {tokenizer.name} tokens, nats)'}
    if judge:
        if judge.tokenizer.name != tokenizer.name:
            tokens, counted = zip(
                *(translate(*sample, tokenizer, judge.tokenizer) for sample in zip(tokens, counted))
            )
        verdict = generative_perplexity(judge.model.to(device), tokens, counted, n_each=n_each)
        metrics['judge'] = {'ckpt': judge.name, 'tokenizer': judge.tokenizer.name, **verdict}
        N, perplexity = (
            judge.model.config.block_size,
            figure(verdict['perplexity'], verdict['perplexity_stderr'], 2),
        )
        pieces = f', in pieces of {N} tokens' if max(map(len, tokens)) > N else ''
        lines['judge'] = (
            f'perplexity {perplexity} a {judge.tokenizer.name} token, left to right{pieces}, '
            f'under {judge.name}'
        )
    return metrics, lines


def text_metrics(samples, counted):
    """How varied token lists are where they are `counted`, lists of bools of the same lengths.

    entropy     of the token frequencies of a sample, nats, mean over samples where a token counts
    distinct_n  distinct n-grams over all n-grams, of all samples together; 1 if there are none
    repetition  the share of 4-grams that stand earlier in the same sample

    An n-gram counts if its last token does."""
    pairs, n_old = list(zip(samples, counted)), 0
    written = [[token for token, counts in zip(*pair) if counts] for pair in pairs]
    frequencies = [np.unique(tokens, return_counts=True)[1] for tokens in written if tokens]
    metrics = {'entropy': statistics.fmean(map(entropy, frequencies))}
    grams = {
        n: [gram for pair in pairs for gram, counts in n_grams(*pair, n) if counts]
        for n in (1, 2, 3, 4)
    }
    for n in (1, 2, 3):
        metrics[f'distinct_{n}'] = len(set(grams[n])) / len(grams[n]) if grams[n] else 1.0
    for pair in pairs:
        seen = set()
        for gram, counts in n_grams(*pair, 4):
            n_old += counts and gram in seen
            seen.add(gram)
    return metrics | {'repetition': n_old / max(1, len(grams[4]))}


def n_grams(tokens, counts, n):
    """[(n-gram, whether it counts)] of a sample."""
    return list(zip(zip(*(tokens[i:] for i in range(n))), counts[n - 1 :]))


def generative_perplexity(judge, samples, counted, batch_size=16, n_each=1):
    """Perplexity of token lists under a judge's network, left to right, where they are `counted` (lists of bools).

        exp(sum of nats / number of tokens), each token given all before it

    Samples longer than the judge's context are cut into pieces of its length. Standard errors are over prompts, each
    with `n_each` samples after each other.

    returns  {'nats_per_token', 'stderr', 'perplexity', 'perplexity_stderr', 'tokens'}"""
    N, by_length = judge.config.block_size, defaultdict(list)
    for r, (tokens, counts) in enumerate(zip(samples, counted)):
        for i in range(0, len(tokens), N):
            by_length[len(tokens[i : i + N])].append((r, tokens[i : i + N], counts[i : i + N]))
    nats, sizes = np.zeros(len(samples)), np.array([sum(counts) for counts in counted])
    with progress(total=sum(map(len, samples)), unit='token', desc='judge', leave=False) as bar:
        for pieces in by_length.values():  # pieces of one length go through together
            for i in range(0, len(pieces), batch_size):
                rows, blocks, counts = zip(*pieces[i : i + batch_size])
                blocks, orders = (
                    torch.tensor(blocks),
                    sample_order(len(blocks), len(blocks[0]), 'l2r'),
                )
                found = block_nll(judge, blocks, orders, batch_size, counted=torch.tensor(counts))
                np.add.at(nats, list(rows), check_finite(found).numpy())
                bar.update(blocks.numel())
    nats, sizes = (torch.from_numpy(x).view(-1, n_each).sum(1) for x in (nats, sizes))  # by prompt
    row = summarize('', nats, sizes, n_bytes=0)
    return {
        name: row[name]
        for name in ('nats_per_token', 'stderr', 'perplexity', 'perplexity_stderr', 'tokens')
    }


def translate(tokens, counted, source, target):
    """(tokens, counted) of the tokenizer `source` in tokens of `target`. A token counts if any byte of it was in a
    token that counted. End-of-text stays one token, if `target` has one."""
    new = []
    for is_end, part in groupby(
        zip(tokens, counted), key=lambda pair: pair[0] == source.eos is not None
    ):
        ids, flags = zip(*part)
        if is_end and target.eos is not None:
            new += [(target.eos, flag) for flag in flags]
            continue
        text, letters = decode_flagged(ids, flags, source)
        flags = [flag for letter, flag in zip(text, letters) for _ in letter.encode()]  # one a byte
        ids = target.encode(text)
        ends = np.cumsum(target.n_bytes[ids])
        new += [
            (token, any(flags[end - target.n_bytes[token] : end])) for token, end in zip(ids, ends)
        ]
    return tuple(zip(*new))


def decode_flagged(ids, flags, tokenizer):
    """(text of the tokens, for each of its letters whether a flagged token has a byte of it)."""
    n_read, text, letters = 0, '', []
    for flag, run in groupby(flags):
        n_read += len(list(run))
        before, text = text, tokenizer.decode(ids[:n_read])
        goes_on = before and (
            text == before or not text.startswith(before)
        )  # with the letter that the last run began
        if flag and goes_on:
            letters[-1] = True
        letters += [flag] * (len(text) - len(letters))
    return text, letters


# a network that reads left to right, and the tokenizer that it reads by
Judge = namedtuple('Judge', 'name model tokenizer')


def open_judge(name, tokenizer):
    """The Judge of this name of a checkpoint; gpt2, gpt2-medium, gpt2-large and gpt2-xl come from the hub. Raises
    ValueError for one that never read left to right, or has other tokens of its own than `tokenizer`."""
    checkpoint = Checkpoint(name)
    names = [
        (t.name, getattr(t, 'texts', None)) for t in (checkpoint.tokenizer, tokenizer)
    ]  # many are called 'own'
    if checkpoint.tokenizer.n_bytes is None and names[0] != names[1]:
        raise ValueError(
            f'{name} reads other tokens than the samples have, and no text: choose another --judge'
        )
    kind = checkpoint.order.kind
    if kind not in ('random', 'l2r') and not checkpoint.run.get('l2r_ratio'):
        raise ValueError(
            f'a judge reads left to right, {name} was trained in another order ({kind}) alone: choose '
            'another --judge'
        )
    return Judge(name, checkpoint.model(checkpoint.weights), checkpoint.tokenizer)
