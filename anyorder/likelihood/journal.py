"""
What has an evaluation finished? The nats of its blocks, in a file beside its --out, from which a killed one goes on.
"""
import itertools
import json
import math
import os

import torch

from anyorder.machine.files import reading, replace_file
from anyorder.machine.processes import gather, processes


class Journal:
    """Nats of finished blocks, by (set, digest of the set, work, block).

    The first line of its file says which evaluation it is, every other line is a block: [set, digest, work, block,
    nats]. A last line that was cut off is dropped. All processes read, the first one writes. Without a path there is no
    file."""

    def __init__(self, path, evaluation):
        """Open the journal at `path`, or begin it.

        evaluation  dict of all that the nats depend on: a journal of another evaluation is a ValueError"""
        self.path, self.done = path, {}
        if not path:
            return
        found = evaluation
        if os.path.exists(path):
            found, self.done = read_journal(path, evaluation)
        differ = sorted(key for key in evaluation.keys() | found.keys() if found.get(key) != evaluation.get(key))
        if differ:
            raise ValueError(f'{path} holds blocks of another evaluation ({", ".join(differ)} differ): '
                             'remove it or choose another --out')
        if processes()[0] == 0:
            lines = [evaluation] + [[*key, nats] for key, nats in self.done.items()]
            replace_file(path, ''.join(json.dumps(line) + '\n' for line in lines).encode())
        gather(None)   # all have read it before the first one adds to it

    def missing(self, name, n_blocks):
        """The blocks 0 .. n_blocks - 1 of `name` (set, digest, work) that are still to be done."""
        return [block for block in range(n_blocks) if (*name, block) not in self.done]

    def complete(self, name, n_blocks, n_at_once, work):
        """Nats (n_blocks, m) float64 of `name`, of which work(blocks) gives (len(blocks), m) for a list of blocks.

        Runs what is missing, n_at_once blocks at a time. The processes take turns, and all get all nats."""
        rank, world_size = processes()
        todo = self.missing(name, n_blocks)
        chunks = [todo[i:i + n_at_once] for i in range(0, len(todo), n_at_once)]
        for i in range(0, len(chunks), world_size):
            mine = chunks[i + rank] if i + rank < len(chunks) else []
            nats = work(mine).tolist() if mine else []
            parts = gather([((*name, block), nats_of_block) for block, nats_of_block in zip(mine, nats, strict=True)])
            self.add(dict(itertools.chain(*parts)))
        nats = [self.done[(*name, block)] for block in range(n_blocks)]
        if len(set(map(len, nats))) > 1:
            raise ValueError(f'{self.path} is no list of finished blocks: their numbers of nats differ')
        return torch.tensor(nats, dtype=torch.float64)

    def add(self, entries):
        """Remember {(set, digest, work, block): nats}, here and in the file."""
        self.done.update(entries)
        if self.path and processes()[0] == 0:
            with open(self.path, 'a', encoding='utf-8') as f:
                f.writelines(json.dumps([*key, nats]) + '\n' for key, nats in entries.items())


def read_journal(path, evaluation):
    """(evaluation, {key: nats}) of the lines of a journal; an empty file is of the `evaluation` that begins it.

    Raises ValueError for a file with any other line."""
    with reading(path, 'a list of finished blocks', 'remove it or choose another --out'):
        with open(path, encoding='utf-8') as f:
            text = f.read()
        if not text:
            return evaluation, {}
        first, *others = map(json.loads, text.split('\n')[:-1])   # behind the last line end: nothing, or half a line
        done = {(dataset, digest, work, block): nats for dataset, digest, work, block, nats in others}
        if not all(math.isfinite(x) for nats in done.values() for x in nats):
            raise ValueError('nats are not finite')
        return {**first}, done
