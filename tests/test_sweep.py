"""Sweeps: each experiment runs once, whatever is killed, with any number of processes on one store."""

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import types
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import torch

import ucl
from ucl import Config, InputError, RecordStore
from ucl.cli.main import main
from ucl.config import unique
from ucl.machine.terminal import duration
from ucl.records import failures
from ucl.reproduction.session import open_session
from ucl.sweeps import locks, workers
from ucl.sweeps.grid import shard
from ucl.sweeps.progress import SweepProgress, cost_class, labels, run_name
from ucl.sweeps.status import status
from ucl.sweeps.sweep import SweepError, sweep
from ucl.sweeps.workers import Outcome, WorkerProcesses, dask_executor

pytestmark = pytest.mark.usefixtures("small_networks")
KILLS = int(os.environ.get("UCL_KILLS", "2"))  # number of kills in the tests below; more kills hit rarer moments
SWEEP = {"device": "cpu", "progress": False, "threads": 1}

# The score counts its calls in a file, which shows how much all processes together have measured. If PAUSE is set, the
# score is slow, so that a run lasts long enough to be killed. The network takes no time.
COUNTED = """
import os, time
from torch import nn
from ucl.scorers import bregman_information

def score(logits):
    with open(os.environ["CALLS"], "a") as file:
        file.write("x")
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return bregman_information(logits)

def network(n_classes, channels, image_size):
    layers = nn.Conv2d(channels, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(128, n_classes))

def sleeps(logits):
    time.sleep(300)

def fails(logits):
    raise ZeroDivisionError("no views,\\n no score")

def kills_its_process(logits):
    with open(os.environ["CALLS"], "a") as file:
        file.write("x")
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the module `counted`."""
    path = tmp_path_factory.mktemp("sweep")
    (path / "counted.py").write_text(COUNTED)
    return path


@pytest.fixture(autouse=True)
def calls(folder, tmp_path, monkeypatch):
    """Make the module `counted` importable in every process, and count the calls of its score."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(ucl.__file__).parents[1])]))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    (tmp_path / "calls").touch()
    return lambda: (tmp_path / "calls").stat().st_size


def counted(config, seeds):
    fields = {"population": "uncertainty", "score": "counted:score", "model": "counted:network"}
    return [config.replace(**fields, seed=seed) for seed in seeds]


@pytest.fixture(scope="module")
def undisturbed(tiny, folder):
    """The results of each undisturbed run, and the number of calls of the counted score in one run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALLS", str(folder / "calls"))
        patch.syspath_prepend(folder)
        records = sweep(counted(tiny, range(4)), folder / "undisturbed", **SWEEP)
    calls = (folder / "calls").stat().st_size
    assert calls and calls % 4 == 0
    return results(records), calls // 4


def results(records):
    return {record.config.key: record.results for record in records}


def holders(store):
    """The processes that are measuring a run now, which are those that hold a lock."""
    files = set()
    for path in Path(store).glob(".lock-*"):
        with suppress(OSError):
            files.add(path.stat().st_ino)
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(pid) for _, kind, _, _, pid, file, *_ in held if kind == "FLOCK" and int(file.split(":")[2]) in files}


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return found


class Counting(Executor):
    """An executor that runs in this process and records what was submitted."""

    def __init__(self):
        self.submitted = []

    def submit(self, function, /, *arguments):
        self.submitted += [argument.key for argument in arguments if isinstance(argument, Config)]
        future = Future()
        future.set_result(function(*arguments))
        return future


# What is run


def test_what_the_store_lacks_is_run_and_no_more(tiny, tmp_path):
    configs = [tiny.replace(seed=seed) for seed in range(3)]
    first, second, third = Counting(), Counting(), Counting()
    assert [r.config for r in sweep(configs[1:2], tmp_path / "runs", first, **SWEEP)] == configs[1:2]
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    records = sweep(configs, tmp_path / "runs", second, **SWEEP)
    again = sweep(configs, tmp_path / "runs", third, **SWEEP)
    assert [e.submitted for e in (first, second, third)] == [[configs[1].key], [configs[0].key, configs[2].key], []]
    assert [r.config for r in records] == configs
    assert [r.to_json() for r in again] == [r.to_json() for r in records]
    assert all(path.stat().st_mtime_ns == at for path, at in written.items())
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(
        RecordStore(tmp_path / "runs").path(config).name for config in configs
    )


def test_a_run_with_further_tests_is_not_measured_again_without_them(tiny, tmp_path):
    tested, executor = tiny.replace(readings=True), Counting()
    (record,) = sweep([tested], tmp_path / "runs", **SWEEP)
    (again,) = sweep([tiny], tmp_path / "runs", executor, **SWEEP)
    assert executor.submitted == [] and again.to_json() == record.to_json()
    assert status([tiny], tmp_path / "runs", "cpu")["measured"].tolist() == [1]
    session = open_session([tiny, tested], store=tmp_path / "runs", output=tmp_path / "figures")
    assert (session.missing, len(session.runs)) == (0, 1)


def test_a_sweep_gives_what_single_runs_give(tiny, tmp_path):
    configs = [tiny, tiny.replace(method="agem"), tiny.replace(method="finetune")]
    records = sweep(configs, tmp_path / "runs", **SWEEP)
    assert [r.results for r in records] == [ucl.run(c, device="cpu", progress=False).results for c in configs]


def test_equal_experiments_run_once_and_each_has_its_record(tiny, tmp_path):
    """Under reservoir sampling, two scores cannot give different results."""
    configs = [tiny, tiny.replace(seed=1), tiny.replace(score="LC"), tiny]
    executor = Counting()
    records = sweep(iter(configs), tmp_path / "runs", executor, **SWEEP)
    assert executor.submitted == [tiny.key, configs[1].key]
    assert [r.config.key for r in records] == [c.key for c in configs]
    assert unique(configs) == configs[:2]


def test_nothing_to_run_touches_nothing(tmp_path):
    assert sweep([], tmp_path / "runs") == []
    assert not (tmp_path / "runs").exists()


def test_threads_are_as_asked_and_afterwards_as_before(tiny, tmp_path):
    (record,) = sweep([tiny], tmp_path / "runs", device="cpu", progress=False, threads=2)
    assert record.environment["threads"] == 2
    assert torch.get_num_threads() == 1


def test_threads_of_one_process_measure_one_run_at_a_time(tiny, tmp_path):
    """Dropout draws from the generator of the process, which two runs at a time would share."""
    configs = [tiny.replace(dropout=0.5, seed=seed) for seed in range(2)]
    expected = results(sweep(configs, tmp_path / "alone", **SWEEP))
    with ThreadPoolExecutor(2) as executor:
        assert results(sweep(configs, tmp_path / "threads", executor, **SWEEP)) == expected


# Failures


def test_a_run_that_fails_is_named_and_the_others_go_on(tiny, tmp_path):
    configs = [
        tiny.replace(memory_size=2, population="class-balanced"),
        tiny,
        tiny.replace(population="uncertainty", score="counted:fails"),
        tiny.replace(seed=1),
    ]
    with pytest.raises(SweepError) as raised:
        sweep(configs, tmp_path / "runs", **SWEEP)
    error, store = raised.value, RecordStore(tmp_path / "runs")
    assert [r.config for r in error.records] == [configs[1], configs[3]] == [r.config for r in store]
    assert list(error.failures) == [store.path(configs[0]).stem, store.path(configs[2]).stem]
    first, second = error.failures.values()
    assert "memory_size=2" in first and "give 4 or more" in first
    line = 1 + lines_until("raise Zero")
    assert second.endswith(f"raised ZeroDivisionError: no views, no score (counted.py, line {line})")
    assert "counted:fails" in second
    message = str(error).splitlines()
    assert message[0] == "2 runs failed; records of the other runs: 2"
    runs = ["tiny.npz M=2 CBR, seed 0", "tiny.npz M=8 counted:fails bottom, seed 0"]
    named = zip(runs, error.failures.items(), strict=True)
    assert message[1:] == [f"  {run} ({name}): {why}" for run, (name, why) in named]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert not list(store.folder.glob(".lock-*"))


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """An empty data folder, and the names of the data sets whose download was tried: there is no network."""
    tried = []

    def fetch(name, target):
        tried.append(name)
        raise InputError("dataset", name, "can't be downloaded (no network)")

    monkeypatch.setenv("UCL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(ucl.streams.datasets, "fetch", fetch)
    return tried


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_without_any_images_is_refused_after_one_download(downloads, tmp_path, jobs):
    with pytest.raises(InputError, match="no network"):
        sweep(ucl.paper.grid("table3"), tmp_path / "runs", device="cpu", jobs=jobs)
    assert downloads == ["cifar10", "cifar100", "bloodcell"] and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("field", "module"), [("population", "ucl.buffers"), ("dataset", "counted")])
def test_a_misspelt_object_is_reported_before_the_first_run(tiny, tmp_path, capsys, field, module):
    wrong = [tiny.replace(**{field: f"{module}:Reservoir"}, seed=seed) for seed in range(2)]
    with pytest.raises(InputError, match=rf"^{field}='{module}:Reservoir': {module} has no 'Reservoir'"):
        sweep(wrong, tmp_path / "runs", **SWEEP)
    assert not (tmp_path / "runs").exists()
    with (
        pytest.warns(UserWarning, match="has no 'Reservoir'.*; its runs are left out") as warned,
        pytest.raises(SweepError, match="2 runs failed; records of the other runs: 1"),
    ):
        sweep([*wrong, tiny], tmp_path / "runs", device="cpu", threads=1)
    assert len(warned) == 1 and capsys.readouterr().err.startswith("1 run to measure\n")


@pytest.mark.parametrize("dataset", ["damaged.npz", "damaged.npz-lt"])
def test_own_images_that_cannot_be_read_are_read_once_and_reported_before_the_first_run(
    tiny, tmp_path, monkeypatch, dataset
):
    monkeypatch.chdir(tmp_path)
    Path("damaged.npz").write_text("damaged")
    reads, load = [], ucl.streams.datasets.load
    monkeypatch.setattr(ucl.streams.datasets, "load", lambda name, *given: reads.append(name) or load(name, *given))
    wrong = [tiny.replace(dataset=dataset, seed=seed) for seed in range(3)]
    with pytest.raises(InputError, match=r"damaged\.npz': can't be read"):
        sweep(wrong, tmp_path / "runs", **SWEEP)
    assert reads == [dataset] and not Path("runs").exists()
    with (
        pytest.warns(UserWarning, match="can't be read .*; its runs are left out") as warned,
        pytest.raises(SweepError, match="3 runs failed; records of the other runs: 1"),
    ):
        sweep([*wrong, tiny], tmp_path / "runs", **SWEEP)
    assert len(warned) == 1 and reads.count(dataset) == 2


def test_runs_without_images_are_left_out_and_equal_errors_reported_once(downloads, tiny, tmp_path, capsys):
    absent = [Config(dataset="cifar10", population="reservoir", seed=seed) for seed in range(3)]
    wrong = [tiny.replace(memory_size=2, population="class-balanced", seed=seed) for seed in range(2)]
    with (
        pytest.warns(UserWarning, match="no network.*; its runs are left out"),
        pytest.raises(SweepError, match="5 runs failed; records of the other runs: 1") as raised,
    ):
        sweep([*absent, *wrong, tiny], tmp_path / "runs", device="cpu", threads=1)
    assert downloads == ["cifar10"] and len(raised.value.failures) == 5
    _, of_images, of_memory = str(raised.value).splitlines()
    assert re.fullmatch(r"  cifar10 M=500 ER, seed 0 \(\S+\) and 2 more: dataset='cifar10': .*no network\)", of_images)
    assert re.match(r"  tiny.npz M=2 CBR, seed 0 \(\S+\) and 1 more: memory_size=2: ", of_memory)
    begin, _, again, _ = capsys.readouterr().err.splitlines()
    assert begin == "3 runs to measure"
    assert again == "2 of 3: tiny.npz M=2 CBR, seed 1: failed, with the error of run 1"
    with pytest.warns(UserWarning, match="left out"), pytest.raises(SweepError, match="3 runs failed"):
        sweep([*absent, tiny], tmp_path / "runs", jobs=2, **SWEEP)


def lines_until(word):
    return next(i for i, line in enumerate(COUNTED.splitlines()) if word in line)


def test_a_store_that_cannot_be_read_for_a_moment_does_not_end_a_sweep(tiny, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(RecordStore, "__contains__", fail)
    wrong = tiny.replace(memory_size=2, population="class-balanced")
    with pytest.raises(SweepError, match=r"1 run failed; records of the other runs: 1\n.*give 4 or more"):
        sweep([wrong, tiny], tmp_path / "runs", **SWEEP)


def test_a_damaged_record_is_named_and_left_alone(tiny, tmp_path):
    store = RecordStore(tmp_path)
    store.path(tiny).write_text("{")
    with pytest.raises(SweepError) as raised:
        sweep([tiny, tiny.replace(seed=1)], tmp_path, **SWEEP)
    assert re.search(r"can't be read .*delete it to measure again", str(raised.value))
    assert [r.config.seed for r in raised.value.records] == [1]
    assert store.path(tiny).read_text() == "{"
    with pytest.warns(UserWarning, match="not a readable record"):
        (row,) = status([tiny.replace(seed=s) for s in range(3)], tmp_path, "cpu").itertuples()
    assert (row.runs, row.measured, row.damaged, row.missing) == (3, 1, [0], [2])


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("jobs", 0, "whole number"),
        ("jobs", 2.0, "whole number"),
        ("jobs", True, "whole number"),
        ("threads", 0, "whole number"),
        ("device", "tpu", "is not here"),
        ("store", __file__, "is not a folder"),
        ("store", "\ud800", "is not a folder"),
        ("store", "a\0b", "is not a folder"),
        ("configs", [{"dataset": "digits"}], "list of ucl.Config"),
        ("configs", Config(), "list of ucl.Config"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_at_once(tiny, tmp_path, argument, value, reason):
    arguments = {"configs": [tiny], "store": tmp_path / "runs", **SWEEP, argument: value}
    with pytest.raises(InputError, match=reason) as refusal:
        sweep(**arguments)
    assert argument in str(refusal.value) and "\n" not in str(refusal.value)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_jobs_beside_an_executor_are_refused(tiny, tmp_path):
    with pytest.raises(InputError, match="executor decides"):
        sweep([tiny], tmp_path / "runs", Counting(), jobs=2)


OF_MAIN = {"population": "uncertainty", "score": "__main__:score", "model": "counted:network"}
SCORE = "def score(logits_PNC):\n    return logits_PNC.amax((0, 2))\n"


@pytest.fixture
def main_module(monkeypatch):
    """A main module without a file, as that of a notebook, with a score."""
    module = types.ModuleType("__main__")
    exec(SCORE, vars(module))
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


@pytest.mark.parametrize(
    "names",
    [{}, {"__file__": "<stdin>"}, {"__file__": __file__, "__spec__": ModuleSpec("package.__main__", None)}],
    ids=["notebook", "standard input", "package"],
)
def test_an_object_of_a_main_module_that_workers_do_not_execute_is_refused(tiny, tmp_path, main_module, names):
    vars(main_module).update(names)
    reason = "worker processes do not have __main__:score; put it into a file, or give 1"
    with pytest.raises(InputError, match=rf"^jobs=2: {reason}$"):
        sweep([tiny.replace(**OF_MAIN)], tmp_path / "runs", jobs=2, **SWEEP)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("spec", [None, ModuleSpec("script", None)], ids=["a file", "python -m"])
def test_worker_processes_have_the_objects_of_a_script(tiny, tmp_path, main_module, monkeypatch, spec):
    (tmp_path / "script.py").write_text(SCORE)
    monkeypatch.syspath_prepend(tmp_path)
    main_module.__file__, main_module.__spec__ = str(tmp_path / "script.py"), spec
    config = tiny.replace(**OF_MAIN)
    (record,) = sweep([config], tmp_path / "runs", jobs=2, **SWEEP)
    assert record.results == sweep([config], tmp_path / "one process", **SWEEP)[0].results


def test_a_run_that_kills_its_process_is_tried_twice_and_reported(tiny, tmp_path, calls):
    tiny = tiny.replace(model="counted:network")
    bad = tiny.replace(population="uncertainty", score="counted:kills_its_process")
    with pytest.raises(SweepError) as raised:
        sweep([bad, *(tiny.replace(seed=seed) for seed in range(3))], tmp_path / "runs", jobs=2, **SWEEP)
    assert [r.config.seed for r in raised.value.records] == [0, 1, 2]
    ((name, why),) = raised.value.failures.items()
    assert bad.key in name and "died twice, exit code -9" in why
    assert calls() == 2
    assert not list((tmp_path / "runs").glob(".*"))


def test_an_executor_of_the_users_that_breaks_loses_nothing_that_was_finished(tiny, tmp_path):
    bad = tiny.replace(population="uncertainty", score="counted:kills_its_process")
    with ProcessPoolExecutor(1) as executor, pytest.raises(SweepError) as raised:
        sweep([tiny, bad, tiny.replace(seed=1)], tmp_path / "runs", executor, **SWEEP)
    assert [r.config for r in raised.value.records] == [tiny]
    assert all("BrokenProcessPool" in why for why in raised.value.failures.values())


@pytest.mark.parametrize("library", ["CUDA", "cuDNN"])
def test_after_a_failure_of_the_gpu_this_process_begins_no_more_runs(tiny, tmp_path, monkeypatch, library):
    begun, outcome = [], Outcome("failed", error=f"RuntimeError: {library} error: an illegal memory access")
    monkeypatch.setattr("ucl.sweeps.sweep.measure", lambda *arguments, **_: begun.append(arguments) or outcome)
    with pytest.raises(SweepError) as raised:
        sweep([tiny.replace(seed=seed) for seed in range(3)], tmp_path / "runs", **SWEEP)
    first, *others = raised.value.failures.values()
    assert len(begun) == 1 and first == outcome.error
    assert len(others) == 2 and all("not measured here, because the GPU failed" in why for why in others)


def test_after_a_lack_of_memory_on_the_gpu_the_other_runs_are_tried(tiny, tmp_path, monkeypatch):
    begun, outcome = [], Outcome("failed", error="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED")
    monkeypatch.setattr("ucl.sweeps.sweep.measure", lambda *arguments, **_: begun.append(arguments) or outcome)
    with pytest.raises(SweepError) as raised:
        sweep([tiny.replace(seed=seed) for seed in range(2)], tmp_path / "runs", **SWEEP)
    assert len(begun) == 2 and set(raised.value.failures.values()) == {outcome.error}


# Locks


def test_a_lock_is_one_holders_whoever_else_tries_and_leaves_nothing(tmp_path):
    """Each release deletes the lock's file, while others have it open."""
    folder = tmp_path / "locks"
    folder.mkdir()
    path, inside, most, times = folder / ".lock-1", [], [], []

    def work():
        for _ in range(150):
            with locks.held(path) as ours:
                if ours:
                    inside.append(1)
                    most.append(len(inside))
                    time.sleep(0.0001)
                    inside.pop()
                    times.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) > 6 and set(most) == {1}
    assert locks.is_free(path) and not list(folder.iterdir())


def test_a_lock_can_be_opened_by_every_account_that_works_on_the_folder(tmp_path):
    before = os.umask(0o022)
    try:
        with locks.held(tmp_path / ".lock-1"):
            assert stat.S_IMODE((tmp_path / ".lock-1").stat().st_mode) == 0o666
    finally:
        os.umask(before)


@contextlib.contextmanager
def in_a_child(function, *arguments):
    """A process that calls a function and is killed at the end of the block; it is forked, which is fast."""
    child = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


def hold(path, begun):
    with locks.held(path):
        begun.set()
        time.sleep(1000)


def save_until_killed(record, folder):
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    RecordStore(folder).save(record)


def test_the_lock_of_a_killed_process_is_free_at_once(tiny, tmp_path):
    path, begun = locks.path_of(tmp_path, tiny), multiprocessing.get_context("fork").Event()
    with in_a_child(hold, path, begun) as owner:
        assert begun.wait(60)  # before that, the file may exist without its lock
        assert not locks.is_free(path)
        assert holders(tmp_path) == {owner.pid}
    assert owner.exitcode == -signal.SIGKILL and path.exists()
    begin = time.monotonic()
    assert len(sweep([tiny], tmp_path, **SWEEP)) == 1
    assert time.monotonic() - begin < 30
    assert not list(tmp_path.glob(".*"))


def test_a_lock_that_an_older_version_left_is_taken_over(tiny, tmp_path):
    locks.path_of(tmp_path, tiny).write_text('{"host": "another", "pid": 1}')
    assert len(sweep([tiny], tmp_path, **SWEEP)) == 1
    assert not list(tmp_path.glob(".*"))


def test_what_another_is_running_is_left_to_it_and_awaited(tiny, tmp_path):
    executor, record = Counting(), ucl.run(tiny, device="cpu", progress=False)
    others = [tiny.replace(seed=1), tiny.replace(seed=2)]
    begun = threading.Event()

    def run_elsewhere():
        with locks.held(locks.path_of(tmp_path, tiny)):
            begun.set()
            wait_for(lambda: all(config in RecordStore(tmp_path) for config in others))
            RecordStore(tmp_path).save(record)

    thread = threading.Thread(target=run_elsewhere)
    thread.start()
    begun.wait()
    records = sweep([tiny, *others], tmp_path, executor, **SWEEP)
    thread.join()
    assert [r.config.seed for r in records] == [0, 1, 2]
    assert records[0].to_json() == record.to_json()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_where_a_file_system_has_no_locks_all_is_run_with_a_word(tiny, tmp_path, monkeypatch, number):
    """Some network file systems answer like this, such as Lustre mounted without locks."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="this file system has no file locks") as warned:
        assert len(sweep([tiny], tmp_path, **SWEEP)) == 1
    assert len(warned) == 1 and str(tmp_path) in str(warned[0].message)
    assert not list(tmp_path.glob(".*"))


def test_a_lock_that_the_file_server_does_not_report_is_not_free_yet(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / ".lock-1").touch()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fail)
        assert not locks.is_free(tmp_path / ".lock-1")
    assert locks.is_free(tmp_path / ".lock-1")


def test_a_record_cut_short_by_a_kill_is_cleared_away_when_nobody_can_be_writing_it(tiny, tmp_path):
    (record,) = sweep([tiny], tmp_path / "measured", **SWEEP)
    for _ in range(2):
        with in_a_child(save_until_killed, record, tmp_path / "runs") as child:
            child.join()
    old, young = (tmp_path / "runs").iterdir()
    (tmp_path / "runs" / ".not-ours").touch()
    for path in (old, tmp_path / "runs" / ".not-ours"):
        os.utime(path, (time.time() - 301,) * 2)
    wrong = time.time() + 1e6
    with pytest.MonkeyPatch.context() as patch:  # The clock of this machine is wrong; that of the file server counts.
        patch.setattr(time, "time", lambda: wrong)
        sweep([tiny], tmp_path / "runs", **SWEEP)
    assert {path.name for path in (tmp_path / "runs").glob(".*")} == {young.name, ".not-ours"}
    os.utime(young, (time.time() - 301,) * 2)
    sweep([tiny], tmp_path / "runs", **SWEEP)  # all results exist
    assert {path.name for path in (tmp_path / "runs").glob(".*")} == {".not-ours"}


# Several sweeps on one store


A_SWEEP = """
import json, sys
from ucl import Config
from ucl.sweeps.sweep import sweep

if __name__ == "__main__":
    store, jobs, *texts = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    sweep([Config.from_json(text) for text in texts], store, jobs=int(jobs), device="cpu", threads=1)
"""


def prepare(store, configs, jobs, **environment):
    """A process that sweeps when it reads a line. It runs a file, because worker processes import the main module."""
    script = Path(os.environ["CALLS"]).parent / "a_sweep.py"
    script.write_text(A_SWEEP)
    command = [sys.executable, str(script), str(store), str(jobs), *(config.to_json() for config in configs)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env={**os.environ, **environment}, text=True, **pipes)


def release(*prepared):
    """Start the sweeps together, after all of them have finished their imports."""
    for process in prepared:
        assert process.stdout.readline() == "ready\n"
    for process in prepared:
        process.stdin.write("go\n")
        process.stdin.flush()


def start(store, configs, jobs, **environment):
    process = prepare(store, configs, jobs, **environment)
    release(process)
    return process


def test_two_sweeps_on_one_store_run_each_experiment_once_and_agree(tiny, tmp_path, calls, undisturbed):
    expected, calls_a_run = undisturbed
    configs = counted(tiny, range(4))
    sweeps = [prepare(tmp_path / "runs", some, 1, PAUSE="0.01") for some in (configs, configs[::-1])]
    release(*sweeps)
    said = [process.communicate(timeout=120)[1] for process in sweeps]
    assert [process.returncode for process in sweeps] == [0, 0]
    assert sorted(re.findall(r"seed (\d): A ", "".join(said))) == list("0123")  # each measured by one of the two
    assert all(text.count("\n") == 5 for text in said)
    assert calls() == 4 * calls_a_run
    assert results(RecordStore(tmp_path / "runs")) == expected
    assert not list((tmp_path / "runs").glob(".*"))


# Kills


def ends(process):
    """The exit status and the standard error of a process, after it has ended."""
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_a_sweep_killed_at_any_moment_is_resumed_and_loses_nothing(tiny, tmp_path, calls, undisturbed):
    expected, calls_a_run = undisturbed
    configs, store = counted(tiny, range(4)), RecordStore(tmp_path / "runs")
    draw = random.Random(0)
    kept: dict[Path, bytes] = {}
    begun = 1
    for kill in range(KILLS):
        jobs = 2 - kill % 2
        if len(kept) == 4:
            assert results(store) == expected
            shutil.rmtree(store.folder)  # all runs are done: start again, so that each kill hits a working sweep
            kept, begun = {}, begun + 1
        process = start(store.folder, configs, jobs, PAUSE="0.1")
        wait_for(lambda p=process: holders(store.folder) or p.poll() is not None)
        time.sleep(draw.uniform(0, 1.0))
        workers = holders(store.folder)
        process.kill()
        assert ends(process)[0] in (-signal.SIGKILL, 0)
        wait_for(lambda w=workers: not any(is_alive(pid) for pid in w))  # workers end with their sweep
        found = {path: path.read_bytes() for path in store.folder.glob("*.json")}
        assert kept.items() <= found.items()  # finished records are unchanged
        kept = found
        assert results(store).items() <= expected.items()
    begin = time.monotonic()
    assert results(sweep(configs, store.folder, **SWEEP)) == expected
    assert time.monotonic() - begin < 40  # it does not wait for killed processes
    assert {path: path.read_bytes() for path in kept} == kept
    assert not list(store.folder.glob(".lock-*"))
    assert calls() <= (4 * begun + 2 * KILLS) * calls_a_run


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_workers(store, times, draw):
    """A thread that kills processes with a lock, at most `times` or until `done` is set, and the ids that it killed."""
    killed, done = [], threading.Event()

    def work():
        while len(killed) < times and not done.is_set():
            time.sleep(draw.uniform(0, 0.5))
            for pid in list(holders(store))[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, done, killed


def test_a_worker_killed_at_any_moment_is_replaced(tiny, tmp_path, monkeypatch, undisturbed):
    expected, _ = undisturbed
    monkeypatch.setenv("PAUSE", "0.1")
    store = tmp_path / "runs"
    thread, done, killed = kill_workers(store, KILLS, random.Random(0))
    try:
        sweep(counted(tiny, range(4)), store, jobs=2, **SWEEP)
    except SweepError as error:  # one run was hit twice
        assert all("died twice" in why for why in error.failures.values())
        assert results(error.records).items() <= expected.items()
    finally:
        done.set()
        thread.join()
    records = sweep(counted(tiny, range(4)), store, **SWEEP)
    assert killed and results(records) == expected
    assert not list(store.glob(".lock-*"))


@pytest.fixture
def forked_workers(monkeypatch):
    """Workers start by a fork, which is fast. They must not train: a fork of a process that has trained cannot."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: fork)


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_whose_gpu_has_failed_is_replaced():
    with WorkerProcesses(1) as workers:
        first = workers.submit(os.getpid).result()
        workers.submit(Outcome, "failed", 0.0, "RuntimeError: the network has diverged").result()
        assert workers.submit(os.getpid).result() == first
        assert workers.submit(Outcome, "failed", 0.0, "RuntimeError: CUDA error: device-side assert").result().error
        assert workers.submit(os.getpid).result() != first


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.filterwarnings("default")  # A fork has the filters of this process, which turn warnings into errors.
def test_warnings_of_a_worker_look_like_those_of_the_command(capfd):
    with WorkerProcesses(1) as workers:
        workers.submit(warnings.warn, "a disk is full").result()
    assert capfd.readouterr().err == "ucl: a disk is full\n"


@contextlib.contextmanager
def at_most(seconds):
    """Fail if the block takes longer than `seconds`."""

    def fail(*_):
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore")
def test_on_dask_workers_killed_at_any_moment_nothing_is_lost(tiny, tmp_path, monkeypatch, calls, undisturbed):
    """A real scheduler with two worker processes, restarted by their nannies."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "WORKERS_LOST_AFTER", 60.0)
    monkeypatch.setenv("PAUSE", "0.1")
    expected, calls_a_run = undisturbed
    where = dict(processes=True, n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
    with (
        distributed.LocalCluster(**where, silence_logs=50) as cluster,
        dask_executor(cluster.scheduler_address) as executor,
    ):
        calm = results(sweep(counted(tiny, range(2)), tmp_path / "calm", executor, **SWEEP))
        assert calm.items() <= expected.items() and len(calm) == 2
        assert calls() == 2 * calls_a_run
        thread, done, killed = kill_workers(tmp_path / "killed", max(1, KILLS // 2), random.Random(0))
        try:
            with at_most(240):
                sweep(counted(tiny, range(4)), tmp_path / "killed", executor, **SWEEP)
        except SweepError as error:  # dask gives up a run after four killed workers
            assert all("KilledWorker" in why or "no worker" in why for why in error.failures.values())
            assert results(error.records).items() <= expected.items()
        finally:
            done.set()
            thread.join()
    records = sweep(counted(tiny, range(4)), tmp_path / "killed", **SWEEP)
    assert killed and results(records) == expected
    assert not list((tmp_path / "killed").glob(".lock-*"))


def test_a_command_that_is_cancelled_waits_for_nothing_and_leaves_what_was_finished(tiny, tmp_path, undisturbed):
    """A cluster sends SIGTERM when the time limit of a job is reached. The last two runs would take many minutes."""
    expected, _ = undisturbed
    *configs, third, fourth = counted(tiny, range(4))
    configs += [config.replace(score="counted:sleeps") for config in (third, fourth)]
    store = RecordStore(tmp_path / "runs")
    (tmp_path / "mine.json").write_text(json.dumps([json.loads(config.to_json()) for config in configs]))
    where = ["--config", str(tmp_path / "mine.json"), "--store", str(store.folder), "--device", "cpu"]
    process = ucl_command("sweep", *where, "--jobs", "2", "--threads", "1")
    try:
        wait_for(lambda: len(list(store)) == 2 and len(holders(store.folder)) == 2)
        workers = holders(store.folder)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        status, errors = ends(process)
        assert time.monotonic() - begin < 60
    finally:
        process.kill()
    first, *lines, last = errors.splitlines()
    assert (status, last) == (143, "ucl sweep: ended by SIGTERM; finished results are kept")
    assert first == "4 runs to measure" and all(re.match(r"\d of 4: .* A ", line) for line in lines)
    assert not any(is_alive(pid) for pid in workers)
    assert len(list(store)) == 2
    assert results(store).items() <= expected.items()
    # A worker may be stopped during a write, which leaves a `.part` file. Checkpoints stay, so that runs can resume.
    left = {path.name for path in store.folder.glob(".*") if path.suffix != ".part"}
    assert not {name for name in left if not name.startswith(".checkpoint-")}


# Parts of a grid


@pytest.mark.parametrize("n", [1, 2, 7, 12, 30])
def test_the_shards_of_a_grid_are_the_grid(n):
    grid = [Config(seed=seed, score=score) for seed in range(4) for score in ("BI", "LC", "MS")]
    parts = [shard(grid + grid[:5], i, n) for i in range(1, n + 1)]
    assert sorted(config.key for part in parts for config in part) == sorted(config.key for config in grid)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == [shard(grid, i, n) for i in range(1, n + 1)]


def test_times_are_reported_as_people_say_them():
    reported = [duration(s) for s in (0.4, 89, 90, 5000, 12_000, 190_000)]
    assert reported == ["0 s", "89 s", "2 min", "83 min", "3 h 20 min", "2 d 5 h"]


# The progress of a sweep


@pytest.mark.parametrize(
    ("failure", "result"),
    [("", "A 12.5 %, F 0.7 %, 3 s"), ("collapsed", "collapsed, A 12.5 %, F 0.7 %, 3 s"), ("diverged", "diverged, 3 s")],
)
def test_a_run_whose_network_failed_is_marked_in_its_line(tiny, capsys, failure, result):
    numbers = (float("nan"),) * 2 if failure == "diverged" else (0.125, 0.007)
    with SweepProgress([tiny], labels([tiny]), None) as shown:
        shown.finished(tiny, Outcome("measured", 3.0, "", *numbers, failure))
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"seed 0: {result}")


def test_a_worker_reports_that_a_network_failed(tiny, tmp_path, capsys):
    broken = tiny.replace(method="finetune", lr=100.0)
    (record,) = sweep([broken], tmp_path / "runs", **{**SWEEP, "progress": None})
    assert record.failure == "collapsed" and ", seed 0: collapsed, A " in capsys.readouterr().err


def test_the_status_counts_and_costs_what_is_missing(tiny, tmp_path):
    bottom = tiny.replace(population="uncertainty")
    measured = [tiny, tiny.replace(seed=1), bottom]
    records = sweep(measured, tmp_path / "runs", **SWEEP)
    reservoir = [r.timing["total"] for r in records[:2]]
    wanted = [c.replace(seed=s) for s in range(3) for c in (tiny, bottom, tiny.replace(method="finetune"))]
    table = status([*wanted, bottom.replace(selection="top", score="LC")], tmp_path / "runs", "cpu")
    assert table[["label", "runs", "measured", "missing"]].to_numpy().tolist() == [
        ["ER", 3, 2, [2]],
        ["BI bottom", 3, 1, [1, 2]],
        ["Finetune", 3, 0, [0, 1, 2]],
        ["LC top", 1, 0, [0]],
    ]
    assert table["memory_size"].isna().tolist() == [False, False, True, False]
    seconds = table["seconds"].tolist()
    assert seconds[0] == pytest.approx(np.mean(reservoir))
    assert seconds[1] == pytest.approx(2 * records[2].timing["total"])
    assert np.isnan(seconds[2])
    assert seconds[3] == pytest.approx(records[2].timing["total"])  # estimated from a run with the same views


def test_the_status_counts_no_failures_of_records_of_other_images(tiny, tmp_path):
    (sound,) = sweep([tiny.replace(batch_size=2, lr=0.03)], tmp_path, **SWEEP)
    assert not sound.failure
    accuracy = np.full_like(sound.accuracy, np.nan)
    others = {**sound.data, "fingerprint": "0123456789abcdef"}
    RecordStore(tmp_path).save(replace(sound, data=others, accuracy=accuracy, diverged_after=0))
    assert sorted(record.failure for record in RecordStore(tmp_path)) == ["", "diverged"]
    (row,) = status([sound.config], tmp_path, "cpu").itertuples()
    assert (row.measured, row.failed, row.missing) == (1, "", [])


def test_a_run_is_named_by_its_data_set_without_the_folder():
    one = Config(memory_size=40, seed=3)
    names = {"bloodcell": "bloodcell", "/data/cells": "cells", 'mine:load(file="a/b")': "mine:load(file='a/b')"}
    for dataset, name in names.items():
        assert run_name(one.replace(dataset=dataset), "BI bottom") == f"{name} M=40 BI bottom, seed 3"


def test_runs_are_named_by_the_fields_that_differ_within_the_sweep(tiny):
    base = tiny.replace(population="uncertainty", score="EN")
    assert set(labels([base, base.replace(seed=1), base.replace(score="BI", refresh=2)]).values()) == {
        "EN bottom",
        "BI bottom",
    }
    grid = [config.replace(refresh=r) for config in (base, base.replace(score="BI"), tiny) for r in (1, 2, 0.5)]
    grid = [*unique(grid), base.replace(method="finetune"), base.replace(memory_size=12)]
    named = labels(grid)
    assert len(named) == len(grid) == 9
    assert [named[config.key] for config in grid] == [
        *(f"{score} bottom, refresh={r}" for score in ("EN", "BI") for r in (1, 2, 0.5)),
        "ER",  # does not rescore
        "Finetune",
        "EN bottom, refresh=1",
    ]
    both = [base, base.replace(readings=True, lr=0.05)]
    assert list(labels(both).values()) == ["EN bottom, lr=0.1, readings=False", "EN bottom, lr=0.05, readings=True"]


def test_the_command_shows_a_line_for_each_setting_in_aligned_columns(tiny, tmp_path, capsys):
    fields = {"dataset": tiny.dataset, "n_tasks": 2, "memory_size": 8, "score": "EN", "batch_size": 8}
    file, store = tmp_path / "mine.json", tmp_path / "runs"
    file.write_text(json.dumps({**fields, "view_draws": ["image", "fixed"], "refresh": [1, 2], "lr": [0.1, -1]}))
    arguments = ["--config", str(file), "--store", str(store), "--device", "cpu"]
    assert main(["status", *arguments]) == 2
    file.write_text(json.dumps({**fields, "view_draws": ["image", "fixed"], "refresh": [1, 2], "seed": [0, 1]}))
    capsys.readouterr()
    assert main(["status", *arguments]) == 1
    head, *lines, _ = capsys.readouterr().out.splitlines()
    settings = [f"EN bottom, refresh={r}, view_draws={v}" for v in ("image", "fixed") for r in (1, 2)]
    assert [line[head.index("method") :].split("  ")[0] for line in lines] == settings
    assert all(line[: head.index("measured") + 8].endswith("0 of 2") for line in lines)
    assert all(line[head.index("missing") :] == "seeds 0 1: unknown" for line in lines)
    assert main(["sweep", *arguments, "--shard", "1/4"]) == 0  # The fields of a shard are those that differ in it.
    assert re.search(r"1 of 2: tiny.npz M=8 EN bottom, seed 0: A ", capsys.readouterr().err)


def test_runs_of_two_memory_sizes_cost_the_same_only_if_the_size_does_not_matter():
    def is_equal(**fields):
        return len({cost_class(Config(memory_size=size, **fields)) for size in (40, 160)}) == 1

    assert is_equal(population="reservoir", method="derpp") and is_equal(population="class-balanced")
    assert is_equal(method="finetune")
    for population in ("uncertainty", "coreset", "herding", "rainbow", "homogeneous", "closest-to-mean", "gss"):
        assert not is_equal(population=population), population


def test_what_another_machine_took_is_not_what_it_costs_here(tiny, tmp_path):
    (record,) = sweep([tiny], tmp_path, **SWEEP)
    record.environment["processor"] = "another"
    RecordStore(tmp_path).save(record)
    assert status([tiny, tiny.replace(seed=1)], tmp_path, "cpu")["seconds"].isna().tolist() == [True]


def test_what_a_gpu_took_is_what_it_costs_here_with_any_cpu(tiny, tmp_path, monkeypatch):
    (record,) = sweep([tiny], tmp_path, **SWEEP)
    record.environment.update(device="a GPU", processor="another")
    RecordStore(tmp_path).save(record)
    monkeypatch.setattr("ucl.sweeps.status.environment", lambda *_: {"device": "a GPU", "processor": "a CPU"})
    (seconds,) = status([tiny, tiny.replace(seed=1)], tmp_path, "cpu")["seconds"]
    assert seconds == record.timing["total"]


# The command


@pytest.fixture
def mine(tiny, tmp_path):
    """A file of two runs with a small network, the second in the format of a record."""
    path, tiny = tmp_path / "mine.json", tiny.replace(model="counted:network")
    path.write_text(json.dumps([json.loads(tiny.to_json()), {"config": json.loads(tiny.replace(seed=5).to_json())}]))
    return str(path)


def ucl_command(*arguments, threads=1, **environment):
    code = f"import sys, torch; torch.set_num_threads({threads})\n"
    code += "from ucl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def also(records):
    """What the command adds if networks collapsed, which can happen with so few images."""
    return f"; {failures(records)}" if failures(records) else ""


def test_a_sweep_goes_on_without_a_reader_of_its_lines(mine, tmp_path):
    process = ucl_command("sweep", "--seeds", "0", "1", "--config", mine, "--store", str(tmp_path / "runs"))
    process.stderr.close()
    assert process.wait(timeout=120) == 0 and len(list(RecordStore(tmp_path / "runs"))) == 2


def test_the_time_that_an_earlier_sweep_spent_on_a_run_says_nothing_about_the_runs_at_a_time(tiny, capsys):
    configs = [tiny.replace(seed=seed) for seed in range(3)]
    shown = SweepProgress(configs, labels(configs), None)
    shown._begin -= 60
    shown.finished(configs[0], Outcome("measured", 3600.0, "", 0.5, 0.1, ""))
    assert "about 2 h 0 min left" in capsys.readouterr().err


def test_the_time_left_does_not_grow_until_the_next_run_ends(tiny):
    configs = [tiny.replace(seed=seed) for seed in range(3)]
    shown = SweepProgress(configs, labels(configs), False)
    shown._begin -= 60
    shown.finished(configs[0], Outcome("measured", 60.0, "", 0.5, 0.1, ""))
    shown._begin -= 60
    assert shown._time_left() == ["about 2 min left"]


def test_the_command_sweeps_tells_and_resumes(mine, tmp_path, capsys):
    """Worker processes share the threads that the command has."""
    store = str(tmp_path / "runs")
    where = ["--config", mine, "--store", store, "--device", "cpu"]
    process = ucl_command("sweep", "--seeds", "0", "1", "--jobs", "2", *where, threads=2)
    out, errors = process.communicate(timeout=120)
    records = list(RecordStore(store))
    assert (process.returncode, out) == (0, f"all 2 runs are in {store}{also(records)}\n")
    first, *lines = errors.splitlines()
    assert first == "2 runs to measure" and len(lines) == 2
    result = r"tiny.npz M=8 ER, seed [01]: (collapsed, )?A \d+\.\d %, F -?\d+\.\d %, \d+ s"
    assert re.fullmatch(rf"1 of 2: {result}; about \d+ s left", lines[0])
    assert re.fullmatch(rf"2 of 2: {result}", lines[1])
    assert sorted((r.config.seed, r.environment["threads"]) for r in RecordStore(store)) == [(0, 1), (1, 1)]
    assert main(["status", *where]) == 1
    *_, line, total = capsys.readouterr().out.splitlines()
    (first_seed,) = (record for record in records if record.config.seed == 0)
    assert re.search(rf"8  ER +1 of 2  seeds 5: about \d+ s{also([first_seed])}$", line)
    assert re.fullmatch(r"1 of 2 runs are in .*; 1 of the others would take about \d+ s here", total)
    assert main(["sweep", *where, "--threads", "1"]) == 0
    assert main(["status", *where]) == 0
    *_, line, total = capsys.readouterr().out.splitlines()
    finished = [record for record in RecordStore(store) if record.config.seed != 1]
    assert line.endswith(f"2 of 2{'  ' * bool(also(finished))}{failures(finished)}")
    assert total == f"2 of 2 runs are in {store}"


def test_the_shards_of_the_command_do_the_whole_grid(mine, tmp_path, capsys):
    store = str(tmp_path / "runs")
    arguments = ["--config", mine, "--seeds", "0", "1", "2", "--store", store]
    for i in range(1, 4):
        assert main(["sweep", *arguments, "--shard", f"{i}/3", "--device", "cpu", "--threads", "1"]) == 0
        records = list(RecordStore(store))
        new = [record for record in records if record.config.seed == i - 1]
        assert capsys.readouterr().out == f"all 1 runs are in {store}{also(new)}\n"
        assert len(records) == i
    assert main(["sweep", *arguments, "--shard", "4/4"]) == 0
    assert main(["status", *arguments]) == 0
    assert capsys.readouterr().out.endswith(f"3 of 3 runs are in {store}\n")


def test_the_command_names_each_run_that_failed(tiny, tmp_path, capsys):
    (tmp_path / "mine.json").write_text(
        json.dumps([{"dataset": tiny.dataset, "n_tasks": 2, "memory_size": m} for m in (2, 8)])
    )
    arguments = ["--config", str(tmp_path / "mine.json"), "--store", str(tmp_path / "runs"), "--device", "cpu"]
    assert main(["sweep", *arguments]) == 1
    begin, remark, *lines, first, second = capsys.readouterr().err.splitlines()
    assert remark.startswith("ucl sweep: task 1 of tiny does not learn 4 of its 24 training images: ")
    assert begin == "2 runs to measure" and lines[0].startswith("1 of 2: tiny.npz M=2 BI bottom, seed 0: failed: ")
    assert re.match("2 of 2: tiny.npz M=8 BI bottom, seed 0: (collapsed, )?A ", lines[1]) and len(lines) == 2
    assert first == "ucl sweep: 1 run failed; records of the other runs: 1"
    assert second.startswith("  tiny.npz M=2 BI bottom, seed 0 (tiny-m2-BI-bottom-s0-") and "give 4 or more" in second


def test_the_tables_of_the_paper_are_grids_of_the_command(tmp_path, capsys):
    assert main(["status", "table1", "--seeds", "0", "1", "2", "--store", str(tmp_path), "--device", "cpu"]) == 1
    *lines, total = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 48  # 24 methods at two memory sizes
    assert total.startswith("0 of 144 runs are in ")
    assert main(["status", "table1", "table4", "--shard", "1/20", "--store", str(tmp_path), "--device", "cpu"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 of 8 runs are in ")


def test_the_status_of_a_folder_that_does_not_exist_says_so(tmp_path, capsys):
    nowhere = tmp_path / "nowhere"
    assert main(["status", "table4", "--seeds", "0", "--store", str(nowhere), "--device", "cpu"]) == 1
    total = capsys.readouterr().out.splitlines()[-1]
    assert total == f"0 of 3 runs are in {nowhere}, a folder that does not exist; 3 have no estimate"
    assert not nowhere.exists()


def test_a_field_may_be_set_for_all_runs_of_the_command(tiny, tmp_path, capsys):
    """If a field makes no difference, the run is the same as without it."""
    store, file = RecordStore(tmp_path / "runs"), tmp_path / "mine.json"
    runs = [tiny, tiny.replace(population="uncertainty")]
    file.write_text(json.dumps([json.loads(config.to_json()) for config in runs]))
    arguments = ["--config", str(file), "--store", str(store.folder), "--device", "cpu", "--set", "refresh", "2"]
    assert main(["sweep", *arguments, "--set", "lr", "5e-2"]) == 0
    assert sorted((r.config.label, r.config.lr, r.config.refresh) for r in store) == [
        ("BI bottom", 0.05, 2),
        ("ER", 0.05, 2),
    ]
    assert runs[0].replace(lr=0.05) in store and runs[1].replace(lr=0.05) not in store
    assert main(["status", *arguments]) == 1
    assert main(["status", *arguments, "--set", "lr", "0.05"]) == 0
    assert capsys.readouterr().out.endswith(f"2 of 2 runs are in {store.folder}\n")
    assert main(["status", "bloodcell", "--seeds", "0", "--set", "refresh", "2", "--store", str(store.folder)]) == 1
    assert capsys.readouterr().out.endswith(f"0 of 20 runs are in {store.folder}; 20 have no estimate\n")


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ([], "name a table"),
        (["tabel1"], "did you mean 'table1'?"),
        (["good.json"], "good.json: is a file; give --config good.json"),
        (["."], ".: is a folder; if it has the records, give --store ."),
        (["table1", "--shard", "0/20"], "--shard: 0/20: give I/N"),
        (["table1", "--shard", "21/20"], "--shard: 21/20: give I/N"),
        (["table1", "--shard", "3"], "--shard: 3: give I/N"),
        (["table1", "--shard", "1/0"], "--shard: 1/0: give I/N"),
        (["table1", "--seeds", "x"], "'x' is not a whole number"),
        (["table1", "--seeds", "0,1"], "'0,1' is not a whole number; seeds are separated by spaces: 0 1 2"),
        (["table1", "--seeds", "-1"], "ucl sweep: --seeds -1: give a whole number from 0"),
        (["--config", "good.json", "--seeds", "0", "-1"], "ucl sweep: --seeds -1: give a whole number from 0"),
        (["table1", "--jobs", "0"], "--jobs: 0: give a whole number"),
        (["table1", "--threads", "many"], "--threads: many: give a whole number"),
        (["table1", "--device", "tpu"], "--device tpu: is not here"),
        (["table1", "--jobs", "2", "--scheduler", "tcp://127.0.0.1:9"], "--jobs 2: the scheduler's workers"),
        (["table1", "--set", "refresh", "0"], "--set refresh 0: give a number in"),
        (["table1", "--set", "refrsh", "2"], "--set refrsh: unknown field of Config; did you mean 'refresh'?"),
        (
            ["table1", "--set", "score", "BI"],
            "--set score BI: table1 decides it; build other runs with Config, or list",
        ),
        (["table1", "--set", "seed", "3"], "--set seed 3: seeds have their own flag; give --seeds 3"),
        (["--config", "good.json", "--set", "seed", "3"], "--set seed 3: seeds have their own flag"),
        (["table1", "--set", "seeds", "3"], "--set seeds 3: seeds have their own flag; give --seeds 3"),
        (["table1", "--set", "table", "3"], "--set table: unknown field of Config"),
        (["table1", "--set", "refresh", "["], "--set refresh [: the value is not valid YAML"),
        (["--config", "good.json", "--set", "lr", "high"], "--set lr high: give a number"),
        (
            ["--config", "nowhere.json"],
            "--config nowhere.json: no such file; give a JSON or YAML file of Config fields",
        ),
        (["--config", "empty.json"], "--config empty.json: give a JSON object"),
        (["--config", "wrong.json"], "--config wrong.json: field='datset': unknown field of Config; did you mean"),
        (["--config", "range.json"], "--config range.json: lr=-1: give a number"),
    ],
    ids=" ".join,
)
def test_wrong_input_is_reported_in_one_line(tmp_path, monkeypatch, capsys, arguments, reported):
    monkeypatch.chdir(tmp_path)
    Path("empty.json").write_text("[]")
    Path("wrong.json").write_text('[{"datset": "digits"}]')
    Path("good.json").write_text('{"dataset": "digits"}')
    Path("range.json").write_text('{"lr": -1}')
    try:
        code = main(["sweep", *arguments])
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith("ucl sweep: ") and reported in err and err.count("\n") == 1
    assert not Path("runs").exists()


def test_what_is_no_address_of_a_scheduler_is_refused_in_one_line_to_the_end_of_the_process(tmp_path):
    pytest.importorskip("distributed")
    addresses = ["", "foo", "somewhere over there", "gopher://x:1", "tcp://x:y", "tls://127.0.0.1:9"]
    code = "import sys; from ucl.cli.main import main\n"
    code += "sys.exit({main(['sweep', '--config', 'c.json', '--scheduler', a]) for a in sys.argv[1:]} != {2})"
    (tmp_path / "c.json").write_text('{"dataset": "nowhere.npz"}')
    done = subprocess.run(
        [sys.executable, "-c", code, *addresses], capture_output=True, text=True, cwd=tmp_path, timeout=200
    )
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert len(lines) == len(addresses)
    for address, line in zip(addresses, lines, strict=True):
        assert line.startswith(f"ucl sweep: --scheduler {address}: no dask scheduler answers there (")
    assert not (tmp_path / "runs").exists()


RESTLESS = """
import numpy as np
from conftest import bands

def images():
    train, labels = bands(48)
    return train ^ np.random.default_rng().integers(0, 2, train.shape, dtype=np.uint8), labels, *bands(24)
"""


def test_own_images_that_cannot_be_compared_for_a_moment_do_not_end_a_sweep(folder, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (folder / "steady.py").write_text(
        "from conftest import bands\n\ndef images():\n    return *bands(48), *bands(24)\n"
    )
    monkeypatch.setattr("ucl.sweeps.loop.other_images", fail)
    fields = dict(n_tasks=2, memory_size=8, model="counted:network", population="reservoir")
    (record,) = sweep([Config(dataset="steady:images", **fields)], tmp_path / "runs", **SWEEP)
    assert record.config.dataset == "steady:images"


@pytest.mark.parametrize("kind", [None, ThreadPoolExecutor])
def test_a_function_whose_images_differ_at_each_call_is_named_before_more_of_its_runs_begin(
    tiny, folder, tmp_path, kind
):
    (folder / "restless.py").write_text(RESTLESS)
    fields = dict(n_tasks=2, memory_size=8, model="counted:network", population="reservoir")
    configs = [Config(dataset="restless:images", seed=seed, **fields) for seed in range(5)]
    other = tiny.replace(model="counted:network", population="reservoir")
    with contextlib.nullcontext() if kind is None else kind(1) as executor, pytest.raises(SweepError) as raised:
        sweep([*configs, other], tmp_path / "runs", executor, **SWEEP)
    assert [record.config for record in raised.value.records] == [other]
    records = [record for record in RecordStore(tmp_path / "runs") if record.config != other]
    assert len(records) == 1 if kind is None else 1 <= len(records) < 5  # An executor may have begun another one.
    assert len(raised.value.failures) == 5
    (reason,) = set(raised.value.failures.values())
    assert reason.startswith("restless:images returned other images than in the run (fingerprint ")
    assert any(f"instead of {record.version.images}), so" in reason for record in records)
    assert "return the same images at each call" in reason
