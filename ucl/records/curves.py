"""Curves: accuracy and forgetting after each task, as a CSV file that grows during a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ucl import metrics
from ucl.errors import first_of
from ucl.machine.files import write_or_warn
from ucl.records.store import StoredRun

if TYPE_CHECKING:
    import pandas as pd


def table(accuracy: np.ndarray, so_far: np.ndarray) -> pd.DataFrame:
    """One row per task learnt so far.

    Args:
        accuracy: (T, T), see `ucl.Record`; rows of tasks that are not learnt yet are NaN.
        so_far: (T,), A after each task, see `ucl.Record.accuracy_so_far`.

    Returns:
        Columns tasks_learnt, accuracy (A, on the tasks learnt so far), forgetting (`ucl.metrics.last_forgetting` of
        these tasks), and task_1 to task_T, the accuracy on each task, NaN for later tasks; all in [0, 1], forgetting in
        [-1, 1].
    """
    import pandas as pd

    n_learnt = int((~np.isnan(np.diagonal(accuracy))).sum())
    learnt = range(1, n_learnt + 1)
    columns = {
        "tasks_learnt": learnt,
        "accuracy": so_far[:n_learnt],
        "forgetting": [metrics.last_forgetting(accuracy[:t, :t]) for t in learnt],
    }
    return pd.DataFrame(columns | {f"task_{i}": values for i, values in enumerate(accuracy[:n_learnt].T, 1)})


def save(accuracy: np.ndarray, so_far: np.ndarray, path: str | Path) -> None:
    """Write the `table` as a CSV file, completely or not at all; NaN becomes an empty cell.

    If the file cannot be written, there is a warning and no error, because the curve can be made from the record.
    """
    write_or_warn(Path(path), table(accuracy, so_far).to_csv(index=False).encode(), "curve")


def path_of(folder: str | Path, record: str | Path) -> Path:
    """The CSV file of a run's curve, named after the record."""
    return Path(folder) / f"{Path(record).stem}.csv"


def write_files(stored: Iterable[StoredRun], curve_folder: str | Path | None, **folders: str | Path | None) -> None:
    """Write the curves of runs that have a record, and warn if their other files are missing, which only a run writes.

    Args:
        stored: the runs.
        curve_folder: folder of the curves, or None.
        folders: folders by the kind of files in `Record.files`, or None.
    """
    runs = [(run.path, run.record) for run in stored if run.record is not None]
    if curve_folder is not None:
        for path, record in runs:
            save(record.accuracy, record.accuracy_so_far, path_of(curve_folder, path))
    for kind in [kind for kind, folder in folders.items() if folder is not None]:
        if without := [path.name for path, record in runs if kind not in record.files]:
            reason = f"measured without {kind}; delete the record to measure the run again"
            warnings.warn(f"{first_of(without)}: {reason}", stacklevel=3)
