"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


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


def write_or_warn(path: Path, content: bytes, what: str) -> bool:
    """Write a file that a run leaves beside its record, completely or not at all; if not, there is a warning."""
    try:
        with part_of(path, lambda file: file.write(content)) as part:
            os.replace(part, path)
        return True
    except OSError as error:
        reason = f"the {what} can't be written ({error.strerror}); the result is not affected"
        warnings.warn(f"{path}: {reason}", stacklevel=3)
        return False
