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
import os
from datetime import timedelta
from functools import partial

import numpy as np
import torch

from anyorder.checkpoint import Checkpoint, digest
from anyorder.fast import freeze
from anyorder.files import check_out, progress, write_json
from anyorder.journal import Journal
from anyorder.likelihood import (  # noqa: F401  (so that a program may take them from here)
    block_nll,
    check_ensemble,
    choose_groups,
    conditional_logprob,
    context_logprobs,
    draw_known,
    ensemble_block_nll,
    ensemble_nll,
    ensemble_totals,
    estimate_of,
    last_word_hits,
    last_words,
    powers_of_two,
)
from anyorder.orders import derive_seed, draw_orders
from anyorder.processes import end_processes, first_process_first, gather, processes, start_processes
from anyorder.tables import format_table, share_error, summarize, unigram_row
from configurator import at_least, configure, one_line_errors, refuse_idle
from data.blocks import all_blocks, check_length, open_split
from data.prepare import DATA_SETS
from data.sources import TextFile
from data.tokenizers import encode_documents

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

    def in_order(order):
        return lambda numbers, bar: block_nll(model, blocks[numbers], draw_orders(numbers, N, 1, c.seed, order)[:, 0], c.batch_size,
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
    passes = {'l2r': (in_order({'kind': 'l2r'}), {'l2r'}, c.batch_size, lambda b: N),
              'own': (in_order(run_order), {'own'}, c.batch_size, lambda b: N),
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


def main(config):
    kinds, (rank, world_size) = check_options(config), processes()
    checkpoint = Checkpoint(config.ckpt)
    run, tokenizer = checkpoint.run, checkpoint.tokenizer
    names = [name for n in (config.datasets or run.get('dataset', '')).split(',') if (name := n.strip())]
    if not names:
        raise ValueError('the checkpoint does not name its data set: say which with --datasets=')
    if 'accuracy' in kinds and 'lambada' not in names:
        raise ValueError(f'accuracy is of the set lambada, which is not among {", ".join(names)}')
    args, run_order = checkpoint.config, checkpoint.order
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
    model = checkpoint.model(config.weights, device)
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
    say(f"{checkpoint.about(config.weights)}, {model.n_parameters():,} parameters\n"
        f'blocks of {N} {tokenizer.name} tokens, {device}, {dtype}, seed {config.seed}, {world_size} processes'
        + f'; {len(journal.done):,} results are there already' * bool(journal.done))
    if N != 1024 and any(name in DATA_SETS and DATA_SETS[name].splits for name in names):
        say(f'published numbers are of context 1024: those of context {N} below are not comparable with them')
    model, results = freeze(model, getattr(torch, dtype)), []
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
        result = {'config': config, 'iter_num': checkpoint.entries.get('iter_num'), 'dtype': dtype, 'results': results}
        write_json(config.out, result)
        print(f'\nwritten: {config.out}')
    end_processes()


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
