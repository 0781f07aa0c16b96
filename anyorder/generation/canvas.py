"""What are the rows being written? Their tokens, the order of their visits, and what each step revealed."""

import copy

import torch

from anyorder.generation.constraint import Constraint
from anyorder.orders import given_first, sample_order
from anyorder.seeds import keys_of, seeds_of, uniform

BY_POSITION = ('idx', 'order', 'step', 'logprob', 'u')  # tensors (B, N) on the device


class Canvas:
    """B rows of N positions that are being written.

    idx       (B, N) tokens in natural order; in blanks they mean nothing, are drafts, or the text to be scored
    order     (B, N) positions as visited: the known ones, the blanks, and padding from n_visits on
    step      (B, N) natural order: the step that revealed a token, from 0; -1 is known from the start, or blank
    logprob   (B, N) natural order: nats of each revealed token under the untempered model, else 0
    u         (B, N) natural order: uniform numbers in [0, 1) from the row's seed, by which tokens are drawn unless
              unmasking is lossless
    known     (B,) visits that are known, on the host
    first     (B,) visits that were known at first, on the host
    n_drafts  (B,) visits behind the known ones whose tokens are drafts, on the host: guesses, see Lossless.accept
    n_visits  (B,) visits of each row, on the host
    seeds     [B] ints: every random number of a row is a function of its own seed
    keys      (B,) of keys_of, on the device: the seeds for draws there
    n_steps   (B,) steps that each row has run, on the host
    rows      (B,) which rows of the first canvas these are, on the host
    allowed   the Constraint on its tokens, or None"""

    def __init__(self, idx, order, n_known, seeds, n_visits=None, allowed=None):
        """idx, order (B, N); n_known int or (B,); n_visits int or (B,), by default N; allowed as in Constraint. Raises
        ValueError unless every order is a permutation, and 0 <= n_known <= n_visits <= N."""
        B, N = order.shape
        if (
            idx.shape != order.shape
            or (order.sort(1).values != torch.arange(N, device=order.device)).any()
        ):
            raise ValueError(
                'each order must be a permutation of the positions of idx, got '
                f'{tuple(order.shape)} for {tuple(idx.shape)}'
            )
        self.known = self.first = torch.as_tensor(n_known).cpu().expand(B)
        self.n_visits = torch.as_tensor(N if n_visits is None else n_visits).cpu().expand(B)
        self.seeds = [int(seed) for seed in seeds]  # a stream is named by numbers, not by tensors
        fits = (0 <= self.known) & (self.known <= self.n_visits) & (self.n_visits <= N)
        if not fits.all() or len(self.seeds) != B:
            raise ValueError(
                f'0 <= n_known <= n_visits <= {N} and {B} seeds are needed, got '
                f'n_known={self.known.tolist()[:8]}, n_visits={self.n_visits.tolist()[:8]} and '
                f'{len(self.seeds)} seeds'
            )
        self.idx, self.order, self.rows = idx.clone(), order.clone(), torch.arange(B)
        self.keys, self.n_steps = keys_of(self.seeds, idx.device), torch.zeros_like(self.n_visits)
        self.draw_numbers()
        self.step, self.logprob = torch.full_like(idx, -1), torch.zeros_like(self.u)
        self.n_drafts = torch.zeros_like(self.n_visits)
        self.allowed = None if allowed is None else Constraint(allowed, self, range(B), [0] * B)

    @classmethod
    def of_texts(cls, texts, order, seed, device='cpu', allowed=None):
        """The canvas of `texts`, [(tokens, known)] with lists of any lengths. Row r is a function of seed + r, or, if
        `seed` is a list, of seed[r]. `order` holds the arguments of sample_order. Known tokens are visited first, then
        the blanks, both in this order, as in training; known ones of a random order, however, from left to right."""
        lengths = torch.tensor([len(tokens) for tokens, _ in texts])
        B, N = len(texts), int(lengths.max())
        idx, orders = torch.zeros(B, N, dtype=torch.long), torch.arange(N).repeat(B, 1)
        seeds = seeds_of(seed, B)
        for r, (tokens, known) in enumerate(texts):
            visits = sample_order(1, len(tokens), **order, keys=keys_of(seeds[r : r + 1]))
            visits, *_ = given_first(
                visits, torch.tensor([known]), None, order['kind'] in ('random', 'sorted_subset')
            )
            idx[r, : len(tokens)], orders[r, : len(tokens)] = torch.tensor(tokens), visits[0]
        n_known = torch.tensor([sum(known) for _, known in texts])
        return cls(idx.to(device), orders.to(device), n_known, seeds, lengths, allowed)

    def __len__(self):
        return len(self.rows)

    def draw_numbers(self, *names):
        """Draw u, which these names tell from other draws of a row's seed; so do the numbers of a binomial schedule."""
        self.names = names
        self.u = uniform(self.keys.unsqueeze(1), 'tokens', *names, self.positions())

    def positions(self):
        return torch.arange(self.idx.size(1), device=self.idx.device)

    @property
    def n_blanks(self):
        """(B,) visits that are still to be written, on the host."""
        return self.n_visits - self.known

    def cells(self, n):
        """Indices (row, column, visit), each (m,), of the next n (B,) visits of every row, row by row. Columns count
        from 0 to n - 1, and visit = known + column. Made on the host, without a wait for the device."""
        row, column = (torch.arange(int(n.max())) < n.unsqueeze(1)).nonzero(as_tuple=True)
        return torch.stack([row, column, self.known[row] + column]).to(
            self.idx.device, non_blocking=True
        )

    def take(self, chosen):
        """The rows where `chosen` (B,) bool is True, or the rows of these numbers, as a canvas of their own."""
        part, places = (
            copy.copy(self),
            chosen.nonzero()[:, 0] if chosen.dtype == torch.bool else chosen,
        )
        at = places.to(self.idx.device, non_blocking=True)
        for name in (*BY_POSITION, 'keys'):
            setattr(part, name, getattr(self, name)[at])
        for name in ('known', 'first', 'n_drafts', 'n_visits', 'n_steps', 'rows'):
            setattr(part, name, getattr(self, name)[places])
        part.seeds = [self.seeds[place] for place in places.tolist()]
        return part

    def end(self, done):
        """Write nothing more in the rows where `done` (B,) bool is True, on the host: their blanks stay."""
        self.n_visits = torch.where(done, self.known, self.n_visits)

    def put(self, part):
        """Write the rows of `part`, which `take` gave, back to their places."""
        at = part.rows.to(self.idx.device, non_blocking=True)
        for name in BY_POSITION:
            getattr(self, name)[at] = getattr(part, name)
        self.known = self.known.index_put((part.rows,), part.known)
        self.n_steps = self.n_steps.index_put((part.rows,), part.n_steps)

    def lists(self):
        """[(tokens, order, step, logprob)]: the lists of each row, without its padding."""
        rows = zip(*(x.tolist() for x in (self.idx, self.order, self.step, self.logprob)))
        return [[x[:n] for x in row] for n, row in zip(self.n_visits.tolist(), rows)]


def sample_of(tokens, order, step, logprob, tokenizer):
    """What there is to say of a text: a dict with text, tokens, nats, the number of blanks, the number of passes in
    which tokens of it were written last, order, step and logprob."""
    return {
        'text': tokenizer.decode(tokens),
        'tokens': tokens,
        'nats': 0.0 - sum(logprob),
        'blanks': sum(s >= 0 for s in step),
        'passes': len({*step} - {-1}),
        'order': order,
        'step': step,
        'logprob': logprob,
    }


def draft_at(drafts, step):
    """The token that was the draft of a position after `step`, or None; `drafts` as in scroll.Row."""
    return next((token for since, token in reversed(drafts) if since <= step), None)
