"""The memory that keeps images by their uncertainty (paper, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucl.buffers.buffer import Buffer, Indices, as_images, as_words, by_class
from ucl.buffers.selection import Selection, quotas
from ucl.models import Network
from ucl.streams import Batch

_EMPTY = np.array([], dtype=np.int64)

Scoring = Callable[[Network, Tensor, Tensor, Mapping[int, int]], Tensor]
"""A scorer: takes the model, images (N, C, H, W) and positions (N,) of candidates, class after class, and the number of
candidates of each class by its label; returns scores (N,)."""


@dataclass
class Samples:
    """The samples in the slots, then those in a batch: index i is slot i, index size + i is sample i of the batch."""

    batch: Batch
    arrived: Mapping[int, np.ndarray]  # of each class in the batch, the indices in it of its samples without a slot
    positions: Tensor  # (size + B,), int64: see `Batch`
    scores: Tensor  # (size + B,), float64: NaN for a sample without a score
    ages: Tensor  # (size + B,), int64: number of samples seen when each score was computed


class UncertaintyBuffer(Buffer):
    """Class-balanced memory in which each class keeps samples by their uncertainty scores (paper, Algorithm 1).

    Each class of a batch has candidates: its stored samples and those in the batch. The current model scores them, and
    the selection rule chooses which of them stay.

    Algorithm 1 does not say how the memory fills, nor how many samples stay. Here, every sample is stored as long as
    there is room. After that, each class has a quota, see `quotas`: this is how the package reads the paper's
    class-balanced memory management (section 4.1). A new class reduces the quotas of the others. A class that is not in
    the batch then gives up samples by its stored scores; if it has none, its latest samples leave first.

    A subclass may change `refresh` and `smoothing` during a run. Its state methods restore its `scorer` and `selection`
    if it replaces them; a run whose subclass does not define both methods starts again after a stop.

    Args:
        *arguments, **named: those of `Buffer`.
        scorer: a `ucl.scorers.Scorer`, or another function such as `Scoring`.
        selection: takes scores (N,) and k, and returns the k indices to keep; see `ucl.selection`.
        refresh: how many stored samples of a class are rescored per update, those with the oldest scores first: a
            share in (0, 1], or a number above 1. All samples of a class without scores are scored.
        smoothing: weight of the new score when a sample is rescored, in (0, 1].
    """

    def __init__(
        self,
        *arguments: Any,
        scorer: Scoring,
        selection: Selection,
        refresh: float = 1.0,
        smoothing: float = 1.0,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.scorer, self.selection, self.refresh, self.smoothing = scorer, selection, refresh, smoothing
        self._slots: dict[int, np.ndarray] = {}  # slots of each class, in the order in which the classes came
        self._has_scores: set[int] = set()  # classes whose stored samples have scores
        self._age = torch.zeros_like(self.positions)

    def update(self, model: Network, batch: Batch) -> None:
        """Update the memory as the function UpdateMemory of Algorithm 1 does, but all classes at once.

        In the paper's letters, the `candidates` of a class c are a_c, and their `samples.scores` are u_c.
        """
        self.n_seen += len(batch)
        n_stored = self._store_while_there_is_room(batch)
        if n_stored == len(batch):
            return
        arrived = by_class(batch.host_labels, start=n_stored)
        for label in arrived:
            self._slots.setdefault(label, _EMPTY)
        available = {label: len(slots) + len(arrived.get(label, ())) for label, slots in self._slots.items()}
        quota = quotas(available, self.size)

        # A class that is not in the batch changes only if its quota shrinks.
        classes = [label for label, slots in self._slots.items() if label in arrived or quota[label] < len(slots)]
        samples = self._stored_and_arrived(batch, arrived)
        indices = {label: (self._slots[label], self.size + arrived.get(label, _EMPTY)) for label in classes}
        candidates = {label: self._on_device(np.concatenate(parts)) for label, parts in indices.items()}
        self._score(model, samples, candidates)
        retained = {label: self._best(label, candidates[label], samples.scores, quota[label]) for label in classes}
        self._retain(samples, retained)

    # The steps of an update

    def _store_while_there_is_room(self, batch: Batch) -> int:
        start = self.n_stored
        n_stored = self.store(batch)
        for label, indices in by_class(batch.host_labels[:n_stored]).items():
            self._slots[label] = np.concatenate([self._slots.get(label, _EMPTY), start + indices])
        return n_stored

    def _stored_and_arrived(self, batch: Batch, arrived: Mapping[int, np.ndarray]) -> Samples:
        """All samples that are stored or in the batch; those in the batch have no scores yet."""
        return Samples(
            batch=batch,
            arrived=arrived,
            positions=torch.cat([self.positions, batch.positions]),
            scores=torch.cat([self.scores, self.scores.new_full((len(batch),), math.nan)]),
            ages=torch.cat([self._age, torch.zeros_like(batch.positions)]),
        )

    def _score(self, model: Network, samples: Samples, candidates: Mapping[int, Tensor]) -> None:
        """Score the samples in the batch, and rescore stored samples of their classes; changes scores and ages."""
        due = {label: self._due(label, candidates[label], samples.ages) for label in samples.arrived}
        indices, sizes = torch.cat(list(due.values())), {label: len(of_class) for label, of_class in due.items()}
        images = as_images(self._words(samples.batch, indices), self.images.shape[1:])
        new_scores = self.scorer(model, images, samples.positions[indices], sizes).double()
        old_scores = samples.scores[indices]
        smoothed = torch.lerp(old_scores, new_scores, self.smoothing)
        samples.scores[indices] = torch.where(old_scores.isnan(), new_scores, smoothed)
        samples.ages[indices] = self.n_seen
        self._has_scores.update(samples.arrived)

    def _due(self, label: int, candidates: Tensor, ages: Tensor) -> Tensor:
        """The candidates to score: the stored samples with the oldest scores, and all in the batch."""
        n_stored = n_rescored = len(self._slots[label])
        if label in self._has_scores:
            # A product such as 0.07 * 100 may be slightly above a whole number.
            n_rescored = int(self.refresh) if self.refresh > 1 else math.ceil(self.refresh * n_stored - 1e-9)
        if n_rescored >= n_stored:
            return candidates
        stored, in_batch = candidates[:n_stored], candidates[n_stored:]
        # Of equal ages the first sample is rescored first. One number for age and rank avoids a stable sort of all.
        order = ages[stored] * n_stored + torch.arange(n_stored, device=self.device)
        return torch.cat([stored[order.topk(n_rescored, largest=False).indices], in_batch])

    def _best(self, label: int, candidates: Tensor, scores: Tensor, quota: int) -> Tensor:
        """The candidates that a class keeps: by their scores, or the earliest if the class has none."""
        if label in self._has_scores:
            return candidates[self.selection(scores[candidates], quota)]
        return candidates[:quota]

    def _retain(self, samples: Samples, retained: Mapping[int, Tensor]) -> None:
        """Store the retained samples of each class in its slots, after giving each class as many slots as it needs."""
        batch = samples.batch
        self._assign_slots({label: len(indices) for label, indices in retained.items()})
        for label in retained:
            self.labels[self._slots[label]] = label
            if label in samples.arrived:
                self.tasks[self._slots[label]] = -1 if batch.task is None else batch.task
        slots_M = self._on_device(np.concatenate([self._slots[label] for label in retained]))
        from_M = torch.cat(list(retained.values()))
        for name, values in self._values_of(batch).items():
            self.values[name][slots_M] = torch.cat([self.values[name], values])[from_M]
        as_words(self.images)[slots_M] = self._words(batch, from_M)
        self.positions[slots_M] = samples.positions[from_M]
        self.scores[slots_M] = samples.scores[from_M]
        self._age[slots_M] = samples.ages[from_M]

    def _words(self, batch: Batch, indices: Tensor) -> Tensor:
        """The images of stored and new samples, see `Samples`, as `as_words` has them."""
        # Not by `torch.cat`, as a memory of large images takes gigabytes.
        stored, arrived = as_words(self.images), as_words(batch.images)
        is_new = (indices >= self.size)[:, None]
        new = arrived[(indices - self.size).clamp_min(0)]
        return torch.where(is_new, new, stored[indices.clamp_max(self.size - 1)])

    def _assign_slots(self, n_slots: Mapping[int, int]) -> None:
        """Give these classes as many slots; slots that one class gives up go to the classes that need more."""
        free = np.concatenate([self._slots[label][n:] for label, n in n_slots.items()])
        for label, n in n_slots.items():
            n_gained = max(n - len(self._slots[label]), 0)
            self._slots[label] = np.concatenate([self._slots[label][:n], free[:n_gained]])
            free = free[n_gained:]

    # What all memories have

    def replace(self, slots: Indices, batch: Batch, chosen: Indices | None = None) -> None:
        """Raise a TypeError: overwritten slots would have no class, score or age."""
        advice = "give a scorer and a selection, which decide what each class keeps, or inherit from Buffer"
        raise TypeError(f"{type(self).__name__} cannot replace the images of single slots; {advice}")

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "slots": [[label, slots.tolist()] for label, slots in self._slots.items()],
            "scored": sorted(self._has_scores),
            "age": self._age[: self.n_stored].clone(),
            "refresh": self.refresh,
            "smoothing": self.smoothing,
            "scorer": self.scorer.state_dict() if hasattr(self.scorer, "state_dict") else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._slots = {label: np.array(slots, dtype=np.int64) for label, slots in state["slots"]}
        self._has_scores = set(state["scored"])
        self._age[: self.n_stored] = state["age"]
        self.refresh, self.smoothing = state["refresh"], state["smoothing"]
        if hasattr(self.scorer, "load_state_dict"):
            self.scorer.load_state_dict(state["scorer"])
