"""Any records averaged over their seeds: one row per data set, memory size, method and settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ucl.catalogue import method_order
from ucl.errors import one_of
from ucl.evidence import filters, paper
from ucl.records import COLUMNS, FURTHER_MEASURES, MEASURES, Record, as_table
from ucl.records.measures import NAMES as MEASURE_NAMES
from ucl.records.runs import apart_from_failures, latest

if TYPE_CHECKING:
    import pandas as pd

IDENTITY = ("dataset", "memory_size", "label", "settings")
METRICS = ("A", "F")
_SECONDS = ("seconds", "seconds_per_batch")
NAMES = (*MEASURE_NAMES, *_SECONDS)
"""What can be averaged: the measures of a record, by name or column, and its times."""
_VERSIONS = {"data": "fingerprint", "source": "source"}
NOTES = ["arithmetic", "left_out"]  # columns that are dropped if no row has a value


def results(
    records: pd.DataFrame | Iterable[Record], by: str | Sequence[str] = (), measures: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Average any records, including those of own data sets and scores, over their seeds and over nothing else.

    Runs are in different rows if they differ in anything else that can change a result: a field of `Config`, the
    version of the images, or the version of a user's own score. If a run was measured more than once, only the record
    with the most kinds of further tests (`Config.readings`, `Config.evaluate_every`) counts, of equal ones the latest.
    Runs that failed (`Record.failure`) do not count.

    Args:
        records: of `ucl.load_records` or `ucl.sweep`.
        by: names of `ucl.where`, such as "lr". They are the first columns, and rows are sorted by them. With "seed",
            each run has its own row.
        measures: names of `Record.measures`, such as "A" or "learning", their columns in `ucl.load_records`,
            "seconds" or "seconds_per_batch".

    Returns:
        Columns `by`, dataset, memory_size, label (in the order of `ucl.plots.method_order`), settings (what differs
        from the defaults and is not in `by`), n, and for each measure its mean and, as <measure>_std, its sample
        standard deviation (NaN for a single run), in per cent or seconds. By default these are A and F, then only the
        means of learning, best, retained, last, average, last_share and seconds, and of backward, anytime and
        worst_case if a run was also tested between task ends (`Config.evaluate_every`). A measure that some of the n
        runs do not have is NaN. Further columns are present only if needed: data (fingerprint of the images) if one
        data set has several, source (hash of the user's own objects) if it distinguishes rows, arithmetic (of the
        scoring passes) if runs of one row had several, and left_out (how many runs failed, such as "1 diverged") if
        runs failed.

    Raises:
        InputError: `records` are no records, or a name is unknown.
    """
    records = as_table(records)
    by = [by] if isinstance(by, str) else by
    measures = [measures] if isinstance(measures, str) else measures
    between = len(records) and any(record.anytime for record in records["record"])
    usual = [*MEASURES, *(FURTHER_MEASURES if between else ()), "seconds"]
    shown = usual if measures is None else list(dict.fromkeys(measures))
    column_of = {name: _column(name) for name in shown}
    spread = METRICS if measures is None else shown
    by = list(dict.fromkeys(by))
    for name in by:
        one_of("by", name, filters.NAMES, "name of a column")
    group = [*by, *(name for name in IDENTITY if name not in by)]
    numbers = [column for name in shown for column in ([name, f"{name}_std"] if name in spread else [name])]
    import pandas as pd

    if records.empty:
        return pd.DataFrame(columns=[*group, "n", *numbers])
    runs = latest(records).reset_index(drop=True)  # tables joined by pd.concat repeat their row labels
    names = list(dict.fromkeys([*group, *_VERSIONS.values()]))
    keys = pd.DataFrame({name: filters.values(runs, name) for name in names if name != "settings"}, index=runs.index)
    keys["settings"] = [paper.settings(record.config, by) for record in runs["record"]]
    keys["label"] = pd.Categorical(keys["label"], method_order(keys["label"]))
    rows = []
    for identity, members in keys.groupby(names, dropna=False, observed=True):
        row = dict(zip(names, identity, strict=True))
        own, left_out = apart_from_failures(runs.loc[members.index])
        spelled = runs.loc[members.index, "dataset"].unique()
        row["dataset"] = spelled[0] if len(spelled) == 1 else row["dataset"]
        for name, column in column_of.items():
            row[name], row[f"{name}_std"] = mean_and_std(own[column], 1 if is_time(name) else 100)
        row |= {data: row[name] for data, name in _VERSIONS.items()}
        rows.append({"n": len(own), "arithmetic": arithmetic(own), "left_out": left_out, **row})
    versions, notes = ([name for name in names if name not in group] for names in (_VERSIONS, NOTES))
    table = pd.DataFrame(rows)[[*group, "n", *numbers, *versions, *notes]]
    n_versions = table.groupby(group, dropna=False)[versions].nunique().max()
    if "fingerprint" not in by:
        # Methods are compared across rows. At another size, the images of a data set differ anyway.
        images_of = runs.groupby(["dataset", "image_size"], dropna=False, sort=False)["fingerprint"]
        n_versions["data"] = images_of.nunique().max()
    empty = [name for name in versions if n_versions[name] < 2] + [name for name in notes if not table[name].any()]
    return table.drop(columns=empty).astype({"memory_size": "Int64"})


def mean_and_std(values: pd.Series, unit: float = 100) -> tuple[float, float]:
    """Mean and sample standard deviation of `unit` times the values; by default of shares, in per cent.

    Returns:
        Both are NaN if there are no values or one is missing; the standard deviation of a single value is NaN.
    """
    numbers = unit * values.astype(float)
    return float(numbers.mean(skipna=False)), float(numbers.std(ddof=1, skipna=False))


def arithmetic(runs: pd.DataFrame) -> str:
    """The arithmetics of the scoring passes, if the runs had more than one; otherwise ""."""
    names = sorted({record.arithmetic for record in runs["record"]} - {""}) if len(runs) else []
    return " and ".join(names) if len(names) > 1 else ""


def without_empty_notes(table: pd.DataFrame) -> pd.DataFrame:
    """The same table without the columns of `NOTES` in which no row has a value."""
    return table.drop(columns=[note for note in NOTES if not table[note].any()])


def is_time(measure: str) -> bool:
    """Whether a measure is in seconds; the others are in per cent."""
    return measure in _SECONDS


def _column(measure: str) -> str:
    """The column of `load_records` that has a measure."""
    one_of("measure", measure, NAMES)
    return COLUMNS.get(measure, measure)
