"""The checkpoint of a run: the parts that have state, and when it is written and read."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ucl.assembly import Parts
from ucl.buffers import Buffer
from ucl.machine import checkpoints, own_state, states
from ucl.machine.clock import Clock
from ucl.methods import Method
from ucl.run_tests import RunTests
from ucl.streams import Task

_log = logging.getLogger(__name__)


@dataclass
class RunCheckpoint:
    """The checkpoint of a run, which is written after each task except the last.

    Attributes:
        file: the file; None for a run without a checkpoint.
        identity: what must be equal for a continued run to give the result of an uninterrupted one.
        images_NHWC: the training images of the data set, from which the memory is restored.
        parts, tests, clock: the objects of the run, which are saved and restored; new ones when this object is created.
    """

    file: str | Path | None
    identity: dict[str, Any]
    images_NHWC: np.ndarray
    parts: Parts
    tests: RunTests
    clock: Clock
    _network_at_start: own_state.NetworkForm = field(init=False, repr=False)
    _functions_at_start: dict[str, object] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.file is not None:
            self._network_at_start = own_state.form_of_network(self.parts.model)
            self._functions_at_start = self._functions()

    def save(self, task: Task) -> None:
        """Write the checkpoint after a task, if a file is given and another task follows."""
        stream, model, buffer, method = self.parts
        if self.file is None or task is stream.tasks[-1]:
            return
        try:
            own_state.check_network(model, self._network_at_start)
            own_state.check_functions(self._functions_at_start, self._functions())
            state: checkpoints.State = {
                "tasks learnt": task.number + 1,
                "model": states.state_of(model),
                "buffer": {} if buffer is None else self._state_of_buffer(buffer),
                "method": states.complete(method.state()),
                "tests": self.tests.state(),
                "draws": states.global_draws(model.mean.device),
                "clock": self.clock.state(),
            }
            self._check_not_shared(state)
            checkpoints.save(Path(self.file), self.identity, state)
        except checkpoints.Unsaved as error:
            warnings.warn(f"{error}: no checkpoint is written, so a stopped run starts again", stacklevel=4)
            self.file = None

    def restore(self) -> int:
        """Load the state from the checkpoint, if there is one of this run; returns the number of tasks learnt."""
        state = None if self.file is None else checkpoints.load(Path(self.file), self.identity)
        if state is None:
            return 0
        stream, model, buffer, method = self.parts
        state = states.with_device(state, model.mean.device)
        states.restore(model, state["model"])
        if buffer is not None:
            buffer.restore(state["buffer"], self.images_NHWC)
        method.restore(state["method"])
        self.tests.restore(state["tests"])
        states.restore_global_draws(model.mean.device, state["draws"])
        self.clock.restore(state["clock"])
        learnt: int = state["tasks learnt"]
        _log.info("continued after %d of %d tasks, from the checkpoint of a stopped run", learnt, len(stream))
        return learnt

    def _functions(self) -> dict[str, object]:
        """The functions that memory and method have as attributes, such as `augment`, by their full names."""
        _, _, buffer, method = self.parts
        parts: list[Buffer | Method] = [method] if buffer is None else [buffer, method]
        return {f"{states.class_of(part)}.{name}": vars(part).get(name) for part in parts for name in part._functions}

    def _check_not_shared(self, state: checkpoints.State) -> None:
        """See `own_state.check_not_shared`; attributes that a class saves itself, in `state`, are its own affair."""
        _, model, buffer, method = self.parts
        parts = {"method": method} if buffer is None else {"buffer": buffer, "method": method}
        kept = [(part, name) for key, part in parts.items() for name in state[key]["added"] if name not in state[key]]
        own_state.check_not_shared(model, parts.values(), kept)

    def _state_of_buffer(self, buffer: Buffer) -> checkpoints.State:
        """The state of the memory.

        Raises:
            Unsaved: a policy of the user's own has other state, or stores images that the data set does not have.
        """
        n = buffer.n_stored
        own_NHWC = buffer.images[:n].permute(0, 2, 3, 1).cpu().numpy()
        if not np.array_equal(own_NHWC, self.images_NHWC[buffer.positions[:n].cpu().numpy()]):
            raise checkpoints.Unsaved("the memory stores changed images")
        return states.complete(buffer.state())
