"""Reads what a user's function returns: arrays, torchvision data sets, or splits of a Hugging Face dataset.

A data set is anything with a length whose items are pairs (image, label), or mappings with image (or img) and label. A
label is a whole number, or a text that names the class. Arrays may have a third one beside images and labels, with a
patient for each image: all images of a patient are then in one split.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ucl import user_objects
from ucl.errors import first_of
from ucl.streams.image_dataset import SPLITS
from ucl.streams.pixels import as_rgb, decode

_ADVICE = (
    "return arrays (train_images, train_labels, test_images, test_labels) or (images, labels), a third array with "
    "patients too if known, or a data set of (image, label) items, a pair (train, test) of them, or a dict with train, "
    "test and optionally val"
)


def read(path: str, folder: Path, image_size: int | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Call the user's function and return its images and labels as arrays, and the names of the classes if known.

    The global generators have the same seed at each call: images that are drawn from them are the same.

    Args:
        path: ``package.module:function``, a function of no arguments.
        folder: where large images of a data set are stored in a temporary file.
        image_size: pixels per side of the images of a data set, see `ucl.streams.pixels.decode`.

    Returns:
        Images, labels and patients for `as_dataset`, and the names of the classes as `features["label"].names` or
        `classes` of a data set gives them; none if it has a `target_transform`. An array of images is passed on
        unchanged, including a `numpy.memmap`.

    Raises:
        InputError, ValueError: the function raised an error, or returned something else.
    """
    from ucl.machine.determinism import seeded_draws  # Imported here because torch takes two seconds.

    with seeded_draws(0, "cpu"):
        parts = _parts(user_objects.call("dataset", path, user_objects.find("dataset", path)))
        arrays: dict[str, Any] = {}
        if all(isinstance(part, tuple) for part in parts.values()):
            for split, part in parts.items():
                arrays |= zip((f"{split}_images", f"{split}_labels", f"{split}_patients"), map(np.asanyarray, part))
        else:
            sets = {s: list(zip(*part, strict=True)) if isinstance(part, tuple) else part for s, part in parts.items()}
            items = {split: (len(data), _items(path, _opened_unchanged(data))) for split, data in sets.items()}
            arrays = decode(path, items, image_size, folder)
    arrays |= {key: _values(key, values) for key, values in arrays.items() if not key.endswith("_images")}
    names_of = {split: _class_names(part) for split, part in parts.items()}
    names = [given for split_names in names_of.values() for given in split_names]
    differ = any(a != b for pair in combinations(names, 2) for a, b in zip(*pair))
    if differ and arrays["train_labels"].dtype.kind != "U":
        raise ValueError("the numbers of the classes of its data sets differ; give all the same")
    # Sorted as texts, the folder "10" comes before "2": its number in a torchvision data set is not 10.
    numbers = [[int(name) for name in given if name.isdecimal()] for given in names]
    if not all(names_of.values()) and any(given != sorted(given) for given in numbers):
        raise ValueError("its classes are named by other numbers than its labels; give names or numbers in all splits")
    return arrays, max(names, key=len, default=[])


def _parts(returned: Any) -> dict[str, Any]:
    """The splits of what a function returned: for each split a tuple of arrays, or a data set; train first."""
    if isinstance(returned, list) and len(returned) == 2 and hasattr(returned[0], "dataset"):
        returned = tuple(returned)  # of torch's random_split
    if isinstance(returned, Mapping):
        parts = {"val" if name == "validation" else name: part for name, part in returned.items()}
    elif isinstance(returned, tuple) and len(returned) in (4, 6):
        half = len(returned) // 2
        parts = {"train": returned[:half], "test": returned[half:]}
    elif isinstance(returned, tuple) and len(returned) == 2 and not hasattr(returned[0], "__array__"):
        parts = {"train": returned[0], "test": returned[1]}
    else:
        parts = {"train": returned}
    if "train" not in parts or not set(parts) <= set(SPLITS) or not all(map(_is_usable, parts.values())):
        keys = f" with {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else ""
        raise ValueError(f"returned {type(returned).__name__}{keys}; {_ADVICE}")
    return {split: parts[split] for split in SPLITS if split in parts}


def _is_usable(part: Any) -> bool:
    """Whether a split is a tuple of two or three arrays or a sequence, as far as its type shows."""
    if isinstance(part, tuple):
        return len(part) == 2 or (len(part) == 3 and hasattr(part[0], "__array__"))
    return hasattr(part, "__len__") and hasattr(part, "__getitem__") and not isinstance(part, Mapping)


def _opened_unchanged(data: Any) -> Any:
    """A copy of a data set of torchvision, also within another one, whose files are opened by `as_rgb`.

    Torchvision's own loader clips 16 bits and drops transparency.
    """
    from PIL import Image

    files = sys.modules.get("torchvision.datasets.folder")  # not imported, unless the user's function did
    changed: dict[str, Any] = {}
    if files and getattr(data, "loader", None) is files.default_loader:
        changed["loader"] = lambda file: as_rgb(Image.open(file))
    if hasattr(data, "dataset"):
        changed["dataset"] = _opened_unchanged(data.dataset)
    if hasattr(data, "datasets"):
        changed["datasets"] = [_opened_unchanged(part) for part in data.datasets]
    if changed:
        data = copy.copy(data)  # The user may go on with it.
        vars(data).update(changed)
    return data


def _items(path: str, data: Any) -> Iterator[tuple[str, Any, Any]]:
    for i in range(len(data)):
        item = user_objects.call("dataset", path, data.__getitem__, i)
        try:
            if isinstance(item, Mapping):
                image, label = item["image" if "image" in item else "img"], item["label"]
            else:
                image, label = item
        except (KeyError, TypeError, ValueError):
            keys = f" with {first_of(list(item))}" if isinstance(item, Mapping) else ""
            reason = f"its item {i} is a {type(item).__name__}{keys}; give pairs (image, label), or image and label"
            raise ValueError(reason) from None
        yield f"the image of its item {i}", image, label


def _values(key: str, given: Any) -> np.ndarray:
    """Labels or patients as an array, of whole numbers or of texts."""
    if isinstance(given, np.ndarray) and given.dtype != object:
        return given
    values = [value.item() if value.size == 1 else value for value in map(np.asarray, given)]
    if {type(value) for value in values} not in ({int}, {str}):  # numpy would turn all into texts
        strange = next((value for value in values if type(value) not in (int, str)), "both")
        raise ValueError(f"its {key} are not all whole numbers, 0, 1, 2, ..., or all texts: {strange!r}")
    return np.array(values)


def _class_names(part: Any) -> list[list[str]]:
    """The names that a data set, or each one within a Subset or ConcatDataset of torch, gives its labels 0, 1, ..."""
    if hasattr(part, "indices") and hasattr(part, "dataset"):
        return _class_names(part.dataset)
    if hasattr(part, "cumulative_sizes"):
        return [names for data in part.datasets for names in _class_names(data)]
    features = getattr(part, "features", None)
    label = features.get("label") if isinstance(features, Mapping) else None
    names = getattr(label, "names", None) or getattr(part, "classes", None)
    if not isinstance(names, (list, tuple)) or getattr(part, "target_transform", None):
        return []
    return [list(map(str, names))]
