"""The memory that keeps images by their uncertainty (paper, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ucl.buffers.buffer import Buffer
from ucl.buffers.selection import Selection, quotas
from ucl.machine.checkpoints import State
from ucl.models import Network
from ucl.scorers import RandomScores, Scorer
from ucl.streams import Batch


@dataclass
class Candidates:
    """The samples of one class that compete for its quota: first those stored, then those in the batch.

    Attributes:
        rows: (K,), int64: the row of the storage that holds the image; for the i-th sample of the batch, the number of
            rows plus i.
        positions: (K,), int64: indices of the images among the data set's training images.
        scores: (K,), float64; NaN where a sample has none yet.
        ages: (K,), int64: the update in which each was scored.
    """

    rows: Tensor
    positions: Tensor
    scores: Tensor
    ages: Tensor

    def __getitem__(self, chosen: Tensor) -> Candidates:
        return Candidates(self.rows[chosen], self.positions[chosen], self.scores[chosen], self.ages[chosen])

    @staticmethod
    def cat(parts: Iterable[Candidates]) -> Candidates:
        """All candidates of the parts, in order."""
        return Candidates(*map(torch.cat, zip(*((p.rows, p.positions, p.scores, p.ages) for p in parts), strict=True)))


class UncertaintyBuffer(Buffer):
    """Class-balanced memory in which each class keeps its quota by an uncertainty score (paper, Algorithm 1).

    As long as there is room, every sample is stored. Then each class of a batch has candidates: its stored samples and
    those in the batch. They are scored with the current model, and the selection keeps the quota. If the quota of a
    class that is not in the batch shrinks because new classes came, its stored scores decide which samples leave; of
    samples without a score, the latest leave first.

    Images are not moved: `_row` says which row of the storage each slot has, and only new images are written.

    Args:
        size, image_shape, device: see `Buffer`.
        scorer: takes the model and, for each class, images (N, C, H, W) and positions (N,); returns scores (N,) for
            each class.
        selection: takes scores (N,) and k, and returns the k indices to keep; see `ucl.selection`.
        refresh: how many stored samples of a class are rescored per update, those with the oldest scores first: a
            share in (0, 1], or a number above 1. A class that has no scores yet is scored whole.
        smoothing: weight of the new score where a stored sample has one already, in (0, 1].
    """

    _spare_rows = 1  # takes what is written of samples that are not kept: the host does not know which these are

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
        super().__init__(size, image_shape, device)
        self.scorer, self.selection, self.refresh, self.smoothing = scorer, selection, refresh, smoothing
        self._slots: dict[int, np.ndarray] = {}  # of each class, in the order in which the classes came
        self._scored: set[int] = set()  # classes
        self._row = torch.arange(size, device=device)
        self._age = torch.zeros(size, dtype=torch.int64, device=device)
        self._updates = 0
        self._saved |= set(vars(self))

    def update(self, model: Network, batch: Batch) -> None:
        n_stored = self._store_while_there_is_room(batch)
        if n_stored == len(batch):
            return
        self._updates += 1
        new = _by_class(batch.host_labels, start=n_stored)  # indices of the samples in the batch
        for label in new:
            self._slots.setdefault(label, np.array([], dtype=np.int64))
        quota = quotas({c: len(slots) + len(new.get(c, ())) for c, slots in self._slots.items()}, self.size)

        classes = [c for c, slots in self._slots.items() if c in new or quota[c] < len(slots)]
        candidates = {c: self._candidates(c, batch, new.get(c)) for c in classes}
        self._score(model, batch, candidates, new)
        kept = {c: candidates[c][self._selected(c, candidates[c].scores, quota[c])] for c in classes}
        self._store(batch, kept, new)

    @property
    def images(self) -> Tensor:
        """The images of all slots, a copy."""
        return self.images_at(torch.arange(self.size, device=self.device))

    def images_at(self, slots: Tensor) -> Tensor:
        return _take(self._storage, self._row[slots])

    def state(self) -> State:
        return {
            **super().state(),
            "slots": [(label, slots.tolist()) for label, slots in self._slots.items()],
            "scored": list(self._scored),
            "age": self._age[: self.n_stored].cpu().numpy(),
            "updates": self._updates,
            "scorer": self.scorer.state() if isinstance(self.scorer, (Scorer, RandomScores)) else {},
        }

    def restore(self, state: State, train_images_NHWC: np.ndarray) -> None:
        super().restore(state, train_images_NHWC)
        self._slots = {label: np.array(slots, dtype=np.int64) for label, slots in state["slots"]}
        self._scored, self._updates = set(state["scored"]), state["updates"]
        self._age[: self.n_stored] = torch.from_numpy(state["age"])
        if isinstance(self.scorer, (Scorer, RandomScores)):
            self.scorer.restore(state["scorer"])

    def check(self) -> bool:
        return self.scorer.check() if isinstance(self.scorer, Scorer) else True

    # The steps of an update

    def _store_while_there_is_room(self, batch: Batch) -> int:
        """Store the first samples of the batch; returns how many."""
        start = self.n_stored
        n_stored = self.store(batch)
        self.n_seen += len(batch)
        for label, indices in _by_class(batch.host_labels[:n_stored]).items():
            before = self._slots.get(label, np.array([], dtype=np.int64))
            self._slots[label] = np.concatenate([before, start + indices])
        return n_stored

    def _candidates(self, label: int, batch: Batch, new: np.ndarray | None) -> Candidates:
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
            asked = candidates[label][to_score[label]]
            stored_images = _take(self._storage, asked.rows[: -len(indices)])
            images.append(torch.cat([stored_images, _take(batch.images, self._on_device(indices))]))
            positions.append(asked.positions)
        for label, scores in zip(new, self._scores_of(model, images, positions, list(new)), strict=True):
            of, chosen = candidates[label], to_score[label]
            smoothed = torch.lerp(of.scores[chosen], scores.double(), self.smoothing)
            of.scores[chosen] = torch.where(of.scores[chosen].isnan(), scores.double(), smoothed)
            of.ages[chosen] = self._updates
            self._scored.add(label)

    def _scores_of(
        self, model: Network, images: Sequence[Tensor], positions: Sequence[Tensor], classes: Sequence[int]
    ) -> list[Tensor]:
        """The scores (N,) of each class's images."""
        # Only a score of the user's own may ask for labels.
        labels = {"labels": classes} if isinstance(self.scorer, Scorer) else {}
        return self.scorer(model, images, positions, **labels)

    def _to_score(self, label: int, candidates: Candidates) -> Tensor:
        """Indices of the candidates to score: those stored with the oldest scores, and all in the batch."""
        n_stored, indices = len(self._slots[label]), torch.arange(len(candidates.rows), device=self.device)
        n_rescored = n_stored if label not in self._scored else _n_rescored(self.refresh, n_stored)
        if n_rescored == n_stored:
            return indices
        # Of equal ages the first comes first. Age and index in one number, so that not all need to be sorted.
        order = candidates.ages[:n_stored] * n_stored + indices[:n_stored]
        return torch.cat([order.topk(n_rescored, largest=False).indices, indices[n_stored:]])

    def _selected(self, label: int, scores: Tensor, quota: int) -> Tensor:
        """Indices of the candidates that a class keeps."""
        if label in self._scored:
            return self.selection(scores, quota)
        return torch.arange(quota, device=self.device)

    def _store(self, batch: Batch, kept: Mapping[int, Candidates], new: Mapping[int, np.ndarray]) -> None:
        """Give each class as many slots as it keeps samples, and store these there."""
        free = np.concatenate([self._slots[label][len(of.rows) :] for label, of in kept.items()])
        for label, of in kept.items():
            n_gained = max(len(of.rows) - len(self._slots[label]), 0)
            self._slots[label] = np.concatenate([self._slots[label][: len(of.rows)], free[:n_gained]])
            free = free[n_gained:]
            self.labels[self._slots[label]] = label
            if label in new:
                self.tasks[self._slots[label]] = -1 if batch.task is None else batch.task
        slots = self._on_device(np.concatenate([self._slots[label] for label in kept]))
        every = Candidates.cat(kept.values())
        if self.values or batch.values:
            self._carry_values(batch, every.rows, slots)
        self._row[slots] = self._write_new_images(batch, every.rows, self._row[slots])
        self.positions[slots], self.scores[slots], self._age[slots] = every.positions, every.scores, every.ages

    def _carry_values(self, batch: Batch, kept_rows_M: Tensor, slots_M: Tensor) -> None:
        """Let the values of stored samples, and of samples of the batch, follow them to the slots that they get."""
        n_rows = len(self._storage)
        slot_of_row = torch.zeros(n_rows, dtype=torch.int64, device=self.device)
        slot_of_row[self._row] = torch.arange(self.size, device=self.device)
        from_M = torch.where(
            kept_rows_M < n_rows, slot_of_row[kept_rows_M.clamp_max(n_rows - 1)], kept_rows_M - n_rows + self.size
        )
        for name, of_batch in self._values_of(batch).items():
            self.values[name][slots_M] = torch.cat([self.values[name], of_batch])[from_M]

    def _write_new_images(self, batch: Batch, kept_rows_M: Tensor, rows_M: Tensor) -> Tensor:
        """Write the images of the batch that are kept to rows that are given up.

        Args:
            batch: the batch.
            kept_rows_M: `Candidates.rows` of what is kept.
            rows_M: the rows of the slots of these classes so far.

        Returns:
            The row of each image that is kept (M,).
        """
        n_rows, spare = len(self._storage), self.size
        is_new_M = kept_rows_M >= n_rows
        given_up = torch.ones(n_rows, dtype=torch.bool, device=self.device)
        given_up[kept_rows_M.clamp_max(spare)] = False
        free_M = _in_front(rows_M, given_up[rows_M])
        nth_new_M = (is_new_M.cumsum(0) - 1).clamp_min(0)
        row_M = torch.where(is_new_M, free_M[nth_new_M], kept_rows_M)
        row_of_batch = torch.full((len(batch) + 1,), spare, device=self.device)  # the last takes what is not new
        row_of_batch[torch.where(is_new_M, kept_rows_M - n_rows, len(batch))] = row_M
        _as_rows(self._storage)[row_of_batch[:-1]] = _as_rows(batch.images)
        return row_M


def _by_class(labels: np.ndarray, start: int = 0) -> dict[int, np.ndarray]:
    """The indices of each class from `start` on, classes in the order in which they come."""
    classes = dict.fromkeys(labels[start:].tolist())
    return {label: start + np.flatnonzero(labels[start:] == label) for label in classes}


def _in_front(values_M: Tensor, chosen_M: Tensor) -> Tensor:
    """(M,): the chosen values first, in order; what follows them has no meaning. Does not wait for the device."""
    n = len(values_M)
    target_M = torch.where(chosen_M, chosen_M.cumsum(0) - 1, n)
    front = values_M.new_zeros(n + 1)
    front[target_M] = values_M
    return front[:-1]


def _as_rows(images_NCHW: Tensor) -> Tensor:
    """One row per image, the same memory if that is channels last; as words, as indexing copies value by value."""
    bytes_NR = images_NCHW.permute(0, 2, 3, 1).flatten(1)
    return bytes_NR.view(torch.int64) if bytes_NR.shape[1] % 8 == 0 else bytes_NR


def _take(images_NCHW: Tensor, indices: Tensor) -> Tensor:
    """The images of these indices, channels last."""
    _, channels, height, width = images_NCHW.shape
    taken = _as_rows(images_NCHW)[indices].view(torch.uint8)
    return taken.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def _n_rescored(refresh: float, n_stored: int) -> int:
    return min(n_stored, math.ceil(refresh * n_stored - 1e-9) if refresh <= 1 else int(refresh))
