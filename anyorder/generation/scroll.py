"""How is a text of any length written? Stretch by stretch, each on a canvas of its own."""

from bisect import bisect_left

import torch

from anyorder.checkpoint import stand_in_of
from anyorder.generation.canvas import Canvas, sample_of
from anyorder.generation.constraint import Constraint
from anyorder.generation.fill import steps
from anyorder.generation.likeliest import ask_for, said_of
from anyorder.seeds import derive_seed, seeds_of
from anyorder.tokens.shown import text_from


class Scroll:
    """A batch of texts of any lengths, which are written.

    A text that fits into the model is one stretch. A longer one slides on: the next stretch begins
    `context` positions before its first blank, and is as long as the model. Its tokens are drawn
    given all text that is known on its canvas, and nothing before: the log-probability of the text
    is a sum over stretches. The model counts positions from the start of a stretch, so that a cache
    serves one stretch. The next reads its context anew, in the pass of its first token: a decoder
    runs 1 + context / (block_size - context) slots a token, in as many passes as tokens.

    A text ends with the token in which the first of the `stops` ends, from its first blank on. Its
    row ends once the stop and all before it are known. What was written after the stop is cut.

    A text with open blanks is written part by part if there are stops. A part is the template up to
    the end of its next open blank, and is written as if nothing came after it. The stop is looked
    for in the open blank alone, which ends with the stop, or at its share if there is none. The
    next part follows at once: in stretches of its own, given the text before it, by
    derive_seed(seed of the part before it, 'part'). What stands after the last open blank is a
    part without a stop. Without stops all places are as in the template, and all its text is known
    from the start."""

    def __init__(self, texts, seed, checkpoint, page, n_before):
        """Prepare the texts.

        texts     [Template] of prompts.py, whose blanks have their lengths
        seed      row r is a function of seed + r, or, if it is a list, of seed[r]
        page      a Page whose `stop` is a list. The positions of `allowed` count from the start of
                  the text as it is then
        n_before  the number of the first text among the rows of `allowed`"""
        self.tokenizer = checkpoint.tokenizer
        self.block_size = checkpoint.config.block_size
        self.stand_in = stand_in_of(checkpoint)
        self.page = page
        self.n_before = n_before
        self.rows = []
        for text, own in zip(texts, seeds_of(seed, len(texts)), strict=True):
            self.rows.append(Row(text, own, text.open if page.stop else ()))
        self.written = self.rows  # those on the canvas
        self.last = None  # what the last step said, see fill.steps

    def steps(self, network, way, use_cache=True, device='cpu'):
        """Write the texts in a Way. Yield after each step the number of tokens that it revealed."""
        while True:
            self.written = [row for row in self.written if self.goes_on(row)]
            if not self.written:
                return
            canvas = self.next_canvas(way.order, device)
            for self.last in steps(network, canvas, way.unmasking, way.drawing, use_cache):
                _, n_new, running = self.last
                if self.page.stop:
                    self.take_down(running)
                yield int(n_new.sum())
                if self.page.stop:
                    ends = [self.end(self.written[r]) for r in running.rows.tolist()]
                    running.stop_rows(torch.tensor([end is not None for end in ends]))
            self.take_down(canvas)
            for row in self.written:
                row.n_steps = 1 + max(row.step)
            if canvas.language is not None:
                for row, nats in zip(self.written, canvas.language.log_weight.tolist()):
                    row.log_weight += nats

    def goes_on(self, row):
        """End the parts of a row that are written. Return whether a part is left."""
        while row.parts:
            end = self.end(row)
            if end is None:
                return True
            row.end_part(*end)
        return False

    def end(self, row):
        """Return up to which position the part of a row is written, and whether with a stop; None
        while it is not."""
        n = row.n_leading()
        first, end = row.parts[0]
        n_kept = end_of(row.tokens[:n], self.page.stop, self.tokenizer, first)
        if n_kept:
            return n_kept, True
        if n == end:
            return n, False
        return None

    def next_canvas(self, order, device):
        """Return the canvas of the next stretch of each row that is written."""
        context = self.page.context or self.block_size // 2
        stretches = [row.slide_on(self.block_size, context) for row in self.written]
        texts, seeds = zip(*stretches)
        canvas = Canvas.of_texts(texts, order, [*seeds], device)
        if self.page.allowed is not None:
            rows = [self.n_before + self.rows.index(row) for row in self.written]
            starts = [row.start for row in self.written]
            canvas.allowed = Constraint(self.page.allowed, device, rows, starts)
        if self.page.top_logprobs:
            ask_for(canvas, self.page.top_logprobs)
        matches = [match for r, row in enumerate(self.written) for match in row.to_match(r)]
        if matches:
            pattern = matches[0][-1]  # any of them opens the room of patterns
            canvas.language = pattern.language(matches, canvas, self.tokenizer, self.stand_in)
        return canvas

    def take_down(self, canvas):
        """Write down what is revealed until now in the rows of a canvas, or those that run."""
        for r, lists in zip(canvas.rows.tolist(), canvas.lists()):
            self.written[r].take_down(*lists)

    def first(self):
        """Return what Watch is to show of the first text after the last step; None: it did not
        run."""
        step, n_new, running = self.last
        row = self.written[int(running.rows[0])]
        if row is not self.rows[0] or not n_new[0]:
            return None
        row.take_down(*running.lists()[0])
        now = row.n_steps + int(step[0])
        tokens = [token if known else None for token, known in zip(row.tokens, row.known)]
        return tokens, [*row.step], now, [*row.logprob]

    def samples(self):
        """Return sample_of each text, up to its stop.

        There are also

        stretches  [[start, end], ...] where a text did not fit into the model, or has parts
        lengths    a dict for each blank that found its length, see Lengths.choose
        patterns   [[start, end, pattern], ...] of the parts that match one
        log_weight log p - log q in nats of its tokens, by the untempered law without the patterns
                   and with them: a weight of samples that are drawn by the latter
        top_logprobs  if they are kept: of each token that was written what said_of says, None of
                   others
        stopped    with a stop: whether the text has one, or each of its open blanks if it has any
        In another order than left to right the log-probability of a token may be given tokens that
        were cut."""
        return [self.sample(row) for row in self.rows]

    def sample(self, row):
        """Return what samples says of a row."""
        order = sorted(range(len(row.tokens)), key=row.visit.__getitem__)
        sample = sample_of(row.tokens, order, row.step, row.logprob, self.tokenizer)
        if self.page.top_logprobs:
            sample['top_logprobs'] = [self.said(row, i) for i in range(len(row.tokens))]
        if row.size > self.block_size or len(row.spans) > 1:
            sample['stretches'] = row.spans
        if row.lengths:
            sample['lengths'] = row.lengths
        if row.patterns:
            sample['patterns'] = [[*place, pattern.text] for *place, pattern in row.patterns]
            sample['log_weight'] = row.log_weight
        if self.page.stop:
            sample['stopped'] = row.n_open == 0
        return sample

    def said(self, row, i):
        """Return said_of a place of a row."""
        if row.likeliest[i] is None:
            return None

        def names(token):
            return text_from(i, [token], row.tokens, self.tokenizer)

        return said_of(row.likeliest[i], row.tokens[i], names)


class Row:
    """A text that is being written, part by part, see Scroll. Lists are in natural order.

    tokens, known  of each position its token, and whether it is known by now
    step, logprob  as in Canvas; steps are counted on from stretch to stretch
    visit          numbers that increase in the order of visits; known tokens after the first
                   stretch are visited from left to right
    likeliest      its row of canvas.likeliest, or None
    parts          [[first, end], ...] of the parts that are not yet written: a part goes on to
                   `end`; its stop may begin at `first`, the start of its open blank, or, in a text
                   without one, the first blank
    patterns       [[start, end, Pattern], ...] of parts that match one: none goes beyond its part
    spans          [[start, end], ...] of its stretches
    n_open         how many blanks have not ended with a stop
    lengths        what its sample says of the lengths that were chosen for its blanks
    log_weight     see samples
    n_steps        steps of the stretches that are written
    size           positions of its template"""

    def __init__(self, text, seed, open_blanks):
        """Begin to write the text of a Template. Without its open blanks all of it is one part."""
        tokens = text.tokens
        known = text.known
        n = len(tokens)
        self.tokens = [*tokens]
        self.known = [*known]
        self.step = [-1 for _ in tokens]
        self.logprob = [0.0 for _ in tokens]
        self.visit = [*range(n)]
        self.likeliest = [None for _ in tokens]
        self.parts = [*open_blanks] or [[[*known, False].index(False), n]]
        self.n_open = len(self.parts)
        _, end = self.parts[-1]
        if end < n:  # known text, and blanks of lengths that are given
            self.parts.append([n, n])
        self.patterns = text.patterns
        self.spans = []
        self.seed = seed
        self.lengths = text.lengths
        self.log_weight = 0.0
        self.n_steps = 0
        self.size = n
        self.n_visits = n  # numbers of visits that are given away

    @property
    def start(self):
        """Where the last stretch begins."""
        start, _ = self.spans[-1]
        return start

    def n_leading(self):
        """Return how many positions are known before the first blank of the part, or its end."""
        _, end = self.parts[0]
        return [*self.known[:end], False].index(False)

    def slide_on(self, block_size, context):
        """Begin the next stretch. Return ((tokens, known), seed) of it."""
        start = 0
        blank = self.n_leading()
        if blank >= block_size:
            start = blank - context
        _, end_of_part = self.parts[0]
        stretch = slice(start, min(start + block_size, end_of_part))
        self.spans.append([stretch.start, stretch.stop])
        seed = self.seed
        if start:
            seed = derive_seed(self.seed, 'stretch', start)
        return (self.tokens[stretch], self.known[stretch]), seed

    def to_match(self, number):
        """Yield what of the last stretch is to match a pattern, where a blank of it is left.

        number  of the row on the canvas
        yields  (number, where it begins on the canvas, its tokens, -1 in blanks, Pattern): it may
                begin before the canvas, where all is known, and end behind it"""
        first, last = self.spans[-1]
        for start, end, pattern in self.patterns:
            if not all(self.known[max(start, first) : min(end, last)]):
                tokens = zip(self.tokens[start:end], self.known[start:end])
                tokens = [token if is_known else -1 for token, is_known in tokens]
                yield number, start - first, tokens, pattern

    def take_down(self, tokens, order, step, logprob, likeliest):
        """Write down what a stretch has revealed until now, in its own positions and steps."""
        for visit, i in enumerate(order):
            p = self.start + i
            now = self.n_steps + step[i]
            if step[i] < 0:
                if self.known[p] and len(self.spans) == 1:  # as it is read
                    self.visit[p] = self.start + visit
            elif now != self.step[p]:
                self.tokens[p] = tokens[i]
                self.step[p] = now
                self.logprob[p] = logprob[i]
                self.likeliest[p] = likeliest[i]
                self.known[p] = True
                self.visit[p] = self.n_visits
                self.n_visits += 1

    def end_part(self, n, has_stop):
        """End the part that is written before position n, by a stop or not. What stands after it
        follows, by its own seed."""
        self.n_open -= has_stop
        _, end = self.parts.pop(0)
        for name in ('tokens', 'known', 'step', 'logprob', 'visit', 'likeliest'):
            del getattr(self, name)[n:end]

        def moved(p):
            return min(p, max(n, p - (end - n)))

        for name in ('parts', 'patterns', 'spans'):
            found = [
                [moved(start), moved(stop), *rest] for start, stop, *rest in getattr(self, name)
            ]
            setattr(self, name, found)
        self.seed = derive_seed(self.seed, 'part')


def end_of(tokens, stops, tokenizer, first=0):
    """Return how many of the tokens hold a first of the stops, to its end, of those from `first`
    on; None if there is none."""
    edge = tokenizer.separator  # a name is not found inside of another

    def holds(n):
        text = edge + text_from(first, tokens[first:n], tokens, tokenizer) + edge
        return any(edge + stop + edge in text for stop in stops)

    n = len(tokens)
    if not holds(n):
        return None
    return first + bisect_left(range(first, n), True, key=holds)
