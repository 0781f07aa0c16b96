"""What does writing keep from one text to the next? On a GPU the cache, the tensors of the rows,
and the graphs that read and write them."""

import copy
import threading
import traceback
from contextlib import contextmanager

import torch

from anyorder.fast import product_dtype
from anyorder.generation.canvas import TENSORS
from anyorder.generation.plan import Numbers, round_up
from anyorder.machine.files import is_out_of_memory
from anyorder.machine.graphs import Graphs
from model import KVCache

LENDING = threading.Lock()
POSITIONS = 64  # texts are rounded up to a multiple, as far as the model has positions


@contextmanager
def workspace_of(network, part, use_cache, n_passes=1):
    """Lend the Workspace for the rows of the Canvas `part`.

    A step has n_passes, each with a cache of its own. A frozen network that records its steps keeps
    one, of the most rows and positions that it ever wrote. While it is lent, another text has its
    own, and of the two the one is kept that ends last. It goes with the network, and where memory
    was short. Steps that ask the host are not recorded, nor those of a decoder without its cache,
    each of which has another size."""
    dtype = torch.float32
    if hasattr(network, 'dtype'):  # networks of others do not say it
        dtype = product_dtype(network)
    is_cached = network.slots_class.cached
    n_caches = n_passes if is_cached and use_cache else 0
    can_record = getattr(network, 'graphs', False) and bool(n_caches) == is_cached
    whole = None
    lent = None
    try:
        if can_record and not part.limits.asks_host:
            whole = take_kept(network, part, dtype, n_caches)
            lent = whole.for_rows(len(part))
        else:
            lent = Workspace(network, dtype, n_caches, part.order.shape)
        yield lent
    except Exception as e:
        if is_out_of_memory(e):
            whole = None
            traceback.clear_frames(e.__traceback__)  # what a step has made
            if lent is not None:
                lent.clear()
        raise
    finally:
        if whole is not None:
            network.workspace = whole


def take_kept(network, part, dtype, n_caches):
    """Take its Workspace from a network, or make one in which the rows fit, too."""
    with LENDING:
        kept = network.workspace
        network.workspace = None
    B, N = part.order.shape
    shape = B, min(round_up(N, POSITIONS), network.config.block_size)
    if kept is not None and (kept.dtype, len(kept.caches)) == (dtype, n_caches):
        shape = tuple(map(max, shape, kept.shape))
        if shape == kept.shape:
            return kept
    kept = None  # its memory is given back first
    made = Workspace(network, dtype, n_caches, shape)
    made.graphs = Graphs(network.device)
    return made


class Workspace:
    """The caches of the passes of a step, of so many rows and positions, their `shape`, in the
    dtype of the products; and, if it is kept, graphs, and the tensors that they read and write."""

    def __init__(self, network, dtype, n_caches, shape):
        self.dtype = dtype
        self.shape = shape
        self.device = network.device
        self.buffers = {}
        self.graphs = None
        self.caches = []
        n_rows, n_positions = shape
        for _ in range(n_caches):
            with torch.inference_mode(mode=False):  # a text outside of it may write what it makes
                cache = KVCache(network.config, n_rows, self.device, dtype, n_positions)
            self.caches.append(cache)

    def buffer(self, name, shape, dtype):
        """Return a tensor (rows, *shape), for later texts the same one: graphs know its place."""
        key = name, shape, dtype
        if key not in self.buffers:
            n_rows, _ = self.shape
            with torch.inference_mode(mode=False):
                self.buffers[key] = torch.zeros(n_rows, *shape, dtype=dtype, device=self.device)
        return self.buffers[key]

    def for_rows(self, n):
        """Return the same for a text of n rows, with empty caches."""
        lent = copy.copy(self)
        lent.caches = [copy.copy(cache) for cache in self.caches]
        for cache in lent.caches:
            cache.k = cache.k[:, :n].zero_()  # a masked NaN is still 0 * NaN
            cache.v = cache.v[:, :n].zero_()
            cache.length = torch.zeros(n, dtype=torch.long)
        return lent

    def clear(self):
        """Let go of all, whoever still has this Workspace, as a traceback does."""
        for cache in self.caches:
            vars(cache).clear()
        vars(self).clear()

    def place(self, part):
        """Return the rows `part` of a canvas in the buffers that graphs read and write.

        Behind them is padding, so that texts of near lengths have the same graphs."""
        if self.graphs is None:
            return part
        placed = copy.copy(part)
        B, N = part.idx.shape
        _, n_positions = self.shape
        width = min(round_up(N, POSITIONS), n_positions)
        for name in TENSORS:
            own = getattr(part, name)
            place = self.buffer(name, (n_positions, *own.shape[2:]), own.dtype)[:B, :width]
            place[:, :N] = own
            place[:, N:] = 0
            setattr(placed, name, place)
        placed.order[:, N:] = torch.arange(N, width, device=self.device)
        placed.keys = self.buffer('keys', (), part.keys.dtype)[:B].copy_(part.keys)
        return placed

    def numbers(self, numbers):
        """Return the Numbers of a step, of (9, B), where graphs read them."""
        if self.graphs is not None:
            n, B = numbers.shape
            numbers = self.buffer('numbers', (n,), numbers.dtype)[:B].T.copy_(numbers)
        return Numbers(*numbers)
