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
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ucl.config import Config
from ucl.errors import one_line_with_type
from ucl.listeners import Listener
from ucl.machine.files import write_or_warn
from ucl.streams import ClassIncrementalStream, Task

_STATE_METHODS = ("state_dict", "load_state_dict")
_log = logging.getLogger(__name__)


def path_of(folder: Path, config: Config) -> Path:
    """The file of an experiment's checkpoint, in the folder of its record."""
    return folder / f".checkpoint-{config.key}.pt"


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
        """Write the checkpoint, unless a user's object may have state that it cannot keep: that is logged."""
        if self._file is None or task is self._stream.tasks[-1]:
            return
        if names := ", ".join(_without_state_methods(self._parts)):
            _log.info("%s: no state_dict and load_state_dict of its own, so a stopped run starts again", names)
            self._file = None
            return
        states = {name: [kind.state_dict(part) for kind in _kinds(part)] for name, part in self._parts.items()}
        state = {"tasks learnt": task.number + 1, **states}
        data = io.BytesIO()
        try:
            torch.save({"identity": self._identity, "state": state}, data)
            data.seek(0)
            torch.load(data, map_location="cpu", weights_only=True)
        except Exception:  # Pickling calls the user's code, so any error is possible.
            reason = "a state_dict has something else than tensors, numbers, texts, lists, tuples and dicts"
            warnings.warn(f"{reason}, so a stopped run starts again", stacklevel=5)
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
            for kind, of_kind in zip(_kinds(part), state[name], strict=True):
                kind.load_state_dict(part, of_kind)
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


def _without_state_methods(parts: Mapping[str, Any]) -> list[str]:
    """The classes of the user's memory, method and score that may have state that no `state_dict` returns.

    The class of a memory or a method has to define `state_dict` and `load_state_dict`, even if it only calls those of
    its base class: what it changes cannot be seen from outside. A score that is a function without attributes has no
    state.
    """
    kinds = [type(parts[name]) for name in ("buffer", "method") if name in parts]
    names = [kind.__name__ for kind in kinds if not _defines_state(kind)]
    score = getattr(getattr(parts.get("buffer"), "scorer", None), "score", None)
    function = score.func if isinstance(score, partial) else score
    is_plain = inspect.isfunction(function) and vars(function).keys() <= {"__wrapped__"}
    if score is None or is_plain or all(hasattr(score, name) for name in _STATE_METHODS):
        return names
    return [*names, f"the score {type(function).__name__}"]


def _defines_state(kind: type[Any]) -> bool:
    """Whether a class is of this package or defines both methods itself."""
    base = _package_class(kind)
    return kind is base or all(getattr(kind, name) is not getattr(base, name) for name in _STATE_METHODS)


def _kinds(part: Any) -> list[type[Any]]:
    """The classes whose state a part has: that of this package and, as its methods may not call super(), the user's."""
    return list(dict.fromkeys([_package_class(type(part)), type(part)]))


def _package_class(kind: type[Any]) -> type[Any]:
    """The most special class of this package from which a class inherits; `object` if there is none."""
    return next((cls for cls in kind.__mro__ if cls.__module__.partition(".")[0] == "ucl"), object)
