"""What is an estimate of likelihood? The nats of blocks that it takes, and the rows that a table makes of them.

To add another one, write a class and name it in ESTIMATES."""

from itertools import chain

import torch

from anyorder.batch import Batch
from anyorder.likelihood.continuations import continuation_scores, last_words
from anyorder.likelihood.ensemble import (
    ensemble_block_nll,
    ensemble_totals,
    powers_of_two,
    sample_groups,
)
from anyorder.likelihood.nll import block_nll, check_finite, draw_known, ensemble_nll, is_drawn
from anyorder.likelihood.tables import figure, share_error, summarize
from anyorder.machine.processes import gather, processes
from anyorder.machine.terminal import progress
from anyorder.orders import RANDOM, Order, draw_orders
from anyorder.seeds import derive_seed


class Estimate:
    """One way to measure a text: nats of its blocks, and the rows that the table makes of them.

    name          in --estimates and in the rows
    work          the name of the nats in the journal; estimates whose `nats` are the same share it
    options       the options of eval_ppl.py that the nats depend on
    dataset       the only data set that has this estimate; None: all have it
    decoder_only  why networks with a masked loss do not have it; '': they have
    n_orders      orders of a block that one call of `nats` runs
    alone         whether such a call is for one block, which fills a batch by itself
    order         an Order
    known_l2r     whether given tokens are read from left to right, in place of this order"""

    name = work = ''
    options = ()
    dataset = None
    decoder_only = ''
    n_orders = 1
    alone = False
    order = RANDOM
    known_l2r = False

    def __init__(self, config, checkpoint, asked=()):
        """For an opened Checkpoint; `asked` are the names of all estimates of this evaluation."""
        self.c, self.checkpoint, self.asked = config, checkpoint, asked

    def n_at_once(self):
        """Blocks of one call of `nats`."""
        return 1 if self.alone else max(1, self.c.batch_size // self.n_orders)

    def batch(self, blocks, numbers, given=None, n_orders=0):
        """The Batch of these blocks, each K times in a row under its K orders, K = n_orders or its own."""
        K = n_orders or self.n_orders
        orders = draw_orders(numbers, blocks.size(1), K, self.c.seed, self.order).flatten(0, 1)
        blocks = blocks[numbers].repeat_interleave(K, 0)
        if given is None:
            given = torch.zeros_like(blocks, dtype=torch.bool)
        else:
            given = given[numbers].repeat_interleave(K, 0)
        return Batch.of(blocks, orders, given, self.known_l2r)

    def row_of(self, blocks, number, given, n_orders=1):
        """(idx (n,), orders (K, n), n_given, n_blanks) of the block of this number, without its padding."""
        batch = self.batch(blocks, [number], given, n_orders)
        n_given, n_blanks = int(batch.n_given[0]), int(batch.n_blanks[0])
        n = n_given + n_blanks
        return batch.idx[0, :n], batch.order[:, :n], n_given, n_blanks

    def nats(self, model, blocks, numbers, given=None):
        """(len(numbers), m) float64 of the blocks (n, N) of these numbers. Tokens that are `given` (n, N) come first in
        every order and cost nothing."""
        raise NotImplementedError

    def rows(self, nats, text):
        """Rows of the table from the nats (n, m) of all blocks of a Corpus."""
        raise NotImplementedError

    def remarks(self, rows, text):
        """Lines to print below the table."""
        return []

    def measure(self, model, text, journal):
        """nats (n, m) of all blocks of a Corpus, of all processes; what is in the journal is not run again."""
        n, (rank, world_size), size = len(text.blocks), processes(), self.n_at_once()
        name = text.label, text.digest, self.work
        missing = journal.missing(name, n)
        turns = [missing[i : i + size] for i in range(0, len(missing), size)]
        how = {
            'total': len(missing),
            'unit': 'block',
            'leave': False,
            'disable': rank > 0 or not missing,
        }
        with progress(
            desc=f'{text.label} {self.work.rpartition(" ")[0] or self.work}', **how
        ) as bar:
            for i in range(0, len(turns), world_size):
                mine = turns[i + rank] if i + rank < len(turns) else []
                nats = (
                    check_finite(self.nats(model, text.blocks, mine, text.given)).tolist()
                    if mine
                    else []
                )
                every = gather(
                    [((*name, block), row) for block, row in zip(mine, nats, strict=True)]
                )
                journal.add(dict(chain(*every)))
                bar.update(sum(map(len, turns[i : i + world_size])))
        return journal.nats(name, n)

    def row(self, label, nats, text, n=1):
        """The row of nats (n,), each of a block by n orders or contexts."""
        return {'kind': self.name, 'n': n} | summarize(label, nats, text.n_blanks, text.n_bytes)


class Along(Estimate):
    """1/K sum_k -log p(x | sigma_k) over K orders of one family: n_orders where there are several, else the only one.
    Where the family draws its orders, every block has its own; else all share the orders of successive seeds."""

    name, options, several = 'order', ('n_orders',), True

    def __init__(self, config, checkpoint, asked=(), order=None, label=''):
        """`order` is an Order; a subclass has its own."""
        super().__init__(config, checkpoint, asked)
        if order:
            self.order, self.label, self.work = order, label, f'{label} {derive_seed(order):x}'
        self.several = self.several and self.order.law != 'one'
        self.n_orders = config.n_orders if self.several else 1
        self.bound = self.order.drawn and self.order.law != 'one' or self.n_orders > 1

    @property
    def is_drawn(self):
        """See nll.is_drawn. The importance weights want the nats of the orders themselves."""
        return (
            is_drawn(self.checkpoint.config.slots, self.order)
            and ImportanceWeighted.name not in self.asked
        )

    def nats(self, model, blocks, numbers, given=None):
        """A column for each order."""
        K, known, batch = self.n_orders, None, self.batch(blocks, numbers, given)
        if self.is_drawn:
            n_given, n_blanks = (
                n[::K].unsqueeze(1) for n in (batch.n_given, batch.n_blanks)
            )  # (len(numbers), 1)
            known = draw_known(numbers, n_blanks, K, self.c.seed, n_given).flatten()
        nats = block_nll(
            model, batch.idx, batch.order, self.c.batch_size, n_known=known, n_given=batch.n_given
        )
        return nats.view(-1, K)

    def totals(self, model, text, journal):
        """(n,) nats of the blocks, the mean over the orders."""
        return self.measure(model, text, journal).mean(1)

    def label_of_all(self):
        return f'{self.label} x {self.n_orders}' if self.several else self.label

    def rows(self, nats, text):
        row = self.row(self.label_of_all(), nats.mean(1), text, self.n_orders) | {
            'bound': self.bound
        }
        if self.n_orders > 1 and not self.order.drawn:  # orders that all blocks share
            row['orders_stderr'] = float(
                nats.mean(0).std() / self.n_orders**0.5 * len(nats) / row['tokens']
            )
        elif self.n_orders > 1 and not self.is_drawn:
            row['spread'] = float(nats.var(1).mean().sqrt())
        return [row]

    def remarks(self, rows, text):
        between = '{estimate}: ± {orders_stderr:.4f} nats/token between its orders, which ± above leaves out'
        spread = '{estimate}: standard deviation over the orders of a block {spread:.2f} nats'
        return [
            said.format(**row)
            for row in rows
            for key, said in (('orders_stderr', between), ('spread', spread))
            if key in row
        ]


class LeftToRight(Along):
    """-log p(x) from left to right, exact."""

    name = work = 'l2r'
    label, order = 'left to right', Order('l2r')


class OwnOrder(Along):
    """-log p(x | sigma) in the order sigma of the training; where the family draws its orders, one draw a block."""

    name, several = 'own', False

    def __init__(self, config, checkpoint, asked=()):
        order = checkpoint.order
        super().__init__(config, checkpoint, asked, order, f'own order ({order.name})')
        if order.estimate != self.name:
            raise ValueError(
                'own is for a model trained neither in random order nor left to right, this one was '
                f'trained in {order.name}: take {order.estimate}'
            )


class AnyOrder(Along):
    """1/K sum_k -log p(x | sigma_k) over K = n_orders uniform random orders: a bound."""

    name, work = 'any', 'orders'
    label, order = 'any order', RANDOM


class ImportanceWeighted(AnyOrder):
    """-log 1/K sum_k p(x | sigma_k) over the orders of AnyOrder, for K = 1, 2, 4, ...: a tighter bound."""

    name = 'iw'

    def rows(self, nats, text):
        return [
            self.row(f'iw x {k}', ensemble_nll(-nats[:, :k]), text, k) | {'bound': True}
            for k in powers_of_two(self.c.n_orders)
        ]


class Ensemble(Estimate):
    """sum_i -log 1/M sum_j p(x_i | perm_j(context of i)) for M = 1, 2, 4, ..., see ensemble_block_nll."""

    name = work = 'ensemble'
    options = ('n_contexts', 'n_positions', 'ensemble_block')
    decoder_only, alone = 'others cannot score a part of an order alone', True

    def groups(self, block, N):
        """sample_groups of a block, given by its number."""
        return sample_groups(
            N,
            self.c.ensemble_block,
            self.c.n_positions,
            derive_seed(self.c.seed, 'positions', block),
        )

    def nats(self, model, blocks, numbers, given=None):
        """A column for each of 1, 2, 4, ... members."""
        (b,), seed = numbers, derive_seed(self.c.seed, 'contexts', *numbers)
        idx, (order,), n_given, n_blanks = self.row_of(blocks, b, given)
        groups, weights = self.groups(b, n_blanks)
        own, members = ensemble_block_nll(
            model,
            idx,
            order,
            self.c.n_contexts,
            groups,
            self.c.ensemble_block,
            seed,
            self.c.batch_size * blocks.size(1),
            n_given,
        )
        return ensemble_totals(own, members, weights).unsqueeze(0)

    def rows(self, nats, text):
        rows = []
        for m, column in zip(powers_of_two(self.c.n_contexts), nats.T, strict=True):
            gain = self.row(
                '', nats[:, 0] - column, text
            )  # block by block, so that their spread does not hide it
            rows.append(
                self.row(f'ensemble x {m}', column, text, m)
                | {'bound': True, 'gain': gain['nats_per_token'], 'gain_stderr': gain['stderr']}
            )
        return rows

    def remarks(self, rows, text):
        N = int(torch.as_tensor(text.n_blanks).max())
        n_visits = min(N, len(self.groups(0, N)[0]) * self.c.ensemble_block)
        lines = [f'ensemble on {n_visits} of {N} visits a block'] if n_visits < N else []
        gain = (
            'gain of {estimate} over x 1, block by block: {gain:.4f} ± {gain_stderr:.4f} nats/token'
        )
        return lines + [gain.format(**row) for row in rows if row['gain_stderr']]


class LastWord(Estimate):
    """The share of passages whose last word greedy decoding writes, and the perplexity of these words, left to right.
    A word sees what fits into a block. Networks with a masked loss take a pass for each token."""

    name = work = 'accuracy'
    dataset = 'lambada'

    def measure(self, model, text, journal):
        """[(nats of the last word, whether it is right)] of all passages."""
        rank, world_size = processes()
        rows = last_words(text.tokens, self.checkpoint.tokenizer)
        mine, scores = rows[rank::world_size], []
        if not rows:
            raise ValueError('accuracy needs rows of two words or more: the set has none')
        with progress(
            total=len(mine), desc='last words', unit='row', leave=False, disable=rank > 0
        ) as bar:
            for _, *score in continuation_scores(
                model, mine, batch_size=self.c.batch_size, length=text.blocks.size(1)
            ):
                scores.append(tuple(score))
                bar.update()
        return list(chain.from_iterable(gather(scores)))

    def rows(self, measured, text):
        (nats, hits), n = torch.tensor(measured, dtype=torch.float64).T, len(measured)
        words = summarize('', nats, 1, None)
        return [
            {
                'kind': self.name,
                'estimate': 'last word',
                'accuracy': float(hits.mean()),
                'rows': n,
                'stderr': share_error(int(hits.sum()), n),
                'word_perplexity': words['perplexity'],
                'word_perplexity_stderr': words['perplexity_stderr'],
            }
        ]

    def remarks(self, rows, text):
        (row,) = rows
        return [
            'last word, greedy: {accuracy:.2%} ± {stderr:.2%} of {rows:,} passages'.format(**row),
            f'last word, perplexity: {figure(row["word_perplexity"], row["word_perplexity_stderr"], 2)}',
        ]


ESTIMATES = {
    'l2r': LeftToRight,
    'own': OwnOrder,
    'any': AnyOrder,
    'iw': ImportanceWeighted,
    'ensemble': Ensemble,
    'accuracy': LastWord,
}
