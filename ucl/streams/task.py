"""The tasks of a stream, their batches, and images that stay in a file until they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


class LazyImages:
    """Rows of an array of images in a file (`numpy.memmap`), as tensors (n, C, H, W) on a device when they are read.

    Args:
        images_NHWC: the array, uint8.
        rows: (N,): which images, in order.
        device: device of the tensors, an attribute as `shape` (N, C, H, W) is.
    """

    def __init__(self, images_NHWC: np.ndarray, rows: np.ndarray, device: torch.device | str = "cpu") -> None:
        self._images_NHWC, self._rows, self.device = images_NHWC, rows, torch.device(device)
        height, width, channels = images_NHWC.shape[1:]
        self.shape = torch.Size((len(rows), channels, height, width))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: slice | int | Tensor | np.ndarray) -> Tensor:
        """Read images: a tensor (n, C, H, W), or (C, H, W) for one index."""
        rows = self._rows[index.cpu().numpy() if isinstance(index, Tensor) else index]
        images = torch.from_numpy(np.array(self._images_NHWC[rows]))
        # Only the axes are permuted. The data stay channels last in memory, which is the convolutions' fastest layout.
        return images.to(self.device).movedim(-1, -3)

    def split(self, n: int) -> Iterator[Tensor]:
        """Read all images, at most n at a time."""
        return (self[start : start + n] for start in range(0, len(self), n))


def images_on(images_NHWC: np.ndarray, rows: np.ndarray, device: torch.device | str) -> Tensor | LazyImages:
    """Some images as (N, C, H, W): copied to the device at once, or read when needed if the array is in a file."""
    lazy = LazyImages(images_NHWC, rows, device)
    return lazy if isinstance(images_NHWC, np.memmap) else lazy[:]


@dataclass(frozen=True)
class Batch:
    """A batch of the stream.

    Those of `Task` share no memory with the stream, except `positions`, and those of `Method.update` not with the batch
    that the memory gets: a change in place of images or labels has no effect elsewhere.

    Attributes:
        images: (B, C, H, W), uint8, on the stream's device.
        labels: (B,), int64, on the stream's device.
        host_labels: the same labels as a numpy array, so that bookkeeping never waits for the device.
        positions: (B,), int64, on the stream's device: index of each image in the data set's training images.
        task: number of the task, from 0; None in a stream without task numbers.
        values: tensors (B, ...) by name, on the stream's device: values of the samples, such as losses or logits. A
            method or a memory policy adds them, and a memory keeps them with the samples that it stores
            (`Buffer.values`).
    """

    images: Tensor
    labels: Tensor
    host_labels: np.ndarray
    positions: Tensor
    task: int | None
    values: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.host_labels)


@dataclass(frozen=True)
class Task:
    """One task; iterating over it gives its batches in the order of the stream.

    Attributes:
        number: from 0.
        classes: labels of its classes, on which it is tested.
        images, labels, host_labels, positions: its training data, as in `Batch`, in the order of the stream. Images in
            a file, including test images, are read when they are indexed, see `LazyImages`.
        test_images, test_labels: its test data, on the stream's device.
        test_positions: (N,), int64: index of each of them in the data set's test images, or in its validation images
            with `Config.evaluate_on` "validation" (its training images, if they were held out of those).
        batch_size: images per batch; an incomplete last batch is dropped, see `n_left_out`.
        numbered: whether its batches have its number (`Batch.task`).
    """

    number: int
    classes: tuple[int, ...]
    images: Tensor | LazyImages
    labels: Tensor
    host_labels: np.ndarray
    positions: Tensor
    test_images: Tensor | LazyImages
    test_labels: Tensor
    test_positions: np.ndarray
    batch_size: int
    numbered: bool = True

    def __len__(self) -> int:
        return len(self.host_labels) // self.batch_size

    @property
    def n_learnt(self) -> int:
        """Number of training images in batches, the first ones of the task."""
        return len(self) * self.batch_size

    @property
    def n_left_out(self) -> int:
        """Number of training images that are not learnt, because they would be an incomplete last batch."""
        return len(self.host_labels) - self.n_learnt

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, self.n_learnt, self.batch_size):
            yield self.part(slice(start, start + self.batch_size))

    def part(self, rows: slice | np.ndarray) -> Batch:
        """The training data with these indices as a batch."""
        at = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self.labels.device)
        number = self.number if self.numbered else None
        images, labels, host_labels = self.images[at].clone(), self.labels[at].clone(), self.host_labels[rows].copy()
        return Batch(images, labels, host_labels, self.positions[at], number)
