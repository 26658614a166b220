"""Reads what a user's function returns: arrays, torchvision data sets, or splits of a Hugging Face dataset.

A data set is anything with a length whose items are pairs (image, label), or mappings with image (or img) and label. A
label is a whole number, or a text that names the class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ucl import user_objects
from ucl.errors import first_of
from ucl.streams.image_dataset import SPLITS
from ucl.streams.pixels import decode

_ADVICE = (
    "return arrays (train_images, train_labels, test_images, test_labels) or (images, labels), or a data set of "
    "(image, label) items, a pair (train, test) of them, or a dict with train, test and optionally val"
)


def read(path: str, folder: Path, image_size: int | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Call the user's function and return its images and labels as arrays, and the names of the classes if known.

    Args:
        path: ``package.module:function``, a function of no arguments.
        folder: where large images of a data set are stored in a temporary file.
        image_size: pixels per side of the images of a data set, see `ucl.streams.pixels.decode`.

    Returns:
        Images and labels for `as_dataset`, and names as `features["label"].names` or `classes` of a data set gives
        them. Images that the function returns as an array are passed on unchanged, including a `numpy.memmap`.

    Raises:
        InputError, ValueError: the function raised an error, or returned something else.
    """
    parts = _parts(user_objects.call("dataset", path, user_objects.find("dataset", path, "")))
    arrays: dict[str, Any]
    if all(isinstance(part, tuple) for part in parts.values()):
        arrays = {}
        for split, part in parts.items():
            arrays[f"{split}_images"], arrays[f"{split}_labels"] = map(np.asanyarray, part)
    else:
        sets = {s: list(zip(*part, strict=True)) if isinstance(part, tuple) else part for s, part in parts.items()}
        items = {split: (len(data), _items(path, data)) for split, data in sets.items()}
        arrays = decode(path, items, image_size, folder)
    arrays |= {f"{split}_labels": _labels(arrays[f"{split}_labels"]) for split in parts}
    names = [_class_names(part) for part in parts.values()]
    differ = any(a != b for split_names in names for a, b in zip(names[0], split_names))
    if differ and arrays["train_labels"].dtype.kind != "U":
        raise ValueError("the numbers of the classes of its splits differ; give all the same")
    return arrays, names[0]


def _parts(returned: Any) -> dict[str, Any]:
    """The splits of what a function returned: for each split a tuple of two arrays, or a data set; train first."""
    if isinstance(returned, Mapping):
        parts = {"val" if name == "validation" else name: part for name, part in returned.items()}
    elif isinstance(returned, tuple) and len(returned) == 4:
        parts = {"train": returned[:2], "test": returned[2:]}
    elif isinstance(returned, tuple) and len(returned) == 2 and not hasattr(returned[0], "__array__"):
        parts = {"train": returned[0], "test": returned[1]}
    else:
        parts = {"train": returned}
    usable = all(len(part) == 2 if isinstance(part, tuple) else _is_data_set(part) for part in parts.values())
    if "train" not in parts or not usable or not set(parts) <= set(SPLITS):
        keys = f" with {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else ""
        raise ValueError(f"returned {type(returned).__name__}{keys}; {_ADVICE}")
    return {split: parts[split] for split in SPLITS if split in parts}


def _is_data_set(value: Any) -> bool:
    is_sequence = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return is_sequence and not isinstance(value, (str, Mapping)) and not hasattr(value, "__array__")


def _items(path: str, data: Any) -> Iterator[tuple[str, Any, Any]]:
    """The items of a data set, for `decode`."""
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


def _labels(labels: Any) -> np.ndarray:
    """Labels as an array, of whole numbers or of texts."""
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return labels
    values = [label.item() if label.size == 1 else label for label in map(np.asarray, labels)]
    if {type(value) for value in values} not in ({int}, {str}):  # numpy would turn all into texts
        strange = next((value for value in values if type(value) not in (int, str)), "both")
        raise ValueError(f"its labels are not all whole numbers, 0, 1, 2, ..., or all texts: {strange!r}")
    return np.array(values)


def _class_names(part: Any) -> list[str]:
    """The class names that a data set has: `features["label"].names` or `classes`."""
    features = getattr(part, "features", None)
    label = features.get("label") if isinstance(features, Mapping) else None
    names = getattr(label, "names", None) or getattr(part, "classes", None) or []
    return [str(name) for name in names] if isinstance(names, (list, tuple)) else []
