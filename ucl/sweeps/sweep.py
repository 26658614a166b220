"""Sweeps: runs without a record are measured, on any `concurrent.futures.Executor`; a stopped sweep can be resumed.

Each run writes its own record when it ends, and its experiment is locked while it runs. Several sweeps on one store, on
any number of machines that share its folder, therefore divide the work between them, and finished runs are never lost.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import torch

from ucl import user_objects
from ucl.assembly import find_own
from ucl.choices import is_own, plain_name
from ucl.config import Config, unique
from ucl.errors import MOST_AT_ONCE, InputError, UserExit, exits_are_failures, whole_number
from ucl.machine import checkpoints
from ucl.machine.hardware import resolve_device
from ucl.records import Record, RecordStore, versions
from ucl.records import curves as curve_file
from ucl.streams import datasets
from ucl.sweeps import locks
from ucl.sweeps.grid import as_configs
from ucl.sweeps.loop import other_images, run_all
from ucl.sweeps.progress import labels, run_name
from ucl.sweeps.workers import ThisProcess, Watch, WorkerProcesses, measure

__all__ = ["SweepError", "sweep"]


class SweepError(RuntimeError):
    """Some runs of a sweep failed; all other runs have records.

    Attributes:
        failures: the error of each failed run, in one line, by the name of the experiment's record.
        records: the records of all other experiments of the sweep, in order.
        runs: each failed run in words, such as "bloodcell M=40 EN bottom, seed 0", by the same names.
    """

    def __init__(self, failures: dict[str, str], records: list[Record], runs: dict[str, str]) -> None:
        self.failures, self.records, self.runs = failures, records, runs
        super().__init__(failures, records, runs)

    def __str__(self) -> str:
        runs = "1 run" if len(self.failures) == 1 else f"{len(self.failures)} runs"
        others = len({record.config.key for record in self.records})
        of_error: dict[str, list[str]] = {}
        for name, error in self.failures.items():
            of_error.setdefault(error, []).append(name)
        lines = []
        for error, (first, *more) in of_error.items():
            alike = f" and {len(more)} more" if more else ""
            lines.append(f"  {self.runs[first]} ({first}){alike}: {error}")
        return "\n".join([f"{runs} failed; records of the other runs: {others}", *lines])


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
    waits for the runs of the others, and takes over the runs of one that was killed. In a script, call this under
    ``if __name__ == "__main__":`` if `jobs` is above 1, as for all process pools.

    Args:
        configs: the experiments.
        store: folder of the records.
        executor: any `concurrent.futures.Executor` whose workers can access the folders of the store and of the data,
            for example ``distributed.Client("tcp://host:8786").get_executor()``. Each worker process runs one
            experiment at a time. A data set given as a path should then be an absolute path. The executor is not shut
            down. If the GPU of a worker fails, its later runs fail too: restart the worker, and sweep again. By default
            the runs use this process if `jobs` is 1, and worker processes otherwise.
        jobs: runs at a time, without an executor; above 1 each run has its own process, and on a GPU all share it. If
            the GPU fails in a run, no more runs begin if `jobs` is 1; otherwise the process is replaced.
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
        InputError: (a ValueError) an argument can't be used, or no run can begin, because its images can't be read or
            one of the user's own objects can't be found (with an executor, this is not checked).
        SweepError: some runs failed. It is raised after all other runs have ended, and has their `records`.
    """
    configs = as_configs(configs)
    if executor is not None and jobs != 1:
        raise InputError("jobs", jobs, "the executor decides how many runs are made at a time; leave this out")
    for name, value in {"jobs": jobs, "threads": 1 if threads is None else threads}.items():
        whole_number(name, value, 1, MOST_AT_ONCE)
    folder = None if root is None else str(datasets.data_folder(root).absolute())
    records = RecordStore(Path(store).absolute(), folder)
    experiments = unique(configs)
    found = records.find(experiments)
    versions.report(found.values())
    if curves is not None:
        for one in found.values():
            if one.record is not None:
                curve_file.save(one.record.accuracy, one.record.accuracy_so_far, curve_file.path_of(curves, one.path))
    missing = [config for config in experiments if not found[config.key].there]
    del found  # The records need not stay in memory while the others are measured.
    names = labels(experiments)
    failures: dict[str, str] = {}
    try:
        if missing and executor is None:
            resolve_device(device)
            if jobs > 1:
                _check_workers_have(missing, jobs)
            failures = _cannot_run(missing, records, all_missing=len(missing) == len(experiments))
            missing = [config for config in missing if records.path(config).stem not in failures]
        if missing:
            records.check_writable()
            if executor is not None:
                _read_own_images(missing, records)
            if not locks.supported(records.folder):
                reason = "has no file locks: several sweeps at the same time may measure the same runs"
                warnings.warn(f"{records.folder}: this file system {reason}", stacklevel=2)
            if jobs > 1:
                threads = threads or max(1, torch.get_num_threads() // jobs)
            ours = WorkerProcesses(min(jobs, len(missing))) if jobs > 1 else ThisProcess()
            with user_objects.kept_from_processes(), nullcontext(executor) if executor is not None else ours as workers:
                where = {} if curves is None else {"curves": str(Path(curves).absolute())}
                submit = partial(workers.submit, measure, records, device, folder, threads, graphs, **where)  # type: ignore
                failures |= run_all(missing, records, submit, Watch(workers), names, progress)
    finally:
        locks.clear(records.folder)
        checkpoints.clear(records.folder)
    return _load_all(configs, records, failures, names)


def _check_workers_have(missing: list[Config], jobs: int) -> None:
    """Raise an `InputError` if a run has an object of a main module that worker processes do not execute.

    They execute the file of a script again, see `multiprocessing.spawn`, but not the cells of a notebook, what was
    typed at Python's prompt, or the ``__main__`` of a package.
    """
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m
        is_executed = main.__spec__.name.split(".")[-1] != "__main__"
    else:
        is_executed = Path(getattr(main, "__file__", None) or "").is_file()
    named = [path for config in missing for path in config.own.values()]
    paths = [path for path in named if user_objects.parsed("", path).module == "__main__"]
    if paths and not is_executed:
        raise InputError("jobs", jobs, f"worker processes do not have {paths[0]}; put it into a file, or give 1")


def _cannot_run(missing: list[Config], records: RecordStore, all_missing: bool) -> dict[str, str]:
    """Look up the user's own objects, provide the data sets of the runs and read the user's own images, each once.

    Without this, a wrong name would be noticed when its run begins, and each run would try the same download, or read
    the same images that can't be used. For the other reasons to read images here, see `_read_own_images`.

    Returns:
        The error of each run without one of them, by record name.

    Raises:
        InputError: no run can begin, and `all_missing`: there is no record either.
    """

    @functools.cache
    def error_of(field: str, value: str, image_size: int | None = None) -> InputError | None:
        try:
            with exits_are_failures():
                if field != "dataset":
                    find_own(field, value)
                else:
                    datasets.provide(value, records.root, image_size)
                    if _is_of_own_images(value):
                        versions.fingerprint(value, records.root, image_size)
        except InputError as error:
            return error
        except (OSError, UserExit):  # The run reports it; a file server may answer again by then.
            pass
        return None

    failed: dict[str, InputError] = {}
    for config in missing:
        objects = [(field, path) for field, path in config.own.items() if field != "dataset"]
        for of in [*objects, ("dataset", config.dataset, config.image_size)]:
            if error := error_of(*of):
                failed[records.path(config).stem] = error
                break
    if all_missing and len(failed) == len(missing):
        raise next(iter(failed.values()))
    for why in dict.fromkeys(failed.values()):
        warnings.warn(f"{why}; its runs are left out", stacklevel=3)
    return {name: str(why) for name, why in failed.items()}


def _is_of_own_images(dataset: str) -> bool:
    return is_own(dataset) or datasets.is_path(plain_name(dataset))


def _read_own_images(missing: list[Config], records: RecordStore) -> None:
    """Read the user's own images, each once, so that their fingerprints are known from then on.

    The records are compared with them. They are read now, because the workers may need the memory later. Remarks on the
    images, such as unused files, are logged here: those of the workers are not seen. An error counts only in the run,
    because the workers of an executor may have other files.
    """
    for name, image_size in dict.fromkeys((config.dataset, config.image_size) for config in missing):
        if _is_of_own_images(name):
            with suppress(InputError, OSError, UserExit), exits_are_failures():
                versions.fingerprint(name, records.root, image_size)


def _load_all(
    configs: list[Config], store: RecordStore, failures: dict[str, str], names: dict[str, str]
) -> list[Record]:
    experiments = unique(configs)
    found, measured = store.find(experiments), dict[str, Record]()
    for config in experiments:
        name, one = store.path(config).stem, found[config.key]
        if name in failures:
            continue
        if one.record is None:
            failures[name] = _why_missing(config, one, store)
        else:
            measured[config.key] = one.record
    records = [measured[config.key] for config in configs if config.key in measured]
    if failures:
        runs = {store.path(config).stem: run_name(config, names[config.key]) for config in experiments}
        raise SweepError(failures, records, {name: runs[name] for name in failures})
    return records


def _why_missing(config: Config, one: versions.Found, store: RecordStore) -> str:
    """Why an experiment that was measured has no record that counts, in one line."""
    return other_images(config, one, store) or one.error or one.remark or "its record was removed"
