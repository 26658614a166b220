"""Sweeps: what a store lacks is run, on any `concurrent.futures.Executor`, and resumed after whatever stopped it.

Each run writes its own record when it ends, and is locked while it lasts, so that sweeps on one store, on any number of
machines that share its folder, divide the work between them and lose nothing that was finished.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import nullcontext
from functools import partial
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch

from ucl import own
from ucl.config import Config, unique
from ucl.errors import InputError, whole_number
from ucl.machine import checkpoints
from ucl.machine.hardware import environment, resolve_device
from ucl.records import Record, RecordStore, failures, versions
from ucl.sweeps import locks
from ucl.sweeps.progress import SweepProgress, cost_class
from ucl.sweeps.workers import Outcome, ThisProcess, Watch, WorkerProcesses, in_one_line, measure

__all__ = ["SweepError", "status", "sweep"]

LOOK_EVERY = 1.0  # seconds between two looks at what another sweep is running


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


def sweep(
    configs: Iterable[Config],
    store: str | Path = "runs",
    executor: Executor | None = None,
    jobs: int = 1,
    device: str = "auto",
    root: str | Path | None = None,
    progress: bool | None = None,
    threads: int | None = None,
    graphs: bool = False,
) -> list[Record]:
    """Run what the store lacks; stopped at any moment, even by a power cut, and called again, it goes on.

    A record counts only if it is of the images, and of the source of the user's own score, that are here: otherwise the
    run is measured anew, both records are kept, and a warning says so. Where the images are not on this machine, stored
    records count, and a warning says that they were not compared.

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
        jobs: runs at a time, without an executor; above 1 each has a process of its own, and on a GPU they share it.
        device: where each run computes, see `ucl.run`.
        root: folder of the data sets, see `ucl.datasets.load`.
        progress: whether to show a progress bar over the runs; None shows one in a terminal or notebook, and elsewhere
            prints a line to standard error as each run ends.
        threads: processor threads of a run; None shares this process's among the `jobs`, and leaves those of an
            executor's workers as they are. A result repeats bit for bit with the same number of threads.
        graphs: see `ucl.run`.

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
        whole_number(name, value, 1, 1024)
    folder = None if root is None else str(Path(root).absolute())
    records = RecordStore(Path(store).absolute(), folder)
    found = records.find(unique(configs))
    versions.tell(found.values())
    missing = [config for config in unique(configs) if not found[config.key].there]
    failures: dict[str, str] = {}
    try:
        if missing:
            if executor is None:
                resolve_device(device)
            records.check_writable()
            if not locks.supported(records.folder):
                reason = "has no file locks: several sweeps at a time may measure the same runs there"
                warnings.warn(f"{records.folder}: this file system {reason}", stacklevel=2)
            if jobs > 1:
                threads = threads or max(1, torch.get_num_threads() // jobs)
            ours = WorkerProcesses(min(jobs, len(missing))) if jobs > 1 else ThisProcess()
            with own.kept_from_processes(), nullcontext(executor) if executor is not None else ours as workers:
                submit = partial(workers.submit, measure, records, device, folder, threads, graphs)  # type: ignore[call-arg]
                failures = _run_all(missing, records, submit, Watch(workers), progress)
    finally:
        locks.clear(records.folder)
        checkpoints.clear(records.folder)
    return _load_all(configs, records, failures)


def status(
    configs: Iterable[Config], store: str | Path = "runs", device: str = "auto", root: str | Path | None = None
) -> pd.DataFrame:
    """How far a sweep is.

    Args:
        configs: the experiments of the sweep.
        store: folder of the records.
        device: where the missing runs would compute.
        root: folder of the data sets whose images count as being here, see `ucl.datasets.load`.

    Returns:
        A row for each data set, memory size and method: dataset, memory_size (NA where there is none), label, runs,
        measured, failed (how many of these diverged or collapsed, such as "1 diverged"), missing (the seeds that lack)
        and seconds, which the missing runs would take here, one after another, judging by the store's records that
        cost alike, from such a processor and device; NaN where there is none.

    Raises:
        InputError: (a ValueError) the store or the device can't be used.
    """
    configs, records = unique(_checked(configs)), RecordStore(store, root)
    found = records.find(configs)
    versions.tell(found.values())
    rows: dict[tuple, dict[str, Any]] = {}
    here = environment(resolve_device(device), torch.float32)
    seconds: dict[str, list[float]] = defaultdict(list)
    failed: dict[str, Record] = {}
    for record in records:
        if record.failure:
            failed[record.config.key] = record
        if record.diverged_after is None and all(record.environment.get(k) == here[k] for k in ("processor", "device")):
            seconds[cost_class(record.config)].append(record.timing["total"])
    for config in configs:
        group = {"dataset": config.dataset, "memory_size": config.relevant.get("memory_size"), "label": config.label}
        row = rows.setdefault(
            tuple(group.values()), {**group, "runs": 0, "measured": 0, "failed": [], "missing": [], "seconds": 0.0}
        )
        row["runs"] += 1
        if found[config.key].record is not None:
            row["measured"] += 1
            row["failed"] += [failed[config.key]] if config.key in failed else []
        else:
            row["missing"].append(config.seed)
            row["seconds"] += fmean(seconds.get(cost_class(config), [nan]))
    for row in rows.values():
        row["failed"] = failures(row["failed"])
    columns = ["dataset", "memory_size", "label", "runs", "measured", "failed", "missing", "seconds"]
    return pd.DataFrame(list(rows.values()), columns=columns).astype({"memory_size": "Int64"})


# The loop


def _run_all(
    missing: list[Config], records: RecordStore, submit: Callable[..., Future], watch: Watch, progress: bool | None
) -> dict[str, str]:
    """Run all, and wait for what other sweeps are running; returns what failed, by the name of the record."""
    failures: dict[str, str] = {}
    to_submit, running, elsewhere = deque(missing), dict[Future, Config](), list[Config]()

    def ended(config: Config, outcome: Outcome) -> None:
        if outcome.state == "failed" and config in records:  # it was stored before its worker was lost
            outcome = Outcome("there")
        if outcome.state == "failed":
            failures[records.path(config).stem] = outcome.error
        shown.finished(config, outcome)

    with SweepProgress(missing, progress) as shown:
        try:
            while to_submit or running or elsewhere:
                if lost := watch.lost():
                    for config in [*running.values(), *to_submit, *elsewhere]:
                        ended(config, Outcome("failed", error=lost))
                    break
                while to_submit:
                    config = to_submit.popleft()
                    future = _submitted(submit, config)
                    running[future] = config
                    if future.done():
                        break
                if not running:
                    time.sleep(LOOK_EVERY)
                for future in wait(running, LOOK_EVERY, FIRST_COMPLETED).done:
                    config, outcome = running.pop(future), _outcome(future)
                    if outcome.state == "elsewhere":
                        elsewhere.append(config)
                    elif future.cancelled() and watch.is_dask:  # its scheduler was lost: another may take its place
                        to_submit.append(config)
                    else:
                        ended(config, outcome)
                for config in elsewhere[:]:
                    if locks.is_free(locks.path_of(records.folder, config)):
                        elsewhere.remove(config)
                        to_submit.append(config)
                shown.tell(len(elsewhere))
        finally:
            for future in running:
                future.cancel()
    return failures


def _submitted(submit: Callable[..., Future], config: Config) -> Future:
    try:
        return submit(config, uuid.uuid4().hex)
    except Exception as error:  # of the executor, such as one that is broken
        future: Future = Future()
        future.set_exception(error)
        return future


def _outcome(future: Future) -> Outcome:
    try:
        return future.result()
    except Exception as error:  # of the executor; those of the run itself come as an outcome
        return Outcome("failed", error=in_one_line(error))


def _load_all(configs: list[Config], store: RecordStore, failures: dict[str, str]) -> list[Record]:
    found, measured = store.find(unique(configs)), dict[str, Record]()
    for config in unique(configs):
        name, one = store.path(config).stem, found[config.key]
        if name in failures:
            continue
        if one.record is None:
            failures[name] = one.error or one.remark or "its record is gone"
        else:
            measured[config.key] = one.record
    records = [measured[config.key] for config in configs if config.key in measured]
    if failures:
        raise SweepError(failures, records)
    return records


def _checked(configs: Iterable[Config]) -> list[Config]:
    found = list(configs) if isinstance(configs, Iterable) else [None]
    if not all(isinstance(config, Config) for config in found):
        raise InputError("configs", configs, "give a list of ucl.Config")
    return found
