"""How is a text of any length written? Stretch by stretch, each on a canvas of its own."""

import math
from bisect import bisect_left

import numpy as np
import torch

from anyorder.checkpoint import stand_in_of
from anyorder.generation.canvas import LIKELIEST, STEP, TOKEN, VISIT, Canvas
from anyorder.generation.fill import steps
from anyorder.seeds import derive_seed
from anyorder.tokens.shown import text_from

GIVEN = -1  # in place of a step
BLANK = -2  # in place of a step


class Text:
    """A text, from its Template to the sample that is made of it.

    A text that fits into the model is one stretch. A longer one slides on: the next stretch begins
    `context` positions before its first blank, and is as long as the model. Its tokens are drawn
    given all text that is known on its canvas, and nothing before: the log-probability of the text
    is a sum over stretches. The model counts positions from the start of a stretch, so that a cache
    serves one stretch. The next reads its context anew, in the pass of its first token: a decoder
    runs 1 + context / (block_size - context) slots a token, in as many passes as tokens.

    A text ends with the token in which the first of the stops ends, from its first blank on. Its
    row ends once the stop and all before it are known. What was written after the stop is cut.

    A text with open blanks is written section by section if there are stops, see
    Template.sections, each as if nothing came after it. The stop is looked for in the open blank
    alone, which ends with the stop, or at its share if there is none. The next section follows at
    once: in stretches of its own, given the text before it, by derive_seed(seed of the one before
    it, 'part'). What stands after the last open blank is a section without a stop. Without stops
    all places are as in the template, and all its text is known from the start.

    places      (rows, N) all of them, as Canvas.places has them, but for these: STEP is GIVEN
                or BLANK, or counts on from stretch to stretch; VISIT says which of the places of
                one step came first, and which of the given ones: those of the first stretch as they
                are read, then others from left to right
    sections    [[first, end], ...] of this one and of those that follow, see Template.sections
    n_open      how many blanks have not ended with a stop
    patterns    [[start, end, Pattern], ...] of what matches one, within a section
    spans       [[start, end], ...] of its stretches
    n_steps     steps of the stretches that are written
    n_passes    passes of the network that they took
    log_weight  see sample; None of a text that is revised"""

    def __init__(self, template, seed, page, checkpoint, row):
        """Begin to write the text of a Template whose blanks have their lengths.

        page        a Page whose `stop` is a list. The positions of `allowed` count from the start
                    of the text as it is then
        checkpoint  of the model that writes it
        row         which one it is for a function `allowed`"""
        self.template = template
        self.seed = seed
        self.page = page
        self.checkpoint = checkpoint
        self.tokenizer = checkpoint.tokenizer
        self.block_size = checkpoint.config.block_size
        self.row = row
        self.places = np.zeros((LIKELIEST + page.n_likeliest, len(template)))
        self.places[TOKEN] = template.tokens
        self.places[VISIT] = np.inf
        self.places[STEP] = np.where(template.is_known, GIVEN, BLANK)
        self.sections = template.sections(page.stop)
        self.n_open = len(template.open) or 1
        self.patterns = [[*match] for match in template.patterns]
        self.spans = []
        self.n_steps = 0
        self.n_passes = 0
        self.log_weight = 0.0

    def first_blank(self):
        """Return where the first blank of the section is, or else its end."""
        _, end = self.sections[0]
        return int(np.append(self.is_blank[:end], True).argmax())

    @property
    def is_blank(self):
        """(N,) of all places until now."""
        return self.places[STEP] == BLANK

    @property
    def tokens(self):
        """[N] of all places, -1 in blanks."""
        return np.where(self.is_blank, -1, self.places[TOKEN]).astype(int).tolist()

    @property
    def last_step(self):
        """The number of the last step that wrote a token, -1 before the first."""
        return int(self.places[STEP].max(initial=GIVEN))

    def goes_on(self):
        """End the sections that are written, each by a stop or not. Return whether one is left,
        which follows by its own seed."""
        self.n_steps = 1 + self.last_step
        while self.sections:
            found = self.end()
            if found is None:
                return True
            n, has_stop = found
            self.n_open -= has_stop
            self.seed = derive_seed(self.seed, 'part')

            # What follows the section moves up to its end
            _, end = self.sections.pop(0)
            self.places = np.delete(self.places, range(n, end), 1)
            self.spans = np.minimum(self.spans, n).tolist()
            for span in (*self.sections, *self.patterns):
                if span[0] >= end:
                    span[:2] = span[0] - end + n, span[1] - end + n
        return False

    def end(self):
        """Return up to which position the section is written, and whether with a stop; None while
        it is not."""
        n = self.first_blank()
        first, end = self.sections[0]
        n_kept = end_of(self.tokens[:n], self.page.stop, self.tokenizer, first)
        if n_kept:
            return n_kept, True
        if n == end:
            return n, False
        return None

    @property
    def stretch(self):
        """The places of the last stretch."""
        return self.places[:, slice(*self.spans[-1])]

    def slide_on(self):
        """Begin the next stretch. Return (its tokens, and which of them are known); its seed; and
        where it is: its row, and the position in the text."""
        _, end = self.sections[0]
        start = 0
        blank = self.first_blank()
        if blank >= self.block_size:
            start = blank - (self.page.context or self.block_size // 2)
        self.spans.append([start, min(start + self.block_size, end)])
        seed = self.seed
        if start:
            seed = derive_seed(seed, 'stretch', start)
        stretch = self.stretch[TOKEN].astype(int), self.stretch[STEP] > BLANK
        return stretch, seed, self.row, start

    def to_match(self, row):
        """Yield what of the last stretch is to match a pattern, where a blank of it is left.

        row     on the canvas
        yields  (row, where it begins on the canvas, its tokens, -1 in blanks, Pattern): it may
                begin before the canvas, where all is known, and end behind it"""
        begin, stop = self.spans[-1]
        for start, end, pattern in self.patterns:
            if self.is_blank[max(start, begin) : min(end, stop)].any():
                yield row, start - begin, self.tokens[start:end], pattern

    def take_down(self, row):
        """Write down what the last stretch has revealed until now, its row of Canvas.places."""
        stretch = self.stretch
        row = row[:, : stretch.shape[1]]  # without padding
        if len(self.spans) == 1:  # as it is read
            stretch[VISIT] = row[VISIT]
        is_new = row[STEP] >= 0
        stretch[:, is_new] = row[:, is_new]
        stretch[STEP, is_new] += self.n_steps

    def seen(self):
        """Return what is to be seen of it until now, to the end of its section: [token], -1 in
        blanks, [step] and [log p]."""
        _, end = self.sections[0]
        return self.tokens[:end], *self.places[STEP:LIKELIEST, :end].tolist()

    def sample(self):
        """Return what there is to say of the text, up to its stop.

        text, tokens, order, step, logprob
        nats       the sum of -log p
        blanks     how many tokens were written, and
        passes     by how many passes: of a step one, with guidance two, and one of each round of
                   revision; those that find a length do not count
        stretches  [[start, end], ...] where the text did not fit into the model, or has sections
        lengths    a dict for each blank that found its length, see choose_lengths
        patterns   [[start, end, pattern], ...] of what matches one
        log_weight log p - log q in nats of the tokens in patterns: p is the law without patterns,
                   temperature and cuts, q the law that drew or scored them. A weight with which
                   samples stand for p. A revised text has none: what drew it is not known
        top_logprobs  if they are kept: of each token that was written what `said` says, None of
                   others
        stopped    with a stop: whether the text has one, or each of its open blanks if it has any

        In another order than left to right the log-probability of a token may be given tokens that
        were cut."""
        _, visit, step, logprob, *_ = self.places
        tokens = self.tokens
        sample = {
            'text': self.tokenizer.decode(tokens),
            'tokens': tokens,
            'nats': 0.0 - sum(logprob.tolist()),  # of no tokens 0.0, not -0.0
            'blanks': int((step > GIVEN).sum()),
            'passes': self.n_passes,
            'order': np.lexsort([visit, step]).tolist(),
            'step': step.astype(int).tolist(),
            'logprob': logprob.tolist(),
        }
        if self.page.top_logprobs:
            sample['top_logprobs'] = [self.said(i, tokens) for i in range(len(tokens))]
        if len(self.template) > self.block_size or len(self.spans) > 1:
            sample['stretches'] = self.spans
        if self.template.chosen:
            sample['lengths'] = self.template.chosen
        if self.patterns:
            sample['patterns'] = [[*span, pattern.text] for *span, pattern in self.patterns]
            if self.log_weight is not None:
                sample['log_weight'] = self.log_weight
        if self.page.stop:
            sample['stopped'] = self.n_open == 0
        return sample

    def said(self, i, tokens):
        """Return what a sample says of the place i among its tokens, None if it was known.

            {'token': id, 'text': ..., 'logprob': nats, 'top': [{'token': ...}, ...]}

        The likeliest token is the first of `top`, which has fewer where the law is cut to fewer."""
        _, _, step, _, own, *found = self.places[:, i].tolist()
        if step == GIVEN:
            return None

        def entry(token, nats):
            text = text_from(i, [token], tokens, self.tokenizer)
            return {'token': token, 'text': text, 'logprob': nats}

        both = np.reshape(found, (2, -1)).T.tolist()
        top = [entry(int(token), nats) for nats, token in both if nats > -math.inf]
        return entry(tokens[i], own) | {'top': top}


def scroll(texts, network, way, use_cache=True, is_seen=False):
    """Write texts of one Page in a Way. Yield after each step the number of tokens that it
    revealed.

    is_seen  write down each step at once, and not each stretch"""
    stop = texts[0].page.stop
    while written := [text for text in texts if text.goes_on()]:
        canvas = next_canvas(written, way.order, network.device)
        for n_new, running in steps(network, canvas, way, use_cache):
            if stop or is_seen:
                take_down(written, running)
            yield int(n_new.sum())
            if stop:
                done = [written[r].end() is not None for r in running.rows.tolist()]
                running.stop_rows(torch.tensor(done))
        take_down(written, canvas)
        log_weights = canvas.limits.log_weight.tolist()
        for text, n, log_weight in zip(written, canvas.n_passes.tolist(), log_weights):
            text.n_passes += n
            # that of a revised text has the tokens that were thrown away, too
            text.log_weight = None if way.unmasking.revise else text.log_weight + log_weight


def next_canvas(texts, order, device):
    """Return the canvas of the next stretch of each text."""
    page = texts[0].page
    checkpoint = texts[0].checkpoint
    stretches, seeds, rows, starts = map(list, zip(*[text.slide_on() for text in texts]))
    canvas = Canvas.of_texts(stretches, order, seeds, device, page.allowed)
    canvas.likeliest = canvas.u.new_zeros(*canvas.idx.shape, page.n_likeliest)
    canvas.limits.text_row, canvas.limits.text_start = torch.tensor([rows, starts]).to(device)
    matches = [match for row, text in enumerate(texts) for match in text.to_match(row)]
    if matches:
        pattern = matches[0][-1]  # any of them opens the room of patterns
        stand_in = stand_in_of(checkpoint)
        canvas.limits = pattern.language(matches, canvas, checkpoint.tokenizer, stand_in)
    return canvas


def take_down(texts, canvas):
    """Write down what is revealed until now in the rows of the canvas of texts, or those that
    run."""
    for r, row in zip(canvas.rows.tolist(), canvas.places()):
        texts[r].take_down(row)


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
