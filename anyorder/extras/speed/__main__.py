"""How fast is it, against what? Everything is timed in one run on one machine: the ratios hold.

    python -m anyorder.extras.speed sample
    python -m anyorder.extras.speed sample --batch_size=1 --windows=32
    python -m anyorder.extras.speed ensemble --block_size=256
    python -m anyorder.extras.speed train --vocab_size=256 --n_tokens=256 --block_size=256 --batch_size=8
    python -m anyorder.extras.speed grid --steps=16,64,256,1024 --out=grid.json
    python -m anyorder.extras.speed frontier --ckpt=out/ckpt.pt --out=frontier.json
    python -m anyorder.extras.speed frontier --ckpt=out/ckpt.pt --judge=other/ckpt.pt --n_samples=256 --steps=8,16

sample    generation at several numbers of steps: seconds, tokens/s, the share of what the device
          could do (its measured matrix and memory rates), peak memory, and the plain way: a cache
          that is concatenated, a sorted vocabulary, torch.multinomial. Then lossless unmasking,
          whose drafts are right with probability 0.93
ensemble  slots and seconds for one block of the context-order ensemble, and the plain way: a
          full-length pass with the head everywhere for every position and member; some passes are
          timed and the rest extrapolated
train     tokens/s, model FLOPs, MFU and peak memory of an update, and the plain way: float32,
          eager, N + 1 slots, AdaLN for every slot, a permutation drawn for each row, all logits at
          once, the average tensor by tensor
grid      seconds of generation by decoder, mixed network, two streams and encoder; tokens/s of
          updates of all networks
frontier  what fewer passes cost a trained model, for every way of unmasking: passes, slots a token
          and seconds of generation; nats a token of held-out text by its law, as by eval_ppl.py
          --orders; cost, the nats less one token a step of the same order, block by block; nats of
          samples under a judge, and their entropy. Every way has the same seeds. Lossless unmasking
          has random numbers of its own, and writes one text for all windows"""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config, at_least, numbers

WORDS = {
    'sample': 'generation',
    'ensemble': 'likelihood',
    'train': 'updates',
    'grid': 'decoder, encoder and every network',
    'frontier': 'quality against passes, slots and seconds',
}
# fmt: off
# model (random weights)
block_size = 1024
vocab_size = 50304
n_tokens = 50257           # real vocabulary; the rest is padding
n_layer = 6
n_head = 6
n_embd = 384
# what to time
batch_size = 4             # rows; frontier: samples at a time, 32 unless given
steps = ''                 # numbers of passes; '' is 16,64,256,1024, for frontier a sixteenth to a half of the tokens
cuda_graphs = False        # sample: for ours, see sample.py
plain = '64,256'           # sample: steps at which the plain way is timed too; train: '' leaves it out
n_contexts = 16            # ensemble: members
n_positions = 0            # ensemble: visits that are evaluated, 0 is all
ensemble_block = 1         # ensemble: visits that share a context
n_plain = 64               # ensemble: passes of the plain way that are timed
n_updates = 3              # train, grid: updates of a run
optimizer = 'adamw'        # train, grid: as in train.py
compile = True             # train, grid: torch.compile for ours, where there is a compiler
repeats = 2                # runs of each; the fastest counts; frontier has one
out = ''                   # grid, frontier: write the figures to this JSON file, which pictures draws
seed = 1337
# frontier
ckpt = ''                  # a trained model: a path, or hf:OWNER/REPO[/path.pt]
judge = ''                 # a checkpoint or gpt2-large; '' is the model's own left-to-right reading
dataset = ''               # held-out text: the val split of a set, or a file; '' is the set of the training
data_dir = ''              # where prepared sets are; '' is where the checkpoint's are
n_blocks = 64              # blocks of the held-out text, spread evenly over it; 0 is all
n_samples = 64
windows = '4,8,16,32,64'   # lossless unmasking, in sample 32 unless given; '' leaves it out
thresholds = '.5,.7,.9'    # adaptive policies; '' leaves them out
block_lengths = '8,32'     # margin inside blocks of so many tokens, from left to right; '' leaves them out
temperature = 1.0          # 0 takes the most likely token
# system
device = 'auto'            # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'             # 'float32', 'bfloat16' or 'auto'
# fmt: on

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=('',))

import copy
import math
from functools import partial

import numpy as np
import torch

from anyorder.extras.speed.frontier import Frontier
from anyorder.extras.speed.peak import peak_memory
from anyorder.extras.speed.plain import (
    device_limits,
    generation_limit,
    plain_generate,
    plain_update,
)
from anyorder.fast import freeze, graphed, lean
from anyorder.generation import Canvas, Drawing, Lossless, generate, unmask_schedule
from anyorder.generation.fill import fill
from anyorder.likelihood.ensemble import (
    Groups,
    check_ensemble,
    ensemble_block_nll,
    group_contexts,
    sample_groups,
)
from anyorder.machine.devices import autocast, peak_flops, resolve_compile, resolve_device, seconds
from anyorder.machine.files import check_out, write_json
from anyorder.orders import sample_order
from anyorder.tokens.sets import Split
from anyorder.training.clock import training_flops
from anyorder.training.start import MUON_RATE, optimizer_in
from anyorder.training.update import TrainState, make_optimizers, update
from model import AOGPT, EMA, AOGPTConfig

STEPS = [16, 64, 256, 1024]
MIB = 2**20
# nearly the share of the drafts of trained models that are right, see results/lossless
ACCEPTANCE = 0.93
NETWORKS = {
    'adaln': {},
    'input': {'target_position': 'input'},
    'layer_shared': {'target_position': 'layer_shared'},
    'layer': {'target_position': 'layer'},
    'rotary': {'rotary': True},
    'sigma-GPT': {'target_position': 'input', 'gpt2_blocks': True},
    'encoder': {'attention': 'bidirectional'},
    'mixed': {'attention': 'mixed'},
    'two streams': {'target_position': 'two_stream'},
}
# the networks whose generation is timed
WRITERS = {'decoder': {}} | {name: NETWORKS[name] for name in ('encoder', 'mixed', 'two streams')}


def main(config):
    at_least(config, 1, 'batch_size', 'n_updates', 'repeats')
    at_least(config, 1, 'block_size', 'vocab_size', 'n_tokens', 'n_embd')
    (name,) = config.words
    if bool(config.ckpt) != (name == 'frontier'):
        raise ValueError(
            'frontier wants a trained model: name one by --ckpt=out/ckpt.pt; the others '
            'time a new model of the sizes that are given: leave out --ckpt'
        )
    if config.out and name not in ('grid', 'frontier'):
        raise ValueError(f'{name} prints its table and writes no file: leave out --out')
    optimizer_in(config)  # which checks it
    device, dtype = resolve_device(config.device, config.dtype)
    globals()[f'bench_{name}'](config, device, dtype)


def random_model(config, device, **network):
    """Return a model with random weights, of the sizes that are given."""
    torch.manual_seed(config.seed)
    sizes = (config.block_size, config.vocab_size, config.n_layer, config.n_head, config.n_embd)
    model = AOGPT(AOGPTConfig(*sizes, n_tokens=config.n_tokens, **network))
    return model.to(device).eval()


def about(model, config):
    return (
        f'{model.n_parameters():,} parameters, batch {config.batch_size} x {config.block_size} '
        f'tokens, vocabulary {config.vocab_size}, torch {torch.__version__}'
    )


def random_tokens(config):
    return np.random.default_rng(0).integers(config.n_tokens, size=2**20, dtype=np.uint16)


def numbers_or_none(config, name, kind=int, least=1, most=math.inf):
    """See numbers; '' is none."""
    return numbers(config, name, kind, least, most) if config[name] else []


# --------------------------------------------------------------------------------------------------
# sample


def bench_sample(config, device, dtype):
    steps = numbers_or_none(config, 'steps') or STEPS
    plain = numbers_or_none(config, 'plain')
    windows = [32]
    if 'windows' in config.given:
        windows = numbers_or_none(config, 'windows')
    if 'plain' in config.given and not set(plain) <= set(steps):
        wanted = ','.join(map(str, steps))
        raise ValueError(f'plain must be among the steps {wanted}, got {config.plain}')
    model = random_model(config, device)
    order = sample_order(config.batch_size, config.block_size, device=device)
    limits = device_limits(device, getattr(torch, dtype))
    flop_rate, byte_rate = limits
    print(
        f'{about(model, config)}, {device}, {dtype}; limits {flop_rate / 1e9:,.0f} GFLOP/s, '
        f'{byte_rate / 1e9:,.1f} GB/s'
    )
    print(
        f'{"steps":>6}{"seconds":>10}{"ms/step":>10}{"tokens/s":>11}{"of limit":>10}'
        f'{"peak MiB":>10}{"plain s":>10}{"plain / ours":>14}'
    )
    with autocast(device, dtype):
        network = freeze(model)
        if config.cuda_graphs:
            network = graphed(network)
        seeds = range(config.batch_size)
        ours = partial(generate, network, torch.zeros_like(order), order, seeds=seeds)
        ours(max(0, config.block_size - 8), 8)  # warm up
        for n_steps in steps:
            ends = unmask_schedule(config.block_size, n_steps)
            peak_memory(device, reset=True)
            time = seconds(partial(ours, 0, n_steps), device, config.repeats)
            n_bytes = 2 if dtype == 'bfloat16' else 4
            limit = generation_limit(model, config.batch_size, ends, *limits, n_bytes)
            peak = peak_memory(device) / MIB
            line = format_passes(len(ends), time, order) + f'{limit / time:>10.1%}{peak:>10,.0f}'
            if n_steps in plain:
                slow = seconds(partial(plain_generate, model, order, ends), device, config.repeats)
                line += f'{slow:>10.2f}{slow / time:>14.1f}'
            print(line, flush=True)
        for window in windows:
            write = partial(write_drafts, network, order, window, config.seed)
            peak_memory(device, reset=True)
            passes = write()
            time = seconds(write, device, config.repeats)
            peak = peak_memory(device) / MIB
            line = format_passes(passes, time, order)
            print(f'{line}{peak:>20,.0f}  lossless, window {window}', flush=True)


def format_passes(n, time, order):
    """Return the first cells of a line: passes, seconds, a pass, tokens a second."""
    return f'{n:>6}{time:>10.2f}{1000 * time / n:>10.1f}{order.numel() / time:>11,.0f}'


def write_drafts(network, order, window, seed):
    """Write texts (B, N) by lossless unmasking, and return the number of passes."""
    torch.manual_seed(seed)  # decides which drafts are right: every run takes the same passes
    canvas = Canvas(torch.zeros_like(order), order, 0, range(len(order)))
    fill(network, canvas, Lossless(window), FixedAcceptance(), with_logprob=False)
    return int(canvas.step.max()) + 1


class FixedAcceptance(Drawing):
    """Drawing whose lossless drafts are right with probability ACCEPTANCE, each by itself.

    The work is the same. A model with random weights says nearly the same whatever it reads, so
    nearly all of its own drafts are right."""

    def tokens_by_noise(self, logits, noise):
        token = super().tokens_by_noise(logits, noise)
        other = torch.randint_like(token, 1, logits.size(-1))
        both = ACCEPTANCE**0.5  # a draft and its check
        agrees = torch.rand(token.shape, device=token.device) < both
        return torch.where(agrees, 0, other)


# --------------------------------------------------------------------------------------------------
# ensemble


@torch.no_grad()
def bench_ensemble(config, device, dtype):
    N = config.block_size
    M = config.n_contexts
    width = config.ensemble_block
    at_least(config, 2, 'n_contexts', 'block_size')
    at_least(config, 1, 'n_plain')
    check_ensemble(config)
    if config.n_positions > N:
        raise ValueError(f'n_positions must be at most block_size={N}, got {config.n_positions}')
    model = random_model(config, device)
    idx = torch.randint(config.n_tokens, (N,))
    order = sample_order(1, N)[0]
    groups, _ = sample_groups(N, width, config.n_positions, config.seed)
    n_visits = sum(min(width, N - g * width) for g in groups)
    n_passes = n_visits * M  # of the plain way
    rows = whole_contexts(order, config).to(device)
    print(
        f'{about(model, config)}, {device}, {dtype}; {n_visits} visits in {M} contexts, '
        f'ensemble_block {width}'
    )

    # The plain way
    def plain():
        for part in rows.split(16):
            model(idx.to(device).expand(len(part), N), part)

    with autocast(device, dtype):
        plain()
        slow = seconds(plain, device, config.repeats) / len(rows) * n_passes

    # Ours, whose padding counts as what it costs
    frozen = freeze(model, getattr(torch, dtype))
    slots = []
    heads = []

    def count(_, args, options):  # args of forward(idx, order, columns=)
        order = args[1]
        wanted = options.get('columns', order)
        slots.append(order.numel())
        heads.append(wanted.numel())

    def ensemble():
        ensemble_block_nll(frozen, idx, order, M, Groups(groups, width), config.seed, 16 * N)

    frozen.register_forward_pre_hook(count, with_kwargs=True)
    ours = seconds(ensemble, device, config.repeats)
    n_slots = sum(slots) // config.repeats
    n_heads = sum(heads) // config.repeats
    print(f'{"":<10}{"slots":>14}{"head rows":>14}{"seconds":>10}')
    print(f'{"ours":<10}{n_slots:>14,}{n_heads:>14,}{ours:>10.2f}')
    timed = f'({len(rows)} of {n_passes:,} passes timed)'
    print(f'{"plain":<10}{n_passes * N:>14,}{n_passes * N:>14,}{slow:>10.2f}   {timed}')
    print(f'ours is {slow / ours:.1f} times as fast')


def whole_contexts(order, config):
    """Return whole orders (n_plain, N): contexts of the last visits, and then what follows them."""
    N = len(order)
    rows = []
    for visit in range(N - 1, max(0, N - 1 - config.n_plain), -1):
        context = group_contexts(order, visit, 1, 1, config.seed)
        rows.append(torch.cat([context, order[None, visit + 1 :]], 1))
    return torch.cat(rows)


# --------------------------------------------------------------------------------------------------
# train


def bench_train(config, device, dtype):
    n_tokens = config.batch_size * config.block_size
    model, compiled, step = training_step(config, device, dtype)
    peak = peak_flops(device, dtype)
    flops = training_flops(model, config.batch_size)
    print(
        f'{about(model, config)}, {config.optimizer}, {device}; {flops / n_tokens / 1e6:,.1f} '
        f'MFLOP a token, peak {peak / 1e12:,.3g} TFLOP/s in {dtype}'
    )
    print(
        f'{"":<10}{"dtype":>10}{"compiled":>10}{"ms/update":>11}{"tokens/s":>11}{"MFU":>8}'
        f'{"peak MiB":>10}'
    )

    def row(name, dtype, compiled, step):
        time = seconds_of_update(step, config, device)
        memory = peak_memory(device) / MIB
        speed = f'{1000 * time:>11,.1f}{n_tokens / time:>11,.0f}{flops / time / peak:>8.1%}'
        print(f'{name:<10}{dtype:>10}{compiled!s:>10}{speed}{memory:>10,.0f}', flush=True)
        return time

    ours = row('ours', dtype, compiled, step)
    if config.plain:
        del model, step
        slow = row('plain', 'float32', False, plain_step(config, device))
        print(f'ours is {slow / ours:.2f} times as fast')


def training_step(config, device, dtype, **network):
    """Return (model with random weights, whether it is compiled, a function that makes an update).

    The update is that of train.py."""
    model = lean(random_model(config, device, **network).train())
    l2r_ratio = 0.0 if model.slots.masked_loss else 0.1
    run = Config(
        batch_size=config.batch_size,
        gradient_accumulation_steps=1,
        block_size=config.block_size,
        grad_clip=1.0,
        l2r_ratio=l2r_ratio,
        dtype=dtype,
        seed=config.seed,
    )
    optimizer, rate = optimizer_in(config)
    optimizers = make_optimizers(model, optimizer, 1e-3, rate or MUON_RATE, 0.05, (0.9, 0.95))
    split = Split(random_tokens(config))
    state = TrainState(model, optimizers, EMA(model, 0.9999))
    asked = 'auto' if config.compile else False
    compiled, _ = resolve_compile(asked, device, float('inf'), 2000)
    if compiled:
        state.run_model = torch.compile(model)
    return model, compiled, partial(update, state, split, 1e-3, run)


def plain_step(config, device):
    """Return a function that makes an update the plain way, see plain_update."""
    model = random_model(config, device).train()
    tokens = random_tokens(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
    average = copy.deepcopy(model).requires_grad_(False)
    return partial(plain_update, model, optimizer, average, tokens, config.batch_size, device)


def seconds_of_update(step, config, device):
    """Return seconds of one call of `step`, after a first call that compiles and warms up."""

    def updates():
        for _ in range(config.n_updates):
            step()

    step()
    peak_memory(device, reset=True)
    return seconds(updates, device, config.repeats) / config.n_updates


# --------------------------------------------------------------------------------------------------
# grid


def bench_grid(config, device, dtype):
    check_out('out', config.out, '.json')
    result = {'config': config, 'device': str(device), 'dtype': dtype, 'torch': torch.__version__}
    for name, measure in (('generation', generation_times), ('training', training_rates)):
        result[name] = measure(config, device, dtype)
        if config.out:  # at once: the first takes minutes
            write_json(config.out, result)
            print(f'\nwritten: {config.out}')


def generation_times(config, device, dtype):
    """Print and return [{'steps', 'decoder', ...}]: seconds of `generate` by WRITERS and steps."""
    N = config.block_size
    models = {name: random_model(config, device, **network) for name, network in WRITERS.items()}
    order = sample_order(config.batch_size, N, device=device)
    print(f'{about(models["decoder"], config)}, {device}, {dtype}')
    print("\ngeneration, seconds, and times the decoder's")
    print(f'{"steps":>6}' + ''.join(f'{name:>20}' for name in models))
    steps = numbers_or_none(config, 'steps') or STEPS
    times = []
    with autocast(device, dtype):
        for n_steps in dict.fromkeys(min(n, N) for n in steps):
            two_steps = 2 * max(1, N // n_steps)
            row = {'steps': n_steps}
            line = f'{n_steps:>6}'
            for name, model in models.items():
                seeds = range(config.batch_size)
                run = partial(generate, model, torch.zeros_like(order), order, seeds=seeds)
                run(max(0, N - two_steps), 2)  # warm up: two steps as wide
                row[name] = seconds(partial(run, 0, n_steps), device, config.repeats)
                line += f'{row[name]:>12.2f}{row[name] / row["decoder"]:>8.1f}'
            print(line, flush=True)
            times.append(row)
    return times


def training_rates(config, device, dtype):
    """Print and return [{'network', 'parameters', 'compiled', 'tokens_per_sec'}] of updates."""
    n_tokens = config.batch_size * config.block_size
    print(f'\ntraining, {config.optimizer}')
    print(f'{"":<14}{"parameters":>12}{"ms/update":>11}{"tokens/s":>11}{"of adaln":>10}')
    rates = []
    for name, network in NETWORKS.items():
        torch.compiler.reset()  # else the ninth network would be one too many to compile
        model, compiled, step = training_step(config, device, dtype, **network)
        time = seconds_of_update(step, config, device)
        n = model.n_parameters()
        rate = n_tokens / time
        rates.append(
            {'network': name, 'parameters': n, 'compiled': compiled, 'tokens_per_sec': rate}
        )
        share = rate / rates[0]['tokens_per_sec']
        print(f'{name:<14}{n:>12,}{1000 * time:>11,.1f}{rate:>11,.0f}{share:>10.2f}', flush=True)
        del model, step  # before the next one is made
    return rates


# --------------------------------------------------------------------------------------------------
# frontier


def bench_frontier(config, device, dtype):
    at_least(config, 2, 'n_samples')  # whose spread gives the errors
    at_least(config, 0, 'n_blocks')
    check_out('out', config.out, '.json', config.ckpt, config.judge)
    values = {
        'n_steps': numbers_or_none(config, 'steps'),
        'threshold': numbers_or_none(config, 'thresholds', float, 0, 1),
        'window': numbers_or_none(config, 'windows'),
        'blocks': numbers_or_none(config, 'block_lengths'),
    }
    batch_size = config.batch_size if 'batch_size' in config.given else 32
    c = Config(config, batch_size=batch_size, n_orders=1)
    Frontier(c, values, device, dtype).measure(config, config.out)


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
