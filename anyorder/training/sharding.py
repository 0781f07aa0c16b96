"""How does a run fit that is larger than a GPU's memory? By recompute and shard, which keep names.

A split weight is a DTensor: it knows its whole shape, and each process holds some of its rows. By
hybrid the processes of a node split it, and each node has a copy of its own. To save, all of it is
gathered; each process reads its part again by processes.own_part."""

import os
import warnings
from contextlib import contextmanager

from torch.utils.checkpoint import checkpoint

from anyorder.machine.processes import gather, n_processes
from model import Block

# what save_memory may be beside '', its words in any order
SAVINGS = ('recompute', 'shard', 'hybrid', 'recompute,shard', 'hybrid,recompute')


def saves_by(word, config):
    """Whether a run saves memory by this word of SAVINGS."""
    return word in config.save_memory.split(',')


class RecomputedBlock(Block):
    """A block that keeps its input alone: the backward pass runs it again, with its dropout."""

    def forward(self, *args):
        draws = self.training and self.mlp.dropout > 0
        return checkpoint(super().forward, *args, use_reentrant=False, preserve_rng_state=draws)


def recompute(model):
    """Have the blocks of a model computed twice: a third more work, and far less memory for
    activations."""
    for block in model.transformer.h:
        block.__class__ = RecomputedBlock  # the weights and their names stay as they are


def mesh_of(config, device):
    """Return the mesh of the processes that split a run: all of them, or (nodes, those of one).
    None: no processes do."""
    is_hybrid = saves_by('hybrid', config)
    world_size = n_processes()
    if world_size == 1 or not (is_hybrid or saves_by('shard', config)):
        return None
    from torch.distributed.device_mesh import init_device_mesh  # an import that takes a second

    if not is_hybrid:
        return init_device_mesh(device.type, (world_size,))
    n = node_size()
    names = ('nodes', 'processes of a node')
    return init_device_mesh(device.type, (world_size // n, n), mesh_dim_names=names)


def node_size():
    """Return how many processes a node has.

    All processes call it. Raises ValueError in all unless they are as many in each node, numbered
    node by node."""
    every = gather([os.environ.get(name, '') for name in ('LOCAL_RANK', 'LOCAL_WORLD_SIZE')])
    n = int(every[0][1] or 1)
    if every != [[str(rank % n), str(n)] for rank in range(n_processes())]:
        raise ValueError(
            'save_memory=hybrid wants nodes of as many processes each, numbered node by node, as '
            f'torchrun says by LOCAL_RANK and LOCAL_WORLD_SIZE, got {every}: give each node the '
            'same --nproc_per_node, or use save_memory=shard'
        )
    return n


def shard(model, mesh):
    """Split a model by fully_shard, on the devices of the mesh.

    All processes come with the same weights. One keeps a part of each weight, gradient, moment and
    average, and a block gathers its weights while it runs. Over the last dimension of the mesh
    gradients are averaged in float32 after every micro-batch: a gradient that waits would be whole.
    Over the first of two, where each node has a copy, they are once an update, see no_sync."""
    from torch.distributed.fsdp import fully_shard

    # it warns who changes losses in place, which are a view: nobody does
    warnings.filterwarnings('ignore', 'FSDP2-wrapped module')
    for unit in (*model.transformer.h, model):
        # all weights are split again after a backward pass, which an average has not
        fully_shard(unit, mesh=mesh, reshard_after_forward=None if model.training else True)
    if mesh.ndim > 1:
        model.no_sync = lambda: without_copies(model)


@contextmanager
def without_copies(model):
    """Have a backward pass add up gradients within the nodes alone: a later one exchanges them."""
    model.set_requires_all_reduce(False)
    yield
    model.set_requires_all_reduce(True)
