"""What does a run say? What is about to run, its lines, its result, and how to go on."""

import shlex

import torch

from anyorder.checkpoint import model_from_checkpoint
from anyorder.fast import freeze
from anyorder.generation.fill import generate
from anyorder.likelihood.tables import format_table, summarize, unigram_row
from anyorder.machine.processes import is_first, is_split, n_processes
from anyorder.machine.terminal import progress
from anyorder.orders import RANDOM, Order
from anyorder.seeds import keys_of
from anyorder.tokens.shown import shown_text, visible


def introduction(state, data, clock, folder, config, why, changed):
    """Yield the lines on what is about to run.

    `why` says in words why it is compiled or not, the list `changed` what a resume changes."""
    yield f'{state.model.n_parameters():,} parameters; {clock.tokens_per_iter:,} tokens an update'
    n_rows = config.batch_size * config.gradient_accumulation_steps * config.max_iters
    for train, val in zip(data.train, data.val):
        n_tokens = len(train.packed)
        n_read = n_rows * train.chance * train.mean_length  # without padding
        yield (
            f'{train.meta.name}: {n_tokens:,} tokens ({data.tokenizer.name}){train.about_cut}; '
            f'{train.share:.1%} of an update, {n_read / n_tokens:.3g} times in all; '
            f'validation on {len(val):,} blocks'
        )
    yield (
        f'{n_processes()} x {state.device.type}, {torch.get_num_threads()} CPU threads each, '
        f'{config.dtype} at {clock.peak / 1e12:,.3g} TFLOP/s, '
        f'compile={config.compile} ({why})' + (', an update in one launch' if state.graphs else '')
    )
    yield from data.tokenizer.about_bytes().splitlines()
    end = min(config.max_iters, config.lr_decay_iters or config.max_iters)
    if 0 < end <= config.warmup_iters:
        yield f'warmup_iters={config.warmup_iters} is not below {end}, where the rate ends'
    if changed:
        yield f'changed since iteration {state.iter_num}: {", ".join(changed)}'
    elif state.iter_num:
        yield f'goes on from iteration {state.iter_num} of {config.out_dir}'
    yield from folder.about_best()
    if state.iter_num >= config.max_iters > 0:
        yield (
            f'finished: the checkpoint is at iteration {state.iter_num} of {config.max_iters}; '
            'to go on, raise --max_iters; to begin anew, --init_from=scratch'
        )


# the bar of a run: a narrow terminal cuts off the speed, and not the losses
BAR = '{percentage:.0f}% {n_fmt}/{total_fmt} {desc} [{elapsed}<{remaining}{postfix}, {rate_fmt}]'
SPEED = '{tokens_per_sec:,.0f} tok/s mfu {mfu:.0%} lr {lr:.1e} norm {grad_norm:.2f}'
LOSSES = ('loss', 'val_any', 'val_own', 'val_l2r', 'best')


def bar_of(state, config):
    """Return the bar of a run, which the first process shows."""
    return progress(
        total=config.max_iters, initial=state.iter_num, bar_format=BAR, disable=not is_first()
    )


def show(bar, entry):
    """Have a bar say losses, of several sets the means, and speed of an entry of the log."""
    losses = [f'{name.removeprefix("val_")} {entry[name]:.3f}' for name in LOSSES if name in entry]
    bar.set_description_str(' '.join(losses), refresh=False)
    bar.set_postfix_str(SPEED.format(**entry), refresh=False)


def conclusion(state, data, val, folder, config):
    """Yield the lines on what came out, and on what to do next; `val` is of Data.validate."""
    for text, of_set in zip(data.val, val):
        yield f'\nvalidation of the EMA weights on {text.split.meta.name}'
        yield validation_table(of_set, text, data.tokenizer, state.order)
    model = state.ema.model
    if is_split(model.lm_head.weight):
        model = model_from_checkpoint(folder.ckpt_path, 'ema', state.device)
    for order, text in samples(model, data, state.order, config):
        yield f'\nwritten {order}\n{text}'
    for line in folder.about_best():
        yield f'\n{line}'
    if folder.best.is_over:
        yield folder.best.why_over
    yield '\ngo on with'
    yield from commands_to_go_on(data, state.order, folder)


def validation_table(val, text, tokenizer, order):
    """Return what `nats_in_orders` gave of a set as a table, for texts with the entropy of single
    tokens."""
    own = f'own order ({order.name})'
    titles = {'any': 'any order (bound)', 'l2r': 'left to right', 'own': own}
    rows = [
        summarize(titles.get(name, name), nats, text.n_blanks, text.n_bytes)
        for name, nats in val.items()
    ]
    if not text.split.meta.given:
        rows.append(unigram_row(text, tokenizer))
    return format_table(rows)


IN_WORDS = {'random': 'in random order', 'l2r': 'left to right'}


def samples(model, data, order, config):
    """Yield (order in words, text) of a sample in the order of the run and of one left to right.

    There is none of sets with prompts, nor of a part of a model."""
    if data.kind.given or is_split(model.lm_head.weight):
        return
    _, width = config.shape or (0, 0)  # of a picture
    network = freeze(model)
    own = RANDOM if order.sees else order  # which wants the tokens
    orders = dict.fromkeys([own, Order.of('l2r', config)])  # one, if they are one
    for seed, one in enumerate(orders, config.seed):
        visits = one.draw(1, config.block_size, keys=keys_of([seed])).to(model.device)
        (tokens,) = generate(network, 0 * visits, visits, 0, seeds=[seed]).tolist()
        text = shown_text(tokens, data.tokenizer, width)
        yield IN_WORDS.get(one.kind, 'in its own order'), visible(text)


def commands_to_go_on(data, order, folder):
    """Yield lines of the commands that sample and evaluate the result, or solve its puzzles."""
    metas = [split.meta for split in data.train]
    puzzles = [meta for meta in metas if meta.given and not meta.prompts]
    rows = [
        (f'-m anyorder.extras.puzzles solve --dataset={meta.name}', 'orders', [meta])
        for meta in puzzles
    ]
    if not puzzles:
        rows.append(('sample.py', 'order', []))
    for program, option, read in (*rows, ('eval_ppl.py', 'orders', puzzles)):
        words = ['  python', program, f'--ckpt={shlex.quote(folder.result)}']
        if order.sees and program != 'eval_ppl.py':  # nothing is written in it
            words.append(f'--{option}=random')
        elif 'order' in folder.own_orders:
            words.append(f'--{option}={shlex.quote(folder.own_orders["order"])}')
        if any('test' not in meta.splits for meta in read):
            words.append('--split=val')
        yield ' '.join(words)
