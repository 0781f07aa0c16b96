"""How is a run validated? Nats of fixed blocks in fixed orders."""

import torch

from anyorder.likelihood.nll import batch_nll, draw_known
from anyorder.machine.processes import processes, sum_over_processes
from anyorder.orders import Order, draw_orders
from anyorder.tokens.blocks import Batch, visits_of


def laws_of(order, masked_loss):
    """Return {name in the log: Order} of what a run in this order measures: 'any', 'l2r', 'own'."""
    laws = {order.estimate: order}
    return laws if masked_loss else laws | {'l2r': Order('l2r')}


def validate(model, blocks, given, order, config, begins=None):
    """Return {'any': nats, 'l2r': nats}, (n,) float64 each, of blocks (n, N), see laws_of.

    Tokens that are `given` (n, N) come first and cost nothing; of documents apart, which start at
    `begins` (n, P), in each. Each block has a fixed order, and of a masked loss fixed numbers of
    known visits. Processes share the blocks."""
    rank, world_size = processes()
    n, N = blocks.shape
    # as many in every process, as a split model wants; places from n on repeat blocks
    n_places = n + -n % world_size
    places = torch.arange(rank, n_places, world_size)
    own = places % n

    nats = {}
    for name, law in laws_of(order, model.slots.masked_loss).items():
        orders = draw_orders(range(n), N, order=law)[:, 0]
        batch = Batch.of(blocks, orders, given, visits_of(blocks), begins, law.law)
        if model.slots.masked_loss:
            n_given = batch.n_given.unsqueeze(-1)
            known = draw_known(range(n), batch.n_blanks.unsqueeze(-1), n_given=n_given)
            batch = batch._replace(n_known=known[..., 0])
        found = torch.zeros(n_places, dtype=torch.float64)
        found[places] = batch_nll(model, batch.rows(own), config.batch_size, config.dtype)
        nats[name] = sum_over_processes(found)[:n]
    return nats
