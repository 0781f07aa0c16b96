"""Measure what a text costs in the best of K random orders, which is no likelihood.

    python docs/examples/best.py --ckpt=out/quickstart/ckpt.pt --estimates=any,best --n_orders=4

The options are those of eval_ppl.py."""

import sys
from functools import partial

sys.path.append('.')  # the project's folder, from which it is run

import eval_ppl
from anyorder.likelihood.estimates import ESTIMATES, Estimate
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import RANDOM
from configurator import configure


class Best(Estimate):
    """min_k -log p(x | sigma_k)"""

    def rows(self, nats, text, of_one=None):
        best = nats.min(1).values
        return [self.row(f'best x {self.n_orders}', best, text, self.n_orders)]


ESTIMATES['best'] = partial(Best, order=RANDOM, label='best', name='best')

if __name__ == '__main__':
    with one_line_errors():
        eval_ppl.main(configure(vars(eval_ppl)))
