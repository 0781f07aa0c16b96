"""Who makes the steps? A Runner reads, draws and writes by tensors, and asks nothing on the way."""

from functools import partial

import torch

from anyorder.fast import product_dtype, split_rows
from anyorder.generation.drawing import TokenNoise, token_logprob
from anyorder.generation.law import guided, penalize
from anyorder.generation.plan import Cells, padded
from model import KVCache

KEPT = 2**28  # logits of a step that are kept until the last of them is known: 1 GiB in float32
BUCKET = 32  # prompts of 0 to 31 tokens are read together, those of 32 to 63, and so on


class Runner:
    """The steps of a Way over the rows of a canvas, one after the other.

    part     the Canvas of the rows that run, in the buffers that graphs read and write
    state    what steps keep of these rows besides the cache, see Unmasking.begin
    numbers  the Numbers of the step that runs
    size     its Size"""

    def __init__(self, network, workspace, way, part):
        self.network = network
        self.workspace = workspace
        self.cache = workspace.caches[0] if workspace.caches else None
        self.unmasking = way.unmasking
        self.drawing = way.drawing
        self.noise = TokenNoise(network.config.vocab_size)
        if self.cache is not None:
            prefill(network, part, self.cache)
        self.part = workspace.place(part)
        self.state = self.unmasking.begin(self)

    def run(self, plan):
        """Make the step of a Plan. Return how many blanks (B,) it has revealed, on the host: the
        next visits in part.order, which are known then."""
        part = self.part
        self.keep_slots(plan.kept)  # after a pass that is planned already; Lossless says it again
        self.size = plan.size
        self.numbers = self.workspace.numbers(plan.numbers)
        n_new = self.unmasking.run(self, plan)
        part.n_steps = torch.where(part.n_blanks > 0, plan.n_steps, part.n_steps)
        part.n_known = part.n_known + n_new
        n_ran = n_new if self.unmasking.rereads else n_new > 0
        part.n_passes = part.n_passes + self.drawing.n_passes * n_ran
        return n_new

    def launch(self, function, *found):
        """Return function(self, *found), in one launch if a graph can do it.

        found  a tuple of tensors or None that an earlier launch returned, or nothing"""
        graphs = self.workspace.graphs
        if graphs is None or self.unmasking.asks_host:
            return function(self, *found)
        places = [x.data_ptr() for one in found for x in one if x is not None]
        key = (
            function.__name__,
            self.unmasking.graph_key,
            self.drawing,
            self.size,
            self.part.with_logprob,
            self.part.likeliest.shape,
            # under another autocast, or in inference mode, a compiler begins anew
            product_dtype(self.part.u),
            torch.is_inference_mode_enabled(),
            *places,
        )
        return graphs.run(key, partial(function, self, *found))

    def read(self):
        """Run a pass. Return the hidden states (m, C) of the visits that it answers, and Cells."""
        part = self.part
        numbers = self.numbers
        size = self.size
        part.limits.begin_step(part, numbers.first)
        x = self.network.answer(part.idx, part.order, numbers[:5], size[:3], self.cache)
        if self.drawing.cfg_scale:
            x = guided(x, self)
        cells = self.cells(numbers.n_targets, size.targets)
        if size.even:
            return x.flatten(0, 1), cells
        return x[cells.row, cells.column], cells

    def cells(self, count, n):
        """Return the Cells of the next `count` (B,) visits of each row, see Cells.of."""
        return Cells.of(self.part, self.numbers.first, count, n, self.size.even)

    def logits(self, x, cells):
        """Return the logits (m, V) of hidden states (m, C), by the law of each by itself."""
        logits = self.network.lm_head(x)
        if self.drawing.presence_penalty:
            logits = penalize(logits, cells, self)
        part = self.part
        return part.limits.alone(
            logits, part, cells, self.network.config.n_real, self.drawing.forced
        )

    def in_parts(self, x, cells):
        """Yield (cells, logits) of all cells, where they are many some at a time."""
        number = torch.arange(len(x), device=x.device)
        for some in split_rows(self.network.config.vocab_size, number)[0]:
            own = cells.at(some)
            yield own, self.logits(x[some], own)

    def of_each(self, function, x, cells):
        """Return function(self, cells, logits) (m, ...) of all cells, by their law within all
        limits; and the logits (m, V) of each by itself, or None where they are many."""
        limits = self.part.limits
        parts = self.in_parts(x, cells)
        if limits.joint:  # the law of a blank depends on all that are answered
            if len(x) * self.network.config.vocab_size <= KEPT:
                parts = [*parts]
            else:
                for _ in parts:  # the Language takes note of the law of each
                    pass
                parts = self.in_parts(x, cells)  # and once more, with the laws of all
        found = []
        for own, logits in parts:
            found.append(function(self, own, limits.law(own, logits)))
        if len(found) > 1:
            logits = None
        return torch.cat(found), logits

    def draw(self, cells, logits):
        """Draw the tokens of cells, and write them. Where blanks decide each other one after the
        other of a row: each given the ones before it, they have their joint law."""
        limits = self.part.limits
        if not limits.joint:
            self.write(cells, self.tokens(cells, logits), logits)
            return
        in_row = cells.row * self.part.order.size(1) + cells.position
        from_left = in_row.argsort()  # one sweep of a pattern draws them all
        for column in range(self.size.reveals):  # of each row the next cell from the left
            number = from_left[cells.column == column]
            one = cells.at(number)
            own = logits[number]
            law = limits.law(one, own)
            token = self.tokens(one, law)
            self.write(one, token, law)
            logq = token_logprob(self.drawing.tempered(law), token)
            limits.reveal(self.part, one, token, token_logprob(own, token) - logq)

    def tokens(self, cells, logits):
        """Draw tokens (m,) by the numbers of their positions, or by noise. A scored text keeps its
        own."""
        if self.drawing.forced:
            return cells.read(self.part.idx)
        if self.unmasking.by_noise:
            return self.drawing.tokens_by_noise(logits, partial(self.noise, self.part, cells))
        return self.drawing.tokens(logits, cells.read(self.part.u))

    def write(self, cells, token, logits):
        """Write tokens (m,) into the canvas, the step of each and its log p in nats: of a forced
        text by the law of the drawing, else by the untempered law that the drawing tempers; and
        the likeliest tokens, if somebody asks."""
        part = self.part
        cells.write(part.idx, cells.position, token)
        cells.write(part.step, cells.position, self.numbers.step[cells.row])
        if not part.with_logprob:
            return
        n = part.likeliest.size(2)
        if n:
            found = self.drawing.likeliest(logits, n, token)
            cells.write(part.likeliest, cells.position, found)
        if self.drawing.forced:
            logits = self.drawing.tempered(logits)
        cells.write(part.logprob, cells.position, token_logprob(logits, token))

    def put_first(self, cells, columns):
        """Have part.order visit the Cells as in `columns` (B, targets)."""
        order = self.part.order
        visit = cells.visit - cells.column + columns[cells.row, cells.column]
        cells.write(order, cells.visit, order[cells.row, visit])

    def widen(self, n_new):
        """Have the rest of the step reveal n_new (B,), which is on the host."""
        reveals = padded(int(n_new.max()), self.part.is_exact)
        self.size = self.size._replace(reveals=reveals, even=False)

    def keep_slots(self, n_slots):
        """Keep only the first n_slots (B,) of each row in the cache."""
        if self.cache is not None:
            self.cache.length = n_slots

    def keep_rows(self, rows):
        """Keep only these rows, numbers on the host that increase."""
        for kept in (*self.workspace.caches, self.state):
            if kept is not None:
                kept.keep(rows)
        self.part = self.workspace.place(self.part.take(rows))


def prefill(network, part, cache):
    """Read prompts whose lengths differ by BUCKET or more into the cache, so that each costs its
    own tokens."""
    if part.n_known.max() - part.n_known.min() < BUCKET:
        return
    buckets = part.n_known // BUCKET  # (B,)
    for bucket in buckets.unique():
        rows = (buckets == bucket).nonzero()[:, 0]
        prompts = part.take(rows)
        n = min(int(prompts.n_known.max()) + 1, prompts.order.size(1))
        own = KVCache(network.config, len(rows), cache.k.device, cache.k.dtype, n)
        network.predict(
            prompts.idx,
            prompts.order,
            prompts.n_known,
            1,
            cache=own,
            n_visits=prompts.n_known,
            head=torch.nn.Identity(),  # which only fills the cache
        )
        cache.k[:, rows, :, :n] = own.k
        cache.v[:, rows, :, :n] = own.v
        cache.length[rows] = own.length
