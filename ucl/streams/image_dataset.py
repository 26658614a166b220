"""`ImageDataset`: labelled images as plain arrays, the form in which every data set is used."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ucl.errors import first_of
from ucl.streams.held_out import held_out, numbers_of_patients
from ucl.streams.pixels import empty_images

SPLITS = ("train", "test", "val")
"""The names of the splits. The training and test splits are required."""
_SETS = tuple(f"{split}_{part}" for split in SPLITS for part in ("images", "labels"))
ARRAYS = (*_SETS, "classes", *(f"{split}_patients" for split in SPLITS))
"""The names of the arrays in an .npz: MedMNIST's, and those of a patient (a whole number or a text) for each image."""
_log = logging.getLogger(__name__)
_LEVELS = np.arange(256) / 255


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images, (N, H, W, C) uint8 with H = W and C 1 or 3, and their labels, (N,) int64; label c is `classes[c]`.

    Every class has training images. `val_images` and `val_labels` are None if the set has no validation split. Images
    in a file (`numpy.memmap`) are read batch by batch. Only a folder has `train_files`, `test_files` and `val_files`,
    relative to it, (N,); `ucl.datasets.files_in_memory` has those of a final memory. If the patients are known,
    `train_patients`, `test_patients` and `val_patients` are their numbers, (N,) int64, alike in all splits; no patient
    is in two splits.
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
    test_files: tuple[str, ...] | None = field(default=None, repr=False, kw_only=True)
    val_files: tuple[str, ...] | None = field(default=None, repr=False, kw_only=True)
    train_patients: np.ndarray | None = field(default=None, repr=False, kw_only=True)
    test_patients: np.ndarray | None = field(default=None, repr=False, kw_only=True)
    val_patients: np.ndarray | None = field(default=None, repr=False, kw_only=True)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def image_size(self) -> int:
        """Pixels per side."""
        return self.train_images.shape[1]

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for RGB."""
        return self.train_images.shape[3]

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel over all training pixels, in [0, 1]."""
        return tuple(float(counts @ _LEVELS / counts.sum()) for counts in self._histograms)

    @property
    def std(self) -> tuple[float, ...]:
        """Population standard deviation of each channel, over all training pixels, in [0, 0.5]."""
        channels = zip(self._histograms, self.mean, strict=True)
        return tuple(float(np.sqrt(counts @ (_LEVELS - mean) ** 2 / counts.sum())) for counts, mean in channels)

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
        for key in (*_SETS, "train_patients"):
            if (array := getattr(self, key)) is not None:
                digest.update(f"{key}{array.shape}".encode())
                for start in range(0, len(array), 1024):  # In blocks: an array in a file may be larger than memory.
                    block = array[start : start + 1024]
                    digest.update(np.ascontiguousarray(block, array.dtype.newbyteorder("<")).data)
        return digest.hexdigest()[:16]


def as_dataset(name: str, arrays: Mapping[str, Any], folder: Path, class_names: Sequence[str] = ()) -> ImageDataset:
    """Check arrays in MedMNIST's layout and make a data set of them.

    Without test images, some images of each class are held out, see `held_out`. A split of dark images is reported.

    Args:
        name: name of the data set.
        arrays: some of `ARRAYS`, and the files of each split, such as `train_files`. Images are (N, H, H),
            (N, H, H, 1) or (N, H, H, 3), uint8. Labels are (N,) or (N, 1), whole numbers from 0, or texts, which name
            the classes. Patients are (N,) or (N, 1), whole numbers or texts, for all splits or none.
        folder: where copies of images that are large compared with the memory are stored, in a temporary file.
        class_names: for labels that are numbers, without "classes": names that are used if there are as many as
            classes. Otherwise the names are the numbers.

    Raises:
        ValueError: an array is absent, has another type or shape, or does not fit the others; a label is out of range;
            a class has no training or no test images; or a patient is in two splits.
    """
    images, labels, patients = {}, {}, {}
    for split in SPLITS:
        if split == "train" or any(key.startswith(f"{split}_") for key in arrays):
            images[split], labels[split], patients[split] = _checked(split, arrays)
    files = {split: arrays[f"{split}_files"] for split in images if f"{split}_files" in arrays}
    numbers_of = numbers_of_patients({split: members.tolist() for split, members in patients.items()})
    if "test" not in images:
        images_N, labels_N, members_N = images["train"], labels["train"], patients["train"]
        names = dict(enumerate(np.ravel(arrays.get("classes", ())).astype(str).tolist()))
        test_N = held_out(labels_N, members_N if numbers_of else None, names)
        for split, chosen_N in {"test": test_N, "train": ~test_N}.items():
            images[split] = empty_images((chosen_N.sum(), *images_N.shape[1:]), folder)
            # With "clip" numpy writes into the copies, which may be in a file, without another copy in memory.
            np.take(images_N, np.flatnonzero(chosen_N), 0, out=images[split], mode="clip")
            labels[split], patients[split] = labels_N[chosen_N], members_N[chosen_N]
        if files:
            files |= {"test": files["train"][test_N], "train": files["train"][~test_N]}
    if dark := [split for split in images if all(image.max() < 128 for image in images[split])]:
        which = f"no pixel of its {' and '.join(dark)} images exceeds 127"
        _log.warning("%s: %s; if white is not 255 in them, rescale them to uint8 from 0 to 255", name, which)
    classes, numbers = _numbered(labels, arrays.get("classes"), class_names)
    sets: dict[str, Any] = {f"{split}_images": images[split] for split in images}
    sets |= {f"{split}_labels": numbers[split] for split in numbers}
    if numbers_of:
        sets |= {f"{s}_patients": np.array([numbers_of[p] for p in patients[s].tolist()]) for s in patients}
    sets |= {f"{split}_files": tuple(files[split].tolist()) for split in files}
    return ImageDataset(name, classes, **sets)


def _checked(split: str, arrays: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (N, H, H, C), labels (N,) and patients (N,), texts, of a split; a patient is "" if none are known."""
    for key in (f"{split}_images", f"{split}_labels"):
        _require(key in arrays, f"has no {key}; give images and labels of train and optionally test and val")
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    square = images.ndim in (3, 4) and images.shape[1] == images.shape[2] and images.shape[3:] in ((), (1,), (3,))
    given = f"{split}_images are {images.dtype} of shape {images.shape}"
    fine = square and images.dtype == np.uint8 and images.size > 0
    _require(fine, f"{given}; give uint8 (0 to 255) of shape (N, H, H), (N, H, H, 1) or (N, H, H, 3)")
    members = arrays.get(f"{split}_patients", np.full(len(images), ""))
    for key, values in {f"{split}_labels": labels, f"{split}_patients": members}.items():
        given = f"{key} are {values.dtype} of shape {values.shape} for {len(images)} images"
        fine = values.dtype.kind in "iuU" and values.shape in ((len(images),), (len(images), 1))
        _require(fine, f"{given}; give one whole number, or one text, per image, (N,) or (N, 1)")
    shape, train_shape = images.shape[1:], arrays["train_images"].shape[1:]
    _require(shape == train_shape, f"{split}_images are {shape}, those of train {train_shape}; give equal ones")
    return images[..., None] if images.ndim == 3 else images, labels.reshape(-1), members.reshape(-1).astype(str)


def _numbered(
    labels: Mapping[str, np.ndarray], given: np.ndarray | None, class_names: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """The names of the classes, and the labels of each split as indices of these names, (N,)."""
    present = np.unique(labels["train"]).tolist()
    are_texts = isinstance(present[0], str)
    names = class_names if len(class_names) == len(present) and not are_texts else present
    classes = tuple(np.ravel(names if given is None else given).astype(str).tolist())
    _require(len(classes) > 1, "has one class; give 2 or more")
    numbers = {label: c for c, label in enumerate(classes if are_texts else range(len(classes)))}
    _require(len(numbers) == len(classes), f"has classes of the same name: {first_of(classes)}; give each its own")
    numbered = {}
    for split, labels_N in labels.items():
        present, indices = np.unique(labels_N, return_inverse=True)
        strange = [label for label in present.tolist() if label not in numbers]
        allowed = f"one of {first_of(list(numbers))}" if are_texts else f"0 to {len(classes) - 1}"
        _require(not strange, f"{split}_labels contain {first_of(strange)}; give {allowed}")
        numbered[split] = np.array([numbers[label] for label in present.tolist()])[indices]
        absent = [classes[c] for label, c in numbers.items() if label not in present]
        fine = split == "val" or not absent
        _require(fine, f"has no {split} images of {first_of(absent)}; give each class training and test images")
    return classes, numbered


def _require(fine: bool, reason: str) -> None:
    if not fine:
        raise ValueError(reason)
