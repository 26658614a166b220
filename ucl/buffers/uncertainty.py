"""The memory that keeps images by their uncertainty (paper, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ucl.buffers import image_rows
from ucl.buffers.buffer import Buffer
from ucl.buffers.selection import Selection, quotas
from ucl.machine.checkpoints import State
from ucl.models import Network
from ucl.scorers import Scorer
from ucl.streams import Batch


@dataclass
class Candidates:
    """The samples of one class that compete for its quota: first the stored samples, then those in the batch.

    Attributes:
        rows: (K,), int64: row of each image in the storage; for sample i of the batch, the number of rows plus i.
        positions: (K,), int64: indices of the images among the data set's training images.
        scores: (K,), float64; NaN for a sample without a score.
        ages: (K,), int64: number of the update in which each score was computed.
    """

    rows: Tensor
    positions: Tensor
    scores: Tensor
    ages: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Tensor) -> Candidates:
        return Candidates(self.rows[chosen], self.positions[chosen], self.scores[chosen], self.ages[chosen])

    @staticmethod
    def cat(parts: Iterable[Candidates]) -> Candidates:
        """All candidates of the parts, in order."""
        return Candidates(*map(torch.cat, zip(*((p.rows, p.positions, p.scores, p.ages) for p in parts), strict=True)))


class UncertaintyBuffer(Buffer):
    """Class-balanced memory in which each class keeps its quota by an uncertainty score (paper, Algorithm 1).

    As long as there is room, every sample is stored. After that, each class of a batch has candidates: its stored
    samples and those in the batch. The current model scores them, and the selection rule chooses as many as the class's
    quota. A new class reduces the quotas of the others. A class that is not in the batch then gives up samples by its
    stored scores; if it has none, its latest samples leave first.

    Images are not moved: `_row` has the storage row of each slot, and only new images are written.

    Args:
        size, image_shape, device: see `Buffer`.
        scorer: takes the model and, for each class, images (N, C, H, W) and positions (N,); returns scores (N,) for
            each class.
        selection: takes scores (N,) and k, and returns the k indices to keep; see `ucl.selection`.
        refresh: how many stored samples of a class are rescored per update, those with the oldest scores first: a
            share in (0, 1], or a number above 1. All samples of a class without scores are scored.
        smoothing: weight of the new score when a sample is rescored, in (0, 1].
    """

    _spare_rows = 1  # See `ucl.buffers.image_rows`.

    def __init__(
        self,
        size: int,
        image_shape: Sequence[int],
        device: torch.device | str,
        scorer: Scorer | Callable[[Network, Sequence[Tensor], Sequence[Tensor]], list[Tensor]],
        selection: Selection,
        refresh: float = 1.0,
        smoothing: float = 1.0,
    ) -> None:
        of_subclass = set(vars(self))
        super().__init__(size, image_shape, device)
        self.scorer, self.selection, self.refresh, self.smoothing = scorer, selection, refresh, smoothing
        self._slots: dict[int, np.ndarray] = {}  # slots of each class, in the order in which the classes came
        self._scored: set[int] = set()  # classes whose stored samples have scores
        self._row = torch.arange(size, device=device)
        self._age = torch.zeros(size, dtype=torch.int64, device=device)
        self._updates = 0
        self._saved |= set(vars(self)) - of_subclass

    def update(self, model: Network, batch: Batch) -> None:
        n_stored = self._store_while_there_is_room(batch)
        if n_stored == len(batch):
            return
        self._updates += 1
        new = _by_class(batch.host_labels, start=n_stored)  # for each class the indices of its samples in the batch
        for label in new:
            self._slots.setdefault(label, np.array([], dtype=np.int64))
        quota = self._quotas(new)

        # A class that is not in the batch changes only if its quota shrinks.
        classes = [label for label, slots in self._slots.items() if label in new or quota[label] < len(slots)]
        candidates = {label: self._candidates(label, batch, new.get(label)) for label in classes}
        self._score(model, batch, candidates, new)
        retained = {label: self._select(label, candidates[label], quota[label]) for label in classes}
        self._store(batch, retained, new)

    # The steps of an update

    def _store_while_there_is_room(self, batch: Batch) -> int:
        """Store the first samples of the batch in empty slots; returns how many."""
        start = self.n_stored
        n_stored = self.store(batch)
        self.n_seen += len(batch)
        for label, indices in _by_class(batch.host_labels[:n_stored]).items():
            before = self._slots.get(label, np.array([], dtype=np.int64))
            self._slots[label] = np.concatenate([before, start + indices])
        return n_stored

    def _quotas(self, new: Mapping[int, np.ndarray]) -> dict[int, int]:
        """The number of samples that each class may keep, of its stored samples and those in the batch."""
        return quotas({label: len(slots) + len(new.get(label, ())) for label, slots in self._slots.items()}, self.size)

    def _candidates(self, label: int, batch: Batch, new: np.ndarray | None) -> Candidates:
        """The stored samples of a class and, if there are any, its samples in the batch."""
        slots = self._on_device(self._slots[label])
        stored = Candidates(self._row[slots], self.positions[slots], self.scores[slots], self._age[slots])
        if new is None:
            return stored
        indices = self._on_device(new)
        in_batch = Candidates(
            rows=len(self._storage) + indices,
            positions=batch.positions[indices],
            scores=torch.full_like(indices, math.nan, dtype=torch.float64),
            ages=torch.zeros_like(indices),
        )
        return Candidates.cat([stored, in_batch])

    def _score(
        self, model: Network, batch: Batch, candidates: Mapping[int, Candidates], new: Mapping[int, np.ndarray]
    ) -> None:
        """Score the samples in the batch, and rescore stored samples of their classes."""
        to_score = {label: self._to_score(label, candidates[label]) for label in new}
        images, positions = [], []
        for label, indices in new.items():
            chosen = candidates[label][to_score[label]]
            stored_images = image_rows.take(self._storage, chosen.rows[: -len(indices)])
            images.append(torch.cat([stored_images, image_rows.take(batch.images, self._on_device(indices))]))
            positions.append(chosen.positions)
        scores = self._scores_of(model, images, positions, list(new))
        for label, new_scores in zip(new, scores, strict=True):
            of_class, chosen_indices = candidates[label], to_score[label]
            old_scores = of_class.scores[chosen_indices]
            smoothed = torch.lerp(old_scores, new_scores.double(), self.smoothing)
            of_class.scores[chosen_indices] = torch.where(old_scores.isnan(), new_scores.double(), smoothed)
            of_class.ages[chosen_indices] = self._updates
            self._scored.add(label)

    def _to_score(self, label: int, candidates: Candidates) -> Tensor:
        """Indices of the candidates to score: the stored samples with the oldest scores, and all in the batch."""
        n_stored, indices = len(self._slots[label]), torch.arange(len(candidates), device=self.device)
        n_rescored = n_stored if label not in self._scored else _n_rescored(self.refresh, n_stored)
        if n_rescored == n_stored:
            return indices
        # Of equal ages the first index is rescored first. One number for age and index avoids a stable sort of all.
        order = candidates.ages[:n_stored] * n_stored + indices[:n_stored]
        return torch.cat([order.topk(n_rescored, largest=False).indices, indices[n_stored:]])

    def _scores_of(
        self, model: Network, images: Sequence[Tensor], positions: Sequence[Tensor], classes: Sequence[int]
    ) -> list[Tensor]:
        """The scores (N,) of each class's images."""
        # Only a score of the user's own may need labels.
        labels = {"labels": classes} if isinstance(self.scorer, Scorer) else {}
        return self.scorer(model, images, positions, **labels)

    def _select(self, label: int, candidates: Candidates, quota: int) -> Candidates:
        """The candidates that a class keeps."""
        if label in self._scored:
            return candidates[self.selection(candidates.scores, quota)]
        return candidates[torch.arange(quota, device=self.device)]

    def _store(self, batch: Batch, retained: Mapping[int, Candidates], new: Mapping[int, np.ndarray]) -> None:
        """Store the retained samples of each class in its slots, after giving each class as many slots as it needs."""
        self._assign_slots({label: len(of_class) for label, of_class in retained.items()})
        for label in retained:
            self.labels[self._slots[label]] = label
            if label in new:
                self.tasks[self._slots[label]] = -1 if batch.task is None else batch.task
        slots_M = self._on_device(np.concatenate([self._slots[label] for label in retained]))
        samples = Candidates.cat(retained.values())
        if self.values or batch.values:
            self._move_values(batch, samples.rows, slots_M)
        self._row[slots_M] = image_rows.write_new(self._storage, batch.images, samples.rows, self._row[slots_M])
        self.positions[slots_M] = samples.positions
        self.scores[slots_M] = samples.scores
        self._age[slots_M] = samples.ages

    def _assign_slots(self, n_slots: Mapping[int, int]) -> None:
        """Give these classes as many slots; slots that one class gives up go to the classes that need more."""
        free = np.concatenate([self._slots[label][n:] for label, n in n_slots.items()])
        for label, n in n_slots.items():
            n_gained = max(n - len(self._slots[label]), 0)
            self._slots[label] = np.concatenate([self._slots[label][:n], free[:n_gained]])
            free = free[n_gained:]

    def _move_values(self, batch: Batch, retained_M: Tensor, slots_M: Tensor) -> None:
        """Move the values of the retained samples (`Candidates.rows`) to the slots that these get."""
        n_rows = len(self._storage)
        slot_of_row = torch.zeros(n_rows, dtype=torch.int64, device=self.device)
        slot_of_row[self._row] = torch.arange(self.size, device=self.device)
        is_stored_M = retained_M < n_rows
        from_M = torch.where(
            is_stored_M, slot_of_row[retained_M.clamp_max(n_rows - 1)], retained_M - n_rows + self.size
        )
        for name, of_batch in self._values_of(batch).items():
            self.values[name][slots_M] = torch.cat([self.values[name], of_batch])[from_M]

    # What all memories have

    @property
    def images(self) -> Tensor:
        """The images of all slots, a copy."""
        return self.images_at(torch.arange(self.size, device=self.device))

    def images_at(self, slots: Tensor) -> Tensor:
        return image_rows.take(self._storage, self._row[slots])

    def state(self) -> State:
        return {
            **super().state(),
            "slots": [(label, slots.tolist()) for label, slots in self._slots.items()],
            "scored": list(self._scored),
            "age": self._age[: self.n_stored].cpu().numpy(),
            "updates": self._updates,
            "scorer": self.scorer.state() if hasattr(self.scorer, "state") else {},
        }

    def restore(self, state: State, train_images_NHWC: np.ndarray) -> None:
        super().restore(state, train_images_NHWC)
        self._slots = {label: np.array(slots, dtype=np.int64) for label, slots in state["slots"]}
        self._scored, self._updates = set(state["scored"]), state["updates"]
        self._age[: self.n_stored] = torch.from_numpy(state["age"])
        if hasattr(self.scorer, "restore"):
            self.scorer.restore(state["scorer"])

    def check(self) -> bool:
        return self.scorer.check() if isinstance(self.scorer, Scorer) else True


def _by_class(labels: np.ndarray, start: int = 0) -> dict[int, np.ndarray]:
    """The indices of each class from `start` on, classes in the order of their first index."""
    classes = dict.fromkeys(labels[start:].tolist())
    return {label: start + np.flatnonzero(labels[start:] == label) for label in classes}


def _n_rescored(refresh: float, n_stored: int) -> int:
    return min(n_stored, math.ceil(refresh * n_stored - 1e-9) if refresh <= 1 else int(refresh))
