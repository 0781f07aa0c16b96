"""What wandb shows of a run. Its rows follow the checkpoints: what a kill undoes was never sent, and wandb takes no row
of an iteration that it has."""

import contextlib
import json
import os

from anyorder.machine.files import replace_file
from anyorder.machine.terminal import say
from anyorder.training.run_folder import read_log


class Chart:
    """The run at wandb that belongs to a run folder. When wandb fails it is switched off, which ends no training: a
    later resume sends what is lacking then.

    A row of log.jsonl is sent once a checkpoint holds its iteration. A process that is killed takes rows with it that
    wandb has not yet written or uploaded, so that a row is safe once a process has ended its part of the run, or if
    wandb itself says how far it is, which it does online. All others are sent again. Wandb drops what it has.

    out_dir/wandb.json: {'run': the id at wandb, 'safe': the iteration of the last row that is safe, 'samples':
    {iteration: pairs of order and text} of the rows that are not}. Another id, --wandb_run_id, gets the whole log."""

    def __init__(self, folder, run_id, wanted, has=0):
        """`wanted` in the first process of a run that is to be shown; `has` is the last iteration that wandb has where
        the folder does not say."""
        self.path, self.log_path = folder.chart_path, folder.log_path
        self.run_id, self.wanted, self.wandb = (
            run_id,
            wanted,
            None,
        )  # wandb: the module, once it has begun
        self.safe, self.samples, self.is_written = has, {}, False  # is_written: the folder says so
        kept = read_record(self.path) if folder.mine else {}
        if kept.get('run') == run_id:
            self.safe, self.is_written = kept['safe'], True
            self.samples = {
                i: texts for i, texts in kept['samples'].items() if int(i) <= folder.saved
            }
        self.sent = self.safe  # the iteration of the last row that was sent

    def start(self, config, environment):
        """Begin the run at wandb, or go on with it. Raises ValueError if an option is wrong; nothing is trained yet."""
        try:
            import wandb
        except Exception as e:  # a broken package raises anything
            raise ValueError(
                f'wandb_log needs the package wandb ({in_one_line(e)}): pip install wandb'
            ) from None
        try:
            begun = wandb.init(
                project=config.wandb_project,
                name=config.wandb_run_name or config.out_dir,
                id=self.run_id,
                resume='allow',
                config=config | {'environment': environment},
                allow_val_change=True,
            )
            if getattr(begun, 'disabled', False):  # WANDB_MODE=disabled keeps no rows
                return
            if not getattr(begun, 'offline', True):
                self.sent = begun.step - 1  # as wandb says
            self.wandb = wandb
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            wrong_option = isinstance(e, (getattr(wandb, 'Error', ValueError), ValueError))
            if wrong_option and not isinstance(
                e, getattr(wandb, 'CommError', ())
            ):  # which says no network
                raise ValueError(
                    f'wandb: {in_one_line(e)}; WANDB_MODE=offline needs no login'
                ) from None
            say_off(e)

    def lacking(self, iter_num):
        """The rows of the log that wandb lacks, up to the iteration of a checkpoint."""
        if not os.path.exists(self.log_path):
            return []
        return [
            entry
            for entry in read_log(self.log_path)
            if self.sent < entry.get('iter', 0) <= iter_num
        ]

    def keep(self, iter_num, texts):
        """A row was logged: keep its samples until it is sent. The first row says that the folder counts from here."""
        if self.wanted and (texts or not self.is_written):
            with self.surviving():
                if texts:
                    self.samples[str(iter_num)] = texts
                self.write()

    def send(self, iter_num):
        """Send what wandb lacks, up to the iteration of a checkpoint that is on the disk."""
        if self.wandb is None:
            return
        with self.surviving():
            for entry in self.lacking(iter_num):
                texts = self.samples.get(str(entry['iter']))
                table = {'samples': self.wandb.Table(['order', 'text'], texts)} if texts else {}
                row = {name: value for name, value in entry.items() if name != 'environment'}
                self.wandb.log(row | table, step=entry['iter'])
                self.sent = entry['iter']

    def finish(self):
        """The process ends its part of the run, all of which was sent."""
        if self.wandb is None:
            return
        with self.surviving():
            self.wandb.finish()
            self.safe, self.samples = self.sent, {}
            self.write()

    def write(self):
        record = {'run': self.run_id, 'safe': self.safe, 'samples': self.samples}
        replace_file(self.path, json.dumps(record).encode())
        self.is_written = True

    @contextlib.contextmanager
    def surviving(self):
        """What fails in the body switches wandb off, and ends nothing else. Only Ctrl-C is the user's own wish."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # sys.exit and what asyncio cancels are no Exception
            self.wandb = None
            say_off(e)


def say_off(e):
    say(
        f'wandb is switched off ({in_one_line(e)}): training goes on, and a resume sends what wandb lacks'
    )


def in_one_line(e):
    return (str(e).strip() or type(e).__name__).splitlines()[0]


def read_record(path):
    """What a wandb.json says; {} where there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        with open(path, 'rb') as f:
            kept = json.load(f)
        samples = kept.get('samples') if isinstance(kept, dict) else None
        if (
            isinstance(samples, dict)
            and all(map(str.isdecimal, samples))
            and type(kept.get('safe')) is int
        ):
            return kept
    return {}
