"""
What does a row of a table say? Nats of blocks as nats a token, perplexity and bits a byte, shares, and the standard error of each.
"""
import math

import numpy as np
import torch

from data.blocks import token_counts


def summarize(name, nats, counts, n_bytes):
    """One row of the table from nats (n,), the float64 total of every block, and its number of tokens (n,) or int: nats are summed, tokens
    counted, divided once."""
    counts = torch.as_tensor(counts, dtype=torch.float64).expand(len(nats))
    return table_row(name, float(nats.sum() / counts.sum()), ratio_error(nats, counts), len(nats), int(counts.sum()), n_bytes)


def ratio_error(sums, counts):
    """Standard error of sum(sums) / sum(counts) over n independent blocks, (n,) each; None for a single one."""
    n, sums, counts = len(sums), sums.double(), counts.double()
    rest = sums - sums.sum() / counts.sum() * counts
    return float((rest.square().sum() / (n - 1) / n).sqrt() / counts.mean()) if n > 1 else None


def unigram_row(tokens, tokenizer, block_size):
    """What a model with context has to beat: the entropy of the set's own token frequencies, as a row of the table."""
    counts = token_counts(tokens, tokenizer.n_tokens)
    p = counts[counts > 0] / counts.sum()
    nats = float(-(p * np.log(p)).sum())
    return table_row('unigram, whole set', nats, 0.0, len(tokens) // block_size, len(tokens), int(counts @ tokenizer.n_bytes))


def perplexity(nats):
    """exp of nats per token; infinite for a model that diverged, where exp would overflow."""
    return math.exp(nats) if nats < 700 else math.inf


def table_row(name, nats, stderr, n_blocks, n_tokens, n_bytes):
    """`n_bytes` is None where tokens are not text."""
    bits = nats * n_tokens / math.log(2)
    bits_per_byte = None if n_bytes is None else bits / n_bytes if n_bytes else math.inf
    return {'estimate': name, 'nats_per_token': nats, 'stderr': stderr, 'perplexity': perplexity(nats),
            'perplexity_stderr': stderr and perplexity(nats) * stderr, 'bits_per_byte': bits_per_byte,
            'blocks': n_blocks, 'tokens': n_tokens, 'bytes': n_bytes}


def format_table(rows):
    """The rows of `summarize` as lines of at most 80 columns."""
    def figure(value, error, digits):
        digits = digits if value < 10_000 else 0
        return f'{value:.{digits}f}' + (f' ± {error:.{digits}f}' if error else '')
    lines = [f"{'':<19} {'nats/token':>16} {'perplexity':>17} {'bits/byte':>9} {'blocks':>6} {'tokens':>8}"]
    for r in rows:
        nats, ppl = figure(r['nats_per_token'], r['stderr'], 4), figure(r['perplexity'], r['perplexity_stderr'], 2)
        bits = '-' if r['bits_per_byte'] is None else figure(r['bits_per_byte'], None, 4)
        lines.append(f"{r['estimate']:<19} {nats:>16} {ppl:>17} {bits:>9} {r['blocks']:>6} {r['tokens']:>8}")
    return '\n'.join(lines)


def share_error(hits, n):
    """Standard error of a share, from two more hits and two more misses (Agresti and Coull 1998): not 0 when all or none hit."""
    share = (hits + 2) / (n + 4)
    return math.sqrt(share * (1 - share) / (n + 4))
