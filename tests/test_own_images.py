"""Images of a user's function: arrays, pairs of data sets, splits with columns; large ones stay in a file."""

import sys

import numpy as np
import pytest
import torch
from conftest import refused, run, save_folder
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import pil_to_tensor

from ucl import Config, datasets
from ucl.assembly import build_stream
from ucl.streams import LazyImages, own_images, pixels

LABELS = np.arange(40) % 4
PATIENTS = np.arange(40) // 4  # with an image of each class
IMAGES = np.random.default_rng(0).integers(0, 256, (40, 28, 28, 3), dtype=np.uint8)


class Split:
    """Like a split of a Hugging Face dataset: columns by name, an item is a dict, class names in the features."""

    def __init__(self, images, labels, image="image", names=("ant", "bee", "cat", "dog")):
        self._images, self._labels, self._image = images, labels, image
        self.features = {image: "Image", "label": type("ClassLabel", (), {"names": list(names)})()}

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        return {self._image: Image.fromarray(self._images[index]), "label": int(self._labels[index])}


class Pairs(list):
    """Like a data set of torchvision: (image, label) by index, class names in `classes`."""

    classes = ("ant", "bee", "cat", "dog")


@pytest.fixture
def given(here):
    """A module `given_here` in the working folder, whose function `images` returns a given value."""
    (here / "given_here.py").write_text("value = None\ndef images():\n    return value\n")

    def load(value, image_size=None):
        own_images.user_objects.find("dataset", "given_here:images")
        sys.modules["given_here"].value = value
        return datasets.load("given_here:images", image_size=image_size)

    return load


def pairs(images=IMAGES, labels=LABELS):
    return Pairs(zip(map(Image.fromarray, images), labels.tolist(), strict=True))


FORMS = {
    "arrays": (IMAGES, LABELS),
    "tensors": (torch.from_numpy(IMAGES), torch.from_numpy(LABELS)),
    "column of labels": (IMAGES, LABELS[:, None]),
    "pairs": pairs(),
    "pairs of MedMNIST": [(Image.fromarray(image), np.array([label])) for image, label in zip(IMAGES, LABELS)],
    "split": Split(IMAGES, LABELS),
    "split with img": {"train": Split(IMAGES, LABELS, "img")},
    "tensor data set": TensorDataset(torch.from_numpy(IMAGES).permute(0, 3, 1, 2), torch.from_numpy(LABELS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_same_images_and_a_fifth_of_each_class_is_held_out(given, form):
    data = given(FORMS[form])
    reference = given((IMAGES, LABELS))
    assert data.fingerprint == reference.fingerprint and np.bincount(data.test_labels).tolist() == [2] * 4
    assert data.name == "given_here:images" and data.train_images.shape == (32, 28, 28, 3)
    named = form in ("split", "split with img", "pairs")
    assert data.classes == (Pairs.classes if named else tuple("0123"))


NAMES = np.array(["mast cell", "blast", "Spät", "AML"])


@pytest.mark.parametrize("form", ["arrays", "objects", "pairs"])
def test_labels_may_be_texts_which_name_the_classes(given, form):
    """`np.asarray` of a pandas column has the dtype object."""
    texts = NAMES[LABELS]
    items = [(Image.fromarray(image), str(text)) for image, text in zip(IMAGES, texts)]
    forms = {
        "arrays": (IMAGES, texts, IMAGES[:8], texts[:8]),
        "objects": (IMAGES, texts.astype(object), IMAGES[:8], texts[:8].astype(object)),
        "pairs": (items, items[:8]),
    }
    data = given(forms[form])
    assert data.classes == ("AML", "Spät", "blast", "mast cell")
    np.testing.assert_array_equal(np.array(data.classes)[data.train_labels], texts)
    np.testing.assert_array_equal(np.array(data.classes)[data.test_labels], texts[:8])
    assert given((IMAGES, texts)).classes == data.classes


TEXTS = NAMES[LABELS]
# What a function returns and no data set can be made of; the first three images are of the classes 0, 1 and 2.
REFUSED = {
    "a text for an item after numbers": [(IMAGES[0], 2), (IMAGES[1], "blast")],
    "texts for train only": (IMAGES, TEXTS, IMAGES, LABELS),
    "texts and a missing value": (IMAGES, np.array(["ant", "bee", np.nan, "bee"] * 10, object)),
    "two labels for an item": [(IMAGES[0], np.array([0, 1]))],
    "images of several sizes": {"train": (IMAGES, LABELS), "test": ([IMAGES[0], IMAGES[0, 1:]], [0, 1])},
    "a split of another name": {"train": (IMAGES, LABELS), "testing": (IMAGES[:8], LABELS[:8])},
    "no items": [],
    "an image per class": [(IMAGES[0], 0), (IMAGES[1], 1)],
    "images without labels": IMAGES,
    "a mapping within a split": {"train": {"image": IMAGES, "label": LABELS}},
    "columns of other names": [{"picture": IMAGES[0], "label": 0}],
    "transparent pixels": [(Image.fromarray(np.zeros((25, 25, 4), np.uint8)), n % 2) for n in range(8)],
    "float images": [(IMAGES[0] / 255, 0)],
    "three data sets": (pairs(), pairs(), pairs()),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_is_no_data_set_is_refused_in_one_line(given, value):
    with refused("dataset", "given_here:images"):
        given(value)


def test_given_splits_are_taken_as_they_are(given):
    four = given((IMAGES, LABELS, IMAGES[:8], LABELS[:8]))
    two = given((pairs(), pairs(IMAGES[:8], LABELS[:8])))
    named = given({"train": Split(IMAGES, LABELS), "test": Split(IMAGES[:8], LABELS[:8])})
    mixed = given({"train": pairs(), "test": (IMAGES[:8], LABELS[:8])})
    assert len({data.fingerprint for data in (four, two, named, mixed)}) == 1 and len(four.test_labels) == 8
    images, labels = torch.from_numpy(IMAGES), LABELS.tolist()
    assert given({"train": (images, labels), "test": (images[:8], labels[:8])}).fingerprint == four.fingerprint
    assert given(((images, labels), (images[:8], labels[:8]))).fingerprint == four.fingerprint
    validated = given({name: Split(IMAGES, LABELS) for name in ("train", "test", "validation")})
    assert len(validated.val_labels) == 40


def test_a_third_array_has_the_patients_whose_images_are_in_one_split(given):
    names = [f"{patient:02d}" for patient in PATIENTS]
    forms = [(IMAGES, LABELS, PATIENTS), {"train": (IMAGES, LABELS, torch.from_numpy(PATIENTS[:, None]))}]
    forms += [(IMAGES, LABELS, np.array(names, object)), {"train": (IMAGES, LABELS, names)}]
    data = [given(form) for form in forms]
    assert len({part.fingerprint for part in data}) == 1
    for part in data:
        assert sorted([*set(part.train_patients.tolist()), *set(part.test_patients.tolist())]) == list(range(10))
        assert np.bincount(part.test_labels).tolist() == [2] * 4
    half = given((IMAGES[:20], LABELS[:20], PATIENTS[:20], IMAGES[20:], LABELS[20:], PATIENTS[20:]))
    np.testing.assert_array_equal([*half.train_patients, *half.test_patients], PATIENTS)


def test_no_image_has_the_name_of_another_class(given, tmp_path):
    """Names are given by a data set or those within it, unless the function changes its labels."""
    shades = np.repeat(np.arange(150, 154, dtype=np.uint8), 5)
    save_folder(tmp_path / "zoo", np.tile(shades[:, None, None], (32, 32)), np.repeat(Pairs.classes, 5))

    def whole(**options):
        return ImageFolder(tmp_path / "zoo", **options)

    moved = whole(target_transform=lambda label: (label + 1) % 4)
    named = [whole(), Subset(whole(), range(1, 20)), ConcatDataset([whole(), Subset(whole(), [3, 9])])]
    named.append((Subset(whole(), range(20)), ConcatDataset([whole()])))
    named.append(random_split(whole(), [12, 8], torch.Generator().manual_seed(0)))
    for value in named:
        data = given(value)
        true = [Pairs.classes[number] for number in data.train_images[:, 0, 0, 0] - 150]
        assert [data.classes[label] for label in data.train_labels] == true
    assert (len(data.train_labels), len(data.test_labels)) == (12, 8)  # of random_split
    for value, n in ((moved, 4), (Subset(moved, range(20)), 4), (Subset(whole(), range(10)), 2)):
        assert given(value).classes == tuple("0123"[:n])
    (tmp_path / "zoo" / "ant").rename(tmp_path / "zoo" / "eel")
    other = whole()
    for value in (ConcatDataset([named[0], other]), (Subset(named[0], range(20)), Subset(other, range(20)))):
        with refused("dataset"):
            given(value)


def test_images_are_cropped_and_enlarged_to_one_size_and_grey_ones_stay_grey(given, caplog):
    caplog.set_level("INFO", "ucl")
    wide = [(Image.fromarray(np.full((30, 50, 3), 255, np.uint8)), n % 2) for n in range(20)]
    assert given(wide).image_size == 32 and given(wide, 48).image_size == 48 and given(wide).channels == 1
    assert sum("20 of 20 images are not square" in message for message in caplog.messages) == 3
    grey = [(np.full((20, 20), n, np.uint8), n % 2) for n in range(20)]
    assert (given(grey).image_size, given(grey).channels) == (20, 1) and given(grey).train_images[1, 0, 0, 0] == 1
    assert given(Split(IMAGES, LABELS), 16).image_size == 16
    with refused("image_size"):
        given((IMAGES, LABELS), 16)


def test_files_of_a_data_set_of_torchvision_are_read_as_those_of_a_folder(given, tmp_path):
    """torchvision's own loader clips 16 bits, and drops transparency and all images of a file but the first."""
    root = tmp_path / "set"
    save_folder(root, IMAGES, LABELS)
    assert given(ImageFolder(root)).fingerprint == datasets.load(root, image_size=28).fingerprint
    grey, two = Image.fromarray(IMAGES[0, ..., 0].astype(np.uint16) * 257), {"append_images": [Image.new("L", (9, 9))]}
    for image, options in ((grey, {}), (Image.new("RGBA", (28, 28)), {}), (Image.new("L", (28, 28)), two)):
        image.save(root / "0" / "50.tif", save_all=bool(options), **options)
        transformed = ImageFolder(root, transform=pil_to_tensor)
        for data in (ImageFolder(root), Subset(ImageFolder(root), range(41)), ConcatDataset([transformed])):
            with refused("dataset"):
                given(data)


def test_a_transform_gets_the_images_that_torchvision_opens_and_the_data_set_stays_as_it_is(given, tmp_path):
    """Opened unchanged, files with a palette would give its indices."""
    save_folder(tmp_path / "set", IMAGES, LABELS)
    for file in (tmp_path / "set").rglob("*.png"):
        Image.open(file).quantize(16).save(file)

    class Transformed:
        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return len(self.dataset)

        def __getitem__(self, index):
            image, label = self.dataset[index]
            return pil_to_tensor(image), label

    plain = ImageFolder(tmp_path / "set")
    expected = given(plain)
    assert expected.channels == 3 and plain[0][0].mode == "RGB"
    for data in (ImageFolder(tmp_path / "set", transform=pil_to_tensor), Transformed(plain)):
        assert given(data).fingerprint == expected.fingerprint


def test_size_and_channels_are_those_of_all_splits(given):
    grey, coloured = np.full((28, 28), 7, np.uint8), np.zeros((40, 40, 3), np.uint8)
    coloured[..., 0] = 9
    train, test = [(grey, n % 2) for n in range(8)], [(np.full((40, 40), 8, np.uint8), n % 2) for n in range(4)]
    data = given({"test": test, "train": train})
    assert (data.image_size, data.channels, data.test_images.shape) == (28, 1, (4, 28, 28, 1))
    data = given((train, [*test, (coloured, 0)]))
    assert (data.image_size, data.channels) == (28, 3) and (data.train_images == 7).all()
    assert data.test_images[-1, 0, 0].tolist() == [9, 0, 0]


def test_a_class_name_has_one_number_in_all_splits(given):
    class Mammals(list):
        classes = ("cat", "dog")

    class Numbers(list):
        classes = ("10", "9")

    class Others(list):
        classes = ("cat", "fox", "owl")

    two = [(np.full((25, 25), n, np.uint8), n % 2) for n in range(8)]
    assert given((Mammals(two), two)).classes == ("cat", "dog")
    assert given((Numbers(two), Numbers(two))).classes == ("10", "9")
    for train, test in ((Mammals(two), Others(two)), (Numbers(two), two), (two, Numbers(two))):
        with refused("dataset"):
            given((train, test))
    texts = [(image, Mammals.classes[label]) for image, label in two]
    assert given((Mammals(texts), Others(texts))).classes == ("cat", "dog")


def test_large_images_stay_in_a_file_and_results_are_the_same(given, monkeypatch, tmp_path):
    grey = [(np.full((20, 20), n, np.uint8), n % 2) for n in range(20)]
    small_grey, small = given(grey), given(pairs())
    config = Config(dataset="given_here:images", n_tasks=2, memory_size=8, score="BI", precision="float32")
    config = config.replace(model="own_objects:batch_normed", readings=True, batch_size=5)
    config = config.replace(evaluate_on="validation", validation=0.2)
    monkeypatch.setattr("ucl.evaluation.readings.BATCHES", 3)
    expected = run(config)
    monkeypatch.setattr(pixels, "available_bytes", lambda: 1000)
    large_grey, large = given(grey), given(pairs())
    for mapped, loaded in ((large, small), (large_grey, small_grey)):
        assert isinstance(mapped.train_images, np.memmap) and not isinstance(loaded.train_images, np.memmap)
        assert (mapped.fingerprint, mapped.mean, mapped.std) == (loaded.fingerprint, loaded.mean, loaded.std)
    assert large_grey.channels == 1
    task = build_stream(Config(n_tasks=2), large).tasks[0]
    assert isinstance(task.images, LazyImages) and isinstance(task.test_images, LazyImages)
    assert run(config).results == expected.results
    assert list((tmp_path / "data").iterdir()) == []  # the open file has no name


def test_an_array_in_a_file_is_read_where_it_is(given):
    np.save("images.npy", IMAGES)
    mapped = given((np.load("images.npy", mmap_mode="r"), LABELS, IMAGES[:8], LABELS[:8]))
    assert isinstance(mapped.train_images, np.memmap)
    assert mapped.fingerprint == given((IMAGES, LABELS, IMAGES[:8], LABELS[:8])).fingerprint


def test_lazy_images_are_those_of_the_array(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    rows = np.array([5, 3, 39, 3])
    lazy = LazyImages(np.load(tmp_path / "images.npy", mmap_mode="r"), rows)
    expected = torch.from_numpy(IMAGES[rows]).permute(0, 3, 1, 2)
    assert lazy.shape == expected.shape and len(lazy) == 4
    for index in (slice(1, 3), torch.tensor([2, 0]), np.array([3, 3])):
        assert torch.equal(lazy[index], expected[index])
    assert torch.equal(lazy[2], expected[2])
    assert [len(part) for part in lazy.split(3)] == [3, 1] and torch.equal(torch.cat([*lazy.split(3)]), expected)


def test_images_that_differ_at_each_call_are_named_before_a_run(given):
    class Restless(Pairs):
        def __getitem__(self, index):
            return IMAGES[np.random.default_rng().integers(len(IMAGES))], index % 4

    data = given(Restless(pairs()))
    with refused("dataset"):
        datasets.check("given_here:images")
    assert given(pairs()).fingerprint == datasets.check("given_here:images")["fingerprint"] != data.fingerprint


def test_images_drawn_from_the_global_generators_are_the_same_at_each_call(given):
    class Drawn(Pairs):
        def __getitem__(self, index):
            return np.uint8(256 * np.random.rand(28, 28) * torch.rand(1).item()), index % 4

    before = np.random.get_state()[1].copy()
    assert given(Drawn(pairs())).fingerprint == given(Drawn(pairs())).fingerprint
    assert np.array_equal(np.random.get_state()[1], before)
