"""
How are tokens drawn? Schedules, drawing, policies, and `generate`, which fills the blanks of a text in any order.
"""
import math

import torch

from anyorder.fast import freeze, product_dtype, split_rows
from anyorder.orders import given_first, sample_order, stream
from model import KVCache, float32_or_better

ADAPTIVE = ('top_prob', 'margin', 'entropy')


def unmask_schedule(n_tokens, n_steps, kind='linear'):
    """How many of n_tokens blanks are revealed after each step: strictly increasing, the last is n_tokens.

    ends_k = max(floor(n (1 - m_k)), ends_{k-1} + 1),   m_k the share that is masked after step k, see mask_share

    n_steps >= 1; more steps than tokens are one token a step. Source: the deterministic schedule of AO's release."""
    check_schedule(n_steps, kind)
    n_steps, ends = min(n_steps, n_tokens), []
    for k in range(1, n_steps + 1):
        share = n_tokens * k // n_steps if kind == 'linear' else int(n_tokens * (1 - mask_share(k, n_steps, kind)))
        ends.append(n_tokens if k == n_steps else max(share, (ends[-1] if ends else 0) + 1))
    return ends


def binomial_schedule(n_tokens, n_steps, kind='linear', generator=None):
    """How many of n_tokens blanks are revealed after each step of masked-diffusion ancestral sampling (AO Lemma 1): from mask
    level t to s every blank stays with probability s / t. Equal in law: blank i is revealed when the level falls to a uniform
    number of its own, so that ends_k = #{i: u_i >= m_k}. Not strictly increasing: a step may reveal nothing."""
    check_schedule(n_steps, kind)
    levels = torch.tensor([mask_share(k, n_steps, kind) for k in range(1, n_steps)] + [0.0], dtype=torch.float64)
    times = torch.rand(n_tokens, dtype=torch.float64, generator=generator).sort().values
    return (n_tokens - torch.searchsorted(times, levels)).tolist()


def mask_share(k, n_steps, kind):
    """The share that is masked after step k of n_steps: 1 - k / n_steps (linear) or cos(pi k / (2 n_steps)) (cosine)."""
    return 1 - k / n_steps if kind == 'linear' else math.cos(k / n_steps * math.pi / 2)


def check_schedule(n_steps, kind):
    if n_steps < 1:
        raise ValueError(f'n_steps must be at least 1, got {n_steps}')
    if kind not in ('linear', 'cosine'):
        raise ValueError(f"schedule must be 'linear' or 'cosine', got {kind!r}")


def schedule_ends(n_blanks, n_steps, schedule, unmask='fixed', seeds=None):
    """(B, steps) blanks revealed after each step by rows with n_blanks of them; a row that has finished repeats its last."""
    if unmask == 'binomial':
        ends = [binomial_schedule(n, n_steps, schedule, stream(s, 'unmask')) for n, s in zip(n_blanks, seeds)]
    elif isinstance(schedule, str):
        ends = [unmask_schedule(n, n_steps, schedule) for n in n_blanks]
    else:
        if any(a >= b for a, b in zip([0, *schedule], schedule)) or (schedule[-1] if schedule else 0) != max(n_blanks):
            raise ValueError(f'a schedule must increase strictly from above 0 to the {max(n_blanks)} blanks, got {list(schedule)[:8]} ...')
        ends = [[min(end, n) for end in schedule] for n in n_blanks]
    width = max(len(e) for e in ends)
    return torch.tensor([e + [n] * (width - len(e)) for e, n in zip(ends, n_blanks)], dtype=torch.long).view(len(ends), width)


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
    that crosses it stays), in float32 or better. One uniform number u (...) in [0, 1) a row, drawn from `generator` unless given;
    the token is the first j with p_0 + ... + p_j > u sum(p). Temperature 0 is argmax."""
    check_drawing(temperature, top_k, top_p)
    if temperature == 0:
        return logits.argmax(-1)
    logits = float32_or_better(logits)
    if temperature != 1:
        # at most 0, times what float32 can hold: any temperature is safe
        logits = (logits - logits.amax(-1, keepdim=True)) * max(min(1 / temperature, 1e30), 1e-30)
    if u is None:
        u = torch.rand(logits.shape[:-1], dtype=torch.float64, device=logits.device, generator=generator)
    logits = logits.reshape(-1, logits.size(-1))
    if top_k or top_p < 1:
        logits = keep_largest(logits, top_k, top_p)
    return invert_cdf(logits.softmax(-1), u.flatten()).view(u.shape)


def keep_largest(logits, top_k, top_p, width=1024):
    """logits (n, V) with -inf in place of what top_k (0: no limit) and top_p cut, see sample_tokens. Without top_k the `width` largest
    are sorted first, and all of V only in rows where these do not reach top_p: a full sort costs more than the network."""
    V = logits.size(-1)
    values, kept = logits.topk(min(top_k or width, V))                                       # (n, k), the largest first
    among = values if top_k else logits
    p = (values.double() - among.double().logsumexp(-1, keepdim=True)).exp()
    if top_p < 1:
        values = values.masked_fill(p.cumsum(-1) - p >= top_p, -torch.inf)
    cut = torch.full_like(logits, -torch.inf).scatter(-1, kept, values)
    if not top_k and width < V and (short := p.sum(-1) < top_p).any():
        cut[short] = keep_largest(logits[short], 0, top_p, V)
    return cut


def invert_cdf(p, u, width=256):
    """The first j (n,) with p_0 + ... + p_j > u sum(p), for rows p (n, V) >= 0 and u (n,) in [0, 1): first the chunk of `width` columns by
    the sums of chunks, then the column in it, so that no cumulative sum over all of V is needed."""
    whole = p.size(1) // width * width
    sums = p[:, :whole].unflatten(1, (-1, width)).sum(-1)                                    # (n, chunks)
    sums = torch.cat([sums, p[:, whole:].sum(1, keepdim=True)], 1).double()
    chunk, rest = first_above(sums.cumsum(1), u * sums.sum(1))
    column = chunk.unsqueeze(1) * width + torch.arange(width, device=p.device)               # (n, width)
    inside = p.gather(1, column.clamp(max=p.size(1) - 1)).double().masked_fill(column >= p.size(1), 0)
    return chunk * width + first_above(inside.cumsum(1), rest)[0]


def first_above(cdf, x):
    """First column (n,) of cdf (n, m) above x (n,), and x less the column before it. x is kept below the last
    column whatever the rounding, so that a column of probability zero is never found."""
    last = cdf[:, -1]
    x = torch.minimum(x, torch.nextafter(last, torch.zeros_like(last))).unsqueeze(1)
    column = torch.searchsorted(cdf, x, right=True)
    return column[:, 0], (x - torch.where(column > 0, cdf.gather(1, (column - 1).clamp(min=0)), 0.0))[:, 0]


def confidence(logits, policy):
    """Score (..., ) of logits (..., V), float32 or better: the larger, the earlier an adaptive order visits the position (KIM sec. 4).

    top_prob: max_v p(v);  margin: the largest p less the second;  entropy: sum_v p(v) log p(v), in nats"""
    parts, = split_rows(logits.size(-1), logits.reshape(-1, logits.size(-1)))
    if len(parts) > 1:   # no float32 copy of them all
        return torch.cat([confidence(part, policy) for part in parts]).view(logits.shape[:-1])
    logits = float32_or_better(logits)
    if policy == 'entropy':
        logp = logits.log_softmax(-1)
        return torch.where(logp > -torch.inf, logp.exp() * logp, 0.0).sum(-1)
    top = (logits.topk(min(2, logits.size(-1))).values - logits.logsumexp(-1, keepdim=True)).exp()
    return top[..., 0] - top[..., 1:].sum(-1) if policy == 'margin' else top[..., 0]


def draw_noise(n, scale, kind, rngs):
    """(B, n) float64: scale times standard Gumbel or Gaussian noise, from one generator a row."""
    u = torch.stack([torch.rand(n, dtype=torch.float64, generator=g) for g in rngs]).clamp(min=torch.finfo(torch.float64).tiny)
    return scale * (-(-u.log()).log() if kind == 'gumbel' else torch.special.ndtri(u))


def check_policy(policy, unmask, order_noise, order_noise_kind, threshold):
    for name, value, values in (('policy', policy, ('given', *ADAPTIVE)), ('unmask', unmask, ('fixed', 'binomial')),
                                ('order_noise_kind', order_noise_kind, ('gumbel', 'gaussian'))):
        if value not in values:
            raise ValueError(f'{name} must be one of {", ".join(values)}, got {value!r}')
    if not 0 <= order_noise < math.inf:
        raise ValueError(f'order_noise must be at least 0 and finite, got {order_noise}')
    if order_noise and policy == 'given':
        raise ValueError('order_noise is for the policies top_prob, margin and entropy, which have scores')
    if threshold is not None and (type(threshold) not in (int, float) or not 0 <= threshold <= 1
                                  or policy not in ('top_prob', 'margin') or unmask == 'binomial'):
        raise ValueError('threshold must be a probability, for top_prob and margin with fixed unmasking, '
                         f'got {threshold} for {policy} with {unmask} unmasking')


@torch.no_grad()   # not inference_mode, in which autocast casts all weights anew at every step
def generate(model, idx, order, n_known, n_steps, policy='given', schedule='linear', temperature=1.0, top_k=0, top_p=1.0,
             use_cache=True, generator=None, seeds=None, return_trace=False, unmask='fixed', order_noise=0.0,
             order_noise_kind='gumbel', threshold=None, n_visits=None, forced=False, on_step=None):
    """Fill the blanks of idx in n_steps forward passes.

    The tokens of one step see the known ones and not each other: p(step | known) = prod_i p(x_i | known)       (AO Lemma 1)

    idx       (B, N) tokens in natural order; those at order[:, n_known:] are blanks and their values are not read
    order     (B, N) a permutation of the positions a row; the first n_known (int or (B,)) are the prompt
    n_steps   forward passes, at least 1; more than there are blanks is one token a pass ('fixed'), or finer noise levels ('binomial')
    policy    'given': the blanks are revealed as `order` has them; 'top_prob', 'margin', 'entropy': each step scores all that
              remain (see confidence) in one cached call and reveals the best, drawn from that call's probabilities
    schedule  'linear', 'cosine', or a list of ends: numbers of blanks revealed after each step (then n_steps is not used)
    seeds     (B,) ints: a row's draws depend on its seed alone (one uniform number a position), not on batch or schedule;
              without them `generator` draws the seeds
    unmask    'fixed': as many a step as the schedule says; 'binomial': every row draws its own numbers, see binomial_schedule
    order_noise, order_noise_kind   scale and law ('gumbel', 'gaussian') of the noise on the scores of an adaptive policy
    threshold a probability: a step reveals every position whose score, without noise, is at least that, and at least one; for
              top_prob and margin; the schedule is not used then
    n_visits  (B,) how many visits of each row there are, default N: rows of unequal length in one batch, their positions first
    forced    the tokens that stand in the blanks of idx are revealed instead of drawn: scoring under any order and schedule
    on_step   called after each step with (step from 0, n_new (B,) revealed in it, on the host, idx, trace)
    returns idx (B, N), and with return_trace a dict of (B, N): `order`, as visited; `step` (natural order, from 0; -1 for what
              was known); `logprob` (natural order, nats, 0 for what was known) of each token under the untempered model
    """
    B, N = order.shape
    device = idx.device
    if model.training:
        raise ValueError('generate needs a model in evaluation mode (model.eval()): dropout would fall on some steps and not on others')
    check_drawing(temperature, top_k, top_p)
    check_policy(policy, unmask, order_noise, order_noise_kind, threshold)
    if idx.shape != order.shape or (order.sort(1).values != torch.arange(N, device=order.device)).any():
        raise ValueError(f'each order must be a permutation of the positions of idx, got {tuple(order.shape)} for {tuple(idx.shape)}')
    known = torch.as_tensor(n_known).cpu().expand(B)                                         # (B,) host
    stop = torch.as_tensor(N if n_visits is None else n_visits).cpu().expand(B)              # (B,) host
    if int(known.min()) < 0 or (known > stop).any() or int(stop.max()) > N or seeds is not None and len(seeds) != B:
        raise ValueError(f'0 <= n_known <= n_visits <= {N} and {B} seeds are needed, got n_known={known.tolist()[:8]}, '
                         f'n_visits={stop.tolist()[:8]}, {B if seeds is None else len(seeds)} seeds')
    if seeds is None:
        seeds = torch.randint(2 ** 62, (B,), generator=generator, device=generator.device if generator else 'cpu').tolist()
    seeds = [int(s) for s in seeds]   # of a tensor or not: a stream is named by numbers
    if threshold is None:                                                                    # (B, steps) host: known after each step
        ends = known.unsqueeze(1) + schedule_ends((stop - known).tolist(), n_steps, schedule, unmask, seeds)
    u = torch.stack([torch.rand(N, dtype=torch.float64, generator=stream(s, 'tokens')) for s in seeds]).to(device)
    dtype = product_dtype(model.lm_head.weight)
    live = (known < stop).nonzero()[:, 0]                # host: the rows that run
    at = live.to(device)
    cache = KVCache(model.config, len(live), device, dtype) if use_cache and model.config.causal else None
    network = freeze(model, dtype) if use_cache else model
    idx, order = idx.clone(), order.clone()
    trace = {'order': order, 'step': torch.full_like(idx, -1), 'logprob': torch.zeros_like(u)}
    if len(live) and cache is not None and known[live].max() - known[live].min() >= 32:
        prefill(network, cache, idx[at], order[at], known[live])
    step = -1
    while (known < stop).any():
        step += 1
        n_new = (ends[:, step] if threshold is None else stop) - known                       # (B,) revealed in this step
        if not n_new.any():                                                                  # a binomial step may reveal nothing
            continue
        n_targets = (n_new if policy == 'given' else stop - known)[live]
        place, column, visit = ragged_indices(known[live], n_targets, device)                # (m,) each; a place in `live`
        n, row = int(n_targets.max()), at[place]
        logits = network.predict(idx[at], order[at], known[live], n, cache, stop[live], (place, column))   # (m, V)
        if policy != 'given':
            score = torch.full((len(live), n), -torch.inf, dtype=torch.float64, device=device)
            score[place, column] = confidence(logits, policy).double()
            sure = None if threshold is None else score >= threshold
            if order_noise:
                rngs = [stream(seeds[r], f'noise of step {step}') for r in live]
                noise = draw_noise(N, order_noise, order_noise_kind, rngs).to(device)        # by position
                score[place, column] += noise[place, order[row, visit]]
            rank = score.argsort(dim=1, descending=True, stable=True)                        # columns, the best first
            if threshold is not None:
                rank, n_sure = given_first(rank, sure)
                n_new[live] = n_sure.cpu().clamp(min=1).minimum(n_targets)
            order[row, visit] = order[row, visit - column + rank[place, column]]
            if cache is not None:
                cache.length = known[live]   # slot n_known was run for another target
            where = torch.zeros_like(rank).index_put((place, column), torch.arange(len(place), device=device))   # in logits
            place, column, visit = ragged_indices(known[live], n_new[live], device)          # (revealed,) each
            row, logits = at[place], logits[where[place, rank[place, column]]]
        position = order[row, visit]
        token = idx[row, position] if forced else sample_tokens(logits, temperature, top_k, top_p, u=u[row, position])
        idx[row, position] = token
        trace['step'][row, position] = step
        if return_trace or on_step:
            logits = float32_or_better(logits)
            logprob = logits.gather(-1, token.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
            trace['logprob'][row, position] = logprob.double()
        known = known + n_new
        if on_step:
            on_step(step, n_new, idx, trace)
        left = (known < stop)[live]
        if not left.all():   # a row that has finished runs no more slots
            live = live[left]
            at = live.to(device, non_blocking=True)
            if cache is not None:
                cache.keep(left.nonzero()[:, 0])
    return (idx, trace) if return_trace else idx


def prefill(network, cache, idx, order, known):
    """Fill the cache with the prompts of all rows, those of about one length together, so that each costs its own tokens."""
    for length in (known // 32).unique():
        rows = (known // 32 == length).nonzero()[:, 0]
        n = min(int(known[rows].max()) + 1, order.size(1))
        part = KVCache(network.config, len(rows), cache.k.device, cache.k.dtype, n)
        network.predict(idx[rows], order[rows], known[rows], 1, part, picked=slice(0))   # the cache alone
        cache.k[:, rows, :, :n], cache.v[:, rows, :, :n], cache.length[rows] = part.k, part.v, part.length


def ragged_indices(known, n, device):
    """Indices (row, column, visit) of the next n (B,) visits of every row: column = 0 .. n[row] - 1, visit = known[row] + column. Made on
    the host, which needs no wait for the device."""
    row, column = (torch.arange(int(n.max())) < n.unsqueeze(-1)).nonzero(as_tuple=True)
    return torch.stack([row, column, known[row] + column]).to(device, non_blocking=True)


def write_samples(model, rows, order, seed, n_steps, **how):
    """generate for rows of (tokens, known) lists of any lengths; row r depends on seed + r alone. `order` is a kind of
    sample_order or, with its arguments, what order_of gives; an adaptive policy; or a list of positions. Returns idx (B, N), the trace,
    and the rows' lengths, all on the host; positions from a row's length on are padding."""
    seeds, lengths, N = [seed + r for r in range(len(rows))], [len(tokens) for tokens, _ in rows], max(len(tokens) for tokens, _ in rows)
    idx, orders = torch.zeros(len(rows), N, dtype=torch.long), torch.arange(N).repeat(len(rows), 1)
    for r, (tokens, known) in enumerate(rows):
        if isinstance(order, list):
            check_order(order, len(tokens))
            visits = torch.tensor(order)
        else:
            kind = order if isinstance(order, dict) else {'kind': 'random' if order in ADAPTIVE else order}
            visits = sample_order(1, len(tokens), **kind, generator=stream(seeds[r], 'order of a sample'))[0]
        idx[r, :len(tokens)], known = torch.tensor(tokens), torch.tensor(known)
        orders[r, :len(tokens)] = torch.cat([known.nonzero()[:, 0], visits[~known[visits]]])   # what is known left to right, then blanks
    n_known = torch.tensor([sum(known) for _, known in rows])
    device = model.lm_head.weight.device
    idx, trace = generate(model, idx.to(device), orders.to(device), n_known, n_steps, order if order in ADAPTIVE else 'given', seeds=seeds,
                          n_visits=torch.tensor(lengths), return_trace=True, **how)
    return idx.cpu(), {name: value.cpu() for name, value in trace.items()}, lengths


def check_order(order, n):
    if sorted(order) != list(range(n)):
        raise ValueError(f'an order must hold every position of the sample, from 0 to {n - 1}, once; got {len(order)} from '
                         f'{min(order, default=None)} to {max(order, default=None)}')


def collect(idx, trace, lengths, tokenizer):
    """What write_samples returned, as a list of dicts, one a sample."""
    samples = []
    for r, n in enumerate(lengths):
        tokens, row = idx[r, :n].tolist(), {name: value[r, :n].tolist() for name, value in trace.items()}
        samples.append({'text': tokenizer.decode(tokens), 'tokens': tokens, 'nats': 0.0 - sum(row['logprob']),
                        'blanks': sum(step >= 0 for step in row['step']), **row})
    return samples
