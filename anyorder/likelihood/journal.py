"""What has an evaluation finished? The nats of its blocks, in a file beside --out, from which a
killed one goes on."""

import contextlib
import json
import os

from anyorder.machine.files import read_text, reading, replace_file
from anyorder.machine.locks import locked
from anyorder.machine.processes import gather, is_first


class Journal:
    """Nats of finished blocks: `done` {(set, digest of the set, work, block): [m numbers]}.

    The first line of the file says which evaluation it is. Every other line is a block: [set,
    digest, work, block, nats]. A last line that was cut off is dropped. All processes read the
    file, what the first one finds counts. Evaluations at the same time add to one file, and each
    takes turns with the others to write. Without a path there is no file."""

    def __init__(self, path, evaluation):
        """Open the journal at `path`, or begin it.

        evaluation  a dict of all that the nats depend on"""
        self.path = path
        self.done = {}
        if not path:
            return
        with locked(path) if is_first() else contextlib.nullcontext():
            self.read(evaluation)
            if is_first():
                blocks = [[*key, nats] for key, nats in self.done.items()]
                replace_file(path, lines_of([evaluation, *blocks]).encode())
        self.done = gather(self.done)[0]  # others may not see the file

    def read(self, evaluation):
        """Read what is there. Raises ValueError unless it is a journal of this evaluation."""
        text = lines_of([evaluation])
        with reading(self.path, 'a list of finished blocks', 'remove it or choose another --out'):
            if os.path.exists(self.path):
                text = read_text(self.path) or text
            first, *lines = text.split('\n')[:-1]  # behind the last: nothing, or half a line
            differ = {name for name, _ in json.loads(first).items() ^ evaluation.items()}
            self.done = {tuple(key): nats for *key, nats in map(json.loads, lines)}
        if differ:
            raise ValueError(
                f'{self.path} holds blocks of another evaluation ({", ".join(sorted(differ))} '
                'differ): remove it or choose another --out'
            )

    def add(self, entries):
        """Remember {(set, digest, work, block): nats}, here and in the file."""
        self.done.update(entries)
        if self.path and is_first():
            lines = lines_of([*key, nats] for key, nats in entries.items())
            with locked(self.path), open(self.path, 'a') as f:
                f.write(lines)


def lines_of(values):
    """Return the text of a file with a line of JSON for each value."""
    return ''.join(json.dumps(value) + '\n' for value in values)
