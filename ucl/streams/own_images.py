"""Reads what a user's own function returns: arrays, torchvision data sets, or splits of a Hugging Face dataset.

Nothing here depends on those libraries. A data set is anything with a length whose items are pairs (image, label), or
mappings with image (or img) and label. A label is a whole number, or a text that names the class.

Each item is read once, see `ucl.streams.pixels.decode`. Large images are kept in a temporary file in the data folder,
from which a run reads them batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ucl import user_objects
from ucl.errors import InputError, first_of, one_line
from ucl.streams.held_out import held_out_images
from ucl.streams.image_dataset import SPLITS
from ucl.streams.pixels import decode, empty_images, grey_if_equal

_ADVICE = (
    "return arrays (train_images, train_labels, test_images, test_labels) or (images, labels), or a data set of "
    "(image, label) items, a pair (train, test) of them, or a dict with train, test and optionally val"
)


def read(path: str, folder: Path, image_size: int | None = None) -> dict[str, np.ndarray]:
    """Call the user's function and return its images and labels as arrays, with the names of MedMNIST's layout.

    Args:
        path: ``package.module:function``, a function of no arguments.
        folder: where large images are kept in a temporary file.
        image_size: pixels per side of the images of a data set. By default those of its first image if that is square,
            otherwise 32. Images of another size are resized and cropped around their centre.

    Returns:
        train_images, train_labels, test_images, test_labels, and val_images, val_labels and classes if they are known.
        Images that the function returns as an array are passed on unchanged, including a `numpy.memmap`. Labels that
        are texts become whole numbers; the classes are then in alphabetical order.

    Raises:
        InputError: the function raised an error, or returned something else; the message says what.
    """
    parts = _parts(path, user_objects.call("dataset", path, user_objects.find("dataset", path, "")))
    decoded = {split: part for split, part in parts.items() if not isinstance(part, tuple)}
    arrays: dict[str, np.ndarray] = {}
    labels: Any
    for split, part in parts.items():
        if split in decoded:
            images, labels = decode(path, len(part), _items(path, part), image_size, folder)
        else:
            images, labels = _two_arrays(path, split, part)
        arrays |= {f"{split}_images": images, f"{split}_labels": _labels(path, split, labels)}
        if image_size is None and images.ndim == 4:
            image_size = images.shape[1]  # for the other splits
    arrays = _with_classes(path, arrays, decoded)
    if "test" not in parts:
        test_N = held_out_images(arrays["train_labels"])
        images, labels = arrays["train_images"], arrays["train_labels"]
        for split, chosen_N in {"test": test_N, "train": ~test_N}.items():
            copies = empty_images((chosen_N.sum(), *images.shape[1:]), folder) if images.dtype == np.uint8 else None
            # With "clip" numpy writes into the copies, which may be in a file, without another copy in memory.
            copies = np.take(images, np.flatnonzero(chosen_N), 0, out=copies, mode="clip")
            arrays |= {f"{split}_images": copies, f"{split}_labels": labels[chosen_N]}
    of_items = [split for split in SPLITS if split in decoded or (split not in parts and "train" in decoded)]
    return arrays | grey_if_equal({key: arrays[key] for split in of_items if (key := f"{split}_images") in arrays})


def _parts(path: str, found: Any) -> dict[str, Any]:
    """The splits of what a function returned: for each split a tuple of two arrays, or a data set; train first."""
    if isinstance(found, Mapping):
        parts = {"val" if name == "validation" else name: part for name, part in found.items()}
    elif isinstance(found, tuple) and len(found) == 4:
        parts = {"train": found[:2], "test": found[2:]}
    elif isinstance(found, tuple) and len(found) == 2 and not _is_array(found[0]):
        parts = {"train": found[0], "test": found[1]}
    else:
        parts = {"train": found}
    usable = all(isinstance(part, tuple) or _is_data_set(part) for part in parts.values())
    if "train" not in parts or not usable or not set(parts) <= set(SPLITS):
        keys = f" with {', '.join(map(str, found))}" if isinstance(found, Mapping) else ""
        raise InputError("dataset", path, f"returned {type(found).__name__}{keys}; {_ADVICE}")
    return {split: parts[split] for split in SPLITS if split in parts}


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape")


def _is_data_set(value: Any) -> bool:
    is_sequence = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return is_sequence and not isinstance(value, (str, Mapping)) and not _is_array(value)


def _two_arrays(path: str, split: str, part: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    try:
        images, labels = map(np.asanyarray, part)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"its {split} is no pair of arrays ({one_line(error)})"
        raise InputError("dataset", path, f"{reason}; {_ADVICE}") from None
    labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
    if images.shape[:1] != labels.shape or not labels.ndim:
        reason = f"its {split} images {images.shape} and labels {labels.shape} are not one label per image"
        raise InputError("dataset", path, f"{reason}; {_ADVICE}")
    return images, labels


def _items(path: str, part: Any) -> Iterator[tuple[str, Any, Any]]:
    """The items of a data set, for `decode`."""
    for i in range(len(part)):
        item = user_objects.call("dataset", path, part.__getitem__, i)
        try:
            if isinstance(item, Mapping):
                image, label = item["image" if "image" in item else "img"], item["label"]
            else:
                image, label = item
        except (KeyError, TypeError, ValueError):
            keys = f" with {first_of(list(item))}" if isinstance(item, Mapping) else ""
            reason = f"its item {i} is a {type(item).__name__}{keys}; give pairs (image, label), or image and label"
            raise InputError("dataset", path, reason) from None
        yield f"the image of its item {i}", image, label


def _labels(path: str, split: str, labels: Any) -> np.ndarray:
    """Labels as an array (N,), of whole numbers or of texts."""
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return labels
    values = [label.item() if label.size == 1 else label for label in map(np.asarray, labels)]
    if {type(value) for value in values} not in ({int}, {str}):
        strange = next((value for value in values if type(value) not in (int, str)), "both")
        reason = f"the labels of {split} are not all whole numbers, 0, 1, 2, ..., or all texts: {strange!r}"
        raise InputError("dataset", path, reason)
    return np.array(values)


def _with_classes(path: str, arrays: dict[str, np.ndarray], decoded: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays with whole numbers as labels, and with the names of the classes if they are known."""
    labels = {key: array for key, array in arrays.items() if key.endswith("_labels")}
    are_texts = {array.dtype.kind == "U" for array in labels.values()}
    if len(are_texts) > 1:
        raise InputError("dataset", path, "some labels are texts, others not; give whole numbers, or texts, for all")
    if are_texts == {True}:
        classes = np.unique(labels["train_labels"])
        for key, array in labels.items():
            if unknown := sorted(set(array.tolist()) - set(classes.tolist())):
                reason = f"{key} contain {unknown[0]!r}, train_labels do not; give every class training images"
                raise InputError("dataset", path, reason)
        numbers = {key: np.searchsorted(classes, array) for key, array in labels.items()}
        return {**arrays, **numbers, "classes": classes}
    names = {split: _class_names(part) for split, part in decoded.items()}
    of_train = names.get("train", [])
    for split, of_split in names.items():
        if any(name != other for name, other in zip(of_train, of_split)):
            reason = f"the numbers of the classes of train and {split} differ; give both the same"
            raise InputError("dataset", path, reason)
    all_present = of_train and len(of_train) == len(np.unique(labels["train_labels"]))
    return {**arrays, "classes": np.array(of_train)} if all_present else arrays


def _class_names(part: Any) -> list[str]:
    """The class names that a data set has: `features["label"].names` or `classes`."""
    features = getattr(part, "features", None)
    label = features.get("label") if isinstance(features, Mapping) else None
    names = getattr(label, "names", None) or getattr(part, "classes", None) or []
    return [str(name) for name in names] if isinstance(names, (list, tuple)) else []
