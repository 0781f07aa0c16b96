"""What does writing keep from one text to the next? On a GPU the cache, the tensors of the rows,
and the graphs that read and write them."""

import copy
import threading
import traceback
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from anyorder.fast import product_dtype
from anyorder.generation.canvas import TABLES
from anyorder.generation.plan import Bounds, round_up
from anyorder.machine.files import is_out_of_memory
from anyorder.machine.graphs import Graphs
from model import KVCache

LENDING = threading.Lock()
POSITIONS = 64  # texts are rounded up to a multiple, as far as the model has positions


class Kind(NamedTuple):
    """What decides, besides its size, how a Workspace is made: the dtype of the products, whether
    there is a cache of keys and values, and for how many passes of a step."""

    dtype: torch.dtype
    has_cache: bool
    n_passes: int


@contextmanager
def workspace_of(network, part, use_cache, n_passes=1):
    """Lend the Workspace for the rows of the Canvas `part`.

    A step has n_passes, each with a cache of its own. A frozen network that records its steps keeps
    one, of the most rows and positions that it ever wrote. While it is lent, another text has its
    own, and the larger one is kept. It goes with the network, and where memory was short."""
    B = len(part)
    has_cache = network.slots.cached and use_cache
    can_record = hasattr(network, 'workspace') and network.graphs
    is_free = part.allowed is None and part.language is None
    if network.slots.cached and not use_cache or not is_free:
        can_record = False  # a constraint asks the host; without its cache each step has a size
    dtype = torch.float32
    if hasattr(network, 'dtype'):  # networks of others do not say it
        dtype = product_dtype(network)
    kind = Kind(dtype, has_cache, n_passes)
    whole = None
    lent = None
    try:
        if can_record and B > 0:
            whole = take_kept(network, part, kind)
            lent = whole.for_rows(B)
        else:
            lent = Workspace(network, kind, *part.order.shape)
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
            keep(network, whole)


def take_kept(network, part, kind):
    """Take its Workspace from a network, or make one in which the rows fit, too."""
    with LENDING:
        kept = network.workspace
        network.workspace = None
    B, N = part.order.shape
    most_rows = B
    most_positions = min(round_up(N, POSITIONS), network.config.block_size)
    if kept is not None and kept.kind == kind:
        if kept.n_rows >= B and kept.n_positions >= N:
            return kept
        most_rows = max(B, kept.n_rows)
        most_positions = max(most_positions, kept.n_positions)
    kept = None  # its memory is given back first
    with torch.inference_mode(False):  # a text outside of it could not write what it makes
        made = Workspace(network, kind, most_rows, most_positions)
        made.keep_places(part)
    return made


def keep(network, whole):
    """Have the network keep a Workspace, unless it has a larger one of a text that was written
    meanwhile."""
    with LENDING:
        other = network.workspace
        if other is None or other.n_rows * other.n_positions <= whole.n_rows * whole.n_positions:
            network.workspace = whole


class Workspace:
    """The cache of so many rows and positions; and if kept their tensors, and graphs."""

    def __init__(self, network, kind, n_rows, n_positions):
        self.kind = kind
        self.n_rows = n_rows
        self.n_positions = n_positions
        self.vocab_size = network.config.vocab_size
        self.law_dtype = torch.promote_types(kind.dtype, torch.float32)
        self.tables = {}
        self.places = {}
        self.cache = None
        if kind.has_cache:
            config = network.config
            config = replace(config, n_layer=kind.n_passes * config.n_layer)
            self.cache = KVCache(config, n_rows, network.device, kind.dtype, n_positions)
        self.graphs = None

    def table(self, name, shape, dtype, device):
        """Return a tensor (n_rows, *shape), for later texts the same one: graphs know its place."""
        key = name, shape, dtype
        if key not in self.tables:
            with torch.inference_mode(mode=False):
                self.tables[key] = torch.zeros(self.n_rows, *shape, dtype=dtype, device=device)
        return self.tables[key]

    def keep_places(self, part):
        """Have places for rows like those of the Canvas `part`, and graphs."""
        self.keys = part.keys.new_empty(self.n_rows)
        self.numbers = part.keys.new_empty(len(Bounds._fields), self.n_rows)
        self.graphs = Graphs(part.idx.device)

    def for_rows(self, n):
        """Return the same for a text of n rows, with an empty cache."""
        lent = copy.copy(self)
        if self.cache is not None:
            lent.cache = copy.copy(self.cache)
            lent.cache.k = self.cache.k[:, :n].zero_()  # a masked NaN is still 0 * NaN
            lent.cache.v = self.cache.v[:, :n].zero_()
            lent.cache.length = torch.zeros(n, dtype=torch.long)
        return lent

    def clear(self):
        """Let go of all, whoever still has this Workspace, as a traceback does."""
        if self.cache is not None:
            vars(self.cache).clear()
        vars(self).clear()

    def place(self, part):
        """Return the rows `part` of a canvas in the tensors that graphs read and write.

        Behind them is padding, so that texts of near lengths have the same graphs."""
        if self.graphs is None:
            return part
        placed = copy.copy(part)
        B, N = part.idx.shape
        width = min(round_up(N, POSITIONS), self.n_positions)
        for name in TABLES:
            table = getattr(part, name)
            place = self.place_of(name, table)
            place[:B, :N] = table
            place[:B, N:width] = 0
            setattr(placed, name, place[:B, :width])
        placed.order[:, N:] = torch.arange(N, width, device=placed.order.device)
        placed.keys = self.keys[:B].copy_(part.keys)
        return placed

    def place_of(self, name, table):
        """Return the place of a table (B, N, ...), (n_rows, n_positions, ...): one for each
        width."""
        key = name, table.shape[2:]
        if key not in self.places:
            shape = self.n_rows, self.n_positions, *table.shape[2:]
            with torch.inference_mode(mode=False):
                self.places[key] = table.new_empty(shape)
        return self.places[key]

    def place_numbers(self, numbers):
        """Return the Bounds of a step, (9, B), where graphs read them."""
        if self.graphs is None:
            return numbers
        return self.numbers[:, : numbers.size(1)].copy_(numbers)
