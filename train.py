"""Train an any-order GPT.

    python train.py config/quickstart.py
    python train.py config/ao_gpt_small.py --batch_size=16
    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_small.py
    python train.py --init_from=resume --out_dir=out

Writes out_dir/ckpt.pt (weights, EMA, optimizer, options: enough to sample, evaluate and resume) and
out_dir/log.jsonl, see anyorder/training/run_folder.py. A checkpoint replaces a link of its name,
and what the link leads to stays. Ctrl-C, SIGTERM, SIGUSR1 and a closed terminal save, and say how
to go on."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config

# options that stay as typed, see configurator.py
TEXTS = ('wandb_project', 'wandb_run_name', 'wandb_run_id')

# fmt: off
# files
out_dir = 'out'                   # where ckpt.pt and log.jsonl go
init_from = 'scratch'             # 'scratch', 'resume' (out_dir/ckpt.pt), or weights: a path, hf:OWNER/REPO/path.pt, or
                                  # GPT-2: gpt2, gpt2-medium, -large, -xl, hf:OWNER/REPO or a folder of Hugging Face;
                                  # 'auto': 'resume' where there is something, else 'scratch'; auto:WEIGHTS: else these
save_interval = 1000              # iterations between checkpoints; there is one at the end in any case
keep_checkpoints = 1              # how many checkpoints before the newest are kept, as out_dir/ckpt_0001000.pt
# data
dataset = 'pydocs'                # a folder of data_dir, made by data/prepare.py
data_dir = 'data'                 # where prepared sets are
# model
block_size = 1024                 # positions
n_layer = 12                      # blocks
n_head = 12                       # heads of attention
n_embd = 768                      # width
n_cond = 128                      # width of the target position embedding that conditions AdaLN
dropout = 0.0                     # on embeddings, attention and residual branches
bias = True                       # in the linear layers of the blocks
gate_init = 0.0                   # initial bias of the AdaLN gates: 0 is the paper's, 1 learns faster in a short run
target_position = 'adaln'         # how a slot is told its target: 'adaln'; added at 'input', 'layer_shared' or 'layer',
                                  # or by a query beside it in 'two_stream'
rotary = False                    # rotary embeddings: of the target position on queries, of a token's own on keys
attention = 'causal'              # model.py:ATTENTION: the decoder, the encoder, and between them a network with a
                                  # cache whose blanks see each other
gelu_tanh = False                 # GELU by tanh, as in GPT-2
gpt2_blocks = False               # LayerNorm, no norm of queries and keys, tied head; sigma-GPT if added at the 'input'
# batch
batch_size = 16                   # sequences of a micro-batch
gradient_accumulation_steps = 1   # micro-batches of an update, over all processes together
order = 'random'                  # anyorder/orders.py:ORDERS,
                                  # a JSON file with all positions, or a function FILE.py:NAME of uniform numbers.
                                  # block:8 has blocks of 8 positions, swaps:8 random transpositions of left to right,
                                  # blocks2d:8 squares; rows and columns of a grid visit their cells in random order.
                                  # few:8 is one of 8 fixed orders, the first left to right (with l2r_ratio=0);
                                  # sorted_subset reads known positions and then the rest, each from left to right
order_seed = 0                    # which order it is, where one or few hold for all: 'fixed', 'block', 'swaps', 'few'
l2r_ratio = 0.1                   # share of the sequences that are read left to right instead
# optimizer
optimizer = 'adamw'               # 'adamw', or 'muon': Muon on the hidden matrices and AdamW on the rest
max_iters = 100000                # updates
learning_rate = 6e-4              # AdamW's peak, reached after warmup_iters
muon_learning_rate = 0.02         # Muon's peak
min_lr = 6e-5                     # AdamW's end of the cosine at lr_decay_iters; Muon's falls in the same ratio
warmup_iters = 2000               # updates
lr_decay_iters = 0                # 0 is max_iters
weight_decay = 0.05               # on matrices only
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0                   # norm of all gradients together; 0 is off
ema_decay = 0.9999                # per update, after min(ema_decay, (1 + n) / (10 + n))
# watching
eval_interval = 1000              # iterations between validations of the EMA weights
eval_iters = 32                   # batches of a validation: for one batch_size a fixed set of blocks and orders
log_interval = 10                 # iterations between lines of the log and of the terminal
wandb_log = False
wandb_project = 'ao-gpt'
wandb_run_name = ''               # '' is out_dir
wandb_run_id = ''                 # '' is a new one; a run that is resumed keeps its own
# system
seed = 1337                       # with iteration and micro-batch it fixes every random number
device = 'auto'                   # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'                    # 'bfloat16' (autocast) where the hardware is fast with it, else 'float32'
recompute = False                 # run every block twice and keep less of it: less memory, a third more work
shard = False                     # split weights, gradients, optimizer and average over the processes of torchrun
n_threads = 0                     # CPU threads; 0 is torch's choice; 1 for tiny models, as waiting threads spin
plan = ''                         # only say what the run would cost: 'H100', '8xH100', 'A100', 'H200', 'TFLOPS:GiB'
compile = 'auto'                  # True where it pays: there is a compiler and the run is long; False switches it off
# fmt: on

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    # init_from must be a checkpoint that is there, unless it is one of these words
    options = read_options(globals(), init_from=('scratch', 'resume', 'auto'))

import secrets
import sys
from functools import partial
from typing import NamedTuple

import torch

from anyorder.checkpoint import model_from_checkpoint
from anyorder.datasets import open_split
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.unmasking import Given
from anyorder.machine import processes
from anyorder.machine.devices import peak_flops, resolve_compile
from anyorder.machine.terminal import progress, say
from anyorder.orders import Order
from anyorder.pictures.texts import shown_text
from anyorder.pictures.watch import visible
from anyorder.tokens.blocks import all_blocks, check_length
from anyorder.tokens.meta import kind_of
from anyorder.tokens.tokenizers import tokenizer_of_set
from anyorder.training import start
from anyorder.training.chart import Chart
from anyorder.training.clock import Clock
from anyorder.training.plan import lines_of
from anyorder.training.report import Report, commands_to_go_on, introduction, validation_table
from anyorder.training.run_folder import RunFolder
from anyorder.training.update import get_lr, lr_of, update, validate  # noqa: F401


def main(config):
    train(config, update)


def train(config, make_update):
    """Train as the options say; with `plan` only say what that would cost.

    make_update  update.update, or f(state, split, lr, config) of a program in its place"""
    if config.plan:
        print(*lines_of(config), sep='\n')
        return

    # Open what the run begins from; what fails in one process ends all of them
    processes.start_processes()
    rank, world_size = processes.processes()
    with processes.failing_together():
        checkpoint, config, changed, device = open_options(config)
    with processes.failing_together():
        data, model, config = open_data(config, checkpoint)
    resumed = start.resumed_at(config, checkpoint)
    if world_size > 1:
        start.check_start(model, resumed, data, config)
    with processes.failing_together():
        state = start.start_state(config, checkpoint, model, data.kind, device)
    changed += start.changed_inputs(config, checkpoint, data.hashes)
    charted = start.charted_at(config, checkpoint)
    del checkpoint, model  # the model's weights are in the state

    # Build how the model is run, and where the run is kept
    peak = peak_flops(device, config.dtype)
    clock = Clock(state.model, config, peak, data.train.width(config.block_size))
    n_flops = clock.flops_per_iter * config.max_iters
    with processes.failing_together():
        compiled, why = resolve_compile(config.compile, device, n_flops, config.max_iters)
        run_id = config.wandb_run_id
        if config.wandb_log and not run_id:
            run_id = secrets.token_hex(4)
        config = with_values(config, compile=compiled, wandb_run_id=run_id)
        folder = open_folder(config, resumed, device)
    state.run_model = start.make_run_model(state.model, compiled, device)
    if rank == 0:
        how = f'compile={compiled} ({why})'
        print(*introduction(state, data, clock, config, how, changed), sep='\n')
    with processes.failing_together():
        chart = start_chart(state, folder, charted, config)

    # Train
    val = loop(make_update, state, data, clock, folder, chart, config)
    finish(state, data, val, folder, config)


def open_options(config):
    """Return what the run begins from, and with:

    the checkpoint, or None; the options, with those that the checkpoint fixes; what the options
    change in it, in words; and the device of this process."""
    _, world_size = processes.processes()
    checkpoint, config, changed = start.start_checkpoint(config)
    start.check_options(config, world_size)
    if config.n_threads:
        torch.set_num_threads(config.n_threads)
    device, dtype = processes.own_device(config.device, config.dtype)
    name = str(device)
    if world_size > 1:
        name = device.type
    return checkpoint, with_values(config, device=name, dtype=dtype), changed, device


def with_values(config, **values):
    """Return the options with some that are known by now."""
    return Config(config | values)


def open_data(config, checkpoint):
    """Return (Data, the model to train, still on the CPU, options that know of both)."""
    data = Data(config)
    if data.kind.get('shape'):
        config = with_values(config, shape=data.kind['shape'])
    Order.of('own', config).check(config.block_size)
    model = start.start_model(config, checkpoint, data.tokenizer.n_tokens)
    begun_by = start.started_from(config, checkpoint, model)
    return data, model, with_values(config, source=data.source, started_from=begun_by)


class Data:
    """The data set of a run: its splits, its kind, see anyorder/tokens/meta.py, its tokenizer."""

    def __init__(self, config):
        with processes.first_process_first():  # which makes the set, if that needs no source
            self.train, meta = open_split(config.data_dir, config.dataset, 'train')
            self.val, _ = open_split(config.data_dir, config.dataset, 'val')
        for name, split in (('train', self.train), ('val', self.val)):
            check_length(split, config.block_size, f'{config.dataset}/{name}')
        self.kind = kind_of(meta)
        self.source = meta.splits['train'].source
        self.splits = meta.splits
        self.tokenizer = tokenizer_of_set(self.kind)
        self.hashes = {split: meta.splits[split].sha256 for split in ('train', 'val')}
        # (n, N) tokens that every validation measures, and which of them are given, as clues are
        n_blocks = config.eval_iters * config.batch_size
        self.blocks, self.given = all_blocks(self.val, config.block_size, n_blocks)
        self.n_blanks = int((~self.given).sum())


def open_folder(config, resumed, device):
    """Return the RunFolder of the run, opened."""
    environment = processes.environment(device) | {'started_from': config.started_from}
    folder = RunFolder(config.out_dir, config.keep_checkpoints, resumed, environment)
    folder.open()
    return folder


def start_chart(state, folder, has, config):
    """Return the Chart of the run, begun if the run wants it and has something to send.

    `has` is the last iteration that wandb already has a row of, see Chart."""
    rank, _ = processes.processes()
    chart = Chart(folder, config.wandb_run_id, config.wandb_log and rank == 0, has)
    if chart.wanted and (state.iter_num < config.max_iters or chart.lacking(state.iter_num)):
        chart.start(config, folder.environment)
        chart.send(state.iter_num)
        if chart.sent > state.iter_num:
            say(
                f'wandb has this run up to iteration {chart.sent}, and takes no other rows until '
                'then: --wandb_run_id=NAME begins a chart of all rows'
            )
    return chart


def loop(make_update, state, data, clock, folder, chart, config):
    """Update until the end, or until asked to stop; log, validate and save in between.

    Returns the last validation."""
    rank, _ = processes.processes()
    bar = progress(total=config.max_iters, initial=state.iter_num, unit='it', disable=rank > 0)
    write_samples = None
    if chart.wanted and not data.train.marked and not config.shard:  # the first process alone
        write_samples = partial(samples, state.ema.model, data.tokenizer, config)
    report = Report(folder, chart, bar, write_samples)

    val = {}
    stopping = False
    clock.start(state)
    with bar, processes.stop_requests() as stop_requested:
        while state.iter_num < config.max_iters and not stopping:
            lr = lr_of(state.iter_num, config)
            make_update(state, data.train, lr, config)
            bar.update()
            stopping = stop_requested()
            due = due_at(state.iter_num, stopping, config)
            if not any(due):
                continue

            # The only wait for the device: means of the updates since the last line
            loss, norm = state.averages(folder.way_on(), with_weights=due.save)

            # Validate the average, and tell
            if due.line:
                entry = {'iter': state.iter_num, 'tokens': state.n_seen}
                entry |= {'loss': loss, 'lr': lr, 'grad_norm': norm}
                entry |= clock.read(state)
                if due.validate:
                    val = validate(state.ema.model, data.blocks, data.given, config)
                    for name, nats in val.items():
                        entry[f'val_{name}'] = float(nats.sum()) / data.n_blanks
                report(entry, with_samples=due.validate)
                state.start_line()

            # Save
            if due.save:
                save(state, data, folder, config)
                chart.send(state.iter_num)
            clock.start(state)
    chart.finish()
    return val


class Due(NamedTuple):
    """What is to be done after an update."""

    line: bool  # of the log
    validate: bool
    save: bool


def due_at(iter_num, stopping, config):
    """Return what is Due after so many updates; the last one has all of it."""
    is_last = iter_num == config.max_iters
    validating = is_last or iter_num % config.eval_interval == 0
    saving = is_last or iter_num % config.save_interval == 0
    logging = is_last or iter_num % config.log_interval == 0
    # a request to stop saves, and writes no line of its own
    has_line = validating or saving or logging
    return Due(line=has_line, validate=validating, save=saving or stopping)


def save(state, data, folder, config):
    folder.save(
        state.model,
        state.ema,
        **state.entries(),
        config=dict(config),
        tokenizer=data.tokenizer.name,
        set=data.kind,
        data=data.hashes['train'],
        val_data=data.hashes['val'],
        environment=folder.environment,
    )


def samples(model, tokenizer, config):
    """Return [(order in words, text)]: a sample in the order of the run and one left to right."""
    titles = {'random': 'in random order', 'l2r': 'left to right'}
    orders = {}
    for order in (Order.of('own', config), Order.of('l2r', config)):
        orders[order.kind] = order  # a single one if the run is left to right
    positions = range(config.block_size)
    blank = ([0 for _ in positions], [False for _ in positions])  # tokens, and which are known
    _, width = config.get('shape') or (0, 0)  # of a picture
    texts = []
    for seed, (kind, order) in enumerate(orders.items(), config.seed):
        canvas = Canvas.of_texts([blank], order, seed, model.device)
        fill(model, canvas, Given(config.block_size), Drawing())
        text = shown_text(canvas.idx[0].tolist(), tokenizer, width)
        texts.append((titles.get(kind, 'in its own order'), visible(text)))
    return texts


def finish(state, data, val, folder, config):
    """Say how to go on with a stopped run, or print validation, samples and what to do next."""
    rank, _ = processes.processes()
    if state.iter_num < config.max_iters:
        if rank == 0:
            print(f'stopped and saved; {folder.way_on()}', file=sys.stderr)
        processes.end_processes(1)  # exits
    if folder.saved is None:  # nothing was left to train
        save(state, data, folder, config)
    if not val:
        val = validate(state.ema.model, data.blocks, data.given, config)
    if rank == 0:
        print(f'\nvalidation of the EMA weights on {config.dataset}')
        print(validation_table(val, data, config))
        if not data.train.marked:
            model = state.ema.model
            if config.shard:  # the first process has a part of it
                model = model_from_checkpoint(folder.ckpt_path, 'ema', state.device)
            for order, text in samples(model, data.tokenizer, config):
                print(f'\nwritten {order}\n{text}')
        print('\ngo on with')
        masked_loss = state.model.slots.masked_loss
        for command in commands_to_go_on(data, masked_loss, folder.ckpt_path, config):
            print(f'  {command}')
    processes.end_processes()


if __name__ == '__main__':
    with one_line_errors():
        main(options)
