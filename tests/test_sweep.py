"""Sweeps: each experiment runs once, whatever is killed, with any number of processes on one store."""

import errno
import fcntl
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import python, refused, run
from test_ends import is_alive, wait_for

import ucl
from ucl import Config, InputError, RecordStore
from ucl.cli.main import main
from ucl.config import unique
from ucl.machine.terminal import duration
from ucl.sweeps import locks
from ucl.sweeps.grid import shard
from ucl.sweeps.progress import status
from ucl.sweeps.sweep import SweepError, automatic_jobs, sweep

pytestmark = pytest.mark.usefixtures("small_networks")
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
    raise ZeroDivisionError("no views, no score")

def kills_its_process(logits):
    os.kill(os.getpid(), 9)

def leaves(logits):
    os._exit(3)

def prints(logits):
    print("a line of the user's")
    return bregman_information(logits)
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


def scored(config, score="score", seeds=(0,)):
    fields = {"population": "uncertainty", "score": f"counted:{score}", "model": "counted:network"}
    return [config.replace(**fields, seed=seed) for seed in seeds]


@pytest.fixture(scope="module")
def undisturbed(tiny, folder):
    """The results of each undisturbed run, and the number of calls of the counted score in one run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALLS", str(folder / "calls"))
        patch.syspath_prepend(folder)
        records = sweep(scored(tiny, seeds=range(4)), folder / "undisturbed", **SWEEP)
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


# What is run


def test_only_runs_without_a_record_are_measured(tiny, tmp_path):
    configs = [tiny.replace(seed=seed) for seed in range(3)]
    first = sweep(configs[1:2], tmp_path / "runs", **SWEEP)
    records = sweep(configs, tmp_path / "runs", **SWEEP)
    again = sweep(configs, tmp_path / "runs", **SWEEP)
    assert [r.config for r in records] == configs and records[1].to_json() == first[0].to_json()
    assert [r.to_json() for r in again] == [r.to_json() for r in records]
    assert set((tmp_path / "runs").iterdir()) == {RecordStore(tmp_path / "runs").path(config) for config in configs}


def test_processes_give_what_one_gives_and_one_that_ends_is_a_failed_run(tiny, tmp_path, undisturbed, set_threads):
    set_threads(2)
    bad = [*scored(tiny, "kills_its_process"), *scored(tiny, "leaves")]
    good = [*scored(tiny, seeds=[0]), *scored(tiny, "prints", seeds=[1])]
    with pytest.raises(SweepError) as raised:
        sweep([*bad, *good], tmp_path / "runs", jobs=2, device="cpu", progress=False)
    records, expected = raised.value.records, [undisturbed[0][config.key] for config in scored(tiny, seeds=range(2))]
    assert [r.config for r in records] == good and [r.results for r in records] == expected
    assert {record.environment["threads"] for record in records} == {1}
    (killed, why_killed), (left, why_left) = raised.value.failures.items()
    assert bad[0].key in killed and "killed by SIGKILL" in why_killed and "memory" in why_killed
    assert bad[1].key in left and "exit code 3" in why_left and "memory" not in why_left


def test_automatic_jobs_are_bounded_by_cores_by_memory_and_by_that_of_the_gpu(monkeypatch):
    gib, free = 2**30, {"machine": 64 * 2**30, "gpu": 140 * 2**30}
    monkeypatch.setattr(ucl.sweeps.sweep, "available_bytes", lambda: free["machine"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free["gpu"], 140 * gib))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    assert [automatic_jobs(cpu), automatic_jobs(gpu), automatic_jobs(cpu, 4), automatic_jobs(cpu, 32)] == [16, 16, 4, 1]
    free["gpu"] = 15 * gib
    assert [automatic_jobs(cpu), automatic_jobs(gpu)] == [16, 3]
    free["machine"] = gib
    assert automatic_jobs(cpu) == automatic_jobs(gpu) == 1
    monkeypatch.setattr(ucl.sweeps.sweep, "available_bytes", lambda: None)
    assert automatic_jobs(cpu) == 16


def test_equal_experiments_run_once_and_each_has_its_record(tiny, tmp_path, capsys):
    """Under reservoir sampling, two scores cannot give different results."""
    configs = [tiny, tiny.replace(seed=1), tiny.replace(score="LC"), tiny]
    records = sweep(iter(configs), tmp_path / "runs", device="cpu", threads=1)
    assert len(capsys.readouterr().err.splitlines()) == 1 + 2
    assert [r.config.key for r in records] == [c.key for c in configs] and unique(configs) == configs[:2]


def test_the_number_of_threads_is_set_for_a_sweep_and_restored(tiny, tmp_path):
    (record,) = sweep([tiny], tmp_path / "runs", device="cpu", progress=False, threads=2)
    assert record.environment["threads"] == 2
    assert torch.get_num_threads() == 1


# Failures


def test_a_run_that_fails_is_named_and_the_others_go_on(tiny, tmp_path, capsys):
    small = tiny.replace(memory_size=2, population="class-balanced")
    configs = [small, tiny, *scored(tiny, "fails"), small.replace(seed=1), tiny.replace(seed=1)]
    with pytest.raises(SweepError) as raised:
        sweep(configs, tmp_path / "runs", device="cpu", threads=1)
    error, store = raised.value, RecordStore(tmp_path / "runs")
    assert [r.config for r in error.records] == [configs[1], configs[4]]
    assert list(error.failures) == [store.path(configs[i]).stem for i in (0, 2, 3)]
    memory_line, score_line = str(error).splitlines()[1:]  # each error once, with the runs
    assert "memory_size=2" in memory_line and all(store.path(configs[i]).stem in memory_line for i in (0, 3))
    assert "ZeroDivisionError: no views, no score" in score_line and "counted.py" in score_line
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert ", memory 2, CBR, seed 0: failed: memory_size=2" in capsys.readouterr().err
    assert not list(store.folder.glob(".*"))


def test_images_that_cannot_be_downloaded_are_refused_after_one_download(tiny, tmp_path, monkeypatch):
    tried = []

    def fetch(name, target):
        tried.append(name)
        raise InputError("dataset", name, "can't be downloaded (no network)")

    monkeypatch.setenv("UCL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(ucl.streams.datasets, "fetch", fetch)
    absent = [Config(dataset="cifar10", population="reservoir", seed=seed) for seed in range(3)]
    with pytest.raises(InputError):
        sweep([tiny, *absent], tmp_path / "runs", device="cpu")
    assert tried == ["cifar10"] and not (tmp_path / "runs").exists()


REFUSED = [
    *(("jobs", value) for value in (0, 2.0, "many")),
    *(("threads", 0), ("device", "tpu"), ("store", __file__), ("population", "ucl.buffers:Reservoir")),
    *(("dataset", "counted:images"), ("dataset", "nowhere.npz"), ("configs", "grid.yaml")),
    ("executor", ProcessPoolExecutor(1, multiprocessing.get_context("fork"))),
]


@pytest.mark.parametrize(("argument", "value"), REFUSED)
def test_an_argument_that_cannot_be_used_is_refused_at_once(tiny, tmp_path, argument, value):
    arguments = {"configs": [tiny], "store": tmp_path / "runs", **SWEEP}
    is_field = argument in ("population", "dataset")
    arguments |= {"configs": [tiny, tiny.replace(**{argument: value})]} if is_field else {argument: value}
    with refused(argument):
        sweep(**arguments)
    assert not (tmp_path / "runs").exists()


def test_a_users_executor_that_breaks_loses_no_finished_run(tiny, tmp_path):
    (bad,) = scored(tiny, "kills_its_process")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as executor, pytest.raises(SweepError) as raised:
        sweep([tiny, bad, tiny.replace(seed=1)], tmp_path / "runs", executor, **SWEEP)
    assert [r.config for r in raised.value.records] == [tiny]
    assert all("BrokenProcessPool" in why for why in raised.value.failures.values())


SCRIPT = """
import ucl

def score(logits_PNC):
    return logits_PNC.amax((0, 2))

if __name__ == "__main__":
    (config,) = ucl.grid("config.json")
    for jobs in (1, 2):
        records = ucl.sweep([config], f"jobs {jobs}", jobs=jobs, device="cpu", threads=1)
        print(records[0].accuracy.tolist())
"""


def test_processes_have_the_objects_of_a_script(tiny, tmp_path):
    config = tiny.replace(population="uncertainty", score="__main__:score", model="counted:network")
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "script.py").write_text(SCRIPT)
    first, second = python("script.py", environment={"PYTHONPATH": os.environ["PYTHONPATH"]}, cwd=tmp_path).splitlines()
    assert first == second


# Locks


def test_a_lock_can_be_opened_by_every_account_that_works_on_the_folder(tmp_path):
    before = os.umask(0o022)
    try:
        with locks.held(tmp_path / ".lock-1"):
            assert stat.S_IMODE((tmp_path / ".lock-1").stat().st_mode) == 0o666
    finally:
        os.umask(before)


def test_a_locked_run_is_skipped_and_reported_and_free_after_its_process(tiny, tmp_path):
    path, other = locks.path_of(tmp_path, tiny), tiny.replace(seed=1)
    with locks.held(path):
        assert not locks.is_free(path) and holders(tmp_path) == {os.getpid()}
        with pytest.raises(SweepError) as raised:
            sweep([tiny, other], tmp_path, **SWEEP)
        assert [record.config for record in raised.value.records] == [other]
        assert list(raised.value.failures) == [RecordStore(tmp_path).path(tiny).stem]
        (row,) = status([tiny, other, tiny.replace(seed=2)], tmp_path, "cpu").itertuples()
        assert (row.measured, row.locked, row.missing) == (1, [0], [2])
    path.touch()  # as a killed process leaves it
    assert len(sweep([tiny], tmp_path, **SWEEP)) == 1
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_another_process_stores_meanwhile_has_its_record(tiny, tmp_path, monkeypatch):
    record, other = run(tiny), tiny.replace(seed=1)
    with locks.held(locks.path_of(tmp_path, tiny)):
        monkeypatch.setattr("ucl.sweeps.progress.SweepProgress.finished", lambda *_: RecordStore(tmp_path).save(record))
        records = sweep([tiny, other], tmp_path, **SWEEP)
    assert [r.config for r in records] == [tiny, other] and records[0].to_json() == record.to_json()


def test_on_a_file_system_without_locks_all_is_run_with_a_warning(tiny, tmp_path, monkeypatch):
    def refuse(*_):  # as Lustre mounted without locks
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="no file locks"):
        assert len(sweep([tiny], tmp_path, **SWEEP)) == 1


# Several sweeps on one store, and kills


@pytest.fixture
def start(tmp_path):
    """Start the command `ucl sweep` in a process."""

    def started(configs, jobs, **environment):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps([json.loads(config.to_json()) for config in configs]))
        command = [sys.executable, "-m", "ucl", "sweep", "--config", str(file), "--store", str(tmp_path / "runs")]
        command += ["--jobs", str(jobs), "--device", "cpu", "--threads", "1"]
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, env={**os.environ, **environment}, text=True, **pipes)

    return started


def test_two_sweeps_on_one_store_run_each_experiment_once_and_agree(tiny, tmp_path, calls, undisturbed, start, capsys):
    expected, calls_per_run = undisturbed
    configs = scored(tiny, seeds=range(4))
    process, store, code = start(configs, 1, PAUSE="0.05"), tmp_path / "runs", 0
    wait_for(lambda: holders(store) or process.poll() is not None)
    try:
        sweep(configs[::-1], store, device="cpu", threads=1)
    except SweepError:  # One may end while the other measures the last run.
        code = 1
    reported = process.communicate(timeout=120)[1] + capsys.readouterr().err
    assert 0 in (process.returncode, code)
    assert sorted(re.findall(r"seed (\d): A ", reported)) == list("0123")
    assert calls() == 4 * calls_per_run
    assert results(RecordStore(tmp_path / "runs")) == expected
    assert not list((tmp_path / "runs").glob(".*"))


def test_a_sweep_killed_at_any_moment_is_resumed_and_loses_nothing(tiny, tmp_path, undisturbed, start):
    expected, _ = undisturbed
    configs, store = scored(tiny, seeds=range(4)), RecordStore(tmp_path / "runs")
    process = start(configs, 2, PAUSE="0.1")
    wait_for(lambda: holders(store.folder))
    time.sleep(random.uniform(0, 2.0))
    measuring = holders(store.folder)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not any(map(is_alive, measuring)))  # processes of runs end with their sweep
    finished = {path: path.read_bytes() for path in store.folder.glob("*.json")}
    assert results(store).items() <= expected.items()
    assert results(sweep(configs, store.folder, **SWEEP)) == expected
    assert {path: path.read_bytes() for path in finished} == finished  # finished records are unchanged


@pytest.mark.filterwarnings("ignore")
def test_on_dask_workers_of_which_one_is_killed_nothing_is_lost(tiny, tmp_path, monkeypatch, calls, undisturbed):
    """A real scheduler with two worker processes, restarted by their nannies."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PAUSE", "0.1")
    (expected, calls_per_run), store = undisturbed, tmp_path / "killed"
    where = dict(processes=True, n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
    with distributed.LocalCluster(**where, silence_logs=50) as cluster, cluster.get_client() as client:
        executor = client.get_executor()
        calm = results(sweep(scored(tiny, seeds=range(2)), tmp_path / "calm", executor, **SWEEP))
        assert calm.items() <= expected.items() and len(calm) == 2
        assert calls() == 2 * calls_per_run
        killer = threading.Thread(target=lambda: os.kill(wait_for(lambda: holders(store)).pop(), signal.SIGKILL))
        killer.start()
        with suppress(SweepError):
            sweep(scored(tiny, seeds=range(4)), store, executor, **SWEEP)
        killer.join()
    assert results(sweep(scored(tiny, seeds=range(4)), store, **SWEEP)) == expected


def test_a_command_that_is_cancelled_waits_for_nothing_and_leaves_what_was_finished(tiny, tmp_path, undisturbed, start):
    """A cluster sends SIGTERM when the time limit of a job is reached. The last two runs would take many minutes."""
    store = RecordStore(tmp_path / "runs")
    process = start([*scored(tiny), *scored(tiny, "sleeps", range(2, 4))], 2)
    try:
        wait_for(lambda: len(list(store)) == 1 and len(holders(store.folder)) == 2)
        measuring, begin = holders(store.folder), time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - begin < 20
    finally:
        process.kill()
    assert process.returncode == 143 and "Traceback" not in errors
    assert not any(map(is_alive, measuring))
    assert len(list(store)) == 1 and results(store).items() <= undisturbed[0].items()
    # A process may be stopped during a write, which leaves a `.part` file. Checkpoints stay, so that runs can resume;
    # the files of locks stay, too, and the system has released the locks.
    assert not [p for p in store.folder.glob(".*") if not re.match(r"\.(checkpoint|lock)-|.*\.part$", p.name)]


# Parts of a grid, names, progress and status


def test_the_shards_of_a_grid_are_the_grid():
    grid = [Config(seed=seed, score=score) for seed in range(4) for score in ("BI", "LC", "MS")]
    for n in (1, 7, 12, 30):
        parts = [shard(grid + grid[:5], i, n) for i in range(1, n + 1)]
        assert sorted(config.key for part in parts for config in part) == sorted(config.key for config in grid)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_durations_have_units_that_people_read():
    reported = [duration(s) for s in (0.4, 89, 90, 5000, 12_000, 190_000)]
    assert reported == ["0 s", "89 s", "2 min", "83 min", "3 h 20 min", "2 d 5 h"]


def test_the_status_counts_what_is_missing_and_estimates_its_time_from_the_runs_of_this_processor(tiny, tmp_path):
    bottom = tiny.replace(population="uncertainty")
    records = sweep([tiny, tiny.replace(seed=1), bottom], tmp_path / "runs", **SWEEP)
    times = [r.timing["total"] for r in records]
    wanted = [c.replace(seed=s) for s in range(4) for c in (tiny, bottom, tiny.replace(method="finetune"))]
    table = status(wanted, tmp_path / "runs", "cpu")
    assert table[["label", "runs", "measured", "missing"]].to_numpy().tolist() == [
        ["ER", 4, 2, [2, 3]],
        ["BI bottom, precision=float32", 4, 1, [1, 2, 3]],
        ["Finetune", 4, 0, [0, 1, 2, 3]],
    ]
    assert table["memory_size"].isna().tolist() == [False, False, True]
    assert table["seconds"].tolist() == pytest.approx([sum(times[:2]), 3 * times[2], np.nan], nan_ok=True)
    records[2].environment["processor"] = "another"
    RecordStore(tmp_path / "runs").save(records[2])
    assert status(wanted, tmp_path / "runs", "cpu")["seconds"].isna().tolist() == [False, True, True]


# The command


@pytest.fixture
def mine(tiny, tmp_path, monkeypatch):
    """Arguments for two runs with a small network, and their store."""
    monkeypatch.chdir(tmp_path)
    tiny = tiny.replace(model="counted:network")
    (tmp_path / "mine.json").write_text(json.dumps([json.loads(tiny.replace(seed=s).to_json()) for s in (0, 5)]))
    return ["--config", "mine.json", "--store", "runs", "--device", "cpu"]


def test_the_command_sweeps_reports_and_resumes(mine, cli):
    code, out, _ = cli("status", *mine)
    assert code == 1 and out.splitlines()[-1].startswith("0 of 2 runs are in runs")
    code, out, errors = cli("sweep", "--seeds", 0, 1, "--threads", 1, *mine)
    assert code == 0 and out.startswith("all 2 runs are in runs")
    result = r"tiny.npz, .*memory 8, ER, .*seed [01]: A \d+\.\d %, F -?\d+\.\d %, \d+ s"
    assert re.search(rf"1 of 2: {result}; about \d+ s left\n", errors)
    assert re.search(rf"2 of 2: {result}\n", errors)
    code, out, _ = cli("status", *mine)
    assert code == 1 and re.search(r"8 +ER, model=counted:network +2 +1 +5 +\d+ s", out)
    assert cli("sweep", *mine, "--jobs", "auto")[0] == 0
    code, out, _ = cli("status", *mine)
    assert code == 0 and out.endswith("2 of 2 runs are in runs\n")


def test_a_sweep_goes_on_without_a_reader_of_its_lines(mine, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), open(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main(["sweep", *mine]) == 0
    assert len(list(RecordStore("runs"))) == 2


def test_the_tables_of_the_paper_are_grids_of_the_command(tmp_path, cli):
    where = ["--store", tmp_path / "nowhere", "--device", "cpu"]
    code, out, _ = cli("status", "table1", "--seeds", 0, 1, 2, *where)
    assert code == 1 and "\n0 of 144 runs are in " in out
    assert len(re.findall(r" 3 +0 +0 1 2 +unknown\n", out)) == 48  # 24 methods, two sizes
    code, out, _ = cli("status", "table1", "table4", "--shard", "1/20", *where)
    assert code == 1 and out.splitlines()[-1].startswith("0 of 8 runs are in ")
    assert not (tmp_path / "nowhere").exists()


def test_a_field_may_be_set_for_all_runs_of_the_command(mine, cli):
    """If a field makes no difference, the run is the same as without it: ER does not rescore."""
    assert cli("sweep", *mine, "--threads", 1, "--set", "refresh", 2, "--set", "lr", "5e-2")[0] == 0
    assert {(record.config.lr, record.config.refresh) for record in RecordStore("runs")} == {(0.05, 2)}
    assert cli("status", *mine, "--set", "lr", 0.05)[0] == 0 and cli("status", *mine)[0] == 1
