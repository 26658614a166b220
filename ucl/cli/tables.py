"""The tables that `ucl results` and `compare` print, and the notes below them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ucl.fields import as_text, decimal
from ucl.machine.terminal import text_table
from ucl.user_objects import split_outside_arguments

if TYPE_CHECKING:
    import pandas as pd

_MACHINE = {"device": "devices", "processor": "processors", "threads": "numbers of threads"}  # on which times depend


def table_of_results(table: pd.DataFrame, by: Sequence[str], measures: Sequence[str]) -> str:
    """The table of `ucl.results` as text; values that are the same in all rows are in a line above the table.

    Args:
        table: see `ucl.results`; with a standard deviation for each measure.
        by: columns that are always shown.
        measures: names of measures.
    """
    from ucl.evidence.averages import is_time

    numbers = ["n", *measures, *(f"{name}_std" for name in measures)]
    notes = [name for name in ("arithmetic", "left_out") if name in table]
    words = [name for name in table if name not in (*numbers, *notes)]
    each = [split_outside_arguments(settings, ", ") for settings in table["settings"]]
    shared = set.intersection(*map(set, each))
    table = table.assign(settings=[", ".join(s for s in own if s not in shared) for own in each])
    same = [name for name in words if name not in (*by, "label") and table[name].nunique(dropna=False) == 1]
    words = [*(name for name in words if name not in same), *notes]
    head = [*words, "n", *(f"{name} [{'s' if is_time(name) else '%'}]" for name in measures)]
    rows = [
        [
            *(_word(row[name]) for name in words),
            str(row["n"]),
            *(_mean_and_std(row[name], row[f"{name}_std"], is_time(name)) for name in measures),
        ]
        for row in table.to_dict("records")
    ]
    above = [f"{name} {_word(table[name].iloc[0])}" for name in same if _word(table[name].iloc[0])]
    lines = [
        ", ".join([*above, *sorted(filter(None, shared))]),
        text_table(head, rows, len(words)),
        "mean ± sample standard deviation over n seeds",
        *(_why_empty(name) for name in measures if table.loc[table["n"] > 0, name].isna().any()),
    ]
    return "\n".join(filter(None, lines))


def note_on_times(records: pd.DataFrame, by: Sequence[str]) -> str:
    """Of which devices, processors and numbers of threads the times of a table are; "" if its columns say it.

    Args:
        records: of the table, see `ucl.load_records`.
        by: columns of the table that are always shown.
    """
    from ucl.evidence import filters
    from ucl.records.runs import listed

    cells = {name: filters.values(records, name) for name in _MACHINE}

    def n_kinds(names: Sequence[str]) -> int:
        return len(set(zip(*(cells[name] for name in names), strict=True))) if names else 1

    shown, mixed = [name for name in _MACHINE if name in by], []
    for name in _MACHINE:
        if n_kinds([*shown, name]) > n_kinds(shown):  # A GPU is a device and a processor: one of both is enough.
            shown.append(name)
            mixed.append(name)
    several = " and ".join(f"{_MACHINE[name]} ({listed(cells[name])})" for name in mixed)
    return f"times are of several {several}; --by {' '.join(mixed)} gives each its own rows" if mixed else ""


def table_of_differences(table: pd.DataFrame) -> str:
    """The table of `ucl.compare` as text, with notes below."""
    from ucl.evidence.table_formats import interval, number, with_interval

    head = ["data set", "memory", "measure", "n", "first", "second", "difference [95 %]", "detectable"]
    rows, notes, clustered = [], [], []
    for row in table.to_dict("records"):
        change = with_interval(row["mean"], row["low"], row["high"])
        words = [row["dataset"], _word(row["memory_size"]), row["metric"], str(row["n"])]
        numbers = [number(row["of_label"]), number(row["of_comparator"]), change, number(row["detectable"])]
        rows.append([*words, *numbers])
        stream = f"{words[0]}, memory {words[1]}" if words[1] else words[0]
        if by_seed := row["streams"] > 1 and interval(row["low_by_seed"], row["high_by_seed"]):
            clustered.append(f"{stream}, {row['metric']}: {by_seed} with the seed as cluster, as streams share seeds")
        for text, name in (("left out", "left_out"), ("scored in", "arithmetic")):
            notes.append(f"{stream}, {text}: {row[name]}" if row.get(name) else "")
    lines = [
        f"first: {table['label'].iloc[0]}",
        f"second: {table['comparator'].iloc[0]}",
        "first minus second, paired by seed within stream; A, F and other shares in per cent",
        "",
        text_table(head, rows, 3),
        "",
        *dict.fromkeys(filter(None, notes)),
        *clustered,
    ]
    if table["low"].notna().any():
        lines += [
            "detectable: the true difference that a test at 5 % finds with 80 % power at this n and spread",
            "An interval that contains 0: not distinguishable at this n.",
        ]
    elif table["n"].any():
        lines.append("no interval: a single pair per stream; measure more seeds")
    return "\n".join(lines)


def _why_empty(measure: str) -> str:
    """Why a table has no mean of a measure for runs that did not fail."""
    from ucl.records import COLUMNS, anytime

    further = measure in {*anytime.MEASURES, *(COLUMNS[name] for name in anytime.MEASURES)}
    reason = "; only runs with --evaluate-every do" if further else ""
    return f"{measure} is empty where a run of the row does not have it{reason}"


def _word(value: Any) -> str:
    """A value as text; "" for a missing one."""
    return "" if value is None or str(value) in ("<NA>", "nan") else as_text(value)


def _mean_and_std(mean: float, std: float, in_seconds: bool) -> str:
    """Such as "12.3 ± 4.5"; less than a second with three significant digits; "" for a NaN."""
    digits = 2 - math.floor(math.log10(mean)) if in_seconds and 0 < mean < 1 else 1
    return "" if math.isnan(mean) else decimal(mean, digits) + ("" if math.isnan(std) else f" ± {std:.{digits}f}")
