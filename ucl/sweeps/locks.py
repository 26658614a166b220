"""Locks: while an experiment runs, a lock file in the folder of the records reserves it for one process.

The locks are those of the operating system (`flock`, through filelock). A lock ends with its process, however the
process ended, also in a container. The lock of another machine ends when its file server notices that the machine is
gone, with NFS after about 90 seconds. If a file system has no such locks, sweeps do not share their work: an experiment
may then run twice, but no record is damaged.
"""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ucl.config import Config

ABANDONED_AFTER = 300.0  # seconds without a change after which an incomplete record counts as abandoned
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def path_of(folder: Path, config: Config) -> Path:
    """The lock file of an experiment, in the folder of its record."""
    return folder / f".lock-{config.key}"


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold a lock within the block if it is free; the value of the `with` statement says whether it was free."""
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
    try:
        yield True
    finally:
        # The file is removed before the release, so that a process that waits for it notices that it was removed and
        # creates a new one. Windows does not remove open files.
        with suppress(OSError):
            path.unlink()
        lock.release()


def is_free(path: Path) -> bool:
    """Whether no process holds a lock; the lock file of a killed process is removed.

    False if that is unknown, for example because the file server does not answer for a moment.
    """
    try:
        if not path.exists():
            return True
        with held(path) as free:
            return free
    except OSError:
        return False


def supported(folder: Path) -> bool:
    """Whether the file system of a folder has locks."""
    path = folder / f".lock-{uuid.uuid4().hex}"
    with held(path), held(path) as twice:
        return not twice


def clear(folder: Path) -> None:
    """Remove the files of killed processes from a folder of records: free locks and old incomplete records."""
    for path in folder.glob(".lock-*"):
        is_free(path)
    # A `.part` file names no owner; only its age shows that it was abandoned.
    if parts := list(folder.glob(".????????.part")):
        with suppress(OSError):  # The folder may be read-only.
            now = _time_in(folder)
            for path in parts:
                with suppress(OSError):  # Another sweep may have removed or renamed it.
                    if now - path.stat().st_mtime > ABANDONED_AFTER:
                        path.unlink()


def _time_in(folder: Path) -> float:
    """The time now in seconds by the clock of the folder's file server, which may differ from that of this machine."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part") as new:
        return os.fstat(new.fileno()).st_mtime
