"""One method of the benchmark during a task, with its network and memories; the parts of a batch are timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from torch import Tensor

from ucl.assembly import build_buffer, build_method, build_model
from ucl.benchmarks.ceiling import Stopwatch
from ucl.buffers import Buffer, UncertaintyBuffer
from ucl.buffers.task_end import TaskEndBuffer
from ucl.config import Config
from ucl.models import Network
from ucl.models.passes import logits_of
from ucl.scorers import RandomScores, Scorer, ScoringPasses, views
from ucl.streams import Batch, Task, datasets

Item = TypeVar("Item")


class Contender:
    """One method during a task: its network and a full memory.

    What a memory does at the end of a task is timed once and divided by the number of batches of the task.

    Args:
        config: the method.
        data: the data set.
        seen: the tasks so far; the last one is the task that is timed.
    """

    def __init__(self, config: Config, data: datasets.ImageDataset, seen: Sequence[Task]) -> None:
        device = seen[0].images.device
        self._watch, self._passes = Stopwatch(device), None
        self._timings: list[dict[str, float]] = []
        self.model = build_model(config, data, device)
        self.method = build_method(config, self.model)
        self.buffer = build_buffer(config, data, device)
        if self.buffer is not None:
            self._fill(self.buffer, config, seen)
        self._end_ms = self._watch.read().get("end of task", 0.0) / len(seen[-1])  # per batch
        if isinstance(self.buffer, UncertaintyBuffer) and isinstance(self.buffer.scorer, Scorer):
            self._passes = self.buffer.scorer.passes = TimedPasses(self.buffer.scorer.passes, self._watch)

    def _fill(self, buffer: Buffer, config: Config, seen: Sequence[Task]) -> None:
        labels = [label for task in seen for label in task.classes]
        shares = dict(zip(labels, map(len, np.array_split(np.arange(config.memory_size), len(labels)))))
        for task in seen:
            batches: Iterable[Batch] = [_images_of(task, shares)]
            if isinstance(buffer, TaskEndBuffer):
                # Only the end of the last task is timed. In earlier tasks, as many batches as the memory has slots
                # are enough to fill it.
                batches = itertools.islice(task, None if task is seen[-1] else config.memory_size)
            for batch in batches:
                if config.method == "derpp":
                    batch.values["logits"] = logits_of(self.model, batch.images)
                buffer.update(self.model, batch)
            with self._watch("end of task" if task is seen[-1] else "earlier tasks"):
                buffer.end_of_task(self.model, task)
        if isinstance(buffer, UncertaintyBuffer):
            # The first update scores all images of a class. It is done here, with random scores, because only the later
            # updates depend on `refresh`.
            scorer, buffer.scorer = buffer.scorer, RandomScores(0)
            buffer.update(self.model, _images_of(seen[-1], dict.fromkeys(labels, 1)))
            buffer.scorer = scorer

    def time_batch(self, batch: Batch) -> None:
        """Train on a batch, update the memory, and store the times."""
        batch = replace(batch, values={})  # without the values of another contender
        with self._watch("training"):
            self.method.learn(self.model, batch, self.buffer)
        if self.buffer is not None:
            with self._watch("update"):
                self.buffer.update(self.model, batch)
        spent = {"update": 0.0, "views": 0.0, "passes": 0.0} | self._watch.read()
        training, update = spent["training"], spent["update"] + self._end_ms
        forwards, selection = spent["passes"] - spent["views"], update - spent["passes"]
        parts = dict(training=training, views=spent["views"], forwards=forwards, selection=selection)
        self._timings.append({**parts, "update": update, "whole": training + update})

    def row(self, warm_up: int) -> dict[str, Any]:
        """Median times per batch, without the first `warm_up` batches, as a row of the benchmark's table."""
        medians = pd.DataFrame(self._timings[warm_up:]).median().add_suffix("_ms")
        candidates, per_image = (self._passes.n_images, self._passes.per_image) if self._passes else (0, 0)
        return {"candidates": candidates, "view_images": candidates * per_image, **medians}


def _images_of(task: Task, shares: Mapping[int, int]) -> Batch:
    """A batch with a given number of images of each class of a task; images repeat if a class has fewer."""
    chosen = np.concatenate([np.resize(np.flatnonzero(task.host_labels == c), shares[c]) for c in task.classes])
    return task.part(chosen)


class TimedPasses(ScoringPasses):
    """Scoring passes that a stopwatch times: all as "passes", and of them the views as "views".

    Args:
        passes: the original, with one draw per image.
        stopwatch: the stopwatch.

    Attributes:
        per_image: forward passes per image.
        n_images: number of images in the last call.
    """

    def __init__(self, passes: ScoringPasses, stopwatch: Stopwatch) -> None:
        shared = {of.name: getattr(passes, of.name) for of in fields(passes) if of.init}
        super().__init__(**shared | {"graphs": False})  # A graph would not call the stopwatch.
        self._time_of = stopwatch
        self.per_image = passes.dropout_passes or len(views.VIEWS)
        self.n_images = 0

    def logits(self, model: Network, images_NCHW: Tensor, *given: Any, **named: Any) -> Tensor:
        self.n_images = len(images_NCHW)
        with self._time_of("passes"):
            return super().logits(model, images_NCHW, *given, **named)

    def _draws(self, *given: Any) -> Iterator[views.ViewParameters]:
        return self._timed(super()._draws(*given))

    def _view_inputs(self, *given: Any) -> Iterator[Tensor]:
        return self._timed(super()._view_inputs(*given))

    def _timed(self, items: Iterator[Item]) -> Iterator[Item]:
        while True:
            with self._time_of("views"):
                item = next(items, None)
            if item is None:
                return
            yield item
