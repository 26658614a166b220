"""One run of a store: one process at a time measures it, and its checkpoint stays until the record is stored."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ucl import checkpoints
from ucl.config import Config
from ucl.errors import InputError, one_line, one_line_with_type
from ucl.experiment import run
from ucl.machine.terminal import duration
from ucl.records import RecordStore
from ucl.records.store import StoredRun
from ucl.sweeps import locks

_one_at_a_time = threading.Lock()  # The number of threads belongs to the whole process.


def measure_once(store: RecordStore, config: Config, **how: Any) -> tuple[StoredRun, bool]:
    """Run one experiment and store its record, unless it has one already or another process is running it.

    Args:
        store: store of the records; its folder exists.
        config: the experiment.
        how: device, root, progress, graphs, weights and predictions, see `ucl.run`.

    Returns:
        What the store has of the experiment, and whether it was measured now. Without a record, another process is
        running it.

    Raises:
        InputError: see `ucl.run`.
        OSError: the record cannot be stored; the checkpoint of the last task stays.
    """
    with locks.held(locks.path_of(store.folder, config)) as acquired:
        stored = store.lookup(config)  # under the lock: another process may just have stored the record
        if stored.record is not None or not acquired:
            return stored, False
        checkpoint = checkpoints.path_of(store.folder, config)
        record = run(config, checkpoint=checkpoint, **how)
        path = store.save(record)
        checkpoint.unlink(missing_ok=True)
        return StoredRun(path, record), True


class Outcome(NamedTuple):
    """What `measure` returns; the record itself is in the store.

    Attributes:
        state: "measured" (it has a record), "locked" (another process is running it) or "failed".
        text: the results of a run that was measured here, or why it was not, in one line.
    """

    state: str
    text: str


def measure(config: Config, store: str, threads: int | None, root: str | None, call: str = "", **how: Any) -> Outcome:
    """`measure_once` in a process that measures many runs; an error becomes an outcome.

    Args:
        config, store, threads, root: see `ucl.sweep`; all folders are absolute paths.
        call: a unique name of this call, because dask merges equal calls.
        how: device, graphs, weights and predictions, see `ucl.run`.
    """
    with _one_at_a_time:
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(threads or before)
            stored, is_new = measure_once(RecordStore(store, root), config, root=root, progress=False, **how)
            record = stored.record
            if record is None:
                return Outcome("locked", "another process is measuring it; run this again to have its record")
            if not is_new:
                return Outcome("measured", "measured by another process")
            return Outcome("measured", f"{record.in_brief}, {duration(record.timing['total'])}")
        except Exception as error:
            return failed(error)
        finally:
            torch.set_num_threads(before)


def failed(error: Exception) -> Outcome:
    """A run that failed, with the file and line of the error, but not for errors of the user."""
    if isinstance(error, InputError):
        return Outcome("failed", one_line(error))
    (frame,) = traceback.extract_tb(error.__traceback__)[-1:]
    return Outcome("failed", f"{one_line_with_type(error)} ({Path(frame.filename).name}, line {frame.lineno})")
