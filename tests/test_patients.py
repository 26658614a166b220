"""Folders of patients: all images of a patient are in one split. Each image encodes its patient."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import ucl
from ucl.cli.main import main
from ucl.errors import InputError
from ucl.streams import ClassIncrementalStream, LazyImages
from ucl.streams import patients as rules
from ucl.streams.datasets import ImageDataset, check, load
from ucl.streams.image_dataset import SPLITS
from ucl.streams.patients import held_out_patients, whole_patients


def write(root, **classes):
    """Write `<class>/<patient>/<number>.png` for classes with a number of images per patient; return the root.

    The patient is "p" and a number, which all channels of the image have.
    """
    for name, n_images in classes.items():
        for patient, n in n_images.items():
            folder = root / name / patient
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(n):
                Image.new("L", (32, 32), int(patient.removeprefix("p"))).save(folder / f"{number}.png")
    return root


def patients(numbers, n=1):
    """Names of patients, each with n images."""
    return {f"p{number:02d}": n for number in numbers}


def in_images(data):
    """For each split the patients of its images, by their pixels."""
    images = {split: getattr(data, f"{split}_images") for split in SPLITS}
    return {split: set(found[:, 0, 0, 0].tolist()) for split, found in images.items() if found is not None}


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    """The command `ucl` in a temporary folder: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return main([*map(str, arguments)]), *capsys.readouterr()

    return call


# ---------------------------------------------------------------- the test patients

some_patients = st.frozensets(st.sampled_from("abcdefg"), min_size=2, max_size=4)


@settings(max_examples=300, deadline=None)
@given(classes=st.lists(some_patients, min_size=1, max_size=8))
def test_each_class_has_training_and_test_patients_whenever_that_is_possible(classes):
    everyone = sorted(frozenset.union(*classes))
    possible = any(
        all(0 < len(members & set(test)) < len(members) for members in classes)
        for n in range(len(everyone))
        for test in itertools.combinations(everyone, n)
    )
    of_class = {f"class {number}": members for number, members in enumerate(classes)}
    if possible:
        test = held_out_patients("zoo", of_class)
        assert all(0 < len(members & test) < len(members) for members in classes)
    else:
        with pytest.raises(
            InputError,
            match=r"^dataset='zoo': found no split with training and test images of class \d and .* rename folders",
        ):
            held_out_patients("zoo", of_class)


@settings(deadline=None)
@given(sizes=st.lists(st.integers(2, 60), min_size=1, max_size=6))
def test_a_fifth_of_each_class_are_test_patients_if_no_patient_is_in_two_classes(sizes):
    of_class = {str(c): frozenset(f"{c} {number}" for number in range(n)) for c, n in enumerate(sizes)}
    test = held_out_patients("zoo", of_class)
    assert [len(members & test) for members in of_class.values()] == [max(1, round(n / 5)) for n in sizes]


@pytest.mark.parametrize(("n", "n_classes", "share"), [(17, 8, 0.9), (100, 8, 0.3), (1000, 7, 0.2), (400, 10, 0.1)])
def test_about_a_fifth_are_test_patients_if_patients_are_in_several_classes(n, n_classes, share):
    present = np.random.default_rng(0).random((n_classes, n)) < share
    of_class = {str(c): frozenset(f"{p:04d}" for p in np.flatnonzero(row)) for c, row in enumerate(present)}
    test = held_out_patients("zoo", of_class)
    assert 0.15 < len(test) / present.any(axis=0).sum() < 0.25
    assert all(0.15 < len(members & test) / len(members) < 0.35 for members in of_class.values())


def test_classes_that_can_not_be_split_are_found_among_many_that_can():
    """Fifty classes with two patients have 2^50 splits. For none of them the last three classes can be split."""
    of_class = {f"{c:02d}": frozenset({f"{c} a", f"{c} b"}) for c in range(50)}
    of_class["all"] = frozenset.union(frozenset("ab"), *of_class.values())
    odd = {"x": frozenset("ab"), "y": frozenset("bc"), "z": frozenset("ac")}
    assert all(0 < len(members & held_out_patients("zoo", of_class)) < len(members) for members in of_class.values())
    with pytest.raises(InputError, match="found no split with training and test images of z and of the classes"):
        held_out_patients("zoo", of_class | odd)


def test_a_search_for_a_split_has_an_end(monkeypatch):
    """Two classes with two patients each need five steps: four choices and the result."""
    of_class = {"a": frozenset({"1", "2"}), "b": frozenset({"3", "4"})}
    for limit, enough in ((3, True), (2, False)):
        monkeypatch.setattr(rules, "_TRIES_PER_CLASS", limit)
        if enough:
            assert held_out_patients("zoo", of_class) == {"1", "3"}
        else:
            with pytest.raises(InputError, match="found no split"):
                held_out_patients("zoo", of_class)


# ---------------------------------------------------------------- folders


def test_a_fifth_of_the_patients_of_a_folder_is_held_out_whole(tmp_path):
    """Class b has the patients 8 and 9 of class a, and three of its own."""
    root = write(tmp_path / "zoo", a=patients(range(10), 3), b=patients(range(8, 13), 2))
    data = load(str(root))
    found = in_images(data)
    assert found["train"] & found["test"] == set() and found["train"] | found["test"] == set(range(13))
    assert len(found["test"]) == 2
    assert np.bincount(data.train_labels).tolist() == [24, 8] and np.bincount(data.test_labels).tolist() == [6, 2]
    assert load(str(root)).fingerprint == data.fingerprint and data.name == "zoo"


layouts = st.lists(
    st.dictionaries(st.integers(0, 9), st.integers(1, 3), min_size=4, max_size=8), min_size=2, max_size=3
)


@settings(max_examples=20, deadline=None)
@given(classes=layouts)
def test_no_patient_is_in_two_splits_and_no_image_is_lost(tmp_path_factory, classes):
    named = {f"class {c}": {f"p{p}": n for p, n in members.items()} for c, members in enumerate(classes)}
    root = write(tmp_path_factory.mktemp("zoo"), **named)
    data = load(str(root))
    found = in_images(data)
    assert not found["train"] & found["test"] and not set(data.train_patients) & set(data.test_patients)
    sizes = np.bincount(data.train_labels) + np.bincount(data.test_labels)
    assert sizes.tolist() == [sum(members.values()) for members in classes]
    assert len(np.unique(data.test_labels)) == len(np.unique(data.train_labels)) == len(classes)
    for file, number, image in zip(data.train_files, data.train_patients, data.train_images, strict=True):
        assert Path(file).parent.name == f"p{image[0, 0, 0]}"
        np.testing.assert_array_equal(data.train_patients == number, data.train_images[:, 0, 0, 0] == image[0, 0, 0])


def test_given_splits_of_patients_are_kept(tmp_path):
    for split, numbers in {"train": range(4), "test": range(4, 6), "val": range(6, 7)}.items():
        write(tmp_path / split, a=patients(numbers, 2), b=patients(numbers))
    data = load(str(tmp_path))
    assert in_images(data) == {"train": {0, 1, 2, 3}, "test": {4, 5}, "val": {6}}
    of_split = [getattr(data, f"{split}_patients").tolist() for split in SPLITS]
    assert of_split == [[0, 0, 1, 1, 2, 2, 3, 3, 0, 1, 2, 3], [4, 4, 5, 5, 4, 5], [6, 6, 6]]


def test_test_patients_are_held_out_of_train_if_only_validation_is_given(tmp_path):
    for split, numbers in {"train": range(5), "val": range(5, 6)}.items():
        write(tmp_path / split, a=patients(numbers), b=patients(numbers))
    found = in_images(load(str(tmp_path)))
    assert len(found["train"]) == 4 and len(found["test"]) == 1 and found["val"] == {5}


FAULTS = {
    "images and patients in a class": (
        {"a/0.png": 0},
        "zoo/a: holds images (0.png) and folders with images (p00, p01, p02 and 2 more); give one layout, "
        "<class>/<image> or <class>/<patient>/<image>, and move other files out of the class folder",
    ),
    "a class without patients": (
        {"c/0.png": 0, "c/1.png": 0},
        "zoo/c: holds images, and a has a folder per patient; give all class folders one layout: "
        "<class>/<image> or <class>/<patient>/<image>",
    ),
    "a class of a single patient": (
        {"c/p01/0.png": 1, "c/p01/1.png": 1},
        "zoo: only one patient of c; give 2 or more, for training and for testing",
    ),
    "a patient without images": (
        {"b/p77/notes.txt": None},
        "zoo/b/p77: a patient's folder without images; give some (.png .jpg .jpeg .bmp .gif .pgm .ppm .tif .tiff "
        ".webp), or remove it",
    ),
    "a patient's images in further folders": (
        {"b/p77/left/0.png": 77},
        "zoo/b/p77: a patient's folder without images; move those of its sub-folders (left) up, each with a name of "
        "its own, or remove it",
    ),
    "patients that can not be split": (
        {f"{name}/p{number}/0.png": number for name, two in {"x": (70, 71), "y": (71, 72), "z": (70, 72)}.items()
         for number in two},
        "zoo: found no split with training and test images of z and of the classes that share its patients; give more "
        "patients, and rename folders of different patients that have the same name",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "message"), FAULTS.values(), ids=FAULTS)
def test_a_folder_that_can_not_be_split_by_patients_is_refused_in_one_line(tmp_path, command, files, message):
    write(tmp_path / "zoo", a=patients(range(5)), b=patients(range(5, 10)))
    assert command("data", "check", "zoo")[::2] == (0, "")
    for name, value in files.items():
        path = tmp_path / "zoo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("") if value is None else Image.new("L", (32, 32), value).save(path)
    assert command("data", "check", "zoo") == (2, "", f"ucl data check: {message}\n")
    code, out, err = command("run", "--dataset", "zoo", "--n-tasks", "1")
    assert (code, out, err.count("\n")) == (2, "", 1) and err.endswith(f"{message}\n")


def test_a_patient_in_two_given_splits_is_refused(tmp_path, command):
    for split, numbers in {"train": range(9), "test": range(4, 12), "val": range(20, 22)}.items():
        write(tmp_path / "zoo" / split, a=patients(numbers), b=patients(numbers))
    code, out, err = command("data", "check", "zoo")
    assert (code, out) == (2, "") and err == (
        "ucl data check: zoo: patients in both train and test: p04, p05, p06 and 2 more; move all images of a patient "
        "into one of them, or rename folders of different patients\n"
    )
    (tmp_path / "zoo" / "test").rename(tmp_path / "zoo" / ".test")
    write(tmp_path / "zoo" / "val", b=patients([8]))
    assert "patients in both train and val: p08; " in command("data", "check", "zoo")[2]


def test_a_split_without_patients_beside_one_with_patients_is_refused(tmp_path, command):
    write(tmp_path / "zoo" / "train", a=patients(range(3)), b=patients(range(3)))
    for name in "ab":
        (tmp_path / "zoo" / "test" / name).mkdir(parents=True)
        Image.new("L", (32, 32)).save(tmp_path / "zoo" / "test" / name / "0.png")
    _, _, err = command("data", "check", "zoo")
    assert err.startswith("ucl data check: zoo/test/a: holds images, and train/a has a folder per patient; give all ")


def test_the_same_few_folders_in_every_class_are_hardly_patients(tmp_path):
    write(tmp_path / "zoo", a=patients(range(2), 3), b=patients(range(2), 3))
    with pytest.warns(UserWarning, match="zoo: p00, p01 are taken as patients, as all classes have these folders"):
        (remark,) = check(str(tmp_path / "zoo"))["remarks"]
    assert remark == "zoo: a folder in a class folder is a patient (p00, p01), whose images are all in one split"


def test_data_check_counts_patients(tmp_path, command):
    write(tmp_path / "zoo", a=patients(range(10), 3), b=patients(range(8, 13), 2))
    code, out, err = command("data", "check", "zoo")
    first, *lines = out.splitlines()
    assert (code, err) == (0, "") and first.startswith(
        "name zoo, train images 32, test images 8, train patients 11, test patients 2, classes 2, "
    )
    assert lines[:4] == [
        "  training images per class: a: 24, b: 8",
        "  training patients per class: a: 8, b: 4",
        "  test images per class: a: 6, b: 2",
        "  test patients per class: a: 2, b: 1",
    ]
    patient = "  zoo: a folder in a class folder is a patient (p00, p01, p02 and 10 more)"
    assert lines[-1] == f"{patient}, whose images are all in one split"
    assert check("zoo")["remarks"] == [lines[-1].strip()]
    assert not any("patient" in key for key in check("digits"))


# ---------------------------------------------------------------- validation images of a stream


def dataset(of_class, **changes):
    """A data set without given validation images: for each class the number of images of each patient."""
    labels = np.repeat(np.arange(len(of_class)), [sum(members.values()) for members in of_class])
    numbers = np.array([p for members in of_class for p, n in members.items() for _ in range(n)])
    images = np.zeros((len(labels), 4, 4, 1), np.uint8)
    tests = images[: len(of_class)], np.arange(len(of_class))
    names = tuple(map(str, range(len(of_class))))
    return ImageDataset("zoo", names, images, labels, *tests, **{"train_patients": numbers, **changes})


def learnt_and_held_out(data, validation, seed):
    stream = ClassIncrementalStream(data, 1, validation=validation, batch_size=1, seed=seed)
    learnt = np.sort(np.concatenate([task.positions.numpy() for task in stream]))
    return learnt, np.setdiff1d(np.arange(len(data.train_labels)), learnt)


shared = st.lists(st.dictionaries(st.integers(0, 30), st.integers(1, 5), min_size=1), min_size=1, max_size=4)


@settings(deadline=None)
@given(of_class=shared, validation=st.sampled_from([0, 0.05, 0.2, 0.5]), seed=st.integers(0, 2**32 - 1))
def test_whole_patients_are_held_out_as_long_as_they_fit_into_the_share_of_each_class(of_class, validation, seed):
    data = dataset(of_class)
    learnt, held_out = learnt_and_held_out(data, validation, seed)
    out = set(data.train_patients[held_out].tolist())
    assert not out & set(data.train_patients[learnt].tolist())
    room = [int(validation * sum(members.values())) for members in of_class]
    taken = np.bincount(data.train_labels[held_out], minlength=len(of_class))
    assert (taken <= room).all()
    for patient in set(data.train_patients.tolist()) - out:
        more = np.array([members.get(patient, 0) for members in of_class])
        assert (taken + more > room).any()


def test_patients_fill_a_share_that_is_a_whole_number_of_images():
    """In floating point, 0.29 * 100 is below 29."""
    assert len(learnt_and_held_out(dataset([{p: 1 for p in range(100)}]), 0.29, 0)[1]) == 29


def test_the_images_held_out_are_those_that_the_tasks_are_tested_on():
    data = dataset([{p: 2 for p in range(40)}, {p: 3 for p in range(20, 60)}])
    data = dataclasses.replace(data, train_images=np.arange(200, dtype=np.uint8).repeat(16).reshape(-1, 4, 4, 1))
    stream = ClassIncrementalStream(data, 2, validation=0.2, evaluate_on="validation", seed=1)
    tested = {int(image[0, 0, 0]) for task in stream for image in task.test_images}
    _, held_out = learnt_and_held_out(data, 0.2, 1)
    assert tested == set(held_out.tolist()) and len(tested) > 20


def test_patients_of_one_image_are_held_out_as_images_are():
    """As many per class as without patients, each equally often."""
    data = dataset([{p: 1 for p in range(100)}, {p: 1 for p in range(100, 140)}])
    often = np.zeros(140)
    for seed in range(300):
        _, held_out = learnt_and_held_out(data, 0.05, seed)
        assert np.bincount(data.train_labels[held_out]).tolist() == [5, 2]
        often[held_out] += 1
    assert often.min() >= 1 and often.max() <= 34  # Binomial(300, 0.05): 15 on average


def test_a_share_into_which_no_patient_fits_is_named():
    data = dataset([{0: 9, 1: 9, 2: 9}, {3: 9, 4: 9, 5: 9}])
    with pytest.raises(InputError, match="no validation images; give 'test', or a larger validation share: whole pat"):
        ClassIncrementalStream(data, 2, validation=0.2, evaluate_on="validation")
    assert len(ClassIncrementalStream(data, 2, validation=0.34, evaluate_on="validation").tasks[0].test_labels) == 9


def test_images_in_a_file_are_split_alike(tmp_path):
    data = dataset([{p: 2 for p in range(30)}, {p: 2 for p in range(15, 45)}])
    np.save(tmp_path / "images.npy", data.train_images)
    lazy = dataclasses.replace(data, train_images=np.load(tmp_path / "images.npy", mmap_mode="r"))
    assert lazy.fingerprint == data.fingerprint
    assert isinstance(ClassIncrementalStream(lazy, 1).tasks[0].images, LazyImages)
    for found, expected in zip(learnt_and_held_out(lazy, 0.1, 3), learnt_and_held_out(data, 0.1, 3), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert len(found)


def test_the_number_of_a_patient_is_only_a_name():
    numbers, labels = np.array([7, 7, 3, 3, 9, 9, 5, 5]), [np.arange(8)]
    chosen = [
        whole_patients(renamed, labels, 0.5, np.random.default_rng(0)).tolist() for renamed in (numbers, numbers * 1000)
    ]
    assert chosen[0] == chosen[1] and sum(chosen[0]) == 4


def test_the_fingerprint_names_the_patients_of_training_if_there_are_some(tmp_path):
    """A run is measured again if its validation images change."""
    root = write(tmp_path, a={"p1": 2, "p2": 2, "p3": 2}, b={"p1": 2, "p2": 2, "p4": 2})
    data = load(str(root))
    plain = {name: getattr(data, name) for name in ("train_images", "train_labels", "test_images", "test_labels")}
    np.savez(tmp_path / "flat.npz", **plain)
    flat = load(str(tmp_path / "flat.npz"))
    assert flat.train_patients is None and flat.fingerprint != data.fingerprint
    assert dataclasses.replace(data, train_patients=None).fingerprint == flat.fingerprint
    others = np.arange(len(data.train_labels))
    assert dataclasses.replace(data, train_patients=others).fingerprint != data.fingerprint


@pytest.mark.usefixtures("narrow", "shallow")
def test_a_run_on_patients_learns_none_of_the_held_out_ones(tmp_path, command):
    write(tmp_path / "zoo", a=patients(range(20), 2), b=patients(range(10, 30), 2))
    typed = ["--n-tasks", 2, "--memory-size", 60, "--validation", 0.2, "--batch-size", 4, "--population", "reservoir"]
    code, _, err = command("run", "--dataset", "zoo", *typed, "--device", "cpu")
    assert code == 0 and "ucl run: zoo: a folder in a class folder is a patient (p00, p01, p02 and 27 mo" in err
    (record,) = ucl.load_records("runs")["record"]
    data = load("zoo")
    assert record.data["fingerprint"] == data.fingerprint
    learnt = set(data.train_patients[record.memory["position"]].tolist())
    _, held_out = learnt_and_held_out(data, 0.2, 0)
    out = set(data.train_patients[held_out].tolist())
    assert len(out) > 2 and learnt and not learnt & out and not learnt & set(data.test_patients.tolist())


@pytest.mark.usefixtures("narrow", "shallow")
def test_a_sweep_tells_once_what_it_takes_for_patients(tmp_path, command):
    write(tmp_path / "herd", a=patients(range(10), 2), b=patients(range(10, 20), 2))
    fields = {"dataset": "herd", "n_tasks": 2, "memory_size": 4, "population": "reservoir", "batch_size": 4}
    (tmp_path / "grid.json").write_text(json.dumps([fields | {"seed": seed} for seed in (0, 1)]))
    code, _, err = command("sweep", "--config", "grid.json", "--device", "cpu")
    assert code == 0
    before, remark, after = err.partition(
        "ucl sweep: herd: a folder in a class folder is a patient (p00, p01, p02 and 17 more)"
    )
    assert remark and remark not in after and "2 runs to measure" in after and before == ""
