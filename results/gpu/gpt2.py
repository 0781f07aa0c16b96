"""GPT-2 of our sizes on this device, to stand beside ours: nanoGPT's update, transformers' texts.

    python results/gpu/gpt2.py training --batch_size=32
    python results/gpu/gpt2.py generation

training    an update of GPT-2 as nanoGPT makes it: bfloat16 autocast, flash attention, a tied head
            without biases, fused AdamW, clipping, torch.compile. Its MFU counts the half of the
            attention that is causal, as ours does; nanoGPT's own counts all of it
generation  transformers' GPT2LMHeadModel with random weights writes block_size tokens from left to
            right, greedily: with a static cache and torch.compile, its fastest way, then with its
            default cache. requirements-extra.txt names transformers; without it this is left out"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT

from anyorder.machine.terminal import one_line_errors, read_options

WORDS = {'training': "an update in nanoGPT's way", 'generation': "texts by transformers' generate"}
# model (random weights)
block_size = 1024  # positions
vocab_size = 50304  # rows of embedding and head
n_tokens = 50257  # real vocabulary; the rest is padding
n_layer = 12  # blocks
n_head = 12  # heads of attention
n_embd = 768  # width
# what is timed
batch_size = 32  # rows
n_updates = 10  # updates of a run
compile = True  # torch.compile; without it texts are written with the default cache alone
repeats = 2  # runs of each; the fastest counts
out = ''  # a JSON file for the figures
# system
seed = 1337  # of weights and draws
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from anyorder.extras.speed.models import (
    HEADING,
    MIB,
    format_row,
    random_model,
    random_tokens,
    times_of_update,
)
from anyorder.extras.speed.peak import peak_memory
from anyorder.extras.speed.plain import device_limits, generation_limit
from anyorder.machine.devices import autocast, peak_flops, resolve_device, seconds
from anyorder.machine.files import check_out, write_json
from anyorder.training.update import send
from configurator import at_least


def main(config):
    at_least(config, 1, 'batch_size', 'n_updates', 'repeats')
    check_out('out', config.out, '.json')
    device, dtype = resolve_device(config.device, config.dtype)
    (word,) = config.words
    measure = {'training': time_update, 'generation': time_texts}[word]
    rows = []
    for row in measure(config, device, dtype):
        rows.append(row)
        if config.out:  # at once: the next one takes a minute
            write_json(config.out, {'config': config, 'rows': rows})


# --------------------------------------------------------------------------------------------------
# training


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        C = config.n_embd
        self.n_head = config.n_head
        self.ln_1 = nn.LayerNorm(C, bias=False)
        self.c_attn = nn.Linear(C, 3 * C, bias=False)
        self.c_proj = nn.Linear(C, C, bias=False)
        self.ln_2 = nn.LayerNorm(C, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(C, 4 * C, bias=False), nn.GELU(), nn.Linear(4 * C, C, bias=False)
        )

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(B, N, 3, self.n_head, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, N, D) each
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, N, C))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """GPT-2 as nanoGPT trains it, without biases. The head is the embedding."""

    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx, targets):
        """Return the mean nats of targets (B, N) given idx (B, N)."""
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def flops(self, batch_size, config):
        """Return the FLOPs of an update by the rule of training_flops.

        A token takes 6 for each weight of a product, and 6 N C a layer for causal attention."""
        n_weights = sum(p.numel() for p in self.parameters() if p.dim() > 1)
        n_weights -= self.wpe.weight.numel()
        pairs = config.n_layer * config.block_size * config.n_embd / 2
        return 6 * batch_size * config.block_size * (n_weights + 2 * pairs)


def time_update(config, device, dtype):
    """Print and yield the row of an update, as `speed train` has it."""
    torch.manual_seed(config.seed)
    model = GPT2(config).to(device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{'params': matrices, 'weight_decay': 0.1}, {'params': vectors, 'weight_decay': 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    run_model = model
    if config.compile:
        run_model = torch.compile(model)
    tokens = torch.from_numpy(random_tokens(config).astype('int64'))

    def step():
        idx, targets = (send(x, device) for x in random_pairs(tokens, config))
        with autocast(device, dtype):
            loss = run_model(idx, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    n_parameters = sum(p.numel() for p in model.parameters())
    print(f'GPT-2, {n_parameters:,} parameters, batch {config.batch_size} x {config.block_size}')
    print(HEADING)
    row = {'name': 'GPT-2', 'dtype': dtype, 'compiled': config.compile}
    row |= times_of_update(step, config, device)
    flops = model.flops(config.batch_size, config)
    row['tokens_per_sec'] = config.batch_size * config.block_size / row['seconds']
    row['mfu'] = flops / row['seconds'] / peak_flops(device, dtype)
    print(format_row(row), flush=True)
    yield row


def random_pairs(tokens, config):
    """Return (tokens (B, N), the tokens behind them (B, N))."""
    N = config.block_size
    starts = torch.randint(len(tokens) - N, (config.batch_size,)).tolist()
    blocks = torch.stack([tokens[start : start + N + 1] for start in starts])
    return blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()


# --------------------------------------------------------------------------------------------------
# generation


def time_texts(config, device, dtype):
    """Print and yield {'name', 'passes', 'first', 'later', 'peak_bytes', 'of_limit'}."""
    try:
        import transformers
    except ImportError:
        print('left out: transformers is not installed, see requirements-extra.txt')
        return
    transformers.logging.set_verbosity_error()
    model = transformers_model(transformers, config).to(device, getattr(torch, dtype))
    print(f'GPT-2, {model.num_parameters():,} parameters, transformers {transformers.__version__}')
    headings = ('first s', 'later s', 'ms/token', 'peak MiB', 'of limit')
    print(f'{"":<24}{"tokens":>8}' + ''.join(f'{heading:>10}' for heading in headings))

    ways = [('default cache', config.block_size // 8, {})]
    if config.compile and device.type == 'cuda':  # where generate compiles by itself
        static = {'cache_implementation': 'static'}
        ways.insert(0, ('static cache, compiled', config.block_size - 1, static))
    for name, n_new, how in ways:
        write = partial(write_texts, model, config, n_new, how)
        peak_memory(device, reset=True)
        row = {'name': name, 'passes': n_new, 'first': seconds(write, device, 1)}
        row['later'] = seconds(write, device, config.repeats)
        row['peak_bytes'] = peak_memory(device)
        row['of_limit'] = limit_of(config, n_new, device, dtype) / row['later']
        times = f'{row["first"]:>10.2f}{row["later"]:>10.2f}{1000 * row["later"] / n_new:>10.2f}'
        rest = f'{row["peak_bytes"] / MIB:>10,.0f}{row["of_limit"]:>10.1%}'
        print(f'{name:<24}{n_new:>8}{times}{rest}', flush=True)
        yield row


def transformers_model(transformers, config):
    torch.manual_seed(config.seed)
    network = transformers.GPT2Config(
        vocab_size=config.n_tokens,
        n_positions=config.block_size,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return transformers.GPT2LMHeadModel(network).eval()


@torch.no_grad()
def write_texts(model, config, n_new, how):
    """Write n_new tokens behind the first, whatever they are."""
    last = config.n_tokens - 1
    start = torch.full((config.batch_size, 1), last, device=model.device)
    model.generate(
        start,
        attention_mask=torch.ones_like(start),
        pad_token_id=last,
        eos_token_id=None,
        max_new_tokens=n_new,
        min_new_tokens=n_new,
        do_sample=False,
        **how,
    )


def limit_of(config, n_new, device, dtype):
    """Return generation_limit of our decoder from left to right, whose products are GPT-2's."""
    with torch.device('meta'):
        ours = random_model(config, 'meta')
    limits = device_limits(device, getattr(torch, dtype))
    ends = range(1, n_new + 1)
    return generation_limit(ours, config.batch_size, ends, *limits, getattr(torch, dtype).itemsize)


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
