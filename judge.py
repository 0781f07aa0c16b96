"""How good are samples? How varied they are, and their perplexity under a judge: a checkpoint, or GPT-2 of the package transformers."""
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from data.hub import open_checkpoint
from data.prepare import get_tokenizer, quiet_hub
from eval_ppl import block_nll
from model import model_from_checkpoint, sample_order
from tables import perplexity, ratio_error

GPT2_SIZES = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')


def measure(samples, tokenizer, judged, name, device, dtype):
    """(metrics, lines of the table): how varied the samples are and, given (model, tokenizer) of a judge called `name`, its perplexity."""
    metrics = text_metrics([s['tokens'] for s in samples])
    lines = {'metrics': ', '.join(f'{metric} {value:.3f}' for metric, value in metrics.items()) + f' (of {tokenizer.name} tokens, nats)'}
    if judged:
        judge, its_tokenizer = judged
        texts = [s['tokens'] if its_tokenizer.name == tokenizer.name else its_tokenizer.encode(s['text']) for s in samples]
        verdict = generative_perplexity(judge.to(device), texts, dtype=dtype)
        error = f" ± {verdict['stderr']:.2f}" if verdict['stderr'] else ''
        lines['judge'] = f"perplexity {verdict['perplexity']:.2f}{error} a {its_tokenizer.name} token, left to right, under {name}"
        metrics['judge'] = {'ckpt': name, **verdict}
    return metrics, lines


def text_metrics(samples):
    """How varied generated token lists are. entropy: of a sample's own token frequencies, nats, mean over samples; distinct_n: different
    n-grams of all samples over their number, 1 where there is none; repetition: share of 4-grams that stand earlier in the same sample."""
    def grams(tokens, n):
        return list(zip(*(tokens[i:] for i in range(n))))
    p = [np.unique(tokens, return_counts=True)[1] / len(tokens) for tokens in samples]
    metrics = {'entropy': float(np.mean([-(q * np.log(q)).sum() for q in p]))}
    for n in (1, 2, 3):
        every = [g for tokens in samples for g in grams(tokens, n)]
        metrics[f'distinct_{n}'] = len(set(every)) / len(every) if every else 1.0
    fours = [grams(tokens, 4) for tokens in samples]
    n = sum(map(len, fours))
    return metrics | {'repetition': (n - sum(len(set(g)) for g in fours)) / max(1, n)}


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
    mean, error = nats.sum() / sizes.sum(), ratio_error(torch.from_numpy(nats), torch.from_numpy(sizes))
    return {'perplexity': perplexity(mean), 'stderr': error and perplexity(mean) * error}


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
        checkpoint, tokenizer = open_checkpoint(name)
        return model_from_checkpoint(checkpoint, 'ema' if 'ema_model' in checkpoint else 'raw'), tokenizer
    quiet_hub()
    try:
        from transformers import GPT2LMHeadModel
        return GPT2(GPT2LMHeadModel.from_pretrained(f'openai-community/{name}')), get_tokenizer('gpt2')
    except Exception as e:   # no package, no network, no such file: many classes
        raise ValueError(f'the judge {name} needs the package transformers (pip install transformers) and, the first time, a network: '
                         f'{type(e).__name__}: {str(e).splitlines()[0][:120]}') from None
