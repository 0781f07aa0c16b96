"""How does a command meet the terminal? It reads options, shows how far it is, and says in one line what is wrong."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

from tqdm import tqdm

from anyorder.machine.files import check_checkpoint, is_out_of_memory
from anyorder.machine.surroundings import surroundings
from configurator import configure

tqdm.set_lock(
    threading.RLock()
)  # tqdm's own is shared with forked processes, and one that is killed keeps it


@contextlib.contextmanager
def one_line_errors(*signals, prints_results=False):
    """Wrong input (ValueError), files that cannot be used (OSError), a command that failed and a lack of memory end a
    script with one line and exit code 1. So do the `signals`: temporary files and other processes end with it. A
    terminal, pipe or file that takes no more words ends nothing, see Surviving. If what the command prints is its
    result, as `prints_results` says, words lost to a full disk are an error once everything else is done."""
    before = [
        (number, signal.signal(number, lambda *_: sys.exit('terminated'))) for number in signals
    ]
    try:
        with surviving_streams() as out:
            out.holds_results = prints_results
            yield
        out.check()
    except (ValueError, OSError, subprocess.CalledProcessError) as e:
        sys.exit(f'error: {e}')
    except (MemoryError, RuntimeError) as e:
        if not is_out_of_memory(e):
            raise
        said = ' '.join(str(e).split())[:200]
        sys.exit(
            f'error: out of memory; a smaller batch, model or number of samples may fit ({said})'
        )
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


class Surviving:
    """A text stream that drops what it cannot write: neither a reader who has left nor a full disk nor a process
    without a terminal must end a run of days. `stream` is what it writes to, None nothing; `error` its first
    failure; `holds_results` whether what it is given is the result of a command."""

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
        """What the method of the stream returns; None where it fails, the stream has no such method or is closed."""
        try:
            if getattr(self.stream, 'closed', False) or not hasattr(self.stream, method):
                return None
            return getattr(self.stream, method)(*args, **how)
        except (OSError, ValueError) as e:  # ValueError: a letter that it cannot spell
            self.error = self.error or e
            return None

    def end(self):
        """Flush. What cannot be written then goes to the null device, or Python would stumble over it at its exit."""
        earlier, self.error = self.error, None
        self.flush()
        if self.error:
            with (
                contextlib.suppress(AttributeError, OSError, ValueError),
                open(os.devnull, 'w') as null,
            ):
                os.dup2(null.fileno(), self.stream.fileno())
        self.error = earlier or self.error

    def check(self):
        """Raise OSError if results were lost. A reader who has left wanted no more of them."""
        if self.holds_results and self.error and not isinstance(self.error, BrokenPipeError):
            raise self.error


def surviving(stream):
    """`stream`, made Surviving if it is not."""
    return stream if isinstance(stream, Surviving) else Surviving(stream)


@contextlib.contextmanager
def surviving_streams():
    """In the body, sys.stdout and sys.stderr are Surviving. Yields the first of them."""
    open_descriptors()
    out, err = surviving(sys.stdout), surviving(sys.stderr)
    out.attempt(
        'reconfigure', errors='replace'
    )  # a terminal that lacks a letter of a sample; it flushes, too
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield out
        finally:
            out.end()
            err.end()


def open_descriptors():
    """Open the null device in place of stdin, stdout and stderr where the process was started without. The next file,
    maybe a checkpoint, would get the number of a closed one, and with it the words of libraries in C."""
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(number, number <= 2)
    os.close(number)


def say(line):
    """Print a line; bars that are on the terminal stay below it."""
    tqdm.write(line, file=surviving(sys.stdout))


def progress(rows=None, **how):
    """tqdm's bar. To a file it writes at its start, twice a minute and at its end."""
    stream = surviving(sys.stderr)
    seconds = 0.5 if stream.isatty() else 30
    return tqdm(rows, mininterval=seconds, maxinterval=max(10, seconds), file=stream, **how)
