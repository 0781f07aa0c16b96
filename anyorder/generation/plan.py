"""Which slots does each of the next steps run? All steps are planned on the host, before the first.

The plan goes to the device in one copy. A CPU runs exactly what is planned; elsewhere sizes are
rounded up to a few, so that a step is one of a few CUDA graphs."""

from typing import NamedTuple

import torch

from model import RowRanges

KEYS = 128  # keys are rounded up to a multiple


def is_exact(device):
    """Return whether a device runs exactly what is planned: the CPU, where numbers cost no wait."""
    return device.type == 'cpu'


class Bounds(NamedTuple):
    """The numbers of a step, (B,) each on the device: those of RowRanges, and

    n_targets  how many visits from `first` on are answered, 0 in a row that is finished
    n_new      how many of these are revealed
    n_steps    the number of the step in its row, from 0
    n_prompt   how many of the first visits were given"""

    known: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor
    n_targets: torch.Tensor
    n_new: torch.Tensor
    n_steps: torch.Tensor
    n_prompt: torch.Tensor

    @property
    def ranges(self):
        return RowRanges(*[x.unsqueeze(1) for x in self[:5]])


class Size(NamedTuple):
    """How wide a step is: the slots, targets and keys of Network.answer, and how many blanks the
    widest row reveals, exactly or padded; whether all rows have as many targets, and reveals."""

    slots: int
    targets: int
    keys: int | None
    reveals: int
    all_targets: bool = False
    all_reveals: bool = False
    is_padded: bool = False

    def padded(self, n_cached):
        """Return one of few sizes, at least as large. A cache has n_cached slots; without one, 0,
        the slots stay as many as they are: all, of an encoder."""
        slots = self.slots
        keys = self.keys
        if n_cached:
            slots = pad_size(slots)
            keys = min(round_up(keys, KEYS), n_cached)
        targets = pad_size(self.targets)
        return Size(slots, targets, keys, pad_size(self.reveals), is_padded=True)

    def with_all(self, n_targets, n_new):
        """Return the same, of rows that have n_targets at least, and reveal n_new."""
        all_reveals = n_new == self.reveals
        return self._replace(all_targets=n_targets == self.targets, all_reveals=all_reveals)

    def with_reveals(self, n_new):
        """Return the size of a step that reveals n_new (B,), which is on the host."""
        reveals = int(n_new.max())
        if self.is_padded:
            reveals = pad_size(reveals)
        return self._replace(reveals=reveals, all_reveals=False)


def pad_size(n):
    """Return n rounded up to a power of two, above 64 to a multiple of 64."""
    if n > 64:
        return round_up(n, 64)
    return 1 << (n - 1).bit_length()


def round_up(n, step):
    return -(-n // step) * step


class Plan:
    """The steps from now on, to the one after which rows are to be put away, see is_due.

    sizes    [steps] of Size
    table    (steps, 9, B) the Bounds of each step, on the device
    number   [steps] of all steps that the rows run from now on: one that reveals nothing is none

    and (steps, B) each, on the host:

    n_new    how many blanks a step reveals, or may reveal
    n_steps  as in Bounds
    kept     how many slots a cache keeps after the step"""

    def __init__(self, slots, unmasking, part, ends, cache):
        """Plan steps of the rows `part` of a canvas.

        slots      the class of Slots of the network
        unmasking  the Unmasking that runs them
        ends       (B, steps) the visits that are known after each step, on the host
        cache      the KVCache of the rows, or None"""
        exact = is_exact(part.idx.device)
        ends = torch.minimum(ends, part.n_visits.unsqueeze(1)).T  # (steps, B)
        before = torch.cat([part.known.unsqueeze(0), ends[:-1]])
        n_new = ends - before
        n_left = (ends < part.n_visits).sum(1)
        last = [is_due(n, len(part), exact) for n in n_left.tolist()].index(True)
        reveals = n_new[: last + 1].any(1)  # a binomial step may reveal nothing
        number = reveals.nonzero()[:, 0]  # (steps,)
        first = before[number]  # (steps, B), as are the next ones
        self.number = number.tolist()
        self.n_new = n_new[number]
        self.n_steps = part.n_steps + number.unsqueeze(1)

        # Which slots answer
        T = part.order.size(1)
        n_targets = unmasking.n_targets(part, first, self.n_new)
        known = unmasking.known(part, first, self.n_new)
        counts = n_targets.clamp(min=1)
        n_visits = part.n_visits.expand_as(known)
        end, kept, needs_mask = slots.span(known, first, counts, T, n_visits)
        self.kept = unmasking.kept(slots, known, kept)
        length = torch.zeros_like(known)
        n_cached = 0
        if cache is not None:
            n_cached = cache.k.size(3)
            length = torch.cat([cache.length.unsqueeze(0), self.kept[:-1]])
        ranges = RowRanges.of(known, first, counts, end, length, T)
        n_prompt = part.n_prompt.expand_as(known)
        bounds = Bounds(*ranges, n_targets, self.n_new, self.n_steps, n_prompt)
        self.table = torch.stack(bounds, 1).to(part.idx.device, non_blocking=True)

        # How wide
        most = torch.stack([end - ranges.start, n_targets, end, self.n_new]).amax(2)  # (4, steps)
        least = torch.stack([n_targets, self.n_new]).amin(2)
        has_mask = needs_mask or cache is not None
        self.sizes = []
        for widest, least_of_rows in zip(most.T.tolist(), least.T.tolist()):
            size = Size(*widest)
            if not has_mask:
                size = size._replace(keys=None)
            if not exact:
                size = size.padded(n_cached)
            self.sizes.append(size.with_all(*least_of_rows))

    def __len__(self):
        return len(self.sizes)


def is_due(n_left, n_rows, exact):
    """Return whether finished rows are to be put away: all at once, elsewhere than on a CPU once
    they are half of them, since other rows are other graphs."""
    if exact:
        return n_left < n_rows
    return n_left <= n_rows // 2


def filled_up(left):
    """Return the rows `left` (B,), and as many others as make one of few numbers of rows."""
    n_left = int(left.sum())
    if n_left == 0:
        return left
    others = (~left).nonzero()[:, 0][: pad_size(n_left) - n_left]
    return left.index_fill(0, others, True)


class Cells(NamedTuple):
    """The blanks that a step answers or reveals, (m,) each on the device: row, column, visit.

    Exactly so many are there where all rows have as many, and on a CPU. Elsewhere each row has as
    many as the widest, so that the host does not ask: the last one repeats.

    start    (B,) the cells before those of a row
    is_real  (m,) whether the row has any; None: nothing repeats"""

    row: torch.Tensor
    column: torch.Tensor
    visit: torch.Tensor
    start: torch.Tensor
    is_real: torch.Tensor | None

    @classmethod
    def of(cls, first, count, n, T, all_have):
        """Return the cells of `count` (B,) visits from `first` (B,) on, at most n of a row of T
        visits; all_have says whether all rows have n."""
        device = first.device
        columns = torch.arange(n, device=device)
        if is_exact(device) and not all_have:
            row, column = (columns < count.unsqueeze(1)).nonzero(as_tuple=True)
            return cls(row, column, first[row] + column, count.cumsum(0) - count, None)
        row = torch.arange(len(first), device=device).repeat_interleave(n)
        start = torch.arange(0, len(first) * n, n, device=device)
        if all_have:
            visit = first.unsqueeze(1) + columns
            return cls(row, columns.repeat(len(first)), visit.flatten(), start, None)
        column = torch.minimum(columns, count.unsqueeze(1) - 1).clamp(min=0)  # (B, n)
        visit = (first.unsqueeze(1) + column).clamp(max=T - 1)
        return cls(row, column.flatten(), visit.flatten(), start, (count > 0)[row])

    def at(self, number):
        """Return the cells of these numbers."""
        is_real = None if self.is_real is None else self.is_real[number]
        return Cells(*[x[number] for x in self[:3]], self.start, is_real)

    def those(self, chosen):
        """Return the cells where `chosen` (m,) is True, and their numbers among these."""
        if is_exact(chosen.device):
            number = chosen.nonzero()[:, 0]
            return self.at(number), number
        if self.is_real is not None:
            chosen = self.is_real & chosen
        return self._replace(is_real=chosen), slice(None)

    def from_left_to_right(self, order):
        """Return the cells of each row by the positions that order (B, T) visits, those that repeat
        last, and where each stood before."""
        position = order[self.row, self.visit]
        T = order.size(1)
        if self.is_real is not None:
            number = torch.arange(len(position), device=position.device)
            repeats = self.column != number - self.start[self.row]
            position = position.masked_fill(repeats, T)
        at = (self.row * (T + 1) + position).argsort(stable=True)
        return self._replace(visit=self.visit[at]), at

    def in_column(self, column):
        """Return the cells of one column, at most one a row, and their numbers among these."""
        if is_exact(self.row.device):
            number = (self.column == column).nonzero()[:, 0]
            return self.at(number), number
        number = self.start + column
        one = self.at(number)
        is_real = one.is_real
        if is_real is not None:  # a column that repeats is an earlier one
            is_real = is_real & (one.column == column)
        start = torch.arange(len(number), device=number.device)
        column = torch.zeros_like(one.column)
        return Cells(one.row, column, one.visit, start, is_real), number

    def write(self, table, position, values):
        """Write values (m,) into the table (B, N) at the positions (m,), in place; or
        (m, k) into (B, N, k)."""
        if self.is_real is not None:
            values = values[self.start[self.row] + self.column]  # a cell that repeats has the same
            is_real = self.is_real
            if values.dim() == 2:
                is_real = is_real.unsqueeze(1)
            values = torch.where(is_real, values, table[self.row, position])
        table[self.row, position] = values
