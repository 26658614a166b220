"""One run of a store: one process at a time measures it, and its checkpoint stays until the record is stored."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ucl.config import Config
from ucl.errors import InputError, UserExit, one_line, one_line_with_type
from ucl.experiment import run
from ucl.fields import decimal
from ucl.machine import checkpoints
from ucl.machine.terminal import duration
from ucl.records import Record, RecordStore, curves
from ucl.records.store import StoredRun
from ucl.sweeps import locks

_one_at_a_time = threading.Lock()  # A run uses torch's global generator, so a process can execute only one at a time.


def measure_once(
    store: RecordStore,
    config: Config,
    curve_folder: str | Path | None = None,
    show: Callable[[Record], None] | None = None,
    **how: Any,
) -> tuple[StoredRun, Record | None]:
    """Run one experiment and store its record, unless it has one already or another process is running it.

    Args:
        store: store of the records; its folder exists.
        config: the experiment.
        curve_folder: folder of the run's curve, see `ucl.records.curves`.
        show: called with the record before it is stored; the record is stored even if this raises.
        how: device, root, progress, graphs, weights and predictions, see `ucl.run`.

    Returns:
        What the store has of the experiment, with the file of the new record if it was run; and the new record, or None
        if it was not run. Without a record in the store, another process is running it.

    Raises:
        InputError, UserExit: see `ucl.run`.
        OSError: the record cannot be stored; the checkpoint of the last task stays.
    """
    with locks.held(locks.path_of(store.folder, config)) as acquired:
        stored = store.lookup(config)  # under the lock: another process may just have stored the record
        if stored.record is not None or not acquired:
            return stored, None
        checkpoint = checkpoints.path_of(store.folder, config)
        curve = None if curve_folder is None else curves.path_of(curve_folder, stored.path)
        record = run(config, checkpoint=checkpoint, curves=curve, **how)
        try:
            if show is not None:
                show(record)
        finally:
            path = store.save(record)
        checkpoint.unlink(missing_ok=True)
        return stored._replace(path=path), record


class Options(NamedTuple):
    """How the runs of a sweep are measured, see `ucl.sweep`; all folders are absolute paths."""

    store: str
    device: str
    root: str | None
    threads: int | None
    graphs: bool | None
    curves: str | None
    weights: str | None
    predictions: str | None


class Outcome(NamedTuple):
    """What `measure` returns; the record itself is in the store.

    Attributes:
        state: "measured", "exists" (it has a record already), "locked" (another process is running it) or "failed".
        text: the results of a run that was measured, or why it failed, in one line.
    """

    state: str
    text: str = ""


def measure(options: Options, config: Config, call: str = "") -> Outcome:
    """Run one experiment and store its record, unless it has one already or another process is running it.

    Args:
        options, config: see `ucl.sweep`.
        call: a unique name of this call, because dask merges equal calls.
    """
    with _one_at_a_time:
        before = torch.get_num_threads()
        try:
            if options.threads:
                torch.set_num_threads(options.threads)
            store = RecordStore(options.store, options.root)
            how = {name: getattr(options, name) for name in ("device", "root", "graphs", "weights", "predictions")}
            stored, record = measure_once(store, config, options.curves, progress=False, **how)
            if record is None:
                return Outcome("locked" if stored.record is None else "exists", "measured by another process")
            A, F = decimal(100 * record.last_accuracy), decimal(100 * record.last_forgetting)
            results = "" if record.failure == "diverged" else f"A {A} %, F {F} %"
            parts = [record.failure, results, duration(record.timing["total"])]
            return Outcome("measured", ", ".join(filter(None, parts)))
        except Exception as error:
            return failed(error)
        finally:
            torch.set_num_threads(before)


def failed(error: Exception) -> Outcome:
    """A run that failed, with the file and line of the error, but not for errors of the user."""
    if isinstance(error, (InputError, UserExit)):
        return Outcome("failed", one_line(error, most=None))
    (frame,) = traceback.extract_tb(error.__traceback__)[-1:]
    return Outcome("failed", f"{one_line_with_type(error, 300)} ({Path(frame.filename).name}, line {frame.lineno})")
