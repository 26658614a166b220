"""Checkpoints: the state of a run after a task, in a file of the records' folder until the record is stored.

The file is an .npz of plain arrays. One of them is a JSON text with the identity of the run and all state that is not
an array. Reading the file executes nothing from it. A state is a dict of arrays, JSON values and states; classes with a
state have the two methods `state` and `restore`.

A checkpoint has no images: the images of a memory are given by their positions in the data set.
"""

from __future__ import annotations

import json
import os
import random
import warnings
import zipfile
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ucl.config import Config
from ucl.errors import one_line_with_type
from ucl.machine.files import part_of

FORMAT = 5
State = dict[str, Any]
_ARRAY = "array, by its name in the file"  # This text is part of the file format.


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


def state_of(model: torch.nn.Module) -> State:
    """The weights and buffers of a network, those that are not persistent, too; what is frozen or in evaluation mode.

    Raises:
        Unsaved: a network of the user's own has another state.
    """
    tensors = tensors_of(model)
    for name, values in tensors.items():
        if not isinstance(values, torch.Tensor):
            raise Unsaved(f"the state {name} of the network is no tensor, and a checkpoint cannot keep it")
    return {
        "tensors": {name: as_array(values) for name, values in tensors.items()},
        "frozen": [name for name, weight in model.named_parameters() if not weight.requires_grad],
        "in evaluation mode": [name for name, layer in model.named_modules() if not layer.training],
    }


def restore(model: torch.nn.Module, state: State) -> None:
    """Copy the values of `state_of` into the existing tensors of a network; freeze weights and set modes as there."""
    for name, own in tensors_of(model).items():
        own.copy_(torch.from_numpy(state["tensors"][name]))
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in state["frozen"])
    for name, layer in model.named_modules():
        layer.training = name not in state["in evaluation mode"]


def tensors_of(model: torch.nn.Module) -> dict[str, Any]:
    """The weights and buffers of a network by name, those that are not persistent, too, as tensors without a gradient.

    A network of the user's own may have a state of another type.
    """
    return {**model.state_dict(), **{name: buffer.detach() for name, buffer in model.named_buffers()}}


class Unsaved(RuntimeError):
    """An object of the user's own has state that a checkpoint cannot keep; the message names the attribute."""


def complete(state: State) -> State:
    """The state of a buffer or a method, after a check that it has everything.

    Raises:
        Unsaved: an attribute of a user's subclass is of a type that `attributes` does not keep, and the state has no
            entry of its name, which the subclass's own `state` would add.
    """
    unsaved = {name: found["value"] for name, found in state["added"].items() if found["kind"] == "unsaved"}
    if missing := [reason for name, reason in unsaved.items() if name not in state]:
        raise Unsaved(missing[0])
    return {**state, "added": {name: found for name, found in state["added"].items() if name not in unsaved}}


def attributes(part: object, known: Container[str]) -> State:
    """The attributes of an object that are not `known`, by name, as `restore_attributes` reads them.

    Kept are numbers, text, lists, dicts with texts or whole numbers as keys, arrays, tensors and numpy's generators. Of
    an attribute of another type the state says why it is not kept, see `complete`.
    """
    return {name: _plain(part, name, value) for name, value in vars(part).items() if name not in known}


def restore_attributes(part: object, state: State) -> None:
    """Set the attributes of an object to the state of `attributes`."""
    for name, found in state.items():
        value = found["value"]
        if found["kind"] == "tensor":
            value = tensor_of(value).requires_grad_(found["learnt"])
        elif found["kind"] == "parameter":
            value = torch.nn.Parameter(tensor_of(value), found["learnt"])
        elif found["kind"] == "generator":
            value = np.random.default_rng()
            value.bit_generator.state = found["value"]
        elif found["kind"] == "tuple":
            value = tuple(value)
        elif found["kind"] == "dict":
            value = dict(value)
        elif found["kind"] == "number":
            value = np.dtype(found["dtype"]).type(value)
        setattr(part, name, value)


def tensor_state(values: torch.Tensor) -> State:
    """A tensor as a state, see `tensor_of`."""
    return {"array": as_array(values), "dtype": str(values.dtype).removeprefix("torch."), "device": str(values.device)}


def tensor_of(state: State) -> torch.Tensor:
    """The tensor of a `tensor_state`: equal in values, dtype and device."""
    return torch.from_numpy(state["array"]).to(state["device"], getattr(torch, state["dtype"]))


def as_array(values: torch.Tensor) -> np.ndarray:
    """The values of a tensor as a numpy array; float32 for bfloat16, which numpy does not have."""
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _plain(part: object, name: str, value: object) -> dict[str, Any]:
    if isinstance(value, torch.nn.Parameter):
        return {"kind": "parameter", "value": tensor_state(value), "learnt": value.requires_grad}
    if isinstance(value, torch.Tensor):
        learnt = value.requires_grad and value.is_leaf
        return {"kind": "tensor", "value": tensor_state(value), "learnt": learnt}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"kind": "array", "value": value.copy()}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"kind": "number", "value": value.item(), "dtype": value.dtype.name}
    if isinstance(value, np.random.Generator) and isinstance(value.bit_generator, np.random.PCG64):
        return {"kind": "generator", "value": value.bit_generator.state}
    if type(value) is tuple and _is_json(list(value)):
        return {"kind": "tuple", "value": list(value)}
    if isinstance(value, float) or _is_json(value):
        return {"kind": "plain", "value": value}
    if type(value) is dict and _is_json([[key, inner] for key, inner in value.items()]):
        return {"kind": "dict", "value": [[key, inner] for key, inner in value.items()]}
    reason = f"is a {type(value).__name__}, which a checkpoint cannot keep; save it in `state` as {name!r} and load it"
    return {"kind": "unsaved", "value": f"{class_of(part)}.{name} {reason} in `restore`"}


def class_of(part: object) -> str:
    """The class of an object, for messages: "mine:Fifo"."""
    return f"{type(part).__module__}:{type(part).__name__}"


def _is_json(value: object) -> bool:
    """Whether JSON returns a value as it is, which it does not, for example, for a dict with numbers as keys.

    A `Counter` is equal to the dict that JSON returns, but does not behave like it.
    """
    try:
        return _are_plain(value) and bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _are_plain(value: object) -> bool:
    """Whether all dicts and lists in a value are of these very types."""
    if isinstance(value, dict):
        return type(value) is dict and all(map(_are_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return type(value) is list and all(map(_are_plain, value))
    return True


def global_draws(device: torch.device) -> State:
    """The state of the global generators of torch, from which dropout draws, of numpy and of Python."""
    of_python = random.getstate()
    state: State = {
        "cpu": torch.get_rng_state().numpy(),
        "numpy": np.random.get_state(legacy=False),
        "python": [of_python[0], list(of_python[1]), of_python[2]],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy()
    return state


def restore_global_draws(device: torch.device, state: State) -> None:
    """Set the global generators to the state of `global_draws`."""
    torch.set_rng_state(torch.from_numpy(state["cpu"]))
    np.random.set_state(state["numpy"])
    version, words, cached = state["python"]
    random.setstate((version, tuple(words), cached))
    if device.type == "cuda":
        torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]), device)


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
