"""Locks: while an experiment runs, a lock file in the folder of the records reserves it for one process.

The locks are those of the operating system (`flock`, through filelock). A lock ends with its process, however the
process ended, also in a container. The lock of another machine ends when its file server notices that the machine is
gone, with NFS after about 90 seconds.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ucl.config import Config

_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def path_of(folder: Path, config: Config) -> Path:
    """The lock file of an experiment, in the folder of its record."""
    return folder / f".lock-{config.key}"


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold a lock within the block if it is free; the value of the `with` statement says whether it was free.

    A file system without locks gives a warning, and each lock counts as free: two processes may then measure the same
    run, but no record is damaged.
    """
    # Any account that works on the store may open the file; without a mode, only the one that created it could.
    lock = FileLock(path, mode=0o666, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warnings.warn(f"{path.parent}: no file locks here; several sweeps may measure the same runs", stacklevel=3)
    try:
        yield True
    finally:
        # The file is removed before the release, so that a process that waits for it notices that it was removed and
        # creates a new one. Windows does not remove open files.
        with suppress(OSError):
            path.unlink()
        lock.release()


def is_free(path: Path) -> bool:
    """Whether no process holds a lock; the lock file of a killed process is removed."""
    if not path.exists():
        return True
    with held(path) as free:
        return free
