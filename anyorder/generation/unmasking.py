"""Which blanks does each step reveal, and as what? Given, Reread, Adaptive and Lossless."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from anyorder.generation.schedules import (
    binomial_schedule,
    check_schedule,
    padded_ends,
    unmask_schedule,
)
from anyorder.generation.scores import PROBABILITIES, score_of
from anyorder.machine.devices import widest
from anyorder.names import is_own
from anyorder.seeds import keys_of, uniform
from model import float32_or_better

# fields that the plan reads, and no step
PLANNED = ('n_steps', 'schedule', 'binomial', 'revise', 'block_length', 'window')
REREAD = 2**28  # logits of a pass that rereads a text: 1 GiB in float32


class Unmasking:
    """A way to reveal blanks: what fill.one_round asks for."""

    adaptive = False  # whether the model, or a rule, chooses the order
    reorders = False  # whether a step does, so that a cache keeps no slot of a blank
    binomial = False  # whether every row draws how many blanks a step reveals
    revise = 0  # rounds, at most, in which what fits least is written again
    block_length = None  # of the blocks in which the model chooses
    noise = 0.0  # of the scores by which it does
    threshold = None  # of a rule that says itself how many blanks a step reveals
    draws_in_turn = True  # whether tokens of a step may be drawn one given the other
    by_noise = False  # whether tokens are drawn by noise, so that close laws draw alike
    asks_host = False  # whether a step does, so that no graph records it
    rereads = False  # whether a pass stands for one of each token, see Reread
    has_bound = False  # whether the probability of a text is known as a bound alone

    def first_round(self, network, canvas, drawing):
        """Return the Unmasking by which the blanks of a canvas are filled at first."""
        return self

    def begin(self, runner):
        """Return what the Runner keeps of its rows besides the cache, or None."""

    def ends(self, n_blanks, seeds, *names):
        """Return (B, steps) on the host: how many of n_blanks (B,) a row may have revealed after
        each step; by default any step may reveal all.

        [2, 5, 7] are steps of at most 2, 3 and 2 of 7 blanks; a finished row repeats its last
        number. What is drawn is a function of a row's seed and of names of the round."""
        return n_blanks.unsqueeze(1)

    @property
    def graph_key(self):
        """What decides, besides its size, which operations a step does."""
        read = {name: value for name, value in vars(self).items() if name not in PLANNED}
        return repr((type(self), read))

    def targets(self, part, first, n_new):
        """Return how many visits the network knows in passes that reveal n_new, and how many from
        `first` on are its targets, (passes, B) each on the host, as is `first`."""
        return first, n_new

    def run(self, runner, plan):
        """Make the step of a Plan. Return how many blanks (B,) it has revealed, on the host."""
        runner.launch(self.reveal)
        return plan.n_new

    def reveal(self, runner):
        """Run the pass of a step and write what it reveals. The host does not wait for it. Return
        the Cells, if a subclass wants them."""
        x, cells = runner.read()
        runner.draw(cells, runner.logits(x, cells))
        return cells


@dataclass(frozen=True)
class Given(Unmasking):
    """Reveal the next blanks of the order that is given.

    n_steps   forward passes; with as many as blanks one token a pass
    schedule  'linear', 'cosine', or a list of ends in place of n_steps
    binomial  every row draws its own numbers by the schedule
    revise    rounds of revision"""

    n_steps: int = 1
    schedule: str | list = 'linear'
    binomial: bool = False
    revise: int = 0

    def __post_init__(self):
        if isinstance(self.schedule, str):
            check_schedule(self.n_steps, self.schedule)
        elif self.binomial or self.revise:
            raise ValueError(
                'listed ends say how many blanks each step reveals: no row draws it, and no round '
                'of revise has as many'
            )
        if type(self.revise) is not int or self.revise < 0:
            raise ValueError(f'revise is how many rounds, from 0, got {self.revise}')

    def ends(self, n_blanks, seeds, *names):
        schedule = self.schedule
        if self.threshold is not None:
            return n_blanks.unsqueeze(1)
        if isinstance(schedule, str):
            rows = zip(n_blanks.tolist(), seeds)
            return padded_ends([self.ends_of_row(n, seed, *names) for n, seed in rows], n_blanks)
        most = int(n_blanks.max())
        ends = [0, *schedule]
        if ends != sorted({*ends}) or ends[-1] != most:
            raise ValueError(
                f'a schedule must increase strictly from above 0 to the {most} blanks, '
                f'got {schedule[:8]} ...'
            )
        return padded_ends([schedule], n_blanks)

    def ends_of_row(self, n, seed, *names):
        """Return the ends of a row of n blanks. A block has its share of the steps, or one."""
        length = self.block_length or max(n, 1)
        if self.binomial:
            u = uniform(keys_of([seed]), 'unmask', *names, torch.arange(n))  # on the host: no wait
        ends = []
        for start in range(0, n, length):
            end = min(start + length, n)
            # Steps to the end less steps to the start: over all blocks they add up to n_steps
            share = self.n_steps * end // n - self.n_steps * start // n
            n_steps = max(1, share)
            if self.binomial:
                in_block = binomial_schedule(u[start:end], n_steps, self.schedule)
            else:
                in_block = unmask_schedule(end - start, n_steps, self.schedule)
            ends += [start + k for k in in_block]
        return ends

    def first_round(self, network, canvas, drawing):
        # A text is reread if a decoder would write one token a step, and no pattern looks at each
        if not drawing.forced or network.slots_class.masked_loss or canvas.limits.joint:
            return self
        most = int(canvas.n_blanks.max())
        has_steps = isinstance(self.schedule, str) and not self.binomial
        if self.adaptive or not has_steps or self.n_steps < most:
            return self
        n_logits = len(canvas) * network.config.vocab_size  # of a token in each row
        window = max(1, REREAD // n_logits)
        return Reread(schedule=[*range(window, most, window), most])


@dataclass(frozen=True)
class Reread(Given):
    """Score the text that stands in the blanks, under the law of one token a step.

    A pass reads all tokens to the next one of the listed ends, and each is answered given all
    before it: a text that is there already is a draft that is right. A decoder alone has the law
    so."""

    rereads = True

    def targets(self, part, first, n_new):
        return first + (n_new - 1).clamp(min=0), n_new

    def reveal(self, runner):
        cells = super().reveal(runner)
        n_done = cells.visit - runner.numbers.n_given[cells.row]
        cells.write(runner.part.step, cells.position, n_done)


@dataclass(frozen=True)
class Adaptive(Given):
    """Score the blanks, and reveal the best. Among equals the given order decides.

    score         a name of SCORES
    noise         scale of the Gumbel noise on the scores
    threshold     in place of the schedule, a step reveals every blank whose score without noise
                  reaches it, and at least one; other rules are in rules.py
    block_length  only the first block of so many that has blanks is scored. A block has its share
                  of the steps, one at least (Nie et al. 2025, arXiv 2502.09992)"""

    score: str = 'top_prob'
    noise: float = 0.0
    threshold: float | None = None
    block_length: int | None = None
    adaptive = True
    reorders = True
    form = 'SCORE/BLOCK_LENGTH:THRESHOLD+NOISE'  # of the text that names it

    def __post_init__(self):
        super().__post_init__()
        score_of(self.score)  # must be there
        if self.threshold is not None and (self.binomial or not self.has_threshold):
            raise ValueError(
                f'{self.form} says by its threshold how many blanks a step reveals: without '
                'binomial unmasking, and by a probability of top_prob, margin, klass or a score '
                f'of a file, or the number of another rule, got {self.threshold} for {self.score}'
            )
        if self.block_length is not None:
            check_block_length(self.block_length, self.schedule)

    @property
    def asks_host(self):
        return is_own(self.score)

    @property
    def has_threshold(self):
        """Whether its score may reach its threshold."""
        return self.threshold <= 1 and (self.score in PROBABILITIES or is_own(self.score))

    def targets(self, part, first, n_new):
        n_targets = part.n_visits - first
        if self.block_length is not None:
            n_done = (first - part.n_given) % self.block_length  # of the block
            n_targets = n_targets.clamp(max=self.block_length - n_done)
        return first, n_targets

    def run(self, runner, plan):
        if self.threshold is None:
            return super().run(runner, plan)
        choice = runner.launch(self.look)
        n_new = choice.n_new.cpu()  # waits for the device
        runner.widen(n_new)
        runner.launch(self.draw, choice)
        return n_new

    def reveal(self, runner):
        self.draw(runner, self.look(runner))

    def score_blanks(self, runner, cells, logits):
        """Return scores (m,) of the Cells, whose logits are (m, V)."""
        return score_of(self.score)(float32_or_better(logits))

    def sure(self, ranked):
        """Return which of the scores (B, targets), the best first and -inf behind those of a row,
        say that their blank is revealed: all of them, and at least the best."""
        return ranked >= self.threshold

    def choose(self, score, rank, numbers):
        """Return (columns (B, targets), the best first, and how many of them (B,) are revealed).

        score  (B, targets) of the blanks, -inf after those of a row
        rank   the same with noise, by which they are ordered, but the sure ones before all others

        One row of n_new 2 or, with a threshold of .7, of two sure ones:

            score      .1   .7   .2   .9
            columns    3    1    2    0"""
        columns = rank.argsort(dim=1, descending=True, stable=True)
        if self.threshold is None:
            return columns, numbers.n_new
        is_sure = self.sure(score.gather(1, columns))
        columns = columns.gather(1, is_sure.int().argsort(dim=1, descending=True, stable=True))
        return columns, is_sure.sum(1).clamp(min=1).minimum(numbers.n_targets)

    def look(self, runner):
        """Run the pass of a step and choose its blanks, which become the next ones in part.order.
        Return a Choice."""
        x, cells = runner.read()
        found, logits = runner.of_each(self.score_blanks, x, cells)
        found = runner.part.limits.compared(found, cells).to(widest(x.device))
        if self.threshold is not None and runner.workspace.graphs is not None:
            logits = None  # the graph of each size would keep them for the next launch

        score = found.new_full((len(runner.part), runner.size.targets), -torch.inf)
        cells.write(score, cells.column, found)
        rank = score
        if self.noise:
            keys = runner.part.keys[cells.row]
            u = uniform(keys, 'noise', runner.numbers.step[cells.row], cells.position)  # (m,)
            rank = score.clone()
            cells.write(rank, cells.column, found + self.noise * gumbel_of(u))
        columns, n_new = self.choose(score, rank, runner.numbers)
        runner.put_first(cells, columns)
        return Choice(x, logits, cells.start.unsqueeze(1) + columns, n_new)

    def draw(self, runner, choice):
        """Draw the tokens of the blanks that are chosen."""
        cells = runner.cells(choice.n_new, runner.size.reveals)
        at = choice.best[cells.row, cells.column]
        if choice.logits is None:
            logits = runner.logits(choice.x[at], cells)
        else:
            logits = choice.logits[at]
        runner.draw(cells, logits)


class Choice(NamedTuple):
    """Which blanks a step reveals.

    x       (m, C) the hidden states of all that were scored
    logits  (m, V) theirs, or None where they are many
    best    (B, targets) the numbers of those of a row among these, the best first
    n_new   (B,) how many of them are revealed"""

    x: torch.Tensor
    logits: torch.Tensor | None
    best: torch.Tensor
    n_new: torch.Tensor


@dataclass(frozen=True)
class Lossless(Unmasking):
    """Draft a window of blanks of the given order, and reveal what one token a step would draw.

    Guo and Ermon 2025, arXiv 2504.20456, draft and check in two passes, by rejection."""

    window: int = 32
    draws_in_turn = False
    by_noise = True

    def __post_init__(self):
        if type(self.window) is not int or not 1 <= self.window < 2**31:
            raise ValueError(f'window must be an integer from 1, below 2^31, got {self.window!r}')

    def targets(self, part, first, n_new):
        return first + part.n_drafts, n_new.clamp(max=self.window)

    def run(self, runner, plan):
        n_new = runner.launch(self.reveal).cpu()  # the only wait for the device
        part = runner.part
        part.n_drafts = part.n_blanks.clamp(max=self.window) - n_new
        runner.keep_slots(part.n_known + n_new)  # slots after these read drafts
        return n_new

    def reveal(self, runner):
        x, cells = runner.read()
        logits = runner.logits(x, cells)
        token = runner.tokens(cells, logits)
        n_new = self.accept(runner, cells, token)
        new, number = cells.those(cells.column < n_new[cells.row], runner.part.is_exact)
        runner.write(new, token[number], logits[number])
        return n_new

    def accept(self, runner, cells, token):
        """Say how many cells of the pass of a Runner are revealed. Writes part.idx.

        The pass drew a token for every cell, given the drafts before it. A draft is right if this
        is the same. The step reveals the right drafts before the first wrong one, and the new token
        in its place. New tokens after it are the next drafts, but beside a wrong draft the old one
        stays. One row, from left to right:

            column     0      1      2      3      4
            draft      a      b      c      d      -      of the pass before: four
            token      a      x      y      d      e      that this pass drew
                     right  wrong  wrong  right
            idx        a      x    | c      d      e      n_new 2; c stays: beside it b was wrong

        Cells have new tokens (m,). Returns n_new (B,)."""
        part = runner.part
        numbers = runner.numbers
        row = cells.row
        column = cells.column
        draft = cells.read(part.idx)
        n_drafts = numbers.known - numbers.first
        was_draft = column < n_drafts[row]
        right = was_draft & (token == draft)
        wrong = was_draft & ~right

        # Up to the first token that is no right draft
        ends = torch.where(right, numbers.n_targets[row], column + 1)
        n_new = numbers.n_targets.scatter_reduce(0, row, ends, 'amin')

        # Keep a draft beside which the pass read a wrong one, of a column before its own
        # (by position + 1, so that both ends have neighbours: the column if wrong, else N)
        B, N = part.order.shape
        wrong_at = token.new_full((B, N + 2), N)
        cells.write(wrong_at, cells.position + 1, torch.where(wrong, column, N))
        beside = torch.minimum(wrong_at[row, cells.position], wrong_at[row, cells.position + 2])
        misled = beside < column
        cells.write(part.idx, cells.position, torch.where(misled & was_draft, draft, token))
        return n_new


# The checks of fields. Their texts name the options of commands


def check_block_length(length, schedule='linear'):
    if type(length) is not int or length < 1 or not isinstance(schedule, str):
        raise ValueError(
            'block_length must be a whole number from 1, and is not for a schedule of ends, got '
            f'{length}'
        )


def gumbel_of(u):
    """Return standard Gumbel noise -log(-log u), finite, of uniform numbers u in [0, 1)."""
    return -(-u.clamp(min=torch.finfo(u.dtype).tiny).log()).log()
