"""Replay memories: fixed tensors on the device, and the rules by which they take in a stream.

The labels and tasks of the slots are bookkept on the host, where they are known anyway, so that no update waits for
the device: which images of a class stay is decided there, how many is decided here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ucl.buffers.selection import quotas
from ucl.machine.checkpoints import State
from ucl.models.slim_resnet import SlimResNet18
from ucl.scorers import RandomScores, Scorer
from ucl.streams.class_incremental import Batch

Selection = Callable[[Tensor, int], Tensor]


class Buffer(ABC):
    """A memory of `size` images, empty at first. `update` is the rule; this class holds what all rules share.

    Args:
        size: slots.
        image_shape: (C, H, W).
        device: where the images live.

    Attributes:
        images: (size, C, H, W), uint8, on the device.
        positions: (size,), int64, on the device: where each image stands in the data set's training images.
        scores: (size,), float64, on the device: each image's last uncertainty score, NaN where it has none.
        labels, tasks: (size,), int64, numpy; -1 where a slot is empty.
        n_stored: slots in use; they are the first.
        n_seen: samples of the stream so far.
    """

    def __init__(self, size: int, image_shape: Sequence[int], device: torch.device | str = "cpu") -> None:
        channels, height, width = image_shape
        self.size = size
        self.images = torch.zeros(size, height, width, channels, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        self.positions = torch.full((size,), -1, device=device)
        self.scores = torch.full((size,), math.nan, dtype=torch.float64, device=device)
        self.labels = np.full(size, -1, dtype=np.int64)
        self.tasks = np.full(size, -1, dtype=np.int64)
        self.n_stored = 0
        self.n_seen = 0

    @abstractmethod
    def update(self, model: SlimResNet18, batch: Batch) -> None:
        """Take in a batch by this memory's rule; the model has learnt it already."""

    def state(self) -> State:
        """All that `restore` needs; of the images their positions. A rule with more state than this adds its own."""
        n = self.n_stored
        return {
            "positions": self.positions[:n].cpu().numpy(),
            "scores": self.scores[:n].cpu().numpy(),
            "labels": self.labels[:n].copy(),
            "tasks": self.tasks[:n].copy(),
            "n_seen": self.n_seen,
        }

    def restore(self, state: State, train_images_NHWC: np.ndarray) -> None:
        """Make an empty memory the one that `state` was taken of.

        Args:
            state: see `state`.
            train_images_NHWC: of the data set, in which the positions count.
        """
        n = self.n_stored = len(state["labels"])
        self.n_seen = state["n_seen"]
        self.labels[:n], self.tasks[:n] = state["labels"], state["tasks"]
        self.positions[:n] = torch.from_numpy(state["positions"])
        self.scores[:n] = torch.from_numpy(state["scores"])
        self.images[:n] = torch.from_numpy(train_images_NHWC[state["positions"]]).permute(0, 3, 1, 2)

    def check(self) -> bool:
        """Whether the network gave finite logits wherever this memory scored it since the last call.

        Raises:
            InputError: it did, and the score is NaN or infinite.
        """
        return True

    def sample(self, n: int, exclude_task: int, draw: np.random.Generator) -> tuple[Tensor, Tensor] | None:
        """Draw stored images uniformly, without replacement, those of one task excluded.

        Returns:
            images (n, C, H, W) uint8 and labels (n,) int64, on the device: fewer where fewer are eligible; None where
            none is.
        """
        eligible = np.flatnonzero(self.tasks[: self.n_stored] != exclude_task)
        if not len(eligible):
            return None
        slots = draw.choice(eligible, min(n, len(eligible)), replace=False)
        labels = torch.from_numpy(self.labels[slots])
        return self.images[self._places(slots)], labels.to(self.images.device, non_blocking=True)

    def _places(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(self.images.device, non_blocking=True)

    def _write(self, slots: np.ndarray, batch: Batch, chosen: np.ndarray) -> None:
        """Put the chosen samples of a batch into the slots, which are distinct."""
        if not len(slots):
            return
        to, source = self._places(slots), self._places(chosen)
        self.images[to] = batch.images[source]
        self.positions[to] = batch.positions[source]
        self.scores[to] = math.nan
        self.labels[slots] = batch.host_labels[chosen]
        self.tasks[slots] = batch.task

    def _fill(self, batch: Batch) -> int:
        """Store what there is room for; returns how many samples of the batch that were."""
        room = min(self.size - self.n_stored, len(batch))
        self._write(np.arange(self.n_stored, self.n_stored + room), batch, np.arange(room))
        self.n_stored += room
        self.n_seen += room
        return room

    def _write_last(self, slot_of: Mapping[int, int], batch: Batch) -> None:
        """Write {slot: place in the batch}; a later sample has overwritten an earlier one in the mapping already."""
        self._write(np.array(list(slot_of), dtype=np.int64), batch, np.array(list(slot_of.values()), dtype=np.int64))


class ReservoirBuffer(Buffer):
    """Reservoir sampling: every sample seen so far is in memory with the same probability (Vitter, 1985).

    Args:
        size, image_shape, device: see `Buffer`.
        seed: of the draws.
        inclusive: a full memory draws the new sample's place among all samples seen, itself included; False draws it
            among those before it, which favours recent samples slightly.
    """

    def __init__(
        self,
        size: int,
        image_shape: Sequence[int],
        device: torch.device | str = "cpu",
        seed: int = 0,
        inclusive: bool = True,
    ) -> None:
        super().__init__(size, image_shape, device)
        self.inclusive = inclusive
        self._draw = np.random.default_rng(seed)

    def state(self) -> State:
        return {**super().state(), "draw": self._draw.bit_generator.state}

    def restore(self, state: State, train_images_NHWC: np.ndarray) -> None:
        super().restore(state, train_images_NHWC)
        self._draw.bit_generator.state = state["draw"]

    def update(self, model: SlimResNet18, batch: Batch) -> None:
        stored = self._fill(batch)
        rest = np.arange(stored, len(batch))
        ranks = self.n_seen + np.arange(len(rest)) + int(self.inclusive)
        places = (self._draw.random(len(rest)) * ranks).astype(np.int64)
        kept = places < self.size
        self._write_last(dict(zip(places[kept].tolist(), rest[kept].tolist(), strict=True)), batch)
        self.n_seen += len(rest)


class ClassBalancedBuffer(Buffer):
    """Class-balancing reservoir sampling (Chrysakis & Moens, 2020, algorithm 1).

    A full memory gives a sample of a class that was never its largest the place of a random sample of the largest
    class; within a class that is or once was the largest, it samples a reservoir.

    Args:
        size, image_shape, device: see `Buffer`.
        seed: of the draws.
    """

    def __init__(
        self, size: int, image_shape: Sequence[int], device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        super().__init__(size, image_shape, device)
        self._draw = np.random.default_rng(seed)
        self._seen_of: dict[int, int] = {}
        self._full: set[int] = set()

    def state(self) -> State:
        own = {"draw": self._draw.bit_generator.state, "seen_of": list(self._seen_of.items()), "full": list(self._full)}
        return {**super().state(), **own}

    def restore(self, state: State, train_images_NHWC: np.ndarray) -> None:
        super().restore(state, train_images_NHWC)
        self._draw.bit_generator.state = state["draw"]
        self._seen_of, self._full = dict(state["seen_of"]), set(state["full"])

    def update(self, model: SlimResNet18, batch: Batch) -> None:
        stored = self._fill(batch)
        labels = self.labels.copy()  # what the slots will hold, sample by sample
        slot_of: dict[int, int] = {}
        for place, label in enumerate(batch.host_labels.tolist()):
            self._seen_of[label] = self._seen_of.get(label, 0) + 1
            if place < stored:
                continue
            slot = self._slot_for(label, labels)
            if slot is not None:
                slot_of[slot] = place
                labels[slot] = label
        self._write_last(slot_of, batch)
        self.n_seen += len(batch) - stored

    def _slot_for(self, label: int, labels: np.ndarray) -> int | None:
        classes, counts = np.unique(labels, return_counts=True)
        largest = classes[counts == counts.max()]
        self._full.update(largest.tolist())
        if label not in self._full:
            return int(self._draw.choice(np.flatnonzero(labels == self._draw.choice(largest))))
        own = np.flatnonzero(labels == label)
        if self._draw.random() < len(own) / self._seen_of[label]:
            return int(self._draw.choice(own))
        return None


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
