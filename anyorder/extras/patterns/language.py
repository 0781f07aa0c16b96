"""Which texts match, and what law has a blank among them? The language of a canvas."""

import numpy as np
import torch

from anyorder.extras.patterns.masses import Classes
from anyorder.extras.patterns.messages import Messages, taken
from anyorder.fast import split_rows
from anyorder.generation.limits import Limits
from anyorder.generation.plan import Cells
from anyorder.machine.devices import widest

OBSERVED = -2  # in place of a token whose law a step has answered
BLANK = -1  # in place of a token


def language_of(parts, canvas, tokenizer, stand_in=None):
    """Return the limits of a canvas, parts of which match patterns: a Language for each table.

    parts     [(row, start, tokens, Pattern)]: the row of the canvas, where the part begins there,
              its tokens, -1 in blanks. A part may begin before the canvas, where all is known, and
              end behind it
    stand_in  (n_tokens,) weights > 0 of the tokens in blanks that no step has answered yet, by
              default all alike. What canvas.limits forbid has no weight

    Raises ValueError where nothing matches."""
    if stand_in is None:
        stand_in = torch.ones(tokenizer.n_tokens)
    of_tables = {}
    for *part, pattern in parts:
        of_tables.setdefault(pattern.table(tokenizer), []).append(part)
    limits = canvas.limits
    for table, spans in of_tables.items():
        limits = Language(table, spans, canvas, limits, stand_in)
    return limits


class Language(Limits):
    """The law of the blanks of a canvas, given that the texts of the spans of a table match.

        q(x) = prod_i p_i(x_i | known) 1[the spans match] / Z

    p_i is the law of the network for a blank that a step answers, and a stand-in law for the other
    blanks. A blank has the law p_i(v) W_i(class of v) / Z, see Messages. Tokens of a step that are
    drawn by these laws in turn, each given those before it, are drawn from the joint law q.

    inner       the Limits of each blank by itself, or the Language of another table
    log_weight  the sum of log p(token) - log q(token) of the tokens in the spans: with E_q[p / q] =
                p(the text matches) a weight for the law of the network itself. Here q is tempered
                and cut as the tokens were drawn, and p is not

    What is known of the n spans of at most L places is on the host: what a device has is brought
    here. A span may begin before the canvas, and end behind it.

    row       (n,) of each span
    start     (n,) the position on the canvas where it begins, below 0 before it
    span      (B, N) the number of the span that has a position, -1 for none
    position  (n, L) that of a place, -1 for none on the canvas
    beside    (n, L) the token of a place before or behind the canvas
    held      (n, L) whose law the messages have: that of a known token, or that of a BLANK which
              nobody has answered, or one that was OBSERVED
    stand_in  (n, L, C) the log masses of the law of a BLANK"""

    joint = True
    asks_host = True

    def __init__(self, table, spans, canvas, inner, stand_in):
        """Prepare the law of a canvas by the spans of a table, (row, start, tokens) each. See
        language_of."""
        device = canvas.idx.device
        self.inner = inner
        self.log_weight = inner.log_weight
        self.classes = Classes(table, device)
        self.of_token = table.classes

        # Where the spans are, and what stands beside the canvas
        rows, starts, texts = zip(*spans)
        self.row = np.array(rows)
        self.start = np.array(starts)
        lengths = np.array([*map(len, texts)])
        shape = len(spans), lengths.max()
        self.position = np.full(shape, -1)
        self.beside = np.full(shape, BLANK)
        for i, (row, start, tokens) in enumerate(spans):
            first = max(0, -start)
            end = min(len(tokens), int(canvas.n_visits[row]) - start)
            self.beside[i, : len(tokens)] = tokens
            self.position[i, first:end] = range(start + first, start + end)
        self.find_spans(canvas.idx.shape)
        self.held = np.full(shape, BLANK)

        # The laws of what nobody has answered
        log_weights = torch.as_tensor(stand_in).to(device, widest(device)).log().unsqueeze(0)
        log_masses = self.classes.log_masses(log_weights)
        self.stand_in = np.tile(log_masses, (*shape, 1))
        self.messages = Messages(table, lengths, self.stand_in.copy())
        self.begin_step(canvas, canvas.n_known.to(device))
        if canvas.limits.asks_host:
            self.restrict(canvas, log_weights)
        log_z = self.messages.log_z()
        if (log_z == -np.inf).any():
            i = log_z.argmin()
            row = self.row[i]
            raise ValueError(
                f'no text of row {canvas.limits.text_row[row]} matches {table.pattern} from '
                f'position {canvas.limits.text_start[row] + self.start[i]} on with what is known '
                'and allowed there: choose another text, another number of blanks, or allow more'
            )

    def find_spans(self, shape):
        """Find the span of each position of a canvas of this shape (B, N)."""
        self.span = np.full(shape, -1)
        span, place = np.nonzero(self.position >= 0)
        self.span[self.row[span], self.position[span, place]] = span

    def find(self, cells):
        """Return the span and the place (n,) of those of the cells (m,) that are in one, and their
        numbers, on the device."""
        row, at = torch.stack([cells.row, cells.position]).cpu().numpy()
        span = self.span[row, at]
        number = np.flatnonzero(span >= 0)
        span = span[number]
        place = at[number] - self.start[span]
        return span, place, torch.from_numpy(number).to(cells.row.device)

    def restrict(self, canvas, log_weights):
        """Restrict the stand-in law of each BLANK to what is allowed there."""
        span, place = np.nonzero((self.held == BLANK) & (self.position >= 0))
        found = np.stack([self.row[span], self.position[span, place]])
        n_tokens = log_weights.size(1)
        device = log_weights.device
        logs = []
        for row, position in zip(*split_rows(n_tokens, *torch.from_numpy(found).to(device))):
            cells = Cells(row, None, None, position)
            logits = log_weights.repeat(len(row), 1)
            logits = canvas.limits.alone(logits, canvas, cells, n_tokens, False)
            logs.append(self.classes.log_masses(logits))
        self.stand_in[span, place] = np.concatenate(logs)
        self.messages.put(span, place, self.stand_in[span, place])

    def begin_step(self, part, n_known):
        """Begin a step of rows, see Limits. All other places have the stand-in law unless this step
        names another one."""
        self.inner.begin_step(part, n_known)
        is_known = part.order.argsort(1) < n_known.unsqueeze(1)  # (B, N) by position
        tokens = torch.where(is_known, part.idx, BLANK).cpu().numpy()
        known = tokens[self.row[:, None], self.position]
        known = np.where(self.position >= 0, known, self.beside)
        span, place = np.nonzero(known != self.held)
        self.hold(span, place, known[span, place])

    def hold(self, span, place, token):
        """Put the laws of tokens (n,), or BLANK, at their places."""
        self.held[span, place] = token
        logs = self.stand_in[span, place]
        is_known = token != BLANK
        logs[is_known] = -np.inf
        logs[is_known, self.of_token[token[is_known]]] = 0
        self.messages.put(span, place, logs)

    def alone(self, logits, part, cells, n_tokens, forced):
        """Return the logits of the laws of each by itself, and take note of them."""
        logits = self.inner.alone(logits, part, cells, n_tokens, forced)
        span, place, number = self.find(cells)
        self.held[span, place] = OBSERVED
        own = logits if len(span) == len(logits) else logits[number]
        self.messages.put(span, place, self.classes.log_masses(own))
        return logits

    def law(self, cells, logits):
        """Return logits (m, V) of the laws of blanks that have matched, by their own logits.

        Blanks outside of all spans keep theirs, as do those of a text that is scored where nothing
        matches any more."""
        logits = self.inner.law(cells, logits)
        span, place, number = self.find(cells)
        if not span.size:
            return logits
        log_weights = self.messages.log_weights(span, place)
        log_weights[(log_weights == -np.inf).all(1)] = 0
        log_weights -= log_weights.max(1, keepdims=True)
        if len(span) == len(logits):
            return self.classes.added(logits, log_weights)
        own = self.classes.added(logits[number], log_weights)
        return logits.to(own.dtype).index_copy(0, number, own)

    def reveal(self, part, cells, token, nats):
        self.inner.reveal(part, cells, token, nats)
        span, place, number = self.find(cells)
        self.hold(span, place, token[number].cpu().numpy())
        row = part.rows.to(nats.device)[cells.row[number]]
        self.log_weight.index_add_(0, row, nats[number].to(self.log_weight))

    def compared(self, score, cells):
        score = self.inner.compared(score, cells)
        is_own = torch.isin(cells.row, torch.from_numpy(self.row).to(cells.row.device))
        return torch.where(is_own, without_rounding(score, cells.row), score)

    def take(self, rows):
        row, spans = np.nonzero(rows.numpy()[:, None] == self.row)
        part = taken(self, ('start', 'position', 'beside', 'held', 'stand_in'), spans)
        part.inner = self.inner.take(rows)
        part.messages = self.messages.take(spans)
        part.row = row
        part.find_spans((len(rows), self.span.shape[1]))
        return part


def without_rounding(score, row):
    """Return scores (m,) of which those of a row (m,) that differ by rounding alone are equal.

    Blanks that decide each other, as the digits of (19|20), have equal scores in exact numbers.
    In order of size, each score becomes the one before it, unless the step is larger than the tenth
    of a root of the precision: in float32 rounding made steps up to 1e-5."""
    best = score.argsort(descending=True, stable=True)
    best = best[row[best].argsort(stable=True)]
    ranked = score[best]
    is_lower = ranked.diff() < -0.1 * torch.finfo(score.dtype).eps ** 0.5
    is_lower |= row[best].diff() != 0
    first = torch.arange(len(score), device=score.device)  # of those that are equal
    first[1:] = torch.where(is_lower, first[1:], 0)
    equal = ranked[first.cummax(0).values]
    return torch.empty_like(score).index_copy(0, best, equal)
