"""How do several processes save a checkpoint, each its part, while they go on?

By torch.distributed.checkpoint, of which the first process keeps where it wrote what, see
machine/parts.py."""

import os
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter, async_save
from torch.distributed.checkpoint.api import CheckpointException

from anyorder.machine.files import first_cause
from anyorder.machine.locks import temporary_name
from anyorder.machine.parts import MARK
from anyorder.machine.processes import gather, is_split, map_tensors, processes, sum_over_processes


class SaveOfParts:
    """A checkpoint that all processes write, each its part, while they go on."""

    def __init__(self, path, checkpoint, finish):
        """Copy the dict of a checkpoint, and have a thread write the copy.

        path    of the new folder of the parts, which gets a mark behind it
        finish  called by a thread of the first process once all parts are in the folder, with the
                dict without its split tensors, whose 'parts' say where these are"""
        rank, _ = processes()
        self.iter_num = checkpoint['iter_num']
        rest, tensors = set_apart(checkpoint)
        mark = gather(secrets.randbits(32))[0]
        self.folder = f'{path}_{mark:08x}'
        self.temporary = gather(temporary_name(self.folder))[0]
        self.parts = {'folder': os.path.basename(self.folder), 'mark': mark}

        self.writer = PartWriter(self.temporary)
        tensors[f'{MARK}/{rank}'] = torch.tensor([mark])
        self.written = async_save(tensors, storage_writer=self.writer, process_group=background())
        if rank == 0:
            thread = ThreadPoolExecutor(1)
            self.written = thread.submit(self.end, self.written, rest, finish)
            thread.shutdown(wait=False)

    def end(self, written, rest, finish):
        """Wait for all parts, give the folder its name, and finish; without all of them it goes."""
        try:
            written.result()
            self.parts['table'] = self.writer.table
            self.check()
            os.rename(self.temporary, self.folder)
        finally:
            shutil.rmtree(self.temporary, ignore_errors=True)
        finish(rest | {'parts': self.parts})

    def check(self):
        """Raise RuntimeError unless the first process sees all parts, as in one folder of all."""
        for rows in self.writer.table.values():
            for _, _, file, _, _ in rows:
                if not os.path.exists(os.path.join(self.temporary, file)):
                    raise RuntimeError(
                        f'{file} of another process is not seen: out_dir must be one'
                    )

    def is_done(self):
        """Whether all processes have ended it; all call it."""
        return not sum_over_processes(torch.tensor(int(not self.written.done())))

    def wait(self):
        """Wait for the end. Raises RuntimeError if a process could not write."""
        try:
            self.written.result()
        except CheckpointException as e:
            rank, (why, _) = min(e.failures.items())
            raise RuntimeError(f'process {rank}: {why}') from None


def set_apart(tree):
    """Return nested dicts and lists whose split tensors are empty ones of PyTorch's meta device,
    and these tensors by name. What is whole is copied to the CPU."""
    apart = {}

    def kept(name, x):
        if not is_split(x):
            return x.detach().to('cpu', copy=True)
        apart[name] = x.detach()
        return torch.empty(x.shape, dtype=x.dtype, device='meta')

    return map_tensors(tree, kept), apart


class PartWriter(FileSystemWriter):
    """Writes the part of this process into a folder; in the first process it makes the `table`."""

    def write_data(self, plan, planner):
        """Write the part; on a full disk PyTorch fails in its own words when it closes the file."""
        try:
            return super().write_data(plan, planner)
        except Exception as e:
            raise first_cause(e) from None

    def finish(self, metadata, results):
        """Keep where all processes wrote what, once all have."""
        super().finish(metadata, results)  # a pickle for other programs; nobody reads it here
        sizes = {}
        for name, tensor in metadata.state_dict_metadata.items():
            for chunk in tensor.chunks:
                sizes[name, chunk.offsets] = list(chunk.sizes)
        self.table = {}
        for of_process in results:
            for written in of_process:
                index = written.index
                place = written.storage_data
                there = [place.relative_path, place.offset, place.length]
                row = [list(index.offset), sizes[index.fqn, index.offset], *there]
                self.table.setdefault(index.fqn, []).append(row)


@cache
def background():
    """Return the group by which processes speak of a checkpoint while they train."""
    return dist.new_group(backend='gloo')
