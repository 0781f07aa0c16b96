"""How is a set written? One command at a time has its folder, and a split is there whole or not."""

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass, replace

import numpy as np

from anyorder.machine.files import check_folder, check_names, tidy, whole_files
from anyorder.machine.locks import locked
from anyorder.tokens.meta import bin_path, meta_path, read_meta, whole_splits, write_meta
from anyorder.tokens.tokenizer import OWN
from configurator import home


@contextlib.contextmanager
def folder_to_write(path, wanted, origin, force):
    """Yield the Folder at a path, for the body alone: another command that writes the set waits and
    finds what the body has made. See place_of."""
    with locked(path):
        tidy(path)
        yield Folder(path, wanted, origin, force)


def place_of(data_dir, name, split):
    """Return the path of a set to be written. Raises ValueError where a name or the path is none:
    ask before a source is fetched or read.

    split  '' is all of them"""
    check_names(name=name, split=split or 'train')
    data_dir = home(data_dir)
    path = os.path.join(data_dir, name)
    check_folder('--data_dir', data_dir and path)
    return path


@dataclass
class Folder:
    """The folder that splits of a set are written to.

    path    where it is, or will be; it ends in the name of the set
    wanted  [names] of the splits that are made
    origin  what meta.json says of their source
    force   whether they replace what is there, and all of a set that is damaged
    meta    the Meta of what is there, or None
    there   {split: its entry in meta.json} of those that are wanted and there, whole
    kept    {split: its entry} of those that stay beside them"""

    path: str
    wanted: list
    origin: str
    force: bool

    def __post_init__(self):
        self.meta = read_meta(self.path, self.force)
        self.kept = whole_splits(self.path, self.meta)
        self.there = {split: self.kept.pop(split) for split in self.wanted if split in self.kept}

    def is_done(self, differs, same_rows=True):
        """Return whether nothing is left to write, and say so: all splits are there, of this kind,
        from this origin, and of puzzles with the `same_rows`.

        Raises ValueError where nothing may be written: if some are there and are not such, unless
        `force` replaces them; and if the splits that stay are of another kind, or from a source of
        the same content: no two splits may share text.

        differs  the names of what is another in the kind of what is there"""
        origins = [entry['source'] for entry in self.there.values()]
        if origins and not self.force:
            are_all = len(origins) == len(self.wanted) and {*origins} == {self.origin}
            if are_all and same_rows and not differs:
                print('there already: to prepare it with --force replaces it')
                return True
            raise ValueError(
                f'{self.path} holds {", ".join(self.there)} already, from {origins[0]} with the '
                f'tokenizer {self.meta.tokenizer}: to prepare it with --force replaces it, with '
                '--name=OTHER writes elsewhere, with --split=NAME adds a split of another source'
            )
        if self.kept and differs:
            raise ValueError(
                f'{self.path} holds {", ".join(self.kept)} of another kind ({", ".join(differs)}), '
                'and one folder has one kind: use another --name'
            )
        content = re.search(r', (sha256|fingerprint) \S+$|$', self.origin)[0]
        shared = [s for s in self.kept if content and content in self.kept[s]['source']]
        if shared:
            raise ValueError(
                f'{self.origin} is the source of {shared[0]} already, and no two splits may share '
                'text: name another file, or divide this one by --force without --split'
            )
        return False

    def write(self, meta, encoded):
        """Write splits of a set of the kind of a Meta; return the Meta of all that are there then.

        encoded  (split, tokens as on disk, bytes of text, rows that end here) each"""
        meta = replace(meta, name=os.path.basename(self.path), splits=self.kept)
        os.makedirs(self.path, exist_ok=True)
        try:
            with whole_files(*(bin_path(self.path, split) for split in self.wanted)) as paths:
                new = write_splits(dict(zip(self.wanted, paths)), self.origin, encoded)
                size = 'tokens' if meta.tokenizer == OWN else 'text_bytes'
                for split, entry in new.items():
                    if not entry[size]:
                        raise ValueError(
                            f'{split} of {self.origin} would be empty: name its --split, or a '
                            'longer source'
                        )
                if os.path.exists(meta_path(self.path)):
                    # who is killed from here on leaves no entry of another file
                    write_meta(self.path, meta)
        finally:
            if not os.listdir(self.path):
                os.rmdir(self.path)
        meta = replace(meta, splits=meta.splits | new)
        write_meta(self.path, meta)
        return meta


def write_splits(paths, origin, encoded):
    """Write tokens into the files of {split: path}; return {split: its entry in meta.json}. See
    Folder.write."""
    new = {}
    for split in paths:
        counts = {'rows': 0, 'tokens': 0, 'text_bytes': 0}
        new[split] = counts | {'sha256': hashlib.sha256(), 'source': origin}
    with contextlib.ExitStack() as stack:
        files = {split: stack.enter_context(open(path, 'wb')) for split, path in paths.items()}
        for split, tokens, n_bytes, n_rows in encoded:
            written = np.ascontiguousarray(tokens)  # a stream may be as large as its file: no copy
            files[split].write(written)
            entry = new[split]
            entry['sha256'].update(written)
            entry['rows'] += n_rows
            entry['tokens'] += written.size
            entry['text_bytes'] += n_bytes
    for entry in new.values():
        entry['sha256'] = entry['sha256'].hexdigest()
    return new


ENTRY = (
    '{}: {rows:,} rows, {tokens:,} tokens, {text_bytes:,} bytes of text, sha256 {sha256:.16}..., '
    'from {source}'
)


def print_meta(out, meta):
    """Print what is in the folder now."""
    print(f'{os.path.join(out, meta.name)}: tokenizer {meta.tokenizer}')
    for split, entry in meta.splits.items():
        print(ENTRY.format(split, **entry))
