"""A record counts for a run only if the images and the user's score are the same as on this machine."""

import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import bands, files, save_bands, save_folder
from PIL import Image

import ucl
from ucl import Config, RecordStore, datasets, load_records
from ucl.records import store as stores
from ucl.reproduction.session import open_session
from ucl.sweeps.progress import status
from ucl.sweeps.sweep import sweep

pytestmark = pytest.mark.usefixtures("small_networks")
SWEEP = {"device": "cpu", "progress": False, "threads": 1}
TINY = dict(n_tasks=2, memory_size=8, population="reservoir", precision="float32", batch_size=2, lr=0.03)
SCORED = {**TINY, "population": "uncertainty", "score": "mine:score"}
SCORE = "def score(logits):\n    return {sign}logits.softmax(-1).amax(-1).std(0)  # {sign}\n"


def change_images(path, pixel=255):
    """Change one pixel of the data set."""
    with np.load(path) as npz:
        arrays = dict(npz)
    arrays["train_images"][0, 0, 0] = pixel
    np.savez(path, **arrays)


def current_version(config):
    return stores.current_version(config.dataset, config.image_size, config.user_objects.values())[0]


def fingerprint(name, root=None):
    return datasets.load(str(name), root).fingerprint


def swept(*configs, **options):
    """The records of a sweep into `runs`, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = sweep(configs, "runs", **{**SWEEP, **options})
    return records, [str(warning.message) for warning in caught]


# Images


CHANGES = {  # by the part of the version that differs: the file, its new content, and the name in the warning
    "images": ("tiny.npz", lambda: change_images("tiny.npz"), "tiny.npz"),
    "source": ("mine.py", lambda: Path("mine.py").write_text(SCORE.format(sign="-") + "\n"), "mine:score"),
}


@pytest.mark.parametrize("part", CHANGES)
def test_other_images_or_another_score_are_measured_again_and_both_records_are_kept(here, part):
    config, (file, change, named) = Config(dataset="tiny.npz", **SCORED), CHANGES[part]
    Path("mine.py").write_text(SCORE.format(sign="+"))
    (first,), reported = swept(config)
    before, original = files(Path("runs")), Path(file).read_bytes()
    assert reported == [] and first.version == current_version(config)
    assert first.version.images == fingerprint("tiny.npz")
    change()
    (second,), (line,) = swept(config)
    old, new, after = getattr(first.version, part), getattr(second.version, part), files(Path("runs"))
    assert named in line and old in line and new in line and "\n" not in line
    assert re.fullmatch("[0-9a-f]{16}", old) and second.version == current_version(config) != first.version
    assert len(after) == 2 and before.items() <= after.items()
    assert all(re.fullmatch(r"[A-Za-z0-9-]+\.json", path.name) and config.key in path.name for path in after)
    assert (second.memory["position"] != first.memory["position"]) or part == "images"
    table = ucl.results(load_records("runs"))
    assert table["n"].tolist() == [1, 1] and set(table["fingerprint" if part == "images" else part]) == {old, new}
    for record in (second, first):  # each is read for its own version, and nothing is measured
        again, reported = swept(config)
        assert [r.to_json() for r in again] == [record.to_json()] and reported == [] and files(Path("runs")) == after
        Path(file).write_bytes(original)


def test_a_named_set_in_another_data_folder_is_other_images(here):
    """An example is a user's official CIFAR-10 with records of a copy."""
    roots = [here / "official", here / "copy"]
    for pixel, root in enumerate(roots):
        change_images(save_bands(root / "mine.npz"), pixel)
    config = Config(dataset="mine", **TINY)
    (first,), _ = swept(config, root=roots[0])
    with pytest.warns(UserWarning, match="of other images"):
        assert status([config], "runs", "cpu", roots[1])["missing"].tolist() == [[0]]
    (second,), _ = swept(config, root=roots[1])
    for root, record in zip(roots, (first, second), strict=True):
        assert RecordStore("runs", root).lookup(config).record.to_json() == record.to_json()
        assert status([config], "runs", "cpu", root)["measured"].tolist() == [1]
    table = ucl.results(load_records("runs"))
    assert table["n"].tolist() == [1, 1]
    assert set(table["fingerprint"]) == {first.version.images, second.version.images}


def test_where_the_images_are_not_here_records_count_and_a_line_says_that_nothing_was_compared(here, cli):
    config = Config(dataset="gone.npz", **TINY)
    save_bands(here / "gone.npz")
    (record,), _ = swept(config)
    (here / "gone.npz").unlink()
    (again,), (line,) = swept(config)
    assert again.to_json() == record.to_json()
    assert line.startswith("gone.npz: ") and "not on this machine" in line and "without a comparison" in line
    Path("grid.json").write_text(json.dumps([json.loads(config.to_json())]))
    warnings.simplefilter("default")  # pytest restores its own
    code, out, err = cli("status", "--config", "grid.json", "--device", "cpu")
    assert code == 0 and out.endswith("1 of 1 runs are in runs\n") and err.count("not on this machine") == 1
    (here / "gone.npz").write_text("damaged")
    _, (line,) = swept(config)
    assert "can't be read" in line and "without a comparison" in line


def test_images_are_read_once_per_process_and_again_only_after_a_change(here, monkeypatch):
    configs = [Config(dataset="tiny.npz", **TINY, seed=seed) for seed in range(3)]
    swept(*configs)
    reads, load = [], datasets.load
    monkeypatch.setattr(datasets, "load", lambda *given: reads.append(given) or load(*given))
    monkeypatch.setattr(stores, "_fingerprints", {})
    for _ in range(2):
        assert all(run.record for run in RecordStore("runs").find(configs).values())
        status(configs, "runs", "cpu")
        open_session(configs, store="runs", output="out")
    assert len(reads) == 1
    os.utime("tiny.npz", (1, 1))
    assert all(config in RecordStore("runs") for config in configs)
    assert len(reads) == 2
    assert not RecordStore("runs").lookup(configs[0].replace(seed=9)).record
    assert RecordStore("empty").find(configs)[configs[0].key].record is None
    assert len(reads) == 2


READER = """
import numpy

def images():
    file = numpy.load("tiny.npz")
    return tuple(file[f"{split}_{part}"] for split in ("train", "test") for part in ("images", "labels"))
"""


def test_other_images_that_a_function_reads_are_noticed_in_the_same_process(here):
    Path("mine.py").write_text(READER)
    config = Config(dataset="mine:images", **TINY)
    (first,), _ = swept(config)
    change_images("tiny.npz")
    (second,), (line,) = swept(config)
    assert first.version.images in line and first.version.images != second.version.images == fingerprint("mine:images")


def test_a_change_behind_a_linked_class_folder_is_noticed(here):
    save_folder(here / "pool", np.zeros((4, 32, 32), np.uint8), "aabb")
    (here / "zoo").symlink_to(here / "pool")
    config = Config(dataset="zoo", **TINY)
    before = current_version(config)
    (here / "pool" / "b" / "notes.txt").write_text("not used")
    assert before == current_version(config) and before.images
    Image.new("L", (32, 32), 77).save(here / "pool" / "b" / "02.png")
    assert datasets.load("zoo").fingerprint == current_version(config).images != before.images


# Paths


def test_three_spellings_of_a_path_are_one_data_set(here):
    save_bands(here / "set" / "x.npz")
    spellings = ["x.npz", "./x.npz", "../set/x.npz", str(here / "set" / "x.npz")]
    os.chdir("set")
    configs = [Config(dataset=dataset, **TINY) for dataset in spellings]
    assert len({config.key for config in configs}) == 4  # the keys are unchanged
    (first,), _ = swept(configs[1])
    before = files(Path("runs"))
    records, reported = swept(*configs)
    assert {record.to_json() for record in records} == {first.to_json()}
    assert reported == [] and files(Path("runs")) == before
    store = RecordStore("runs")
    assert all(store.lookup(config).record.to_json() == first.to_json() for config in configs)
    assert status(configs, "runs", "cpu")["missing"].tolist() == [[]] * 4
    assert open_session(configs, store="runs", output="out").missing == 0

    other = configs[3].replace(seed=1)  # tables and pictures also treat them as one data set
    records, _ = swept(*configs[:2], other)
    table = ucl.results(load_records("runs"))
    assert (table["dataset"].tolist(), table["n"].tolist()) == (["x.npz"], [2]) and "fingerprint" not in table
    ucl.plots.grouped.same_but_for_seed(records)

    os.chdir(here)  # the current folder does not matter
    assert Config(dataset="set/x.npz", **TINY) in RecordStore("set/runs")


def test_a_folder_is_one_data_set_from_inside_and_outside(here):
    save_folder(here / "images", *bands(40))
    swept(Config(dataset="images", **TINY))
    for folder, dataset in ((".", "./images/"), (".", str(here / "images")), ("images", ".")):
        os.chdir(here / folder)
        assert Config(dataset=dataset, **TINY) in RecordStore(here / "runs"), dataset


def test_two_folders_of_one_name_are_two_data_sets(here):
    configs = []
    for fold in range(2):
        change_images(save_bands(here / f"fold{fold}" / "data.npz"), fold)
        configs.append(Config(dataset=f"fold{fold}/data.npz", **TINY))
    records, reported = swept(*configs)
    assert reported == [] and [record.config for record in records] == configs
    images = [fingerprint(config.dataset) for config in configs]
    assert [record.version.images for record in records] == images and len(set(images)) == 2
    assert [r.to_json() for r in swept(*configs)[0]] == [r.to_json() for r in records]
    table = ucl.results(load_records("runs"))
    assert table["dataset"].tolist() == ["fold0/data.npz", "fold1/data.npz"]


def test_a_session_shows_old_results_for_new_images_only_with_a_warning(here):
    configs = [Config(dataset="tiny.npz", **TINY, seed=seed) for seed in range(2)]
    first = open_session(configs, store="runs", output="out", compute=True, device="cpu")
    old = fingerprint("tiny.npz")
    change_images("tiny.npz")
    for compute, expected in (False, old), (True, fingerprint("tiny.npz")):
        with pytest.warns(UserWarning, match=f"of other images .*{old}"):
            shown = open_session(configs, store="runs", output="out", compute=compute, device="cpu")
        assert shown.missing == first.missing == 0 and set(shown.runs["fingerprint"]) == {expected}
    again = open_session(configs, store="runs", output="out")
    assert list(again.runs["fingerprint"]) == list(shown.runs["fingerprint"])
