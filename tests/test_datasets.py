"""Data sets: stored data are loaded unchanged, and unusable data are refused with a suggestion."""

from __future__ import annotations

import hashlib
import io
import itertools
import pickle
import tarfile
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from ucl import datasets
from ucl.catalogue import MEDMNIST
from ucl.config import Config
from ucl.errors import InputError
from ucl.streams import image_files
from ucl.streams.datasets import ImageDataset, load
from ucl.streams.downloads import medmnist_sets, sizes_of

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


def refusal(name: object, **arguments: object) -> InputError:
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
    sound = layout()
    first = load(str(write(tmp_path / "a.npz", **sound))).fingerprint
    assert len(first) == 16 and int(first, 16) >= 0
    assert load(str(write(tmp_path / "b.npz", **sound, classes=["x", "y", "z"]))).fingerprint == first
    others = [{"train_labels": sound["train_labels"][::-1]}, {"test_images": 255 - sound["test_images"]}]
    others += [{"val_images": sound["test_images"], "val_labels": sound["test_labels"]}]
    for number, changed in enumerate(others):
        assert load(str(write(tmp_path / f"{number}.npz", **{**sound, **changed}))).fingerprint != first


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


SOUND = layout()
FAULTS = {
    "no train images": dict(train_images=None),
    "no test labels": dict(test_labels=None),
    "validation images without labels": dict(val_images=images(2)),
    "float images": dict(train_images=np.zeros((6, 8, 8, 3))),
    "oblong images": dict(train_images=images(6, 8, 9, 3)),
    "four channels": dict(train_images=images(6, 8, 8, 4)),
    "flat images": dict(train_images=images(6, 192)),
    "a number for images": dict(train_images=np.uint8(3)),
    "no test image": dict(test_images=images(0, 8, 8, 3), test_labels=np.zeros(0, int)),
    "no validation image": dict(val_images=images(0, 8, 8, 3), val_labels=np.zeros(0, int)),
    "test images of another size": dict(test_images=images(3, 9, 9, 3)),
    "grey test images": dict(test_images=images(3, 8, 8)),
    "a label too few": dict(train_labels=[0, 1, 2, 0, 1]),
    "float labels": dict(train_labels=[0.0, 1, 2, 0, 1, 2]),
    "text labels": dict(train_labels=list("abcabc")),
    "several labels per image": dict(train_labels=np.eye(6, dtype=int)),
    "a number for labels": dict(train_labels=3),
    "a negative label": dict(train_labels=[0, 1, -1, 0, 1, 2]),
    "labels from 1": dict(train_labels=[1, 2, 3, 1, 2, 3]),
    "a gap in the labels": dict(train_labels=[0, 1, 3, 0, 1, 3]),
    "huge labels": dict(train_labels=[0, 1, 2**62, 0, 1, 2]),
    "labels beyond 64 bits": dict(train_labels=np.array([0, 1, 2, 0, 1, 2**64 - 1], np.uint64)),
    "one class": dict(train_labels=[0] * 6, test_labels=[0] * 3),
    "an unknown test label": dict(test_labels=[0, 1, 7]),
    "a class without test images": dict(test_labels=[0, 0, 2]),
    "a named class without training images": dict(classes=["a", "b", "c", "d"]),
    "an unknown validation label": dict(val_images=images(1), val_labels=[3]),
    "a name too few": dict(classes=["a", "b"]),
    "objects for labels": dict(train_labels=np.array([0, 1, 2, 0, 1, None])),
}


@pytest.mark.parametrize("change", FAULTS.values(), ids=FAULTS)
def test_a_faulty_npz_is_refused_and_left_alone(tmp_path, change):
    path = write(tmp_path / "set.npz", **change)
    before = path.read_bytes()
    error = refusal(path)
    assert (error.name, error.value) == ("dataset", str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_npz_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "cifar10.npz"
    path.write_bytes(content)
    assert refusal("cifar10", root=tmp_path).value == str(path)
    assert path.read_bytes() == content


def test_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    refusal(write(tmp_path / "a.npz", train_images=np.array([Trap()] * 6, object)))
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


def test_an_archive_that_unpacks_to_more_than_the_memory_is_named_and_not_unpacked(tmp_path, monkeypatch):
    n = 2**16
    labels = np.arange(n) % 3
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **layout(train_images=np.zeros((n, 8, 8, 3), np.uint8), train_labels=labels))
    assert path.stat().st_size < 2**20
    monkeypatch.setattr(image_files, "available_bytes", lambda: 2**22)
    tracemalloc.start()
    try:
        refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    for available in (None, 2**30):
        monkeypatch.setattr(image_files, "available_bytes", lambda n=available: n)
        assert not load(str(path)).train_images.any()


# ---------------------------------------------------------------- names, sizes and folders


@pytest.mark.parametrize(("name", "nearest"), [("cifr10", "cifar10"), ("pathmnst-lt", "pathmnist"), ("§§§", "cifar10")])
def test_an_unknown_name_is_answered_with_the_nearest_and_the_sets_that_can_be_learnt(tmp_path, name, nearest):
    reason = refusal(name, root=tmp_path).reason
    assert nearest in reason and "pathmnist" in reason and "chestmnist" not in reason
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "nowhere.npz", "./nowhere", "no/where.npz-lt", "x" * 300, "a/" + "x" * 300])
def test_a_name_of_nothing_is_refused(name, tmp_path):
    assert refusal(name, root=tmp_path).name == "dataset"


@pytest.mark.parametrize(
    ("name", "size", "field"),
    [
        ("digits", 28, "image_size"),
        ("cifar10", 64, "image_size"),
        ("bloodcell", 32, "image_size"),
        ("digits", 0, "image_size"),
        ("digits", "32", "image_size"),
        ("chestmnist", None, "dataset"),  # several labels per image
    ],
)
def test_what_cannot_be_used_is_refused_before_it_is_fetched(tmp_path, name, size, field):
    assert refusal(name, root=tmp_path, image_size=size).name == field
    assert not list(tmp_path.iterdir())


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
    assert load(str(tmp_path / "bloodmnist.npz")).classes == data.classes


def test_the_names_of_medmnist_are_those_of_its_own_table():
    assert {*MEDMNIST, "bloodcell"} == set(medmnist_sets())
    assert [len(sizes_of(name)) for name in (*MEDMNIST, "bloodcell", "kmnist")] == [4] * (len(MEDMNIST) + 1) + [0]


def test_a_known_name_wins_over_a_folder_here_and_a_path_over_the_data_folder(tmp_path, monkeypatch):
    for name, label, i in itertools.product(("digits", "cifar10", "faces", "x-lt"), "ab", range(2)):
        write_image(tmp_path / name / label / f"{i}.png", images(1, 32, 32, 3)[0])
    write(tmp_path / "data.npz")
    write(tmp_path / "cifar10.npz", classes=["x", "y", "z"])
    monkeypatch.chdir(tmp_path)
    assert load("digits").n_classes == 10
    assert load("cifar10", tmp_path).classes == ("x", "y", "z")
    assert load("./digits").classes == load("faces").classes == load(Path("faces")).classes == ("a", "b")
    assert load("./digits-lt").name == "digits"
    assert load("x-lt/").name == "x-lt" and Config(dataset="x-lt/").imbalance == 1
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


def test_a_check_counts_images_classes_and_equal_images_of_each_split(tmp_path):
    pixels = np.arange(6, dtype=np.uint8).repeat(64).reshape(6, 8, 8)
    pixels[5] = pixels[0]  # of class 0 and of class 1
    tested = pixels[1:4].copy()
    tested[1] = 9  # not a training image
    write(
        tmp_path / "mine.npz", train_images=pixels, train_labels=[0, 0, 0, 0, 1, 1], test_images=tested,
        test_labels=[0, 1, 1],
    )  # fmt: skip
    facts = datasets.check("mine", tmp_path)
    assert facts.pop("fingerprint") == load("mine", tmp_path).fingerprint
    sizes = facts.pop("sizes")
    assert sizes.to_dict("list") == {"train images": [4, 2], "test images": [1, 2]} and list(sizes.index) == ["0", "1"]
    assert facts == {
        "name": "mine", "train images": 6, "test images": 3, "classes": 2, "image size": 8, "channels": 1,
        "smallest class": 2, "largest class": 4, "test images that are also train images": 2,
        "train images in several classes": 2 - 1, "remarks": [],
    }  # fmt: skip


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
    info = medmnist_sets()

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


def test_a_medmnist_set_is_fetched_once_and_has_its_class_names(tmp_path, serve, breastmnist):
    stored, content, come_from = breastmnist
    come_from(serve(content))
    data = load("breastmnist", tmp_path / "new")
    np.testing.assert_array_equal(data.train_images[..., 0], stored["train_images"])
    assert data.classes == ("malignant", "normal, benign")
    come_from(CLOSED)
    assert load("breastmnist", tmp_path / "new").fingerprint == data.fingerprint
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["breastmnist.npz"]


def test_another_size_is_fetched_under_its_own_name(tmp_path, serve, breastmnist):
    _, content, come_from = breastmnist
    come_from(serve(content))
    refusal("breastmnist", root=tmp_path, image_size=64)  # The file of this server has 28 pixels.
    assert [path.name for path in tmp_path.iterdir()] == ["breastmnist_64.npz"]


@pytest.mark.parametrize("fault", ["torn", "of other content", "no network"])
def test_a_failed_download_leaves_nothing_and_says_where_to_put_the_images(tmp_path, serve, breastmnist, fault):
    _, content, come_from = breastmnist
    urls = {"torn": lambda: serve(content, cut=True), "of other content": lambda: serve(content[:-1] + b"x")}
    come_from(urls.get(fault, lambda: CLOSED)())
    assert str(tmp_path / "breastmnist.npz") in refusal("breastmnist", root=tmp_path).reason
    assert not list(tmp_path.iterdir())


def test_two_that_fetch_at_once_both_get_the_whole_set(tmp_path, serve, breastmnist):
    _, content, come_from = breastmnist
    both_here = threading.Barrier(2, timeout=20)
    come_from(serve(content, halfway=both_here.wait))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: load("breastmnist", tmp_path), range(2))
    assert first.fingerprint == second.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["breastmnist.npz"]


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


def test_the_official_archive_of_cifar_in_the_data_folder_is_used_without_a_network(cifar):
    name, _, archive, expected = cifar
    assert_is(load(name, archive.parent), expected)
    assert {archive.name, f"{name}.npz"} <= {path.name for path in archive.parent.iterdir()}
