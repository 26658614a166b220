"""Downloads of the data sets that are known by name: official files, checksummed, stored as one .npz each."""

from __future__ import annotations

import functools
import os
import runpy
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ucl.catalogue import MEDMNIST
from ucl.errors import InputError, one_line, one_of

OFFICIAL_NAMES = {"bloodcell": "bloodmnist"}  # MedMNIST's names, where ours differ
CIFAR = {"cifar10": 10, "cifar100": 100}
"""The sets of torchvision, with their numbers of classes."""
LAYOUTS = "a path to an .npz in MedMNIST's layout or to a folder of class folders"


def sizes_of(name: str) -> tuple[int, ...]:
    """The image sizes of a named set, in pixels per side; empty if only its file shows them."""
    if name in CIFAR:
        return (32,)
    return (28, 64, 128, 224) if OFFICIAL_NAMES.get(name, name) in MEDMNIST else ()


@functools.cache
def medmnist_sets() -> dict[str, dict[str, Any]]:
    """medmnist's facts about its 2-D sets, by the names that `load` takes: class names, addresses, checksums."""
    package = find_spec("medmnist")
    assert package is not None and package.origin is not None
    # Its file is run alone, because importing medmnist would import torch, which takes seconds.
    info = runpy.run_path(str(Path(package.origin).with_name("info.py")))["INFO"]
    renamed = {name: info[official] for name, official in OFFICIAL_NAMES.items()}
    return {**renamed, **{name: facts for name, facts in info.items() if not name.endswith("3d")}}


def fetch(name: str, target: Path) -> None:
    """Download a known data set to `target`, completely or not at all.

    Raises:
        InputError: the name is unknown, its images have several labels at once, or the download failed.
    """
    sets = medmnist_sets()
    multi_label = [other for other, info in sets.items() if "multi-label" in info["task"]]
    if name in multi_label:
        raise InputError("dataset", name, "its images have several labels at once; give a set with one label each")
    known_names = ["digits", *CIFAR, *(other for other in sets if other not in multi_label)]
    others = f"{LAYOUTS}, or your own function as package.module:function, works too"
    one_of("dataset", name, known_names, f"data set ({others})")
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In the target's folder, so that the move is atomic; with a random name, so that two processes never share it.
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as work:
            (_fetch_cifar if name in CIFAR else _fetch_medmnist)(name, Path(work, target.name), folder)
            os.replace(Path(work, target.name), target)
    except Exception as error:
        advice = f"try again, or put its images in MedMNIST's layout at {target}"
        raise InputError("dataset", name, f"can't be downloaded ({one_line(error)}); {advice}") from None


def _fetch_cifar(name: str, file: Path, data_folder: Path) -> None:
    import torchvision.datasets

    source = getattr(torchvision.datasets, name.upper())
    # An official archive in the data folder is used; otherwise only the .npz is stored.
    folder = data_folder if (data_folder / source.filename).is_file() else file.parent
    train, test = (source(folder, train=part, download=True) for part in (True, False))
    arrays = {"train_images": train.data, "test_images": test.data, "classes": train.classes}
    np.savez(file, train_labels=train.targets, test_labels=test.targets, **arrays)


def _fetch_medmnist(name: str, file: Path, data_folder: Path) -> None:
    from torchvision.datasets.utils import download_url

    # medmnist's own download hides the cause of an error, and treats Ctrl-C as a failure.
    info, size = medmnist_sets()[name], file.stem.removeprefix(name)
    download_url(info[f"url{size}"], file.parent, file.name, info[f"MD5{size}"])
