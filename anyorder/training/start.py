"""How does a run begin? From nothing, where it stopped, or the weights of another run."""

import os

import torch
from torch.nn.parallel import DistributedDataParallel

from anyorder.checkpoint import Checkpoint, digest, load_weights, model_from_checkpoint
from anyorder.datasets import changed_since
from anyorder.fast import lean
from anyorder.machine.devices import keep_freed_memory
from anyorder.machine.files import check_folder
from anyorder.machine.processes import environment, gather, is_split, own_part, processes
from anyorder.machine.terminal import say
from anyorder.networks import network_fields, network_name
from anyorder.order_options import order_option
from anyorder.orders import Order
from anyorder.seeds import derive_seed
from anyorder.tokens.apart import keeps_apart
from anyorder.tokens.mixture import weights_in
from anyorder.tokens.tokenizers import is_of_text
from anyorder.training.best import best_of, check_best
from anyorder.training.run_folder import RunFolder, open_newest
from anyorder.training.sharding import (
    check_nodes,
    check_savings,
    mesh_of,
    recompute,
    saves_by,
    shard,
    splits,
)
from anyorder.training.update import TrainState, make_optimizers
from anyorder.weights import padded
from configurator import Config, at_least, check_choice
from model import AOGPT, EMA, AOGPTConfig

SIZES = ('block_size', 'n_layer', 'n_head', 'n_embd', 'bias')  # a checkpoint fixes them
NARROW = 256  # below this width a second thread of a CPU waits more than it works


def resolve_start(init_from, out_dir):
    """Return 'scratch', 'resume' or the name of a checkpoint, which --init_from says.

    'auto' is 'resume' if the first process sees out_dir/ckpt.pt, else 'scratch', or WEIGHTS of
    auto:WEIGHTS: the same command begins a run and goes on with it."""
    if init_from != 'auto' and not init_from.startswith('auto:'):
        return init_from
    is_there = gather(os.path.isfile(os.path.join(out_dir, 'ckpt.pt')))
    if is_there[0]:
        return 'resume'
    _, _, weights = init_from.partition(':')
    return weights or 'scratch'


def start_checkpoint(config):
    """Return the opened checkpoint to start from or None, the options, what they change in words.

    A resumed run has the options of its checkpoint, resolved values included, overridden by those
    given now. It has the checkpoint's shape: a line says which values of a config file are
    overruled, and typed ones are an error."""
    start = resolve_start(config.init_from, config.out_dir)
    if start == 'scratch':
        return None, Config(config | written_out(config, {}) | {'init_from': start}), []
    saved = {}
    if start == 'resume':
        checkpoint = open_newest(config.out_dir)
        saved = checkpoint.run
    else:
        checkpoint = Checkpoint(start)

    whole = written_out(config, saved)
    given = {name: whole.get(name, config[name]) for name in sorted(config.given)}
    given['order'] = whole['order']
    fixed = {name: getattr(checkpoint.config, name) for name in SIZES}
    fixed['network'] = network_name(checkpoint.config)
    shape = fixed.copy()
    if saved:
        fixed['optimizer'] = saved['optimizer']
    given |= overruled(given, fixed, config.typed)
    place = {'out_dir': config.out_dir, 'init_from': start}
    resolved = Config(config | saved | given | shape | place)
    changed = []
    if start == 'resume':
        changed = changed_options(saved, given)
    return checkpoint, resolved, changed


def written_out(config, saved):
    """Return the options that a short text may name, written out as a checkpoint keeps them.

    What a text leaves open is as in `saved`, the options of the run that is resumed."""
    named = AOGPTConfig(**network_fields(config.network))
    return {'order': order_option(config, saved), 'network': network_name(named)}


def changed_options(saved, given):
    """Return in words what those `given` change of the options that were `saved`."""
    changed = []
    for name, value in given.items():
        is_other = name in saved and value != saved[name]
        if is_other and name not in ('init_from', 'out_dir'):
            changed.append(f'{name} {in_words(saved[name])} -> {in_words(value)}')
    return changed


def in_words(value):
    """Return the value of an option as a message shows it: an empty text as two quotes."""
    return f'{value!s:.80}' or "''"


def overruled(given, fixed, typed):
    """Return the values that a checkpoint has `fixed` and that contradict those given, and say so.

    Raises ValueError for one that is typed."""
    found = {name: value for name, value in fixed.items() if given.get(name, value) != value}
    for name, value in found.items():
        if name in typed:
            raise ValueError(
                f'{name}={given[name]} contradicts the checkpoint, which has {value}: '
                'leave it out, or begin anew with --init_from=scratch'
            )
    rank, _ = processes()
    if found and rank == 0:
        said = ', '.join(f'{name} {given[name]} -> {value}' for name, value in found.items())
        say(f'the checkpoint overrules the config file: {said}')
    return found


AT_LEAST_1 = (
    'batch_size',
    'gradient_accumulation_steps',
    'eval_interval',
    'eval_iters',
    'log_interval',
)
AT_LEAST_0 = (
    'max_iters',
    'patience',
    'min_lr',
    'warmup_iters',
    'lr_decay_iters',
    'weight_decay',
    'grad_clip',
    'seed',
)
BOUNDS = (
    (('learning_rate', 'muon_learning_rate'), 'above 0', lambda x: x > 0),
    (('beta1', 'beta2', 'ema_decay'), 'at least 0 and below 1', lambda x: 0 <= x < 1),
    (('l2r_ratio',), '0 to 1', lambda x: 0 <= x <= 1),
)


def check_options(c, world_size):
    """Raise ValueError for wrong options that nobody else checks before the device is touched."""
    at_least(c, 1, *AT_LEAST_1)
    at_least(c, 0, *AT_LEAST_0)
    check_choice('compile', c.compile, 'auto', True, False)
    check_choice('optimizer', c.optimizer, 'adamw', 'muon')
    weights_in(c.dataset)  # which raises
    keeps_apart(c.documents)
    if c.gradient_accumulation_steps % world_size:
        raise ValueError(
            f'gradient_accumulation_steps={c.gradient_accumulation_steps} must be a multiple of '
            f'the {world_size} processes: change it and batch_size by opposite factors'
        )
    check_folder('out_dir', c.out_dir)
    network = model_config(c)  # which checks its own options
    for names, rule, holds in BOUNDS:
        for name in names:
            if not holds(c[name]):
                raise ValueError(f'{name} must be {rule}, got {c[name]}')
    if c.min_lr > c.learning_rate:
        raise ValueError(
            f'min_lr must be at most learning_rate={c.learning_rate}, got {c.min_lr}: '
            'give --min_lr, too'
        )
    check_savings(c)
    check_order_of_run(c, network.slots.masked_loss)
    check_best(c, network.slots.masked_loss)


def check_order_of_run(c, masked_loss):
    """Raise ValueError unless a network can be trained in the order of these options."""
    if c.l2r_ratio and masked_loss:
        raise ValueError(
            f'network={c.network} has masked loss: l2r_ratio must be 0, got {c.l2r_ratio}'
        )
    order = Order.of('own', c)
    if masked_loss and order.law != 'random':
        raise ValueError(
            'a masked loss is a bound for random orders: '
            f"order must be 'random', got {order.kind!r}"
        )
    if not order.wants_shape:  # which comes with the data
        order.check(c.block_size)


def model_config(config, n_tokens=None):
    """Return the AOGPTConfig of the options; its vocabulary is n_tokens, and padding to 64 n."""
    vocabulary = {}
    if n_tokens:
        vocabulary = {'vocab_size': padded(n_tokens), 'n_tokens': n_tokens}
    sizes = {name: config[name] for name in SIZES}
    kind = network_fields(config.network)
    return AOGPTConfig(dropout=config.dropout, **sizes, **kind, **vocabulary)


def set_threads(config):
    """Give a narrow network one thread of the CPU, unless the environment says how many."""
    if config.n_embd < NARROW and 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)


def start_model(config, checkpoint, tokenizer):
    """Return the model to train, on the CPU: the checkpoint's, or a new one.

    tokenizer  of the set"""
    if checkpoint is None:
        torch.manual_seed(derive_seed(config.seed))
        return AOGPT(model_config(config, tokenizer.n_tokens))
    entries = checkpoint.entries
    weights = 'ema'
    if config.init_from == 'resume' or 'ema_model' not in entries:
        weights = 'raw'
    sizes = entries['model_args'] | {'dropout': config.dropout}
    model = model_from_checkpoint(entries | {'model_args': sizes}, weights)
    if model.config.n_real != tokenizer.n_tokens:
        theirs = checkpoint.tokenizer.name
        raise ValueError(
            f'the data set {config.dataset} has {tokenizer.n_tokens} tokens, the checkpoint '
            f'{model.config.n_real}: it was trained with the tokenizer {theirs}; prepare the set '
            'with it, which --tokenizer=FOLDER of its set names, too'
        )
    check_tokenizer(config, checkpoint.tokenizer, tokenizer)
    return model


def check_tokenizer(config, theirs, tokenizer):
    """Raise ValueError where a checkpoint has other tokens of text than the set, if as many."""
    both_of_text = is_of_text(theirs.name) and is_of_text(tokenizer.name)
    if both_of_text and not have_same_tokens(theirs, tokenizer):
        raise ValueError(
            f'the data set {config.dataset} has the tokenizer {tokenizer.name}, the checkpoint '
            f'was trained with another one, {theirs.name}: prepare the set with '
            '--tokenizer=FOLDER, which is the folder of that model or of a set that was prepared '
            'for it'
        )


def have_same_tokens(one, other):
    """Whether each id stands for the same text in two tokenizers of as many tokens."""
    if one.identity == other.identity:
        return True
    return all(one.decode([i]) == other.decode([i]) for i in range(one.n_tokens))


def started_from(config, checkpoint):
    """Return [{'name'}] of the weights from which earlier runs and this one started.

    Of a path its last part is kept."""
    if checkpoint is None:
        return []
    earlier = checkpoint.run.get('started_from', [])
    if config.init_from == 'resume':
        return earlier
    name = checkpoint.name
    if os.path.exists(name):
        name = os.path.basename(os.path.abspath(name))
    return [*earlier, {'name': name}]


def resumed_at(config, checkpoint):
    """Return the iteration from which a run is resumed; None: it is a new run."""
    if config.init_from != 'resume':
        return None
    return checkpoint.iter_num


def changed_inputs(config, checkpoint, data):
    """Return in words what a resume changes beside options; `data` is the Data of now."""
    if config.init_from != 'resume':
        return []
    changed = [changed_since(checkpoint, part.name, part.meta) for part in data.parts]
    before = checkpoint.run['program']
    if before != config.program:
        changed.append(f'the program {before} -> {config.program}')
    return [*filter(None, changed)]


def check_start(model, resumed, data, config):
    """Raise ValueError unless all processes have the same iteration, weights, data and options, and
    their nodes are as the options need them."""
    ours = ('out_dir', 'data_dir', 'device')  # of a process alone
    own = {name: value for name, value in config.items() if name not in ours}
    own['the iteration to go on from'] = resumed
    own['the data'] = data.hashes
    own['the weights'] = digest(model)
    every = gather(own)
    differing = [name for name in own if differs(name, every)]
    if differing:
        values = {str(other.get(differing[0]))[:80] for other in every}
        raise ValueError(
            f'the processes differ in {", ".join(differing)} ({", ".join(sorted(values))}): '
            'give all one command and data'
        )
    if saves_by('hybrid', config):
        check_nodes()


def differs(name, every):
    """Whether an entry of this name is not the same in all dicts of the list."""
    first = every[0].get(name)
    return any(other.get(name) != first for other in every)


def start_state(config, checkpoint, model, kind, device):
    """Return the TrainState on `device` of a new run, or of the checkpoint that it resumes.

    `kind` is as of kind_of."""
    resumes = config.init_from == 'resume'
    if resumes:
        check_kind(config, checkpoint.set, kind)
    _, world_size = processes()
    is_to_split = splits(config) and world_size > 1
    place = device
    if is_to_split:
        place = 'cpu'  # until it is split
    if device.type == 'cpu':
        keep_freed_memory()
    model = lean(model.train()).to(place)
    if saves_by('recompute', config):
        recompute(model)
    ema = EMA(model, config.ema_decay)
    if is_to_split:
        mesh = mesh_of(config, device)
        shard(model, mesh)
        shard(ema.model, mesh)
    state = TrainState(model, make_optimizers(model, config), ema)
    if resumes:
        resume(state, checkpoint.entries)
    return state


def entries_to_resume(state):
    """Return the entries of a checkpoint that `resume` reads, beside weights and average."""
    state.sum_seen()
    return {
        'iter_num': state.iter_num,
        'optimizer': [optimizer.state_dict() for optimizer in state.optimizers],
        'n_seen': state.n_seen,
        'logged': state.logged,
        'totals': state.totals.cpu(),
    }


def resume(state, entries):
    """Go on from the entries of a checkpoint, whose weights the model has.

    The options of the optimizers stay those of this run."""
    for optimizer, saved in zip(state.optimizers, entries['optimizer'], strict=True):
        load_moments(optimizer, saved['state'])
    load_weights(state.ema.model, entries, 'ema')
    state.ema.n_updates = entries['ema_model']['num_updates']
    state.iter_num = entries['iter_num']
    state.n_summed = entries['n_seen']
    state.logged = entries['logged']
    state.totals = entries['totals'].to(state.device, copy=True)


def load_moments(optimizer, moments):
    """Load {number of a parameter: {name: its moment, unsplit}}; each process reads its part."""
    params = [p for group in optimizer.param_groups for p in group['params']]
    own = {}
    for i, of_param in moments.items():
        own[i] = {name: own_part(x, params[i]).clone() for name, x in of_param.items()}
    groups = optimizer.state_dict()['param_groups']
    optimizer.load_state_dict({'state': own, 'param_groups': groups})


def check_kind(config, saved, kind):
    """Raise ValueError unless a set has the kind of set that a checkpoint has `saved`."""
    other = [field for field, value in saved.items() if kind.get(field) != value]
    if other:
        raise ValueError(
            f'the checkpoint has another kind of set than {config.dataset} is '
            f'({", ".join(other)}): start from its weights with '
            f'--init_from={config.out_dir}/ckpt.pt'
        )


def open_folder(config, checkpoint, hashes, device):
    """Return the RunFolder of a run, open; `hashes` are those of the splits."""
    where = environment(device) | {'started_from': config.started_from}
    resumed = resumed_at(config, checkpoint)
    best = best_of(config, checkpoint, hashes)
    folder = RunFolder(config.out_dir, resumed, where, best, config.program)
    folder.open()
    return folder


def make_run_model(model, compiled, device):
    """Return the model as updates run it: compiled, and wrapped to exchange gradients.

    A model that is split exchanges them itself, and is compiled block by block, between which it
    gathers weights."""
    if is_split(model.lm_head.weight):
        if compiled:
            for block in model.transformer.h:
                block.forward = torch.compile(block.forward)
        return model
    run_model = model
    if compiled:
        run_model = torch.compile(model)
    _, world_size = processes()
    if world_size == 1:
        return run_model
    device_ids = None
    if device.type == 'cuda':
        device_ids = [device]
    return DistributedDataParallel(run_model, device_ids=device_ids, gradient_as_bucket_view=True)
