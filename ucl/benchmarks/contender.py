"""One method of the benchmark during a task, with its network and memories; the parts of a batch are timed."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucl.assembly import build_buffer, build_method, build_model
from ucl.benchmarks.ceiling import Stopwatch
from ucl.buffers import Buffer, UncertaintyBuffer
from ucl.buffers.task_end import TaskEndBuffer
from ucl.config import Config
from ucl.evidence.leaderboard import timed_name
from ucl.models import Network, to_unit
from ucl.models.passes import in_evaluation_mode, logits_of
from ucl.scorers import RandomScores, Scorer, ScoringPasses, views
from ucl.streams import Batch, Task, datasets


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
        self.name = timed_name(config)
        self.model = build_model(config, data, device)
        self.method = build_method(config, self.model)
        self.watch = Stopwatch(device)
        self.buffer = self._full_memory(config, data, seen, device)
        self.end_ms = self.watch.read().get("end of task", 0.0) / len(seen[-1])  # per batch
        self.passes = None
        if isinstance(self.buffer, UncertaintyBuffer) and isinstance(self.buffer.scorer, Scorer):
            self.passes = self.buffer.scorer.passes = TimedPasses(self.buffer.scorer.passes, self.watch)
        self.timings: dict[str, list[float]] = defaultdict(list)

    def _full_memory(
        self, config: Config, data: datasets.ImageDataset, seen: Sequence[Task], device: torch.device
    ) -> Buffer | None:
        buffer = build_buffer(config, data, device)
        if buffer is None:
            return None
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
            with self.watch("end of task" if task is seen[-1] else "earlier tasks"):
                buffer.end_of_task(self.model, task)
        if isinstance(buffer, UncertaintyBuffer):
            # The first update scores all images of a class. It is done here, with random scores, because only the later
            # updates depend on `refresh`.
            scorer, buffer.scorer = buffer.scorer, RandomScores(0)
            buffer.update(self.model, _images_of(seen[-1], dict.fromkeys(labels, 1)))
            buffer.scorer = scorer
        return buffer

    def time_batch(self, batch: Batch) -> None:
        """Train on a batch, update the memory, and store the times."""
        with self.watch("training"):
            self.method.learn(self.model, batch, self.buffer)
        if self.buffer is not None:
            with self.watch("update"):
                self.buffer.update(self.model, batch)
        timing = {"update": 0.0, "views": 0.0, "forwards": 0.0} | self.watch.read()
        timing["update"] += self.end_ms
        timing["whole"] = timing["training"] + timing["update"]
        timing["selection"] = timing["update"] - timing["views"] - timing["forwards"]
        for part, milliseconds in timing.items():
            self.timings[part].append(milliseconds)

    def row(self, warm_up: int) -> dict[str, Any]:
        """Median times per batch, without the first `warm_up` batches, as a row of the benchmark's table."""
        medians = {f"{part}_ms": statistics.median(values[warm_up:]) for part, values in self.timings.items()}
        candidates, per_image = (self.passes.n_images, self.passes.per_image) if self.passes else (0, 0)
        return {"method": self.name, "candidates": candidates, "view_images": candidates * per_image, **medians}


def _images_of(task: Task, shares: Mapping[int, int]) -> Batch:
    """A batch with a given number of images of each class of a task; images repeat if a class has fewer."""
    chosen = np.concatenate([np.resize(np.flatnonzero(task.host_labels == c), shares[c]) for c in task.classes])
    return task.part(chosen)


class TimedPasses(ScoringPasses):
    """Scoring passes in evaluation mode whose steps are timed separately; the logits are those of the original.

    Args:
        passes: the original, with one draw per image.
        stopwatch: measures the parts "views" and "forwards".

    Attributes:
        per_image: forward passes per image.
        n_images: number of images in the last call.
    """

    def __init__(self, passes: ScoringPasses, stopwatch: Stopwatch) -> None:
        super().__init__(**vars(passes))
        self.time_of = stopwatch
        self.per_image = passes.dropout_passes or len(views.VIEWS)
        self.n_images = 0

    @torch.no_grad()
    def logits(self, model: Network, candidates: Sequence[Tensor], positions: Sequence[Tensor] = ()) -> Tensor:
        """Logits (P, N, C) of the candidates, see `ScoringPasses.logits`."""
        images_NCHW = torch.cat(list(candidates))
        self.n_images = len(images_NCHW)
        if self.dropout_passes:
            with self.time_of("forwards"):
                return super().logits(model, candidates, positions)
        with self.time_of("forwards"):
            network = in_evaluation_mode(model, self.dtype)
        with self.time_of("views"):
            draws = views.draw(len(images_NCHW), images_NCHW.shape[-1], self.generator).to(images_NCHW.device)
        logits = []
        for part in self.parts(images_NCHW):
            with self.time_of("views"):
                views_PNCHW = views.apply(to_unit(images_NCHW[part]), draws[part], model.mean.flatten())
                x_NCHW = network.normalize(views_PNCHW.flatten(0, 1))
            with self.time_of("forwards"):
                logits.append(network.logits(x_NCHW).unflatten(0, (len(views.VIEWS), -1)))
        return torch.cat(logits, 1)
