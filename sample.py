"""
Write text with a trained model, in random order or left to right, some tokens or all of them at a time.

    python sample.py --ckpt=out/ckpt.pt
    python sample.py --ckpt=out/ckpt.pt --order=l2r --prompt='The return value is' --n_samples=3
    python sample.py --ckpt=out/ckpt.pt --n_steps=16 --schedule=cosine --temperature=0.8 --top_p=0.95
"""
import json
import math
import time

import torch
from tqdm import tqdm

from configurator import check_out, configure, one_line_errors, resolve_device
from data.hub import open_checkpoint
from data.prepare import replace_file
from model import KVCache, derive_seed, model_from_checkpoint, sample_order

# which model
ckpt = 'out/ckpt.pt'    # a checkpoint: a path, or hf:OWNER/REPO/path.pt
weights = 'ema'         # 'ema' or 'raw'
# what to write
prompt = ''             # text that is known from the start; the rest is written around it
length = 0              # tokens of a sample, prompt included; 0 is the model's block_size
n_samples = 2
# how
order = 'random'        # order of writing: 'random' or 'l2r'
n_steps = 1024          # forward passes; as many as there are tokens or more is one token a step
schedule = 'linear'     # tokens a step: 'linear' (equal) or 'cosine' (few first, many last)
temperature = 1.0       # 0 takes the most likely token
top_k = 0               # keep the k most likely tokens; 0 keeps all
top_p = 1.0             # keep the most likely tokens that together reach this probability
use_cache = True        # keys and values of past slots are kept; False runs everything anew (slow, the same text)
seed = 1337             # sample r is a function of seed + r alone
# system
device = 'auto'         # 'cpu', 'cuda', 'cuda:1', ...
dtype = 'float32'       # 'float32', 'bfloat16' or 'auto'
out = ''                # write samples, orders and log-probabilities to this JSON file


def unmask_schedule(n_tokens, n_steps, kind='linear'):
    """How many of n_tokens blanks are revealed after each step: strictly increasing, the last is n_tokens.

    ends_k = max(floor(n (1 - m(k / T))), ends_{k-1} + 1),   m(s) = 1 - s (linear) or cos(s pi / 2) (cosine)

    n_steps T >= 1; more steps than tokens are one token a step. Source: the deterministic schedule of AO's release."""
    if n_steps < 1:
        raise ValueError(f'n_steps must be at least 1, got {n_steps}')
    if kind not in ('linear', 'cosine'):
        raise ValueError(f"schedule must be 'linear' or 'cosine', got {kind!r}")
    n_steps, ends = min(n_steps, n_tokens), []
    for k in range(1, n_steps + 1):
        share = n_tokens * k // n_steps if kind == 'linear' else int(n_tokens * (1 - math.cos(k / n_steps * math.pi / 2)))
        ends.append(n_tokens if k == n_steps else max(share, (ends[-1] if ends else 0) + 1))
    return ends


def check_drawing(temperature, top_k, top_p):
    if not 0 <= temperature < math.inf:
        raise ValueError(f'temperature must be at least 0 and finite, got {temperature}')
    if top_k < 0:
        raise ValueError(f'top_k must be at least 0 (0 keeps all), got {top_k}')
    if not 0 < top_p <= 1:
        raise ValueError(f'top_p must be above 0 and at most 1 (1 keeps all), got {top_p}')


def sample_tokens(logits, temperature=1.0, top_k=0, top_p=1.0, generator=None, u=None):
    """Draw a token from each row of logits (..., V); returns (...) int64.

    p = softmax(logits / temperature), cut to the top_k largest, then to the smallest set of largest that reaches top_p (the token
    that crosses it stays). One uniform number u (...) in [0, 1) a row, drawn from `generator` unless given, and the
    float64 cumulative sum: token = first j with cdf_j > u cdf_last. Temperature 0 is argmax."""
    check_drawing(temperature, top_k, top_p)
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature                          # at most 0: any temperature is safe
    if 0 < top_k < logits.size(-1):
        values, kept = logits.topk(top_k)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, kept, values)
    if top_p < 1:
        values, kept = logits.sort(dim=-1, descending=True)
        p = values.double().softmax(-1)
        values = values.masked_fill(p.cumsum(-1) - p >= top_p, -torch.inf)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, kept, values)
    cdf = logits.double().softmax(-1).cumsum(-1)                                             # (..., V)
    if u is None:
        u = torch.rand(cdf.shape[:-1], dtype=torch.float64, device=cdf.device, generator=generator)
    last = cdf[..., -1:]
    u = torch.minimum(u.unsqueeze(-1) * last, torch.nextafter(last, torch.zeros_like(last)))  # below the last, after rounding too
    return torch.searchsorted(cdf, u, right=True).squeeze(-1)


def stream(seed, name):
    """The random numbers of one purpose of one sample: its order and its tokens must not be drawn from the same ones."""
    return torch.Generator().manual_seed(derive_seed(int(seed), name))


def blanks_last(known, order):
    """Turn `order` (B, N) into one that visits the positions of known (B, N) bool left to right first, then the blanks as in
    `order`; returns (order, n_known (B,) on the host)."""
    N = known.size(1)
    key = torch.where(known, torch.arange(N, device=known.device) - N, order.argsort(-1))    # rank among the visits
    return key.argsort(-1), known.sum(-1).cpu()


@torch.inference_mode()
def generate(model, idx, order, n_known, n_steps, policy='given', schedule='linear', temperature=1.0, top_k=0, top_p=1.0,
             use_cache=True, generator=None, seeds=None, return_trace=False, on_step=None):
    """Fill the blanks of idx, in the order of `order`, in n_steps forward passes.

    The tokens of one step see the known ones and not each other: p(step | known) = prod_i p(x_i | known)       (AO Lemma 1)

    idx       (B, N) tokens in natural order; those at order[:, n_known:] are blanks and their values are not read
    order     (B, N) a permutation of the positions a row; the first n_known (int or (B,)) are the prompt
    n_steps   forward passes, at least 1; more than there are blanks is one token a pass
    policy    'given': the blanks are revealed as `order` has them
    schedule  'linear', 'cosine', or a list of ends: numbers of blanks revealed after each step (then n_steps is not used)
    seeds     (B,) ints: a row's draws depend on its seed alone (one uniform number a position), not on batch or schedule;
              without them `generator` draws
    on_step   called after each step with (steps done, steps in all, idx)
    returns idx (B, N), and with return_trace a dict of (B, N): `order`; `step` (natural order, from 0; -1 for the prompt);
              `logprob` (natural order, nats, 0 for the prompt) of each drawn token under the untempered model
    """
    B, N = order.shape
    check_drawing(temperature, top_k, top_p)
    if policy != 'given':
        raise ValueError(f"policy must be 'given', got {policy!r}")
    if idx.shape != order.shape:
        raise ValueError(f'order must visit every position of idx, got {tuple(order.shape)} for {tuple(idx.shape)}')
    device, n_tokens = idx.device, model.config.n_tokens or model.config.vocab_size
    known = torch.as_tensor(n_known).cpu().expand(B)                                         # (B,) host
    ends = schedule_ends((N - known).tolist(), n_steps, schedule)                            # (B, steps) host
    if seeds is None:
        u = torch.rand(B, N, dtype=torch.float64, device=device, generator=generator)
    else:
        u = torch.stack([torch.rand(N, dtype=torch.float64, generator=stream(s, 'tokens')) for s in seeds]).to(device)
    cache = None
    if use_cache:
        autocast = torch.is_autocast_enabled(device.type)
        cache = KVCache(model.config, B, device, torch.get_autocast_dtype(device.type) if autocast else model.lm_head.weight.dtype)
    idx, trace = idx.clone(), None
    if return_trace:
        trace = {'order': order, 'step': torch.full_like(idx, -1), 'logprob': torch.zeros_like(u)}
    for k in range(ends.size(1)):
        now = known + (ends[:, k - 1] if k else 0)
        n_new = known + ends[:, k] - now                                                     # (B,) tokens revealed in this step
        n = int(n_new.max())
        logits = model.predict(idx, order, now, n, cache)[..., :n_tokens]                    # (B, n, n_tokens)
        row, column = (torch.arange(n) < n_new.unsqueeze(-1)).nonzero(as_tuple=True)         # host: no synchronisation
        row, column, visit = torch.stack([row, column, now[row] + column]).to(device, non_blocking=True)
        position, logits = order[row, visit], logits[row, column]                            # (revealed,), (revealed, n_tokens)
        token = sample_tokens(logits, temperature, top_k, top_p, u=u[row, position])
        idx[row, position] = token
        if trace:
            trace['step'][row, position] = k
            trace['logprob'][row, position] = logits.double().log_softmax(-1).gather(-1, token.unsqueeze(-1)).squeeze(-1)
        if on_step:
            on_step(k + 1, ends.size(1), idx)
    return (idx, trace) if return_trace else idx


def schedule_ends(n_blanks, n_steps, schedule):
    """(B, steps) blanks revealed after each step by rows with n_blanks of them; a row that has finished repeats its last."""
    if isinstance(schedule, str):
        ends = [unmask_schedule(n, n_steps, schedule) for n in n_blanks]
    else:
        if any(a >= b for a, b in zip([0, *schedule], schedule)) or (schedule[-1] if schedule else 0) != max(n_blanks):
            raise ValueError(f'a schedule must increase strictly from above 0 to the {max(n_blanks)} blanks, got {list(schedule)[:8]} ...')
        ends = [[min(end, n) for end in schedule] for n in n_blanks]
    width = max(len(e) for e in ends)
    return torch.tensor([e + [n] * (width - len(e)) for e, n in zip(ends, n_blanks)], dtype=torch.long).view(len(ends), width)


def write_samples(model, prompt_ids, length, kind, seed, n_samples, n_steps, **how):
    """n_samples sequences (n_samples, length) that start with prompt_ids, and their trace; sample r depends on seed + r alone."""
    if not 0 < length <= model.config.block_size:
        raise ValueError(f'length must be 1 to block_size={model.config.block_size}, got {length}')
    if len(prompt_ids) > length:
        raise ValueError(f'the prompt has {len(prompt_ids)} tokens and does not fit into length={length}')
    device, seeds = model.lm_head.weight.device, [seed + r for r in range(n_samples)]
    known = (torch.arange(length) < len(prompt_ids)).expand(n_samples, length)
    idx = torch.zeros(n_samples, length, dtype=torch.long)
    idx[known] = torch.tensor(list(prompt_ids) * n_samples, dtype=torch.long)
    orders = torch.cat([sample_order(1, length, kind, generator=stream(s, 'order')) for s in seeds])
    orders, n_known = blanks_last(known, orders)
    return generate(model, idx.to(device), orders.to(device), n_known, n_steps, seeds=seeds, return_trace=True, **how)


def main(config):
    if config.n_samples < 1:
        raise ValueError(f'n_samples must be at least 1, got {config.n_samples}')
    unmask_schedule(1, config.n_steps, config.schedule)
    check_drawing(config.temperature, config.top_k, config.top_p)
    check_out(config.out)
    checkpoint, tokenizer = open_checkpoint(config.ckpt)
    device, dtype = resolve_device(config.device, config.dtype)
    model = model_from_checkpoint(checkpoint, config.weights, device)
    length = config.length or model.config.block_size
    start = time.perf_counter()
    with tqdm(unit='step', mininterval=0.2, leave=False) as bar, \
            torch.autocast(torch.device(device).type, getattr(torch, dtype), enabled=dtype == 'bfloat16'):
        def on_step(done, total, idx):
            bar.total = total
            bar.update(done - bar.n)
        idx, trace = write_samples(model, tokenizer.encode(config.prompt), length, config.order, config.seed, config.n_samples,
                                   config.n_steps, schedule=config.schedule, temperature=config.temperature, top_k=config.top_k,
                                   top_p=config.top_p, use_cache=config.use_cache, on_step=on_step)
        idx = idx.cpu()
    seconds = time.perf_counter() - start
    drawn = (trace['step'] >= 0).sum(-1).cpu()
    nats = -trace['logprob'].sum(-1).cpu() / drawn.clamp(min=1)
    for r, row in enumerate(idx.tolist()):
        print(f'--- sample {r} (seed {config.seed + r})\n{tokenizer.decode(row)}')
    print('---')
    for name, value in {
            'checkpoint': f"{config.ckpt}, {config.weights} weights, iteration {checkpoint.get('iter_num', '?')}",
            'model': f'{model.n_parameters():,} parameters, {model.config.block_size} positions, {tokenizer.name} tokens',
            'order': f'{config.order}, {int(trace["step"].max()) + 1} steps for {int(drawn.max())} tokens, {config.schedule} schedule',
            'drawing': f'temperature {config.temperature:g}, top_k {config.top_k}, top_p {config.top_p:g}, seed {config.seed}',
            'nats per token': ', '.join(f'{x:.3f}' for x in nats.tolist()[:8]) + ' (untempered model, as drawn)',
            'time': f'{seconds:.2f} s, {int(drawn.sum()) / seconds:,.0f} tokens/s on {device} in {dtype}'}.items():
        print(f'{name:<16}{value}')
    if config.out:
        rows = [{'text': tokenizer.decode(tokens), 'tokens': tokens, **{k: v[r].tolist() for k, v in trace.items()}}
                for r, tokens in enumerate(idx.tolist())]
        result = {'config': config, 'seconds': seconds, 'samples': rows}
        replace_file(config.out, lambda f: f.write(json.dumps(result).encode()))
        print(f'{"written":<16}{config.out}')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
