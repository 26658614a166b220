"""One run of a store: one process at a time measures it, and its checkpoint stays until the record is stored."""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ucl.config import Config
from ucl.errors import InputError, UserExit, one_line, one_line_with_type
from ucl.experiment import run
from ucl.machine import checkpoints
from ucl.machine.terminal import show_warning
from ucl.records import Record, RecordStore, curves
from ucl.records.versions import Found
from ucl.sweeps import locks

_one_at_a_time = threading.Lock()  # A run uses torch's global generator, so a process can execute only one at a time.


def measure_once(
    store: RecordStore,
    config: Config,
    curve_folder: str | Path | None = None,
    show: Callable[[Record], None] | None = None,
    **how: Any,
) -> tuple[Found, Record | None]:
    """Run one experiment and store its record, unless it has one already or another process is running it.

    Args:
        store: store of the records; its folder exists.
        config: the experiment.
        curve_folder: folder of the run's curve, see `ucl.records.curves`.
        show: called with the record before it is stored; the record is stored even if this raises.
        how: device, root, progress and graphs, see `ucl.run`.

    Returns:
        What the store has of the experiment, with the file of the new record if it was run; and the new record, or None
        if it was not run. Without a record in the store, another process is running it.

    Raises:
        InputError, UserExit: see `ucl.run`.
        OSError: the record cannot be stored; the checkpoint of the last task stays.
    """
    with locks.held(locks.path_of(store.folder, config)) as ours:
        found = store.lookup(config)  # under the lock: another process may just have stored the record
        if found.exists or not ours:
            return found, None
        checkpoint = checkpoints.path_of(store.folder, config)
        curve = None if curve_folder is None else curves.path_of(curve_folder, found.path)
        record = run(config, checkpoint=checkpoint, curves=curve, **how)
        try:
            if show is not None:
                show(record)
        finally:
            path = store.save(record)
        checkpoint.unlink(missing_ok=True)
        return found._replace(path=path), record


class Options(NamedTuple):
    """How the runs of a sweep are measured; all folders are absolute paths. See `ucl.sweep`.

    `main` is the file that `serve` executes for the objects of the main module, or None.
    """

    store: str
    device: str
    root: str | None
    threads: int | None
    graphs: bool
    curves: str | None
    main: str | None = None


class Outcome(NamedTuple):
    """What `measure` returns; the record itself is in the store.

    Attributes:
        state: "measured", "exists" (it has a record already), "locked" (another process is running it) or "failed".
        seconds: time of the run, if it was measured.
        error: why it failed, in one line.
        last_accuracy, last_forgetting, failure: results of the run, if it was measured; see `ucl.Record`.
    """

    state: str
    seconds: float = 0.0
    error: str = ""
    last_accuracy: float = nan
    last_forgetting: float = nan
    failure: str = ""


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
            how: dict[str, Any] = dict(device=options.device, root=options.root, graphs=options.graphs)
            found, record = measure_once(store, config, options.curves, progress=False, **how)
            if record is None:
                return Outcome("exists" if found.exists else "locked")
            result = record.last_accuracy, record.last_forgetting, record.failure
            return Outcome("measured", record.timing["total"], "", *result)
        except Exception as error:
            return Outcome("failed", error=cause_of(error))
        finally:
            torch.set_num_threads(before)


def cause_of(error: BaseException) -> str:
    """Why a run failed, in one line; with the file and line, but not for errors of the user."""
    if isinstance(error, (InputError, UserExit)):
        return one_line(error, most=None)
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return one_line_with_type(error, 300) + "".join(f" ({Path(f.filename).name}, line {f.lineno})" for f in frames)


def serve() -> None:
    """Measure the run that the first line of standard input describes, and print its outcome as a line of JSON.

    The line is a JSON list of `Options` and a configuration. When standard input ends, the sweep has ended, and so does
    this process.
    """
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the user's code prints goes to standard error.
    warnings.showwarning = show_warning
    given, config = json.loads(sys.stdin.readline())
    options = Options(*given)
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    try:
        if options.main:  # as multiprocessing does: under another name, so that its main block is not executed
            module = types.ModuleType("__mp_main__")
            vars(module).update(runpy.run_path(options.main, run_name="__mp_main__"))
            sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        outcome = measure(options, Config.from_json(config))
    except Exception as error:
        outcome = Outcome("failed", error=cause_of(error))
    print(json.dumps(outcome), file=results, flush=True)


def _end_with_standard_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
