"""Any records averaged over their seeds: one row per data set, memory size, method and settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ucl import naming
from ucl.catalogue import method_order
from ucl.errors import first_of, one_of
from ucl.evidence import filters
from ucl.records import FURTHER_MEASURES, MEASURES, Record, as_table, failures
from ucl.records.measures import MEANINGS
from ucl.records.runs import changed_objects, latest, without_failures

IDENTITY = ("dataset", "memory_size", "label", "settings")
METRICS = ("A", "F")
_SECONDS = ("seconds", "seconds_per_batch")
NAMES = (*MEANINGS, *_SECONDS)
"""What can be averaged: the measures of a record and its times."""
_VERSIONS = ("fingerprint", "source")
NOTES = ("arithmetic", "evaluate_every", "untested", "left_out")
"""The arithmetics of the scores and the `Config.evaluate_every` of anytime and worst_case, if several; the classes that
no test has, which enter no measure; failed runs."""
_BETWEEN_TASKS = {"anytime", "worst_case"}


def results(
    records: pd.DataFrame | Iterable[Record], by: str | Sequence[str] = (), measures: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Average any records, also those of user data sets and scores, over their seeds and over nothing else.

    Runs are in different rows if they differ in a field of `Config` that can change a result, in the version of the
    images or in that of the user objects. If a run was measured more than once, the record with the most kinds of
    further tests counts; if several have as many, the latest of them. Runs that failed (`Record.failure`) do not count.

    Args:
        records: of `ucl.load_records` or `ucl.sweep`.
        by: names of `ucl.where`, such as "lr". They are the first columns, and rows are sorted by them. With "seed",
            each run has its own row.
        measures: names of `Record.measures`, such as "A" or "learning", "seconds" or "seconds_per_batch".

    Returns:
        Columns `by`, dataset, memory_size, label (in the order of `ucl.catalogue.method_order`), settings (what differs
        from the defaults and is not in `by`), n, and for each measure its mean and, as <measure>_std, its sample
        standard deviation (NaN for a single run), in per cent or seconds; NaN if some of the n runs do not have it. By
        default these are A and F, then only the means of learning, best, retained, last, average, last_share and
        seconds, and of backward, anytime and worst_case if a run was also tested between task ends. Further columns are
        present only if needed: fingerprint (of the images) if one data set has several, source (hash of the user
        objects) if the code of one differs between runs, arithmetic (of the scoring passes) if runs of one row had
        several, evaluate_every if anytime or worst_case of one row are of several, untested (classes without images in
        the tests, which enter no measure) and left_out (such as "1 diverged") if runs failed.

    Raises:
        InputError: `records` are not records, or a name is unknown.
    """
    records = as_table(records)
    by = list(dict.fromkeys([by] if isinstance(by, str) else by))
    for name in by:
        one_of("by", name, filters.NAMES, "name of a column")
    if measures is None:
        anytime = any(record.anytime for record in records["record"])
        shown = [*MEASURES, *(FURTHER_MEASURES if anytime else ()), "seconds"]
    else:
        shown = list(dict.fromkeys([measures] if isinstance(measures, str) else measures))
    for name in shown:
        one_of("measure", name, NAMES)
    spread = METRICS if measures is None else shown
    numbers = [column for name in shown for column in ([name, f"{name}_std"] if name in spread else [name])]
    group = [*by, *(name for name in IDENTITY if name not in by)]
    if records.empty:
        return pd.DataFrame(columns=[*group, "n", *numbers])
    runs = latest(records).reset_index(drop=True)  # tables joined by pd.concat repeat their row labels
    names = list(dict.fromkeys([*group, *_VERSIONS]))
    keys = pd.DataFrame({name: filters.values(runs, name) for name in names if name != "settings"})
    keys["settings"] = [naming.settings(record.config, by) for record in runs["record"]]
    keys["label"] = pd.Categorical(keys["label"], method_order(keys["label"]))
    rows = []
    for values, part in runs.groupby([keys[name] for name in names], dropna=False, observed=True):
        row = averaged(part, shown) | dict(zip(names, values))
        paths = part["dataset"].unique()
        rows.append(row | ({"dataset": paths[0]} if len(paths) == 1 else {}))
    table = pd.DataFrame(rows).astype({"memory_size": "Int64"})
    shown_notes = [name for name in NOTES if name not in by and table[name].any()]
    kinds = {  # Methods are compared across rows. At another size, the images of a data set differ anyway.
        "fingerprint": runs.groupby(["dataset", "image_size"], dropna=False)["fingerprint"].nunique().max(),
        "source": 1 + len(changed_objects(runs["record"])),
    }
    versions = [name for name in _VERSIONS if name not in by and kinds[name] > 1]
    return table[[*group, "n", *numbers, *versions, *shown_notes]]


def averaged(runs: pd.DataFrame, measures: Sequence[str] = METRICS) -> dict[str, Any]:
    """The mean of some runs, in per cent or seconds; those that failed do not count.

    Returns:
        n (runs that count), each measure and, as <measure>_std, its sample standard deviation (NaN if one of the n runs
        does not have it: a mean of the others would not be that of n runs), and `NOTES`.
    """
    sound = without_failures(runs)
    row: dict[str, Any] = {"n": len(sound)}
    for name in measures:
        values = (1 if is_time(name) else 100) * sound[name].to_numpy(float)
        row[name] = values.mean() if len(sound) else np.nan
        row[f"{name}_std"] = values.std(ddof=1) if len(sound) > 1 else np.nan
    return row | notes(list(sound["record"]), measures) | {"left_out": failures(runs["record"])}


def notes(records: Sequence[Record], measures: Iterable[str]) -> dict[str, str]:
    """The `NOTES` on the records behind a mean, without left_out; a note is "" if there is nothing to say."""
    between_tasks = not _BETWEEN_TASKS.isdisjoint(measures)
    absent = ((record.classes, np.flatnonzero(np.isnan(record.class_recall[-1]))) for record in records)
    return {
        "arithmetic": _several(record.arithmetic for record in records),
        "evaluate_every": _several(record.config.evaluate_every for record in records) if between_tasks else "",
        "untested": first_of(list(dict.fromkeys(classes[c] for classes, labels in absent for c in labels))),
    }


def _several(values: Iterable[Any]) -> str:
    """The distinct values, without empty ones; "" if there are fewer than two."""
    distinct = sorted({*filter(None, values)})
    return " and ".join(map(str, distinct)) if len(distinct) > 1 else ""


def without_empty_notes(table: pd.DataFrame) -> pd.DataFrame:
    """The same table without the columns of `NOTES` in which no row has a value."""
    return table.drop(columns=[note for note in NOTES if not table[note].any()])


def is_time(measure: str) -> bool:
    """Whether a measure is in seconds; the others are in per cent."""
    return measure in _SECONDS
