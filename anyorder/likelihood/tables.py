"""What does a row of a table say? Nats a token, perplexity, bits a byte, shares, and the standard error of each."""

import math

import numpy as np
import torch


def summarize(name, nats, counts, n_bytes):
    """The row of the table of some blocks: nats are summed, tokens are counted, and one is divided by the other, once.

    nats     (n,) float64, the total of every block
    counts   (n,) or int, its number of tokens
    n_bytes  of all blocks; None: tokens are not bytes"""
    counts = torch.as_tensor(counts, dtype=torch.float64).expand(len(nats))
    nats_per_token, stderr = float(nats.sum() / counts.sum()), ratio_error(nats, counts)
    row = table_row(name, nats_per_token, stderr, len(nats), int(counts.sum()), n_bytes)
    return row | {'nats_per_block_stderr': ratio_error(nats, torch.ones(len(nats)))}


def ratio_error(sums, counts):
    """Standard error of r = sum(sums) / sum(counts), (n,) both, over n independent blocks; None for a single one.

    sqrt(sum_b (sums[b] - r counts[b])^2 / (n - 1) / n) / mean(counts)"""
    n, sums, counts = len(sums), sums.double(), counts.double()
    if n == 1:
        return None
    rest = sums - sums.sum() / counts.sum() * counts
    return float((rest.square().sum() / (n - 1) / n).sqrt() / counts.mean())


def token_counts(tokens, n_tokens):
    """How often each of n_tokens ids stands in a whole set."""
    chunks = (
        tokens[i : i + 2**24] for i in range(0, len(tokens), 2**24)
    )  # bincount copies what it counts
    return sum(np.bincount(chunk, minlength=n_tokens) for chunk in chunks)


def entropy(counts):
    """The entropy of the frequencies that the `counts` (n,) say, nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def unigram_row(tokens, tokenizer, block_size, sizes=None):
    """What a model with context has to beat: the entropy of the set's own token frequencies, as a row of the table.
    `sizes` (n_tokens,) are the bytes of text of the tokens, None as the tokenizer says."""
    counts = token_counts(tokens, tokenizer.n_tokens)
    n_bytes = None
    if sizes is not None:
        n_bytes = int(sizes.sum())
    elif tokenizer.n_bytes is not None:
        n_bytes = int(counts @ tokenizer.n_bytes)
    row = table_row(
        'unigram, whole set', entropy(counts), 0.0, len(tokens) // block_size, len(tokens), n_bytes
    )
    return row | {'nats_per_block': row['nats_per_token'] * block_size}


def perplexity(nats):
    """exp of nats per token; infinite for a model that diverged, where exp would overflow."""
    return math.exp(nats) if nats < 700 else math.inf


def table_row(name, nats, stderr, n_blocks, n_tokens, n_bytes):
    """A row of the table of `nats` a token and their standard error; `n_bytes` is None where tokens are not bytes."""
    bits_per_byte = None
    if n_bytes is not None:
        bits_per_byte = nats * n_tokens / math.log(2) / n_bytes if n_bytes else math.inf
    return {
        'estimate': name,
        'nats_per_token': nats,
        'stderr': stderr,
        'perplexity': perplexity(nats),
        'perplexity_stderr': stderr and perplexity(nats) * stderr,
        'bits_per_byte': bits_per_byte,
        'nats_per_block': nats * n_tokens / max(1, n_blocks),
        'nats_per_block_stderr': 0.0,
        'blocks': n_blocks,
        'tokens': n_tokens,
        'bytes': n_bytes,
    }


def format_table(rows):
    """The rows of `summarize` as lines, of at most 80 columns unless a name is long. Where tokens are not bytes, the
    nats of a block stand in the place of bits a byte."""
    no_bytes = all(row['bits_per_byte'] is None for row in rows)
    wide, narrow = ('nats/block', 'perplexity') if no_bytes else ('perplexity', 'bits/byte')
    m, n = (
        max(18 if no_bytes else 19, *(len(row['estimate']) for row in rows)),
        10 if no_bytes else 9,
    )
    lines = [f'{"":<{m}} {"nats/token":>16} {wide:>17} {narrow:>{n}} {"blocks":>6} {"tokens":>8}']
    for row in rows:
        nats = figure(row['nats_per_token'], row['stderr'], 4)
        ppl = figure(row['perplexity'], row['perplexity_stderr'] if not no_bytes else None, 2)
        bits = '-' if row['bits_per_byte'] is None else figure(row['bits_per_byte'], None, 4)
        if no_bytes:
            ppl, bits = figure(row['nats_per_block'], row['nats_per_block_stderr'], 2), ppl
        lines.append(
            f'{row["estimate"]:<{m}} {nats:>16} {ppl:>17} {bits:>{n}} {row["blocks"]:>6} {row["tokens"]:>8}'
        )
    return '\n'.join(lines)


def figure(value, error, digits):
    """A number and its standard error, if it has one, with so many digits behind the point; large ones have none."""
    digits = digits if value < 10_000 else 0
    return f'{value:.{digits}f} ± {error:.{digits}f}' if error else f'{value:.{digits}f}'


def share_error(hits, n):
    """Standard error of a share. Two more hits and two more misses (Agresti and Coull 1998) let it never be 0."""
    share = (hits + 2) / (n + 4)
    return math.sqrt(share * (1 - share) / (n + 4))
