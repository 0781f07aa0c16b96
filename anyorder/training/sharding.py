"""How does a run fit that is larger than a GPU's memory? By recompute and shard, which keep names.

A split weight is a DTensor: it knows its whole shape, and each process holds some of its rows.
Checkpoints hold whole tensors: processes.gather_whole makes them, processes.own_part splits them
again."""

import torch
from torch.utils.checkpoint import checkpoint

from anyorder.machine.processes import processes
from model import Block

SAVINGS = ('recompute', 'shard')  # words of the option save_memory


def saves_by(word, config):
    """Whether a run saves memory by one of SAVINGS."""
    return word in config.save_memory.split(',')


class RecomputedBlock(Block):
    """A block that keeps its input alone: the backward pass runs it again, with its dropout."""

    def forward(self, *args):
        if not torch.is_grad_enabled():
            return super().forward(*args)
        draws = self.training and self.mlp.dropout > 0
        return checkpoint(super().forward, *args, use_reentrant=False, preserve_rng_state=draws)


def recompute(model):
    """Return the model itself, whose blocks are now computed twice.

    It is a third more work, and far less memory for activations."""
    for block in model.transformer.h:
        block.__class__ = RecomputedBlock  # the weights and their names stay as they are
    return model


def shard(model, device):
    """Return the model itself, now on `device` and split over all processes by fully_shard.

    All of them come with the same weights. A process keeps a part of each weight, gradient, moment
    and average, and a block gathers its weights while it runs. Gradients are averaged in float32
    after every micro-batch: a gradient that waits would be whole."""
    from torch.distributed.device_mesh import init_device_mesh  # imports that take a second
    from torch.distributed.fsdp import fully_shard

    _, world_size = processes()
    mesh = init_device_mesh(device.type, (world_size,))
    again = None  # after a backward pass all weights are split again
    if not model.training:  # an average, which has no backward pass
        again = True
    for unit in (*model.transformer.h, model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=again)
    return model
