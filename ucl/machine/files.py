"""Files: only regular ones of a reasonable size are read, and they are written completely or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

MOST_TEXT = 2**26  # bytes; 500 times the largest record of the paper's grid
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def regular_file(path: str | Path) -> Path:
    """The same path, after a check that it is a regular file: a pipe may block for ever, and a device may be endless.

    Raises:
        OSError: there is no such file, or it is not a regular file; the message names its kind.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'special')}, not a regular file")
    return Path(path)


def read_text(path: str | Path) -> str:
    """The text of a regular file in UTF-8 with at most 64 MiB.

    Raises:
        OSError: the file does not exist, is not regular or is too large.
        ValueError: it is not UTF-8.
    """
    size = regular_file(path).stat().st_size
    if size > MOST_TEXT:
        raise OSError(f"{path} has {size:,} bytes; at most {MOST_TEXT:,} are allowed")
    return Path(path).read_text(encoding="utf-8")


def try_writing(folder: Path) -> None:
    """Create a folder and a file in it, which is removed again: a test before long work whose result is written there.

    Raises:
        OSError: the folder cannot be created or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part"):
        pass


@contextmanager
def part_of(path: Path, write: Callable[[IO[bytes]], object]) -> Iterator[Path]:
    """A temporary file in the folder of a path, completely written to the disk, which the caller renames to the path.

    A reader of the path finds the complete old or the complete new content, even if the process is killed. At the end
    of the block, the temporary file is deleted if it has not been renamed.

    Args:
        path: the final file; its folder is created if missing.
        write: function that writes the content into an open file.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        yield Path(part)
    finally:
        Path(part).unlink(missing_ok=True)
