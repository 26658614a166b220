"""What all replay memories share: images on the device, labels and tasks on the host.

The host decides how many images each class keeps, and knows the label and the task of every slot. The device decides
which images these are. So no update waits for the device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ucl.machine.checkpoints import State, as_array, attributes, restore_attributes
from ucl.models import Network
from ucl.streams import Batch, Task

Indices = Sequence[int] | np.ndarray | Tensor


class Buffer(ABC):
    """A memory of `size` images, empty at first. A subclass defines the memory policy in `update`.

    A memory policy of your own, for example the last images of the stream (``population="mine:Fifo"``):

        class Fifo(Buffer):
            def update(self, model, batch):
                n = self.store(batch)
                rest = np.arange(n, len(batch))
                self.replace((self.n_seen + rest) % self.size, batch, rest)
                self.n_seen += len(batch)

    A policy that acts when a task ends defines `end_of_task` too.

    Values that belong to a sample, such as its loss or its logits, are put into `Batch.values`, by the method that
    learns the batch or in `update`. They enter `values` whenever a sample of the batch is stored, and stay with it:

        batch.values["loss"] = losses_of(model, batch.images, batch.labels)

    Args:
        size: slots.
        image_shape: (C, H, W).
        device: where the images live.
        seed: of `draw`.

    Attributes:
        images: (size, C, H, W), uint8, on the device; read-only.
        positions: (size,), int64, on the device: index of each image among the data set's training images.
        scores: (size,), float64, on the device: each image's last uncertainty score, NaN where it has none.
        values: by name (size, ...), on the device: what `Batch.values` had of each image; NaN (0 for whole numbers)
            where it had nothing. May be changed in place.
        labels: (size,), int64, numpy; -1 where a slot is empty.
        tasks: (size,), int64, numpy: the task of each image's batch, -1 where a slot is empty or the batch told none. A
            memory that chooses on the device, where the host does not see which image of a class stays, gives all
            images of a class the class's latest task.
        n_stored: slots in use; they are the first.
        n_seen: samples of the stream so far; `update` counts them.
        draw: numpy's generator, for a policy's random numbers; a checkpoint keeps its state.
    """

    _spare_rows = 0  # rows of the storage beyond the slots

    def __init__(
        self, size: int, image_shape: Sequence[int], device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        of_subclass = set(vars(self))
        channels, height, width = image_shape
        self.size = size
        self.device = torch.device(device)
        shape = size + self._spare_rows, height, width, channels
        self._storage = torch.zeros(shape, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        self.positions = torch.full((size,), -1, device=device)
        self.scores = torch.full((size,), math.nan, dtype=torch.float64, device=device)
        self.values: dict[str, Tensor] = {}
        self.labels = np.full(size, -1, dtype=np.int64)
        self.tasks = np.full(size, -1, dtype=np.int64)
        self.n_stored = 0
        self.n_seen = 0
        self.draw = np.random.default_rng(seed)
        self._saved = {*vars(self), "_saved"} - of_subclass  # attributes that `state` has or that never change

    @property
    def images(self) -> Tensor:
        """The images of all slots."""
        return self._storage

    def images_at(self, slots: Tensor) -> Tensor:
        """The images (N, C, H, W), uint8, of these slots (N,)."""
        return self._storage[slots]

    @abstractmethod
    def update(self, model: Network, batch: Batch) -> None:
        """Store what the memory policy keeps of a batch, which the model has learnt already.

        Uses `store` and `replace`, and adds the length of the batch to `n_seen`.

        Args:
            model: the network; `logits_of`, `losses_of` and `features_of` in `ucl.models.passes` give what it says of
                images.
            batch: the batch.
        """

    def end_of_task(self, model: Network, task: Task) -> None:  # noqa: B027
        """Do what the memory policy does once a task has been learnt; nothing by default.

        Args:
            model: the network.
            task: the task; its first ``len(task) * task.batch_size`` images were in batches.
        """

    def store(self, batch: Batch) -> int:
        """Store the first samples of a batch in empty slots, as many as there is room for; returns how many."""
        room = min(self.size - self.n_stored, len(batch))
        self._write(np.arange(self.n_stored, self.n_stored + room), batch, np.arange(room))
        self.n_stored += room
        return room

    def replace(self, slots: Indices, batch: Batch, chosen: Indices | None = None) -> None:
        """Overwrite slots in use with samples of a batch.

        Args:
            slots: (N,): which slots, from 0 to `n_stored` - 1. If a slot is there twice, the later sample counts.
            batch: the batch.
            chosen: (N,): which samples of the batch, one per slot; by default all, in order.

        Raises:
            ValueError: a slot is not in use, a sample does not exist, there are not as many samples as slots, or a
                tensor in `Batch.values` does not have one row per sample.
        """
        to = _indices("slots", slots, self.n_stored)
        source = np.arange(len(batch)) if chosen is None else _indices("chosen", chosen, len(batch))
        if len(to) != len(source):
            raise ValueError(f"{len(to)} slots for {len(source)} samples; give a slot per sample")
        last = dict(zip(to.tolist(), source.tolist(), strict=True))
        self._write(np.array(list(last), dtype=np.int64), batch, np.array(list(last.values()), dtype=np.int64))

    def state(self) -> State:
        """All that `restore` needs; images are given by their positions.

        Attributes that a subclass of the user's adds are included: numbers, text, lists, arrays, tensors and numpy's
        generators. A subclass with other state extends both methods.

        Raises:
            Unsaved: an attribute is of another type.
        """
        n = self.n_stored
        return {
            "positions": self.positions[:n].cpu().numpy(),
            "scores": self.scores[:n].cpu().numpy(),
            "values": {name: as_array(of_slot[:n]) for name, of_slot in self.values.items()},
            "labels": self.labels[:n].copy(),
            "tasks": self.tasks[:n].copy(),
            "n_seen": self.n_seen,
            "draw": self.draw.bit_generator.state,
            "added": attributes(self, self._saved),
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
        for name, values in state["values"].items():
            self._empty_values(name, torch.from_numpy(values).to(self.device))[:n] = torch.from_numpy(values)
        self.draw.bit_generator.state = state["draw"]
        restore_attributes(self, state["added"])

    def check(self) -> bool:
        """Whether the network gave finite logits wherever this memory scored it since the last call.

        Raises:
            InputError: it did, and the score is NaN or infinite.
        """
        return True

    def drawn_slots(self, n: int, exclude_task: int | None, draw: np.random.Generator) -> np.ndarray:
        """Slots in use, drawn uniformly without replacement.

        Args:
            n: how many; fewer are drawn if fewer are eligible.
            exclude_task: the task whose images are not drawn; None draws from the whole memory.
            draw: draws the slots.

        Returns:
            (N,), int64.
        """
        eligible = np.arange(self.n_stored)
        if exclude_task is not None:
            eligible = np.flatnonzero(self.tasks[: self.n_stored] != exclude_task)
        return draw.choice(eligible, min(n, len(eligible)), replace=False) if len(eligible) else eligible

    def sample(self, n: int, exclude_task: int | None, draw: np.random.Generator) -> tuple[Tensor, Tensor] | None:
        """The images and labels of `drawn_slots`.

        Returns:
            Images (n, C, H, W), uint8, and labels (n,), int64, on the device; fewer than n if fewer are eligible, and
            None if none is.
        """
        slots = self.drawn_slots(n, exclude_task, draw)
        if not len(slots):
            return None
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
        for name, of_batch in self._values_of(batch).items():
            self.values[name][to] = of_batch[source]

    def _values_of(self, batch: Batch) -> dict[str, Tensor]:
        """Of each name in `values` or in the batch's, the values (B, ...) of the samples of a batch."""
        for name, values in batch.values.items():
            if not isinstance(values, Tensor) or values.shape[:1] != (len(batch),):
                got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
                reason = f"is {got} for {len(batch)} samples; give a tensor with one row per sample"
                raise ValueError(f"batch.values[{name!r}] {reason}")
            if name not in self.values:
                self._empty_values(name, values.to(self.device))
        empty = {name: torch.full_like(of_slot[:1], _nothing(of_slot)) for name, of_slot in self.values.items()}
        return {
            name: batch.values[name].detach().to(self.device)
            if name in batch.values
            else row.expand(len(batch), *row.shape[1:])
            for name, row in empty.items()
        }

    def _empty_values(self, name: str, like: Tensor) -> Tensor:
        self.values[name] = like.new_full((self.size, *like.shape[1:]), _nothing(like))
        return self.values[name]


def _nothing(values: Tensor) -> float:
    return math.nan if values.is_floating_point() else 0


def _indices(name: str, given: Indices, n: int) -> np.ndarray:
    """Indices from 0 to n - 1 as a numpy array (N,), int64."""
    indices = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    indices = indices.reshape(-1) if indices.ndim == 0 or indices.size else np.zeros(0, dtype=np.int64)
    if indices.dtype.kind not in "iu":
        raise ValueError(f"{name} are {indices.dtype}; give whole numbers")
    outside = indices[(indices < 0) | (indices >= n)].tolist()
    if outside:
        asked = f"give numbers from 0 to {n - 1}" if n else "there are none yet; use store"
        raise ValueError(f"{name} contain {outside[0]}; {asked}")
    return indices.astype(np.int64)
