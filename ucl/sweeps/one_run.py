"""One run of a store: one process at a time measures it, and its checkpoint stays until the record is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ucl.config import Config
from ucl.experiment import run
from ucl.machine import checkpoints
from ucl.records import Record, RecordStore, curves
from ucl.records.versions import Found
from ucl.sweeps import locks


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
        NotStored: (an OSError) see `RecordStore.save`.
    """
    with locks.held(locks.path_of(store.folder, config)) as ours:
        found = store.lookup(config)  # under the lock: another process may just have stored the record
        if found.there or not ours:
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
