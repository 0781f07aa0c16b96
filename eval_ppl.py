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
    options = read_options(globals())

from collections import Counter
from datetime import timedelta

import torch

from anyorder.checkpoint import digest, open_checkpoint
from anyorder.datasets import names_of_run, prepared_anew
from anyorder.fast import freeze
from anyorder.functions import resolved
from anyorder.generation.options import choice_in
from anyorder.generation.way import Way
from anyorder.likelihood import conditional_logprob, context_logprobs, ensemble_nll  # noqa: F401
from anyorder.likelihood.estimates import ESTIMATES, LABELS, in_orders
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.measured import is_zero_shot, open_corpus
from anyorder.likelihood.nll import is_drawn
from anyorder.likelihood.tables import format_table, remarks, unigram_row
from anyorder.likelihood.written import written
from anyorder.machine.devices import resolve_device
from anyorder.machine.files import check_out, write_json
from anyorder.machine.processes import (
    end_processes,
    first_process_first,
    is_first,
    n_processes,
    start_processes,
)
from anyorder.names import parsed
from anyorder.tokens.mixture import STREAM, form_of

OF_ENSEMBLE = {':': 'n_contexts', '/': 'width'}  # ensemble:64/4
ONE_BY_ONE = 2**31  # passes that are enough for a token each


def check_options(c):
    """Raise ValueError for options that no checkpoint could serve."""
    at_least(c, 1, 'batch_size', 'n_orders')
    at_least(c, 0, 'n_blocks')
    check_out('out', c.out, '.json', c.ckpt, *names_in(c.datasets), *names_in(c.orders))
    has_steps = any(numbers(c, 'n_steps'))
    if not c.orders and (has_steps or c.temperature != 1 or c.pattern):
        raise ValueError(
            'n_steps, temperature and pattern say how the rows of orders are written, and there '
            'are none: name some, as --orders=l2r,margin'
        )
    if c.unmask not in ('fixed', 'binomial') or c.unmask == 'binomial' and not has_steps:
        raise ValueError(
            f"unmask must be 'fixed', or 'binomial' with n_steps from 1, got {c.unmask} with "
            f'n_steps={c.n_steps}; lossless unmasking has the law of one token a step, n_steps=0'
        )


def choose_estimates(c, datasets, checkpoint):
    """Return the estimates that the options ask for, each once.

    By default the one in the order of the training and, for a decoder, l2r. Raises ValueError for
    an estimate that such a network or these data sets do not have."""
    names = names_in(c.estimates)
    if not names and not c.orders:
        names = [checkpoint.order.estimate]
        if not checkpoint.config.slots_class.masked_loss:
            names = ['l2r', *names]
    found = [(estimate_named(name, c, checkpoint), name) for name in names]
    for estimate, _ in found:
        if estimate.dataset not in ('', *datasets):
            raise ValueError(
                f'{estimate.kind} is measured on {estimate.dataset}: add it to --datasets, got '
                f'{", ".join(datasets)}'
            )
    if c.n_positions and all(estimate.kind != 'ensemble' for estimate, _ in found):
        raise ValueError(
            'n_positions says how many visits an ensemble evaluates, and there is none: add '
            f'--estimates=ensemble, or leave out n_positions={c.n_positions}'
        )

    return told_apart(found + estimates_of_orders(c, checkpoint))


def estimates_of_orders(c, checkpoint):
    """Return [(estimate, its text)] of all rows of `orders`."""
    ways = {}
    for text in names_in(c.orders):
        ways |= ways_of(text, c, checkpoint.run)
    baselines = {row: by_one(row, way) for row, way in ways.items()}
    beside_passes = any(baselines.values())
    found = {}
    for row, way in ways.items():
        found[row] = estimate_of(row, way, c, checkpoint, beside_passes)
    for row, baseline in baselines.items():
        found[row].baseline = found.get(baseline)
    return [(found[row], row[0]) for row in ways]


def told_apart(found):
    """Return the estimates of [(estimate, its text)], each once.

    Where several share a label, each is named by its whole text."""
    kept = {}
    for estimate, text in found:
        kept.setdefault((estimate.kind, estimate.label, estimate.work), (estimate, text))
    n_labels = Counter((kind, label) for kind, label, _ in kept)
    for estimate, text in kept.values():
        if n_labels[estimate.kind, estimate.label] > 1:
            estimate.name = text
    return [estimate for estimate, _ in kept.values()]


def estimate_named(text, c, checkpoint):
    """Return the estimate of a name, as any or ensemble:64/4."""
    name, sizes = parsed(text, OF_ENSEMBLE)
    if name not in ESTIMATES or sizes and name != 'ensemble':
        raise ValueError(
            f'estimates must be among {", ".join(ESTIMATES)}, ensemble:MEMBERS and '
            f'ensemble:MEMBERS/BLOCK, got {c.estimates!r}{nearest(text, ESTIMATES)}'
        )
    return resolved(ESTIMATES[name])(c, checkpoint, **sizes)


def ways_of(text, c, run):
    """Return {row: Way} of a text of `orders`. A row is (text, n_steps), where 0 is one token a
    step. A rule that says itself how many tokens a step writes has that one."""
    how = {'order': text, 'temperature': c.temperature, 'score': True}
    way = Way.of(run, n_steps=ONE_BY_ONE, **how)
    if way.unmasking.threshold is not None:
        return {(text, 0): way}
    found = {}
    for n in sorted(dict.fromkeys(numbers(c, 'n_steps')), key=bool):  # 0 first
        found[text, n] = Way.of(run, n_steps=n, unmask=c.unmask, **how) if n else way
    return found


def by_one(row, way):
    """Return the row of one token a step with which a row is compared, or None: of a rule the one
    of the score by which it chooses."""
    text, n_steps = row
    if way.unmasking.threshold is not None:
        kind, _ = choice_in(text)
        name, _ = parsed(text, {':': 'threshold'})
        return name.replace(kind, way.unmasking.score), 0
    return (text, 0) if n_steps else None


def estimate_of(row, way, c, checkpoint, beside_passes):
    """Return the estimate of a row (text, n_steps): the law of writing, or without passes, and by
    the law of the model itself, the plain one in the order.

    beside_passes  whether rows have numbers of passes: then a masked loss is not drawn, and what is
                   given is read as in these rows"""
    text, n_steps = row
    order = way.order
    adaptive = way.unmasking.adaptive
    name = text if adaptive else LABELS.get(order.kind, order.name_as(text))
    ending = f' in {n_steps}' if n_steps else ''
    if not ending and not adaptive and beside_passes and is_drawn(checkpoint.config, order):
        ending += ', one token a pass'
    if c.temperature != 1:
        ending += ', tempered'
    if c.pattern:
        ending += ', matching'
    if adaptive or ending:
        return written(c, checkpoint, way, name=name, ending=ending)
    kind = 'order' if order.estimate == 'own' else order.estimate
    known_l2r = beside_passes and order.known_l2r
    return in_orders(c, checkpoint, order, known_l2r=known_l2r, name=name, kind=kind)


def names_of_sets(c, checkpoint):
    """Return the data sets and text files that are measured; by default all of the training."""
    asked = names_in(c.datasets) if c.datasets else names_of_run(checkpoint.run)
    names = list(dict.fromkeys(asked))
    if not names:
        raise ValueError('the checkpoint does not name its data set: say which with --datasets=')
    return names


def with_run(c, checkpoint):
    """Return the options with what they leave open as the model and its run have it."""
    own = checkpoint.config.block_size
    run = checkpoint.run
    found = {
        'block_size': c.block_size or own,
        'data_dir': c.data_dir or run.get('data_dir', 'data'),
        'documents': c.documents or run.get('documents') or 'together',
    }
    if not min(2, own) <= found['block_size'] <= own:
        raise ValueError(
            f'block_size must be 2 to {own}, the positions of the model, or 0 for all of them, got '
            f'{c.block_size}'
        )
    return Config(c | found)


def open_corpora(names, c, checkpoint):
    """Return the Corpus of each data set and text file."""
    corpora = []
    for name in names:
        split = c.split
        if name in names_of_run(checkpoint.run):
            split = split or 'val'
        corpus = open_corpus(
            name, c.block_size, checkpoint.tokenizer, c.data_dir, split, c.n_blocks, c.documents
        )
        corpora.append(corpus)
    return corpora


def open_journal(c, model, dtype):
    """Return the Journal beside --out, for this model and these options."""
    if not c.out:
        return Journal('', {})
    evaluation = {
        'model': digest(model),
        'dtype': dtype,
        'block_size': c.block_size,
        'seed': c.seed,
    }
    return Journal(f'{c.out}.blocks.jsonl', evaluation)


def introduce(checkpoint, model, corpora, journal, c):
    """Yield the lines that say what is about to be measured. `c` has device and dtype resolved."""
    N = c.block_size
    there = f'; {len(journal.done):,} results are there already' if journal.done else ''
    yield (
        f'{checkpoint.about(c.weights)}, {model.n_parameters():,} parameters, '
        f'{checkpoint.config.block_size} positions'
    )
    yield (
        f'blocks of {N} {checkpoint.tokenizer.name} tokens, {c.device}, {c.dtype}, seed {c.seed}, '
        f'{n_processes()} processes{there}'
    )
    yield from checkpoint.tokenizer.about_bytes().splitlines()
    yield from data_beside_training(checkpoint, corpora, c)
    if c.n_positions:
        yield f'ensembles on a sample of {c.n_positions} visits of a block'
    if c.temperature != 1:
        yield f'tempered: temperature {c.temperature:g}'
    if c.pattern:
        yield f'matching: given that a block matches {c.pattern}'
    if N != 1024 and any(is_zero_shot(corpus.name) for corpus in corpora):
        yield (
            f'published numbers have a context of 1024: the numbers below, of context {N}, do not '
            'compare with them'
        )


def data_beside_training(checkpoint, corpora, c):
    """Yield lines on what is measured and what was trained on: documents, form, contents."""
    run = checkpoint.run
    if any(form_of(corpus.split.meta) == STREAM for corpus in corpora):
        line = f'documents of a block {c.documents}'
        own = run.get('documents')
        if own:
            line += ', as in the training' if own == c.documents else f'; in the training {own}'
        yield line
    for corpus in corpora:
        form = form_of(checkpoint.set)
        own_form = form_of(corpus.split.meta)
        if run.get('dataset') and own_form != form:
            yield f'{corpus.name}: {own_form}; in the training {form}'
        anew = prepared_anew(checkpoint, corpus.split.meta)
        if anew:
            yield anew


def evaluate(model, corpus, estimates, journal):
    """Return the rows of one corpus.

    Estimates that do the same work share its nats, by way of the journal."""
    rows = []
    for estimate in estimates:
        if estimate.dataset in ('', corpus.name):
            nats = estimate.measure(model, corpus, journal)
            of_baseline = estimate.baseline and estimate.baseline.measure(model, corpus, journal)
            rows += estimate.rows(nats, corpus, of_baseline)
    return rows


def report(corpus, rows, tokenizer):
    """Return what to print of the rows of a corpus: the table, then the remarks."""
    lines = [f'\n{corpus.label}, from {corpus.origin["source"]}']
    table = [row for row in rows if 'perplexity' in row]
    if table and not corpus.split.meta.given:
        table.append(unigram_row(corpus, tokenizer))
    if table:
        lines.append(format_table(table))
    bounds = [row['estimate'] for row in rows if row.get('bound')]
    if bounds:
        lines.append(f'bounds, by means over what is drawn: {", ".join(bounds)}')
    return '\n'.join([*lines, *remarks(rows)])


def main(config):
    check_options(config)

    # Open the model, and the corpora
    checkpoint = open_checkpoint(config.ckpt)
    config = with_run(config, checkpoint)
    datasets = names_of_sets(config, checkpoint)
    estimates = choose_estimates(config, datasets, checkpoint)
    device, dtype = resolve_device(config.device, config.dtype)
    start_processes(timedelta(days=7))  # all wait for the longest block
    with first_process_first():  # a text that is missing costs nothing before the model is there
        corpora = open_corpora(datasets, config, checkpoint)
    model = checkpoint.model(config.weights, device)
    journal = open_journal(config, model, dtype)

    # Say what is measured
    if is_first():
        as_run = Config(config | {'device': device, 'dtype': dtype})
        print(*introduce(checkpoint, model, corpora, journal, as_run), sep='\n')

    # Measure
    model = freeze(model, getattr(torch, dtype))
    results = []
    for corpus in corpora:
        rows = evaluate(model, corpus, estimates, journal)
        if is_first():
            print(report(corpus, rows, checkpoint.tokenizer), flush=True)
        origin = {
            'dataset': corpus.name,
            'set': corpus.label,
            **corpus.origin,
            'block_size': config.block_size,
        }
        results += [origin | row for row in rows]

    # Write
    if config.out and is_first():
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
