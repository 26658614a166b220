"""Data sets: stored data are loaded unchanged, and unusable data are refused with a suggestion."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import pickle
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from sklearn.datasets import load_digits

from ucl import datasets
from ucl.catalogue import MEDMNIST
from ucl.config import Config
from ucl.errors import InputError
from ucl.streams import class_folders, downloads, image_files
from ucl.streams.datasets import ImageDataset, load
from ucl.streams.downloads import _medmnist_info, sizes_of

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
RNG = np.random.default_rng(0)


def images(n: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *(shape or (8, 8, 3))), dtype=np.uint8)


def layout(**changes: object) -> dict[str, np.ndarray]:
    """The arrays of a small, valid .npz with three classes; a change to None leaves an array out."""
    sound = {
        "train_images": images(6),
        "train_labels": np.array([0, 1, 2, 0, 1, 2], np.uint8)[:, None],
        "test_images": images(3),
        "test_labels": np.array([2, 0, 1], np.uint8)[:, None],
    }
    return {key: np.asarray(value) for key, value in {**sound, **changes}.items() if value is not None}


def write(path: Path, **changes: object) -> Path:
    np.savez(path, **layout(**changes))
    return path


def write_image(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def refusal(name: object, *words: str, **arguments: object) -> InputError:
    """Return the error with which `load` refuses a data set: one line that contains all the words."""
    with pytest.raises(InputError) as caught:
        load(str(name), **arguments)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return caught.value


# ---------------------------------------------------------------- the data set itself


@FEW
@given(pixels=arrays(np.uint8, st.tuples(st.integers(1, 9), st.just(5), st.just(5), st.sampled_from([1, 3]))))
def test_mean_and_std_are_those_of_the_training_pixels(pixels):
    labels = np.zeros(len(pixels), np.int64)
    data = ImageDataset("x", ("a",), pixels, labels, pixels[:0], labels[:0])
    scaled = pixels.astype(np.float64) / 255
    np.testing.assert_allclose(data.mean, scaled.mean((0, 1, 2)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(data.std, scaled.std((0, 1, 2)), rtol=1e-9, atol=1e-12)


def test_mean_and_std_see_every_block_of_a_large_set():
    pixels = images(70, 256, 256, 1)  # These are more pixels than are counted at once.
    pixels[-1] = 0
    data = ImageDataset("x", ("a",), pixels, np.zeros(70, np.int64), pixels[:1], np.zeros(1, np.int64))
    assert data.mean == pytest.approx([pixels.mean() / 255])
    assert data.std == pytest.approx([pixels.std() / 255])


def test_fingerprint_names_images_and_labels_but_not_the_names(tmp_path):
    sound = layout()
    first = load(str(write(tmp_path / "a.npz", **sound))).fingerprint
    assert len(first) == 16 and int(first, 16) >= 0
    assert load(str(write(tmp_path / "b.npz", **sound, classes=["x", "y", "z"]))).fingerprint == first
    assert (
        load(str(write(tmp_path / "c.npz", **{**sound, "train_labels": sound["train_labels"][::-1]}))).fingerprint
        != first
    )
    assert (
        load(str(write(tmp_path / "d.npz", **{**sound, "test_images": 255 - sound["test_images"]}))).fingerprint
        != first
    )
    with_val = {**sound, "val_images": sound["test_images"], "val_labels": sound["test_labels"]}
    assert load(str(write(tmp_path / "e.npz", **with_val))).fingerprint != first


# ---------------------------------------------------------------- digits


def test_digits_are_scikit_learns_images_each_once():
    data, source = load("digits"), load_digits()
    both = np.concatenate([data.train_images, data.test_images])
    labels = np.concatenate([data.train_labels, data.test_labels])
    assert both.shape == (1797, 32, 32, 1) and both.dtype == np.uint8 and labels.dtype == np.int64
    small = np.rint(both[:, ::4, ::4, 0] / 255 * 16)
    np.testing.assert_array_equal(small.repeat(4, 1).repeat(4, 2), np.rint(both[..., 0] / 255 * 16))
    ours = sorted((*image.ravel(), label) for image, label in zip(small, labels))
    theirs = sorted((*image.ravel(), label) for image, label in zip(source.images, source.target))
    assert ours == theirs


def test_digits_keep_a_fifth_of_each_class_for_the_test_in_a_split_that_never_changes():
    data = load("digits")
    train, test = np.bincount(data.train_labels), np.bincount(data.test_labels)
    assert data.n_classes == 10 and len(train) == len(test) == 10
    np.testing.assert_array_equal(test, np.rint((train + test) / 5))
    assert not {i.tobytes() for i in data.train_images} & {i.tobytes() for i in data.test_images}
    assert data.fingerprint == "5a29bbdddc80e9b7"


def test_the_long_tailed_name_has_the_same_images(tmp_path):
    assert load("digits-lt").fingerprint == load("digits").fingerprint
    assert load("digits-lt").name == "digits"
    write(tmp_path / "cifar10.npz")
    assert load("cifar10-lt", tmp_path).fingerprint == load("cifar10", tmp_path).fingerprint


# ---------------------------------------------------------------- .npz


@FEW
@given(
    data=st.data(),
    shape=st.sampled_from([(5, 5), (5, 5, 1), (5, 5, 3)]),
    dtype=st.sampled_from(["u1", "i2", "<i8", ">i4", "u8"]),
    column=st.booleans(),
    compressed=st.booleans(),
    n_val=st.integers(0, 3),
)
def test_an_npz_gives_back_what_was_stored(tmp_path, data, shape, dtype, column, compressed, n_val):
    n_classes = data.draw(st.integers(2, 4))
    sizes = {"train": n_classes + 3, "test": n_classes + 1, "val": n_val}
    stored, labels = {}, {}
    for split in [split for split, n in sizes.items() if n]:
        labels[split] = np.array(
            data.draw(st.lists(st.integers(0, n_classes - 1), min_size=sizes[split], max_size=sizes[split]))
        )
        if split != "val":
            labels[split][:n_classes] = range(n_classes)
        stored[f"{split}_images"] = images(sizes[split], *shape)
        stored[f"{split}_labels"] = labels[split].astype(dtype)[:, None] if column else labels[split].astype(dtype)
    path = tmp_path / "set.npz"
    (np.savez_compressed if compressed else np.savez)(path, **stored)
    loaded = load(str(path))
    assert loaded.name == "set" and loaded.classes == tuple(map(str, range(n_classes)))
    assert (loaded.image_size, loaded.channels) == (5, 3 if shape[-1] == 3 else 1)
    assert (loaded.val_images is None) == (loaded.val_labels is None) == (n_val == 0)
    for split in labels:
        found = getattr(loaded, f"{split}_images")
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, stored[f"{split}_images"].reshape(sizes[split], 5, 5, -1))
        found = getattr(loaded, f"{split}_labels")
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, labels[split])


def test_class_names_come_from_the_file(tmp_path):
    assert load(str(write(tmp_path / "a.npz", classes=["cat", "dog", "owl"]))).classes == ("cat", "dog", "owl")


SOUND = layout()
FAULTS = {
    "no train images": (dict(train_images=None), "has no train_images"),
    "no test labels": (dict(test_labels=None), "has no test_labels"),
    "validation images without labels": (dict(val_images=images(2)), "has no val_labels"),
    "float images": (
        dict(train_images=np.zeros((6, 8, 8, 3))),
        "train_images are float64 of shape (6, 8, 8, 3); give uint8 (0 to 255) of shape (N, H, H), ",
    ),
    "oblong images": (dict(train_images=images(6, 8, 9, 3)), "(6, 8, 9, 3)"),
    "four channels": (dict(train_images=images(6, 8, 8, 4)), "(6, 8, 8, 4)"),
    "flat images": (dict(train_images=images(6, 192)), "(6, 192)"),
    "a pixel array": (dict(train_images=np.uint8(3)), "of shape ()"),
    "no test image": (dict(test_images=images(0, 8, 8, 3), test_labels=np.zeros(0, int)), "N at least 1"),
    "no validation image": (
        dict(val_images=images(0, 8, 8, 3), val_labels=np.zeros(0, int)),
        "val_images are uint8 of shape (0, 8, 8, 3): no images; leave val_images and val_labels out, or give some",
    ),
    "test images of another size": (dict(test_images=images(3, 9, 9, 3)), "an image of test is (9, 9, 3)"),
    "grey test images": (dict(test_images=images(3, 8, 8)), "same size and channels"),
    "a label too few": (dict(train_labels=[0, 1, 2, 0, 1]), "for 6 images"),
    "float labels": (
        dict(train_labels=[0.0, 1, 2, 0, 1, 2]),
        "float64 of shape (6,); give whole numbers 0, 1, 2, ..., ",
    ),
    "text labels": (dict(train_labels=list("abcabc")), "<U1 of shape (6,); give whole numbers 0, 1, 2, ..., (N,) or"),
    "several labels an image": (
        dict(train_labels=np.eye(6, dtype=int)),
        "of shape (6, 6): its images have several labels at once, or one-hot labels; give one label per image, whole",
    ),
    "a single number for labels": (dict(train_labels=3), "of shape ()"),
    "a negative label": (dict(train_labels=[0, 1, -1, 0, 1, 2]), "from -1"),
    "labels from 1": (dict(train_labels=[1, 2, 3, 1, 2, 3]), "without 0"),
    "a gap in the labels": (dict(train_labels=[0, 1, 3, 0, 1, 3]), "without 2"),
    "huge labels": (dict(train_labels=[0, 1, 2**62, 0, 1, 2]), "without 3"),
    "labels beyond 64 bits": (dict(train_labels=np.array([0, 1, 2, 0, 1, 2**64 - 1], np.uint64)), "without a gap"),
    "one class": (dict(train_labels=[0] * 6, test_labels=[0] * 3), "give 2 or more"),
    "an unknown test label": (dict(test_labels=[0, 1, 7]), "test_labels contain 7"),
    "a class without test images": (dict(test_labels=[0, 0, 2]), "test_labels have no 1; give every class test images"),
    "classes without test images": (dict(test_labels=[2, 2, 2]), "test_labels have no 0, 1; give every class test"),
    "an unknown validation label": (dict(val_images=images(1), val_labels=[3]), "val_labels contain 3"),
    "a name too few": (dict(classes=["a", "b"]), "give 3 strings"),
    "numbers for names": (dict(classes=[1, 2, 3]), "give 3 strings"),
    "two names alike": (dict(classes=["a", "b", "a"]), "several classes are named a; give each class its own name"),
    "objects for labels": (dict(train_labels=np.array([0, 1, 2, 0, 1, None])), "no Python objects"),
}


@pytest.mark.parametrize(("change", "words"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_npz_is_refused_with_its_fault_and_left_alone(tmp_path, change, words):
    path = write(tmp_path / "set.npz", **change)
    before = path.read_bytes()
    error = refusal(path, words, "give ")
    assert (error.name, error.value) == ("dataset", str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_npz_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "cifar10.npz"
    path.write_bytes(content)
    refusal("cifar10", str(path), "can't be read", "delete it", root=tmp_path)
    assert path.read_bytes() == content


def test_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    refusal(write(tmp_path / "a.npz", train_images=np.array([Trap()] * 6, object)), "can't be read")
    assert not (tmp_path / "sprung").exists()


@settings(FEW, max_examples=400)
@given(data=st.data(), compressed=st.booleans())
def test_a_damaged_npz_is_refused_or_gives_the_stored_images(tmp_path, data, compressed):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **SOUND)
    content = bytearray(buffer.getvalue())
    place = data.draw(st.integers(0, len(content) - 1), label="place")
    if data.draw(st.booleans(), label="cut"):
        content = content[:place]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    path = tmp_path / "set.npz"
    path.write_bytes(content)
    try:
        loaded = load(str(path))
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:  # The damage was to unused content such as a date.
        for key, array in SOUND.items():
            np.testing.assert_array_equal(getattr(loaded, key), array.ravel() if "labels" in key else array)


def test_a_header_that_hides_part_of_an_array_is_refused(tmp_path):
    path = write(tmp_path / "set.npz", train_labels=np.array([0, 1, 2, 0, 1, 2], "<i8"))
    content = path.read_bytes()
    where = content.index(b"<i8")
    path.write_bytes(content[:where] + b"<i4" + content[where + 3 :])  # Each label now has half the bytes.
    refusal(path, "can't be read")


def test_an_archive_that_unpacks_to_more_than_the_memory_is_named_and_not_unpacked(tmp_path, monkeypatch):
    n = 2**16
    labels = np.arange(n) % 3
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **layout(train_images=np.zeros((n, 8, 8, 3), np.uint8), train_labels=labels))
    assert path.stat().st_size < 2**20
    monkeypatch.setattr(image_files, "available_bytes", lambda: 2**22)
    tracemalloc.start()
    try:
        refusal(path, "can't be read (its arrays need 0.01 GiB of memory, and 0.00 GiB are available here)")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    for available in (None, 2**30):
        monkeypatch.setattr(image_files, "available_bytes", lambda n=available: n)
        assert not load(str(path)).train_images.any()


def test_what_an_archive_says_of_its_size_bounds_what_is_read(tmp_path):
    """If the directory declares fewer bytes than there are, the rest is not unpacked."""
    path = write(tmp_path / "set.npz", train_images=np.zeros((6, 64, 64, 3), np.uint8))
    with zipfile.ZipFile(path, "a") as npz:
        npz.getinfo("train_images.npy").file_size = 1000
        npz.writestr("and_so_on", b"")  # This makes zipfile rewrite the directory.
    refusal(path, "can't be read")


# ---------------------------------------------------------------- names, sizes and folders


@pytest.mark.parametrize(
    ("name", "nearest"), [("cifr10", "cifar10"), ("BloodCell", "bloodcell"), ("pathmnst-lt", "pathmnist")]
)
def test_an_unknown_name_is_answered_with_the_nearest(tmp_path, name, nearest):
    refusal(name, f"did you mean {nearest!r}?", "a path to an .npz", "folder of class folders", root=tmp_path)
    refusal(name, "or your own function as package.module:function, works too", root=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["nowhere.npz", "./nowhere", "no/where.npz-lt"])
def test_a_path_to_nothing_is_refused(name):
    refusal(name, "no such file or folder", "a path to an .npz")


def test_a_set_with_several_labels_is_not_offered(tmp_path):
    error = refusal("§§§", "choose from: digits, cifar10", "pathmnist", root=tmp_path)
    assert "chestmnist" not in error.reason


def test_a_set_with_its_size_in_the_name_is_answered_with_both(tmp_path):
    refusal("breastmnist_64", "give breastmnist, with image_size 64", root=tmp_path)


def test_an_empty_name_is_refused(tmp_path, monkeypatch):
    for label in "ab":
        write_image(tmp_path / label / "0.png", images(1, 32, 32, 3)[0])
        write_image(tmp_path / label / "1.png", images(1, 32, 32, 3)[0])
    monkeypatch.chdir(tmp_path)
    refusal("", "is empty; give a name or a path")
    assert load(".").classes == ("a", "b")


def test_a_multi_label_set_is_refused_before_it_is_fetched(tmp_path):
    refusal("chestmnist", "several labels", root=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "size"), [("digits", 28), ("cifar10", 64), ("bloodcell", 32), ("digits", 0), ("digits", "32")]
)
def test_a_size_that_a_set_does_not_have_is_refused_before_it_is_fetched(tmp_path, name, size):
    assert refusal(name, "pixels", root=tmp_path, image_size=size).name == "image_size"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "n_classes"), [("pathmnist", 9), ("cifar10-lt", 10)])
def test_more_tasks_than_classes_are_refused_before_a_set_is_fetched(tmp_path, name, n_classes):
    with pytest.raises(InputError, match=f"{name} has {n_classes} classes; give {n_classes} or fewer$") as error:
        datasets.check_tasks(name, n_classes + 1, tmp_path)
    assert error.value.name == "n_tasks" and not list(tmp_path.iterdir())
    for fitting in range(1, n_classes + 1):
        datasets.check_tasks(name, fitting, tmp_path)


def test_tasks_are_compared_with_the_classes_that_are_here(tmp_path):
    """A file in the data folder may have other classes than the official set, and a folder has its own."""
    file = write(tmp_path / "pathmnist.npz")
    for label in "abcd":
        write_image(tmp_path / "zoo" / "train" / label / "0.png", images(1)[0])
    for name, n_classes in (("pathmnist", 3), (str(file), 3), (f"{tmp_path}/zoo", 4), (f"{tmp_path}/zoo-lt", 4)):
        datasets.check_tasks(name, n_classes, tmp_path)
        with pytest.raises(InputError, match=f"{name} has {n_classes} classes"):
            datasets.check_tasks(name, 5, tmp_path)


def test_what_can_not_be_counted_is_left_to_the_run(tmp_path):
    (tmp_path / "torn.npz").write_bytes(b"no archive")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "chestmnist.npz", train_labels=np.eye(6, 14, dtype=int))
    for name in (
        "torn",
        "chestmnist",
        f"{tmp_path}/torn.npz",
        f"{tmp_path}/empty",
        f"{tmp_path}/gone",
        "nameless",
        "mine:images",
    ):
        datasets.check_tasks(name, 5, tmp_path)


def test_an_npz_is_not_resized(tmp_path):
    path = write(tmp_path / "set.npz")
    assert load(str(path), image_size=8).image_size == 8
    refusal(path, "8 pixels", image_size=16)


def test_files_in_the_data_folder_are_used_by_name(tmp_path, monkeypatch):
    sound = layout()
    write(tmp_path / "mine.npz", **sound)
    write(tmp_path / "bloodcell_64.npz", train_images=images(6, 64, 64, 3), test_images=images(3, 64, 64, 3))
    assert load("mine", tmp_path).name == "mine"
    assert load("bloodcell", tmp_path, image_size=64).image_size == 64
    monkeypatch.setenv("UCL_DATA", str(tmp_path))
    assert load("mine").fingerprint == load("mine", tmp_path).fingerprint
    assert load("mine-lt").name == "mine"


def test_the_data_folder_is_root_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UCL_DATA", str(tmp_path / "env"))
    assert datasets.data_folder(tmp_path / "given") == tmp_path / "given"
    assert datasets.data_folder() == tmp_path / "env"
    monkeypatch.delenv("UCL_DATA")
    assert datasets.data_folder() == Path.home() / ".cache" / "ucl"


def test_a_home_folder_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("UCL_DATA", "~nouser-of-this-machine/images")
    with pytest.raises(
        InputError, match="data='~nouser-of-this-machine/images': no such home folder; give the whole path"
    ):
        datasets.data_folder()


def test_a_file_of_medmnist_put_there_by_hand_is_used_with_its_class_names(tmp_path):
    eight = np.arange(8)
    write(
        tmp_path / "bloodmnist.npz",
        train_images=images(8),
        train_labels=eight,
        test_images=images(8),
        test_labels=eight,
    )
    data = load("bloodcell", tmp_path)
    assert data.name == "bloodcell" and data.n_classes == 8
    assert (data.classes[0], data.classes[7]) == ("basophil", "platelet")
    (tmp_path / "bloodmnist.npz").rename(tmp_path / "bloodmnist_64.npz")
    assert load(str(tmp_path / "bloodmnist_64.npz")).classes == load("bloodmnist_64", tmp_path).classes == data.classes


def test_the_names_of_medmnist_are_those_of_its_own_table():
    assert set(MEDMNIST) == {name for name in _medmnist_info() if not name.endswith("3d")}
    assert [len(sizes_of(name)) for name in (*MEDMNIST, "bloodcell", "kmnist")] == [4] * (len(MEDMNIST) + 1) + [0]


def test_a_known_name_wins_over_a_folder_here_and_a_path_over_the_data_folder(tmp_path, monkeypatch):
    for name in ("digits", "cifar10", "faces", "faces-lt"):
        for label in "ab":
            for i in range(2):
                write_image(tmp_path / name / label / f"{i}.png", images(1, 32, 32, 3)[0])
    write(tmp_path / "data.npz")
    write(tmp_path / "cifar10.npz", classes=["x", "y", "z"])
    monkeypatch.chdir(tmp_path)
    assert load("digits").n_classes == 10
    assert load("cifar10", tmp_path).classes == ("x", "y", "z")
    assert load("./digits").classes == load("faces").classes == ("a", "b")
    assert load("./digits-lt").name == "digits"
    with pytest.raises(InputError, match="there is one of this name, but -lt at the end means a long-tailed part of"):
        load("faces-lt")
    assert load("faces-lt/").name == "faces-lt" and Config(dataset="faces-lt/").imbalance == 1
    assert load("data.npz").n_classes == 3


def test_the_list_of_sets_tells_what_is_there(tmp_path):
    write(tmp_path / "cifar10.npz")
    write(tmp_path / "bloodmnist.npz")
    rows = {row.name: row for row in datasets.available(tmp_path)}
    assert {"digits", "cifar10", "cifar100", "bloodcell", "pathmnist", "retinamnist"} <= set(rows)
    assert not {"chestmnist", "bloodmnist", "organmnist3d"} & set(rows)
    assert (rows["cifar100"].classes, rows["bloodcell"].classes, rows["pathmnist"].classes) == (100, 8, 9)
    assert {name: row.where for name, row in rows.items() if row.where} == {
        "digits": "inside scikit-learn",
        "cifar10": str(tmp_path / "cifar10.npz"),
        "bloodcell": str(tmp_path / "bloodmnist.npz"),
    }


def test_a_check_counts_the_images_and_classes_of_each_split(tmp_path):
    write(tmp_path / "mine.npz", train_labels=[0, 1, 2, 0, 0, 0])
    facts = datasets.check("mine", tmp_path)
    assert facts.pop("fingerprint") == load("mine", tmp_path).fingerprint
    assert facts == {
        "name": "mine", "train images": 6, "test images": 3, "val images": 0, "classes": 3,
        "smallest class": 1, "largest class": 4, "image size": 8, "channels": 3,
        "class sizes": [("0", 4), ("1", 1), ("2", 1)], "test class sizes": [("0", 1), ("1", 1), ("2", 1)],
        "val class sizes": [], "test images that are also training images": 0, "training images in several classes": 0,
        "remarks": [],
    }  # fmt: skip


def test_reading_a_file_needs_numpy_alone(tmp_path):
    path = write(tmp_path / "cifar10.npz")
    program = f"""
import sys, types
for name in ("torch", "torchvision", "medmnist", "sklearn", "PIL"):
    sys.modules[name] = None  # importing it is an error now
sys.modules["ucl"] = package = types.ModuleType("ucl")
package.__path__ = [{str(Path(datasets.__file__).parents[1])!r}]
from ucl.streams.datasets import load
print(load("cifar10", {str(tmp_path)!r}).fingerprint)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == load(str(path)).fingerprint


# ---------------------------------------------------------------- folders


def test_a_folder_of_class_folders_holds_out_a_fifth_of_each(tmp_path):
    stored = {}
    for label, n in (("ant", 10), ("bee", 2), ("cat", 5)):
        for i in range(n):
            stored[label, i] = images(1, 32, 32, 3)[0]
            write_image(tmp_path / "zoo" / label / f"{i:02d}.png", stored[label, i])
    (tmp_path / "zoo" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "zoo" / ".hidden").mkdir()
    data = load(str(tmp_path / "zoo"))
    assert (data.name, data.classes, data.image_size, data.channels) == ("zoo", ("ant", "bee", "cat"), 32, 3)
    assert np.bincount(data.train_labels).tolist() == [8, 1, 4]
    assert np.bincount(data.test_labels).tolist() == [2, 1, 1]
    found = {i.tobytes(): data.classes[c] for i, c in zip(data.train_images, data.train_labels)}
    found |= {i.tobytes(): data.classes[c] for i, c in zip(data.test_images, data.test_labels)}
    assert found == {pixels.tobytes(): label for (label, _), pixels in stored.items()}
    assert load(str(tmp_path / "zoo")).fingerprint == data.fingerprint


def test_a_folder_with_its_own_splits_keeps_them(tmp_path):
    for split, n in (("train", 3), ("test", 2), ("val", 1)):
        for level, label in ((10, "a"), (200, "b")):
            for i in range(n):
                write_image(tmp_path / split / label / f"{i}.png", np.full((32, 32), level + i, np.uint8))
    data = load(str(tmp_path))
    assert data.channels == 1
    assert data.train_images[:, 0, 0, 0].tolist() == [10, 11, 12, 200, 201, 202]
    assert data.test_images[:, 5, 5, 0].tolist() == [10, 11, 200, 201]
    assert data.val_images[:, 31, 31, 0].tolist() == [10, 200]
    assert (data.train_labels.tolist(), data.val_labels.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1])


def test_a_folder_with_validation_but_no_test_images_holds_out_test_images(tmp_path):
    for split, n in (("train", 5), ("val", 1)):
        for label in "ab":
            for i in range(n):
                write_image(tmp_path / split / label / f"{i}.png", images(1, 32, 32, 3)[0])
    data = load(str(tmp_path))
    assert [len(data.train_labels), len(data.test_labels), len(data.val_labels)] == [8, 2, 2]


@pytest.mark.parametrize("split", ["", "train/"])
def test_a_training_image_of_a_folder_is_traced_to_its_file(tmp_path, split):
    for number, label in enumerate("abbababbba"):
        write_image(tmp_path / split / label / f"{number}.png", images(1, 32, 32, 3)[0])
    if split:
        for label in "ab":
            write_image(tmp_path / "test" / label / "0.png", images(1, 32, 32, 3)[0])
    data = load(str(tmp_path))
    assert data.train_files is not None and len(data.train_files) == len(data.train_labels)
    for file, image, label in zip(data.train_files, data.train_images, data.train_labels, strict=True):
        assert file.startswith(f"{split}{data.classes[label]}/")
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / file)), image)
    assert load("digits").train_files is None


def test_train_may_be_the_name_of_a_class(tmp_path):
    for label in ("plane", "train"):
        for i in range(2):
            write_image(tmp_path / label / f"{i}.png", images(1, 32, 32, 3)[0])
    assert load(str(tmp_path)).classes == ("plane", "train")


def test_images_are_resized_by_the_shorter_side_and_cropped_around_the_centre(tmp_path):
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, :40], wide[:, 40:80], wide[:, 80:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    for label in "ab":
        write_image(tmp_path / label / "wide.png", wide)
        write_image(tmp_path / label / "high.bmp", wide.transpose(1, 0, 2))
    data = load(str(tmp_path), image_size=20)
    for image in [*data.train_images, *data.test_images]:
        assert image.shape == (20, 20, 3)
        np.testing.assert_array_equal(image[2:-2, 2:-2], np.broadcast_to([0, 255, 0], (16, 16, 3)))


def test_one_coloured_image_makes_all_of_a_folder_rgb(tmp_path):
    for label in "ab":
        for i in range(2):
            write_image(tmp_path / label / f"{i}.png", np.full((32, 32), 100 + i, np.uint8))
    assert load(str(tmp_path)).channels == 1
    write_image(tmp_path / "b" / "2.png", np.full((32, 32, 3), (9, 8, 7), np.uint8))
    data = load(str(tmp_path))
    assert data.channels == 3
    assert sorted(map(tuple, np.concatenate([data.train_images, data.test_images])[:, 0, 0].tolist())) == [
        (9, 8, 7), (100,) * 3, (100,) * 3, (101,) * 3, (101,) * 3,
    ]  # fmt: skip


def test_a_photo_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3  # The picture was taken upside down.
    pixels = np.zeros((32, 32), np.uint8)
    pixels[:16] = 255
    for label in "ab":
        for i in range(2):
            path = write_image(tmp_path / label / f"{i}.png", pixels)
            Image.fromarray(pixels).save(path, exif=exif)
    np.testing.assert_array_equal(load(str(tmp_path)).train_images[0, ..., 0], pixels[::-1])


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "test"):
        for label in "ab":
            for i in range(2):
                write_image(tmp_path / split / label / f"{i}.png", images(1, 32, 32, 3)[0])
    assert load(str(tmp_path)).n_classes == 2
    return tmp_path


def test_an_empty_class_folder_is_named(folder):
    (folder / "train" / "c").mkdir()
    refusal(folder, str(folder / "train" / "c"), "a class folder without images; give some (.png ", "), or remove it")
    (folder / "train" / "c" / "scan.dcm").write_bytes(b"no suffix of an image")
    refusal(folder, "a class folder without images, only with other files (scan.dcm); give some (.png ")


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_an_unreadable_image_is_named_and_left_alone(folder, content):
    path = folder / "test" / "b" / "1.png"
    content = path.read_bytes()[:300] if content is None else content
    path.write_bytes(content)
    refusal(folder, str(path), "not a readable image", "remove it")
    assert path.read_bytes() == content


def test_several_unreadable_images_are_named_in_one_line(folder):
    paths = [folder / "train" / "a" / "0.png", folder / "test" / "a" / "1.png", folder / "test" / "b" / "0.png"]
    for path in paths[:2]:
        path.write_bytes(b"no image")
    error = refusal(folder, "are not readable images (the first: cannot identify image file", "remove it")
    assert error.value == f"{paths[0]}, {paths[1]}"
    paths[2].write_bytes(b"")
    assert refusal(folder).value == ", ".join(map(str, paths))
    (folder / "test" / "b" / "1.png").write_bytes(b"")
    assert refusal(folder).value == ", ".join(map(str, paths)) + " and more"


@pytest.mark.parametrize("name", ["Test", "validation", "tset"])
def test_a_misnamed_split_is_refused(folder, name):
    (folder / "test").rename(folder / name)
    refusal(folder, f"has the folder {name} beside train; give train, test and optionally val, and nothing else")
    (folder / name).rename(folder / ".hidden")
    (folder / "notes.txt").write_text("a file is no folder")
    assert np.bincount(load(str(folder)).test_labels).tolist() == [1, 1]  # held out of train


def test_each_suffix_has_its_decoder(tmp_path):
    for number, suffix in enumerate(class_folders.IMAGE_FILES):
        for label in "ab":
            path = tmp_path / label / f"{number}{suffix}"
            path.parent.mkdir(exist_ok=True)
            Image.new("L" if suffix == ".pgm" else "RGB", (32, 32), 40).save(path)
    for label in "ab":  # Phones write such files, with several pictures in each.
        several = [Image.new("RGB", (32, 32), 40)] * 2
        several[0].save(tmp_path / label / "99.jpg", "MPO", save_all=True, append_images=several[1:])
    data = load(str(tmp_path))
    assert len(data.train_labels) + len(data.test_labels) == 2 * (1 + len(class_folders.IMAGE_FILES))


@pytest.mark.parametrize("suffix", [".tif", ".gif"])
def test_a_file_of_several_images_is_refused(folder, suffix):
    several = [Image.new("L", (32, 32), level) for level in (40, 80, 120)]
    path = folder / "train" / "a" / f"9{suffix}"
    several[0].save(path, save_all=True, append_images=several[1:])
    refusal(folder, str(path), "3 images in one file", "save each again")


@pytest.mark.parametrize("splits", [("train", "test"), ("Train", "Valid", "Test"), ("train", "test", "masks")])
def test_splits_without_class_folders_are_not_taken_for_classes(tmp_path, splits):
    for split in splits:
        (tmp_path / split).mkdir()
        for number in range(3):
            Image.new("L", (32, 32), 40 * number).save(tmp_path / split / f"{number}.png")
    refusal(tmp_path, "hold images, not class folders; give <class>/*.png or train/<class>/*.png")


def test_cropped_images_are_reported(folder, caplog):
    caplog.set_level("INFO", "ucl")
    load(str(folder))
    assert not caplog.messages
    Image.new("L", (96, 32)).save(folder / "train" / "a" / "wide.png")
    Image.new("L", (30, 32)).save(folder / "train" / "a" / "almost square.png")
    n_images = len(list(folder.rglob("*.png")))
    load(str(folder))
    (message,) = caplog.messages
    many = f"1 of {n_images} images are not square"
    assert message == f"{folder.name}: {many}; only their middle is used, up to 67 % is cropped"


def test_equal_images_in_training_and_test_or_in_two_classes_are_counted(tmp_path):
    images = np.arange(6, dtype=np.uint8).repeat(64).reshape(6, 8, 8)
    images[5] = images[0]  # of class 0 and of class 1
    tested = images[1:4].copy()
    tested[1] = 9  # not a training image
    split = dict(train_images=images, train_labels=[0, 0, 0, 1, 1, 1], test_images=tested, test_labels=[0, 1, 1])
    write(tmp_path / "mine.npz", **split)
    facts = datasets.check("mine", tmp_path)
    assert facts["test images that are also training images"] == 2
    assert facts["training images in several classes"] == 1


def test_postscript_under_another_name_reaches_no_interpreter(folder, tmp_path_factory, monkeypatch):
    from PIL import EpsImagePlugin

    tools = tmp_path_factory.mktemp("tools")
    (tools / "gs").write_text(f"#!/bin/sh\ntouch {tools}/ran\n")
    (tools / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    path = folder / "train" / "a" / "9.png"
    Image.new("RGB", (32, 32)).save(path, "EPS")
    refusal(folder, str(path), "not a readable image", "remove it")
    assert not (tools / "ran").exists()


def test_an_image_of_too_many_pixels_is_refused_unread(folder, monkeypatch):
    path = folder / "test" / "a" / "9.png"
    Image.new("1", (1200, 1000)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # Pillow warns up to twice this.
    refusal(folder, str(path), "1200000 pixels", "fewer pixels")


def test_a_folder_beyond_the_memory_is_refused_unread(folder, monkeypatch):
    monkeypatch.setattr(image_files, "available_bytes", lambda: 40_000)
    (folder / "train" / "a" / "0.png").write_bytes(b"not even looked at")
    error = refusal(folder, "8 images of 32 pixels per side need 0.00 GiB", "give fewer pixels or fewer images")
    assert (error.name, error.value) == ("image_size", 32)


def test_an_image_of_16_bits_is_refused_instead_of_clipped(folder):
    path = write_image(folder / "train" / "a" / "deep.png", np.full((32, 32), 40_000, np.uint16))
    refusal(folder, str(path), "more than 8 bits")


def png_of_16_bits(path: Path, color_type: int, channels: int) -> Path:
    """A PNG file of 16 bits per channel, which Pillow cannot write; the values have 12 bits."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    head = (32).to_bytes(4, "big") * 2 + bytes([16, color_type, 0, 0, 0])
    row = b"\0" + np.full(32 * channels, 4095, ">u2").tobytes()
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(32 * row)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


@pytest.mark.parametrize(("color_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_a_png_of_16_bits_is_refused_however_many_channels_it_has(folder, color_type, channels):
    """Pillow opens all but the grey one as images of 8 bits: values of 12 bits would be nearly black."""
    path = png_of_16_bits(folder / "train" / "a" / "deep.png", color_type, channels)
    refusal(folder, str(path), "more than 8 bits")


def test_a_tiff_of_16_bits_per_colour_is_refused(folder):
    path = folder / "train" / "a" / "deep.tif"
    pixels = np.full((32, 32, 3), 4095, "<u2").tobytes()
    numbers = {256: 32, 257: 32, 258: 8, 259: 1, 262: 2, 273: 14, 277: 3, 278: 32, 279: len(pixels)}
    tags = b"".join(
        tag.to_bytes(2, "little") + (3).to_bytes(2, "little") + (3 if tag == 258 else 1).to_bytes(4, "little")
        + value.to_bytes(4, "little") for tag, value in numbers.items()
    )  # fmt: skip
    bits, start = np.full(3, 16, "<u2").tobytes(), 14 + len(pixels)  # at offset 8, then the pixels, then the tags
    path.write_bytes(b"II*\0" + start.to_bytes(4, "little") + bits + pixels
                     + len(numbers).to_bytes(2, "little") + tags + bytes(4))  # fmt: skip
    with Image.open(path) as image:
        assert image.mode == "RGB"
    refusal(folder, str(path), "more than 8 bits")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_images_of_8_bits_and_less_are_read(folder, mode):
    for suffix in ("png", "tif"):
        Image.new(mode, (32, 32), "white").save(folder / "train" / "a" / f"mode {mode}.{suffix}")
    assert len(load(str(folder)).train_labels) == 6


@pytest.mark.parametrize(("mode", "pixel"), [("LA", (9, 254)), ("RGBA", (9, 9, 9, 0)), ("P", 0)])
def test_transparent_pixels_are_refused(folder, mode, pixel):
    image, path = Image.new(mode, (32, 32), "white" if mode != "P" else 1), folder / "train" / "a" / "clear.png"
    image.putpixel((3, 4), pixel)
    image.save(path, **({"transparency": 0} if mode == "P" else {}))
    refusal(folder, str(path), "transparent pixels", "opaque")


def test_a_ppm_of_16_bits_is_refused(folder):
    path = folder / "train" / "a" / "deep.ppm"
    path.write_bytes(b"P6\n32 32\n255\n" + bytes(3 * 32 * 32))
    assert len(load(str(folder)).train_labels) == 5
    path.write_bytes(b"P6\n32 32\n256\n" + bytes(2 * 3 * 32 * 32))
    refusal(folder, str(path), "more than 8 bits")


def test_a_path_object_is_a_path(folder):
    assert load(folder).fingerprint == load(str(folder), image_size=np.int64(32)).fingerprint
    assert datasets.check(folder) == datasets.check(str(folder))


@pytest.mark.parametrize(("train", "test"), [("training", "testing"), ("Train", "Test")])
def test_splits_under_other_names_are_not_called_empty_classes(folder, train, test):
    (folder / "train").rename(folder / train)
    (folder / "test").rename(folder / test)
    refusal(folder, "has only folders (a, b); if it is a split, name the splits train, test and optionally val; if")


def test_classes_of_the_test_must_be_those_of_the_training(folder):
    write_image(folder / "test" / "c" / "0.png", images(1, 32, 32, 3)[0])
    refusal(folder, str(folder / "test"), "differ: c")


@pytest.mark.parametrize("n", [0, 1])
def test_a_folder_without_two_class_folders_is_refused(tmp_path, n):
    for i in range(2 * n):
        write_image(tmp_path / "only" / f"{i}.png", images(1, 32, 32, 3)[0])
    refusal(tmp_path, f"{n} class folders", "<class>/*.png")


def test_a_class_of_one_image_can_not_be_trained_and_tested(tmp_path):
    for label, n in (("a", 3), ("b", 1)):
        for i in range(n):
            write_image(tmp_path / label / f"{i}.png", images(1, 32, 32, 3)[0])
    refusal(tmp_path, "one image of b", "2 or more")


# ---------------------------------------------------------------- fetching, from a server on this machine


@pytest.fixture
def serve(monkeypatch):
    """Starts servers that answer every request with the given bytes, or close the connection after half of them."""
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    servers = []

    def start(content: bytes, cut: bool = False, halfway=lambda: None) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2])
                halfway()
                with suppress(ConnectionError):  # A client that only follows redirections closes early.
                    self.wfile.write(b"" if cut else content[len(content) // 2 :])

            def log_message(self, *arguments):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/file"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def breastmnist(monkeypatch):
    """Makes BreastMNIST (2 classes) load from another address, with the checksum of a small file."""
    info = _medmnist_info()

    labels = np.array([0, 1, 1], np.uint8)[:, None]
    stored = {
        "train_images": images(3, 28, 28),
        "train_labels": labels,
        "test_images": images(3, 28, 28),
        "test_labels": labels,
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **stored)

    def come_from(url: str) -> None:
        for size in ("", "_64"):
            monkeypatch.setitem(info["breastmnist"], f"url{size}", url)
            monkeypatch.setitem(info["breastmnist"], f"MD5{size}", hashlib.md5(buffer.getvalue()).hexdigest())

    return stored, buffer.getvalue(), come_from


CLOSED = "http://127.0.0.1:9/file"  # nothing listens on the discard port


def test_a_medmnist_set_is_fetched_once_and_kept_with_its_class_names(tmp_path, serve, breastmnist):
    stored, content, come_from = breastmnist
    come_from(serve(content))
    data = load("breastmnist", tmp_path / "new")
    np.testing.assert_array_equal(data.train_images[..., 0], stored["train_images"])
    assert data.classes == ("malignant", "normal, benign")
    come_from(CLOSED)
    assert load("breastmnist", tmp_path / "new").fingerprint == data.fingerprint
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["breastmnist.npz"]
    with np.load(tmp_path / "new" / "breastmnist.npz") as kept:
        assert kept["classes"].tolist() == ["malignant", "normal, benign"]


def test_another_size_is_fetched_under_its_own_name(tmp_path, serve, breastmnist):
    _, content, come_from = breastmnist
    come_from(serve(content))
    refusal("breastmnist", "28 pixels", root=tmp_path, image_size=64)  # The file of this server has 28 pixels.
    assert [path.name for path in tmp_path.iterdir()] == ["breastmnist_64.npz"]


def test_a_torn_download_leaves_nothing_and_says_what_to_do(tmp_path, serve, breastmnist):
    """Earlier processes were killed two days ago, and another one is downloading the same set."""
    _, content, come_from = breastmnist
    come_from(serve(content, cut=True))
    ages = {".breastmnist-two_days": 2 * 86400, ".cifar100-two_days": 2 * 86400, ".breastmnist-just_now": 0}
    for name, age in ages.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    refusal(
        "breastmnist",
        "can't be downloaded",
        "breastmnist.npz from medmnist.com",
        str(tmp_path / "breastmnist.npz"),
        root=tmp_path,
    )
    assert [path.name for path in tmp_path.iterdir()] == [".breastmnist-just_now"]


def test_without_a_network_the_message_says_where_to_put_which_file(tmp_path, breastmnist):
    breastmnist[2](CLOSED)
    words = "can't be downloaded", "breastmnist_64.npz from medmnist.com", str(tmp_path / "breastmnist_64.npz")
    refusal("breastmnist", *words, root=tmp_path, image_size=64)
    assert not list(tmp_path.iterdir())


def test_stopping_a_download_by_hand_leaves_nothing(tmp_path, serve, breastmnist, monkeypatch):
    """Simulate Ctrl-C between two parts of a file; a real signal could arrive anywhere, also inside a lock of tqdm."""
    _, content, come_from = breastmnist
    read, parts = http.client.HTTPResponse.read, []

    def stop_at_the_second(response, size=None):
        parts.append(read(response, size and len(content) // 2))
        if len(parts) == 2:
            raise KeyboardInterrupt
        return parts[-1]

    come_from(serve(content))
    monkeypatch.setattr(http.client.HTTPResponse, "read", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        load("breastmnist", tmp_path)
    assert [len(part) > 0 for part in parts] == [True, True]
    assert not list(tmp_path.iterdir())


def test_two_that_fetch_at_once_both_get_the_whole_set(tmp_path, serve, breastmnist):
    _, content, come_from = breastmnist
    both_here = threading.Barrier(2, timeout=20)
    come_from(serve(content, halfway=both_here.wait))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: load("breastmnist", tmp_path), range(2))
    assert first.fingerprint == second.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["breastmnist.npz"]


def test_a_set_with_its_download_is_known_everywhere(tmp_path, monkeypatch):
    zoo = downloads._Known("mine", 3, 8, "zoo.tar from zoo.org", lambda name, file, folder: write(file))
    monkeypatch.setitem(downloads.OTHERS, "zoo", zoo)
    refusal("zoo", "zoo has 8 pixels per side", root=tmp_path, image_size=16)
    data = load("zoo", tmp_path)
    assert (data.name, data.n_classes, data.image_size) == ("zoo", 3, 8)
    (row,) = (row for row in datasets.available(tmp_path) if row.name == "zoo")
    assert row == datasets.Listing("zoo", "mine", 3, 8, str(tmp_path / "zoo.npz"))


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(request, monkeypatch, tmp_path):
    """A small archive in the official format, whose checksums replace the official ones in torchvision."""
    import torchvision.datasets

    name = request.param
    source = getattr(torchvision.datasets, name.upper())
    n_classes = int(name.removeprefix("cifar"))
    names = [f"class {i}" for i in range(n_classes)]
    key = "labels" if name == "cifar10" else "fine_labels"
    n = 2 * n_classes // len(source.train_list)
    train, test = images(2 * n_classes, 3, 32, 32), images(n_classes, 3, 32, 32)
    train_labels, test_labels = [i % n_classes for i in range(2 * n_classes)], list(range(n_classes))[::-1]
    members = {source.meta["filename"]: {source.meta["key"]: names}, source.test_list[0][0]: (test, test_labels)}
    for i, (batch, _) in enumerate(source.train_list):
        members[batch] = (train[i * n : (i + 1) * n], train_labels[i * n : (i + 1) * n])
    archive, checksums = tmp_path / "made" / source.filename, {}
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for member, entry in members.items():
            if isinstance(entry, tuple):
                entry = {"data": entry[0].reshape(len(entry[0]), -1), key: entry[1]}
            content = pickle.dumps(entry)
            checksums[member] = hashlib.md5(content).hexdigest()
            info = tarfile.TarInfo(f"{source.base_folder}/{member}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    monkeypatch.setattr(source, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(source, "train_list", [[member, checksums[member]] for member, _ in source.train_list])
    monkeypatch.setattr(source, "test_list", [[member, checksums[member]] for member, _ in source.test_list])
    monkeypatch.setattr(source, "meta", {**source.meta, "md5": checksums[source.meta["filename"]]})
    monkeypatch.setattr(source, "url", CLOSED)
    expected = (train.transpose(0, 2, 3, 1), train_labels, test.transpose(0, 2, 3, 1), test_labels, tuple(names))
    return name, source, archive, expected


def assert_is(data: ImageDataset, expected: tuple) -> None:
    train, train_labels, test, test_labels, names = expected
    np.testing.assert_array_equal(data.train_images, train)
    np.testing.assert_array_equal(data.test_images, test)
    assert (data.train_labels.tolist(), data.test_labels.tolist(), data.classes) == (train_labels, test_labels, names)


def test_cifar_is_fetched_and_only_the_npz_is_kept(tmp_path, serve, cifar, monkeypatch):
    name, source, archive, expected = cifar
    monkeypatch.setattr(source, "url", serve(archive.read_bytes()))
    data = load(name, tmp_path / "data")
    assert_is(data, expected)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [f"{name}.npz"]
    monkeypatch.setattr(source, "url", CLOSED)
    assert load(name, tmp_path / "data").fingerprint == data.fingerprint


def test_the_official_archive_of_cifar_put_there_by_hand_is_used_without_a_network(cifar):
    name, _, archive, expected = cifar
    assert_is(load(name, archive.parent), expected)
    assert {path.name for path in archive.parent.iterdir()} == {archive.name, f"{name}.npz"}


def test_a_damaged_archive_of_cifar_is_named_and_left_alone(cifar):
    name, _, archive, _ = cifar
    archive.write_bytes(archive.read_bytes()[:-100])
    before = archive.read_bytes()
    refusal(name, str(archive), "MD5", "delete it", root=archive.parent)
    assert [path.read_bytes() for path in archive.parent.iterdir()] == [before]


def test_a_torn_download_of_cifar_leaves_nothing_and_says_what_to_do(tmp_path, serve, cifar, monkeypatch):
    name, source, archive, _ = cifar
    monkeypatch.setattr(source, "url", serve(archive.read_bytes(), cut=True))
    root = tmp_path / "data"
    refusal(name, "can't be downloaded", archive.name, str(root / f"{name}.npz"), root=root)
    assert not list(root.iterdir())
