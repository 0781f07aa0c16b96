"""What does a training run leave in out_dir? All that it needs to go on without watching.

    ckpt.pt       the newest checkpoint, always whole
    ckpt_old.pt   the one before it
    ckpt_best.pt  with keep_best: the checkpoint of the lowest validation loss so far
    log.jsonl     one entry a line
    .run.lock     locked while a process trains there

The first process writes them."""

import json
import math
import os
import shlex
from contextlib import contextmanager, suppress
from dataclasses import asdict

from anyorder.checkpoint import save_checkpoint
from anyorder.machine.files import name_too, replace_file, tidy
from anyorder.machine.locks import locked
from anyorder.machine.processes import command, first_process_first, is_first
from anyorder.machine.terminal import say
from anyorder.names import is_own

FILES = ('ckpt.pt', 'ckpt_old.pt', 'ckpt_best.pt', 'log.jsonl')


class RunFolder:
    """The files of a run in its out_dir. The first process writes them, the others only count.

    best   the Best of the run so far
    saved  iteration of ckpt.pt; None before there is one"""

    def __init__(self, config, kept, best, own_orders, saved=None):
        """kept   what each checkpoint says beside weights and state; of it the environment, which
               tells of code and machine, is in the next line of the log, too
        saved  the iteration from which the run goes on; None: it is a new run
        own_orders  see own_orders_of"""
        self.out_dir = config.out_dir
        self.paths = [os.path.join(self.out_dir, name) for name in FILES]
        self.ckpt_path, self.old_path, self.best_path, self.log_path = self.paths
        self.kept = kept
        self.best = best
        self.saved = saved
        self.unsaid = {'environment': kept['environment']}
        self.command = command(config.program)
        self.own_orders = own_orders
        if is_first():
            self.open()

    def open(self):
        """Make the folder, lock it until the process ends, and tidy up behind a killed one.

        A new run gives the files of an earlier one other names. A resume drops what the log says of
        iterations after the checkpoint, and names ckpt_best.pt again, before which a kill may have
        come."""
        self.lock = lock_run(self.out_dir)
        for name in FILES:
            tidy(self.out_dir, name)
        if self.saved is None:
            self.set_aside()
            return
        if os.path.exists(self.log_path):
            cut_log(self.log_path, self.saved)
        self.name_best(self.saved)

    def set_aside(self):
        """Give the files of an earlier run other names."""
        there = [path for path in self.paths if os.path.exists(path)]
        n = 1
        while any(os.path.exists(f'{path}.old-{n}') for path in self.paths):
            n += 1
        for path in there:
            os.replace(path, f'{path}.old-{n}')
        if there:
            say(f'files of an earlier run in {self.out_dir} are now *.old-{n}')

    @property
    def result(self):
        """The path of the checkpoint that is the result of the run: of the best if there is one,
        which a run that goes on elsewhere may lack."""
        is_kept = self.best.keeps and self.best.iter_num is not None
        if is_kept and os.path.exists(self.best_path):
            return self.best_path
        return self.ckpt_path

    def about_best(self):
        """Yield a line on the best validation so far, if there is one, and its file."""
        if self.best.iter_num is not None:
            place = f', in {self.result}' if self.result == self.best_path else ''
            yield f'best so far: {self.best}{place}'

    def compare(self, iter_num, losses):
        """Compare a validation with the best, and return what the log says of the best.

        Raises ValueError where a loss is not finite, so that neither log nor checkpoint has it."""
        for name, nats in losses.items():
            if not math.isfinite(nats):
                raise ValueError(
                    f'{name} is {nats} at iteration {iter_num}: not finite, and not saved; lower '
                    f'the learning rate and {self.way_on()}'
                )
        return self.best.compare(iter_num, losses)

    def log(self, entry):
        """Add a line to log.jsonl."""
        if not is_first():
            return
        with self.writing(self.log_path), open(self.log_path, 'a') as f:
            f.write(json.dumps(entry | self.unsaid) + '\n')
        self.unsaid = {}

    def save(self, state):
        """Write a TrainState as ckpt.pt; the checkpoint that was there becomes ckpt_old.pt.

        All processes call it: a split run gathers its weights."""
        entries = state.entries() | self.kept | {'best': asdict(self.best)}
        with self.writing(f'{self.ckpt_path} of iteration {state.iter_num}'):
            if is_first() and self.saved not in (None, state.iter_num):
                name_too(self.ckpt_path, self.old_path)
            save_checkpoint(self.ckpt_path, state.model, state.ema, **entries)
            if is_first():
                self.name_best(state.iter_num)
        self.saved = state.iter_num

    def name_best(self, iter_num):
        """Name ckpt.pt of this iteration ckpt_best.pt, too, if it is the best."""
        if self.best.keeps and self.best.iter_num == iter_num:
            name_too(self.ckpt_path, self.best_path)

    @contextmanager
    def writing(self, what):
        """Say in one line that something could not be written, and how to go on.

        A full disk, a folder that cannot be written to and a second Ctrl-C leave the last
        checkpoint as it is."""
        try:
            yield
        except (OSError, RuntimeError, KeyboardInterrupt) as e:
            raise ValueError(f'{what} could not be written ({e!r:.200}): {self.way_on()}') from None

    def way_on(self):
        """Return what to do after a stop or a failure."""
        if self.saved is None:
            return 'start again, nothing was saved yet'
        options = {'init_from': 'resume', 'out_dir': self.out_dir} | self.own_orders
        words = [f'--{name}={shlex.quote(value)}' for name, value in options.items()]
        return f'go on from iteration {self.saved} with: {self.command} {" ".join(words)}'


def own_orders_of(config):
    """Return {option: its text} of the options that name orders which are functions of the user's.
    No checkpoint runs their files: commands that go on with the run name them again."""
    return {name: config[name] for name in ('order', 'val_orders') if is_own(config[name])}


def lock_first(out_dir):
    """Return the lock of a run in out_dir in the first process, before any process reads it.

    It is None in the others, and where there is no folder yet."""
    with first_process_first():
        if is_first() and os.path.isdir(out_dir):
            return lock_run(out_dir)


def lock_run(out_dir):
    """Return the lock of a run, which this process has as long as it keeps what is returned. Two
    runs of one process may follow each other."""
    # no file of the run, which may be a link and then is none
    return locked(os.path.join(out_dir, 'run'), timeout=0, is_singleton=True)


def cut_log(path, last):
    """Keep of a log.jsonl the entries up to the iteration `last`, and nothing else: no half of a
    line, and no line that somebody else has added."""
    kept = []
    with open(path, 'rb') as f:
        for line in f:
            with suppress(ValueError, TypeError, KeyError):
                if json.loads(line)['iter'] <= last:
                    kept.append(line)
    replace_file(path, b''.join(kept))
