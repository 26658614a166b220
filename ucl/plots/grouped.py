"""Records grouped by method, for figures: whether they can be averaged, and names."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable
from typing import TypeAlias

import pandas as pd

from ucl import naming
from ucl.catalogue import method_order
from ucl.errors import InputError
from ucl.evidence.paired import check_one_method, check_unchanged
from ucl.plots.style import plain
from ucl.records import Record, as_table, failures
from ucl.records.runs import facts_of, latest, listed

Records: TypeAlias = pd.DataFrame | Iterable[Record]
"""Records, or a table of them: `ucl.load_records`."""
ADD = "add a condition (in Python: ucl.where), such as --where"


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each method, by its label, in the order of all figures."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.config.label, []).append(record)
    return {label: groups[label] for label in method_order(groups)}


def same_but_for_seed(records: Records) -> list[Record]:
    """The records, which one picture can show: they share a stream, and those of a method differ in the seed alone.

    If a run was measured more than once, the record that counts, see `ucl.records.runs.latest`.

    Raises:
        InputError: there is none, or they cannot share a picture; the message has a condition to add.
    """
    records = list(latest(as_table(records))["record"])
    if not records:
        reason = "there is nothing to draw: none of these runs is measured; `ucl.sweep` measures them"
        raise InputError("", None, reason)
    facts = [facts_of(record) for record in sorted(records, key=lambda record: record.date, reverse=True)]
    for name in ("dataset", *sorted(naming.STREAM - {"dataset"}), "fingerprint"):
        values = [run[name] for run in facts if run.get(name) is not None]
        if len({*values}) > 1:
            value = listed(values[:1])  # of the newest run
            query = f"memory_size == {value} or memory_size.isna()"  # with the methods that have no memory
            example = shlex.quote(query if name == "memory_size" else f"{name}={value}")
            reason = f"a picture shows one {name}, and these runs have {listed(values)}"
            raise InputError("", None, f"{reason}; {ADD} {example}")
    for label, runs in by_label(records).items():
        check_one_method(runs, "label", label)
    check_unchanged(records)
    return records


def names_of(records: Iterable[Record]) -> dict[str, str]:
    """The name of each method in a figure: its label and, in brackets, how many of its runs failed and are left out.

    A long name, such as that of a user score, has several lines.
    """
    failed = {label: failures(runs) for label, runs in by_label(records).items()}
    return {label: plain(textwrap.fill(f"{label} ({n})" if n else label, 26)) for label, n in failed.items()}
