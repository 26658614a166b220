"""The command `ucl`: valid arguments give a record, and anything that can't be used is named in one line."""

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import bands, save_bands
from PIL import Image

import ucl
from ucl import Config, Record, RecordStore
from ucl.cli.main import main
from ucl.evidence.paper import PUBLISHED_CODE
from ucl.sweeps import locks, one_run

pytestmark = pytest.mark.usefixtures("small_networks")
ROOT = Path(ucl.__file__).resolve().parents[1]
TINY = ["--dataset", "tiny.npz", "--n-tasks", "2", "--batch-size", "8", "--memory-size", "8", "--device", "cpu"]
TINY_CONFIG = Config(dataset="tiny.npz", n_tasks=2, batch_size=8, memory_size=8)


def tiny(*typed, beside=()):
    """The flags of a tiny run and others, each with a value, except those that are typed; and these."""
    flags = [*TINY, *beside]
    pairs = zip(flags[::2], flags[1::2], strict=True)
    return [word for flag, value in pairs if flag not in typed for word in (flag, value)] + [*typed]


def class_folders(root, n=60):
    for number, (image, label) in enumerate(zip(*bands(n), strict=True)):
        (root / f"band {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / f"band {label}" / f"{number}.png")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a tiny data set in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UCL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path)])  # The working folder is not on the module path.
    save_bands(tmp_path / "tiny.npz")
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def cli(capsys):
    """The command in this process: exit code, stdout and stderr."""

    def call(*arguments):
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return call


def process(*arguments, cwd):
    """The command as its installed script runs it: the working folder is not on the module path."""
    code = "import sys; sys.path[:] = filter(None, sys.path); from ucl.cli.main import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "UCL_DATA": str(cwd / "data")}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, timeout=120)


def test_the_package_is_the_command_too():
    done = subprocess.run([sys.executable, "-m", "ucl", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, f"ucl {ucl.__version__}")


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    assert out.splitlines()[-1] == str(RecordStore("records").path(TINY_CONFIG))
    assert "tiny.npz, 2 tasks, memory 8, BI bottom, seed 0" in out
    assert f"last accuracy {100 * record.last_accuracy:.1f} %" in out
    assert f"last forgetting {100 * record.last_forgetting:.1f} %" in out


def test_a_second_call_reads_what_the_first_has_measured(here, cli):
    _, first, _ = cli("run", *TINY, "--population", "reservoir")
    before = files(here)
    code, second, err = cli("run", *TINY, "--population", "reservoir", "--score", "LC")  # A reservoir does not score.
    assert (code, err) == (0, "ucl run: --score LC has no effect: population=reservoir\n")
    assert files(here) == before
    assert second.startswith("already measured on 2") and second.split("\n", 1)[1] == first
    assert {path.parent for path in before} == {here, here / "runs"}  # The default folder of records is `runs`.


def test_a_record_without_the_peak_memory_is_shown_without_it(here, cli):
    assert "peak memory" in cli("run", *TINY)[1]
    record = only_record(here / "runs")
    del record.environment["peak_memory_mib"]
    RecordStore(here / "runs").save(record)
    code, out, _ = cli("run", *TINY)
    assert code == 0 and "ms per batch\n" in out and "peak memory" not in out


def test_class_folders_of_images_are_learnt(here, cli):
    class_folders(here / "my images")
    typed = ["--n-tasks", "4", "--memory-size", "6", "--image-size", "28", "--batch-size", "6"]
    code, out, err = cli("run", "--dataset", "my images", *typed)
    assert (code, err) == (0, "") and "my images, 4 tasks, memory 6" in out
    record = only_record(here / "runs")
    assert record.classes == [f"band {label}" for label in range(4)]
    assert record.accuracy.shape == (4, 4) and record.data["training_images"] == 48
    assert len(record.memory["position"]) == 6


def test_the_run_of_a_record_is_made_again_with_another_seed(here, cli):
    flags = ["--score", "EN", "--selection", "top", "--lr", "0.03", "--view-draws", "batch", "--validation", "0"]
    assert cli("run", *TINY, *flags, "--store", "first")[0] == 0
    (given,) = (here / "first").iterdir()
    assert cli("run", "--config", given, "--seed", "7", "--device", "cpu", "--store", "second")[0] == 0
    first, second = only_record(here / "first").config, only_record(here / "second").config
    assert second == first.replace(seed=7) and second.key == first.replace(seed=7).key
    assert (second.score, second.selection, second.lr, second.view_draws) == ("EN", "top", 0.03, "batch")


def test_a_file_of_fields_is_a_start_that_flags_go_beyond(here, cli):
    fields = {"dataset": "tiny.npz", "n_tasks": 2, "memory_size": 8, "method": "finetune", "lr": 0.5}
    (here / "fields.json").write_text(json.dumps(fields))
    assert cli("run", "--config", "fields.json", "--lr", "0.05", "--device", "cpu")[0] == 0
    assert only_record(here / "runs").config == Config(**{**fields, "lr": 0.05})


def test_flags_beyond_a_record_decide_again_what_it_did_not_choose(here, cli):
    """As with `Config.replace`, BI has no dropout: the record had dropout only because of its score MC."""
    (here / "mc.json").write_text(Config(dataset="tiny.npz", n_tasks=2, memory_size=8, score="MC").to_json())
    assert cli("run", "--config", "mc.json", "--score", "BI", "--method", "agem", "--device", "cpu")[0] == 0
    config = only_record(here / "runs").config
    assert (config.label, config.dropout) == ("A-GEM", 0.0)


def test_all_choices_of_the_published_implementation_come_with_one_flag(here, cli):
    ways = ["--method", "finetune"]  # This method scores nothing; only the flags matter here.
    assert cli("run", *TINY, *ways, "--published-code", "--view-space", "pixels")[0] == 0
    config = only_record(here / "runs").config
    asked = {**PUBLISHED_CODE, "view_space": "pixels"}  # A value set explicitly takes precedence.
    assert {name: getattr(config, name) for name in asked} == asked


def test_a_score_of_ones_own_is_a_file_in_the_working_folder(here, cli, monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    source = "def spread(logits_PNC):\n    return logits_PNC.softmax(-1).amax(-1).std(0)\n"
    assert len(source.splitlines()) <= 10
    (here / "mine.py").write_text(source)
    code, out, err = cli("run", *TINY, "--score", "mine:spread", "--threads", "2")
    assert (code, err) == (0, "")
    assert "mine:spread bottom" in out
    record = only_record(here / "runs")
    assert record.config.score == "mine:spread" and asked[:1] == [2]
    kept = [score for score in record.memory["score"] if score is not None]
    assert kept and all(0 <= score <= 0.6 for score in kept)  # It is a standard deviation of numbers between 0 and 1.


def test_a_module_of_ones_own_that_changes_the_working_folder_moves_no_file(here, cli):
    for name in ("elsewhere", "sets"):
        (here / name).mkdir()
    save_bands(here / "sets" / "bands.npz")
    score = "def spread(logits_PNC):\n    return logits_PNC.softmax(-1).amax(-1).std(0)\n"
    (here / "mine.py").write_text(f"import os\nos.chdir('elsewhere')\n\n{score}")
    where = ["--store", "records", "--data", "sets", "--curves", "curves"]
    code, out, err = cli("run", *tiny("--dataset", "bands"), "--score", "mine:spread", *where)
    assert (code, err) == (0, "") and list((here / "elsewhere").iterdir()) == []
    (record,), (curve,) = (here / "records").iterdir(), (here / "curves").iterdir()
    assert out.splitlines()[-1] == f"records/{record.name}" and curve.stem == record.stem
    os.chdir(here)
    del sys.modules["mine"]
    (here / "mine.py").write_text("import os\nos.chdir('elsewhere')\n\ndef spread(logits_PNC):\n    return 0\n")
    where = ["--data", "sets", "--store", "new"]
    assert cli("run", *tiny("--dataset", "bands"), "--score", "mine:spread", *where)[0] == 2
    assert not (here / "new").exists()


@pytest.mark.parametrize(
    ("function", "reported"), [("two", "returned shape (2,)"), ("nan", "returned NaN or infinity for 16 of 16 images")]
)
def test_a_score_of_ones_own_that_gives_no_scores_ends_the_run_without_a_record(here, cli, function, reported):
    source = "def two(logits_PNC):\n    return logits_PNC.new_zeros(2)\n"
    source += "def nan(logits_PNC):\n    return logits_PNC.new_full(logits_PNC.shape[1:2], float('nan'))\n"
    (here / "no_scores.py").write_text(source)
    code, out, err = cli("run", *TINY, "--score", f"no_scores:{function}")
    assert (code, out) == (2, "") and not (here / "runs").exists()
    assert err.startswith(f"ucl run: --score no_scores:{function}: {reported}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("function", "reported"),
    [
        (
            "of_two",
            "of_two(a, b) can't be called with (logits_PNC): missing a required argument: 'b'; give a function of",
        ),
        ("raises", "raised KeyError: 'no such thing' (fails_early.py, line 5)"),
    ],
)
def test_a_score_of_ones_own_that_fails_is_named_with_its_error_and_line(here, cli, function, reported):
    source = "def of_two(a, b):\n    return a\n\ndef raises(logits):\n    return {}['no such thing']\n"
    (here / "fails_early.py").write_text(source)
    code, out, err = cli("run", *TINY, "--score", f"fails_early:{function}")
    assert (code, out) == (2, "") and not (here / "runs").exists()
    assert err.startswith(f"ucl run: --score fails_early:{function}: {reported}") and err.count("\n") == 1


def test_graphs_are_off_unless_they_are_asked_for(here, cli):
    assert cli("run", *TINY, "--method", "finetune")[0] == 0
    assert only_record(here / "runs").environment["graphs"] is False
    for verb in ("run", "sweep"):
        assert "--graphs" in cli(verb, "--help")[1]


def test_the_recipe_for_a_cluster_binds_to_an_address_and_warns(cli):
    text = cli("sweep", "--help")[1]
    assert "dask scheduler --host 10.0.0.1" in text and "dask worker tcp://10.0.0.1:8786 --host 10.0.0.2" in text
    assert "execute any code" in text and "TLS" in text


def test_a_log_gets_no_progress_bar_though_notebooks_are_at_hand(here, cli):
    import ipykernel  # Papermill, or another test in this process, may import it.

    code, _, err = cli("run", *TINY, "--method", "finetune")
    assert (code, err) == (0, "ucl run: --memory-size 8 has no effect: method=finetune\n") and ipykernel.__version__


# Flags


def squeezed(text):
    return re.sub(r"\s", "", text)  # The help text is wrapped, also at hyphens.


def test_every_field_of_a_configuration_has_a_flag_that_explains_its_choices(cli):
    code, text, _ = cli("run", "--help")
    assert code == 0
    for field in dataclasses.fields(Config):
        flag = f"--{field.name.replace('_', '-')}"
        (reported,) = re.findall(rf"^  {flag}\b.*?(?=^  -|\Z|\n\n)", text, re.M | re.S)
        assert squeezed(field.metadata["help"]) in squeezed(reported)
        for name, meaning in (field.metadata["choices"] or {}).items():
            assert squeezed(f"{name}: {meaning}" if meaning else name) in squeezed(reported)
        if field.default is not None:
            assert f"(default:{field.default})" in squeezed(reported)


def test_a_new_field_has_its_flag_at_once(cli, monkeypatch):
    metadata = {"help": "share of 50 % that is new", "choices": {"one": "the first", "two": "the second"}}
    field = dataclasses.field(default="one", metadata=metadata)
    wider = dataclasses.make_dataclass(
        "Wider", [("brand_new", "str", field)], bases=(Config,), frozen=True, kw_only=True
    )
    monkeypatch.setattr("ucl.config.Config", wider)
    _, text, _ = cli("run", "--help")
    assert squeezed(
        "--brand-new NAME share of 50 % that is new. one: the first; two: the second (default: one)"
    ) in squeezed(text)


def test_values_reach_the_configuration_as_what_they_are(here, cli):
    flags = {"--no-balanced-accuracy": None, "--dropout": "0.25", "--batch-size": "6", "--class-order": "size"}
    typed = [part for flag, value in flags.items() for part in (flag, value) if part]
    assert cli("run", *tiny(*typed), "--method", "finetune", "--long-tailed-test", "--imbalance", "1e-0")[0] == 0
    config = only_record(here / "runs").config
    assert (config.balanced_accuracy, config.dropout, config.batch_size) == (False, 0.25, 6)
    assert (config.class_order, config.long_tailed_test, config.imbalance) == ("size", True, 1.0)


IDLE = {
    "--blur 0.3": "boundaries=clear",
    "--population reservoir --score BI": "population=reservoir",
    "--population reservoir --refresh 2": "population=reservoir",
    "--score EN --averaging scores": "",
    "--averaging probabilities": "score=BI",
    "--long-tailed-test": "imbalance=1",
    "--no-long-tailed-test": "imbalance=1",
    "--method finetune --memory-size 9": "method=finetune",
    "--method agem --score LC": "population=reservoir",
    "--method mir --scoring-batchnorm train": "",
}


@pytest.mark.parametrize("typed", IDLE)
def test_a_flag_that_changes_nothing_is_named_with_the_reason_once_it_is_typed(here, cli, typed):
    (here / "run.json").write_text(json.dumps({"dataset": "tiny.npz", "n_tasks": 2, "batch_size": 8, "blur": 0.0}))
    plain = ["run", "--config", "run.json", "--device", "cpu"]
    code, _, err = cli(*plain, *typed.split())
    (flag,) = re.findall(r"--[a-z-]+(?: [A-Za-z0-9.]+)?$", typed)
    assert (code, err) == (0, IDLE[typed] and f"ucl run: {flag} has no effect: {IDLE[typed]}\n")


def test_a_run_that_leaves_out_more_than_a_tenth_of_a_task_says_so(here, cli):
    """Each of the two tasks has 24 images; a sweep and the library do not print."""
    *_, err = cli("run", *tiny("--batch-size", "10"))
    assert err.startswith("ucl run: task 1 of tiny does not learn 4 of its 24 images") and err.count("\n") == 1
    assert cli("run", *tiny("--batch-size", "11"), "--store", "others")[::2] == (0, "")  # 2 of 24 images
    ucl.run(TINY_CONFIG.replace(batch_size=10), device="cpu", progress=False)
    assert not logging.getLogger("ucl").handlers


def test_a_run_says_which_files_of_its_folder_it_does_not_use(here, cli):
    class_folders(here / "zoo", n=60)
    typed = tiny("--dataset", "zoo")
    assert cli("run", *typed)[::2] == (0, "")
    (here / "zoo" / "band 1" / "masks").mkdir()
    (here / "zoo" / "band 1" / "masks" / "1.npy").write_bytes(b"in a folder inside of a class")
    *_, err = cli("run", *typed, "--seed", "1")
    assert err.startswith("ucl run: zoo: 1 files are not read") and err.count("\n") == 1


@pytest.mark.parametrize(
    "typed", [["run", "--dataset", "pathmnist", "--n-tasks", "10"], ["sweep", "--config", "grid.json"]]
)
def test_more_tasks_than_classes_are_wrong_input_before_anything_is_fetched_or_learnt(here, cli, typed):
    (here / "grid.json").write_text(json.dumps({"dataset": "pathmnist", "n_tasks": [3, 10]}))
    before = files(here)
    code, out, err = cli(*typed)
    reason = "pathmnist has 9 classes; give 9 or fewer\n"
    assert (code, out) == (2, "") and err.count("\n") == 1 and err.endswith(f"10: {reason}")
    assert files(here) == before


def test_the_home_folder_is_meant_by_a_tilde_in_every_path(here, cli, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home"))
    (here / "home" / "data").mkdir(parents=True)
    fields = {"dataset": "set", "n_tasks": 2, "memory_size": 8, "method": "finetune"}
    save_bands(here / "home" / "data" / "set.npz")
    (here / "home" / "run.json").write_text(json.dumps(fields))
    where = ["--config=~/run.json", "--store=~/runs", "--data=~/data", "--device", "cpu"]
    assert cli("sweep", *where, "--curves=~/curves")[0] == 0
    assert cli("run", *where)[1].startswith("already measured")
    assert cli("status", *where)[0] == 0
    assert cli("results", "~/runs", "--output=~/table.csv")[0] == 0
    assert {"curves", "data", "run.json", "runs", "table.csv"} <= set(os.listdir(here / "home"))
    assert sorted(os.listdir(here)) == ["home", "tiny.npz"]


def test_the_library_takes_a_tilde_for_the_data_folder_of_a_sweep(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home"))
    (here / "home").mkdir()
    save_bands(here / "home" / "set.npz")
    config = TINY_CONFIG.replace(dataset="set", method="finetune")
    (record,) = ucl.sweep([config], here / "runs", root="~", device="cpu", progress=False)
    assert record.config == config


def test_the_version_is_printed(cli):
    assert cli("--version") == (0, f"ucl {ucl.__version__}\n", "")


def test_commands_explain_themselves(cli):
    for arguments in ([], ["run"], ["data"], ["data", "list"], ["data", "get"], ["data", "check"]):
        code, text, err = cli(*arguments, "--help")
        assert (code, err) == (0, "") and text.startswith(f"usage: {' '.join(['ucl', *arguments])} ")
    assert {"run", "data"} <= set(cli("--help")[1].split())
    assert "for fields that the table does not decide" in cli("sweep", "--help")[1]


# ucl data


def test_known_data_sets_are_listed_with_what_is_here(here, cli):
    (here / "data").mkdir()
    save_bands(here / "data" / "cifar10.npz")
    code, out, err = cli("data", "list")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["digits"].split()[1:4] == ["10", "32", "scikit-learn"] and "inside scikit-learn" in rows["digits"]
    assert rows["bloodcell"].split()[1:3] == ["8", "28"] and rows["bloodcell"].endswith("no: ucl data get bloodcell")
    assert rows["cifar10"].endswith(str(here / "data" / "cifar10.npz")) and "no: " not in rows["cifar10"]
    assert {"cifar100", "pathmnist"} <= set(rows) and out.startswith(f"data folder: {here / 'data'}\n")


@pytest.mark.parametrize("action", ["check", "get"])
def test_data_sets_are_read_whole_and_reported(here, cli, action):
    code, out, err = cli("data", action, "digits", "tiny.npz")
    assert (code, err) == (0, "")
    digits, of_digits, _, tiny, of_tiny, tests_of_tiny = out.splitlines()
    assert digits.startswith("name digits, train images 1438, test images 359, classes 10, ")
    assert tiny.startswith("name tiny, train images 48, test images 24, classes 4, smallest class 12, largest class 12")
    assert tiny.endswith(f"fingerprint {ucl.datasets.load('tiny.npz').fingerprint}")
    assert of_digits == "  training images per class: " + ", ".join(
        f"{name}: {size}" for name, size in ucl.datasets.check("digits")["class sizes"]
    )
    assert of_tiny == "  training images per class: 0: 12, 1: 12, 2: 12, 3: 12"
    assert tests_of_tiny == "  test images per class: 0: 6, 1: 6, 2: 6, 3: 6"
    assert list(files(here)) == [here / "tiny.npz"]


@pytest.mark.parametrize("action", ["check", "get"])
def test_a_data_set_is_checked_in_the_size_of_a_run(here, cli, action):
    class_folders(here / "zoo", n=12)
    code, out, err = cli("data", action, "zoo", "--image-size", "40")
    assert (code, err) == (0, "") and ", image size 40, " in out
    code, _, err = cli("data", action, "digits", "--image-size", "40")
    assert (
        code == 2
        and err == f"ucl data {action}: digits: --image-size 40: digits has 32 pixels per side; give that or none\n"
    )


def test_of_many_classes_the_smallest_and_the_largest_are_named(here, cli):
    sizes = [5, 3, 9, 1, 7, 2, 8, 4, 6, 10, 11, 12, 13]
    labels = np.repeat(np.arange(13), sizes)
    images = np.arange(len(labels) + 13, dtype=np.uint8).repeat(64).reshape(-1, 8, 8)
    arrays = {"train_images": images[13:], "train_labels": labels}
    arrays |= {"test_images": images[:13], "test_labels": np.arange(13)}
    np.savez("many.npz", **arrays, classes=list("abcdefghijklm"))
    code, out, _ = cli("data", "check", "many.npz")
    assert out.splitlines()[2:] == ["  test images per class: 1"]
    assert code == 0 and out.splitlines()[1] == (
        "  training images per class, smallest first: d: 1, f: 2, b: 3, h: 4; largest first: m: 13, l: 12, k: 11, j: 10"
    )
    equal = {"train_images": arrays["test_images"], "train_labels": arrays["test_labels"]}
    np.savez("equal.npz", **{**arrays, **equal})
    assert cli("data", "check", "equal.npz")[1].splitlines()[1] == "  training images per class: 1"
    np.savez("valid.npz", **arrays, val_images=255 - images[:2], val_labels=[3, 3])
    *_, of_validation = cli("data", "check", "valid.npz")[1].splitlines()
    assert of_validation.startswith("  validation images per class, smallest first: 0: 0, 1: 0, ")
    assert of_validation.endswith("largest first: 3: 2, 12: 0, 11: 0, 10: 0")


def test_equal_images_have_a_warning(here, cli):
    images = np.arange(9, dtype=np.uint8).repeat(64).reshape(-1, 8, 8)
    arrays = {"train_images": images[[0, 1, 2, 0]], "test_images": images[4:6], "val_images": images[[0, 1, 4, 8]]}
    np.savez("copied.npz", **arrays, train_labels=[0, 1, 0, 1], test_labels=[0, 1], val_labels=[0, 1, 0, 1])
    assert cli("data", "check", "copied.npz")[1].splitlines()[4:] == [
        "  warning: validation images that are also training images: 2",
        "  warning: validation images that are also test images: 1",
        "  warning: training images in several classes: 1",
    ]


@pytest.mark.parametrize("action", ["check", "get"])
def test_all_data_sets_are_checked_also_after_one_that_cannot_be_used(here, cli, action):
    (here / "torn.npz").write_bytes(b"not an archive")
    code, out, err = cli("data", action, "torn.npz", "tiny.npz", "gone/folder", "")
    assert code == 2 and out.startswith("name tiny, ") and out.count("\n") == 3
    torn, gone, empty = err.splitlines()
    assert torn.startswith(f"ucl data {action}: torn.npz: can't be read (")
    assert gone.startswith(f"ucl data {action}: gone/folder: no such file or folder; give ")
    assert empty.startswith(f"ucl data {action}: '': ")


def test_what_is_in_the_data_folder_needs_no_network(here, cli):
    (here / "shelf").mkdir()
    save_bands(here / "shelf" / "bloodcell.npz")
    before = files(here)
    code, out, _ = cli("data", "get", "bloodcell", "--data", "shelf")
    assert code == 0 and out.startswith("name bloodcell, train images 48")
    assert files(here) == before


# What can't be used


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A working folder full of invalid files."""
    root = tmp_path_factory.mktemp("broken")
    save_bands(root / "tiny.npz")
    whole = (root / "tiny.npz").read_bytes()
    (root / "torn.npz").write_bytes(whole[: len(whole) // 2])
    (root / "foreign.npz").write_bytes(b"%PDF-1.4 not an archive at all")
    save_bands(root / "unlabelled.npz", without=["train_labels"])
    class_folders(root / "folder")
    class_folders(root / "hollow", n=12)
    (root / "hollow" / "no images").mkdir()
    class_folders(root / "spoilt", n=12)
    (root / "spoilt" / "band 1" / "5.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    class_folders(root / "spoilt often", n=12)
    for label in range(4):
        (root / "spoilt often" / f"band {label}" / f"{label}.png").write_bytes(b"")
    (root / "spoilt often" / "band 0" / "4.png").write_bytes(b"")
    (root / "torn.json").write_text('{"dataset": "tiny.npz", "seed"')
    (root / "binary.json").write_bytes(b"\xff\xfe\x00{}")
    (root / "empty.json").write_text("")
    (root / "number.json").write_text("3")
    (root / "nested.json").write_text('{"config": 3}')
    (root / "deep.json").write_text("[" * 100_000)
    (root / "typo.json").write_text('{"datset": "digits"}')
    (root / "value.json").write_text('{"dataset": "tiny.npz", "n_tasks": 2, "memory_size": 8, "lr": "fast"}')
    (root / "two.json").write_text('[{"seed": 1}, {"seed": 2}]')
    (root / "a file").write_text("not a folder")
    return root


# Arguments of `ucl run`, added to those of the tiny data set, and the words that the message must contain.
REFUSED_RUNS = {
    "unknown data set": (["--dataset", "cifar1"], ["--dataset cifar1", "did you mean 'cifar10'?"]),
    "unknown data set, nothing near": (["--dataset", "§§§"], ["--dataset §§§", "digits, cifar10", "folder of class"]),
    "no data set": (["--dataset", ""], ["--dataset", "give a name or a path"]),
    "no such path": (["--dataset", "gone/images"], ["--dataset gone/images", "no such file or folder", "give"]),
    "no such file": (["--dataset", "gone.npz"], ["--dataset gone.npz", "no such file or folder", "give"]),
    "a name too long for a path": (["--dataset", "x" * 300], [f"--dataset {'x' * 300}: unknown data set"]),
    "a path too long": (["--dataset", f"gone/{'x' * 300}"], [f"gone/{'x' * 300}: no such file or folder"]),
    "the folder of an unknown user": (["--dataset", "~nobody-here/x"], ["--dataset ~nobody-here/x: no such file or"]),
    "unknown method": (["--method", "aggem"], ["--method aggem", "did you mean 'agem'?", "er, agem, finetune"]),
    "unknown score": (["--score", "BIM"], ["--score BIM", "did you mean 'BI'?", "LC"]),
    "a score of one's own without its module": (["--score", "mine"], ["--score mine: ", "package.module:function"]),
    "no module of a score": (["--score", "gone:score"], ["--score gone:score", "package.module:function"]),
    "no function of a score": (["--score", "math:gone"], ["--score math:gone", "package.module:function"]),
    "a score that is none": (["--score", "math:pi"], ["--score math:pi", "not a function", "give"]),
    "unknown selection": (["--selection", "botom"], ["--selection botom", "did you mean 'bottom'?", "step"]),
    "unknown population": (["--population", "resevoir"], ["did you mean 'reservoir'?", "class-balanced"]),
    "unknown precision": (["--precision", "float16"], ["--precision float16", "float32"]),
    "memory smaller than the classes": (["--memory-size", "3"], ["--memory-size 3", "4 classes", "give 4 or more"]),
    "no memory": (["--memory-size", "0"], ["--memory-size 0", "from 1 to"]),
    "negative memory": (["--memory-size", "-5"], ["--memory-size -5", "from 1 to"]),
    "absurd memory": (["--memory-size", "9" * 30], ["9" * 30, "from 1 to"]),
    "memory in words": (["--memory-size", "many"], ["--memory-size", "'many'", "whole number"]),
    "half a memory": (["--memory-size", "8.5"], ["--memory-size", "'8.5'", "whole number"]),
    "more tasks than classes": (["--n-tasks", "5"], ["--n-tasks 5", "4 classes", "give 4 or fewer"]),
    "no tasks": (["--n-tasks", "0"], ["--n-tasks 0", "from 1 to"]),
    "negative tasks": (["--n-tasks", "-2"], ["--n-tasks -2", "from 1 to"]),
    "tasks NaN": (["--n-tasks", "nan"], ["--n-tasks", "'nan'", "whole number"]),
    "learning rate 0": (["--lr", "0"], ["--lr 0", "(0, 100]"]),
    "learning rate negative": (["--lr", "-0.1"], ["--lr -0.1", "(0, 100]"]),
    "learning rate NaN": (["--lr", "nan"], ["--lr nan", "(0, 100]"]),
    "learning rate infinite": (["--lr", "inf"], ["--lr inf", "(0, 100]"]),
    "learning rate absurd": (["--lr", "1e30"], ["--lr 1e+30", "(0, 100]"]),
    "learning rate in words": (["--lr", "fast"], ["--lr", "'fast'", "number"]),
    "batch of 1": (["--batch-size", "1"], ["--batch-size 1", "from 2 to", "BatchNorm"]),
    "batch beyond the data": (["--batch-size", "500"], ["--batch-size 500", "24 training images"]),
    "negative seed": (["--seed", "-1"], ["--seed -1", "from 0 to"]),
    "seed with a point": (["--seed", "1.5"], ["--seed", "'1.5'", "whole number"]),
    "tail above 1": (["--imbalance", "2"], ["--imbalance 2", "(0, 1]"]),
    "tail NaN": (["--imbalance", "nan"], ["--imbalance nan", "(0, 1]"]),
    "all held out": (["--validation", "1"], ["--validation 1", "[0, 0.5]"]),
    "all dropped out": (["--dropout", "1"], ["--dropout 1", "[0, 1)"]),
    "MC without dropout": (["--score", "MC", "--dropout", "0"], ["--dropout 0", "give a rate above 0"]),
    "nothing refreshed": (["--refresh", "0"], ["--refresh 0", "(0, "]),
    "half a sample refreshed": (["--refresh", "1.5"], ["--refresh 1.5", "whole number"]),
    "pixels too few": (["--image-size", "8"], ["--image-size 8", "25"]),
    "pixels of another size": (["--image-size", "64"], ["--image-size 64", "28 pixels"]),
    "no threads": (["--threads", "0"], ["--threads", "0", "from 1 to"]),
    "threads in words": (["--threads", "all"], ["--threads", "all", "whole number"]),
    "torn .npz": (["--dataset", "torn.npz"], ["--dataset torn.npz", "can't be read", "give an .npz of plain"]),
    "foreign .npz": (["--dataset", "foreign.npz"], ["--dataset foreign.npz", "can't be read", "give an .npz of plain"]),
    "unlabelled .npz": (["--dataset", "unlabelled.npz"], ["--dataset unlabelled.npz", "has no train_labels", "give"]),
    "empty class folder": (["--dataset", "hollow"], ["--dataset hollow/no images", "without images", "give some"]),
    "unreadable image": (["--dataset", "spoilt"], ["spoilt/band 1/5.png", "remove it"]),
    "a GPU that is not there": (["--device", "cuda:63"], ["--device cuda:63", "is not here; choose from: auto, cpu"]),
    "unknown device": (["--device", "tpu"], ["--device tpu", "is not here; choose from: auto, cpu"]),
    "torn configuration": (["--config", "torn.json"], ["--config torn.json", "JSON"]),
    "binary configuration": (["--config", "binary.json"], ["--config binary.json", "JSON"]),
    "empty configuration": (["--config", "empty.json"], ["--config empty.json", "JSON"]),
    "configuration that is a number": (["--config", "number.json"], ["--config number.json", "give a JSON object"]),
    "record without a configuration": (["--config", "nested.json"], ["--config nested.json", "give a JSON object"]),
    "configuration without end": (["--config", "deep.json"], ["--config deep.json", "JSON"]),
    "unknown field": (["--config", "typo.json"], ["--config typo.json", "datset", "did you mean 'dataset'?"]),
    "wrong value of a field": (["--config", "value.json"], ["--config value.json", "lr", "fast", "(0, 100]"]),
    "two runs in a configuration": (["--config", "two.json"], ["--config two.json", "2 runs", "ucl sweep"]),
    "no such configuration": (["--config", "gone.json"], ["--config gone.json: no such file; give a JSON"]),
    "empty name of a store": (["--store", ""], ["--store '': is empty, as an unset shell variable is; give a path"]),
    "empty name of the data folder": (["--data", ""], ["--data '': is empty"]),
    "empty name of a configuration": (["--config", ""], ["--config '': is empty"]),
    "empty name of the curves' folder": (["--curves", ""], ["--curves '': is empty"]),
    "configuration that is a folder": (["--config", "folder"], ["--config folder", "directory"]),
    "store that is a file": (["--store", "a file"], ["--store a file", "not a folder", "give a folder"]),
    "store in a file": (["--store", "a file/records"], ["--store a file/records", "give another"]),
    "two seeds": (["--seed", "3", "--seed", "4"], ["ucl run: --seed has the values 3 and 4; give one of them; see"]),
    "on and off": (["--readings", "--no-readings"], ["run: --readings and --no-readings contradict each other; give"]),
    "two configurations": (
        ["--config", "gone.json", "--config", "two.json"],
        ["ucl run: --config has the values gone.json and two.json; give one of them"],
    ),
    "flag without a value": (["--lr"], ["--lr", "expected one argument"]),
    "unknown flag": (["--learning-rate", "0.1"], ["ucl run: unknown flag --learning-rate; see ucl run --help"]),
    "misspelt flag": (["--memry-size=8"], ["run: unknown flag --memry-size; did you mean --memory-size? see ucl run"]),
    "part of a flag": (["--published"], ["unknown flag --published; did you mean --published-code? see ucl run"]),
    "part of two flags": (["--view", "batch"], ["--view; did you mean --view-draws or --view-space? see"]),
    "a word too many": (["digits"], ["ucl run: digits is not expected here; see ucl run --help"]),
}
REFUSED = {
    "no command": ([], ["ucl: ", "run, ", "data"]),
    "unknown command": (["rum"], ["rum", "did you mean run?"]),
    "no action": (["data"], ["ucl data: ", "list, get, check"]),
    "unknown action": (["data", "lst"], ["lst", "did you mean list?"]),
    "no data set to check": (["data", "check"], ["ucl data check: ", "dataset"]),
    "unknown data set to check": (["data", "check", "digit"], ["data check: digit: ", "did you mean 'digits'?"]),
    "unknown data set to get": (["data", "get", "blodcell"], ["get: blodcell: unknown", "did you mean 'bloodcell'?"]),
    "unknown table": (["sweep", "tabel1"], ["ucl sweep: tabel1: unknown table; did you mean 'table1'?"]),
    "unknown notebook": (["reproduce", "claim"], ["ucl reproduce: claim: unknown", "did you mean 'claims'?"]),
    "unknown parameter": (["reproduce", "claims", "-p", "seed", "1"], ["ucl reproduce: -p seed: unknown parameter"]),
    "a seed out of range": (["sweep", "table4", "--seeds", "-1"], ["ucl sweep: --seeds -1: give a whole number"]),
    "a store without a name to sweep": (["sweep", "table4", "--store", ""], ["ucl sweep: --store '': is empty"]),
    "a store without a name to read": (["results", ""], ["ucl results: '': is empty, as an unset shell variable is"]),
    "two values of a field": (
        ["sweep", "table4", "--set", "lr", "1", "--set", "lr", "2"],
        ["--set lr has the values 1 a"],
    ),
    "two values of a parameter": (
        ["reproduce", "-p", "seeds", "1", "-p", "seeds", "2"],
        ["-p seeds has the values 1 a"],
    ),
    "a store without a name to look at": (["status", "table4", "--store", ""], ["ucl status: --store '': is empty"]),
    "a grid without a name": (["sweep", "--config", ""], ["ucl sweep: --config '': is empty"]),
    "an output without a name": (["reproduce", "claims", "--output", ""], ["ucl reproduce: --output '': is empty"]),
    "data sets to get into a folder without a name": (["data", "get", "digits", "--data", ""], ["--data '': is empty"]),
    "data sets to list in a folder without a name": (
        ["data", "list", "--data", ""],
        ["data list: --data '': is empty"],
    ),
    "no data folder to measure on": (["benchmark", "--data", ""], ["ucl benchmark: --data '': is empty"]),
    "an output without a name to measure for": (["benchmark", "--output", ""], ["benchmark: --output '': is empty"]),
    "a table without a name": (["results", "--output", ""], ["ucl results: --output '': is empty"]),
    "a flag for the store": (
        ["plot", "--store", "runs", "tasks"],
        ["ucl plot: --store: STORE has no flag; give ucl plot STORE PICTURE; see"],
    ),
    "a flag like no other": (["results", "--stre", "x"], ["ucl results: unknown flag --stre; see ucl results --help"]),
    "the folder of a user that is not here": (
        ["sweep", "table4", "--store", "~nobody-here/x"],
        ["sweep: --store ~nobody"],
    ),
    "a folder to measure for": (["benchmark", "--output", "folder"], ["--output folder: is a folder; give a file in"]),
    "a folder that is not there": (
        ["benchmark", "--output", "new/"],
        ["--output new/: is a folder; give a file in it"],
    ),
    "an output within a file": (
        ["benchmark", "--output", "a file/speed"],
        ["a file/speed: its folder can't be written to", "give"],
    ),
    "several unreadable images": (["data", "check", "spoilt often"], ["band 0/0.png", "remove it"]),
    "torn data set to check": (["data", "check", "digits", "torn.npz"], ["torn.npz", "give an .npz of plain"]),
    "a flag of another command": (["data", "list", "--seed", "1"], ["ucl data list: unknown flag --seed; see"]),
    "a flag before the command": (["--devise", "run"], ["ucl: unknown flag --devise; see ucl --help"]),
    "part of a flag of sweep": (["sweep", "no", "--thread", "1"], ["sweep: unknown flag --thread", "--threads?"]),
    "part of a flag of status": (["status", "no", "--seed", "1"], ["status: unknown flag --seed", "--seeds?"]),
    "part of a flag of reproduce": (["reproduce", "no", "--job", "1"], ["reproduce: unknown flag --job", "--jobs?"]),
    "part of a flag of benchmark": (["benchmark", "--repeat", "0"], ["benchmark: unknown flag --repeat", "--repeats?"]),
}


def assert_refused(code, err, words):
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("ucl") and "Traceback" not in line
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize("case", REFUSED_RUNS)
def test_a_run_that_can_not_be_is_refused_in_one_line_that_says_what_to_do(broken, cli, monkeypatch, case):
    typed, words = REFUSED_RUNS[case]
    monkeypatch.chdir(broken)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = files(broken)
    where = ["--store", "records", "--data", broken / "data"]
    code, out, err = cli("run", *([*where, *typed] if "--config" in typed else tiny(*typed, beside=where)))
    assert_refused(code, err, ["ucl", *words])
    assert out == "" and files(broken) == before


@pytest.mark.parametrize("case", REFUSED)
def test_other_commands_refuse_alike(broken, cli, monkeypatch, case):
    typed, words = REFUSED[case]
    monkeypatch.chdir(broken)
    monkeypatch.setenv("UCL_DATA", str(broken / "data"))
    before = files(broken)
    code, _, err = cli(*typed)
    assert_refused(code, err, words)
    assert files(broken) == before


@pytest.mark.parametrize(
    "typed",
    [
        ["run", *tiny("--n-tasks", "5")],
        ["run", *tiny("--n-tasks", "5"), "--store", "a/new/folder"],
        ["sweep", "table4", "--device", "tpu", "--store", "a/new/folder"],
        ["benchmark", "--memory-sizes", "0"],
        ["benchmark", "--memory-sizes", "0", "--output", "a/new/folder/speed"],
    ],
    ids=lambda typed: " ".join(typed[:1] + typed[-2:]),
)
def test_what_is_refused_leaves_no_folder_either(here, cli, typed):
    assert cli(*typed)[0] == 2
    assert list(here.iterdir()) == [here / "tiny.npz"]


def test_what_is_refused_leaves_the_folders_that_were_there(here, cli):
    (here / "a" / "folder").mkdir(parents=True)
    assert cli("run", *tiny("--n-tasks", "5"), "--store", "a/folder/of/records")[0] == 2
    assert list((here / "a").rglob("*")) == [here / "a" / "folder"]


def test_a_memory_beyond_the_data_takes_no_more_room_than_the_data(here, cli):
    assert cli("run", *tiny("--memory-size", str(10**7)), "--population", "reservoir")[0] == 0
    record = only_record(here / "runs")
    assert len(record.memory["position"]) == record.timing["batches"] * record.config.batch_size
    assert record.environment["peak_memory_mib"] < 4000


def test_a_process_that_refuses_ends_with_2_and_one_line(broken):
    done = process("run", *tiny("--memory-size", "0"), "--store", "records", cwd=broken)
    assert done.stdout == ""
    assert_refused(done.returncode, done.stderr, ["ucl run: --memory-size 0"])


# Other processes and too little memory


def test_a_run_that_another_process_is_measuring_is_left_to_it(here, cli, monkeypatch):
    (here / "runs").mkdir()
    lock, measured, free = locks.path_of(here / "runs", TINY_CONFIG), one_run.run, []
    with locks.held(lock):
        code, out, err = cli("run", *TINY)
    assert_refused(code, err, ["ucl run: --store runs: another process is measuring this run", "give another folder"])
    assert out == "" and not list((here / "runs").iterdir())
    monkeypatch.setattr(one_run, "run", lambda *args, **how: free.append(locks.is_free(lock)) or measured(*args, **how))
    assert cli("run", *TINY)[0] == 0
    assert free == [False] and only_record(here / "runs").config == TINY_CONFIG


def test_a_run_that_another_process_stores_meanwhile_is_not_repeated(here, cli, monkeypatch):
    held = locks.held

    def stored_meanwhile(path):
        monkeypatch.setattr(locks, "held", held)
        assert main(["run", *TINY]) == 0
        monkeypatch.setattr(one_run, "run", lambda *_, **__: pytest.fail("the run is repeated"))
        return held(path)

    monkeypatch.setattr(locks, "held", stored_meanwhile)
    code, out, err = cli("run", *TINY, "--curves", "curves")
    assert (code, err) == (0, "")
    again = out[out.index("already measured on") :].splitlines()
    path = RecordStore("runs").path(TINY_CONFIG)
    assert again[-1] == str(path) and [file.stem for file in (here / "curves").iterdir()] == [path.stem]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 9 GiB for an array"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_little_memory_is_a_failure_in_one_line(here, cli, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(one_run, "run", fail)
    code, out, err = cli("run", *TINY)
    assert (code, out, err) == (1, "", f"ucl run: out of memory: {type(error).__name__}: {error}\n")


def test_a_fault_of_ours_keeps_its_traceback(here, cli, monkeypatch):
    monkeypatch.setattr(one_run, "run", lambda *_, **__: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):
        cli("run", *TINY)


# Damaged records


def test_a_damaged_record_is_named_and_left_alone_where_its_run_is_asked_for(here, cli):
    assert cli("run", *TINY, "--method", "finetune")[0] == 0
    (path,) = (here / "runs").iterdir()
    path.write_bytes(path.read_bytes()[:200])
    before = files(here)
    code, _, err = cli("run", "--dataset", "tiny.npz", "--n-tasks", "2", "--batch-size", "8", "--method", "finetune")
    assert_refused(code, err, [path.name, "can't be read", "delete"])
    assert "--record" not in err  # This command has no such flag.
    assert files(here) == before


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_damaged_record_is_named_and_left_alone_where_all_are_read(here, cli):
    assert cli("run", *TINY, "--method", "finetune")[0] == 0
    (whole,) = (here / "runs").iterdir()
    torn = here / "runs" / "torn.json"
    torn.write_bytes(whole.read_bytes()[:200])
    before = files(here)
    fields = {"dataset": "tiny.npz", "n_tasks": 2, "batch_size": 8, "method": "finetune"}
    (here / "grid.json").write_text(json.dumps([fields, {**fields, "seed": 1}]))
    code, out, err = cli("status", "--config", "grid.json", "--store", "runs", "--device", "cpu")
    (line,) = err.splitlines()
    assert line.startswith("ucl: ") and "torn.json" in line and "skipped" in line
    assert code == 1 and "1 of 2" in out  # One run is measured, and one is missing.
    assert {path: content for path, content in files(here).items() if path.name != "grid.json"} == before


# A network that fails


def test_a_learning_rate_that_breaks_the_network_is_a_result_with_a_warning(here, cli):
    """The run, the sweep, its status and the table keep such a result, and do not average it."""
    fields = dict(validation=0.5, imbalance=0.2, memory_size=10, population="reservoir")
    broken, well = Config(**fields, lr=100.0), Config(**fields, method="finetune")
    flags = [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", value)]
    arguments = ["run", *flags, "--lr", "100", "--device", "cpu"]
    code, out, err = cli(*arguments)
    assert (code, err) == (0, "")
    assert "no last accuracy: the network diverged" in out and "F" not in out and "nan" not in out
    warning = "the network diverged during task 1 of 5: its weights or statistics are NaN or infinite"
    assert f"warning: {warning}" in out and "give an lr below 100" in out
    record = only_record(here / "runs")
    assert record.diverged_after == 0 and record.config == broken
    again = cli(*arguments)
    assert again[0] == 0 and warning in again[1] and "already measured" in again[1]

    (here / "grid.json").write_text(json.dumps([json.loads(c.to_json()) for c in (broken, well)]))
    sweep = cli("sweep", "--config", "grid.json", "--device", "cpu")
    assert sweep[0] == 0 and "all 2 runs are in runs; 1 diverged" in sweep[1]
    status = cli("status", "--config", "grid.json", "--device", "cpu")
    assert status[0] == 0 and re.search(r"ER +1 of 1 +1 diverged\n", status[1])

    records = ucl.load_records("runs").set_index("label")
    assert records.loc["ER", "diverged_after"] == 0 and not records.loc["ER", "collapsed"]
    table = ucl.results(ucl.load_records("runs")).set_index("label")
    assert table["n"].to_dict() == {"ER": 0, "Finetune": 1}
    assert table["left_out"].to_dict() == {"ER": "1 diverged", "Finetune": ""}
