"""Labelled images as plain arrays: digits, CIFAR, MedMNIST, an .npz file, a folder of class folders, or your function.

Libraries that contain or download data are imported by the functions that use them. Importing this module is therefore
fast, and reading an existing file needs numpy only.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import zipfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from ucl import own
from ucl.choices import is_own
from ucl.errors import InputError
from ucl.machine.available import available_bytes, in_gib
from ucl.machine.files import regular_file
from ucl.streams import own_images
from ucl.streams.downloads import CIFAR, OFFICIAL_NAMES, PATHS, fetch, in_short, medmnist_sets, sizes_of

_SPLITS = ("train", "test", "val")
_ARRAYS = (*(f"{split}_{part}" for split in _SPLITS for part in ("images", "labels")), "classes")
_IMAGE_FILES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
# The decoders of these suffixes only: Pillow also opens PostScript, which is a program that would be executed.
_DECODERS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_LEVELS = np.arange(256) / 255


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images, (N, H, W, C) uint8 with H = W and C 1 or 3, and their labels, (N,) int64; label c is `classes[c]`.

    Every class has training images. `val_images` and `val_labels` are None if the set has no validation split. Images
    in a file (`numpy.memmap`) are read batch by batch.
    """

    name: str
    classes: tuple[str, ...]
    train_images: np.ndarray = field(repr=False)
    train_labels: np.ndarray = field(repr=False)
    test_images: np.ndarray = field(repr=False)
    test_labels: np.ndarray = field(repr=False)
    val_images: np.ndarray | None = field(default=None, repr=False)
    val_labels: np.ndarray | None = field(default=None, repr=False)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def n_images(self) -> int:
        """Number of training, test and validation images together."""
        return sum(
            len(labels) for labels in (self.train_labels, self.test_labels, self.val_labels) if labels is not None
        )

    @property
    def image_size(self) -> int:
        """Pixels per side."""
        return self.train_images.shape[1]

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for RGB."""
        return self.train_images.shape[3]

    @property
    def is_lazy(self) -> bool:
        """Whether the images stay in a file and are read when they are needed."""
        return isinstance(self.train_images, np.memmap)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel over all training pixels, in [0, 1]."""
        return tuple(float(counts @ _LEVELS / counts.sum()) for counts in self._histograms)

    @property
    def std(self) -> tuple[float, ...]:
        """Population standard deviation of each channel, over all training pixels, in [0, 0.5]."""
        of_channel = zip(self._histograms, self.mean, strict=True)
        return tuple(float(np.sqrt(counts @ (_LEVELS - mean) ** 2 / counts.sum())) for counts, mean in of_channel)

    @cached_property
    def _histograms(self) -> np.ndarray:
        counts = np.zeros((self.channels, 256), np.int64)
        step = max(1, 2**22 // self.image_size**2)  # In blocks, because bincount converts pixels to 8 bytes each.
        for start in range(0, len(self.train_images), step):
            block = self.train_images[start : start + step]
            counts += [np.bincount(block[..., channel].ravel(), minlength=256) for channel in range(self.channels)]
        return counts

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify all images and labels in their order; the same on every machine."""
        digest = hashlib.sha256()
        for key in _ARRAYS[:-1]:
            if (array := getattr(self, key)) is not None:
                digest.update(f"{key}{array.shape}".encode())
                for start in range(0, len(array), 1024):  # in blocks: an array in a file may be larger than memory
                    block = array[start : start + 1024]
                    digest.update(np.ascontiguousarray(block, array.dtype.newbyteorder("<")).data)
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Listing:
    """A data set that `load` knows by name. `where` is its file, or "" if it has not been downloaded yet."""

    name: str
    source: str
    classes: int
    image_size: int
    where: str


def data_folder(root: str | Path | None = None) -> Path:
    """The folder of the data sets: `root` if given, otherwise $UCL_DATA if set, otherwise ~/.cache/ucl."""
    return Path(root or os.environ.get("UCL_DATA") or "~/.cache/ucl").expanduser()


def load(name: str, root: str | Path | None = None, image_size: int | None = None) -> ImageDataset:
    """Load a data set by its name or path; a known set that is not in the data folder yet is downloaded first.

    Args:
        name: digits, cifar10, cifar100, bloodcell, a MedMNIST 2-D set such as pathmnist, the name of an .npz in the
            data folder, a path, or a function of the user's own (`ucl.streams.own_images`). A name is a path if it has
            a separator, ends in .npz or is a folder in the working folder. An .npz has MedMNIST's layout. A folder
            contains `<class>/*.png`, or `train/<class>`, `test/<class>` and optionally `val/<class>`. Without test
            images, an evenly spaced fifth of each class is held out. The suffix "-lt" does not change the images.
        root: the data folder, see `data_folder`.
        image_size: pixels per side: 28 (default), 64, 128 or 224 for MedMNIST sets, any for a folder, whose images are
            resized and centre-cropped (default 32), or for a data set that a function returns. Other sets have only one
            size.

    Raises:
        InputError: (a ValueError) the name is unknown, or the data can't be downloaded or used.
    """
    if image_size is not None and (not isinstance(image_size, int) or image_size < 1):
        raise InputError("image_size", image_size, "give a whole number of pixels, 1 or more")
    plain, path = name.removesuffix("-lt"), _existing_path(name)
    if is_own(plain):
        data = _as_dataset(plain, plain, own_images.read(plain, data_folder(root), image_size))
    elif path:
        data = _read_folder(path, image_size or 32) if path.is_dir() else _read_npz(path, path.stem)
    elif is_path(name) or is_path(plain):
        raise InputError("dataset", name, f"no such file or folder; give {PATHS}, or a name such as 'digits'")
    elif plain == "digits":
        data = _digits()
    else:
        sizes = sizes_of(plain)
        if sizes and image_size not in (None, *sizes):
            raise InputError("image_size", image_size, f"{name} has {', '.join(map(str, sizes))} pixels per side")
        file = _file(plain, data_folder(root), image_size)
        if not file.is_file():
            fetch(plain, file)
        data = _read_npz(file, plain)
    if image_size not in (None, data.image_size):
        raise InputError("image_size", image_size, f"{name} has {data.image_size} pixels per side; give that or none")
    return data


def stamp(name: str, root: str | Path | None = None, image_size: int | None = None) -> str:
    """A hash of the names, sizes and times of a data set's files; it changes when they change. No image is read.

    Args:
        name, root, image_size: see `load`.

    Returns:
        16 hexadecimal digits; "" if the data set is not on this machine.

    Raises:
        OSError: a folder of the data set can't be listed.
    """
    plain, path = name.removesuffix("-lt"), _existing_path(name)
    if plain == "digits" and path is None:
        facts: list[tuple] = [("digits",)]
    elif is_own(plain):  # What its function reads is not known: the images are read once per process.
        file = own.source_file(plain.partition(":")[0])
        facts = [(plain, file, Path(file).stat().st_mtime_ns if file else 0)]
    else:
        if path is None and not (is_path(name) or is_path(plain)):
            path = _file(plain, data_folder(root), image_size)
        if path is None or not path.exists():
            return ""
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        found = [(file, file.stat()) for file in files if file.exists()]  # A link may be broken.
        facts = [(str(f.absolute()), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for f, s in found]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def check(name: str, root: str | Path | None = None, image_size: int | None = None) -> dict[str, str | int]:
    """Load a data set and summarise it: numbers of images and classes, shape, fingerprint. Raises as `load` does."""
    data = load(name, root, image_size)
    labels = {split: getattr(data, f"{split}_labels") for split in _SPLITS}
    images = {f"{split} images": 0 if of is None else len(of) for split, of in labels.items()}
    of_class = np.bincount(data.train_labels).tolist()
    sizes = {"classes": data.n_classes, "smallest class": min(of_class), "largest class": max(of_class)}
    shape = {"image size": data.image_size, "channels": data.channels}
    return {"name": data.name, **images, **sizes, **shape, "fingerprint": data.fingerprint}


def available(root: str | Path | None = None) -> list[Listing]:
    """The data sets that `load` knows by name, with their files."""
    sets = {name: ("torchvision", int(name.removeprefix("cifar")), 32) for name in CIFAR}
    for name, info in medmnist_sets().items():
        if "multi-label" not in info["task"] and name not in OFFICIAL_NAMES.values():
            sets[name] = (info["python_class"], len(info["label"]), 28)
    files = {name: _file(name, data_folder(root)) for name in sets}
    rows = (Listing(name, *facts, str(files[name]) if files[name].is_file() else "") for name, facts in sets.items())
    return [Listing("digits", "scikit-learn", 10, 32, "inside scikit-learn"), *rows]


def is_path(name: str) -> bool:
    """Whether `load` treats a name as a path: it has a separator, ends in .npz or is a folder here."""
    if "/" in name or os.sep in name or name.endswith(".npz"):
        return True
    return Path(name).is_dir() and name.removesuffix("-lt") not in ("digits", *CIFAR, *medmnist_sets())


def _existing_path(name: str) -> Path | None:
    """The file or folder of a path, with "-lt" removed if only the plain path exists; None if neither exists."""
    given = [Path(n).expanduser() for n in (name, name.removesuffix("-lt")) if is_path(n)]
    return next((path for path in given if path.exists()), None)


def _file(name: str, folder: Path, image_size: int | None = None) -> Path:
    """The file of a data set in the data folder, whether it exists already or not."""
    size = f"_{image_size}" if image_size in sizes_of(name)[1:] else ""
    ours, official = (folder / f"{n}{size}.npz" for n in (name, OFFICIAL_NAMES.get(name, name)))
    return official if official.is_file() and not ours.is_file() else ours


def _require(fine: bool, source: Path | str, reason: str) -> None:
    if not fine:
        raise InputError("dataset", str(source), reason)


def _digits() -> ImageDataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # scikit-learn's pixels have the levels 0 to 16.
    images = images.repeat(4, axis=1).repeat(4, axis=2)[..., None]
    return ImageDataset("digits", tuple("0123456789"), *_hold_out(images, digits.target.astype(np.int64)))


def _hold_out(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, ...]:
    test = own_images.held_out(labels)
    return images[~test], labels[~test], images[test], labels[test]


def _read_npz(path: Path, name: str) -> ImageDataset:
    try:
        with zipfile.ZipFile(regular_file(path)) as npz:
            _check_unpacked_size(npz)
            arrays = {key: _read_array(npz, key) for key in _ARRAYS if f"{key}.npy" in npz.namelist()}
    except Exception as error:  # A damaged file can raise any error.
        advice = "give an .npz of plain arrays, no Python objects; if it was downloaded, delete it to download it again"
        raise InputError("dataset", str(path), f"can't be read ({in_short(error)}); {advice}") from None
    return _as_dataset(path, name, arrays)


def _as_dataset(path: Path | str, name: str, arrays: dict[str, np.ndarray]) -> ImageDataset:
    """A data set of arrays in MedMNIST's layout, after a check of all; `path` is where they are from."""
    splits = [split for split in _SPLITS if split != "val" or "val_images" in arrays or "val_labels" in arrays]
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
    classes = arrays["classes"] if "classes" in arrays else _official_classes(name, len(present))
    given = f"classes are {classes.dtype} of shape {classes.shape}"
    fine = classes.dtype.kind == "U" and classes.shape == (len(present),)
    _require(fine, path, f"{given}; give {len(present)} strings, one per class in train_labels")
    return ImageDataset(name, tuple(classes.tolist()), *(array for pair in data for array in pair))


def _check_unpacked_size(npz: zipfile.ZipFile) -> None:
    """Refuse an archive whose arrays do not fit into memory; no member is read beyond the size that it declares."""
    needed = sum(member.file_size for member in npz.infolist() if member.filename.removesuffix(".npy") in _ARRAYS)
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


def _read_folder(root: Path, size: int) -> ImageDataset:
    folders = {"train": root}
    if (root / "train").is_dir() and any(inside.is_dir() for inside in (root / "train").iterdir()):
        folders = {split: root / split for split in _SPLITS if (root / split).is_dir()}
    files = {split: _class_files(folder) for split, folder in folders.items()}
    classes = tuple(files["train"])
    layout = "give 2 or more, as in <class>/*.png or train/<class>/*.png"
    _require(len(classes) > 1, folders["train"], f"has {len(classes)} class folders; {layout}")
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
    images = {s: _read_images([f for fs in files[s].values() for f in fs], size) for s in files}
    numbers = np.arange(len(classes), dtype=np.int64)
    labels = {s: np.repeat(numbers, [len(fs) for fs in files[s].values()]) for s in files}
    if all((array == array[..., :1]).all() for array in images.values()):  # All images are grey: store one channel.
        images = {split: array[..., :1].copy() for split, array in images.items()}
    data = [array for split in files for array in (images[split], labels[split])]
    if "test" not in files:
        data[:2] = _hold_out(*data[:2])
    return ImageDataset(root.resolve().name, classes, *data)


def _class_files(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class folder; classes and files are sorted by name."""
    files = {}
    for inside in sorted(f for f in folder.iterdir() if f.is_dir() and f.name[0] != "."):
        found = sorted(f for f in inside.iterdir() if f.suffix.lower() in _IMAGE_FILES and f.name[0] != ".")
        _require(len(found) > 0, inside, f"a class folder without images; give some ({' '.join(_IMAGE_FILES)})")
        files[inside.name] = found
    return files


def _read_images(files: list[Path], size: int) -> np.ndarray:
    from PIL import Image

    images = np.empty((len(files), size, size, 3), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for image, file in zip(images, files, strict=True):
            image[:] = _read_image(file, size)
    return images


def _read_image(file: Path, size: int) -> np.ndarray:
    """(size, size, 3) uint8: the shorter side resized to `size`, the longer one cropped around its centre."""
    from PIL import Image, ImageOps

    try:
        with Image.open(regular_file(file), formats=_DECODERS) as image:
            if image.mode.startswith(("I", "F")):  # convert() would clip these values silently.
                raise ValueError(f"more than 8 bits per channel: mode {image.mode}")
            upright = ImageOps.exif_transpose(image).convert("RGB")
            return np.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC))
    except Exception as error:  # A decoder can raise any error on a damaged file.
        advice = "save it again, for example as PNG or JPEG, with 8 bits per channel and fewer pixels, or remove it"
        reason = f"is not a readable image ({in_short(error)}); {advice}"
        raise InputError("dataset", str(file), reason) from None
