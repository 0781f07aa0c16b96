"""What has an evaluation finished? The nats of its blocks, in a file beside --out, from which a killed one goes on."""

import contextlib
import json
import math
import os

import torch

from anyorder.machine.files import read_text, reading, replace_file
from anyorder.machine.locks import locked
from anyorder.machine.processes import gather, processes


class Journal:
    """Nats of finished blocks, by (set, digest of the set, work, block). The first line of the file says which
    evaluation it is. Every other line is a block: [set, digest, work, block, nats]. A last line that was cut off is
    dropped. All processes read it, what the first one finds counts. Evaluations at the same time add to one file, and
    each takes turns with the others to write. Without a path there is no file."""

    def __init__(self, path, evaluation):
        """Open the journal at `path`, or begin it, for one `evaluation`, a dict of all that the nats depend on."""
        self.path, self.done = path, {}
        if not path:
            return
        rank, _ = processes()
        with locked(path) if rank == 0 else contextlib.nullcontext():
            self.read(evaluation)
            if rank == 0:
                lines = [evaluation] + [[*key, nats] for key, nats in self.done.items()]
                replace_file(path, ''.join(json.dumps(line) + '\n' for line in lines).encode())
        self.done = gather(self.done)[0]  # others may not see the file

    def read(self, evaluation):
        """Read what is there. Raises ValueError unless it is of this evaluation."""
        with reading(self.path, 'a list of finished blocks', 'remove it or choose another --out'):
            text = (
                os.path.exists(self.path) and read_text(self.path) or json.dumps(evaluation) + '\n'
            )
            first, *others = map(
                json.loads, text.split('\n')[:-1]
            )  # behind the last: nothing, or half a line
            found = {**first}
            self.done = {
                (dataset, digest, work, block): nats
                for dataset, digest, work, block, nats in others
            }
            if not all(math.isfinite(x) for nats in self.done.values() for x in nats):
                raise ValueError('nats are not finite')
        differ = sorted(
            key for key in evaluation.keys() | found.keys() if found.get(key) != evaluation.get(key)
        )
        if differ:
            raise ValueError(
                f'{self.path} holds blocks of another evaluation ({", ".join(differ)} differ): '
                'remove it or choose another --out'
            )

    def missing(self, name, n_blocks):
        """The blocks 0 .. n_blocks - 1 of `name` (set, digest, work) that are still to be done."""
        return [block for block in range(n_blocks) if (*name, block) not in self.done]

    def add(self, entries):
        """Remember {(set, digest, work, block): nats}, here and in the file."""
        self.done.update(entries)
        if self.path and processes()[0] == 0:
            with locked(self.path):
                add_lines(self.path, [json.dumps([*key, nats]) for key, nats in entries.items()])

    def nats(self, name, n_blocks):
        """Nats (n_blocks, m) float64 of `name`, all of them finished."""
        return torch.tensor(
            [self.done[(*name, block)] for block in range(n_blocks)], dtype=torch.float64
        )


def add_lines(path, lines):
    """Add lines to a text file, in place of half a line with which a killed process may have left it."""
    with open(path, 'ab+') as f:
        if f.tell():
            f.seek(-1, os.SEEK_END)
            if f.read() != b'\n':
                f.seek(0)
                f.truncate(f.read().rfind(b'\n') + 1)
        f.write(''.join(f'{line}\n' for line in lines).encode())
