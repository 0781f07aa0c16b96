"""Train an any-order GPT.

    python train.py config/quickstart.py
    python train.py config/ao_gpt_small.py --batch_size=16
    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_small.py
    python train.py --init_from=resume --out_dir=out

Writes out_dir/ckpt.pt (weights, EMA, optimizer, options: enough to sample, evaluate and resume) and
out_dir/log.jsonl. Ctrl-C, SIGTERM, SIGUSR1 and a closed terminal save, and say how to go on.
docs/training.md says what the options mean."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config

# files
out_dir = 'out'  # where ckpt.pt and log.jsonl go
init_from = 'scratch'  # 'resume', 'auto' (what is there), WEIGHTS as a path or gpt2, auto:WEIGHTS
# data
dataset = 'pydocs'  # a folder of data_dir, made by data/prepare.py; several as books:0.7,code:0.3
data_dir = 'data'  # where prepared sets are
documents = 'together'  # in a block; 'apart': they do not see each other
# model
block_size = 1024  # positions
n_layer = 12  # blocks
n_head = 12  # heads of attention
n_embd = 768  # width
dropout = 0.0  # on embeddings, attention and residual branches
bias = True  # in the linear layers of the blocks
network = 'decoder'  # anyorder/networks.py:NETWORKS, gate_init=1 or n_cond=64; commas between
# batch
batch_size = 16  # sequences of a micro-batch
gradient_accumulation_steps = 1  # micro-batches of an update, over all processes together
order = 'random'  # anyorder/orders.py:ORDERS; few:8@3 has number and seed; or FILE.py:NAME
l2r_ratio = 0.1  # share of the sequences that are read left to right instead
# optimizer
optimizer = 'adamw'  # or 'muon': Muon on the matrices of attention and MLP, AdamW on the rest
muon_learning_rate = 0.02  # Muon's peak, which rises and falls in the same ratio as AdamW's
max_iters = 100000  # updates
learning_rate = 6e-4  # AdamW's peak, reached after warmup_iters; at 0 nothing is learned
min_lr = 6e-5  # AdamW's end of the cosine at lr_decay_iters
warmup_iters = 2000  # updates
lr_decay_iters = 0  # updates; 0 is max_iters
weight_decay = 0.05  # on matrices only
beta1 = 0.9  # of AdamW
beta2 = 0.95  # of AdamW
grad_clip = 1.0  # largest norm of all gradients together; 0 is off
ema_decay = 0.9999  # of the average of the weights, after min(ema_decay, (1 + n) / (10 + n))
# watching
eval_interval = 1000  # iterations between validations of the averaged weights, which save too
eval_iters = 32  # batches of a validation: a fixed set of blocks and orders
val_orders = ''  # as for `order`, with commas between; '' is own,l2r, of a masked loss own
log_interval = 10  # iterations between lines of the log and of the terminal
keep_best = ''  # 'val_any', 'val_l2r', ...: ckpt_best.pt is kept where it was lowest
patience = 0  # validations in a row without a new best, after which the run ends; 0 is off
wandb_log = False  # send the log to wandb, too; WANDB_PROJECT and WANDB_NAME name it
# system
seed = 1337  # with iteration and micro-batch it fixes every random number
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'bfloat16' (autocast) where the hardware is fast with it, else 'float32'
save_memory = ''  # 'recompute', and 'shard' or 'hybrid' (in nodes), see docs/training.md
plan = ''  # only say what the run would cost: 'H100', '8xH100', 'A100', 'H200', 'TFLOPS:GiB'
compile = 'auto'  # True where it pays: there is a compiler and the run is long; False is off

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import pkgutil
import sys

from anyorder.flops import peak_flops
from anyorder.machine.processes import (
    end_processes,
    is_first,
    n_processes,
    start_processes,
    stop_requests,
)
from anyorder.machine.terminal import say
from anyorder.provenance import environment, program
from anyorder.tokens.blocks import width_of
from anyorder.training.best import best_of
from anyorder.training.chart import start_chart
from anyorder.training.clock import Clock
from anyorder.training.data import Data
from anyorder.training.report import bar_of, conclusion, introduction, samples, show
from anyorder.training.run_folder import RunFolder, lock_first, own_orders_of
from anyorder.training.start import (
    changes,
    check_options,
    check_processes,
    make_state,
    model_to_train,
    open_start,
    resolve_compile,
    set_up_device,
)
from anyorder.training.update import get_lr, lr_of, update  # noqa: F401  (for programs)

PLAN = 'anyorder.extras.speed.plan:lines_of'  # imported where --plan asks for it


def main(config):
    train(config, update)


def train(config, update_once):
    """Train as the options say; with `plan` only say what that would cost.

    update_once  update.update, or f(state, sets, lr, config) of a program in its place"""
    if config.plan:
        print(*pkgutil.resolve_name(PLAN)(config), sep='\n')
        return

    # Open what the run begins from, and what it reads
    start_processes()
    lock = lock_first(config.out_dir)  # before anything is read of it, till the RunFolder has it
    own_orders = own_orders_of(config)  # as typed: open_start writes orders out
    config, checkpoint = open_start(config, trained_by(update_once))
    before = checkpoint.entries if config.init_from == 'resume' else {}
    check_options(config, n_processes())
    device, dtype = set_up_device(config)
    data = Data(config)
    changed = changes(before, data, config)
    model = model_to_train(config, checkpoint, data.tokenizer)

    # The options are whole when device, data and work are known
    N = width_of(data.train)  # tokens of a sequence
    clock = Clock(model, config, peak_flops(device, dtype), N)
    n_flops = clock.flops_per_iter * config.max_iters / n_processes()
    compiled, why = resolve_compile(config.compile, device, n_flops, config.max_iters)
    found = {'dtype': dtype, 'compile': compiled}  # a device stays as it was typed
    if config.device == 'auto':
        found['device'] = device.type
    config = Config(data.config | found)
    check_processes(config, model, data)

    # Build what learns, and where the run is kept
    state = make_state(config, before, model, device, clock.flops_per_iter)
    data.validation.try_orders(state, data.val[0])
    where = environment(device) | {'started_from': config.started_from}
    kept = {'config': config, 'environment': where, **data.entries}
    best = best_of(config, data.validation, data.splits, before)
    chart = start_chart(where, config)  # may fail, and an earlier run has its names yet
    folder = RunFolder(config, kept, best, own_orders, before.get('iter_num'))
    del checkpoint, before, model, lock  # the weights are in the state
    if is_first():
        for line in introduction(state, data, clock, folder, config, why, changed):
            say(line)

    # Train
    val = loop(update_once, state, data, clock, folder, chart, config)
    finish(state, data, val, folder, config)


def trained_by(update_once):
    """Return the name of the program that trains, which alone can go on in the same way: this one,
    or that which gives it an update of its own."""
    if __name__ == '__main__' or update_once is not update:
        return program()
    return 'train.py'


def loop(update_once, state, data, clock, folder, chart, config):
    """Update until the end, or until asked to stop; log, validate and save in between.

    Returns the last validation."""
    val = []
    shown = {}  # the last validation stays in sight
    stopping = False
    clock.start(state)
    with bar_of(state, config) as bar, stop_requests() as stop_requested:
        while not (stopping or is_over(state, folder, config)):
            lr = lr_of(state.iter_num, config)
            update_once(state, data.train, lr, config)
            state.flops += clock.flops_per_iter
            bar.update()
            stopping = stop_requested()

            # What is due now? A request to stop saves, and writes no line of its own
            is_last = state.iter_num == config.max_iters
            validates = is_last or state.iter_num % config.eval_interval == 0
            logs = validates or state.iter_num % config.log_interval == 0
            saves = validates or stopping
            if not (logs or saves):
                continue

            # The only wait for the device, in which tokens are counted, too
            loss, norm = state.averages(folder.way_on())

            # Validate the average, and tell
            if logs:
                entry = {'iter': state.iter_num, 'tokens': state.n_seen, 'flops': state.flops}
                entry |= {'loss': loss, 'lr': lr, 'grad_norm': norm}
                entry |= clock.read(state)
                if validates:
                    val, losses = data.validate(state, config)
                    entry |= losses | folder.compare(state.iter_num, losses)
                folder.log(entry)
                if validates and chart.wandb:
                    entry['samples'] = [*samples(state.ema.model, data, state.order, config)]
                chart.send(entry)
                shown |= entry
                show(bar, shown)
                state.begin_averages()
            if saves:
                folder.save(state)
            clock.start(state)
    chart.attempt('finish')
    return val


def is_over(state, folder, config):
    return state.iter_num >= config.max_iters or folder.best.is_over


def finish(state, data, val, folder, config):
    """Say how to go on with a stopped run, or what has come out, and what to do next."""
    if not is_over(state, folder, config):
        if is_first():
            print(f'stopped and saved; {folder.way_on()}', file=sys.stderr)
        end_processes(1)  # exits
    if folder.saved is None:  # nothing was left to train
        folder.save(state)
    if not val:
        val, _ = data.validate(state, config)
    if is_first():
        print(*conclusion(state, data, val, folder, config), sep='\n')
    end_processes()


if __name__ == '__main__':
    with one_line_errors():
        main(options)
