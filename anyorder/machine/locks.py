"""Who writes a file now?

Commands that read, change and write one take turns, and tidy up behind a killed one."""

import contextlib
import glob
import itertools
import os
import re
import shlex
import shutil
import socket
import sys
import time

PATIENCE = 60  # seconds that a command waits for another one
DAY = 24 * 3600
MADE = set()  # names of temporary_name
NUMBERS = itertools.count()


@contextlib.contextmanager
def locked(path):
    """Let the body have `path`, a file or a folder, for itself among all processes.

    The lock is the file .NAME.lock beside it, which says who holds it, and is empty afterwards; it
    goes if there is no `path`. A link stands for what it leads to. Raises ValueError with the
    holder after PATIENCE seconds. On a file system without locks, and in a folder that cannot be
    written to, the body runs all the same."""
    folder, name = os.path.split(os.path.realpath(path))
    new_folders = missing_folders(folder)
    lock_path = os.path.join(folder, f'.{name}.lock')
    lock = take_lock(lock_path, path)
    if lock is None:
        yield
        return
    try:
        command = shlex.join(sys.argv)
        write_holder(lock_path, f'process {os.getpid()} on {socket.gethostname()}: {command}\n')
        yield
    finally:
        write_holder(lock_path, '')
        is_idle = not os.path.exists(path)
        with contextlib.suppress(OSError):
            if is_idle:
                os.remove(lock_path)
        lock.release()
        if is_idle:
            remove_empty(new_folders)


def missing_folders(folder):
    """Return the folders of a path that are still to be made, the innermost first."""
    missing = []
    while not os.path.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def take_lock(lock_path, path):
    """Return the lock of `path`, which this process holds now; None where there can be none."""
    from filelock import FileLock, Timeout  # 40 ms, which few commands need

    while True:
        os.makedirs(os.path.dirname(lock_path), exist_ok=True)
        lock = FileLock(lock_path)
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            holder = read_holder(lock_path)
            raise ValueError(
                f'{path} is in use by {holder}; it has not ended in {PATIENCE} s: '
                'let it end, or end it, then start again'
            ) from None
        except FileNotFoundError:  # the folder was removed meanwhile
            continue
        except (OSError, NotImplementedError):
            return None
        if os.path.exists(lock_path):
            return lock
        lock.release()  # of a file that its last holder has removed


def remove_empty(folders):
    """Remove these folders, as long as they are empty: another process may have come."""
    with contextlib.suppress(OSError):
        for folder in folders:
            os.rmdir(folder)


def read_holder(lock_path):
    """Return what the holder of a lock says of itself."""
    with contextlib.suppress(OSError), open(lock_path, encoding='utf-8', errors='replace') as f:
        said = f.read().strip()
        if said.startswith('process '):
            return said
    return 'another process'


def write_holder(lock_path, said):
    """Have the lock say who holds it.

    Where it is no lock of the system, its text is filelock's own, and stays."""
    with (
        contextlib.suppress(OSError),
        open(lock_path, 'r+', encoding='utf-8', errors='replace') as f,
    ):
        if f.read(8) in ('', 'process '):
            f.seek(0)
            f.truncate()
            f.write(said)


def temporary_name(path):
    """Return a name beside `path` for this process to write to, another one in each call."""
    name = f'{os.fspath(path)}.{host()}.{os.getpid()}.{next(NUMBERS)}.tmp'
    MADE.add(name)
    return name


def host():
    return re.sub(r'[^\w-]', '-', socket.gethostname())


def tidy(path):
    """Remove what killed processes have left of `path` under names of temporary_name.

    `path` is a pattern, which may hold a *."""
    for name in glob.glob(f'{path}.*.tmp'):
        with contextlib.suppress(OSError):  # another process may have removed it
            if not is_left(name):
                continue
            if os.path.isdir(name):
                shutil.rmtree(name, ignore_errors=True)
            else:
                os.remove(name)


def is_left(name):
    """Return whether the maker of a temporary file is gone.

    A maker on another computer is when it has not written for a day."""
    made = re.search(r'\.([\w-]+)\.(\d+)\.\d+\.tmp$', name)
    if not made:
        return False
    computer, pid = made.groups()
    if computer != host():
        return time.time() - os.path.getmtime(name) > DAY
    if int(pid) == os.getpid():  # an earlier process may have had this number
        return name not in MADE
    return not is_alive(int(pid))


def is_alive(pid):
    """Return whether a process of this computer runs."""
    try:
        os.kill(pid, 0)
        return True
    except OSError as e:
        return not isinstance(e, ProcessLookupError)
