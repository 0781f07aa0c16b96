"""Measure what a text costs in the best of K random orders, which is no likelihood.

    python docs/examples/best.py --ckpt=out/quickstart/ckpt.pt --estimates=any,best --n_orders=4

The options are those of eval_ppl.py."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import eval_ppl
from anyorder.likelihood.estimates import ESTIMATES, in_orders
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import RANDOM
from configurator import configure


def best(config, checkpoint):
    """Return the Estimate min_k -log p(x | sigma_k)."""

    def columns(nats):  # (n, K)
        return {nats.size(1): nats.min(1).values}

    how = dict(kind='best', name='best', columns=columns, bound=False)
    return in_orders(config, checkpoint, RANDOM, **how)


ESTIMATES['best'] = best

if __name__ == '__main__':
    with one_line_errors():
        eval_ppl.main(configure(vars(eval_ppl)))
