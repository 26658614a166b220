"""Images that stay in a file and are read when they are needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


class LazyImages:
    """Rows of an array of images in a file (`numpy.memmap`), as tensors (n, C, H, W) on a device when they are read.

    Args:
        images_NHWC: the array, uint8.
        rows: (N,): which images, in order.
        device: device of the tensors.

    Attributes:
        device: device of the tensors.
        shape: (N, C, H, W).
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
        return to_device(np.array(self._images_NHWC[rows]), self.device)

    def split(self, n: int) -> Iterator[Tensor]:
        """Read all images, at most n at a time."""
        return (self[start : start + n] for start in range(0, len(self), n))


def images_on(images_NHWC: np.ndarray, rows: np.ndarray, device: torch.device | str) -> Tensor | LazyImages:
    """Some images as (N, C, H, W): copied to the device at once, or read when needed if the array is in a file."""
    if isinstance(images_NHWC, np.memmap):
        return LazyImages(images_NHWC, rows, device)
    return to_device(images_NHWC[rows], device)


def to_device(images: np.ndarray, device: torch.device | str) -> Tensor:
    """Images (..., H, W, C) as a tensor (..., C, H, W) on the device."""
    # Only the axes are permuted. The data stay channels last in memory, which is the convolutions' fastest layout.
    return torch.from_numpy(images).to(device).movedim(-1, -3)
