"""`ImageDataset`: labelled images as plain arrays, the form in which every data set is used."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

SPLITS = ("train", "test", "val")
"""The names of the splits. The training and test splits are required."""
ARRAYS = (*(f"{split}_{part}" for split in SPLITS for part in ("images", "labels")), "classes")
"""The names of the arrays in an .npz with MedMNIST's layout."""
_LEVELS = np.arange(256) / 255


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images, (N, H, W, C) uint8 with H = W and C 1 or 3, and their labels, (N,) int64; label c is `classes[c]`.

    Every class has training images. `val_images` and `val_labels` are None if the set has no validation split. Images
    in a file (`numpy.memmap`) are read batch by batch. `train_files` are the files of the training images of a folder,
    relative to it, (N,); None for other data sets. The images of a final memory are
    ``[dataset.train_files[p] for p in record.memory["position"]]``. `train_patients`, `test_patients` and
    `val_patients`, (N,) int64, number the patient of each image in a folder of patients, alike in all splits; None for
    other data sets.
    """

    name: str
    classes: tuple[str, ...]
    train_images: np.ndarray = field(repr=False)
    train_labels: np.ndarray = field(repr=False)
    test_images: np.ndarray = field(repr=False)
    test_labels: np.ndarray = field(repr=False)
    val_images: np.ndarray | None = field(default=None, repr=False)
    val_labels: np.ndarray | None = field(default=None, repr=False)
    train_files: tuple[str, ...] | None = field(default=None, repr=False, kw_only=True)
    train_patients: np.ndarray | None = field(default=None, repr=False, kw_only=True)
    test_patients: np.ndarray | None = field(default=None, repr=False, kw_only=True)
    val_patients: np.ndarray | None = field(default=None, repr=False, kw_only=True)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def n_images(self) -> int:
        """Number of training, test and validation images together."""
        return sum(
            len(labels) for labels in (self.train_labels, self.test_labels, self.val_labels) if labels is not None
        )

    @property
    def image_size(self) -> int:
        """Pixels per side."""
        return self.train_images.shape[1]

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for RGB."""
        return self.train_images.shape[3]

    @property
    def is_lazy(self) -> bool:
        """Whether the images stay in a file and are read when they are needed."""
        return isinstance(self.train_images, np.memmap)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel over all training pixels, in [0, 1]."""
        return tuple(float(counts @ _LEVELS / counts.sum()) for counts in self._histograms)

    @property
    def std(self) -> tuple[float, ...]:
        """Population standard deviation of each channel, over all training pixels, in [0, 0.5]."""
        of_channel = zip(self._histograms, self.mean, strict=True)
        return tuple(float(np.sqrt(counts @ (_LEVELS - mean) ** 2 / counts.sum())) for counts, mean in of_channel)

    @cached_property
    def _histograms(self) -> np.ndarray:
        counts = np.zeros((self.channels, 256), np.int64)
        step = max(1, 2**22 // self.image_size**2)  # In blocks, because bincount needs 8 bytes per pixel.
        for start in range(0, len(self.train_images), step):
            block = self.train_images[start : start + step]
            counts += [np.bincount(block[..., channel].ravel(), minlength=256) for channel in range(self.channels)]
        return counts

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify all images and labels in their order; the same on every machine.

        They also identify the patients of the training images, if these are known: a stream depends on them.
        """
        digest = hashlib.sha256()
        for key in (*ARRAYS[:-1], "train_patients"):
            if (array := getattr(self, key)) is not None:
                digest.update(f"{key}{array.shape}".encode())
                for start in range(0, len(array), 1024):  # In blocks: an array in a file may be larger than memory.
                    block = array[start : start + 1024]
                    digest.update(np.ascontiguousarray(block, array.dtype.newbyteorder("<")).data)
        return digest.hexdigest()[:16]
