"""How is a checkpoint read that several processes wrote, each its part?

Its tensors stand in a folder of parts, and beside the folder a table of plain numbers says where:
{name of a tensor: [(offsets, sizes, file, begin, n_bytes)]}, a row for each chunk of it. The names
are as in processes.map_tensors. Each part has the mark of its checkpoint, a tensor, too."""

import io
import os
import stat
import zipfile

import torch
from torch.utils._pytree import tree_map_only

from anyorder.machine.files import reading
from anyorder.machine.processes import map_tensors

MARK = 'mark'  # name of the mark in a part, with the number of its process behind it
WAY_OUT = 'copy all parts again, or take another checkpoint'


class Stored(torch.Tensor):
    """A tensor that stands in parts: what computes with it reads it first, and nobody keeps it.

    Its shape and dtype are known. Of a large one `narrow` reads the rows that are asked for."""

    @staticmethod
    def __new__(cls, like, folder, chunks):
        return cls._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    def __init__(self, like, folder, chunks):
        """Raises ValueError unless the chunks are the rows of `like`, each of them once."""
        self.folder = folder
        self.chunks = sorted(chunks)
        end = 0
        for offsets, sizes, *_ in self.chunks:
            if [offsets[0], *sizes[1:]] != [end, *like.shape[1:]]:
                raise ValueError(f'rows that do not begin at {end}')
            end += sizes[0]
        if end != len(like):
            raise ValueError(f'{end} rows of {len(like)}')

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, cls.read, (args, kwargs or {}))
        return function(*args, **kwargs)

    def read(self):
        return self.narrow(0, 0, len(self))

    def narrow(self, dimension, start, length):
        """Return so many of the rows from `start` on; no chunk without them is read."""
        assert dimension == 0, 'a stored tensor is cut by rows'
        rows = torch.empty(length, *self.shape[1:], dtype=self.dtype)
        for offsets, sizes, file, begin, n_bytes in self.chunks:
            first = max(start, offsets[0])
            end = min(start + length, offsets[0] + sizes[0])
            if first < end:
                chunk = read_chunk(os.path.join(self.folder, file), begin, n_bytes).view(sizes)
                rows[first - start : end - start] = chunk[first - offsets[0] : end - offsets[0]]
        return rows


def stored(tree, path, parts):
    """Return nested dicts and lists whose tensors of PyTorch's meta device are Stored in parts.

    path   of the checkpoint's file, beside which their folder is
    parts  {'folder', 'table', 'mark'}, what the file says of them

    No code of a file is run. Raises ValueError by its name for a part that is missing, cut off, or
    of another checkpoint than the one that has this mark."""

    def found(name, x):
        return Stored(x, folder, table[name]) if x.is_meta else x

    with reading(path, 'a checkpoint in parts', 'copy it again, or take another checkpoint'):
        folder = os.path.join(os.path.dirname(path), plain(parts['folder']))
        table = parts['table']
        tree = map_tensors(tree, found)
        ends = ends_in(table)
        mark = parts['mark']
        marks = marks_in(table)
        checks = [(file, ends[file], *marks[file], mark) for file in sorted(ends)]
    if not os.path.exists(folder):
        raise ValueError(f'{path} is not whole without the folder {folder}: copy it, too')
    for check in checks:
        check_part(folder, *check)
    return tree


def ends_in(table):
    """Return {file: the byte behind its last chunk} of a table."""
    ends = {}
    for rows in table.values():
        for _, _, file, begin, n_bytes in rows:
            ends[plain(file)] = max(ends.get(file, 0), begin + n_bytes)
    return ends


def plain(name):
    """Return the name itself. Raises ValueError for one that leads elsewhere."""
    if os.path.basename(name) != name:
        raise ValueError(f'{name} is no plain name')
    return name


def marks_in(table):
    """Return {file: (begin, n_bytes) of its mark} of a table."""
    marks = {}
    for name, rows in table.items():
        if name.startswith(f'{MARK}/'):
            _, _, file, *place = rows[0]
            marks[file] = place
    return marks


def check_part(folder, file, end, begin, n_bytes, mark):
    """Raise ValueError unless a part is there, whole, and has the mark of n_bytes from `begin`."""
    path = os.path.join(folder, file)
    if not is_file(path):
        raise ValueError(f'the checkpoint lacks its part {path}: {WAY_OUT}')
    if os.path.getsize(path) < end:
        raise ValueError(f'the part {path} of the checkpoint is cut off: {WAY_OUT}')
    if read_chunk(path, begin, n_bytes).tolist() != [mark]:
        raise ValueError(f'the part {path} is of another checkpoint: {WAY_OUT}')


def is_file(path):
    """Whether there is a file. Raises PermissionError where nobody may look."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_chunk(path, begin, n_bytes):
    """Return a tensor of a part, which begins at this byte."""
    with reading(path, 'a part of a checkpoint', WAY_OUT), open(path, 'rb') as f:
        f.seek(begin)
        chunk = io.BytesIO(f.read(n_bytes))
        broken = zipfile.ZipFile(chunk).testzip()  # by checksums, at which torch does not look
        assert broken is None, broken
        chunk.seek(0)
        return torch.load(chunk, map_location='cpu', weights_only=True)


def read_all(tree):
    """Return nested dicts and lists whose Stored tensors are read."""

    def whole(_, x):
        return x.read() if isinstance(x, Stored) else x

    return map_tensors(tree, whole)
