"""Which blanks does each step reveal, and as what? Given, Adaptive and Lossless."""

import math
from dataclasses import dataclass

import torch

from anyorder.fast import split_rows
from anyorder.generation.schedules import check_schedule, scheduled_ends, unlimited_ends
from anyorder.machine.devices import widest
from anyorder.orders import given_first
from anyorder.seeds import uniform
from configurator import check_choice
from model import float32_or_better


class Unmasking:
    """A way to reveal blanks: what fill.write asks for."""

    adaptive = False  # whether the model chooses the order
    binomial = False  # whether every row draws how many blanks a step reveals
    block_length = None  # of the blocks in which the model chooses
    rewrites = False  # whether tokens may become others: drafts, or what is revised

    def check_network(self, slots, n, scores=False):
        """Raise ValueError unless such a network can write, or score, n positions so."""

    def rounds_of(self, network, canvas):
        """Yield the Unmasking of each round, in which fill.write fills all blanks of the canvas.

        Revised alone has more than one: it blanks a part again."""
        yield self

    def ends(self, n_blanks, seeds, *names):
        """Return (B, steps) on the host: how many blanks a row may have revealed after each step.

        [2, 5, 7] are steps of at most 2, 3 and 2 of [7] n_blanks; a finished row repeats its last
        number. What is drawn is a function of a row's seed and of names of the round."""
        raise NotImplementedError

    def reveal(self, passes, part, n_new):
        """Make one pass by the Passes, and say what is revealed of the rows of the Canvas `part`.

        What is revealed is left as the next visits in part.order: fill.write counts on it.

        n_new    (B,) on the host: the most that the step may reveal of each row
        returns  n_new (B,) on the host; the cells (row, position), (m,) each, that are revealed;
                 their tokens (m,); their logits (m, V), or None without passes.with_logprob"""
        raise NotImplementedError


@dataclass(frozen=True)
class Given(Unmasking):
    """Reveal the next blanks of the order that is given.

    n_steps   forward passes; with as many as blanks one token a pass
    schedule  'linear', 'cosine', or a list of ends in place of n_steps
    binomial  every row draws its own numbers by the schedule"""

    n_steps: int = 1
    schedule: str | list = 'linear'
    binomial: bool = False

    def __post_init__(self):
        check_steps(self)

    def ends(self, n_blanks, seeds, *names):
        return scheduled_ends(self, n_blanks, seeds, *names)

    def reveal(self, passes, part, n_new):
        (row, _, visit), logits = passes.run(part, n_new)
        position = part.order[row, visit]
        token = passes.draw(part, row, position, logits)
        return n_new, (row, position), token, logits


@dataclass(frozen=True)
class Adaptive(Unmasking):
    """Score the blanks, and reveal the best. Among equals the given order decides.

    score         a name of SCORES
    n_steps, schedule, binomial: as in Given
    noise         scale of the Gumbel noise on the scores
    threshold     in place of the schedule, a step reveals every blank whose score without noise
                  reaches it, and at least one
    block_length  only the first block of so many that has blanks is scored. A block has its share
                  of the steps, one at least (Nie et al. 2025, arXiv 2502.09992)"""

    score: str
    n_steps: int = 1
    schedule: str | list = 'linear'
    binomial: bool = False
    noise: float = 0.0
    threshold: float | None = None
    block_length: int | None = None
    adaptive = True

    def __post_init__(self):
        check_steps(self)
        check_choice('score', self.score, *SCORES)
        check_noise(self.noise)
        if self.threshold is not None:
            unmask = 'binomial' if self.binomial else 'fixed'
            check_threshold(self.threshold, self.score, unmask)
        if self.block_length is not None:
            check_block_length(self.block_length)
            if not isinstance(self.schedule, str):
                refuse_blocks('a schedule of ends')

    def check_network(self, slots, n, scores=False):
        if scores and self.noise:
            raise ValueError(
                'a text is scored in the order that follows from what is known, and noise draws '
                f'another: score without it, got order_noise={self.noise}'
            )
        if self.block_length is not None and self.block_length > n:
            raise ValueError(
                f'block_length must be at most the {n} positions of the text, '
                f'got {self.block_length}'
            )

    def ends(self, n_blanks, seeds, *names):
        if self.threshold is not None:
            return unlimited_ends(n_blanks)
        return scheduled_ends(self, n_blanks, seeds, *names)

    def reveal(self, passes, part, n_new):
        _, logits = passes.run(part, self.n_scored(part))
        n_new, logits = self.choose(part, logits, n_new)
        passes.forget_target(part)  # the next visit is another than the pass was told
        row, _, visit = part.cells(n_new)
        position = part.order[row, visit]
        token = passes.draw(part, row, position, logits)
        return n_new, (row, position), token, logits

    def n_scored(self, part):
        """Return (B,): among how many next blanks a step chooses."""
        if self.block_length is None:
            return part.n_blanks
        n_done = (part.known - part.n_prompt) % self.block_length  # of the block
        return torch.minimum(part.n_blanks, self.block_length - n_done)

    def score_blanks(self, logits, token):
        """Return scores (m,) of logits (m, V); an oracle looks at tokens (m,) that stand there."""
        return confidence(logits, self.score)

    def choose(self, part, logits, n_new):
        """Choose the blanks of a step, which become the next ones in part.order.

        One row of k known visits, n_scored 4 and n_new 2:

            visit      k    k+1  k+2  k+3
            column     0    1    2    3
            order      p    q    r    s       as it is given
            score      .1   .7   .2   .9
            best       3    1    2    0       columns, the largest score first
            order      s    q  | r    p       as it is left: s and q are revealed

        Takes logits (m, V) of the n_scored blanks and n_new (B,) of the schedule. Returns n_new
        (B,) and the logits of these blanks."""
        n_scored = self.n_scored(part)
        device = logits.device
        row, column, visit = part.cells(n_scored)
        position = part.order[row, visit]

        # A table of the scores, -inf after the blanks of a row
        size = (len(part), int(n_scored.max()))
        score = torch.full(size, -torch.inf, dtype=widest(device), device=device)  # (B, most)
        score[row, column] = self.score_blanks(logits, part.idx[row, position]).to(score.dtype)
        is_sure = None
        if self.threshold is not None:
            is_sure = score >= self.threshold
        if self.noise:
            n_steps = part.n_steps.to(device, non_blocking=True)  # (B,)
            u = uniform(part.keys[row], 'noise', n_steps[row], position)  # (m,)
            score[row, column] += self.noise * gumbel_noise(u)

        # The best come first, and before all others the sure ones
        best = score.argsort(dim=1, descending=True, stable=True)  # (B, most) columns
        if is_sure is not None:
            best, n_sure, _ = given_first(best, is_sure)
            n_new = n_sure.cpu().clamp(min=1)  # waits for the device
        n_known = visit - column  # (m,) of the row of each cell
        part.order[row, visit] = part.order[row, n_known + best[row, column]]

        # The logits stand where they were, those of row r from starts[r] on
        starts = n_scored.cumsum(0) - n_scored  # (B,)
        starts = starts.to(device, non_blocking=True)
        row, column, _ = part.cells(n_new)
        revealed = starts[row] + best[row, column]
        return n_new, logits[revealed]


@dataclass(frozen=True)
class Lossless(Unmasking):
    """Draft a window of blanks of the given order, and reveal what one token a step would draw.

    Guo and Ermon 2025, arXiv 2504.20456, draft and check in two passes, by rejection."""

    window: int = 32
    rewrites = True

    def __post_init__(self):
        if type(self.window) is not int or self.window < 1:
            raise ValueError(f'window must be an integer from 1, got {self.window!r}')

    def check_network(self, slots, n, scores=False):
        if slots.masked_loss:
            raise ValueError(
                'lossless unmasking wants a decoder (attention=causal), which checks many drafts '
                'in one pass: others would need a pass for each; choose unmask=fixed or binomial'
            )

    def ends(self, n_blanks, seeds, *names):
        return unlimited_ends(n_blanks)

    def reveal(self, passes, part, n_new):
        n_targets = n_new.clamp(max=self.window)
        (row, column, visit), logits = passes.run(part, n_targets)
        position = part.order[row, visit]
        token = passes.draw_by_noise(part, n_targets, row, position, logits)
        n_new, revealed = self.accept(part, row, column, position, token, n_targets)
        passes.keep_slots(part.known + n_new)  # slots after these read drafts
        cells = row[revealed], position[revealed]
        logits = logits[revealed] if passes.with_logprob else None
        return n_new, cells, token[revealed], logits

    def accept(self, part, row, column, position, token, n_targets):
        """Say which cells of a pass are revealed. Writes part.idx and part.n_drafts.

        The pass drew a token for every cell, given the drafts before it. A draft is right if this
        is the same. The step reveals the right drafts before the first wrong one, and the new token
        in its place. New tokens after it are the next drafts, but beside a wrong draft the old one
        stays. One row, from left to right:

            column     0      1      2      3      4
            draft      a      b      c      d      -      of the pass before: four
            token      a      x      y      d      e      that this pass drew
                     right  wrong  wrong  right
            idx        a      x    | c      d      e      n_new 2; c stays: beside it b was wrong

        Cells (row, column, position) and their new tokens are (m,) each, n_targets (B,) of each
        row. Returns n_new (B,) and which cells are revealed."""
        B, N = part.order.shape
        most = int(n_targets.max())
        device = token.device

        # Compare the tokens with the drafts
        draft = part.idx[row, position]
        was_draft = column < part.n_drafts.to(device)[row]
        right = was_draft & (token == draft)
        wrong = was_draft & (token != draft)

        # Count the right drafts before the first wrong one
        leading = torch.zeros(B, most, dtype=torch.long, device=device)
        leading[row, column] = right.long()
        n_right = leading.cumprod(1).sum(1)  # (B,)
        n_new = torch.minimum(n_right.cpu() + 1, n_targets)  # the only wait for the device

        # Keep a draft beside which the pass read a wrong one, of a column before its own
        # (by position + 1, so that both ends have neighbours: the column if wrong, else N)
        wrong_at = torch.full((B, N + 2), N, device=device)
        wrong_at[row, position + 1] = torch.where(wrong, column, N)
        beside = torch.minimum(wrong_at[row, position], wrong_at[row, position + 2])
        misled = beside < column
        part.idx[row, position] = torch.where(misled & was_draft, draft, token)
        part.n_drafts = n_targets - n_new

        # Of the m cells, the first n_new of each row
        columns = torch.arange(most)
        is_target = columns < n_targets.unsqueeze(1)  # (B, most)
        is_new = columns < n_new.unsqueeze(1)
        revealed = is_new[is_target].nonzero()[:, 0]
        return n_new, revealed.to(device, non_blocking=True)


# The checks of fields. Their texts name the options of commands


def check_steps(unmasking):
    if isinstance(unmasking.schedule, str):
        check_schedule(unmasking.n_steps, unmasking.schedule)
    elif unmasking.binomial:
        raise ValueError('listed ends say how many blanks each step reveals: no row draws it')


def check_noise(noise):
    if not 0 <= noise < math.inf:
        raise ValueError(f'order_noise must be at least 0 and finite, got {noise}')


def check_threshold(threshold, policy, unmask):
    is_number = type(threshold) in (int, float) and 0 <= threshold <= 1
    if not is_number or policy not in PROBABILITIES or unmask != 'fixed':
        raise ValueError(
            f'threshold must be a probability, for {" and ".join(PROBABILITIES)} with fixed '
            f'unmasking, got {threshold} for {policy} with {unmask} unmasking'
        )


def check_block_length(length):
    if type(length) is not int or length < 1:
        raise ValueError(f'block_length must be an integer from 1, got {length!r}')


def refuse_blocks(what):
    raise ValueError(
        f'block_length is for the policies {", ".join(SCORES)}, which choose inside a block '
        f'by a linear or cosine schedule, not for {what}'
    )


# The scores of Adaptive, of logits (n, V), float32 or better, with -inf for padding
# (Kim et al. 2025, arXiv 2502.06768, sec. 4)


def top_prob(logits):
    """max_v p(v)"""
    return (logits.amax(-1) - logits.logsumexp(-1)).exp()


def margin(logits):
    """The largest p(v) less the second."""
    n = min(2, logits.size(-1))
    logp = logits.topk(n).values - logits.logsumexp(-1, keepdim=True)
    top = logp.exp()
    return top[:, 0] - top[:, 1:].sum(-1)


def negative_entropy(logits):
    """sum_v p(v) log p(v), in nats: minus the entropy"""
    logp = logits.log_softmax(-1)
    return torch.where(logp > -torch.inf, logp.exp() * logp, 0.0).sum(-1)


# another score is one function, named here
SCORES = {'top_prob': top_prob, 'margin': margin, 'entropy': negative_entropy}
# and here, if it is from 0 to 1, so that a threshold can be compared with it
PROBABILITIES = ('top_prob', 'margin')


def confidence(logits, score):
    """Return scores (...,) of logits (..., V), in parts: no float32 copy of them all."""
    V = logits.size(-1)
    parts = split_rows(V, logits.reshape(-1, V))[0]  # of the one tensor
    found = [SCORES[score](float32_or_better(part)) for part in parts]
    return torch.cat(found).view(logits.shape[:-1])


def gumbel_noise(u):
    """Return standard Gumbel noise -log(-log u), finite, of uniform numbers u in [0, 1)."""
    return -(-u.clamp(min=torch.finfo(u.dtype).tiny).log()).log()
