"""The steps of a run, for studies that look at it batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ucl.assembly import assemble, check_memory_size
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
    """Learn a task as `ucl.run` does: bit for bit within `ucl.machine.determinism.repeatable`.

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


def check_memory(config: Config, data: datasets.ImageDataset) -> None:
    """Check that a run has a memory with at least as many slots as classes; InputError if not."""
    if not config.uses_memory:
        raise InputError("method", config.method, "has no memory; give a method with one, such as er")
    check_memory_size(config, data)


class Moment(NamedTuple):
    """The state of a run after one of its batches: the network has learnt it, the memory was updated with it.

    Attributes:
        batch: number of the batch in the stream, from 1.
        task: the task of the batch.
        batch_in_task: number of the batch in the task, from 1 to ``len(task)``.
        model, buffer: the network and the memory.
        watched: the contents of the memory until now.
    """

    batch: int
    task: Task
    batch_in_task: int
    model: Network
    buffer: Buffer
    watched: Watched


def watched_run(
    config: Config, data: datasets.ImageDataset, device: str = "auto", progress: bool | None = None
) -> Iterator[Moment]:
    """Learn the stream of a run as `ucl.run` does, and observe its memory; nothing is tested or stored.

    Yields:
        The run after each batch. The network and the memory are those of the run, not copies: do not change them, and
        draw no random numbers from torch's global generator.

    Raises:
        InputError: see `check_memory`.
    """
    check_memory(config, data)
    chosen, number = resolve_device(device), 0
    with repeatable(config.seed, chosen):
        stream, model, buffer, method = assemble(config, data, chosen)
        assert buffer is not None
        watched = Watched(buffer)
        with progress_bar(stream.n_batches, config.label, progress) as bar:
            for task in stream:
                for batch_in_task, _ in enumerate(steps(task, model, buffer, method), 1):
                    number += 1
                    watched.look(number)
                    bar.update()
                    yield Moment(number, task, batch_in_task, model, buffer, watched)


class Watched:
    """The contents of a memory, empty at first, after each batch, and how often each image is drawn from it."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer, draw = buffer, buffer.drawn_slots
        self._contents: list[pd.DataFrame] = []
        self._replays: Counter[int] = Counter()  # by position

        def counted(*arguments: Any, **named: Any) -> np.ndarray:
            slots = draw(*arguments, **named)
            self._replays.update(buffer.positions.cpu().numpy()[slots].tolist())
            return slots

        buffer.drawn_slots = counted  # type: ignore[method-assign]

    def look(self, batch: int) -> None:
        """Note the contents of the memory after this batch."""
        buffer, n = self._buffer, self._buffer.n_stored
        positions, scores = buffer.positions[:n].cpu().numpy(), buffer.scores[:n].cpu().double().numpy()
        columns = {"position": positions, "score": scores, "label": buffer.labels[:n], "task": buffer.tasks[:n]}
        self._contents.append(pd.DataFrame(columns).assign(batch=batch).copy())

    def slots(self) -> pd.DataFrame:
        """The slots in use, in order: slot, position, label and entry, as in `ucl.studies.observe.Observed`."""
        current = self._contents[-1][["position", "label"]]
        entries = pd.concat(self._contents).groupby("position")["batch"].min()
        return current.assign(entry=current["position"].map(entries)).rename_axis("slot").reset_index()

    def stays(self) -> pd.DataFrame:
        """One row per stay of an image, see `ucl.studies.observe.Observed`; a stream has each image once."""
        held = pd.concat(self._contents)
        stays = held.groupby("position").agg(
            label=("label", "first"),
            task=("task", "first"),
            entry=("batch", "min"),
            exit=("batch", "max"),
            first_score=("score", "first"),  # NaN is skipped
            last_score=("score", "last"),
        )
        stays["exit"] = (stays["exit"] + 1).where(stays["exit"] < held["batch"].max())
        stays.insert(4, "replays", [self._replays[position] for position in stays.index])
        return stays.reset_index().sort_values(["entry", "position"], ignore_index=True)
