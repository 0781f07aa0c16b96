"""Likelihood of a text under a trained model: left to right, bounds over random orders,
context-order ensemble, and the law by which sample.py writes.

    python eval_ppl.py --ckpt=out/ckpt.pt
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=lambada,wikitext2,ptb,lm1b --estimates=l2r,any
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=lambada --estimates=accuracy
    python eval_ppl.py --ckpt=out/ckpt.pt --estimates=ensemble:64 --n_positions=64
    python eval_ppl.py --ckpt=out/ckpt.pt --orders=l2r,swaps:16,random,FILE.json --n_orders=3
    python eval_ppl.py --ckpt=out/ckpt.pt --orders=l2r,random,margin --n_steps=0,32,16
    python eval_ppl.py --ckpt=out/ckpt.pt --orders=margin/32,margin/32:.9,margin/32:.7
    torchrun --standalone --nproc_per_node=8 eval_ppl.py --estimates=any,iw --n_orders=16

l2r       left to right: -log p(x), exact
own       the same in the order of the training, if it was neither random nor left to right
any       any order: the mean of -log p(x | sigma) over n_orders random orders sigma, a bound
iw        importance-weighted: -log 1/K sum_k p(x | sigma_k), K = 1, 2, 4, ..., a tighter bound
ensemble  sum_i -log 1/M sum_j p(x_i | perm_j(context of i)), M = 1, 2, 4, ... up to 16, or up to
          64 as ensemble:64; ensemble:64/4 lets 4 visits share a context, which is 4 times cheaper
accuracy  how many last words of LAMBADA's passages greedy decoding writes, left to right

A row of `orders` is the mean over n_orders orders of a family, see anyorder/orders.py, or the
exact law by which the model writes in an order of its own choice: margin one token a step,
margin/8 inside of blocks of 8, margin:0.9 by a threshold (arXiv 2603.01367), factor:1 and the like
by a rule of anyorder/generation/rules.py. docs/likelihood.md says which of the numbers are exact,
what may be compared, and how a text is cut."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config, at_least, names_in, nearest, numbers

# options that stay as typed, see configurator.py
TEXTS = ('pattern',)

# which model
ckpt = 'out/ckpt.pt'  # a path, a folder of the hub, hf:OWNER/REPO[/path.pt] or masked:FOLDER
weights = 'ema'  # 'ema' or 'raw'
# on what
datasets = ''  # prepared sets by name, files by path, with commas; '' is all of the training
split = ''  # of prepared sets; '' is val, or the published one of zero-shot sets not trained on
data_dir = ''  # where prepared sets are; '' is where the checkpoint's are
block_size = 0  # tokens of a block; 0 is as many as the model has positions
n_blocks = 0  # blocks of a set, spread evenly over it; 0 is all; accuracy takes all
documents = ''  # in a block, 'apart' or 'together'; '' is as in the training
# which estimates; orders may be those of a rule, anyorder/generation/rules.py:RULES
estimates = ''  # anyorder/likelihood/estimates.py:ESTIMATES; '' is l2r and that of the training
orders = ''  # anyorder/orders.py:ORDERS; anyorder/generation/scores.py:SCORES; FILE.py:NAME
n_orders = 1  # any, iw, orders: orders a block
n_positions = 0  # ensemble: visits of a block that are evaluated, a stratified sample; 0 is all
# the way of writing, for the rows of `orders`, as in sample.py
n_steps = '0'  # numbers of passes, with commas; 0 is one token a step
unmask = 'fixed'  # 'fixed', or 'binomial': how many tokens a step writes is drawn
temperature = 1.0  # the law that is measured is tempered by it
pattern = ''  # the law given that a block matches: a regular expression
seed = 1337  # draws orders, contexts and visits
# system
batch_size = 16  # blocks of a forward pass; or contexts, of about as many tokens
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'float32'  # 'float32', 'bfloat16' or 'auto'
out = ''  # a JSON file for the table; a killed run goes on from FILE.blocks.jsonl

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=())

import re
from datetime import timedelta
from itertools import chain
from typing import Any, NamedTuple

import torch

from anyorder.checkpoint import digest, open_checkpoint
from anyorder.datasets import names_of_run, prepared_anew
from anyorder.fast import freeze
from anyorder.generation import Drawing, Unmasking
from anyorder.generation.options import choice_in
from anyorder.generation.rules import RULES, check_counts
from anyorder.generation.way import Way, order_and_unmasking
from anyorder.likelihood import conditional_logprob, context_logprobs, ensemble_nll  # noqa: F401
from anyorder.likelihood.ensemble import check_ensemble
from anyorder.likelihood.estimates import ESTIMATES, Along, estimate_class
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.measured import Cut, is_zero_shot, open_corpus
from anyorder.likelihood.nll import is_drawn
from anyorder.likelihood.tables import format_table, unigram_row
from anyorder.likelihood.written import Written
from anyorder.machine.devices import resolve_device
from anyorder.machine.files import check_out, write_json
from anyorder.machine.processes import (
    end_processes,
    first_process_first,
    processes,
    start_processes,
)
from anyorder.names import parsed
from anyorder.orders import Order
from anyorder.tokens.apart import keeps_apart
from anyorder.tokens.mixture import STREAM, form_of
from anyorder.tokens.prompts import read_pattern

ENSEMBLE = re.compile(r'ensemble(?::(\d+))?(?:/(\d+))?')  # its members, and visits that share one
PLAIN = Drawing(scores=True)  # the law of the model itself


class Asked(NamedTuple):
    """A row of `orders`.

    text       its name there
    order      what read_order gave; of a policy the order of its blocks, or the one that decides
               among equal scores
    said       what its label says of the passes; '': one token a step
    unmasking, drawing  as in Written
    one        the name of the row of one token a step, with which it is compared
    pattern    the Pattern that every block is to match, or None"""

    text: str
    order: str | list
    said: str
    unmasking: Unmasking
    drawing: Drawing
    one: str = ''
    pattern: Any = None

    @property
    def is_tempered(self):
        return self.drawing != PLAIN

    @property
    def is_written(self):
        """Whether a step chooses, writes many tokens or draws by another law than the model's."""
        is_free = self.pattern is None
        return self.unmasking.adaptive or self.said != '' or self.is_tempered or not is_free


def check_options(c):
    """Return (names of the estimates, [Asked, ...], the options with those of the ensemble).

    Raises ValueError for options that no checkpoint could serve."""
    names, of_ensemble = read_estimates(c.estimates)
    c = Config(c | of_ensemble)
    at_least(c, 1, 'batch_size', 'n_orders')
    at_least(c, 0, 'n_blocks')
    if c.documents:
        keeps_apart(c.documents)
    check_ensemble(c)
    check_out('out', c.out, '.json', c.ckpt, *names_in(c.datasets), *names_in(c.orders))
    return names, read_ways(c), c


def read_estimates(text):
    """Return (names of ESTIMATES, the options that an ensemble has in its name) of the option."""
    names = []
    of_ensemble = {'n_contexts': 16, 'ensemble_block': 1}
    for part in names_in(text):
        found = ENSEMBLE.fullmatch(part)
        if found:
            part = 'ensemble'
            members, width = found.groups()
            of_ensemble['n_contexts'] = int(members or 16)
            of_ensemble['ensemble_block'] = int(width or 1)
        if part not in ESTIMATES:
            raise ValueError(
                f'estimates must be among {", ".join(ESTIMATES)}, ensemble:MEMBERS and '
                f'ensemble:MEMBERS/BLOCK, got {text!r}{nearest(part, ESTIMATES)}'
            )
        names.append(part)
    return names, of_ensemble


def read_ways(c):
    """Return [Asked, ...] of the options. Raises ValueError for what has no likelihood."""
    texts = list(dict.fromkeys(names_in(c.orders)))
    steps = numbers(c, 'n_steps')
    drawing = Drawing(c.temperature, scores=True)
    pattern = read_pattern(c.pattern)

    has_steps = any(steps)
    if not texts and (has_steps or drawing != PLAIN or pattern is not None):
        raise ValueError(
            'n_steps, temperature and pattern say how the rows of orders are written, and there '
            'are none: name some, as --orders=l2r,margin'
        )
    if c.unmask not in ('fixed', 'binomial') or c.unmask == 'binomial' and not has_steps:
        raise ValueError(
            f"unmask must be 'fixed', or 'binomial' with n_steps from 1, got {c.unmask} with "
            f'n_steps={c.n_steps}; lossless unmasking has the law of one token a step, n_steps=0'
        )
    ways = []
    for text in texts:
        name, one, order, laws = laws_of(text, steps, c)
        ways += [Asked(name, order, said, law, drawing, one, pattern) for said, law in laws]
    return ways


def laws_of(text, steps, c):
    """Return of a row its name without a threshold, that of the row of one token a step, what
    read_order gave, and its laws.

    A law is (what a label says of the passes, Unmasking)."""
    kind, numbers = choice_in(text)
    if 'noise' in numbers:
        raise ValueError(f'noise is drawn, so that orders={text} has no likelihood: leave it out')
    order, law = order_and_unmasking(text)
    if kind == 'dilated':
        return 'dilated', 'l2r', order, [(f':{law.block_length}', law)]
    if law.threshold is not None:
        name, _ = parsed(text, {':': 'threshold'})
        if kind in RULES:
            one = name.replace(kind, law.score)
            return name, one, order, [(f':{law.threshold:g}', law)]
        return name, name, order, [(f' >= {law.threshold:g}', law)]

    found = []
    if 0 in steps:
        found.append(('', order_and_unmasking(text, n_steps=2**31)[1]))
    for n in dict.fromkeys(steps):
        if n:
            _, law = order_and_unmasking(text, n_steps=n, unmask=c.unmask)
            found.append((f' in {n}', law))
    return text, text, order, found


def choose_estimates(names, ways, datasets, c, checkpoint):
    """Return the estimates of these names and ways.

    By default the one in the order of the training and, for a decoder, l2r. Raises ValueError for
    an estimate that such a network or these data sets do not have."""
    slots = checkpoint.config.slots
    if not names and not ways:
        names = default_names(checkpoint)
    for name in names:
        check_estimate(estimate_class(name), datasets, slots)
    in_order = [name for name in ESTIMATES if name in names]
    estimates = [estimate_class(name)(c, checkpoint, names) for name in in_order]

    # Refuse what does not fit before anything is measured
    N = block_size_of(c, checkpoint)
    if 'own' in names:
        checkpoint.order.check(N, checkpoint.config.block_size)
    beside_passes = any(way.said for way in ways)
    of_one = {}  # {text: the estimate of one token a step}
    for way in ways:
        order = Order.of(way.order, checkpoint.run)
        order.check(N, checkpoint.config.block_size)
        way.unmasking.check_network(slots, N)
        check_counts(way.unmasking, checkpoint.counts)

        # Beside a number of passes a masked loss is not drawn
        exact = beside_passes and is_drawn(slots, order)
        label = label_of(way, order, exact)
        if way.is_written or exact:
            law = Way(order, way.unmasking, way.drawing)
            found = Written(c, checkpoint, names, label, law, of_one.get(way.one))
        else:
            found = along(order, label, estimates, names, c, checkpoint)
        if not way.said:
            of_one[way.text] = found
        if found not in estimates:
            estimates.append(found)
    return estimates


def default_names(checkpoint):
    """Return the names of the estimates that are made where none is asked for."""
    own = checkpoint.order.estimate
    return [own] if checkpoint.config.slots.masked_loss else ['l2r', own]


def along(order, label, estimates, names, c, checkpoint):
    """Return the estimate along an order. any and l2r may be among the estimates already."""
    name = order.estimate
    if name == 'own':
        return Along(c, checkpoint, names, order, label)
    for estimate in estimates:
        if estimate.name == name:
            return estimate
    return ESTIMATES[name](c, checkpoint, names)


def check_estimate(estimate, datasets, slots):
    """Raise ValueError unless these data sets and such a network have a class of ESTIMATES."""
    name = estimate.name
    if not any(map(estimate.measures, datasets)):
        raise ValueError(
            f'{name} is measured on {estimate.wants}, which is not among {", ".join(datasets)}'
        )
    if estimate.decoder_only and slots.masked_loss:
        raise ValueError(f"{name} is a decoder's: {estimate.decoder_only}")


def block_size_of(c, checkpoint):
    """Return how many tokens a block has."""
    return c.block_size or checkpoint.config.block_size


def label_of(way, order, exact):
    """Return what the table calls a row of `orders`.

    exact  whether every visit takes a pass where one could draw the bound of a masked loss"""
    adaptive = way.unmasking.adaptive
    if adaptive:
        label = way.text
    elif order.estimate == 'own':
        label = order.name_as(way.text)
    else:
        label = ESTIMATES[order.estimate].label
    if way.said:
        label += way.said
    elif exact and not adaptive:
        label += ', exact'
    if way.is_tempered:
        label += ', tempered'
    if way.pattern is not None:
        label += ', matching'
    return label


def names_of_sets(c, checkpoint):
    """Return the data sets and text files that are measured; by default all of the training."""
    asked = names_in(c.datasets) if c.datasets else names_of_run(checkpoint.run)
    names = list(dict.fromkeys(asked))
    if not names:
        raise ValueError('the checkpoint does not name its data set: say which with --datasets=')
    return names


def with_data_of_run(c, run):
    """Return the options with what they leave open of the data as a run with the options has it."""
    data_dir = c.data_dir or run.get('data_dir', 'data')
    documents = c.documents or run.get('documents') or 'together'
    return Config(c | {'data_dir': data_dir, 'documents': documents})


def open_texts(names, c, checkpoint):
    """Return the Corpus of each data set and text file."""
    cut = Cut(block_size_of(c, checkpoint), c.n_blocks, c.documents)
    texts = []
    for name in names:
        split = c.split
        if name in names_of_run(checkpoint.run):
            split = split or 'val'
        texts.append(open_corpus(name, cut, checkpoint.tokenizer, c.data_dir, split))
    return texts


def open_journal(c, checkpoint, estimates, model, dtype):
    """Return the Journal beside --out, for this model and these options."""
    if not c.out:
        return Journal('', {})
    options = ['weights', 'seed']
    for estimate in ESTIMATES.values():
        if not isinstance(estimate, str):  # a room of extras keeps nothing here
            options += estimate.options
    is_masked = checkpoint.config.slots.masked_loss
    evaluation = {
        'model': digest(model),
        'dtype': dtype,
        'block_size': block_size_of(c, checkpoint),
        'one_by_one': is_masked and any(estimate.name == 'iw' for estimate in estimates),
    }
    evaluation |= {name: c[name] for name in options}
    return Journal(f'{c.out}.blocks.jsonl', evaluation)


def introduce(checkpoint, model, texts, ways, journal, c):
    """Return the lines that say what is about to be measured. `c` has device and dtype resolved."""
    _, world_size = processes()
    N = block_size_of(c, checkpoint)
    there = ''
    if journal.done:
        there = f'; {len(journal.done):,} results are there already'
    lines = [
        f'{checkpoint.about(c.weights)}, {model.n_parameters():,} parameters, '
        f'{checkpoint.config.block_size} positions',
        f'blocks of {N} {checkpoint.tokenizer.name} tokens, {c.device}, {c.dtype}, seed {c.seed}, '
        f'{world_size} processes{there}',
    ]
    about_bytes = checkpoint.tokenizer.about_bytes()
    if about_bytes:
        lines.append(about_bytes)
    lines += data_beside_training(checkpoint, texts, c)
    if any(way.is_tempered for way in ways):
        lines.append(f'tempered: temperature {c.temperature:g}')
    if any(way.pattern is not None for way in ways):
        lines.append(f'matching: given that a block matches {c.pattern}')
    if N != 1024 and any(is_zero_shot(text.name) for text in texts):
        lines.append(
            f'published numbers have a context of 1024: the numbers below, of context {N}, do not '
            'compare with them'
        )
    return lines


def data_beside_training(checkpoint, texts, c):
    """Yield lines on what is measured and what was trained on: documents, form, contents."""
    run = checkpoint.run
    if any(text.form == STREAM for text in texts):
        line = f'documents of a block {c.documents}'
        own = run.get('documents')
        if own:
            line += ', as in the training' if own == c.documents else f'; in the training {own}'
        yield line
    for text in texts:
        form = form_of(checkpoint.set)
        if run.get('dataset') and text.form != form:
            yield f'{text.name}: {text.form}; in the training {form}'
        anew = prepared_anew(checkpoint, c.data_dir, text.name)
        if anew:
            yield anew


def evaluate(model, text, estimates, journal):
    """Return {estimate: its rows} of one text.

    Estimates that do the same work share its nats, by way of the journal."""
    found = {}
    for estimate in estimates:
        if estimate.measures(text.name):
            found[estimate] = estimate.rows(estimate.measure(model, text, journal), text)
    return found


def report(text, rows, tokenizer):
    """Return what to print of {estimate: its rows} of a text: the table, then the remarks."""
    lines = [f'\n{text.label}, from {text.origin["source"]}']
    every = list(chain.from_iterable(rows.values()))
    table = [row for row in every if 'perplexity' in row]
    if table and not text.has_given:
        table.append(unigram_row(text.tokens, tokenizer, text.blocks.size(1), text.sizes))
    if table:
        lines.append(format_table(table))
    bounds = [row['estimate'] for row in every if row.get('bound')]
    if bounds:
        lines.append(f'bounds, by means over what is drawn: {", ".join(bounds)}')
    remarks = {}  # each once
    for estimate, of_one in rows.items():
        remarks |= dict.fromkeys(estimate.remarks(of_one, text))
    return '\n'.join([*lines, *remarks])


def main(config):
    names, ways, config = check_options(config)

    # Open the model, and the texts
    checkpoint = open_checkpoint(config.ckpt)
    own = checkpoint.config.block_size
    N = block_size_of(config, checkpoint)
    if not min(2, own) <= N <= own:
        raise ValueError(
            f'block_size must be 2 to {own}, the positions of the model, or 0 for all of them, got '
            f'{N}'
        )
    datasets = names_of_sets(config, checkpoint)
    estimates = choose_estimates(names, ways, datasets, config, checkpoint)
    device, dtype = resolve_device(config.device, config.dtype)
    start_processes(timedelta(days=7))  # all wait for the longest block
    config = with_data_of_run(config, checkpoint.run)
    with first_process_first():  # a text that is missing costs nothing before the model is there
        texts = open_texts(datasets, config, checkpoint)
    model = checkpoint.model(config.weights, device)
    journal = open_journal(config, checkpoint, estimates, model, dtype)

    # Say what is measured
    rank, _ = processes()
    if rank == 0:
        resolved = Config(config | {'device': device, 'dtype': dtype})
        print(*introduce(checkpoint, model, texts, ways, journal, resolved), sep='\n')

    # Measure
    model = freeze(model, getattr(torch, dtype))
    results = []
    for text in texts:
        rows = evaluate(model, text, estimates, journal)
        if rank == 0:
            print(report(text, rows, checkpoint.tokenizer), flush=True)
        origin = {'dataset': text.name, 'set': text.label, 'block_size': N, **text.origin}
        results += [origin | row for row in chain.from_iterable(rows.values())]

    # Write
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
