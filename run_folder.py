"""
What a run leaves on disk so that it can be left alone:

    ckpt.pt              the newest checkpoint, always whole
    ckpt_0001000.pt      the `keep_checkpoints` ones before it, by iteration
    log.jsonl            one entry a line
"""
import glob
import itertools
import json
import os
import shutil

from tqdm import tqdm

from data.prepare import replace_file
from model import load_checkpoint, save_checkpoint


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
            raise ValueError(f'{e}; the one of iteration {it} is whole: cp {older} {path}, then resume again') from None
        raise


def read_log(path):
    """The entries of a log.jsonl; a last line that is half written is left out. Raises ValueError for a line that is no entry."""
    with open(path) as f:
        lines = [line for line in f if line.endswith('\n')]
    try:
        entries = [json.loads(line) for line in lines]
        if all(isinstance(entry['iter'], int) for entry in entries):
            return entries
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f'{path} has a line that is no entry of a training log: move it away')


class RunFolder:
    """The files of the run in `out_dir`. `resumed` is the iteration of the checkpoint that it goes on from, None for a new run: files of
    an earlier run are then moved aside at the moment when this one first writes them, never overwritten."""

    def __init__(self, out_dir, keep_checkpoints=0, resumed=None):
        self.log_path, self.ckpt_path = os.path.join(out_dir, 'log.jsonl'), os.path.join(out_dir, 'ckpt.pt')
        self.out_dir, self.keep_checkpoints, self.saved = out_dir, keep_checkpoints, resumed
        self.older = [path for path in numbered(out_dir) if path <= self.numbered_path(resumed)] if resumed is not None else []
        self.mine = {self.log_path, self.ckpt_path, *self.older} if resumed is not None else set()

    def numbered_path(self, iter_num):
        return os.path.join(self.out_dir, f'ckpt_{iter_num:07d}.pt')

    def open(self):
        """Make the folder; drop what an interrupted run logged after the checkpoint that this one resumes from."""
        os.makedirs(self.out_dir, exist_ok=True)
        if self.log_path in self.mine and os.path.exists(self.log_path):
            lines = [json.dumps(entry) + '\n' for entry in read_log(self.log_path) if entry['iter'] <= self.saved]
            replace_file(self.log_path, lambda f: f.write(''.join(lines).encode()))

    def set_aside(self, path):
        """Before this run first writes `path`: a file of that name from an earlier one gets another name."""
        if path not in self.mine and os.path.exists(path):
            aside = next(name for n in itertools.count(1) if not os.path.exists(name := f'{path}.old-{n}'))
            os.replace(path, aside)
            tqdm.write(f'{path} of an earlier run is now {aside}')
        self.mine.add(path)

    def log(self, entry):
        self.set_aside(self.log_path)
        with open(self.log_path, 'a') as f:
            f.write(json.dumps(entry) + '\n')

    def save(self, iter_num, *args, **entries):
        """save_checkpoint(ckpt.pt, *args, ...); the one that was there becomes a numbered one. Raises ValueError in one line when it
        cannot be written; what was there is then intact."""
        try:
            self.set_aside(self.ckpt_path)
            if self.keep_checkpoints and self.saved not in (None, iter_num):
                self.keep(self.numbered_path(self.saved))
            save_checkpoint(self.ckpt_path, *args, iter_num=iter_num, **entries)
        except (OSError, RuntimeError) as e:   # torch.save turns a full disk into either
            raise ValueError(f'{self.ckpt_path} of iteration {iter_num} could not be written: {str(e).splitlines()[0]}; '
                             f'make room and {self.way_on()}') from None
        self.saved = iter_num

    def keep(self, path):
        """A second name for ckpt.pt, which the next one then replaces; a copy where the file system has no links."""
        self.set_aside(path)
        if path not in self.older:
            try:
                os.link(self.ckpt_path, path)
            except OSError:
                shutil.copyfile(self.ckpt_path, f'{path}.tmp')
                os.replace(f'{path}.tmp', path)
            self.older.append(path)
        for old in self.older[:-self.keep_checkpoints]:
            os.remove(old)
        self.older = self.older[-self.keep_checkpoints:]

    def way_on(self):
        """What to do after a failure, for a message."""
        if self.saved is None:
            return 'start again, nothing was saved yet'
        return f'go on from iteration {self.saved} with: python train.py --init_from=resume --out_dir={self.out_dir}'
