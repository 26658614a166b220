"""Readers of data sets: an .npz in MedMNIST's layout, a folder of image files, and scikit-learn's digits.

Reading an .npz needs numpy only: Pillow and scikit-learn are imported by the functions that use them.
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ucl.errors import InputError, first_of, one_line
from ucl.machine.available import available_bytes, in_gib
from ucl.streams.downloads import OFFICIAL_NAMES, medmnist_sets
from ucl.streams.held_out import held_out_images, held_out_patients
from ucl.streams.image_dataset import ARRAYS, SPLITS, ImageDataset, as_dataset
from ucl.streams.pixels import IMAGE_FILES, decode, grey_if_equal, take

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


def class_files(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class folder and the folders in it, by the rules of `torchvision.datasets.ImageFolder`.

    Classes and files are sorted by name. Unlike in torchvision, GIF files are images, and hidden files are left out.

    Raises:
        InputError: a class folder has no images, or is a split under another name.
    """
    files: dict[str, list[Path]] = {}
    n_others = 0
    for name in _folders_in(folder):
        found = [
            Path(parent, file)
            for parent, _, names in sorted(os.walk(folder / name, followlinks=True))
            for file in sorted(names)
            if not any(part[0] == "." for part in Path(os.path.relpath(parent, folder), file).parts)
        ]
        files[name] = [file for file in found if file.suffix.lower() in IMAGE_FILES]
        n_others += len(found) - len(files[name])
        if not files[name]:
            reason = f"a class folder without images; give some ({' '.join(IMAGE_FILES)}), or remove it"
            raise InputError("dataset", str(folder / name), reason)
    if len(splits := [name for name in files if name.lower() in _LIKE_SPLITS]) > 1:
        raise InputError("dataset", str(folder), f"its folders {first_of(splits)} are not classes; give {_LAYOUTS}")
    if n_others:
        _log.info("%s: %d files are not read, as they have no suffix of an image", folder.name, n_others)
    return files


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
        InputError: an image can't be read; a folder that is no split is next to `train`; the classes of the splits
            differ; a class has too few images or patients; only some images are in patients' folders; or a patient is
            in two splits.
    """
    folders = split_folders(root)
    files = {split: class_files(folder) for split, folder in folders.items()}
    classes = list(files["train"])
    if len(classes) < 2:
        raise InputError("dataset", str(root), f"has {len(classes)} class folders; give 2 or more, as in {_LAYOUTS}")
    for split, of_class in files.items():
        if differing := sorted(set(classes) ^ set(of_class)):
            raise InputError("dataset", str(folders[split]), f"train has other classes: {first_of(differing)} differ")
    arrays: dict[str, Any] = {"classes": np.array(classes)}
    for split, of_class in files.items():
        in_order = [file for found in of_class.values() for file in found]
        items = ((str(file), file, None) for file in in_order)
        images, _ = decode(str(root), len(in_order), items, size, data_folder)
        labels = np.repeat(np.arange(len(of_class)), [len(found) for found in of_class.values()])
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    keys = [f"{split}_images" for split in files]
    arrays |= zip(keys, grey_if_equal([arrays[key] for key in keys]), strict=True)
    train_files = np.array([str(f.relative_to(root)) for found in files["train"].values() for f in found], object)

    names = _patients(root, files, folders)
    if names:
        numbers = {name: number for number, name in enumerate(sorted(set().union(*names.values())))}
        arrays |= {f"{split}_patients": np.array([numbers[name] for name in names[split]]) for split in names}
    if "test" not in files:
        test = held_out_images(arrays["train_labels"])
        if names:
            pairs = set(zip(arrays["train_labels"].tolist(), names["train"], strict=True))
            patients = {name: frozenset(p for label, p in pairs if label == c) for c, name in enumerate(classes)}
            test = np.isin(names["train"], list(held_out_patients(str(folders["train"]), patients)))
        for key in [key for key in arrays if key.startswith("train_")]:
            for split, rows in {"test": np.flatnonzero(test), "train": np.flatnonzero(~test)}.items():
                arrays[key.replace("train", split)] = take(arrays[key], rows, str(root), data_folder)
        train_files = train_files[~test]
    details = {key: array for key, array in arrays.items() if key.endswith("_patients")}
    return as_dataset(root, root.resolve().name, arrays, train_files=tuple(train_files), **details)


def _patients(root: Path, files: Mapping[str, Mapping[str, list[Path]]], folders: Mapping[str, Path]) -> dict[str, Any]:
    """For each split the patient of each image, in the order of the files; empty if there are no patients' folders."""
    inside = {
        split: [file.relative_to(folders[split]).parts[1:] for found in of_class.values() for file in found]
        for split, of_class in files.items()
    }
    layouts = {len(parts) > 1 for of_split in inside.values() for parts in of_split}
    if layouts == {False}:
        return {}
    if len(layouts) > 1:
        reason = "some images are in a patient's folder, and some are not"
        raise InputError("dataset", str(root), f"{reason}; give <class>/<image> or <class>/<patient>/<image> for all")
    names = {split: [parts[0] for parts in of_split] for split, of_split in inside.items()}
    for split, other in combinations(names, 2):
        if shared := sorted(set(names[split]) & set(names[other])):
            advice = "move all images of a patient into one of them, or rename folders of different patients"
            raise InputError("dataset", str(root), f"patients in {split} and {other}: {first_of(shared)}; {advice}")
    shown = first_of(sorted(set().union(*names.values())))
    _log.info("%s: a folder in a class folder is a patient (%s), whose images are all in one split", root.name, shown)
    return names


def _folders_in(folder: Path) -> list[str]:
    """The names of the sub-folders, sorted, without hidden ones."""
    return sorted(inside.name for inside in folder.iterdir() if inside.is_dir() and inside.name[0] != ".")
