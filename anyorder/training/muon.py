"""How does Muon step? By an orthogonal matrix for each hidden one; a weight may have three."""

import math

import torch
from torch.optim._muon import _zeropower_via_newtonschulz as orthogonal  # there is no public name

from anyorder.machine.processes import own_part, whole


class Muon(torch.optim.Muon):
    """PyTorch's Muon, to which attention's Q, K and V are three matrices, though c_attn has all.

    Its authors advise it. With the momentum m of the gradients g of a matrix of A rows, B columns

        m <- beta m + (1 - beta) g
        W <- (1 - lr decay) W - lr sqrt(max(1, A / B)) orthogonal(beta m + (1 - beta) g)

    The update of a weight that is split over processes is gathered once, rounded to bfloat16, in
    which all of them make it orthogonal.
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon"""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is not None:
                    self.step_of(p, self.state[p], group)

    def step_of(self, p, state, group):
        """Step one weight, by its state and the options of its group."""
        if 'momentum_buffer' not in state:
            state['momentum_buffer'] = torch.zeros_like(p.grad)
        momentum = state['momentum_buffer'].lerp_(p.grad, 1 - group['momentum'])
        update = whole(p.grad.lerp(momentum, group['momentum']).bfloat16())

        A, B = p.shape
        n_matrices = 3 if A == 3 * B else 1  # of the hidden weights c_attn alone has three
        how = (group['ns_coefficients'], group['ns_steps'], group['eps'])
        steps = torch.cat([orthogonal(part, *how) for part in update.chunk(n_matrices)])
        rate = group['lr'] * math.sqrt(max(1, A / n_matrices / B))
        p.mul_(1 - group['lr'] * group['weight_decay'])
        if torch.is_tensor(rate):  # of a recorded update
            p.sub_(steps.to(p.dtype) * rate)
        else:
            p.add_(own_part(steps, p), alpha=-rate)
