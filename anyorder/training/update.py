"""What is an update? Learning rate, optimizers, the batch and its loss, and the validation of the EMA weights."""

import math
import time
from contextlib import nullcontext
from dataclasses import replace

import torch

from anyorder.batch import Batch
from anyorder.checkpoint import model_from_checkpoint
from anyorder.likelihood.nll import block_nll, draw_known, estimate_of, nll_of_blanks
from anyorder.machine.devices import autocast, widest
from anyorder.machine.processes import is_split, part_of, processes, summed, whole
from anyorder.orders import draw_orders, given_first, order_of, sample_order
from anyorder.seeds import DRAWS, derive_seed
from anyorder.tokens.blocks import middle_last, random_blocks, visits_of
from anyorder.training.muon import Muon


def get_lr(it, learning_rate, min_lr, warmup_iters, lr_decay_iters):
    """Learning rate of update `it`, from 0: linear warm-up to learning_rate, cosine to min_lr at lr_decay_iters."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    done = min(1, (it - warmup_iters) / max(1, lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1 + math.cos(math.pi * done)) * (learning_rate - min_lr)


def lr_of(it, config):
    """get_lr of a run with these options."""
    decay_iters = config['lr_decay_iters'] or config['max_iters']
    return get_lr(
        it, config['learning_rate'], config['min_lr'], config['warmup_iters'], decay_iters
    )


OPTIMIZERS = ('adamw', 'muon')


def is_hidden(name, p):
    """Whether the parameter `p` is a matrix of attention or MLP, which Muon is for."""
    return p.dim() == 2 and ('.attn.' in name or '.mlp.' in name)


def make_optimizers(model, optimizer, learning_rate, muon_learning_rate, weight_decay, betas):
    """A list of torch optimizers, in which every weight stands once: 'adamw' for all, or 'muon' for the matrices of
    attention and MLP, AdamW for the rest. Matrices alone decay. Every group carries its `lr_ratio` to learning_rate."""
    params = {'hidden': [], 'matrices': [], 'vectors': []}
    for name, p in model.named_parameters():
        hidden = optimizer == 'muon' and is_hidden(name, p)
        params['hidden' if hidden else 'matrices' if p.dim() > 1 else 'vectors'].append(p)
    groups = [
        {'params': params['matrices'], 'weight_decay': weight_decay, 'lr_ratio': 1.0},
        {'params': params['vectors'], 'weight_decay': 0.0, 'lr_ratio': 1.0},
    ]
    optimizers = [torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)]
    if hidden := params['hidden']:
        groups = [{'params': hidden, 'lr_ratio': muon_learning_rate / learning_rate}]
        optimizers.append(Muon(groups, lr=muon_learning_rate, weight_decay=weight_decay))
    return optimizers


class TrainState:
    """A run between two updates: what learns, and how far it is. A checkpoint keeps all of it."""

    def __init__(self, model, optimizers, ema):
        self.model, self.optimizers, self.ema, self.device = model, optimizers, ema, model.device
        self.run_model = model  # the model as updates run it, see make_run_model
        self.iter_num = 0  # updates done
        self.n_summed = 0  # tokens that all processes saw until `sum_seen` was called last
        self.n_own = (
            0  # and that this one has seen since, an int or on the device; padding is no token
        )
        self.logged = 0  # iter_num at the last line of the log
        # sums since that line of an update's mean loss, its gradient norm, and whether both were finite
        self.totals = torch.zeros(3, device=self.device, dtype=widest(self.device))

    @property
    def n_seen(self):
        """Tokens seen; of other processes only until `sum_seen` was called last."""
        return self.n_summed + int(self.n_own)

    def sum_seen(self):
        """Add up what the processes have seen since the last call; all of them call it at once."""
        self.n_summed += int(
            summed(torch.zeros((), dtype=torch.long, device=self.device) + self.n_own)
        )
        self.n_own = 0

    def entries(self):
        """The entries of a checkpoint that `resume` reads, beside weights and average."""
        self.sum_seen()
        return {
            'iter_num': self.iter_num,
            'draws': DRAWS,
            'optimizer': [o.state_dict() for o in self.optimizers],
            'n_seen': self.n_seen,
            'logged': self.logged,
            'totals': self.totals.cpu(),
        }

    def resume(self, checkpoint):
        """Go on from the entries of a checkpoint, whose weights the model has. The run's options of optimizers stay."""
        for o, saved in zip(self.optimizers, checkpoint['optimizer'], strict=True):
            params = [p for group in o.param_groups for p in group['params']]
            moments = {
                i: {name: part_of(x, params[i]) for name, x in of_one.items()}
                for i, of_one in saved['state'].items()
            }
            o.load_state_dict({'state': moments, 'param_groups': o.state_dict()['param_groups']})
        average, own = (
            model_from_checkpoint(checkpoint, 'ema').state_dict(),
            self.ema.model.state_dict(),
        )
        self.ema.model.load_state_dict({name: part_of(p, own[name]) for name, p in average.items()})
        self.ema.n_updates = checkpoint['ema_model']['num_updates']
        self.iter_num, self.n_summed, self.logged = (
            checkpoint[name] for name in ('iter_num', 'n_seen', 'logged')
        )
        self.totals = checkpoint['totals'].to(self.device)

    def averages(self, advice, with_weights):
        """(loss in nats per token, gradient norm): means since the last line of the log, over all processes. The host
        waits for the device here alone. Raises ValueError, which ends with `advice`, unless all are finite.
        `with_weights` wants finite weights too, which may overflow after losses that are finite."""
        self.sum_seen()
        loss, norm, n_finite = summed(self.totals).div_(processes()[1]).tolist()  # the mean is kept
        n_iters = self.iter_num - self.logged
        loss, norm = loss / n_iters, norm / n_iters
        norms = f'gradient norm {norm:.4g}'
        if with_weights:
            size = whole(sum(torch._foreach_norm(list(self.model.parameters())))).item()
            norms += f', weight norm {size:.4g}'
        if n_finite < n_iters or with_weights and not math.isfinite(size):
            since = min(self.logged + int(n_finite) + 1, self.iter_num)
            raise ValueError(
                f'loss {loss:.4g}, {norms}: not finite since iteration {since}, and not saved; '
                f'lower the learning rate and {advice}'
            )
        return loss, norm

    def start_line(self):
        """A line of the log was written: begin the averages of the next."""
        self.totals.zero_()
        self.logged = self.iter_num


def draw_batch(split, config, masked_loss, device):
    """The Batch of a micro-batch on `device`, from torch's default generators. n_known is uniform over the blanks."""
    idx = random_blocks(split, config.batch_size, config.block_size)
    (B, N), n_visits = idx.shape, visits_of(idx) if split.ends is not None else None
    idx, n_visits = (
        (x.pin_memory() if device.type == 'cuda' else x).to(device, non_blocking=True)
        if x is not None
        else None
        for x in (idx, n_visits)
    )
    order = sample_order(B, N, l2r_ratio=config.l2r_ratio, device=device, **order_of(config))
    n_known, n_given, n_blanks = None, order.new_zeros(B), order.new_full((B,), N)
    if split.marked:
        idx, given = split.unpack(idx)
        order, n_given, n_blanks = given_first(order, given, n_visits)
    if masked_loss:
        n_known = n_given + (torch.rand(B, device=device, dtype=widest(device)) * n_blanks).long()
    return Batch(idx.clamp(min=0), order, n_known, n_visits, n_given, n_blanks)


def draw_micro_batches(state, split, config, micros):
    """The micro-batches of these numbers, as draw_batch gives them. With fim_ratio the middles of some blocks are moved
    to their ends, and the marks, which are read and never predicted, are no blanks."""
    batches, model = [], state.model
    for micro in micros:
        torch.manual_seed(
            derive_seed(config.seed, state.iter_num, micro)
        )  # blocks, orders, known visits, middles
        batch = draw_batch(split, config, model.slots.masked_loss, state.device)
        if config.get('fim_ratio'):
            idx = middle_last(batch.idx, config.fim_ratio, model.config.n_real)
            batch = replace(batch, idx=idx, n_blanks=batch.n_blanks - is_mark(idx, model).sum(1))
        batches.append(batch)
    return batches


def is_mark(idx, model):
    """Which tokens are marks of fill-in-the-middle, bool."""
    return idx >= model.config.n_real


def update(state, split, lr, config):
    """Make an update of weights and average at AdamW's learning rate `lr`, and add it to what `state` counts.

        loss = sum of nats / number of blanks,   both over all micro-batches of the update, in all processes

    Micro-batches may have unequal numbers of blanks, as documents behind prompts have: each is divided by their mean.
    The gradient is that of the loss, its norm is taken before clipping. A micro-batch is a function of (seed,
    iteration, its number); each process runs every world_size-th. The host never waits for the device."""
    device, (rank, world_size) = state.device, processes()
    micros = range(rank, config.gradient_accumulation_steps, world_size)
    batches = draw_micro_batches(state, split, config, micros)
    n_blanks = summed(sum(batch.n_blanks.sum() for batch in batches)).to(
        widest(device)
    )  # of the whole update
    mean_blanks = n_blanks / config.gradient_accumulation_steps
    loss = torch.zeros((), device=device, dtype=widest(device))
    for micro, batch in zip(micros, batches):
        if state.model.config.dropout:  # the only draws of torch's generator behind the batch
            torch.manual_seed(derive_seed(config.seed, 'dropout', state.iter_num, micro))
        waits = micro != micros[-1] and hasattr(
            state.run_model, 'no_sync'
        )  # gradients are exchanged after the last
        with state.run_model.no_sync() if waits else nullcontext():
            with autocast(device, config.dtype, cache=False):  # every weight is read once
                nll = state.run_model(
                    batch.idx, batch.order, batch.n_known, n_visits=batch.n_visits
                )  # (B, N)
                nll = nll_of_blanks(nll, batch.n_given, batch.n_known is not None, batch.n_visits)
                if config.get('fim_ratio'):  # columns are positions
                    nll = nll.masked_fill(is_mark(batch.idx, state.model), 0)
                micro_loss = nll.sum() / mean_blanks.to(nll.dtype) / len(micros)
            micro_loss.backward()
        loss += nll.detach().sum(dtype=loss.dtype) / mean_blanks / len(micros)
    norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), config.grad_clip or math.inf)
    norm = norm.full_tensor() if is_split(norm) else norm  # which stays on the device
    for o in state.optimizers:
        for group in o.param_groups:
            group['lr'] = lr * group['lr_ratio']
        o.step()
        o.zero_grad(set_to_none=True)
    state.ema.update(state.model)
    state.totals += torch.stack([loss, norm, (loss + norm).isfinite()])
    state.iter_num += 1
    state.n_own += sum(batch.n_tokens() for batch in batches)


PAIRS = {
    'causal': 1 / 2,
    'mixed': 2 / 3,
}  # the part of all pairs of slots that training needs; others need all


def training_flops(model, batch_size, N=None):
    """Model FLOPs of a training step on batch_size sequences of N tokens, by default block_size, forward and backward:
    for every weight of a matrix product 6 a slot (AdaLN: 6 a position; embeddings: none), and for attention 12 N C
    times the share of the pairs that see each other, a slot and layer. The content of two streams has no last layer but
    its keys."""
    c, N = model.config, N or model.config.block_size
    tokens = batch_size * N
    n_more = int(c.target_position == 'two_stream')
    matrices = {
        name: m.weight.numel()
        for name, m in model.named_modules()
        if isinstance(m, torch.nn.Linear)
    }
    adaln = sum(n for name, n in matrices.items() if 'adaLN' in name)
    of_content = sum(
        n
        for name, n in matrices.items()
        if '.h.' in name and (f'.h.{c.n_layer - 1}.' not in name or 'c_attn' in name)
    )  # in the last layer it gives keys alone
    attention = (
        2 * tokens * (c.n_layer * (n_more + 1) - n_more) * N * c.n_embd * PAIRS.get(c.attention, 1)
    )
    return 6 * (
        tokens * (sum(matrices.values()) - adaln + n_more * of_content) + N * adaln + attention
    )


class Clock:
    """How fast a run is. `tokens_per_iter` counts all processes together, `flops_per_iter` and `peak` one. Both count
    the padding of documents, which is computed as tokens are; the log does not."""

    def __init__(self, model, config, peak, N=None):
        """N tokens of a sequence, by default block_size."""
        steps, (_, world_size) = config.gradient_accumulation_steps, processes()
        self.tokens_per_iter = config.batch_size * steps * (N or config.block_size)
        self.flops_per_iter = training_flops(model, config.batch_size, N) * steps / world_size
        self.peak, self.max_iters = peak, config.max_iters

    def start(self, state):
        self.began, self.began_iter, self.began_seen = (
            time.perf_counter(),
            state.iter_num,
            state.n_seen,
        )

    def read(self, state):
        """What the log says of the iterations since the last start."""
        seconds = time.perf_counter() - self.began
        tokens_per_sec = (state.n_seen - self.began_seen) / seconds
        of_token = self.flops_per_iter / self.tokens_per_iter  # FLOPs of one process
        seconds_of_iter = seconds / (state.iter_num - self.began_iter)
        return {
            'tokens_per_sec': round(tokens_per_sec, 1),
            'mfu': round(of_token * tokens_per_sec / self.peak, 4),
            'seconds_left': round((self.max_iters - state.iter_num) * seconds_of_iter, 1),
        }


def validate(model, blocks, given, config):
    """{'any': nats, 'l2r': nats}, (n,) float64 each, of fixed blocks (n, N) in the order of the run and left to right.
    Tokens that are `given` (n, N) come first and cost nothing. The order of the run is 'any', a fixed random order for
    each block, or 'own' where it is one for all. A masked loss has no 'l2r', which would need a pass for every token;
    its number of known visits is fixed for each block. Processes share the blocks."""
    (n, N), result, (rank, world_size) = blocks.shape, {}, processes()
    # as many in every process, which a split model wants for its passes; those from n on repeat others
    places = torch.arange(rank, n + -n % world_size, world_size)
    mine, masked_loss, own = places % n, model.slots.masked_loss, order_of(config)
    orders = {estimate_of(own): draw_orders(range(n), N, order=own)[:, 0]}
    if not masked_loss:
        orders['l2r'] = sample_order(n, N, 'l2r')
    for name, order in orders.items():
        batch, known = Batch.of(blocks, order, given), None
        if masked_loss:
            n_given, n_blanks = (n.unsqueeze(1) for n in (batch.n_given, batch.n_blanks))
            known = draw_known(range(n), n_blanks, n_given=n_given)[mine, 0]
        nats = torch.zeros(n + -n % world_size, dtype=torch.float64)
        nats[places] = block_nll(
            model,
            blocks[mine],
            batch.order[mine],
            config.batch_size,
            config.dtype,
            n_known=known,
            n_given=batch.n_given[mine],
        )
        result[name] = summed(nats)[:n]
    return result
