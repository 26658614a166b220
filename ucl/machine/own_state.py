"""What the states of a user's own objects do not show: attributes of a network, and attributes that are one in memory.

A run notes both at its start. A checkpoint is written only if a new run, whose objects are created in the same way, can
be brought to the same state.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ucl.machine.checkpoints import Unsaved, class_of, tensor_state, tensors_of

_OF_ANY_LAYER = frozenset(vars(nn.Module()))


class NetworkForm(NamedTuple):
    """All of a network that a checkpoint does not keep.

    Attributes:
        parts: the class of each layer, and the shape of each weight and buffer, by name.
        attributes: a hash of each other attribute of a layer, by name; "" if it cannot be pickled, such as a function
            that another one defines, so that its changes are not seen.
    """

    parts: dict[str, object]
    attributes: dict[str, str]


class Shape(NamedTuple):
    """The type of the values of an attribute, its shape, its strides in bytes, and whether it can be set in place."""

    dtype: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    can_be_set: bool = True


Form = tuple[Shape, dict[str, int]]
"""The shape of an attribute, and its distance in bytes from each attribute with which it shares memory."""


def form_of_network(model: nn.Module) -> NetworkForm:
    """All of a network that a checkpoint does not keep."""
    layers = dict(model.named_modules())
    kept = {id(part) for part in (*model.parameters(), *model.buffers(), *layers.values())}
    parts: dict[str, object] = {path: type(layer).__name__ for path, layer in layers.items()}
    shapes = {name: getattr(values, "shape", None) for name, values in tensors_of(model).items()}
    hashes = {
        ".".join(filter(None, (path, name))): _hash(value, kept)
        for path, layer in layers.items()
        for name, value in vars(layer).items()
        if name not in _OF_ANY_LAYER
    }
    return NetworkForm(parts | shapes, hashes)


def check_network(model: nn.Module, at_start: NetworkForm) -> None:
    """Check that a checkpoint of a network has all of its state.

    Args:
        model: the network.
        at_start: its form at the start of the run.

    Raises:
        Unsaved: the form has changed.
    """
    now = form_of_network(model)
    if part := _first_changed(at_start.parts, now.parts):
        reason = (
            "is added, removed or replaced during the run, and a new network differs; create all layers in __init__"
        )
        raise Unsaved(f"{part} {reason}")
    if name := _first_changed(at_start.attributes, now.attributes):
        reason = (
            "changes during the run, and of a network a checkpoint keeps only weights and buffers; keep it in a buffer"
        )
        raise Unsaved(f"{name} {reason}, by self.register_buffer")


def _first_changed(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    return next((name for name in {**before, **now} if name not in before or before[name] != now.get(name)), "")


class _Pickler(pickle.Pickler):
    """A pickler that writes tensors by their values, and not the values of objects with an id in `kept`."""

    def __init__(self, file: io.BytesIO, kept: Container[int]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_id(self, value: object) -> object:
        if id(value) in self._kept:
            return "kept"
        return tensor_state(value) if isinstance(value, Tensor) else None


def _hash(value: object, kept: Container[int]) -> str:
    """A hash of a value without the objects with an id in `kept`; "" if it cannot be pickled."""
    file = io.BytesIO()
    try:
        _Pickler(file, kept).dump(value)
    except Exception:  # Pickling calls the user's own code, so any error is possible.
        return ""
    return hashlib.sha256(file.getvalue()).hexdigest()


def shared(model: nn.Module, parts: Iterable[object]) -> dict[str, Form]:
    """The attributes that share memory with another attribute or with the network, such as a view of an array.

    Args:
        model: the network.
        parts: the memory and the method.

    Returns:
        How each shares memory, by its name, "mine:Fifo.ages". Lists, dicts and generators do if they are the same.
    """
    held: dict[str, object] = {f"network.{name}": values for name, values in tensors_of(model).items()}
    own: list[str] = []
    for part in parts:
        for name, value in vars(part).items():
            own.append(f"{class_of(part)}.{name}")
            held[own[-1]] = value
            if isinstance(value, dict):
                held |= {f"{own[-1]}[{key!r}]": inner for key, inner in value.items()}
    spans = {name: span for name, value in held.items() if (span := _span(value)) is not None}
    found: dict[str, Form] = {}
    for name in filter(spans.__contains__, own):
        start, end, of = spans[name]
        meeting = {other: start - begun for other, (begun, ended, _) in spans.items() if begun < end and start < ended}
        if len(meeting) > 1:  # It meets itself.
            found[name] = of, meeting
    return found


def check_shared(name: str, now: Form, at_start: Form | None) -> None:
    """Check that an attribute of a new run can be set in place, so that it shares memory as it does now.

    Args:
        name: the attribute, as in `shared`.
        now, at_start: how it shares memory, and how it did at the start of the run; None if it did not.

    Raises:
        Unsaved: the two differ; or it shares memory with a value in a dict, which a new run replaces; or it cannot be
            set in place, such as an expanded tensor.
    """
    of, meeting = now
    if now != at_start or any(other.endswith("]") for other in meeting) or not of.can_be_set:
        other = next(other for other in meeting if other != name)
        advice = f"assign a copy, or save it in `state` as {name.rpartition('.')[2]!r} and load it in `restore`"
        raise Unsaved(f"{name} shares memory with {other}, which a checkpoint cannot keep; {advice}")


def fill(own: Any, value: Any) -> None:
    """Set an array, tensor, generator, list or dict to a value of the same type in place."""
    if isinstance(own, Tensor):
        with torch.no_grad():
            own.copy_(value)
        if own.is_leaf:
            own.requires_grad_(value.requires_grad)
    elif isinstance(own, np.ndarray):
        own[...] = value
    elif isinstance(own, np.random.Generator):
        own.bit_generator.state = value.bit_generator.state
    elif isinstance(own, list):
        own[:] = value
    elif own is not value:
        own.clear()
        own.update(value)


def _span(value: object) -> tuple[int, int, Shape] | None:
    """Where a value lies in memory: its first byte, the byte after its last one, and its shape.

    A list, dict or generator counts as one byte: it shares memory only with itself. None for other types, and without a
    value.
    """
    if isinstance(value, (list, dict, np.random.Generator)):
        return id(value), id(value) + 1, Shape(type(value).__name__)
    if isinstance(value, Tensor) and value.layout == torch.strided:
        start, size = value.data_ptr(), value.element_size()
        strides = tuple(size * stride for stride in value.stride())
        can_be_set = True
    elif isinstance(value, np.ndarray):
        start, size, strides = value.ctypes.data, value.itemsize, value.strides
        can_be_set = value.flags.writeable
    else:
        return None
    if 0 in value.shape:
        return None
    steps = [(n - 1) * stride for n, stride in zip(value.shape, strides, strict=True)]
    is_expanded = any(n > 1 and not stride for n, stride in zip(value.shape, strides, strict=True))
    shape = Shape(str(value.dtype), tuple(value.shape), strides, can_be_set and not is_expanded)
    return (
        start + sum(step for step in steps if step < 0),
        start + sum(step for step in steps if step > 0) + size,
        shape,
    )
