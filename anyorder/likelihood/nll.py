"""How is likelihood measured? Nats of blocks in orders."""

import torch
from torch.nn import Identity
from torch.nn.utils.rnn import pad_sequence

from anyorder.fast import product_dtype
from anyorder.machine.devices import autocast, widest
from anyorder.orders import RANDOM, draw_orders
from anyorder.seeds import numbered_keys, uniform
from anyorder.tokens.blocks import PADDING, Batch, visits_of
from model import KVCache, Parts, take

N_LOGITS = 2**12  # rows of logits in memory


def measured_batch(model, rows, order=RANDOM, n_orders=1, seed=0, step=0, **how):
    """Return the Batch by which blocks are measured: K = n_orders rows of each, in its own orders.

    What is given comes first, and costs nothing. Where a pass draws the bound of a masked loss,
    numbers of known visits are drawn, too.

    rows  (numbers [M] of the blocks, of which all draws are a function; tokens and given, (M, N))
    step  updates of the model, which an order may see
    how   of Batch.of"""
    numbers, tokens, given = rows
    tokens = tokens.repeat_interleave(n_orders, 0)
    given = given.repeat_interleave(n_orders, 0)
    seen = {'idx': tokens, 'given': given, 'step': step, 'model': model}
    orders = draw_orders(numbers, tokens.size(1), n_orders, seed, order, **seen)
    batch = Batch.of(tokens, orders, given, visits_of(tokens), law=order.law, **how)
    if not is_drawn(model.config, order):
        return batch
    n = batch.n_blanks.numel() // len(numbers)
    return with_known(batch, known_shares(numbers, n, n_orders, seed))


@torch.no_grad()
def block_nll(model, blocks, orders, batch_size, dtype='float32', n_known=None, n_given=0):
    """Return nats (n,) float64 of every block under its own order.

        nats[b] = sum_d -log p(x[order[b, d]] | x[order[b, :d]])

    blocks   (n, N) tokens in natural order, maybe PADDING at the end, which costs nothing
    orders   (n, N) positions, the ones of padding last
    n_known  (n,) of a masked loss: if they are uniform, one pass is an unbiased draw; without them
             it takes a pass for each visit
    n_given  int or (n,): visits that are given and cost nothing
    dtype    of autocast; a frozen model is in its own already"""
    n_given = torch.as_tensor(n_given).expand(len(blocks))
    n_visits = visits_of(blocks)
    if n_visits is not None:  # no pass is longer than the longest of these
        width = int(n_visits.max())
        blocks = blocks[:, :width]
        orders = orders[:, :width].clamp(max=width - 1)  # of padding, unread
    if not model.slots_class.masked_loss or n_known is not None:
        every = Batch(blocks, orders, n_known=n_known, n_visits=n_visits, n_given=n_given)
        return batch_nll(model, every, batch_size, dtype)

    ends = (blocks != PADDING).sum(1)
    nats = torch.zeros(len(blocks), dtype=torch.float64)
    asking = (n_given < ends).nonzero()[:, 0].tolist()
    rows = (
        (blocks[b, : ends[b]], orders[b, : ends[b]], range(n_given[b], ends[b])) for b in asking
    )
    with autocast(model.device, dtype):
        for b, nll in zip(asking, read(model, rows, batch_size * blocks.size(1))):
            nats[b] = nll.sum(dtype=widest(model.device))
    return nats


@torch.no_grad()
def batch_nll(model, every, batch_size, dtype='float32'):
    """Return nats (n,) float64 of the rows of a Batch by their loss, batch_size at a time."""
    sums = []
    for rows in torch.arange(len(every.idx)).split(batch_size):
        batch = every.rows(rows).to(model.device)
        with autocast(model.device, dtype):
            nll = blank_nll(model, batch)
        sums.append(nll.sum(-1, dtype=widest(model.device)))
    return torch.cat(sums).cpu().double()


def blank_nll(model, batch):
    """Return nats (B, N) of the visits of a Batch, 0 for what is given and for padding: the loss.

    A masked loss has 0 for what is known already. Its bound is the sum over k = n_given to n - 1,
    n = n_visits, of the mean nats of the n - k blanks; one uniform k = n_known stands for
    n - n_given of them. So its weight n / (n - n_known) becomes (n - n_given) / (n - n_known)."""
    nll = model(batch.idx, batch.order, batch.n_known, *batch.texts)
    parts = Parts.of(batch.order, *batch.texts)
    first = parts.after(batch.n_given.to(nll.device))  # that is no longer given
    if batch.n_known is None:
        is_given = torch.arange(nll.size(1), device=nll.device) < first
        return nll.masked_fill(is_given, 0)
    return nll * ((parts.end - first).to(nll.dtype) / (parts.end - parts.begin))


@torch.no_grad()
def read(model, rows, n_tokens=2**14, head=None, at_once=False):
    """Yield -log p (m,) of the m visits that each row asks for, each given all before it.

    A decoder takes one pass, a masked loss one for each visit of a row. Rows of like lengths that
    follow each other share a pass.

    rows      (text, order, asked): tokens in natural order; T positions, of a masked loss all of
              the text's; an increasing list or range of visits, at least one
    n_tokens  slots of a pass, about
    head      a function of hidden states (m, C) and their tokens (m,), by default lm_head.nll
    at_once   whether the visits of a row are read in one pass, each given what is before the
              first"""
    for batch in batches(rows, n_tokens):
        found = answers(model, batch, head or model.lm_head.nll, at_once)
        yield from found.split([len(asked) for *_, asked in batch])


def batches(rows, n_tokens):
    """Yield lists of rows of like lengths that follow each other, of about n_tokens slots."""
    batch = []
    for row in rows:
        lengths = [len(order) for _, order, _ in (*batch[:1], row)]
        n_slots = (len(batch) + 1) * max(lengths)
        fits = n_slots <= n_tokens and max(lengths) <= 1.25 * min(lengths) + 8
        if batch and not fits:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def answers(model, batch, head, at_once):
    """Return head(hidden states, tokens), (m, ...), of all visits that the rows of a batch ask
    for, see `read`."""
    texts, orders, asked = zip(*batch)
    device = model.device
    idx = padded(texts).to(device)
    order = padded(orders).to(device)
    n_visits = torch.tensor([*map(len, orders)])
    asked = padded(asked, -1)  # (R, A)
    visit = asked.cummax(1).values  # behind the last one of a row it stands again

    def hidden(n_known, first, n_targets, cache=None):
        """Return the hidden states (R, n, C) of visits from `first` on."""
        return model.predict(idx, order, n_known, n_targets, cache, n_visits, first, Identity())

    # What the head reads of all visits, (R, A, C)
    if at_once or not model.slots_class.masked_loss:
        first = visit[:, 0]  # at once all are given what is before it, else each what is before it
        x = hidden(first if at_once else n_visits - 1, first, visit[:, -1] + 1 - first)
        x = take(x, (visit - first.unsqueeze(1)).to(device))
    else:
        cache = None
        if model.slots_class.cached:
            cache = KVCache(model.config, len(batch), device, product_dtype(model))
        x = torch.cat([hidden(at, at, 1, cache) for at in visit.T], 1)

    # What it says of those that are asked for
    cells = (asked >= 0).to(device).nonzero(as_tuple=True)
    tokens = idx.gather(1, order.gather(1, visit.to(device)))
    parts = zip(x[cells].split(N_LOGITS), tokens[cells].split(N_LOGITS))
    return torch.cat([head(*part) for part in parts])


def check_finite(nats):
    """Return the nats. Raises ValueError unless all are finite."""
    if not nats.isfinite().all():
        raise ValueError(
            'the model gives likelihoods that are not finite: a text has a token that it never '
            'writes, as one that begins texts, or its weights are too large, as of a run that '
            'diverged'
        )
    return nats


def padded(rows, value=0):
    """Return lists of numbers, or tensors, as one tensor (n, T), with `value` behind short ones."""
    return pad_sequence([torch.as_tensor(row) for row in rows], True, value)


def is_drawn(config, order):
    """Whether a pass at a random number of known visits draws the bound."""
    return config.slots_class.masked_loss and order.law == 'random'


def with_known(batch, share):
    """Return the Batch in which so large a share (...) of the blanks of each text is known."""
    n_new = (share.view_as(batch.n_blanks) * batch.n_blanks).long()
    return batch._replace(n_known=batch.n_given + n_new)


def known_shares(numbers, n, n_orders=1, seed=0):
    """Return shares (M, n) in [0, 1) of the blanks that are known in n passes of M blocks.

    Those of a block are a function of seed and number. K = n_orders that follow each other are a
    stratified sample: one is uniform in each of K equal parts."""
    number = torch.arange(n)
    u = uniform(numbered_keys(seed, numbers).unsqueeze(1), 'known', number)
    return (number % n_orders + u) / n_orders
