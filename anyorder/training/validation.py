"""How is a run validated? By the nats of fixed blocks in fixed orders."""

import torch

from anyorder.likelihood.nll import batch_nll, measured_batch
from anyorder.machine.devices import autocast
from anyorder.machine.processes import processes, sum_over_processes
from anyorder.networks import named_network
from anyorder.orders import Order
from anyorder.tokens.mixture import weights_in
from configurator import check_choice


class Validation:
    """What a run validates: some blocks of each of its sets, in some orders.

    n_blocks  of a set, if there are as many
    orders    {its name: Order}: random order is 'any', own order 'any', 'l2r' or 'own', and a
              function FILE.py:NAME is NAME
    order_of  {name of a loss in the log: Order}: 'val_any', the mean over the sets, and of several
              sets 'val_books_any', ... behind it"""

    def __init__(self, config):
        """Raises ValueError for two losses of one name."""
        self.n_blocks = config.eval_iters * config.batch_size
        self.orders = {}
        self.order_of = {}
        self.masked_loss = named_network(config.network).slots_class.masked_loss
        sets = weights_in(config.dataset)
        parts = ['', *sets] if len(sets) > 1 else ['']
        for typed in config.val_orders or (['own'] if self.masked_loss else ['own', 'l2r']):
            order = Order.of(typed, config)
            name = order.estimate
            is_taken = False
            if name == 'own' and typed != 'own':
                name = order.name.rpartition('.py:')[2]
                is_taken = name in ('any', 'l2r', 'own')
            self.orders[name] = order
            for part in parts:
                loss = in_log(name, part)
                if is_taken or self.order_of.setdefault(loss, order) != order:
                    raise ValueError(
                        'val_orders must give each loss a name of its own (any, l2r and own have '
                        f'one): rename a function, got {loss} twice'
                    )

    def check(self, config):
        """Raise ValueError unless a network can be trained and validated in the orders of these
        options, and keep_best names one of the losses. A plan, whose sets may be missing, does
        without."""
        for order in (Order.of('own', config), *self.orders.values()):
            if self.masked_loss and (config.l2r_ratio or order.law != 'random'):
                raise ValueError(
                    f'network={config.network} has a masked loss, a bound for random orders: '
                    f'l2r_ratio must be 0, got {config.l2r_ratio}, and order and val_orders '
                    f"'random', got {order.kind!r}"
                )
            if not order.sees:  # which wants tokens
                order.check(config.block_size)
            elif 'model' in order.sees and config.save_memory not in ('', 'recompute'):
                raise ValueError(
                    f'{order.name} asks for the model, which save_memory={config.save_memory} '
                    'splits: leave one of the two out'
                )
        check_choice('keep_best', config.keep_best, *self.order_of, '')

    def try_orders(self, state, text):
        """Draw each order of the run once, for the first block of a Corpus: a function that sees
        the run raises here what it raises, before anything is written."""
        for order in (state.order, *self.orders.values()):
            measured_batch(state.ema.model, text.rows([0]), order, step=state.iter_num)


def in_log(order, name=''):
    """Return what the log calls the loss in an order: of the set of a name, or the mean of all."""
    return '_'.join(filter(None, ('val', name, order)))


def nats_in_orders(model, text, orders, config, step=0):
    """Return {name: nats}, (n,) float64 each, of the n blocks of a Corpus, in each of the `orders`
    {name: Order}.

    What is given comes first and costs nothing; of documents apart, in each. Each block has a fixed
    order, and of a masked loss fixed numbers of known visits. Processes share the blocks.

    step  updates done, which an order may see"""
    rank, world_size = processes()
    n = len(text)
    # as many in every process, as a split model wants; places from n on repeat blocks
    n_places = n + -n % world_size
    nats = {}
    for name, order in orders.items():
        found = torch.zeros(n_places, dtype=torch.float64)
        for places in torch.arange(rank, n_places, world_size).split(config.batch_size):
            numbers = places % n
            rows = text.rows(numbers.tolist())
            begins = text.split.begins(text.blocks[numbers])
            with autocast(model.device, config.dtype):
                batch = measured_batch(model, rows, order, step=step, begins=begins)
            found[places] = batch_nll(model, batch, config.batch_size, config.dtype)
        nats[name] = sum_over_processes(found)[:n]
    return nats
