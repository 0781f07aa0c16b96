"""
Likelihood of a text under a trained model: left to right, and the any-order bound.

    python eval_ppl.py --ckpt=out/ckpt.pt
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=shakespeare,notes.txt --n_orders=4 --out=ppl.json

A set is cut once into consecutive blocks of block_size, its tail dropped. The orders of a block are a function of the seed and
of its number among the blocks evaluated, so that batch size changes nothing. Errors are standard errors over blocks.
"""
import itertools
import json
import math
import os
from collections import defaultdict

import numpy as np
import torch
from tqdm import tqdm

from configurator import check_out, configure, one_line_errors, resolve_device
from data.blocks import all_blocks, check_length, open_split, token_counts
from data.hub import open_checkpoint
from data.prepare import TextFile, replace_file
from model import config_from_checkpoint, derive_seed, float32_or_better, model_from_checkpoint, sample_order

# which model
ckpt = 'out/ckpt.pt'       # a checkpoint: a path, or hf:OWNER/REPO/path.pt
weights = 'ema'            # 'ema' or 'raw'
# on what
datasets = ''              # names of prepared sets or text files of your own, with commas; '' is what the checkpoint was trained on
split = 'val'              # split of the prepared sets
data_dir = ''              # where prepared sets are; '' is where the checkpoint's are
n_blocks = 0               # blocks of a set, spread evenly over it; 0 is all
# which estimates
estimates = 'l2r,any'      # l2r: exact, left to right; any: bound of the uniform random order
n_orders = 1               # random orders a block
seed = 1337
# system
batch_size = 16
device = 'auto'            # 'cpu', 'cuda', 'cuda:1', ...
dtype = 'float32'          # 'float32', 'bfloat16' or 'auto'
out = ''                   # write the table to this JSON file


@torch.no_grad()
def block_nll(model, blocks, orders, batch_size, dtype='float32', bar=None):
    """Nats of every block under its own order, sum_d -log p(x_{order_d} | x_{order_<d}): (n,) float64 for blocks, orders (n, N)."""
    device, sums = model.lm_head.weight.device, []
    for idx, order in zip(blocks.split(batch_size), orders.split(batch_size)):
        with torch.autocast(device.type, getattr(torch, dtype), enabled=dtype == 'bfloat16'):
            sums.append(model(idx.to(device), order.to(device)).double().sum(-1))
        if bar is not None:
            bar.update(len(idx))
    return torch.cat(sums).cpu() if sums else torch.zeros(0, dtype=torch.float64)


def draw_orders(n_blocks, block_size, kind, n_orders=1, seed=0):
    """n_orders tensors (n_blocks, N) for the estimate `kind`: 'l2r' has one order; 'any' draws n_orders random ones of `seed`."""
    if kind not in ('l2r', 'any'):
        raise ValueError(f"an estimate must be 'l2r' or 'any', got {kind!r}")
    if n_orders < 1:
        raise ValueError(f'n_orders must be at least 1, got {n_orders}')
    return [sample_order(n_blocks, block_size, 'l2r' if kind == 'l2r' else 'random',
                         generator=torch.Generator().manual_seed(derive_seed(seed, k))) for k in range(1 if kind == 'l2r' else n_orders)]


@torch.no_grad()
def context_logprobs(model, idx, order, i, n_contexts, generator=None):
    """log p(x_{order_i} | prefix) under n_contexts orders of the prefix order[:, :i]                          (AO eq. of p_ens)

    idx (B, N'), order (B, T), visit 0 <= i < T; returns (B, K) nats: column 0 is the order itself, the others shuffle the
    prefix. Runs i + 1 slots and one row of the head a context."""
    (B, T), K = order.shape, n_contexts
    if not 0 <= i < T or K < 1:
        raise ValueError(f'visit i must be 0 to {T - 1} and n_contexts at least 1, got i={i} and n_contexts={K}')
    shuffles = sample_order(B * K, i, device=order.device, generator=generator).view(B, K, i)
    shuffles[:, 0] = torch.arange(i, device=order.device)
    prefix = order[:, None, :i].expand(B, K, i).gather(2, shuffles)                         # (B, K, i)
    orders = torch.cat([prefix, order[:, None, i:i + 1].expand(B, K, 1)], dim=2).flatten(0, 1)
    logits = model.predict(idx.repeat_interleave(K, 0), orders, i)[:, 0]                    # (B K, V)
    token = idx.gather(1, order[:, i:i + 1]).expand(B, K)
    return float32_or_better(logits).log_softmax(-1).view(B, K, -1).gather(-1, token.unsqueeze(-1)).squeeze(-1)


def ensemble_nll(logprobs):
    """-log (1/K) sum_k exp(logprobs_k) over the last dimension, in nats: average probabilities, then take the log (AO eq. of p_ens)."""
    return math.log(logprobs.size(-1)) - logprobs.logsumexp(-1)


def summarize(name, nats, blocks, n_bytes):
    """One row of the table from nats (n,), the float64 total of every block: nats are summed, tokens counted, divided once."""
    stderr = float(nats.std()) / len(nats) ** 0.5 / blocks.size(1) if len(nats) > 1 else None   # one block has no error to tell
    return table_row(name, float(nats.sum()) / blocks.numel(), stderr, len(blocks), blocks.numel(), n_bytes)


def unigram_row(tokens, tokenizer, block_size):
    """The line that any use of context beats: the entropy of the token frequencies of the whole set, as a row of the table."""
    counts = token_counts(tokens, tokenizer.n_tokens)
    p = counts[counts > 0] / counts.sum()
    nats = float(-(p * np.log(p)).sum())
    return table_row('unigram, whole set', nats, 0.0, len(tokens) // block_size, len(tokens), int(counts @ tokenizer.n_bytes))


def text_metrics(samples):
    """How varied generated token lists are. entropy: of a sample's own token frequencies, nats, mean over samples; distinct_n: different
    n-grams of all samples over their number; repetition: share of 4-grams that stand earlier in the same sample."""
    def grams(tokens, n):
        return list(zip(*(tokens[i:] for i in range(n))))
    p = [np.unique(tokens, return_counts=True)[1] / len(tokens) for tokens in samples]
    metrics = {'entropy': float(np.mean([-(q * np.log(q)).sum() for q in p]))}
    for n in (1, 2, 3):
        every = [g for tokens in samples for g in grams(tokens, n)]
        metrics[f'distinct_{n}'] = len(set(every)) / max(1, len(every))
    fours = [grams(tokens, 4) for tokens in samples]
    return metrics | {'repetition': 1 - sum(len(set(g)) for g in fours) / max(1, sum(map(len, fours)))}


def generative_perplexity(judge, samples, batch_size=16, dtype='float32'):
    """Perplexity of token lists under a judge model, left to right: exp(sum nats / sum tokens), tokens weighted equally. Samples
    longer than the judge's context are cut into pieces of it. Returns {'perplexity', 'stderr'}, the standard error over samples."""
    N, n, sizes, by_length = judge.config.block_size, len(samples), np.array([len(tokens) for tokens in samples]), defaultdict(list)
    for r, tokens in enumerate(samples):
        for piece in (tokens[i:i + N] for i in range(0, len(tokens), N)):
            by_length[len(piece)].append((r, piece))
    nats = np.zeros(n)
    for pieces in by_length.values():   # pieces of one length go through together
        blocks = torch.tensor([piece for _, piece in pieces])
        np.add.at(nats, [r for r, _ in pieces], block_nll(judge, blocks, sample_order(*blocks.shape, 'l2r'), batch_size, dtype).numpy())
    mean = nats.sum() / sizes.sum()
    residual = nats - mean * sizes                                            # of the ratio of sums
    error = math.sqrt((residual ** 2).sum() / (n - 1) / n) / sizes.mean() if n > 1 else None
    return {'perplexity': perplexity(mean), 'stderr': error and perplexity(mean) * error}


def perplexity(nats):
    """exp of nats per token; infinite for a model that diverged, where exp would overflow."""
    return math.exp(nats) if nats < 700 else math.inf


def table_row(name, nats, stderr, n_blocks, n_tokens, n_bytes):
    return {'estimate': name, 'nats_per_token': nats, 'stderr': stderr, 'perplexity': perplexity(nats),
            'perplexity_stderr': stderr and perplexity(nats) * stderr, 'bits_per_byte': nats * n_tokens / n_bytes / math.log(2),
            'blocks': n_blocks, 'tokens': n_tokens, 'bytes': n_bytes}


def format_table(rows):
    """The rows of `summarize` as lines of at most 80 columns."""
    lines = [f"{'':<19}{'nats/token':>17}{'perplexity':>18}{'bits/byte':>10}{'blocks':>7}{'tokens':>9}"]
    for r in rows:
        nats, ppl = (f"{r[key]:.{digits}f}" + (f" ± {r[error]:.{digits}f}" if r[error] else '')
                     for key, error, digits in (('nats_per_token', 'stderr', 4), ('perplexity', 'perplexity_stderr', 2)))
        lines.append(f"{r['estimate']:<19}{nats:>17}{ppl:>18}{r['bits_per_byte']:>10.4f}{r['blocks']:>7}{r['tokens']:>9}")
    return '\n'.join(lines)


def read_tokens(name, split, data_dir, tokenizer):
    """Tokens of a prepared set by name, or of a text file by path (every document followed by end-of-text)."""
    if os.path.isfile(name) or name.endswith(('.txt', '.jsonl', '.xz', '.gz')):
        tokens = np.array([i for text in TextFile(name) for i in (*tokenizer.encode(text), tokenizer.eos)], dtype=np.uint16)
        if not tokenizer.n_bytes[tokens].sum():
            raise ValueError(f'{name} holds no text')
        return tokens
    tokens, meta = open_split(data_dir, name, split)
    if meta['tokenizer'] != tokenizer.name:
        raise ValueError(f"the model reads {tokenizer.name} tokens, {data_dir}/{name} holds {meta['tokenizer']} tokens")
    return tokens


def main(config):
    kinds = config.estimates.split(',')
    for kind in kinds:
        draw_orders(0, 0, kind, config.n_orders)
    if config.batch_size < 1 or config.n_blocks < 0:
        raise ValueError('batch_size must be at least 1 and n_blocks at least 0 (0: all), '
                         f'got batch_size={config.batch_size}, n_blocks={config.n_blocks}')
    check_out('out', config.out)
    checkpoint, tokenizer = open_checkpoint(config.ckpt)
    run = checkpoint.get('config', {})
    names = [n for n in (config.datasets or run.get('dataset', '')).split(',') if n]
    if not names:
        raise ValueError('the checkpoint does not name its data set: say which with --datasets=')
    block_size = config_from_checkpoint(checkpoint).block_size
    sets, lines = {}, {}
    for name in names:   # all of them before the model: a missing one costs nothing
        tokens = read_tokens(name, config.split, config.data_dir or run.get('data_dir', 'data'), tokenizer)
        check_length(tokens, block_size, name)
        sets[name] = all_blocks(tokens, block_size, config.n_blocks)
        lines[name] = unigram_row(tokens, tokenizer, block_size)
    device, dtype = resolve_device(config.device, config.dtype)
    model = model_from_checkpoint(checkpoint, config.weights, device)
    print(f"{config.ckpt}: {config.weights} weights, iteration {checkpoint.get('iter_num', '?')}, {model.n_parameters():,} parameters; "
          f'blocks of {block_size} {tokenizer.name} tokens, {device}, {dtype}, seed {config.seed}')
    results = []
    for (name, blocks), kind in itertools.product(sets.items(), kinds):
        orders = draw_orders(len(blocks), block_size, kind, config.n_orders, config.seed)
        with tqdm(total=len(blocks) * len(orders), desc=f'{name} {kind}', unit='block', leave=False) as bar:
            nats = torch.stack([block_nll(model, blocks, o, config.batch_size, dtype, bar) for o in orders]).mean(0)
        label = 'left to right' if kind == 'l2r' else f'any order x {config.n_orders}'
        results.append({'dataset': name, **summarize(label, nats, blocks, int(tokenizer.n_bytes[blocks].sum()))})
    for name in sets:
        rows = [r for r in results if r['dataset'] == name] + [lines[name]]
        print(f'\n{name}' + ('' if os.path.isfile(name) else f' ({config.split})') + f'\n{format_table(rows)}')
    if config.out:
        result = {'config': config, 'iter_num': checkpoint.get('iter_num'), 'results': results}
        replace_file(config.out, lambda f: f.write((json.dumps(result, indent=2) + '\n').encode()))
        print(f'\nwritten: {config.out}')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
