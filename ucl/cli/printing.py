"""What the verbs print: tables of records, of differences and of progress, and the contents of data sets."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ucl.errors import InputError
from ucl.fields import as_text
from ucl.machine.terminal import duration

if TYPE_CHECKING:
    import pandas as pd

_MOST_CLASSES = 12  # of more classes, the first and the last are listed


def refuse(verb: argparse.ArgumentParser, error: InputError) -> int:
    """Print in one line what cannot be used, after the flag of the verb that has it, and why; returns the exit code."""
    flags = {action.dest: action.option_strings[:1] for action in verb._actions} | {"root": ["--data"]}
    typed = [*flags.get(error.name, [error.name]), str(error.value) or "''"]
    message = f"{' '.join(typed)}: {error.reason}" if error.name else error.reason
    print(f"{verb.prog}: {' '.join(message.split())}", file=sys.stderr)
    return 2


def averages(table: pd.DataFrame, by: Sequence[str]) -> str:
    """The table of `ucl.results` as text; values that are the same in all rows are in a line above it.

    Args:
        table: see `ucl.results`; with a standard deviation for each measure.
        by: columns that are always shown.
    """
    from ucl.evidence.averages import NOTES, is_time
    from ucl.evidence.table_formats import texts

    measures = [name for name in table if f"{name}_std" in table]
    numbers = ["n", *measures, *(f"{name}_std" for name in measures)]
    words = [name for name in table if name not in numbers]
    always = {*by, "label", *NOTES}
    shared = [name for name in words if name not in always and table[name].nunique(dropna=False) == 1]
    columns = {name: table[name].map(_word) for name in words if name not in shared}
    n_words = len(columns)
    columns["n"] = table["n"].astype(str)
    for name in measures:
        digits = 4 if name == "seconds_per_batch" else 1
        columns[f"{name} [{'s' if is_time(name) else '%'}]"] = texts(table[[name, f"{name}_std"]], digits)[name]
    above = ", ".join(f"{name} {word}" for name in shared if (word := _word(table[name].iloc[0])))
    lines = [above] if above else []
    lines += [_text_table(list(columns), list(zip(*columns.values())), n_words)]
    lines += ["mean ± sample standard deviation over n seeds"]
    if any(map(is_time, measures)):
        separated = "--by device processor threads readings evaluate_every separates them"
        lines += [f"times depend on the machine, and seconds also on further tests: {separated}"]
    if "source" in table and "source" not in by:
        lines += ["source: your code has changed between these runs; measure the older ones again"]
    for name in measures:
        if table.loc[table["n"] > 0, name].isna().any():
            lines.append(f"{name} is empty where a run of the row does not have it, see ucl results --help")
    return "\n".join(lines)


def differences(table: pd.DataFrame) -> str:
    """The table of `ucl.compare` as text, with notes below."""
    from ucl.evidence.averages import NOTES
    from ucl.evidence.table_formats import number, with_interval

    head = ["data set", "memory", "measure", "n", "first", "second", "difference [95 %]", "detectable"]
    rows, notes = [], []
    for row in table.to_dict("records"):
        change = with_interval(row["mean"], row["low"], row["high"])
        words = [row["dataset"], _word(row["memory_size"]), row["metric"], str(row["n"])]
        numbers = [number(row["of_label"]), number(row["of_comparator"]), change, number(row["detectable"])]
        rows.append([*words, *numbers])
        stream = f"{words[0]} {words[1]}".strip()
        notes += [f"{stream}, {name}: {row[name]}" for name in NOTES if row.get(name)]
    lines = [
        f"first: {table['label'].iloc[0]}",
        f"second: {table['comparator'].iloc[0]}",
        "first minus second, paired by seed within stream; A, F and other shares in per cent",
        "",
        _text_table(head, rows, 3),
        "",
        *dict.fromkeys(notes),
        "detectable: the smallest true difference that n seeds find in four of five experiments",
    ]
    return "\n".join(lines)


def progress(table: pd.DataFrame) -> str:
    """The table of `ucl.sweeps.progress.status` as text, and the time of the missing runs here."""
    rows = table.assign(left=table["seconds"].map(_time)).drop(columns="seconds")
    for name in ("locked", "missing"):
        rows[name] = [" ".join(map(str, seeds)) for seeds in table[name]]
    total = _time(table["seconds"].sum(skipna=False))
    return f"{rows.to_string(index=False, na_rep='')}\ntime of the missing runs here, one after another: {total}"


def contents(facts: dict[str, Any]) -> str:
    """The facts about a data set, see `ucl.datasets.check`: a line, a table of the classes, and the remarks."""
    numbers = {key: value for key, value in facts.items() if key not in ("sizes", "remarks") and value != 0}
    table = facts["sizes"].to_string(max_rows=_MOST_CLASSES)
    first = ", ".join(f"{key} {value}" for key, value in numbers.items())
    return "\n".join([first, table, *facts["remarks"]])


def _time(seconds: float) -> str:
    return "unknown" if math.isnan(seconds) else duration(seconds)


def _word(value: Any) -> str:
    """A value as text; "" for a missing one."""
    return "" if value is None or str(value) in ("<NA>", "nan") else as_text(value)


def _text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A table as text with aligned columns: the first `left` columns at the left, the others, numbers, at the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [cell.ljust(n) if i < left else cell.rjust(n) for i, (cell, n) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
