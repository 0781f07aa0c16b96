"""
What a training run leaves in out_dir, so that it needs no watching:

    ckpt.pt              the newest checkpoint, always whole
    ckpt_0001000.pt      the `keep_checkpoints` ones before it, by iteration
    log.jsonl            one entry a line
    .lock                locked while a process trains there
"""
import glob
import itertools
import json
import os
import shlex
import shutil
from contextlib import contextmanager, suppress

try:
    import fcntl
except ImportError:   # Windows
    fcntl = None

import torch
from tqdm import tqdm

from anyorder.checkpoint import load_checkpoint, save_checkpoint
from anyorder.files import replace_file
from anyorder.processes import processes


def numbered(out_dir):
    """The numbered checkpoints of a folder, oldest first."""
    return sorted(glob.glob(os.path.join(glob.escape(out_dir), 'ckpt_' + '[0-9]' * 7 + '.pt')))


def load_newest(out_dir):
    """The dict of out_dir/ckpt.pt. Raises ValueError when it is not whole, with the command for the newest numbered one that is."""
    path = os.path.join(out_dir, 'ckpt.pt')
    try:
        return load_checkpoint(path)
    except ValueError as e:
        for older in reversed(numbered(out_dir)):
            try:
                it = load_checkpoint(older)['iter_num']
            except (ValueError, KeyError):
                continue
            command = shlex.join(['cp', older, path])
            raise ValueError(f'{e}; the one of iteration {it} is whole: {command}, then resume again') from None
        raise


def read_log(path):
    """The entries of a log.jsonl; a last line that is half written is left out. Raises ValueError for a line that is no entry."""
    try:
        with open(path, encoding='utf-8') as f:
            entries = [json.loads(line) for line in f if line.endswith('\n')]
        if all(isinstance(entry['iter'], int) and all(type(value) in (int, float) for value in entry.values()) for entry in entries):
            return entries
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError(f'{path} has a line that is no entry of a training log: move it away')


class RunFolder:
    """The files of the run in `out_dir`. `resumed` is the iteration of the checkpoint that it goes on from, None for a new run: the files
    of an earlier run are then moved aside, all together, at the moment when this one first writes, never overwritten."""

    def __init__(self, out_dir, keep_checkpoints=0, resumed=None):
        self.log_path, self.ckpt_path = os.path.join(out_dir, 'log.jsonl'), os.path.join(out_dir, 'ckpt.pt')
        self.out_dir, self.keep_checkpoints, self.saved, self.mine = out_dir, keep_checkpoints, resumed, resumed is not None

    def open(self):
        """Make the folder; drop what an interrupted run logged after the checkpoint that this one resumes from."""
        with self.writing(self.out_dir):
            os.makedirs(self.out_dir, exist_ok=True)
            self.lock = open(os.path.join(self.out_dir, '.lock'), 'w')
            try:
                fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)   # until the process ends
            except BlockingIOError:
                raise ValueError(f'another process trains in {self.out_dir}: wait for its end, or use another --out_dir') from None
            except (AttributeError, OSError):   # Windows, file systems without locks
                pass
            if self.mine and torch.load(self.ckpt_path, map_location='cpu', weights_only=True, mmap=True)['iter_num'] != self.saved:
                raise ValueError(f'{self.ckpt_path} was written by another process after this one had read it: start again')
            if self.mine and os.path.exists(self.log_path):
                lines = [json.dumps(entry) + '\n' for entry in read_log(self.log_path) if entry['iter'] <= self.saved]
                replace_file(self.log_path, ''.join(lines).encode())

    def log(self, entry):
        with self.writing(self.log_path):
            self.set_aside()
            with open(self.log_path, 'a') as f:
                f.write(json.dumps(entry) + '\n')

    def save(self, iter_num, *args, **entries):
        """save_checkpoint(ckpt.pt, *args, ...); the one that was there becomes a numbered one."""
        with self.writing(f'{self.ckpt_path} of iteration {iter_num}'):
            self.set_aside()
            kept = None
            if self.keep_checkpoints and self.saved not in (None, iter_num):
                kept = os.path.join(self.out_dir, f'ckpt_{self.saved:07d}.pt')
                self.keep(kept)
            save_checkpoint(self.ckpt_path, *args, iter_num=iter_num, **entries)
            self.saved = iter_num
        if kept:   # only now, so that an older one is there if the save fails
            for name in [name for name in numbered(self.out_dir) if name <= kept][:-self.keep_checkpoints]:
                with suppress(OSError):
                    os.remove(name)

    @contextmanager
    def writing(self, what):
        """Makes one line of a full disk or a folder that cannot be written to; the last checkpoint is then intact."""
        try:
            yield
        except (OSError, RuntimeError) as e:   # torch.save turns a full disk into either
            raise ValueError(f'{what} could not be written: {str(e).splitlines()[0]}; mend that and {self.way_on()}') from None

    def set_aside(self):
        """Before the first file of a new run is written: those of an earlier one get other names."""
        if self.mine:
            return
        there = [path for path in (self.ckpt_path, *numbered(self.out_dir), self.log_path) if os.path.exists(path)]
        if there:
            n = next(n for n in itertools.count(1) if not any(os.path.exists(f'{path}.old-{n}') for path in there))
            for path in there:
                os.replace(path, f'{path}.old-{n}')
            tqdm.write(f'files of an earlier run in {self.out_dir} are now *.old-{n}')
        self.mine = True

    def keep(self, path):
        """A second name for ckpt.pt, which the next one then replaces; a copy where the file system has no links."""
        if os.path.exists(path):   # the run was killed between this and its next checkpoint
            os.remove(path)
        try:
            os.link(self.ckpt_path, path)
        except OSError:
            shutil.copyfile(self.ckpt_path, f'{path}.tmp')
            os.replace(f'{path}.tmp', path)

    def way_on(self):
        """What to do after a stop or a failure."""
        if self.saved is None:
            return 'start again, nothing was saved yet'
        launcher = 'python' if processes()[1] == 1 else 'torchrun ...'
        return f'go on from iteration {self.saved} with: {launcher} train.py --init_from=resume --out_dir={shlex.quote(self.out_dir)}'
