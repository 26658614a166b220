"""Checkpoints: the state of a run after a task, in a file of the records' folder until the record is stored.

The file is an .npz of plain arrays. One of them is a JSON text with the identity of the run and all state that is not
an array. Reading the file executes nothing from it. A state is a dict of arrays, JSON values and states, see
`ucl.machine.states`.

A checkpoint has no images: the images of a memory are given by their positions in the data set.
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ucl.config import Config
from ucl.errors import one_line_with_type
from ucl.machine.files import part_of

FORMAT = 7
State = dict[str, Any]
_ARRAY = "array, by its name in the file"  # This text is part of the file format.


class Unsaved(RuntimeError):
    """An object of the user's own has state that a checkpoint cannot keep; the message names the attribute."""


def path_of(folder: Path, config: Config) -> Path:
    """The file of an experiment's checkpoint, in the folder of its record."""
    return folder / f".checkpoint-{config.key}.npz"


def save(path: Path, run: dict[str, Any], state: State) -> None:
    """Write a checkpoint atomically. If that fails, there is a warning, and the run continues.

    Args:
        path: the file; an earlier one is replaced.
        run: JSON values by name that must be equal when the run is continued: experiment, data, versions, machine.
        state: state of the run.

    Raises:
        Unsaved: the state has something else than arrays and JSON values.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        text = json.dumps({"format": FORMAT, "run": run, "state": _without_arrays(state, "", arrays)})
    except TypeError as error:
        raise Unsaved(f"a state has something else than arrays and JSON values ({error})") from None
    arrays["json"] = np.frombuffer(text.encode(), np.uint8)
    try:
        with part_of(path, lambda file: np.savez(file, **arrays)) as part:  # type: ignore[arg-type]
            os.replace(part, path)
    except OSError as error:
        reason = f"can't be written ({error.strerror}); if the run is stopped now, it continues from an earlier task"
        warnings.warn(f"{path}: the checkpoint {reason}", stacklevel=4)


def load(path: Path, run: dict[str, Any]) -> State | None:
    """The state that `save` wrote.

    Returns:
        None if there is no file, and with a warning if the file is damaged or of another run.
    """
    try:
        with path.open("rb") as file:
            found = _read(file)
        theirs = found["run"]
    except FileNotFoundError:
        return None
    except Exception as error:  # A damaged file can raise any error.
        _ignored(path, f"can't be read ({one_line_with_type(error, 100)})")
        return None
    if found["format"] != FORMAT or theirs != run:
        differing = [name for name in {**run, **theirs} if run.get(name) != theirs.get(name)]
        listed = [f"{name} {theirs.get(name, 'unknown')}, here {run.get(name, 'unknown')}" for name in differing]
        _ignored(path, f"is of another run ({', '.join(listed) or 'another format'})")
        return None
    return found["state"]


def clear(folder: Path) -> None:
    """Remove from a folder the checkpoints that are older than the record of their experiment.

    They remain if a process is stopped between storing the record and removing the checkpoint. A record that is older
    than the checkpoint is of other images, or of another version of a score.
    """
    for path in folder.glob(".checkpoint-*.npz"):
        key = path.stem.removeprefix(".checkpoint-")
        with suppress(OSError):  # A run may remove its own checkpoint meanwhile, or the folder is read-only.
            if any(record.stat().st_mtime >= path.stat().st_mtime for record in folder.glob(f"*-{key}*.json")):
                path.unlink()


def _ignored(path: Path, reason: str) -> None:
    warnings.warn(f"{path}: the checkpoint {reason}; it is ignored, and the run starts again", stacklevel=6)


def _without_arrays(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The same value with each array replaced by a name; the array is added to `arrays` under this name."""
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{name} has the key {wrong[0]!r}, which is no text")
        return {key: _without_arrays(inner, f"{name}/{key}", arrays) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{name} is an array of objects")
        arrays[name] = value
        return {_ARRAY: name}
    return value


def _with_arrays(value: Any, arrays: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return arrays[value[_ARRAY]]
    return {key: _with_arrays(inner, arrays) for key, inner in value.items()}


def _read(file: BinaryIO) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()  # Verify all checksums before using any content.
    if damaged:
        raise ValueError(f"{damaged} is damaged: its checksum is wrong")
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        found = json.loads(arrays["json"].tobytes())
        return {**found, "state": _with_arrays(found["state"], arrays)}
