"""Who writes a file now? Commands that read, change and write one take turns."""

import os

PATIENCE = 60  # seconds that a command waits for another one


def locked(path):
    """Lock `path`, a file or a folder, for this process among all, to the end of a `with` block.

    The lock is the file .NAME.lock beside it. A link stands for what it leads to. Raises ValueError
    after PATIENCE seconds."""
    from filelock import FileLock, Timeout  # 40 ms, which few commands need

    folder, name = os.path.split(os.path.realpath(path))
    os.makedirs(folder, exist_ok=True)
    try:
        return FileLock(os.path.join(folder, f'.{name}.lock')).acquire(timeout=PATIENCE)
    except Timeout:
        raise ValueError(
            f'{path} is in use by another process, which has not ended in {PATIENCE} s: '
            'let it end, or end it, then start again'
        ) from None
