"""State of a user's own objects that a checkpoint cannot keep: attributes of a network, functions, shared memory."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ucl.machine.checkpoints import Unsaved
from ucl.machine.states import class_of, tensor_state, tensors_of

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


def check_functions(at_start: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Check that a run has replaced no function of its memory and its method, such as `augment`.

    Args:
        at_start: the functions by the names of their attributes, at the start of the run.
        now: the same now.

    Raises:
        Unsaved: one has been replaced.
    """
    if replaced := [name for name, function in at_start.items() if now[name] is not function]:
        advice = "assign it in __init__ only, and let it read what changes from another attribute"
        raise Unsaved(f"{replaced[0]} is replaced during the run, and a checkpoint keeps no function; {advice}")


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


def check_not_shared(model: nn.Module, parts: Iterable[object], kept: Iterable[tuple[object, str]]) -> None:
    """Check that attributes share no memory, as views of an array do: restored ones would be separate.

    Args:
        model: the network.
        parts: the memory and the method.
        kept: those of `parts` and the names of their attributes that a checkpoint keeps by itself.

    Raises:
        Unsaved: one of `kept` shares memory with another attribute or with the network.
    """
    held: dict[tuple[int, str], tuple[str, object]] = {
        (id(model), name): (f"network.{name}", values) for name, values in tensors_of(model).items()
    }
    for part in parts:
        for name, value in vars(part).items():
            full = f"{class_of(part)}.{name}"
            held[id(part), name] = full, value
            if isinstance(value, dict):
                held |= {(id(value), repr(key)): (f"{full}[{key!r}]", inner) for key, inner in value.items()}
    spans = {place: (full, span) for place, (full, value) in held.items() if (span := _span(value)) is not None}
    for place in ((id(part), name) for part, name in kept):
        if place not in spans:
            continue
        full, (start, end) = spans[place]
        for other, (other_full, (begun, ended)) in spans.items():
            if other != place and begun < end and start < ended:
                advice = f"assign a copy, or save it in `state` as {place[1]!r} and load it in `restore`"
                raise Unsaved(f"{full} shares memory with {other_full}, which a checkpoint cannot keep; {advice}")


def _span(value: object) -> tuple[int, int] | None:
    """Where a value lies in memory: its first byte, and the byte after its last one.

    A list, dict or generator counts as one byte: it shares memory only with itself. None for other types, and without a
    value.
    """
    if isinstance(value, (list, dict, np.random.Generator)):
        return id(value), id(value) + 1
    if isinstance(value, Tensor) and value.layout == torch.strided:
        start, size = value.data_ptr(), value.element_size()
        strides = tuple(size * stride for stride in value.stride())
    elif isinstance(value, np.ndarray):
        start, size, strides = value.ctypes.data, value.itemsize, value.strides
    else:
        return None
    if 0 in value.shape:
        return None
    steps = [(n - 1) * stride for n, stride in zip(value.shape, strides, strict=True)]
    return start + sum(step for step in steps if step < 0), start + sum(step for step in steps if step > 0) + size
