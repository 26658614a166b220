"""Checkpoints: what a run needs to go on after a task, in a file beside the records, until its record is stored.

The file is an .npz of plain arrays, one of which is a JSON text: the run that the checkpoint is of, and all of its
state that is no array. Nothing in it is executed when it is read. A state is a dict of arrays, JSON values and states;
what has one offers the pair `state` and `restore`.

Images are not in it: a memory's are known by their positions in the data set.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ucl.config import Config

FORMAT = 1
State = dict[str, Any]
_ARRAY = "array, by its name in the file"


def path_of(folder: Path, config: Config) -> Path:
    """The checkpoint of an experiment, in the folder of its record."""
    return folder / f".checkpoint-{config.key}.npz"


def save(path: Path, run: dict[str, Any], state: State) -> None:
    """Write a checkpoint, atomically. Where that fails there is a warning, and the run goes on.

    Args:
        path: the file; the one before it is replaced.
        run: JSON values by name, all that must be equal where the run goes on: experiment, data, versions, machine.
        state: of the run.
    """
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps({"format": FORMAT, "run": run, "state": _without_arrays(state, "", arrays)})
    part = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            arrays["json"] = np.frombuffer(text.encode(), np.uint8)
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        reason = f"can't be written ({error.strerror}), so a run that is stopped now goes on from an earlier task"
        warnings.warn(f"{path}: the checkpoint {reason}", stacklevel=3)
    finally:
        if part:
            Path(part).unlink(missing_ok=True)


def load(path: Path, run: dict[str, Any]) -> State | None:
    """The state that `save` wrote.

    Returns:
        None without a file and, with a warning that says so, where it is damaged or of another run.
    """
    try:
        with path.open("rb") as file:
            found = _read(file)
        theirs = found["run"]
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file fails in as many ways as it has bytes
        _ignored(path, f"can't be read ({type(error).__name__}: {' '.join(str(error).split())[:100]})")
        return None
    if found["format"] != FORMAT or theirs != run:
        differing = [name for name in {**run, **theirs} if run.get(name) != theirs.get(name)]
        told = ", ".join(f"{name} {theirs.get(name, 'unknown')}, here {run.get(name, 'unknown')}" for name in differing)
        _ignored(path, f"is of another run ({told or 'another format'})")
        return None
    return found["state"]


def clear(folder: Path) -> None:
    """Remove from a folder the checkpoints with a later record: whoever stored it was stopped right after.

    An earlier record is of other images, or of another version of a score.
    """
    for path in folder.glob(".checkpoint-*.npz"):
        key = path.stem.removeprefix(".checkpoint-")
        with suppress(OSError):  # a run that goes on has just removed its own, or the folder can only be read
            if any(record.stat().st_mtime >= path.stat().st_mtime for record in folder.glob(f"*-{key}*.json")):
                path.unlink()


def state_of(model: torch.nn.Module) -> State:
    """The weights and running statistics of a network."""
    return {name: values.detach().cpu().numpy() for name, values in model.state_dict().items()}


def restore(model: torch.nn.Module, state: State) -> None:
    """Give a network the weights and statistics of `state_of`; its tensors stay the ones they are."""
    for name, own in model.state_dict().items():
        own.copy_(torch.from_numpy(state[name]))


def global_draws(device: torch.device) -> State:
    """The state of torch's global generators, from which dropout draws."""
    state: State = {"cpu": torch.get_rng_state().numpy()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy()
    return state


def restore_global_draws(device: torch.device, state: State) -> None:
    """Go on with the draws of `global_draws`."""
    torch.set_rng_state(torch.from_numpy(state["cpu"]))
    if device.type == "cuda":
        torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]), device)


def _ignored(path: Path, reason: str) -> None:
    warnings.warn(f"{path}: the checkpoint {reason}; it is ignored, and the run starts anew", stacklevel=4)


def _without_arrays(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The same value with a name in place of each array, which goes to `arrays` under it."""
    if isinstance(value, dict):
        return {key: _without_arrays(inner, f"{name}/{key}", arrays) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
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
        damaged = archive.testzip()  # all checksums, before anything is believed
    if damaged:
        raise ValueError(f"{damaged} is not as it was written")
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        found = json.loads(arrays["json"].tobytes())
        return {**found, "state": _with_arrays(found["state"], arrays)}
