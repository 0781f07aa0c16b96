"""
How many puzzles does a model solve, and in which order? By default every blank is written in a step of its own, the likeliest digit.

    python eval_puzzle.py --ckpt=out/sudoku4/ckpt.pt
    python eval_puzzle.py --ckpt=out/sudoku/ckpt.pt --dataset=hard --policies=random,margin --n_steps=8,16,0 --noises=0,0.5
    python eval_puzzle.py --ckpt=out/sudoku/ckpt.pt --policies=margin --html=replay.html --show=0,7
    python eval_puzzle.py --ckpt=out/nae_sat/ckpt.pt --error_map=error_map.png

solved: the share of puzzles without a mistake. right: the share of blanks; of nae_sat, of the observations that agree with the latents
that the model itself wrote. Errors are standard errors over puzzles. What is given is read first, in the order that the policy starts from.
Source: Kim et al. 2025, "Train for the Worst, Plan for the Best", sec. 4.
"""
import math
import os

import torch

from anyorder.checkpoint import Checkpoint
from anyorder.devices import autocast, resolve_device
from anyorder.fast import freeze
from anyorder.figures import PICTURES, draw
from anyorder.files import check_out, progress, write_json
from anyorder.generation import ADAPTIVE, check_drawing, check_policy, generate
from anyorder.orders import derive_seed, draw_orders, given_first, sample_order
from anyorder.replay import REPLAYS, write_replay
from anyorder.tables import ratio_error, share_error
from configurator import Config, at_least, configure, one_line_errors, refuse_idle
from data.blocks import all_blocks, open_split
from data.puzzles import SHARES, unpack
from data.rules import TASKS, make_task
from data.sets import read_meta

ckpt = 'out/ckpt.pt'   # a checkpoint: a path, or hf:OWNER/REPO/path.pt
weights = 'ema'        # 'ema' or 'raw'
dataset = ''           # a set made by data/puzzles.py; '' is what the checkpoint was trained on
split = 'test'         # 'test', 'val' or 'train'
data_dir = ''          # where prepared sets are; '' is where the checkpoint's are
n_puzzles = 0          # how many, spread evenly over the set; 0 is all
policies = 'random,l2r,top_prob,margin,entropy'  # orders of the blanks
n_steps = '0'          # numbers of steps, with commas; 0 is one for each blank
noises = '0'           # scales of the noise on the scores of top_prob, margin and entropy, with commas
noise_kind = 'gumbel'  # or 'gaussian'
unmask = 'fixed'       # 'fixed', or 'binomial': numbers of blanks a step are drawn
temperature = 'auto'   # 'auto' is 0, the likeliest, or 1 where nothing is given
seed = 1337            # puzzle r is a function of seed and r
batch_size = 250       # puzzles at a time
device = 'auto'        # 'cpu', 'cuda', 'cuda:1', ...
dtype = 'float32'      # 'float32', 'bfloat16' or 'auto'
out = ''               # write the table to this JSON file
html = ''              # write a replay of the puzzles of `show` to this file: a page (.html), or one animated picture (.svg)
show = '0'             # which puzzles, with commas
error_map = ''         # instead of solving: the loss by the share that is masked, as this picture (.png, .svg, .pdf)


SOLVING = {'policies', 'n_steps', 'noises', 'noise_kind', 'unmask', 'temperature', 'html', 'show'}   # options


def solve(model, tokens, given, policy, n_steps, seed, batch_size=250, **how):
    """Write the blanks of puzzles tokens, given (n, N): idx (n, N) and the trace of generate. Puzzle r is a function of (seed, r)."""
    n, N = tokens.shape
    order, n_given = given_first(sample_order(n, N, 'l2r') if policy == 'l2r' else draw_orders(range(n), N, 1, seed)[:, 0], given)
    blank, device, parts = tokens.masked_fill(~given, 0), model.lm_head.weight.device, []
    for rows in torch.arange(n).split(batch_size):
        idx, trace = generate(model, blank[rows].to(device), order[rows].to(device), n_given[rows], n_steps or N,
                              policy if policy in ADAPTIVE else 'given', seeds=[derive_seed(seed, int(r)) for r in rows],
                              return_trace=True, **how)
        parts.append({name: value.cpu() for name, value in [('idx', idx), *trace.items()]})
    trace = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return trace.pop('idx'), trace


def score(task, tokens, given, idx):
    """{'solved', 'right', each with its 'stderr' over puzzles} of the answers idx (n, N)."""
    counts, right = (torch.from_numpy(x.copy()) for x in task.judge(tokens.numpy(), given.numpy(), idx.numpy()))
    total, right = counts.sum(1).double(), (right & counts).sum(1).double()                 # (n,) each
    solved, n, share = int((right == total).sum()), len(total), float(right.sum() / total.sum())
    error = share_error(n * share, n) if n == 1 or share in (0, 1) else ratio_error(right, total)
    return {'solved': solved / n, 'solved_stderr': share_error(solved, n), 'right': share, 'right_stderr': error, 'puzzles': n}


@torch.no_grad()
def masked_loss(model, tokens, groups, seed, batch_size=250, n_shares=16):
    """[{'masked': share, group: nats, ...}]: mean loss of what is masked given what is not, in random orders, by the masked share."""
    (n, N), device, rows = tokens.shape, model.lm_head.weight.device, []
    orders, n_shares = draw_orders(range(n), N, 1, seed)[:, 0], min(n_shares, N)
    for k in progress(range(1, n_shares + 1), desc='shares', leave=False):
        known, nats, column = N - round(N * k / n_shares), [], torch.arange(N)
        for part in torch.arange(n).split(batch_size):
            idx, order = tokens[part].to(device), orders[part].to(device)
            logits = model.predict(idx, order, known).float()
            targets = order[:, known:]
            nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), idx.gather(1, targets).flatten(), reduction='none')
            nats.append(torch.full((len(part), N), math.nan).scatter_(1, targets.cpu(), nll.view(targets.shape).cpu()))
        nats = torch.cat(nats).double()
        rows.append({'masked': (N - known) / N} | {name: float(nats[:, (column >= a) & (column < b)].nanmean())
                                                  for name, (a, b) in groups.items()})
    return rows


def open_puzzles(checkpoint, tokenizer, c):
    """(task, tokens (n, N), given (n, N), label) of the set that is asked for."""
    run = checkpoint.run
    name, data_dir = c.dataset or run.get('dataset', ''), c.data_dir or run.get('data_dir', 'data')
    if not name:
        raise ValueError('the checkpoint does not name its data set: say which with --dataset=')
    if c.split not in SHARES:
        raise ValueError(f'split must be {", ".join(SHARES)}, got {c.split!r}')
    meta = read_meta(os.path.join(data_dir, name))
    is_text = 'puzzle' not in meta if meta else not c.dataset and tokenizer.eos is not None
    if is_text:
        raise ValueError(f'{name} is text, not puzzles' + f': python eval_ppl.py --ckpt={c.ckpt} measures it' * (tokenizer.eos is not None))
    if not meta and name not in TASKS:
        raise ValueError(f'no folder {name} in {data_dir}; make it with: python data/puzzles.py TASK --name={name} --source=FILE '
                         f'--split={c.split}')
    packed, meta = open_split(data_dir, name, c.split)
    if meta['tokenizer'] != tokenizer.name or meta['puzzle'] != checkpoint.entries.get('puzzle', meta['puzzle']):
        kind = ', '.join(f'{k}={v}' for k, v in meta['puzzle'].items())
        raise ValueError(f"the checkpoint was trained on {run.get('dataset', 'other data')} ({tokenizer.name} tokens), {name} has other "
                         f'puzzles ({kind}): choose another --dataset or --ckpt')
    tokens, given = unpack(all_blocks(packed, packed.shape[1], c.n_puzzles))
    return make_task(meta['puzzle']), tokens, given, f"{name} ({c.split})"


def numbers(text, name, kind):
    try:
        values = [kind(part) for part in text.split(',')]
        if all(0 <= value < math.inf for value in values):
            return values
    except ValueError:
        pass
    raise ValueError(f'{name} must be numbers from 0 with commas between, got {text!r}')


def main(config):
    policies = config.policies.split(',')
    if set(policies) - {'random', 'l2r', *ADAPTIVE}:
        raise ValueError(f'policies must be of random, l2r, {", ".join(ADAPTIVE)}, got {config.policies!r}')
    steps, noises, show = (numbers(str(config[name]), name, kind) for name, kind in (('n_steps', int), ('noises', float), ('show', int)))
    at_least(config, 1, 'batch_size')
    at_least(config, 0, 'n_puzzles')
    idle = SOLVING if config.error_map else {name for name, used in (('show', config.html), ('noise_kind', max(noises))) if not used}
    refuse_idle(config, *idle)
    if config.temperature != 'auto':
        if type(config.temperature) not in (int, float):
            raise ValueError(f"temperature must be 'auto' or a number, got {config.temperature!r}")
        check_drawing(config.temperature, 0, 1.0)
    if max(noises) and not set(policies) & set(ADAPTIVE):
        raise ValueError(f'noises are for the policies {", ".join(ADAPTIVE)}, got {config.noises} for {config.policies}')
    if config.unmask == 'binomial' and 0 in steps:
        raise ValueError(f'unmask=binomial wants n_steps from 1, got {config.n_steps}: no number of levels is one a blank')
    check_policy('margin', config.unmask, max(noises), config.noise_kind, None)
    for name, endings in (('out', '.json'), ('html', REPLAYS), ('error_map', PICTURES)):
        check_out(name, config[name], endings, config.ckpt)
    checkpoint = Checkpoint(config.ckpt)
    tokenizer = checkpoint.tokenizer
    task, tokens, given, label = open_puzzles(checkpoint, tokenizer, config)
    device, dtype = resolve_device(config.device, config.dtype)
    model = checkpoint.model(config.weights, device)
    temperature = config.temperature if config.temperature != 'auto' else 0.0 if given.any() else 1.0
    config = Config(config | {'device': str(device), 'dtype': dtype, 'temperature': temperature})
    if config.error_map and given.any():
        raise ValueError(f'error_map is of puzzles of which nothing is given, as nae_sat: {label} has clues')
    if max(show) >= len(tokens):
        raise ValueError(f'show must name puzzles from 0 to {len(tokens) - 1}, got {config.show}')
    print(f"{checkpoint.about(config.weights)}, {model.n_parameters():,} parameters\n"
          f'{label}: {len(tokens):,} puzzles of {tokens.size(1)} tokens, {float(given.float().mean()):.0%} given; temperature '
          f'{config.temperature:g}, {device}, {dtype}, seed {config.seed}')
    rows, samples = [], []
    with autocast(device, dtype):
        if config.error_map:
            rows = masked_loss(model, tokens, task.groups, config.seed, config.batch_size)
            write_results(config, checkpoint, label, rows)
            print(''.join(f'{name:>14}' for name in rows[0]))
            print('\n'.join(''.join(f'{value:>14.4f}' for value in row.values()) for row in rows))
            draw([(name, [{'masked': row['masked'], 'masked_loss': row[name]} for row in rows]) for name in task.groups],
                 'masked', ['masked_loss'], config.error_map)
            print(f'\n{config.error_map} written')
        else:
            print(f"{'policy':<10}{'steps':>7}{'noise':>7}{'solved':>18}{'right':>18}")
            for row, shown in solve_all(model, task, tokens, given, policies, steps, noises, show, config):
                rows, samples = [*rows, row], samples + shown
                write_results(config, checkpoint, label, rows)   # at once: the next one may take hours
                print(f"{row['policy']:<10}{row['n_steps'] or 'all':>7}{row['noise']:>7g}" + ''.join(
                    f"{row[name]:>10.2%} ±{row[f'{name}_stderr']:>6.2%}" for name in ('solved', 'right')), flush=True)
    if config.html:
        write_replay(config.html, samples, tokenizer, label, task.columns)
    for path in (config.html, config.out):
        print(f'written: {path}\n' * bool(path), end='')


def write_results(config, checkpoint, label, rows):
    if config.out:
        write_json(config.out, {'config': config, 'iter_num': checkpoint.entries.get('iter_num'), 'set': label, 'results': rows})


def solve_all(model, task, tokens, given, policies, steps, noises, show, config):
    """For every policy, number of steps and noise its row of the table, and the puzzles of `show` as samples of a page."""
    model = freeze(model)
    for policy in policies:
        for n_steps in steps:
            for noise in noises if policy in ADAPTIVE else [0.0]:
                with progress(total=int((~given).sum()), desc=policy, unit='blank', leave=False) as bar:
                    idx, trace = solve(model, tokens, given, policy, n_steps, config.seed, config.batch_size, unmask=config.unmask,
                                       temperature=config.temperature, order_noise=noise, order_noise_kind=config.noise_kind,
                                       on_step=lambda step, n_new, *_, bar=bar: bar.update(int(n_new.sum())))
                counts, right = task.judge(*(x[show].numpy() for x in (tokens, given, idx)))
                shown = [{'name': f"puzzle {p}, {policy}, {len(trace['step'][p].unique()) - int(given[p].any())} steps",
                          'tokens': idx[p].tolist(), 'wrong': wrong, **{name: trace[name][p].tolist() for name in ('step', 'logprob')}}
                         for p, wrong in zip(show, (counts & ~right).tolist())]
                yield {'policy': policy, 'n_steps': n_steps, 'noise': noise, **score(task, tokens, given, idx)}, shown


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
