"""How does a command meet the terminal?

It reads options, shows how far it is, and says in one line what is wrong."""

import atexit
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap

from anyorder.machine.files import is_out_of_memory
from configurator import configure

# of the system, which says what is wrong with a path and no way out
WRONG_NAMES = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


@contextlib.contextmanager
def one_line_errors(*signals, prints_results=False):
    """End a script whose body fails for a reason of the user's with one line and exit code 1.

    Reasons are wrong input (ValueError), files that cannot be used (OSError), a command that
    failed, a package or memory that is missing, and the `signals`: temporary files and other
    processes end with the script. A terminal, pipe or file that takes no more words ends nothing,
    see Surviving. If what the command prints is its result, as `prints_results` says, words lost to
    a full disk are an error once everything else is done."""

    def end(*_):
        sys.exit('terminated')

    for number in signals:
        signal.signal(number, end)
    try:
        with surviving_streams(prints_results) as out:
            yield
        if out.lost:
            raise out.lost
    except WRONG_NAMES as e:
        sys.exit(f'error: {e}: name another, which is there and which you may use')
    except (ValueError, OSError, subprocess.CalledProcessError) as e:
        sys.exit(f'error: {e}')
    except ImportError as e:
        sys.exit(f'error: {e}: pip install -r requirements.txt (-r requirements-extra.txt)')
    except (MemoryError, RuntimeError) as e:
        if not is_out_of_memory(e):
            raise
        said = ' '.join(str(e).split())[:200]
        sys.exit(
            'error: out of memory: a smaller --batch_size, --length or --block_size, or '
            f'--dtype=bfloat16, may fit ({said})'
        )
    except KeyboardInterrupt:
        sys.exit('interrupted')


PACKAGES = ('numpy', 'torch', 'filelock', 'tqdm')  # that every command wants


def read_options(namespace):
    """Return `configure` of a command that is run: a wrong option, or a package that is missing,
    ends it with one line."""
    with one_line_errors():
        config = configure(namespace)
        for name in PACKAGES:
            importlib.import_module(name)
    return config


class Surviving:
    """A text stream that drops what it cannot write.

    Neither a reader who has left nor a full disk nor a process without a terminal must end a run of
    days.

    stream         what it writes to, None nothing
    error          its first failure
    holds_results  whether what it is given is the result of a command"""

    def __init__(self, stream, holds_results=False):
        self.stream = open(os.devnull, 'w') if stream is None else stream
        self.error = None
        self.holds_results = holds_results

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        self.attempt('write', text)
        return len(text)

    def flush(self):
        self.attempt('flush')

    def isatty(self):
        return bool(self.attempt('isatty'))

    def attempt(self, method, *args, **how):
        """Return what the method of the stream returns, None where it fails."""
        try:
            return getattr(self.stream, method)(*args, **how)
        except OSError as e:
            self.error = self.error or e
        except (AttributeError, ValueError):
            pass  # it cannot do that, is closed, or lacks a letter
        return None

    def end(self):
        """Flush. After a failure the null device is in place of the stream's file: Python would
        stumble at its exit over what could not be written."""
        self.flush()
        if self.error:
            with contextlib.suppress(AttributeError, OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    @property
    def lost(self):
        """The OSError by which results were lost, or None: a reader who has left wanted no more."""
        reader_left = isinstance(self.error, BrokenPipeError)
        return self.error if self.holds_results and not reader_left else None


@contextlib.contextmanager
def surviving_streams(holds_results):
    """Have sys.stdout and sys.stderr Surviving in the body, and yield the first of them."""
    open_descriptors()
    out = Surviving(sys.stdout, holds_results)
    err = Surviving(sys.stderr)
    atexit.register(err.end)  # Python itself prints the line of an error, when the body is over
    # a terminal may lack a letter of a sample; this flushes, too
    out.attempt('reconfigure', errors='replace')
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield out
        finally:
            out.end()


def open_descriptors():
    """Open the null device in place of stdin, stdout and stderr where the process has none.

    Else the next file, maybe a checkpoint, would get the number of a closed one, and with it the
    words of libraries in C."""
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(number, number <= 2)
    os.close(number)


def say(line):
    """Print a line, which a terminal breaks at words; bars that are on it stay below the line."""
    from anyorder.machine.bar import Bar

    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    Bar.write(line)


def progress(rows=None, **how):
    """Return a Bar of work that takes a second. A file has it twice a minute and at its end."""
    from anyorder.machine.bar import Bar

    seconds = 0.5 if sys.stderr.isatty() else 30
    how |= {'mininterval': seconds, 'maxinterval': max(10, seconds), 'delay': 1}
    return Bar(rows, ncols=80, nrows=20, **how)  # not to be measured once
