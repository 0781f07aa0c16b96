"""How many puzzles, or rows of another set, does a model solve, and in which order?

By default each step writes one blank, the likeliest token.

    python -m anyorder.extras.puzzles solve --ckpt=out/sudoku4/ckpt.pt
    S="python -m anyorder.extras.puzzles solve --ckpt=out/sudoku/ckpt.pt"
    $S --orders=random,margin,margin/27,margin+0.5 --n_steps=8,0
    # the lower half of an image
    python -m anyorder.extras.puzzles solve --ckpt=out/digits/ckpt.pt --blanks=32:64
    # answers to questions
    python -m anyorder.extras.puzzles solve --ckpt=out/answers/ckpt.pt --split=val --orders=l2r

In `orders` margin/27 chooses inside blocks of 27 blanks, and margin+0.5 adds Gumbel noise of this
scale to the scores.

What is given is read first. solved is the share of puzzles or rows without a mistake, right the
share of right blanks. A blank of a set without rules is right if it is what the set says; for
nae_sat right is the share of observations that agree with the latents that the model itself wrote.
slots and seconds are what a puzzle costs: the slots that the network ran, without padding, and its
time. Errors are standard errors over puzzles. The set of the training is named where it was
prepared anew since: the model may have been trained on its puzzles.
Source: Kim et al. 2025, "Train for the Worst, Plan for the Best", sec. 4."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least, check_choice, names_in, number_in, numbers

ckpt = 'out/ckpt.pt'  # a path, a folder of the hub, hf:OWNER/REPO[/path.pt] or masked:FOLDER
weights = 'ema'  # 'ema' or 'raw'
# what is solved
dataset = ''  # a set of puzzles or of tokens; '' is what the checkpoint was trained on
split = 'test'  # 'test', 'val' or 'train'
data_dir = ''  # where prepared sets are; '' is where the checkpoint's are
blanks = ''  # positions to write given all others, as 32:64,70; '' what the set does not give
n_puzzles = 0  # how many, spread evenly over the set; 0 is all
# how
orders = 'all'  # random, l2r, anyorder/generation/scores.py:SCORES; or anyorder/orders.py:ORDERS
n_steps = '0'  # numbers of steps, with commas; 0 is a step for each blank
temperature = 'auto'  # 'auto' is 0, the likeliest, or 1 where nothing is given
seed = 1337  # puzzle r is a function of seed and r
# system
batch_size = 250  # puzzles at a time
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'float32'  # 'float32', 'bfloat16' or 'auto'
out = ''  # write the table to this JSON file

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import itertools
import time
from typing import NamedTuple

import numpy as np
import torch

from anyorder.datasets import only_set_of, open_split, prepared_anew
from anyorder.extras.puzzles.puzzle import Puzzle
from anyorder.extras.puzzles.rules import judge_of
from anyorder.extras.puzzles.sets import SHARES
from anyorder.extras.table import Table
from anyorder.generation import SCORES, Canvas
from anyorder.generation.fill import fill
from anyorder.generation.way import Way
from anyorder.likelihood.tables import ratio_error, share_error
from anyorder.machine.files import check_out
from anyorder.machine.terminal import progress
from anyorder.orders import draw_orders
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import Batch, Blocks, all_blocks, visits_of
from anyorder.tokens.sets import PADDING
from anyorder.tokens.tokenizer import KNOWN, tokenizer_of_set
from anyorder.writer import Writer

COLUMNS = {
    'order': ('order', ''),
    'n_steps': ('steps', ''),
    'solved': ('solved', '.2%'),
    'solved_stderr': ('±', '.2%'),
    'right': ('right', '.2%'),
    'right_stderr': ('±', '.2%'),
    'slots': ('slots', ',.0f'),
    'seconds': ('seconds', '.3g'),
}


class Puzzles(NamedTuple):
    """The puzzles that are asked for."""

    task: Puzzle  # what judges them
    tokens: torch.Tensor  # (n, N) the solutions, in tokens of the model, PADDING behind them
    given: torch.Tensor  # (n, N) which tokens are given
    label: str  # name of the set and its split
    symbols: np.ndarray  # the symbol of the task that each token of the model is; -1 for none

    def counts(self):
        """Return which blanks are judged (n, N)."""
        counts = ~self.given
        counts[:, : self.task.n_free] = False
        return counts

    def right(self, idx):
        """Return which tokens of the answers idx (n, N) are right (n, N)."""
        tokens = self.symbols[self.tokens.numpy()]
        return torch.from_numpy(self.task.right(tokens, self.symbols[idx.numpy()]))


def main(config):
    # The questions
    at_least(config, 1, 'batch_size')
    at_least(config, 0, 'n_puzzles')
    check_out('out', config.out, '.json', config.ckpt)
    writer = Writer(config.ckpt, config.weights, config.device, config.dtype)
    checkpoint = writer.checkpoint
    puzzles = open_puzzles(checkpoint, config)
    is_content = puzzles.tokens != PADDING
    share = float(puzzles.given[is_content].float().mean())
    if config.temperature == 'auto':
        config['temperature'] = 0.0 if share else 1.0
    if not puzzles.counts().any():
        raise ValueError(f'{puzzles.label}: the rules judge none of the blanks, choose others')
    runs = read_runs(config, checkpoint.run)
    n, N = puzzles.tokens.shape
    for _, way in runs:  # before any is solved
        way.order.check(N, checkpoint.config.block_size)
        way.check(checkpoint.config)

    # The answers
    config |= {'device': str(writer.device), 'dtype': writer.dtype}
    title = (
        f'{checkpoint.about(config.weights)}, {writer.model.n_parameters():,} parameters\n'
        f'{puzzles.label}: {n:,} rows of {N} tokens, {share:.0%} given; temperature '
        f'{config.temperature:g}, {config.device}, {config.dtype}, seed {config.seed}'
    )
    table = Table(title, COLUMNS, config)
    with writer.autocast():
        for row in solve_all(writer.network, puzzles, runs, config):
            table.add(row)
    if config.out:
        print(f'written: {config.out}')


# --------------------------------------------------------------------------------------------------
# the questions


def read_runs(c, trained):
    """Return [(what the table says of it first, Way)] of the ways that the options ask for.

    trained  the options of the training"""
    texts = names_in(c.orders)
    if texts in ([], ['all']):
        texts = ['random', 'l2r', *SCORES]
    runs = []
    for text, n_steps in itertools.product(texts, numbers(c, 'n_steps')):
        # more steps than blanks write one blank each
        way = Way.of(trained, text, n_steps=n_steps or 2**31, temperature=c.temperature)
        name = text if way.unmasking.adaptive else way.order.name_as(text)
        runs.append(({'order': name, 'n_steps': n_steps}, way))
    return runs


# --------------------------------------------------------------------------------------------------
# the puzzles


def open_puzzles(checkpoint, c):
    """Return the Puzzles that are asked for."""
    tokenizer = checkpoint.tokenizer
    block_size = checkpoint.config.block_size
    name = c.dataset or only_set_of(checkpoint.run)
    data_dir = c.data_dir or checkpoint.run.get('data_dir', 'data')
    check_choice('split', c.split, *SHARES)
    split = open_split(data_dir, name, c.split)
    meta = split.meta
    of_set = tokenizer_of_set(meta)
    if not of_set.texts and not meta.prompts:
        raise ValueError(f'{name} is text without prompts, which eval_ppl.py measures')
    ids = ids_of(of_set, tokenizer)
    if ids is None or checkpoint.set.puzzle not in (None, meta.puzzle):
        raise ValueError(
            f'{name} has other puzzles or symbols than a checkpoint of {tokenizer.name} tokens '
            'knows: choose another --dataset or --ckpt'
        )
    if anew := prepared_anew(checkpoint, meta):
        print(anew)
    blocks = Blocks(split, min(meta.row_length or block_size, block_size))
    tokens, given = all_blocks(blocks, c.n_puzzles)
    given = only_blank(c.blanks, tokens, given)
    label = f'{name} ({c.split}){blocks.about_cut}'
    if c.blanks:
        label += f', blanks {c.blanks}'
    symbols = np.full(tokenizer.n_tokens, -1)
    symbols[ids] = np.arange(len(ids))
    tokens = torch.from_numpy(ids)[tokens].where(tokens != PADDING, tokens)
    return Puzzles(judge_of(meta), tokens, given, label, symbols)


def only_blank(positions, tokens, given):
    """Return `given` (n, N) with these positions blank, as '32:64,70', and all others given.

    '' returns it as it is. Padding stays given."""
    if not positions:
        return given
    N = given.size(1)
    is_blank = torch.zeros(N, dtype=torch.bool)
    for part in positions.split(','):
        first, _, end = part.partition(':')
        first = number_in(first, int)
        end = number_in(end, int) if end else (first or 0) + 1
        if None in (first, end) or not 0 <= first < end <= N:
            raise ValueError(
                f'blanks must be positions from 0 to {N - 1}, as 8 or 0:{N} or 0:2,8, got '
                f'{positions!r}'
            )
        is_blank[first:end] = True
    return ~is_blank | (tokens == PADDING)


def ids_of(symbols, tokenizer):
    """Return the tokens (n,) of a tokenizer for the symbols of a set; None if it lacks one."""
    if tokenizer.identity == symbols.identity:
        return np.arange(symbols.n_tokens)
    if tokenizer.name in KNOWN or symbols.texts is None:
        return None
    found = [tokenizer.encode(text) for text in symbols.texts]
    whole = all(len(ids) == 1 for ids in found)
    if not whole or [tokenizer.decode(ids) for ids in found] != [*symbols.texts]:
        return None
    return np.concatenate(found)


# --------------------------------------------------------------------------------------------------
# solving


def solve_all(model, puzzles, runs, c):
    """Yield the row of every run."""
    tokens = puzzles.tokens
    given = puzzles.given
    n_blanks = int((~given).sum())
    _, first = runs[0]
    trunk = model.trunk = CountedTrunk(model)
    solve(model, tokens[:1], given[:1], first, c.seed)  # warm up
    for row, way in runs:
        with progress(total=n_blanks, desc=row['order'], unit='blank', leave=False) as bar:
            start = time.perf_counter()
            trunk.n_slots.zero_()
            idx = solve(model, tokens, given, way, c.seed, c.batch_size, bar)
            n_slots = int(trunk.n_slots)
            seconds = time.perf_counter() - start
        cost = {'slots': n_slots / len(tokens), 'seconds': seconds / len(tokens)}
        yield row | score(puzzles.counts(), puzzles.right(idx)) | cost


class CountedTrunk:
    """The trunk of a network, and a count of the slots that it has run.

    The padding of short rows is not counted. The count stays in place, where steps that are
    recorded add to it when they are run again."""

    def __init__(self, model):
        self.trunk = model.trunk
        self.n_slots = torch.zeros((), dtype=torch.long, device=model.device)

    def __call__(self, idx, order, slots, cache=None):
        n_content = slots.number.size(1)  # queries come after the content
        for visit in slots.visit.tensor_split([n_content], 1):
            if visit.size(1):  # on the device, without a wait for it
                self.n_slots += visit.diff(dim=1).count_nonzero() + len(visit)
        return self.trunk(idx, order, slots, cache)


def solve(model, tokens, given, way, seed, batch_size=250, bar=None):
    """Return puzzles tokens, given (n, N) whose blanks the model has written (n, N).

    Puzzle r is a function of (seed, r)."""
    n, N = tokens.shape
    orders = draw_orders(range(n), N, 1, seed, way.order)
    known = tokens.masked_fill(~given, 0)  # what a solver sees
    puzzles = Batch.of(known, orders, given, visits_of(tokens))
    seeds = [derive_seed(seed, r) for r in range(n)]
    written = []
    for canvas in Canvas.of_batch(puzzles, seeds, batch_size, model.device):
        fill(model, canvas, way, bar=bar)
        written.append(canvas.idx.cpu())
    return torch.cat(written)


def score(counts, right):
    """Return {'solved', 'right', each with its 'stderr' over puzzles} of blanks that count and
    tokens that are right, both (n, N). A row of which nothing counts is no puzzle."""
    is_puzzle = counts.any(1)
    total = counts[is_puzzle].sum(1).double()  # (n,)
    right = (right & counts)[is_puzzle].sum(1).double()  # (n,)
    n = len(total)
    solved = int((right == total).sum())
    share = float(right.sum() / total.sum())
    return {
        'solved': solved / n,
        'solved_stderr': share_error(solved, n),
        'right': share,
        # where the puzzles do not differ, as of shares of one number
        'right_stderr': ratio_error(right, total) or share_error(n * share, n),
        'puzzles': n,
    }


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
