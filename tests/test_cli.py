"""The command `ucl`: valid arguments give a record, and anything that cannot be used is refused in one line."""

import dataclasses
import json
import os
import re
import sys

import numpy as np
import pytest
from conftest import assert_refused, bands, files, save_bands, save_folder

import ucl
from ucl import Config, Record, RecordStore
from ucl.evidence.paper import PUBLISHED_CODE
from ucl.sweeps import locks

pytestmark = pytest.mark.usefixtures("small_networks")
TINY = ["--dataset", "tiny.npz", "--n-tasks", "2", "--batch-size", "8", "--memory-size", "8", "--device", "cpu"]
TINY_CONFIG = Config(dataset="tiny.npz", n_tasks=2, batch_size=8, memory_size=8)


def only_record(store):
    (path,) = store.iterdir()
    return Record.from_json(path.read_text(encoding="utf-8"))


# ucl run


def test_a_run_leaves_the_record_that_the_library_would_measure(here, cli):
    code, out, err = cli("run", *TINY, "--store", "records")
    assert (code, err) == (0, "")
    record = only_record(here / "records")
    assert record.config == TINY_CONFIG
    assert record.results == ucl.run(TINY_CONFIG, device="cpu").results
    assert record.environment["graphs"] is False
    assert out.splitlines()[-1] == str(RecordStore("records").path(TINY_CONFIG))
    assert f"{100 * record.last_accuracy:.1f} %" in out and f"{100 * record.last_forgetting:.1f} %" in out


def test_a_second_call_reads_what_the_first_has_measured(here, cli):
    _, first, _ = cli("run", *TINY, "--population", "reservoir")
    before = files(here)
    code, second, err = cli("run", *TINY, "--population", "reservoir", "--score", "LC")  # A reservoir does not score.
    assert code == 0 and "score=LC" in err
    assert files(here) == before
    assert second.startswith("already measured on 2") and second.split("\n", 1)[1] == first
    assert {path.parent for path in before} == {here, here / "runs"}  # The default folder of records is `runs`.


def test_the_run_of_a_record_is_repeated_with_another_seed(here, cli):
    flags = ["--score", "EN", "--selection", "top", "--lr", "0.03", "--view-draws", "batch", "--validation", "0"]
    assert cli("run", *TINY, *flags, "--store", "first")[0] == 0
    (given,) = (here / "first").iterdir()
    assert cli("run", "--config", given, "--seed", "7", "--device", "cpu", "--store", "second")[0] == 0
    first, second = only_record(here / "first").config, only_record(here / "second").config
    assert second == first.replace(seed=7) and second.key == first.replace(seed=7).key
    assert (second.score, second.selection, second.lr, second.view_draws) == ("EN", "top", 0.03, "batch")


def test_flags_override_the_published_code_which_overrides_a_file(here, cli):
    fields = {"dataset": "tiny.npz", "n_tasks": 2, "memory_size": 8, "method": "finetune", "lr": 0.5}
    (here / "fields.json").write_text(json.dumps(fields))
    flags = ["--lr", "0.05", "--published-code", "--view-space", "pixels", "--no-balanced-accuracy"]
    assert cli("run", "--config", "fields.json", *flags, "--device", "cpu")[0] == 0
    expected = fields | PUBLISHED_CODE | {"lr": 0.05, "view_space": "pixels", "balanced_accuracy": False}
    assert only_record(here / "runs").config == Config(**expected)


def test_a_run_that_leaves_out_more_than_a_tenth_of_a_task_says_so(here, cli):
    """Each of the two tasks has 24 images."""
    assert "4 of its 24 images" in cli("run", *TINY, "--batch-size", "10")[2]


@pytest.mark.filterwarnings("default:the network diverged")
def test_a_learning_rate_that_breaks_the_network_is_a_result_with_a_warning(here, cli):
    """The run, the sweep, its status and the table keep such a result, and do not average it."""
    fields = dict(validation=0.5, imbalance=0.2, memory_size=10, population="reservoir")
    grid = [{**fields, "lr": 100.0}, {**fields, "method": "finetune"}]
    (here / "broken.json").write_text(json.dumps(grid[0]))
    (here / "grid.json").write_text(json.dumps(grid))
    code, out, _ = cli("run", "--config", "broken.json", "--device", "cpu")
    assert code == 0 and "diverged" in out and "nan" not in out
    assert only_record(here / "runs").diverged_after == 0
    sweep = cli("sweep", "--config", "grid.json", "--device", "cpu")
    assert sweep[0] == 0 and "1 diverged" in sweep[1]
    status = cli("status", "--config", "grid.json", "--device", "cpu")
    assert status[0] == 0 and "1 diverged" in status[1]
    table = ucl.results(ucl.load_records("runs")).set_index("label")
    assert table["n"].to_dict() == {"ER": 0, "Finetune": 1}


# Flags


def test_every_field_of_a_configuration_has_a_flag_that_explains_its_choices(cli):
    code, text, _ = cli("run", "--help")
    squeezed = re.sub(r"\s", "", text)  # The help text is wrapped, also at hyphens.
    assert code == 0
    for field in dataclasses.fields(Config):
        explained = [f"--{field.name.replace('_', '-')}", field.metadata["help"], *(field.metadata["choices"] or ())]
        assert [words for words in explained if re.sub(r"\s", "", words) not in squeezed] == []


IDLE = {"--blur 1": "blur=1", "--no-long-tailed-test": "long_tailed_test=False", "--score EN --averaging scores": ""}


@pytest.mark.parametrize(("typed", "named"), IDLE.items())
def test_a_flag_that_changes_nothing_is_named(here, cli, typed, named):
    (here / "run.json").write_text(json.dumps({"dataset": "tiny.npz", "n_tasks": 2, "batch_size": 8, "blur": 0.0}))
    code, _, err = cli("run", "--config", "run.json", "--device", "cpu", *typed.split())
    assert code == 0 and named in err and err.count("\n") == bool(named)


def test_a_tilde_is_the_home_folder(here, cli, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home"))
    save_bands(here / "home" / "data" / "set.npz")
    (here / "home" / "run.json").write_text(json.dumps({"dataset": "set", "n_tasks": 2, "memory_size": 8}))
    where = ["--config=~/run.json", "--store=~/runs", "--data=~/data", "--device", "cpu"]
    assert cli("sweep", *where, "--predictions=~/predictions")[0] == 0
    assert cli("run", *where)[1].startswith("already measured")
    assert cli("results", "--store=~/runs", "--output=~/table.csv")[0] == 0
    assert {"predictions", "data", "run.json", "runs", "table.csv"} <= set(os.listdir(here / "home"))


def test_the_command_and_its_verbs_explain_themselves(cli):
    assert cli("--version") == (0, f"ucl {ucl.__version__}\n", "")
    verbs = ["run", "sweep", "status", "results", "compare", "plot", "reproduce", "benchmark", "data"]
    for arguments in ([], *([verb] for verb in verbs), ["data", "list"], ["data", "check"]):
        code, text, err = cli(*arguments, "--help")
        assert (code, err) == (0, "") and text.startswith(f"usage: {' '.join(['ucl', *arguments])} ")


# ucl data


def test_known_data_sets_are_listed_with_what_is_here(here, cli):
    save_bands(here / "data" / "cifar10.npz")
    code, out, err = cli("data", "list")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert {"cifar100", "pathmnist", "retinamnist"} <= set(rows)
    assert not {"chestmnist", "bloodmnist", "organmnist3d"} & set(rows)
    assert rows["digits"].split()[1:4] == ["10", "32", "scikit-learn"]
    assert rows["bloodcell"].split()[1:3] == ["8", "28"] and "ucl data check bloodcell" in rows["bloodcell"]
    assert rows["cifar10"].endswith(str(here / "data" / "cifar10.npz"))


def test_all_data_sets_are_read_and_shown_also_after_one_that_cannot_be_used(here, cli):
    (here / "torn.npz").write_bytes(b"not an archive")
    before = files(here)
    code, out, err = cli("data", "check", "torn.npz", "tiny.npz", "gone/folder", "", "digits")
    assert code == 2 and all(name in line for name, line in zip(["torn.npz", "gone/folder", ""], err.splitlines()))
    tiny, digits = [line for line in out.splitlines() if line.startswith("name ")]
    assert tiny.startswith("name tiny, train images 48, test images 24, ")
    assert ucl.datasets.load("tiny.npz").fingerprint in tiny
    assert "train images 1438, test images 359, " in digits
    assert next(line.split() for line in out.splitlines() if line.startswith("3 ")) == ["3", "12", "6"]
    assert files(here) == before  # digits and the two files need no network


def test_a_data_set_is_checked_in_the_size_of_a_run(here, cli):
    save_folder(here / "zoo", *bands(12))
    assert ", image size 40, " in cli("data", "check", "zoo", "--image-size", "40")[1]
    assert cli("data", "check", "digits", "--image-size", "40")[0] == 2


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A working folder full of invalid files."""
    root = tmp_path_factory.mktemp("broken")
    save_bands(root / "tiny.npz")
    images, labels = bands(48)[0][:, ::2, ::2], bands(48)[1]
    np.savez(root / "small.npz", train_images=images, train_labels=labels, test_images=255 - images, test_labels=labels)
    (root / "two.json").write_text('[{"seed": 1}, {"seed": 2}]')
    (root / "a file").write_text("not a folder")
    return root


REFUSED = [  # what is typed, and what the message names
    ("", "COMMAND"),
    ("rum", "rum"),
    ("--devise run", "--devise"),
    ("run --dataset small.npz", "small.npz"),  # too small for the network
    ("run --memory-size many", "--memory-size"),
    ("run --device cuda:63", "cuda:63"),
    ("run --config two.json", "ucl sweep"),
    ("run --config gone.json", "gone.json"),
    ("run --config=", "--config"),
    ("run --store a:file", "--store"),
    ("run --predictions a:file", "--predictions"),
    ("run --published", "--published"),  # An abbreviation may be ambiguous after a new flag is added.
    ("sweep", "table1"),
    ("sweep table4 --set lrr 1", "lr"),
    ("sweep table4 --set seed 1", "--seeds"),
    ("sweep table4 --set lr [1", "lr"),
    ("sweep table4 --shard 3/2", "--shard"),
    ("status table4 --store a:file", "--store"),
    ("reproduce table", "tables"),
    ("reproduce gone/tables.ipynb", "gone/tables"),
    ("reproduce tables -p seed 1", "seeds"),
    ("benchmark --jobs 2", "--dataset"),
    ("data", "ACTION"),
    ("data check", "dataset"),
]


@pytest.mark.parametrize(("typed", "named"), REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line(broken, cli, monkeypatch, typed, named):
    monkeypatch.chdir(broken)
    monkeypatch.setenv("UCL_DATA", str(broken / "data"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = files(broken)
    words = [word.replace(":file", " file") for word in typed.split()]
    if words[:1] == ["run"] and not any(word.startswith("--config") for word in words):
        words = ["run", *TINY, *words[1:]]
    assert_refused(cli(*words), named)
    assert files(broken) == before


def test_a_run_that_another_process_is_measuring_is_left_to_it(here, cli):
    (here / "runs").mkdir()
    with locks.held(locks.path_of(here / "runs", TINY_CONFIG)):
        assert_refused(cli("run", *TINY), "store")
    assert not list((here / "runs").glob("*.json"))
