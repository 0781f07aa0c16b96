"""How does a command meet the terminal? It reads options, shows how far it is, and says in one line what is wrong."""
import contextlib
import signal
import subprocess
import sys

from tqdm import tqdm
from tqdm.utils import DisableOnWriteError

from anyorder.machine.files import check_checkpoint, is_out_of_memory
from anyorder.machine.surroundings import surroundings
from configurator import configure


@contextlib.contextmanager
def one_line_errors(*signals):
    """Wrong input (ValueError), files that cannot be used (OSError), a command that failed and a lack of memory end a
    script with one line and exit code 1. So do the `signals`: temporary files and other processes end with it."""
    if hasattr(sys.stdout, 'reconfigure'):
        sys.stdout.reconfigure(errors='replace')   # a terminal that lacks a letter of a sample
    before = [(number, signal.signal(number, lambda *_: sys.exit('terminated'))) for number in signals]
    try:
        yield
    except (ValueError, OSError, subprocess.CalledProcessError) as e:
        sys.exit(f'error: {e}')
    except (MemoryError, RuntimeError) as e:
        if not is_out_of_memory(e):
            raise
        said = ' '.join(str(e).split())[:200]
        sys.exit(f'error: out of memory; a smaller batch, model or number of samples may fit ({said})')
    except KeyboardInterrupt:
        sys.exit('interrupted')
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def read_options(namespace, **checkpoints):
    """`configure` for a command that is run: a wrong option ends it with one line. Each option of `checkpoints`,
    {option: words}, must name a checkpoint that is there, unless it is one of the words or WORD:FILE. Processes of
    torchrun do not look yet, so that later all fail together."""
    with one_line_errors():
        config = configure(namespace)
        alone = not checkpoints or not surroundings()
        for name, words in checkpoints.items():
            if alone and config[name].partition(':')[0] not in words:
                check_checkpoint(config[name])
    return config


class Surviving(DisableOnWriteError):
    """A stream for bars that drops what it cannot write: a lost reader or a full disk must not end a run of days."""

    @staticmethod
    def disable_on_exception(bar, write):
        def surviving(*args):
            with contextlib.suppress(OSError):
                return write(*args)
        return surviving


def progress(rows=None, **how):
    """tqdm's bar. To a file it writes at its start, twice a minute and at its end."""
    seconds = 0.5 if sys.stderr.isatty() else 30
    return tqdm(rows, mininterval=seconds, maxinterval=max(10, seconds), file=Surviving(sys.stderr, None), **how)
