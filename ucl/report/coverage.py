"""Coverage: which of the paper's cells have records, and with which settings."""

from __future__ import annotations

import itertools

import pandas as pd

from ucl.evidence import paper
from ucl.evidence.run_measures import SETTINGS
from ucl.records.runs import apart_from_failures, matching
from ucl.report.markdown import table

CELL = ["table", "dataset", "memory_size", "method", "selection"]
_SELECTIONS = ("top", "step", "bottom")
NAMES = dict(zip(SETTINGS, ("everything rescored", "`refresh=2`", "published settings"), strict=True))


def coverage(records: pd.DataFrame) -> pd.DataFrame:
    """The number of runs of each cell of the paper's Tables 1 to 3.

    Args:
        records: see `ucl.load_records`.

    Returns:
        One row per cell, 156 rows: columns table, dataset, memory_size, method, selection ("" for a baseline), and one
        column of integers per key of `SETTINGS`: the number of runs, or <NA> if the setting cannot change a result
        (`refresh` for a method without a score). Networks that diverged or collapsed do not count.
    """
    cells = paper.published()[CELL].drop_duplicates(ignore_index=True)
    grids = itertools.chain.from_iterable(paper.grid(name, seeds=[0]) for name in ("table1", "table2", "table3"))
    configs = {(c.dataset, c.memory_size, c.label): c for c in grids}
    of_cell = [configs[r.dataset, r.memory_size, f"{r.method} {r.selection}".strip()] for r in cells.itertuples()]
    known: set[str] = set()
    for setting, fields in SETTINGS.items():
        experiments = [config.replace(**fields) for config in of_cell]
        runs, _ = apart_from_failures(matching(records, experiments))
        counts = runs["experiment"].value_counts()
        differs = [config.key not in known for config in experiments]  # from all settings before
        known |= {config.key for config in experiments}
        values = [counts.get(index, 0) if new else pd.NA for index, new in enumerate(differs)]
        cells[setting] = pd.array(values, dtype="Int64")
    return cells


def measured(cells: pd.DataFrame) -> pd.DataFrame:
    """Whether each cell of `coverage` has runs: one column of booleans per setting."""
    return cells[list(SETTINGS)].fillna(0) > 0


def summary(cells: pd.DataFrame) -> str:
    """Markdown: how many cells of each data set are measured with each setting, and how many with none."""
    has_runs = measured(cells)
    rows = []
    for dataset, own in [*cells.groupby("dataset", sort=False), ("all", cells)]:
        counts = has_runs.loc[own.index]
        rows.append((dataset, len(own), *counts.sum(), int((~counts.any(axis=1)).sum())))
    return table(["data set", "cells", *NAMES.values(), "none"], rows)


def map_of(cells: pd.DataFrame) -> str:
    """Markdown: the number of runs of each cell of one data set; methods without any run have no row."""
    sizes = sorted(cells["memory_size"].unique())
    head = ["method", *(f"memory {size}, {name}" for size in sizes for name in NAMES.values())]
    rows = []
    for (method, selection), own in cells.groupby(["method", "selection"], sort=False):
        of_size = own.set_index("memory_size")
        counts = [of_size.loc[size, setting] for size in sizes for setting in SETTINGS]
        if measured(own).any(axis=None):
            rows.append((f"{method} {selection}".strip(), *("" if pd.isna(n) else n or "none" for n in counts)))
    return table(head, rows)


def not_measured(cells: pd.DataFrame) -> str:
    """Markdown: the cells without a run in any setting, one row per data set and memory size."""
    missing = cells[~measured(cells).any(axis=1)]
    rows = []
    for (dataset, size), own in missing.groupby(["dataset", "memory_size"], sort=False):
        of_selection = own.groupby("selection")["method"].agg(", ".join)
        rows.append((dataset, size, len(own), *(of_selection.get(name, "") for name in ("", *_SELECTIONS))))
    return table(["data set", "memory", "cells", "baselines", *_SELECTIONS], rows)
