"""What is an estimate of likelihood? The nats of blocks that it takes, and the rows that a table
makes of them.

To add another one, write a function that makes one, and name it in ESTIMATES."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch

from anyorder.likelihood.ensemble import ensemble_block_nll, mixtures, powers_of_two, sample_groups
from anyorder.likelihood.nll import block_nll, check_finite, is_drawn, measured_batch
from anyorder.likelihood.tables import ratio_error, summarize
from anyorder.machine.processes import gather, processes
from anyorder.machine.terminal import progress
from anyorder.orders import RANDOM, Order
from anyorder.seeds import derive_seed
from configurator import names_in

# what a table calls these kinds of orders; the others have a name of their own
LABELS = {'random': 'any order', 'l2r': 'left to right'}


def mean(nats):
    return {nats.size(1): nats.mean(1)}


def blocks_of(corpus):
    return corpus


def nothing(nats, corpus, row):
    return {}


@dataclass
class Estimate:
    """Nats of blocks, and the rows of a table that they make.

    kind       in --estimates, and of its rows
    name       in the table, where `ending` follows
    work       the name of its nats in the journal; estimates of the same nats share it, and one of
               the same kind and name is the same row
    nats       f(model, items, numbers) -> (len(numbers), m) float64 of the items of these numbers
    columns    f(nats (n, m)) -> {number of members: nats (n,) of the blocks}, of a row each
    about      f(nats (n, m), Corpus, row) -> what a row says beyond, a dict
    bound      whether it is a mean over what is drawn
    several    whether a row says its number of members
    gains      whether a row says what it has gained over the first
    baseline   the estimate with which a row is compared, block by block, or None
    n_at_once  blocks that one call of `nats` takes
    items      f(Corpus) -> what of it is measured: its blocks, or others that have a length
    dataset    the only data set that has it; '': all do"""

    kind: str
    name: str
    work: str
    nats: Callable
    columns: Callable = mean
    about: Callable = nothing
    bound: bool = True
    several: bool = True
    gains: bool = False
    baseline: 'Estimate | None' = None
    ending: str = ''
    n_at_once: int = 1
    items: Callable = blocks_of
    dataset: str = ''

    @property
    def label(self):
        return self.name + self.ending

    def measure(self, model, corpus, journal):
        """Return nats (n, m) of all blocks of a Corpus, of all processes.

        What is in the journal is not run again."""
        rank, world_size = processes()
        items = self.items(corpus)
        keys = [(corpus.label, corpus.digest, self.work, number) for number in range(len(items))]
        missing = [key for key in keys if key not in journal.done]
        with progress(
            total=len(missing),
            unit='block',
            desc=f'{corpus.label} {self.label}',
            leave=False,
            disable=rank > 0 or not missing,
        ) as bar:
            size = self.n_at_once * world_size
            for i in range(0, len(missing), size):
                part = missing[i : i + size]
                mine = part[rank::world_size]
                found = []
                if mine:
                    numbers = [number for *_, number in mine]
                    nats = check_finite(self.nats(model, items, numbers))
                    found = [*zip(mine, nats.tolist(), strict=True)]
                journal.add(dict(chain(*gather(found))))
                bar.update(len(part))
        return torch.tensor([journal.done[key] for key in keys], dtype=torch.float64)

    def rows(self, nats, corpus, of_baseline=None):
        """Return rows of the table from the nats (n, m) of all blocks of a Corpus.

        of_baseline  the nats of the estimate `baseline`"""
        counts = corpus.by_block(corpus.n_blanks)
        columns = {n: corpus.by_block(column) for n, column in self.columns(nats).items()}
        first, *_ = columns.values()
        found = []
        for n, column in columns.items():
            label = f'{self.label} x {n}' if self.several else self.label
            row = {'kind': self.kind, 'n': n, 'bound': self.bound}
            row |= summarize(label, column, counts, corpus.n_bytes)
            if self.gains and n > 1:
                row |= compared('gain', first - column, counts)
            if of_baseline is not None:
                (other,) = self.baseline.columns(of_baseline).values()
                row |= compared('cost', column - corpus.by_block(other), counts)
            found.append(row | self.about(nats, corpus, row))
        return found


def compared(name, difference, counts):
    """Return two fields of a row: the difference (n,) of blocks to other nats, a token, and its
    error; none where a nat is infinite."""
    if not difference.isfinite().all():
        return {}
    return {
        name: float(difference.sum() / counts.sum()),
        f'{name}_stderr': ratio_error(difference, counts),
    }


def in_orders(config, checkpoint, order, n_orders=0, known_l2r=False, nats_of=None, **fields):
    """Return the Estimate 1/K sum_k -log p(x | sigma_k) over orders of one family.

    Where the family draws its orders, every block has its own; else all share the orders of
    successive seeds. What is given comes first in every order and costs nothing.

    n_orders   K; by default that of the options, if another draw or seed makes another order
    known_l2r  whether what is given is read from left to right, in place of the order
    nats_of    of a program's own estimate: f(model, batch, numbers) -> other nats than the model's
               in the orders, of a Batch that has each of the blocks K times in a row
    fields     of the Estimate; with nats_of `kind` and `name`, by which the journal tells its nats
               from others"""
    if not order.sees:  # which comes with the blocks
        order.check(config.block_size, checkpoint.config.block_size)
    has_others = order.law != 'one'
    K = n_orders or (config.n_orders if has_others else 1)
    # importance weights want the nats of the orders themselves, whose passes take no known shares
    by_draw = is_drawn(checkpoint.config, order) and 'iw' not in names_in(config.estimates)

    def nats(model, corpus, numbers):
        batch = measured_batch(
            model,
            corpus.rows(numbers),
            order,
            K,
            config.seed,
            step=checkpoint.iter_num,
            left_to_right=known_l2r,
        )
        if nats_of:
            return nats_of(model, batch, numbers)
        found = block_nll(
            model,
            batch.idx,
            batch.order,
            config.batch_size,
            n_known=batch.n_known if by_draw else None,
            n_given=batch.n_given,
        )
        return found.view(-1, K)

    def about(nats, corpus, row):
        if 'idx' in order.sees:
            return {'sees': ', '.join(order.sees)}
        return {} if by_draw else between_orders(order, nats, corpus)

    whose = 'drawn ' if by_draw else ''
    if nats_of:
        whose = f'{fields["kind"]} {fields["name"]} of '
    read_so = ', known from left to right' if known_l2r else ''
    by_default = {
        'kind': order.estimate,
        'name': LABELS.get(order.kind, order.name),
        'work': f'{whose}{order.name} x {K} {derive_seed(order.kept):x}{read_so}',
        'about': about,
        'bound': 'idx' not in order.sees and (order.drawn and has_others or K > 1),
        'several': has_others,
        'n_at_once': max(1, config.batch_size // K),
    }
    return Estimate(nats=nats, **by_default | fields)


def between_orders(order, nats, corpus):
    """Return what a row says of the difference between the orders of a block, of nats (n, K)."""
    n_orders = nats.size(1)
    if n_orders == 1 or not nats.isfinite().all():
        return {}
    if order.drawn:
        return {'spread': float(corpus.by_block(nats).var(1).mean().sqrt())}
    stderr = nats.mean(0).std() / n_orders**0.5  # of orders that all blocks share
    return {'orders_stderr': float(stderr * len(nats) / corpus.n_blanks.sum())}


def by_contexts(config, checkpoint, n_contexts=16, width=1):
    """Return the Estimate sum_i -log 1/M sum_j p(x_i | perm_j(context of i)), M = 1, 2, 4, ...

    See ensemble_block_nll.

    n_contexts  M
    width       visits that share a context"""
    if checkpoint.config.slots_class.masked_loss:
        raise ValueError(
            "ensemble is a decoder's: others cannot read a part of an order alone; leave it out"
        )
    n_positions = config.n_positions
    is_short = n_positions and n_positions < width
    if not isinstance(n_contexts, int) or min(n_contexts, width) < 1 or is_short:
        raise ValueError(
            'ensemble:MEMBERS/BLOCK must be whole numbers from 1 on, and n_positions 0 '
            f'(all) or at least BLOCK, got ensemble:{n_contexts}/{width} and '
            f'n_positions={n_positions}'
        )

    def nats(model, corpus, numbers):
        (b,) = numbers  # which fills a batch by itself
        batch = measured_batch(model, corpus.rows(numbers), seed=config.seed)
        N = batch.idx.size(1)
        n_given = int(batch.n_given)
        n_blanks = int(batch.n_blanks)
        n = n_given + n_blanks  # without padding
        seed = derive_seed(config.seed, 'positions', b)
        groups, weights = sample_groups(n_blanks, width, n_positions, seed)
        seed = derive_seed(config.seed, 'contexts', b)
        groups = [(n_given + width * group, derive_seed(seed, group)) for group in groups]
        own, gains = ensemble_block_nll(
            model,
            batch.idx[0, :n],
            batch.order[0, :n],
            groups,
            n_contexts,
            width,
            config.batch_size * N,
        )
        # only the gain is sampled, not the total: unbiased, and exact when all groups are there
        return (own[n_given:].sum() - weights @ gains).unsqueeze(0)

    return Estimate(
        kind='ensemble',
        name='ensemble',
        work=f'ensemble:{n_contexts}/{width} at {n_positions}',
        nats=nats,
        columns=lambda nats: dict(zip(powers_of_two(n_contexts), nats.T, strict=True)),
        gains=True,
    )


def in_own_order(config, checkpoint):
    """Return the estimate in the order of the training. Where its family draws orders, one draw a
    block."""
    order = checkpoint.order
    if order.estimate != 'own':
        raise ValueError(
            'own is for a model trained neither in random order nor left to right, this one was '
            f'trained in {order.name}: take {order.estimate}'
        )
    name = f'own order ({order.name})'
    return in_orders(config, checkpoint, order, 1, name=name, several=False)


# what makes an estimate of (config, checkpoint); of a room of extras its name, module:function
ESTIMATES = {
    'l2r': partial(in_orders, order=Order('l2r')),
    'own': in_own_order,
    'any': partial(in_orders, order=RANDOM),
    # -log 1/K sum_k p(x | sigma_k) for K = 1, 2, 4, ..., a tighter bound
    'iw': partial(in_orders, order=RANDOM, kind='iw', name='iw', columns=mixtures, about=nothing),
    'ensemble': by_contexts,
    'accuracy': 'anyorder.extras.lm_eval.last_word:last_word',
}
