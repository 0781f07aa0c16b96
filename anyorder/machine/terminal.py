"""How does a command meet the terminal?

It reads options, shows how far it is, and says in one line what is wrong."""

import atexit
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import textwrap

from anyorder.machine.files import check_checkpoint, is_out_of_memory
from configurator import configure


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

    before = [(number, signal.signal(number, end)) for number in signals]
    try:
        with surviving_streams() as out:
            out.holds_results = prints_results
            yield
        out.check()
    except (ValueError, OSError, subprocess.CalledProcessError) as e:
        sys.exit(f'error: {e}')
    except ModuleNotFoundError as e:
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
    finally:
        for number, handler in before:
            signal.signal(number, handler)


PACKAGES = ('numpy', 'torch', 'filelock', 'tqdm')  # that every command wants


def read_options(namespace, **checkpoints):
    """Return `configure` of a command that is run: a wrong option, or a package that is missing,
    ends it with one line.

    Each option of `checkpoints`, {option: words}, must name a checkpoint that is there, unless it
    is one of the words or WORD:FILE."""
    with one_line_errors():
        config = configure(namespace)
        check_checkpoints(config, checkpoints)
        for name in PACKAGES:
            importlib.import_module(name)
    return config


def check_checkpoints(config, checkpoints):
    """Raise ValueError unless the options name checkpoints, see read_options."""
    for name, words in checkpoints.items():
        word, _, _ = config[name].partition(':')
        if word not in words:
            check_checkpoint(config[name])


class Surviving:
    """A text stream that drops what it cannot write.

    Neither a reader who has left nor a full disk nor a process without a terminal must end a run of
    days.

    stream         what it writes to, None nothing
    error          its first failure
    holds_results  whether what it is given is the result of a command"""

    def __init__(self, stream):
        self.stream = open(os.devnull, 'w') if stream is None else stream
        self.error = None
        self.holds_results = False

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def __eq__(self, other):  # tqdm asks whether it writes to the terminal
        return self.stream == getattr(other, 'stream', other)

    def __hash__(self):
        return hash(self.stream)

    def write(self, text):
        self.attempt('write', text)
        return len(text)

    def flush(self):
        self.attempt('flush')

    def isatty(self):
        return bool(self.attempt('isatty'))

    def attempt(self, method, *args, **how):
        """Return what the method of the stream returns.

        None: it fails, the stream has no such method, or is closed."""
        try:
            is_closed = getattr(self.stream, 'closed', False)
            if is_closed or not hasattr(self.stream, method):
                return None
            return getattr(self.stream, method)(*args, **how)
        except (OSError, ValueError) as e:  # ValueError: a letter that it cannot spell
            self.error = self.error or e
            return None

    def end(self):
        """Flush. What cannot be written then goes to the null device: Python would stumble over it
        at its exit."""
        earlier = self.error
        self.error = None
        self.flush()
        if self.error:
            self.lead_nowhere()
        self.error = earlier or self.error

    def lead_nowhere(self):
        """Have the null device in place of the stream's file."""
        with (
            contextlib.suppress(AttributeError, OSError, ValueError),
            open(os.devnull, 'w') as null,
        ):
            os.dup2(null.fileno(), self.stream.fileno())

    def check(self):
        """Raise OSError if results were lost. A reader who has left wanted no more of them."""
        reader_left = isinstance(self.error, BrokenPipeError)
        if self.holds_results and self.error and not reader_left:
            raise self.error


def surviving(stream):
    """Return `stream`, made Surviving if it is not."""
    return stream if isinstance(stream, Surviving) else Surviving(stream)


@contextlib.contextmanager
def surviving_streams():
    """Have sys.stdout and sys.stderr Surviving in the body, and yield the first of them."""
    open_descriptors()
    out = surviving(sys.stdout)
    err = surviving(sys.stderr)
    atexit.register(err.end)  # Python itself prints the line of an error, when the body is over
    # a terminal may lack a letter of a sample; this flushes, too
    out.attempt('reconfigure', errors='replace')
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield out
        finally:
            out.end()
            err.end()


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
    from anyorder.machine.bar import Bar, width_of

    out = surviving(sys.stdout)
    width = width_of(out)
    if width:
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    Bar.write(line, file=out)


def progress(rows=None, **how):
    """Return a Bar of work that takes a second. A file has it twice a minute and at its end."""
    from anyorder.machine.bar import Bar

    stream = surviving(sys.stderr)
    seconds = 0.5 if stream.isatty() else 30
    how |= {'mininterval': seconds, 'maxinterval': max(10, seconds), 'delay': 1}
    return Bar(rows, file=stream, ncols=80, nrows=20, **how)  # not to be measured once
