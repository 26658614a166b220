"""The base class of memories that are updated once per task, at its end."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucl.buffers.buffer import Buffer, by_class
from ucl.buffers.selection import bottom_k, quotas
from ucl.models import Network
from ucl.models.passes import features_of
from ucl.streams import Batch, Task

CHUNK = 256  # images whose features, or whose neighbours, are computed at a time


class TaskEndBuffer(Buffer):
    """Class-balanced memory that chooses at a task's end among the task's images and the stored ones.

    It is empty during the first task. At the end of a task, the task's images are processed once more, and the host
    waits for the device once.

    Each class has a quota, see `quotas`. If the slots cannot be divided equally, the classes whose images come first in
    the slots get one more each, before those of the task. These need not be the classes that came first: a new class
    may take slots before theirs.
    """

    selection = staticmethod(bottom_k)  # A class keeps its lowest scores, unless a subclass has another rule.
    _task: int | None = None  # the task of the latest batch
    _values_seen: tuple[dict[str, Tensor], ...] = ()  # `Batch.values` of the task's batches so far

    @abstractmethod
    def candidate_scores(self, model: Network, task: Task, n: int) -> Tensor:
        """Scores (n_stored + n,), float64, on the host: of the stored images, then of the task's first n images."""

    def update(self, model: Network, batch: Batch) -> None:
        """Remember the values of the batch's samples; the memory does not change."""
        if batch.task != self._task:  # A loop by hand may leave a task without its end.
            self._task, self._values_seen = batch.task, ()
        self._values_seen += (self._values_of(batch),)
        self.n_seen += len(batch)

    def end_of_task(self, model: Network, task: Task) -> None:
        self._values_seen = self._values_seen[-len(task) :]  # It may have left a task without a number, too.
        n = len(self._values_seen) * task.batch_size
        scores = self.candidate_scores(model, task, n)
        candidates = by_class(np.concatenate([self.labels[: self.n_stored], task.host_labels[:n]]))
        quota = quotas({label: len(indices) for label, indices in candidates.items()}, self.size)
        retained = [
            indices[self.selection(scores[torch.from_numpy(indices)], quota[label]).numpy()]
            for label, indices in candidates.items()
        ]
        self._keep(np.concatenate(retained), scores, task)
        self._values_seen = ()

    def _keep(self, retained: np.ndarray, scores: Tensor, task: Task) -> None:
        """Keep only the candidates with these indices: as many as there are slots, or all candidates if fewer."""
        before = self.n_stored
        stay, rows = retained[retained < before], retained[retained >= before] - before
        leaving = np.setdiff1d(np.arange(before), stay)
        batch = task.part(rows)
        for name in self.values:  # which the samples had in the task's batches
            batch.values[name] = torch.cat([values[name] for values in self._values_seen])[self._on_device(rows)]
        stored = self.store(batch)
        self.replace(leaving, batch, np.arange(stored, len(batch)))
        slots = np.concatenate([stay, np.arange(before, before + stored), leaving])
        candidates = torch.from_numpy(np.concatenate([stay, before + rows]))
        self.scores[self._on_device(slots)] = scores[candidates].to(self.device)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "task": self._task, "values_seen": list(self._values_seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._task, self._values_seen = state["task"], tuple(state["values_seen"])


def features_of_task(model: Network, task: Task, n: int) -> Tensor:
    """Features (n, F), float32, of the first n images of a task, on the device; see `features_of`."""
    starts = range(0, n, CHUNK)
    return torch.cat([features_of(model, task.images[start : min(start + CHUNK, n)]) for start in starts])
