"""What is where in a folder of image files: splits, classes, patients, images. No image is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from ucl.errors import InputError, first_of
from ucl.streams.image_dataset import SPLITS

IMAGE_FILES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_LIKE_SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation")
LAYOUTS = "<class>/<image> or <class>/<patient>/<image>"
_SPLIT_LAYOUTS = "<class>/*.png or train/<class>/*.png"
_SOME = f"give some ({' '.join(IMAGE_FILES)})"


def split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split; the folder itself is that of the training images if it has no splits.

    Raises:
        InputError: a folder beside `train` is not a split.
    """
    if not (root / "train").is_dir() or not _folders_in(root / "train"):
        return {"train": root}
    if others := [folder.name for folder in _folders_in(root) if folder.name not in SPLITS]:
        reason = f"has the folder {first_of(others)} beside train"
        raise InputError("dataset", str(root), f"{reason}; give train, test and optionally val, and nothing else")
    return {split: root / split for split in SPLITS if (root / split).is_dir()}


def class_files(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class folder, or of the patients' folders in it; all are sorted by name.

    Raises:
        InputError: a class folder or a patient's folder has no images, or a class folder has images of its own and
            others in folders.
    """
    return {inside.name: _files_of_class(inside) for inside in _folders_in(folder)}


def check_classes(root: Path, files: Mapping[str, Mapping[str, list[Path]]]) -> None:
    """Check that there are two classes or more, the same in all splits, and that they are not splits.

    Args:
        root: the folder.
        files: for each split the `class_files`.

    Raises:
        InputError: it is not so.
    """
    folders, classes = split_folders(root), list(files["train"])
    if len(classes) < 2:
        reason = f"has {len(classes)} class folders; give 2 or more, as in {_SPLIT_LAYOUTS}"
        raise InputError("dataset", str(folders["train"]), reason)
    if len(like_splits := [name for name in classes if name.lower() in _LIKE_SPLITS]) > 1:
        reason = f"its folders {', '.join(like_splits)} hold images, not class folders; give {_SPLIT_LAYOUTS}"
        raise InputError("dataset", str(root), reason)
    for split, of_class in files.items():
        if differing := ", ".join(sorted(set(classes) ^ set(of_class))):
            reason = f"its classes and those of train differ: {differing}; give both the same"
            raise InputError("dataset", str(folders[split]), reason)


def patient_names(root: Path, files: Mapping[str, Mapping[str, list[Path]]]) -> dict[str, list[str]]:
    """For each split the patient of each image, in the order of the files; empty if there are no patients' folders.

    Folders with the same name are one patient, also in several classes.

    Args:
        root: the folder; error messages name it.
        files: for each split the `class_files`.

    Raises:
        InputError: only some class folders have patients, or a patient is in two splits.
    """
    folders = split_folders(root)
    layouts: dict[bool, list[Path]] = {True: [], False: []}  # with and without patients
    for split, of_class in files.items():
        for name, found in of_class.items():
            layouts[found[0].parent != folders[split] / name].append(folders[split] / name)
    if not layouts[True]:
        return {}
    if layouts[False]:
        other = layouts[True][0].relative_to(root)
        reason = f"holds images, and {other} has a folder per patient; give all class folders one layout: {LAYOUTS}"
        raise InputError("dataset", str(layouts[False][0]), reason)
    names = {split: [file.parent.name for of in of_class.values() for file in of] for split, of_class in files.items()}
    for split, other_split in combinations(names, 2):
        if shared := sorted(set(names[split]) & set(names[other_split])):
            reason = f"patients in both {split} and {other_split}: {first_of(shared)}"
            advice = "move all images of a patient into one of them, or rename folders of different patients"
            raise InputError("dataset", str(root), f"{reason}; {advice}")
    return names


def unused_files(root: Path) -> list[Path]:
    """The files of a folder that are not among its `class_files`, sorted, without hidden ones.

    Raises:
        InputError: the folder has no classes that could be read.
    """
    used = {file for folder in split_folders(root).values() for of in class_files(folder).values() for file in of}
    return sorted(path for path in contents(root) if path.is_file() and path not in used)


def contents(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All folders and files in a folder and its sub-folders, without hidden ones and what may not be listed.

    Links are followed, as those of class folders are, but not into a folder that the link is in.

    Args:
        folder: the folder.
        above: the real paths of the folders that it is in.
    """
    above |= {os.path.realpath(folder)}
    with suppress(PermissionError), os.scandir(folder) as found:
        for entry in found:
            if entry.name[0] == ".":
                continue
            yield (path := folder / entry.name)
            is_folder = path.is_dir() if entry.is_symlink() else entry.is_dir()
            if is_folder and os.path.realpath(path) not in above:
                yield from contents(path, above)


def _folders_in(folder: Path) -> list[Path]:
    """The sub-folders of a folder, sorted by name, without hidden ones."""
    return sorted(inside for inside in folder.iterdir() if inside.is_dir() and inside.name[0] != ".")


def _images_in(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.suffix.lower() in IMAGE_FILES and f.name[0] != ".")


def _files_of_class(folder: Path) -> list[Path]:
    """See `class_files`."""
    images, of_patient = _images_in(folder), {inside: _images_in(inside) for inside in _folders_in(folder)}
    _check_class(folder, images, of_patient)
    return images or [file for found in of_patient.values() for file in found]


def _check_class(folder: Path, images: list[Path], of_patient: Mapping[Path, list[Path]]) -> None:
    """Check what is in a class folder: only images or, for each patient, a folder with images."""
    with_images = [inside.name for inside, found in of_patient.items() if found]
    if images and with_images:
        reason = f"holds images ({images[0].name}) and folders with images ({first_of(with_images)})"
        advice = f"give one layout, {LAYOUTS}, and move other files out of the class folder"
        raise InputError("dataset", str(folder), f"{reason}; {advice}")
    if images:
        return
    if not of_patient:
        others = sorted(inside.name for inside in folder.iterdir() if inside.name[0] != ".")
        only = f", only with other files ({first_of(others)})" if others else ""
        raise InputError("dataset", str(folder), f"a class folder without images{only}; {_SOME}, or remove it")
    if folder.name.lower() in _LIKE_SPLITS:
        reason = f"is taken as a class, but has only folders ({first_of([inside.name for inside in of_patient])})"
        advice = "if it is a split, name the splits train, test and optionally val; if it is a class, rename it"
        raise InputError("dataset", str(folder), f"{reason}; {advice}")
    for inside in (inside for inside, found in of_patient.items() if not found):
        deeper = first_of([folder.name for folder in _folders_in(inside)])
        advice = f"move those of its sub-folders ({deeper}) up, each with a name of its own" if deeper else _SOME
        raise InputError("dataset", str(inside), f"a patient's folder without images; {advice}, or remove it")
