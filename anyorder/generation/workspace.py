"""What does writing keep from one text to the next? On a GPU the cache, the tensors of the rows,
and the graphs that read and write them."""

import copy
from contextlib import contextmanager

import torch

from anyorder.fast import product_dtype
from anyorder.generation.canvas import TABLES
from anyorder.generation.plan import Bounds
from anyorder.machine.graphs import Graphs
from model import KVCache


@contextmanager
def workspace_of(network, part, use_cache):
    """Lend the Workspace for the rows of the Canvas `part`.

    A frozen network that records its steps keeps one, of the most rows and positions that it ever
    wrote; while it is lent, another text has its own. It goes with the network."""
    cached = use_cache and network.slots.cached
    B, N = part.order.shape
    is_kept = hasattr(network, 'workspace') and network.graphs and part.allowed is None and B > 0
    if not is_kept:
        yield Workspace(network, B, N, cached)
        return
    kept = network.workspace
    network.workspace = None
    if kept is None or kept.n_rows < B or kept.n_positions < N:
        most_rows = max(B, kept.n_rows) if kept else B
        most_positions = max(N, kept.n_positions) if kept else N
        kept = None  # its memory is given back first
        kept = Workspace(network, most_rows, most_positions, cached)
        kept.keep_places(part)
    try:
        yield kept.for_rows(B)
    finally:
        network.workspace = kept


class Workspace:
    """The cache of so many rows and positions; and if kept their tensors, and graphs."""

    def __init__(self, network, n_rows, n_positions, cached):
        self.n_rows = n_rows
        self.n_positions = n_positions
        self.cache = None
        if cached:
            dtype = product_dtype(network)
            self.cache = KVCache(network.config, n_rows, network.device, dtype, n_positions)
        self.graphs = None

    def keep_places(self, part):
        """Have places for rows like those of the Canvas `part`, and graphs."""
        shape = self.n_rows, self.n_positions
        self.places = {name: getattr(part, name).new_empty(shape) for name in TABLES}
        self.keys = part.keys.new_empty(self.n_rows)
        self.numbers = part.keys.new_empty(len(Bounds._fields), self.n_rows)
        self.graphs = Graphs(part.idx.device)

    def for_rows(self, n):
        """Return the same, with an empty cache of n rows."""
        lent = copy.copy(self)
        if self.cache is not None:
            lent.cache = copy.copy(self.cache)
            lent.cache.k = self.cache.k[:, :n].zero_()  # a masked NaN is still 0 * NaN
            lent.cache.v = self.cache.v[:, :n].zero_()
            lent.cache.length = torch.zeros(n, dtype=torch.long)
        return lent

    def place(self, part):
        """Return the rows `part` of a canvas in the tensors that graphs read and write."""
        if self.graphs is None:
            return part
        placed = copy.copy(part)
        B, N = part.idx.shape
        for name, place in self.places.items():
            setattr(placed, name, place[:B, :N].copy_(getattr(part, name)))
        placed.keys = self.keys[:B].copy_(part.keys)
        return placed

    def place_numbers(self, numbers):
        """Return the Bounds of a step, (8, B), where graphs read them."""
        return self.numbers[:, : numbers.size(1)].copy_(numbers)
