"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path


def try_writing(folder: Path) -> None:
    """Create a folder and a file in it, which is removed again: a test before long work whose result is written there.

    Raises:
        OSError: the folder cannot be created or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part"):
        pass


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file; its folder is created if missing.

    A reader of the path finds the complete old or the complete new content, even if the process is killed.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)


def write_or_warn(path: Path, content: bytes, what: str) -> bool:
    """Write a file that a run leaves beside its record, completely or not at all; if not, there is a warning."""
    try:
        write_whole(path, content)
        return True
    except OSError as error:
        reason = f"the {what} can't be written ({error.strerror}); the result is not affected"
        warnings.warn(f"{path}: {reason}", stacklevel=3)
        return False
