"""
Likelihood of a text under a trained model: left to right, any-order bound, importance-weighted bound, context-order ensemble.

    python eval_ppl.py --ckpt=out/ckpt.pt
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=lambada,wikitext2,wikitext103,ptb,lm1b --estimates=l2r,any,ensemble,accuracy
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=ptb --estimates=ensemble --n_contexts=64 --n_positions=64 --out=ppl.json
    torchrun --standalone --nproc_per_node=8 eval_ppl.py --ckpt=out/ckpt.pt --datasets=wikitext103 --estimates=any,iw --n_orders=16

l2r       -log p(x), exact
own       the same in the one order that a model was trained in, if it was another one (--order=fixed, block, r2l)
any       E_sigma[-log p(x | sigma)] over n_orders uniform random orders, a bound
iw        -log 1/K sum_k p(x | sigma_k) over the same orders, a tighter bound, for K = 1, 2, 4, ..., n_orders
ensemble  sum_i -log 1/M sum_j p(x_i | perm_j(context of i)), for M = 1, 2, 4, ..., n_contexts; member 1 is the order of `any` itself
accuracy  of LAMBADA's last word, left to right, greedy and exact

A set is cut once into consecutive blocks of block_size, its tail dropped. Orders and contexts of a block are a function of the seed
and of its number among the blocks evaluated, so that neither batch size nor the number of processes changes them. Errors are standard
errors over blocks, as if these were independent, which blocks of one document are not. Protocols: `paper` reads the test splits, but of
WikiText2 the train split, as SEDD and its successors do; `clean` reads test splits only.
"""
import hashlib
import math
import os
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from configurator import at_least, check_out, configure, one_line_errors, refuse_idle
from data.blocks import all_blocks, check_length, open_split
from data.hub import open_checkpoint
from data.prepare import DATA_SETS, TextFile, encode_documents, progress, write_json
from devices import autocast, end_processes, first_process_first, gather, processes, start_processes
from model import config_from_checkpoint, derive_seed, float32_or_better, model_from_checkpoint, order_of, sample_order, stream
from run_folder import Journal
from tables import format_table, share_error, summarize, unigram_row

# which model
ckpt = 'out/ckpt.pt'       # a checkpoint: a path, or hf:OWNER/REPO/path.pt
weights = 'ema'            # 'ema' or 'raw'
# on what
datasets = ''              # names of prepared sets or text files of your own, with commas; '' is what the checkpoint was trained on
protocol = 'paper'         # splits of the zero-shot sets: 'paper' (test, but WikiText2 train) or 'clean' (test)
split = 'val'              # split of all other prepared sets
data_dir = ''              # where prepared sets are; '' is where the checkpoint's are
n_blocks = 0               # blocks of a set, spread evenly over it; 0 is all
# which estimates
estimates = ''             # of l2r, own, any, iw, ensemble, accuracy; '' is that of its training and, of a decoder, l2r
n_orders = 1               # any, iw: random orders a block
n_contexts = 16            # ensemble: members, the order itself included
n_positions = 0            # ensemble: visits of a block that are evaluated, a stratified sample; 0 is all
ensemble_block = 1         # ensemble: visits that share a context: b times cheaper, b = 1 is the paper's
seed = 1337                # orders, contexts and sampled visits of a block are a function of it and of the block's number
# system
batch_size = 16            # blocks a forward pass, contexts of about as many tokens
device = 'auto'            # 'cpu', 'cuda', 'cuda:1', ...
dtype = 'float32'          # 'float32', 'bfloat16' or 'auto'
out = ''                   # write the table to this JSON file, and every finished block to FILE.blocks.jsonl: a killed run goes on there

ESTIMATES = ('l2r', 'own', 'any', 'iw', 'ensemble', 'accuracy')
PAPER_SPLITS = {'wikitext2': 'train'}   # protocol 'paper', where it is not the test split


# ---------------------------------------------------------------------------------------------------------------------
# nats of blocks

@torch.no_grad()
def block_nll(model, blocks, orders, batch_size, dtype='float32', bar=None, n_known=None, n_given=None, counted=None):
    """Nats of every block under its own order, sum_d -log p(x_{order_d} | x_{order_<d}): (n,) float64 for blocks, orders (n, N), over those
    visits d that are `counted` (n, N) bool, by default all.

    An encoder needs N passes for that; with n_known (n,), uniform from 0 to N - 1, one pass estimates the mean over orders without bias,
    see AOGPT.forward, as for n_given (n,), which wants a single pass: a decoder, or n_known."""
    device, sums = model.lm_head.weight.device, []
    for rows in torch.arange(len(blocks)).split(batch_size):
        idx, order = blocks[rows].to(device), orders[rows].to(device)
        how = {name: x[rows].to(device) for name, x in (('n_known', n_known), ('n_given', n_given)) if x is not None}
        with autocast(device, dtype):
            one_pass = model.config.causal or n_known is not None
            nll = model(idx, order, **how) if one_pass else one_by_one(model, idx, order)
        nll = nll if counted is None else nll.masked_fill(~counted[rows].to(device), 0)
        sums.append(nll.double().sum(-1))
        if bar is not None:
            bar.update(idx.numel())
    return torch.cat(sums).cpu() if sums else torch.zeros(0, dtype=torch.float64)


def one_by_one(model, idx, order):
    """nll (B, N) of every visit given those before it, by a pass for each: what a decoder's forward gives at once."""
    tokens = idx.gather(1, order)
    return torch.stack([F.cross_entropy(float32_or_better(model.predict(idx, order, d, 1)[:, 0]), tokens[:, d], reduction='none')
                        for d in range(order.size(1))], 1)


def estimate_of(order):
    """The estimate that measures the order which order_of gave."""
    return {'random': 'any', 'l2r': 'l2r'}.get(order['kind'], 'own')


def draw_orders(numbers, block_size, n_orders=1, seed=0):
    """(len(numbers), K, N) uniform random orders of the blocks of these numbers: a function of (seed, number)."""
    return torch.stack([sample_order(n_orders, block_size, generator=stream(seed, int(b))) for b in numbers])


def draw_known(numbers, block_size, n_orders=1, seed=0, n_given=0):
    """(len(numbers), K) numbers of known visits, each uniform from n_given (0 or (len(numbers), 1)) to N - 1, the K of a block one from
    each of K equal parts of that range: a function of (seed, number)."""
    u = torch.stack([torch.rand(n_orders, dtype=torch.float64, generator=stream(seed, int(b), 'known')) for b in numbers])
    return n_given + ((torch.arange(n_orders) + u) / n_orders * (block_size - n_given)).long()


def ensemble_nll(logprobs):
    """Nats of the mixture of equally weighted members, -log 1/M sum_j exp(logprobs_j), over the last dimension."""
    return math.log(logprobs.size(-1)) - logprobs.logsumexp(-1)


def powers_of_two(n):
    """1, 2, 4, ... up to n, and n."""
    return [2 ** k for k in range(n.bit_length()) if 2 ** k < n] + [n]


@torch.no_grad()
def context_logprobs(model, idx, order, i, n_contexts, generator=None):
    """log p(x_{order_i} | prefix) under n_contexts orders of the prefix order[:, :i]                          (AO eq. of p_ens)

    idx (B, N'), order (B, T), visit 0 <= i < T; returns (B, K) nats: column 0 is the order itself, the others shuffle the
    prefix. Runs i + 1 slots and one row of the head a context."""
    (B, T), K = order.shape, n_contexts
    if not 0 <= i < T or K < 1:
        raise ValueError(f'visit i must be 0 to {T - 1} and n_contexts at least 1, got i={i} and n_contexts={K}')
    shuffles = torch.rand(B, K, i, generator=generator, dtype=torch.float64, device=generator.device if generator else 'cpu').argsort(-1)
    shuffles[:, 0] = torch.arange(i)
    prefix = order[:, None, :i].expand(B, K, i).gather(2, shuffles.to(order.device))        # (B, K, i)
    orders = torch.cat([prefix, order[:, None, i:i + 1].expand(B, K, 1)], dim=2).flatten(0, 1)
    return -model(idx.repeat_interleave(K, 0), orders, columns=torch.full((B * K, 1), i)).view(B, K)


def shuffled_contexts(order, groups, width, n_contexts, seed):
    """Yields for each group g of `width` visits the orders (n_contexts - 1, end of g): its own visits as in order (N,), after a
    shuffle of all before them. A function of (seed, g)."""
    for g in groups:
        start, end = g * width, min((g + 1) * width, len(order))
        keys = torch.rand(n_contexts - 1, start, dtype=torch.float64, generator=stream(seed, g))
        yield torch.cat([order[:start][keys.argsort(1)], order[start:end].expand(n_contexts - 1, -1)], 1)


def batches_of(pieces, n_tokens):
    """Batch tensors (n, length), by increasing length, into lists of similar length and of about n_tokens once padded to the longest."""
    batch, rows = [], 0
    for piece in pieces:
        for part in piece.split(max(1, n_tokens // piece.size(1))):
            if batch and ((rows + len(part)) * piece.size(1) > n_tokens or piece.size(1) > 1.25 * batch[0].size(1) + 8):
                yield batch
                batch, rows = [], 0
            batch.append(part)
            rows += len(part)
    if batch:
        yield batch


@torch.no_grad()
def ensemble_block_nll(model, idx, order, n_contexts, groups, width=1, seed=0, n_tokens=2 ** 14, bar=None):
    """Nats of the visits of one block in each of its contexts.

    The visits of group g, order[g width : (g + 1) width], are read in order after a shuffle of the visits before the group; width 1 is
    the paper's ensemble. One pass runs the slots up to the group's end, and head and last layer on the group alone; contexts of
    all groups go through in batches of n_tokens slots. The precision is that of the model, see AOGPT.frozen.
    idx, order (N,), groups increasing; returns (own, members) float64: own () of the whole block in the order itself, members
    (len(groups), M, width), of which member 0 is the order itself; 0 behind the last visit"""
    device, N = model.lm_head.weight.device, len(order)
    own = model(idx[None].to(device), order[None].to(device))[0].double().cpu()
    if bar is not None:
        bar.update(N)
    members = F.pad(own, (0, -N % width)).view(-1, width)[groups].unsqueeze(1).repeat(1, n_contexts, 1)
    fresh = [j for j, g in enumerate(groups) if g * width > 1]                               # a shuffle of 0 or 1 visits changes nothing
    if n_contexts == 1 or not fresh:
        return own.sum(), members
    visits = torch.tensor(groups)[fresh].unsqueeze(1) * width + torch.arange(width)          # (fresh, width)
    columns, nlls = visits.clamp(max=N - 1).repeat_interleave(n_contexts - 1, 0).to(device), []   # (rows, width), group by group
    for batch in batches_of(shuffled_contexts(order, [groups[j] for j in fresh], width, n_contexts, seed), n_tokens):
        orders = torch.cat([F.pad(part, (0, batch[-1].size(1) - part.size(1))) for part in batch]).to(device)         # (rows, T)
        nlls.append(model(idx.to(device).expand(len(orders), N), orders, columns=columns[:len(orders)]))
        columns = columns[len(orders):]
        if bar is not None:
            bar.update(sum(part.numel() for part in batch))
    nlls = torch.cat(nlls).double().cpu().view(len(fresh), n_contexts - 1, width)            # no batch has waited for the one before
    members[fresh, 1:] = nlls.masked_fill((visits >= N).unsqueeze(1), 0)
    return own.sum(), members


def sample_groups(n_groups, n_sampled, seed):
    """(groups, weights): one of each of n_sampled strata of 0 .. n_groups - 1, and how many it stands for; all when 0 is asked for."""
    if not 0 < n_sampled < n_groups:
        return list(range(n_groups)), torch.ones(n_groups, dtype=torch.float64)
    edges = torch.linspace(0, n_groups, n_sampled + 1, dtype=torch.float64).round().long()
    sizes = edges.diff()
    u = torch.rand(n_sampled, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (edges[:-1] + (u * sizes).long()).tolist(), sizes.double()


def choose_groups(block_size, c, seed):
    """sample_groups for a block whose visits go in groups of ensemble_block: as many as n_positions pays for, 0 is all."""
    n_sampled = 0 if c.n_positions >= block_size else c.n_positions // c.ensemble_block
    return sample_groups(-(-block_size // c.ensemble_block), n_sampled, seed)


def ensemble_totals(own, members, weights):
    """(n,) nats of a block for M = 1, 2, 4, ...: the total of the order itself plus the weighted sum over the groups that were
    evaluated of what M members change. Unbiased, and exact when all groups are there: only the change is sampled, not the total."""
    change = torch.stack([ensemble_nll(-members[:, :m].transpose(1, 2)) - members[:, 0] for m in powers_of_two(members.size(1))])
    return own + (change.sum(-1) * weights).sum(-1)                                          # (n, groups) -> (n,)


@torch.no_grad()
def conditional_logprob(model, idx, a, b, n_orders=0, generator=None):
    """log p(x_a | x_b) of two disjoint sets of positions under a decoder, in nats, (B,) for idx (B, N).

    Every order of b and then a gives another value: n_orders = 0 reads each left to right; K averages over K random orders of both,
    log 1/K sum_k p(x_a | x_b, sigma_k), a mixture of K models. a (n,) and b (m,) are lists or tensors; b may be empty."""
    a, b = (torch.as_tensor(positions, dtype=torch.long).flatten() for positions in (a, b))
    both = torch.cat([b, a])
    if n_orders < 0 or not len(a) or len(both.unique()) < len(both) or both.min() < 0 or both.max() >= idx.size(1):
        raise ValueError(f'a and b must be disjoint sets of positions below {idx.size(1)}, a not empty; '
                         f'got {a.tolist()} and {b.tolist()}, n_orders={n_orders}')
    orders = [torch.cat([b.sort().values, a.sort().values])]
    if n_orders:
        orders = [torch.cat([p[torch.randperm(len(p), generator=generator)] for p in (b, a)]) for _ in range(n_orders)]
    last = torch.arange(len(b), len(both)).expand(len(idx), -1)                             # the visits of a
    nats = torch.stack([model(idx, order.to(idx.device).expand(len(idx), -1), columns=last).double().sum(-1) for order in orders], -1)
    return -ensemble_nll(-nats)


@torch.no_grad()
def last_word_hits(model, rows, batch_size, bar=None):
    """For rows of (context tokens, last-word tokens): whether greedy decoding, left to right, writes exactly the last word, which is
    whether each of its tokens is the most likely one after the true ones before it. Contexts are cut from the left to the model's
    block_size; a word that does not fit is missed. Returns a list of bools in the order of rows."""
    device, N, hits = model.lm_head.weight.device, model.config.block_size, [False] * len(rows)
    fit = sorted((r for r in range(len(rows)) if len(rows[r][1]) <= N), key=lambda r: len(rows[r][0]) + len(rows[r][1]))
    for chunk in (fit[i:i + batch_size] for i in range(0, len(fit), batch_size)):
        texts, sizes = [(rows[r][0] + rows[r][1])[-N:] for r in chunk], torch.tensor([len(rows[r][1]) for r in chunk])
        width, first = max(map(len, texts)), torch.tensor([len(t) for t in texts]) - sizes
        idx = torch.tensor([t + [0] * (width - len(t)) for t in texts], device=device)
        visits = torch.arange(width, device=device).expand(len(texts), -1)
        columns = (first.unsqueeze(1) + torch.arange(int(sizes.max()))).clamp(max=width - 1).to(device)   # (n, longest word)
        best = model.logits(idx, visits, columns).argmax(-1)
        right = (best == idx.gather(1, columns)).cpu() | (torch.arange(int(sizes.max())) >= sizes.unsqueeze(1))
        for r, hit in zip(chunk, right.all(1).tolist()):
            hits[r] = hit
        if bar is not None:
            bar.update(len(texts))
    return hits


def last_words(tokens, tokenizer):
    """Rows of a stream (documents that end in end-of-text) as (context tokens, last-word tokens), the word with the blank before it."""
    rows = []
    for row in np.split(tokens, np.flatnonzero(tokens == tokenizer.eos) + 1):
        ids = row[row != tokenizer.eos].tolist()
        context, blank, word = tokenizer.decode(ids).rpartition(' ')
        n = len(tokenizer.encode(blank + word))
        if context and word and ids[-n:] == tokenizer.encode(blank + word):
            rows.append((ids[:-n], ids[-n:]))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# the sets that are measured

def read_tokens(name, split, data_dir, tokenizer):
    """(tokens, where they are from) of a prepared set by name, or of a text file by path (every document followed by end-of-text)."""
    if is_file(name):
        if tokenizer.eos is None:
            raise ValueError(f'{name} is text, the checkpoint is of {tokenizer.name} puzzles, which python eval_puzzle.py gives it')
        documents = list(encode_documents(TextFile(name), tokenizer))
        if not sum(n_bytes for _, n_bytes in documents):
            raise ValueError(f'{name} holds no text')
        tokens = np.concatenate([tokens for tokens, _ in documents])
        return tokens, {'source': name, 'sha256': hashlib.sha256(tokens.tobytes()).hexdigest()}
    tokens, meta = open_split(data_dir, name, split)
    if tokens.ndim == 2:
        raise ValueError(f'{name} is a set of puzzles: python eval_puzzle.py --dataset={name} says how many are solved')
    if meta['tokenizer'] != tokenizer.name:
        raise ValueError(f"the model reads {tokenizer.name} tokens, {data_dir}/{name} holds {meta['tokenizer']} tokens: prepare it "
                         f'with --tokenizer={tokenizer.name}, under another --name if that one is still wanted')
    return tokens, {key: meta['splits'][split][key] for key in ('source', 'sha256')}


def is_file(name):
    return os.path.isfile(name) or name.endswith(('.txt', '.jsonl', '.xz', '.gz'))


def open_sets(names, block_size, tokenizer, data_dir, c):
    """{name: (label with split and protocol, {source, sha256}, tokens, blocks (n, N))} of prepared sets and text files."""
    sets, protocols = {}, [name for name in names if name in DATA_SETS and DATA_SETS[name].splits]
    has_split = any(not is_file(name) and name not in protocols for name in names)
    refuse_idle(c, *['split'] * (not has_split), *['protocol'] * (not protocols))   # which says what split it is
    for name in names:
        split, label = '', os.path.basename(name)
        if not is_file(name):
            zero_shot = name in protocols
            split = (PAPER_SPLITS.get(name, 'test') if c.protocol == 'paper' else 'test') if zero_shot else c.split
            label = f'{name} ({split}, protocol {c.protocol})' if zero_shot else f'{name} ({split})'
        tokens, origin = read_tokens(name, split, data_dir, tokenizer)
        check_length(tokens, block_size, name)
        sets[name] = label, origin, tokens, all_blocks(tokens, block_size, c.n_blocks)
    return sets


# ---------------------------------------------------------------------------------------------------------------------
# nats of sets, in runs that may be killed

def run_pass(name, n_blocks, chunk, work, journal):
    """Nats (n_blocks, m) float64, of which work(numbers) gives (len(numbers), m): runs what is not in the journal, in chunks that the
    processes take in turn."""
    rank, world_size = processes()
    todo = [n for n in range(n_blocks) if (*name, n) not in journal.done]
    chunks = [todo[i:i + chunk] for i in range(0, len(todo), chunk)]
    for i in range(0, len(chunks), world_size):
        mine = chunks[i + rank] if i + rank < len(chunks) else []
        found = dict(zip([(*name, n) for n in mine], work(mine).tolist() if mine else []))
        journal.add({key: nats for part in gather(found) for key, nats in part.items()})
    return torch.tensor([journal.done[(*name, n)] for n in range(n_blocks)], dtype=torch.float64)


def evaluate(model, label, blocks, n_bytes, kinds, c, journal, run_order):
    """Rows of the table for the set `label` of blocks (n, N): the estimates `kinds` with the options c; 'own' is of `run_order`."""
    n, N = blocks.shape
    name = [label, hashlib.blake2b(blocks.numpy().tobytes(), digest_size=8).hexdigest()]

    def groups(b):
        return choose_groups(N, c, derive_seed(c.seed, 'positions', b))

    def in_order(**how):
        return lambda numbers, bar: block_nll(model, blocks[numbers], sample_order(len(numbers), N, **how), c.batch_size,
                                              bar=bar).unsqueeze(1)

    def orders(numbers, bar):
        drawn = draw_orders(numbers, N, c.n_orders, c.seed).flatten(0, 1)
        known = None if model.config.causal or 'iw' in kinds else draw_known(numbers, N, c.n_orders, c.seed).flatten()
        repeated = blocks[numbers].repeat_interleave(c.n_orders, 0)
        return block_nll(model, repeated, drawn, c.batch_size, bar=bar, n_known=known).view(len(numbers), -1)

    def ensemble(numbers, bar):
        totals = []
        for b in numbers:
            (chosen, weights), order = groups(b), draw_orders([b], N, 1, c.seed)[0, 0]
            own, members = ensemble_block_nll(model, blocks[b], order, c.n_contexts, chosen, c.ensemble_block,
                                              derive_seed(c.seed, 'contexts', b), c.batch_size * N, bar)
            totals.append(ensemble_totals(own, members, weights))
        return torch.stack(totals)

    def ensemble_cost(b):
        return N + (c.n_contexts - 1) * sum(min(N, (g + 1) * c.ensemble_block) for g in groups(b)[0])
    # nats of blocks, the estimates that want them, blocks at a time, tokens that are run for one
    passes = {'l2r': (in_order(kind='l2r'), {'l2r'}, c.batch_size, lambda b: N),
              'own': (in_order(**run_order), {'own'}, c.batch_size, lambda b: N),
              'orders': (orders, {'any', 'iw'}, max(1, c.batch_size // c.n_orders), lambda b: N * c.n_orders),
              'ensemble': (ensemble, {'ensemble'}, 1, ensemble_cost)}
    (rank, world_size), nats, rows = processes(), {}, []
    for kind, (work, wanted, chunk, cost) in passes.items():
        key = (*name, kind)
        if wanted & set(kinds):
            total = sum(cost(b) for b in range(n) if (*key, b) not in journal.done) // world_size
            with progress(total=total, desc=f'{label} {kind}', unit='tok', unit_scale=True, leave=False, disable=rank > 0) as bar:
                nats[kind] = run_pass(key, n, chunk, partial(work, bar=bar), journal)

    def row(name, column, kind='', n=1):
        return {'kind': kind, 'n': n} | summarize(name, column, N, n_bytes)
    if 'l2r' in kinds:
        rows.append(row('left to right', nats['l2r'][:, 0], 'l2r'))
    if 'own' in kinds:
        rows.append(row(f"own order ({run_order['kind']})", nats['own'][:, 0], 'own'))
    if 'any' in kinds:
        rows.append(row(f'any order x {c.n_orders}', nats['orders'].mean(1), 'any', c.n_orders))
    if 'iw' in kinds:
        rows += [row(f'iw x {k}', ensemble_nll(-nats['orders'][:, :k]), 'iw', k) for k in powers_of_two(c.n_orders)]
    if 'ensemble' in kinds:
        for m, column in zip(powers_of_two(c.n_contexts), nats['ensemble'].T):
            gain = row('', nats['ensemble'][:, 0] - column)   # by block: their spread does not hide it
            rows.append(row(f'ensemble x {m}', column, 'ensemble', m) | {'gain': gain['nats_per_token'], 'gain_stderr': gain['stderr']})
    return rows


def accuracy(model, tokens, tokenizer, c):
    """The share of passages whose last word greedy decoding writes, with its standard error."""
    rank, world_size = processes()
    rows = last_words(tokens, tokenizer)
    if not rows:
        raise ValueError('accuracy needs rows of two words or more: the set has none')
    with progress(total=len(rows[rank::world_size]), desc='last words', unit='row', leave=False, disable=rank > 0) as bar:
        hits = sum(last_word_hits(model, rows[rank::world_size], c.batch_size, bar))
    hits = sum(gather(hits))
    return {'kind': 'accuracy', 'estimate': 'last word', 'accuracy': hits / len(rows),
            'stderr': share_error(hits, len(rows)), 'rows': len(rows)}


def check_ensemble(c):
    at_least(c, 1, 'n_contexts', 'ensemble_block')
    at_least(c, 0, 'n_positions')
    if 0 < c.n_positions < c.ensemble_block:
        raise ValueError(f'n_positions must be 0 (all) or at least ensemble_block={c.ensemble_block}, got {c.n_positions}')


def check_options(c):
    kinds = c.estimates.split(',') if c.estimates else []
    if any(kind not in ESTIMATES for kind in kinds):
        raise ValueError(f'estimates must be of {", ".join(ESTIMATES)}, got {c.estimates!r}')
    if c.protocol not in ('paper', 'clean'):
        raise ValueError(f"protocol must be 'paper' or 'clean', got {c.protocol!r}")
    at_least(c, 1, 'batch_size', 'n_orders')
    at_least(c, 0, 'n_blocks')
    check_ensemble(c)
    check_out('out', c.out, '.json', c.ckpt, *c.datasets.split(','))
    return kinds


def digest(model):
    """A hash of the model's sizes and of all of its weights."""
    fingerprint = hashlib.blake2b(repr(model.config).encode(), digest_size=16)
    for p in model.parameters():
        fingerprint.update(p.detach().cpu().numpy())
    return fingerprint.hexdigest()


def main(config):
    kinds, (rank, world_size) = check_options(config), processes()
    checkpoint, tokenizer = open_checkpoint(config.ckpt)
    run = checkpoint.get('config', {})
    names = [name for n in (config.datasets or run.get('dataset', '')).split(',') if (name := n.strip())]
    if not names:
        raise ValueError('the checkpoint does not name its data set: say which with --datasets=')
    if 'accuracy' in kinds and 'lambada' not in names:
        raise ValueError(f'accuracy is of the set lambada, which is not among {", ".join(names)}')
    args, run_order = config_from_checkpoint(checkpoint), order_of(run)
    N, causal = args.block_size, args.causal
    kinds = kinds or list(dict.fromkeys(['l2r', estimate_of(run_order)] if causal else [estimate_of(run_order)]))
    refuse_idle(config, *[] if 'ensemble' in kinds else ['n_contexts', 'n_positions', 'ensemble_block'],
                *['n_orders'] * (not {'any', 'iw'} & set(kinds)))
    if 'own' in kinds and estimate_of(run_order) != 'own':
        raise ValueError(f"own is of a model trained in one order other than left to right, this one's is {run_order['kind']}: take "
                         f'{estimate_of(run_order)}')
    device, dtype = start_processes(config.device, config.dtype, timedelta(days=7))   # one may have a long block while the others wait
    with first_process_first():   # all sets before the model: a missing one costs nothing
        sets = open_sets(names, N, tokenizer, config.data_dir or run.get('data_dir', 'data'), config)
    model = model_from_checkpoint(checkpoint, config.weights, device)
    if not causal and {'ensemble', 'accuracy'} & set(kinds):
        raise ValueError("ensemble and accuracy are a decoder's: what an encoder says does not depend on the order of the context")
    path, evaluation = '', {}
    if config.out:
        asked = {name: config[name] for name in ('weights', 'seed', 'n_orders', 'n_contexts', 'n_positions', 'ensemble_block')}
        asked |= {} if causal else {'one_by_one': 'iw' in kinds}
        asked |= {'order': run_order} if estimate_of(run_order) == 'own' else {}
        path, evaluation = f'{config.out}.blocks.jsonl', {'model': digest(model), 'dtype': dtype, **asked}
    journal = Journal(path, evaluation)
    say = print if rank == 0 else lambda *a, **k: None
    say(f"{config.ckpt}: {config.weights} weights, iteration {checkpoint.get('iter_num', '?')}, {model.n_parameters():,} parameters\n"
        f'blocks of {N} {tokenizer.name} tokens, {device}, {dtype}, seed {config.seed}, {world_size} processes'
        + f'; {len(journal.done):,} results are there already' * bool(journal.done))
    if N != 1024 and any(name in DATA_SETS and DATA_SETS[name].splits for name in names):
        say(f'published numbers are of context 1024: those of context {N} below are not comparable with them')
    model, results = model.frozen(getattr(torch, dtype)), []
    visits = min(N, len(choose_groups(N, config, 0)[0]) * config.ensemble_block)   # of a block
    for name, (label, origin, tokens, blocks) in sets.items():
        rows = evaluate(model, label, blocks, int(tokenizer.n_bytes[blocks].sum()), kinds, config, journal, run_order)
        say(f"\n{label}, from {origin['source']}" + f'; ensemble on {visits} of {N} visits a block' * ('ensemble' in kinds and visits < N))
        if rows:
            say(format_table([*rows, unigram_row(tokens, tokenizer, N)]), flush=True)
        for row in rows:
            if row.get('gain_stderr'):
                say('gain of {estimate} over x 1, block by block: {gain:.4f} ± {gain_stderr:.4f} nats/token'.format(**row))
        if 'accuracy' in kinds and name == 'lambada':
            rows.append(accuracy(model, tokens, tokenizer, config))
            say('last word, greedy: {accuracy:.2%} ± {stderr:.2%} of {rows:,} passages'.format(**rows[-1]), flush=True)
        results += [{'dataset': name, 'set': label, 'block_size': N, **origin, **row} for row in rows]
    if config.out and rank == 0:
        result = {'config': config, 'iter_num': checkpoint.get('iter_num'), 'dtype': dtype, 'results': results}
        write_json(config.out, result)
        print(f'\nwritten: {config.out}')
    end_processes()


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
