"""How does a run begin? From nothing, where it stopped, or the weights of another run."""

import os
import secrets
import shutil
from dataclasses import asdict, replace
from importlib.util import find_spec

import torch
from torch.nn.parallel import DistributedDataParallel

from anyorder.checkpoint import Checkpoint, digest, model_from_checkpoint
from anyorder.datasets import changed_since
from anyorder.fast import lean
from anyorder.machine.devices import keep_freed_memory, resolve_device
from anyorder.machine.files import check_folder
from anyorder.machine.graphs import Graphs, has_graphs
from anyorder.machine.processes import gather, is_first, is_split, n_processes
from anyorder.machine.terminal import say
from anyorder.networks import named_network, network_name
from anyorder.orders import Order, order_options
from anyorder.seeds import derive_seed
from anyorder.tokens.apart import keeps_apart
from anyorder.training.sharding import SAVINGS, mesh_of, recompute, saves_by, shard
from anyorder.training.update import TrainState, make_optimizers
from anyorder.weights import GPT2_N_TOKENS, embedding_rows
from configurator import Config, at_least, check_choice, differing
from model import AOGPT, EMA

SIZES = ('block_size', 'n_layer', 'n_head', 'n_embd', 'bias')  # a checkpoint fixes them
WHERE = ('out_dir', 'init_from')  # what a run that goes on elsewhere may say otherwise
SMALL = 5e12  # FLOPs of an update, which a GPU has done before the host has launched them
NARROW = 256  # below this width a second thread of a CPU waits more than it works

# the least of numbers that nobody else checks
LEAST = {
    1: 'batch_size gradient_accumulation_steps eval_interval eval_iters log_interval',
    0: 'max_iters patience warmup_iters lr_decay_iters seed learning_rate muon_learning_rate '
    'min_lr weight_decay grad_clip beta1 beta2 ema_decay l2r_ratio',
}


def open_start(config, program='train.py'):
    """Return what a run that a program makes begins with: its options, and the Checkpoint whose
    weights it takes, None for new ones.

    A resumed run has the options of its checkpoint, resolved values included, overridden by those
    given now. What the checkpoint fixes stays: a line says which values of a config file are
    overruled, and typed ones are an error."""
    start = resolve_start(config)
    checkpoint = None
    saved = {}
    fixed = {}
    started_from = []
    if start == 'resume':
        checkpoint = open_newest(config.out_dir)
        saved = checkpoint.run
        fixed['optimizer'] = saved['optimizer']
    elif start != 'scratch':
        checkpoint = Checkpoint(start)
        earlier = checkpoint.run.get('started_from', [])
        name = os.path.basename(os.path.abspath(start)) if os.path.exists(start) else start
        started_from = [*earlier, {'name': name}]
    if checkpoint:
        fixed |= {size: getattr(checkpoint.config, size) for size in SIZES}
        fixed['network'] = network_name(checkpoint.config)

    asked = config | written_out(config, saved)  # as given, or by default
    given = {name: asked[name] for name in sorted(config.given)}
    say_overruled(given, fixed, config.typed)
    new = {'started_from': started_from, 'wandb_id': secrets.token_hex(4)}
    here = {'out_dir': config.out_dir, 'init_from': start, 'program': program}
    # later ones override earlier ones
    return Config(new | asked | saved | given | fixed | here), checkpoint


def resolve_start(config):
    """Return 'scratch', 'resume' or the name of a checkpoint, which --init_from says.

    'auto' is 'resume' if there is out_dir/ckpt.pt, else 'scratch', or WEIGHTS of auto:WEIGHTS: the
    same command begins a run and goes on with it."""
    word, _, weights = config.init_from.partition(':')
    if word != 'auto':
        return config.init_from
    if os.path.isfile(os.path.join(config.out_dir, 'ckpt.pt')):
        return 'resume'
    return weights or 'scratch'


def open_newest(out_dir):
    """Return the Checkpoint out_dir/ckpt.pt, from whose raw weights a run goes on.

    Raises ValueError when the file holds no run, is missing or is not whole."""
    path = os.path.join(out_dir, 'ckpt.pt')
    old = os.path.join(out_dir, 'ckpt_old.pt')
    try:
        checkpoint = Checkpoint(path, lazily=True)
    except ValueError as e:
        if not os.path.exists(old):
            raise
        raise ValueError(f'{e}; {old} is the one before it: name it ckpt.pt to go on') from None
    if 'totals' not in checkpoint.entries:  # a TrainState has left them
        raise ValueError(
            f'{path} holds no run that can be resumed: start from its weights with '
            f'--init_from={path}'
        )
    checkpoint.weights = 'raw'
    return checkpoint


def written_out(config, saved):
    """Return the options that a short text may name, written out as a checkpoint keeps them.

    What a text leaves open is as in `saved`, the options of the run that is resumed."""
    network = network_name(named_network(config.network))
    return {'network': network, **order_options(config, saved)}


def say_overruled(given, fixed, typed):
    """Say which of the options that are given those that a checkpoint has `fixed` overrule.

    Raises ValueError for those that are `typed`."""
    found = differing(given, fixed)
    wrong = [words for name, words in found.items() if name in typed]
    if wrong:
        raise ValueError(
            f'the checkpoint fixes {", ".join(wrong)}: leave it out, or begin anew with '
            '--init_from=scratch'
        )
    if found and is_first():
        say(f'the checkpoint overrules the config file: {", ".join(found.values())}')


def check_options(config, world_size):
    """Raise ValueError for wrong options that nobody else checks before the device is touched."""
    for least, names in LEAST.items():
        at_least(config, least, *names.split())
    for name in ('beta1', 'beta2', 'ema_decay'):
        if config[name] >= 1:
            raise ValueError(f'{name} must be at least 0 and below 1, got {config[name]}')
    if config.l2r_ratio > 1:
        raise ValueError(f'l2r_ratio must be 0 to 1, got {config.l2r_ratio}')
    if config.min_lr > config.learning_rate:
        raise ValueError(
            f'min_lr must be at most learning_rate={config.learning_rate}, got {config.min_lr}: '
            'give --min_lr, too'
        )
    if config.gradient_accumulation_steps % world_size:
        raise ValueError(
            f'gradient_accumulation_steps={config.gradient_accumulation_steps} must be a multiple '
            f'of the {world_size} processes: change it and batch_size by opposite factors'
        )
    check_choice('compile', config.compile, 'auto', True, False)
    check_choice('optimizer', config.optimizer, 'adamw', 'muon')
    check_folder('out_dir', config.out_dir)
    check_choice('save_memory', ','.join(sorted(config.save_memory.split(','))), *SAVINGS, '')
    keeps_apart(config.documents)  # which raises
    model_config(config)


def model_config(config, n_tokens=GPT2_N_TOKENS):
    """Return the AOGPTConfig of the options; its vocabulary is n_tokens, and padding to 64 n."""
    network = named_network(config.network)
    sizes = {name: config[name] for name in (*SIZES, 'dropout')}
    return replace(network, vocab_size=embedding_rows(n_tokens), n_tokens=n_tokens, **sizes)


def set_up_device(config):
    """Return (torch.device, dtype name) of a run, whose process is set up for it.

    A narrow network has one thread of the CPU, unless the environment says how many."""
    device, dtype = resolve_device(config.device, config.dtype)
    if device.type == 'cpu':
        keep_freed_memory()
    if config.n_embd < NARROW and 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)
    return device, dtype


def model_to_train(config, checkpoint, tokenizer):
    """Return the model to train, on the CPU: that of the Checkpoint, or a new one.

    tokenizer  of the set"""
    if checkpoint is None:
        torch.manual_seed(derive_seed(config.seed))
        return AOGPT(model_config(config, tokenizer.n_tokens))
    theirs = checkpoint.tokenizer
    are_symbols = theirs.texts or tokenizer.texts
    is_other_text = not are_symbols and theirs.identity != tokenizer.identity
    if theirs.n_tokens != tokenizer.n_tokens or is_other_text:
        raise ValueError(
            f'the data set {config.dataset} has {tokenizer.n_tokens} tokens of the tokenizer '
            f'{tokenizer.name}, the checkpoint {theirs.n_tokens} of {theirs.name}: prepare the set '
            'with --tokenizer=FOLDER, which is the folder of that model or of its set'
        )
    sizes = checkpoint.entries['model_args'] | {'dropout': config.dropout}
    return model_from_checkpoint(checkpoint.entries | {'model_args': sizes}, checkpoint.weights)


def changes(before, data, config):
    """Return in words what a run that is resumed has otherwise than `before`: options, and sets of
    other contents.

    Raises ValueError for sets of another kind."""
    other = differing(before.get('set', {}), asdict(data.kind))
    if other:
        raise ValueError(
            f'the checkpoint has another kind of set than {config.dataset} is '
            f'({", ".join(other)}): start from its weights with '
            f'--init_from={config.out_dir}/ckpt.pt'
        )
    found = differing(before.get('config', {}), config)
    options = [words for option, words in found.items() if option not in WHERE]
    contents = [changed_since(before.get('sets', {}), split.meta) for split in data.train]
    return options + [*filter(None, contents)]


def check_processes(config, model, data):
    """Raise ValueError unless all processes have the same run, weights, data and options."""
    if n_processes() == 1:
        return
    hashes = {name: (s['train']['sha256'], s['val']['sha256']) for name, s in data.splits.items()}
    own = {'the data': hashes, 'the weights': digest(model)} | config
    for name in ('out_dir', 'data_dir', 'device', 'wandb_id'):  # of a process alone
        own.pop(name)
    first, *others = gather(own)
    found = {}
    for other in others:
        found |= differing(first, other)
    if found:
        raise ValueError(
            f'the processes differ in {", ".join(found.values())}: give all one command and data'
        )


def make_state(config, before, model, device, flops):
    """Return the TrainState on `device`, whose updates have so many FLOPs, of a new run, or of that
    which it goes on with, which had the entries `before`."""
    model = lean(model.train())
    if saves_by('recompute', config):
        recompute(model)
    mesh = mesh_of(config, device)
    if mesh is None:
        model.to(device)
    ema = EMA(model, config.ema_decay)
    if mesh is not None:
        shard(model, mesh)
        shard(ema.model, mesh)
    state = TrainState(model, make_optimizers(model, config), ema, Order.of('own', config))
    if before:
        state.resume(before)
    state.run_model = make_run_model(model, config.compile)
    state.graphs = make_graphs(state.device, config, flops)
    return state


def make_graphs(device, config, flops):
    """Return the Graphs by which a GPU gets an update of so many FLOPs in one launch; None where
    that gains nothing, or was never tried."""
    is_tried = n_processes() == 1 and not (config.dropout or config.save_memory)
    if flops < SMALL and is_tried and has_graphs(device):
        return Graphs(device)
    return None


LONG_RUN = 2000  # updates on a GPU, which pay for a minute of compiling


def resolve_compile(compile, device, flops, max_iters):
    """Return (whether to compile, why).

    'auto' wants what makes the kernels, Triton or the C++ compiler, and a long run.

    compile     True, False or 'auto'
    flops       of one process in the whole run
    max_iters   updates of the run"""
    if compile != 'auto':
        return bool(compile), 'as asked, or as the run began'
    if device.type == 'cuda':
        has_compiler = torch.version.hip is None and find_spec('triton') is not None
        is_long = max_iters >= LONG_RUN
    else:
        compiler = shutil.which(os.environ.get('CXX', 'g++'))
        has_compiler = device.type == 'cpu' and compiler is not None
        is_long = flops > 1e14
    if not has_compiler:
        return False, 'no compiler, or not tried on this device'
    return is_long, 'a long run' if is_long else 'the run is too short to pay for it'


def make_run_model(model, compiled):
    """Return the model as updates run it: compiled, and wrapped to exchange gradients.

    A model that is split exchanges them itself, and is compiled block by block, between which it
    gathers weights."""
    if is_split(model.lm_head.weight):
        if compiled:
            for block in model.transformer.h:
                block.forward = torch.compile(block.forward)
        return model
    if compiled:
        model = torch.compile(model)
    if n_processes() > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model
