"""How is a checkpoint read that several processes wrote, each its part?

Its tensors stand in a folder of parts, and beside the folder a table of plain numbers says where:
{name of a tensor: [(offsets, sizes, file, begin, n_bytes)]}, a row for each chunk of it. The names
are as in processes.map_tensors. Each part has the mark of its checkpoint, a tensor, too."""

import io
import os

import torch

from anyorder.machine.files import reading
from anyorder.machine.processes import map_tensors

MARK = 'mark'  # name of the mark in a part, with the number of its process behind it
WAY_OUT = 'copy all parts again, or take another checkpoint'


def fill(tree, folder, table, mark):
    """Return nested dicts and lists whose tensors of PyTorch's meta device are read from parts.

    No code of a file is run. Raises ValueError by its name for a part that is missing, cut off, or
    of another checkpoint than the one that has this mark."""
    check_parts(folder, table, mark)

    def filled(name, x):
        return read(folder, table, name, x.shape, x.dtype) if x.is_meta else x

    return map_tensors(tree, filled)


def check_parts(folder, table, mark):
    """Raise ValueError unless the parts of a table are there, whole, and have the mark."""
    ends = {}
    for rows in table.values():
        for _, _, file, begin, n_bytes in rows:
            ends[file] = max(ends.get(file, 0), begin + n_bytes)
    for file, end in sorted(ends.items()):
        path = os.path.join(folder, file)
        if os.path.basename(file) != file or not os.path.isfile(path):
            raise ValueError(f'the checkpoint lacks its part {path}: {WAY_OUT}')
        if os.path.getsize(path) < end:
            raise ValueError(f'the part {path} of the checkpoint is cut off: {WAY_OUT}')
    for name, rows in table.items():
        if name.startswith(f'{MARK}/') and read(folder, table, name, (1,), torch.int64) != mark:
            path = os.path.join(folder, rows[0][2])
            raise ValueError(f'the part {path} is of another checkpoint: {WAY_OUT}')


def read(folder, table, name, shape, dtype):
    """Return one tensor, whole."""
    whole = torch.empty(shape, dtype=dtype)
    for offsets, sizes, file, begin, n_bytes in table[name]:
        place = whole
        for dimension, (first, n) in enumerate(zip(offsets, sizes)):
            place = place.narrow(dimension, first, n)
        path = os.path.join(folder, file)
        with reading(path, 'a part of a checkpoint', WAY_OUT), open(path, 'rb') as f:
            f.seek(begin)
            chunk = torch.load(io.BytesIO(f.read(n_bytes)), map_location='cpu', weights_only=True)
            place.copy_(chunk.view(place.shape))
    return whole
