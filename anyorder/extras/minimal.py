"""Any-Order GPT as Masked Diffusion Model (Xue et al. 2025, arXiv 2506.19935) in one file.

    python -m anyorder.extras.minimal  # two minutes on one core, with --n_updates=150 ten seconds

A GPT predicts a text from left to right. This one takes an order, a permutation of the positions,
and predicts visit after visit: the token at order[0], then at order[1], ... A slot reads one
token and predicts another, as a place in the input of a GPT does. Two things change for it.

1. The next position may be anywhere, so a slot is told the position that it predicts: an embedding
   of the position shifts, scales and gates the slot in every layer (AdaLN).
2. The first n_known visits are known. The slot of visit d reads visit min(d, n_known) - 1 (-1 is
   [None], a start symbol), and it sees the slots before it that are below n_known, and itself.

    order (3,0,2,1), n_known = 3: training         n_known = 1: three visits in parallel
    slot       0       1      2      3             slot       0       1      2      3
    reads    [None]   x3     x0     x2             reads    [None]   x3     x3     x3
    predicts   3       0      2      1             predicts   3       0      2      1
    sees       0      0-1    0-2    0-3            sees       0      0,1    0,2    0,3

The left is the causal attention of a GPT, the right a step of masked diffusion: all blanks at once,
each given the known tokens alone. A network that has learned all orders does both.

Tokens idx (B, N) always stand in natural order; an order only says how they are visited.
The function ensemble_nll of anyorder/likelihood/ensemble.py has other arguments.
Shapes: B batch, N positions, T visits, C width, H heads, D = C / H, V vocabulary."""

import copy
import math
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import OrderedDict
from pydoc_data.topics import topics  # the manual of Python, which lies inside every Python

import torch
import torch.nn.functional as F
from torch import nn


class AOGPT(nn.Module):
    """The network of model.py without its cache. Its parameters have the published names."""

    def __init__(self, N, V, n_layer, H, C, n_cond=128):
        super().__init__()
        final = {
            'ln_f': nn.RMSNorm(C, eps=1e-5),
            'adaLN_final': nn.Sequential(nn.SiLU(), nn.Linear(n_cond, 2 * C)),
        }
        parts = {
            'wte': nn.Embedding(V, C),  # the token that a slot reads
            'wnonee': nn.Embedding(1, C),  # or [None]
            'wpe': nn.Embedding(N + 1, C),  # its position: row p + 1 for p, row 0 for [None]
            'wtpe': nn.Embedding(N, n_cond),  # the position that a slot predicts
            'h': nn.ModuleList(Block(C, H, n_cond) for _ in range(n_layer)),
            'final_layer': nn.ModuleDict(final),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(C, V)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / math.sqrt(2 * n_layer) if 'c_proj' in name else 0.02
                nn.init.trunc_normal_(p, std=std, a=-3 * std, b=3 * std)
            elif name.endswith('bias'):
                nn.init.zeros_(p)

    def forward(self, idx, order, n_known):
        """Return logits (B, T, V) of an order (B, T); n_known visits, int or (B,), are known."""
        t = self.transformer
        visit = torch.arange(order.size(1))
        known = torch.as_tensor(n_known).view(-1, 1)
        # What a slot reads
        reads = (visit.clamp(max=known) - 1).expand(order.shape)  # (B, T)
        is_none = reads == -1
        position = order.gather(1, reads.clamp(min=0))
        token = t.wte(idx.gather(1, position))
        x = torch.where(is_none.unsqueeze(-1), t.wnonee.weight, token)  # (B, T, C)
        x = x + t.wpe((position + 1).masked_fill(is_none, 0))
        # What it sees
        slot = visit.unsqueeze(-1)  # that sees the slots `visit`
        sees = (visit < slot) & (visit < known.unsqueeze(-1)) | (visit == slot)  # (B or 1, T, T)
        target = t.wtpe(order)  # what it predicts
        for block in t.h:
            x = block(x, target, sees.unsqueeze(1))
        shift, scale = t.final_layer.adaLN_final(target).chunk(2, -1)
        return self.lm_head(t.final_layer.ln_f(x) * (1 + scale) + shift)


class Block(nn.Module):
    """A GPT block, which the predicted position shifts, scales and gates."""

    def __init__(self, C, H, n_cond):
        super().__init__()
        self.ln_1 = nn.RMSNorm(C, eps=1e-5)
        attn = {
            'c_attn': nn.Linear(C, 3 * C),
            'c_proj': nn.Linear(C, C),
            'q_norm': nn.RMSNorm(C // H, eps=1e-5),
            'k_norm': nn.RMSNorm(C // H, eps=1e-5),
        }
        self.attn = nn.ModuleDict(attn)
        self.ln_2 = nn.RMSNorm(C, eps=1e-5)
        mlp = {'c_fc': nn.Linear(C, 4 * C), 'gelu': nn.GELU(), 'c_proj': nn.Linear(4 * C, C)}
        self.mlp = nn.Sequential(OrderedDict(mlp))
        self.adaLN = nn.Sequential(nn.SiLU(), nn.Linear(n_cond, 6 * C))
        self.H = H

    def forward(self, x, target, sees):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN(target).chunk(6, -1)
        x = x + gate_a * self.attend(self.ln_1(x) * (1 + scale_a) + shift_a, sees)
        return x + gate_m * self.mlp(self.ln_2(x) * (1 + scale_m) + shift_m)

    def attend(self, x, sees):
        attn = self.attn
        q, k, v = attn.c_attn(x).unflatten(-1, (3, self.H, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(attn.q_norm(q), attn.k_norm(k), v, sees)  # (B, H, T, D)
        return attn.c_proj(y.transpose(1, 2).flatten(2))


def visit_nll(model, idx, order):
    """Return -log p(x[order[d]] | x[order[:d]]) (B, T) in nats. Its sum over d bounds -log p(x)."""
    logits = model(idx, order, order.size(1) - 1)  # the last visit is read by no slot
    return F.cross_entropy(logits.mT, idx.gather(1, order), reduction='none')


def sample_order(B, N, l2r_ratio=0.0):
    """Draw orders (B, N): left to right with probability l2r_ratio, else a uniform permutation."""
    is_l2r = torch.rand(B, 1) < l2r_ratio
    return torch.where(is_l2r, torch.arange(N), torch.rand(B, N).argsort(1))


def update(model, ema, optimizers, idx, n, decay=0.9999):
    """Make update number n, from 1: step the weights w, then ema <- d ema + (1 - d) w."""
    # In a uniform order (9 of 10) visit d knows d random tokens, as x_t does, masked at rate t: the
    # mean is the loss of masked diffusion, 1/N int_0^1 1/t E[sum_masked -log p(x_i | x_t)] dt
    loss = visit_nll(model, idx, sample_order(*idx.shape, l2r_ratio=0.1)).mean()
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    d = min(decay, (1 + n) / (10 + n))
    with torch.no_grad():
        torch._foreach_lerp_([*ema.parameters()], [*model.parameters()], 1 - d)
    return loss.item()


@torch.no_grad()
def generate(model, idx, order, n_known, n_steps, how='fixed', temperature=1.0):
    """Write the blanks of idx (B, N), which order (B, N) visits from n_known on, in n_steps passes.

    Tokens of one step do not see each other: one a step is exact, more are faster. 'binomial', in
    a uniform order, is the step t -> s of masked diffusion (Lemma 1), all rows alike. By 'adaptive'
    the model chooses: first the blank whose best token leads the second by most."""
    n_blanks = order.size(1) - n_known
    ends = [n_known + n_blanks * step // n_steps for step in range(1, n_steps + 1)]
    for step, end in enumerate(ends):
        if how == 'binomial':  # each with 1 - s / t, t = 1 - step / n_steps, s = t - 1 / n_steps
            end = n_known + int((torch.rand(order.size(1) - n_known) < 1 / (n_steps - step)).sum())
        logits = model(idx, order, n_known)[:, n_known:]  # of all blanks
        if how == 'adaptive':
            best, second = logits.softmax(-1).topk(2).values.unbind(-1)
            surest = (best - second).argsort(1, descending=True)
            order = torch.cat([order[:, :n_known], order[:, n_known:].gather(1, surest)], 1)
            logits = logits.take_along_dim(surest.unsqueeze(-1), 1)
        logits = logits[:, : end - n_known]
        gumbel = -torch.empty_like(logits).exponential_().log()
        token = (logits + temperature * gumbel).argmax(-1)  # drawn by softmax(logits / temperature)
        idx = idx.scatter(1, order[:, n_known:end], token)
        n_known = end
    return idx


@torch.no_grad()
def ensemble_nll(model, idx, order, i, n_contexts):
    """Return -log mean p(x[order[i]]) (B,) over n_contexts orders of the visits before i.

    Their order should not matter. It does a little: the mean is better. Context 0 is as given."""
    logp = []
    for k in range(n_contexts):
        shuffle = torch.randperm(i) if k > 0 else torch.arange(i)
        context = torch.cat([order[:, shuffle], order[:, i : i + 1]], 1)
        logp.append(-visit_nll(model, idx, context)[:, i])
    return math.log(n_contexts) - torch.stack(logp).logsumexp(0)


def main(n_updates=2000, N=48):
    """Learn the short sentences of the manual of Python by heart, and fill their blanks."""
    torch.manual_seed(1)
    manual = ' '.join(' '.join(topics.values()).split()).encode()
    lines = [line.ljust(N) for line in manual.split(b'. ') if N // 2 <= len(line) <= N]
    text = torch.tensor([[*line] for line in lines])  # (sentences, N) bytes; final spaces count

    # Train. Muon and open gates: without them it takes an hour to learn more than frequencies
    model = AOGPT(N, V=256, n_layer=2, H=3, C=96, n_cond=64)
    for block in model.transformer.h:
        block.adaLN[1].bias.data.view(6, -1)[[2, 5]] = 1  # gate_a, gate_m
    ema = copy.deepcopy(model).requires_grad_(False)
    hidden = [p for p in model.transformer.h.parameters() if p.dim() == 2]
    rest = [*{*model.parameters()} - {*hidden}]
    peaks = {torch.optim.Muon(hidden): 0.04, torch.optim.AdamW(rest): 0.01}
    for n in range(1, n_updates + 1):
        for optimizer, peak in peaks.items():
            optimizer.param_groups[0]['lr'] = peak * min(n / 50, 1 - n / n_updates)
        loss = update(model, ema, peaks, text[torch.randint(len(text), (32,))], n, decay=0.99)
        if n == 1 or n % 250 == 0:
            print(f'update {n}: {loss:.2f} nats a byte', flush=True)

    # Measure the average of its weights
    entropy = torch.special.entr(text.flatten().bincount() / text.numel()).sum()
    order = sample_order(*text.shape)
    nll = visit_nll(ema, text, order)
    half = N // 2
    mean = ensemble_nll(ema, text, order, half, n_contexts=8)
    print(f'entropy of single bytes {entropy:.2f}, in random order {nll.mean():.2f} nats a byte')
    print(f'visit {half}: {nll[:, half].mean():.2f}, by the mean of 8 contexts {mean.mean():.2f}')

    # Fill the longest word of some sentences, at once and then a byte a pass
    for line in lines[:: len(lines) // 4]:
        word = max(line.split(), key=len)
        start = line.index(word)
        end = start + len(word)
        idx = torch.tensor([[*line]])  # what stands in the blanks is not read
        order = torch.tensor([[*range(start), *range(end, N), *range(start, end)]])
        print((line[:start] + b'_' * len(word) + line[end:]).decode())
        for n_steps in (1, len(word)):
            text = generate(ema, idx, order, N - len(word), n_steps, 'adaptive', temperature=0)
            print(f'{bytes(text[0].tolist()).decode(errors="replace")}  passes: {n_steps}')


if __name__ == '__main__':
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('--n_updates', type=int, default=2000)
    main(parser.parse_args().n_updates)
