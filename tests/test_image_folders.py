"""Folders of class folders, with and without patients: order, splits, decoding, refusals."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from conftest import refused, save_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import record_of
from PIL import Image
from test_datasets import images
from torchvision.datasets import ImageFolder

from ucl import Config
from ucl.assembly import build_stream
from ucl.streams import pixels
from ucl.streams.datasets import check, files_in_memory, load, read_images
from ucl.streams.held_out import held_out_patients
from ucl.streams.image_dataset import SPLITS, ImageDataset


def write(root, **classes):
    """Write `<class>/<number>.png` for classes with a number of images; return the root."""
    for name, n in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        save_folder(root, images(n, 32, 32, 3), [name] * n)
    return root


def write_patients(root, **classes):
    """Write `<class>/<patient>/<number>.png` for classes with a number of images per patient; return the root.

    The patient is "p" and a number, which all channels of the image have.
    """
    for name, n_images in classes.items():
        for patient, n in n_images.items():
            (root / name / patient).mkdir(parents=True, exist_ok=True)
            for number in range(n):
                Image.new("L", (32, 32), int(patient[1:])).save(root / name / patient / f"{number}.png")
    return root


def patients(numbers, n=1):
    """Names of patients, each with n images."""
    return {f"p{number:02d}": n for number in numbers}


def in_images(data):
    """For each split the patients of its images, by their pixels."""
    images = {split: getattr(data, f"{split}_images") for split in SPLITS}
    return {split: set(part[:, 0, 0, 0].tolist()) for split, part in images.items() if part is not None}


# ---------------------------------------------------------------- classes and splits


def test_classes_and_files_are_those_of_torchvision_in_its_order(tmp_path):
    for split in ("train", "test"):
        for name in ("b 2", "B", "a", "ä"):
            for file in ("2.png", "10.JPG", "_1.bmp", "9.tif"):
                path = tmp_path / split / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(images(1, 32, 32, 3)[0]).save(path)
            (tmp_path / split / name / "notes.txt").touch()
    data, oracle = load(tmp_path), ImageFolder(tmp_path / "train")
    assert list(data.classes) == oracle.classes
    assert [str(tmp_path / file) for file in data.train_files] == [path for path, _ in oracle.samples]
    assert data.train_labels.tolist() == oracle.targets
    for image, (expected, _) in zip(data.train_images, oracle, strict=True):
        np.testing.assert_array_equal(image, np.asarray(expected))


@pytest.mark.parametrize("split", ["", "train"])
def test_a_folder_without_test_images_holds_out_a_fifth_of_each_class(tmp_path, split, caplog):
    root = write(tmp_path / "zoo" / split, ant=10, bee=2, cat=5)
    (root / ".hidden").mkdir()
    for left in (".DS_Store", "._00.png", ".05.png.icloud", "Thumbs.db", "desktop.ini", "@eaDir/00.png/thumb.jpg"):
        (root / "ant" / left).parent.mkdir(parents=True, exist_ok=True)
        (root / "ant" / left).write_bytes(b"as operating systems leave")
    write(root / "__MACOSX", ant=1)
    Image.new("L", (32, 32)).save(root / "in no class.png")
    data = load(str(tmp_path / "zoo"))
    assert any("4 files" in message for message in caplog.messages)  # Python shows warnings without any set-up.
    (remark,) = check(str(tmp_path / "zoo"))["remarks"]
    assert "4 files" in remark and "in no class.png, ant/" in remark
    assert (data.name, data.classes, data.image_size, data.channels) == ("zoo", ("ant", "bee", "cat"), 32, 3)
    assert np.bincount(data.train_labels).tolist() == [8, 1, 4]
    assert np.bincount(data.test_labels).tolist() == [2, 1, 1]
    train = zip(data.train_files, data.train_images, data.train_labels, strict=True)
    test = zip(data.test_files, data.test_images, data.test_labels, strict=True)
    for file, image, label in (*train, *test):
        assert Path(file).parent.name == data.classes[label]
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "zoo" / file)), image)
    everything = {Image.open(file).tobytes() for file in root.glob("[a-z]*/[0-9]*.png")}
    assert everything == {image.tobytes() for image in [*data.train_images, *data.test_images]}
    assert load(str(tmp_path / "zoo")).fingerprint == data.fingerprint


def test_the_files_in_a_memory_are_those_at_its_positions_until_the_images_change(tmp_path):
    root = write(tmp_path / "zoo", ant=10, bee=5)
    data, config = load(root), Config(dataset=str(root), memory_size=4)
    record = record_of(config, [[1.0]], fingerprint=data.fingerprint, memory={"position": [9, 0, 3]})
    assert files_in_memory(record) == [data.train_files[position] for position in (9, 0, 3)]
    write(root, ant=1)
    with refused("dataset"):
        files_in_memory(record)


@pytest.mark.parametrize("channels", [1, 3])
def test_new_images_are_read_as_those_of_the_folder(tmp_path, channels):
    save_folder(tmp_path, images(10, 40, 36, 3)[..., :channels].squeeze(), "ab" * 5)
    data, folder = load(tmp_path), str(tmp_path)
    files = [f"{folder}/{file}" for file in data.train_files]
    np.testing.assert_array_equal(read_images(files, 32, channels), data.train_images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(read_images(files[0], 32, channels), read_images(files[:1], 32, channels))
    if channels == 1:  # A network for colour images takes grey ones.
        np.testing.assert_array_equal(read_images(files, 32), data.train_images.repeat(3, -1).transpose(0, 3, 1, 2))
    else:
        with refused("files"):
            read_images(files, 32, channels=1)
    with refused("files"):
        read_images([*files, tmp_path / "absent.png"], 32, channels)


def test_train_and_mask_may_be_in_the_names_of_classes_and_images(tmp_path):
    for name in ("bullet train", "train", "mask"):
        write(tmp_path, **{name: 2})
        (tmp_path / name / "00.png").rename(tmp_path / name / "face_mask.png")
    assert load(str(tmp_path)).classes == ("bullet train", "mask", "train")


# For each fault the files, as products of names at each level. They are images but for those with a suffix.
FAULTS = {
    "no class folders": ["0 1"],
    "a class of one image": ["a/0 1", "b/0"],
    "an empty class folder": ["a b/0 1", "c/notes.txt"],
    "a test split without train": ["a b/0 1", "test/a b/0"],
    "a class of the test only": ["train/a b/0 1", "test/a b c/0"],
    "a class without test images": ["train/a b c/0 1", "test/a b/0"],
    "a misnamed split": ["train/a b/0 1", "valid/a b/0"],
    "splits under other names": ["Training Testing/a b/0 1"],
    "splits as ISIC and others name them": ["ISIC_2019_Training_Input ISIC_2019_Test_Input seg_pred/0 1"],
    "masks next to images": ["a b/0 1 2", "a/0_mask 1_mask_1"],
    "superpixels of patients": ["a b/p0 p1 p2/0", "b/p1/0_superpixels"],
    "masks in folders of their own": ["a b/images masks/0 1"],
    "unreadable images": ["a b/0 1", "a b/2.png"],
    "images and patients in a class": ["a b/p0 p1/0", "a/0"],
    "a class without patients": ["a b/p0 p1/0", "c/0 1"],
    "a split without patients": ["train/a b/p0 p1/0", "test/a b/0"],
    "a class of a single patient": ["a b/p0 p1 p2/0", "c/p1/0 1"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_that_is_no_data_set_is_refused_in_one_line(tmp_path, fault):
    unreadable = []
    for spec in FAULTS[fault]:
        for parts in itertools.product(*(part.split() for part in spec.split("/"))):
            path = Path(tmp_path, *parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix:
                path.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
                unreadable += [str(path)] if path.suffix == ".png" else []
            else:
                Image.fromarray(images(1, 32, 32, 3)[0]).save(f"{path}.png")
    with refused("dataset", str(tmp_path)) as refusal:
        load(tmp_path)
    assert all(path in refusal.value.reason for path in unreadable)


# ---------------------------------------------------------------- pixels


def test_images_are_resized_by_the_shorter_side_and_cropped_around_the_centre(tmp_path, caplog):
    caplog.set_level("INFO", "ucl")
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, :40], wide[:, 40:80], wide[:, 80:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    for label in "ab":
        write(tmp_path, **{label: 0})
        Image.fromarray(wide).save(tmp_path / label / "wide.png")
        Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / label / "high.bmp")
    data = load(tmp_path, image_size=20)
    for image in [*data.train_images, *data.test_images]:
        assert image.shape == (20, 20, 3)
        np.testing.assert_array_equal(image[2:-2, 2:-2], np.broadcast_to([0, 255, 0], (16, 16, 3)))
    assert ["4 of 4 images are not square" in message for message in caplog.messages] == [True]


def test_a_photo_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3  # The picture was taken upside down.
    pixels = images(1, 32, 32, 3)[0]
    Image.fromarray(pixels).save(write(tmp_path, a=2, b=2) / "a" / "00.png", exif=exif)
    np.testing.assert_array_equal(load(tmp_path).train_images[0], pixels[::-1, ::-1])


def test_each_suffix_has_its_decoder_and_images_of_8_bits_and_less_are_read(tmp_path):
    for label in "ab":
        folder = write(tmp_path, **{label: 0}) / label
        for number, suffix in enumerate(pixels.IMAGE_FILES):
            Image.new("L" if suffix == ".pgm" else "RGB", (32, 32), "white").save(folder / f"{number}{suffix}")
        for mode, suffix in itertools.product(("1", "L", "LA", "P", "RGB", "RGBA"), ("png", "tif")):
            Image.new(mode, (32, 32), "white").save(folder / f"mode {mode}.{suffix}")
        # Phones write such files, with several pictures in each.
        several = [Image.new("RGB", (32, 32), "white")] * 2
        several[0].save(folder / "99.jpg", "MPO", save_all=True, append_images=several[1:])
    data = load(tmp_path)
    assert len(data.train_labels) + len(data.test_labels) == 2 * (1 + len(pixels.IMAGE_FILES) + 12)
    assert (data.train_images == 255).all() and (data.test_images == 255).all()


def transparent(path, mode, pixel):
    image = Image.new(mode, (32, 32), "white" if mode != "P" else 1)
    image.putpixel((3, 4), pixel)
    image.save(path, **({"transparency": 0} if mode == "P" else {}))


GREY = [Image.new("L", (32, 32), level) for level in (40, 80, 120)]
CHANGED_SILENTLY = {
    "grey of 16 bits": ("9.png", lambda path: Image.fromarray(np.full((32, 32), 40_000, np.uint16)).save(path)),
    "grey and transparent": ("9.png", lambda path: transparent(path, "LA", (9, 254))),
    "palette and transparent": ("9.png", lambda path: transparent(path, "P", 0)),
    "several images in a file": ("9.gif", lambda path: GREY[0].save(path, save_all=True, append_images=GREY[1:])),
    "PostScript": ("9.png", lambda path: Image.new("RGB", (32, 32)).save(path, "EPS")),
}


@pytest.mark.parametrize(("name", "save"), CHANGED_SILENTLY.values(), ids=CHANGED_SILENTLY)
def test_an_image_whose_pixels_would_be_changed_silently_is_refused(tmp_path, name, save):
    path = write(tmp_path, a=2, b=2) / "a" / name
    save(path)
    with refused("dataset") as refusal:
        load(tmp_path)
    assert str(path) in refusal.value.reason


# ---------------------------------------------------------------- the test patients


@settings(max_examples=300, deadline=None)
@given(classes=st.lists(st.frozensets(st.sampled_from("abcdefg"), min_size=2, max_size=4), min_size=1, max_size=8))
def test_each_class_has_training_and_test_patients_or_the_data_set_is_refused(classes):
    try:
        test = held_out_patients({f"class {number}": members for number, members in enumerate(classes)})
    except ValueError:
        assert len(classes) > 2  # Two classes always have a split.
    else:
        assert all(0 < len(members & test) < len(members) for members in classes)


@settings(deadline=None)
@given(sizes=st.lists(st.integers(2, 60), min_size=1, max_size=6))
def test_a_fifth_of_each_class_are_test_patients_if_no_patient_is_in_two_classes(sizes):
    classes = {str(c): frozenset(f"{c} {number}" for number in range(n)) for c, n in enumerate(sizes)}
    test = held_out_patients(classes)
    assert [len(members & test) for members in classes.values()] == [max(1, round(n / 5)) for n in sizes]


@pytest.mark.parametrize(("n", "n_classes", "share"), [(17, 8, 0.9), (100, 8, 0.3), (400, 10, 0.1)])
def test_about_a_fifth_are_test_patients_if_patients_are_in_several_classes(n, n_classes, share):
    present = np.random.default_rng(0).random((n_classes, n)) < share
    classes = {str(c): frozenset(f"{p:04d}" for p in np.flatnonzero(row)) for c, row in enumerate(present)}
    test = held_out_patients(classes)
    assert 0.15 < len(test) / present.any(axis=0).sum() < 0.25
    assert all(0.15 < len(members & test) / len(members) < 0.35 for members in classes.values())


# ---------------------------------------------------------------- folders of patients


def test_a_fifth_of_the_patients_of_a_folder_is_held_out_whole(tmp_path):
    """Class b has the patients 8 and 9 of class a, and three others."""
    root = write_patients(tmp_path / "zoo", a=patients(range(10), 3), b=patients(range(8, 13), 2))
    data, facts = load(root), check(str(root))
    split = in_images(data)
    assert split["train"] & split["test"] == set() and split["train"] | split["test"] == set(range(13))
    shown = data.train_images[:, 0, 0, 0].tolist()
    assert [Path(file).parent.name for file in data.train_files] == [f"p{number:02d}" for number in shown]
    assert len(set(zip(data.train_patients.tolist(), shown, strict=True))) == len(split["train"])
    assert np.bincount(data.train_labels).tolist() == [24, 8] and np.bincount(data.test_labels).tolist() == [6, 2]
    assert facts["fingerprint"] == data.fingerprint and data.name == "zoo" and len(facts["remarks"]) == 2  # dark
    assert (facts["train patients"], facts["test patients"]) == (11, 2)
    counts = {"train images": 24, "train patients": 8, "test images": 6, "test patients": 2}
    assert facts["sizes"].loc["a"].to_dict() == counts


def test_given_splits_of_patients_are_used_unchanged(tmp_path):
    for split, numbers in {"train": range(4), "test": range(4, 6), "val": range(6, 7)}.items():
        write_patients(tmp_path / split, a=patients(numbers, 2), b=patients(numbers))
    data = load(tmp_path)
    assert in_images(data) == {"train": {0, 1, 2, 3}, "test": {4, 5}, "val": {6}}
    numbers = [getattr(data, f"{split}_patients").tolist() for split in SPLITS]
    assert numbers == [[0, 0, 1, 1, 2, 2, 3, 3, 0, 1, 2, 3], [4, 4, 5, 5, 4, 5], [6, 6, 6]]


@pytest.mark.parametrize("numbers", [{"train": range(12)}, {"train": range(4), "test": range(4, 6), "val": [6, 7]}])
def test_patients_in_an_npz_are_used_as_folders_of_patients_are(tmp_path, numbers):
    arrays = {}
    for split, members in numbers.items():
        root = write_patients(tmp_path / "zoo" / split, a=patients(members, 3), b=patients(members[1:], 2))
        files = sorted(root.rglob("*.png"))
        arrays[f"{split}_images"] = np.stack([np.asarray(Image.open(file)) for file in files])
        arrays[f"{split}_labels"] = [file.parts[-3] for file in files]
        arrays[f"{split}_patients"] = [file.parts[-2] for file in files]
    np.savez(tmp_path / "zoo.npz", **arrays)
    data, expected = load(tmp_path / "zoo.npz"), load(tmp_path / "zoo")
    assert data.fingerprint == expected.fingerprint and in_images(data) == in_images(expected)
    for split in SPLITS:
        np.testing.assert_array_equal(getattr(data, f"{split}_patients"), getattr(expected, f"{split}_patients"))


# ---------------------------------------------------------------- validation images of a stream


def dataset(classes, **changes):
    """A data set without given validation images: for each class the number of images of each patient."""
    labels = np.repeat(np.arange(len(classes)), [sum(members.values()) for members in classes])
    numbers = np.array([p for members in classes for p, n in members.items() for _ in range(n)])
    images = np.zeros((len(labels), 4, 4, 1), np.uint8)
    tests = images[: len(classes)], np.arange(len(classes))
    names = tuple(map(str, range(len(classes))))
    return ImageDataset("zoo", names, images, labels, *tests, **{"train_patients": numbers, **changes})


def learnt_and_held_out(data, validation, seed):
    config = Config(n_tasks=1, validation=validation, batch_size=1, model="slim_resnet18_groupnorm", seed=seed)
    stream = build_stream(config, data)
    learnt = np.sort(np.concatenate([task.positions.numpy() for task in stream]))
    return learnt, np.setdiff1d(np.arange(len(data.train_labels)), learnt)


shared = st.lists(st.dictionaries(st.integers(0, 30), st.integers(1, 5), min_size=1), min_size=1, max_size=4)


@settings(deadline=None)
@given(classes=shared, validation=st.sampled_from([0, 0.05, 0.2, 0.5]), seed=st.integers(0, 2**32 - 1))
def test_whole_patients_are_held_out_as_long_as_they_fit_into_the_share_of_each_class(classes, validation, seed):
    data = dataset(classes)
    learnt, held_out = learnt_and_held_out(data, validation, seed)
    out = set(data.train_patients[held_out].tolist())
    assert not out & set(data.train_patients[learnt].tolist())
    room = [int(validation * sum(members.values())) for members in classes]
    taken = np.bincount(data.train_labels[held_out], minlength=len(classes))
    assert (taken <= room).all()
    for patient in set(data.train_patients.tolist()) - out:
        more = np.array([members.get(patient, 0) for members in classes])
        assert (taken + more > room).any()


def test_patients_of_one_image_are_held_out_as_images_are():
    """As many per class as without patients, each equally often."""
    data = dataset([{p: 1 for p in range(100)}, {p: 1 for p in range(100, 140)}])
    often = np.zeros(140)
    for seed in range(300):
        _, held_out = learnt_and_held_out(data, 0.05, seed)
        assert np.bincount(data.train_labels[held_out]).tolist() == [5, 2]
        often[held_out] += 1
    assert often.min() >= 1 and often.max() <= 34  # Binomial(300, 0.05): 15 on average


def test_the_fingerprint_names_the_patients_of_training_if_there_are_some():
    """A run is measured again if its validation images change."""
    data = dataset([{1: 2, 2: 2, 3: 2}, {1: 2, 2: 2, 4: 2}])
    others = (data.train_patients, np.arange(len(data.train_labels)), None)
    assert len({dataclasses.replace(data, train_patients=patients).fingerprint for patients in others}) == 3
