"""What does wandb show of a run? Rows that a checkpoint holds: what a kill undoes was never sent.

Wandb takes no row of an iteration that it has."""

import contextlib
import json
import os

from anyorder.machine.files import replace_file
from anyorder.machine.processes import processes
from anyorder.machine.terminal import say
from anyorder.training.run_folder import read_log


def start_chart(state, folder, has, config):
    """Return the Chart of the run, begun if the run wants it and has something to send.

    `has` is the last iteration that wandb already has a row of, see Chart."""
    rank, _ = processes()
    chart = Chart(folder, config.wandb_run_id, config.wandb_log and rank == 0, has)
    if chart.wanted and (state.iter_num < config.max_iters or chart.lacking(state.iter_num)):
        chart.start(config, folder.environment)
        chart.send(state.iter_num)
        if chart.sent > state.iter_num:
            say(
                f'wandb has this run up to iteration {chart.sent}, and takes no other rows until '
                'then: WANDB_RUN_ID=NAME in the environment begins a chart of all rows'
            )
    return chart


class Chart:
    """The run at wandb that belongs to a run folder.

    When wandb fails it is switched off, which ends no training: a later resume sends what is
    lacking then.

    A row of log.jsonl is sent once a checkpoint holds its iteration. A process that is killed takes
    rows with it that wandb has not yet written or uploaded. So a row is safe once a process has
    ended its part of the run, or if wandb itself says how far it is, which it does online. All
    others are sent again, and wandb drops what it has.

    out_dir/wandb.json is {'run': the id at wandb, 'safe': the iteration of the last row that is
    safe, 'samples': {iteration: pairs of order and text} of the rows that are not}. Another id,
    WANDB_RUN_ID, gets the whole log."""

    def __init__(self, folder, run_id, wanted, has=0):
        """wanted  in the first process of a run that is to be shown
        has     the last iteration that wandb has where the folder does not say"""
        self.path = folder.chart_path
        self.best = folder.best
        self.log_path = folder.log_path
        self.run_id = run_id
        self.wanted = wanted
        self.wandb = None  # the module, once it has begun
        self.summary = {}  # what it shows of the whole run
        self.safe = has
        self.samples = {}
        self.is_written = False  # whether the folder says so
        kept = {}
        if folder.mine:
            kept = read_record(self.path)
        if kept.get('run') == run_id:
            self.safe = kept['safe']
            self.is_written = True
            for i, texts in kept['samples'].items():
                if int(i) <= folder.saved:
                    self.samples[i] = texts
        self.sent = self.safe  # the iteration of the last row that was sent

    def start(self, config, environment):
        """Begin the run at wandb, or go on with it.

        Raises ValueError if an option is wrong; nothing is trained yet."""
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
            if self.best.loss:
                self.summary = begun.summary
            self.wandb = wandb
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            if is_wrong_option(e, wandb):
                raise ValueError(
                    f'wandb: {in_one_line(e)}; WANDB_MODE=offline needs no login'
                ) from None
            say_off(e)

    def keep(self, iter_num, texts):
        """Keep the samples of a row that was logged, until it is sent.

        The first row says that the folder counts from here."""
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
                row = {name: value for name, value in entry.items() if name != 'environment'}
                texts = self.samples.get(str(entry['iter']))
                if texts:
                    row['samples'] = self.wandb.Table(['order', 'text'], texts)
                self.wandb.log(row, step=entry['iter'])
                self.sent = entry['iter']
            self.summary.update(self.best.shown)

    def lacking(self, iter_num):
        """Return the rows of the log that wandb lacks, up to the iteration of a checkpoint."""
        if not os.path.exists(self.log_path):
            return []
        entries = read_log(self.log_path)
        return [entry for entry in entries if self.sent < entry.get('iter', 0) <= iter_num]

    def finish(self):
        """End the part of the run that this process had, all of which was sent."""
        if self.wandb is None:
            return
        with self.surviving():
            self.wandb.finish()
            self.safe = self.sent
            self.samples = {}
            self.write()

    def write(self):
        record = {'run': self.run_id, 'safe': self.safe, 'samples': self.samples}
        replace_file(self.path, json.dumps(record).encode())
        self.is_written = True

    @contextlib.contextmanager
    def surviving(self):
        """What fails in the body switches wandb off, and ends nothing else but by Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # sys.exit and what asyncio cancels are no Exception
            self.wandb = None
            say_off(e)


def is_wrong_option(e, wandb):
    """Whether an exception of the module wandb says that an option is wrong."""
    is_no_network = isinstance(e, getattr(wandb, 'CommError', ()))
    is_known = isinstance(e, (getattr(wandb, 'Error', ValueError), ValueError))
    return is_known and not is_no_network


def say_off(e):
    why = in_one_line(e)
    say(f'wandb is switched off ({why}): training goes on, and a resume sends what wandb lacks')


def in_one_line(e):
    """Return the first line of what an exception says, or the name of its class."""
    said = str(e).strip() or type(e).__name__
    return said.splitlines()[0]


def read_record(path):
    """Return what a wandb.json says; {} where there is none that can be read."""
    try:
        with open(path, 'rb') as f:
            kept = json.load(f)
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict) or type(kept.get('safe')) is not int:
        return {}
    samples = kept.get('samples')
    if not isinstance(samples, dict) or not all(map(str.isdecimal, samples)):
        return {}
    return kept
