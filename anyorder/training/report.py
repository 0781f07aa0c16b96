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
    first = f'{state.model.n_parameters():,} parameters; {clock.tokens_per_iter:,} tokens an update'
    if len(data.parts) == 1:
        yield f'{first}; {about_set(data.parts[0], data.tokenizer)}'
    else:
        yield first
    for part in data.parts:
        if len(data.parts) > 1:
            n_times = part.share * clock.tokens_per_iter * config.max_iters / part.train.packed.size
            of_set = about_set(part, data.tokenizer)
            yield f'{part.share:.1%} of an update from {of_set}; read {n_times:.3g} times'
    _, world_size = processes()
    yield (
        f'{world_size} x {state.device.type}, {torch.get_num_threads()} CPU threads each, '
        f'{config.dtype} at {clock.peak / 1e12:,.3g} TFLOP/s, {compiled}'
    )
    about_bytes = data.tokenizer.about_bytes()
    if about_bytes:
        yield about_bytes
    yield from about_warm_up(config)
    if changed:
        yield f'changed since iteration {state.iter_num}: {", ".join(changed)}'
    elif state.iter_num:
        yield f'goes on from iteration {state.iter_num} of {config.out_dir}'
    yield from what_is_left(state.iter_num, folder, config)


def about_warm_up(c):
    """Yield a line if the learning rate does not reach its peak, or falls from it at once."""
    for end in (c.max_iters, c.lr_decay_iters):
        if 0 < end <= c.warmup_iters:
            yield f'warmup_iters={c.warmup_iters} is not below {end}, where the learning rate ends'


def what_is_left(iter_num, folder, config):
    """Yield the lines on the best so far, and on what is left to do after so many iterations."""
    if folder.best.iter_num is not None:
        yield about_best(folder)
    if iter_num >= config.max_iters > 0:
        yield (
            f'finished: the checkpoint is at iteration {iter_num} of {config.max_iters}; '
            'to go on, raise --max_iters; to begin anew, --init_from=scratch'
        )


def about_best(folder):
    """Return a line on the best validation so far, and where its weights are."""
    best = folder.best
    line = f'best so far: {best}'
    if best.keeps:
        line += f', in {folder.best_path}'
    return line


def about_set(part, tokenizer):
    N = part.blocks.size(1)
    return (
        f'{part.name}: {part.train.packed.size:,} tokens ({tokenizer.name}){part.train.cut(N)}; '
        f'validation on {len(part.blocks):,} blocks of {N}'
    )


def report_of(state, data, folder, chart, config):
    """Return the Report of a run, which writes samples for the chart of a text."""
    rank, _ = processes()
    how = {'unit': 'it', 'bar_format': BAR, 'disable': rank > 0}
    bar = progress(total=config.max_iters, initial=state.iter_num, **how)
    write_samples = None
    # of a split run no process alone has the whole average
    if chart.wanted and not data.train.marked and not splits(config):
        write_samples = partial(samples, state.ema.model, data.tokenizer, config)
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
    """Yield the lines on what came out, and on what to do next; `val` is of validate_parts."""
    for part in data.parts:
        yield f'\nvalidation of the EMA weights on {part.name}'
        yield validation_table(val[part.name], part, data, config)
    if not data.train.marked:
        model = state.ema.model
        if splits(config):  # the first process has a part of it
            model = model_from_checkpoint(folder.ckpt_path, 'ema', state.device)
        for order, text in samples(model, data.tokenizer, config):
            yield f'\nwritten {order}\n{text}'
    path = folder.ckpt_path
    if folder.best.iter_num is not None:
        yield f'\n{about_best(folder)}'
        if folder.best.keeps:
            path = folder.best_path
    if folder.best.is_over:
        yield folder.best.why_over
    yield '\ngo on with'
    for command in commands_to_go_on(data, path, config):
        yield f'  {command}'


def validation_table(val, part, data, config):
    """Return what `validate` gave of a set as a table, for texts with the entropy of single
    tokens."""
    names = {
        'any': 'any order (bound)',
        'l2r': 'left to right',
        'own': f'own order ({Order.of("own", config).name})',
    }
    blank = ~part.given
    n_bytes = None
    if data.tokenizer.n_bytes is not None:
        n_bytes = int(data.tokenizer.n_bytes[part.blocks[blank]].sum())
    rows = [summarize(names[name], nats, blank.sum(1), n_bytes) for name, nats in val.items()]
    if not part.val.marked:
        rows.append(unigram_row(part.val.packed.reshape(-1), data.tokenizer, config.block_size))
    return format_table(rows)


def samples(model, tokenizer, config):
    """Return [(order in words, text)]: a sample in the order of the run and one left to right."""
    titles = {'random': 'in random order', 'l2r': 'left to right'}
    orders = {}
    for order in (Order.of('own', config), Order.of('l2r', config)):
        orders[order.kind] = order  # a single one if the run is left to right
    positions = range(config.block_size)
    blank = ([0 for _ in positions], [False for _ in positions])  # tokens, and which are known
    _, width = config.get('shape') or (0, 0)  # of a picture
    network = freeze(model)
    texts = []
    for seed, (kind, order) in enumerate(orders.items(), config.seed):
        canvas = Canvas.of_texts([blank], order, seed, model.device)
        fill(network, canvas, Given(config.block_size), Drawing())
        text = shown_text(canvas.idx[0].tolist(), tokenizer, width)
        texts.append((titles.get(kind, 'in its own order'), visible(text)))
    return texts


def commands_to_go_on(data, ckpt_path, config):
    """Yield the commands that sample and evaluate the checkpoint, or solve its puzzles."""
    order = Order.of('own', config)
    order_file = ''
    if order.is_function:  # no checkpoint runs it
        folder = os.path.dirname(order.family.orders.path)
        order_file = shlex.quote(os.path.join(folder, order.name))

    commands = [('sample.py', 'order', [])]
    puzzles = [part for part in data.parts if part.train.marked]
    if puzzles:
        commands = [(program_to_solve(part, data), 'orders', [part]) for part in puzzles]
    for program, option, parts in (*commands, ('eval_ppl.py', 'orders', puzzles)):
        words = ['python', program, f'--ckpt={shlex.quote(ckpt_path)}']
        if order_file:
            words.append(f'--{option}={order_file}')
        if any('test' not in part.meta.splits for part in parts):
            words.append('--split=val')
        yield ' '.join(words)


def program_to_solve(part, data):
    """Return what solves the puzzles of a set; of several it wants the name."""
    program = '-m anyorder.extras.puzzles solve'
    if len(data.parts) > 1:
        program += f' --dataset={part.name}'
    return program
