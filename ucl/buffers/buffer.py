"""The base class of all replay memories: images on the device, labels and tasks on the host.

The host knows the label of every slot, and can decide how many images each class keeps. The device can decide which
images these are. An update then never waits for the device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucl.errors import InputError
from ucl.models import Network
from ucl.streams import Batch, Task

Indices = Sequence[int] | np.ndarray | Tensor
"""Indices of slots or of the samples of a batch, as `Buffer.replace` takes them."""


class Buffer(ABC):
    """A memory of `size` images, empty at first. A subclass defines the memory policy in `update`.

    Your own memory policy, for example one that keeps the last images of the stream (``population="mine:Fifo"``):

        import numpy as np
        from ucl.buffers import Buffer

        class Fifo(Buffer):
            def update(self, model, batch):  # a ucl.streams.Batch
                n = self.store(batch)
                rest = np.arange(n, len(batch))
                self.replace((self.n_seen + rest) % self.size, batch, rest)
                self.n_seen += len(batch)

    A policy that acts at the end of a task also defines `end_of_task`.

    Values of the samples, such as losses or logits, are put into `Batch.values`, by the method that learns the batch or
    in `update`. When a sample is stored, its values are stored in `values`, and follow it from slot to slot. All stored
    samples have values of the same names:

        batch.values["loss"] = losses_of(model, batch.images, batch.labels)

    Args:
        size: number of slots.
        image_shape: (C, H, W).
        device: device of the images.
        seed: seed of `draw`.

    Attributes:
        images: (size, C, H, W), uint8, on the device; read-only.
        positions: (size,), int64, on the device: index of each image among the data set's training images.
        scores: (size,), float64, on the device: the number by which the policy chose each image, last computed for it,
            such as an uncertainty score, a distance, a rank or a measure; NaN without one. The policy's class says
            whether it keeps low or high numbers.
        values: tensors (size, ...) by name, on the device: the values of each image in its `Batch.values`; NaN (0 for
            whole numbers) in empty slots. May be changed in place.
        labels: (size,), int64, numpy; -1 for an empty slot.
        tasks: (size,), int64, numpy: the task of each image's batch; -1 for an empty slot or a batch without a task
            number. In an `UncertaintyBuffer` it is the latest task of the image's class: the device decides which
            images of a class stay, so the host cannot know their tasks.
        n_stored: number of slots in use; these are the first ones.
        n_seen: number of samples of the stream so far; `update` counts them.
        draw: numpy's generator for a policy's random numbers.
    """

    def __init__(
        self, size: int, image_shape: Sequence[int], device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        channels, height, width = image_shape
        self.size = size
        self.device = torch.device(device)
        shape = size, height, width, channels
        self.images = torch.zeros(shape, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        self.positions = torch.full((size,), -1, device=device)
        self.scores = torch.full((size,), math.nan, dtype=torch.float64, device=device)
        self.values: dict[str, Tensor] = {}
        self.labels = np.full(size, -1, dtype=np.int64)
        self.tasks = np.full(size, -1, dtype=np.int64)
        self.n_stored = 0
        self.n_seen = 0
        self.draw = np.random.default_rng(seed)

    def images_at(self, slots: Tensor) -> Tensor:
        """The images (N, C, H, W), uint8, of these slots (N,)."""
        return as_images(as_words(self.images)[slots], self.images.shape[1:])

    def samples_at(self, slots: np.ndarray) -> tuple[Tensor, Tensor]:
        """Images (N, C, H, W), uint8, and labels (N,), int64, of these slots (N,), on the device."""
        return self.images_at(self._on_device(slots)), self._on_device(self.labels[slots])

    @abstractmethod
    def update(self, model: Network, batch: Batch) -> None:
        """Store the samples of a batch that the memory policy keeps. The model has learnt the batch already.

        Uses `store` and `replace`, and adds the length of the batch to `n_seen`. `logits_of`, `losses_of` and
        `features_of` in `ucl.models.passes` compute outputs of the model.
        """

    def end_of_task(self, model: Network, task: Task) -> None:  # noqa: B027
        """Update the memory after a task has been learnt; does nothing by default.

        The first `Task.n_learnt` images of the task were in batches. The batch that `Task.part` returns has no values;
        `ucl.buffers.task_end.TaskEndBuffer` keeps those of the task's batches.
        """

    def store(self, batch: Batch) -> int:
        """Store the first samples of a batch in the empty slots, as many as fit; returns how many."""
        room = min(self.size - self.n_stored, len(batch))
        self._write(np.arange(self.n_stored, self.n_stored + room), batch, np.arange(room))
        self.n_stored += room
        return room

    def replace(self, slots: Indices, batch: Batch, chosen: Indices | None = None) -> None:
        """Overwrite slots in use with samples of a batch.

        Args:
            slots: (N,): indices of slots, from 0 to `n_stored` - 1. If a slot occurs twice, the later sample counts.
            batch: the batch.
            chosen: (N,): indices of the samples in the batch, one per slot; by default all, in order.

        Raises:
            ValueError: a slot is not in use, a sample does not exist, the numbers of samples and slots differ, a tensor
                in `Batch.values` does not have one row per sample, or its names are not those of the stored values.
        """
        targets = _indices("slots", slots, self.n_stored)
        sources = np.arange(len(batch)) if chosen is None else _indices("chosen", chosen, len(batch))
        source_of = dict(zip(targets.tolist(), sources.tolist(), strict=True))  # Of equal slots the last one counts.
        distinct = np.array(list(source_of), dtype=np.int64)
        self._write(distinct, batch, np.array(list(source_of.values()), dtype=np.int64))

    def drawn_slots(self, n: int, exclude_task: int | None, draw: np.random.Generator) -> np.ndarray:
        """Draw slots in use, uniformly without replacement: indices (n,), int64, fewer if fewer are eligible.

        Images of `exclude_task` are not drawn; None draws from the whole memory.
        """
        eligible = np.flatnonzero(self.tasks[: self.n_stored] != exclude_task)  # Every number differs from None.
        return draw.choice(eligible, min(n, len(eligible)), replace=False)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, with the stored images.

        A subclass extends both methods: ``{**super().state_dict(), "seen": sorted(self.seen)}``. Values are tensors,
        numbers, texts, lists, tuples and dicts. A run with a subclass of the user that does not define both is not
        resumed, even if it has no state of its own.
        """
        n = self.n_stored
        return {
            "images": self.images[:n].clone(),
            "positions": self.positions[:n].clone(),
            "scores": self.scores[:n].clone(),
            "values": {name: values[:n].clone() for name, values in self.values.items()},
            "labels": self.labels[:n].tolist(),
            "tasks": self.tasks[:n].tolist(),
            "n_seen": self.n_seen,
            "draw": self.draw.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring an empty memory to the state that `state_dict` returned."""
        n = self.n_stored = len(state["labels"])
        self.n_seen = state["n_seen"]
        self.labels[:n], self.tasks[:n] = state["labels"], state["tasks"]
        self.images[:n], self.positions[:n], self.scores[:n] = state["images"], state["positions"], state["scores"]
        for name, values in state["values"].items():
            self.values[name] = self._empty(values)
            self.values[name][:n] = values
        self.draw.bit_generator.state = state["draw"]

    def _on_device(self, indices: np.ndarray) -> Tensor:
        """Indices as a tensor on the device; the host does not wait for the copy."""
        return torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(self.device, non_blocking=True)

    def _write(self, slots: np.ndarray, batch: Batch, chosen: np.ndarray) -> None:
        """Store the chosen samples of a batch in these slots, which are distinct."""
        if not len(slots):
            return
        if batch.images.dtype != torch.uint8:
            given = f"{batch.images.dtype} {tuple(batch.images.shape)}".removeprefix("torch.")
            reason = "a memory stores pixels as uint8; give (x * 255).round().to(torch.uint8) for x in [0, 1]"
            raise InputError("images", given, reason)
        target, source = self._on_device(slots), self._on_device(chosen)
        self.images[target] = batch.images[source]
        self.positions[target] = batch.positions[source]
        self.scores[target] = math.nan
        self.labels[slots] = batch.host_labels[chosen]
        self.tasks[slots] = -1 if batch.task is None else batch.task
        for name, values in self._values_of(batch).items():
            self.values[name][target] = values[source]

    def _values_of(self, batch: Batch) -> dict[str, Tensor]:
        """The values (B, ...) of a batch, checked; the first batch decides which names `values` has."""
        for name, values in batch.values.items():
            if not isinstance(values, Tensor) or values.shape[:1] != (len(batch),):
                given = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
                reason = f"is {given} for {len(batch)} samples; give a tensor with one row per sample"
                raise ValueError(f"batch.values[{name!r}] {reason}")
        values_of = {name: values.detach().to(self.device) for name, values in batch.values.items()}
        if not (self.n_stored or self.values):
            self.values = {name: self._empty(values) for name, values in values_of.items()}
        if values_of.keys() != self.values.keys():
            names, stored = (", ".join(values) or "none" for values in (values_of, self.values))
            raise ValueError(f"batch.values has {names}; give all stored samples the same, here {stored}")
        return values_of

    def _empty(self, like: Tensor) -> Tensor:
        """The values (size, ...) of empty slots, where samples have values (N, ...) such as these: NaN, or 0."""
        return like.new_full((self.size, *like.shape[1:]), math.nan if like.is_floating_point() else 0)


def as_words(images_NCHW: Tensor) -> Tensor:
    """Images as one row of numbers each, sharing their memory if that is channels last.

    The numbers are words of 8 bytes if possible: indexing copies number by number, so fewer are faster.
    """
    bytes_NR = images_NCHW.permute(0, 2, 3, 1).flatten(1)
    return bytes_NR.view(torch.int64) if bytes_NR.shape[1] % 8 == 0 else bytes_NR


def as_images(words: Tensor, shape: Sequence[int]) -> Tensor:
    """The images (N, C, H, W), channels last, whose `as_words` these are; `shape` is that of an image."""
    channels, height, width = shape
    return words.view(torch.uint8).unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def by_class(labels: np.ndarray, start: int = 0) -> dict[int, np.ndarray]:
    """The indices of each class from `start` on, classes in the order of their first index."""
    classes = dict.fromkeys(labels[start:].tolist())
    return {label: start + np.flatnonzero(labels[start:] == label) for label in classes}


def _indices(name: str, given: Indices, n: int) -> np.ndarray:
    """Check that indices are whole numbers from 0 to n - 1, and return them as a numpy array (N,), int64."""
    indices = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if indices.size and indices.dtype.kind not in "iu":
        raise ValueError(f"{name} are {indices.dtype}; give whole numbers")
    if outside := indices[(indices < 0) | (indices >= n)].tolist():
        raise ValueError(f"{name} contain {outside[0]}, which is not among the first {n}")
    return indices.astype(np.int64)
