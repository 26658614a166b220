"""Readers of data sets: an .npz in MedMNIST's layout, a folder of image files, and scikit-learn's digits.

Reading an .npz needs numpy only: Pillow and scikit-learn are imported by the functions that use them.
"""

from __future__ import annotations

import logging
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from ucl.errors import InputError, first_of, one_line
from ucl.machine.available import available_bytes, in_gib
from ucl.machine.files import regular_file
from ucl.streams.class_folders import LAYOUTS, check_classes, class_files, patient_names, split_folders, unused_files
from ucl.streams.downloads import medmnist_sets, name_and_size, sizes_of
from ucl.streams.held_out import held_out_images
from ucl.streams.image_dataset import ARRAYS, SPLITS, ImageDataset
from ucl.streams.patients import Patients, held_out_patients
from ucl.streams.pixels import read_images, report_cropped

_log = logging.getLogger(__name__)
_FEW_PATIENTS = 4  # A study has as many; fewer folders that all classes have are rather kinds of images.


def read_digits() -> ImageDataset:
    """The digits of scikit-learn: 1797 grey images of 8 x 8 pixels, each enlarged to 32 x 32, in 10 classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # scikit-learn's pixels have the levels 0 to 16.
    images = images.repeat(4, axis=1).repeat(4, axis=2)[..., None]
    labels = digits.target.astype(np.int64)
    test = held_out_images(labels)
    split = images[~test], labels[~test], images[test], labels[test]
    return ImageDataset("digits", tuple("0123456789"), *split)


def _without_tests(arrays: Mapping[str, np.ndarray], test: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays, where the images for which `test` is True are test images and not training images."""
    tests = {key.replace("train", "test"): array[test] for key, array in arrays.items() if key.startswith("train")}
    return {**{key: array[~test] if key.startswith("train") else array for key, array in arrays.items()}, **tests}


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
        raise InputError("dataset", str(path), f"can't be read ({one_line(error)}); {advice}") from None
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
    gap = f" without {absent}" if min(present) >= 0 else ""
    _require(absent == len(present), path, f"{found}{gap}; give the labels 0, 1, 2, ... without a gap")
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
    check_images(path, split, images)
    images = images[..., None] if images.ndim == 3 else images
    given = f"{split}_labels are {labels.dtype} of shape {labels.shape}"
    several = f"{given}: its images have several labels at once, or one-hot labels; give one label per image"
    _require(labels.ndim < 2 or labels.shape == (len(labels), 1), path, f"{several}, whole numbers, (N,) or (N, 1)")
    _require(_one_per_image(labels), path, f"{given}; give whole numbers 0, 1, 2, ..., (N,) or (N, 1)")
    _require(len(labels) == len(images), path, f"{given} for {len(images)} images; give one label per image")
    return images, labels.reshape(-1).astype(np.int64)


def check_images(source: Path | str, split: str, images: np.ndarray) -> None:
    """Check that the images of a split are uint8, square, and grey or RGB; error messages name the source.

    Raises:
        InputError: they are not, or there are none.
    """
    given = f"{split}_images are {images.dtype} of shape {images.shape}"
    no_validation = split == "val" and images.shape[:1] == (0,)
    _require(not no_validation, source, f"{given}: no images; leave val_images and val_labels out, or give some")
    square = images.ndim in (3, 4) and images.shape[1] == images.shape[2] and images.shape[3:] in ((), (1,), (3,))
    layout = "give uint8 (0 to 255) of shape (N, H, H), (N, H, H, 1) or (N, H, H, 3)"
    _require(square and images.dtype == np.uint8 and images.size > 0, source, f"{given}; {layout}, N at least 1")


def _one_per_image(labels: np.ndarray) -> bool:
    """Whether labels are whole numbers, one per image: (N,) or (N, 1)."""
    return labels.dtype.kind in "iu" and labels.shape in ((labels.size,), (labels.size, 1))


def _official_classes(name: str, n_classes: int) -> np.ndarray:
    """Class names for a file without them: MedMNIST's for an official file that the user downloaded, or numbers."""
    name, _ = name_and_size(name)
    medmnist = medmnist_sets() if len(sizes_of(name)) > 1 else {}
    names = list(medmnist[name]["label"].values()) if name in medmnist else []
    return np.array(names if len(names) == n_classes else [str(label) for label in range(n_classes)])


def read_folder(root: Path, size: int) -> ImageDataset:
    """Read a folder of image files: `<class>/*.png`, or `train/<class>`, `test/<class>` and optionally `val/<class>`.

    Images have one channel if all are grey, otherwise three. Without test images, an evenly spaced fifth of each class
    is held out. With a folder per patient, `<class>/<patient>/*.png`, whole patients are held out, see
    `held_out_patients`. Folders with the same name are one patient, also in several classes. Files elsewhere, or
    without a suffix of `IMAGE_FILES`, are not read, see `unused_files`. Log messages (level INFO) count them, and say
    that there are patients.

    Args:
        root: the folder; its name becomes the name of the data set.
        size: pixels per side; images are resized and centre-cropped.

    Raises:
        InputError: there are fewer than two classes, `train` has a folder beside it that is not a split, the classes of
            the splits differ, a class has too few images or patients, only some class folders have patients, a patient
            is in two splits, images can't be read, or they need more memory than is available.
    """
    folders = split_folders(root)
    files = {split: class_files(folder) for split, folder in folders.items()}
    check_classes(root, files)
    names = patient_names(root, files)
    in_order = {split: [file for found in of_class.values() for file in found] for split, of_class in files.items()}
    arrays = {f"{split}_labels": _labels(of_class) for split, of_class in files.items()}
    ends = np.cumsum([len(of_split) for of_split in in_order.values()])[:-1]
    if names:
        _, numbers = np.unique(np.concatenate(list(names.values())), return_inverse=True)
        arrays |= {f"{split}_patients": part for split, part in zip(names, np.split(numbers, ends), strict=True)}
    test = None if "test" in files else _held_out(folders["train"], files["train"], names.get("train"))

    all_files = [file for of_split in in_order.values() for file in of_split]
    _check_memory(len(all_files), size)
    images, lost = read_images(all_files, size)
    if (images == images[..., :1]).all():  # All images are grey: store one channel.
        images = images[..., :1].copy()
    arrays |= {f"{split}_images": part for split, part in zip(files, np.split(images, ends), strict=True)}
    train_files = np.array([str(file.relative_to(root)) for file in in_order["train"]], object)
    if test is not None:
        arrays, train_files = _without_tests(arrays, test), train_files[~test]
    _report(root, [_patients_of(found) for of_split in files.values() for found in of_split.values()] if names else [])
    report_cropped(root.name, lost)
    return ImageDataset(root.resolve().name, tuple(files["train"]), **arrays, train_files=tuple(train_files))


def _labels(of_class: Mapping[str, Sequence[Path]]) -> np.ndarray:
    return np.repeat(np.arange(len(of_class), dtype=np.int64), [len(found) for found in of_class.values()])


def _held_out(folder: Path, of_class: Mapping[str, Sequence[Path]], patients: list[str] | None) -> np.ndarray:
    """(N,), True for the test images: a fifth of each class or, if there are patients, all images of some of them."""
    if patients is not None:
        of_patients = {name: _patients_of(found) for name, found in of_class.items()}
        return np.isin(patients, list(held_out_patients(str(folder), of_patients)))
    scarce = ", ".join(name for name, found in of_class.items() if len(found) == 1)
    _require(not scarce, folder, f"only one image of {scarce}; give 2 or more, for training and for testing")
    return held_out_images(_labels(of_class))


def _patients_of(files: Sequence[Path]) -> Patients:
    return frozenset(file.parent.name for file in files)


def _check_memory(n_images: int, size: int) -> None:
    """Check that the images of a folder fit into memory."""
    needed, available = 2 * n_images * size**2 * 3, available_bytes()  # The splits are a second copy.
    if available is not None and needed > available:
        reason = f"{n_images} images of {size} pixels per side need {in_gib(needed)} of memory, and {in_gib(available)}"
        raise InputError("image_size", size, f"{reason} are available here; give fewer pixels or fewer images")


def _report(root: Path, patients: list[Patients]) -> None:
    """Log which files of a folder are not used, and its patients; warn if all classes have the same few.

    Args:
        root: the folder.
        patients: of each class of each split; [] if there are no patients.
    """
    if unused := [str(file.relative_to(root)) for file in unused_files(root)]:
        where = f"images are read from {LAYOUTS}"
        _log.info("files in %s that are not used: %d (%s); %s", root.name, len(unused), first_of(unused), where)
    if not patients:
        return
    names = first_of(sorted(set().union(*patients)))
    patient = f"a folder in a class folder is a patient ({names})"
    _log.info("%s: %s, whose images are all in one split", root.name, patient)
    if len(set(patients)) == 1 and len(patients[0]) < _FEW_PATIENTS:
        found = f"{names} are taken as patients, as all classes have these folders"
        advice = "if they are none, such as images and masks, put only images into the class folders"
        warnings.warn(f"{root.name}: {found}; {advice}", stacklevel=1)


def count_classes(path: Path) -> int | None:
    """The number of classes of an .npz or a folder, without reading an image; None if reading its images will fail."""
    with suppress(Exception):  # A damaged file can raise any error; reading its images reports it.
        if path.is_dir():
            return len(class_files(split_folders(path)["train"]))
        with zipfile.ZipFile(regular_file(path)) as npz:
            labels = _read_array(npz, "train_labels")
            return len(np.unique(labels)) if _one_per_image(labels) else None
    return None


def _require(fine: bool, source: Path | str, reason: str) -> None:
    if not fine:
        raise InputError("dataset", str(source), reason)
