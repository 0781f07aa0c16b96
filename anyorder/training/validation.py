"""How is a run validated? Nats of fixed blocks in fixed orders."""

import torch

from anyorder.likelihood.nll import batch_nll, measured_batch
from anyorder.machine.devices import autocast
from anyorder.machine.processes import processes, sum_over_processes
from anyorder.networks import named_network
from anyorder.orders import Order


def n_blocks_of(config):
    """Return how many blocks of each set a validation of a run measures, if there are as many."""
    return config.eval_iters * config.batch_size


def laws_of(config):
    """Return {name in the log: Order} of what a run with these options validates.

    Random order is 'any', own order 'any', 'l2r' or 'own', and a function FILE.py:NAME is NAME.
    Raises ValueError for two orders of one name."""
    masked_loss = named_network(config.network).slots.masked_loss
    found = {}
    for text in config.val_orders or (['own'] if masked_loss else ['own', 'l2r']):
        order = Order.of(text, config)
        name = order.estimate
        if name == 'own' and text != 'own':
            name = order.name.rpartition('.py:')[2]
        is_taken = name in ('any', 'l2r', 'own') and order.is_function and text != 'own'
        if is_taken or found.setdefault(name, order) != order:
            raise ValueError(
                f'val_orders must have names of their own, any, l2r and own have one: got {name}'
            )
    return found


def validate(model, blocks, given, orders, config, begins=None, step=0):
    """Return {name: nats}, (n,) float64 each, of blocks (n, N) in each of the `orders` {name:
    Order}.

    Tokens that are `given` (n, N) come first and cost nothing; of documents apart, which start at
    `begins` (n, P), in each. Each block has a fixed order, and of a masked loss fixed numbers of
    known visits. Processes share the blocks.

    step  updates done, which an order may see"""
    rank, world_size = processes()
    n = len(blocks)
    # as many in every process, as a split model wants; places from n on repeat blocks
    n_places = n + -n % world_size
    nats = {}
    for name, order in orders.items():
        found = torch.zeros(n_places, dtype=torch.float64)
        for places in torch.arange(rank, n_places, world_size).split(config.batch_size):
            numbers = places % n
            how = {'step': step, 'begins': None if begins is None else begins[numbers]}
            with autocast(model.device, config.dtype):
                rows = numbers.tolist(), blocks[numbers], given[numbers]
                batch = measured_batch(model, rows, order, **how)
            found[places] = batch_nll(model, batch, config.batch_size, config.dtype)
        nats[name] = sum_over_processes(found)[:n]
    return nats
