"""By which other rules of the literature does a step choose its blanks? Each is an Adaptive.

A rule says which scores the blanks have, which of them a step reveals, or both. A text then has an
exact probability: what is known says which blanks each step chooses."""

import itertools
import math
from dataclasses import dataclass
from functools import partial

import torch

from anyorder.generation.drawing import token_logprob
from anyorder.generation.plan import Cells
from anyorder.generation.schedules import padded_ends
from anyorder.generation.unmasking import Adaptive, Given, Unmasking, check_block_length
from anyorder.machine.devices import widest
from anyorder.seeds import hashed, uniform
from model import float32_or_better

DRAWN = hashed('drawn')  # the name of the numbers by which Drawn draws all blanks
N_STABLE = 2  # comparisons with the step before, after which a law counts as stable


class Rule(Adaptive):
    """An Adaptive that is named as a whole, without noise.

    threshold  the number behind the colon of its name
    form       what its name looks like, for messages
    meant      what the number is, and which ones are allowed"""

    form = ''
    meant = ''

    def __post_init__(self):
        super().__post_init__()
        if self.noise:
            raise ValueError(f'order_noise is not for {self.form}: got {self.noise}')

    def check_threshold(self, unmask):
        is_number = type(self.threshold) in (int, float) and self.allows(self.threshold)
        if not is_number or unmask != 'fixed':
            raise ValueError(
                f'{self.form} wants {self.meant} and fixed unmasking, got {self.threshold} with '
                f'{unmask} unmasking'
            )

    def allows(self, number):
        """Whether the threshold may be this number."""
        return 0 <= number < math.inf


@dataclass(frozen=True)
class Factor(Rule):
    """Reveal the n surest blanks, n as large as their number allows.

        largest n with (n + 1) (1 - c_n) <= factor,   c_1 >= c_2 >= ... the largest probabilities

    and at least one: the more blanks are revealed together, the surer all of them must be.
    Source: Wu et al. 2025, Fast-dLLM, arXiv 2505.22618."""

    score: str = 'top_prob'
    threshold: float = 1.0
    form = 'factor/BLOCK_LENGTH:FACTOR'
    meant = 'a factor above 0'

    def allows(self, number):
        return 0 < number < math.inf

    def sure(self, score):
        ranked, best = score.sort(dim=1, descending=True, stable=True)
        n = torch.arange(1, score.size(1) + 1, device=score.device)
        return at_first(best, (n + 1) * (1 - ranked) <= self.threshold)


@dataclass(frozen=True)
class EntropyBounded(Rule):
    """Reveal the surest blanks whose joint law is near to the product of their laws.

        largest k with H_1 + ... + H_k - max_i H_i <= gamma,   H_1 <= H_2 <= ... the entropies

    in nats. The left side bounds their mutual information. With gamma 0 that is one blank, and all
    whose entropy is 0.
    Source: Ben-Hamu et al. 2025, arXiv 2505.24857."""

    score: str = 'entropy'
    threshold: float = 0.1
    form = 'eb/BLOCK_LENGTH:GAMMA'
    meant = 'a bound of at least 0 nats'

    def sure(self, score):
        ranked, best = score.sort(dim=1, descending=True, stable=True)
        entropy = -ranked
        before = entropy.cumsum(1) - entropy  # of all but the last, which has the largest
        return at_first(best, before <= self.threshold)


def at_first(best, holds):
    """Return by column what holds (B, targets) of the columns best (B, targets), the best first."""
    return torch.zeros_like(holds).scatter(1, best, holds)


@dataclass(frozen=True)
class Klass(Rule):
    """Reveal all blanks that are sure and stable; where there is none, the surest.

        c_i > threshold   and   KL(p_i now || p_i a step before) < kl_limit,   twice in a row

    c_i is the largest probability. A blank is compared while its block is looked at, from its
    second step on. The tokens that were revealed fix all laws, so that a text has a probability.
    Source: Kim et al. 2025, KLASS, arXiv 2511.05664."""

    score: str = 'top_prob'
    threshold: float = 0.9
    kl_limit: float = 0.01
    form = 'klass/BLOCK_LENGTH:CONFIDENCE'
    meant = 'a confidence from 0 to 1'

    def allows(self, number):
        return 0 <= number <= 1

    @property
    def graph_key(self):
        return f'{super().graph_key} {self.block_length}'  # by which the laws have their size

    def begin(self, passes, part):
        return Laws(passes.workspace, part, self.block_length)

    def score_blanks(self, passes, part, bounds, cells, logits):
        logp = float32_or_better(logits).log_softmax(-1)
        position = part.order[cells.row, cells.visit]
        step = bounds.n_steps[cells.row]
        n_stable = passes.state.compare(cells.row, position, step, logp, self.kl_limit)
        sure = logp.amax(-1).exp()
        is_ready = (sure > self.threshold) & (n_stable >= N_STABLE)
        return sure + is_ready

    def sure(self, score):
        return score > 1


class Laws:
    """What Klass keeps from step to step, on the device: the last law of each blank.

    logp      (B, L, V) its logarithm, float32 or better, at the blank's place in its block of L
    place     (B, N) that place, by position
    n_stable  (B, N) how many comparisons in a row were below the limit
    step      (B, N) the step that looked at the blank last, -1 before the first"""

    def __init__(self, workspace, part, block_length):
        B, N = part.order.shape
        device = part.order.device
        shape = block_length or workspace.n_positions, workspace.vocab_size
        self.logp = workspace.table('laws', shape, workspace.law_dtype, device)[:B]
        shape = (workspace.n_positions,)
        tables = []
        for name in ('place', 'n_stable', 'step'):
            tables.append(workspace.table(name, shape, torch.long, device)[:B, :N])
        self.place, self.n_stable, self.step = tables
        n_prompt = part.n_prompt.to(device, non_blocking=True).unsqueeze(1)
        place = (torch.arange(N, device=device) - n_prompt) % self.logp.size(1)
        self.place.scatter_(1, part.order, place)
        self.step.fill_(-1)

    def compare(self, row, position, step, logp, limit):
        """Return how many comparisons (m,) in a row are below the limit by now, and keep the laws.

        row, position, step  (m,) of blanks; one that repeats is compared once
        logp                 (m, V)"""
        place = self.place[row, position]
        last = self.step[row, position]
        kept = self.n_stable[row, position]
        change = logp - self.logp[row, place]
        terms = torch.where(logp > -torch.inf, logp.exp() * change, 0.0)
        is_below = (terms.sum(-1) < limit) & (last >= 0)
        n_stable = torch.where(is_below, kept + 1, 0)
        n_stable = torch.where(last == step, kept, n_stable)
        self.logp[row, place] = logp.to(self.logp.dtype)
        self.n_stable[row, position] = n_stable
        self.step[row, position] = step
        return n_stable

    def keep(self, rows):
        """Keep only these rows (ascending, on the host), in place."""
        for name, table in vars(self).items():
            for new, old in enumerate(rows.tolist()):
                if new < old:
                    table[new] = table[old]
            setattr(self, name, table[: len(rows)])


@dataclass(frozen=True)
class PcSampler(Rule):
    """Reveal first what is sure, stands early and is rare, as many blanks as the schedule says.

        score_i = exp(-decay i) min(most, -c_i log f(v_i))

    c_i is the largest probability, of token v_i; f(v) the share of v in the training set, in which
    each token counts once more than it stands there. i is the position: a block that begins
    elsewhere has all its scores times the same factor. The logarithm of the score is as good.
    Source: Huang et al. 2025, PC-Sampler, arXiv 2508.13021."""

    score: str = 'top_prob'
    decay: float = 0.25
    most: float = 10.0
    form = 'pc_sampler/BLOCK_LENGTH'
    meant = 'no number: n_steps says how many'

    def allows(self, number):
        return False

    def score_blanks(self, passes, part, bounds, cells, logits):
        counts = getattr(passes.network, 'counts', None)
        check_counts(self, counts)
        logits = float32_or_better(logits)
        likeliest = logits.max(-1)
        sure = (likeliest.values - logits.logsumexp(-1)).exp()
        weight = (counts + 1).to(widest(counts.device))
        rarity = weight.sum().log() - weight.log()  # -log f
        nats = (sure * rarity[likeliest.indices]).clamp(max=self.most)
        return nats.log() - self.decay * part.order[cells.row, cells.visit]


@dataclass(frozen=True)
class Drawn(Rule):
    """Draw all blanks, and reveal those whose drawn token is the likeliest, by the schedule.

    This is what LLaDA does at a temperature above 0 (Nie et al. 2025, arXiv 2502.09992). Which
    blanks are revealed depends on tokens that are thrown away, so that a text has a bound alone.
    With q_i the law by which X_i is drawn, p_i the model's, the step that reveals S as a has

        P(S, a) = prod_{i in S} q_i(a_i)  prod_{j not in S} P(p_j(X_j) < min_{i in S} p_i(a_i))

    where among equals the earlier visit wins. A text is scored along one way to write it, in which
    the surest true tokens come first: its probability is at least that of this way."""

    score: str = 'top_prob'
    form = 'drawn/BLOCK_LENGTH'
    meant = 'no number: n_steps says how many'
    has_bound = True
    draws_in_turn = False

    def allows(self, number):
        return False

    def check_network(self, slots, n, scores=False):
        super().check_network(slots, n, scores)
        if scores:
            raise ValueError(
                'drawn has no probability of a text but a bound, by eval_ppl.py --orders=drawn: '
                'choose another order to score, as top_prob'
            )

    def score_blanks(self, passes, part, bounds, cells, logits):
        position = part.order[cells.row, cells.visit]
        if passes.drawing.scores:
            return token_logprob(logits, part.idx[cells.row, position])
        u = uniform(part.keys[cells.row], DRAWN, bounds.n_steps[cells.row], position)
        part.u[cells.row, position] = u  # by which a blank that is revealed is drawn once more
        return token_logprob(logits, passes.drawing.tokens(logits, u))

    def reveal(self, passes, part, bounds, size):
        choice = self.choose(passes, part, bounds, size)
        self.draw(passes, part, bounds, size, choice)
        if not passes.drawing.scores or not passes.with_logprob:
            return

        # The blanks as they were scored, which now have other visits
        B, T = part.order.shape
        cells = Cells.of(bounds.first, bounds.n_targets, size.targets, T, size.all_targets)
        rank = choice.best.argsort(1)[cells.row, cells.column]  # (m,) the best have 0
        cells = cells._replace(visit=(bounds.first[cells.row] + rank).clamp(max=T - 1))

        # The last one that is revealed, and whether the others lose against it
        score_some = partial(self.score_blanks, passes, part, bounds)
        score, _ = passes.score(score_some, part, bounds, choice.x, cells)
        last = (bounds.n_new - 1).clamp(min=0)
        row = torch.arange(B, device=rank.device)
        place = choice.best[row, last]  # (B,) its column
        least = score[(choice.start + place).clamp(max=len(score) - 1)]
        lose_some = partial(self.losing, passes, part, place, least)
        losing, _ = passes.score(lose_some, part, bounds, choice.x, cells)
        losing = torch.where(rank > last[cells.row], losing, 0.0)
        table = losing.new_zeros(B, size.targets)
        cells.write(table, cells.column, losing)
        nats = torch.where(bounds.n_new > 0, table.sum(1), 0.0)
        position = part.order[row, (bounds.first + last).clamp(max=T - 1)]
        part.logprob[row, position] += nats.to(part.logprob.dtype)

    def losing(self, passes, part, place, least, cells, logits):
        """Return log P (m,) that the drawn tokens of cells lose against the last revealed ones.

        place, least  (B,) the columns of these, and their log p"""
        own = float32_or_better(logits)
        logp = own - own.logsumexp(-1, keepdim=True)  # as token_logprob: equals stay equal
        least = least[cells.row].unsqueeze(1).to(logp.dtype)
        is_later = (cells.column > place[cells.row]).unsqueeze(1)
        loses = (logp < least) | is_later & (logp == least)
        law = passes.drawing.tempered(logits).log_softmax(-1)
        return law.masked_fill(~loses, -torch.inf).logsumexp(-1)


def check_counts(unmasking, counts):
    """Raise ValueError where a rule wants the counts of a checkpoint, and it has none."""
    if counts is None and isinstance(unmasking, PcSampler):
        raise ValueError(
            'pc_sampler wants to know how often each token stands in the training set, which a '
            'checkpoint says if train.py of this version has saved it: choose another order'
        )


@dataclass(frozen=True)
class Dilated(Unmasking):
    """Reveal the blanks of a block from coarse to fine, whatever the model says.

    Step t reveals every floor(B / 2^t)-th blank of a block of B that is left, from the first on, so
    that those of a step are far from each other. Blocks come in the order that is given.
    Source: Luxembourg et al. 2025, arXiv 2506.19037."""

    block_length: int = 32
    adaptive = True
    score = 'dilated'
    form = 'dilated:BLOCK_LENGTH'

    def __post_init__(self):
        check_block_length(self.block_length)

    def check_network(self, slots, n, scores=False):
        if self.block_length > n:
            raise ValueError(
                f'the block of dilated must be at most the {n} positions of the text, got '
                f'{self.block_length}: write --order=dilated:{n} or less'
            )

    def rounds_of(self, network, canvas):
        B, N = canvas.order.shape
        visits = torch.arange(N).repeat(B, 1)
        for row, first, n in zip(visits, canvas.known.tolist(), canvas.n_blanks.tolist()):
            groups = dilated_groups(n, self.block_length)
            blank = torch.tensor([*itertools.chain(*groups)], dtype=torch.long)
            row[first : first + n] = first + blank
        canvas.order = canvas.order.gather(1, visits.to(canvas.order.device, non_blocking=True))
        yield self

    def ends(self, n_blanks, seeds, *names):
        ends = []
        for n in n_blanks:
            groups = dilated_groups(n, self.block_length)
            ends.append([*itertools.accumulate(map(len, groups))])
        return padded_ends(ends, n_blanks)

    reveal = Given.reveal


def dilated_groups(n, block_length):
    """Return [[number of a blank, ...] of each step] of n blanks in blocks."""
    groups = []
    for start in range(0, n, block_length):
        left = range(start, min(start + block_length, n))
        gap = len(left)
        while left:
            gap = max(1, gap // 2)
            groups.append([i for i in left if (i - start) % gap == 0])
            left = [i for i in left if (i - start) % gap]
    return groups


# another rule is one class, named here
RULES = {
    'factor': Factor,
    'eb': EntropyBounded,
    'klass': Klass,
    'pc_sampler': PcSampler,
    'dilated': Dilated,
    'drawn': Drawn,
}
