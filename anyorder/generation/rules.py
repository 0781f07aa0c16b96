"""By which other rules of the literature does a step choose its blanks? Each is an Adaptive.

A rule says which scores the blanks have, which of them a step reveals, or both. A text then has an
exact probability: what is known says which blanks each step chooses."""

import itertools
import math
from dataclasses import dataclass
from functools import partial

import torch

from anyorder.generation.drawing import token_logprob
from anyorder.generation.schedules import padded_ends
from anyorder.generation.unmasking import Adaptive, Choice, Given, Unmasking, check_block_length
from anyorder.generation.winners import likely_sets
from anyorder.machine.devices import widest
from anyorder.orders import given_first
from anyorder.seeds import hashed, uniform
from model import float32_or_better

# the names of the numbers by which Drawn draws all blanks, and a set of those of a text
DRAWN = hashed('drawn')
SETS = hashed('last of a set'), hashed('others of a set')
N_STABLE = 2  # comparisons with the step before, after which a law counts as stable


class Rule(Adaptive):
    """An Adaptive that is named as a whole, without noise.

    threshold  the number behind the colon of its name
    form       what its name looks like, for messages
    meant      what the number is, and which ones are allowed: none, unless a rule says it"""

    form = ''
    meant = 'no number: n_steps says how many'

    def __post_init__(self):
        super().__post_init__()
        if self.noise:
            raise ValueError(f'noise is not for {self.form}: got {self.noise}')

    def check_threshold(self, unmask):
        is_number = type(self.threshold) in (int, float) and self.allows(self.threshold)
        if not is_number or unmask != 'fixed':
            raise ValueError(
                f'{self.form} wants {self.meant} and fixed unmasking, got {self.threshold} with '
                f'{unmask} unmasking'
            )

    def allows(self, number):
        """Whether the threshold may be this number."""
        return False


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

    def allows(self, number):
        return 0 <= number < math.inf

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
    blanks are revealed depends on tokens that are thrown away, so that a text can be written in
    many ways, and has a bound alone. With q_i the law by which X_i is drawn, p_i the model's, the
    step that reveals the blanks S as a has

        P(S, a) = prod_{i in S} q_i(a_i)  prod_{j not in S} P(p_j(X_j) < min_{i in S} p_i(a_i))

    where of equals the first wins. A text x is scored along a way that is drawn: S by P(S, x_S),
    among the sets of as many blanks as the step reveals. Then

        E[ sum_steps log sum_S P(S, x_S) ] <= log q(x),   and E[ prod_steps ... ] = q(x)"""

    score: str = 'top_prob'
    form = 'drawn/BLOCK_LENGTH'
    has_bound = True
    draws_in_turn = False

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
        if not passes.drawing.scores:
            super().reveal(passes, part, bounds, size)
            return

        # What the true tokens are worth, and whether other blanks lose against them
        x, cells = passes.read(part, bounds, size)
        column = torch.arange(size.targets, device=x.device)
        is_blank = column < bounds.n_targets.unsqueeze(1)  # (B, n)
        at = (cells.start.unsqueeze(1) + column).clamp(max=len(x) - 1)  # (B, n) of cells
        of_true = partial(self.of_true_tokens, passes, part)
        found, _ = passes.score(of_true, part, bounds, x, cells)
        score, law = found[at].masked_fill(~is_blank.unsqueeze(2), -torch.inf).unbind(2)
        losing_some = partial(self.losing, passes, score)
        found, _ = passes.score(losing_some, part, bounds, x, cells)
        losing = torch.where(is_blank.unsqueeze(2), found[at], 0.0)  # (B, n, n)

        # Draw a set of blanks, and reveal it
        T = part.order.size(1)
        position = part.order.gather(1, (bounds.first.unsqueeze(1) + column).clamp(max=T - 1))
        names = bounds.n_steps.unsqueeze(1), position
        u = [uniform(part.keys.unsqueeze(1), name, *names) for name in SETS]
        total, chosen = likely_sets(law, score, losing, bounds.n_new, size.reveals, u)
        best, *_ = given_first(score.argsort(dim=1, descending=True, stable=True), chosen)
        self.put_first(best, part, bounds, size)
        self.draw(passes, part, bounds, size, Choice(x, None, cells.start, best, bounds.n_new))

        # All sets in place of this one: its last token carries the rest
        rest = total - law.masked_fill(~chosen, 0).sum(1)
        last = (bounds.first + bounds.n_new - 1).clamp(min=0, max=T - 1)
        row = torch.arange(len(last), device=last.device)
        rest = torch.where(bounds.n_new > 0, rest, 0.0)
        part.logprob[row, part.order[row, last]] += rest.to(part.logprob.dtype)

    def of_true_tokens(self, passes, part, cells, logits):
        """Return log p and log q (m, 2) of the tokens that stand in the cells."""
        token = part.idx[cells.row, part.order[cells.row, cells.visit]]
        law = passes.drawing.tempered(logits)
        return torch.stack([token_logprob(logits, token), token_logprob(law, token)], 1)

    def losing(self, passes, score, cells, logits):
        """Return log P (m, n) that the tokens which cells draw lose against each of their row.

        score  (B, n) log p of the true tokens"""
        own = float32_or_better(logits)
        logp = own - own.logsumexp(-1, keepdim=True)  # as token_logprob: equals stay equal
        ranked, token = logp.sort(-1)
        law = passes.drawing.tempered(logits).softmax(-1).gather(1, token)
        below = torch.nn.functional.pad(law.cumsum(-1), (1, 0))  # (m, V + 1) P of so many tokens
        limit = score[cells.row].to(logp.dtype)
        column = torch.arange(score.size(1), device=score.device)
        loses_equal = cells.column.unsqueeze(1) > column
        n_less = torch.searchsorted(ranked, limit)
        n_as_much = torch.searchsorted(ranked, limit, right=True)
        return below.gather(1, torch.where(loses_equal, n_as_much, n_less)).log()


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
    that those of a step are far from each other. Blocks come in the order that is given; a shorter
    text is one.
    Source: Luxembourg et al. 2025, arXiv 2506.19037."""

    block_length: int = 32
    adaptive = True
    score = 'dilated'

    def __post_init__(self):
        check_block_length(self.block_length)

    def rounds_of(self, network, canvas, drawing):
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


def dilated(n_steps=1, schedule='linear', binomial=False, threshold=32, **choice):
    """Return the Dilated that dilated:BLOCK_LENGTH names, where the number stands in the place of a
    threshold."""
    if binomial or choice or threshold != int(threshold):
        raise ValueError(
            'dilated:BLOCK_LENGTH says itself how many blanks a step reveals, and needs no score: '
            'leave out unmask=binomial, /BLOCK_LENGTH and +NOISE'
        )
    return Dilated(int(threshold))


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
    'dilated': dilated,
    'drawn': Drawn,
}
