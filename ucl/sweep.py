"""Sweeps: what a store lacks is run, on any `concurrent.futures.Executor`, and resumed after whatever stopped it.

Each run writes its own record when it ends, and claims its experiment while it lasts, so that sweeps on one store, on
any number of machines that share its folder, divide the work between them and lose nothing that was finished.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from tqdm import tqdm

from ucl.config import SCORE_NAMES, Config, InputError
from ucl.experiment import _progress_bar, run
from ucl.hardware import environment, resolve_device
from ucl.records import Record, RecordStore

HEARTBEAT = 30.0  # seconds between two signs of life of a claim
STALE_AFTER = 300.0  # seconds after which a claim without one is anybody's, should its host be out of sight
LOOK_EVERY = 1.0  # seconds between two looks at what another sweep is running

_one_at_a_time = threading.Lock()  # a run uses torch's global generator: one a process, whatever the executor


class SweepError(RuntimeError):
    """Some runs of a sweep failed; the others went on.

    Attributes:
        failures: what went wrong, in one line, by the name of the experiment's record.
        records: the records of all other experiments of the sweep, in order.
    """

    def __init__(self, failures: dict[str, str], records: list[Record]) -> None:
        self.failures, self.records = failures, records
        super().__init__(failures, records)

    def __str__(self) -> str:
        runs = "1 run" if len(self.failures) == 1 else f"{len(self.failures)} runs"
        others = len({record.config.key for record in self.records})
        lines = [f"  {name}: {error}" for name, error in self.failures.items()]
        return "\n".join([f"{runs} failed; the records of the other {others} are there", *lines])


class _Outcome(NamedTuple):
    """What comes back from a worker; the record itself is in the store."""

    state: str  # measured, there, elsewhere or failed
    seconds: float = 0.0
    error: str = ""


def sweep(
    configs: Iterable[Config],
    store: str | Path = "runs",
    executor: Executor | None = None,
    jobs: int = 1,
    device: str = "auto",
    root: str | Path | None = None,
    progress: bool | None = None,
    threads: int | None = None,
) -> list[Record]:
    """Run what the store lacks; stopped at any moment, even by a power cut, and called again, it goes on.

    Equal experiments (equal `Config.key`) run once. Several sweeps may work on one store at a time: what one is running
    the others leave to it, until it is done or dead. In a script, call this under ``if __name__ == "__main__":`` when
    `jobs` is above 1, as for all process pools.

    Args:
        configs: the experiments.
        store: folder of the records.
        executor: where the runs go: any `concurrent.futures.Executor` whose workers see the folders of the store and
            of the data, such as ``distributed.Client("tcp://host:8786").get_executor()``; one run a process at a time.
            A data set given as a path should then be an absolute one. It is not shut down. By default this process for
            `jobs=1`, and worker processes above that.
        jobs: runs at a time, without an executor.
        device: where each run computes, see `ucl.run`.
        root: folder of the data sets, see `ucl.datasets.load`.
        progress: whether to show a progress bar over the runs; None shows one in a terminal or notebook.
        threads: processor threads of a run; None shares this process's among the `jobs`, and leaves those of an
            executor's workers as they are. A result repeats bit for bit with the same number of threads.

    Returns:
        The record of each of the `configs`, in order.

    Raises:
        InputError: (a ValueError) an argument can't be used.
        SweepError: some runs failed; raised when all others are done. Its `records` are those of the others.
    """
    configs = _checked(configs)
    if executor is not None and jobs != 1:
        raise InputError("jobs", jobs, "the executor decides how many run at a time; leave this out")
    for name, value in {"jobs": jobs, "threads": 1 if threads is None else threads}.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
            raise InputError(name, value, "give a whole number from 1 to 1024")
    records = RecordStore(Path(store).absolute())
    missing = [config for config in unique(configs) if config not in records]
    failures: dict[str, str] = {}
    if missing:
        records.check_writable()
        if executor is None:
            resolve_device(device)
        if jobs > 1:
            threads = threads or max(1, torch.get_num_threads() // jobs)
        ours = None if executor else _WorkerProcesses(min(jobs, len(missing))) if jobs > 1 else _ThisProcess()
        folder = None if root is None else str(Path(root).absolute())
        workers: Any = executor or ours
        submit = partial(workers.submit, _measure, str(records.folder), device, folder, threads)
        try:
            failures = _run_all(missing, records, submit, progress)
        except BaseException:
            if ours:
                ours.shutdown(cancel_futures=True)
            raise
        finally:
            if ours:
                ours.shutdown()
            for path in records.folder.glob(".claim-*"):
                _clear(path)
    return _load_all(configs, records, failures)


def unique(configs: Iterable[Config]) -> list[Config]:
    """The configurations without repetitions of an experiment, in order."""
    found: dict[str, Config] = {}
    for config in configs:
        found.setdefault(config.key, config)
    return list(found.values())


def shard(configs: Iterable[Config], i: int, n: int) -> list[Config]:
    """The i-th of n parts of a grid, the first being 1: no two share an experiment, all together are the grid."""
    return unique(configs)[i - 1 :: n]


def status(configs: Iterable[Config], store: str | Path = "runs", device: str = "auto") -> pd.DataFrame:
    """How far a sweep is.

    Args:
        configs: the experiments of the sweep.
        store: folder of the records.
        device: where the missing runs would compute.

    Returns:
        A row for each data set, memory size and method: dataset, memory_size (NA where there is none), label, runs,
        measured, missing (the seeds that lack) and seconds, which the missing runs would take here, one after another,
        judging by the store's records that cost alike, from such a processor and device; NaN where there is none.

    Raises:
        InputError: (a ValueError) the store or the device can't be used.
    """
    records = RecordStore(store)
    rows: dict[tuple, dict[str, Any]] = {}
    here = environment(resolve_device(device), torch.float32)
    seconds: dict[frozenset, list[float]] = {}
    for record in records:
        if all(record.environment.get(k) == here[k] for k in ("processor", "device")):
            seconds.setdefault(_cost_class(record.config), []).append(record.timing["total"])
    for config in unique(_checked(configs)):
        group = {"dataset": config.dataset, "memory_size": config.relevant.get("memory_size"), "label": config.label}
        row = rows.setdefault(tuple(group.values()), {**group, "runs": 0, "measured": 0, "missing": [], "seconds": 0.0})
        row["runs"] += 1
        if config in records:
            row["measured"] += 1
        else:
            row["missing"].append(config.seed)
            row["seconds"] += _mean(seconds.get(_cost_class(config), []))
    columns = ["dataset", "memory_size", "label", "runs", "measured", "missing", "seconds"]
    return pd.DataFrame(list(rows.values()), columns=columns).astype({"memory_size": "Int64"})


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The workers of a dask scheduler, as an executor for `sweep`.

    Raises:
        InputError: dask.distributed is not installed, or no scheduler answers at the address.
    """
    try:
        from distributed import Client
    except ImportError:
        reason = "needs dask.distributed: python -m pip install distributed"
        raise InputError("scheduler", address, reason) from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = f"no dask scheduler answers there ({_in_one_line(error)}); give tcp://host:port as it printed it"
        raise InputError("scheduler", address, reason) from None
    with client:
        yield client.get_executor(pure=False)


# The loop


def _run_all(
    missing: list[Config], records: RecordStore, submit: Callable[..., Future], progress: bool | None
) -> dict[str, str]:
    """Run all, and wait for what other sweeps are running; returns what failed, by the name of the record."""
    failures: dict[str, str] = {}
    to_submit, running, elsewhere = deque(missing), dict[Future, Config](), list[Config]()
    with _Bar(missing, progress) as bar:
        try:
            while to_submit or running or elsewhere:
                while to_submit:
                    config = to_submit.popleft()
                    # the name differs at each call: dask takes equal calls for one
                    future = submit(config, uuid.uuid4().hex)
                    running[future] = config
                    if future.done():
                        break
                if running:
                    done = wait(running, LOOK_EVERY, FIRST_COMPLETED).done
                else:
                    time.sleep(LOOK_EVERY)
                    done = set()
                for future in done:
                    config, outcome = running.pop(future), _outcome(future)
                    if outcome.state == "elsewhere":
                        elsewhere.append(config)
                        continue
                    if outcome.state == "failed":
                        failures[records.path(config).stem] = outcome.error
                    bar.finished(config, outcome.seconds)
                for config in elsewhere[:]:
                    claim = _claim_path(records, config)
                    if not claim.exists() or _clear(claim):
                        elsewhere.remove(config)
                        to_submit.append(config)
                bar.tell(len(elsewhere))
        except BaseException:
            for future in running:
                future.cancel()
            raise
    return failures


def _outcome(future: Future) -> _Outcome:
    try:
        return future.result()
    except Exception as error:  # of the executor; those of the run itself come as an outcome
        return _Outcome("failed", error=_in_one_line(error, tell_where=False))


def _load_all(configs: list[Config], store: RecordStore, failures: dict[str, str]) -> list[Record]:
    found: dict[str, Record] = {}
    for config in unique(configs):
        name = store.path(config).stem
        try:
            if name not in failures:
                found[config.key] = store.load(config)
        except InputError as error:
            failures[name] = str(error)
    records = [found[config.key] for config in configs if config.key in found]
    if failures:
        raise SweepError(failures, records)
    return records


def _checked(configs: Iterable[Config]) -> list[Config]:
    found = list(configs) if isinstance(configs, Iterable) else [None]
    if not all(isinstance(config, Config) for config in found):
        raise InputError("configs", configs, "give a list of ucl.Config")
    return found


class _Bar:
    """Progress over the runs, and the time that the rest will take, judging by the runs that were alike."""

    def __init__(self, missing: list[Config], progress: bool | None) -> None:
        self._left = {config.key: _cost_class(config) for config in missing}
        self._seconds: dict[frozenset, list[float]] = {}
        self._begin = time.monotonic()
        self._bar = _progress_bar(len(missing), "sweep", progress)
        self._bar.unit = " runs"
        self._bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} runs, {elapsed}{postfix}"

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def finished(self, config: Config, seconds: float) -> None:
        alike = self._left.pop(config.key)
        if seconds:
            self._seconds.setdefault(alike, []).append(seconds)
        self._bar.update()

    def tell(self, elsewhere: int) -> None:
        """Show the time left, and how many runs are another sweep's just now."""
        spent = [s for seconds in self._seconds.values() for s in seconds]
        told = []
        if spent and self._left:
            costs = [_mean(self._seconds.get(alike, spent)) for alike in self._left.values()]
            at_a_time = sum(spent) / (time.monotonic() - self._begin)
            told.append(f"about {duration(sum(costs) / at_a_time)} left")
        if elsewhere:
            told.append(f"{elsewhere} running elsewhere")
        self._bar.set_postfix_str(", ".join(told))


def duration(seconds: float) -> str:
    """A time as people say it: "40 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _cost_class(config: Config) -> frozenset:
    """What the time of a run depends on: equal for runs that cost alike."""
    fields = config.relevant
    for name in ("seed", "selection", "averaging", *(() if config.uses_scores else ("memory_size",))):
        fields.pop(name, None)
    if config.score in SCORE_NAMES and config.score != "MC":
        fields.pop("score", None)  # made from the same passes of the same views
    return frozenset(fields.items())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


# One run, in whatever process


def _measure(folder: str, device: str, root: str | None, threads: int | None, config: Config, name: str) -> _Outcome:
    """Run and store one experiment, unless it is there or another sweep runs it; `name` is this call's own."""
    store = RecordStore(folder)
    with _one_at_a_time:
        before = torch.get_num_threads()
        try:
            with _claimed(_claim_path(store, config), name) as ours:
                if config in store:
                    return _Outcome("there")
                if not ours:
                    return _Outcome("elsewhere")
                if threads:
                    torch.set_num_threads(threads)
                record = run(config, device, root, progress=False)
                store.save(record)
                return _Outcome("measured", record.timing["total"])
        except Exception as error:
            return _Outcome("failed", error=_in_one_line(error))
        finally:
            torch.set_num_threads(before)


def _in_one_line(error: BaseException, tell_where: bool = True) -> str:
    text = " ".join(str(error).split())[:300]
    if isinstance(error, InputError):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1:] if tell_where else []
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


# Claims: the right to run one experiment, a file beside the records for as long as the run lasts. It holds who runs it
# and is touched every HEARTBEAT. Its owner dead, on this host, or silent for STALE_AFTER, anyone may clear it. Should
# two hold one after all, such as a process that was suspended, an experiment runs twice and no record is harmed.


def _claim_path(store: RecordStore, config: Config) -> Path:
    return store.folder / f".claim-{config.key}"


@contextmanager
def _claimed(path: Path, name: str) -> Iterator[bool]:
    pid = os.getpid()
    mine = json.dumps({"host": _host(), "pid": pid, "born": _born(pid), "name": name})
    done = threading.Event()
    try:
        ours = _create(path, mine) or (_clear(path) and _create(path, mine))
        if ours:
            threading.Thread(target=_beat, args=(path, mine, done), daemon=True).start()
        yield ours
    finally:
        done.set()
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _create(path: Path, text: str) -> bool:
    """Make a claim that is whole from its first moment on; False where there is one."""
    whole = path.with_name(f".claim-{uuid.uuid4().hex}")
    try:
        whole.write_text(text, encoding="utf-8")
        try:
            os.link(whole, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        return True
    except FileExistsError:
        return _read(path) == text  # NFS may say so of what it has just done
    finally:
        whole.unlink(missing_ok=True)


def _beat(path: Path, text: str, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT) and _read(path) == text:
        with suppress(OSError):
            os.utime(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_abandoned(path: Path) -> bool:
    try:
        if time.time() - path.stat().st_mtime > STALE_AFTER:
            return True
        owner = json.loads(_read(path))
        return owner["host"] == _host() and not _is_alive(owner["pid"], owner["born"])
    except (OSError, ValueError, TypeError, KeyError):  # gone, or not written yet
        return False


def _clear(path: Path) -> bool:
    """Remove a claim if it is abandoned. Of several that try, one succeeds: a file can be moved away only once."""
    if not _is_abandoned(path):
        return False
    away = path.with_name(f".claim-{uuid.uuid4().hex}")
    try:
        path.rename(away)
        if _is_abandoned(away):
            away.unlink()
            return True
        away.rename(path)  # somebody was faster, and this is their new claim
    except OSError:
        pass
    return False


def _host() -> str:
    """This machine, or this container, within which process numbers are comparable."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()


def _is_alive(pid: int, born: str) -> bool:
    """Whether the process of this host that had this number and beginning still runs."""
    if os.name == "nt":
        return True  # asking with a signal, as below, would end it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _born(pid) == born


def _born(pid: int) -> str:
    """When a process of this host began, as Linux counts; "dead" once it ended, "" where that can't be told."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "dead" if state in "ZX" else fields[18]


# Where runs go without an executor


class _ThisProcess(Executor):
    def submit(self, function: Callable, /, *arguments: Any, **named: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments, **named))
        return future


class _WorkerProcesses(ThreadPoolExecutor):
    """Worker processes that die alone: one that is killed is replaced, and what it was running runs once more.

    In one `ProcessPoolExecutor`, all workers end with the first that is killed; so here each has a pool to itself, and
    a thread that looks after it. The workers end when this process does, however it ends.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._own = threading.local()
        self._lock = threading.Lock()
        self._closed = False
        self._pools: list[tuple[ProcessPoolExecutor, Any]] = []

    def submit(self, function: Callable, /, *arguments: Any, **named: Any) -> Future:
        return super().submit(self._in_a_process, function, *arguments, **named)

    def _in_a_process(self, function: Callable, *arguments: Any, **named: Any) -> Any:
        for _ in range(2):
            try:
                return self._pool().submit(function, *arguments, **named).result()
            except BrokenProcessPool:
                self._own.pool = None
        raise BrokenProcessPool(
            "its worker process died twice: was there too little memory, or no if __name__ == '__main__' in the script?"
        )

    def _pool(self) -> ProcessPoolExecutor:
        if getattr(self._own, "pool", None) is None:
            spawn = multiprocessing.get_context("spawn")
            with self._lock:
                if self._closed:
                    raise RuntimeError("the sweep was stopped")
                theirs, ours = spawn.Pipe(duplex=False)
                self._own.pool = ProcessPoolExecutor(1, spawn, _begin_worker, (theirs,))
                self._pools.append((self._own.pool, ours))
        return self._own.pool

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers: when all is done, or with `cancel_futures` at once, whatever they are doing."""
        with self._lock:
            self._closed = cancel_futures
        if cancel_futures:
            self._cut_lifelines()
        super().shutdown(wait, cancel_futures=cancel_futures)
        for pool, _ in self._pools:
            pool.shutdown(wait)
        self._cut_lifelines()

    def _cut_lifelines(self) -> None:
        for _, lifeline in self._pools:
            lifeline.close()


def _begin_worker(lifeline: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the sweep answers it
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a worker that is stopped would leak
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Any) -> None:
    lifeline.poll(None)  # nothing is ever sent: this returns when the other end is closed
    os._exit(1)
