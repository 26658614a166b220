"""Checkpoints: the state of a run after a task, in one file of `torch.save` until the record is stored.

A state is what the `state_dict` of the run's parts return: tensors, numbers, texts, lists, tuples and dicts. Reading
the file executes nothing from it (`weights_only`).
"""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from ucl.config import Config
from ucl.errors import one_line_with_type
from ucl.machine.files import write_whole


class Unsaved(RuntimeError):
    """A user's object has state that a checkpoint cannot keep."""


def path_of(folder: Path, config: Config) -> Path:
    """The file of an experiment's checkpoint, in the folder of its record."""
    return folder / f".checkpoint-{config.key}.pt"


def save(path: Path, identity: dict[str, Any], state: dict[str, Any]) -> None:
    """Write a checkpoint atomically. If that fails, there is a warning, and the run continues.

    Args:
        path: the file; an earlier one is replaced.
        identity: what must be equal when the run is continued: experiment, data, versions, machine.
        state: state of the run.

    Raises:
        Unsaved: the state has something else than tensors, numbers, texts, lists, tuples and dicts.
    """
    data = io.BytesIO()
    try:
        torch.save({"identity": identity, "state": state}, data)
        data.seek(0)
        torch.load(data, map_location="cpu", weights_only=True)
    except Exception as error:  # Pickling calls the user's code, so any error is possible.
        reason = f"a state_dict has something that torch.load does not read ({one_line_with_type(error)})"
        raise Unsaved(reason) from None
    try:
        write_whole(path, data.getbuffer())
    except OSError as error:
        reason = f"can't be written ({error.strerror}); if the run is stopped now, it continues from an earlier task"
        warnings.warn(f"{path}: the checkpoint {reason}", stacklevel=4)


def load(path: Path, identity: dict[str, Any], device: torch.device) -> dict[str, Any] | None:
    """The state that `save` wrote, with tensors of a GPU on `device`, since the index of the GPU may have changed.

    Returns:
        None if there is no file, and with a warning if the file is damaged or of another run.
    """

    def map_location(storage: Any, location: str) -> Any:
        return storage if location == "cpu" else storage.cuda(device)

    try:
        with path.open("rb") as file:
            if damaged := zipfile.ZipFile(file).testzip():  # torch does not compare the checksums.
                raise ValueError(f"{damaged} is damaged: its checksum is wrong")
            file.seek(0)
            content = torch.load(file, map_location=map_location, weights_only=True)
        state, saved = dict(content["state"]), dict(content["identity"])
    except FileNotFoundError:
        return None
    except Exception as error:  # A damaged file can raise any error.
        _ignored(path, f"can't be read ({one_line_with_type(error, 100)})")
        return None
    if saved != identity:
        differing = [name for name in {**identity, **saved} if identity.get(name) != saved.get(name)]
        listed = [f"{name} {saved.get(name, 'unknown')}, here {identity.get(name, 'unknown')}" for name in differing]
        _ignored(path, f"is of another run ({', '.join(listed)})")
        return None
    return state


def _ignored(path: Path, reason: str) -> None:
    warnings.warn(f"{path}: the checkpoint {reason}; it is ignored, and the run starts again", stacklevel=6)
