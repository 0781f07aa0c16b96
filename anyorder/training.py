"""
What is an update? Learning rate, optimizers, the batch and its loss; and what is measured of the average in between.
"""
import math
from contextlib import nullcontext

import torch
import torch.distributed as dist

from anyorder.devices import autocast
from anyorder.likelihood import block_nll, draw_known, estimate_of
from anyorder.orders import derive_seed, draw_orders, given_first, order_of, sample_order
from data.blocks import random_blocks
from data.puzzles import unpack


def get_lr(it, learning_rate, min_lr, warmup_iters, lr_decay_iters):
    """Learning rate of update `it` (from 0): linear warm-up to learning_rate, then cosine to min_lr at lr_decay_iters."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    done = min(1, (it - warmup_iters) / max(1, lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1 + math.cos(math.pi * done)) * (learning_rate - min_lr)


def lr_of(it, config):
    """get_lr of a run with these options."""
    return get_lr(it, config['learning_rate'], config['min_lr'], config['warmup_iters'], config['lr_decay_iters'] or config['max_iters'])


def make_optimizers(model, optimizer, learning_rate, muon_learning_rate, weight_decay, betas):
    """A list of torch optimizers; every parameter group carries its `lr_ratio` to learning_rate. Weight decay on matrices only, and Muon,
    where asked for, on the matrices of attention and MLP."""
    if optimizer not in ('adamw', 'muon'):
        raise ValueError(f"optimizer must be 'adamw' or 'muon', got {optimizer!r}")
    hidden = {n: p for n, p in model.named_parameters() if optimizer == 'muon' and p.dim() == 2 and ('.attn.' in n or '.mlp.' in n)}
    rest = [p for n, p in model.named_parameters() if n not in hidden]
    groups = [{'params': [p for p in rest if p.dim() >= 2], 'weight_decay': weight_decay},
              {'params': [p for p in rest if p.dim() < 2], 'weight_decay': 0.0}]
    optimizers = [torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)]
    if hidden:
        optimizers.append(torch.optim.Muon(hidden.values(), lr=muon_learning_rate, weight_decay=weight_decay))
    for o in optimizers:
        for group in o.param_groups:
            group['lr_ratio'] = group['lr'] / learning_rate
    return optimizers


def update(model, run_model, optimizers, ema, tokens, micros, it, lr, device, config):
    """Update `it` of weights and EMA at AdamW's learning rate `lr`, in which this process runs the micro-batches `micros`. Returns on the
    device, without waiting for it, (3,): the mean loss in nats per token (of puzzles: the micro-batches' mean of that per blank), the norm
    of the whole gradient before it is clipped, and whether both are finite."""
    loss = torch.zeros((), device=device)
    for micro in micros:
        torch.manual_seed(derive_seed(config.seed, it, micro))   # blocks, orders, dropout
        idx = random_blocks(tokens, config.batch_size, config.block_size)
        idx = (idx.pin_memory() if device.type == 'cuda' else idx).to(device, non_blocking=True)
        order = sample_order(config.batch_size, config.block_size, l2r_ratio=config.l2r_ratio, device=device, **order_of(config))
        n_given = order.new_zeros(config.batch_size)
        if tokens.ndim == 2:   # puzzles: what is given comes first, and costs nothing
            idx, given = unpack(idx)
            order, n_given = given_first(order, given)
        n_blank = config.block_size - n_given                                               # (B,)
        n_known = None if model.config.causal else n_given + (torch.rand(len(idx), device=device, dtype=torch.float64) * n_blank).long()
        waits = micro != micros[-1] and hasattr(run_model, 'no_sync')   # processes exchange gradients after the last
        with run_model.no_sync() if waits else nullcontext():
            with autocast(device, config.dtype):
                micro_loss = run_model(idx, order, n_known, n_given=n_given).sum() / n_blank.sum() / len(micros)
            micro_loss.backward()
        loss += micro_loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip or math.inf)
    for o in optimizers:
        for group in o.param_groups:
            group['lr'] = lr * group['lr_ratio']
        o.step()
        o.zero_grad(set_to_none=True)
    ema.update(model)
    return torch.stack([loss, norm, (loss + norm).isfinite()])


def validate(model, blocks, given, batch_size, dtype, run_order, rank, world_size):
    """{'any': nats, 'l2r': nats}, (n,) float64 each, of fixed blocks in the order of the run and left to right; tokens that are `given`
    (n, N) come first and cost nothing. The order of the run is 'any', a fixed random order for each block, or, if it is one for all, 'own'.
    An encoder has no 'l2r', which would need a pass for every token; its number of known visits is fixed for each block."""
    (n, N), result = blocks.shape, {}
    mine, causal = slice(rank, None, world_size), model.config.causal
    orders = {estimate_of(run_order): draw_orders(range(n), N, order=run_order)[:, 0]}
    if causal:
        orders['l2r'] = sample_order(n, N, 'l2r')
    for name, order in orders.items():
        order, n_given = given_first(order, given)
        known = None if causal else draw_known(range(n), N, n_given=n_given.unsqueeze(1))[mine, 0]
        nats = torch.zeros(n, dtype=torch.float64)
        nats[mine] = block_nll(model, blocks[mine], order[mine], batch_size, dtype, n_known=known, n_given=n_given[mine])
        if world_size > 1:
            nats = nats.to(model.lm_head.weight.device)
            dist.all_reduce(nats)
        result[name] = nats.cpu()
    return result
