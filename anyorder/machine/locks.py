"""Who writes a file now? Commands that read, change and write one take turns."""

import os

PATIENCE = 60  # seconds that a command waits for another one


def locked(path, **how):
    """Lock `path`, a file or a folder, for this process among all, to the end of a `with` block, or
    as long as what is returned is kept.

    The lock is the file .NAME.lock beside it. A link stands for what it leads to. `how` is as for
    FileLock; its timeout, by default PATIENCE, ends with a ValueError."""
    from filelock import FileLock, Timeout  # 40 ms, which few commands need

    folder, name = os.path.split(os.path.realpath(path))
    os.makedirs(folder, exist_ok=True)
    lock = FileLock(os.path.join(folder, f'.{name}.lock'), **{'timeout': PATIENCE} | how)
    try:
        return lock.acquire()
    except Timeout:
        raise ValueError(
            f'{path} is in use by another process: let it end, or end it, then start again'
        ) from None
