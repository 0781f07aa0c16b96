"""What does wandb show of a run? Each line of the log, and samples.

A resumed run goes on in its chart, by the id that its options keep. Wandb takes no row of an
iteration that it has: what a kill undid stays as it was shown."""

import os

from anyorder.machine.processes import is_first
from anyorder.machine.terminal import say


class Chart:
    """The run at wandb, or nothing. A wandb that fails is switched off, which ends no training.

    wandb  the package, which has begun the run; None: it has not, or is switched off"""

    def __init__(self, wandb=None):
        self.wandb = wandb

    def send(self, entry):
        """Send an entry of the log, with `samples` if it has any, pairs of order and text."""
        if 'samples' in entry:
            table = self.attempt('Table', ['order', 'text'], entry['samples'])
            entry = entry | {'samples': table}
        self.attempt('log', entry, step=entry['iter'])

    def attempt(self, function, *args, **how):
        """Return what a function of wandb returns, as of 'finish' behind the last entry. One that
        fails switches wandb off, and ends nothing else but by Ctrl-C."""
        if self.wandb is None:
            return None
        try:
            return getattr(self.wandb, function)(*args, **how)
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # sys.exit and what asyncio cancels are no Exception
            self.wandb = None
            say(f'wandb is switched off ({e!r:.200}): training goes on')
            return None


def start_chart(environment, config):
    """Return the Chart of a run, begun in the first process if the run wants one.

    Raises ValueError if it cannot begin; nothing is trained yet."""
    if not (config.wandb_log and is_first()):
        return Chart()
    try:
        import wandb

        wandb.init(
            project=os.environ.get('WANDB_PROJECT', 'ao-gpt'),
            name=os.environ.get('WANDB_NAME', config.out_dir),
            id=os.environ.get('WANDB_RUN_ID') or config.wandb_id,
            resume='allow',
            config={**config, 'environment': environment},
            allow_val_change=True,
        )
    except Exception as e:  # a broken package raises anything
        raise ValueError(f'wandb: {e!r:.200}; WANDB_MODE=offline needs no login') from None
    return Chart(wandb)
