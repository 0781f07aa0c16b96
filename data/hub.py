"""Where a model comes from: a checkpoint at a path or, as hf:OWNER/REPO/path.pt, on the Hugging Face hub; GPT-2 as a judge of samples."""
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from data.prepare import TOKENIZERS, get_tokenizer
from model import config_from_checkpoint, load_checkpoint, model_from_checkpoint

GPT2_SIZES = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')


def local_path(name):
    """The local file of a checkpoint name: a path as it is, `hf:OWNER/REPO/path/in/repo.pt` through huggingface_hub.

    Raises ValueError in one line when the hub or the file cannot be reached."""
    if not name.startswith('hf:'):
        return name
    parts = name[3:].split('/')
    if len(parts) < 3:
        raise ValueError(f'a checkpoint on the hub is written hf:OWNER/REPO/path.pt, got {name}')
    from huggingface_hub import hf_hub_download
    quiet()
    try:
        return hf_hub_download('/'.join(parts[:2]), '/'.join(parts[2:]))
    except Exception as e:   # many classes: no network, no such repository, no such file
        raise ValueError(f'cannot get {name} from the hub ({type(e).__name__}): check the name and the network, '
                         'or download the file and give its path') from None


def quiet():
    """The hub's own retries and warnings would bury our one line."""
    from huggingface_hub import logging
    logging.set_verbosity_error()


def open_checkpoint(name):
    """(checkpoint dict, its tokenizer) of a name; files that do not say, as the published ones, have GPT-2's."""
    checkpoint = load_checkpoint(local_path(name))
    config, tokenizer = config_from_checkpoint(checkpoint), checkpoint.get('tokenizer', 'gpt2')
    if tokenizer not in TOKENIZERS:
        raise ValueError(f'{name} has the tokenizer {tokenizer!r}, known are {", ".join(TOKENIZERS)}')
    have, want = config.n_real, TOKENIZERS[tokenizer].n_tokens
    if have != want:
        raise ValueError(f'{name} has a vocabulary of {have} tokens, {tokenizer} has {want}: it was trained with another tokenizer')
    return checkpoint, get_tokenizer(tokenizer)


class GPT2(nn.Module):
    """GPT-2 of the package transformers behind the interface of AOGPT.forward, for left-to-right orders. It reads <|endoftext|>
    before the first token, so that this one counts too."""

    def __init__(self, network):
        super().__init__()
        self.network, self.lm_head = network.eval(), network.lm_head
        self.config = SimpleNamespace(block_size=network.config.n_positions)

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
    quiet()
    try:
        from transformers import GPT2LMHeadModel
        return GPT2(GPT2LMHeadModel.from_pretrained(f'openai-community/{name}')), get_tokenizer('gpt2')
    except Exception as e:   # no package, no network, no such file: many classes
        raise ValueError(f'the judge {name} needs the package transformers (pip install transformers) and, the first time, a network: '
                         f'{type(e).__name__}: {str(e).splitlines()[0][:120]}') from None
