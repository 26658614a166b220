"""Sweeps: runs without a record are measured; a stopped sweep can be resumed.

Each run writes its own record when it ends, and its experiment is locked while it runs. Several sweeps on one store, on
any number of machines that share its folder, therefore divide the work between them, and finished runs are never lost.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path

import torch

from ucl.assembly import find_own
from ucl.config import Config, unique
from ucl.errors import MOST_AT_ONCE, InputError, whole_number
from ucl.machine import checkpoints
from ucl.machine.hardware import resolve_device
from ucl.records import Record, RecordStore, versions
from ucl.records import curves as curve_file
from ucl.streams import datasets
from ucl.sweeps import locks
from ucl.sweeps.grid import as_configs
from ucl.sweeps.one_run import Options, Outcome, cause_of, measure
from ucl.sweeps.progress import SweepProgress, labels, run_name
from ucl.sweeps.workers import IN_A_CHILD, ChildProcesses, Watch

__all__ = ["SweepError", "sweep"]


class SweepError(RuntimeError):
    """Some runs of a sweep have no record; all other runs have records.

    Attributes:
        failures: the error of each failed run, in one line, by the name of the experiment's record.
        records: the records of all other experiments of the sweep, in order.
        runs: each failed run in words, such as "bloodcell M=40 EN bottom, seed 0", by the same names.
    """

    def __init__(self, failures: dict[str, str], records: list[Record], runs: dict[str, str]) -> None:
        self.failures, self.records, self.runs = failures, records, runs
        super().__init__(failures, records, runs)

    def __str__(self) -> str:
        names: dict[str, list[str]] = {}
        for name, error in self.failures.items():
            names.setdefault(error, []).append(name)
        n, others = len(self.failures), len({record.config.key for record in self.records})
        lines = [f"{n} {'run' if n == 1 else 'runs'} failed; records of the other runs: {others}"]
        for error, (first, *more) in names.items():
            alike = f" and {len(more)} more" if more else ""
            lines.append(f"  {self.runs[first]} ({first}){alike}: {error}")
        return "\n".join(lines)


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
    curves: str | Path | None = None,
) -> list[Record]:
    """Run all experiments that have no record in the store, and return the records of all.

    A sweep can be stopped at any moment, even by a power cut: call it again to continue. A record counts only if its
    images and the source of the user's own objects are the current ones on this machine. Otherwise the run is measured
    again, both records are kept, and a warning says so. If the images are not on this machine, stored records count,
    and a warning says that they were not compared.

    Equal experiments (equal `Config.key`) run once. Several sweeps may work on one store at the same time: a sweep
    skips the runs that another process is measuring. At the end it tries them once more: those that are measured then
    have their records, those of a killed process are measured, and the others are reported.

    Args:
        configs: the experiments.
        store: folder of the records.
        executor: any `concurrent.futures.Executor` whose workers can access the folders of the store and of the data,
            for example ``distributed.Client("tcp://host:8786").get_executor()``. Each worker process runs one
            experiment at a time. A data set given as a path should then be an absolute path. The executor is not shut
            down. By default the runs use this process if `jobs` is 1, and one process per run otherwise.
        jobs: runs at a time, without an executor; above 1 each run has its own process, and on a GPU all share it.
            Such a process executes the file of a script again if a run has an object of the script: call `sweep` under
            ``if __name__ == "__main__":`` there.
        device: device of each run, see `ucl.run`.
        root: folder of the data sets, see `ucl.datasets.load`.
        progress: whether to show a progress bar over the runs; None shows one in a terminal or notebook, and otherwise
            prints one line to standard error per finished run.
        threads: CPU threads per run; None divides this process's threads between the `jobs`, and does not change those
            of an executor's workers. A result repeats bit for bit with the same number of threads.
        graphs: see `ucl.run`.
        curves: folder for one CSV file per run, which grows during the run, see `ucl.records.curves`. For runs that
            already have a record, the file is made from the record.

    Returns:
        The record of each of the `configs`, in order.

    Raises:
        InputError: (a ValueError) an argument can't be used, or without an executor: images can't be found, or one of
            the user's own objects. No run has begun then.
        SweepError: some runs failed. It is raised after all other runs have ended, and has their `records`.
    """
    configs = as_configs(configs)
    if executor is not None and jobs != 1:
        raise InputError("jobs", jobs, "the executor decides how many runs are made at a time; leave this out")
    for name, value in {"jobs": jobs, "threads": 1 if threads is None else threads}.items():
        whole_number(name, value, 1, MOST_AT_ONCE)
    if jobs > 1 and IN_A_CHILD in os.environ:
        raise RuntimeError("a run started a sweep: in a script, call ucl.sweep under if __name__ == '__main__':")
    folder = None if root is None else str(datasets.data_folder(root).absolute())
    records = RecordStore(Path(store).absolute(), folder)
    experiments = unique(configs)
    missing = _missing(experiments, records, curves)
    main = _main_file(missing, jobs) if jobs > 1 else None
    failures: dict[str, str] = {}
    label_of = labels(experiments)
    names = {config.key: run_name(config, label_of[config.key]) for config in experiments}
    try:
        if missing and executor is None:
            resolve_device(device)
            _check_inputs(missing, folder)
        if missing:
            records.check_writable()
            if jobs > 1:
                threads = threads or max(1, torch.get_num_threads() // jobs)
            where = None if curves is None else str(Path(curves).absolute())
            options = Options(str(records.folder), device, folder, threads, graphs, where, main)
            with SweepProgress(len(missing), progress) as shown:
                for config, outcome in _outcomes(missing, options, executor, jobs):
                    failures[config.key] = outcome.error
                    shown.finished(names[config.key], outcome)
    finally:
        locks.clear(records.folder)
        checkpoints.clear(records.folder)
    return _load_all(configs, records, failures, names)


def _missing(experiments: list[Config], records: RecordStore, curves: str | Path | None) -> list[Config]:
    """The experiments without a record; the curves of the others are written, if there is a folder for them."""
    found = records.find(experiments)
    versions.report(found.values())
    for one in found.values():
        if one.record is not None and curves is not None:
            curve_file.save(one.record.accuracy, one.record.accuracy_so_far, curve_file.path_of(curves, one.path))
    return [config for config in experiments if not found[config.key].exists]


def _check_inputs(missing: list[Config], root: str | None) -> None:
    """Find the user's own objects and the images of all runs, so that a mistake is reported before the first run.

    Images are downloaded here, once, and not by several runs at a time.
    """
    for field, path in dict.fromkeys(pair for config in missing for pair in config.own.items()):
        find_own(field, path)
    for dataset, image_size in dict.fromkeys((config.dataset, config.image_size) for config in missing):
        datasets.provide(dataset, root, image_size)


def _outcomes(
    missing: list[Config], options: Options, executor: Executor | None, jobs: int
) -> Iterator[tuple[Config, Outcome]]:
    """The outcome of each run when it has ended; runs that another process is measuring are tried again at the end."""
    locked = []
    for config, outcome in _tried(missing, options, executor, jobs):
        if outcome.state == "locked":
            locked.append(config)
        else:
            yield config, outcome
    for config, outcome in _tried(locked, options, executor, jobs):
        is_locked = outcome.state == "locked"
        yield config, Outcome("failed", error="another process is measuring it") if is_locked else outcome


def _tried(
    configs: list[Config], options: Options, executor: Executor | None, jobs: int
) -> Iterator[tuple[Config, Outcome]]:
    if not configs:
        return
    if executor is not None:
        submit = executor.submit  # dask merges equal calls, so each has a name.
        yield from _completed(configs, lambda c: submit(measure, options, c, uuid.uuid4().hex), Watch(executor))
    elif jobs == 1:
        yield from ((config, measure(options, config)) for config in configs)
    else:
        with ChildProcesses(min(jobs, len(configs))) as children:
            yield from _completed(configs, lambda config: children.submit(options, config), Watch(None))


def _completed(
    configs: list[Config], submit: Callable[[Config], Future[Outcome]], watch: Watch
) -> Iterator[tuple[Config, Outcome]]:
    """The outcomes of runs that are executed at the same time."""
    running = {submit(config): config for config in configs}
    try:
        while running:
            for future in wait(running, 1.0, FIRST_COMPLETED).done:
                yield running.pop(future), _outcome(future)
            if lost := watch.lost():
                yield from ((config, Outcome("failed", error=lost)) for config in running.values())
                return
    finally:
        for future in running:
            future.cancel()


def _outcome(future: Future[Outcome]) -> Outcome:
    if future.cancelled():
        return Outcome("failed", error="its executor cancelled it, as dask does after the loss of the scheduler")
    try:
        return future.result()
    except Exception as error:  # The executor failed; errors of the run itself are part of the outcome.
        return Outcome("failed", error=cause_of(error))


def _main_file(configs: list[Config], jobs: int) -> str | None:
    """The file of the main module, if a run has one of its objects; a notebook and Python's prompt have no file.

    Raises:
        InputError: there is no such file.
    """
    paths = [path for config in configs for path in config.own.values() if path.startswith("__main__:")]
    if not paths:
        return None
    file = getattr(sys.modules["__main__"], "__file__", None)
    if not file or not Path(file).is_file():
        raise InputError("jobs", jobs, f"worker processes do not have {paths[0]}; put it into a file, or give 1")
    return str(Path(file).absolute())


def _load_all(
    configs: list[Config], store: RecordStore, failures: dict[str, str], names: dict[str, str]
) -> list[Record]:
    found = store.find(unique(configs))
    records = [record for record in (found[config.key].record for config in configs) if record is not None]
    lacking = {store.path(config).stem: config.key for config in configs if found[config.key].record is None}
    if lacking:
        reasons = {
            name: failures.get(key) or found[key].error or found[key].note or "its record was removed"
            for name, key in lacking.items()
        }
        raise SweepError(reasons, records, {name: names[key] for name, key in lacking.items()})
    return records
