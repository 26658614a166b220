"""Checkpoints: a stopped run continues after its last complete task, to the same record, or starts again."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
import types
import zipfile
from functools import cache, partial

import numpy as np
import pytest
import torch

import ucl
from ucl import Config, InputError, RecordStore
from ucl.buffers import Buffer
from ucl.evaluation import Evaluation
from ucl.evidence.paper import PUBLISHED_CODE
from ucl.machine import checkpoints, own_state, states
from ucl.methods import Method
from ucl.models import MODELS, SlimResNet18
from ucl.run_checkpoint import RunCheckpoint
from ucl.sweeps.one_run import Options, measure

WAYS = {
    "BI": dict(),
    "BI, views of the reference implementation, readings": dict(**PUBLISHED_CODE, readings=True),
    "EN, refresh=2": dict(score="EN", refresh=2, selection="step"),
    "MC": dict(score="MC"),
    "controls": dict(score="EN", n_draws=2, smoothing=0.5, updates=2, view_draws="fixed", model="slim_resnet18"),
    "own, random": dict(score="ucl.scorers:uniform"),
    "ER": dict(population="reservoir", dropout=0.3),
    "CBR": dict(population="class-balanced"),
    "redraw": dict(population="class-balanced", class_balancing="redraw"),
    "A-GEM": dict(method="agem"),
    "Finetune": dict(method="finetune"),
    "gradual, BI, anytime": dict(boundaries="gradual", evaluate_every=1),
    "blurry, CBR, dropout, anytime": dict(
        boundaries="blurry", blur=0.5, population="class-balanced", dropout=0.3, evaluate_every=2
    ),
    "ER-ACE": dict(method="er-ace"),
    "MIR, augmented": dict(method="mir", augmentation="randaugment", updates=2),
    "MIR as commonly implemented": dict(method="mir", scoring_batchnorm="train"),
    "Joint": dict(method="joint"),
    "DER++, Rainbow": dict(method="derpp", population="rainbow"),
    "LARS": dict(population="loss-aware"),
    "MoF": dict(population="closest-to-mean"),
    "Herding": dict(population="herding"),
    "GSS": dict(population="gss"),
    "MOE": dict(population="homogeneous"),
    "OCS": dict(population="coreset"),
}


class Killed(BaseException):
    """An exception that is not an Exception, so that no error handling catches it."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Nine batches of five in three tasks; the memory is full after two."""
    draw = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 48), ("test", 18), ("val", 12)):
        labels = np.arange(n) % 6
        images = draw.integers(0, 150, (n, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4 * label : 4 * label + 6] += 100
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    path = tmp_path_factory.mktemp("data") / "bands.npz"
    np.savez(path, **arrays)
    return Config(dataset=str(path), n_tasks=3, memory_size=9, batch_size=5, lr=0.05, seed=2, validation=0.0)


@pytest.fixture(autouse=True)
def little_to_compute(monkeypatch, shallow):
    """Reduce the computation of a run without leaving out any part of it."""
    monkeypatch.setitem(MODELS, "slim_resnet18", partial(SlimResNet18, width=8))
    monkeypatch.setattr(ucl.running_statistics, "BATCHES", 1)
    for module in (ucl.assembly, ucl.evaluation):
        monkeypatch.setattr(module, "DROPOUT_PASSES", 3)


run = partial(ucl.run, device="cpu", progress=False)


@cache
def undisturbed(config):
    return run(config)


@pytest.fixture
def moments(monkeypatch):
    """Calls a function at each moment of a run: steps, updates, tests, and three moments of writing a checkpoint."""
    calls = []

    def before(owner, name):
        original = getattr(owner, name)

        def call(*arguments, **named):
            calls[-1]()
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    for owner in (*Method.__subclasses__(), *Buffer.__subclasses__()):
        before(owner, "learn" if issubclass(owner, Method) else "update")
    before(Evaluation, "add")
    for name in ("fsync", "replace"):
        before(checkpoints.os, name)
    before(np, "savez")
    return calls.append


def in_n_moments(n):
    """A function that raises when it is called for the n-th time."""
    left = [n]

    def moment():
        left[0] -= 1
        if not left[0]:
            raise Killed

    return moment


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_stops_after_each_task_ends_as_if_it_had_never_stopped(base, way, tmp_path, monkeypatch):
    config, checkpoint, save = base.replace(**WAYS[way]), tmp_path / "checkpoint.npz", RunCheckpoint.save
    whole = run(config)

    def save_and_stop(own, task):
        save(own, task)
        if checkpoint.exists() and task.number < 2:
            raise Killed

    monkeypatch.setattr(RunCheckpoint, "save", save_and_stop)
    for seed in range(2):
        torch.manual_seed(seed)  # The result must not depend on the caller's draws.
        with pytest.raises(Killed):
            run(config, checkpoint=checkpoint)
    again = run(config, checkpoint=checkpoint)
    assert json.dumps(again.results) == json.dumps(whole.results)
    assert again.timing["batches"] == whole.timing["batches"] == 9


@pytest.mark.parametrize(
    "way", ["BI, views of the reference implementation, readings", "gradual, BI, anytime", "MIR, augmented"]
)
def test_a_run_killed_at_ten_random_moments_ends_as_if_it_had_never_stopped(base, way, tmp_path, moments):
    config, counted = base.replace(**WAYS[way]), []
    moments(lambda: counted.append(1))
    whole = run(config, checkpoint=tmp_path / "another.npz")
    checkpoint = tmp_path / "checkpoint.npz"
    draw, kills, gone_on = random.Random(way), 0, 0
    while kills < 10:
        moments(in_n_moments(draw.randint(1, 3 * len(counted) // 4)))
        gone_on += checkpoint.exists()
        try:
            again = run(config, checkpoint=checkpoint)
        except Killed:
            kills += 1
        else:
            assert again.results == whole.results
            checkpoint.unlink()
    moments(lambda: None)
    torch.manual_seed(draw.randint(0, 1000))  # The result must not depend on the caller's draws.
    again = run(config, checkpoint=checkpoint)
    assert json.dumps(again.results) == json.dumps(whole.results)
    assert again.timing["batches"] == whole.timing["batches"] == 9
    assert gone_on > 2


def test_runs_killed_by_the_system_at_ten_random_moments_leave_the_record_of_one_that_was_not(er, tmp_path):
    store = RecordStore(tmp_path)
    whole, checkpoint = None, checkpoints.path_of(tmp_path, er)
    own = multiprocessing.get_context("forkserver")  # A fork of a process that has trained could not train.
    own.set_forkserver_preload(["ucl.experiment", measure.__module__])
    draw, lock = random.Random(5), tmp_path / f".lock-{er.key}"
    killed, gone_on, finished = 0, 0, False
    while killed < 10 or not finished:
        gone_on += checkpoint.exists()
        lock.unlink(missing_ok=True)  # A killed child leaves its lock.
        child = own.Process(target=measure, args=(store, "cpu", None, 1, False, er, str(random.random())))
        child.start()
        if whole and killed < 10:
            while child.is_alive() and not lock.exists():  # The run has not begun.
                time.sleep(0.01)
            child.join(draw.uniform(0, whole.timing["total"]))
            child.kill()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        killed += child.exitcode != 0
        finished = er in store
        if finished:
            whole = whole or store.load(er)
            assert store.load(er).results == whole.results
            store.path(er).unlink()
            if checkpoint.exists():  # It was killed between the record and the removal of the checkpoint.
                checkpoint.unlink()
        else:
            assert child.exitcode != 0
    assert gone_on > 2
    names = [path.name for path in tmp_path.iterdir()]
    assert [name for name in names if not name.endswith(".part") and not name.startswith(".lock")] == []


def stopped(config, path, moments, after=13):
    """A run that was stopped in its second task, with a checkpoint of the first."""
    moments(in_n_moments(after))
    with pytest.raises(Killed):
        run(config, checkpoint=path)
    moments(lambda: None)
    assert path.exists()


@pytest.fixture
def er(base):
    return base.replace(population="reservoir")


def test_what_was_learnt_is_not_learnt_again_and_its_time_counts(er, tmp_path, moments, caplog):
    path = tmp_path / "checkpoint.npz"
    moments(in_n_moments(14))
    slow = ucl.methods.ExperienceReplay.learn

    def learn(*arguments):
        time.sleep(0.05)
        return slow(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ucl.methods.ExperienceReplay, "learn", learn)
        run(er, checkpoint=path)
    steps = []
    moments(lambda: steps.append(sys._getframe(1).f_code))
    with caplog.at_level("INFO", "ucl"):
        again = run(er, checkpoint=path)
    assert caplog.messages == ["continued after 1 of 3 tasks, from the checkpoint of a stopped run"]
    assert again.timing["batches"] == 9
    assert again.timing["training"] > 3 * 0.05  # The time of three slow steps was retained.
    parts = [again.timing[part] for part in ("training", "memory", "evaluation")]
    assert sum(parts) <= again.timing["total"] + 0.002
    assert len(steps) == 2 * 6 + 2 + 3  # Two tasks of three steps and updates, two tests, one checkpoint.


def test_a_run_without_a_checkpoint_writes_none(er, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(er)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_small_and_holds_no_images_and_no_pickle(base, tmp_path, moments):
    path = tmp_path / "checkpoint.npz"
    stopped(base, path, moments)
    with np.load(path, allow_pickle=False) as arrays:
        weights = sum(arrays[name].nbytes for name in arrays if name.startswith("/model/"))
        others = sum(arrays[name].nbytes for name in arrays if not name.startswith("/model/"))
    assert others < 30_000 < weights < path.stat().st_size < weights + 100_000


def test_buffers_of_a_network_that_are_not_persistent_are_kept():
    one, other = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    for network, value in ((one, 3.0), (other, 0.0)):
        network.register_buffer("steps", torch.full((2,), value), persistent=False)
    states.restore(other, states.state_of(one))
    assert torch.equal(other.steps, one.steps)


def test_a_tensor_of_another_gpu_is_restored_on_the_device_of_the_run(base, tmp_path, moments):
    def of_another_gpu(values):
        return {**states.tensor_state(values), "device": "cuda:1"}

    config, path = base.replace(method="derpp", population="reservoir"), tmp_path / "checkpoint.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ucl.buffers.buffer.tensor_state", of_another_gpu)
        stopped(config, path, moments)
    assert run(config, checkpoint=path).results == undisturbed(config).results
    part = types.SimpleNamespace(a=torch.ones(2), b=torch.ones(2))
    added = states.attributes(part, ())
    added["a"]["value"]["device"] = "cuda:1"
    states.restore_attributes(part, states.with_device(added, torch.device("meta")))
    assert (part.a.device.type, part.b.device.type) == ("meta", "cpu")


def test_what_a_layer_names_twice_or_cannot_be_pickled_is_no_change_of_the_network():
    class Layer(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.all, self.first, self.call, self.act = [self], self.weight, self.forward, lambda x: x

    layer = Layer()
    at_start = own_state.form_of_network(layer)
    with torch.no_grad():
        layer.weight.add_(1)
    layer.eval()
    own_state.check_network(layer, at_start)
    for value in (torch.ones(1), torch.zeros(1), {1, 2}, "text"):
        layer.kept = value
        with pytest.raises(checkpoints.Unsaved, match="kept changes during the run"):
            own_state.check_network(layer, at_start)
        at_start = own_state.form_of_network(layer)


# Not of this run


CHANGES = {
    "torch": lambda patch, config: patch.setattr(torch, "__version__", "1.13.0"),
    "ucl": lambda patch, config: patch.setattr(ucl.machine.hardware, "__version__", "9.9"),
    "source of ucl": lambda patch, config: patch.setattr("ucl.experiment.package_hash", lambda: "0123"),
    "threads": lambda patch, config: patch.setattr(torch, "get_num_threads", lambda: 77),
    "processor": lambda patch, config: patch.setattr(ucl.machine.hardware, "_processor_name", lambda: "another"),
    "data": lambda patch, config: patch.setattr(ucl.datasets.ImageDataset, "fingerprint", "0123"),
    "experiment": lambda patch, config: config.replace(lr=0.06),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_checkpoint_of_another_run_is_ignored_with_a_line_that_says_what_differs(er, what, tmp_path, moments):
    path = tmp_path / "checkpoint.npz"
    stopped(er, path, moments)
    with pytest.MonkeyPatch.context() as patch, pytest.warns(UserWarning) as reported:
        config = CHANGES[what](patch, er) or er
        record = run(config, checkpoint=path)
    (line,) = {str(warning.message) for warning in reported}
    assert str(path) in line and f"is of another run ({what} " in line and "starts again" in line and "\n" not in line
    if config == er and what != "threads":  # Results depend on the number of threads.
        assert record.results == undisturbed(er).results


def test_a_run_goes_on_after_a_commit_that_changes_no_file_of_the_package(er, tmp_path, moments, monkeypatch, caplog):
    path = tmp_path / "checkpoint.npz"
    stopped(er, path, moments)
    monkeypatch.setattr(ucl.machine.hardware, "commit", lambda: "f00")
    with caplog.at_level("INFO", "ucl"):
        again = run(er, checkpoint=path)
    assert caplog.messages == ["continued after 1 of 3 tasks, from the checkpoint of a stopped run"]
    assert again.results == undisturbed(er).results and again.environment["commit"] == "f00"


def test_a_checkpoint_of_a_score_that_was_edited_is_ignored(base, tmp_path, monkeypatch, moments):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file, path = tmp_path / "edited_score.py", tmp_path / "checkpoint.npz"
    file.write_text("def score(logits_PNC):\n    return logits_PNC.double().std(0).mean(-1)\n")
    config = base.replace(score="edited_score:score")
    stopped(config, path, moments)
    file.write_text(file.read_text() + "# another\n")
    with pytest.warns(UserWarning, match="is of another run"):
        run(config, checkpoint=path)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text", "other arrays", "a list", "folder"])
def test_a_damaged_checkpoint_is_ignored_with_a_line(er, damage, tmp_path, moments):
    path = tmp_path / "checkpoint.npz"
    stopped(er, path, moments)
    whole = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage in ("other arrays", "a list"):
        text = json.dumps(
            [1] if damage == "a list" else {"format": 1, "run": {}, "state": {"x": {checkpoints._ARRAY: "y"}}}
        )
        np.savez(path, json=np.frombuffer(text.encode(), np.uint8))
    else:
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        path.write_bytes({"empty": b"", "cut": whole[:-1000], "flipped": bytes(flipped), "text": b"{}"}[damage])
    with pytest.warns(UserWarning) as reported:
        record = run(er, checkpoint=path)
    lines = [str(warning.message) for warning in reported]
    assert f"{path}: the checkpoint can't be read" in lines[0] and "starts again" in lines[0] and "\n" not in lines[0]
    assert record.results == undisturbed(er).results


@pytest.mark.filterwarnings("ignore")
def test_no_bit_of_a_checkpoint_can_change_a_result_in_silence(er, tmp_path, moments):
    """A damaged file is either read as it was written or ignored."""
    path = tmp_path / "checkpoint.npz"
    stopped(er, path, moments)
    whole, draw = path.read_bytes(), random.Random(1)
    with np.load(path) as arrays:
        of = json.loads(arrays["json"].tobytes())["run"]
    as_written = repr(checkpoints.load(path, of))
    with zipfile.ZipFile(path) as archive:
        directory = archive.start_dir
    for n in range(60):
        flipped = bytearray(whole)
        at = draw.randrange(directory, len(whole)) if n % 2 else draw.randrange(len(whole))
        flipped[at] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        found = checkpoints.load(path, of)
        assert found is None or repr(found) == as_written


# Files that come and go


def test_a_failed_run_keeps_its_checkpoint_and_goes_on_before_the_failure(er, tmp_path, moments, monkeypatch):
    store, options = RecordStore(tmp_path), Options(str(tmp_path), "cpu", None, None, False, None)
    checkpoint = checkpoints.path_of(tmp_path, er)
    steps = []

    def fail():
        steps.append(1)
        if len(steps) == 14:
            raise InputError("lr", 0.05, "a failure in the second task")

    moments(fail)
    assert measure(options, er).error.endswith("second task")
    assert checkpoint.exists()
    moments(lambda: None)
    assert measure(options, er).state == "measured"
    assert not checkpoint.exists()
    assert store.load(er).results == undisturbed(er).results


def test_a_sweep_removes_checkpoints_with_a_later_record_and_leaves_the_others(er, tmp_path):
    older, without, newer = (er.replace(seed=seed) for seed in (er.seed, 7, 8))
    ucl.sweep([older, newer], tmp_path, device="cpu", progress=False)
    for config, seconds in ((older, -60), (without, -60), (newer, 60)):  # The newer one is of changed images.
        path = checkpoints.path_of(tmp_path, config)
        path.write_bytes(b"")
        os.utime(path, (time.time() + seconds,) * 2)
    ucl.sweep([older, newer, er.replace(method="finetune")], tmp_path, device="cpu", progress=False)
    left = {path.name for path in tmp_path.glob(".checkpoint-*")}
    assert left == {checkpoints.path_of(tmp_path, config).name for config in (without, newer)}


def test_a_checkpoint_that_can_not_be_written_is_a_warning_and_the_run_goes_on(er, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", full)
    with pytest.warns(UserWarning, match="can't be written .No space left on device."):
        record = run(er, checkpoint=tmp_path / "checkpoint.npz")
    assert record.results == undisturbed(er).results
    assert list(tmp_path.iterdir()) == []


def test_the_command_goes_on_by_itself(er, tmp_path, monkeypatch, moments, capsys):
    from ucl.cli.main import main

    store = tmp_path / "runs"
    path = tmp_path / "run.json"
    path.write_text(er.to_json())
    arguments = ["run", "--config", str(path), "--store", str(store), "--device", "cpu"]
    moments(in_n_moments(20))
    with pytest.raises(Killed):
        main(arguments)
    assert checkpoints.path_of(store, er).exists()
    steps = []
    moments(lambda: steps.append(1))
    assert main(arguments) == 0
    assert len(steps) < 20
    assert RecordStore(store).load(er).results == undisturbed(er).results
    assert [name for name in os.listdir(store) if name.startswith(".checkpoint")] == []


@pytest.mark.parametrize("state", [{0: 3}, {"a": {1: "b"}}, {"a": np.array([None])}, {"a": {1, 2}}])
def test_a_state_that_would_come_back_otherwise_is_refused(tmp_path, state):
    with pytest.raises(checkpoints.Unsaved, match="something else than arrays and JSON values"):
        checkpoints.save(tmp_path / "x", {}, state)
    assert not (tmp_path / "x").exists()
