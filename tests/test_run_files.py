"""Networks and predictions that a run leaves: they are those of its tests, of its own record, and of every task."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import parts, refused, run
from test_checkpoints import stop

import ucl
from ucl import InputError, RecordStore
from ucl.evaluation import Evaluation
from ucl.evaluation.accuracy import predictions
from ucl.methods import ExperienceReplay
from ucl.records.predictions import confusion

pytestmark = pytest.mark.usefixtures("small_networks")
FILES = {"weights": "networks", "predictions": "answers"}


@pytest.fixture(scope="module")
def measured(tiny, tmp_path_factory):
    """The record of a run with both kinds of files, as a store reads it."""
    folder = tmp_path_factory.mktemp("measured")
    store = RecordStore(folder / "runs")
    tiny = tiny.replace(batch_size=3)
    store.save(ucl.run(tiny, device="cpu", **{kind: folder / name for kind, name in FILES.items()}))
    return store.lookup(tiny).record


def stream_of(record):
    return parts(record.config).stream


CHANGED = [{"test_batchnorm": "memory", "class_order": "size"}, {"model": "own_objects:Grouped"}, {"dropout": 0.3}]


@pytest.mark.parametrize("fields", CHANGED, ids=", ".join)
def test_a_loaded_network_has_the_accuracies_of_the_record_after_each_task(tiny, tmp_path, fields):
    record = ucl.run(tiny.replace(batch_size=3, **fields), device="cpu", weights=tmp_path)
    stream, state = stream_of(record), torch.get_rng_state()
    tests = Evaluation(stream, record.config.seed)
    for number in range(2):
        network = ucl.models.load(record, number)
        assert not network.training and network.classes == record.classes
        tests.add(network, number)
        for task in stream.tasks[: number + 1] if "dropout" not in fields else []:
            for images in (task.test_images, task.test_images / 255):
                answers = network(images).argmax(1)
                assert (answers == task.test_labels).double().mean() == record.accuracy[number, task.number]
    np.testing.assert_array_equal(tests.accuracy, record.accuracy)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("change", [lambda x: 255.0 * x, lambda x: 4 * x - 2, lambda x: x[..., 1:], lambda x: x[0]])
def test_a_loaded_network_refuses_images_of_another_range_or_size(measured, change):
    network, images = ucl.models.load(measured), stream_of(measured).tasks[0].test_images / 255
    network(images)
    with pytest.raises(InputError):
        network(change(images))


def test_the_confusion_and_the_predictions_are_those_of_the_tests(measured):
    tasks, counts = stream_of(measured).tasks, confusion(measured)
    for number, count in enumerate(counts):
        seen = [task.classes for task in tasks[: number + 1]]
        right = [np.diagonal(count)[list(classes)].sum() / count[list(classes)].sum() for classes in seen]
        np.testing.assert_array_equal(right, measured.accuracy[number, : number + 1])
        assert count.sum() == sum(len(task.test_labels) for task in tasks[: number + 1])
    with np.load(measured.files["predictions"]) as file:
        assert file["labels"].tolist() == [int(label) for task in tasks for label in task.test_labels]
        data = ucl.datasets.load(measured.config.dataset)
        np.testing.assert_array_equal(data.test_labels[file["positions"]], file["labels"])
        assert len(set(file["positions"].tolist())) == len(file["labels"])
        assert file["classes"].tolist() == measured.classes
        network = ucl.models.load(measured)
        expected = [predictions(network, task.test_images) for task in tasks]
        np.testing.assert_array_equal(file["predictions"][-1], np.concatenate(expected))
        np.testing.assert_array_equal(file["predictions"][0] == -1, file["tasks"] > 0)


def test_files_of_a_run_that_tests_the_current_task_are_those_of_its_record(tiny, tmp_path):
    config = tiny.replace(n_tasks=None, tasks="0|3|1,2", batch_size=5, evaluate_tasks="current")
    record = ucl.run(config, device="cpu", weights=tmp_path, predictions=tmp_path)
    counts = confusion(record)  # It compares the predictions with the record's recalls.
    assert [count.sum(1).nonzero()[0].tolist() for count in counts] == [[0], [3], [0, 1, 2, 3]]
    network = ucl.models.load(record, 1)
    assert (network(stream_of(record).tasks[1].test_images).argmax(1) == 3).double().mean() == record.accuracy[1, 1]


def test_a_folder_of_records_and_their_files_can_be_moved(measured, tmp_path):
    shutil.copytree(Path(measured.files["weights"]).parents[1], tmp_path / "moved")
    (record,) = RecordStore(tmp_path / "moved" / "runs")
    assert all(Path(path).is_relative_to(tmp_path / "moved") for path in record.files.values())
    assert ucl.models.load(record).classes == record.classes
    np.testing.assert_array_equal(confusion(record), confusion(measured))


REFUSED = {
    "a record without files": lambda r, other: {"files": {}},
    "files of another seed": lambda r, other: {"files": other.files},
    "files of another machine": lambda r, other: {"accuracy": r.accuracy / 2, "class_recall": r.class_recall / 2},
    "no such file": lambda r, other: {"files": dict.fromkeys(r.files, "none.npz")},
    "a record as the file": lambda r, other: {"files": dict.fromkeys(r.files, __file__)},
}


@pytest.fixture(scope="module")
def other(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    return ucl.run(tiny.replace(seed=1), device="cpu", weights=folder, predictions=folder)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("read", [ucl.models.load, confusion])
def test_files_that_are_not_of_the_record_are_refused(measured, other, name, read):
    with pytest.raises(InputError) as refusal:
        read(replace(measured, **REFUSED[name](measured, other)))
    assert refusal.value.name in (*FILES, "record", "records") and "\n" not in str(refusal.value)


def test_a_network_of_another_task_or_format_is_refused(measured, tmp_path):
    shutil.copytree(measured.files["weights"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "task0.pt").replace(tmp_path / "task1.pt")
    record = replace(measured, files={"weights": str(tmp_path)})
    for source in ((record,), (record, 0), (record, 2), (__file__,)):
        with refused("weights"):
            ucl.models.load(*source)


def test_a_network_whose_source_has_changed_is_loaded_with_a_warning(here):
    source = "from own_objects import Grouped\n\ndef net(n, c, size):\n    return Grouped(n, c, size)\n"
    Path("mine.py").write_text(source)
    config = ucl.Config(dataset="tiny.npz", n_tasks=2, memory_size=8, population="reservoir", model="mine:net")
    record = ucl.run(config, device="cpu", weights="networks")
    ucl.models.load(record)
    Path("mine.py").write_text(source + "# changed\n")
    with pytest.warns(UserWarning, match="mine:net"):
        ucl.models.load(record)


class Head(torch.nn.Linear):
    pass


class Replacing(ExperienceReplay):
    def __init__(self, model, *arguments, **named):
        super().__init__(model, *arguments, **named)
        model.linear = Head(model.linear.in_features, model.linear.out_features)


def test_a_network_of_which_a_method_has_replaced_a_layer_is_not_loaded_without_it(tiny, tmp_path):
    record = ucl.run(tiny.replace(method=f"{__name__}:Replacing"), device="cpu", weights=tmp_path)
    with refused("weights"):
        ucl.models.load(record)


def test_a_run_that_was_killed_after_a_task_leaves_the_files_of_all_tasks(measured, tmp_path):
    """Also if it was killed with other files: then it starts again."""
    path = tmp_path / "state.pt"
    stop(measured.config, path, weights=tmp_path, predictions=tmp_path)
    record = run(measured.config, checkpoint=path, weights=tmp_path, predictions=tmp_path)
    np.testing.assert_array_equal(confusion(record), confusion(measured))
    assert [file.name for file in sorted(Path(record.files["weights"]).iterdir())] == ["task0.pt", "task1.pt"]
    with pytest.warns(UserWarning, match="weights"):
        elsewhere = run(measured.config, checkpoint=path, weights=tmp_path / "elsewhere", predictions=tmp_path)
    assert ucl.models.load(elsewhere, 0) and elsewhere.results == measured.results


def test_files_change_no_result_also_if_they_can_not_be_written(measured, tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning) as reported:
        record = ucl.run(measured.config, device="cpu", weights=tmp_path / "file", predictions=tmp_path / "file")
    assert (len(reported), record.files) == (2, {}) and record.results == measured.results


def test_the_commands_leave_the_files_and_say_which_records_have_none(here, cli):
    Path("grid.yaml").write_text("dataset: tiny.npz\nn_tasks: 2\nmemory_size: 8\npopulation: reservoir\nseed: [0, 1]\n")
    flags = [part for kind, folder in FILES.items() for part in (f"--{kind}", folder)]
    run = ["--dataset", "tiny.npz", "--n-tasks", "2", "--memory-size", "8", "--population", "reservoir"]
    warnings.simplefilter("always")  # pytest restores its own
    assert cli("run", *run, "--device", "cpu")[0] == 0
    code, _, err = cli("run", *run, "--device", "cpu", *flags)
    assert code == 0 and err.count("\n") == 2
    code, _, err = cli("sweep", "--config", "grid.yaml", "--device", "cpu", *flags)
    assert code == 0 and [kind for kind in FILES if "-s0-" in err and kind in err] == list(FILES)
    without, record = RecordStore("runs")
    assert without.files == {} and len(ucl.models.load(record).classes) == confusion(record).shape[1] == 4
