"""Readers of data sets: an .npz in MedMNIST's layout, a folder of image files, and scikit-learn's digits.

Reading an .npz needs numpy only: Pillow and scikit-learn are imported by the functions that use them.
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Mapping
from itertools import combinations, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ucl.errors import InputError, first_of, one_line
from ucl.machine.available import available_bytes, in_gib
from ucl.streams.downloads import OFFICIAL_NAMES, medmnist_sets
from ucl.streams.held_out import held_out_images, held_out_patients
from ucl.streams.image_dataset import ARRAYS, SPLITS, ImageDataset, as_dataset
from ucl.streams.pixels import IMAGE_FILES, decode, grey_if_equal

_LIKE_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
_LAYOUTS = "<class>/*.png, or train/<class>/*.png, test/<class>/*.png and optionally val/<class>/*.png"
_log = logging.getLogger(__name__)


def read_digits() -> ImageDataset:
    """The digits of scikit-learn: 1797 grey images of 8 x 8 pixels, each enlarged to 32 x 32, in 10 classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # scikit-learn's pixels have the levels 0 to 16.
    images = images.repeat(4, axis=1).repeat(4, axis=2)[..., None]
    labels = digits.target.astype(np.int64)
    test = held_out_images(labels)
    return ImageDataset("digits", tuple("0123456789"), images[~test], labels[~test], images[test], labels[test])


def read_npz(path: Path, name: str) -> ImageDataset:
    """Read an .npz in MedMNIST's layout; nothing in it is unpickled.

    Args:
        path: the file.
        name: name of the data set. A name of MedMNIST gives the class names of a file without them.

    Raises:
        InputError: the file can't be read, needs more memory than is available, or its arrays are not a data set.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # No member is read beyond the size that it declares.
            needed = sum(member.file_size for member in archive.infolist())
        if (available := available_bytes()) is not None and needed > available:
            raise ValueError(f"its arrays need {in_gib(needed)} of memory, and {in_gib(available)} are available here")
        with np.load(path, allow_pickle=False) as npz:
            arrays = {key: npz[key] for key in ARRAYS if key in npz.files}
    except Exception as error:  # A damaged file can raise any error.
        advice = "give an .npz of plain arrays, no Python objects; if it was downloaded, delete it to download it again"
        raise InputError("dataset", str(path), f"can't be read ({one_line(error)}); {advice}") from None
    if "classes" not in arrays and OFFICIAL_NAMES.get(name, name).endswith("mnist"):
        names = list(medmnist_sets().get(name, {"label": {}})["label"].values())
        if len(names) == len(np.unique(arrays.get("train_labels", []))):
            arrays["classes"] = np.array(names)
    return as_dataset(path, name, arrays)


def split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split; the folder itself is that of the training images if it has no splits.

    Raises:
        InputError: a folder beside `train` is not a split.
    """
    if not (root / "train").is_dir() or not _folders_in(root / "train"):
        return {"train": root}
    if others := [name for name in _folders_in(root) if name not in SPLITS]:
        reason = f"has the folder {first_of(others)} next to train"
        raise InputError("dataset", str(root), f"{reason}; give train, test and optionally val, and nothing else")
    return {split: root / split for split in SPLITS if (root / split).is_dir()}


class Samples(NamedTuple):
    """The images of a split: the names of its classes, and for each image file, label and patient's folder (or "")."""

    classes: list[str]
    files: list[Path]
    labels: list[int]
    patients: list[str]

    def only(self, chosen_N: np.ndarray) -> Samples:
        """The images for which `chosen_N` is True."""
        columns: Any = (list(compress(column, chosen_N)) for column in self[1:])
        return Samples(self.classes, *columns)


def samples_in(folder: Path) -> Samples:
    """The images in class folders and in the folders there, by the rules of `torchvision.datasets.ImageFolder`.

    Classes and files are sorted by name. Unlike in torchvision, GIF files are images, and hidden files are left out.

    Raises:
        InputError: there are fewer than two class folders, one has no images, or they are splits under other names.
    """
    classes, rows, n_others = _folders_in(folder), [], 0
    splits = [name for name in classes if name.lower() in _LIKE_SPLITS]
    if len(classes) < 2 or len(splits) > 1:
        reason = f"{first_of(splits)} are not classes" if splits else f"has {len(classes)} class folders"
        raise InputError("dataset", str(folder), f"{reason}; give 2 or more, as in {_LAYOUTS}")
    for label, name in enumerate(classes):
        for parent, _, names in sorted(os.walk(folder / name, followlinks=True)):
            inside = Path(parent).relative_to(folder / name).parts
            for path in (Path(parent, file) for file in sorted(names)):
                if any(part[0] == "." for part in (*inside, path.name)):
                    continue
                if path.suffix.lower() in IMAGE_FILES:
                    rows.append((path, label, inside[0] if inside else ""))
                else:
                    n_others += 1
        if not rows or rows[-1][1] != label:
            reason = f"a class folder without images; give some ({' '.join(IMAGE_FILES)}), or remove it"
            raise InputError("dataset", str(folder / name), reason)
    if n_others:
        _log.info("%s: %d files are not read, as they have no suffix of an image", folder.name, n_others)
    return Samples(classes, *map(list, zip(*rows)))


def read_folder(root: Path, size: int, data_folder: Path) -> ImageDataset:
    """Read a folder of image files: `<class>/*.png`, or `train/<class>`, `test/<class>` and optionally `val/<class>`.

    Images have one channel if all are grey, otherwise three. Without test images, an evenly spaced fifth of each class
    is held out. With a folder per patient, `<class>/<patient>/*.png`, whole patients are held out, see
    `held_out_patients`. Folders with the same name are one patient, also in several classes.

    Args:
        root: the folder; its name becomes the name of the data set.
        size: pixels per side; images are resized and centre-cropped.
        data_folder: where images that are large compared with the memory are kept in a temporary file.

    Raises:
        InputError: an image can't be read, or the folders are not such classes, splits and patients.
    """
    samples = {split: samples_in(folder) for split, folder in split_folders(root).items()}
    numbers = _numbers_of_patients(root, {split: of_split.patients for split, of_split in samples.items()})
    classes = samples["train"].classes
    if "test" not in samples:
        everything = samples["train"]
        test_N = held_out_images(np.array(everything.labels))
        if numbers:
            pairs = set(zip(everything.labels, everything.patients, strict=True))
            patients = {name: frozenset(p for label, p in pairs if label == c) for c, name in enumerate(classes)}
            test_N = np.isin(everything.patients, list(held_out_patients(str(root), patients)))
        samples["train"], samples["test"] = everything.only(~test_N), everything.only(test_N)
    arrays: dict[str, Any] = {}
    for split, (of_split, files, labels, _) in samples.items():
        if differing := sorted(set(classes) ^ set(of_split)):
            raise InputError("dataset", str(root), f"the classes of train and {split} differ: {first_of(differing)}")
        images, _ = decode(str(root), len(files), ((str(file), file, None) for file in files), size, data_folder)
        arrays |= {f"{split}_images": images, f"{split}_labels": np.array(labels)}
    arrays |= grey_if_equal({f"{split}_images": arrays[f"{split}_images"] for split in samples})
    details: dict[str, Any] = {"train_files": tuple(str(file.relative_to(root)) for file in samples["train"].files)}
    if numbers:
        details |= {f"{split}_patients": np.array([numbers[p] for p in of.patients]) for split, of in samples.items()}
        what = f"a folder in a class folder is a patient ({first_of(list(numbers))}), whose images are all in one split"
        _log.info("%s: %s", root.name, what)
    return as_dataset(root, root.resolve().name, {**arrays, "classes": np.array(classes)}, **details)


def _numbers_of_patients(root: Path, patients: Mapping[str, list[str]]) -> dict[str, int]:
    """A number for each patient, in the order of their names; empty if there are no patients' folders.

    Raises:
        InputError: only some images are in patients' folders, or a patient is in two splits.
    """
    names = sorted(set().union(*patients.values()))
    if names == [""]:
        return {}
    if "" in names:
        reason = "some images are in a patient's folder, and some are not"
        raise InputError("dataset", str(root), f"{reason}; give <class>/<image> or <class>/<patient>/<image> for all")
    for split, other in combinations(patients, 2):
        if shared := sorted(set(patients[split]) & set(patients[other])):
            advice = "move all images of a patient into one of them, or rename folders of different patients"
            raise InputError("dataset", str(root), f"patients in {split} and {other}: {first_of(shared)}; {advice}")
    return {name: number for number, name in enumerate(names)}


def _folders_in(folder: Path) -> list[str]:
    """The names of the sub-folders, sorted, without hidden ones."""
    return sorted(inside.name for inside in folder.iterdir() if inside.is_dir() and inside.name[0] != ".")
