"""What is an estimate of likelihood? The nats of blocks that it takes, and the rows that a table
makes of them.

To add another one, write a class and name it in ESTIMATES."""

import pkgutil
from itertools import chain

import torch

from anyorder.likelihood.ensemble import (
    Groups,
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


class Estimate:
    """One way to measure a text: nats of its blocks, and the rows that the table makes of them.

    name          in --estimates and in the rows
    work          the name of the nats in the journal; estimates whose `nats` are the same share it
    options       the options of eval_ppl.py that the nats depend on
    wants         the only data sets that have this estimate, in words; '': all have it
    decoder_only  why networks with a masked loss do not have it; '': they have
    n_orders      orders of a block that one call of `nats` runs
    alone         whether such a call is for one block, which fills a batch by itself
    order         an Order
    known_l2r     whether given tokens are read from left to right, in place of this order"""

    name = work = ''
    options = ()
    wants = ''
    decoder_only = ''
    n_orders = 1
    alone = False
    order = RANDOM
    known_l2r = False

    def __init__(self, config, checkpoint, asked=()):
        """Make the estimate for an opened Checkpoint.

        asked  the names of all estimates of this evaluation"""
        self.c = config
        self.checkpoint = checkpoint
        self.asked = asked

    @classmethod
    def measures(cls, name):
        """Return whether a data set of this name has the estimate."""
        return True

    def n_at_once(self):
        """Return how many blocks one call of `nats` takes."""
        return 1 if self.alone else max(1, self.c.batch_size // self.n_orders)

    def measure(self, model, text, journal):
        """Return nats (n, m) of all blocks of a Corpus, of all processes.

        What is in the journal is not run again."""
        rank, world_size = processes()
        n = len(text.blocks)
        name = text.label, text.digest, self.work
        missing = journal.missing(name, n)
        size = self.n_at_once()
        turns = [missing[i : i + size] for i in range(0, len(missing), size)]
        shown_work = self.work.rpartition(' ')[0] or self.work  # without its digest
        how = {'total': len(missing), 'unit': 'block', 'desc': f'{text.label} {shown_work}'}
        with progress(**how, leave=False, disable=rank > 0 or not missing) as bar:
            for i in range(0, len(turns), world_size):
                every = turns[i : i + world_size]
                entries = []
                if rank < len(every):
                    entries = self.entries(model, text, every[rank], name)
                journal.add(dict(chain(*gather(entries))))
                bar.update(sum(map(len, every)))
        return journal.nats(name, n)

    def entries(self, model, text, numbers, name):
        """Return [((*name, block), nats)] of the blocks of these numbers, for the journal."""
        nats = check_finite(self.nats(model, text.blocks, numbers, text.given))
        return [((*name, b), row) for b, row in zip(numbers, nats.tolist(), strict=True)]

    def nats(self, model, blocks, numbers, given=None):
        """Return (len(numbers), m) float64 of the blocks (n, N) of these numbers.

        Tokens that are `given` (n, N) come first in every order and cost nothing."""
        raise NotImplementedError

    def rows(self, nats, text):
        """Return rows of the table from the nats (n, m) of all blocks of a Corpus."""
        raise NotImplementedError

    def remarks(self, rows, text):
        """Return lines to print below the table."""
        return []

    def batch(self, blocks, numbers, given=None):
        """Return the Batch of these blocks, each K = n_orders times in a row under its orders."""
        K = self.n_orders
        orders = draw_orders(numbers, blocks.size(1), K, self.c.seed, self.order).flatten(0, 1)
        blocks = blocks[numbers].repeat_interleave(K, 0)
        if given is None:
            given = torch.zeros_like(blocks, dtype=torch.bool)
        else:
            given = given[numbers].repeat_interleave(K, 0)
        return Batch.of(blocks, orders, given, self.known_l2r)

    def row(self, label, nats, text, n=1):
        """Return the row of nats (n,), each of a block by n orders or contexts."""
        n_blanks = text.by_block(torch.as_tensor(text.n_blanks))
        row = summarize(label, text.by_block(nats), n_blanks, text.n_bytes)
        return {'kind': self.name, 'n': n} | row


class Along(Estimate):
    """1/K sum_k -log p(x | sigma_k) over K orders of one family.

    K is n_orders where there are several, else 1. Where the family draws its orders, every block
    has its own; else all share the orders of successive seeds."""

    name = 'order'
    options = ('n_orders',)
    several = True

    def __init__(self, config, checkpoint, asked=(), order=None, label=''):
        """Make the estimate of an Order; a subclass has its own."""
        super().__init__(config, checkpoint, asked)
        if order:
            self.order = order
            self.label = label
            self.work = f'{label} {derive_seed(order):x}'
        has_others = self.order.law != 'one'
        self.several = self.several and has_others
        self.n_orders = config.n_orders if self.several else 1
        self.bound = self.order.drawn and has_others or self.n_orders > 1

    @property
    def is_drawn(self):
        """See nll.is_drawn. The importance weights want the nats of the orders themselves."""
        if ImportanceWeighted.name in self.asked:
            return False
        return is_drawn(self.checkpoint.config.slots, self.order)

    def nats(self, model, blocks, numbers, given=None):
        """Return a column for each order."""
        K = self.n_orders
        batch = self.batch(blocks, numbers, given)
        known = None
        if self.is_drawn:
            n_given = batch.n_given[::K].unsqueeze(1)  # (len(numbers), 1)
            n_blanks = batch.n_blanks[::K].unsqueeze(1)
            known = draw_known(numbers, n_blanks, K, self.c.seed, n_given).flatten()
        nats = block_nll(
            model, batch.idx, batch.order, self.c.batch_size, n_known=known, n_given=batch.n_given
        )
        return nats.view(-1, K)

    def totals(self, model, text, journal):
        """Return (n,) nats of the blocks, the mean over the orders."""
        return self.measure(model, text, journal).mean(1)

    def label_of_all(self):
        """Return its label in the table."""
        return f'{self.label} x {self.n_orders}' if self.several else self.label

    def rows(self, nats, text):
        row = self.row(self.label_of_all(), nats.mean(1), text, self.n_orders)
        row['bound'] = self.bound
        if self.n_orders == 1:
            return [row]
        if not self.order.drawn:  # orders that all blocks share
            stderr = nats.mean(0).std() / self.n_orders**0.5
            row['orders_stderr'] = float(stderr * len(nats) / row['tokens'])
        elif not self.is_drawn:
            row['spread'] = float(text.by_block(nats).var(1).mean().sqrt())
        return [row]

    def remarks(self, rows, text):
        lines = []
        for row in rows:
            name = row['estimate']
            if 'orders_stderr' in row:
                lines.append(
                    f'{name}: ± {row["orders_stderr"]:.4f} nats/token between its orders, which '
                    '± above leaves out'
                )
            if 'spread' in row:
                lines.append(
                    f'{name}: standard deviation over the orders of a block '
                    f'{row["spread"]:.2f} nats'
                )
        return lines


class LeftToRight(Along):
    """-log p(x) from left to right, exact."""

    name = work = 'l2r'
    label = 'left to right'
    order = Order('l2r')


class OwnOrder(Along):
    """-log p(x | sigma) in the order sigma of the training.

    Where the family draws its orders, one draw a block."""

    name = 'own'
    several = False

    def __init__(self, config, checkpoint, asked=()):
        order = checkpoint.order
        super().__init__(config, checkpoint, asked, order, f'own order ({order.name})')
        if order.estimate != self.name:
            raise ValueError(
                'own is for a model trained neither in random order nor left to right, this one '
                f'was trained in {order.name}: take {order.estimate}'
            )


class AnyOrder(Along):
    """1/K sum_k -log p(x | sigma_k) over K = n_orders uniform random orders: a bound."""

    name = 'any'
    work = 'orders'
    label = 'any order'


class ImportanceWeighted(AnyOrder):
    """-log 1/K sum_k p(x | sigma_k) over the orders of AnyOrder, for K = 1, 2, 4, ...

    A tighter bound."""

    name = 'iw'

    def rows(self, nats, text):
        rows = []
        for k in powers_of_two(self.c.n_orders):
            row = self.row(f'iw x {k}', ensemble_nll(-nats[:, :k]), text, k)
            rows.append(row | {'bound': True})
        return rows


class Ensemble(Estimate):
    """sum_i -log 1/M sum_j p(x_i | perm_j(context of i)) for M = 1, 2, 4, ...

    See ensemble_block_nll."""

    name = work = 'ensemble'
    options = ('n_contexts', 'n_positions', 'ensemble_block')
    decoder_only = 'others cannot score a part of an order alone'
    alone = True

    def groups(self, block, N):
        """Return sample_groups of a block, given by its number, of N blanks."""
        seed = derive_seed(self.c.seed, 'positions', block)
        return sample_groups(N, self.c.ensemble_block, self.c.n_positions, seed)

    def nats(self, model, blocks, numbers, given=None):
        """Return a column for each of 1, 2, 4, ... members."""
        (b,) = numbers
        batch = self.batch(blocks, numbers, given)
        n_given = int(batch.n_given[0])
        n_blanks = int(batch.n_blanks[0])
        n = n_given + n_blanks  # without padding
        idx = batch.idx[0, :n]
        order = batch.order[0, :n]
        numbers, weights = self.groups(b, n_blanks)
        groups = Groups(numbers, self.c.ensemble_block, n_given)
        seed = derive_seed(self.c.seed, 'contexts', b)
        n_tokens = self.c.batch_size * blocks.size(1)
        own, members = ensemble_block_nll(
            model, idx, order, self.c.n_contexts, groups, seed, n_tokens
        )
        return ensemble_totals(own, members, weights).unsqueeze(0)

    def rows(self, nats, text):
        rows = []
        for m, column in zip(powers_of_two(self.c.n_contexts), nats.T, strict=True):
            # block by block, so that their spread does not hide it
            gain = self.row('', nats[:, 0] - column, text)
            row = self.row(f'ensemble x {m}', column, text, m) | {'bound': True}
            row['gain'] = gain['nats_per_token']
            row['gain_stderr'] = gain['stderr']
            rows.append(row)
        return rows

    def remarks(self, rows, text):
        lines = []
        N = int(torch.as_tensor(text.n_blanks).max())
        groups, _ = self.groups(0, N)
        n_visits = min(N, len(groups) * self.c.ensemble_block)
        if n_visits < N:
            lines.append(f'ensemble on {n_visits} of {N} visits a block')
        for row in rows:
            if row['gain_stderr']:
                lines.append(
                    'gain of {estimate} over x 1, block by block: {gain:.4f} ± {gain_stderr:.4f} '
                    'nats/token'.format(**row)
                )
        return lines


# an estimate of a room of extras is a name, module:class, see estimate_class
ESTIMATES = {
    'l2r': LeftToRight,
    'own': OwnOrder,
    'any': AnyOrder,
    'iw': ImportanceWeighted,
    'ensemble': Ensemble,
    'accuracy': 'anyorder.extras.lm_eval.last_word:LastWord',
}


def estimate_class(name):
    """Return the class of an estimate; that of a room of extras is imported now."""
    found = ESTIMATES[name]
    return pkgutil.resolve_name(found) if isinstance(found, str) else found
