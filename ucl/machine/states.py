"""States: networks, attributes and generators as dicts of arrays, JSON values and states, for a checkpoint.

Classes with a state have the two methods `state` and `restore`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Container
from typing import Any

import numpy as np
import torch

from ucl.machine.checkpoints import State, Unsaved


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


def complete(state: State) -> State:
    """The state of a buffer or a method, after a check that it has everything.

    Raises:
        Unsaved: an attribute of a user's subclass is of a type that `attributes` does not keep, and the state has no
            entry of its name, which the subclass's own `state` would add; or that `state` lacks what the base class's
            returns.
    """
    if not isinstance(state, dict) or "added" not in state:
        raise Unsaved("a `state` does not extend that of its base class; return {**super().state(), ...}")
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


def with_device(state: State, device: torch.device) -> State:
    """The same state, but its tensors of any GPU are restored on `device`.

    A run may continue on another GPU of the same kind, or the same GPU may have another index.
    """
    if set(state) == {"array", "dtype", "device"}:  # as `tensor_state` returns it
        return {**state, "device": str(device)} if state["device"].startswith("cuda") else state
    return {name: with_device(inner, device) if isinstance(inner, dict) else inner for name, inner in state.items()}


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
