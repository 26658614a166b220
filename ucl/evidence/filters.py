"""Filters of records in pandas' query language: conditions on a run's choices and facts, not on its results."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from ucl.errors import InputError, one_of
from ucl.fields import FIELDS, as_text
from ucl.records import Record, as_table
from ucl.records.runs import listed

_FACTS = ("settings", "fingerprint", "source", "arithmetic", "device", "processor", "threads", "date")
NAMES = ("label", *FIELDS, *_FACTS)
"""What a filter can name: columns of `load_records`, that is, choices and facts of a run, but not its results."""
_PAIR = r"[A-Za-z_]\w*=(?!=)"
# A pair begins after a space, but not within the arguments of a user's object or after a comma in settings.
_BETWEEN_PAIRS = re.compile(rf"(?<!,)\s+(?={_PAIR})(?![^(]*\))")


def where(records: pd.DataFrame | Iterable[Record], *texts: str, name: str = "where") -> pd.DataFrame:
    """The records that meet all conditions.

    Args:
        records: of `ucl.load_records` or `ucl.sweep`.
        texts: each a query of `pandas.DataFrame.query`, such as ``"seed < 5 and score in ['BI', 'EN']"``, or pairs
            separated by spaces, ``"dataset=bloodcell label=BI bottom"``; an empty value means that there is none, so
            ``settings=`` selects the runs with only defaults. Names are label (the method's name in tables, such as ER
            or BI bottom), the fields of `Config`, settings (what differs from the defaults), source, arithmetic,
            fingerprint, device, processor (the GPU, or the CPU of a run without one), threads and date. A data set
            given as a path is named by its last part; the pair ``dataset=PATH`` also takes the path as it was given.
        name: the argument that has the texts, for error messages.

    Raises:
        InputError: `records` are not records, a text is not a condition, or no record meets the conditions; the message
            lists the values that the records have.
    """
    records = as_table(records)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(name, text, "give conditions as text, such as 'seed < 5'")
        for part in parts(text):
            selected = records[_holds(records, part, name)]
            if selected.empty:
                available = [f"{column} ({listed(values(records, column))})" for column in names(part)]
                raise InputError(name, part, f"no run meets this; values in the runs: {', '.join(available)}")
            records = selected
    return records


def parts(text: str) -> list[str]:
    """The pairs NAME=VALUE in a condition, or the whole text if it is a query."""
    return _BETWEEN_PAIRS.split(text.strip()) if re.match(_PAIR, text.strip()) else [text]


def names(text: str) -> list[str]:
    """Which of `NAMES` are in a condition."""
    words = (
        [part.partition("=")[0] for part in parts(text)] if re.match(_PAIR, text.strip()) else re.findall(r"\w+", text)
    )
    return [name for name in NAMES if name in words]


def values(records: pd.DataFrame, name: str) -> list[Any]:
    """The value of a name in `NAMES` for each record, of the data set its name; None without a value."""
    if name == "dataset":
        return [record.config.dataset_name for record in records["record"]]
    return [None if cell != cell else cell for cell in records[name].astype(object)]


def _holds(records: pd.DataFrame, part: str, name: str) -> list[bool]:
    """Whether each record meets one pair or query."""
    if re.match(_PAIR, part):
        column, _, value = part.partition("=")
        one_of(name, column, NAMES, "name in a condition")
        cells = zip(values(records, column), records["dataset"], strict=True)
        return [_equal(cell, value) or (column == "dataset" and value == path) for cell, path in cells]
    table = pd.DataFrame({column: values(records, column) for column in names(part)}, index=records.index)
    try:
        holds = table.eval(part, engine="python", local_dict={}, global_dict={})
        if holds.dtype != bool:
            raise TypeError(f"its values are of type {holds.dtype}")
        return list(holds)
    except NameError as error:
        if part.isidentifier():  # such as ER, a method's name in tables
            raise InputError(name, part, f'not a condition; give NAME=VALUE, such as "label={part}"') from None
        one_of(name, str(error).split("'")[1], NAMES, "name in a condition")
        raise
    except Exception as error:  # whatever pandas raises, the text is what cannot be used
        why = getattr(error, "msg", error)  # without the file and line of a SyntaxError
        reason = f"not a condition ({why}); give NAME=VALUE or a query, such as seed=0, 'seed == 0' or 'seed < 5'"
        raise InputError(name, part, reason) from None


def _equal(cell: Any, value: str) -> bool:
    """Whether the value of a run is that of a pair."""
    if cell is None or cell == "":
        return value == ""
    if isinstance(cell, bool):
        return str(cell).lower() == value.lower()
    try:
        return value in (as_text(cell), str(cell)) or float(cell) == float(value)
    except (TypeError, ValueError):
        return False
