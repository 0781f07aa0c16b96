"""What does a row of a table say? Nats a token, perplexity, bits a byte, shares, and the standard
error of each."""

import math

import numpy as np
import torch


def summarize(name, nats, counts, n_bytes):
    """Return the row of the table of some blocks: nats are summed, tokens counted, divided once.

    nats     (n,) float64, the total of every block
    counts   (n,) or int, its number of tokens
    n_bytes  of all blocks; None: tokens are not bytes, 0: there is no text"""
    n_blocks = len(nats)
    counts = torch.as_tensor(counts, dtype=torch.float64).expand(n_blocks)
    n_tokens = int(counts.sum())
    mean = float(nats.sum() / n_tokens)
    stderr = ratio_error(nats, counts)
    perplexity = math.exp(mean) if mean < 700 else math.inf  # where exp overflows
    bits = None
    if n_bytes:
        bits = mean * n_tokens / math.log(2) / n_bytes
    return {
        'estimate': name,
        'nats_per_token': mean,
        'stderr': stderr,
        'perplexity': perplexity,
        'perplexity_stderr': perplexity * stderr if stderr else stderr,
        'bits_per_byte': bits,
        'nats_per_block': mean * n_tokens / n_blocks,
        'nats_per_block_stderr': ratio_error(nats, torch.ones(n_blocks)),
        'blocks': n_blocks,
        'tokens': n_tokens,
        'bytes': n_bytes,
    }


def ratio_error(sums, counts):
    """Return the standard error of r = sum(sums) / sum(counts), (n,) both, over n blocks.

        sqrt(sum_b (sums[b] - r counts[b])^2 / (n - 1) / n) / mean(counts)

    The blocks count as independent. A single one has none, nor has an infinite sum: None."""
    n = len(sums)
    if n == 1 or not sums.isfinite().all():
        return None
    sums = sums.double()
    counts = counts.double()
    rest = sums - sums.sum() / counts.sum() * counts
    variance = rest.square().sum() / (n - 1) / n
    return float(variance.sqrt() / counts.mean())


def unigram_row(corpus, tokenizer):
    """Return a row of the table that a model with context has to beat: the entropy of the token
    frequencies of the whole set of a Corpus."""
    n = len(corpus.split.packed)
    counts = corpus.split.count(n)
    n_bytes = None
    if corpus.sizes is not None:
        n_bytes = int(corpus.sizes.sum())
    elif tokenizer.n_bytes is not None:
        n_bytes = int(counts @ tokenizer.n_bytes)
    N = corpus.blocks.size(1)
    nats = torch.tensor([entropy(counts) * n], dtype=torch.float64)
    row = summarize('unigram, whole set', nats, n, n_bytes)
    return row | {'blocks': n // N, 'nats_per_block': row['nats_per_token'] * N}


def entropy(counts):
    """Return the entropy of the frequencies that `counts` (n,) say, in nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def format_table(rows):
    """Return the rows of `summarize` as lines, of at most 80 columns unless a name is long.

    Where tokens are not bytes, the nats of a block stand in the place of bits a byte."""
    last = 'bits/byte', 'bits_per_byte', '', 4
    if all(row['bits_per_byte'] is None for row in rows):
        last = 'nats/block', 'nats_per_block', 'nats_per_block_stderr', 2
    columns = [
        ('nats/token', 'nats_per_token', 'stderr', 4),
        ('perplexity', 'perplexity', 'perplexity_stderr', 2),
        last,
    ]
    headings = [heading for heading, *_ in columns]
    lines = [['', *headings, 'blocks', 'tokens']]
    for row in rows:
        line = [row['estimate']]
        for _, name, error, digits in columns:
            line.append(figure(row[name], row.get(error), digits))
        lines.append([*line, str(row['blocks']), str(row['tokens'])])
    first, *widths = (max(map(len, column)) for column in zip(*lines))
    texts = []
    for name, *cells in lines:
        texts.append('  '.join([name.ljust(first), *map(str.rjust, cells, widths)]))
    return '\n'.join(texts)


# what is said below a table of a row that has a field
REMARKS = {
    'orders_stderr': '{estimate}: ± {orders_stderr:.4f} nats/token between its orders, which ± '
    'above leaves out',
    'spread': '{estimate}: standard deviation over the orders of a block {spread:.2f} nats',
    'sees': '{estimate}: no likelihood, as an order that asks for {sees} may tell of the tokens',
    'gain_stderr': 'gain of {estimate} over x 1, block by block: {gain:.4f} ± {gain_stderr:.4f} '
    'nats/token',
    'cut': '{estimate}: {cut:,.0f} of {tokens:,} true tokens are cut off, their probability is 0; '
    'the others have {kept_nats:.4f} nats each, in {passes:.1f} passes',
    'cost_stderr': '{estimate}: {cost:.4f} ± {cost_stderr:.4f} nats/token more than one token a '
    'step, paired by block, in {passes:.1f} passes',
    'rows': 'last word, greedy: {accuracy:.2%} ± {stderr:.2%} of {rows:,} passages',
    'word_perplexity_stderr': 'last word, perplexity: {word_perplexity:.2f} ± '
    '{word_perplexity_stderr:.2f}',
}


def remarks(rows):
    """Return the lines to print below the table of some rows."""
    lines = []
    for row in rows:
        for field, line in REMARKS.items():
            if row.get(field) is not None:
                lines.append(line.format(**row))
    return lines


def figure(value, error, digits):
    """Return a number and its standard error, if it has one, as a text; '-' for None.

    digits  behind the point; numbers from 10,000 on have none"""
    if value is None:
        return '-'
    if not value < 10_000:
        digits = 0
    text = f'{value:.{digits}f}'
    if error:
        text += f' ± {error:.{digits}f}'
    return text


def share_error(hits, n):
    """Return the standard error of a share.

    Two more hits and two more misses (Agresti and Coull 1998) let it never be 0."""
    share = (hits + 2) / (n + 4)
    return math.sqrt(share * (1 - share) / (n + 4))
