"""Files that come from outside: what is read is a regular file, and of a size that can be meant."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST_TEXT = 2**26  # bytes; the largest record of the paper's grid has a five-hundredth of that
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def regular_file(path: str | Path) -> Path:
    """The same path, which leads to a regular file: opening a pipe may block for ever, and a device may have no end.

    Raises:
        OSError: there is no file, or it is of another kind; the message names the kind.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'special')}, not a regular file")
    return Path(path)


def read_text(path: str | Path) -> str:
    """The text of a regular file of at most 64 MiB in UTF-8.

    Raises:
        OSError: the file is not there, not regular or too large.
        ValueError: it is not UTF-8.
    """
    size = regular_file(path).stat().st_size
    if size > MOST_TEXT:
        raise OSError(f"{path} has {size:,} bytes; at most {MOST_TEXT:,} are read")
    return Path(path).read_text(encoding="utf-8")
