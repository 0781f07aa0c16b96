"""Which texts match, and what law has a blank among them? The language of a canvas."""

import copy
from typing import Any, NamedTuple

import torch
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from anyorder.extras.patterns.contradictions import check_before, raise_why
from anyorder.extras.patterns.masses import Classes
from anyorder.extras.patterns.messages import Chain, messages_of
from anyorder.extras.patterns.places import Places
from anyorder.fast import split_rows
from anyorder.generation.plan import Cells
from anyorder.machine.devices import widest

OBSERVED = -1  # in place of the number of a law
BLANK = -1  # in place of a token


class Span(NamedTuple):
    """The positions from `start` to `end` of a row of a canvas, whose text matches a pattern.

    table  its Table
    state  the state in which the span starts: table.start, or the one to which the text before the
           canvas leads
    after  the tokens of the span behind the canvas, -1 for blanks"""

    row: int
    start: int
    end: int
    table: Any
    state: int
    after: list = []


class Language:
    """The law of the blanks of a canvas, given that the texts of its spans match their patterns.

        q(x) = prod_i p_i(x_i | known) 1[the spans match] / Z

    p_i is the law of the network for a blank that a step answers, and a stand-in law for the other
    blanks. A blank has the law p_i(v) W_i(class of v) / Z, see Messages. Tokens of a step that are
    drawn by these laws in turn, each given those before it, are drawn from the joint law q.

    log_weight  (B,) the sum of log p(token) - log q(token) of the tokens that were drawn: with
                E_q[p / q] = p(the text matches) a weight for the law of the network itself"""

    def __init__(self, spans, canvas, stand_in=None, allowed=None):
        """Prepare the law of spans.

        stand_in  (n_tokens,) weights > 0 of the tokens in blanks that no step has answered yet, by
                  default all alike
        allowed   the Constraint of the canvas, or None: what it forbids has no weight there

        Raises ValueError where nothing matches, with the reason."""
        device = canvas.idx.device
        self.log_weight = torch.zeros(len(canvas), dtype=widest(device), device=device)
        check_apart(spans)
        by_table = {}
        for span in spans:
            by_table.setdefault(id(span.table), []).append(span)
        self.groups = [Group(some, canvas, stand_in, allowed) for some in by_table.values()]
        self.begin_step(canvas, canvas.known.to(device))
        for group in self.groups:
            group.check(canvas)

    def begin_step(self, part, n_known):
        """Begin a step of the rows `part` of the canvas, whose first n_known (B,) visits are known.

        All other places have the stand-in law unless this step observes another one."""
        visit = torch.arange(part.order.size(1), device=part.order.device)
        is_known = torch.zeros_like(part.order, dtype=torch.bool)
        is_known.scatter_(1, part.order, visit < n_known.unsqueeze(1))
        for group in self.groups:
            group.begin_step(part.idx, is_known)

    def observe(self, cells, position, logits):
        """Take note that the blanks `cells` (m,) at these positions (m,) have the laws
        softmax(logits), of logits (m, V)."""
        for group in self.groups:
            group.observe(cells, position, logits)

    def law(self, cells, position, logits):
        """Return logits (m, V) of the laws of blanks that have matched, by their own logits.

        Blanks outside of all spans keep theirs, as do those of a text that is scored where nothing
        matches any more."""
        for group in self.groups:
            logits = group.law(cells, position, logits)
        return logits

    def reveal(self, cells, position, token):
        """Take note that the tokens (m,) are known now at these positions."""
        for group in self.groups:
            group.reveal(cells, position, token)

    def weigh(self, row, nats):
        """Add nats (m,), log p - log q of drawn tokens, to the weights of their rows (m,)."""
        self.log_weight.index_add_(0, row, nats.to(self.log_weight.dtype))

    def take(self, rows):
        """Return the language of these rows of the canvas, (B',) numbers on the host, which may
        repeat."""
        taken = copy.copy(self)
        at = rows.to(self.log_weight.device, non_blocking=True)
        taken.log_weight = self.log_weight[at]
        groups = [group.take(rows) for group in self.groups]
        taken.groups = [group for group in groups if group.spans]
        return taken

    def put(self, rows, part):
        """Write down the weights of rows (B',) that `take` gave back, on the device."""
        self.log_weight[rows] = part.log_weight


def check_apart(spans):
    """Raise ValueError where two spans share a position."""
    end = {}  # of the last span of each row
    for span in sorted(spans, key=lambda span: span[:2]):
        if span.start < end.get(span.row, 0):
            raise ValueError(
                f'position {span.start} of row {span.row} belongs to two patterns, of which one is '
                f'{span.table.pattern}: leave out one of them'
            )
        end[span.row] = span.end


class Group:
    """The spans of one table, and what is known of them.

    laws      (C + k, C) masses: of a known token of each class, then of the stand-in laws
    stand_in  (n + 1, L) the number of the stand-in law of each place
    held      (n + 1, L) the number of the law that the messages have, or OBSERVED"""

    def __init__(self, spans, canvas, stand_in, allowed):
        self.spans = spans
        self.table = spans[0].table
        device = canvas.idx.device
        dtype = widest(device)
        self.places = Places(spans, *canvas.idx.shape, device)
        self.classes = Classes(self.table, dtype, device)

        # The laws of places that no step has answered
        n_classes = self.table.next.shape[1]
        if stand_in is None:
            stand_in = torch.ones(len(self.table.classes))
        log_weights = torch.as_tensor(stand_in).to(device, dtype).log().unsqueeze(0)
        of_known = torch.eye(n_classes, dtype=dtype, device=device)
        self.laws = torch.cat([of_known, self.classes.masses(log_weights)])
        self.stand_in = torch.full_like(self.places.position, n_classes)
        if allowed is not None:
            self.restrict(canvas, allowed, log_weights)
        self.held = torch.full_like(self.stand_in, OBSERVED)

        # The messages
        for span in spans:
            check_before(span)
        to = torch.tensor(self.table.next).to(device)
        states = [span.state for span in spans]
        states.append(self.table.start)
        start = one_hot(torch.tensor(states), len(to)).to(device, dtype).log()
        self.messages = messages_of(to, start, self.final(to, start), self.places.inside)

    def restrict(self, canvas, allowed, log_weights):
        """Restrict the stand-in law of each blank to what is allowed there."""
        row, column, visit = canvas.cells(canvas.n_blanks)
        position = canvas.order[row, visit]
        blanks = Cells(row, column, visit, None, None)
        span, place, number = self.places.find(blanks, position)
        row = row[number]
        first = len(self.laws)
        self.stand_in[span, place] = torch.arange(first, first + len(row), device=row.device)
        laws = [self.laws]
        parts = split_rows(log_weights.size(1), row, position[number])
        for rows, positions in zip(*parts):
            may = allowed.tokens_at(allowed.rows[rows], allowed.starts[rows] + positions)
            logits = log_weights.masked_fill(~may.to(log_weights.device), -torch.inf)
            laws.append(self.classes.masses(logits))
        self.laws = torch.cat(laws)

    def final(self, to, start):
        """Return the log weights (n + 1, S) of the states in which the spans leave the canvas: of
        what stands behind it, swept back."""
        final = torch.tensor(self.table.final).to(start).log().expand_as(start)
        behind = [torch.tensor(span.after, dtype=torch.long) for span in self.spans]
        behind.append(torch.tensor([], dtype=torch.long))
        n_behind = torch.tensor([len(tokens) for tokens in behind])
        if not n_behind.any():
            return final
        tokens = pad_sequence(behind, batch_first=True)
        inside = torch.arange(tokens.size(1)) < n_behind.unsqueeze(1)
        tokens = tokens.to(to.device)
        chain = Chain(to, start, final, inside.to(to.device))
        n_classes = to.size(1)
        law = torch.where(tokens < 0, n_classes, self.classes.of_token[tokens.clamp(min=0)])
        chain.masses = self.laws[law]
        chain.sweep_back(0)
        return chain.backward[-1]

    def check(self, canvas):
        """Raise ValueError if nothing matches, with the reason."""
        impossible = (self.messages.log_z() == -torch.inf).tolist()[:-1]
        if True not in impossible:
            return
        number = impossible.index(True)
        span = self.spans[number]
        visits = canvas.order[span.row, : canvas.known[span.row]].tolist()
        is_known = {*visits}
        tokens = canvas.idx[span.row, span.start : span.end].tolist()
        for place, position in enumerate(range(span.start, span.end)):
            if position not in is_known:
                tokens[place] = BLANK
        law = self.stand_in[number, : len(tokens)]
        allowed = [mass > 0 for mass in self.laws[law].cpu().numpy()]
        anything = self.laws[self.table.next.shape[1]].cpu().numpy() > 0
        allowed += [anything for _ in span.after]
        raise_why(span, tokens + span.after, allowed)

    def begin_step(self, idx, is_known):
        row = self.places.row
        position = self.places.position
        token = idx[row, position].clamp(max=len(self.classes.of_token) - 1)
        law = torch.where(is_known[row, position], self.classes.of_token[token], self.stand_in)
        changed = (law != self.held) & self.places.inside
        self.held = torch.where(changed, law, self.held)
        self.put(*self.places.those(changed))

    def observe(self, cells, position, logits):
        span, place, number = self.places.find(cells, position)
        self.held[span, place] = torch.full_like(place, OBSERVED)
        self.messages.put(span, place, self.classes.masses(logits[number]))

    def law(self, cells, position, logits):
        """Return logits (m, V) of the laws of blanks among what matches."""
        span, place, number = self.places.find(cells, position)
        if not len(span):
            return logits
        log_weights = self.messages.log_weights(span, place)
        keeps = (log_weights == -torch.inf).all(1) | (span == len(self.spans))
        log_weights.masked_fill_(keeps.unsqueeze(1), 0.0)
        if len(span) == len(logits):
            return self.classes.added(logits, log_weights)
        own = self.classes.added(logits[number], log_weights)
        return logits.to(own.dtype).index_copy(0, number, own)

    def reveal(self, cells, position, token):
        span, place, number = self.places.find(cells, position)
        self.held[span, place] = self.classes.of_token[token[number]]
        self.put(span, place)

    def put(self, span, place):
        """Put the laws that are held into the messages."""
        self.messages.put(span, place, self.laws[self.held[span, place]])

    def take(self, rows):
        """Return the same of these rows of the canvas."""
        of_row = {}
        for number, span in enumerate(self.spans):
            of_row.setdefault(span.row, []).append(number)
        numbers = []
        spans = []
        for new, old in enumerate(rows.tolist()):
            for number in of_row.get(old, ()):
                numbers.append(number)
                spans.append(self.spans[number]._replace(row=new))
        taken = copy.copy(self)
        taken.spans = spans
        taken.places = Places(spans, len(rows), self.places.n_positions, self.laws.device)
        numbers.append(len(self.spans))
        at = torch.tensor(numbers).to(self.laws.device, non_blocking=True)
        taken.stand_in = self.stand_in[at]
        taken.held = self.held[at]
        taken.messages = self.messages.take(at)
        return taken
