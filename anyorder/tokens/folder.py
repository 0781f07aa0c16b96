"""How is a set written? One command at a time has its folder, and a split is there whole or not."""

import contextlib
import hashlib
import os
from dataclasses import dataclass, replace

import numpy as np

from anyorder.machine.files import check_folder, check_names, tidy, whole_files
from anyorder.machine.locks import locked
from anyorder.machine.terminal import progress
from anyorder.tokens.meta import Meta, meta_path, read_meta, write_meta
from anyorder.tokens.sets import bin_path, whole_splits
from anyorder.tokens.tokenizers import is_of_text
from configurator import home


@contextlib.contextmanager
def folder_to_write(data_dir, name, split=''):
    """Yield the Folder data_dir/name, for the body alone: another command that writes the set waits
    and finds what the body has made. Raises ValueError where a name or the path is none."""
    check_names(name=name, split=split or 'train')
    data_dir = home(data_dir)
    path = os.path.join(data_dir, name)
    check_folder('--data_dir', data_dir and path)
    with locked(path):
        tidy(path)
        yield Folder(path, name, read_meta(path))


@dataclass(frozen=True)
class Folder:
    """The folder that a set is written to.

    path  where it is, or will be
    name  of the set
    meta  the Meta of what is there, or None

    `wanted` are the names of the splits that a command makes, as a list. `origin` is what meta.json
    says of their source."""

    path: str
    name: str
    meta: Meta | None

    def is_done(self, wanted, origin, others, force, same=True):
        """Whether all splits are there, whole, of this kind, from this origin and the `same`.

        Raises ValueError if some are there and are not, unless `force` replaces them; and where the
        splits that stay are of another kind, or from a source of the same content: no two splits
        may share text.

        others  what differs in the kind of what is there"""
        whole = whole_splits(self.path, self.meta)
        there = [split for split in wanted if split in whole]
        if there and not force:
            is_from = all(whole[split]['source'] == origin for split in there)
            if there == wanted and is_from and same and not others:
                return True
            raise ValueError(
                f'{self.path} holds {", ".join(there)} already, from {whole[there[0]]["source"]} '
                f'with the tokenizer {self.meta.tokenizer}: --force replaces it, --name=OTHER '
                'writes elsewhere, --split=NAME adds a split of another source'
            )
        kept = self.kept(wanted)
        if kept and others:
            raise ValueError(
                f'{self.path} holds {", ".join(kept)} of another kind ({", ".join(others)}), and '
                'one folder has one kind: use another --name'
            )
        content = origin.rpartition(', ')[2]
        for split, said in kept.items():
            is_own = content.startswith(('sha256 ', 'fingerprint '))
            if is_own and said['source'].endswith(content):
                raise ValueError(
                    f'{origin} is the source of {split} already, and no two splits may share text: '
                    'name another file, or divide this one by --force without --split'
                )
        return False

    def kept(self, wanted):
        """Return {split: what is said of it} of the whole splits that stay beside the new ones."""
        whole = whole_splits(self.path, self.meta)
        return {split: said for split, said in whole.items() if split not in wanted}

    def write(self, meta, origin, splits, unit='row'):
        """Write splits of a set of the kind of a Meta beside those that stay; return the Meta of
        all of them.

        splits   {split: (number of rows, rows)}; a row, or a piece of one, is (tokens as on disk,
                 number of bytes of its text)
        unit     what the progress bar calls a row"""
        meta = replace(meta, name=self.name, splits=self.kept(splits))
        os.makedirs(self.path, exist_ok=True)
        try:
            with whole_files(*(bin_path(self.path, split) for split in splits)) as paths:
                size = 'text_bytes' if is_of_text(meta.tokenizer) else 'tokens'
                new = write_files(paths, origin, splits, unit, size)
                if os.path.exists(meta_path(self.path)):
                    # who is killed from here on leaves no entry of another file
                    write_meta(self.path, meta)
        finally:
            if not os.listdir(self.path):
                os.rmdir(self.path)
        meta = replace(meta, splits=meta.splits | new)
        write_meta(self.path, meta)
        return meta


def write_files(paths, origin, splits, unit, size):
    """Write a file for each of the splits; return {split: what is said of it}. See Folder.write.

    size  what is said of how much there is, which is not 0"""
    new = {}
    for path, (split, (n_rows, rows)) in zip(paths, splits.items()):
        bar = progress(rows, total=n_rows, desc=f'{split}.bin', unit=unit)
        new[split] = write_rows(path, bar, n_rows, origin)
    for split, said in new.items():
        if not said[size]:
            raise ValueError(
                f'{split} of {origin} would be empty: name its --split, or a longer source'
            )
    return new


def write_rows(path, rows, n_rows, origin):
    """Write `n_rows` rows into `path`; return what is said of them."""
    n_tokens = 0
    text_bytes = 0
    sha = hashlib.sha256()
    with open(path, 'wb') as f:
        for tokens, n_bytes in rows:
            written = np.ascontiguousarray(tokens)  # a stream may be as large as its file: no copy
            f.write(written)
            sha.update(written)
            n_tokens += len(tokens)
            text_bytes += n_bytes
    return {
        'rows': n_rows,
        'tokens': n_tokens,
        'text_bytes': text_bytes,
        'sha256': sha.hexdigest(),
        'source': origin,
    }


def print_meta(out, meta, before, force):
    """Print what is in the folder now, and whether it was there before."""
    done = 'written'
    if meta == before and not force:
        done = 'there already (--force replaces it)'
    print(f'{os.path.join(out, meta.name)}: {done}, tokenizer {meta.tokenizer}')

    for name, said in meta.splits.items():
        print(
            f'{name}: {said["rows"]:,} rows, {said["tokens"]:,} tokens, '
            f'{said["text_bytes"]:,} bytes of text, sha256 {said["sha256"][:16]}..., '
            f'from {said["source"]}'
        )
