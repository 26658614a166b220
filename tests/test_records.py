"""Records on disk: complete or absent, read back unchanged, whatever other files are in the folder."""

import json
import os
import re
import stat
from pathlib import Path

import made_up
import numpy as np
import pandas as pd
import pytest
from conftest import refused, run

import ucl
from ucl import Config, Record, RecordStore, load_records
from ucl.machine.files import check_writable
from ucl.records.runs import as_table, latest

pytestmark = pytest.mark.usefixtures("small_networks")
NAN = float("nan")
IMAGES = {"digits": ucl.datasets.load("digits").fingerprint}  # every machine has these images
RUNS = Path(ucl.__file__).parents[1] / "figures" / "runs"


def record_of(config, accuracy=((0.9, NAN), (0.25, 0.75))):
    """A record like that of a run of two tasks of two classes; floats cannot represent 1/3 and 0.2 exactly."""
    return Record(
        config=config,
        accuracy=np.array(accuracy),
        class_recall=np.array([[0.8, NAN, 1 / 3, NAN], [0.1, 1.0, 0.2, 0.7]]),
        classes=["eosinophil", "neutrophil é", "c", "d"],
        class_order=[2, 0, 3, 1],
        memory={"position": [5, 1], "label": [0, 3], "score": [0.1, None], "confidence": [0.5, 1e-30]},
        timing={"total": 12.0, "training": 6.5, "memory": None, "evaluation": 2.0, "batches": 5},
        environment={"device": "cpu", "torch": "2.6.0", "commit": ""},
        data={"name": "cells", "fingerprint": IMAGES.get(config.dataset, "0123456789abcdef"), "training_images": 60},
        date="2025-03-01T12:00:00+00:00",
    )


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder of records, and an empty data folder. Except for digits, the fingerprints below are invented."""
    monkeypatch.setenv("UCL_DATA", str(tmp_path / "data"))
    return RecordStore(tmp_path / "runs")


@pytest.fixture(scope="module")
def measured(tiny):
    return run(tiny.replace(population="uncertainty"))


def assert_same(again, record):
    np.testing.assert_array_equal(again.accuracy, record.accuracy)
    np.testing.assert_array_equal(again.class_recall, record.class_recall)
    assert again.accuracy.dtype == again.class_recall.dtype == np.float64
    for name in ("config", "classes", "class_order", "memory", "timing", "environment", "data", "date", "results"):
        assert getattr(again, name) == getattr(record, name), name
    assert again.to_json() == record.to_json()


# There and back


def test_a_record_comes_back_from_its_file_as_it_was(store, measured):
    for record in (record_of(Config(dataset="digits", lr=0.1 + 0.2, seed=3)), measured):
        path = store.save(record)
        assert path == store.path(record.config) and record.config in store
        assert_same(store.lookup(record.config).record, record)
        assert_same(Record.from_json(path.read_text(encoding="utf-8")), record)


def test_a_run_that_diverged_is_evidence_too(store):
    """The record ends with the task that broke the weights; a sweep of learning rates must keep it."""
    diverged = made_up.diverged(record_of(Config(lr=10.0)), after=1)
    store.save(diverged)
    again = store.lookup(diverged.config).record
    assert_same(again, diverged)
    assert (again.diverged_after, again.failure) == (1, "diverged")
    assert np.isnan([again.last_accuracy, again.last_forgetting, *again.measures().values()]).all()
    assert again.warning and "\n" not in again.warning and again.warning in str(again) and "diverged" in repr(again)
    store.save(record_of(Config()))
    columns = load_records(store.folder).set_index("lr")["diverged_after"]
    assert columns[10.0] == 1 and columns[0.1] is pd.NA


def test_missing_values_are_null_in_strict_json():
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    raw = json.loads(record_of(Config()).to_json(), parse_constant=refuse)
    assert raw["accuracy"] == [[0.9, None], [0.25, 0.75]]
    assert raw["class_recall"][0] == [0.8, None, 1 / 3, None]
    assert raw["memory"]["score"] == [0.1, None]
    assert raw["config"] == json.loads(Config().to_json())


@pytest.mark.parametrize(("dataset", "balanced"), [("cifar10", False), ("bloodcell", True)])
def test_a_record_has_its_measures(dataset, balanced):
    record = record_of(Config(dataset=dataset))
    record.class_recall[-1] = [0.1, NAN, 0.2, 0.9]
    measures = record.measures()
    assert record.last_accuracy == measures["A"] == pytest.approx(0.4 if balanced else 0.5)
    assert record.last_forgetting == measures["F"] == pytest.approx(0.65)
    assert measures["retained"] == pytest.approx(0.25) and measures["balanced"] == pytest.approx(0.4)
    assert measures["balanced_F"] == pytest.approx(((0.8 - 0.1) + (1 / 3 - 0.2)) / 2)
    assert measures["worst_class"] == 0.1 and np.isnan(measures["anytime"])
    assert balanced or measures["average"] == pytest.approx((0.9 + 0.5) / 2)
    assert record.seconds_per_batch == pytest.approx(2.0)  # of 12 seconds, 2 went into evaluation


# The store


def test_an_experiment_has_one_file(store):
    """Experiments that cannot differ share a file; all others have their own."""
    reservoir = Config(population="reservoir", score="BI")
    store.save(record_of(reservoir))
    store.save(record_of(reservoir, accuracy=[[0.5, NAN], [0.5, 0.5]]))
    assert len(os.listdir(store.folder)) == 1
    assert store.lookup(reservoir).record.last_accuracy == 0.5
    assert reservoir.replace(score="LC") in store
    others = [reservoir.replace(seed=1), Config(), Config(selection="top"), Config(method="finetune")]
    for config in others:
        assert config not in store
        store.save(record_of(config))
    assert len(os.listdir(store.folder)) == 5
    assert sorted(r.config.key for r in store) == sorted(config.key for config in [reservoir, *others])


@pytest.mark.parametrize(
    "config",
    [
        Config(dataset="bloodcell"),
        Config(dataset="../my data/blood cells: é.npz", score="my.scores:spread"),
        Config(dataset="my data/影像"),
        Config(method="finetune", dataset="cifar10-lt"),
        Config(dataset="long" * 60, score=f"mine:weighted(weights={[0.25] * 40})"),
    ],
    ids=lambda config: config.label[:40],
)
def test_a_files_name_is_plain_and_names_the_experiment(store, config):
    name = store.path(config).name
    assert len(name) <= 255 - 34  # which another version of the images adds
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*\.json", name)
    assert config.key in name and f"-s{config.seed}-" in name
    assert store.path(config).parent == store.folder


def test_a_record_is_found_by_its_key_under_another_name(store):
    """A method's name may change between versions of ucl; the records of older versions count as before."""
    config = Config(score="ucl.scorers:uniform")
    path = store.save(record_of(config))
    older = path.rename(path.with_name(path.name.replace("uniform", "ucl-scorers-uniform")))
    assert older != path and config in store and config.replace(seed=1) not in store
    assert store.lookup(config).path == older
    assert_same(store.lookup(config).record, record_of(config))


@pytest.mark.parametrize(
    ("name", "use"),
    [
        *(("file", RecordStore), ("", RecordStore), ("nowhere", load_records), ("file", load_records)),
        *((name, lambda folder: check_writable(store=folder)) for name in ("file/runs", "link", "x" * 300)),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path, monkeypatch, name, use):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    Path("link").symlink_to(tmp_path / "gone" / "away")
    with refused("store") as refusal:
        use(name)
    assert name in str(refusal.value)
    assert Path("file").read_text() == "in the way"


def test_a_folder_is_made_when_it_is_needed(tmp_path):
    store = RecordStore(tmp_path / "deep" / "down")
    assert Config() not in store and list(store) == [] and not store.folder.exists()
    check_writable(store=store.folder)
    assert os.listdir(store.folder) == [] and len(load_records(store.folder)) == 0
    path = store.save(record_of(Config()))
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444  # others may read


def test_each_of_many_experiments_finds_its_record_and_each_file_is_read_once(store, monkeypatch):
    """They differ in one field only, so their files begin alike; a third has no record, and a third further tests."""
    configs = [Config(lr=round(0.01 + 0.001 * i, 3)) for i in range(60)]
    for i, config in enumerate(configs):
        if i % 3:
            store.save(record_of(config.replace(evaluate_every=7) if i % 3 == 2 else config))
    read, from_json = [], Record.from_json
    monkeypatch.setattr(Record, "from_json", lambda text: read.append(text) or from_json(text))
    rates = [run.record and run.record.config.lr for run in store.find(configs).values()]
    assert rates == [config.lr if i % 3 else None for i, config in enumerate(configs)] and len(read) == 40


# Other files in the folder of records


def damaged(text):
    """Files that are not records of this format; each key names the defect."""
    raw = json.loads(text)
    older = {name: value for name, value in raw.items() if name != "sha256"}
    return {
        "half": text.encode()[: len(text) // 2],
        "no-text": b"\x00\xff\xfe\x80",
        "another-json": b'{"name": "package", "version": 3}',
        "nested": b"[" * 100_000,
        "another-number": json.dumps({**raw, "accuracy": [[0.9, None], [0.25, 0.76]]}).encode(),
        "another-format": json.dumps({**older, "format": 2}).encode(),
        "unknown-field": json.dumps({**older, "config": {**raw["config"], "flavour": "vanilla"}}).encode(),
        "ragged": json.dumps({**older, "accuracy": [[0.9], [0.8, 0.7]]}).encode(),
        **{f"{name}-missing": json.dumps({k: v for k, v in older.items() if k != name}).encode() for name in older},
    }


def test_damaged_and_foreign_files_are_named_left_alone_and_the_others_read(store):
    good = [Config(seed=seed) for seed in range(3)]
    for config in good:
        path = store.save(record_of(config))
    files = {f"{name}.json": content for name, content in damaged(path.read_text()).items()}
    for name, content in files.items():
        (store.folder / name).write_bytes(content)
    (store.folder / "a-folder.json").mkdir()
    (store.folder / "notes.txt").write_text("not looked at")
    with pytest.warns(UserWarning) as caught:
        table = load_records(store.folder)
    assert sorted(table["key"]) == sorted(config.key for config in good)
    reported = [str(warning.message) for warning in caught]
    assert len(reported) == len(files) + 1
    for name in [*files, "a-folder.json"]:
        assert any(str(store.folder / name) in text and "\n" not in text for text in reported)
    assert {name: (store.folder / name).read_bytes() for name in files} == files


IN_THE_WAY = {
    "a newer format": lambda raw: json.dumps({**raw, "format": 2}),
    "another experiment": lambda raw: record_of(Config(seed=1)).to_json(),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("write", IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_a_file_in_the_way_is_not_replaced_and_a_new_record_counts(store, write):
    record = record_of(Config())
    path = store.save(record)
    text = write({name: value for name, value in json.loads(record.to_json()).items() if name != "sha256"})
    path.write_text(text)
    assert record.config not in store
    assert store.save(record).name == f"{path.stem}-{record.version.images}.json" and path.read_text() == text
    assert_same(store.lookup(record.config).record, record)


@pytest.mark.parametrize("tests", [{"readings": True}, {"evaluate_every": 5}, {"readings": True, "evaluate_every": 5}])
def test_a_record_with_further_tests_counts_for_the_same_run_without_them_and_not_the_other_way(store, tests):
    plain, tested = Config(seed=1), Config(seed=1, **tests)
    path = store.save(record_of(tested))
    store.save(record_of(tested.replace(seed=11)))
    store.save(record_of(tested.replace(lr=0.2)))
    assert (store.lookup(plain).path, store.lookup(plain).record.config) == (path, tested)
    assert plain in store and tested in store
    assert plain.replace(seed=0) not in store and plain.replace(lr=0.05) not in store
    earlier = record_of(plain)
    earlier.date = "2024-01-01T00:00:00+00:00"
    assert store.save(earlier) == store.path(plain)
    later = record_of(plain.replace(seed=2))
    later.date = "2099-01-01T00:00:00+00:00"
    store.save(later)
    store.save(record_of(tested.replace(seed=2)))
    in_tables = {record.config for record in latest(as_table(store))["record"]}
    for seed in (1, 2):
        counts = tested.replace(seed=seed)
        assert store.lookup(plain.replace(seed=seed)).record.config == store.lookup(counts).record.config == counts
        assert counts in in_tables and plain.replace(seed=seed) not in in_tables
    path.unlink()
    assert tested not in store and plain in store and store.lookup(plain).record.config == plain


def test_a_number_changed_by_hand_is_noticed_and_other_spaces_are_not(measured):
    raw = json.loads(measured.to_json())
    assert_same(Record.from_json(json.dumps(dict(reversed(raw.items())), indent=3)), measured)
    raw["timing"]["total"] += 0.001
    with pytest.raises(ValueError, match="sha256"):
        Record.from_json(json.dumps(raw))


def test_the_committed_records_are_read_under_the_keys_of_their_names():
    """They have no sha256: records of older versions stay valid."""
    paths = sorted(RUNS.glob("*.json"))
    table = load_records(RUNS)  # a warning would fail here
    assert len(table) == len(paths) >= 322
    assert sorted(table["key"]) == sorted(path.stem[-16:] for path in paths)
    assert all(RecordStore(RUNS).path(record.config) in paths for record in table["record"])


def test_a_record_prints_its_accuracies():
    record = record_of(Config(dataset="cells", n_tasks=2, memory_size=20, seed=3))
    record.class_recall[-1] = [0.1, 1.0, 0.2, 0.9]
    text = str(record)
    assert text.startswith("cells, n_tasks=2, memory 20, BI bottom, seed 3\n")
    assert "\n  90.0      .\n  25.0   75.0\n" in text
    assert all(number in text for number in ("50.0 %", "55.0 %", "65.0 %", "10.0 %", "2000.0 ms"))
    assert repr([record]) == f"[{record!r}]" and "50.0 %" in repr(record) and "\n" not in repr(record)


def test_the_table_has_a_row_per_record_and_the_fields_and_results_as_columns(store, measured):
    configs = [Config(dataset="bloodcell", seed=seed) for seed in range(3)]
    for config in configs:
        store.save(record_of(config))
    store.save(measured)
    table = load_records(store.folder)
    facts = "diverged_after seconds seconds_per_batch device processor threads settings fingerprint source arithmetic"
    facts += " date key record last_accuracy last_forgetting"
    fields, measures = json.loads(Config().to_json()), measured.measures()
    assert list(table.columns) == ["label", *fields, *measures, *facts.split()]
    assert list(as_table([]).columns) == list(table.columns) and len(table) == 4
    row = table[table["key"] == configs[1].key].iloc[0]
    names = ["label", "dataset", "seed", "n_tasks", "memory_size", "seconds", "seconds_per_batch", "device"]
    assert row[names].tolist() == ["BI bottom", "bloodcell", 1, 4, 40, 12.0, 2.0, "cpu"]
    assert (row["fingerprint"], row["date"]) == ("0123456789abcdef", "2025-03-01T12:00:00+00:00")
    assert row["A"] == pytest.approx(0.5) and row["F"] == pytest.approx(0.65)
    assert_same(row["record"], record_of(configs[1]))
    row = table[table["key"] == measured.config.key].iloc[0]
    assert row[list(measures)].to_dict() == pytest.approx(measures, nan_ok=True)
    assert row["fingerprint"] == measured.data["fingerprint"]
