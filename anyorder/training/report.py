"""What does a run say? What is about to run, its lines, its result, and how to go on."""

import os
import shlex
from functools import partial

import torch

from anyorder.checkpoint import model_from_checkpoint
from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.unmasking import Given
from anyorder.generation.watch import visible
from anyorder.likelihood.tables import format_table, summarize, unigram_row
from anyorder.machine.processes import processes
from anyorder.machine.terminal import progress
from anyorder.orders import Order
from anyorder.tokens.shown import shown_text
from anyorder.training.sharding import splits


def introduction(state, data, clock, folder, config, compiled, changed):
    """Yield the lines on what is about to run.

    `compiled` says in words how, the list `changed` what a resume changes."""
    yield f'{state.model.n_parameters():,} parameters; {clock.tokens_per_iter:,} tokens an update'
    n_rows = config.batch_size * config.gradient_accumulation_steps
    for train, val in zip(data.train, data.val):
        n_tokens = len(train.packed)
        length = train.chance * train.mean_length(config.block_size)  # of a row, without padding
        n_read = n_rows * length * config.max_iters
        cut = train.cut(config.block_size)
        n, N = val.blocks.shape
        yield (
            f'{train.meta.name}: {n_tokens:,} tokens ({data.tokenizer.name}){cut}; '
            f'{train.share:.1%} of an update, {n_read / n_tokens:.3g} times in all; '
            f'validation on {n:,} blocks of {N}'
        )
    _, world_size = processes()
    yield (
        f'{world_size} x {state.device.type}, {torch.get_num_threads()} CPU threads each, '
        f'{config.dtype} at {clock.peak / 1e12:,.3g} TFLOP/s, {compiled}'
    )
    about_bytes = data.tokenizer.about_bytes()
    if about_bytes:
        yield about_bytes
    for end in (config.max_iters, config.lr_decay_iters):
        if 0 < end <= config.warmup_iters:
            yield f'warmup_iters={config.warmup_iters} is not below {end}, where the rate ends'
    if changed:
        yield f'changed since iteration {state.iter_num}: {", ".join(changed)}'
    elif state.iter_num:
        yield f'goes on from iteration {state.iter_num} of {config.out_dir}'
    yield from about_best(folder)
    if state.iter_num >= config.max_iters > 0:
        yield (
            f'finished: the checkpoint is at iteration {state.iter_num} of {config.max_iters}; '
            'to go on, raise --max_iters; to begin anew, --init_from=scratch'
        )


def about_best(folder):
    """Yield a line on the best validation so far, if there is one, and where its weights are."""
    best = folder.best
    if best.iter_num is not None:
        yield f'best so far: {best}' + (f', in {folder.best_path}' if best.keeps else '')


def report_of(state, data, folder, chart, config):
    """Return the Report of a run, which writes samples for the chart of a text."""
    rank, _ = processes()
    how = {'unit': 'it', 'bar_format': BAR, 'disable': rank > 0}
    bar = progress(total=config.max_iters, initial=state.iter_num, **how)
    write_samples = None
    # of a split run no process alone has the whole average
    if chart.wanted and not data.kind.given and not splits(config):
        write_samples = partial(samples, state.ema.model, data.tokenizer, state.order, config)
    return Report(folder, chart, bar, write_samples)


class Report:
    """Tells the lines of a run to all who listen: the log, wandb, and the terminal."""

    def __init__(self, folder, chart, bar, write_samples=None):
        """write_samples  () -> [(order, text)] for wandb, which None does without"""
        self.folder = folder
        self.chart = chart
        self.bar = bar
        self.write_samples = write_samples
        self.shown = {}  # the last validation stays in sight

    def __call__(self, entry, with_samples):
        """Tell an entry of the log, with samples if they are wanted."""
        self.folder.log(entry)
        texts = []
        if with_samples and self.write_samples:
            texts = self.write_samples()
        self.chart.send(entry, texts)
        self.shown |= entry
        self.bar.set_description_str(losses_in(self.shown), refresh=False)
        self.bar.set_postfix_str(SPEED.format(**self.shown), refresh=False)


# the bar of a run: a narrow terminal cuts off the speed, and not the losses
BAR = '{percentage:.0f}% {n_fmt}/{total_fmt} {desc} [{elapsed}<{remaining}{postfix}, {rate_fmt}]'
SPEED = '{tokens_per_sec:,.0f} tok/s mfu {mfu:.0%} lr {lr:.1e} norm {grad_norm:.2f}'
LOSSES = ('loss', 'val_any', 'val_own', 'val_l2r', 'best')


def losses_in(entry):
    """Return what the bar says of the losses of an entry of the log, of several sets the means."""
    there = [name for name in LOSSES if name in entry]
    return ' '.join(f'{name.removeprefix("val_")} {entry[name]:.3f}' for name in there)


def conclusion(state, data, val, folder, config):
    """Yield the lines on what came out, and on what to do next; `val` is of validate_sets."""
    for measured in data.val:
        name = measured.split.meta.name
        yield f'\nvalidation of the EMA weights on {name}'
        yield validation_table(val[name], measured, data.tokenizer, state.order, config)
    if not data.kind.given:
        model = state.ema.model
        if splits(config):  # the first process has a part of it
            model = model_from_checkpoint(folder.ckpt_path, 'ema', state.device)
        for order, text in samples(model, data.tokenizer, state.order, config):
            yield f'\nwritten {order}\n{text}'
    for line in about_best(folder):
        yield f'\n{line}'
    path = folder.ckpt_path
    if folder.best.keeps and folder.best.iter_num is not None:
        path = folder.best_path
    if folder.best.is_over:
        yield folder.best.why_over
    yield '\ngo on with'
    for command in commands_to_go_on(data, state.order, shlex.quote(path)):
        yield f'  python {command}'


def validation_table(val, measured, tokenizer, order, config):
    """Return what `validate` gave of a set as a table, for texts with the entropy of single
    tokens."""
    names = {'any': 'any order (bound)', 'l2r': 'left to right', 'own': f'own order ({order.name})'}
    blank = ~measured.given
    n_bytes = None
    if tokenizer.n_bytes is not None:
        n_bytes = int(tokenizer.n_bytes[measured.blocks[blank]].sum())
    rows = [summarize(names[name], nats, blank.sum(1), n_bytes) for name, nats in val.items()]
    if not measured.split.meta.given:
        rows.append(unigram_row(measured.split.packed, tokenizer, config.block_size))
    return format_table(rows)


def samples(model, tokenizer, order, config):
    """Return [(order in words, text)]: a sample in the order of the run and one left to right."""
    titles = {'random': 'in random order', 'l2r': 'left to right'}
    orders = {one.kind: one for one in (order, Order.of('l2r', config))}  # one, if they are one
    N = config.block_size
    blank = ([0 for _ in range(N)], [False for _ in range(N)])  # tokens, and which are known
    _, width = config.shape or (0, 0)  # of a picture
    network = freeze(model)
    texts = []
    for seed, (kind, one) in enumerate(orders.items(), config.seed):
        canvas = Canvas.of_texts([blank], one, seed, model.device)
        fill(network, canvas, Given(N), Drawing())
        text = shown_text(canvas.idx[0].tolist(), tokenizer, width)
        texts.append((titles.get(kind, 'in its own order'), visible(text)))
    return texts


def commands_to_go_on(data, order, ckpt):
    """Yield the commands that sample and evaluate the checkpoint, or solve its puzzles."""
    rows = [('sample.py', 'order', [])]
    puzzles = [split.meta for split in data.train if split.meta.given]
    if puzzles:
        solve = '-m anyorder.extras.puzzles solve --dataset'
        rows = [(f'{solve}={meta.name}', 'orders', [meta]) for meta in puzzles]
    for program, option, metas in (*rows, ('eval_ppl.py', 'orders', puzzles)):
        words = [program, f'--ckpt={ckpt}']
        if order.is_function:  # no checkpoint runs it
            folder = os.path.dirname(order.family.orders.path)
            words.append(f'--{option}={shlex.quote(os.path.join(folder, order.name))}')
        if any('test' not in meta.splits for meta in metas):
            words.append('--split=val')
        yield ' '.join(words)
