"""How good are samples? How varied they are, and their perplexity under a judge: a checkpoint, or GPT-2 of the package transformers."""
from collections import defaultdict
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from anyorder.checkpoint import Checkpoint
from anyorder.files import quiet_hub
from anyorder.likelihood import block_nll
from anyorder.orders import sample_order
from anyorder.tables import summarize
from data.tokenizers import get_tokenizer

GPT2_SIZES = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')


def measure(samples, tokenizer, judged, name, device, n_each=1):
    """(metrics, lines of the table): how varied what was written of the samples is and, given (model, tokenizer) of a judge called `name`,
    its perplexity, in float32; what was given counts as context alone. `n_each` samples after each other are of one prompt."""
    tokens, counted = [s['tokens'] for s in samples], [[step >= 0 for step in s['step']] for s in samples]
    metrics = text_metrics(tokens, counted)
    lines = {'metrics': ', '.join(f'{metric} {value:.3f}' for metric, value in metrics.items()) + f' (of {tokenizer.name} tokens, nats)'}
    if judged:
        judge, its_tokenizer = judged
        if its_tokenizer.name != tokenizer.name:
            tokens, counted = zip(*(translate(*sample, tokenizer, its_tokenizer) for sample in zip(tokens, counted)))
        verdict = generative_perplexity(judge.to(device), tokens, counted, n_each=n_each)
        error, N = f" ± {verdict['perplexity_stderr']:.2f}" if verdict['stderr'] else '', judge.config.block_size
        pieces = f', in pieces of {N} tokens' if max(map(len, tokens)) > N else ''
        lines['judge'] = f"perplexity {verdict['perplexity']:.2f}{error} a {its_tokenizer.name} token, left to right{pieces}, under {name}"
        metrics['judge'] = {'ckpt': name, 'tokenizer': its_tokenizer.name, **verdict}
    return metrics, lines


def translate(tokens, counted, source, target):
    """(tokens, counted) of the tokenizer `source` in tokens of `target`; one counts if any byte of it was in a token that counted."""
    new = []
    for is_end, part in groupby(zip(tokens, counted), key=lambda pair: pair[0] == source.eos is not None):
        ids, flags = zip(*part)
        if is_end and target.eos is not None:
            new += [(target.eos, flag) for flag in flags]
            continue
        n_read, text, letters = 0, '', []
        for flag, run in groupby(flags):
            n_read += len(list(run))
            before, text = text, source.decode(ids[:n_read])
            if flag and before and (text == before or not text.startswith(before)):   # it goes on with the letter that the last run began
                letters[-1] = True
            letters += [flag] * (len(text) - len(letters))
        flags = [flag for letter, flag in zip(text, letters) for _ in letter.encode()]   # of every byte
        ids = target.encode(text)
        ends = np.cumsum(target.n_bytes[ids])
        new += [(token, any(flags[start:end])) for token, start, end in zip(ids, ends - target.n_bytes[ids], ends)]
    return tuple(zip(*new))


def text_metrics(samples, counted):
    """How varied token lists are where they are `counted` (lists of bool). entropy: of a sample's own token frequencies, nats, mean over
    samples; of n-grams whose last token counts: distinct_n: distinct ones over all, of all samples together, 1 if there are none;
    repetition: the share of 4-grams that stand earlier in the same sample."""
    def grams(tokens, counts, n):
        return list(zip(zip(*(tokens[i:] for i in range(n))), counts[n - 1:]))
    written = [[t for t, counts in zip(*sample) if counts] for sample in zip(samples, counted)]
    p = [np.unique(tokens, return_counts=True)[1] / len(tokens) for tokens in written if tokens]
    metrics = {'entropy': float(np.mean([-(q * np.log(q)).sum() for q in p]))}
    for n in (1, 2, 3):
        every = [gram for sample in zip(samples, counted) for gram, counts in grams(*sample, n) if counts]
        metrics[f'distinct_{n}'] = len(set(every)) / len(every) if every else 1.0
    n_grams, n_old = 0, 0
    for sample in zip(samples, counted):
        seen = set()
        for gram, counts in grams(*sample, 4):
            n_grams, n_old = n_grams + counts, n_old + (counts and gram in seen)
            seen.add(gram)
    return metrics | {'repetition': n_old / max(1, n_grams)}


def generative_perplexity(judge, samples, counted, batch_size=16, n_each=1):
    """Perplexity of token lists under a judge model, left to right: exp(sum nats / number) of the tokens that are `counted` (lists of
    bool), given all before them. Samples longer than the judge's context are cut into pieces of it. Returns {'nats_per_token',
    'perplexity', each with its error, 'tokens'}; standard errors are over samples or, where `n_each` after each other are of one prompt,
    over prompts."""
    N, n, by_length = judge.config.block_size, len(samples), defaultdict(list)
    for r, (tokens, counts) in enumerate(zip(samples, counted)):
        for i in range(0, len(tokens), N):
            by_length[len(tokens[i:i + N])].append((r, tokens[i:i + N], counts[i:i + N]))
    nats, sizes = np.zeros(n), np.array([sum(counts) for counts in counted])
    for pieces in by_length.values():   # pieces of one length go through together
        rows, *pieces = zip(*pieces)
        blocks, counts = map(torch.tensor, pieces)
        np.add.at(nats, list(rows), block_nll(judge, blocks, sample_order(*blocks.shape, 'l2r'), batch_size, counted=counts).numpy())
    row = summarize('', *(torch.from_numpy(x).view(-1, n_each).sum(1) for x in (nats, sizes)), n_bytes=0)
    return {name: row[name] for name in ('nats_per_token', 'stderr', 'perplexity', 'perplexity_stderr', 'tokens')}


class GPT2(nn.Module):
    """GPT-2 of the package transformers behind the interface of AOGPT.forward, for left-to-right orders. It reads <|endoftext|>
    before the first token, so that this one counts too."""

    def __init__(self, network):
        super().__init__()
        self.network, self.lm_head = network.eval(), network.lm_head
        self.config = SimpleNamespace(block_size=network.config.n_positions, causal=True)

    def forward(self, idx, order):
        if (order != torch.arange(idx.size(1), device=idx.device)).any():
            raise ValueError('GPT-2 reads left to right only')
        start = torch.full_like(idx[:, :1], self.network.config.bos_token_id)
        logits = self.network(torch.cat([start, idx[:, :-1]], 1)).logits.float()            # (B, T, V)
        return F.cross_entropy(logits.transpose(1, 2), idx, reduction='none')


def open_judge(name):
    """(model, its tokenizer) that measure samples left to right: any checkpoint, or one of GPT2_SIZES, which needs the package
    transformers and, the first time, a network."""
    if name not in GPT2_SIZES:
        checkpoint = Checkpoint(name)
        kind = checkpoint.order['kind']
        if kind not in ('random', 'l2r') and not checkpoint.run.get('l2r_ratio'):
            raise ValueError(f'a judge reads left to right, {name} was trained in another order ({kind}) alone: choose another --judge')
        return checkpoint.model('ema' if 'ema_model' in checkpoint.entries else 'raw'), checkpoint.tokenizer
    quiet_hub()
    try:
        from transformers import GPT2LMHeadModel
        return GPT2(GPT2LMHeadModel.from_pretrained(f'openai-community/{name}')), get_tokenizer('gpt2')
    except Exception as e:   # no package, no network, no such file: many classes
        raise ValueError(f'the judge {name} needs the package transformers (pip install transformers) and, the first time, a network: '
                         f'{type(e).__name__}: {str(e).splitlines()[0][:120]}') from None
