"""Sweeps: runs without a record are measured; a stopped sweep can be resumed.

Each run writes its own record when it ends, and its experiment is locked while it runs. Several sweeps on one store, on
any number of machines that share its folder, therefore divide the work between them, and finished runs are never lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal

import torch

from ucl import user_objects
from ucl.config import Config, unique
from ucl.errors import MOST_AT_ONCE, InputError, first_of, whole_number
from ucl.machine.available import available_bytes
from ucl.machine.files import check_writable
from ucl.machine.hardware import resolve_device
from ucl.records import Record, RecordStore
from ucl.records.store import report, report_missing_files
from ucl.streams import datasets
from ucl.sweeps.progress import SweepProgress
from ucl.sweeps.workers import measured

__all__ = ["SweepError", "sweep"]

# Bytes that a run needs with images like those of CIFAR: at most 1.4 GiB was measured on a CPU, and on a GPU 2.7 GiB of
# tensors, besides about 0.5 GiB that CUDA takes per process.
_OF_THE_MACHINE, _OF_THE_GPU = 2 * 2**30, 4 * 2**30


class SweepError(RuntimeError):
    """Some runs of a sweep have no record; all other runs have records.

    Attributes:
        failures: the error of each failed run, in one line, by the name of the experiment's record.
        records: the records of all other experiments of the sweep, in order.
    """

    def __init__(self, failures: dict[str, str], records: list[Record]) -> None:
        self.failures, self.records = failures, records
        super().__init__(failures, records)

    def __str__(self) -> str:
        names: dict[str, list[str]] = {}
        for name, error in self.failures.items():
            names.setdefault(error, []).append(name)
        others = len({record.config.key for record in self.records})
        lines = [f"runs without a record: {len(self.failures)}; records of the other runs: {others}"]
        lines += [f"  {first_of(alike)}: {error}" for error, alike in names.items()]
        return "\n".join(lines)


def sweep(
    configs: Iterable[Config],
    store: str | Path = "runs",
    executor: Executor | None = None,
    jobs: int | Literal["auto"] = 1,
    device: str = "auto",
    root: str | Path | None = None,
    progress: bool | None = None,
    threads: int | None = None,
    graphs: bool | None = None,
    weights: str | Path | None = None,
    predictions: str | Path | None = None,
) -> list[Record]:
    """Run all experiments that have no record in the store, and return the records of all.

    A sweep can be stopped at any moment, even by a power cut: call it again to continue. A record counts only if its
    images and the source of the user objects are the current ones on this machine. Otherwise the run is measured
    again, both records are kept, and a warning says so. If the images are not on this machine, stored records count,
    and a warning says that they were not compared.

    Equal experiments (equal `Config.key`) run once. Several sweeps may work on one store at the same time: a sweep
    skips the runs that another process is measuring. At the end it tries them once more, and reports those that are
    still being measured.

    Args:
        configs: the experiments.
        store: folder of the records.
        executor: any `concurrent.futures.Executor` whose workers can access the folders of the store and of the data,
            for example ``distributed.Client("tcp://host:8786").get_executor()``, or
            ``ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))``. Each worker process runs one
            experiment at a time. A data set given as a path should then be an absolute path. The executor is not shut
            down. By default the runs use this process if `jobs` is 1, and one process per run otherwise.
        jobs: runs at a time, without an executor; above 1 each run has its own process, and on a GPU all share it.
            As always with `multiprocessing`, a process imports the script again: call `sweep` there under
            ``if __name__ == "__main__":``. "auto": see `automatic_jobs`, with `threads` 1 by default.
        device: device of each run, see `ucl.run`.
        root: folder of the data sets, see `ucl.datasets.load`.
        progress: whether to show a progress bar over the runs; None shows one in a terminal or notebook, and otherwise
            prints one line to standard error per finished run.
        threads: CPU threads per run; None divides this process's threads between the `jobs`, and does not change those
            of an executor's workers. A result repeats bit for bit with the same number of threads.
        graphs: see `ucl.run`.
        weights, predictions: folders of further files, see `ucl.run`. A run that already has a record is not repeated
            for them; a warning names it.

    Returns:
        The record of each of the `configs`, in order.

    Raises:
        InputError: (a ValueError) an argument can't be used, or without an executor: images can't be found, or a
            user object. No run has begun then.
        SweepError: some runs failed. It is raised after all other runs have ended, and has their `records`.
    """
    configs = list(configs)
    for config in configs:
        if not isinstance(config, Config):
            raise InputError("configs", config, "give ucl.Config objects; ucl.grid makes them from a file or mappings")
    if executor is not None and jobs != 1:
        raise InputError("jobs", jobs, "the executor decides how many runs are made at a time; leave this out")
    context = getattr(executor, "_mp_context", None)  # of a ProcessPoolExecutor
    if context is not None and context.get_start_method() == "fork":
        reason = "a copy of a process that has used torch's threads waits forever; give mp_context=get_context('spawn')"
        raise InputError("executor", "ProcessPoolExecutor that forks", f"{reason}, or jobs in place of an executor")
    if threads is not None:
        whole_number("threads", threads, 1, MOST_AT_ONCE)
    if jobs == "auto":
        threads = threads or 1
        jobs = automatic_jobs(resolve_device(device), threads)
    whole_number("jobs", jobs, 1, MOST_AT_ONCE)
    folder = None if root is None else str(datasets.data_folder(root).absolute())
    records = RecordStore(Path(store).absolute(), folder)
    experiments = unique(configs)
    stored = records.find(experiments)
    report(stored.values())
    missing = [config for config in experiments if stored[config.key].record is None]
    report_missing_files(stored.values(), weights=weights, predictions=predictions)
    failures: dict[str, str] = {}
    if missing:
        if executor is None:
            resolve_device(device)
            check_inputs(missing, folder)
        folders = {"store": records.folder, "weights": weights, "predictions": predictions}
        check_writable(**folders)
        if jobs > 1:
            threads = threads or max(1, torch.get_num_threads() // jobs)
        how: dict[str, Any] = {name: None if f is None else str(Path(f).absolute()) for name, f in folders.items()}
        how |= {"root": folder, "device": device, "threads": threads, "graphs": graphs}
        failures = _measure_all(missing, progress, executor, jobs, **how)
        stored |= records.find(missing)
    found = [run.record for run in (stored[config.key] for config in configs) if run.record is not None]
    reasons = {
        records.path(config).stem: failures.get(config.key) or stored[config.key].note or "its record was removed"
        for config in missing
        if stored[config.key].record is None
    }
    if reasons:
        raise SweepError(reasons, found)
    return found


def _measure_all(
    missing: list[Config], progress: bool | None, executor: Executor | None, jobs: int, **how: Any
) -> dict[str, str]:
    """Measure runs; those that another process is measuring are tried once more at the end.

    Returns:
        Why runs have no record, by their keys.
    """
    failures: dict[str, str] = {}
    locked: list[Config] = []
    with SweepProgress(len(missing), progress) as shown:
        for is_last, runs in (False, missing), (True, locked):
            for config, outcome in measured(runs, executor, jobs, **how):
                if outcome.state == "locked" and not is_last:
                    locked.append(config)
                    continue
                shown.finished(config, outcome)
                if outcome.state != "measured":
                    failures[config.key] = outcome.text
    return failures


def automatic_jobs(device: torch.device, threads: int = 1) -> int:
    """How many runs to make at a time: as many as the cores and the free memory of the machine and the GPU suffice for.

    The cores are torch's number of threads in this process. On a GPU, too, each run needs a core, which launches its
    operations; the operations of several runs fill the GPU.

    Args:
        device: device of the runs.
        threads: CPU threads per run.
    """
    most = [torch.get_num_threads() // threads]
    if (available := available_bytes()) is not None:
        most.append(available // _OF_THE_MACHINE)
    if device.type == "cuda":
        most.append(torch.cuda.mem_get_info(device)[0] // _OF_THE_GPU)
    return max(1, min(most))


def check_inputs(missing: list[Config], root: str | None) -> None:
    """Find the user objects and the images of all runs, so that a mistake is reported before the first run.

    Images are downloaded here, once, and not by several runs at a time.
    """
    for field, path in dict.fromkeys(pair for config in missing for pair in config.user_objects.items()):
        user_objects.find(field, path)
    for dataset, image_size in dict.fromkeys((config.dataset, config.image_size) for config in missing):
        datasets.provide(dataset, root, image_size)
