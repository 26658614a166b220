"""Readers of data sets: an .npz in MedMNIST's layout, a folder of image files, and scikit-learn's digits.

Reading an .npz needs numpy only: Pillow and scikit-learn are imported by the functions that use them.
"""

from __future__ import annotations

import logging
import os
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ucl.errors import first_of, one_line
from ucl.machine.available import available_bytes
from ucl.streams.held_out import numbers_of_patients
from ucl.streams.image_dataset import ARRAYS, SPLITS
from ucl.streams.pixels import IMAGE_FILES, decode

_LIKE_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
_MASK = re.compile("(.+)_(mask|segmentation|superpixels)(_[0-9]+)?", re.IGNORECASE)  # as in BUSI and ISIC
_MASKS = re.compile("masks?|segmentations?|superpixels", re.IGNORECASE).fullmatch  # a folder of them
_LAYOUTS = "<class>/*.png, or train/<class>/*.png, test/<class>/*.png and optionally val/<class>/*.png"
_LEFT_BY_SYSTEMS = {"__MACOSX", "@eaDir"}  # folders with metadata or thumbnails, of macOS and Synology
_log = logging.getLogger(__name__)


def read_digits() -> dict[str, np.ndarray]:
    """The digits of scikit-learn: 1797 grey images of 8 x 8 pixels, each enlarged to 32 x 32, in 10 classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # scikit-learn's pixels have the levels 0 to 16.
    return {"train_images": images.repeat(4, axis=1).repeat(4, axis=2), "train_labels": digits.target}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz in MedMNIST's layout; nothing in it is unpickled.

    Raises:
        ValueError: the file can't be read, or needs more memory than is available.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # No member is read beyond the size that it declares.
            needed = sum(member.file_size for member in archive.infolist())
        if (available := available_bytes()) is not None and needed > available:
            reason = f"its arrays need {needed / 2**30:.2f} GiB of memory, and {available / 2**30:.2f} are available"
            raise ValueError(f"{reason}: a function of yours can return arrays of numpy.load(file, mmap_mode='r')")
        with np.load(path, allow_pickle=False) as npz:
            if others := [key for key in npz.files if key not in ARRAYS]:
                _log.warning("%s: arrays that are not read: %s", path.name, first_of(others))
            return {key: npz[key] for key in ARRAYS if key in npz.files}
    except Exception as error:  # A damaged file can raise any error.
        advice = "give an .npz of plain arrays, no Python objects; if it was downloaded, delete it to download it again"
        raise ValueError(f"can't be read ({one_line(error)}); {advice}") from error


class Sample(NamedTuple):
    """An image file, its label, and the name of its patient's folder (or "")."""

    file: Path
    label: int
    patient: str


def samples_in(root: Path) -> tuple[list[str], dict[str, list[Sample]]]:
    """The classes of a folder, and the images of each split, by the rules of `torchvision.datasets.ImageFolder`.

    Unlike in torchvision, GIF and JFIF files are images, and hidden files and what operating systems leave in folders
    are left out. The folder itself is that of the training images if it has no splits.

    Raises:
        ValueError: the folders are not such classes and splits.
    """
    folders = {"train": root}
    if (root / "train").is_dir() and _folders_in(root / "train"):
        if others := [name for name in _folders_in(root) if name not in SPLITS]:
            reason = f"has the folder {first_of(others)} next to train"
            raise ValueError(f"{reason}; give train, test and optionally val, and nothing else")
        folders = {split: root / split for split in SPLITS if (root / split).is_dir()}
    classes = list(_folders_in(folders["train"]))
    words = {name: _LIKE_SPLITS.intersection(re.split(r"[\W\d_]+", name.lower())) for name in classes}
    splits = [name for name in classes if words[name]]  # also as in seg_train or ISIC_2019_Test_Input
    kinds = {word[:2] for found in words.values() for word in found}
    if len(classes) < 2 or len(kinds) > 1 or not {"test", "val"}.isdisjoint(classes):
        reason = f"{first_of(splits)} are not classes" if splits else f"has {len(classes)} class folders"
        raise ValueError(f"{reason}; give 2 or more class folders, as in {_LAYOUTS}")
    samples: dict[str, list[Sample]] = {}
    for split, folder in folders.items():
        class_folders = _folders_in(folder)
        if differing := sorted(class_folders.keys() ^ set(classes)):
            reason = f"the classes of train and {split} differ: {first_of(differing)}"
            raise ValueError(f"{reason}; give each class a folder with images in both")
        samples[split] = []
        beside = [file for file in sorted(folder.iterdir()) if file.is_file() and not _is_hidden(file.name)]
        others = [file.name for file in beside if file.suffix.lower() in IMAGE_FILES]
        for label, name in enumerate(classes):
            files = _files_in(class_folders[name])
            images = [file for file in files if file.suffix.lower() in IMAGE_FILES]
            if not images:
                reason = f"the class folder {class_folders[name]} has no images"
                raise ValueError(f"{reason}; give some ({' '.join(IMAGE_FILES)})")
            stems = {file.with_suffix("") for file in images}
            masks = [f for f in images if (m := _MASK.fullmatch(f.stem)) and f.with_name(m[1]) in stems]
            if masks := masks or [file for file in images if len(file.parts) > 1 and _MASKS(file.parts[0])]:
                reason = f"{first_of(masks)} in {class_folders[name]} are masks"
                raise ValueError(f"{reason}; move the masks out of {root.name}")
            others += [f"{name}/{file.as_posix()}" for file in files if file.suffix.lower() not in IMAGE_FILES]
            for file in images:
                patient = file.parts[0] if len(file.parts) > 1 else ""
                samples[split].append(Sample(class_folders[name] / file, label, patient))
        if others:
            reason = "they are in no class folder, or have no suffix of an image"
            _log.warning("%s: %d files are not read, as %s: %s", folder.name, len(others), reason, first_of(others))
    return classes, samples


def read_folder(root: Path, size: int, data_folder: Path) -> dict[str, Any]:
    """Arrays for `as_dataset` from a folder of image files, see `ucl.datasets.load`.

    Images are resized and centre-cropped to `size` pixels per side. Those that are large compared with the memory are
    stored in a temporary file in `data_folder`.

    Raises:
        ValueError: an image can't be read, or the folders are not such classes, splits and patients.
    """
    classes, samples = samples_in(root)
    patients = {split: [sample.patient for sample in part] for split, part in samples.items()}
    numbers = numbers_of_patients(patients)  # before the images, because reading them takes long
    items = {split: (len(part), ((str(s.file), s.file, s.label) for s in part)) for split, part in samples.items()}
    arrays = decode(str(root), items, size, data_folder)
    if numbers:
        arrays |= {f"{split}_patients": names for split, names in patients.items()}
        note = "folders in class folders are patients, whose images are all in one split"
        _log.info("%s: %d %s: %s", root.name, len(numbers), note, first_of(list(numbers)))
    arrays |= {f"{split}_files": [s.file.relative_to(root).as_posix() for s in part] for split, part in samples.items()}
    return {key: np.asanyarray(values) for key, values in {**arrays, "classes": classes}.items()}


def _folders_in(folder: Path) -> dict[str, Path]:
    """The sub-folders by their names, sorted, without hidden ones."""
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not _is_hidden(path.name)}


def _files_in(folder: Path) -> list[Path]:
    """The files in a folder and in the folders there, relative to it, in torchvision's order, without hidden ones."""
    files = [Path(parent, name) for parent, _, names in os.walk(folder, followlinks=True) for name in names]
    files.sort(key=lambda file: (file.parent.as_posix(), file.name))
    files = [file.relative_to(folder) for file in files]
    return [file for file in files if not any(map(_is_hidden, file.parts))]


def _is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden or left by an operating system; a file that is still in iCloud is counted."""
    return name in _LEFT_BY_SYSTEMS or (name[0] == "." and not name.endswith(".icloud"))
