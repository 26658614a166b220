"""Replay memories: fixed tensors on the device, and the rules by which they take in a stream.

The labels and tasks of the slots are bookkept on the host, where they are known anyway, so that no update waits for
the device: which images of a class stay is decided there, how many is decided here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ucl.machine.checkpoints import State
from ucl.models import SlimResNet18
from ucl.streams import Batch


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
