"""Locks: the right to run one experiment, a file beside the records for as long as the run lasts.

They are the system's own (`flock`, by way of filelock): the lock of a process ends with the process, whatever ended it,
in a container as well; that of another machine once its file server misses it, which takes NFS about 90 seconds. Where
a file system has no such locks, each sweep runs all it is asked for: an experiment may run twice, and no record is
harmed.
"""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ucl.config import Config

ABANDONED_AFTER = 300.0  # seconds after which nobody is still writing a record that is not whole
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def path_of(folder: Path, config: Config) -> Path:
    """The lock of an experiment, in the folder of its record."""
    return folder / f".lock-{config.key}"


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold a lock while the block lasts, if it is free; what is entered is whether nobody else holds it."""
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    try:
        yield True
    finally:
        with suppress(OSError):  # Windows removes no open file
            path.unlink()  # before it is released: whoever waits for this file sees that it has no name, and makes one
        lock.release()


def is_free(path: Path) -> bool:
    """Whether nobody holds a lock; the file that a killed process left is removed."""
    if not path.exists():
        return True
    with held(path) as free:
        return free


def supported(folder: Path) -> bool:
    """Whether the file system of a folder has locks."""
    path = folder / f".lock-{uuid.uuid4().hex}"
    with held(path), held(path) as twice:
        return not twice


def clear(folder: Path) -> None:
    """Remove what the killed have left in a folder of records: free locks, and records begun long ago."""
    for path in folder.glob(".lock-*"):
        with suppress(OSError):  # such as of a folder that can only be read
            is_free(path)
    for path in folder.glob(".????????.part"):  # it names no owner: only its age tells
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER:
                path.unlink()
