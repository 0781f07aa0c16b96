"""How many puzzles, or rows of another set, does a model solve, and in which order? By default each step writes one
blank, the likeliest token.

    python eval_puzzle.py --ckpt=out/sudoku4/ckpt.pt
    python eval_puzzle.py --ckpt=out/sudoku/ckpt.pt --dataset=hard --policies=random,margin --n_steps=8,0 --noises=0,0.5
    python eval_puzzle.py --ckpt=out/sudoku/ckpt.pt --policies=margin --html=replay.html --show=0,7
    python eval_puzzle.py --ckpt=out/nae_sat/ckpt.pt --error_map=error_map.png
    python eval_puzzle.py --ckpt=out/digits/ckpt.pt --blanks=32:64                   # the lower half of an image
    python eval_puzzle.py --ckpt=out/answers/ckpt.pt --split=val --policies=l2r      # answers to questions

What is given is read first. solved is the share of puzzles or rows without a mistake, right the share of right blanks.
A blank of a set without rules is right if it is what the set says; for nae_sat right is the share of observations that
agree with the latents that the model itself wrote. slots and seconds are what a puzzle costs: the slots that the
network ran, without padding, and its time. Errors are standard errors over puzzles. The set of the training is named
where it was prepared anew since: the model may have been trained on its puzzles.
Source: Kim et al. 2025, "Train for the Worst, Plan for the Best", sec. 4."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config, at_least, check_choice, names_in, numbers

# fmt: off

ckpt = 'out/ckpt.pt'   # a checkpoint, or a folder of export_hf.py: a path, or hf:OWNER/REPO[/path.pt];
                       # masked:FOLDER is a masked model of others
weights = 'ema'        # 'ema' or 'raw'
dataset = ''           # a set made by data/puzzles.py or of tokens; '' is what the checkpoint was trained on
split = 'test'         # 'test', 'val' or 'train'
data_dir = ''          # where prepared sets are; '' is where the checkpoint's are
blanks = ''            # positions to write given all others, as 32:64,70; '' what the set does not give
n_puzzles = 0          # how many, spread evenly over the set; 0 is all
policies = 'all'       # orders of the blanks, with commas: 'own' (as trained); anyorder/orders.py:ORDERS,
                       # or with a number of its own, as swaps:9; a JSON file with a list of positions; a function
                       # FILE.py:NAME; or the model's choice by its scores: anyorder/generation/unmasking.py:SCORES.
                       # 'all' is random, l2r and every score
n_steps = '0'          # numbers of steps, with commas; 0 is a step for each blank
noises = '0'           # scales of the Gumbel noise on the scores by which the model chooses, with commas
unmask = 'fixed'       # 'fixed', or 'binomial': how many blanks a step writes is drawn
block_length = None    # the model chooses inside blocks of so many blanks, from left to right
revise = 0             # rounds, at most: an eighth of what was written, which fits the rest least, is written again
temperature = 'auto'   # 'auto' is 0, the likeliest, or 1 where nothing is given
seed = 1337            # puzzle r is a function of seed and r
batch_size = 250       # puzzles at a time
device = 'auto'        # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'float32'      # 'float32', 'bfloat16' or 'auto'
out = ''               # write the table to this JSON file
html = ''              # write a page to this file (.html) that replays the puzzles of `show`
show = '0'             # which puzzles, with commas
error_map = ''         # instead of solving: the loss by the share that is masked, as this picture (.png, .svg, .pdf)
# fmt: on

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=())

import math
import os
import shlex
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from anyorder.batch import Batch
from anyorder.checkpoint import open_checkpoint
from anyorder.datasets import changed_since, open_split
from anyorder.fast import CountedTrunk, freeze
from anyorder.generation import SCORES, Canvas, Drawing, Given, unmasking_of
from anyorder.generation.fill import fill
from anyorder.generation.way import order_and_policy
from anyorder.likelihood.tables import ratio_error, share_error
from anyorder.machine.devices import autocast, resolve_device
from anyorder.machine.files import check_out, write_json
from anyorder.machine.terminal import progress
from anyorder.orders import Order, draw_orders
from anyorder.pictures.figures import PICTURES, draw
from anyorder.pictures.replay import check_page, write_replay
from anyorder.puzzles.rules import SHARES, judge_of
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import all_blocks, check_length, only_blank
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.sets import PADDING
from anyorder.tokens.tokenizers import TEXT, HuggingFace, tokenizer_of_set


def read_runs(c):
    """[(policy, n_steps, noise, Unmasking, text for Order.of)], a row of the table each."""
    policies = ['random', 'l2r', *SCORES] if c.policies == 'all' else names_in(c.policies)
    named = [(policy, *order_and_policy(policy, c.block_length)) for policy in policies]
    steps, noises = numbers(c, 'n_steps'), numbers(c, 'noises', float)
    if (max(noises) or c.block_length is not None) and not set(policies) & set(SCORES):
        raise ValueError(
            f'noises and block_length are for the policies {", ".join(SCORES)}, got {c.policies}'
        )
    if c.unmask == 'lossless':
        raise ValueError(
            'unmask=lossless would solve what one blank a step solves: choose fixed with --n_steps=0'
        )
    if c.unmask == 'binomial' and 0 in steps:
        raise ValueError(
            f'unmask=binomial draws how many blanks each step writes: n_steps must be 1 or more, got '
            f'{c.n_steps}'
        )

    def unmasking(policy, n_steps, noise):  # more steps than blanks write one blank each
        length = None if policy == 'given' else c.block_length
        return unmasking_of(
            n_steps=n_steps or 2**31,
            policy=policy,
            unmask=c.unmask,
            order_noise=noise,
            block_length=length,
            revise=c.revise,
        )

    return [
        (name, n_steps, noise, unmasking(policy, n_steps, noise), order)
        for name, order, policy in named
        for n_steps in steps
        for noise in (noises if policy in SCORES else [0.0])
    ]


def solve(model, tokens, given, order, unmasking, drawing, seed, batch_size=250, bar=None):
    """Write the blanks of puzzles tokens, given (n, N). Returns idx, step and logprob (n, N), see Canvas. `order` is an
    Order; puzzle r is a function of (seed, r)."""
    n, N = tokens.shape
    puzzles = Batch.of(tokens, draw_orders(range(n), N, 1, seed, order)[:, 0], given)
    puzzles = replace(puzzles, idx=tokens.masked_fill(~given, 0))  # what a solver sees
    parts = []
    for rows in torch.arange(n).split(batch_size):
        part = puzzles.rows(rows).to(model.device)
        seeds = [derive_seed(seed, r) for r in rows.tolist()]
        canvas = Canvas(part.idx, part.order, part.n_given, seeds, part.n_visits)
        fill(model, canvas, unmasking, drawing, bar=bar)
        parts.append([x.cpu() for x in (canvas.idx, canvas.step, canvas.logprob)])
    return [torch.cat(part) for part in zip(*parts)]


def solve_all(model, puzzles, runs, trained, show, c):
    """Yields for every run its row of the table, and the puzzles of `show` as samples of a replay. `trained` are the
    options that the model was trained with, see Order.of."""
    tokens, given = puzzles.tokens, puzzles.given
    model, drawing = freeze(model), Drawing(c.temperature)
    solve(
        model, tokens[:1], given[:1], Order.of('l2r', trained), Given(1), drawing, c.seed
    )  # warm up
    trunk = model.trunk
    for policy, n_steps, noise, unmasking, order in runs:
        order = Order.of(order, trained)
        policy = policy if unmasking.adaptive else order.name_as(policy)
        policy += f'/{unmasking.block_length}' if unmasking.block_length else ''
        with progress(total=int((~given).sum()), desc=policy, unit='blank', leave=False) as bar:
            start, model.trunk = time.perf_counter(), CountedTrunk(trunk)
            idx, step, logprob = solve(
                model, tokens, given, order, unmasking, drawing, c.seed, c.batch_size, bar
            )
            cost = {'slots': int(model.trunk.n_slots), 'seconds': time.perf_counter() - start}
        counts, right = puzzles.check_answer(idx)
        samples = {'tokens': idx, 'wrong': counts & ~right, 'step': step, 'logprob': logprob}
        shown = [
            {'name': f'puzzle {p}, {policy}, {len({*step[p].tolist()} - {-1})} steps'}
            | {name: x[p][tokens[p] != PADDING].tolist() for name, x in samples.items()}
            for p in show
        ]
        cost = {name: value / len(tokens) for name, value in cost.items()}
        yield (
            {'policy': policy, 'n_steps': n_steps, 'noise': noise, **score(counts, right), **cost},
            shown,
        )


def score(counts, right):
    """{'solved', 'right', each with its 'stderr' over puzzles} of what Puzzles.check_answer gives."""
    total, right = counts.sum(1).double(), (right & counts).sum(1).double()  # (n,) each
    solved, n, share = int((right == total).sum()), len(total), float(right.sum() / total.sum())
    error = share_error(n * share, n) if n == 1 or share in (0, 1) else ratio_error(right, total)
    return {
        'solved': solved / n,
        'solved_stderr': share_error(solved, n),
        'right': share,
        'right_stderr': error,
        'puzzles': n,
    }


@torch.no_grad()
def loss_by_share(model, tokens, groups, seed, batch_size=250, n_shares=16):
    """[{'masked': share, group: nats, ...}]: the loss of masked tokens by their share, of {group: (first, end)}."""
    (n, N), device, rows = tokens.shape, model.device, []
    orders, n_shares, column = (
        draw_orders(range(n), N, 1, seed)[:, 0],
        min(n_shares, N),
        torch.arange(N),
    )
    for k in progress(range(1, n_shares + 1), desc='shares', leave=False):
        known, nats = N - round(N * k / n_shares), torch.full((n, N), math.nan, dtype=torch.float64)
        for part in torch.arange(n).split(batch_size):
            idx, order = tokens[part].to(device), orders[part].to(device)
            logits, targets = model.predict(idx, order, known).float(), order[:, known:]
            nll = F.cross_entropy(
                logits.flatten(0, 1), idx.gather(1, targets).flatten(), reduction='none'
            )
            nats[part.unsqueeze(1), targets.cpu()] = nll.view(targets.shape).cpu().double()
        means = {
            name: float(nats[:, (column >= a) & (column < b)].nanmean())
            for name, (a, b) in groups.items()
        }
        rows.append({'masked': (N - known) / N} | means)
    return rows


class Puzzles(NamedTuple):
    task: object  # its rules, see anyorder/puzzles/rules.py
    tokens: (
        torch.Tensor
    )  # (n, N) the solutions, in tokens of the model, PADDING behind shorter ones
    given: torch.Tensor  # (n, N) which tokens are given
    label: str  # name of the set and its split
    symbols: np.ndarray  # the symbol of the task that each token of the model is; -1 for none

    def check_answer(self, idx):
        """(which tokens of the answers idx (n, N) count, which are right), both (n, N)."""
        tokens, answer = (self.symbols[x.numpy()] for x in (self.tokens, idx))
        return [torch.tensor(x) for x in self.task.check_answer(tokens, self.given.numpy(), answer)]


def where(c, run):
    """(name, data_dir) of the set that is asked for; `run` are the options of the training."""
    return c.dataset or run.get('dataset', ''), c.data_dir or run.get('data_dir', 'data')


def open_puzzles(checkpoint, c):
    """The Puzzles that are asked for."""
    run, tokenizer = checkpoint.run, checkpoint.tokenizer
    name, data_dir = where(c, run)
    if not name:
        raise ValueError('the checkpoint does not name its data set: say which with --dataset=')
    check_choice('split', c.split, *SHARES)
    meta = read_meta(os.path.join(data_dir, name))
    kind = kind_of(meta) if meta else {} if c.dataset else checkpoint.set
    if kind.get('tokenizer') in TEXT and not kind.get('prompts'):
        split = f' --split={c.split}' if 'split' in c.given else ''  # the defaults differ
        raise ValueError(
            f'{name} is text without prompts, not puzzles or rows: python eval_ppl.py '
            f'--ckpt={shlex.quote(c.ckpt)} --datasets={name} --data_dir={shlex.quote(data_dir)}{split} '
            'measures it'
        )
    split, meta = open_split(data_dir, name, c.split, checkpoint.set or {'tokenizer': 'TASK'})
    kind = kind_of(meta)
    ids, puzzle = ids_of(tokenizer_of_set(kind), tokenizer), kind.get('puzzle')
    if ids is None or puzzle != checkpoint.set.get('puzzle', puzzle):
        about = ', '.join(f'{k}={v}' for k, v in (puzzle or kind).items())
        raise ValueError(
            f'the checkpoint knows {run.get("dataset", "other data")} ({tokenizer.name} tokens), {name} '
            f'has other puzzles or symbols ({about:.200}): choose another --dataset or --ckpt'
        )
    N = kind.get('row_length') or checkpoint.config.block_size
    check_length(split, N, f'{name}/{c.split}')
    tokens, given = all_blocks(split, N, c.n_puzzles)
    given = only_blank(c.blanks, tokens, given)
    if tokens.size(1) > checkpoint.config.block_size:
        raise ValueError(
            f'the model reads {checkpoint.config.block_size} tokens, the puzzles of {name} have '
            f'{tokens.size(1)}: choose another --dataset or --ckpt'
        )
    symbols = np.full(tokenizer.n_tokens, -1)
    symbols[ids] = np.arange(len(ids))
    label = f'{name} ({c.split})' + split.cut(N) + f', blanks {c.blanks}' * bool(c.blanks)
    tokens = torch.from_numpy(ids)[tokens].where(tokens != PADDING, tokens)
    return Puzzles(judge_of(kind), tokens, given, label, symbols)


def ids_of(symbols, tokenizer):
    """(n,) the tokens that a tokenizer has for the symbols of a set; None if it lacks one."""
    texts = getattr(symbols, 'texts', None)
    if (tokenizer.name, getattr(tokenizer, 'texts', None)) == (symbols.name, texts):
        return np.arange(symbols.n_tokens)
    if not isinstance(tokenizer, HuggingFace) or texts is None:
        return None
    found = [tokenizer.encode(text) for text in symbols.texts]
    alone = all(
        len(ids) == 1 and tokenizer.decode(ids) == text for ids, text in zip(found, symbols.texts)
    )
    return np.array(found)[:, 0] if alone else None


def write_results(config, checkpoint, label, rows):
    if config.out:
        entries = {
            'config': config,
            'iter_num': checkpoint.entries.get('iter_num'),
            'set': label,
            'results': rows,
        }
        write_json(config.out, entries)


def print_solved(model, puzzles, runs, show, config, checkpoint):
    """Solve the puzzles, print a line for every run and write the replay."""
    rows, samples = [], []
    print(
        f'{"policy":<10}{"steps":>7}{"noise":>7}{"solved":>18}{"right":>18}{"slots":>9}{"seconds":>10}'
    )
    for row, shown in solve_all(model, puzzles, runs, checkpoint.run, show, config):
        rows, samples = [*rows, row], samples + shown
        write_results(
            config, checkpoint, puzzles.label, rows
        )  # at once: the next one may take hours
        shares = ''.join(
            f'{row[name]:>10.2%} ±{row[f"{name}_stderr"]:>6.2%}' for name in ('solved', 'right')
        )
        print(
            f'{row["policy"]:<10}{row["n_steps"] or "all":>7}{row["noise"]:>7g}{shares}{row["slots"]:>9,.0f}'
            f'{row["seconds"]:>10.3g}',
            flush=True,
        )
    if config.html:
        write_replay(
            config.html,
            samples,
            checkpoint.tokenizer,
            puzzles.label,
            puzzles.task.columns,
            getattr(puzzles.task, 'box', 0),
        )
        print(f'written: {config.html}')


def print_error_map(model, puzzles, config, checkpoint):
    """Measure the loss by the share that is masked; print and draw it."""
    groups = puzzles.task.groups
    rows = loss_by_share(model, puzzles.tokens, groups, config.seed, config.batch_size)
    write_results(config, checkpoint, puzzles.label, rows)
    print(''.join(f'{name:>14}' for name in rows[0]))
    print('\n'.join(''.join(f'{value:>14.4f}' for value in row.values()) for row in rows))
    curves = [
        (name, [{'masked': row['masked'], 'loss_of_masked': row[name]} for row in rows])
        for name in groups
    ]
    draw(curves, [('masked', 'loss_of_masked')], config.error_map)
    print(f'\n{config.error_map} written')


def main(config):
    runs, show = read_runs(config), numbers(config, 'show')
    at_least(config, 1, 'batch_size')
    at_least(config, 0, 'n_puzzles')
    if config.temperature != 'auto':
        if type(config.temperature) not in (int, float):
            raise ValueError(f"temperature must be 'auto' or a number, got {config.temperature!r}")
        Drawing(config.temperature)
    for name, endings in (('out', '.json'), ('error_map', PICTURES)):
        check_out(name, config[name], endings, config.ckpt)
    check_page(config.html, config.ckpt)
    checkpoint = open_checkpoint(config.ckpt)
    _, tokens, given, label, _ = puzzles = open_puzzles(checkpoint, config)
    name, data_dir = where(config, checkpoint.run)
    if not puzzles.check_answer(tokens)[0].any():
        raise ValueError(f'{label}: the rules judge none of the blanks, choose others')
    idle = config.given & {
        'policies',
        'n_steps',
        'noises',
        'unmask',
        'block_length',
        'revise',
        'html',
        'show',
    }
    if config.error_map and (given.any() or idle):
        raise ValueError(
            f'error_map solves nothing: leave out --{min(idle)}'
            if idle
            else 'error_map wants puzzles '
            f'without clues, as nae_sat; of {label} {given.float().mean():.0%} are given'
        )
    if max(show) >= len(tokens):
        raise ValueError(f'show must name puzzles from 0 to {len(tokens) - 1}, got {config.show}')
    for *_, unmasking, order in runs:  # before any is solved
        Order.of(order, checkpoint.run).check(tokens.size(1), checkpoint.config.block_size)
        unmasking.check_network(checkpoint.config.slots, tokens.size(1))
    device, dtype = resolve_device(config.device, config.dtype)
    model = checkpoint.model(config.weights, device)
    temperature = (
        config.temperature if config.temperature != 'auto' else 0.0 if given.any() else 1.0
    )
    config = Config(config | {'device': str(device), 'dtype': dtype, 'temperature': temperature})

    print(
        f'{checkpoint.about(config.weights)}, {model.n_parameters():,} parameters\n{label}: {len(tokens):,} rows of '
        f'{tokens.size(1)} tokens, {float(given.float().mean()):.0%} given; temperature {config.temperature:g}, '
        f'{device}, {dtype}, seed {config.seed}{", revised" * bool(config.revise)}'
    )
    if anew := changed_since(checkpoint, data_dir, name):
        print(anew)
    model = freeze(model, getattr(torch, dtype))
    with autocast(device, dtype):
        if config.error_map:
            print_error_map(model, puzzles, config, checkpoint)
        else:
            print_solved(model, puzzles, runs, show, config, checkpoint)
    if config.out:
        print(f'written: {config.out}')


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
