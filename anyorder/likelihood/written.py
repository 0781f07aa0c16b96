"""How likely is a text under the law by which a sampler writes? The blanks of a step are a function
of what is known.

With the tokens of a step independent given the known ones, A_k the blanks that step k chooses:

    q(x) = prod_k prod_{i in A_k} p(x_i | known_k)

A given text says what is known, hence which blanks each step chooses: one run of the sampler that
reveals the tokens of the text gives log q(x), exact for every policy, schedule and threshold.
Source: DUEL, arXiv 2603.01367."""

import math

import torch

from anyorder.checkpoint import stand_in_of
from anyorder.generation import Canvas
from anyorder.generation.fill import fill
from anyorder.likelihood.estimates import Along
from anyorder.likelihood.tables import table_row
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import PADDING
from anyorder.tokens.prompts import read_pattern


def written_nats(model, batch, seeds, unmasking, drawing, batch_size, language_of=None):
    """Return -log q of each block of a Batch under its own order; what is given is not written.

    seeds    [n] as in Canvas
    unmasking, drawing  as in steps
    language_of  gives a Canvas its Language; None: any text may be written
    returns  (n, 3) float64: nats of the tokens whose probability is not 0, the number of the
             others, passes"""
    found = []
    for rows in torch.arange(len(batch.idx)).split(batch_size):
        part = batch.rows(rows).to(model.device)
        own_seeds = [seeds[r] for r in rows.tolist()]
        canvas = Canvas(part.idx, part.order, part.n_given, own_seeds, part.n_visits)
        if language_of is not None:
            canvas.language = language_of(canvas)
        fill(model, canvas, unmasking, drawing)
        is_cut = canvas.logprob == -torch.inf
        nats = -canvas.logprob.masked_fill(is_cut, 0).sum(1)
        passes = [len({*steps} - {-1}) for steps in canvas.step.tolist()]
        columns = nats, is_cut.sum(1), torch.tensor(passes)
        found.append(torch.stack([column.cpu().double() for column in columns], 1))
    return torch.cat(found) if found else torch.zeros(0, 3, dtype=torch.float64)


class Written(Along):
    """-log q(x) in one way of writing.

    A bound, the mean over n_orders draws, if orders, tokens a step or sets of blanks are drawn."""

    name = 'written'

    def __init__(self, config, checkpoint, asked, label, way, one=None):
        """Make the estimate of a Way.

        one  the estimate of one token a step in the same order: passes that are saved cost the
             difference"""
        unmasking = way.unmasking
        self.unmasking = unmasking
        self.drawing = way.drawing
        self.one = one
        self.pattern = read_pattern(config.get('pattern'))
        super().__init__(config, checkpoint, asked, way.order, label)
        drawn = unmasking.binomial or unmasking.has_bound
        self.several = drawn or self.several and not unmasking.adaptive
        self.n_orders = config.n_orders if self.several else 1
        self.known_l2r = unmasking.adaptive  # as Canvas.of_texts has them for a policy
        self.bound = drawn or self.bound and not unmasking.adaptive
        # no journal of another reading
        names = [way.order, unmasking, way.drawing]
        if self.pattern is not None:
            names.append(self.pattern.text)
        self.work = f'{label} {derive_seed(*names):x}'

    def nats(self, model, blocks, numbers, given=None):
        """Return three columns for each order, see written_nats."""
        K = self.n_orders
        batch = self.batch(blocks, numbers, given)
        seeds = [derive_seed(self.c.seed, 'written', b, k) for b in numbers for k in range(K)]
        language_of = None
        if self.pattern is not None:
            language_of = self.language
            for number in numbers:
                block = blocks[number]
                tokens = block[block != PADDING].tolist()
                self.pattern.check(tokens, self.checkpoint.tokenizer, number)
        how = self.unmasking, self.drawing, self.c.batch_size, language_of
        return written_nats(model, batch, seeds, *how).view(-1, 3 * K)

    def language(self, canvas):
        """Return the Language of a canvas whose rows match the pattern."""
        stand_in = stand_in_of(self.checkpoint)
        parts = []
        for row, n in enumerate(canvas.n_visits.tolist()):
            blanks = [-1 for _ in range(n)]  # what is known is read from the canvas
            parts.append((row, 0, blanks, self.pattern))
        return self.pattern.language(parts, canvas, self.checkpoint.tokenizer, stand_in)

    def measure(self, model, text, journal):
        """Return the nats, and behind them the totals of one token a step."""
        nats = super().measure(model, text, journal)
        if self.one is None:
            return nats
        of_one = self.one.totals(model, text, journal)
        return torch.cat([nats, of_one.unsqueeze(1)], 1)

    def totals(self, model, text, journal):
        kept, cut, _ = self.means(super().measure(model, text, journal))
        return kept.masked_fill(cut > 0, math.inf)

    def columns(self, nats):
        """Return what `nats` gave of each order, (n, K, 3), from what `measure` gives."""
        return nats[:, : 3 * self.n_orders].unflatten(1, (-1, 3))

    def means(self, nats):
        """Return nats, numbers of tokens that are cut off and passes of each block, (n,) each."""
        return self.columns(nats).mean(1).T

    def rows(self, nats, text):
        kept, cut, passes = self.means(nats)
        row = self.row(self.label_of_all(), kept, text, self.n_orders)
        if cut.any():
            row |= row_of_cut(row, kept, cut)
        elif self.one is not None and nats[:, -1].isfinite().all():
            cost = self.row('', kept - nats[:, -1], text)
            row |= {'cost': cost['nats_per_token'], 'cost_stderr': cost['stderr']}
        # other draws are a block's own
        if self.order.law != 'one' and not self.unmasking.adaptive and not cut.any():
            (of_orders,) = super().rows(self.columns(nats)[..., 0], text)
            row = of_orders | row
        return [row | {'passes': float(passes.mean()), 'bound': self.bound}]

    def remarks(self, rows, text):
        (row,) = rows
        said = []
        if 'cut' in row:
            said.append(
                '{estimate}: {cut:,.0f} of {tokens:,} true tokens are cut off, their probability '
                'is 0; the others have {kept_nats:.4f} nats each, in {passes:.1f} passes'
            )
        elif row.get('cost_stderr') is not None:
            said.append(
                '{estimate}: {cost:.4f} ± {cost_stderr:.4f} nats/token more than one token a '
                'step, paired by block, in {passes:.1f} passes'
            )
        return super().remarks(rows, text) + [line.format(**row) for line in said]


def row_of_cut(row, kept, cut):
    """Return what the row of a table says where tokens are cut off: an infinite perplexity.

    kept, cut  (n,) nats of the other tokens of a block, and how many are cut off"""
    n_kept = max(1, row['tokens'] - cut.sum())
    found = table_row(row['estimate'], math.inf, None, row['blocks'], row['tokens'], row['bytes'])
    return found | {'cut': float(cut.sum()), 'kept_nats': float(kept.sum() / n_kept)}
