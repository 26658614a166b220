"""Checkpoints: the state of a run after a task, in one file of `torch.save` until the record is stored.

A state is what the `state_dict` of the run's parts return: tensors, numbers, texts, lists, tuples and dicts. Reading
the file executes nothing from it (`weights_only`).
"""

from __future__ import annotations

import inspect
import io
import logging
import warnings
import zipfile
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucl.config import Config
from ucl.errors import one_line_with_type
from ucl.listeners import Listener
from ucl.machine.files import write_or_warn
from ucl.streams import ClassIncrementalStream, Task

_STATE_METHODS = ("state_dict", "load_state_dict")
_MUTABLE = (MutableSequence, MutableMapping, MutableSet, np.ndarray, torch.Tensor)
_log = logging.getLogger(__name__)


def path_of(folder: Path, config: Config) -> Path:
    """The file of an experiment's checkpoint, in the folder of its record."""
    return folder / f".checkpoint-{config.key}.pt"


class Checkpoint(Listener):
    """Writes the state of the run's parts to a file after each task except the last, and reads it.

    Args:
        file: the file; None for a run without a checkpoint.
        identity: what must be equal for a continued run to give the result of an uninterrupted one: experiment, data,
            versions, machine.
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
        self._new = {name: dict(vars(part)) for name, part in self._parts.items()}

    def after_task(self, task: Task) -> None:
        """Write the checkpoint, unless a user's object has state that it cannot keep: then a warning says so."""
        if self._file is None or task is self._stream.tasks[-1]:
            return
        state = {"tasks learnt": task.number + 1, **{name: part.state_dict() for name, part in self._parts.items()}}
        reason, data = "", io.BytesIO()
        if hidden := _hidden_state(self._parts, self._new):
            advice = "give your class state_dict and load_state_dict"
            reason = f"no state_dict has {', '.join(hidden)}; {advice}"
        try:
            torch.save({"identity": self._identity, "state": state}, data)
            data.seek(0)
            torch.load(data, map_location="cpu", weights_only=True)
        except Exception:  # Pickling calls the user's code, so any error is possible.
            reason = "a state_dict has something else than tensors, numbers, texts, lists, tuples and dicts"
        if reason:
            warnings.warn(f"{reason}; no checkpoint is written, so a stopped run starts again", stacklevel=5)
            self._file = None
        else:
            write_or_warn(self._file, data.getvalue(), "checkpoint")

    def load(self) -> int:
        """Bring the parts to the state of the checkpoint, if there is one of this run.

        Returns:
            The number of tasks learnt; 0 without a checkpoint.
        """
        state = None if self._file is None else read(self._file, self._identity, self._device)
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


def read(path: Path, identity: dict[str, Any], device: torch.device) -> dict[str, Any] | None:
    """The state in a checkpoint, with tensors of a GPU on `device`, since the index of the GPU may have changed.

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
        reason = f"can't be read ({one_line_with_type(error)})"
    else:
        if saved == identity:
            return state
        differing = [name for name in {**identity, **saved} if identity.get(name) != saved.get(name)]
        listed = [f"{name} {saved.get(name, 'unknown')}, here {identity.get(name, 'unknown')}" for name in differing]
        reason = f"is of another run ({', '.join(listed)})"
    warnings.warn(f"{path}: the checkpoint {reason}; it is ignored, and the run starts again", stacklevel=5)
    return None


def _hidden_state(parts: Mapping[str, Any], new: Mapping[str, dict[str, Any]]) -> list[str]:
    """Names of what no `state_dict` returns, such as "Fifo.seen"; `new` has the attributes of the new parts.

    A memory or method is resumed if its class defines `state_dict` and `load_state_dict`, or if it has no attributes
    but those that its base class of this package declares, and numbers and texts that are still those of the new
    object, such as an argument of its path. Lists and the like of its class may change, too, so it is not resumed with
    them. A user's method may also set attributes on a memory of this package. A score is resumed if it is a function
    without attributes or has both methods.
    """
    hidden = [name for k in ("buffer", "method") if k in parts for name in _undeclared_attributes(parts[k], new[k])]
    score = getattr(getattr(parts.get("buffer"), "scorer", None), "score", None)
    function = score.func if isinstance(score, partial) else score
    is_plain = inspect.isfunction(function) and vars(function).keys() <= {"__wrapped__"}
    if score is None or is_plain or all(hasattr(score, name) for name in _STATE_METHODS):
        return hidden
    return [*hidden, f"the state of the score {type(function).__name__}"]


def _undeclared_attributes(part: Any, new: dict[str, Any]) -> list[str]:
    """The attributes of a memory or a method that a checkpoint would lose; `new` are those that it began with."""
    kind, base = type(part), _package_class(part)
    if all(getattr(kind, name) is not getattr(base, name) for name in _STATE_METHODS):
        return []
    declared = {name for cls in base.__mro__ for name in inspect.get_annotations(cls)}
    unchanged = {name: value for name, value in vars(part).items() if name in new and value is new[name]}
    declared |= {name for name, value in unchanged.items() if kind is base or isinstance(value, (int, float, str))}
    slots = [name for cls in kind.__mro__ for name in vars(cls).get("__slots__", ())]
    own = [(name, value) for cls in kind.__mro__[: kind.__mro__.index(base)] for name, value in vars(cls).items()]
    shared = [name for name, value in own if isinstance(value, _MUTABLE) and not name.startswith("__")]
    return [f"{kind.__name__}.{name}" for name in (*vars(part), *slots, *shared) if name not in declared]


def _package_class(part: Any) -> type[Any]:
    """The most special class of this package from which an object inherits; `object` if there is none."""
    return next((cls for cls in type(part).__mro__ if cls.__module__.partition(".")[0] == "ucl"), object)
