"""Which blanks does each step reveal? Schedules, scores of adaptive policies, and Unmasking, which chooses by them."""

import itertools
import math
from dataclasses import dataclass
from inspect import signature

import torch

from anyorder.fast import split_rows
from anyorder.machine.devices import widest
from anyorder.orders import given_first
from anyorder.seeds import keys_of, uniform
from configurator import check_choice, nearest
from model import float32_or_better


def unmask_schedule(n_tokens, n_steps, kind='linear'):
    """How many of n_tokens blanks are revealed after each step: strictly increasing, the last is n_tokens.

    ends_k = max(floor(n (1 - m_k)), ends_{k-1} + 1),   m_k the share that is masked after step k, see mask_share

    n_steps >= 1; more steps than tokens are one token a step. Source: the deterministic schedule of AO's release."""
    check_schedule(n_steps, kind)
    n_steps, ends = min(n_steps, n_tokens), []
    for k in range(1, n_steps + 1):
        end = (
            n_tokens * k // n_steps
            if kind == 'linear'
            else int(n_tokens * (1 - mask_share(k, n_steps, kind)))
        )
        ends.append(n_tokens if k == n_steps else max(end, (ends[-1] if ends else 0) + 1))
    return ends


def binomial_schedule(u, n_steps, kind='linear'):
    """How many of n_tokens blanks are revealed after each step of masked-diffusion ancestral sampling (AO Lemma 1).
    From mask level t to s every blank stays with probability s / t. Equal in law: blank i is revealed when the level
    falls to a uniform number u_i of its own, so that ends_k = #{i: u_i >= m_k}. A step may reveal nothing.

    u  (n,) float64, on the host"""
    check_schedule(n_steps, kind)
    levels = torch.tensor(
        [mask_share(k, n_steps, kind) for k in range(1, n_steps)] + [0.0], dtype=torch.float64
    )
    return (len(u) - torch.searchsorted(u.sort().values, levels)).tolist()


def mask_share(k, n_steps, kind):
    """The share that is masked after step k of n_steps: 1 - k / n_steps (linear), cos(pi k / (2 n_steps)) (cosine)."""
    if kind == 'linear':
        return 1 - k / n_steps
    if (
        3 * k == 2 * n_steps
    ):  # the only rational cosine between 0 and 1 (Niven): rounded, it would change a floor
        return 0.5
    return math.cos(k / n_steps * math.pi / 2)


def check_schedule(n_steps, kind):
    if n_steps < 1:
        raise ValueError(f'n_steps must be at least 1, got {n_steps}')
    check_choice('schedule', kind, 'linear', 'cosine')


# scores of adaptive policies: functions of logits (n, V), float32 or better, with -inf for padding. The position with
# the largest score is written first, among equals a random one. (Kim et al. 2025, arXiv 2502.06768, sec. 4)


def top_prob(logits):
    """max_v p(v)"""
    return (logits.amax(-1) - logits.logsumexp(-1)).exp()


def margin(logits):
    """The largest p(v) less the second."""
    top = (logits.topk(min(2, logits.size(-1))).values - logits.logsumexp(-1, keepdim=True)).exp()
    return top[:, 0] - top[:, 1:].sum(-1)


def entropy(logits):
    """sum_v p(v) log p(v), in nats: minus the entropy"""
    logp = logits.log_softmax(-1)
    return torch.where(logp > -torch.inf, logp.exp() * logp, 0.0).sum(-1)


# another score is one function, named here
SCORES = {'top_prob': top_prob, 'margin': margin, 'entropy': entropy}
# and here, if it is a probability, which a threshold can be compared with
PROBABILITIES = ('top_prob', 'margin')


def confidence(logits, policy):
    """Scores (...,) of logits (..., V), in parts: there is no float32 copy of them all."""
    (parts,) = split_rows(logits.size(-1), logits.reshape(-1, logits.size(-1)))
    return torch.cat([SCORES[policy](float32_or_better(part)) for part in parts]).view(
        logits.shape[:-1]
    )


@dataclass(frozen=True)
class Unmasking:
    """Which blanks, and how many, each step reveals.

    n_steps      forward passes; more than there are blanks is one token a pass, with 'binomial' finer mask levels
    schedule     'linear', 'cosine', or a list of ends: numbers of blanks revealed after each step, in place of n_steps
    policy       'given': a step takes the next blanks of the order; a name of SCORES: it scores all and takes the best
    unmask       'fixed': the schedule says how many; 'binomial': every row draws its own numbers; 'lossless': as many
                 as one token a step would draw, see accept, in place of n_steps and schedule
    order_noise  scale of the Gumbel noise on the scores
    threshold    a probability: in place of the schedule, a step reveals every blank whose score without noise reaches
                 it, and at least one
    window       'lossless': visits that a pass runs behind the known ones
    block_length  the blanks in the given order are cut into blocks of so many. A policy chooses inside the first block
                 that has blanks, and each block has its share of the steps, one at least: semi-autoregressive
                 (Nie et al. 2025, arXiv 2502.09992)
    revise       rounds after the text is written: an eighth of its tokens, which fit the others least, is written
                 again, see revise.py. A round that changes nothing is the last one; a text whose tokens are each the
                 likeliest given others stays"""

    n_steps: int = 1
    schedule: str | list = 'linear'
    policy: str = 'given'
    unmask: str = 'fixed'
    order_noise: float = 0.0
    threshold: float | None = None
    window: int = 32
    block_length: int | None = None
    revise: int = 0
    adaptive = property(lambda self: self.policy in SCORES)
    lossless = property(lambda self: self.unmask == 'lossless')

    def __post_init__(self):
        if isinstance(self.schedule, str):
            check_schedule(self.n_steps, self.schedule)
        check_choice('policy', self.policy, 'given', *SCORES)
        check_choice('unmask', self.unmask, 'fixed', 'binomial', 'lossless')
        if type(self.window) is not int or self.window < 1:
            raise ValueError(f'window must be an integer from 1, got {self.window!r}')
        if self.lossless and self.adaptive:
            raise ValueError(
                f'lossless unmasking wants an order that is given: {self.policy} would have to score all '
                'blanks after each draft; choose another order, or unmask=fixed'
            )
        once = self.lossless or not isinstance(self.schedule, str)
        if type(self.revise) is not int or self.revise < 0 or once and self.revise:
            raise ValueError(
                f'revise is how many rounds, 0 with unmask=lossless or listed ends, got {self.revise!r}'
            )
        if not 0 <= self.order_noise < math.inf:
            raise ValueError(f'order_noise must be at least 0 and finite, got {self.order_noise}')
        if self.order_noise and not self.adaptive:
            raise ValueError(
                f'order_noise is for the policies {", ".join(SCORES)}, which have scores'
            )
        if self.threshold is not None:
            number = type(self.threshold) in (int, float) and 0 <= self.threshold <= 1
            if not number or self.policy not in PROBABILITIES or self.unmask != 'fixed':
                raise ValueError(
                    f'threshold must be a probability, for {" and ".join(PROBABILITIES)} with fixed '
                    f'unmasking, got {self.threshold} for {self.policy} with {self.unmask} unmasking'
                )
        if self.block_length is not None:
            if type(self.block_length) is not int or self.block_length < 1:
                raise ValueError(
                    f'block_length must be an integer from 1, got {self.block_length!r}'
                )
            if not self.adaptive or not isinstance(self.schedule, str):
                what = 'a schedule of ends' if self.adaptive else 'an order that is given'
                raise ValueError(
                    f'block_length is for the policies {", ".join(SCORES)}, which choose inside a block '
                    f'by a linear or cosine schedule, not for {what}'
                )

    def check_network(self, slots, n, scores=False):
        """Raises ValueError unless a network with this class of Slots can unmask, or score, n positions so."""
        if scores and self.order_noise:
            raise ValueError(
                'a text is scored in the order that follows from what is known, and noise draws another: '
                f'score with order_noise=0, got {self.order_noise}'
            )
        if scores and self.revise:
            raise ValueError('a text that is scored stays as it is: score with revise=0')
        if (self.block_length or 0) > n:
            raise ValueError(
                f'block_length must be at most the {n} positions of the text, got {self.block_length}'
            )
        if self.lossless and slots.masked_loss:
            raise ValueError(
                'lossless unmasking wants a decoder (attention=causal), which checks many drafts in one '
                'pass: others would need a pass for each; choose unmask=fixed or binomial'
            )

    def ends(self, n_blanks, seeds, *names):
        """(B, steps): how many of its n_blanks [B] a row has revealed after each step; a finished row repeats its last.
        With a threshold or 'lossless' it is one column, the most that a step may reveal. `names` tell the numbers of a
        binomial schedule from those of another round."""
        if self.threshold is not None or self.lossless:
            ends = [[n] for n in n_blanks]
        elif isinstance(self.schedule, str):
            ends = [list(self.ends_of(n, seed, *names)) for n, seed in zip(n_blanks, seeds)]
        else:
            steps = list(itertools.pairwise([0, *self.schedule]))
            if any(a >= b for a, b in steps) or (self.schedule[-1] if steps else 0) != max(
                n_blanks
            ):
                raise ValueError(
                    f'a schedule must increase strictly from above 0 to the {max(n_blanks)} blanks, '
                    f'got {list(self.schedule)[:8]} ...'
                )
            ends = [[min(end, n) for end in self.schedule] for n in n_blanks]
        width = max(len(row) for row in ends)
        padded = [row + [n] * (width - len(row)) for row, n in zip(ends, n_blanks)]
        return torch.tensor(padded, dtype=torch.long).view(len(ends), width)

    def ends_of(self, n, seed, *names):
        """Yields the ends of a row of n blanks, block after block."""
        length = self.block_length or max(n, 1)
        if self.unmask == 'binomial':
            u = uniform(keys_of([seed]), 'unmask', *names, torch.arange(n))
        for start in range(0, n, length):
            end = min(start + length, n)
            n_steps = max(1, self.n_steps * end // n - self.n_steps * start // n)
            if self.unmask == 'binomial':
                ends = binomial_schedule(u[start:end], n_steps, self.schedule)
            else:
                ends = unmask_schedule(end - start, n_steps, self.schedule)
            yield from (start + k for k in ends)

    def n_scored(self, part):
        """(B,) blanks that an adaptive step chooses among, on the host: the next ones in part.order."""
        if self.block_length is None:
            return part.n_blanks
        return torch.minimum(
            part.n_blanks, self.block_length - (part.known - part.first) % self.block_length
        )

    def score(self, logits, token):
        """Scores (m,) of logits (m, V); token (m,) stands in these blanks, where a text is scored."""
        return confidence(logits, self.policy)

    def choose(self, part, logits, n_new):
        """(n_new (B,), logits (m, V)) of the blanks that an adaptive step reveals. They become the next in part.order.

        logits   the blanks of n_scored, in the order of part.cells
        n_new    how many the schedule reveals, on the host"""
        n_scored, device = self.n_scored(part), logits.device
        row, column, visit = part.cells(n_scored)
        score = torch.full(
            (len(part), int(n_scored.max())), -torch.inf, dtype=widest(device), device=device
        )
        score[row, column] = self.score(logits, part.idx[row, part.order[row, visit]]).to(
            score.dtype
        )
        sure = None if self.threshold is None else score >= self.threshold
        if self.order_noise:
            n_steps = part.n_steps.to(device, non_blocking=True)  # (B,): a step's own noise
            u = uniform(part.keys[row], 'noise', n_steps[row], part.order[row, visit])  # (m,)
            score[row, column] += self.order_noise * gumbel_noise(u)
        best = score.argsort(dim=1, descending=True, stable=True)  # columns, the best first
        if sure is not None:
            best, n_sure, _ = given_first(best, sure)
            n_new = n_sure.cpu().clamp(min=1)
        part.order[row, visit] = part.order[row, visit - column + best[row, column]]
        start = (n_scored.cumsum(0) - n_scored).to(
            device, non_blocking=True
        )  # where a row is in logits
        row, column, _ = part.cells(n_new)
        return n_new, logits[start[row] + best[row, column]]

    def accept(self, part, row, column, position, token, n_targets):
        """(n_new (B,) on the host, which of the m cells these are) that a lossless step reveals. The pass draws a token
        for every cell, given the drafts before it. A draft is right if its new token is the same. The step reveals the
        right drafts before the first wrong one, and the new token in its place. A new token behind it is the next
        draft. If the pass read a wrong draft beside its position, the old draft stays. Writes part.idx, part.n_drafts.

        row, column, position, token   (m,) the cells that the pass ran and their tokens; n_targets (B,) cells a row
        Source: Guo and Ermon 2025, arXiv 2504.20456, who draft and check in two passes and accept by rejection"""
        B, N = part.order.shape
        old, was_draft = part.idx[row, position], column < part.n_drafts.to(token.device)[row]
        right, wrong = was_draft & (token == old), was_draft & (token != old)
        leading = torch.zeros(B, int(n_targets.max()), dtype=torch.long, device=token.device)
        leading[row, column] = right.long()
        n_right = leading.cumprod(1).sum(1)  # (B,)
        n_new = torch.minimum(n_right.cpu() + 1, n_targets)
        wrong_at = torch.full(
            (B, N + 2), N, device=token.device
        )  # column of a wrong draft, by position + 1
        wrong_at[row, position + 1] = torch.where(wrong, column, N)
        misled = torch.minimum(wrong_at[row, position], wrong_at[row, position + 2]) < column
        part.idx[row, position] = torch.where(
            misled & was_draft, old, token
        )  # misled: behind the first wrong one
        part.n_drafts, columns = n_targets - n_new, torch.arange(int(n_targets.max()))
        sure = (columns < n_new.unsqueeze(1))[columns < n_targets.unsqueeze(1)]  # (m,) on the host
        return n_new, sure.nonzero()[:, 0].to(token.device, non_blocking=True)


def gumbel_noise(u):
    """Standard Gumbel noise -log(-log u) of uniform numbers u in [0, 1); it is finite."""
    return -(-u.clamp(min=torch.finfo(u.dtype).tiny).log()).log()


def check_keywords(options, *functions):
    """Raise TypeError, as Python does, unless the first of the functions, the others or Unmasking has each option."""
    known = {*Unmasking.__dataclass_fields__} - {'policy'} | {
        n for f in functions for n in signature(f).parameters
    }
    for name in {*options} - known:
        raise TypeError(
            f'{functions[0].__name__}() has no option {name!r}{nearest(name, sorted(known))}; '
            f'help({functions[0].__qualname__}) says more'
        )
