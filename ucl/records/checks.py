"""Validation of a record's JSON: types, ranges and shapes, one line per attribute."""

from __future__ import annotations

import datetime
import itertools
import re
import reprlib
from collections.abc import Callable, Iterator
from typing import Any

from ucl.catalogue import PLUGS

Check = Callable[[Any], bool]


_LARGEST = 2.0**1023  # A sum or a difference of two such numbers is still finite.


def whole(low: int) -> Check:
    """Accepts whole numbers from `low` up to the largest int64."""
    return lambda value: type(value) is int and low <= value < 2**63


def real(low: float = -_LARGEST) -> Check:
    """Accepts finite numbers from `low`."""
    return lambda value: type(value) in (int, float) and low <= value <= _LARGEST


def numbers(low: float = -_LARGEST, high: float = _LARGEST, whole: bool = False, gaps: bool = False) -> Check:
    """Accepts lists of at least one number from `low` to `high`, whole numbers up to the largest int64.

    A record holds thousands of numbers, so that a function call for each would take most of the time of reading it.

    Args:
        gaps: whether None is accepted too.
    """
    types = {int} | (set() if whole else {float}) | ({type(None)} if gaps else set())
    high = min(high, 2**63 - 1) if whole else high

    def check(value: Any) -> bool:
        if type(value) is not list or not value or not types.issuperset(map(type, value)):
            return False
        return all([low <= number <= high for number in value if number is not None])

    return check


def optional(check: Check) -> Check:
    """Accepts None and what `check` accepts."""
    return lambda value: value is None or check(value)


def either(*checks: Check) -> Check:
    """Accepts what at least one of the checks accepts."""
    return lambda value: any(check(value) for check in checks)


def list_of(check: Check) -> Check:
    """Accepts lists of at least one element if `check` accepts all elements."""
    return lambda value: type(value) is list and len(value) > 0 and all(map(check, value))


def table_of(row: Check) -> Check:
    """Accepts lists of at least one row of equal length if `row` accepts each."""
    rows = list_of(row)
    return lambda value: rows(value) and len(set(map(len, value))) == 1


def entries(required: dict[str, Check], known: dict[str, Check], others: Check) -> Check:
    """Accepts objects with the `required` entries; entries in `known` are checked by name, all others by `others`."""
    named = {**known, **required}

    def check(value: Any) -> bool:
        is_complete = type(value) is dict and required.keys() <= value.keys()
        return is_complete and all(named.get(key, others)(entry) for key, entry in value.items())

    return check


def text(value: Any) -> bool:
    return type(value) is str


def hash_(value: Any) -> bool:
    """Accepts hexadecimal digits only, because they become part of file names."""
    return text(value) and re.fullmatch(r"[0-9a-f]{1,64}", value) is not None


def date(value: Any) -> bool:
    """Accepts dates in ISO 8601, with or without a time."""
    try:
        return text(value) and bool(datetime.datetime.fromisoformat(value))
    except ValueError:
        return False


_table, _TABLE = table_of(numbers(0, 1, gaps=True)), "a table of numbers in [0, 1] or null"
_READING = ("accuracy", "class_recall", "answer_shares")
_fact = optional(either(text, real(), lambda value: type(value) is bool))
_memory = {
    "position": numbers(0, whole=True),
    "label": numbers(0, whole=True),
    "score": numbers(gaps=True),
    "confidence": numbers(0, 1, gaps=True),
    "bregman_information": numbers(0, gaps=True),
}
ATTRIBUTES: dict[str, tuple[Check, str]] = {
    "date": (date, "a date in ISO 8601"),
    "classes": (list_of(text), "a list of names"),
    "class_order": (numbers(0, whole=True), "a list of labels"),
    "accuracy": (_table, _TABLE),
    "class_recall": (_table, _TABLE),
    "timing": (
        entries({"total": real(0), "evaluation": real(0), "batches": whole(1)}, {}, optional(real(0))),
        "an object with total, evaluation and batches, each a number of at least 0",
    ),
    "environment": (
        entries({"device": text}, {"peak_memory_mib": real(0), **{f"{field}_source": hash_ for field in PLUGS}}, _fact),
        "an object of texts and numbers, with the device",
    ),
    "data": (
        entries({"name": text, "fingerprint": hash_}, {"training_images": whole(1)}, _fact),
        "an object with name and fingerprint",
    ),
    "memory": (entries({}, _memory, list_of(_fact)), "an object of lists of numbers"),
}
_anytime = {
    "batches": numbers(1, whole=True),
    "correct": table_of(numbers(0, whole=True, gaps=True)),
    "images": numbers(1, whole=True),
}
# Attributes that not all records have.
OPTIONAL: dict[str, tuple[Check, str]] = {
    "diverged_after": (optional(whole(0)), "the number of a task"),
    "answer_shares": (_table, _TABLE),
    "anytime": (entries(_anytime, {}, _fact), "an object with batches, correct and images"),
    "readings": (
        entries({}, {}, entries({"shift": numbers(0, gaps=True)} | dict.fromkeys(_READING, _table), {}, _fact)),
        "an object of readings, each with accuracy, class_recall, answer_shares and shift",
    ),
}


def check(raw: dict[str, Any]) -> None:
    """Check the attributes of a record's JSON object, and that their shapes are consistent.

    Raises:
        ValueError: an attribute is missing or not valid; the message names it and its value.
    """
    present = {name: OPTIONAL[name] for name in OPTIONAL if name in raw}
    for name, (fits, what) in (ATTRIBUTES | present).items():
        if name not in raw:
            raise ValueError(f"{name} is missing")
        if not fits(raw[name]):
            raise ValueError(f"{name} is {reprlib.repr(raw[name])}; it must be {what}")
    n_tasks, n_classes, diverged = len(raw["accuracy"]), len(raw["classes"]), raw.get("diverged_after")
    measured = n_tasks if diverged is None else diverged
    empty = [[i > t or t >= measured for i in range(n_tasks)] for t in range(n_tasks)]

    def misfits(tests: dict[str, Any]) -> Iterator[str]:
        """The tables of the record, or of one of its readings, whose shape is not right, by name."""
        if [[value is None for value in row] for row in tests["accuracy"]] != empty:
            yield "accuracy"
        if (len(tests["class_recall"]), len(tests["class_recall"][0])) != (n_tasks, n_classes):
            yield "class_recall"
        if "answer_shares" in tests and {len(tests["answer_shares"]), len(tests["answer_shares"][0])} != {n_tasks}:
            yield "answer_shares"
        if len(tests.get("shift", empty)) != n_tasks:
            yield "shift"

    labels = raw["memory"].get("label", [])
    shapes = [
        ("diverged_after", diverged is None or diverged < n_tasks),
        ("class_order", sorted(raw["class_order"]) == list(range(n_classes))),
        ("memory", len(set(map(len, raw["memory"].values()))) <= 1 and all(label < n_classes for label in labels)),
        ("anytime", "anytime" not in raw or _is_along_the_stream(raw["anytime"], n_tasks)),
    ]
    wrong = [(name, raw.get(name)) for name, fine in shapes if not fine]
    wrong += [(name, raw[name]) for name in misfits(raw)]
    for reading, tests in raw.get("readings", {}).items():
        wrong += [(f"{name} of the reading {reading!r}", tests[name]) for name in misfits(tests)]
    if wrong:
        (name, value), expected = wrong[0], f"{n_tasks} tasks and {n_classes} classes"
        raise ValueError(f"{name} is {reprlib.repr(value)}, which does not fit {expected}")


def _is_along_the_stream(anytime: dict[str, Any], n_tasks: int) -> bool:
    """Whether the batches ascend, the tasks begin in order, and no count exceeds the number of images."""
    batches, correct, images = anytime["batches"], anytime["correct"], anytime["images"]
    ascending = all(earlier < later for earlier, later in itertools.pairwise(batches))
    begun = [sum(n is not None for n in row) for row in correct]
    in_order = begun == sorted(begun) and all(None not in row[:n] for row, n in zip(correct, begun, strict=True))
    possible = all(n is None or n <= of for row in correct for n, of in zip(row, images, strict=False))
    sizes = (len(batches), n_tasks) == (len(correct), len(images)) and len(correct[0]) == n_tasks
    return sizes and ascending and in_order and possible and begun[0] > 0
