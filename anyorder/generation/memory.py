"""How much memory of its device does a text need to be written, and how much is free?"""

import torch

from anyorder.fast import product_dtype
from anyorder.generation.canvas import TABLES

SCORED = 2**26  # logits that are scored at a time, see fast.split_rows


class Memory:
    """What the rows of a canvas need, and what is free before the first step.

    cache   the dtype of their cache, None without one
    n_passes  of a step, each with keys and values of its own: 2 with guidance
    free    bytes, None where the device does not say it
    sizes   [steps] of plan.Size, once they are planned
    laws    bytes of what a rule keeps from step to step, which were not there before"""

    def __init__(self, network, part, cached, n_passes=1):
        self.config = network.config
        self.n_passes = n_passes
        self.device = part.idx.device
        self.shape = part.order.shape
        self.dtype = torch.float32
        if hasattr(network, 'dtype'):  # networks of others do not say it
            self.dtype = product_dtype(network)
        self.cache = self.dtype if cached else None
        tables = [getattr(part, name) for name in TABLES]
        self.row_bytes = sum(x.nbytes for x in tables)
        self.free = None
        self.sizes = []
        self.sorts = False
        self.records = False
        self.laws = 0

    def look(self, n_kept=0):
        """Find out what is free, n_kept bytes that the network keeps among it."""
        self.free = free_bytes(self.device)
        if self.free is not None:
            self.free += n_kept

    def add_laws(self, n_bytes):
        """Count more of what a rule keeps. Raises MemoryError if there is too little for it."""
        self.laws += n_bytes
        self.check()

    def is_like(self, other):
        """Return whether the cache of one row is that of another Memory."""
        return self.cache == other.cache and self.n_passes == other.n_passes

    def fits(self, n_rows, n_positions):
        """Return whether the cache of so many rows and positions may be made."""
        return self.free is None or self.cache_bytes(n_rows, n_positions) <= self.free

    def check(self, sizes=(), sorts=False, records=False):
        """Raise MemoryError if there is too little for rows, cache and steps of these sizes.

        sorts    whether a step sorts the logits, as top_p wants them
        records  whether steps become graphs, which do not give back what they need"""
        self.sizes = sizes
        self.sorts = sorts
        self.records = records
        if self.free is None:
            return
        needed = sum(self.parts().values())
        if needed > self.free:
            raise MemoryError

    def parts(self):
        """Return {what: bytes}. The rows are there twice, as they are put away and as they run.

        Graphs share the memory of the widest. A step of another size runs beside them at first."""
        steps = sorted(self.step_bytes(size) for size in {*self.sizes})
        found = {
            'the cache': self.cache_bytes(*self.shape),
            'the rows': 2 * self.row_bytes,
            'the widest step': sum(steps[-1:]),
        }
        if self.laws:
            found['the laws of the step before'] = self.laws
        if self.records:
            found['the graphs'] = sum(steps[-2:-1])
        return found

    def cache_bytes(self, n_rows, n_positions):
        """Return the bytes of 2 L B N C numbers, keys and values, for each pass of a step."""
        if self.cache is None:
            return 0
        c = self.config
        n = 2 * self.n_passes * c.n_layer * c.n_embd
        return n * n_rows * n_positions * self.cache.itemsize

    def step_bytes(self, size):
        """Return about what a step needs at once: what a block makes, or the logits."""
        width = getattr(self.config, 'n_embd', 0)
        of_slot = 20 * width * self.dtype.itemsize
        if size.keys:
            of_slot += size.keys * (1 + self.dtype.itemsize)  # a mask of bits and of numbers
        return max(self.shape[0] * size.slots * of_slot, self.logit_bytes(size))

    def logit_bytes(self, size):
        """Return about what the logits of a step need, of the answers or of scores."""
        n = self.shape[0] * self.config.vocab_size
        n_scored = min(n * size.targets, SCORED)
        n_drawn = n * min(size.targets, size.reveals)
        of_one = 2 * max(self.dtype.itemsize, 4)  # in float32, and their probabilities
        if self.dtype.itemsize < 4:
            of_one += self.dtype.itemsize
        of_drawn = of_one
        if self.sorts:
            of_drawn += 32  # columns and sums of 8 bytes
        return max(n_drawn * of_drawn, n_scored * of_one)

    def too_little(self):
        """Return the line of an error that says what is needed, what is free and the way out."""
        B, N = self.shape
        parts = [f'{gib(n)} for {what}' for what, n in self.parts().items()]
        there = f'{self.device} has'
        if self.free is not None:
            there = f'the {gib(self.free)} that are free on {self.device}'
        smaller = 'a smaller batch_size or length'
        if self.dtype.itemsize > 2:
            smaller += ', or dtype=bfloat16'
        return (
            f'{B} texts of {N} tokens at a time need more memory than {there}: about '
            f'{", ".join(parts)}; choose {smaller}'
        )


def free_bytes(device):
    """Return how much memory a GPU has free, with what PyTorch has reserved and does not use; None
    for another device."""
    if device.type != 'cuda':
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def gib(n):
    return f'{n / 2**30:.3g} GiB'
