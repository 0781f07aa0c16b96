"""
Train an any-order GPT.

    python train.py config/quickstart.py
    python train.py config/ao_gpt_small.py --batch_size=16
    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_small.py
    python train.py --init_from=resume --out_dir=out

Writes out_dir/ckpt.pt (weights, EMA, optimizer, options: enough to sample, evaluate and resume) and out_dir/log.jsonl, see
run_folder.py. Ctrl-C, SIGTERM and a terminal that is closed finish the iteration, save, and say how to go on.
"""
import math
import os
import shlex
import sys
import time
from dataclasses import fields

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from anyorder.checkpoint import config_from_checkpoint, digest, load_checkpoint, local_path, model_from_checkpoint
from anyorder.devices import peak_flops, resolve_compile, training_flops
from anyorder.fast import lean
from anyorder.files import check_folder, progress
from anyorder.generation import write_samples
from anyorder.orders import ORDERS, derive_seed, order_of
from anyorder.processes import end_processes, first_process_first, gather, processes, start_processes, stop_requests
from anyorder.run_folder import RunFolder, load_newest
from anyorder.tables import format_table, summarize, unigram_row
from anyorder.training import lr_of, make_optimizers, update, validate
from anyorder.watch import visible
from configurator import Config, at_least, configure, one_line_errors
from data.blocks import all_blocks, check_length, open_split
from data.puzzles import unpack
from data.tokenizers import get_tokenizer
from model import AOGPT, EMA, AOGPTConfig

# files
out_dir = 'out'                   # where ckpt.pt and log.jsonl go
init_from = 'scratch'             # 'scratch', 'resume' (out_dir/ckpt.pt), or weights only from a path or hf:OWNER/REPO/path.pt
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
dropout = 0.0                     # of embeddings, attention and residual branches
bias = True                       # in the linear layers of the blocks
gate_init = 0.0                   # where the biases of the AdaLN gates start: 0 is the paper's, 1 learns faster in a short run
target_position = 'adaln'         # how a slot is told what to predict: 'adaln', or added at the 'input', 'layer_shared' or 'layer'
rotary = False                    # rotary embeddings: of the target position on queries, of a token's own on keys
learned_positions = True          # embeddings of the positions that are read; can be left out with rotary
causal = True                     # False is the encoder-only masked diffusion model: full attention, no cache
gpt2_blocks = False               # LayerNorm, no norm of queries and keys, tied head: with target_position='input' it is sigma-GPT
# batch
batch_size = 16                   # sequences of a micro-batch
gradient_accumulation_steps = 1   # micro-batches of an update, over all processes together
order = 'random'                  # of the sequences; or the same for all: 'l2r', 'r2l', 'fixed', 'block' (in each block the same one)
order_seed = 0                    # which one 'fixed' and 'block' are
order_block = 4                   # positions of a block
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
# system
seed = 1337                       # with iteration and micro-batch it fixes every random number
device = 'auto'                   # 'cpu', 'cuda', 'cuda:1', ...
dtype = 'auto'                    # 'bfloat16' (autocast) where the hardware has it, else 'float32'
n_threads = 0                     # CPU threads; 0 is torch's choice. 1 for tiny models beside other work: waiting threads spin
compile = 'auto'                  # True where it pays: there is a compiler and the run is long; False switches it off

SHAPE = tuple(f.name for f in fields(AOGPTConfig) if f.name not in ('vocab_size', 'n_tokens', 'dropout'))   # a checkpoint fixes these


def check_options(c, world_size):
    """Check all that can be known of the options before data, model and device are touched."""
    at_least(c, 1, 'block_size', 'batch_size', 'gradient_accumulation_steps', 'order_block', 'eval_interval', 'eval_iters', 'log_interval',
             'save_interval')
    at_least(c, 0, 'keep_checkpoints', 'max_iters', 'n_threads', 'min_lr', 'warmup_iters', 'lr_decay_iters', 'weight_decay', 'grad_clip',
             'seed')
    for name in ('learning_rate', 'muon_learning_rate'):
        if not c[name] > 0:
            raise ValueError(f'{name} must be above 0, got {c[name]}')
    if not 0 <= c.l2r_ratio <= 1 or not 0 <= c.ema_decay < 1:
        raise ValueError(f'l2r_ratio must be 0 to 1 and ema_decay 0 to below 1, got {c.l2r_ratio} and {c.ema_decay}')
    if c.order not in ORDERS:
        raise ValueError(f'order must be {", ".join(ORDERS)}, got {c.order!r}')
    if not c.causal and c.l2r_ratio:
        raise ValueError(f'an encoder (causal=False) is trained on the masked loss alone: l2r_ratio must be 0, got {c.l2r_ratio}')
    if not c.causal and c.order != 'random':
        raise ValueError(f"an encoder's masked loss is a bound for random orders alone: order must be 'random', got {c.order!r}")
    check_folder('out_dir', c.out_dir)
    if c.compile not in ('auto', True, False):
        raise ValueError(f"compile must be 'auto', True or False, got {c.compile!r}")
    if c.gradient_accumulation_steps % world_size:
        raise ValueError('gradient_accumulation_steps must be a multiple of the number of processes, '
                         f'got {c.gradient_accumulation_steps} and {world_size}')


def start_checkpoint(config):
    """(checkpoint to start from or None, the run's options, what a resume changes). A resumed run has the options of its checkpoint,
    resolved values included, overridden by those given now; the model's shape is the checkpoint's."""
    if config.init_from == 'scratch':
        return None, config, []
    resume = config.init_from == 'resume'
    if not resume and not config.init_from.startswith('hf:') and not os.path.exists(config.init_from):
        raise ValueError(f"init_from must be 'scratch', 'resume' or a checkpoint, and there is no file {config.init_from!r}")
    checkpoint = load_newest(config.out_dir) if resume else load_checkpoint(local_path(config.init_from))
    if resume and not ({'config', 'iter_num', 'ema_model', 'n_seen', 'logged', 'totals'} <= checkpoint.keys()
                       and isinstance(checkpoint.get('optimizer'), list)):
        raise ValueError(f'{config.out_dir}/ckpt.pt holds weights, but no run that can be resumed: start from them with '
                         f'--init_from={config.out_dir}/ckpt.pt')
    args = config_from_checkpoint(checkpoint)
    for name in SHAPE:
        if name in config.given and config[name] != getattr(args, name):
            raise ValueError(f'{name}={config[name]} contradicts the checkpoint, which has {getattr(args, name)}: leave it out')
    saved = {k: v for k, v in checkpoint['config'].items() if k in config} if resume else {}
    shape, given = {name: getattr(args, name) for name in SHAPE}, {k: config[k] for k in sorted(config.given)}
    changed = [f'{k} {saved[k]} -> {v}' for k, v in given.items() if k in saved and v != saved[k] and k not in ('init_from', 'out_dir')]
    goes_on = Config(config | saved | given | shape | {'out_dir': config.out_dir})
    if resume and (old := lr_of(checkpoint['iter_num'], config | saved)) != (new := lr_of(checkpoint['iter_num'], goes_on)):
        changed.append(f'learning rate at once {old:.3g} -> {new:.3g}')
    return checkpoint, goes_on, changed


def load_data(config):
    """(train tokens, validation tokens, tokenizer, what meta.json says of the set), which the first process makes if it needs no source."""
    with first_process_first():
        train_tokens, meta = open_split(config.data_dir, config.dataset, 'train')
        val_tokens, _ = open_split(config.data_dir, config.dataset, 'val')
    for split, tokens in (('train', train_tokens), ('val', val_tokens)):
        check_length(tokens, config.block_size, f'{config.dataset}/{split}')
    return train_tokens, val_tokens, get_tokenizer(meta['tokenizer']), meta


def start_model(config, checkpoint, n_tokens, device):
    """The model to train: new, with the vocabulary padded to a multiple of 64, or that of the checkpoint."""
    if checkpoint is None:
        torch.manual_seed(derive_seed(config.seed))
        args = AOGPTConfig(vocab_size=-(-n_tokens // 64) * 64, n_tokens=n_tokens, dropout=config.dropout,
                           **{name: config[name] for name in SHAPE})
        return AOGPT(args).to(device)
    checkpoint['model_args']['dropout'] = config.dropout
    raw = config.init_from == 'resume' or 'ema_model' not in checkpoint
    model = model_from_checkpoint(checkpoint, 'raw' if raw else 'ema', device)
    if model.config.n_real != n_tokens:
        raise ValueError(f'the data set {config.dataset} has {n_tokens} tokens, the checkpoint {model.config.n_real}: '
                         'it was trained with another tokenizer')
    return model


def resume(checkpoint, optimizers, ema, config):
    """Put the state of the checkpoint into optimizers and EMA; returns its iteration."""
    if len(checkpoint['optimizer']) != len(optimizers):
        raise ValueError(f"optimizer={config.optimizer} contradicts the checkpoint's {checkpoint['config']['optimizer']}")
    for o, state in zip(optimizers, checkpoint['optimizer']):
        now = [{k: v for k, v in group.items() if k != 'params'} for group in o.param_groups]
        o.load_state_dict(state)
        for group, options in zip(o.param_groups, now):
            group.update(options)   # the state is the checkpoint's, the options are the run's
    ema.model.load_state_dict(model_from_checkpoint(checkpoint, 'ema').state_dict())
    ema.n_updates = checkpoint['ema_model']['num_updates']
    return checkpoint['iter_num']


def check_agreement(ema, iter_num, meta, config):
    """Raise ValueError unless all processes go on from the same update and weights, on the same data and with the same options."""
    own = {name: value for name, value in config.items() if name not in ('out_dir', 'data_dir', 'device', 'n_threads')}
    every = gather(own | {'the iteration to go on from': iter_num, 'the data': {k: meta['splits'][k]['sha256'] for k in ('train', 'val')},
                          'the weights': digest(ema.model)})
    differing = [name for name in every[0] if any(other.get(name) != every[0][name] for other in every)]
    if differing:
        values = ', '.join(sorted({str(other.get(differing[0]))[:80] for other in every}))
        raise ValueError(f'the processes differ in {", ".join(differing)} ({values}): give them the same command, checkpoint and data')


def start_wandb(config):
    import wandb
    try:
        wandb.init(project=config.wandb_project, name=config.wandb_run_name or config.out_dir, config=dict(config))
    except wandb.Error as e:
        raise ValueError(f'wandb: {str(e).splitlines()[0]}; WANDB_MODE=offline needs no login') from None
    return wandb


def main(config):
    checkpoint, config, changed = start_checkpoint(config)
    rank, world_size = processes()
    check_options(config, world_size)
    if config.n_threads:
        torch.set_num_threads(config.n_threads)
    device, dtype = start_processes(config.device, config.dtype)
    master = rank == 0
    train_tokens, val_tokens, tokenizer, meta = load_data(config)
    val_blocks = all_blocks(val_tokens, config.block_size, config.eval_iters * config.batch_size)
    puzzles, sha = val_tokens.ndim == 2, meta['splits']['train']['sha256']
    val_blocks, given = unpack(val_blocks) if puzzles else (val_blocks, torch.zeros_like(val_blocks, dtype=torch.bool))
    n_val = int((~given).sum())
    model = lean(start_model(config, checkpoint, tokenizer.n_tokens, device).train())
    optimizers = make_optimizers(model, config.optimizer, config.learning_rate, config.muon_learning_rate, config.weight_decay,
                                 (config.beta1, config.beta2))
    ema = EMA(model, config.ema_decay)
    iter_num = logged = n_seen = 0                                  # updates done, those that the log has; tokens seen
    totals = torch.zeros(3, device=device, dtype=torch.float64)     # of update() since then
    tokens_per_iter = config.batch_size * config.gradient_accumulation_steps * config.block_size
    if config.init_from == 'resume':
        iter_num = resume(checkpoint, optimizers, ema, config)
        n_seen, logged, totals = checkpoint['n_seen'], checkpoint['logged'], checkpoint['totals'].to(device)
        if checkpoint.get('puzzle') != meta.get('puzzle'):
            raise ValueError(f'the checkpoint was trained on other puzzles than {config.dataset} holds: start a run from its weights with '
                             f'--init_from={config.out_dir}/ckpt.pt')
        changed += ['the training data'] * (checkpoint.get('data', sha) != sha)
    del checkpoint
    if world_size > 1:
        check_agreement(ema, iter_num, meta, Config(config | {'dtype': dtype}))
    flops_per_iter = training_flops(model, config.batch_size) * config.gradient_accumulation_steps / world_size   # of one process
    compiled, why = resolve_compile(config.compile, device, flops_per_iter * config.max_iters, config.max_iters)
    config = Config(config | {'device': device.type if world_size > 1 else str(device), 'dtype': dtype, 'compile': compiled})
    run_model = torch.compile(model) if compiled else model
    if world_size > 1:
        run_model = DistributedDataParallel(run_model, device_ids=[device] if device.type == 'cuda' else None, gradient_as_bucket_view=True)
    peak = peak_flops(device, dtype)

    folder = RunFolder(config.out_dir, config.keep_checkpoints, iter_num if config.init_from == 'resume' else None)
    if master:
        folder.open()
        print(f'{model.n_parameters():,} parameters; {tokens_per_iter:,} tokens an update; {config.dataset}: {train_tokens.size:,} '
              f'{tokenizer.name} tokens; validation on {len(val_blocks):,} blocks of {config.block_size}')
        print(f'{world_size} x {device.type}, {torch.get_num_threads()} CPU threads each, {dtype} at {peak / 1e12:,.3g} TFLOP/s, '
              f'compile={compiled} ({why})')
        if changed:
            print(f'changed since iteration {iter_num}: {", ".join(changed)}')
        if iter_num >= config.max_iters > 0:
            print(f'nothing to train: the checkpoint is at iteration {iter_num} of {config.max_iters}; raise --max_iters')
    wandb = start_wandb(config) if master and config.wandb_log else None

    def save():
        if master:
            folder.save(iter_num, model, ema, optimizer=[o.state_dict() for o in optimizers], config=dict(config),
                        tokenizer=tokenizer.name, data=sha, n_seen=n_seen, logged=logged, totals=totals.cpu(),
                        **({'puzzle': meta['puzzle']} if puzzles else {}))
        folder.saved = iter_num

    micros = range(rank, config.gradient_accumulation_steps, world_size)   # of the global batch, those of this process
    val, shown, final = None, {}, iter_num >= config.max_iters
    clock, clock_iter = time.perf_counter(), iter_num
    bar = progress(total=config.max_iters, initial=iter_num, unit='it', disable=not master)
    with bar, stop_requests(world_size) as stop_requested:
        stopping = False
        while not (final or stopping):
            lr = lr_of(iter_num, config)
            totals += update(model, run_model, optimizers, ema, train_tokens, micros, iter_num, lr, device, config)
            iter_num, n_seen = iter_num + 1, n_seen + tokens_per_iter
            bar.update()

            stopping, final = stop_requested(), iter_num == config.max_iters
            evaluating, saving, logging = (iter_num % interval == 0 or final
                                           for interval in (config.eval_interval, config.save_interval, config.log_interval))
            if not (evaluating or saving or logging or stopping):
                continue
            if world_size > 1:
                dist.all_reduce(totals)
                totals /= world_size
            loss, norm, n_finite = totals.tolist()   # the host waits for the device here alone
            n_iters, seconds = iter_num - logged, (time.perf_counter() - clock) / (iter_num - clock_iter)
            size = sum(torch._foreach_norm(list(model.parameters()))).item() if saving or stopping else 0.0
            if n_finite < n_iters or not math.isfinite(size):
                norms = f'gradient norm {norm / n_iters:.4g}' + f', weight norm {size:.4g}' * (saving or stopping)
                since = min(logged + int(n_finite) + 1, iter_num)   # weights may overflow after losses that are finite
                raise ValueError(f'loss {loss / n_iters:.4g}, {norms}: not finite since iteration {since}, and not saved; lower the '
                                 f'learning rate and {folder.way_on()}')
            if evaluating or saving or logging:
                entry = {'iter': iter_num, 'tokens': n_seen, 'loss': loss / n_iters, 'lr': lr, 'grad_norm': norm / n_iters,
                         'tokens_per_sec': round(tokens_per_iter / seconds, 1), 'mfu': round(flops_per_iter / seconds / peak, 4),
                         'seconds_left': round((config.max_iters - iter_num) * seconds, 1)}
                if evaluating:
                    val = validate(ema.model, val_blocks, given, config.batch_size, dtype, order_of(config), rank, world_size)
                    entry |= {f'val_{kind}': float(nats.sum()) / n_val for kind, nats in val.items()}
                if master:
                    folder.log(entry)
                    shown |= {k.removeprefix('val_'): f'{v:.3f}' for k, v in entry.items() if k == 'loss' or k.startswith('val_')}
                    bar.set_postfix_str(f'{entry["tokens_per_sec"]:,.0f} tok/s mfu {entry["mfu"]:.0%} lr {entry["lr"]:.1e} '
                                        f'norm {entry["grad_norm"]:.2f} ' + ' '.join(f'{k} {v}' for k, v in shown.items()), refresh=False)
                    if wandb:
                        wandb.log(entry, step=iter_num)
                totals.zero_()
                logged = iter_num
            if saving or stopping:
                save()
            clock, clock_iter = time.perf_counter(), iter_num
    if not final:
        if wandb:
            wandb.finish()
        if master:
            print(f'stopped and saved; {folder.way_on()}', file=sys.stderr)
        end_processes(1)
    if folder.saved is None:   # nothing was left to train
        save()
    val = val or validate(ema.model, val_blocks, given, config.batch_size, dtype, order_of(config), rank, world_size)
    if master:
        n_bytes = None if puzzles else int(tokenizer.n_bytes[val_blocks].sum())
        names = {'any': 'any order (bound)', 'l2r': 'left to right', 'own': 'own order'}
        rows = [summarize(names[name], nats, (~given).sum(1), n_bytes) for name, nats in val.items()]
        rows += [] if puzzles else [unigram_row(val_tokens, tokenizer, config.block_size)]
        print(f'\nvalidation of the EMA weights on {config.dataset}\n{format_table(rows)}')
        if puzzles:
            print(f'\ngo on with\n  python eval_puzzle.py --ckpt={shlex.quote(folder.ckpt_path)}')
        else:
            write_both_ways(ema.model, tokenizer, config, folder.ckpt_path)
        if wandb:
            wandb.finish()
    end_processes()


def write_both_ways(model, tokenizer, config, ckpt_path):
    """Prints a sample in the order of the run and one left to right, and the commands to go on with."""
    titles = {'random': 'in random order', 'l2r': 'left to right'}
    for seed, kind in enumerate(dict.fromkeys((config.order, 'l2r')), config.seed):
        blank = ([0] * config.block_size, [False] * config.block_size)
        idx, _, _ = write_samples(model, [blank], order_of(config) | {'kind': kind}, seed, config.block_size)
        print(f'\nwritten {titles.get(kind, "in its own order")}\n{visible(tokenizer.decode(idx[0].tolist()))}')
    print('\ngo on with\n  python sample.py --ckpt={0}\n  python eval_ppl.py --ckpt={0}'.format(shlex.quote(ckpt_path)))


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
