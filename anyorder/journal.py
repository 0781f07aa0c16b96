"""
What has an evaluation finished? The nats of its blocks, in a file beside its --out, from which a killed one goes on.
"""
import json
import os

from anyorder.files import replace_file
from anyorder.processes import gather, processes


class Journal:
    """Finished blocks in a file: a line that says which evaluation it is, then one a block, [set, pass, block, nats]. Without a path it
    remembers nothing. A line that was cut off is dropped. All processes read, the first one writes."""

    def __init__(self, path, evaluation):
        self.path, self.done = path, {}
        if not path:
            return
        lines = []
        if os.path.exists(path):
            with open(path, encoding='utf-8') as f:
                text = f.read()
            try:
                lines = [json.loads(line) for line in text[:text.rfind('\n') + 1].splitlines()]
                if text and not (lines and isinstance(lines[0], dict) and all(isinstance(line, list) for line in lines[1:])):
                    raise ValueError
            except ValueError:
                raise ValueError(f'{path} is no list of finished blocks: remove it or choose another --out') from None
        if lines and lines[0] != evaluation:
            other = sorted(k for k in evaluation.keys() | lines[0].keys() if lines[0].get(k) != evaluation.get(k))
            raise ValueError(f'{path} holds blocks of another evaluation ({", ".join(other)} differ): remove it or choose another --out')
        self.done = {tuple(key): nats for *key, nats in lines[1:]}
        if processes()[0] == 0:
            replace_file(path, ''.join(json.dumps(line) + '\n' for line in lines or [evaluation]).encode())
        gather(None)   # all have read it before the first one adds to it

    def add(self, entries):
        self.done.update(entries)
        if self.path and processes()[0] == 0:
            with open(self.path, 'a', encoding='utf-8') as f:
                f.writelines(json.dumps([*key, nats]) + '\n' for key, nats in entries.items())
