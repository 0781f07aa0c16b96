"""What do others take for the log-probability of a text that was written in any order?

Each function returns (B, N) log-probabilities by position of Written texts, in nats. What row r
draws is a function of keys[r], int64. None of them asks in which order the text was written."""

import torch

from anyorder.seeds import stream, uniform
from results.grpo.any_order import AnyOrderGRPOTrainer

HIDDEN_RATIO = 0.15  # of the prompt, as in the runs of d1


def mean_field(network, written, keys):
    """One pass in which no token of the completion is seen, and some of the prompt is hidden.

        sum_k log p(x_k | prompt', no other token of the completion)

    d1 calls it a mean-field approximation with one-step estimates: each token of prompt' is masked
    with probability HIDDEN_RATIO, anew at each inner update (Zhao et al. 2025, arXiv 2504.12216,
    and their code). It is no bound."""
    u = uniform(keys.unsqueeze(1), 'prompt', positions_of(written))
    part = parts_of(written)
    part = part.masked_fill((part == 0) & (u < HIDDEN_RATIO), 2)
    order = part.argsort(dim=1, stable=True)
    n_known = (part == 0).sum(1)
    return in_parallel(network, written, order, n_known, torch.full_like(n_known, written.length))


def another_order(network, written, keys):
    """The tokens one by one, in a random order other than the one that wrote them.

    One sample of the any-order bound, whose mean over orders is at most log p(x), the bound of
    masked diffusion too (Xue et al. 2025, arXiv 2506.19935)."""
    return written.logprobs(network, order_anew(written, keys))


def one_level(network, written, keys):
    """The tokens that one mask level leaves, in parallel, as one sample of the same bound.

        C / (C - l) sum_{k masked} log p(x_k | prompt, l tokens of the completion)

    with l uniform from 0 to C - 1: the loss of masked diffusion models, by which LLaDA's
    likelihoods are estimated (Nie et al. 2025, arXiv 2502.09992)."""
    order = order_anew(written, keys)
    n_seen = (uniform(keys, 'level') * written.length).long()
    n_masked = written.length - n_seen
    found = in_parallel(network, written, order, written.n_prompt[:, 0] + n_seen, n_masked)
    return found * (written.length / n_masked).unsqueeze(1)


ESTIMATES = {'d1': mean_field, 'bound': another_order, 'level': one_level}


def positions_of(written):
    return torch.arange(written.idx.size(1), device=written.idx.device)


def parts_of(written):
    """Return (B, N), by position: 0 the prompt, 1 the completion, 2 what is behind."""
    position = positions_of(written)
    end = written.n_prompt + written.length
    return (position >= written.n_prompt).long() + (position >= end).long()


def order_anew(written, keys):
    """Return orders (B, N): the prompt from left to right, the completion in a random order."""
    part = parts_of(written)
    u = uniform(keys.unsqueeze(1), 'another order', positions_of(written))
    return (part + u.masked_fill(part != 1, 0)).argsort(dim=1, stable=True)


def in_parallel(network, written, order, n_known, n_targets):
    """Return (B, N) log p of the n_targets (B,) visits behind n_known (B,), 0 elsewhere.

    They see the visits below n_known, and not each other."""
    logits = network.predict(written.idx, order, n_known.cpu(), n_targets.cpu())
    column = torch.arange(logits.size(1), device=order.device)
    visit = n_known.unsqueeze(1) + column
    position = order.gather(1, visit.clamp(max=order.size(1) - 1))
    tokens = written.idx.gather(1, position)
    logprob = logits.log_softmax(-1).gather(2, tokens.unsqueeze(2))[..., 0]
    logprob = torch.where(column < n_targets.unsqueeze(1), logprob, 0)
    return logprob.new_zeros(order.shape).scatter_add(1, position, logprob)


class EstimateGRPOTrainer(AnyOrderGRPOTrainer):
    """The same trainer with an estimate for the policy's log-probability.

    Each inner update draws anew, for the old policy what it draws for the new one, as d1 does.

    estimate  a function of ESTIMATES"""

    def __init__(self, *args, estimate, **others):
        super().__init__(*args, **others)
        self.estimate = estimate
        self.generator = stream(self.args.seed, 'estimate')  # its own: all policies begin alike

    def logprobs(self, model, written):
        return self.estimate(model, written, self.keys)

    def _generate_single_turn(self, prompt_ids, *others):
        shape = (len(prompt_ids), self.num_iterations)
        draws = torch.randint(2**62, shape, generator=self.generator)
        self.draws = draws.to(self.accelerator.device)
        self.keys = self.draws[:, 0]
        return super()._generate_single_turn(prompt_ids, *others)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        ids = torch.cat([batch['prompt_ids'], batch['completion_ids']], 1)
        mask = torch.cat([batch['prompt_mask'], batch['completion_mask']], 1)
        old = []
        with torch.no_grad():
            for keys in self.draws.T:
                self.keys = keys
                nats = self._get_per_token_logps_and_entropies(
                    self.model, ids, mask, batch['completion_ids'].size(1)
                )
                old.append(nats[0])
        return batch | {'draws': self.draws, 'old_by_draw': torch.stack(old, 1)}

    def _compute_loss(self, model, inputs):
        inner = self._step % self.num_iterations
        self.keys = inputs['draws'][:, inner]
        old = inputs['old_by_draw'][:, inner]
        return super()._compute_loss(model, inputs | {'old_per_token_logps': old})
