"""Train an any-order GPT.

    python train.py config/quickstart.py
    python train.py config/ao_gpt_small.py --batch_size=16
    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_small.py
    python train.py --init_from=resume --out_dir=out

Writes out_dir/ckpt.pt (weights, EMA, optimizer, options: enough to sample, evaluate and resume) and out_dir/log.jsonl,
see anyorder/training/run_folder.py. A checkpoint replaces a link of its name, and what the link leads to stays. Ctrl-C,
SIGTERM, SIGUSR1 and a closed terminal save, and say how to go on."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config

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
    options = read_options(globals(), init_from=('scratch', 'resume', 'auto'))

import secrets
import shlex
import sys

import torch

from anyorder.checkpoint import model_from_checkpoint
from anyorder.datasets import open_split
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.unmasking import Given
from anyorder.likelihood.tables import format_table, summarize, unigram_row
from anyorder.machine import processes
from anyorder.machine.devices import peak_flops, resolve_compile
from anyorder.machine.terminal import progress, say
from anyorder.orders import Order
from anyorder.pictures.texts import shown_text
from anyorder.pictures.watch import visible
from anyorder.seeds import DRAWS
from anyorder.tokens.blocks import all_blocks, check_length
from anyorder.tokens.meta import kind_of
from anyorder.tokens.sets import PADDING
from anyorder.tokens.tokenizers import END_OF_TEXT, tokenizer_of_set
from anyorder.training import start
from anyorder.training.chart import Chart
from anyorder.training.clock import Clock
from anyorder.training.plan import lines_of
from anyorder.training.run_folder import RunFolder
from anyorder.training.update import get_lr, lr_of, update, validate  # noqa: F401


class Data:
    """The data set of a run: its splits, its kind, see anyorder/tokens/meta.py, and its tokenizer."""

    def __init__(self, config):
        with processes.first_process_first():  # it makes the set, if that needs no source
            self.train, meta = open_split(config.data_dir, config.dataset, 'train')
            self.val, _ = open_split(config.data_dir, config.dataset, 'val')
        for name, split in (('train', self.train), ('val', self.val)):
            check_length(split, config.block_size, f'{config.dataset}/{name}')
        self.kind, self.source, self.splits = (
            kind_of(meta),
            meta.splits['train'].source,
            meta.splits,
        )
        self.tokenizer = tokenizer_of_set(self.kind)
        self.hashes = {split: meta.splits[split].sha256 for split in ('train', 'val')}
        # (n, N) tokens that every validation measures, and which of them are given, as the clues of a puzzle are
        self.blocks, self.given = all_blocks(
            self.val, config.block_size, config.eval_iters * config.batch_size
        )
        self.n_blanks = int((~self.given).sum())


def introduce(state, data, clock, config, compiled, changed):
    """Print what is about to run; `compiled` and `changed` in words."""
    rank, world_size = processes.processes()
    if rank > 0:
        return
    print(
        f'{state.model.n_parameters():,} parameters; {clock.tokens_per_iter:,} tokens an update; {config.dataset}: '
        f'{data.train.packed.size:,} {data.tokenizer.name} tokens; '
        f'validation on {len(data.blocks):,} blocks of {data.blocks.size(1)}'
    )
    if data.train.ends is not None:
        lengths, N = data.train.lengths, data.train.width(config.block_size)
        print(
            f'documents are rows, their prompts given: {len(lengths):,} of {lengths.mean():.1f} tokens in the mean, '
            f'{(lengths > N).sum():,} cut at {N}; {1 - lengths.clip(max=N).mean() / N:.0%} of a batch is padding'
        )
    print(
        f'{world_size} x {state.device.type}, {torch.get_num_threads()} CPU threads each, '
        f'{config.dtype} at {clock.peak / 1e12:,.3g} TFLOP/s, {compiled}'
    )
    starts = not (state.iter_num or config.started_from or data.train.marked)
    if starts and data.train.packed.size < 10**7 and config.order != 'l2r':
        print(
            'little text: the loss stays on a plateau at first, near the entropy of single tokens'
        )
    if changed or state.iter_num:
        said = f'changed since iteration {state.iter_num}: {", ".join(changed)}'
        print(said if changed else f'goes on from iteration {state.iter_num} of {config.out_dir}')
    if state.iter_num < config.max_iters and (said := start.never_reached(config)):
        print(said)
    if state.iter_num >= config.max_iters > 0:
        print(
            f'finished: the checkpoint is at iteration {state.iter_num} of {config.max_iters}; to go on, raise '
            '--max_iters'
        )


def start_chart(state, folder, has, config):
    """The Chart of the run, begun if the run wants it and there is something to send. `has` as for Chart."""
    chart = Chart(
        folder, config.wandb_run_id, config.wandb_log and processes.processes()[0] == 0, has
    )
    if chart.wanted and (state.iter_num < config.max_iters or chart.lacking(state.iter_num)):
        chart.start(config, folder.environment)
        chart.send(state.iter_num)
        if chart.sent > state.iter_num:
            say(
                f'wandb has this run up to iteration {chart.sent}, and takes no other rows until then: '
                '--wandb_run_id=NAME begins a chart of all rows'
            )
    return chart


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


def loop(state, data, clock, folder, chart, config):
    """Update until the end, or until asked to stop; log, validate and save in between. Returns the last validation."""
    val, shown, stopping = {}, {}, False
    bar = progress(
        total=config.max_iters,
        initial=state.iter_num,
        unit='it',
        disable=processes.processes()[0] > 0,
    )
    clock.start(state)
    with bar, processes.stop_requests() as stop_requested:
        while state.iter_num < config.max_iters and not stopping:
            lr = lr_of(state.iter_num, config)
            update(state, data.train, lr, config)
            bar.update()

            stopping, final = stop_requested(), state.iter_num == config.max_iters
            evaluating, saving, logging = (
                final or state.iter_num % config[name] == 0
                for name in ('eval_interval', 'save_interval', 'log_interval')
            )
            if not (evaluating or saving or logging or stopping):
                continue
            loss, norm = state.averages(folder.way_on(), with_weights=saving or stopping)
            if evaluating or saving or logging:
                entry = {
                    'iter': state.iter_num,
                    'tokens': state.n_seen,
                    'loss': loss,
                    'lr': lr,
                    'grad_norm': norm,
                }
                entry |= clock.read(state)
                if evaluating:
                    val = validate(state.ema.model, data.blocks, data.given, config)
                    entry |= {
                        f'val_{name}': float(nats.sum()) / data.n_blanks
                        for name, nats in val.items()
                    }
                folder.log(entry)
                sampling = (
                    chart.wanted and evaluating and not data.train.marked and not config.shard
                )  # alone
                chart.keep(
                    state.iter_num,
                    samples(state.ema.model, data.tokenizer, config) if sampling else [],
                )
                shown |= entry  # the last validation stays in sight
                losses = ' '.join(
                    f'{name.removeprefix("val_")} {value:.3f}'
                    for name, value in shown.items()
                    if name == 'loss' or name.startswith('val_')
                )
                bar.set_postfix_str(
                    '{tokens_per_sec:,.0f} tok/s mfu {mfu:.0%} lr {lr:.1e} norm {grad_norm:.2f} '.format(
                        **shown
                    )
                    + losses,
                    refresh=False,
                )
                state.start_line()
            if saving or stopping:
                save(state, data, folder, config)
                chart.send(state.iter_num)
            clock.start(state)
    chart.finish()
    return val


def finish(state, data, val, folder, config):
    """Say how to go on with a run that was stopped, or print validation, samples and what to do next."""
    master = processes.processes()[0] == 0
    if state.iter_num < config.max_iters:
        if master:
            print(f'stopped and saved; {folder.way_on()}', file=sys.stderr)
        processes.end_processes(1)
    if folder.saved is None:  # nothing was left to train
        save(state, data, folder, config)
    val = val or validate(state.ema.model, data.blocks, data.given, config)
    if master:
        print(
            f'\nvalidation of the EMA weights on {config.dataset}\n{validation_table(val, data, config)}'
        )
        if not data.train.marked:
            whole = (
                model_from_checkpoint(folder.ckpt_path, 'ema', state.device)
                if config.shard
                else state.ema.model
            )
            for order, text in samples(whole, data.tokenizer, config):
                print(f'\nwritten {order}\n{text}')
        print('\ngo on with')
        own, first = (
            Order.of('own', config),
            ('eval_puzzle.py', 'policies') if data.train.marked else ('sample.py', 'order'),
        )
        answers, no_test = (
            data.train.ends is not None,
            data.train.marked and 'test' not in data.splits,
        )
        path = f'PATH/{own.name}' if own.is_function else ''  # which no checkpoint runs
        for command, option in (first, ('eval_ppl.py', 'orders')):
            more = (f' --{option}=' + path) * bool(path) + ' --split=val' * no_test
            print(f'  python {command} --ckpt={shlex.quote(folder.ckpt_path)}{more}')
        if answers:
            tokens = data.blocks[0][data.given[0] & (data.blocks[0] != PADDING)]
            n = (
                (~data.given[0]).sum() if state.model.slots.masked_loss else '..'
            )  # such a network counts blanks
            prompt = (
                data.tokenizer.decode(tokens.tolist()).replace('[[', r'\[[').replace(r'\n', r'\\n')
                + f'[[{n}]]'
            )
            way = 'l2r' if config.l2r_ratio or own.kind in ('random', 'sorted_subset') else path
            print(
                f'  python sample.py --ckpt={shlex.quote(folder.ckpt_path)}'
                + f' --order={way}' * bool(way)
                + f" --temperature=0 --stop='{END_OF_TEXT}' --prompt={shlex.quote(prompt)}"
            )
    processes.end_processes()


def validation_table(val, data, config):
    """What `validate` gave, as a table, with the entropy of single tokens where none is given."""
    names = {
        'any': 'any order (bound)',
        'l2r': 'left to right',
        'own': f'own order ({Order.of("own", config).name})',
    }
    n_bytes = (
        None
        if data.tokenizer.n_bytes is None
        else int(data.tokenizer.n_bytes[data.blocks[~data.given]].sum())
    )
    rows = [
        summarize(names[name], nats, (~data.given).sum(1), n_bytes) for name, nats in val.items()
    ]
    if not data.train.marked:
        rows.append(unigram_row(data.val.packed.reshape(-1), data.tokenizer, config.block_size))
    return format_table(rows)


def samples(model, tokenizer, config):
    """[(order in words, text)]: a sample in the order of the run and one left to right."""
    titles = {'random': 'in random order', 'l2r': 'left to right'}
    orders = {order.kind: order for order in (Order.of('own', config), Order.of('l2r', config))}
    texts = []
    for seed, (kind, order) in enumerate(orders.items(), config.seed):
        blank = ([0] * config.block_size, [False] * config.block_size)
        canvas = Canvas.of_texts([blank], order, seed, model.device)
        fill(model, canvas, Given(config.block_size), Drawing())
        _, columns = config.get('shape') or (0, 0)
        text = shown_text(canvas.idx[0].tolist(), tokenizer, columns)
        texts.append((titles.get(kind, 'in its own order'), visible(text)))
    return texts


def main(config):
    if config.plan:
        print(*lines_of(config), sep='\n')
        return
    processes.start_processes()
    _, world_size = processes.processes()
    with processes.failing_together():  # open: options, device, data
        checkpoint, config, changed = start.start_checkpoint(config)
        start.check_options(config, world_size)
        if config.n_threads:
            torch.set_num_threads(config.n_threads)
        device, dtype = processes.own_device(config.device, config.dtype)
    config = Config(
        config | {'device': device.type if world_size > 1 else str(device), 'dtype': dtype}
    )
    with processes.failing_together():
        data = Data(config)
        config = Config(config | ({'shape': shape} if (shape := data.kind.get('shape')) else {}))
        Order.of('own', config).check(config.block_size)
        model = start.start_model(config, checkpoint, data.tokenizer.n_tokens)
        config = Config(
            config
            | {'source': data.source, 'started_from': start.started_from(config, checkpoint, model)}
        )
    resumed = checkpoint.iter_num if config.init_from == 'resume' else None
    goes_on = bool(
        resumed
        and config.wandb_run_id
        and config.wandb_run_id == checkpoint.run.get('wandb_run_id')
    )
    charted = resumed if goes_on else 0  # at wandb, if the run is older than the file that says it
    if world_size > 1:
        start.check_start(model, resumed, data, config)
    with processes.failing_together():
        state = start.start_state(config, checkpoint, model, data.kind, device)
    for key, split, said in (('data', 'train', 'training'), ('val_data', 'val', 'validation')):
        if (
            config.init_from == 'resume'
            and checkpoint.entries.get(key, data.hashes[split]) != data.hashes[split]
        ):
            changed.append(f'the {said} data')
    if config.init_from == 'resume' and checkpoint.entries.get('draws') != DRAWS:
        changed.append('the random draws, which an earlier version made of the same seed')
        if config.optimizer == 'muon':
            changed.append('Muon, which takes Q, K and V each by itself now')
    del checkpoint, model  # its weights are in the state

    # build: how the model is run, and where the run is kept
    clock = Clock(
        state.model, config, peak_flops(device, dtype), data.train.width(config.block_size)
    )
    with processes.failing_together():
        compiled, why = resolve_compile(
            config.compile, device, clock.flops_per_iter * config.max_iters, config.max_iters
        )
        run_id = config.wandb_run_id or (secrets.token_hex(4) if config.wandb_log else '')
        config = Config(config | {'compile': compiled, 'wandb_run_id': run_id})
        folder = RunFolder(
            config.out_dir,
            config.keep_checkpoints,
            resumed,
            processes.environment(device) | {'started_from': config.started_from},
        )
        folder.open()
    state.run_model = start.make_run_model(state.model, compiled, device)
    introduce(state, data, clock, config, f'compile={compiled} ({why})', changed)

    with processes.failing_together():
        chart = start_chart(state, folder, charted, config)
    val = loop(state, data, clock, folder, chart, config)
    finish(state, data, val, folder, config)


if __name__ == '__main__':
    with one_line_errors():
        main(options)
