"""Filters of records, such as "dataset=bloodcell seed<5": conditions on a run's choices and facts, not on results."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ucl.choices import PLUGS, is_own
from ucl.config import Config, in_one_spelling
from ucl.errors import MOST_NAMED, InputError, near, one_of
from ucl.evidence import paper
from ucl.fields import as_text
from ucl.records import COLUMNS, Record, as_table
from ucl.records.runs import listed
from ucl.user_objects import split_outside_arguments

if TYPE_CHECKING:
    import pandas as pd

_FACTS: dict[str, Callable[[Record], Any]] = {  # not a column of `load_records`, or written differently there
    "settings": lambda record: paper.settings(record.config),
    "source": lambda record: record.version.source,
    "arithmetic": lambda record: record.arithmetic,
    "dataset": lambda record: record.config.dataset_name,
}
_COLUMNS = ("fingerprint", "device", "processor", "threads", "date")  # of `load_records`, written as they are there
NAMES = tuple(dict.fromkeys(["label", *(f.name for f in dataclasses.fields(Config)), *_FACTS, *_COLUMNS]))
"""What a filter can name: the method's label, the fields of `Config`, and facts of the record."""
_RESULTS = {*COLUMNS, *COLUMNS.values(), "diverged_after", "collapsed"}
_BEGINS = r"[A-Za-z_]\w*\s*(?:!=|<=|>=|==?|<|>)"
_CONDITION = re.compile(r"([A-Za-z_]\w*)\s*(!=|<=|>=|==?|<|>)\s*(.*)", re.DOTALL)
_DATE = re.compile(r"\d{4}(-\d\d){0,2}(T.*)?")
_ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Condition(NamedTuple):
    """One condition, such as seed<5.

    Attributes:
        name: a name in `NAMES`.
        operator: one of = != < <= > >=.
        value: as typed. For = and != it may be several values, separated by commas; an empty one means no value.
    """

    name: str
    operator: str
    value: str

    def holds(self, cells: Sequence[Any], values: Sequence[str]) -> list[bool]:
        """Which runs meet the condition.

        Args:
            cells: the value of this name in each run; None without a value.
            values: for = and !=, see `values`; unused by the others.
        """
        if self.operator in _ORDERED:
            compare = _ORDERED[self.operator]
            if self.name == "date":
                return [compare(str(cell), self.value) for cell in cells]
            numbers = [_number(cell) for cell in cells]
            return [number is not None and compare(number, float(self.value)) for number in numbers]
        return [any(self._is(cell, value) for value in values) == (self.operator == "=") for cell in cells]

    def without_a_run(self, cells: Sequence[Any], values: Sequence[str]) -> list[str]:
        """Those of several values after =, see `values`, that no run has; the empty one in memory_size=40, may miss."""
        if self.operator != "=":
            return []
        missing = [value for value in values if value and not any(self._is(cell, value) for cell in cells)]
        return missing if len(missing) < len(values) else []

    def values(self, cells: Sequence[Any]) -> list[str]:
        """The values that are separated by commas; a single one if a run has the whole, as a label may have a comma.

        Args:
            cells: the value of this name in each run; settings are found in any order.
        """
        if any(self._is(cell, self.value) for cell in cells):
            return [self.value]
        parts = split_outside_arguments(self.value, ",")
        if self.name == "settings":
            whole = {frozenset(split_outside_arguments(cell, ",")): cell for cell in cells}
            return [whole[frozenset(parts)]] if frozenset(parts) in whole else parts
        return [_as_in_config(self.name, part) for part in parts]

    def _is(self, cell: Any, value: str) -> bool:
        """Whether a run has a value; a date is compared as far as it is given."""
        return str(cell).startswith(value) if self.name == "date" and value else _equal(cell, value)


def conditions(texts: Iterable[str], name: str = "where") -> list[Condition]:
    """The conditions in some texts; a record must meet all of them.

    Args:
        texts: each one condition, or several separated by spaces.
        name: the argument that has the texts, for error messages.

    Raises:
        InputError: a text is not a condition, or its name is not in `NAMES`.
    """
    found = []
    for text in texts:
        if not isinstance(text, str):
            raise InputError(name, text, "give conditions as text, each its own argument, such as 'seed<5'")
        for part in _parts(text):
            match = _CONDITION.fullmatch(part)
            if match is None:
                reason = "not a condition; give NAME=VALUE, such as dataset=bloodcell, score=BI,EN or 'seed<5'"
                raise InputError(name, text, reason)
            condition = Condition(match[1], "=" if match[2] == "==" else match[2], match[3].strip())
            if condition.name in _RESULTS:
                raise InputError(name, part, "runs are chosen by what they are, not by their results")
            one_of(name, condition.name, NAMES, "name in a condition")
            if condition.operator in _ORDERED and condition.name != "date" and _number(condition.value) is None:
                raise InputError(name, part, f"{condition.operator} compares numbers; give one, such as 'seed<5'")
            if condition.operator in _ORDERED and condition.name == "date" and not _DATE.fullmatch(condition.value):
                raise InputError(name, part, "dates are compared as year-month-day; give one as in 'date>=2026-01-31'")
            found.append(condition)
    return found


def _parts(text: str) -> list[str]:
    """The conditions in a text, which are separated by spaces.

    A value may contain what looks like others: settings=lr=0.05, refresh=2 and score=mine:spread(power=2, scale=3).
    """
    found: list[str] = []
    for part in split_outside_arguments(text, rf"\s+(?={_BEGINS})"):
        if found and found[-1].endswith(",") and re.match(r"settings\s*!?=", found[-1]):
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def where(records: pd.DataFrame | Iterable[Record], *texts: str, name: str = "where") -> pd.DataFrame:
    """The records that meet all conditions.

    A condition is NAME=VALUE, with = (or ==) != < <= > or >=. With = and !=, VALUE may be several values, separated by
    commas. A run without a value, such as the score of a random memory, meets ``score=`` and no other condition with =.
    A date is compared as far as it is given: ``date<=2026-01-31`` includes that day.

    Args:
        records: of `ucl.load_records` or `ucl.sweep`.
        texts: each one condition, or several separated by spaces: ``"dataset=bloodcell seed<5"``. Names are label (the
            method's name in tables, such as ER or BI bottom), the fields of `Config`, settings (what differs from the
            defaults; empty where nothing does), source, arithmetic, fingerprint, device, processor (the GPU, or the CPU
            of a run without one), threads and date. A data set given as a path is named by its last part, or by the
            path as it was given.
        name: the argument that has the texts, for error messages.

    Returns:
        The rows that meet all conditions.

    Raises:
        InputError: `records` are no records, a text is not a condition, no record meets the conditions, or none
            has one of several values; the message lists the values that the records have.
    """
    records = as_table(records)
    asked = conditions(texts, name)
    values_of = []  # of all records: what is one value there is one value among those that meet other conditions, too
    for condition in asked:
        cells = _cells(records, condition)
        values_of.append(condition.values(cells))
        if unknown := condition.without_a_run(cells, values_of[-1]):
            reason = f"no run has {' or '.join(unknown)}; {_what_there_is(condition, unknown, cells)}"
            raise InputError(name, "".join(condition), reason)
    met: list[str] = []
    for condition, of_condition in zip(asked, values_of, strict=True):
        text, cells = "".join(condition), _cells(records, condition)
        holds = condition.holds(cells, of_condition)
        if not cells:
            raise InputError(name, text, "there are no runs")
        if not any(holds):
            whose = f"no run with {' '.join(met)}" if met else "no run"
            reason = f"{whose} has it; {_what_there_is(condition, of_condition, cells)}"
            raise InputError(name, text, reason)
        records = records[holds]
        met.append(text)
    return records


def _what_there_is(condition: Condition, asked: Sequence[str], cells: Sequence[Any]) -> str:
    """The values that there are in place of those asked for, similar texts first."""
    texts = sorted({cell for cell in cells if isinstance(cell, str)} - {""})
    guesses = [guess for value in asked if value and condition.operator == "=" for guess in near(value, texts)]
    hint = f"did you mean {' or '.join(guesses[:MOST_NAMED])}? " if guesses else ""
    return f"{hint}{condition.name} is {listed(cells)}"


def values(records: pd.DataFrame, name: str) -> list[Any]:
    """The value of a name in `NAMES` for each record; None without a value."""
    if name in _FACTS:
        return [_FACTS[name](record) for record in records["record"]]
    return [None if cell != cell else cell for cell in records[name].astype(object)]


def _cells(records: pd.DataFrame, condition: Condition) -> list[Any]:
    """The value of the condition's name for each record.

    Of a data set, it is the path as given if the condition names that; of a date, as much as the longest one given.
    """
    cells, given = values(records, condition.name), split_outside_arguments(condition.value, ",")
    if condition.name == "date" and any(given):
        return [str(cell)[: max(map(len, given))] for cell in cells]
    if condition.name != "dataset":
        return cells
    asked = {condition.value, *given}  # A folder's name may contain a comma.
    return [typed if typed in asked else name for typed, name in zip(records["dataset"], cells)]


def _as_in_config(name: str, value: str) -> str:
    """A value as a `Config` has it: the path of an object of the user's own in its one spelling, others as typed."""
    if name not in PLUGS or not is_own(value):
        return value
    try:
        return in_one_spelling(name, value)
    except InputError:  # No run has it. `where` says so, with the values that there are.
        return value


def _equal(cell: Any, value: str) -> bool:
    if cell is None or cell == "":
        return value == ""
    if isinstance(cell, bool):
        return str(cell).lower() == value.lower()
    number = _number(cell)
    return as_text(cell) == value or (number is not None and number == _number(value))


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
