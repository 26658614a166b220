"""Reads what a user's own function returns: arrays, torchvision data sets, or splits of a Hugging Face dataset.

Nothing here depends on those libraries. A data set is anything with a length whose items are pairs (image, label), or
mappings with image (or img) and label. An image is a Pillow image, which is turned upright if it has an EXIF
orientation, or a uint8 array. A label is a whole number, or a text that names the class.

Each item is read once. The images are kept in memory if they need at most a quarter of what is available, otherwise in
a temporary file in the data folder, from which a run reads them batch by batch. The system deletes that file when the
process ends.
"""

from __future__ import annotations

import operator
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ucl import user_objects
from ucl.catalogue import LARGEST_IMAGE
from ucl.errors import InputError, first_of, one_line
from ucl.machine.available import available_bytes, in_gib
from ucl.streams.held_out import held_out_images
from ucl.streams.image_files import check_images
from ucl.streams.pixels import flaw, report_cropped, square

_SPLITS = {"train": "train", "test": "test", "validation": "val", "val": "val"}  # the user's name: our name
_SIZE = 32  # pixels per side, if the first image is not square
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
    found = user_objects.call("dataset", path, user_objects.find("dataset", path, ""))
    arrays: dict[str, np.ndarray] = {}
    lost: list[float] = []
    parts = _parts(path, found)
    for split, part in parts.items():
        images, labels = part if isinstance(part, tuple) else _decoded(path, part, folder, image_size, lost)
        if image_size is None and images.ndim == 4:
            image_size = images.shape[1]  # for the other splits
        flat = labels.reshape(-1) if labels.shape == (len(images), 1) else labels
        arrays |= {f"{split}_images": images, f"{split}_labels": flat}
    decoded = {split: part for split, part in parts.items() if not isinstance(part, tuple)}
    if all(_is_grey(arrays[f"{split}_images"]) for split in decoded):
        for key in (f"{split}_images" for split in decoded):
            arrays[key] = _subset(arrays[key][..., :1], np.arange(len(arrays[key])), path, folder)
    arrays = _numbered(path, {**arrays, **_classes(path, decoded, arrays["train_labels"])})
    report_cropped(path, lost)
    if "test_images" not in arrays:
        images, labels = arrays["train_images"], arrays["train_labels"]
        if images.shape[:1] != labels.shape:
            reason = f"images {images.shape} and labels {labels.shape} are not one label per image"
            raise InputError("dataset", path, f"{reason}; {_ADVICE}")
        check_images(path, "train", images)  # An array in a file is copied as uint8.
        _check_two_of_each(path, labels, arrays.get("classes"))
        test = held_out_images(labels)
        for split, rows in ("train", np.flatnonzero(~test)), ("test", np.flatnonzero(test)):
            arrays |= {f"{split}_images": _subset(images, rows, path, folder), f"{split}_labels": labels[rows]}
    return arrays


def _numbered(path: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same arrays; if all labels are texts, they are numbers, and the classes are these texts, sorted."""
    all_labels = {key: labels for key, labels in arrays.items() if key.endswith("_labels")}
    filled = {key: labels for key, labels in all_labels.items() if len(labels)}
    texts = [key for key, labels in filled.items() if all(isinstance(label, str) for label in labels.flat)]
    for key, labels in filled.items():
        types = sorted({type(label).__name__ for label in labels.flat}) if labels.dtype == object else []
        if len(types) > 1:
            reason = f"{key} have the types {', '.join(types)}; give whole numbers, or texts, for all"
            raise InputError("dataset", path, reason)
    if not texts:
        return arrays
    if others := [key for key in filled if key not in texts]:
        reason = f"{texts[0]} are texts, {others[0]} are not"
        raise InputError("dataset", path, f"{reason}; give whole numbers, or texts, for all")
    names = np.unique(arrays["train_labels"].astype(str))
    for key, labels in all_labels.items():
        if unknown := set(labels.flat) - set(names.tolist()):
            reason = f"{key} contain {str(min(unknown))!r}, train_labels do not; give every class training images"
            raise InputError("dataset", path, reason)
    numbers = {key: np.searchsorted(names, labels.astype(str)) for key, labels in all_labels.items()}
    return {**arrays, **numbers, "classes": names}


def _check_two_of_each(path: str, labels: np.ndarray, classes: np.ndarray | None) -> None:
    """Check that no class has only one image, which would be needed both for training and for testing."""
    found, counts = np.unique(labels, return_counts=True)
    named = classes if classes is not None else found
    if scarce := [str(name) for name, count in zip(named, counts, strict=True) if count == 1]:
        reason = f"only one image of {first_of(scarce)}; give 2 or more, for training and for testing"
        raise InputError("dataset", path, reason)


def _parts(path: str, found: Any) -> dict[str, Any]:
    """The splits of what a function returned, by our names: for each split two arrays in a tuple, or a data set."""
    parts: dict[str, Any] = {}
    if isinstance(found, Mapping) and all(name in _SPLITS for name in found):
        parts = {_SPLITS[name]: part for name, part in found.items()}
    elif isinstance(found, tuple) and len(found) == 4 and _is_array(found[0]):
        parts = {"train": found[:2], "test": found[2:]}
    elif isinstance(found, tuple) and len(found) == 2 and _is_array(found[0]):
        parts = {"train": found}
    elif isinstance(found, tuple) and len(found) == 2:
        parts = {"train": found[0], "test": found[1]}
    elif not isinstance(found, (tuple, Mapping)) and not _is_array(found):
        parts = {"train": found}
    usable = [isinstance(part, tuple) or _is_data_set(part) for part in parts.values()]
    if "train" not in parts or not all(usable):
        inside = f" with {', '.join(map(str, found))}" if isinstance(found, Mapping) else ""
        inside = f" of {', '.join(type(part).__name__ for part in found)}" if isinstance(found, tuple) else inside
        raise InputError("dataset", path, f"returned {type(found).__name__}{inside}; {_ADVICE}")
    in_order = {split: parts[split] for split in ("train", "test", "val") if split in parts}
    return {
        split: _two_arrays(path, split, part) if isinstance(part, tuple) else part for split, part in in_order.items()
    }


def _two_arrays(path: str, split: str, part: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The images and the labels of a split as arrays.

    Raises:
        InputError: the tuple is no pair, or its parts cannot be arrays.
    """
    advice = "give a pair of arrays (images, labels)"
    if len(part) != 2:
        raise InputError("dataset", path, f"returned a tuple of {len(part)} for {split}; {advice}")
    try:
        images, labels = map(np.asanyarray, part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError("dataset", path, f"its {split} is not two arrays ({one_line(error)}); {advice}") from None
    if not (images.ndim and labels.ndim):
        types = ", ".join(type(of).__name__ for of in part)
        raise InputError("dataset", path, f"returned a pair of {types} for {split}; {advice}")
    return images, labels


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape")


def _is_data_set(value: Any) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, (str, Mapping))


def _class_names(part: Any) -> list[str]:
    """The class names that a data set has: `features["label"].names` or `classes`."""
    features = getattr(part, "features", None)
    label = features.get("label") if isinstance(features, Mapping) else None
    names = getattr(label, "names", None) or getattr(part, "classes", None) or []
    return [str(name) for name in names] if isinstance(names, (list, tuple)) else []


def _classes(path: str, decoded: dict[str, Any], train_labels: np.ndarray) -> dict[str, np.ndarray]:
    """The key "classes" with the names of the classes, if the training set knows one for each label.

    Raises:
        InputError: another split gives one of these numbers to another class.
    """
    names = {split: _class_names(part) for split, part in decoded.items()}
    of_train = names.get("train", [])
    if train_labels.dtype.kind not in "iu":  # Texts are the names themselves.
        return {}
    for split, of_split in names.items():
        if differing := [pair for pair in zip(of_train, of_split) if pair[0] != pair[1]]:
            reason = "the class {!r} of train has the number of {!r} of".format(*differing[0])
            raise InputError("dataset", path, f"{reason} {split}; number the classes alike")
    return {"classes": np.array(of_train)} if of_train and len(of_train) == len(np.unique(train_labels)) else {}


def _is_grey(images: np.ndarray) -> bool:
    """Whether the three channels of all images (N, H, H, 3) are equal."""
    return all(bool((image == image[..., :1]).all()) for image in images)


def _decoded(
    path: str, part: Any, folder: Path, image_size: int | None, lost: list[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, H, H, 3), uint8, and labels (N,), whole numbers or texts.

    The share of each image that is cropped is appended to `lost`.
    """
    if not len(part):
        raise InputError("dataset", path, "returned a data set without items; give at least one image of each class")
    size = image_size
    labels: list[int | str] = []
    for i, (image, label) in enumerate(_items(path, part)):
        if i == 0:
            size = size or _square_size(image)
            if image_size is None and size > LARGEST_IMAGE:
                reason = f"its images have {size} pixels per side; give image_size, at most {LARGEST_IMAGE}"
                raise InputError("dataset", path, reason)
            images = _empty_images((len(part), size, size, 3), path, folder)
        assert size is not None
        images[i], share = _pixels(path, i, image, size)
        labels.append(_label(path, i, label))
        if type(labels[i]) is not type(labels[0]):
            reason = f"the label of its item {i} is {labels[i]!r}, that of item 0 is {labels[0]!r}"
            raise InputError("dataset", path, f"{reason}; give whole numbers, or texts, for all")
        lost.append(share)
    return images, np.array(labels)


def _items(path: str, part: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs (image, label) of a data set."""
    for i in range(len(part)):
        item = user_objects.call("dataset", path, part.__getitem__, i)
        if isinstance(item, Mapping):
            image = "image" if "image" in item else "img"
            if image not in item or "label" not in item:
                reason = f"its item {i} has {', '.join(map(str, item))}; give image (or img) and label"
                raise InputError("dataset", path, reason)
            yield item[image], item["label"]
        elif isinstance(item, (tuple, list)) and len(item) == 2:
            yield item[0], item[1]
        else:
            raise InputError("dataset", path, f"its item {i} is a {type(item).__name__}; give pairs (image, label)")


def _square_size(image: Any) -> int:
    """Pixels per side of a square image; 32 for an image that is not square."""
    height, width = image.size[::-1] if hasattr(image, "convert") else _channels_last(image).shape[:2]
    return int(height) if height == width else _SIZE


def _channels_last(image: Any) -> np.ndarray:
    """An image as an array (H, W) or (H, W, C); a torch tensor is (C, H, W)."""
    array = np.asarray(image)
    return array.transpose(1, 2, 0) if hasattr(image, "permute") and array.ndim == 3 else np.atleast_2d(array)


def _pixels(path: str, i: int, image: Any, size: int) -> tuple[np.ndarray, float]:
    """See `square`."""
    from PIL import Image

    if not hasattr(image, "convert"):
        array = _channels_last(image)
        if array.dtype != np.uint8 or array.shape[2:] not in ((), (1,), (3,)):
            got = f"{type(image).__name__} of {array.dtype} and shape {tuple(np.shape(image))}"
            advice = "give Pillow images or uint8 arrays (H, W) or (H, W, 3), and leave out transforms such as ToTensor"
            raise InputError("dataset", path, f"the image of its item {i} is a {got}; {advice}")
        image = Image.fromarray(array.squeeze(-1) if array.shape[2:] == (1,) else np.ascontiguousarray(array))
    if reason := flaw(image):
        advice = "give opaque images with 8 bits per channel"
        raise InputError("dataset", path, f"the image of its item {i} has {reason}; {advice}")
    return square(image, size)


def _label(path: str, i: int, label: Any) -> int | str:
    if isinstance(label, str):
        return str(label)
    try:
        return operator.index(label.item() if isinstance(label, np.ndarray) and label.size == 1 else label)
    except TypeError:
        reason = f"the label of its item {i} is {label!r}; give whole numbers, 0, 1, 2, ..., or texts"
        raise InputError("dataset", path, reason) from None


def _empty_images(shape: tuple[int, ...], path: str, folder: Path) -> np.ndarray:
    """An array for images: in memory, or in a temporary file if it needs more than a quarter of what is available."""
    needed, available = int(np.prod(shape)), available_bytes()
    if available is None or 4 * needed <= available:
        return np.empty(shape, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        reason = f"its images need {in_gib(needed)} of disk space, and {in_gib(free)} are free in {folder}"
        raise InputError("dataset", path, f"{reason}; give a smaller image_size, or another data folder")
    with tempfile.TemporaryFile(dir=folder) as file:  # The mapping keeps the file until the process ends.
        return np.memmap(file, np.uint8, "w+", shape=shape)


def _subset(images: np.ndarray, rows: np.ndarray, path: str, folder: Path) -> np.ndarray:
    """A copy of some images. If they are in a file, the copy may be in another temporary file."""
    if not isinstance(images, np.memmap):
        return images[rows]
    copy = _empty_images((len(rows), *images.shape[1:]), path, folder)
    for start in range(0, len(rows), 256):
        copy[start : start + 256] = images[rows[start : start + 256]]
    return copy
