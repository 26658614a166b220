"""The memory that keeps images by their uncertainty (paper, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ucl.buffers.buffer import Buffer
from ucl.buffers.selection import Selection, quotas
from ucl.machine.checkpoints import State
from ucl.models import SlimResNet18
from ucl.scorers import RandomScores, Scorer
from ucl.streams import Batch


class UncertaintyBuffer(Buffer):
    """Class-balanced memory whose classes keep their quota by an uncertainty score (paper, algorithm 1).

    While there is room, samples are stored. Then, for each class of a batch, its stored samples and those of the
    batch are scored with the current model and the selection keeps the quota. A class that is not in the batch, but
    whose quota shrinks because new classes came, gives up its worst by the scores it has; samples that were never
    scored count as equal and leave latest first.

    Args:
        size, image_shape, device: see `Buffer`.
        scorer: the model and, for each class of the batch, its images (N, C, H, W) and their positions (N,) -> for
            each (N,) scores.
        selection: scores and k -> the k positions to keep, see `ucl.selection`.
        refresh: the stored samples of a class that are scored anew, the oldest scores first: a share in (0, 1], or a
            number above 1. A class that was not scored before is scored whole.
        smoothing: share of the new score where a stored sample has one already, in (0, 1].
    """

    def __init__(
        self,
        size: int,
        image_shape: Sequence[int],
        device: torch.device | str,
        scorer: Scorer | Callable[[SlimResNet18, Sequence[Tensor], Sequence[Tensor]], list[Tensor]],
        selection: Selection,
        refresh: float = 1.0,
        smoothing: float = 1.0,
    ) -> None:
        super().__init__(size, image_shape, device)
        self.scorer, self.selection, self.refresh, self.smoothing = scorer, selection, refresh, smoothing
        self._slots: dict[int, np.ndarray] = {}  # of each class, in the order in which the classes came
        self._scored: set[int] = set()
        self._age = torch.zeros(size, dtype=torch.int64, device=self.images.device)  # update of the last score
        self._updates = 0

    def update(self, model: SlimResNet18, batch: Batch) -> None:
        start = self.n_stored
        stored = self._fill(batch)
        for label in dict.fromkeys(batch.host_labels[:stored].tolist()):
            slots = start + np.flatnonzero(batch.host_labels[:stored] == label)
            self._slots[label] = np.concatenate([self._slots.get(label, np.array([], dtype=np.int64)), slots])
        if stored == len(batch):
            return
        self.n_seen += len(batch) - stored
        self._updates += 1
        places = {
            label: stored + np.flatnonzero(batch.host_labels[stored:] == label)
            for label in dict.fromkeys(batch.host_labels[stored:].tolist())
        }
        for label in places:
            self._slots.setdefault(label, np.array([], dtype=np.int64))
        quota = quotas({c: len(s) + len(places.get(c, ())) for c, s in self._slots.items()}, self.size)
        scores = dict(zip(places, self._score(model, batch, places), strict=True))
        self._keep(batch, places, quota, scores)

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

    def _score(
        self, model: SlimResNet18, batch: Batch, places: Mapping[int, np.ndarray]
    ) -> list[tuple[Tensor, Tensor]]:
        """For each class of the batch: scores and their ages, of its stored samples, then of those in the batch."""
        asked, positions, anew = [], [], []
        for label, of_batch in places.items():
            slots = self._places(self._slots[label])
            n = len(slots)
            n_anew = n if label not in self._scored else _refreshed(self.refresh, n)
            if n_anew < n:
                oldest = torch.argsort(self._age[slots], stable=True)[:n_anew]
            else:
                oldest = torch.arange(n, device=slots.device)
            anew.append((slots, oldest))
            new = self._places(of_batch)
            asked.append(torch.cat([self.images[slots[oldest]], batch.images[new]]))
            positions.append(torch.cat([self.positions[slots[oldest]], batch.positions[new]]))
            self._scored.add(label)
        scored = []
        for (slots, oldest), fresh in zip(anew, self.scorer(model, asked, positions), strict=True):
            n_anew = len(oldest)
            scores, ages = self.scores[slots], self._age[slots]
            fresh_of_stored, fresh_of_batch = fresh[:n_anew], fresh[n_anew:]
            smooth = torch.lerp(scores[oldest], fresh_of_stored, self.smoothing)
            scores[oldest] = torch.where(scores[oldest].isnan(), fresh_of_stored, smooth)
            ages[oldest] = self._updates
            scored.append(
                (
                    torch.cat([scores, fresh_of_batch]),
                    torch.cat([ages, torch.full_like(fresh_of_batch, self._updates, dtype=torch.int64)]),
                )
            )
        return scored

    def _keep(
        self,
        batch: Batch,
        places: Mapping[int, np.ndarray],
        quota: Mapping[int, int],
        scored: Mapping[int, tuple[Tensor, Tensor]],
    ) -> None:
        changed = [c for c, slots in self._slots.items() if c in places or quota[c] < len(slots)]
        free = np.concatenate([self._slots[c][quota[c] :] for c in changed])
        own_images, batch_images = _rows(self.images), _rows(batch.images)
        kept: list[tuple[Tensor, ...]] = []
        for label in changed:
            slots = self._places(self._slots[label])
            images, positions = own_images[slots], self.positions[slots]
            if label in places:
                new = self._places(places[label])
                images = torch.cat([images, batch_images[new]])
                positions = torch.cat([positions, batch.positions[new]])
                scores, ages = scored[label]
            else:
                scores, ages = self.scores[slots], self._age[slots]
            if label in self._scored:
                keep = self.selection(scores, quota[label])
            else:
                keep = torch.arange(quota[label], device=scores.device)
            kept.append((images[keep], positions[keep], scores[keep], ages[keep]))
            gained = quota[label] - len(self._slots[label])
            self._slots[label] = np.concatenate([self._slots[label][: quota[label]], free[: max(gained, 0)]])
            free = free[max(gained, 0) :]
            self.labels[self._slots[label]] = label
            if label in places:
                self.tasks[self._slots[label]] = batch.task
        to = self._places(np.concatenate([self._slots[c] for c in changed]))
        for own, values in zip(
            (own_images, self.positions, self.scores, self._age), zip(*kept, strict=True), strict=True
        ):
            own[to] = torch.cat(values)


def _rows(images_NCHW: Tensor) -> Tensor:
    """A row an image, the same memory where that is channels last; in words, as indexing moves value after value."""
    bytes_NR = images_NCHW.permute(0, 2, 3, 1).flatten(1)
    return bytes_NR.view(torch.int64) if bytes_NR.shape[1] % 8 == 0 else bytes_NR


def _refreshed(refresh: float, n_stored: int) -> int:
    return min(n_stored, math.ceil(refresh * n_stored - 1e-9) if refresh <= 1 else int(refresh))
