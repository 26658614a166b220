"""Locks: the right to run one experiment, a file beside the records for as long as the run lasts.

A lock holds who runs the experiment and is touched every `HEARTBEAT`. Its owner dead, on this host, or silent for
`STALE_AFTER`, anyone may clear it. Should two hold one after all, such as a process that was suspended, an experiment
runs twice and no record is harmed.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ucl.config import Config

HEARTBEAT = 30.0  # seconds between two signs of life of an owner
STALE_AFTER = 300.0  # seconds after which a lock without one is anybody's, should its host be out of sight


def path_of(folder: Path, config: Config) -> Path:
    """The lock of an experiment, in the folder of its record."""
    return folder / f".lock-{config.key}"


@contextmanager
def held(path: Path, name: str) -> Iterator[bool]:
    """Hold a lock while the block lasts, if it is free or abandoned; what is entered is whether it is ours.

    Args:
        path: the lock's file.
        name: of this attempt, unlike that of any other.
    """
    mine = json.dumps(owner(name))
    done = threading.Event()

    def release() -> None:
        done.set()
        with suppress(PermissionError):  # Windows, while somebody reads it: it is cleared once it is stale
            if _read(path) == mine:
                path.unlink(missing_ok=True)

    with _in_the_end(release):
        ours = _create(path, mine) or (clear(path) and _create(path, mine))
        if ours:
            threading.Thread(target=_beat, args=(path, mine, done), daemon=True).start()
        yield ours


def clear(path: Path) -> bool:
    """Remove a lock if it is abandoned; True where it is gone.

    Of several that try, one succeeds: a file can be moved away only once.
    """
    if not path.exists():
        return True
    if not _is_abandoned(path):
        return False
    away = path.with_name(f".lock-{uuid.uuid4().hex}")
    with suppress(OSError):
        path.rename(away)
        if _is_abandoned(away):
            away.unlink()
            return True
        away.rename(path)  # somebody was faster, and this is their new lock
    return False


def clear_all(folder: Path) -> None:
    """Remove what the killed have left in a folder of records: abandoned locks, and records begun long ago."""
    for pattern in (".lock-*", ".????????.part"):  # a part names no owner: only its silence tells
        for path in folder.glob(pattern):
            clear(path)


def owner(name: str) -> dict[str, Any]:
    """What a lock of this process holds: its host, its number there, when it began, and the name of the attempt."""
    return {"host": _host(), "pid": os.getpid(), "born": _born(os.getpid()), "name": name}


@contextmanager
def _in_the_end(clean_up: Callable[[], object]) -> Iterator[None]:
    """Clean up after the block; once more, should a signal to stop arrive in the middle of just that."""
    try:
        yield
        clean_up()
    except BaseException:
        clean_up()
        raise


def _create(path: Path, text: str) -> bool:
    """Make a lock that is whole from its first moment on; False where there is one."""
    whole = path.with_name(f".lock-{uuid.uuid4().hex}")
    with _in_the_end(partial(whole.unlink, missing_ok=True)):
        whole.write_text(text, encoding="utf-8")
        try:
            os.link(whole, path)
        except FileExistsError:
            pass  # somebody holds it; or we do: NFS may say so of what it has just done
        except OSError:  # a file system without links
            with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
                file.write(text)
        return _read(path) == text


def _beat(path: Path, text: str, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT) and _read(path) == text:
        with suppress(OSError):
            os.utime(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_abandoned(path: Path) -> bool:
    try:
        if time.time() - path.stat().st_mtime > STALE_AFTER:
            return True
        found = json.loads(_read(path))
        return found["host"] == _host() and not _is_alive(found["pid"], found["born"])
    except (OSError, ValueError, TypeError, KeyError):  # gone, or not written yet
        return False


def _host() -> str:
    """This machine, or this container, within which process numbers are comparable."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()


def _is_alive(pid: int, born: str) -> bool:
    """Whether the process of this host that had this number and beginning still runs."""
    if os.name == "nt":
        return True  # asking with a signal, as below, would end it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _born(pid) == born


def _born(pid: int) -> str:
    """When a process of this host began, as Linux counts; "dead" once it ended, "" where that can't be told."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "dead" if state in "ZX" else fields[18]
