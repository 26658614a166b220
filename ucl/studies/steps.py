"""The steps of a run, for studies that look at it batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ucl.assembly import assemble
from ucl.buffers import Buffer
from ucl.config import Config
from ucl.errors import InputError
from ucl.machine.determinism import repeatable
from ucl.machine.hardware import resolve_device
from ucl.machine.terminal import progress_bar
from ucl.methods import Method
from ucl.models import Network
from ucl.streams import Batch, Task, datasets


def steps(task: Task, model: Network, buffer: Buffer | None, method: Method) -> Iterator[Batch]:
    """Learn a task as `ucl.run` does: bit for bit within ``repeatable(config.seed, device)``.

    `ucl.machine.determinism.repeatable` seeds the dropout masks and makes the arithmetic deterministic.

    Args:
        task: the task.
        model: the network.
        buffer: the memory; None without one.
        method: how a batch is learnt.

    Yields:
        Each batch, after the network has learnt it and the memory was updated with it; the last batch after the
        memory's update at the end of the task.
    """
    for number, batch in enumerate(task, 1):
        method.learn(model, batch, buffer)
        if buffer is not None:
            buffer.update(model, batch)
            if number == len(task):
                buffer.end_of_task(model, task)
        yield batch


@dataclass(frozen=True)
class Moment:
    """The state of a run after one of its batches.

    Attributes:
        batch: number of the batch in the stream, from 1.
        task: the task of the batch.
        of_task: number of the batch in the task, from 1 to ``len(task)``.
        model: the network, after it has learnt the batch.
        buffer: the memory, after its update with the batch.
        watched: the contents of the memory until now.
    """

    batch: int
    task: Task
    of_task: int
    model: Network
    buffer: Buffer
    watched: Watched


def watched_run(
    config: Config, data: datasets.ImageDataset, device: str = "auto", progress: bool | None = None
) -> Iterator[Moment]:
    """Learn the stream of a run as `ucl.run` does, and observe its memory; nothing is tested or stored.

    Args:
        config: the run.
        data: its images.
        device, progress: see `ucl.run`.

    Yields:
        The run after each batch. The network and the memory are those of the run, not copies: do not change them, and
        draw no random numbers from torch's global generator.

    Raises:
        InputError: the run has no memory, or a memory with fewer slots than classes.
    """
    if not config.uses_memory:
        raise InputError("method", config.method, "has no memory; give a method with one, such as er")
    chosen, number = resolve_device(device), 0
    with repeatable(config.seed, chosen):
        stream, model, buffer, method = assemble(config, data, chosen)
        assert buffer is not None
        watched = Watched(buffer)
        with progress_bar(stream.n_batches, config.label, progress) as bar:
            for task in stream:
                for of_task, _ in enumerate(steps(task, model, buffer, method), 1):
                    number += 1
                    watched.look()
                    bar.update()
                    yield Moment(number, task, of_task, model, buffer, watched)


class Watched:
    """Compares the contents of a memory after each batch with those before, and counts how often each image is drawn.

    Args:
        buffer: the memory; it must be empty.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer, self._batch = buffer, 0
        self._there: dict[int, dict[str, Any]] = {}  # by position
        self._gone: list[dict[str, Any]] = []
        self._scores: list[tuple[int, int, float]] = []
        draw = buffer.drawn_slots

        def counted(*arguments: Any, **named: Any) -> np.ndarray:
            slots = draw(*arguments, **named)
            for position in buffer.positions.cpu().numpy()[slots].tolist():
                self._there[position]["replays"] += 1
            return slots

        buffer.drawn_slots = counted  # type: ignore[method-assign]

    def look(self) -> None:
        """Note the current contents of the memory; call this once after each batch."""
        buffer, n = self._buffer, self._buffer.n_stored
        self._batch += 1
        columns = buffer.positions[:n].tolist(), buffer.scores[:n].tolist(), buffer.labels, buffer.tasks
        held = {p: (score, int(c), int(task)) for p, score, c, task in zip(*columns)}
        for position in self._there.keys() - held.keys():
            self._gone.append({**self._there.pop(position), "exit": self._batch})
        for position, (score, label, task) in held.items():
            if position not in self._there:
                new = {"position": position, "label": label, "task": task, "entry": self._batch, "exit": np.nan}
                self._there[position] = {**new, "replays": 0, "first_score": np.nan, "last_score": np.nan}
            stay = self._there[position]
            if not np.isnan(score) and score != stay["last_score"]:
                stay["first_score"] = score if np.isnan(stay["first_score"]) else stay["first_score"]
                stay["last_score"] = score
                self._scores.append((self._batch, position, score))

    def slots(self) -> pd.DataFrame:
        """The slots in use, in order: slot, position, label and entry, as in `ucl.studies.memory_autopsy.stays`."""
        positions = self._buffer.positions[: self._buffer.n_stored].tolist()
        rows = [(slot, p, self._there[p]["label"], self._there[p]["entry"]) for slot, p in enumerate(positions)]
        return pd.DataFrame(rows, columns=["slot", "position", "label", "entry"])

    def stays(self) -> pd.DataFrame:
        """One row per stay of an image, see `ucl.studies.memory_autopsy.stays`."""
        return pd.DataFrame([*self._gone, *self._there.values()]).sort_values(["entry", "position"], ignore_index=True)

    def scores(self) -> pd.DataFrame:
        """One row per new score of an image: batch, position and score."""
        return pd.DataFrame(self._scores, columns=["batch", "position", "score"])
