"""Likelihood of a text under a trained model: left to right, bounds over random orders, context-order ensemble, and the
law by which sample.py writes.

    python eval_ppl.py --ckpt=out/ckpt.pt
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=lambada,wikitext2,ptb,lm1b --estimates=l2r,any,ensemble,accuracy
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=ptb --estimates=ensemble --n_contexts=64 --n_positions=64
    python eval_ppl.py --ckpt=out/ckpt.pt --orders=l2r,swaps:16,swaps:26,random,block:8,FILE.json --n_orders=3
    python eval_ppl.py --ckpt=out/ckpt.pt --orders=l2r,random,margin,entropy,oracle --n_steps=0,32,16
    python eval_ppl.py --ckpt=out/ckpt.pt --orders=margin --block_length=32 --threshold=.9,.7
    torchrun --standalone --nproc_per_node=8 eval_ppl.py --estimates=any,iw --n_orders=16 --out=ppl.json

l2r       left to right: -log p(x), exact
own       the same in the order of the training, if it was neither random nor left to right; one draw a block where the
          training drew an order for each sequence
any       any order: the mean of -log p(x | sigma) over n_orders uniform random orders sigma, a bound
iw        importance-weighted: -log 1/K sum_k p(x | sigma_k) over the same orders, K = 1, 2, 4, ..., a tighter bound
ensemble  sum_i -log 1/M sum_j p(x_i | perm_j(context of i)), M = 1, 2, 4, ...; member 1 is the first order of any
accuracy  how many last words of LAMBADA's passages greedy decoding writes, left to right, and their perplexity

A row of `orders` is the mean over n_orders orders of a family, see anyorder/orders.py. `random` draws new orders for
each block. The other families have one order a seed, the same for all blocks; l2r, r2l and a file are one order in all.
A decoder takes a pass for each order. A network with a masked loss takes a pass for each visit, but for a random order
a single pass, which is one draw of what is masked.

A policy in `orders`, as margin, is the model's own choice. Its row is exact: the law by which sample.py writes, one
token a step, or `margin in 16` in 16 passes, `margin/8` inside of blocks of 8, `margin >= 0.9` by a threshold (arXiv
2603.01367). What the saved passes cost is the difference to one token a step, n_steps=0. Rows of random orders, and of
numbers of tokens that are drawn, are bounds. A true token that top_k or top_p cuts off has probability 0: such tokens
are counted. Noise on the scores is drawn, so it has no such law. `oracle` takes the most certain true token next. It
looks at the truth, so no sampler has this likelihood, and it is greedy, so another order may have a better one.

A set is cut once into consecutive blocks of block_size, and its tail is dropped. Documents with prompts are a block
each, and longer ones are cut. What is given is read in the order of the row, by a policy from left to right. The orders
and contexts of a block are a function of the seed and of its number among the evaluated blocks: batch size and
processes do not change them. Errors are standard errors over blocks, as if these were independent. The set of the
training is named where it was prepared anew since: its text may be what the model was trained on."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least, check_choice, names_in, numbers

# fmt: off
# which model
ckpt = 'out/ckpt.pt'       # a checkpoint, or a folder of export_hf.py: a path, or hf:OWNER/REPO[/path.pt];
                           # masked:FOLDER is a masked model of others
weights = 'ema'            # 'ema' or 'raw'
# on what
datasets = ''              # prepared sets by name, text files by path, with commas; '' is the set of the training
protocol = 'paper'         # splits of zero-shot sets: 'paper' (test, but WikiText2 train, as SEDD) or 'clean' (test)
split = 'val'              # split of all other prepared sets
data_dir = ''              # where prepared sets are; '' is where the checkpoint's are
block_size = 0             # tokens of a block, at most as many as the model has positions; 0 is as many
n_blocks = 0               # blocks of a set, spread evenly over it; 0 is all; accuracy takes all
blanks = ''                # positions that are measured given all others, as 32:64,70; '' what the set does not give
# which estimates
estimates = ''             # anyorder/likelihood/estimates.py:ESTIMATES,
                           # see above, with commas; '' is that of the training and a decoder's l2r, none with `orders`
orders = ''                # anyorder/orders.py:ORDERS,
                           # or with a number of its own, as swaps:16; a JSON file with a list of all positions; a
                           # function FILE.py:NAME; with commas. Or the model's choice by its scores,
                           # anyorder/generation/unmasking.py:SCORES,
                           # or oracle, which looks at the truth
n_orders = 1               # any, iw, orders: orders a block
n_contexts = 16            # ensemble: members, the order itself included
n_positions = 0            # ensemble: visits of a block that are evaluated, a stratified sample; 0 is all
ensemble_block = 1         # ensemble: visits that share a context: b times cheaper, b = 1 is the paper's
# the way of writing, for the rows of `orders`, as in sample.py
n_steps = '0'              # numbers of passes, with commas; 0 is one token a step
threshold = ''             # probabilities, with commas: more rows of margin and top_prob
block_length = None        # a policy chooses inside blocks of so many blanks, from left to right; a pass each at least
schedule = 'linear'        # tokens a step: 'linear' or 'cosine'
unmask = 'fixed'           # 'fixed', or 'binomial': how many tokens a step writes is drawn
temperature = 1.0          # the law that is measured is tempered by it, and cut by the next two
top_k = 0                  # keep the k most likely tokens; 0 keeps all
top_p = 1.0                # keep the most likely tokens that together reach this probability
seed = 1337                # draws orders, contexts and visits
# system
batch_size = 16            # blocks of a forward pass; or contexts, of about as many tokens
device = 'auto'            # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'float32'          # 'float32', 'bfloat16' or 'auto'
out = ''                   # a JSON file for the table; a killed run goes on from FILE.blocks.jsonl, its finished blocks
# fmt: on

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=())

from datetime import timedelta
from typing import NamedTuple

import torch

from anyorder.checkpoint import digest, open_checkpoint
from anyorder.datasets import changed_since
from anyorder.fast import freeze
from anyorder.generation import PROBABILITIES, SCORES, Drawing, Given, Unmasking, unmasking_of
from anyorder.generation.way import Way, order_and_policy
from anyorder.likelihood import conditional_logprob, context_logprobs, ensemble_nll  # noqa: F401  (for programs)
from anyorder.likelihood.ensemble import check_ensemble
from anyorder.likelihood.estimates import ESTIMATES, Along
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.measured import PROTOCOLS, has_protocol, open_corpus
from anyorder.likelihood.nll import is_drawn
from anyorder.likelihood.tables import format_table, unigram_row
from anyorder.likelihood.written import Written, oracle_of
from anyorder.machine.files import check_out, write_json
from anyorder.machine.processes import (
    end_processes,
    first_process_first,
    own_device,
    processes,
    start_processes,
)
from anyorder.orders import Order

POLICIES = (*SCORES, 'oracle')
PLAIN = Drawing(scores=True)  # the law of the model itself


class Asked(NamedTuple):
    """A row of `orders`.

    text      its name there
    order     what read_order gave; of a policy the order of its blocks, or the one that decides among equal scores
    said      what its label says of the passes; '': one token a step
    unmasking, drawing   as in Written"""

    text: str
    order: str | list
    said: str
    unmasking: Unmasking
    drawing: Drawing


def read_ways(c):
    """[Asked, ...] that the options ask for. Raises ValueError for what has no likelihood."""
    texts, ways, steps = (
        list(dict.fromkeys(names_in(c.orders))) if c.orders else [],
        [],
        numbers(c, 'n_steps'),
    )
    thresholds = numbers(c, 'threshold', float, 0, 1) if c.threshold else []
    drawing = Drawing(c.temperature, c.top_k, c.top_p, scores=True)
    if not texts and (any(steps) or drawing != PLAIN):
        raise ValueError(
            'n_steps, temperature, top_k and top_p say how the rows of orders are written, and there are '
            'none: name some, as --orders=l2r,margin'
        )
    for name, there, policies in (
        ('threshold', thresholds, PROBABILITIES),
        ('block_length', c.block_length is not None, POLICIES),
    ):
        if there and not {*texts} & {*policies}:
            raise ValueError(
                f'{name} is for the policies {", ".join(policies)}, got orders={c.orders}'
            )
    if c.unmask not in ('fixed', 'binomial') or c.unmask == 'binomial' and not any(steps):
        raise ValueError(
            f"unmask must be 'fixed', or 'binomial' with n_steps from 1, got {c.unmask} with n_steps="
            f'{c.n_steps}; lossless unmasking has the law of one token a step, n_steps=0'
        )
    for text in texts:
        kind, asked = (oracle_of, 'top_prob') if text == 'oracle' else (unmasking_of, text)
        order, policy = order_and_policy(asked, c.block_length)
        how = {'policy': policy} | ({'block_length': c.block_length} if policy != 'given' else {})
        made = [('', kind(n_steps=2**31, **how))] * (0 in steps)
        by_schedule = how | {'schedule': c.schedule, 'unmask': c.unmask}
        made += [(f' in {n}', kind(n_steps=n, **by_schedule)) for n in dict.fromkeys(steps) if n]
        made += [
            (f' >= {p:g}', kind(threshold=p, **how)) for p in thresholds if text in PROBABILITIES
        ]
        ways += [Asked(text, order, *one, drawing) for one in made]
    return ways


def check_options(c):
    """(names of the estimates, the ways) asked for. Raises ValueError for options that no checkpoint could serve."""
    names = c.estimates.split(',') if c.estimates else []
    if any(name not in ESTIMATES for name in names):
        raise ValueError(f'estimates must be among {", ".join(ESTIMATES)}, got {c.estimates!r}')
    check_choice('protocol', c.protocol, *PROTOCOLS)
    Given(1, c.schedule)  # which checks the schedule, also where no row has steps
    at_least(c, 1, 'batch_size', 'n_orders')
    at_least(c, 0, 'n_blocks')
    check_ensemble(c)
    check_out('out', c.out, '.json', c.ckpt, *names_in(c.datasets), *names_in(c.orders))
    return names, read_ways(c)


def choose_estimates(names, ways, datasets, c, checkpoint):
    """The estimates of these names and ways; by default the one in the order of the training and, for a decoder, l2r.
    Raises ValueError for an estimate that such a network or these data sets do not have."""
    is_decoder = not checkpoint.config.slots.masked_loss
    if not names and not ways:
        own = checkpoint.order.estimate
        names = ['l2r', own] if is_decoder else [own]
    for name in names:
        dataset = ESTIMATES[name].dataset
        if dataset and dataset not in datasets:
            raise ValueError(
                f'{name} is measured on {dataset}, which is not among {", ".join(datasets)}'
            )
        if not is_decoder and ESTIMATES[name].decoder_only:
            raise ValueError(f"{name} is a decoder's: {ESTIMATES[name].decoder_only}")
    estimates = [
        estimate(c, checkpoint, names) for name, estimate in ESTIMATES.items() if name in names
    ]
    ones, N = (
        {},
        c.block_size or checkpoint.config.block_size,
    )  # {text: the estimate of one token a step}
    if 'own' in names:
        # before anything is measured
        checkpoint.order.check(N, checkpoint.config.block_size)
    for way in ways:
        order = Order.of(way.order, checkpoint.run)
        order.check(N, checkpoint.config.block_size)
        way.unmasking.check_network(checkpoint.config.slots, N)
        adaptive, name = way.unmasking.adaptive, order.estimate
        label = (
            way.text
            if adaptive
            else order.name_as(way.text)
            if name == 'own'
            else ESTIMATES[name].label
        )
        label += f'/{c.block_length}' if way.unmasking.block_length else ''
        # beside a number of passes a masked loss is not drawn
        exact = is_drawn(checkpoint.config.slots, order) and any(other.said for other in ways)
        label += way.said or ', exact' * (exact and not adaptive)
        if adaptive or way.said or exact or way.drawing != PLAIN:
            label += ', tempered' * (way.drawing != PLAIN)
            found = Written(
                c,
                checkpoint,
                names,
                label,
                Way(order, way.unmasking, way.drawing),
                ones.get(way.text),
            )
        elif name == 'own':
            found = Along(c, checkpoint, names, order, label)
        else:  # any and l2r may be among the estimates already
            found = next((one for one in estimates if one.name == name), None) or ESTIMATES[name](
                c, checkpoint, names
            )
        if not way.said:
            ones[way.text] = found
        estimates += [found] * (found not in estimates)
    return estimates


def open_journal(c, checkpoint, estimates, model, dtype):
    """The Journal beside --out, for this model and these options."""
    if not c.out:
        return Journal('', {})
    options = [name for estimate in ESTIMATES.values() for name in estimate.options]
    evaluation = {
        'model': digest(model),
        'dtype': dtype,
        'block_size': c.block_size or checkpoint.config.block_size,
    }
    is_masked = checkpoint.config.slots.masked_loss
    evaluation['one_by_one'] = is_masked and any(estimate.name == 'iw' for estimate in estimates)
    return Journal(
        f'{c.out}.blocks.jsonl',
        evaluation | {name: c[name] for name in ('weights', 'seed', *options)},
    )


def evaluate(model, text, estimates, journal):
    """{estimate: its rows} of one text. Estimates that do the same work share its nats, by way of the journal."""
    return {
        estimate: estimate.rows(estimate.measure(model, text, journal), text)
        for estimate in estimates
        if estimate.dataset in (None, text.name)
    }


def report(text, rows, tokenizer):
    """What to print of {estimate: its rows} of a text: the table of likelihoods, then the remarks."""
    lines = [f'\n{text.label}, from {text.origin["source"]}']
    table = [row for part in rows.values() for row in part if 'perplexity' in row]
    if table:
        table += (
            [unigram_row(text.tokens, tokenizer, text.blocks.size(1), text.sizes)]
            if text.given is None
            else []
        )
        lines.append(format_table(table))
    bounds = [row['estimate'] for part in rows.values() for row in part if row.get('bound')]
    lines += [f'bounds, by means over what is drawn: {", ".join(bounds)}'] if bounds else []
    remarks = (line for estimate, part in rows.items() for line in estimate.remarks(part, text))
    return '\n'.join([*lines, *dict.fromkeys(remarks)])


def main(config):
    names, ways = check_options(config)
    checkpoint = open_checkpoint(config.ckpt)
    tokenizer, own = checkpoint.tokenizer, checkpoint.config.block_size
    N = config.block_size or own
    if not min(2, own) <= N <= own:
        raise ValueError(
            f'block_size must be 2 to {own}, the positions of the model, or 0 for all of them, got {N}'
        )
    asked = names_in(
        config.datasets or checkpoint.run.get('dataset', '')
    )  # by default the set of the training
    datasets = list(dict.fromkeys(name.strip() for name in asked if name.strip()))
    if not datasets:
        raise ValueError('the checkpoint does not name its data set: say which with --datasets=')
    estimates = choose_estimates(names, ways, datasets, config, checkpoint)
    device, dtype = own_device(config.device, config.dtype)
    start_processes(timedelta(days=7))  # all wait for the longest block
    with first_process_first():  # a text that is missing costs nothing before the model is there
        data_dir = config.data_dir or checkpoint.run.get('data_dir', 'data')
        texts = [
            open_corpus(
                name,
                N,
                tokenizer,
                data_dir,
                config.protocol,
                config.split,
                config.n_blocks,
                config.ckpt,
                config.blanks,
            )
            for name in datasets
        ]
    model = checkpoint.model(config.weights, device)
    journal = open_journal(config, checkpoint, estimates, model, dtype)

    rank, world_size = processes()
    say = print if rank == 0 else lambda *a, **k: None
    say(f'{checkpoint.about(config.weights)}, {model.n_parameters():,} parameters, {own} positions')
    there = f'; {len(journal.done):,} results are there already' if journal.done else ''
    say(
        f'blocks of {N} {tokenizer.name} tokens, {device}, {dtype}, seed {config.seed}, {world_size} processes{there}'
    )
    if any(way.drawing != PLAIN for way in ways):
        say(
            f'tempered: temperature {config.temperature:g}, top_k {config.top_k}, top_p {config.top_p:g}'
        )
    if N != 1024 and any(map(has_protocol, datasets)):
        say(
            f'published numbers have a context of 1024: the numbers below, of context {N}, do not compare with them'
        )

    model, results = freeze(model, getattr(torch, dtype)), []
    for text in texts:
        if anew := changed_since(checkpoint, data_dir, text.name):
            say(f'\n{anew}')
        rows = evaluate(model, text, estimates, journal)
        say(report(text, rows, tokenizer), flush=True)
        origin = {'dataset': text.name, 'set': text.label, 'block_size': N, **text.origin}
        results += [origin | row for part in rows.values() for row in part]
    if config.out and rank == 0:
        result = {
            'config': config,
            'iter_num': checkpoint.entries.get('iter_num'),
            'dtype': dtype,
            'results': results,
        }
        write_json(config.out, result)
        print(f'\nwritten: {config.out}')
    end_processes()


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
