"""What does a training run leave in out_dir? All that it needs to go on without watching.

    ckpt.pt          the newest checkpoint, always whole
    ckpt_0001000.pt  the checkpoints before it, as many as `keep_checkpoints`, by iteration
    ckpt_best.pt     with keep_best: the checkpoint of the lowest validation loss so far
    parts_*          of a split run: a folder for each of these, which holds what is split in it
    log.jsonl        one entry a line
    wandb.json       with --wandb_log=True: how far wandb has the log, see chart.py
    .lock            locked while a process trains there

The first process writes them, and each process its part."""

import glob
import itertools
import json
import math
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
from anyorder.machine.files import reading, replace_file, whole_files
from anyorder.machine.locks import tidy
from anyorder.machine.processes import failing_together, gather, is_split, processes
from anyorder.machine.surroundings import command
from anyorder.machine.terminal import say
from anyorder.training.best import Best


class RunFolder:
    """The files of a run in `out_dir`. The first process writes them, the others only count."""

    def __init__(
        self,
        out_dir,
        keep_checkpoints=0,
        resumed=None,
        environment=None,
        best=None,
        program='train.py',
    ):
        """resumed      the iteration of the checkpoint from which the run goes on; None: a new run
        environment  what each checkpoint, and the next line of the log, says of code and machine
        best         the Best of the run so far; None: nobody watches it
        program      the name of what goes on with the run"""
        rank, world_size = processes()
        self.out_dir = out_dir
        self.log_path = os.path.join(out_dir, 'log.jsonl')
        self.ckpt_path = os.path.join(out_dir, 'ckpt.pt')
        self.best_path = os.path.join(out_dir, 'ckpt_best.pt')
        self.chart_path = os.path.join(out_dir, 'wandb.json')
        self.best = best or Best()
        self.keep_checkpoints = keep_checkpoints  # how many checkpoints before the newest are kept
        self.saved = resumed  # iteration of ckpt.pt, None before there is one
        self.mine = resumed is not None  # whether the files belong to this run, or first move aside
        self.environment = environment or {}
        self.is_environment_said = not environment
        self.command = command(program, world_size)
        self.writes = rank == 0
        self.lock = None
        self.pending = None  # the SaveOfParts that goes on
        self.when_saved = lambda iter_num: None  # called once a checkpoint is on the disk

    def open(self):
        """Make the folder and lock it.

        A resume drops what the log says of iterations after the checkpoint, and mends what a kill
        has left of ckpt_best.pt."""
        if not self.writes:
            return
        with self.writing(self.out_dir):
            if self.mine:
                self.check_checkpoint()
                self.cut_log()
                self.mend_best()
                self.remove_parts()

    def check_checkpoint(self):
        """Raise ValueError unless ckpt.pt is still the checkpoint that was read."""
        there = torch.load(self.ckpt_path, map_location='cpu', weights_only=True, mmap=True)
        if there['iter_num'] != self.saved:
            raise ValueError(
                f'{self.ckpt_path} was written by another process since this one read it: '
                'start again'
            )

    def cut_log(self):
        """Drop half a last line and lines after the checkpoint; one that cannot be read stays."""
        if not os.path.exists(self.log_path):
            return
        kept = []
        with open(self.log_path, 'rb') as f:
            for line in f:
                is_whole = line.endswith(b'\n')
                if is_whole and read_entry(line).get('iter', 0) <= self.saved:
                    kept.append(line)
        replace_file(self.log_path, b''.join(kept))

    def mend_best(self):
        """Have ckpt_best.pt be what ckpt.pt calls the best. A kill comes between the two.

        Where the weights of the best are not there, the checkpoint is the best if the log says what
        it reached, or else the next one that is validated."""
        best = self.best
        if not best.loss:
            return
        there = iteration_in(self.best_path)
        is_lost = best.keeps and best.iter_num not in (self.saved, there)
        if best.iter_num is None or is_lost:
            self.begin_best(there)
        if best.keeps and best.iter_num == self.saved:
            self.name_too(self.best_path)

    def begin_best(self, there):
        """Begin to compare at the checkpoint. A ckpt_best.pt of the iteration `there` gets another
        name."""
        best = self.best
        said = ''
        if best.keeps and there not in (None, self.saved):
            ending = free_ending([self.best_path])
            os.replace(self.best_path, f'{self.best_path}{ending}')
            said = f'{self.best_path} of iteration {there} is now *{ending}'
        elif best.iter_num is not None:
            said = f'{self.best_path} of iteration {best.iter_num} is not there'
        if said:
            say(f'{said}: {best.loss} is compared from iteration {self.saved} on')
        best.forget()
        if best.compares and os.path.exists(self.log_path):
            for entry in read_log(self.log_path):
                if entry.get('iter') == self.saved and best.loss in entry:
                    best.compare(self.saved, entry)

    def compare(self, iter_num, losses):
        """Compare a validation with the best, and return what the log says of the best.

        A ckpt_best.pt that somebody has removed is the best no more. Raises ValueError where a
        loss is not finite, so that neither log nor checkpoint has it."""
        wrong = [name for name, nats in losses.items() if not math.isfinite(nats)]
        if wrong:
            raise ValueError(
                f'{wrong[0]} is {losses[wrong[0]]} at iteration {iter_num}: not finite, and not '
                f'saved; lower the learning rate and {self.way_on()}'
            )
        best = self.best
        if best.keeps and best.iter_num is not None:
            is_there = gather(os.path.exists(self.best_path))
            if not is_there[0]:
                best.forget()
        best.compare(iter_num, losses)
        return best.shown

    def log(self, entry):
        """Add a line to log.jsonl."""
        if not self.writes:
            return
        if not self.is_environment_said:
            entry = entry | {'environment': self.environment}
        with self.writing(self.log_path):
            self.set_aside()
            with open(self.log_path, 'a') as f:
                f.write(json.dumps(entry) + '\n')
            self.is_environment_said = True

    def save(self, model, ema, iter_num, **entries):
        """Write a checkpoint as ckpt.pt; the ckpt.pt that was there becomes a numbered one.

        Of a split run all processes begin to write it, and go on: `settle` ends it."""
        checkpoint = entries_of(model, ema, iter_num=iter_num, **entries)
        if is_split(model.lm_head.weight):
            self.begin_parts(checkpoint)
            return
        if self.writes:
            self.write(checkpoint)
        self.is_saved(iter_num)

    def is_saved(self, iter_num):
        if self.writes and self.best.is_over:
            say(f'the run ends at iteration {iter_num}: {self.best.why_over}')
        self.saved = iter_num
        self.when_saved(iter_num)

    def write(self, checkpoint):
        """Write the dict of a checkpoint as ckpt.pt."""
        iter_num = checkpoint['iter_num']
        with self.writing(f'{self.ckpt_path} of iteration {iter_num}'):
            self.set_aside()
            kept = None
            if self.keep_checkpoints and self.saved not in (None, iter_num):
                kept = self.keep()
            write_checkpoint(self.ckpt_path, checkpoint)
            if self.best.keeps and self.best.iter_num == iter_num:
                self.name_too(self.best_path)
        if kept:  # only now, so that an older one is there if the save fails
            self.remove_older(kept)
        self.remove_parts()

    def begin_parts(self, checkpoint):
        """Have all processes begin to write a checkpoint, each its part; `settle` ends it."""
        from anyorder.training.parts import SaveOfParts  # a second, which few runs need

        self.settle(wait=True)
        iter_num = checkpoint['iter_num']
        path = os.path.join(self.out_dir, f'parts_{iter_num:07d}')
        with failing_together():
            if self.writes:
                with self.writing(f'{self.ckpt_path} of iteration {iter_num}'):
                    self.set_aside()
                    tidy(os.path.join(glob.escape(self.out_dir), 'parts_*'))
        self.pending = SaveOfParts(path, checkpoint, self.write)

    def settle(self, wait):
        """See whether a checkpoint that is being written is on the disk, or wait for it.

        All processes call it, and raise ValueError if it could not be written."""
        if self.pending is None or not (wait or self.pending.is_done()):
            return
        pending = self.pending
        self.pending = None
        what = f'{self.ckpt_path} of iteration {pending.iter_num}'
        with failing_together(), self.in_one_line(what):
            pending.wait()
        self.is_saved(pending.iter_num)

    def remove_parts(self):
        """Remove folders of parts that no checkpoint names: it was removed, or a kill came before
        it."""
        folders = glob.glob(os.path.join(glob.escape(self.out_dir), 'parts_*'))
        if not folders:
            return
        paths = glob.glob(os.path.join(glob.escape(self.out_dir), '*.pt*'))
        found = {path: looked_into(path) for path in paths}
        unread = [path for path, entries in found.items() if not entries]
        if not all(path.endswith('.tmp') for path in unread):  # which may name any of them
            return
        named = set(map(parts_in, found.values()))
        for folder in folders:
            name = os.path.basename(folder)
            if name not in named and re.fullmatch(r'parts_\d+_[0-9a-f]{8}', name):
                shutil.rmtree(folder, ignore_errors=True)

    def keep(self):
        """Give ckpt.pt, which will be replaced, a numbered name too, and return that name."""
        path = os.path.join(self.out_dir, f'ckpt_{self.saved:07d}.pt')
        self.name_too(path)
        return path

    def name_too(self, path):
        """Give ckpt.pt another name, too. What was there under this name is replaced at once."""
        with whole_files(path) as (temporary,):
            try:
                os.link(self.ckpt_path, temporary)
            except OSError:  # a file system without links
                shutil.copyfile(self.ckpt_path, temporary)

    def remove_older(self, kept):
        """Remove the numbered checkpoints that are too many up to the one that was just `kept`."""
        last = number_of(kept)
        older = [name for name in numbered(self.out_dir) if number_of(name) <= last]
        for name in older[: -self.keep_checkpoints]:
            with suppress(OSError):
                os.remove(name)

    @contextmanager
    def writing(self, what):
        """The body writes into the folder, which is made anew if somebody has removed it.

        A full disk, a folder that cannot be written to and a second Ctrl-C are one line. The last
        checkpoint stays."""
        with self.in_one_line(what):
            if self.lock is None or not os.path.exists(self.lock.name):
                self.take_lock()
            if not os.path.exists(self.ckpt_path):
                self.saved = None
            yield

    @contextmanager
    def in_one_line(self, what):
        """Say in one line that something could not be written, and how to go on."""
        try:
            yield
        except (OSError, RuntimeError, KeyboardInterrupt) as e:
            why = getattr(e, 'strerror', None) or str(e) or 'interrupted'
            first_line = why.splitlines()[0]
            raise ValueError(
                f'{what} could not be written ({first_line}): {self.way_on()}'
            ) from None

    def take_lock(self):
        """Make the folder, unless it is there, and lock it until the process ends.

        Raises ValueError if another process has the lock."""
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

    def set_aside(self):
        """Before a new run writes its first file, give the files of an earlier run other names."""
        if self.mine:
            return
        checkpoints = [self.ckpt_path, self.best_path, *numbered(self.out_dir)]
        paths = [*checkpoints, self.log_path, self.chart_path]
        there = [path for path in paths if os.path.exists(path)]
        if there:
            ending = free_ending(there)
            for path in there:
                os.replace(path, f'{path}{ending}')
            say(f'files of an earlier run in {self.out_dir} are now *{ending}')
        self.mine = True

    def way_on(self):
        """Return what to do after a stop or a failure."""
        if self.saved is None:
            return 'start again, nothing was saved yet'
        options = f'--init_from=resume --out_dir={shlex.quote(self.out_dir)}'
        return f'go on from iteration {self.saved} with: {self.command} {options}'


def free_ending(paths):
    """Return the first of .old-1, .old-2, ... that no file has behind one of these paths."""
    for n in itertools.count(1):
        ending = f'.old-{n}'
        if not any(os.path.exists(f'{path}{ending}') for path in paths):
            return ending


def iteration_in(path):
    """Return the iteration of a checkpoint file, None where none can be read."""
    return looked_into(path).get('iter_num')


def parts_in(entries):
    """Return the folder of the parts of a checkpoint, by its entries; None where it has none."""
    with suppress(KeyError, TypeError):
        return entries['parts']['folder']
    return None


def looked_into(path):
    """Return the dict of a checkpoint file, whose tensors are not read, {} where none can be."""
    with suppress(ValueError, OSError), reading(path, 'a checkpoint', 'copy it again'):
        return {**torch.load(path, map_location='cpu', weights_only=True, mmap=True)}
    return {}


def numbered(out_dir):
    """Return the paths of the numbered checkpoints of a folder, oldest first."""
    paths = glob.glob(os.path.join(glob.escape(out_dir), 'ckpt_*.pt'))
    return sorted([path for path in paths if number_of(path) is not None], key=number_of)


def number_of(path):
    """Return the iteration in the name of a numbered checkpoint, of seven digits or more.

    None says that it is another file."""
    found = re.fullmatch(r'ckpt_([0-9]{7,})\.pt', os.path.basename(path))
    if not found:
        return None
    return int(found[1])


RESUMED = {
    'config',
    'iter_num',
    'ema_model',
    'n_seen',
    'logged',
    'totals',
}  # what a run goes on from


def open_newest(out_dir):
    """Return the Checkpoint out_dir/ckpt.pt, from which a run goes on.

    Raises ValueError when the file holds no run, is missing or is not whole. The error says how to
    take the newest checkpoint that is whole."""
    path = os.path.join(out_dir, 'ckpt.pt')
    try:
        checkpoint = Checkpoint(path, lazily=True)
    except ValueError as e:
        raise ValueError(f'{e}{way_out(out_dir, path)}') from None
    is_run = RESUMED <= checkpoint.entries.keys()
    if not is_run or not isinstance(checkpoint.entries.get('optimizer'), list):
        raise ValueError(
            f'{path} holds no run that can be resumed: '
            f'start from its weights with --init_from={path}'
        )
    return checkpoint


def way_out(out_dir, path):
    """Return what to do without the checkpoint `path`, behind the error that says so."""
    best = os.path.join(out_dir, 'ckpt_best.pt')
    for name in [*reversed(numbered(out_dir)), best]:
        with suppress(ValueError):
            Checkpoint(name, lazily=True)
            command = shlex.join(['cp', name, path])
            return f'; {name} is whole: {command}, then resume again'
    if os.path.exists(path):
        return ''
    return '; --init_from=auto starts a run, and resumes it once it has saved'


def read_log(path):
    """Return the entries of a log.jsonl, one a line. A last line that is half written has none."""
    with open(path, 'rb') as f:
        return [read_entry(line) for line in f if line.endswith(b'\n')]


def read_entry(line):
    """Return the entry of a line of a log.jsonl; {} if it holds none.

    An entry has numbers by name, `iter` among them, and maybe an 'environment'."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(entry, dict) or 'iter' not in entry:
        return {}
    values = [value for name, value in entry.items() if name != 'environment']
    if not all(map(is_number, values)):
        return {}
    return entry


def is_number(value):
    """Whether a value of JSON is a number of a log: no bool, and no int beyond 64 bits."""
    if type(value) is int:
        return abs(value) < 2**63
    return type(value) is float
