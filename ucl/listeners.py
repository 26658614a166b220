"""Listeners: what follows a run, such as its progress bar and its checkpoint. `ucl.run` calls them."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ucl.machine import checkpoints
from ucl.streams import ClassIncrementalStream, Task

_STATE_METHODS = ("state_dict", "load_state_dict")
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
        """Write the checkpoint, unless a user's object has state that it cannot keep: then a warning says so."""
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
        """
        state = None if self._file is None else checkpoints.load(self._file, self._identity, self._device)
        if state is None:
            return 0
        for name, part in self._parts.items():
            base = _package_class(part)
            base.load_state_dict(part, state[name])
            if type(part) is not base:  # It may not call super().
                part.load_state_dict(state[name])
        learnt: int = state["tasks learnt"]
        _log.info("continued after %d of %d tasks, from the checkpoint of a stopped run", learnt, len(self._stream))
        return learnt

    def _hidden_state(self) -> list[str]:
        """Names of what no `state_dict` returns, such as "Fifo.seen".

        A user's memory or method is resumed if its class defines `state_dict` and `load_state_dict`, or if it has no
        attributes but those that its base class of this package declares, and keeps. A score is resumed if it is a
        function without attributes or has both methods.
        """
        users = (self._parts[name] for name in ("buffer", "method") if name in self._parts)
        hidden = [name for part in users for name in _undeclared_attributes(part)]
        score = getattr(getattr(self._parts.get("buffer"), "scorer", None), "score", None)
        function = score.func if isinstance(score, partial) else score
        is_plain = inspect.isfunction(function) and vars(function).keys() <= {"__wrapped__"}
        if score is None or is_plain or all(hasattr(score, name) for name in _STATE_METHODS):
            return hidden
        return [*hidden, f"the state of the score {type(function).__name__}"]


def _undeclared_attributes(part: Any) -> list[str]:
    """The attributes of a memory or a method that a checkpoint would lose."""
    kind, base = type(part), _package_class(part)
    if kind is base or all(getattr(kind, name) is not getattr(base, name) for name in _STATE_METHODS):
        return []
    declared = {name for cls in base.__mro__ for name in inspect.get_annotations(cls)}
    slots = [name for cls in kind.__mro__ for name in vars(cls).get("__slots__", ())]
    return [f"{kind.__name__}.{name}" for name in (*vars(part), *slots) if name not in declared]


def _package_class(part: Any) -> type[Any]:
    """The most special class of this package from which an object inherits; `object` if there is none."""
    return next((cls for cls in type(part).__mro__ if cls.__module__.partition(".")[0] == "ucl"), object)
