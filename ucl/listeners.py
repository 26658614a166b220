"""Listeners: what follows a run, such as its progress bar and its checkpoint. `ucl.run` calls them."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch

from ucl.buffers import Buffer
from ucl.errors import InputError
from ucl.machine import checkpoints
from ucl.methods import Method
from ucl.models import Network
from ucl.models.network import norms_of
from ucl.streams import ClassIncrementalStream, Task

_log = logging.getLogger(__name__)


class Diverged(Exception):
    """Raised by a listener to end the run: the network has diverged during the task."""

    def __init__(self, task: Task) -> None:
        self.task = task


class Listener:
    """Something that follows a run; each method does nothing by default."""

    def after_batch(self, task: Task) -> None:
        """A batch of the task has been learnt, and the memory updated."""

    def after_task(self, task: Task) -> None:
        """A task has been learnt; listeners that come earlier in the list have been called for it.

        Raises:
            Diverged: the run ends, without a call of later listeners.
        """

    def finish(self) -> dict[str, Any]:
        """The run has ended; returns entries of its `Record`, by name."""
        return {}


class Listeners(list[Listener]):
    """Listeners, which are called one after another."""

    def after_batch(self, task: Task) -> None:
        for listener in self:
            listener.after_batch(task)

    def after_task(self, task: Task) -> None:
        for listener in self:
            listener.after_task(task)

    def finish(self) -> dict[str, Any]:
        return {name: value for listener in self for name, value in listener.finish().items()}


class Progress(Listener):
    """A progress bar of batches."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def after_batch(self, task: Task) -> None:
        self._bar.update()


class Divergence(Listener):
    """Ends the run after a task with which the network has diverged."""

    def __init__(self, model: Network, buffer: Buffer | None) -> None:
        self._model, self._buffer = model, buffer

    def after_task(self, task: Task) -> None:
        if has_diverged(self._model, self._buffer):
            raise Diverged(task)


@torch.no_grad()
def has_diverged(model: Network, buffer: Buffer | None) -> bool:
    """Whether weights, BatchNorm statistics, or logits that the memory scored are NaN or infinite.

    The check waits for the device, so a run makes it once per task.

    Raises:
        InputError: the logits are finite, but a score of the memory is NaN or infinite.
    """
    statistics = [values for norm in norms_of(model) for values in (norm.running_mean, norm.running_var)]
    finite = torch.stack([values.isfinite().all() for values in [*model.parameters(), *statistics]])
    return not finite.all() or (buffer is not None and not buffer.check())


class Checkpoint(Listener):
    """Writes the state of the run's parts to a file after each task except the last, and reads it.

    Args:
        file: the file; None for a run without a checkpoint.
        identity: what must be equal for a continued run to give the result of an uninterrupted one.
        parts: the objects with `state_dict` and `load_state_dict`, in the state of a new run; None for no such part.
        stream, device: those of the run.
    """

    def __init__(
        self,
        file: str | Path | None,
        identity: dict[str, Any],
        parts: Mapping[str, Any],
        stream: ClassIncrementalStream,
        device: torch.device,
    ) -> None:
        self._file = None if file is None else Path(file)
        self._identity, self._stream, self._device = identity, stream, device
        self._parts = {name: part for name, part in parts.items() if part is not None}

    def after_task(self, task: Task) -> None:
        """Write the checkpoint, unless the run has state that it cannot keep: then a warning says so."""
        if self._file is None or task is self._stream.tasks[-1]:
            return
        try:
            if hidden := self._hidden_state():
                reason = "is not kept; define state_dict and load_state_dict, as ucl.buffers.Buffer describes"
                raise checkpoints.Unsaved(f"{', '.join(hidden)} {reason}")
            state = {name: part.state_dict() for name, part in self._parts.items()}
            checkpoints.save(self._file, self._identity, {"tasks learnt": task.number + 1, **state})
        except checkpoints.Unsaved as error:
            warnings.warn(f"{error}; no checkpoint is written, so a stopped run starts again", stacklevel=4)
            self._file = None

    def load(self) -> int:
        """Bring the parts to the state of the checkpoint, if there is one of this run.

        Returns:
            The number of tasks learnt; 0 without a checkpoint.

        Raises:
            InputError: a user's class does not load what its base class saved.
        """
        state = None if self._file is None else checkpoints.load(self._file, self._identity, self._device)
        if state is None:
            return 0
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
            base = _package_class(part)
            if base is not type(part) and not equal(base.state_dict(part), state[name]):
                method = f"{type(part).__name__}.load_state_dict"
                raise InputError(name, method, "does not restore the base class; call super().load_state_dict(state)")
        learnt: int = state["tasks learnt"]
        _log.info("continued after %d of %d tasks, from the checkpoint of a stopped run", learnt, len(self._stream))
        return learnt

    def _hidden_state(self) -> list[str]:
        buffer = self._parts.get("buffer")
        scorer = getattr(buffer, "scorer", None)
        functions = scorer, getattr(scorer, "score", None), getattr(buffer, "selection", None)
        hidden = [name for part in (buffer, self._parts["method"], *functions) for name in hidden_state(part)]
        return list(dict.fromkeys(hidden))


def hidden_state(part: Any) -> list[str]:
    """The attributes of a user's object that no `state_dict` returns, such as "Fifo.seen"; [] if it can be resumed.

    It can be resumed if its class defines `state_dict` and `load_state_dict`, or if it has no attributes but those that
    its base class of this package declares, as the base class keeps these.
    """
    while isinstance(part, (partial, MethodType)):
        part = part.func if isinstance(part, partial) else part.__self__
    kind, base, methods = type(part), _package_class(part), ("state_dict", "load_state_dict")
    if kind is base or all(getattr(kind, name, None) is not getattr(base, name, None) for name in methods):
        return []
    slots = [name for cls in kind.__mro__ for name in vars(cls).get("__slots__", ())]
    attributes = dict.fromkeys(slots) | getattr(part, "__dict__", {})
    declared = {name for cls in base.__mro__ for name in inspect.get_annotations(cls)}
    if issubclass(base, Method):  # It saves the augmentations that have state.
        declared |= {name for name in Method.AUGMENTATIONS if hasattr(attributes.get(name), "load_state_dict")}
    return [f"{kind.__name__}.{name}" for name in attributes if name not in declared]


def _package_class(part: Any) -> type[Any]:
    """The most special class of this package from which an object inherits; `object` if there is none."""
    return next((cls for cls in type(part).__mro__ if cls.__module__.partition(".")[0] == "ucl"), object)


def equal(state: Any, other: Any) -> bool:
    """Whether two states are equal; of dicts, the entries of the first one. NaN equals NaN."""
    if isinstance(state, dict):
        return all(name in other and equal(value, other[name]) for name, value in state.items())
    if isinstance(state, (list, tuple)):
        return len(state) == len(other) and all(map(equal, state, other))
    if isinstance(state, torch.Tensor):
        return state.shape == other.shape and torch.allclose(state, other, rtol=0, atol=0, equal_nan=True)
    return bool(state == other)
