"""Which slots does each of the next steps run? All steps are planned on the host, before the first.

The plan goes to the device in one copy. A CPU runs exactly what is planned; elsewhere sizes are
rounded up to a few, so that a step is one of a few CUDA graphs."""

from typing import NamedTuple

import torch

KEYS = 128  # keys are rounded up to a multiple


def is_host(device):
    """Return whether a device is the host itself, which waits for no number."""
    return device.type == 'cpu'


class Numbers(NamedTuple):
    """The numbers of a step, (B,) each on the device: the five of Slots.plan, for which drafts are
    known, and

    n_targets  how many visits from `first` on are predicted, 0 in a row that is finished
    n_new      how many of these are revealed
    step       its number in its row, from 0
    n_given    how many of the first visits were given"""

    known: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor
    n_targets: torch.Tensor
    n_new: torch.Tensor
    step: torch.Tensor
    n_given: torch.Tensor


class Size(NamedTuple):
    """How wide a step is: the slots, targets and keys of Network.answer, and how many blanks the
    widest row reveals, exactly or padded; whether all rows have as many targets and reveals."""

    slots: int
    targets: int
    keys: int | None
    reveals: int
    even: bool

    @classmethod
    def of(cls, widths, reveals, least, exact, cache):
        """Return the Size of a pass of the widths (slots, targets, keys) whose rows have at least
        so many targets and reveals; one of few unless it is to be exact."""
        slots, targets, keys = widths
        targets = padded(targets, exact)
        reveals = padded(reveals, exact)
        if cache is not None and not exact:
            slots = padded(slots)
            keys = min(round_up(keys, KEYS), cache.k.size(3))
        return cls(slots, targets, keys, reveals, least == [targets, reveals])


class Plan(NamedTuple):
    """A step before it runs, whose tensors are (B,) on the host, but for `numbers`.

    n_done   how many steps are planned up to it, those that reveal nothing, too
    size     its Size
    numbers  (9, B) on the device: its Numbers
    n_new    how many blanks it reveals, or may reveal
    n_steps  how many steps a row has run then
    kept     how many slots a cache keeps after it"""

    n_done: int
    size: Size
    numbers: torch.Tensor
    n_new: torch.Tensor
    n_steps: torch.Tensor
    kept: torch.Tensor


def padded(n, exact=False):
    """Return n rounded up to a power of two, above 64 to a multiple of 64; if `exact` n itself."""
    if exact:
        return n
    if n > 64:
        return round_up(n, 64)
    return 1 << (n - 1).bit_length()


def round_up(n, step):
    return -(-n // step) * step


def planned(runner, known_after):
    """Plan the next steps of the rows of a Runner, to the one after which rows are to be put away.

    known_after  (B, steps) the visits that are known after each step, on the host
    returns      [Plan of each step that reveals something]"""
    part = runner.part
    known_after = torch.minimum(known_after.T, part.n_visits)  # (steps, B)
    n_new = known_after.diff(dim=0, prepend=part.n_known.unsqueeze(0))
    n_left = (known_after < part.n_visits).sum(1)
    last = int(is_due(n_left, part).int().argmax())

    # Which steps take a pass: a binomial one may reveal nothing. Of these alone is all below
    passes = n_new[: last + 1].any(1).nonzero()[:, 0]  # (passes,) their steps
    n_new = n_new[passes]  # (passes, B)
    first = known_after[passes] - n_new
    step = part.n_steps + passes.unsqueeze(1)

    # Which slots answer, and how many
    unmasking = runner.unmasking
    known, n_targets = unmasking.targets(part, first, n_new)
    n_visits, n_given = [x.expand_as(first) for x in (part.n_visits, part.n_given)]
    bounds = known, first, n_targets, n_visits
    T = part.order.size(1)
    plan = runner.network.slots_class.plan(bounds, T, runner.cache, unmasking.reorders)
    numbers, widths, kept = plan
    numbers = torch.cat([numbers, torch.stack([n_targets, n_new, step, n_given], 1)], 1)
    numbers = numbers.to(part.idx.device, non_blocking=True)
    least = torch.stack([n_targets, n_new], 1).amin(2).tolist()
    each = zip(widths, n_new.amax(1).tolist(), least)
    sizes = [Size.of(*own, part.is_exact, runner.cache) for own in each]
    return [*map(Plan, (1 + passes).tolist(), sizes, numbers, n_new, 1 + step, kept)]


def is_due(n_left, part):
    """Return whether finished rows are to be put away: all at once where steps are exact, elsewhere
    once they are half of them, since other rows are other graphs."""
    most_left = len(part) - 1 if part.is_exact else len(part) // 2
    return n_left <= most_left


def filled_up(left):
    """Return the numbers of the rows `left` (B,), and of as many others as make one of few numbers
    of rows."""
    n_left = int(left.sum())
    n = padded(n_left) if n_left else 0
    left_first = left.int().argsort(descending=True, stable=True)
    return left_first[:n].sort().values


class Cells(NamedTuple):
    """Blanks that a step answers or reveals, (m,) each on the device: row, column among those of
    the row, visit and position.

    Exactly so many are there where rows are even, and where steps are exact. Elsewhere each row has
    as many as the widest, so that the host does not ask: the last one repeats.

    start    (B,) the cells before those of a row
    is_real  (m,) whether the row has any; None: nothing repeats"""

    row: torch.Tensor
    column: torch.Tensor
    visit: torch.Tensor
    position: torch.Tensor
    start: torch.Tensor | None = None
    is_real: torch.Tensor | None = None

    @classmethod
    def of(cls, part, first, count, n, even):
        """Return the cells of `count` (B,) visits from `first` (B,) on of the rows `part` of a
        canvas, at most n of a row; if `even` n of each."""
        order = part.order
        B, T = order.shape
        column = torch.arange(n, device=order.device).expand(B, n)
        if part.is_exact and not even:
            row, column = (column < count.unsqueeze(1)).nonzero(as_tuple=True)
            visit = first[row] + column
            return cls(row, column, visit, order[row, visit], count.cumsum(0) - count)
        row = torch.arange(B, device=order.device).repeat_interleave(n)
        start = torch.arange(0, B * n, n, device=order.device)
        is_real = None
        if not even:
            is_real = (count > 0)[row]
            column = torch.minimum(column, count.unsqueeze(1) - 1).clamp(min=0)
            first = first.clamp(max=T - 1)
        visit = first.unsqueeze(1) + column
        each = torch.stack([column, visit, order.gather(1, visit)])  # (3, B, n)
        return cls(row, *each.flatten(1), start, is_real)

    def at(self, number):
        """Return the cells of these numbers."""
        is_real = None if self.is_real is None else self.is_real[number]
        return Cells(*[x[number] for x in self[:4]], self.start, is_real)

    def those(self, chosen, exact):
        """Return the cells where `chosen` (m,) is True, and their numbers among these."""
        if exact:
            number = chosen.nonzero()[:, 0]
            return self.at(number), number
        if self.is_real is not None:
            chosen = self.is_real & chosen
        return self._replace(is_real=chosen), slice(None)

    def read(self, x):
        """Return what x (B, N), by position, says of them (m,)."""
        return x[self.row, self.position]

    def write(self, x, at, values):
        """Write values (m,) into x (B, N) at the columns (m,), in place; or (m, k) into (B, N,
        k)."""
        values = values.to(x.dtype)
        if self.is_real is not None:
            values = values[self.start[self.row] + self.column]  # a cell that repeats has the same
            is_real = self.is_real
            if values.dim() == 2:
                is_real = is_real.unsqueeze(1)
            values = torch.where(is_real, values, x[self.row, at])
        x[self.row, at] = values
