"""Data sets by name or path: digits, CIFAR, MedMNIST, an .npz file, a folder of class folders, or your own function.

Libraries that contain or download data are imported by the functions that use them. Importing this module is therefore
fast, and reading an existing .npz needs numpy only.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ucl import user_objects
from ucl.catalogue import has_separator, is_own, plain_name
from ucl.errors import InputError, whole_number
from ucl.machine.messages import log_messages
from ucl.streams import own_images
from ucl.streams.class_folders import contents
from ucl.streams.downloads import OFFICIAL_NAMES, OTHERS, PATHS, fetch, medmnist_sets, sizes_of
from ucl.streams.image_dataset import SPLITS, ImageDataset
from ucl.streams.image_files import as_dataset, count_classes, read_digits, read_folder, read_npz

STEADY = "return the same images at each call"
"""The advice for a function of the user's own whose images differ between two calls."""


@dataclass(frozen=True)
class Listing:
    """A data set that `load` knows by name.

    Attributes:
        name: the name that `load` takes.
        source: the library that has it, such as scikit-learn or torchvision, or its class in medmnist.
        classes: number of classes.
        image_size: pixels per side, by default.
        where: its file, or "" if it has not been downloaded yet.
    """

    name: str
    source: str
    classes: int
    image_size: int
    where: str


def data_folder(root: str | Path | None = None) -> Path:
    """The folder of the data sets: `root` if given, otherwise $UCL_DATA if set, otherwise ~/.cache/ucl."""
    folder = root or os.environ.get("UCL_DATA") or "~/.cache/ucl"
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise InputError("data", os.fspath(folder), "no such home folder; give the whole path") from None


def load(name: str, root: str | Path | None = None, image_size: int | None = None) -> ImageDataset:
    """Load a data set by its name or path; a known set that is not in the data folder yet is downloaded first.

    Args:
        name: digits, cifar10, cifar100, bloodcell, a MedMNIST 2-D set such as pathmnist, the name of an .npz in the
            data folder, a path, or a function of the user's own (`ucl.streams.own_images`). A name is a path if it has
            a separator, ends in .npz or is a folder in the working folder. An .npz has MedMNIST's layout. A folder
            contains `<class>/*.png`, or `train/<class>`, `test/<class>` and optionally `val/<class>`, and no folder of
            another name beside them. Without test images, an evenly spaced fifth of each class is held out. With a
            folder per patient, `<class>/<patient>/*.png`, all images of a patient are in one split; folders with the
            same name are one patient, and one in two given splits is refused. The suffix "-lt" does not change the
            images.
        root: the data folder, see `data_folder`.
        image_size: pixels per side. MedMNIST sets have 28 (default), 64, 128 or 224. The images of a folder are resized
            and centre-cropped to any size (default 32), and so are those of a function that returns items, not arrays.
            Other sets have only one size.

    Raises:
        InputError: (a ValueError) the name is unknown, or the data can't be downloaded or used.
    """
    name = os.fspath(name)
    if image_size is not None:
        whole_number("image_size", image_size, 1, 10_000, "pixels per side")
    if not name:
        raise InputError("dataset", name, "is empty; give a name or a path, such as 'digits'")
    plain, file = plain_name(name), provide(name, root, image_size)
    if is_own(plain):
        data = as_dataset(plain, plain, own_images.read(plain, data_folder(root), image_size))
    elif file is None:
        data = read_digits()
    elif file.is_dir():
        data = read_folder(file, image_size or 32)
    else:
        data = read_npz(file, file.stem if _existing_path(name) else plain)
    if image_size not in (None, data.image_size):
        raise InputError("image_size", image_size, f"{name} has {data.image_size} pixels per side; give that or none")
    return data


def provide(name: str, root: str | Path | None = None, image_size: int | None = None) -> Path | None:
    """The file or folder of a data set, which is downloaded if it is a known set that is not in the data folder yet.

    No image is read, and the function of a data set of the user's own is not called.

    Args:
        name, root, image_size: see `load`.

    Returns:
        The path; None for digits and a function, which have none.

    Raises:
        InputError: the name is unknown, there is no such file or folder, or the data can't be downloaded.
    """
    plain, path = plain_name(name), _existing_path(name)
    if path or plain == "digits" or is_own(plain):
        return path
    if is_path(name) or is_path(plain):
        raise InputError("dataset", name, f"no such file or folder; give {PATHS}, or a name such as 'digits'")
    sizes = sizes_of(plain)
    if sizes and image_size not in (None, *sizes):
        raise InputError("image_size", image_size, f"{name} has {', '.join(map(str, sizes))} pixels per side")
    file = _file(plain, data_folder(root), image_size)
    if not file.is_file():
        fetch(plain, file)
    return file


def check_tasks(name: str, n_tasks: int, root: str | Path | None = None, image_size: int | None = None) -> None:
    """Check that a data set has a class for each task. Nothing is downloaded.

    No image is read, and the function of a data set of the user's own is not called: nothing is checked there.

    Args:
        name, root, image_size: see `load`.
        n_tasks: number of tasks, 1 or more.

    Raises:
        InputError: it has fewer classes than tasks.
    """
    plain, path = plain_name(name), _existing_path(name)
    if is_own(plain) or (path is None and (is_path(name) or is_path(plain))):
        return
    file = path or _file(plain, data_folder(root), image_size)
    known = {row.name: row.classes for row in available(root)} if path is None else {}
    n_classes = count_classes(file) if file.exists() else known.get(plain)
    if n_classes:
        check_split(name, n_classes, n_tasks)


def check_split(name: str, n_classes: int, n_tasks: int) -> None:
    """Check that the data set `name` has a class for each task.

    Raises:
        InputError: it has fewer classes than tasks.
    """
    if n_tasks > n_classes:
        raise InputError("n_tasks", n_tasks, f"{name} has {n_classes} classes; give {n_classes} or fewer")


def stamp(name: str, root: str | Path | None = None, image_size: int | None = None) -> str:
    """A hash of the names, sizes and times of a data set's files; it changes when they change. No image is read.

    Links in a folder are followed, and hidden files left out, as when its images are read.

    Args:
        name, root, image_size: see `load`.

    Returns:
        16 hexadecimal digits; "" if the data set is not on this machine.

    Raises:
        OSError: a folder of the data set can't be listed.
    """
    plain, path = plain_name(name), _existing_path(name)
    if plain == "digits":
        facts: list[tuple] = [("digits",)]
    elif is_own(plain):  # Which files its function reads is unknown, so the images are read once per process.
        facts = [(plain, os.getcwd(), user_objects.source_hash([plain]))]
    else:
        if path is None and not (is_path(name) or is_path(plain)):
            path = _file(plain, data_folder(root), image_size)
        if path is None or not path.exists():
            return ""
        files = sorted(contents(path)) if path.is_dir() else [path]
        existing = [(file, file.stat()) for file in files if file.exists()]  # A link may be broken.
        facts = [(str(f.absolute()), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for f, s in existing]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def check(name: str, root: str | Path | None = None, image_size: int | None = None) -> dict[str, Any]:
    """Load a data set and summarise it.

    The user's own function is called twice, because a run counts only for equal images.

    Returns:
        Numbers of images and classes, shape, fingerprint; "class sizes", "test class sizes" and "val class sizes", the
        name of each class with its number of training, test and validation images (empty without such images); the
        same for patients ("class patients"), if they are known; `REPEATED`; and "remarks", a line each on files that
        are not used, images that are cropped, and folders that are patients.

    Raises:
        InputError: see `load`; or the user's own function returned other images in the second call.
    """
    with log_messages() as remarks:
        before = load(name, root, image_size).fingerprint if is_own(plain_name(os.fspath(name))) else ""
        data = load(name, root, image_size)
    if before not in ("", data.fingerprint):
        found = f"returned other images in a second call (fingerprint {data.fingerprint} instead of {before})"
        raise InputError("dataset", name, f"{found}; {STEADY}")
    labels = {split: getattr(data, f"{split}_labels") for split in SPLITS}
    sizes = {
        split: [] if of_split is None else np.bincount(of_split, minlength=data.n_classes).tolist()
        for split, of_split in labels.items()
    }
    named = {split: list(zip(data.classes, of_split)) for split, of_split in sizes.items()}
    return {
        "name": data.name,
        **{f"{split} images": sum(of_split) for split, of_split in sizes.items()},
        **_patients(data),
        "classes": data.n_classes,
        "smallest class": min(sizes["train"]),
        "largest class": max(sizes["train"]),
        "image size": data.image_size,
        "channels": data.channels,
        "fingerprint": data.fingerprint,
        "class sizes": named["train"],
        "test class sizes": named["test"],
        "val class sizes": named["val"],
        **_equal_images(data),
        "remarks": remarks,
    }


def _patients(data: ImageDataset) -> dict[str, Any]:
    """For each split the number of its patients, in all and of each class; empty if they are not known."""
    facts: dict[str, Any] = {}
    for split in SPLITS:
        patients, labels = getattr(data, f"{split}_patients"), getattr(data, f"{split}_labels")
        if patients is not None:
            facts[f"{split} patients"] = len(np.unique(patients))
            of_class = [len(np.unique(patients[labels == label])) for label in range(data.n_classes)]
            prefix = "" if split == "train" else f"{split} "
            facts[f"{prefix}class patients"] = list(zip(data.classes, of_class, strict=True))
    return facts


REPEATED = {
    "test images that are also training images": "test image that is also a training image",
    "validation images that are also training images": "validation image that is also a training image",
    "validation images that are also test images": "validation image that is also a test image",
    "training images in several classes": "training image in several classes",
}
"""Facts of `check`, and their words for a single image: numbers of images that are equal, pixel by pixel."""


def _equal_images(data: ImageDataset) -> dict[str, int]:
    """The facts `REPEATED` of a data set; those of validation images only if it has some."""
    of_split = {split: getattr(data, f"{split}_images") for split in SPLITS}
    digests = {split: [_digest(image) for image in images] for split, images in of_split.items() if images is not None}
    of_image: dict[bytes, set[int]] = {}  # the labels of each training image
    for digest, label in zip(digests["train"], data.train_labels.tolist(), strict=True):
        of_image.setdefault(digest, set()).add(label)
    tests = set(digests["test"])
    in_test, in_validation, in_both, ambiguous = REPEATED
    facts = {in_test: sum(digest in of_image for digest in digests["test"])}
    if "val" in digests:
        facts[in_validation] = sum(digest in of_image for digest in digests["val"])
        facts[in_both] = sum(digest in tests for digest in digests["val"])
    return {**facts, ambiguous: sum(len(labels) > 1 for labels in of_image.values())}


def _digest(image: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()


def available(root: str | Path | None = None) -> list[Listing]:
    """The data sets that `load` knows by name, with their files in the data folder `root`."""
    sets = {name: (known.library, known.n_classes, known.image_size) for name, known in OTHERS.items()}
    for name, info in medmnist_sets().items():
        if "multi-label" not in info["task"] and name not in OFFICIAL_NAMES.values():
            sets[name] = (info["python_class"], len(info["label"]), 28)
    files = {name: _file(name, data_folder(root)) for name in sets}
    rows = (Listing(name, *facts, str(files[name]) if files[name].is_file() else "") for name, facts in sets.items())
    return [Listing("digits", "scikit-learn", 10, 32, "inside scikit-learn"), *rows]


def is_path(name: str) -> bool:
    """Whether `load` treats a name as a path: it has a separator, ends in .npz or is a folder in the working folder."""
    if has_separator(name) or name.endswith(".npz"):
        return True
    return os.path.isdir(name) and plain_name(name) not in ("digits", *OTHERS, *medmnist_sets())


def _existing_path(name: str) -> Path | None:
    """The file or folder of a path, without "-lt"; None if it does not exist.

    Raises:
        InputError: the name with "-lt" is that of a file or folder: are its images meant, or some of the plain one's?
    """
    # Functions of os.path, as those of Path raise errors for a name that is too long and for an unknown user's home.
    plain = plain_name(name)
    if plain != name and is_path(name) and os.path.exists(os.path.expanduser(name)):
        reason = f"there is one of this name, but -lt at the end means a long-tailed part of {plain}"
        raise InputError("dataset", name, f"{reason}; rename it, or give {name}{os.sep} for all images of this folder")
    path = os.path.expanduser(plain)
    return Path(path) if is_path(plain) and os.path.exists(path) else None


def _file(name: str, folder: Path, image_size: int | None = None) -> Path:
    """The file of a data set in the data folder, whether it exists already or not."""
    size = f"_{image_size}" if image_size in sizes_of(name)[1:] else ""
    ours, official = (folder / f"{n}{size}.npz" for n in (name, OFFICIAL_NAMES.get(name, name)))
    return official if official.is_file() and not ours.is_file() else ours
