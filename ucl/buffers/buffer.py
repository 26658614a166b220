"""What all replay memories share: images on the device, labels and tasks on the host.

The host decides how many images each class keeps, and knows the label and the task of every slot. The device decides
which images these are. So no update waits for the device.
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
    """A memory of `size` images, empty at first. A subclass defines the memory policy in `update`.

    Args:
        size: slots.
        image_shape: (C, H, W).
        device: where the images live.

    Attributes:
        images: (size, C, H, W), uint8, on the device; read-only.
        positions: (size,), int64, on the device: index of each image among the data set's training images.
        scores: (size,), float64, on the device: each image's last uncertainty score, NaN where it has none.
        labels: (size,), int64, numpy; -1 where a slot is empty.
        tasks: (size,), int64, numpy: the task of each image's batch, -1 where a slot is empty or the batch told none. A
            memory that chooses on the device, where the host does not see which image of a class stays, gives all
            images of a class the class's latest task.
        n_stored: slots in use; they are the first.
        n_seen: samples of the stream so far.
    """

    _spare_rows = 0  # rows of the storage beyond the slots

    def __init__(self, size: int, image_shape: Sequence[int], device: torch.device | str = "cpu") -> None:
        channels, height, width = image_shape
        self.size = size
        self.device = torch.device(device)
        shape = size + self._spare_rows, height, width, channels
        self._storage = torch.zeros(shape, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        self.positions = torch.full((size,), -1, device=device)
        self.scores = torch.full((size,), math.nan, dtype=torch.float64, device=device)
        self.labels = np.full(size, -1, dtype=np.int64)
        self.tasks = np.full(size, -1, dtype=np.int64)
        self.n_stored = 0
        self.n_seen = 0

    @property
    def images(self) -> Tensor:
        """The images of all slots."""
        return self._storage

    def images_at(self, slots: Tensor) -> Tensor:
        """The images (N, C, H, W), uint8, of these slots (N,)."""
        return self._storage[slots]

    @abstractmethod
    def update(self, model: SlimResNet18, batch: Batch) -> None:
        """Store what the memory policy keeps of a batch, which the model has learnt already."""

    def state(self) -> State:
        """All that `restore` needs; images are given by their positions. A subclass adds what it has beyond this."""
        n = self.n_stored
        return {
            "positions": self.positions[:n].cpu().numpy(),
            "scores": self.scores[:n].cpu().numpy(),
            "labels": self.labels[:n].copy(),
            "tasks": self.tasks[:n].copy(),
            "n_seen": self.n_seen,
        }

    def restore(self, state: State, train_images_NHWC: np.ndarray) -> None:
        """Make an empty memory equal to the one that `state` was taken of.

        Args:
            state: see `state`.
            train_images_NHWC: of the data set, which the positions index.
        """
        n = self.n_stored = len(state["labels"])
        self.n_seen = state["n_seen"]
        self.labels[:n], self.tasks[:n] = state["labels"], state["tasks"]
        self.positions[:n] = torch.from_numpy(state["positions"])
        self.scores[:n] = torch.from_numpy(state["scores"])
        self._storage[:n] = torch.from_numpy(train_images_NHWC[state["positions"]]).permute(0, 3, 1, 2)

    def check(self) -> bool:
        """Whether the network gave finite logits wherever this memory scored it since the last call.

        Raises:
            InputError: it did, and the score is NaN or infinite.
        """
        return True

    def sample(self, n: int, exclude_task: int | None, draw: np.random.Generator) -> tuple[Tensor, Tensor] | None:
        """Draw stored images uniformly, without replacement.

        Args:
            n: how many.
            exclude_task: the task whose images are not drawn; None draws from the whole memory.
            draw: draws the slots.

        Returns:
            Images (n, C, H, W), uint8, and labels (n,), int64, on the device; fewer than n if fewer are eligible, and
            None if none is.
        """
        eligible = np.arange(self.n_stored)
        if exclude_task is not None:
            eligible = np.flatnonzero(self.tasks[: self.n_stored] != exclude_task)
        if not len(eligible):
            return None
        slots = draw.choice(eligible, min(n, len(eligible)), replace=False)
        labels = torch.from_numpy(self.labels[slots])
        return self.images_at(self._on_device(slots)), labels.to(self.device, non_blocking=True)

    def _on_device(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(self.device, non_blocking=True)

    def _write(self, slots: np.ndarray, batch: Batch, chosen: np.ndarray) -> None:
        """Store the chosen samples of a batch in these slots, which are distinct."""
        if not len(slots):
            return
        to, source = self._on_device(slots), self._on_device(chosen)
        self._storage[to] = batch.images[source]
        self.positions[to] = batch.positions[source]
        self.scores[to] = math.nan
        self.labels[slots] = batch.host_labels[chosen]
        self.tasks[slots] = -1 if batch.task is None else batch.task

    def _fill(self, batch: Batch) -> int:
        """Store samples of the batch as long as there is room; returns how many were stored."""
        room = min(self.size - self.n_stored, len(batch))
        self._write(np.arange(self.n_stored, self.n_stored + room), batch, np.arange(room))
        self.n_stored += room
        self.n_seen += room
        return room

    def _write_last(self, slot_of: Mapping[int, int], batch: Batch) -> None:
        """Store a sample of the batch in each slot: {slot: index in the batch}. Of two samples the later one counts."""
        self._write(np.array(list(slot_of), dtype=np.int64), batch, np.array(list(slot_of.values()), dtype=np.int64))
