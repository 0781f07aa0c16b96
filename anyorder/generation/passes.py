"""What does a step do on the device? It reads, draws and writes by tensors, and asks nothing."""

from functools import partial

import torch

from anyorder.fast import split_rows
from anyorder.generation.drawing import token_logprob
from anyorder.generation.guidance import guided
from anyorder.generation.likeliest import likeliest
from anyorder.generation.noise import TokenNoise
from anyorder.generation.plan import Bounds, Cells, Plan
from anyorder.generation.presence import with_penalty
from anyorder.generation.scores import without_rounding
from anyorder.machine.devices import widest
from model import KVCache

KEPT = 2**28  # logits of a step that are kept until the last of them is known: 1 GiB in float32
BUCKET = 32  # prompts of 0 to 31 tokens are read together, those of 32 to 63, and so on


class Passes:
    """The passes of an Unmasking over the rows of a canvas, and what they need."""

    def __init__(self, network, workspace, unmasking, drawing, with_logprob):
        self.network = network
        self.workspace = workspace
        self.cache = workspace.cache
        self.unmasking = unmasking
        self.drawing = drawing
        self.with_logprob = with_logprob
        self.graph_key = unmasking.graph_key, drawing, with_logprob
        self.noise = TokenNoise(network.config.vocab_size)

    def begin(self, part):
        """Return the rows in their places, with prompts of unequal lengths read."""
        if self.cache is not None:
            read_prompts(self.network, part, self.cache)
        part = self.workspace.place(part)
        self.state = self.unmasking.begin(self, part)
        return part

    def plan(self, part, ends):
        """Return the Plan of the rows, see there."""
        return Plan(self.network.slots, self.unmasking, part, ends, self.cache)

    def launch(self, function, part, numbers, size, *found):
        """Return function(self, part, bounds, size, *found), in one launch if a graph can do it.

        numbers  (9, B) the Bounds
        found    a tuple of tensors or None that an earlier launch returned, or nothing"""
        graphs = self.workspace.graphs
        if graphs is None or self.unmasking.asks_host:
            return function(self, part, Bounds(*numbers), size, *found)
        bounds = Bounds(*self.workspace.place_numbers(numbers))
        places = [x.data_ptr() for one in found for x in one if x is not None]
        device = part.idx.device.type
        cast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        mode = torch.is_inference_mode_enabled(), cast  # for others a compiler begins anew
        key = self.graph_key, function.__name__, size, part.likeliest.shape, mode, *places
        return graphs.run(key, partial(function, self, part, bounds, size, *found))

    def read(self, part, bounds, size):
        """Run a pass. Return the hidden states (m, C) of the visits that it answers, and Cells."""
        scale = self.drawing.cfg_scale
        if scale:
            x = guided(self.network, part, bounds, size, self.cache, scale)
        else:
            x = self.network.answer(part.idx, part.order, bounds.ranges, size[:3], self.cache)
        T = part.order.size(1)
        cells = Cells.of(bounds.first, bounds.n_targets, size.targets, T, size.all_targets)
        if size.all_targets:
            return x.flatten(0, 1), cells
        return x[cells.row, cells.column], cells

    def logits(self, part, bounds, x, cells):
        """Return the logits (m, V) of hidden states (m, C), -inf for what is not allowed, with the
        penalty on known tokens."""
        logits = self.network.lm_head(x)
        penalty = self.drawing.presence_penalty
        logits = with_penalty(logits, penalty, self.network, part, cells, bounds.known)
        if part.allowed is not None:
            n_real = self.network.config.n_real
            part.allowed.mask(logits, part, cells, n_real, self.drawing.scores)  # in place
        return logits

    def answers(self, part, bounds, x, cells):
        """Return the logits of all cells of a step, which its language is shown, too."""
        logits = self.logits(part, bounds, x, cells)
        if part.language is not None:
            part.language.begin_step(part, bounds.first)
            part.language.observe(cells, part.order[cells.row, cells.visit], logits)
        return logits

    def score(self, function, part, bounds, x, cells):
        """Return function(cells, logits) (m,), in the widest dtype, of all cells, and what each
        returns."""
        found, logits = self.each(function, part, bounds, x, cells)
        if part.language is not None:
            found = without_rounding(found, cells.row)
        return found.to(widest(x.device)), logits

    def each(self, function, part, bounds, x, cells):
        """Return function(cells, logits) (m, ...) of all cells.

        Where they are many, some cells at a time: also returned are the logits (m, V), or None."""
        position = part.order[cells.row, cells.visit]
        number = torch.arange(len(x), device=x.device)
        parts = split_rows(self.network.config.vocab_size, number)[0]
        kept = {}
        if part.language is not None:  # whose law of a blank depends on all that are answered
            kept = self.observe_parts(part, bounds, x, cells, parts)
        found = []
        for i, some in enumerate(parts):
            own = cells.at(some)
            logits = kept.pop(i, None)
            if logits is None:
                logits = self.logits(part, bounds, x[some], own)
            law = logits
            if part.language is not None:
                law = part.language.law(own, position[some], logits)
            found.append(function(own, law))
        if len(parts) > 1:
            logits = None
        return torch.cat(found), logits

    def observe_parts(self, part, bounds, x, cells, parts):
        """Show all cells of a step to the language, some at a time: the numbers in `parts`.

        Return {number of a part: its logits}, of as many as are kept."""
        part.language.begin_step(part, bounds.first)
        kept = {}
        n_kept = 0
        for i, some in enumerate(parts):
            own = cells.at(some)
            logits = self.logits(part, bounds, x[some], own)
            part.language.observe(own, part.order[own.row, own.visit], logits)
            n_kept += logits.numel()
            if n_kept <= KEPT:
                kept[i] = logits
        return kept

    def draw(self, part, bounds, size, logits, cells):
        """Draw the tokens of cells, and write them. Under a language one after the other of a row:
        each given the ones before it, they have their joint law."""
        if part.language is None:
            self.draw_each(part, bounds, logits, cells)
            return
        cells, at = cells.from_left_to_right(part.order)  # one sweep of a pattern draws them all
        for column in range(size.reveals):
            one, number = cells.in_column(column)
            position = part.order[one.row, one.visit]
            own = logits[at[number]]
            law = part.language.law(one, position, own)
            token, logprob = self.draw_each(part, bounds, law, one)
            part.language.reveal(one, position, token)
            if self.with_logprob:
                nats = token_logprob(own, token) - logprob
                if one.is_real is not None:
                    nats = torch.where(one.is_real, nats, 0.0)
                part.language.weigh(one.row, nats)

    def draw_each(self, part, bounds, logits, cells):
        """Draw the tokens (m,) of cells by the numbers of their positions, write and return them,
        and what `write` returns. A scored text keeps its own."""
        position = part.order[cells.row, cells.visit]
        if self.drawing.scores:
            token = part.idx[cells.row, position]
        else:
            token = self.drawing.tokens(logits, part.u[cells.row, position])
        return token, self.write(part, bounds, cells, position, token, logits)

    def token_by_noise(self, part, cells, position, logits):
        """Draw tokens (m,) by the noise of their cells. A scored text keeps its own."""
        if self.drawing.scores:
            return part.idx[cells.row, position]
        noise = partial(self.noise, part, cells, position)
        return self.drawing.tokens_by_noise(logits, noise)

    def write(self, part, bounds, cells, position, token, logits):
        """Write tokens (m,) into the canvas, the step of each and its log p in nats: by the law
        that scores, else by the untempered model, with the penalty on known tokens; and the
        likeliest tokens, if somebody asks. Return log p (m,), or None."""
        cells.write(part.idx, position, token)
        cells.write(part.step, position, bounds.n_steps[cells.row])
        if not self.with_logprob:
            return None
        k = part.likeliest.size(2) // 2
        if k:
            found = likeliest(self.drawing, logits, k, token)
            cells.write(part.likeliest, position, found.to(part.likeliest.dtype))
        if self.drawing.scores:
            logits = self.drawing.tempered(logits)
        logprob = token_logprob(logits, token)
        cells.write(part.logprob, position, logprob.to(part.logprob.dtype))
        return logprob

    def keep_slots(self, n_slots):
        """Keep only the first n_slots (B,) of each row in the cache."""
        if self.cache is not None:
            self.cache.length = n_slots

    def keep_rows(self, part, left):
        """Keep only the rows where `left` (B,) is True, and return them."""
        if self.cache is not None:
            self.cache.keep(left.nonzero()[:, 0])
        if self.state is not None:
            self.state.keep(left.nonzero()[:, 0])
        return self.workspace.place(part.take(left))


def read_prompts(network, part, cache):
    """Read prompts whose lengths differ by BUCKET or more into the cache, so that each costs its
    own tokens."""
    if not len(part) or part.known.max() - part.known.min() < BUCKET:
        return
    buckets = part.known // BUCKET  # (B,)
    for bucket in buckets.unique():
        near = buckets == bucket
        rows = near.nonzero()[:, 0]
        prompts = part.take(near)
        n = min(int(prompts.known.max()) + 1, prompts.order.size(1))
        own = KVCache(network.config, len(rows), cache.k.device, cache.k.dtype, n)
        no_head = slice(0)  # only fills the cache
        network.predict(
            prompts.idx,
            prompts.order,
            prompts.known,
            1,
            cache=own,
            n_visits=prompts.known,
            picked=no_head,
        )
        n_layer = len(own.k)  # the cache has as many again for guidance
        cache.k[:n_layer, rows, :, :n] = own.k
        cache.v[:n_layer, rows, :, :n] = own.v
        cache.length[rows] = own.length
