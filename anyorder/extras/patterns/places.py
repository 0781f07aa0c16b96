"""Which position of a canvas is which place of which span?"""

import torch

from anyorder.generation.plan import is_exact


class Places:
    """The places of n spans. One span more, an empty one, is where all is written that belongs to
    none of them, so that a device need not ask which cells do.

    row       (n + 1, 1) the row of each span
    position  (n + 1, L) the position of each place
    inside    (n + 1, L) whether the span has that place
    span      (B, N) the span of each position, n outside of all
    place     (B, N) the place of each position there"""

    def __init__(self, spans, n_rows, n_positions, device):
        n = len(spans)
        self.n_spans = n
        self.n_positions = n_positions
        ends = torch.tensor([[s.row, s.start, s.end] for s in spans] + [[0, 0, 0]])
        span = torch.full((n_rows, n_positions), n)
        for number, (row, start, end) in enumerate(ends[:n].tolist()):
            span[row, start:end] = number
        self.span = span.to(device, non_blocking=True)
        first = ends[span, 1].to(device, non_blocking=True)
        self.place = torch.arange(n_positions, device=device) - first
        self.place[self.span == n] = 0

        n_places = int((ends[:, 2] - ends[:, 1]).max())
        row, start, end = ends.to(device, non_blocking=True).T.unsqueeze(2)
        position = start + torch.arange(n_places, device=device)
        self.row = row
        self.inside = position < end
        self.position = position.clamp(max=n_positions - 1)

    def find(self, cells, position):
        """Return span, place and number of the cells (m,) that are real and in a span.

        A device does not ask which are: there all are returned, and the others are of the empty
        span."""
        span = self.span[cells.row, position]
        place = self.place[cells.row, position]
        if cells.is_real is not None:
            span = torch.where(cells.is_real, span, self.n_spans)
        if not is_exact(span.device):
            return span, place, slice(None)
        number = (span < self.n_spans).nonzero()[:, 0]
        if len(number) == len(span):
            return span, place, slice(None)
        return span[number], place[number], number

    def those(self, chosen):
        """Return span and place (m,) of the places where `chosen` (n + 1, L) is True, on a device
        of all: the others are of the empty span."""
        if is_exact(chosen.device):
            return chosen.nonzero(as_tuple=True)
        number = torch.arange(len(chosen), device=chosen.device).unsqueeze(1)
        place = torch.arange(chosen.size(1), device=chosen.device).expand_as(chosen)
        span = torch.where(chosen, number, self.n_spans)
        return span.flatten(), place.flatten()
