"""Curves: accuracy and forgetting after each task, as a CSV file that grows during a run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np

from ucl import metrics
from ucl.machine.files import part_of


def rows(accuracy: np.ndarray, so_far: np.ndarray) -> list[dict[str, float]]:
    """One row per task learnt so far.

    Args:
        accuracy: (T, T), see `ucl.Record`; rows of tasks that are not learnt yet are NaN.
        so_far: (T,), A after each task, see `ucl.Record.accuracy_so_far`.

    Returns:
        Rows with entries tasks_learnt, accuracy (A, on the tasks learnt so far), forgetting
        (`ucl.metrics.last_forgetting` of these tasks), and task_1 to task_T, the accuracy on each task, NaN for later
        tasks; all in [0, 1], forgetting in [-1, 1].
    """
    learnt = int((~np.isnan(np.diagonal(accuracy))).sum())
    return [
        {
            "tasks_learnt": t,
            "accuracy": float(so_far[t - 1]),
            "forgetting": metrics.last_forgetting(accuracy[:t, :t]),
            **{f"task_{i}": float(value) for i, value in enumerate(accuracy[t - 1], 1)},
        }
        for t in range(1, learnt + 1)
    ]


def save(accuracy: np.ndarray, so_far: np.ndarray, path: str | Path) -> None:
    """Write the `rows` as a CSV file, completely or not at all; NaN becomes an empty cell.

    If the file cannot be written, there is a warning and no error, because the curve can be made from the record.
    """
    import pandas as pd

    names = ["tasks_learnt", "accuracy", "forgetting", *(f"task_{i}" for i in range(1, len(accuracy) + 1))]
    table = pd.DataFrame(rows(accuracy, so_far), columns=names)
    try:
        with part_of(Path(path), lambda file: table.to_csv(file, index=False)) as part:
            os.replace(part, path)
    except OSError as error:
        warnings.warn(
            f"{path}: the curve can't be written ({error.strerror}); the result is not affected", stacklevel=2
        )


def path_of(folder: str | Path, record: str | Path) -> Path:
    """The CSV file of a run's curve, named after the record."""
    return Path(folder) / f"{Path(record).stem}.csv"
