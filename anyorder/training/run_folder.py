"""What a training run leaves in out_dir, so that it needs no watching:

ckpt.pt              the newest checkpoint, always whole
ckpt_0001000.pt      the checkpoints before it, as many as `keep_checkpoints`, by iteration
log.jsonl            one entry a line
wandb.json           with --wandb_log=True: how far wandb has the log, see anyorder/training/chart.py
.lock                locked while a process trains there"""

import glob
import itertools
import json
import os
import re
import shlex
import shutil
from contextlib import contextmanager, suppress

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

import torch

from anyorder.checkpoint import Checkpoint, entries_of, write_checkpoint
from anyorder.machine.files import replace_file, whole_files
from anyorder.machine.processes import processes
from anyorder.machine.surroundings import launcher
from anyorder.machine.terminal import say


def numbered(out_dir):
    """The numbered checkpoints of a folder, oldest first."""
    paths = glob.glob(os.path.join(glob.escape(out_dir), 'ckpt_*.pt'))
    return sorted([path for path in paths if number_of(path) is not None], key=number_of)


def number_of(path):
    """The iteration in the name of a numbered checkpoint, of seven digits or more; None: it is another file."""
    found = re.fullmatch(r'ckpt_([0-9]{7,})\.pt', os.path.basename(path))
    return int(found[1]) if found else None


def open_newest(out_dir):
    """The Checkpoint out_dir/ckpt.pt, from which a run goes on. Raises ValueError when the file holds no run, is
    missing or is not whole. The error says how to take the newest checkpoint that is whole."""
    path = os.path.join(out_dir, 'ckpt.pt')
    try:
        checkpoint = Checkpoint(path)
    except ValueError as e:
        said = str(e)
        for name in reversed(numbered(out_dir)):
            with suppress(ValueError):
                Checkpoint(name)
                said += f'; {name} is whole: {shlex.join(["cp", name, path])}, then resume again'
                break
        else:
            said += '; --init_from=auto starts a run, and resumes it once it has saved' * (
                not os.path.exists(path)
            )
        raise ValueError(said) from None
    needed = {'config', 'iter_num', 'ema_model', 'n_seen', 'logged', 'totals'}
    if not needed <= checkpoint.entries.keys() or not isinstance(
        checkpoint.entries.get('optimizer'), list
    ):
        raise ValueError(
            f'{path} holds no run that can be resumed: start from its weights with --init_from={path}'
        )
    return checkpoint


def read_log(path):
    """The entries of a log.jsonl, one for each line. A last line that is half written does not count."""
    with open(path, 'rb') as f:
        return [read_entry(line) for line in f if line.endswith(b'\n')]


def read_entry(line):
    """The entry of a line of a log.jsonl: numbers by name, `iter` among them, maybe an 'environment'; else {}."""
    entry = None
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
    is_entry = (
        isinstance(entry, dict)
        and 'iter' in entry
        and all(
            type(value) is float or type(value) is int and abs(value) < 2**63
            for name, value in entry.items()
            if name != 'environment'
        )
    )
    return entry if is_entry else {}


class RunFolder:
    """The files of a run in `out_dir`. The first process writes them, the others only count."""

    def __init__(self, out_dir, keep_checkpoints=0, resumed=None, environment=None):
        self.log_path, self.ckpt_path = (
            os.path.join(out_dir, 'log.jsonl'),
            os.path.join(out_dir, 'ckpt.pt'),
        )
        self.chart_path = os.path.join(out_dir, 'wandb.json')
        self.out_dir = out_dir
        self.keep_checkpoints = keep_checkpoints  # how many checkpoints before the newest are kept
        self.saved = resumed  # iteration of ckpt.pt, None before there is one
        self.mine = resumed is not None  # whether the files belong to this run, or first move aside
        self.environment = environment or {}  # in each checkpoint and in the next line of the log
        self.unsaid = {'environment': environment} if environment else {}
        self.writes, self.lock = processes()[0] == 0, None

    def open(self):
        """Make the folder and lock it. A resume drops what the log says of iterations after the checkpoint."""
        if not self.writes:
            return
        with self.writing(self.out_dir):
            if not self.mine:
                return
            there = torch.load(self.ckpt_path, map_location='cpu', weights_only=True, mmap=True)[
                'iter_num'
            ]
            if there != self.saved:
                raise ValueError(
                    f'{self.ckpt_path} was written by another process since this one read it: start again'
                )
            if os.path.exists(self.log_path):
                with open(self.log_path, 'rb') as f:
                    kept = [
                        line
                        for line in f
                        if line.endswith(b'\n')  # a line that cannot be read stays
                        and read_entry(line).get('iter', 0) <= self.saved
                    ]
                replace_file(self.log_path, b''.join(kept))

    def take_lock(self):
        """Make the folder, unless it is there, and lock it until the process ends; ValueError if another one has."""
        os.makedirs(self.out_dir, exist_ok=True)
        self.lock = open(os.path.join(self.out_dir, '.lock'), 'w')
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f'another process trains in {self.out_dir}: wait, or use another --out_dir'
            ) from None
        except (AttributeError, OSError):  # Windows, file systems without locks
            pass

    def log(self, entry):
        """Add a line to log.jsonl."""
        if not self.writes:
            return
        with self.writing(self.log_path):
            self.set_aside()
            with open(self.log_path, 'a') as f:
                f.write(json.dumps(entry | self.unsaid) + '\n')
            self.unsaid = {}

    def save(self, model, ema, iter_num, **entries):
        """Write a checkpoint as ckpt.pt; the ckpt.pt that was there becomes a numbered one."""
        checkpoint = entries_of(model, ema, self.writes, iter_num=iter_num, **entries)
        if self.writes:
            with self.writing(f'{self.ckpt_path} of iteration {iter_num}'):
                self.set_aside()
                kept = (
                    self.keep()
                    if self.keep_checkpoints and self.saved not in (None, iter_num)
                    else None
                )
                write_checkpoint(self.ckpt_path, checkpoint)
            if kept:  # only now, so that an older one is there if the save fails
                older = [
                    name for name in numbered(self.out_dir) if number_of(name) <= number_of(kept)
                ]
                for name in older[: -self.keep_checkpoints]:
                    with suppress(OSError):
                        os.remove(name)
        self.saved = iter_num

    @contextmanager
    def writing(self, what):
        """The body writes into the folder, which is made anew if somebody has removed it. A full disk, a folder that
        cannot be written to and a second Ctrl-C are one line. The last checkpoint stays."""
        try:
            if self.lock is None or not os.path.exists(self.lock.name):
                self.take_lock()
            if not os.path.exists(self.ckpt_path):
                self.saved = None
            yield
        except (OSError, RuntimeError, KeyboardInterrupt) as e:
            why = getattr(e, 'strerror', None) or str(e) or 'interrupted'
            raise ValueError(
                f'{what} could not be written ({why.splitlines()[0]}): {self.way_on()}'
            ) from None

    def set_aside(self):
        """Before a new run writes its first file, give the files of an earlier run other names."""
        if self.mine:
            return
        paths = self.ckpt_path, *numbered(self.out_dir), self.log_path, self.chart_path
        there = [path for path in paths if os.path.exists(path)]
        if there:
            n = next(
                n
                for n in itertools.count(1)
                if not any(os.path.exists(f'{path}.old-{n}') for path in there)
            )
            for path in there:
                os.replace(path, f'{path}.old-{n}')
            say(f'files of an earlier run in {self.out_dir} are now *.old-{n}')
        self.mine = True

    def keep(self):
        """Give ckpt.pt, which will be replaced, a numbered name too, and return that name."""
        path = os.path.join(self.out_dir, f'ckpt_{self.saved:07d}.pt')
        try:
            os.link(self.ckpt_path, path)
        except OSError:  # a file system without links, or the name is there
            with whole_files(path) as (temporary,):
                shutil.copyfile(self.ckpt_path, temporary)
        return path

    def way_on(self):
        """What to do after a stop or a failure."""
        if self.saved is None:
            return 'start again, nothing was saved yet'
        start, out_dir = launcher(processes()[1]), shlex.quote(self.out_dir)
        return f'go on from iteration {self.saved} with: {start} train.py --init_from=resume --out_dir={out_dir}'
