"""How is a text of any length written? Stretch by stretch, each on a canvas of its own, up to where the text stops."""

from bisect import bisect_left

import torch

from anyorder.generation.canvas import Canvas, sample_of
from anyorder.generation.constraint import Constraint
from anyorder.generation.way import Page
from anyorder.seeds import derive_seed, seeds_of

EMPTY = Page()


class Row:
    """A text that is being written, part by part, see Scroll. All lists are in natural order, but `order`.

    parts           [[first, end], ...] of the parts that are not yet written: a part goes on to `end`; its stop may
                    begin at `first`, the start of its open blank, or, in a text without one, the first blank
    n_open          how many blanks have not ended with a stop
    tokens, known   of each position its token, and whether it is known by now
    step, logprob   as in Canvas; steps are counted on from stretch to stretch
    drafts          of each position [[step, token], ...]: the token was the draft from that step on, until the next one
                    of the list or until a token was written; the last was wrong if it is not the written token
    order           the positions as visited; known ones behind the first stretch from left to right
    lengths         what its sample says of the lengths that were chosen for its blanks
    spans           [[start, end], ...] of its stretches
    size            positions of its template"""

    def __init__(self, tokens, known, seed, open=(), lengths=()):
        n = self.size = len(tokens)
        self.tokens, self.known, self.seed, self.lengths = list(tokens), list(known), seed, lengths
        self.step, self.logprob, self.drafts = [-1] * n, [0.0] * n, [[] for _ in range(n)]
        self.order, self.spans, self.n_steps = [p for p in range(n) if known[p]], [], 0
        self.parts, self.n_open = [*open] or [[[*known, False].index(False), n]], len(open) or 1
        if self.parts[-1][1] < n:  # known text, and blanks of lengths that are given
            self.parts.append([n, n])

    def end_part(self, n):
        """The part that is written ends before position n. What stands behind it follows, and has a seed of its own."""
        end = self.parts.pop(0)[1]
        for values in (self.tokens, self.known, self.step, self.logprob, self.drafts):
            del values[n:end]
        self.order = [p if p < n else p - end + n for p in self.order if not n <= p < end]
        self.spans = [[start, min(stop, n)] for start, stop in self.spans]
        self.parts = [[first - end + n, later - end + n] for first, later in self.parts]
        self.seed = derive_seed(self.seed, 'part')

    def n_leading(self):
        """How many positions are known before the first blank that is left in the part, or before its end."""
        return [*self.known[: self.parts[0][1]], False].index(False)

    def slide_on(self, block_size, context):
        """(tokens, known, seed) of the next stretch."""
        blank = self.n_leading()
        start = 0 if blank < block_size else blank - context
        end = min(start + block_size, self.parts[0][1])
        self.spans.append([start, end])
        seed = derive_seed(self.seed, 'stretch', start) if start else self.seed
        return self.tokens[start:end], self.known[start:end], seed

    def take_down(self, tokens, order, step, logprob):
        """Write down what a stretch has revealed until now, in its own numbers of positions and steps."""
        start, _ = self.spans[-1]
        given = [p for i in order if self.known[p := start + i] and self.step[p] < 0] * (
            len(self.spans) == 1
        )
        self.order[start : start + len(given)] = (
            given  # the known text of the first stretch, as it is read
        )
        for i in order:
            p, now = start + i, self.n_steps + step[i]
            if step[i] >= 0 and now != self.step[p]:
                if self.known[p]:  # a token that is revised was a draft
                    self.drafts[p].append([self.step[p], self.tokens[p]])
                    self.order.remove(p)
                self.tokens[p], self.step[p], self.logprob[p] = tokens[i], now, logprob[i]
                self.known[p] = True
                self.order.append(p)


class Scroll:
    """A batch of texts of any lengths. A text that fits into the model is one stretch. A longer one slides on: the next
    stretch begins `context` positions before its first blank, and is as long as the model. Its tokens are drawn given
    all text that is known on its canvas, and nothing before: the log-probability of the text is a sum over stretches.
    The model counts positions from the start of a stretch, so that a cache serves one stretch. The next reads its
    context anew, in the pass of its first token: a decoder runs 1 + context / (block_size - context) slots a token, in
    as many passes as tokens.

    A text ends with the token in which the first of the `stops` ends, from its first blank on. Its row ends once the
    stop and all before it are known. What was written behind the stop is cut.

    A text with open blanks is written part by part if there are stops. A part is the template up to the end of its next
    open blank, and is written as if nothing came behind it. The stop is looked for in the open blank alone, which ends
    with the stop, or at its share if there is none. The next part follows at once: in stretches of its own, given the
    text before it, by derive_seed(seed of the part before it, 'part'). What stands behind the last open blank is a part
    without a stop. Without stops all places are as in the template, and all its text is known from the start."""

    def __init__(self, texts, seed, tokenizer, block_size, page=EMPTY, n_before=0):
        """texts [(tokens, known)] of lists; behind them may stand the [[start, end], ...] of open blanks, and what the
        sample is to say of its lengths. Row r is a function of seed + r, or, if `seed` is a list, of seed[r]. Of the
        page `stop` is a list; the positions of `allowed` count from the start of the text as it is then, and its rows
        from n_before."""
        stops = page.stop
        self.rows = [
            Row(tokens, known, own, more[0] if more and stops else (), *more[1:])
            for (tokens, known, *more), own in zip(texts, seeds_of(seed, len(texts)), strict=True)
        ]
        self.tokenizer = tokenizer
        self.block_size = block_size
        self.context = page.context or block_size // 2
        self.stops = stops
        self.allowed = page.allowed
        self.n_before = n_before
        self.with_drafts = False
        self.written = self.rows  # that the canvas writes

    def steps(self, network, way, use_cache=True, device='cpu', with_drafts=False):
        """Write the texts in a Way. Yields after each step the number of tokens that it revealed; with_drafts keeps the
        drafts of each position, see Row."""
        self.with_drafts = with_drafts
        while True:
            self.written = [row for row in self.written if self.goes_on(row)]
            if not self.written:
                return
            *texts, seeds = zip(
                *(row.slide_on(self.block_size, self.context) for row in self.written)
            )
            canvas = Canvas.of_texts(list(zip(*texts)), way.order, list(seeds), device)
            if self.allowed is not None:
                rows = [self.n_before + self.rows.index(row) for row in self.written]
                canvas.allowed = Constraint(
                    self.allowed, canvas, rows, [row.spans[-1][0] for row in self.written]
                )
            for self.step, n_new, self.part in way.steps(network, canvas, use_cache):
                if self.with_drafts:
                    self.note_drafts()
                if self.with_drafts or self.stops:
                    for r, lists in zip(self.part.rows.tolist(), self.part.lists()):
                        self.written[r].take_down(*lists)
                yield int(n_new.sum())
                if self.stops:  # a row ends once its part is written, up to its first stop
                    done = torch.tensor(
                        [self.length(self.written[r]) is not None for r in self.part.rows.tolist()]
                    )
                    self.part.end(done)
            for row, lists in zip(self.written, canvas.lists()):
                row.take_down(*lists)
                row.n_steps = 1 + max(row.step)

    def note_drafts(self):
        """Add to the rows which drafts the last step has changed; one copy to the host."""
        part, rows, step = self.part, self.part.rows.tolist(), self.step.tolist()
        row, _, visit = part.cells(part.n_drafts)
        position = part.order[row, visit]
        for r, i, token in torch.stack([row, position, part.idx[row, position]], 1).tolist():
            text = self.written[rows[r]]
            drafts = text.drafts[text.spans[-1][0] + i]
            if not drafts or drafts[-1][1] != token:
                drafts.append([text.n_steps + step[r], token])

    def goes_on(self, row):
        """Whether a blank of the row is to be written, in this part or, once it is written, in a later one."""
        while row.parts and (n := self.length(row)) is not None:
            row.n_open -= has_stop(row.tokens[row.parts[0][0] : n], self.stops, self.tokenizer)
            row.end_part(n)
        return bool(row.parts)

    def length(self, row):
        """Up to which position the text is written, once its part is, else None."""
        n, (first, end) = row.n_leading(), row.parts[0]
        if n_kept := end_of(row.tokens[first:n], self.stops, self.tokenizer):
            return first + n_kept
        return n if n == end else None

    def first(self):
        """What Watch is to show of the first text after the last step, or None if the step did not touch it."""
        row = self.rows[0]
        if self.written[0] is not row or self.part.rows[0] != 0:
            return None
        row.take_down(*self.part.lists()[0])
        steps = [None if s < 0 and not k else s for s, k in zip(row.step, row.known)]
        drafts = row.drafts if self.with_drafts else None
        return list(row.tokens), steps, row.n_steps + int(self.step[0]), list(row.logprob), drafts

    def samples(self):
        """sample_of each text, up to its stop. There are also `drafts`, if they are kept; `stretches` [[start, end],
        ...] where a text did not fit into the model, or has parts; `lengths`, a dict for each blank that found its
        length, see Lengths.choose; and with a stop whether the text has `stopped`, each of its open blanks if it has
        any. In another order than left to right the log-probability of a token may be given tokens that were cut."""
        return [self.sample(row) for row in self.rows]

    def sample(self, row):
        sample = sample_of(row.tokens, row.order, row.step, row.logprob, self.tokenizer)
        if self.with_drafts:
            sample['drafts'] = row.drafts
        if row.size > self.block_size or len(row.spans) > 1:
            sample['stretches'] = row.spans
        if row.lengths:
            sample['lengths'] = row.lengths
        if self.stops:
            sample['stopped'] = row.n_open == 0
        return sample


def has_stop(tokens, stops, tokenizer):
    edge = tokenizer.separator  # a name is not found inside of another
    text = edge + tokenizer.decode(tokens) + edge
    return any(edge + stop + edge in text for stop in stops)


def end_of(tokens, stops, tokenizer):
    """How many of the tokens hold a first of the stops, to its end; None if there is none."""
    if not has_stop(tokens, stops, tokenizer):
        return None
    return bisect_left(
        range(len(tokens)), True, key=lambda n: has_stop(tokens[:n], stops, tokenizer)
    )
