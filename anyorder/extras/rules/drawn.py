"""Draw all blanks, and reveal the likeliest of the drawn tokens: LLaDA."""

from dataclasses import dataclass
from functools import partial

import torch

from anyorder.extras.rules.winners import likely_sets
from anyorder.generation.drawing import token_logprob
from anyorder.generation.rules import Rule
from anyorder.generation.unmasking import Choice
from anyorder.machine.devices import widest
from anyorder.orders import given_first
from anyorder.seeds import uniform
from model import float32_or_better

SETS = 'last of a set', 'others of a set'  # the names of the numbers by which one is drawn


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

    def score_blanks(self, runner, cells, logits):
        row = cells.row
        position = cells.position
        u = uniform(runner.part.keys[row], 'drawn', runner.numbers.step[row], position)
        runner.part.u[row, position] = u  # by which a blank that is revealed is drawn once more
        return token_logprob(logits, runner.drawing.tokens(logits, u))

    def reveal(self, runner):
        if not runner.drawing.forced:
            super().reveal(runner)
            return

        # What the true tokens are worth, and whether other blanks lose against them
        part = runner.part
        numbers = runner.numbers
        x, cells = runner.read()
        column = torch.arange(runner.size.targets, device=x.device)
        is_blank = column < numbers.n_targets.unsqueeze(1)  # (B, n)
        at = (cells.start.unsqueeze(1) + column).clamp(max=len(x) - 1)  # (B, n) of cells
        found, _ = runner.of_each(self.of_true_tokens, x, cells)
        score, law = found[at].masked_fill(~is_blank.unsqueeze(2), -torch.inf).unbind(2)
        found, _ = runner.of_each(partial(self.losing, score), x, cells)
        losing = torch.where(is_blank.unsqueeze(2), found[at], 0.0)  # (B, n, n)

        # Draw a set of blanks, and reveal it
        names = numbers.step.unsqueeze(1), cells.position[at]
        u = [uniform(part.keys.unsqueeze(1), name, *names) for name in SETS]
        total, chosen = likely_sets(law, score, losing, numbers.n_new, runner.size.reveals, u)
        best, *_ = given_first(score.argsort(dim=1, descending=True, stable=True), chosen)
        runner.put_first(cells, best)
        best = cells.start.unsqueeze(1) + best
        self.draw(runner, Choice(x, None, best, numbers.n_new))

        # All sets in place of this one: its last token carries the rest
        rest = total - law.masked_fill(~chosen, 0).sum(1)
        rest = torch.where(numbers.n_new > 0, rest, 0.0).to(part.logprob.dtype).unsqueeze(1)
        last = (numbers.first + numbers.n_new - 1).clamp(min=0, max=part.order.size(1) - 1)
        part.logprob.scatter_add_(1, part.order.gather(1, last.unsqueeze(1)), rest)

    def of_true_tokens(self, runner, cells, logits):
        """Return log p and log q (m, 2) of the tokens that stand in the cells."""
        token = cells.read(runner.part.idx)
        law = runner.drawing.tempered(logits)
        found = torch.stack([token_logprob(logits, token), token_logprob(law, token)], 1)
        return found.to(widest(found.device))

    def losing(self, score, runner, cells, logits):
        """Return log P (m, n) that the tokens which cells draw lose against each of their row.

        score  (B, n) log p of the true tokens"""
        own = float32_or_better(logits)
        logp = own - own.logsumexp(-1, keepdim=True)  # as token_logprob: equals stay equal
        ranked, token = logp.sort(-1)
        law = runner.drawing.tempered(logits).softmax(-1).gather(1, token)
        below = torch.nn.functional.pad(law.cumsum(-1), (1, 0))  # (m, V + 1) P of so many tokens
        limit = score[cells.row].to(logp.dtype)
        column = torch.arange(score.size(1), device=score.device)
        loses_equal = cells.column.unsqueeze(1) > column
        n_less = torch.searchsorted(ranked, limit)
        n_as_much = torch.searchsorted(ranked, limit, right=True)
        found = below.gather(1, torch.where(loses_equal, n_as_much, n_less)).log()
        return found.to(widest(found.device))
