"""How does a run begin? From nothing, where it stopped, or the weights of another; the same in all processes."""

import os
import shlex
import sys
from dataclasses import fields

import torch
from torch.nn.parallel import DistributedDataParallel

from anyorder.checkpoint import Checkpoint, digest, model_from_checkpoint
from anyorder.fast import lean
from anyorder.machine.files import check_folder
from anyorder.machine.processes import gather, is_split, processes
from anyorder.machine.surroundings import launcher
from anyorder.orders import Order, order_option
from anyorder.seeds import derive_seed
from anyorder.training.run_folder import open_newest
from anyorder.training.sharding import recompute, shard
from anyorder.training.update import OPTIMIZERS, TrainState, lr_of, make_optimizers
from configurator import Config, at_least, check_choice
from model import AOGPT, EMA, AOGPTConfig

# a checkpoint fixes these
SHAPE = tuple(
    f.name for f in fields(AOGPTConfig) if f.name not in ('vocab_size', 'n_tokens', 'dropout')
)
BOUNDS = (
    (('learning_rate', 'muon_learning_rate'), 'above 0', lambda x: x > 0),
    (('beta1', 'beta2', 'ema_decay'), 'at least 0 and below 1', lambda x: 0 <= x < 1),
    (('l2r_ratio',), '0 to 1', lambda x: 0 <= x <= 1),
)


def resolve_start(init_from, out_dir):
    """'scratch', 'resume' or the name of a checkpoint: what --init_from says, and what 'auto' comes to: 'resume' if the
    first process sees out_dir/ckpt.pt, else 'scratch', or WEIGHTS of auto:WEIGHTS. The same command goes on."""
    if init_from != 'auto' and not init_from.startswith('auto:'):
        return init_from
    if gather(os.path.isfile(os.path.join(out_dir, 'ckpt.pt')))[0]:
        return 'resume'
    return init_from.partition(':')[2] or 'scratch'


def start_checkpoint(config):
    """(the opened checkpoint to start from, or None; the options of the run; what a resume changes, in words). A
    resumed run has the options of its checkpoint, resolved values included, overridden by those given now. It has the
    checkpoint's shape: a line says which values of a config file are overruled, and typed ones are an error."""
    start = resolve_start(config.init_from, config.out_dir)
    if start == 'scratch':
        return None, Config(config | {'order': order_option(config), 'init_from': start}), []
    resumes = start == 'resume'
    checkpoint = open_newest(config.out_dir) if resumes else Checkpoint(start)
    shape = {name: getattr(checkpoint.config, name) for name in SHAPE}
    saved = (
        {name: value for name, value in checkpoint.run.items() if name in config} if resumes else {}
    )
    given = {name: config[name] for name in sorted(config.given)} | {
        'order': order_option(config, saved)
    }
    fixed = shape | {name: saved[name] for name in ('optimizer',) if name in saved}
    overruled = [name for name, value in fixed.items() if given.get(name, value) != value]
    for name in overruled:
        if name in config.typed:
            raise ValueError(
                f'{name}={given[name]} contradicts the checkpoint, which has {fixed[name]}: leave it out'
            )
    if overruled and processes()[0] == 0:
        print(
            'the checkpoint overrules the config file: '
            + ', '.join(f'{name} {given[name]} -> {fixed[name]}' for name in overruled)
        )
    given |= {name: fixed[name] for name in overruled}
    resolved = Config(
        config | saved | given | shape | {'out_dir': config.out_dir, 'init_from': start}
    )
    if not resumes:
        return checkpoint, resolved, []
    changed = [
        f'{name} {saved[name]!s:.80} -> {value!s:.80}'
        for name, value in given.items()
        if name in saved and value != saved[name] and name not in ('init_from', 'out_dir')
    ]
    old, new = (
        f'{lr_of(checkpoint.iter_num, options):.3g}' for options in (config | saved, resolved)
    )
    if old != new:
        changed.append(f'learning rate at once {old} -> {new}')
    ratio = checkpoint.run.get('fim_ratio', 0)
    if ratio and 'fim_ratio' not in config:
        changed.append(f'fim_ratio {ratio} -> 0, which results/infilling/fim.py goes on with')
    return checkpoint, resolved, changed


def check_options(c, world_size):
    """Raise ValueError for options that nobody else checks before data, model and device are touched."""
    at_least(
        c,
        1,
        'batch_size',
        'gradient_accumulation_steps',
        'eval_interval',
        'eval_iters',
        'log_interval',
        'save_interval',
    )
    at_least(
        c,
        0,
        'keep_checkpoints',
        'max_iters',
        'n_threads',
        'min_lr',
        'warmup_iters',
        'lr_decay_iters',
        'weight_decay',
        'grad_clip',
        'seed',
    )
    check_choice('compile', c.compile, 'auto', True, False)
    if c.gradient_accumulation_steps % world_size:
        total, same = (
            c.batch_size * c.gradient_accumulation_steps,
            same_update(c, world_size, c.batch_size),
        )
        again = f'{launcher(processes()[1])} {shlex.join(sys.argv)} {same}'  # of an option the last value counts
        way = (
            f'with the same {total} sequences in an update, of other blocks and orders: {again}'
            if same
            else f'its {total} sequences of an update neither: make batch_size times it a multiple of {world_size}'
        )
        raise ValueError(
            f'gradient_accumulation_steps={c.gradient_accumulation_steps} cannot be shared by '
            f'{world_size} processes; {way}'
        )
    check_folder('out_dir', c.out_dir)
    network = model_config(c)  # which checks its own options
    for names, rule, holds in BOUNDS:
        for name in names:
            if not holds(c[name]):
                raise ValueError(f'{name} must be {rule}, got {c[name]}')
    if c.min_lr > c.learning_rate:
        raise ValueError(
            f'min_lr must be at most learning_rate={c.learning_rate}, got {c.min_lr}: give --min_lr, too'
        )
    check_choice('optimizer', c.optimizer, *OPTIMIZERS)
    if c.l2r_ratio and network.slots.masked_loss:
        raise ValueError(
            f'attention={c.attention} has masked loss: l2r_ratio must be 0, got {c.l2r_ratio}'
        )
    order = Order.of('own', c)
    if network.slots.masked_loss and order.law != 'random':
        raise ValueError(
            f"a masked loss is a bound for random orders: order must be 'random', got {order.kind!r}"
        )
    if not order.wants_shape:  # which comes with the data
        order.check(c.block_size)


def never_reached(c):
    """In words, what the learning rate of a run with these options never does; '' if it rises, falls and ends as the
    options say. No such run is refused: it may be a part of a longer one."""
    n, warmup, decay = c.max_iters, c.warmup_iters, c.lr_decay_iters or c.max_iters
    if n == 0:
        return ''
    last = f'{lr_of(n - 1, c):.3g}'
    if n <= warmup:
        return (
            f'warmup_iters={warmup} does not end before max_iters={n}: the learning rate rises to {last}, never to '
            f'learning_rate={c.learning_rate:.3g}'
        )
    if c.min_lr == c.learning_rate:  # there is no decay
        return ''
    if decay <= warmup:
        return (
            f'lr_decay_iters={decay} does not lie after warmup_iters={warmup}: the learning rate falls from '
            f'{c.learning_rate:.3g} to min_lr={c.min_lr:.3g} in one update'
        )
    if decay < n:
        return (
            f'lr_decay_iters={decay} comes before max_iters={n}: the learning rate stays at min_lr={c.min_lr:.3g} '
            'from then on'
        )
    if decay > n:
        return (
            f'lr_decay_iters={decay} comes after max_iters={n}: the learning rate ends at {last}, above '
            f'min_lr={c.min_lr:.3g}'
        )
    return ''


def same_update(c, world_size, largest):
    """What to type so that `world_size` processes share an update of as many sequences, in micro-batches of at most
    `largest`, and validation has no fewer blocks; '' where nothing does."""
    each, rest = divmod(c.batch_size * c.gradient_accumulation_steps, world_size)
    batch_size = max(
        (n for n in range(1, min(largest, each) + 1) if rest == each % n == 0), default=0
    )
    if not batch_size:
        return ''
    return (
        f'--batch_size={batch_size} --gradient_accumulation_steps={each * world_size // batch_size} '
        f'--eval_iters={-(-c.eval_iters * c.batch_size // batch_size)}'
    )


def model_config(config, n_tokens=None):
    """AOGPTConfig of the options, with a vocabulary of n_tokens padded to a multiple of 64."""
    vocabulary = {'vocab_size': -(-n_tokens // 64) * 64, 'n_tokens': n_tokens} if n_tokens else {}
    return AOGPTConfig(
        dropout=config.dropout, **{name: config[name] for name in SHAPE}, **vocabulary
    )


def start_model(config, checkpoint, n_tokens):
    """The model to train, on the CPU: the checkpoint's, or a new one."""
    if checkpoint is None:
        torch.manual_seed(derive_seed(config.seed))
        return AOGPT(model_config(config, n_tokens))
    entries = checkpoint.entries
    sizes = entries['model_args'] | {'dropout': config.dropout}
    weights = 'raw' if config.init_from == 'resume' or 'ema_model' not in entries else 'ema'
    model = model_from_checkpoint(entries | {'model_args': sizes}, weights)
    if model.config.n_real != n_tokens:
        raise ValueError(
            f'the data set {config.dataset} has {n_tokens} tokens, the checkpoint {model.config.n_real}: '
            f'it was trained with the tokenizer {checkpoint.tokenizer.name}'
        )
    return model


def started_from(config, checkpoint, model):
    """[{'name', 'digest'}] of the weights from which the runs before this one, and then this one, started. A path is
    not kept, but its last part; the digest is without the dropout of this run."""
    if config.init_from in ('scratch', 'resume'):
        return checkpoint.run.get('started_from', []) if checkpoint else []
    name = checkpoint.name
    if os.path.exists(name):
        name = os.path.basename(os.path.abspath(name)) + '/' * os.path.isdir(name)
    return [
        *checkpoint.run.get('started_from', []),
        {'name': name, 'digest': digest(model, checkpoint.config)},
    ]


def check_start(model, resumed, data, config):
    """Raise ValueError unless all processes go on from the same iteration and weights, on the same data and options."""
    own = {
        name: value
        for name, value in config.items()
        if name not in ('out_dir', 'data_dir', 'device', 'n_threads')
    }
    own |= {
        'the iteration to go on from': resumed,
        'the data': data.hashes,
        'the weights': digest(model),
    }
    every = gather(own)
    differing = [
        name for name in own if any(other.get(name) != every[0].get(name) for other in every)
    ]
    if differing:
        of_first = ', '.join(sorted({str(other.get(differing[0]))[:80] for other in every}))
        raise ValueError(
            f'the processes differ in {", ".join(differing)} ({of_first}): give all one command and data'
        )


def start_state(config, checkpoint, model, kind, device):
    """The TrainState on `device` of a new run, or of the checkpoint that it resumes; `kind` is as of kind_of."""
    if config.init_from == 'resume':
        differs = [field for field, value in checkpoint.set.items() if kind.get(field) != value]
        if differs:
            raise ValueError(
                f'the checkpoint has another kind of set than {config.dataset} is ({", ".join(differs)}): '
                f'start from its weights with --init_from={config.out_dir}/ckpt.pt'
            )
    splits = config.shard and processes()[1] > 1
    model = lean(model.train()).to('cpu' if splits else device)
    if config.recompute:
        recompute(model)
    ema = EMA(model, config.ema_decay)
    if splits:
        shard(model, device)
        shard(ema.model, device)
    optimizers = make_optimizers(
        model,
        config.optimizer,
        config.learning_rate,
        config.muon_learning_rate,
        config.weight_decay,
        (config.beta1, config.beta2),
    )
    state = TrainState(model, optimizers, ema)
    if config.init_from == 'resume':
        state.resume(checkpoint.entries)
    return state


def make_run_model(model, compiled, device):
    """The model as updates run it: compiled, and wrapped so that processes exchange their gradients. A model that is
    split exchanges them itself, and is compiled block by block, between which it gathers weights."""
    if is_split(model.lm_head.weight):
        for block in model.transformer.h if compiled else ():
            block.forward = torch.compile(block.forward)
        return model
    run_model = torch.compile(model) if compiled else model
    if processes()[1] == 1:
        return run_model
    return DistributedDataParallel(
        run_model,
        device_ids=[device] if device.type == 'cuda' else None,
        gradient_as_bucket_view=True,
    )
