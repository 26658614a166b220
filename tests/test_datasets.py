"""Data sets: stored data are loaded unchanged, and unusable data are refused with a suggestion."""

import hashlib
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets
from conftest import save_folder
from sklearn.datasets import load_digits

from ucl import datasets
from ucl.catalogue import MEDMNIST
from ucl.config import Config
from ucl.errors import InputError
from ucl.streams import downloads, image_files, pixels
from ucl.streams.datasets import ImageDataset, load
from ucl.streams.downloads import CIFAR, medmnist_sets, sizes_of

RNG = np.random.default_rng(0)


def images(n, *shape):
    return RNG.integers(0, 256, (n, *(shape or (8, 8, 3))), dtype=np.uint8)


SOUND = {
    "train_images": images(6),
    "train_labels": np.array([0, 1, 2, 0, 1, 2], np.uint8)[:, None],
    "test_images": images(3),
    "test_labels": np.array([2, 0, 1], np.uint8)[:, None],
}


def write(path, **changes):
    """Write a small .npz with three classes; a change to None leaves an array out."""
    np.savez_compressed(path, **{key: value for key, value in {**SOUND, **changes}.items() if value is not None})
    return path


def refusal(name, **arguments):
    """The error with which `load` refuses a data set, in one line."""
    with pytest.raises(InputError) as caught:
        load(str(name), **arguments)
    assert "\n" not in str(caught.value)
    return caught.value


# ---------------------------------------------------------------- the data set itself


@pytest.mark.parametrize("shape", [(9, 5, 5, 3), (70, 256, 256, 1)])  # more pixels than are counted at once
def test_mean_and_std_are_those_of_the_training_pixels(shape):
    pixels = images(*shape)
    pixels[-1] = 0
    data = ImageDataset("x", ("a",), pixels, np.zeros(len(pixels), np.int64), pixels[:1], np.zeros(1, np.int64))
    assert data.mean == pytest.approx(pixels.mean((0, 1, 2)) / 255)
    assert data.std == pytest.approx(pixels.std((0, 1, 2)) / 255)


def test_fingerprint_names_images_and_labels_but_not_the_names(tmp_path):
    first = load(write(tmp_path / "a.npz")).fingerprint
    assert len(first) == 16 and int(first, 16) >= 0
    assert load(write(tmp_path / "b.npz", classes=["x", "y", "z"])).fingerprint == first
    others = [{"train_labels": SOUND["train_labels"][::-1]}, {"test_images": 255 - SOUND["test_images"]}]
    others += [{"val_images": SOUND["test_images"], "val_labels": SOUND["test_labels"]}]
    assert all(load(write(tmp_path / "c.npz", **changed)).fingerprint != first for changed in others)


def test_digits_are_scikit_learns_images_each_once_with_a_fifth_of_each_class_for_the_test():
    data, source = load("digits"), load_digits()
    both = np.concatenate([data.train_images, data.test_images])
    labels = np.concatenate([data.train_labels, data.test_labels])
    assert both.shape == (1797, 32, 32, 1) and both.dtype == np.uint8 and labels.dtype == np.int64
    small = np.rint(both[:, ::4, ::4, 0] / 255 * 16)
    np.testing.assert_array_equal(small.repeat(4, 1).repeat(4, 2), np.rint(both[..., 0] / 255 * 16))
    pixels = sorted((*image.ravel(), label) for image, label in zip(small, labels))
    assert pixels == sorted((*image.ravel(), label) for image, label in zip(source.images, source.target))
    assert np.bincount(data.test_labels).tolist() == np.rint(np.bincount(labels) / 5).tolist()
    assert not {i.tobytes() for i in data.train_images} & {i.tobytes() for i in data.test_images}
    assert data.fingerprint == load("digits-lt").fingerprint == "5a29bbdddc80e9b7"
    assert data.name == load("digits-lt").name == "digits"


# ---------------------------------------------------------------- .npz


@pytest.mark.parametrize(("shape", "dtype"), [((5, 5), "u1"), ((5, 5, 1), "i2"), ((5, 5, 3), ">i4"), ((5, 5), "u8")])
@pytest.mark.parametrize(("sizes", "column"), [(dict(train=7, test=5), True), (dict(train=7, test=5, val=2), False)])
def test_an_npz_gives_back_what_was_stored(tmp_path, shape, dtype, sizes, column):
    stored = {f"{split}_images": images(n, *shape) for split, n in sizes.items()}
    labels = {f"{split}_labels": RNG.permutation(np.arange(n) % 3).astype(dtype) for split, n in sizes.items()}
    columns = {key: numbers[:, None] if column else numbers for key, numbers in labels.items()}
    np.savez(tmp_path / "set.npz", **stored, **columns)
    loaded = load(tmp_path / "set.npz")
    assert (loaded.name, loaded.classes) == ("set", ("0", "1", "2"))
    assert (loaded.image_size, loaded.channels) == (5, 3 if shape[-1] == 3 else 1)
    assert (loaded.val_images is None) == (loaded.val_labels is None) == ("val" not in sizes)
    for key, array in stored.items():
        assert getattr(loaded, key).dtype == np.uint8
        np.testing.assert_array_equal(getattr(loaded, key), array.reshape(len(array), 5, 5, -1))
    for key, array in labels.items():
        assert getattr(loaded, key).dtype == np.int64
        np.testing.assert_array_equal(getattr(loaded, key), array)


FAULTS = {
    "no train images": dict(train_images=None),
    "no test labels": dict(test_labels=None),
    "float images": dict(train_images=np.zeros((6, 8, 8, 3))),
    "oblong images": dict(train_images=images(6, 8, 9, 3)),
    "four channels": dict(train_images=images(6, 8, 8, 4)),
    "test images of another size": dict(test_images=images(3, 9, 9, 3)),
    "a label too few": dict(train_labels=[0, 1, 2, 0, 1]),
    "float labels": dict(train_labels=[0.0, 1, 2, 0, 1, 2]),
    "texts and numbers for labels": dict(train_labels=list("abcabc")),
    "several labels per image": dict(train_labels=np.eye(6, dtype=int)),
    "a negative label": dict(train_labels=[0, 1, -1, 0, 1, 2]),
    "a gap in the labels": dict(train_labels=[0, 1, 3, 0, 1, 3]),
    "one class": dict(train_labels=[0] * 6, test_labels=[0] * 3),
    "an unknown test label": dict(test_labels=[0, 1, 7]),
    "a class without test images": dict(test_labels=[0, 0, 2]),
    "a named class without training images": dict(classes=["a", "b", "c", "d"]),
    "a name too few": dict(classes=["a", "b"]),
    "a name twice": dict(train_labels=list("abcabc"), test_labels=list("abc"), classes=list("abcc")),
    "a class of one image, no test images": dict(train_labels=[0, 0, 1, 1, 1, 2], test_images=None, test_labels=None),
    "a patient too few": dict(train_patients=[1, 2, 3, 4, 5], test_patients=[7, 8, 9]),
    "patients with a fraction": dict(train_patients=np.ones(6), test_patients=np.zeros(3)),
    "patients of the training images only": dict(train_patients=[1, 2, 3, 4, 5, 6]),
    "an image without a patient": dict(train_patients=[*"abcde", ""], test_patients=[*"xyz"]),
    "a patient in train and test": dict(train_patients=[1, 2, 3, 4, 5, 6], test_patients=[7, 8, 6]),
}


@pytest.mark.parametrize("change", FAULTS.values(), ids=FAULTS)
def test_a_faulty_npz_is_refused(tmp_path, change):
    error = refusal(write(tmp_path / "set.npz", **change))
    assert (error.name, error.value) == ("dataset", str(tmp_path / "set.npz"))


def test_an_npz_may_have_texts_for_labels_and_no_test_images(tmp_path):
    labels = np.array(["owl", "ant", "owl", "ant", "owl", "bee", "bee"])
    arrays = {"train_images": images(7), "train_labels": labels, "test_images": None, "test_labels": None}
    data = load(write(tmp_path / "set.npz", **arrays))
    assert data.classes == ("ant", "bee", "owl")
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([2, 0, 2, 1], [2, 0, 1])


@pytest.mark.parametrize(("divisor", "tested_divisor", "n"), [(1, 1, 0), (16, 16, 1), (128, 128, 1), (1, 16, 1)])
def test_images_that_are_not_of_0_to_255_are_used_unchanged_with_a_remark(tmp_path, divisor, tested_divisor, n):
    arrays = {"train_images": images(6) // divisor, "test_images": images(3) // tested_divisor}
    path = write(tmp_path / "set.npz", **arrays)
    assert len(datasets.check(path)["remarks"]) == n
    for key, array in arrays.items():
        np.testing.assert_array_equal(getattr(load(path), key), array)


def test_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    refusal(write(tmp_path / "a.npz", train_images=np.array([Trap()] * 6, object)))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("fault", ["cut", "changed"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_npz_is_refused(tmp_path, save, fault):
    path = tmp_path / "set.npz"
    save(path, **SOUND)
    content = bytearray(path.read_bytes())
    content[200] ^= 1  # a pixel of the first images
    path.write_bytes(content if fault == "changed" else content[: len(content) // 2])
    assert str(path) in str(refusal(path))


def test_an_npz_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    n = 2**12
    path = write(tmp_path / "bomb.npz", train_images=np.zeros((n, 8, 8, 3), np.uint8), train_labels=np.arange(n) % 3)
    for available, fits in ((2 * path.stat().st_size, False), (None, True), (2**30, True)):
        monkeypatch.setattr(image_files, "available_bytes", lambda n=available: n)
        if fits:
            assert not load(path).train_images.any()
        else:
            refusal(path)


# ---------------------------------------------------------------- names, sizes and folders


@pytest.mark.parametrize(("name", "nearest"), [("cifr10", "cifar10"), ("pathmnst-lt", "pathmnist"), ("§§§", "cifar10")])
def test_an_unknown_name_is_answered_with_the_nearest_and_the_sets_that_can_be_learnt(tmp_path, name, nearest):
    reason = refusal(name, root=tmp_path).reason
    assert nearest in reason and "pathmnist" in reason and "chestmnist" not in reason


@pytest.mark.parametrize(
    ("name", "size", "field"),
    [
        ("digits", 28, "image_size"),
        ("cifar10", 64, "image_size"),
        ("bloodcell", 32, "image_size"),
        ("chestmnist", None, "dataset"),  # several labels per image
        *((name, None, "dataset") for name in ("", "nowhere.npz", "./nowhere", "no/where.npz-lt", "a/" + "x" * 300)),
    ],
)
def test_what_cannot_be_used_is_refused_before_it_is_fetched(tmp_path, name, size, field):
    assert refusal(name, root=tmp_path, image_size=size).name == field
    assert not list(tmp_path.iterdir())


def test_files_in_the_data_folder_are_used_by_size_and_the_folder_is_by_default_in_the_home(tmp_path, monkeypatch):
    write(tmp_path / "bloodcell_64.npz", train_images=images(6, 64, 64, 3), test_images=images(3, 64, 64, 3))
    assert load("bloodcell", tmp_path, image_size=64).image_size == 64
    monkeypatch.delenv("UCL_DATA", raising=False)
    assert datasets.data_folder() == Path.home() / ".cache" / "ucl"


def test_a_file_of_medmnist_put_there_by_hand_is_used_with_its_class_names(tmp_path):
    labels = {"train_labels": np.arange(8), "test_labels": np.arange(8)}
    write(tmp_path / "bloodmnist.npz", train_images=images(8), test_images=images(8), **labels)
    data = load("bloodcell", tmp_path)
    assert data.name == "bloodcell" and data.n_classes == 8
    assert (data.classes[0], data.classes[7]) == ("basophil", "platelet")
    assert load(tmp_path / "bloodmnist.npz").classes == data.classes


def test_the_names_of_medmnist_are_those_of_its_table():
    assert {*MEDMNIST, "bloodcell"} == set(medmnist_sets())
    assert [len(sizes_of(name)) for name in (*MEDMNIST, "bloodcell", "kmnist")] == [4] * (len(MEDMNIST) + 1) + [0]


def test_a_known_name_wins_over_a_folder_here_and_a_path_over_the_data_folder(tmp_path, monkeypatch):
    for name in ("digits", "cifar10", "faces", "faces-lt"):
        save_folder(tmp_path / name, images(4, 32, 32), "aabb")
    write(tmp_path / "data.npz")
    write(tmp_path / "cifar10.npz", classes=["x", "y", "z"])
    monkeypatch.chdir(tmp_path)
    assert load("digits").n_classes == 10
    assert load("cifar10", tmp_path).classes == load("cifar10-lt", tmp_path).classes == ("x", "y", "z")
    assert load("./digits").classes == load("faces").classes == load(Path("faces")).classes == ("a", "b")
    assert load("./digits-lt").name == "digits"
    assert load("faces-lt/").name == "faces-lt" and Config(dataset="faces-lt/").imbalance == 1
    assert load("data.npz").n_classes == 3 and load("data-lt", tmp_path).name == "data"
    write(tmp_path / "data-lt.npz")
    write(tmp_path / "cifar10-lt.npz")
    for name in ("faces-lt", "./faces-lt", tmp_path / "faces-lt", "data-lt", "cifar10-lt"):  # a set, or a long tail?
        assert refusal(name, root=tmp_path).name == "dataset"


def test_another_root_is_the_folder_of_names_and_temporary_files_but_not_of_paths(tmp_path, monkeypatch):
    given, other, folders, temporary_file = tmp_path / "given", tmp_path / "other", [], tempfile.TemporaryFile
    monkeypatch.setenv("UCL_DATA", str(other))
    monkeypatch.setattr(pixels, "available_bytes", lambda: 1000)  # Larger images are copied to a temporary file.
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: folders.append(dir) or temporary_file(dir=dir))
    for folder, classes in ((given, "abc"), (other, "xyz")):
        folder.mkdir()
        arrays = {"train_images": images(6, 32, 32), "test_images": None, "test_labels": None}
        write(folder / "mine.npz", classes=list(classes), **arrays)
    for name, root, classes in (("mine", None, "xyz"), ("mine", given, "abc"), (other / "mine.npz", given, "xyz")):
        folders.clear()
        assert load(name, root).classes == tuple(classes)
        assert set(folders) == {root or other}


def test_a_check_counts_images_classes_and_equal_images_of_each_split(tmp_path, caplog):
    # The SHA-256 of 5 x 5 pixels of 196 ends with a zero byte.
    pixels = np.array([200, 201, 202, 196, 204, 205], np.uint8).repeat(25).reshape(6, 5, 5)
    pixels[5] = pixels[0]  # of class 0 and of class 1
    tested = pixels[1:4].copy()
    tested[1] = 9  # not a training image
    labels = {"train_labels": [0, 0, 0, 0, 1, 1], "test_labels": [0, 1, 1]}
    write(tmp_path / "mine.npz", train_images=pixels, test_images=tested, **labels)
    facts = datasets.check("mine", tmp_path)
    assert facts.pop("fingerprint") == load("mine", tmp_path).fingerprint
    sizes = facts.pop("sizes")
    assert sizes.to_dict("list") == {"train images": [4, 2], "test images": [1, 2]} and list(sizes.index) == ["0", "1"]
    assert facts == {
        "name": "mine", "train images": 6, "test images": 3, "classes": 2, "image size": 5, "channels": 1,
        "smallest class": 2, "largest class": 4, "fewest test images of a class": 1,
        "test images that are also train images": 2, "train images in several classes": 2 - 1, "remarks": [],
    }  # fmt: skip
    assert not caplog.messages
    load(tmp_path / "mine.npz")  # the user's own, not a published set
    assert ["2 of 3 test images" in message for message in caplog.messages] == [True]


# ---------------------------------------------------------------- fetching, from a server on this machine


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder, and the address at which a server on this machine has its files."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def breastmnist(served, monkeypatch):
    """The file from which BreastMNIST (2 classes) is downloaded instead of the official one."""
    folder, url = served
    labels = np.array([0, 1, 1], np.uint8)[:, None]
    arrays = {"train_images": images(3, 28, 28), "test_images": images(3, 28, 28)}
    file = write(folder / "file.npz", train_labels=labels, test_labels=labels, **arrays)
    for size in ("", "_64"):
        monkeypatch.setitem(medmnist_sets()["breastmnist"], f"url{size}", f"{url}/file.npz")
        monkeypatch.setitem(medmnist_sets()["breastmnist"], f"MD5{size}", hashlib.md5(file.read_bytes()).hexdigest())
    return file


def test_a_medmnist_set_is_fetched_once_and_has_its_class_names(tmp_path, breastmnist):
    data = load("breastmnist", tmp_path / "new")
    assert data.fingerprint == load(breastmnist).fingerprint and data.classes == ("malignant", "normal, benign")
    refusal("breastmnist", root=tmp_path / "new", image_size=64)  # The file of this server has 28 pixels.
    breastmnist.unlink()
    assert load("breastmnist", tmp_path / "new").fingerprint == data.fingerprint
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"breastmnist.npz", "breastmnist_64.npz"}


@pytest.mark.parametrize("fault", ["torn", "absent"])
def test_a_failed_download_leaves_nothing_and_says_where_to_put_the_images(tmp_path, breastmnist, fault):
    content = breastmnist.read_bytes()
    breastmnist.unlink()
    if fault == "torn":
        breastmnist.write_bytes(content[: len(content) // 2])
    root = tmp_path / "new"
    assert str(root / "breastmnist.npz") in refusal("breastmnist", root=root).reason
    assert not list(root.iterdir())


def test_two_that_fetch_at_once_both_get_the_whole_set(tmp_path, breastmnist, monkeypatch):
    both_here, fetch = threading.Barrier(2, timeout=20), downloads._fetch_medmnist
    monkeypatch.setattr(downloads, "_fetch_medmnist", lambda *given: (both_here.wait(), fetch(*given)))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: load("breastmnist", tmp_path / "new"), range(2))
    assert first.fingerprint == second.fingerprint == load(breastmnist).fingerprint
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["breastmnist.npz"]


@pytest.mark.parametrize("is_here", [False, True])
@pytest.mark.parametrize("name", CIFAR)
def test_cifar_is_fetched_or_read_from_the_official_archive_in_the_data_folder(tmp_path, monkeypatch, name, is_here):
    n_classes, root, folders = CIFAR[name], tmp_path / "data", []

    class Source:  # like those of torchvision
        filename = "archive.tar.gz"
        classes = tuple(f"class {c}" for c in range(n_classes))

        def __init__(self, folder, train, download):
            folders.append(folder)
            self.targets = [*range(n_classes)][:: 1 if train else -1]
            self.data = np.full((n_classes, 32, 32, 3), 255 * train, np.uint8)

    monkeypatch.setattr(torchvision.datasets, name.upper(), Source)
    root.mkdir()
    if is_here:
        (root / Source.filename).touch()
    data = load(name, root)
    assert (data.train_images == 255).all() and not data.test_images.any() and data.classes == Source.classes
    assert data.train_labels.tolist() == data.test_labels.tolist()[::-1] == list(range(n_classes))
    assert [folder == root for folder in folders] == [is_here] * 2
    assert load(name, root).fingerprint == data.fingerprint and len(folders) == 2
    assert is_here or [path.name for path in root.iterdir()] == [f"{name}.npz"]
