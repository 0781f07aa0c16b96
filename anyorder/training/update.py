"""What is an update? A batch, its loss, the steps of optimizers and average."""

import math
from contextlib import nullcontext
from functools import partial

import torch

from anyorder.checkpoint import load_weights
from anyorder.likelihood.nll import blank_nll, with_known
from anyorder.machine.devices import autocast, widest
from anyorder.machine.processes import n_processes, own_part, processes, sum_over_processes, whole
from anyorder.orders import RANDOM, are_permutations
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import Batch, random_blocks, visits_of
from anyorder.training.muon import Muon

MOST_SHAPES = 16  # of batches whose updates are recorded; others are so rare that they do not pay


def draw_batch(state, sets, config):
    """Draw the Batch of a micro-batch of Blocks, on the device, from torch's default generators.

    Rows of a user's order that are no permutation are counted, without a wait."""
    device = state.device
    tokens, given = random_blocks(sets, config.batch_size)
    found = tokens, given, visits_of(tokens), sets[0].begins(tokens)  # of one form in all sets
    idx, given, n_visits, begins = (send(x, device) for x in found)
    idx = idx.clamp(min=0)  # PADDING is negative: it becomes token 0, unread
    with autocast(device, config.dtype):
        order = state.order.draw(
            *idx.shape,
            l2r_ratio=config.l2r_ratio,
            device=device,
            idx=idx,
            given=given,
            step=state.iter_num,
            model=state.ema.model,
        )
    if state.order.is_function:
        state.totals[3] += (~are_permutations(order)).sum()
        order = order.clamp(0, idx.size(1) - 1)
    batch = Batch.of(idx, order, given, n_visits, begins, state.order.law)
    if not state.model.slots_class.masked_loss:
        return batch
    u = torch.rand(batch.n_blanks.shape, device=device, dtype=widest(device))
    return with_known(batch, u)


def send(x, device):
    """Copy a tensor to the device, without a wait; None stays."""
    if x is None:
        return None
    if device.type == 'cuda':
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def update(state, sets, lr, config, draw=draw_batch, loss=blank_nll):
    """Make an update of weights and average at AdamW's learning rate, and count it in `state`.

        loss = sum of nats / number of blanks,   both over all micro-batches in all processes

    Process r runs the micro-batches r, r + world_size, ... Each is a function of (seed, iteration,
    its number): resumed runs and runs of several processes see the same ones. DDP averages over the
    world_size = accumulation / len(batches) processes, so that nats / mean_blanks / len(batches)
    adds up to the loss, whoever has more blanks. The host never waits for the device.

    With `state.graphs` it is recorded once: batches and `lr` may then change, and nothing else.

    draw  (state, sets, config) -> Batch
    loss  (model, batch) -> nats (B, N)"""
    rank, world_size = processes()
    batches = {}
    for micro in range(rank, config.gradient_accumulation_steps, world_size):
        torch.manual_seed(derive_seed(config.seed, state.iter_num, micro))
        batches[micro] = draw(state, sets, config)
    # whether a loss of a program's own waits for the device, nobody knows
    work = launch if state.graphs and loss is blank_nll else learn
    found = work(state, batches, lr, config, loss)
    state.ema.update(state.model)
    state.count(*found, batches.values())


def launch(state, batches, lr, config, loss):
    """Learn in one launch, by a CUDA graph for each of at most MOST_SHAPES shapes of batches.

    It reads copies of them, and the learning rate in `state.rate`."""
    key = tuple(x is not None and x.shape for batch in batches.values() for x in batch)
    if key not in state.places:
        if len(state.places) == MOST_SHAPES:
            return learn(state, batches, lr, config, loss)
        state.places[key] = {micro: batch.copy() for micro, batch in batches.items()}
    places = state.places[key]
    for micro, batch in batches.items():
        for place, x in zip(places[micro], batch):
            if x is not None:
                place.copy_(x)
    state.rate.fill_(lr)
    return state.graphs.run(key, partial(learn, state, places, state.rate, config, loss))


def learn(state, batches, lr, config, loss):
    """Step the weights once, by {number of a micro-batch: Batch}. Return the mean loss and the norm
    of the gradients."""
    dtype = widest(state.device)
    n_blanks = sum(batch.n_blanks.sum() for batch in batches.values())
    mean_blanks = sum_over_processes(n_blanks).to(dtype) / config.gradient_accumulation_steps

    mean_loss = 0
    last = max(batches)  # in which processes exchange gradients
    no_sync = getattr(state.run_model, 'no_sync', nullcontext)
    for micro, batch in batches.items():
        if state.model.config.dropout:
            torch.manual_seed(derive_seed(config.seed, 'dropout', state.iter_num, micro))
        with nullcontext() if micro == last else no_sync():
            with autocast(state.device, config.dtype, cache=False):  # every weight is read once
                nll = loss(state.run_model, batch)  # (B, N)
                share = nll.sum() / mean_blanks.to(nll.dtype) / len(batches)
            share.backward()  # gradients become the mean over all processes
        mean_loss += nll.detach().sum(dtype=dtype) / mean_blanks / len(batches)

    limit = config.grad_clip or math.inf  # 0 clips none
    norm = whole(torch.nn.utils.clip_grad_norm_(state.model.parameters(), limit))

    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group['lr'] = lr * group['lr_ratio']
        optimizer.step()
        optimizer.zero_grad()
    return mean_loss, norm


class TrainState:
    """A run between two updates: what learns, and how far it is, all of which a checkpoint keeps;
    and by which means its process makes updates."""

    COUNTED = ('iter_num', 'n_seen', 'flops', 'logged', 'totals')  # what tells how far

    def __init__(self, model, optimizers, ema, order=RANDOM):
        """order  the Order of the run"""
        self.model = model
        self.optimizers = optimizers
        self.ema = ema
        self.order = order
        self.device = model.device
        self.run_model = model  # compiled, split or wrapped by DDP, see start.make_run_model
        self.graphs = None  # those of its updates, see start.make_graphs
        self.places = {}  # the batches that they read, see launch
        self.rate = torch.zeros((), device=self.device)  # the learning rate that they read
        self.iter_num = 0  # updates done
        self.n_seen = 0  # tokens that all processes saw until the last sum_seen
        self.flops = 0.0  # of the updates done, in all processes; the Clock of a run says them
        self.n_since = torch.zeros((), dtype=torch.long, device=self.device)  # by this one since
        self.logged = 0  # iter_num at the last line of the log
        # sums since that line: mean loss, gradient norm, whether both were finite, wrong orders
        self.totals = torch.zeros(4, device=self.device, dtype=widest(self.device))

    def entries(self):
        """Return what a checkpoint holds to go on, beside weights and average."""
        self.sum_seen()
        counted = {name: getattr(self, name) for name in self.COUNTED}
        return counted | {'optimizer': [optimizer.state_dict() for optimizer in self.optimizers]}

    def resume(self, entries):
        """Go on from the entries of a checkpoint, whose weights the model has.

        The options of the optimizers stay those of this run."""
        for optimizer, saved in zip(self.optimizers, entries['optimizer'], strict=True):
            params = [p for group in optimizer.param_groups for p in group['params']]
            for i, moments in saved['state'].items():  # unsplit: each process reads its part
                p = params[i]
                optimizer.state[p] = {
                    name: own_part(x, p).to(p.device, copy=True) for name, x in moments.items()
                }
        load_weights(self.ema.model, entries, 'ema')
        self.ema.n_updates = entries['ema_model']['num_updates']
        for name in self.COUNTED:
            setattr(self, name, entries[name])
        self.totals = self.totals.to(self.device, copy=True)

    def count(self, loss, norm, batches):
        """Count an update."""
        self.totals[:3] += torch.stack([loss, norm, (loss + norm).isfinite()])
        self.iter_num += 1
        self.n_since += sum(batch.count_tokens() for batch in batches)

    def sum_seen(self):
        """Add up what the processes saw since the last call."""
        self.n_seen += int(sum_over_processes(self.n_since))
        self.n_since.zero_()

    def averages(self, advice):
        """Return the loss in nats a token and the gradient norm, means since the last line.

        Raises ValueError unless they and the weights are finite; `advice` ends its text."""
        self.sum_seen()
        # in place: a second call before begin_averages agrees
        means = sum_over_processes(self.totals).div_(n_processes())
        loss, norm, n_finite, n_wrong = means.tolist()
        if n_wrong:
            raise ValueError(
                f'{self.order.name} has given rows that do not hold every position once, since '
                f'iteration {self.logged}; what was learned since is not saved'
            )
        n_iters = self.iter_num - self.logged
        loss = loss / n_iters
        norm = norm / n_iters
        size = whole(sum(torch._foreach_norm(list(self.model.parameters())))).item()
        if n_finite < n_iters or not math.isfinite(size):
            # once an update is not finite, all later ones are not
            since = min(self.logged + int(n_finite) + 1, self.iter_num)
            raise ValueError(
                f'loss {loss:.4g}, gradient norm {norm:.4g}, weight norm {size:.4g}: not finite '
                f'since iteration {since}, and not saved; lower the learning rate and {advice}'
            )
        return loss, norm

    def begin_averages(self):
        """Begin the averages of the next line of the log."""
        self.totals.zero_()
        self.logged = self.iter_num


def get_lr(it, learning_rate, min_lr, warmup_iters, lr_decay_iters):
    """Return the learning rate of update `it` from 0: a linear rise, then a cosine to min_lr."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    done = min(1, (it - warmup_iters) / max(1, lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1 + math.cos(math.pi * done)) * (learning_rate - min_lr)


def lr_of(it, config):
    """Return AdamW's learning rate of update `it` of a run."""
    end = config.lr_decay_iters or config.max_iters
    return get_lr(it, config.learning_rate, config.min_lr, config.warmup_iters, end)


def make_optimizers(model, config):
    """Return [AdamW], or with the option 'muon' AdamW and Muon; matrices alone decay."""
    hidden = []  # matrices of attention and MLP
    matrices = []
    vectors = []
    for name, p in model.named_parameters():
        is_hidden = p.dim() == 2 and ('.attn.' in name or '.mlp.' in name)
        if config.optimizer == 'muon' and is_hidden:
            hidden.append(p)
        elif p.dim() > 1:
            matrices.append(p)
        else:
            vectors.append(p)
    groups = [
        {'params': matrices, 'weight_decay': config.weight_decay, 'lr_ratio': 1.0},
        {'params': vectors, 'weight_decay': 0.0, 'lr_ratio': 1.0},
    ]
    rate = config.learning_rate
    betas = config.beta1, config.beta2
    adamw = torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True, capturable=True)
    if not hidden:
        return [adamw]
    peak = config.muon_learning_rate
    groups = [{'params': hidden, 'lr_ratio': peak / (rate or 1)}]  # at a rate of 0 neither learns
    return [adamw, Muon(groups, lr=peak, weight_decay=config.weight_decay)]
