"""How is a text of any length written? Stretch by stretch, each on a canvas of its own."""

from bisect import bisect_left

import torch

from anyorder.generation.canvas import Canvas, sample_of
from anyorder.generation.constraint import Constraint
from anyorder.generation.likeliest import ask_for, said_of, tables
from anyorder.generation.way import Page
from anyorder.seeds import derive_seed, seeds_of
from anyorder.tokens.shown import text_from

EMPTY = Page()


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

    def __init__(self, texts, seed, tokenizer, block_size, page=EMPTY, n_before=0):
        """Prepare the texts.

        texts     [(tokens, known)] of lists; after them may stand the [[start, end], ...] of open
                  blanks, what the sample is to say of its lengths, and the (start, end, Pattern) of
                  parts that match a pattern
        seed      row r is a function of seed + r, or, if it is a list, of seed[r]
        page      a Page whose `stop` is a list. The positions of `allowed` count from the start of
                  the text as it is then
        n_before  the number of the first text among the rows of `allowed`"""
        self.tokenizer = tokenizer
        self.block_size = block_size
        self.context = page.context or block_size // 2
        self.stops = page.stop
        self.allowed = page.allowed
        self.top_logprobs = page.top_logprobs
        self.n_before = n_before
        self.rows = []
        for (tokens, known, *more), own in zip(texts, seeds_of(seed, len(texts)), strict=True):
            if more and not self.stops:
                more[0] = ()  # all blanks are one part
            self.rows.append(Row(tokens, known, own, *more))
        self.stand_in = None  # (n_tokens,) weights of tokens of blanks that no step has answered
        self.written = self.rows  # those on the canvas
        self.step = None  # (B,) and the Canvas of the rows of the last step
        self.part = None
        self.ran = None  # (B,) which of them it has written

    def steps(self, network, way, use_cache=True, device='cpu'):
        """Write the texts in a Way. Yield after each step the number of tokens that it revealed."""
        self.check(way.drawing)
        while True:
            self.written = [row for row in self.written if self.goes_on(row)]
            if not self.written:
                return
            canvas = self.next_canvas(way.order, device)
            for self.step, n_new, self.part in way.steps(network, canvas, use_cache):
                self.ran = n_new > 0
                self.take_down_step()
                yield int(n_new.sum())
                self.end_rows()
            for row, lists in zip(self.written, canvas.lists()):
                row.take_down(*lists)
                row.n_steps = 1 + max(row.step)
            if self.top_logprobs:
                for row, table in zip(self.written, tables(canvas)):
                    row.keep(*table)
            if canvas.language is not None:
                for row, nats in zip(self.written, canvas.language.log_weight.tolist()):
                    row.log_weight += nats

    def check(self, drawing):
        """Raise ValueError where a Drawing wants each text on one canvas, and one has more."""
        if drawing.cfg_scale:
            for row in self.rows:
                check_at_once(row.size, row.parts, self.block_size)

    def goes_on(self, row):
        """End the parts of a row that are written. Return whether a part is left."""
        while row.parts:
            n = self.length(row)
            if n is None:
                return True
            first, _ = row.parts[0]
            if has_stop(row.tokens, first, n, self.stops, self.tokenizer):
                row.n_open -= 1
            row.end_part(n)
        return False

    def length(self, row):
        """Return up to which position the text is written, once its part is, else None."""
        n = row.n_leading()
        first, end = row.parts[0]
        n_kept = end_of(row.tokens[:n], self.stops, self.tokenizer, first)
        if n_kept:
            return n_kept
        if n == end:
            return n
        return None

    def next_canvas(self, order, device):
        """Return the canvas of the next stretch of each row that is written."""
        stretches = [row.slide_on(self.block_size, self.context) for row in self.written]
        texts = [(tokens, known) for tokens, known, _ in stretches]
        seeds = [seed for *_, seed in stretches]
        canvas = Canvas.of_texts(texts, order, seeds, device)
        if self.allowed is not None:
            rows = [self.n_before + self.rows.index(row) for row in self.written]
            starts = [row.start for row in self.written]
            canvas.allowed = Constraint(self.allowed, canvas, rows, starts)
        if self.top_logprobs:
            ask_for(canvas, self.top_logprobs)
        parts = [part for r, row in enumerate(self.written) for part in row.to_match(r)]
        if parts:
            pattern = parts[0][-1]  # any of them opens the room of patterns
            canvas.language = pattern.language(parts, canvas, self.tokenizer, self.stand_in)
        return canvas

    def take_down_step(self):
        """Write down what the step has revealed, where a stop is looked for."""
        if self.stops:
            rows = self.part.rows.tolist()
            for r, ran, lists in zip(rows, self.ran.tolist(), self.part.lists()):
                if ran:
                    self.written[r].take_down(*lists)

    def end_rows(self):
        """End the rows whose part is written, up to its first stop."""
        if not self.stops:
            return
        rows = [self.written[r] for r in self.part.rows.tolist()]
        done = [self.length(row) is not None for row in rows]
        self.part.stop_rows(torch.tensor(done))

    def first(self):
        """Return what Watch is to show of the first text after the last step; None: it did not
        run."""
        row = self.rows[0]
        ran = self.part.rows[0] == 0 and self.ran[0]
        if self.written[0] is not row or not ran:
            return None
        row.take_down(*self.part.lists()[0])
        now = row.n_steps + int(self.step[0])
        return list(row.tokens), row.steps_of_known(), now, list(row.logprob)

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
        sample = sample_of(row.tokens, row.order, row.step, row.logprob, self.tokenizer)
        if self.top_logprobs:
            sample['top_logprobs'] = self.said(row)
        if row.size > self.block_size or len(row.spans) > 1:
            sample['stretches'] = row.spans
        if row.lengths:
            sample['lengths'] = row.lengths
        if row.patterns:
            sample['patterns'] = [[*place, pattern.text] for *place, pattern in row.patterns]
            sample['log_weight'] = row.log_weight
        if self.stops:
            sample['stopped'] = row.n_open == 0
        return sample

    def said(self, row):
        """Return said_of each place of a row."""
        found = []
        for i, (token, kept) in enumerate(zip(row.tokens, row.kept)):
            if kept is None:
                found.append(None)
                continue

            def names(one, i=i):
                return text_from(i, [one], row.tokens, self.tokenizer)

            found.append(said_of(kept, token, names))
        return found


class Row:
    """A text that is being written, part by part, see Scroll. Lists are in natural order, but
    `order`.

    parts          [[first, end], ...] of the parts that are not yet written: a part goes on to
                   `end`; its stop may begin at `first`, the start of its open blank, or, in a text
                   without one, the first blank
    n_open         how many blanks have not ended with a stop
    tokens, known  of each position its token, and whether it is known by now
    kept           of each position its row of canvas.likeliest, or None
    step, logprob  as in Canvas; steps are counted on from stretch to stretch
    order          the positions as visited; known ones after the first stretch from left to right
    lengths        what its sample says of the lengths that were chosen for its blanks
    patterns       [(start, end, Pattern)] of parts that match one: none goes beyond its part
    log_weight     see samples
    spans          [[start, end], ...] of its stretches
    n_steps        steps of the stretches that are written
    size           positions of its template"""

    def __init__(self, tokens, known, seed, open=(), lengths=(), patterns=()):
        n = len(tokens)
        self.size = n
        self.seed = seed
        self.lengths = lengths
        self.patterns = [*patterns]
        self.log_weight = 0.0
        self.tokens = list(tokens)
        self.known = list(known)
        self.kept = [None for _ in tokens]
        self.step = [-1 for _ in tokens]
        self.logprob = [0.0 for _ in tokens]
        self.order = [p for p in range(n) if known[p]]
        self.spans = []
        self.n_steps = 0
        self.parts = [*open]
        if not open:
            first_blank = [*known, False].index(False)
            self.parts.append([first_blank, n])
        self.n_open = len(self.parts)
        _, end = self.parts[-1]
        if end < n:  # known text, and blanks of lengths that are given
            self.parts.append([n, n])

    @property
    def start(self):
        """Where the last stretch begins."""
        start, _ = self.spans[-1]
        return start

    def steps_of_known(self):
        """Return the step of each position: -1 was known from the start, None is a blank."""
        steps = list(self.step)
        for p, is_known in enumerate(self.known):
            if steps[p] < 0 and not is_known:
                steps[p] = None
        return steps

    def n_leading(self):
        """Return how many positions are known before the first blank of the part, or its end."""
        _, end = self.parts[0]
        return [*self.known[:end], False].index(False)

    def slide_on(self, block_size, context):
        """Begin the next stretch. Return its (tokens, known, seed)."""
        start = 0
        blank = self.n_leading()
        if blank >= block_size:
            start = blank - context
        _, end_of_part = self.parts[0]
        end = min(start + block_size, end_of_part)
        self.spans.append([start, end])
        seed = self.seed
        if start:
            seed = derive_seed(self.seed, 'stretch', start)
        return self.tokens[start:end], self.known[start:end], seed

    def to_match(self, number):
        """Return what of the last stretch is to match a pattern, where a blank of it is left.

        number   of the row on the canvas
        returns  [(number, where it begins on the canvas, its tokens, -1 in blanks, Pattern)]: it
                 may begin before the canvas, where all is known, and end behind it"""
        first, last = self.spans[-1]
        parts = []
        for start, end, pattern in self.patterns:
            if not all(self.known[max(start, first) : min(end, last)]):
                tokens = zip(self.tokens[start:end], self.known[start:end])
                tokens = [token if is_known else -1 for token, is_known in tokens]
                parts.append((number, start - first, tokens, pattern))
        return parts

    def take_down(self, tokens, order, step, logprob):
        """Write down what a stretch has revealed until now, in its own positions and steps."""
        visits = [self.start + i for i in order]
        if len(self.spans) == 1:  # the known text of the first stretch, as it is read
            given = [p for p in visits if self.known[p] and self.step[p] < 0]
            self.order[self.start : self.start + len(given)] = given
        for i, p in zip(order, visits):
            now = self.n_steps + step[i]
            if step[i] < 0 or now == self.step[p]:
                continue
            if self.known[p]:  # a token that is revised
                self.order.remove(p)
            self.tokens[p] = tokens[i]
            self.step[p] = now
            self.logprob[p] = logprob[i]
            self.known[p] = True
            self.order.append(p)

    def keep(self, table, step):
        """Take down the table (N, 1 + 2k) of the likeliest tokens of what a stretch has written, in
        these steps [N]."""
        for i, p in enumerate(range(*self.spans[-1])):
            if step[i] >= 0:
                self.kept[p] = table[i]

    def end_part(self, n):
        """End the part that is written before position n. What stands after it follows, by its own
        seed."""
        _, end = self.parts.pop(0)
        n_cut = end - n
        del self.kept[n:end]
        for values in (self.tokens, self.known, self.step, self.logprob):
            del values[n:end]
        order = []
        for p in self.order:
            if p < n:
                order.append(p)
            elif p >= end:
                order.append(p - n_cut)
        self.order = order
        self.spans = [[start, min(stop, n)] for start, stop in self.spans]
        self.parts = [[first - n_cut, later - n_cut] for first, later in self.parts]
        moved = []
        for start, stop, pattern in self.patterns:
            shift = n_cut if start >= end else 0
            moved.append((start - shift, stop - shift, pattern))
        self.patterns = moved
        self.seed = derive_seed(self.seed, 'part')


def check_at_once(n_tokens, parts, block_size):
    """Raise ValueError unless a text is written on one canvas, as guidance wants it: on a second
    one what was written would count as the prompt."""
    if n_tokens > block_size:
        raise ValueError(
            'cfg_scale wants a text that fits into the model, with what is to be written: at most '
            f'{block_size} tokens, got {n_tokens}'
        )
    if len(parts) > 1:
        raise ValueError(
            'cfg_scale wants a text that is written as a whole, and with a stop what stands behind '
            'a [[..]] is written after it: leave out stop, or cfg_scale'
        )


def has_stop(tokens, first, n, stops, tokenizer):
    """Return whether the text of the tokens [first, n) holds one of the stops."""
    edge = tokenizer.separator  # a name is not found inside of another
    text = edge + text_from(first, tokens[first:n], tokens, tokenizer) + edge
    return any(edge + stop + edge in text for stop in stops)


def end_of(tokens, stops, tokenizer, first=0):
    """Return how many of the tokens hold a first of the stops, to its end, of those from `first`
    on; None if there is none."""

    def holds(n):
        return has_stop(tokens, first, n, stops, tokenizer)

    n = len(tokens)
    if not holds(n):
        return None
    return first + bisect_left(range(first, n), True, key=holds)
