"""What is an estimate of likelihood? The nats of blocks that it takes, and the rows that a table
makes of them.

To add another one, write a class, or a function that makes one, and name it in ESTIMATES."""

from functools import partial
from itertools import chain

import torch

from anyorder.likelihood.ensemble import (
    ensemble_block_nll,
    ensemble_nll,
    ensemble_totals,
    powers_of_two,
    sample_groups,
)
from anyorder.likelihood.nll import block_nll, check_finite, draw_known, is_drawn
from anyorder.likelihood.tables import summarize
from anyorder.machine.processes import gather, processes
from anyorder.machine.terminal import progress
from anyorder.orders import RANDOM, Order, draw_orders
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import Batch
from configurator import names_in

# what a table calls these kinds of orders; the others have a name of their own
LABELS = {'random': 'any order', 'l2r': 'left to right'}


class Estimate:
    """1/K sum_k -log p(x | sigma_k) over K = n_orders orders of one family.

    Where the family draws its orders, every block has its own; else all share the orders of
    successive seeds. What is given comes first in every order and costs nothing.

    name        in --estimates, and the kind of its rows
    label       in the table
    told        what tells it from another one of its label, as the positions of a file
    work        the name of its nats in the journal; estimates whose `nats` are the same share it
    bound       whether it is a mean over what is drawn
    n_at_once   blocks that one call of `nats` takes
    dataset     the only data set that has it; '': all do
    one         the estimate with which a row is compared, block by block, or None
    known_l2r   whether given tokens are read from left to right, in place of the order"""

    told = ''
    dataset = ''
    one = None
    known_l2r = False

    def __init__(self, config, checkpoint, order, label='', name='', several=None):
        """Make the estimate in an Order, for an opened Checkpoint.

        several  whether a block has several orders; by default as the Order says"""
        has_others = order.law != 'one'
        order.check(config.block_size, checkpoint.config.block_size)
        self.several = has_others if several is None else several
        self.c = config
        self.checkpoint = checkpoint
        self.order = order
        self.n_orders = config.n_orders if self.several else 1
        self.n_at_once = max(1, config.batch_size // self.n_orders)
        self.label = label or LABELS[order.kind]
        self.told = str(order.kept)
        self.name = name or order.estimate
        self.bound = order.drawn and has_others or self.n_orders > 1
        # importance weights want the nats of the orders themselves
        wants_exact = 'iw' in names_in(config.get('estimates', ''))
        self.is_drawn = is_drawn(checkpoint.config.slots, order) and not wants_exact
        drawn = 'drawn ' if self.is_drawn else ''
        self.work = f'{drawn}{order.name} x {self.n_orders} {derive_seed(order):x}'

    def items(self, text):
        """Return what of a Corpus is measured: its blocks."""
        return text.blocks

    def measure(self, model, text, journal):
        """Return nats (n, m) of all blocks of a Corpus, of all processes.

        What is in the journal is not run again."""
        rank, world_size = processes()
        items = self.items(text)
        n = len(items)
        name = text.label, text.digest, self.work
        missing = journal.missing(name, n)
        how = {'total': len(missing), 'unit': 'block', 'desc': f'{text.label} {self.label}'}
        with progress(**how, leave=False, disable=rank > 0 or not missing) as bar:
            size = self.n_at_once * world_size
            for i in range(0, len(missing), size):
                numbers = missing[i : i + size]
                mine = numbers[rank::world_size]
                found = []
                if mine:
                    nats = check_finite(self.nats(model, items, mine, text.given))
                    found = [((*name, b), row) for b, row in zip(mine, nats.tolist(), strict=True)]
                journal.add(dict(chain(*gather(found))))
                bar.update(len(numbers))
        return journal.nats(name, n)

    def batch(self, blocks, numbers, given):
        """Return the Batch of the blocks of these numbers, each K times in a row under its
        orders."""
        K = self.n_orders
        orders = draw_orders(numbers, blocks.size(1), K, self.c.seed, self.order).flatten(0, 1)
        rows = torch.tensor(numbers).repeat_interleave(K)
        return Batch.of(blocks[rows], orders, given[rows], self.known_l2r)

    def nats(self, model, blocks, numbers, given):
        """Return (len(numbers), m) float64 of the blocks (n, N) of these numbers: a column for each
        order.

        Tokens that are `given` (n, N) cost nothing."""
        K = self.n_orders
        batch = self.batch(blocks, numbers, given)
        known = None
        if self.is_drawn:
            n_given = batch.n_given[::K].unsqueeze(1)  # (len(numbers), 1)
            n_blanks = batch.n_blanks[::K].unsqueeze(1)
            known = draw_known(numbers, n_blanks, K, self.c.seed, n_given).flatten()
        how = {'n_known': known, 'n_given': batch.n_given}
        nats = block_nll(model, batch.idx, batch.order, self.c.batch_size, **how)
        return nats.view(-1, K)

    def columns(self, nats):
        """Return nats (n, K) of all blocks in each order from what `measure` gives."""
        return nats

    def rows(self, nats, text, of_one=None):
        """Return rows of the table from the nats (n, m) of all blocks of a Corpus.

        of_one  what `measure` gives of the estimate `one`"""
        columns = self.columns(nats)
        compared = {}
        if of_one is not None:
            compared['cost'] = columns.mean(1) - self.one.columns(of_one).mean(1)
        label = f'{self.label} x {self.n_orders}' if self.several else self.label
        row = self.row(label, columns.mean(1), text, self.n_orders, **compared)
        return [row | self.between_orders(columns, text) | {'bound': self.bound}]

    def between_orders(self, columns, text):
        """Return what a row says of the difference between the orders of a block."""
        if self.n_orders == 1 or not columns.isfinite().all():
            return {}
        if not self.order.drawn:  # orders that all blocks share
            stderr = columns.mean(0).std() / self.n_orders**0.5
            return {'orders_stderr': float(stderr * len(columns) / text.n_blanks.sum())}
        if self.is_drawn:
            return {}
        return {'spread': float(text.by_block(columns).var(1).mean().sqrt())}

    def row(self, label, nats, text, n=1, **compared):
        """Return the row of nats (n,), each of a block by n orders or contexts.

        compared  name = (n,) differences to other nats, for two fields of this name, unless a nat
                  is infinite"""
        n_blanks = text.by_block(text.n_blanks)
        row = summarize(label, text.by_block(nats), n_blanks, text.n_bytes)
        for name, difference in compared.items():
            if difference.isfinite().all():
                found = summarize('', text.by_block(difference), n_blanks, None)
                row |= {name: found['nats_per_token'], f'{name}_stderr': found['stderr']}
        return {'kind': self.name, 'n': n} | row


class ImportanceWeighted(Estimate):
    """-log 1/K sum_k p(x | sigma_k) over uniform random orders, for K = 1, 2, 4, ...

    A tighter bound."""

    def rows(self, nats, text, of_one=None):
        rows = []
        for k in powers_of_two(self.n_orders):
            row = self.row(f'iw x {k}', ensemble_nll(-nats[:, :k]), text, k)
            rows.append(row | {'bound': True})
        return rows


class Ensemble(Estimate):
    """sum_i -log 1/M sum_j p(x_i | perm_j(context of i)) for M = 1, 2, 4, ...

    See ensemble_block_nll."""

    def __init__(self, config, checkpoint, n_contexts=16, width=1):
        """n_contexts  M
        width       visits that share a context"""
        if checkpoint.config.slots.masked_loss:
            raise ValueError(
                "ensemble is a decoder's: others cannot score a part of an order alone"
            )
        super().__init__(config, checkpoint, RANDOM, 'ensemble', 'ensemble', several=False)
        n_positions = config.n_positions
        is_whole = isinstance(n_contexts, int)
        if not is_whole or n_contexts < 1 or width < 1 or n_positions and n_positions < width:
            raise ValueError(
                'ensemble:MEMBERS/BLOCK must be whole numbers from 1 on, and n_positions 0 '
                f'(all) or at least BLOCK, got ensemble:{n_contexts}/{width} and '
                f'n_positions={n_positions}'
            )
        self.n_contexts = n_contexts
        self.width = width
        self.told = f'{n_contexts}/{width}'
        self.n_at_once = 1  # which fills a batch by itself
        self.work = f'ensemble:{n_contexts}/{width} at {n_positions}'

    def nats(self, model, blocks, numbers, given):
        """Return a column for each of 1, 2, 4, ... members."""
        (b,) = numbers
        batch = self.batch(blocks, numbers, given)
        n_given = int(batch.n_given[0])
        n_blanks = int(batch.n_blanks[0])
        n = n_given + n_blanks  # without padding
        seed = derive_seed(self.c.seed, 'positions', b)
        groups, weights = sample_groups(n_blanks, self.width, self.c.n_positions, seed)
        seed = derive_seed(self.c.seed, 'contexts', b)
        firsts = n_given + self.width * torch.tensor(groups).unsqueeze(1)
        own, members = ensemble_block_nll(
            model,
            batch.idx[0, :n],
            batch.order[0, :n],
            firsts + torch.arange(self.width),
            [derive_seed(seed, group) for group in groups],
            self.n_contexts,
            self.c.batch_size * blocks.size(1),
        )
        return ensemble_totals(own[n_given:].sum(), members, weights).unsqueeze(0)

    def rows(self, nats, text, of_one=None):
        rows = []
        for m, column in zip(powers_of_two(self.n_contexts), nats.T, strict=True):
            # block by block, so that their spread does not hide the gain
            compared = {'gain': nats[:, 0] - column} if m > 1 else {}
            row = self.row(f'{self.label} x {m}', column, text, m, **compared)
            rows.append(row | {'bound': True})
        return rows


def in_own_order(config, checkpoint):
    """Return the estimate in the order of the training. Where its family draws orders, one draw a
    block."""
    order = checkpoint.order
    if order.estimate != 'own':
        raise ValueError(
            'own is for a model trained neither in random order nor left to right, this one was '
            f'trained in {order.name}: take {order.estimate}'
        )
    return Estimate(config, checkpoint, order, f'own order ({order.name})', several=False)


# what makes an estimate of (config, checkpoint); of a room of extras its name, module:class
ESTIMATES = {
    'l2r': partial(Estimate, order=Order('l2r')),
    'own': in_own_order,
    'any': partial(Estimate, order=RANDOM),
    'iw': partial(ImportanceWeighted, order=RANDOM, name='iw'),
    'ensemble': Ensemble,
    'accuracy': 'anyorder.extras.lm_eval.last_word:LastWord',
}
