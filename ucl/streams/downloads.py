"""Downloads of the data sets that are known by name: official files, checksummed, stored as one .npz each."""

from __future__ import annotations

import functools
import os
import re
import runpy
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ucl.catalogue import MEDMNIST
from ucl.errors import InputError, one_line, one_of

OFFICIAL_NAMES = {"bloodcell": "bloodmnist"}  # MedMNIST's names, where ours differ
PATHS = "a path to an .npz in MedMNIST's layout or to a folder of class folders"
OWN = "your own function as package.module:function"
ABANDONED_AFTER = 86400.0  # seconds without a change after which the files of a download count as abandoned


def sizes_of(name: str) -> tuple[int, ...]:
    """The image sizes of a named set, in pixels per side; empty if only its file shows them."""
    if name in OTHERS:
        return (OTHERS[name].image_size,)
    return (28, 64, 128, 224) if OFFICIAL_NAMES.get(name, name) in MEDMNIST else ()


def name_and_size(stem: str) -> tuple[str, int | None]:
    """The name of a set, and its size if MedMNIST's name of the file has one: bloodmnist_64 is bloodmnist, 64."""
    found = re.fullmatch(r"(.*mnist)_(64|128|224)", stem)
    return (found[1], int(found[2])) if found else (stem, None)


def medmnist_sets() -> dict[str, dict[str, Any]]:
    """medmnist's facts about its 2-D sets, by the names that `load` takes: class names, addresses, checksums."""
    known = _medmnist_info()
    ours = {name: known[official] for name, official in OFFICIAL_NAMES.items()}
    return {**ours, **{name: info for name, info in known.items() if not name.endswith("3d")}}


@functools.cache
def _medmnist_info() -> dict[str, dict[str, Any]]:
    """medmnist's table of its sets, read from its file: importing medmnist would import torch, which takes seconds."""
    package = find_spec("medmnist")
    assert package is not None and package.origin is not None
    return runpy.run_path(str(Path(package.origin).with_name("info.py")))["INFO"]


def fetch(name: str, target: Path) -> None:
    """Download a known data set to `target`, completely or not at all.

    Raises:
        InputError: the name is unknown, its images have several labels at once, or the download failed.
    """
    if name in OTHERS:
        download, official = OTHERS[name].download, OTHERS[name].official
    else:
        sets = medmnist_sets()
        several = [known for known, info in sets.items() if "multi-label" in info["task"]]
        if name in several:
            raise InputError("dataset", name, "its images have several labels at once; give a set with one label each")
        plain, size = name_and_size(name)
        if size and plain in sets:
            raise InputError("dataset", name, f"is a set and its size; give {plain}, with image_size {size}")
        known_names = ["digits", *OTHERS, *(known for known in sets if known not in several)]
        one_of("dataset", name, known_names, f"data set ({PATHS}, or {OWN}, works too)")
        official = f"{target.name.replace(name, OFFICIAL_NAMES.get(name, name))} from medmnist.com"
        download = _fetch_medmnist
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        # In the target's folder, so that the move is atomic; with a random name, so that two processes never share it.
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as work:
            download(name, Path(work, target.name), folder)
            os.replace(Path(work, target.name), target)
    except Exception as error:
        advice = f"try again, or put {official} into {folder}, or its images in MedMNIST's layout at {target}"
        raise InputError("dataset", name, f"can't be downloaded ({one_line(error)}); {advice}") from None


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed downloads left in a folder."""
    names = (*OTHERS, *OFFICIAL_NAMES, *medmnist_sets())
    for work in (found for name in names for found in folder.glob(f".{name}-????????")):
        with suppress(OSError):  # Another process may remove it too.
            if time.time() - work.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(work)


def _fetch_cifar(name: str, file: Path, folder: Path) -> None:
    import torchvision.datasets
    from torchvision.datasets.utils import check_integrity, extract_archive

    source = getattr(torchvision.datasets, name.upper())
    archive = folder / source.filename
    if archive.is_file():
        if not check_integrity(archive, source.tgz_md5):
            raise ValueError(f"{archive} is damaged: its MD5 is not the official one; delete it")
        extract_archive(archive, file.parent)
    train, test = (source(file.parent, train=part, download=True) for part in (True, False))
    arrays = {"train_images": train.data, "test_images": test.data, "classes": train.classes}
    np.savez(file, train_labels=train.targets, test_labels=test.targets, **arrays)


def _fetch_medmnist(name: str, file: Path, folder: Path) -> None:
    from torchvision.datasets.utils import download_url

    info, size = medmnist_sets()[name], file.stem.removeprefix(name)
    # medmnist's own download hides the cause of an error, and treats Ctrl-C as a failure.
    download_url(info[f"url{size}"], file.parent, file.name, info[f"MD5{size}"])
    with zipfile.ZipFile(file, "a") as npz, npz.open("classes.npy", "w") as member:
        np.lib.format.write_array(member, np.array(list(info["label"].values())))


class _Known(NamedTuple):
    """What is known about a set before it is downloaded.

    Attributes:
        library: what `ucl.streams.datasets.Listing` names as its source.
        n_classes: number of classes.
        image_size: pixels per side.
        official: the official file, and where it is.
        download: a function of the set's name, the .npz to write and the data folder; it checks the official file.
    """

    library: str
    n_classes: int
    image_size: int
    official: str
    download: Callable[[str, Path, Path], None]


_CIFAR_PAGE = "www.cs.toronto.edu/~kriz/cifar.html"
OTHERS = {
    "cifar10": _Known("torchvision", 10, 32, f"cifar-10-python.tar.gz from {_CIFAR_PAGE}", _fetch_cifar),
    "cifar100": _Known("torchvision", 100, 32, f"cifar-100-python.tar.gz from {_CIFAR_PAGE}", _fetch_cifar),
}
"""The sets that are downloaded and are not MedMNIST's, by name."""
