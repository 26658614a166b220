"""Readers of data sets: an .npz in MedMNIST's layout, a folder of image files, and scikit-learn's digits.

Reading an .npz needs numpy only: Pillow and scikit-learn are imported by the functions that use them.
"""

from __future__ import annotations

import logging
import zipfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ucl.errors import InputError
from ucl.machine.available import available_bytes, in_gib
from ucl.machine.files import regular_file
from ucl.streams.downloads import in_short, medmnist_sets, sizes_of
from ucl.streams.image_dataset import ARRAYS, SPLITS, ImageDataset
from ucl.streams.own_images import held_out
from ucl.streams.pixels import MOST_NAMED, read_images, report_cropped

if TYPE_CHECKING:
    pass

IMAGE_FILES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_LIKE_SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation")
_log = logging.getLogger(__name__)


def read_digits() -> ImageDataset:
    """The digits of scikit-learn: 1797 grey images of 8 x 8 pixels, each enlarged to 32 x 32, in 10 classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # scikit-learn's pixels have the levels 0 to 16.
    images = images.repeat(4, axis=1).repeat(4, axis=2)[..., None]
    return ImageDataset("digits", tuple("0123456789"), *_hold_out(images, digits.target.astype(np.int64)))


def _hold_out(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, ...]:
    """Training images and labels, then test images and labels: an evenly spaced fifth of each class."""
    test = held_out(labels)
    return images[~test], labels[~test], images[test], labels[test]


def read_npz(path: Path, name: str) -> ImageDataset:
    """Read an .npz in MedMNIST's layout.

    Args:
        path: the file.
        name: name of the data set. A name of MedMNIST gives the class names of a file without them.

    Raises:
        InputError: the file can't be read, its arrays are not a data set, or they need more memory than is available.
    """
    try:
        with zipfile.ZipFile(regular_file(path)) as npz:
            _check_unpacked_size(npz)
            arrays = {key: _read_array(npz, key) for key in ARRAYS if f"{key}.npy" in npz.namelist()}
    except Exception as error:  # A damaged file can raise any error.
        advice = "give an .npz of plain arrays, no Python objects; if it was downloaded, delete it to download it again"
        raise InputError("dataset", str(path), f"can't be read ({in_short(error)}); {advice}") from None
    return as_dataset(path, name, arrays)


def as_dataset(path: Path | str, name: str, arrays: dict[str, np.ndarray]) -> ImageDataset:
    """Check arrays in MedMNIST's layout and make a data set of them.

    Args:
        path: where the arrays are from; error messages name it.
        name: see `read_npz`.
        arrays: some of `ARRAYS`, by name.

    Raises:
        InputError: an array is absent, has another type or shape, or does not fit to the others, or a class has no
            training or no test images.
    """
    splits = [split for split in SPLITS if split != "val" or "val_images" in arrays or "val_labels" in arrays]
    data = [_images_and_labels(path, arrays, split) for split in splits]
    (images, labels), *_ = data
    present = set(labels.tolist())
    absent = min(set(range(len(present) + 1)) - present)
    found = f"train_labels go from {min(present)} to {max(present)}"
    _require(absent == len(present), path, f"{found} without {absent}; give the labels 0, 1, 2, ... without a gap")
    _require(len(present) > 1, path, f"{found}, a single class; give 2 or more")
    for split, (others, other_labels) in zip(splits, data, strict=True):
        shapes = f"an image of {split} is {others.shape[1:]}, one of train {images.shape[1:]}"
        _require(others.shape[1:] == images.shape[1:], path, f"{shapes}; give all the same size and channels")
        unknown = set(other_labels.tolist()) - present
        only_here = f"{split}_labels contain {min(unknown, default=None)}, train_labels do not"
        _require(not unknown, path, f"{only_here}; give every class training images")
    untested = sorted(present - set(data[1][1].tolist()))
    _require(not untested, path, f"test_labels have no {first_of(untested)}; give every class test images")
    classes = arrays["classes"] if "classes" in arrays else _official_classes(name, len(present))
    given = f"classes are {classes.dtype} of shape {classes.shape}"
    fine = classes.dtype.kind == "U" and classes.shape == (len(present),)
    _require(fine, path, f"{given}; give {len(present)} strings, one per class in train_labels")
    repeated = [name for name, n in Counter(classes.tolist()).items() if n > 1]
    _require(not repeated, path, f"several classes are named {first_of(repeated)}; give each class its own name")
    return ImageDataset(name, tuple(classes.tolist()), *(array for pair in data for array in pair))


def _check_unpacked_size(npz: zipfile.ZipFile) -> None:
    """Refuse an archive whose arrays do not fit into memory; no member is read beyond the size that it declares."""
    needed = sum(member.file_size for member in npz.infolist() if member.filename.removesuffix(".npy") in ARRAYS)
    available = available_bytes()
    if available is not None and needed > available:
        raise ValueError(f"its arrays need {in_gib(needed)} of memory, and {in_gib(available)} are available here")


def _read_array(npz: zipfile.ZipFile, key: str) -> np.ndarray:
    with npz.open(f"{key}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        # Reading to the end verifies the checksum; np.load stops at the size in the header.
        if file.read(1):
            raise ValueError(f"{key} is longer than its header says")
    return array


def _images_and_labels(path: Path | str, arrays: dict[str, np.ndarray], split: str) -> tuple[np.ndarray, np.ndarray]:
    keys = f"{split}_images", f"{split}_labels"
    for key in keys:
        _require(key in arrays, path, f"has no {key}; give images and labels of train, test and optionally val")
    images, labels = (arrays[key] for key in keys)
    given = f"{split}_images are {images.dtype} of shape {images.shape}"
    images = images[..., None] if images.ndim == 3 else images
    square = images.ndim == 4 and images.shape[1] == images.shape[2] and images.shape[3] in (1, 3)
    layout = "give uint8 of shape (N, H, H), (N, H, H, 1) or (N, H, H, 3)"
    _require(square and images.dtype == np.uint8 and images.size > 0, path, f"{given}; {layout}, N at least 1")
    given = f"{split}_labels are {labels.dtype} of shape {labels.shape}"
    single = labels.dtype.kind in "iu" and labels.shape in ((labels.size,), (labels.size, 1))
    _require(single, path, f"{given}; give whole numbers, (N,) or (N, 1): one label per image, not several")
    _require(len(labels) == len(images), path, f"{given} for {len(images)} images; give one label per image")
    return images, labels.reshape(-1).astype(np.int64)


def _official_classes(name: str, n_classes: int) -> np.ndarray:
    """Class names for a file without them: MedMNIST's for an official file that the user downloaded, or numbers."""
    medmnist = medmnist_sets() if len(sizes_of(name)) > 1 else {}
    names = list(medmnist[name]["label"].values()) if name in medmnist else []
    return np.array(names if len(names) == n_classes else [str(label) for label in range(n_classes)])


def read_folder(root: Path, size: int) -> ImageDataset:
    """Read a folder of image files: `<class>/*.png`, or `train/<class>`, `test/<class>` and optionally `val/<class>`.

    Images have one channel if all are grey, otherwise three. Without test images, an evenly spaced fifth of each class
    is held out. Files outside the class folders, in their sub-folders, or without a suffix of `IMAGE_FILES` are not
    read, see `unused_files`; a log message (level INFO) counts them.

    Args:
        root: the folder; its name becomes the name of the data set.
        size: pixels per side; images are resized and centre-cropped.

    Raises:
        InputError: there are fewer than two classes, `train` has a folder beside it that is not a split, the classes of
            the splits differ, a class has too few images, images can't be read, or they need more memory than is
            available.
    """
    folders = _split_folders(root)
    files = {split: _class_files(folder) for split, folder in folders.items()}
    classes = tuple(files["train"])
    layout = "<class>/*.png or train/<class>/*.png"
    _require(len(classes) > 1, folders["train"], f"has {len(classes)} class folders; give 2 or more, as in {layout}")
    named_like_splits = all(name.lower() in _LIKE_SPLITS for name in classes)
    loose = f"its folders {', '.join(classes)} hold images, not class folders; give {layout}"
    _require(not named_like_splits, root, loose)
    scarce = [name for name, found in files["train"].items() if len(found) == 1 and "test" not in folders]
    scarce_classes = f"only one image of {', '.join(scarce)}"
    _require(not scarce, folders["train"], f"{scarce_classes}; give 2 or more, for training and for testing")
    for split, folder in folders.items():
        differing = ", ".join(sorted(set(classes) ^ set(files[split])))
        _require(not differing, folder, f"its classes and those of train differ: {differing}; give both the same")

    n_images = sum(len(found) for of_split in files.values() for found in of_split.values())
    needed, available = 2 * n_images * size**2 * 3, available_bytes()  # The splits are a second copy.
    if available is not None and needed > available:
        reason = f"{n_images} images of {size} pixels per side need {in_gib(needed)} of memory, and {in_gib(available)}"
        raise InputError("image_size", size, f"{reason} are available here; give fewer pixels or fewer images")
    numbers = np.arange(len(classes), dtype=np.int64)
    in_order = {split: [file for found in of_class.values() for file in found] for split, of_class in files.items()}
    images, lost = read_images([file for of_split in in_order.values() for file in of_split], size)
    if (images == images[..., :1]).all():  # All images are grey: store one channel.
        images = images[..., :1].copy()
    of_splits = np.split(images, np.cumsum([len(of_split) for of_split in in_order.values()])[:-1])
    labels = [np.repeat(numbers, [len(found) for found in of_class.values()]) for of_class in files.values()]
    data = [array for pair in zip(of_splits, labels, strict=True) for array in pair]
    train_files = np.array([str(file.relative_to(root)) for file in in_order["train"]], object)
    if "test" not in files:
        train_files = train_files[~held_out(labels[0])]
        data[:2] = _hold_out(*data[:2])
    if unused := [str(file.relative_to(root)) for file in unused_files(root)]:
        where = "images are read from the class folders, not from folders inside them"
        _log.info("files in %s that are not used: %d (%s); %s", root.name, len(unused), first_of(unused), where)
    report_cropped(root.name, lost)
    return ImageDataset(root.resolve().name, classes, *data, train_files=tuple(train_files))


def count_classes(path: Path) -> int | None:
    """The number of classes of an .npz or a folder, without reading an image; None if it can't be read."""
    with suppress(Exception):  # A damaged file can raise any error; reading its images reports it.
        if path.is_dir():
            return len(_class_files(_split_folders(path)["train"]))
        with zipfile.ZipFile(regular_file(path)) as npz:
            return len(np.unique(_read_array(npz, "train_labels")))
    return None


def unused_files(root: Path) -> list[Path]:
    """The files of a folder that `read_folder` does not read, sorted, without hidden ones.

    Raises:
        InputError: the folder has no classes that could be read.
    """
    used = {file for folder in _split_folders(root).values() for of in _class_files(folder).values() for file in of}
    visible = (file for file in root.rglob("*") if not any(part[0] == "." for part in file.relative_to(root).parts))
    return sorted(file for file in visible if file.is_file() and file not in used)


def _split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split; the folder itself is that of the training images if it has no splits.

    Raises:
        InputError: a folder beside `train` is not a split.
    """
    if not (root / "train").is_dir() or not _folders_in(root / "train"):
        return {"train": root}
    others = [folder.name for folder in _folders_in(root) if folder.name not in SPLITS]
    beside = f"has the folder {first_of(others)} beside train"
    _require(not others, root, f"{beside}; give train, test and optionally val, and nothing else")
    return {split: root / split for split in SPLITS if (root / split).is_dir()}


def _folders_in(folder: Path) -> list[Path]:
    """The sub-folders of a folder, sorted by name, without hidden ones."""
    return sorted(inside for inside in folder.iterdir() if inside.is_dir() and inside.name[0] != ".")


def _class_files(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class folder; classes and files are sorted by name."""
    files = {}
    for inside in _folders_in(folder):
        found = sorted(f for f in inside.iterdir() if f.suffix.lower() in IMAGE_FILES and f.name[0] != ".")
        if not found:
            raise InputError("dataset", str(inside), _why_without_images(inside))
        files[inside.name] = found
    return files


def _why_without_images(folder: Path) -> str:
    """What is wrong with a class folder that has no images, and what to do."""
    inside = first_of([sub.name for sub in _folders_in(folder)])
    if inside and folder.name.lower() in _LIKE_SPLITS:
        what = f"is taken as a class, but has only folders ({inside})"
        return f"{what}; if it is a split, name the splits train, test and optionally val"
    if not inside:
        return f"a class folder without images; give some ({' '.join(IMAGE_FILES)})"
    advice = f"move those of its sub-folders ({inside}) up, each with a name of its own"
    patients = "if a sub-folder is a patient, give train/<class> and test/<class>, with no patient in both"
    return f"a class folder without images; {advice}; {patients}"


def first_of(values: Sequence[object]) -> str:
    """The first values, and how many more there are: "a, b, c and 4 more"."""
    more = f" and {len(values) - MOST_NAMED} more" if len(values) > MOST_NAMED else ""
    return ", ".join(map(str, values[:MOST_NAMED])) + more


def _require(fine: bool, source: Path | str, reason: str) -> None:
    if not fine:
        raise InputError("dataset", str(source), reason)
