"""Data sets by name or path: digits, CIFAR, MedMNIST, an .npz file, a folder of class folders, or your own function.

Libraries that contain or download data are imported by the functions that use them. Importing this module is therefore
fast, and reading an existing .npz needs numpy only.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ucl.catalogue import has_separator, is_user_object, plain_name
from ucl.errors import InputError, first_of, one_line
from ucl.fields import check_field
from ucl.machine.terminal import log_messages
from ucl.streams import own_images
from ucl.streams.downloads import CIFAR, LAYOUTS, OFFICIAL_NAMES, fetch, medmnist_sets, sizes_of
from ucl.streams.image_dataset import SPLITS, ImageDataset, as_dataset
from ucl.streams.image_files import read_digits, read_folder, read_npz, samples_in
from ucl.streams.pixels import decode

_log = logging.getLogger(__name__)


class Listing(NamedTuple):
    """A data set that `load` knows by name; `where` is its file, or "" if it has not been downloaded yet."""

    name: str
    source: str
    classes: int
    image_size: int
    where: str


def data_folder(root: str | Path | None = None) -> Path:
    """The folder of the data sets: `root` if given, otherwise $UCL_DATA if set, otherwise ~/.cache/ucl."""
    return Path(os.path.expanduser(root or os.environ.get("UCL_DATA") or "~/.cache/ucl"))


def load(name: str, root: str | Path | None = None, image_size: int | None = None) -> ImageDataset:
    """Load a data set by its name or path; a known set that is not in the data folder yet is downloaded first.

    Args:
        name: digits, cifar10, cifar100, bloodcell, a MedMNIST 2-D set such as pathmnist, the name of an .npz in the
            data folder, a path, or a user's function (`ucl.streams.own_images`). A name is a path if it has
            a separator, ends in .npz or is a folder in the working folder. The suffix "-lt" does not change the images.
            An .npz has MedMNIST's layout and must fit into memory. A function can return images that do not, such as
            `numpy.load(file, mmap_mode="r")` of an .npy: batches are read from the file when they are needed.
            A folder contains `<class>/*.png`, or `train/<class>`, `test/<class>` and optionally `val/<class>`, and no
            folder of another name next to them. Without test images, an evenly spaced fifth of each class is held out.
            With a folder per patient, `<class>/<patient>/*.png`, all images of a patient are in one split; folders with
            the same name are one patient, and one in two given splits is refused. In an .npz, `train_patients` and,
            with the other splits, `test_patients` and `val_patients` do the same: a number or a text per image.
        root: the data folder, see `data_folder`.
        image_size: pixels per side. MedMNIST sets have 28 (default), 64, 128 or 224. The images of a folder are resized
            and centre-cropped to any size up to 512 (default 32), and so are those of a function that returns items,
            not arrays (default: the size of the first image if it is square, otherwise 32). Other sets have only one
            size.

    A log message (level WARNING) counts the test images of your own data that are also training images.

    Raises:
        InputError: (a ValueError) the name is unknown, or the data can't be downloaded or used.
    """
    name = os.fspath(name)
    if image_size is not None:
        check_field("image_size", image_size)
    plain, folder, path = plain_name(name), data_folder(root), provide(name, root, image_size)
    called = plain
    class_names: list[str] = []
    with _refusals("dataset", plain if path is None else path):
        if is_user_object(plain):
            arrays, class_names = own_images.read(plain, folder, image_size)
        elif path is None:
            arrays = read_digits()
        elif path.is_dir():
            called, arrays = path.resolve().name, read_folder(path, image_size or 32, folder)
        else:
            called, arrays = path.stem if is_path(plain) else plain, read_npz(path)
            if called not in CIFAR and sizes_of(called):
                class_names = list(medmnist_sets()[called]["label"].values())
        data = as_dataset(called, arrays, folder, class_names)
    if image_size not in (None, data.image_size):
        raise InputError("image_size", image_size, f"{name} has {data.image_size} pixels per side; give that or none")
    if is_user_object(plain) or is_path(plain):
        learnt = set(_hashes(data.train_images))
        if n_leaked := sum(image in learnt for image in _hashes(data.test_images)):
            facts = name, n_leaked, len(data.test_labels)
            _log.warning("%s: %d of %d test images are also training images, pixel by pixel", *facts)
    return data


def read_images(files: Sequence[str | Path], image_size: int, channels: int = 3) -> np.ndarray:
    """Image files as a network takes them, such as new ones: (N, C, H, W), uint8, resized as those of a folder.

        network = ucl.models.load(record)
        logits = network(torch.from_numpy(ucl.datasets.read_images(["new.png"], 32)))

    Args:
        files: the files, or one of them.
        image_size, channels: of the images that the network has learnt; 1 channel for grey images.

    Raises:
        InputError: a file can't be used, or it is in colour and `channels` is 1.
    """
    files = [files] if isinstance(files, (str, Path)) else files
    paths = [Path(os.path.expanduser(file)) for file in files]
    items = {"new": (len(paths), ((str(path), path, 0) for path in paths))}
    with _refusals("files", first_of(files)):
        images: np.ndarray = decode("new images", items, image_size, data_folder())["new_images"]
    if images.shape[-1] > channels:
        raise InputError("files", first_of(files), "not all are grey, as the images that the network has learnt")
    return images.repeat(channels // images.shape[-1], axis=-1).transpose(0, 3, 1, 2)


def files_in_memory(record: Any, root: str | Path | None = None) -> list[str]:
    """The files of the images in the final memory of a run on a folder, relative to the folder, in the memory's order.

    Raises:
        InputError: see `load`; or the data set is no folder, or its images are no longer those of the run.
    """
    config = record.config
    data = load(config.dataset, root, config.image_size)
    if data.train_files is None:
        raise InputError("dataset", config.dataset, "is no folder of images")
    if data.fingerprint != record.data["fingerprint"]:
        raise InputError("dataset", config.dataset, "has other images than those of the run")
    return [data.train_files[position] for position in record.memory["position"]]


def _hashes(images: np.ndarray) -> list[str]:
    """(N,): a text for each image, equal for equal images only."""
    return [hashlib.sha256(image.tobytes()).hexdigest() for image in images]


@contextmanager
def _refusals(name: str, value: str | Path) -> Iterator[None]:
    """Within the block, a `ValueError` or `OSError` becomes an `InputError` that names this argument."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, OSError) as error:
        raise InputError(name, str(value), one_line(error)) from error


def provide(name: str, root: str | Path | None = None, image_size: int | None = None) -> Path | None:
    """The file or folder of a data set, which is downloaded if it is a known set that is not in the data folder yet.

    The arguments are those of `load`. No image is read, and no user's function is called.

    Returns:
        The path; None for digits and a function, which have none.

    Raises:
        InputError: the name is unknown, there is no such file or folder, the data can't be downloaded, or a file or
            folder has the name of a long-tailed version.
    """
    plain, path = plain_name(name), _path(name, root, image_size)
    if path is not None and plain != name:
        in_data_folder = sizes_of(plain) or not is_path(name)
        same_name = data_folder(root) / f"{name}.npz" if in_data_folder else Path(os.path.expanduser(name))
        if os.path.exists(same_name):
            reason = f"names both {same_name} and the long-tailed {plain}"
            raise InputError("dataset", name, f"{reason}; rename {same_name}, without -lt at the end")
    if path is None or os.path.exists(path):
        return path
    if not plain or is_path(plain):
        raise InputError("dataset", name, f"no such file or folder; give {LAYOUTS}, or a name such as 'digits'")
    sizes = sizes_of(plain)
    if sizes and image_size not in (None, *sizes):
        raise InputError("image_size", image_size, f"{name} has {', '.join(map(str, sizes))} pixels per side")
    fetch(plain, path)
    return path


def stamp(name: str, root: str | Path | None = None, image_size: int | None = None) -> str:
    """A text that changes when the names, sizes or times of a data set's files change. No image is read.

    The arguments are those of `load`. The text is "" if the data set is not on this machine.

    Raises:
        InputError: a folder of the data set can't be used or listed.
    """
    plain, path = plain_name(name), _path(name, root, image_size)
    if path is None:  # Which files a user's function reads is not known.
        return plain
    files = [path]
    with _refusals("dataset", path):
        if path.is_dir():
            files = [sample.file for samples in samples_in(path)[1].values() for sample in samples]
        existing = [(file, file.stat()) for file in files if os.path.exists(file)]  # A link may be broken.
        facts = [(str(f.absolute()), s.st_size, s.st_mtime_ns, s.st_ctime_ns) for f, s in existing]
        return hashlib.sha256(repr(facts).encode()).hexdigest() if facts else ""


def check(name: str, root: str | Path | None = None, image_size: int | None = None) -> dict[str, Any]:
    """Load a data set and summarise it.

    The user's function is called twice, because a run counts only for equal images.

    Returns:
        Numbers of images (and patients, if they are known) in each split, in the smallest and largest class (training
        images), of test images in the class with the fewest, of classes, shape and fingerprint; how many images of a
        split are equal, pixel by pixel, to an image of another split or class; "sizes", a table with a row
        per class and the same numbers; and "remarks", a line each on files that are not used, images that are cropped,
        splits without a bright pixel, and folders that are patients.

    Raises:
        InputError: see `load`; or the user's function returned other images in the second call.
    """
    import pandas as pd

    remarks: list[str] = []
    with log_messages(remarks.append):
        data = load(name, root, image_size)
        if is_user_object(plain_name(os.fspath(name))) and load(name, root, image_size).fingerprint != data.fingerprint:
            raise InputError("dataset", name, "returned other images in a second call; return the same at each call")
    facts: dict[str, Any] = {"name": data.name}
    sizes = pd.DataFrame(index=pd.Index(data.classes, name="class"))
    splits = [split for split in SPLITS if getattr(data, f"{split}_images") is not None]
    hashes = {}
    for split in splits:
        images, labels, patients = (getattr(data, f"{split}_{part}") for part in ("images", "labels", "patients"))
        hashes[split] = _hashes(images)
        facts[f"{split} images"] = len(labels)
        sizes[f"{split} images"] = np.bincount(labels, minlength=data.n_classes)
        if patients is not None:
            facts[f"{split} patients"] = len(np.unique(patients))
            sizes[f"{split} patients"] = [len(np.unique(patients[labels == c])) for c in range(data.n_classes)]
    facts["smallest class"], facts["largest class"] = sizes["train images"].agg(["min", "max"]).tolist()
    facts["fewest test images of a class"] = int(sizes["test images"].min())
    facts |= {"classes": data.n_classes, "image size": data.image_size, "channels": data.channels}
    facts["fingerprint"] = data.fingerprint
    for split, other in combinations(splits, 2):
        facts[f"{other} images that are also {split} images"] = int(pd.Series(hashes[other]).isin(hashes[split]).sum())
    n_classes = pd.Series(data.train_labels).groupby(hashes["train"]).nunique()
    facts["train images in several classes"] = int((n_classes > 1).sum())
    return {**facts, "sizes": sizes, "remarks": remarks}


def available(root: str | Path | None = None) -> list[Listing]:
    """The data sets that `load` knows by name, with their files in the data folder `root`."""
    sets = {name: ("torchvision", n_classes, 32) for name, n_classes in CIFAR.items()}
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
    return os.path.isdir(name) and name != "digits" and not sizes_of(name)


def _path(name: str, root: str | Path | None, image_size: int | None) -> Path | None:
    """Where a data set is or, if it must be downloaded, will be; None for digits and a user's function."""
    plain = plain_name(name)
    if plain == "digits" or is_user_object(plain):
        return None
    return Path(os.path.expanduser(plain)) if is_path(plain) else _file(plain, data_folder(root), image_size)


def _file(name: str, folder: Path, image_size: int | None = None) -> Path:
    """The file of a data set in the data folder, whether it exists already or not."""
    size = f"_{image_size}" if image_size in sizes_of(name)[1:] else ""
    ours, official = (folder / f"{n}{size}.npz" for n in (name, OFFICIAL_NAMES.get(name, name)))
    return official if os.path.exists(official) and not os.path.exists(ours) else ours
