"""How does a bar show how far a command is? Within its total and its terminal.

terminal.py imports it where there is something to show: --help needs no package."""

import shutil
import textwrap
import threading

from tqdm import tqdm

# tqdm's own is shared with forked processes, and one that is killed keeps it
tqdm.set_lock(threading.RLock())


class Bar(tqdm):
    """A bar within its total and its terminal, of work that takes `delay` seconds or more."""

    def update(self, n=1):
        """Count n more, as far as the total goes: a text that is revised is written more often."""
        if self.total is not None:
            n = min(n, self.total - self.n)
        return super().update(n)

    def refresh(self, *args, **how):
        """Show it anew, as a line that is said does; a bar that is not due yet stays hidden."""
        if self.is_due():
            super().refresh(*args, **how)

    def close(self):
        """Show the end, of which a file may have seen nothing yet."""
        if not self.disable and self.is_due():
            self.last_print_t = self._time()
        super().close()

    def is_due(self):
        return self._time() >= self.start_t + self.delay

    @property
    def format_dict(self):
        width = None
        if self.fp.isatty():
            width = shutil.get_terminal_size().columns - 1  # it may have changed
        return super().format_dict | {'ncols': width}

    def __str__(self):
        """Return a bar of words alone up to the last word that fits: half a number misleads."""
        how = self.format_dict
        width = how.pop('ncols')
        if how['bar_format'] is None or width is None:
            return super().__str__()
        return textwrap.shorten(self.format_meter(**how), width, placeholder='')
