"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

from ucl.errors import InputError


def check_writable(**folders: str | Path | None) -> None:
    """Create folders and test that files can be written to them, before long work whose results they get.

    Args:
        **folders: by the names of the arguments that give them; None for no folder.

    Raises:
        InputError: a folder can't be created or written to.
    """
    for name, folder in folders.items():
        if folder is None:
            continue
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part"):
                pass
        except OSError as error:
            reason = f"can't be written to ({error.strerror}); give another folder"
            raise InputError(name, str(folder), reason) from None


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
