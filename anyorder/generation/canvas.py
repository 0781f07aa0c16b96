"""What are the rows being written? Their tokens, their order, and what each step revealed."""

import copy

import torch
from torch.nn.utils.rnn import pad_sequence

from anyorder.generation.limits import Limits
from anyorder.generation.plan import is_host
from anyorder.orders import are_permutations, check_orders, given_first
from anyorder.seeds import keys_of, seeds_of, uniform

TOKEN, VISIT, STEP, LOGPROB, LIKELIEST = range(5)  # rows of Canvas.places
TENSORS = ('idx', 'order', 'step', 'logprob', 'u', 'likeliest')  # (B, N, ...) on the device


class Canvas:
    """B rows of N positions that are being written.

    On the device, by position, but `order` by visit:

    idx       (B, N) tokens; in blanks they mean nothing, are drafts, or the text to be scored
    order     (B, N) positions: the known ones, the blanks, and padding from n_visits on
    step      (B, N) the step that revealed a token, from 0; -1 is known from the start, or blank
    logprob   (B, N) log p in nats of each revealed token, see Runner.write
    u         (B, N) uniform numbers in [0, 1) by which tokens are drawn
    names     of the numbers u, see draw_numbers
    likeliest (B, N, n) beside each, see Drawing.likeliest; n is 0 unless asked for
    keys      (B,) of keys_of: the seeds for draws on the device

    On the host:

    n_known   (B,) visits that are known by now
    n_given   (B,) of them those that were known from the start
    n_drafts  (B,) guesses, the visits after the known ones: see the rows in Lossless.accept
    n_visits  (B,) visits of each row
    seeds     [B] ints of all rows, in a part those of the whole canvas: every random number of a
              row is a function of its own seed
    n_steps   (B,) steps that each row has run
    n_passes  (B,) and passes of the network that they took
    rows      (B,) which rows of the whole canvas these are, see take
    limits    the Limits of its texts, or a Language, which are limits, too
    with_logprob  whether log p is kept, which costs a hundredth of the time"""

    with_logprob = True

    def __init__(self, idx, order, n_known, seeds, n_visits=None, allowed=None):
        """Begin to write in copies of idx and order (B, N).

        n_known and n_visits, by default N, are ints or (B,); `allowed` is as in Limits, of texts
        that begin with the canvas."""
        B, N = order.shape
        if idx.shape != order.shape or not are_permutations(order).all():
            raise ValueError(
                'each order must be a permutation of the positions of idx, got '
                f'{tuple(order.shape)} for {tuple(idx.shape)}'
            )
        if n_visits is None:
            n_visits = N
        self.n_known = torch.as_tensor(n_known).cpu().expand(B)
        self.n_given = self.n_known
        self.n_visits = torch.as_tensor(n_visits).cpu().expand(B)
        self.seeds = [int(seed) for seed in seeds]  # a stream is named by numbers, not by tensors
        fits = (0 <= self.n_known) & (self.n_known <= self.n_visits) & (self.n_visits <= N)
        if not fits.all() or len(self.seeds) != B:
            raise ValueError(
                f'0 <= n_known <= n_visits <= {N} and {B} seeds are needed, got '
                f'n_known={n_known!s:.60}, n_visits={n_visits!s:.60} and {len(self.seeds)} seeds'
            )
        self.idx = idx.clone()
        self.order = order.clone()
        self.rows = torch.arange(B)
        self.keys = keys_of(self.seeds, idx.device)
        self.draw_numbers()
        self.step = torch.full_like(idx, -1)
        self.logprob = torch.zeros_like(self.u)
        self.likeliest = self.u.new_zeros(*idx.shape, 0)
        self.n_steps = self.n_passes = self.n_drafts = torch.zeros_like(self.n_visits)
        self.limits = Limits(allowed, self)

    @classmethod
    def of_texts(cls, texts, order, seed, device='cpu', allowed=None):
        """Return the canvas of texts of any lengths.

        texts  [(tokens, given)], two lists each. Given tokens come first, then the blanks, both as
               the Order has them, but for given tokens as its known_l2r says
        seed   row r is a function of seed + r, or of seed[r]
        allowed  as in Limits"""
        seeds = seeds_of(seed, len(texts))
        lengths = torch.tensor([len(tokens) for tokens, _ in texts])
        tokens, given = [pad_sequence([*map(torch.tensor, some)], True) for some in zip(*texts)]
        orders = torch.arange(tokens.size(1)).repeat(len(texts), 1)
        for row, n, own in zip(orders, lengths.tolist(), seeds):
            row[:n] = order.draw(1, n, keys=keys_of([own]))[0]
            check_orders(row[:n], n, order.name)
        orders, n_known, _ = given_first(orders, given, lengths, order.known_l2r)
        return cls(tokens.to(device), orders.to(device), n_known, seeds, lengths, allowed)

    @classmethod
    def of_batch(cls, batch, seeds, batch_size, device):
        """Yield the canvases of a Batch, of batch_size rows each; `seeds` has one for each row."""
        seeds = torch.tensor(seeds)
        for rows in torch.arange(len(seeds)).split(batch_size):
            part = batch.rows(rows).to(device)
            yield cls(part.idx, part.order, part.n_given, seeds[rows], part.n_visits)

    def __len__(self):
        return len(self.rows)

    def draw_numbers(self, *names):
        """Draw u anew by seed, names and position; a round of revision has names of its own."""
        self.names = names
        self.u = uniform(self.keys.unsqueeze(1), 'tokens', *names, self.positions())

    def positions(self):
        return torch.arange(self.idx.size(1), device=self.idx.device)

    @property
    def n_blanks(self):
        """(B,) on the host."""
        return self.n_visits - self.n_known

    @property
    def is_exact(self):
        """Whether steps run exactly what is planned: on a CPU, and where they ask the host
        anyway."""
        return self.limits.asks_host or is_host(self.idx.device)

    def blank(self, chosen):
        """Make blanks of positions (B, N) bool: they become the last visits, as they are ordered,
        and all others are known."""
        n_visits = self.n_visits.to(chosen.device)
        self.order, _, n_blanks = given_first(self.order, ~chosen, n_visits)
        self.n_known = self.n_visits - n_blanks.cpu()

    def take(self, rows):
        """Return rows, numbers on the host, as a canvas of their own."""
        at = rows.to(self.idx.device, non_blocking=True)
        part = copy.copy(self)
        for name, x in vars(self).items():
            if torch.is_tensor(x):
                setattr(part, name, x[at if x.device == at.device else rows])
        part.limits = self.limits.take(rows)
        return part

    def stop_rows(self, done):
        """Write nothing more in the rows where `done` (B,) is True."""
        self.n_visits = torch.where(done, self.n_known, self.n_visits)

    def put(self, part):
        """Write what rows that `take` gave have by now to their places; n_visits stays. They may be
        wider."""
        at = part.rows.to(self.idx.device, non_blocking=True)
        N = self.idx.size(1)
        for name in TENSORS:
            getattr(self, name)[at] = getattr(part, name)[:, :N]
        for name in ('n_known', 'n_steps', 'n_passes'):
            setattr(self, name, getattr(self, name).index_put((part.rows,), getattr(part, name)))

    def places(self):
        """Return (B, rows, N) floats on the host, by one wait: TOKEN, VISIT, STEP and LOGPROB of
        each position, then what is likeliest beside it."""
        whole = torch.stack([self.idx, self.order.argsort(1), self.step], 1)  # (B, 3, N)
        rows = [whole.to(self.u.dtype), self.logprob.unsqueeze(1), self.likeliest.mT]
        return torch.cat(rows, 1).cpu().numpy()
